//! Turns of the points: the clusters of all points exist at the same time, and one point works while the others wait.
//!
//! Every point goes through phases of its own: loading, warming up, and then the rounds. In every round each point has
//! its turn, and each round begins with another point, so that a machine that is busy for a while slows all points
//! alike.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use fusee_cli::{interrupt, stderr};

use crate::driver::PhaseObserver;

/// Phases before the rounds: loading, and warming up.
pub const BEFORE: usize = 2;

/// The order of all turns.
pub struct SweepTurns {
    /// The points, in the order of their turns.
    order: Vec<usize>,
    state: Mutex<SweepTurnState>,
    moved: Condvar,
}

struct SweepTurnState {
    at: usize,
    /// For each point, whether it has no more turns.
    gone: Vec<bool>,
}

impl SweepTurns {
    /// Gives each point this number of turns in every round.
    pub fn new(points: usize, rounds: usize, turns: usize) -> SweepTurns {
        let before = (0..BEFORE).flat_map(|_| 0..points);
        let rounds = (0..rounds).flat_map(|round| {
            (0..turns).flat_map(move |_| (0..points).map(move |i| (i + round) % points))
        });
        let state = SweepTurnState { at: 0, gone: vec![false; points] };
        SweepTurns {
            order: before.chain(rounds).collect(),
            state: Mutex::new(state),
            moved: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, SweepTurnState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self, point: usize) {
        let waits = |state: &mut SweepTurnState| {
            self.order.get(state.at).is_some_and(|next| *next != point)
        };
        let state = self.moved.wait_while(self.state(), waits);
        drop(state.unwrap_or_else(PoisonError::into_inner));
    }

    fn pass_on(&self, change: impl FnOnce(&mut SweepTurnState)) {
        let mut state = self.state();
        change(&mut state);
        while self.order.get(state.at).is_some_and(|next| state.gone[*next]) {
            state.at += 1;
        }
        self.moved.notify_all();
    }
}

/// The turns of one point. Dropping this value gives up the point's remaining turns.
pub struct SweepPointTurns<'a> {
    turns: &'a SweepTurns,
    point: usize,
    name: &'a str,
    /// For each phase that has ended, whether it ran to its end.
    pub whole: Vec<bool>,
}

impl<'a> SweepPointTurns<'a> {
    pub fn new(turns: &'a SweepTurns, point: usize, name: &'a str) -> SweepPointTurns<'a> {
        SweepPointTurns { turns, point, name, whole: Vec::new() }
    }
}

impl PhaseObserver for SweepPointTurns<'_> {
    fn shows_progress(&self) -> bool {
        false
    }

    fn begin(&mut self) {
        self.turns.wait(self.point);
        match self.whole.len() {
            _ if interrupt::is_requested() => {}
            0 => stderr::tell(&format!("loading {}", self.name)),
            1 => stderr::tell(&format!("warming up {}", self.name)),
            _ => stderr::text("."),
        }
    }

    fn phase_ended(&mut self, _from_ns: u64, _to_ns: u64) {
        self.whole.push(!interrupt::is_requested());
        self.turns.pass_on(|state| state.at += 1);
    }
}

impl Drop for SweepPointTurns<'_> {
    fn drop(&mut self) {
        self.turns.pass_on(|state| state.gone[self.point] = true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_works_at_a_time_and_who_is_gone_is_not_waited_for() {
        let points = 3;
        let rounds = 4;
        let turns = 2;
        let all = SweepTurns::new(points, rounds, turns);
        assert_eq!(all.order[..6], [0, 1, 2, 0, 1, 2]);
        assert_eq!(all.order[12..18], [1, 2, 0, 1, 2, 0]);
        let done = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for point in 0..points {
                let all = &all;
                let done = &done;
                scope.spawn(move || {
                    let mut seat = SweepPointTurns::new(all, point, "a point");
                    // The last point leaves after its loading phase.
                    let phases = if point == 2 { 1 } else { BEFORE + rounds * turns };
                    for _ in 0..phases {
                        seat.begin();
                        done.lock().unwrap().push(point);
                        seat.phase_ended(0, 0);
                    }
                    assert_eq!(seat.whole, vec![true; phases]);
                });
            }
        });
        let mut left = all.order.clone();
        let first = left.iter().position(|point| *point == 2).unwrap();
        left = left
            .iter()
            .enumerate()
            .filter(|(i, p)| **p != 2 || *i == first)
            .map(|(_, p)| *p)
            .collect();
        assert_eq!(*done.lock().unwrap(), left);
    }
}
