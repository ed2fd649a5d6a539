//! Backup reads: reads of slots from their backups while the primary does not answer and the master is silent.
//!
//! ```text
//! bar    the other members are asked to bar the primary; a lease is waited for     (no verbs)
//! look   READ both buckets from all backups, which must all answer and agree       (1 phase)
//! ```
//!
//! A slot is normally read from its primary, because its backups show a word before it is committed. A session that
//! is only cut off from the primary could read there a word that other sessions do not see yet. So more than half of
//! all members, and all backups that are read, *bar* the primary first: from then on no lease is granted, and no
//! majority vouches for words that the primary shows. When all leases have run out, no session relies on the primary
//! any more, and the word of a slot is the one on which all of its backups agree
//! (`docs/decisions/0030-reads-without-a-master.md`, which has the argument).
//!
//! This holds for one view: an operation that is pinned by the view holds up the change that settles the words it has
//! read. If the backups do not agree, or one of them does not answer, the operation waits.
//!
//! A word read in this way is no hint: it is not known to be committed.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};

use arrayvec::ArrayVec;

use super::{Store, StoreOp};
use crate::error::Error;
use crate::host::Host;
use crate::race::{BucketWords, Buckets, Key};
use crate::verbs::{Fabric, FailedVerb, MnId, Ticket};
use crate::view::{MAX_REPLICAS, Subtable, View};

/// The primaries whose slots a session reads from the backups.
#[derive(Debug, Default)]
pub(super) struct BackupReads {
    /// The number of the view by which it does so; 0 if it does not. Usually 0: this is checked for every object that
    /// is read.
    view: Cell<u64>,
    /// Each such primary, with all members that bar it.
    barred: RefCell<Vec<(MnId, Vec<MnId>)>>,
}

impl BackupReads {
    /// Returns whether the slots of a subtable are read from its backups.
    #[inline]
    fn has(&self, subtable: &Subtable, view: u64) -> bool {
        self.view.get() == view && self.has_all(subtable)
    }

    #[cold]
    fn has_all(&self, subtable: &Subtable) -> bool {
        let primary = subtable.primary();
        let backups = subtable.backups();
        let barred = self.barred.borrow();
        let found = barred.iter().find(|(node, _)| *node == primary.node);
        let all = |by: &Vec<MnId>| backups.iter().all(|backup| by.contains(&backup.node));
        !backups.is_empty() && found.is_some_and(|(_, by)| all(by))
    }

    fn open(&self, node: MnId, by: Vec<MnId>, view: u64) {
        let mut barred = self.barred.borrow_mut();
        if self.view.replace(view) != view {
            barred.clear();
        }
        barred.retain(|(known, _)| *known != node);
        barred.push((node, by));
    }
}

impl<F: Fabric, H: Host> Store<F, H> {
    /// Returns whether a session without a valid lease may read a subtable's slots from its backups by this view. If
    /// so, the session reads them there from now on, until the view changes. If not, this call has taken the steps
    /// towards it that are due.
    pub(super) async fn may_read_backups(&self, subtable: u32, view: &Arc<View>) -> bool {
        let subtable = &view.subtables[subtable as usize];
        if self.beside.has(subtable, view.number) {
            return true;
        }
        if self.has_valid_lease() || view.change.is_some() || subtable.backups().is_empty() {
            return false;
        }
        let primary = subtable.primary().node;
        let Some(by) = self.host.bar(primary, view).await else { return false };
        self.beside.open(primary, by, view.number);
        self.beside.has(subtable, view.number)
    }
}

impl<F: Fabric, H: Host> StoreOp<'_, F, H> {
    /// Returns whether the slots of a subtable are read from its backups, by the view that the operation is pinned
    /// by, although the subtable has a primary.
    #[inline]
    pub(super) fn reads_backups(&self, subtable: u32) -> bool {
        if self.store.beside.view.get() != self.view.number {
            return false;
        }
        self.store.beside.has(&self.view.subtables[subtable as usize], self.view.number)
    }

    /// Goes on after the primary of the key's subtable did not answer, in a stable view. Returns when the next
    /// attempt reads the backups, or follows a view without this primary.
    pub(super) async fn wait_for_backups(
        &mut self,
        key: Key<'_>,
        primary: MnId,
        error: Error,
    ) -> Result<(), Error> {
        self.pin.pause();
        self.pin.traces.forgive_reads();
        self.store.host.report_unreachable(primary);
        loop {
            let view = self.store.newest_view();
            let subtable = Buckets::of(key, &view).subtable;
            // By now the subtable may have another primary, which has not been asked.
            if view.subtables[subtable as usize].primary().node != primary {
                return Ok(());
            }
            // On the heap: it is rare, and the futures of operations stay small.
            if Box::pin(self.store.may_read_backups(subtable, &view)).await {
                return Ok(());
            }
            if self.pause().await.is_err() {
                return Err(error);
            }
        }
    }

    /// Reads all slots of the key, in one phase, and returns the words to which these replicas are going to be
    /// settled; `None` if that is not certain.
    pub(super) async fn fetch_agreed(
        &mut self,
        buckets: &Buckets,
        first: usize,
    ) -> Result<Option<BucketWords>, FailedVerb> {
        self.batch.next_phase();
        let view = self.view.clone();
        let places = &view.subtables[buckets.subtable as usize].replicas()[first..];
        let mut reads = ArrayVec::<[Ticket; 2], MAX_REPLICAS>::new();
        for place in places {
            reads.push(buckets.read(&mut self.batch, *place));
        }
        self.phase().await;
        let mut replicas = ArrayVec::<BucketWords, MAX_REPLICAS>::new();
        for tickets in reads {
            replicas.push(buckets.words(&self.batch, tickets)?);
        }
        Ok(BucketWords::settled(&replicas))
    }
}
