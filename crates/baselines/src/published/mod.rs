//! FUSEE as it was published, and the variants that its paper compares it with.
//!
//! A [`PublishedClient`] works on memory nodes that only lend memory. There is no master, no lease and no recovery: the
//! [`PublishedLayout`] follows from the [`PublishedParameters`] and never changes. Each memory node has an
//! [`Allocator`], the only use of its processor.
//!
//! | variant | made by | differs in |
//! |---|---|---|
//! | FUSEE | [`PublishedParameters::published`] | |
//! | FUSEE-CR | [`PublishedParameters::one_by_one`] | the replicas of a slot are CASed one after the other (P §6.1) |
//! | FUSEE-NC | [`PublishedParameters::without_cache`] | there is no index cache (P §6.1) |
//! | allocated by nodes | [`PublishedParameters::allocated_by_nodes`] | a request an object (P §6.3, Figure 17) |
//!
//! # Phases
//!
//! Without conflicts, with `r` replicas of the index. A hint is an entry of the index cache; INSERT needs none.
//!
//! | operation | with a hint | without | FUSEE-CR, with a hint |
//! |---|---|---|---|
//! | SEARCH | 1 | 2; nothing there: 1 | 1 |
//! | UPDATE, DELETE | 4; `r` = 1: 2 | 5; `r` = 1: 3 | 1 + `r` |
//! | INSERT | | 4; `r` = 1: 2 | 1 + `r` |
//!
//! The four phases are: WRITE the object and READ the slot; CAS the backups; WRITE the old value into the log entry
//! of the object; CAS the primary (P Figure 9). With one index replica the log commit is left out (P §6.1). Rule 2
//! takes one more phase, Rule 3 two more. An INSERT takes one more phase if a pair has the key's fingerprint, to
//! compare keys.
//!
//! # Promises kept
//!
//! Without crashes, UPDATE and SEARCH of existing keys are linearizable in random histories, in each variant, also if
//! memory is reused soon.
//!
//! # Promises broken
//!
//! These failures also happen without crashes. `tests/promises/published/anomalies.rs` shows each with its shortest
//! history.
//!
//! * *Done twice*: two INSERTs of one key at once, or two DELETEs, both succeed. Losers return success, and all
//!   DELETEs write 0, so each of two DELETEs sees its word on all backups. FUSEE-CR does not have this failure.
//! * *Nothing deleted*: an UPDATE and a DELETE at once both succeed, and SEARCH finds the key, since the DELETE has
//!   lost. FUSEE-CR does not have this failure.
//! * *A pair is lost*: INSERTs of two keys that choose one free slot both succeed, and SEARCH finds one key only.
//!   FUSEE-CR does not have this failure.
//! * *A key twice*: INSERTs of one key into two different slots both succeed. After a DELETE, SEARCH still finds the
//!   key. No variant looks for duplicates, FUSEE-CR included.
//! * *For ever lost*: an INSERT has lost, and the winner's key is deleted before the loser READs the primary. The
//!   primary shows 0 again, so the loser never returns.
//! * *Two last writers*: a CAS of an INSERT reaches a backup after the pair that won there has been deleted. The CAS
//!   finds 0 and wins as well. The backups are no longer equal, and later UPDATEs of the key never return.
//! * *Uncommitted read*: a SEARCH READs the slot, and then the object, which its owner has reused for the same key.
//!   Key and crc are right, but the slot does not show this object's new use yet, and the next SEARCH finds the
//!   earlier value. All variants have this failure.
//! * *Missed key*: the same, but the object has been reused for another key. The SEARCH takes it for a colliding
//!   fingerprint and finds nothing. All variants have this failure.
//!
//! The last two need an object that is freed, reclaimed and written again between two phases of a reader. An
//! operation that would never return gives up here with [`BaselineError::Stuck`](crate::BaselineError::Stuck).
//!
//! # How the paper is read
//!
//! * The index is sized once: there is no split, and buckets have no header.
//! * The slot's word tells whether a hint is valid. The invalidation bit of a pair is left out.
//! * Losers poll without the "little sleep": a fabric has no clock.
//! * Background work, the freeing and the reclaiming, rides with the first phase of later writes.
//! * FUSEE-CR does not commit its log, in line with the paper's count of its phases. A writer that finds another
//!   writer ahead of it begins again.
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

pub use allocator::{Allocator, AllocatorCosts, AllocatorRequest};
pub use client::{PublishedClient, PublishedCounts};
pub use layout::PublishedLayout;
pub use parameters::{
    ObjectAllocation, PublishedConfigError, PublishedParameters, SlotWriteProtocol,
};
