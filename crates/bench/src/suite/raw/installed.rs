//! Installed programs that measure other transports: their command lines, and the parsing of their output.

use std::process::Command;
use std::time::{Duration, Instant};

use fusee_cli::failure::Failure;

use crate::temporary::{TemporaryHandle, free_port};
use crate::verbs::RawVerb;

/// A time limit longer than any run of these programs.
const PATIENCE: Duration = Duration::from_secs(60);
/// The time limit for a server to listen.
const START_PATIENCE: Duration = Duration::from_secs(5);
/// The interval between checks whether a program has ended.
const POLL: Duration = Duration::from_millis(2);

const UCX: &str = "ucx_perftest";
const FI: &str = "fi_pingpong";

/// Returns the nanoseconds of one operation of UCX over POSIX shared memory.
pub fn ucx(verb: RawVerb, operations: u32) -> Result<f64, Failure> {
    let (test, layout, bytes) = match verb {
        RawVerb::Read(bytes) => ("get", "bcopy", bytes),
        RawVerb::Write(bytes) => ("put_bw", "short", bytes),
        RawVerb::Cas => ("cswap", "short", super::WORD_BYTES),
        RawVerb::Faa => ("fadd", "short", super::WORD_BYTES),
    };
    let mut command = Command::new(UCX);
    command.args(["-l", "-f", "-v", "-t", test, "-D", layout, "-x", "posix", "-d", "memory"]);
    command.args(["-s", &bytes.to_string(), "-n", &operations.to_string()]);
    command.args(["-w", &(operations / 10).to_string()]).env("UCX_TLS", "posix,self");
    let said = finish(UCX, &TemporaryHandle::with_output_files(&mut command)?)?;
    let rate = column(&said, ',', "overall_mr").filter(|rate| *rate > 0.0);
    rate.map(|rate| 1e9 / rate).ok_or_else(|| failed(UCX, &said))
}

/// Returns the nanoseconds that a message of libfabric over TCP takes one way.
pub fn fi_pingpong(bytes: u32, trips: u32) -> Result<f64, Failure> {
    let port = free_port()?.to_string();
    let common = |command: &mut Command| {
        command.args(["-p", "tcp", "-e", "msg", "-I", &trips.to_string()]);
        command.args(["-S", &bytes.to_string()]);
    };
    let mut server = Command::new(FI);
    common(server.args(["-B", &port]));
    let server = TemporaryHandle::with_output_files(&mut server)?;
    let end = Instant::now() + START_PATIENCE;
    loop {
        let mut client = Command::new(FI);
        common(client.args(["-P", &port]));
        let said = finish(FI, &TemporaryHandle::with_output_files(client.arg("127.0.0.1"))?);
        match said {
            Ok(said) => {
                let us = column(&said, ' ', "usec/xfer").filter(|us| *us > 0.0);
                let us = us.ok_or_else(|| failed(FI, &said))?;
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

/// Waits until a program has ended, and returns its output if the program succeeded.
fn finish(program: &'static str, running: &TemporaryHandle) -> Result<String, Failure> {
    let end = Instant::now() + PATIENCE;
    loop {
        match running.ended()? {
            Some(status) if status.success() => return Ok(running.output_so_far().0),
            Some(status) => {
                let (out, complaint) = running.output_so_far();
                return Err(failed(program, &format!("{status}\n{out}{complaint}")));
            }
            None if Instant::now() >= end => {
                let what = format!("it did not end within {} s", PATIENCE.as_secs());
                return Err(failed(program, &what));
            }
            None => std::thread::sleep(POLL),
        }
    }
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

    #[test]
    fn a_program_that_fails_is_named_with_what_it_said() {
        let running =
            TemporaryHandle::with_output_files(Command::new("sh").args(["-c", "echo no; exit 3"]));
        let failure = finish("sh", &running.unwrap()).unwrap_err().to_string();
        assert!(failure.contains("sh failed") && failure.contains("no"), "{failure}");
    }
}
