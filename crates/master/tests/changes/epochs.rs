//! Tests of the epoch before which no operation runs. Expired sessions hold it back, and so do jobs, failed jobs whose
//! verbs can still execute, and jobs of an earlier master.

// Promise MEM-4: An epoch passes exactly when all sessions act in the newest.

use fusee_control::master::{ClusterEpochs, MasterReply, MasterRequest, SessionHeartbeat};
use fusee_core::stats::Damage;
use fusee_core::verbs::ClientId;

use super::world::{TickCluster, settings};

/// A cluster, with sessions whose heartbeats name the epoch in which they are pinned.
struct EpochSessions {
    world: TickCluster,
    clients: Vec<ClientId>,
    epochs: ClusterEpochs,
}

impl EpochSessions {
    fn open(count: usize) -> EpochSessions {
        let mut world = TickCluster::formed(settings(3, 2, 2));
        let clients = (0..count).map(|_| world.open()).collect();
        world.sessions.iter_mut().for_each(|session| session.renews = false);
        world.pass(100);
        EpochSessions { world, clients, epochs: ClusterEpochs::default() }
    }

    /// Sends heartbeats of all sessions. The sessions are pinned by the newest view and in the newest epoch, and wait
    /// for later epochs.
    fn renew(&mut self) {
        let pinned_by = self.world.view().number;
        let pinned_in = self.epochs.newest;
        let heartbeat = |client: &ClientId| SessionHeartbeat {
            client: *client,
            pinned_by,
            pinned_in,
            frees_in: pinned_in,
            has_suspended: false,
            damage: Damage::default(),
            transitions: Default::default(),
            work: Default::default(),
            stirs: true,
        };
        let sessions = self.clients.iter().map(heartbeat).collect();
        let known = ClusterEpochs::default();
        let request =
            MasterRequest::Heartbeat { sessions, newer_than: 0, known, reclaims: true, acked: 0 };
        let token = self.world.send(1, request);
        match self.world.replies.remove(&token) {
            Some(MasterReply::Heartbeat { epochs, .. }) => self.epochs = epochs,
            other => panic!("the whole view is always news: {other:?}"),
        }
        self.world.step();
    }

    /// Lets the time of many epochs pass. Returns by how many epochs the oldest epoch with a running operation has
    /// advanced.
    fn pass(&mut self) -> u64 {
        let before = self.epochs.passed;
        (0..40).for_each(|_| self.renew());
        self.epochs.passed - before
    }
}

/// Returns whether a session or job holds epochs back: `passed` gets no further than the epoch that was the newest at
/// first.
fn is_held(sessions: &mut EpochSessions) -> bool {
    let newest = sessions.epochs.newest;
    sessions.pass();
    sessions.epochs.passed <= newest && sessions.pass() == 0
}

#[test]
fn epochs_pass_when_all_act_in_the_newest() {
    let mut sessions = EpochSessions::open(2);
    assert!(sessions.pass() > 5);
    assert!(!is_held(&mut sessions));
}

/// The session's unfinished writes refer to memory that was in use in its epoch, and the recovery that completes these
/// writes does so as well.
#[test]
fn a_session_that_has_expired_holds_its_epoch_until_it_is_recovered() {
    let mut sessions = EpochSessions::open(2);
    sessions.pass();
    sessions.world.recoveries_fail = true;
    let client = sessions.clients.pop().expect("there are two");
    sessions.world.ask(MasterRequest::Abandon { client });
    assert!(is_held(&mut sessions));
    sessions.world.restart_master();
    sessions.epochs = ClusterEpochs::default();
    assert!(is_held(&mut sessions), "nor does the next master know in which it acts");
    sessions.world.recoveries_fail = false;
    sessions.pass();
    assert!(sessions.pass() > 5, "{:#?}", sessions.world.log);
}

#[test]
fn a_job_holds_the_epoch_in_which_it_began() {
    let mut sessions = EpochSessions::open(1);
    sessions.pass();
    sessions.world.holds_jobs = true;
    sessions.world.kill(1);
    sessions.pass();
    assert!(is_held(&mut sessions));
    assert_eq!(sessions.world.end_jobs(), 1, "{:#?}", sessions.world.log);
    assert!(sessions.pass() > 5, "{:#?}", sessions.world.log);
}

/// Verbs of the job can execute until all members have fenced its session.
#[test]
fn a_job_that_failed_holds_its_epoch_until_its_session_is_fenced() {
    let mut sessions = EpochSessions::open(1);
    sessions.pass();
    sessions.world.nodes.borrow_mut()[2].withholds_fences = true;
    sessions.world.failing_jobs = 1;
    sessions.world.kill(1);
    sessions.pass();
    assert!(sessions.world.said("a repair stopped"), "{:#?}", sessions.world.log);
    assert!(is_held(&mut sessions));
    sessions.world.restart_master();
    sessions.epochs = ClusterEpochs::default();
    assert!(is_held(&mut sessions), "nor does the next master know when it began");
    sessions.world.nodes.borrow_mut()[2].withholds_fences = false;
    sessions.pass();
    assert!(sessions.pass() > 5, "{:#?}", sessions.world.log);
}
