//! Changes of memory by a change of the view: index subtables get one word per slot, the same on all remaining
//! replicas, and new replicas are filled (P §5.2).
//!
//! Writers have stopped anywhere within their rounds, so the replicas of a slot may differ.
//! [`settled_word`](crate::conflict_rules::settled_word) names the word that they get; [`transform`] writes it to all
//! subtables in the scope of a change, by bulk READs and a CAS where a word must change. The backups come first, the
//! primary last: readers use the primary, so the word they see changes at most once, to a word that by then stands on
//! every backup, and which a second run would choose again. If the primary is lost, readers meanwhile take the word
//! of all backups, if these agree. So the transformation may stop anywhere and be run again.
//!
//! Before it changes a slot, it completes ([`data`](crate::data)) the object of the slot's new word: the word of a
//! speculative write may stand on a backup while the object is only on that backup's node. The object of a free word
//! is the log object of a DELETE. No operation reads it, but recovery of its session must see that its memory is used,
//! because the session that replaces the word frees it.
//!
//! If a slot need not change, its object is complete. Either the primary is left, and shows only words whose objects
//! are complete; or all remaining backups show the word. Then the object is complete on the node of each of them, and
//! lies on no other node but that of the lost primary ([`store`](crate::store), speculative writes).
//!
//! A subtable that gets a replica, or a sibling ([`split`]), is made equal first, and copied then. A region is only
//! copied ([`data`](crate::data)), since an object is complete before any session can learn of it. Objects of dead
//! clients are the exception, and are completed before
//! ([`recovery::complete_objects`](crate::recovery::complete_objects)).
//!
//! Preconditions: the change is in the stage *transforming*: no operation that touches its scope runs, and clients
//! that did not acknowledge that are fenced ([`change`](crate::view::change)). Dead clients are recovered afterwards,
//! in the new view (P §5.4); recovery then finds their words on all replicas or on none.

mod outcome;
mod settle;
pub mod split;

pub use outcome::{RepairError, TransformResult};

use crate::data::{CopyResult, PlaceOfCopy, clear_bitmaps, copy_bytes};
use crate::mutant::{Mutant, removed};
use crate::verbs::Fabric;
use crate::view::View;
use crate::view::change::{ChangeStage, SplitProgress, SubtableChange};
use settle::settle_subtable;

/// Carries out the change of a view that has passed [`View::check`]. May be run again after it
/// stopped anywhere.
///
/// # Panics
/// If the view has no change that is transforming.
pub async fn transform<F: Fabric>(fabric: &F, view: &View) -> Result<TransformResult, RepairError> {
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
    let sizes: (&_, &PlaceOfCopy<'_>) = (&view.geometry, &place_of_copy);
    for change in &change.regions {
        let region = &view.regions[change.region as usize];
        if change.renewed {
            clear_bitmaps(fabric, &view.geometry, region, &mut result.cost).await?;
        }
        if change.adds_parity && !removed(Mutant::ParityNotCompleted) {
            region.write_parity(fabric, sizes, &mut copied).await?;
        }
        if let Some(joining) = change.joining {
            let exchange = (joining, change.leaving);
            region.copy_to(fabric, sizes, exchange, &mut copied).await?;
        }
    }
    result.add(&copied);
    Ok(result)
}
