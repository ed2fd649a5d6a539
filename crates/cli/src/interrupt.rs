//! Ctrl-C ends a benchmark or a simulation early, but not without its report.
//!
//! The first SIGINT, SIGTERM or SIGHUP asks the workers to stop; what there is until then
//! is verified and printed. The second ends the process at once. Signals are the process's, so
//! what is known about them is, too.

use std::sync::atomic::{AtomicU8, Ordering};

use tokio::signal::unix::{SignalKind, signal};

use crate::failure::Failure;
use crate::stderr;

/// The exit code that the signal asks for; 0 if there was none.
static CODE: AtomicU8 = AtomicU8::new(0);

/// Starts to watch for signals.
pub fn watch() -> Result<(), Failure> {
    at_signals(|code| {
        if CODE.swap(code, Ordering::Relaxed) != 0 {
            std::process::exit(code.into());
        }
        // Without a wait for it: the next signal must be heard.
        stderr::push(b"stopping; once more to end at once\n");
    })
}

/// Ends the process at the first signal, after this was done: for what has no report before its end.
pub fn end_after(clean_up: impl Fn() + Send + 'static) -> Result<(), Failure> {
    at_signals(move |code| {
        clean_up();
        std::process::exit(code.into());
    })
}

/// Does this at every signal, on a thread of its own; it gets the exit code that the signal asks for.
fn at_signals(then: impl Fn(u8) + Send + 'static) -> Result<(), Failure> {
    let cannot = |error| Failure::operation(format!("cannot wait for signals: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(cannot)?;
    let guard = runtime.enter();
    let mut interrupt = signal(SignalKind::interrupt()).map_err(cannot)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(cannot)?;
    let mut hangup = signal(SignalKind::hangup()).map_err(cannot)?;
    drop(guard);
    std::thread::spawn(move || {
        runtime.block_on(async {
            loop {
                let code = tokio::select! {
                    _ = interrupt.recv() => 130,
                    _ = terminate.recv() => 143,
                    _ = hangup.recv() => 129,
                };
                then(code);
            }
        });
    });
    Ok(())
}

/// Does what the first signal does: whoever started this process had it.
pub fn request() {
    CODE.store(130, Ordering::Relaxed);
}

/// Whether to stop.
pub fn requested() -> bool {
    CODE.load(Ordering::Relaxed) != 0
}

/// How the process ends if it was interrupted.
pub fn failure() -> Option<Failure> {
    let code = CODE.load(Ordering::Relaxed);
    (code != 0).then(|| Failure::interrupted(code))
}
