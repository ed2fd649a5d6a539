//! A client's allocation and reclaiming of objects: two-level memory management (P §4.4).
//!
//! A client asks a memory node for a block and cuts objects from it. A client that replaces an object sets the object's
//! bit in the free bitmap of its block by FAA. The owner of the block READs the bitmap from time to time, clears the
//! bits by FAA, and reuses the objects. These steps are *chores*. The first phase of a later write executes them, so
//! they cost verbs but no phase. They replace the paper's background threads.

use std::cell::{Cell, RefCell};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

use fusee_core::verbs::{Fabric, Ticket, VerbBatch};

use super::allocator::{Allocator, AllocatorRequest};
use super::layout::PublishedLayout;
use super::object::{PublishedObject, UNIT_BYTES};
use super::parameters::ObjectAllocation;
use crate::{BaselineError, Rpc};

/// Largest number of chores (steps of memory management) that are posted in one phase.
const MOST_CHORES: usize = 64;
/// Number of phases in which a client looks for free objects before it regards the store as full.
const LOOKS: usize = 256;
/// A client READs a block's bitmap after every `n / PARTS_PER_LOOK` allocations, where `n` is a block's number of
/// objects.
const PARTS_PER_LOOK: u64 = 8;

/// A pending step of memory management.
#[derive(Clone, Copy, Debug)]
enum Chore {
    /// Sets the bit of an object that this client has replaced.
    Free(PublishedObject),
    /// Clears the used bit of an object that this client has allocated and that no slot refers to.
    Reset(PublishedObject),
    /// READs the free bitmap of a block that this client owns.
    Look { units: u8, block: u64 },
    /// Clears these bits in a word of a free bitmap. The block's owner then reuses the objects of these bits.
    Take { units: u8, block: u64, word: u64, bits: u64 },
}

/// Verbs that are posted together, and the chores whose verbs are among them.
#[derive(Default)]
pub(super) struct PublishedPhase {
    pub batch: VerbBatch,
    posted: Vec<(Chore, Option<Ticket>)>,
}

impl PublishedPhase {
    /// Executes the posted verbs, and completes the chores among them.
    pub async fn go<F: Fabric, R>(
        &mut self,
        fabric: &F,
        memory: &PublishedMemory<R>,
    ) -> Result<(), BaselineError> {
        let batch = std::mem::take(&mut self.batch);
        self.batch = fabric.execute(batch).await;
        self.batch.check()?;
        for (chore, ticket) in self.posted.drain(..) {
            memory.settle(chore, ticket, &self.batch)?;
        }
        Ok(())
    }
}

/// A client's free objects of one size.
#[derive(Debug, Default)]
struct PublishedSlab {
    free: VecDeque<u64>,
    blocks: Vec<u64>,
    /// Index of the block whose bitmap is READ next. `since_look` is the number of objects allocated since the last
    /// such READ.
    cursor: usize,
    since_look: u64,
    /// Address of the object of this size that the client allocated last.
    last: u64,
    /// Whether a task is asking for a block. `waiting` has the tasks that wait for the result.
    filling: bool,
    waiting: Vec<Waker>,
}

/// An object with its neighbours in the linked list of log entries.
#[derive(Clone, Copy, Debug)]
pub(super) struct AllocatedObject {
    pub object: PublishedObject,
    /// Address of the next object, or 0 if it is unknown because that object comes from another block.
    pub next: u64,
    pub previous: u64,
}

/// The memory management of a client: its blocks, free objects and pending chores.
pub(super) struct PublishedMemory<R> {
    layout: Arc<PublishedLayout>,
    allocators: Vec<R>,
    /// Number of the memory node whose allocator the client asks next.
    turn: Cell<usize>,
    /// Whether every node has refused a block.
    exhausted: Cell<bool>,
    slabs: RefCell<Vec<PublishedSlab>>,
    chores: RefCell<VecDeque<Chore>>,
    /// Blocks whose bitmap is being READ or whose bits are being cleared, with the number of unfinished chores. A
    /// second look at the same time would find the same bits and free their objects twice.
    looked_at: RefCell<HashMap<u64, usize>>,
    /// Objects to give back to each node with the next request, in the variant where nodes allocate.
    returned: RefCell<Vec<Vec<(u8, u64)>>>,
    requests: Cell<u64>,
}

impl<R> PublishedMemory<R> {
    pub fn new(
        layout: Arc<PublishedLayout>,
        allocators: Vec<R>,
        number: u32,
    ) -> PublishedMemory<R> {
        let nodes = layout.nodes().len();
        PublishedMemory {
            layout,
            allocators,
            turn: Cell::new(number as usize % nodes),
            exhausted: Cell::new(false),
            slabs: RefCell::new((0..=u8::MAX).map(|_| PublishedSlab::default()).collect()),
            chores: RefCell::default(),
            looked_at: RefCell::default(),
            returned: RefCell::new(vec![Vec::new(); nodes]),
            requests: Cell::new(0),
        }
    }

    /// Returns the number of requests that the client has sent to allocators.
    pub fn requests(&self) -> u64 {
        self.requests.get()
    }

    fn allocates_itself(&self) -> bool {
        self.layout.parameters().allocation == ObjectAllocation::TwoLevel
    }

    /// Frees an object that a slot referred to until now.
    pub fn free(&self, object: PublishedObject) {
        if self.allocates_itself() {
            self.chores.borrow_mut().push_back(Chore::Free(object))
        } else {
            self.give_back(object)
        }
    }

    /// Gives back an object that this client has allocated and that no slot refers to.
    pub fn reset(&self, object: PublishedObject) {
        self.chores.borrow_mut().push_back(Chore::Reset(object));
    }

    fn give_back(&self, object: PublishedObject) {
        let PublishedObject { address, units } = object;
        if self.allocates_itself() {
            self.slabs.borrow_mut()[usize::from(units)].free.push_back(address);
        } else {
            self.returned.borrow_mut()[self.layout.primary_of(address)].push((units, address));
        }
    }

    /// Adds chores to the phase, if enough chores are pending.
    pub fn post_chores(&self, phase: &mut PublishedPhase) {
        if self.chores.borrow().len() >= self.layout.parameters().frees_at_once {
            self.post_some(phase);
        }
    }

    fn post_some(&self, phase: &mut PublishedPhase) {
        let mut chores = self.chores.borrow_mut();
        let count = chores.len().min(MOST_CHORES);
        for chore in chores.drain(..count) {
            let ticket = self.post(chore, &mut phase.batch);
            phase.posted.push((chore, ticket));
        }
    }

    fn post(&self, chore: Chore, batch: &mut VerbBatch) -> Option<Ticket> {
        match chore {
            Chore::Free(object) => {
                let (place, bit) = self.layout.free_bit(object.address);
                Some(batch.faa(place.node, place.offset, 1 << bit))
            }
            Chore::Reset(object) => {
                let unused = batch.stage(1);
                batch.bytes_mut(unused)[0] = 0;
                for replica in 0..self.layout.parameters().data_replicas {
                    let place = self.layout.data(object.used(), replica);
                    batch.write(place.node, place.offset, unused);
                }
                None
            }
            Chore::Look { block, .. } => {
                let place = self.layout.data(block, 0);
                let bytes = PublishedLayout::bitmap_bytes(self.layout.parameters().block_bytes);
                Some(batch.read(place.node, place.offset, bytes as u32))
            }
            Chore::Take { block, word, bits, .. } => {
                let place = self.layout.data(block + word * 8, 0);
                Some(batch.faa(place.node, place.offset, bits.wrapping_neg()))
            }
        }
    }

    fn settle(
        &self,
        chore: Chore,
        ticket: Option<Ticket>,
        batch: &VerbBatch,
    ) -> Result<(), BaselineError> {
        match chore {
            Chore::Free(_) => {}
            Chore::Reset(object) => self.give_back(object),
            Chore::Look { units, block } => {
                let bitmap = batch.data(ticket.expect("it was posted"))?;
                let mut chores = self.chores.borrow_mut();
                let before = chores.len();
                for (word, bits) in bitmap.chunks_exact(8).enumerate() {
                    let bits = u64::from_le_bytes(bits.try_into().expect("eight bytes"));
                    if bits != 0 {
                        chores.push_back(Chore::Take { units, block, word: word as u64, bits });
                    }
                }
                let takes = chores.len() - before;
                self.looked_at.borrow_mut().insert(block, takes + 1);
                self.looked(block);
            }
            Chore::Take { units, block, word, bits } => {
                let free = &mut self.slabs.borrow_mut()[usize::from(units)].free;
                let set = (0..64).filter(|bit| bits >> bit & 1 == 1);
                free.extend(set.map(|bit| block + (word * 64 + bit) * UNIT_BYTES));
                self.looked(block);
            }
        }
        Ok(())
    }

    /// Queues a READ of a block's bitmap, unless the block is being looked at.
    fn look_at(&self, units: u8, block: u64) {
        if let Entry::Vacant(entry) = self.looked_at.borrow_mut().entry(block) {
            entry.insert(1);
            self.chores.borrow_mut().push_back(Chore::Look { units, block });
        }
    }

    /// Records that one chore of a look at this block is done.
    fn looked(&self, block: u64) {
        let mut looked_at = self.looked_at.borrow_mut();
        if let Entry::Occupied(mut left) = looked_at.entry(block) {
            *left.get_mut() -= 1;
            if *left.get() == 0 {
                left.remove();
            }
        }
    }

    /// Takes the next free object of this size, if there is one.
    fn take(&self, units: u8) -> Option<AllocatedObject> {
        let slab = &mut self.slabs.borrow_mut()[usize::from(units)];
        let address = slab.free.pop_front()?;
        let previous = std::mem::replace(&mut slab.last, address);
        slab.since_look += 1;
        let per_block = self.layout.parameters().block_bytes / (u64::from(units) * UNIT_BYTES);
        if slab.since_look * PARTS_PER_LOOK >= per_block {
            slab.since_look = 0;
            slab.cursor = (slab.cursor + 1) % slab.blocks.len();
            self.look_at(units, slab.blocks[slab.cursor]);
        }
        let next = slab.free.front().copied().unwrap_or(0);
        Some(AllocatedObject { object: PublishedObject { address, units }, next, previous })
    }
}

impl<R: Rpc<Allocator>> PublishedMemory<R> {
    /// Allocates an object of `units` units.
    pub async fn allocate<F: Fabric>(
        &self,
        fabric: &F,
        units: u8,
    ) -> Result<AllocatedObject, BaselineError> {
        if !self.allocates_itself() {
            let freed = |node: usize| std::mem::take(&mut self.returned.borrow_mut()[node]);
            let request = |node: usize| AllocatorRequest::Object { units, freed: freed(node) };
            let address = self.ask(request).await.ok_or(BaselineError::Full)?;
            let last = &mut self.slabs.borrow_mut()[usize::from(units)].last;
            let previous = std::mem::replace(last, address);
            return Ok(AllocatedObject {
                object: PublishedObject { address, units },
                next: 0,
                previous,
            });
        }
        loop {
            if let Some(allocated) = self.take(units) {
                return Ok(allocated);
            }
            if std::mem::replace(&mut self.slabs.borrow_mut()[usize::from(units)].filling, true) {
                self.wait_until_filled(units).await;
                continue;
            }
            let filled = self.fill(fabric, units).await;
            let waiting = {
                let slab = &mut self.slabs.borrow_mut()[usize::from(units)];
                slab.filling = false;
                std::mem::take(&mut slab.waiting)
            };
            waiting.into_iter().for_each(Waker::wake);
            filled?;
        }
    }

    async fn wait_until_filled(&self, units: u8) {
        poll_fn(|context| {
            let slab = &mut self.slabs.borrow_mut()[usize::from(units)];
            if !slab.filling {
                return Poll::Ready(());
            }
            slab.waiting.push(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Asks the nodes in turn until one of them gives an address.
    async fn ask(&self, request: impl Fn(usize) -> AllocatorRequest) -> Option<u64> {
        for _ in 0..self.allocators.len() {
            let node = self.turn.get();
            self.turn.set((node + 1) % self.allocators.len());
            self.requests.set(self.requests.get() + 1);
            if let Some(address) = self.allocators[node].call(request(node)).await {
                return Some(address);
            }
        }
        None
    }

    /// Gets free objects: from a new block, or else from the bitmaps of the client's own blocks.
    async fn fill<F: Fabric>(&self, fabric: &F, units: u8) -> Result<(), BaselineError> {
        let block =
            if self.exhausted.get() { None } else { self.ask(|_| AllocatorRequest::Block).await };
        if let Some(block) = block {
            let slab = &mut self.slabs.borrow_mut()[usize::from(units)];
            slab.blocks.push(block);
            slab.free.extend(self.layout.objects(block, units));
            return Ok(());
        }
        self.exhausted.set(true);
        let mut phase = PublishedPhase::default();
        for _ in 0..LOOKS {
            let blocks = self.slabs.borrow()[usize::from(units)].blocks.clone();
            blocks.into_iter().for_each(|block| self.look_at(units, block));
            // If other tasks of this client are already looking at all blocks, no chore is queued here. Then this READ,
            // whose result is not used, makes the phase last long enough for those tasks to finish.
            phase.batch.clear();
            let place = self.layout.slot(0, 0);
            phase.batch.read(place.node, place.offset, 8);
            self.post_some(&mut phase);
            phase.go(fabric, self).await?;
            if !self.slabs.borrow()[usize::from(units)].free.is_empty() {
                return Ok(());
            }
        }
        Err(BaselineError::Full)
    }
}
