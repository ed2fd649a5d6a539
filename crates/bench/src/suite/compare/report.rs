//! The report of a comparison: a table for each task, with a row for each subject.

use std::collections::BTreeMap;

use serde::Serialize;

use super::parts::ProgramPart;
use super::task::CompareSubject;
use super::{CompareArgs, CompareMeasure};
use crate::loaded_cluster::LoadedClusterArgs;
use crate::report::{BenchFindings, BenchReport};
use crate::spread::Spread;

/// The results.
#[derive(Debug, Serialize)]
pub struct CompareReport {
    /// The unit of the values: `ns` or `instructions`.
    pub unit: &'static str,
    /// The distribution of the values' lengths, if they differ.
    pub values: Option<String>,
    /// Subjects whose program is not installed.
    pub absent: Vec<CompareSubject>,
    pub tables: Vec<CompareTable>,
}

/// The results of one task.
#[derive(Debug, Serialize)]
pub struct CompareTable {
    pub task: String,
    pub rows: Vec<CompareRow>,
}

/// The results of one subject.
#[derive(Debug, Serialize)]
pub struct CompareRow {
    pub subject: CompareSubject,
    /// Nanoseconds or instructions of one operation. Over several threads, the time of the round divided by the
    /// operations of all threads.
    pub value: Spread,
    /// Processor time of the server's threads per operation, in nanoseconds.
    pub server_cpu_ns: Option<Spread>,
    /// For each reference subject, the value divided by that subject's value in the same round.
    pub over: BTreeMap<CompareSubject, Spread>,
    /// The smallest value of all rounds, divided among the parts of the program.
    pub parts: BTreeMap<ProgramPart, f64>,
}

impl BenchFindings for CompareReport {
    type Settings = CompareArgs;

    fn title(report: &BenchReport<'_, CompareReport>) -> String {
        let CompareArgs { size, memory_nodes, connections, rounds, operations, .. } =
            report.settings;
        let LoadedClusterArgs { keys, pair_bytes, index_replicas, data_replicas, .. } = size;
        let pairs = match &report.findings.values {
            Some(values) => format!("{keys} pairs with values of {values} bytes"),
            None => format!("{keys} pairs of {pair_bytes} bytes"),
        };
        format!(
            "{pairs}, FUSEE with {index_replicas} index and {data_replicas} data replicas on \
             {memory_nodes} memory nodes, others by {connections} connections of each thread; \
             {rounds} rounds of {operations} operations: {}, medians (spread)",
            match report.settings.measure {
                CompareMeasure::Time => "ns of an operation",
                CompareMeasure::Instructions => "instructions of an operation",
                CompareMeasure::Samples => "ns of an operation, parts by samples",
            }
        )
    }

    fn rows(report: &BenchReport<'_, CompareReport>) -> String {
        report.findings.tables.iter().map(CompareTable::text).collect()
    }
}

impl CompareTable {
    fn text(&self) -> String {
        let rows = || self.rows.iter();
        let mut references: Vec<CompareSubject> =
            rows().flat_map(|row| row.over.keys().copied()).collect();
        references.sort_unstable();
        references.dedup();
        let has_server = rows().any(|row| row.server_cpu_ns.is_some());
        let mut text = format!("\n{:<46}", self.task);
        if has_server {
            text += &format!("{:>26}", "server's processor, ns");
        }
        for reference in &references {
            text += &format!("{:>26}", format!("x {}", reference.name()));
        }
        text = text.trim_end().to_owned() + "\n";
        for row in rows() {
            let mut line = format!("{:<16}{:>30}", row.subject.name(), spread(&row.value, 0));
            if has_server {
                let busy = row.server_cpu_ns.map(|busy| spread(&busy, 0));
                line += &format!("{:>26}", busy.unwrap_or_else(|| "-".into()));
            }
            for reference in &references {
                let times = row.over.get(reference).map(|times| spread(times, 2));
                line += &format!("{:>26}", times.unwrap_or_default());
            }
            text += &format!("{}\n", line.trim_end());
            for (part, value) in &row.parts {
                text += &format!("  {:<14}{value:>12.0}\n", part.name());
            }
        }
        text
    }
}

fn spread(Spread { median, least, most }: &Spread, digits: usize) -> String {
    format!("{median:.digits$} ({least:.digits$} - {most:.digits$})")
}
