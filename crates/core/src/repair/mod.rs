//! The changes of memory that a change of the view makes: all remaining replicas of an index slot get the same word,
//! and new replicas are filled (P §5.2).
//!
//! Writers have possibly stopped anywhere in their rounds, so the replicas of a slot can differ.
//! [`settled_word`](crate::conflict_rules::settled_word) chooses the word that they get. [`transform`] writes it, in
//! all subtables in the scope of a change, by bulk READs and a CAS wherever a word has to change. The backups come
//! first, the primary last. Readers read the primary, so they see at most one change, to a word that is on every backup
//! by then, and that a second run would choose again. If the primary is lost, readers use the word on which all backups
//! agree. So the transformation can stop anywhere and be run again.
//!
//! Before a slot is changed, the object of its new word is completed ([`data`](crate::data)), because the word of a
//! speculative write is possibly on a backup while the object is only on that backup's node. A free word has no object
//! that is possibly incomplete: a DELETE has none, and a withdrawal's was written by an INSERT, which never speculates.
//!
//! If a slot need not change, its object is complete already. Either the primary is left, which shows only words whose
//! objects are complete. Or all remaining backups show the word, and then the object is complete on each of their
//! nodes, and lies on no other node but that of the lost primary (`store/write/speculation.rs`).
//!
//! The replicas of a subtable that gets a replica, or a sibling ([`split`]), are made equal first, and copied then.
//! Regions are only copied ([`data`](crate::data)), because an object is complete before any session can learn of it.
//! Objects of dead clients are the exception: they are completed before
//! ([`recovery::complete_objects`](crate::recovery::complete_objects)).
//!
//! Preconditions: the change is in the stage *transforming*, so no operation that touches its scope runs, and clients
//! that did not acknowledge *frozen* are fenced ([`change`](crate::view::change)). Dead clients are recovered
//! afterwards, in the new view (P §5.4), and recovery then finds their words on all replicas or on none.

mod outcome;
mod settle;
pub mod split;

pub use outcome::{RepairError, TransformResult};

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::data::{CopyContext, CopyResult, RegionBlock, clear_bitmap, copy_bytes};
use crate::mutant::{Mutant, removed};
use crate::verbs::Fabric;
use crate::view::View;
use crate::view::change::{ChangeStage, SplitProgress, SubtableChange};
use settle::settle_subtable;

/// Makes equal, and fills, the replicas in the scope of the change that is under way in a view that has passed
/// [`View::check`]. `blocks` has the blocks of the regions in that scope, in order, by the tables of their primaries.
/// If this function has failed or was dropped, it can be called again.
///
/// # Panics
/// If no change is under way, or the change is not transforming.
pub async fn transform<F: Fabric>(
    fabric: &F,
    view: &View,
    blocks: &BTreeMap<u32, Vec<RegionBlock>>,
) -> Result<TransformResult, RepairError> {
    let change = view.change.as_ref().expect("a change is under way");
    assert_eq!(change.stage, ChangeStage::Transforming, "nobody has stopped for it");
    let mut result = TransformResult::default();
    let mut copied = CopyResult::default();
    for SubtableChange { subtable, joining, split, .. } in &change.subtables {
        settle_subtable(fabric, view, *subtable, &mut result).await?;
        if let Some(SplitProgress::Filling(sibling)) = split {
            split::fill(fabric, view, *subtable, sibling, &mut result).await?;
        }
        if let Some(joining) = joining {
            let from = view.subtables[*subtable as usize].primary();
            let bytes = view.geometry.subtable_bytes();
            copy_bytes(fabric, from, *joining, bytes, &mut copied).await?;
        }
    }
    let place_of_copy = |address, bytes| view.object(address, bytes)?.places().next();
    for change in &change.regions {
        let region = &view.regions[change.region as usize];
        let blocks = blocks.get(&change.region).map_or(&[][..], Vec::as_slice);
        let context =
            CopyContext { geometry: &view.geometry, blocks, place_of_copy: &place_of_copy };
        if change.renewed {
            clear_bitmap(fabric, &view.geometry, region, &mut result.cost).await?;
        }
        if change.adds_parity && !removed(Mutant::ParityNotCompleted) {
            region.write_parity(fabric, context, &mut copied).await?;
        }
        if let Some(joining) = change.joining {
            region.copy_to(fabric, context, joining, change.leaving, &mut copied).await?;
        }
    }
    result.add(&copied);
    Ok(result)
}
