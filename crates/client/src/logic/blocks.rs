//! Where a session's blocks come from (P §4.4).
//!
//! First, a block that another session handed on to the master, if there is one of the right size
//! class. A master that is away holds nobody up: for some time it is not asked again.
//! Else ALLOC: the memory nodes are asked in turn, each session starting with another one, so that
//! blocks spread. The block's primary records the owner as it answers; the session has it
//! recorded on all backups before it uses the block, so that recovery finds every block of a
//! client on any replica. Should the session crash in between, the block holds nothing yet.
//!
//! If no node has a free block, the master is asked to add regions. Only when it has no room for
//! any is it out of memory.
//!
//! A block that cannot be recorded everywhere is given back, on the backups first. If a node does not
//! acknowledge that, the request may still arrive, and would take effect even if the block were this
//! session's again by then: it would be free while it is used. So the session does not take such a
//! block again before it has given it back once more, with an answer. Nor does it go on to the
//! primary, which would give the block to others while the backup may name this session.
//!
//! Nothing takes effect behind a later answer of the same node ([`turns`]).
//!
//! A block that its node grants and the session does not use for whatever reason is *missed*: the
//! tables name the session, and it is looked for there when memory is short, and before the session
//! ends. So every path that turns a grant down notes that, and a search that passes over a block
//! leaves the note standing.

mod orphans;
mod turns;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::rc::Rc;
use std::time::Duration;

use fusee_control::master::{MasterReply, MasterRequest, Orphan};
use fusee_control::node::{
    BlockId, BlockRequest, MAX_ALLOC_REGIONS, NodeRefusal, NodeReply, NodeRequest,
};
use fusee_control::rpc::RpcError;
use fusee_core::data::{Redundancy, Region};
use fusee_core::error::Error;
use fusee_core::layout::{Address, SizeClass};
use fusee_core::mutant::{Mutant, removed};
use fusee_core::slab::{BlockGrant, Remainder, SlabKind};
use fusee_core::verbs::{ClientId, MnId};
use fusee_core::view::View;

use super::{Environment, Gate};
use turns::{Returning, Turns};

/// How long a session that needs a block waits for the master's answer before it does without.
const MASTER_DEADLINE: Duration = Duration::from_millis(100);
/// Before a memory node that did not give a block is asked again.
const BLOCK_RETRY: Duration = Duration::from_millis(5);
/// How long to wait for a new region before all are asked again: a region comes with a newer view,
/// and that ends the wait.
const REGION_PATIENCE: Duration = Duration::from_millis(50);
/// Blocks that it takes without asking a master that did not answer.
const BLOCKS_WITHOUT_MASTER: u32 = 16;
/// Blocks without room that it takes over before it takes one from the pool.
const FULL_IN_A_ROW: u32 = 4;
/// Blocks of regions that are being copied which it takes no use of, of one memory node, before it asks others.
const FROZEN_GRANTS: usize = 4;
/// How often who is to ask the pool looks whether the session still takes back what may be its own.
const TAKEN_BACK_POLL: Duration = Duration::from_micros(100);

/// The blocks of one session.
pub(super) struct BlockSource<E> {
    client: ClientId,
    env: Rc<E>,
    /// For one answer of a memory node: short enough to ask the others when one is silent.
    node_deadline: Duration,
    /// The memory node to ask next.
    turn: Cell<usize>,
    /// Blocks to take before the master is asked again.
    without_master: Cell<u32>,
    turns: Turns,
    /// Blocks that were given back without an acknowledgement from all their nodes.
    unconfirmed: RefCell<BTreeSet<BlockId>>,
    /// Those that are being given back.
    returning: RefCell<BTreeSet<BlockId>>,
    /// Blocks that were granted and not given back.
    held: RefCell<BTreeSet<BlockId>>,
    /// Blocks that were handed on: the tables name this session until somebody has taken them over.
    handed_on: RefCell<BTreeSet<BlockId>>,
    /// What it has begun to take over, and may have taken over.
    adopting: RefCell<BTreeMap<BlockId, Gift>>,
    /// Requests for blocks that run.
    asking: Cell<u32>,
    /// Those of them that ask the pool, and may be granted a block that is not held yet.
    allocating: Cell<u32>,
    /// Those that take over what may be in the tables already as this session's.
    taking_back: Cell<u32>,
    /// What it has taken over since the master heard of that last, and in answer to which request it was
    /// given that.
    adopted: RefCell<Vec<(BlockId, u64)>>,
    /// Requests to the master for what others have left, so far.
    taking: Cell<u64>,
    /// Orphaned blocks that it has taken since the last block from the pool.
    full_in_a_row: Cell<u32>,
    /// Requests for blocks so far, and blocks that were given back.
    asked: Cell<u64>,
    /// Whether the master had no more room the last time.
    refused: Cell<bool>,
    /// Whether it said that nobody has anything that may become free.
    exhausted: Cell<bool>,
    /// The master has said since the last wait that a region is to come.
    region_comes: Cell<bool>,
    /// What the cluster lacked, if that was why no region was added when it was asked for last.
    degraded: RefCell<Option<String>>,
    /// Whether the pool had no block the last time, but for DELETEs, or a DELETE got what others had left.
    lends: Cell<bool>,
    /// By class, the call for memory that the request waits for ([`MasterReply::Called`]).
    calls: RefCell<BTreeMap<SlabKind, u64>>,
    /// Whether there were requests whose answer nobody heard: there may be blocks that the tables say
    /// are this session's, and of which it does not know.
    missed: Cell<bool>,
}

/// Which block of the pool will do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ask {
    /// Any.
    Any,
    /// Also one of those that are kept back for DELETEs.
    ToDelete,
    /// One that lies beside a subtable, where memory nodes have some to spare.
    SpareBeside(u32),
}

/// What the master has given, in answer to which request, and whether its owner has not ended.
#[derive(Clone, Copy)]
struct Gift {
    turn: u64,
    orphan: Orphan,
    owner_lives: bool,
}

/// One of the requests that are counted runs.
struct Counted<'b>(&'b Cell<u32>);

impl<'b> Counted<'b> {
    fn begin(count: &'b Cell<u32>) -> Counted<'b> {
        count.set(count.get() + 1);
        Counted(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// A request for a block runs. If it is dropped, so is an answer.
struct Asking<'b, E: Environment>(&'b BlockSource<E>, bool);

impl<E: Environment> Asking<'_, E> {
    fn answered(mut self) {
        self.1 = true;
    }
}

impl<E: Environment> Drop for Asking<'_, E> {
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
            turns: Turns::default(),
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
            lends: Cell::new(false),
            calls: RefCell::default(),
            adopted: RefCell::default(),
            taking: Cell::new(0),
            missed: Cell::new(false),
        }
    }

    pub fn client(&self) -> ClientId {
        self.client
    }

    /// See [`Blocks::lends`](fusee_core::host::Blocks::lends).
    pub fn lends(&self) -> bool {
        self.lends.get()
    }

    /// A request for a block begins.
    fn begin(&self) -> Asking<'_, E> {
        self.asking.set(self.asking.get() + 1);
        self.asked.set(self.asked.get() + 1);
        Asking(self, false)
    }

    /// A block for objects of a class; if there is none, one of another class that may turn out to
    /// be free. `to_delete`: one that is kept back for DELETEs will do, and the pool does not grow for it.
    pub async fn grant(
        &self,
        kind: SlabKind,
        to_delete: bool,
        view: &View,
    ) -> Result<BlockGrant, Error> {
        let asking = self.begin();
        let granted = self.grant_of(kind, to_delete, view).await;
        asking.answered();
        granted
    }

    /// A block that lies beside a subtable, of the pool, which has some there to spare.
    pub async fn grant_beside(
        &self,
        kind: SlabKind,
        subtable: u32,
        view: &View,
    ) -> Result<BlockGrant, Error> {
        let asking = self.begin();
        let granted = self.allocate(kind.redundancy, Ask::SpareBeside(subtable), view).await;
        asking.answered();
        Ok(self.fresh(granted?, kind, view))
    }

    /// The session looks for memory for a class no longer. Who is short again later has others called upon
    /// again. Not with every block: it may be of no use, and the call goes on.
    pub fn end_search(&self, kind: SlabKind) {
        self.calls.borrow_mut().remove(&kind);
    }

    /// Whether the last request for a block was refused since nobody has anything that may become free.
    pub fn is_exhausted(&self) -> bool {
        self.exhausted.get()
    }

    async fn grant_of(
        &self,
        kind: SlabKind,
        to_delete: bool,
        view: &View,
    ) -> Result<BlockGrant, Error> {
        // What others left is used again before the pool is, but not all of it for one object.
        let full = self.full_in_a_row.get() < FULL_IN_A_ROW;
        if let Some(left) = self.go_on_with(Some(kind.class), kind.redundancy, full, view).await {
            self.full_in_a_row.set(self.full_in_a_row.get() + 1);
            self.lends.set(self.lends.get() || to_delete);
            return Ok(left);
        }
        self.full_in_a_row.set(0);
        let mut allocated = self.allocate(kind.redundancy, Ask::Any, view).await;
        // Log objects are replicated.
        let tells = kind.redundancy == Redundancy::Replicated;
        if tells && matches!(allocated, Ok(_) | Err(Error::OutOfMemory)) {
            self.lends.set(allocated.is_err());
        }
        if to_delete && allocated == Err(Error::OutOfMemory) {
            allocated = self.allocate(kind.redundancy, Ask::ToDelete, view).await;
        }
        match allocated {
            Ok(block) => Ok(self.fresh(block, kind, view)),
            Err(Error::OutOfMemory) if to_delete => {
                self.find_missed(kind, view).await.ok_or(Error::OutOfMemory)
            }
            Err(Error::OutOfMemory) => {
                let granted = self.grant_without_pool(kind, view).await?;
                Ok(BlockGrant { pool_is_empty: true, ..granted })
            }
            Err(error) => Err(error),
        }
    }

    /// No member has a free block. Any block that may turn out to be free, or another region. Where
    /// that was refused the last time, what others have handed on since comes first.
    async fn grant_without_pool(&self, kind: SlabKind, view: &View) -> Result<BlockGrant, Error> {
        if let Some(found) = self.find_missed(kind, view).await {
            return Ok(found);
        }
        if self.refused.get()
            && let Some(left) = self.go_on_with(None, kind.redundancy, true, view).await
        {
            return Ok(left);
        }
        let asked = self.ask_for_more(kind, view).await;
        self.refused.set(asked == Err(Error::OutOfMemory));
        match asked {
            Err(Error::OutOfMemory) => {
                if let Some(left) = self.go_on_with(None, kind.redundancy, true, view).await {
                    return Ok(left);
                }
                // An orphaned block that it was not told of, or did not get, or a block that it has not found:
                // there may be something after all.
                if self.missed.get() {
                    self.exhausted.set(false);
                }
                if !self.exhausted.get() {
                    return Err(Error::OutOfMemory);
                }
                // One that came back after this session had looked, and before the others were asked.
                let block = self.allocate(kind.redundancy, Ask::Any, view).await?;
                Ok(self.fresh(block, kind, view))
            }
            Err(error) => Err(error),
            Ok(never) => match never {},
        }
    }

    /// A block from the pool is the session's.
    fn fresh(&self, block: BlockId, kind: SlabKind, view: &View) -> BlockGrant {
        self.holds(block);
        let address = view.geometry.block_address(block.region, block.block);
        let region = view.regions.get(block.region as usize);
        let marked = region.map(|region| region.primary_since());
        let class = kind.class;
        let redundancy = region.map_or(kind.redundancy, |r| r.redundancy());
        BlockGrant { address, redundancy, class, first: 0, marked, pool_is_empty: false }
    }

    fn holds(&self, block: BlockId) {
        self.held.borrow_mut().insert(block);
        self.handed_on.borrow_mut().remove(&block);
        self.adopting.borrow_mut().remove(&block);
    }

    /// A block that is this session's by the tables, and of which it did not hear, if an answer was
    /// missed.
    async fn find_missed(&self, kind: SlabKind, view: &View) -> Option<BlockGrant> {
        // Another request may be about to get what is found here.
        let is_beside = self.asking.get() > 1 && !removed(Mutant::MissedBesideGrants);
        if !self.missed.get() || is_beside {
            return None;
        }
        self.missed.set(false);
        // From here on, before anything is awaited: whoever begins later may be granted what is found.
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
                // Of a region that only a newer view has, nobody but its primary lists a block of ours.
                region.is_none_or(|region| region.leader() == Some(member.node))
            };
            let ours = blocks.into_iter().map(|(block, _)| block).filter(leads);
            for block in ours.filter(|block| self.is_missed(*block)) {
                let is_handed_on = self.handed_on.borrow().contains(&block);
                if found.is_none() && !is_handed_on && self.is_usable(block, view) {
                    found = Some(block);
                } else {
                    // For the next time: what it is waiting for may be over then. What was handed on
                    // somebody may have taken over, and given back, and the session have got again
                    // without hearing of it: until it ends nobody knows.
                    self.missed.set(true);
                }
            }
        }
        let block = found?;
        // There may be more; and one that has begun meanwhile may be about to hear of this one.
        self.missed.set(true);
        if self.asked.get() != asked && !removed(Mutant::MissedBesideGrants) {
            return None;
        }
        let before = self.adopting.borrow().get(&block).copied();
        let recorded = match &before {
            Some(gift) => self.adopt(&Gift { owner_lives: false, ..*gift }, false, view).await,
            None => self.record_on_backups(block, view).await,
        };
        if let Err(error) = recorded {
            tracing::debug!(?block, %error, "a block that nobody heard of is not recorded yet");
            return None;
        }
        Some(match before {
            Some(gift) => self.left(&gift, view),
            None => self.fresh(block, kind, view),
        })
    }

    fn is_missed(&self, block: BlockId) -> bool {
        !self.held.borrow().contains(&block)
    }

    /// Whether a missed block may be taken by this view.
    fn is_usable(&self, block: BlockId, view: &View) -> bool {
        is_valid(view, block)
            && !view.is_region_frozen(block.region)
            && !self.unconfirmed.borrow().contains(&block)
    }

    /// Gives a block of this session back to the pool. The primary last: it hands the block out as
    /// soon as it is free there.
    pub async fn free(&self, block: Address, view: &View) {
        let Some((region, block)) = view.geometry.block_at(block) else { return };
        let block = BlockId { region, block };
        // Who has asked whose blocks are whose must not take an answer from before for the truth.
        self.asked.set(self.asked.get() + 1);
        self.held.borrow_mut().remove(&block);
        // If it is given to the session once more, under the same name, that is another time.
        self.adopted.borrow_mut().retain(|(adopted, _)| *adopted != block);
        self.give_back(block, view).await;
        self.asked.set(self.asked.get() + 1);
    }

    /// For a session that ends: gives back again what may not have been given back, and finds blocks of
    /// which it had not heard. `None` if some table says what the session does not know all the same, or if a newer
    /// view has come meanwhile: no operation runs, so the keeper acknowledges that view at once, and a table may be
    /// copied to a memory node that the older view does not have before an owner is changed in it.
    pub async fn settle(&self, gate: &Gate) -> Option<Vec<Remainder>> {
        let view = &*gate.view();
        self.give_back_again(view).await;
        let mut found = Vec::new();
        // Of which class it is to be nobody knows yet; its next owner may find that it is empty.
        let class = SizeClass::from_code(1).expect("the smallest class");
        let kind = SlabKind { redundancy: Redundancy::Replicated, class };
        while let Some(BlockGrant { address: block, class, first, marked, .. }) =
            self.find_missed(kind, view).await
        {
            found.push(Remainder { block, class, first, marked });
        }
        let is_settled = self.is_settled(view).await && gate.view().number == view.number;
        is_settled.then_some(found)
    }

    async fn is_settled(&self, view: &View) -> bool {
        let is_clear = self.unconfirmed.borrow().is_empty() && self.adopting.borrow().is_empty();
        if is_clear && !self.missed.get() {
            return true;
        }
        for member in &view.members {
            let asked = self.ask(member.node, BlockRequest::Blocks).await;
            let Ok(NodeReply::Blocks(blocks)) = asked else { return false };
            // Where a region was before it moved, an old table may still stand.
            let is_there = |block: &BlockId| {
                let region = view.regions.get(block.region as usize);
                region.is_none_or(|r| r.lies_on(member.node))
            };
            let held = self.held.borrow();
            if blocks.iter().any(|(block, _)| is_there(block) && !held.contains(block)) {
                return false;
            }
        }
        true
    }

    /// ALLOC at one memory node after the other, until a block is recorded on all its replicas.
    async fn allocate(
        &self,
        redundancy: Redundancy,
        which: Ask,
        view: &View,
    ) -> Result<BlockId, Error> {
        while self.taking_back.get() > 0 && !removed(Mutant::OwnOrphansTakenMeanwhile) {
            self.env.sleep(TAKEN_BACK_POLL).await;
        }
        let _ends = Counted::begin(&self.allocating);
        let members = &view.members;
        let first = self.turn.get();
        self.turn.set(first.wrapping_add(1));
        let mut last_failure = None;
        for i in 0..members.len() {
            let node = members[first.wrapping_add(i) % members.len()].node;
            // Nobody else has blocks for what belongs there.
            if matches!(redundancy, Redundancy::Copies(owner) if owner != node) {
                continue;
            }
            match self.allocate_at((node, first), redundancy, which, view).await {
                Ok(Some(block)) => return Ok(block),
                Ok(None) => {}
                Err(failure) => last_failure = Some(failure),
            }
        }
        match last_failure {
            Some(reason) => Err(Error::Allocation { reason }),
            None => Err(Error::OutOfMemory),
        }
    }

    /// ALLOC at one memory node; `None` if that has no free block. `Err` says why there is none for now.
    async fn allocate_at(
        &self,
        (node, turn): (MnId, usize),
        redundancy: Redundancy,
        which: Ask,
        view: &View,
    ) -> Result<Option<BlockId>, String> {
        let mut frozen = Vec::new();
        let copied = format!("{node}: what it has free is being copied");
        while frozen.len() <= FROZEN_GRANTS {
            let request = alloc_request(redundancy, which, (node, turn), &frozen, view);
            let Some(request) = request else { return Ok(None) };
            match self.ask(node, request).await {
                Ok(NodeReply::Allocated { block })
                    if self.unconfirmed.borrow().contains(&block) =>
                {
                    // The node had freed it, and its acknowledgement is not here yet.
                    self.missed.set(true);
                    return Err(format!("{node}: {block:?} may yet be freed"));
                }
                // More regions are frozen than one request names. The new replica's table may have been filled
                // before, and would not know of the block; nor would it hear of its return. It is found again
                // when the change is over.
                Ok(NodeReply::Allocated { block })
                    if is_frozen(view, block) && !removed(Mutant::FrozenGrantTaken) =>
                {
                    self.missed.set(true);
                    frozen.push(block.region);
                }
                Ok(NodeReply::Allocated { block }) if is_valid(view, block) => {
                    let Err(error) = self.record_on_backups(block, view).await else {
                        self.holds(block);
                        return Ok(Some(block));
                    };
                    self.give_back(block, view).await;
                    return Err(error.to_string());
                }
                Ok(NodeReply::Allocated { block }) => {
                    // Of a region that a newer view has. No backup knows of it.
                    self.return_to(&[node], block).await;
                    return Err(format!("{node}: {block:?} is not of this view"));
                }
                Ok(NodeReply::Refused(NodeRefusal::NoFreeBlock)) if frozen.is_empty() => {
                    return Ok(None);
                }
                Ok(NodeReply::Refused(NodeRefusal::NoFreeBlock)) => return Err(copied),
                Ok(other) => return Err(format!("{node}: {other:?}")),
                Err(error) => {
                    if error.may_take_effect() {
                        self.missed.set(true);
                    }
                    return Err(format!("{node}: {error}"));
                }
            }
        }
        Err(copied)
    }

    /// No member has a free block: the master is to add regions, which a newer view will show. If
    /// there is no room for any, that is the end.
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
                // Another one knows nothing of its calls.
                self.calls.borrow_mut().remove(&kind);
                Err(Error::Allocation { reason: format!("the master: {error}") })
            }
        }
    }

    /// How long to wait before memory nodes are asked again. Once for each answer of the master.
    pub fn patience(&self) -> Duration {
        if self.region_comes.take() { REGION_PATIENCE } else { BLOCK_RETRY }
    }

    /// What the cluster lacks, if that was why there was no block the last time.
    pub fn degraded(&self) -> Option<String> {
        self.degraded.borrow().clone()
    }

    /// Whether the last request for a block of a class ended with a call that is not over.
    pub fn awaits_call(&self, kind: SlabKind) -> bool {
        self.calls.borrow().contains_key(&kind)
    }

    /// Frees a block, as far as its nodes can be reached. The primary last: it hands the block out
    /// as soon as it is free there.
    async fn give_back(&self, block: BlockId, view: &View) {
        let places = view.regions[block.region as usize].places().iter().rev();
        let nodes: Vec<MnId> = places.map(|place| place.node).collect();
        self.return_to(&nodes, block).await;
    }

    /// Gives back once more what some node has not acknowledged.
    async fn give_back_again(&self, view: &View) {
        let is_due = |block: &BlockId| {
            let is_under_way = self.returning.borrow().contains(block);
            is_valid(view, *block) && !view.is_region_frozen(block.region) && !is_under_way
        };
        let due: Vec<BlockId> = self.unconfirmed.borrow().iter().copied().filter(is_due).collect();
        for block in due {
            self.give_back(block, view).await;
        }
    }

    async fn return_to(&self, nodes: &[MnId], block: BlockId) {
        // Before anything is sent: who waits for the block may tire of it at any await.
        self.unconfirmed.borrow_mut().insert(block);
        let returning = Returning::begin(&self.returning, &self.missed, block);
        for node in nodes {
            let from = self.client;
            let to = ClientId::NOBODY;
            let request =
                BlockRequest::SetOwner { block, from, to, unless_fenced: false, once: false };
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

    async fn record_on_backups(&self, block: BlockId, view: &View) -> Result<(), Error> {
        let backups = view.regions[block.region as usize].backups().iter();
        for place in backups {
            self.set_owner(place.node, block, ClientId::NOBODY, false).await?;
        }
        Ok(())
    }

    async fn set_owner(
        &self,
        node: MnId,
        block: BlockId,
        from: ClientId,
        unless_fenced: bool,
    ) -> Result<(), Error> {
        let request =
            BlockRequest::SetOwner { block, from, to: self.client, unless_fenced, once: false };
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

/// ALLOC for a memory node, if that may have such a block. Where there are too many regions to name them all, in each
/// turn others are; of those that are being copied first the ones of which it has just given a block.
fn alloc_request(
    redundancy: Redundancy,
    which: Ask,
    (node, turn): (MnId, usize),
    given: &[u32],
    view: &View,
) -> Option<BlockRequest> {
    let change = view.change.as_ref();
    let regions = change.into_iter().flat_map(|change| &change.regions).map(|r| r.region);
    // By an older view or a newer one some may be led by others than this view says.
    let lies_there =
        |region: &u32| view.regions.get(*region as usize).is_some_and(|r| r.lies_on(node));
    let (here, elsewhere): (Vec<u32>, Vec<u32>) = regions.partition(lies_there);
    let others = [here, elsewhere].map(|regions| in_turn(regions, turn)).concat();
    let others = others.into_iter().filter(|region| !given.contains(region));
    let frozen: Vec<u32> = given.iter().copied().chain(others).take(MAX_ALLOC_REGIONS).collect();
    let mut spare_of = Vec::new();
    if let Ask::SpareBeside(subtable) = which {
        let subtable = view.subtables.get(subtable as usize)?;
        let is_asked_for = |(number, region): &(u32, &Region)| {
            let is_there = region.is_there() && region.leader() == Some(node);
            let fits = region.redundancy() == redundancy && region.lies_beside(subtable);
            is_there && fits && !view.is_region_frozen(*number)
        };
        let asked_for = (0..).zip(&view.regions).filter(is_asked_for);
        spare_of = in_turn(asked_for.map(|(number, _)| number).collect(), turn);
        if spare_of.is_empty() {
            return None;
        }
        spare_of.truncate(MAX_ALLOC_REGIONS);
    }
    let to_delete = which == Ask::ToDelete;
    Some(BlockRequest::Alloc { redundancy, to_delete, frozen, spare_of })
}

/// The same, others first in each turn.
fn in_turn(mut regions: Vec<u32>, turn: usize) -> Vec<u32> {
    let first = turn.wrapping_mul(MAX_ALLOC_REGIONS).checked_rem(regions.len()).unwrap_or(0);
    regions.rotate_left(first);
    regions
}

fn is_frozen(view: &View, block: BlockId) -> bool {
    is_valid(view, block) && view.is_region_frozen(block.region)
}

fn is_valid(view: &View, block: BlockId) -> bool {
    let region = view.regions.get(block.region as usize);
    region.is_some_and(Region::is_there) && block.block < view.geometry.blocks_per_region()
}

#[cfg(test)]
mod tests;
