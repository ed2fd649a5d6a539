//! Heap allocations of operations over shared memory, with all keys in the index cache and enough memory at hand.

// Promise PHA-4: Over shared memory a cached get allocates nothing.
// Promise PHA-5: 64 cached updates allocate about twice at most.

use std::cell::Cell;

use allocation_counter::measure;
use fusee_client::{Client, EmbeddedOptions, FabricKind};

const KEYS: u32 = 200;
/// A number of writes among which a search for memory is a small part.
const MANY: u32 = 2000;

fn key(number: u32) -> [u8; 8] {
    u64::from(number).to_le_bytes()
}

#[test]
fn cached_gets_take_no_memory_and_writes_some_for_many_at_a_time() {
    let options = EmbeddedOptions::default().with_fabric(FabricKind::Shm);
    let client = Client::embedded(options).expect("a cluster").blocking();
    let session = client.session().expect("a session");
    let value = [7; 1000];
    let updates = |rounds: u32| {
        for number in (0..KEYS * rounds).map(|i| i % KEYS) {
            session.block_on(session.update(&key(number), &value)).expect("it is there");
        }
    };
    for number in 0..KEYS {
        session.block_on(session.insert(&key(number), &value)).expect("it is new");
    }
    // From here on, buffers that are kept from one operation to the next have their final size, and so have the
    // session's blocks.
    updates(100);

    let found = Cell::new(0);
    let gets = measure(|| {
        for number in 0..KEYS {
            let key = key(number);
            let get = session.get_with(&key, |value| value.map(<[u8]>::len));
            let len = session.block_on(get).expect("it is there");
            found.set(found.get() + len.unwrap_or(0));
        }
    });
    assert_eq!(found.get(), KEYS as usize * value.len());
    assert_eq!(gets.count_total, 0, "{gets:?}");

    // Some allocations are expected: one when free bits are set, 16 at a time, and about 30 when the session searches
    // for memory, each time that half of a block is used up.
    let allowed = u64::from(KEYS * 100) / 32 * 3 + 10;
    let taken = measure(|| updates(100));
    assert!(taken.count_total <= allowed, "{taken:?}, allowed {allowed}");
    let inserts = |from: u32| {
        for number in from..from + MANY {
            session.block_on(session.insert(&key(number), &value)).expect("it is new");
        }
    };
    inserts(KEYS);
    let taken = measure(|| inserts(KEYS + MANY));
    assert!(taken.count_total <= u64::from(MANY) / 10, "{taken:?}");
    // A value that `fill` writes directly into the send buffer needs no allocation.
    let fills = measure(|| {
        for number in 0..MANY {
            let key = key(number);
            let put = session.put_from(&key, value.len(), |value| value.fill(8));
            session.block_on(put).expect("there is room");
        }
    });
    assert!(fills.count_total <= u64::from(MANY) / 10, "{fills:?}");
}
