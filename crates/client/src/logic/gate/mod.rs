//! The gate between a session and the keeper of its process. Through it the keeper passes the newest view and epoch to
//! the session, and the session tells the keeper in which local epoch its operations are pinned.
//!
//! The keeper talks to the master for all sessions of a process, on another thread than theirs, so that the master
//! hears from a session even while the session's thread sleeps or is busy elsewhere. An idle session thus acknowledges
//! views and epochs without waking up.
//!
//! Each part of the gate has its own state: [`local_epochs`] has views, epochs and operations; [`pending_frees`] the
//! objects whose free bits are not set yet; [`marks`] the marks that have passed; [`offers`] blocks for other sessions;
//! [`lease`] the end of the session's lease; [`wakers`] the wakers of all that waits. This module has what needs
//! several of these parts, above all the session's [`SessionGate::heartbeat`].

mod lease;
mod local_epochs;
mod marks;
mod offers;
mod pending_frees;
mod wakers;

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;
use std::time::Duration;

use fusee_control::master::{Orphan, SessionHeartbeat};
use fusee_core::data::{Policy, Transitions};
use fusee_core::host::PinnedOperations;
use fusee_core::stats::{Damage, SessionWork};
use fusee_core::verbs::ClientId;
use fusee_core::view::View;
use fusee_core::view::change::ChangeStage;
use futures_util::task::AtomicWaker;

pub use self::lease::Lease;
use self::local_epochs::GateEpochs;
pub use self::marks::SessionMarks;
pub use self::offers::BlockOffers;
pub use self::pending_frees::PendingFrees;
use self::wakers::Wakers;
use crate::sync::{AtomicBool, AtomicU64};

/// Number of epochs after which objects whose free bits are not set yet are revoked; see [`pending_frees`].
const REVOKED_AFTER: u64 = 16;

/// The counters of a session. Nothing depends on their values, so the model checker need not see them.
pub trait WorkCounters: std::fmt::Debug + Send + Sync {
    /// Returns the sums of the session's operations so far.
    fn work(&self) -> SessionWork;
}

/// The state that a session and its keeper share.
#[derive(Debug)]
pub struct SessionGate {
    client: ClientId,
    local_epochs: GateEpochs,
    /// Objects that the session has freed and whose free bits are not set yet.
    pub freed: PendingFrees,
    /// The numbers of the keeper's heartbeats to the master, and which marks of the session have passed.
    pub questions: SessionMarks,
    /// Blocks that the keeper is allowed to hand on to other sessions; see [`SessionGate::offer`].
    pub offers: BlockOffers,
    /// The session's lease.
    pub lease: Lease,
    /// Numbers of replicas that the session has found damaged, and has repaired.
    damaged: AtomicU64,
    repaired: AtomicU64,
    /// The cluster's policy, which the session follows unless its client's options say otherwise.
    policy: Policy,
    /// Counts of the redundancy changes that the session has made by the policy. Nothing depends on these numbers, so
    /// the model checker need not see them.
    transitions: Mutex<Transitions>,
    /// The counters of the session's operations, once the session has begun.
    counted: OnceLock<Arc<dyn WorkCounters>>,
    /// Whether memory is short, as far as this process knows.
    short: AtomicBool,
    /// Whether the master has called for memory since the session last called [`SessionGate::was_called`].
    called: AtomicBool,
    expelled: AtomicBool,
    wakers: Wakers,
}

impl SessionGate {
    /// Makes the gate of a session that begins with this view and in this epoch.
    pub fn new(client: ClientId, view: Arc<View>, epoch: u64) -> SessionGate {
        SessionGate {
            client,
            local_epochs: GateEpochs::new(view, epoch),
            freed: PendingFrees::new(),
            questions: SessionMarks::new(),
            offers: BlockOffers::default(),
            lease: Lease::forever(),
            damaged: AtomicU64::new(0),
            repaired: AtomicU64::new(0),
            policy: Policy::default(),
            transitions: Mutex::default(),
            counted: OnceLock::new(),
            short: AtomicBool::new(false),
            called: AtomicBool::new(false),
            expelled: AtomicBool::new(false),
            wakers: Wakers::new(),
        }
    }

    /// Sets the end of the session's lease.
    pub fn with_lease_end(self, until: Duration) -> SessionGate {
        self.lease.ends(until);
        self
    }

    /// Sets the policy that the master told the session.
    pub fn with_policy(self, policy: Policy) -> SessionGate {
        SessionGate { policy, ..self }
    }

    /// Returns the policy that the master told the session.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns the session's id.
    pub fn client(&self) -> ClientId {
        self.client
    }

    /// Sets, on behalf of the session, the waker of its thread.
    pub fn set_waker(&self, waker: Waker) {
        self.wakers.set_thread(waker);
    }

    /// Sets the waker of the keeper.
    pub fn set_keeper(&self, keeper: Arc<AtomicWaker>) {
        self.wakers.set_keeper(keeper);
    }

    /// Publishes, on behalf of the session, the local epochs in which its operations are pinned.
    #[inline]
    pub fn publish(&self, pinned: PinnedOperations) {
        self.local_epochs.publish(pinned);
    }

    /// Returns the newest local epoch, to the session; see
    /// [`Epochs::local_epoch`](fusee_core::host::Epochs::local_epoch).
    #[inline]
    pub fn local_epoch(&self) -> u64 {
        self.local_epochs.local_epoch()
    }

    /// Returns the newest view, to the session, if its number is greater than `than`.
    #[inline]
    pub fn newer_view(&self, than: u64) -> Option<Arc<View>> {
        self.local_epochs.has_newer(than).then(|| self.view())
    }

    /// Waits, on behalf of the session, until there is a view with a greater number than `than`, or the session is
    /// fenced.
    pub async fn wait_for_news(&self, than: u64) {
        self.wakers.wait_for_news(|| self.local_epochs.has_newer(than) || self.is_expelled()).await;
    }

    /// Returns the newest view.
    pub fn view(&self) -> Arc<View> {
        self.local_epochs.newest().view.clone()
    }

    /// Returns the newest epoch.
    #[inline]
    pub fn epoch(&self) -> u64 {
        self.local_epochs.epoch()
    }

    /// Publishes a view, on behalf of the keeper.
    pub fn publish_view(&self, view: &Arc<View>) {
        if self.local_epochs.publish_view(view) {
            self.wakers.wake();
        }
    }

    /// Publishes an epoch, on behalf of the keeper.
    pub fn publish_epoch(&self, epoch: u64) {
        self.local_epochs.publish_epoch(epoch);
    }

    /// Records, on behalf of the keeper, that the session is fenced.
    pub fn expel(&self) {
        self.expelled.store(true, SeqCst);
        self.wakers.wake();
    }

    /// Records, in a forked child, that the session is fenced. Wakes nothing, because its keeper and all that waits
    /// belong to the parent.
    pub fn expel_in_child(&self) {
        self.expelled.store(true, SeqCst);
    }

    /// Returns, to the session, whether the session is fenced, so that it must not begin any operation.
    #[inline]
    pub fn is_expelled(&self) -> bool {
        self.expelled.load(SeqCst)
    }

    /// Adds, on behalf of the session, to the counts of damaged and repaired replicas.
    pub fn found_damage(&self, damage: Damage) {
        self.damaged.fetch_add(damage.found, Relaxed);
        self.repaired.fetch_add(damage.repaired, Relaxed);
    }

    /// Records, on behalf of the keeper, whether the memory of the cluster is short.
    pub fn tell_short(&self, is_short: bool) {
        self.short.store(is_short, Relaxed);
    }

    /// Records, on behalf of the keeper, that the master has called for memory.
    pub fn call(&self) {
        self.tell_short(true);
        self.called.store(true, Relaxed);
    }

    /// Returns, to the session, whether the master has called for memory since the last call of this function.
    pub fn was_called(&self) -> bool {
        self.called.load(Relaxed) && self.called.swap(false, Relaxed)
    }

    /// Returns, to the session, whether the memory of the cluster is short.
    pub fn is_short(&self) -> bool {
        self.short.load(Relaxed)
    }

    /// Adds redundancy changes that the session has made by its policy.
    pub fn add_transitions(&self, transitions: Transitions) {
        self.transitions().add(transitions);
    }

    /// Returns the redundancy changes that the session has made by its policy so far.
    pub fn transitions(&self) -> MutexGuard<'_, Transitions> {
        self.transitions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets, on behalf of the session, the counters of its operations.
    pub fn set_counters(&self, counted: Arc<dyn WorkCounters>) {
        self.counted.get_or_init(|| counted);
    }

    /// Returns the sums of the session's operations so far.
    pub fn work(&self) -> SessionWork {
        self.counted.get().map(|counted| counted.work()).unwrap_or_default()
    }

    /// Returns, to the session, a mark of this moment, for [`SessionMarks::has_passed`] and
    /// [`SessionMarks::is_settled`]. The keeper soon asks the master which marks have passed.
    pub fn mark(&self) -> u64 {
        let mark = self.questions.mark();
        self.wakers.wake_keeper();
        mark
    }

    /// Replaces, on behalf of the session, its offer by these blocks; see
    /// [`Blocks::offer`](fusee_core::host::Blocks::offer).
    pub fn offer(&self, spare: Vec<Orphan>, surplus: Vec<Orphan>) {
        if self.offers.offer(spare, surplus) {
            self.wakers.wake_keeper();
        }
    }

    /// Returns, to the keeper, the part of a heartbeat that is about this session.
    pub fn heartbeat(&self) -> SessionHeartbeat {
        let since = self.local_epochs.since();
        // `waits` is loaded after `since`, so an operation that frees an object only after this load is pinned in the
        // local epoch of `since` or a later one.
        let waits = self.freed.waits();
        let stirs = self.offers.stir(!since.is_idle) || waits.since().is_some();
        let mut newest = self.local_epochs.newest();
        let pinned = newest.at(since.local_epoch);
        let frees_in = match waits.since() {
            None => pinned.epoch,
            Some(freed) => {
                let frees_in = newest.at(freed).epoch.min(pinned.epoch);
                let is_old = frees_in + REVOKED_AFTER < newest.epoch;
                if is_old && self.freed.revoke(waits) { pinned.epoch } else { frees_in }
            }
        };
        newest.forget_before(since.local_epoch.min(waits.since().unwrap_or(since.local_epoch)));
        SessionHeartbeat {
            client: self.client,
            pinned_by: pinned.view,
            pinned_in: pinned.epoch,
            frees_in,
            has_suspended: self.local_epochs.has_suspended(),
            damage: Damage {
                found: self.damaged.load(Relaxed),
                repaired: self.repaired.load(Relaxed),
            },
            transitions: *self.transitions(),
            work: self.work(),
            stirs,
        }
    }

    /// Returns whether a session with this heartbeat has done everything that a view demands of it.
    pub fn acknowledged(heartbeat: &SessionHeartbeat, view: &View) -> bool {
        let looks =
            view.change.as_ref().is_some_and(|change| change.stage == ChangeStage::Switched);
        heartbeat.pinned_by >= view.number && !(looks && heartbeat.has_suspended)
    }

    /// Returns, to the keeper, whether the session has done everything that the newest view demands of it, and no
    /// operation is pinned in an epoch before the newest.
    pub fn acknowledges(&self) -> bool {
        let heartbeat = self.heartbeat();
        let newest = self.local_epochs.newest();
        SessionGate::acknowledged(&heartbeat, &newest.view) && heartbeat.pinned_in >= newest.epoch
    }
}
