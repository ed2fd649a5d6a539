//! What clients are told of a new view: the difference to the view that they have, if the master
//! still knows that one.
//!
//! The last few views are kept for it; who has an older one, or asks for it, is told all.
//! Differences are made when somebody waits, once for all who have the same view. A master that has
//! just started knows no earlier view.

use std::collections::{BTreeMap, VecDeque};

use fusee_core::update::ViewUpdate;
use fusee_core::view::View;

/// Views that are kept: those of two changes. Clients seldom are further behind.
const KEPT: usize = 8;

/// Earlier views, and what is told of the newest one.
#[derive(Debug, Default)]
pub(super) struct Informed {
    /// The newest last.
    earlier: VecDeque<View>,
    /// By the number of the view that the asker has; 0 for none of those.
    updates: BTreeMap<u64, ViewUpdate>,
}

impl Informed {
    /// Another view has taken the place of this one.
    pub fn replaced(&mut self, old: View) {
        self.updates.clear();
        if self.earlier.len() == KEPT {
            self.earlier.pop_front();
        }
        self.earlier.push_back(old);
    }

    /// Makes what [`Informed::update`] gives to whoever has the view of this number.
    pub fn prepare(&mut self, newest: &View, number: u64) {
        let known = self.known(number);
        if newest.number > number && !self.updates.contains_key(&known) {
            let from = self.earlier.iter().find(|view| view.number == known);
            self.updates.insert(known, ViewUpdate::to(newest, from));
        }
    }

    /// The newest view for whoever has the older one of this number.
    pub fn update(&self, number: u64) -> Option<ViewUpdate> {
        self.updates.get(&self.known(number)).cloned()
    }

    /// The number, if that view is known; else 0, which no view has.
    fn known(&self, number: u64) -> u64 {
        let known = self.earlier.iter().any(|view| view.number == number);
        if known { number } else { 0 }
    }
}
