//! Backup reads: reads of slots from their backups while the primary does not answer and the master is silent.
//!
//! ```text
//! bar    ask the other members to bar the primary; wait until leases have ended   (no verbs)
//! read   READ both buckets from all backups, which must all answer and agree      (1 phase)
//! ```
//!
//! Normally a slot is read from its primary, because its backups show a word before it is committed. If a session that
//! is cut off only from the primary read the backups, it could see a word that other sessions, at the primary, do not
//! see yet. So first more than half of all members, and all backups that are to be read, *bar* the primary: from then
//! on no lease begins, and no majority vouches for words that the primary shows. When all leases have ended, no session
//! relies on the primary any more, and a slot's word is the one on which all its backups agree. The argument is in
//! `docs/decisions/0030-reads-without-a-master.md`.
//!
//! A bar concerns one view. An operation that is pinned in this view delays the view change that settles the words that
//! the operation has read. If the backups do not agree, or one of them does not answer, the operation waits.
//!
//! A word that was read from backups makes no hint, because it is not known to be committed.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};

use arrayvec::ArrayVec;

use crate::host::Host;
use crate::race::{BucketWords, Buckets};
use crate::store::StoreOp;
use crate::store::session::has_valid_lease;
use crate::verbs::{Fabric, FailedVerb, MnId, Ticket};
use crate::view::{MAX_REPLICAS, Subtable, View};

/// The barred primaries that the session knows. It reads a subtable's slots from the backups if all these backups bar
/// the primary.
#[derive(Debug, Default)]
pub(super) struct BackupReads {
    /// The number of the view in which the session reads from backups; 0 if the session does not read from backups.
    /// Every read checks this number first, because it is usually 0.
    view: Cell<u64>,
    barred: RefCell<Vec<PrimaryBars>>,
}

/// A primary's node, with all members that bar the node.
#[derive(Debug)]
struct PrimaryBars {
    node: MnId,
    by: Vec<MnId>,
}

impl BackupReads {
    /// Returns whether, in this view, a subtable's slots are read from its backups although the subtable has a primary.
    #[inline]
    pub fn has(&self, view: &View, subtable: u32) -> bool {
        self.view.get() == view.number
            && self.is_barred_by_backups(&view.subtables[subtable as usize])
    }

    #[cold]
    fn is_barred_by_backups(&self, subtable: &Subtable) -> bool {
        let primary = subtable.primary();
        let backups = subtable.backups();
        let barred = self.barred.borrow();
        let found = barred.iter().find(|barred| barred.node == primary.node);
        let all = |by: &[MnId]| backups.iter().all(|backup| by.contains(&backup.node));
        !backups.is_empty() && found.is_some_and(|barred| all(&barred.by))
    }

    /// Returns whether a session without a valid lease is allowed to read a subtable's slots from its backups in this
    /// view. If so, the session reads these slots there until the view changes. If not, this call has asked further
    /// members to bar the primary, if that was due, and the caller can try again later.
    pub async fn request(&self, host: &impl Host, subtable: u32, view: &Arc<View>) -> bool {
        if self.has(view, subtable) {
            return true;
        }
        let places = &view.subtables[subtable as usize];
        if has_valid_lease(host) || view.change.is_some() || places.backups().is_empty() {
            return false;
        }
        let node = places.primary().node;
        let Some(by) = host.bar(node, view).await else { return false };
        self.add(PrimaryBars { node, by }, view.number);
        self.has(view, subtable)
    }

    fn add(&self, primary: PrimaryBars, view: u64) {
        let mut barred = self.barred.borrow_mut();
        if self.view.replace(view) != view {
            barred.clear();
        }
        barred.retain(|known| known.node != primary.node);
        barred.push(primary);
    }
}

/// Reads all slots of the key, in one phase, from the subtable's replicas beginning with number `first`. Returns the
/// words that a view change is going to give to all these replicas; `None` if the replicas do not determine these
/// words.
pub(super) async fn fetch_agreed<F: Fabric, H: Host>(
    op: &mut StoreOp<'_, F, H>,
    buckets: &Buckets,
    first: usize,
) -> Result<Option<BucketWords>, FailedVerb> {
    op.batch.next_phase();
    let view = op.view.clone();
    let places = &view.subtables[buckets.subtable as usize].replicas()[first..];
    let mut reads = ArrayVec::<[Ticket; 2], MAX_REPLICAS>::new();
    for place in places {
        reads.push(buckets.read(&mut op.batch, *place));
    }
    op.phase().await;
    let mut replicas = ArrayVec::<BucketWords, MAX_REPLICAS>::new();
    for tickets in reads {
        replicas.push(buckets.words(&op.batch, tickets)?);
    }
    Ok(BucketWords::settled(&replicas))
}
