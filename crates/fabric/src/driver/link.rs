//! The interface between the driver and a fabric with connections. A *link* is one session's connection to one
//! memory node.
//!
//! # Order of calls
//!
//! [`FabricLink::connect`] and [`FabricLink::register`] make a link. A batch is [queued](FabricLink::queue) on the
//! links of its nodes, then [posted](FabricLink::post) to the nodes. [`FabricLink::look`] takes answers at any
//! time, [`FabricLink::receive`] takes them after an [event](FabricLink::take_event). [`FabricLink::arm`] comes
//! before the session sleeps. If a call fails, or the session gives the node up, [`FabricLink::end`] is the last
//! call, and consumes the link.
//!
//! A *part* is the smallest unit of a batch whose answer a link awaits. A link finishes each queued part exactly
//! once: when the part's answer has come, or when the link ends.

use std::fmt;
use std::io;
use std::ops::AddAssign;
use std::time::Duration;

use fusee_auth::NodeKey;
use fusee_core::verbs::{ClientId, MnId, Verb, VerbBatch, VerbError};
use fusee_tls::TlsSettings;
use mio::event::Event;
use mio::{Registry, Token};

use super::slots::BatchSlots;
use crate::error::AttachCause;
use crate::hello::ContinueFn;

/// The memory node to connect to, and the limits of the attempt.
pub struct LinkTarget<'a> {
    pub(crate) node: MnId,
    /// The key of the memory node that is expected at the address.
    pub(crate) key: NodeKey,
    /// The host and port to connect to.
    pub(crate) address: &'a str,
    /// The client that connects.
    pub(crate) client: ClientId,
    /// The longest time to wait for the connection to open, and again for the answer to the hello.
    pub(crate) wait: Duration,
    pub(crate) goes_on: ContinueFn<'a>,
    /// Certificates, if the connection uses TLS.
    pub(crate) tls: Option<&'a TlsSettings>,
}

/// One session's connection to one memory node.
pub trait FabricLink: fmt::Debug + Sized {
    /// Whether the link posts and looks without system calls. If so, a batch is posted at once, and each turn
    /// begins with a look. Otherwise queued batches gather until the next turn, so that the batches of many tasks
    /// share a system call, and each turn asks the system which links have answers.
    const USER_SPACE: bool;
    /// A spin ends when half of the batches in flight are complete, or after this number of looks that find any
    /// complete batch. Until the spin ends, the link waits for further complete batches, because tasks that are woken
    /// together share the system calls of their next batches.
    const LOOKS_THAT_FIND_SOME: u32;
    /// The value of [`Fabric::waits_for_reads`](fusee_core::verbs::Fabric::waits_for_reads).
    const WAITS_FOR_READS: bool;
    /// The type of the link's work counters.
    type Counts: fmt::Debug + Copy + Default + AddAssign;

    /// Connects to the memory node and says hello.
    fn connect(to: &LinkTarget<'_>) -> Result<Self, AttachCause>;

    /// Registers the link's two sources of events with these tokens.
    fn register(&mut self, registry: &Registry, tokens: [Token; 2]) -> io::Result<()>;

    /// Returns the link's counts of its work so far.
    fn counts(&self) -> Self::Counts;

    /// Returns the memory node's number.
    fn node(&self) -> MnId;

    /// Returns the length of the node's pool in bytes.
    fn pool_bytes(&self) -> u64;

    /// Returns whether the memory node owes an answer.
    fn is_waiting(&self) -> bool;

    /// Returns whether the link has to wait for an event before it can post more.
    fn is_blocked(&self) -> bool;

    /// Returns the result that a verb for this node has before it is posted: [`VerbError::NotExecuted`] for a verb
    /// that is to be posted.
    fn first_result(&self, verb: &Verb) -> Result<(), VerbError> {
        // The node checks the verb too, but a verb that fails there ends the connection.
        verb.check(self.pool_bytes()).and(Err(VerbError::NotExecuted))
    }

    /// Queues those verbs of a batch that [are for this node](is_for). Returns the number of parts.
    fn queue(&mut self, slot: usize, batch: &VerbBatch) -> usize;

    /// Posts queued verbs, as many as the link has room for.
    fn post(&mut self, slots: &mut BatchSlots) -> Result<(), LinkError>;

    /// Records an event of the link's source 0 or 1.
    fn take_event(&mut self, source: usize, event: &Event) -> Result<(), LinkError>;

    /// Takes the answers that events have announced. Returns whether there were any.
    fn receive(&mut self, slots: &mut BatchSlots) -> Result<bool, LinkError>;

    /// Takes all answers that have arrived, with or without an event. Returns whether there were any.
    fn look(&mut self, slots: &mut BatchSlots) -> Result<bool, LinkError>;

    /// Makes sure that later answers cause an event, and takes the answers that have already arrived. Returns whether
    /// any answers had arrived.
    fn arm(&mut self, slots: &mut BatchSlots) -> Result<bool, LinkError>;

    /// Ends the connection so that no verb in flight executes later. Passes the batch slot of every unanswered part to
    /// `unanswered`.
    fn end(self, unanswered: impl FnMut(usize));

    /// Replaces [`FabricLink::end`] in a child of the process that connected. Passes the batch slots of the unanswered
    /// parts to `unanswered`, as `end` does, and does nothing to the connection.
    fn abandon_after_fork(&mut self, unanswered: impl FnMut(usize));
}

/// The counters of a link that counts nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoLinkCounts;

impl AddAssign for NoLinkCounts {
    fn add_assign(&mut self, _: NoLinkCounts) {}
}

/// Returns whether a verb is for this node and has no result yet.
pub(crate) fn is_for(verb: &Verb, node: MnId) -> bool {
    verb.node == node && verb.result == Err(VerbError::NotExecuted)
}

/// Reasons why a link fails.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    #[error("the memory node closed the connection")]
    Closed,
    #[error("this session has left it")]
    Left,
    #[error("the memory node has fenced this client")]
    Fenced,
    #[error("no answer for {0:?}")]
    Silent(Duration),
    #[error("{0}")]
    Io(#[from] io::Error),
    /// An error that is specific to this kind of link.
    #[error("{0}")]
    Broken(Box<dyn std::error::Error + Send + Sync>),
}

impl LinkError {
    /// Returns the result of the verbs in flight, and of later verbs to the node.
    pub(super) fn verb_error(&self) -> VerbError {
        match self {
            LinkError::Fenced => VerbError::Fenced,
            _ => VerbError::Unreachable,
        }
    }
}
