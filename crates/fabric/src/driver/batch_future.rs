//! The future of a batch that a driver executes.

use std::pin::Pin;
use std::task::{Context, Poll};

use fusee_core::verbs::VerbBatch;

use super::{Driver, FabricLink};

/// A batch before or during its flight. The first poll queues the batch; a batch that is never polled is never
/// posted.
#[derive(Debug)]
pub(crate) struct DriverBatchFuture<'a, L: FabricLink> {
    driver: &'a Driver<L>,
    state: BatchFutureState,
}

#[derive(Debug)]
enum BatchFutureState {
    New(VerbBatch),
    InFlight(usize),
    Done,
}

impl<'a, L: FabricLink> DriverBatchFuture<'a, L> {
    pub(crate) fn new(driver: &'a Driver<L>, batch: VerbBatch) -> DriverBatchFuture<'a, L> {
        DriverBatchFuture { driver, state: BatchFutureState::New(batch) }
    }
}

impl<L: FabricLink> Future for DriverBatchFuture<'_, L> {
    type Output = VerbBatch;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<VerbBatch> {
        match std::mem::replace(&mut self.state, BatchFutureState::Done) {
            BatchFutureState::New(batch) => match self.driver.submit(batch, context.waker()) {
                Ok(slot) => {
                    self.state = BatchFutureState::InFlight(slot);
                    Poll::Pending
                }
                Err(batch) => Poll::Ready(batch),
            },
            BatchFutureState::InFlight(at) => {
                match self.driver.with_slots(|slots| slots.poll(at, context.waker())) {
                    Some(batch) => Poll::Ready(batch),
                    None => {
                        self.state = BatchFutureState::InFlight(at);
                        Poll::Pending
                    }
                }
            }
            BatchFutureState::Done => panic!("polled after completion"),
        }
    }
}

impl<L: FabricLink> Drop for DriverBatchFuture<'_, L> {
    fn drop(&mut self) {
        if let BatchFutureState::InFlight(at) = self.state {
            self.driver.with_slots(|slots| slots.abandon(at));
        }
    }
}
