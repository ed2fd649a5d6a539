//! When memory is used again no operation runs that could know what was there before.
//!
//! An object may be written over when every operation and every job of the master has ended that
//! had begun before the last slot gave its word up, on any replica: these are all that can know it.
//! A block that was overwritten by zeros may be used again when all have ended that had begun
//! before that, unless nothing was written there since there were zeros: nobody can know anything
//! of it. Nobody has to ask when the product thinks that an object is free: the words in the
//! index say it, and the WRITEs to objects say when one is used again.
//!
//! A session that is dead runs until it is recovered. A job that failed counts as ended here, though its
//! verbs may still be under way: that is looser than what is promised.
//!
//! Besides: a bit of a free bitmap is set only where it is not, and cleared only where it is. Else it
//! is carried into its neighbour. No object begins to live whose bit is set.
//!
//! *Generations never restart.* Each life of an object takes an epoch at least, no object is written
//! with an identity that stands in another one on any replica, and none comes back within a window of
//! epochs after it stood in a slot or in an object. That needs somebody to say which epoch it is: the
//! master, in what it answers.
//!
//! A job of the master puts onto other places what stands on one. Of an object that a dead client left with two
//! identities, of which neither is in use, it may choose the earlier one: that has not gone, so it does not come back.
//! Nor has one that a dead client has overwritten by zeros, but not on all replicas.

use std::collections::{BTreeMap, BTreeSet};

use fusee_core::data::Redundancy;
use fusee_core::layout::{
    Address, BLOCK_HEADER_BYTES, HEADER_BYTES, Identity, Object, Slot, UNIT_BYTES, bitmap_bytes,
};
use fusee_core::slab::WINDOW_EPOCHS;
use fusee_core::verbs::{ClientId, MnId};
use fusee_core::view::{Place, View};

use super::entries::copies_kept_by;
use crate::network::Network;

/// What was in an object when it became free: its identity, or nothing but zeros.
type Left = Option<Identity>;

/// The latest life of an object.
#[derive(Clone, Copy)]
struct Life {
    identity: Identity,
    /// The first bytes of the object: two objects that differ have different ones.
    crc: u32,
    /// When it was written first.
    since: u64,
}

/// What is free since when, and what runs since when.
#[derive(Default)]
pub(crate) struct Reuse {
    view: Option<View>,
    /// The newest epoch; 0 if nobody has told one, and then nothing is known of windows.
    epoch: u64,
    /// By address: the life that was written last.
    lives: BTreeMap<u64, Life>,
    /// In which epoch an identity stood last, of those that do not any more.
    stood: BTreeMap<Identity, u64>,
    /// Grows with everything that happens here.
    clock: u64,
    /// By session or job, and by what it calls the local epoch: when its operations began, in order.
    running: BTreeMap<ClientId, BTreeMap<u64, Vec<u64>>>,
    /// Which of these are jobs.
    jobs: BTreeSet<ClientId>,
    /// Sessions that are recovered: what they still do has no effect.
    recovered: BTreeSet<ClientId>,
    /// By address: when it became free, and what is left there.
    free: BTreeMap<u64, (u64, Left)>,
    /// Objects that were written since there were zeros: where they begin, and how long they are.
    used: BTreeMap<u64, u64>,
}

impl Reuse {
    /// From now on this is where everything lies; nowhere: nothing is checked.
    pub fn follow(&mut self, view: Option<&View>) {
        self.view = view.cloned();
    }

    /// This is the newest epoch, or an earlier one.
    pub fn epoch(&mut self, epoch: u64) {
        self.epoch = self.epoch.max(epoch);
    }

    /// An identity stood somewhere until now.
    fn has_stood(&mut self, identity: Identity) {
        self.stood.insert(identity, self.epoch);
    }

    /// An object is written, or a part of it.
    ///
    /// # Panics
    /// If a word comes back too early.
    fn lives(
        &mut self,
        who: ClientId,
        address: u64,
        place: Place,
        header: &[u8],
        memory: &Network,
    ) {
        let Some(identity) = Object::header_identity(header) else { return };
        let epoch = self.epoch;
        let at = Address::new(address);
        let Some(generation) = identity.generation_at(at) else { return };
        let crc = header.first_chunk().map_or(0, |crc| u32::from_le_bytes(*crc));
        // Each chunk has its own.
        let crc = if self.redundancy_at(at) == Redundancy::Replicated { crc } else { 0 };
        let life = Life { identity, crc, since: epoch };
        let is_put_beside = self.jobs.contains(&who) && self.stands(identity, at, memory);
        let was_ended = !self.lives.contains_key(&address) && self.stood.contains_key(&identity);
        if was_ended && is_put_beside {
            self.has_stood(identity);
            return;
        }
        if let Some(known) = self.lives.get(&address).copied() {
            if known.identity == identity {
                // What came to nodes alone that are lost is forgotten.
                assert!(
                    known.crc == crc || !self.stands(identity, at, memory),
                    "{who} writes another object to {at} with generation {generation}"
                );
                self.lives.insert(address, Life { since: known.since, ..life });
                return;
            }
            if is_put_beside && memory.identity_at(place) != Some(known.identity) {
                self.has_stood(identity);
                return;
            }
            assert!(
                known.since < epoch || epoch == 0,
                "{who} uses {at} twice in epoch {epoch}, with generation {generation} now"
            );
            if self.stands(known.identity, at, memory) {
                self.has_stood(known.identity);
            }
        }
        let stood = self.stood.get(&identity).copied();
        // A life has more than one word where there are turns.
        let is_oriented = matches!(self.redundancy_at(at), Redundancy::Oriented(_));
        let lives = if is_oriented { u64::from(Slot::TURNS) } else { 1 };
        assert!(
            epoch == 0 || stood.is_none_or(|stood| stood + WINDOW_EPOCHS / lives <= epoch),
            "{who} writes {at} with generation {generation} in epoch {epoch}, which stood in {stood:?}"
        );
        // With a lost node its bitmaps are gone.
        let bit = self.free_bit(at).and_then(|(word, bits)| Some(memory.number_at(word)? & bits));
        // Its life began while nothing was checked, and somebody repairs what he has read before it was set free.
        let is_repaired = !self.lives.contains_key(&address) && self.stands(identity, at, memory);
        let is_used = is_repaired || bit.is_none_or(|bit| bit == 0);
        assert!(is_used, "{who} writes {at}, which is set free");
        self.lives.insert(address, life);
    }

    /// Whether an identity stands in an object. What came to nodes alone that are lost does not: nobody
    /// knows it, or it would have come to the others.
    fn stands(&self, identity: Identity, at: Address, memory: &Network) -> bool {
        self.places_of(at).iter().any(|at| memory.identity_at(*at) == Some(identity))
    }

    /// The word of a free bitmap that has an object's bit, on the primary, and the bit.
    fn free_bit(&self, object: Address) -> Option<(Place, u64)> {
        let view = self.view.as_ref()?;
        let (block, word, bits) = view.geometry.free_bit(object)?;
        let bitmap = view.block(block)?.bitmap();
        Some((Place { offset: bitmap.offset + u64::from(word) * 8, ..bitmap }, bits))
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// An operation begins to act.
    pub fn began(&mut self, client: ClientId, local_epoch: u64) {
        if !self.recovered.contains(&client) {
            let now = self.tick();
            self.running.entry(client).or_default().entry(local_epoch).or_default().push(now);
        }
    }

    /// A job of the master begins.
    pub fn job_began(&mut self, job: ClientId) {
        self.jobs.insert(job);
        self.began(job, 0);
    }

    /// One of those that began in this local epoch has ended. Which one is not known: the oldest, so that
    /// nobody is taken to run who does not.
    pub fn ended(&mut self, client: ClientId, local_epoch: u64) {
        let Some(running) = self.running.get_mut(&client) else { return };
        if let Some(since) = running.get_mut(&local_epoch).filter(|since| !since.is_empty()) {
            since.remove(0);
        }
    }

    /// A job has ended.
    pub fn idle(&mut self, client: ClientId) {
        self.running.remove(&client);
    }

    /// A session is recovered.
    pub fn gone(&mut self, client: ClientId) {
        self.running.remove(&client);
        self.recovered.insert(client);
    }

    /// A word has changed.
    pub fn changed(&mut self, place: Place, old: Slot, new: Slot, memory: &Network) {
        if old == new || !self.is_slot(place) {
            return;
        }
        let is_moved = old.object() != new.object() || old.turn() != new.turn();
        let keeps = self.view.as_ref().filter(|_| is_moved && !old.is_tentative());
        let copies = keeps.map(|view| copies_kept_by(memory, view, old));
        for copy in copies.into_iter().flatten() {
            let now = self.tick();
            self.free.insert(copy.address().bytes(), (now, Some(copy)));
        }
        if old.object() == new.object() {
            return;
        }
        if let Some(object) = old.object() {
            let identity = match self.redundancy_at(object) {
                Redundancy::Oriented(_) => old.leads_to().first_turn(),
                _ => old.leads_to(),
            };
            self.has_stood(identity);
            let now = self.tick();
            self.free.insert(object.bytes(), (now, Some(identity)));
        }
    }

    /// A number is added to a word.
    ///
    /// # Panics
    /// If it is a word of a free bitmap, and the bits are set already, or clear already.
    pub fn added(&self, place: Place, old: u64, add: u64) {
        let Some((_, offset)) = self.in_block(place) else { return };
        let cleared = add.wrapping_neg();
        let is_good = old & add == 0 || cleared & !old == 0;
        assert!(is_good, "{place:?}, at {offset} of its block: {add:#x} is added to {old:#x}");
    }

    /// Somebody begins to write to a node's memory, of which `memory` tells what stands there.
    ///
    /// # Panics
    /// If memory is used again that a running operation may know, or an identity too early.
    pub fn written(
        &mut self,
        who: ClientId,
        (node, offset): (MnId, u64),
        bytes: &[u8],
        memory: &Network,
    ) {
        let Some((start, in_block)) = self.in_block(Place { node, offset }) else { return };
        let block_bytes = self.view.as_ref().expect("it has blocks").geometry.block_bytes;
        if in_block < BLOCK_HEADER_BYTES + bitmap_bytes(block_bytes) {
            return;
        }
        if bytes.iter().all(|byte| *byte == 0) {
            let zeros = start..start + bytes.len() as u64;
            let now = self.tick();
            let ended: Vec<u64> = self.lives.range(zeros.clone()).map(|(at, _)| *at).collect();
            for at in ended {
                let Some(life) = self.lives.remove(&at) else { continue };
                if self.stands(life.identity, Address::new(at), memory) {
                    self.has_stood(life.identity);
                }
            }
            for (object, bytes) in self.used.extract_if(zeros, |_, _| true) {
                let units = (object..object + bytes).step_by(UNIT_BYTES as usize);
                self.free.extend(units.map(|unit| (unit, (now, None))));
            }
            return;
        }
        let Some(header) = bytes.get(..HEADER_BYTES as usize) else { return };
        self.used.insert(start, bytes.len() as u64);
        let identity = Object::header_identity(header);
        self.lives(who, start, Place { node, offset }, header, memory);
        let known = self.free.get(&start).copied();
        // Who completes an object of a dead client writes the same once more.
        let Some((since, _)) = known.filter(|(_, left)| *left != identity) else { return };
        self.free.remove(&start);
        for (client, began) in &self.running {
            let oldest = began.values().flatten().min();
            assert!(
                oldest.is_none_or(|began| *began > since),
                "{who} uses {start:#x} again, and {client} runs an operation that may know what was there"
            );
        }
    }

    /// The replicas of a place in a block, behind its bitmap; else none.
    pub fn replicas_of(&self, place: Place) -> Vec<Place> {
        let (Some(view), Some((address, in_block))) = (&self.view, self.in_block(place)) else {
            return Vec::new();
        };
        let geometry = &view.geometry;
        if in_block < BLOCK_HEADER_BYTES + bitmap_bytes(geometry.block_bytes) {
            return Vec::new();
        }
        self.places_of(Address::new(address))
    }

    /// The redundancy of the objects of an address's region.
    fn redundancy_at(&self, address: Address) -> Redundancy {
        let found = self.view.as_ref().and_then(|view| view.region_of(address));
        found.map_or(Redundancy::Replicated, |(region, _)| region.redundancy())
    }

    /// On how many places something that is there has to be whole.
    pub fn needed_at(&self, place: Place) -> usize {
        let address = self.in_block(place).map(|(address, _)| Address::new(address & !63));
        match address.map(|address| self.redundancy_at(address)) {
            Some(redundancy) => redundancy.coding().map_or(1, |coding| coding.k()),
            None => 1,
        }
    }

    /// Whether a copy of an EC-oriented object can be at a place.
    pub fn holds_copies(&self, place: Place) -> bool {
        let address = self.in_block(place).map(|(address, _)| Address::new(address & !63));
        let redundancy = address.map(|address| self.redundancy_at(address));
        matches!(redundancy, Some(Redundancy::Copies(_)))
    }

    /// The replicas of an address.
    fn places_of(&self, address: Address) -> Vec<Place> {
        let Some(view) = &self.view else { return Vec::new() };
        let bytes = view.geometry.region_bytes;
        let region = &view.regions[(address.bytes() / bytes) as usize];
        let at = |p: &Place| Place { node: p.node, offset: p.offset + address.bytes() % bytes };
        region.places().iter().map(at).collect()
    }

    /// Whether a slot of the index is there, on any replica.
    fn is_slot(&self, place: Place) -> bool {
        let Some(view) = &self.view else { return false };
        let bytes = view.geometry.subtable_bytes();
        let mut places = view.subtables.iter().flat_map(|subtable| subtable.replicas());
        places.any(|at| {
            at.node == place.node && (at.offset..at.offset + bytes).contains(&place.offset)
        })
    }

    /// The address that a place of a region stands for, and how far it is from the start of its block.
    fn in_block(&self, place: Place) -> Option<(u64, u64)> {
        let view = self.view.as_ref()?;
        let bytes = view.geometry.region_bytes;
        let address = view.regions.iter().zip(0u64..).find_map(|(region, number)| {
            let holds = |at: &&Place| {
                at.node == place.node && (at.offset..at.offset + bytes).contains(&place.offset)
            };
            let at = region.places().iter().find(holds)?;
            Some(number * bytes + (place.offset - at.offset))
        })?;
        let (_, offset) = view.geometry.block_of(Address::new(address & !63))?;
        Some((address, offset + address % 64))
    }
}
