//! Lengths of the messages by which the master sends views.

use fusee_control::master::{ClusterEpochs, MasterReply};
use fusee_core::race::HashKey;
use fusee_core::verbs::{ClusterId, MnId};
use fusee_core::view::update::ViewUpdate;
use fusee_core::view::{Geometry, Member, PoolPlace, Subtable, View};

/// The views of a split take a few hundred bytes for every client process, however large the index is.
#[test]
fn the_views_of_a_split_are_short_messages() {
    let place = |node, offset| PoolPlace { node: MnId(node), offset };
    let bytes = Geometry::default().subtable_bytes();
    let member = |n| Member {
        node: MnId(n),
        identity: u64::from(n) << 56,
        control: format!("127.0.0.1:1234{n}"),
        tcp: Some(format!("127.0.0.1:2345{n}")),
        shm: None,
        verbs: None,
        pool_bytes: 1 << 40,
    };
    let subtable = |i: u64| Subtable::new(9, [0, 1, 2].map(|n| place(n, i * bytes)).to_vec());
    let from = View {
        number: 1000,
        cluster: ClusterId::from_word(u64::MAX).unwrap(),
        hash_key: HashKey::new([7; 16]),
        geometry: Geometry::default(),
        members: (0..3).map(member).collect(),
        regions: Vec::new(),
        directory: (0..512).collect(),
        subtables: (0..512).map(subtable).collect(),
        change: None,
    };
    let told = |view: &View, from: Option<&View>| {
        let view = Some(ViewUpdate::to(view, from));
        let expelled = Vec::new();
        let epochs = ClusterEpochs::default();
        let reply = MasterReply::Heartbeat {
            view,
            expelled,
            epochs,
            mark: 0,
            short: 0,
            spared: None,
            lease_ms: 1_000,
            behind_ms: 0,
        };
        postcard::to_stdvec(&reply).unwrap().len()
    };
    let mut old = from.clone();
    let mut whole = Vec::new();
    let mut differences = Vec::new();
    let mut next = from.splitting(&[(7, [0, 1, 2].map(|n| place(n, 512 * bytes)).to_vec())]);
    loop {
        next.check().unwrap();
        whole.push(told(&next, None));
        differences.push(told(&next, Some(&old)));
        if next.change.is_none() {
            break;
        }
        (old, next) = (next.clone(), next.advanced());
    }
    println!("whole {whole:?}, differences {differences:?} bytes");
    assert_eq!(whole.len(), 4);
    assert!(whole.iter().all(|bytes| *bytes > 8_000), "{whole:?}");
    assert!(differences.iter().all(|bytes| *bytes < 200), "{differences:?}");
}
