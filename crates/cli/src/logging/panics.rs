//! The end of a process after a panic in any of its threads or tasks.
//!
//! Without this code, a server that has lost a thread or a task would continue without a part of itself, for example a
//! memory node without its control port, or a master that no longer decides. Other processes would wait for the server,
//! and no supervisor would notice. Therefore the server ends with the exit code of a panic, and its supervisor restarts
//! it.

// Promise SEC-16: A panic in any thread or task ends the server.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::panic;
use std::process::exit;
use std::thread;

use crate::stderr;

/// The exit code of Rust programs whose main thread panics.
const EXIT_CODE: i32 = 101;

/// Makes every panic end the process, from now on.
pub fn exit_on_panic() {
    panic::set_hook(Box::new(|info| {
        // The message does not go through the log, because the panic possibly happened in the log's code.
        let trace = Backtrace::capture();
        let trace = match trace.status() {
            BacktraceStatus::Captured => format!("\n{trace}"),
            _ => String::new(),
        };
        let thread = thread::current();
        let name = thread.name().unwrap_or("without a name");
        let end =
            "this process ends, since it lacks a part of itself now; please report it as a bug";
        stderr::tell(&format!("error: thread {name}: {info}\n{end}{trace}"));
        exit(EXIT_CODE);
    }));
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::Duration;

    const WHERE: &str = "FUSEE_TEST_PANICS_IN";

    /// The test runs itself as a child process, which panics in the place that the environment variable names.
    #[test]
    fn a_panic_anywhere_ends_the_process() {
        if let Ok(at) = std::env::var(WHERE) {
            super::exit_on_panic();
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            match &*at {
                "a thread" => drop(std::thread::spawn(|| panic!("a fault"))),
                "a task" => drop(runtime.block_on(runtime.spawn(async { panic!("a fault") }))),
                _ => drop(runtime.block_on(runtime.spawn_blocking(|| panic!("a fault")))),
            }
            std::thread::sleep(Duration::from_secs(60));
            return;
        }
        for at in ["a thread", "a task", "a blocking task"] {
            let mut again = Command::new(std::env::current_exe().unwrap());
            let this = "logging::panics::tests::a_panic_anywhere_ends_the_process";
            again.args([this, "--exact", "--nocapture"]).env(WHERE, at).stdout(Stdio::null());
            let output = again.output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(101), "{at}: {said}");
            assert!(said.contains("a fault") && said.contains("this process ends"), "{said}");
        }
    }
}
