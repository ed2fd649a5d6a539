//! The links of a session, its batches in flight, and the poll in which its thread sleeps.

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

/// A link, and the driver's records of it.
#[derive(Debug)]
struct LinkEntry<L> {
    link: L,
    /// The time from which on the node has owed an answer and sent nothing; `None` if not known yet.
    silent_since: Option<Instant>,
}

impl<L: FabricLink> LinkEntry<L> {
    /// Calls `work`, which returns whether answers came. If `work` fails, the link must be ended.
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

    /// Returns whether the node owes an answer and has been silent for too long.
    fn is_overdue(&self, now: Instant, silence: Duration) -> bool {
        let since = self.silent_since.filter(|_| self.link.is_waiting());
        since.is_some_and(|since| now.duration_since(since) >= silence)
    }
}

/// Returns a function that ends one part of the batch in a given slot: the batch's verbs to this node that have no
/// result yet get `result`.
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
    /// Link `n` has the tokens `2n` and `2n + 1`. The index of a failed link stays empty until a new link takes it.
    entries: Vec<Option<LinkEntry<L>>>,
    /// The results of verbs to nodes without a link. A node is added when its link fails, and removed when the session
    /// leaves the node. A node with an error other than `Unreachable` stays in the list even when the session leaves
    /// it.
    failed: Vec<(MnId, VerbError)>,
    /// The sums of the counts of the links that have ended.
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

    /// Returns the number of nodes that the session remembers, with or without a link.
    pub(super) fn remembered(&self) -> usize {
        self.iter().count() + self.failed.len()
    }

    /// Returns the counts of all links so far, ended links included.
    pub(super) fn counts(&self) -> L::Counts {
        let mut counts = self.counted;
        self.iter().for_each(|link| counts += link.counts());
        counts
    }

    /// Adds a link. An earlier link to the same node must have been detached.
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

    /// Fails the batches in flight, in a child process. Does nothing to the connections, which are the parent's.
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
        // A session can live long, while nodes come and go. So entries that only say `Unreachable` are removed.
        self.failed.retain(|failed| *failed != (node, VerbError::Unreachable));
    }

    /// Ends a link for good and fails the verbs in flight over it. Keeps the error and the link's counts.
    fn fail(&mut self, at: usize, error: &LinkError) {
        let Some(LinkEntry { link, .. }) = self.entries[at].take() else { return };
        let node = link.node();
        let result = error.verb_error();
        match error {
            LinkError::Left => tracing::debug!(%node, "left a memory node"),
            // At debug level, because each session reports the same loss, and the report of the unreachable node to
            // the master is logged once.
            _ => tracing::debug!(%node, %error, "lost a memory node"),
        }
        self.failed.push((node, result));
        self.counted += link.counts();
        link.end(fail_parts(node, result, &mut self.slots));
    }

    /// Calls `work` with one link, if there is a link at this index. Ends the link if `work` fails.
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

    /// Returns the result that a verb has before it is posted.
    fn first_result(&self, verb: &Verb) -> Result<(), VerbError> {
        if let Some(link) = self.iter().find(|link| link.node() == verb.node) {
            return link.first_result(verb);
        }
        let failed = self.failed.iter().find(|(node, _)| *node == verb.node);
        Err(failed.map_or(VerbError::Unreachable, |(_, error)| *error))
    }

    /// Accepts a batch. Returns the batch's slot, or the batch itself if it is complete already.
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

    /// Posts the queued verbs of all links.
    pub(super) fn post(&mut self) {
        self.each(|link, slots| link.post(slots).map(|()| false));
    }

    /// Takes the answers that have arrived on all links.
    pub(super) fn look(&mut self) {
        self.each(L::look);
    }

    /// Takes the answers that the last poll has announced.
    pub(super) fn receive(&mut self) {
        self.each(L::receive);
    }

    /// Makes later answers cause events, before the thread sleeps. Returns false if batches are already complete.
    pub(super) fn arm(&mut self) -> bool {
        self.each(L::arm);
        self.slots.complete() == 0
    }

    /// Spins for answers until enough batches are complete or the alarm is used. Returns whether either happened.
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

    /// Returns the longest time to sleep. The sleep ends at the latest when a silent node has to be given up, and is
    /// shorter than a pause that [`Links::lose_silent`] would mistake for a stop of this process.
    pub(super) fn bounded(
        &mut self,
        max_wait: Option<Duration>,
        silence: Duration,
    ) -> Option<Duration> {
        let mut wait = max_wait;
        let now = Instant::now();
        for entry in self.entries.iter_mut().flatten().filter(|entry| entry.link.is_waiting()) {
            let since = *entry.silent_since.get_or_insert(now);
            // Rounded up, because a wait of less than a millisecond must not become a busy loop.
            let left = (since + silence).saturating_duration_since(now).min(silence / 4);
            let left = left + Duration::from_millis(1);
            wait = Some(wait.map_or(left, |wait| wait.min(left)));
        }
        wait
    }

    /// Waits for events and passes them to the links.
    pub(super) fn poll(&mut self, wait: Option<Duration>) {
        let mut wait = wait;
        while let Err(error) = self.poll.poll(&mut self.events, wait) {
            // A failing epoll is a bug of this program, not a condition of the system.
            assert!(error.kind() == io::ErrorKind::Interrupted, "cannot poll: {error}");
            // A signal has interrupted the poll, possibly late. The next poll takes the events that have come,
            // without waiting.
            wait = NO_WAIT;
        }
        let mut failed = Vec::new();
        for event in &self.events {
            let Token(token) = event.token();
            // No link has the alarm's token. A link that fails is ended only after all events were handled.
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
    /// Time also passes while this process is stopped, and an answer can arrive meanwhile. So a node is lost only
    /// if a look *after* its time was up finds no answer. The node was possibly stopped together with this
    /// process, as on a machine that sleeps. So after a long pause between two checks, the silence of all nodes is
    /// measured anew.
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
