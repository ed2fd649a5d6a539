//! The measurement of one set of redundancies on one cluster, with values of one length: reads, writes and transitions
//! in turn.
//!
//! A session does one operation at a time. Each redundancy, and each pair of redundancies, has keys of its own. In
//! every round each of these groups of keys has its turn, and each round begins with another group, so that a machine
//! that is busy for a while slows all of them alike. There is no other writer, so every read must find the value that
//! was written last. At the end a session with an empty cache reads all keys.

use std::cmp::Ordering;
use std::time::Instant;

use fusee_cli::failure::Failure;
use fusee_client::{
    BlockingClient, OpKind, PutOptions, Redundancy, Session, Transition, WriteError,
};

use super::set::RedundancySet;
use crate::samples::RoundSamples;
use crate::spread::Spread;
use crate::tally::OperationTally;
use crate::value::ValueOrigin;
use crate::verify::{Mismatch, self_check};
use fusee_workload::key_bytes;

/// The amount of work of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct WorkAmount {
    /// Number of operations of each kind in a round. This is also the number of keys of each redundancy, and of each
    /// pair of redundancies.
    pub operations: u64,
    pub value_bytes: usize,
}

/// Reads and writes with one redundancy: the median of each round, in microseconds.
pub struct AccessSamples {
    pub redundancy: Redundancy,
    pub read: RoundSamples,
    pub write: RoundSamples,
}

/// Transitions from one redundancy to another.
pub struct TransitionSamples {
    pub from: Redundancy,
    pub to: Redundancy,
    /// The median of each round, in microseconds.
    pub time: RoundSamples,
    /// Number of transitions that took place.
    pub transitions: u64,
    /// Bytes that these transitions read and wrote.
    pub bytes: u64,
    /// The most round trips that one transition took, of this way or an earlier one.
    pub phases: u32,
}

/// The measurements.
pub struct RedundancyMeasurements {
    pub accesses: Vec<AccessSamples>,
    /// For each pair of redundancies, the transitions forth and the transitions back.
    pub ways: Vec<[TransitionSamples; 2]>,
    pub tally: OperationTally,
    pub read_back: u64,
    pub problems: Vec<String>,
}

/// The measurement on one cluster.
pub struct RedundancyBench<'a> {
    client: &'a BlockingClient,
    session: Session,
    amount: WorkAmount,
    value: Vec<u8>,
    /// Number of writes of each key.
    versions: Vec<u64>,
    measured: RedundancyMeasurements,
}

impl<'a> RedundancyBench<'a> {
    /// Opens a session, and writes every key with the redundancy of its group, or with the first of its pair of
    /// redundancies.
    pub fn new(
        client: &'a BlockingClient,
        set: &RedundancySet,
        amount: WorkAmount,
    ) -> Result<RedundancyBench<'a>, Failure> {
        let session = client.session()?;
        let way = |from, to| TransitionSamples {
            from,
            to,
            time: RoundSamples::default(),
            transitions: 0,
            bytes: 0,
            phases: 0,
        };
        let access = |redundancy: &Redundancy| AccessSamples {
            redundancy: *redundancy,
            read: RoundSamples::default(),
            write: RoundSamples::default(),
        };
        let pairs = set.pairs();
        let measured = RedundancyMeasurements {
            accesses: set.redundancies.iter().map(access).collect(),
            ways: pairs.iter().map(|(one, other)| [way(*one, *other), way(*other, *one)]).collect(),
            tally: OperationTally::default(),
            read_back: 0,
            problems: Vec::new(),
        };
        let groups = (set.redundancies.len() + pairs.len()) as u64;
        let mut bench = RedundancyBench {
            client,
            session,
            amount,
            value: vec![0; amount.value_bytes],
            versions: vec![0; (groups * amount.operations) as usize],
            measured,
        };
        let first_of_pairs = pairs.iter().map(|(from, _)| *from);
        for (group, redundancy) in
            set.redundancies.iter().copied().chain(first_of_pairs).enumerate()
        {
            for key in bench.keys(group) {
                bench.write(key, redundancy);
            }
        }
        Ok(bench)
    }

    /// Returns the number of turns of a round.
    pub fn turns(&self) -> usize {
        self.measured.accesses.len() + self.measured.ways.len()
    }

    /// Returns whether an operation has failed, so that it is pointless to go on.
    pub fn has_failed(&self) -> bool {
        self.measured.tally.error_count() + self.measured.tally.mismatch_count() > 0
    }

    /// Runs the turn of one redundancy, or of one pair of redundancies.
    pub fn turn(&mut self, number: usize) {
        let keys = self.keys(number);
        match number.checked_sub(self.measured.accesses.len()) {
            None => self.access(number, keys),
            Some(pair) => {
                // Each turn writes the keys anew. Otherwise their pairs would lie in other places after a few turns of
                // transitions.
                let from = self.measured.ways[pair][0].from;
                for key in keys.clone() {
                    self.write(key, from);
                }
                for way in 0..2 {
                    self.transitions(pair, way, keys.clone());
                }
            }
        }
    }

    /// Returns the keys of a redundancy, or of a pair of redundancies.
    fn keys(&self, group: usize) -> std::ops::Range<u64> {
        let first = group as u64 * self.amount.operations;
        first..first + self.amount.operations
    }

    fn access(&mut self, number: usize, keys: std::ops::Range<u64>) {
        let redundancy = self.measured.accesses[number].redundancy;
        let mut times = [Vec::new(), Vec::new()];
        for key in keys {
            times[0].extend(self.write(key, redundancy));
            times[1].extend(self.read(key));
        }
        let access = &mut self.measured.accesses[number];
        for (samples, times) in [&mut access.write, &mut access.read].into_iter().zip(times) {
            Spread::of(times).into_iter().for_each(|spread| samples.push(spread.median));
        }
    }

    /// Changes the redundancy of all these keys, one way.
    fn transitions(&mut self, pair: usize, way: usize, keys: std::ops::Range<u64>) {
        let to = self.measured.ways[pair][way].to;
        let before = *self.session.stats().kind(OpKind::Move);
        let mut times = Vec::new();
        for key in keys {
            times.extend(self.move_to(key, to));
        }
        let after = *self.session.stats().kind(OpKind::Move);
        let way = &mut self.measured.ways[pair][way];
        way.transitions += after.operations - before.operations;
        way.bytes += after.bytes - before.bytes;
        way.phases = way.phases.max(after.max_phases);
        Spread::of(times).into_iter().for_each(|spread| way.time.push(spread.median));
    }

    /// Writes the next value of a key; returns the time in microseconds.
    fn write(&mut self, key: u64, redundancy: Redundancy) -> Option<f64> {
        let version = &mut self.versions[key as usize];
        *version += 1;
        ValueOrigin { key, writer: 0, sequence: *version }.encode(&mut self.value);
        let bytes = key_bytes(key);
        let start = Instant::now();
        let put = self.session.put_with(
            &bytes,
            &self.value,
            PutOptions::default().with_redundancy(redundancy),
        );
        let result = self.session.block_on(put);
        self.timed(OpKind::Upsert, key, start, result).map(|((), time)| time)
    }

    fn read(&mut self, key: u64) -> Option<f64> {
        let bytes = key_bytes(key);
        let start = Instant::now();
        let mut time = 0.0;
        let expected = self.versions[key as usize];
        let read = self.session.get_with(&bytes, |found| {
            time = us(start);
            judge(key, found, self.amount.value_bytes, expected)
        });
        let result = self.session.block_on(read);
        let (checked, _) = self.timed(OpKind::Search, key, start, result)?;
        let checked = checked.map_err(|mismatch| self.measured.tally.mismatch(key, &mismatch));
        checked.ok().map(|()| time)
    }

    fn move_to(&mut self, key: u64, to: Redundancy) -> Option<f64> {
        let bytes = key_bytes(key);
        let start = Instant::now();
        let result = self.session.block_on(self.session.set_redundancy(&bytes, to));
        let (transition, time) = self.timed(OpKind::Move, key, start, result)?;
        if transition == Transition::Moved {
            return Some(time);
        }
        let problem = format!("key number {key} should have moved to {to}: {transition:?}");
        self.measured.problems.push(problem);
        None
    }

    fn timed<T>(
        &mut self,
        kind: OpKind,
        key: u64,
        start: Instant,
        result: Result<T, impl Into<WriteError>>,
    ) -> Option<(T, f64)> {
        let time = us(start);
        result
            .map_err(|error| self.measured.tally.error(kind, key, &error.into()))
            .ok()
            .map(|value| (value, time))
    }

    /// Reads all keys back.
    pub fn end(mut self) -> Result<RedundancyMeasurements, Failure> {
        // The new session has an empty cache.
        self.session = self.client.session()?;
        let groups = self.turns();
        for group in 0..groups {
            let accesses = &self.measured.accesses;
            let redundancy = match group.checked_sub(accesses.len()) {
                None => accesses[group].redundancy,
                Some(pair) => self.measured.ways[pair][0].from,
            };
            for key in self.keys(group) {
                let is_right = self.read(key).is_some();
                self.measured.read_back += u64::from(is_right);
                let bytes = key_bytes(key);
                let found = self.session.block_on(self.session.redundancy_of(&bytes))?;
                if found != Some(redundancy) && !self.has_failed() {
                    let problem = format!("key number {key} is {found:?}, not {redundancy}");
                    self.measured.problems.push(problem);
                }
            }
        }
        Ok(self.measured)
    }
}

fn us(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e6
}

fn judge(key: u64, found: Option<&[u8]>, len: usize, expected: u64) -> Result<(), Mismatch> {
    let found = found.ok_or(Mismatch::Missing)?;
    let ValueOrigin { writer, sequence, .. } = self_check(key, found, len)?;
    match sequence.cmp(&expected) {
        Ordering::Equal => Ok(()),
        Ordering::Less => Err(Mismatch::Overwritten { writer, sequence }),
        Ordering::Greater => Err(Mismatch::NeverWritten { writer, sequence }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_value_that_was_written_last_is_right() {
        let mut value = vec![0; 64];
        ValueOrigin { key: 1, writer: 0, sequence: 5 }.encode(&mut value);
        assert_eq!(judge(1, Some(&value), 64, 5), Ok(()));
        assert!(matches!(judge(1, Some(&value), 64, 6), Err(Mismatch::Overwritten { .. })));
        assert!(matches!(judge(1, Some(&value), 64, 4), Err(Mismatch::NeverWritten { .. })));
        assert_eq!(judge(1, None, 64, 5), Err(Mismatch::Missing));
        assert_eq!(judge(1, Some(&value[1..]), 64, 5), Err(Mismatch::Torn));
    }
}
