//! A client's operations, and the search for keys.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use fusee_core::race::{HashKey, Key};
use fusee_core::verbs::{Fabric, Span, Ticket};

use super::allocator::Allocator;
use super::cache::{PublishedCache, PublishedHint};
use super::layout::{COMBINED_BYTES, COMBINED_SLOTS, PublishedLayout, free_slot};
use super::memory::{PublishedMemory, PublishedPhase};
use super::object::{
    KEY_BYTES, PublishedLogEntry, PublishedObject, PublishedOpcode, PublishedReadResult,
    PublishedSlotWord, fill, look, units_for,
};
use super::rounds::PublishedWriteOutcome;
use crate::{BaselineError, BaselineSession, Rpc};

/// The hash key of all clients. It is constant, so that runs repeat.
const HASH_KEY: HashKey = HashKey::new([0; 16]);
/// Largest number of slots that can hold a given key.
const MOST_MATCHES: usize = 2 * COMBINED_SLOTS as usize;

/// Counts of events of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PublishedCounts {
    /// Writes that lost to another writer.
    pub lost: u64,
    /// READs and CASes that found the write of another client unfinished.
    pub polls: u64,
    /// Hints of the index cache that did not lead to the key's pair.
    pub invalid: u64,
    /// Requests to the allocators of memory nodes.
    pub requests: u64,
}

/// A client session of a store of FUSEE as published.
pub struct PublishedClient<F, R> {
    pub(super) fabric: F,
    pub(super) layout: Arc<PublishedLayout>,
    memory: PublishedMemory<R>,
    cache: PublishedCache,
    /// [`PublishedPhase`] values that are not in use, kept for reuse.
    phases: RefCell<Vec<PublishedPhase>>,
    counts: Cell<PublishedCounts>,
}

/// The result of a search for a key.
enum PublishedLocation {
    /// The key's slot, that slot's word, and the position of the value among the bytes of the phase.
    At(u32, PublishedSlotWord, Span),
    /// The key is absent. The slot is free, so an INSERT can use it; `None` if no slot is free.
    Absent(Option<u32>),
}

impl<F: Fabric, R> PublishedClient<F, R> {
    /// Makes a client with this number. `allocators` are connections to the [`Allocator`] of each node, in the layout's
    /// order.
    ///
    /// # Panics
    /// If the number of allocators differs from that of nodes.
    pub fn new(
        fabric: F,
        layout: Arc<PublishedLayout>,
        allocators: Vec<R>,
        number: u32,
    ) -> PublishedClient<F, R> {
        assert_eq!(allocators.len(), layout.nodes().len(), "each memory node has an allocator");
        let cache = PublishedCache::new(layout.parameters().cache_threshold);
        let memory = PublishedMemory::new(layout.clone(), allocators, number);
        PublishedClient {
            fabric,
            layout,
            memory,
            cache,
            phases: RefCell::default(),
            counts: Cell::default(),
        }
    }

    /// Returns the counts since the client was made.
    pub fn counts(&self) -> PublishedCounts {
        PublishedCounts { requests: self.memory.requests(), ..self.counts.get() }
    }

    pub(super) fn count(&self, change: impl FnOnce(&mut PublishedCounts)) {
        let mut counts = self.counts.get();
        change(&mut counts);
        self.counts.set(counts);
    }

    pub(super) async fn go(&self, phase: &mut PublishedPhase) -> Result<(), BaselineError> {
        phase.go(&self.fabric, &self.memory).await
    }

    fn phase(&self) -> PublishedPhase {
        let mut phase = self.phases.borrow_mut().pop().unwrap_or_default();
        phase.batch.clear();
        phase
    }

    fn done_with(&self, phase: PublishedPhase) {
        self.phases.borrow_mut().push(phase);
    }

    fn key<'k>(&self, key: &'k [u8]) -> Result<Key<'k>, BaselineError> {
        match key.len() {
            KEY_BYTES => Ok(Key::new(key, &HASH_KEY)),
            _ => Err(BaselineError::Length("key")),
        }
    }

    /// Finds a key. The first phase also executes verbs that the caller has posted.
    async fn locate(
        &self,
        phase: &mut PublishedPhase,
        key: &Key<'_>,
        hint: Option<PublishedHint>,
    ) -> Result<PublishedLocation, BaselineError> {
        if let Some(hint) = hint
            && let Some(located) = self.follow(phase, key, hint).await?
        {
            return Ok(located);
        }
        for _ in 0..self.layout.parameters().patience {
            if let Some(located) = self.search_buckets(phase, key).await? {
                if let PublishedLocation::At(slot, word, _) = located {
                    self.cache.put(key.hash(), slot, word);
                }
                return Ok(located);
            }
            phase.batch.clear();
        }
        Err(BaselineError::Stuck)
    }

    /// READs the hint's slot and object in one phase, then the slot's object if the slot shows another word than the
    /// hint. Returns `None` if neither object is the key's.
    async fn follow(
        &self,
        phase: &mut PublishedPhase,
        key: &Key<'_>,
        hint: PublishedHint,
    ) -> Result<Option<PublishedLocation>, BaselineError> {
        let place = self.layout.slot(hint.slot, 0);
        let slot = phase.batch.read(place.node, place.offset, 8);
        let pair = self.post_read(phase, hint.word.object());
        self.go(phase).await?;
        let word = phase.batch.data(slot)?.try_into().expect("eight bytes were asked for");
        let word = PublishedSlotWord(u64::from_le_bytes(word));
        if word == hint.word
            && let PublishedReadResult::Of(value) = self.look(phase, pair, key)?
        {
            return Ok(Some(PublishedLocation::At(hint.slot, word, value)));
        }
        self.cache.invalid(key.hash());
        self.count(|counts| counts.invalid += 1);
        phase.batch.clear();
        if word == hint.word || !word.may_be(key.fingerprint()) {
            return Ok(None);
        }
        let pair = self.post_read(phase, word.object());
        self.go(phase).await?;
        if let PublishedReadResult::Of(value) = self.look(phase, pair, key)? {
            self.cache.put(key.hash(), hint.slot, word);
            return Ok(Some(PublishedLocation::At(hint.slot, word, value)));
        }
        phase.batch.clear();
        Ok(None)
    }

    fn post_read(&self, phase: &mut PublishedPhase, object: PublishedObject) -> Ticket {
        let place = self.layout.data(object.address, 0);
        phase.batch.read(place.node, place.offset, object.bytes())
    }

    /// Returns the result of the READ of an object, with the position of the value among the bytes of the phase.
    fn look(
        &self,
        phase: &PublishedPhase,
        read: Ticket,
        key: &[u8],
    ) -> Result<PublishedReadResult<Span>, BaselineError> {
        let span = phase.batch.data_span(read)?;
        Ok(match look(phase.batch.bytes(span), key) {
            PublishedReadResult::Of(value) => {
                PublishedReadResult::Of(span.part(value.start as u32, value.len() as u32))
            }
            PublishedReadResult::Another => PublishedReadResult::Another,
            PublishedReadResult::Torn => PublishedReadResult::Torn,
        })
    }

    /// READs both combined buckets, then all pairs with the key's fingerprint. Returns `None` if the search has to be
    /// repeated, because it did not find the key and READ an incomplete pair.
    async fn search_buckets(
        &self,
        phase: &mut PublishedPhase,
        key: &Key<'_>,
    ) -> Result<Option<PublishedLocation>, BaselineError> {
        let buckets = self.layout.buckets(key);
        let reads = buckets.map(|bucket| {
            let place = self.layout.slot(bucket.first, 0);
            phase.batch.read(place.node, place.offset, COMBINED_BYTES)
        });
        self.go(phase).await?;
        let mut words = [[0; COMBINED_SLOTS as usize]; 2];
        for (words, read) in words.iter_mut().zip(reads) {
            let bytes = phase.batch.data(read)?.chunks_exact(8);
            for (word, bytes) in words.iter_mut().zip(bytes) {
                *word = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
            }
        }
        phase.batch.clear();
        let mut matches = [None; MOST_MATCHES];
        let mut count = 0;
        for (bucket, words) in buckets.iter().zip(&words) {
            for (i, word) in words.iter().enumerate() {
                if PublishedSlotWord(*word).may_be(key.fingerprint()) {
                    let read = self.post_read(phase, PublishedSlotWord(*word).object());
                    matches[count] =
                        Some((bucket.first + i as u32, PublishedSlotWord(*word), read));
                    count += 1;
                }
            }
        }
        let absent = Some(PublishedLocation::Absent(free_slot(&buckets, &words)));
        if count == 0 {
            return Ok(absent);
        }
        self.go(phase).await?;
        let mut torn = false;
        for (slot, word, read) in matches.into_iter().flatten() {
            match self.look(phase, read, key)? {
                PublishedReadResult::Of(value) => {
                    return Ok(Some(PublishedLocation::At(slot, word, value)));
                }
                PublishedReadResult::Another => {}
                PublishedReadResult::Torn => torn = true,
            }
        }
        Ok(if torn { None } else { absent })
    }

    /// Cleans up after a write to a slot: frees the object that the write replaced, and gives back the write's own
    /// object if no slot refers to it.
    fn clean_up(
        &self,
        ended: PublishedWriteOutcome,
        old: PublishedSlotWord,
        object: PublishedObject,
        is_kept: bool,
    ) {
        if ended == (PublishedWriteOutcome::Won { replaced: true }) && !old.is_free() {
            self.memory.free(old.object());
        }
        if ended == PublishedWriteOutcome::Lost || !is_kept {
            self.memory.reset(object);
        }
    }
}

impl<F: Fabric, R: Rpc<Allocator>> PublishedClient<F, R> {
    /// Allocates an object, and posts its WRITEs and pending chores.
    async fn begin(
        &self,
        phase: &mut PublishedPhase,
        key: &[u8],
        value: &[u8],
        opcode: PublishedOpcode,
    ) -> Result<PublishedObject, BaselineError> {
        if value.len() > self.layout.parameters().value_bytes as usize {
            return Err(BaselineError::Length("value"));
        }
        let units = units_for(value.len()) as u8;
        let allocated = self.memory.allocate(&self.fabric, units).await?;
        let object = allocated.object;
        let bytes = phase.batch.stage(object.bytes());
        let log = PublishedLogEntry { next: allocated.next, previous: allocated.previous, opcode };
        fill(phase.batch.bytes_mut(bytes), key, value, log);
        for replica in 0..self.layout.parameters().data_replicas {
            let place = self.layout.data(object.address, replica);
            phase.batch.write(place.node, place.offset, bytes);
        }
        self.memory.post_chores(phase);
        Ok(object)
    }

    /// Executes an UPDATE, or a DELETE if there is no value.
    async fn replace(&self, key: &[u8], value: Option<&[u8]>) -> Result<bool, BaselineError> {
        let key = self.key(key)?;
        let mut phase = self.phase();
        let opcode =
            if value.is_some() { PublishedOpcode::Update } else { PublishedOpcode::Delete };
        let object = self.begin(&mut phase, &key, value.unwrap_or_default(), opcode).await?;
        let new = match value {
            Some(_) => PublishedSlotWord::new(key.fingerprint(), object.units, object.address),
            None => PublishedSlotWord(0),
        };
        let mut hint = self.cache.access(key.hash());
        for _ in 0..self.layout.parameters().patience {
            let (slot, old) = match self.locate(&mut phase, &key, hint.take()).await? {
                PublishedLocation::At(slot, old, _) => (slot, old),
                PublishedLocation::Absent(_) => {
                    self.memory.reset(object);
                    self.done_with(phase);
                    return Ok(false);
                }
            };
            let ended = self.write(&mut phase, slot, [old, new], object).await?;
            if ended != PublishedWriteOutcome::Again {
                self.clean_up(ended, old, object, value.is_some());
                if ended == (PublishedWriteOutcome::Won { replaced: true }) && value.is_some() {
                    self.cache.put(key.hash(), slot, new);
                }
                self.done_with(phase);
                return Ok(true);
            }
            phase.batch.clear();
        }
        Err(BaselineError::Stuck)
    }
}

impl<F: Fabric, R: Rpc<Allocator>> BaselineSession for PublishedClient<F, R> {
    async fn search(&self, key: &[u8]) -> Result<Option<Vec<u8>>, BaselineError> {
        let key = self.key(key)?;
        let mut phase = self.phase();
        let hint = self.cache.access(key.hash());
        let value = match self.locate(&mut phase, &key, hint).await? {
            PublishedLocation::At(_, _, value) => Some(phase.batch.bytes(value).to_vec()),
            PublishedLocation::Absent(_) => None,
        };
        self.done_with(phase);
        Ok(value)
    }

    async fn update(&self, key: &[u8], value: &[u8]) -> Result<bool, BaselineError> {
        self.replace(key, Some(value)).await
    }

    async fn insert(&self, key: &[u8], value: &[u8]) -> Result<bool, BaselineError> {
        let key = self.key(key)?;
        let mut phase = self.phase();
        let object = self.begin(&mut phase, &key, value, PublishedOpcode::Insert).await?;
        let new = PublishedSlotWord::new(key.fingerprint(), object.units, object.address);
        for _ in 0..self.layout.parameters().patience {
            let slot = match self.locate(&mut phase, &key, None).await? {
                PublishedLocation::Absent(slot) => slot.ok_or(BaselineError::Full)?,
                PublishedLocation::At(..) => {
                    self.memory.reset(object);
                    self.done_with(phase);
                    return Ok(false);
                }
            };
            let ended = self.write(&mut phase, slot, [PublishedSlotWord(0), new], object).await?;
            if ended != PublishedWriteOutcome::Again {
                self.clean_up(ended, PublishedSlotWord(0), object, true);
                if ended == (PublishedWriteOutcome::Won { replaced: true }) {
                    self.cache.put(key.hash(), slot, new);
                }
                self.done_with(phase);
                return Ok(true);
            }
            phase.batch.clear();
        }
        Err(BaselineError::Stuck)
    }

    async fn delete(&self, key: &[u8]) -> Result<bool, BaselineError> {
        self.replace(key, None).await
    }

    fn learn_from(&self, other: &Self) {
        self.cache.learn_from(&other.cache);
    }
}
