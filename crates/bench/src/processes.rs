//! The client processes of a benchmark, from outside.
//!
//! Every process is this same executable ([`super::client_process`]), in a process group of its
//! own, so that Ctrl-C in a terminal reaches only the benchmark, which tells the others. They go
//! through the phases in step; then their results are put together ([`super::gather`]).
//! A process that ends early ends the benchmark: its records are lost with it.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use fusee_cli::failure::Failure;
use fusee_cli::interrupt;
use fusee_cli::secret;

use super::gather::{Gathered, PHASES, Share, gather};
use super::message::{GO, Results, STOP, Said, Spec};
use super::record::{ENTRY_BYTES, Packed};

/// The period of looks whether the user wants to stop.
const TICK: Duration = Duration::from_millis(50);

/// Runs a process for each spec, through all phases. `workers` is the number of workers in all.
pub fn run(specs: &[Spec], workers: usize) -> Result<Gathered, Failure> {
    let mut crew = Processes::start(specs)?;
    let mut times: Vec<Vec<(u64, u64)>> = specs.iter().map(|_| Vec::new()).collect();
    for _ in 0..PHASES {
        crew.each(|_, heard| match heard {
            Heard::Said(Said::Ready) => Some(()),
            _ => None,
        })?;
        crew.tell(GO);
        let ended = crew.each(|_, heard| match heard {
            Heard::Said(Said::Ended { from_ns, to_ns }) => Some((from_ns, to_ns)),
            _ => None,
        })?;
        times.iter_mut().zip(ended).for_each(|(times, ended)| times.push(ended));
    }
    let all = crew.each(|number, heard| match heard {
        Heard::Results(results, entries) => Some((specs[number].part, results, entries)),
        Heard::Said(_) => None,
    })?;
    crew.wait();
    let shares = all.into_iter().zip(times);
    let shares =
        shares.map(|((part, results, entries), times)| Share { part, times, results, entries });
    Ok(gather(shares.collect(), workers))
}

/// A message of a process.
pub enum Heard {
    /// A message on the way.
    Said(Said),
    /// All its results.
    Results(Results, Vec<Packed>),
}

/// The process, and its message; the error is that it ended, or sent something invalid.
type Message = (usize, Result<Heard, String>);

struct Processes {
    children: Vec<(Child, Option<ChildStdin>)>,
    heard: Receiver<Message>,
    /// By process: messages that were not read yet. One process may be ahead of the others.
    told: Vec<VecDeque<Result<Heard, String>>>,
    stopped: bool,
}

impl Drop for Processes {
    fn drop(&mut self) {
        for (child, _) in &mut self.children {
            // An error means that it has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Processes {
    fn start(specs: &[Spec]) -> Result<Processes, Failure> {
        let (tell, heard) = channel();
        let told = specs.iter().map(|_| VecDeque::new()).collect();
        let mut processes = Processes { children: Vec::new(), heard, told, stopped: false };
        for (number, spec) in specs.iter().enumerate() {
            let cannot = |error: String| {
                Failure::operation(format!("cannot start client process {number}: {error}"))
            };
            let path = std::env::current_exe().map_err(|error| cannot(error.to_string()))?;
            let mut command = Command::new(path);
            command.args(["bench", "client"]).envs(secret::environment()).process_group(0);
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.spawn().map_err(|error| cannot(error.to_string()))?;
            let stdin = child.stdin.take();
            let stdout = child.stdout.take();
            processes.children.push((child, stdin));
            let json = serde_json::to_string(spec).map_err(|error| cannot(error.to_string()))?;
            processes.tell_one(number, &json);
            if let Some(stdout) = stdout {
                let tell = tell.clone();
                std::thread::spawn(move || listen(number, stdout, &tell));
            }
        }
        Ok(processes)
    }

    fn tell_one(&mut self, number: usize, line: &str) {
        if let Some(stdin) = &mut self.children[number].1 {
            // If the process has ended, the end of its output shows it.
            let _ = writeln!(stdin, "{line}").and_then(|()| stdin.flush());
        }
    }

    fn tell(&mut self, line: &str) {
        (0..self.children.len()).for_each(|number| self.tell_one(number, line));
    }

    /// Waits for the next message of every process, which must be the wanted one; returns them by
    /// process.
    fn each<T>(&mut self, wanted: impl Fn(usize, Heard) -> Option<T>) -> Result<Vec<T>, Failure> {
        let mut got = Vec::new();
        for number in 0..self.children.len() {
            let heard = self.next(number)?;
            let name = format!("client process {number} (pid {})", self.children[number].0.id());
            let value = match heard {
                Ok(Heard::Said(Said::Failed { code, message })) => {
                    return Err(Failure::of(code, format!("{name}: {message}")));
                }
                Ok(heard) => wanted(number, heard).ok_or("told something else than was expected"),
                Err(problem) => {
                    return Err(Failure::operation(format!("{name} ended early: {problem}")));
                }
            };
            got.push(value.map_err(|what| Failure::operation(format!("{name} {what}")))?);
        }
        Ok(got)
    }

    /// Returns the next message of a process. Ends as soon as any of them has ended early.
    fn next(&mut self, number: usize) -> Result<Result<Heard, String>, Failure> {
        loop {
            if let Some(heard) = self.told[number].pop_front() {
                return Ok(heard);
            }
            let ended = |told: &VecDeque<_>| matches!(told.front(), Some(Err(_)));
            if let Some(other) = self.told.iter().position(ended) {
                let pid = self.children[other].0.id();
                return Err(Failure::operation(format!(
                    "client process {other} (pid {pid}) ended early"
                )));
            }
            if interrupt::requested() && !self.stopped {
                self.stopped = true;
                self.tell(STOP);
            }
            match self.heard.recv_timeout(TICK) {
                Ok((from, heard)) => self.told[from].push_back(heard),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Failure::operation("all client processes ended early"));
                }
            }
        }
    }

    /// Waits until the processes end.
    fn wait(&mut self) {
        for (child, _) in &mut self.children {
            let _ = child.wait();
        }
    }
}

/// Passes on the messages of a process, until it has sent everything.
fn listen(number: usize, stdout: ChildStdout, tell: &Sender<Message>) {
    let mut stdout = BufReader::new(stdout);
    loop {
        let heard = hear(&mut stdout);
        let is_last = !matches!(heard, Ok(Heard::Said(_)));
        if tell.send((number, heard)).is_err() || is_last {
            return;
        }
    }
}

/// Reads the next message of a process.
pub fn hear(stdout: &mut impl BufRead) -> Result<Heard, String> {
    let mut line = String::new();
    match stdout.read_line(&mut line) {
        Ok(0) => return Err("it told nothing more".into()),
        Ok(_) => {}
        Err(error) => return Err(error.to_string()),
    }
    let said = serde_json::from_str(&line).map_err(|error| format!("it told {line:?}: {error}"))?;
    let Said::Results(results) = said else { return Ok(Heard::Said(said)) };
    let mut entries = Vec::new();
    for _ in 0..results.entries {
        let mut bytes = [0; ENTRY_BYTES];
        stdout.read_exact(&mut bytes).map_err(|error| format!("its records: {error}"))?;
        entries.push(Packed::from_bytes(&bytes));
    }
    Ok(Heard::Results(results, entries))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_tells_is_understood_and_its_early_end_noticed() {
        let said = |said: &Said| serde_json::to_string(said).unwrap() + "\n";
        let mut bytes = said(&Said::Ready).into_bytes();
        let results = Results { phases: Vec::new(), claimed: 7, broken: false, entries: 2 };
        bytes.extend(said(&Said::Results(results)).bytes());
        bytes.extend([1; ENTRY_BYTES]);
        let whole = [&bytes[..], &[2; ENTRY_BYTES]].concat();
        let mut reader = &whole[..];
        assert!(matches!(hear(&mut reader), Ok(Heard::Said(Said::Ready))));
        let Ok(Heard::Results(results, entries)) = hear(&mut reader) else {
            panic!("there are results")
        };
        assert_eq!((results.claimed, entries.len()), (7, 2));
        assert_eq!(entries[1].to_bytes(), [2; ENTRY_BYTES]);
        assert!(hear(&mut reader).is_err());
        let mut reader = &bytes[..];
        assert!(hear(&mut reader).is_ok() && hear(&mut reader).is_err());
        assert!(hear(&mut &b"what?\n"[..]).is_err());
    }
}
