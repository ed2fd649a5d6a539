//! The keeper of a process. It talks to the master for all sessions of the process, so that no session has to do that
//! itself, or to be awake for it.
//!
//! The keeper regularly reports to the master which sessions there are, and in which view and epoch they are pinned
//! (`Heartbeat`). It passes the views and epochs of the answers on to the sessions, and tells the master as soon as all
//! of them have acknowledged a view or an epoch. A [`SessionGate`] connects each session with the keeper.
//!
//! A session that waits until it can reuse memory names the moment by the number of the last heartbeat to the master
//! ([`SessionGate::mark`]). The answer to a later heartbeat gives the newest epoch at the time when that heartbeat
//! arrived. In every process, all operations that had begun before the mark belong to this epoch or an earlier one. So
//! when these epochs have passed everywhere, all those operations have ended.
//!
//! * The master is allowed to hold its answer until it has something new to tell. If the keeper has something to tell
//!   meanwhile (a session was opened or fenced, or the newest view has been acknowledged), it stops waiting for the
//!   held answer and sends another heartbeat. Nothing is lost with the held answer: heartbeats ask for views by number,
//!   and every answer names the fenced sessions.
//! * A view comes as its difference to the keeper's newest view. The keeper drops a difference that does not lead to a
//!   valid view, and asks for the newest view as a whole.
//! * A session gets a view only with an answer to a heartbeat that names the session, and only if the answer does not
//!   say that the session is fenced. The keeper knew the view when it sent the heartbeat, or the answer brings the
//!   view. A view that comes with the opening of a new session goes only to that session at first. The reason: memory
//!   nodes that have joined later do not know a session that was fenced, recovered and forgotten, so that session must
//!   learn that it is fenced before it learns of such a node.
//! * A session that has left is not named any more, but a heartbeat that names it can still be under way and arrive
//!   after the session's `Close`. Ids are never used twice, so an answer about that session concerns no other session
//!   of this process, and the master can ignore a session that it knows has ended.
//! * When some session of the cluster is short of memory, the master's answers contain a call for memory. The keeper
//!   then hands on some of the blocks that sessions have offered ([`hand_on`](super::BlockOffers::hand_on)), before the
//!   next heartbeat, and repeats that until the master has acknowledged them.
//! * If the master answers at once, the keeper sends a heartbeat every [`KeeperTiming::pace`]; if the master does not
//!   answer, ever more rarely, down to once per [`KeeperTiming::last_retry`]. The keeper never ends a session because
//!   time has passed.
//!
//! * The lease of a session is valid for nine tenths of its length ([`usable_lease`]). It begins when the keeper sent
//!   the heartbeat that named the session and was answered; or at the *contact*, if that is earlier. The contact is the
//!   latest time such that more than half of the memory nodes have received an answer of the master given after it, and
//!   barred no member when they reported that. The master waits for a whole lease, from the moment at which the
//!   heartbeat arrived, so the speeds of the two clocks are allowed to differ by a tenth.
//!
//! The keeper waits by sleeps, and reads a clock for leases only. A future of [`Keeper::keep`] can be dropped at any
//! point; another one continues its work.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use fusee_control::master::{ClusterEpochs, MasterReply, MasterRequest, SessionHeartbeat};
use fusee_control::rpc::RpcError;
use fusee_core::mutant::{Mutant, removed};
use fusee_core::verbs::ClientId;
use fusee_core::view::update::ViewUpdate;
use fusee_core::view::{View, ViewError};
use futures_util::future::{join, join_all, select};
use futures_util::task::AtomicWaker;

use super::SessionGate;

/// First and longest pause between checks whether all sessions have acknowledged a view.
const FIRST_LOOK: Duration = Duration::from_micros(100);
const LAST_LOOK: Duration = Duration::from_millis(1);
/// Limit of heartbeats whose epochs are remembered until these have passed. If there are more, the oldest heartbeat is
/// forgotten, and its marks pass with a later one.
const MAX_MARKS: usize = 256;
/// Limit of waits for the offers of sessions that look for memory themselves. After that, the keeper acknowledges a
/// call without these offers.
const MOST_WAITS: u32 = 4;

/// The times for which the keeper waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeeperTiming {
    /// Longest wait for an answer. The master holds an answer back for up to a quarter of the lease, which is less than
    /// this wait.
    pub deadline: Duration,
    /// Time between two heartbeats, if there is nothing to tell and the master does not hold its answers.
    pub pace: Duration,
    /// Shortest time between two heartbeats, when sessions come and go or wait for epochs to pass. It is limited
    /// because heartbeats with held answers take up room in the master.
    pub gap: Duration,
    /// First pause before a master that does not answer is asked again.
    pub first_retry: Duration,
    /// Longest pause before a master that does not answer is asked again.
    pub last_retry: Duration,
}

impl KeeperTiming {
    /// Returns the timing for a lease, chosen so that a lease does not run out because one answer is lost.
    pub fn for_lease(lease: Duration) -> KeeperTiming {
        KeeperTiming {
            deadline: lease / 2,
            pace: lease / 20,
            gap: lease / 100,
            first_retry: lease / 200,
            last_retry: lease / 5,
        }
    }
}

/// Returns for how long a session is allowed to rely on a lease, from the beginning of the lease.
pub fn usable_lease(lease: Duration) -> Duration {
    lease - lease / 10
}

/// Returns the end of a session's lease, if the request for it was sent at `asked_at`, and the lease began `behind_ms`
/// milliseconds before that.
pub fn lease_end(asked_at: Duration, lease_ms: u64, behind_ms: u64) -> Duration {
    let until = asked_at.saturating_add(usable_lease(Duration::from_millis(lease_ms)));
    until.saturating_sub(Duration::from_millis(behind_ms))
}

/// The environment of the keeper: a clock, pauses, and requests to the master.
pub trait KeeperEnvironment {
    /// Returns the time by the clock that this process's sessions use, or a little earlier.
    fn now(&self) -> Duration;

    /// Waits for `time`.
    fn sleep(&self, time: Duration) -> impl Future<Output = ()>;

    /// Sends a request to the master. If the future is dropped, the request can still take effect.
    fn ask_master(
        &self,
        request: MasterRequest,
        deadline: Duration,
    ) -> impl Future<Output = Result<MasterReply, RpcError>>;
}

/// The keeper of a process: talks to the master for all sessions of the process.
#[derive(Debug)]
pub struct Keeper {
    state: Mutex<KeeperState>,
    /// Wakes [`Keeper::keep`] when a session was added, wants a heartbeat to be sent, or has blocks to hand on at once.
    changed: Arc<AtomicWaker>,
}

#[derive(Debug)]
struct KeeperState {
    timing: KeeperTiming,
    /// The timing for the longest leases, an upper bound of `timing`, because views have to arrive soon even if leases
    /// are long.
    longest: KeeperTiming,
    view: Arc<View>,
    gates: Vec<Arc<SessionGate>>,
    /// Counter of those changes to the list of sessions of which the master should hear soon.
    changes: u64,
    epochs: ClusterEpochs,
    /// Number of heartbeats that the keeper has sent to the master.
    asked: u64,
    /// Heartbeats whose epochs have not passed yet, and the last heartbeat whose epoch has passed (`passed`) or is
    /// settled (`settled`); see [`tell_passed`](super::SessionMarks::tell_passed).
    passed: QuestionEpochs,
    settled: QuestionEpochs,
    /// The number of the last call for memory that the keeper has acknowledged.
    acked: u64,
    /// The number of the call for memory that is not acknowledged yet, and how often the keeper has waited for sessions
    /// to offer blocks for it.
    waited_for_offers: (u64, u32),
    /// Whether a difference did not lead from `view` to a valid view, so that the next view has to come as a whole.
    wants_whole: bool,
}

/// Heartbeats to the master, each with the newest epoch at the time when it arrived there.
#[derive(Debug, Default)]
struct QuestionEpochs {
    waiting: VecDeque<(u64, u64)>,
    /// The number of the last heartbeat whose epoch has passed.
    over: u64,
}

impl QuestionEpochs {
    fn push(&mut self, question: u64, epoch: u64) {
        if self.waiting.len() == MAX_MARKS {
            self.waiting.pop_front();
        }
        self.waiting.push_back((question, epoch));
    }

    /// Removes all heartbeats with epochs before `until`. Returns the last heartbeat whose epoch has passed.
    fn pass(&mut self, until: u64) -> u64 {
        let until = if removed(Mutant::EpochsPassEarly) { until + 1 } else { until };
        while let Some((question, _)) = self.waiting.front().filter(|(_, epoch)| *epoch < until) {
            self.over = *question;
            self.waiting.pop_front();
        }
        self.over
    }
}

/// The content of a heartbeat to the master, as far as the keeper needs it later.
struct SentHeartbeat {
    changes: u64,
    /// The number of the keeper's newest view, if all sessions had acknowledged it when the heartbeat was sent;
    /// otherwise 0.
    acknowledged: u64,
    /// The epoch before which no session's operations were pinned when the heartbeat was sent.
    pinned_in: u64,
    /// The number of the heartbeat; and whether some session waited for epochs to pass.
    question: u64,
    reclaims: bool,
    acked: u64,
    /// The newest view that the keeper knew when it sent the heartbeat.
    view: Arc<View>,
    /// The sessions that the heartbeat named, and the time when it was sent.
    named: Vec<ClientId>,
    at: Duration,
}

impl Keeper {
    /// Makes a keeper without sessions, with the timing for the longest leases. The view has passed
    /// [`View::check`].
    pub fn new(view: View, timing: KeeperTiming) -> Keeper {
        let state = KeeperState {
            timing,
            longest: timing,
            view: Arc::new(view),
            gates: Vec::new(),
            changes: 0,
            epochs: ClusterEpochs::default(),
            asked: 0,
            passed: QuestionEpochs::default(),
            settled: QuestionEpochs::default(),
            acked: 0,
            waited_for_offers: (0, 0),
            wants_whole: false,
        };
        Keeper { state: Mutex::new(state), changed: Arc::default() }
    }

    /// Locks the state. A lock that was poisoned by a panic is accepted, because the state is valid after every step.
    fn state(&self) -> MutexGuard<'_, KeeperState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn timing(&self) -> KeeperTiming {
        self.state().timing
    }

    /// Adapts the keeper's waiting times to the length of a lease that the master has told.
    pub fn follow_lease(&self, lease_ms: u64) {
        self.state().follow_lease(lease_ms);
    }

    /// Returns the newest view that this process knows.
    pub fn view(&self) -> Arc<View> {
        self.state().view.clone()
    }

    /// Adds a session. The view that it was opened with has passed [`View::check`].
    pub fn open(&self, gate: Arc<SessionGate>) {
        let mut state = self.state();
        let view = gate.view();
        gate.questions.asks(state.asked);
        gate.set_keeper(self.changed.clone());
        state.epochs.newest = state.epochs.newest.max(gate.epoch());
        state.gates.push(gate);
        if view.number > state.view.number {
            state.view = view;
        }
        // All sessions get the newest epoch now; the other sessions get a newer view with the next answer.
        let newest = state.epochs.newest;
        state.open().for_each(|gate| gate.publish_epoch(newest));
        state.changes += 1;
        drop(state);
        self.changed.wake();
    }

    /// Removes a session that ends, so that heartbeats do not name it any more. Must be called before the master hears
    /// of the end.
    pub fn close(&self, client: ClientId) {
        // Removing the session causes no heartbeat, because the session itself tells the master.
        self.state().gates.retain(|gate| gate.client() != client);
    }

    /// Tells the sessions whether memory is short. A call for memory by the master overrides that.
    pub fn tell_short(&self, is_short: bool) {
        self.state().open().for_each(|gate| gate.tell_short(is_short));
    }

    /// Talks to the master for the sessions; never returns.
    pub async fn keep(&self, outside: &impl KeeperEnvironment) {
        let mut retry = self.timing().first_retry;
        let mut broken = 0;
        let mut called = CallHeard::default();
        loop {
            self.wait_for_session().await;
            let is_acked = self.hand_on(called, outside).await;
            let (request, told) = self.heartbeat(outside.now());
            let mut asking = pin!(outside.ask_master(request, self.timing().deadline));
            let mut more = pin!(self.more_to_tell(&told, outside));
            let pace = if told.reclaims { self.timing().gap } else { self.timing().pace };
            let mut pace = pin!(outside.sleep(pace));
            let mut paced = false;
            // The pause runs concurrently with the wait for the answer, so it is over when an answer arrives that the
            // master has held back.
            let reply = poll_fn(|context| {
                paced = paced || pace.as_mut().poll(context).is_ready();
                match asking.as_mut().poll(context) {
                    Poll::Ready(reply) => Poll::Ready(Some(reply)),
                    Poll::Pending => more.as_mut().poll(context).map(|()| None),
                }
            });
            let Some(reply) = reply.await else { continue };
            match self.take(&told, reply, &mut broken, &mut called) {
                // Most sessions acknowledge the new view or epoch at once, so after a short wait one heartbeat can
                // report all these sessions.
                Some(HeartbeatNews::View) => {
                    select(pin!(outside.sleep(LAST_LOOK)), more).await;
                }
                Some(HeartbeatNews::Nothing)
                    if paced || (is_acked && called.number != told.acked) => {}
                Some(HeartbeatNews::Nothing) => {
                    select(pace, more).await;
                }
                None => {
                    outside.sleep(retry).await;
                    retry = (retry * 2).min(self.timing().last_retry);
                    continue;
                }
            }
            retry = self.timing().first_retry;
        }
    }

    /// Hands on the blocks for which sessions have no use and, once for each call for memory, a part of the offered
    /// ones. The call is acknowledged when the master knows of all these blocks. Returns whether it is acknowledged.
    /// Waits, for a limited time, for a session that looks for memory itself, because that session offers what it does
    /// not need when it is done.
    async fn hand_on(&self, called: CallHeard, outside: &impl KeeperEnvironment) -> bool {
        let (call, waits, gates): (u64, bool, Vec<Arc<SessionGate>>) = {
            let mut state = self.state();
            let call = if state.acked == called.number { 0 } else { called.number };
            let (last, waited) = state.waited_for_offers;
            let waited = if last == call { waited } else { 0 };
            state.waited_for_offers = (call, waited + 1);
            (call, call != 0 && waited < MOST_WAITS, state.open().cloned().collect())
        };
        let mut withheld = false;
        // All sessions hand on blocks concurrently, because no lease is renewed until they have done so.
        let all = gates.iter().map(|gate| {
            let is_spared = called.spared == Some(gate.client());
            let call = if is_spared { 0 } else { call };
            let is_withheld = waits && !is_spared && gate.offers.withholds(call);
            withheld |= is_withheld;
            self.hand_on_of(gate, if is_withheld { 0 } else { call }, is_spared, outside)
        });
        let all: Vec<_> = all.collect();
        let all = join_all(all).await.into_iter().all(|is_known| is_known) && !withheld;
        if all {
            self.state().acked = called.number;
        }
        all
    }

    /// Hands on blocks of one session. Returns whether the master has acknowledged all of them.
    async fn hand_on_of(
        &self,
        gate: &SessionGate,
        call: u64,
        is_spared: bool,
        outside: &impl KeeperEnvironment,
    ) -> bool {
        let mut next = gate.offers.hand_on(call, is_spared);
        while let Some(batch) = next {
            let serial = batch.serial;
            let request = batch.request(gate.client());
            match outside.ask_master(request, self.timing().deadline / 2).await {
                Ok(MasterReply::Done | MasterReply::Refused { .. }) => {
                    gate.offers.handed_on(serial)
                }
                other => {
                    tracing::debug!(?other, "blocks are not handed on yet");
                    return false;
                }
            }
            next = gate.offers.hand_on(call, is_spared);
        }
        true
    }

    /// Waits until there is a session that is not fenced.
    async fn wait_for_session(&self) {
        poll_fn(|context| {
            self.changed.register(context.waker());
            match self.state().open().next() {
                Some(_) => Poll::Ready(()),
                None => Poll::Pending,
            }
        })
        .await;
    }

    fn heartbeat(&self, at: Duration) -> (MasterRequest, SentHeartbeat) {
        let mut state = self.state();
        state.asked += 1;
        let question = state.asked;
        // The number is set before the heartbeat is sent, so that a session that takes a mark from now on waits for a
        // later one.
        state.open().for_each(|gate| gate.questions.asks(question));
        let reclaims = state.open().any(|gate| gate.questions.are_awaited());
        let sessions: Vec<SessionHeartbeat> = state.open().map(|gate| gate.heartbeat()).collect();
        // This is computed from the heartbeats that are sent, not from the gates: by now a gate can show an
        // acknowledgement that its heartbeat does not contain.
        let all =
            sessions.iter().all(|heartbeat| SessionGate::acknowledged(heartbeat, &state.view));
        let acknowledged = if all { state.view.number } else { 0 };
        // If some session has an older view than the keeper, the master must not hold its answer.
        let shown = state.open().map(|gate| gate.view().number).fold(state.view.number, u64::min);
        let newer_than = if state.wants_whole { 0 } else { shown };
        let view = state.view.clone();
        let pinned_in =
            sessions.iter().map(|heartbeat| heartbeat.pinned_in).min().unwrap_or(u64::MAX);
        let changes = state.changes;
        let known = state.epochs;
        let acked = state.acked;
        let named = sessions.iter().map(|heartbeat| heartbeat.client).collect();
        let told = SentHeartbeat {
            changes,
            acknowledged,
            pinned_in,
            question,
            reclaims,
            acked,
            view,
            named,
            at,
        };
        (MasterRequest::Heartbeat { sessions, newer_than, known, reclaims, acked }, told)
    }

    /// Waits until there is more to tell the master than the last heartbeat told: soon after a session was opened,
    /// wants a heartbeat to be sent or has blocks to hand on at once, and when all sessions have acknowledged the
    /// newest view and epoch.
    async fn more_to_tell(&self, told: &SentHeartbeat, outside: &impl KeeperEnvironment) {
        let changed = poll_fn(|context| {
            self.changed.register(context.waker());
            let state = self.state();
            let wanted =
                state.open().any(|gate| gate.questions.are_wanted() || gate.offers.are_pressing());
            match state.changes {
                changes if changes == told.changes && !wanted => Poll::Pending,
                _ => Poll::Ready(()),
            }
        });
        let changed = pin!(join(outside.sleep(self.timing().gap), changed));
        select(changed, pin!(self.acknowledgement(told, outside))).await;
    }

    /// Waits until all sessions have acknowledged a newer view or epoch than the last heartbeat reported.
    async fn acknowledgement(&self, told: &SentHeartbeat, outside: &impl KeeperEnvironment) {
        // This needs no waker: newer views are put into the state by this task itself, or come with a new session,
        // which changes the list.
        let newer = |_: &mut Context<'_>| {
            let state = self.state();
            let is_newer = state.view.number > told.acknowledged;
            if is_newer || state.epochs.newest > told.pinned_in {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        };
        poll_fn(newer).await;
        let all = || {
            let state = self.state();
            let is_shown = |gate: &SessionGate| gate.view().number >= state.view.number;
            state.open().all(|gate| is_shown(gate) && gate.acknowledges())
        };
        let mut look = FIRST_LOOK;
        while !all() {
            outside.sleep(look).await;
            look = (look * 3 / 2).min(LAST_LOOK);
        }
    }

    /// Processes an answer, and returns what was new in it; `None` if it is not an answer to a heartbeat.
    fn take(
        &self,
        told: &SentHeartbeat,
        reply: Result<MasterReply, RpcError>,
        broken: &mut u64,
        called: &mut CallHeard,
    ) -> Option<HeartbeatNews> {
        let (view, expelled, epochs, mark, (lease_ms, behind_ms)) = match reply {
            Ok(MasterReply::Heartbeat {
                view,
                expelled,
                epochs,
                mark,
                short,
                spared,
                lease_ms,
                behind_ms,
            }) => {
                if short != 0 {
                    *called = CallHeard { number: short, spared };
                }
                (view, expelled, epochs, mark, (lease_ms, behind_ms))
            }
            other => {
                tracing::debug!(?other, "the master does not answer the heartbeat");
                return None;
            }
        };
        let mut state = self.state();
        if called.number != told.acked {
            state.open().for_each(|gate| gate.call());
        }
        // Fences are handled first: a memory node that joins after a session's recovery is not told of its fence, so
        // the session must not learn of that node.
        for gate in state.open().filter(|gate| expelled.contains(&gate.client())) {
            tracing::warn!(client = %gate.client(), "the cluster has fenced a session");
            gate.expel();
        }
        state.follow_lease(lease_ms);
        let until = lease_end(told.at, lease_ms, behind_ms);
        for gate in state.open() {
            gate.lease.publish(Duration::from_millis(lease_ms));
        }
        for gate in state.open().filter(|gate| told.named.contains(&gate.client())) {
            gate.lease.extend(until);
        }
        let is_newer = state.pass(told.question, epochs, mark);
        let is_followed = view.is_some_and(|view| state.follow(view, broken));
        let view = if is_followed { state.view.clone() } else { told.view.clone() };
        state.show(&view, &told.named);
        Some(if is_followed || is_newer { HeartbeatNews::View } else { HeartbeatNews::Nothing })
    }
}

/// The latest call for memory that the keeper has heard of.
#[derive(Clone, Copy, Default)]
struct CallHeard {
    /// The number of the call, or 0.
    number: u64,
    /// The session that keeps its offered blocks in this call.
    spared: Option<ClientId>,
}

/// The news for the keeper in an answer to a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeartbeatNews {
    /// A newer view or epoch, which sessions have to acknowledge.
    View,
    Nothing,
}

impl KeeperState {
    /// Returns the sessions that heartbeats name: all that are not fenced.
    fn open(&self) -> impl Iterator<Item = &Arc<SessionGate>> {
        self.gates.iter().filter(|gate| !gate.is_expelled())
    }

    fn follow_lease(&mut self, lease_ms: u64) {
        let told = KeeperTiming::for_lease(Duration::from_millis(lease_ms));
        self.timing = if told.deadline < self.longest.deadline { told } else { self.longest };
    }

    /// Records the epochs of an answer. Returns whether its newest epoch is newer than the one known before.
    fn pass(&mut self, question: u64, epochs: ClusterEpochs, mark: u64) -> bool {
        let known = self.epochs;
        let is_newer = epochs.newest > known.newest;
        // A new master does not know at first how far the epochs of an earlier master had come.
        self.epochs = ClusterEpochs {
            newest: epochs.newest.max(known.newest),
            passed: epochs.passed.max(known.passed),
            settled: epochs.settled.max(known.settled),
        };
        // A master that was replaced and does not know that can name too old an epoch: operations that run now have
        // possibly begun in a later epoch than the newest that this master knows.
        let mark = mark.max(known.newest);
        self.passed.push(question, mark);
        self.settled.push(question, mark);
        let passed = self.passed.pass(self.epochs.passed);
        let settled = self.settled.pass(self.epochs.settled);
        for gate in self.open() {
            if is_newer {
                gate.publish_epoch(epochs.newest);
            }
            gate.questions.tell_passed(passed, settled);
            gate.questions.tell_passed_epoch(self.epochs.passed);
        }
        is_newer
    }

    /// Records a view from the master, unless it is invalid or not newer than the keeper's. Returns whether it was
    /// recorded.
    fn follow(&mut self, update: ViewUpdate, broken: &mut u64) -> bool {
        let number = update.number();
        let is_whole = matches!(update, ViewUpdate::Whole(_));
        self.wants_whole &= !is_whole;
        // A newly opened session has possibly brought a newer view than the one that the heartbeat named. The
        // difference then begins at an older view than the keeper's; the next difference will begin at the newer one.
        let is_late = matches!(&update, ViewUpdate::Difference(d) if d.from < self.view.number);
        if number <= self.view.number || is_late {
            return false;
        }
        let view = match update.apply(&self.view).and_then(|view| self.check_view(view)) {
            Ok(view) => view,
            Err(error) => {
                if *broken != number {
                    tracing::error!(number, is_whole, %error, "the master's view is ignored");
                }
                *broken = number;
                self.wants_whole = !is_whole;
                return false;
            }
        };
        self.view = Arc::new(view);
        true
    }

    fn check_view(&self, view: View) -> Result<View, ViewError> {
        if view.cluster != self.view.cluster {
            return Err(ViewError { what: "it is of another cluster" });
        }
        view.check().map(|()| view)
    }

    /// Publishes the view to the sessions that the heartbeat named, unless they are fenced.
    fn show(&self, view: &Arc<View>, named: &[ClientId]) {
        let named = self.open().filter(|gate| named.contains(&gate.client()));
        named.for_each(|gate| gate.publish_view(view));
    }
}
