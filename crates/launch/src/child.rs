//! A server that this process started.

use std::collections::HashSet;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use fusee_cli::failure::Failure;
use fusee_cli::secret;
use futures_util::future::join_all;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

/// Which RDMA device to use.
const DEVICE: &str = "FUSEE_RDMA_DEVICE";
/// How long a server may take to open its ports.
const ANNOUNCE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a server may take to stop before it is killed.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// A child process. Dropping it kills it.
pub struct Child {
    name: String,
    pid: u32,
    process: tokio::process::Child,
    /// Its end is the child's order to stop.
    stdin: Option<ChildStdin>,
    stdout: Option<BufReader<ChildStdout>>,
    exited: Option<ExitStatus>,
}

impl Child {
    /// Starts this executable with these arguments, which make it a server; the name is for
    /// messages.
    pub fn spawn(name: &str, verbose: u8, arguments: &[String]) -> Result<Child, Failure> {
        let cannot = |error| Failure::operation(format!("cannot start the {name}: {error}"));
        let mut command = Command::new(std::env::current_exe().map_err(cannot)?);
        command.args(arguments).args(["--announce", "--stop-with-stdin"]);
        command.args((0..verbose).map(|_| "--verbose"));
        // The arguments alone decide what the servers do; other settings of the environment are
        // meant for servers that the user starts.
        let settings: HashSet<String> =
            std::env::vars().map(|(key, _)| key).filter(|key| key.starts_with("FUSEE_")).collect();
        for name in &settings {
            command.env_remove(name);
        }
        // But for the secret and the certificates, which all of them share with who uses them, and for
        // the device, which is this machine's.
        command.envs(secret::environment());
        command.envs(std::env::var_os(DEVICE).map(|device| (DEVICE, device)));
        if verbose == 0 && std::env::var_os("RUST_LOG").is_none() {
            command.env("RUST_LOG", "warn");
        }
        // A group of its own: Ctrl-C in a terminal reaches the parent alone, which stops the others.
        command.process_group(0).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().map_err(cannot)?;
        Ok(Child {
            name: name.to_string(),
            pid: process.id().unwrap_or_default(),
            stdin: process.stdin.take(),
            stdout: process.stdout.take().map(BufReader::new),
            process,
            exited: None,
        })
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Calls it otherwise from now on.
    pub fn rename(&mut self, name: String) {
        self.name = name;
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The line with which it tells that its ports are open, and where.
    pub async fn announcement(&mut self) -> Result<String, Failure> {
        let name = &self.name;
        let Some(stdout) = &mut self.stdout else {
            return Err(Failure::operation(format!("the {name} has no output")));
        };
        let mut line = String::new();
        match timeout(ANNOUNCE_TIMEOUT, stdout.read_line(&mut line)).await {
            Ok(Ok(bytes)) if bytes > 0 => Ok(line),
            Ok(_) => Err(Failure::operation(format!("the {name} did not start; see above"))),
            Err(_) => Err(Failure::operation(format!("the {name} did not start in time"))),
        }
    }

    /// Waits for its end; gives its name and how it ended.
    pub async fn exit(&mut self) -> (String, String) {
        let status = match self.process.wait().await {
            Ok(status) => {
                self.exited = Some(status);
                status.to_string()
            }
            Err(error) => error.to_string(),
        };
        (format!("{} (pid {})", self.name, self.pid), status)
    }

    /// Whether [`Child::exit`] has seen its end.
    pub fn has_exited(&self) -> bool {
        self.exited.is_some()
    }

    /// Kills it (SIGKILL), and does not wait for its end.
    pub fn kill(&mut self) -> Result<(), Failure> {
        let killed = self.process.start_kill();
        killed
            .map_err(|error| Failure::operation(format!("cannot kill the {}: {error}", self.name)))
    }

    /// Tells it to stop, and kills it if it does not.
    async fn stop(mut self) {
        drop(self.stdin.take());
        if timeout(STOP_GRACE, self.process.wait()).await.is_err() {
            tracing::warn!(name = self.name, pid = self.pid, "did not stop in time: killed");
            if let Err(error) = self.process.kill().await {
                tracing::warn!(pid = self.pid, %error, "cannot be killed");
            }
        }
    }
}

/// Stops all of them.
pub async fn stop_all(children: Vec<Child>) {
    join_all(children.into_iter().map(Child::stop)).await;
}
