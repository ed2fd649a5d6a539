//! The links of a session, the batches in flight over them, and the poll that it sleeps in.

use std::io;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use fusee_core::verbs::{Batch, MnId, Verb, VerbError};
use mio::{Events, Token};

use super::NO_WAIT;
use super::alarm::Alarm;
use super::link::{Link, LinkError, is_for};
use super::slots::Slots;
use crate::spin::Spin;

/// A link, and what the driver knows about it.
#[derive(Debug)]
struct Entry<L> {
    link: L,
    /// Since when the node owes an answer and nothing comes; `None`: not known yet.
    silent_since: Option<Instant>,
}

impl<L: Link> Entry<L> {
    /// Does something with the link, which gives whether anything has come. A failure is for good.
    fn attempt(
        &mut self,
        slots: &mut Slots,
        work: impl FnOnce(&mut L, &mut Slots) -> Result<bool, LinkError>,
    ) -> Result<(), LinkError> {
        if work(&mut self.link, slots)? {
            self.silent_since = None;
        }
        Ok(())
    }

    /// When it counts as lost, if nothing comes.
    fn is_overdue(&self, now: Instant, silence: Duration) -> bool {
        let since = self.silent_since.filter(|_| self.link.is_waiting());
        since.is_some_and(|since| now.duration_since(since) >= silence)
    }
}

/// Fails a part of a batch: what of it is for the node, and has no result.
fn fail_parts(node: MnId, result: VerbError, slots: &mut Slots) -> impl FnMut(usize) {
    move |slot| {
        if let Some(batch) = slots.wanted(slot) {
            let open = batch.parts_mut().0.iter_mut().filter(|verb| is_for(verb, node));
            open.for_each(|verb| verb.result = Err(result));
        }
        slots.finish_part(slot);
    }
}

/// All links of a session.
#[derive(Debug)]
pub(super) struct Links<L: Link> {
    poll: mio::Poll,
    events: Events,
    /// Link `n` has the tokens `2n` and `2n + 1`. The place of one that has failed is empty, until another one
    /// takes it.
    entries: Vec<Option<Entry<L>>>,
    /// Of each node whose link has failed, and that the session has not left, why its verbs fail; also of nodes that
    /// it has left, if that is more than that they are not there.
    failed: Vec<(MnId, VerbError)>,
    /// What has gone over links that have failed.
    counted: L::Counts,
    /// When it was looked last who is silent.
    looked_at: Option<Instant>,
    pub(super) slots: Slots,
}

impl<L: Link> Links<L> {
    /// No links, and what wakes a thread that sleeps in [`Links::poll`].
    pub(super) fn new() -> io::Result<(Links<L>, Arc<Alarm>)> {
        let poll = mio::Poll::new()?;
        let alarm = Alarm::new(poll.registry())?;
        let events = Events::with_capacity(64);
        let slots = Slots::default();
        let entries = Vec::new();
        let failed = Vec::new();
        let counted = L::Counts::default();
        let looked_at = None;
        Ok((Links { poll, events, entries, failed, counted, looked_at, slots }, alarm))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &L> {
        self.entries.iter().flatten().map(|entry| &entry.link)
    }

    /// Of how many nodes something is known.
    pub(super) fn remembered(&self) -> usize {
        self.iter().count() + self.failed.len()
    }

    /// What has gone over all links so far.
    pub(super) fn counts(&self) -> L::Counts {
        let mut counts = self.counted;
        self.iter().for_each(|link| counts += link.counts());
        counts
    }

    /// Adds a link. An earlier one to its node has been detached.
    pub(super) fn adopt(&mut self, mut link: L) -> io::Result<()> {
        let free = self.entries.iter().position(Option::is_none);
        let at = free.unwrap_or(self.entries.len());
        link.register(self.poll.registry(), [Token(2 * at), Token(2 * at + 1)])?;
        self.failed.retain(|(node, _)| *node != link.node());
        let entry = Some(Entry { link, silent_since: None });
        match free {
            Some(free) => self.entries[free] = entry,
            None => self.entries.push(entry),
        }
        Ok(())
    }

    /// In a child: what is in flight fails, and nothing is done to the links.
    pub(super) fn leave_behind(&mut self) {
        for entry in self.entries.iter_mut().flatten() {
            let failing = fail_parts(entry.link.node(), VerbError::Unreachable, &mut self.slots);
            entry.link.leave_behind(failing);
        }
    }

    pub(super) fn detach(&mut self, node: MnId) {
        let is_its =
            |entry: &Option<Entry<L>>| entry.as_ref().is_some_and(|e| e.link.node() == node);
        if let Some(at) = self.entries.iter().position(is_its) {
            self.fail(at, &LinkError::Left);
        }
        // Nodes come and go, and the session may live for long: what says no more than that one is not there goes.
        self.failed.retain(|failed| *failed != (node, VerbError::Unreachable));
    }

    /// A link fails for good, and what is in flight over it. What is left of it is the reason.
    fn fail(&mut self, at: usize, error: &LinkError) {
        let Some(Entry { link, .. }) = self.entries[at].take() else { return };
        let node = link.node();
        let result = error.verb_error();
        match error {
            LinkError::Left => tracing::debug!(%node, "left a memory node"),
            // Each session has its own; that the node is reported unreachable is told once.
            _ => tracing::debug!(%node, %error, "lost a memory node"),
        }
        self.failed.push((node, result));
        self.counted += link.counts();
        link.end(fail_parts(node, result, &mut self.slots));
    }

    /// Does something with one link, if it is there.
    fn attempt(
        &mut self,
        at: usize,
        work: impl FnOnce(&mut L, &mut Slots) -> Result<bool, LinkError>,
    ) {
        let Some(Some(entry)) = self.entries.get_mut(at) else { return };
        if let Err(error) = entry.attempt(&mut self.slots, work) {
            self.fail(at, &error);
        }
    }

    /// The result of a verb before it is posted.
    fn first_result(&self, verb: &Verb) -> Result<(), VerbError> {
        if let Some(link) = self.iter().find(|link| link.node() == verb.node) {
            return link.first_result(verb);
        }
        let failed = self.failed.iter().find(|(node, _)| *node == verb.node);
        Err(failed.map_or(VerbError::Unreachable, |(_, error)| *error))
    }

    /// Takes a batch; gives its slot, or the batch if it is complete already.
    pub(super) fn submit(&mut self, mut batch: Batch, task: &Waker) -> Result<usize, Batch> {
        for verb in batch.parts_mut().0 {
            verb.result = self.first_result(verb);
        }
        let slot = self.slots.claim();
        let queue = |entry: &mut Entry<L>| entry.link.queue(slot, &batch);
        let parts: usize = self.entries.iter_mut().flatten().map(queue).sum();
        if parts == 0 {
            self.slots.give_back(slot);
            return Err(batch);
        }
        self.slots.fill(slot, batch, parts, task);
        if L::USER_SPACE {
            self.post();
        }
        Ok(slot)
    }

    fn each(&mut self, work: impl Fn(&mut L, &mut Slots) -> Result<bool, LinkError>) {
        (0..self.entries.len()).for_each(|at| self.attempt(at, &work));
    }

    /// Posts what is queued.
    pub(super) fn post(&mut self) {
        self.each(|link, slots| link.post(slots).map(|()| false));
    }

    /// Takes what is there.
    pub(super) fn look(&mut self) {
        self.each(L::look);
    }

    /// Takes what the last poll has told of.
    pub(super) fn receive(&mut self) {
        self.each(L::receive);
    }

    /// Before sleeping: from now on what comes makes an event. False: something is there already.
    pub(super) fn arm(&mut self) -> bool {
        self.each(L::arm);
        self.slots.complete() == 0
    }

    /// Looks for answers for a while, until batches are complete or somebody wakes the session;
    /// whether one of it happened.
    pub(super) fn spin(&mut self, spin: &mut Spin, alarm: &Alarm) -> bool {
        if !self.iter().any(L::is_waiting) || self.iter().any(L::is_blocked) {
            return false;
        }
        let mut found_some = 0;
        spin.until(|| {
            self.look();
            if alarm.has_rung() {
                return true;
            }
            let complete = self.slots.complete();
            let in_flight = self.slots.in_flight();
            found_some += u32::from(complete > 0);
            complete > 0 && (found_some == L::LOOKS_THAT_FIND_SOME || complete * 2 >= in_flight)
        })
    }

    /// How long to sleep: not beyond the time at which a silent node counts as lost, nor so long that the sleep
    /// itself would be taken for a stop.
    pub(super) fn bounded(
        &mut self,
        max_wait: Option<Duration>,
        silence: Duration,
    ) -> Option<Duration> {
        let mut wait = max_wait;
        let now = Instant::now();
        for entry in self.entries.iter_mut().flatten().filter(|entry| entry.link.is_waiting()) {
            let since = *entry.silent_since.get_or_insert(now);
            // Rounded up: a wait of less than a millisecond must not become a busy loop.
            let left = (since + silence).saturating_duration_since(now).min(silence / 4);
            let left = left + Duration::from_millis(1);
            wait = Some(wait.map_or(left, |wait| wait.min(left)));
        }
        wait
    }

    /// Waits for events, and lets the links take note of them.
    pub(super) fn poll(&mut self, wait: Option<Duration>) {
        let mut wait = wait;
        while let Err(error) = self.poll.poll(&mut self.events, wait) {
            // An epoll that fails is a bug, not a state of the world.
            assert!(error.kind() == io::ErrorKind::Interrupted, "cannot poll: {error}");
            // Interrupted, perhaps for long: look at what has come, do not wait again.
            wait = NO_WAIT;
        }
        let mut failed = Vec::new();
        for event in &self.events {
            let Token(token) = event.token();
            // The alarm's is none of theirs; and one that fails goes when all have been looked at.
            if let Some(Some(entry)) = self.entries.get_mut(token / 2)
                && let Err(error) = entry.link.take_event(token % 2, event)
            {
                failed.push((token / 2, error));
            }
        }
        failed.into_iter().for_each(|(at, error)| self.fail(at, &error));
    }

    /// Gives up nodes that have been silent for too long.
    ///
    /// Time passes also while this process is stopped, and an answer may have come meanwhile. So a node
    /// is silent only if nothing is there *after* its time was up. And the node may have been stopped with this
    /// process, as on a machine that sleeps: where nobody has looked for long, silence begins anew.
    pub(super) fn lose_silent(&mut self, silence: Duration) {
        let now = Instant::now();
        let was_away = |at| now.duration_since(at) > silence / 2;
        if self.looked_at.replace(now).is_some_and(was_away) {
            self.entries.iter_mut().flatten().for_each(|entry| entry.silent_since = Some(now));
        }
        for at in 0..self.entries.len() {
            let Some(entry) = &mut self.entries[at] else { continue };
            if !entry.link.is_waiting() {
                continue;
            }
            entry.silent_since.get_or_insert(now);
            if entry.is_overdue(now, silence) {
                self.attempt(at, L::look);
            }
            if self.entries[at].as_ref().is_some_and(|entry| entry.is_overdue(now, silence)) {
                self.fail(at, &LinkError::Silent(silence));
            }
        }
    }
}
