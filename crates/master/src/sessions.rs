//! Client ids, and the rests of blocks that pass from one session to another.
//!
//! Ids are never used twice, not even across restarts of the master: they are drawn from ranges of
//! [`IDS_PER_RECORD`] that are recorded before their first id is handed out. A restart skips what
//! is left of the range.
//!
//! Leftovers live in memory only. A master that recorded them could, after a crash at the wrong
//! moment, hand one out twice, and two clients would write to the same objects; a master that
//! forgets them costs room (the unused rests of the blocks) until recovery finds the blocks.

use std::collections::{BTreeMap, BTreeSet};

use fusee_control::master::Leftover;
use fusee_control::node::BlockId;
use fusee_core::layout::{BlockShape, SizeClass};
use fusee_core::verbs::ClientId;
use fusee_core::view::View;

/// Ids per write to the store.
pub const IDS_PER_RECORD: u32 = 64;
/// Leftovers kept at most; beyond, they are forgotten.
const MAX_LEFTOVERS: usize = 1 << 16;

/// All sessions.
#[derive(Debug)]
pub struct Sessions {
    /// The next id, and the end of the recorded range.
    next: u32,
    end: u32,
    /// The first id of this master process: ids below belong to sessions of an earlier one.
    first: u32,
    /// Open sessions of this process, with what each was given.
    open: BTreeMap<ClientId, Vec<Leftover>>,
    /// Sessions of an earlier process that have closed since.
    closed_earlier: BTreeSet<ClientId>,
    leftovers: BTreeMap<SizeClass, Vec<Leftover>>,
    /// The blocks of all leftovers.
    left: BTreeSet<BlockId>,
}

/// A new session.
#[derive(Debug, PartialEq, Eq)]
pub struct Opened {
    /// Its id.
    pub client: ClientId,
    /// The end of the range of ids, if it has to be recorded first.
    pub record_end: Option<u32>,
}

impl Sessions {
    /// No session; ids from `first` on are unused.
    pub fn new(first: u32) -> Sessions {
        let first = first.max(1);
        Sessions {
            next: first,
            end: first,
            first,
            open: BTreeMap::new(),
            closed_earlier: BTreeSet::new(),
            leftovers: BTreeMap::new(),
            left: BTreeSet::new(),
        }
    }

    /// Sessions open now, as far as this process knows.
    pub fn open_count(&self) -> u64 {
        self.open.len() as u64
    }

    /// Ids used up.
    pub fn opened_count(&self) -> u64 {
        u64::from(self.next) - 1
    }

    /// Opens a session; `None` when all ids are used up.
    pub fn open(&mut self) -> Option<Opened> {
        let mut record_end = None;
        if self.next == self.end {
            self.end = self.end.checked_add(IDS_PER_RECORD)?;
            record_end = Some(self.end);
        }
        let client = ClientId(self.next);
        self.next += 1;
        self.open.insert(client, Vec::new());
        Some(Opened { client, record_end })
    }

    /// Gives an open session the rest of a block for objects of a class.
    pub fn take_leftover(&mut self, client: ClientId, class: SizeClass) -> Option<Leftover> {
        let given = self.open.get_mut(&client)?;
        let leftover = self.leftovers.get_mut(&class)?.pop()?;
        self.left.remove(&leftover.block);
        given.push(leftover);
        Some(leftover)
    }

    /// Closes a session and keeps the leftovers that it may hand on. Repeating it changes
    /// nothing. An error says what was wrong; the session is closed all the same.
    pub fn close(
        &mut self,
        client: ClientId,
        leftovers: &[Leftover],
        view: &View,
    ) -> Result<(), String> {
        if client == ClientId::NOBODY || client.0 >= self.next {
            return Err(format!("{client} has never been opened"));
        }
        let given = match self.open.remove(&client) {
            Some(given) => given,
            None if client.0 < self.first && self.closed_earlier.insert(client) => Vec::new(),
            None => return Ok(()),
        };
        let mut dropped = None;
        for leftover in leftovers {
            if let Err(what) = self.keep(client, leftover, &given, view) {
                dropped = Some(format!("{leftover:?} is dropped: {what}"));
            }
        }
        dropped.map_or(Ok(()), Err)
    }

    fn keep(
        &mut self,
        client: ClientId,
        leftover: &Leftover,
        given: &[Leftover],
        view: &View,
    ) -> Result<(), &'static str> {
        let Leftover { block, owner, class, first } = *leftover;
        let region = view.regions.get(block.region as usize);
        if region.is_none() || block.block >= view.geometry.blocks_per_region() {
            return Err("no such block");
        }
        // The class came over a wire that checks only its type.
        let class = SizeClass::from_code(class.code()).ok_or("no such size class")?;
        let shape = BlockShape::new(view.geometry.block_bytes, class);
        if first >= shape.ok_or("no object of this class fits in a block")?.objects {
            return Err("the block has no such object");
        }
        let same = |before: &&Leftover| before.block == block && before.owner == owner;
        match given.iter().find(same) {
            Some(before) if class != before.class || first < before.first => {
                return Err("it was given to the session in another state");
            }
            None if owner != client => return Err("the block is not the session's"),
            _ => {}
        }
        if self.left.len() == MAX_LEFTOVERS {
            return Err("there are too many");
        }
        if !self.left.insert(block) {
            return Err("it has been handed on already");
        }
        self.leftovers.entry(class).or_default().push(*leftover);
        Ok(())
    }
}
