//! Erasure codes: `k` data chunks and `m` parity chunks, all of one length. Any `k` of the `k + m` chunks restore the
//! others.
//!
//! The code is Reed-Solomon with a Cauchy matrix: parity chunk `i` is the sum of `1 / ((k + i) xor j)` times chunk `j`
//! over all data chunks `j`, byte by byte, in the field GF(2^8) of the polynomial 0x11d. Every square submatrix of such
//! a matrix can be inverted, so every loss of up to `m` chunks can be repaired. Chunks lie in the memory of a cluster,
//! so the code is part of its layout: another implementation of [`ErasureCode`] can be faster, but has to compute the
//! same bytes. ISA-L's Cauchy code computes them too.

use alloc::vec::Vec;
use core::fmt;

use arrayvec::ArrayVec;
use rusty_erasure::{Coder, Matrix};
use serde::{Deserialize, Serialize};

/// The largest number of chunks of a stripe, data and parity together.
pub const MAX_CHUNKS: usize = 16;
/// The largest number of parity chunks of a stripe.
pub const MAX_PARITY: u8 = 4;

/// The code EC(k, m): the numbers of data and parity chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "(u8, u8)", into = "(u8, u8)")]
pub struct Coding {
    k: u8,
    m: u8,
}

/// The error for numbers k and m for which there is no code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no erasure code has k = {k} data chunks and m = {m} parity chunks: k is at least 2, m is 1 to \
     {MAX_PARITY}, and both together are at most {MAX_CHUNKS}"
)]
pub struct CodingError {
    /// The number of data chunks.
    pub k: u8,
    /// The number of parity chunks.
    pub m: u8,
}

impl Coding {
    /// Returns EC(k, m), if there is such a code.
    pub fn new(k: u8, m: u8) -> Result<Coding, CodingError> {
        let fits = usize::from(k) + usize::from(m) <= MAX_CHUNKS;
        if k >= 2 && (1..=MAX_PARITY).contains(&m) && fits {
            Ok(Coding { k, m })
        } else {
            Err(CodingError { k, m })
        }
    }

    /// The number of data chunks.
    pub const fn k(self) -> usize {
        self.k as usize
    }

    /// The number of parity chunks, which is the number of chunks of a stripe that can be lost.
    pub const fn m(self) -> usize {
        self.m as usize
    }

    /// The number of all chunks. The first `k` are data.
    pub const fn chunks(self) -> usize {
        self.k() + self.m()
    }
}

impl TryFrom<(u8, u8)> for Coding {
    type Error = CodingError;

    fn try_from(chunks: (u8, u8)) -> Result<Coding, CodingError> {
        let (k, m) = chunks;
        Coding::new(k, m)
    }
}

impl From<Coding> for (u8, u8) {
    fn from(coding: Coding) -> (u8, u8) {
        (coding.k, coding.m)
    }
}

impl fmt::Display for Coding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EC({},{})", self.k, self.m)
    }
}

/// Computes parity chunks, and restores lost chunks from the remaining ones.
pub trait ErasureCode {
    /// Returns the numbers of data and parity chunks.
    fn coding(&self) -> Coding;

    /// Fills the parity chunks.
    ///
    /// # Panics
    /// If the numbers of chunks are not `k` and `m`, or the lengths differ.
    fn encode(&self, data: &[&[u8]], parity: &mut [&mut [u8]]);

    /// Fills the `missing` chunks, data or parity, from the chunks `there`; each chunk comes with its number. Returns
    /// false if fewer than `k` chunks are there.
    ///
    /// # Panics
    /// If a chunk has a number that the code does not have, a chunk is given twice, or the lengths differ. Never panics
    /// if no chunk is missing.
    fn restore(&self, there: &[(usize, &[u8])], missing: &mut [(usize, &mut [u8])]) -> bool;
}

/// The Reed-Solomon code, computed with the processor's vector instructions where possible.
#[derive(Clone, Debug)]
pub struct ReedSolomon {
    coding: Coding,
    coder: Coder,
}

impl ReedSolomon {
    /// Returns the code with these numbers of data and parity chunks.
    pub fn new(coding: Coding) -> ReedSolomon {
        let matrix = Matrix::cauchy(coding.k(), coding.m()).expect("the field has more elements");
        let coder = rusty_erasure::coder(matrix).expect("there are parity chunks");
        ReedSolomon { coding, coder }
    }
}

impl ErasureCode for ReedSolomon {
    fn coding(&self) -> Coding {
        self.coding
    }

    fn encode(&self, data: &[&[u8]], parity: &mut [&mut [u8]]) {
        self.coder.encode(data, parity).expect("as many chunks as the code has, of one length");
    }

    fn restore(&self, there: &[(usize, &[u8])], missing: &mut [(usize, &mut [u8])]) -> bool {
        let mut chunks = ArrayVec::<Option<&[u8]>, MAX_CHUNKS>::new();
        chunks.extend((0..self.coding.chunks()).map(|_| None));
        for (number, chunk) in there {
            let before = chunks[*number].replace(chunk);
            assert!(before.is_none(), "chunk {number} is there twice");
        }
        if there.len() < self.coding.k() || missing.is_empty() {
            return there.len() >= self.coding.k();
        }
        let numbers: ArrayVec<usize, MAX_CHUNKS> = missing.iter().map(|(n, _)| *n).collect();
        let mut chunks_out: Vec<&mut [u8]> = missing.iter_mut().map(|(_, c)| &mut **c).collect();
        let done = self.coder.recover(&chunks, &numbers, &mut chunks_out);
        done.expect("enough chunks of one length, with numbers that the code has");
        true
    }
}

#[cfg(test)]
mod tests;
