//! Clover: values on memory nodes, in a chain of entries for each key; the index and the free entries with a metadata
//! server (Tsai, Shan and Zhang, "Disaggregating Persistent Memory and Controlling Them Remotely", ATC '20).
//!
//! A client knows the last entry of a key's chain that it has seen, its *cursor*. Each key has a *shortcut* besides: a
//! word on a memory node that names an entry near the end of the chain.
//!
//! * SEARCH, one phase: READ the entry at the cursor, and the shortcut. If another entry follows, it goes on from the
//!   shortcut, one phase for each entry on the way. At an entry that is not what it was any more it asks where the
//!   chain is.
//! * UPDATE with one replica, two phases: WRITE the entry; CAS it to the end of the chain. If that fails: READs to the
//!   end of the chain, and CAS there.
//! * UPDATE with more replicas, three phases: WRITE the entry, and CAS the last one to uncommitted; WRITE which one
//!   follows it, uncommitted; WRITE which one follows it. Whoever finds an uncommitted entry takes it for the last one
//!   to read, and waits to follow it.
//! * INSERT, one phase, and a request to open the key. There is no DELETE.
//!
//! A request for entries comes before that, whenever those that were handed out are used up, and a query where the key
//! is not known. What follows an update is done in the [background](crate::Session::background): WRITE of the
//! shortcut, and the request to retire the entry that is followed now, for 16 updates at a time. The metadata server
//! gives entries free in the order of the chain. An entry that is used again has another version, which pointers to it
//! name: nobody takes it for what it was.
//!
//! # Promise
//! Without crashes every operation is linearizable, with any number of replicas. An update takes effect when its CAS
//! succeeds, or when the primary replica has its last WRITE; an insert at the metadata server; a search when it READs
//! the first word of the entry whose value it returns. A shortcut may be old, never wrong: it is where a walk begins,
//! even if the cursor knew better.
//!
//! # What is different here
//! * The published code reads values without a sum. It waits for two round trips before it gives an entry free; a READ
//!   that takes longer returns a value that another update has overwritten, of another key perhaps. Networks of our
//!   tests know no such bound: here an entry has a sum of its key, version and value, as the code has where its CRC is
//!   turned on, and the server does not wait. (The shortest such history, which a test steers: one session's search
//!   has READ the first word of an entry when another one updates the key, and then a second key until that entry has
//!   its value. Without the sum the search returns the second key's value.)
//! * Versions have 17 bits, not 8, for fewer addresses; an entry whose versions are used up is not used again. So there
//!   are no epochs, in which the published code waits for all clients before versions begin again.
//! * A pointer names an entry with all its replicas, which follow from its address; theirs has a word for each replica.
//!   Requests are as long as if it had.
//! * A session has at most [`BACKLOG`] updates in the background; then its updates wait. Theirs has no bound but
//!   memory, which a run of seconds does not reach: the garbage of a short run would never be collected. Each session
//!   has a background of its own, where theirs shares four threads with the others of its machine.
//! * Who inserts a key writes its shortcut, in the background; there it is the server.

mod server;
mod session;
mod shape;
mod steered;

pub use server::{Chain, Costs, MetadataServer, Opened, Reply, Request, Retired};
pub use session::{Clover, Counts};
pub use shape::{Entry, Shape};
pub use steered::Words;

/// Entries that the metadata server hands out together, replicas counted.
pub const ENTRIES_AT_A_TIME: usize = 16;

/// Entries that a client retires together.
pub const RETIRED_TOGETHER: usize = 16;

/// Updates of a session that may wait for what is to be done in the background. *Assumed.*
pub const BACKLOG: usize = 128;

/// Where an entry has its sum, its key, and its value.
const SUM: u32 = 8;
const KEY: u32 = 16;
const VALUE: u32 = 32;
