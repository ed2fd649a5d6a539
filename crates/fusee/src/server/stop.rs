//! When a server ends: on SIGINT, SIGTERM or SIGHUP, or with whoever started it.
//!
//! `fusee up` holds the other end of its servers' standard input and never writes to it. The
//! system closes that end when `up` is gone, whatever it died of, so no server outlives it.

use std::io::{Read, stdin};

use fusee_cli::failure::Failure;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

/// Waits for the end, several times: nothing is missed in between.
pub struct Stop {
    runtime: Runtime,
    signals: [(Signal, &'static str); 3],
    stdin: Option<oneshot::Receiver<()>>,
}

impl Stop {
    /// From now on. With `with_stdin` the end of standard input is one.
    pub fn watch(with_stdin: bool) -> Result<Stop, Failure> {
        let cannot = |error| Failure::operation(format!("cannot wait for signals: {error}"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(cannot)?;
        let entered = runtime.enter();
        let signals = [
            (signal(SignalKind::interrupt()).map_err(cannot)?, "SIGINT"),
            (signal(SignalKind::terminate()).map_err(cannot)?, "SIGTERM"),
            (signal(SignalKind::hangup()).map_err(cannot)?, "SIGHUP"),
        ];
        drop(entered);
        Ok(Stop { runtime, signals, stdin: with_stdin.then(stdin_end) })
    }

    /// Waits for the end, or for what comes before it.
    pub fn unless<T>(&mut self, event: impl Future<Output = T>) -> Option<T> {
        let [(interrupt, first), (terminate, second), (hangup, third)] = &mut self.signals;
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
                _ = hangup.recv() => Err(*third),
                () = ended => Err("the end of standard input"),
            }
        };
        match self.runtime.block_on(event_or_reason) {
            Ok(event) => Some(event),
            Err(reason) => {
                tracing::info!(reason, "stopping");
                None
            }
        }
    }
}

/// Completes at the end of standard input.
fn stdin_end() -> oneshot::Receiver<()> {
    let (tell, told) = oneshot::channel::<()>();
    // A thread of its own, which nobody joins: a blocked read cannot be interrupted.
    std::thread::spawn(move || {
        let mut buffer = [0; 64];
        while matches!(stdin().lock().read(&mut buffer), Ok(n) if n > 0) {}
        drop(tell);
    });
    told
}
