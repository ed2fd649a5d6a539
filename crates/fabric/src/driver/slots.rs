//! The batches that a session has in flight.
//!
//! A batch in flight lies in a *slot*, not in its future: a future that is dropped leaves its batch
//! there until the last answer has come. It is made of *parts*, the smallest number of things that the
//! fabric waits for, and complete when the last of them has ended.

use std::task::Waker;

use fusee_core::verbs::Batch;

/// A batch in flight.
#[derive(Debug, Default)]
struct Slot {
    /// `None`: the slot is free, or about to be filled.
    batch: Option<Batch>,
    /// Parts that have not ended.
    parts: usize,
    /// The task that waits; `None` also when nobody waits any more.
    task: Option<Waker>,
    /// The future has been dropped.
    abandoned: bool,
}

/// A session's batches in flight.
#[derive(Debug, Default)]
pub struct Slots {
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// Tasks whose batches are complete; woken when nothing is borrowed any more.
    wake: Vec<Waker>,
}

impl Slots {
    /// A slot for a batch that is about to be posted: to be filled, or given back.
    pub(super) fn claim(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() - 1
        })
    }

    /// Nothing of the batch had to be posted.
    pub(super) fn give_back(&mut self, slot: usize) {
        self.free.push(slot);
    }

    /// The batch of a claimed slot, made of so many parts.
    pub(super) fn fill(&mut self, slot: usize, batch: Batch, parts: usize, task: &Waker) {
        debug_assert!(parts > 0);
        let task = Some(task.clone());
        self.slots[slot] = Slot { batch: Some(batch), parts, task, abandoned: false };
    }

    /// A batch in flight, whether somebody waits for it or not.
    pub(crate) fn batch(&mut self, slot: usize) -> &mut Batch {
        self.slots[slot].batch.as_mut().expect("a slot with parts has a batch")
    }

    /// The batch, if anybody waits for it.
    pub(crate) fn wanted(&mut self, slot: usize) -> Option<&mut Batch> {
        let slot = &mut self.slots[slot];
        slot.batch.as_mut().filter(|_| !slot.abandoned)
    }

    /// Counts a part down; the last one completes the batch, or frees it if nobody wants it.
    pub(crate) fn finish_part(&mut self, at: usize) {
        let slot = &mut self.slots[at];
        slot.parts -= 1;
        if slot.parts > 0 {
            return;
        }
        if slot.abandoned {
            *slot = Slot::default();
            self.free.push(at);
        } else {
            self.wake.extend(slot.task.take());
        }
    }

    /// The tasks of complete batches, to be woken when nothing is borrowed any more.
    pub(super) fn take_wake(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.wake)
    }

    /// Gives their memory back, for the next time.
    pub(super) fn reuse_wake(&mut self, woken: Vec<Waker>) {
        if self.wake.is_empty() {
            self.wake = woken;
        }
    }

    /// Batches that have become complete since the last waking.
    pub(super) fn complete(&self) -> usize {
        self.wake.len()
    }

    /// Batches that are not complete, or have not been fetched.
    pub(super) fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// The batch, if it is complete; else this task is woken when it is.
    pub(super) fn poll(&mut self, at: usize, task: &Waker) -> Option<Batch> {
        let slot = &mut self.slots[at];
        if slot.parts > 0 {
            match &mut slot.task {
                Some(known) => known.clone_from(task),
                none => *none = Some(task.clone()),
            }
            return None;
        }
        let batch = slot.batch.take().expect("complete, and not yet taken");
        self.free.push(at);
        Some(batch)
    }

    /// Nobody waits for the batch any more.
    pub(super) fn abandon(&mut self, at: usize) {
        let slot = &mut self.slots[at];
        if slot.parts == 0 {
            *slot = Slot::default();
            self.free.push(at);
        } else {
            (slot.abandoned, slot.task) = (true, None);
        }
    }
}
