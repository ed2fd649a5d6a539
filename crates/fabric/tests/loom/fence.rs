//! Models of the fence of the sessions of one process: [`ShmSessions`] and their [`Gate`]s.
//!
//! A verb is an access to a cell, and loom asserts that no two accesses to the cell are concurrent. The thread that
//! fences accesses the cell after the fence. So the execution ends with a panic if a verb executes after the fence
//! has returned or concurrently with that access, or if the verb did not *happen before* the return in the sense of
//! the memory model. Loom also panics if no thread can go on.

// Promise FAB-2: After a fence, no verb of the fenced sessions executes ([limits](#loom-shared-memory)).

use std::sync::{Arc, OnceLock};

use fusee_core::verbs::{ClientId, VerbError};
use loom::cell::UnsafeCell;
use loom::thread;

use crate::gate::{Gate, GateShutReason};
use crate::peer::Peer;
use crate::sessions::{ShmAccess, ShmRefusal, ShmSessionId, ShmSessions};
use crate::sync::{Fault, inject};
use crate::sys::{BarrierThread, Membarrier, choose};
use crate::{bounded, tallies};

const CLIENT: ClientId = ClientId(7);

/// A memory on which only one session executes verbs.
struct FencedMemory(UnsafeCell<u32>);

// SAFETY: loom checks that no two accesses are concurrent, which is the purpose of the cell.
unsafe impl Sync for FencedMemory {}

impl FencedMemory {
    fn new() -> Arc<FencedMemory> {
        Arc::new(FencedMemory(UnsafeCell::new(0)))
    }

    fn execute_verb(&self) {
        // SAFETY: loom checks that no access is concurrent with this one.
        self.0.with_mut(|verbs| unsafe { *verbs += 1 });
    }

    /// Returns the number of verbs that have executed. Must be called after a fence.
    fn verbs(&self) -> u32 {
        // SAFETY: loom checks that no access is concurrent with this one.
        self.0.with(|verbs| unsafe { *verbs })
    }
}

/// A session and its gate, together with the memory on which it executes verbs.
struct ModelSession {
    sessions: Arc<ShmSessions>,
    id: ShmSessionId,
    gate: Arc<Gate>,
    memory: Arc<FencedMemory>,
}

impl ModelSession {
    fn open(
        sessions: &Arc<ShmSessions>,
        memory: &Arc<FencedMemory>,
    ) -> Result<ModelSession, ShmRefusal> {
        let gate = Arc::new(Gate::new());
        let id = sessions.open(CLIENT, ShmAccess::Gate(gate.clone()))?;
        Ok(ModelSession { sessions: sessions.clone(), id, gate, memory: memory.clone() })
    }

    fn verb(&self) -> Result<(), VerbError> {
        let _inside = self.gate.enter()?;
        self.memory.execute_verb();
        Ok(())
    }

    fn leave(self) {
        self.sessions.leave(self.id);
    }
}

/// Starts a thread that membarrier reaches, as the thread number `nth` of its model.
fn start(nth: usize, run: impl FnOnce() + 'static) -> thread::JoinHandle<()> {
    let reached = BarrierThread::new(nth);
    thread::spawn(move || reached.run(run))
}

/// Checks a fence that is concurrent with two verbs of one session.
fn fence_beside_two_verbs() {
    let before = tallies();
    let refused = tallies();
    let tally_before = before.1;
    let tally_refused = refused.1;
    bounded(3, move || {
        let sessions = Arc::new(ShmSessions::new());
        let memory = FencedMemory::new();
        let session = ModelSession::open(&sessions, &memory).unwrap();
        let before = tally_before.clone();
        let refused = tally_refused.clone();
        let client = start(0, move || {
            let results = [session.verb(), session.verb()];
            assert!(results[0].is_ok() || results[1].is_err(), "a fenced client came back");
            assert!(results.iter().all(|r| [Ok(()), Err(VerbError::Fenced)].contains(r)));
            before.count(results[1].is_ok());
            refused.count(results[0].is_err());
        });
        sessions.fence(&[CLIENT]);
        let verbs = memory.verbs();
        assert_eq!(
            sessions.open(CLIENT, ShmAccess::Gate(Arc::new(Gate::new()))),
            Err(ShmRefusal::Fenced)
        );
        client.join().unwrap();
        assert_eq!(memory.verbs(), verbs, "a verb after the fence");
    });
    before.0.assert_happened();
    refused.0.assert_happened();
}

#[test]
fn no_verb_after_a_fence_with_own_barriers() {
    choose(Membarrier::Missing);
    fence_beside_two_verbs();
}

#[test]
fn no_verb_after_a_fence_with_membarrier() {
    choose(Membarrier::Works);
    fence_beside_two_verbs();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_fence_without_the_effect_of_membarrier() {
    choose(Membarrier::DoesNothing);
    fence_beside_two_verbs();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_fence_without_own_barriers() {
    choose(Membarrier::Missing);
    inject(Fault::NoFence);
    fence_beside_two_verbs();
}

/// Without release on leaving the gate and acquire in the wait, the verbs need not happen before the fence returns,
/// and the model fails.
#[test]
#[should_panic(expected = "Causality violation")]
fn a_fence_that_does_not_acquire() {
    choose(Membarrier::Missing);
    inject(Fault::Relaxed);
    fence_beside_two_verbs();
}

/// Fences a session of another process. The process's monitor gets the message, shuts the gate, waits until the
/// gate is empty (unless `waits` is false, a fault), and says goodbye. Then the node removes the session from its
/// list.
fn fence_of_another_process(waits: bool) {
    let before = tallies();
    let refused = tallies();
    let tally_before = before.1;
    let tally_refused = refused.1;
    bounded(3, move || {
        let sessions = Arc::new(ShmSessions::new());
        let memory = FencedMemory::new();
        let gate = Arc::new(Gate::new());
        let of_monitor = (sessions.clone(), gate.clone(), Arc::new(OnceLock::new()));
        let named = of_monitor.2.clone();
        let monitor = move || {
            let (at_node, gate, id) = &of_monitor;
            gate.shut(GateShutReason::Fenced);
            if waits {
                Gate::wait_empty([&**gate].into_iter());
            }
            // This thread acts for the node that receives the goodbye.
            at_node.leave(*id.get().unwrap());
        };
        let id = sessions.open(CLIENT, ShmAccess::Process(Arc::new(Peer::new(monitor)))).unwrap();
        named.set(id).unwrap();
        let session = ModelSession { sessions: sessions.clone(), id, gate, memory: memory.clone() };
        let before = tally_before.clone();
        let refused = tally_refused.clone();
        let client = start(0, move || {
            let results = [session.verb(), session.verb()];
            assert!(results[0].is_ok() || results[1].is_err(), "a fenced client came back");
            assert!(results.iter().all(|r| [Ok(()), Err(VerbError::Fenced)].contains(r)));
            before.count(results[1].is_ok());
            refused.count(results[0].is_err());
        });
        sessions.fence(&[CLIENT]);
        let verbs = memory.verbs();
        client.join().unwrap();
        assert_eq!(memory.verbs(), verbs, "a verb after the fence");
        assert_eq!(sessions.count(), 0);
    });
    before.0.assert_happened();
    refused.0.assert_happened();
}

#[test]
fn no_verb_after_the_fence_of_another_process_with_own_barriers() {
    choose(Membarrier::Missing);
    fence_of_another_process(true);
}

#[test]
fn no_verb_after_the_fence_of_another_process_with_membarrier() {
    choose(Membarrier::Works);
    fence_of_another_process(true);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_goodbye_before_the_session_is_outside() {
    choose(Membarrier::Missing);
    fence_of_another_process(false);
}

/// Fences a client with two threads that have a session each. The fence has to wait for both sessions.
fn fence_two_threads(preemptions: usize) {
    bounded(preemptions, || {
        let sessions = Arc::new(ShmSessions::new());
        let memories = [FencedMemory::new(), FencedMemory::new()];
        let clients = [0, 1].map(|nth: usize| {
            let session = ModelSession::open(&sessions, &memories[nth]).unwrap();
            start(nth, move || {
                let _ = session.verb();
            })
        });
        sessions.fence(&[CLIENT]);
        let verbs = memories.each_ref().map(|memory| memory.verbs());
        clients.into_iter().for_each(|client| client.join().unwrap());
        assert_eq!(memories.map(|memory| memory.verbs()), verbs, "a verb after the fence");
    });
}

#[test]
fn all_threads_of_a_client_with_own_barriers() {
    choose(Membarrier::Missing);
    fence_two_threads(2);
}

#[test]
fn all_threads_of_a_client_with_membarrier() {
    choose(Membarrier::Works);
    fence_two_threads(1);
}

/// Of two fences of the same client at the same time, neither returns early. The model has no membarrier, because with
/// two threads that wait for a membarrier by spinning, it would have endless executions.
#[test]
fn two_fences_at_once() {
    choose(Membarrier::Missing);
    bounded(2, || {
        let sessions = Arc::new(ShmSessions::new());
        let memory = FencedMemory::new();
        let session = ModelSession::open(&sessions, &memory).unwrap();
        let client = start(0, move || {
            let _ = session.verb();
        });
        let other = (sessions.clone(), memory.clone());
        let other = thread::spawn(move || {
            other.0.fence(&[CLIENT]);
            other.1.verbs()
        });
        sessions.fence(&[CLIENT]);
        let verbs = memory.verbs();
        assert_eq!(other.join().unwrap(), verbs, "a verb between two fences");
        client.join().unwrap();
        assert_eq!(memory.verbs(), verbs, "a verb after the fence");
        assert_eq!(sessions.count(), 0);
    });
}

/// Opens a session, executes a verb and leaves, all of it concurrent with a fence.
fn fence_beside_a_whole_session() {
    let (refusals, tally) = tallies();
    bounded(4, move || {
        let sessions = Arc::new(ShmSessions::new());
        let memory = FencedMemory::new();
        let of_client = (sessions.clone(), memory.clone());
        let tally = tally.clone();
        let client = start(0, move || match ModelSession::open(&of_client.0, &of_client.1) {
            Ok(session) => {
                let _ = session.verb();
                session.leave();
            }
            Err(refusal) => tally.count(refusal == ShmRefusal::Fenced),
        });
        sessions.fence(&[CLIENT]);
        let verbs = memory.verbs();
        client.join().unwrap();
        assert_eq!(memory.verbs(), verbs, "a verb after the fence");
        assert_eq!(sessions.count(), 0);
    });
    refusals.assert_happened();
}

#[test]
fn attaching_beside_a_fence_with_own_barriers() {
    choose(Membarrier::Missing);
    fence_beside_a_whole_session();
}

#[test]
fn attaching_beside_a_fence_with_membarrier() {
    choose(Membarrier::Works);
    fence_beside_a_whole_session();
}

/// The end of a node ends the sessions of all clients, as a fence ends those of one client.
#[test]
fn no_verb_after_the_end_of_the_node() {
    choose(Membarrier::Works);
    bounded(3, || {
        let sessions = Arc::new(ShmSessions::new());
        let memory = FencedMemory::new();
        let session = ModelSession::open(&sessions, &memory).unwrap();
        let client = start(0, move || {
            let result = session.verb();
            assert!([Ok(()), Err(VerbError::Unreachable)].contains(&result));
        });
        sessions.close();
        let verbs = memory.verbs();
        client.join().unwrap();
        assert_eq!(memory.verbs(), verbs, "a verb after the end");
    });
}

/// If a fence is concurrent with the loss of the node, later verbs of the session fail as fenced.
#[test]
fn a_fence_is_not_forgotten_when_the_node_goes() {
    choose(Membarrier::Missing);
    loom::model(|| {
        let gate = Arc::new(Gate::new());
        let monitor = gate.clone();
        let monitor = thread::spawn(move || monitor.shut(GateShutReason::Gone));
        gate.shut(GateShutReason::Fenced);
        monitor.join().unwrap();
        assert_eq!(gate.enter().err(), Some(VerbError::Fenced));
    });
}
