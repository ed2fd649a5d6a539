//! Limits on the connections that a memory node takes, for each peer and in all.
//!
//! A connection before its hello is *unauthenticated* (`newcomer`). There is room for few of these, their
//! time is short, and the oldest makes room when another one arrives. After its hello a connection is an
//! attached session. Sessions are often silent for long, so a session never makes room for others: when there is no
//! room left, a new session is refused with that reason. A *peer* is an address, or a process of this
//! machine.

// Promise SEC-4

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The time for the hello on an unauthenticated connection, before the connection is closed.
pub(crate) const HELLO_WAIT: Duration = Duration::from_secs(2);
/// The pause after a failure to accept (for example, without free descriptors) before the next attempt.
pub(crate) const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// The time that every unauthenticated connection has for its hello before it may have to make room.
pub(crate) const NEWCOMER_GRACE: Duration = Duration::from_millis(250);
/// The time between two checks whether there is room for another unauthenticated connection.
pub(crate) const ROOM_RETRY: Duration = Duration::from_millis(5);

/// Limits on the resources of one fabric of a memory node that strangers and broken peers can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeLimits {
    /// Connections before their hello.
    pub newcomers: usize,
    /// Sessions.
    pub sessions: usize,
    /// Sessions of one address; over shared memory, of one process.
    pub sessions_per_peer: usize,
    /// Bytes for requests that have arrived in part, beyond a small buffer of each session; the same again
    /// for replies that clients do not fetch. Over TCP only.
    pub frame_bytes: usize,
    /// As `frame_bytes`, for one address.
    pub frame_bytes_per_peer: usize,
    /// The time for which a connection may hold such memory without progress while others wait for it.
    /// Then it is closed.
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
    /// The sessions of all peers. Other threads read it.
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

    /// Returns whether this many connections include as many unauthenticated ones as there may be.
    pub(crate) fn is_crowded(&self, connections: usize) -> bool {
        connections.saturating_sub(self.sessions()) >= self.limits.newcomers
    }

    /// Counts a new session, if there is room.
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

    /// Forgets a session that has ended.
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
