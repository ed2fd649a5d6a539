//! The list of sessions that can reach a memory node's pool directly, and their fence.
//!
//! Attaching and fencing are ordered by the list's lock. A session is in the list before it can
//! reach the pool, and the fence records the client before it looks at the list. So a session of
//! a fenced client either is refused, or is found and ended.
//!
//! This module and `gate` are also compiled into `tests/loom`, which runs them under every
//! interleaving. Hence atomics, fences and locks come from `crate::sync`, and the maps have an
//! order of their own: a model must take the same steps whenever it is run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use fusee_core::verbs::ClientId;

use super::gate::{Gate, Shut};
use super::peer::Peer;
use crate::sync::{Mutex, MutexGuard, Patience};

/// A process that is told of a fence says goodbye within this time, or is killed. It is as long as a lease usually is:
/// a process that is only starved gets to run in it, and one that is stopped holds up nobody much longer than its
/// lease has done.
const GOODBYE_WAIT: Duration = Duration::from_secs(1);

/// How a session reaches the pool, and so how it is fenced.
#[derive(Clone, Debug)]
pub(crate) enum Access {
    /// From this process.
    Gate(Arc<Gate>),
    /// From another process.
    Process(Arc<Peer>),
}

/// Names a session of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SessionId(u64);

/// Why a session cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The client has been fenced.
    Fenced,
    /// The node is shutting down.
    Gone,
}

/// The sessions of one memory node.
#[derive(Debug)]
pub(crate) struct Sessions {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    closed: bool,
    next: u64,
    fenced: BTreeSet<ClientId>,
    sessions: BTreeMap<SessionId, (ClientId, Access)>,
}

impl Sessions {
    /// Nobody.
    pub(crate) fn new() -> Sessions {
        Sessions { state: Mutex::new(State::default()) }
    }

    /// Locks without regard to panics: the state is valid at every step.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a session.
    pub(crate) fn open(&self, client: ClientId, access: Access) -> Result<SessionId, Refusal> {
        let mut state = self.state();
        if state.closed {
            return Err(Refusal::Gone);
        }
        if state.fenced.contains(&client) {
            return Err(Refusal::Fenced);
        }
        let id = SessionId(state.next);
        state.next += 1;
        state.sessions.insert(id, (client, access));
        Ok(id)
    }

    /// Forgets a session that cannot execute verbs any more.
    pub(crate) fn leave(&self, session: SessionId) {
        self.state().sessions.remove(&session);
    }

    pub(crate) fn count(&self) -> u64 {
        self.state().sessions.len() as u64
    }

    /// Fences a client for ever; returns when no verb of it executes any more.
    pub(crate) fn fence(&self, client: ClientId) {
        // The sessions stay in the list until they have ended: a second fence of the same client
        // at the same time must wait for them, too.
        let found: Vec<(SessionId, Access)> = {
            let mut state = self.state();
            state.fenced.insert(client);
            let of_client = state.sessions.iter().filter(|(_, (c, _))| *c == client);
            of_client.map(|(id, (_, access))| (*id, access.clone())).collect()
        };
        for (_, access) in &found {
            match access {
                Access::Gate(gate) => gate.shut(Shut::Fenced),
                Access::Process(peer) => {
                    tracing::warn!(%client, pid = peer.pid(), "fencing a session of a process");
                    peer.tell_fenced();
                }
            }
        }
        for peer in self.await_goodbyes(&found) {
            let pid = peer.pid();
            tracing::error!(
                %client, pid,
                "a fenced session does not say goodbye, its process is stopped or starved: killing it"
            );
            if let Err(error) = peer.kill() {
                tracing::error!(%error, pid, "cannot kill a fenced client");
            }
        }
        // Those that have said goodbye are not waited for.
        wait_ended(found.iter().filter(|(id, _)| self.has(*id)).map(|(_, access)| access));
        for (id, _) in found {
            self.leave(id);
        }
    }

    /// Waits until the processes among these have said goodbye, or have exited; gives those that have not, in time.
    fn await_goodbyes<'f>(&self, found: &'f [(SessionId, Access)]) -> Vec<&'f Peer> {
        let mut patience = Patience::of(GOODBYE_WAIT);
        loop {
            let silent = found.iter().filter_map(|(id, access)| match access {
                Access::Process(peer) if self.has(*id) => Some(&**peer),
                Access::Process(_) | Access::Gate(_) => None,
            });
            let silent: Vec<&Peer> = silent.collect();
            if silent.is_empty() || !patience.wait() {
                return silent;
            }
        }
    }

    fn has(&self, session: SessionId) -> bool {
        self.state().sessions.contains_key(&session)
    }

    /// Ends the sessions of this process; later ones are refused.
    pub(crate) fn close(&self) {
        let sessions: Vec<Access> = {
            let mut state = self.state();
            state.closed = true;
            std::mem::take(&mut state.sessions).into_values().map(|(_, access)| access).collect()
        };
        for access in &sessions {
            if let Access::Gate(gate) = access {
                gate.shut(Shut::Gone);
            }
        }
        let gates = sessions.iter().filter(|access| matches!(access, Access::Gate(_)));
        wait_ended(gates);
    }
}

/// Waits until no verb of these sessions executes any more.
fn wait_ended<'a>(sessions: impl Iterator<Item = &'a Access> + Clone) {
    let gates = sessions.clone().filter_map(|access| match access {
        Access::Gate(gate) => Some(&**gate),
        Access::Process(_) => None,
    });
    Gate::wait_empty(gates);
    for access in sessions {
        if let Access::Process(peer) = access {
            wait_exit(peer);
        }
    }
}

/// Waits as long as it takes: returning early would break the promise of a fence.
fn wait_exit(peer: &Peer) {
    loop {
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
