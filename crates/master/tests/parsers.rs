//! Tests of every parser of bytes from outside: messages, frames, layouts of memory, stores.
//!
//! The properties that each parser must have are in its own crate (`parsers`), where the fuzz targets use them as well.
//! Here are the bytes: random ones, valid messages, and messages with some bits and bytes changed; and the limits on
//! the memory that parsers take.

// Promise SEC-1: No bytes make a parser panic or take much memory.

use allocation_counter::measure;
use fusee_control::master::{MasterReply, MasterRequest};
use fusee_control::node::{NodeReply, NodeRequest};
use fusee_control::rpc::{Stamped, parsers as control};
use fusee_core::data::Region;
use fusee_core::erasure::{Coding, ReedSolomon};
use fusee_core::layout::{
    Address, BLOCK_HEADER_BYTES, BlockHeader, GenerationBase, Identity, LAYOUT_WORD,
};
use fusee_core::layout::{Object, Opcode, Pair, PoolHeader, SizeClass, Slot};
use fusee_core::parsers as core;
use fusee_core::race::HashKey;
use fusee_core::verbs::{ClientId, ClusterId, MnId};
use fusee_core::view::update::ViewUpdate;
use fusee_core::view::{Geometry, Member, PoolPlace, Subtable, View};
use fusee_fabric::parsers as fabric;
use fusee_master::record::MasterRecord;
use fusee_master::store::entry_format;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A way to damage bytes.
#[derive(Clone, Debug)]
enum ByteDamage {
    Flip(Index, u8),
    Set(Index, u8),
    Cut(Index),
    Insert(Index, u8),
    Twice(Index),
}

fn damage() -> impl Strategy<Value = ByteDamage> {
    prop_oneof![
        (any::<Index>(), 0u8..8).prop_map(|(at, bit)| ByteDamage::Flip(at, bit)),
        (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| ByteDamage::Set(at, byte)),
        (any::<Index>(), prop_oneof![Just(0), Just(0x7f), Just(0xff)])
            .prop_map(|(at, byte)| ByteDamage::Set(at, byte)),
        any::<Index>().prop_map(ByteDamage::Cut),
        (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| ByteDamage::Insert(at, byte)),
        any::<Index>().prop_map(ByteDamage::Twice),
    ]
}

fn damaged(mut bytes: Vec<u8>, damage: &[ByteDamage]) -> Vec<u8> {
    for change in damage {
        let length = bytes.len();
        if length == 0 {
            break;
        }
        match change {
            ByteDamage::Flip(at, bit) => bytes[at.index(length)] ^= 1 << bit,
            ByteDamage::Set(at, byte) => bytes[at.index(length)] = *byte,
            ByteDamage::Cut(at) => bytes.truncate(at.index(length)),
            ByteDamage::Insert(at, byte) => bytes.insert(at.index(length), *byte),
            ByteDamage::Twice(at) => bytes.extend_from_within(at.index(length)..),
        }
    }
    bytes
}

/// Returns a strategy for numbers, many of which are near some limit.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..9, any::<u64>(), (0u32..64).prop_map(|bits| u64::MAX >> bits)]
}

/// Returns random bytes that often form messages, because most numbers in messages are small.
fn mostly_small(random: &mut StdRng, length: usize) -> Vec<u8> {
    let byte = |random: &mut StdRng| match random.random_range(0..10) {
        0..5 => random.random_range(0..3),
        5..8 => random.random_range(0..16),
        8 => random.random_range(b'0'..b'z'),
        _ => random.random(),
    };
    (0..length).map(|_| byte(random)).collect()
}

/// Returns messages of every kind. Checks that the messages have no more than `kinds` kinds: bytes with another kind
/// form no message.
fn messages<T: Serialize + DeserializeOwned>(kinds: usize, behind: &[u8]) -> Vec<Vec<u8>> {
    let mut random = StdRng::seed_from_u64(7);
    let mut found = Vec::new();
    // Only kinds of one byte are tried: numbers from 0x80 on take several bytes.
    for kind in 0..0x80u8 {
        let before = found.len();
        for _ in 0..if usize::from(kind) < kinds { 100_000 } else { 20 } {
            if found.len() == before + 8 {
                break;
            }
            let mut tail = mostly_small(&mut random, 300);
            // Some kinds need so many right bytes that random bytes do not form them, so the last bytes are zeros.
            let drawn = random.random_range(0..=tail.len());
            tail[drawn..].fill(0);
            let bytes = [behind, &[kind], &tail].concat();
            // A few messages of each kind are enough.
            if let Some(message) = control::drawn::<T>(&bytes) {
                found.push(control::written(&message));
            }
        }
        let is_kind = found.len() > before;
        assert_eq!(is_kind, usize::from(kind) < kinds, "{} {kind}", std::any::type_name::<T>());
    }
    found
}

/// The bytes of a request before its kind: the frame's kind, the id and the deadline; then the cluster, here none.
const CALL: [u8; 3] = [0, 5, 100];
const NOBODYS: u8 = 0;
/// The bytes of an answer before the kind of its reply: the id, and a byte that says that it has a reply.
const ANSWER: [u8; 2] = [5, 0];

const MASTER_REQUESTS: usize = 20;
const MASTER_REPLIES: usize = 23;
const NODE_REQUESTS: usize = 17;
const NODE_REPLIES: usize = 12;

/// Returns the limit on the memory that a parser takes: 256 times the length of the message, and some KiB for an error.
fn allowed(bytes: &[u8]) -> u64 {
    16 * 1024 + 256 * bytes.len() as u64
}

fn bounded<T>(bytes: &[u8], parse: impl FnOnce() -> T) -> T {
    let mut parsed = None;
    let taken = measure(|| parsed = Some(parse()));
    assert!(taken.bytes_total <= allowed(bytes), "{taken:?} for {} bytes: {bytes:?}", bytes.len());
    parsed.expect("it was run")
}

/// Runs all parsers of control messages on these bytes.
fn all_of_control(bytes: &[u8]) -> bool {
    let frames = [
        bounded(bytes, || control::call_of_master(bytes)),
        bounded(bytes, || control::call_of_node(bytes)),
        bounded(bytes, || control::answer_of_master(bytes)),
        bounded(bytes, || control::answer_of_node(bytes)),
        control::first_message(bytes),
    ];
    let messages = [
        control::message::<Stamped<MasterRequest>>(bytes).is_some(),
        control::message::<Stamped<NodeRequest>>(bytes).is_some(),
        control::message::<MasterReply>(bytes).is_some(),
        control::message::<NodeReply>(bytes).is_some(),
        control::message::<MasterRecord>(bytes).is_some(),
        bounded(bytes, || control::view_piece(bytes)),
    ];
    frames.into_iter().chain(messages).any(|taken| taken)
}

/// Parses messages of each kind: whole, with every one of their bytes changed, and cut off after every byte.
#[test]
fn messages_of_every_kind_come_back_and_damaged_ones_do_no_harm() {
    let requests = messages::<Stamped<MasterRequest>>(MASTER_REQUESTS, &[NOBODYS]);
    let replies = messages::<MasterReply>(MASTER_REPLIES, &[]);
    let node_requests = messages::<Stamped<NodeRequest>>(NODE_REQUESTS, &[NOBODYS]);
    let node_replies = messages::<NodeReply>(NODE_REPLIES, &[]);
    let mut whole = 0;
    let mut still = 0;
    let mut judge = |head: &[u8], message: &[u8], is_taken: fn(&[u8]) -> bool| {
        let frame = [head, message].concat();
        assert!(is_taken(&frame), "{frame:?}");
        assert!(all_of_control(message), "{message:?}");
        whole += 1;
        for at in 0..frame.len().min(64) {
            for byte in [0, 1, 0x7f, 0x80, 0xff, frame[at] ^ 4] {
                let mut changed = frame.clone();
                changed[at] = byte;
                still += u32::from(bounded(&changed, || is_taken(&changed)));
                all_of_control(&changed[head.len()..]);
            }
            assert!(!is_taken(&frame[..at]), "{frame:?} cut off at {at}");
        }
    };
    requests.iter().for_each(|m| judge(&CALL, m, control::call_of_master));
    node_requests.iter().for_each(|m| judge(&CALL, m, control::call_of_node));
    replies.iter().for_each(|m| judge(&ANSWER, m, control::answer_of_master));
    node_replies.iter().for_each(|m| judge(&ANSWER, m, control::answer_of_node));
    println!("{whole} messages; damaged, {still} were still messages");

    let frames = requests.iter().map(|message| [&CALL[..], message].concat());
    let framed = |frame: Vec<u8>| [(frame.len() as u32).to_be_bytes().to_vec(), frame].concat();
    let stream: Vec<u8> = frames.flat_map(framed).collect();
    for piece_bytes in [1, 2, 3, 5, 64, 1000, stream.len()] {
        assert_eq!(control::stream_to_master(&stream, piece_bytes), requests.len());
    }
    for cut in (0..stream.len()).step_by(17) {
        assert!(control::stream_to_master(&stream[..cut], 50) < requests.len());
    }
}

/// A list whose length is given as large takes no memory before its items have arrived.
#[test]
fn lengths_that_lie_take_no_memory() {
    let long = [0xff, 0xff, 0xff, 0xff, 0x7f];
    for kind in 0..32 {
        for zeros in 0..12 {
            for ones in 0..4 {
                let behind = [&vec![1; ones][..], &vec![0; zeros], &long, &[1; 40]].concat();
                let head = [vec![0; zeros / 4], vec![kind]].concat();
                let stream = [&head, &long[..], &[1; 40]].concat();
                let taken = measure(|| {
                    control::stream_to_master(&stream, ones + 1);
                });
                // A connection takes at most some KiB, whatever arrives.
                assert!(taken.bytes_max <= (64 << 10), "{taken:?} for {stream:?}");
                for head in [&CALL[..], &ANSWER, &[]] {
                    all_of_control(&[head, &[kind], &behind].concat());
                    all_of_control(&[head, &[NOBODYS, kind], &behind].concat());
                }
            }
        }
    }
}

fn view() -> View {
    let member = |node: u16| Member {
        node: MnId(node),
        identity: node.into(),
        control: format!("host:{node}"),
        tcp: None,
        shm: None,
        verbs: None,
        pool_bytes: 1 << 34,
    };
    let places =
        |at: u64| vec![0, 1].into_iter().map(move |n| PoolPlace { node: MnId(n), offset: at });
    let subtable = |at: u64| Subtable::new(1, places((1 << 30) + (at << 24)).collect());
    let region = |at: u64| Region::replicated(places(at << 31).collect(), 1);
    let view = View {
        number: 3,
        cluster: ClusterId::from_word(9).unwrap(),
        hash_key: HashKey::new([7; 16]),
        geometry: Geometry::default(),
        members: vec![member(0), member(1)],
        regions: vec![region(1), region(2)],
        directory: vec![0, 1],
        subtables: vec![subtable(0), subtable(1)],
        change: None,
    };
    view.check().unwrap();
    view
}

/// Returns a view, and the next views during a split.
fn views() -> Vec<View> {
    let sibling = vec![PoolPlace { node: MnId(0), offset: (1 << 30) + (8 << 24) }];
    let mut views = vec![view(), view().splitting(&[(1, sibling)])];
    while views.last().unwrap().change.is_some() {
        views.push(views.last().unwrap().advanced());
    }
    views
}

/// Returns updates for a client that has the first view: whole views, and differences.
fn updates() -> Vec<Vec<u8>> {
    let views = views();
    let told = |view| [ViewUpdate::to(view, Some(&views[0])), ViewUpdate::from(view.clone())];
    views[1..].iter().flat_map(told).map(|update| control::written(&update)).collect()
}

/// One changed byte makes an update with a directory of 2^24 entries, which no message can hold.
#[test]
fn a_view_that_is_too_long_for_a_message_does_no_harm() {
    let updates = updates();
    let view = view();
    for at in 0..updates[0].len() {
        let mut bytes = updates[0].clone();
        bytes[at] = 24;
        control::view_update(&view, &bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1000) })]

    #[test]
    fn any_bytes_are_a_message_or_none(bytes in vec(any::<u8>(), 0..200), damage in vec(damage(), 0..4)) {
        all_of_control(&bytes);
        fabric::all(&bytes);
        core::object(&bytes);
        core::chunk(&bytes);
        let _ = entry_format::read_format(&bytes);
        let _ = entry_format::decode("cluster", &bytes);
        let hello = damaged(b"FUSEE\x0d\x01\0".to_vec(), &damage);
        let _ = control::first_message(&hello);
        control::view_update(&view(), &bytes);
    }

    #[test]
    fn news_of_the_view_come_back_or_do_no_harm(nth: Index, damage in vec(damage(), 0..4)) {
        let updates = updates();
        let view = view();
        let whole = nth.get(&updates);
        prop_assert!(control::view_update(&view, whole));
        control::view_update(&view, &damaged(whole.clone(), &damage));
    }

    #[test]
    fn frames_and_hellos_come_back_or_do_no_harm(
        numbers in [number(), number(), number(), number()],
        data in vec(any::<u8>(), 0..100),
        damage in vec(damage(), 1..4),
    ) {
        for (kind, whole) in fabric::samples(numbers, &data).into_iter().enumerate() {
            prop_assert!(fabric::all(&whole)[kind], "{kind}: {whole:?}");
            // Requests and replies are checked without copying them; only encoding them anew takes memory.
            let damaged = damaged(whole.clone(), &damage);
            bounded(&damaged, || fabric::all(&damaged));
            for cut in 0..whole.len() {
                prop_assert!(!fabric::all(&whole[..cut])[kind], "{kind} cut off at {cut}");
            }
        }
    }

    #[test]
    fn objects_come_back_and_a_flipped_bit_is_noticed(
        key in vec(any::<u8>(), 0..80),
        value in vec(any::<u8>(), 0..200),
        generation in 0..Slot::GENERATIONS,
        opcode in prop_oneof![Just(Opcode::Insert), Just(Opcode::Update), Just(Opcode::Upsert)],
        at: Index,
        damage in vec(damage(), 1..4),
    ) {
        let class = Object::class(key.len(), value.len()).unwrap();
        let mut bytes = vec![0xee; class.bytes() as usize];
        let identity = Identity::new(Address::new(1 << 20), generation);
        Pair { key: &key, value: &value, identity, opcode }.encode(&mut bytes);
        prop_assert!(core::object(&bytes));
        let object = Object::decode(&bytes).unwrap();
        prop_assert_eq!((object.key(), object.value()), (&key[..], &value[..]));
        prop_assert_eq!((object.identity(), object.opcode()), (identity, Some(opcode)));
        let checked = object.value_offset() + value.len();
        let bit = at.index(checked * 8);
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(!core::object(&flipped), "bit {}", bit);
        core::object(&damaged(bytes, &damage));
    }

    #[test]
    fn chunks_come_back_or_do_no_harm(
        code in prop_oneof![Just((2, 1)), Just((4, 2)), Just((5, 1)), Just((12, 4))],
        key in vec(any::<u8>(), 0..80),
        value in vec(any::<u8>(), 0..200),
        nth: Index,
        damage in vec(damage(), 1..4),
    ) {
        let coding = Coding::new(code.0, code.1).unwrap();
        let class = coding.class(key.len(), value.len()).unwrap();
        let mut chunks = vec![vec![0xee; class.bytes() as usize]; coding.chunks()];
        let mut all: Vec<&mut [u8]> = chunks.iter_mut().map(Vec::as_mut_slice).collect();
        let identity = Identity::new(Address::new(1 << 20), 3);
        let pair = Pair { key: &key, value: &value, identity, opcode: Opcode::Upsert };
        pair.encode_chunks(&ReedSolomon::new(coding), &mut all);
        let bytes = nth.get(&chunks).clone();
        prop_assert!(core::chunk(&bytes) && core::object(&bytes));
        core::chunk(&damaged(bytes, &damage));
    }

    #[test]
    fn words_and_headers_come_back_and_a_flipped_bit_is_noticed(
        word in number(),
        random: u64,
        class in 1u8..=127,
        bytes in vec(any::<u8>(), BLOCK_HEADER_BYTES as usize),
        bit in 0usize..512,
        sealed: bool,
    ) {
        core::slot(word);
        core::slot(random);
        let any_header: [u8; 64] = bytes.clone().try_into().unwrap();
        prop_assert!(!core::block_header(&any_header), "its checksum would be right");
        let class = SizeClass::from_code(class).unwrap();
        let owner = ClientId(random as u32);
        let first = word as u32;
        let generation = (random >> 32) as u16 % Slot::GENERATIONS;
        let base = GenerationBase { generation, is_wrapped: !sealed, not_before: word };
        let fresh = (word >> 32) as u32;
        let header = BlockHeader { class, owner, first, fresh, sealed, base };
        let mut bytes = header.encode();
        prop_assert_eq!(BlockHeader::decode(&bytes), Some(header));
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(!core::block_header(&bytes), "bit {}", bit);

        let pool: Vec<u8> = [LAYOUT_WORD, random, word].iter().flat_map(|w| w.to_le_bytes()).collect();
        let mut pool: [u8; PoolHeader::BYTES] = pool.try_into().unwrap();
        prop_assert!(core::pool_header(&pool));
        pool[bit / 8 % 8] ^= 1 << (bit % 8);
        prop_assert!(!core::pool_header(&pool));
        core::pool_header(any_header.first_chunk().unwrap());
    }
}
