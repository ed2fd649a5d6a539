//! Bounds on the connections of a server: their number, their time, and the memory that they hold.
//!
//! No peer is authenticated before its first request, so a connection is worth nothing until a whole request
//! has come. Until then it is *unauthenticated* (`newcomer`): there is room for few of these, and they have
//! little time. After that it is *authenticated* (`guest`), and closed only when it wants nothing: when no
//! request runs, and none has come for [`Limits::idle`]. Clients do not reuse a connection that has been idle
//! for a third of that time, so no request runs into its end. If there is no room for another guest, the guest
//! that has wanted nothing for the longest time makes room.
//!
//! ```text
//! accepted → newcomer ── first whole request ──→ guest ── idle for long, or in the way ──→ sent away
//!               └── silent, or in the way ──→ sent away
//! ```
//!
//! An incomplete frame holds memory: for the bytes that have come, and at most twice that while it grows.
//! Memory above [`FREE_FRAME_BYTES`] is counted, for each peer and in total. If a frame does not fit into these
//! counts, its connection is closed.
//!
//! A complete request holds memory until its handler has ended. Handlers run to their end, even if no caller
//! waits for the answer any more. This memory is counted by the length of the frame, and bounded in the same
//! way. In memory a request takes a few times the length of its frame.
//!
//! A *peer* is an address. Times are measured on the clock of the runtime.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// Bytes that an incomplete frame may hold without being counted.
pub(super) const FREE_FRAME_BYTES: usize = 16 << 10;
/// Bytes that a request holds apart from those of its frame.
const REQUEST_BYTES: usize = 256;
/// The interval of checks for room.
const LOOK: Duration = Duration::from_millis(5);
/// The most unauthenticated connections that are sent away at a time.
const AT_A_TIME: usize = 64;

/// Limits to the resources that strangers and broken peers may hold on a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Authenticated connections.
    pub guests: usize,
    /// The same, from one address.
    pub guests_per_peer: usize,
    /// Unauthenticated connections: those without a whole request so far.
    pub newcomers: usize,
    /// The time that an unauthenticated connection has before it can be closed to make room.
    pub newcomer_grace: Duration,
    /// The time that an unauthenticated connection has for its first request.
    pub first_request: Duration,
    /// The time that a frame has to come whole.
    pub frame: Duration,
    /// The time without a request after which a connection is closed.
    pub idle: Duration,
    /// Bytes that all incomplete frames may hold together.
    pub frame_bytes: usize,
    /// The same, from one address.
    pub frame_bytes_per_peer: usize,
    /// Bytes of the frames of all unanswered requests.
    pub request_bytes: usize,
    /// The same, from one address: more than the longest frame.
    pub request_bytes_per_peer: usize,
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
        }
    }
}

/// All connections of a server.
#[derive(Clone, Debug)]
pub(super) struct Guests {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    limits: Limits,
    book: Mutex<Book>,
}

#[derive(Debug, Default)]
struct Book {
    /// Indexed by the number of the connection.
    entries: HashMap<u64, Entry>,
    peers: HashMap<IpAddr, Peer>,
    newcomers: usize,
    /// Counted bytes of incomplete frames.
    frame_bytes: usize,
    /// Bytes of requests with handlers that have not ended.
    request_bytes: usize,
}

/// The resources that the connections of one address hold.
#[derive(Debug, Default)]
struct Peer {
    connections: usize,
    guests: usize,
    frame_bytes: usize,
    /// Includes requests of connections that have ended.
    request_bytes: usize,
}

#[derive(Debug)]
struct Entry {
    peer: IpAddr,
    has_asked: bool,
    /// Running requests.
    requests: usize,
    /// The time since which the connection exists, or has wanted nothing.
    since: Instant,
    /// The time since which a frame is incomplete.
    frame_since: Option<Instant>,
    /// Counted bytes of that frame.
    frame_bytes: usize,
    /// Bytes of frames that are complete, but are no running requests yet.
    come_bytes: usize,
    leave: Arc<Notify>,
}

impl Shared {
    fn book(&self) -> MutexGuard<'_, Book> {
        // No code that holds the lock panics half-way.
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Guests {
    pub(super) fn new(limits: Limits) -> Guests {
        Guests { shared: Arc::new(Shared { limits, book: Mutex::default() }) }
    }

    /// Waits until there is room for another connection. If many clients connect at once, they wait in the queue
    /// of the operating system. If many connections are silent, the oldest make room.
    pub(super) async fn room(&self) {
        while let Some(wait) = self.make_room() {
            tokio::time::sleep(wait).await;
        }
    }

    /// Returns `None` if there is room, or else the time to wait.
    fn make_room(&self) -> Option<Duration> {
        let Limits { newcomers, newcomer_grace, .. } = self.shared.limits;
        let book = self.shared.book();
        if book.newcomers < newcomers {
            return None;
        }
        book.send_newcomers_away(newcomer_grace);
        // The tasks of the connections that are sent away end soon.
        Some(LOOK)
    }

    /// Sends away connections that want nothing, since the system has no room for another one.
    pub(super) fn make_way(&self) {
        let mut book = self.shared.book();
        if book.send_newcomers_away(self.shared.limits.newcomer_grace) == 0 {
            book.send_idle_away(None);
        }
    }

    /// Enters a connection.
    pub(super) fn enter(&self, number: u64, peer: IpAddr) -> Guest {
        let leave = Arc::new(Notify::new());
        let mut book = self.shared.book();
        book.newcomers += 1;
        book.peers.entry(peer).or_default().connections += 1;
        let entry = Entry {
            peer,
            has_asked: false,
            requests: 0,
            since: Instant::now(),
            frame_since: None,
            frame_bytes: 0,
            come_bytes: 0,
            leave: Arc::clone(&leave),
        };
        book.entries.insert(number, entry);
        drop(book);
        Guest { place: Arc::new(Place { guests: self.clone(), number, leave }) }
    }
}

impl Book {
    /// Subtracts the bytes of requests of an address that have ended.
    fn end_requests(&mut self, address: IpAddr, bytes: usize) {
        self.request_bytes -= bytes;
        let Some(peer) = self.peers.get_mut(&address) else { return };
        peer.request_bytes -= bytes;
        if peer.connections == 0 && peer.request_bytes == 0 {
            self.peers.remove(&address);
        }
    }

    /// Sends away the oldest unauthenticated connections that had enough time, a few at a time. Returns how many.
    fn send_newcomers_away(&self, grace: Duration) -> usize {
        let had_time = |entry: &&Entry| !entry.has_asked && entry.since.elapsed() >= grace;
        let mut silent: Vec<&Entry> = self.entries.values().filter(had_time).collect();
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

    /// Sends away the guest that has wanted nothing for the longest time. Returns false if there is none.
    fn send_idle_away(&mut self, of: Option<IpAddr>) -> bool {
        let is_idle = |entry: &&mut Entry| {
            entry.has_asked && entry.requests == 0 && of.is_none_or(|peer| entry.peer == peer)
        };
        let idle = self.entries.values_mut().filter(is_idle).min_by_key(|entry| entry.since);
        let Some(entry) = idle else { return false };
        // Counts as busy from now on, so that it makes room for one connection only.
        entry.requests += 1;
        entry.leave.notify_one();
        true
    }
}

/// A connection in the book; the last clone takes it out.
#[derive(Clone, Debug)]
pub(super) struct Guest {
    place: Arc<Place>,
}

#[derive(Debug)]
struct Place {
    guests: Guests,
    number: u64,
    leave: Arc<Notify>,
}

impl Drop for Place {
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

/// A running request.
pub(super) struct Asking(Guest);

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.change(|entry| {
            entry.requests = entry.requests.saturating_sub(1);
            entry.since = Instant::now();
        });
    }
}

/// The memory that a request holds until its handler ends, possibly longer than its connection lives.
pub(super) struct Held {
    shared: Arc<Shared>,
    peer: IpAddr,
    bytes: usize,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.shared.book().end_requests(self.peer, self.bytes);
    }
}

/// The reason why a connection is refused or closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
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
    #[error("it made no request in time")]
    Silent,
    #[error("a request did not come whole in time")]
    SlowFrame,
    #[error("it has wanted nothing for long")]
    Idle,
    #[error("it made room for others")]
    MakesRoom,
}

impl From<Refusal> for io::Error {
    fn from(refusal: Refusal) -> io::Error {
        io::Error::other(refusal)
    }
}

impl Guest {
    fn change<T>(&self, change: impl FnOnce(&mut Entry) -> T) -> Option<T> {
        self.place.guests.shared.book().entries.get_mut(&self.place.number).map(change)
    }

    /// Notes that a whole request is about to be handled.
    pub(super) fn asks(&self) -> Result<(Asking, Option<Held>), Refusal> {
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
            // Connections that are sent away stay in the book for a moment.
            if of_peer >= limits.guests_per_peer && !book.send_idle_away(Some(peer)) {
                return Err(Refusal::PeerFull);
            }
            if total >= limits.guests
                && of_peer < limits.guests_per_peer
                && !book.send_idle_away(None)
            {
                return Err(Refusal::Full);
            }
            book.newcomers -= 1;
            book.peers.entry(peer).or_default().guests += 1;
        }
        let held = book.entries.get_mut(&self.place.number).map(|entry| {
            entry.has_asked = true;
            entry.requests += 1;
            let bytes = std::mem::take(&mut entry.come_bytes);
            Held { shared: Arc::clone(shared), peer: entry.peer, bytes }
        });
        Ok((Asking(self.clone()), held))
    }

    /// Notes that a frame is incomplete and holds this many bytes.
    pub(super) fn holds(&self, bytes: usize) -> Result<(), Refusal> {
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
            return Err(Refusal::FrameBytes);
        }
        entry.frame_bytes += more;
        peer.frame_bytes += more;
        book.frame_bytes += more;
        Ok(())
    }

    /// Notes that the frame is complete, with this many bytes.
    pub(super) fn has_whole(&self, bytes: usize) -> Result<(), Refusal> {
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
            return Err(Refusal::RequestBytes);
        }
        entry.come_bytes += more;
        peer.request_bytes += more;
        book.request_bytes += more;
        Ok(())
    }

    /// Waits until this connection must end, and returns the reason.
    pub(super) async fn overstays(&self) -> Refusal {
        loop {
            let (deadline, why) = self.deadline();
            if deadline <= Instant::now() {
                return why;
            }
            tokio::select! {
                () = sleep_until(deadline) => {}
                () = self.place.leave.notified() => return Refusal::MakesRoom,
            }
        }
    }

    /// Returns the time of the next check, and the reason to close the connection if nothing has changed by
    /// then.
    fn deadline(&self) -> (Instant, Refusal) {
        let limits = self.place.guests.shared.limits;
        let deadline = self.change(|entry| {
            let frame = entry.frame_since.map(|since| (since + limits.frame, Refusal::SlowFrame));
            let rest = match entry.requests {
                _ if !entry.has_asked => (entry.since + limits.first_request, Refusal::Silent),
                0 => (entry.since + limits.idle, Refusal::Idle),
                _ => (Instant::now() + limits.idle, Refusal::Idle),
            };
            frame.into_iter().chain([rest]).min_by_key(|(at, _)| *at).unwrap_or(rest)
        });
        // A frame may begin at any time, and has less time than an idle connection.
        let soon = Instant::now() + limits.frame.min(limits.idle).min(limits.first_request);
        let (at, why) = deadline.unwrap_or((soon, Refusal::Idle));
        if at <= Instant::now() { (at, why) } else { (at.min(soon), why) }
    }
}
