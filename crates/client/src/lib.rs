//! FUSEE for programs: a key-value store in memory that other machines or processes lend.
//!
//! ```
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
//! [`Client`] is for everybody: blocking calls and, with the suffix `_async`, futures that run on
//! any executor and may be dropped at any time. [`Session`] is for those who count microseconds:
//! it belongs to one thread, and runs as many operations at once as futures are polled on it.
//!
//! Every operation is linearizable. An [`Error`] says whether a write may still have happened
//! ([`Outcome`]).
#![forbid(unsafe_code)]

mod attachments;
mod client;
mod driver;
mod embedded;
mod error;
mod executor;
pub mod logic;
mod options;
mod session;
mod shared;
mod survey;
mod sync;

pub use client::Client;
pub use error::ConnectError;
pub use fusee_control::master::Status;
pub use fusee_control::node::Usage;
pub use fusee_core::stats::{KindStats, OpKind, Stats};
pub use fusee_core::verbs::{ClientId, MnId};
pub use fusee_core::view::{Geometry, View};
pub use fusee_core::{Error, Outcome};
pub use fusee_fabric::FabricKind;
pub use fusee_fabric::verbs::CardCounts;
pub use logic::CacheStats;
pub use options::{EmbeddedOptions, FabricChoice, Options};
pub use session::Session;
pub use survey::{ClassMemory, MemorySurvey, NodeMemory, OwnerMemory, OwnerState, SurveyError};
