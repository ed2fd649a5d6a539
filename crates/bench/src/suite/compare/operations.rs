//! Operations of FUSEE, their raw verbs, and a plain copy of the value, one at a time on random keys.
//!
//! The key of a get depends on the data that the previous get has read, because otherwise the processor would overlap
//! successive gets, and the more so the shorter they are.

use std::hint::black_box;
use std::time::Instant;

use fusee_cli::failure::Failure;

use super::rounds::{CompareRound, CompareSample, StartedSubject};
use super::task::{CompareSubject, CompareTask, MeasuredOperation};
use crate::loaded_cluster::{DependencyChain, LoadedCluster, LoadedClusterArgs, last_byte};
use crate::verbs::RawCluster;

/// Starts a subject that executes operations.
pub fn start(
    size: &LoadedClusterArgs,
    subject: CompareSubject,
) -> Result<Box<dyn StartedSubject>, Failure> {
    let Some(fabric) = subject.fabric() else { return Ok(Box::new(PlainCopies::new(size))) };
    if subject.is_fusee() {
        let loaded = LoadedCluster::over(size, fabric)?;
        loaded.gets(&(0..size.keys).collect::<Vec<u32>>())?;
        Ok(Box::new(loaded))
    } else {
        Ok(Box::new(RawCluster::over(size, fabric)?))
    }
}

/// Runs `work`, which is this number of operations, and returns the mean nanoseconds of an operation.
pub fn time(
    operations: u32,
    work: impl FnOnce() -> Result<(), Failure>,
) -> Result<CompareSample, Failure> {
    let start = Instant::now();
    work()?;
    let ns = start.elapsed().as_nanos() as f64;
    Ok(CompareSample::without_parts(ns / f64::from(operations)))
}

impl StartedSubject for LoadedCluster {
    fn run(&mut self, round: &CompareRound) -> Result<CompareSample, Failure> {
        let numbers = &round.numbers;
        match round.task {
            CompareTask::Operation(MeasuredOperation::Update) => {
                time(round.operations, || self.updates(numbers))
            }
            CompareTask::Operation(MeasuredOperation::Insert) => {
                self.deletes(numbers)?;
                time(round.operations, || self.inserts(numbers))
            }
            CompareTask::Operation(MeasuredOperation::Delete) => {
                let sample = time(round.operations, || self.deletes(numbers))?;
                self.inserts(numbers)?;
                Ok(sample)
            }
            _ => time(round.operations, || self.gets(numbers)),
        }
    }
}

/// Runs the raw verbs of gets or updates. Of a task with single verbs, first runs a tenth of the verbs for warming up.
impl StartedSubject for RawCluster {
    fn run(&mut self, round: &CompareRound) -> Result<CompareSample, Failure> {
        let pairs = self.pairs(&round.numbers);
        match round.task {
            CompareTask::Verb(verb) => {
                (0..round.operations / 10).try_for_each(|_| self.verb(verb))?;
                time(round.operations, || (0..round.operations).try_for_each(|_| self.verb(verb)))
            }
            CompareTask::Operation(MeasuredOperation::Update) => {
                time(round.operations, || pairs.iter().try_for_each(|pair| self.update(pair)))
            }
            _ => time(round.operations, || {
                let mut chain = DependencyChain::default();
                while let Some(pair) = pairs.get(chain.at) {
                    chain.next(self.get(pair)?);
                }
                Ok(())
            }),
        }
    }

    fn verify(&self) -> Result<(), Failure> {
        self.verify_pairs()
    }
}

/// Plain copies of as many bytes as a pair has, from a buffer with room for all pairs.
struct PlainCopies {
    from: Vec<u8>,
    into: Vec<u8>,
}

impl PlainCopies {
    fn new(size: &LoadedClusterArgs) -> PlainCopies {
        let bytes = size.pair_bytes as usize;
        PlainCopies { from: vec![1; size.keys as usize * bytes], into: vec![0; bytes] }
    }

    fn copy(&mut self, number: u32) -> u8 {
        let bytes = self.into.len();
        self.into.copy_from_slice(&self.from[number as usize * bytes..][..bytes]);
        last_byte(black_box(&self.into))
    }
}

impl StartedSubject for PlainCopies {
    fn run(&mut self, round: &CompareRound) -> Result<CompareSample, Failure> {
        time(round.operations, || {
            let mut chain = DependencyChain::default();
            while let Some(number) = round.numbers.get(chain.at) {
                chain.next(self.copy(*number));
            }
            Ok(())
        })
    }
}
