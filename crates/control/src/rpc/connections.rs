//! Bounds on the connections of a server: their number, their time, and the memory that they take.
//!
//! A connection is *unauthenticated* (`newcomer`) until a whole request has arrived, because a peer proves nothing
//! before its first request. The server accepts few unauthenticated connections and gives them little time. After the
//! first request a connection is *authenticated* (`guest`). It is then closed only when it is idle: no request runs,
//! and none has arrived for [`Limits::idle`]. Clients do not reuse a connection that has been idle for a third of that
//! time, so no request meets a connection that is being closed. If there is no room for another authenticated
//! connection, the one that has been idle for the longest time is closed.
//!
//! ```text
//! accepted → newcomer ── first whole request ──→ guest ── idle for long, or in the way ──→ sent away
//!               └── silent, or in the way ──→ sent away
//! ```
//!
//! An incomplete frame takes memory for the bytes that have arrived, and at most twice that while it grows. Memory
//! above [`FREE_FRAME_BYTES`] is counted, for each peer and in total. If a frame would exceed one of these limits, its
//! connection is closed.
//!
//! A complete request takes memory until its handler has ended. Handlers run to their end, even if no caller waits for
//! the answer any more. This memory is counted by the length of the frame, and bounded in the same way. A decoded
//! request takes a few times the length of its frame.
//!
//! An encoded answer takes memory until it is written, so until the peer reads. This memory is counted and bounded in
//! the same way, except that the connection with the most bytes is closed, and that [`FREE_ANSWER_BYTES`] of each
//! connection are always accepted. So peers that read get short answers even beside peers that do not.
//!
//! A *peer* is an IP address. Times are measured by the clock of the runtime.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// Number of bytes that an incomplete frame can take without being counted.
pub(super) const FREE_FRAME_BYTES: usize = 16 << 10;
/// Number of bytes of answers that a connection can keep, however much other connections keep.
const FREE_ANSWER_BYTES: usize = 64 << 10;
/// Number of bytes that a running request counts for in addition to the bytes of its frame.
const REQUEST_BYTES: usize = 256;
/// The interval between checks whether there is room for another connection.
const LOOK: Duration = Duration::from_millis(5);
/// Limit of unauthenticated connections that are closed at a time.
const AT_A_TIME: usize = 64;

/// Limits of the resources that unauthenticated and broken peers can take from a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Limit of authenticated connections.
    pub guests: usize,
    /// Limit of authenticated connections from one address.
    pub guests_per_peer: usize,
    /// Limit of unauthenticated connections, on which no whole request has arrived yet.
    pub newcomers: usize,
    /// The time for which an unauthenticated connection is not closed to make room for others.
    pub newcomer_grace: Duration,
    /// The time within which the first request has to arrive on a connection.
    pub first_request: Duration,
    /// The time within which a frame has to arrive completely.
    pub frame: Duration,
    /// The time without a request after which an authenticated connection is closed.
    pub idle: Duration,
    /// Limit of the bytes of all incomplete frames together.
    pub frame_bytes: usize,
    /// Limit of the bytes of incomplete frames from one address.
    pub frame_bytes_per_peer: usize,
    /// Limit of the bytes of the frames of all requests whose handlers have not ended.
    pub request_bytes: usize,
    /// Limit of the bytes of requests from one address. It is greater than the longest frame.
    pub request_bytes_per_peer: usize,
    /// Limit of the bytes of all answers that are not written yet.
    pub answer_bytes: usize,
    /// Limit of the bytes of answers to one address. It is greater than the longest frame.
    pub answer_bytes_per_peer: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            guests: 4096,
            guests_per_peer: 2048,
            newcomers: 1024,
            newcomer_grace: Duration::from_millis(250),
            first_request: Duration::from_secs(10),
            frame: Duration::from_secs(10),
            idle: Duration::from_secs(60),
            frame_bytes: 64 << 20,
            frame_bytes_per_peer: 32 << 20,
            request_bytes: 48 << 20,
            request_bytes_per_peer: 20 << 20,
            answer_bytes: 512 << 20,
            answer_bytes_per_peer: 256 << 20,
        }
    }
}

/// All connections of a server.
#[derive(Clone, Debug)]
pub(super) struct RpcConnections {
    shared: Arc<RpcConnectionsInner>,
}

#[derive(Debug)]
struct RpcConnectionsInner {
    limits: Limits,
    book: Mutex<RpcConnectionTable>,
}

#[derive(Debug, Default)]
struct RpcConnectionTable {
    /// The table's entries, by the number of the connection.
    entries: HashMap<u64, RpcConnectionEntry>,
    peers: HashMap<IpAddr, RpcPeerUsage>,
    newcomers: usize,
    /// Number of counted bytes of all incomplete frames.
    frame_bytes: usize,
    /// Number of bytes of all requests whose handlers have not ended.
    request_bytes: usize,
    /// Number of bytes of all answers that are not written yet.
    answer_bytes: usize,
}

/// The resources that the connections of one address take.
#[derive(Debug, Default)]
struct RpcPeerUsage {
    connections: usize,
    guests: usize,
    frame_bytes: usize,
    /// Number of bytes of requests whose handlers have not ended, even if the connections of these requests have ended.
    request_bytes: usize,
    /// Number of bytes of answers that are not written yet.
    answer_bytes: usize,
}

#[derive(Debug)]
struct RpcConnectionEntry {
    peer: IpAddr,
    has_asked: bool,
    /// Number of running requests of the connection.
    requests: usize,
    /// The time when the connection was accepted, or when its last request ended.
    since: Instant,
    /// The time when the connection's incomplete frame began, if there is an incomplete frame.
    frame_since: Option<Instant>,
    /// Number of counted bytes of the connection's incomplete frame.
    frame_bytes: usize,
    /// Number of bytes of the connection's frames that are complete but have not become running requests yet.
    come_bytes: usize,
    /// Number of bytes of the connection's answers that are not written yet.
    answer_bytes: usize,
    leave: Arc<Notify>,
}

impl RpcConnectionsInner {
    fn book(&self) -> MutexGuard<'_, RpcConnectionTable> {
        // A poisoned lock is accepted, because no code that holds the lock can panic half-way through a change.
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RpcConnections {
    pub(super) fn new(limits: Limits) -> RpcConnections {
        RpcConnections { shared: Arc::new(RpcConnectionsInner { limits, book: Mutex::default() }) }
    }

    /// Waits until there is room for another connection. Meanwhile, clients that connect wait in the queue of the
    /// operating system. If too many connections are silent, the oldest ones are closed.
    pub(super) async fn wait_for_room(&self) {
        while let Some(wait) = self.make_room() {
            tokio::time::sleep(wait).await;
        }
    }

    /// Returns `None` if there is room, or else the time until the next check.
    fn make_room(&self) -> Option<Duration> {
        let Limits { newcomers, newcomer_grace, .. } = self.shared.limits;
        let book = self.shared.book();
        if book.newcomers < newcomers {
            return None;
        }
        book.evict_unauthenticated(newcomer_grace);
        // Connections were told to close. Their tasks end soon, and then there is room.
        Some(LOOK)
    }

    /// Closes connections that are idle or have sent nothing, because the operating system has no room for another one.
    pub(super) fn make_way(&self) {
        let mut book = self.shared.book();
        if book.evict_unauthenticated(self.shared.limits.newcomer_grace) == 0 {
            book.evict_idle(None);
        }
    }

    /// Makes the entry of a new connection.
    pub(super) fn enter(&self, number: u64, peer: IpAddr) -> RpcConnection {
        let leave = Arc::new(Notify::new());
        let mut book = self.shared.book();
        book.newcomers += 1;
        book.peers.entry(peer).or_default().connections += 1;
        let entry = RpcConnectionEntry {
            peer,
            has_asked: false,
            requests: 0,
            since: Instant::now(),
            frame_since: None,
            frame_bytes: 0,
            come_bytes: 0,
            answer_bytes: 0,
            leave: Arc::clone(&leave),
        };
        book.entries.insert(number, entry);
        drop(book);
        RpcConnection {
            place: Arc::new(RpcConnectionGuard { guests: self.clone(), number, leave }),
        }
    }
}

impl RpcConnectionTable {
    /// Subtracts the bytes of ended requests from the counts of an address.
    fn end_requests(&mut self, address: IpAddr, bytes: usize) {
        self.request_bytes -= bytes;
        let Some(peer) = self.peers.get_mut(&address) else { return };
        peer.request_bytes -= bytes;
        if peer.connections == 0 && peer.request_bytes == 0 {
            self.peers.remove(&address);
        }
    }

    /// Closes the connection, of one address or of all, that keeps the most bytes of answers.
    fn close_most_unread(&self, of: Option<IpAddr>) {
        let entries = self.entries.values();
        let entries = entries
            .filter(|entry| entry.answer_bytes > 0 && of.is_none_or(|peer| entry.peer == peer));
        if let Some(entry) = entries.max_by_key(|entry| entry.answer_bytes) {
            entry.leave.notify_one();
        }
    }

    /// Closes the oldest unauthenticated connections that have existed for at least `grace`, a few at a time. Returns
    /// their number.
    fn evict_unauthenticated(&self, grace: Duration) -> usize {
        let had_time =
            |entry: &&RpcConnectionEntry| !entry.has_asked && entry.since.elapsed() >= grace;
        let mut silent: Vec<&RpcConnectionEntry> = self.entries.values().filter(had_time).collect();
        silent.sort_by_key(|entry| entry.since);
        silent.truncate(AT_A_TIME);
        if let Some(oldest) = silent.first() {
            let count = silent.len();
            let peer = oldest.peer;
            tracing::warn!(count, %peer, "control connections that ask nothing make room for others");
        }
        silent.iter().for_each(|entry| entry.leave.notify_one());
        silent.len()
    }

    /// Closes the authenticated connection that has been idle for the longest time, of one address or of all. Returns
    /// false if none is idle.
    fn evict_idle(&mut self, of: Option<IpAddr>) -> bool {
        let is_idle = |entry: &&mut RpcConnectionEntry| {
            entry.has_asked && entry.requests == 0 && of.is_none_or(|peer| entry.peer == peer)
        };
        let idle = self.entries.values_mut().filter(is_idle).min_by_key(|entry| entry.since);
        let Some(entry) = idle else { return false };
        // The entry is counted as busy from now on, so that it makes room for one connection only.
        entry.requests += 1;
        entry.leave.notify_one();
        true
    }
}

/// A connection with an entry. When the last clone is dropped, the entry is removed.
#[derive(Clone, Debug)]
pub(super) struct RpcConnection {
    place: Arc<RpcConnectionGuard>,
}

#[derive(Debug)]
struct RpcConnectionGuard {
    guests: RpcConnections,
    number: u64,
    leave: Arc<Notify>,
}

impl Drop for RpcConnectionGuard {
    fn drop(&mut self) {
        let mut book = self.guests.shared.book();
        let Some(entry) = book.entries.remove(&self.number) else { return };
        book.frame_bytes -= entry.frame_bytes;
        book.newcomers -= usize::from(!entry.has_asked);
        let Some(peer) = book.peers.get_mut(&entry.peer) else { return };
        peer.frame_bytes -= entry.frame_bytes;
        peer.guests -= usize::from(entry.has_asked);
        peer.connections -= 1;
        book.end_requests(entry.peer, entry.come_bytes);
    }
}

/// A running request of a connection.
pub(super) struct RpcRequestGuard(RpcConnection);

impl Drop for RpcRequestGuard {
    fn drop(&mut self) {
        self.0.change(|entry| {
            entry.requests = entry.requests.saturating_sub(1);
            entry.since = Instant::now();
        });
    }
}

/// The memory of a request, counted until its handler ends, even if the connection has ended before.
pub(super) struct RpcRequestMemory {
    shared: Arc<RpcConnectionsInner>,
    peer: IpAddr,
    bytes: usize,
}

impl Drop for RpcRequestMemory {
    fn drop(&mut self) {
        self.shared.book().end_requests(self.peer, self.bytes);
    }
}

/// The memory of an encoded answer, counted until the answer is written.
#[derive(Debug)]
pub(super) struct RpcAnswerMemory {
    connection: RpcConnection,
    bytes: usize,
}

impl Drop for RpcAnswerMemory {
    fn drop(&mut self) {
        let mut book = self.connection.place.guests.shared.book();
        let book = &mut *book;
        book.answer_bytes -= self.bytes;
        let Some(entry) = book.entries.get_mut(&self.connection.place.number) else { return };
        entry.answer_bytes -= self.bytes;
        let Some(peer) = book.peers.get_mut(&entry.peer) else { return };
        peer.answer_bytes -= self.bytes;
    }
}

/// The reason why a connection is refused or closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum RpcCloseReason {
    #[error("as many connections have requests under way as this server takes")]
    Full,
    #[error(
        "as many connections of this address have requests under way as this server takes of one"
    )]
    PeerFull,
    #[error("more is half received of this address, or in total, than this server keeps")]
    FrameBytes,
    #[error("requests of this address, or in total, hold more than this server keeps")]
    RequestBytes,
    #[error(
        "answers that this address, or all together, have not read hold more than this server keeps"
    )]
    AnswerBytes,
    #[error("it made no request in time")]
    Silent,
    #[error("a request did not come whole in time")]
    SlowFrame,
    #[error("it has wanted nothing for long")]
    Idle,
    #[error("it made room for others")]
    MakesRoom,
}

impl From<RpcCloseReason> for io::Error {
    fn from(refusal: RpcCloseReason) -> io::Error {
        io::Error::other(refusal)
    }
}

impl RpcConnection {
    fn change<T>(&self, change: impl FnOnce(&mut RpcConnectionEntry) -> T) -> Option<T> {
        self.place.guests.shared.book().entries.get_mut(&self.place.number).map(change)
    }

    /// Records that a whole request is about to be handled.
    pub(super) fn begin_request(
        &self,
    ) -> Result<(RpcRequestGuard, Option<RpcRequestMemory>), RpcCloseReason> {
        let shared = &self.place.guests.shared;
        let mut book = shared.book();
        let book = &mut *book;
        if let Some(entry) = book.entries.get(&self.place.number)
            && !entry.has_asked
        {
            let peer = entry.peer;
            let limits = &shared.limits;
            let total = book.entries.len() - book.newcomers;
            let of_peer = book.peers.get(&peer).map_or(0, |peer| peer.guests);
            // A connection that is being closed keeps its entry for a moment.
            if of_peer >= limits.guests_per_peer && !book.evict_idle(Some(peer)) {
                return Err(RpcCloseReason::PeerFull);
            }
            if total >= limits.guests && of_peer < limits.guests_per_peer && !book.evict_idle(None)
            {
                return Err(RpcCloseReason::Full);
            }
            book.newcomers -= 1;
            book.peers.entry(peer).or_default().guests += 1;
        }
        let held = book.entries.get_mut(&self.place.number).map(|entry| {
            entry.has_asked = true;
            entry.requests += 1;
            let bytes = std::mem::take(&mut entry.come_bytes);
            RpcRequestMemory { shared: Arc::clone(shared), peer: entry.peer, bytes }
        });
        Ok((RpcRequestGuard(self.clone()), held))
    }

    /// Records that the connection's incomplete frame takes this many bytes.
    pub(super) fn holds(&self, bytes: usize) -> Result<(), RpcCloseReason> {
        let counted = bytes.saturating_sub(FREE_FRAME_BYTES);
        let shared = &self.place.guests.shared;
        let mut book = shared.book();
        let book = &mut *book;
        let Some(entry) = book.entries.get_mut(&self.place.number) else { return Ok(()) };
        let Some(peer) = book.peers.get_mut(&entry.peer) else { return Ok(()) };
        entry.frame_since.get_or_insert_with(Instant::now);
        let more = counted.saturating_sub(entry.frame_bytes);
        if book.frame_bytes + more > shared.limits.frame_bytes
            || peer.frame_bytes + more > shared.limits.frame_bytes_per_peer
        {
            return Err(RpcCloseReason::FrameBytes);
        }
        entry.frame_bytes += more;
        peer.frame_bytes += more;
        book.frame_bytes += more;
        Ok(())
    }

    /// Records that the connection's frame is complete and has this many bytes.
    pub(super) fn note_whole_frame(&self, bytes: usize) -> Result<(), RpcCloseReason> {
        let shared = &self.place.guests.shared;
        let mut book = shared.book();
        let book = &mut *book;
        let Some(entry) = book.entries.get_mut(&self.place.number) else { return Ok(()) };
        let Some(peer) = book.peers.get_mut(&entry.peer) else { return Ok(()) };
        let held = std::mem::take(&mut entry.frame_bytes);
        entry.frame_since = None;
        book.frame_bytes -= held;
        peer.frame_bytes -= held;
        let more = bytes + REQUEST_BYTES;
        if book.request_bytes + more > shared.limits.request_bytes
            || peer.request_bytes + more > shared.limits.request_bytes_per_peer
        {
            return Err(RpcCloseReason::RequestBytes);
        }
        entry.come_bytes += more;
        peer.request_bytes += more;
        book.request_bytes += more;
        Ok(())
    }

    /// Records that the connection's complete frame takes no memory any more, unless it has become a running request.
    pub(super) fn end_frame(&self) {
        let mut book = self.place.guests.shared.book();
        let Some(entry) = book.entries.get_mut(&self.place.number) else { return };
        let peer = entry.peer;
        let bytes = std::mem::take(&mut entry.come_bytes);
        book.end_requests(peer, bytes);
    }

    /// Counts the bytes of an encoded answer until the returned value is dropped.
    pub(super) fn hold_answer(&self, bytes: usize) -> Result<RpcAnswerMemory, RpcCloseReason> {
        let shared = &self.place.guests.shared;
        let mut book = shared.book();
        let book = &mut *book;
        // A connection's entry exists as long as this value.
        let entry = book.entries.get_mut(&self.place.number).ok_or(RpcCloseReason::Idle)?;
        let address = entry.peer;
        let peer = book.peers.entry(address).or_default();
        let is_full = book.answer_bytes + bytes > shared.limits.answer_bytes;
        let is_peer_full = peer.answer_bytes + bytes > shared.limits.answer_bytes_per_peer;
        let is_free = entry.answer_bytes + bytes <= FREE_ANSWER_BYTES;
        let is_accepted = is_free || !is_full && !is_peer_full;
        if is_accepted {
            book.answer_bytes += bytes;
            peer.answer_bytes += bytes;
            entry.answer_bytes += bytes;
        }
        if is_full || is_peer_full {
            book.close_most_unread((!is_full).then_some(address));
        }
        if !is_accepted {
            return Err(RpcCloseReason::AnswerBytes);
        }
        Ok(RpcAnswerMemory { connection: self.clone(), bytes })
    }

    /// Waits until this connection must be closed, and returns the reason.
    pub(super) async fn wait_for_close(&self) -> RpcCloseReason {
        loop {
            let (deadline, why) = self.deadline();
            if deadline <= Instant::now() {
                return why;
            }
            tokio::select! {
                () = sleep_until(deadline) => {}
                () = self.place.leave.notified() => return RpcCloseReason::MakesRoom,
            }
        }
    }

    /// Returns the time of the next check, and the reason to close the connection if nothing has changed by
    /// then.
    fn deadline(&self) -> (Instant, RpcCloseReason) {
        let limits = self.place.guests.shared.limits;
        let deadline = self.change(|entry| {
            let frame =
                entry.frame_since.map(|since| (since + limits.frame, RpcCloseReason::SlowFrame));
            let rest = match entry.requests {
                _ if !entry.has_asked => {
                    (entry.since + limits.first_request, RpcCloseReason::Silent)
                }
                0 => (entry.since + limits.idle, RpcCloseReason::Idle),
                _ => (Instant::now() + limits.idle, RpcCloseReason::Idle),
            };
            frame.into_iter().chain([rest]).min_by_key(|(at, _)| *at).unwrap_or(rest)
        });
        // A frame can begin at any time, and its time limit is shorter than that of an idle connection, so the next
        // check comes early enough for that.
        let soon = Instant::now() + limits.frame.min(limits.idle).min(limits.first_request);
        let (at, why) = deadline.unwrap_or((soon, RpcCloseReason::Idle));
        if at <= Instant::now() { (at, why) } else { (at.min(soon), why) }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn the_connection_with_the_most_unread_bytes_is_closed() {
        let limit = 1 << 20;
        let limits = Limits { answer_bytes_per_peer: limit, ..Limits::default() };
        let guests = RpcConnections::new(limits);
        let peer = [127, 0, 0, 1].into();
        let [idle, hog, reader] = [0, 1, 2].map(|number| guests.enter(number, peer));
        let held = hog.hold_answer(limit).unwrap();
        assert!(hog.wait_for_close().now_or_never().is_none());
        let answer = reader.hold_answer(FREE_ANSWER_BYTES).unwrap();
        let refused = reader.hold_answer(1).unwrap_err();
        assert_eq!(refused, RpcCloseReason::AnswerBytes);
        assert_eq!(hog.wait_for_close().now_or_never(), Some(RpcCloseReason::MakesRoom));
        assert!(
            [&idle, &reader].iter().all(|other| other.wait_for_close().now_or_never().is_none())
        );
        drop((held, answer));
        assert!(reader.hold_answer(limit).is_ok());
        drop((idle, hog, reader));
        let table = guests.shared.book();
        assert_eq!((table.answer_bytes, table.peers.len(), table.entries.len()), (0, 0, 0));
    }
}
