//! The links of a session, the batches in flight over them, and the poll that it sleeps in.

use std::io;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use fusee_core::verbs::{Batch, MnId, VerbError};
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
    /// Why verbs to this node fail from now on.
    failed: Option<VerbError>,
    /// Since when the node owes an answer and nothing comes; `None`: not known yet.
    silent_since: Option<Instant>,
}

impl<L: Link> Entry<L> {
    /// Does something with the link, which gives whether anything has come. A failure is for good.
    fn attempt(
        &mut self,
        slots: &mut Slots,
        work: impl FnOnce(&mut L, &mut Slots) -> Result<bool, LinkError>,
    ) {
        if self.failed.is_some() {
            return;
        }
        match work(&mut self.link, slots) {
            Ok(true) => self.silent_since = None,
            Ok(false) => {}
            Err(error) => self.fail(&error, slots),
        }
    }

    /// Fails for good, and fails what was in flight.
    fn fail(&mut self, error: &LinkError, slots: &mut Slots) {
        let node = self.link.node();
        match error {
            LinkError::Left => tracing::debug!(%node, "left a memory node"),
            // Each session has its own; that the node is reported unreachable is told once.
            _ => tracing::debug!(%node, %error, "lost a memory node"),
        }
        self.failed = Some(error.verb_error());
        self.link.end(fail_parts(node, error.verb_error(), slots));
    }

    /// In a child: the same, but the connection is the parent's.
    fn leave_behind(&mut self, slots: &mut Slots) {
        let (node, result) = (self.link.node(), VerbError::Unreachable);
        if self.failed.replace(result).is_none() {
            self.link.leave_behind(fail_parts(node, result, slots));
        }
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
pub(super) struct Links<L> {
    poll: mio::Poll,
    events: Events,
    /// Link `n` has the tokens `2n` and `2n + 1`. A failed link stays, so that its verbs fail with the
    /// right reason.
    entries: Vec<Entry<L>>,
    pub(super) slots: Slots,
}

impl<L: Link> Links<L> {
    /// No links, and what wakes a thread that sleeps in [`Links::poll`].
    pub(super) fn new() -> io::Result<(Links<L>, Arc<Alarm>)> {
        let poll = mio::Poll::new()?;
        let alarm = Alarm::new(poll.registry())?;
        let (events, slots) = (Events::with_capacity(64), Slots::default());
        Ok((Links { poll, events, entries: Vec::new(), slots }, alarm))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &L> {
        self.entries.iter().map(|entry| &entry.link)
    }

    /// Adds a link. An earlier one to its node has been detached, and is replaced.
    pub(super) fn adopt(&mut self, mut link: L) -> io::Result<()> {
        let former = self.iter().position(|former| former.node() == link.node());
        let at = former.unwrap_or(self.entries.len());
        link.register(self.poll.registry(), [Token(2 * at), Token(2 * at + 1)])?;
        if let Some(former) = former {
            link.replaces(&self.entries[former].link);
        }
        let entry = Entry { link, failed: None, silent_since: None };
        match former {
            Some(former) => self.entries[former] = entry,
            None => self.entries.push(entry),
        }
        Ok(())
    }

    /// In a child: all fail, and nothing is done to them.
    pub(super) fn leave_behind(&mut self) {
        self.entries.iter_mut().for_each(|entry| entry.leave_behind(&mut self.slots));
    }

    pub(super) fn detach(&mut self, node: MnId) {
        let attached = |entry: &&mut Entry<L>| entry.link.node() == node && entry.failed.is_none();
        if let Some(entry) = self.entries.iter_mut().find(attached) {
            entry.fail(&LinkError::Left, &mut self.slots);
        }
    }

    /// Takes a batch; gives its slot, or the batch if it is complete already.
    pub(super) fn submit(&mut self, mut batch: Batch, task: &Waker) -> Result<usize, Batch> {
        for verb in batch.parts_mut().0 {
            let entry = self.entries.iter().find(|entry| entry.link.node() == verb.node);
            verb.result = match entry {
                None => Err(VerbError::Unreachable),
                Some(Entry { failed: Some(error), .. }) => Err(*error),
                Some(entry) => entry.link.first_result(verb),
            };
        }
        let slot = self.slots.claim();
        let queue = |entry: &mut Entry<L>| entry.link.queue(slot, &batch);
        let parts: usize = self.entries.iter_mut().map(queue).sum();
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
        self.entries.iter_mut().for_each(|entry| entry.attempt(&mut self.slots, &work));
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
            let (complete, in_flight) = (self.slots.complete(), self.slots.in_flight());
            found_some += u32::from(complete > 0);
            complete > 0 && (found_some == L::LOOKS_THAT_FIND_SOME || complete * 2 >= in_flight)
        })
    }

    /// How long to sleep: not beyond the time at which a silent node counts as lost.
    pub(super) fn bounded(
        &mut self,
        max_wait: Option<Duration>,
        silence: Duration,
    ) -> Option<Duration> {
        let (mut wait, now) = (max_wait, Instant::now());
        for entry in self.entries.iter_mut().filter(|entry| entry.link.is_waiting()) {
            let since = *entry.silent_since.get_or_insert(now);
            // Rounded up: a wait of less than a millisecond must not become a busy loop.
            let left = (since + silence).saturating_duration_since(now) + Duration::from_millis(1);
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
        for event in &self.events {
            let Token(token) = event.token();
            // The alarm's is none of theirs.
            if let Some(entry) = self.entries.get_mut(token / 2) {
                let slots = &mut self.slots;
                entry.attempt(slots, |link, _| link.take_event(token % 2, event).map(|()| false));
            }
        }
    }

    /// Gives up nodes that have been silent for too long.
    ///
    /// Time passes also while this process is stopped, and an answer may have come meanwhile. So a node
    /// is silent only if nothing is there *after* its time was up.
    pub(super) fn lose_silent(&mut self, silence: Duration) {
        let now = Instant::now();
        for entry in self.entries.iter_mut().filter(|entry| entry.link.is_waiting()) {
            entry.silent_since.get_or_insert(now);
            if entry.is_overdue(now, silence) {
                entry.attempt(&mut self.slots, L::look);
            }
            if entry.is_overdue(now, silence) {
                entry.fail(&LinkError::Silent(silence), &mut self.slots);
            }
        }
    }
}
