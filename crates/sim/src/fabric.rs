//! The simulated fabric: memory nodes as byte vectors, verbs executed one piece per step.
//!
//! READs and WRITEs come in one piece or, every fourth, in up to five, cut between any two aligned
//! words and executed in any order. That is all that a fabric promises, with one exception: the
//! last piece of a WRITE, which holds its last word, comes last. CAS and FAA are one piece.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::ops::Range;
use std::rc::Rc;
use std::task::Poll;

use fusee_core::verbs::{Batch, Fabric, MnId, Op, Verb, VerbError};

use crate::executor::Rng;

/// The memory of all nodes.
pub(crate) type Pools = Rc<RefCell<BTreeMap<MnId, Vec<u8>>>>;

/// One client's access to the memory nodes.
#[derive(Clone)]
pub struct SimFabric {
    rng: Rng,
    pools: Pools,
}

/// How far the verbs of one node have come.
struct Lane {
    node: MnId,
    /// Verbs that are not finished, the current one last.
    verbs: Vec<usize>,
    /// What is left of the current verb, in the order opposite to its execution; empty if it has
    /// not begun.
    pieces: Vec<Range<usize>>,
}

impl SimFabric {
    pub(crate) fn new(rng: &Rng, pools: &Pools) -> SimFabric {
        SimFabric { rng: rng.clone(), pools: pools.clone() }
    }

    /// One step of one verb. Returns whether it is finished.
    fn step(&self, verb: &mut Verb, bytes: &mut [u8], pieces: &mut Vec<Range<usize>>) -> bool {
        let mut pools = self.pools.borrow_mut();
        let Some(pool) = pools.get_mut(&verb.node) else {
            verb.result = Err(VerbError::Unreachable);
            return true;
        };
        verb.result = verb.check(pool.len() as u64);
        if verb.result.is_err() {
            return true;
        }
        let at = verb.offset as usize;
        let word = |pool: &[u8]| u64::from_le_bytes(pool[at..at + 8].try_into().expect("8 bytes"));
        let is_write = matches!(verb.op, Op::Write { .. });
        match &mut verb.op {
            Op::Cas { expected, swap, found } => {
                *found = word(pool);
                if *found == *expected {
                    pool[at..at + 8].copy_from_slice(&swap.to_le_bytes());
                }
                true
            }
            Op::Faa { add, found } => {
                *found = word(pool);
                let sum = found.wrapping_add(*add);
                pool[at..at + 8].copy_from_slice(&sum.to_le_bytes());
                true
            }
            Op::Read { buf } | Op::Write { buf } => {
                if pieces.is_empty() {
                    *pieces = self.pieces(verb.offset, buf.len as usize);
                    if is_write {
                        let last = pieces.iter().position(|p| p.end == buf.len as usize);
                        pieces.swap(0, last.expect("some piece is the last"));
                    }
                }
                let piece = pieces.pop().expect("it has pieces");
                let local = &mut bytes[buf.range()][piece.clone()];
                let remote = &mut pool[at + piece.start..at + piece.end];
                if is_write {
                    remote.copy_from_slice(local);
                } else {
                    local.copy_from_slice(remote);
                }
                pieces.is_empty()
            }
        }
    }

    /// Cuts `len` bytes from pool offset `offset` on, in random order.
    fn pieces(&self, offset: u64, len: usize) -> Vec<Range<usize>> {
        let first_cut = 8 - (offset % 8) as usize;
        let mut cuts = vec![0, len];
        if first_cut < len && self.rng.below(4) == 0 {
            let places = (len - first_cut).div_ceil(8);
            // The first words matter more than the rest of a long value.
            let near = [places, places.min(8)][self.rng.below(2)];
            cuts.extend((0..1 + self.rng.below(4)).map(|_| first_cut + 8 * self.rng.below(near)));
        }
        cuts.sort_unstable();
        let mut pieces: Vec<_> = cuts.windows(2).map(|pair| pair[0]..pair[1]).collect();
        pieces.retain(|piece| !piece.is_empty() || len == 0);
        for i in (1..pieces.len()).rev() {
            pieces.swap(i, self.rng.below(i + 1));
        }
        pieces
    }
}

impl Fabric for SimFabric {
    async fn execute(&self, mut batch: Batch) -> Batch {
        let mut lanes: Vec<Lane> = Vec::new();
        for (i, verb) in batch.verbs().iter().enumerate() {
            match lanes.iter_mut().find(|l| l.node == verb.node) {
                Some(lane) => lane.verbs.push(i),
                None => {
                    lanes.push(Lane { node: verb.node, verbs: vec![i], pieces: Vec::new() });
                }
            }
        }
        lanes.iter_mut().for_each(|l| l.verbs.reverse());
        poll_fn(|_| {
            if lanes.is_empty() {
                return Poll::Ready(());
            }
            let i = self.rng.below(lanes.len());
            let lane = &mut lanes[i];
            let current = *lane.verbs.last().expect("finished lanes are removed");
            let (verbs, bytes) = batch.parts_mut();
            if self.step(&mut verbs[current], bytes, &mut lane.pieces) {
                lane.verbs.pop();
                lane.pieces.clear();
                if lane.verbs.is_empty() {
                    lanes.swap_remove(i);
                }
            }
            Poll::Pending
        })
        .await;
        batch
    }
}
