//! Random operations on a few keys, recorded as one history per key.
//!
//! Each value identifies the write that wrote it. Each invocation and each return has a time of its own, so operations
//! that did not overlap do not count as concurrent. An operation whose process crashed, or that failed with an unknown
//! outcome, stays in the history without an answer. An operation that certainly had no effect is removed.
//!
//! Answers that no history is allowed to contain cause a panic at once: torn values, and errors that no fault excuses.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use fusee_client::PutOptions;
use fusee_core::data::{Redundancy, RedundancyError};
use fusee_core::race::Buckets;
use fusee_core::stats::OpKind;
use fusee_core::view::View;
use fusee_core::{Error, FailedWriteOutcome};

use crate::environment::SimSession;
use crate::rng::Rng;
use fusee_linearizability::{
    HistoryAnswer, HistoryCall, HistoryFindings, HistoryOperation, HistoryRecord, HistoryValue,
    OperationHistory,
};

mod scans;

use scans::WorkloadScan;

/// The keys of a run, and the history of the operations on them.
pub struct SimWorkload {
    keys: Vec<Vec<u8>>,
    /// Lengths of values, without the bytes that identify the value.
    fillers: [usize; 4],
    /// Redundancies that Moves give to pairs; empty if there are no Moves.
    redundancies: Vec<Redundancy>,
    /// Length from which on values are written without redundancy; `None`: all values have redundancy.
    single_from: Option<usize>,
    /// Keys that have possibly had a value without redundancy at some time.
    single: RefCell<BTreeSet<usize>>,
    /// Times at which memory nodes were lost together with pairs without redundancy.
    losses: RefCell<Vec<u64>>,
    /// Scans that wait until another session continues them.
    handed: RefCell<Vec<WorkloadScan>>,
    /// The operations; `None` for an operation that certainly had no effect.
    history: RefCell<Vec<Option<HistoryRecord>>>,
    time: Cell<u64>,
    values: Cell<HistoryValue>,
    invoked: Cell<u64>,
}

/// The index of an operation in the history.
type HistoryIndex = usize;

/// The outcome of an operation for its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// The operation has an answer.
    Well,
    /// The operation failed, but the session can still be used.
    Failed,
    /// The session has lost a memory node, or has left an operation half-way, and must be replaced.
    Lost,
}

impl SimWorkload {
    /// Makes a workload on `keys`. Values have one of the lengths `fillers`, plus the bytes that identify the value.
    /// Moves give a pair one of the `redundancies`.
    pub fn new(
        keys: Vec<Vec<u8>>,
        fillers: [usize; 4],
        redundancies: Vec<Redundancy>,
    ) -> SimWorkload {
        SimWorkload {
            history: RefCell::default(),
            keys,
            fillers,
            redundancies,
            single_from: None,
            single: RefCell::default(),
            losses: RefCell::default(),
            handed: RefCell::default(),
            time: Cell::new(0),
            values: Cell::new(0),
            invoked: Cell::new(0),
        }
    }

    /// Makes sessions write values of at least `from_bytes` bytes without redundancy.
    pub fn with_single_pairs(self, from_bytes: usize) -> SimWorkload {
        SimWorkload { single_from: Some(from_bytes), ..self }
    }

    /// Records the loss of a memory node that held pairs without redundancy. From now on, each key that possibly had a
    /// pair without redundancy is allowed to be absent until the key is written again.
    pub fn record_pair_loss(&self) {
        let now = self.now();
        self.losses.borrow_mut().push(now);
    }

    /// Returns `colliding` keys with the same buckets and the same fingerprint, and `others` keys that are not chosen
    /// to share buckets or fingerprints.
    pub fn keys(view: &View, colliding: usize, others: usize) -> Vec<Vec<u8>> {
        let key = |i: u32| i.to_le_bytes().to_vec();
        let target = Buckets::of(&key(0), view);
        let alike = |i: &u32| Buckets::of(&key(*i), view) == target;
        let colliding = (0..).filter(alike).take(colliding);
        let others = (1..).filter(|i| !alike(i)).take(others);
        colliding.chain(others).map(key).collect()
    }

    /// Returns the number of keys of the workload.
    pub fn key_count(&self) -> usize {
        self.keys.len()
    }

    /// Returns the number of operations invoked so far.
    pub fn invoked(&self) -> u64 {
        self.invoked.get()
    }

    /// Runs one operation on one key. A SEARCH of many keys and a scan use all keys; a SEARCH of many keys sometimes
    /// asks for one of them twice. If a scan of another session waits, this call sometimes continues that scan instead.
    ///
    /// # Panics
    /// If the answer is one that no operation is allowed to give.
    pub async fn run(
        &self,
        rng: &Rng,
        session: &Rc<SimSession>,
        kind: OpKind,
        key: usize,
    ) -> CallOutcome {
        if kind != OpKind::Search
            && let Some(scan) = self.handed_scan(rng)
        {
            return self.scan(rng, session, scan).await;
        }
        let value = self.values.get() + 1;
        self.values.set(value);
        let name = self.keys[key].clone();
        let bytes = self.encode(rng, value);
        let writes = matches!(kind, OpKind::Insert | OpKind::Update | OpKind::Upsert);
        if writes && self.single_from.is_some_and(|from| bytes.len() >= from) {
            self.single.borrow_mut().insert(key);
        }
        let client = session.clone();
        let fabric = session.store().fabric();
        let begin = |call| self.invoke(session, key, call);
        let (entry, result) = match kind {
            OpKind::Search => {
                let entry = begin(HistoryCall::Search);
                let get = async move { client.get(&name).await };
                let found = fabric.search(get).await;
                return self.answered(session, entry, found.map(|value| decode(value.as_deref())));
            }
            OpKind::SearchMany => return self.search_many(rng, session).await,
            OpKind::Insert => {
                (begin(HistoryCall::Insert(value)), session.insert(&name, &bytes).await)
            }
            OpKind::Update => {
                let named = self.named(session, value, &name, &bytes);
                let update = async move {
                    match named {
                        Some(redundancy) => {
                            let options = PutOptions::default().if_present();
                            let options = options.with_redundancy(redundancy);
                            client.put_with(&name, &bytes, &options).await
                        }
                        None => client.update(&name, &bytes).await,
                    }
                };
                (begin(HistoryCall::Update(value)), fabric.write(update).await)
            }
            OpKind::Upsert => {
                let named = self.named(session, value, &name, &bytes);
                let put = async move {
                    match named {
                        Some(redundancy) => {
                            let options = PutOptions::default().with_redundancy(redundancy);
                            client.put_with(&name, &bytes, &options).await
                        }
                        None => client.put(&name, &bytes).await,
                    }
                };
                (begin(HistoryCall::Upsert(value)), fabric.write(put).await)
            }
            OpKind::Delete => {
                let delete = async move { client.delete(&name).await };
                (begin(HistoryCall::Delete), fabric.write(delete).await)
            }
            OpKind::Move => return self.move_pair(rng, session, key).await,
            OpKind::Scan => return self.scan(rng, session, WorkloadScan::new(self.now())).await,
            OpKind::Reclaim => unreachable!("sessions do it by themselves"),
        };
        self.answered(session, entry, result.map(|()| HistoryAnswer::Done))
    }

    /// Returns the bytes of a value: the number that identifies the value, and padding of random length.
    fn encode(&self, rng: &Rng, value: HistoryValue) -> Vec<u8> {
        let filler = rng.pick(&self.fillers);
        let mut bytes = value.to_le_bytes().to_vec();
        bytes.resize(bytes.len() + filler, value as u8);
        bytes
    }

    /// Returns the redundancy that a write asks for. If the pairs of this run have several redundancies, every second
    /// write asks for the redundancy that the session's rules give, and the other writes keep the pair's redundancy.
    fn named(
        &self,
        session: &SimSession,
        value: HistoryValue,
        key: &[u8],
        bytes: &[u8],
    ) -> Option<Redundancy> {
        let redundancy = session.rules().of(bytes.len());
        let names = !self.redundancies.is_empty() && value.is_multiple_of(2);
        (names && redundancy.check(key.len(), bytes.len()).is_ok()).then_some(redundancy)
    }

    async fn search_many(&self, rng: &Rng, session: &SimSession) -> CallOutcome {
        let mut wanted: Vec<usize> = (0..self.keys.len()).collect();
        wanted.extend((0..rng.below(2)).map(|_| rng.below(self.keys.len())));
        let names: Vec<&[u8]> = wanted.iter().map(|key| &self.keys[*key][..]).collect();
        let entries: Vec<HistoryIndex> =
            wanted.iter().map(|k| self.invoke(session, *k, HistoryCall::Search)).collect();
        let result = session.get_many(&names).await;
        let mut went = CallOutcome::Well;
        for (i, entry) in entries.into_iter().enumerate() {
            let answer = result.as_ref().map(|found| decode(found[i].as_deref()));
            went = self.answered(session, entry, answer.map_err(Clone::clone));
        }
        went
    }

    /// Gives a pair another redundancy. Other operations must not notice this, so the history does not contain it.
    async fn move_pair(&self, rng: &Rng, session: &Rc<SimSession>, key: usize) -> CallOutcome {
        self.invoked.set(self.invoked.get() + 1);
        let name = self.keys[key].clone();
        let redundancy = rng.pick(&self.redundancies);
        if redundancy == Redundancy::None {
            self.single.borrow_mut().insert(key);
        }
        let client = session.clone();
        let fabric = session.store().fabric();
        let moving = async move { client.set_redundancy(&name, redundancy).await };
        let error = match fabric.move_pair(moving).await {
            Ok(_) | Err(Error::NotFound | Error::Redundancy(_)) => return CallOutcome::Well,
            Err(error) => error,
        };
        let (outcome, went) = outcome_of(session, error);
        if outcome == FailedWriteOutcome::NotApplied { went } else { CallOutcome::Lost }
    }

    fn answered(
        &self,
        session: &SimSession,
        entry: HistoryIndex,
        result: Result<HistoryAnswer, Error>,
    ) -> CallOutcome {
        let error = match result {
            Ok(answer) => {
                self.answer(entry, answer);
                return CallOutcome::Well;
            }
            Err(error) => error,
        };
        if let Error::AlreadyExists | Error::NotFound = error {
            let exists = error == Error::AlreadyExists;
            self.answer(entry, if exists { HistoryAnswer::Exists } else { HistoryAnswer::Absent });
            return CallOutcome::Well;
        }
        let (outcome, went) = outcome_of(session, error);
        if outcome == FailedWriteOutcome::NotApplied {
            self.history.borrow_mut()[entry] = None;
            return went;
        }
        CallOutcome::Lost
    }

    fn now(&self) -> u64 {
        self.time.set(self.time.get() + 1);
        self.time.get()
    }

    fn invoke(&self, session: &SimSession, key: usize, call: HistoryCall) -> HistoryIndex {
        self.invoked.set(self.invoked.get() + 1);
        let operation = HistoryOperation { call, invoked: self.now(), returned: None };
        let mut history = self.history.borrow_mut();
        history.push(Some(HistoryRecord { key: key as u64, client: session.id().0, operation }));
        history.len() - 1
    }

    fn answer(&self, entry: HistoryIndex, answer: HistoryAnswer) {
        let record = &mut self.history.borrow_mut()[entry];
        let operation = &mut record.as_mut().expect("it runs").operation;
        operation.returned = Some((self.now(), answer));
    }

    /// Checks the history of every key. Each loss of a node is added as a DELETE, at an unknown time, of every key that
    /// possibly had a pair without redundancy.
    pub fn check(&self) -> HistoryFindings {
        let mut history = OperationHistory::new();
        self.history.borrow().iter().flatten().for_each(|record| history.push(*record));
        for (loss, invoked) in (0..).zip(&*self.losses.borrow()) {
            let client = u32::MAX - loss;
            let invoked = *invoked;
            let operation = HistoryOperation { call: HistoryCall::Delete, invoked, returned: None };
            let single = self.single.borrow();
            let lost =
                single.iter().map(|key| HistoryRecord { key: *key as u64, client, operation });
            lost.for_each(|record| history.push(record));
        }
        history.check()
    }
}

/// Returns the outcome of a failed write, and the outcome for its session.
///
/// # Panics
/// If no fault excuses the error. `Interrupted` is excused only for a fenced session, because such a session is
/// recovered. For any other session, no other process changes the words of a winner.
fn outcome_of(session: &SimSession, error: Error) -> (FailedWriteOutcome, CallOutcome) {
    match error {
        Error::IndexFull
        | Error::KeysHashAlike
        | Error::OutOfMemory
        | Error::Allocation { .. }
        | Error::Redundancy(RedundancyError::TooFewNodes { .. }) => {
            (FailedWriteOutcome::NotApplied, CallOutcome::Failed)
        }
        Error::GaveUp { outcome, .. } => (outcome, CallOutcome::Failed),
        Error::Unreachable { outcome, .. } => (outcome, CallOutcome::Lost),
        Error::Expelled { outcome } => (outcome, CallOutcome::Lost),
        Error::Interrupted { .. } if session.store().fabric().is_fenced() => {
            (FailedWriteOutcome::Unknown, CallOutcome::Lost)
        }
        other => panic!("no fault excuses this answer: {other}"),
    }
}

fn decode(value: Option<&[u8]>) -> HistoryAnswer {
    let Some((name, filler)) = value.map(|v| v.split_at(8)) else { return HistoryAnswer::Absent };
    assert!(filler.iter().all(|b| *b == name[0]), "a torn value: {value:?}");
    HistoryAnswer::Found(HistoryValue::from_le_bytes(name.try_into().expect("8 bytes")))
}
