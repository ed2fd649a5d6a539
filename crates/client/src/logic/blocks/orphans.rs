//! Blocks that pass from one session to another by way of the master: those that this session hands on or leaves
//! behind, and those that it takes over.

use fusee_control::master::{MasterReply, MasterRequest, Orphan};
use fusee_control::node::{BlockId, BlockRequest, NodeRefusal, NodeReply};
use fusee_core::data::Redundancy;
use fusee_core::error::Error;
use fusee_core::layout::SizeClass;
use fusee_core::mutant::{Mutant, removed};
use fusee_core::slab::BlockGrant;
use fusee_core::slab::BlockRemainder;
use fusee_core::view::View;

use super::{
    BLOCKS_WITHOUT_MASTER, BlockSource, Environment, MASTER_DEADLINE, OrphanGrant, PoolGrant,
    RunningCountGuard, SessionGate, is_valid,
};

impl<E: Environment> BlockSource<E> {
    pub(super) async fn take_over_orphan(
        &self,
        class: Option<SizeClass>,
        redundancy: Redundancy,
        full: bool,
        view: &View,
    ) -> Option<BlockGrant> {
        let gift = self.take_orphan(class, redundancy, full, view).await?;
        let (orphan, block) = (gift.orphan, gift.orphan.block);
        // Memory is possibly left of which the master does not know: another session has possibly returned the offered
        // block to the pool, and this session has got it from there.
        self.exhausted.set(false);
        let is_ours = self.held.borrow().contains(&block);
        if is_ours || self.unconfirmed.borrow().contains_key(&block) {
            return None;
        }
        // The tables possibly already name this session as owner, because it has owned the block before, or because an
        // earlier attempt to take it over has taken effect.
        let once = orphan.owner != self.client && !self.adopting.borrow().contains_key(&block);
        if !once && self.allocating.get() > 0 && !removed(Mutant::OwnOrphansTakenMeanwhile) {
            // Another session has possibly taken the block over and returned it, and the pool has granted it to a
            // running request of this session: the tables would look the same as after a takeover. So this session does
            // not take the block over. Conversely, no request asks the pool while a takeover is running that the tables
            // possibly already show (`taking_back`).
            return None;
        }
        let _ends = (!once).then(|| RunningCountGuard::begin(&self.taking_back));
        // On a first attempt the block stays in `handed_on`: the master possibly offers, under the id of an earlier
        // owner, a block that this session itself has handed on since, which the master does not know yet.
        if !once {
            self.handed_on.borrow_mut().remove(&block);
        }
        self.adopting.borrow_mut().insert(block, gift);
        match self.adopt(&gift, once, view).await {
            Ok(()) => Some(self.record_orphan(&gift, view)),
            Err(error) => {
                tracing::debug!(?orphan, %error, "a handed-on block is not taken over");
                if self.adopting.borrow().contains_key(&block) {
                    self.missed.set(true);
                }
                None
            }
        }
    }

    /// Records that an orphaned block belongs to the session, and returns the grant of that block.
    pub(super) fn record_orphan(&self, gift: &OrphanGrant, view: &View) -> BlockGrant {
        let Orphan { block, class, first, base, marked, .. } = gift.orphan;
        self.holds(block);
        self.adopted.borrow_mut().push((block, gift.turn));
        let (address, bytes) = (block.address(&view.geometry), block.bytes(&view.geometry));
        let redundancy = view.regions[block.region as usize].redundancy();
        BlockGrant { address, bytes, base, redundancy, class, first, marked, pool_is_empty: false }
    }

    /// Tells the master which blocks the session hands on, as far as the keeper has not told it yet. Returns whether
    /// the master knows of all these blocks now.
    pub async fn hand_on(&self, gate: &SessionGate) -> bool {
        let Some(batch) = gate.offers.unacknowledged() else { return true };
        let serial = batch.serial;
        let request = batch.request(self.client);
        match self.env.ask_master(request, MASTER_DEADLINE.max(self.node_deadline)).await {
            Ok(MasterReply::Done | MasterReply::Refused { .. }) => {
                gate.offers.handed_on(serial);
                true
            }
            _ => false,
        }
    }

    pub(super) async fn take_orphan(
        &self,
        class: Option<SizeClass>,
        redundancy: Redundancy,
        full: bool,
        view: &View,
    ) -> Option<OrphanGrant> {
        if let Some(left) = self.without_master.get().checked_sub(1) {
            self.without_master.set(left);
            return None;
        }
        let client = self.client;
        let view = view.number;
        let adopted = self.adopted.borrow().clone();
        let told = adopted.clone();
        let turn = self.taking.get();
        self.taking.set(turn + 1);
        let request =
            MasterRequest::TakeOrphan { client, turn, adopted, class, redundancy, full, view };
        let deadline = MASTER_DEADLINE.min(self.node_deadline);
        match self.env.ask_master(request, deadline).await {
            Ok(MasterReply::Orphan { orphan, owner_lives }) => {
                self.adopted.borrow_mut().retain(|block| !told.contains(block));
                let orphan = orphan.filter(|l| class.is_none_or(|class| l.class == class));
                orphan.map(|orphan| OrphanGrant { turn, orphan, owner_lives })
            }
            Ok(_) => None,
            // Without the master's answer, the session gets its blocks from the memory nodes for a while.
            Err(_) => {
                self.without_master.set(BLOCKS_WITHOUT_MASTER);
                self.exhausted.set(false);
                None
            }
        }
    }

    /// Records that blocks were handed on, so that they do not belong to this session any more.
    pub fn forget(&self, blocks: &[BlockId]) {
        self.adopted.borrow_mut().retain(|(block, _)| !blocks.contains(block));
        self.held.borrow_mut().retain(|block| !blocks.contains(block));
        self.handed_on.borrow_mut().extend(blocks);
    }

    /// Converts the remainders of this session's blocks into records of orphaned blocks.
    pub fn give_up(&self, rests: Vec<BlockRemainder>, view: &View) -> Vec<Orphan> {
        let orphan = |BlockRemainder { block, bytes, base, class, first, marked }| {
            let block = BlockId::at(block, bytes, &view.geometry)?;
            Some(Orphan { block, owner: self.client, class, first, base, marked })
        };
        rests.into_iter().filter_map(orphan).collect()
    }

    /// Takes a block over. `once` says that this is the first attempt, and that the session has not owned the block
    /// before.
    pub(super) async fn adopt(
        &self,
        gift: &OrphanGrant,
        once: bool,
        view: &View,
    ) -> Result<(), Error> {
        let OrphanGrant { orphan, owner_lives, .. } = *gift;
        if !is_valid(view, orphan.block) {
            return Err(Error::Allocation { reason: "there is no such block".into() });
        }
        let block = orphan.block;
        let from = orphan.owner;
        let region = &view.regions[block.region as usize];
        let primary = region.primary().node;
        let request = BlockRequest::SetOwner {
            block,
            from,
            to: self.client,
            base: None,
            unless_fenced: owner_lives,
            once,
        };
        match self.ask(primary, request).await {
            Ok(NodeReply::Done) => {}
            Ok(other) => {
                // A first attempt that was refused has had no effect anywhere. After an earlier attempt, or if the
                // block was the session's own before, the refusal proves this only if it names another owner: otherwise
                // the primary was possibly restarted, or refuses, because of the previous owner, a request that it has
                // already executed.
                let is_anothers = match other {
                    NodeReply::Refused(NodeRefusal::NotOwner { owner }) => owner != self.client,
                    _ => false,
                };
                if once || is_anothers {
                    self.adopting.borrow_mut().remove(&block);
                }
                return Err(Error::Allocation { reason: format!("{primary}: {other:?}") });
            }
            Err(error) => return Err(Error::Allocation { reason: error.to_string() }),
        }
        for place in region.backups() {
            let granted = PoolGrant { block, base: None };
            self.set_owner(place.node, granted, from, owner_lives).await?;
        }
        Ok(())
    }
}
