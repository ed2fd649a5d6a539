//! The work table: the running requests of a process's sessions, so that correlated requests (those for one key at one
//! time) need not all go to the memory nodes (E §4.3).
//!
//! A row of the table is a key with a running get, or a running set (UPDATE or UPSERT), or both. The request that has
//! registered is the *leader*; requests for the same key that begin before it ends are its *followers*. A row is
//! removed when its leaders have ended.
//!
//! In a strict table, every answer is as linearizable as without the table ([decision
//! 0041](../../../../docs/decisions/0041-work-table.md)):
//!
//! * A get *rides* on a set that has not posted its commit: it takes the set's value if that commit replaces the slot's
//!   word. Then the set takes effect after the get has begun and before the get ends.
//! * A get that follows another get, or a set whose commit is posted, READs the slot itself: 8 bytes. It takes its
//!   leader's value if the leader has found, or put, the same word in the same slot. No slot word recurs within a
//!   quarter of [`WINDOW_EPOCHS`], so the word still leads to the pair that the leader has found or put.
//! * Sets wait for a running set. When the running set ends, the last waiting set leads, and absorbs the other waiting
//!   sets of its kind: these take effect right before it, and have the same result. INSERT, DELETE and Moves run alone.
//!
//! In a relaxed table, as in the paper, a get takes the result of an earlier get, or the value of a set at once,
//! whether or not the set ever takes effect; a write waits for a running get; of two writes or Moves the later one
//! fails.
//!
//! A leader can fail, be dropped half-way, or not be polled. Its [`LeaderRole`] passes the result to the followers, or
//! tells them by its drop that there is no result; and a follower waits for a limited time, after which it runs alone.
//! So no request waits for ever, and a follower that runs alone no longer depends on its leader.

use std::cell::Cell;
use std::collections::HashMap;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fusee_core::Error;
use fusee_core::data::Placement;
use fusee_core::layout::{Opcode, Slot};
use fusee_core::mutant::{Mutant, removed};
use fusee_core::slab::WINDOW_EPOCHS;
use fusee_core::store::Hint;
use fusee_core::view::SlotRef;
use futures_util::future::{FutureExt, Shared};
use tokio::sync::oneshot;

/// The running requests of a process's sessions.
#[derive(Debug)]
pub struct RequestTable {
    is_relaxed: bool,
    rows: Mutex<RequestRows>,
    counts: WorkTableCounters,
}

#[derive(Debug, Default)]
struct RequestRows {
    by_key: HashMap<Box<[u8]>, RequestRow>,
    /// The number that the next leader gets.
    next: u64,
}

#[derive(Debug, Default)]
struct RequestRow {
    get: Option<LeaderEntry>,
    set: Option<LeaderEntry>,
    waiting: Option<WaitingSets>,
}

/// A running request of the work table that other requests can follow.
#[derive(Debug)]
struct LeaderEntry {
    number: u64,
    /// The slot in which the leader's session expects the key.
    slot: Option<SlotRef>,
    /// Whether the leader is a set whose commit is not posted yet.
    is_open: bool,
    /// The value that the leader writes, if followers are allowed to take it at once.
    value: Option<Arc<[u8]>>,
    landing: LeaderResult,
}

/// The kind of a set. A set absorbs only sets of its own kind: a set of another kind could fail where the absorbing set
/// succeeds, or could give the pair a redundancy that the absorbing set would then keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetKind {
    /// The opcode of the set.
    pub opcode: Opcode,
    /// The redundancy that the set gives its pair; `None` for a set that only adds a pair.
    pub placement: Option<Placement>,
    /// The length of the value, if the redundancy depends on it.
    pub value_bytes: Option<usize>,
}

/// Sets of one key that wait until the running set of that key has ended.
#[derive(Debug)]
struct WaitingSets {
    kind: SetKind,
    /// The waiting sets, in the order in which they came.
    sets: Vec<oneshot::Sender<WaitedSetRole>>,
}

/// The future result of a leader; an error if followers cannot use the result.
pub type LeaderResult = Shared<oneshot::Receiver<Arc<LeaderPair>>>;

/// The pair that a leader has found or written.
#[derive(Debug)]
pub struct LeaderPair {
    /// The slot and word of the pair; `None` if the slot is unknown.
    place: Option<Hint>,
    /// The value of the pair; `None` if the key does not exist.
    value: Option<Box<[u8]>>,
    /// An epoch that is not later than the one in which the word was in the slot.
    epoch: u64,
}

impl LeaderPair {
    /// Returns the slot of the key with its word, for the index cache of another session.
    pub fn place(&self) -> Option<Hint> {
        self.place.map(Hint::uncertain)
    }

    /// Returns the value of the pair; `None` if the key does not exist.
    pub fn value(&self) -> Option<&[u8]> {
        self.value.as_deref()
    }

    /// Returns whether a slot that shows `word`, and was READ in `epoch` or the next epoch, leads to this pair.
    pub fn is_shown_by(&self, slot: SlotRef, word: Slot, epoch: u64) -> bool {
        // The window of epochs within which no slot word recurs is shorter here, because an object of an EC-oriented
        // pair has several slot words during its life.
        let window = WINDOW_EPOCHS / u64::from(Slot::TURNS);
        let is_young = epoch.saturating_sub(self.epoch) + 1 < window;
        let place = self.place.filter(|_| is_young);
        let is_same = |at: Hint| at.word == word || removed(Mutant::GetComparesNoWords);
        place.is_some_and(|at| at.slot == slot && is_same(at))
    }
}

/// The role that a set gets when its wait ends.
#[derive(Debug)]
pub enum WaitedSetRole {
    /// The set becomes the leader.
    Lead(LeaderRole),
    /// Another set has absorbed this set. On success, this set took effect right before the absorbing set. On an error,
    /// it took no effect, because the key did not exist.
    Absorbed(Result<(), Error>),
}

/// The role that the work table gives a get.
#[derive(Debug)]
pub enum GetRole {
    /// The get goes to the memory nodes, and other requests can follow it.
    Lead(LeaderRole),
    /// The get goes to the memory nodes, without followers.
    Alone,
    /// The get waits for its leader, and takes the leader's result.
    Ride(FollowedRequest),
    /// The get READs this slot, and takes the result of its leader if the slot shows the leader's word.
    Compare(SlotRef, FollowedRequest),
    /// The get returns this value, which its leader is writing.
    Value(Arc<[u8]>),
}

/// The role that the work table gives a write.
#[derive(Debug)]
pub enum SetRole {
    /// The write goes to the memory nodes, and other requests can follow it. If there is a running get, the write first
    /// waits until that has ended.
    Lead(LeaderRole, Option<FollowedRequest>),
    /// The write goes to the memory nodes, without followers.
    Alone,
    /// The write waits until its role arrives by this receiver.
    Wait(oneshot::Receiver<WaitedSetRole>),
    /// The write fails, because the table is relaxed and another write of the key runs.
    Refused,
}

/// A request that another request follows.
#[derive(Clone, Debug)]
pub struct FollowedRequest {
    pub landing: LeaderResult,
    number: u64,
}

macro_rules! counts {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        #[derive(Debug, Default)]
        struct WorkTableCounters {
            $($name: AtomicU64,)+
        }

        /// Counts of a work table.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct WorkTableStats {
            $($(#[doc = $doc])+ pub $name: u64,)+
        }

        impl WorkTableCounters {
            fn all(&self) -> WorkTableStats {
                WorkTableStats { $($name: self.$name.load(Ordering::Relaxed),)+ }
            }
        }
    };
}

counts! {
    /// Gets that took the value of a running request without posting any verb.
    rides,
    /// Gets that READ 8 bytes, and took the value of a running request.
    compared,
    /// Gets that followed a running request, but could not use its result.
    misses,
    /// Sets that a later set absorbed.
    absorbed,
    /// Sets that waited, and then led.
    waited,
    /// Writes and Moves that failed because another write or Move of the key was running; in a relaxed table only.
    refused,
}

impl RequestTable {
    /// Makes an empty table, strict or relaxed.
    pub fn new(is_relaxed: bool) -> RequestTable {
        RequestTable { is_relaxed, rows: Mutex::default(), counts: WorkTableCounters::default() }
    }

    /// Returns whether the table is relaxed.
    pub fn is_relaxed(&self) -> bool {
        self.is_relaxed
    }

    /// Returns the table's counts so far.
    pub fn stats(&self) -> WorkTableStats {
        self.counts.all()
    }

    fn rows(&self) -> MutexGuard<'_, RequestRows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a get. `slot` is where its session expects the key; `epoch` is the newest epoch that the session knows.
    pub fn get(self: &Arc<Self>, key: &[u8], slot: Option<SlotRef>, epoch: u64) -> GetRole {
        let mut rows = self.rows();
        let Some(row) = rows.by_key.get(key) else {
            return GetRole::Lead(self.lead(&mut rows, key, LeaderKind::Get, slot, None, epoch));
        };
        if let Some(value) = row.set.as_ref().and_then(|set| set.value.clone()) {
            self.count(|counts| &counts.rides);
            return GetRole::Value(value);
        }
        let set = row.set.as_ref().filter(|_| !self.is_relaxed);
        let Some(leader) = set.or(row.get.as_ref()) else {
            return GetRole::Lead(self.lead(&mut rows, key, LeaderKind::Get, slot, None, epoch));
        };
        let followed = FollowedRequest { landing: leader.landing.clone(), number: leader.number };
        let joins = row.set.is_none() && removed(Mutant::GetJoinsPosted);
        if leader.is_open || self.is_relaxed || joins {
            return GetRole::Ride(followed);
        }
        match slot.or(leader.slot) {
            Some(slot) => GetRole::Compare(slot, followed),
            None => GetRole::Alone,
        }
    }

    /// Begins an UPDATE or UPSERT, or in a relaxed table any write or Move. `value` is the key's new value, if the
    /// operation writes one.
    pub fn set(
        self: &Arc<Self>,
        kind: SetKind,
        key: &[u8],
        value: Option<&[u8]>,
        slot: Option<SlotRef>,
        epoch: u64,
    ) -> SetRole {
        let value = value.filter(|_| self.is_relaxed).map(Arc::from);
        let mut rows = self.rows();
        let row = rows.by_key.entry(key.into()).or_default();
        if row.set.is_none() {
            let gets = row.get.as_ref().filter(|_| self.is_relaxed);
            let gets =
                gets.map(|g| FollowedRequest { landing: g.landing.clone(), number: g.number });
            return SetRole::Lead(
                self.lead(&mut rows, key, LeaderKind::Set, slot, value, epoch),
                gets,
            );
        }
        if self.is_relaxed {
            self.count(|counts| &counts.refused);
            return SetRole::Refused;
        }
        let waiting = row.waiting.get_or_insert(WaitingSets { kind, sets: Vec::new() });
        if waiting.kind != kind && !removed(Mutant::OtherSetsAbsorb) {
            return SetRole::Alone;
        }
        let (turn, waits) = oneshot::channel();
        waiting.sets.push(turn);
        SetRole::Wait(waits)
    }

    fn lead(
        self: &Arc<Self>,
        rows: &mut RequestRows,
        key: &[u8],
        kind: LeaderKind,
        slot: Option<SlotRef>,
        value: Option<Arc<[u8]>>,
        epoch: u64,
    ) -> LeaderRole {
        let number = rows.next;
        rows.next += 1;
        let (lands, landing) = oneshot::channel();
        let row = rows.by_key.entry(key.into()).or_default();
        let is_open = kind == LeaderKind::Set;
        let entry = LeaderEntry { number, slot, is_open, value, landing: landing.shared() };
        *row.entry(kind) = Some(entry);
        let table = self.clone();
        let key = key.into();
        let lands = Some(lands);
        LeaderRole {
            table,
            key,
            number,
            kind,
            epoch,
            lands,
            absorbed: Vec::new(),
            has_committed: Cell::new(false),
        }
    }

    /// Removes a leader from the table after a follower has waited too long for it, so that no further request follows
    /// it.
    pub fn abandon(&self, key: &[u8], followed: &FollowedRequest) {
        let mut rows = self.rows();
        for kind in [LeaderKind::Get, LeaderKind::Set] {
            rows.remove(key, kind, followed.number);
        }
    }

    /// Counts a get that has followed another request. `found` tells whether the get could use the result of that
    /// request, and `is_ride` whether it has posted no verb.
    pub fn count_followed(&self, is_ride: bool, found: bool) {
        self.count(|counts| match (found, is_ride) {
            (true, true) => &counts.rides,
            (true, false) => &counts.compared,
            (false, _) => &counts.misses,
        });
    }

    /// Counts a set that has waited, by the role that it got.
    pub fn count_waited(&self, turn: &WaitedSetRole) {
        self.count(|counts| match turn {
            WaitedSetRole::Lead(_) => &counts.waited,
            WaitedSetRole::Absorbed(_) => &counts.absorbed,
        });
    }

    fn count(&self, of: impl Fn(&WorkTableCounters) -> &AtomicU64) {
        // Relaxed, because nothing depends on these counts.
        of(&self.counts).fetch_add(1, Ordering::Relaxed);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeaderKind {
    Get,
    Set,
}

impl RequestRow {
    fn entry(&mut self, kind: LeaderKind) -> &mut Option<LeaderEntry> {
        match kind {
            LeaderKind::Get => &mut self.get,
            LeaderKind::Set => &mut self.set,
        }
    }
}

impl RequestRows {
    /// Removes a leader from the table, if it is still there, and returns its entry.
    fn remove(&mut self, key: &[u8], kind: LeaderKind, number: u64) -> Option<LeaderEntry> {
        let row = self.by_key.get_mut(key)?;
        let entry = row.entry(kind).take_if(|entry| entry.number == number);
        if row.get.is_none() && row.set.is_none() && row.waiting.is_none() {
            self.by_key.remove(key);
        }
        entry
    }

    /// If no set is running, takes the waiting sets out of the table, except for dropped ones.
    fn take_waiting(&mut self, key: &[u8]) -> Option<WaitingSets> {
        let row = self.by_key.get_mut(key).filter(|row| row.set.is_none())?;
        let mut waiting = row.waiting.take()?;
        waiting.sets.retain(|set| !set.is_closed());
        if row.get.is_none() {
            self.by_key.remove(key);
        }
        Some(waiting)
    }
}

/// The role of a leader. A leader ends by `land_get` or `land_set`, which pass its result on. If it is dropped instead,
/// its followers run alone.
#[derive(Debug)]
pub struct LeaderRole {
    table: Arc<RequestTable>,
    key: Box<[u8]>,
    number: u64,
    kind: LeaderKind,
    epoch: u64,
    /// The sender of the leader's result; `None` after the result has been sent.
    lands: Option<oneshot::Sender<Arc<LeaderPair>>>,
    /// The sets that the leader absorbs.
    absorbed: Vec<oneshot::Sender<WaitedSetRole>>,
    /// Whether the leader has posted a commit.
    has_committed: Cell<bool>,
}

impl LeaderRole {
    /// Records that a set is about to post its commit, so that no further get takes the value of this set.
    pub fn commits(&self) {
        self.has_committed.set(true);
        if removed(Mutant::GetRidesPostedSet) {
            return;
        }
        let mut rows = self.table.rows();
        let row = rows.by_key.get_mut(&self.key);
        let entry = row.and_then(|row| row.entry(self.kind).as_mut());
        if let Some(entry) = entry.filter(|entry| entry.number == self.number) {
            entry.is_open = false;
        }
    }

    /// Ends a get, and passes to its followers what it has found. In a strict table, passes nothing if the key does not
    /// exist.
    pub fn land_get(mut self, place: Option<Hint>, value: Option<&[u8]>) {
        if place.is_some() || self.table.is_relaxed {
            self.land(place, value);
        }
    }

    /// Ends a set, and passes its result to its followers. `result` contains the slot in which the set's word has
    /// replaced the old word, or `None` if the set has replaced no word.
    pub fn land_set(mut self, result: Result<Option<Hint>, &Error>, value: &[u8]) {
        let answer = match result {
            Ok(_) => Ok(()),
            // The key did not exist for the absorbed sets either, so they fail with the same error as the leader.
            Err(Error::NotFound) => Err(Error::NotFound),
            Err(_) if removed(Mutant::FailedSetAbsorbs) => Ok(()),
            Err(_) => return,
        };
        for set in mem::take(&mut self.absorbed) {
            let _ = set.send(WaitedSetRole::Absorbed(answer.clone()));
        }
        match result {
            // If the set has not posted a commit itself, a view change has committed its word, possibly before a riding
            // get began; another write has possibly replaced the word since. So only a set that has posted a commit
            // passes its value on.
            Ok(Some(place))
                if self.has_committed.get() || removed(Mutant::GetBelievesSettledSet) =>
            {
                self.land(Some(place), Some(value));
            }
            Ok(None) if removed(Mutant::GetBelievesUncommittedSet) => self.land(None, Some(value)),
            _ => {}
        }
    }

    fn land(&mut self, place: Option<Hint>, value: Option<&[u8]>) {
        let entry = self.table.rows().remove(&self.key, self.kind, self.number);
        drop(entry);
        let lands = self.lands.take().filter(|lands| !lands.is_closed());
        if let Some(lands) = lands {
            let value = value.map(Box::from);
            let _ = lands.send(Arc::new(LeaderPair { place, value, epoch: self.epoch }));
        }
    }
}

impl Drop for LeaderRole {
    fn drop(&mut self) {
        let mut rows = self.table.rows();
        rows.remove(&self.key, self.kind, self.number);
        if self.kind == LeaderKind::Get {
            return;
        }
        let Some(WaitingSets { mut sets, .. }) = rows.take_waiting(&self.key) else { return };
        if removed(Mutant::PostedSetAbsorbs) && self.lands.is_none() {
            sets.into_iter().for_each(|set| drop(set.send(WaitedSetRole::Absorbed(Ok(())))));
            return;
        }
        let Some(last) = sets.pop() else { return };
        let mut lead =
            self.table.lead(&mut rows, &self.key, LeaderKind::Set, None, None, self.epoch);
        lead.absorbed = sets;
        drop(rows);
        // If the last waiting set is not awaited any more, `lead` is dropped here, and the sets that it would have
        // absorbed run alone.
        let _ = last.send(WaitedSetRole::Lead(lead));
    }
}
