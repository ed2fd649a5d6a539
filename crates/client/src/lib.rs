//! Client library of FUSEE, a key-value store in memory that other machines or processes lend.
//!
#![cfg_attr(feature = "embedded", doc = "```")]
#![cfg_attr(not(feature = "embedded"), doc = "```ignore")]
//! use fusee_client::{BatchWrite, Client, EmbeddedOptions};
//!
//! # fn main() -> Result<(), fusee_client::Error> {
//! // A whole cluster inside this process: three memory nodes and a master. To join another one:
//! // let client = Client::connect("127.0.0.1:7400")?;
//! let client = Client::embedded(EmbeddedOptions::default())?;
//! let store = client.blocking();
//!
//! store.insert(b"answer", b"41")?;
//! store.update(b"answer", b"42")?;
//! assert_eq!(store.get(b"answer")?.as_deref(), Some(&b"42"[..]));
//!
//! // Clones share everything, but each thread works in its own session.
//! let other = store.clone();
//! std::thread::spawn(move || other.put(b"question", b"?")).join().unwrap()?;
//!
//! // Many keys share round trips; each write of a batch has its own result.
//! assert_eq!(store.get_many(&["answer", "question", "none"])?.len(), 3);
//! let writes = [BatchWrite::put("a", "1"), BatchWrite::delete("answer")];
//! assert_eq!(store.write_many(&writes), [Ok(()), Ok(())]);
//! assert_eq!(store.get(b"answer")?, None);
//! # Ok(())
//! # }
//! ```
//!
//! There are four types with calls:
//!
//! | type | calls | made for |
//! |---|---|---|
//! | [`Client`] | async, for any executor; their futures can be dropped | servers with async tasks |
//! | [`BlockingClient`], from [`Client::blocking`] | block the calling thread | everything else |
//! | [`Session`], from [`Client::session`] | async, all on one thread | lowest latency, many operations at once |
//! | [`Admin`], from [`Client::admin`] | block the calling thread | status, use of memory, demotion |
//!
//! The first three types have the same operations on pairs. All of these are linearizable:
//!
//! | operation | meaning |
//! |---|---|
//! | `get`, `get_with`, `get_many` | returns the value, shows it without a copy, returns the values of many keys |
//! | `put`, `insert`, `update` | adds or replaces the key, only adds it, only replaces it |
//! | `put_with` | puts the key with [`PutOptions`]: condition and redundancy |
//! | `delete` | removes the key |
//! | `write_many` | executes many [`BatchWrite`]s together |
//! | `scan` | shows all pairs, piece by piece |
//! | `redundancy_of`, `set_redundancy` | returns or changes the way in which the value survives failures |
//!
//! # Errors
//!
//! Each family of calls has its own error type: [`ConnectError`], [`ReadError`], [`WriteError`],
//! [`ScanError`], [`SurveyError`]. All of them convert into [`Error`], for `?`. The error of a
//! failed write tells whether the write has possibly taken effect all the same ([`WriteError::outcome`]).
//!
//! # Features
//!
//! * `embedded`, on by default: clusters inside the calling process (`Client::embedded`). This
//!   feature compiles the memory node, the master and the master's store into the program. A program
//!   that only joins clusters can turn it off by `default-features = false`.
//!
//! * `telemetry`, off by default: a `tracing` span for each operation, from which OpenTelemetry
//!   makes traces, and latencies of operations in [`Client::metrics`].
//!
//! # Examples
//!
//! The repository's `examples/` has ten short programs for typical uses of the store:
//! `session_store`, `shared_counters`, `feature_flags`, `job_results` (async), `build_cache`,
//! `rate_limit`, `leaderboard`, `config_distribution`, `blobs` and `embedded_test`.
//! `cargo run -p fusee-client --example session_store` runs one of them in an embedded cluster; with
//! the environment variable `FUSEE_MASTER=127.0.0.1:7400` it joins that cluster instead.
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
// The `allow` is there because parts of `logic` are used by the simulator only.
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
    BlockBytes, ClassMemory, FoundPair, MemorySurvey, NodeMemory, OwnerMemory, OwnerState, PoolUse,
    RedundancyMemory, SurveyError,
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
