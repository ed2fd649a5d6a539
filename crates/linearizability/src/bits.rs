//! Sets of small numbers. The search uses them for the open operations that have had their instant.
//!
//! In most histories few operations on a key are open at one time, so that the set fits into a `u128`. The other
//! representation, a boxed slice, has no limit, but allocates memory.

use std::hash::Hash;

/// A set of numbers below a bound.
pub trait BitSet: Clone + Ord + Hash {
    /// Returns the empty set, for numbers below `bound`.
    fn none(bound: usize) -> Self;
    /// Returns whether `i` is in the set.
    fn has(&self, i: usize) -> bool;
    /// Puts `i` into the set.
    fn set(&mut self, i: usize);
    /// Takes `i` out of the set.
    fn clear(&mut self, i: usize);
}

/// A set of numbers below 128.
impl BitSet for u128 {
    fn none(bound: usize) -> u128 {
        assert!(bound <= u128::BITS as usize, "{bound} numbers do not fit into a word");
        0
    }

    fn has(&self, i: usize) -> bool {
        self >> i & 1 != 0
    }

    fn set(&mut self, i: usize) {
        *self |= 1 << i;
    }

    fn clear(&mut self, i: usize) {
        *self &= !(1 << i);
    }
}

/// A set of numbers below any bound.
impl BitSet for Box<[u64]> {
    fn none(bound: usize) -> Box<[u64]> {
        vec![0; bound.div_ceil(64)].into()
    }

    fn has(&self, i: usize) -> bool {
        self[i / 64] >> (i % 64) & 1 != 0
    }

    fn set(&mut self, i: usize) {
        self[i / 64] |= 1 << (i % 64);
    }

    fn clear(&mut self, i: usize) {
        self[i / 64] &= !(1 << (i % 64));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers_go_in_and_out<B: BitSet>(bound: usize) {
        let mut set = B::none(bound);
        for i in (0..bound).step_by(3) {
            set.set(i);
        }
        set.clear(0);
        for i in 0..bound {
            assert_eq!(set.has(i), i % 3 == 0 && i > 0, "{i}");
        }
    }

    #[test]
    fn both_forms_are_sets() {
        numbers_go_in_and_out::<u128>(128);
        for bound in [1, 64, 65, 1000] {
            numbers_go_in_and_out::<Box<[u64]>>(bound);
        }
    }
}
