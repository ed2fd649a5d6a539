//! The memory of a session: the objects that it may allocate, and those that it has freed.
//!
//! The order of calls, over the life of an object:
//!
//! 1. A write *allocates* the object. If its slab has none, the write is unpinned, awaits memory
//!    ([`out_of_memory`]), and begins anew.
//! 2. At the end of the attempt the object is *given back* if no CAS has mentioned it; else its write ends in its
//!    block.
//! 3. The writer that replaces a word *frees* what the word kept ([`reclaim`]). A write that is suspended before it
//!    knows whether it has replaced one *holds* the memory meanwhile.
//! 4. After the operation, in this order: the session *sets free* what was freed, *looks ahead* if the slab lacks
//!    something, and *offers* other sessions the blocks that it does not need.
//! 5. While memory is short, blocks are collected ([`reclaim`]) and compared with the index ([`compare`]).
//! 6. A session that leaves seals its blocks, and hands on what is left of them ([`seal`]).

mod compare;
mod out_of_memory;
mod reclaim;
mod seal;

pub(super) use reclaim::{MemoryHold, PendingFreeBits, SET_FREE_TOGETHER, is_frozen};
