//! The search for an order of the operations.
//!
//! The algorithm is that of Wing and Gong ("Testing and verifying concurrent objects", 1993), in the *just in time*
//! form of Lowe ("Testing for linearizability", 2017). The search walks through the history and keeps the *frontier*,
//! the set of all situations in which the key can be. A situation is a state of the key and the set of open operations
//! that have had their instant. An operation must have had its instant when it returns, so the frontier is extended
//! only at returns. These reductions keep the frontier small, and lose no order that is needed:
//!
//! * An operation that changes nothing has its instant as soon as the state allows it.
//! * Values that no later SEARCH returns are treated as one value, called *unread*.
//! * A value that only one operation writes is not overwritten until the last SEARCH that returns it has been invoked,
//!   because the value could not come back. (Gibbons and Korach, "Testing shared memories", 1997, decide histories of
//!   reads and such writes in polynomial time.)
//! * An UPDATE whose readers have all been invoked has its instant as soon as the key exists with an unread value, and
//!   its readers have theirs right after it, because later operations cannot tell the difference. The same holds for an
//!   UPSERT, if no DELETE can follow any more.
//! * Among open operations with the same effect, the operation that returns first has its instant first.
//! * Operations that never return, and write an unread value or none, are only counted: the search keeps the number of
//!   those that can create the key and of those that can remove it. A situation is dropped if it differs from another
//!   situation only by having used more of these operations. An operation whose value is read becomes a counted
//!   operation when its last reader has returned. Therefore operations that crashed clients leave open cost nothing.
//!
//! The cost grows linearly with the length of the history, and exponentially only with the number of *open* operations
//! that create or remove the key with values that are read.

use std::collections::HashMap;

use super::HistoryOperation;
use super::bits::BitSet;
use super::frontier::{SeenSituations, Situation, reduced};
use super::plan::{KeyPresence, OperationEffect, PreparedHistory, Rank, ValueId};

/// Verdicts of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchVerdict {
    /// The history is linearizable.
    Explained,
    /// The history is not linearizable.
    Unexplained,
    /// The search was given up, because one return needed too many situations.
    Undecided,
}

/// A verdict and its cost.
#[derive(Clone, Copy, Debug)]
pub struct SearchOutcome {
    pub verdict: SearchVerdict,
    /// The greatest number of situations of the key at one time.
    pub peak_frontier: usize,
}

/// Searches for an order that explains the history. Gives up if one return needs more than `limit` situations.
///
/// # Panics
/// If an operation returns before it is invoked.
pub fn search(history: &[HistoryOperation], limit: usize) -> SearchOutcome {
    let plan = PreparedHistory::new(history);
    if plan.most_open <= u128::BITS as usize {
        Searcher::<u128>::new(&plan, limit).run()
    } else {
        Searcher::<Box<[u64]>>::new(&plan, limit).run()
    }
}

/// Returns the verdict of a search that uses the [`BitSet`] without a limit.
#[cfg(test)]
pub fn search_without_limit_of_places(history: &[HistoryOperation]) -> SearchVerdict {
    Searcher::<Box<[u64]>>::new(&PreparedHistory::new(history), usize::MAX).run().verdict
}

#[derive(Clone, Copy)]
struct OpenOperation {
    effect: OperationEffect,
    /// The time of the return; `u64::MAX` if the operation never returns.
    returns: u64,
}

struct Searcher<'a, B> {
    plan: &'a PreparedHistory<'a>,
    limit: usize,
    open: Vec<Option<OpenOperation>>,
    frontier: Vec<Situation<B>>,
    seen: SeenSituations<B>,
    now: Rank,
    /// The number of counted operations that have been invoked and can remove the key. `creators` is the number of
    /// counted operations that have been invoked and can create the key.
    removers: u32,
    creators: u32,
    /// Number of DELETEs that have not returned yet, including those that have not been invoked.
    removals_left: usize,
    /// The operations that never return and whose value a SEARCH returns: for each value, their places in `open`.
    writers: HashMap<ValueId, Vec<usize>>,
}

impl<'a, B: BitSet> Searcher<'a, B> {
    fn new(plan: &'a PreparedHistory<'a>, limit: usize) -> Searcher<'a, B> {
        let done = B::none(plan.most_open);
        Searcher {
            plan,
            limit,
            open: Vec::new(),
            frontier: vec![Situation { state: KeyPresence::Absent, done, removed: 0, created: 0 }],
            seen: SeenSituations::default(),
            now: 0,
            removers: 0,
            creators: 0,
            removals_left: plan.removals,
            writers: HashMap::new(),
        }
    }

    fn run(mut self) -> SearchOutcome {
        let mut peak_frontier = 1;
        // For each operation of the history, its place in `open`.
        let mut places = vec![usize::MAX; self.plan.history.len()];
        for (rank, event) in self.plan.events.iter().enumerate() {
            self.now = rank;
            if !event.returns {
                if let Some(place) = self.invoke(event.index) {
                    places[event.index] = place;
                }
                continue;
            }
            let verdict = self.settle_return(places[event.index]);
            if verdict != SearchVerdict::Explained {
                return SearchOutcome { verdict, peak_frontier };
            }
            peak_frontier = peak_frontier.max(self.frontier.len());
        }
        SearchOutcome { verdict: SearchVerdict::Explained, peak_frontier }
    }

    /// Handles an invocation. Returns the operation's place, or `None` if the operation is only counted or is ignored.
    fn invoke(&mut self, index: usize) -> Option<usize> {
        let effect = self.plan.effects[index]?;
        let returned = self.plan.history[index].returned;
        if returned.is_none() && effect.written().is_none() {
            match effect {
                OperationEffect::Remove => self.removers += 1,
                _ => self.creators += 1,
            }
            return None;
        }
        let returns = returned.map_or(u64::MAX, |(time, _)| time);
        let open = Some(OpenOperation { effect, returns });
        let place = self.open.iter().position(Option::is_none).unwrap_or(self.open.len());
        match self.open.get_mut(place) {
            Some(free) => *free = open,
            None => self.open.push(open),
        }
        if returned.is_none()
            && let Some(value) = effect.written()
        {
            self.writers.entry(value).or_default().push(place);
        }
        if effect.changes_nothing()
            || matches!(effect, OperationEffect::Replace(_) | OperationEffect::Set(_))
        {
            let mut frontier = std::mem::take(&mut self.frontier);
            frontier.iter_mut().for_each(|situation| self.settle(situation));
            self.frontier = reduced(frontier);
        }
        Some(place)
    }

    /// Returns whether a SEARCH that returns this value is still to be invoked.
    fn will_be_read(&self, value: ValueId) -> bool {
        self.plan.values[value as usize].last_invoked > self.now
    }

    /// Returns the open operations that have not had their instant, each with its place in `open`.
    fn undone(&self, situation: &Situation<B>) -> impl Iterator<Item = (usize, &OpenOperation)> {
        let open = self.open.iter().enumerate().filter_map(|(i, o)| Some((i, o.as_ref()?)));
        open.filter(|(place, _)| !situation.done.has(*place))
    }

    /// Gives an instant now to all operations for which a later instant has no advantage. If no later SEARCH returns
    /// the key's value, the situation gets `None` in place of the value (see [`KeyPresence`]).
    fn settle(&self, situation: &mut Situation<B>) {
        self.see(situation);
        if let KeyPresence::Present(Some(value)) = situation.state
            && !self.will_be_read(value)
        {
            situation.state = KeyPresence::Present(None);
        }
        if situation.state != KeyPresence::Present(None) {
            return;
        }
        for place in 0..self.open.len() {
            let Some(OpenOperation { effect, .. }) = self.open[place] else { continue };
            let nobody_can_tell = match effect {
                OperationEffect::Replace(value) => value.is_none_or(|v| !self.will_be_read(v)),
                OperationEffect::Set(value) => {
                    let stays = self.removals_left == 0;
                    stays && value.is_none_or(|v| !self.will_be_read(v))
                }
                _ => false,
            };
            if nobody_can_tell && !situation.done.has(place) {
                situation.done.set(place);
                if let Some(value) = effect.written() {
                    situation.state = KeyPresence::Present(Some(value));
                    self.see(situation);
                    situation.state = KeyPresence::Present(None);
                }
            }
        }
    }

    /// Gives an instant now to all operations that change nothing and are possible in this state.
    fn see(&self, situation: &mut Situation<B>) {
        for (place, open) in self.open.iter().enumerate() {
            if let Some(OpenOperation { effect, .. }) = open
                && effect.changes_nothing()
                && effect.apply(situation.state).is_some()
            {
                situation.done.set(place);
            }
        }
    }

    /// Handles a return: keeps the situations in which the operation at place `own` has had its instant.
    fn settle_return(&mut self, own: usize) -> SearchVerdict {
        let returning = self.open[own].expect("what returns has been open");
        let mut frontier = Vec::new();
        let mut left = std::mem::take(&mut self.frontier);
        let mut seen = std::mem::take(&mut self.seen);
        seen.clear();
        let mut next = Vec::new();
        while let Some(mut situation) = left.pop() {
            if situation.done.has(own) {
                situation.done.clear(own);
                frontier.push(situation);
                continue;
            }
            if !seen.insert(&situation) {
                continue;
            }
            if seen.len() > self.limit {
                return SearchVerdict::Undecided;
            }
            self.successors(&situation, &mut next);
            left.append(&mut next);
        }
        self.seen = seen;
        self.frontier = reduced(frontier);
        self.open[own] = None;
        match returning.effect {
            OperationEffect::Remove => self.removals_left -= 1,
            OperationEffect::See(value) => self.retire_writers(value),
            _ => {}
        }
        if self.frontier.is_empty() { SearchVerdict::Unexplained } else { SearchVerdict::Explained }
    }

    /// Appends the situations that are possible after the instant of one more operation.
    fn successors(&self, situation: &Situation<B>, next: &mut Vec<Situation<B>>) {
        if let KeyPresence::Present(Some(value)) = situation.state
            && self.plan.values[value as usize].writers <= 1
        {
            // The situation is settled and still has its value, so a later SEARCH must read this value. No other
            // operation could write it again.
            return;
        }
        let mut creates = false;
        let mut removes = false;
        for (place, open) in self.undone(situation) {
            if open.effect.changes_nothing() || !self.goes_first(situation, place, open) {
                continue;
            }
            creates |= open.effect == OperationEffect::Create(None);
            removes |= open.effect == OperationEffect::Remove;
            let Some(state) = open.effect.apply(situation.state) else { continue };
            let mut after = Situation { state, ..situation.clone() };
            after.done.set(place);
            next.push(after);
        }
        // Of operations with the same effect, a counted one has its instant only after all those that return.
        let absent = situation.state == KeyPresence::Absent;
        if absent && !creates && situation.created < self.creators {
            let created = situation.created + 1;
            let state = KeyPresence::Present(None);
            next.push(Situation { state, created, ..situation.clone() });
        }
        if !absent && !removes && situation.removed < self.removers {
            let removed = situation.removed + 1;
            next.push(Situation { state: KeyPresence::Absent, removed, ..situation.clone() });
        }
        next.iter_mut().for_each(|after| self.settle(after));
    }

    /// Returns whether no other open operation without an instant has the same effect and returns earlier. An operation
    /// that alone writes its value always goes first.
    fn goes_first(&self, situation: &Situation<B>, place: usize, open: &OpenOperation) -> bool {
        if open.effect.written().is_some_and(|v| self.plan.values[v as usize].writers <= 1) {
            return true;
        }
        let own = (open.returns, place);
        let mut others = self.undone(situation).filter(|(_, other)| other.effect == open.effect);
        others.all(|(place, other)| own <= (other.returns, place))
    }

    /// Turns the writers of `value` that never return into counted operations, once the last SEARCH that returns the
    /// value has returned.
    fn retire_writers(&mut self, value: ValueId) {
        if self.plan.values[value as usize].last_returned > self.now {
            return;
        }
        for place in self.writers.remove(&value).unwrap_or_default() {
            let Some(open) = self.open[place].take() else { continue };
            let creates = u32::from(!matches!(open.effect, OperationEffect::Replace(_)));
            self.creators += creates;
            for situation in &mut self.frontier {
                if situation.done.has(place) {
                    situation.done.clear(place);
                    situation.created += creates;
                }
            }
        }
        self.frontier = reduced(std::mem::take(&mut self.frontier));
    }
}
