//! Randomness: everything that is left to chance comes from a seed.
//!
//! A run has several streams, each named after what it decides (the schedule, the operations, the
//! faults), so that leaving a few faults or operations out changes the rest of the run as little
//! as possible. That is what makes shrinking work.

use std::cell::RefCell;
use std::rc::Rc;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// One stream of random numbers. Clones share it.
#[derive(Clone, Debug)]
pub struct Rng(Rc<RefCell<StdRng>>);

impl Rng {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Rng {
        Rng(Rc::new(RefCell::new(StdRng::seed_from_u64(seed))))
    }

    /// The stream of a seed and a name: independent of all others of that seed.
    pub fn named(seed: u64, name: &str) -> Rng {
        let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        Rng::new(name.bytes().fold(seed ^ 0xcbf2_9ce4_8422_2325, mix))
    }

    /// Lets somebody else draw from it.
    pub fn with<R>(&self, draw: impl FnOnce(&mut StdRng) -> R) -> R {
        draw(&mut self.0.borrow_mut())
    }

    /// A number below `n`, which is at least 1.
    pub fn below(&self, n: usize) -> usize {
        self.0.borrow_mut().random_range(0..n)
    }

    /// A number below `n`, which is at least 1.
    pub fn below_u64(&self, n: u64) -> u64 {
        self.0.borrow_mut().random_range(0..n)
    }

    /// True once in `n` times.
    pub fn one_in(&self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// One of these.
    pub fn pick<T: Copy>(&self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}
