//! Random operations on a few keys, recorded as one history per key.
//!
//! All clients of a run share one [`StepWorkload`]. It draws values, each of which identifies its write, and hints: the
//! newest place where any client saw the key, an older place, or none, so operations meet hints that are wrong in every
//! way. Each invocation and each return has a time of its own, so operations that did not overlap do not count as
//! concurrent. An operation whose task is dropped stays in the history without an answer.
//!
//! Answers that no history is allowed to contain cause a panic at once: torn values, a SEARCH of many keys that answers
//! twice or never for one of them, and every error but a full index or full memory.

use std::cell::{Cell, RefCell};

use fusee_core::data::Redundancy;
use fusee_core::error::Error;
use fusee_core::race::Buckets;
use fusee_core::stats::OpKind;
use fusee_core::store::{Hint, SearchKey, WriteRequest};
use fusee_core::verbs::ClientId;
use fusee_core::view::View;
use fusee_linearizability::{HistoryAnswer, HistoryCall, HistoryOperation, HistoryValue, check};
use fusee_sim::{Rng, SimClient, SimStore};

/// The keys of a run, hints for them, and the history of operations.
pub struct StepWorkload {
    rng: Rng,
    keys: Vec<Vec<u8>>,
    /// Hints by key, oldest first, each with the client that has seen it.
    hints: RefCell<Vec<Vec<(ClientId, Hint)>>>,
    with_hints: Cell<bool>,
    fillers: Cell<&'static [usize]>,
    /// The redundancy with which values are written.
    redundancy: Cell<Redundancy>,
    /// The operations by key; `None` for an operation that certainly had no effect.
    history: RefCell<Vec<Vec<Option<HistoryOperation>>>>,
    time: Cell<u64>,
    values: Cell<HistoryValue>,
    reused: Cell<u64>,
    out_of_memory: Cell<u64>,
}

/// An operation in the history, as its key and its index among the operations of that key.
type Entry = (usize, usize);

impl StepWorkload {
    /// Makes a workload on `keys`. Half of all workloads use hints.
    pub fn new(rng: &Rng, keys: Vec<Vec<u8>>) -> StepWorkload {
        StepWorkload {
            rng: rng.clone(),
            hints: RefCell::new(vec![Vec::new(); keys.len()]),
            with_hints: Cell::new(rng.below(2) == 0),
            fillers: Cell::new(&[0, 10, 60, 300]),
            redundancy: Cell::new(Redundancy::Replicated),
            history: RefCell::new(vec![Vec::new(); keys.len()]),
            keys,
            time: Cell::new(0),
            values: Cell::new(0),
            reused: Cell::new(0),
            out_of_memory: Cell::new(0),
        }
    }

    /// Returns the keys of a run: `colliding` keys with the same buckets and the same fingerprint, and `others` other
    /// keys.
    pub fn keys(view: &View, colliding: usize, others: usize) -> Vec<Vec<u8>> {
        fusee_sim::SimWorkload::keys(view, colliding, others)
    }

    /// From now on, gives a hint to most operations that can use one.
    pub fn use_hints(&self) {
        self.with_hints.set(true);
    }

    /// Makes values longer than their identifying bytes by one of these lengths from now on.
    pub fn use_fillers(&self, fillers: &'static [usize]) {
        self.fillers.set(fillers);
    }

    /// Writes values with this redundancy from now on.
    pub fn use_redundancy(&self, redundancy: Redundancy) {
        self.redundancy.set(redundancy);
    }

    /// Records the loss of a memory node with all its pairs without redundancy: from now on, each key is allowed to
    /// become absent once.
    pub fn pairs_are_lost(&self) {
        for key in 0..self.keys.len() {
            self.invoke(key, HistoryCall::Delete);
        }
    }

    /// Returns the number of writes to objects whose addresses had been used before.
    pub fn reused(&self) -> u64 {
        self.reused.get()
    }

    /// Returns the number of writes that found no memory.
    pub fn out_of_memory(&self) -> u64 {
        self.out_of_memory.get()
    }

    /// Returns the bytes of the key with this number.
    pub fn key(&self, key: usize) -> &[u8] {
        &self.keys[key]
    }

    /// Returns the subtable of the key with this number.
    pub fn subtable_of(&self, key: usize, view: &View) -> u32 {
        Buckets::of(&self.keys[key], view).subtable
    }

    /// Runs one operation on one key. A SEARCH of many keys uses all keys, and sometimes asks for one of them twice.
    ///
    /// # Panics
    /// If the answer is one that no operation is allowed to give.
    pub async fn run(&self, store: &SimClient, kind: OpKind, key: usize) {
        let value = self.values.get() + 1;
        self.values.set(value);
        let name = self.keys[key].clone();
        let hint = self.hint(key, store.client());
        let bytes = self.encode(value);
        let session = store.session.clone();
        let begin = |call| self.invoke(key, call);
        let redundancy = self.redundancy.get();
        let (entry, result) = match kind {
            OpKind::Search => return self.search(store, key).await,
            OpKind::SearchMany => return self.search_many(store).await,
            OpKind::Insert => (
                begin(HistoryCall::Insert(value)),
                store.write(WriteRequest::insert(&name, &bytes).placed(redundancy)).await,
            ),
            OpKind::Update => {
                let update = async move {
                    session
                        .store()
                        .write(WriteRequest::update(&name, &bytes).placed(redundancy).hinted(hint))
                        .await
                };
                (begin(HistoryCall::Update(value)), store.fabric().write(update).await)
            }
            OpKind::Upsert => {
                let upsert = async move {
                    session
                        .store()
                        .write(WriteRequest::upsert(&name, &bytes).placed(redundancy).hinted(hint))
                        .await
                };
                (begin(HistoryCall::Upsert(value)), store.fabric().write(upsert).await)
            }
            OpKind::Delete => {
                let delete = async move { session.store().delete(&name, hint).await };
                (begin(HistoryCall::Delete), store.fabric().write(delete).await)
            }
            OpKind::Move | OpKind::Scan | OpKind::Reclaim => unreachable!("not drawn"),
        };
        let answer = match result {
            Ok(written) => {
                let is_again = written.place.is_some_and(|hint| hint.word.generation() > 0);
                self.reused.update(|n| n + u64::from(is_again));
                self.learn(key, store.client(), written.place);
                HistoryAnswer::Done
            }
            Err(Error::AlreadyExists) => HistoryAnswer::Exists,
            Err(Error::NotFound) => HistoryAnswer::Absent,
            Err(error @ (Error::IndexFull | Error::OutOfMemory)) => {
                self.out_of_memory.update(|n| n + u64::from(error == Error::OutOfMemory));
                self.history.borrow_mut()[entry.0][entry.1] = None;
                return;
            }
            Err(error) => panic!("{kind:?}: {error}"),
        };
        Self::assert_sound(store);
        self.answer(entry, answer);
    }

    /// Asserts that a session finds damage only if memory was damaged.
    fn assert_sound(store: &SimStore) {
        let damaged = store.stats().damage().found;
        assert!(damaged == 0 || store.fabric().rots(), "{damaged} replicas seem to be damaged");
    }

    async fn search(&self, store: &SimClient, key: usize) {
        let hint = self.hint(key, store.client());
        let entry = self.invoke(key, HistoryCall::Search);
        let session = store.session.clone();
        let name = self.keys[key].clone();
        let search = async move {
            let found = session.store().search(&name, hint).await?;
            let value = found.value().map(<[u8]>::to_vec);
            Ok(found.hint().zip(value))
        };
        let found = store.fabric().search(search).await.expect("a SEARCH never fails");
        Self::assert_sound(store);
        self.learn(key, store.client(), found.as_ref().map(|(hint, _)| *hint));
        self.answer(entry, decode(found.as_ref().map(|(_, value)| &value[..])));
    }

    async fn search_many(&self, store: &SimStore) {
        let mut wanted: Vec<usize> = (0..self.keys.len()).collect();
        wanted.extend((0..self.rng.below(2)).map(|_| self.rng.below(self.keys.len())));
        let keys: Vec<SearchKey<'_>> = wanted
            .iter()
            .map(|key| {
                let hint = self.hint(*key, store.client());
                SearchKey { key: store.key(&self.keys[*key]), hint }
            })
            .collect();
        let entries: Vec<Entry> =
            wanted.iter().map(|k| self.invoke(*k, HistoryCall::Search)).collect();
        let mut answers = vec![None; wanted.len()];
        let found = |i: usize, value: Option<&[u8]>, hint| {
            let before = answers[i].replace(decode(value));
            assert_eq!(before, None, "two answers for one key");
            self.learn(wanted[i], store.client(), hint);
        };
        store.search_many(&keys, found).await.expect("a SEARCH never fails");
        Self::assert_sound(store);
        for (entry, answer) in entries.into_iter().zip(answers) {
            self.answer(entry, answer.expect("an answer for every key"));
        }
    }

    fn learn(&self, key: usize, client: ClientId, hint: Option<Hint>) {
        self.hints.borrow_mut()[key].extend(hint.map(|hint| (client, hint)));
    }

    /// Draws a hint. The hint is certain only for the session that has seen it.
    fn hint(&self, key: usize, client: ClientId) -> Option<Hint> {
        let hints = &self.hints.borrow()[key];
        if !self.with_hints.get() || hints.is_empty() || self.rng.below(4) == 0 {
            return None;
        }
        let (by, hint) = match self.rng.below(2) {
            0 => *hints.last()?,
            _ => hints[self.rng.below(hints.len())],
        };
        Some(if by == client { hint } else { hint.uncertain() })
    }

    fn now(&self) -> u64 {
        self.time.set(self.time.get() + 1);
        self.time.get()
    }

    fn invoke(&self, key: usize, call: HistoryCall) -> Entry {
        let operation = HistoryOperation { call, invoked: self.now(), returned: None };
        let history = &mut self.history.borrow_mut()[key];
        history.push(Some(operation));
        (key, history.len() - 1)
    }

    fn answer(&self, entry: Entry, answer: HistoryAnswer) {
        let operation = &mut self.history.borrow_mut()[entry.0][entry.1];
        operation.as_mut().expect("it runs").returned = Some((self.now(), answer));
    }

    /// Returns the bytes of a value: the number that identifies the value, and padding of random length.
    fn encode(&self, value: HistoryValue) -> Vec<u8> {
        let filler = self.rng.pick(self.fillers.get());
        let mut bytes = value.to_le_bytes().to_vec();
        bytes.resize(bytes.len() + filler, value as u8);
        bytes
    }

    /// Checks the history of every key.
    ///
    /// # Panics
    /// If the history of any key is not linearizable.
    pub fn assert_linearizable(&self) {
        for (key, history) in self.history.borrow().iter().enumerate() {
            let history: Vec<HistoryOperation> = history.iter().flatten().copied().collect();
            if let Err(violation) = check(&history) {
                let lines: Vec<String> = history.iter().map(|o| format!("  {o:?}\n")).collect();
                panic!("key {key} is not linearizable: {violation}\n{}", lines.concat());
            }
        }
    }
}

fn decode(value: Option<&[u8]>) -> HistoryAnswer {
    let Some((name, filler)) = value.map(|v| v.split_at(8)) else { return HistoryAnswer::Absent };
    assert!(filler.iter().all(|b| *b == name[0]), "a torn value: {value:?}");
    HistoryAnswer::Found(HistoryValue::from_le_bytes(name.try_into().expect("8 bytes")))
}
