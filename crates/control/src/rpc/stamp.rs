//! The stamp of each request: the cluster of its sender.
//!
//! An address does not guarantee which process is behind it. A master was possibly started on an empty store, or on the
//! store of another cluster, and a memory node is possibly a member of another cluster than the sender believes. So the
//! receiver compares the clusters before it acts. A sender that belongs to no cluster yet says so in the stamp.

use fusee_auth::PeerKind;
use fusee_core::verbs::ClusterId;
use serde::{Deserialize, Serialize};

/// A request with the cluster of its sender.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamped<R> {
    /// The sender's cluster; `None` if the sender belongs to no cluster yet, or asks on behalf of an operator.
    pub cluster: Option<ClusterId>,
    /// The request itself.
    pub request: R,
}

/// The sender of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// The number of the sender's connection, from 1; 0 for a sender in the same process.
    pub connection: u64,
    /// The cluster of the sender; `None` as in [`Stamped`].
    pub cluster: Option<ClusterId>,
    /// Whether the sender is on another machine, as far as the addresses of its connection show.
    pub elsewhere: bool,
    /// The kind of peer that the sender has proved to be; `None` if the server demands no proof.
    pub who: Option<PeerKind>,
}
