//! Drivers on several hosts, which meet in the store that they measure.
//!
//! The drivers need a place where exactly one of them opens a *meeting*, and where each driver sees what all others
//! have written. A linearizable store with INSERT is such a place. The master could be one too, but its protocol would
//! need a new version for something that is not part of a store.
//!
//! The *first* driver is the one that opens the meeting. Each driver has a *status page*: a value in the store that
//! shows the driver's state. A thread of each driver writes the driver's own status page and reads other status pages
//! ([`exchange`]): the first driver reads all status pages, and each other driver reads the first driver's status page.
//!
//! *Begin together.* When all drivers are *ready* for a step, the first driver writes on its status page that the step
//! has begun. The clocks of different hosts are not compared. Each driver notes, by its own clock, when it issued the
//! last read which showed that the step had not begun. Because the store is linearizable, the step had really not begun
//! at that time. The driver's *lateness* is the time from there to its own begin of the step: the driver began at most
//! that much later than the step. The begins of any two drivers differ at most by the largest lateness of all drivers.
//!
//! *End.* A driver is taken for dead if its status page has not changed for [`SILENCE`], by the clock of the driver
//! that reads the status page. Then the run has failed: the first driver writes this on its own status page, and all
//! other drivers leave. If the first driver is dead, each other driver notices that by itself. The user of any driver
//! can end the run early.

mod exchange;
mod join;
mod keys;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use fusee_cli::failure::Failure;
use fusee_cli::interrupt;
use fusee_client::BlockingClient;

use crate::driver::PhaseObserver;
use exchange::StatusExchange;
pub use join::{MAX_DRIVERS, RendezvousOptions};
pub use keys::{DriverStatus, RendezvousEnd};
use keys::{RendezvousKeys, ReportPiece};

/// The time without a change of a driver's status page after which the driver is taken for dead.
pub const SILENCE: Duration = Duration::from_secs(5);
/// The interval between checks whether other drivers have joined, handed over results or left.
const LOOK: Duration = Duration::from_millis(2);

/// The membership of this driver in a meeting.
pub struct Rendezvous {
    book: RendezvousKeys,
    number: usize,
    drivers: usize,
    name: String,
    talk: StatusExchange,
    step: u32,
    /// Begin and end of each step, in nanoseconds since a time when the step had certainly not begun.
    times: Vec<(u64, u64)>,
    /// Two times by the monotonic clock: one when the first step had not yet begun, and one when it had.
    first_step: Option<(u64, u64)>,
}

impl Rendezvous {
    /// Joins the meeting, or opens it. `ended` is set as soon as the meeting ends, for whatever reason.
    pub fn join(
        client: &BlockingClient,
        invitation: &RendezvousOptions<'_>,
        ended: Arc<AtomicBool>,
    ) -> Result<Rendezvous, Failure> {
        let seat = join::join_or_open(client, invitation)?;
        let book = seat.book;
        let number = seat.number;
        let drivers = invitation.drivers;
        let talk = StatusExchange::start(book.clone(), number, drivers, seat.page, ended);
        let name = invitation.name.to_owned();
        Ok(Rendezvous {
            book,
            number,
            drivers,
            name,
            talk,
            step: 0,
            times: Vec::new(),
            first_step: None,
        })
    }

    /// Returns the number of this driver, from 0.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Waits until all drivers have joined. Only the first driver calls this.
    pub fn wait_for_all(&mut self, timeout: Duration) -> Result<(), Failure> {
        let end = Instant::now() + timeout;
        loop {
            self.check_active()?;
            interrupt::failure().map_or(Ok(()), Err)?;
            if let Some(driver) = self.talk.interrupted() {
                return Err(Failure::operation(format!(
                    "{} was interrupted",
                    self.name_of(driver)
                )));
            }
            let pages = self.talk.pages();
            let came: Vec<String> = pages.iter().flatten().map(DriverStatus::to_string).collect();
            if came.len() == self.drivers {
                return Ok(());
            }
            if Instant::now() > end {
                return Err(Failure::operation(format!(
                    "only {} of {} drivers came to the meeting `{}` within {} s ({}); start the \
                     others in time, or raise --join-timeout",
                    came.len(),
                    self.drivers,
                    self.name,
                    timeout.as_secs_f64(),
                    came.join("; "),
                )));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Fails if the meeting has failed.
    pub fn check_active(&self) -> Result<(), Failure> {
        self.talk.failure().map_or(Ok(()), |why| Err(Failure::operation(why)))
    }

    /// Returns the status pages of the drivers, by number.
    pub fn pages(&self) -> Vec<Option<DriverStatus>> {
        self.talk.pages()
    }

    /// Returns the driver whose user has ended the run, if there is one.
    pub fn interrupted(&self) -> Option<usize> {
        self.talk.interrupted()
    }

    /// Returns a driver's name for people.
    pub fn name_of(&self, driver: usize) -> String {
        match self.pages().get(driver) {
            Some(Some(page)) => format!("driver {driver} ({page})"),
            _ => format!("driver {driver}"),
        }
    }

    /// Returns begin and end of each step, in nanoseconds since a time when the step had certainly not begun on any
    /// host.
    pub fn times(&self) -> &[(u64, u64)] {
        &self.times
    }

    /// Returns two times by the monotonic clock of this host: one when the first step had certainly not begun on any
    /// host, and one when it had begun. Both are 0 if no step has begun.
    pub fn first_step(&self) -> (u64, u64) {
        self.first_step.unwrap_or_default()
    }

    /// Hands over the results of this driver to the first driver.
    pub fn send_results(&self, bytes: &[u8]) -> Result<(), Failure> {
        let pieces = bytes.chunks(self.book.piece_bytes());
        let last = pieces.len().saturating_sub(1);
        for (number, bytes) in pieces.enumerate() {
            let piece = ReportPiece {
                number: number as u32,
                is_last: number == last,
                bytes: bytes.to_vec(),
            };
            while !self.book.store_piece(self.number, &piece)? {
                self.check_active()?;
                std::thread::sleep(LOOK);
            }
        }
        Ok(())
    }

    /// Takes the results of a driver out of the store.
    pub fn receive_results(&self, driver: usize) -> Result<Vec<u8>, Failure> {
        let mut bytes = Vec::new();
        let mut wanted = 0;
        loop {
            self.check_active()?;
            match self.book.take_piece(driver)? {
                // The driver stored this piece twice, because its first INSERT had an unknown outcome.
                Some(piece) if piece.number != wanted => {}
                Some(piece) => {
                    bytes.extend(piece.bytes);
                    wanted += 1;
                    if piece.is_last {
                        return Ok(bytes);
                    }
                }
                None => std::thread::sleep(LOOK),
            }
        }
    }

    /// Ends the meeting. Only the first driver calls this. All other drivers learn how the meeting has ended, and
    /// leave. Before another meeting can be opened, `clean_up` removes what the run has left in the store.
    pub fn close(
        self,
        end: RendezvousEnd,
        clean_up: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        self.talk.end(end);
        let until = Instant::now() + SILENCE;
        while self.talk.pages().iter().skip(1).any(Option::is_some) && Instant::now() < until {
            std::thread::sleep(LOOK);
        }
        let cleaned = clean_up();
        self.talk.stop();
        self.book.remove_all(self.drivers).and(cleaned)
    }

    /// Leaves the meeting after the first driver has ended it, and returns how the meeting has ended. If the first
    /// driver died, each of the remaining drivers runs `clean_up` and removes the keys of the meeting.
    pub fn leave(
        self,
        clean_up: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<RendezvousEnd, Failure> {
        let end = loop {
            if let Some(end) = self.talk.first_end() {
                break end;
            }
            if let Some(why) = self.talk.failure() {
                break RendezvousEnd::Failed(why);
            }
            std::thread::sleep(LOOK);
        };
        let was_left_alone = self.talk.first_end().is_none();
        self.talk.stop();
        if was_left_alone {
            clean_up()?;
            self.book.remove_all(self.drivers)?;
        }
        self.book.leave(self.number)?;
        Ok(end)
    }

    /// Reports to the first driver that this driver cannot go on.
    pub fn give_up(&self, why: &Failure) {
        self.talk.end(RendezvousEnd::Failed(why.to_string()));
    }
}

impl PhaseObserver for Rendezvous {
    fn shows_progress(&self) -> bool {
        self.number == 0
    }

    fn begin(&mut self) {
        self.step += 1;
        self.talk.begin(self.step);
    }

    fn phase_ended(&mut self, from_ns: u64, to_ns: u64) {
        // If the meeting ended before this step began, no time before `from_ns` is known when the step had not begun.
        let not_yet = self.talk.last_unbegun_ns(self.step).unwrap_or(from_ns).min(from_ns);
        self.first_step.get_or_insert((not_yet, from_ns));
        self.times.push((from_ns - not_yet, to_ns.saturating_sub(not_yet)));
    }
}

#[cfg(test)]
mod tests;
