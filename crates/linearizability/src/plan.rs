//! A history of one key, prepared for the search: the order of its events, the writers and readers of each value, and
//! the effect of each operation.
//!
//! A value is *unread* at an operation if no later SEARCH returns it. The search treats all unread values as one value,
//! which keeps the search small. This is sound, because the whole history is known.

use std::collections::HashMap;

use super::{HistoryAnswer, HistoryCall, HistoryOperation, HistoryValue};

/// A position in the order of all invocations and returns.
pub type Rank = usize;
/// A value, as its index in [`PreparedHistory::values`].
pub type ValueId = u32;

/// The writers and readers of a value.
#[derive(Clone, Copy, Default)]
pub struct ValueUse {
    /// Number of operations that wrote the value or possibly wrote it.
    pub writers: u32,
    /// The rank of the latest invocation of a SEARCH that returns the value. `last_returned` is the rank of the latest
    /// return of a SEARCH that returns the value.
    pub last_invoked: Rank,
    pub last_returned: Rank,
}

/// The state of the key. The value `None` stands for any value that no later SEARCH returns (an unread value).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KeyPresence {
    Absent,
    Present(Option<ValueId>),
}

/// The effect of an operation. The value `None` stands for any value that no later SEARCH returns (an unread value).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationEffect {
    /// Creates the key. Possible only while the key is absent.
    Create(Option<ValueId>),
    /// Replaces the value. Possible only while the key is present.
    Replace(Option<ValueId>),
    /// Sets the value. Possible in any state.
    Set(Option<ValueId>),
    /// Removes the key. Possible only while the key is present.
    Remove,
    /// Changes nothing. Possible only while the key is absent.
    SeeNothing,
    /// Changes nothing. Possible only while the key is present.
    SeeSomething,
    /// Changes nothing. Possible only while the key has this value.
    See(ValueId),
    /// Impossible in every state, because the call never gives this answer.
    Never,
}

impl OperationEffect {
    /// Returns the state after the operation, or `None` if the operation cannot have its instant in `state`.
    pub fn apply(self, state: KeyPresence) -> Option<KeyPresence> {
        let absent = state == KeyPresence::Absent;
        match self {
            OperationEffect::Create(value) => absent.then_some(KeyPresence::Present(value)),
            OperationEffect::Replace(value) => (!absent).then_some(KeyPresence::Present(value)),
            OperationEffect::Set(value) => Some(KeyPresence::Present(value)),
            OperationEffect::Remove => (!absent).then_some(KeyPresence::Absent),
            OperationEffect::SeeSomething => (!absent).then_some(state),
            OperationEffect::SeeNothing => absent.then_some(state),
            OperationEffect::See(value) => {
                (state == KeyPresence::Present(Some(value))).then_some(state)
            }
            OperationEffect::Never => None,
        }
    }

    /// Returns whether the effect never changes the state.
    pub fn changes_nothing(self) -> bool {
        use OperationEffect::{Never, See, SeeNothing, SeeSomething};
        matches!(self, See(_) | SeeNothing | SeeSomething | Never)
    }

    /// Returns the value that the operation writes; `None` if the operation writes nothing or an unread value.
    pub fn written(self) -> Option<ValueId> {
        match self {
            OperationEffect::Create(value)
            | OperationEffect::Replace(value)
            | OperationEffect::Set(value) => value,
            _ => None,
        }
    }
}

/// The invocation or the return of an operation.
pub struct HistoryEvent {
    pub returns: bool,
    /// The index of the operation in the history.
    pub index: usize,
}

/// A history, prepared for the search.
pub struct PreparedHistory<'a> {
    pub history: &'a [HistoryOperation],
    pub events: Vec<HistoryEvent>,
    pub values: Vec<ValueUse>,
    /// The value that each operation writes or returns.
    value_of: Vec<Option<ValueId>>,
    /// The effect of each operation; `None` if the operation can be ignored.
    pub effects: Vec<Option<OperationEffect>>,
    /// The greatest number of operations that have a place in [`Searcher::open`] at one time.
    pub most_open: usize,
    /// Number of DELETEs that took effect or possibly took effect.
    pub removals: usize,
}

impl<'a> PreparedHistory<'a> {
    /// # Panics
    /// If an operation returns before it is invoked.
    pub fn new(history: &'a [HistoryOperation]) -> PreparedHistory<'a> {
        let mut times = Vec::with_capacity(2 * history.len());
        for (index, operation) in history.iter().enumerate() {
            // At equal times invocations come first, so that an operation is concurrent with another one that returns
            // at the time of its invocation.
            times.push((operation.invoked, false, index));
            if let Some((time, _)) = operation.returned {
                assert!(time >= operation.invoked, "{operation:?} returns before it is invoked");
                times.push((time, true, index));
            }
        }
        times.sort_unstable();
        let events = times.into_iter().map(|(_, returns, index)| HistoryEvent { returns, index });
        let mut plan = PreparedHistory {
            history,
            events: events.collect(),
            values: Vec::new(),
            value_of: vec![None; history.len()],
            effects: vec![None; history.len()],
            most_open: 0,
            removals: 0,
        };
        plan.find_uses();
        plan.find_effects();
        plan
    }

    fn find_uses(&mut self) {
        let mut ids: HashMap<HistoryValue, ValueId> = HashMap::new();
        for (rank, event) in self.events.iter().enumerate() {
            let HistoryOperation { call, returned, .. } = self.history[event.index];
            let answer = returned.map(|(_, answer)| answer);
            if event.returns {
                if let (Some(HistoryAnswer::Found(_)), Some(id)) =
                    (answer, self.value_of[event.index])
                {
                    self.values[id as usize].last_returned = rank;
                }
                continue;
            }
            let took_effect = matches!(answer, None | Some(HistoryAnswer::Done));
            let (value, writes) = match (call, answer) {
                (_, Some(HistoryAnswer::Found(value))) => (value, false),
                (
                    HistoryCall::Insert(value)
                    | HistoryCall::Update(value)
                    | HistoryCall::Upsert(value),
                    _,
                ) => (value, took_effect),
                (HistoryCall::Delete, _) => {
                    self.removals += usize::from(took_effect);
                    continue;
                }
                (HistoryCall::Search, _) => continue,
            };
            let next = self.values.len() as ValueId;
            let id = *ids.entry(value).or_insert(next);
            if id == next {
                self.values.push(ValueUse::default());
            }
            self.value_of[event.index] = Some(id);
            let value = &mut self.values[id as usize];
            if writes {
                value.writers += 1;
            } else if matches!(answer, Some(HistoryAnswer::Found(_))) {
                value.last_invoked = rank;
            }
        }
    }

    fn find_effects(&mut self) {
        let mut open = 0;
        for (rank, event) in self.events.iter().enumerate() {
            if event.returns {
                open -= 1;
                continue;
            }
            let effect = self.effect(event.index, rank);
            let returns = self.history[event.index].returned.is_some();
            open += usize::from(effect.is_some_and(|e| returns || e.written().is_some()));
            self.most_open = self.most_open.max(open);
            self.effects[event.index] = effect;
        }
    }

    /// Returns the effect of an operation that is invoked at `rank`. Returns `None` if the operation never returned and
    /// no other operation can notice it.
    fn effect(&self, index: usize, rank: Rank) -> Option<OperationEffect> {
        let HistoryOperation { call, returned, .. } = self.history[index];
        let id = self.value_of[index];
        let read = id.filter(|id| self.values[*id as usize].last_returned > rank);
        Some(match (call, returned.map(|(_, answer)| answer)) {
            (HistoryCall::Insert(_), None | Some(HistoryAnswer::Done)) => {
                OperationEffect::Create(read)
            }
            (HistoryCall::Update(_), None) if read.is_none() => return None,
            (HistoryCall::Update(_), None | Some(HistoryAnswer::Done)) => {
                OperationEffect::Replace(read)
            }
            (HistoryCall::Upsert(_), None) if read.is_none() => OperationEffect::Create(None),
            (HistoryCall::Upsert(_), None | Some(HistoryAnswer::Done)) => {
                OperationEffect::Set(read)
            }
            (HistoryCall::Delete, None | Some(HistoryAnswer::Done)) => OperationEffect::Remove,
            (HistoryCall::Search, None) => return None,
            (HistoryCall::Insert(_), Some(HistoryAnswer::Exists)) => OperationEffect::SeeSomething,
            (
                HistoryCall::Update(_) | HistoryCall::Delete | HistoryCall::Search,
                Some(HistoryAnswer::Absent),
            ) => OperationEffect::SeeNothing,
            (HistoryCall::Search, Some(HistoryAnswer::Found(_))) => {
                id.map_or(OperationEffect::Never, OperationEffect::See)
            }
            _ => OperationEffect::Never,
        })
    }
}
