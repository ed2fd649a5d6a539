//! The view that new sessions follow, and the checks of memory against this view.

use std::cell::{Cell, Ref, RefCell};

use fusee_core::verbs::{ClientId, MnId};
use fusee_core::view::View;

use crate::check::entries::LiveEntries;
use crate::network::Network;

/// The view that new sessions follow. The checkers of entries and of reuse check the network's memories against it.
pub struct ViewChecks {
    network: Network,
    view: RefCell<Option<View>>,
    /// Whether the checkers of entries and reuse are on.
    watches: Cell<bool>,
}

impl ViewChecks {
    pub(crate) fn new(network: &Network) -> ViewChecks {
        ViewChecks { network: network.clone(), view: RefCell::default(), watches: Cell::new(true) }
    }

    /// Returns whether the master has stored a view.
    pub(crate) fn has_view(&self) -> bool {
        self.view.borrow().is_some()
    }

    /// Returns the view that new sessions follow.
    pub(crate) fn view(&self) -> Ref<'_, View> {
        Ref::map(self.view.borrow(), |view| view.as_ref().expect("the cluster is formed"))
    }

    /// Returns the nodes of the view that have not crashed.
    pub(crate) fn living_nodes(&self) -> Vec<MnId> {
        let view = self.view();
        let nodes = view.members.iter().map(|member| member.node);
        nodes.filter(|node| self.network.memories().has(*node)).collect()
    }

    /// Makes new sessions follow this view, and checks the entries in its primaries. Tests that stand in for the master
    /// call this, whatever view the master has.
    ///
    /// # Panics
    /// If the entries already break an invariant.
    pub fn follow(&self, view: &View) {
        if self.watches.get() {
            self.network.checkers().watch(LiveEntries::new(self.network.memories(), view));
            self.network.checkers().reuse().follow(Some(view));
        }
        *self.view.borrow_mut() = Some(view.clone());
    }

    /// Tells the checkers that an epoch begins. For tests that stand in for the master.
    pub fn epoch_begins(&self, epoch: u64) {
        self.network.checkers().reuse().epoch(epoch);
    }

    /// Records that a dead session is recovered, so that none of its operations counts as running. For tests that stand
    /// in for the master.
    pub fn recovered(&self, client: ClientId) {
        self.network.checkers().reuse().note_recovered(client);
    }

    /// Stops the checks of entries and of reuse for this view and all later ones. For tests that lose the last replica
    /// of something.
    pub fn never_watch(&self) {
        self.watches.set(false);
        self.stop_watching();
    }

    /// Stops the checks of entries and of reuse until the next view. For tests that write what no client would write.
    pub fn stop_watching(&self) {
        self.network.checkers().watch(LiveEntries::default());
        self.network.checkers().reuse().follow(None);
    }

    /// Returns the keys that a reader of the primaries could now find, in order.
    ///
    /// # Panics
    /// If a key is live twice, if an entry leads to no object, or if the entries differ from those that the checker has
    /// tracked.
    pub fn live_keys(&self) -> Vec<Vec<u8>> {
        let keys = LiveEntries::new(self.network.memories(), &self.view()).keys();
        assert_eq!(
            keys,
            self.network.checkers().watched().keys(),
            "an entry changed behind its slot"
        );
        keys
    }
}
