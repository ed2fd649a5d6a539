//! FUSEE as it was published, and the variants that its paper measures it beside.
//!
//! A [`Client`] works on memory nodes that only lend memory. There is no master, no lease and no recovery: the
//! [`Layout`] follows from the [`Parameters`] and stays. Each memory node has an [`Allocator`], the only thing that
//! takes its processor.
//!
//! | variant | made by | differs in |
//! |---|---|---|
//! | FUSEE | [`Parameters::published`] | |
//! | FUSEE-CR | [`Parameters::one_by_one`] | the replicas of a slot are CASed one after the other (P §6.1) |
//! | FUSEE-NC | [`Parameters::without_cache`] | there is no index cache (P §6.1) |
//! | allocation by memory nodes | [`Parameters::allocated_by_nodes`] | a request for each object (P §6.3, Figure 17) |
//!
//! # Phases
//!
//! Without conflicts and with `r` replicas of the index. A hint is what the index cache knows; INSERT needs none.
//!
//! | operation | with a hint | without | FUSEE-CR, with a hint |
//! |---|---|---|---|
//! | SEARCH | 1 | 2; nothing there: 1 | 1 |
//! | UPDATE, DELETE | 4; `r` = 1: 2 | 5; `r` = 1: 3 | 1 + `r` |
//! | INSERT | | 4; `r` = 1: 2 | 1 + `r` |
//!
//! The four are: WRITE the object and READ the slot; CAS the backups; WRITE the old value into the log entry of the
//! object; CAS the primary (P Figure 9). With one index replica the log commit is left out (P §6.1). Rule 2 takes one
//! phase more, Rule 3 two. A pair with the key's fingerprint takes an INSERT one more, as it compares keys.
//!
//! # What it keeps
//!
//! Without crashes UPDATE and SEARCH of keys that are there are linearizable in random histories, in each variant, also
//! where memory is used again soon.
//!
//! # What it breaks
//!
//! Also without crashes. `tests/promises/published/anomalies.rs` shows each with its shortest history.
//!
//! * *Done twice*: INSERT beside INSERT of a key, or DELETE beside DELETE, and both are done. Losers return success,
//!   and all DELETEs write 0, so that each of two stands on all backups. Not so in FUSEE-CR.
//! * *Nothing deleted*: UPDATE beside DELETE, both done, and SEARCH finds the key. The DELETE has lost. Not so in
//!   FUSEE-CR.
//! * *A pair is lost*: INSERTs of two keys that choose one free slot, both done, and SEARCH finds one key only. Not so
//!   in FUSEE-CR.
//! * *A key twice*: INSERT beside INSERT of a key into another slot, both done; after a DELETE, SEARCH finds the key.
//!   Nobody looks for duplicates, also in FUSEE-CR.
//! * *For ever lost*: an INSERT has lost, and the winner's key is deleted before it READs the primary. That shows 0
//!   again, so it never returns.
//! * *Two last writers*: a CAS of an INSERT reaches a backup when the pair that won there has been deleted. It finds 0
//!   and wins as well. The backups are no longer equal, and later UPDATEs of the key never return.
//! * *Uncommitted read*: SEARCH has READ the slot, and then the object, which its owner has used again for the same
//!   key. Key and crc are right, but the slot does not show it yet, and the next SEARCH finds the value before. So it
//!   is in each variant.
//! * *Missed key*: the same, and the object is another key's by then, which looks like a colliding fingerprint: SEARCH
//!   finds nothing. So it is in each variant.
//!
//! The last two take an object that is freed, reclaimed and written again between two phases of a reader. What never
//! returns here is given up with [`Failed::Stuck`](crate::Failed::Stuck).
//!
//! # How the paper is read
//!
//! * The index is sized once: there is no split, and buckets have no header.
//! * The slot's word tells whether what was cached is valid. The invalidation bit of a pair is left out.
//! * Losers poll without the "little sleep": a fabric has no clock.
//! * Background work, the freeing and the reclaiming, rides with the first phase of later writes.
//! * FUSEE-CR does not commit its log, as the paper counts its phases; who finds another writer at it begins again.
//! * Where memory nodes allocate, objects are freed along with the next request.
//! * The block allocation table and the heads of the log's lists are left out: only recovery reads them.

mod allocator;
mod cache;
mod client;
mod layout;
mod memory;
mod object;
mod parameters;
mod rounds;

pub use allocator::{Allocator, Costs, Request};
pub use client::{Client, Counts};
pub use layout::Layout;
pub use parameters::{Allocation, Parameters, Unfit, Writes};
