//! The session's side of fabrics with connections: many batches in flight over one link per memory node.
//!
//! [`Driver`] is a session over TCP or verbs. The session's `FabricLink`s post the verbs of batches to the nodes
//! and receive the answers. The driver does the rest: it keeps the batches in flight and the tasks that wait for
//! them, spins and sleeps, and handles nodes that come, go, fail or fall silent.
//!
//! A batch is queued when its future is first polled. [`Driver::turn`] posts queued batches, takes answers, and wakes
//! the tasks whose batches are complete, so an executor must call it while tasks wait. A turn spins for a while before
//! it sleeps. A node that owes an answer and sends nothing for [`DriverOptions::silence`] counts as lost.
//!
//! The kind of link is a type parameter, so the driver makes no calls through pointers.
//!
//! Shared memory has no driver, because the session's own thread executes the verbs within the first poll. No batch
//! is ever in flight, and the session learns of a node's loss at a gate, not by silence.

mod alarm;
mod batch_future;
mod link;
mod links;
mod slots;

use std::cell::{Cell, RefCell};
use std::io;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use fusee_auth::{Keyring, NodeKey};
use fusee_core::verbs::{ClientId, Fabric, MnId, VerbBatch, VerbError};
use fusee_tls::TlsSettings;

use self::alarm::Alarm;
pub(crate) use self::batch_future::DriverBatchFuture;
pub(crate) use self::link::{FabricLink, LinkError, LinkTarget, NoLinkCounts, is_for};
use self::links::Links;
pub(crate) use self::slots::BatchSlots;
use crate::any_fabric::SwitchLocation;
use crate::error::{AttachCause, AttachError};
use crate::fork::ProcessBound;
use crate::hello::ContinueFn;
use crate::spin::{DEFAULT_SPIN, Spin};

/// Time limits for memory nodes, and the time to spin for answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverOptions {
    /// The time in which a node has to accept a connection, and again to answer the hello.
    pub connect: Duration,
    /// The time after which a node that owes an answer and sends nothing counts as lost. Over verbs this time must be
    /// longer than the time for which NICs repeat verbs.
    pub silence: Duration,
    /// The time to spin for answers before sleeping; zero: sleep at once. If answers take longer than this, the session
    /// soon stops spinning before most of its sleeps.
    pub spin: Duration,
}

impl Default for DriverOptions {
    fn default() -> DriverOptions {
        DriverOptions {
            connect: Duration::from_secs(2),
            silence: Duration::from_secs(5),
            spin: DEFAULT_SPIN,
        }
    }
}

/// The number of turns between two checks for events and silent nodes, in a session that never sleeps. Only over
/// links that work without system calls.
const CARE_TURNS: u32 = 256;

const NO_WAIT: Option<Duration> = Some(Duration::ZERO);

/// A session's connections to memory nodes.
#[derive(Debug)]
pub struct Driver<L: FabricLink> {
    client: ClientId,
    options: DriverOptions,
    silence: Cell<Duration>,
    /// The switch, if one is allowed to steer the session's READs.
    switch: RefCell<Option<SwitchLocation>>,
    tls: RefCell<Option<TlsSettings>>,
    keys: RefCell<Option<Keyring>>,
    turns: Cell<u32>,
    alarm: Arc<Alarm>,
    links: ProcessBound<RefCell<Links<L>>>,
    spin: RefCell<Spin>,
}

impl<L: FabricLink> Driver<L> {
    /// Makes a session without memory nodes.
    pub fn new(client: ClientId, options: DriverOptions) -> io::Result<Driver<L>> {
        let (links, alarm) = Links::new()?;
        let links = ProcessBound::new(RefCell::new(links));
        let spin = RefCell::new(Spin::new(options.spin));
        let silence = Cell::new(options.silence);
        let switch = RefCell::default();
        let turns = Cell::new(0);
        let tls = RefCell::default();
        let keys = RefCell::default();
        Ok(Driver { client, options, silence, switch, tls, keys, turns, alarm, links, spin })
    }

    /// Attaches to the memory node at `address` (host and port). Replaces the attachment to an earlier node with
    /// the same number; verbs in flight to that node fail as unreachable.
    pub fn attach(&self, node: MnId, identity: u64, address: &str) -> Result<(), AttachError> {
        self.attach_while(node, identity, address, &|| true)
    }

    /// Attaches like `attach`. Gives up soon after `goes_on` returns false.
    pub(crate) fn attach_while(
        &self,
        node: MnId,
        identity: u64,
        address: &str,
        goes_on: ContinueFn<'_>,
    ) -> Result<(), AttachError> {
        let switch = self.switch.borrow();
        let address = match &*switch {
            Some(SwitchLocation::Address(switch)) => switch,
            Some(SwitchLocation::Wire) | None => address,
        };
        let failed = |cause| AttachError { node, at: address.into(), cause };
        if !self.links.is_here() {
            return Err(failed(AttachCause::Forked));
        }
        let client = self.client;
        let wait = self.options.connect;
        let tls = self.tls.borrow();
        let keys = self.keys.borrow();
        let key = NodeKey::new(keys.as_ref(), identity);
        let tls = tls.as_ref();
        let target = LinkTarget { node, key, address, client, wait, goes_on, tls };
        let link = L::connect(&target).map_err(failed)?;
        self.detach(node);
        self.links.borrow_mut().adopt(link).map_err(|error| failed(AttachCause::Io(error)))
    }

    /// Ends the session with a memory node. Verbs to that node fail as unreachable from now on.
    pub fn detach(&self, node: MnId) {
        if self.links.is_here() {
            self.links.borrow_mut().detach(node);
            self.wake_all();
        }
    }

    /// Ends the session with all memory nodes.
    pub fn leave(&self) {
        let nodes: Vec<MnId> = self.links.borrow().iter().map(L::node).collect();
        nodes.into_iter().for_each(|node| self.detach(node));
    }

    /// Returns the number of memory nodes that the session remembers: nodes it is attached to, and nodes it has
    /// lost and not left.
    #[doc(hidden)]
    pub fn remembered(&self) -> usize {
        self.links.borrow().remembered()
    }

    /// Makes the session reach all nodes that it attaches to from now on through this switch.
    pub fn go_through(&self, switch: &SwitchLocation) {
        self.switch.replace(Some(switch.clone()));
    }

    /// Makes the session use TLS with all nodes that it attaches to from now on, if its links support TLS (those
    /// over TCP do).
    pub fn secure(&self, tls: &TlsSettings) {
        self.tls.replace(Some(tls.clone()));
    }

    /// Makes the session demand, from now on, that every node to which it attaches proves a key derived from the
    /// client's key in `keys`.
    pub fn use_keys(&self, keys: &Keyring) {
        self.keys.replace(Some(keys.clone()));
    }

    /// Sets the silence after which a node counts as lost (see [`DriverOptions::silence`]).
    pub fn set_silence(&self, silence: Duration) {
        self.silence.set(silence);
    }

    /// Returns a waker that ends a sleep in [`Driver::turn`]. Any thread can use it.
    pub fn waker(&self) -> Waker {
        self.alarm.waker()
    }

    /// Posts queued batches, waits at most `max_wait` (`None`: without limit) for answers or a wake-up, and
    /// completes batches. Returns at once if the waker was used after the last turn.
    pub fn turn(&self, max_wait: Option<Duration>) {
        if !self.links.is_here() {
            self.links.borrow_mut().abandon_after_fork();
            return self.wake_all();
        }
        let mut links = self.links.borrow_mut();
        self.turn_links(&mut links, max_wait);
        drop(links);
        self.alarm.stop();
        self.wake_all();
        self.alarm.answer();
    }

    fn turn_links(&self, links: &mut Links<L>, max_wait: Option<Duration>) {
        let silence = self.silence.get();
        if L::USER_SPACE {
            // Batches were posted when they were queued. If this look finds answers, the turn does no more.
            links.look();
            self.turns.set(self.turns.get().wrapping_add(1));
            if self.turns.get().is_multiple_of(CARE_TURNS) {
                links.poll(NO_WAIT);
                links.lose_silent(silence);
            }
        } else {
            links.post();
        }
        let can_wait = max_wait != NO_WAIT && links.slots.complete() == 0;
        let found = can_wait && links.spin(&mut self.spin.borrow_mut(), &self.alarm);
        // With links that use system calls, only the system knows which links have answers. So the system is asked even
        // if there is no time to wait.
        let polls = !found && (can_wait || !L::USER_SPACE);
        if polls {
            let is_idle = can_wait && links.slots.complete() == 0;
            // Answers that arrive after the arming cause an event; the arming itself takes earlier answers.
            let sleeps = is_idle && self.alarm.set() && links.arm();
            let wait = if sleeps { links.bounded(max_wait, silence) } else { NO_WAIT };
            links.poll(wait);
            links.receive();
        }
        if polls || !L::USER_SPACE {
            links.lose_silent(silence);
        }
    }

    /// Returns the counts of all links so far, failed ones included.
    pub(crate) fn link_counts(&self) -> L::Counts {
        self.links.borrow().counts()
    }

    fn submit(&self, mut batch: VerbBatch, task: &Waker) -> Result<usize, VerbBatch> {
        if !self.links.is_here() {
            batch.fail(VerbError::Unreachable);
            return Err(batch);
        }
        self.links.borrow_mut().submit(batch, task)
    }

    /// Calls `look` with the session's batch slots. The caller must not hold a borrow of the links.
    fn with_slots<R>(&self, look: impl FnOnce(&mut BatchSlots) -> R) -> R {
        look(&mut self.links.borrow_mut().slots)
    }

    /// Wakes the tasks of complete batches. The driver's state is not borrowed meanwhile, because a waker can call the
    /// driver again.
    fn wake_all(&self) {
        let mut wake = self.with_slots(BatchSlots::take_wake);
        wake.drain(..).for_each(Waker::wake);
        self.with_slots(|slots| slots.reuse_wake(wake));
    }

    pub(crate) fn start(&self, batch: VerbBatch) -> DriverBatchFuture<'_, L> {
        DriverBatchFuture::new(self, batch)
    }
}

impl<L: FabricLink> Fabric for Driver<L> {
    fn execute(&self, batch: VerbBatch) -> impl Future<Output = VerbBatch> {
        self.start(batch)
    }

    #[inline]
    fn waits_for_reads(&self) -> bool {
        L::WAITS_FOR_READS
    }

    #[inline]
    fn may_steer(&self) -> bool {
        self.switch.borrow().is_some()
    }
}
