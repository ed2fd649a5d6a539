//! The simulated fabric: memory nodes as byte vectors, verbs executed one run of words per step.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::poll_fn;
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
    verbs: Vec<usize>,
    /// Bytes of the current verb that are done.
    done: usize,
}

impl SimFabric {
    pub(crate) fn new(rng: &Rng, pools: &Pools) -> SimFabric {
        SimFabric { rng: rng.clone(), pools: pools.clone() }
    }

    /// One step of one lane. Returns whether its current verb is finished.
    fn step(&self, verb: &mut Verb, bytes: &mut [u8], done: &mut usize) -> bool {
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
                let len = buf.len as usize;
                let run = self.run_bytes(verb.offset, len, *done);
                let local = &mut bytes[buf.range()][*done..*done + run];
                let remote = &mut pool[at + *done..at + *done + run];
                match verb.op {
                    Op::Read { .. } => local.copy_from_slice(remote),
                    _ => remote.copy_from_slice(local),
                }
                *done += run;
                *done == len
            }
        }
    }

    /// How many bytes go in this step: up to a word boundary, and often everything, since tearing
    /// matters mostly in the first few words.
    fn run_bytes(&self, offset: u64, len: usize, done: usize) -> usize {
        let left = len - done;
        if self.rng.below(4) > 0 {
            return left;
        }
        let head = 8 - (offset as usize + done) % 8;
        (head + 8 * self.rng.below(4)).min(left)
    }
}

impl Fabric for SimFabric {
    async fn execute(&self, mut batch: Batch) -> Batch {
        let mut lanes: Vec<Lane> = Vec::new();
        for (i, verb) in batch.verbs().iter().enumerate() {
            match lanes.iter_mut().find(|l| l.node == verb.node) {
                Some(lane) => lane.verbs.push(i),
                None => lanes.push(Lane { node: verb.node, verbs: vec![i], done: 0 }),
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
            if self.step(&mut verbs[current], bytes, &mut lane.done) {
                lane.verbs.pop();
                lane.done = 0;
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
