//! The values of the pairs. The length of a value depends on its key, so updates keep it.

use rand::SeedableRng;
use rand::rngs::SmallRng;

use crate::size_distribution::SizeDistribution;

/// A key of the workloads.
pub type PeerKey = [u8; fusee_workload::KEY_BYTES];

/// Number of lengths that are drawn from a distribution.
const LENGTHS: usize = 256;

/// The values of all keys.
#[derive(Clone, Debug)]
pub struct PeerValues {
    longest: Vec<u8>,
    lengths: Vec<u32>,
}

impl PeerValues {
    /// Draws the lengths, which are the same in every run.
    pub fn new(sizes: SizeDistribution) -> PeerValues {
        let mut rng = SmallRng::seed_from_u64(1);
        let lengths: Vec<u32> = (0..LENGTHS).map(|_| sizes.draw(&mut rng)).collect();
        let longest = lengths.iter().copied().max().unwrap_or(0);
        PeerValues { longest: vec![7; longest as usize], lengths }
    }

    /// Returns the value of a key.
    pub fn of(&self, key: &PeerKey) -> &[u8] {
        // The last 8 bytes of a key are digits of its number.
        let number = u64::from_le_bytes(*key.last_chunk().expect("a key has 16 bytes"));
        let which = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
        &self.longest[..self.lengths[which as usize] as usize]
    }

    /// Returns the length of the longest value.
    pub fn longest_bytes(&self) -> u32 {
        self.longest.len() as u32
    }

    /// Returns the mean length.
    pub fn mean_bytes(&self) -> u32 {
        let sum: u64 = self.lengths.iter().map(|bytes| u64::from(*bytes)).sum();
        (sum / LENGTHS as u64) as u32
    }
}

#[cfg(test)]
mod tests {
    use fusee_workload::key_bytes;

    use super::*;

    #[test]
    fn keys_have_lengths_of_their_own_all_over_the_distribution() {
        let values = PeerValues::new("log-uniform:100-10240".parse().unwrap());
        let mut lengths: Vec<usize> = (0..10_000).map(|n| values.of(&key_bytes(n)).len()).collect();
        let mean = lengths.iter().sum::<usize>() / lengths.len();
        assert!(mean.abs_diff(values.mean_bytes() as usize) < 300, "{mean}");
        lengths.sort_unstable();
        assert!(lengths[0] < 130 && lengths[9_999] > 9_000, "{lengths:?}");
        lengths.dedup();
        assert!(lengths.len() > 200, "{}", lengths.len());
        assert_eq!(PeerValues::new(SizeDistribution::Fixed(48)).of(&key_bytes(3)).len(), 48);
    }
}
