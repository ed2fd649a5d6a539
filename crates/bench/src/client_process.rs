//! One of several client processes of a benchmark: `fusee bench client`, which is not for people.
//!
//! It joins the cluster, runs its share of the workers through the phases, in step with the other
//! processes, and hands over their counts and records. See [`super::message`].

use std::io::{BufRead, Write, stdin, stdout};
use std::sync::mpsc::{Receiver, Sender, channel};

use fusee_cli::connect;
use fusee_cli::failure::Failure;
use fusee_cli::interrupt;
use fusee_client::{FabricChoice, Options};

use super::clock::Clock;
use super::driver::{self, Crew, Steps};
use super::message::{Files, GO, PhaseCounts, Results, STOP, Said, Spec};
use super::record::Packed;
use super::worker::Board;
use fusee_workload::Keys;

/// Runs the process.
pub fn run() -> Result<(), Failure> {
    let result = take_part();
    if let Err(failure) = &result {
        say(&Said::Failed { code: failure.code(), message: failure.to_string() })?;
    }
    result
}

fn take_part() -> Result<(), Failure> {
    let mut line = String::new();
    let read = stdin().lock().read_line(&mut line);
    read.map_err(|error| Failure::operation(format!("cannot read what to do: {error}")))?;
    let spec: Spec = serde_json::from_str(&line).map_err(|error| {
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
    let mut board = Board::new(spec.pair_bytes, spec.run.seed);
    board.clock = Clock::shared(spec.origin_ns);
    board.part = spec.part;
    board.keep = spec.keep;
    let trace = spec.run.files.as_ref().map(Files::read).transpose()?;
    match &trace {
        Some(trace) => board.keys = Keys::Named(trace.clone()),
        None => board.keys_come_and_go = spec.run.workload.removes_keys(),
    }
    let crew = Crew {
        threads: spec.threads,
        coroutines: spec.coroutines,
        first_thread: spec.first_thread,
    };
    let phases = spec.run.phases(spec.part, trace.as_ref());
    let outcome = driver::run(&client, &board, crew, &phases, &mut InStep(gone))?;
    let results = Results {
        phases: outcome.results.iter().map(PhaseCounts::new).collect(),
        claimed: board.frontier.claimed(),
        broken: board.is_broken(),
        entries: outcome.entries.len() as u64,
    };
    say(&Said::Results(results))?;
    hand_over(&outcome.entries)
}

/// Obeys the commands of the benchmark.
fn listen(go: &Sender<()>) {
    for line in stdin().lock().lines() {
        match line.as_deref() {
            Ok(GO) => drop(go.send(())),
            Ok(STOP) => interrupt::request(),
            _ => break,
        }
    }
    // The benchmark has ended, so the results have no reader.
    std::process::exit(1);
}

/// Waits for the benchmark's command before every phase.
struct InStep(Receiver<()>);

impl Steps for InStep {
    fn shows_progress(&self) -> bool {
        false
    }

    fn begin(&mut self) {
        // If the benchmark has ended, the end of the input ends this process.
        let _ = say(&Said::Ready);
        let _ = self.0.recv();
    }

    fn ended(&mut self, from_ns: u64, to_ns: u64) {
        let _ = say(&Said::Ended { from_ns, to_ns });
    }
}

fn say(said: &Said) -> Result<(), Failure> {
    let json = serde_json::to_string(said)
        .map_err(|error| Failure::operation(format!("cannot tell: {error}")))?;
    fusee_cli::output::line(&json)
}

fn hand_over(entries: &[Packed]) -> Result<(), Failure> {
    let mut out = std::io::BufWriter::new(stdout().lock());
    let written = entries.iter().try_for_each(|entry| out.write_all(&entry.to_bytes()));
    written
        .and_then(|()| out.flush())
        .map_err(|error| Failure::operation(format!("cannot hand over the records: {error}")))
}
