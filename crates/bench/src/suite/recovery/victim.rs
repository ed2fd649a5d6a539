//! The client process that is killed: `fusee-bench doomed`, which only the benchmark starts.
//!
//! The standard input of the process has its [`VictimTask`] as one line of JSON. The process updates the keys in turn,
//! and reports in one line ([`VictimMessage`]) when it has made the requested updates. Then it goes on to update, so
//! that it is in the middle of an update whenever it is killed. The process ends at the end of its input, so that none
//! outlives the benchmark.

use std::io::{BufRead, BufReader, Read, Write, stdin};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use fusee_cli::connect;
use fusee_cli::failure::Failure;
use fusee_cli::secret;
use fusee_client::{FabricChoice, Options};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use crate::value::ValueOrigin;
use fusee_workload::key_bytes;

/// The work to do until the process is killed.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct VictimTask {
    /// The address of the master.
    pub master: String,
    /// The fabric: shm, tcp, verbs or auto.
    pub fabric: String,
    /// Number of keys to update in turn; all of them exist.
    pub keys: u64,
    /// Number of updates before the process reports that it is ready.
    pub updates: u64,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// The writer number of the process.
    pub writer: u64,
}

/// A message of the process.
#[derive(Debug, Deserialize, Serialize)]
enum VictimMessage {
    /// The requested updates have been made.
    Ready {
        /// The name of the process's session.
        client: String,
    },
    /// The process has failed, and ends.
    Failed {
        /// The reason.
        message: String,
    },
}

/// Runs the process.
pub fn run() -> Result<(), Failure> {
    let result = work();
    if let Err(failure) = &result {
        send_message(&VictimMessage::Failed { message: failure.to_string() })?;
    }
    result
}

fn work() -> Result<(), Failure> {
    let mut line = String::new();
    let read = stdin().lock().read_line(&mut line);
    read.map_err(|error| Failure::operation(format!("cannot read what to do: {error}")))?;
    let task: VictimTask = serde_json::from_str(&line).map_err(|error| {
        Failure::usage(format!("this is for the benchmark itself to start: {error}"))
    })?;
    std::thread::spawn(|| {
        while matches!(stdin().lock().read(&mut [0; 64]), Ok(n) if n > 0) {}
        std::process::exit(1);
    });
    let fabric = task.fabric.parse::<FabricChoice>().map_err(Failure::usage)?;
    let options = Options::default().with_fabric(fabric);
    // The client joins on a thread of its own, whose session ends with the thread, so that the kill ends one session
    // and not two.
    let master = task.master.clone();
    let joining = std::thread::spawn(move || connect::join(&master, options));
    let client =
        joining.join().map_err(|_| Failure::operation("the thread that joins panicked"))?;
    let client = client?;
    let session = client.session()?;
    let mut value = vec![0; task.value_bytes];
    for sequence in 0.. {
        let key = sequence % task.keys;
        ValueOrigin { key, writer: task.writer, sequence }.encode(&mut value);
        session.block_on(session.update(&key_bytes(key), &value))?;
        if sequence + 1 == task.updates {
            send_message(&VictimMessage::Ready { client: session.id().to_string() })?;
        }
    }
    Ok(())
}

fn send_message(said: &VictimMessage) -> Result<(), Failure> {
    let json = serde_json::to_string(said)
        .map_err(|error| Failure::operation(format!("cannot tell: {error}")))?;
    fusee_cli::output::line(&json)
}

/// The handle of the process. Dropping the handle kills the process.
pub struct VictimProcess {
    child: Child,
    _stdin: Option<ChildStdin>,
    stdout: Option<BufReader<ChildStdout>>,
}

impl VictimProcess {
    /// Starts the process in a process group of its own, so that Ctrl-C in a terminal reaches only the benchmark.
    pub fn start(task: &VictimTask) -> Result<VictimProcess, Failure> {
        let cannot = |error: String| {
            Failure::operation(format!("cannot start the client that is to die: {error}"))
        };
        let path = std::env::current_exe().map_err(|error| cannot(error.to_string()))?;
        let mut command = Command::new(path);
        command.arg("doomed").envs(secret::environment()).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| cannot(error.to_string()))?;
        let mut stdin = child.stdin.take();
        let stdout = child.stdout.take();
        let json = serde_json::to_string(task).map_err(|error| cannot(error.to_string()))?;
        if let Some(stdin) = &mut stdin {
            // A write fails if the process has ended, which the end of its output shows as well.
            let _ = writeln!(stdin, "{json}").and_then(|()| stdin.flush());
        }
        Ok(VictimProcess { child, _stdin: stdin, stdout: stdout.map(BufReader::new) })
    }

    /// Waits until the process has made its updates; returns the name of its session.
    pub fn wait_until_ready(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        let read = self.stdout.as_mut().map(|stdout| stdout.read_line(&mut line));
        match (read, serde_json::from_str(&line)) {
            (Some(Ok(_)), Ok(VictimMessage::Ready { client })) => Ok(client),
            (_, Ok(VictimMessage::Failed { message })) => {
                Err(Failure::operation(format!("the client that is to die: {message}")))
            }
            _ => Err(Failure::operation("the client that is to die ended early")),
        }
    }

    /// Stops the process at whatever point it is.
    pub fn stop(&self) -> Result<(), Failure> {
        self.signal(Signal::STOP)
    }

    /// Lets the stopped process go on.
    pub fn go_on(&self) -> Result<(), Failure> {
        self.signal(Signal::CONT)
    }

    /// Kills the process by SIGKILL.
    pub fn kill(&self) -> Result<(), Failure> {
        self.signal(Signal::KILL)
    }

    fn signal(&self, signal: Signal) -> Result<(), Failure> {
        // The process is not waited for before the handle is dropped, so the process id still belongs to the process.
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal)
            .map_err(|error| Failure::operation(format!("cannot send {signal:?}: {error}")))
    }
}

impl Drop for VictimProcess {
    fn drop(&mut self) {
        // An error means that the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
