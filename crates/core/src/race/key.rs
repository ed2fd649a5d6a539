//! Keys with their hash, by a secret of the cluster.
//!
//! A key's hash says in which slots it may lie. Somebody who can choose keys that hash alike fills the
//! buckets of one place, and no split of the index separates them. So the hash is a keyed
//! pseudo-random function, SipHash-1-3: without the secret nobody can compute such keys, nor learn
//! anything about them from where others lie. The secret, a [`HashKey`], is drawn when a cluster is
//! formed; its view tells it ([`View::hash_key`](crate::view::View::hash_key)).
//!
//! Positions and fingerprint take some 54 bits. The function gives 64, which are spread over two
//! halves: 128 would make a short key cost a third more, and hash no two keys apart that count.

use core::fmt;
use core::ops::Deref;

use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher13;

/// An odd number without pattern: the golden ratio's bits.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// The secret by which a cluster hashes keys. Whoever has it can choose keys that lie together: it is
/// shown nowhere, and another cluster has another one.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HashKey([u8; 16]);

impl HashKey {
    /// Of 16 bytes, which are random where it is to be a secret.
    pub const fn new(bytes: [u8; 16]) -> HashKey {
        HashKey(bytes)
    }

    /// A secret of its own for each of these pairs of numbers, as far from this one and from each other as random
    /// ones.
    pub fn derived(&self, of: (u64, u64)) -> HashKey {
        let half = |which: u64| {
            let words = [of.0, of.1, which].map(u64::to_le_bytes);
            SipHasher13::new_with_key(&self.0).hash(words.as_flattened()).to_le_bytes()
        };
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&half(0));
        bytes[8..].copy_from_slice(&half(1));
        HashKey(bytes)
    }
}

impl fmt::Debug for HashKey {
    /// Nothing of it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HashKey(..)")
    }
}

/// A key with its hash, which an operation needs in several places and takes once.
#[derive(Clone, Copy, Debug)]
pub struct Key<'k> {
    bytes: &'k [u8],
    hash: u64,
}

impl<'k> Key<'k> {
    /// A key of the cluster that has this secret.
    #[inline]
    pub fn new(bytes: &'k [u8], secret: &HashKey) -> Key<'k> {
        Key { bytes, hash: SipHasher13::new_with_key(&secret.0).hash(bytes) }
    }

    /// The hash, for tables in memory.
    #[inline]
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// The hash, and as many bits that follow from it, each from all of its bits.
    #[inline]
    pub(super) fn halves(&self) -> [u64; 2] {
        let product = u128::from(self.hash) * u128::from(SPREAD);
        [self.hash, product as u64 ^ (product >> 64) as u64]
    }

    /// How many bits of its position in the directory another key shares, from the first on: so deep are the subtables
    /// that both may lie in.
    pub fn common_bits(&self, other: &Key<'_>) -> u32 {
        (self.halves()[0] ^ other.halves()[0]).leading_zeros()
    }

    /// The upper 8 bits of its slots' words, independent of its position.
    #[inline]
    pub fn fingerprint(&self) -> u8 {
        let [_, high] = self.halves();
        (high >> 56) as u8
    }
}

impl Deref for Key<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.bytes
    }
}

/// A key, or the bytes of one.
pub trait IntoKey<'k> {
    /// The key, of the cluster that has this secret. One that is hashed already stays as it is.
    fn into_key(self, secret: &HashKey) -> Key<'k>;
}

impl<'k> IntoKey<'k> for Key<'k> {
    #[inline]
    fn into_key(self, _secret: &HashKey) -> Key<'k> {
        self
    }
}

impl<'k, B: AsRef<[u8]> + ?Sized> IntoKey<'k> for &'k B {
    #[inline]
    fn into_key(self, secret: &HashKey) -> Key<'k> {
        Key::new(self.as_ref(), secret)
    }
}
