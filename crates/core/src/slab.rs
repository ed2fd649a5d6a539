//! The client's half of two-level allocation: slabs cut from blocks (P §4.4), and the order of
//! allocation that the embedded log records (P §4.5).
//!
//! Per size class a client owns a list of blocks and takes their objects in order. So the next
//! object is known before it is needed, and every log entry can name it. At the end of a block
//! the entry names nothing; the log goes on in the block whose header has the next sequence
//! number.
//!
//! Objects are not taken back yet: what an update replaces stays where it is. The one exception is
//! an object that no CAS ever mentioned, when it is also the newest of its class: nobody knows its
//! address, so it is allocated again, with the next generation.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::host::BlockGrant;
use crate::layout::{Address, BlockHeader, BlockShape, LogEntry, Opcode, SizeClass, Slot};
use crate::mutant::{Mutant, removed};
use crate::verbs::ClientId;

/// An object to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Where it is.
    pub address: Address,
    /// Its size class.
    pub class: SizeClass,
    /// The generation for its header and slot.
    pub generation: u8,
    /// The pointers of its log entry.
    pub next: Address,
    /// See [`LogEntry::prev`].
    pub prev: Address,
    /// The header of its block, with the block's address, until it is known to be written: goes
    /// into the same batch, before the object. So no object of a block can be visible before the
    /// header by which recovery finds it, whichever operation comes first and whichever fails.
    pub header: Option<(Address, BlockHeader)>,
}

impl Allocation {
    /// The log entry of this object.
    pub fn entry(&self, opcode: Opcode, old: Option<u64>) -> LogEntry {
        LogEntry { next: self.next, prev: self.prev, old, opcode }
    }
}

/// The unused rest of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rest {
    /// The block's address.
    pub block: Address,
    /// The class of its objects.
    pub class: SizeClass,
    /// The first unused object.
    pub first: u32,
}

/// The block that a class allocates from.
#[derive(Debug)]
struct Current {
    block: Address,
    shape: BlockShape,
    /// The next object to hand out.
    index: u32,
    /// The first object that this client took.
    first: u32,
    /// Until it is known to be written.
    header: Option<BlockHeader>,
    /// The generation of object `index`.
    generation: u8,
    /// Whether object `index` was handed out before, and given back.
    written: bool,
}

impl Current {
    fn object(&self, index: u32) -> Address {
        Address::new(self.block.bytes() + self.shape.offset(index))
    }
}

#[derive(Debug)]
struct Slab {
    class: SizeClass,
    current: Option<Current>,
    /// Begun blocks whose regions are frozen, or were.
    aside: Vec<Current>,
    waiting: VecDeque<BlockGrant>,
    /// The object allocated last, and the one before.
    last: Address,
    blocks_used: u64,
    /// Whether an operation is asking for a block of this class.
    asking: bool,
}

/// All slabs of one session.
#[derive(Debug)]
pub struct Slabs {
    owner: ClientId,
    block_bytes: u64,
    slabs: Vec<Slab>,
}

impl Slabs {
    /// No blocks yet.
    pub fn new(owner: ClientId, block_bytes: u64) -> Slabs {
        Slabs { owner, block_bytes, slabs: Vec::new() }
    }

    fn slab(&mut self, class: SizeClass) -> &mut Slab {
        let found = self.slabs.iter().position(|s| s.class == class);
        let at = found.unwrap_or_else(|| {
            self.slabs.push(Slab {
                class,
                current: None,
                aside: Vec::new(),
                waiting: VecDeque::new(),
                last: Address::NONE,
                blocks_used: 0,
                asking: false,
            });
            self.slabs.len() - 1
        });
        &mut self.slabs[at]
    }

    /// Whether the caller is the one to ask for a block of this class; the others wait for it.
    /// Without this, every operation that finds the slab empty would take a block of its own.
    /// Ends with [`Slabs::end_ask`].
    pub fn begin_ask(&mut self, class: SizeClass) -> bool {
        !core::mem::replace(&mut self.slab(class).asking, true)
    }

    /// The block has come, or will not come.
    pub fn end_ask(&mut self, class: SizeClass) {
        self.slab(class).asking = false;
    }

    /// Adds a block to a class. Returns whether the class can use it.
    pub fn add_block(&mut self, class: SizeClass, grant: BlockGrant) -> bool {
        let shape = BlockShape::new(self.block_bytes, class);
        let usable = shape.is_some_and(|s| grant.first < s.objects);
        if usable {
            self.slab(class).waiting.push_back(grant);
        }
        usable
    }

    /// Takes the next object of a class, of a block that is not frozen; `None` when a block is
    /// needed.
    pub fn allocate(
        &mut self,
        class: SizeClass,
        is_frozen: impl Fn(Address) -> bool,
    ) -> Option<Allocation> {
        let (owner, block_bytes) = (self.owner, self.block_bytes);
        let slab = self.slab(class);
        let has_room = |c: &Current| c.index < c.shape.objects;
        if slab.current.as_ref().is_some_and(|c| has_room(c) && is_frozen(c.block)) {
            slab.aside.extend(slab.current.take());
        }
        if !slab.current.as_ref().is_some_and(has_room)
            && let Some(begun) = slab.aside.iter().position(|c| !is_frozen(c.block))
        {
            slab.current = Some(slab.aside.swap_remove(begun));
        }
        if !slab.current.as_ref().is_some_and(has_room) {
            let next = slab.waiting.iter().position(|grant| !is_frozen(grant.address))?;
            let grant = slab.waiting.remove(next)?;
            let shape = BlockShape::new(block_bytes, class).expect("add_block checked it");
            let (first, sequence) = (grant.first, slab.blocks_used);
            slab.blocks_used += 1;
            slab.current = Some(Current {
                block: grant.address,
                shape,
                index: first,
                first,
                header: Some(BlockHeader { class, owner, first, sequence }),
                generation: 0,
                written: false,
            });
        }
        let current = slab.current.as_mut().expect("just set");
        let address = current.object(current.index);
        let next = current.index + 1;
        let allocation = Allocation {
            address,
            class,
            generation: current.generation,
            next: if next < current.shape.objects { current.object(next) } else { Address::NONE },
            prev: slab.last,
            header: current.header.map(|header| (current.block, header)),
        };
        current.index = next;
        current.generation = 0;
        current.written = false;
        slab.last = address;
        Some(allocation)
    }

    /// The header that came with an object stands on all replicas.
    pub fn header_written(&mut self, object: &Allocation) {
        let slab = self.slab(object.class);
        if let (Some(current), Some((block, _))) = (&mut slab.current, &object.header)
            && current.block == *block
        {
            current.header = None;
        }
    }

    /// Takes back an object that was written but that no CAS ever mentioned. Does nothing if a
    /// later one of its class has been allocated: the log's order must stay.
    pub fn give_back(&mut self, object: &Allocation) {
        let slab = self.slab(object.class);
        let newest = slab.last == object.address;
        let is_its_block = |c: &&mut Current| {
            let is_last = c.index > c.first && c.object(c.index - 1) == object.address;
            (newest && is_last) || (removed(Mutant::OlderObjectGivenBack) && c.index > c.first)
        };
        let Some(current) = slab.current.as_mut().filter(is_its_block) else { return };
        current.index -= 1;
        current.generation = (object.generation + 1) % Slot::GENERATIONS;
        current.written = true;
        slab.last = object.prev;
    }

    /// The unused rests of all blocks, which this client stops using.
    pub fn take_rests(&mut self) -> Vec<Rest> {
        let mut rests = Vec::new();
        for slab in core::mem::take(&mut self.slabs) {
            let class = slab.class;
            for current in slab.current.into_iter().chain(slab.aside) {
                // An object that was given back was written once: leave it out.
                let first = current.index + u32::from(current.written);
                if first < current.shape.objects {
                    rests.push(Rest { block: current.block, class, first });
                }
            }
            rests.extend(slab.waiting.iter().map(|grant| Rest {
                block: grant.address,
                class,
                first: grant.first,
            }));
        }
        rests
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = 4096;

    fn grant(n: u64, first: u32) -> BlockGrant {
        BlockGrant { address: Address::new(n * BLOCK), first }
    }

    fn class() -> SizeClass {
        SizeClass::fitting(1024).unwrap()
    }

    #[test]
    fn objects_are_linked_in_the_order_of_allocation() {
        let mut slabs = Slabs::new(ClientId(7), BLOCK);
        assert_eq!(slabs.allocate(class(), |_| false), None);
        assert!(slabs.add_block(class(), grant(1, 0)));
        assert!(slabs.add_block(class(), grant(5, 1)));
        let take = || {
            let object = slabs.allocate(class(), |_| false)?;
            slabs.header_written(&object);
            Some(object)
        };
        let all: Vec<Allocation> = core::iter::from_fn(take).collect();
        assert_eq!(all.len(), 3 + 2);
        for pair in all.windows(2) {
            assert_eq!(pair[1].prev, pair[0].address);
            let crosses = pair[1].header.is_some();
            assert_eq!(pair[0].next, if crosses { Address::NONE } else { pair[1].address });
        }
        let (address, header) = all[3].header.unwrap();
        assert_eq!((address, header.sequence, header.first), (Address::new(5 * BLOCK), 1, 1));
        assert_eq!(header.owner, ClientId(7));
    }

    #[test]
    fn only_the_newest_object_is_taken_back_and_changes_its_generation() {
        let mut slabs = Slabs::new(ClientId(1), BLOCK);
        slabs.add_block(class(), grant(1, 0));
        let first = slabs.allocate(class(), |_| false).unwrap();
        let second = slabs.allocate(class(), |_| false).unwrap();
        slabs.give_back(&first);
        slabs.give_back(&second);
        let again = slabs.allocate(class(), |_| false).unwrap();
        assert_eq!((again.address, again.generation), (second.address, 1));
        assert_eq!((again.prev, again.next), (second.prev, second.next));
        let third = slabs.allocate(class(), |_| false).unwrap();
        assert_eq!(third.generation, 0);
    }

    #[test]
    fn a_header_goes_with_every_object_until_it_is_written() {
        let mut slabs = Slabs::new(ClientId(1), BLOCK);
        slabs.add_block(class(), grant(1, 0));
        let first = slabs.allocate(class(), |_| false).unwrap();
        let second = slabs.allocate(class(), |_| false).unwrap();
        assert_eq!(first.header, second.header);
        assert!(second.header.is_some());
        slabs.header_written(&second);
        assert_eq!(slabs.allocate(class(), |_| false).unwrap().header, None);
    }

    /// Also when its generation has come round.
    #[test]
    fn an_object_that_was_given_back_is_never_handed_on() {
        let mut slabs = Slabs::new(ClientId(1), BLOCK);
        slabs.add_block(class(), grant(1, 0));
        for _ in 0..u32::from(Slot::GENERATIONS) {
            let object = slabs.allocate(class(), |_| false).unwrap();
            slabs.give_back(&object);
        }
        assert_eq!(slabs.take_rests()[0].first, 1);
    }

    #[test]
    fn rests_hold_exactly_what_was_never_written() {
        let mut slabs = Slabs::new(ClientId(1), BLOCK);
        slabs.add_block(class(), grant(1, 0));
        slabs.add_block(class(), grant(2, 0));
        let object = slabs.allocate(class(), |_| false).unwrap();
        slabs.give_back(&object);
        let rest = |n: u64, first| Rest { block: Address::new(n * BLOCK), class: class(), first };
        assert_eq!(slabs.take_rests(), [rest(1, 1), rest(2, 0)]);
        assert!(slabs.take_rests().is_empty());
        assert!(!slabs.add_block(class(), grant(1, 3)), "an exhausted block is refused");
        assert!(!slabs.add_block(SizeClass::MAX, grant(1, 0)), "too large for a block");
    }
}
