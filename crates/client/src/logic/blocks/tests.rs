//! Tests of the source of blocks, when requests and answers are lost.

use std::future::{Future, poll_fn, ready};
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use fusee_control::node::{MAX_ALLOC_REGIONS, NodeRefusal};
use fusee_core::data::{Redundancy, Region};
use fusee_core::host::{BlockAnswer, BlockDemand, Blocks as _};
use fusee_core::layout::SizeClass;
use fusee_core::race::HashKey;
use fusee_core::verbs::ClusterId;
use fusee_core::view::change::{ChangeStage, RegionChange, ViewChange};
use fusee_core::view::{Geometry, Member, PoolPlace};

use super::*;
use crate::logic::SessionHost;

/// The bytes of the blocks that a slab has already: it wants the largest blocks.
const HELD: u64 = 1 << 13;
/// The base of all blocks.
const BASE: u16 = 5;

/// An environment with two memory nodes: node 0 has one free block, always the same; node 1 is silent for a while.
struct BlockTestEnvironment {
    now: Cell<Duration>,
    silent: Cell<bool>,
    /// Whether node 1 never answers a request to return a block.
    hangs: Cell<bool>,
    owner: Cell<ClientId>,
    /// Whether node 0's answer to an ALLOC is delayed.
    mute: Cell<bool>,
    /// Whether node 0's answer to a change of a block's owner is delayed.
    slow: Cell<bool>,
    /// Whether node 0's answer to a change of a block's owner is lost.
    forgets: Cell<bool>,
    has_master: Cell<bool>,
    asked_master: Cell<u32>,
    /// Whether the nodes have only one block, a mixed one.
    mixed: Cell<bool>,
    /// Whether the master says that no session has memory that can become free; and whether the master does not answer
    /// requests for orphaned blocks.
    exhausted: Cell<bool>,
    hides_orphans: Cell<bool>,
    /// Whether node 0 has been restarted, and knows no block.
    restarted: Cell<bool>,
    /// The orphaned block that the master offers next.
    orphan: Cell<Option<Orphan>>,
    /// Blocks that node 0 grants before its free block, the last one first; and the frozen regions that each ALLOC has
    /// named.
    grants: RefCell<Vec<BlockId>>,
    told: RefCell<Vec<Vec<u32>>>,
}

impl BlockTestEnvironment {
    fn new() -> Rc<BlockTestEnvironment> {
        Rc::new(BlockTestEnvironment {
            now: Cell::default(),
            silent: Cell::new(true),
            hangs: Cell::new(false),
            owner: Cell::new(ClientId::NOBODY),
            mute: Cell::new(false),
            slow: Cell::new(false),
            forgets: Cell::new(false),
            has_master: Cell::new(true),
            asked_master: Cell::new(0),
            exhausted: Cell::new(false),
            mixed: Cell::new(false),
            hides_orphans: Cell::new(false),
            restarted: Cell::new(false),
            orphan: Cell::new(None),
            grants: RefCell::default(),
            told: RefCell::default(),
        })
    }
}

impl BlockSource<BlockTestEnvironment> {
    /// Asks for a block for a slab that has no memory.
    async fn get(&self, slab: SlabKind, view: &View) -> Result<BlockGrant, Error> {
        self.grant(slab, HELD, BlockDemand::Needed, view).await
    }
}

impl Environment for BlockTestEnvironment {
    fn now(&self) -> Duration {
        self.now.get()
    }

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
        let NodeRequest::InTurn { client, request, .. } = request else { panic!("{request:?}") };
        let request = request.of(client);
        match &request {
            NodeRequest::SetOwner { from, to, base, .. } => {
                let is_noted = [from, to].contains(&&ClientId::NOBODY);
                let expected = (!self.mixed.get()).then_some(BASE);
                assert!(!is_noted || *base == expected, "{request:?}");
            }
            NodeRequest::Alloc { orders, .. } => {
                assert!((orders.least..=orders.most).contains(&geometry().max_order()));
            }
            _ => {}
        }
        match request {
            NodeRequest::Alloc { frozen, .. } if first && !self.grants.borrow().is_empty() => {
                assert!(frozen.len() <= MAX_ALLOC_REGIONS);
                self.told.borrow_mut().push(frozen);
                let block = self.grants.borrow_mut().pop().expect("just seen");
                Ok(NodeReply::Allocated { block, base: Some(BASE) })
            }
            NodeRequest::Alloc { orders, .. } if self.mixed.get() && !orders.mixed => {
                Ok(NodeReply::Refused(NodeRefusal::NoFreeBlock))
            }
            NodeRequest::Alloc { client, .. } if first => {
                if self.owner.get() != ClientId::NOBODY {
                    return Ok(NodeReply::Refused(NodeRefusal::NoFreeBlock));
                }
                self.owner.set(client);
                poll_fn(|_| if self.mute.get() { Poll::Pending } else { Poll::Ready(()) }).await;
                let base = (!self.mixed.get()).then_some(BASE);
                Ok(NodeReply::Allocated { block: block(0, 0), base })
            }
            NodeRequest::Alloc { .. } => Ok(NodeReply::Refused(NodeRefusal::NoFreeBlock)),
            NodeRequest::SetOwner { block, .. } if first && self.restarted.get() => {
                Ok(NodeReply::Refused(NodeRefusal::UnknownBlock { block }))
            }
            NodeRequest::SetOwner { to, once: true, .. } if first && self.owner.get() == to => {
                Ok(NodeReply::Refused(NodeRefusal::NotOwner { owner: to }))
            }
            NodeRequest::SetOwner { to, .. } if first => {
                self.owner.set(to);
                poll_fn(|_| if self.slow.get() { Poll::Pending } else { Poll::Ready(()) }).await;
                if self.forgets.get() {
                    Err(RpcError::TimedOut { addr: "node 0".into() })
                } else {
                    Ok(NodeReply::Done)
                }
            }
            NodeRequest::SetOwner { to, .. } if self.hangs.get() && to == ClientId::NOBODY => {
                std::future::pending().await
            }
            NodeRequest::SetOwner { .. } if self.silent.get() => {
                Err(RpcError::TimedOut { addr: "node 1".into() })
            }
            NodeRequest::SetOwner { .. } => Ok(NodeReply::Done),
            NodeRequest::BlocksOf { clients } => {
                let is_asked = first && clients == [self.owner.get()];
                let owner = self.owner.get();
                let owned = OwnedBlock { block: block(0, 0), owner, base: Some(BASE) };
                Ok(NodeReply::Blocks(is_asked.then_some(owned).into_iter().collect()))
            }
            other => panic!("{other:?}"),
        }
    }

    async fn ask_master(
        &self,
        request: MasterRequest,
        _: Duration,
    ) -> Result<MasterReply, RpcError> {
        self.asked_master.set(self.asked_master.get() + 1);
        let takes = matches!(request, MasterRequest::TakeOrphan { .. });
        match self.has_master.get() && !(takes && self.hides_orphans.get()) {
            true if self.exhausted.get() && !takes => Ok(MasterReply::Exhausted),
            true if matches!(request, MasterRequest::MoreRoom { .. }) => {
                Ok(MasterReply::Refused { reason: "there is no room".into() })
            }
            true => {
                let orphan = if takes { self.orphan.take() } else { None };
                Ok(MasterReply::Orphan { orphan, owner_lives: false })
            }
            false => Err(RpcError::TimedOut { addr: "master".into() }),
        }
    }

    fn adopt(&self, _: &View) {}

    fn report_unreachable(&self, _: MnId) {}
}

fn geometry() -> Geometry {
    Geometry { region_bytes: 1 << 17, block_bytes: 1 << 13, ..Default::default() }
}

/// Returns the largest block with this number, among the largest blocks of a region.
fn block(region: u32, number: u32) -> BlockId {
    let order = geometry().max_order();
    BlockId { region, frame: number << order, order }
}

/// Returns the record of an orphaned block, the largest block 0 of region 0.
fn orphan(owner: u32, class: SizeClass, first: u32) -> Orphan {
    let owner = ClientId(owner);
    Orphan { block: block(0, 0), owner, class, first, base: Some(BASE), marked: None }
}

/// Returns a granted block as it goes back to the pool.
fn returned(granted: &BlockGrant) -> ReturnedBlock {
    let base = granted.base.expect("no block is mixed");
    ReturnedBlock { address: granted.address, bytes: granted.bytes, base }
}

fn view() -> View {
    let member = |node| Member {
        node,
        identity: 0,
        control: String::new(),
        tcp: None,
        shm: None,
        verbs: None,
        pool_bytes: 1 << 20,
    };
    let place = |node| PoolPlace { node, offset: 0 };
    View {
        number: 1,
        cluster: ClusterId::from_word(1).unwrap(),
        hash_key: HashKey::new([7; 16]),
        geometry: geometry(),
        members: vec![member(MnId(0)), member(MnId(1))],
        regions: vec![Region::replicated(vec![place(MnId(0)), place(MnId(1))], 1)],
        directory: Vec::new(),
        subtables: Vec::new(),
        change: None,
    }
}

/// Returns a view change at a stage, with these regions in its scope.
fn change_of(stage: ChangeStage, regions: Range<u32>) -> ViewChange {
    let regions = regions.map(|region| RegionChange {
        region,
        joining: None,
        leaving: None,
        renewed: false,
        adds_parity: false,
    });
    ViewChange {
        stage,
        data_lost: false,
        lost: 0,
        subtables: Vec::new(),
        regions: regions.collect(),
        lost_pairs: Vec::new(),
        new_regions: 0,
    }
}

fn gate() -> SessionGate {
    SessionGate::new(ClientId(7), Arc::new(view()), 1)
}

fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("nothing here waits"),
    }
}

fn source_of(client: u32, env: &Rc<BlockTestEnvironment>) -> BlockSource<BlockTestEnvironment> {
    BlockSource::new(ClientId(client), env.clone(), Duration::from_secs(1), 2)
}

// Promise MEM-14: Blocks are given back on backups first.
#[test]
fn a_block_whose_return_is_not_acknowledged_is_not_taken_again() {
    let env = BlockTestEnvironment::new();
    let source = source_of(7, &env);
    let slab = SlabKind::of(Redundancy::Replicated, 1, 1).unwrap();
    assert!(matches!(at_once(source.get(slab, &view())), Err(Error::Allocation { .. })));
    // The block is not free on node 0 either: node 1 possibly still names the session, and would then refuse to record
    // the next owner.
    assert_eq!(env.owner.get(), ClientId(7));
    assert_eq!(at_once(source.get(slab, &view())), Err(Error::OutOfMemory));
    assert_eq!(env.owner.get(), ClientId(7));
    env.silent.set(false);
    // The request for a block returns the block once more, now both nodes acknowledge that, and the node grants it.
    at_once(source.get(slab, &view())).expect("nothing is in doubt any more");
}

#[test]
fn nor_is_one_whose_return_nobody_waited_for() {
    let env = BlockTestEnvironment::new();
    let source = source_of(7, &env);
    let slab = SlabKind::of(Redundancy::Replicated, 1, 1).unwrap();
    env.hangs.set(true);
    let view = view();
    {
        let mut grant = pin!(source.get(slab, &view));
        let mut context = Context::from_waker(Waker::noop());
        assert!(grant.as_mut().poll(&mut context).is_pending(), "it is being given back");
    }
    env.hangs.set(false);
    env.silent.set(false);
    env.owner.set(ClientId::NOBODY);
    assert!(matches!(at_once(source.get(slab, &view)), Err(Error::Allocation { .. })));
}

#[test]
fn a_master_that_is_away_is_not_asked_for_every_block() {
    let env = BlockTestEnvironment::new();
    env.silent.set(false);
    env.has_master.set(false);
    let source = source_of(7, &env);
    let slab = SlabKind::of(Redundancy::Replicated, 1, 1).unwrap();
    let grant = || {
        env.owner.set(ClientId::NOBODY);
        at_once(source.get(slab, &view())).unwrap();
    };
    (0..=BLOCKS_WITHOUT_MASTER).for_each(|_| grant());
    assert_eq!(env.asked_master.get(), 1);
    env.has_master.set(true);
    (0..3).for_each(|_| grant());
    assert_eq!(env.asked_master.get(), 4, "it is back");
}

// Promise MEM-13
#[test]
fn a_block_that_nobody_heard_of_is_found_when_memory_is_short() {
    let env = BlockTestEnvironment::new();
    env.silent.set(false);
    env.mute.set(true);
    let source = source_of(7, &env);
    let slab = SlabKind::of(Redundancy::Replicated, 1, 1).unwrap();
    let view = view();
    {
        let mut grant = pin!(source.get(slab, &view));
        let mut context = Context::from_waker(Waker::noop());
        assert!(grant.as_mut().poll(&mut context).is_pending());
        // While the first request runs, the tables can show the block that this request is about to get, so the second
        // request must not take that block.
        env.mute.set(false);
        assert_eq!(at_once(source.get(slab, &view)), Err(Error::OutOfMemory));
    }
    assert_eq!(env.owner.get(), ClientId(7));
    let found = at_once(source.get(slab, &view)).unwrap();
    assert_eq!((found.address, found.first), (block(0, 0).address(&view.geometry), 0));
    assert_eq!(at_once(source.get(slab, &view)), Err(Error::OutOfMemory));
    // A block that was handed on is not taken as a missed one, although the tables name the session until another
    // session has taken the block over.
    source.forget(&[block(0, 0)]);
    assert_eq!(at_once(source.get(slab, &view)), Err(Error::OutOfMemory));
}

/// This session has handed a block on; another session has taken it over and returned it to the pool. From there this
/// session has been granted it again, but the answer was lost.
#[test]
fn what_was_handed_on_and_is_named_again_is_left_to_recovery() {
    let env = BlockTestEnvironment::new();
    env.silent.set(false);
    let source = source_of(7, &env);
    let slab = SlabKind::of(Redundancy::Replicated, 1, 1).unwrap();
    let view = view();
    at_once(source.get(slab, &view)).unwrap();
    source.forget(&[block(0, 0)]);
    assert_eq!(at_once(source.settle(&gate())), Some(Vec::new()), "all is as it was told");
    env.owner.set(ClientId::NOBODY);
    env.mute.set(true);
    {
        let mut grant = pin!(source.get(slab, &view));
        let mut context = Context::from_waker(Waker::noop());
        assert!(grant.as_mut().poll(&mut context).is_pending());
    }
    assert_eq!(env.owner.get(), ClientId(7));
    assert_eq!(at_once(source.settle(&gate())), None, "nobody else knows of the block");
}

/// The master still has a record of the block by an earlier owner, although the block has come back to the pool since,
/// and is being granted to this session.
// Promise MEM-32: No outdated record gives a session another one's block.
#[test]
fn a_block_from_the_pool_is_not_taken_over_from_an_earlier_owner_as_well() {
    let env = BlockTestEnvironment::new();
    env.silent.set(false);
    env.mute.set(true);
    let source = source_of(7, &env);
    let slab = SlabKind::of(Redundancy::Replicated, 1, 1).unwrap();
    let view = view();
    let mut context = Context::from_waker(Waker::noop());
    let mut first = pin!(source.get(slab, &view));
    assert!(first.as_mut().poll(&mut context).is_pending(), "the answer is under way");
    let orphan = orphan(3, slab.class, 2);
    env.orphan.set(Some(orphan));
    assert_eq!(at_once(source.get(slab, &view)), Err(Error::OutOfMemory));
    assert_eq!(env.orphan.get(), None, "it was given");
    env.mute.set(false);
    let Poll::Ready(Ok(granted)) = first.as_mut().poll(&mut context) else { panic!("it answers") };
    assert_eq!((granted.address, granted.first), (block(0, 0).address(&view.geometry), 0));
}

/// The session has handed the block on, but the master does not know that yet, and offers the block by the record of an
/// earlier owner.
#[test]
fn what_was_handed_on_is_not_missed_when_it_was_offered_by_an_earlier_name() {
    let env = BlockTestEnvironment::new();
    env.silent.set(false);
    let source = source_of(7, &env);
    let slab = SlabKind::of(Redundancy::Replicated, 1, 1).unwrap();
    let view = view();
    at_once(source.get(slab, &view)).unwrap();
    source.forget(&[block(0, 0)]);
    let orphan = orphan(3, slab.class, 0);
    env.orphan.set(Some(orphan));
    assert_eq!(at_once(source.get(slab, &view)), Err(Error::OutOfMemory));
    assert_eq!(env.orphan.get(), None, "it was given");
    // After that, another answer is lost. The block must not be taken as a missed one, because another session is
    // possibly about to take it over.
    source.missed.set(true);
    assert_eq!(at_once(source.get(slab, &view)), Err(Error::OutOfMemory));
}

/// The master gives a block back to the session that handed it on. At that moment the block's memory node restarts, so
/// the first request is refused. Later the session finds that the tables name the session: the block has the objects
/// that the session left in it.
#[test]
fn what_came_back_to_a_session_is_not_new_when_its_memory_node_was_started_again() {
    let env = BlockTestEnvironment::new();
    env.silent.set(false);
    let source = source_of(7, &env);
    let slab = SlabKind::of(Redundancy::Replicated, 1, 1).unwrap();
    let view = view();
    at_once(source.get(slab, &view)).unwrap();
    source.forget(&[block(0, 0)]);
    let orphan = orphan(7, slab.class, 2);
    env.orphan.set(Some(orphan));
    env.restarted.set(true);
    assert_eq!(at_once(source.get(slab, &view)), Err(Error::OutOfMemory));
    assert_eq!(env.orphan.get(), None, "it was given");
    env.restarted.set(false);
    let found = at_once(source.get(slab, &view)).unwrap();
    assert_eq!((found.address, found.first), (block(0, 0).address(&view.geometry), 2));
}

/// The answer to the first request, which was executed, is lost. Then the block is offered once more, and the second
/// request is refused.
#[test]
fn what_an_unanswered_request_has_brought_is_not_new_when_the_next_one_is_refused() {
    let env = BlockTestEnvironment::new();
    env.silent.set(false);
    let source = source_of(7, &env);
    let slab = SlabKind::of(Redundancy::Replicated, 1, 1).unwrap();
    let view = view();
    env.owner.set(ClientId(3));
    let orphan = orphan(3, slab.class, 2);
    env.orphan.set(Some(orphan));
    env.forgets.set(true);
    assert_eq!(at_once(source.get(slab, &view)), Err(Error::OutOfMemory));
    assert_eq!(env.owner.get(), ClientId(7), "the request was executed");
    env.forgets.set(false);
    env.restarted.set(true);
    env.orphan.set(Some(orphan));
    assert_eq!(at_once(source.get(slab, &view)), Err(Error::OutOfMemory));
    env.restarted.set(false);
    let found = at_once(source.get(slab, &view)).unwrap();
    assert_eq!((found.address, found.first), (block(0, 0).address(&view.geometry), 2));
}

/// While a leaving session waits for the answer of a memory node, the keeper acknowledges a newer view. A table was
/// then possibly copied meanwhile, so the session does not leave in order.
#[test]
fn a_session_that_leaves_while_a_view_comes_is_left_to_recovery() {
    let env = BlockTestEnvironment::new();
    env.silent.set(false);
    let source = source_of(7, &env);
    let slab = SlabKind::of(Redundancy::Replicated, 1, 1).unwrap();
    let granted = at_once(source.get(slab, &view())).unwrap();
    env.forgets.set(true);
    at_once(source.free(returned(&granted), &view()));
    env.forgets.set(false);
    for is_newer in [false, true] {
        let gate = gate();
        env.slow.set(true);
        source.unconfirmed.borrow_mut().insert(block(0, 0), Some(BASE));
        let mut settled = pin!(source.settle(&gate));
        let mut context = Context::from_waker(Waker::noop());
        assert!(settled.as_mut().poll(&mut context).is_pending());
        if is_newer {
            gate.publish_view(&Arc::new(View { number: 2, ..view() }));
        }
        env.slow.set(false);
        let Poll::Ready(found) = settled.as_mut().poll(&mut context) else { panic!("it answers") };
        assert_eq!(found.is_some(), !is_newer);
    }
}

/// The answer to a return was lost. The region's table was possibly copied, before the return was executed, to a memory
/// node that holds no replica yet and would still name the session.
#[test]
fn a_session_that_leaves_while_a_region_is_copied_is_left_to_recovery() {
    let env = BlockTestEnvironment::new();
    env.silent.set(false);
    let source = source_of(7, &env);
    for is_copied in [true, false] {
        source.unconfirmed.borrow_mut().insert(block(0, 0), Some(BASE));
        let change = is_copied.then(|| change_of(ChangeStage::Transforming, 0..1));
        let gate = SessionGate::new(ClientId(7), Arc::new(View { change, ..view() }), 1);
        assert_eq!(at_once(source.settle(&gate)).is_some(), !is_copied);
    }
}

#[test]
fn what_is_given_back_is_not_reported_as_taken_over() {
    let env = BlockTestEnvironment::new();
    env.silent.set(false);
    let source = source_of(7, &env);
    let slab = SlabKind::of(Redundancy::Replicated, 1, 1).unwrap();
    let view = view();
    let orphan = orphan(3, slab.class, 0);
    let gift = OrphanGrant { turn: 5, orphan, owner_lives: false };
    let granted = source.record_orphan(&gift, &view);
    assert_eq!(*source.adopted.borrow(), [(block(0, 0), 5)]);
    at_once(source.free(returned(&granted), &view));
    assert_eq!(*source.adopted.borrow(), []);
}

/// An operation that returns a block is dropped while it waits for a node. Later the session needs memory: it returns
/// the block once more, and then is granted it again.
// Promise MEM-13: Blocks of lost grants and interrupted returns are not lost.
#[test]
fn a_return_that_is_dropped_half_way_is_made_good_when_memory_is_short() {
    let env = BlockTestEnvironment::new();
    env.silent.set(false);
    let source = source_of(7, &env);
    let slab = SlabKind::of(Redundancy::Replicated, 1, 1).unwrap();
    let view = view();
    let before = at_once(source.get(slab, &view)).unwrap();
    env.hangs.set(true);
    {
        let mut free = pin!(source.free(returned(&before), &view));
        assert!(free.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    env.hangs.set(false);
    assert_eq!(env.owner.get(), ClientId(7), "the node that hands it out was not asked yet");
    let again = at_once(source.get(slab, &view)).expect("who looks for memory gives it back");
    assert_eq!(again.address, before.address);
    assert_eq!(at_once(source.settle(&gate())), Some(Vec::new()));
}

/// While a block is being returned, its node has executed the return but not acknowledged it, and grants the block
/// again. In the end the tables name the session, so the session must not forget the block, even if it searches for
/// missed blocks before the return is acknowledged (`meanwhile`).
fn check_found_after_return(meanwhile: bool) {
    let env = BlockTestEnvironment::new();
    env.silent.set(false);
    let source = source_of(7, &env);
    let slab = SlabKind::of(Redundancy::Replicated, 1, 1).unwrap();
    let view = view();
    let before = at_once(source.get(slab, &view)).unwrap();
    env.slow.set(true);
    let mut free = pin!(source.free(returned(&before), &view));
    let mut context = Context::from_waker(Waker::noop());
    assert!(free.as_mut().poll(&mut context).is_pending());
    assert_eq!(env.owner.get(), ClientId::NOBODY);
    assert!(matches!(at_once(source.get(slab, &view)), Err(Error::Allocation { .. })));
    assert_eq!(env.owner.get(), ClientId(7));
    if meanwhile {
        assert_eq!(at_once(source.get(slab, &view)), Err(Error::OutOfMemory));
    }
    env.slow.set(false);
    assert!(free.as_mut().poll(&mut context).is_ready());
    let found = at_once(source.get(slab, &view)).expect("the tables name the session");
    assert_eq!(found.address, before.address);
}

#[test]
fn a_block_granted_again_while_it_is_given_back_is_not_forgotten() {
    check_found_after_return(false);
}

#[test]
fn nor_if_it_was_looked_for_meanwhile() {
    check_found_after_return(true);
}

/// A request that searches for missed blocks returns a block once more, and waits for the answer. Meanwhile another
/// request begins, and is granted that block. The first request then finds the block in the tables while the second
/// one's answer is under way.
#[test]
fn a_block_is_not_found_while_it_is_being_granted_to_another_request() {
    let env = BlockTestEnvironment::new();
    env.silent.set(false);
    let source = source_of(7, &env);
    let slab = SlabKind::of(Redundancy::Replicated, 1, 1).unwrap();
    let view = view();
    let before = at_once(source.get(slab, &view)).unwrap();
    env.forgets.set(true);
    at_once(source.free(returned(&before), &view));
    env.forgets.set(false);
    env.owner.set(ClientId(9));
    env.slow.set(true);
    let mut context = Context::from_waker(Waker::noop());
    let mut first = pin!(source.get(slab, &view));
    assert!(first.as_mut().poll(&mut context).is_pending(), "it gives the block back once more");
    env.mute.set(true);
    let mut second = pin!(source.get(slab, &view));
    assert!(second.as_mut().poll(&mut context).is_pending(), "the block is granted");
    env.slow.set(false);
    let found = first.as_mut().poll(&mut context);
    assert_eq!(found, Poll::Ready(Err(Error::OutOfMemory)));
    env.mute.set(false);
    let Poll::Ready(Ok(granted)) = second.as_mut().poll(&mut context) else { panic!("it answers") };
    assert_eq!(granted.address, before.address);
}

// Promise MEM-13
#[test]
fn a_block_that_nobody_heard_of_is_remembered_while_its_region_is_frozen() {
    let env = BlockTestEnvironment::new();
    env.silent.set(false);
    env.owner.set(ClientId(7));
    let source = source_of(7, &env);
    source.missed.set(true);
    let slab = SlabKind::of(Redundancy::Replicated, 1, 1).unwrap();
    let change = change_of(ChangeStage::Frozen, 0..1);
    let frozen = View { change: Some(change), ..view() };
    assert_eq!(at_once(source.get(slab, &frozen)), Err(Error::OutOfMemory));
    at_once(source.get(slab, &view())).expect("it was not forgotten");
}

/// A node is told of as many frozen regions as one request can name, and grants a block of a frozen region that was not
/// named.
// Promise MEM-28: No block of a region under copy is used.
#[test]
fn a_block_of_a_region_that_is_copied_is_left_and_another_one_asked_for() {
    let env = BlockTestEnvironment::new();
    env.silent.set(false);
    let source = source_of(4, &env);
    let slab = SlabKind::of(Redundancy::Replicated, 1, 1).unwrap();
    let all = MAX_ALLOC_REGIONS as u32 + 6;
    let regions = vec![view().regions[0].clone(); all as usize];
    let change = change_of(ChangeStage::Transforming, 0..all - 1);
    let view = View { regions, change: Some(change), ..view() };
    let block = |region| block(region, 3);
    *env.grants.borrow_mut() = vec![block(all - 1), block(45), block(46)];
    let granted = at_once(source.get(slab, &view)).expect("one region is not copied");
    assert_eq!(granted.address, block(all - 1).address(&view.geometry));
    let told = env.told.take();
    assert_eq!(told.len(), 3);
    assert!(!told[0].contains(&46) && told[1][0] == 46 && told[2][..2] == [46, 45], "{told:?}");
    assert!(source.missed.get(), "what it has left is looked for later");
    // A node that grants only blocks of copied regions is given up after some attempts.
    *env.grants.borrow_mut() = (0..20).map(block).collect();
    assert!(matches!(at_once(source.get(slab, &view)), Err(Error::Allocation { .. })));
}

/// A request that finds no block returns `Later` at once, so that the operation waits without a pin: other sessions
/// wait for pinned operations. It fails when the operation's own clock has run out, also in a newer view.
#[test]
fn a_wait_for_a_block_is_not_pinned_and_ends_by_the_operations_own_clock() {
    let slab = SlabKind::of(Redundancy::Replicated, 1, 1).unwrap();
    let patience = Duration::from_secs(1);
    for (waited, number) in [(0, 1), (900, 1), (900, 5), (1000, 1), (1000, 5)] {
        let env = BlockTestEnvironment::new();
        let view = Arc::new(View { number, ..view() });
        let gate = Arc::new(SessionGate::new(ClientId(7), view.clone(), 1));
        let host = SessionHost::new(env.clone(), gate, source_of(7, &env), false, patience);
        env.now.set(Duration::from_millis(waited));
        let asked = pin!(host.alloc_block(slab, HELD, BlockDemand::Needed, &view));
        let asked = at_once(host.clocks().until(patience, asked));
        if waited < 1000 {
            assert_eq!(asked, Ok(BlockAnswer::Later))
        } else {
            assert!(matches!(asked, Err(Error::Allocation { .. })), "{asked:?}")
        }
    }
}

#[test]
fn a_block_of_a_newer_view_whose_return_is_not_acknowledged_is_not_taken_by_that_view() {
    let env = BlockTestEnvironment::new();
    env.silent.set(false);
    env.forgets.set(true);
    let source = source_of(7, &env);
    let slab = SlabKind::of(Redundancy::Replicated, 1, 1).unwrap();
    let older = View { regions: Vec::new(), ..view() };
    assert!(matches!(at_once(source.get(slab, &older)), Err(Error::Allocation { .. })));
    // The first request to return the block can still be executed, so the block must not be used under the newer view
    // either.
    env.forgets.set(false);
    assert!(matches!(at_once(source.get(slab, &view())), Err(Error::Allocation { .. })));
    assert_eq!(env.owner.get(), ClientId(7));
    at_once(source.get(slab, &view())).expect("who looks for memory gives it back once more");
    assert_eq!(at_once(source.settle(&gate())), Some(Vec::new()));
}

/// A session without an answer about orphaned blocks must not consider memory exhausted. Otherwise its operation would
/// fail at once, although there are orphaned blocks for it.
#[test]
fn a_session_that_did_not_hear_of_orphans_does_not_take_memory_for_exhausted() {
    let env = BlockTestEnvironment::new();
    let source = source_of(7, &env);
    let slab = SlabKind::of(Redundancy::Replicated, 1, 1).unwrap();
    env.owner.set(ClientId(8));
    let is_exhausted = || {
        assert_eq!(at_once(source.get(slab, &view())), Err(Error::OutOfMemory));
        source.is_exhausted()
    };
    assert!(!is_exhausted(), "others may have some soon");
    env.exhausted.set(true);
    assert!(is_exhausted());
    env.hides_orphans.set(true);
    assert!(!is_exhausted());
    env.hides_orphans.set(false);
    assert!(is_exhausted());
    source.missed.set(true);
    env.has_master.set(true);
    assert!(is_exhausted(), "it has looked for what it missed");
}

/// The owner of a mixed block waits some seconds, and the master can add a region at once.
#[test]
fn a_mixed_block_is_asked_for_when_the_master_has_refused() {
    let env = BlockTestEnvironment::new();
    env.silent.set(false);
    env.mixed.set(true);
    let source = source_of(7, &env);
    let slab = SlabKind::of(Redundancy::Replicated, 1, 1).unwrap();
    let grown = at_once(source.grant(slab, HELD, BlockDemand::Growth, &view()));
    assert_eq!(grown, Err(Error::OutOfMemory), "a slab that is not short waits for no block");
    let waits = at_once(source.grant(slab, HELD, BlockDemand::NeededNow, &view()));
    assert_eq!(waits, Err(Error::OutOfMemory), "nor does one that waits for a block already");
    env.has_master.set(false);
    let unanswered = at_once(source.get(slab, &view()));
    assert!(matches!(unanswered, Err(Error::Allocation { .. })), "{unanswered:?}");
    assert_eq!(env.owner.get(), ClientId::NOBODY, "nothing was granted");
    env.has_master.set(true);
    let granted = at_once(source.get(slab, &view())).expect("it is better than none");
    assert_eq!(granted.base, None);
}

/// A memory node can answer anything.
#[test]
fn a_base_that_is_no_generation_counts_as_none() {
    use fusee_core::layout::Slot;
    for (base, kept) in
        [(0, true), (Slot::GENERATIONS - 1, true), (Slot::GENERATIONS, false), (u16::MAX, false)]
    {
        assert_eq!(PoolGrant::answered(block(0, 0), Some(base)).base, kept.then_some(base));
    }
}
