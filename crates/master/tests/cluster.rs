//! Tests of real masters and memory nodes over loopback, and of masters and memory nodes inside of one process.

use std::path::Path;
use std::time::{Duration, Instant};

use fusee_control::master::{
    ClusterEpochs, MasterReply, MasterRequest, MemberState, SessionHeartbeat, Status,
};
use fusee_control::node::{
    AcceptedOrders, BlockId, NodeRefusal, NodeReply, NodeRequest, OwnedBlock,
};
use fusee_control::rpc::{
    MAX_FRAME_BYTES, MasterClient, NodeClient, RpcError, Runtime, ServeError,
};
use fusee_core::data::{Redundancy, Region};
use fusee_core::layout::TableEntry;
use fusee_core::race::HashKey;
use fusee_core::stats::Damage;
use fusee_core::verbs::{ClientId, ClusterId, MnId};
use fusee_core::view::{Geometry, Member, PoolPlace, Subtable, TABLE_ENTRY_BYTES, View};
use fusee_fabric::FabricKind;
use fusee_master::record::{MasterRecord, RecordWrite};
use fusee_master::store::{MasterStore, StoreError};
use fusee_master::{FormError, MasterConfig, MasterServer, MasterStartError};
use fusee_memory_node::{MemoryNode, MemoryNodeConfig as NodeConfig, NodeStartError};

const SOON: Duration = Duration::from_secs(20);

/// Returns a geometry with regions of 256 KiB, each with 15 blocks of 16 KiB and two smaller ones.
fn geometry() -> Geometry {
    Geometry {
        region_bytes: 256 << 10,
        block_bytes: 16 << 10,
        groups_per_subtable: 2,
        max_key_bytes: 64,
        max_value_bytes: 4096,
        ..Geometry::default()
    }
}

fn config(dir: &Path) -> MasterConfig {
    MasterConfig {
        listen: "127.0.0.1:0".into(),
        data_dir: dir.join("master"),
        memory_nodes: 3,
        index_replicas: 2,
        index_keys: 100,
        geometry: geometry(),
        // The scrubber is off, because its jobs would use up client ids.
        scrub_bytes_per_s: 0,
        redundancy: Default::default(),
        ..MasterConfig::default()
    }
}

/// Starts a master that leads the cluster in its store, or a new cluster if the store has none.
fn start_formed(config: MasterConfig) -> MasterServer {
    let master = MasterServer::start(config).unwrap();
    if status(&master.client()).cluster.is_none() {
        master.form().unwrap();
    }
    master
}

fn node_config(dir: &Path, master: &MasterServer) -> NodeConfig {
    NodeConfig {
        shm_dir: Some(dir.to_owned()),
        master: master.addr().unwrap().to_string(),
        pool_bytes: 2 << 20,
        ..NodeConfig::default()
    }
}

fn start_nodes(count: usize, config: &NodeConfig) -> Vec<MemoryNode> {
    (0..count).map(|_| MemoryNode::start(config.clone()).unwrap()).collect()
}

fn events(master: &MasterServer) -> Vec<String> {
    match master.inside().call_blocking(MasterRequest::Events { after: 0 }) {
        Ok(MasterReply::Events { events, .. }) => events.into_iter().map(|e| e.text).collect(),
        other => panic!("unexpected {other:?}"),
    }
}

fn open(master: &MasterClient) -> (ClientId, View) {
    match master.call_blocking(MasterRequest::Open) {
        Ok(MasterReply::Opened { client, view, .. }) => (client, view),
        other => panic!("unexpected {other:?}"),
    }
}

fn status(master: &MasterClient) -> Status {
    match master.call_blocking(MasterRequest::Status) {
        Ok(MasterReply::Status(status)) => *status,
        other => panic!("unexpected {other:?}"),
    }
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + SOON;
    while !done() {
        assert!(Instant::now() < end, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn alloc(node: &NodeClient, client: ClientId) -> Result<BlockId, NodeRefusal> {
    match node
        .call_blocking(NodeRequest::Alloc {
            redundancy: Redundancy::Replicated,
            orders: AcceptedOrders { least: 0, most: geometry().max_order(), mixed: true },
            client,
            frozen: vec![],
            spare_of: vec![],
        })
        .unwrap()
    {
        NodeReply::Allocated { block, base: Some(0) } => Ok(block),
        NodeReply::Refused(refusal) => Err(refusal),
        other => panic!("unexpected {other:?}"),
    }
}

/// Allocates blocks until none is left, the largest first. Checks that every block is on its region's primary and is
/// given only once, and that the blocks make up all regions.
fn exhaust(view: &View, nodes: &[(MnId, NodeClient)], client: ClientId) -> Vec<BlockId> {
    let mut blocks = Vec::new();
    for (name, node) in nodes {
        loop {
            match alloc(node, client) {
                Ok(block) => {
                    assert_eq!(view.regions[block.region as usize].primary().node, *name);
                    blocks.push(block);
                }
                Err(refusal) => break assert_eq!(refusal, NodeRefusal::NoFreeBlock),
            }
        }
    }
    let given = blocks.len();
    blocks.sort_unstable();
    blocks.dedup();
    assert_eq!(blocks.len(), given, "a block was given twice");
    let regions = 0..view.regions.len() as u32;
    let all = regions.flat_map(|region| {
        let first_blocks = view.geometry.first_blocks();
        first_blocks.map(move |(frame, order)| BlockId { region, frame, order })
    });
    assert_eq!(blocks, all.collect::<Vec<_>>());
    blocks
}

#[test]
fn a_cluster_forms_lends_its_blocks_and_fences_over_tcp() {
    let dir = tempfile::tempdir().unwrap();
    let master = start_formed(config(dir.path()));
    let early = master.client().call_blocking(MasterRequest::Open);
    assert_eq!(early, Ok(MasterReply::NotReady { joined: 0, expected: 3 }));
    let nodes = start_nodes(3, &node_config(dir.path(), &master));
    let view = master.wait_formed(SOON).unwrap();
    view.check().unwrap();
    assert_eq!((view.number, view.members.len()), (1, 3));
    assert_eq!(view.subtables.len().trailing_zeros(), view.depth());
    assert_eq!(view.regions.len(), 3, "one for each node to lead");

    let (first, opened) = open(&master.client());
    let (second, _) = open(&master.client());
    assert_eq!((first, second), (ClientId(1), ClientId(2)));
    assert_eq!(opened, view);

    wait_until("joining", || nodes.iter().all(|node| node.name().is_some()));
    let clients: Vec<_> = nodes.iter().map(|node| (node.name().unwrap(), node.client())).collect();
    let blocks = exhaust(&view, &clients, first);
    let primary = view.regions[blocks[0].region as usize].primary().node;
    let _ = ();
    let (_, node) = clients.iter().find(|(name, _)| *name == primary).unwrap();
    let give = NodeRequest::SetOwner {
        block: blocks[0],
        from: first,
        to: second,
        base: Some(0),
        unless_fenced: false,
        once: false,
    };
    assert_eq!(node.call_blocking(give), Ok(NodeReply::Done));
    let owned = node.call_blocking(NodeRequest::BlocksOf { clients: vec![second] });
    let held = OwnedBlock { block: blocks[0], owner: second, base: Some(0) };
    assert_eq!(owned, Ok(NodeReply::Blocks(vec![held])));

    // The copy of the block table in the pool has the same owner, order and base.
    let place = view.regions[blocks[0].region as usize].primary();
    let holder = nodes.iter().find(|node| node.name() == Some(primary)).unwrap();
    let at = place.offset + TABLE_ENTRY_BYTES * u64::from(blocks[0].frame);
    let pool = holder.fabrics().pool();
    let [low, high] = [at, at + 4].map(|half| u64::from(pool.read_u32(half)));
    let entry = TableEntry { owner: second, order: blocks[0].order, base: Some(0) };
    assert_eq!(TableEntry::decode(high << 32 | low), Some(entry));

    assert_eq!(
        node.call_blocking(NodeRequest::Fence { clients: vec![second] }),
        Ok(NodeReply::Done)
    );
    assert_eq!(alloc(node, second), Err(NodeRefusal::Fenced { client: second }));

    let late = MemoryNode::start(node_config(dir.path(), &master)).unwrap();
    wait_until("the fourth join", || late.name() == Some(MnId(3)));
    let members = status(&master.client()).members;
    let states: Vec<MemberState> = members.iter().map(|member| member.state).collect();
    let in_view = MemberState::InView;
    assert_eq!(states[..3], [in_view; 3]);
    assert!([in_view, MemberState::Joining, MemberState::Waiting].contains(&states[3]));
}

#[test]
fn the_wrong_service_and_a_port_in_use_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let master = start_formed(config(dir.path()));
    let addr = master.addr().unwrap().to_string();
    let runtime = Runtime::start("test").unwrap();

    let wrong = NodeClient::new(&runtime, addr.clone()).call_blocking(NodeRequest::Describe);
    assert!(matches!(wrong, Err(RpcError::WrongService { .. })), "{wrong:?}");
    let node = MemoryNode::start(node_config(dir.path(), &master)).unwrap();
    let wrong = MasterClient::new(&runtime, node.control()).call_blocking(MasterRequest::Open);
    assert!(matches!(wrong, Err(RpcError::WrongService { .. })), "{wrong:?}");

    let other = MasterConfig { data_dir: dir.path().join("other"), ..config(dir.path()) };
    let taken = MasterServer::start(MasterConfig { listen: addr.clone(), ..other.clone() });
    let in_use = ServeError::PortInUse { addr: addr.clone() };
    assert!(matches!(taken, Err(MasterStartError::Control(ref error)) if *error == in_use));
    assert!(!other.data_dir.exists(), "a master that cannot listen leaves no store");
    let taken = NodeConfig { listen: addr, ..node_config(dir.path(), &master) };
    let taken = MemoryNode::start(taken);
    assert!(matches!(taken, Err(NodeStartError::Control(ref error)) if *error == in_use));

    let twice = MasterServer::start(config(dir.path()));
    assert!(matches!(twice, Err(MasterStartError::Store(StoreError::Locked { .. }))), "{twice:?}");
    let few = MasterConfig { memory_nodes: 1, ..other };
    let error = MasterServer::start(few).unwrap_err().to_string();
    assert!(error.contains("raise memory_nodes"), "{error}");
}

#[test]
fn a_restarted_master_goes_on_with_the_same_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let master = start_formed(config(dir.path()));
    let _nodes = start_nodes(3, &node_config(dir.path(), &master));
    let view = master.wait_formed(SOON).unwrap();
    let (before, _) = open(&master.client());
    let told = events(&master);
    assert!(told.iter().any(|text| text.contains("the cluster is formed")), "{told:?}");
    master.stop();

    let master = start_formed(config(dir.path()));
    let (after, same) = open(&master.client());
    assert_eq!(same, view);
    let leads = "a master leads, and goes on from its store".to_owned();
    assert_eq!(events(&master), [told, vec![leads]].concat());
    assert!(after > before, "{after} was used before");
    assert_eq!(status(&master.client()).members.len(), 3);
    master.stop();

    // The new master leads the cluster in its store, and forms no other.
    let master = start_formed(config(dir.path()));
    let error = master.form().unwrap_err().to_string();
    assert!(error.contains("already") && error.contains(&view.cluster.to_string()), "{error}");
}

#[test]
fn a_master_over_an_empty_store_waits_until_it_is_told_to_form_a_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let master = MasterServer::start(config(dir.path())).unwrap();
    let nodes = start_nodes(3, &node_config(dir.path(), &master));
    std::thread::sleep(Duration::from_millis(300));
    let told = master.client().call_blocking(MasterRequest::Open);
    let Err(error @ RpcError::WrongCluster { own: None, found: None, .. }) = told else {
        panic!("unexpected {told:?}");
    };
    assert!(error.to_string().contains("fusee form"), "{error}");
    let found = status(&master.client());
    assert_eq!((found.cluster, found.members.len()), (None, 0));
    assert!(found.problem.unwrap().contains("fusee form"));
    assert!(nodes.iter().all(|node| node.name().is_none()));
    master.stop();
    // Neither the refused request nor the joins of the nodes left anything in the store.
    let store = MasterStore::open(&dir.path().join("master")).unwrap();
    assert_eq!(store.load().unwrap(), []);
    drop(store);
    let master = MasterServer::start(config(dir.path())).unwrap();
    let cluster = master.form().unwrap();
    let _nodes = start_nodes(3, &node_config(dir.path(), &master));
    let view = master.wait_formed(SOON).unwrap();
    assert_eq!((view.cluster, status(&master.client()).cluster), (cluster, Some(cluster)));
}

#[test]
fn a_master_that_restarts_before_the_cluster_is_formed_finds_its_nodes() {
    let dir = tempfile::tempdir().unwrap();
    let master = start_formed(config(dir.path()));
    let nodes = start_nodes(2, &node_config(dir.path(), &master));
    wait_until("two joins", || nodes.iter().all(|node| node.name().is_some()));
    master.stop();
    let master = start_formed(config(dir.path()));
    let _third = MemoryNode::start(node_config(dir.path(), &master)).unwrap();
    let view = master.wait_formed(SOON).unwrap();
    let names: Vec<MnId> = view.members.iter().map(|member| member.node).collect();
    assert_eq!(names, [MnId(0), MnId(1), MnId(2)]);
}

#[test]
fn a_node_that_died_before_the_cluster_formed_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let master = start_formed(config(dir.path()));
    let mut nodes = start_nodes(2, &node_config(dir.path(), &master));
    wait_until("two joins", || nodes.iter().all(|node| node.name().is_some()));
    let dead = nodes.remove(0);
    let dead_name = dead.name();
    dead.stop();
    nodes.extend(start_nodes(2, &node_config(dir.path(), &master)));
    wait_until("forming without the dead one", || master.wait_formed(SOON).is_ok());
    let view = master.wait_formed(SOON).unwrap();
    assert!(view.members.iter().all(|member| Some(member.node) != dead_name));
}

#[test]
fn pools_that_are_too_small_say_which_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let master = start_formed(MasterConfig { memory_nodes: 2, ..config(dir.path()) });
    let small = NodeConfig { pool_bytes: 128 << 10, ..node_config(dir.path(), &master) };
    let _small = start_nodes(2, &small);
    let told = |error: &FormError| error.to_string().contains("with pools of");
    wait_until("the explanation", || master.wait_formed(Duration::ZERO).is_err_and(|e| told(&e)));
    assert!(status(&master.client()).problem.is_some());
}

// Promise DUR-5: A spare memory node takes a lost one's place.
#[test]
fn a_lost_memory_node_is_replaced_by_one_that_waits() {
    let dir = tempfile::tempdir().unwrap();
    let master = start_formed(config(dir.path()));
    let mut nodes = start_nodes(3, &node_config(dir.path(), &master));
    let before = master.wait_formed(SOON).unwrap();
    nodes.extend(start_nodes(1, &node_config(dir.path(), &master)));
    wait_until("joining", || nodes.iter().all(|node| node.name().is_some()));
    // The master needs some time to receive heartbeats over the connections that will break.
    std::thread::sleep(Duration::from_millis(100));
    let lost = nodes.remove(1);
    let name = lost.name().unwrap();
    lost.stop();
    let whole = || {
        let status = status(&master.client());
        let view = status.view.as_ref().unwrap();
        let stable = view.change.is_none() && view.member(name).is_none();
        stable && status.missing_replicas == 0
    };
    wait_until("redundancy", whole);
    let status = status(&master.client());
    let view = status.view.unwrap();
    view.check().unwrap();
    assert!(view.number > before.number && view.member(MnId(3)).is_some());
    assert!(view.subtables.iter().all(|subtable| subtable.replicas().len() == 2));
    assert!(view.regions.iter().all(|region| region.places().len() == 2));
    assert!(status.last_reconfigurations.iter().any(|change| change.lost == [name]));
    let (client, _) = open(&master.client());
    let clients: Vec<_> = nodes.iter().map(|node| (node.name().unwrap(), node.client())).collect();
    exhaust(&view, &clients, client);
}

#[test]
fn a_session_that_stops_to_renew_is_fenced_and_recovered() {
    let dir = tempfile::tempdir().unwrap();
    let config = MasterConfig { lease_ms: 3_000, ..config(dir.path()) };
    let master = start_formed(config);
    let nodes = start_nodes(3, &node_config(dir.path(), &master));
    let view = master.wait_formed(SOON).unwrap();
    let client = master.client();
    let ((alive, _), (dead, _)) = (open(&client), open(&client));
    wait_until("joining", || nodes.iter().all(|node| node.name().is_some()));
    let block = alloc(&nodes[0].client(), dead).unwrap();
    let heartbeat = SessionHeartbeat {
        client: alive,
        pinned_by: view.number,
        pinned_in: 0,
        frees_in: 0,
        has_suspended: false,
        damage: Damage::default(),
        transitions: Default::default(),
        work: Default::default(),
        stirs: true,
    };
    let renew = MasterRequest::Heartbeat {
        sessions: vec![heartbeat],
        newer_than: view.number,
        known: ClusterEpochs::default(),
        reclaims: false,
        acked: 0,
    };
    wait_until("the recovery", || {
        let renewed = client.call_blocking(renew.clone());
        let epochs = ClusterEpochs::default();
        let Ok(MasterReply::Heartbeat { behind_ms, .. }) = renewed else { panic!("{renewed:?}") };
        let nothing = MasterReply::Heartbeat {
            view: None,
            expelled: vec![],
            epochs,
            mark: 0,
            short: 0,
            spared: None,
            lease_ms: 3_000,
            behind_ms,
        };
        assert_eq!(renewed, Ok(nothing));
        status(&client).recoveries == 1
    });
    let recovery = status(&client).last_recoveries[0];
    assert_eq!(recovery.client, dead);
    for node in &nodes {
        assert_eq!(alloc(&node.client(), dead), Err(NodeRefusal::Fenced { client: dead }));
        let owned = node.client().call_blocking(NodeRequest::BlocksOf { clients: vec![dead] });
        assert_eq!(owned, Ok(NodeReply::Blocks(vec![])), "{block:?}");
    }
    assert_eq!(status(&client).open_sessions, 1);
}

#[test]
fn a_client_whose_connection_breaks_expires_soon() {
    let dir = tempfile::tempdir().unwrap();
    let master = start_formed(config(dir.path()));
    let _nodes = start_nodes(3, &node_config(dir.path(), &master));
    master.wait_formed(SOON).unwrap();
    let runtime = Runtime::start("client").unwrap();
    let stranger = MasterClient::new(&runtime, master.addr().unwrap().to_string());
    let ((gone, _), (stays, _)) = (open(&stranger), open(&master.client()));
    drop((stranger, runtime));
    wait_until("the recovery", || status(&master.client()).recoveries == 1);
    let status = status(&master.client());
    assert_eq!(status.last_recoveries[0].client, gone);
    assert_eq!(status.open_sessions, 1, "{stays} is there");
}

/// Returns those resources of this process that a cluster would use: sockets, memory, threads.
fn traces() -> Vec<String> {
    let entries = |dir: &str| std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
    // If a descriptor disappears while the directory is read, it is the descriptor of that directory.
    let fds = entries("/proc/self/fd").filter_map(|fd| std::fs::read_link(fd).ok());
    let threads = entries("/proc/self/task").map(|t| std::fs::read_to_string(t.join("comm")));
    let threads = threads.map(|name| format!("thread {}", name.unwrap_or_default().trim()));
    let mut all: Vec<String> = fds.map(|to| to.display().to_string()).chain(threads).collect();
    all.sort();
    all
}

#[test]
fn nothing_is_left_behind() {
    // Threads and descriptors are counted per process, so the test runs in a child process that runs no other test.
    if std::env::var_os("FUSEE_TEST_CHILD").is_none() {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "nothing_is_left_behind", "--test-threads=1"])
            .env("FUSEE_TEST_CHILD", "1")
            .output()
            .unwrap();
        assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    // An async runtime opens some resources once per process and keeps them, such as its signal pipe.
    drop(Runtime::start("warm-up").unwrap());
    let before = traces();
    for round in 0..2 {
        let master = start_formed(config(dir.path()));
        let nodes = start_nodes(3, &node_config(dir.path(), &master));
        if round == 0 {
            master.wait_formed(SOON).unwrap();
            assert!(traces().len() > before.len() + 10, "the test looks at the wrong place");
        }
        nodes.into_iter().for_each(MemoryNode::stop);
        master.stop();
    }
    assert_eq!(traces(), before);
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().path()).collect();
    assert_eq!(left, [dir.path().join("master")], "sockets are left");
}

#[test]
fn an_embedded_cluster_needs_no_port_and_no_file() {
    let runtime = Runtime::start("test").unwrap();
    let local = |at: usize| {
        let name = format!("memory node {at}");
        MemoryNode::start_local(&runtime, &name, 2 << 20, false, FabricKind::Shm).unwrap()
    };
    let nodes: Vec<MemoryNode> = (0..3).map(local).collect();
    let clients = nodes.iter().map(MemoryNode::client).collect();
    let settings = config(Path::new("unused")).settings();
    let master = MasterServer::start_local(&runtime, settings, clients).unwrap();
    let mut named = Vec::new();
    for node in &nodes {
        match master.client().call_blocking(node.join_request()) {
            Ok(MasterReply::Joined { node: name }) => named.push((name, node.client())),
            other => panic!("unexpected {other:?}"),
        }
    }
    let view = master.wait_formed(SOON).unwrap();
    let (client, _) = open(&master.client());
    exhaust(&view, &named, client);
    assert_eq!((master.addr(), view.members[0].tcp.clone()), (None, None));
}

/// Returns a view with so large an index that the view is longer than any message is allowed to be.
fn long_view() -> View {
    const DEPTH: u32 = 23;
    let geometry = geometry();
    let subtables = 1u64 << (DEPTH - 6);
    let member = |n: u16| Member {
        node: MnId(n),
        identity: u64::from(n) + 1,
        control: format!("127.0.0.1:{}", n + 1),
        tcp: Some("127.0.0.1:9".into()),
        shm: None,
        verbs: None,
        pool_bytes: 1 << 46,
    };
    let places =
        |at: u64| [0, 1].map(|n| PoolPlace { node: MnId(n), offset: (1 << 30) + at }).to_vec();
    let subtable =
        |i: u64| Subtable::new(17, places(i * geometry.subtable_bytes().next_multiple_of(4096)));
    View {
        number: 7,
        cluster: ClusterId::from_word(9).unwrap(),
        hash_key: HashKey::new([7; 16]),
        geometry,
        members: vec![member(0), member(1)],
        regions: vec![Region::replicated(places(1 << 45), 1)],
        directory: (0..1 << DEPTH).map(|entry| entry >> 6).collect(),
        subtables: (0..subtables).map(subtable).collect(),
        change: None,
    }
}

// Promise CHG-23: Views of any length arrive; pieces that do not fit are refused.
#[test]
fn a_view_that_is_longer_than_any_message_reaches_everybody() {
    let dir = tempfile::tempdir().unwrap();
    let view = long_view();
    view.check().unwrap();
    assert!(postcard::to_stdvec(&view).unwrap().len() > MAX_FRAME_BYTES);
    let config = MasterConfig { memory_nodes: 2, lease_ms: 60_000, ..config(dir.path()) };
    let mut store = MasterStore::open(&config.data_dir).unwrap();
    let member = |n: usize| MasterRecord::Member(view.members[n].clone());
    let records = [
        MasterRecord::Cluster(view.cluster),
        member(0),
        member(1),
        MasterRecord::View(view.clone()),
    ];
    store.persist(records.map(RecordWrite::Put).to_vec()).unwrap();
    drop(store);
    let master = MasterServer::start(config).unwrap();
    let client = master.client();
    let Ok(MasterReply::View(Some(found))) =
        client.call_blocking(MasterRequest::GetView { newer_than: 0 })
    else {
        panic!("no view")
    };
    // The master continues with the stored view, and finds that its memory nodes are absent, so the view changes. Only
    // the long parts of the view do not change.
    let is_whole = |found: &View| {
        found.directory == view.directory && found.subtables.len() == view.subtables.len()
    };
    assert!(is_whole(&found), "it comes as it is");
    let (session, opened) = open(&client);
    assert!(is_whole(&opened) && status(&client).view.as_ref().is_some_and(is_whole));
    let heartbeat = SessionHeartbeat {
        client: session,
        pinned_by: 0,
        pinned_in: 0,
        frees_in: 0,
        has_suspended: false,
        damage: Damage::default(),
        transitions: Default::default(),
        work: Default::default(),
        stirs: false,
    };
    let request = MasterRequest::Heartbeat {
        sessions: vec![heartbeat],
        newer_than: 0,
        known: ClusterEpochs::default(),
        reclaims: false,
        acked: 0,
    };
    let told = match client.call_blocking(request) {
        Ok(MasterReply::Heartbeat { view: Some(update), .. }) => update.apply(&opened).unwrap(),
        other => panic!("unexpected {other:?}"),
    };
    assert!(is_whole(&told), "a keeper that wants it whole gets it");
    // A client of another cluster gets no view.
    let runtime = Runtime::start("stranger").unwrap();
    let stranger = MasterClient::new(&runtime, client.addr());
    stranger.join(ClusterId::from_word(8).unwrap());
    let asked = stranger.call_blocking(MasterRequest::ViewPiece { number: told.number, from: 0 });
    assert!(matches!(asked, Err(RpcError::WrongCluster { .. })), "{asked:?}");
    master.stop();
}
