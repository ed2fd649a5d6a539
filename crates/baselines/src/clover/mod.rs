//! Clover: a store whose memory nodes keep each key's values as a chain of entries. A metadata server keeps the index
//! and the free entries (Tsai, Shan and Zhang, "Disaggregating Persistent Memory and Controlling Them Remotely", ATC
//! '20).
//!
//! A client remembers the last entry that it has seen of a key's chain, its *cursor*. Each key also has a *shortcut*, a
//! word on a memory node that names an entry near the end of the chain.
//!
//! * SEARCH, one phase: READ the entry at the cursor, and the shortcut. If another entry follows that entry, the client
//!   continues at the shortcut, with one phase for each further entry. If an entry has been reused, the client queries
//!   the metadata server for the chain.
//! * UPDATE with one replica, two phases: WRITE the new entry; CAS it to the end of the chain. If the CAS fails, the
//!   client READs to the end of the chain and CASes there.
//! * UPDATE with more replicas, three phases: WRITE the new entry, and mark the last entry as uncommitted by a CAS of
//!   its first word; WRITE that word, which now names the follower but is still uncommitted, to all replicas; WRITE the
//!   word to all replicas without the mark. A reader treats an uncommitted entry as the last one. A writer waits until
//!   the entry is committed.
//! * INSERT, one phase, and a request that opens the key. There is no DELETE.
//!
//! Before an operation the client requests new entries if it has used all that it had, and queries the chain of a key
//! that it does not know. After an update, work is left for the [background](crate::BaselineSession::background), which
//! does it for up to 16 updates at a time: WRITE the shortcut, and request that the replaced entry be retired. The
//! metadata server frees the entries of a chain in their order. A reused entry has another version. Pointers contain
//! the version, so an old pointer never leads to the new use.
//!
//! # Promise
//! Without crashes every operation is linearizable, with any number of replicas. An update takes effect when its CAS
//! succeeds, or, with more replicas, when its last WRITE reaches the primary replica. An insert takes effect at the
//! metadata server. A search takes effect when it READs the first word of the entry whose value it returns. A shortcut
//! can be old, but never wrong. A client that walks along a chain continues from the shortcut even if its cursor was
//! newer.
//!
//! # What is different here
//! * The published code reads values without a checksum. It waits for two round trips before it frees an entry. A READ
//!   that takes longer can return the value of another update, even of another key. The networks of these tests do not
//!   bound the time of a READ. Therefore an entry has a checksum of its key, version and value here, as in the
//!   published code with its CRC turned on, and the server does not wait. (A test steers the shortest history without a
//!   checksum: a search READs the first word of an entry. Then another session updates this key, and after that a
//!   second key, until the entry has the second key's value. The search returns that value.)
//! * Versions have 17 bits, not 8, at the cost of fewer addresses. An entry that has used up its versions is never
//!   reused. Therefore there are no epochs, at whose ends the published code waits for all clients before versions
//!   start again.
//! * A pointer names an entry, and the places of all its replicas follow from its address. A published pointer has a
//!   word for each replica. Requests are as long as with published pointers.
//! * A session has at most [`BACKLOG`] updates in the background. Further updates wait. Only memory bounds the
//!   published backlog, and a run of seconds does not fill memory, so the garbage of a short run would never be
//!   collected. Each session has its own background, whereas published sessions share four threads with the others of
//!   their machine.
//! * The client that inserts a key writes the key's shortcut, in the background. In the published system the server
//!   does.

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

/// Number of replicas of entries that the metadata server hands out in one reply.
pub const ENTRIES_AT_A_TIME: usize = 16;

/// Largest number of entries that a client retires together.
pub const RETIRED_TOGETHER: usize = 16;

/// Largest number of a session's updates whose background work is pending. *Assumed.*
pub const BACKLOG: usize = 128;

/// Offsets of the checksum, the key and the value in an entry.
const SUM: u32 = 8;
const KEY: u32 = 16;
const VALUE: u32 = 32;
