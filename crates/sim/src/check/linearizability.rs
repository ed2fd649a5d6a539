//! Is a history of operations on one key linearizable?
//!
//! A history is linearizable (Herlihy and Wing) if every operation can be given one instant
//! between its invocation and its return such that, executed one after another at these instants,
//! the operations answer what they did answer. One that never returned may have any instant after
//! its invocation, or none. Keys are independent of each other, so each is checked alone.
//!
//! Searching for an order is Wing and Gong's algorithm ("Testing and verifying concurrent
//! objects", 1993); we do it *just in time* as Lowe does ("Testing for linearizability", 2017):
//! walk through the history and keep the frontier, the set of all situations the key may be in.
//! A situation is a state and the set of open operations that have had their instant. Only when
//! an operation returns must it have had one: that is when the frontier is extended. Three things
//! keep it small:
//!
//! * An operation that changes nothing has its instant as soon as the state allows it: that
//!   excludes no order of the others.
//! * Of open operations that do the same, the one that returns first goes first: any order can be
//!   rearranged that way.
//! * Values that no later SEARCH returns are one and the same value.
//!
//! The cost grows exponentially with the number of *open* operations whose values are read, and
//! only linearly with the length of the history.

use std::collections::{HashMap, HashSet};
use std::fmt;

/// What a value is known by. Different writes best write different values: the history says more.
pub type Value = u64;

/// What an operation was asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// INSERT.
    Insert(Value),
    /// UPDATE.
    Update(Value),
    /// UPSERT.
    Upsert(Value),
    /// DELETE.
    Delete,
    /// SEARCH.
    Search,
}

/// What an operation answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// A write took effect.
    Done,
    /// An INSERT found the key.
    Exists,
    /// An UPDATE, DELETE or SEARCH did not.
    Absent,
    /// A SEARCH found this.
    Found(Value),
}

/// One operation of a history. Time is any number that only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// What was asked.
    pub call: Call,
    /// When.
    pub invoked: u64,
    /// What was answered and when; `None` if nothing ever was.
    pub returned: Option<(u64, Answer)>,
}

/// A history that no order of its operations explains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The first operation, by the time of its return, whose answer cannot be explained.
    pub operation: Operation,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no order of the operations explains {:?}", self.operation)
    }
}

/// Operations that may be open at once, those that never return included.
pub const MAX_OPEN: usize = u64::BITS as usize;

/// Checks a history of one key, which did not exist in the beginning. In any order.
///
/// # Panics
/// If an operation returns before it is invoked, or more than [`MAX_OPEN`] are open at once.
pub fn check(history: &[Operation]) -> Result<(), Violation> {
    let mut checker = Checker::new(history);
    let mut events = Vec::new();
    for (i, operation) in history.iter().enumerate() {
        // At equal times invocations come first: what touches is concurrent.
        events.push((operation.invoked, false, i));
        if let Some((time, _)) = operation.returned {
            assert!(time >= operation.invoked, "{operation:?} returns before it is invoked");
            events.push((time, true, i));
        }
    }
    events.sort_unstable();
    for (time, returns, i) in events {
        checker.now = time;
        if !returns {
            checker.invoke(&history[i]);
        } else if !checker.settle_return(&history[i]) {
            return Err(Violation { operation: history[i] });
        }
    }
    Ok(())
}

/// The key; its value is `None` if nobody will read it any more.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum State {
    Absent,
    Present(Option<Value>),
}

/// One situation that the key may be in.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Situation {
    state: State,
    /// The open operations that have had their instant, by the bit of their place in `open`.
    done: u64,
}

/// What an operation does, with a value of `None` if nobody reads it: what makes two alike.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    /// Only if absent.
    Create(Option<Value>),
    /// Only if present.
    Replace(Option<Value>),
    /// In any state.
    Set(Option<Value>),
    /// Only if present.
    Remove,
    /// Nothing; only in the states of this answer.
    Nothing(Answer),
}

impl Effect {
    /// The state afterwards; `None` if the operation cannot have its instant in `state`.
    fn apply(self, state: State) -> Option<State> {
        let absent = state == State::Absent;
        match self {
            Effect::Create(value) => absent.then_some(State::Present(value)),
            Effect::Replace(value) => (!absent).then_some(State::Present(value)),
            Effect::Set(value) => Some(State::Present(value)),
            Effect::Remove => (!absent).then_some(State::Absent),
            Effect::Nothing(Answer::Exists) => (!absent).then_some(state),
            Effect::Nothing(Answer::Absent) => absent.then_some(state),
            Effect::Nothing(Answer::Found(value)) => {
                (state == State::Present(Some(value))).then_some(state)
            }
            Effect::Nothing(Answer::Done) => None,
        }
    }
}

#[derive(Clone, Copy)]
struct Open {
    operation: Operation,
    effect: Effect,
}

struct Checker {
    open: [Option<Open>; MAX_OPEN],
    frontier: HashSet<Situation>,
    /// By value: when the last SEARCH that found it was invoked, and when the last one returned.
    readers: HashMap<Value, (u64, u64)>,
    now: u64,
}

impl Checker {
    fn new(history: &[Operation]) -> Checker {
        let mut readers = HashMap::new();
        for operation in history {
            if let Some((time, Answer::Found(value))) = operation.returned {
                let last = readers.entry(value).or_insert((0, 0));
                *last = (operation.invoked.max(last.0), time.max(last.1));
            }
        }
        let frontier = HashSet::from([Situation { state: State::Absent, done: 0 }]);
        Checker { open: [None; MAX_OPEN], frontier, readers, now: 0 }
    }

    /// What an operation does; `None` if it need not be considered, because it never answered and
    /// changes nothing.
    fn effect(&self, operation: &Operation) -> Option<Effect> {
        let read =
            |value: &Value| self.readers.get(value).is_some_and(|r| r.1 >= operation.invoked);
        let kept = |value: Value| Some(value).filter(read);
        Some(match (operation.call, operation.returned.map(|(_, answer)| answer)) {
            (Call::Insert(value), None | Some(Answer::Done)) => Effect::Create(kept(value)),
            (Call::Update(value), None | Some(Answer::Done)) => Effect::Replace(kept(value)),
            (Call::Upsert(value), None | Some(Answer::Done)) => Effect::Set(kept(value)),
            (Call::Delete, None | Some(Answer::Done)) => Effect::Remove,
            (Call::Search, None) => return None,
            (Call::Insert(_), Some(answer @ Answer::Exists))
            | (Call::Update(_) | Call::Delete, Some(answer @ Answer::Absent))
            | (Call::Search, Some(answer @ (Answer::Absent | Answer::Found(_)))) => {
                Effect::Nothing(answer)
            }
            // No call ever answers this: it has no instant in any state.
            _ => Effect::Nothing(Answer::Done),
        })
    }

    fn invoke(&mut self, operation: &Operation) {
        let Some(effect) = self.effect(operation) else { return };
        let place = self.open.iter_mut().find(|o| o.is_none());
        *place.expect("too many operations are open at once") =
            Some(Open { operation: *operation, effect });
        if matches!(effect, Effect::Nothing(_)) {
            self.frontier = self.frontier.iter().map(|s| self.settled(*s)).collect();
        }
    }

    /// Gives all operations their instant that change nothing and are possible now, and forgets
    /// a value that has no reader left.
    fn settled(&self, mut situation: Situation) -> Situation {
        for (bit, open) in self.undone(situation) {
            if matches!(open.effect, Effect::Nothing(_))
                && open.effect.apply(situation.state).is_some()
            {
                situation.done |= bit;
            }
        }
        if let State::Present(Some(value)) = situation.state
            && self.readers.get(&value).is_none_or(|r| r.0 < self.now)
        {
            situation.state = State::Present(None);
        }
        situation
    }

    /// The open operations that have not had their instant, each with its bit.
    fn undone(&self, situation: Situation) -> impl Iterator<Item = (u64, &Open)> {
        let places = self.open.iter().enumerate().filter_map(|(i, o)| Some((1 << i, o.as_ref()?)));
        places.filter(move |(bit, _)| situation.done & bit == 0)
    }

    /// An operation returns: what remains are the situations in which it has had its instant.
    /// Returns whether there are any.
    fn settle_return(&mut self, operation: &Operation) -> bool {
        let is_it = |o: &Option<Open>| o.as_ref().is_some_and(|o| o.operation == *operation);
        let place = self.open.iter().position(is_it).expect("what returns has been open");
        let own = 1 << place;
        let mut seen = self.frontier.clone();
        let mut left: Vec<Situation> = self.frontier.drain().collect();
        let mut frontier = HashSet::new();
        while let Some(situation) = left.pop() {
            if situation.done & own != 0 {
                frontier.insert(Situation { done: situation.done & !own, ..situation });
                continue;
            }
            left.extend(self.successors(situation).filter(|next| seen.insert(*next)));
        }
        self.frontier = frontier;
        self.open[place] = None;
        !self.frontier.is_empty()
    }

    /// The situations after one more instant.
    fn successors(&self, situation: Situation) -> impl Iterator<Item = Situation> {
        let returns = |open: &Open| open.operation.returned.map_or(u64::MAX, |(time, _)| time);
        self.undone(situation).filter_map(move |(bit, open)| {
            let first = self.undone(situation).all(|(other_bit, other)| {
                other.effect != open.effect || (returns(open), bit) <= (returns(other), other_bit)
            });
            let state = first.then(|| open.effect.apply(situation.state))??;
            Some(self.settled(Situation { state, done: situation.done | bit }))
        })
    }
}

#[cfg(test)]
mod tests;
