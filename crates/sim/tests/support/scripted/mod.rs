//! Sessions whose environment is a script. The script decides when the session gets a block, when an epoch ends, which
//! verbs are lost and possibly execute later, and which view is the newest. Scripts are for memory errors that random
//! schedules do not reach.
//!
//! The environment checks what sessions promise to it ([`Host`](fusee_core::host)): while one of its verbs can still
//! execute, a session is pinned, and does not report that all its freed objects have their bits set; and a session that
//! asks for a block is pinned. The cluster checks the rest, as in every run: bits of free bitmaps are set only where
//! they are clear, and every entry leads to its object.
//!
//! Each script notices a mutant of its own, and ends in the same way with every seed.

pub mod doubts;
pub mod generations;
pub mod marks;
pub mod seals;
pub mod speculations;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use fusee_core::Store;
use fusee_core::data::Redundancy;
use fusee_core::data::Region;
use fusee_core::error::Error;
use fusee_core::host::{
    Backoff, BlockAnswer, BlockDemand, Blocks, Epochs, GiveUp, IndexGrowthAnswer, Logs,
    PinnedOperations, Reports, Views,
};
use fusee_core::layout::{Address, BLOCK_HEADER_BYTES, BlockShape, Object, SizeClass};
use fusee_core::slab::BlockRemainder;
use fusee_core::slab::{BlockGrant, ReturnedBlock, SlabKind};
use fusee_core::stats::Damage;
use fusee_core::verbs::{ClientId, Fabric, MnId, Verb, VerbBatch, VerbError, VerbOp};
use fusee_core::view::{Geometry, PoolPlace, View};
use fusee_sim::{ClusterOptions, SimCluster, SimFabric};

use super::{all_slots, largest_block, small, stepwise};

/// A value of such a length that three objects fit in a block.
pub const VALUE: [u8; 1100] = [1; 1100];
const KEY_BYTES: usize = 1;
/// The greatest number of polls, more than any future needs here.
const POLLS: usize = 100_000;

type Step = Box<dyn FnOnce()>;

/// A verb without an answer, which its session treats as lost.
struct LostVerb {
    verb: Verb,
    bytes: Vec<u8>,
    /// The local epoch of the verb's operation.
    since: u64,
}

/// The environment of a session, and the script that controls it.
pub struct HostScript {
    cluster: SimCluster,
    view: RefCell<Arc<View>>,
    local_epoch: Cell<u64>,
    pinned: Cell<Option<u64>>,
    freed: Cell<Option<u64>>,
    /// The session's current mark. Earlier marks have possibly passed.
    mark: Cell<u64>,
    passed: Cell<u64>,
    grants: RefCell<VecDeque<BlockGrant>>,
    /// Blocks that the session has returned. A request without a grant gets the oldest of these blocks.
    pool: RefCell<VecDeque<ReturnedBlock>>,
    /// Number of requests for a block that are still to be put off.
    put_off: Cell<u32>,
    /// The current epoch.
    epoch: Cell<u64>,
    /// The session knows that all operations of the epochs before this one have ended.
    passed_epoch: Cell<u64>,
    /// Steps that happen while the session waits. When none is left, the session gives up.
    steps: RefCell<VecDeque<Step>>,
    /// Selects the batches that are lost: those with a verb for which this function returns true.
    loses: Cell<fn(&Verb) -> bool>,
    late: RefCell<Vec<LostVerb>>,
    damage: Cell<Damage>,
    /// Numbers of phases, verbs and bytes that the session has posted.
    moved: Cell<[u64; 3]>,
}

impl HostScript {
    /// Adds a step that happens at the session's next wait that has no other step.
    pub fn then(&self, step: impl FnOnce() + 'static) {
        self.steps.borrow_mut().push_back(Box::new(step));
    }

    /// Loses, from now on, each batch with a verb for which `verbs` returns true.
    pub fn lose(&self, verbs: fn(&Verb) -> bool) {
        self.loses.set(verbs);
    }

    /// Returns the number of verbs that the session treats as lost but that can still execute.
    pub fn late(&self) -> usize {
        self.late.borrow().len()
    }

    /// Ends all epochs so far. All objects that were freed in them must have their bits set.
    ///
    /// # Panics
    /// If an operation is running, or if a freed object's bit is not set.
    pub fn pass(&self) {
        assert_eq!(self.pinned.get(), None, "an operation acts");
        assert_eq!(self.freed.get(), None, "something is not marked");
        self.mark.set(self.mark.get() + 1);
        self.passed.set(self.mark.get());
        self.epoch.set(self.epoch.get() + 1);
        self.passed_epoch.set(self.epoch.get());
    }

    /// Jumps to the epochs of another master, which are far ahead. Some session does not know of them yet.
    pub fn jump(&self) {
        self.epoch.set(self.epoch.get() + (1 << 16));
    }

    /// Returns the epoch to which operations now belong.
    pub fn epoch(&self) -> u64 {
        self.epoch.get()
    }

    /// Returns whether an epoch can pass: no operation runs, and the bits of all freed objects are set.
    pub fn is_idle(&self) -> bool {
        self.pinned.get().is_none() && self.freed.get().is_none()
    }

    /// Removes all remaining steps.
    pub fn then_nothing(&self) {
        self.steps.borrow_mut().clear();
    }

    /// Continues the epochs of another script.
    pub fn follow(&self, other: &HostScript) {
        self.epoch.set(other.epoch.get() + 1);
        self.passed_epoch.set(self.epoch.get());
    }

    /// Grants an unused block for objects of this class.
    pub fn grant(&self, class: SizeClass, address: Address, marked: Option<u64>) {
        let bytes = self.view.borrow().geometry.block_bytes;
        let grant = BlockGrant {
            redundancy: Redundancy::Replicated,
            address,
            bytes,
            base: Some(0),
            class,
            first: 0,
            marked,
            pool_is_empty: false,
        };
        self.grants.borrow_mut().push_back(grant);
    }

    /// Grants a block that another session has left, from its remainder on.
    pub fn grant_remainder(&self, rest: &BlockRemainder) {
        let BlockRemainder { block: address, bytes, base, class, first, marked } = *rest;
        let grant = BlockGrant {
            redundancy: Redundancy::Replicated,
            address,
            bytes,
            base,
            class,
            first,
            marked,
            pool_is_empty: false,
        };
        self.grants.borrow_mut().push_back(grant);
    }

    /// Puts off the next `requests` requests for a block.
    pub fn put_off(&self, requests: u32) {
        self.put_off.set(requests);
    }

    /// Publishes a view as the newest one.
    pub fn publish(&self, view: &View) {
        *self.view.borrow_mut() = Arc::new(view.clone());
        self.local_epoch.set(self.local_epoch.get() + 1);
    }

    /// Returns the numbers of phases, verbs and bytes that the session has posted.
    pub fn moved(&self) -> [u64; 3] {
        self.moved.get()
    }

    /// Returns the damage that the session has reported.
    pub fn damage(&self) -> Damage {
        self.damage.get()
    }
}

/// The host of a scripted session, which is its environment.
pub struct ScriptedHost(Rc<HostScript>);

impl Backoff for ScriptedHost {
    async fn pause(&self, _: u32) -> Result<(), GiveUp> {
        let step = self.0.steps.borrow_mut().pop_front();
        step.ok_or(GiveUp).map(|step| step())
    }

    fn is_over(&self) -> bool {
        false
    }
}

impl Blocks for ScriptedHost {
    async fn alloc_block(
        &self,
        SlabKind { class, .. }: SlabKind,
        _: u64,
        demand: BlockDemand,
        view: &Arc<View>,
    ) -> Result<BlockAnswer, Error> {
        let pinned = self.0.pinned.get().is_some();
        assert!(pinned, "who asks for a block by a view does not act: that view may end meanwhile");
        assert_eq!(view.number, self.0.view.borrow().number);
        if let Some(left) = self.0.put_off.get().checked_sub(1) {
            self.0.put_off.set(left);
            return Ok(BlockAnswer::Later);
        }
        let mut grants = self.0.grants.borrow_mut();
        let next = grants.pop_front_if(|grant| grant.class == class).or_else(|| {
            let lies_there = |returned: &ReturnedBlock| {
                let region = view.region_of(returned.address).map(|(region, _)| region);
                let subtable = match demand {
                    BlockDemand::Beside(subtable) => Some(&view.subtables[subtable as usize]),
                    _ => None,
                };
                subtable.is_none_or(|it| region.is_some_and(|region| region.lies_beside(it)))
            };
            let returned =
                self.0.pool.borrow_mut().pop_front_if(|returned| lies_there(returned))?;
            let ReturnedBlock { address, bytes, base } = returned;
            let marked = view.region_of(address).map(|(region, _)| region.primary_since());
            Some(BlockGrant {
                redundancy: Redundancy::Replicated,
                address,
                bytes,
                base: Some(base),
                class,
                first: 0,
                marked,
                pool_is_empty: false,
            })
        });
        next.map(BlockAnswer::Block).ok_or(Error::OutOfMemory)
    }

    async fn await_pool(&self, _: &Arc<View>) {
        self.0.pass();
    }

    async fn await_others(&self) {}

    fn end_search(&self, _: SlabKind) {}

    fn is_exhausted(&self) -> bool {
        false
    }

    fn take_memory_call(&self) -> bool {
        false
    }

    fn offer(&self, _: Vec<BlockRemainder>, _: Vec<BlockRemainder>, _: bool) {}

    fn take_back(&self) -> Vec<Address> {
        Vec::new()
    }

    async fn free_block(&self, block: ReturnedBlock, view: &Arc<View>) {
        // Memory nodes fill the headers of returned blocks with zeros.
        for place in view.block(block.address).expect("it lies in a region").places() {
            for at in (0..BLOCK_HEADER_BYTES).step_by(8) {
                self.0.cluster.network().memories().overwrite(place.plus(at), 0);
            }
        }
        self.0.pool.borrow_mut().push_back(block);
    }
}

impl Logs for ScriptedHost {
    async fn log_area(&self, _: MnId, _: u8, _: &View) -> Result<Option<u32>, Error> {
        Ok(Some(0))
    }

    async fn further_client(&self) -> Result<Option<ClientId>, Error> {
        Ok(None)
    }
}

impl Views for ScriptedHost {
    fn newer_view(&self, than: u64) -> Option<Arc<View>> {
        let newest = self.0.view.borrow();
        (newest.number > than).then(|| newest.clone())
    }

    async fn grow_index(&self, _: u32, _: &Arc<View>) -> IndexGrowthAnswer {
        IndexGrowthAnswer::Full
    }

    fn has_valid_lease(&self) -> bool {
        true
    }

    async fn bar(&self, _: MnId, _: &Arc<View>) -> Option<Vec<MnId>> {
        None
    }
}

impl Epochs for ScriptedHost {
    fn local_epoch(&self) -> u64 {
        self.0.local_epoch.get()
    }

    fn publish(&self, pinned: PinnedOperations) {
        for late in self.0.late.borrow().iter() {
            let still = pinned.oldest.is_some_and(|oldest| oldest <= late.since);
            assert!(
                still,
                "it does not act any more, and a verb may still execute: {:?}",
                late.verb
            );
        }
        self.0.pinned.set(pinned.oldest);
    }

    fn publish_freed(&self, since: Option<u64>) {
        let late = self.0.late.borrow();
        let mark = late.iter().find(|late| matches!(late.verb.op, VerbOp::Faa { .. }));
        if let Some(mark) = mark.filter(|_| since.is_none_or(|s| Some(s) > self.0.freed.get())) {
            panic!("it says that all is marked, and this may still execute: {:?}", mark.verb);
        }
        self.0.freed.set(since);
    }

    fn publish_older(&self, since: u64) {
        let waits = self.0.freed.get();
        self.0.freed.set(Some(waits.map_or(since, |waits| waits.min(since))));
    }

    fn may_set_free(&self) -> bool {
        true
    }

    fn epoch(&self) -> u64 {
        self.0.epoch.get()
    }

    fn passed_epoch(&self) -> u64 {
        self.0.passed_epoch.get()
    }

    fn mark(&self) -> u64 {
        self.0.mark.get()
    }

    fn has_passed(&self, mark: u64) -> bool {
        self.0.passed.get() > mark
    }

    fn is_settled(&self, mark: u64) -> bool {
        self.has_passed(mark)
    }
}

impl Reports for ScriptedHost {
    fn report_damage(&self, damage: Damage) {
        let mut all = self.0.damage.get();
        all.add(damage);
        self.0.damage.set(all);
    }

    fn report_unreachable(&self, _: MnId) {}
}

/// A fabric that loses the batches that its script selects.
pub struct LossyFabric {
    inner: SimFabric,
    script: Rc<HostScript>,
}

impl Fabric for LossyFabric {
    async fn execute(&self, mut batch: VerbBatch) -> VerbBatch {
        let bytes: u64 = batch.verbs().iter().map(|verb| u64::from(verb.bytes())).sum();
        let more = [1, batch.verbs().len() as u64, bytes];
        let moved = self.script.moved.get();
        self.script.moved.set(std::array::from_fn(|i| moved[i] + more[i]));
        if !batch.verbs().iter().any(|verb| (self.script.loses.get())(verb)) {
            return self.inner.execute(batch).await;
        }
        let since = self.script.pinned.get().expect("who posts verbs acts");
        let late = batch.verbs().iter().filter(|verb| !verb.is_read());
        let late = late.map(|verb| {
            let bytes = match verb.op {
                VerbOp::Write { buf } => batch.bytes(buf).to_vec(),
                _ => Vec::new(),
            };
            LostVerb { verb: *verb, bytes, since }
        });
        self.script.late.borrow_mut().extend(late.collect::<Vec<_>>());
        batch.parts_mut().0.iter_mut().for_each(|verb| verb.result = Err(VerbError::Unreachable));
        batch
    }
}

/// A cluster for scripted sessions.
pub struct ScriptedCluster {
    pub cluster: SimCluster,
    sessions: Cell<u32>,
}

/// The store of a scripted session.
pub type ScriptedStore = Store<LossyFabric, ScriptedHost>;

impl ScriptedCluster {
    /// Makes a scripted cluster of five memory nodes, with two replicas of everything. Three objects of [`VALUE`] fit
    /// in a block.
    pub fn new(seed: u64) -> ScriptedCluster {
        let options = small(seed, 2);
        let geometry =
            Geometry { max_value_bytes: 3200, region_bytes: 1 << 15, ..options.geometry };
        ScriptedCluster::of(seed, &ClusterOptions { geometry, index_keys: 100, ..options })
    }

    pub fn of(seed: u64, options: &ClusterOptions) -> ScriptedCluster {
        let (_, cluster) = stepwise(seed, options);
        ScriptedCluster { cluster, sessions: Cell::new(0) }
    }

    /// Opens a session with its script. The session gets these blocks of region 0 for objects of [`VALUE`]. `marked` is
    /// what the session knows about the blocks' bitmaps.
    pub fn open(&self, blocks: Range<u32>, marked: Option<u64>) -> (ScriptedStore, Rc<HostScript>) {
        let class = Object::class(KEY_BYTES, VALUE.len()).expect("there is such a class");
        self.open_for(class, blocks, marked)
    }

    /// Opens a session whose blocks are for objects of this class.
    pub fn open_for(
        &self,
        class: SizeClass,
        blocks: Range<u32>,
        marked: Option<u64>,
    ) -> (ScriptedStore, Rc<HostScript>) {
        let view = Arc::new(self.cluster.view().clone());
        let span = |block| largest_block(&view.geometry, 0, block);
        let pool_is_empty = false;
        let grant = |block| BlockGrant {
            redundancy: Redundancy::Replicated,
            address: span(block).address,
            bytes: span(block).bytes,
            base: Some(0),
            class,
            first: 0,
            marked,
            pool_is_empty,
        };
        let script = Rc::new(HostScript {
            cluster: self.cluster.clone(),
            local_epoch: Cell::new(0),
            pinned: Cell::new(None),
            freed: Cell::new(None),
            mark: Cell::new(1),
            passed: Cell::new(0),
            grants: RefCell::new(blocks.map(grant).collect()),
            pool: RefCell::default(),
            put_off: Cell::new(0),
            epoch: Cell::new(1),
            passed_epoch: Cell::new(1),
            steps: RefCell::default(),
            loses: Cell::new(|_| false),
            late: RefCell::default(),
            damage: Cell::default(),
            moved: Cell::default(),
            view: RefCell::new(view.clone()),
        });
        let client = self.next_client();
        let inner = SimFabric::new(self.cluster.network(), client);
        let fabric = LossyFabric { inner, script: script.clone() };
        (Store::new(fabric, ScriptedHost(script.clone()), client, view), script)
    }

    /// Returns an unused client id.
    pub fn next_client(&self) -> ClientId {
        self.sessions.set(self.sessions.get() + 1);
        ClientId((1 << 20) + self.sessions.get())
    }

    /// Makes the second replica of region 0 the first one, with a free bitmap of zeros.
    pub fn move_region(&self, scripts: &[&HostScript]) {
        let mut view = self.cluster.view().clone();
        view.number += 1;
        let mut places = view.regions[0].places().to_vec();
        places.swap(0, 1);
        view.regions[0] = Region::replicated(places, view.number);
        self.cluster.checks().follow(&view);
        scripts.iter().for_each(|script| script.publish(&view));
    }

    /// Returns the objects that the words of the index keep in use.
    fn kept(&self) -> BTreeSet<u64> {
        let view = self.cluster.view();
        let word = |place: PoolPlace| self.cluster.network().memories().word_at(place);
        let words = all_slots(&view).filter_map(|slot| view.slot_places(slot).next()).map(word);
        words.filter_map(|word| word.object()).map(Address::bytes).collect()
    }

    pub fn is_marked(&self, object: Address) -> bool {
        let view = self.cluster.view();
        let (at, bit) = view.free_bit(object).expect("an object in a block");
        self.cluster.network().memories().word_at(at).0 & bit != 0
    }

    /// Checks that the next owner of these blocks finds all their free objects if it treats the blocks' bitmaps as
    /// complete. Also checks that no object that a word keeps is marked as free.
    pub fn check(&self, rests: &[BlockRemainder]) {
        let kept = self.kept();
        let view = self.cluster.view();
        for BlockRemainder { block, bytes, class, first, marked, .. } in rests {
            let primary_since = view.region_of(*block).map(|(region, _)| region.primary_since());
            let shape = BlockShape::new(*bytes, *class).expect("it fits");
            let objects = (0..*first).map(|i| Address::new(block.bytes() + shape.offset(i)));
            for object in objects {
                let is_kept = kept.contains(&object.bytes());
                let is_marked = self.is_marked(object);
                assert!(!(is_kept && is_marked), "{object} is free, and something leads to it");
                let is_known = *marked == primary_since;
                assert!(
                    is_kept || is_marked || !is_known,
                    "nobody ever finds that {object} is free"
                );
            }
        }
    }

    /// Returns the values of these keys that a reader finds.
    pub fn values(&self, store: &ScriptedStore, keys: &[u8]) -> BTreeMap<u8, Vec<u8>> {
        let value = |key: &u8| {
            let found = run(store.search(&[*key][..], None)).expect("a SEARCH never fails");
            found.value().map(|value| (*key, value.to_vec()))
        };
        keys.iter().filter_map(value).collect()
    }
}

/// Runs a future to its end, and returns its result.
pub fn run<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..POLLS {
        if let Poll::Ready(result) = future.as_mut().poll(&mut context) {
            return result;
        }
    }
    panic!("it does not end");
}

/// Polls a future until `holds` returns true. Returns the future's result if the future ends first.
pub fn poll_until<'f, T>(
    future: &mut Pin<Box<dyn Future<Output = T> + 'f>>,
    holds: impl Fn() -> bool,
) -> Option<T> {
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..POLLS {
        if holds() {
            return None;
        }
        if let Poll::Ready(result) = future.as_mut().poll(&mut context) {
            return Some(result);
        }
    }
    panic!("that never comes");
}
