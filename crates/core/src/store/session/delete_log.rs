//! The numbers and the log areas of a session, for its DELETEs.
//!
//! A DELETE has no object: the word that it leaves is a *number*, which is used once. Its log entry is a *record* in
//! the session's log area ([`layout::log`](crate::layout)) on the node of each backup of its slot. An attempt of a
//! DELETE
//!
//! 1. *takes* a number and a place for its record, before it posts anything. It takes them only if the session has a
//!    log area on the node of each backup; otherwise the operation is unpinned, and asks for what is missing;
//! 2. posts the record beside each backup, in front of the CAS there;
//! 3. *releases* the place when its outcome is known. If the outcome remains unknown, the record stays until the
//!    session is recovered.
//!
//! With one index replica there is no backup. Then the CAS of the primary is the whole round, so that nothing can be
//! left half-way, and the DELETE needs no record.

use alloc::vec::Vec;
use core::cell::{Cell, RefCell};

use crate::error::{Error, FailedWriteOutcome};
use crate::host::Host;
use crate::layout::{
    LOG_RECORDS, LogRecord, MAX_LOG_AREAS, Slot, log_area_offset, log_record_offset,
};
use crate::race::{Buckets, Key};
#[cfg(feature = "mutants")]
use crate::store::Store;
use crate::store::StoreOp;
use crate::verbs::{ClientId, Fabric, MnId};
use crate::view::{PoolPlace, SlotRef, View};

/// The number and the place for a record that an attempt of a DELETE has taken.
#[derive(Clone, Copy, Debug)]
pub(in crate::store) struct DeleteNumber {
    /// The number, which is the DELETE's own word.
    pub word: Slot,
    /// The place of its record, counted over the session's log areas; `None` if it needs none, because its slot has no
    /// backup.
    record: Option<u8>,
}

/// The reason why an attempt of a DELETE cannot begin yet: the session lacks this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeleteLack {
    /// Its log area of this number on this memory node.
    Area(MnId, u8),
    /// A place for a record: other DELETEs of the session use all of them.
    Place,
    /// A number.
    Number,
}

const _: () = assert!(LOG_RECORDS * MAX_LOG_AREAS == u64::BITS as usize);

/// The numbers and the log areas of a session.
#[derive(Debug)]
pub(in crate::store) struct DeleteLog {
    /// The session's log areas on the memory nodes, each with its number. Names of nodes are never used again.
    areas: RefCell<Vec<(MnId, u8, u32)>>,
    /// A bit for each place of a record in the areas: whether an attempt uses the place, on whatever node.
    taken: Cell<u64>,
    /// The client id in the session's next numbers: its own one, until all numbers with that one are used.
    client: Cell<ClientId>,
    /// The counter in the next number.
    next: Cell<u32>,
}

impl DeleteLog {
    /// Creates the log of a session of this client, without a log area.
    pub fn new(client: ClientId) -> DeleteLog {
        DeleteLog {
            areas: RefCell::default(),
            taken: Cell::new(0),
            client: Cell::new(client),
            next: Cell::new(0),
        }
    }

    /// Returns the session's log area of this number on a memory node.
    fn area(&self, node: MnId, number: u8) -> Option<u32> {
        let areas = self.areas.borrow();
        let found = areas.iter().find(|(of, n, _)| (*of, *n) == (node, number));
        found.map(|(.., area)| *area)
    }

    /// Notes that the session has this log area.
    fn add_area(&self, node: MnId, number: u8, area: u32) {
        if self.area(node, number).is_none() {
            self.areas.borrow_mut().push((node, number, area));
        }
    }

    /// Leaves only this number of numbers with the present client id.
    #[cfg(feature = "mutants")]
    fn skip_numbers(&self, left: u32) {
        self.next.set(Slot::NUMBERS - left);
    }

    /// Takes a number and a place for an attempt to delete a key. Returns `None` if the session lacks something for it,
    /// which [`StoreOp::await_delete_log`] gets.
    #[inline]
    pub fn take(&self, key: Key<'_>, view: &View) -> Option<DeleteNumber> {
        if self.lack(key, view).is_some() {
            return None;
        }
        let has_backups = backup_nodes(key, view).next().is_some();
        let record = has_backups.then(|| self.taken.get().trailing_ones() as u8);
        self.taken.set(self.taken.get() | record.map_or(0, |place| 1 << place));
        let counter = self.next.get();
        self.next.set(counter + 1);
        Some(DeleteNumber { word: Slot::number(self.client.get(), counter), record })
    }

    #[inline]
    fn lack(&self, key: Key<'_>, view: &View) -> Option<DeleteLack> {
        if self.next.get() == Slot::NUMBERS {
            return Some(DeleteLack::Number);
        }
        let place = self.taken.get().trailing_ones();
        let mut nodes = backup_nodes(key, view).peekable();
        nodes.peek()?;
        if place == u64::BITS {
            return Some(DeleteLack::Place);
        }
        let number = area_of(place as u8);
        let lacking = nodes.find(|node| self.area(*node, number).is_none());
        lacking.map(|node| DeleteLack::Area(node, number))
    }

    /// Notes that the outcome of an attempt is known, so that its record is not needed any more.
    #[inline]
    pub fn release(&self, number: &DeleteNumber) {
        self.taken.set(self.taken.get() & !number.record.map_or(0, |place| 1 << place));
    }
}

/// Returns the number of the log area that has this place of a record.
fn area_of(place: u8) -> u8 {
    place / LOG_RECORDS as u8
}

/// Returns the memory nodes of the backups of a key's subtable.
fn backup_nodes<'v>(key: Key<'_>, view: &'v View) -> impl Iterator<Item = MnId> + 'v {
    let subtable = &view.subtables[Buckets::of(key, view).subtable as usize];
    subtable.backups().iter().map(|backup| backup.node)
}

#[cfg(feature = "mutants")]
impl<F: Fabric, H: Host> Store<F, H> {
    /// Lets DELETEs of this session use only this number of further numbers before it needs another client id. For
    /// tests.
    pub fn skip_numbers(&self, left: u32) {
        self.deletes.skip_numbers(left);
    }
}

impl<F: Fabric, H: Host> StoreOp<'_, F, H> {
    /// Gets what the session lacks for a DELETE of this key. The operation is not pinned while it waits.
    pub(in crate::store) async fn await_delete_log(&mut self, key: Key<'_>) -> Result<(), Error> {
        let store = self.store;
        let log = &store.deletes;
        let Some(lack) = log.lack(key, &self.view) else { return Ok(()) };
        self.pin.pause();
        // Of several DELETEs that lack the same, the first one that gets it is enough.
        let waiting_for = match lack {
            DeleteLack::Place => "other DELETEs of the session",
            DeleteLack::Area(node, number) => {
                match store.host.log_area(node, number, &self.view).await? {
                    Some(area) => {
                        log.add_area(node, number, area);
                        return Ok(());
                    }
                    None if number > 0 => "other DELETEs of the session",
                    None => "a memory node to lend a log area",
                }
            }
            DeleteLack::Number => match store.host.further_client().await? {
                Some(client) => {
                    if log.next.get() == Slot::NUMBERS {
                        // Client ids ascend, so a master that answers an id of this session is wrong.
                        if client <= log.client.get() {
                            return Err(Error::Corrupt { what: "a client id was given out twice" });
                        }
                        log.client.set(client);
                        log.next.set(0);
                    }
                    return Ok(());
                }
                None => "the master to give a client id",
            },
        };
        let outcome = FailedWriteOutcome::NotApplied;
        self.pause().await.map_err(|_| Error::GaveUp { waiting_for, outcome })
    }

    /// Posts the record of a DELETE beside each backup of a slot. The CASes of the backups are posted behind it.
    pub(in crate::store) fn post_record(
        &mut self,
        key: Key<'_>,
        number: &DeleteNumber,
        slot: SlotRef,
    ) {
        let Some(record) = number.record else { return };
        let bytes = LogRecord { hash: key.hash(), number: number.word }.encode();
        let span = self.batch.stage(bytes.len() as u32);
        self.batch.bytes_mut(span).copy_from_slice(&bytes);
        let view = self.view.clone();
        for PoolPlace { node, .. } in view.slot_on_backups(slot) {
            let area = self.store.deletes.area(node, area_of(record));
            let area = area.expect("the attempt has begun with it");
            let record = usize::from(record) % LOG_RECORDS;
            let offset = log_area_offset(area) + log_record_offset(record);
            self.batch.write(node, offset, span);
        }
    }
}
