//! The alarm that wakes a session's thread when the thread sleeps until its fabric has an answer. While the thread is
//! awake, a wake-up needs no system call.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Wake, Waker};

use mio::{Registry, Token};

/// The thread is awake, so a wake-up needs no system call.
const AWAKE: u8 = 0;
/// The thread sleeps in a turn, or is about to sleep.
const ASLEEP: u8 = 1;
/// The thread was woken after the end of its last turn.
const WOKEN: u8 = 2;

/// The token of the alarm's events, which need no handling.
pub(crate) const ALARM: Token = Token(usize::MAX);

/// An alarm for one thread.
#[derive(Debug)]
pub(crate) struct Alarm {
    state: AtomicU8,
    waker: mio::Waker,
}

impl Alarm {
    /// Makes the alarm for the thread that polls this registry.
    pub(crate) fn new(registry: &Registry) -> io::Result<Arc<Alarm>> {
        let waker = mio::Waker::new(registry, ALARM)?;
        Ok(Arc::new(Alarm { state: AtomicU8::new(AWAKE), waker }))
    }

    /// Returns a waker for tasks. Any thread can use it.
    pub(crate) fn waker(self: &Arc<Self>) -> Waker {
        self.clone().into()
    }

    /// Returns whether the alarm was used after the last turn.
    pub(crate) fn has_rung(&self) -> bool {
        self.state.load(Ordering::Relaxed) != AWAKE
    }

    /// Prepares the thread for sleep. Returns false if the alarm was used after the last turn; then the thread must
    /// not sleep.
    pub(crate) fn set(&self) -> bool {
        // Acquire: the thread sees the stores that precede the wake-up.
        let acquire = Ordering::Acquire;
        let asleep = ASLEEP;
        self.state.compare_exchange(AWAKE, asleep, acquire, acquire).is_ok()
    }

    /// Marks the thread as awake. Later wake-ups need no system call.
    pub(crate) fn stop(&self) {
        self.state.store(AWAKE, Ordering::Release);
    }

    /// Ends a turn and clears all wake-ups so far. None is lost, because the caller polls its tasks next.
    pub(crate) fn answer(&self) {
        self.state.swap(AWAKE, Ordering::AcqRel);
    }
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Release: the woken thread sees the waking thread's earlier stores. The system call is needed only if the
        // thread sleeps.
        if self.state.swap(WOKEN, Ordering::AcqRel) == ASLEEP
            && let Err(error) = self.waker.wake()
        {
            tracing::error!(%error, "cannot wake a session");
        }
    }
}
