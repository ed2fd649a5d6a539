//! The pairs of a cluster as the index shows them, for redundancy changes of many pairs.
//!
//! The search READs the subtables one after the other, from their primaries, and the block tables. Other sessions write
//! meanwhile: a pair that is being written is possibly missing, or reported as it was before. So the result is a list
//! of guesses, and each is verified when it is used.
//!
//! *Age of a pair*: accesses are not counted across clients. But a value is never overwritten in place: an update
//! writes another object, in a block that its session is using. So a value in an old block was not written recently.
//! Client ids grow with time, so the age of a block is given by the id of its owner; blocks of one owner are ordered by
//! their addresses.

use std::collections::{BTreeMap, BTreeSet};

use fusee_core::Error;
use fusee_core::data::Redundancy;
use fusee_core::layout::{Address, SizeClass, Slot, TableEntry};
use fusee_core::verbs::{ClientId, Fabric, FailedVerb, VerbBatch};
use fusee_core::view::{TABLE_ENTRY_BYTES, View};

use super::{ATTEMPTS, SurveyError, outlive};
use crate::session::Session;

/// A pair as the index showed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundPair {
    /// The session that owns the block of the pair's object. Ids grow with time. 0 if the block has no owner any more.
    pub(crate) owner: ClientId,
    pub(crate) address: Address,
    pub(crate) class: SizeClass,
    pub(crate) redundancy: Redundancy,
}

impl FoundPair {
    /// Returns the redundancy of the pair.
    pub fn redundancy(&self) -> Redundancy {
        self.redundancy
    }

    /// Returns the size of the pair's object on each place, in bytes.
    pub fn bytes_per_place(&self) -> u64 {
        self.class.bytes()
    }
}

/// The memory of all pairs with the same redundancy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedundancyMemory {
    /// The redundancy of the pairs.
    pub redundancy: Redundancy,
    /// Number of the pairs.
    pub pairs: u64,
    /// Upper bound of the bytes of the pairs' keys and values. Sizes are rounded up to size classes, by up to an
    /// eighth.
    pub value_bytes: u64,
    /// Bytes of the pairs' objects on all places, including copies.
    pub memory_bytes: u64,
}

/// Finds the pairs for whose redundancy `counts` returns true, the coldest pairs first.
pub(crate) async fn pairs(
    session: &Session,
    counts: impl Fn(Redundancy) -> bool,
) -> Result<Vec<FoundPair>, SurveyError> {
    let mut found = Vec::new();
    let owner = ClientId::NOBODY;
    for_each(session, |_, word, class, redundancy| {
        if counts(redundancy) {
            found.push(FoundPair { owner, address: word.address(), class, redundancy });
        }
    })
    .await?;
    name_owners(session, &mut found).await?;
    found.sort_unstable_by_key(|pair| (pair.owner, pair.address.bytes()));
    Ok(found)
}

/// Sums up the memory of the pairs of each redundancy.
pub(crate) async fn by_redundancy(session: &Session) -> Result<Vec<RedundancyMemory>, SurveyError> {
    let mut found: BTreeMap<Redundancy, RedundancyMemory> = BTreeMap::new();
    for_each(session, |view, word, class, redundancy| {
        let places = view.object_of(word).map_or(0, |object| object.places().len() as u64);
        let (value_bytes, copies) = match redundancy {
            Redundancy::Oriented(of) => {
                (class.bytes() * of.coding().k() as u64, of.replicas() as u64 - 1)
            }
            other => (class.bytes() * other.coding().map_or(1, |coding| coding.k()) as u64, 0),
        };
        let none = RedundancyMemory { redundancy, pairs: 0, value_bytes: 0, memory_bytes: 0 };
        let sum = found.entry(redundancy).or_insert(none);
        sum.pairs += 1;
        sum.value_bytes += value_bytes;
        sum.memory_bytes += class.bytes() * places + value_bytes * copies;
    })
    .await?;
    Ok(found.into_values().collect())
}

/// Calls `show` with each slot word that leads to a pair, and with the view that was used to read the word.
async fn for_each(
    session: &Session,
    mut show: impl FnMut(&View, Slot, SizeClass, Redundancy),
) -> Result<(), SurveyError> {
    let mut subtable = 0;
    let mut attempts = 0;
    loop {
        let view = session.adopt_newest();
        let words = match session.words_of(subtable).await {
            Ok(Some(words)) => words,
            Ok(None) => return Ok(()),
            Err(Error::Unreachable { node, error, .. }) if attempts < ATTEMPTS => {
                attempts += 1;
                outlive(session, &view, FailedVerb { node, error }).await?;
                continue;
            }
            Err(_) if session.is_lost() => return Err(SurveyError::Expelled),
            Err(_) => return Err(SurveyError::Moving),
        };
        for word in words {
            if let Some((redundancy, class)) = view.redundancy_of(word).zip(word.class()) {
                show(&view, word, class, redundancy);
            }
        }
        (subtable, attempts) = (subtable + 1, 0);
    }
}

async fn name_owners(session: &Session, found: &mut [FoundPair]) -> Result<(), SurveyError> {
    let mut attempts = 0;
    loop {
        let view = session.adopt_newest();
        match owners(session, &view, found).await {
            Ok(owners) => {
                for pair in found {
                    let before = owners.range(..=pair.address.bytes()).next_back();
                    let block = before
                        .filter(|(start, (bytes, _))| pair.address.bytes() - **start < *bytes);
                    pair.owner = block.map_or(ClientId::NOBODY, |(_, (_, owner))| *owner);
                }
                return Ok(());
            }
            Err(failure) if attempts < ATTEMPTS => {
                attempts += 1;
                outlive(session, &view, failure).await?;
            }
            Err(_) => return Err(SurveyError::Moving),
        }
    }
}

/// Reads the lengths and owners of the blocks of these pairs. The keys of the result are the addresses of the blocks.
async fn owners(
    session: &Session,
    view: &View,
    found: &[FoundPair],
) -> Result<BTreeMap<u64, (u64, ClientId)>, FailedVerb> {
    let region_bytes = view.geometry.region_bytes;
    let region_of = |pair: &FoundPair| (pair.address.bytes() / region_bytes) as u32;
    let regions: BTreeSet<u32> = found.iter().map(region_of).collect();
    let geometry = &view.geometry;
    let mut owners = BTreeMap::new();
    for region in regions {
        let Some(of) = view.regions.get(region as usize).filter(|region| region.is_there()) else {
            continue;
        };
        let mut batch = VerbBatch::new();
        let place = of.primary();
        let bytes = u64::from(geometry.frames_per_region()) * TABLE_ENTRY_BYTES;
        let read = batch.read(place.node, place.offset, bytes as u32);
        let batch = session.verbs().execute(batch).await;
        let words = batch.data(read)?.as_chunks().0.iter().copied().map(u64::from_le_bytes);
        for (frame, entry) in TableEntry::all(words, |frame, order| geometry.is_block(frame, order))
        {
            let address = geometry.frame_address(region, frame);
            owners.insert(address.bytes(), (geometry.order_bytes(entry.order), entry.owner));
        }
    }
    Ok(owners)
}
