//! Checks that need only one session: order, bounds, lengths, many batches, dropped futures.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use fusee_core::verbs::{
    Fabric, FailedVerb, MAX_BATCH_VERBS, MAX_VERB_BYTES, Span, Verb, VerbBatch, VerbError,
};

use super::{NODES, POOL_BYTES, Rig, RigSession, START, staged, word};

const MN: fusee_core::verbs::MnId = NODES[0];

/// Guarantee 1: each verb of a batch sees the effects of the verbs before it.
pub(super) fn order_within_a_batch<R: Rig>(rig: &R) {
    let session = RigSession::new(rig, 1);
    let (mut batch, span) = staged(&9u64.to_le_bytes());
    let before = batch.read(MN, START + 64, 8);
    let cas = batch.cas(MN, START + 64, 0, 5);
    let after_cas = batch.read(MN, START + 64, 8);
    let faa = batch.faa(MN, START + 64, 2);
    let after_faa = batch.read(MN, START + 64, 8);
    batch.write(MN, START + 64, span);
    let after_write = batch.read(MN, START + 64, 8);
    let last = batch.cas(MN, START + 64, 9, 11);
    let batch = session.done(batch);
    let read = |ticket| word(batch.data(ticket).unwrap());
    assert_eq!(read(before), 0);
    assert_eq!(batch.found(cas), Ok(0));
    assert_eq!(read(after_cas), 5);
    assert_eq!(batch.found(faa), Ok(5));
    assert_eq!(read(after_faa), 7);
    assert_eq!(read(after_write), 9);
    assert_eq!(batch.found(last), Ok(9));
    assert_eq!(session.word(MN, START + 64), 11);
}

/// Guarantee 1 for the largest number of verbs in a batch, alternating between two nodes.
pub(super) fn a_full_batch_in_order<R: Rig>(rig: &R) {
    let session = RigSession::new(rig, 1);
    let mut batch = VerbBatch::new();
    let mut tickets = Vec::new();
    for i in 0..MAX_BATCH_VERBS / 4 {
        for node in NODES {
            tickets.push((i, batch.faa(node, START + 8, 1), batch.read(node, START + 8, 8)));
        }
    }
    assert_eq!(batch.verbs().len(), MAX_BATCH_VERBS);
    let batch = session.done(batch);
    for (i, faa, read) in tickets {
        assert_eq!(batch.found(faa), Ok(i as u64));
        assert_eq!(word(batch.data(read).unwrap()), i as u64 + 1);
    }
}

/// Guarantee 6: verbs out of bounds have no effect, the other verbs of the same batch execute, and the session goes
/// on.
pub(super) fn bounds<R: Rig>(rig: &R) {
    let session = RigSession::new(rig, 1);
    let (mut batch, span) = staged(&[0xee; 64]);
    let first = batch.faa(MN, START, 1);
    let good = batch.verbs().len();
    batch.read(MN, POOL_BYTES - 7, 8);
    batch.read(MN, POOL_BYTES + 1, 0);
    batch.read(MN, u64::MAX, 8);
    batch.read(MN, u64::MAX - 7, 8);
    batch.write(MN, POOL_BYTES - 63, span);
    batch.write(MN, u64::MAX - 31, span);
    batch.write(MN, START + (1 << 63), span);
    batch.cas(MN, POOL_BYTES, 0, 1);
    batch.cas(MN, POOL_BYTES - 4, 0, 1);
    batch.cas(MN, START + 4, 0, 1);
    batch.faa(MN, START + 1, 1);
    batch.faa(MN, u64::MAX - 7, 1);
    let bad = batch.verbs().len();
    batch.write(MN, POOL_BYTES - 64, span);
    let edge = batch.read(MN, POOL_BYTES - 64, 64);
    let empty = batch.read(MN, POOL_BYTES, 0);
    let last = batch.faa(MN, START, 1);
    let batch = session.run(batch);
    assert!(
        batch.verbs()[good..bad].iter().all(|v| v.result == Err(VerbError::OutOfBounds)),
        "{:?}",
        &batch.verbs()[good..bad]
    );
    assert_eq!(batch.check(), Err(FailedVerb { node: MN, error: VerbError::OutOfBounds }));
    assert_eq!((batch.found(first), batch.found(last)), (Ok(0), Ok(1)));
    assert_eq!(batch.data(edge).unwrap(), [0xee; 64]);
    assert_eq!(batch.data(empty).unwrap(), []);
    assert_eq!(session.word(MN, START), 2, "a misaligned atomic has changed a word");
    assert_eq!(session.word(MN, START + 8), 0, "a misaligned atomic has changed a word");
    assert_eq!(session.word(MN, POOL_BYTES - 72), 0, "a write out of bounds has had an effect");
    let mut batch = VerbBatch::new();
    let huge = batch.stage(MAX_VERB_BYTES + 1);
    batch.write(MN, START, huge);
    let batch = session.run(batch);
    assert_eq!(batch.check(), Err(FailedVerb { node: MN, error: VerbError::OutOfBounds }));
}

/// Guarantee 6: no client can change a word of the header, and every client can read it.
// Promise FAB-12: Only the memory node writes its pool's header.
pub(super) fn the_header_is_read_only<R: Rig>(rig: &R) {
    let session = RigSession::new(rig, 1);
    let (mut batch, span) = staged(&[0xee; 64]);
    let whole = batch.read(MN, 0, START as u32 + 8);
    let good = batch.verbs().len();
    batch.write(MN, 0, span);
    batch.write(MN, START - 64, span);
    batch.write(MN, START - 1, span);
    batch.cas(MN, 16, 0, 1);
    batch.faa(MN, START - 8, 1);
    let bad = batch.verbs().len();
    let after = batch.read(MN, 0, START as u32 + 8);
    batch.faa(MN, START, 1);
    let batch = session.run(batch);
    let refused = |verb: &Verb| verb.result == Err(VerbError::OutOfBounds);
    assert!(batch.verbs()[good..bad].iter().all(refused), "{:?}", &batch.verbs()[good..bad]);
    assert_eq!(batch.data(whole).unwrap(), batch.data(after).unwrap());
    assert_eq!(session.word(MN, START), 1, "the session lives on");
}

/// READ and WRITE have the results that copies from and to an array of bytes have, for all small lengths and all
/// offsets in a word.
pub(super) fn any_length_at_any_offset<R: Rig>(rig: &R) {
    const BYTES: usize = 256;
    let session = RigSession::new(rig, 1);
    let mut model = [0u8; BYTES];
    let mut batch = VerbBatch::new();
    for len in 0..=200 {
        for offset in 8..24 {
            batch.clear();
            let span = batch.stage(len as u32);
            for (i, byte) in batch.bytes_mut(span).iter_mut().enumerate() {
                *byte = (len * 31 + offset * 7 + i) as u8 | 1;
            }
            model[offset..offset + len].copy_from_slice(batch.bytes(span));
            batch.write(MN, START + offset as u64, span);
            let part = batch.read(MN, START + offset as u64, len as u32);
            let all = batch.read(MN, START, BYTES as u32);
            batch = session.done(batch);
            assert_eq!(batch.data(part).unwrap(), &model[offset..offset + len]);
            assert_eq!(batch.data(all).unwrap(), model, "{len} bytes at {offset}");
        }
    }
}

/// Verbs of the largest size succeed, also when they do not fit in one message together.
pub(super) fn the_largest_verbs<R: Rig>(rig: &R) {
    let session = RigSession::new(rig, 1);
    let len = MAX_VERB_BYTES;
    let byte = |i: usize, salt: usize| ((i * 2_654_435_761 + salt) >> 13) as u8;
    let mut batch = VerbBatch::new();
    let spans = [batch.stage(len), batch.stage(len)];
    for (salt, span) in spans.into_iter().enumerate() {
        let bytes = batch.bytes_mut(span).iter_mut().enumerate();
        bytes.for_each(|(i, b)| *b = byte(i, salt));
    }
    let before = batch.read(MN, START + 3, len);
    batch.write(MN, START + 3, spans[0]);
    batch.write(MN, START + 5 + u64::from(len), spans[1]);
    let after = [batch.read(MN, START + 3, len), batch.read(MN, START + 5 + u64::from(len), len)];
    let batch = session.done(batch);
    assert!(batch.data(before).unwrap().iter().all(|b| *b == 0));
    for (salt, ticket) in after.into_iter().enumerate() {
        let bytes = batch.data(ticket).unwrap().iter().enumerate();
        let wrong = bytes.filter(|(i, b)| **b != byte(*i, salt)).count();
        assert_eq!(wrong, 0, "bytes of write {salt} differ");
    }
}

/// Several batches of one session are in flight together. Each gets its own results, in the order posted.
pub(super) fn many_batches_in_flight<R: Rig>(rig: &R) {
    const BATCHES: usize = 64;
    let session = RigSession::new(rig, 1);
    for round in 0..4 {
        let batches = (0..BATCHES).map(|i| {
            let (mut batch, span) = staged(&[i as u8; 100]);
            let at = 4096 + i as u64 * 128;
            batch.faa(MN, START, 1);
            batch.write(NODES[1], at, span);
            batch.read(NODES[1], at, 100);
            Box::pin(session.fabric.execute(batch))
        });
        let batches = session.wait(all(batches.collect()));
        for (i, batch) in batches.iter().enumerate() {
            batch.check().unwrap();
            let [faa, _, read] = batch.verbs() else { panic!("three verbs") };
            let expected = (round * BATCHES + i) as u64;
            let found = fusee_core::verbs::VerbOp::Faa { add: 1, found: expected };
            assert_eq!(faa.op, found);
            let fusee_core::verbs::VerbOp::Read { buf, .. } = read.op else { panic!("a READ") };
            assert_eq!(batch.bytes(buf), [i as u8; 100]);
        }
    }
}

/// Polls all futures, in order, until all are ready. Returns their batches.
async fn all<F: Future<Output = VerbBatch>>(mut futures: Vec<Pin<Box<F>>>) -> Vec<VerbBatch> {
    let mut done: Vec<Option<VerbBatch>> = futures.iter().map(|_| None).collect();
    std::future::poll_fn(move |context| {
        for (future, done) in futures.iter_mut().zip(&mut done) {
            if done.is_none()
                && let Poll::Ready(batch) = future.as_mut().poll(context)
            {
                *done = Some(batch);
            }
        }
        if done.iter().all(Option::is_some) {
            Poll::Ready(done.iter_mut().flat_map(Option::take).collect())
        } else {
            Poll::Pending
        }
    })
    .await
}

/// If a future is dropped in flight, each of its verbs executes once or never, and the session goes on.
pub(super) fn dropped_futures<R: Rig>(rig: &R) {
    const ROUNDS: u64 = 200;
    let session = RigSession::new(rig, 1);
    let mut dropped_before_poll = VerbBatch::new();
    dropped_before_poll.faa(MN, START + 8, 1);
    drop(session.fabric.execute(dropped_before_poll));
    for round in 0..ROUNDS {
        let (mut batch, span): (VerbBatch, Span) = staged(&[7; 64]);
        batch.faa(MN, START, 1);
        batch.read(NODES[1], START, 1 << 14);
        batch.write(NODES[1], START + (1 << 20), span);
        {
            let mut future = Box::pin(session.fabric.execute(batch));
            let mut context = Context::from_waker(Waker::noop());
            if future.as_mut().poll(&mut context).is_pending() && round % 2 == 0 {
                rig.turn(&session.fabric);
            }
        }
        if round % 10 == 0 {
            // A batch posted after a dropped one gets its own reply, not the dropped one's.
            let (mut batch, span) = staged(&round.to_le_bytes());
            batch.write(MN, START + 64, span);
            let ticket = batch.read(MN, START + 64, 8);
            assert_eq!(word(session.done(batch).data(ticket).unwrap()), round);
        }
    }
    assert!(session.word(MN, START) <= ROUNDS);
    assert_eq!(session.word(MN, START + 8), 0, "a future that was never polled has executed");
}
