//! Guarantee 2: CAS and FAA are atomic against all clients of all fabrics of a node.

use fusee_core::verbs::VerbBatch;

use super::{NODES, Rig, RigSession, START};

const MN: fusee_core::verbs::MnId = NODES[0];

/// An atomic returns the word as it was before, whether the atomic changed the word or not.
pub(super) fn they_say_what_they_found<R: Rig>(rig: &R) {
    let session = RigSession::new(rig, 1);
    let mut batch = VerbBatch::new();
    let wins = batch.cas(MN, START + 8, 0, u64::MAX);
    let loses = batch.cas(MN, START + 8, 0, 7);
    let wraps = batch.faa(MN, START + 8, 3);
    let adds = batch.faa(MN, START + 8, 1 << 63);
    let wins_again = batch.cas(MN, START + 8, (1 << 63) + 2, 0x0102_0304_0506_0708);
    let bytes = batch.read(MN, START + 8, 8);
    let batch = session.done(batch);
    assert_eq!(batch.found(wins), Ok(0));
    assert_eq!(batch.found(loses), Ok(u64::MAX));
    assert_eq!(batch.found(wraps), Ok(u64::MAX));
    assert_eq!(batch.found(adds), Ok(2));
    assert_eq!(batch.found(wins_again), Ok((1 << 63) + 2));
    // A word is stored as little-endian bytes on any machine.
    assert_eq!(batch.data(bytes).unwrap(), [8, 7, 6, 5, 4, 3, 2, 1]);
}

/// Several clients add to the same words by FAA and by CAS, and no addition is lost.
pub(super) fn they_lose_nothing<R: Rig>(rig: &R) {
    const CLIENTS: u32 = 4;
    const ROUNDS: u64 = 500;
    std::thread::scope(|scope| {
        for client in 1..=CLIENTS {
            scope.spawn(move || {
                let session = RigSession::new(rig, client);
                let mut seen = 0;
                for _ in 0..ROUNDS {
                    let mut batch = VerbBatch::new();
                    batch.faa(MN, START, 1);
                    batch.faa(NODES[1], START, 2);
                    session.done(batch);
                    loop {
                        let mut batch = VerbBatch::new();
                        let ticket = batch.cas(MN, START + 8, seen, seen + 1);
                        let found = session.done(batch).found(ticket).unwrap();
                        if found == seen {
                            seen += 1;
                            break;
                        }
                        assert!(found > seen, "the counter has gone back");
                        seen = found;
                    }
                }
            });
        }
    });
    let session = RigSession::new(rig, CLIENTS + 1);
    let sum = u64::from(CLIENTS) * ROUNDS;
    assert_eq!(session.word(MN, START), sum);
    assert_eq!(session.word(NODES[1], START), 2 * sum);
    assert_eq!(session.word(MN, START + 8), sum);
}
