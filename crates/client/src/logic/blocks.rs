//! The source of a session's blocks (P §4.4).
//!
//! The first source is the master, to which other sessions have handed on orphaned blocks; one of these blocks possibly
//! has the right size class. A master that does not answer delays no session for long, because the session does not ask
//! it again for some time. The second source is the pool: the session sends ALLOC to the memory nodes one after the
//! other. Each session starts with a different node, so that blocks spread. The block's primary records the session as
//! owner when it answers. Before the session uses the block, it has all backups record the owner, too, so that recovery
//! finds every block of a client on any replica. If the session crashes before that, the block holds nothing yet.
//!
//! If no node has a free block, the session asks the master to add regions. If the master has no room for any, the
//! session accepts a block that nodes have to merge from blocks with different bases, too; it can use such a block only
//! some seconds later. Memory is exhausted when there is none of these either.
//!
//! A block that cannot be recorded on all replicas is given back, on the backups first. If a node does not acknowledge
//! the return, that request can still be executed later, even if the block belongs to this session again by then: the
//! block would be free while it is used. So the session does not take such a block again before it has returned the
//! block once more and all nodes have answered. Nor does it continue with the primary, which would give the block to
//! another session while a backup possibly still names this one.
//!
//! A node that has answered a request executes no earlier request of the session any more ([`request_numbers`]).
//!
//! A block is *missed* if the tables name the session as its owner although the session does not use it, for whatever
//! reason. The session searches the tables for missed blocks when memory is short, and before it ends. So every path
//! that turns a grant down sets the flag `missed`, and a search that passes over a block leaves the flag set.

mod orphans;
mod pool;
mod request_numbers;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::rc::Rc;
use std::time::Duration;

use fusee_control::master::{MasterReply, MasterRequest, Orphan};
use fusee_control::node::{BlockId, BlockRequest, NodeReply, NodeRequest, OwnedBlock};
use fusee_control::rpc::RpcError;
use fusee_core::data::Region;
use fusee_core::error::Error;
use fusee_core::host::BlockDemand;
use fusee_core::mutant::{Mutant, removed};
use fusee_core::slab::{BlockGrant, BlockRemainder, ReturnedBlock, SlabKind};
use fusee_core::verbs::{ClientId, MnId};
use fusee_core::view::View;

use super::{Environment, SessionGate};
use pool::{PoolDemand, PoolGrant, accepted_orders};
use request_numbers::{BlockReturn, RequestNumbers};

/// Longest wait for the master's answer when a session needs a block.
const MASTER_DEADLINE: Duration = Duration::from_millis(100);
/// Pause before a memory node that had no block is asked again.
const BLOCK_RETRY: Duration = Duration::from_millis(5);
/// Pause before all memory nodes are asked again after the master has promised a region. The region comes with a newer
/// view, which ends the pause.
const REGION_PATIENCE: Duration = Duration::from_millis(50);
/// Number of requests for blocks that do not ask the master, after the master has failed to answer.
const BLOCKS_WITHOUT_MASTER: u32 = 16;
/// After this many orphaned blocks in a row, the session accepts no further orphaned block that is full (all of its
/// objects were allocated once) before it has asked the pool.
const FULL_IN_A_ROW: u32 = 4;

/// The blocks of one session, and their sources.
pub(super) struct BlockSource<E> {
    client: ClientId,
    env: Rc<E>,
    /// Longest wait for one answer of a memory node. It is short enough to ask the other nodes when one is silent.
    node_deadline: Duration,
    /// Index, in the list of members, of the memory node to ask next for a block.
    turn: Cell<usize>,
    /// Number of coming requests for blocks that do not ask the master, because it has failed to answer.
    without_master: Cell<u32>,
    turns: RequestNumbers,
    /// Blocks that the session has returned to the pool, but whose return some node has not acknowledged; with the base
    /// of each block.
    unconfirmed: RefCell<BTreeMap<BlockId, Option<u16>>>,
    /// Blocks that the session is returning to the pool.
    returning: RefCell<BTreeSet<BlockId>>,
    /// Blocks that were granted to the session, and that the session has neither given back nor handed on.
    held: RefCell<BTreeSet<BlockId>>,
    /// Blocks that the session has handed on. The block tables name this session as their owner until another session
    /// has taken the blocks over.
    handed_on: RefCell<BTreeSet<BlockId>>,
    /// Orphaned blocks that the session has begun to take over. The takeover has possibly taken effect already.
    adopting: RefCell<BTreeMap<BlockId, OrphanGrant>>,
    /// Number of running requests for blocks.
    asking: Cell<u32>,
    /// Number of running requests to the pool. The node has possibly granted such a request a block that is not in
    /// `held` yet.
    allocating: Cell<u32>,
    /// Number of running takeovers of blocks that the block tables possibly already show as this session's.
    taking_back: Cell<u32>,
    /// Blocks that the session has taken over, which the master does not know yet. With each block, the number of the
    /// request that the master answered with this block.
    adopted: RefCell<Vec<(BlockId, u64)>>,
    /// Number of requests for orphaned blocks that the session has sent to the master.
    taking: Cell<u64>,
    /// Number of orphaned blocks that the session has taken since it last asked the pool.
    full_in_a_row: Cell<u32>,
    /// Counter of requests for blocks, and of the beginnings and ends of returns of blocks. If it has changed since an
    /// answer about the owners of blocks was requested, that answer is possibly out of date.
    asked: Cell<u64>,
    /// Whether the master, when last asked for a region, had no room for one.
    refused: Cell<bool>,
    /// Whether the master has said that no session has memory that can become free.
    exhausted: Cell<bool>,
    /// Whether the master has promised a region since the session last waited for blocks.
    region_comes: Cell<bool>,
    /// The master's reason, if it last refused a region because the cluster is degraded; else `None`.
    degraded: RefCell<Option<String>>,
    /// For each kind of slab, the call for memory that a request waits for ([`MasterReply::Called`]).
    calls: RefCell<BTreeMap<SlabKind, u64>>,
    /// Whether the block tables possibly name this session as the owner of blocks of which it does not know, because an
    /// answer was lost or a grant was turned down.
    missed: Cell<bool>,
}

/// A block that the tables name as the session's, although the session did not know of it.
enum MissedBlock {
    /// A block of the pool, which the session has not used.
    OfPool(PoolGrant),
    /// An orphaned block.
    Orphan(BlockGrant),
}

/// An orphaned block that the master has given to this session: `turn` is the number of the request that the master
/// answered, and `owner_lives` is true if the block's owner has not ended.
#[derive(Clone, Copy)]
struct OrphanGrant {
    turn: u64,
    orphan: Orphan,
    owner_lives: bool,
}

/// A guard that counts a running request until the guard is dropped.
struct RunningCountGuard<'b>(&'b Cell<u32>);

impl<'b> RunningCountGuard<'b> {
    fn begin(count: &'b Cell<u32>) -> RunningCountGuard<'b> {
        count.set(count.get() + 1);
        RunningCountGuard(count)
    }
}

impl Drop for RunningCountGuard<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// A running request for a block, and whether it was answered. If the guard is dropped before the answer came, the
/// session possibly misses a grant.
struct BlockRequestGuard<'b, E: Environment>(&'b BlockSource<E>, bool);

impl<E: Environment> BlockRequestGuard<'_, E> {
    fn answered(mut self) {
        self.1 = true;
    }
}

impl<E: Environment> Drop for BlockRequestGuard<'_, E> {
    fn drop(&mut self) {
        self.0.asking.set(self.0.asking.get() - 1);
        if !self.1 {
            self.0.missed.set(true);
        }
    }
}

impl<E: Environment> BlockSource<E> {
    pub fn new(
        client: ClientId,
        env: Rc<E>,
        op_timeout: Duration,
        members: usize,
    ) -> BlockSource<E> {
        let turn = Cell::new(client.0 as usize);
        let node_deadline = op_timeout / (members as u32 + 2);
        let without_master = Cell::new(0);
        BlockSource {
            client,
            env,
            node_deadline,
            turn,
            without_master,
            turns: RequestNumbers::default(),
            unconfirmed: RefCell::default(),
            returning: RefCell::default(),
            held: RefCell::default(),
            handed_on: RefCell::default(),
            adopting: RefCell::default(),
            asking: Cell::new(0),
            allocating: Cell::new(0),
            taking_back: Cell::new(0),
            full_in_a_row: Cell::new(0),
            asked: Cell::new(0),
            refused: Cell::new(false),
            exhausted: Cell::new(false),
            region_comes: Cell::new(false),
            degraded: RefCell::default(),
            calls: RefCell::default(),
            adopted: RefCell::default(),
            taking: Cell::new(0),
            missed: Cell::new(false),
        }
    }

    pub fn client(&self) -> ClientId {
        self.client
    }

    /// Returns the deadline of a request to one memory node.
    pub fn node_deadline(&self) -> Duration {
        self.node_deadline
    }

    /// Begins a request for a block, which is counted as running until the result is dropped.
    fn begin(&self) -> BlockRequestGuard<'_, E> {
        self.asking.set(self.asking.get() + 1);
        self.asked.set(self.asked.get() + 1);
        BlockRequestGuard(self, false)
    }

    /// Returns a block for a slab that has `bytes` bytes in blocks. If the demand is
    /// [urgent](BlockDemand::is_urgent) and there is no such block, this is possibly an orphaned block of another size
    /// class. Other demands are met from the pool only, if memory nodes have better blocks than the slab's to spare.
    pub async fn grant(
        &self,
        kind: SlabKind,
        bytes: u64,
        demand: BlockDemand,
        view: &View,
    ) -> Result<BlockGrant, Error> {
        let asking = self.begin();
        let orders = accepted_orders(kind, bytes, &view.geometry);
        let wanted = PoolDemand { redundancy: kind.redundancy, orders, demand };
        let granted = if demand.is_urgent() {
            self.grant_needed(kind, wanted, view).await
        } else {
            let granted = self.allocate(wanted, view).await;
            granted.map(|granted| self.record_allocated(granted, kind, view))
        };
        asking.answered();
        granted
    }

    /// Ends the session's search for memory for a slab, and its wait for a call for memory: when memory is short again,
    /// the master starts another call. Must not be called for every granted block, because the running call has to go
    /// on if a block turns out to be useless.
    pub fn end_search(&self, kind: SlabKind) {
        self.calls.borrow_mut().remove(&kind);
    }

    /// Returns whether the last request for a block was refused because no session has memory that can become free.
    pub fn is_exhausted(&self) -> bool {
        self.exhausted.get()
    }

    async fn grant_needed(
        &self,
        kind: SlabKind,
        wanted: PoolDemand,
        view: &View,
    ) -> Result<BlockGrant, Error> {
        // Orphaned blocks are used before the pool, but a search for room for one object must not go through all of
        // them.
        let full = self.full_in_a_row.get() < FULL_IN_A_ROW;
        if let Some(left) =
            self.take_over_orphan(Some(kind.class), kind.redundancy, full, view).await
        {
            self.full_in_a_row.set(self.full_in_a_row.get() + 1);
            return Ok(left);
        }
        self.full_in_a_row.set(0);
        match self.allocate(wanted, view).await {
            Ok(granted) => Ok(self.record_allocated(granted, kind, view)),
            Err(Error::OutOfMemory) => {
                let granted = self.grant_without_pool(kind, wanted, view).await?;
                Ok(BlockGrant { pool_is_empty: true, ..granted })
            }
            Err(error) => Err(error),
        }
    }

    /// Returns a block after no member had a free one: a missed block, if there is one. Otherwise asks the master for
    /// another region, and if the master refuses, for an orphaned block of any class, which can turn out to be wholly
    /// free. If the master refused a region the last time, it is asked for an orphaned block first. A mixed block, for
    /// which a session waits some seconds, comes last.
    async fn grant_without_pool(
        &self,
        kind: SlabKind,
        wanted: PoolDemand,
        view: &View,
    ) -> Result<BlockGrant, Error> {
        match self.find_missed(view).await {
            Some(MissedBlock::OfPool(granted)) if granted.block.order < wanted.orders.least => {
                // Another slab had asked for the block.
                self.give_up_block(granted, view).await;
            }
            Some(MissedBlock::OfPool(granted)) => {
                return Ok(self.record_allocated(granted, kind, view));
            }
            Some(MissedBlock::Orphan(granted)) => return Ok(granted),
            None => {}
        }
        if self.refused.get()
            && let Some(left) = self.take_over_orphan(None, kind.redundancy, true, view).await
        {
            return Ok(left);
        }
        let asked = self.ask_for_more(kind, view).await;
        self.refused.set(asked == Err(Error::OutOfMemory));
        match asked {
            Err(Error::OutOfMemory) => {
                if let Some(left) = self.take_over_orphan(None, kind.redundancy, true, view).await {
                    return Ok(left);
                }
                // Memory is possibly left after all: an orphaned block that the master has not offered, an orphaned
                // block that another session got, or a block of this session whose grant it has not learned of.
                if self.missed.get() {
                    self.exhausted.set(false);
                }
                // A block has possibly come back to the pool after this session asked the pool, but before the master
                // asked the other sessions. And only now is a mixed block better than none.
                let wanted = match wanted.demand {
                    BlockDemand::NeededNow => wanted,
                    _ => wanted.or_mixed(),
                };
                let granted = self.allocate(wanted, view).await?;
                Ok(self.record_allocated(granted, kind, view))
            }
            Err(error) => Err(error),
            Ok(never) => match never {},
        }
    }

    /// Records that a block from the pool belongs to the session, and returns the grant of that block.
    fn record_allocated(&self, granted: PoolGrant, kind: SlabKind, view: &View) -> BlockGrant {
        let PoolGrant { block, base } = granted;
        self.holds(block);
        let (address, bytes) = (block.address(&view.geometry), block.bytes(&view.geometry));
        let region = view.regions.get(block.region as usize);
        let marked = region.map(|region| region.primary_since());
        let class = kind.class;
        let redundancy = region.map_or(kind.redundancy, |r| r.redundancy());
        let first = 0;
        BlockGrant { address, bytes, base, redundancy, class, first, marked, pool_is_empty: false }
    }

    fn holds(&self, block: BlockId) {
        self.held.borrow_mut().insert(block);
        self.handed_on.borrow_mut().remove(&block);
        self.adopting.borrow_mut().remove(&block);
    }

    /// Returns a missed block, if there is one: the tables name this session as its owner, but the answer that granted
    /// it was lost.
    async fn find_missed(&self, view: &View) -> Option<MissedBlock> {
        // If another request for a block is running, a block that the tables show is possibly the block that the other
        // request is about to get.
        let is_beside = self.asking.get() > 1 && !removed(Mutant::MissedBesideGrants);
        if !self.missed.get() || is_beside {
            return None;
        }
        self.missed.set(false);
        // The counter is read here, before the first await: a request that begins later can be granted the block that
        // this search finds.
        let asked = self.asked.get();
        self.give_back_again(view).await;
        let mut found = None;
        for member in &view.members {
            let asked = self.ask(member.node, BlockRequest::Blocks).await;
            let Ok(NodeReply::Blocks(blocks)) = asked else {
                self.missed.set(true);
                continue;
            };
            let leads = |block: &BlockId| {
                let region = view.regions.get(block.region as usize);
                // If only a newer view has the region, this view does not show the region's primary; but then no other
                // member lists the block as this session's.
                region.is_none_or(|region| region.leader() == Some(member.node))
            };
            let ours = blocks.into_iter().filter(|owned| leads(&owned.block));
            for OwnedBlock { block, base, .. } in ours.filter(|owned| self.is_missed(owned.block)) {
                let is_handed_on = self.handed_on.borrow().contains(&block);
                if found.is_none() && !is_handed_on && self.is_usable(block, view) {
                    found = Some(PoolGrant::answered(block, base));
                } else {
                    // The flag stays set, so that the block is looked for again when the obstacle is possibly gone. A
                    // block in `handed_on` can have been taken over by another session, returned to the pool, and
                    // granted to this session again without its knowledge; that shows only when the session ends.
                    self.missed.set(true);
                }
            }
        }
        let granted = found?;
        let block = granted.block;
        // The tables possibly show further missed blocks. And if another request has begun during this search, the
        // block found is possibly the block that the other request is about to get.
        self.missed.set(true);
        if self.asked.get() != asked && !removed(Mutant::MissedBesideGrants) {
            return None;
        }
        let before = self.adopting.borrow().get(&block).copied();
        let recorded = match &before {
            Some(gift) => {
                self.adopt(&OrphanGrant { owner_lives: false, ..*gift }, false, view).await
            }
            None => self.record_on_backups(granted, view).await,
        };
        if let Err(error) = recorded {
            tracing::debug!(?block, %error, "a block that nobody heard of is not recorded yet");
            return None;
        }
        Some(match before {
            Some(gift) => MissedBlock::Orphan(self.record_orphan(&gift, view)),
            None => MissedBlock::OfPool(granted),
        })
    }

    fn is_missed(&self, block: BlockId) -> bool {
        !self.held.borrow().contains(&block)
    }

    /// Returns whether this view allows the session to use a block of whose grant it had not learned.
    fn is_usable(&self, block: BlockId, view: &View) -> bool {
        is_valid(view, block)
            && !view.is_region_frozen(block.region)
            && !self.unconfirmed.borrow().contains_key(&block)
    }

    /// Gives a block of this session back to the pool. The primary is told last, because it hands the block out as soon
    /// as the block is free there.
    pub async fn free(&self, returned: ReturnedBlock, view: &View) {
        let ReturnedBlock { address, bytes, base } = returned;
        let Some(block) = BlockId::at(address, bytes, &view.geometry) else { return };
        self.give_up_block(PoolGrant { block, base: Some(base) }, view).await;
    }

    /// Gives a block of this session back to the pool.
    async fn give_up_block(&self, returned: PoolGrant, view: &View) {
        let block = returned.block;
        // The return is counted, so that a search that has asked for the owners of blocks does not trust an older
        // answer.
        self.asked.set(self.asked.get() + 1);
        self.held.borrow_mut().remove(&block);
        // The master is not told of this takeover any more, because the session has returned the block since.
        self.adopted.borrow_mut().retain(|(adopted, _)| *adopted != block);
        self.give_back(returned, view).await;
        self.asked.set(self.asked.get() + 1);
    }

    /// Prepares the end of the session: repeats all returns that were possibly not executed, and finds missed blocks.
    /// Returns `None` if a table still shows a block that the session does not know, if a newer view has come
    /// meanwhile, or if a block whose return is not acknowledged lies in a region that is being copied. A newer view
    /// matters because no operation runs, so that the keeper acknowledges the view at once: a block table was then
    /// possibly copied, before a block's owner was changed in it, to a memory node that the older view lacks.
    pub async fn settle(&self, gate: &SessionGate) -> Option<Vec<BlockRemainder>> {
        let view = &*gate.view();
        self.give_back_again(view).await;
        let mut found = Vec::new();
        while let Some(missed) = self.find_missed(view).await {
            match missed {
                MissedBlock::OfPool(granted) => self.give_up_block(granted, view).await,
                MissedBlock::Orphan(BlockGrant {
                    address,
                    bytes,
                    base,
                    class,
                    first,
                    marked,
                    ..
                }) => {
                    found.push(BlockRemainder {
                        block: address,
                        bytes,
                        base,
                        class,
                        first,
                        marked,
                    });
                }
            }
        }
        let is_settled = self.is_settled(view).await && gate.view().number == view.number;
        is_settled.then_some(found)
    }

    async fn is_settled(&self, view: &View) -> bool {
        // If the region is being copied, the node of its new replica is not asked, and that node possibly got the block
        // table before the return was executed.
        if self.unconfirmed.borrow().keys().any(|block| view.is_region_frozen(block.region)) {
            return false;
        }
        let is_clear = self.unconfirmed.borrow().is_empty() && self.adopting.borrow().is_empty();
        if is_clear && !self.missed.get() {
            return true;
        }
        for member in &view.members {
            let asked = self.ask(member.node, BlockRequest::Blocks).await;
            let Ok(NodeReply::Blocks(blocks)) = asked else { return false };
            // Tables on members that hold no replica of the region any more do not count: they are possibly outdated.
            let is_there = |block: &BlockId| {
                let region = view.regions.get(block.region as usize);
                region.is_none_or(|r| r.lies_on(member.node))
            };
            let held = self.held.borrow();
            if blocks.iter().any(|o| is_there(&o.block) && !held.contains(&o.block)) {
                return false;
            }
        }
        true
    }

    /// Asks the master to add regions, because no member has a free block. A newer view will show them. If the master
    /// has no room for a region, memory is exhausted.
    async fn ask_for_more(&self, kind: SlabKind, view: &View) -> Result<Infallible, Error> {
        let call = self.calls.borrow().get(&kind).copied().unwrap_or(0);
        let client = self.client;
        let view = view.number;
        let redundancy = kind.redundancy;
        let request = MasterRequest::MoreRoom { client, view, redundancy, call };
        self.exhausted.set(false);
        self.degraded.replace(None);
        match self.env.ask_master(request, MASTER_DEADLINE.min(self.node_deadline)).await {
            Ok(
                reply @ (MasterReply::Refused { .. }
                | MasterReply::Exhausted
                | MasterReply::Degraded { .. }),
            ) => {
                tracing::debug!(?reply, "no region is added");
                self.exhausted.set(reply == MasterReply::Exhausted);
                if let MasterReply::Degraded { reason } = reply {
                    self.degraded.replace(Some(reason));
                }
                self.calls.borrow_mut().remove(&kind);
                self.without_master.set(0);
                Err(Error::OutOfMemory)
            }
            Ok(MasterReply::Called { call }) => {
                self.calls.borrow_mut().insert(kind, call);
                Err(Error::Allocation { reason: "others may hand on memory".into() })
            }
            Ok(_) => {
                self.calls.borrow_mut().remove(&kind);
                self.region_comes.set(true);
                Err(Error::Allocation { reason: "a new region has not come yet".into() })
            }
            Err(error) => {
                // The next answer possibly comes from another master, which does not know this master's calls.
                self.calls.borrow_mut().remove(&kind);
                Err(Error::Allocation { reason: format!("the master: {error}") })
            }
        }
    }

    /// Returns the pause before memory nodes are asked again. The first pause after the master has promised a region is
    /// longer.
    pub fn patience(&self) -> Duration {
        if self.region_comes.take() { REGION_PATIENCE } else { BLOCK_RETRY }
    }

    /// Returns the master's reason, if the last request found no block because the cluster is degraded.
    pub fn degraded(&self) -> Option<String> {
        self.degraded.borrow().clone()
    }

    /// Returns whether the last request for a block of this slab ended with a call for memory that is still running.
    pub fn awaits_call(&self, kind: SlabKind) -> bool {
        self.calls.borrow().contains_key(&kind)
    }

    /// Records a block as free on one node after the other, until one does not answer. The primary comes last, because
    /// it hands the block out as soon as the block is free there.
    async fn give_back(&self, returned: PoolGrant, view: &View) {
        let places = view.regions[returned.block.region as usize].places().iter().rev();
        let nodes: Vec<MnId> = places.map(|place| place.node).collect();
        self.return_to(&nodes, returned).await;
    }

    /// Repeats the return of each block that some node has not acknowledged.
    async fn give_back_again(&self, view: &View) {
        let is_due = |block: &BlockId| {
            let is_under_way = self.returning.borrow().contains(block);
            is_valid(view, *block) && !view.is_region_frozen(block.region) && !is_under_way
        };
        let due: Vec<PoolGrant> = {
            let unconfirmed = self.unconfirmed.borrow();
            let due = unconfirmed.iter().filter(|(block, _)| is_due(block));
            due.map(|(block, base)| PoolGrant { block: *block, base: *base }).collect()
        };
        for returned in due {
            self.give_back(returned, view).await;
        }
    }

    async fn return_to(&self, nodes: &[MnId], returned: PoolGrant) {
        let PoolGrant { block, base } = returned;
        // The block is recorded before anything is sent, because the caller's future can be dropped at any await.
        self.unconfirmed.borrow_mut().insert(block, base);
        let returning = BlockReturn::begin(&self.returning, &self.missed, block);
        for node in nodes {
            let from = self.client;
            let to = ClientId::NOBODY;
            let request =
                BlockRequest::SetOwner { block, from, to, base, unless_fenced: false, once: false };
            match self.ask(*node, request).await {
                Ok(NodeReply::Done) => {}
                Ok(other) => tracing::debug!(?block, ?other, "a block is not given back"),
                Err(error) => {
                    tracing::debug!(?block, %error, "a block is not given back");
                    return;
                }
            }
        }
        self.unconfirmed.borrow_mut().remove(&block);
        returning.acknowledged();
    }

    async fn record_on_backups(&self, granted: PoolGrant, view: &View) -> Result<(), Error> {
        let backups = view.regions[granted.block.region as usize].backups().iter();
        for place in backups {
            self.set_owner(place.node, granted, ClientId::NOBODY, false).await?;
        }
        Ok(())
    }

    async fn set_owner(
        &self,
        node: MnId,
        granted: PoolGrant,
        from: ClientId,
        unless_fenced: bool,
    ) -> Result<(), Error> {
        let PoolGrant { block, base } = granted;
        let to = self.client;
        let request = BlockRequest::SetOwner { block, from, to, base, unless_fenced, once: false };
        match self.ask(node, request).await {
            Ok(NodeReply::Done) => Ok(()),
            Ok(other) => Err(Error::Allocation { reason: format!("{node}: {other:?}") }),
            Err(error) => Err(Error::Allocation { reason: format!("{node}: {error}") }),
        }
    }

    async fn ask(&self, node: MnId, request: BlockRequest) -> Result<NodeReply, RpcError> {
        let turn = self.turns.begin();
        let client = self.client;
        let ended = turn.ended;
        let request = NodeRequest::InTurn { client, turn: turn.number, ended, request };
        let answer = self.env.ask_node(node, request, self.node_deadline).await;
        if answer.is_err() {
            self.env.report_unreachable(node);
        }
        answer
    }
}

fn is_valid(view: &View, block: BlockId) -> bool {
    let region = view.regions.get(block.region as usize);
    region.is_some_and(Region::is_there) && view.geometry.is_block(block.frame, block.order)
}

#[cfg(test)]
mod tests;
