//! The interface between the driver and a fabric with connections: one session's connection to one memory
//! node.
//!
//! # Order of calls
//!
//! [`FabricLink::connect`] and [`FabricLink::register`] make a link. A batch is [queued](FabricLink::queue) on the
//! links of its nodes, and [posted](FabricLink::post) to them. Its answers are taken in by [`FabricLink::look`] at
//! any time, or by [`FabricLink::receive`] after an [event](FabricLink::take_event). [`FabricLink::arm`] comes before
//! the session sleeps. If one of them fails, or the session gives the node up, [`FabricLink::end`] is the last call,
//! and consumes the link.
//!
//! A *part* is the smallest unit of a batch that a link waits for. A link finishes each part that it has
//! queued exactly once: when its answer has come, or when the link ends.

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
    /// The key of the node that is expected there.
    pub(crate) key: NodeKey,
    /// Host and port.
    pub(crate) address: &'a str,
    /// The client that connects.
    pub(crate) client: ClientId,
    /// The time for the connection, and again for the answer to the hello.
    pub(crate) wait: Duration,
    pub(crate) goes_on: ContinueFn<'a>,
    /// Certificates, if the connection uses TLS.
    pub(crate) tls: Option<&'a TlsSettings>,
}

/// One session's connection to one memory node.
pub trait FabricLink: fmt::Debug + Sized {
    /// Whether the link posts and looks without system calls. Then a batch is posted at once, and each turn
    /// begins with a look. Otherwise queued batches gather until the next turn, so that the batches of many
    /// tasks share a system call, and each turn asks the system which links have answers.
    const USER_SPACE: bool;
    /// The number of looks that may find some complete batches, but fewer than half of those in flight,
    /// before the spin ends. Tasks that go on together share the system calls of their next batches.
    const LOOKS_THAT_FIND_SOME: u32;
    /// The value of [`Fabric::waits_for_reads`](fusee_core::verbs::Fabric::waits_for_reads).
    const WAITS_FOR_READS: bool;
    /// Counts of the link's work.
    type Counts: fmt::Debug + Copy + Default + AddAssign;

    /// Connects and says hello.
    fn connect(to: &LinkTarget<'_>) -> Result<Self, AttachCause>;

    /// Asks for events of the link's two sources, with these tokens.
    fn register(&mut self, registry: &Registry, tokens: [Token; 2]) -> io::Result<()>;

    /// Returns the counts so far.
    fn counts(&self) -> Self::Counts;

    /// Returns the memory node's number.
    fn node(&self) -> MnId;

    /// Returns the length of the node's pool in bytes.
    fn pool_bytes(&self) -> u64;

    /// Returns whether the node owes an answer.
    fn is_waiting(&self) -> bool;

    /// Returns whether the link has to wait for an event before it can post more.
    fn is_blocked(&self) -> bool;

    /// Returns the result of a verb for this node before it is posted: [`VerbError::NotExecuted`] if it is to
    /// be posted.
    fn first_result(&self, verb: &Verb) -> Result<(), VerbError> {
        // The node checks the verb, too, but there a failure would end the connection.
        verb.check(self.pool_bytes()).and(Err(VerbError::NotExecuted))
    }

    /// Queues the verbs of a batch that [are for this node](is_for). Returns the number of parts.
    fn queue(&mut self, slot: usize, batch: &VerbBatch) -> usize;

    /// Posts queued verbs, as many as there is room for.
    fn post(&mut self, slots: &mut BatchSlots) -> Result<(), LinkError>;

    /// Records an event of source 0 or 1.
    fn take_event(&mut self, source: usize, event: &Event) -> Result<(), LinkError>;

    /// Takes the answers that events have announced. Returns whether there were any.
    fn receive(&mut self, slots: &mut BatchSlots) -> Result<bool, LinkError>;

    /// Takes all answers that have arrived, with or without an event. Returns whether there were any.
    fn look(&mut self, slots: &mut BatchSlots) -> Result<bool, LinkError>;

    /// Makes sure that later answers cause an event, and takes the earlier ones. Returns whether there were
    /// any.
    fn arm(&mut self, slots: &mut BatchSlots) -> Result<bool, LinkError>;

    /// Ends the connection: no verb in flight may execute later. Names the slots of the parts without an
    /// answer.
    fn end(self, unanswered: impl FnMut(usize));

    /// Replaces [`FabricLink::end`] in a child of the process that connected: names the same slots, and does
    /// nothing to the connection.
    fn abandon_after_fork(&mut self, unanswered: impl FnMut(usize));
}

/// No counts.
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
    /// An error that only this kind of link has.
    #[error("{0}")]
    Broken(Box<dyn std::error::Error + Send + Sync>),
}

impl LinkError {
    /// Returns the result of the verbs in flight, and of later ones.
    pub(super) fn verb_error(&self) -> VerbError {
        match self {
            LinkError::Fenced => VerbError::Fenced,
            _ => VerbError::Unreachable,
        }
    }
}
