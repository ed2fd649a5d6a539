//! Benchmarks of the parts of an operation, each part alone. `cargo bench -p fusee-bench` measures them; `cargo test`
//! runs each part once, so that none stops working unnoticed.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use fusee_client::View;
use fusee_client::logic::IndexCache;
use fusee_core::conflict_rules::evaluate;
use fusee_core::erasure::{Coding, ErasureCode, ReedSolomon};
use fusee_core::layout::{
    Address, Chunk, Identity, Object, Opcode, Pair, SizeClass, Slot, Stripe, WriterIdentity,
};
use fusee_core::race::{Buckets, HashKey, Key};
use fusee_core::store::{Hint, HintTrust};
use fusee_core::verbs::{ClusterId, MnId};
use fusee_core::view::{Geometry, PoolPlace, SlotRef, Subtable};

const HASH_KEY: HashKey = HashKey::new([7; 16]);
/// Number of keys in the index cache.
const KEYS: u32 = 100_000;
const VALUE_BYTES: [usize; 3] = [48, 1008, 65_536];

fn key(number: u32) -> [u8; 16] {
    let mut key = *b"key-000000000000";
    key[8..].copy_from_slice(&u64::from(number).to_le_bytes());
    key
}

/// Returns an endless sequence of pseudo-random numbers below a bound.
fn scattered(below: u32) -> impl Iterator<Item = u32> {
    let mut state = 0u32;
    std::iter::repeat_with(move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ((u64::from(state) * u64::from(below)) >> 32) as u32
    })
}

fn slots(c: &mut Criterion) {
    let class = SizeClass::fitting(1024).expect("a small one");
    let word = |n: u64| Slot::new(7, class, Address::new(n * 64), 3);
    let own = word(1).identity();
    let other = word(2).identity();
    let mut group = c.benchmark_group("evaluate");
    let rounds: [(&str, &[WriterIdentity]); 3] = [
        ("won by rule 1", &[own, own]),
        ("won by rule 2", &[own, other, own]),
        ("no majority", &[own, other]),
    ];
    for (name, seen) in rounds {
        group.bench_function(name, |b| {
            b.iter(|| evaluate(black_box(own), black_box(seen).iter().copied()));
        });
    }
}

fn hashes(c: &mut Criterion) {
    let subtables =
        |n: u32| Subtable::new(4, vec![PoolPlace { node: MnId(0), offset: u64::from(n) << 20 }]);
    let view = View {
        number: 1,
        cluster: ClusterId::from_word(1).unwrap(),
        hash_key: HASH_KEY,
        geometry: Geometry::default(),
        members: Vec::new(),
        regions: Vec::new(),
        directory: (0..16).collect(),
        subtables: (0..16).map(subtables).collect(),
        change: None,
    };
    let mut group = c.benchmark_group("hash");
    for len in [16, 64, 250] {
        let bytes = vec![7; len];
        group.bench_with_input(BenchmarkId::new("key", len), &bytes, |b, bytes| {
            b.iter(|| Key::new(black_box(bytes), &HASH_KEY).hash());
        });
    }
    let bytes = key(1);
    group.bench_function("buckets of a hashed key", |b| {
        let key = Key::new(&bytes, &HASH_KEY);
        b.iter(|| Buckets::of(black_box(key), &view));
    });
}

fn cache(c: &mut Criterion) {
    let hint = |n: u32| Hint {
        slot: SlotRef { subtable: 0, slot: n },
        word: Slot(n.into()),
        seen: HintTrust::Unverified,
    };
    let mut cache = IndexCache::new(KEYS as usize, 0.5);
    for n in 0..KEYS {
        cache.found(&Key::new(&key(n), &HASH_KEY), None, Some(hint(n)));
    }
    let mut group = c.benchmark_group("index cache");
    group.bench_function("hint, one key", |b| {
        let key = key(1);
        b.iter(|| cache.hint(&Key::new(black_box(&key), &HASH_KEY), || false));
    });
    group.bench_function(BenchmarkId::new("hint, keys", KEYS), |b| {
        let mut numbers = scattered(KEYS);
        b.iter(|| {
            cache.hint(&Key::new(&key(numbers.next().expect("endless")), &HASH_KEY), || false)
        });
    });
    group.bench_function("take note of another key, when it is full", |b| {
        let mut next = KEYS;
        b.iter(|| {
            next = next.wrapping_add(1);
            cache.found(&Key::new(&key(next), &HASH_KEY), None, Some(hint(next)));
        });
    });
}

fn objects(c: &mut Criterion) {
    let mut group = c.benchmark_group("object");
    for len in VALUE_BYTES {
        let key = key(1);
        let value = vec![7; len];
        let class = Object::class(key.len(), len).expect("it fits");
        let mut bytes = vec![0; class.bytes() as usize];
        let identity = Identity::new(Address::new(1 << 20), 3);
        let pair = Pair { key: &key, value: &value, identity, opcode: Opcode::Update };
        group.throughput(Throughput::Bytes(len as u64));
        group.bench_function(BenchmarkId::new("encode", len), |b| {
            b.iter(|| black_box(&pair).encode(black_box(&mut bytes)));
        });
        pair.encode(&mut bytes);
        group.bench_function(BenchmarkId::new("decode", len), |b| {
            b.iter(|| Object::decode_of(black_box(&bytes), identity).map(|o| o.value().len()));
        });
    }
}

fn chunks(c: &mut Criterion) {
    let coding = Coding::new(4, 2).expect("there is such a code");
    let code = ReedSolomon::new(coding);
    let identity = Identity::new(Address::new(1 << 20), 3);
    let mut group = c.benchmark_group("chunks of EC(4,2)");
    for len in [1024, 65_536, 1 << 20] {
        let payload = |n: u8| vec![n; coding.payload_bytes(len)];
        let data = [1, 2, 3, 4].map(payload);
        let mut parity = [0, 0].map(payload);
        let data = data.each_ref().map(Vec::as_slice);
        group.throughput(Throughput::Bytes(len as u64));
        group.bench_function(BenchmarkId::new("parity", len), |b| {
            let [one, other] = &mut parity;
            b.iter(|| code.encode(black_box(&data), &mut [one, other]));
        });
        let key = key(1);
        let value = vec![7; len];
        let class = coding.class(key.len(), len).expect("it fits");
        let mut bytes = vec![vec![0; class.bytes() as usize]; coding.chunks()];
        let pair = Pair { key: &key, value: &value, identity, opcode: Opcode::Update };
        group.bench_function(BenchmarkId::new("encode", len), |b| {
            let mut all: Vec<&mut [u8]> = bytes.iter_mut().map(Vec::as_mut_slice).collect();
            b.iter(|| black_box(&pair).encode_chunks(&code, &mut all));
        });
        let mut room = vec![0; coding.k() * coding.payload_bytes(len)];
        for (name, numbers) in [("decode", 0..4), ("decode, two lost", 2..6)] {
            group.bench_function(BenchmarkId::new(name, len), |b| {
                b.iter(|| {
                    let mut stripe = Stripe::default();
                    for number in numbers.clone() {
                        let chunk = Chunk::decode_of(&bytes[number], identity, coding, number);
                        stripe.add(chunk.expect("it is whole"));
                    }
                    stripe.restore(&code, &mut room).map(|whole| whole.value().len())
                });
            });
        }
    }
}

criterion_group!(parts, slots, hashes, cache, objects, chunks);
criterion_main!(parts);
