//! Standard error, which sometimes takes no data: its disk is full, or its reader has ended or stalled.
//!
//! Lines of the log and messages of commands go through one bounded queue, in order, and a thread of its own writes
//! them. So no other thread waits for standard error, and a line that cannot be written is no failure of the code that
//! logged it. Such lines are counted, and their number is written before the next line that can be written.
//!
//! Lines of the log never wait: if the queue is full, they are dropped. A message waits until it is written; in a
//! server no longer than the server's patience. Before [`start`], or if the thread cannot start, everything is written
//! at once.

// Promise SEC-14

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Write, stderr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// Largest number of bytes in the queue.
const MOST_BYTES: usize = 1 << 20;
/// Bytes of the limit [`MOST_BYTES`] that each line in the queue takes in addition to its text.
const LINE_BYTES: usize = 64;
/// Largest length in bytes of a line; longer lines are cut.
const MOST_LINE_BYTES: usize = 64 << 10;
/// Pause after a non-blocking standard error takes no data.
const PAUSE: Duration = Duration::from_millis(10);
/// Interval between two calls of the function `each` that [`start`] gets.
const PERIOD: Duration = Duration::from_secs(10);

static QUEUE: OnceLock<StderrQueue> = OnceLock::new();
/// Number of lines that standard error did not take.
static MISSING: AtomicU64 = AtomicU64::new(0);

#[derive(Debug)]
struct StderrQueue {
    state: Mutex<StderrQueueState>,
    changed: Condvar,
    /// Longest wait for the queue to be written; `None` for no limit.
    patience: Option<Duration>,
}

#[derive(Debug, Default)]
struct StderrQueueState {
    lines: VecDeque<StderrLine>,
    bytes: usize,
    is_writing: bool,
    /// Number of lines that were dropped after the last line in the queue was queued.
    missing: u64,
    /// Whether standard error took the last write.
    takes: bool,
}

/// A line to write, and the number of missing lines before it.
#[derive(Debug)]
struct StderrLine {
    missing: u64,
    text: Vec<u8>,
}

impl StderrQueueState {
    /// Queues a line of the log, or drops it if the queue has no room.
    fn push(&mut self, text: &[u8]) {
        if self.bytes + text.len().min(MOST_LINE_BYTES) + LINE_BYTES > MOST_BYTES {
            self.missing += 1;
            MISSING.fetch_add(1, Ordering::Relaxed);
        } else if text.len() > MOST_LINE_BYTES {
            self.push_message([&text[..MOST_LINE_BYTES - 1], b"\n"].concat());
        } else {
            self.push_message(text.to_vec());
        }
    }

    /// Queues a message, even beyond the limit. The thread that sends a message waits until it is written, so the queue
    /// has at most one message for each thread.
    fn push_message(&mut self, text: Vec<u8>) {
        self.bytes += text.len() + LINE_BYTES;
        let missing = std::mem::take(&mut self.missing);
        self.lines.push_back(StderrLine { missing, text });
    }

    /// Returns what to write next: a line, or a notice of missing lines without a line.
    fn next(&mut self) -> Option<StderrLine> {
        let line = self.lines.pop_front();
        self.bytes -= line.as_ref().map_or(0, |line| line.text.len() + LINE_BYTES);
        let alone = self.takes && self.missing > 0;
        line.or_else(|| {
            alone.then(|| StderrLine {
                missing: std::mem::take(&mut self.missing),
                text: Vec::new(),
            })
        })
    }

    /// Records that a line could not be written.
    fn record_failed_line(&mut self, line: &StderrLine) {
        let lost = u64::from(!line.text.is_empty());
        MISSING.fetch_add(lost, Ordering::Relaxed);
        let missing = self.lines.front_mut().map_or(&mut self.missing, |next| &mut next.missing);
        *missing += line.missing + lost;
    }
}

impl StderrQueue {
    fn new(patience: Option<Duration>) -> StderrQueue {
        let state = StderrQueueState { takes: true, ..StderrQueueState::default() };
        StderrQueue { state: Mutex::new(state), changed: Condvar::new(), patience }
    }

    fn lock(&self) -> MutexGuard<'_, StderrQueueState> {
        // While a thread holds the lock and has changed only a part of the state, it does not panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes queued lines for ever.
    fn serve(&self, out: &mut impl Write, each: Option<fn()>) {
        let mut due = Instant::now() + PERIOD;
        loop {
            let mut state = self.lock();
            if let Some(line) = state.next() {
                state.is_writing = true;
                drop(state);
                let is_written = write_line(out, &line).is_ok();
                let mut state = self.lock();
                (state.is_writing, state.takes) = (false, is_written);
                if !is_written {
                    state.record_failed_line(&line);
                }
                self.changed.notify_all();
                continue;
            }
            let Some(each) = each else {
                drop(self.changed.wait(state));
                continue;
            };
            let left = due.saturating_duration_since(Instant::now());
            drop(self.changed.wait_timeout(state, left));
            if Instant::now() >= due {
                due = Instant::now() + PERIOD;
                // A pause has passed, so standard error possibly takes data again.
                self.lock().takes = true;
                each();
            }
        }
    }

    fn flush(&self) {
        let until = self.patience.map(|patience| Instant::now() + patience);
        let mut state = self.lock();
        while state.is_writing || !state.lines.is_empty() {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return;
            }
            let wait = left.unwrap_or(PERIOD);
            state =
                self.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Writes a line. If lines are missing before it, first writes a notice with their number.
fn write_line(out: &mut impl Write, StderrLine { missing, text }: &StderrLine) -> io::Result<()> {
    if *missing > 0 {
        let what = if *missing == 1 { "1 line is" } else { &format!("{missing} lines are") };
        let said = format!("{what} missing here: standard error did not take more");
        // The notice begins with a line break, because the line before it has possibly been written in part.
        write_all(out, format!("\n{}", notice_line("WARN", &said)).as_bytes())?;
    }
    write_all(out, text)
}

fn write_all(out: &mut impl Write, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match out.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(error) => match error.kind() {
                ErrorKind::Interrupted => {}
                ErrorKind::WouldBlock => thread::sleep(PAUSE),
                _ => return Err(error),
            },
        }
    }
    Ok(())
}

/// Returns a line in the format of the log.
fn notice_line(level: &str, text: &str) -> String {
    let now = humantime::format_rfc3339_micros(SystemTime::now());
    format!("{now} {level:>5} {text}\n")
}

/// Starts the thread that writes. `patience` limits how long a message waits; `None` means no limit. The thread calls
/// `each` every ten seconds.
pub fn start(patience: Option<Duration>, each: Option<fn()>) {
    let serve = move || QUEUE.wait().serve(&mut stderr(), each);
    // If the thread cannot start, everything is still written at once.
    if thread::Builder::new().name("fusee-log".into()).spawn(serve).is_ok() {
        QUEUE.get_or_init(|| StderrQueue::new(patience));
    }
}

/// Queues a line of the log without waiting until it is written.
pub fn push(text: &[u8]) {
    queue(text, |state| state.push(text));
}

/// Writes text, and waits until it is written, or until the patience has passed.
pub fn text(text: &str) {
    queue(text.as_bytes(), |state| state.push_message(text.into()));
    flush();
}

/// Queues text, or writes it at once if there is no queue.
fn queue(text: &[u8], put: impl FnOnce(&mut StderrQueueState)) {
    match QUEUE.get() {
        Some(queue) => {
            put(&mut queue.lock());
            queue.changed.notify_all();
        }
        None => drop(write_all(&mut stderr(), text)),
    }
}

/// Writes a line, and waits until it is written, or until the patience has passed.
pub fn tell(line: &str) {
    text(&format!("{line}\n"));
}

/// Logs a line about the log itself.
pub fn notice(level: &str, text: &str) {
    push(notice_line(level, text).as_bytes());
}

/// Waits until the queue is written, or until the patience has passed.
pub fn flush() {
    if let Some(queue) = QUEUE.get() {
        queue.flush();
    }
}

/// Returns the number of lines that are missing because standard error did not take them.
pub fn missing() -> u64 {
    MISSING.load(Ordering::Relaxed)
}

/// The writer for the log. Each call of `write` gets one line.
#[derive(Clone, Copy, Debug, Default)]
pub struct StderrLog;

impl Write for StderrLog {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{self, Receiver, Sender, channel};

    use super::*;

    /// A writer that fails, blocks, or takes all bytes. Before each write it waits for an order that says what to do.
    struct ScriptedStderr {
        orders: Receiver<bool>,
        taken: Sender<Vec<u8>>,
    }

    impl Write for ScriptedStderr {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            // If the orders have ended, the writer takes all bytes, because the test is over.
            match self.orders.recv() {
                Ok(true) | Err(mpsc::RecvError) => drop(self.taken.send(bytes.to_vec())),
                Ok(false) => return Err(ErrorKind::StorageFull.into()),
            }
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn rig() -> (&'static StderrQueue, Sender<bool>, Receiver<Vec<u8>>) {
        let queue: &'static StderrQueue =
            Box::leak(Box::new(StderrQueue::new(Some(Duration::from_secs(5)))));
        let ((order, orders), (taken, took)) = (channel(), channel());
        thread::spawn(move || queue.serve(&mut ScriptedStderr { orders, taken }, None));
        (queue, order, took)
    }

    fn push(queue: &StderrQueue, line: &str) {
        queue.lock().push(line.as_bytes());
        queue.changed.notify_all();
    }

    fn next(took: &Receiver<Vec<u8>>) -> String {
        String::from_utf8(took.recv_timeout(Duration::from_secs(5)).unwrap()).unwrap()
    }

    #[test]
    fn what_cannot_be_written_is_counted_and_told_with_the_next_line() {
        let (queue, order, took) = rig();
        for takes in [true, false, false, true, true] {
            order.send(takes).unwrap();
        }
        for line in ["a\n", "b\n", "c\n"] {
            push(queue, line);
        }
        queue.flush();
        assert_eq!(next(&took), "a\n");
        push(queue, "d\n");
        let told = next(&took);
        assert!(
            told.starts_with('\n') && told.contains(" WARN 2 lines are missing here"),
            "{told}"
        );
        assert_eq!(next(&took), "d\n");
    }

    #[test]
    fn a_reader_that_stands_still_costs_a_bounded_part_and_no_time() {
        let (queue, order, took) = rig();
        let line = "x".repeat(1000);
        let pushed = 10 * MOST_BYTES / line.len();
        let begun = Instant::now();
        (0..pushed).for_each(|_| push(queue, &line));
        assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
        assert!(queue.lock().bytes <= MOST_BYTES);
        // When the reader continues, it gets all queued lines. It also gets the number of missing lines, even if no
        // further line is logged.
        drop(order);
        let mut lines = 0;
        while lines < pushed {
            let text = next(&took);
            lines += if text == line { 1 } else { missing_in(&text) };
        }
        assert_eq!(lines, pushed);
    }

    #[test]
    fn a_message_has_room_behind_a_full_queue_and_a_line_has_its_end() {
        let (queue, order, took) = rig();
        (0..2 * MOST_BYTES / 1000).for_each(|_| push(queue, &"x".repeat(1000)));
        queue.lock().push_message(b"a panic\n".to_vec());
        drop(order);
        while next(&took) != "a panic\n" {}
        push(queue, &format!("{}\n", "y".repeat(2 * MOST_LINE_BYTES)));
        let line = next(&took);
        assert!(line.len() == MOST_LINE_BYTES && line.ends_with("y\n"));
    }

    /// Returns the number of missing lines in a notice.
    fn missing_in(notice: &str) -> usize {
        let count = notice
            .split_once(" WARN ")
            .and_then(|(_, text)| text.split_once(" lines are missing here")?.0.parse().ok());
        count.unwrap_or_else(|| panic!("{notice}"))
    }

    #[test]
    fn whoever_waits_loses_patience() {
        let queue: &'static StderrQueue =
            Box::leak(Box::new(StderrQueue::new(Some(Duration::from_millis(50)))));
        push(queue, "nobody writes it");
        queue.flush();
        assert_eq!(queue.lock().lines.len(), 1);
    }
}
