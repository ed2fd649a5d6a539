// Promise RED-1: Any k of k + m chunks restore the others.

use alloc::vec::Vec;
use alloc::{format, vec};

use proptest::prelude::*;

use super::*;
use crate::layout::crc32c;

/// A slow implementation of the definition, which computes one byte at a time and uses no tables.
struct Oracle(Coding);

fn times(mut a: u8, mut b: u8) -> u8 {
    let mut product = 0;
    while b != 0 {
        product ^= if b & 1 == 1 { a } else { 0 };
        let carry = a >> 7;
        a = (a << 1) ^ (carry * 0x1d);
        b >>= 1;
    }
    product
}

fn inverse(a: u8) -> u8 {
    (1..=255).find(|b| times(a, *b) == 1).expect("only zero has none")
}

impl Oracle {
    /// Returns, for each data chunk, its factor in the sum that is chunk `number`.
    fn row(&self, number: usize) -> Vec<u8> {
        let k = self.0.k();
        let of =
            |j: usize| if number < k { u8::from(number == j) } else { inverse((number ^ j) as u8) };
        (0..k).map(of).collect()
    }

    fn sum(row: &[u8], chunks: &[&[u8]], out: &mut [u8]) {
        for (at, byte) in out.iter_mut().enumerate() {
            *byte = row.iter().zip(chunks).fold(0, |sum, (c, chunk)| sum ^ times(*c, chunk[at]));
        }
    }

    /// Returns, by Gaussian elimination, the rows that compute the data from the chunks `numbers`.
    fn inverted(&self, numbers: &[usize]) -> Vec<Vec<u8>> {
        let k = self.0.k();
        let mut rows: Vec<Vec<u8>> = numbers.iter().map(|n| self.row(*n)).collect();
        let mut result: Vec<Vec<u8>> = (0..k).map(|n| self.row(n)).collect();
        for column in 0..k {
            let pivot = (column..k).find(|r| rows[*r][column] != 0).expect("it can be inverted");
            rows.swap(column, pivot);
            result.swap(column, pivot);
            let factor = inverse(rows[column][column]);
            for matrix in [&mut rows, &mut result] {
                matrix[column].iter_mut().for_each(|c| *c = times(*c, factor));
            }
            for other in (0..k).filter(|r| *r != column) {
                let factor = rows[other][column];
                for matrix in [&mut rows, &mut result] {
                    let from = matrix[column].clone();
                    matrix[other].iter_mut().zip(from).for_each(|(c, f)| *c ^= times(factor, f));
                }
            }
        }
        result
    }
}

impl ErasureCode for Oracle {
    fn coding(&self) -> Coding {
        self.0
    }

    fn encode(&self, data: &[&[u8]], parity: &mut [&mut [u8]]) {
        for (number, chunk) in (self.0.k()..).zip(parity) {
            Oracle::sum(&self.row(number), data, chunk);
        }
    }

    fn restore(&self, there: &[(usize, &[u8])], missing: &mut [(usize, &mut [u8])]) -> bool {
        let Some(there) = there.get(..self.0.k()) else { return false };
        let (numbers, chunks): (Vec<usize>, Vec<&[u8]>) = there.iter().copied().unzip();
        let rows = self.inverted(&numbers);
        let data: Vec<Vec<u8>> = rows
            .iter()
            .map(|row| {
                let mut chunk = vec![0; chunks[0].len()];
                Oracle::sum(row, &chunks, &mut chunk);
                chunk
            })
            .collect();
        let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
        for (number, chunk) in missing {
            Oracle::sum(&self.row(*number), &data, chunk);
        }
        true
    }
}

fn all_codings() -> impl Iterator<Item = Coding> {
    (0..=u8::MAX).flat_map(|k| (0..=MAX_PARITY + 1).filter_map(move |m| Coding::new(k, m).ok()))
}

/// Returns `len` bytes for each data chunk, not all of them equal.
fn data(coding: Coding, len: usize, seed: u64) -> Vec<Vec<u8>> {
    let mut state = seed;
    let mut byte = || {
        let product = state.wrapping_mul(6_364_136_223_846_793_005);
        state = product.wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..coding.k()).map(|_| (0..len).map(|_| byte()).collect()).collect()
}

fn stripe(code: &dyn ErasureCode, data: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let len = data[0].len();
    let mut parity = vec![vec![0xaa; len]; code.coding().m()];
    let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    let mut out: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
    code.encode(&data, &mut out);
    data.iter().map(|chunk| chunk.to_vec()).chain(parity).collect()
}

/// Removes chunks of a stripe, lets the code restore them from the others, and checks the restored bytes.
fn restores(code: &dyn ErasureCode, stripe: &[Vec<u8>], is_lost: impl Fn(usize) -> bool) {
    let there = stripe.iter().enumerate().filter(|(n, _)| !is_lost(*n));
    let there: Vec<(usize, &[u8])> = there.map(|(n, chunk)| (n, chunk.as_slice())).collect();
    let lost = (0..stripe.len()).filter(|n| is_lost(*n));
    let mut lost: Vec<(usize, Vec<u8>)> = lost.map(|n| (n, vec![0; stripe[0].len()])).collect();
    let mut missing: Vec<(usize, &mut [u8])> =
        lost.iter_mut().map(|(n, chunk)| (*n, chunk.as_mut_slice())).collect();
    let enough = there.len() >= code.coding().k();
    assert_eq!(code.restore(&there, &mut missing), enough);
    if enough {
        assert!(lost.iter().all(|(n, chunk)| *chunk == stripe[*n]), "{}", code.coding());
    }
}

#[test]
fn limits_are_named() {
    for (k, m) in [(0, 1), (1, 2), (2, 0), (4, 5), (13, 4), (15, 2), (255, 255)] {
        let error = Coding::new(k, m).unwrap_err();
        assert_eq!(error, CodingError { k, m });
    }
    let limits = format!("{}", CodingError { k: 1, m: 9 });
    assert!(limits.contains("k = 1") && limits.contains("m = 9") && limits.contains("1 to 4"));
    assert_eq!(all_codings().count(), 14 + 13 + 12 + 11);
    assert_eq!(format!("{}", Coding::new(4, 2).unwrap()), "EC(4,2)");
}

/// The results of ISA-L 2.30 (`gf_gen_cauchy1_matrix` and `ec_encode_data`) for `data(coding, 64, 1)`: the CRC-32C of
/// the concatenated parity chunks. `tests/isal-vectors` prints them.
const ISA_L: [(u8, u8, u32); 7] = [
    (2, 1, 0xb355_ceed),
    (3, 3, 0xa53c_d1be),
    (4, 1, 0x360c_793e),
    (4, 2, 0x1876_92a4),
    (5, 1, 0xbfec_0705),
    (10, 4, 0x6ccf_34b0),
    (12, 4, 0x8dd0_e477),
];

// Promise RED-2: Parity equals that of ISA-L.
#[test]
fn parity_is_that_of_isa_l() {
    for (k, m, crc) in ISA_L {
        let coding = Coding::new(k, m).unwrap();
        let stripe = stripe(&ReedSolomon::new(coding), &data(coding, 64, 1));
        let parity: Vec<u8> = stripe[coding.k()..].concat();
        assert_eq!(crc32c(&parity), crc, "{coding}");
    }
}

/// Tries, for every code, every loss of up to `m + 1` chunks.
#[test]
fn whatever_may_be_lost_is_restored() {
    for coding in all_codings() {
        let code = ReedSolomon::new(coding);
        let stripe = stripe(&code, &data(coding, 16, 7));
        for lost in 0u32..1 << coding.chunks() {
            if lost.count_ones() as usize <= coding.m() + 1 {
                restores(&code, &stripe, |n| lost >> n & 1 == 1);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_code_is_what_its_definition_says(
        k in 2u8..8,
        m in 1..=MAX_PARITY,
        len in 0usize..300,
        seed: u64,
        lost: u16,
    ) {
        let coding = Coding::new(k, m).unwrap();
        let code = ReedSolomon::new(coding);
        let oracle = Oracle(coding);
        let data = data(coding, len, seed);
        let stripe = stripe(&code, &data);
        prop_assert_eq!(&stripe, &self::stripe(&oracle, &data));
        restores(&code, &stripe, |n| lost >> n & 1 == 1);
        restores(&oracle, &stripe, |n| lost >> n & 1 == 1);
    }
}
