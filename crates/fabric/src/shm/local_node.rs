//! The memory nodes of this process, and the state that each node shares with its sessions.
//!
//! Each memory node of the process has a hub ([`ShmLocalNode`]), registered under the node's identity. A session
//! that attaches to a node of its own process finds the hub there and needs no socket. A hub consists of the node's
//! pool and the list of the node's sessions.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use fusee_core::ended_clients::LiveClients;
use fusee_core::verbs::ClientId;

use super::sessions::{ShmAccess, ShmRefusal, ShmSessionId, ShmSessions};
use crate::error::ServeError;
use crate::fork::PerProcess;
use crate::pool::Pool;

static REGISTRY: PerProcess<Mutex<HashMap<u64, Weak<ShmLocalNode>>>> = PerProcess::new();

/// Locks the registry, even after a panic, because the map is valid at every step.
fn registry() -> MutexGuard<'static, HashMap<u64, Weak<ShmLocalNode>>> {
    REGISTRY.get().lock().unwrap_or_else(PoisonError::into_inner)
}

/// The pool of a memory node of this process, and the sessions that map the pool.
#[derive(Debug)]
pub(crate) struct ShmLocalNode {
    pool: Pool,
    sessions: ShmSessions,
}

impl ShmLocalNode {
    /// Registers a node's pool for the sessions of this process.
    pub(crate) fn start(pool: Pool, identity: u64) -> Result<Arc<ShmLocalNode>, ServeError> {
        let hub = Arc::new(ShmLocalNode { pool, sessions: ShmSessions::new() });
        let mut registry = registry();
        if registry.get(&identity).is_some_and(|hub| hub.strong_count() > 0) {
            return Err(ServeError::IdentityInUse { identity });
        }
        registry.insert(identity, Arc::downgrade(&hub));
        Ok(hub)
    }

    /// Returns the node with this identity, if it runs in this process.
    pub(crate) fn find(identity: u64) -> Option<Arc<ShmLocalNode>> {
        registry().get(&identity)?.upgrade()
    }

    /// Returns whether the node with this identity runs in this process.
    pub(crate) fn is_here(identity: u64) -> bool {
        ShmLocalNode::find(identity).is_some()
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Adds a session to the node's list.
    pub(crate) fn open(
        &self,
        client: ClientId,
        access: ShmAccess,
    ) -> Result<ShmSessionId, ShmRefusal> {
        self.sessions.open(client, access)
    }

    /// Removes a session that cannot execute verbs any more.
    pub(crate) fn leave(&self, session: ShmSessionId) {
        self.sessions.leave(session);
    }

    pub(crate) fn sessions(&self) -> u64 {
        self.sessions.count()
    }

    /// Fences clients for ever. Returns when no verb of these clients executes in this pool any more.
    pub(crate) fn fence(&self, clients: &[ClientId]) {
        self.sessions.fence(clients);
    }

    /// Records which clients with ids below a bound are alive. All others below the bound count as ended.
    pub(crate) fn learn(&self, living: &LiveClients) {
        self.sessions.learn(living);
    }

    /// Shuts the gates of the sessions that are in this process, and refuses later sessions.
    pub(crate) fn close(&self) {
        registry().retain(|_, hub| !std::ptr::eq(hub.as_ptr(), self));
        self.sessions.close();
    }
}
