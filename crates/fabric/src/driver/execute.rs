//! The future of a batch.

use std::pin::Pin;
use std::task::{Context, Poll};

use fusee_core::verbs::Batch;

use super::{Driver, Link};

/// A batch in flight, or about to be. It is queued at the first poll; a batch that is never polled is never posted.
#[derive(Debug)]
pub(crate) struct Execute<'a, L: Link> {
    driver: &'a Driver<L>,
    state: State,
}

#[derive(Debug)]
enum State {
    New(Batch),
    InFlight(usize),
    Done,
}

impl<'a, L: Link> Execute<'a, L> {
    pub(crate) fn new(driver: &'a Driver<L>, batch: Batch) -> Execute<'a, L> {
        Execute { driver, state: State::New(batch) }
    }
}

impl<L: Link> Future for Execute<'_, L> {
    type Output = Batch;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Batch> {
        match std::mem::replace(&mut self.state, State::Done) {
            State::New(batch) => match self.driver.submit(batch, context.waker()) {
                Ok(slot) => {
                    self.state = State::InFlight(slot);
                    Poll::Pending
                }
                Err(batch) => Poll::Ready(batch),
            },
            State::InFlight(at) => {
                match self.driver.with_slots(|slots| slots.poll(at, context.waker())) {
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

impl<L: Link> Drop for Execute<'_, L> {
    fn drop(&mut self) {
        if let State::InFlight(at) = self.state {
            self.driver.with_slots(|slots| slots.abandon(at));
        }
    }
}
