//! The operations: SEARCH, INSERT, UPDATE, UPSERT, DELETE, Move and SCAN over any fabric.
//!
//! A [`Store`] is one session's half of the protocol: its slabs, its counters, its view. Any
//! number of operations may run on it at once, interleaved at their await points (the paper's
//! coroutines). Every operation is a plain `async fn`; each `phase().await` in it is one batch,
//! one round trip. Dropping an operation half-way is a client crash, as far as others can tell.
//!
//! The index cache lives with the caller, who passes a [`Hint`] in and stores the one that comes
//! back. A hint may be wrong: operations compare the slot they fetch with the slot they
//! were told, and the key with the object.
//!
//! Phases, without conflicts (asserted by tests):
//!
//! | operation | hint right | no hint | one index replica |
//! |---|---|---|---|
//! | SEARCH | 1 | 2 | the same |
//! | SEARCH of many keys, as long as they fit into a batch | 1 | 2 | the same |
//! | SCAN, a piece | – | 2 | the same |
//! | UPDATE, DELETE, UPSERT of a key that exists | 3; by a speculative write 2 | 4 | 2 / 3 |
//! | INSERT, UPSERT of a new key | – | 4 | 3 |
//! | Move | 4 | 5 | 3 / 4 |

mod attempt;
mod beside;
mod compare;
mod contend;
mod copies;
mod crowded;
mod damage;
mod demote;
mod in_place;
mod insert;
mod many;
mod moving;
mod pinned;
mod reclaim;
mod resolve;
mod room;
mod round;
mod scan;
mod seal;
mod search;
mod silent;
mod speculation;
mod steered;
mod straight;
mod target;
mod vouch;
mod write;
mod write_now;

use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::mem;

use arrayvec::ArrayVec;

pub use attempt::Watch;
pub use demote::Demoted;
pub use many::SearchKey;
pub use moving::{Reach, Transition};
pub use scan::{NoCursor, PieceLimits, ScanCursor, ScannedPair};
pub use search::Searched;

use beside::Beside;
use damage::SecondLook;
use pinned::{LocalEpochs, Pin, ViewRef};
use reclaim::Freed;
use silent::Silent;
use steered::Steering;
use target::{Target, class_of, replica};
use vouch::Asks;

use crate::data::Fetch;
use crate::error::{Error, Outcome};
use crate::host::{GiveUp, Host};
use crate::layout::{HEADER_BYTES, Identity, Object, SizeClass, Slot, UNIT_BYTES};
use crate::mutant::{Mutant, removed};
use crate::race::{Buckets, HashKey, IntoKey, Key, MAX_CANDIDATES, Words};
use crate::slab::Slabs;
use crate::stats::{Cost, Counters, OpKind, Stats};
use crate::verbs::{Batch, ClientId, Fabric, FailedVerb, MnId, Ticket, Verb, VerbError};
use crate::view::{Place, SlotRef, View};

/// Where a key was last seen: its slot and the slot's word. What an index cache keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hint {
    /// The slot.
    pub slot: SlotRef,
    /// What it held. The key was compared with the object this refers to.
    pub word: Slot,
    /// When that was.
    pub seen: Sight,
}

/// When a hint was seen, as far as that says how much it is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// In this epoch ([`Epochs::epoch`](crate::host::Epochs::epoch)) or later, on the primary, as a word that counts.
    /// Whoever gives it back promises that it is certainly of the same key. Never where verbs take no time to speak of.
    Since(u64),
    /// The hint may be wrong in every way.
    Sometime,
    /// The same, and its word is likely to be an old one: where there is a switch, that is asked where the slot leads
    /// ([`Store::asks_switches`]).
    Doubted,
}

impl Hint {
    /// Whether both lead to the same, whenever they were seen.
    pub fn leads_like(&self, other: &Hint) -> bool {
        (self.slot, self.word) == (other.slot, other.word)
    }

    /// Whether it is likely to be wrong.
    pub fn is_doubted(&self) -> bool {
        self.seen == Sight::Doubted
    }

    /// The same, with no promise.
    pub fn uncertain(self) -> Hint {
        Hint { seen: Sight::Sometime, ..self }
    }
}

/// A batch that holds more memory than this is not kept.
const MAX_KEPT_BYTES: usize = 4 << 20;

/// What a write that succeeded leaves for the index cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Where the key is now; `None` after a DELETE, and after a write that another one overtook.
    pub place: Option<Hint>,
    /// Whether the hint that was given still held; `false` without one.
    pub hint_held: bool,
}

/// One session's half of the protocol.
pub struct Store<F, H> {
    fabric: F,
    host: H,
    client: ClientId,
    hash_key: HashKey,
    view: RefCell<ViewRef>,
    slabs: RefCell<Slabs>,
    batches: RefCell<Vec<Batch>>,
    counters: Arc<Counters>,
    /// Whether an operation left a write round half-way.
    half_way: Cell<bool>,
    /// Since when the running operations act.
    local_epochs: LocalEpochs,
    /// Objects whose free bits are to be set.
    freed: Freed,
    /// Counts looks at free bitmaps.
    looks: Cell<u64>,
    /// Whether an operation collects free memory.
    reclaiming: Cell<bool>,
    /// Up to which mark blocks do not become unverified once more.
    unverifies_from: Cell<u64>,
    /// Operations that look for memory.
    allocating: Cell<usize>,
    /// Whether the pool had no block left when the last one was asked for.
    pool_was_empty: Cell<bool>,
    /// Questions to the members, at which view they stand.
    asks: Asks,
    /// Memory nodes that did not answer.
    silent: Silent,
    /// Primaries that are barred, whose backups are read.
    beside: Beside,
    /// What steered READs have brought.
    steering: Steering,
    /// Whether all regions of the view are replicated.
    has_one_redundancy: Cell<bool>,
}

impl<F: Fabric, H: Host> Store<F, H> {
    /// A session of `client` that follows `view`, which must have passed [`View::check`].
    pub fn new(fabric: F, host: H, client: ClientId, view: Arc<View>) -> Store<F, H> {
        let slabs = Slabs::new(client, view.geometry.block_bytes);
        let has_one_redundancy = Cell::new(pinned::has_one_redundancy(&view));
        Store {
            fabric,
            host,
            client,
            hash_key: view.hash_key,
            view: RefCell::new(Rc::new(view)),
            slabs: RefCell::new(slabs),
            batches: RefCell::default(),
            counters: Arc::default(),
            half_way: Cell::new(false),
            local_epochs: LocalEpochs::default(),
            freed: Freed::default(),
            looks: Cell::new(0),
            reclaiming: Cell::new(false),
            unverifies_from: Cell::new(0),
            allocating: Cell::new(0),
            pool_was_empty: Cell::new(false),
            asks: Asks::default(),
            silent: Silent::default(),
            beside: Beside::default(),
            steering: Steering::default(),
            has_one_redundancy,
        }
    }

    /// The fabric underneath.
    pub fn fabric(&self) -> &F {
        &self.fabric
    }

    /// The host underneath.
    pub fn host(&self) -> &H {
        &self.host
    }

    /// The session's name.
    pub fn client(&self) -> ClientId {
        self.client
    }

    /// The view that new operations follow.
    pub fn view(&self) -> Arc<View> {
        Arc::clone(&self.view.borrow())
    }

    /// The counters so far.
    pub fn stats(&self) -> Stats {
        self.counters.stats()
    }

    /// What it counts, for other threads of its process to look at.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Whether a write of this session ended with an unknown outcome, or was dropped: something of it may stand in a
    /// slot, and others wait for its end, or its object belongs to nothing. Or a memory node has not answered a WRITE,
    /// which may still execute. Such a session must not leave as one that has
    /// finished; it is to be recovered like one that died ([`recovery`](crate::recovery)).
    pub fn needs_recovery(&self) -> bool {
        self.half_way.get()
    }

    /// Whether operations of it are under way for which others may wait: changes of the view, and memory that is to be
    /// used again.
    pub fn holds_others_up(&self) -> bool {
        self.local_epochs.holds_others_up()
    }

    /// Has the processor fetch, for soon, what a write by this hint looks at first: the slot, on all replicas, and the
    /// start of the object there. Where verbs travel it does nothing.
    pub fn prefetch(&self, hint: Hint) {
        let view = self.view.borrow();
        if !self.fabric.is_immediate() || !view.has_slot(hint.slot) {
            return;
        }
        let slots = view.slot_on_backups(hint.slot).chain([view.slot_on_primary(hint.slot)]);
        let object = view.object_of(hint.word);
        let object = object.as_ref().and_then(|object| object.places().next());
        for place in slots.chain(object) {
            self.fabric.prefetch(place.node, place.offset);
        }
    }

    /// A key of this cluster, hashed once for all that is done with it.
    #[inline]
    pub fn key<'k>(&self, key: impl IntoKey<'k>) -> Key<'k> {
        key.into_key(&self.hash_key)
    }

    fn check_key(&self, key: &[u8]) -> Result<(), Error> {
        let max_bytes = self.view.borrow().geometry.max_key_bytes as usize;
        match key.len() {
            0 => Err(Error::KeyEmpty),
            bytes if bytes > max_bytes => Err(Error::KeyTooLarge { bytes, max_bytes }),
            _ => Ok(()),
        }
    }

    fn check_value(&self, bytes: usize) -> Result<(), Error> {
        let max_bytes = self.view.borrow().geometry.max_value_bytes as usize;
        if bytes > max_bytes { Err(Error::ValueTooLarge { bytes, max_bytes }) } else { Ok(()) }
    }

    /// A batch for an operation, which keeps nothing.
    fn batch(&self) -> Batch {
        self.batches.borrow_mut().pop().unwrap_or_default()
    }

    fn operation(&self) -> Op<'_, F, H> {
        self.operation_with(self.batch())
    }

    fn operation_with(&self, batch: Batch) -> Op<'_, F, H> {
        let (pin, view) = Pin::new(self);
        Op {
            store: self,
            view,
            batch,
            cost: Cost::default(),
            pin,
            unanswered: Vec::new(),
            made_room: false,
            pauses: 0,
            asks_before: self.asks.begun(),
            beside: false,
        }
    }

    /// Keeps a batch for the next operation, unless it has grown out of proportion.
    fn recycle(&self, mut batch: Batch) {
        batch.keep_nothing();
        if batch.memory_bytes() <= MAX_KEPT_BYTES {
            self.batches.borrow_mut().push(batch);
        }
    }
}

/// One running operation: its batch, and what it has cost.
struct Op<'s, F: Fabric, H: Host> {
    store: &'s Store<F, H>,
    view: ViewRef,
    batch: Batch,
    cost: Cost,
    /// By which view it is pinned, and whether others may have seen something of it.
    pin: Pin<'s, F, H>,
    /// Memory nodes that did not answer this operation.
    unanswered: Vec<MnId>,
    /// Whether it has looked for memory.
    made_room: bool,
    /// How often it has waited. One count for the whole operation, so that the host's limit on
    /// waiting is one on the operation.
    pauses: u32,
    /// Questions to the members that had begun before it.
    asks_before: u64,
    /// Whether it has read slots beside their primary.
    beside: bool,
}

/// What shows that an object is the key's. The slot leads to it at the moment when the slot is read; from
/// then on it stays as it is until the operation ends.
#[derive(Clone, Copy)]
enum Proof {
    /// Read after the slot: the start of the object, up to its key, is enough.
    Prefix(Ticket),
    /// Read before or after the slot, nobody knows: perhaps while another object, which was here when
    /// the hint was made, gave way to this one. Nothing but the CRC shows that no part of it was read.
    Whole(Ticket),
    /// Perhaps the object that the slot leads to, of a doubted hint.
    Steered(Ticket),
}

/// How much of an object has to be read to compare its key.
fn prefix_bytes(class: SizeClass, key: Key<'_>) -> u32 {
    let needed = (HEADER_BYTES + key.len() as u64).next_multiple_of(UNIT_BYTES);
    needed.min(class.bytes()) as u32
}

/// Objects up to so many bytes are read whole to compare their keys: the CRC then says whether
/// they are another key's, at hardly more than the start of one costs.
const COMPARED_WHOLE_BYTES: u64 = 2048;

/// What came of reading an object to compare its key.
enum KeyCheck {
    Same,
    /// Read whole, with a good CRC.
    Other,
    /// The object is damaged, or only the start of it was read: it may be the key's all the same.
    Unproved,
}

impl<F: Fabric, H: Host> Op<'_, F, H> {
    /// Executes the batch: one phase.
    async fn phase(&mut self) {
        if !self.phase_now() {
            let batch = mem::take(&mut self.batch);
            let before = self.pin.on_its_way;
            // Until it is answered: the operation may be dropped.
            self.pin.on_its_way |= batch.has_write(|_| true);
            self.batch = self.store.fabric.execute(batch).await;
            let is_silent = |verb: &Verb| verb.result == Err(VerbError::Unreachable);
            let is_late = self.batch.has_write(is_silent) && !removed(Mutant::LateObjectsForgotten);
            self.pin.on_its_way = before || is_late;
            self.phase_done();
        }
    }

    /// As [`Op::phase`], where the fabric is immediate; else does nothing. Returns whether it did.
    fn phase_now(&mut self) -> bool {
        self.pin.posted |= self.batch.atomics() > 0;
        let now = self.store.fabric.execute_now(&mut self.batch);
        if now {
            self.phase_done();
        }
        now
    }

    fn phase_done(&mut self) {
        let has_failures = self.batch.has_failures();
        if has_failures {
            self.note_unanswered();
        }
        if has_failures || self.store.silent.any() {
            self.store.silent.note(&self.batch);
        }
        self.cost.add_batch(&self.batch);
    }

    /// Nodes that did not answer: what was posted to them may still execute.
    #[cold]
    fn note_unanswered(&mut self) {
        for verb in self.batch.verbs() {
            let silent = verb.result == Err(VerbError::Unreachable);
            if silent && !self.unanswered.contains(&verb.node) {
                self.unanswered.push(verb.node);
            }
        }
    }

    /// Ends the operation: counts it and keeps its batch for the next one.
    fn finish(self, kind: OpKind) {
        self.store.counters.add(kind, &self.cost);
        self.store.recycle(self.batch);
    }

    /// A verb of this operation failed.
    fn failed(&self, failure: FailedVerb) -> Error {
        let FailedVerb { node, error } = failure;
        let outcome = if self.pin.posted { Outcome::Unknown } else { Outcome::NotApplied };
        Error::Unreachable { node, error, outcome }
    }

    async fn pause(&mut self) -> Result<(), GiveUp> {
        let attempt = self.pauses;
        self.pauses += 1;
        self.store.host.pause(attempt).await
    }

    fn primary(&self, slot: SlotRef) -> Place {
        self.view.slot_on_primary(slot)
    }

    fn read_slot(&mut self, slot: SlotRef) -> Ticket {
        let place = self.primary(slot);
        self.batch.read(place.node, place.offset, 8)
    }

    /// One phase: the primary slot. For use after a CAS of this operation.
    async fn fetch_slot(&mut self, slot: SlotRef) -> Result<Slot, Error> {
        // Nothing that was staged is needed any more, and a loser may come here many times.
        self.batch.clear();
        let ticket = self.read_slot(slot);
        self.phase().await;
        self.slot_word(ticket).map_err(|f| self.failed(f))
    }

    fn slot_word(&self, ticket: Ticket) -> Result<Slot, FailedVerb> {
        slot_word(&self.batch, ticket)
    }

    /// One phase: all slots of the key, from the primary.
    async fn fetch_words(&mut self, buckets: &Buckets) -> Result<Words, FailedVerb> {
        self.batch.next_phase();
        let tickets = self.read_buckets(buckets);
        self.phase().await;
        buckets.words(&self.batch, tickets)
    }

    fn read_buckets(&mut self, buckets: &Buckets) -> [Ticket; 2] {
        let replicas = self.view.subtables[buckets.subtable as usize].replicas();
        let place = replicas[if removed(Mutant::ReadsABackup) { replicas.len() - 1 } else { 0 }];
        buckets.read(&mut self.batch, place)
    }

    /// Posts the READs for the value of the object that a word refers to, which was read on this node;
    /// `None` if it refers to none.
    fn fetch(&mut self, shown_on: MnId, word: Slot) -> Option<Fetch> {
        let object = self.view.object_of(word)?;
        let is_silent = |node| self.store.silent.has(node);
        let first = object.read_at(shown_on, is_silent);
        Some(object.fetch(&mut self.batch, first, is_silent))
    }

    /// Posts a READ of as much of a word's object as comparing the key needs; `None` if the word refers
    /// to none. On the node that has shown the word, if there is a replica: what a speculative write
    /// has put on a backup is complete there, and perhaps nowhere else (`speculation.rs`).
    ///
    /// The slot was read earlier in this operation, and an object that was complete then stays untouched
    /// until the operation ends: where the start of a large one shows the key, it is the key's.
    fn read_key_of(&mut self, word: Slot, shown_on: MnId, key: Key<'_>) -> Option<Ticket> {
        let class = class_of(&self.view, word)?;
        let place = replica(&self.view, &self.store.silent, word.address(), class, shown_on)?;
        let bytes = match class.bytes() {
            bytes @ ..=COMPARED_WHOLE_BYTES => bytes as u32,
            _ => prefix_bytes(class, key),
        };
        Some(self.batch.read(place.node, place.offset, bytes))
    }

    /// Posts, behind the READ of the slot, what it takes to know that the hint's word leads to the key if
    /// the slot shows it.
    fn read_proof(&mut self, target: &Target, key: Key<'_>) -> Proof {
        let in_order = target.slot.node == target.object.node || self.store.fabric.is_immediate();
        if in_order || removed(Mutant::PrefixReadEarly) {
            let bytes = prefix_bytes(target.class, key);
            return Proof::Prefix(self.batch.read(target.object.node, target.object.offset, bytes));
        }
        Proof::Whole(target.read_object(&mut self.batch))
    }

    /// Whether the word that the slot of a hint showed, if it is the hint's, leads to the key.
    fn is_proved(&self, proof: Proof, word: Slot, key: Key<'_>) -> Result<bool, Error> {
        Ok(match proof {
            Proof::Prefix(ticket) => {
                let prefix = self.batch.data(ticket).map_err(|f| self.failed(f))?;
                let shows = |identity| starts_with_key(prefix, identity, key);
                shows(word.leads_to()) || self.first_turn(word).is_some_and(shows)
            }
            Proof::Steered(_) => false,
            Proof::Whole(ticket) => {
                let bytes = self.batch.data(ticket).map_err(|f| self.failed(f))?;
                let shows = |identity| matches!(whole_key(bytes, identity, key), KeyCheck::Same);
                shows(word.leads_to()) || self.first_turn(word).is_some_and(shows)
            }
        })
    }

    /// What the header of a word's object shows, if that is another identity than the word's.
    #[cold]
    fn first_turn(&self, word: Slot) -> Option<Identity> {
        let object = self.view.object_of(word)?;
        object.is_turned(word).then(|| object.identity_of(word))
    }

    /// What an object that was read to compare its key shows: the whole of it, or its start.
    fn check_key_of(
        &self,
        ticket: Ticket,
        word: Slot,
        key: Key<'_>,
    ) -> Result<KeyCheck, FailedVerb> {
        let bytes = self.batch.data(ticket)?;
        let identity = self.first_turn(word).unwrap_or_else(|| word.leads_to());
        let is_whole = word.class().is_some_and(|class| class.bytes() == bytes.len() as u64);
        if !is_whole || removed(Mutant::OtherKeyByItsStart) {
            let other = if removed(Mutant::OtherKeyByItsStart) {
                KeyCheck::Other
            } else {
                KeyCheck::Unproved
            };
            return Ok(if starts_with_key(bytes, identity, key) { KeyCheck::Same } else { other });
        }
        Ok(whole_key(bytes, identity, key))
    }

    /// One phase, or none if there are no candidates: which of these slots, as they are shown on a
    /// node, refers to the key? Those whose objects prove nothing are looked at again, a phase or two
    /// each. `Err(Stale)` if one of them has changed meanwhile. A word that can refer to nothing, or only
    /// to damaged replicas, is an error only if no other one refers to the key.
    async fn find_key(
        &mut self,
        candidates: impl Iterator<Item = (SlotRef, Slot)>,
        shown_on: MnId,
        key: Key<'_>,
    ) -> Result<Result<Option<Hint>, Stale>, Error> {
        self.batch.next_phase();
        let mut reads = Candidates::new();
        let mut broken = None;
        for (slot, word) in candidates {
            match self.read_key_of(word, shown_on, key) {
                Some(ticket) => {
                    reads.push((Hint { slot, word, seen: Sight::Sometime }, ticket));
                }
                None if self.view.is_being_lost(word) => return Ok(Err(Stale)),
                None if self.is_gone(word) => {}
                None => broken = Some(BROKEN_WORD),
            }
        }
        if !reads.is_empty() {
            self.phase().await;
        }
        let mut unproved = ArrayVec::<Hint, MAX_CANDIDATES>::new();
        for (hint, ticket) in reads {
            match self.check_key_of(ticket, hint.word, key).map_err(|f| self.failed(f))? {
                KeyCheck::Same => return Ok(Ok(Some(hint))),
                KeyCheck::Other => {}
                KeyCheck::Unproved => unproved.push(hint),
            }
        }
        if !unproved.is_empty() {
            // On the heap: it is rare, and the futures of operations stay small.
            return Box::pin(self.find_among(unproved, broken, shown_on, key)).await;
        }
        broken.map_or(Ok(Ok(None)), Err)
    }

    /// Whether the pair of a word was lost with its only node, which is counted.
    fn is_gone(&self, word: Slot) -> bool {
        let is_gone = self.view.is_gone(word);
        if is_gone {
            self.store.counters.add_gone();
        }
        is_gone
    }

    /// Looks again at slots whose objects prove nothing.
    async fn find_among(
        &mut self,
        unproved: ArrayVec<Hint, MAX_CANDIDATES>,
        mut broken: Option<Error>,
        shown_on: MnId,
        key: Key<'_>,
    ) -> Result<Result<Option<Hint>, Stale>, Error> {
        for hint in unproved {
            match self.look_again(hint, shown_on, key).await {
                Ok(SecondLook::Value(_)) => return Ok(Ok(Some(hint))),
                Ok(SecondLook::OtherKey) => {}
                Ok(SecondLook::Stale) => return Ok(Err(Stale)),
                Err(error @ Error::Corrupt { .. }) => broken = Some(error),
                Err(error) => return Err(error),
            }
        }
        broken.map_or(Ok(Ok(None)), Err)
    }
}

/// Whether all that one place has of an object shows the key.
fn whole_key(bytes: &[u8], identity: Identity, key: Key<'_>) -> KeyCheck {
    match Object::decode_of(bytes, identity) {
        Ok(object) if object.key() == &*key || removed(Mutant::KeysNotCompared) => KeyCheck::Same,
        Ok(_) => KeyCheck::Other,
        Err(_) if removed(Mutant::DamagedIsAnotherKeys) => KeyCheck::Other,
        Err(_) => KeyCheck::Unproved,
    }
}

/// Whether the start of an object shows the key, in the generation of the word that led to it. If it does
/// not, it may be damaged.
fn starts_with_key(prefix: &[u8], identity: Identity, key: Key<'_>) -> bool {
    match Object::prefix_has_key(prefix, identity, &key) {
        Ok(same) => same || removed(Mutant::KeysNotCompared),
        Err(_) => false,
    }
}

/// The word that the READ of a slot has fetched.
fn slot_word(batch: &Batch, ticket: Ticket) -> Result<Slot, FailedVerb> {
    let bytes = batch.data(ticket)?;
    Ok(Slot(u64::from_le_bytes(bytes.try_into().expect("a slot has 8 bytes"))))
}

/// A slot holds what no client of this cluster writes.
const BROKEN_WORD: Error = Error::Corrupt { what: "a slot refers to no possible object" };

/// Slots that may refer to a key, each with the READ of its object.
type Candidates = ArrayVec<(Hint, Ticket), MAX_CANDIDATES>;

/// Something read earlier is out of date: start again.
struct Stale;
