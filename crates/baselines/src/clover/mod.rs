//! Clover: a store that keeps each key's values on memory nodes as a chain of entries, and the index and the free
//! entries on a metadata server (Tsai, Shan and Zhang, "Disaggregating Persistent Memory and Controlling Them
//! Remotely", ATC '20).
//!
//! A client remembers the last entry that it has seen of a key's chain, its *cursor*. Each key also has a *shortcut*:
//! a word on a memory node that names an entry near the end of the chain.
//!
//! * SEARCH, one phase: READ the entry at the cursor, and the shortcut. If another entry follows, the client goes on
//!   from the shortcut, one phase for each further entry. If an entry has been reused, the client queries the
//!   metadata server for the chain.
//! * UPDATE with one replica, two phases: WRITE the entry; CAS it to the end of the chain. If the CAS fails, the
//!   client READs to the end of the chain and CASes there.
//! * UPDATE with more replicas, three phases: WRITE the new entry, and CAS the last entry to uncommitted; WRITE the
//!   follower into that entry, still uncommitted; WRITE the follower, committed. A reader takes an uncommitted entry
//!   for the last one; a writer waits until it is committed.
//! * INSERT, one phase and a request to open the key. There is no DELETE.
//!
//! Before that the client requests entries if it has used up the last ones, and queries the chain of a key that it
//! does not know. The work after an update is done in the [background](crate::BaselineSession::background), for up to
//! 16 updates at a time: WRITE the shortcut, and request that the replaced entry be retired. The metadata server frees
//! entries in the order of the chain. A reused entry has another version. Pointers name the version, so an old
//! pointer never leads to the new use.
//!
//! # Promise
//! Without crashes every operation is linearizable, with any number of replicas. An update takes effect when its CAS
//! succeeds, or when the primary replica has its last WRITE; an insert at the metadata server; a search when it READs
//! the first word of the entry whose value it returns. A shortcut may be old, but never wrong. A walk goes on from it
//! even if the cursor was newer.
//!
//! # What is different here
//! * The published code reads values without a sum. It waits for two round trips before it frees an entry; a READ
//!   that takes longer may return a value of another update, even of another key. Networks of these tests have no
//!   such bound. So here an entry has a sum of its key, version and value, as in the published code with its CRC
//!   turned on, and the server does not wait. (A test steers the shortest such history: a search READs the first word
//!   of an entry. Then another session updates this key, and after that a second key, until the entry has that key's
//!   value. Without the sum the search returns the second key's value.)
//! * Versions have 17 bits, not 8, at the cost of fewer addresses. An entry whose versions are used up is not used
//!   again. So there are no epochs, in which the published code waits for all clients before versions begin again.
//! * A pointer names an entry with all its replicas, which follow from its address; the published one has a word for
//!   each replica. Requests are as long as with those words.
//! * A session has at most [`BACKLOG`] updates in the background; then its updates wait. The published backlog is
//!   bounded by memory only, which a run of seconds does not fill: the garbage of a short run would never be
//!   collected. Each session has its own background, where published sessions share four threads with the others of
//!   their machine.
//! * The client that inserts a key writes its shortcut, in the background. In the published system the server does.

mod chain_format;
mod server;
mod session;
mod shape;

pub use chain_format::CloverChainFormat;
pub use server::{
    CloverChain, CloverCosts, CloverOpenOutcome, CloverReply, CloverRequest, MetadataServer,
    RetiredEntry,
};
pub use session::{CloverClient, CloverCounts};
pub use shape::{CloverEntry, CloverShape};

/// Entries that the metadata server hands out together, counting replicas.
pub const ENTRIES_AT_A_TIME: usize = 16;

/// Entries that a client retires together.
pub const RETIRED_TOGETHER: usize = 16;

/// Updates of a session whose background work may be pending. *Assumed.*
pub const BACKLOG: usize = 128;

/// Offsets of the sum, the key and the value in an entry.
const SUM: u32 = 8;
const KEY: u32 = 16;
const VALUE: u32 = 32;
