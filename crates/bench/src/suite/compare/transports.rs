//! Verbs one at a time, without a key-value store around them: FUSEE's own, and installed programs that measure other
//! transports.
//!
//! * *UCX over POSIX shared memory* is `ucx_perftest` on the transport itself (UCT), in a mode in which the program
//!   talks to itself (`-l`): one process maps the memory and accesses it directly, as FUSEE's shared memory does. `get`
//!   with buffered copy corresponds to READ; `put_bw` with short messages, each of which ends before the next one
//!   begins, corresponds to WRITE; `cswap` and `fadd` correspond to CAS and FAA. (`put_lat` measures something else:
//!   two processes that wait for each other's bytes.)
//! * *libfabric over TCP* is `fi_pingpong` on connected endpoints. It sends messages of n bytes to and fro between two
//!   processes, and prints half of the round trip. A READ of n bytes is a small message and an answer of n bytes, a
//!   WRITE is a long message and a small answer: each is the sum of one way of [`SMALL`] bytes and one way of n bytes.

use std::process::Command;
use std::time::{Duration, Instant};

use fusee_cli::failure::Failure;

use super::rounds::{CompareRound, CompareSample, StartedSubject};
use super::task::{CompareSubject, CompareTask, WORD_BYTES};
use crate::loaded_cluster::LoadedClusterArgs;
use crate::temporary::{InstallableProgram, TemporaryHandle, free_port};
use crate::verbs::{RawCluster, RawVerb};

/// Bytes of a message without data: a request, or an answer.
const SMALL: u32 = 32;
/// A time limit that no run of a transport's program reaches.
const PATIENCE: Duration = Duration::from_secs(60);
/// The time within which the server of `fi_pingpong` has to begin to listen.
const START_PATIENCE: Duration = Duration::from_secs(5);

/// Starts a subject that executes verbs. The longest verb of `tasks` determines the size of the object.
pub fn start(
    tasks: &[CompareTask],
    subject: CompareSubject,
) -> Result<Box<dyn StartedSubject>, Failure> {
    let Some(fabric) = subject.fabric() else {
        let program = subject.program().expect("it is a program that is installed");
        return Ok(Box::new(TransportProgram { program, subject }));
    };
    let bytes = |task: &CompareTask| match task {
        CompareTask::Verb(RawVerb::Read(bytes) | RawVerb::Write(bytes)) => *bytes,
        _ => WORD_BYTES,
    };
    let largest = tasks.iter().map(bytes).max().unwrap_or(WORD_BYTES);
    // A cluster with one object of the largest length.
    let size = LoadedClusterArgs {
        keys: 1,
        pair_bytes: largest.max(1024),
        index_replicas: 3,
        data_replicas: 2,
        huge_pages: false,
    };
    Ok(Box::new(RawCluster::over(&size, fabric)?))
}

/// Another project's program, started anew for each round.
struct TransportProgram {
    program: InstallableProgram,
    subject: CompareSubject,
}

impl StartedSubject for TransportProgram {
    fn run(&mut self, round: &CompareRound) -> Result<CompareSample, Failure> {
        let CompareTask::Verb(verb) = round.task else {
            return Err(Failure::usage("transports execute verbs only"));
        };
        let program = self.program.name;
        let ns = match self.subject {
            CompareSubject::UcxPosix => ucx(program, verb, round.operations)?,
            _ => {
                let bytes = match verb {
                    RawVerb::Read(bytes) | RawVerb::Write(bytes) => bytes,
                    RawVerb::Cas | RawVerb::Faa => SMALL,
                };
                fi_pingpong(program, SMALL, round.operations)?
                    + fi_pingpong(program, bytes, round.operations)?
            }
        };
        Ok(CompareSample::without_parts(ns))
    }
}

/// Returns the nanoseconds of one operation of UCX over POSIX shared memory.
fn ucx(program: &str, verb: RawVerb, operations: u32) -> Result<f64, Failure> {
    let (test, layout, bytes) = match verb {
        RawVerb::Read(bytes) => ("get", "bcopy", bytes),
        RawVerb::Write(bytes) => ("put_bw", "short", bytes),
        RawVerb::Cas => ("cswap", "short", WORD_BYTES),
        RawVerb::Faa => ("fadd", "short", WORD_BYTES),
    };
    let mut command = Command::new(program);
    command.args(["-l", "-f", "-v", "-t", test, "-D", layout, "-x", "posix", "-d", "memory"]);
    command.args(["-s", &bytes.to_string(), "-n", &operations.to_string()]);
    command.args(["-w", &(operations / 10).to_string()]).env("UCX_TLS", "posix,self");
    let said = finish(program, &TemporaryHandle::with_output_files(&mut command)?)?;
    let rate = column(&said, ',', "overall_mr").filter(|rate| *rate > 0.0);
    rate.map(|rate| 1e9 / rate).ok_or_else(|| failed(program, &said))
}

/// Returns the nanoseconds that a message of libfabric over TCP takes one way.
fn fi_pingpong(program: &str, bytes: u32, trips: u32) -> Result<f64, Failure> {
    let port = free_port()?.to_string();
    let common = |command: &mut Command| {
        command.args(["-p", "tcp", "-e", "msg", "-I", &trips.to_string()]);
        command.args(["-S", &bytes.to_string()]);
    };
    let mut server = Command::new(program);
    common(server.args(["-B", &port]));
    let server = TemporaryHandle::with_output_files(&mut server)?;
    let end = Instant::now() + START_PATIENCE;
    loop {
        let mut client = Command::new(program);
        common(client.args(["-P", &port]));
        let said = finish(program, &TemporaryHandle::with_output_files(client.arg("127.0.0.1"))?);
        match said {
            Ok(said) => {
                let us = column(&said, ' ', "usec/xfer").filter(|us| *us > 0.0);
                let us = us.ok_or_else(|| failed(program, &said))?;
                return Ok(us * 1000.0);
            }
            // The server does not listen yet.
            Err(_) if Instant::now() < end && server.ended()?.is_none() => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(failure) => return Err(failure),
        }
    }
}

fn failed(program: &str, what: &str) -> Failure {
    Failure::operation(format!("{program} failed: {what}"))
}

fn finish(program: &str, running: &TemporaryHandle) -> Result<String, Failure> {
    Ok(running.finish(program, Some(PATIENCE))?.stdout)
}

/// Returns the number in the last row of a table, in the column with this name.
fn column(text: &str, separator: char, name: &str) -> Option<f64> {
    let cells = |line: &str| -> Vec<String> {
        let cells = line.split(separator).map(str::trim).filter(|cell| !cell.is_empty());
        cells.map(str::to_owned).collect()
    };
    let mut lines = text.lines().map(cells);
    let header = lines.by_ref().find(|cells| cells.iter().any(|cell| cell == name))?;
    let number = header.iter().position(|cell| cell == name)?;
    let rows = lines.filter(|cells| cells.len() == header.len());
    rows.filter_map(|cells| cells[number].parse::<f64>().ok()).next_back()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_they_say_is_understood() {
        let ucx = "+-----+\n| API:          transport layer |\n\
                   iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n\
                   1000000,0.010,0.028,0.028,271.83,271.83,35628888,35628889\n";
        assert_eq!(column(ucx, ',', "overall_mr"), Some(35_628_889.0));
        let fi = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                  1k      2k      =2k      3.9m        2.06s      1.99     514.86       0.00\n";
        assert_eq!(column(fi, ' ', "usec/xfer"), Some(514.86));
        let header = fi.lines().next().unwrap();
        for text in ["", "nothing", header, &format!("{header}\nsomething else\n")] {
            assert_eq!(column(text, ' ', "usec/xfer"), None, "{text}");
        }
    }
}
