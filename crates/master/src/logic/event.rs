//! The inputs of the master's logic, and the actions that the host carries out for it.

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
    /// A request has arrived. Its reply has the same token, and possibly comes much later.
    Request {
        /// The token of the request, which comes back with the reply.
        token: u64,
        /// The origin of the request. Connection 0 comes from inside of the process, and never closes.
        caller: Caller,
        /// The request.
        request: LogicRequest,
    },
    /// A connection has ended: no request comes over it any more.
    ConnectionClosed {
        /// The number of the connection.
        connection: u64,
    },
    /// A process is fetching a view in pieces, and sends no heartbeat meanwhile.
    Fetching {
        /// The number of the connection over which the process fetches the view.
        connection: u64,
    },
    /// A memory node has answered a call, or the call has failed.
    NodeAnswer {
        /// The memory node that was called.
        node: MnId,
        /// The token of the call.
        token: u64,
        /// The node's answer, or the reason why there is none.
        result: Result<NodeReply, String>,
    },
    /// A job has ended: it posts no further verb.
    JobDone {
        /// The token of the job.
        token: u64,
        /// The result of the job.
        result: Result<JobReport, JobError>,
    },
    /// Time has passed, and the host has passed on everything that arrived before. Only a tick declares processes dead:
    /// at other times, a message of such a process could still wait in a queue.
    ///
    /// The host sends a tick at the start, and then at least eight in a lease. A longer interval counts only in part as
    /// time in which a process was silent (`failure_detector`). After half a lease without any event the master treats
    /// itself as having been away.
    Tick,
}

/// A task for the host.
#[derive(Clone, Debug, PartialEq, Eq)]
// The variants differ in size, but only a few actions exist at a time: each is carried out soon after it is made.
#[allow(clippy::large_enum_variant)]
pub enum MasterAction {
    /// Apply all of these writes to the store, or none, and make them durable before any later action.
    Persist(Vec<RecordWrite>),
    /// Answer a request.
    Reply {
        /// The token of the request.
        token: u64,
        /// The reply to the request.
        reply: MasterReply,
    },
    /// Call a memory node once, and report the answer.
    Call {
        /// The memory node to call.
        node: MnId,
        /// Host and port of the node's control service.
        control: String,
        /// The token of the call, which comes back with the answer.
        token: u64,
        /// The request to send.
        request: NodeRequest,
    },
    /// Run a job ([`jobs::run`](crate::jobs::run)) over a fabric session of its own to all members of the view. Report
    /// when both the job and its session have ended. At most one job runs at a time.
    Job {
        /// The token of the job, which comes back with the result.
        token: u64,
        /// The client id of the session under which the job runs.
        client: ClientId,
        /// The view that the job uses.
        view: Box<View>,
        /// The job to run.
        job: MasterJob,
    },
    /// Remove all records but those of destroyed clusters. This can take several steps, because none of the removed
    /// records has an effect any more. It has to be done before any action of a later event.
    Clear,
    /// Tell the operator: in the log and, with a topic, as an event.
    Tell(Level, Option<Topic>, String),
}

/// Reasons why a master cannot continue from the contents of a store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// The stored view is invalid.
    #[error("the stored view is unusable: {0}")]
    View(#[from] ViewError),
    /// The stored view belongs to another cluster than the one that the store names.
    #[error("the stored view is of another cluster than the store: restore the store from a copy")]
    Cluster,
}
