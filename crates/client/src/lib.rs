//! Client library of FUSEE, a key-value store in memory that other machines or processes lend.
//!
#![cfg_attr(feature = "embedded", doc = "```")]
#![cfg_attr(not(feature = "embedded"), doc = "```ignore")]
//! use fusee_client::{Client, EmbeddedOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // A whole cluster inside this process: three memory nodes and a master. To join a real one:
//! // let client = Client::connect("127.0.0.1:7400")?;
//! let client = Client::embedded(EmbeddedOptions::default())?;
//!
//! client.insert(b"answer", b"41")?;
//! client.update(b"answer", b"42")?;
//! assert_eq!(client.get(b"answer")?.as_deref(), Some(&b"42"[..]));
//!
//! // Clones share everything; each thread works in a session of its own.
//! let other = client.clone();
//! std::thread::spawn(move || other.put(b"question", b"?")).join().unwrap()?;
//! assert_eq!(client.get_many(&["answer", "question", "none"])?.len(), 3);
//!
//! client.delete(b"answer")?;
//! assert_eq!(client.get(b"answer")?, None);
//! # Ok(())
//! # }
//! ```
//!
//! [`Client`] is the general interface: blocking calls and, with the suffix `_async`, futures that
//! run on any executor and may be dropped at any time. [`Session`] is the interface for lowest
//! latency: it belongs to one thread, and runs as many operations at once as futures are polled on
//! it.
//!
//! Every operation is linearizable. An [`Error`] says whether a write may still have happened
//! ([`FailedWriteOutcome`]).
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
//! The repository's `examples/` has five short programs: `embedded`, `connect`, `async_tokio`,
//! `threads` and `get_many`. `cargo run -p fusee-client --example embedded` runs one.
#![forbid(unsafe_code)]

mod attachments;
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

pub use client::Client;
pub use demotion::{DemotionOrder, DemotionOutcome};
#[cfg(feature = "embedded")]
pub use embedded::EmbeddedOptions;
pub use error::ConnectError;
pub use fusee_auth::{KeyError, Keyring};
pub use fusee_control::rpc::{Role, RpcError};
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
pub use fusee_core::{Error, FailedWriteOutcome};
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

/// The status of the cluster according to the master ([`Client::status`]), and the usage of a
/// memory node's pool ([`Client::usage`]).
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
