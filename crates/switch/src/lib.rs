//! A switch in the path from clients to memory nodes. It sees the order in which verbs pass, and helps verbs that
//! would collide (Grant and Snoeren, "In-network Contention Resolution for Disaggregated Memory", WORDS '21; "S §n"
//! in comments).
//!
//! [`Switch`] is the knowledge and the decisions of such a switch, without a clock and without I/O. The code that
//! handles the packets calls it for every verb and every answer that passes: that is the simulator, or a process that
//! forwards bytes.
//!
//! # Soft state
//! The knowledge of a switch is *soft state*: all results are those of a system without a switch, and at most come
//! later. This holds whatever the switch forgets, and when; with any number of switches, and of paths around them;
//! and whatever is lost or sent twice.
//!
//! An answer names the request that it belongs to, but not what a switch did to that request, and the switch may have
//! forgotten it. So *a request may be changed only if every answer that it can get is true for its client as it is*.
//! [`fusee`] obeys this rule; [`clover`] explains where the published design does not.
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

/// The most WRITEs, and the most unanswered CASes, that a switch remembers of one connection.
const REMEMBERED: usize = 32;

/// Appends an item; removes the oldest one first if there are `most` already.
fn push<T>(all: &mut VecDeque<T>, one: T, most: usize) {
    if all.len() >= most {
        all.pop_front();
    }
    all.push_back(one);
}

/// The ordered path from one client to one memory node. The caller of the switch numbers these paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SwitchConnection(pub u64);

/// A verb on its way to a memory node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchRequest<'b> {
    /// The connection that the verb uses.
    pub connection: SwitchConnection,
    /// A number that no other unanswered verb of the connection has.
    pub number: u64,
    /// The place that the verb works on.
    pub place: PoolPlace,
    /// The operation.
    pub verb: SwitchVerb<'b>,
}

/// The part of a verb that a switch sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwitchVerb<'b> {
    /// A READ of this many bytes.
    Read(u32),
    /// A READ of this many bytes that may be [steered](fusee_core::verbs::VerbBatch::steered) to the object that the
    /// slot at its place leads to.
    Steered(u32),
    /// A WRITE of this many bytes, with its first bytes: at least 64, or all if there are fewer.
    Write(u32, &'b [u8]),
    /// A compare-and-swap.
    Cas {
        /// The word that must be there.
        expected: u64,
        /// The word that replaces it.
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
    /// The verb passes, with this offset in the same pool as its place.
    Steer(u64),
    /// The verb waits, and with it all later verbs of its connection. The caller soon asks again whether it may pass.
    /// After a time well below the clients' timeout it passes whatever the switch decides.
    Hold,
}

/// The answer of a memory node to a CAS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CasAnswer {
    /// The connection of the request.
    pub connection: SwitchConnection,
    /// The number of the request.
    pub number: u64,
    /// The word that the CAS has found.
    pub found: u64,
}

/// The knowledge that a switch has to forget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForgetScope {
    /// Everything.
    All,
    /// Everything about a connection that broke, or on which a request was lost or refused.
    Connection(SwitchConnection),
}

/// A switch: its knowledge, and the counts of its decisions.
pub trait Switch {
    /// Decides on a verb. A verb that was [held](SwitchDecision::Hold) comes again.
    fn request(&mut self, request: &SwitchRequest<'_>) -> SwitchDecision;

    /// Learns from an answer that passes.
    fn answer(&mut self, answer: &CasAnswer);

    /// Forgets.
    fn forget(&mut self, what: ForgetScope);

    /// Returns the counts so far.
    fn counts(&self) -> SwitchCounts;

    /// Returns the memory that the present knowledge takes, without the overhead of the tables.
    fn bytes(&self) -> SwitchMemory;
}

/// Counts of a switch's decisions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwitchCounts {
    /// Verbs that have come to the switch.
    pub seen: u64,
    /// Verbs that could be steered if the switch knew their target.
    pub asked: u64,
    /// Verbs that were steered.
    pub steered: u64,
    /// Verbs that were held at least once.
    pub held: u64,
    /// The number of times that the switch forgot everything.
    pub forgot: u64,
}

/// The memory that a switch's knowledge takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwitchMemory {
    /// For keys or slots.
    pub keys: u64,
    /// For connections: their unanswered verbs, and their last WRITEs.
    pub connections: u64,
}

impl SwitchMemory {
    /// Returns the sum.
    pub fn sum(self) -> u64 {
        self.keys + self.connections
    }
}
