// Promise RED-3: k chunks of one write make the pair; other chunks make none.

use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::super::Address;
use super::*;
use crate::erasure::{MAX_PARITY, ReedSolomon};

fn identity(generation: u16) -> Identity {
    Identity::new(Address::new(1 << 20), generation)
}

fn coding(k: u8, m: u8) -> Coding {
    Coding::new(k, m).unwrap()
}

fn pair<'a>(key: &'a [u8], value: &'a [u8]) -> Pair<'a> {
    Pair { key, value, identity: identity(5), opcode: Opcode::Upsert }
}

/// Returns all chunks of a pair, encoded into memory that contained other bytes before.
fn encoded(pair: Pair<'_>, coding: Coding) -> Vec<Vec<u8>> {
    let class = coding.class(pair.key.len(), pair.value.len()).unwrap();
    let mut chunks = vec![vec![0xee; class.bytes() as usize]; coding.chunks()];
    let mut all: Vec<&mut [u8]> = chunks.iter_mut().map(Vec::as_mut_slice).collect();
    pair.encode_chunks(&ReedSolomon::new(coding), &mut all);
    chunks
}

/// Decodes a chunk, which has to be valid and to have this number.
fn decoded(bytes: &[u8], coding: Coding, number: usize) -> Chunk<'_> {
    Chunk::decode_of(bytes, identity(5), coding, number).unwrap()
}

fn stripe(chunks: &[Vec<u8>], coding: Coding, numbers: impl Iterator<Item = usize>) -> Stripe<'_> {
    let mut stripe = Stripe::default();
    numbers.for_each(|n| stripe.add(decoded(&chunks[n], coding, n)));
    stripe
}

fn value_of(stripe: &Stripe<'_>, coding: Coding) -> Option<Vec<u8>> {
    let mut room = vec![0x77; stripe.room()?];
    let whole = stripe.restore(&ReedSolomon::new(coding), &mut room)?;
    Some(whole.value().to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_k_chunks_hold_the_pair(
        k in 2u8..8,
        m in 1..=MAX_PARITY,
        key in proptest::collection::vec(any::<u8>(), 1..80),
        value in proptest::collection::vec(any::<u8>(), 0..700),
        lost: u16,
    ) {
        let coding = coding(k, m);
        let code = ReedSolomon::new(coding);
        let chunks = encoded(pair(&key, &value), coding);
        let there = (0..coding.chunks()).filter(|n| lost >> n & 1 == 0);
        let stripe = stripe(&chunks, coding, there.clone());
        let Some(room) = stripe.room() else {
            prop_assert!(there.count() < coding.k());
            return Ok(());
        };
        prop_assert!(there.count() >= coding.k());
        let mut room = vec![0x77; room];
        let whole = stripe.restore(&code, &mut room).expect("all are good");
        prop_assert_eq!((whole.key(), whole.value()), (&key[..], &value[..]));
        for (number, chunk) in chunks.iter().enumerate() {
            let mut again = vec![0x55; chunk.len()];
            whole.chunk(&code, number, &mut again);
            prop_assert_eq!(&again, chunk);
        }
    }
}

/// A chunk is an object, so a reader that looks for a key needs to know nothing of chunks.
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

/// Returns the value of the pair that the tests below encode.
fn one(value: u8) -> [u8; 1000] {
    [value; 1000]
}

const EC: (u8, u8) = (4, 2);

/// Chunks that differ in anything but their number are of two writes and never combined; `k` chunks that agree are
/// enough.
#[test]
fn chunks_of_two_writes_make_no_value() {
    let ec = coding(EC.0, EC.1);
    let ours = encoded(pair(b"key", &one(1)), ec);
    let others = [
        encoded(pair(b"key", &one(2)), ec),
        encoded(pair(b"kex", &one(1)), ec),
        encoded(pair(b"key", &one(1)[..999]), ec),
        encoded(Pair { opcode: Opcode::Update, ..pair(b"key", &one(1)) }, ec),
        encoded(Pair { identity: identity(6), ..pair(b"key", &one(1)) }, ec),
    ];
    for other in &others {
        let of = |bytes: &[u8]| Object::decode(bytes).unwrap().identity();
        let mut mixed = Stripe::default();
        for (n, chunk) in other[..1].iter().chain(&ours[1..4]).enumerate() {
            mixed.add(Chunk::decode_of(chunk, of(chunk), ec, n).unwrap());
        }
        assert_eq!(mixed.room(), None, "three and one");
        mixed.add(decoded(&ours[4], ec, 4));
        assert_eq!(
            value_of(&mixed, ec).as_deref(),
            Some(&one(1)[..]),
            "four and one, which came first"
        );
    }
}

/// No value is restored from chunks whose own checksums are right if the value's checksum is wrong.
#[test]
fn a_value_has_the_checksum_that_its_chunks_tell() {
    let ec = coding(EC.0, EC.1);
    let payload = HEADER_BYTES as usize + 3 + PART_BYTES;
    let len = PART_BYTES + ec.payload_bytes(1000);
    // Each case changes one byte: of a data chunk, of the zeros behind the value, or of parity from which data is
    // restored.
    for (wrong, at, numbers) in [(1, 0, 0..4), (3, 255, 0..4), (4, 7, 1..5)] {
        let mut chunks = encoded(pair(b"key", &one(1)), ec);
        chunks[wrong][payload + at] ^= 1;
        enclose(&mut chunks[wrong], b"key", len, identity(5), Opcode::Upsert);
        assert_eq!(value_of(&stripe(&chunks, ec, numbers), ec), None, "byte {at} of {wrong}");
    }
}

/// The place where a chunk was read decides which number it must have, not the chunk's bytes.
#[test]
fn a_chunk_belongs_to_its_place() {
    let ec = coding(EC.0, EC.1);
    let chunk = encoded(pair(b"key", &one(1)), ec).swap_remove(3);
    let read = |bytes: &[u8], ec, number| Chunk::decode_of(bytes, identity(5), ec, number).err();
    assert_eq!(read(&chunk, ec, 3), None);
    assert_eq!(read(&chunk, ec, 2), Some(ObjectError::OtherChunk));
    assert_eq!(read(&chunk, coding(4, 1), 3), Some(ObjectError::OtherChunk));
    let other = Chunk::decode_of(&chunk, identity(6), ec, 3).err();
    assert_eq!(other, Some(ObjectError::OtherIdentity(identity(5))));
    // An object that is no chunk is refused.
    for len in [0, 15, 16, 17, 100] {
        let mut bytes = vec![0; 256];
        pair(b"key", &vec![0; len]).encode(&mut bytes);
        assert_eq!(read(&bytes, ec, 0), Some(ObjectError::OtherChunk));
    }
    // A chunk with a wrong byte before its payload is refused. Each case changes one byte.
    let part = HEADER_BYTES as usize + 3;
    let len = PART_BYTES + ec.payload_bytes(1000);
    for (at, value) in [(0, 0), (3, 1), (NUMBER, 6), (CODING, 0), (CODING, 20), (CODING + 1, 0)] {
        let mut bytes = chunk.clone();
        bytes[part + at] = value;
        enclose(&mut bytes, b"key", len, identity(5), Opcode::Upsert);
        assert_eq!(read(&bytes, ec, 3), Some(ObjectError::OtherChunk), "byte {at} is {value}");
    }
    let mut bytes = chunk.clone();
    bytes[12] = 77;
    let crc = crc32c(&bytes[4..part + len]);
    put_u32(&mut bytes, 0, crc);
    assert_eq!(Object::decode(&bytes).unwrap().opcode(), None);
    assert_eq!(
        read(&bytes, ec, 3),
        Some(ObjectError::OtherChunk),
        "an operation that is not known"
    );
    // A chunk that is too short to contain the copies field is refused.
    let mut short = chunk[..HEADER_BYTES as usize + 3 + len + 1].to_vec();
    enclose(&mut short, b"key", len, identity(5), Opcode::Upsert);
    assert_eq!(read(&short, ec, 3), Some(ObjectError::OtherChunk));
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
