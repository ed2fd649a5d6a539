//! The header of a pool: the layout, the cluster, the view that the memory node is at, and the nodes that it bars.
//!
//! ```text
//! pool     | header 4096 | log areas, up to the first extent | extents |
//! header   | magic 4, layout version 4 | cluster 8 | view 8 | 8 bars, 8 each | zeros 4008 |
//! bar      | number of a view, 48 bits | memory node, 16 bits |         0: none
//! ```
//!
//! The header is the start of the pool and lies in no extent. The memory node alone writes it, one
//! aligned word at a time; clients READ it. Every fabric refuses a WRITE, CAS or FAA that reaches
//! into it ([`Verb::check`](crate::verbs::Verb::check)).
//!
//! Lent memory begins at [`first_extent`], behind the header and the [log areas](super::log). Both are not taken from
//! the lent bytes, so as many regions fit as without them.

use super::bytes::u32_at;
pub use crate::verbs::POOL_HEADER_BYTES;
use crate::verbs::{ClusterId, MnId};
use crate::version::VersionRange;

/// The version of all layouts of this module, and of the fabrics' hellos. Every pool and every hello contains it; a
/// program that does not know the version refuses the pool or the connection.
pub const LAYOUT_VERSION: u32 = 5;
/// The layout versions that this program understands. A fabric's hello names one of them.
pub const LAYOUTS: VersionRange = VersionRange::only("the layout of pools", LAYOUT_VERSION);

const MAGIC: u32 = u32::from_le_bytes(*b"FPOL");

/// A word of a pool's header, which the memory node writes and which clients can READ separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderWord {
    /// The word with the magic number and the layout version.
    Layout,
    /// The word with the id of the cluster that the node serves; 0 if the node serves none.
    Cluster,
    /// The number of the view that the node is at; 0 if it is at no view.
    View,
    /// One of the [`MAX_BARS`] bars, each of which names a memory node that this node bars ([`bar_word`]); 0 if the bar
    /// is unused.
    Bar(u8),
}

/// The largest number of nodes that a memory node can bar.
pub const MAX_BARS: usize = 8;
/// Bytes of all bars in the pool's header.
pub const BARS_BYTES: usize = 8 * MAX_BARS;
/// The bound of the view numbers in bars: each number is smaller than this.
pub const MAX_BARRED_VIEW: u64 = 1 << 48;

/// Returns the value of a [`HeaderWord::Bar`], which bars `node` for operations that are pinned by views up to `view`.
/// The value is 0, which stands for no bar, only for node 0 and view 0.
pub const fn bar_word(node: MnId, view: u64) -> u64 {
    ((node.0 as u64) << 48) | (view % MAX_BARRED_VIEW)
}

/// Whether the bars of a pool's header include a bar against this node.
pub fn has_bar(bars: &[u8], node: MnId) -> bool {
    let words = bars.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_le_bytes));
    words.into_iter().any(|word| word != 0 && word >> 48 == u64::from(node.0))
}

impl HeaderWord {
    /// Returns the offset of the header word in the pool, in bytes.
    pub const fn offset(self) -> u64 {
        match self {
            HeaderWord::Layout => 0,
            HeaderWord::Cluster => 8,
            HeaderWord::View => 16,
            HeaderWord::Bar(at) => 24 + 8 * at as u64,
        }
    }
}

/// The value of [`HeaderWord::Layout`], little-endian like all words.
pub const LAYOUT_WORD: u64 = MAGIC as u64 | (LAYOUT_VERSION as u64) << 32;

/// The cluster and the view that a pool's header shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolHeader {
    /// The cluster that the node serves; `None` if it serves none.
    pub cluster: Option<ClusterId>,
    /// The number of the view that the node is at; 0 if it is at no view.
    pub view: u64,
}

impl PoolHeader {
    /// Bytes of the layout, cluster and view words, at the start of the pool.
    pub const BYTES: usize = 24;

    /// Decodes the layout, cluster and view words; `None` if the bytes are no pool header, or a header of another
    /// version.
    pub fn decode(bytes: &[u8; PoolHeader::BYTES]) -> Option<PoolHeader> {
        let word =
            |at: usize| u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32;
        let of = |word_of: HeaderWord| word(word_of.offset() as usize);
        let header = || PoolHeader {
            cluster: ClusterId::from_word(of(HeaderWord::Cluster)),
            view: of(HeaderWord::View),
        };
        (of(HeaderWord::Layout) == LAYOUT_WORD).then(header)
    }
}

/// Returns the start of the first extent in a pool that lends this number of bytes: at the first huge page, or behind
/// some log areas if the pool is smaller than a huge page.
pub const fn first_extent(lent_bytes: u64) -> u64 {
    const HUGE_PAGE_BYTES: u64 = 2 << 20;
    const SMALL_POOLS_BYTES: u64 = 64 << 10;
    if lent_bytes >= HUGE_PAGE_BYTES { HUGE_PAGE_BYTES } else { SMALL_POOLS_BYTES }
}

const _: () = {
    assert!(HeaderWord::Layout.offset() == 0);
    assert!(HeaderWord::Cluster.offset() == HeaderWord::Layout.offset() + 8);
    assert!(HeaderWord::View.offset() == HeaderWord::Cluster.offset() + 8);
    assert!(HeaderWord::View.offset() + 8 == PoolHeader::BYTES as u64);
    assert!(HeaderWord::Bar(0).offset() == PoolHeader::BYTES as u64);
    assert!(HeaderWord::Bar(0).offset() + BARS_BYTES as u64 <= POOL_HEADER_BYTES);
    assert!(first_extent(0) >= POOL_HEADER_BYTES && first_extent(u64::MAX) >= POOL_HEADER_BYTES);
    assert!(LAYOUT_WORD != 0, "a fresh pool is no pool of this version yet");
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_as_it_is_drawn() {
        let mut bytes = [0; PoolHeader::BYTES];
        assert_eq!(PoolHeader::decode(&bytes), None, "a fresh pool");
        bytes[..4].copy_from_slice(b"FPOL");
        bytes[4] = LAYOUT_VERSION as u8;
        assert_eq!(PoolHeader::decode(&bytes), Some(PoolHeader { cluster: None, view: 0 }));
        bytes[8..16].copy_from_slice(&0x0102_0304_0506_0708u64.to_le_bytes());
        bytes[16..24].copy_from_slice(&(7u64 << 32).to_le_bytes());
        let cluster = ClusterId::from_word(0x0102_0304_0506_0708);
        assert_eq!(PoolHeader::decode(&bytes), Some(PoolHeader { cluster, view: 7 << 32 }));
        for at in 0..8 {
            let mut other = bytes;
            other[at] ^= 1;
            assert_eq!(PoolHeader::decode(&other), None, "byte {at}");
        }
    }

    #[test]
    fn a_bar_names_a_node_and_none_is_none() {
        let mut bars = [0; BARS_BYTES];
        assert!(!has_bar(&bars, MnId(0)), "none of them is set");
        bars[8..16].copy_from_slice(&bar_word(MnId(0), 7).to_le_bytes());
        bars[56..].copy_from_slice(&bar_word(MnId(u16::MAX), 1).to_le_bytes());
        let barred = [0, 1, u16::MAX].map(|node| has_bar(&bars, MnId(node)));
        assert_eq!(barred, [true, false, true]);
        assert_eq!(HeaderWord::Bar(7).offset(), 80);
    }

    #[test]
    fn extents_begin_behind_the_log_areas_and_in_large_pools_at_a_huge_page() {
        assert_eq!(first_extent(4096), 64 << 10);
        assert_eq!(first_extent((2 << 20) - 1), 64 << 10);
        assert_eq!(first_extent(2 << 20), 2 << 20);
    }
}
