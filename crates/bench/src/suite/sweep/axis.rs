//! The setting that a sweep varies, and the defaults of the other settings.

use clap::ValueEnum;
use fusee_cli::failure::Failure;
use fusee_cli::quantity::ByteSize;

use crate::args::{ClusterArgs, MIN_PAIR_BYTES};
use fusee_workload::{Distribution, KEY_BYTES, MAX_KEYS};

/// Maximum number of replicas.
const MAX_REPLICAS: u64 = 5;
/// Maximum number of sessions at a point.
const MAX_SESSIONS: u64 = 1024;

/// The setting that is varied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SweepAxis {
    /// Bytes of a value
    ValueBytes,
    /// Sessions, each on a thread of its own
    Sessions,
    /// Replicas of the index
    IndexReplicas,
    /// Replicas of keys and values
    DataReplicas,
    /// Share of updates, in percent; the others are reads
    Updates,
    /// Keys in the store
    Keys,
}

impl SweepAxis {
    /// Returns the name in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            SweepAxis::ValueBytes => "value-bytes",
            SweepAxis::Sessions => "sessions",
            SweepAxis::IndexReplicas => "index-replicas",
            SweepAxis::DataReplicas => "data-replicas",
            SweepAxis::Updates => "updates",
            SweepAxis::Keys => "keys",
        }
    }

    /// Returns the name for people.
    pub fn label(self) -> &'static str {
        match self {
            SweepAxis::ValueBytes => "bytes of a value",
            SweepAxis::Sessions => "sessions",
            SweepAxis::IndexReplicas => "replicas of the index",
            SweepAxis::DataReplicas => "replicas of keys and values",
            SweepAxis::Updates => "updates, in percent",
            SweepAxis::Keys => "keys",
        }
    }

    /// Returns the default points.
    pub fn points(self) -> &'static [u64] {
        match self {
            SweepAxis::ValueBytes => &[64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10],
            SweepAxis::Sessions => &[1, 2, 4, 8, 16],
            SweepAxis::IndexReplicas | SweepAxis::DataReplicas => &[1, 2, 3, 4, 5],
            SweepAxis::Updates => &[0, 5, 25, 50, 75, 100],
            SweepAxis::Keys => &[100_000, 1_000_000, 10_000_000],
        }
    }

    /// Returns the smallest and the largest value of a point.
    fn range(self) -> (u64, u64) {
        match self {
            SweepAxis::ValueBytes => ((MIN_PAIR_BYTES - KEY_BYTES) as u64, 1 << 20),
            SweepAxis::Sessions => (1, MAX_SESSIONS),
            SweepAxis::IndexReplicas | SweepAxis::DataReplicas => (1, MAX_REPLICAS),
            SweepAxis::Updates => (0, 100),
            SweepAxis::Keys => (1, MAX_KEYS / 2),
        }
    }

    /// Refuses points outside of the range.
    pub fn check(self, points: &[u64]) -> Result<(), Failure> {
        let (least, most) = self.range();
        match points.iter().find(|point| !(least..=most).contains(*point)) {
            None => Ok(()),
            Some(point) => Err(Failure::usage(format!(
                "--points has {point}; {} are {least} to {most}",
                self.label()
            ))),
        }
    }

    /// Returns the label of a point in a chart.
    pub fn tick(self, point: u64) -> String {
        match self {
            SweepAxis::ValueBytes => ByteSize(point).to_string(),
            _ => point.to_string(),
        }
    }

    /// Returns the default shares of updates at every point, in percent.
    pub fn updates(self) -> &'static [u8] {
        match self {
            SweepAxis::Keys => &[0, 100],
            _ => &[0, 50],
        }
    }

    /// Returns the default point, for settings that are neither given nor varied.
    pub fn base(self) -> SweepPoint {
        SweepPoint {
            keys: if self == SweepAxis::ValueBytes { 20_000 } else { 100_000 },
            pair_bytes: if self == SweepAxis::Keys { 64 } else { 1024 },
            sessions: if self == SweepAxis::Keys { 1 } else { 2 },
            index_replicas: 3,
            data_replicas: 2,
        }
    }

    /// Returns the default number of memory nodes at every point.
    pub fn memory_nodes(self) -> u16 {
        match self {
            SweepAxis::IndexReplicas | SweepAxis::DataReplicas => MAX_REPLICAS as u16,
            _ => 3,
        }
    }

    /// Returns the default distribution of the requests. It is uniform if the number of keys varies, because that
    /// number matters most if no key is popular.
    pub fn distribution(self) -> Distribution {
        if self == SweepAxis::Keys { Distribution::Uniform } else { Distribution::Zipfian }
    }

    /// Returns a point of this axis, with all other settings unchanged.
    pub fn at(self, point: u64, base: SweepPoint) -> SweepPoint {
        match self {
            SweepAxis::ValueBytes => SweepPoint { pair_bytes: KEY_BYTES + point as usize, ..base },
            SweepAxis::Sessions => SweepPoint { sessions: point as u16, ..base },
            SweepAxis::IndexReplicas => SweepPoint { index_replicas: point as u8, ..base },
            SweepAxis::DataReplicas => SweepPoint { data_replicas: point as u8, ..base },
            SweepAxis::Updates => base,
            SweepAxis::Keys => SweepPoint { keys: point, ..base },
        }
    }
}

/// The sizes of one cluster and its load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SweepPoint {
    pub keys: u64,
    /// Bytes of key and value together.
    pub pair_bytes: usize,
    pub sessions: u16,
    pub index_replicas: u8,
    pub data_replicas: u8,
}

impl SweepPoint {
    /// Returns the cluster of this point.
    pub fn cluster(&self, base: &ClusterArgs) -> ClusterArgs {
        ClusterArgs {
            index_replicas: Some(self.index_replicas),
            data_replicas: Some(self.data_replicas),
            ..base.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_axis_varies_one_setting() {
        for axis in SweepAxis::value_variants() {
            axis.check(axis.points()).unwrap();
            assert_eq!(axis.to_possible_value().unwrap().get_name(), axis.name());
            let base = axis.base();
            let points: Vec<SweepPoint> = axis.points().iter().map(|p| axis.at(*p, base)).collect();
            // Updates are not part of a point. For any other axis at most one point equals the default point.
            let same = points.iter().filter(|point| **point == base).count();
            let expected =
                if *axis == SweepAxis::Updates { same == points.len() } else { same <= 1 };
            assert!(expected, "{axis:?}: {points:?}");
            let (_, most) = axis.range();
            assert!(axis.check(&[most + 1]).unwrap_err().to_string().contains("--points has"));
        }
        assert_eq!(SweepAxis::ValueBytes.at(1024, SweepAxis::ValueBytes.base()).pair_bytes, 1040);
    }
}
