//! Answers of a session whose lease has run out, and their costs. Memory nodes are at the session's view, at a later
//! view, or silent.

// Promise LIN-22

use std::time::Duration;

use fusee_client::logic::LogicOptions;
use fusee_control::node::{MemberBars, NodeReply, NodeRequest};
use fusee_core::data::Region;
use fusee_core::error::Error;
use fusee_core::stats::OpKind;
use fusee_core::store::{ScanCursor, ScanLimits, SearchKey};
use fusee_sim::{ClusterOptions, Sim, SimClient, SimCluster};

fn cluster(sim: &Sim, memory_nodes: u16, index_replicas: u8) -> SimCluster {
    let defaults = ClusterOptions::default();
    let session = LogicOptions { op_timeout: Duration::from_millis(10), ..defaults.session };
    let options = ClusterOptions { memory_nodes, index_replicas, session, ..defaults };
    SimCluster::new(sim, &options)
}

/// Returns, for every kind of operation that can answer from READs alone, whether its answer is right; `None` for an
/// operation that gave up.
fn answers(cluster: &SimCluster, client: &SimClient) -> [Option<bool>; 5] {
    let gave_up = |error: &Error| matches!(error, Error::GaveUp { .. });
    cluster.block_on(client.process, async {
        let found = client.search(b"key", None).await.map(|found| found.value().is_some());
        let inserted = client.insert(b"key", b"other").await;
        let deleted = client.delete(b"absent", None).await;
        let mut both = [false, true];
        let keys = [b"key".as_slice(), b"absent"]
            .map(|key| SearchKey { key: client.key(key), hint: None });
        let many = client.search_many(&keys, |at, value, _| both[at] = value.is_some()).await;
        let mut cursor = ScanCursor::start();
        let mut shown = 0;
        let mut scanned = Ok(0);
        while !cursor.is_done() && scanned.is_ok() {
            scanned = client.scan(&mut cursor, ScanLimits::of_slots(8), |_| shown += 1).await;
        }
        let says = |error: Error, expected: Error| {
            assert!(gave_up(&error) || error == expected, "{error:?}");
            (!gave_up(&error)).then_some(true)
        };
        [
            found.map_or_else(|error| says(error, Error::NotFound), Some),
            inserted.map_or_else(|error| says(error, Error::AlreadyExists), |_| Some(false)),
            deleted.map_or_else(|error| says(error, Error::NotFound), |_| Some(false)),
            many.map_or_else(
                |error| says(error, Error::NotFound),
                |()| Some(both == [true, false]),
            ),
            scanned.map_or_else(|error| says(error, Error::NotFound), |_| Some(shown == 1)),
        ]
    })
}

/// Memory nodes change to a later view, one after the other. The session answers as long as more than half of the nodes
/// vouch.
fn fewer_and_fewer_vouch(seed: u64, members: u16, index_replicas: u8) {
    let sim = Sim::new(seed);
    let cluster = cluster(&sim, members, index_replicas);
    let writer = cluster.client();
    cluster.block_on(writer.process, writer.insert(b"key", b"value")).unwrap();
    let client = cluster.unheard_client();
    let view = cluster.view().clone();
    for (later, member) in (0..).zip(&view.members) {
        let vouched = 2 * (members - later) > members;
        let expected = if vouched { Some(true) } else { None };
        let said = answers(&cluster, &client);
        assert_eq!(said, [expected; 5], "{later} of {members} stand at a later view");
        let stand = NodeRequest::StandAt { cluster: view.cluster, view: view.number + 1 };
        assert_eq!(
            cluster.peek_node(member.node, stand),
            Some(NodeReply::Bars(MemberBars::default()))
        );
    }
}

/// Of five memory nodes, only the primary of the index is left. The session gives up.
fn silent_nodes_do_not_vouch(seed: u64) {
    let sim = Sim::new(seed);
    let cluster = cluster(&sim, 5, 2);
    let client = cluster.unheard_client();
    let search = async |key: &'static [u8]| {
        let found = client.search(key, None).await;
        found.map(|found| found.value().is_some())
    };
    // The first SEARCH possibly asks the memory nodes before they know the first view, and then asks again.
    assert_eq!(cluster.block_on(client.process, search(b"absent")), Ok(false));
    let phases = || client.stats().kind(OpKind::Search).phases;
    let before = phases();
    assert_eq!(cluster.block_on(client.process, search(b"absent")), Ok(false));
    assert_eq!(phases() - before, 2, "the search, and the question");
    let view = cluster.view().clone();
    let primaries: Vec<_> = view.subtables.iter().map(|subtable| subtable.primary().node).collect();
    let others = view.members.iter().filter(|member| !primaries.contains(&member.node));
    let others: Vec<_> = others.map(|member| member.node).collect();
    assert!(others.len() > 2, "{others:?}");
    others.into_iter().for_each(|node| cluster.nodes().crash(node));
    let answer = cluster.block_on(client.process, search(b"absent"));
    assert!(matches!(answer, Err(Error::GaveUp { .. })), "{answer:?}");
}

/// Number of keys that are read while a memory node is lost, and below it the length of each value.
const KEYS: u8 = 8;
const VALUE_BYTES: usize = 300;
/// Some days, in nanoseconds.
const FOR_GOOD: u64 = 1 << 50;

/// The master is away, and one of three memory nodes is lost, which has no primary of a subtable. Each object is read
/// from its replica on another node. Returns the number of objects that have a replica on the lost node and none on the
/// node that shows their slot. The other objects could have been read from any replica.
pub fn objects_are_read_from_the_replicas_that_are_left(seed: u64) -> usize {
    let sim = Sim::new(seed);
    let cluster = cluster(&sim, 3, 2);
    let heard = cluster.client();
    let unheard = cluster.unheard_client();
    let view = cluster.view().clone();
    let mut places = Vec::new();
    for key in 0..KEYS {
        // Each writer has a block of its own.
        let writer = cluster.client();
        let value = [key; VALUE_BYTES];
        cluster.block_on(writer.process, writer.insert(&[key + 1], &value)).unwrap();
        let hint = cluster.block_on(writer.process, writer.search(&[key + 1], None));
        let hint = hint.unwrap().hint().unwrap();
        let (region, _) = view.region_of(hint.word.address()).unwrap();
        places.push((view.slot_on_primary(hint.slot).node, region));
    }
    let leads = |node| view.subtables.iter().any(|subtable| subtable.primary().node == node);
    let gone = view.members.iter().map(|member| member.node).find(|node| !leads(*node));
    let Some(gone) = gone else { return 0 };
    let holds = |region: &Region, node| region.lies_on(node);
    let exposed = places.iter().filter(|(shows, at)| holds(at, gone) && !holds(at, *shows)).count();
    cluster.restart_master(FOR_GOOD);
    cluster.nodes().crash(gone);
    for client in [&heard, &unheard] {
        for key in 0..KEYS {
            let found = cluster.block_on(client.process, async {
                let found = client.search(&[key + 1], None).await;
                found.map(|found| found.value().map(<[u8]>::to_vec))
            });
            assert_eq!(found, Ok(Some(vec![key; VALUE_BYTES])), "key {key}");
        }
        let keys: Vec<[u8; 1]> = (0..KEYS).map(|key| [key + 1]).collect();
        let keys: Vec<_> =
            keys.iter().map(|key| SearchKey { key: client.key(key), hint: None }).collect();
        let mut found = 0;
        let many = client.search_many(&keys, |_, value, _| found += u8::from(value.is_some()));
        assert_eq!(cluster.block_on(client.process, many), Ok(()));
        assert_eq!(found, KEYS);
    }
    exposed
}

/// Runs all scenes of this module, with each possible number of memory nodes.
pub fn unheard(seed: u64) {
    for index_replicas in [1, 2] {
        (2..=5).for_each(|members| fewer_and_fewer_vouch(seed, members, index_replicas));
    }
    silent_nodes_do_not_vouch(seed);
}
