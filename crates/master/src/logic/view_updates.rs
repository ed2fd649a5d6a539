//! New views for clients, as differences from the view that the client has, if the master still keeps that view.
//!
//! The last few views are kept for this. A client with an older view, or without one, gets the whole view. A difference
//! is made when a client waits, once for all clients with the same view. A master that has just started keeps no
//! earlier view.

use std::collections::{BTreeMap, VecDeque};

use fusee_core::view::View;
use fusee_core::view::update::ViewUpdate;

/// The number of earlier views that are kept: two view changes make this many. Clients are seldom further behind.
const KEPT: usize = 8;

/// Earlier views, and the updates from them to the newest view.
#[derive(Debug, Default)]
pub(super) struct ViewUpdateCache {
    /// The earlier views that are kept, the newest of them last.
    earlier: VecDeque<View>,
    /// The update for clients with each kept view, by the view's number. Under 0, the update for clients with any other
    /// view.
    updates: BTreeMap<u64, ViewUpdate>,
}

impl ViewUpdateCache {
    /// Records that a newer view has replaced this view.
    pub fn replaced(&mut self, old: View) {
        self.updates.clear();
        if self.earlier.len() == KEPT {
            self.earlier.pop_front();
        }
        self.earlier.push_back(old);
    }

    /// Makes the update to the newest view for clients with the view of this number; [`ViewUpdateCache::update`]
    /// returns it.
    pub fn prepare(&mut self, newest: &View, number: u64) {
        let known = self.known(number);
        if newest.number > number && !self.updates.contains_key(&known) {
            let from = self.earlier.iter().find(|view| view.number == known);
            self.updates.insert(known, ViewUpdate::to(newest, from));
        }
    }

    /// Returns the update to the newest view for clients with the view of this number.
    pub fn update(&self, number: u64) -> Option<ViewUpdate> {
        self.updates.get(&self.known(number)).cloned()
    }

    /// Returns the number if the view of this number is kept; otherwise 0, which no view has.
    fn known(&self, number: u64) -> u64 {
        let known = self.earlier.iter().any(|view| view.number == number);
        if known { number } else { 0 }
    }
}
