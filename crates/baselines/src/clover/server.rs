//! The metadata server: the index, the entries that are free, and the garbage.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use super::shape::{Entry, Shape};
use super::{ENTRIES_AT_A_TIME, RETIRED_TOGETHER};
use crate::{Key, Server};

/// For how long requests take a core of the metadata server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Where a key's chain is.
    pub query: Duration,
    /// A new key.
    pub open: Duration,
    /// Entries, as many as are handed out together.
    pub allocate: Duration,
    /// Each entry that is retired.
    pub retire: Duration,
}

impl Costs {
    /// What a request to retire takes is *fitted* on the six cores at which the metadata server is no longer the limit
    /// of 64 clients (P §2.2), with YCSB-A; all others are *assumed*.
    pub const FITTED: Costs = Costs {
        query: Duration::from_nanos(1_500),
        open: Duration::from_micros(3),
        allocate: Duration::from_micros(2),
        retire: Duration::from_nanos(7_300),
    };
}

/// What clients ask the metadata server.
#[derive(Clone, Debug)]
pub enum Request {
    /// Where the key's chain is.
    Query(Key),
    /// The key is to be a new one, with this entry.
    Open(Key, Entry),
    /// Some entries.
    Allocate,
    /// Entries that others follow, at most [`RETIRED_TOGETHER`] of them.
    Retire(Vec<Retired>),
}

/// An entry that another one follows.
#[derive(Clone, Copy, Debug)]
pub struct Retired {
    pub(crate) key: Key,
    pub(crate) old: Entry,
    pub(crate) new: Entry,
}

/// What it replies, in the order of [`Request`].
#[derive(Clone, Debug)]
pub enum Reply {
    /// Where the chain of the key is, if there is such a key.
    Chain(Option<Chain>),
    /// What became of a new key.
    Opened(Opened),
    /// These entries belong to whoever has asked; none if there are none.
    Entries(Vec<Entry>),
    /// It knows.
    Retired,
}

/// What the index has of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chain {
    /// The oldest entry that is not free.
    pub(crate) head: Entry,
    /// The number of the key's shortcut.
    pub(crate) shortcut: u32,
}

/// What became of a new key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opened {
    /// It is there, and this is its shortcut.
    Now(u32),
    /// It was there before.
    Before,
    /// There is no shortcut left.
    Full,
}

/// The index, and the memory that is free.
pub struct MetadataServer {
    shape: Shape,
    costs: Costs,
    chains: HashMap<Key, Chain>,
    /// Those that were retired last come last.
    free: VecDeque<Entry>,
    /// Who follows entries whose predecessors are not retired.
    waiting: HashMap<Entry, Entry>,
    reused: u64,
}

impl MetadataServer {
    /// Of a store without keys.
    ///
    /// # Panics
    /// If there are fewer memory nodes than replicas, no replica, or more entries than there are addresses.
    pub fn new(shape: Shape, costs: Costs) -> MetadataServer {
        shape.check();
        MetadataServer {
            shape,
            costs,
            chains: HashMap::with_capacity(shape.keys as usize),
            free: (0..shape.entries()).map(Entry::first).collect(),
            waiting: HashMap::new(),
            reused: 0,
        }
    }

    /// How many entries are free.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// How often an entry became free again.
    pub fn reused(&self) -> u64 {
        self.reused
    }

    fn open(&mut self, key: Key, head: Entry) -> Opened {
        if self.chains.contains_key(&key) {
            return Opened::Before;
        }
        let shortcut = self.chains.len() as u64;
        if shortcut == self.shape.keys {
            return Opened::Full;
        }
        let shortcut = shortcut as u32;
        self.chains.insert(key, Chain { head, shortcut });
        Opened::Now(shortcut)
    }

    /// The published server has a list for each replica, and hands out 16 entries of one of them. Here an entry has all
    /// its replicas, so that fewer of them are as many.
    fn allocate(&mut self) -> Vec<Entry> {
        let count = (ENTRIES_AT_A_TIME / self.shape.replicas).max(1).min(self.free.len());
        self.free.drain(..count).collect()
    }

    /// Only the head of a chain becomes free, and then whatever waited for that.
    fn retire(&mut self, Retired { key, old, new }: Retired) {
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

impl Server for MetadataServer {
    type Request = Request;
    type Reply = Reply;

    fn takes(&self, request: &Request) -> Duration {
        match request {
            Request::Query(_) => self.costs.query,
            Request::Open(..) => self.costs.open,
            Request::Allocate => self.costs.allocate,
            Request::Retire(retired) => self.costs.retire * retired.len() as u32,
        }
    }

    /// A word says what is asked and of whom; then come keys and words.
    fn bytes(&self, request: &Request) -> (u64, u64) {
        let pointers = 8 * self.shape.replicas as u64;
        match request {
            Request::Query(_) => (8 + 16, 8 + 8 + pointers),
            Request::Open(..) => (8 + 16 + pointers, 8 + 8),
            Request::Allocate => (8, 8 + 8 * ENTRIES_AT_A_TIME as u64),
            Request::Retire(retired) => {
                debug_assert!(retired.len() <= RETIRED_TOGETHER);
                (8 + retired.len() as u64 * (16 + 2 * pointers), 8)
            }
        }
    }

    fn serve(&mut self, request: Request) -> Reply {
        match request {
            Request::Query(key) => Reply::Chain(self.chains.get(&key).copied()),
            Request::Open(key, head) => Reply::Opened(self.open(key, head)),
            Request::Allocate => Reply::Entries(self.allocate()),
            Request::Retire(retired) => {
                retired.into_iter().for_each(|retired| self.retire(retired));
                Reply::Retired
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { memory_nodes: 2, replicas: 2, value_bytes: 8, keys: 2, spare: 18 };

    fn allocate(server: &mut MetadataServer) -> Vec<Entry> {
        let Reply::Entries(entries) = server.serve(Request::Allocate) else { panic!("entries") };
        entries
    }

    fn head(server: &mut MetadataServer, key: Key) -> Entry {
        let Reply::Chain(Some(chain)) = server.serve(Request::Query(key)) else { panic!("a key") };
        chain.head
    }

    #[test]
    fn entries_become_free_in_the_order_of_their_chain() {
        let mut server = MetadataServer::new(SHAPE, Costs::FITTED);
        let entries = allocate(&mut server);
        assert_eq!((entries.len(), server.free()), (8, 12), "16, with both replicas");
        server.serve(Request::Open(1, entries[0]));
        let retired = |i: usize| Retired { key: 1, old: entries[i], new: entries[i + 1] };
        // Another session was faster.
        server.serve(Request::Retire(vec![retired(2), retired(1)]));
        assert_eq!((server.free(), head(&mut server, 1)), (12, entries[0]));
        server.serve(Request::Retire(vec![retired(0)]));
        assert_eq!((server.free(), head(&mut server, 1)), (15, entries[3]));
        // What a session has said twice changes nothing.
        server.serve(Request::Retire(vec![retired(0), retired(1)]));
        assert_eq!((server.free(), head(&mut server, 1), server.reused()), (15, entries[3], 3));
        // They come back in their next lives, after all others.
        let again = [allocate(&mut server), allocate(&mut server)].concat();
        assert_eq!(again[12..], [0, 1, 2].map(|i| entries[i].again().unwrap()));
        assert_eq!(allocate(&mut server), []);
    }

    #[test]
    fn a_key_is_opened_once_and_as_many_as_there_are_shortcuts() {
        let mut server = MetadataServer::new(SHAPE, Costs::FITTED);
        let mut open = |key, i| {
            let Reply::Opened(opened) = server.serve(Request::Open(key, Entry::first(i))) else {
                panic!("a key was to be opened");
            };
            opened
        };
        assert_eq!([open(1, 0), open(2, 1)], [Opened::Now(0), Opened::Now(1)]);
        assert_eq!([open(1, 2), open(3, 2)], [Opened::Before, Opened::Full]);
    }
}
