//! Tests of the client of several masters: it finds the leader, and repeats only requests that have had no effect.

// Promise MST-4

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fusee_control::master::{ClusterEpochs, MasterReply, MasterRequest};
use fusee_control::rpc::{
    Caller, MasterClient, MasterService, RpcError, Runtime, Server, bind, serve,
};
use fusee_control::view_pieces::{piece, shorten, written};
use fusee_core::data::Policy;
use fusee_core::race::HashKey;
use fusee_core::verbs::{ClientId, ClusterId, MnId};
use fusee_core::view::{Geometry, PoolPlace, Subtable, View};

/// The possible roles of a fake master; a test can change them while the master runs.
const LEAD: u64 = 0;
const STAND_BY: u64 = 1;
const BREAK: u64 = 2;
const LEAD_OTHER: u64 = 3;
const OTHER: ClusterId = ClusterId::from_word(7).unwrap();

/// A fake master that counts its requests.
struct Fake {
    server: Server,
    addr: String,
    role: Arc<AtomicU64>,
    asked: Arc<AtomicU64>,
}

impl Fake {
    fn start(runtime: &Runtime, role: u64, leader: Option<&str>) -> Fake {
        let role = Arc::new(AtomicU64::new(role));
        let asked = Arc::new(AtomicU64::new(0));
        let acts = Arc::clone(&role);
        let counts = Arc::clone(&asked);
        let leader = leader.map(str::to_owned);
        let handler = move |caller: Caller, _: MasterRequest| {
            counts.fetch_add(1, Ordering::SeqCst);
            let role = acts.load(Ordering::SeqCst);
            let leader = leader.clone();
            async move {
                match role {
                    LEAD => MasterReply::Done,
                    STAND_BY => MasterReply::NotLeader { leader },
                    LEAD_OTHER if caller.cluster != Some(OTHER) => {
                        MasterReply::WrongCluster { cluster: Some(OTHER) }
                    }
                    LEAD_OTHER => MasterReply::Done,
                    _ => std::future::pending().await,
                }
            }
        };
        let listener = bind("127.0.0.1:0").unwrap();
        let server = serve::<MasterService, _, _>(runtime, listener, handler).unwrap();
        let addr = server.addr().unwrap().to_string();
        Fake { server, addr, role, asked }
    }

    fn asked(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }
}

fn runtime() -> Runtime {
    Runtime::start("test-masters").unwrap()
}

fn nobody() -> String {
    bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

fn client(runtime: &Runtime, addrs: &[&str]) -> MasterClient {
    MasterClient::new(runtime, addrs.join(",")).with_deadline(Duration::from_secs(20))
}

// Promise MST-7: The leader is found; only requests without effect are repeated.
#[test]
fn the_leader_is_found_past_the_dead_and_the_stand_bys_and_remembered() {
    let runtime = runtime();
    let first = Fake::start(&runtime, STAND_BY, None);
    let leads = Fake::start(&runtime, LEAD, None);
    let client = client(&runtime, &[&nobody(), &first.addr, &leads.addr]);
    for _ in 0..3 {
        assert_eq!(client.call_blocking(MasterRequest::Status), Ok(MasterReply::Done));
    }
    assert_eq!((first.asked(), leads.asked()), (1, 3));
    assert_eq!(client.answered_by(), leads.addr);
    // Clones of the client know the leader, too.
    assert_eq!(client.clone().call_blocking(MasterRequest::Open), Ok(MasterReply::Done));
    assert_eq!((first.asked(), leads.asked()), (1, 4));
}

#[test]
fn a_leader_that_a_stand_by_names_is_followed_even_if_it_is_not_on_the_list() {
    let runtime = runtime();
    let leads = Fake::start(&runtime, LEAD, None);
    let other = Fake::start(&runtime, STAND_BY, None);
    let knows = Fake::start(&runtime, STAND_BY, Some(&leads.addr));
    let one = client(&runtime, &[&knows.addr]);
    assert_eq!(one.call_blocking(MasterRequest::Status), Ok(MasterReply::Done));
    assert_eq!(one.answered_by(), leads.addr);
    let listed = client(&runtime, &[&knows.addr, &other.addr, &leads.addr]);
    assert_eq!(listed.call_blocking(MasterRequest::Status), Ok(MasterReply::Done));
    assert_eq!((knows.asked(), other.asked(), leads.asked()), (2, 0, 2));
}

#[test]
fn a_call_waits_for_the_end_of_an_election() {
    let runtime = runtime();
    let dead = nobody();
    let next = Fake::start(&runtime, STAND_BY, None);
    // This master stands by, and still names the leader that has died.
    let stale = Fake::start(&runtime, STAND_BY, Some(&dead));
    let client = client(&runtime, &[&dead, &stale.addr, &next.addr]);
    let role = Arc::clone(&next.role);
    let election = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        role.store(LEAD, Ordering::SeqCst);
    });
    let begun = Instant::now();
    assert_eq!(client.call_blocking(MasterRequest::Open), Ok(MasterReply::Done));
    assert!(begun.elapsed() >= Duration::from_millis(300));
    election.join().unwrap();
}

#[test]
fn stand_bys_that_name_each_other_end_in_no_leader_and_the_dead_at_once() {
    let runtime = runtime();
    let first = Fake::start(&runtime, STAND_BY, None);
    let second = Fake::start(&runtime, STAND_BY, Some(&first.addr));
    let hurried = MasterClient::new(&runtime, format!("{}, {}", second.addr, first.addr))
        .with_deadline(Duration::from_millis(200));
    let error = hurried.call_blocking(MasterRequest::Open).unwrap_err();
    assert!(matches!(error, RpcError::NoLeader { .. }), "{error}");
    assert!(!error.may_take_effect());
    let begun = Instant::now();
    let error = client(&runtime, &[&nobody(), &nobody()]).call_blocking(MasterRequest::Status);
    assert!(matches!(error, Err(RpcError::Unreachable { .. })), "{error:?}");
    assert!(
        begun.elapsed() < Duration::from_secs(10),
        "nobody is about to lead: no use in waiting"
    );
}

/// The operating system of a leader that hangs accepts connections, but no answer arrives. A request that was never
/// sent to that leader has had no effect, however little time is left.
#[test]
fn a_leader_that_stands_still_ends_in_no_leader() {
    let runtime = runtime();
    let still = bind("127.0.0.1:0").unwrap();
    let still_at = still.local_addr().unwrap().to_string();
    let stands_by = Fake::start(&runtime, STAND_BY, Some(&still_at));
    let hurried = client(&runtime, &[&stands_by.addr]).with_deadline(Duration::from_secs(3));
    let error = hurried.call_blocking(MasterRequest::Open).unwrap_err();
    assert!(matches!(error, RpcError::NoLeader { .. }), "{error}");
    assert!(!error.may_take_effect());
    let alone = client(&runtime, &[&still_at]).with_deadline(Duration::from_millis(500));
    let error = alone.call_blocking(MasterRequest::Open).unwrap_err();
    assert!(matches!(error, RpcError::Unreachable { .. }), "{error}");
}

// Promise MST-7
#[test]
fn a_request_that_may_have_had_an_effect_is_not_repeated_but_the_next_goes_elsewhere() {
    let runtime = runtime();
    let silent = Fake::start(&runtime, BREAK, None);
    let leads = Fake::start(&runtime, LEAD, None);
    let client = client(&runtime, &[&silent.addr, &leads.addr]);
    // The deadline is long enough to open a connection, but not to wait for the answer.
    let hurried = client.with_deadline(Duration::from_secs(2));
    let timed_out = hurried.call_blocking(MasterRequest::Open);
    assert_eq!(timed_out, Err(RpcError::TimedOut { addr: silent.addr.clone() }));
    assert_eq!((silent.asked(), leads.asked()), (1, 0));
    assert_eq!(client.call_blocking(MasterRequest::Open), Ok(MasterReply::Done));
    assert_eq!((silent.asked(), leads.asked()), (1, 1));

    // The client does not repeat a request, either, if the connection breaks while the request runs.
    leads.role.store(BREAK, Ordering::SeqCst);
    let calling = std::thread::spawn({
        let client = client.clone();
        move || client.call_blocking(MasterRequest::Open)
    });
    while leads.asked() < 2 {
        std::thread::yield_now();
    }
    silent.role.store(LEAD, Ordering::SeqCst);
    let addr = leads.addr.clone();
    leads.server.stop();
    assert_eq!(calling.join().unwrap(), Err(RpcError::Closed { addr }));
    assert_eq!(silent.asked(), 1, "the open was repeated");
    assert_eq!(client.call_blocking(MasterRequest::Open), Ok(MasterReply::Done));
    assert_eq!(silent.asked(), 2);
}

#[test]
fn a_master_of_another_cluster_is_passed_over_and_named() {
    let runtime = runtime();
    let stranger = Fake::start(&runtime, LEAD_OTHER, None);
    let right = Fake::start(&runtime, LEAD, None);
    let own = ClusterId::from_word(5).unwrap();
    let both = client(&runtime, &[&stranger.addr, &right.addr]);
    both.join(own);
    assert_eq!(both.call_blocking(MasterRequest::Open), Ok(MasterReply::Done));
    assert_eq!((stranger.asked(), right.asked()), (1, 1));
    // Clones, and clients with separate connections, belong to the same cluster.
    let alone = client(&runtime, &[&stranger.addr]);
    let clone = alone.clone();
    let apart = alone.with_own_connection();
    alone.join(own);
    let wrong =
        RpcError::WrongCluster { addr: stranger.addr.clone(), own: Some(own), found: Some(OTHER) };
    for asking in [&alone, &clone, &apart] {
        assert_eq!(asking.call_blocking(MasterRequest::Open), Err(wrong.clone()));
    }
    assert!(!wrong.may_take_effect());
    let text = wrong.to_string();
    assert!(text.contains("0000000000000005") && text.contains("0000000000000007"), "{text}");
    alone.join(OTHER);
    assert_eq!(apart.call_blocking(MasterRequest::Open), Ok(MasterReply::Done));
}

/// Returns a view that is so long that it is sent in pieces.
fn long_view(number: u64) -> View {
    View {
        number,
        cluster: OTHER,
        hash_key: HashKey::new([7; 16]),
        geometry: Geometry::default(),
        members: Vec::new(),
        regions: Vec::new(),
        directory: vec![0; 200_000],
        subtables: vec![Subtable::new(0, vec![PoolPlace { node: MnId(0), offset: 0 }])],
        change: None,
    }
}

/// Starts a master whose view is the first of `views` until it gets a request for a piece of a view, and the second
/// from then on. If `stands_by`, it answers that request as a master that stands by. Also returns the number of
/// sessions that were closed.
fn changing(runtime: &Runtime, views: [u64; 2], stands_by: bool) -> (Server, Arc<AtomicU64>) {
    let fetched = Arc::<AtomicU64>::default();
    let closed = Arc::<AtomicU64>::default();
    let counts = Arc::clone(&closed);
    let views = views.map(long_view);
    let written = Arc::new(written(&views[1]));
    let views = Arc::new(views);
    let handler = move |_: Caller, request: MasterRequest| {
        let now = usize::from(fetched.load(Ordering::SeqCst) > 0);
        let newest = &views[now];
        let client = ClientId(5);
        let lease_ms = 1_000;
        let epochs = ClusterEpochs::default();
        let mut reply = match request {
            MasterRequest::ViewPiece { .. } if stands_by && now == 0 => {
                fetched.store(1, Ordering::SeqCst);
                MasterReply::NotLeader { leader: None }
            }
            MasterRequest::ViewPiece { number, from } => {
                fetched.store(1, Ordering::SeqCst);
                let from = if number == views[1].number { from } else { 0 };
                piece(views[1].number, &written, from)
            }
            MasterRequest::Heartbeat { .. } => MasterReply::Heartbeat {
                view: Some(newest.clone().into()),
                expelled: vec![client],
                epochs,
                mark: 0,
                short: 0,
                spared: None,
                lease_ms,
                behind_ms: 0,
            },
            MasterRequest::Close { .. } => {
                counts.fetch_add(1, Ordering::SeqCst);
                MasterReply::Done
            }
            _ => MasterReply::Opened {
                client,
                view: newest.clone(),
                epoch: 0,
                lease_ms,
                behind_ms: 0,
                policy: Policy::default(),
            },
        };
        shorten(&mut reply, Some(newest));
        async move { reply }
    };
    let listener = bind("127.0.0.1:0").unwrap();
    (serve::<MasterService, _, _>(runtime, listener, handler).unwrap(), closed)
}

/// An answer names the sessions that are fenced in the view of its time, and tells nothing about sessions that later
/// views fence.
// Promise CHG-26
#[test]
fn an_answer_never_brings_a_newer_view_than_it_was_given_with() {
    let runtime = runtime();
    for stands_by in [false, true] {
        let heartbeat = || MasterRequest::Heartbeat {
            sessions: Vec::new(),
            newer_than: 1,
            known: ClusterEpochs::default(),
            reclaims: false,
            acked: 0,
        };
        let (server, _) = changing(&runtime, [7, 9], stands_by);
        let one = client(&runtime, &[&server.addr().unwrap().to_string()]);
        for brought in [None, Some(9)] {
            let reply = one.call_blocking(heartbeat()).unwrap();
            let MasterReply::Heartbeat { view, expelled, lease_ms, .. } = reply else { panic!() };
            assert_eq!(view.map(|view| view.number()), brought);
            assert_eq!((expelled, lease_ms), (vec![ClientId(5)], 1_000), "the rest is there");
        }
        // The session that was opened with the older view is given up, and another one is opened.
        let (server, closed) = changing(&runtime, [7, 9], stands_by);
        let one = client(&runtime, &[&server.addr().unwrap().to_string()]);
        let reply = one.call_blocking(MasterRequest::Open).unwrap();
        let MasterReply::Opened { view, .. } = reply else { panic!("{reply:?}") };
        assert_eq!((view, closed.load(Ordering::SeqCst)), (long_view(9), 1));
    }
}
