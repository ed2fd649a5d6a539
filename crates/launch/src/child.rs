//! A server process that this process has started.

use std::collections::HashSet;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use fusee_cli::failure::Failure;
use fusee_cli::secret;
use futures_util::future::join_all;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

/// The environment variable that selects the RDMA device.
const DEVICE: &str = "FUSEE_RDMA_DEVICE";
/// Largest time from a server's start to its announcement.
const ANNOUNCE_TIMEOUT: Duration = Duration::from_secs(30);
/// Largest time from the request to stop until a server is killed.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// A child process. Dropping it kills it.
pub struct Child {
    name: String,
    pid: u32,
    process: tokio::process::Child,
    /// Standard input of the child. When it is closed, the child stops.
    stdin: Option<ChildStdin>,
    stdout: Option<BufReader<ChildStdout>>,
    exited: Option<ExitStatus>,
}

impl Child {
    /// Starts the program as a server, with these arguments. `name` is for messages.
    pub(crate) fn spawn(
        program: &Path,
        name: &str,
        verbose: u8,
        arguments: &[String],
    ) -> Result<Child, Failure> {
        let cannot = |error| Failure::operation(format!("cannot start the {name}: {error}"));
        let mut command = Command::new(program);
        command.args(arguments).args(["--announce", "--stop-with-stdin"]);
        command.args((0..verbose).map(|_| "--verbose"));
        // Only the arguments configure the servers. Settings in the environment are for servers that the user starts.
        let settings: HashSet<String> =
            std::env::vars().map(|(key, _)| key).filter(|key| key.starts_with("FUSEE_")).collect();
        for name in &settings {
            command.env_remove(name);
        }
        // Exceptions are the secret and the certificates, which the servers share with their clients, and the RDMA
        // device, which depends on the machine.
        command.envs(secret::environment());
        command.envs(std::env::var_os(DEVICE).map(|device| (DEVICE, device)));
        if verbose == 0 && std::env::var_os("RUST_LOG").is_none() {
            command.env("RUST_LOG", "warn");
        }
        // The child has its own process group, so that Ctrl-C in a terminal reaches only the parent, which stops the
        // children.
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

    /// Returns the child's name for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sets the child's name for messages.
    pub fn rename(&mut self, name: String) {
        self.name = name;
    }

    /// Returns the child's process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Waits for the server's announcement and returns it.
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

    /// Waits until the child has ended. Returns the child's name and its exit status in words.
    pub async fn wait_for_exit(&mut self) -> (String, String) {
        let status = match self.process.wait().await {
            Ok(status) => {
                self.exited = Some(status);
                status.to_string()
            }
            Err(error) => error.to_string(),
        };
        (format!("{} (pid {})", self.name, self.pid), status)
    }

    /// Returns whether [`Child::wait_for_exit`] has seen that the child has ended.
    pub fn has_exited(&self) -> bool {
        self.exited.is_some()
    }

    /// Kills the child by SIGKILL, without waiting until it has ended.
    pub fn kill(&mut self) -> Result<(), Failure> {
        let killed = self.process.start_kill();
        killed
            .map_err(|error| Failure::operation(format!("cannot kill the {}: {error}", self.name)))
    }

    /// Tells the child to stop, and kills it if it has not stopped after [`STOP_GRACE`].
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

/// Stops all children at the same time.
pub async fn stop_all(children: Vec<Child>) {
    join_all(children.into_iter().map(Child::stop)).await;
}
