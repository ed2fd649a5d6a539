//! Values that name their write, and that show if they are a mixture of two writes.
//!
//! ```text
//! offset 0          8              16               24
//!        | key no 8 | writer id 8  | sequence no 8  | fill words ... |
//! ```
//!
//! The fill follows from the three numbers, and all its words differ. Therefore a value that is a mixture of two
//! writes, that was cut short, or that belongs to another key is recognised by itself, without a list of the writes.

/// Bytes before the fill; a value has at least this many.
pub const HEADER_BYTES: usize = 24;

/// Returns a number that looks random (the finalizer of SplitMix64).
pub fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The write that has written a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ValueOrigin {
    /// The number of the key.
    pub key: u64,
    /// The number of the writer.
    pub writer: u64,
    /// The number of the write among the writes of this writer.
    pub sequence: u64,
}

/// The error for a value that is not one whole write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TornValue;

impl ValueOrigin {
    fn header(&self) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        for (bytes, word) in header.chunks_exact_mut(8).zip([self.key, self.writer, self.sequence])
        {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        header
    }

    fn fill_seed(&self) -> u64 {
        mix(mix(mix(self.key ^ 0x9e37_79b9_7f4a_7c15) ^ self.writer) ^ self.sequence)
    }

    /// Writes the value of this origin over all of `value`.
    ///
    /// # Panics
    /// Panics if the value is shorter than [`HEADER_BYTES`].
    pub fn encode(&self, value: &mut [u8]) {
        let (header, fill) = value.split_at_mut(HEADER_BYTES);
        header.copy_from_slice(&self.header());
        let mut word = self.fill_seed();
        let mut words = fill.chunks_exact_mut(8);
        for bytes in &mut words {
            word = next_word(word);
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        let rest = words.into_remainder();
        rest.copy_from_slice(&next_word(word).to_le_bytes()[..rest.len()]);
    }

    /// Reads a value of `len` bytes and checks its fill.
    pub fn decode(value: &[u8], len: usize) -> Result<ValueOrigin, TornValue> {
        if value.len() != len || len < HEADER_BYTES {
            return Err(TornValue);
        }
        let (header, fill) = value.split_at(HEADER_BYTES);
        let mut words = header.chunks_exact(8).map(word_of);
        let mut next = || words.next().expect("the header has three words");
        let origin = ValueOrigin { key: next(), writer: next(), sequence: next() };
        let mut word = origin.fill_seed();
        // The loop has no branches, so that the compiler can compare several words at a time.
        let mut differences = 0;
        let words = fill.chunks_exact(8);
        let rest = words.remainder();
        for bytes in words {
            word = next_word(word);
            differences |= word ^ word_of(bytes);
        }
        let same_remainder = rest == &next_word(word).to_le_bytes()[..rest.len()];
        if differences == 0 && same_remainder { Ok(origin) } else { Err(TornValue) }
    }
}

fn word_of(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("chunks of 8 bytes have 8 bytes"))
}

/// Returns the next word of the fill. The step is odd, so that no word comes twice in a value.
fn next_word(word: u64) -> u64 {
    word.wrapping_add(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(key: u64, writer: u64, sequence: u64, len: usize) -> Vec<u8> {
        let mut value = vec![0; len];
        ValueOrigin { key, writer, sequence }.encode(&mut value);
        value
    }

    #[test]
    fn values_of_all_lengths_come_back() {
        for len in [24, 25, 31, 32, 33, 1008, 4096] {
            let origin = ValueOrigin { key: 5, writer: u64::MAX, sequence: 1 << 40 };
            let mut bytes = vec![0xaa; len];
            origin.encode(&mut bytes);
            assert_eq!(ValueOrigin::decode(&bytes, len), Ok(origin));
            assert_eq!(ValueOrigin::decode(&bytes, len + 1), Err(TornValue));
        }
        assert_eq!(ValueOrigin::decode(&[0; 23], 23), Err(TornValue));
    }

    #[test]
    fn any_changed_byte_is_noticed() {
        let good = value(1, 2, 3, 100);
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert_eq!(ValueOrigin::decode(&bad, 100), Err(TornValue), "byte {at}");
        }
    }

    #[test]
    fn a_mixture_of_two_values_is_noticed_wherever_it_is_cut() {
        let one = value(1, 2, 3, 128);
        let two = value(1, 2, 4, 128);
        for cut in (8..128).step_by(8) {
            let mixed = [&one[..cut], &two[cut..]].concat();
            // Both values are the same up to the sequence number, so a cut before it gives the second value.
            let expected = if cut <= 16 {
                Ok(ValueOrigin { key: 1, writer: 2, sequence: 4 })
            } else {
                Err(TornValue)
            };
            assert_eq!(ValueOrigin::decode(&mixed, 128), expected, "cut at {cut}");
        }
    }
}
