//! The links of a session, its batches in flight, and the poll in which it sleeps.

use std::io;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use fusee_core::verbs::{MnId, Verb, VerbBatch, VerbError};
use mio::{Events, Token};

use super::NO_WAIT;
use super::alarm::Alarm;
use super::link::{FabricLink, LinkError, is_for};
use super::slots::BatchSlots;
use crate::spin::Spin;

/// A link, and the driver's knowledge of it.
#[derive(Debug)]
struct LinkEntry<L> {
    link: L,
    /// The time since which the node owes an answer and sends nothing; `None`: not known yet.
    silent_since: Option<Instant>,
}

impl<L: FabricLink> LinkEntry<L> {
    /// Does some work with the link, which returns whether answers came. A failure is final.
    fn attempt(
        &mut self,
        slots: &mut BatchSlots,
        work: impl FnOnce(&mut L, &mut BatchSlots) -> Result<bool, LinkError>,
    ) -> Result<(), LinkError> {
        if work(&mut self.link, slots)? {
            self.silent_since = None;
        }
        Ok(())
    }

    /// Returns whether the node has been silent for too long.
    fn is_overdue(&self, now: Instant, silence: Duration) -> bool {
        let since = self.silent_since.filter(|_| self.link.is_waiting());
        since.is_some_and(|since| now.duration_since(since) >= silence)
    }
}

/// Fails a part of a batch: those of its verbs that are for the node and have no result.
fn fail_parts(node: MnId, result: VerbError, slots: &mut BatchSlots) -> impl FnMut(usize) {
    move |slot| {
        if let Some(batch) = slots.awaited_batch(slot) {
            let open = batch.parts_mut().0.iter_mut().filter(|verb| is_for(verb, node));
            open.for_each(|verb| verb.result = Err(result));
        }
        slots.finish_part(slot);
    }
}

/// All links of a session.
#[derive(Debug)]
pub(super) struct Links<L: FabricLink> {
    poll: mio::Poll,
    events: Events,
    /// Link `n` has the tokens `2n` and `2n + 1`. The place of a failed link is empty until a new link takes it.
    entries: Vec<Option<LinkEntry<L>>>,
    /// The errors of verbs for nodes without a link. A node is in the list if its link has failed and the session
    /// has not left it since. A node that the session has left stays only if the error is not just `Unreachable`.
    failed: Vec<(MnId, VerbError)>,
    /// The counts of links that have failed.
    counted: L::Counts,
    /// The time of the last check for silent nodes.
    looked_at: Option<Instant>,
    pub(super) slots: BatchSlots,
}

impl<L: FabricLink> Links<L> {
    /// Makes an empty list of links, and the alarm for the thread that sleeps in [`Links::poll`].
    pub(super) fn new() -> io::Result<(Links<L>, Arc<Alarm>)> {
        let poll = mio::Poll::new()?;
        let alarm = Alarm::new(poll.registry())?;
        let events = Events::with_capacity(64);
        let slots = BatchSlots::default();
        let entries = Vec::new();
        let failed = Vec::new();
        let counted = L::Counts::default();
        let looked_at = None;
        Ok((Links { poll, events, entries, failed, counted, looked_at, slots }, alarm))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &L> {
        self.entries.iter().flatten().map(|entry| &entry.link)
    }

    /// Returns the number of nodes that are remembered, with or without a link.
    pub(super) fn remembered(&self) -> usize {
        self.iter().count() + self.failed.len()
    }

    /// Returns the counts of all links so far.
    pub(super) fn counts(&self) -> L::Counts {
        let mut counts = self.counted;
        self.iter().for_each(|link| counts += link.counts());
        counts
    }

    /// Adds a link. An earlier link to its node must have been detached.
    pub(super) fn adopt(&mut self, mut link: L) -> io::Result<()> {
        let free = self.entries.iter().position(Option::is_none);
        let at = free.unwrap_or(self.entries.len());
        link.register(self.poll.registry(), [Token(2 * at), Token(2 * at + 1)])?;
        self.failed.retain(|(node, _)| *node != link.node());
        let entry = Some(LinkEntry { link, silent_since: None });
        match free {
            Some(free) => self.entries[free] = entry,
            None => self.entries.push(entry),
        }
        Ok(())
    }

    /// In a child process, fails the batches in flight, and does nothing to the links.
    pub(super) fn abandon_after_fork(&mut self) {
        for entry in self.entries.iter_mut().flatten() {
            let failing = fail_parts(entry.link.node(), VerbError::Unreachable, &mut self.slots);
            entry.link.abandon_after_fork(failing);
        }
    }

    pub(super) fn detach(&mut self, node: MnId) {
        let is_its =
            |entry: &Option<LinkEntry<L>>| entry.as_ref().is_some_and(|e| e.link.node() == node);
        if let Some(at) = self.entries.iter().position(is_its) {
            self.fail(at, &LinkError::Left);
        }
        // Nodes come and go, and a session may live for long. So an entry that only says `Unreachable` is removed.
        self.failed.retain(|failed| *failed != (node, VerbError::Unreachable));
    }

    /// Ends a link for good and fails its verbs in flight. Only the error is kept.
    fn fail(&mut self, at: usize, error: &LinkError) {
        let Some(LinkEntry { link, .. }) = self.entries[at].take() else { return };
        let node = link.node();
        let result = error.verb_error();
        match error {
            LinkError::Left => tracing::debug!(%node, "left a memory node"),
            // At debug level: each session reports the same loss, and the report of the unreachable node is logged
            // once.
            _ => tracing::debug!(%node, %error, "lost a memory node"),
        }
        self.failed.push((node, result));
        self.counted += link.counts();
        link.end(fail_parts(node, result, &mut self.slots));
    }

    /// Does some work with one link, if it is there.
    fn attempt(
        &mut self,
        at: usize,
        work: impl FnOnce(&mut L, &mut BatchSlots) -> Result<bool, LinkError>,
    ) {
        let Some(Some(entry)) = self.entries.get_mut(at) else { return };
        if let Err(error) = entry.attempt(&mut self.slots, work) {
            self.fail(at, &error);
        }
    }

    /// Returns the result of a verb before it is posted.
    fn first_result(&self, verb: &Verb) -> Result<(), VerbError> {
        if let Some(link) = self.iter().find(|link| link.node() == verb.node) {
            return link.first_result(verb);
        }
        let failed = self.failed.iter().find(|(node, _)| *node == verb.node);
        Err(failed.map_or(VerbError::Unreachable, |(_, error)| *error))
    }

    /// Takes a batch. Returns its slot, or the batch if it is complete already.
    pub(super) fn submit(
        &mut self,
        mut batch: VerbBatch,
        task: &Waker,
    ) -> Result<usize, VerbBatch> {
        for verb in batch.parts_mut().0 {
            verb.result = self.first_result(verb);
        }
        let slot = self.slots.claim();
        let queue = |entry: &mut LinkEntry<L>| entry.link.queue(slot, &batch);
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

    fn each(&mut self, work: impl Fn(&mut L, &mut BatchSlots) -> Result<bool, LinkError>) {
        (0..self.entries.len()).for_each(|at| self.attempt(at, &work));
    }

    /// Posts what is queued.
    pub(super) fn post(&mut self) {
        self.each(|link, slots| link.post(slots).map(|()| false));
    }

    /// Takes the answers that have arrived.
    pub(super) fn look(&mut self) {
        self.each(L::look);
    }

    /// Takes the answers that the last poll has announced.
    pub(super) fn receive(&mut self) {
        self.each(L::receive);
    }

    /// Makes later answers cause events, before the thread sleeps. Returns false if batches are complete already.
    pub(super) fn arm(&mut self) -> bool {
        self.each(L::arm);
        self.slots.complete() == 0
    }

    /// Spins for answers until enough batches are complete, or the alarm is used. Returns whether one of these
    /// happened.
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

    /// Returns the time to sleep. It ends when a silent node counts as lost, and is shorter than a pause that
    /// [`Links::lose_silent`] would take for a stop of the process.
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

    /// Waits for events, and passes them to the links.
    pub(super) fn poll(&mut self, wait: Option<Duration>) {
        let mut wait = wait;
        while let Err(error) = self.poll.poll(&mut self.events, wait) {
            // A failing epoll is a bug of this program, not a condition of the system.
            assert!(error.kind() == io::ErrorKind::Interrupted, "cannot poll: {error}");
            // The poll was interrupted, perhaps for long: take what has come, and do not wait again.
            wait = NO_WAIT;
        }
        let mut failed = Vec::new();
        for event in &self.events {
            let Token(token) = event.token();
            // The alarm's token belongs to no link. A link that fails is ended after all events were handled.
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
    /// Time passes also while this process is stopped, and an answer may have come meanwhile. So a node is lost only
    /// if no answer is there *after* its time was up. And the node may have been stopped together with this process,
    /// as on a machine that sleeps: after a long pause between two checks, the silence of all nodes starts anew.
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
