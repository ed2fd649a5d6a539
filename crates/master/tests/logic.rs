//! Tests of the decisions of the master and of memory nodes together, without sockets, clocks or files: forming with
//! every number of nodes and replicas, crashes after every single action, client ids.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use fusee_control::master::{MasterReply, MasterRequest, MemberState, Orphan};
use fusee_control::node::{BlockId, NodeDescription, NodeReply, NodeRequest, Usage};
use fusee_control::rpc::Caller;
use fusee_core::data::Redundancy;
use fusee_core::layout::{SizeClass, first_extent};
use fusee_core::race::HashKey;
use fusee_core::verbs::{ClientId, ClusterId, MnId};
use fusee_core::view::{Geometry, View};
use fusee_master::logic::{MasterAction, MasterEvent, MasterLogic};
use fusee_master::record::{DESTROYED, MasterRecord, RecordWrite};
use fusee_master::request_kinds::{LogicRequest, RoutedRequest};
use fusee_master::settings::{ClusterSettings, LeaseSettings};
use fusee_memory_node::logic::NodeLogic;

/// Returns a request for the logic.
fn logic_request(request: MasterRequest) -> LogicRequest {
    match RoutedRequest::from(request) {
        RoutedRequest::Logic(request) => request,
        RoutedRequest::Host(request) => panic!("the host answers {request:?}"),
    }
}

fn settings(memory_nodes: u32, index_replicas: u8, data_replicas: u8) -> ClusterSettings {
    let geometry = Geometry {
        region_bytes: 256 << 10,
        block_bytes: 16 << 10,
        groups_per_subtable: 2,
        max_key_bytes: 64,
        max_value_bytes: 4096,
        ..Geometry::default()
    };
    // Leases never end here, because no session or node sends heartbeats; `changes.rs` tests leases.
    let lease = LeaseSettings { lease_ms: u64::MAX, ..LeaseSettings::default() };
    ClusterSettings {
        memory_nodes,
        index_replicas,
        data_replicas,
        index_keys: 300,
        geometry,
        lease,
        move_bytes_per_s: 1 << 30,
        scrub_bytes_per_s: 0,
        redundancy: Default::default(),
    }
}

const POOL: u64 = 2 << 20;
const CLUSTER: ClusterId = ClusterId::from_word(1000).unwrap();

/// Returns the secret of a master, derived from the random number of its start.
fn secret(number: u64) -> HashKey {
    HashKey::new(u128::from(number).to_le_bytes())
}

const OTHER: ClusterId = ClusterId::from_word(5).unwrap();

struct LogicNode {
    description: NodeDescription,
    control: String,
    logic: NodeLogic,
    alive: bool,
    /// The name that the master has given the node.
    name: Option<MnId>,
}

/// A master, its disk and its memory nodes. Every action is carried out at once and in order.
struct LogicCluster {
    settings: ClusterSettings,
    master: MasterLogic,
    /// The stored records, which survive a crash of the master.
    disk: BTreeMap<String, MasterRecord>,
    nodes: Vec<LogicNode>,
    now_ms: u64,
    fresh: u64,
    /// The number of actions that were carried out, and the number after which the master crashes.
    actions: usize,
    crash_after: Option<usize>,
    crashes: usize,
    /// The number of actions after which another process replaces memory node 1.
    replace_after: Option<usize>,
    replaced: Option<LogicNode>,
    replies: BTreeMap<u64, MasterReply>,
    next_token: u64,
    log: Vec<String>,
}

impl LogicCluster {
    fn new(settings: ClusterSettings, pools: &[u64]) -> LogicCluster {
        let formed = MasterRecord::Cluster(CLUSTER);
        let disk = BTreeMap::from([(formed.key(), formed.clone())]);
        let master =
            MasterLogic::restore(settings.clone(), 1000, secret(1000), vec![formed]).unwrap();
        let mut world = LogicCluster {
            settings,
            master,
            disk,
            nodes: Vec::new(),
            now_ms: 0,
            fresh: 1000,
            actions: 0,
            crash_after: None,
            crashes: 0,
            replace_after: None,
            replaced: None,
            replies: BTreeMap::new(),
            next_token: 0,
            log: Vec::new(),
        };
        for pool in pools {
            world.add_node(*pool);
        }
        world
    }

    fn add_node(&mut self, pool_bytes: u64) -> usize {
        let at = self.nodes.len();
        let control = format!("node{at}:1");
        self.nodes.push(sim_node(100 + at as u64, control, pool_bytes));
        at
    }

    fn restart_master(&mut self) {
        self.fresh += 1;
        let records = self.disk.values().cloned().collect();
        self.master =
            MasterLogic::restore(self.settings.clone(), self.fresh, secret(self.fresh), records)
                .unwrap();
    }

    /// Feeds an event, and all events that follow from its actions, until the master crashes or no event is left.
    fn feed(&mut self, event: MasterEvent) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for action in self.master.handle(self.now_ms, event) {
                if self.crash_after == Some(self.actions) {
                    self.crash_after = None;
                    self.crashes += 1;
                    self.restart_master();
                    return;
                }
                if self.replace_after == Some(self.actions) {
                    let new = sim_node(900, self.nodes[1].control.clone(), POOL);
                    self.replaced = Some(std::mem::replace(&mut self.nodes[1], new));
                }
                self.actions += 1;
                events.extend(self.perform(action));
            }
        }
    }

    fn perform(&mut self, action: MasterAction) -> Option<MasterEvent> {
        match action {
            MasterAction::Persist(writes) => {
                for write in writes {
                    match write {
                        RecordWrite::Put(record) => self.disk.insert(record.key(), record),
                        RecordWrite::Remove(key) => self.disk.remove(&key),
                    };
                }
                None
            }
            // Jobs are ignored: nodes that join a formed cluster become members, and replicas move there, but
            // `changes.rs` tests that.
            MasterAction::Job { .. } => None,
            MasterAction::Reply { token, reply } => {
                assert!(self.replies.insert(token, reply).is_none(), "two replies");
                None
            }
            MasterAction::Call { node, control, token, request } => {
                let alive = self.nodes.iter_mut().find(|n| n.alive && n.control == control);
                let result = match alive {
                    Some(found) => Ok(found.logic.handle(request).reply),
                    None => Err("connection refused".to_owned()),
                };
                Some(MasterEvent::NodeAnswer { node, token, result })
            }
            MasterAction::Clear => {
                self.disk.retain(|key, _| key.starts_with(DESTROYED));
                None
            }
            MasterAction::Tell(_, _, text) => {
                self.log.push(text);
                None
            }
        }
    }

    /// Sends the master a request; returns `None` if it crashed before it replied.
    fn ask(&mut self, request: MasterRequest) -> Option<MasterReply> {
        self.ask_of(None, request)
    }

    /// Sends the master a request of a process of this cluster.
    fn ask_of(
        &mut self,
        cluster: Option<ClusterId>,
        request: MasterRequest,
    ) -> Option<MasterReply> {
        self.ask_from(Caller { cluster, ..Caller::default() }, request)
    }

    fn ask_from(&mut self, caller: Caller, request: MasterRequest) -> Option<MasterReply> {
        let token = self.next_token;
        self.next_token += 1;
        self.feed(MasterEvent::Request { token, caller, request: logic_request(request) });
        self.replies.remove(&token)
    }

    fn join(&mut self, at: usize) -> Option<MasterReply> {
        let node = &self.nodes[at];
        let identity = node.description.identity;
        let reply = self.ask(MasterRequest::Join {
            identity,
            control: node.control.clone(),
            tcp: None,
            shm: None,
            verbs: None,
            pool_bytes: node.description.pool_bytes,
        });
        // Another process in the place of the node does not get the reply.
        let same = self.nodes[at].description.identity == identity;
        if let Some(MasterReply::Joined { node }) = reply
            && same
        {
            let before = self.nodes[at].name.replace(node);
            assert!(before.is_none_or(|before| before == node), "renamed");
        }
        reply
    }

    /// Lets time pass. Meanwhile, nodes without a name join.
    fn pass(&mut self, ms: u64) {
        for _ in 0..ms / 50 {
            self.now_ms += 50;
            for at in 0..self.nodes.len() {
                if self.nodes[at].alive && self.nodes[at].name.is_none() {
                    self.join(at);
                }
            }
            self.feed(MasterEvent::Tick);
        }
    }

    fn form(&mut self) -> View {
        for _ in 0..100 {
            self.pass(500);
            if let Some(view) = self.master.view() {
                let view = view.clone();
                self.check(&view);
                return view;
            }
        }
        panic!("not formed: {:#?}", self.log);
    }

    fn usage(&mut self, name: MnId) -> Usage {
        let node = self.nodes.iter_mut().find(|node| node.name == Some(name)).unwrap();
        match node.logic.handle(NodeRequest::Usage).reply {
            NodeReply::Usage(usage) => usage,
            other => panic!("unexpected {other:?}"),
        }
    }

    /// Checks that the view and the memory nodes agree, and that nodes have reserved nothing that the view does not
    /// use.
    fn check(&mut self, view: &View) {
        view.check().unwrap();
        let geometry = view.geometry;
        assert_eq!(view.members.len(), self.settings.memory_nodes as usize);
        assert!(!view.regions.is_empty());
        let replicas = usize::from(self.settings.index_replicas);
        assert!(view.subtables.iter().all(|s| s.replicas().len() == replicas));
        let replicas = usize::from(self.settings.data_replicas);
        assert!(view.regions.iter().all(|r| r.places().len() == replicas));
        assert_eq!(view.directory, (0..view.subtables.len() as u32).collect::<Vec<_>>());
        assert!(view.subtables.iter().all(|s| u32::from(s.local_depth) == view.depth()));
        for member in &view.members {
            let regions = view.regions.iter().map(|r| (r.places(), geometry.region_bytes));
            let tables = view.subtables.iter().map(|s| (s.replicas(), geometry.subtable_bytes()));
            let mut ranges: Vec<(u64, u64)> = regions
                .chain(tables)
                .flat_map(|(places, bytes)| places.iter().map(move |p| (p, bytes)))
                .filter(|(place, _)| place.node == member.node)
                .map(|(place, bytes)| (place.offset, place.offset + bytes))
                .collect();
            ranges.sort_unstable();
            assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0), "overlap");
            let end = first_extent(member.pool_bytes) + member.pool_bytes;
            assert!(ranges.last().is_none_or(|last| last.1 <= end));
            let bytes: u64 = ranges.iter().map(|(start, end)| end - start).sum();
            let primary = |r: &&fusee_core::data::Region| r.primary().node == member.node;
            let primaries = view.regions.iter().filter(primary).count() as u64;
            let usage = self.usage(member.node);
            assert_eq!(usage.reserved_bytes, bytes, "reserved but not in the view");
            let frames = u64::from(geometry.frames_per_region());
            assert_eq!(usage.led_bytes, primaries * frames * geometry.frame_bytes());
        }
    }

    /// Opens a session, and takes all orphaned blocks for it.
    fn open(&mut self) -> Option<(ClientId, Vec<Orphan>)> {
        let (client, view) = match self.ask(MasterRequest::Open)? {
            MasterReply::Opened { client, view, .. } => (client, view.number),
            other => panic!("unexpected {other:?}"),
        };
        let class = SizeClass::from_code(2).unwrap();
        let mut taken = Vec::new();
        loop {
            match self.ask(MasterRequest::TakeOrphan {
                redundancy: Redundancy::Replicated,
                turn: 0,
                adopted: vec![],
                client,
                class: Some(class),
                full: false,
                view,
            })? {
                MasterReply::Orphan { orphan: Some(orphan), .. } => taken.push(orphan),
                MasterReply::Orphan { orphan: None, .. } => break,
                other => panic!("unexpected {other:?}"),
            }
        }
        taken.sort_by_key(|orphan| orphan.block);
        Some((client, taken))
    }
}

fn sim_node(identity: u64, control: String, pool_bytes: u64) -> LogicNode {
    let description = NodeDescription { identity, pool_bytes, tcp: None, shm: None, verbs: None };
    let logic = NodeLogic::new(description.clone());
    LogicNode { description, control, logic, alive: true, name: None }
}

#[test]
fn a_cluster_forms_with_every_number_of_nodes_and_replicas() {
    for nodes in 1..=5u32 {
        for index in 1..=nodes as u8 {
            for data in 1..=nodes as u8 {
                let mut world =
                    LogicCluster::new(settings(nodes, index, data), &vec![POOL; nodes as usize]);
                let view = world.form();
                let primaries = |node: MnId| {
                    view.regions.iter().filter(|region| region.primary().node == node).count()
                };
                let counts: Vec<usize> = view.members.iter().map(|m| primaries(m.node)).collect();
                let least = counts.iter().min().unwrap();
                let most = counts.iter().max().unwrap();
                assert!(most - least <= 2, "{nodes} {index} {data}: {counts:?}");
            }
        }
    }
}

#[test]
fn few_regions_are_made_at_first() {
    let mut world = LogicCluster::new(settings(3, 2, 2), &[POOL, POOL / 2, POOL / 2]);
    let view = world.form();
    assert_eq!(view.regions.len(), 3, "about one for each node to lead");
}

#[test]
fn nothing_is_answered_before_the_nodes_are_there() {
    let mut world = LogicCluster::new(settings(3, 2, 2), &[POOL, POOL]);
    world.pass(1000);
    let not_ready = Some(MasterReply::NotReady { joined: 2, expected: 3 });
    assert_eq!(world.ask(MasterRequest::Open), not_ready);
    assert_eq!(world.ask(MasterRequest::GetView { newer_than: 0 }), not_ready);
    world.add_node(POOL);
    let view = world.form();
    let get = |newer_than| MasterRequest::GetView { newer_than };
    assert_eq!(world.ask(get(0)), Some(MasterReply::View(Some(view))));
    assert_eq!(world.ask(get(1)), Some(MasterReply::View(None)));
}

#[test]
fn joins_are_idempotent_and_names_are_never_given_twice() {
    let mut world = LogicCluster::new(settings(3, 2, 2), &[POOL, POOL]);
    for _ in 0..3 {
        assert_eq!(world.join(0), Some(MasterReply::Joined { node: MnId(0) }));
        assert_eq!(world.join(1), Some(MasterReply::Joined { node: MnId(1) }));
        world.restart_master();
    }
    // A new process at the address of an old one takes the old one's place, under another name.
    world.nodes[0] = sim_node(900, world.nodes[0].control.clone(), POOL);
    assert_eq!(world.join(0), Some(MasterReply::Joined { node: MnId(2) }));
    world.restart_master();
    world.add_node(POOL);
    let view = world.form();
    let names: Vec<u16> = view.members.iter().map(|member| member.node.0).collect();
    assert_eq!(names, [1, 2, 3]);

    // A node that the view lists cannot change its address. A new process at the old address becomes a member.
    let at = std::mem::replace(&mut world.nodes[1].control, "elsewhere:1".into());
    assert!(matches!(world.join(1), Some(MasterReply::Refused { .. })));
    world.nodes[1].control = at;
    let late = world.add_node(POOL);
    assert_eq!(world.join(late), Some(MasterReply::Joined { node: MnId(4) }));
    let Some(MasterReply::Status(status)) = world.ask(MasterRequest::Status) else { panic!() };
    let states: Vec<MemberState> = status.members.iter().map(|member| member.state).collect();
    let in_view = MemberState::InView;
    assert_eq!(states, [in_view; 4]);
}

#[test]
fn a_join_that_makes_no_sense_is_refused_and_leaves_no_trace() {
    let mut world = LogicCluster::new(settings(1, 1, 1), &[]);
    let join = |control: &str, pool_bytes| MasterRequest::Join {
        identity: 1,
        control: control.into(),
        tcp: None,
        shm: None,
        verbs: None,
        pool_bytes,
    };
    for request in [join("", POOL), join("a:1", 0), join(&"x".repeat(10_000), POOL)] {
        assert!(matches!(world.ask(request), Some(MasterReply::Refused { .. })));
    }
    assert_eq!(world.disk.len(), 1, "{:?}", world.disk);
}

// Promise MST-1: A cluster is formed, whenever the master crashes.
#[test]
fn a_crash_after_any_action_ends_in_a_formed_cluster() {
    let mut longest = 0;
    for crash_after in 0.. {
        let mut world = LogicCluster::new(settings(3, 2, 2), &[POOL; 3]);
        world.crash_after = Some(crash_after);
        let view = world.form();
        assert_eq!(world.crashes, usize::from(world.crash_after.is_none()));
        if world.crashes == 0 {
            break;
        }
        longest = crash_after;
        // The formed cluster stays as it is.
        world.restart_master();
        world.pass(3000);
        assert_eq!(world.master.view(), Some(&view));
        assert!(world.open().is_some());
    }
    assert!(longest > 50, "only {longest} actions: the test does not reach the reservations");
}

#[test]
fn a_node_that_dies_at_any_moment_of_the_forming_is_replaced() {
    for dies_after in 0..60 {
        let mut world = LogicCluster::new(settings(3, 2, 2), &[POOL; 3]);
        world.crash_after = Some(dies_after);
        world.pass(50);
        // Master and node have ended together, and a new process starts at the node's address.
        if world.master.view().is_some() {
            break;
        }
        world.nodes[1] = sim_node(900, world.nodes[1].control.clone(), POOL);
        let view = world.form();
        assert!(view.members.iter().any(|member| member.identity == 900));
    }
}

#[test]
fn a_process_that_takes_a_nodes_place_meanwhile_is_noticed() {
    for replace_after in 0..200 {
        let mut world = LogicCluster::new(settings(3, 2, 2), &[POOL; 3]);
        world.replace_after = Some(replace_after);
        for _ in 0..400 {
            world.pass(50);
            if world.master.view().is_some() {
                break;
            }
        }
        let formed = world.master.view().cloned();
        let view = formed.unwrap_or_else(|| panic!("{replace_after}: {:#?}", world.log));
        let Some(old) = world.replaced.take() else {
            assert!(replace_after > 50, "the test does not reach the reservations");
            return;
        };
        // The process that the view names, be it the old one or the new one, has reserved all memory in the view.
        let mut members = view.members.iter();
        let Some(member) = members.find(|member| member.control == "node1:1") else {
            // The view names the old process. The new process serves no cluster and shows no view. The master has
            // noticed this at once.
            assert!(world.log.iter().any(|line| line.contains("another process is in its place")));
            continue;
        };
        if member.identity != 900 {
            world.nodes[1] = LogicNode { name: Some(member.node), ..old };
        }
        world.check(&view);
    }
    panic!("200 actions do not form a cluster");
}

#[test]
fn a_dead_node_does_not_keep_a_spare_one_from_forming() {
    let mut world = LogicCluster::new(settings(3, 2, 2), &[POOL; 2]);
    world.pass(100);
    world.nodes[0].alive = false;
    world.add_node(POOL);
    world.add_node(POOL);
    let view = world.form();
    assert!(view.members.iter().all(|member| member.identity != 100));
}

#[test]
fn a_node_of_another_cluster_is_named_until_it_is_restarted() {
    let mut world = LogicCluster::new(settings(2, 1, 1), &[POOL; 2]);
    let foreign = NodeRequest::Format { cluster: OTHER, attempt: 1 };
    world.nodes[0].logic.handle(foreign);
    world.pass(5000);
    assert!(world.master.view().is_none());
    assert!(world.log.iter().any(|text| text.contains("restart it")), "{:?}", world.log);
    world.nodes[0] = sim_node(900, world.nodes[0].control.clone(), POOL);
    world.form();
}

#[test]
fn pools_that_are_too_small_are_refused_with_the_size_that_helps() {
    let mut world = LogicCluster::new(settings(2, 2, 2), &[64 << 10; 2]);
    world.pass(1000);
    let Some(MasterReply::Refused { reason }) = world.ask(MasterRequest::Open) else { panic!() };
    let (_, size) = reason.split_once("with pools of ").expect("the size that helps");
    let mib: u64 = size.split_once(" MiB each").expect("in MiB").0.parse().unwrap();
    let logged = world.log.iter().filter(|text| text.contains("with pools of")).count();
    assert_eq!(logged, 1, "said once");
    for at in 0..2 {
        world.nodes[at] = sim_node(900 + at as u64, world.nodes[at].control.clone(), mib << 20);
    }
    world.form();
}

// Promise MST-2: Client ids never recur.
#[test]
fn client_ids_never_repeat_whenever_the_master_crashes() {
    let mut world = LogicCluster::new(settings(1, 1, 1), &[POOL]);
    world.form();
    let mut seen = BTreeSet::new();
    for round in 0..300 {
        // The master crashes now and then: before it stores a record, between the record and the reply, or after the
        // reply.
        if round % 7 == 0 {
            world.crash_after = Some(world.actions + round % 3);
        }
        if let Some((client, _)) = world.open() {
            assert!(client != ClientId::NOBODY && seen.insert(client), "{client} twice");
        }
    }
    assert!(world.crashes > 20 && seen.len() > 250);
    let records =
        world.disk.values().filter(|r| matches!(r, MasterRecord::ClientIds { .. })).count();
    assert_eq!(records, 1);
}

/// Returns one of the largest blocks of a region, by its number.
fn block(region: u32, number: u32) -> BlockId {
    let order = settings(1, 1, 1).geometry.max_order();
    BlockId { region, frame: number << order, order }
}

fn orphan(number: u32, owner: ClientId, first: u32) -> Orphan {
    let class = SizeClass::from_code(2).unwrap();
    Orphan { block: block(0, number), owner, class, first, base: Some(0), marked: Some(1) }
}

#[test]
fn orphans_pass_to_one_later_session_each() {
    let mut world = LogicCluster::new(settings(1, 1, 1), &[POOL]);
    world.form();
    let (first, _) = world.open().unwrap();
    let mine = vec![orphan(3, first, 5), orphan(4, first, 0)];
    let close =
        MasterRequest::Close { client: first, orphans: mine.clone(), work: Default::default() };
    assert_eq!(world.ask(close.clone()), Some(MasterReply::Done));
    assert_eq!(world.ask(close), Some(MasterReply::Done), "repeated");
    let (second, given) = world.open().unwrap();
    assert_eq!(given, mine);
    let (_, none) = world.open().unwrap();
    assert_eq!(none, []);

    // A session is allowed to hand on a block that it was given, under the owner in the tables, with more of it
    // allocated.
    let used = orphan(3, first, 9);
    let taken_over = orphan(4, second, 0);
    let orphans = vec![used, taken_over];
    assert_eq!(
        world.ask(MasterRequest::Close { client: second, orphans, work: Default::default() }),
        Some(MasterReply::Done)
    );
    let other_class = SizeClass::from_code(3).unwrap();
    let class = Some(other_class);
    let request = MasterRequest::TakeOrphan {
        redundancy: Redundancy::Replicated,
        client: ClientId(3),
        turn: 0,
        adopted: vec![],
        class,
        full: false,
        view: 1,
    };
    let nothing = MasterReply::Orphan { orphan: None, owner_lives: false };
    assert_eq!(world.ask(request), Some(nothing), "of another class");
    let (third, given) = world.open().unwrap();
    assert_eq!(given, [used, taken_over]);
    // A session cannot hand on a block that was never its own, or one that does not exist.
    let wrong = [
        orphan(5, second, 0),
        Orphan { block: block(99, 0), ..orphan(0, third, 0) },
        orphan(15, third, 0),
        orphan(6, third, u32::MAX),
    ];
    for wrong in wrong {
        let (client, _) = world.open().unwrap();
        let wrong = Orphan { owner: if wrong.owner == third { client } else { second }, ..wrong };
        let refused = world.ask(MasterRequest::Close {
            client,
            orphans: vec![wrong],
            work: Default::default(),
        });
        assert!(matches!(refused, Some(MasterReply::Refused { .. })), "{wrong:?}");
    }
    // According to this request `HandOn`, fewer objects of the block are allocated than when the block was given. So
    // the request is refused.
    let orphans = vec![orphan(3, first, 8)];
    let refused =
        world.ask(MasterRequest::Close { client: third, orphans, work: Default::default() });
    assert!(matches!(refused, Some(MasterReply::Refused { .. })), "{refused:?}");
    // The session perhaps never learned of a block that it does not mention, so the block is given again.
    assert_eq!(world.open().unwrap().1, [taken_over]);
    let never =
        MasterRequest::Close { client: ClientId(4000), orphans: vec![], work: Default::default() };
    assert!(matches!(world.ask(never), Some(MasterReply::Refused { .. })));
}

#[test]
fn the_master_tells_who_may_own_blocks() {
    let mut world = LogicCluster::new(settings(1, 1, 1), &[POOL]);
    assert!(matches!(world.ask(MasterRequest::Owners), Some(MasterReply::NotReady { .. })));
    world.form();
    let (first, _) = world.open().unwrap();
    let (second, _) = world.open().unwrap();
    let mine = orphan(3, first, 5);
    let close =
        MasterRequest::Close { client: first, orphans: vec![mine], work: Default::default() };
    assert_eq!(world.ask(close), Some(MasterReply::Done));
    let Some(MasterReply::Owners(owners)) = world.ask(MasterRequest::Owners) else { panic!() };
    assert_eq!((owners.open, owners.expired), (vec![second], vec![]));
    assert_eq!(owners.orphans, [mine]);
    assert!(second < owners.unused_from);
    assert_eq!(world.open().unwrap().0, owners.unused_from);
    // A block that was given to a session is no orphaned block any more.
    let Some(MasterReply::Owners(owners)) = world.ask(MasterRequest::Owners) else { panic!() };
    assert_eq!((owners.open.len(), owners.orphans), (2, vec![]));
}

#[test]
fn a_restart_keeps_orphans_and_sessions() {
    let mut world = LogicCluster::new(settings(1, 1, 1), &[POOL]);
    world.form();
    let (first, _) = world.open().unwrap();
    let (second, _) = world.open().unwrap();
    let close = |client, block| MasterRequest::Close {
        client,
        orphans: vec![orphan(block, client, 0)],
        work: Default::default(),
    };
    assert_eq!(world.ask(close(first, 1)), Some(MasterReply::Done));
    world.restart_master();
    assert_eq!(world.open().unwrap().1, [orphan(1, first, 0)]);
    world.restart_master();
    assert_eq!(world.open().unwrap().1, [], "handed out before the restart");
    assert_eq!(world.ask(close(second, 2)), Some(MasterReply::Done));
    assert_eq!(world.open().unwrap().1, [orphan(2, second, 0)]);
    // A repeated `Close` must not give the block again after another session got it.
    world.restart_master();
    assert_eq!(world.ask(close(second, 2)), Some(MasterReply::Done));
    assert_eq!(world.open().unwrap().1, []);
}

#[test]
fn a_orphan_is_never_handed_out_twice_whenever_the_master_crashes() {
    let mut handed_out = 0;
    for crash_after in 0..12 {
        let mut world = LogicCluster::new(settings(1, 1, 1), &[POOL]);
        world.form();
        world.crash_after = Some(world.actions + crash_after);
        let mut taken = Vec::new();
        if let Some((client, _)) = world.open() {
            let orphans = vec![orphan(3, client, 0)];
            world.ask(MasterRequest::Close { client, orphans, work: Default::default() });
        }
        for _ in 0..3 {
            taken.extend(world.open().into_iter().flat_map(|(_, taken)| taken));
        }
        assert!(taken.len() <= 1, "{taken:?}");
        handed_out += taken.len();
    }
    assert!(handed_out > 4);
}

#[test]
fn a_cluster_is_formed_when_somebody_asks_for_it_and_only_one() {
    let mut world = LogicCluster::new(settings(1, 1, 1), &[]);
    world.disk.clear();
    world.restart_master();
    world.add_node(POOL);
    let nobody = MasterReply::WrongCluster { cluster: None };
    assert_eq!(world.join(0), Some(nobody.clone()));
    world.now_ms += 10_000;
    world.feed(MasterEvent::Tick);
    for request in [MasterRequest::Open, MasterRequest::GetView { newer_than: 0 }] {
        assert_eq!(world.ask(request), Some(nobody.clone()));
    }
    assert!(world.disk.is_empty(), "{:?}", world.disk);
    let form = |cluster| MasterRequest::Form { cluster };
    assert_eq!(world.ask(form(CLUSTER)), Some(MasterReply::Done));
    // The request is repeated, because its answer was possibly lost, and the master has possibly crashed since.
    assert_eq!(world.ask(form(CLUSTER)), Some(MasterReply::Done));
    world.restart_master();
    assert_eq!(world.ask(form(CLUSTER)), Some(MasterReply::Done));
    let other = world.ask(form(OTHER));
    assert!(matches!(&other, Some(MasterReply::Refused { reason }) if reason.contains("already")));
    world.pass(1_000);
    assert_eq!(world.master.view().map(|view| view.cluster), Some(CLUSTER));
    let wrong = MasterReply::WrongCluster { cluster: Some(CLUSTER) };
    assert_eq!(world.ask_of(Some(OTHER), MasterRequest::Open), Some(wrong));
    let opened = world.ask_of(Some(CLUSTER), MasterRequest::Open);
    assert!(matches!(opened, Some(MasterReply::Opened { .. })), "{opened:?}");
}

/// Returns the join of a memory node whose addresses are all on one host.
fn joins(identity: u64, host: &str, fabrics: &[&str]) -> MasterRequest {
    let at = |fabric, port| fabrics.contains(&fabric).then(|| format!("{host}:{port}"));
    MasterRequest::Join {
        identity,
        control: format!("{host}:{identity}"),
        tcp: at("tcp", 1000 + identity),
        shm: fabrics.contains(&"shm").then(|| format!("/tmp/{identity}.sock")),
        verbs: at("verbs", 2000 + identity),
        pool_bytes: POOL,
    }
}

// Promise MST-5: A node that clients could not reach does not join.
#[test]
fn a_node_that_others_could_not_reach_is_refused() {
    let elsewhere = Caller { elsewhere: true, ..Caller::default() };
    let here = Caller::default();
    // The cluster is on one machine, or on several.
    for (host, from) in [("127.0.0.1", here), ("10.0.0.2", elsewhere)] {
        let mut world = LogicCluster::new(settings(9, 1, 1), &[]);
        let both = ["shm", "tcp"];
        let mut ask = |from: Caller, request: MasterRequest| match world.ask_from(from, request) {
            Some(MasterReply::Joined { node }) => Ok(node.0),
            Some(MasterReply::Refused { reason }) => Err(reason),
            other => panic!("unexpected {other:?}"),
        };
        assert_eq!(ask(from, joins(1, host, &both)), Ok(0));
        assert_eq!(ask(from, joins(2, host, &both)), Ok(1));
        for (from, request, why) in [
            (here, joins(3, "0.0.0.0", &both), "leads nowhere"),
            (elsewhere, joins(3, "127.0.0.1", &both), "on its own machine only"),
            (from, joins(3, host, &["verbs"]), "serve what they do"),
        ] {
            let reason = ask(from, request).unwrap_err();
            assert!(reason.contains(why), "{reason}");
        }
        if from == elsewhere {
            let reason = ask(here, joins(3, "127.0.0.1", &both)).unwrap_err();
            assert!(reason.contains("mn0 is at 10.0.0.2:1"), "{reason}");
        }
        assert_eq!(ask(from, joins(3, host, &both)), Ok(2));
    }
}

#[test]
fn who_joins_a_formed_cluster_serves_what_its_members_do() {
    let mut world = LogicCluster::new(settings(2, 1, 1), &[]);
    for at in 0..2 {
        world.add_node(POOL);
        world.nodes[at].control = format!("10.0.0.2:{}", 100 + at);
        let joined = world.ask(joins(100 + at as u64, "10.0.0.2", &["shm", "tcp"]));
        assert!(matches!(joined, Some(MasterReply::Joined { .. })), "{joined:?}");
    }
    world.pass(1_000);
    assert!(world.master.view().is_some(), "{:#?}", world.log);
    let mut is_taken = |identity, host: &str, fabrics: &[&str]| {
        matches!(world.ask(joins(identity, host, fabrics)), Some(MasterReply::Joined { .. }))
    };
    assert!(!is_taken(7, "10.0.0.2", &["shm"]));
    assert!(!is_taken(7, "10.0.0.2", &["tcp"]), "sessions over shm could not follow");
    assert!(!is_taken(7, "10.0.0.2", &[]));
    assert!(is_taken(7, "10.0.0.2", &["shm", "tcp", "verbs"]));
    assert!(is_taken(8, "10.0.0.3", &["tcp"]), "shared memory leads to no other machine");
}
