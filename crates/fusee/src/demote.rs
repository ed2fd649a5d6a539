//! `fusee redundancy demote`: changes many pairs to erasure coding, the oldest first.
//!
//! The command reads the index once. Then it moves the pairs that it has found, several at a time, beginning with the
//! oldest blocks. A pair that is written meanwhile stays as written. Progress goes to standard error. A signal ends the
//! command after the running Moves; the report then shows what was done.

use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use std::str::FromStr;
use std::time::{Duration, Instant};

use fusee_cli::connect::ConnectArgs;
use fusee_cli::failure::Failure;
use fusee_cli::quantity::{ByteSize, count_with_noun};
use fusee_cli::{interrupt, output, stderr};
use fusee_client::{
    DemotionOrder, DemotionOutcome, FoundPair, Redundancy, RedundancyError, WriteError,
};
use serde::Serialize;

/// Number of pairs that are moved at a time.
const TOGETHER: usize = 8;
/// Interval between two updates of the progress.
const PERIOD: Duration = Duration::from_millis(500);
/// Number of consecutive failures after which the command gives up.
const FAILURES_IN_A_ROW: usize = 32;

/// Arguments of `fusee redundancy demote`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  \
    fusee redundancy demote                                  EC-oriented pairs, to their own codes\n  \
    fusee redundancy demote --to ec:4+2 --from-size 16KiB    whatever is not erasure-coded yet\n  \
    fusee redundancy demote --to ec:4+2 --limit 10GiB --rate 32MiB\n  \
    fusee redundancy demote --to ec:4+2 --dry-run --json | jq .saved_bytes\n\n\
    Pairs in blocks of the oldest sessions come first: what is updated goes elsewhere, so what is\n\
    still there is cold. Pairs that are written meanwhile stay as they are written. Ctrl-C ends it\n\
    after the Moves that are under way; nothing is left half done.\n\n\
    Exit codes: 0 done; 1 something failed, or memory is full; 2 wrong usage; 3 the cluster cannot\n\
    be reached; 128 and the number of the signal that ended it.")]
pub struct DemoteArgs {
    /// Erasure code for the pairs, like `ec:4+2` [default: EC-oriented pairs get the code they are laid out
    /// for, others stay]
    #[arg(long, value_name = "REDUNDANCY", value_parser = code)]
    to: Option<Redundancy>,

    /// Leave shorter values as they are
    #[arg(long, value_name = "BYTES", default_value = "0")]
    from_size: ByteSize,

    /// Stop after this many pairs, like `1000`, or this many bytes of values, like `10GiB`
    #[arg(long, value_name = "PAIRS|BYTES")]
    limit: Option<DemoteLimit>,

    /// Bytes of values to move a second, at most [default: unlimited]
    #[arg(long, value_name = "BYTES")]
    rate: Option<ByteSize>,

    /// Only report what would be moved
    #[arg(long)]
    dry_run: bool,

    /// Print one JSON object at the end, and no progress
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connect: ConnectArgs,
}

/// The number of pairs, or bytes of values, after which the command stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DemoteLimit {
    Pairs(u64),
    Bytes(u64),
}

impl FromStr for DemoteLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<DemoteLimit, String> {
        match text.parse::<u64>() {
            Ok(pairs) => Ok(DemoteLimit::Pairs(pairs)),
            Err(_) => text.parse::<ByteSize>().map(|ByteSize(bytes)| DemoteLimit::Bytes(bytes)),
        }
    }
}

fn code(text: &str) -> Result<Redundancy, String> {
    match text.parse::<Redundancy>().map_err(|error| error.to_string())? {
        code @ Redundancy::Coded(_) => Ok(code),
        other => Err(format!("{other} is no erasure code; write it like ec:4+2")),
    }
}

/// The result of the command.
#[derive(Debug, Default, Serialize)]
struct DemoteReport {
    dry_run: bool,
    /// Whether a signal ended the command.
    interrupted: bool,
    /// Number of pairs in the index that could be demoted.
    found: u64,
    /// Number of pairs that were moved, or, with `--dry-run`, would be moved.
    moved: u64,
    /// Sum of the lengths of these pairs' values.
    value_bytes: u64,
    /// Bytes of memory that were saved. Negative if the pairs take more memory than before.
    saved_bytes: i64,
    skipped: SkippedPairs,
    /// Number of pairs that another write replaced before they were moved.
    overtaken: u64,
    failed: u64,
    /// The message of the last Move that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<String>,
    seconds: f64,
}

#[derive(Debug, Default, Serialize)]
struct SkippedPairs {
    /// Number of pairs whose values are shorter than `--from-size`.
    short: u64,
    /// Number of pairs with too short a value for the code, or with too long a key.
    impossible: u64,
    /// Number of pairs that were written, moved or removed after the index was read.
    gone: u64,
}

impl DemoteReport {
    fn add(&mut self, went: DemotionOutcome) {
        match went {
            DemotionOutcome::Moved { value_bytes, saved_bytes } => {
                self.moved += 1;
                self.value_bytes += value_bytes;
                self.saved_bytes += saved_bytes;
            }
            DemotionOutcome::Short => self.skipped.short += 1,
            DemotionOutcome::Impossible(_) => self.skipped.impossible += 1,
            DemotionOutcome::Gone => self.skipped.gone += 1,
            DemotionOutcome::Overtaken => self.overtaken += 1,
            DemotionOutcome::Failed(error) => {
                self.failed += 1;
                self.failure = Some(error.to_string());
            }
            other => {
                self.failed += 1;
                self.failure = Some(format!("{other:?}"));
            }
        }
    }

    fn is_full(&self, limit: Option<DemoteLimit>) -> bool {
        match limit {
            None => false,
            Some(DemoteLimit::Pairs(pairs)) => self.moved >= pairs,
            Some(DemoteLimit::Bytes(bytes)) => self.value_bytes >= bytes,
        }
    }

    fn looked_at(&self) -> u64 {
        let SkippedPairs { short, impossible, gone } = self.skipped;
        self.moved + short + impossible + gone + self.overtaken + self.failed
    }

    fn text(&self) -> String {
        let SkippedPairs { short, impossible, gone } = self.skipped;
        let verb = if self.dry_run { "would be demoted" } else { "demoted" };
        let saved = self.saved_bytes.unsigned_abs();
        let sign = self.saved_bytes < 0;
        let mut text = format!(
            "{} of {} found {verb}: {} of values, {}{} of memory saved, in {:.1} s\n",
            count_with_noun(self.moved, "pair"),
            self.found,
            ByteSize(self.value_bytes),
            if sign { "-" } else { "" },
            ByteSize(saved),
            self.seconds
        );
        let others = [
            (short, "shorter than --from-size"),
            (impossible, "too short for the code, or with too long a key"),
            (gone, "written, moved or removed since the index was read"),
            (self.overtaken, "overtaken by a write"),
        ];
        for (count, what) in others.iter().filter(|(count, _)| *count > 0) {
            let _ = writeln!(text, "{count} {what}");
        }
        text
    }
}

/// Runs `fusee redundancy demote`.
pub fn run(args: &DemoteArgs) -> Result<(), Failure> {
    if args.rate == Some(ByteSize(0)) {
        return Err(Failure::usage("--rate is 0; it must be at least 1"));
    }
    let client = args.connect.connect()?;
    let members = client.view().members.len();
    if let Some(coding) = args.to.and_then(Redundancy::coding).filter(|c| c.chunks() > members) {
        return Err(WriteError::Redundancy(RedundancyError::TooFewNodes { coding, members }).into());
    }
    interrupt::watch()?;
    let mut order = DemotionOrder::default().with_dry_run(args.dry_run);
    order = order.with_min_value_bytes(args.from_size.0);
    order.to = args.to;
    let begun = Instant::now();
    let found = client.admin().find_pairs(|redundancy| order.target(redundancy).is_some());
    let found = found.map_err(|error| Failure::operation(error.to_string()))?;
    let mut report = DemoteReport {
        dry_run: args.dry_run,
        found: found.len() as u64,
        ..DemoteReport::default()
    };
    let mut progress = DemoteProgress::new(args.json);
    let mut in_a_row = 0;
    let mut left: &[FoundPair] = &found;
    while !left.is_empty() && !interrupt::is_requested() && in_a_row < FAILURES_IN_A_ROW {
        let room = match args.limit {
            _ if report.is_full(args.limit) => break,
            // The lengths of values are unknown. With one pair at a time, the limit is exceeded by less than one value.
            Some(DemoteLimit::Bytes(_)) => 1,
            Some(DemoteLimit::Pairs(pairs)) => {
                usize::try_from(pairs - report.moved).unwrap_or(TOGETHER)
            }
            None => TOGETHER,
        };
        let (now, later) = left.split_at(left.len().min(room.min(TOGETHER)));
        left = later;
        for went in client.admin().demote(now, &order) {
            let is_full = matches!(went, DemotionOutcome::Failed(WriteError::OutOfMemory));
            let failed = matches!(went, DemotionOutcome::Failed(_));
            in_a_row = if failed { in_a_row + 1 } else { 0 };
            report.add(went);
            if is_full {
                in_a_row = FAILURES_IN_A_ROW;
            }
        }
        progress.show(&report);
        if let Some(ByteSize(rate)) = args.rate {
            keep_pace(begun, report.value_bytes, rate);
        }
    }
    drop(client);
    progress.end();
    report.interrupted = interrupt::is_requested();
    report.seconds = begun.elapsed().as_secs_f64();
    output::text(&if args.json {
        serde_json::to_string(&report).expect("numbers and names") + "\n"
    } else {
        report.text()
    })?;
    match (&report.failure, interrupt::failure()) {
        (_, Some(interrupted)) => Err(interrupted),
        (Some(failure), None) => {
            let pairs = count_with_noun(report.failed, "pair");
            Err(Failure::operation(format!("{pairs} not moved: {failure}")))
        }
        (None, None) => Ok(()),
    }
}

/// Sleeps until the time since `begun` allows `bytes` bytes at `rate` bytes per second, or until a signal comes.
fn keep_pace(begun: Instant, bytes: u64, rate: u64) {
    let due = Duration::from_secs_f64(bytes as f64 / rate as f64);
    while let Some(wait) = due.checked_sub(begun.elapsed()).filter(|wait| !wait.is_zero())
        && !interrupt::is_requested()
    {
        std::thread::sleep(wait.min(PERIOD / 10));
    }
}

/// Progress on standard error.
struct DemoteProgress {
    is_shown: bool,
    last: Option<Instant>,
}

impl DemoteProgress {
    fn new(is_json: bool) -> DemoteProgress {
        DemoteProgress { is_shown: !is_json && io::stderr().is_terminal(), last: None }
    }

    fn show(&mut self, report: &DemoteReport) {
        let is_due = self.last.is_none_or(|last| last.elapsed() >= PERIOD);
        if self.is_shown && is_due {
            self.last = Some(Instant::now());
            stderr::text(&format!(
                "\r{} of {} looked at, {} of values moved ",
                report.looked_at(),
                report.found,
                ByteSize(report.value_bytes)
            ));
        }
    }

    fn end(&self) {
        if self.last.is_some() {
            stderr::tell("");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_of_pairs_or_of_bytes() {
        assert_eq!("1000".parse(), Ok(DemoteLimit::Pairs(1000)));
        assert_eq!("10MiB".parse(), Ok(DemoteLimit::Bytes(10 << 20)));
        assert_eq!("512b".parse(), Ok(DemoteLimit::Bytes(512)));
        assert!("many".parse::<DemoteLimit>().is_err());
        let mut report = DemoteReport::default();
        report.add(DemotionOutcome::Moved { value_bytes: 100, saved_bytes: -5 });
        assert!(!report.is_full(None) && !report.is_full(Some(DemoteLimit::Pairs(2))));
        assert!(
            report.is_full(Some(DemoteLimit::Pairs(1)))
                && report.is_full(Some(DemoteLimit::Bytes(100)))
        );
        assert!(report.text().contains("-5 B of memory saved"), "{}", report.text());
    }

    #[test]
    fn only_erasure_codes_are_targets() {
        assert!(code("ec:4+2").is_ok());
        for (text, says) in
            [("replicated", "no erasure code"), ("eor:2:4+2", "no erasure code"), ("x", "`x`")]
        {
            assert!(code(text).unwrap_err().contains(says), "{text}");
        }
    }
}
