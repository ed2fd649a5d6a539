//! Keys with their hash, by a secret of the cluster.
//!
//! A key's hash decides in which slots the key may lie. An attacker with keys that hash alike could fill the buckets
//! of one place, and no split of the index would separate them. So the hash is a keyed pseudo-random function,
//! SipHash-1-3: without the secret, no one can compute such keys, nor learn anything about them from the places of
//! other keys. The secret, a [`HashKey`], is drawn when a cluster is formed, and is a part of its views
//! ([`View::hash_key`](crate::view::View::hash_key)).
//!
//! Positions and fingerprint take some 54 bits. The function gives 64, which are spread over two halves. A function of
//! 128 bits would make a short key cost a third more, without separating more keys in practice.

use core::fmt;
use core::ops::Deref;

use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher13;

/// An odd number without pattern: the golden ratio's bits.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// The secret by which a cluster hashes keys. With the secret, keys can be chosen that lie together: it is shown
/// nowhere, and another cluster has another one.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HashKey([u8; 16]);

impl HashKey {
    /// Makes a secret of 16 bytes, which must be random if it is to be secret.
    pub const fn new(bytes: [u8; 16]) -> HashKey {
        HashKey(bytes)
    }

    /// Derives a secret of its own for each pair of numbers, as unrelated to this secret and to each other as random
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
    /// Shows nothing of the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HashKey(..)")
    }
}

/// A key with its hash, which an operation needs in several places and computes once.
#[derive(Clone, Copy, Debug)]
pub struct Key<'k> {
    bytes: &'k [u8],
    hash: u64,
}

impl<'k> Key<'k> {
    /// Hashes a key by this secret.
    #[inline]
    pub fn new(bytes: &'k [u8], secret: &HashKey) -> Key<'k> {
        Key { bytes, hash: SipHasher13::new_with_key(&secret.0).hash(bytes) }
    }

    /// The hash, for tables in memory.
    #[inline]
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Returns the hash, and as many bits that depend on all bits of the hash.
    #[inline]
    pub(super) fn halves(&self) -> [u64; 2] {
        let product = u128::from(self.hash) * u128::from(SPREAD);
        [self.hash, product as u64 ^ (product >> 64) as u64]
    }

    /// Returns the number of leading bits of the directory position that both keys share: the largest depth of a
    /// subtable in which both may lie.
    pub fn common_bits(&self, other: &Key<'_>) -> u32 {
        (self.halves()[0] ^ other.halves()[0]).leading_zeros()
    }

    /// Returns the upper 8 bits of the words of its slots, independent of its position.
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
    /// Returns the key, hashed by the secret of a cluster. A key that is hashed already stays as it is.
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
