//! What wakes a session's thread that sleeps in a turn of its fabric, and costs one that does not next to
//! nothing.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Wake, Waker};

use mio::{Registry, Token};

/// The thread works: nobody has to wake it.
const AWAKE: u8 = 0;
/// The thread sleeps in a turn, or is about to.
const ASLEEP: u8 = 1;
/// Somebody has woken it since the last turn.
const WOKEN: u8 = 2;

/// The token of the alarm's events, which nobody has to look at.
pub(crate) const ALARM: Token = Token(usize::MAX);

/// Wakes one thread.
#[derive(Debug)]
pub(crate) struct Alarm {
    state: AtomicU8,
    waker: mio::Waker,
}

impl Alarm {
    /// The alarm of the thread that polls this registry.
    pub(crate) fn new(registry: &Registry) -> io::Result<Arc<Alarm>> {
        let waker = mio::Waker::new(registry, ALARM)?;
        Ok(Arc::new(Alarm { state: AtomicU8::new(AWAKE), waker }))
    }

    /// For tasks of any thread.
    pub(crate) fn waker(self: &Arc<Self>) -> Waker {
        self.clone().into()
    }

    /// Whether somebody has used it since the last turn.
    pub(crate) fn has_rung(&self) -> bool {
        self.state.load(Ordering::Relaxed) != AWAKE
    }

    /// Before the thread sleeps; false: it must not, somebody has used it since the last turn.
    pub(crate) fn set(&self) -> bool {
        // Acquire: see what was done before the waking.
        let acquire = Ordering::Acquire;
        let asleep = ASLEEP;
        self.state.compare_exchange(AWAKE, asleep, acquire, acquire).is_ok()
    }

    /// The thread is awake: who wakes it from here on needs no system call for it.
    pub(crate) fn stop(&self) {
        self.state.store(AWAKE, Ordering::Release);
    }

    /// At the end of a turn: who used it up to here is answered by that, since the caller polls its
    /// tasks next.
    pub(crate) fn answer(&self) {
        self.state.swap(AWAKE, Ordering::AcqRel);
    }
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Release: what the waking thread did before is seen by the woken one. The system call is
        // needed by a sleeper only.
        if self.state.swap(WOKEN, Ordering::AcqRel) == ASLEEP
            && let Err(error) = self.waker.wake()
        {
            tracing::error!(%error, "cannot wake a session");
        }
    }
}
