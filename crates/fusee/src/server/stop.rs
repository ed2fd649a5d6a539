//! When a server ends: on SIGINT, SIGTERM or SIGHUP, or with whoever started it.
//!
//! `fusee up` holds the other end of its servers' standard input and never writes to it. The
//! system closes that end when `up` is gone, whatever it died of, so no server outlives it.

use std::io::{Read, stdin};

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use crate::failure::Failure;

/// Waits for the end. With `with_stdin` the end of standard input is one.
pub fn wait(with_stdin: bool) -> Result<(), Failure> {
    let cannot = |error| Failure::operation(format!("cannot wait for signals: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(cannot)?.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt()).map_err(cannot)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(cannot)?;
        let mut hangup = signal(SignalKind::hangup()).map_err(cannot)?;
        let ended = stdin_end(with_stdin);
        let reason = tokio::select! {
            _ = interrupt.recv() => "SIGINT",
            _ = terminate.recv() => "SIGTERM",
            _ = hangup.recv() => "SIGHUP",
            () = ended => "the end of standard input",
        };
        tracing::info!(reason, "stopping");
        Ok(())
    })
}

async fn stdin_end(watch: bool) {
    if !watch {
        return std::future::pending().await;
    }
    let (tell, told) = oneshot::channel::<()>();
    // A thread of its own, which nobody joins: a blocked read cannot be interrupted.
    std::thread::spawn(move || {
        let mut buffer = [0; 64];
        while matches!(stdin().lock().read(&mut buffer), Ok(n) if n > 0) {}
        drop(tell);
    });
    let _ = told.await;
}
