//! Between a session and the keeper of its process: the newest view and epoch one way, in what
//! the session's operations are pinned the other way.
//!
//! The keeper talks to the master for all sessions of a process, on a thread of its own, so that a
//! session is known to be there also while its thread does nothing or is elsewhere. An idle session
//! thus acknowledges views and epochs without waking up.
//!
//! The gate is made of what the two have to say to each other, each part with its own state:
//! [`local_epochs`] has views, epochs and operations; [`freed`] what waits to be set free; [`questions`]
//! what has passed since; [`offers`] blocks for others; [`lease`] until when the session counts as
//! heard; [`wakers`] who sleeps. What needs several of them is here: above all the session's
//! [`Gate::heartbeat`].

mod freed;
mod lease;
mod local_epochs;
mod offers;
mod questions;
mod wakers;

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;
use std::time::Duration;

use fusee_control::master::{Orphan, SessionHeartbeat};
use fusee_core::change::Stage;
use fusee_core::data::{Policy, Transitions};
use fusee_core::host::Pinned;
use fusee_core::stats::{Damage, Work};
use fusee_core::verbs::ClientId;
use fusee_core::view::View;
use futures_util::task::AtomicWaker;

pub use self::freed::Freed;
pub use self::lease::Lease;
use self::local_epochs::LocalEpochs;
pub use self::offers::Offers;
pub use self::questions::Questions;
use self::wakers::Wakers;
use crate::sync::{AtomicBool, AtomicU64};

/// Epochs after which what waits to be set free is revoked.
const REVOKED_AFTER: u64 = 16;

/// Where a session counts. Nothing rests on it, so no model checker need look at it.
pub trait Counts: std::fmt::Debug + Send + Sync {
    /// What its operations came to so far.
    fn work(&self) -> Work;
}

/// What a session and its keeper share.
#[derive(Debug)]
pub struct Gate {
    client: ClientId,
    local_epochs: LocalEpochs,
    /// What waits to be set free.
    pub freed: Freed,
    /// What has passed.
    pub questions: Questions,
    /// Blocks that others may have; see [`Gate::offer`].
    pub offers: Offers,
    /// Until when the session counts as heard.
    pub lease: Lease,
    /// Replicas that the session found damaged, and those that it wrote anew.
    damaged: AtomicU64,
    repaired: AtomicU64,
    /// By which the session goes, unless its client says otherwise.
    policy: Policy,
    /// What it has done by that. Nothing rests on it, so no model checker need look at it.
    transitions: Mutex<Transitions>,
    /// What its operations come to, once it has begun.
    counted: OnceLock<Arc<dyn Counts>>,
    /// Whether memory is short, as far as this process knows.
    short: AtomicBool,
    /// Whether somebody found no memory, since the session asked last.
    called: AtomicBool,
    expelled: AtomicBool,
    wakers: Wakers,
}

impl Gate {
    /// The gate of a session that was opened with this view and in this epoch.
    pub fn new(client: ClientId, view: Arc<View>, epoch: u64) -> Gate {
        Gate {
            client,
            local_epochs: LocalEpochs::new(view, epoch),
            freed: Freed::new(),
            questions: Questions::new(),
            offers: Offers::default(),
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

    /// The same, of a session that counts as heard only for so long.
    pub fn heard_until(self, until: Duration) -> Gate {
        self.lease.ends(until);
        self
    }

    /// The same, of a session that was told this policy.
    pub fn with_policy(self, policy: Policy) -> Gate {
        Gate { policy, ..self }
    }

    /// The policy that the session was told.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The session.
    pub fn client(&self) -> ClientId {
        self.client
    }

    /// From the session: how to wake its thread.
    pub fn set_waker(&self, waker: Waker) {
        self.wakers.set_thread(waker);
    }

    /// From the keeper: how to wake it.
    pub fn set_keeper(&self, keeper: Arc<AtomicWaker>) {
        self.wakers.set_keeper(keeper);
    }

    /// From the session: in what its operations are pinned.
    #[inline]
    pub fn publish(&self, pinned: Pinned) {
        self.local_epochs.publish(pinned);
    }

    /// To the session: see [`Epochs::local_epoch`](fusee_core::host::Epochs::local_epoch).
    #[inline]
    pub fn local_epoch(&self) -> u64 {
        self.local_epochs.local_epoch()
    }

    /// To the session: the newest view, if it is newer.
    #[inline]
    pub fn newer_view(&self, than: u64) -> Option<Arc<View>> {
        self.local_epochs.has_newer(than).then(|| self.view())
    }

    /// To the session: waits until there is a newer view, or it is fenced.
    pub async fn news(&self, than: u64) {
        self.wakers.news(|| self.local_epochs.has_newer(than) || self.is_expelled()).await;
    }

    /// The newest view.
    pub fn view(&self) -> Arc<View> {
        self.local_epochs.newest().view.clone()
    }

    /// The newest epoch.
    #[inline]
    pub fn epoch(&self) -> u64 {
        self.local_epochs.epoch()
    }

    /// From the keeper: a view has come.
    pub fn publish_view(&self, view: &Arc<View>) {
        if self.local_epochs.publish_view(view) {
            self.wakers.wake();
        }
    }

    /// From the keeper: an epoch has come.
    pub fn publish_epoch(&self, epoch: u64) {
        self.local_epochs.publish_epoch(epoch);
    }

    /// From the keeper: the master has fenced the session.
    pub fn expel(&self) {
        self.expelled.store(true, SeqCst);
        self.wakers.wake();
    }

    /// From the session, in a child of its process: as [`Gate::expel`], but its keeper, and all who wait for it, are
    /// the parent's.
    pub fn leave_behind(&self) {
        self.expelled.store(true, SeqCst);
    }

    /// To the session: it is fenced, and must begin nothing any more.
    #[inline]
    pub fn is_expelled(&self) -> bool {
        self.expelled.load(SeqCst)
    }

    /// From the session: what it found damaged.
    pub fn found_damage(&self, damage: Damage) {
        self.damaged.fetch_add(damage.found, Relaxed);
        self.repaired.fetch_add(damage.repaired, Relaxed);
    }

    /// From the keeper: whether memory is short.
    pub fn tell_short(&self, is_short: bool) {
        self.short.store(is_short, Relaxed);
    }

    /// From the keeper: somebody finds no memory.
    pub fn call(&self) {
        self.tell_short(true);
        self.called.store(true, Relaxed);
    }

    /// To the session: whether somebody has called since this was asked last.
    pub fn was_called(&self) -> bool {
        self.called.load(Relaxed) && self.called.swap(false, Relaxed)
    }

    /// To the session: whether memory is short.
    pub fn is_short(&self) -> bool {
        self.short.load(Relaxed)
    }

    /// From the session: what it has done by its policy.
    pub fn has_moved(&self, transitions: Transitions) {
        self.transitions().add(transitions);
    }

    /// What the session has done by its policy so far.
    pub fn transitions(&self) -> MutexGuard<'_, Transitions> {
        self.transitions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From the session: where it counts.
    pub fn counts_with(&self, counted: Arc<dyn Counts>) {
        self.counted.get_or_init(|| counted);
    }

    /// What the session's operations came to so far.
    pub fn work(&self) -> Work {
        self.counted.get().map(|counted| counted.work()).unwrap_or_default()
    }

    /// To the session: the name of this moment, for [`Questions::has_passed`] and
    /// [`Questions::is_settled`]. The keeper asks the master soon what has passed.
    pub fn mark(&self) -> u64 {
        let mark = self.questions.mark();
        self.wakers.wake_keeper();
        mark
    }

    /// From the session: these may be handed on, and no others; see
    /// [`Blocks::offer`](fusee_core::host::Blocks::offer).
    pub fn offer(&self, spare: Vec<Orphan>, surplus: Vec<Orphan>) {
        if self.offers.offer(spare, surplus) {
            self.wakers.wake_keeper();
        }
    }

    /// To the keeper: what to tell the master.
    pub fn heartbeat(&self) -> SessionHeartbeat {
        let since = self.local_epochs.since();
        // What is freed from now on, by an operation that is pinned already, is freed since `since`.
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

    /// Whether a session that says this has done all that a view asks of it.
    pub fn acknowledged(heartbeat: &SessionHeartbeat, view: &View) -> bool {
        let looks = view.change.as_ref().is_some_and(|change| change.stage == Stage::Switched);
        heartbeat.pinned_by >= view.number && !(looks && heartbeat.has_suspended)
    }

    /// To the keeper: whether the session has done all that the newest view asks of it, and is pinned in
    /// no older epoch than the newest.
    pub fn acknowledges(&self) -> bool {
        let heartbeat = self.heartbeat();
        let newest = self.local_epochs.newest();
        Gate::acknowledged(&heartbeat, &newest.view) && heartbeat.pinned_in >= newest.epoch
    }
}
