//! The operations of the store (SEARCH, INSERT, UPDATE, UPSERT, DELETE, Move and SCAN), over any fabric.
//!
//! A [`Store`] is one session's side of the protocol. Any number of its operations can run concurrently, interleaved at
//! their await points (the paper's coroutines). Every operation is a plain `async fn`; each `phase().await` in it
//! executes one batch of verbs, which is one round trip. If an operation is dropped half-way, other sessions cannot
//! distinguish that from a crash of the client.
//!
//! | module | contents |
//! |---|---|
//! | `read` | SEARCH, SEARCH of many keys, SCAN; the READs that writes need |
//! | `write` | INSERT, UPDATE, UPSERT, DELETE, Move: attempts and conflict rounds |
//! | `memory` | `SessionMemory`: the session's blocks, and the objects that it has freed |
//! | `session` | `OperationPin` and `LocalEpochs`: the view and epoch of each operation; vouching; suspended writes |
//!
//! `StoreOp`, here, is one running operation: its view, its batch, its cost and its pin. The modules add to `Store` the
//! operations that callers begin, and to `StoreOp` the steps that operations of several kinds share. Everything else
//! belongs to types of the modules, which borrow the `Store` or `StoreOp` that they work on.
//!
//! The caller keeps the index cache: it passes a [`Hint`] to an operation, and stores the hint that the operation
//! returns. A hint can be wrong, so operations compare the slot's word with the hint's word, and the key with the
//! object.
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

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::mem;

pub use read::{ParseCursorError, ScanCursor, ScanLimits, ScannedPair, SearchKey, SearchResult};
pub use write::{MoveScope, ObjectDemotion, Transition, Watch, WriteRequest};

use memory::SessionMemory;
use read::ReadState;
use session::{
    DeleteLog, FollowedView, LocalEpochs, OperationPin, SilentNodes, ViewRef, VouchRequests,
};

use crate::data::Fetch;
use crate::error::{Error, FailedWriteOutcome};
use crate::host::{GiveUp, Host};
use crate::layout::Slot;
use crate::mutant::{Mutant, removed};
use crate::race::{BucketWords, Buckets, HashKey, IntoKey, Key};
use crate::stats::{Cost, Counters, OpKind, Stats};
use crate::verbs::{ClientId, Fabric, FailedVerb, MnId, Ticket, VerbBatch};
use crate::view::{PoolPlace, SlotRef, View};

/// The place where a key was last seen: its slot and the slot's word. The entry of an index cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hint {
    /// The slot in which the key was last seen.
    pub slot: SlotRef,
    /// The word that the slot held. The key was compared with the object that the word refers to.
    pub word: Slot,
    /// The trust in the hint: the epoch since which its word is known to be right, or that the hint can be wrong.
    pub seen: HintTrust,
}

/// The degree of trust in a hint, which decides how an operation uses the hint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HintTrust {
    /// In this epoch ([`Epochs::epoch`](crate::host::Epochs::epoch)) or later, the primary certainly showed the word. A
    /// caller that passes such a hint promises that the word certainly leads to the key. On a fabric that executes
    /// batches without waiting, no hint has this trust.
    FreshSince(u64),
    /// The hint can have a wrong slot or word.
    Unverified,
    /// The hint's word is probably outdated. If there is a switch, the operation lets the switch redirect a READ to the
    /// object that the slot leads to ([`Store::asks_switches`]).
    LikelyStale,
}

impl Hint {
    /// Returns whether both hints have the same slot and word, whatever their trust.
    pub fn leads_like(&self, other: &Hint) -> bool {
        (self.slot, self.word) == (other.slot, other.word)
    }

    /// Returns whether the hint is likely to be wrong.
    pub fn is_doubted(&self) -> bool {
        self.seen == HintTrust::LikelyStale
    }

    /// Returns the same hint as [`HintTrust::Unverified`].
    pub fn uncertain(self) -> Hint {
        Hint { seen: HintTrust::Unverified, ..self }
    }
}

/// The largest batch, in bytes of memory, that a store keeps for its next operation.
const MAX_KEPT_BYTES: usize = 4 << 20;

/// The result of a successful write, for the caller's index cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteResult {
    /// The key's slot and word after the write, also after a Move that has changed nothing. `None` after a DELETE, and
    /// if another write has won the round.
    pub place: Option<Hint>,
    /// Whether the slot of the given hint still held the hint's word; `false` without a hint.
    pub hint_held: bool,
}

/// One session's side of the protocol: the executor of the session's operations.
pub struct Store<F, H> {
    fabric: F,
    host: H,
    client: ClientId,
    hash_key: HashKey,
    view: FollowedView,
    batches: SpareBatches,
    counters: Arc<Counters>,
    /// The local epochs in which the session's operations are pinned.
    local_epochs: LocalEpochs,
    /// The session's blocks, and the objects that it has freed.
    memory: SessionMemory,
    /// The numbers and log areas of the session's DELETEs.
    deletes: DeleteLog,
    /// The session's vouch requests: it asks the members whether they vouch for its view.
    asks: VouchRequests,
    /// Memory nodes that did not answer the session's latest verb to them.
    silent: SilentNodes,
    /// State that only reads use.
    reads: ReadState,
}

impl<F: Fabric, H: Host> Store<F, H> {
    /// Creates a session of `client` that follows `view`. The caller has checked `view` by [`View::check`].
    pub fn new(fabric: F, host: H, client: ClientId, view: Arc<View>) -> Store<F, H> {
        let counters = Arc::<Counters>::default();
        let memory = SessionMemory::new(client, Arc::clone(&counters));
        Store {
            fabric,
            host,
            client,
            hash_key: view.hash_key,
            view: FollowedView::new(view),
            batches: SpareBatches::default(),
            counters,
            local_epochs: LocalEpochs::default(),
            memory,
            deletes: DeleteLog::new(client),
            asks: VouchRequests::default(),
            silent: SilentNodes::default(),
            reads: ReadState::default(),
        }
    }

    /// Returns the fabric that executes the session's verbs.
    pub fn fabric(&self) -> &F {
        &self.fabric
    }

    /// Returns the host: the session's access to clocks, blocks, views and epochs.
    pub fn host(&self) -> &H {
        &self.host
    }

    /// Returns the session's id.
    pub fn client(&self) -> ClientId {
        self.client
    }

    /// Returns the view that new operations follow.
    pub fn view(&self) -> Arc<View> {
        Arc::clone(&self.view.borrow())
    }

    /// Returns the present values of the session's counters.
    pub fn stats(&self) -> Stats {
        self.counters.stats()
    }

    /// Returns the session's counters, which other threads of the process can read.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Returns whether the session has to be fenced and recovered like one that died ([`recovery`](crate::recovery)),
    /// and is not allowed to close normally. This is so after a write ended with an unknown outcome, or was dropped:
    /// either a slot possibly shows the write's word, and other sessions wait for the end of its round, or only
    /// recovery can free its object. This is also so after an operation ended without an answer to one of its WRITEs,
    /// which can still execute on the memory node.
    pub fn needs_recovery(&self) -> bool {
        self.local_epochs.has_half_way()
    }

    /// Returns whether any operation is pinned or suspended. View changes, and the reuse of memory, possibly wait for
    /// such operations.
    pub fn has_pinned_or_suspended(&self) -> bool {
        self.local_epochs.has_pinned_or_suspended()
    }

    /// Prefetches, into the processor's cache, the memory that a write by this hint touches first: the slot on all
    /// replicas, and the start of the object. Does nothing unless the fabric is immediate.
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

    /// Hashes a key with the cluster's hash key. The result serves any number of operations on the key.
    #[inline]
    pub fn key<'k>(&self, key: impl IntoKey<'k>) -> Key<'k> {
        key.into_key(&self.hash_key)
    }

    /// Follows the newest view that the host knows, and returns it.
    #[inline]
    fn newest_view(&self) -> ViewRef {
        self.follow_view();
        self.view.borrow().clone()
    }

    /// Lets new operations follow the newest view that the host knows, if it is newer than the session's.
    fn follow_view(&self) {
        let known = self.view.borrow().number;
        if let Some(newer) = self.host.newer_view(known) {
            self.view.follow(newer, &self.memory);
        }
    }

    fn operation(&self) -> StoreOp<'_, F, H> {
        self.operation_with(self.batches.take())
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
}

/// The batches of earlier operations, which later operations use again.
#[derive(Debug, Default)]
struct SpareBatches(RefCell<Vec<VerbBatch>>);

impl SpareBatches {
    /// Returns a batch for an operation. The batch can still hold verbs of an earlier operation, but none of its
    /// [kept](VerbBatch::keep) bytes.
    #[inline]
    fn take(&self) -> VerbBatch {
        self.0.borrow_mut().pop().unwrap_or_default()
    }

    /// Keeps a batch for a later operation, unless the batch's memory has grown too large.
    #[inline]
    fn keep(&self, mut batch: VerbBatch) {
        batch.keep_nothing();
        if batch.memory_bytes() <= MAX_KEPT_BYTES {
            self.0.borrow_mut().push(batch);
        }
    }
}

/// One running operation.
struct StoreOp<'s, F: Fabric, H: Host> {
    store: &'s Store<F, H>,
    view: ViewRef,
    batch: VerbBatch,
    cost: Cost,
    /// The operation's pin in a view and an epoch. Also records whether other sessions have possibly seen effects of
    /// the operation.
    pin: OperationPin<'s, F, H>,
    /// Whether the operation has searched for memory.
    made_room: bool,
    /// The number of the operation's pauses. All its waits share this count, so that the host's limit applies to the
    /// whole operation.
    pauses: u32,
    /// The number of vouch requests that the session had begun when the operation began.
    asks_before: u64,
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

    /// Executes the batch if the fabric is immediate; otherwise only notes whether the batch has a CAS or FAA. Returns
    /// whether the batch was executed.
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

    /// Ends the operation: adds it to the counters, and keeps its batch for the next operation.
    fn finish(self, kind: OpKind) {
        self.store.counters.add(kind, &self.cost);
        self.store.batches.keep(self.batch);
    }

    /// Returns the error of this operation after one of its verbs failed: for a write, with its known or unknown
    /// outcome.
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

    /// Reads a slot's word from its primary, in one phase. For use after a CAS of this operation, because this function
    /// clears the batch.
    async fn fetch_slot(&mut self, slot: SlotRef) -> Result<Slot, Error> {
        // After its CASes, the operation needs nothing that is staged in the batch. A loser calls this function many
        // times, and would fill the batch.
        self.batch.clear();
        let ticket = self.read_slot(slot);
        self.phase().await;
        self.slot_word(ticket).map_err(|f| self.failed(f))
    }

    fn slot_word(&self, ticket: Ticket) -> Result<Slot, FailedVerb> {
        slot_word(&self.batch, ticket)
    }

    /// Reads all slots in which the key can be, from the primary, in one phase.
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

    /// Posts the READs that fetch the value from the object to which a word leads. `shown_on` is the node that has
    /// shown the word. Returns `None` if the word refers to no object.
    fn fetch(&mut self, shown_on: MnId, word: Slot) -> Option<Fetch> {
        let object = self.view.object_of(word)?;
        let is_silent = |node| self.store.silent.has(node);
        let first = object.read_at(shown_on, is_silent);
        Some(object.fetch(&mut self.batch, first, is_silent))
    }

    /// Returns whether a word's pair was lost with the only node that held it. If so, adds one to the session's counter
    /// of lost pairs.
    fn is_gone(&self, word: Slot) -> bool {
        let is_gone = self.view.is_gone(word);
        if is_gone {
            self.store.counters.add_gone();
        }
        is_gone
    }
}

/// Returns the word that the READ with this ticket has fetched from a slot.
fn slot_word(batch: &VerbBatch, ticket: Ticket) -> Result<Slot, FailedVerb> {
    let bytes = batch.data(ticket)?;
    Ok(Slot(u64::from_le_bytes(bytes.try_into().expect("a slot has 8 bytes"))))
}

/// The error for a slot with a word that no client of this cluster writes.
const BROKEN_WORD: Error = Error::Corrupt { what: "a slot refers to no possible object" };
