//! The hosts of the unchanged memory-node and master logic.
//!
//! They do what the real servers do around it: carry effects and actions out in their order, keep
//! what the master persists through its crashes, run its jobs as tasks of its process. A master may
//! crash between any two actions, and with it its jobs; what these have posted may come later.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use fusee_control::master::{MasterReply, MasterRequest, Note};
use fusee_control::node::{Bars, Description, NodeReply, NodeRequest};
use fusee_control::rpc::Caller;
use fusee_core::change::Stage;
use fusee_core::race::HashKey;
use fusee_core::verbs::{ClientId, ClusterId, MnId};
use fusee_core::view::View;
use fusee_master::Settings;
use fusee_master::jobs::{self, Job, JobReport, Orders, Reach};
use fusee_master::logic::{Action, Event, Master};
use fusee_master::record::{Record, Write};
use fusee_memory_node::logic::{Effect, Node};

use crate::cluster::Cluster;
use crate::counts::count;
use crate::engine::{Nanos, ProcessId};
use crate::fabric::SimFabric;

/// A memory node.
pub(crate) struct NodeHost {
    pub process: ProcessId,
    pub control: String,
    pub identity: u64,
    pub pool_bytes: u64,
    pub name: Cell<Option<MnId>>,
    logic: RefCell<Node>,
    /// So far its clock is ahead, in milliseconds.
    ahead_ms: Cell<u64>,
}

impl NodeHost {
    pub fn new(process: ProcessId, number: u64, pool_bytes: u64) -> NodeHost {
        let identity = 1000 + number;
        let description = Description { identity, pool_bytes, tcp: None, shm: None, verbs: None };
        NodeHost {
            process,
            control: format!("node-{number}"),
            identity,
            pool_bytes,
            name: Cell::new(None),
            logic: RefCell::new(Node::new(description)),
            ahead_ms: Cell::new(0),
        }
    }

    pub fn join_request(&self) -> MasterRequest {
        MasterRequest::Join {
            identity: self.identity,
            control: self.control.clone(),
            tcp: None,
            shm: None,
            verbs: None,
            pool_bytes: self.pool_bytes,
        }
    }

    /// The cluster of which it may hold something.
    pub fn holds_of(&self) -> Option<ClusterId> {
        self.logic.borrow().holds_of()
    }

    /// What it tells the master with every sign of life.
    pub fn heard(&self) -> (Option<Note>, Bars) {
        self.logic.borrow().heard()
    }

    /// A master has answered that.
    pub fn hear(&self, cluster: &Cluster, note: Note, lease_ms: u64) {
        let mut logic = self.logic.borrow_mut();
        logic.pass(self.now_ms(cluster));
        logic.hear(note, lease_ms);
    }

    fn now_ms(&self, cluster: &Cluster) -> u64 {
        cluster.sim().clock_of(self.process).as_millis() as u64 + self.ahead_ms.get()
    }

    /// Its clock jumps ahead.
    pub fn jump(&self, ms: u64) {
        self.ahead_ms.set(self.ahead_ms.get() + ms);
    }

    /// Decides about a request and carries the effects out.
    pub fn handle(&self, cluster: &Cluster, request: NodeRequest) -> NodeReply {
        cluster.sim().note(&[8, self.identity], || format!("{} asked: {request:?}", self.control));
        let step = {
            let mut logic = self.logic.borrow_mut();
            logic.pass(self.now_ms(cluster));
            logic.asked(Some(CLUSTER), request)
        };
        if let NodeReply::Barred { .. } = step.reply {
            count(&cluster.sim().counts().bars);
        }
        cluster
            .sim()
            .note(&[9, self.identity], || format!("{} answers: {:?}", self.control, step.reply));
        let node = self.name.get().expect("nobody knows a node before it has joined");
        for effect in step.effects {
            let network = cluster.network();
            match effect {
                Effect::ZeroPool { offset, bytes } => {
                    let range = offset as usize..(offset + bytes) as usize;
                    network.with(node, |memory| memory.pool[range].fill(0));
                }
                Effect::WriteTable { offset, value } => {
                    let at = offset as usize;
                    let value = value.to_le_bytes();
                    network.with(node, |memory| memory.pool[at..at + 4].copy_from_slice(&value));
                }
                Effect::WriteHeader { word, value } => {
                    network.write_header(node, word, value);
                }
                Effect::Living { living } => {
                    network.with(node, |memory| memory.over.learn(&living));
                }
                Effect::Fence { client } => network.fence(node, client),
            }
        }
        step.reply
    }
}

/// Of every master: keys hash alike in all runs, so that a test can look for some that lie together.
const SECRET: HashKey = HashKey::new([7; 16]);

/// The one cluster that there is.
pub(crate) const CLUSTER: ClusterId = ClusterId::from_word(0xc1).unwrap();

/// A cluster that others might have formed.
pub(crate) const OTHER_CLUSTER: ClusterId = ClusterId::from_word(0xc2).unwrap();

/// What a master has persisted.
type Store = BTreeMap<String, Record>;

/// What happens with a reply.
type ReplyTo = Box<dyn FnOnce(MasterReply)>;

/// The master, with its store.
pub(crate) struct MasterHost {
    settings: Settings,
    logic: RefCell<Option<Master>>,
    store: RefCell<Store>,
    /// That of the cluster's own master, while another one is in its place.
    own_store: RefCell<Option<Store>>,
    pub process: Cell<ProcessId>,
    /// Restarts so far: answers to an earlier process are lost.
    incarnation: Cell<u64>,
    /// In order: replies that are dropped wake who waits for them, and the run depends on the
    /// order in which that happens.
    waiting: RefCell<BTreeMap<u64, ReplyTo>>,
    next_token: Cell<u64>,
    /// Actions until it crashes, and how long it will be down then.
    crash_in: Cell<Option<(u32, Nanos)>>,
    /// The name under which a job works now.
    at_work: Cell<Option<ClientId>>,
    /// Whether that job only looks.
    scrubs: Cell<bool>,
}

/// How often the logic hears that time passes, as in a real master, if leases are not very short.
const TICK_NS: Nanos = 5_000_000;
/// How long a job waits for a memory node's answer.
const PATIENCE_NS: Nanos = 5_000_000;

impl MasterHost {
    pub fn new(settings: Settings, process: ProcessId) -> MasterHost {
        let formed = Record::Cluster(CLUSTER);
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

    /// Whether a job works that puts something right. Who waits until nothing is left to do would wait for ever
    /// for looks at what is in order.
    pub fn puts_right(&self) -> bool {
        self.at_work().is_some() && !self.scrubs.get()
    }

    /// The name under which a job of it posts verbs now, if one runs.
    pub fn at_work(&self) -> Option<ClientId> {
        self.at_work.get()
    }

    pub fn is_running(&self) -> bool {
        self.logic.borrow().is_some()
    }

    /// The view that it knows.
    pub fn view(&self) -> Option<View> {
        self.logic.borrow().as_ref()?.view().cloned()
    }

    /// Lets it crash between two of its next actions, and start again after some time.
    pub fn crash_in(&self, actions: u32, down: Nanos) {
        self.crash_in.set(Some((actions, down)));
    }

    /// It does not crash after all.
    pub fn spare(&self) {
        self.crash_in.set(None);
    }

    /// Starts it from what its store remembers.
    pub fn start(&self, cluster: &Cluster) {
        let records = self.store.borrow().values().cloned().collect();
        let fresh = cluster.sim().rng().below_u64(u64::MAX);
        let logic = Master::restore(self.settings.clone(), fresh, SECRET, records);
        *self.logic.borrow_mut() = Some(logic.expect("the store holds what the logic persisted"));
        self.handle(cluster, Event::Tick);
        self.tick(cluster, self.incarnation.get());
    }

    fn tick(&self, cluster: &Cluster, incarnation: u64) {
        let again = cluster.clone();
        let lease_ns = self.settings.lease.lease_ms.saturating_mul(1_000_000);
        cluster.sim().after((lease_ns / 16).min(TICK_NS), move || {
            let master = again.master();
            if master.incarnation.get() == incarnation && master.is_running() {
                if !again.sim().is_stopped(master.process.get()) {
                    master.handle(&again, Event::Tick);
                }
                master.tick(&again, incarnation);
            }
        });
    }

    /// Ends it where it stands.
    pub fn crash(&self, cluster: &Cluster) {
        *self.logic.borrow_mut() = None;
        self.incarnation.set(self.incarnation.get() + 1);
        self.waiting.borrow_mut().clear();
        self.crash_in.set(None);
        if let Some(job) = self.at_work.take() {
            cluster.network().reuse().idle(job);
            count(&cluster.sim().counts().recovery_crashes);
        }
        cluster.sim().crash(self.process.get());
    }

    /// Who is started next goes on from the store of another cluster, or from an empty one. Whether that is not
    /// so already.
    pub fn usurp(&self, other: Option<ClusterId>) -> bool {
        let mut own = self.own_store.borrow_mut();
        let is_own = own.is_none();
        if is_own {
            let foreign = other.map(Record::Cluster).into_iter();
            let foreign = foreign.map(|record| (record.key(), record)).collect();
            *own = Some(self.store.replace(foreign));
        }
        is_own
    }

    /// Who is started next is the cluster's own master again.
    pub fn reinstate(&self) {
        if let Some(own) = self.own_store.take() {
            let foreign = self.store.replace(own);
            let is_kept = foreign.values().all(|record| matches!(record, Record::Cluster(_)));
            assert!(is_kept, "a foreign master has got something of this cluster: {foreign:?}");
        }
    }

    pub fn forget_requests(&self) {
        self.waiting.borrow_mut().clear();
    }

    /// A process is gone, and its connection with it.
    pub fn closed(&self, cluster: &Cluster, process: ProcessId) {
        self.handle(cluster, Event::ConnectionClosed { connection: connection_of(process) });
    }

    /// A request of a process has arrived; `None`: of somebody inside.
    pub fn request(
        &self,
        cluster: &Cluster,
        from: Option<ProcessId>,
        request: MasterRequest,
        reply: ReplyTo,
    ) {
        let token = self.next_token.get();
        self.next_token.set(token + 1);
        self.waiting.borrow_mut().insert(token, reply);
        let caller = Caller {
            connection: from.map_or(0, connection_of),
            cluster: Some(CLUSTER),
            ..Caller::default()
        };
        self.handle(cluster, Event::Request { token, caller, request });
    }

    fn handle(&self, cluster: &Cluster, event: Event) {
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

    fn perform(&self, cluster: &Cluster, action: Action) {
        match action {
            Action::Persist(writes) => {
                for write in writes {
                    if let Write::Put(Record::View(view)) = &write {
                        cluster.view_begins(view);
                        if let Some(change) = &view.change {
                            let counts = cluster.sim().counts();
                            let moves = view.leaving().next().is_some();
                            if change.new_regions > 0 {
                                count(&counts.additions);
                            }
                            if change.stage == Stage::Switched && moves {
                                count(&counts.moves);
                            }
                        }
                    }
                    let mut store = self.store.borrow_mut();
                    match write {
                        Write::Put(record) => drop(store.insert(record.key(), record)),
                        Write::Remove(key) => drop(store.remove(&key)),
                    }
                }
            }
            Action::Reply { token, reply } => {
                if let MasterReply::Heartbeat { epochs, .. } = &reply {
                    cluster.network().reuse().epoch(epochs.newest);
                }
                if let Some(waiting) = self.waiting.borrow_mut().remove(&token) {
                    waiting(reply);
                }
            }
            Action::Call { node, control, token, request } => {
                let Some(host) = cluster.node_at(&control) else { return };
                cluster.named(&host, node);
                let control = cluster.control();
                let open =
                    (control.hears_master(host.process), control.reaches_master(host.process));
                let incarnation = self.incarnation.get();
                let again = cluster.clone();
                let answer = move |result: Result<NodeReply, String>| {
                    let master = again.master();
                    if master.incarnation.get() == incarnation {
                        master.handle(&again, Event::NodeAnswer { node, token, result });
                    }
                };
                cluster.call_node(host.process, open, request, answer);
            }
            Action::Job { token, client, view, job } => {
                self.work(cluster, token, client, *view, job);
            }
            Action::Clear => unreachable!("nobody destroys this cluster"),
            Action::Tell(_, _, text) => cluster.sim().note(&[10], || format!("master: {text}")),
        }
    }

    /// Runs a job in the master's process.
    fn work(&self, cluster: &Cluster, token: u64, client: ClientId, view: View, job: Job) {
        let incarnation = self.incarnation.get();
        let again = cluster.clone();
        self.at_work.set(Some(client));
        self.scrubs.set(matches!(job, Job::Scrub { .. }));
        cluster.network().reuse().job_began(client);
        cluster.sim().spawn(self.process.get(), async move {
            let fabric = SimFabric::new(again.network(), client);
            let reach = Reaching(again.clone());
            let orders = Orders { reach: &reach, repairer: client, job: token };
            let result = jobs::run(&fabric, &orders, &view, job).await;
            let counts = again.sim().counts();
            match &result {
                Ok(JobReport::Recovered(recovered)) => {
                    for one in recovered {
                        again.network().reuse().gone(one.recovery.client);
                        count(&counts.client_recoveries);
                        let strange = one.recovery.strange;
                        assert_eq!(strange, 0, "a client left what no client leaves: {one:?}");
                    }
                }
                Ok(JobReport::Transformed { .. }) => count(&counts.transformations),
                Ok(JobReport::Cleared { .. }) if view.has_moved_entries() => {
                    count(&counts.splits);
                }
                Ok(JobReport::Cleared { .. }) => {}
                Ok(JobReport::Scrubbed { looked, .. }) => {
                    count(&counts.scrubs);
                    let is_sound = looked.damage.found == 0
                        && looked.lost.is_empty()
                        && looked.marked.is_empty();
                    let rots = again.network().rots();
                    assert!(rots || is_sound, "memory does not rot here: {looked:?}");
                }
                Err(_) => {}
            }
            again.network().reuse().idle(client);
            let master = again.master();
            if master.incarnation.get() == incarnation {
                master.at_work.set(None);
                master.handle(&again, Event::JobDone { token, result });
            }
        });
    }
}

/// Every process has one connection to the master.
fn connection_of(process: ProcessId) -> u64 {
    process.0 as u64 + 1
}

/// How the master's jobs reach memory nodes.
struct Reaching(Cluster);

impl Reach for Reaching {
    async fn ask(&self, node: MnId, request: NodeRequest) -> Result<NodeReply, String> {
        let answer = self.0.ask_node(node, request, PATIENCE_NS).await;
        answer.map_err(|why| format!("{why:?}"))
    }

    fn now_us(&self) -> u64 {
        self.0.sim().now() / 1_000
    }
}
