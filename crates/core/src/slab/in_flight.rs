//! The objects of a block that running operations write.

use alloc::vec::Vec;

/// The objects of one block for which operations are under way.
#[derive(Debug, Default)]
pub(crate) struct ObjectsInFlight {
    /// The number of objects that were allocated for operations which have not ended, or that are being moved.
    count: u32,
    /// Objects that are being moved in place; `count` counts these objects, too.
    moving: Vec<u32>,
}

impl ObjectsInFlight {
    /// Whether no operation is under way for an object of the block.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether an object is being moved in place.
    pub fn is_moving(&self, object: u32) -> bool {
        self.moving.contains(&object)
    }

    /// Records that an object was allocated for an operation.
    #[inline]
    pub fn begin(&mut self) {
        self.count += 1;
    }

    /// Records that an operation for which an object was allocated has ended.
    #[inline]
    pub fn end(&mut self) {
        self.count -= 1;
    }

    /// Records that a Move of an object in place begins.
    pub fn begin_move(&mut self, object: u32) {
        self.count += 1;
        self.moving.push(object);
    }

    /// Records that the Move of an object in place has ended, if one was under way.
    pub fn end_move(&mut self, object: u32) {
        if let Some(at) = self.moving.iter().position(|moving| *moving == object) {
            self.moving.swap_remove(at);
            self.count -= 1;
        }
    }
}
