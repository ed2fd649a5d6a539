//! The batches that a session has in flight.
//!
//! A batch in flight lies in a *slot*, not in its future: a future that is dropped leaves its batch
//! there until the last answer has come. It is made of *parts*, the smallest number of things that the
//! fabric waits for, and complete when the last of them has ended.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

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
pub(crate) struct Slots {
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// Tasks whose batches are complete; woken when nothing is borrowed any more.
    wake: Vec<Waker>,
}

impl Slots {
    /// A slot for a batch that is about to be posted: to be filled, or given back.
    pub(crate) fn claim(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() - 1
        })
    }

    /// Nothing of the batch had to be posted.
    pub(crate) fn give_back(&mut self, slot: usize) {
        self.free.push(slot);
    }

    /// The batch of a claimed slot, made of so many parts.
    pub(crate) fn fill(&mut self, slot: usize, batch: Batch, parts: usize, task: &Waker) {
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

    /// Batches that have become complete since the last waking.
    pub(crate) fn complete(&self) -> usize {
        self.wake.len()
    }

    /// Batches that are not complete, or have not been fetched.
    pub(crate) fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn poll(&mut self, at: usize, task: &Waker) -> Option<Batch> {
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

    fn abandon(&mut self, at: usize) {
        let slot = &mut self.slots[at];
        if slot.parts == 0 {
            *slot = Slot::default();
            self.free.push(at);
        } else {
            (slot.abandoned, slot.task) = (true, None);
        }
    }
}

/// A fabric whose batches lie in slots.
pub(crate) trait Posts {
    /// Posts a batch; gives its slot, or the batch if it is complete already.
    fn submit(&self, batch: Batch, task: &Waker) -> Result<usize, Batch>;

    /// Looks at the slots. Nothing else is borrowed meanwhile.
    fn with_slots<R>(&self, look: impl FnOnce(&mut Slots) -> R) -> R;

    /// Wakes the tasks of complete batches, with nothing borrowed: a waker may do anything.
    fn wake_all(&self) {
        let mut wake = self.with_slots(|slots| std::mem::take(&mut slots.wake));
        wake.drain(..).for_each(Waker::wake);
        // Give the memory back, for the next time.
        self.with_slots(|slots| {
            if slots.wake.is_empty() {
                slots.wake = wake;
            }
        });
    }
}

/// A batch on its way. One that is never polled is never posted.
#[derive(Debug)]
pub(crate) struct Execute<'a, F: Posts> {
    fabric: &'a F,
    state: State,
}

#[derive(Debug)]
enum State {
    New(Batch),
    InFlight(usize),
    Done,
}

impl<'a, F: Posts> Execute<'a, F> {
    pub(crate) fn new(fabric: &'a F, batch: Batch) -> Execute<'a, F> {
        Execute { fabric, state: State::New(batch) }
    }
}

impl<F: Posts> Future for Execute<'_, F> {
    type Output = Batch;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Batch> {
        match std::mem::replace(&mut self.state, State::Done) {
            State::New(batch) => match self.fabric.submit(batch, context.waker()) {
                Ok(slot) => {
                    self.state = State::InFlight(slot);
                    Poll::Pending
                }
                Err(batch) => Poll::Ready(batch),
            },
            State::InFlight(at) => {
                match self.fabric.with_slots(|slots| slots.poll(at, context.waker())) {
                    Some(batch) => Poll::Ready(batch),
                    None => {
                        self.state = State::InFlight(at);
                        Poll::Pending
                    }
                }
            }
            State::Done => panic!("polled after completion"),
        }
    }
}

impl<F: Posts> Drop for Execute<'_, F> {
    fn drop(&mut self) {
        if let State::InFlight(at) = self.state {
            self.fabric.with_slots(|slots| slots.abandon(at));
        }
    }
}
