//! The search for pairs to demote, in blocks and in the index, when the caller names no keys.
//!
//! The results are guesses, because an object is possibly freed while it is read, and its key is in another object
//! then. So a Move of such a pair names the object that it means ([`MoveScope`]), and checks that the key's slot leads
//! to it.

use alloc::vec::Vec;

use crate::data::Redundancy;
use crate::error::Error;
use crate::host::Host;
use crate::layout::{Address, Chunk, Object, SizeClass, Slot};
use crate::store::{MoveScope, Store, StoreOp, Transition};
use crate::verbs::Fabric;

/// The number of bytes of the index that one phase reads.
const PHASE_BYTES: u64 = 1 << 20;
/// The number of bytes of one READ of the index.
const READ_BYTES: u64 = 64 << 10;

/// The result of trying to demote one object of this session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectDemotion {
    /// The object's pair has become erasure-coded. Contains the length of its value in bytes.
    Pair(u64),
    /// The object holds no pair any more, or none that can be demoted in place now.
    Nothing,
    /// No object is left to try now: every object of the EC-oriented blocks that are not in use has been tried since
    /// its block was last in use. Blocks that are frozen, or that cannot be demoted now for another reason, are
    /// skipped.
    AllDone,
}

impl<F: Fabric, H: Host> Store<F, H> {
    /// Tries to demote one object of this session's oldest EC-oriented block. If a slot leads to the object, makes its
    /// pair erasure-coded in place, which needs no memory and frees the copies.
    pub async fn demote_next(&self) -> Result<ObjectDemotion, Error> {
        // The oldest block is possibly offered to other sessions, and objects in offered blocks are not moved.
        self.memory.take_back(&self.host);
        let view = self.newest_view();
        let next = self.memory.next_to_demote(&view);
        let Some((address, kind)) = next else { return Ok(ObjectDemotion::AllDone) };
        let Redundancy::Oriented(of) = kind.redundancy else { return Ok(ObjectDemotion::Nothing) };
        let Some((key, bytes)) = self.pair_at(address, kind.class).await? else {
            return Ok(ObjectDemotion::Nothing);
        };
        let to = Redundancy::Coded(of.coding());
        let reach = MoveScope::InPlaceAt(address);
        match self.move_pair(&key[..], to, None, reach).await {
            Ok((Transition::Moved, _)) => Ok(ObjectDemotion::Pair(bytes)),
            Ok(_) | Err(Error::NotFound) => Ok(ObjectDemotion::Nothing),
            Err(error) => Err(error),
        }
    }

    /// Returns whether the pool had no block left when this session last asked for one.
    pub fn found_no_block(&self) -> bool {
        self.memory.pool_was_empty()
    }

    /// Returns the key of the pair whose object is at an address, and the length of its value, as one of the object's
    /// replicas or chunks shows them. Returns `None` if no whole object is there. Takes one phase.
    pub async fn pair_at(
        &self,
        address: Address,
        class: SizeClass,
    ) -> Result<Option<(Vec<u8>, u64)>, Error> {
        let mut op = self.operation();
        let found = read_pair_at(&mut op, address, class).await;
        let cost = op.cost;
        self.batches.keep(core::mem::take(&mut op.batch));
        self.counters.add(crate::stats::OpKind::Reclaim, &cost);
        found
    }

    /// Returns all words of a subtable that lead to an object, as its primary shows them in one phase after another.
    /// The words are possibly outdated or not committed. Returns `None` if the view has no such subtable.
    pub async fn words_of(&self, subtable: u32) -> Result<Option<Vec<Slot>>, Error> {
        let mut op = self.operation();
        let words = read_words_of(&mut op, subtable).await;
        let cost = op.cost;
        self.batches.keep(core::mem::take(&mut op.batch));
        self.counters.add(crate::stats::OpKind::Reclaim, &cost);
        words
    }
}

async fn read_pair_at<F: Fabric, H: Host>(
    op: &mut StoreOp<'_, F, H>,
    address: Address,
    class: SizeClass,
) -> Result<Option<(Vec<u8>, u64)>, Error> {
    let view = op.view.clone();
    let Some(at) = view.object(address, class.bytes()) else { return Ok(None) };
    let near = at.places().next().map(|place| place.node);
    let Some(near) = near else { return Ok(None) };
    let place = at.read_at(near, |node| op.store.silent.has(node));
    // The batch still holds the verbs of the previous operation.
    op.batch.clear();
    let ticket = op.batch.read(place.node, place.offset, at.bytes() as u32);
    op.phase().await;
    let bytes = op.batch.data(ticket).map_err(|f| op.failed(f))?;
    let Ok(object) = Object::decode(bytes) else { return Ok(None) };
    let value_bytes = match at.columns() {
        None => Some(object.value().len()),
        Some(_) => Chunk::value_bytes_in(bytes),
    };
    let is_there = object.identity().generation_at(address).is_some();
    let pair = value_bytes.map(|bytes| (object.key().to_vec(), bytes as u64));
    Ok(pair.filter(|_| is_there))
}

async fn read_words_of<F: Fabric, H: Host>(
    op: &mut StoreOp<'_, F, H>,
    subtable: u32,
) -> Result<Option<Vec<Slot>>, Error> {
    let view = op.view.clone();
    let Some(of) = view.subtables.get(subtable as usize) else { return Ok(None) };
    let place = of.primary();
    let all = view.geometry.subtable_bytes();
    let mut words = Vec::new();
    let mut from = 0;
    while from < all {
        let end = all.min(from + PHASE_BYTES);
        op.batch.clear();
        let mut reads = Vec::new();
        while from < end {
            let bytes = READ_BYTES.min(end - from);
            reads.push(op.batch.read(place.node, place.offset + from, bytes as u32));
            from += bytes;
        }
        op.phase().await;
        for read in reads {
            let bytes = op.batch.data(read).map_err(|f| op.failed(f))?;
            let found = bytes.as_chunks().0.iter().map(|word| Slot(u64::from_le_bytes(*word)));
            words.extend(found.filter(|word| !word.is_free() && !word.is_tentative()));
        }
    }
    Ok(Some(words))
}
