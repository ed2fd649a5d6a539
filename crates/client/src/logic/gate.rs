//! Between a session and the keeper of its process: the newest view and epoch one way, since when
//! the session's operations act the other way.
//!
//! The keeper talks to the master for all sessions of a process, on a thread of its own, so that a
//! session is known to be there also while its thread does nothing or is elsewhere. An idle session
//! thus acknowledges views and epochs without waking up.
//!
//! A view or an epoch that comes makes a new *moment*: a number that both sides know. The order is
//! Dekker's: a session first tells since which moment it acts and then looks whether that is still
//! the newest; the keeper first makes the new moment and then looks what the session tells. Between the
//! two, each passes a [`barrier`], so at least one sees the other: either the operation begins at the
//! new moment, or the keeper sees that it acts since the old one. The keeper's side pays for both, once
//! for every moment: an operation that has begun since then has seen it.
//!
//! What operations have freed holds up only those who must know that all of it is marked: a session
//! that does nothing would hold them up for ever. So after some epochs the keeper *revokes* what
//! waits to be marked: it never will be, and is found by a comparison with the index.
//!
//! Blocks that the session does not need at the moment are *offered*: the keeper may hand them on while
//! the session sleeps. The session takes them back before it does anything about them, and hears then
//! which are gone.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::mem;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::{Arc, OnceLock, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use fusee_control::master::{Leftover, MasterRequest, Pulse};
use fusee_control::node::BlockId;
use fusee_core::change::Stage;
use fusee_core::host::Acting;
use fusee_core::stats::Damage;
use fusee_core::verbs::ClientId;
use fusee_core::view::View;
use futures_util::task::AtomicWaker;

use crate::sync::{AtomicBool, AtomicU64, AtomicUsize, Mutex, MutexGuard, barrier};

/// Nothing acts; nothing waits to be marked.
const IDLE: u64 = u64::MAX;
/// What waited to be marked is revoked.
const REVOKED: u64 = u64::MAX - 1;
/// With a moment: what was freed since is being marked.
const MARKING: u64 = 1 << 63;
/// One in so many of the blocks that a session at work offers is handed on at a time.
const PARTS: usize = 8;
/// Epochs after which what waits to be marked is revoked.
const REVOKED_AFTER: u64 = 16;

/// What a session and its keeper share.
#[derive(Debug)]
pub struct Gate {
    client: ClientId,
    newest: Mutex<Newest>,
    /// The number of the newest view.
    number: AtomicU64,
    moment: AtomicU64,
    /// From the keeper to itself: operations that begin do so at this moment or a newer one; of all
    /// others it sees when they began.
    seen_by_all: AtomicU64,
    /// The moment since which the oldest operation acts, or `IDLE`.
    oldest: AtomicU64,
    /// The moment since which freed objects wait to be marked, `IDLE` or `REVOKED`.
    freed: AtomicU64,
    stopped: AtomicUsize,
    /// Replicas that the session found damaged, and those that it wrote anew.
    damaged: AtomicU64,
    repaired: AtomicU64,
    expelled: AtomicBool,
    /// Until when the session counts as heard by the master, in nanoseconds of the clock of its
    /// surroundings; `u64::MAX`: always.
    heard_until_ns: AtomicU64,
    /// The longest lease that a master has told, in nanoseconds.
    lease_ns: AtomicU64,
    /// The number of the keeper's last question to the master.
    asked: AtomicU64,
    /// The session waits for the outcome of the question of this number: until what began before it
    /// has ended, or is settled.
    awaits: AtomicU64,
    awaits_settled: AtomicU64,
    /// All operations of all sessions have ended that had begun before the question of this number;
    /// and all that they freed is marked.
    passed: AtomicU64,
    settled: AtomicU64,
    offers: Mutex<Offers>,
    /// Wakes the session's thread, which may wait for a memory node that is not there any more.
    waker: Mutex<Option<Waker>>,
    /// Wakes operations that wait for a newer view.
    waiting: Mutex<Vec<Waker>>,
    /// Wakes the keeper.
    keeper: OnceLock<Arc<AtomicWaker>>,
}

/// Blocks that others may have.
#[derive(Debug, Default)]
struct Offers {
    offered: Vec<Leftover>,
    /// Those that need not wait until somebody is short: objects in them are in use.
    surplus: Vec<Leftover>,
    /// The master is being told of these.
    batch: Option<Batch>,
    serial: u64,
    /// The call for which a part of what is offered was handed on last.
    call: u64,
    /// The session has done something about its blocks since.
    is_active: bool,
    /// The session has not heard yet that these are gone.
    gone: Vec<BlockId>,
    /// The session looks for memory itself: what it does not need it offers when it has done.
    is_withheld: bool,
    /// The call that came meanwhile, if it has not got its part; 0 for none.
    owed: u64,
    /// It has got that since, and the keeper does not know.
    is_due: bool,
    /// The session has blocks that are about to become free.
    ripens: bool,
}

/// What a session hands on at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Grows with every batch.
    pub serial: u64,
    /// The blocks.
    pub leftovers: Vec<Leftover>,
    /// In which of them objects are in use.
    pub used: Vec<BlockId>,
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX - 1)
}

impl Offers {
    fn is_pressing(&self) -> bool {
        !self.surplus.is_empty() || self.is_due || (self.owed != 0 && !self.is_withheld)
    }

    /// Has the keeper hand on what is surplus, and for every `call` but 0 a part of what is offered besides;
    /// unless the last of it has not been heard.
    fn pass_on(&mut self, call: u64) {
        if self.batch.is_some() {
            return;
        }
        let is_new = call != 0 && mem::replace(&mut self.call, call) != call;
        let parts = if is_new && !mem::take(&mut self.is_active) { 1 } else { PARTS };
        let count = if is_new { self.offered.len().div_ceil(parts) } else { 0 };
        let used: Vec<BlockId> = self.surplus.iter().map(|left| left.block).collect();
        let leftovers = self.offered.drain(..count).chain(self.surplus.drain(..));
        let leftovers: Vec<Leftover> = leftovers.collect();
        if leftovers.is_empty() {
            return;
        }
        self.gone.extend(leftovers.iter().map(|left| left.block));
        self.serial += 1;
        self.batch = Some(Batch { serial: self.serial, leftovers, used });
    }
}

impl Batch {
    /// What to tell the master.
    pub fn request(self, client: ClientId) -> MasterRequest {
        let Batch { serial, leftovers, used } = self;
        MasterRequest::HandOn { client, serial, leftovers, used }
    }
}

#[derive(Debug)]
struct Newest {
    view: Arc<View>,
    epoch: u64,
    /// What the moments stand for that somebody may still act since, the newest last.
    moments: VecDeque<Moment>,
}

#[derive(Clone, Copy, Debug)]
struct Moment {
    number: u64,
    view: u64,
    epoch: u64,
}

impl Newest {
    /// What a moment stands for. Where it is forgotten already nobody acts since then, but somebody
    /// may be about to find that it is over.
    fn at(&self, moment: u64) -> Moment {
        let known = self.moments.iter().rev().find(|known| known.number <= moment);
        *known.unwrap_or(&self.moments[0])
    }
}

impl Gate {
    /// The gate of a session that was opened with this view and in this epoch.
    pub fn new(client: ClientId, view: Arc<View>, epoch: u64) -> Gate {
        let first = Moment { number: 0, view: view.number, epoch };
        Gate {
            client,
            number: AtomicU64::new(view.number),
            newest: Mutex::new(Newest { view, epoch, moments: VecDeque::from([first]) }),
            moment: AtomicU64::new(0),
            seen_by_all: AtomicU64::new(0),
            oldest: AtomicU64::new(IDLE),
            freed: AtomicU64::new(IDLE),
            stopped: AtomicUsize::new(0),
            damaged: AtomicU64::new(0),
            repaired: AtomicU64::new(0),
            expelled: AtomicBool::new(false),
            heard_until_ns: AtomicU64::new(u64::MAX),
            lease_ns: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            awaits: AtomicU64::new(0),
            awaits_settled: AtomicU64::new(0),
            passed: AtomicU64::new(0),
            settled: AtomicU64::new(0),
            offers: Mutex::default(),
            waker: Mutex::new(None),
            keeper: OnceLock::new(),
            waiting: Mutex::default(),
        }
    }

    /// The same, of a session that counts as heard only for so long.
    pub fn heard_until(self, until: Duration) -> Gate {
        self.heard_until_ns.store(nanos(until), Relaxed);
        self
    }

    /// A master has told a lease.
    pub fn tell_lease(&self, lease: Duration) {
        self.lease_ns.fetch_max(nanos(lease), Relaxed);
    }

    /// To the session: the longest lease that a master has told.
    pub fn longest_lease(&self) -> Duration {
        Duration::from_nanos(self.lease_ns.load(Relaxed))
    }

    /// From the keeper: the master has heard of the session.
    pub fn hear(&self, until: Duration) {
        // Relaxed: an operation that does not see it yet asks the memory nodes.
        self.heard_until_ns.fetch_max(nanos(until), Relaxed);
    }

    /// To the session: whether it counts as heard, at a time that is not behind.
    pub fn is_heard(&self, now: Duration) -> bool {
        nanos(now) < self.heard_until_ns.load(Relaxed)
    }

    fn newest(&self) -> MutexGuard<'_, Newest> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session.
    pub fn client(&self) -> ClientId {
        self.client
    }

    /// From the session: how to wake its thread.
    pub fn set_waker(&self, waker: Waker) {
        *self.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(waker);
    }

    /// From the session: since when its operations act.
    pub fn tell(&self, acting: Acting) {
        if self.stopped.load(Relaxed) != acting.stopped {
            self.stopped.store(acting.stopped, Release);
        }
        // Release: who sees that operations have ended sees what they left, and what they told before.
        self.oldest.store(acting.oldest.unwrap_or(IDLE), Release);
        barrier::light();
    }

    /// From the session: what it found damaged.
    pub fn found_damage(&self, damage: Damage) {
        self.damaged.fetch_add(damage.found, Relaxed);
        self.repaired.fetch_add(damage.repaired, Relaxed);
    }

    /// To the session: see [`Host::moment`](fusee_core::host::Host::moment).
    pub fn moment(&self) -> u64 {
        self.moment.load(SeqCst)
    }

    /// To the session: the newest view, if it is newer.
    pub fn newer_view(&self, than: u64) -> Option<Arc<View>> {
        (self.number.load(SeqCst) > than).then(|| self.view())
    }

    /// To the session: waits until there is a newer view, or it is shut out.
    pub async fn news(&self, than: u64) {
        poll_fn(|context| {
            {
                let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
                if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
                    waiting.push(context.waker().clone());
                }
            }
            // Only now: what comes from here on finds the waker.
            match self.number.load(SeqCst) > than || self.is_expelled() {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
    }

    /// The newest view.
    pub fn view(&self) -> Arc<View> {
        self.newest().view.clone()
    }

    /// The newest epoch.
    pub fn epoch(&self) -> u64 {
        self.newest().epoch
    }

    /// To the session: it is shut out, and must begin nothing any more.
    pub fn is_expelled(&self) -> bool {
        self.expelled.load(SeqCst)
    }

    /// From the session: since when something waits to be marked.
    pub fn tell_freed(&self, since: Option<u64>) {
        self.freed.store(since.unwrap_or(IDLE), SeqCst);
    }

    /// From the session: something was freed by an operation that acts since then. It waits to be marked,
    /// unless what waits was revoked: then all of it is.
    pub fn tell_older(&self, since: u64) {
        let older = |waits: u64| match waits {
            IDLE => Some(since),
            REVOKED => None,
            _ => Some((waits & !MARKING).min(since) | (waits & MARKING)),
        };
        let _revoked = self.freed.fetch_update(SeqCst, SeqCst, older);
    }

    /// To the session: whether what waits may be marked now.
    pub fn may_mark(&self) -> bool {
        let waits = self.freed.load(SeqCst);
        let begun = |waits: u64| {
            self.freed.compare_exchange(waits, waits | MARKING, SeqCst, SeqCst).is_ok()
        };
        if waits != REVOKED && begun(waits) {
            return true;
        }
        self.freed.store(IDLE, SeqCst);
        false
    }

    /// To the session: the name of this moment, for the two that follow. The keeper asks the master
    /// soon what has passed.
    pub fn mark(&self) -> u64 {
        let mark = self.asked.load(SeqCst);
        self.awaits.fetch_max(mark + 1, SeqCst);
        if let Some(keeper) = self.keeper.get() {
            keeper.wake();
        }
        mark
    }

    /// To the session: whether all operations have ended that had begun before a mark.
    pub fn has_passed(&self, mark: u64) -> bool {
        self.passed.load(SeqCst) > mark
    }

    /// To the session: whether, besides, all that they freed is marked.
    pub fn is_settled(&self, mark: u64) -> bool {
        self.awaits_settled.fetch_max(mark + 1, SeqCst);
        self.settled.load(SeqCst) > mark
    }

    fn offers(&self) -> MutexGuard<'_, Offers> {
        self.offers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From the session: these may be handed on, and no others; see
    /// [`Host::offer`](fusee_core::host::Host::offer). A call that came meanwhile gets its part at once: the
    /// session may take the rest back before the keeper looks.
    pub fn offer(&self, spare: Vec<Leftover>, surplus: Vec<Leftover>) {
        let is_pressing = {
            let mut offers = self.offers();
            (offers.offered, offers.surplus, offers.is_withheld) = (spare, surplus, false);
            offers.is_active = true;
            if offers.owed != 0 && offers.batch.is_none() {
                let call = mem::take(&mut offers.owed);
                offers.pass_on(call);
                offers.is_due = true;
            }
            offers.is_pressing()
        };
        if let Some(keeper) = self.keeper.get().filter(|_| is_pressing) {
            keeper.wake();
        }
    }

    /// From the session: whether it has blocks that are about to become free, and are not offered.
    pub fn tell_ripening(&self, ripens: bool) {
        self.offers().ripens = ripens;
    }

    /// To the keeper: whether there is something to hand on at once.
    pub fn has_to_hand_on(&self) -> bool {
        self.offers().is_pressing()
    }

    /// To the keeper, which was called for memory: whether the session is about to offer some, and has not
    /// done so for this call.
    pub fn withholds(&self, call: u64) -> bool {
        let mut offers = self.offers();
        let withholds = offers.is_withheld && offers.call != call;
        offers.owed = if withholds { call } else { 0 };
        withholds
    }

    /// From the session: nothing may be handed on any more. To the session: what has been, since it
    /// asked last.
    pub fn take_back(&self) -> Vec<BlockId> {
        let mut offers = self.offers();
        offers.offered.clear();
        offers.surplus.clear();
        offers.is_withheld = true;
        mem::take(&mut offers.gone)
    }

    /// To the keeper: what the master has not been heard to know of.
    pub fn unheard(&self) -> Option<Batch> {
        self.offers().batch.clone()
    }

    /// To the keeper: what is to be handed on, once the last of it has been heard. That is what is surplus,
    /// and for every `call` but 0 a part of what is offered besides: so a session that works keeps most
    /// of what it needs itself; of one that has done nothing since the last call it is all.
    pub fn hand_on(&self, call: u64) -> Option<Batch> {
        let offers = &mut *self.offers();
        offers.is_due = false;
        if !offers.is_withheld {
            offers.owed = 0;
        }
        offers.pass_on(call);
        offers.batch.clone()
    }

    /// From the keeper: the master knows of what has this serial.
    pub fn handed_on(&self, serial: u64) {
        self.offers().batch.take_if(|batch| batch.serial == serial);
    }

    /// From the keeper: a view has come.
    pub fn publish(&self, view: &Arc<View>) {
        {
            let mut newest = self.newest();
            if newest.view.number >= view.number {
                return;
            }
            newest.view = view.clone();
            self.number.store(view.number, SeqCst);
            self.next_moment(&mut newest);
        }
        self.wake();
    }

    /// From the keeper: an epoch has come.
    pub fn publish_epoch(&self, epoch: u64) {
        let mut newest = self.newest();
        if newest.epoch < epoch {
            newest.epoch = epoch;
            self.next_moment(&mut newest);
        }
    }

    /// Last: who finds the new moment finds the view that came with it.
    fn next_moment(&self, newest: &mut Newest) {
        let number = self.moment.load(SeqCst) + 1;
        let moment = Moment { number, view: newest.view.number, epoch: newest.epoch };
        newest.moments.push_back(moment);
        self.moment.store(number, SeqCst);
    }

    /// From the keeper: it is about to ask the master for the so many-th time.
    pub fn asks(&self, number: u64) {
        self.asked.store(number, SeqCst);
    }

    /// From the keeper: what had begun before these questions has ended, or is settled.
    pub fn tell_passed(&self, passed: u64, settled: u64) {
        self.passed.fetch_max(passed, SeqCst);
        self.settled.fetch_max(settled, SeqCst);
    }

    /// From the keeper: how to wake it.
    pub fn set_keeper(&self, keeper: Arc<AtomicWaker>) {
        let _set_once = self.keeper.set(keeper);
    }

    /// To the keeper: whether the session waits for the outcome of a question.
    pub fn reclaims(&self) -> bool {
        self.awaits.load(SeqCst) > self.passed.load(SeqCst)
            || self.awaits_settled.load(SeqCst) > self.settled.load(SeqCst)
    }

    /// To the keeper: whether it waits for a question that has not been asked.
    pub fn wants_to_ask(&self) -> bool {
        self.awaits.load(SeqCst) > self.asked.load(SeqCst)
    }

    /// From the keeper: the master has shut the session out.
    pub fn expel(&self) {
        self.expelled.store(true, SeqCst);
        self.wake();
    }

    fn wake(&self) {
        if let Some(waker) = &*self.waker.lock().unwrap_or_else(PoisonError::into_inner) {
            waker.wake_by_ref();
        }
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.drain(..).for_each(Waker::wake);
    }

    /// To the keeper: what to tell the master.
    pub fn pulse(&self) -> Pulse {
        // The moment first: an operation that begins afterwards begins at this one or a newer one.
        let moment = self.moment.load(SeqCst);
        if self.seen_by_all.load(Acquire) != moment {
            barrier::heavy();
            self.seen_by_all.store(moment, Release);
        }
        let oldest = self.oldest.load(Acquire);
        let since = oldest.min(moment);
        // What is freed from now on, by an operation that acts already, is freed since `since`.
        let freed = self.freed.load(SeqCst);
        let stirs = {
            let offers = self.offers();
            // Who looks for memory acts by that; it had its chance to offer some, unless it owes it.
            let acts = if offers.is_withheld { offers.owed != 0 } else { oldest != IDLE };
            acts || freed < REVOKED || offers.ripens
        };
        let mut newest = self.newest();
        let acts = newest.at(since);
        let unmarked = freed & !MARKING;
        let mut frees_in = acts.epoch;
        if freed != IDLE && freed != REVOKED {
            frees_in = newest.at(unmarked).epoch.min(acts.epoch);
            let is_old = frees_in + REVOKED_AFTER < newest.epoch;
            let revoke = || self.freed.compare_exchange(freed, REVOKED, SeqCst, SeqCst).is_ok();
            if is_old && freed & MARKING == 0 && revoke() {
                frees_in = acts.epoch;
            }
        }
        let oldest = since.min(if freed >= REVOKED { since } else { unmarked });
        while newest.moments.len() > 1 && newest.moments[1].number <= oldest {
            newest.moments.pop_front();
        }
        Pulse {
            client: self.client,
            acts_by: acts.view,
            acts_in: acts.epoch,
            frees_in,
            has_stopped: self.stopped.load(SeqCst) > 0,
            damage: Damage {
                found: self.damaged.load(Relaxed),
                repaired: self.repaired.load(Relaxed),
            },
            stirs,
        }
    }

    /// Whether a session that says this has done all that a view asks of it.
    pub fn acknowledged(pulse: &Pulse, view: &View) -> bool {
        let looks = view.change.as_ref().is_some_and(|change| change.stage == Stage::Switched);
        pulse.acts_by >= view.number && !(looks && pulse.has_stopped)
    }

    /// To the keeper: whether the session has done all that the newest view asks of it, and acts in
    /// no older epoch than the newest.
    pub fn acknowledges(&self) -> bool {
        let pulse = self.pulse();
        let newest = self.newest();
        Gate::acknowledged(&pulse, &newest.view) && pulse.acts_in >= newest.epoch
    }
}
