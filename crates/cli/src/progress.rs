//! Progress of long work on a standard error that is no terminal: one line from time to time. On a terminal there is a
//! progress bar instead.

use std::io::{IsTerminal, stderr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time from the beginning of a long task to its first progress line, and interval between two progress lines.
const EVERY: Duration = Duration::from_secs(15);

/// The progress lines of one long task.
#[derive(Debug)]
pub struct ProgressLines {
    begun: Instant,
    latest: Mutex<Instant>,
    every: Duration,
    is_wanted: bool,
}

impl ProgressLines {
    /// Begins the time of a long task, which later progress lines report.
    pub fn begin() -> ProgressLines {
        ProgressLines::each(EVERY, !stderr().is_terminal())
    }

    fn each(every: Duration, is_wanted: bool) -> ProgressLines {
        let now = Instant::now();
        ProgressLines { begun: now, latest: Mutex::new(now), every, is_wanted }
    }

    /// Writes the progress, if a line is due.
    pub fn tell(&self, how_far: impl FnOnce() -> String) {
        if let Some(seconds) = self.take_due_line(Instant::now()) {
            crate::stderr::tell(&format!("{} after {seconds} s", how_far()));
        }
    }

    /// Returns the seconds since the beginning of the work, if a line is due.
    fn take_due_line(&self, now: Instant) -> Option<u64> {
        if !self.is_wanted {
            return None;
        }
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        if now.saturating_duration_since(*latest) < self.every {
            return None;
        }
        *latest = now;
        Some(now.saturating_duration_since(self.begun).as_secs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_at_a_bounded_rate_and_to_no_terminal() {
        let lines = ProgressLines::each(Duration::from_secs(15), true);
        let after = |ms: u64| lines.begun + Duration::from_millis(ms);
        let told: Vec<u64> =
            (0..100_000).step_by(10).filter_map(|ms| lines.take_due_line(after(ms))).collect();
        assert_eq!(told, [15, 30, 45, 60, 75, 90]);
        let quiet = ProgressLines::each(Duration::ZERO, false);
        assert_eq!(quiet.take_due_line(quiet.begun + Duration::from_secs(60)), None);
    }
}
