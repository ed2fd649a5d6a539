//! Redundancies that are compared on one cluster, and the figures of ElasticMem's Table 1 for a transition.

use std::fmt;
use std::str::FromStr;

use fusee_client::Redundancy;

use fusee_workload::KEY_BYTES;

/// The redundancies to compare on a cluster with this number of data replicas. As text: `3:replicated,ec:4+2`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedundancySet {
    pub data_replicas: u8,
    pub redundancies: Vec<Redundancy>,
}

impl FromStr for RedundancySet {
    type Err = String;

    fn from_str(text: &str) -> Result<RedundancySet, String> {
        let form = || {
            format!(
                "`{text}` is no set; it is replicas of the data and redundancies, like \
                 3:replicated,ec:4+2"
            )
        };
        let (replicas, names) = text.split_once(':').ok_or_else(form)?;
        let data_replicas = replicas.parse().map_err(|_| form())?;
        let parse = |name: &str| name.parse().map_err(|error| format!("{text}: {error}"));
        let redundancies: Vec<Redundancy> =
            names.split(',').map(parse).collect::<Result<_, _>>()?;
        let is_twice = |at: usize| redundancies[..at].contains(&redundancies[at]);
        if (0..redundancies.len()).any(is_twice) {
            return Err(format!("`{text}` has a redundancy twice"));
        }
        Ok(RedundancySet { data_replicas, redundancies })
    }
}

impl fmt::Display for RedundancySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.redundancies.iter().map(Redundancy::to_string).collect();
        write!(f, "{}:{}", self.data_replicas, names.join(","))
    }
}

impl RedundancySet {
    /// Returns the number of memory nodes that the pairs of this set need.
    pub fn places(&self) -> usize {
        let replicas = usize::from(self.data_replicas);
        let places = self.redundancies.iter().map(|redundancy| redundancy.places(replicas));
        places.max().unwrap_or(0).max(replicas)
    }

    /// Returns the name of a redundancy, such that it is unique among several sets.
    pub fn name(&self, redundancy: Redundancy) -> String {
        match redundancy {
            Redundancy::Replicated => format!("replicated ({})", self.data_replicas),
            other => other.to_string(),
        }
    }

    /// Returns all pairs of redundancies, whose transitions are measured forth and back.
    pub fn pairs(&self) -> Vec<(Redundancy, Redundancy)> {
        let all = &self.redundancies;
        let pairs_of = |at: usize| all[at + 1..].iter().map(move |to| (all[at], *to));
        (0..all.len()).flat_map(pairs_of).collect()
    }

    /// Returns the bytes that a transition reads and writes, divided by the length of the value, by ElasticMem's Table
    /// 1. Returns `None` if the table does not have the transition.
    pub fn table_1(&self, from: Redundancy, to: Redundancy) -> Option<f64> {
        use Redundancy::{Coded, Oriented, Replicated};
        let in_place = in_place(from, to);
        match (from, to) {
            (_, Coded(code)) if in_place => Some((code.k() + code.m()) as f64 / code.k() as f64),
            (_, Oriented(of)) if in_place => Some(of.replicas() as f64),
            (Replicated, Coded(code)) => Some((2 * code.k() + code.m()) as f64 / code.k() as f64),
            (Coded(_), Replicated) => Some(f64::from(self.data_replicas) + 1.0),
            _ => None,
        }
    }

    /// Returns the bytes that a transition reads and writes, divided by the length of the value, if objects and chunks
    /// are rounded up to their size classes. Slots are left out.
    pub fn by_class(&self, from: Redundancy, to: Redundancy, value_bytes: u64) -> Option<f64> {
        let bytes = |redundancy: Redundancy, parts: usize| {
            let class = redundancy.class(KEY_BYTES, value_bytes as usize)?;
            Some(class.bytes() * parts as u64)
        };
        let data = |redundancy: Redundancy| redundancy.coding().map_or(1, |code| code.k());
        let copies = |count: usize| bytes(Redundancy::Replicated, count);
        let written = match to {
            Redundancy::Coded(code) if in_place(from, to) => bytes(to, code.m())?,
            Redundancy::Oriented(of) if in_place(from, to) => copies(of.copies())?,
            Redundancy::Oriented(of) => bytes(to, data(to))? + copies(of.copies())?,
            _ => bytes(to, to.places(self.data_replicas.into()))?,
        };
        Some((bytes(from, data(from))? + written) as f64 / value_bytes as f64)
    }
}

/// Returns whether a pair can change from one redundancy to the other in place.
fn in_place(from: Redundancy, to: Redundancy) -> bool {
    use Redundancy::{Coded, Oriented};
    match (from, to) {
        (Coded(code), Oriented(of)) | (Oriented(of), Coded(code)) => of.coding() == code,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_understood_and_others_refused() {
        for text in ["3:replicated,ec:4+2", "1:replicated", "2:replicated,ec:4+1,eor:2:5+1"] {
            assert_eq!(text.parse::<RedundancySet>().unwrap().to_string(), text);
        }
        for text in ["", "3", "x:replicated", "3:", "3:raid", "3:ec:1+1", "3:ec:4+2,ec:4+2"] {
            assert!(text.parse::<RedundancySet>().is_err(), "{text}");
        }
    }

    #[test]
    fn transitions_are_those_of_table_1() {
        let set: RedundancySet = "3:replicated,ec:4+2,ec:5+1".parse().unwrap();
        let [replicated, ec, other] = set.redundancies[..] else { panic!("there are three") };
        assert_eq!(set.pairs(), [(replicated, ec), (replicated, other), (ec, other)]);
        assert_eq!(set.table_1(replicated, ec), Some(2.5));
        assert_eq!(set.table_1(replicated, other), Some(2.2));
        assert_eq!(set.table_1(ec, replicated), Some(4.0));
        assert_eq!(set.table_1(ec, other), None);
        assert_eq!(set.places(), 6);
        let set: RedundancySet = "2:replicated,eor:2:4+1,ec:4+1".parse().unwrap();
        let [replicated, eor, ec] = set.redundancies[..] else { panic!("there are three") };
        assert_eq!((set.table_1(eor, ec), set.table_1(ec, eor)), (Some(1.25), Some(2.0)));
        assert_eq!((set.table_1(replicated, eor), set.places()), (None, 5));
        let bytes = |redundancy: Redundancy| redundancy.class(KEY_BYTES, 1 << 16).unwrap().bytes();
        let [chunk, object] = [ec, replicated].map(bytes);
        let by_class = |from, to| set.by_class(from, to, 1 << 16).unwrap() * f64::from(1 << 16);
        assert_eq!(by_class(eor, ec), (5 * chunk) as f64);
        assert_eq!(by_class(ec, eor), (4 * chunk + object) as f64);
        assert_eq!(by_class(replicated, eor), (4 * chunk + 2 * object) as f64);
        let set: RedundancySet = "3:replicated,eor:3:4+2,ec:4+2".parse().unwrap();
        let [replicated, eor, ec] = set.redundancies[..] else { panic!("there are three") };
        assert_eq!((set.table_1(eor, ec), set.table_1(ec, eor)), (Some(1.5), Some(3.0)));
        let by_class = |from, to| set.by_class(from, to, 1 << 16).unwrap() * f64::from(1 << 16);
        assert_eq!(by_class(eor, ec), (6 * chunk) as f64);
        assert_eq!(by_class(ec, eor), (4 * chunk + 2 * object) as f64);
        assert_eq!(by_class(replicated, eor), (4 * chunk + 3 * object) as f64);
    }
}
