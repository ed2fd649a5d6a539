//! One of several client processes of a benchmark: `fusee-bench client`, which only benchmarks start.
//!
//! The process joins the cluster, runs its share of the workers through the phases in step with the other client
//! processes, and hands its counts and records to the benchmark. See [`super::message`].

use std::io::{BufRead, Write, stdin, stdout};
use std::sync::mpsc::{Receiver, Sender, channel};

use fusee_cli::connect;
use fusee_cli::failure::Failure;
use fusee_cli::interrupt;
use fusee_client::{FabricChoice, Options};

use super::clock::BenchClock;
use super::driver::{self, PhaseObserver, WorkerLayout};
use super::message::{
    BenchClientMessage, ClientSpec, GO, PhaseCounts, ResultsMessage, STOP, TraceFiles,
};
use super::record::PackedOperation;
use super::worker::WorkerContext;
use fusee_workload::KeyNaming;

/// Runs the process.
pub fn run() -> Result<(), Failure> {
    let result = run_spec();
    if let Err(failure) = &result {
        send_message(&BenchClientMessage::Failed {
            code: failure.code(),
            message: failure.to_string(),
        })?;
    }
    result
}

fn run_spec() -> Result<(), Failure> {
    let mut line = String::new();
    let read = stdin().lock().read_line(&mut line);
    read.map_err(|error| Failure::operation(format!("cannot read what to do: {error}")))?;
    let spec: ClientSpec = serde_json::from_str(&line).map_err(|error| {
        Failure::usage(format!("this is for the benchmark itself to start: {error}"))
    })?;
    let fabric = spec.fabric.parse::<FabricChoice>().map_err(Failure::usage)?;
    let (go, gone) = channel();
    std::thread::spawn(move || listen(&go));
    let mut options = Options::default()
        .with_fabric(fabric)
        .with_cache_entries(spec.cache_entries)
        .with_cache_per_session(spec.cache_per_session)
        .with_cache_threshold(spec.cache_threshold)
        .with_work_table(spec.work_table.parse().map_err(Failure::usage)?);
    options.switch = spec.switch.as_deref().map(Into::into);
    let client = connect::join(&spec.master, options)?;
    let mut board = WorkerContext::new(spec.pair_bytes, spec.run.seed);
    board.clock = BenchClock::shared(spec.origin_ns);
    board.part = spec.part;
    board.keep = spec.keep;
    let trace = spec.run.files.as_ref().map(TraceFiles::read).transpose()?;
    match &trace {
        Some(trace) => board.keys = KeyNaming::Named(trace.clone()),
        None => board.keys_come_and_go = spec.run.workload.removes_keys(),
    }
    let crew = WorkerLayout {
        threads: spec.threads,
        coroutines: spec.coroutines,
        first_thread: spec.first_thread,
    };
    let phases = spec.run.phases(spec.part, trace.as_ref());
    let outcome = driver::run(&client, &board, crew, &phases, &mut PhaseCommands(gone))?;
    let results = ResultsMessage {
        phases: outcome.results.iter().map(PhaseCounts::new).collect(),
        claimed: board.frontier.claimed(),
        broken: board.is_broken(),
        entries: outcome.entries.len() as u64,
    };
    send_message(&BenchClientMessage::Results(results))?;
    write_records(&outcome.entries)
}

/// Obeys the benchmark's commands from the standard input, and ends the process when the input ends.
fn listen(go: &Sender<()>) {
    for line in stdin().lock().lines() {
        match line.as_deref() {
            Ok(GO) => drop(go.send(())),
            Ok(STOP) => interrupt::request(),
            _ => break,
        }
    }
    // The end of the input means that the benchmark has ended, so nothing would read the results.
    std::process::exit(1);
}

/// Waits for the benchmark's command before each phase.
struct PhaseCommands(Receiver<()>);

impl PhaseObserver for PhaseCommands {
    fn shows_progress(&self) -> bool {
        false
    }

    fn begin(&mut self) {
        // If the benchmark has ended, sending fails; the thread in [`listen`] then ends this process.
        let _ = send_message(&BenchClientMessage::Ready);
        let _ = self.0.recv();
    }

    fn phase_ended(&mut self, from_ns: u64, to_ns: u64) {
        let _ = send_message(&BenchClientMessage::Ended { from_ns, to_ns });
    }
}

fn send_message(said: &BenchClientMessage) -> Result<(), Failure> {
    let json = serde_json::to_string(said)
        .map_err(|error| Failure::operation(format!("cannot tell: {error}")))?;
    fusee_cli::output::line(&json)
}

fn write_records(entries: &[PackedOperation]) -> Result<(), Failure> {
    let mut out = std::io::BufWriter::new(stdout().lock());
    let written = entries.iter().try_for_each(|entry| out.write_all(&entry.to_bytes()));
    written
        .and_then(|()| out.flush())
        .map_err(|error| Failure::operation(format!("cannot hand over the records: {error}")))
}
