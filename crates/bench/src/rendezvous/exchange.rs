//! The thread that writes a driver's own status page and reads the status pages of other drivers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fusee_cli::failure::Failure;
use fusee_cli::interrupt;

use super::SILENCE;
use super::keys::{DriverStatus, RendezvousEnd, RendezvousKeys};
use crate::clock::monotonic_ns;

/// The longest time between two writes of a driver's status page.
const BEAT: Duration = Duration::from_millis(250);
/// The interval at which the status pages of other drivers are read.
const LOOK: Duration = Duration::from_millis(50);
/// The interval at which the status pages of other drivers are read while this driver waits for a step to begin.
const LOOK_WHILE_WAITING: Duration = Duration::from_micros(500);

/// The longest time that one read of an unchanged status page adds to the silence of the status page's driver.
const LONGEST_LOOK: Duration = Duration::from_millis(500);

/// The status page of another driver, as this driver last read it.
struct ObservedStatus {
    page: DriverStatus,
    /// The time for which the status page has not changed, as far as this driver was running and reading it.
    silent: Duration,
    looked: Instant,
}

#[derive(Default)]
struct ExchangeState {
    own: DriverStatus,
    /// Whether this driver's own state has changed since it was last written to the status page.
    is_news: bool,
    /// The status pages of all known drivers, by driver number; this driver's own status page is among them.
    seats: Vec<Option<ObservedStatus>>,
    /// The last step for which this driver is ready.
    ready: u32,
    /// For each step that has begun, a time by the monotonic clock when the step had not yet begun.
    begun: Vec<u64>,
    /// The reason why the meeting cannot go on.
    failure: Option<String>,
    interrupted: Option<usize>,
    is_over: bool,
}

struct SharedExchangeState {
    state: Mutex<ExchangeState>,
    changed: Condvar,
    ended: Arc<AtomicBool>,
}

impl ObservedStatus {
    fn now(page: DriverStatus) -> ObservedStatus {
        ObservedStatus { page, silent: Duration::ZERO, looked: Instant::now() }
    }

    /// Stores the status page that was just read; returns how long that status page has been unchanged.
    fn look(&mut self, page: DriverStatus) -> Duration {
        // A process that does not run reads no status pages. Therefore at most [`LONGEST_LOOK`] between two reads
        // counts as silence of the other driver.
        let since = self.looked.elapsed().min(LONGEST_LOOK);
        let is_same = page.beat == self.page.beat;
        self.silent = if is_same { self.silent + since } else { Duration::ZERO };
        (self.page, self.looked) = (page, Instant::now());
        self.silent
    }
}

/// The handle of the thread, and the state that is shared with it.
pub struct StatusExchange {
    shared: Arc<SharedExchangeState>,
    thread: Option<JoinHandle<()>>,
}

impl SharedExchangeState {
    fn state(&self) -> MutexGuard<'_, ExchangeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fail(&self, why: String) {
        self.state().failure.get_or_insert(why);
        self.end();
    }

    fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
        self.changed.notify_all();
    }
}

impl StatusExchange {
    /// Starts the thread.
    pub fn start(
        book: RendezvousKeys,
        number: usize,
        drivers: usize,
        own: DriverStatus,
        ended: Arc<AtomicBool>,
    ) -> StatusExchange {
        let mut seats: Vec<Option<ObservedStatus>> = (0..drivers).map(|_| None).collect();
        seats[number] = Some(ObservedStatus::now(own.clone()));
        let state =
            Mutex::new(ExchangeState { own, seats, is_news: true, ..ExchangeState::default() });
        let shared = Arc::new(SharedExchangeState { state, changed: Condvar::new(), ended });
        let not_yet_ns = monotonic_ns();
        let mut speaker = StatusExchangeThread {
            shared: shared.clone(),
            book,
            number,
            drivers,
            not_yet_ns,
            attempt: None,
        };
        StatusExchange { shared, thread: Some(std::thread::spawn(move || speaker.run())) }
    }

    /// Waits until all drivers are ready for this step, or until the run has ended.
    pub fn begin(&self, step: u32) {
        let mut state = self.shared.state();
        state.ready = step;
        self.shared.changed.notify_all();
        while state.begun.len() < step as usize && !self.shared.ended.load(Ordering::Relaxed) {
            // The wait has a time limit, because the end of the run is possibly signalled without this lock.
            let waited = self.shared.changed.wait_timeout(state, LOOK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Returns a time when the step had not yet begun, by the monotonic clock; `None` if the step has not begun.
    pub fn last_unbegun_ns(&self, step: u32) -> Option<u64> {
        self.shared.state().begun.get(step as usize - 1).copied()
    }

    /// Returns the status pages of the drivers that have joined, with the status page of this driver. The first driver
    /// knows all status pages; each other driver knows its own status page and the first driver's.
    pub fn pages(&self) -> Vec<Option<DriverStatus>> {
        let state = self.shared.state();
        state.seats.iter().map(|seen| seen.as_ref().map(|seen| seen.page.clone())).collect()
    }

    /// Returns the reason why the meeting cannot go on.
    pub fn failure(&self) -> Option<String> {
        self.shared.state().failure.clone()
    }

    /// Returns the driver whose user has ended the run, if there is one.
    pub fn interrupted(&self) -> Option<usize> {
        self.shared.state().interrupted
    }

    /// Returns how the first driver has ended the meeting, if it has.
    pub fn first_end(&self) -> Option<RendezvousEnd> {
        let state = self.shared.state();
        state.seats.first()?.as_ref()?.page.end.clone()
    }

    /// Tells the other drivers how the meeting ends.
    pub fn end(&self, end: RendezvousEnd) {
        let mut state = self.shared.state();
        state.own.end = Some(end);
        state.is_news = true;
        self.shared.changed.notify_all();
    }

    /// Stops the thread.
    pub fn stop(&self) {
        self.shared.state().is_over = true;
        self.shared.changed.notify_all();
    }
}

impl Drop for StatusExchange {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            // An error means that the thread has panicked, which was reported then.
            let _ = thread.join();
        }
    }
}

/// The state that only the thread uses.
struct StatusExchangeThread {
    shared: Arc<SharedExchangeState>,
    book: RendezvousKeys,
    number: usize,
    drivers: usize,
    /// A time when the next step had not yet begun, by the monotonic clock.
    not_yet_ns: u64,
    /// In the first driver: the last step whose begin it tried to write to its status page, and the time of its first
    /// attempt.
    attempt: Option<(u32, u64)>,
}

impl StatusExchangeThread {
    fn run(&mut self) {
        let mut written = None;
        let mut trouble: Option<Instant> = None;
        loop {
            let done = self.write(&mut written).and_then(|()| self.read());
            match done {
                Ok(()) => trouble = None,
                // The store can fail for a time while it recovers from a fault of its own, so errors are tolerated for
                // [`SILENCE`].
                Err(_) if trouble.get_or_insert_with(Instant::now).elapsed() < SILENCE => {
                    self.shared.state().is_news = true;
                }
                Err(failure) => self.shared.fail(failure.to_string()),
            }
            let state = self.shared.state();
            if state.is_over {
                return;
            }
            let is_waiting = state.begun.len() < state.ready as usize;
            let pause = if is_waiting { LOOK_WHILE_WAITING } else { LOOK };
            if !state.is_news || trouble.is_some() {
                drop(self.shared.changed.wait_timeout(state, pause));
            }
        }
    }

    /// Writes this driver's status page if [`StatusExchangeThread::due_status`] returns a status page.
    fn write(&mut self, written: &mut Option<Instant>) -> Result<(), Failure> {
        let Some(page) = self.due_status(*written) else { return Ok(()) };
        let at_ns = monotonic_ns();
        if self.number == 0 && self.attempt.is_none_or(|(step, _)| step < page.step) {
            self.attempt = Some((page.step, at_ns));
        }
        if !self.book.write(self.number, &page)? {
            self.shared.fail("somebody has ended the meeting".to_owned());
        }
        *written = Some(Instant::now());
        if self.number == 0 {
            let not_yet_ns = self.attempt.map_or(at_ns, |(_, at_ns)| at_ns);
            self.begin(page.step, not_yet_ns);
            if self.book.open_id()? != Some(self.book.id()) {
                self.shared.fail("another driver has opened the meeting meanwhile".to_owned());
            }
        }
        Ok(())
    }

    /// Returns this driver's status page if it has changed, or was not written for [`BEAT`].
    fn due_status(&self, written: Option<Instant>) -> Option<DriverStatus> {
        let mut state = self.shared.state();
        let state = &mut *state;
        if interrupt::is_requested() && state.interrupted.is_none() {
            state.interrupted = Some(self.number);
            self.shared.end();
        }
        let own = &mut state.own;
        let mut is_news = state.is_news || own.interrupted != state.interrupted;
        own.interrupted = state.interrupted;
        let is_ready = |seen: &Option<ObservedStatus>| {
            seen.as_ref().is_some_and(|s| s.page.step >= state.ready)
        };
        let may_begin = self.number != 0 || state.seats.iter().skip(1).all(is_ready);
        if state.ready > own.step && may_begin {
            own.step = state.ready;
            is_news = true;
        }
        if !is_news && written.is_some_and(|at| at.elapsed() < BEAT) {
            return None;
        }
        state.is_news = false;
        own.beat += 1;
        state.seats[self.number] = Some(ObservedStatus::now(own.clone()));
        Some(own.clone())
    }

    fn begin(&self, step: u32, not_yet_ns: u64) {
        let mut state = self.shared.state();
        while state.begun.len() < step as usize {
            state.begun.push(not_yet_ns);
            self.shared.changed.notify_all();
        }
    }

    /// Reads the status pages of other drivers: the first driver reads all, each other driver reads the first driver's.
    fn read(&mut self) -> Result<(), Failure> {
        let drivers = if self.number == 0 { 1..self.drivers } else { 0..1 };
        for driver in drivers {
            let asked_ns = monotonic_ns();
            match self.book.page(driver)? {
                Some(page) => self.note_status(driver, page, asked_ns),
                None => self.note_missing_status(driver),
            }
        }
        Ok(())
    }

    fn note_status(&mut self, driver: usize, page: DriverStatus, asked_ns: u64) {
        let name = format!("driver {driver} ({page})");
        if driver == 0 {
            self.begin(page.step, self.not_yet_ns);
            // When the status page was read, no later step had begun, because a step begins only when this driver is
            // ready for it.
            self.not_yet_ns = asked_ns;
        }
        let mut state = self.shared.state();
        if let Some(by) = page.interrupted
            && state.interrupted.is_none()
        {
            state.interrupted = Some(by);
            self.shared.end();
        }
        let end = page.end.clone();
        let seat = state.seats[driver].get_or_insert_with(|| ObservedStatus::now(page.clone()));
        let silent = seat.look(page);
        drop(state);
        match end {
            Some(RendezvousEnd::Failed(why)) if driver == 0 => self.shared.fail(why),
            Some(RendezvousEnd::Failed(why)) => self.shared.fail(format!("{name}: {why}")),
            Some(RendezvousEnd::Done(_)) => self.shared.end(),
            None if silent > SILENCE => {
                let seconds = SILENCE.as_secs();
                self.shared.fail(format!("{name} has not been heard for {seconds} s: it is dead"));
            }
            None => {}
        }
    }

    fn note_missing_status(&self, driver: usize) {
        let mut state = self.shared.state();
        let is_ending = state.own.end.is_some();
        let seat = &mut state.seats[driver];
        let Some(ObservedStatus { page, .. }) = seat else {
            drop(state);
            if driver == 0 {
                self.shared.fail("the first driver has ended the meeting".to_owned());
            }
            return;
        };
        let has_ended = page.end.is_some();
        let name = format!("driver {driver} ({page})");
        // The last status page of the first driver is kept, because it shows how the meeting has ended.
        if driver != 0 {
            *seat = None;
        }
        drop(state);
        if !is_ending && !has_ended {
            self.shared.fail(format!("{name} has left the meeting"));
        }
    }
}
