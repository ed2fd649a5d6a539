//! The inputs of the master's logic, and the actions that it has its host carry out.

use fusee_control::events::{Level, Topic};
use fusee_control::master::MasterReply;
use fusee_control::node::{NodeReply, NodeRequest};
use fusee_control::rpc::Caller;
use fusee_core::verbs::{ClientId, MnId};
use fusee_core::view::{View, ViewError};

use crate::jobs::{JobError, JobReport, MasterJob};
use crate::record::RecordWrite;
use crate::request_kinds::LogicRequest;

/// An input of the logic.
#[derive(Clone, Debug)]
pub enum MasterEvent {
    /// A request has arrived. Its reply carries the same token, and may come much later.
    Request {
        /// The request's token.
        token: u64,
        /// The origin of the request. Connection 0 is inside of the process, and never closes.
        caller: Caller,
        /// The request.
        request: LogicRequest,
    },
    /// A connection has ended; no request comes over it any more.
    ConnectionClosed {
        /// The connection.
        connection: u64,
    },
    /// A process is fetching a view in pieces, and sends no heartbeat meanwhile.
    Fetching {
        /// The connection over which it fetches.
        connection: u64,
    },
    /// A memory node has answered a call, or the call has failed.
    NodeAnswer {
        /// The node.
        node: MnId,
        /// The call's token.
        token: u64,
        /// The answer, or the reason why there is none.
        result: Result<NodeReply, String>,
    },
    /// A job has ended: no verb of it is posted any more.
    JobDone {
        /// The job's token.
        token: u64,
        /// The result.
        result: Result<JobReport, JobError>,
    },
    /// Time has passed, and the host has passed on all that had arrived by then. Only a tick declares processes dead:
    /// otherwise a word from one might still wait in a queue.
    ///
    /// To be given at the start, and then at least eight times in a lease. Longer steps count for less
    /// (`failure_detector`), and after half a lease without any event the master counts as having been away.
    Tick,
}

/// A task for the host.
#[derive(Clone, Debug, PartialEq, Eq)]
// Only a few actions exist at a time: each is carried out soon after it is made.
#[allow(clippy::large_enum_variant)]
pub enum MasterAction {
    /// Change the store: all of these or none, durably before any later action.
    Persist(Vec<RecordWrite>),
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
        /// The request.
        request: NodeRequest,
    },
    /// Run a job ([`jobs::run`](crate::jobs::run)) over a fabric session of its own to all members of the view, and
    /// report once both have ended. At most one job runs at a time.
    Job {
        /// Comes back with the result.
        token: u64,
        /// The client id of the fabric session.
        client: ClientId,
        /// The view by which the job works.
        view: Box<View>,
        /// The job.
        job: MasterJob,
    },
    /// Remove all records but those of destroyed clusters, in several steps: none of the removed records counts any
    /// more. To be done before any action of a later event.
    Clear,
    /// Tell the operator: in the log and, with a topic, as an event.
    Tell(Level, Option<Topic>, String),
}

/// Reasons why a master cannot go on from the contents of a store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// The view is broken.
    #[error("the stored view is unusable: {0}")]
    View(#[from] ViewError),
    /// The view is of another cluster than the store.
    #[error("the stored view is of another cluster than the store: restore the store from a copy")]
    Cluster,
}
