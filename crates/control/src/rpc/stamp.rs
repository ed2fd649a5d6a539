//! Whose message it is: the cluster of the sender comes with every request.
//!
//! An address says little about who is there: a master may have been started over an empty store, or
//! over that of another cluster, and a memory node may be a member of another cluster than the asker
//! believes. So the receiver compares clusters before it acts. Who belongs to no cluster yet says so.

use fusee_auth::Who;
use fusee_core::verbs::ClusterId;
use serde::{Deserialize, Serialize};

/// A request, and the cluster of who asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamped<R> {
    /// `None`: the asker belongs to no cluster yet, or asks on behalf of a person.
    pub cluster: Option<ClusterId>,
    /// What it asks.
    pub request: R,
}

impl<R: tarpc::RequestName> tarpc::RequestName for Stamped<R> {
    fn name(&self) -> &str {
        self.request.name()
    }
}

/// Who asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// The number of its connection, from 1; 0 inside of a process.
    pub connection: u64,
    /// The cluster that it belongs to.
    pub cluster: Option<ClusterId>,
    /// Whether it asks from another machine, as far as the ends of its connection tell.
    pub elsewhere: bool,
    /// As whom it has proved to come; `None` where nobody has to.
    pub who: Option<Who>,
}
