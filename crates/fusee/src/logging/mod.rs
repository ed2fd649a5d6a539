//! Logs, on standard error, which may take nothing: then lines are missing ([`fusee_cli::stderr`]), and nothing else.
//! Of one kind only so many are logged ([`limit`]). A server that has lost a part of itself ends ([`panics`]).
//!
//! Servers tell what they do (`info`), other commands only what goes wrong (`warn`), and the
//! simulator nothing, since things go wrong there all the time. `-v` shows more, `RUST_LOG` decides
//! if it is set. The filter of a server is one of its settings, and may change while it runs.

pub mod limit;
pub mod panics;

use std::io::IsTerminal;
use std::str::FromStr;
use std::sync::OnceLock;
use std::time::Duration;

use fusee_cli::stderr;
use serde::{Deserialize, Deserializer, Serialize};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// A server that ends waits so long for its last words to be read.
const PATIENCE: Duration = Duration::from_secs(1);

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

/// Directives of what is logged, as `RUST_LOG` has them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Filter(String);

impl Filter {
    /// What a server logs that was started with `-v` so many times.
    pub fn of_server(verbose: u8) -> Filter {
        Filter(usual(verbose, Usual::Everything))
    }
}

impl FromStr for Filter {
    type Err = String;

    fn from_str(text: &str) -> Result<Filter, String> {
        match EnvFilter::try_new(text) {
            Ok(_) => Ok(Filter(text.to_owned())),
            Err(error) => Err(format!(
                "`{text}` is no filter of a log: {error}; write it like `debug`, or `warn,fusee_master=debug`"
            )),
        }
    }
}

impl<'de> Deserialize<'de> for Filter {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Filter, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Changes the filter of this process.
type Set = Box<dyn Fn(EnvFilter) + Send + Sync>;

static SET: OnceLock<Set> = OnceLock::new();

/// Logs what this filter lets through from now on.
pub fn set(filter: Option<&Filter>) {
    if let (Some(set), Some(Filter(directives))) = (SET.get(), filter) {
        set(filter_of(directives));
    }
}

/// Starts to log. A server (`serves`) does not wait for a reader that stands still; a command does, as programs in a
/// terminal do.
pub fn start(verbose: u8, usual_log: Usual, serves: bool) {
    if serves {
        stderr::start(Some(PATIENCE), Some(|| limit::tell(false)))
    } else {
        stderr::start(None, None)
    }
    let filter = match std::env::var("RUST_LOG") {
        Ok(directives) if !directives.is_empty() => filter_of(&directives),
        _ => EnvFilter::new(usual(verbose, usual_log)),
    };
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| stderr::Log)
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
    subscriber.finish().with(limit::Limit).init();
}

/// Says what is left to say, at the end of the process.
pub fn end() {
    limit::tell(true);
    stderr::flush();
}

/// What these directives let through. The library of control messages calls every question an error that was not
/// answered in time, and whoever asked knows better: it says so only if the directives name it.
fn filter_of(directives: &str) -> EnvFilter {
    EnvFilter::new(format!("{QUIET},{directives}"))
}

const QUIET: &str = "tarpc=off";

/// The directives, unless somebody says others.
fn usual(verbose: u8, usual: Usual) -> String {
    let level = match (verbose, usual) {
        (0, Usual::Nothing) => "off",
        (0, Usual::Problems) | (1, Usual::Nothing) => "warn",
        (0, Usual::Everything) | (1, Usual::Problems) => "info",
        (1, Usual::Everything) | (2, Usual::Problems) => "debug",
        _ => "trace",
    };
    // The libraries beneath tell a lot; what they do is of interest only when asked for.
    format!("warn,{QUIET},{}", crates(level))
}

fn crates(level: &str) -> String {
    let ours = ["", "_client", "_control", "_fabric", "_master", "_memory_node"];
    ours.map(|name| format!("fusee{name}={level}")).join(",")
}
