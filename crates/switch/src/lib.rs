//! A switch in the path from clients to memory nodes. It sees the order in which verbs pass, and redirects or delays
//! verbs that would otherwise conflict (Grant and Snoeren, "In-network Contention Resolution for Disaggregated Memory",
//! WORDS '21, which comments cite as "S §n").
//!
//! [`Switch`] is the knowledge and the decisions of such a switch, without a clock and without I/O. Code that handles
//! the packets calls it for every verb and every answer that passes: the simulator, or a process that forwards bytes.
//!
//! # Soft state
//! The knowledge of a switch is *soft state*: all results are those of a system without a switch, although some come
//! later. This holds whatever and whenever the switch forgets, for any number of switches and of paths around them, and
//! whatever is lost or sent twice.
//!
//! An answer names the request to which it belongs, but not what a switch did to that request, and the switch has
//! possibly forgotten that. Therefore *a switch is allowed to change a request only if every answer that the changed
//! request can get is true for the client's original request*. [`fusee`] obeys this rule. [`clover`] explains where the
//! published design breaks it.
#![no_std]
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

extern crate alloc;

pub mod clover;
pub mod fusee;
mod hot_keys;

use alloc::collections::VecDeque;

use fusee_core::view::PoolPlace;

use hot_keys::HotKeyTable;

/// Largest number of WRITEs, and of unanswered CASes, that a switch remembers for one connection.
const REMEMBERED: usize = 32;

/// Appends an item. If there are `most` items already, removes the oldest one.
fn push<T>(all: &mut VecDeque<T>, one: T, most: usize) {
    if all.len() >= most {
        all.pop_front();
    }
    all.push_back(one);
}

/// The ordered path from one client to one memory node. The code that calls the switch numbers these paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SwitchConnection(pub u64);

/// A verb on its way to a memory node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchRequest<'b> {
    /// The connection on which the verb comes.
    pub connection: SwitchConnection,
    /// A number that differs from those of all other unanswered verbs of the connection.
    pub number: u64,
    /// The place on which the verb operates.
    pub place: PoolPlace,
    /// The operation.
    pub verb: SwitchVerb<'b>,
}

/// The part of a verb that a switch sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwitchVerb<'b> {
    /// A READ of this many bytes, to which a switch makes no change.
    Read(u32),
    /// A READ of this many bytes that a switch is allowed to [steer](fusee_core::verbs::VerbBatch::steered) to the
    /// object to which the slot at the verb's place leads.
    Steered(u32),
    /// A WRITE of this many bytes, with its first bytes: at least 64, or all of a shorter WRITE.
    Write(u32, &'b [u8]),
    /// A compare-and-swap.
    Cas {
        /// The word that the CAS expects.
        expected: u64,
        /// The word that replaces the expected one.
        swap: u64,
    },
    /// A fetch-and-add.
    Faa,
}

/// A switch's decision on a verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwitchDecision {
    /// The verb passes unchanged.
    Forward,
    /// The verb passes, but operates on this offset of the same pool.
    Steer(u64),
    /// The verb waits, and with it all later verbs of its connection. The caller soon passes the verb to
    /// [`Switch::request`] again. After a time well below the clients' timeout, the verb passes regardless of the
    /// switch's decisions.
    Hold,
}

/// The answer of a memory node to a CAS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CasAnswer {
    /// The connection on which the CAS came.
    pub connection: SwitchConnection,
    /// The number of the CAS's request ([`SwitchRequest::number`]).
    pub number: u64,
    /// The word that the CAS has found in memory.
    pub found: u64,
}

/// The part of its knowledge that a switch has to forget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForgetScope {
    /// All knowledge.
    All,
    /// All knowledge about a connection that broke, or on which a request was lost or refused.
    Connection(SwitchConnection),
}

/// A switch: its knowledge, and the counts of its decisions.
pub trait Switch {
    /// Decides on a verb. The caller passes a verb that was [held](SwitchDecision::Hold) again later.
    fn request(&mut self, request: &SwitchRequest<'_>) -> SwitchDecision;

    /// Learns from an answer that passes.
    fn answer(&mut self, answer: &CasAnswer);

    /// Forgets the part `what` of the switch's knowledge.
    fn forget(&mut self, what: ForgetScope);

    /// Returns the counts of decisions so far.
    fn counts(&self) -> SwitchCounts;

    /// Returns the memory that the present knowledge takes, without the overhead of the tables.
    fn bytes(&self) -> SwitchMemory;
}

/// Counts of a switch's decisions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwitchCounts {
    /// Verbs that have passed the switch.
    pub seen: u64,
    /// Verbs that the switch steers if it knows their target: the verbs that it steered, and the verbs whose target it
    /// did not know.
    pub asked: u64,
    /// Verbs that were steered.
    pub steered: u64,
    /// Decisions to hold a verb. A verb that comes again and is held again is counted again.
    pub held: u64,
    /// Number of times that the switch forgot everything.
    pub forgot: u64,
}

/// The memory that a switch's knowledge takes, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwitchMemory {
    /// Bytes for what the switch knows about keys or slots.
    pub keys: u64,
    /// Bytes for connections: their unanswered verbs, and their last WRITEs.
    pub connections: u64,
}

impl SwitchMemory {
    /// Returns the sum of the bytes for keys or slots and for connections.
    pub fn sum(self) -> u64 {
        self.keys + self.connections
    }
}
