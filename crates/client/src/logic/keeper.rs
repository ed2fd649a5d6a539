//! The keeper of a process: talks to the master for all of its sessions, so that none has to do it
//! itself, nor has to be awake for it.
//!
//! It says again and again which sessions are there and what they act by (`Renew`), puts the views
//! that come back before them, and tells the master as soon as all of them have acknowledged one.
//! Between a session and its keeper stands a [`Gate`].
//!
//! * The master may hold its answer until there is news. While it does, there may be something to
//!   tell: a session was opened or shut out, or the newest view has been acknowledged. Then the
//!   keeper does not wait for the held answer any more and asks anew. Nothing is lost with that
//!   answer: views are asked for by number, and who is shut out is told every time.
//! * A session that has left is not named any more, but a question that names it may still be on
//!   its way and arrive after its `Close`. Names are never used twice, so an answer about it finds
//!   nobody here, and the master has to pay no heed to a session that it knows has ended.
//! * A master that answers at once is asked every [`Timing::pace`], one that is away more and more
//!   seldom, up to [`Timing::last_retry`]. Nothing ends on this side because time has passed.
//!
//! It waits by sleeps only and reads no clock. A future of [`Keeper::keep`] may be dropped at any
//! point; another one goes on.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use fusee_control::master::{MasterReply, MasterRequest, Pulse};
use fusee_control::rpc::RpcError;
use fusee_core::verbs::ClientId;
use fusee_core::view::{View, ViewError};
use futures_util::future::{join, select};
use futures_util::task::AtomicWaker;

use super::Gate;

/// How often to look whether a view has been acknowledged: first, and at last.
const FIRST_LOOK: Duration = Duration::from_micros(100);
const LAST_LOOK: Duration = Duration::from_millis(1);

/// How long a keeper waits for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// For an answer: longer than the master holds it, which is a quarter of the lease.
    pub deadline: Duration,
    /// Between two questions, if there is nothing to tell and the master does not hold its answers.
    pub pace: Duration,
    /// Between two questions at least, when sessions come and go: held ones take up room at the
    /// master.
    pub gap: Duration,
    /// Before a master that is away is asked again: first, and at last.
    pub first_retry: Duration,
    /// See [`Timing::first_retry`].
    pub last_retry: Duration,
}

impl Timing {
    /// So that a lease survives one answer that never comes.
    pub fn for_lease(lease: Duration) -> Timing {
        Timing {
            deadline: lease / 2,
            pace: lease / 20,
            gap: lease / 100,
            first_retry: lease / 200,
            last_retry: lease / 5,
        }
    }
}

/// What a keeper needs from outside.
pub trait Keeping {
    /// Waits for some time.
    fn sleep(&self, time: Duration) -> impl Future<Output = ()>;

    /// Asks the master. The future may be dropped; the request may take effect all the same.
    fn ask_master(
        &self,
        request: MasterRequest,
        deadline: Duration,
    ) -> impl Future<Output = Result<MasterReply, RpcError>>;
}

/// Keeps the sessions of a process in touch with the master.
#[derive(Debug)]
pub struct Keeper {
    timing: Timing,
    state: Mutex<State>,
    /// Wakes [`Keeper::keep`] when the list has changed.
    changed: AtomicWaker,
}

#[derive(Debug)]
struct State {
    view: Arc<View>,
    gates: Vec<Arc<Gate>>,
    /// Counts what happens to the list that the master should hear of soon.
    changes: u64,
}

/// What the master has been told.
struct Told {
    changes: u64,
    /// The view that all sessions acknowledged; 0 for none.
    acknowledged: u64,
}

impl Keeper {
    /// A keeper without sessions. The view has passed [`View::check`].
    pub fn new(view: View, timing: Timing) -> Keeper {
        let state = State { view: Arc::new(view), gates: Vec::new(), changes: 0 };
        Keeper { timing, state: Mutex::new(state), changed: AtomicWaker::new() }
    }

    /// Locks without regard to panics: the state is valid at every step.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The newest view that this process has heard of.
    pub fn view(&self) -> Arc<View> {
        self.state().view.clone()
    }

    /// From now on a session is there. It was opened with a view that has passed [`View::check`].
    pub fn open(&self, gate: Arc<Gate>) {
        let mut state = self.state();
        let view = gate.view();
        state.gates.push(gate);
        if view.number > state.view.number {
            state.view = view;
        }
        // Whoever has the older view of the two gets the newer one.
        state.publish();
        state.changes += 1;
        drop(state);
        self.changed.wake();
    }

    /// A session ends, and is not named any more. To be called before the master hears of it.
    pub fn close(&self, client: ClientId) {
        // Not worth a question: the master learns it from the session itself.
        self.state().gates.retain(|gate| gate.client() != client);
    }

    /// Works for the sessions; never ends.
    pub async fn keep(&self, outside: &impl Keeping) {
        let (mut retry, mut broken) = (self.timing.first_retry, 0);
        loop {
            self.somebody().await;
            let (request, told) = self.renewal();
            let mut asking = pin!(outside.ask_master(request, self.timing.deadline));
            let mut more = pin!(self.more_to_tell(&told, outside));
            let (mut pace, mut paced) = (pin!(outside.sleep(self.timing.pace)), false);
            // The pace runs beside the question: after an answer that was held it is over.
            let reply = poll_fn(|context| {
                paced = paced || pace.as_mut().poll(context).is_ready();
                match asking.as_mut().poll(context) {
                    Poll::Ready(reply) => Poll::Ready(Some(reply)),
                    Poll::Pending => more.as_mut().poll(context).map(|()| None),
                }
            });
            let Some(reply) = reply.await else { continue };
            match self.take(reply, &mut broken) {
                // Most sessions acknowledge it at once, and one question does for both.
                Some(News::View) => {
                    select(pin!(outside.sleep(LAST_LOOK)), more).await;
                }
                Some(News::Nothing) if paced => {}
                Some(News::Nothing) => {
                    select(pace, more).await;
                }
                None => {
                    outside.sleep(retry).await;
                    retry = (retry * 2).min(self.timing.last_retry);
                    continue;
                }
            }
            retry = self.timing.first_retry;
        }
    }

    /// Waits until there is a session to speak for.
    async fn somebody(&self) {
        poll_fn(|context| {
            self.changed.register(context.waker());
            match self.state().open().next() {
                Some(_) => Poll::Ready(()),
                None => Poll::Pending,
            }
        })
        .await;
    }

    fn renewal(&self) -> (MasterRequest, Told) {
        let state = self.state();
        let sessions: Vec<Pulse> = state.open().map(|gate| gate.pulse()).collect();
        // By what is told, not by another look: that could find an acknowledgement which the
        // pulse does not have yet.
        let all = sessions.iter().all(|pulse| Gate::acknowledged(pulse, &state.view));
        let newer_than = state.view.number;
        let acknowledged = if all { newer_than } else { 0 };
        let told = Told { changes: state.changes, acknowledged };
        (MasterRequest::Renew { sessions, newer_than }, told)
    }

    /// Waits until the master should hear more than it was told, which is the case soon after a
    /// session has come, and once all have acknowledged the newest view.
    async fn more_to_tell(&self, told: &Told, outside: &impl Keeping) {
        let changed = poll_fn(|context| {
            self.changed.register(context.waker());
            match self.state().changes {
                changes if changes == told.changes => Poll::Pending,
                _ => Poll::Ready(()),
            }
        });
        let changed = pin!(join(outside.sleep(self.timing.gap), changed));
        select(changed, pin!(self.acknowledgement(told, outside))).await;
    }

    /// Waits until all sessions have acknowledged a newer view than the master was told.
    async fn acknowledgement(&self, told: &Told, outside: &impl Keeping) {
        // Needs no waking: it is this very task that puts newer views into the state, and with
        // those that a new session brings comes a change of the list.
        let newer = |_: &mut Context<'_>| match self.state().view.number > told.acknowledged {
            true => Poll::Ready(()),
            false => Poll::Pending,
        };
        poll_fn(newer).await;
        let mut look = FIRST_LOOK;
        while !self.state().open().all(|gate| gate.acknowledges()) {
            outside.sleep(look).await;
            look = (look * 3 / 2).min(LAST_LOOK);
        }
    }

    /// What an answer brings; `None` if there is none.
    fn take(&self, reply: Result<MasterReply, RpcError>, broken: &mut u64) -> Option<News> {
        let (view, expelled) = match reply {
            Ok(MasterReply::Renewed { view, expelled }) => (view, expelled),
            other => {
                tracing::debug!(?other, "the master does not renew the sessions");
                return None;
            }
        };
        let mut state = self.state();
        // First: a memory node that joins later does not know whom the others shut out before, so
        // such a session must never get to hear of it.
        for gate in state.open().filter(|gate| expelled.contains(&gate.client())) {
            tracing::warn!(client = %gate.client(), "the cluster has shut a session out");
            gate.expel();
        }
        Some(match view {
            Some(view) => state.follow(view, broken),
            None => News::Nothing,
        })
    }
}

/// What an answer brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    View,
    Nothing,
}

impl State {
    /// The sessions to speak for: those that are shut out have no say any more.
    fn open(&self) -> impl Iterator<Item = &Arc<Gate>> {
        self.gates.iter().filter(|gate| !gate.is_expelled())
    }

    /// Takes a view from the master; it may be broken.
    fn follow(&mut self, view: View, broken: &mut u64) -> News {
        if view.number <= self.view.number {
            return News::Nothing;
        }
        let same = view.cluster == self.view.cluster;
        let other = ViewError { what: "it is of another cluster" };
        if let Err(error) = view.check().and(if same { Ok(()) } else { Err(other) }) {
            if *broken != view.number {
                tracing::error!(number = view.number, %error, "the master's view is ignored");
            }
            *broken = view.number;
            return News::Nothing;
        }
        self.view = Arc::new(view);
        self.publish();
        News::View
    }

    fn publish(&self) {
        for gate in self.open() {
            gate.publish(&self.view);
        }
    }
}
