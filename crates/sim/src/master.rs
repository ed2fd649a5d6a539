//! The host of the master's logic, which is the same as in the real server.
//!
//! The host stands in for the other parts of the real server: it executes the logic's actions in order, keeps the
//! master's stored records through its crashes, and runs the master's jobs as tasks of its process. A master can crash
//! between any two actions, and its jobs crash with it; verbs and requests of these jobs can arrive later.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use fusee_control::master::{MasterReply, MasterRequest};
use fusee_control::node::{NodeReply, NodeRequest};
use fusee_control::rpc::Caller;
use fusee_core::race::HashKey;
use fusee_core::verbs::{ClientId, ClusterId, MnId};
use fusee_core::view::View;
use fusee_core::view::change::{ChangeStage, ViewChange};
use fusee_master::ClusterSettings;
use fusee_master::jobs::{self, JobContext, JobEnvironment, JobReport, MasterJob};
use fusee_master::logic::{MasterAction, MasterEvent, MasterLogic};
use fusee_master::record::{MasterRecord, RecordWrite};
use fusee_master::request_kinds::RoutedRequest;
use tokio::sync::oneshot;

use crate::cluster::SimCluster;
use crate::control::{MESSAGE_STEPS, NoAnswer, OpenDirections};
use crate::counts::count;
use crate::engine::{Nanos, ProcessId};
use crate::fabric::SimFabric;

/// The hash key of every master. It is constant, so keys hash alike in all runs, and a test can search for keys with
/// the same buckets.
const SECRET: HashKey = HashKey::new([7; 16]);

/// The id of the cluster of a run.
pub(crate) const CLUSTER: ClusterId = ClusterId::from_word(0xc1).unwrap();

/// The id of a cluster that a foreign master has formed.
pub(crate) const OTHER_CLUSTER: ClusterId = ClusterId::from_word(0xc2).unwrap();

/// The records that a master has stored, by their keys.
type PersistedRecords = BTreeMap<String, MasterRecord>;

/// The function that receives the master's reply to a request.
type ReplyCallback = Box<dyn FnOnce(MasterReply)>;

/// The host of the master, with the master's store.
pub(crate) struct MasterHost {
    settings: ClusterSettings,
    logic: RefCell<Option<MasterLogic>>,
    store: RefCell<PersistedRecords>,
    /// The stored records of the cluster's own master, while a foreign master is in its place.
    own_store: RefCell<Option<PersistedRecords>>,
    pub process: Cell<ProcessId>,
    /// Number of crashes of the master so far. Answers to an earlier process of the master are dropped.
    incarnation: Cell<u64>,
    /// Receivers of replies, in order. Dropping a receiver wakes a task that waits for the reply, and the run depends
    /// on the order of these wakeups.
    waiting: RefCell<BTreeMap<u64, ReplyCallback>>,
    next_token: Cell<u64>,
    /// The number of actions until the planned crash of the master, and the time for which it is down then.
    crash_in: Cell<Option<(u32, Nanos)>>,
    /// The client id of the running job.
    at_work: Cell<Option<ClientId>>,
    /// Whether the running job is a scrub, which repairs nothing by itself.
    scrubs: Cell<bool>,
}

/// Time between two ticks of the logic, as in a real master. With leases below 80 ms, it is a sixteenth of the lease.
const TICK_NS: Nanos = 5_000_000;
/// Time for which a job waits for a memory node's answer.
const PATIENCE_NS: Nanos = 5_000_000;

impl MasterHost {
    pub fn new(settings: ClusterSettings, process: ProcessId) -> MasterHost {
        let formed = MasterRecord::Cluster(CLUSTER);
        let store = BTreeMap::from([(formed.key(), formed)]);
        MasterHost {
            settings,
            logic: RefCell::new(None),
            store: RefCell::new(store),
            own_store: RefCell::new(None),
            process: Cell::new(process),
            incarnation: Cell::new(0),
            waiting: RefCell::default(),
            next_token: Cell::new(0),
            crash_in: Cell::new(None),
            at_work: Cell::new(None),
            scrubs: Cell::new(false),
        }
    }

    /// Returns whether a job that repairs something runs. Scrubs are left out: the master starts them again and again,
    /// so the end of the run must not wait for them.
    pub fn is_repairing(&self) -> bool {
        self.at_work().is_some() && !self.scrubs.get()
    }

    /// Returns the client id of the running job, if a job runs.
    pub fn at_work(&self) -> Option<ClientId> {
        self.at_work.get()
    }

    pub fn is_running(&self) -> bool {
        self.logic.borrow().is_some()
    }

    /// Returns the master's current view, if the cluster has formed.
    pub fn view(&self) -> Option<View> {
        self.logic.borrow().as_ref()?.view().cloned()
    }

    /// Plans a crash before the `actions`-th action from now, and a restart `down` later.
    pub fn crash_in(&self, actions: u32, down: Nanos) {
        self.crash_in.set(Some((actions, down)));
    }

    /// Cancels the planned crash, if there is one.
    pub fn spare(&self) {
        self.crash_in.set(None);
    }

    /// Starts the master from the records of its store.
    pub fn start(&self, cluster: &SimCluster) {
        let records = self.store.borrow().values().cloned().collect();
        let fresh = cluster.sim().rng().below_u64(u64::MAX);
        let logic = MasterLogic::restore(self.settings.clone(), fresh, SECRET, records);
        *self.logic.borrow_mut() = Some(logic.expect("the store holds what the logic persisted"));
        self.handle(cluster, MasterEvent::Tick);
        self.tick(cluster, self.incarnation.get());
    }

    fn tick(&self, cluster: &SimCluster, incarnation: u64) {
        let again = cluster.clone();
        let lease_ns = self.settings.lease.lease_ms.saturating_mul(1_000_000);
        cluster.sim().after((lease_ns / 16).min(TICK_NS), move || {
            let master = again.master();
            if master.incarnation.get() == incarnation && master.is_running() {
                if !again.sim().is_stopped(master.process.get()) {
                    master.handle(&again, MasterEvent::Tick);
                }
                master.tick(&again, incarnation);
            }
        });
    }

    /// Crashes the master, and drops all requests that wait for a reply.
    pub fn crash(&self, cluster: &SimCluster) {
        *self.logic.borrow_mut() = None;
        self.incarnation.set(self.incarnation.get() + 1);
        self.waiting.borrow_mut().clear();
        self.crash_in.set(None);
        if let Some(job) = self.at_work.take() {
            cluster.network().checkers().reuse().idle(job);
            count(&cluster.sim().counts().recovery_crashes);
        }
        cluster.sim().crash(self.process.get());
    }

    /// Puts a master without a cluster, or of the cluster `other`, in the place of the cluster's own master, until
    /// [`MasterHost::reinstate`]. Returns `false` if a foreign master is there already.
    pub fn usurp(&self, cluster: &SimCluster, other: Option<ClusterId>) -> bool {
        let is_own = self.own_store.borrow().is_none();
        if is_own {
            let foreign = other.map(MasterRecord::Cluster).into_iter();
            let foreign = foreign.map(|record| (record.key(), record)).collect();
            let own = self.store.replace(foreign);
            self.own_store.replace(Some(own));
            count(&cluster.sim().counts().foreign_masters);
            cluster.restart_master(1);
        }
        is_own
    }

    /// Puts the cluster's own master back, with the cluster's own store.
    pub fn reinstate(&self, cluster: &SimCluster) {
        if let Some(own) = self.own_store.take() {
            let foreign = self.store.replace(own);
            let is_kept = foreign.values().all(|record| matches!(record, MasterRecord::Cluster(_)));
            assert!(is_kept, "a foreign master has got something of this cluster: {foreign:?}");
        }
        cluster.restart_master(1);
    }

    pub fn forget_requests(&self) {
        self.waiting.borrow_mut().clear();
    }

    /// Tells the master that the connection of a process has closed.
    pub fn closed(&self, cluster: &SimCluster, process: ProcessId) {
        self.handle(cluster, MasterEvent::ConnectionClosed { connection: connection_of(process) });
    }

    /// Sends the master a request of a process. `answer` gets the reply, unless a message is lost.
    pub fn call(
        &self,
        cluster: &SimCluster,
        from: ProcessId,
        request: MasterRequest,
        answer: impl FnOnce(MasterReply) + 'static,
    ) {
        let control = cluster.control();
        let open = control.reaches_master(from);
        let says_alive = matches!(request, MasterRequest::Alive { .. });
        // If the node is not cut off, its heartbeat is lost only if the cluster is allowed to lose the node. If the
        // node is cut off, the cluster was allowed to lose the node when the cut began.
        let may_be_lost = || !says_alive || !open || cluster.dangers().may_lose_word_of(from);
        let there = cluster.clone();
        control.send(self.process.get(), 0, open, may_be_lost, move || {
            if says_alive {
                there.dangers().heard(from);
            }
            let back = there.clone();
            let reply = move |reply| {
                let open = back.control().hears_master(from);
                let may_be_lost = || !says_alive || !open || back.dangers().may_lose_word_of(from);
                back.control().send_back(open, may_be_lost, move || answer(reply));
            };
            there.master().request(&there, Some(from), request, Box::new(reply));
        });
    }

    /// Sends the master a request whose answer is ignored.
    pub fn tell(&self, cluster: &SimCluster, from: ProcessId, request: MasterRequest) {
        if !cluster.network().options().stepwise {
            self.call(cluster, from, request, drop);
        }
    }

    /// Sends the master a request, and waits for the reply until the deadline.
    pub async fn ask(
        &self,
        cluster: &SimCluster,
        from: ProcessId,
        request: MasterRequest,
        deadline: Nanos,
    ) -> Result<MasterReply, NoAnswer> {
        let (sender, answer) = oneshot::channel();
        if cluster.network().options().stepwise {
            cluster.sim().idle(MESSAGE_STEPS).await;
            if matches!(request, MasterRequest::Split { .. } | MasterRequest::MoreRoom { .. }) {
                // In a stepwise cluster the tests stand in for the master and decide about growth themselves.
                let reason = "the cluster keeps its size here".into();
                return Ok(MasterReply::Refused { reason });
            }
            let reply = Box::new(|reply| drop(sender.send(reply)));
            self.request(cluster, None, request, reply);
            return answer.await.map_err(|_| NoAnswer::Closed);
        }
        self.call(cluster, from, request, move |reply| drop(sender.send(reply)));
        cluster.control().wait(answer, deadline).await
    }

    /// Handles a request of a process, or of the simulator itself if `from` is `None`.
    pub fn request(
        &self,
        cluster: &SimCluster,
        from: Option<ProcessId>,
        request: MasterRequest,
        reply: ReplyCallback,
    ) {
        let RoutedRequest::Logic(request) = RoutedRequest::from(request) else {
            return reply(MasterReply::Refused {
                reason: "this host keeps no events, and cuts no views".into(),
            });
        };
        let token = self.next_token.get();
        self.next_token.set(token + 1);
        self.waiting.borrow_mut().insert(token, reply);
        let caller = Caller {
            connection: from.map_or(0, connection_of),
            cluster: Some(CLUSTER),
            ..Caller::default()
        };
        self.handle(cluster, MasterEvent::Request { token, caller, request });
    }

    fn handle(&self, cluster: &SimCluster, event: MasterEvent) {
        let now_ms = cluster.sim().clock_of(self.process.get()).as_millis() as u64;
        let Some(actions) = self.logic.borrow_mut().as_mut().map(|l| l.handle(now_ms, event))
        else {
            return;
        };
        for action in actions {
            match self.crash_in.get() {
                Some((0, down)) => {
                    count(&cluster.sim().counts().master_restarts);
                    return cluster.restart_master(down);
                }
                Some((n, down)) => self.crash_in.set(Some((n - 1, down))),
                None => {}
            }
            self.perform(cluster, action);
        }
    }

    fn perform(&self, cluster: &SimCluster, action: MasterAction) {
        match action {
            MasterAction::Persist(writes) => {
                for write in writes {
                    if let RecordWrite::Put(MasterRecord::View(view)) = &write {
                        cluster.checks().follow(view);
                        if let Some(change) = &view.change {
                            let counts = cluster.sim().counts();
                            let moves = change.leaving().next().is_some();
                            if change.new_regions > 0 {
                                count(&counts.additions);
                            }
                            if change.stage == ChangeStage::Switched && moves {
                                count(&counts.moves);
                            }
                        }
                    }
                    let mut store = self.store.borrow_mut();
                    match write {
                        RecordWrite::Put(record) => drop(store.insert(record.key(), record)),
                        RecordWrite::Remove(key) => drop(store.remove(&key)),
                    }
                }
            }
            MasterAction::Reply { token, reply } => {
                if let MasterReply::Heartbeat { epochs, .. } = &reply {
                    cluster.network().checkers().reuse().epoch(epochs.newest);
                }
                if let Some(waiting) = self.waiting.borrow_mut().remove(&token) {
                    waiting(reply);
                }
            }
            MasterAction::Call { node, control, token, request } => {
                let Some(host) = cluster.nodes().at(&control) else { return };
                host.take_name(cluster.network(), node);
                let control = cluster.control();
                let open = OpenDirections {
                    requests: control.hears_master(host.process),
                    answers: control.reaches_master(host.process),
                };
                let incarnation = self.incarnation.get();
                let again = cluster.clone();
                let answer = move |result: Result<NodeReply, String>| {
                    let master = again.master();
                    if master.incarnation.get() == incarnation {
                        master.handle(&again, MasterEvent::NodeAnswer { node, token, result });
                    }
                };
                host.call(cluster, open, request, answer);
            }
            MasterAction::Job { token, client, view, job } => {
                self.work(cluster, token, client, *view, job);
            }
            MasterAction::Clear => unreachable!("nobody destroys this cluster"),
            MasterAction::Tell(_, _, text) => {
                cluster.sim().note(&[10], || format!("master: {text}"))
            }
        }
    }

    /// Runs a job in the master's process.
    fn work(&self, cluster: &SimCluster, token: u64, client: ClientId, view: View, job: MasterJob) {
        let incarnation = self.incarnation.get();
        let again = cluster.clone();
        self.at_work.set(Some(client));
        self.scrubs.set(matches!(job, MasterJob::Scrub { .. }));
        cluster.network().checkers().reuse().job_began(client);
        cluster.sim().spawn(self.process.get(), async move {
            let fabric = SimFabric::new(again.network(), client);
            let reach = SimJobEnvironment(again.clone());
            let orders = JobContext { reach: &reach, repairer: client, job: token };
            let result = jobs::run(&fabric, &orders, &view, job).await;
            let counts = again.sim().counts();
            match &result {
                Ok(JobReport::Recovered(recovered)) => {
                    for one in recovered {
                        again.network().checkers().reuse().note_recovered(one.recovery.client);
                        count(&counts.client_recoveries);
                        let strange = one.recovery.strange;
                        assert_eq!(strange, 0, "a client left what no client leaves: {one:?}");
                    }
                }
                Ok(JobReport::Transformed { .. }) => count(&counts.transformations),
                Ok(JobReport::Cleared { .. })
                    if view.change.as_ref().is_some_and(ViewChange::has_moved_entries) =>
                {
                    count(&counts.splits);
                }
                Ok(JobReport::Cleared { .. }) => {}
                Ok(JobReport::Scrubbed { looked, .. }) => {
                    count(&counts.scrubs);
                    let is_sound = looked.damage.found == 0
                        && looked.lost.is_empty()
                        && looked.marked.is_empty();
                    let rots = again.network().memories().rots();
                    assert!(rots || is_sound, "memory does not rot here: {looked:?}");
                }
                Err(_) => {}
            }
            again.network().checkers().reuse().idle(client);
            let master = again.master();
            if master.incarnation.get() == incarnation {
                master.at_work.set(None);
                master.handle(&again, MasterEvent::JobDone { token, result });
            }
        });
    }
}

/// Returns the number of the only connection that a process has to the master.
fn connection_of(process: ProcessId) -> u64 {
    process.0 as u64 + 1
}

/// The environment of the master's jobs: connections to the memory nodes.
struct SimJobEnvironment(SimCluster);

impl JobEnvironment for SimJobEnvironment {
    async fn ask(&self, node: MnId, request: NodeRequest) -> Result<NodeReply, String> {
        let answer = self.0.ask_node(node, request, PATIENCE_NS).await;
        answer.map_err(|why| format!("{why:?}"))
    }

    fn now_us(&self) -> u64 {
        self.0.sim().now() / 1_000
    }
}
