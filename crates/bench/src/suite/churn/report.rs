//! The report of `fusee-bench churn`.

use std::fmt::Write as _;

use fusee_cli::quantity::{ByteSize, count_with_noun};
use serde::Serialize;

use super::ChurnArgs;
use super::plan::ChurnClusterSizes;
use super::rounds::ChurnRoundsReport;
use super::updates::ChurnUpdatesReport;
use crate::report::{BenchFindings, BenchReport};
use crate::series::{LatencySummary, thinned};

/// Maximum number of rows of the table for people.
const ROWS: usize = 24;

/// Sizes of the cluster, for one replica.
#[derive(Debug, Serialize)]
pub struct ChurnMemorySizes {
    pub region_bytes: u64,
    pub block_bytes: u64,
    /// Bytes of all pools that regions can take.
    pub data_bytes: u64,
    /// Bytes of a pair, with all overhead.
    pub object_bytes: u64,
    pub pairs_per_block: u64,
}

impl ChurnMemorySizes {
    pub fn new(sizes: &ChurnClusterSizes) -> ChurnMemorySizes {
        ChurnMemorySizes {
            region_bytes: sizes.geometry.region_bytes,
            block_bytes: sizes.geometry.block_bytes,
            data_bytes: sizes.data_bytes,
            object_bytes: sizes.object_bytes,
            pairs_per_block: sizes.pairs_per_block,
        }
    }
}

/// The results.
#[derive(Debug, Serialize)]
pub struct ChurnReport {
    pub memory: ChurnMemorySizes,
    pub duration_s: f64,
    pub updates: Option<ChurnUpdatesReport>,
    pub rounds: Option<ChurnRoundsReport>,
}

impl BenchFindings for ChurnReport {
    type Settings = ChurnArgs;

    fn title(report: &BenchReport<'_, ChurnReport>) -> String {
        let ChurnArgs { sessions, cluster, .. } = report.settings;
        format!(
            "churn: {}, pairs of {} bytes, {} with all that belongs to them",
            count_with_noun(*sessions, "session"),
            cluster.pair_bytes,
            report.findings.memory.object_bytes,
        )
    }

    fn summary(report: &BenchReport<'_, ChurnReport>) -> String {
        let ChurnMemorySizes { region_bytes, block_bytes, data_bytes, .. } = report.findings.memory;
        format!(
            "memory      {} for one replica, in regions of {} and blocks of up to {}\n",
            ByteSize(data_bytes),
            ByteSize(region_bytes),
            ByteSize(block_bytes)
        )
    }

    fn rows(report: &BenchReport<'_, ChurnReport>) -> String {
        let ChurnReport { duration_s, updates, rounds, .. } = &report.findings;
        let mut text = format!("duration    {duration_s:.1} s{}\n", report.ended_early());
        if let Some(updates) = updates {
            updates_table(&mut text, updates);
        }
        if let Some(rounds) = rounds {
            rounds_table(&mut text, rounds);
        }
        text
    }
}

fn updates_table(text: &mut String, updates: &ChurnUpdatesReport) {
    let _ = writeln!(
        text,
        "\nupdates: {} passes over {} pairs, which take {}, {:.0} % of the memory\n\
         in use      at most {}, {:.3} times that; {} when they had been inserted",
        updates.passes_done,
        updates.keys,
        ByteSize(updates.live_bytes),
        updates.fill * 100.0,
        ByteSize(updates.most_in_use_bytes),
        updates.factor,
        ByteSize(updates.loaded_in_use_bytes)
    );
    let _ = writeln!(text, "\n{:<8} {}", "", LatencySummary::HEADER);
    for (kind, latency) in &updates.operations {
        let _ = writeln!(text, "{kind:<8} {}", latency.row());
    }
    let _ = writeln!(
        text,
        "\n{:>6} {:>11} {:>13} {:>13}  in use / in blocks, regions",
        "pass", "ops/s", "most in use", "in the end"
    );
    for pass in thinned(&updates.passes, ROWS) {
        let nodes: Vec<String> = pass
            .usage
            .nodes
            .iter()
            .map(|(node, n)| {
                let (used, all) = (ByteSize(n.in_use_bytes), ByteSize(n.block_bytes));
                format!("{node}: {used} / {all}, {}", n.regions)
            })
            .collect();
        let _ = writeln!(
            text,
            "{:>6} {:>11.0} {:>13} {:>13}  {}",
            pass.pass,
            pass.ops_per_s,
            ByteSize(pass.most_in_use_bytes).to_string(),
            ByteSize(pass.usage.in_use_bytes).to_string(),
            nodes.join("; ")
        );
    }
}

fn rounds_table(text: &mut String, rounds: &ChurnRoundsReport) {
    let _ = writeln!(
        text,
        "\nfill and delete: {} rounds; {} pairs fitted in the first, {} in the worst ({:.1} %), {} in \
         the last",
        rounds.rounds.len(),
        rounds.first_fit,
        rounds.least_fit,
        rounds.least_share * 100.0,
        rounds.last_fit
    );
    let _ = writeln!(
        text,
        "\n{:>6} {:>9} {:>7} {:>11} {:>8} {:>7} {:>9} {:>7} {:>12} {:>11}",
        "round",
        "pairs",
        "fill %",
        "in use",
        "refused",
        "fill s",
        "deleted",
        "del. s",
        "left in use",
        "refusal ms"
    );
    for round in thinned(&rounds.rounds, ROWS) {
        let _ = writeln!(
            text,
            "{:>6} {:>9} {:>7.1} {:>11} {:>8} {:>7.2} {:>9} {:>7.2} {:>12} {:>11.1}",
            round.round,
            round.fit,
            round.fill * 100.0,
            ByteSize(round.in_use_bytes).to_string(),
            round.inserts_refused,
            round.fill_s,
            round.deleted,
            round.delete_s,
            ByteSize(round.left_in_use_bytes).to_string(),
            round.slowest_refusal_ms
        );
    }
}
