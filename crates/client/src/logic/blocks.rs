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
//! A block that cannot be recorded everywhere is given back. If a node does not acknowledge that,
//! the request may still arrive, at any time, and would take effect even if the block were this
//! session's again by then: it would be free while it is used. So the session never takes such a
//! block again. (For other clients the request comes to nothing: it names its sender as the owner.)

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use fusee_control::master::{Leftover, MasterReply, MasterRequest};
use fusee_control::node::{BlockId, MAX_FROZEN_REGIONS, NodeRefusal, NodeReply, NodeRequest};
use fusee_control::rpc::RpcError;
use fusee_core::error::Error;
use fusee_core::host::BlockGrant;
use fusee_core::layout::{Address, SizeClass};
use fusee_core::slab::Rest;
use fusee_core::verbs::{ClientId, MnId};
use fusee_core::view::View;

use super::Environment;

/// How long a session that needs a block waits for the master's answer before it does without.
const MASTER_DEADLINE: Duration = Duration::from_millis(100);
/// How long to wait for a new region before all are asked again: a region comes with a newer view,
/// and that ends the wait.
const REGION_PATIENCE: Duration = Duration::from_millis(50);
/// Blocks that it takes without asking a master that did not answer.
const BLOCKS_WITHOUT_MASTER: u32 = 16;

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
    /// Blocks that were given back without an acknowledgement from all their nodes.
    in_doubt: RefCell<BTreeSet<BlockId>>,
    /// Blocks that were granted and not given back.
    held: RefCell<BTreeSet<BlockId>>,
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
        let (in_doubt, held) = (RefCell::default(), RefCell::default());
        BlockSource { client, env, node_deadline, turn, without_master, in_doubt, held }
    }

    pub fn client(&self) -> ClientId {
        self.client
    }

    /// A block for objects of a class; if there is none, one of another class that may turn out to
    /// be free. `to_delete`: one that is kept back for DELETEs will do, and the pool does not grow for it.
    pub async fn grant(
        &self,
        class: SizeClass,
        to_delete: bool,
        view: &View,
    ) -> Result<BlockGrant, Error> {
        if let Some(left) = self.go_on_with(Some(class), view).await {
            return Ok(left);
        }
        match self.allocate(to_delete, view).await {
            Ok(block) => {
                self.held.borrow_mut().insert(block);
                let address = view.geometry.block_address(block.region, block.block);
                let region = view.regions.get(block.region as usize);
                let marked = region.map(|region| region.led_since);
                Ok(BlockGrant { address, class, first: 0, marked })
            }
            Err(Error::OutOfMemory) if !to_delete => {
                self.go_on_with(None, view).await.ok_or(Error::OutOfMemory)
            }
            Err(error) => Err(error),
        }
    }

    async fn go_on_with(&self, class: Option<SizeClass>, view: &View) -> Option<BlockGrant> {
        let (leftover, owner_lives) = self.take_leftover(class, view).await?;
        let Leftover { block, class, first, marked, .. } = leftover;
        // The master may not know that somebody gave it back to the pool, before this session got it
        // from there.
        if self.held.borrow().contains(&block) {
            return None;
        }
        match self.adopt(&leftover, owner_lives, view).await {
            Ok(()) => {
                self.held.borrow_mut().insert(block);
                let address = view.geometry.block_address(block.region, block.block);
                Some(BlockGrant { address, class, first, marked })
            }
            Err(error) => {
                tracing::warn!(?leftover, %error, "a handed-on block is lost");
                None
            }
        }
    }

    /// Gives a block of this session back to the pool. The primary last: it hands the block out as
    /// soon as it is free there.
    pub async fn free(&self, block: Address, view: &View) {
        let Some((region, block)) = view.geometry.block_at(block) else { return };
        let block = BlockId { region, block };
        self.held.borrow_mut().remove(&block);
        self.give_back(block, view).await;
    }

    /// The block, and whether its owner has not ended.
    async fn take_leftover(
        &self,
        class: Option<SizeClass>,
        view: &View,
    ) -> Option<(Leftover, bool)> {
        if let Some(left) = self.without_master.get().checked_sub(1) {
            self.without_master.set(left);
            return None;
        }
        let (client, view) = (self.client, view.number);
        let request = MasterRequest::TakeLeftover { client, class, view };
        let deadline = MASTER_DEADLINE.min(self.node_deadline);
        match self.env.ask_master(request, deadline).await {
            Ok(MasterReply::Leftover { leftover, owner_lives }) => {
                let leftover = leftover.filter(|l| class.is_none_or(|class| l.class == class));
                leftover.map(|leftover| (leftover, owner_lives))
            }
            Ok(_) => None,
            // Memory nodes have blocks without the master's help.
            Err(_) => {
                self.without_master.set(BLOCKS_WITHOUT_MASTER);
                None
            }
        }
    }

    /// Blocks are not this session's any more.
    pub fn forget(&self, blocks: &[BlockId]) {
        self.held.borrow_mut().retain(|block| !blocks.contains(block));
    }

    /// What is left of this session's blocks, for others.
    pub fn give_up(&self, rests: Vec<Rest>, view: &View) -> Vec<Leftover> {
        let leftover = |Rest { block, class, first, marked }| {
            let (region, block) = view.geometry.block_at(block)?;
            let block = BlockId { region, block };
            Some(Leftover { block, owner: self.client, class, first, marked })
        };
        rests.into_iter().filter_map(leftover).collect()
    }

    /// ALLOC at one memory node after the other, until a block is recorded on all its replicas.
    async fn allocate(&self, to_delete: bool, view: &View) -> Result<BlockId, Error> {
        let members = &view.members;
        let first = self.turn.get();
        self.turn.set(first.wrapping_add(1));
        let mut last_failure = None;
        for i in 0..members.len() {
            let member = &members[first.wrapping_add(i) % members.len()];
            match self.ask(member.node, self.alloc_request(to_delete, view)).await {
                Ok(NodeReply::Allocated { block }) if self.in_doubt.borrow().contains(&block) => {
                    last_failure = Some(format!("{}: {block:?} may yet be freed", member.node));
                }
                Ok(NodeReply::Allocated { block }) if is_valid(view, block) => {
                    match self.record_on_backups(block, view).await {
                        Ok(()) => return Ok(block),
                        Err(error) => last_failure = Some(error.to_string()),
                    }
                    self.give_back(block, view).await;
                }
                Ok(NodeReply::Refused(NodeRefusal::NoFreeBlock)) => {}
                Ok(other) => last_failure = Some(format!("{}: {other:?}", member.node)),
                Err(error) => last_failure = Some(format!("{}: {error}", member.node)),
            }
        }
        match last_failure {
            Some(reason) => Err(Error::Allocation { reason }),
            None if to_delete => Err(Error::OutOfMemory),
            None => self.ask_for_more(view).await,
        }
    }

    /// No member has a free block: the master is to add regions, which a newer view will show. If
    /// there is no room for any, that is the end.
    async fn ask_for_more(&self, view: &View) -> Result<BlockId, Error> {
        let request = MasterRequest::MoreRoom { client: self.client, view: view.number };
        match self.env.ask_master(request, MASTER_DEADLINE.min(self.node_deadline)).await {
            Ok(MasterReply::Refused { reason }) => {
                tracing::debug!(reason, "no region is added");
                Err(Error::OutOfMemory)
            }
            Ok(_) => {
                // Whoever waits for it looks for a newer view meanwhile.
                self.env.sleep(REGION_PATIENCE).await;
                Err(Error::Allocation { reason: "a new region has not come yet".into() })
            }
            Err(error) => Err(Error::Allocation { reason: format!("the master: {error}") }),
        }
    }

    fn alloc_request(&self, to_delete: bool, view: &View) -> NodeRequest {
        let change = view.change.as_ref();
        let regions = change.into_iter().flat_map(|change| &change.regions);
        let frozen = regions.map(|r| r.region).take(MAX_FROZEN_REGIONS).collect();
        NodeRequest::Alloc { client: self.client, to_delete, frozen }
    }

    /// Frees a block, as far as its nodes can be reached. The primary last: it hands the block out
    /// as soon as it is free there.
    async fn give_back(&self, block: BlockId, view: &View) {
        // Before anything is sent: who waits for the block may tire of it at any await.
        self.in_doubt.borrow_mut().insert(block);
        let mut acknowledged = true;
        for place in view.regions[block.region as usize].places.iter().rev() {
            let (from, to) = (self.client, ClientId::NOBODY);
            let request = NodeRequest::SetOwner { block, from, to, unless_fenced: false };
            if let Err(error) = self.ask(place.node, request).await {
                tracing::debug!(?block, %error, "a block is not given back");
                acknowledged &= !error.may_take_effect();
            }
        }
        if acknowledged {
            self.in_doubt.borrow_mut().remove(&block);
        }
    }

    async fn record_on_backups(&self, block: BlockId, view: &View) -> Result<(), Error> {
        let backups = view.regions[block.region as usize].places.iter().skip(1);
        for place in backups {
            self.set_owner(place.node, block, ClientId::NOBODY, false).await?;
        }
        Ok(())
    }

    async fn adopt(
        &self,
        leftover: &Leftover,
        owner_lives: bool,
        view: &View,
    ) -> Result<(), Error> {
        if !is_valid(view, leftover.block) {
            return Err(Error::Allocation { reason: "there is no such block".into() });
        }
        for place in &view.regions[leftover.block.region as usize].places {
            self.set_owner(place.node, leftover.block, leftover.owner, owner_lives).await?;
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
        let request = NodeRequest::SetOwner { block, from, to: self.client, unless_fenced };
        match self.ask(node, request).await {
            Ok(NodeReply::Done) => Ok(()),
            Ok(other) => Err(Error::Allocation { reason: format!("{node}: {other:?}") }),
            Err(error) => Err(Error::Allocation { reason: format!("{node}: {error}") }),
        }
    }

    async fn ask(&self, node: MnId, request: NodeRequest) -> Result<NodeReply, RpcError> {
        let answer = self.env.ask_node(node, request, self.node_deadline).await;
        if answer.is_err() {
            self.env.report_unreachable(node);
        }
        answer
    }
}

fn is_valid(view: &View, block: BlockId) -> bool {
    (block.region as usize) < view.regions.len() && block.block < view.geometry.blocks_per_region()
}

#[cfg(test)]
mod tests {
    use std::future::{Future, ready};
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use fusee_core::view::{Geometry, Member, Place, Region, Scheme};

    use super::*;

    /// A node 0 whose only free block is always the same, and a node 1 that is silent for a while.
    struct Surroundings {
        silent: Cell<bool>,
        /// It does not even refuse to answer.
        hangs: Cell<bool>,
        owner: Cell<ClientId>,
        has_master: Cell<bool>,
        asked_master: Cell<u32>,
    }

    impl Surroundings {
        fn new() -> Rc<Surroundings> {
            Rc::new(Surroundings {
                silent: Cell::new(true),
                hangs: Cell::new(false),
                owner: Cell::new(ClientId::NOBODY),
                has_master: Cell::new(true),
                asked_master: Cell::new(0),
            })
        }
    }

    impl Environment for Surroundings {
        fn sleep(&self, _: Duration) -> impl Future<Output = ()> {
            ready(())
        }

        fn yield_now(&self) -> impl Future<Output = ()> {
            ready(())
        }

        fn spin(&self, _: u64) {}

        async fn ask_node(
            &self,
            node: MnId,
            request: NodeRequest,
            _: Duration,
        ) -> Result<NodeReply, RpcError> {
            let first = node == MnId(0);
            match request {
                NodeRequest::Alloc { client, .. } if first => {
                    if self.owner.replace(client) != ClientId::NOBODY {
                        return Ok(NodeReply::Refused(NodeRefusal::NoFreeBlock));
                    }
                    Ok(NodeReply::Allocated { block: BlockId { region: 0, block: 0 } })
                }
                NodeRequest::Alloc { .. } => Ok(NodeReply::Refused(NodeRefusal::NoFreeBlock)),
                NodeRequest::SetOwner { to, .. } if first => {
                    self.owner.set(to);
                    Ok(NodeReply::Done)
                }
                NodeRequest::SetOwner { to, .. } if self.hangs.get() && to == ClientId::NOBODY => {
                    std::future::pending().await
                }
                NodeRequest::SetOwner { .. } if self.silent.get() => {
                    Err(RpcError::TimedOut { addr: "node 1".into() })
                }
                NodeRequest::SetOwner { .. } => Ok(NodeReply::Done),
                other => panic!("{other:?}"),
            }
        }

        async fn ask_master(&self, _: MasterRequest, _: Duration) -> Result<MasterReply, RpcError> {
            self.asked_master.set(self.asked_master.get() + 1);
            match self.has_master.get() {
                true => Ok(MasterReply::Leftover { leftover: None, owner_lives: false }),
                false => Err(RpcError::TimedOut { addr: "master".into() }),
            }
        }

        fn adopt(&self, _: &View) {}

        fn report_unreachable(&self, _: MnId) {}
    }

    fn view() -> View {
        let member = |node| Member {
            node,
            identity: 0,
            control: String::new(),
            tcp: None,
            shm: None,
            pool_bytes: 1 << 20,
        };
        let place = |node| Place { node, offset: 0 };
        View {
            number: 1,
            cluster: 1,
            geometry: Geometry {
                region_bytes: 1 << 17,
                block_bytes: 1 << 12,
                ..Default::default()
            },
            members: vec![member(MnId(0)), member(MnId(1))],
            regions: vec![Region {
                scheme: Scheme::Replicated,
                places: vec![place(MnId(0)), place(MnId(1))],
                led_since: 1,
            }],
            directory: Vec::new(),
            subtables: Vec::new(),
            change: None,
        }
    }

    fn at_once<T>(future: impl Future<Output = T>) -> T {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => result,
            Poll::Pending => panic!("nothing here waits"),
        }
    }

    fn source_of(client: u32, env: &Rc<Surroundings>) -> BlockSource<Surroundings> {
        BlockSource::new(ClientId(client), env.clone(), Duration::from_secs(1), 2)
    }

    #[test]
    fn a_block_whose_return_is_not_acknowledged_is_not_taken_again() {
        let nobody = ClientId::NOBODY;
        let env = Surroundings::new();
        let source = source_of(7, &env);
        let class = SizeClass::from_code(1).unwrap();
        assert!(matches!(
            at_once(source.grant(class, false, &view())),
            Err(Error::Allocation { .. })
        ));
        assert_eq!(env.owner.get(), nobody, "node 0 has it back, node 1 may hear of it later");
        env.silent.set(false);
        assert!(matches!(
            at_once(source.grant(class, false, &view())),
            Err(Error::Allocation { .. })
        ));

        // Another session may have it: the late request names client 7 as the owner.
        env.owner.set(nobody);
        at_once(source_of(8, &env).grant(class, false, &view())).unwrap();
    }

    #[test]
    fn nor_is_one_whose_return_nobody_waited_for() {
        let env = Surroundings::new();
        let source = source_of(7, &env);
        let class = SizeClass::from_code(1).unwrap();
        env.hangs.set(true);
        let view = view();
        {
            let mut grant = pin!(source.grant(class, false, &view));
            let mut context = Context::from_waker(Waker::noop());
            assert!(grant.as_mut().poll(&mut context).is_pending(), "it is being given back");
        }
        env.hangs.set(false);
        env.silent.set(false);
        env.owner.set(ClientId::NOBODY);
        assert!(matches!(
            at_once(source.grant(class, false, &view)),
            Err(Error::Allocation { .. })
        ));
    }

    #[test]
    fn a_master_that_is_away_is_not_asked_for_every_block() {
        let env = Surroundings::new();
        env.silent.set(false);
        env.has_master.set(false);
        let source = source_of(7, &env);
        let class = SizeClass::from_code(1).unwrap();
        let grant = || {
            env.owner.set(ClientId::NOBODY);
            at_once(source.grant(class, false, &view())).unwrap();
        };
        (0..=BLOCKS_WITHOUT_MASTER).for_each(|_| grant());
        assert_eq!(env.asked_master.get(), 1);
        env.has_master.set(true);
        (0..3).for_each(|_| grant());
        assert_eq!(env.asked_master.get(), 4, "it is back");
    }
}
