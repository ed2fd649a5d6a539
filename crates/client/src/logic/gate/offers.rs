//! Blocks that the session does not need at the moment.
//!
//! They are *offered*: the keeper may hand them on while the session sleeps. The session takes them
//! back before it does anything about them, and hears then which are gone.

use std::mem;
use std::sync::PoisonError;

use fusee_control::master::{MasterRequest, Orphan};
use fusee_control::node::BlockId;
use fusee_core::verbs::ClientId;

use crate::sync::{Mutex, MutexGuard};

/// One in so many of the blocks that a session at work offers is handed on at a time.
const PARTS: usize = 8;

/// Blocks that others may have.
#[derive(Debug, Default)]
pub struct Offers(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    offered: Vec<Orphan>,
    /// Those that need not wait until somebody is short: objects in them are in use.
    surplus: Vec<Orphan>,
    /// The master is being told of these.
    batch: Option<Batch>,
    serial: u64,
    /// The call for which a part of what is offered was handed on last.
    call: u64,
    /// The session has done something about its blocks since.
    is_active: bool,
    /// The session has not heard yet that these are gone.
    gone: Vec<BlockId>,
    /// The session looks for memory itself: what it does not need it offers when it has done.
    is_withheld: bool,
    /// The call that came meanwhile, if it has not got its part; 0 for none.
    owed: u64,
    /// It has got that since, and the keeper does not know.
    is_due: bool,
    /// The session has blocks that are about to become free.
    frees_soon: bool,
}

/// What a session hands on at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Grows with every batch.
    pub serial: u64,
    /// The blocks.
    pub orphans: Vec<Orphan>,
    /// In which of them objects are in use.
    pub used: Vec<BlockId>,
}

impl Batch {
    /// What to tell the master.
    pub fn request(self, client: ClientId) -> MasterRequest {
        let Batch { serial, orphans, used } = self;
        MasterRequest::HandOn { client, serial, orphans, used }
    }
}

impl State {
    fn is_pressing(&self) -> bool {
        !self.surplus.is_empty() || self.is_due || (self.owed != 0 && !self.is_withheld)
    }

    /// Has the keeper hand on what is surplus, and for every `call` but 0 a part of what is offered besides;
    /// unless the last of it has not been heard.
    fn pass_on(&mut self, call: u64) {
        if self.batch.is_some() {
            return;
        }
        let is_new = call != 0 && mem::replace(&mut self.call, call) != call;
        let parts = if is_new && !mem::take(&mut self.is_active) { 1 } else { PARTS };
        let count = if is_new { self.offered.len().div_ceil(parts) } else { 0 };
        let used: Vec<BlockId> = self.surplus.iter().map(|left| left.block).collect();
        let orphans = self.offered.drain(..count).chain(self.surplus.drain(..));
        let orphans: Vec<Orphan> = orphans.collect();
        if orphans.is_empty() {
            return;
        }
        self.gone.extend(orphans.iter().map(|left| left.block));
        self.serial += 1;
        self.batch = Some(Batch { serial: self.serial, orphans, used });
    }
}

impl Offers {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From the session: these may be handed on, and no others. A call that came meanwhile gets its part at
    /// once: the session may take the rest back before the keeper looks. Whether the keeper should do so now.
    pub(super) fn offer(&self, spare: Vec<Orphan>, surplus: Vec<Orphan>) -> bool {
        let mut state = self.state();
        (state.offered, state.surplus, state.is_withheld) = (spare, surplus, false);
        state.is_active = true;
        if state.owed != 0 && state.batch.is_none() {
            let call = mem::take(&mut state.owed);
            state.pass_on(call);
            state.is_due = true;
        }
        state.is_pressing()
    }

    /// From the session: whether it has blocks that are about to become free, and are not offered.
    pub fn tell_frees_soon(&self, frees_soon: bool) {
        self.state().frees_soon = frees_soon;
    }

    /// From the session: nothing may be handed on any more. To the session: what has been, since it
    /// asked last.
    pub fn take_back(&self) -> Vec<BlockId> {
        let mut state = self.state();
        state.offered.clear();
        state.surplus.clear();
        state.is_withheld = true;
        mem::take(&mut state.gone)
    }

    /// To the keeper: whether there is something to hand on at once.
    pub fn are_pressing(&self) -> bool {
        self.state().is_pressing()
    }

    /// To the keeper, which was called for memory: whether the session is about to offer some, and has not
    /// done so for this call.
    pub fn withholds(&self, call: u64) -> bool {
        let mut state = self.state();
        let withholds = state.is_withheld && state.call != call;
        state.owed = if withholds { call } else { 0 };
        withholds
    }

    /// To the keeper: whether the session may soon free memory, given that operations of it run.
    pub(super) fn stir(&self, pinned: bool) -> bool {
        let state = self.state();
        // Who looks for memory runs for that alone: it had its chance to offer some, unless it owes it.
        let pinned = if state.is_withheld { state.owed != 0 } else { pinned };
        pinned || state.frees_soon
    }

    /// To the keeper: what the master has not been heard to know of.
    pub fn unheard(&self) -> Option<Batch> {
        self.state().batch.clone()
    }

    /// To the keeper: what is to be handed on, once the last of it has been heard. That is what is surplus,
    /// and for every `call` but 0 a part of what is offered besides: so a session that works keeps most
    /// of what it needs itself; of one that has done nothing since the last call it is all.
    pub fn hand_on(&self, call: u64) -> Option<Batch> {
        let state = &mut *self.state();
        state.is_due = false;
        if !state.is_withheld {
            state.owed = 0;
        }
        state.pass_on(call);
        state.batch.clone()
    }

    /// From the keeper: the master knows of what has this serial.
    pub fn handed_on(&self, serial: u64) {
        self.state().batch.take_if(|batch| batch.serial == serial);
    }
}
