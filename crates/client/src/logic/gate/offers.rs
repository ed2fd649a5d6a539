//! Blocks that the session does not need at the moment.
//!
//! They are *offered*: the keeper may hand them on while the session sleeps. The session takes its offer back
//! before it does anything to the blocks, and hears then which of them are gone.

use std::mem;
use std::sync::PoisonError;

use fusee_control::master::{MasterRequest, Orphan};
use fusee_control::node::BlockId;
use fusee_core::verbs::ClientId;

use crate::sync::{Mutex, MutexGuard};

/// A session at work hands on this fraction (1 / `PARTS`) of its offered blocks at a time.
const PARTS: usize = 8;

/// Blocks that other sessions may have.
#[derive(Debug, Default)]
pub struct BlockOffers(Mutex<BlockOfferState>);

#[derive(Debug, Default)]
struct BlockOfferState {
    offered: Vec<Orphan>,
    /// Blocks to hand on without a call for memory: this session has no use for them, and objects in them are
    /// in use.
    surplus: Vec<Orphan>,
    /// The blocks of which the master is being told.
    batch: Option<HandOnBatch>,
    serial: u64,
    /// The latest call for which a part of the offered blocks was handed on.
    call: u64,
    /// Whether the session has made an offer since that call.
    is_active: bool,
    /// Blocks that were handed on, of which the session has not heard yet.
    gone: Vec<BlockId>,
    /// Whether the session looks for memory itself: it offers what it does not need when it is done.
    is_withheld: bool,
    /// The call that came meanwhile, if its part is still owed; 0 for none.
    owed: u64,
    /// Whether that part is in `batch` now, without the keeper's knowledge.
    is_due: bool,
    /// Whether the session has blocks that are about to become free.
    frees_soon: bool,
}

/// Blocks that a session hands on at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandOnBatch {
    /// The number of the batch; it grows with every batch.
    pub serial: u64,
    /// The blocks.
    pub orphans: Vec<Orphan>,
    /// Those of the blocks in which objects are in use.
    pub used: Vec<BlockId>,
}

impl HandOnBatch {
    /// Makes the message to the master.
    pub fn request(self, client: ClientId) -> MasterRequest {
        let HandOnBatch { serial, orphans, used } = self;
        MasterRequest::HandOn { client, serial, orphans, used }
    }
}

impl BlockOfferState {
    fn is_pressing(&self) -> bool {
        !self.surplus.is_empty() || self.is_due || (self.owed != 0 && !self.is_withheld)
    }

    /// Makes a batch of the surplus blocks and, for a new `call` other than 0, of a part of the offered ones.
    /// Does nothing before the master has acknowledged the last batch.
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
        self.batch = Some(HandOnBatch { serial: self.serial, orphans, used });
    }
}

impl BlockOffers {
    fn state(&self) -> MutexGuard<'_, BlockOfferState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Offers, for the session, these blocks and no others. A call that came meanwhile gets its part at once:
    /// the session may take the rest back before the keeper looks. Returns whether the keeper should look now.
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

    /// Records, for the session, whether it has blocks that are about to become free and are not offered.
    pub fn tell_frees_soon(&self, frees_soon: bool) {
        self.state().frees_soon = frees_soon;
    }

    /// Takes the whole offer back, for the session. Returns the blocks that were handed on since the last
    /// such call.
    pub fn take_back(&self) -> Vec<BlockId> {
        let mut state = self.state();
        state.offered.clear();
        state.surplus.clear();
        state.is_withheld = true;
        mem::take(&mut state.gone)
    }

    /// Returns, to the keeper, whether there are blocks to hand on at once.
    pub fn are_pressing(&self) -> bool {
        self.state().is_pressing()
    }

    /// Returns, to a keeper that handles a call for memory, whether the session will make an offer soon, and
    /// has not served this call yet. If so, it owes the call its part.
    pub fn withholds(&self, call: u64) -> bool {
        let mut state = self.state();
        let withholds = state.is_withheld && state.call != call;
        state.owed = if withholds { call } else { 0 };
        withholds
    }

    /// Returns, to the keeper, whether the session may soon free memory; `pinned` says whether operations of it
    /// run.
    pub(super) fn stir(&self, pinned: bool) -> bool {
        let state = self.state();
        // An operation that looks for memory does nothing else: it had its chance to offer some, unless it
        // still owes that.
        let pinned = if state.is_withheld { state.owed != 0 } else { pinned };
        pinned || state.frees_soon
    }

    /// Returns the batch that the master has not acknowledged.
    pub fn unacknowledged(&self) -> Option<HandOnBatch> {
        self.state().batch.clone()
    }

    /// Returns, to the keeper, the batch to hand on: the last one until it is acknowledged, then a new one. A
    /// new batch has the surplus blocks and, for a new `call` other than 0, a part of the offered ones. So a
    /// session at work keeps most blocks that it needs itself; one that was idle since the last call hands on
    /// all.
    pub fn hand_on(&self, call: u64) -> Option<HandOnBatch> {
        let state = &mut *self.state();
        state.is_due = false;
        if !state.is_withheld {
            state.owed = 0;
        }
        state.pass_on(call);
        state.batch.clone()
    }

    /// Records, for the keeper, that the master knows the batch with this serial number.
    pub fn handed_on(&self, serial: u64) {
        self.state().batch.take_if(|batch| batch.serial == serial);
    }
}
