//! The stamp of each request: the cluster of its sender.
//!
//! An address does not guarantee its owner. A master may have been started on an empty store, or on that of
//! another cluster, and a memory node may be a member of another cluster than the asker believes. So the
//! receiver compares clusters before it acts. A sender that belongs to no cluster yet says so.

use fusee_auth::PeerKind;
use fusee_core::verbs::ClusterId;
use serde::{Deserialize, Serialize};

/// A request with the cluster of its sender.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamped<R> {
    /// `None`: the sender belongs to no cluster yet, or asks on behalf of a person.
    pub cluster: Option<ClusterId>,
    /// The request.
    pub request: R,
}

/// The sender of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// The number of its connection, from 1; 0 inside a process.
    pub connection: u64,
    /// The cluster of the sender.
    pub cluster: Option<ClusterId>,
    /// Whether the sender is on another machine, as far as the addresses of its connection tell.
    pub elsewhere: bool,
    /// The kind of peer that the sender has proved to be; `None` if no proof is demanded.
    pub who: Option<PeerKind>,
}
