//! The rounds of a comparison: all subjects do the same work in turn, and only results of one round are compared.

use std::collections::BTreeMap;
use std::sync::Arc;

use fusee_cli::failure::Failure;
use fusee_cli::quantity::count_with_noun;
use fusee_cli::stderr;
use fusee_workload::{Distribution, KeyChooser, WorkloadOperation, key_bytes};
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::parts::ProgramPart;
use super::report::{CompareRow, CompareTable};
use super::stores::PipelinedRequest;
use super::stores::cpu::{ProcessThread, time_ns};
use super::task::{CompareSubject, CompareTask, MeasuredOperation};
use super::{CompareArgs, CompareMeasure};
use crate::loaded_cluster::numbers;
use crate::samples::RoundSamples;

/// The skew of YCSB.
const THETA: f64 = 0.99;
/// The seed that decides which keys are popular. It is the same in every round.
const POPULAR: u64 = 1;

/// The work of one round, which is the same for all subjects.
pub struct CompareRound {
    pub task: CompareTask,
    /// Number of operations.
    pub operations: u32,
    /// The numbers of the keys of operations.
    pub numbers: Vec<u32>,
    /// The requests of a workload.
    pub requests: Arc<Vec<PipelinedRequest>>,
    pub load: LoadShape,
}

/// The concurrency of a workload.
#[derive(Clone, Copy)]
pub struct LoadShape {
    pub threads: u16,
    /// Requests in flight in each thread.
    pub depth: u16,
}

/// The result of one subject in one round.
pub struct CompareSample {
    /// Nanoseconds or instructions of one operation.
    pub value: f64,
    /// The parts of the program that make up `value`, if the measure distinguishes them.
    pub parts: BTreeMap<ProgramPart, f64>,
}

impl CompareSample {
    pub fn without_parts(value: f64) -> CompareSample {
        CompareSample { value, parts: BTreeMap::new() }
    }
}

/// A subject that has been started.
pub trait StartedSubject {
    /// Does the work of a round.
    fn run(&mut self, round: &CompareRound) -> Result<CompareSample, Failure>;

    /// Returns the threads of the subject's server, whose processor time is measured; none if it has no server.
    fn server_threads(&self) -> Result<Vec<ProcessThread>, Failure> {
        Ok(Vec::new())
    }

    /// Fails if the rounds have damaged anything.
    fn verify(&self) -> Result<(), Failure> {
        Ok(())
    }
}

/// A subject that takes part, ready for its rounds.
pub struct Contestant {
    pub subject: CompareSubject,
    pub started: Box<dyn StartedSubject>,
}

/// The results of one subject in all rounds of one task.
#[derive(Default)]
struct SubjectSamples {
    values: RoundSamples,
    server: RoundSamples,
    /// The sample with the smallest value so far.
    least: Option<CompareSample>,
}

/// Runs all rounds of one task.
pub fn measure(
    args: &CompareArgs,
    task: CompareTask,
    load: LoadShape,
    contestants: &mut [Contestant],
) -> Result<CompareTable, Failure> {
    let mut present: Vec<&mut Contestant> =
        contestants.iter_mut().filter(|contestant| contestant.subject.can_do(task)).collect();
    let title = match task {
        CompareTask::Workload(_) => {
            let threads = count_with_noun(load.threads, "thread");
            format!("{task}, {threads}, {} in flight", load.depth)
        }
        _ => task.to_string(),
    };
    stderr::tell(&format!("measuring {title}"));
    let servers = present.iter().map(|contestant| contestant.started.server_threads());
    let servers: Vec<Vec<ProcessThread>> = servers.collect::<Result<_, _>>()?;
    let chooser = KeyChooser::new(Distribution::Zipfian, args.size.keys.into(), THETA, POPULAR);
    let mut all: Vec<SubjectSamples> = present.iter().map(|_| Default::default()).collect();
    for number in 0..args.rounds {
        let round = round(args, task, load, &chooser, number);
        for i in 0..present.len() {
            let i = (i + number as usize) % present.len();
            let busy_before = time_ns(&servers[i])?;
            let sample = present[i].started.run(&round)?;
            let busy = time_ns(&servers[i])? - busy_before;
            all[i].values.push(sample.value);
            all[i].server.push(busy as f64 / f64::from(round.operations));
            if all[i].least.as_ref().is_none_or(|least| sample.value < least.value) {
                all[i].least = Some(sample);
            }
        }
    }
    let family = task.family();
    let references: Vec<usize> =
        (0..present.len()).filter(|i| present[*i].subject.is_reference(family)).collect();
    let row = |i: usize| {
        let others = references.iter().filter(|reference| **reference != i);
        let over = others.map(|reference| {
            let times = all[i].values.over(&all[*reference].values).spread();
            (present[*reference].subject, times)
        });
        CompareRow {
            subject: present[i].subject,
            value: all[i].values.spread(),
            server_cpu_ns: (!servers[i].is_empty()).then(|| all[i].server.spread()),
            over: over.collect(),
            parts: all[i].least.as_ref().map(|least| least.parts.clone()).unwrap_or_default(),
        }
    };
    Ok(CompareTable { task: title, rows: (0..present.len()).map(row).collect() })
}

fn round(
    args: &CompareArgs,
    task: CompareTask,
    load: LoadShape,
    chooser: &KeyChooser,
    number: u32,
) -> CompareRound {
    let keys = args.size.keys;
    let mut operations = args.operations;
    let mut key_numbers = Vec::new();
    let mut requests = Vec::new();
    match task {
        CompareTask::Operation(MeasuredOperation::Get | MeasuredOperation::Update) => {
            key_numbers = numbers(keys, operations, u64::from(number));
        }
        // Each insert or delete takes a key of its own. If instructions are counted, the cluster is made with one key
        // for each operation.
        CompareTask::Operation(_) => {
            if args.measure != CompareMeasure::Instructions {
                operations = operations.min(keys);
            }
            key_numbers = (0..operations).collect();
        }
        CompareTask::Verb(_) => {}
        CompareTask::Workload(workload) => {
            let mut rng = SmallRng::seed_from_u64(u64::from(number));
            let mut chooser = chooser.clone();
            let request = |_| {
                let key = key_bytes(chooser.next(&mut rng, keys.into()));
                match workload.draw(&mut rng) {
                    WorkloadOperation::Update => PipelinedRequest::Update(key),
                    _ => PipelinedRequest::Get(key),
                }
            };
            requests = (0..operations).map(request).collect();
        }
    }
    CompareRound { task, operations, numbers: key_numbers, requests: Arc::new(requests), load }
}
