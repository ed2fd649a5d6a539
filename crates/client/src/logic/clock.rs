//! The clocks that end the waits of operations.
//!
//! An operation can wait for others several times: for the winner of a round, for a block, for a view, and again in the
//! next view. One clock limits all waits of the operation together. It starts with the first wait, so an operation that
//! never waits reads no clock. A caller can set a deadline instead; then all waits of all operations within it end at
//! that deadline.
//!
//! The operations of a session run concurrently, and a wait belongs to the operation whose future is being polled. So
//! each poll sets the operation's clock as the current one, and removes it afterwards ([`OperationClocks::scoped`]).

// Promise API-28: One clock or deadline ends all waits of an operation.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;

use fusee_core::mutant::{Mutant, removed};

/// The clock of one operation, or of all operations within one deadline.
#[derive(Clone, Copy, Debug)]
struct OperationClock {
    /// The time at which all waits of the operation end; [`OperationClock::IDLE`] before the first wait.
    end: Duration,
    /// Whether `end` is a deadline that a caller has set.
    is_deadline: bool,
}

impl OperationClock {
    const IDLE: Duration = Duration::MAX;
}

/// The clocks of a session's operations, of which one is current.
#[derive(Debug)]
pub(super) struct OperationClocks {
    /// The longest time that all waits of an operation without a deadline take together.
    op_timeout: Duration,
    /// The clock of the operation that is being polled now.
    polled: Cell<Option<OperationClock>>,
}

impl OperationClocks {
    pub fn new(op_timeout: Duration) -> OperationClocks {
        OperationClocks { op_timeout, polled: Cell::new(None) }
    }

    /// Returns for how long the operation that is being polled can still wait; `None` if it must not wait any more.
    pub fn left(&self, now: Duration) -> Option<Duration> {
        // There is no current clock if a session works outside of its operations.
        let Some(mut clock) = self.polled.get() else { return Some(self.op_timeout) };
        if clock.end == OperationClock::IDLE
            || (!clock.is_deadline && removed(Mutant::ClockBeginsAnew))
        {
            clock.end = now.saturating_add(self.op_timeout);
            self.polled.set(Some(clock));
        }
        clock.end.checked_sub(now).filter(|left| !left.is_zero())
    }

    /// Runs an operation with a new clock, or with the clock of the enclosing deadline if there is one.
    pub async fn timed<F: Future>(&self, operation: Pin<&mut F>) -> F::Output {
        let own = OperationClock { end: OperationClock::IDLE, is_deadline: false };
        let clock = self.polled.get().filter(|outer| outer.is_deadline).unwrap_or(own);
        self.scoped(clock, operation).await
    }

    /// Runs operations whose waits end at `end`, or at an enclosing deadline if that is earlier.
    pub async fn until<F: Future>(&self, end: Duration, operations: Pin<&mut F>) -> F::Output {
        let outer = self.polled.get().filter(|outer| outer.is_deadline);
        let end = outer.map_or(end, |outer| outer.end.min(end));
        self.scoped(OperationClock { end, is_deadline: true }, operations).await
    }

    async fn scoped<F: Future>(
        &self,
        mut clock: OperationClock,
        mut future: Pin<&mut F>,
    ) -> F::Output {
        poll_fn(move |context| {
            let _polls = ClockScope::begin(self, &mut clock);
            future.as_mut().poll(context)
        })
        .await
    }
}

/// One poll of an operation. Dropping the guard, even by a panic, makes the clock of the enclosing operation current
/// again.
struct ClockScope<'c> {
    clocks: &'c OperationClocks,
    clock: &'c mut OperationClock,
    outer: Option<OperationClock>,
}

impl<'c> ClockScope<'c> {
    fn begin(clocks: &'c OperationClocks, clock: &'c mut OperationClock) -> ClockScope<'c> {
        let outer = clocks.polled.replace(Some(*clock));
        ClockScope { clocks, clock, outer }
    }
}

impl Drop for ClockScope<'_> {
    fn drop(&mut self) {
        if let Some(clock) = self.clocks.polled.replace(self.outer) {
            *self.clock = clock;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use futures_util::future::join;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(5);

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    /// Returns the time that is left at each of the given times.
    async fn asks(clocks: &OperationClocks, times: &[u64]) -> Vec<Option<u64>> {
        let mut answers = Vec::new();
        for time in times {
            answers.push(clocks.left(secs(*time)).map(|left| left.as_secs()));
            let mut is_later = false;
            poll_fn(|context| {
                context.waker().wake_by_ref();
                if std::mem::replace(&mut is_later, true) { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
        }
        answers
    }

    fn run<T>(future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        loop {
            let polled = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            if let Poll::Ready(done) = polled {
                return done;
            }
        }
    }

    #[test]
    fn the_clock_starts_with_the_first_wait_and_never_again() {
        let clocks = OperationClocks::new(TIMEOUT);
        let left = run(clocks.timed(pin!(asks(&clocks, &[100, 103, 105, 107]))));
        assert_eq!(left, [Some(5), Some(2), None, None]);
        let left = run(clocks.timed(pin!(asks(&clocks, &[107]))));
        assert_eq!(left, [Some(5)], "another operation");
        assert_eq!(clocks.left(secs(9)), Some(TIMEOUT), "no operation");
    }

    #[test]
    fn operations_side_by_side_have_a_clock_each() {
        let clocks = OperationClocks::new(TIMEOUT);
        let first = async { clocks.timed(pin!(asks(&clocks, &[10, 14]))).await };
        let second = async { clocks.timed(pin!(asks(&clocks, &[12, 15]))).await };
        let (first, second) = run(join(first, second));
        assert_eq!((first, second), (vec![Some(5), Some(1)], vec![Some(5), Some(2)]));
    }

    #[test]
    fn a_deadline_holds_for_all_operations_within_it_and_for_no_other() {
        let clocks = OperationClocks::new(TIMEOUT);
        let within = async {
            let two = async {
                let first = clocks.timed(pin!(asks(&clocks, &[11]))).await;
                let second = clocks.until(secs(90), pin!(asks(&clocks, &[12, 13]))).await;
                (first, second)
            };
            clocks.until(secs(13), pin!(two)).await
        };
        let beside = async { clocks.timed(pin!(asks(&clocks, &[11, 15]))).await };
        let ((first, second), beside) = run(join(within, beside));
        assert_eq!((first, second), (vec![Some(2)], vec![Some(1), None]), "the earlier one counts");
        assert_eq!(beside, [Some(5), Some(1)]);
    }

    #[test]
    fn a_panic_leaves_no_clock_behind() {
        let clocks = OperationClocks::new(TIMEOUT);
        let broken = || poll_fn(|_| -> Poll<()> { panic!("in an operation") });
        let panics = || run(clocks.until(secs(1), pin!(broken())));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).is_err());
        assert_eq!(clocks.left(secs(9)), Some(TIMEOUT));
    }
}
