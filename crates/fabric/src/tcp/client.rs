//! The session's side of TCP: many batches in flight over one connection per memory node.
//!
//! A batch is encoded into the connections' buffers when its future is first polled. The next
//! [`TcpFabric::turn`] sends everything that has gathered there with one system call for each
//! node, waits for replies, and wakes the tasks whose batches are complete. So batches of many
//! tasks share system calls, and a lone batch goes out at once: a task that waits lets its
//! executor turn.
//!
//! A node that owes a reply and sends nothing for [`TcpOptions::silence`] counts as lost.

use std::cell::{Cell, RefCell};
use std::io;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use fusee_core::verbs::{Batch, ClientId, Fabric, MnId, VerbError};
use mio::{Events, Interest, Token};

use super::frame::Results;
use super::link::{self, Link, LinkError, Part};
use crate::alarm::Alarm;
use crate::error::{AttachCause, AttachError};
use crate::hello::GoesOn;
use crate::slots::{Execute, Posts, Slots};
use crate::spin::{DEFAULT_SPIN, Spin};

/// Times that a session grants a memory node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpOptions {
    /// To accept a connection, and again to answer the hello.
    pub connect: Duration,
    /// Without any byte while it owes a reply.
    pub silence: Duration,
    /// How long to look for replies before sleeping; where they take longer, sessions soon sleep
    /// at once. Zero: always.
    pub spin: Duration,
}

impl Default for TcpOptions {
    fn default() -> TcpOptions {
        TcpOptions {
            connect: Duration::from_secs(2),
            silence: Duration::from_secs(5),
            spin: DEFAULT_SPIN,
        }
    }
}

#[derive(Debug)]
struct Inner {
    poll: mio::Poll,
    events: Events,
    /// By token; a failed link stays, so that its verbs fail with the right reason.
    links: Vec<Link>,
    slots: Slots,
}

/// A session's connections to memory nodes.
#[derive(Debug)]
pub struct TcpFabric {
    client: ClientId,
    options: TcpOptions,
    silence: Cell<Duration>,
    alarm: Arc<Alarm>,
    inner: RefCell<Inner>,
    spin: RefCell<Spin>,
}

impl TcpFabric {
    /// A session without memory nodes.
    pub fn new(client: ClientId, options: TcpOptions) -> io::Result<TcpFabric> {
        let poll = mio::Poll::new()?;
        let alarm = Alarm::new(poll.registry())?;
        let inner = Inner {
            poll,
            events: Events::with_capacity(64),
            links: Vec::new(),
            slots: Slots::default(),
        };
        let (inner, spin) = (RefCell::new(inner), RefCell::new(Spin::new(options.spin)));
        let silence = Cell::new(options.silence);
        Ok(TcpFabric { client, options, silence, alarm, inner, spin })
    }

    /// Attaches to the memory node that listens at `address` (host and port). A node attached
    /// before under this name is replaced; what was in flight to it fails as unreachable.
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
        let mut link =
            link::connect(node, address, self.client, identity, wait, goes_on).map_err(failed)?;
        self.detach(node);
        let inner = &mut *self.inner.borrow_mut();
        // The place of a node that was detached, or a new one.
        let free = inner.links.iter().position(|l| l.node == node);
        let token = Token(free.unwrap_or(inner.links.len()));
        let interest = Interest::READABLE | Interest::WRITABLE;
        let registered = inner.poll.registry().register(&mut link.stream, token, interest);
        registered.map_err(|error| failed(AttachCause::Io(error)))?;
        match free {
            Some(free) => inner.links[free] = link,
            None => inner.links.push(link),
        }
        Ok(())
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

    /// From now on so much silence is enough: see [`TcpOptions::silence`].
    pub fn set_silence(&self, silence: Duration) {
        self.silence.set(silence);
    }

    /// Wakes a thread that sleeps in [`TcpFabric::turn`], from any thread.
    pub fn waker(&self) -> Waker {
        self.alarm.waker()
    }

    /// Sends what is queued, waits at most `max_wait` (`None`: without limit) for replies or a
    /// wake-up, and completes batches. Returns at once if the waker was used since the last turn.
    pub fn turn(&self, max_wait: Option<Duration>) {
        let mut inner = self.inner.borrow_mut();
        inner.flush();
        if max_wait == NO_WAIT || !inner.spin(&mut self.spin.borrow_mut(), &self.alarm) {
            let sleep = inner.slots.complete() == 0 && max_wait != NO_WAIT && self.alarm.set();
            let wait = if sleep { inner.wait(max_wait, self.silence.get()) } else { NO_WAIT };
            inner.poll(wait);
            inner.receive();
        }
        inner.lose_silent(self.silence.get());
        drop(inner);
        self.alarm.stop();
        self.wake_all();
        self.alarm.answer();
    }
}

/// How many looks may find some batches complete, but fewer than half of those in flight, before
/// that is enough. Tasks that go on together share the system calls of what they post next.
const LOOKS_THAT_FIND_SOME: u32 = 5;

const NO_WAIT: Option<Duration> = Some(Duration::ZERO);

impl Inner {
    /// Queues a batch; gives its slot, or the batch if it is complete already.
    fn submit(&mut self, mut batch: Batch, task: &Waker) -> Result<usize, Batch> {
        for verb in batch.parts_mut().0 {
            let link = self.links.iter().find(|link| link.node == verb.node);
            verb.result = match link {
                None => Err(VerbError::Unreachable),
                Some(Link { failed: Some(error), .. }) => Err(*error),
                // Checked by the node, too; but there it would end the connection.
                Some(link) => verb.check(link.pool_bytes).and(Err(VerbError::NotExecuted)),
            };
        }
        let slot = self.slots.claim();
        let parts: usize = self.links.iter_mut().map(|link| link.submit(slot, &batch)).sum();
        if parts == 0 {
            self.slots.give_back(slot);
            return Err(batch);
        }
        self.slots.fill(slot, batch, parts, task);
        Ok(slot)
    }

    fn flush(&mut self) {
        for at in 0..self.links.len() {
            let link = &mut self.links[at];
            if link.has_output()
                && let Err(error) = link.flush()
            {
                self.fail(at, &error);
            }
        }
    }

    /// Looks for replies for a while, until batches are complete or somebody wakes the session;
    /// whether one of it happened.
    fn spin(&mut self, spin: &mut Spin, alarm: &Alarm) -> bool {
        // A link that cannot send waits for an event, which only the poll tells.
        let can_spin = self.slots.complete() == 0
            && self.links.iter().any(Link::is_waiting)
            && !self.links.iter().any(Link::has_output);
        if !can_spin {
            return false;
        }
        let mut found_some = 0;
        spin.until(|| {
            for link in self.links.iter_mut().filter(|link| link.is_waiting()) {
                link.readable = true;
            }
            self.receive();
            if alarm.has_rung() {
                return true;
            }
            let (complete, in_flight) = (self.slots.complete(), self.slots.in_flight());
            found_some += u32::from(complete > 0);
            complete > 0 && (found_some == LOOKS_THAT_FIND_SOME || complete * 2 >= in_flight)
        })
    }

    /// How long to sleep: not beyond the time at which a silent node counts as lost.
    fn wait(&mut self, max_wait: Option<Duration>, silence: Duration) -> Option<Duration> {
        let mut wait = max_wait;
        let mut now = None;
        for link in self.links.iter_mut().filter(|link| link.failed.is_none()) {
            if !link.is_waiting() {
                continue;
            }
            let now = *now.get_or_insert_with(Instant::now);
            let left =
                (*link.silent_since.get_or_insert(now) + silence).saturating_duration_since(now);
            // Rounded up: a wait of less than a millisecond must not become a busy loop.
            let left = left + Duration::from_millis(1);
            wait = Some(wait.map_or(left, |wait| wait.min(left)));
        }
        wait
    }

    fn poll(&mut self, wait: Option<Duration>) {
        let mut wait = wait;
        while let Err(error) = self.poll.poll(&mut self.events, wait) {
            // An epoll that fails is a bug, not a state of the world.
            assert!(error.kind() == io::ErrorKind::Interrupted, "cannot poll: {error}");
            // Interrupted, perhaps for long: look at what has come, do not wait again.
            wait = Some(Duration::ZERO);
        }
        for event in &self.events {
            let Some(link) = self.links.get_mut(event.token().0) else { continue };
            if link.failed.is_none() {
                let closed = event.is_read_closed() || event.is_error();
                link.readable |= event.is_readable() || closed;
                link.read_closed |= closed;
                link.writable |= event.is_writable() || event.is_write_closed();
            }
        }
    }

    fn receive(&mut self) {
        for at in 0..self.links.len() {
            let link = &mut self.links[at];
            if link.failed.is_some() || !(link.readable || link.has_output()) {
                continue;
            }
            let slots = &mut self.slots;
            let mut done = |node, part: Part, results: Results<'_>| {
                if let Some(batch) = slots.wanted(part.slot) {
                    part.complete(node, batch, results)?;
                }
                slots.finish_part(part.slot);
                Ok(())
            };
            if let Err(error) = link.receive(&mut done).and_then(|()| link.flush()) {
                self.fail(at, &error);
            }
        }
    }

    /// Gives up nodes that have been silent for too long.
    ///
    /// Time passes also while this process is stopped, and a reply may have come meanwhile. So a
    /// node is silent only if nothing is there to be read *after* its time was up.
    fn lose_silent(&mut self, silence: Duration) {
        let now = Instant::now();
        for link in self.links.iter_mut().filter(|link| link.is_waiting()) {
            link.silent_since.get_or_insert(now);
        }
        let overdue = |link: &Link| {
            link.failed.is_none()
                && link.is_waiting()
                && link.silent_since.is_some_and(|since| now.duration_since(since) >= silence)
        };
        if !self.links.iter().any(overdue) {
            return;
        }
        self.poll(Some(Duration::ZERO));
        self.receive();
        for at in 0..self.links.len() {
            if overdue(&self.links[at]) {
                self.fail(at, &LinkError::Silent(silence));
            }
        }
    }

    fn fail(&mut self, at: usize, error: &LinkError) {
        let link = &mut self.links[at];
        let node = link.node;
        for part in link.fail(error) {
            if let Some(batch) = self.slots.wanted(part.slot) {
                part.fail(node, batch, error.verb_error());
            }
            self.slots.finish_part(part.slot);
        }
    }
}

impl Posts for TcpFabric {
    fn submit(&self, batch: Batch, task: &Waker) -> Result<usize, Batch> {
        self.inner.borrow_mut().submit(batch, task)
    }

    fn with_slots<R>(&self, look: impl FnOnce(&mut Slots) -> R) -> R {
        look(&mut self.inner.borrow_mut().slots)
    }
}

impl TcpFabric {
    pub(crate) fn start(&self, batch: Batch) -> Execute<'_, TcpFabric> {
        Execute::new(self, batch)
    }
}

impl Fabric for TcpFabric {
    fn execute(&self, batch: Batch) -> impl Future<Output = Batch> {
        self.start(batch)
    }
}
