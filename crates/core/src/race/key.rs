//! Keys together with their hash, which depends on a secret of the cluster.
//!
//! A key's hash decides in which slots the key can be. An attacker that knew keys with similar hashes could fill a few
//! buckets with them, and no split of the index would separate these keys. So the hash is a keyed pseudo-random
//! function, SipHash-1-3: without the secret it is infeasible to find such keys, or to learn anything about them from
//! the places of other keys. The secret, a [`HashKey`], is drawn when a cluster is formed, and is a part of the
//! cluster's views ([`View::hash_key`](crate::view::View::hash_key)).
//!
//! Positions and fingerprint need about 54 bits. The function returns 64, which are spread over two halves. A function
//! with 128 bits would take a third more time for a short key, without separating more keys in practice.

use core::fmt;
use core::ops::Deref;

use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher13;

/// The multiplier that spreads the hash over 128 bits: an odd number without pattern, from the golden ratio.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// The secret by which a cluster hashes keys. An attacker with this secret could choose keys that fall into the
/// same slots, so it is printed nowhere, and every cluster has its own.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HashKey([u8; 16]);

impl HashKey {
    /// Makes a secret of 16 bytes, which have to be random to be secret.
    pub const fn new(bytes: [u8; 16]) -> HashKey {
        HashKey(bytes)
    }

    /// Derives from this secret another one for each pair of numbers. Derived secrets are unrelated to this secret and
    /// to each other, like random numbers.
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
    /// Shows no byte of the hash key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HashKey(..)")
    }
}

/// A key with its hash, so that an operation that needs the hash in several places computes it once.
#[derive(Clone, Copy, Debug)]
pub struct Key<'k> {
    bytes: &'k [u8],
    hash: u64,
}

impl<'k> Key<'k> {
    /// Hashes a key by this hash key.
    #[inline]
    pub fn new(bytes: &'k [u8], secret: &HashKey) -> Key<'k> {
        Key { bytes, hash: SipHasher13::new_with_key(&secret.0).hash(bytes) }
    }

    /// Returns a stand-in for the key with this hash: it has the places and the fingerprint of the key, but not its
    /// bytes.
    pub(super) fn with_hash(hash: u64) -> Key<'static> {
        Key { bytes: &[], hash }
    }

    /// Returns the key's hash, for tables in local memory and for records.
    #[inline]
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Returns the hash, and 64 more bits, each of which depends on all bits of the hash.
    #[inline]
    pub(super) fn halves(&self) -> [u64; 2] {
        let product = u128::from(self.hash) * u128::from(SPREAD);
        [self.hash, product as u64 ^ (product >> 64) as u64]
    }

    /// Returns the number of leading bits of the directory position that both keys share, which is the largest depth of
    /// a subtable that can contain both.
    pub fn common_bits(&self, other: &Key<'_>) -> u32 {
        (self.halves()[0] ^ other.halves()[0]).leading_zeros()
    }

    /// Returns the fingerprint, the upper 8 bits of the key's slot words. It is independent of the key's position.
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

/// A key that is hashed already, or the bytes of a key that is not.
pub trait IntoKey<'k> {
    /// Returns the key, hashed by a cluster's secret. A key that is hashed already is returned as it is.
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
