//! A switch in the path from clients to memory nodes, which sees in what order verbs pass, and helps those that would
//! collide (Grant and Snoeren, "In-network Contention Resolution for Disaggregated Memory", WORDS '21; "S §n" in
//! comments).
//!
//! [`Switch`] is what such a switch knows and decides, and nothing else: no clock, no I/O. Whoever
//! has the packets calls it for every verb and every answer that passes: the simulator, and whoever forwards bytes.
//!
//! # What must hold
//! What a switch knows is *soft state*. Whatever it forgets, whenever; however many switches there are, or paths
//! around them; whatever is lost or sent twice: all results are those of a system without a switch, and only come
//! later.
//!
//! An answer names the request that it belongs to, and not what a switch did to that request; and the switch may have
//! forgotten it. So *a request may be changed only if every answer that it can get is true for its client as it is*.
//! [`ours`] is within that rule, and [`clover`] says where what was published is not.
#![no_std]
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

extern crate alloc;

pub mod clover;
pub mod ours;
mod table;

use alloc::collections::VecDeque;

use fusee_core::view::Place;

use table::Table;

/// WRITEs, and CASes that are not answered, that are remembered of a connection.
const REMEMBERED: usize = 32;

/// Puts one behind the others, of which the oldest goes if they are too many.
fn push<T>(all: &mut VecDeque<T>, one: T, most: usize) {
    if all.len() >= most {
        all.pop_front();
    }
    all.push_back(one);
}

/// One client's way to one memory node, on which nothing overtakes. Whoever calls the switch numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Connection(pub u64);

/// A verb on its way to a memory node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'b> {
    /// On which it is.
    pub connection: Connection,
    /// It has a number that no other verb of the connection has which was not answered.
    pub number: u64,
    /// What it is about.
    pub place: Place,
    /// What it does there.
    pub verb: Verb<'b>,
}

/// What a switch sees of a verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb<'b> {
    /// A READ of so many bytes.
    Read(u32),
    /// A READ of so many bytes that may be [steered](fusee_core::verbs::Batch::steered) to where the object lies that
    /// the slot at its place leads to.
    Steered(u32),
    /// A WRITE of so many bytes, which begin with these: at least the first 64 of them, if there are so many.
    Write(u32, &'b [u8]),
    /// A compare-and-swap.
    Cas {
        /// What must be there.
        expected: u64,
        /// What comes there.
        swap: u64,
    },
    /// A fetch-and-add.
    Faa,
}

/// What becomes of a verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on as it is.
    Forward,
    /// It goes on, and is about this place of the same pool.
    Steer(u64),
    /// It waits here, and with it all that its connection has sent later. It is asked again soon whether it may go on;
    /// after a time well below that in which clients give a verb up it does so, whatever the switch says.
    Hold,
}

/// A memory node's answer on its way back, if it is that to a CAS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// On which it is.
    pub connection: Connection,
    /// Of the request.
    pub number: u64,
    /// What the CAS has found.
    pub found: u64,
}

/// What a switch is to forget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forget {
    /// All that it knows.
    All,
    /// What it knows of a connection that was broken, or on which a request was lost or refused.
    Connection(Connection),
}

/// A switch: what it knows, and what it has done.
pub trait Switch {
    /// What becomes of a verb that comes to it. One that was [held](Verdict::Hold) comes again.
    fn request(&mut self, request: &Request<'_>) -> Verdict;

    /// An answer passes.
    fn answer(&mut self, answer: &Answer);

    /// It forgets.
    fn forget(&mut self, what: Forget);

    /// What it has done so far.
    fn counts(&self) -> Counts;

    /// Bytes that it takes to know what it knows now: of keys and of connections, without what a table takes to find
    /// them.
    fn bytes(&self) -> Bytes;
}

/// What a switch has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Verbs that have come to it.
    pub seen: u64,
    /// Verbs that would have been steered, had it known where to.
    pub asked: u64,
    /// Verbs that were steered.
    pub steered: u64,
    /// Verbs that were held at least once.
    pub held: u64,
    /// How often it forgot all that it knew.
    pub forgot: u64,
}

/// Memory that a switch takes for what it knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bytes {
    /// Of keys, or slots.
    pub keys: u64,
    /// Of connections: what they have sent that was not answered, and their last WRITEs.
    pub connections: u64,
}

impl Bytes {
    /// All of it.
    pub fn sum(self) -> u64 {
        self.keys + self.connections
    }
}
