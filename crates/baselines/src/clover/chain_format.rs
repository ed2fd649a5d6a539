//! The format of Clover's entries and of the words in them, which a switch reads in order to steer CASes.

use fusee_core::verbs::MnId;
use fusee_switch::clover::{ChainEntry as At, ChainFormat};

use super::shape::{CloverEntry, CloverNextWord, CloverShape};
use super::{KEY, VALUE};

/// The format of the entries of a store with one memory node.
#[derive(Clone, Copy, Debug)]
pub struct CloverChainFormat {
    shape: CloverShape,
}

impl CloverShape {
    /// Returns the format for a switch, or `None` if entries lie on several memory nodes, because a switch cannot steer
    /// a verb from one node to another.
    pub fn chain_format(self) -> Option<CloverChainFormat> {
        (self.memory_nodes == 1 && self.replicas == 1).then_some(CloverChainFormat { shape: self })
    }
}

impl CloverChainFormat {
    fn at(&self, entry: CloverEntry) -> At {
        let (_, offset) = self.shape.entry(&[MnId(0)], entry, 0);
        At { offset, version: entry.version() }
    }
}

impl ChainFormat for CloverChainFormat {
    fn key(&self, start: &[u8]) -> Option<u128> {
        let key = start.get(KEY as usize..VALUE as usize)?;
        Some(u128::from_le_bytes(key.try_into().expect("16 bytes")))
    }

    fn follows(&self, expected: u64, swap: u64) -> Option<(u64, At)> {
        let expected = CloverNextWord::from_word(expected);
        let swap = CloverNextWord::from_word(swap);
        let is_chain = expected.next().is_none()
            && expected.version() == swap.version()
            && !expected.is_uncommitted()
            && !swap.is_uncommitted();
        let new = swap.next().filter(|_| is_chain)?;
        Some((expected.version(), self.at(new)))
    }
}
