//! Logs, on standard error. If standard error takes no data, lines are lost ([`crate::stderr`]), and the program
//! continues. The number of lines of one kind is limited ([`limit`]). A panic in a server ends it ([`panics`]).
//!
//! By default servers log what they do (`info`), other commands only problems (`warn`), and the simulator nothing,
//! because it causes problems on purpose. `-v` logs more; `RUST_LOG`, if set, overrides it. The filter of a server's
//! log is one of its settings, and can change while the server runs.

pub mod limit;
pub mod panics;

use std::io::IsTerminal;
use std::str::FromStr;
use std::sync::OnceLock;
use std::time::Duration;

use crate::stderr;
use serde::{Deserialize, Deserializer, Serialize};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Time for which an ending server waits for its last lines to be written.
const PATIENCE: Duration = Duration::from_secs(1);

/// The lines that a command logs by default.
#[derive(Clone, Copy, Debug)]
pub enum DefaultVerbosity {
    /// The command logs no lines by default.
    Nothing,
    /// The command logs warnings and errors by default.
    Problems,
    /// Warnings, errors, and lines about what the command does.
    Everything,
}

/// The directives of a log filter, in the syntax of `RUST_LOG`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LogFilter(String);

impl LogFilter {
    /// Returns the default filter of a server that was started with this number of `-v`.
    pub fn of_server(verbose: u8) -> LogFilter {
        LogFilter(default_directives(verbose, DefaultVerbosity::Everything))
    }
}

impl FromStr for LogFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<LogFilter, String> {
        match EnvFilter::try_new(text) {
            Ok(_) => Ok(LogFilter(text.to_owned())),
            Err(error) => Err(format!(
                "`{text}` is no filter of a log: {error}; write it like `debug`, or `warn,fusee_master=debug`"
            )),
        }
    }
}

impl<'de> Deserialize<'de> for LogFilter {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<LogFilter, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// A function that changes the filter of this process.
type SetLogFilter = Box<dyn Fn(EnvFilter) + Send + Sync>;

static SET: OnceLock<SetLogFilter> = OnceLock::new();

/// Replaces the filter of this process, if a filter is given.
pub fn set(filter: Option<&LogFilter>) {
    if let (Some(set), Some(LogFilter(directives))) = (SET.get(), filter) {
        set(EnvFilter::new(directives));
    }
}

/// Starts logging. If the reader of standard error has stopped reading, messages of a server (`serves`) wait for it
/// only until a time limit. Messages of other commands wait without a limit, as is usual for programs in a terminal.
pub fn start(verbose: u8, usual_log: DefaultVerbosity, serves: bool) {
    if serves {
        stderr::start(Some(PATIENCE), Some(|| limit::tell(false)))
    } else {
        stderr::start(None, None)
    }
    let filter = match std::env::var("RUST_LOG") {
        Ok(directives) if !directives.is_empty() => EnvFilter::new(&directives),
        _ => EnvFilter::new(default_directives(verbose, usual_log)),
    };
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| stderr::StderrLog)
        .log_internal_errors(false)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(verbose > 0)
        .with_filter_reloading();
    let handle = subscriber.reload_handle();
    let _first = SET.set(Box::new(move |filter| {
        if let Err(error) = handle.reload(filter) {
            tracing::error!(%error, "the filter of the log cannot change");
        }
    }));
    subscriber.finish().with(limit::LogLimiter).init();
}

/// Reports omitted lines, and waits until the log is written. For the end of the process.
pub fn end() {
    limit::tell(true);
    stderr::flush();
}

/// Returns the directives of the default filter.
fn default_directives(verbose: u8, usual: DefaultVerbosity) -> String {
    let level = match (verbose, usual) {
        (0, DefaultVerbosity::Nothing) => "off",
        (0, DefaultVerbosity::Problems) | (1, DefaultVerbosity::Nothing) => "warn",
        (0, DefaultVerbosity::Everything) | (1, DefaultVerbosity::Problems) => "info",
        (1, DefaultVerbosity::Everything) | (2, DefaultVerbosity::Problems) => "debug",
        _ => "trace",
    };
    // Other libraries log much below `warn`, so their lines below `warn` are logged only if `RUST_LOG` selects them.
    format!("warn,{}", crates(level))
}

fn crates(level: &str) -> String {
    let ours = ["", "_client", "_control", "_fabric", "_master", "_memory_node"];
    ours.map(|name| format!("fusee{name}={level}")).join(",")
}
