//! Promises of every parser of this crate, for arbitrary bytes. Tests and fuzz targets supply the bytes. Each function
//! passes them to one parser, panics if the result breaks a promise, and returns whether the parser accepted them.
//!
//! Parsers never panic, read nothing outside of the bytes, and allocate no memory. An item that a parser accepts can be
//! encoded again, and is then parsed as the same item.

use crate::erasure::Coding;
use crate::layout::{
    BLOCK_HEADER_BYTES, BlockHeader, Chunk, HEADER_BYTES, Identity, KeyInPrefix, OVERHEAD_BYTES,
    Object, Pair, PoolHeader, Slot, Stripe,
};
use alloc::vec;

/// Checks the parsers of whole objects and of the starts of objects.
pub fn object(bytes: &[u8]) -> bool {
    let Some(identity) = Object::header_identity(bytes) else { return false };
    let other = Identity::from_word(!identity.word());
    let start = Object::prefix_key(bytes, identity);
    if let Ok(KeyInPrefix::Whole(key)) = start {
        assert!(HEADER_BYTES as usize + key.len() <= bytes.len());
        assert_eq!(Object::prefix_has_key(bytes, identity, key), Ok(true));
    }
    assert!(Object::prefix_has_key(bytes, other, b"key").is_err());
    let Ok(object) = Object::decode(bytes) else { return false };
    assert_eq!(start, Ok(KeyInPrefix::Whole(object.key())), "the start shows the same key");
    assert_eq!(object.identity(), identity);
    assert!(Object::decode_of(bytes, identity).is_ok());
    assert!(Object::decode_of(bytes, other).is_err());
    let key = object.key();
    let value = object.value();
    assert_eq!(object.value_offset(), HEADER_BYTES as usize + key.len());
    assert!(key.len() + value.len() + OVERHEAD_BYTES as usize <= bytes.len());
    let Some(opcode) = object.opcode() else { return true };
    let mut again = vec![0xee; bytes.len()];
    Pair { key, value, identity, opcode }.encode(&mut again);
    let again = Object::decode(&again).expect("it was written by us");
    assert_eq!((again.key(), again.value()), (key, value));
    assert_eq!((again.identity(), again.opcode()), (identity, Some(opcode)));
    true
}

/// Checks the parser of chunks, for some codes and every chunk number. The bytes serve as all chunks of the pair, as if
/// each node held the same bytes.
pub fn chunk(bytes: &[u8]) -> bool {
    let Some(identity) = Object::header_identity(bytes) else { return false };
    let mut is_one = false;
    for (k, m) in [(2, 1), (4, 2), (5, 1), (12, 4)] {
        let coding = Coding::new(k, m).expect("there is such a code");
        let mut stripe = Stripe::default();
        for number in 0..coding.chunks() {
            let Ok(chunk) = Chunk::decode_of(bytes, identity, coding, number) else { continue };
            let object = Object::decode(bytes).expect("a chunk is an object");
            assert_eq!((chunk.key(), chunk.number()), (object.key(), number));
            assert!(coding.payload_bytes(chunk.value_bytes()) < bytes.len());
            stripe.add(chunk);
            is_one = true;
        }
        assert_eq!(stripe.room(), None, "one chunk is not enough");
    }
    is_one
}

/// Checks the functions of a slot word. Any word is valid; returns whether it leads to an object.
pub fn slot(word: u64) -> bool {
    let slot = Slot(word);
    let address = slot.address();
    let generation = slot.generation();
    assert_eq!(slot.confirmed().tentative().0 | 1, word | 1);
    assert!(slot.tentative().is_tentative() && !slot.confirmed().is_tentative());
    let withdrawn = slot.withdrawn();
    assert!(withdrawn.is_free() && withdrawn.class().is_none());
    let Some(class) = slot.class() else {
        assert!(slot.is_free() && withdrawn == slot.confirmed().unmoved());
        let numbered = slot.numbered_by();
        assert!(numbered.is_none() || slot.is_number() && slot.object().is_none());
        return false;
    };
    assert!(!slot.is_free() && slot.numbered_by().is_none());
    assert_eq!((withdrawn.address(), withdrawn.generation()), (address, generation));
    assert_eq!(withdrawn.identity(), slot.identity());
    assert_eq!(slot.object().is_some(), withdrawn.object().is_some());
    let again = Slot::new(slot.fingerprint(), class, address, generation);
    assert_eq!(again, slot.confirmed().unmoved());
    assert_eq!(slot.object_identity().generation_at(address), Some(generation));
    true
}

/// Checks the parser of block headers.
pub fn block_header(bytes: &[u8; BLOCK_HEADER_BYTES as usize]) -> bool {
    let Some(header) = BlockHeader::decode(bytes) else { return false };
    assert_eq!(BlockHeader::decode(&header.encode()), Some(header));
    true
}

/// Checks the parser of the words at the start of a pool.
pub fn pool_header(bytes: &[u8; PoolHeader::BYTES]) -> bool {
    let Some(header) = PoolHeader::decode(bytes) else { return false };
    let cluster = u64::from_le_bytes(*bytes[8..].first_chunk().expect("8 bytes"));
    assert_eq!(header.cluster.map_or(0, |cluster| cluster.word()), cluster);
    assert_eq!(header.view.to_le_bytes(), bytes[16..24]);
    true
}
