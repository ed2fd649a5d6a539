//! A second checker of histories: porcupine, in Go, which shares no code with ours.
//!
//! The program is in `tests/porcupine`. Without `go` the tests print SKIPPED; with `FUSEE_PORCUPINE_REQUIRED=1` they
//! fail. For machines without Go, `FUSEE_PORCUPINE` names a program that was built elsewhere.

// Promise CHK-6: A second checker agrees, and objects to one changed answer.

use std::fmt::Write as _;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use fusee_linearizability::{
    HistoryAnswer, HistoryCall, HistoryOperation, HistoryRecord, OperationHistory,
};

use super::cluster::FaultyCluster;
use super::common::{Scratch, eventually};
use super::writer::{self, WriterMode};

/// Porcupine's verdict on a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PorcupineVerdict {
    Linearizable,
    NotLinearizable,
    /// Porcupine did not finish within its time limit.
    Undecided,
}

/// Returns the path of the program, which is built at the first call. Without Go prints a message and returns `None`.
fn program() -> Option<&'static Path> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    let build = || {
        if let Some(program) = std::env::var_os("FUSEE_PORCUPINE") {
            return Some(PathBuf::from(program));
        }
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/porcupine");
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("porcupine");
        let mut go = Command::new("go");
        let built = go.args(["build", "-o"]).arg(&program).arg(".").current_dir(source).status();
        match built {
            Ok(status) if status.success() => Some(program),
            _ if std::env::var_os("FUSEE_PORCUPINE_REQUIRED").is_some() => {
                panic!("porcupine cannot be built: {built:?}")
            }
            _ => {
                // `println` would not show this, because the test harness captures its output.
                let _told = std::io::Write::write_fmt(
                    &mut std::io::stderr(),
                    format_args!(
                        "SKIPPED: porcupine cannot be built ({built:?}); is Go installed?\n"
                    ),
                );
                None
            }
        }
    };
    PROGRAM.get_or_init(build).as_deref()
}

/// Returns porcupine's verdict on a history; `None` without porcupine.
pub fn judge(records: &[HistoryRecord]) -> Option<PorcupineVerdict> {
    let program = program()?;
    let scratch = Scratch::new();
    let history = scratch.file("history", lines(records).as_bytes());
    let status = Command::new(program)
        .stdin(File::open(history).unwrap())
        .stdout(Stdio::null())
        .status()
        .unwrap();
    Some(match status.code() {
        Some(0) => PorcupineVerdict::Linearizable,
        Some(1) => PorcupineVerdict::NotLinearizable,
        Some(3) => PorcupineVerdict::Undecided,
        _ => panic!("porcupine: {status}"),
    })
}

/// Returns the operations in the format that the program reads, one a line.
fn lines(records: &[HistoryRecord]) -> String {
    let mut lines = String::new();
    for HistoryRecord { key, client, operation } in records {
        let (call, value) = match operation.call {
            HistoryCall::Search => ("search", 0),
            HistoryCall::Insert(value) => ("insert", value),
            HistoryCall::Update(value) => ("update", value),
            HistoryCall::Upsert(value) => ("upsert", value),
            HistoryCall::Delete => ("delete", 0),
        };
        let (returned, answer, found) = match operation.returned {
            None => (0, "-", 0),
            Some((time, HistoryAnswer::Done)) => (time, "done", 0),
            Some((time, HistoryAnswer::Exists)) => (time, "exists", 0),
            Some((time, HistoryAnswer::Absent)) => (time, "absent", 0),
            Some((time, HistoryAnswer::Found(value))) => (time, "found", value),
        };
        let invoked = operation.invoked;
        writeln!(lines, "{key} {client} {call} {value} {invoked} {returned} {answer} {found}")
            .expect("strings take everything");
    }
    lines
}

/// Returns whether this project's checker accepts the history.
fn is_linearizable(records: &[HistoryRecord]) -> bool {
    records.iter().copied().collect::<OperationHistory>().check().is_clean()
}

/// Changes the value of the last SEARCH that found one.
fn with_a_wrong_answer(mut records: Vec<HistoryRecord>) -> Vec<HistoryRecord> {
    let found = records.iter_mut().rev().find_map(|record| match &mut record.operation.returned {
        Some((_, HistoryAnswer::Found(value))) => Some(value),
        _ => None,
    });
    *found.expect("somebody found something") ^= 1 << 63;
    records
}

/// Adds a put of a new key, which succeeds, and then a SEARCH that does not find this key.
fn with_a_lost_write(mut records: Vec<HistoryRecord>) -> Vec<HistoryRecord> {
    let end = records.iter().filter_map(|record| record.operation.returned).map(|(at, _)| at);
    let end = end.max().expect("operations have ended");
    let key = records.iter().map(|record| record.key).max().unwrap_or(0) + 1;
    let add = |call, invoked, answer| {
        let operation = HistoryOperation { call, invoked, returned: Some((invoked + 1, answer)) };
        HistoryRecord { key, client: 0, operation }
    };
    records.push(add(HistoryCall::Upsert(1), end + 1, HistoryAnswer::Done));
    records.push(add(HistoryCall::Search, end + 3, HistoryAnswer::Absent));
    records
}

/// Some of the processes of this history were killed. Both checkers accept the history, and both refuse it after one
/// answer has been changed.
#[test]
fn porcupine_agrees_about_what_processes_did() {
    if program().is_none() {
        return;
    }
    let mut cluster = FaultyCluster::with_long_leases("shm");
    cluster.load_pause_us = 500;
    cluster.load(2, 2);
    for _ in 0..2 {
        let mut victim = cluster.slow_victim(2, WriterMode::Load);
        eventually("it works", || victim.progress() > 20);
        victim.kill();
        cluster.dead.push(victim);
    }
    cluster.all_get_on("after the deaths");
    cluster.end_load();
    let records = writer::read_all(cluster.clients.iter().chain(&cluster.dead));
    assert!(records.len() > 400, "{}", records.len());
    assert!(is_linearizable(&records));
    assert_eq!(judge(&records), Some(PorcupineVerdict::Linearizable));
    for damaged in [with_a_wrong_answer(records.clone()), with_a_lost_write(records.clone())] {
        assert!(!is_linearizable(&damaged));
        assert_eq!(judge(&damaged), Some(PorcupineVerdict::NotLinearizable));
    }
    cluster.finish();
}
