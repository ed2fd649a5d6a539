//! A table of every control request with the kind of peer that is allowed to make it. The table is independent of the
//! code's own rules, so that the test detects a request that is opened to clients by mistake.

// Promise SEC-21: Each control request is answered to permitted keys only.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fusee_auth::PeerKind::{self, Admin, Client, Server};
use fusee_auth::{Keyring, Secret};
use fusee_control::master::MasterReply;
use fusee_control::node::NodeReply;
use fusee_control::rpc::{
    MasterClient, MasterService, NodeClient, NodeService, RpcError, Runtime, Service, bind,
    parsers, serve,
};
use serde::de::DeserializeOwned;

/// The kind of peer that each request needs. Servers and administrators are allowed to do what a client is.
const NODE_REQUESTS: &[(&str, PeerKind)] = &[
    ("Describe", Client),
    ("Format", Server),
    ("Reserve", Server),
    ("Alloc", Client),
    ("SetOwner", Client),
    ("InTurn", Client),
    ("OfJob", Server),
    ("BlocksOf", Server),
    ("OwnersOf", Server),
    ("Fence", Server),
    ("Usage", Client),
    ("StandAt", Server),
    ("Bar", Client),
    ("Unbar", Server),
    ("Living", Server),
    ("LogAreasOf", Server),
    ("LogArea", Client),
];

const MASTER_REQUESTS: &[(&str, PeerKind)] = &[
    ("Form", Admin),
    ("Destroy", Admin),
    ("Join", Server),
    ("Open", Client),
    ("TakeOrphan", Client),
    ("HandOn", Client),
    ("Close", Client),
    ("Heartbeat", Client),
    ("Abandon", Client),
    ("Unreachable", Client),
    ("Split", Client),
    ("MoreRoom", Client),
    ("Drain", Admin),
    ("Alive", Server),
    ("GetView", Client),
    ("ViewPiece", Client),
    ("Status", Client),
    ("Owners", Client),
    ("Events", Client),
    ("FurtherClient", Client),
];

/// Returns one request of each kind, parsed from pseudo-random small bytes.
fn all<T: DeserializeOwned>() -> Vec<T> {
    let mut seed = 7u64;
    let mut random = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 40) as u8
    };
    // The first byte is the kind of the request.
    let one = |kind: u8| {
        (0..200_000).find_map(|_| {
            let drawn = usize::from(random()) % 40;
            let mut bytes: Vec<u8> = (0..drawn).map(|_| random() % 3).collect();
            bytes.resize(300, 0);
            bytes.insert(0, kind);
            parsers::drawn::<T>(&bytes)
        })
    };
    (0..64).map_while(one).collect()
}

/// Makes each request to one kind of server, with each kind of key, and checks whether the server accepts it.
fn check<S: Service<Request: Clone>>(
    requests: &[S::Request],
    table: &[(&str, PeerKind)],
    secret: &Secret,
    heard: &AtomicUsize,
    ask: impl Fn(Keyring, S::Request) -> Result<(), RpcError>,
) {
    let names: BTreeSet<&str> = requests.iter().map(S::name).collect();
    let known: BTreeSet<&str> = table.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, known, "each request has its line in the table");
    for request in requests {
        let (name, needs) = table.iter().find(|(name, _)| *name == S::name(request)).unwrap();
        for who in PeerKind::ALL {
            let before = heard.load(Ordering::SeqCst);
            let answer = ask(secret.keys(who), request.clone());
            let was_heard = heard.load(Ordering::SeqCst) > before;
            let may = who == *needs || *needs == Client;
            assert_eq!(was_heard, may, "{name} with a key of {who}: {answer:?}");
            let is_refused = matches!(answer, Err(RpcError::Keys { .. }));
            assert_eq!(is_refused, !may, "{name} with a key of {who}: {answer:?}");
        }
    }
}

#[test]
fn each_request_is_heard_from_those_that_may_ask_it_and_from_no_others() {
    let secret = Secret::random().unwrap();
    let serving = Runtime::with_keys("serves", Some(secret.keys(Server))).unwrap();
    let heard = Arc::new(AtomicUsize::new(0));

    let count = heard.clone();
    let listener = bind("127.0.0.1:0").unwrap();
    let node = serve::<NodeService, _, _>(&serving, listener, move |_, _| {
        count.fetch_add(1, Ordering::SeqCst);
        async { NodeReply::Done }
    });
    let node = node.unwrap();
    let addr = node.addr().unwrap().to_string();
    check::<NodeService>(&all(), NODE_REQUESTS, &secret, &heard, |keys, request| {
        let runtime = Runtime::with_keys("asks", Some(keys)).unwrap();
        NodeClient::new(&runtime, &addr[..]).call_blocking(request).map(drop)
    });

    let count = heard.clone();
    let listener = bind("127.0.0.1:0").unwrap();
    let master = serve::<MasterService, _, _>(&serving, listener, move |_, _| {
        count.fetch_add(1, Ordering::SeqCst);
        async { MasterReply::Done }
    });
    let master = master.unwrap();
    let addr = master.addr().unwrap().to_string();
    check::<MasterService>(&all(), MASTER_REQUESTS, &secret, &heard, |keys, request| {
        let runtime = Runtime::with_keys("asks", Some(keys)).unwrap();
        MasterClient::new(&runtime, &addr[..]).call_blocking(request).map(drop)
    });
}
