//! The batches that a session has in flight.
//!
//! A batch in flight is kept in a *slot*, not in its future: if the future is dropped, the batch stays in the slot
//! until the last answer has come. A batch consists of *parts*, whose answers the fabric awaits one by one. The
//! batch is complete when its last part has ended.

use std::task::Waker;

use fusee_core::verbs::VerbBatch;

/// A batch in flight.
#[derive(Debug, Default)]
struct BatchSlot {
    /// The batch; `None` if the slot is free or about to be filled.
    batch: Option<VerbBatch>,
    /// The number of the batch's parts that have not ended.
    parts: usize,
    /// The task that waits for the batch; `None` if there is none, or if its future was dropped.
    task: Option<Waker>,
    /// Whether the batch's future was dropped.
    abandoned: bool,
}

/// A session's batches in flight.
#[derive(Debug, Default)]
pub struct BatchSlots {
    slots: Vec<BatchSlot>,
    free: Vec<usize>,
    /// The tasks whose batches are complete. They are woken when the driver's state is not borrowed.
    wake: Vec<Waker>,
}

impl BatchSlots {
    /// Claims a slot for a batch that is about to be posted. The caller must fill the slot or give it back.
    pub(super) fn claim(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.slots.push(BatchSlot::default());
            self.slots.len() - 1
        })
    }

    /// Gives a claimed slot back, because no verb of its batch had to be posted.
    pub(super) fn give_back(&mut self, slot: usize) {
        self.free.push(slot);
    }

    /// Puts a batch of `parts` parts into a claimed slot.
    pub(super) fn fill(&mut self, slot: usize, batch: VerbBatch, parts: usize, task: &Waker) {
        debug_assert!(parts > 0);
        let task = Some(task.clone());
        self.slots[slot] = BatchSlot { batch: Some(batch), parts, task, abandoned: false };
    }

    /// Returns a batch in flight, even if its future was dropped.
    pub(crate) fn batch(&mut self, slot: usize) -> &mut VerbBatch {
        self.slots[slot].batch.as_mut().expect("a slot with parts has a batch")
    }

    /// Returns a batch in flight, unless its future was dropped.
    pub(crate) fn awaited_batch(&mut self, slot: usize) -> Option<&mut VerbBatch> {
        let slot = &mut self.slots[slot];
        slot.batch.as_mut().filter(|_| !slot.abandoned)
    }

    /// Counts one part as finished. The last part completes the batch or, if the batch's future was dropped, frees
    /// the slot.
    pub(crate) fn finish_part(&mut self, at: usize) {
        let slot = &mut self.slots[at];
        slot.parts -= 1;
        if slot.parts > 0 {
            return;
        }
        if slot.abandoned {
            *slot = BatchSlot::default();
            self.free.push(at);
        } else {
            self.wake.extend(slot.task.take());
        }
    }

    /// Takes the tasks of complete batches. The caller wakes them when the driver's state is not borrowed.
    pub(super) fn take_wake(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.wake)
    }

    /// Takes the emptied list of woken tasks back, to use the list's memory again.
    pub(super) fn reuse_wake(&mut self, woken: Vec<Waker>) {
        if self.wake.is_empty() {
            self.wake = woken;
        }
    }

    /// Returns the number of batches that became complete after the last wake-up of tasks.
    pub(super) fn complete(&self) -> usize {
        self.wake.len()
    }

    /// Returns the number of batches that are not complete or that their futures have not fetched.
    pub(super) fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns the batch if it is complete. Otherwise wakes this task when the batch is complete.
    pub(super) fn poll(&mut self, at: usize, task: &Waker) -> Option<VerbBatch> {
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

    /// Records that the future of the batch was dropped.
    pub(super) fn abandon(&mut self, at: usize) {
        let slot = &mut self.slots[at];
        if slot.parts == 0 {
            *slot = BatchSlot::default();
            self.free.push(at);
        } else {
            (slot.abandoned, slot.task) = (true, None);
        }
    }
}
