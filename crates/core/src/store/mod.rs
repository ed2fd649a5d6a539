//! The operations: SEARCH, INSERT, UPDATE, UPSERT, DELETE, Move and SCAN over any fabric.
//!
//! A [`Store`] is one session's half of the protocol: its slabs, its counters, its view. Any number of operations may
//! run on it at once, interleaved at their await points (the paper's coroutines). Every operation is a plain `async
//! fn`; each `phase().await` in it is one batch, one round trip. Dropping an operation half-way is a client crash, as
//! far as other sessions can tell.
//!
//! The caller keeps the index cache: it passes a [`Hint`] in and stores the one that comes back. A hint may be wrong:
//! operations compare the slot's word with that of the hint, and the key with the object.
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

mod memory;
mod read;
mod session;
mod write;

use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::mem;

use arrayvec::ArrayVec;

pub use read::{ParseCursorError, ScanCursor, ScanLimits, ScannedPair, SearchKey, SearchResult};
pub use write::{MoveScope, ObjectDemotion, Transition, Watch, WriteRequest};

use memory::SessionMemory;
use read::{HintTarget, KeyReread, ReadState, SteeredRead, class_of, replica, reread_for_key};
use session::{LocalEpochs, OperationPin, SilentNodes, ViewRef, VouchRequests};

use crate::data::Fetch;
use crate::error::{Error, FailedWriteOutcome};
use crate::host::{GiveUp, Host};
use crate::layout::{HEADER_BYTES, Identity, Object, SizeClass, Slot, UNIT_BYTES};
use crate::mutant::{Mutant, removed};
use crate::race::{BucketWords, Buckets, HashKey, IntoKey, Key, MAX_CANDIDATES};
use crate::stats::{Cost, Counters, OpKind, Stats};
use crate::verbs::{ClientId, Fabric, FailedVerb, MnId, Ticket, VerbBatch};
use crate::view::{PoolPlace, SlotRef, View};

/// The place where a key was last seen: its slot and the slot's word. The entry of an index cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hint {
    /// The slot.
    pub slot: SlotRef,
    /// The word that the slot held. The key was compared with the object that the word refers to.
    pub word: Slot,
    /// The time of that.
    pub seen: HintTrust,
}

/// The time at which a hint was seen, as far as that tells how reliable the hint is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HintTrust {
    /// In this epoch ([`Epochs::epoch`](crate::host::Epochs::epoch)) or later, on the primary, as a word that counts.
    /// A caller that passes the hint back promises that it is certainly the key's. Never used where the fabric is
    /// immediate.
    FreshSince(u64),
    /// The hint may be wrong in every way.
    Unverified,
    /// The hint may be wrong, and its word is likely to be an old one: if there is a switch, it is asked where the
    /// slot leads ([`Store::asks_switches`]).
    LikelyStale,
}

impl Hint {
    /// Returns whether both hints have the same slot and word, whenever they were seen.
    pub fn leads_like(&self, other: &Hint) -> bool {
        (self.slot, self.word) == (other.slot, other.word)
    }

    /// Returns whether the hint is likely to be wrong.
    pub fn is_doubted(&self) -> bool {
        self.seen == HintTrust::LikelyStale
    }

    /// Returns the same hint without a promise.
    pub fn uncertain(self) -> Hint {
        Hint { seen: HintTrust::Unverified, ..self }
    }
}

/// A batch that holds more memory than this is not kept.
const MAX_KEPT_BYTES: usize = 4 << 20;

/// The results of a successful write for the index cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteResult {
    /// The key's place now, also after a Move that has changed nothing; `None` after a DELETE, and after a write that
    /// another one overtook.
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
    batches: RefCell<Vec<VerbBatch>>,
    counters: Arc<Counters>,
    /// The local epochs in which operations run.
    local_epochs: LocalEpochs,
    /// The session's blocks, and the objects that it has freed.
    memory: SessionMemory,
    /// Questions to the members about the view that they are at.
    asks: VouchRequests,
    /// Memory nodes that did not answer.
    silent: SilentNodes,
    /// The state of reads.
    reads: ReadState,
    /// Whether all regions of the view are replicated.
    has_one_redundancy: Cell<bool>,
}

impl<F: Fabric, H: Host> Store<F, H> {
    /// Creates a session of `client` that follows `view`, which must have passed [`View::check`].
    pub fn new(fabric: F, host: H, client: ClientId, view: Arc<View>) -> Store<F, H> {
        let memory = SessionMemory::new(client, view.geometry.block_bytes);
        let has_one_redundancy = Cell::new(session::has_one_redundancy(&view));
        Store {
            fabric,
            host,
            client,
            hash_key: view.hash_key,
            view: RefCell::new(Rc::new(view)),
            batches: RefCell::default(),
            counters: Arc::default(),
            local_epochs: LocalEpochs::default(),
            memory,
            asks: VouchRequests::default(),
            silent: SilentNodes::default(),
            reads: ReadState::default(),
            has_one_redundancy,
        }
    }

    /// Returns the fabric underneath.
    pub fn fabric(&self) -> &F {
        &self.fabric
    }

    /// Returns the host underneath.
    pub fn host(&self) -> &H {
        &self.host
    }

    /// Returns the session's name.
    pub fn client(&self) -> ClientId {
        self.client
    }

    /// Returns the view that new operations follow.
    pub fn view(&self) -> Arc<View> {
        Arc::clone(&self.view.borrow())
    }

    /// Returns the counters so far.
    pub fn stats(&self) -> Stats {
        self.counters.stats()
    }

    /// Returns the counters, for other threads of the process to look at.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Returns whether the session is to be recovered like one that died ([`recovery`](crate::recovery)), and must
    /// not leave as one that has finished. That is so if a write ended with an unknown outcome, or was dropped: its
    /// word may stand in a slot, and others wait for its end; or nothing but a recovery ever frees its object. It is
    /// also so if a memory node has not answered a WRITE, which may still execute.
    pub fn needs_recovery(&self) -> bool {
        self.local_epochs.has_half_way()
    }

    /// Returns whether operations are under way for which view changes, and the reuse of memory, may have to wait.
    pub fn has_pinned_or_suspended(&self) -> bool {
        self.local_epochs.has_pinned_or_suspended()
    }

    /// Has the processor fetch the memory that a write by this hint touches first: the slot on all replicas, and the
    /// start of the object. Does nothing if the fabric is not immediate.
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

    /// Hashes a key of this cluster, once for all operations on it.
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

    /// Returns a batch for an operation. It may still hold verbs of an earlier operation, but keeps none of its bytes.
    fn batch(&self) -> VerbBatch {
        self.batches.borrow_mut().pop().unwrap_or_default()
    }

    fn operation(&self) -> StoreOp<'_, F, H> {
        self.operation_with(self.batch())
    }

    fn operation_with(&self, batch: VerbBatch) -> StoreOp<'_, F, H> {
        let (pin, view) = OperationPin::new(self);
        StoreOp {
            store: self,
            view,
            batch,
            cost: Cost::default(),
            pin,
            made_room: false,
            pauses: 0,
            asks_before: self.asks.begun(),
        }
    }

    /// Takes a batch back for the next operation, unless its memory has grown too large.
    fn recycle(&self, mut batch: VerbBatch) {
        batch.keep_nothing();
        if batch.memory_bytes() <= MAX_KEPT_BYTES {
            self.batches.borrow_mut().push(batch);
        }
    }
}

/// One running operation: its batch and its cost.
struct StoreOp<'s, F: Fabric, H: Host> {
    store: &'s Store<F, H>,
    view: ViewRef,
    batch: VerbBatch,
    cost: Cost,
    /// Its pin in a view and an epoch. Tells also whether others may have seen traces of the operation.
    pin: OperationPin<'s, F, H>,
    /// Whether it has looked for memory.
    made_room: bool,
    /// The number of its pauses. There is one count for the whole operation, so that the host's limit on waiting
    /// limits the operation.
    pauses: u32,
    /// The number of questions to the members that had begun before it.
    asks_before: u64,
}

/// Proof that an object is the key's. The slot leads to the object at the moment when the slot is read; from then on
/// the object stays as it is until the operation ends.
#[derive(Clone, Copy)]
enum KeyProof {
    /// READ after the slot: the start of the object, up to its key, is enough.
    Prefix(Ticket),
    /// READ before or after the slot, in unknown order: perhaps while another object, which stood here when the hint
    /// was made, gave way to this one. Only the CRC shows that no part of the other one was read.
    Whole(Ticket),
    /// A steered READ of a doubted hint: perhaps the object that the slot leads to.
    Steered(SteeredRead),
}

/// Returns the number of bytes of an object that have to be read to compare its key.
fn prefix_bytes(class: SizeClass, key: Key<'_>) -> u32 {
    let needed = (HEADER_BYTES + key.len() as u64).next_multiple_of(UNIT_BYTES);
    needed.min(class.bytes()) as u32
}

/// Objects of up to this many bytes are read whole to compare their keys. The CRC then tells whether they are another
/// key's, and this costs hardly more than to read the start.
const COMPARED_WHOLE_BYTES: u64 = 2048;

/// The result of comparing an object's key.
enum KeyCheck {
    Same,
    /// The object is another key's: it was read whole, with a good CRC.
    Other,
    /// The object is damaged, or only its start was read: it may still be the key's.
    Unproved,
}

impl<F: Fabric, H: Host> StoreOp<'_, F, H> {
    /// Executes the batch: one phase.
    async fn phase(&mut self) {
        if !self.phase_now() {
            let batch = mem::take(&mut self.batch);
            let before = self.pin.traces.begin_wait(&batch);
            self.batch = self.store.fabric.execute(batch).await;
            self.pin.traces.end_wait(before, &self.batch);
            self.phase_done();
        }
    }

    /// Executes the batch if the fabric does so at once; if not, only notes whether the batch has a CAS or FAA. Returns
    /// whether it was executed.
    fn phase_now(&mut self) -> bool {
        self.pin.traces.post(&self.batch);
        let now = self.store.fabric.execute_now(&mut self.batch);
        if now {
            self.phase_done();
        }
        now
    }

    fn phase_done(&mut self) {
        let has_failures = self.batch.has_failures();
        if has_failures {
            self.pin.traces.note_unanswered(&self.batch);
        }
        if has_failures || self.store.silent.any() {
            self.store.silent.note(&self.batch);
        }
        self.cost.add_batch(&self.batch);
    }

    /// Ends the operation: counts it and keeps its batch for the next one.
    fn finish(self, kind: OpKind) {
        self.store.counters.add(kind, &self.cost);
        self.store.recycle(self.batch);
    }

    /// Returns the operation's error for a failed verb.
    fn failed(&self, failure: FailedVerb) -> Error {
        let FailedVerb { node, error } = failure;
        let outcome = if self.pin.traces.has_posted() {
            FailedWriteOutcome::Unknown
        } else {
            FailedWriteOutcome::NotApplied
        };
        Error::Unreachable { node, error, outcome }
    }

    async fn pause(&mut self) -> Result<(), GiveUp> {
        let attempt = self.pauses;
        self.pauses += 1;
        self.store.host.pause(attempt).await
    }

    fn primary(&self, slot: SlotRef) -> PoolPlace {
        self.view.slot_on_primary(slot)
    }

    fn read_slot(&mut self, slot: SlotRef) -> Ticket {
        let place = self.primary(slot);
        self.batch.read(place.node, place.offset, 8)
    }

    /// Reads the primary slot, in one phase. For use after a CAS of this operation.
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

    /// Reads all slots of the key from the primary, in one phase.
    async fn fetch_words(&mut self, buckets: &Buckets) -> Result<BucketWords, FailedVerb> {
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

    /// Posts the READs for the value of the object that a word refers to, which was read on this node. `None` if it
    /// refers to no object.
    fn fetch(&mut self, shown_on: MnId, word: Slot) -> Option<Fetch> {
        let object = self.view.object_of(word)?;
        let is_silent = |node| self.store.silent.has(node);
        let first = object.read_at(shown_on, is_silent);
        Some(object.fetch(&mut self.batch, first, is_silent))
    }

    /// Posts a READ of as much of a word's object as comparing the key needs; `None` if the word refers to no object.
    /// Reads the replica on the node that has shown the word, if there is one there: if a speculative write has put
    /// the word on a backup, its object is complete there, and perhaps nowhere else (`speculation.rs`).
    ///
    /// The slot was read earlier in this operation, and an object that was complete then stays untouched until the
    /// operation ends. So if the start of a large object shows the key, the object is the key's.
    fn read_key_of(&mut self, word: Slot, shown_on: MnId, key: Key<'_>) -> Option<Ticket> {
        let class = class_of(&self.view, word)?;
        let place = replica(&self.view, &self.store.silent, word.address(), class, shown_on)?;
        let bytes = match class.bytes() {
            bytes @ ..=COMPARED_WHOLE_BYTES => bytes as u32,
            _ => prefix_bytes(class, key),
        };
        Some(self.batch.read(place.node, place.offset, bytes))
    }

    /// Posts, behind the READ of the slot, the READ that shows whether the hint's word leads to the key if the slot
    /// holds it.
    fn read_proof(&mut self, target: &HintTarget, key: Key<'_>) -> KeyProof {
        let in_order = target.slot.node == target.object.node || self.store.fabric.is_immediate();
        if in_order || removed(Mutant::PrefixReadEarly) {
            let bytes = prefix_bytes(target.class, key);
            return KeyProof::Prefix(self.batch.read(
                target.object.node,
                target.object.offset,
                bytes,
            ));
        }
        KeyProof::Whole(target.read_object(&mut self.batch))
    }

    /// Returns whether the word that the slot of a hint has shown leads to the key. The answer counts only if that is
    /// the hint's word: `proof` is a READ of the object of that word.
    fn is_proved(&self, proof: KeyProof, word: Slot, key: Key<'_>) -> Result<bool, Error> {
        Ok(match proof {
            KeyProof::Prefix(ticket) => {
                let prefix = self.batch.data(ticket).map_err(|f| self.failed(f))?;
                let shows = |identity| starts_with_key(prefix, identity, key);
                shows(word.object_identity()) || self.first_turn(word).is_some_and(shows)
            }
            KeyProof::Steered(_) => false,
            KeyProof::Whole(ticket) => {
                let bytes = self.batch.data(ticket).map_err(|f| self.failed(f))?;
                let shows = |identity| matches!(whole_key(bytes, identity, key), KeyCheck::Same);
                shows(word.object_identity()) || self.first_turn(word).is_some_and(shows)
            }
        })
    }

    /// Returns the identity that the header of a word's object contains, if it differs from the word's.
    #[cold]
    fn first_turn(&self, word: Slot) -> Option<Identity> {
        let object = self.view.object_of(word)?;
        object.is_turned(word).then(|| object.identity_of(word))
    }

    /// Compares the key with an object of which the whole, or the start, was read.
    fn check_key_of(
        &self,
        ticket: Ticket,
        word: Slot,
        key: Key<'_>,
    ) -> Result<KeyCheck, FailedVerb> {
        let bytes = self.batch.data(ticket)?;
        let identity = self.first_turn(word).unwrap_or_else(|| word.object_identity());
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

    /// Finds which of these slots, as a node has shown them, refers to the key. Takes one phase, or none if there are
    /// no candidates. Objects that prove nothing are re-read, in a phase or two each. A word that can refer to no
    /// object, or only to damaged replicas, is an error only if no other word refers to the key.
    async fn find_key(
        &mut self,
        candidates: impl Iterator<Item = (SlotRef, Slot)>,
        shown_on: MnId,
        key: Key<'_>,
    ) -> Result<KeySlot, Error> {
        self.batch.next_phase();
        let mut reads = Candidates::new();
        let mut broken = None;
        for (slot, word) in candidates {
            match self.read_key_of(word, shown_on, key) {
                Some(ticket) => {
                    reads.push((Hint { slot, word, seen: HintTrust::Unverified }, ticket));
                }
                None if self.view.is_being_lost(word) => return Ok(KeySlot::Stale),
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
                KeyCheck::Same => return Ok(KeySlot::Found(hint)),
                KeyCheck::Other => {}
                KeyCheck::Unproved => unproved.push(hint),
            }
        }
        if !unproved.is_empty() {
            // On the heap: it is rare, and the futures of operations stay small.
            return Box::pin(self.find_among(unproved, broken, shown_on, key)).await;
        }
        broken.map_or(Ok(KeySlot::Absent), Err)
    }

    /// Returns whether the pair of a word was lost with its only node, and counts such pairs.
    fn is_gone(&self, word: Slot) -> bool {
        let is_gone = self.view.is_gone(word);
        if is_gone {
            self.store.counters.add_gone();
        }
        is_gone
    }

    /// Finds the key among slots whose objects prove nothing, by re-reading them.
    async fn find_among(
        &mut self,
        unproved: ArrayVec<Hint, MAX_CANDIDATES>,
        mut broken: Option<Error>,
        shown_on: MnId,
        key: Key<'_>,
    ) -> Result<KeySlot, Error> {
        for hint in unproved {
            match reread_for_key(self, hint, shown_on, key).await {
                Ok(KeyReread::Value(_)) => return Ok(KeySlot::Found(hint)),
                Ok(KeyReread::OtherKey) => {}
                Ok(KeyReread::Stale) => return Ok(KeySlot::Stale),
                Err(error @ Error::Corrupt { .. }) => broken = Some(error),
                Err(error) => return Err(error),
            }
        }
        broken.map_or(Ok(KeySlot::Absent), Err)
    }
}

/// Compares the key with all the bytes that one place has of an object.
fn whole_key(bytes: &[u8], identity: Identity, key: Key<'_>) -> KeyCheck {
    match Object::decode_of(bytes, identity) {
        Ok(object) if object.key() == &*key || removed(Mutant::KeysNotCompared) => KeyCheck::Same,
        Ok(_) => KeyCheck::Other,
        Err(_) if removed(Mutant::DamagedIsAnotherKeys) => KeyCheck::Other,
        Err(_) => KeyCheck::Unproved,
    }
}

/// Returns whether the start of an object shows the key, in the generation of the word that led to it. If not, the
/// object may be damaged.
fn starts_with_key(prefix: &[u8], identity: Identity, key: Key<'_>) -> bool {
    match Object::prefix_has_key(prefix, identity, &key) {
        Ok(same) => same || removed(Mutant::KeysNotCompared),
        Err(_) => false,
    }
}

/// Returns the word that the READ of a slot has fetched.
fn slot_word(batch: &VerbBatch, ticket: Ticket) -> Result<Slot, FailedVerb> {
    let bytes = batch.data(ticket)?;
    Ok(Slot(u64::from_le_bytes(bytes.try_into().expect("a slot has 8 bytes"))))
}

/// The error for a slot with a word that no client of this cluster writes.
const BROKEN_WORD: Error = Error::Corrupt { what: "a slot refers to no possible object" };

/// Slots that may refer to a key, each with the READ of its object.
type Candidates = ArrayVec<(Hint, Ticket), MAX_CANDIDATES>;

/// The result of a search for a key among some slots.
enum KeySlot {
    /// The key is in this slot.
    Found(Hint),
    /// None of the slots refers to the key.
    Absent,
    /// One of the slots has changed meanwhile.
    Stale,
}
