//! Logs, on standard error.
//!
//! Servers tell what they do (`info`), other commands only what goes wrong (`warn`). `-v` shows
//! more, `RUST_LOG` decides if it is set.

use std::io::{IsTerminal, stderr};

use tracing_subscriber::EnvFilter;

/// Starts to log.
pub fn start(verbose: u8, is_server: bool) {
    let level = match (verbose, is_server) {
        (0, false) => "warn",
        (0, true) | (1, false) => "info",
        (1, true) | (2, false) => "debug",
        _ => "trace",
    };
    // The libraries beneath tell a lot; what they do is of interest only when asked for.
    let ours = format!("warn,{}", crates(level));
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
