//! The benchmark's side of its client processes.
//!
//! Every client process runs this same program ([`super::client_process`]), in a process group of its own: Ctrl-C in a
//! terminal reaches only the benchmark, which then tells the client processes to stop. The client processes go through
//! the phases in step. At the end their results are merged ([`super::gather`]). If a client process ends early, its
//! records are lost and the benchmark ends too.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use fusee_cli::failure::Failure;
use fusee_cli::interrupt;
use fusee_cli::secret;

use super::gather::{GatheredResults, PHASES, ProcessResults, gather};
use super::message::{BenchClientMessage, ClientSpec, GO, ResultsMessage, STOP};
use super::record::{ENTRY_BYTES, PackedOperation};

/// The interval at which the benchmark checks whether the user wants to stop.
const TICK: Duration = Duration::from_millis(50);

/// Starts a process for each spec and leads the processes through all phases. `workers` is the number of workers of all
/// processes together.
pub fn run(specs: &[ClientSpec], workers: usize) -> Result<GatheredResults, Failure> {
    let mut crew = ClientProcesses::start(specs)?;
    let mut times: Vec<Vec<(u64, u64)>> = specs.iter().map(|_| Vec::new()).collect();
    for _ in 0..PHASES {
        crew.receive_from_each(|_, heard| match heard {
            ProcessMessage::Said(BenchClientMessage::Ready) => Some(()),
            _ => None,
        })?;
        crew.send_to_all(GO);
        let ended = crew.receive_from_each(|_, heard| match heard {
            ProcessMessage::Said(BenchClientMessage::Ended { from_ns, to_ns }) => {
                Some((from_ns, to_ns))
            }
            _ => None,
        })?;
        times.iter_mut().zip(ended).for_each(|(times, ended)| times.push(ended));
    }
    let all = crew.receive_from_each(|number, heard| match heard {
        ProcessMessage::Results(results, entries) => Some((specs[number].part, results, entries)),
        ProcessMessage::Said(_) => None,
    })?;
    crew.wait();
    let shares = all.into_iter().zip(times);
    let shares = shares.map(|((part, results, entries), times)| ProcessResults {
        part,
        times,
        results,
        entries,
    });
    Ok(gather(shares.collect(), workers))
}

/// A message of a client process.
pub enum ProcessMessage {
    /// A message before the results.
    Said(BenchClientMessage),
    /// All results of the process, with the recorded operations.
    Results(ResultsMessage, Vec<PackedOperation>),
}

/// The next item in a process's output.
enum ProcessOutput {
    Message(ProcessMessage),
    /// The process ended, or sent something invalid.
    EndedEarly(String),
}

struct NumberedOutput {
    process: usize,
    output: ProcessOutput,
}

struct ClientProcesses {
    children: Vec<(Child, Option<ChildStdin>)>,
    heard: Receiver<NumberedOutput>,
    /// Output that was not handled yet, by process, because one process is possibly ahead of the others.
    told: Vec<VecDeque<ProcessOutput>>,
    stopped: bool,
}

impl Drop for ClientProcesses {
    fn drop(&mut self) {
        for (child, _) in &mut self.children {
            // An error means that the process has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl ClientProcesses {
    fn start(specs: &[ClientSpec]) -> Result<ClientProcesses, Failure> {
        let (tell, heard) = channel();
        let told = specs.iter().map(|_| VecDeque::new()).collect();
        let mut processes = ClientProcesses { children: Vec::new(), heard, told, stopped: false };
        for (number, spec) in specs.iter().enumerate() {
            let cannot = |error: String| {
                Failure::operation(format!("cannot start client process {number}: {error}"))
            };
            let path = std::env::current_exe().map_err(|error| cannot(error.to_string()))?;
            let mut command = Command::new(path);
            command.arg("client").envs(secret::environment()).process_group(0);
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
            // A write fails if the process has ended, which the end of its output shows as well.
            let _ = writeln!(stdin, "{line}").and_then(|()| stdin.flush());
        }
    }

    fn send_to_all(&mut self, line: &str) {
        (0..self.children.len()).for_each(|number| self.tell_one(number, line));
    }

    /// Waits for the next message of every process, and returns what `wanted` takes from the messages, by process.
    /// Another message than the wanted one is an error.
    fn receive_from_each<T>(
        &mut self,
        wanted: impl Fn(usize, ProcessMessage) -> Option<T>,
    ) -> Result<Vec<T>, Failure> {
        let mut got = Vec::new();
        for number in 0..self.children.len() {
            let heard = self.next(number)?;
            let name = format!("client process {number} (pid {})", self.children[number].0.id());
            let value = match heard {
                ProcessOutput::Message(ProcessMessage::Said(BenchClientMessage::Failed {
                    code,
                    message,
                })) => {
                    return Err(Failure::of(code, format!("{name}: {message}")));
                }
                ProcessOutput::Message(message) => {
                    wanted(number, message).ok_or("told something else than was expected")
                }
                ProcessOutput::EndedEarly(problem) => {
                    return Err(Failure::operation(format!("{name} ended early: {problem}")));
                }
            };
            got.push(value.map_err(|what| Failure::operation(format!("{name} {what}")))?);
        }
        Ok(got)
    }

    /// Returns the next output of a process. Fails as soon as any process has ended early.
    fn next(&mut self, number: usize) -> Result<ProcessOutput, Failure> {
        loop {
            if let Some(heard) = self.told[number].pop_front() {
                return Ok(heard);
            }
            let ended =
                |told: &VecDeque<_>| matches!(told.front(), Some(ProcessOutput::EndedEarly(_)));
            if let Some(other) = self.told.iter().position(ended) {
                let pid = self.children[other].0.id();
                return Err(Failure::operation(format!(
                    "client process {other} (pid {pid}) ended early"
                )));
            }
            if interrupt::is_requested() && !self.stopped {
                self.stopped = true;
                self.send_to_all(STOP);
            }
            match self.heard.recv_timeout(TICK) {
                Ok(NumberedOutput { process, output }) => self.told[process].push_back(output),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Failure::operation("all client processes ended early"));
                }
            }
        }
    }

    /// Waits until all processes have ended.
    fn wait(&mut self) {
        for (child, _) in &mut self.children {
            let _ = child.wait();
        }
    }
}

/// Passes on the messages of a process, until the process has sent its results or ended.
fn listen(number: usize, stdout: ChildStdout, tell: &Sender<NumberedOutput>) {
    let mut stdout = BufReader::new(stdout);
    loop {
        let output = match read_message(&mut stdout) {
            Ok(message) => ProcessOutput::Message(message),
            Err(problem) => ProcessOutput::EndedEarly(problem),
        };
        let is_last = !matches!(output, ProcessOutput::Message(ProcessMessage::Said(_)));
        if tell.send(NumberedOutput { process: number, output }).is_err() || is_last {
            return;
        }
    }
}

/// Reads the next message from the output of a process.
pub fn read_message(stdout: &mut impl BufRead) -> Result<ProcessMessage, String> {
    let mut line = String::new();
    match stdout.read_line(&mut line) {
        Ok(0) => return Err("it told nothing more".into()),
        Ok(_) => {}
        Err(error) => return Err(error.to_string()),
    }
    let said = serde_json::from_str(&line).map_err(|error| format!("it told {line:?}: {error}"))?;
    let BenchClientMessage::Results(results) = said else { return Ok(ProcessMessage::Said(said)) };
    let mut entries = Vec::new();
    for _ in 0..results.entries {
        let mut bytes = [0; ENTRY_BYTES];
        stdout.read_exact(&mut bytes).map_err(|error| format!("its records: {error}"))?;
        entries.push(PackedOperation::from_bytes(&bytes));
    }
    Ok(ProcessMessage::Results(results, entries))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_tells_is_understood_and_its_early_end_noticed() {
        let said = |said: &BenchClientMessage| serde_json::to_string(said).unwrap() + "\n";
        let mut bytes = said(&BenchClientMessage::Ready).into_bytes();
        let results = ResultsMessage { phases: Vec::new(), claimed: 7, broken: false, entries: 2 };
        bytes.extend(said(&BenchClientMessage::Results(results)).bytes());
        bytes.extend([1; ENTRY_BYTES]);
        let whole = [&bytes[..], &[2; ENTRY_BYTES]].concat();
        let mut reader = &whole[..];
        assert!(matches!(
            read_message(&mut reader),
            Ok(ProcessMessage::Said(BenchClientMessage::Ready))
        ));
        let Ok(ProcessMessage::Results(results, entries)) = read_message(&mut reader) else {
            panic!("there are results")
        };
        assert_eq!((results.claimed, entries.len()), (7, 2));
        assert_eq!(entries[1].to_bytes(), [2; ENTRY_BYTES]);
        assert!(read_message(&mut reader).is_err());
        let mut reader = &bytes[..];
        assert!(read_message(&mut reader).is_ok() && read_message(&mut reader).is_err());
        assert!(read_message(&mut &b"what?\n"[..]).is_err());
    }
}
