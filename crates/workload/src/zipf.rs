//! Distributions of the next key: uniform, Zipfian, or latest.
//!
//! The Zipfian generator is that of Gray et al. ("Quickly generating billion-record synthetic databases", SIGMOD '94),
//! which YCSB uses too: rank 0 is the most popular, and each draw computes one power. The generator is exact for the
//! two most popular ranks and approximates the other ones.
//!
//! Ranks are then *scrambled* by an affine permutation of the key numbers, so that the numbers of hot keys are far
//! apart. YCSB scrambles by a hash modulo the number of keys, so that some keys collide and others are never requested.
//! A permutation keeps the distribution unchanged.
//!
//! *Latest* (workload D) counts ranks back from the key that was inserted last. As keys are added, the constants of the
//! generator are extended by one term per key.

use rand::{Rng, RngExt};

/// Draws ranks below `items`. Rank `r` has a probability close to proportional to `1 / (r + 1)^theta`.
#[derive(Clone, Debug)]
pub struct Zipfian {
    items: u64,
    theta: f64,
    /// The sum of `1 / i^theta` for i from 1 to `items`.
    zeta: f64,
    alpha: f64,
    eta: f64,
}

impl Zipfian {
    /// Makes a generator for this number of items.
    ///
    /// # Panics
    /// If there is no item or `theta` is not in `0..1`.
    pub fn new(items: u64, theta: f64) -> Zipfian {
        assert!(items > 0, "a distribution needs at least one item");
        assert!((0.0..1.0).contains(&theta), "theta must be at least 0 and below 1");
        let alpha = 1.0 / (1.0 - theta);
        let mut zipfian = Zipfian { items: 0, theta, zeta: 0.0, alpha, eta: 0.0 };
        zipfian.grow(items);
        zipfian
    }

    /// Raises the number of items. A smaller number changes nothing.
    pub fn grow(&mut self, items: u64) {
        if items <= self.items {
            return;
        }
        self.zeta += zeta(self.items, items, self.theta);
        self.items = items;
        let n = items as f64;
        let zeta_2 = zeta(0, 2.min(items), self.theta);
        self.eta = (1.0 - (2.0 / n).powf(1.0 - self.theta)) / (1.0 - zeta_2 / self.zeta);
    }

    /// Returns the rank for a number that was drawn uniformly from `0.0..1.0`.
    pub fn rank(&self, uniform: f64) -> u64 {
        let scaled = uniform * self.zeta;
        if scaled < 1.0 || self.items == 1 {
            return 0;
        }
        if scaled < 1.0 + 0.5f64.powf(self.theta) || self.items == 2 {
            return 1;
        }
        let power = (self.eta * uniform - self.eta + 1.0).powf(self.alpha);
        ((self.items as f64 * power) as u64).min(self.items - 1)
    }
}

fn zeta(from: u64, to: u64, theta: f64) -> f64 {
    (from + 1..=to).map(|i| 1.0 / (i as f64).powf(theta)).sum()
}

/// A permutation of the numbers below `items` that sends neighbours far apart.
#[derive(Clone, Copy, Debug)]
pub struct Scramble {
    items: u64,
    factor: u64,
    shift: u64,
}

impl Scramble {
    /// Creates a permutation, which depends on the seed.
    pub fn new(items: u64, seed: u64) -> Scramble {
        // With a factor near the golden ratio, consecutive ranks are spread as evenly as possible.
        let golden = (items as f64 * 0.618_033_988_75) as u64;
        let factor = (golden.max(1)..).find(|f| gcd(*f, items) == 1).unwrap_or(1);
        Scramble { items, factor, shift: seed % items }
    }

    /// Returns the key number of a rank.
    pub fn apply(&self, rank: u64) -> u64 {
        let product = u128::from(rank) * u128::from(self.factor) + u128::from(self.shift);
        (product % u128::from(self.items)) as u64
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Distributions of requests over the keys.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Distribution {
    /// Few keys get most requests, spread over all keys.
    Zipfian,
    /// Every key is as likely as any other.
    Uniform,
    /// Few keys get most requests: the keys that were inserted last.
    Latest,
}

/// Draws key numbers.
#[derive(Clone, Debug)]
pub enum KeyChooser {
    /// See [`Distribution::Uniform`].
    Uniform,
    /// See [`Distribution::Zipfian`].
    Zipfian(Zipfian, Scramble),
    /// See [`Distribution::Latest`].
    Latest(Zipfian),
}

impl KeyChooser {
    /// Creates a chooser for the keys below `keys`. All choosers with one seed have the same hot keys.
    pub fn new(distribution: Distribution, keys: u64, theta: f64, seed: u64) -> KeyChooser {
        match distribution {
            Distribution::Uniform => KeyChooser::Uniform,
            Distribution::Zipfian => {
                KeyChooser::Zipfian(Zipfian::new(keys, theta), Scramble::new(keys, seed))
            }
            Distribution::Latest => KeyChooser::Latest(Zipfian::new(keys, theta)),
        }
    }

    /// Draws a key number below `limit`, the present number of keys, which must never decrease.
    pub fn next(&mut self, rng: &mut impl Rng, limit: u64) -> u64 {
        match self {
            KeyChooser::Uniform => rng.random_range(0..limit),
            KeyChooser::Zipfian(zipfian, scramble) => scramble.apply(zipfian.rank(rng.random())),
            KeyChooser::Latest(zipfian) => {
                zipfian.grow(limit);
                limit - 1 - zipfian.rank(rng.random())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;

    fn frequencies(chooser: &mut KeyChooser, limit: u64, draws: u32) -> Vec<f64> {
        let mut rng = StdRng::seed_from_u64(7);
        let mut counts = vec![0u32; limit as usize];
        for _ in 0..draws {
            counts[chooser.next(&mut rng, limit) as usize] += 1;
        }
        counts.iter().map(|c| f64::from(*c) / f64::from(draws)).collect()
    }

    #[test]
    fn zipfian_frequencies_follow_the_power_law() {
        let items = 1000;
        let theta = 0.99;
        let mut chooser = KeyChooser::Latest(Zipfian::new(items, theta));
        let mut found = frequencies(&mut chooser, items, 2_000_000);
        found.reverse();
        let sum = zeta(0, items, theta);
        for rank in [0usize, 1] {
            let exact = 1.0 / ((rank + 1) as f64).powf(theta) / sum;
            assert!((found[rank] / exact - 1.0).abs() < 0.02, "rank {rank}: {}", found[rank]);
        }
        // Beyond these two ranks Gray's generator only approximates, so the sums over decades of ranks are compared.
        for (from, to) in [(2u64, 10u64), (10, 100), (100, 1000)] {
            let exact = zeta(from, to, theta) / sum;
            let share: f64 = found[from as usize..to as usize].iter().sum();
            assert!((share / exact - 1.0).abs() < 0.10, "{from}..{to}: {share}, exact {exact}");
        }
    }

    #[test]
    fn growing_gives_the_same_generator_as_starting_large() {
        let mut grown = Zipfian::new(1, 0.99);
        for items in 2..=500 {
            grown.grow(items);
        }
        let large = Zipfian::new(500, 0.99);
        assert!((grown.zeta - large.zeta).abs() < 1e-9);
        for draw in 0..1000 {
            let uniform = f64::from(draw) / 1000.0;
            assert_eq!(grown.rank(uniform), large.rank(uniform));
        }
    }

    #[test]
    fn few_items_and_all_draws_stay_in_range() {
        for items in 1..=5 {
            for theta in [0.0, 0.5, 0.99] {
                let zipfian = Zipfian::new(items, theta);
                for uniform in [0.0, 0.1, 0.5, 0.9, 1.0 - f64::EPSILON] {
                    assert!(zipfian.rank(uniform) < items);
                }
            }
        }
    }

    #[test]
    fn the_scramble_is_a_permutation_that_spreads_the_hottest() {
        for items in [1u64, 2, 10, 97, 1000, 100_000] {
            let scramble = Scramble::new(items, 42);
            let images: HashSet<u64> = (0..items).map(|r| scramble.apply(r)).collect();
            assert_eq!(images.len() as u64, items);
        }
        let scramble = Scramble::new(100_000, 1);
        let gap = scramble.apply(0).abs_diff(scramble.apply(1));
        assert!(gap > 10_000 && gap < 90_000);
    }

    #[test]
    fn the_scrambled_distribution_keeps_its_shape() {
        let mut chooser = KeyChooser::new(Distribution::Zipfian, 1000, 0.99, 3);
        let mut found = frequencies(&mut chooser, 1000, 500_000);
        found.sort_by(|a, b| b.total_cmp(a));
        let hottest = 1.0 / zeta(0, 1000, 0.99);
        assert!((found[0] / hottest - 1.0).abs() < 0.03);
    }

    #[test]
    fn uniform_is_flat() {
        let found = frequencies(&mut KeyChooser::Uniform, 100, 1_000_000);
        assert!(found.iter().all(|f| (f * 100.0 - 1.0).abs() < 0.06));
    }
}
