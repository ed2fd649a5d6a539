//! Logs, on standard error.
//!
//! Servers tell what they do (`info`), other commands only what goes wrong (`warn`), and the
//! simulator nothing, since things go wrong there all the time. `-v` shows more, `RUST_LOG` decides
//! if it is set.

use std::io::{IsTerminal, stderr};

use tracing_subscriber::EnvFilter;

/// What a command logs by itself.
#[derive(Clone, Copy, Debug)]
pub enum Usual {
    /// Nothing.
    #[cfg_attr(not(feature = "sim"), expect(dead_code, reason = "what `sim` logs"))]
    Nothing,
    /// What goes wrong.
    Problems,
    /// What it does.
    Everything,
}

/// Starts to log.
pub fn start(verbose: u8, usual: Usual) {
    let level = match (verbose, usual) {
        (0, Usual::Nothing) => "off",
        (0, Usual::Problems) | (1, Usual::Nothing) => "warn",
        (0, Usual::Everything) | (1, Usual::Problems) => "info",
        (1, Usual::Everything) | (2, Usual::Problems) => "debug",
        _ => "trace",
    };
    // The libraries beneath tell a lot; what they do is of interest only when asked for. That of the control
    // messages calls every question an error that was not answered in time: whoever asked knows better.
    let ours = format!("warn,tarpc=off,{}", crates(level));
    let filter = match std::env::var("RUST_LOG") {
        Ok(directives) if !directives.is_empty() => EnvFilter::new(directives),
        _ => EnvFilter::new(ours),
    };
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(stderr)
        .with_ansi(stderr().is_terminal())
        .with_target(verbose > 0)
        .init();
}

fn crates(level: &str) -> String {
    let ours = ["", "_client", "_control", "_fabric", "_master", "_memory_node"];
    ours.map(|name| format!("fusee{name}={level}")).join(",")
}
