//! Many sizes at the same time: keys from one byte to the longest, values from none to the largest, and keys whose
//! values change from one size class to another.

// Promise API-1: Keys from 1 byte to 64 KiB, values up to 4 MiB.

mod common;

use std::collections::HashMap;
use std::thread;

use common::options;
use fusee_client::{BlockingClient, Client, FabricKind, Geometry, ReadError, WriteError};

const MAX_KEY: usize = 64 << 10;
const MAX_VALUE: usize = 4 << 20;
/// Sizes at the bounds of size units and size classes, and next to these bounds.
const KEY_SIZES: [usize; 12] = [1, 2, 7, 8, 23, 24, 63, 64, 255, 4096, MAX_KEY - 1, MAX_KEY];
const VALUE_SIZES: [usize; 19] = [
    0,
    1,
    15,
    16,
    24,
    63,
    64,
    65,
    100,
    984,
    985,
    1024,
    4096,
    10_000,
    65_536,
    300_000,
    1 << 20,
    MAX_VALUE - 1,
    MAX_VALUE,
];
const THREADS: usize = 3;
const KEYS: usize = 20;
const OPERATIONS: usize = 160;

/// Makes a cluster with the default limits.
fn client(fabric: FabricKind) -> BlockingClient {
    let defaults = Geometry::default();
    let geometry = Geometry {
        region_bytes: 128 << 20,
        block_bytes: 16 << 20,
        max_key_bytes: MAX_KEY as u32,
        max_value_bytes: MAX_VALUE as u32,
        ..defaults
    };
    assert_eq!(
        (geometry.max_key_bytes, geometry.max_value_bytes),
        (defaults.max_key_bytes, defaults.max_value_bytes),
        "these are the default limits"
    );
    // Each size class that a session writes takes a block, so pools are large; memory that is never written costs
    // nothing.
    let pool_bytes = 4 << 30;
    Client::embedded(options(fabric).with_geometry(geometry).with_pool_bytes(pool_bytes))
        .unwrap()
        .blocking()
}

/// Pseudo-random numbers (SplitMix64), the same in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) % n as u64) as usize
    }

    fn pick(&mut self, sizes: &[usize]) -> usize {
        sizes[self.below(sizes.len())]
    }

    /// Returns `len` bytes that most probably differ from those of all other calls, unless there are too few of them.
    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let start = self.below(1 << 30);
        (start..start + len).map(|i| ((i * 2_654_435_761) >> 13) as u8).collect()
    }

    /// Returns the key of this number and thread. A thread's keys have the lengths of [`KEY_SIZES`] in turn; all keys
    /// differ in their first byte.
    fn key(&mut self, thread: usize, number: usize) -> Vec<u8> {
        let len = KEY_SIZES[number % KEY_SIZES.len()];
        let mut key = self.bytes(len);
        key[0] = (thread * KEYS + number) as u8;
        key
    }
}

/// Runs operations on the keys of one thread. Returns the keys with their final values.
fn work(client: &BlockingClient, thread: usize) -> HashMap<Vec<u8>, Option<Vec<u8>>> {
    let mut dice = Dice(thread as u64 + 1);
    let keys: Vec<Vec<u8>> = (0..KEYS).map(|number| dice.key(thread, number)).collect();
    let mut model: HashMap<Vec<u8>, Option<Vec<u8>>> =
        keys.iter().map(|key| (key.clone(), None)).collect();
    for _ in 0..OPERATIONS {
        let key = &keys[dice.below(KEYS)];
        let held = model.get_mut(key).unwrap();
        let len = dice.pick(&VALUE_SIZES);
        let value = dice.bytes(len);
        match dice.below(8) {
            0 => {
                let expected = held.take().map(|_| ()).ok_or(WriteError::NotFound);
                assert_eq!(client.delete(key), expected);
            }
            1 | 2 => assert_eq!(client.get(key).as_ref(), Ok(&*held)),
            3 | 4 if held.is_none() => {
                assert_eq!(client.update(key, &value), Err(WriteError::NotFound));
                assert_eq!(client.insert(key, &value), Ok(()));
                *held = Some(value);
            }
            3 | 4 => {
                assert_eq!(client.insert(key, &value), Err(WriteError::AlreadyExists));
                assert_eq!(client.update(key, &value), Ok(()));
                *held = Some(value);
            }
            _ => {
                assert_eq!(client.put(key, &value), Ok(()));
                *held = Some(value);
            }
        }
    }
    model
}

#[test]
fn all_sizes_side_by_side_keep_what_they_hold() {
    for fabric in [FabricKind::Shm, FabricKind::Tcp] {
        let client = client(fabric);
        let models: Vec<_> = thread::scope(|scope| {
            let work = |thread| {
                scope.spawn({
                    let client = &client;
                    move || work(client, thread)
                })
            };
            let threads: Vec<_> = (0..THREADS).map(work).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let mut there = 0;
        for (key, held) in models.into_iter().flatten() {
            assert_eq!(client.get(&key).unwrap(), held, "a key of {} bytes", key.len());
            there += usize::from(held.is_some());
        }
        assert!(there > THREADS * KEYS / 2, "{there} keys are there");
    }
}

/// Each size of a key is combined with each size of a value; values change from each size to the next larger one, and
/// at the end from the largest to the empty value.
#[test]
fn a_key_may_hold_any_size_after_any_other() {
    for fabric in [FabricKind::Shm, FabricKind::Tcp] {
        let client = client(fabric);
        let mut dice = Dice(7);
        let keys: Vec<Vec<u8>> = (0..KEY_SIZES.len()).map(|n| dice.key(0, n)).collect();
        for key in &keys {
            for len in VALUE_SIZES.into_iter().chain([0]) {
                let value = dice.bytes(len);
                client.put(key, &value).unwrap();
                let found = client.get(key).unwrap();
                assert_eq!(found.as_deref(), Some(&value[..]), "{} and {len} bytes", key.len());
            }
        }
        // All keys are read in one call, so that small and large values are fetched in the same phases.
        let values: Vec<Vec<u8>> = VALUE_SIZES.map(|len| dice.bytes(len)).into();
        for (key, value) in keys.iter().zip(&values) {
            client.update(key, value).unwrap();
        }
        let expected: Vec<_> = values.into_iter().take(keys.len()).map(Some).collect();
        assert_eq!(client.get_many(&keys), Ok(expected));
    }
}

#[test]
fn one_byte_beyond_the_limits_is_refused_by_name() {
    for fabric in [FabricKind::Shm, FabricKind::Tcp] {
        let client = client(fabric);
        let key = vec![7; MAX_KEY];
        let value = vec![8; MAX_VALUE];
        client.insert(&key, &value).unwrap();
        assert_eq!(client.get(&key).unwrap().as_ref(), Some(&value));
        let long = vec![7; MAX_KEY + 1];
        let large = vec![8; MAX_VALUE + 1];
        let too_long = WriteError::KeyTooLarge { bytes: MAX_KEY + 1, max_bytes: MAX_KEY };
        let too_large = WriteError::ValueTooLarge { bytes: MAX_VALUE + 1, max_bytes: MAX_VALUE };
        for write in [BlockingClient::insert, BlockingClient::update, BlockingClient::put] {
            assert_eq!(write(&client, &long, b"x").as_ref(), Err(&too_long));
            assert_eq!(write(&client, &key, &large).as_ref(), Err(&too_large));
            assert_eq!(write(&client, b"", b"x"), Err(WriteError::KeyEmpty));
        }
        assert_eq!(client.delete(&long).as_ref(), Err(&too_long));
        let too_long = ReadError::KeyTooLarge { bytes: MAX_KEY + 1, max_bytes: MAX_KEY };
        assert_eq!(client.get(&long).as_ref(), Err(&too_long));
        assert_eq!(client.get_many(&[&long]).as_ref(), Err(&too_long));
        assert_eq!(client.get(&key).unwrap().as_ref(), Some(&value), "nothing was lost");
    }
}
