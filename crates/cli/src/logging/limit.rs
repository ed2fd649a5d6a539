//! Limits on similar log lines, so that strangers and broken peers cannot fill the log.
//!
//! Lines of one *kind* come from one place of the code, and their texts differ only in numbers. Of each kind `BURST`
//! lines are logged at once, and then one every `REFILL`. Further lines are omitted and counted. The counts are
//! logged once a minute, by kind, and at the end of the process. Lines of the levels `debug` and `trace` are never
//! omitted.
//!
//! The number of kinds is bounded too. Beyond the bound, all lines from one place of the code are one kind.

// Promise SEC-15

use std::collections::HashMap;
use std::fmt::{self, Debug};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::quantity::count_with_noun;
use crate::stderr;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Number of lines of one [kind](LogLineKind) that are logged in immediate succession.
const BURST: u32 = 32;
/// Time after which one more line of one [kind](LogLineKind) is logged.
const REFILL: Duration = Duration::from_secs(10);
/// Interval between two reports of omitted lines.
const TOLD_EVERY: Duration = Duration::from_secs(60);
/// Maximum number of kinds of lines that are limited separately.
const MOST_KINDS: usize = 256;
/// Number of characters of an omitted line that a report of omitted lines shows at most.
const MOST_CHARS: usize = 120;

/// Number of lines of all kinds that were omitted so far.
static LEFT_OUT: AtomicU64 = AtomicU64::new(0);
static KINDS: LazyLock<Mutex<LogLineKinds>> = LazyLock::new(Mutex::default);
/// Random seed of the hashes. Without it, a stranger whose text is part of a line could choose the line's kind.
static SEED: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// Returns the number of lines that were omitted so far.
pub fn omitted_lines() -> u64 {
    LEFT_OUT.load(Ordering::Relaxed)
}

/// Reports kinds whose omitted lines have not been reported for a minute. At the `end` of the process, reports all
/// kinds.
pub fn tell(end: bool) {
    let told = kinds().take_omitted(Instant::now(), end);
    for (level, text) in told {
        stderr::notice(level.as_str(), &text);
    }
}

fn kinds() -> MutexGuard<'static, LogLineKinds> {
    // No code that runs under this lock panics half-way.
    KINDS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A layer that logs events, except when there are too many of a kind.
pub struct LogLimiter;

impl<S: Subscriber> Layer<S> for LogLimiter {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        if *metadata.level() > Level::INFO {
            return true;
        }
        let mut sense = DigitlessHasher(SEED.build_hasher());
        event.record(&mut MessageVisitor(&mut sense));
        let kind =
            LogLineKind { place: SEED.hash_one(metadata.callsite()), text: sense.0.finish() };
        let now = Instant::now();
        let Some(first) = kinds().count_omitted(kind, now).map(|bucket| bucket.left_out == 1)
        else {
            return true;
        };
        LEFT_OUT.fetch_add(1, Ordering::Relaxed);
        if first {
            // The lock is not held here, because formatting a value can log another line.
            let mut text = LogExcerpt(String::new());
            event.record(&mut MessageVisitor(&mut text));
            kinds().describe(kind, *metadata.level(), text.0);
        }
        false
    }
}

/// Lines from one place of the code with the same text, except for numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct LogLineKind {
    place: u64,
    text: u64,
}

#[derive(Default)]
struct LogLineKinds {
    buckets: HashMap<LogLineKind, LogBucket>,
}

struct LogBucket {
    /// Number of lines of the kind that are now allowed to be logged in immediate succession.
    left: u32,
    refilled: Instant,
    left_out: u64,
    /// Time of the first omitted line of the kind that is not reported yet.
    since: Instant,
    level: Level,
    /// Text of the first omitted line of the kind that is not reported yet.
    text: String,
}

impl LogBucket {
    fn refill(&mut self, now: Instant) {
        let periods = now.saturating_duration_since(self.refilled).as_secs() / REFILL.as_secs();
        let periods = u32::try_from(periods).unwrap_or(u32::MAX).min(BURST);
        if periods > 0 {
            (self.left, self.refilled) = ((self.left + periods).min(BURST), now);
        }
    }

    /// Returns whether the bucket has the state of a new one.
    fn is_idle(&self) -> bool {
        self.left == BURST && self.left_out == 0
    }
}

impl LogLineKinds {
    /// Returns the kind whose bucket is used for lines of this kind: the kind itself, or, if there are too many kinds,
    /// the kind of all further lines from the same place of the code.
    fn counts_as(&self, kind: LogLineKind) -> LogLineKind {
        if self.buckets.len() >= MOST_KINDS && !self.buckets.contains_key(&kind) {
            // The code has few places that log, so this adds few kinds.
            LogLineKind { text: 0, ..kind }
        } else {
            kind
        }
    }

    /// Counts a line. Returns the line's bucket if the line has to be omitted, and `None` if it has to be logged.
    fn count_omitted(&mut self, kind: LogLineKind, now: Instant) -> Option<&mut LogBucket> {
        if self.counts_as(kind) != kind {
            self.buckets.values_mut().for_each(|bucket| bucket.refill(now));
            self.buckets.retain(|_, bucket| !bucket.is_idle());
        }
        let bucket = self.buckets.entry(self.counts_as(kind)).or_insert_with(|| LogBucket {
            left: BURST,
            refilled: now,
            left_out: 0,
            since: now,
            level: Level::WARN,
            text: String::new(),
        });
        bucket.refill(now);
        if let Some(left) = bucket.left.checked_sub(1) {
            bucket.left = left;
            return None;
        }
        if bucket.left_out == 0 {
            bucket.since = now;
        }
        bucket.left_out += 1;
        Some(bucket)
    }

    /// Records the text of the first omitted line of a kind, for the report.
    fn describe(&mut self, kind: LogLineKind, level: Level, text: String) {
        if let Some(bucket) = self.buckets.get_mut(&self.counts_as(kind)) {
            (bucket.level, bucket.text) = (level, text);
        }
    }

    fn take_omitted(&mut self, now: Instant, all: bool) -> Vec<(Level, String)> {
        let is_due = |bucket: &LogBucket| {
            bucket.left_out > 0
                && (all || now.saturating_duration_since(bucket.since) >= TOLD_EVERY)
        };
        let due = self.buckets.values_mut().filter(|bucket| is_due(bucket));
        due.map(|bucket| {
            let lines = std::mem::take(&mut bucket.left_out);
            let text = std::mem::take(&mut bucket.text);
            let seconds = now.saturating_duration_since(bucket.since).as_secs().max(1);
            let more = count_with_noun(lines, "more line");
            (bucket.level, format!("left out in {seconds} s: {more} like this one: {text}"))
        })
        .collect()
    }
}

/// Writes the message of an event, without its fields.
struct MessageVisitor<'a, W>(&'a mut W);

impl<W: fmt::Write> Visit for MessageVisitor<'_, W> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            // A write to these types cannot fail.
            let _written = write!(self.0, "{value:?}");
        }
    }
}

/// A hasher of text that leaves out digits.
struct DigitlessHasher<H>(H);

impl<H: Hasher> fmt::Write for DigitlessHasher<H> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // Bytes are hashed one by one, so that the hash does not depend on how the text is split.
        text.bytes().filter(|byte| !byte.is_ascii_digit()).for_each(|byte| self.0.write_u8(byte));
        Ok(())
    }
}

/// The beginning of a text, without line breaks.
struct LogExcerpt(String);

impl fmt::Write for LogExcerpt {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let left = MOST_CHARS.saturating_sub(self.0.len());
        let printable = |c: char| if c.is_control() { ' ' } else { c };
        self.0.extend(text.chars().take(left).map(printable));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    fn kind(text: u64) -> LogLineKind {
        LogLineKind { place: 1, text }
    }

    #[test]
    fn of_each_kind_a_few_are_logged_and_the_others_counted() {
        let mut kinds = LogLineKinds::default();
        let begun = Instant::now();
        let mut log = |kind, after: Duration| kinds.count_omitted(kind, begun + after).is_none();
        let logged = (0..1000).filter(|_| log(kind(1), Duration::ZERO)).count();
        assert_eq!(logged as u32, BURST);
        // Another kind is not affected. This kind gets one more line after `REFILL`.
        assert!(log(kind(2), Duration::ZERO));
        assert_eq!((log(kind(1), REFILL), log(kind(1), REFILL)), (true, false));
        let told = |kinds: &mut LogLineKinds, after, end| kinds.take_omitted(begun + after, end);
        assert_eq!(told(&mut kinds, Duration::from_secs(30), false), []);
        let all = told(&mut kinds, TOLD_EVERY, false);
        let [(_, text)] = &all[..] else { panic!("{all:?}") };
        assert!(text.starts_with("left out in 60 s: 969 more lines"), "{text}");
        assert_eq!(told(&mut kinds, TOLD_EVERY * 2, true), []);
    }

    #[test]
    fn however_many_kinds_there_are_they_are_bounded() {
        let mut kinds = LogLineKinds::default();
        let now = Instant::now();
        let logged = (1..100_000).filter(|n| kinds.count_omitted(kind(*n), now).is_none()).count();
        assert!(kinds.buckets.len() <= MOST_KINDS + 1);
        assert!(logged <= MOST_KINDS + BURST as usize, "{logged}");
        // Kinds of lines without omitted lines to report make room for other kinds after some time.
        kinds.take_omitted(now, true);
        kinds.count_omitted(kind(100_000), now + REFILL * BURST);
        assert_eq!(kinds.buckets.len(), 1);
    }

    #[test]
    fn texts_that_differ_in_numbers_are_of_one_kind() {
        let seed = RandomState::new();
        let sense = |text: &str| {
            let mut sense = DigitlessHasher(seed.build_hasher());
            sense.write_str(text).unwrap();
            sense.0.finish()
        };
        assert_eq!(sense("mn3 is lost"), sense("mn12 is lost"));
        assert_ne!(sense("mn3 is lost"), sense("mn3 is drained"));
        let mut text = LogExcerpt(String::new());
        text.write_str(&"a\nb".repeat(100)).unwrap();
        assert_eq!((text.0.len(), &text.0[..5]), (MOST_CHARS, "a ba "));
    }
}
