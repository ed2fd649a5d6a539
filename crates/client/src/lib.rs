//! Client library of FUSEE, a key-value store in memory that other machines or processes lend.
//!
#![cfg_attr(feature = "embedded", doc = "```")]
#![cfg_attr(not(feature = "embedded"), doc = "```ignore")]
//! use fusee_client::{BatchWrite, Client, EmbeddedOptions};
//!
//! # fn main() -> Result<(), fusee_client::Error> {
//! // A whole cluster inside this process: three memory nodes and a master. To join a real one:
//! // let client = Client::connect("127.0.0.1:7400")?;
//! let client = Client::embedded(EmbeddedOptions::default())?;
//! let store = client.blocking();
//!
//! store.insert(b"answer", b"41")?;
//! store.update(b"answer", b"42")?;
//! assert_eq!(store.get(b"answer")?.as_deref(), Some(&b"42"[..]));
//!
//! // Clones share everything; each thread works in a session of its own.
//! let other = store.clone();
//! std::thread::spawn(move || other.put(b"question", b"?")).join().unwrap()?;
//!
//! // Many keys share round trips, and each write has a result of its own.
//! assert_eq!(store.get_many(&["answer", "question", "none"])?.len(), 3);
//! let writes = [BatchWrite::put("a", "1"), BatchWrite::delete("answer")];
//! assert_eq!(store.write_many(&writes), [Ok(()), Ok(())]);
//! assert_eq!(store.get(b"answer")?, None);
//! # Ok(())
//! # }
//! ```
//!
//! | type | its calls | for |
//! |---|---|---|
//! | [`Client`] | are async: any executor, futures that may be dropped | servers with async tasks |
//! | [`BlockingClient`], by [`Client::blocking`] | block the calling thread | everything else |
//! | [`Session`], by [`Client::session`] | are async, and belong to one thread | lowest latency, many at once |
//! | [`Admin`], by [`Client::admin`] | block the calling thread | status, memory, demotion |
//!
//! The first three have the same operations on pairs, all of them linearizable:
//!
//! | operation | meaning |
//! |---|---|
//! | `get`, `get_with`, `get_many` | the value: copied, or shown where it was fetched; of many keys |
//! | `put`, `insert`, `update` | adds or replaces; adds only; replaces only |
//! | `put_with` | by [`PutOptions`]: condition, redundancy |
//! | `delete` | removes |
//! | `write_many` | many [`BatchWrite`]s together |
//! | `scan` | all pairs, by pieces |
//! | `redundancy_of`, `set_redundancy` | the way in which the value survives failures |
//!
//! # Errors
//!
//! Each family of calls has an error of its own: [`ConnectError`], [`ReadError`], [`WriteError`],
//! [`ScanError`], [`SurveyError`]. All of them convert into [`Error`], for `?`. The error of a
//! failed write says whether the write may still have happened ([`WriteError::outcome`]).
//!
//! # Features
//!
//! * `embedded`, on by default: clusters inside the calling process (`Client::embedded`). It
//!   compiles the memory node, the master and the master's store into the program. A program that
//!   only joins clusters can do without: `default-features = false`.
//!
//! * `telemetry`, off by default: a `tracing` span for each operation, from which OpenTelemetry
//!   makes traces, and latencies of operations in [`Client::metrics`].
//!
//! # Examples
//!
//! The repository's `examples/` has ten short programs, each a thing that somebody builds:
//! `session_store`, `shared_counters`, `feature_flags`, `job_results` (async), `build_cache`,
//! `rate_limit`, `leaderboard`, `config_distribution`, `blobs` and `embedded_test`.
//! `cargo run -p fusee-client --example session_store` runs one in a cluster of its own; with
//! `FUSEE_MASTER=127.0.0.1:7400` it joins that cluster.
#![forbid(unsafe_code)]

mod admin;
mod attachments;
mod blocking;
mod client;
mod driver;
#[cfg(feature = "embedded")]
mod embedded;
mod error;
mod executor;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod logic;
// Parts of `logic` are used by the simulator only, which puts them together in other ways.
mod context;
mod demotion;
mod fabric_selection;
#[cfg(not(feature = "internals"))]
#[allow(dead_code, unused_imports)]
mod logic;
mod metrics;
mod options;
pub mod prometheus;
mod session;
mod survey;
mod sync;
mod telemetry;
mod writes;

pub use admin::Admin;
pub use blocking::BlockingClient;
pub use client::Client;
pub use demotion::{DemotionOrder, DemotionOutcome};
#[cfg(feature = "embedded")]
pub use embedded::EmbeddedOptions;
pub use error::{ConnectError, Error, ReadError, ScanError, WriteError};
pub use fusee_auth::{KeyError, Keyring};
pub use fusee_control::rpc::{Role, RpcError};
pub use fusee_core::FailedWriteOutcome;
pub use fusee_core::data::{
    Demotion, Fallback, Orientation, OrientationError, ParseRedundancyError, Policy, PolicyError,
    PromotedRedundancy, Promotion, Redundancy, RedundancyError, RedundancyRules, SizeRule,
    Transitions,
};
pub use fusee_core::erasure::{Coding, CodingError};
pub use fusee_core::layout::SizeClass;
pub use fusee_core::stats::{Cost, Damage, KindStats, OpKind, Stats};
pub use fusee_core::store::{ParseCursorError, ScanCursor, ScannedPair, Transition};
pub use fusee_core::verbs::{ClientId, ClusterId, MnId, VerbError};
pub use fusee_fabric::any_fabric::UnknownFabric;
pub use fusee_fabric::verbs::NicCounts;
pub use fusee_fabric::{AttachCause, AttachError, FabricKind, RdmaError, SwitchLocation};
pub use fusee_tls::{TlsError, TlsSettings};
pub use logic::{CacheStats, WorkTableStats};
pub use metrics::ClientMetrics;
pub use options::{FabricChoice, Options, WorkTable};
pub use session::Session;
pub use status::{Status, Usage};
pub use survey::{
    ClassMemory, FoundPair, MemorySurvey, NodeMemory, OwnerMemory, OwnerState, RedundancyMemory,
    SurveyError,
};
#[cfg(feature = "telemetry")]
pub use telemetry::LatencySums;
pub use view::{Geometry, View, ViewError};
pub use writes::{BatchWrite, PutCondition, PutOptions};

/// The status of the cluster according to the master ([`Admin::status`]), and the usage of a
/// memory node's pool ([`Admin::usage`]).
pub mod status {
    pub use fusee_control::master::{
        ClientRecovery, MemberState, MemberStatus, Reconfiguration, RecoveryTimes, ScrubStatus,
        Status,
    };
    pub use fusee_control::node::Usage;
}

/// The parts of a view ([`Client::view`]), and the changes from one view to the next.
pub mod view {
    pub use fusee_core::data::Region;
    pub use fusee_core::layout::Address;
    pub use fusee_core::view::change::{
        ChangeStage, LeavingFrom, NewReplica, RegionChange, SplitProgress, SubtableChange,
        UnsurvivableLoss, ViewChange,
    };
    pub use fusee_core::view::{Geometry, Member, PoolPlace, SlotRef, Subtable, View, ViewError};
}
