//! A switch's knowledge of entries and their words, with which it steers CASes.

use fusee_core::verbs::MnId;
use fusee_switch::clover::{Chains, Entry as At};

use super::shape::{Entry, Next, Shape};
use super::{KEY, VALUE};

/// The entries of a store with one memory node, without replicas.
#[derive(Clone, Copy, Debug)]
pub struct Words {
    shape: Shape,
}

impl Shape {
    /// Returns the knowledge for a switch, or `None` if entries lie on several memory nodes: a switch cannot steer a
    /// verb from one node to another.
    pub fn words(self) -> Option<Words> {
        (self.memory_nodes == 1 && self.replicas == 1).then_some(Words { shape: self })
    }
}

impl Words {
    fn at(&self, entry: Entry) -> At {
        let (_, offset) = self.shape.entry(&[MnId(0)], entry, 0);
        At { offset, version: entry.version() }
    }
}

impl Chains for Words {
    fn key(&self, start: &[u8]) -> Option<u128> {
        let key = start.get(KEY as usize..VALUE as usize)?;
        Some(u128::from_le_bytes(key.try_into().expect("16 bytes")))
    }

    fn follows(&self, expected: u64, swap: u64) -> Option<(u64, At)> {
        let expected = Next::from_word(expected);
        let swap = Next::from_word(swap);
        let is_chain = expected.next().is_none()
            && expected.version() == swap.version()
            && !expected.is_uncommitted()
            && !swap.is_uncommitted();
        let new = swap.next().filter(|_| is_chain)?;
        Some((expected.version(), self.at(new)))
    }
}
