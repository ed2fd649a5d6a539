//! Commands that work on all pairs of a cluster: `fusee export`, `import`, `restore`, `keys`, `count`.

pub mod export;
mod export_directory;
pub mod import;
pub mod keys;
pub mod restore;

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant, UNIX_EPOCH};

use fusee_cli::quantity::{ByteSize, count_with_noun};
use fusee_cli::stderr;

/// Interval between two updates of the progress.
const PERIOD: Duration = Duration::from_millis(500);

/// Progress on standard error.
struct PairProgress {
    is_shown: bool,
    begun: Instant,
    last: Option<Instant>,
}

impl PairProgress {
    fn new(is_quiet: bool) -> PairProgress {
        let is_shown = !is_quiet && io::stderr().is_terminal();
        PairProgress { is_shown, begun: Instant::now(), last: None }
    }

    /// Shows the progress if an update is due. `done` is the share of the index that was read, if it is known.
    fn show(&mut self, verb: &str, pairs: u64, bytes: u64, done: Option<f64>) {
        let is_due = self.last.is_none_or(|last| last.elapsed() >= PERIOD);
        if !self.is_shown || !is_due {
            return;
        }
        self.last = Some(Instant::now());
        let seconds = self.begun.elapsed().as_secs_f64().max(1e-9);
        let rate = pairs as f64 / seconds;
        let done =
            done.map_or(String::new(), |done| format!(", {:.0} % of the index", 100.0 * done));
        let pairs = count_with_noun(pairs, "pair");
        let bytes = ByteSize(bytes);
        stderr::text(&format!("\r{pairs} {verb}, {bytes}, {rate:.0} a second{done}   "));
    }

    fn end(&self) {
        if self.last.is_some() {
            stderr::tell("");
        }
    }

    fn seconds(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }
}

/// Formats a time in seconds since 1970. Times from files can have any value.
fn when(seconds: u64) -> String {
    /// The last second of the year 9999.
    const LAST: u64 = 253_402_300_799;
    let time = UNIX_EPOCH + Duration::from_secs(seconds.min(LAST));
    humantime::format_rfc3339_seconds(time).to_string()
}

/// Returns a number of pairs per second.
fn rate(pairs: u64, seconds: f64) -> f64 {
    pairs as f64 / seconds.max(1e-9)
}
