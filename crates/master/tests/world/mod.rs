//! A simulated cluster: a master with its disk, memory nodes with memory, and sessions, all in one thread, without
//! clocks or sockets. Every action, every phase of a job and every request of a job to a memory node is a *tick*; the
//! master can crash after any tick.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use fusee_control::master::{ClusterEpochs, MasterReply, MasterRequest, SessionHeartbeat, Status};
use fusee_control::node::{NodeDescription, NodeReply, NodeRequest};
use fusee_control::rpc::Caller;
use fusee_core::layout::{PoolHeader, first_extent};
use fusee_core::race::HashKey;
use fusee_core::stats::Damage;
use fusee_core::verbs::{ClientId, ClusterId, Fabric, MnId, VerbBatch, VerbError, VerbOp};
use fusee_core::view::{Geometry, View};
use fusee_master::jobs::{self, JobContext, JobEnvironment, JobError, JobReport, MasterJob};
use fusee_master::logic::{MasterAction, MasterEvent, MasterLogic};
use fusee_master::record::{DESTROYED, MasterRecord, RecordWrite};
use fusee_master::request_kinds::{LogicRequest, RoutedRequest};
use fusee_master::settings::{ClusterSettings, LeaseSettings};
use fusee_memory_node::logic::{HeartbeatReply, NodeEffect, NodeLogic};

/// Returns a request for the logic.
pub fn logic_request(request: MasterRequest) -> LogicRequest {
    match RoutedRequest::from(request) {
        RoutedRequest::Logic(request) => request,
        RoutedRequest::Host(request) => panic!("the host answers {request:?}"),
    }
}

pub const LEASE_MS: u64 = 1_000;
pub const POOL: u64 = 1 << 20;
pub const CLUSTER: ClusterId = ClusterId::from_word(1000).unwrap();
const SECRET: HashKey = HashKey::new([7; 16]);
/// The time that passes in a step, in milliseconds.
const STEP_MS: u64 = 50;
/// The number of the first node's connection. The number of a session's connection is that of the session, counted from
/// 1.
const NODE_CONNECTIONS: u64 = 1_000_000;

pub fn settings(memory_nodes: u32, index_replicas: u8, data_replicas: u8) -> ClusterSettings {
    let geometry = Geometry {
        region_bytes: 256 << 10,
        block_bytes: 16 << 10,
        groups_per_subtable: 2,
        max_key_bytes: 64,
        max_value_bytes: 4096,
        ..Geometry::default()
    };
    let lease = LeaseSettings { lease_ms: LEASE_MS, grace_ms: 10 };
    ClusterSettings {
        memory_nodes,
        index_replicas,
        data_replicas,
        index_keys: 100,
        geometry,
        lease,
        move_bytes_per_s: 1 << 30,
        scrub_bytes_per_s: 0,
        redundancy: Default::default(),
    }
}

pub struct TestNode {
    pub identity: u64,
    pub control: String,
    pub logic: NodeLogic,
    pub pool: Vec<u8>,
    pub fenced: BTreeSet<ClientId>,
    pub alive: bool,
    /// Whether the node does not receive requests to show a view number.
    pub is_deaf: bool,
    /// Whether the node does not answer requests to fence.
    pub withholds_fences: bool,
    pub expelled: bool,
    /// Whether the master has told the node that it is drained.
    pub drained: bool,
    /// Whether the node does not name its cluster.
    pub anonymous: bool,
    /// The number of answers that the node has got from masters of other clusters.
    pub strangers: usize,
    joined: bool,
    asking: Option<u64>,
}

/// A session that acknowledges every view as soon as it receives it.
pub struct TickSession {
    pub client: ClientId,
    pub view: u64,
    /// Whether the session sends heartbeats.
    pub renews: bool,
    /// Whether the session acknowledges new views.
    pub follows: bool,
    pub expelled: bool,
    /// The latest call for memory that the session has received.
    pub acked: u64,
    /// The session that hands on nothing for that call.
    pub spared: Option<ClientId>,
    /// Whether the session says that it will possibly free memory soon.
    pub stirs: bool,
    asking: Option<u64>,
}

/// A call to a node that has got no answer.
pub struct HeldCall {
    pub node: MnId,
    pub token: u64,
    pub request: NodeRequest,
}

pub struct TickCluster {
    pub settings: ClusterSettings,
    pub master: MasterLogic,
    pub disk: BTreeMap<String, MasterRecord>,
    pub nodes: Rc<RefCell<Vec<TestNode>>>,
    pub sessions: Vec<TickSession>,
    pub now_ms: u64,
    /// The number of ticks so far, and the number of ticks after which the master crashes.
    pub ticks: Rc<Cell<usize>>,
    pub crash_after: Rc<Cell<Option<usize>>>,
    pub crashes: usize,
    /// A number of ticks, and the index of the node that dies after them.
    pub dies_after: Option<(usize, usize)>,
    /// The number of jobs that fail when they begin.
    pub failing_jobs: usize,
    /// Whether all jobs that recover clients fail.
    pub recoveries_fail: bool,
    /// Whether jobs run until [`TickCluster::end_jobs`].
    pub holds_jobs: bool,
    held_jobs: Vec<(u64, ClientId, Box<View>, MasterJob)>,
    /// Whether reports of jobs are held back until [`TickCluster::report`].
    pub holds_reports: bool,
    held_reports: Vec<(u64, Result<JobReport, JobError>)>,
    /// Whether calls to nodes get no answer until [`TickCluster::answer_calls`].
    pub holds_calls: bool,
    pub held_calls: Vec<HeldCall>,
    /// The requests that jobs have sent to nodes.
    pub orders: Rc<RefCell<Vec<(MnId, NodeRequest)>>>,
    /// Whether verbs of failed jobs can still be under way.
    pub verbs_linger: bool,
    /// The sessions under which jobs ran.
    pub repairers: BTreeSet<ClientId>,
    pub replies: BTreeMap<u64, MasterReply>,
    pub log: Vec<String>,
    next_token: u64,
}

impl TickCluster {
    /// Returns a formed cluster with the number of nodes in the settings.
    pub fn formed(settings: ClusterSettings) -> TickCluster {
        let formed = MasterRecord::Cluster(CLUSTER);
        let disk = BTreeMap::from([(formed.key(), formed.clone())]);
        let master = MasterLogic::restore(settings.clone(), 1000, SECRET, vec![formed]).unwrap();
        let mut world = TickCluster {
            master,
            disk,
            nodes: Rc::default(),
            sessions: Vec::new(),
            now_ms: 0,
            ticks: Rc::default(),
            crash_after: Rc::default(),
            crashes: 0,
            dies_after: None,
            failing_jobs: 0,
            recoveries_fail: false,
            holds_jobs: false,
            held_jobs: Vec::new(),
            holds_reports: false,
            held_reports: Vec::new(),
            holds_calls: false,
            held_calls: Vec::new(),
            orders: Rc::default(),
            verbs_linger: true,
            repairers: BTreeSet::new(),
            replies: BTreeMap::new(),
            log: Vec::new(),
            next_token: 0,
            settings,
        };
        (0..world.settings.memory_nodes).for_each(|_| world.add_node());
        for _ in 0..100 {
            world.step();
            if world.master.view().is_some() {
                return world;
            }
        }
        panic!("not formed: {:#?}", world.log);
    }

    pub fn add_node(&mut self) {
        let at = self.nodes.borrow().len() as u64;
        let description = NodeDescription {
            identity: 100 + at,
            pool_bytes: POOL,
            tcp: None,
            shm: None,
            verbs: None,
        };
        let mut pool = vec![0; (first_extent(POOL) + POOL) as usize];
        let (word, value) = NodeLogic::FIRST_WORD;
        pool[word.offset() as usize..][..8].copy_from_slice(&value.to_le_bytes());
        self.nodes.borrow_mut().push(TestNode {
            identity: 100 + at,
            control: format!("node{at}:1"),
            logic: NodeLogic::new(description),
            pool,
            fenced: BTreeSet::new(),
            alive: true,
            is_deaf: false,
            withholds_fences: false,
            expelled: false,
            drained: false,
            anonymous: false,
            strangers: 0,
            joined: false,
            asking: None,
        });
    }

    /// Ends a node's process and breaks its connection.
    pub fn kill(&mut self, at: usize) {
        self.nodes.borrow_mut()[at].alive = false;
        self.feed(MasterEvent::ConnectionClosed { connection: NODE_CONNECTIONS + at as u64 });
    }

    pub fn restart_master(&mut self) {
        let records = self.disk.values().cloned().collect();
        self.master = MasterLogic::restore(self.settings.clone(), 2000, SECRET, records).unwrap();
        self.sessions.iter_mut().for_each(|session| session.asking = None);
        self.nodes.borrow_mut().iter_mut().for_each(|node| node.asking = None);
        self.crashes += 1;
    }

    /// Replaces the master by another one, with these records in its store.
    pub fn usurp(&mut self, records: impl IntoIterator<Item = MasterRecord>) {
        self.disk = records.into_iter().map(|record| (record.key(), record)).collect();
        self.restart_master();
    }

    fn ticks_out(&mut self) -> bool {
        if self.crash_after.get() == Some(self.ticks.get()) {
            self.crash_after.set(None);
            self.restart_master();
            return true;
        }
        self.ticks.set(self.ticks.get() + 1);
        false
    }

    /// Feeds an event, and all events that follow from its actions, until the master crashes or no event is left.
    pub fn feed(&mut self, event: MasterEvent) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for action in self.master.handle(self.now_ms, event) {
                if self.ticks_out() {
                    return;
                }
                if let Some((_, node)) = self.dies_after.take_if(|(at, _)| *at <= self.ticks.get())
                {
                    self.nodes.borrow_mut()[node].alive = false;
                    let connection = NODE_CONNECTIONS + node as u64;
                    events.push_back(MasterEvent::ConnectionClosed { connection });
                }
                match self.perform(action) {
                    Ok(event) => events.extend(event),
                    // The master crashes in the middle of a job.
                    Err(MasterCrash) => return self.restart_master(),
                }
            }
        }
    }

    fn perform(&mut self, action: MasterAction) -> Result<Option<MasterEvent>, MasterCrash> {
        match action {
            MasterAction::Persist(writes) => {
                for write in writes {
                    match write {
                        RecordWrite::Put(record) => self.disk.insert(record.key(), record),
                        RecordWrite::Remove(key) => self.disk.remove(&key),
                    };
                }
                Ok(None)
            }
            MasterAction::Reply { token, reply } => {
                assert!(self.replies.insert(token, reply).is_none(), "two replies");
                Ok(None)
            }
            MasterAction::Call { node, token, request, .. } if self.holds_calls => {
                self.held_calls.push(HeldCall { node, token, request });
                Ok(None)
            }
            MasterAction::Call { node, control, token, request } => {
                let at = self.nodes.borrow().iter().position(|n| n.alive && n.control == control);
                let is_for_deaf = |at: &usize| {
                    let is_deaf = self.nodes.borrow()[*at].is_deaf;
                    is_deaf && matches!(request, NodeRequest::StandAt { .. })
                };
                let is_withheld = |at: usize| {
                    let withholds = self.nodes.borrow()[at].withholds_fences;
                    withholds && matches!(request, NodeRequest::Fence { .. })
                };
                if at.is_some_and(is_withheld) {
                    return Ok(None);
                }
                let result = match at {
                    Some(at) if is_for_deaf(&at) => Err("the connection broke".to_owned()),
                    Some(at) => {
                        Ok(self.nodes.borrow_mut()[at].asked(self.master.cluster(), request))
                    }
                    None => Err("connection refused".to_owned()),
                };
                Ok(Some(MasterEvent::NodeAnswer { node, token, result }))
            }
            MasterAction::Job { token, client, view, job } if self.holds_jobs => {
                self.held_jobs.push((token, client, view, job));
                Ok(None)
            }
            MasterAction::Job { token, client, view, job } => {
                let result = self.run((client, token), &view, job)?;
                if self.holds_reports {
                    self.held_reports.push((token, result));
                    return Ok(None);
                }
                Ok(Some(MasterEvent::JobDone { token, result }))
            }
            MasterAction::Clear => {
                self.disk.retain(|key, _| key.starts_with(DESTROYED));
                Ok(None)
            }
            MasterAction::Tell(_, _, text) => {
                self.log.push(format!("{} ms: {text}", self.now_ms));
                Ok(None)
            }
        }
    }

    fn run(
        &mut self,
        (client, token): (ClientId, u64),
        view: &View,
        job: MasterJob,
    ) -> Result<Result<JobReport, JobError>, MasterCrash> {
        self.repairers.insert(client);
        let fails = self.recoveries_fail && matches!(job, MasterJob::Recover { .. });
        if fails || self.failing_jobs > 0 {
            self.failing_jobs = self.failing_jobs.saturating_sub(1);
            let what = "it was made to fail".to_owned();
            let may_linger = self.verbs_linger;
            return Ok(Err(JobError { may_linger, ..JobError::new(None, what) }));
        }
        for record in self.disk.values() {
            let MasterRecord::Repairer(other) = record else { continue };
            assert_eq!(*other, client, "an earlier repairer may still work");
        }
        if let MasterJob::Recover { clients } = &job {
            for member in &view.members {
                let node = &self.nodes.borrow()[usize::from(member.node.0)];
                let fenced = clients.iter().all(|client| node.fenced.contains(client));
                assert!(fenced, "recovered before it was fenced");
            }
        }
        let ticks = self.ticks.clone();
        let crash_after = self.crash_after.clone();
        let nodes = self.nodes.clone();
        let orders = self.orders.clone();
        let hands = TickJobEnvironment { nodes, client, ticks, crash_after, orders };
        let orders = JobContext { reach: &hands, repairer: client, job: token };
        let job = pin!(jobs::run(&hands, &orders, view, job));
        match job.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => Ok(result),
            Poll::Pending => Err(MasterCrash),
        }
    }

    /// Returns the number of jobs that are running.
    pub fn jobs(&self) -> usize {
        self.held_jobs.len()
    }

    /// Returns the number of ended jobs whose reports are held back.
    pub fn reports(&self) -> usize {
        self.held_reports.len()
    }

    /// Gives the master all reports that were held back, and from now on each report at once. Returns the number of
    /// reports that were held back.
    pub fn report(&mut self) -> usize {
        self.holds_reports = false;
        let held = std::mem::take(&mut self.held_reports);
        let count = held.len();
        for (token, result) in held {
            self.feed(MasterEvent::JobDone { token, result });
        }
        count
    }

    /// Lets the called node answer a call that was held back.
    pub fn answer(&mut self, HeldCall { node, token, request }: HeldCall) {
        let result = Ok(self.ask_node(node.0.into(), request));
        self.feed(MasterEvent::NodeAnswer { node, token, result });
    }

    /// Answers all calls that were held back, and from now on each call at once.
    pub fn answer_calls(&mut self) {
        self.holds_calls = false;
        for call in std::mem::take(&mut self.held_calls) {
            self.answer(call);
        }
    }

    /// Ends all running jobs; from now on jobs take no time. Returns the number of jobs that were running.
    pub fn end_jobs(&mut self) -> usize {
        self.holds_jobs = false;
        let held = std::mem::take(&mut self.held_jobs);
        let count = held.len();
        for (token, client, view, job) in held {
            match self.run((client, token), &view, job) {
                Ok(result) => self.feed(MasterEvent::JobDone { token, result }),
                Err(MasterCrash) => self.restart_master(),
            }
        }
        count
    }

    pub fn token(&mut self) -> u64 {
        self.next_token += 1;
        self.next_token
    }

    /// Sends a request over a connection, and returns its token. The reply possibly comes later.
    pub fn send(&mut self, connection: u64, request: MasterRequest) -> u64 {
        self.send_of(Caller { connection, cluster: Some(CLUSTER), ..Caller::default() }, request)
    }

    /// Sends a request of this caller, and returns its token.
    pub fn send_of(&mut self, caller: Caller, request: MasterRequest) -> u64 {
        let token = self.token();
        self.feed(MasterEvent::Request { token, caller, request: logic_request(request) });
        token
    }

    pub fn ask(&mut self, request: MasterRequest) -> Option<MasterReply> {
        // The request comes as from an operator: it names no cluster.
        let token =
            self.send_of(Caller { connection: 0, cluster: None, ..Caller::default() }, request);
        self.replies.remove(&token)
    }

    /// Returns whether the master has logged a text that contains this one.
    pub fn said(&self, text: &str) -> bool {
        self.log.iter().any(|line| line.contains(text))
    }

    pub fn status(&mut self) -> Status {
        loop {
            match self.ask(MasterRequest::Status) {
                Some(MasterReply::Status(status)) => return *status,
                // The master crashed before it replied, so the request is repeated.
                None => {}
                other => panic!("unexpected {other:?}"),
            }
        }
    }

    /// Opens a session, which sends heartbeats over a connection of its own.
    pub fn open(&mut self) -> ClientId {
        let connection = self.sessions.len() as u64 + 1;
        let token = self.send(connection, MasterRequest::Open);
        let Some(MasterReply::Opened { client, view, .. }) = self.replies.remove(&token) else {
            panic!("no session");
        };
        let renews = true;
        let follows = true;
        let expelled = false;
        let view = view.number;
        self.sessions.push(TickSession {
            client,
            view,
            renews,
            follows,
            expelled,
            acked: 0,
            spared: None,
            stirs: true,
            asking: None,
        });
        client
    }

    /// Lets [`STEP_MS`] pass, in which nodes and sessions send what is due.
    pub fn step(&mut self) {
        self.now_ms += STEP_MS;
        let nodes = self.nodes.borrow().len();
        for at in 0..nodes {
            self.step_of_node(at);
        }
        for at in 0..self.sessions.len() {
            self.step_of_session(at);
        }
        self.feed(MasterEvent::Tick);
    }

    fn step_of_node(&mut self, at: usize) {
        let (request, asking, caller) = {
            let node = &self.nodes.borrow()[at];
            if !node.alive || node.expelled {
                return;
            }
            let request = if node.joined {
                let (heard, bars) = node.logic.heartbeat_report();
                MasterRequest::Alive { identity: node.identity, heard, bars }
            } else {
                join(node)
            };
            let connection = NODE_CONNECTIONS + at as u64;
            let cluster = node.logic.cluster().filter(|_| !node.anonymous);
            (request, node.asking, Caller { connection, cluster, ..Caller::default() })
        };
        let crashes = self.crashes;
        let token = asking.unwrap_or_else(|| self.send_of(caller, request));
        let reply = self.replies.remove(&token);
        let node = &mut self.nodes.borrow_mut()[at];
        node.asking = None;
        match reply {
            Some(MasterReply::Joined { node: name }) => {
                let is_first = self.crashes == 0;
                assert!(
                    !is_first || usize::from(name.0) == at,
                    "names are given in order, each once"
                );
                node.joined = true;
            }
            Some(MasterReply::WrongCluster { .. }) => node.strangers += 1,
            Some(reply) if node.joined => {
                match HeartbeatReply::of(&reply, node.logic.held_cluster()) {
                    HeartbeatReply::Expelled => node.expelled = true,
                    HeartbeatReply::Drained => (node.expelled, node.drained) = (true, true),
                    HeartbeatReply::JoinAgain => node.joined = false,
                    HeartbeatReply::Forgotten => node.strangers += 1,
                    HeartbeatReply::Noted(note, lease_ms) => {
                        node.logic.note_master_reply(note, lease_ms)
                    }
                    HeartbeatReply::Nothing => panic!("unexpected {reply:?}"),
                }
            }
            None if node.joined && self.crashes == crashes => node.asking = Some(token),
            None => {}
            Some(other) => panic!("unexpected {other:?}"),
        }
    }

    fn step_of_session(&mut self, at: usize) {
        let session = &self.sessions[at];
        if !session.renews || session.expelled {
            return;
        }
        let client = session.client;
        let pinned_by = session.view;
        let pinned_by = if session.follows { pinned_by } else { 1 };
        let has_suspended = !session.follows;
        let heartbeat = SessionHeartbeat {
            client,
            pinned_by,
            pinned_in: 0,
            frees_in: 0,
            has_suspended,
            damage: Damage::default(),
            transitions: Default::default(),
            work: Default::default(),
            stirs: session.stirs,
        };
        let request = MasterRequest::Heartbeat {
            sessions: vec![heartbeat],
            newer_than: session.view,
            known: ClusterEpochs::default(),
            reclaims: false,
            acked: session.acked,
        };
        let asking = session.asking;
        let crashes = self.crashes;
        let token = asking.unwrap_or_else(|| self.send(at as u64 + 1, request));
        let reply = self.replies.remove(&token);
        let session = &mut self.sessions[at];
        session.asking = None;
        match reply {
            Some(MasterReply::Heartbeat { view, expelled, short, spared, .. }) => {
                if short != 0 {
                    (session.acked, session.spared) = (short, spared);
                }
                session.expelled = expelled.contains(&client);
                session.view = view.map_or(session.view, |view| view.number());
            }
            None if self.crashes == crashes => session.asking = Some(token),
            None
            | Some(
                MasterReply::WrongCluster { .. }
                | MasterReply::NotReady { .. }
                | MasterReply::Refused { .. },
            ) => {}
            Some(other) => panic!("unexpected {other:?}"),
        }
    }

    pub fn pass(&mut self, ms: u64) {
        for _ in 0..ms / STEP_MS {
            self.step();
        }
    }

    /// Lets time pass until `holds` returns true.
    pub fn until(&mut self, what: &str, mut holds: impl FnMut(&mut TickCluster) -> bool) {
        for _ in 0..600 {
            self.step();
            if holds(self) {
                return;
            }
        }
        panic!("{what} did not happen: {:#?}", self.log);
    }

    /// Returns whether the view is stable, no session needs recovery, no replica is missing, and no replica has to
    /// move.
    pub fn is_whole(&mut self) -> bool {
        let status = self.status();
        let stable = status.view.is_some_and(|view| view.change.is_none());
        let whole = status.missing_replicas == 0 && !status.rebalancing;
        stable && status.expired_sessions == 0 && whole
    }

    pub fn view(&self) -> View {
        self.master.view().expect("the cluster is formed").clone()
    }

    pub fn ask_node(&self, at: usize, request: NodeRequest) -> NodeReply {
        self.nodes.borrow_mut()[at].handle(request)
    }
}

fn join(node: &TestNode) -> MasterRequest {
    MasterRequest::Join {
        identity: node.identity,
        control: node.control.clone(),
        tcp: None,
        shm: None,
        verbs: None,
        pool_bytes: POOL,
    }
}

impl TestNode {
    /// Returns whether the node is a member of a cluster that has possibly put data there.
    pub fn holds_data(&self) -> bool {
        self.logic.held_cluster().is_some()
    }

    /// Returns the header of the node's pool.
    pub fn header(&self) -> PoolHeader {
        let words = self.pool[..PoolHeader::BYTES].try_into().expect("a pool has a header");
        PoolHeader::decode(words).expect("the header is one of this version")
    }

    pub fn handle(&mut self, request: NodeRequest) -> NodeReply {
        self.asked(Some(CLUSTER), request)
    }

    fn asked(&mut self, asker: Option<ClusterId>, request: NodeRequest) -> NodeReply {
        let step = self.logic.handle_from(asker, request);
        for effect in step.effects {
            match effect {
                NodeEffect::ZeroPool { offset, bytes } => {
                    self.pool[offset as usize..(offset + bytes) as usize].fill(0);
                }
                NodeEffect::WriteTable { offset, value } => {
                    self.pool[offset as usize..][..8].copy_from_slice(&value.to_le_bytes());
                }
                NodeEffect::WriteHeader { word, value } => {
                    self.pool[word.offset() as usize..][..8].copy_from_slice(&value.to_le_bytes());
                }
                NodeEffect::PopulatePool { .. } | NodeEffect::Living { .. } => {}
                NodeEffect::Fence { client } => {
                    self.fenced.insert(client);
                }
            }
        }
        step.reply
    }

    fn execute(&mut self, offset: u64, op: &mut VerbOp, memory: &mut [u8]) {
        let at = offset as usize;
        match op {
            VerbOp::Read { buf, .. } => {
                let pool = &self.pool[at..at + buf.len as usize];
                memory[buf.range()].copy_from_slice(pool);
            }
            VerbOp::Write { buf } => {
                self.pool[at..at + buf.len as usize].copy_from_slice(&memory[buf.range()]);
            }
            VerbOp::Cas { expected, swap, found } => {
                let word: [u8; 8] = self.pool[at..at + 8].try_into().unwrap();
                *found = u64::from_le_bytes(word);
                if found == expected {
                    self.pool[at..at + 8].copy_from_slice(&swap.to_le_bytes());
                }
            }
            VerbOp::Faa { .. } => panic!("no repair adds"),
        }
    }
}

struct MasterCrash;

/// The means by which a job reaches the nodes.
struct TickJobEnvironment {
    nodes: Rc<RefCell<Vec<TestNode>>>,
    orders: Rc<RefCell<Vec<(MnId, NodeRequest)>>>,
    client: ClientId,
    ticks: Rc<Cell<usize>>,
    crash_after: Rc<Cell<Option<usize>>>,
}

impl TickJobEnvironment {
    /// Counts a tick; never returns if the master crashes at this tick.
    async fn tick(&self) {
        if self.crash_after.get() == Some(self.ticks.get()) {
            self.crash_after.set(None);
            std::future::pending::<()>().await;
        }
        self.ticks.set(self.ticks.get() + 1);
    }
}

impl Fabric for TickJobEnvironment {
    async fn execute(&self, mut batch: VerbBatch) -> VerbBatch {
        self.tick().await;
        let mut nodes = self.nodes.borrow_mut();
        let (verbs, memory) = batch.parts_mut();
        for verb in verbs {
            let node = &mut nodes[usize::from(verb.node.0)];
            verb.result = match verb.check(node.pool.len() as u64) {
                _ if !node.alive => Err(VerbError::Unreachable),
                _ if node.fenced.contains(&self.client) => Err(VerbError::Fenced),
                Ok(()) => {
                    node.execute(verb.offset, &mut verb.op, memory);
                    Ok(())
                }
                error => error,
            };
        }
        drop(nodes);
        batch
    }
}

impl JobEnvironment for TickJobEnvironment {
    async fn ask(&self, node: MnId, request: NodeRequest) -> Result<NodeReply, String> {
        self.tick().await;
        self.orders.borrow_mut().push((node, request.clone()));
        let node = &mut self.nodes.borrow_mut()[usize::from(node.0)];
        if node.alive { Ok(node.handle(request)) } else { Err("connection refused".into()) }
    }

    fn now_us(&self) -> u64 {
        self.ticks.get() as u64
    }
}
