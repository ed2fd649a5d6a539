//! The objects of a block that were allocated before and can be allocated again.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// The objects of one block that were allocated once, and that no slot uses any more.
#[derive(Debug, Default)]
pub(crate) struct ReusableObjects {
    /// Objects to allocate, the next one first. They are taken in turn, so that all objects get equally many lives.
    free: VecDeque<u32>,
    /// Objects that were given back. Operations that have read the former contents of these objects possibly still run.
    returned: Vec<u32>,
    /// Objects that were given back before a mark, if there are any.
    waiting: Option<WaitingObjects>,
}

/// Objects that become free when all operations that began before a mark have ended.
#[derive(Debug)]
struct WaitingObjects {
    mark: u64,
    objects: Vec<u32>,
}

impl ReusableObjects {
    /// Takes the next object to allocate, if one is free.
    #[inline]
    pub fn take(&mut self) -> Option<u32> {
        self.free.pop_front()
    }

    /// Makes objects allocatable. The caller has cleared their free bits and learnt their generations.
    pub fn reclaim(&mut self, objects: &[u32]) {
        self.free.extend(objects);
    }

    /// Adds an object that was given back. It becomes free when operations that possibly read it have ended.
    pub fn give_back(&mut self, object: u32) {
        self.returned.push(object);
    }

    /// Adds an object that was given back as the next one to allocate, without a wait.
    pub fn give_back_at_once(&mut self, object: u32) {
        self.free.push_front(object);
    }

    /// Frees the objects that were given back before a mark that has passed. Objects that were given back since then
    /// wait for another mark.
    pub fn take_returned(&mut self, has_passed: impl Fn(u64) -> bool, mark: impl Fn() -> u64) {
        if let Some(waiting) = self.waiting.take_if(|waiting| has_passed(waiting.mark)) {
            self.free.extend(waiting.objects);
        }
        if self.waiting.is_none() && !self.returned.is_empty() {
            let objects = core::mem::take(&mut self.returned);
            self.waiting = Some(WaitingObjects { mark: mark(), objects });
        }
    }

    /// Returns the number of objects that can be allocated.
    #[inline]
    pub fn free_objects(&self) -> u32 {
        self.free.len() as u32
    }

    /// Returns the number of objects that were given back but cannot be allocated yet.
    pub fn returned_objects(&self) -> u32 {
        let waiting = self.waiting.as_ref().map_or(0, |waiting| waiting.objects.len());
        (self.returned.len() + waiting) as u32
    }

    /// Whether there are no reusable objects.
    pub fn is_empty(&self) -> bool {
        self.free.is_empty() && self.returned_objects() == 0
    }

    /// Returns all reusable objects.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let waiting = self.waiting.iter().flat_map(|waiting| &waiting.objects);
        self.free.iter().chain(&self.returned).chain(waiting).copied()
    }
}
