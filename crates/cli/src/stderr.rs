//! Standard error, which may take nothing: its disk is full, its reader has gone or stands still.
//!
//! Lines of the log and messages of commands go through one queue of bounded size, in order, and a thread of its
//! own writes them. So no other thread waits for standard error, and a line that cannot be written is no failure of
//! whoever has logged it: it is counted, and the next line that can be written says how many are missing.
//!
//! Logs never wait: where the queue is full they are left out. A message waits until it is written; in a server no
//! longer than its patience. Before [`start`], and where there is no thread, everything is written at once.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Write, stderr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// What may wait to be written.
const MOST_BYTES: usize = 1 << 20;
/// What a line in the queue costs beside its bytes.
const LINE_BYTES: usize = 64;
/// No line is longer.
const MOST_LINE_BYTES: usize = 64 << 10;
/// Where standard error does not block, and takes no more now.
const PAUSE: Duration = Duration::from_millis(10);
/// How often `each` of [`start`] is done.
const PERIOD: Duration = Duration::from_secs(10);

static QUEUE: OnceLock<Queue> = OnceLock::new();
/// Lines that standard error did not take.
static MISSING: AtomicU64 = AtomicU64::new(0);

#[derive(Debug)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    /// How long whoever waits does so; `None`: until it is written.
    patience: Option<Duration>,
}

#[derive(Debug, Default)]
struct State {
    lines: VecDeque<Line>,
    bytes: usize,
    is_writing: bool,
    /// Lines that are missing behind the last one in the queue.
    missing: u64,
    /// Whether standard error has taken what was written last.
    takes: bool,
}

/// What is written next, and how many lines are missing before it.
#[derive(Debug)]
struct Line {
    missing: u64,
    text: Vec<u8>,
}

impl State {
    /// A line of the log, which is left out where there is no room.
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

    /// A message, which has room: a thread that has one waits, so there are as many at most as threads.
    fn push_message(&mut self, text: Vec<u8>) {
        self.bytes += text.len() + LINE_BYTES;
        let missing = std::mem::take(&mut self.missing);
        self.lines.push_back(Line { missing, text });
    }

    /// What is to be written now: a line, or alone that some are missing.
    fn next(&mut self) -> Option<Line> {
        let line = self.lines.pop_front();
        self.bytes -= line.as_ref().map_or(0, |line| line.text.len() + LINE_BYTES);
        let alone = self.takes && self.missing > 0;
        line.or_else(|| {
            alone.then(|| Line { missing: std::mem::take(&mut self.missing), text: Vec::new() })
        })
    }

    /// Standard error has not taken a line.
    fn has_failed(&mut self, line: &Line) {
        let lost = u64::from(!line.text.is_empty());
        MISSING.fetch_add(lost, Ordering::Relaxed);
        let missing = self.lines.front_mut().map_or(&mut self.missing, |next| &mut next.missing);
        *missing += line.missing + lost;
    }
}

impl Queue {
    fn new(patience: Option<Duration>) -> Queue {
        let state = State { takes: true, ..State::default() };
        Queue { state: Mutex::new(state), changed: Condvar::new(), patience }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here panics half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes what comes, for ever.
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
                    state.has_failed(&line);
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
                // There may be room again.
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

/// Writes a line; before it, if lines are missing, how many.
fn write_line(out: &mut impl Write, Line { missing, text }: &Line) -> io::Result<()> {
    if *missing > 0 {
        let what = if *missing == 1 { "1 line is" } else { &format!("{missing} lines are") };
        let said = format!("{what} missing here: standard error did not take more");
        // The line before may have been written in part.
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

/// A line as the log has them.
fn notice_line(level: &str, text: &str) -> String {
    let now = humantime::format_rfc3339_micros(SystemTime::now());
    format!("{now} {level:>5} {text}\n")
}

/// From now on a thread writes. `patience`: how long messages wait to be written; `None`: as long as it takes. The
/// thread does `each` every ten seconds.
pub fn start(patience: Option<Duration>, each: Option<fn()>) {
    let serve = move || QUEUE.wait().serve(&mut stderr(), each);
    // Without a thread everything is written at once, as before.
    if thread::Builder::new().name("fusee-log".into()).spawn(serve).is_ok() {
        QUEUE.get_or_init(|| Queue::new(patience));
    }
}

/// Writes a line of the log as soon as it can be, and does not wait for that.
pub fn push(text: &[u8]) {
    queue(text, |state| state.push(text));
}

/// Writes text, as far as standard error takes it.
pub fn text(text: &str) {
    queue(text.as_bytes(), |state| state.push_message(text.into()));
    flush();
}

/// Puts text into the queue, or without one writes it at once.
fn queue(text: &[u8], put: impl FnOnce(&mut State)) {
    match QUEUE.get() {
        Some(queue) => {
            put(&mut queue.lock());
            queue.changed.notify_all();
        }
        None => drop(write_all(&mut stderr(), text)),
    }
}

/// Writes a line, as far as standard error takes it.
pub fn tell(line: &str) {
    text(&format!("{line}\n"));
}

/// Logs a line about the log itself.
pub fn notice(level: &str, text: &str) {
    push(notice_line(level, text).as_bytes());
}

/// Waits until all is written, as far as standard error takes it.
pub fn flush() {
    if let Some(queue) = QUEUE.get() {
        queue.flush();
    }
}

/// Lines that standard error did not take, so far.
pub fn missing() -> u64 {
    MISSING.load(Ordering::Relaxed)
}

/// Where the log is written to. One write is one line.
#[derive(Clone, Copy, Debug, Default)]
pub struct Log;

impl Write for Log {
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

    /// Takes nothing, waits, or takes all, as it is told before each write.
    struct Told {
        orders: Receiver<bool>,
        taken: Sender<Vec<u8>>,
    }

    impl Write for Told {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            // Nobody tells any more: the test has ended.
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

    fn rig() -> (&'static Queue, Sender<bool>, Receiver<Vec<u8>>) {
        let queue: &'static Queue = Box::leak(Box::new(Queue::new(Some(Duration::from_secs(5)))));
        let ((order, orders), (taken, took)) = (channel(), channel());
        thread::spawn(move || queue.serve(&mut Told { orders, taken }, None));
        (queue, order, took)
    }

    fn push(queue: &Queue, line: &str) {
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
        // It goes on: all that was kept comes, and how many lines are missing is told, though nothing else is logged.
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

    /// How many lines a notice says are missing.
    fn missing_in(notice: &str) -> usize {
        let count = notice
            .split_once(" WARN ")
            .and_then(|(_, text)| text.split_once(" lines are missing here")?.0.parse().ok());
        count.unwrap_or_else(|| panic!("{notice}"))
    }

    #[test]
    fn whoever_waits_loses_patience() {
        let queue: &'static Queue =
            Box::leak(Box::new(Queue::new(Some(Duration::from_millis(50)))));
        push(queue, "nobody writes it");
        queue.flush();
        assert_eq!(queue.lock().lines.len(), 1);
    }
}
