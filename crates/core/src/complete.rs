//! Objects that stand on some of their replicas only are completed on the others.
//!
//! A write that guessed ([`store`](crate::store)) may have left its word on a backup, where its object
//! is complete, while the object never came to other memory nodes. Whoever goes on with the round of
//! somebody else completes it first: recovery before it resumes, settling before it changes a slot, and
//! a change before it copies a region. The paper has no such writes.
//!
//! Only what is incomplete is written to: the object of a word that anybody reads stands on all
//! replicas, and stays as it is.

use alloc::vec::Vec;

use crate::layout::{Object, Slot};
use crate::stats::Cost;
use crate::verbs::{Batch, Fabric, Failure, MAX_BATCH_VERBS, Ticket};
use crate::view::{MAX_REPLICAS, Place, View};

/// Bytes that are read together, unless a single object has more.
const CHUNK_BYTES: u64 = 4 << 20;

/// Makes the objects that these words refer to complete on all replicas, if they are on one. Words
/// that refer to none are left out. Nobody else may write there meanwhile. Returns how many bytes were
/// written.
pub(crate) async fn complete<F: Fabric>(
    fabric: &F,
    view: &View,
    words: &[Slot],
    cost: &mut Cost,
) -> Result<u64, Failure> {
    let mut written = 0;
    let mut batch = Batch::new();
    let mut words = words.iter().copied().peekable();
    while words.peek().is_some() {
        batch.clear();
        let mut reads: Vec<(Slot, Vec<(Place, Ticket)>)> = Vec::new();
        while let Some(word) = words.peek().copied() {
            let class = word.class().filter(|c| Some(*c) <= view.geometry.largest_class());
            let bytes = class.map_or(0, |class| class.bytes());
            let fits = batch.touched_bytes() + bytes * MAX_REPLICAS as u64 <= CHUNK_BYTES
                && batch.verbs().len() + MAX_REPLICAS <= MAX_BATCH_VERBS;
            if !fits && !reads.is_empty() {
                break;
            }
            words.next();
            let places = class.and_then(|_| view.object_places(word.address(), bytes));
            let Some(places) = places else { continue };
            let read = |place: Place| {
                let ticket = batch.read(place.node, place.offset, bytes as u32);
                (place, ticket)
            };
            reads.push((word, places.map(read).collect()));
        }
        if reads.is_empty() {
            continue;
        }
        batch = fabric.execute(batch).await;
        cost.add_batch(&batch);
        let mut copies = Vec::new();
        for (word, replicas) in reads {
            let mut source = None;
            let mut incomplete = Vec::new();
            for (place, ticket) in replicas {
                let span = batch.data_span(ticket)?;
                match Object::decode_of(batch.bytes(span), word.leads_to()) {
                    Ok(_) => source = Some(span),
                    Err(_) => incomplete.push(place),
                }
            }
            // If it is complete nowhere, no correct client has left the word.
            let Some(source) = source else { continue };
            copies.extend(incomplete.into_iter().map(|place| (place, source)));
        }
        if copies.is_empty() {
            continue;
        }
        batch.next_phase();
        for (place, source) in copies {
            batch.write(place.node, place.offset, source);
            written += u64::from(source.len);
        }
        batch = fabric.execute(batch).await;
        cost.add_batch(&batch);
        batch.check()?;
    }
    Ok(written)
}
