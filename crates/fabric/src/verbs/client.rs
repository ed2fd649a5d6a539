//! The session's side of verbs: many batches in flight over one queue pair per memory node.
//!
//! A batch is handed to the cards when its future is first polled, with one doorbell for each memory node
//! that it is for. [`VerbsFabric::turn`] looks for completions and wakes the tasks whose batches are
//! complete. It looks for a while before it sleeps, as over TCP; asleep, it waits for completion events.
//!
//! A node is lost when a card has repeated a verb in vain (`device` says how often), when it refuses one,
//! when the connection ends over which it said hello, or when nothing at all comes of a verb for
//! [`VerbsOptions::silence`]: a card or its driver that hangs. Whatever is in flight then fails, and the queue
//! pair is destroyed, so that none of it executes later; nothing is posted there again.

use std::cell::{Cell, RefCell};
use std::io;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use fusee_core::verbs::{Batch, ClientId, Fabric, MnId, VerbError};
use mio::unix::SourceFd;
use mio::{Events, Interest, Token};

use super::link::{self, Link, LinkError};
use super::requester::CardCounts;
use crate::alarm::Alarm;
use crate::error::{AttachCause, AttachError};
use crate::hello::GoesOn;
use crate::slots::{Execute, Posts, Slots};
use crate::spin::{DEFAULT_SPIN, Spin};

/// Times that a session takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerbsOptions {
    /// For a memory node to accept a connection, and again to answer the hello.
    pub connect: Duration,
    /// Without any completion while verbs are with the card; longer than cards repeat verbs.
    pub silence: Duration,
    /// How long to look for completions before sleeping; where they take longer, sessions soon sleep
    /// at once. Zero: always.
    pub spin: Duration,
}

impl Default for VerbsOptions {
    fn default() -> VerbsOptions {
        VerbsOptions {
            connect: Duration::from_secs(2),
            silence: Duration::from_secs(5),
            spin: DEFAULT_SPIN,
        }
    }
}

/// A session that never sleeps looks after its leases, and after silent cards, every so many turns.
const CARE_TURNS: u32 = 256;

const NO_WAIT: Option<Duration> = Some(Duration::ZERO);

#[derive(Debug)]
struct Inner {
    poll: mio::Poll,
    events: Events,
    /// Link `n` has the token `2n` for its lease and `2n + 1` for its completions. A failed link stays,
    /// so that its verbs fail with the right reason.
    links: Vec<Link>,
    slots: Slots,
    turns: u32,
    /// Of links that have been replaced.
    counted: CardCounts,
}

/// A session's connections to memory nodes.
#[derive(Debug)]
pub struct VerbsFabric {
    client: ClientId,
    options: VerbsOptions,
    silence: Cell<Duration>,
    alarm: Arc<Alarm>,
    inner: RefCell<Inner>,
    spin: RefCell<Spin>,
}

impl VerbsFabric {
    /// A session without memory nodes.
    pub fn new(client: ClientId, options: VerbsOptions) -> io::Result<VerbsFabric> {
        let poll = mio::Poll::new()?;
        let alarm = Alarm::new(poll.registry())?;
        let inner = Inner {
            poll,
            events: Events::with_capacity(64),
            links: Vec::new(),
            slots: Slots::default(),
            turns: 0,
            counted: CardCounts::default(),
        };
        let (inner, spin) = (RefCell::new(inner), RefCell::new(Spin::new(options.spin)));
        let silence = Cell::new(options.silence);
        Ok(VerbsFabric { client, options, silence, alarm, inner, spin })
    }

    /// Attaches to the memory node that says hello at `address` (host and port). A node attached before
    /// under this name is replaced; what was in flight to it fails as unreachable.
    pub fn attach(&self, node: MnId, identity: u64, address: &str) -> Result<(), AttachError> {
        self.attach_while(node, identity, address, &|| true)
    }

    /// As `attach`, as long as `goes_on`.
    pub(crate) fn attach_while(
        &self,
        node: MnId,
        identity: u64,
        address: &str,
        goes_on: GoesOn<'_>,
    ) -> Result<(), AttachError> {
        let wait = self.options.connect;
        let failed = |cause| AttachError { node, at: address.into(), cause };
        let link =
            link::connect(node, address, self.client, identity, wait, goes_on).map_err(failed)?;
        self.detach(node);
        self.inner.borrow_mut().adopt(link).map_err(|error| failed(AttachCause::Io(error)))
    }

    /// Ends the session with a memory node; its verbs are unreachable from now on.
    pub fn detach(&self, node: MnId) {
        let mut inner = self.inner.borrow_mut();
        let attached = |l: &Link| l.node == node && l.failed.is_none();
        if let Some(link) = inner.links.iter().position(attached) {
            inner.fail(link, &LinkError::Left);
        }
        drop(inner);
        self.wake_all();
    }

    /// Ends the session with all memory nodes.
    pub fn leave(&self) {
        let nodes: Vec<MnId> = self.inner.borrow().links.iter().map(|link| link.node).collect();
        nodes.into_iter().for_each(|node| self.detach(node));
    }

    /// From now on so much silence is enough: see [`VerbsOptions::silence`].
    pub fn set_silence(&self, silence: Duration) {
        self.silence.set(silence);
    }

    /// Wakes a thread that sleeps in [`VerbsFabric::turn`], from any thread.
    pub fn waker(&self) -> Waker {
        self.alarm.waker()
    }

    /// What has been handed to network cards so far.
    pub fn counts(&self) -> CardCounts {
        let inner = self.inner.borrow();
        let mut counts = inner.counted;
        inner.links.iter().for_each(|link| counts += link.counts());
        counts
    }

    /// Takes completions, waiting at most `max_wait` (`None`: without limit) for some or a wake-up, and
    /// completes batches. Returns at once if the waker was used since the last turn.
    pub fn turn(&self, max_wait: Option<Duration>) {
        let mut inner = self.inner.borrow_mut();
        inner.look();
        inner.turns = inner.turns.wrapping_add(1);
        if inner.turns.is_multiple_of(CARE_TURNS) {
            inner.wait(NO_WAIT);
            inner.lose_silent(self.silence.get());
        }
        let has_time = inner.slots.complete() == 0 && max_wait != NO_WAIT;
        if has_time && !inner.spin(&mut self.spin.borrow_mut(), &self.alarm) {
            // What completes from the arming on makes an event; what was there before is looked for.
            let sleep = self.alarm.set() && inner.arm();
            let silence = self.silence.get();
            let wait = if sleep { inner.bounded(max_wait, silence) } else { NO_WAIT };
            inner.wait(wait);
            inner.look();
            inner.lose_silent(silence);
        }
        drop(inner);
        self.alarm.stop();
        self.wake_all();
        self.alarm.answer();
    }
}

impl Inner {
    fn adopt(&mut self, mut link: Link) -> io::Result<()> {
        // The place of a node that was detached, or a new one.
        let free = self.links.iter().position(|l| l.node == link.node);
        let at = free.unwrap_or(self.links.len());
        let (registry, readable) = (self.poll.registry(), Interest::READABLE);
        registry.register(&mut link.lease, Token(2 * at), readable)?;
        let fd = link.fd().expect("a new link has not failed");
        registry.register(&mut SourceFd(&fd), Token(2 * at + 1), readable)?;
        match free {
            Some(_) => {
                self.counted += self.links[at].counts();
                self.links[at] = link;
            }
            None => self.links.push(link),
        }
        Ok(())
    }

    /// Posts a batch; gives its slot, or the batch if it is complete already.
    fn submit(&mut self, mut batch: Batch, task: &Waker) -> Result<usize, Batch> {
        for verb in batch.parts_mut().0 {
            let link = self.links.iter().find(|link| link.node == verb.node);
            verb.result = match link {
                None => Err(VerbError::Unreachable),
                Some(Link { failed: Some(error), .. }) => Err(*error),
                // Checked by the card, too; but there it would end the connection.
                Some(link) => verb.check(link.pool_bytes).and_then(|()| match verb.bytes() {
                    // Nothing to do.
                    0 => Ok(()),
                    _ => Err(VerbError::NotExecuted),
                }),
            };
        }
        let parts = self.links.iter().filter(|link| link.count(&batch) > 0).count();
        if parts == 0 {
            return Err(batch);
        }
        let slot = self.slots.claim();
        self.slots.fill(slot, batch, parts, task);
        for at in 0..self.links.len() {
            let link = &mut self.links[at];
            let left = link.count(self.slots.batch(slot));
            if left > 0
                && let Err(error) = link.submit(slot, left, &mut self.slots)
            {
                self.fail(at, &error);
            }
        }
        Ok(slot)
    }

    /// Takes the completions of all links.
    fn look(&mut self) {
        for at in 0..self.links.len() {
            let link = &mut self.links[at];
            if link.is_waiting()
                && let Err(error) = link.look(&mut self.slots)
            {
                self.fail(at, &error);
            }
        }
    }

    /// Looks for completions for a while, until batches are complete or somebody wakes the session;
    /// whether one of it happened.
    fn spin(&mut self, spin: &mut Spin, alarm: &Alarm) -> bool {
        if !self.links.iter().any(Link::is_waiting) {
            return false;
        }
        spin.until(|| {
            self.look();
            alarm.has_rung() || self.slots.complete() > 0
        })
    }

    /// Before sleeping: asks for events. False: something is there already.
    fn arm(&mut self) -> bool {
        for at in 0..self.links.len() {
            let link = &mut self.links[at];
            if link.is_waiting()
                && let Err(error) = link.arm()
            {
                self.fail(at, &error);
            }
        }
        self.look();
        self.slots.complete() == 0
    }

    /// How long to sleep: not beyond the time at which a silent card counts as lost.
    fn bounded(&mut self, max_wait: Option<Duration>, silence: Duration) -> Option<Duration> {
        let (mut wait, now) = (max_wait, Instant::now());
        for link in self.links.iter_mut().filter(|link| link.is_waiting()) {
            let since = *link.silent_since.get_or_insert(now);
            // Rounded up: a wait of less than a millisecond must not become a busy loop.
            let left = (since + silence).saturating_duration_since(now) + Duration::from_millis(1);
            wait = Some(wait.map_or(left, |wait| wait.min(left)));
        }
        wait
    }

    /// Gives up nodes of which nothing has come for too long.
    ///
    /// Time passes also while this process is stopped, and a completion may have come meanwhile. So a card
    /// is silent only if nothing is there *after* its time was up.
    fn lose_silent(&mut self, silence: Duration) {
        let now = Instant::now();
        for at in 0..self.links.len() {
            let link = &mut self.links[at];
            if !link.is_waiting() || now < *link.silent_since.get_or_insert(now) + silence {
                continue;
            }
            match link.look(&mut self.slots) {
                Ok(()) if link.silent_since.is_some() => self.fail(at, &LinkError::Silent(silence)),
                Ok(()) => {}
                Err(error) => self.fail(at, &error),
            }
        }
    }

    /// Waits for events.
    fn wait(&mut self, wait: Option<Duration>) {
        let mut wait = wait;
        while let Err(error) = self.poll.poll(&mut self.events, wait) {
            // An epoll that fails is a bug, not a state of the world.
            assert!(error.kind() == io::ErrorKind::Interrupted, "cannot poll: {error}");
            // Interrupted, perhaps for long: look at what has come, do not wait again.
            wait = NO_WAIT;
        }
        let mut ended = Vec::new();
        for event in &self.events {
            let Token(token) = event.token();
            let Some(link) = self.links.get_mut(token / 2) else { continue };
            if link.failed.is_some() {
                continue;
            }
            match token % 2 {
                0 => ended.extend(link.end_of_lease().map(|error| (token / 2, error))),
                _ => link.take_events(),
            }
        }
        for (at, error) in ended {
            self.fail(at, &error);
        }
    }

    fn fail(&mut self, at: usize, error: &LinkError) {
        self.links[at].fail(error, &mut self.slots);
    }
}

impl Posts for VerbsFabric {
    fn submit(&self, batch: Batch, task: &Waker) -> Result<usize, Batch> {
        self.inner.borrow_mut().submit(batch, task)
    }

    fn with_slots<R>(&self, look: impl FnOnce(&mut Slots) -> R) -> R {
        look(&mut self.inner.borrow_mut().slots)
    }
}

impl VerbsFabric {
    pub(crate) fn start(&self, batch: Batch) -> Execute<'_, VerbsFabric> {
        Execute::new(self, batch)
    }
}

impl Fabric for VerbsFabric {
    fn execute(&self, batch: Batch) -> impl Future<Output = Batch> {
        self.start(batch)
    }

    /// See `link` for what cards may reorder.
    #[inline]
    fn waits_for_reads(&self) -> bool {
        true
    }
}
