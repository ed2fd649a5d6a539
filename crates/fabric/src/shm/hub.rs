//! The memory node's list of sessions that can reach its pool directly, and their fence.
//!
//! There is one hub for each memory node of the process, in a registry under the node's identity:
//! a session that attaches to a node of its own process finds it there and needs no socket.
//!
//! Attaching and fencing are ordered by the hub's lock. A session is in the list before it can
//! reach the pool, and the fence records the client before it looks at the list. So a session of
//! a fenced client either is refused, or is found and ended.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use fusee_core::verbs::ClientId;

use super::gate::{Gate, Shut};
use crate::error::ServeError;
use crate::pool::Pool;
use crate::sys::Process;

static REGISTRY: LazyLock<Mutex<HashMap<u64, Weak<Hub>>>> = LazyLock::new(Mutex::default);

/// Locks without regard to panics: the maps behind these locks are valid at every step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How a session reaches the pool, and so how it is shut out.
#[derive(Clone, Debug)]
pub(crate) enum Access {
    /// From this process.
    Gate(Arc<Gate>),
    /// From another process.
    Process(Arc<Process>),
}

/// Names a session of a hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
pub(crate) struct Hub {
    pool: Pool,
    identity: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    closed: bool,
    next: u64,
    fenced: HashSet<ClientId>,
    sessions: HashMap<SessionId, (ClientId, Access)>,
}

impl Hub {
    /// Makes a node's pool known to the sessions of this process.
    pub(crate) fn start(pool: Pool, identity: u64) -> Result<Arc<Hub>, ServeError> {
        let hub = Arc::new(Hub { pool, identity, state: Mutex::default() });
        let mut registry = lock(&REGISTRY);
        if registry.get(&identity).is_some_and(|hub| hub.strong_count() > 0) {
            return Err(ServeError::IdentityInUse { identity });
        }
        registry.insert(identity, Arc::downgrade(&hub));
        Ok(hub)
    }

    /// The node of this identity, if it lives in this process.
    pub(crate) fn find(identity: u64) -> Option<Arc<Hub>> {
        lock(&REGISTRY).get(&identity)?.upgrade()
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(crate) fn identity(&self) -> u64 {
        self.identity
    }

    /// Adds a session.
    pub(crate) fn open(&self, client: ClientId, access: Access) -> Result<SessionId, Refusal> {
        let mut state = lock(&self.state);
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
        lock(&self.state).sessions.remove(&session);
    }

    pub(crate) fn sessions(&self) -> u64 {
        lock(&self.state).sessions.len() as u64
    }

    /// Shuts a client out for ever; returns when no verb of it executes any more.
    pub(crate) fn fence(&self, client: ClientId) {
        // The sessions stay in the list until they have ended: a second fence of the same client
        // at the same time must wait for them, too.
        let found: Vec<(SessionId, Access)> = {
            let mut state = lock(&self.state);
            state.fenced.insert(client);
            let of_client = state.sessions.iter().filter(|(_, (c, _))| *c == client);
            of_client.map(|(id, (_, access))| (*id, access.clone())).collect()
        };
        for (_, access) in &found {
            match access {
                Access::Gate(gate) => gate.shut(Shut::Fenced),
                Access::Process(process) => {
                    tracing::warn!(%client, pid = process.pid, "fencing: killing the process");
                    if let Err(error) = process.kill() {
                        tracing::error!(%error, pid = process.pid, "cannot kill a fenced client");
                    }
                }
            }
        }
        wait_ended(found.iter().map(|(_, access)| access));
        for (id, _) in found {
            self.leave(id);
        }
    }

    /// Ends the sessions of this process; later ones are refused.
    pub(crate) fn close(&self) {
        lock(&REGISTRY).retain(|_, hub| !std::ptr::eq(hub.as_ptr(), self));
        let sessions: Vec<Access> = {
            let mut state = lock(&self.state);
            state.closed = true;
            state.sessions.drain().map(|(_, (_, access))| access).collect()
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
        if let Access::Process(process) = access {
            wait_exit(process);
        }
    }
}

/// Waits as long as it takes: returning early would break the promise of a fence.
fn wait_exit(process: &Process) {
    loop {
        match process.ended(Duration::from_secs(1)) {
            Ok(true) => return,
            Ok(false) => tracing::warn!(pid = process.pid, "a fenced client has not exited yet"),
            Err(error) => {
                tracing::error!(%error, pid = process.pid, "cannot watch a fenced client");
                std::thread::sleep(Duration::from_secs(1));
            }
        }
    }
}
