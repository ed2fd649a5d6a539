//! The YCSB benchmark with several drivers, which meet in the store ([`crate::rendezvous`]).
//!
//! Each driver loads its part of the keys and runs its share of the operations, with the same code as a driver that
//! runs alone. Then all drivers hand over their counts and writes to the first driver. The first driver merges them as
//! it does with client processes ([`crate::gather`]), reads all keys back, removes them, and prints the report. Each
//! other driver prints a line.
//!
//! Writes of several hosts are judged by one clock, which starts at the begin of the loading. A host knows that begin
//! only up to its lateness. Therefore every write is assumed to have begun as early, and to have ended as late, as the
//! lateness and the clocks' difference in speed allow. A write reported as lost is lost; of writes that were close
//! together in time, either is accepted as the last one.

use std::fmt::Write as _;

use fusee_cli::failure::Failure;
use fusee_cli::{interrupt, output};
use fusee_workload::{Frontier, WorkloadShare};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::task::{YcsbRunPlan, own_run};
use super::{YcsbRunResult, verify_and_report};
use crate::clock::{BenchClock, monotonic_ns};
use crate::cluster::MeasuredCluster;
use crate::driver::{self, WorkerLayout};
use crate::gather::{GatheredResults, ProcessResults, gather};
use crate::message::{PhaseCounts, ResultsMessage, RunSpec};
use crate::record::{PackedOperation, RecordedOperation};
use crate::rendezvous::{DriverStatus, Rendezvous, RendezvousEnd, RendezvousOptions};
use crate::report::BenchInvocation;
use crate::worker::WorkerContext;

/// The number of the phase whose figures are reported for each driver.
const RUN: usize = 1;

/// The work of drivers that ran together.
#[derive(Serialize)]
pub struct YcsbDrivers {
    drivers: Vec<DriverReport>,
    /// For each phase, an upper bound of the time between the first driver's begin and the last driver's begin.
    skew_us: Vec<f64>,
    /// The driver whose user has ended the run, if it is not this driver.
    pub interrupted: Option<String>,
}

/// A driver's part of the run.
#[derive(Serialize)]
struct DriverReport {
    host: String,
    pid: u32,
    operations: u64,
    duration_s: f64,
    throughput_ops_per_s: f64,
    errors: u64,
    mismatches: u64,
}

impl DriverReport {
    fn new(share: &ProcessResults, host: &str, pid: u32) -> DriverReport {
        let duration_s = share.duration(RUN).as_secs_f64();
        let tallies = || share.results.phases.iter().map(PhaseCounts::tally);
        let operations = tallies().nth(RUN).map_or(0, |tally| tally.operations());
        DriverReport {
            host: host.to_owned(),
            pid,
            operations,
            duration_s,
            throughput_ops_per_s: operations as f64 / duration_s.max(1e-9),
            errors: tallies().map(|tally| tally.error_count()).sum(),
            mismatches: tallies().map(|tally| tally.mismatch_count()).sum(),
        }
    }

    fn text(&self) -> String {
        format!(
            "{} operations in {:.2} s: {:.1} kops/s, {} errors, {} mismatches",
            self.operations,
            self.duration_s,
            self.throughput_ops_per_s / 1000.0,
            self.errors,
            self.mismatches,
        )
    }
}

impl YcsbDrivers {
    fn new(meeting: &Rendezvous, shares: &[ProcessResults]) -> YcsbDrivers {
        let pages = meeting.pages();
        let drivers = shares.iter().zip(&pages).map(|(share, page)| {
            let page = page.clone().unwrap_or_default();
            DriverReport::new(share, &page.host, page.pid)
        });
        let late =
            |phase: usize| shares.iter().filter_map(move |s| s.times.get(phase)).map(|t| t.0);
        let skew_us = (0..=RUN).map(|phase| late(phase).max().unwrap_or(0) as f64 / 1000.0);
        let interrupted = meeting.interrupted().filter(|driver| *driver != meeting.number());
        let interrupted =
            interrupted.map(|driver| format!("{} was interrupted", meeting.name_of(driver)));
        YcsbDrivers { drivers: drivers.collect(), skew_us: skew_us.collect(), interrupted }
    }

    /// Returns the table for people.
    pub fn table(&self) -> String {
        let mut text = String::new();
        for (number, driver) in self.drivers.iter().enumerate() {
            let title = format!("driver {number}");
            let DriverReport { host, pid, .. } = driver;
            let _ = writeln!(text, "{title:<12}{} ({host}, pid {pid})", driver.text());
        }
        let skew: Vec<String> = self.skew_us.iter().map(|us| format!("{us:.0}")).collect();
        let _ = writeln!(text, "skew        begin within {} us (load, run)", skew.join(" and "));
        text
    }
}

/// Runs the part of this driver; the first driver also makes the report.
pub fn run(
    task: &YcsbRunPlan,
    shell: BenchInvocation,
    target: &MeasuredCluster,
    operations: u64,
) -> Result<(), Failure> {
    let args = &task.args;
    let mut board = WorkerContext::new(args.load.pair_bytes, args.load.seed);
    let drivers = usize::from(args.drivers());
    let invitation = RendezvousOptions {
        name: &args.join_name,
        drivers,
        settings: settings(task, operations),
        timeout: args.join_timeout(),
    };
    let mut meeting = Rendezvous::join(&target.client, &invitation, board.is_over.clone())?;
    board.part = WorkloadShare { number: meeting.number() as u64, of: drivers as u64 };
    // Below the last key that a driver has inserted, up to one key for each of its workers is possibly missing.
    let holes = args.workers() + drivers as u64;
    let remove = || {
        if args.keep {
            Ok(())
        } else {
            driver::clean_up_named(&target.client, &task.names(), task.keys(), holes)
        }
    };
    let run = own_run(&task.run(operations), board.part);
    if meeting.number() > 0 {
        let took_part = take_part(task, target, &mut board, &run, &mut meeting)
            .and_then(|share| hand_over(&meeting, &share).map(|()| share));
        return leave(task, meeting, took_part, remove);
    }
    let shares = run_first_driver(task, target, &mut board, &run, &mut meeting, holes);
    let is_reported = shares.is_ok();
    let reported = shares.and_then(|shares| {
        let together = YcsbDrivers::new(&meeting, &shares);
        let GatheredResults { outcome, keys, broken } = gather(shares, args.workers() as usize);
        board.frontier = Frontier::new(keys);
        let measured = YcsbRunResult { outcome, board, broken, holes, together: Some(together) };
        verify_and_report(task, shell, target, operations, measured)
    });
    let end = match (&reported, is_reported) {
        (Err(_), false) if interrupt::is_requested() => {
            RendezvousEnd::Failed(format!("{} was interrupted", meeting.name_of(0)))
        }
        (Err(failure), false) => RendezvousEnd::Failed(failure.to_string()),
        // The report has a problem, and the user of this driver has not interrupted the run. If the user of another
        // driver has, the status pages show which driver that is.
        (Err(failure), true) if !interrupt::is_requested() => {
            RendezvousEnd::Done(Some(failure.to_string()))
        }
        _ => RendezvousEnd::Done(None),
    };
    // The report has removed the keys already.
    let closed = meeting.close(end, || if is_reported { Ok(()) } else { remove() });
    reported.and(closed)
}

/// Does the work of the first driver: waits for the other drivers, removes keys that an earlier run left, takes its own
/// part, and collects the parts of all drivers.
fn run_first_driver(
    task: &YcsbRunPlan,
    target: &MeasuredCluster,
    board: &mut WorkerContext,
    run: &RunSpec,
    meeting: &mut Rendezvous,
    holes: u64,
) -> Result<Vec<ProcessResults>, Failure> {
    meeting.wait_for_all(task.args.join_timeout())?;
    driver::clean_up_named(&target.client, &task.names(), task.keys(), holes)?;
    let mut shares = vec![take_part(task, target, board, run, meeting)?];
    let of = board.part.of;
    for number in 1..of {
        let driver = number as usize;
        let bytes = meeting.receive_results(driver)?;
        let share = ProcessResults::from_bytes(WorkloadShare { number, of }, &bytes).map_err(
            |problem| {
                Failure::operation(format!("the results of {}: {problem}", meeting.name_of(driver)))
            },
        )?;
        shares.push(share);
    }
    Ok(shares)
}

/// Returns the settings that all drivers must have in common.
fn settings(task: &YcsbRunPlan, operations: u64) -> Map<String, Value> {
    let settings = serde_json::to_value(task.settings(operations)).unwrap_or_default();
    let Value::Object(mut settings) = settings else { return Map::new() };
    // Files are compared by their contents.
    if let (Some(trace), Some(_)) = (&task.trace, settings.remove("load_file")) {
        settings.insert("trans_file".into(), format!("of digest {:016x}", trace.digest()).into());
    }
    settings.insert("version".into(), env!("CARGO_PKG_VERSION").into());
    settings.insert("workload".into(), task.name().into());
    settings.insert("keys_of".into(), json!(task.args.keys_of));
    settings.insert("keep".into(), task.args.keep.into());
    settings
}

/// Loads and runs this driver's part, in step with the other drivers.
fn take_part(
    task: &YcsbRunPlan,
    target: &MeasuredCluster,
    board: &mut WorkerContext,
    run: &RunSpec,
    meeting: &mut Rendezvous,
) -> Result<ProcessResults, Failure> {
    let load = &task.args.load;
    let origin_ns = monotonic_ns();
    board.clock = BenchClock::shared(origin_ns);
    board.keep = task.args.keep();
    board.keys = task.names();
    board.keys_come_and_go = task.keys_come_and_go();
    let threads = usize::from(load.threads);
    let crew = WorkerLayout {
        threads,
        coroutines: load.coroutines.into(),
        first_thread: meeting.number() * threads,
    };
    let phases = run.phases(board.part, task.trace.as_ref());
    let outcome = driver::run(&target.client, board, crew, &phases, meeting)?;
    meeting.check_active()?;
    let (not_yet_ns, begun_ns) = meeting.first_step();
    let ahead = |at_ns: u64| at_ns.saturating_sub(origin_ns);
    let by_one_clock = |packed: &PackedOperation| {
        RecordedOperation::from(*packed).by_another_clock(ahead(not_yet_ns), ahead(begun_ns)).into()
    };
    Ok(ProcessResults {
        part: board.part,
        times: meeting.times().to_vec(),
        results: ResultsMessage {
            phases: outcome.results.iter().map(PhaseCounts::new).collect(),
            claimed: board.frontier.claimed(),
            broken: board.is_broken(),
            entries: outcome.entries.len() as u64,
        },
        entries: outcome.entries.iter().map(by_one_clock).collect(),
    })
}

fn hand_over(meeting: &Rendezvous, share: &ProcessResults) -> Result<(), Failure> {
    let bytes = share.to_bytes().map_err(Failure::operation)?;
    meeting.send_results(&bytes)
}

/// Prints this driver's line, and waits until the first driver has ended the meeting.
fn leave(
    task: &YcsbRunPlan,
    meeting: Rendezvous,
    took_part: Result<ProcessResults, Failure>,
    clean_up: impl FnOnce() -> Result<(), Failure>,
) -> Result<(), Failure> {
    let number = meeting.number();
    let first = meeting.name_of(0);
    let interrupted = meeting.interrupted().map(|driver| meeting.name_of(driver));
    if let Err(failure) = &took_part {
        meeting.give_up(failure);
    } else if let Ok(share) = &took_part {
        tell(task, number, &first, share)?;
    }
    let end = meeting.leave(clean_up)?;
    if let Some(interrupted) = interrupt::failure() {
        return Err(interrupted);
    }
    took_part?;
    match (end, interrupted) {
        (RendezvousEnd::Failed(why), _) => Err(Failure::operation(why)),
        (_, Some(who)) => Err(Failure::operation(format!("{who} was interrupted"))),
        (RendezvousEnd::Done(Some(problem)), _) => {
            Err(Failure::operation(format!("{first}: {problem}")))
        }
        (RendezvousEnd::Done(None), None) => Ok(()),
    }
}

fn tell(
    task: &YcsbRunPlan,
    number: usize,
    first: &str,
    share: &ProcessResults,
) -> Result<(), Failure> {
    let host = DriverStatus::new(Map::new());
    let report = DriverReport::new(share, &host.host, host.pid);
    let drivers = task.args.drivers();
    if !task.args.output.is_json() {
        let text = report.text();
        return output::line(&format!(
            "driver {number} of {drivers}: {text}; {first} has the report"
        ));
    }
    let line = json!({"driver": number, "drivers": drivers, "first": first, "part": report});
    output::line(&line.to_string())
}
