//! The view that a session's new operations follow, and the keys, values and slabs that this view allows.

use alloc::rc::Rc;
use alloc::sync::Arc;
use core::cell::{Cell, Ref, RefCell};

use crate::data::{Redundancy, RedundancyError};
use crate::error::Error;
use crate::layout::Slot;
use crate::slab::SlabKind;
use crate::store::memory::SessionMemory;
use crate::view::View;

/// A view that the operations of a session share, with a reference count that only this session touches.
pub(in crate::store) type ViewRef = Rc<Arc<View>>;

/// The view that the new operations of a session follow.
pub(in crate::store) struct FollowedView {
    view: RefCell<ViewRef>,
    /// Whether all regions of the view are replicated.
    has_one_redundancy: Cell<bool>,
}

impl FollowedView {
    /// Begins to follow this view.
    pub fn new(view: Arc<View>) -> FollowedView {
        let has_one_redundancy = Cell::new(has_one_redundancy(&view));
        FollowedView { view: RefCell::new(Rc::new(view)), has_one_redundancy }
    }

    /// Borrows the view. The borrow has to end before the session follows a newer view.
    #[inline]
    pub fn borrow(&self) -> Ref<'_, ViewRef> {
        self.view.borrow()
    }

    /// Follows a newer view. Cold and not inlined, so that operations that find no newer view do not pay for it.
    #[cold]
    pub fn follow(&self, newer: Arc<View>, memory: &SessionMemory) {
        if newer.regions.iter().any(|region| !region.is_there()) {
            memory.forget_lost_blocks(&newer);
        }
        self.has_one_redundancy.set(has_one_redundancy(&newer));
        *self.view.borrow_mut() = Rc::new(newer);
    }

    /// Returns whether all regions of the view are replicated.
    #[inline]
    pub fn has_one_redundancy(&self) -> bool {
        self.has_one_redundancy.get()
    }

    /// Checks that the view allows this key.
    #[inline]
    pub fn check_key(&self, key: &[u8]) -> Result<(), Error> {
        let max_bytes = self.view.borrow().geometry.max_key_bytes as usize;
        match key.len() {
            0 => Err(Error::KeyEmpty),
            bytes if bytes > max_bytes => Err(Error::KeyTooLarge { bytes, max_bytes }),
            _ => Ok(()),
        }
    }

    /// Checks that the view allows values of this length.
    #[inline]
    pub fn check_value(&self, bytes: usize) -> Result<(), Error> {
        let max_bytes = self.view.borrow().geometry.max_value_bytes as usize;
        if bytes > max_bytes { Err(Error::ValueTooLarge { bytes, max_bytes }) } else { Ok(()) }
    }

    /// Returns the slab for the redundancy of a word's pair, if a pair of this key and a value of this length can have
    /// this redundancy.
    #[cold]
    pub fn slab_of_word(&self, word: Slot, key: &[u8], value_bytes: usize) -> Option<SlabKind> {
        let redundancy = self.view.borrow().object_of(word)?.redundancy_of(word);
        self.slab_of(redundancy, key.len(), value_bytes).ok()
    }

    /// Returns the slab for an object of this redundancy and of these lengths of key and value.
    #[inline]
    pub fn slab_of(
        &self,
        redundancy: Redundancy,
        key_bytes: usize,
        value_bytes: usize,
    ) -> Result<SlabKind, Error> {
        if !redundancy.is_replicated() {
            redundancy.check(key_bytes, value_bytes).map_err(Error::Redundancy)?;
            self.check_members(redundancy)?;
        }
        SlabKind::of(redundancy, key_bytes, value_bytes).ok_or_else(|| Error::ValueTooLarge {
            bytes: value_bytes,
            max_bytes: self.view.borrow().geometry.max_value_bytes as usize,
        })
    }

    /// Checks that there are regions of this redundancy, or enough members for such a region.
    #[cold]
    fn check_members(&self, redundancy: Redundancy) -> Result<(), Error> {
        let view = self.view.borrow();
        let members = view.members.len();
        match redundancy.coding() {
            Some(coding)
                if members < coding.chunks()
                    && view.regions.iter().all(|region| region.redundancy() != redundancy) =>
            {
                Err(Error::Redundancy(RedundancyError::TooFewNodes { coding, members }))
            }
            _ => Ok(()),
        }
    }

    /// Returns the error of a write whose slab has no room: its redundancy needs more members, or memory is full.
    pub fn no_room_in(&self, slab: SlabKind) -> Error {
        let (Some(coding), members) = (slab.redundancy.coding(), self.view.borrow().members.len())
        else {
            return Error::OutOfMemory;
        };
        if members < coding.chunks() {
            Error::Redundancy(RedundancyError::TooFewNodes { coding, members })
        } else {
            Error::OutOfMemory
        }
    }
}

/// Returns whether all regions of a view are replicated.
fn has_one_redundancy(view: &View) -> bool {
    view.regions.iter().all(|region| region.redundancy().is_replicated())
}
