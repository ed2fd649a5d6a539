//! Blocks that the session does not need at the moment.
//!
//! The session *offers* such blocks: the keeper is allowed to hand them on while the session sleeps. Before the session
//! does anything with these blocks, it takes its offer back, and learns which of them were handed on.

use std::mem;
use std::sync::PoisonError;

use fusee_control::master::{MasterRequest, Orphan};
use fusee_control::node::BlockId;
use fusee_core::verbs::ClientId;

use crate::sync::{Mutex, MutexGuard};

/// For each call for memory, an active session hands on 1 / `PARTS` of its offered blocks, rounded up.
const PARTS: usize = 8;

/// Blocks that the keeper is allowed to hand on to other sessions.
#[derive(Debug, Default)]
pub struct BlockOffers(Mutex<BlockOfferState>);

#[derive(Debug, Default)]
struct BlockOfferState {
    offered: Vec<Orphan>,
    /// Blocks to hand on even if memory is not short: they contain objects in use, but this session has no use for
    /// their free objects.
    surplus: Vec<Orphan>,
    /// Whether only this session is short of memory, as far as the keeper knows. If so, it keeps the surplus blocks,
    /// because the master would give them to no session before the session itself has compared or emptied them.
    is_spared: bool,
    /// The blocks that the keeper is handing on, until the master acknowledges the message.
    batch: Option<HandOnBatch>,
    serial: u64,
    /// The number of the latest call for memory for which a part of the offered blocks was handed on.
    call: u64,
    /// Whether the session has made an offer since blocks were handed on for the call with number `call`.
    is_active: bool,
    /// Blocks that were handed on without the session's knowledge; [`BlockOffers::take_back`] tells the session.
    gone: Vec<BlockId>,
    /// Whether the session has taken its offer back to look for memory itself. When the session has found memory, it
    /// offers the blocks that it does not need.
    is_withheld: bool,
    /// The number of a call for memory that came while the offer was withheld, if no blocks have been handed on for it
    /// yet; else 0.
    owed: u64,
    /// Whether blocks for the owed call are in `batch` and the keeper does not know this yet.
    is_due: bool,
    /// Whether the session has blocks that will soon become free.
    frees_soon: bool,
}

/// Blocks that a session hands on with one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandOnBatch {
    /// The serial number of the batch. It grows with every batch.
    pub serial: u64,
    /// The blocks that the message hands on.
    pub orphans: Vec<Orphan>,
    /// Those blocks of `orphans` in which objects are in use.
    pub used: Vec<BlockId>,
}

impl HandOnBatch {
    /// Converts the batch into the request to the master.
    pub fn request(self, client: ClientId) -> MasterRequest {
        let HandOnBatch { serial, orphans, used } = self;
        MasterRequest::HandOn { client, serial, orphans, used }
    }
}

impl BlockOfferState {
    fn is_pressing(&self) -> bool {
        self.has_surplus() || self.is_due || (self.owed != 0 && !self.is_withheld)
    }

    fn has_surplus(&self) -> bool {
        !self.surplus.is_empty() && !self.is_spared
    }

    /// Makes a batch of the surplus blocks and, if `call` is a new call for memory (and not 0), of a part of the
    /// offered ones. Does nothing while the master has not acknowledged the last batch.
    fn pass_on(&mut self, call: u64) {
        if self.batch.is_some() {
            return;
        }
        let is_new = call != 0 && mem::replace(&mut self.call, call) != call;
        let parts = if is_new && !mem::take(&mut self.is_active) { 1 } else { PARTS };
        let count = if is_new { self.offered.len().div_ceil(parts) } else { 0 };
        let surplus = if self.has_surplus() { self.surplus.len() } else { 0 };
        let used: Vec<BlockId> = self.surplus[..surplus].iter().map(|left| left.block).collect();
        let orphans = self.offered.drain(..count).chain(self.surplus.drain(..surplus));
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

    /// Replaces, on behalf of the session, its offer by these blocks. If a call for memory came while the offer was
    /// withheld, puts blocks for it into a batch at once, because the session can take the rest back before the keeper
    /// looks. Returns whether the keeper should look now.
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

    /// Records, on behalf of the session, whether it has blocks that will soon become free and are not offered.
    pub fn tell_frees_soon(&self, frees_soon: bool) {
        self.state().frees_soon = frees_soon;
    }

    /// Takes back, on behalf of the session, everything that it offers. Returns the blocks that were handed on since
    /// the session last did so.
    pub fn take_back(&self) -> Vec<BlockId> {
        let mut state = self.state();
        state.offered.clear();
        state.surplus.clear();
        state.is_withheld = true;
        mem::take(&mut state.gone)
    }

    /// Returns, to the keeper, whether there are blocks to hand on without delay.
    pub fn are_pressing(&self) -> bool {
        self.state().is_pressing()
    }

    /// Returns, to a keeper that handles a call for memory, whether the session has no offer now but will soon make
    /// one, and has handed on nothing for this call yet. If so, blocks of its next offer are handed on for this call.
    pub fn withholds(&self, call: u64) -> bool {
        let mut state = self.state();
        let withholds = state.is_withheld && state.call != call;
        state.owed = if withholds { call } else { 0 };
        withholds
    }

    /// Returns, to the keeper, whether the session possibly frees memory soon. `pinned` says whether operations of the
    /// session run.
    pub(super) fn stir(&self, pinned: bool) -> bool {
        let state = self.state();
        // While the offer is withheld, the session's operation looks for memory itself and frees none; other sessions
        // can get memory from it only if it still owes blocks for a call.
        let pinned = if state.is_withheld { state.owed != 0 } else { pinned };
        pinned || state.frees_soon
    }

    /// Returns the batch of blocks that the master has not acknowledged.
    pub fn unacknowledged(&self) -> Option<HandOnBatch> {
        self.state().batch.clone()
    }

    /// Returns, to the keeper, the batch to hand on: the last one until the master has acknowledged it, then a new one.
    /// A new batch has the surplus blocks and, if `call` is a new call for memory (and not 0), a part of the offered
    /// ones. So an active session keeps most of the blocks that it needs itself, and a session that was idle since the
    /// last call hands on all.
    /// A session that `is_spared` keeps its surplus blocks.
    pub fn hand_on(&self, call: u64, is_spared: bool) -> Option<HandOnBatch> {
        let state = &mut *self.state();
        state.is_due = false;
        state.is_spared = is_spared;
        if !state.is_withheld {
            state.owed = 0;
        }
        state.pass_on(call);
        state.batch.clone()
    }

    /// Records, on behalf of the keeper, that the master has acknowledged the batch with this serial number.
    pub fn handed_on(&self, serial: u64) {
        self.state().batch.take_if(|batch| batch.serial == serial);
    }
}
