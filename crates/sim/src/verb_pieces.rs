//! The effects of one piece of a verb on the memory of a memory node.
//!
//! A READ or WRITE has one piece or, one time in four, up to five pieces. These are cut between any two aligned words,
//! and execute in any order. A fabric promises no more, with one exception: the last piece of a WRITE, which contains
//! its last word, executes last. CAS and FAA have one piece.

use std::ops::Range;

use fusee_core::layout::{BlockHeader, HEADER_BYTES, Object};
use fusee_core::verbs::{MnId, Verb, VerbOp};
use fusee_core::view::PoolPlace;

use crate::counts::count;
use crate::fabric::SimFabric;
use crate::unsound_cas::ForgedCas;

impl SimFabric {
    /// Executes one piece of a verb. Returns whether the verb is finished. `left` has the verb's remaining pieces.
    pub(crate) fn execute_piece(
        &self,
        verb: &mut Verb,
        bytes: &mut [u8],
        left: &mut Vec<Range<usize>>,
    ) -> bool {
        self.execute_forged(None, verb, bytes, left)
    }

    /// Executes one piece of a verb that a switch has possibly changed. The client still sees the verb that it posted.
    pub(crate) fn execute_forged(
        &self,
        forged: Option<ForgedCas>,
        verb: &mut Verb,
        bytes: &mut [u8],
        left: &mut Vec<Range<usize>>,
    ) -> bool {
        let node = verb.node;
        let offset = verb.offset;
        let size =
            self.network.memories().with(node, |m| m.pool.len() as u64).expect("the node is there");
        verb.result = verb.check(size);
        if verb.result.is_err() {
            return true;
        }
        let is_write = matches!(verb.op, VerbOp::Write { .. });
        match &mut verb.op {
            VerbOp::Cas { expected, swap, found } => {
                let expected = *expected;
                let swap = *swap;
                let cas = |from| self.swap_word(node, offset, |now| (now == from).then_some(swap));
                *found = match forged {
                    None => cas(expected),
                    Some(ForgedCas::Expects(other)) => cas(other),
                    Some(ForgedCas::Answered(word)) => word,
                    Some(ForgedCas::Written) => {
                        self.swap_word(node, offset, |_| Some(swap));
                        expected
                    }
                };
                self.network.sim().note(&[6, node.0.into(), offset, expected, swap, *found], || {
                    let done = if *found == expected { "" } else { " (not done)" };
                    let who = self.client;
                    let forged = forged.map_or(String::new(), |forged| format!(", {forged:x?}"));
                    format!(
                        "{who} CAS {node}+{offset:#x} {expected:#x} -> {swap:#x}: {found:#x}{done}{forged}"
                    )
                });
                true
            }
            VerbOp::Faa { add, found } => {
                let add = *add;
                *found = self.swap_word(node, offset, |now| Some(now.wrapping_add(add)));
                self.network.checkers().reuse().added(PoolPlace { node, offset }, *found, add);
                self.network.sim().note(&[7, node.0.into(), offset, add, *found], || {
                    format!("{} FAA {node}+{offset:#x} {add:#x}: {found:#x}", self.client)
                });
                true
            }
            VerbOp::Read { buf, .. } | VerbOp::Write { buf } => {
                if left.is_empty() {
                    if is_write {
                        let data = &bytes[buf.range()];
                        let place = PoolPlace { node, offset };
                        self.network.checkers().before_write(self.client, place, data);
                        self.note_content(place, data);
                    }
                    *left = self.pieces(offset, buf.len as usize, is_write);
                }
                let piece = left.pop().expect("it has pieces");
                let local = &mut bytes[buf.range()][piece.clone()];
                self.copy(node, offset + piece.start as u64, local, is_write);
                left.is_empty()
            }
        }
    }

    /// Notes in the trace what a WRITE puts at a place, if the content is an object or a block header.
    fn note_content(&self, place: PoolPlace, data: &[u8]) {
        let PoolPlace { node, offset } = place;
        let header = data.first_chunk().and_then(BlockHeader::decode);
        let object = data.get(..HEADER_BYTES as usize).and_then(Object::header_identity);
        if header.is_none() && object.is_none() {
            return;
        }
        self.network.sim().note(&[10, node.0.into(), offset], || {
            let who = self.client;
            match (header, object) {
                (Some(header), _) => format!("{who} begins {node}+{offset:#x}: {header:?}"),
                (None, object) => format!("{who} begins {node}+{offset:#x}: {object:?}"),
            }
        });
    }

    /// Replaces a word if `to` returns a new word. Returns the old word.
    fn swap_word(&self, node: MnId, offset: u64, to: impl FnOnce(u64) -> Option<u64>) -> u64 {
        let at = offset as usize;
        let (old, new) = self
            .network
            .memories()
            .with(node, |memory| {
                let word = &mut memory.pool[at..at + 8];
                let old = u64::from_le_bytes((&*word).try_into().expect("8 bytes"));
                let new = to(old);
                if let Some(new) = new {
                    word.copy_from_slice(&new.to_le_bytes());
                }
                (old, new)
            })
            .expect("the node is there");
        if let Some(new) = new {
            self.network.checkers().changed(PoolPlace { node, offset }, old, new);
        }
        old
    }

    fn copy(&self, node: MnId, offset: u64, local: &mut [u8], is_write: bool) {
        let at = offset as usize;
        if is_write {
            self.network.checkers().before_piece(PoolPlace { node, offset }, local);
        }
        self.network.memories().with(node, |memory| {
            let remote = &mut memory.pool[at..at + local.len()];
            if is_write {
                remote.copy_from_slice(local);
            } else {
                local.copy_from_slice(remote);
            }
        });
        let kind = 8 + u64::from(is_write);
        let len = local.len() as u64;
        self.network.sim().note(&[kind, node.0.into(), offset, len], || {
            let what = if is_write { "WRITE" } else { "READ" };
            format!("{} {what} {node}+{offset:#x} {len} bytes", self.client)
        });
    }

    /// Cuts `len` bytes at the pool offset `offset` into pieces, in random order.
    fn pieces(&self, offset: u64, len: usize, is_write: bool) -> Vec<Range<usize>> {
        let rng = self.network.sim().rng();
        let first_cut = 8 - (offset % 8) as usize;
        if !self.network.options().tearing || first_cut >= len || !rng.one_in(4) {
            return std::iter::once(0..len).collect();
        }
        let mut cuts = vec![0, len];
        let places = (len - first_cut).div_ceil(8);
        // In half of the draws, only the first eight words are cut, because they matter more than the rest of a long
        // value.
        let near = rng.pick(&[places, places.min(8)]);
        cuts.extend((0..1 + rng.below(4)).map(|_| first_cut + 8 * rng.below(near)));
        cuts.sort_unstable();
        let mut pieces: Vec<_> = cuts.windows(2).map(|pair| pair[0]..pair[1]).collect();
        pieces.retain(|piece| !piece.is_empty());
        for i in (1..pieces.len()).rev() {
            pieces.swap(i, rng.below(i + 1));
        }
        if is_write {
            let last = pieces.iter().position(|p| p.end == len);
            pieces.swap(0, last.expect("some piece is the last"));
        }
        count(&self.network.sim().counts().torn_verbs);
        pieces
    }
}
