//! Signals: Ctrl-C ends a benchmark or a simulation early, but with its report.
//!
//! The first SIGINT, SIGTERM or SIGHUP makes the workers stop; then the results so far are verified and printed. The
//! second signal ends the process at once. Signals belong to the process, so this state is global.

use std::sync::atomic::{AtomicU8, Ordering};

use tokio::signal::unix::{SignalKind, signal};

use crate::failure::Failure;
use crate::stderr;

/// The exit code of the signal that came first; 0 if no signal has come.
static CODE: AtomicU8 = AtomicU8::new(0);

/// Starts to watch for signals.
pub fn watch() -> Result<(), Failure> {
    at_signals(|code| {
        if CODE.swap(code, Ordering::Relaxed) != 0 {
            std::process::exit(code.into());
        }
        // The message is queued, not written here, because a wait would delay the next signal.
        stderr::push(b"stopping; once more to end at once\n");
    })
}

/// Makes the first signal end the process after a call of `clean_up`. For commands without a report.
pub fn end_after(clean_up: impl Fn() + Send + 'static) -> Result<(), Failure> {
    at_signals(move |code| {
        clean_up();
        std::process::exit(code.into());
    })
}

/// At every signal, calls `then` on a thread of its own, with the exit code for the signal.
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

/// Acts as if the first signal had come, because the parent of this process has received it.
pub fn request() {
    CODE.store(130, Ordering::Relaxed);
}

/// Returns whether a signal asks the process to stop.
pub fn is_requested() -> bool {
    CODE.load(Ordering::Relaxed) != 0
}

/// Returns the failure with which the process has to end if a signal interrupted it.
pub fn failure() -> Option<Failure> {
    let code = CODE.load(Ordering::Relaxed);
    (code != 0).then(|| Failure::interrupted(code))
}
