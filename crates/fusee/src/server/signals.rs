//! Events that end a server: SIGINT, SIGTERM, or the end of its parent. On SIGHUP a server with a file of settings
//! reads the file again. A server without a file ends on SIGHUP, as programs do when their terminal is closed.
//!
//! `fusee up` holds the other end of its servers' standard input and never writes to it. The system closes that end
//! when `up` dies for any reason, so no server outlives `up`.

use std::io::{Read, stdin};

use fusee_cli::failure::Failure;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

const END_OF_INPUT: &str = "the end of standard input";

/// The event that ended a wait of a server.
#[derive(Debug)]
pub enum WakeReason<T> {
    /// The event for which the server waited, with its result.
    Event(T),
    /// SIGHUP: the server has to read its settings again.
    Hangup,
    /// A signal that ends the server.
    Stop,
    /// The end of standard input: the parent has died, or ends all of its servers.
    Abandoned,
}

/// Waits for signals and the end of standard input. A signal that comes between two waits is not missed.
pub struct ServerSignals {
    runtime: Runtime,
    signals: [(Signal, &'static str); 2],
    hangup: Signal,
    reads_again: bool,
    stdin: Option<oneshot::Receiver<()>>,
}

impl ServerSignals {
    /// Starts to watch for signals. With `with_stdin`, the end of standard input ends the server. SIGHUP ends the
    /// server too, unless the server `reads_again`.
    pub fn watch(with_stdin: bool, reads_again: bool) -> Result<ServerSignals, Failure> {
        let cannot = |error| Failure::operation(format!("cannot wait for signals: {error}"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(cannot)?;
        let entered = runtime.enter();
        let signals = [
            (signal(SignalKind::interrupt()).map_err(cannot)?, "SIGINT"),
            (signal(SignalKind::terminate()).map_err(cannot)?, "SIGTERM"),
        ];
        let hangup = signal(SignalKind::hangup()).map_err(cannot)?;
        drop(entered);
        let stdin = with_stdin.then(stdin_end);
        Ok(ServerSignals { runtime, signals, hangup, reads_again, stdin })
    }

    /// Waits for `event`, or for a signal or the end of standard input.
    pub fn wait<T>(&mut self, event: impl Future<Output = T>) -> WakeReason<T> {
        let [(interrupt, first), (terminate, second)] = &mut self.signals;
        let hangup = &mut self.hangup;
        let stdin = &mut self.stdin;
        let ended = async {
            match stdin {
                Some(stdin) => drop(stdin.await),
                None => std::future::pending().await,
            }
        };
        let event_or_reason = async {
            tokio::select! {
                event = event => Ok(event),
                _ = interrupt.recv() => Err(*first),
                _ = terminate.recv() => Err(*second),
                _ = hangup.recv() => Err("SIGHUP"),
                () = ended => Err(END_OF_INPUT),
            }
        };
        match self.runtime.block_on(event_or_reason) {
            Ok(event) => WakeReason::Event(event),
            Err("SIGHUP") if self.reads_again => WakeReason::Hangup,
            Err(reason) => {
                tracing::info!(reason, "stopping");
                if reason == END_OF_INPUT { WakeReason::Abandoned } else { WakeReason::Stop }
            }
        }
    }
}

/// Returns a receiver that completes at the end of standard input.
fn stdin_end() -> oneshot::Receiver<()> {
    let (tell, told) = oneshot::channel::<()>();
    // The thread is never joined, because a blocked read cannot be interrupted.
    std::thread::spawn(move || {
        let mut buffer = [0; 64];
        while matches!(stdin().lock().read(&mut buffer), Ok(n) if n > 0) {}
        drop(tell);
    });
    told
}
