//! Budgets: limits on the memory that all connections of a software NIC hold for frames in transit.
//!
//! A connection has [`FREE_BYTES`] for its input, and as many for its output. A longer frame takes the rest of its
//! length from a budget first. If the budget has not enough left, the node does not read from the connection until
//! it has. Because a frame takes all its memory at once, two long frames cannot wait for each other half-way.
//! Requests and replies have separate budgets, so replies can leave while no request makes progress. Frames beyond
//! [`LARGE_BYTES`] get at most three quarters of a budget, so a few of them that never arrive in full do not block
//! ordinary values.
//!
//! A budget only gives permission. Memory is allocated as bytes arrive.

// Promise SEC-4

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::buffer::Buffer;

/// The bytes of requests that a connection can hold without a budget, and also the bytes of replies.
pub(super) const FREE_BYTES: usize = 128 << 10;
/// The capacity in bytes beyond which a buffer counts as holding a large frame.
const LARGE_BYTES: usize = 2 << 20;
/// The number of bytes that a connection has to send or receive to count as making progress.
const PROGRESS_BYTES: usize = 1 << 20;

/// The budget for the frames of one direction.
#[derive(Debug)]
pub(super) struct TcpFrameBudget {
    total: usize,
    per_peer: usize,
    used: usize,
    peers: HashMap<IpAddr, usize>,
    /// Whether a connection gave memory back to the budget after the caller last cleared this flag.
    pub(super) has_more: bool,
}

impl TcpFrameBudget {
    pub(super) fn new(total: usize, per_peer: usize) -> TcpFrameBudget {
        TcpFrameBudget { total, per_peer, used: 0, peers: HashMap::new(), has_more: false }
    }

    fn take(&mut self, peer: IpAddr, bytes: usize, is_large: bool) -> bool {
        let of_peer = self.peers.get(&peer).copied().unwrap_or(0);
        let may_use = |all: usize| if is_large { all / 4 * 3 } else { all };
        if self.used + bytes > may_use(self.total) || of_peer + bytes > may_use(self.per_peer) {
            return false;
        }
        self.used += bytes;
        self.peers.insert(peer, of_peer + bytes);
        true
    }

    fn give_back(&mut self, peer: IpAddr, bytes: usize) {
        self.used -= bytes;
        self.has_more = true;
        if let Some(of_peer) = self.peers.get_mut(&peer) {
            *of_peer -= bytes;
            if *of_peer == 0 {
                self.peers.remove(&peer);
            }
        }
    }
}

/// The part of one budget that one connection holds.
#[derive(Debug)]
pub(super) struct TcpBudgetShare {
    bytes: usize,
    /// The time from which on the connection has held memory without progress.
    since: Instant,
    moved: usize,
}

impl TcpBudgetShare {
    pub(super) fn new() -> TcpBudgetShare {
        TcpBudgetShare { bytes: 0, since: Instant::now(), moved: 0 }
    }

    /// Takes permission for a buffer of this capacity. Returns false if the budget has not enough left.
    pub(super) fn take(
        &mut self,
        budget: &mut TcpFrameBudget,
        peer: IpAddr,
        capacity: usize,
    ) -> bool {
        let wanted = capacity.saturating_sub(FREE_BYTES);
        if wanted <= self.bytes {
            return true;
        }
        if !budget.take(peer, wanted - self.bytes, capacity > LARGE_BYTES) {
            return false;
        }
        if self.bytes == 0 {
            (self.since, self.moved) = (Instant::now(), 0);
        }
        self.bytes = wanted;
        true
    }

    /// Gives back to the budget the part of the share that a buffer of this capacity does not need.
    pub(super) fn give_back(&mut self, budget: &mut TcpFrameBudget, peer: IpAddr, capacity: usize) {
        let wanted = capacity.saturating_sub(FREE_BYTES);
        if wanted < self.bytes {
            budget.give_back(peer, self.bytes - wanted);
            self.bytes = wanted;
        }
    }

    /// Counts bytes that the connection has received or sent. Enough of them are progress.
    pub(super) fn count_moved_bytes(&mut self, bytes: usize) {
        self.moved += bytes;
        if self.bytes > 0 && self.moved >= PROGRESS_BYTES {
            (self.since, self.moved) = (Instant::now(), 0);
        }
    }

    /// Returns whether the connection has held memory for `patience` without progress.
    pub(super) fn is_stuck(&self, now: Instant, patience: Duration) -> bool {
        self.bytes > 0 && now.saturating_duration_since(self.since) >= patience
    }

    /// Gives the connection's whole share back to the budget.
    pub(super) fn end(&mut self, budget: &mut TcpFrameBudget, peer: IpAddr) {
        self.give_back(budget, peer, 0);
    }
}

/// Frees the memory of a connection's buffer if the buffer is empty.
pub(super) fn release(
    buffer: &mut Buffer,
    share: &mut TcpBudgetShare,
    budget: &mut TcpFrameBudget,
    peer: IpAddr,
) {
    if share.bytes > 0 && buffer.is_empty() {
        *buffer = Buffer::default();
        share.give_back(budget, peer, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn peer(host: u8) -> IpAddr {
        [10, 0, 0, host].into()
    }

    #[test]
    fn memory_is_bounded_for_each_peer_and_in_total_and_comes_back() {
        let mut budget = TcpFrameBudget::new(4 * MIB, 2 * MIB);
        let mut shares: Vec<(TcpBudgetShare, IpAddr)> = Vec::new();
        let mut taken = Vec::new();
        for host in [1, 1, 1, 2, 2, 3] {
            let mut share = TcpBudgetShare::new();
            let peer = peer(host);
            taken.push(share.take(&mut budget, peer, MIB + FREE_BYTES));
            shares.push((share, peer));
        }
        assert_eq!(taken, [true, true, false, true, true, false]);
        let mut small = TcpBudgetShare::new();
        assert!(small.take(&mut budget, peer(3), FREE_BYTES));
        assert!(!std::mem::take(&mut budget.has_more));
        shares[0].0.give_back(&mut budget, peer(1), FREE_BYTES);
        assert!(budget.has_more && shares[2].0.take(&mut budget, peer(1), MIB + FREE_BYTES));
        for (share, peer) in &mut shares {
            share.end(&mut budget, *peer);
        }
        assert_eq!((budget.used, budget.peers.len()), (0, 0));
    }

    #[test]
    fn large_frames_leave_room_for_others() {
        let mut budget = TcpFrameBudget::new(64 * MIB, 64 * MIB);
        let mut large: Vec<TcpBudgetShare> = (0..4).map(|_| TcpBudgetShare::new()).collect();
        let taken = large.iter_mut().map(|share| share.take(&mut budget, peer(1), 16 * MIB));
        assert_eq!(taken.filter(|taken| *taken).count(), 3);
        let mut other = TcpBudgetShare::new();
        assert!(other.take(&mut budget, peer(1), 2 * MIB));
    }

    #[test]
    fn who_gets_on_is_not_stuck() {
        let mut budget = TcpFrameBudget::new(64 * MIB, 64 * MIB);
        let mut share = TcpBudgetShare::new();
        let later = Instant::now() + Duration::from_secs(100);
        assert!(!share.is_stuck(later, Duration::from_secs(1)), "it holds nothing");
        assert!(share.take(&mut budget, peer(1), MIB));
        assert!(share.is_stuck(later, Duration::from_secs(1)));
        let since = share.since;
        share.count_moved_bytes(PROGRESS_BYTES - 1);
        assert_eq!(share.since, since);
        share.count_moved_bytes(1);
        assert!(share.since > since);
    }
}
