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
//! | allocated by nodes | [`PublishedParameters::allocated_by_nodes`] | one request per object (P §6.3, Figure 17) |
//!
//! # Phases
//!
//! The table counts phases without conflicts, with `r` replicas of the index. A hint is an entry of the index cache;
//! INSERT needs none.
//!
//! | operation | with a hint | without | FUSEE-CR, with a hint |
//! |---|---|---|---|
//! | SEARCH | 1 | 2; of an absent key: 1 | 1 |
//! | UPDATE, DELETE | 4; `r` = 1: 2 | 5; `r` = 1: 3 | 1 + `r` |
//! | INSERT | | 4; `r` = 1: 2 | 1 + `r` |
//!
//! The four phases are: WRITE the object and READ the slot; CAS the backups; WRITE the old value into the log entry of
//! the object; CAS the primary (P Figure 9). With one index replica the log entry is not committed (P §6.1). Rule 2
//! takes one more phase, Rule 3 two more. An INSERT takes one more phase to compare keys if a pair has the key's
//! fingerprint.
//!
//! # Promises kept
//!
//! Without crashes, UPDATE and SEARCH of existing keys are linearizable in random histories. This holds in each
//! variant, and also when memory is reused soon.
//!
//! # Promises broken
//!
//! These failures also happen without crashes. `tests/promises/published/anomalies.rs` shows each with its shortest
//! history.
//!
//! * *Done twice*: two INSERTs of one key at the same time both succeed, and so do two DELETEs. Losers return success,
//!   and all DELETEs write 0, so each of two DELETEs sees its word on all backups. FUSEE-CR does not have this failure.
//! * *Nothing deleted*: an UPDATE and a DELETE at the same time both succeed, and SEARCH finds the key, because the
//!   DELETE has lost. FUSEE-CR does not have this failure.
//! * *A pair is lost*: INSERTs of two keys that choose the same free slot both succeed, and SEARCH finds only one of
//!   the keys. FUSEE-CR does not have this failure.
//! * *A key twice*: INSERTs of one key into two different slots both succeed. After a DELETE, SEARCH still finds the
//!   key. No variant looks for duplicates, not even FUSEE-CR.
//! * *For ever lost*: an INSERT has lost, and the winner's key is deleted before the loser READs the primary. The
//!   primary shows 0 again, so the loser waits for ever.
//! * *Two last writers*: a CAS of an INSERT reaches a backup after the pair that won there has been deleted. The CAS
//!   finds 0, and its INSERT wins as well. The backups then differ, and later UPDATEs of the key never return.
//! * *Uncommitted read*: a SEARCH READs the slot, and then the object, which its owner has meanwhile reused for the
//!   same key. Key and CRC are right, but the slot does not yet show this new use of the object, and the next SEARCH
//!   finds the earlier value. All variants have this failure.
//! * *Missed key*: like the uncommitted read, but the owner has reused the object for another key. The SEARCH regards
//!   the object as that of a key with the same fingerprint, and finds nothing. All variants have this failure.
//!
//! The last two failures need an object that is freed, reclaimed and written again between two phases of a reader. An
//! operation that would never return gives up here, with [`BaselineError::Stuck`](crate::BaselineError::Stuck).
//!
//! # How the paper is read
//!
//! * The index is sized once: subtables do not split, and buckets have no header.
//! * The slot's word tells whether a hint is valid. A pair has no invalidation bit.
//! * Losers poll without the paper's "little sleep", because a fabric has no clock.
//! * The first phase of later writes executes the background work, which frees and reclaims objects.
//! * FUSEE-CR does not commit its log, which agrees with the paper's count of its phases. A writer that finds another
//!   writer ahead of it starts again.
//! * Where memory nodes allocate, a client frees objects along with its next request.
//! * The block allocation table and the heads of the log's lists are left out, because only recovery reads them.

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
