//! Drivers on several hosts, which meet in the store that they measure.
//!
//! They need one place where exactly one of them opens a meeting, and where all see what each has
//! written: an INSERT and a linearizable store give that. The master could, with a new version of
//! its protocol, for something that is no part of a store.
//!
//! The first driver has opened the meeting; the others watch its page, and it watches theirs. A
//! thread of each driver writes its own page and reads the others ([`talk`]).
//!
//! *Begin together.* A driver is *ready* for a step; once all are, the first driver writes that the
//! step has begun. No clocks are compared. Each driver notes, by its own clock, when it last asked
//! in vain: as the store is linearizable, the step had not begun before that. So it began at most as
//! much later as its own begin is after that point: its *lateness*, an upper bound. The skew of a
//! step is at most the largest lateness of all drivers.
//!
//! *End.* A driver whose page has not changed for [`SILENCE`], by the clock of whoever watches, is
//! taken for dead, and so is the run: the first driver says so, and all others leave; if it is the
//! first driver that is silent, each of them notices by itself. The user of any driver may end the
//! run early.

mod book;
mod join;
mod talk;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use fusee_cli::failure::Failure;
use fusee_cli::interrupt;
use fusee_client::Client;

use crate::driver::Steps;
use book::{Book, Piece};
pub use book::{End, Page};
pub use join::{Invitation, MAX_DRIVERS};
use talk::Talk;

/// A driver that has been silent for so long is dead.
pub const SILENCE: Duration = Duration::from_secs(5);
/// How often to look for something that takes its time.
const LOOK: Duration = Duration::from_millis(2);

/// A seat at a meeting that goes on.
pub struct Meeting {
    book: Book,
    number: usize,
    drivers: usize,
    name: String,
    talk: Talk,
    step: u32,
    /// By step: when it began and ended, since it had certainly not begun.
    times: Vec<(u64, u64)>,
    /// By the monotonic clock: when the first step had not begun, and when it had.
    first_step: Option<(u64, u64)>,
}

impl Meeting {
    /// Joins, or opens the meeting. Once it ends, for whatever reason, `ended` is set.
    pub fn join(
        client: &Client,
        invitation: &Invitation<'_>,
        ended: Arc<AtomicBool>,
    ) -> Result<Meeting, Failure> {
        let seat = join::sit_down(client, invitation)?;
        let book = seat.book;
        let number = seat.number;
        let drivers = invitation.drivers;
        let talk = Talk::start(book.clone(), number, drivers, seat.page, ended);
        let name = invitation.name.to_owned();
        Ok(Meeting {
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

    /// Which driver this is, from 0.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Waits until all have come. Only the first driver can.
    pub fn wait_for_all(&mut self, timeout: Duration) -> Result<(), Failure> {
        let end = Instant::now() + timeout;
        loop {
            self.going_on()?;
            interrupt::failure().map_or(Ok(()), Err)?;
            if let Some(driver) = self.talk.interrupted() {
                return Err(Failure::operation(format!(
                    "{} was interrupted",
                    self.name_of(driver)
                )));
            }
            let pages = self.talk.pages();
            let came: Vec<String> = pages.iter().flatten().map(Page::to_string).collect();
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

    /// Fails if the meeting has ended before its time.
    pub fn going_on(&self) -> Result<(), Failure> {
        self.talk.failure().map_or(Ok(()), |why| Err(Failure::operation(why)))
    }

    /// Who they are, by number.
    pub fn pages(&self) -> Vec<Option<Page>> {
        self.talk.pages()
    }

    /// The driver whose user has ended the run, if one has.
    pub fn interrupted(&self) -> Option<usize> {
        self.talk.interrupted()
    }

    /// A driver, for people.
    pub fn name_of(&self, driver: usize) -> String {
        match self.pages().get(driver) {
            Some(Some(page)) => format!("driver {driver} ({page})"),
            _ => format!("driver {driver}"),
        }
    }

    /// By step: begin and end, in nanoseconds since the step had certainly not begun anywhere.
    pub fn times(&self) -> &[(u64, u64)] {
        &self.times
    }

    /// By the monotonic clock of this host: when the first step had certainly not begun anywhere,
    /// and when it had. Empty if there was no step.
    pub fn first_step(&self) -> (u64, u64) {
        self.first_step.unwrap_or_default()
    }

    /// Hands over what this driver found, for the first one.
    pub fn hand_over(&self, bytes: &[u8]) -> Result<(), Failure> {
        let pieces = bytes.chunks(self.book.piece_bytes());
        let last = pieces.len().saturating_sub(1);
        for (number, bytes) in pieces.enumerate() {
            let piece =
                Piece { number: number as u32, is_last: number == last, bytes: bytes.to_vec() };
            while !self.book.put_down(self.number, &piece)? {
                self.going_on()?;
                std::thread::sleep(LOOK);
            }
        }
        Ok(())
    }

    /// Takes what a driver hands over.
    pub fn take(&self, driver: usize) -> Result<Vec<u8>, Failure> {
        let mut bytes = Vec::new();
        let mut wanted = 0;
        loop {
            self.going_on()?;
            match self.book.take_up(driver)? {
                // One that came twice: its INSERT had an unknown outcome.
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

    /// Ends the meeting, by its first driver: all others are told how, and leave. Then, before
    /// another meeting can be opened, `clean_up` removes what the run has left in the store.
    pub fn close(
        self,
        end: End,
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

    /// Leaves the meeting once the first driver has ended it; tells how it has. If it is the first
    /// driver that died, `clean_up` is for whoever is left, and the meeting goes as well.
    pub fn leave(self, clean_up: impl FnOnce() -> Result<(), Failure>) -> Result<End, Failure> {
        let end = loop {
            if let Some(end) = self.talk.first_end() {
                break end;
            }
            if let Some(why) = self.talk.failure() {
                break End::Failed(why);
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

    /// Tells the first driver that this one cannot go on.
    pub fn give_up(&self, why: &Failure) {
        self.talk.end(End::Failed(why.to_string()));
    }
}

impl Steps for Meeting {
    fn shows_progress(&self) -> bool {
        self.number == 0
    }

    fn begin(&mut self) {
        self.step += 1;
        self.talk.begin(self.step);
    }

    fn ended(&mut self, from_ns: u64, to_ns: u64) {
        // Of a step that nobody began, since the meeting had ended, nothing is known.
        let not_yet = self.talk.not_yet(self.step).unwrap_or(from_ns).min(from_ns);
        self.first_step.get_or_insert((not_yet, from_ns));
        self.times.push((from_ns - not_yet, to_ns.saturating_sub(not_yet)));
    }
}

#[cfg(test)]
mod tests;
