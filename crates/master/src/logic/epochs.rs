//! Epochs: when memory that was freed may be used again (P §4.4).
//!
//! An operation belongs to the newest epoch that its session knows when it begins, and sessions tell
//! the oldest epoch that one of their operations belongs to. When all of them are pinned in the newest one
//! and somebody waits to use memory again, another epoch begins. What is told to those who wait is
//! before which epoch no operation runs any more, anywhere ([`Epochs::passed`]). That counts
//!
//! * sessions that have expired, until they are recovered: verbs of theirs may be under way until
//!   they are fenced, and what they left half-way is resumed;
//! * the jobs of the master, also those that failed, until their session is fenced;
//! * sessions that this master has not heard yet: as if they were pinned in the first epoch.
//!
//! Epochs never go back, not even when another master takes over: like client ids they are used from
//! ranges that are recorded before.

use fusee_control::master::Epochs;

use super::State;
use super::context::Ctx;
use crate::record::{Record, Write};

/// Epochs per write to the store.
const EPOCHS_PER_RECORD: u64 = 1 << 16;

/// The newest epoch.
#[derive(Debug, Default)]
pub(super) struct Epoch {
    newest: u64,
    /// The end of the recorded range.
    end: u64,
    begun_ms: u64,
    /// Whether somebody waits for a later one.
    wanted: bool,
}

impl Epoch {
    /// From the store: epochs before `end` may have been.
    pub fn restore(&mut self, end: u64) {
        (self.newest, self.end) = (end, end);
    }

    /// Somebody waits for a later one.
    pub fn want(&mut self) {
        self.wanted = true;
    }

    /// The newest epoch, which may be told.
    pub fn newest(&mut self, ctx: &mut Ctx<'_>) -> u64 {
        if self.newest == self.end {
            self.end += EPOCHS_PER_RECORD;
            ctx.persist(vec![Write::Put(Record::Epochs { end: self.end })]);
        }
        self.newest
    }
}

impl State {
    /// The epochs, as sessions are told.
    pub(super) fn epochs(&self) -> Epochs {
        let newest = self.epochs.newest;
        let (passed, settled) = self.sessions.epochs().unwrap_or((newest, newest));
        let held = self.held_epoch().unwrap_or(newest);
        Epochs { newest, passed: passed.min(held), settled: settled.min(held) }
    }

    /// Begins another epoch, if one is wanted and all are pinned in the newest.
    pub(super) fn next_epoch(&mut self, ctx: &mut Ctx<'_>) {
        if !self.epochs.wanted
            || self.view().is_none()
            || ctx.now_ms < self.epochs.begun_ms + ctx.settings.lease.epoch_ms()
            || self.epochs().passed < self.epochs.newest
        {
            return;
        }
        self.epochs.wanted = false;
        self.epochs.begun_ms = ctx.now_ms;
        self.epochs.newest += 1;
        self.epochs.newest(ctx);
    }
}
