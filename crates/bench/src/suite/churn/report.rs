//! The report of `bench churn`.

use std::fmt::Write as _;

use fusee_cli::quantity::{Bytes, counted};
use serde::Serialize;

use super::Args;
use super::plan::Sizes;
use super::rounds::Rounds;
use super::updates::Updates;
use crate::report::{Findings, Report};
use crate::series::{Latency, thinned};

/// Rows of a table for people.
const ROWS: usize = 24;

/// Sizes, for one replica.
#[derive(Debug, Serialize)]
pub struct Memory {
    pub region_bytes: u64,
    pub block_bytes: u64,
    /// Bytes of all pools that regions can take.
    pub data_bytes: u64,
    /// Bytes of a pair, with all overhead.
    pub object_bytes: u64,
    pub pairs_per_block: u64,
}

impl Memory {
    pub fn new(sizes: &Sizes) -> Memory {
        Memory {
            region_bytes: sizes.geometry.region_bytes,
            block_bytes: sizes.geometry.block_bytes,
            data_bytes: sizes.data_bytes(),
            object_bytes: sizes.object_bytes,
            pairs_per_block: sizes.pairs_per_block,
        }
    }
}

/// The results.
#[derive(Debug, Serialize)]
pub struct Found {
    pub memory: Memory,
    pub duration_s: f64,
    pub updates: Option<Updates>,
    pub rounds: Option<Rounds>,
}

impl Findings for Found {
    type Settings = Args;

    fn title(report: &Report<'_, Found>) -> String {
        let Args { sessions, cluster, .. } = report.settings;
        format!(
            "churn: {}, pairs of {} bytes, {} with all that belongs to them",
            counted(*sessions, "session"),
            cluster.pair_bytes,
            report.findings.memory.object_bytes,
        )
    }

    fn summary(report: &Report<'_, Found>) -> String {
        let Memory { region_bytes, block_bytes, data_bytes, .. } = report.findings.memory;
        format!(
            "memory      {} for one replica, in regions of {} and blocks of {}\n",
            Bytes(data_bytes),
            Bytes(region_bytes),
            Bytes(block_bytes)
        )
    }

    fn rows(report: &Report<'_, Found>) -> String {
        let Found { duration_s, updates, rounds, .. } = &report.findings;
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

fn updates_table(text: &mut String, updates: &Updates) {
    let _ = writeln!(
        text,
        "\nupdates: {} passes over {} pairs, which take {}, {:.0} % of the memory\n\
         in use      at most {}, {:.3} times that; {} when they had been inserted",
        updates.passes_done,
        updates.keys,
        Bytes(updates.live_bytes),
        updates.fill * 100.0,
        Bytes(updates.most_in_use_bytes),
        updates.factor,
        Bytes(updates.loaded_in_use_bytes)
    );
    let _ = writeln!(text, "\n{:<8} {}", "", Latency::HEADER);
    for (kind, latency) in &updates.operations {
        let _ = writeln!(text, "{kind:<8} {}", latency.row());
    }
    let _ = writeln!(
        text,
        "\n{:>6} {:>11} {:>13} {:>13}  blocks in use / blocks, regions",
        "pass", "ops/s", "most in use", "in the end"
    );
    for pass in thinned(&updates.passes, ROWS) {
        let nodes: Vec<String> = pass
            .usage
            .nodes
            .iter()
            .map(|(node, n)| format!("{node}: {} / {}, {}", n.blocks_in_use, n.blocks, n.regions))
            .collect();
        let _ = writeln!(
            text,
            "{:>6} {:>11.0} {:>13} {:>13}  {}",
            pass.pass,
            pass.ops_per_s,
            Bytes(pass.most_in_use_bytes).to_string(),
            Bytes(pass.usage.in_use_bytes).to_string(),
            nodes.join("; ")
        );
    }
}

fn rounds_table(text: &mut String, rounds: &Rounds) {
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
        "\n{:>6} {:>9} {:>7} {:>11} {:>11} {:>8} {:>7} {:>9} {:>8} {:>9} {:>7} {:>12} {:>11}",
        "round",
        "pairs",
        "fill %",
        "in use",
        "log blocks",
        "refused",
        "fill s",
        "deleted",
        "refused",
        "not del.",
        "del. s",
        "left in use",
        "refusal ms"
    );
    for round in thinned(&rounds.rounds, ROWS) {
        let _ = writeln!(
            text,
            "{:>6} {:>9} {:>7.1} {:>11} {:>11} {:>8} {:>7.2} {:>9} {:>8} {:>9} {:>7.2} {:>12} {:>11.1}",
            round.round,
            round.fit,
            round.fill * 100.0,
            Bytes(round.in_use_bytes).to_string(),
            Bytes(round.log_blocks_bytes).to_string(),
            round.inserts_refused,
            round.fill_s,
            round.deleted,
            round.deletes_refused,
            round.undeleted,
            round.delete_s,
            Bytes(round.left_in_use_bytes).to_string(),
            round.slowest_refusal_ms
        );
    }
}
