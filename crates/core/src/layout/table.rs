//! Entries of block allocation tables.
//!
//! ```text
//! entry   | owner 4 | base 2 | order 1 | kind 1 |
//! kind    | 0: no block starts at the frame, 1: a block with a base, 2: a mixed block |
//! ```
//!
//! A region's table has an entry for each frame. The entry at the first frame of a block, free or not, describes the
//! block; those at the block's other frames are zeros. Only memory nodes write entries.

use super::Slot;
use crate::verbs::ClientId;

const BASED: u8 = 1;
const MIXED: u8 = 2;

/// The entry of a block in a block allocation table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct TableEntry {
    /// The session that owns the block, or the id of no session if the block is free.
    pub owner: ClientId,
    /// The block's order: the block has 2^order frames.
    pub order: u8,
    /// The generation with which the objects of the block's next owner begin, unless the block has a header. `None` if
    /// the block is *mixed*: it was merged from blocks with different bases, and its next owner has to wait a window.
    pub base: Option<u16>,
}

impl TableEntry {
    /// Returns the entry as a word, little-endian in memory.
    pub fn encode(&self) -> u64 {
        let (base, kind) = self.base.map_or((0, MIXED), |base| (base, BASED));
        let word = [u64::from(self.owner.0), u64::from(base) << 32];
        word[0] | word[1] | u64::from(self.order) << 48 | u64::from(kind) << 56
    }

    /// Reads an entry; `None` if no block starts at the frame, or if the word is no entry.
    pub fn decode(word: u64) -> Option<TableEntry> {
        let base = (word >> 32) as u16;
        let base = match (word >> 56) as u8 {
            BASED if base < Slot::GENERATIONS => Some(base),
            MIXED => None,
            _ => return None,
        };
        Some(TableEntry { owner: ClientId(word as u32), order: (word >> 48) as u8, base })
    }

    /// Returns the blocks that a table describes: the number of each block's first frame, with the block's entry. Words
    /// that are no entries are left out, as are blocks for which `is_block` returns false.
    pub fn all(
        words: impl Iterator<Item = u64>,
        is_block: impl Fn(u32, u8) -> bool,
    ) -> impl Iterator<Item = (u32, TableEntry)> {
        let entries = (0u32..).zip(words.map(TableEntry::decode));
        let entries = entries.filter_map(|(frame, entry)| Some((frame, entry?)));
        entries.filter(move |(frame, entry)| is_block(*frame, entry.order))
    }
}

impl TableEntry {
    /// Returns the first frame and the entry of the block that has a frame, in a table with these entries; `None` if
    /// the table shows no such block.
    pub fn of_block_with(
        frame: u32,
        max_order: u8,
        entry_at: impl Fn(u32) -> Option<TableEntry>,
    ) -> Option<(u32, TableEntry)> {
        (0..=max_order).find_map(|order| {
            let first = frame >> order << order;
            let entry = entry_at(first)?;
            (entry.order >= order).then_some((first, entry))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_back_and_other_words_are_none() {
        for base in [None, Some(0), Some(511)] {
            let entry = TableEntry { owner: ClientId(u32::MAX - 1), order: 8, base };
            assert_eq!(TableEntry::decode(entry.encode()), Some(entry));
        }
        for word in [0, 7, 3 << 56, u64::MAX, 1 << 56 | 512 << 32] {
            assert_eq!(TableEntry::decode(word), None, "{word:#x}");
        }
    }
}
