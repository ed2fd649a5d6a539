//! Tests of the thread that runs a logic.

use super::*;
use crate::request_kinds::IdentityRequest;

/// Another cluster can have members of the same names, and its jobs wait for the end of this one.
#[test]
fn a_job_ends_when_its_cluster_is_destroyed() {
    let cluster = random_cluster();
    let settings = MasterConfig::default().settings();
    let records = vec![MasterRecord::Cluster(cluster)];
    let logic = MasterLogic::restore(settings.clone(), 1, HashKey::new([7; 16]), records).unwrap();
    let runtime = Runtime::start("test").unwrap();
    let (_settings, told) = watch::channel(settings);
    let (queue, _messages) = channel();
    let is_overtaken = Arc::<AtomicBool>::default();
    let mut thread = LogicThread {
        logic,
        settings: told,
        store: MasterStore::memory(),
        journal: EventJournal::default(),
        pieces: EncodedViews::default(),
        connect: connector(&runtime),
        nodes: HashMap::new(),
        handle: runtime.handle().clone(),
        queue,
        repairer: Repairer::start(NodeCredentials::default(), |_, _| ()).unwrap(),
        job: Some((vec![MnId(0)], is_overtaken.clone())),
        waiting: HashMap::new(),
        next_token: 0,
        begun: Clock::Precise.now(),
        stops_by: None,
    };
    let request = IdentityRequest::Destroy { cluster, with_living_data: true };
    let request = LogicRequest::Identity(request);
    let caller = Caller::default();
    thread.decide(0, vec![MasterEvent::Request { token: 0, caller, request }]).unwrap();
    assert_eq!(thread.logic.cluster(), None);
    assert!(is_overtaken.load(Ordering::Relaxed));
}
