//! The sessions that can reach a memory node's pool directly, and how they are fenced.
//!
//! The list's lock orders attaching and fencing. A session is in the list before it can reach the pool, and a fence
//! records the client before it reads the list. So a session of a fenced client is either refused, or found by the
//! fence and ended.
//!
//! `tests/loom` compiles this module and `gate` a second time, and runs them under every interleaving. So atomics,
//! memory fences and locks come from `crate::sync`, and the maps are ordered, because a model must take the same steps
//! in every run.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use fusee_core::ended_clients::{EndedClients, LiveClients};
use fusee_core::verbs::ClientId;

use super::gate::{Gate, GateShutReason};
use super::peer::Peer;
use crate::sync::{Mutex, MutexGuard, Patience};

/// The time in which a process has to say goodbye after it was told of a fence. After this time the process is killed.
/// The time is the usual length of a lease, in which even a starved process gets to run. A stopped process delays the
/// fence by this time, in addition to the time until its lease expires.
const GOODBYE_WAIT: Duration = Duration::from_secs(1);

/// A session's access to the pool. The kind of access decides how the session is fenced.
#[derive(Clone, Debug)]
pub(crate) enum ShmAccess {
    /// The session is in this process and passes this gate.
    Gate(Arc<Gate>),
    /// The session is in another process.
    Process(Arc<Peer>),
}

/// The number of a session in a memory node's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ShmSessionId(u64);

/// Reasons why a session cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShmRefusal {
    /// The client has been fenced.
    Fenced,
    /// The node is shutting down.
    Gone,
}

/// A session to fence: its number, its client, and its access to the pool.
type SessionToFence = (ShmSessionId, ClientId, ShmAccess);

/// The sessions that map one memory node's pool.
#[derive(Debug)]
pub(crate) struct ShmSessions {
    state: Mutex<ShmSessionTable>,
}

#[derive(Debug, Default)]
struct ShmSessionTable {
    closed: bool,
    next: u64,
    over: EndedClients,
    sessions: BTreeMap<ShmSessionId, (ClientId, ShmAccess)>,
}

impl ShmSessions {
    /// Makes a list without sessions.
    pub(crate) fn new() -> ShmSessions {
        ShmSessions { state: Mutex::new(ShmSessionTable::default()) }
    }

    /// Locks the state, even after a panic, because the state is valid at every step.
    fn state(&self) -> MutexGuard<'_, ShmSessionTable> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a session to the list, unless its client is fenced or the node is shutting down.
    pub(crate) fn open(
        &self,
        client: ClientId,
        access: ShmAccess,
    ) -> Result<ShmSessionId, ShmRefusal> {
        let mut state = self.state();
        if state.closed {
            return Err(ShmRefusal::Gone);
        }
        if state.over.has_ended(client) {
            return Err(ShmRefusal::Fenced);
        }
        let id = ShmSessionId(state.next);
        state.next += 1;
        state.sessions.insert(id, (client, access));
        Ok(id)
    }

    /// Removes a session that cannot execute verbs any more.
    pub(crate) fn leave(&self, session: ShmSessionId) {
        self.state().sessions.remove(&session);
    }

    pub(crate) fn count(&self) -> u64 {
        self.state().sessions.len() as u64
    }

    /// Records which clients with ids below a bound are alive. All others below the bound count as ended.
    pub(crate) fn learn(&self, living: &LiveClients) {
        self.state().over.learn(living);
    }

    /// Fences clients for ever. Returns when no verb of these clients executes any more. The time for goodbyes runs for
    /// all processes at once, so it does not grow with their number.
    pub(crate) fn fence(&self, clients: &[ClientId]) {
        // The sessions stay in the list until they have ended, because a second fence of the same client at the
        // same time has to wait for them, too.
        let found: Vec<SessionToFence> = {
            let mut state = self.state();
            for client in clients {
                state.over.fence(*client);
            }
            let of_clients = state.sessions.iter().filter(|(_, (c, _))| clients.contains(c));
            of_clients.map(|(id, (client, access))| (*id, *client, access.clone())).collect()
        };
        for (_, client, access) in &found {
            match access {
                ShmAccess::Gate(gate) => gate.shut(GateShutReason::Fenced),
                ShmAccess::Process(peer) => {
                    tracing::warn!(%client, pid = peer.pid(), "fencing a session of a process");
                    peer.tell_fenced();
                }
            }
        }
        for (client, peer) in self.await_goodbyes(&found) {
            let pid = peer.pid();
            tracing::error!(
                %client, pid,
                "a fenced session does not say goodbye, its process is stopped or starved: killing it"
            );
            if let Err(error) = peer.kill() {
                tracing::error!(%error, pid, "cannot kill a fenced client");
            }
        }
        wait_empty(found.iter().map(|(.., access)| access));
        for (id, _, access) in found {
            if let ShmAccess::Process(peer) = access {
                self.await_end(id, &peer);
            }
            self.leave(id);
        }
    }

    /// Waits until the processes of these sessions have said goodbye or exited. Returns those that have not done so
    /// in time.
    fn await_goodbyes<'f>(&self, found: &'f [SessionToFence]) -> Vec<(ClientId, &'f Peer)> {
        let mut patience = Patience::of(GOODBYE_WAIT);
        loop {
            let silent = found.iter().filter_map(|(id, client, access)| match access {
                ShmAccess::Process(peer) if self.has(*id) => Some((*client, &**peer)),
                ShmAccess::Process(_) | ShmAccess::Gate(_) => None,
            });
            let silent: Vec<_> = silent.collect();
            if silent.is_empty() || !patience.wait() {
                return silent;
            }
        }
    }

    fn has(&self, session: ShmSessionId) -> bool {
        self.state().sessions.contains_key(&session)
    }

    /// Shuts the gates of the sessions that are in this process. Refuses later sessions.
    pub(crate) fn close(&self) {
        let sessions: Vec<ShmAccess> = {
            let mut state = self.state();
            state.closed = true;
            std::mem::take(&mut state.sessions).into_values().map(|(_, access)| access).collect()
        };
        for access in &sessions {
            if let ShmAccess::Gate(gate) = access {
                gate.shut(GateShutReason::Gone);
            }
        }
        wait_empty(sessions.iter());
    }

    /// Waits until a fenced process has said goodbye or exited. The wait has no time limit, because an early return
    /// would break the promise of a fence.
    fn await_end(&self, session: ShmSessionId, peer: &Peer) {
        while self.has(session) {
            match peer.ended(Duration::from_secs(1)) {
                Ok(true) => return,
                Ok(false) => tracing::warn!(pid = peer.pid(), "a fenced client has not exited yet"),
                Err(error) => {
                    tracing::error!(%error, pid = peer.pid(), "cannot watch a fenced client");
                    std::thread::sleep(Duration::from_secs(1));
                }
            }
        }
    }
}

/// Waits until no verb of these sessions executes any more, as far as the sessions are in this process.
fn wait_empty<'a>(sessions: impl Iterator<Item = &'a ShmAccess> + Clone) {
    Gate::wait_empty(sessions.filter_map(|access| match access {
        ShmAccess::Gate(gate) => Some(&**gate),
        ShmAccess::Process(_) => None,
    }));
}
