//! The setting that a sweep varies, and the other settings.

use clap::ValueEnum;
use fusee_cli::failure::Failure;
use fusee_cli::quantity::Bytes;

use crate::args::{ClusterArgs, MIN_PAIR_BYTES};
use fusee_workload::{Distribution, KEY_BYTES, MAX_KEYS};

/// The largest number of replicas.
const MAX_REPLICAS: u64 = 5;
/// The largest number of sessions of a point.
const MAX_SESSIONS: u64 = 1024;

/// The setting that is varied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Axis {
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

impl Axis {
    /// Returns the name in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            Axis::ValueBytes => "value-bytes",
            Axis::Sessions => "sessions",
            Axis::IndexReplicas => "index-replicas",
            Axis::DataReplicas => "data-replicas",
            Axis::Updates => "updates",
            Axis::Keys => "keys",
        }
    }

    /// Returns the name for people.
    pub fn label(self) -> &'static str {
        match self {
            Axis::ValueBytes => "bytes of a value",
            Axis::Sessions => "sessions",
            Axis::IndexReplicas => "replicas of the index",
            Axis::DataReplicas => "replicas of keys and values",
            Axis::Updates => "updates, in percent",
            Axis::Keys => "keys",
        }
    }

    /// Returns the default points.
    pub fn points(self) -> &'static [u64] {
        match self {
            Axis::ValueBytes => &[64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10],
            Axis::Sessions => &[1, 2, 4, 8, 16],
            Axis::IndexReplicas | Axis::DataReplicas => &[1, 2, 3, 4, 5],
            Axis::Updates => &[0, 5, 25, 50, 75, 100],
            Axis::Keys => &[100_000, 1_000_000, 10_000_000],
        }
    }

    /// Returns the least and the most value of a point.
    fn range(self) -> (u64, u64) {
        match self {
            Axis::ValueBytes => ((MIN_PAIR_BYTES - KEY_BYTES) as u64, 1 << 20),
            Axis::Sessions => (1, MAX_SESSIONS),
            Axis::IndexReplicas | Axis::DataReplicas => (1, MAX_REPLICAS),
            Axis::Updates => (0, 100),
            Axis::Keys => (1, MAX_KEYS / 2),
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

    /// Returns the label of a point in a picture.
    pub fn tick(self, point: u64) -> String {
        match self {
            Axis::ValueBytes => Bytes(point).to_string(),
            _ => point.to_string(),
        }
    }

    /// Returns the default shares of updates at every point, in percent.
    pub fn updates(self) -> &'static [u8] {
        match self {
            Axis::Keys => &[0, 100],
            _ => &[0, 50],
        }
    }

    /// Returns the default point: settings that are neither given nor varied.
    pub fn base(self) -> Point {
        Point {
            keys: if self == Axis::ValueBytes { 20_000 } else { 100_000 },
            pair_bytes: if self == Axis::Keys { 64 } else { 1024 },
            sessions: if self == Axis::Keys { 1 } else { 2 },
            index_replicas: 3,
            data_replicas: 2,
        }
    }

    /// Returns the memory nodes of all points.
    pub fn memory_nodes(self) -> u16 {
        match self {
            Axis::IndexReplicas | Axis::DataReplicas => MAX_REPLICAS as u16,
            _ => 3,
        }
    }

    /// Returns the distribution of the requests. The number of keys matters most if none is popular.
    pub fn distribution(self) -> Distribution {
        if self == Axis::Keys { Distribution::Uniform } else { Distribution::Zipfian }
    }

    /// Returns a point of this axis, with all other settings unchanged.
    pub fn at(self, point: u64, base: Point) -> Point {
        match self {
            Axis::ValueBytes => Point { pair_bytes: KEY_BYTES + point as usize, ..base },
            Axis::Sessions => Point { sessions: point as u16, ..base },
            Axis::IndexReplicas => Point { index_replicas: point as u8, ..base },
            Axis::DataReplicas => Point { data_replicas: point as u8, ..base },
            Axis::Updates => base,
            Axis::Keys => Point { keys: point, ..base },
        }
    }
}

/// One cluster with its load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    pub keys: u64,
    /// Key and value together.
    pub pair_bytes: usize,
    pub sessions: u16,
    pub index_replicas: u8,
    pub data_replicas: u8,
}

impl Point {
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
        for axis in Axis::value_variants() {
            axis.check(axis.points()).unwrap();
            assert_eq!(axis.to_possible_value().unwrap().get_name(), axis.name());
            let base = axis.base();
            let points: Vec<Point> = axis.points().iter().map(|p| axis.at(*p, base)).collect();
            // Updates are no part of a cluster; of any other axis at most one point equals the default.
            let same = points.iter().filter(|point| **point == base).count();
            let expected = if *axis == Axis::Updates { same == points.len() } else { same <= 1 };
            assert!(expected, "{axis:?}: {points:?}");
            let (_, most) = axis.range();
            assert!(axis.check(&[most + 1]).unwrap_err().to_string().contains("--points has"));
        }
        assert_eq!(Axis::ValueBytes.at(1024, Axis::ValueBytes.base()).pair_bytes, 1040);
    }
}
