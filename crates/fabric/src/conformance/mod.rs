//! The suite of checks that every fabric passes.
//!
//! The guarantees are those of [`fusee_core::verbs`], numbered 1 to 6 there; each check names its guarantee. A
//! fabric under test provides a [`Rig`]: two memory nodes and a way to attach clients. A check is a function that
//! panics if the guarantee is broken. Each check gets a rig of its own, so a check that kills a node or fences a
//! client does not disturb other checks.
//!
//! [`checks`] run on any rig. [`fencing_checks`] fence clients of the caller's process, so they cannot run on a rig
//! whose fences kill that process.
//!
//! Concurrent checks run for a bounded time, so they find a race only with some probability. Each check was seen to
//! fail without the code that it guards, unless the check's comment says otherwise.

mod atomics;
mod basics;
mod failures;
mod races;

use std::cell::Cell;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use fusee_core::ended_clients::LiveClients;
use fusee_core::layout::POOL_HEADER_BYTES;
use fusee_core::verbs::{ClientId, Fabric, MnId, VerbBatch};

use crate::error::AttachError;

/// The memory nodes of a rig.
pub const NODES: [MnId; 2] = [MnId(0), MnId(1)];
/// The offset of the first byte of a pool that sessions can change: the end of the header.
pub const START: u64 = POOL_HEADER_BYTES;
/// The length of each node's pool in bytes: room for two verbs of the largest size and a little more.
pub const POOL_BYTES: u64 = 34 << 20;
/// The longest time that a step of a check takes unless a guarantee is broken. In a virtual machine with an emulated
/// processor, the largest verbs take ten seconds.
const PATIENCE: Duration = Duration::from_secs(60);

/// Two memory nodes with pools of [`POOL_BYTES`] each, all zeros, and a way to attach clients to them.
pub trait Rig: Sync {
    /// The type of a client's session.
    type Fabric: Fabric;

    /// Attaches a client to both nodes. The calling thread is the one that will use the session.
    fn attach(&self, client: ClientId) -> Result<Self::Fabric, AttachError>;

    /// Lets a session do its I/O for a moment.
    fn turn(&self, fabric: &Self::Fabric);

    /// Fences a client at a node.
    fn fence(&self, node: MnId, client: ClientId);

    /// Tells a node which clients with ids below a bound are alive. Returns whether the rig supports this.
    fn learn(&self, node: MnId, living: &LiveClients) -> bool {
        let _ = (node, living);
        false
    }

    /// Returns whether a fence can cut a batch between two consecutive FAAs, as a NIC does when its queue pair is
    /// destroyed.
    fn cuts_batches(&self) -> bool {
        false
    }

    /// Makes a node fail.
    fn kill(&self, node: MnId);
}

/// The name of a check, and the check.
pub type Check<R> = (&'static str, fn(&R));

/// Returns the checks that run on any rig.
pub fn checks<R: Rig>() -> Vec<Check<R>> {
    vec![
        ("order_within_a_batch", basics::order_within_a_batch),
        ("a_full_batch_in_order", basics::a_full_batch_in_order),
        ("bounds", basics::bounds),
        ("the_header_is_read_only", basics::the_header_is_read_only),
        ("any_length_at_any_offset", basics::any_length_at_any_offset),
        ("the_largest_verbs", basics::the_largest_verbs),
        ("many_batches_in_flight", basics::many_batches_in_flight),
        ("dropped_futures", basics::dropped_futures),
        ("atomics_say_what_they_found", atomics::they_say_what_they_found),
        ("atomics_lose_nothing", atomics::they_lose_nothing),
        ("words_do_not_tear", races::words_do_not_tear),
        ("the_last_word_lands_last", races::the_last_word_lands_last),
        ("reads_do_not_pass_writes", races::reads_do_not_pass_writes),
        ("neighbours_of_a_write_survive", races::neighbours_of_a_write_survive),
        ("unknown_nodes_are_unreachable", failures::unknown_nodes_are_unreachable),
        ("a_node_fails", failures::a_node_fails),
    ]
}

/// Returns the checks that fence clients in the caller's process.
pub fn fencing_checks<R: Rig>() -> Vec<Check<R>> {
    vec![
        ("a_fenced_client_is_out", failures::a_fenced_client_is_out),
        ("fencing_while_it_hammers", failures::fencing_while_it_hammers),
        ("fencing_a_stranger", failures::fencing_a_stranger),
    ]
}

/// A session together with its rig.
struct RigSession<'a, R: Rig> {
    rig: &'a R,
    fabric: R::Fabric,
    /// Flips with every batch: every second batch tries `execute_now`, the path without a future.
    waits: Cell<bool>,
}

impl<'a, R: Rig> RigSession<'a, R> {
    fn new(rig: &'a R, client: u32) -> RigSession<'a, R> {
        let fabric = rig.attach(ClientId(client)).expect("the client is welcome");
        RigSession { rig, fabric, waits: Cell::new(false) }
    }

    /// Runs a future of this session to its end.
    fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        let started = Instant::now();
        loop {
            let mut context = Context::from_waker(Waker::noop());
            if let Poll::Ready(done) = future.as_mut().poll(&mut context) {
                return done;
            }
            self.rig.turn(&self.fabric);
            assert!(started.elapsed() < PATIENCE, "a batch does not complete");
        }
    }

    fn run(&self, mut batch: VerbBatch) -> VerbBatch {
        self.waits.set(!self.waits.get());
        if !self.waits.get() && self.fabric.execute_now(&mut batch) {
            return batch;
        }
        self.wait(self.fabric.execute(batch))
    }

    /// Runs a batch in which every verb must succeed.
    fn done(&self, batch: VerbBatch) -> VerbBatch {
        let batch = self.run(batch);
        batch.check().expect("every verb succeeds");
        batch
    }

    fn write(&self, node: MnId, offset: u64, data: &[u8]) {
        let mut batch = VerbBatch::new();
        let span = batch.stage(data.len() as u32);
        batch.bytes_mut(span).copy_from_slice(data);
        batch.write(node, offset, span);
        self.done(batch);
    }

    fn read(&self, node: MnId, offset: u64, len: u32) -> Vec<u8> {
        let mut batch = VerbBatch::new();
        let ticket = batch.read(node, offset, len);
        self.done(batch).data(ticket).expect("checked").to_vec()
    }

    fn word(&self, node: MnId, offset: u64) -> u64 {
        word(&self.read(node, offset, 8))
    }
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
}

/// Returns a batch with a staged copy of `data`, and its span.
fn staged(data: &[u8]) -> (VerbBatch, fusee_core::verbs::Span) {
    let mut batch = VerbBatch::new();
    let span = batch.stage(data.len() as u32);
    batch.bytes_mut(span).copy_from_slice(data);
    (batch, span)
}
