//! The places of entries and shortcuts, and the words that name entries.
//!
//! ```text
//! pool    header of the pool | shortcuts | replica 0 of entries | replica 1 of entries | ...
//! entry   next: 8 bytes | checksum: 8 bytes | key: 16 bytes | value
//! next    entry that follows: 45 bits | version of this entry: 17 bits | uncommitted: 1 bit
//! ```

use fusee_core::verbs::{MnId, POOL_HEADER_BYTES};

/// Number of bits of an entry's version.
const VERSION_BITS: u32 = 17;
const VERSIONS: u64 = 1 << VERSION_BITS;
/// Number of bits of an entry's address.
const ADDRESS_BITS: u32 = 28;

/// An entry's number and version. The version grows with each reuse. As a word, this is never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CloverEntry(u64);

impl CloverEntry {
    /// Returns the first use of the entry with this number.
    pub(crate) fn first(number: u64) -> CloverEntry {
        CloverEntry((number + 1) << VERSION_BITS)
    }

    /// Returns the entry with its next version; `None` if its versions are used up.
    pub(crate) fn again(self) -> Option<CloverEntry> {
        (self.version() + 1 < VERSIONS).then_some(CloverEntry(self.0 + 1))
    }

    pub(crate) fn from_word(word: u64) -> Option<CloverEntry> {
        (word != 0).then_some(CloverEntry(word))
    }

    pub(crate) fn word(self) -> u64 {
        self.0
    }

    pub(crate) fn version(self) -> u64 {
        self.0 % VERSIONS
    }

    pub(crate) fn number(self) -> u64 {
        (self.0 >> VERSION_BITS) - 1
    }
}

/// The first word of an entry: the entry's version and its follower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CloverNextWord(u64);

impl CloverNextWord {
    /// Returns the word of an entry without a follower.
    pub fn none(of: CloverEntry) -> CloverNextWord {
        CloverNextWord(of.version() << 1)
    }

    /// Returns the word of an entry with this follower.
    pub fn some(of: CloverEntry, next: CloverEntry) -> CloverNextWord {
        CloverNextWord(next.0 << (VERSION_BITS + 1) | of.version() << 1)
    }

    /// Marks the word as uncommitted: not all replicas have it.
    pub fn uncommitted(self) -> CloverNextWord {
        CloverNextWord(self.0 | 1)
    }

    pub fn from_word(word: u64) -> CloverNextWord {
        CloverNextWord(word)
    }

    pub fn word(self) -> u64 {
        self.0
    }

    pub fn version(self) -> u64 {
        (self.0 >> 1) % VERSIONS
    }

    pub fn next(self) -> Option<CloverEntry> {
        CloverEntry::from_word(self.0 >> (VERSION_BITS + 1))
    }

    pub fn is_uncommitted(self) -> bool {
        self.0 & 1 == 1
    }
}

/// Dimensions of a Clover store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloverShape {
    /// Number of memory nodes.
    pub memory_nodes: usize,
    /// Number of replicas of each entry, which lie on different memory nodes.
    pub replicas: usize,
    /// Bytes of every value.
    pub value_bytes: u32,
    /// Number of keys for which the store has room.
    pub keys: u64,
    /// Number of entries in addition to one for each key.
    pub spare: u64,
}

impl CloverShape {
    /// Returns a sufficient number of spare entries for these sessions, each with `operations` operations at a time. It
    /// is twice the number of entries that sessions hold unused or that wait to be retired. The second half is for
    /// entries that cannot be freed because their predecessors are retired late.
    pub fn spare_for(sessions: usize, operations: usize) -> u64 {
        let each = super::BACKLOG + operations * (super::ENTRIES_AT_A_TIME + 2);
        2 * (sessions * each) as u64
    }

    /// Returns the size of each memory node's pool.
    pub fn pool_bytes(&self) -> u64 {
        self.entries_at(self.replicas)
    }

    /// Checks the dimensions.
    ///
    /// # Panics
    /// If there are fewer memory nodes than replicas, no replica, or not fewer entries than addresses.
    pub(crate) fn check(&self) {
        assert!(0 < self.replicas, "an entry lies somewhere");
        assert!(self.replicas <= self.memory_nodes, "replicas lie on different memory nodes");
        let addresses = 1 << ADDRESS_BITS;
        assert!(self.entries() < addresses, "a store has less than {addresses} entries");
    }

    pub(crate) fn entries(&self) -> u64 {
        self.keys + self.spare
    }

    pub(crate) fn entry_bytes(&self) -> u32 {
        super::VALUE + self.value_bytes.next_multiple_of(8)
    }

    /// Returns the offset on each node at which the area for entries' replicas number `rank` begins.
    fn entries_at(&self, rank: usize) -> u64 {
        let nodes = self.memory_nodes as u64;
        let shortcuts = POOL_HEADER_BYTES + 8 * self.keys.div_ceil(nodes);
        let replicas = self.entries().div_ceil(nodes) * u64::from(self.entry_bytes());
        shortcuts.next_multiple_of(64) + rank as u64 * replicas
    }

    /// Returns the node and offset of a replica of an entry. The first word of replica 0 decides which entry follows.
    pub(crate) fn entry(&self, nodes: &[MnId], entry: CloverEntry, replica: usize) -> (MnId, u64) {
        let count = nodes.len() as u64;
        let node = (entry.number() + replica as u64) % count;
        let offset = entry.number() / count * u64::from(self.entry_bytes());
        (nodes[node as usize], self.entries_at(replica) + offset)
    }

    /// Returns the node and offset of a shortcut.
    pub(crate) fn shortcut(&self, nodes: &[MnId], number: u32) -> (MnId, u64) {
        let count = nodes.len();
        (nodes[number as usize % count], POOL_HEADER_BYTES + 8 * (number as u64 / count as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_what_was_put_into_them() {
        let last = CloverEntry::first((1 << ADDRESS_BITS) - 2);
        let of = last.again().unwrap();
        let next = last.again().unwrap().again().unwrap();
        let word = CloverNextWord::some(of, next);
        assert_eq!((word.version(), word.next(), word.is_uncommitted()), (1, Some(next), false));
        let word = word.uncommitted();
        assert_eq!((word.version(), word.next(), word.is_uncommitted()), (1, Some(next), true));
        assert_eq!(
            (CloverNextWord::none(of).version(), CloverNextWord::none(of).next()),
            (1, None)
        );
        assert_eq!((of.number(), of.version()), ((1 << ADDRESS_BITS) - 2, 1));
    }

    #[test]
    fn an_entry_has_as_many_lives_as_versions() {
        let lives = std::iter::successors(Some(CloverEntry::first(5)), |entry| entry.again());
        let mut count = 0;
        let mut last = CloverEntry::first(0);
        for entry in lives {
            (count, last) = (count + 1, entry);
            assert_eq!(entry.number(), 5);
        }
        assert_eq!((count, last.version()), (VERSIONS, VERSIONS - 1));
    }

    #[test]
    fn nothing_lies_on_anything_else() {
        let nodes: Vec<MnId> = (0..3).map(MnId).collect();
        let shape =
            CloverShape { memory_nodes: 3, replicas: 2, value_bytes: 20, keys: 7, spare: 9 };
        let mut places = Vec::new();
        for number in 0..shape.entries() {
            let entry = CloverEntry::first(number);
            let replicas = [0, 1].map(|replica| shape.entry(&nodes, entry, replica));
            assert_ne!(replicas[0].0, replicas[1].0);
            places.extend(replicas.map(|(node, offset)| (node, offset, shape.entry_bytes())));
        }
        places
            .extend((0..7).map(|shortcut| shape.shortcut(&nodes, shortcut)).map(|p| (p.0, p.1, 8)));
        places.sort();
        for pair in places.windows(2) {
            assert!(pair[0].0 != pair[1].0 || pair[0].1 + u64::from(pair[0].2) <= pair[1].1);
        }
        assert!(places.iter().all(|(_, at, bytes)| at + u64::from(*bytes) <= shape.pool_bytes()));
    }
}
