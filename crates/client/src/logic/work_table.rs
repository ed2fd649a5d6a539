//! The work table: the running requests of a process's sessions, so that correlated requests, those on one key
//! at one time, need not all go to the memory nodes (E §4.3).
//!
//! A row is a key with a get, or a set (UPDATE, UPSERT), or both. The request that has registered is a
//! *leader*; requests that come before it ends are its *followers*. A row is removed when its leaders have
//! ended.
//!
//! In a strict table, every answer is as linearizable as without the table
//! ([decision 0041](../../../../docs/decisions/0041-work-table.md)):
//!
//! * A get *rides* on a set that has not posted its commit: it takes the value if that commit replaces the
//!   slot's word. Then the set takes effect after the get has begun, and before it ends.
//! * A get that follows another get, or a set whose commit is posted, READs the slot itself: 8 bytes. It
//!   takes its leader's value if the leader has found, or put, the same word in the same slot. No word comes
//!   back within a quarter of [`WINDOW_EPOCHS`], so the word still leads to the pair that it led the leader to.
//! * Sets wait for a running set. When it ends, the last of them leads, and absorbs the other waiting sets of
//!   its kind: they take effect right before it, and have the same result. INSERT, DELETE and Moves run alone.
//!
//! In a relaxed table, as in the paper, a get takes the result of an earlier get, and the value of a set at
//! once, whether or not the set ever takes effect; a write waits for a get; of two writes or Moves the later
//! one fails.
//!
//! A leader may fail, be dropped half-way, or not be polled. It lands, or is dropped, by its [`LeaderRole`], and
//! followers wait no longer than their patience: then they go alone. So no request waits for ever, and a
//! follower that has gone alone no longer depends on its leader.

use std::cell::Cell;
use std::collections::HashMap;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fusee_core::Error;
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
    /// The number of the next leader.
    next: u64,
}

#[derive(Debug, Default)]
struct RequestRow {
    get: Option<LeaderEntry>,
    set: Option<LeaderEntry>,
    waiting: Option<WaitingSets>,
}

/// A leader.
#[derive(Debug)]
struct LeaderEntry {
    number: u64,
    /// The slot in which its session expects the key.
    slot: Option<SlotRef>,
    /// Whether it is a set whose commit is not posted yet.
    is_open: bool,
    /// The value that it writes, if others may have that at once.
    value: Option<Arc<[u8]>>,
    landing: LeaderResult,
}

/// Sets that wait for the running one.
#[derive(Debug)]
struct WaitingSets {
    opcode: Opcode,
    /// The sets in the order in which they came.
    sets: Vec<oneshot::Sender<WaitedSetRole>>,
}

/// The result of a leader; an error if followers cannot use it.
pub type LeaderResult = Shared<oneshot::Receiver<Arc<LeaderPair>>>;

/// The pair that a leader has found, or written.
#[derive(Debug)]
pub struct LeaderPair {
    /// The slot with its word; `None` if no slot is known.
    place: Option<Hint>,
    /// The value; `None` if the key does not exist.
    value: Option<Box<[u8]>>,
    /// The epoch in which the word was in the slot, or an earlier one.
    epoch: u64,
}

impl LeaderPair {
    /// Returns the place of the key, for the index cache of another session.
    pub fn place(&self) -> Option<Hint> {
        self.place.map(Hint::uncertain)
    }

    /// The value; `None` if the key does not exist.
    pub fn value(&self) -> Option<&[u8]> {
        self.value.as_deref()
    }

    /// Returns whether a slot that shows `word`, in `epoch` or the next one, leads to this pair.
    pub fn is_shown_by(&self, slot: SlotRef, word: Slot, epoch: u64) -> bool {
        // An object of an EC-oriented pair has several words in its life.
        let window = WINDOW_EPOCHS / u64::from(Slot::TURNS);
        let is_young = epoch.saturating_sub(self.epoch) + 1 < window;
        let place = self.place.filter(|_| is_young);
        let is_same = |at: Hint| at.word == word || removed(Mutant::GetComparesNoWords);
        place.is_some_and(|at| at.slot == slot && is_same(at))
    }
}

/// The role of a set that has waited.
#[derive(Debug)]
pub enum WaitedSetRole {
    /// It leads.
    Lead(LeaderRole),
    /// Another set has absorbed it: it took effect right before that one; or did not, if the key did not exist.
    Absorbed(Result<(), Error>),
}

/// The role of a get.
#[derive(Debug)]
pub enum GetRole {
    /// It goes to the memory nodes, and others may follow it.
    Lead(LeaderRole),
    /// It goes to the memory nodes, without followers.
    Alone,
    /// It takes the result of its leader.
    Ride(FollowedRequest),
    /// It READs this slot, and takes the result of its leader if the slot shows the leader's word.
    Compare(SlotRef, FollowedRequest),
    /// It has this answer.
    Value(Arc<[u8]>),
}

/// The role of a write.
#[derive(Debug)]
pub enum SetRole {
    /// It goes to the memory nodes, and others may follow it. It first waits until these gets have landed, if
    /// there are any.
    Lead(LeaderRole, Option<FollowedRequest>),
    /// It goes to the memory nodes, without followers.
    Alone,
    /// It waits for its turn.
    Wait(oneshot::Receiver<WaitedSetRole>),
    /// It fails.
    Refused,
}

/// Another request, whose result is awaited.
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
    /// Gets that took the value of a running request, and posted no verb.
    rides,
    /// Gets that READ 8 bytes, and took the value of a running request.
    compared,
    /// Gets that followed a running request in vain.
    misses,
    /// Sets that were absorbed by a later one.
    absorbed,
    /// Sets that waited, and then led.
    waited,
    /// Writes and Moves that failed because another one was running; relaxed only.
    refused,
}

impl RequestTable {
    /// Makes an empty table, strict or relaxed.
    pub fn new(is_relaxed: bool) -> RequestTable {
        RequestTable { is_relaxed, rows: Mutex::default(), counts: WorkTableCounters::default() }
    }

    /// Returns whether it is relaxed.
    pub fn is_relaxed(&self) -> bool {
        self.is_relaxed
    }

    /// Returns the counts so far.
    pub fn stats(&self) -> WorkTableStats {
        self.counts.all()
    }

    fn rows(&self) -> MutexGuard<'_, RequestRows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a get. `slot`: where its session expects the key; `epoch`: the newest that the session knows.
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

    /// Begins an UPDATE or UPSERT; if the table is relaxed, any write or Move. `value`: the key's new value, if
    /// it gets one.
    pub fn set(
        self: &Arc<Self>,
        opcode: Opcode,
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
        let waiting = row.waiting.get_or_insert(WaitingSets { opcode, sets: Vec::new() });
        if waiting.opcode != opcode && !removed(Mutant::OtherSetsAbsorb) {
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

    /// Removes a leader, when a follower has lost its patience: no other request follows that leader.
    pub fn abandon(&self, key: &[u8], followed: &FollowedRequest) {
        let mut rows = self.rows();
        for kind in [LeaderKind::Get, LeaderKind::Set] {
            rows.remove(key, kind, followed.number);
        }
    }

    /// Counts a get that has followed another request, successfully (`found`) or in vain.
    pub fn count_followed(&self, is_ride: bool, found: bool) {
        self.count(|counts| match (found, is_ride) {
            (true, true) => &counts.rides,
            (true, false) => &counts.compared,
            (false, _) => &counts.misses,
        });
    }

    /// Counts a set that has waited for its turn.
    pub fn count_waited(&self, turn: &WaitedSetRole) {
        self.count(|counts| match turn {
            WaitedSetRole::Lead(_) => &counts.waited,
            WaitedSetRole::Absorbed(_) => &counts.absorbed,
        });
    }

    fn count(&self, of: impl Fn(&WorkTableCounters) -> &AtomicU64) {
        // Relaxed: nothing depends on it.
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
    /// Removes a leader from the table, if it is still there.
    fn remove(&mut self, key: &[u8], kind: LeaderKind, number: u64) -> Option<LeaderEntry> {
        let row = self.by_key.get_mut(key)?;
        let entry = row.entry(kind).take_if(|entry| entry.number == number);
        if row.get.is_none() && row.set.is_none() && row.waiting.is_none() {
            self.by_key.remove(key);
        }
        entry
    }

    /// Takes the waiting sets, except for dropped ones, if no set is running.
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

/// The role of a leader. It must be landed; if it is dropped instead, its followers go alone.
#[derive(Debug)]
pub struct LeaderRole {
    table: Arc<RequestTable>,
    key: Box<[u8]>,
    number: u64,
    kind: LeaderKind,
    epoch: u64,
    /// `None` when it has landed.
    lands: Option<oneshot::Sender<Arc<LeaderPair>>>,
    /// Sets that it absorbs.
    absorbed: Vec<oneshot::Sender<WaitedSetRole>>,
    /// Whether it has posted a commit.
    has_committed: Cell<bool>,
}

impl LeaderRole {
    /// Records that a set is about to post its commit: no further get rides on it.
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

    /// Lands a get with what it has found.
    pub fn land_get(mut self, place: Option<Hint>, value: Option<&[u8]>) {
        if place.is_some() || self.table.is_relaxed {
            self.land(place, value);
        }
    }

    /// Lands a set that has ended. `result` says whether its word has replaced the slot's, and in which slot.
    pub fn land_set(mut self, result: Result<Option<Hint>, &Error>, value: &[u8]) {
        let answer = match result {
            Ok(_) => Ok(()),
            // The key did not exist for the absorbed sets either.
            Err(Error::NotFound) => Err(Error::NotFound),
            Err(_) if removed(Mutant::FailedSetAbsorbs) => Ok(()),
            Err(_) => return,
        };
        for set in mem::take(&mut self.absorbed) {
            let _ = set.send(WaitedSetRole::Absorbed(answer.clone()));
        }
        match result {
            // Without a commit of its own, a view change has committed the word, perhaps before a riding get
            // began: another write may have replaced the word since then.
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
        // If the last set is not awaited any more, `lead` is dropped here, and the sets that it would have
        // absorbed go alone.
        let _ = last.send(WaitedSetRole::Lead(lead));
    }
}
