//! Limits on the connections that a memory node accepts, for each peer and in total.
//!
//! A connection before its hello is *unauthenticated* (`newcomer`). A node has room for few unauthenticated
//! connections and gives them little time; the oldest one is closed when another one needs room. After its hello a
//! connection is an attached session. A session is often silent for long, so it is never closed to make room:
//! without room, a new session is refused with that reason. A *peer* is an address, or a process of this machine.

// Promise SEC-4

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The time after which a connection that has not said hello is closed.
pub(crate) const HELLO_WAIT: Duration = Duration::from_secs(2);
/// The pause after a failure to accept (for example, without free descriptors) before the next attempt.
pub(crate) const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// The least time that an unauthenticated connection gets for its hello before it can be closed to make room for
/// others.
pub(crate) const NEWCOMER_GRACE: Duration = Duration::from_millis(250);
/// The time between two checks whether there is room for another unauthenticated connection.
pub(crate) const ROOM_RETRY: Duration = Duration::from_millis(5);

/// Limits on the resources of one fabric of a memory node that strangers and broken peers can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeLimits {
    /// The largest number of connections that have not said hello yet.
    pub newcomers: usize,
    /// The largest number of sessions.
    pub sessions: usize,
    /// The largest number of sessions of one address or, over shared memory, of one process.
    pub sessions_per_peer: usize,
    /// The limit on bytes for requests that have arrived in part, beyond a small buffer of each session. A second
    /// limit of this size is for replies that clients do not fetch. Over TCP only.
    pub frame_bytes: usize,
    /// The part of each `frame_bytes` limit that one address can hold.
    pub frame_bytes_per_peer: usize,
    /// The time for which a connection is allowed to hold frame memory without progress while other connections wait
    /// for frame memory. After this time the connection is closed.
    pub patience: Duration,
}

impl Default for NodeLimits {
    fn default() -> NodeLimits {
        NodeLimits {
            newcomers: 1024,
            sessions: 8192,
            sessions_per_peer: 4096,
            frame_bytes: 128 << 20,
            frame_bytes_per_peer: 64 << 20,
            patience: Duration::from_secs(2),
        }
    }
}

/// The attached sessions, counted by peer.
#[derive(Debug)]
pub(crate) struct SessionLimiter<P> {
    limits: NodeLimits,
    peers: HashMap<P, usize>,
    /// The number of sessions of all peers. Other threads read it.
    sessions: Arc<AtomicU64>,
}

/// The error for a session that exceeds the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no room for another session, of this peer or at all")]
pub(crate) struct SessionLimitError;

impl<P: Eq + Hash> SessionLimiter<P> {
    pub(crate) fn new(limits: NodeLimits) -> SessionLimiter<P> {
        SessionLimiter { limits, peers: HashMap::new(), sessions: Arc::default() }
    }

    /// Returns the number of sessions as a counter that other threads can read.
    pub(crate) fn counter(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.sessions)
    }

    pub(crate) fn sessions(&self) -> usize {
        self.sessions.load(Ordering::Relaxed) as usize
    }

    /// Returns whether the limit on unauthenticated connections is reached, if there are `connections` connections
    /// in total.
    pub(crate) fn is_crowded(&self, connections: usize) -> bool {
        connections.saturating_sub(self.sessions()) >= self.limits.newcomers
    }

    /// Counts a new session if there is room for it.
    pub(crate) fn enter(&mut self, peer: P) -> Result<(), SessionLimitError> {
        if self.sessions() >= self.limits.sessions {
            return Err(SessionLimitError);
        }
        let of_peer = self.peers.entry(peer).or_default();
        if *of_peer >= self.limits.sessions_per_peer {
            return Err(SessionLimitError);
        }
        *of_peer += 1;
        self.sessions.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Removes a session that has ended from the counts.
    pub(crate) fn leave(&mut self, peer: P) {
        let Some(of_peer) = self.peers.get_mut(&peer) else { return };
        *of_peer -= 1;
        if *of_peer == 0 {
            self.peers.remove(&peer);
        }
        self.sessions.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_are_bounded_for_each_peer_and_in_total_and_come_back() {
        let limits =
            NodeLimits { newcomers: 2, sessions: 5, sessions_per_peer: 3, ..Default::default() };
        let mut doors = SessionLimiter::new(limits);
        let enter = |doors: &mut SessionLimiter<char>, peer: char| doors.enter(peer).is_ok();
        let entered: Vec<bool> = "aaaabbb".chars().map(|peer| enter(&mut doors, peer)).collect();
        assert_eq!(entered, [true, true, true, false, true, true, false]);
        assert!(!doors.is_crowded(6) && doors.is_crowded(7));
        doors.leave('a');
        assert!(enter(&mut doors, 'c') && !enter(&mut doors, 'a'));
        for peer in "aabbc".chars() {
            doors.leave(peer);
        }
        assert_eq!((doors.sessions(), doors.peers.len()), (0, 0));
    }
}
