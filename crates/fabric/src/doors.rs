//! How many connections a memory node takes, of one peer and of all.
//!
//! Who has not said hello is a *newcomer*: there is room for few, they have little time, and where
//! another one comes the oldest makes room. Who has said hello is attached and may be silent for as
//! long as it likes: sessions often are. So nobody who is attached makes room for others; where there
//! is no room for another session it is refused, with that reason. A *peer* is an address, or a
//! process of this machine.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A newcomer says hello within this time, or is sent away.
pub(crate) const HELLO_WAIT: Duration = Duration::from_secs(2);
/// After a failure to accept (no descriptors left, say), the next attempt waits so long.
pub(crate) const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// A newcomer is not sent away for others before it had so much time to say hello.
pub(crate) const NEWCOMER_GRACE: Duration = Duration::from_millis(250);
/// How often it is looked whether there is room for another newcomer.
pub(crate) const ROOM_RETRY: Duration = Duration::from_millis(5);

/// What strangers and broken peers may hold of a fabric of a memory node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeLimits {
    /// Connections that have not said hello.
    pub newcomers: usize,
    /// Sessions.
    pub sessions: usize,
    /// Sessions of one address, or of one process over shared memory.
    pub sessions_per_peer: usize,
    /// What requests that have not come whole may hold, in bytes, beyond a little for each session; and as
    /// much again for replies that are not fetched. Over TCP only.
    pub frame_bytes: usize,
    /// The same, of one address.
    pub frame_bytes_per_peer: usize,
    /// Who holds such memory for so long without getting on loses its connection, if others wait for it.
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

/// Who is attached.
#[derive(Debug)]
pub(crate) struct Doors<P> {
    limits: NodeLimits,
    peers: HashMap<P, usize>,
    /// All of them; others read it.
    sessions: Arc<AtomicU64>,
}

/// There is no room for another session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no room for another session, of this peer or at all")]
pub(crate) struct Full;

impl<P: Eq + Hash> Doors<P> {
    pub(crate) fn new(limits: NodeLimits) -> Doors<P> {
        Doors { limits, peers: HashMap::new(), sessions: Arc::default() }
    }

    /// The number of sessions, for others.
    pub(crate) fn counter(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.sessions)
    }

    pub(crate) fn sessions(&self) -> usize {
        self.sessions.load(Ordering::Relaxed) as usize
    }

    /// Whether there are as many newcomers as there may be, among so many connections.
    pub(crate) fn is_crowded(&self, connections: usize) -> bool {
        connections.saturating_sub(self.sessions()) >= self.limits.newcomers
    }

    /// Lets a session in.
    pub(crate) fn enter(&mut self, peer: P) -> Result<(), Full> {
        if self.sessions() >= self.limits.sessions {
            return Err(Full);
        }
        let of_peer = self.peers.entry(peer).or_default();
        if *of_peer >= self.limits.sessions_per_peer {
            return Err(Full);
        }
        *of_peer += 1;
        self.sessions.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// A session that was let in has ended.
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
        let mut doors = Doors::new(limits);
        let enter = |doors: &mut Doors<char>, peer: char| doors.enter(peer).is_ok();
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
