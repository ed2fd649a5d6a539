use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::super::Address;
use super::*;
use crate::code::{MAX_PARITY, ReedSolomon};

fn identity(generation: u16) -> Identity {
    Identity::new(Address::new(1 << 20), generation)
}

fn coding(k: u8, m: u8) -> Coding {
    Coding::new(k, m).unwrap()
}

fn pair<'a>(key: &'a [u8], value: &'a [u8]) -> Pair<'a> {
    Pair { key, value, identity: identity(5), opcode: Opcode::Upsert }
}

/// All chunks, in memory that had other bytes before.
fn encoded(pair: Pair<'_>, coding: Coding) -> Vec<Vec<u8>> {
    let class = coding.class(pair.key.len(), pair.value.len()).unwrap();
    let mut chunks = vec![vec![0xee; class.bytes() as usize]; coding.chunks()];
    let mut all: Vec<&mut [u8]> = chunks.iter_mut().map(Vec::as_mut_slice).collect();
    pair.encode_chunks(&ReedSolomon::new(coding), &mut all);
    chunks
}

fn decoded(bytes: &[u8]) -> Chunk<'_> {
    Chunk::decode_of(bytes, identity(5)).unwrap()
}

fn value_of(stripe: &Stripe<'_>, coding: Coding) -> Option<Vec<u8>> {
    let mut room = vec![0x77; stripe.room()?];
    let len = stripe.value(&ReedSolomon::new(coding), &mut room)?;
    room.truncate(len);
    Some(room)
}

proptest! {
    #[test]
    fn any_k_chunks_hold_the_pair(
        k in 2u8..8,
        m in 1..=MAX_PARITY,
        key in proptest::collection::vec(any::<u8>(), 1..80),
        value in proptest::collection::vec(any::<u8>(), 0..700),
        lost: u16,
    ) {
        let coding = coding(k, m);
        let chunks = encoded(pair(&key, &value), coding);
        let there = (0..coding.chunks()).filter(|n| lost >> n & 1 == 0);
        let mut stripe = Stripe::default();
        for number in there.clone() {
            let chunk = decoded(&chunks[number]);
            prop_assert_eq!((chunk.number(), chunk.coding()), (number, coding));
            prop_assert_eq!((chunk.key(), chunk.value_bytes()), (&key[..], value.len()));
            prop_assert!(stripe.add(chunk) && !stripe.add(chunk));
        }
        let enough = there.count() >= coding.k();
        prop_assert_eq!(value_of(&stripe, coding), enough.then_some(value));
        for number in (0..coding.chunks()).filter(|_| enough) {
            let mut again = vec![0x55; chunks[0].len()];
            stripe.chunk(&ReedSolomon::new(coding), number, &mut again);
            prop_assert_eq!(&again, &chunks[number]);
        }
    }
}

/// Whoever looks for a key needs to know nothing of chunks.
#[test]
fn a_chunk_is_an_object() {
    let chunks = encoded(pair(b"key", &[9; 1000]), coding(4, 2));
    for bytes in &chunks {
        let object = Object::decode_of(bytes, identity(5)).unwrap();
        assert_eq!((object.key(), object.opcode()), (&b"key"[..], Some(Opcode::Upsert)));
        assert_eq!(Object::prefix_has_key(&bytes[..64], identity(5), b"key"), Ok(true));
        let end = bytes.len();
        assert_eq!(bytes[end - 40..], {
            let mut tail = [0; 40];
            tail[39] = 0x80;
            tail
        });
    }
}

#[test]
fn chunks_of_two_values_make_no_value() {
    let [old, new] =
        [[1; 1000], [2; 1000]].map(|value| encoded(pair(b"key", &value), coding(4, 2)));
    let other_key = encoded(pair(b"kex", &[1; 1000]), coding(4, 2));
    let other_code = encoded(pair(b"key", &[1; 1000]), coding(4, 1));
    let other_opcode = Pair { opcode: Opcode::Update, ..pair(b"key", &[1; 1000]) };
    let other_opcode = encoded(other_opcode, coding(4, 2));
    let mut stripe = Stripe::default();
    assert!(stripe.add(decoded(&old[0])));
    for other in [&new, &other_key, &other_code, &other_opcode] {
        assert!(!stripe.add(decoded(&other[1])));
    }
    assert!(matches!(
        Chunk::decode_of(&old[0], identity(6)),
        Err(ObjectError::OtherIdentity(found)) if found == identity(5)
    ));
}

/// Payloads whose checksums are right, though they are not those of the value.
#[test]
fn a_value_has_the_checksum_that_its_chunks_tell() {
    let mut chunks = encoded(pair(b"key", &[1; 1000]), coding(4, 2));
    let other = encoded(pair(b"key", &[2; 1000]), coding(4, 2));
    let payload = HEADER_BYTES as usize + 3 + PART_BYTES;
    chunks[1][payload..payload + 100].copy_from_slice(&other[1][payload..payload + 100]);
    let len = PART_BYTES + coding(4, 2).payload_bytes(1000);
    enclose(&mut chunks[1], b"key", len, identity(5), Opcode::Upsert);
    let mut stripe = Stripe::default();
    assert!(chunks[..4].iter().all(|bytes| stripe.add(decoded(bytes))));
    assert_eq!(value_of(&stripe, coding(4, 2)), None);
}

#[test]
fn no_ordinary_object_is_a_chunk() {
    for len in [0, 15, 16, 17, 100] {
        let mut bytes = vec![0; 256];
        pair(b"key", &vec![0; len]).encode(&mut bytes);
        assert!(matches!(Chunk::decode_of(&bytes, identity(5)), Err(ObjectError::Incomplete)));
    }
    // What stands in a chunk before its payload, one byte after the other.
    let chunk = encoded(pair(b"key", &[1; 1000]), coding(4, 2)).swap_remove(3);
    let part = HEADER_BYTES as usize + 3;
    let len = PART_BYTES + coding(4, 2).payload_bytes(1000);
    for (at, value) in [(0, 0), (3, 1), (NUMBER, 6), (CODING, 0), (CODING, 20), (CODING + 1, 0)] {
        let mut bytes = chunk.clone();
        bytes[part + at] = value;
        enclose(&mut bytes, b"key", len, identity(5), Opcode::Upsert);
        let result = Chunk::decode_of(&bytes, identity(5));
        assert!(matches!(result, Err(ObjectError::Incomplete)), "byte {at} is {value}");
    }
}

#[test]
fn classes_hold_their_chunks() {
    let coding = coding(4, 2);
    assert_eq!(
        (coding.payload_bytes(0), coding.payload_bytes(1), coding.payload_bytes(65)),
        (0, 16, 32)
    );
    for (key, value) in [(1, 0), (16, 1024), (64 << 10, 4 << 20)] {
        let bytes = coding.class(key, value).unwrap().bytes() as usize;
        let needs = HEADER_BYTES as usize + key + PART_BYTES + coding.payload_bytes(value) + 40;
        assert!(needs <= bytes && bytes - needs < needs / 8 + 64);
    }
    assert_eq!(coding.class(1, 64 << 20), None);
}
