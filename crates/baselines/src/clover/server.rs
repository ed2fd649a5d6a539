//! The metadata server: the index, the free entries, and the entries that wait to be freed.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use super::shape::{CloverEntry, CloverShape};
use super::{ENTRIES_AT_A_TIME, RETIRED_TOGETHER};
use crate::{BaselineServer, KeyNumber};

/// Times for which requests occupy a core of the metadata server, by kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloverCosts {
    /// Time of a query for a key's chain.
    pub query: Duration,
    /// Time to add a new key to the index.
    pub open: Duration,
    /// Time to allocate the entries that the server hands out in one reply.
    pub allocate: Duration,
    /// Time to retire one entry.
    pub retire: Duration,
}

impl CloverCosts {
    /// The time to retire an entry is *fitted*: with YCSB-A and 64 clients, the metadata server is the bottleneck
    /// unless it has at least six cores (P §2.2). The other times are *assumed*.
    pub const FITTED: CloverCosts = CloverCosts {
        query: Duration::from_nanos(1_500),
        open: Duration::from_micros(3),
        allocate: Duration::from_micros(2),
        retire: Duration::from_nanos(7_300),
    };
}

/// Requests of clients to the metadata server.
#[derive(Clone, Debug)]
pub enum CloverRequest {
    /// Asks for the key's chain.
    Query(KeyNumber),
    /// Adds a new key to the index, with a chain that consists of this entry.
    Open(KeyNumber, CloverEntry),
    /// Asks for free entries of the memory nodes, in which the client will store values.
    Allocate,
    /// Retires entries that newer entries follow in their chains; at most [`RETIRED_TOGETHER`] in one request.
    Retire(Vec<RetiredEntry>),
}

/// An entry to retire, with its key and the entry that follows it.
#[derive(Clone, Copy, Debug)]
pub struct RetiredEntry {
    pub(crate) key: KeyNumber,
    pub(crate) old: CloverEntry,
    pub(crate) new: CloverEntry,
}

/// Replies of the metadata server. The variants have the order of [`CloverRequest`]'s.
#[derive(Clone, Debug)]
pub enum CloverReply {
    /// The key's chain, or `None` if the key does not exist.
    Chain(Option<CloverChain>),
    /// The result of an `Open` request.
    Opened(CloverOpenOutcome),
    /// New entries, which now belong to the client. The list is empty if the store has no free entry.
    Entries(Vec<CloverEntry>),
    /// Confirms that the entries of a `Retire` request are recorded as retired.
    Retired,
}

/// The chain of a key, as the server's index describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloverChain {
    /// The oldest entry of the key's chain that the server has not freed.
    pub(crate) head: CloverEntry,
    /// The number of the key's shortcut.
    pub(crate) shortcut: u32,
}

/// Results of a request to add a key to the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloverOpenOutcome {
    /// The key was new, and has the shortcut with this number.
    Now(u32),
    /// The key existed already.
    Before,
    /// The key was not added, because all shortcuts are in use.
    Full,
}

/// The metadata server's state: the index, and the free entries.
pub struct MetadataServer {
    shape: CloverShape,
    costs: CloverCosts,
    chains: HashMap<KeyNumber, CloverChain>,
    /// Free entries. The server hands out the first ones, and puts freed entries at the end.
    free: VecDeque<CloverEntry>,
    /// Retired entries that cannot be freed because their predecessors are not retired, each with its follower.
    waiting: HashMap<CloverEntry, CloverEntry>,
    reused: u64,
}

impl MetadataServer {
    /// Makes the server of a store without keys.
    ///
    /// # Panics
    /// If there are fewer memory nodes than replicas, no replica, or not fewer entries than addresses.
    pub fn new(shape: CloverShape, costs: CloverCosts) -> MetadataServer {
        shape.check();
        MetadataServer {
            shape,
            costs,
            chains: HashMap::with_capacity(shape.keys as usize),
            free: (0..shape.entries()).map(CloverEntry::first).collect(),
            waiting: HashMap::new(),
            reused: 0,
        }
    }

    /// Returns the number of free entries on the server's list.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Returns how often the server has freed an entry for another use.
    pub fn reused(&self) -> u64 {
        self.reused
    }

    fn open(&mut self, key: KeyNumber, head: CloverEntry) -> CloverOpenOutcome {
        if self.chains.contains_key(&key) {
            return CloverOpenOutcome::Before;
        }
        let shortcut = self.chains.len() as u64;
        if shortcut == self.shape.keys {
            return CloverOpenOutcome::Full;
        }
        let shortcut = shortcut as u32;
        self.chains.insert(key, CloverChain { head, shortcut });
        CloverOpenOutcome::Now(shortcut)
    }

    /// Hands out entries. The published server has a list for each replica, and hands out 16 entries of one list. Here
    /// an entry includes all its replicas, so the server hands out fewer entries for the same number of replicas.
    fn allocate(&mut self) -> Vec<CloverEntry> {
        let count = (ENTRIES_AT_A_TIME / self.shape.replicas).max(1).min(self.free.len());
        self.free.drain(..count).collect()
    }

    /// Records that `new` follows `old`, and frees retired entries from the head of the chain up to the first entry
    /// that is not retired.
    fn retire(&mut self, RetiredEntry { key, old, new }: RetiredEntry) {
        self.waiting.insert(old, new);
        let Some(chain) = self.chains.get_mut(&key) else { return };
        while let Some(next) = self.waiting.remove(&chain.head) {
            if let Some(again) = chain.head.again() {
                self.free.push_back(again);
                self.reused += 1;
            }
            chain.head = next;
        }
    }
}

impl BaselineServer for MetadataServer {
    type Request = CloverRequest;
    type Reply = CloverReply;

    fn service_time(&self, request: &CloverRequest) -> Duration {
        match request {
            CloverRequest::Query(_) => self.costs.query,
            CloverRequest::Open(..) => self.costs.open,
            CloverRequest::Allocate => self.costs.allocate,
            CloverRequest::Retire(retired) => self.costs.retire * retired.len() as u32,
        }
    }

    /// Request lengths assume one word for kind and sender, followed by keys and pointers.
    fn bytes(&self, request: &CloverRequest) -> (u64, u64) {
        let pointers = 8 * self.shape.replicas as u64;
        match request {
            CloverRequest::Query(_) => (8 + 16, 8 + 8 + pointers),
            CloverRequest::Open(..) => (8 + 16 + pointers, 8 + 8),
            CloverRequest::Allocate => (8, 8 + 8 * ENTRIES_AT_A_TIME as u64),
            CloverRequest::Retire(retired) => {
                debug_assert!(retired.len() <= RETIRED_TOGETHER);
                (8 + retired.len() as u64 * (16 + 2 * pointers), 8)
            }
        }
    }

    fn serve(&mut self, request: CloverRequest) -> CloverReply {
        match request {
            CloverRequest::Query(key) => CloverReply::Chain(self.chains.get(&key).copied()),
            CloverRequest::Open(key, head) => CloverReply::Opened(self.open(key, head)),
            CloverRequest::Allocate => CloverReply::Entries(self.allocate()),
            CloverRequest::Retire(retired) => {
                retired.into_iter().for_each(|retired| self.retire(retired));
                CloverReply::Retired
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: CloverShape =
        CloverShape { memory_nodes: 2, replicas: 2, value_bytes: 8, keys: 2, spare: 18 };

    fn allocate(server: &mut MetadataServer) -> Vec<CloverEntry> {
        let CloverReply::Entries(entries) = server.serve(CloverRequest::Allocate) else {
            panic!("entries")
        };
        entries
    }

    fn head(server: &mut MetadataServer, key: KeyNumber) -> CloverEntry {
        let CloverReply::Chain(Some(chain)) = server.serve(CloverRequest::Query(key)) else {
            panic!("a key")
        };
        chain.head
    }

    #[test]
    fn entries_become_free_in_the_order_of_their_chain() {
        let mut server = MetadataServer::new(SHAPE, CloverCosts::FITTED);
        let entries = allocate(&mut server);
        assert_eq!((entries.len(), server.free()), (8, 12), "16, with both replicas");
        server.serve(CloverRequest::Open(1, entries[0]));
        let retired = |i: usize| RetiredEntry { key: 1, old: entries[i], new: entries[i + 1] };
        // Another session retires its later entries first. None is freed, because the head of the chain is not retired.
        server.serve(CloverRequest::Retire(vec![retired(2), retired(1)]));
        assert_eq!((server.free(), head(&mut server, 1)), (12, entries[0]));
        server.serve(CloverRequest::Retire(vec![retired(0)]));
        assert_eq!((server.free(), head(&mut server, 1)), (15, entries[3]));
        // A repeated request to retire the same entries changes nothing.
        server.serve(CloverRequest::Retire(vec![retired(0), retired(1)]));
        assert_eq!((server.free(), head(&mut server, 1), server.reused()), (15, entries[3], 3));
        // Freed entries are handed out after all others, with their next versions.
        let again = [allocate(&mut server), allocate(&mut server)].concat();
        assert_eq!(again[12..], [0, 1, 2].map(|i| entries[i].again().unwrap()));
        assert_eq!(allocate(&mut server), []);
    }

    #[test]
    fn a_key_is_opened_once_and_as_many_as_there_are_shortcuts() {
        let mut server = MetadataServer::new(SHAPE, CloverCosts::FITTED);
        let mut open = |key, i| {
            let CloverReply::Opened(opened) =
                server.serve(CloverRequest::Open(key, CloverEntry::first(i)))
            else {
                panic!("a key was to be opened");
            };
            opened
        };
        assert_eq!(
            [open(1, 0), open(2, 1)],
            [CloverOpenOutcome::Now(0), CloverOpenOutcome::Now(1)]
        );
        assert_eq!([open(1, 2), open(3, 2)], [CloverOpenOutcome::Before, CloverOpenOutcome::Full]);
    }
}
