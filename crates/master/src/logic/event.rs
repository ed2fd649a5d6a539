//! What happens to the master, and what it has its host do.

use fusee_control::events::{Level, Topic};
use fusee_control::master::{MasterReply, MasterRequest};
use fusee_control::node::{NodeReply, NodeRequest};
use fusee_control::rpc::Caller;
use fusee_core::verbs::{ClientId, MnId};
use fusee_core::view::{View, ViewError};

use crate::jobs::{Job, JobError, JobReport};
use crate::record::Write;

/// What happens to the master.
#[derive(Clone, Debug)]
pub enum Event {
    /// Somebody asks; the token comes back with the reply, which may take its time.
    Request {
        /// Names the request.
        token: u64,
        /// Who asks. Connection 0 is one that never closes, inside of the process.
        caller: Caller,
        /// What is asked.
        request: MasterRequest,
    },
    /// A connection has ended; no request comes over it any more.
    ConnectionClosed {
        /// Which.
        connection: u64,
    },
    /// Somebody fetches a view that is told in pieces, and says nothing else meanwhile.
    Fetching {
        /// Over which connection.
        connection: u64,
    },
    /// A memory node answered a call, or did not.
    NodeAnswer {
        /// The node.
        node: MnId,
        /// The call's token.
        token: u64,
        /// The answer, or why there is none.
        result: Result<NodeReply, String>,
    },
    /// A job has ended: no verb of it is posted any more.
    JobDone {
        /// The job's token.
        token: u64,
        /// What came of it.
        result: Result<JobReport, JobError>,
    },
    /// Time passes, and nothing else that has happened is left to be told, nor to be read: only now is
    /// somebody taken for dead, who may have spoken meanwhile. To be given at start, and then at least eight
    /// times in a lease: longer steps count for less (`presence`), and after half a lease without any
    /// event the master counts as having been away.
    Tick,
}

/// What the host has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
// An action is carried out as soon as it is made: a few of them exist at a time.
#[allow(clippy::large_enum_variant)]
pub enum Action {
    /// Change the store: all of these or none, durably before any later action.
    Persist(Vec<Write>),
    /// Answer a request.
    Reply {
        /// The request's token.
        token: u64,
        /// The answer.
        reply: MasterReply,
    },
    /// Call a memory node, once, and report the answer.
    Call {
        /// The node.
        node: MnId,
        /// Host and port of its control service.
        control: String,
        /// Comes back with the answer.
        token: u64,
        /// What to ask.
        request: NodeRequest,
    },
    /// Run a job ([`jobs::run`](crate::jobs::run)) with a fabric session of its own to all members
    /// of the view, and report when both have ended. There is never a second one at a time.
    Job {
        /// Comes back with the result.
        token: u64,
        /// Whose name the fabric session has.
        client: ClientId,
        /// By which view.
        view: Box<View>,
        /// What to do.
        job: Job,
    },
    /// Remove all records but those of destroyed clusters, some at a time: none of them counts any more. To
    /// be done before anything of a later event.
    Clear,
    /// Tell people: in the log, and as an event of this topic.
    Tell(Level, Option<Topic>, String),
}

/// Why a store's contents cannot be gone on with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// The view is broken.
    #[error("the stored view is unusable: {0}")]
    View(#[from] ViewError),
    /// The view is not of the cluster that the store is of.
    #[error("the stored view is of another cluster than the store: restore the store from a copy")]
    Cluster,
}
