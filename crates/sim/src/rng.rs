//! Random numbers from a seed. All randomness of a run comes from this module.
//!
//! A run has several streams, each named after its use (the schedule, the operations, the faults). So if a few faults
//! or operations are left out, the rest of the run changes as little as possible. Shrinking depends on this.

use std::cell::RefCell;
use std::rc::Rc;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// One stream of random numbers. Clones share the stream.
#[derive(Clone, Debug)]
pub struct Rng(Rc<RefCell<StdRng>>);

impl Rng {
    /// Makes the unnamed stream of a seed.
    pub fn new(seed: u64) -> Rng {
        Rng(Rc::new(RefCell::new(StdRng::seed_from_u64(seed))))
    }

    /// Makes the stream with this name, which is independent of the other streams of the seed.
    pub fn named(seed: u64, name: &str) -> Rng {
        let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        Rng::new(name.bytes().fold(seed ^ 0xcbf2_9ce4_8422_2325, mix))
    }

    /// Lends the generator to code that draws from it directly.
    pub fn with<R>(&self, draw: impl FnOnce(&mut StdRng) -> R) -> R {
        draw(&mut self.0.borrow_mut())
    }

    /// Draws a number below `n`, which must be at least 1.
    pub fn below(&self, n: usize) -> usize {
        self.0.borrow_mut().random_range(0..n)
    }

    /// Draws a number below `n`, which must be at least 1.
    pub fn below_u64(&self, n: u64) -> u64 {
        self.0.borrow_mut().random_range(0..n)
    }

    /// Returns true with probability 1/`n`.
    pub fn one_in(&self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// Draws one of these values, each with equal probability.
    pub fn pick<T: Copy>(&self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}
