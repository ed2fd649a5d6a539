//! Who may be connected to a server, how many, for how long, and what may be half received of them.
//!
//! Nobody is authenticated before he asks, so a connection is worth nothing until its first request
//! has come whole: until then it is a *newcomer*, of which there is room for few, and which has
//! little time. Whoever has asked is a *guest*. Guests are sent away only when they want nothing (no
//! request under way, none for [`Limits::idle`]); clients do not use a connection again that has
//! been idle for a third of that, so no request runs into its end. Where there is no room for
//! another guest, the one that has wanted nothing for the longest time makes room.
//!
//! ```text
//! accepted → newcomer ── first whole request ──→ guest ── idle for long, or in the way ──→ sent away
//!               └── silent, or in the way ──→ sent away
//! ```
//!
//! A frame that has not come whole holds memory: what has come of it, at most twice as much as long
//! as it grows. Above [`FREE_FRAME_BYTES`] that is counted, for each peer and in total. Where the
//! count is full, the connection whose frame does not fit is closed.
//!
//! A request that has come whole holds memory until its handler has ended: also when nobody waits
//! for the answer any more, since handlers run to their end. That is counted by the length of its
//! frame, and bounded in the same way. In memory a request is a few times as long as its frame.
//!
//! A *peer* is an address. Times are measured on the clock of the runtime.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// What a frame that has not come whole may hold without being counted, in bytes.
pub(super) const FREE_FRAME_BYTES: usize = 16 << 10;
/// What a request holds apart from what is in its frame, in bytes.
const REQUEST_BYTES: usize = 256;
/// How often it is looked whether there is room.
const LOOK: Duration = Duration::from_millis(5);
/// Newcomers that are sent away at a time.
const AT_A_TIME: usize = 64;

/// What strangers and broken peers may hold of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections that have asked something.
    pub guests: usize,
    /// The same, of one address.
    pub guests_per_peer: usize,
    /// Connections that have asked nothing yet.
    pub newcomers: usize,
    /// A newcomer is not sent away for others before it had so much time.
    pub newcomer_grace: Duration,
    /// The time that a newcomer has for its first request.
    pub first_request: Duration,
    /// The time that a frame has to come whole.
    pub frame: Duration,
    /// Who wants nothing for so long is sent away.
    pub idle: Duration,
    /// What frames that have not come whole may hold together, in bytes.
    pub frame_bytes: usize,
    /// The same, of one address.
    pub frame_bytes_per_peer: usize,
    /// Frames of requests that are not answered, together, in bytes.
    pub request_bytes: usize,
    /// The same, of one address: more than the longest frame.
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
    /// By the number of the connection.
    entries: HashMap<u64, Entry>,
    peers: HashMap<IpAddr, Peer>,
    newcomers: usize,
    /// What frames that have not come whole hold, above what is free.
    frame_bytes: usize,
    /// What requests hold whose handlers have not ended.
    request_bytes: usize,
}

/// What the connections of one address hold.
#[derive(Debug, Default)]
struct Peer {
    connections: usize,
    guests: usize,
    frame_bytes: usize,
    /// Also those of connections that have ended.
    request_bytes: usize,
}

#[derive(Debug)]
struct Entry {
    peer: IpAddr,
    has_asked: bool,
    /// Requests under way.
    requests: usize,
    /// Since when it is here, or has wanted nothing.
    since: Instant,
    /// Since when a frame is coming.
    frame_since: Option<Instant>,
    /// What that holds, above what is free.
    frame_bytes: usize,
    /// What the frames hold that have come whole, and are no requests under way yet.
    come_bytes: usize,
    leave: Arc<Notify>,
}

impl Shared {
    fn book(&self) -> MutexGuard<'_, Book> {
        // Nothing in here panics half-way.
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Guests {
    pub(super) fn new(limits: Limits) -> Guests {
        Guests { shared: Arc::new(Shared { limits, book: Mutex::default() }) }
    }

    /// Waits until there is room for another newcomer. Where many connect at once, they wait in the
    /// queue of the operating system; where many have nothing to say, the oldest makes room.
    pub(super) async fn room(&self) {
        while let Some(wait) = self.make_room() {
            tokio::time::sleep(wait).await;
        }
    }

    /// `None`: there is room.
    fn make_room(&self) -> Option<Duration> {
        let Limits { newcomers, newcomer_grace, .. } = self.shared.limits;
        let book = self.shared.book();
        if book.newcomers < newcomers {
            return None;
        }
        book.send_newcomers_away(newcomer_grace);
        // The tasks of those that are sent away end soon.
        Some(LOOK)
    }

    /// Sends somebody away who wants nothing: the system has no room for another connection.
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
    /// Requests of an address hold so many bytes no longer.
    fn end_requests(&mut self, address: IpAddr, bytes: usize) {
        self.request_bytes -= bytes;
        let Some(peer) = self.peers.get_mut(&address) else { return };
        peer.request_bytes -= bytes;
        if peer.connections == 0 && peer.request_bytes == 0 {
            self.peers.remove(&address);
        }
    }

    /// Sends the oldest newcomers away, a few at a time, if they had the time to ask; tells how many.
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

    /// Sends the guest away that has wanted nothing for the longest time; false: all want something.
    fn send_idle_away(&mut self, of: Option<IpAddr>) -> bool {
        let is_idle = |entry: &&mut Entry| {
            entry.has_asked && entry.requests == 0 && of.is_none_or(|peer| entry.peer == peer)
        };
        let idle = self.entries.values_mut().filter(is_idle).min_by_key(|entry| entry.since);
        let Some(entry) = idle else { return false };
        // Nobody else is let in for it.
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

/// A request that is under way.
pub(super) struct Asking(Guest);

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.change(|entry| {
            entry.requests = entry.requests.saturating_sub(1);
            entry.since = Instant::now();
        });
    }
}

/// What a request holds, as long as its handler runs: longer than its connection, it may be.
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

/// Who is not let in, or not any longer, and why.
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

    /// A request has come whole, and is about to be handled.
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
            // Whoever is sent away is still in the book, for a moment.
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

    /// A frame is coming, of which so many bytes are held.
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

    /// The frame has come whole; it has so many bytes.
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

    /// Waits until this connection is to end, and says why.
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

    /// When to look again, and what it has done wrong if nothing has changed by then.
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
