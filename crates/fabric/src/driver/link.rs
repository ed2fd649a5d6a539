//! What a fabric with connections gives the driver: one session's connection to one memory node.
//!
//! # Order of calls
//!
//! [`Link::connect`] and [`Link::register`] make a link. A batch is [queued](Link::queue) on the links
//! of its nodes, and [posted](Link::post) to them. Its answers are taken in by [`Link::look`] at any
//! time, or by [`Link::receive`] after an [event](Link::take_event). [`Link::arm`] comes before the
//! session sleeps. Where any of them fails, or the session gives the node up, [`Link::end`] is the last
//! call, and takes the link.
//!
//! A *part* is the smallest piece of a batch that a link waits for. A link finishes each part that it
//! has queued exactly once: when its answer has come, or at the end.

use std::fmt;
use std::io;
use std::ops::AddAssign;
use std::time::Duration;

use fusee_auth::NodeKey;
use fusee_core::verbs::{Batch, ClientId, MnId, Verb, VerbError};
use fusee_tls::Tls;
use mio::event::Event;
use mio::{Registry, Token};

use super::slots::Slots;
use crate::error::AttachCause;
use crate::hello::GoesOn;

/// The memory node to connect to, and how long that may take.
pub struct Target<'a> {
    pub(crate) node: MnId,
    /// The key of the node that has to be there.
    pub(crate) key: NodeKey,
    /// Host and port.
    pub(crate) address: &'a str,
    /// Who connects.
    pub(crate) client: ClientId,
    /// For the connection, and again for the answer to the hello.
    pub(crate) wait: Duration,
    pub(crate) goes_on: GoesOn<'a>,
    /// Certificates, where the connection has TLS.
    pub(crate) tls: Option<&'a Tls>,
}

/// One session's connection to one memory node.
pub trait Link: fmt::Debug + Sized {
    /// Whether it posts and looks without system calls. Then a batch is posted at once, and each turn
    /// begins with a look. Otherwise what is queued gathers until the next turn, so that the batches of
    /// many tasks share a system call, and each turn asks the system which links have answers.
    const USER_SPACE: bool;
    /// How many looks may find some batches complete, but fewer than half of those in flight, before
    /// that is enough. Tasks that go on together share the system calls of what they post next.
    const LOOKS_THAT_FIND_SOME: u32;
    /// See [`Fabric::waits_for_reads`](fusee_core::verbs::Fabric::waits_for_reads).
    const WAITS_FOR_READS: bool;
    /// What is counted of what goes over it.
    type Counts: fmt::Debug + Copy + Default + AddAssign;

    /// Connects and says hello.
    fn connect(to: &Target<'_>) -> Result<Self, AttachCause>;

    /// Asks for events of its two sources, under these tokens.
    fn register(&mut self, registry: &Registry, tokens: [Token; 2]) -> io::Result<()>;

    /// What has gone over it so far.
    fn counts(&self) -> Self::Counts;

    /// The memory node.
    fn node(&self) -> MnId;

    /// The length of its pool.
    fn pool_bytes(&self) -> u64;

    /// Whether the node owes an answer.
    fn is_waiting(&self) -> bool;

    /// Whether only an event tells when it can go on posting.
    fn is_blocked(&self) -> bool;

    /// The result of a verb for this node before it is posted: [`VerbError::NotExecuted`] if it is to be.
    fn first_result(&self, verb: &Verb) -> Result<(), VerbError> {
        // Checked by the node, too; but there it would end the connection.
        verb.check(self.pool_bytes()).and(Err(VerbError::NotExecuted))
    }

    /// Queues the verbs of a batch that [are for this node](is_for); gives the number of parts.
    fn queue(&mut self, slot: usize, batch: &Batch) -> usize;

    /// Posts as much of what is queued as there is room for.
    fn post(&mut self, slots: &mut Slots) -> Result<(), LinkError>;

    /// Takes note of an event of source 0 or 1.
    fn take_event(&mut self, source: usize, event: &Event) -> Result<(), LinkError>;

    /// Takes the answers of which events have told; whether anything has come.
    fn receive(&mut self, slots: &mut Slots) -> Result<bool, LinkError>;

    /// Takes the answers that are there, whether an event has told of them or not; whether anything has
    /// come.
    fn look(&mut self, slots: &mut Slots) -> Result<bool, LinkError>;

    /// Makes sure that an answer that comes from now on makes an event, and takes the ones before it;
    /// whether anything has come.
    fn arm(&mut self, slots: &mut Slots) -> Result<bool, LinkError>;

    /// Ends the connection: nothing that is in flight may execute later. Names the slots of the parts
    /// that have no answer.
    fn end(self, unanswered: impl FnMut(usize));

    /// In the place of [`Link::end`] in a child of the process that connected: names the same slots, and does
    /// nothing to the connection.
    fn leave_behind(&mut self, unanswered: impl FnMut(usize));
}

/// Nothing is counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Uncounted;

impl AddAssign for Uncounted {
    fn add_assign(&mut self, _: Uncounted) {}
}

/// Whether a verb is for this node, and has no result yet.
pub(crate) fn is_for(verb: &Verb, node: MnId) -> bool {
    verb.node == node && verb.result == Err(VerbError::NotExecuted)
}

/// Why a link fails.
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
    /// What can go wrong on this kind of link only.
    #[error("{0}")]
    Broken(Box<dyn std::error::Error + Send + Sync>),
}

impl LinkError {
    /// What the verbs in flight get, and those that come later.
    pub(super) fn verb_error(&self) -> VerbError {
        match self {
            LinkError::Fenced => VerbError::Fenced,
            _ => VerbError::Unreachable,
        }
    }
}
