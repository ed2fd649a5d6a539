//! Tests of the conditions of every write, against a real etcd.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use fusee_control::rpc::Runtime;
use fusee_core::verbs::{ClusterId, MnId};
use fusee_core::view::Member;
use tonic::Code;

use super::*;
use crate::election::revoke;
use crate::record::{MasterRecord, RecordWrite, member_key};
use crate::store::MasterStore;

#[path = "../../../tests/etcd_server/mod.rs"]
mod etcd_server;
#[cfg(feature = "tls")]
#[path = "../../../../tls/src/testing.rs"]
mod testing;
use etcd_server::EtcdServer;
#[cfg(feature = "tls")]
use testing::Certificates;

const LONG: Duration = Duration::from_secs(60);

fn cluster(word: u64) -> ClusterId {
    ClusterId::from_word(word).unwrap()
}

struct EtcdFixture {
    runtime: Runtime,
    etcd: Etcd,
    server: EtcdServer,
}

impl EtcdFixture {
    fn new() -> Option<EtcdFixture> {
        let server = EtcdServer::start()?;
        let runtime = Runtime::start("test-etcd").unwrap();
        let text = format!("etcd://{}/x/y", server.endpoint());
        let address = StoreAddress::parse(&text).unwrap();
        let etcd = runtime.block_on(Etcd::new(address)).unwrap();
        Some(EtcdFixture { runtime, etcd, server })
    }

    /// Returns a candidacy with a lease of its own.
    fn candidate(&self) -> (i64, Candidacy) {
        let grant = || self.runtime.block_on(self.etcd.client.grant(60));
        let lease = patiently(grant).unwrap().id;
        let enter = || self.runtime.block_on(self.etcd.enter(lease, "a:1"));
        let key = patiently(enter).unwrap();
        let look = || self.runtime.block_on(self.etcd.candidates());
        let (candidates, _) = patiently(look).unwrap();
        (lease, candidates.into_iter().find(|candidate| candidate.key == key).unwrap())
    }

    /// Begins a term. Repeating this does no harm: a term without writes is begun anew.
    fn begin(&self, candidacy: &Candidacy) -> Result<LeaderTerm, StoreError> {
        patiently(|| {
            let tenure = Arc::new(LeaseValidity::new(LeaseValidity::now(), LONG));
            let (over, _) = oneshot::channel();
            self.runtime.block_on(LeaderTerm::begin(
                self.etcd.clone(),
                candidacy.clone(),
                tenure,
                over,
            ))
        })
    }

    fn store(&self, candidacy: &Candidacy) -> Result<MasterStore, StoreError> {
        patiently(|| MasterStore::remote(Box::new(self.begin(candidacy)?)))
    }

    fn revoke(&self, lease: i64) {
        patiently(|| self.runtime.block_on(revoke(&self.etcd, lease))).unwrap();
    }

    /// Sends a copy of a transaction, and further copies until one is answered. Returns whether the answered copy
    /// succeeded.
    fn run(&self, transaction: &TxnRequest) -> bool {
        let send = || self.runtime.block_on(self.etcd.client.txn(transaction.clone()));
        patiently(send).unwrap().succeeded
    }

    fn put(&self, key: &str, value: &str) {
        let success = vec![RequestOp::put(self.etcd.key(key), value)];
        assert!(self.run(&TxnRequest { success, ..TxnRequest::default() }));
    }
}

/// Tells whether an error says no more than that etcd did not answer in time, which also happens when the machine
/// stands still for seconds.
trait TransientEtcdError {
    fn is_silence(&self) -> bool;
}

impl TransientEtcdError for EtcdError {
    fn is_silence(&self) -> bool {
        match self {
            EtcdError::Transport(_) | EtcdError::Ended => true,
            EtcdError::Status(status) => {
                matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded)
            }
            EtcdError::Tls(_) | EtcdError::LeaseGone => false,
        }
    }
}

impl TransientEtcdError for StoreError {
    fn is_silence(&self) -> bool {
        matches!(self, StoreError::Remote { .. })
    }
}

/// Repeats a call until etcd answers. Only for calls that can be repeated safely.
fn patiently<T, E: TransientEtcdError>(ask: impl Fn() -> Result<T, E>) -> Result<T, E> {
    let end = Instant::now() + LONG;
    loop {
        match ask() {
            Err(error) if error.is_silence() && Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(50));
            }
            done => return done,
        }
    }
}

fn member(node: u16) -> Member {
    let control = format!("node{node}:1");
    Member {
        node: MnId(node),
        identity: 9,
        control,
        tcp: None,
        shm: None,
        verbs: None,
        pool_bytes: 1 << 30,
    }
}

fn one(key: &str, value: &[u8]) -> Vec<(String, Option<Vec<u8>>)> {
    vec![(key.into(), Some(value.into()))]
}

// Promise MST-9: A deposed master cannot write.
#[test]
fn records_pass_from_term_to_term_and_a_deposed_master_changes_nothing() {
    let Some(bench) = EtcdFixture::new() else { return };
    let ((old_lease, old), (_, new)) = (bench.candidate(), bench.candidate());
    assert!(old.created < new.created, "the order of candidates is that of their keys");
    let mut first = bench.store(&old).unwrap();
    // These records do not fit in one transaction of etcd, nor in one page.
    let members = (0..700).map(|node| MasterRecord::Member(member(node)));
    let records = members.chain([MasterRecord::Cluster(cluster(7))]).map(RecordWrite::Put);
    first.persist(records.collect()).unwrap();
    let forget = |node| RecordWrite::Remove(member_key(MnId(node)));
    let ids = |end| RecordWrite::Put(MasterRecord::ClientIds { end });
    first.persist(vec![forget(0), ids(65)]).unwrap();
    assert_eq!(patiently(|| first.load()).unwrap().len(), 701);

    // The old leader has not noticed that its lease has ended: by its own clock it still leads.
    bench.revoke(old_lease);
    assert!(first.holds());
    let refused = first.persist(vec![RecordWrite::Put(MasterRecord::Cluster(cluster(8)))]);
    assert!(matches!(refused, Err(StoreError::Deposed { .. })), "{refused:?}");
    let mut second = bench.store(&new).unwrap();
    let load = |store: &MasterStore| {
        let mut records = patiently(|| store.load()).unwrap();
        records.sort_by_key(MasterRecord::key);
        records
    };
    let before = load(&second);
    assert_eq!(before.len(), 701);
    assert!(!before.contains(&MasterRecord::Member(member(0))));
    let refused =
        first.persist(vec![ids(129), RecordWrite::Put(MasterRecord::Cluster(cluster(8)))]);
    assert!(matches!(refused, Err(StoreError::Deposed { .. })), "{refused:?}");
    assert_eq!(load(&second), before, "a deposed master has written");
    second.persist(vec![ids(193)]).unwrap();
    let refused = first.persist(vec![forget(1)]);
    assert!(matches!(refused, Err(StoreError::Deposed { .. })), "{refused:?}");
    assert!(load(&second).contains(&MasterRecord::ClientIds { end: 193 }));
    // The term of the old leader cannot be begun once more, either.
    assert!(matches!(bench.store(&old), Err(StoreError::Deposed { .. })));
}

#[test]
fn lost_answers_and_late_copies_do_no_harm() {
    let Some(bench) = EtcdFixture::new() else { return };
    let (_, candidacy) = bench.candidate();
    let mut term = bench.begin(&candidacy).unwrap();
    // The first copy arrives, but its answer does not. The second copy notices that the first copy took effect.
    let transaction = term.transaction(one("a", b"1"));
    bench.run(&transaction);
    bench.runtime.block_on(term.commit(transaction.clone())).unwrap();
    term.write(one("a", b"2")).unwrap();
    // A third copy of the first write arrives only now, and changes nothing.
    assert!(!bench.run(&transaction));
    assert_eq!(patiently(|| term.read()).unwrap()["a"], b"2");
    // The next write of the first term arrives after the same candidate has begun its term a second time.
    let mut twin = bench.begin(&candidacy).unwrap();
    assert!(matches!(term.write(one("a", b"3")), Err(StoreError::Deposed { .. })));
    twin.write(one("b", b"4")).unwrap();
    assert_eq!(patiently(|| twin.read()).unwrap().len(), 2);
}

#[test]
fn another_layout_and_undecodable_records_are_named() {
    let Some(bench) = EtcdFixture::new() else { return };
    let (_, candidacy) = bench.candidate();
    bench.begin(&candidacy).unwrap().write(one("client-ids", b"\xff")).unwrap();
    let error = bench.store(&candidacy).unwrap_err();
    assert!(error.to_string().contains("the record client-ids is not as it was"), "{error}");
    assert!(matches!(error, StoreError::DamagedRecord { .. }), "{error}");
    bench.put("format", "fusee-master 6");
    let error = bench.begin(&candidacy).unwrap_err();
    assert!(matches!(error, StoreError::Unusable { .. }), "{error}");
    assert!(error.to_string().contains("fusee-master 6"), "{error}");
    bench.put("format", "fusee-master 6?");
    let error = bench.begin(&candidacy).unwrap_err();
    assert!(matches!(error, StoreError::DamagedRecord { .. }), "{error}");
}

#[test]
fn a_prefix_that_holds_something_else_is_refused() {
    for key in ["a", "format/a", "notes/a", "record/a", "written/a", "z"] {
        let Some(bench) = EtcdFixture::new() else { return };
        let (_, candidacy) = bench.candidate();
        bench.put(key, "hello");
        let error = bench.begin(&candidacy).unwrap_err();
        assert!(error.to_string().contains("choose another prefix"), "{key}: {error}");
    }
}

#[test]
fn candidates_that_come_and_go_are_nothing_else() {
    let Some(bench) = EtcdFixture::new() else { return };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let (lease, _) = bench.candidate();
                bench.revoke(lease);
            }
        });
        let look = || patiently(|| bench.runtime.block_on(bench.etcd.check_format()));
        let looks: Result<Vec<bool>, StoreError> = (0..500).map(|_| look()).collect();
        stop.store(true, Ordering::Relaxed);
        assert!(looks.unwrap().iter().all(|is_new| *is_new));
    });
}

/// Changes one bit of each record, and removes each record: one after the other.
// Promise DMG-8
#[test]
fn a_flipped_bit_or_a_lost_record_is_noticed() {
    let Some(bench) = EtcdFixture::new() else { return };
    let (_, candidacy) = bench.candidate();
    let mut store = bench.store(&candidacy).unwrap();
    let members = (0..3).map(|node| MasterRecord::Member(member(node)));
    let records =
        members.chain([MasterRecord::Cluster(cluster(7)), MasterRecord::Epochs { end: 9 }]);
    store.persist(records.map(RecordWrite::Put).collect()).unwrap();
    let load = |store: &MasterStore| patiently(|| store.load());
    let whole = load(&store).unwrap();
    let mut term = bench.begin(&candidacy).unwrap();
    let mut seen = 0;
    for (at, (key, bytes)) in patiently(|| term.read()).unwrap().into_iter().enumerate() {
        let mut flipped = bytes.clone();
        flipped[at % bytes.len()] ^= 1 << (at % 8);
        for damage in [Some(flipped), None] {
            term.write(vec![(key.clone(), damage)]).unwrap();
            let error = load(&store).unwrap_err();
            assert!(matches!(error, StoreError::DamagedRecord { .. }), "{key}: {error}");
            seen += 1;
        }
        term.write(vec![(key, Some(bytes))]).unwrap();
        assert_eq!(load(&store).unwrap(), whole);
    }
    assert_eq!(seen, 12, "five records, and how many there are");
}

#[test]
fn a_write_that_etcd_cannot_take_says_what_to_do() {
    let Some(bench) = EtcdFixture::new() else { return };
    let (_, candidacy) = bench.candidate();
    let mut term = bench.begin(&candidacy).unwrap();
    let error = term.write(one("view", &vec![7; 2 << 20])).unwrap_err();
    assert!(error.to_string().contains("--max-request-bytes"), "{error}");
    term.write(one("view", &vec![7; 1 << 20])).unwrap();
    assert_eq!(patiently(|| term.read()).unwrap()["view"].len(), 1 << 20);
}

#[test]
fn a_member_that_is_away_keeps_nobody_from_the_others() {
    let Some(bench) = EtcdFixture::new() else { return };
    // No process listens at the first address, so requests have to go to the second member.
    let text = format!("etcd://127.0.0.1:1,{}/x/y", bench.server.endpoint());
    let address = StoreAddress::parse(&text).unwrap();
    let etcd = bench.runtime.block_on(Etcd::new(address)).unwrap();
    for _ in 0..20 {
        patiently(|| bench.runtime.block_on(etcd.candidates())).unwrap();
    }
}

#[test]
fn a_lease_is_renewed_until_it_is_given_back() {
    let Some(bench) = EtcdFixture::new() else { return };
    let (lease, candidacy) = bench.candidate();
    let client = &bench.etcd.client;
    let renew = || bench.runtime.block_on(client.keep_alive(lease));
    patiently(renew).unwrap();
    // A watch also reports a change that was made before the watch began, and then it ends.
    let (_, now) = patiently(|| bench.runtime.block_on(bench.etcd.candidates())).unwrap();
    let changed = |since| {
        let watch = client.changed(bench.etcd.key("election/"), since);
        bench.runtime.block_on(async { timeout(ATTEMPT, watch).await })
    };
    assert!(changed(now).is_err(), "nothing has changed");
    bench.revoke(lease);
    patiently(|| changed(now).unwrap_or(Err(EtcdError::Ended))).unwrap();
    assert!(matches!(patiently(renew), Err(EtcdError::LeaseGone)));
    bench.revoke(lease);
    assert!(matches!(bench.begin(&candidacy), Err(StoreError::Deposed { .. })));
}

#[cfg(feature = "tls")]
#[test]
fn over_tls_both_ends_show_a_certificate() {
    use crate::store::address::StoreTls;

    let files = Certificates::new();
    let others = Certificates::new();
    let Some(server) = EtcdServer::start_with(Some(files.path("."))) else { return };
    let runtime = Runtime::start("test-etcd").unwrap();
    let reach = |ca: &Certificates, identity: Option<&Certificates>| {
        let identity = identity.map(|files| (files.path("cert"), files.path("key")));
        let tls = Some(StoreTls { ca: ca.path("ca"), identity });
        let text = format!("etcd://{}/x", server.endpoint());
        let address = StoreAddress { tls, ..StoreAddress::parse(&text).unwrap() };
        let etcd = runtime.block_on(Etcd::new(address)).unwrap();
        runtime.block_on(etcd.candidates()).map(drop)
    };
    patiently(|| reach(&files, Some(&files))).unwrap();
    assert!(reach(&others, Some(&files)).is_err(), "the members' certificate");
    assert!(reach(&files, Some(&others)).is_err(), "the master's certificate");
    assert!(reach(&files, None).is_err(), "no certificate");
}

#[cfg(feature = "tls")]
#[test]
fn certificates_are_renewed_without_a_restart() {
    use crate::store::address::StoreTls;

    let files = Certificates::new();
    let members = Certificates::new();
    let Some(server) = EtcdServer::start_with(Some(members.path("."))) else { return };
    let runtime = Runtime::start("test-etcd").unwrap();
    let identity = Some((files.path("cert"), files.path("key")));
    let tls = Some(StoreTls { ca: files.path("ca"), identity });
    let text = format!("etcd://{}/x", server.endpoint());
    let address = StoreAddress { tls, ..StoreAddress::parse(&text).unwrap() };
    let etcd = runtime.block_on(Etcd::new(address)).unwrap();
    let ask = || runtime.block_on(etcd.candidates()).map(drop);
    ask().unwrap_err();
    let put = |name: &str, of: &Certificates| {
        files.put(name, &std::fs::read_to_string(of.path(name)).unwrap());
    };
    for name in ["ca", "cert", "key"] {
        put(name, &members);
    }
    patiently(ask).unwrap();
    // A file that is no certificate has no effect, and neither has one half of a pair of certificate and key.
    files.put("ca", "garbage");
    std::thread::sleep(fusee_tls::LOOK);
    patiently(ask).unwrap();
    let others = Certificates::new();
    put("ca", &members);
    put("cert", &others);
    std::thread::sleep(fusee_tls::LOOK);
    patiently(ask).unwrap();
    // A complete pair of files is used at once, although the old connection still works.
    put("key", &others);
    std::thread::sleep(fusee_tls::LOOK);
    ask().unwrap_err();
}
