//! `fusee-bench correlated`: requests for one key at the same time, with and without a work table (E §6, experiment 3).
//!
//! There are two cases: a set with three gets issued right behind it, and four gets; one session issues all four
//! requests. Every round has both cases with each redundancy and each kind of work table, so that a machine that is
//! busy for a while slows all of them alike. The time of a request begins when the request is issued. The *overall*
//! time lasts until the last of the four requests is answered.

use std::fmt::Write as _;
use std::time::Instant;

use fusee_cli::connect;
use fusee_cli::failure::Failure;
use fusee_client::{
    BlockingClient, FabricChoice, FabricKind, Geometry, OpKind, Options, PutOptions, Redundancy,
    Session, WorkTable, WriteError,
};
use fusee_launch::{LaunchPlan, Servers};
use fusee_master::settings::{
    DEFAULT_LEASE_MS, DEFAULT_MOVE_BYTES_PER_S, DEFAULT_SCRUB_BYTES_PER_S,
};
use futures_util::future::join_all;
use serde::Serialize;

use crate::report::{BenchFindings, BenchInvocation, BenchOutputArgs, BenchReport, MeasuredSetup};
use crate::samples::RoundSamples;
use crate::spread::Spread;

/// The arguments.
#[derive(clap::Args, Debug, Serialize)]
#[command(after_help = "Examples:\n  \
    fusee-bench correlated\n  \
    fusee-bench correlated --redundancy ec:4+1 --value-bytes 65536 --json\n\n\
Strict answers are linearizable, relaxed ones are not. Exit codes: 0 all answers were right; 1 one \
was not; 2 wrong usage; 3 the cluster cannot be reached; 130 interrupted.")]
pub struct CorrelatedArgs {
    /// Measure the cluster of the master at this address (several: with commas); without it, a
    /// cluster of five memory nodes is started, and ends with the benchmark
    #[arg(long, value_name = "HOST:PORT")]
    master: Option<String>,

    /// tcp or verbs; a work table is not for shared memory
    #[arg(long, default_value = "tcp")]
    #[serde(skip)]
    fabric: FabricKind,

    /// Redundancies of the values
    #[arg(long, value_delimiter = ',', default_values = ["replicated", "ec:4+1"],
          value_name = "R,...")]
    #[serde(skip)]
    redundancy: Vec<Redundancy>,

    /// Bytes of a value
    #[arg(long, default_value_t = 1024, value_name = "BYTES",
          value_parser = clap::value_parser!(u32).range(8..=1 << 20))]
    value_bytes: u32,

    /// Rounds
    #[arg(long, default_value_t = 300, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rounds: u32,

    #[command(flatten)]
    #[serde(skip)]
    output: BenchOutputArgs,
}

/// The requests that are issued at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum CorrelatedCase {
    GetAfterSet,
    GetAfterGet,
}

impl CorrelatedCase {
    const ALL: [CorrelatedCase; 2] = [CorrelatedCase::GetAfterSet, CorrelatedCase::GetAfterGet];

    fn name(self) -> &'static str {
        match self {
            CorrelatedCase::GetAfterSet => "a set, three gets",
            CorrelatedCase::GetAfterGet => "four gets",
        }
    }

    /// Returns the figures of tables 2 and 3 of the paper, with the paper's work table: microseconds of each of the
    /// four requests, then the overall time.
    fn paper_us(self) -> [f64; 5] {
        match self {
            CorrelatedCase::GetAfterSet => [952.0, 13.0, 7.0, 6.0, 1038.0],
            CorrelatedCase::GetAfterGet => [445.0, 404.0, 396.0, 393.0, 567.0],
        }
    }
}

const TABLES: [WorkTable; 3] = [WorkTable::Off, WorkTable::Strict, WorkTable::Relaxed];

/// Number of requests that are issued at the same time.
const REQUESTS: usize = 4;

/// The figures of one case with one redundancy and one work table.
#[derive(Debug, Serialize)]
struct CorrelatedRow {
    case: CorrelatedCase,
    redundancy: String,
    table: String,
    /// Microseconds of each request, in the order in which the requests were issued.
    request_us: Vec<Spread>,
    overall_us: Spread,
    /// The overall time, divided by the overall time without a work table in the same round.
    overall_over_off: Spread,
    /// Mean verbs, and mean bytes, of all four requests of a round together.
    verbs: f64,
    bytes: f64,
}

#[derive(Debug, Serialize)]
struct CorrelatedReport {
    rows: Vec<CorrelatedRow>,
    /// Number of gets that returned neither the value before the set nor the value that was being set.
    wrong_values: u64,
}

/// Runs the benchmark and prints its report.
pub fn run(args: &CorrelatedArgs) -> Result<(), Failure> {
    let shell = BenchInvocation::begin("correlated", &args.output);
    let (servers, master) = match &args.master {
        Some(master) => (None, master.clone()),
        None => {
            let servers = start(args)?;
            let master = servers.master().to_string();
            (Some(servers), master)
        }
    };
    let mut series = Vec::new();
    let mut setup = None;
    for redundancy in &args.redundancy {
        for table in TABLES {
            let options = Options::default()
                .with_fabric(FabricChoice::Only(args.fabric))
                .with_work_table(table);
            let client = connect::join(&master, options)?;
            setup.get_or_insert_with(|| MeasuredSetup::of(&client, servers.is_some(), false));
            for case in CorrelatedCase::ALL {
                series.push(CorrelatedSeries::new(&client, case, *redundancy, table, args)?);
            }
        }
    }
    for round in 0..args.rounds {
        if fusee_cli::interrupt::is_requested() {
            break;
        }
        for series in &mut series {
            series.measure(round)?;
        }
    }
    let found = CorrelatedReport {
        wrong_values: series.iter().map(|series| series.wrong_values).sum(),
        rows: series.iter().map(|one| one.row(&series)).collect(),
    };
    drop((series, servers));
    shell.print_results(args, setup, found, None)
}

/// Starts a cluster for values of this length, with (k, m, r) = (4, 1, 2) as in the paper.
fn start(args: &CorrelatedArgs) -> Result<Servers, Failure> {
    let geometry = Geometry::default();
    let chunks = args.redundancy.iter().map(|redundancy| match redundancy {
        Redundancy::Coded(coding) => coding.chunks(),
        _ => 2,
    });
    Servers::start(&LaunchPlan {
        memory_nodes: chunks.max().unwrap_or(0).max(5) as u16,
        index_replicas: 3,
        data_replicas: 2,
        pool_bytes: 8 * geometry.region_bytes,
        populate: false,
        index_keys: 10_000,
        port: 0,
        lease_ms: DEFAULT_LEASE_MS,
        move_bytes_per_s: DEFAULT_MOVE_BYTES_PER_S,
        scrub_bytes_per_s: DEFAULT_SCRUB_BYTES_PER_S,
        fabrics: vec![args.fabric],
        region_bytes: geometry.region_bytes,
        block_bytes: geometry.block_bytes,
        more: Vec::new(),
    })
}

/// The measurements of one case with one redundancy and one work table, round by round.
struct CorrelatedSeries {
    case: CorrelatedCase,
    redundancy: Redundancy,
    table: WorkTable,
    session: Session,
    key: Vec<u8>,
    value: Vec<u8>,
    requests: [RoundSamples; REQUESTS],
    overall: RoundSamples,
    rounds: u32,
    verbs: u64,
    bytes: u64,
    wrong_values: u64,
}

/// The answer to a request, and the time of the request in microseconds.
type TimedAnswer = (Result<Option<Vec<u8>>, WriteError>, f64);

impl CorrelatedSeries {
    fn new(
        client: &BlockingClient,
        case: CorrelatedCase,
        redundancy: Redundancy,
        table: WorkTable,
        args: &CorrelatedArgs,
    ) -> Result<CorrelatedSeries, Failure> {
        let session = client.session()?;
        // The key is short, because every chunk contains it.
        let key = format!("{redundancy} {table} {}", case as u8).into_bytes();
        let value = vec![0; args.value_bytes as usize];
        session.block_on(session.put_with(
            &key,
            &value,
            PutOptions::default().with_redundancy(redundancy),
        ))?;
        let (requests, overall) = Default::default();
        let (rounds, verbs, bytes, wrong_values) = Default::default();
        Ok(CorrelatedSeries {
            case,
            redundancy,
            table,
            session,
            key,
            value,
            requests,
            overall,
            rounds,
            verbs,
            bytes,
            wrong_values,
        })
    }

    fn measure(&mut self, round: u32) -> Result<(), Failure> {
        let mut next = self.value.clone();
        next[..4].copy_from_slice(&(round + 1).to_le_bytes());
        let sets = self.case == CorrelatedCase::GetAfterSet;
        let before = self.cost();
        let session = &self.session;
        let key = &self.key;
        let request = async |number: usize| -> TimedAnswer {
            let start = Instant::now();
            let result = if number == 0 && sets {
                let options = PutOptions::default().with_redundancy(self.redundancy);
                session.put_with(key, &next, options).await.map(|()| None)
            } else {
                session.get(key).await.map_err(WriteError::from)
            };
            (result, start.elapsed().as_nanos() as f64 / 1000.0)
        };
        let start = Instant::now();
        let answers: Vec<TimedAnswer> = session.block_on(join_all((0..REQUESTS).map(request)));
        self.overall.push(start.elapsed().as_nanos() as f64 / 1000.0);
        let after = self.cost();
        (self.verbs, self.bytes) =
            (self.verbs + after.0 - before.0, self.bytes + after.1 - before.1);
        self.rounds += 1;
        for (number, (result, us)) in answers.into_iter().enumerate() {
            self.requests[number].push(us);
            let found = result?;
            let is_set = number == 0 && sets;
            let is_right = found.as_ref().is_some_and(|v| *v == self.value || (sets && *v == next));
            self.wrong_values += u64::from(!is_set && !is_right);
        }
        if sets {
            self.value = next;
        }
        Ok(())
    }

    /// Returns the verbs and the bytes of all sets and gets of this session so far.
    fn cost(&self) -> (u64, u64) {
        let stats = self.session.stats();
        let kinds = [OpKind::Search, OpKind::Upsert].map(|kind| *stats.kind(kind));
        (kinds.iter().map(|k| k.verbs).sum(), kinds.iter().map(|k| k.bytes).sum())
    }

    fn row(&self, all: &[CorrelatedSeries]) -> CorrelatedRow {
        let is_alike = |other: &&CorrelatedSeries| {
            (other.case, other.redundancy) == (self.case, self.redundancy)
                && other.table == WorkTable::Off
        };
        let off = all.iter().find(is_alike).expect("each case is measured without a table");
        CorrelatedRow {
            case: self.case,
            redundancy: self.redundancy.to_string(),
            table: self.table.to_string(),
            request_us: self.requests.iter().map(RoundSamples::spread).collect(),
            overall_us: self.overall.spread(),
            overall_over_off: self.overall.over(&off.overall).spread(),
            verbs: self.verbs as f64 / f64::from(self.rounds),
            bytes: self.bytes as f64 / f64::from(self.rounds),
        }
    }
}

impl BenchFindings for CorrelatedReport {
    type Settings = CorrelatedArgs;

    fn title(report: &BenchReport<'_, CorrelatedReport>) -> String {
        let CorrelatedArgs { value_bytes, rounds, fabric, .. } = report.settings;
        format!(
            "Correlated requests of one session, values of {value_bytes} bytes, over {fabric}, {rounds} rounds"
        )
    }

    fn rows(report: &BenchReport<'_, CorrelatedReport>) -> String {
        let mut text = String::new();
        for case in CorrelatedCase::ALL {
            let _ = writeln!(
                text,
                "\n{:<18} {:<11} {:<9} {:>7} {:>7} {:>7} {:>7} {:>8} {:>6} {:>6} {:>7}",
                case.name(),
                "redundancy",
                "table",
                "1st us",
                "2nd us",
                "3rd us",
                "4th us",
                "overall",
                "x off",
                "verbs",
                "bytes"
            );
            for row in report.findings.rows.iter().filter(|row| row.case == case) {
                let mut line = format!("{:<18} {:<11} {:<9}", "", row.redundancy, row.table);
                for spread in &row.request_us {
                    let _ = write!(line, " {:>7.0}", spread.median);
                }
                let _ = writeln!(
                    text,
                    "{line} {:>8.0} {:>6.2} {:>6.1} {:>7.0}",
                    row.overall_us.median, row.overall_over_off.median, row.verbs, row.bytes
                );
            }
            let mut line = format!("{:<18} {:<11} {:<9}", "", "the paper", "");
            let [requests @ .., overall] = case.paper_us();
            for us in requests {
                let _ = write!(line, " {us:>7.0}");
            }
            let _ = writeln!(text, "{line} {overall:>8.0}");
        }
        text.push_str("\nMedians. The paper's figures are of its own machines, over 10 Gbit/s.\n");
        text
    }

    fn problems(&self) -> Vec<String> {
        let wrong = self.wrong_values;
        (wrong > 0)
            .then(|| format!("{wrong} gets answered what was not there"))
            .into_iter()
            .collect()
    }
}
