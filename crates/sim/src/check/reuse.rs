//! A checker that memory is reused only when no running operation can know its earlier contents.
//!
//! An object is allowed to be overwritten once all operations, and all jobs of the master, have ended that began before
//! the last slot replica gave up the object's word, because only these can know the word. A block that was overwritten
//! by zeros is allowed to be reused once all operations and jobs have ended that began before the zeros. An object that
//! was not written since earlier zeros is exempt, because no operation can know anything of it. The checker does not
//! depend on the tested code's knowledge of free objects: words in the index show when an object becomes free, and
//! WRITEs to objects show when an object is reused.
//!
//! A dead session counts as running until it is recovered. A failed job counts as ended here, although its verbs can
//! still execute: here the check is weaker than the promise.
//!
//! The checker also covers free bitmaps. A bit must be set only if it is clear, and cleared only if it is set, because
//! otherwise the FAA would carry into the neighbouring bit. No object must be allocated again while its bit is set.
//!
//! *Generations never restart.* Each use of an object's address lasts at least one epoch. No object is written with the
//! identity of another object on any replica. No identity recurs within a window of epochs after it was last in a slot
//! or in an object. The master's answers to heartbeats tell the checker the number of the epoch.
//!
//! A job of the master copies contents from one place to other places. If a dead client left an object with two
//! identities, neither of them in use, the job is allowed to choose the earlier one. That identity was still in memory,
//! so this is no recurrence. The same is true of an identity that a dead client has overwritten by zeros on some
//! replicas only.
//!
//! *Numbers are used once.* The number of a DELETE is never in two slots.

// Promise MEM-1: Memory is reused only when no running operation knows it.
// Promise MEM-3: No bit of a free bitmap is set twice.
// Promise MEM-24: No word recurs within a window, whichever master leads.

use std::collections::{BTreeMap, BTreeSet};

use fusee_core::data::Redundancy;
use fusee_core::layout::{
    Address, BLOCK_HEADER_BYTES, HEADER_BYTES, Identity, Object, Slot, TableEntry, UNIT_BYTES,
    bitmap_bytes,
};
use fusee_core::slab::WINDOW_EPOCHS;
use fusee_core::verbs::ClientId;
use fusee_core::view::{PoolPlace, TABLE_ENTRY_BYTES, View};

use super::entries::copies_kept_by;
use crate::memories::SimMemories;

/// The contents of an object when it became free: its identity, or `None` for zeros.
type FreedContent = Option<Identity>;

/// The latest use of an object's address.
#[derive(Clone, Copy)]
struct ObjectLife {
    identity: Identity,
    /// The CRC in the first bytes of the object, which differs between objects; 0 for chunks and copies.
    crc: u32,
    /// The epoch in which the object was first written.
    since: u64,
}

/// The state of the checker: free objects and running operations, with their times.
#[derive(Default)]
pub(crate) struct ReuseCheck {
    view: Option<View>,
    /// The newest epoch; 0 if no epoch is known, in which case windows are not checked.
    epoch: u64,
    /// For each address, the object that was last written there; none after zeros.
    lives: BTreeMap<u64, ObjectLife>,
    /// The last epoch in which each retired identity was in a slot or object.
    stood: BTreeMap<Identity, u64>,
    /// A counter that grows with every recorded event.
    clock: u64,
    /// The times at which running operations began, in order, by session or job, and by local epoch.
    running: BTreeMap<ClientId, BTreeMap<u64, Vec<u64>>>,
    /// The client ids of all jobs so far.
    jobs: BTreeSet<ClientId>,
    /// Recovered sessions, whose later operations are ignored.
    recovered: BTreeSet<ClientId>,
    /// For each free object, by address, the time at which the object became free, and its contents at that time.
    free: BTreeMap<u64, (u64, FreedContent)>,
    /// For each address, the length of the object that was last written there since the memory was zeros.
    used: BTreeMap<u64, u64>,
    /// For each number of a DELETE, by its word, the slot that had it: the subtable, and the offset within it.
    numbers: BTreeMap<u64, (usize, u64)>,
}

impl ReuseCheck {
    /// Uses the places of this view from now on. With `None`, checks nothing.
    pub fn follow(&mut self, view: Option<&View>) {
        self.view = view.cloned();
    }

    /// Notes an epoch that an answer of the master shows. Answers can arrive out of order.
    pub fn epoch(&mut self, epoch: u64) {
        self.epoch = self.epoch.max(epoch);
    }

    /// Notes that an identity was in a slot or object until now.
    fn retire_identity(&mut self, identity: Identity) {
        self.stood.insert(identity, self.epoch);
    }

    /// Checks the WRITE of an object, or of a part of it.
    ///
    /// # Panics
    /// If an identity recurs too early.
    fn check_life(
        &mut self,
        who: ClientId,
        address: u64,
        place: PoolPlace,
        header: &[u8],
        memories: &SimMemories,
    ) {
        let Some(identity) = Object::header_identity(header) else { return };
        let epoch = self.epoch;
        let at = Address::new(address);
        let Some(generation) = identity.generation_at(at) else { return };
        let crc = header.first_chunk().map_or(0, |crc| u32::from_le_bytes(*crc));
        // The chunks of a pair have different CRCs.
        let crc = if self.redundancy_at(at) == Redundancy::Replicated { crc } else { 0 };
        let life = ObjectLife { identity, crc, since: epoch };
        let is_put_beside = self.jobs.contains(&who) && self.stands(identity, at, memories);
        let was_ended = !self.lives.contains_key(&address) && self.stood.contains_key(&identity);
        if was_ended && is_put_beside {
            self.retire_identity(identity);
            return;
        }
        if let Some(known) = self.lives.get(&address).copied() {
            if known.identity == identity {
                // If the earlier identity reached only lost nodes, it is forgotten.
                assert!(
                    known.crc == crc || !self.stands(identity, at, memories),
                    "{who} writes another object to {at} with generation {generation}"
                );
                self.lives.insert(address, ObjectLife { since: known.since, ..life });
                return;
            }
            if is_put_beside && memories.identity_at(place) != Some(known.identity) {
                self.retire_identity(identity);
                return;
            }
            assert!(
                known.since < epoch || epoch == 0,
                "{who} uses {at} twice in epoch {epoch}, with generation {generation} now"
            );
            if self.stands(known.identity, at, memories) {
                self.retire_identity(known.identity);
            }
        }
        let stood = self.stood.get(&identity).copied();
        // An EC-oriented object has several words, one for each turn, so that its identities recur sooner.
        let is_oriented = matches!(self.redundancy_at(at), Redundancy::Oriented(_));
        let lives = if is_oriented { u64::from(Slot::TURNS) } else { 1 };
        assert!(
            epoch == 0 || stood.is_none_or(|stood| stood + WINDOW_EPOCHS / lives <= epoch),
            "{who} writes {at} with generation {generation} in epoch {epoch}, which stood in {stood:?}"
        );
        // The bitmaps on a lost node are lost as well.
        let bit = self.free_bit(at).and_then(|(word, bits)| Some(memories.number_at(word)? & bits));
        // A repair is allowed to write an object that the checker has not seen written, and that was freed after the
        // repair read it.
        let is_repaired = !self.lives.contains_key(&address) && self.stands(identity, at, memories);
        let is_used = is_repaired || bit.is_none_or(|bit| bit == 0);
        assert!(is_used, "{who} writes {at}, which is set free");
        self.lives.insert(address, life);
    }

    /// Returns whether an identity is in an object on a remaining node. An identity that reached only lost nodes does
    /// not count: no operation knows it, because a known identity would have reached other nodes.
    fn stands(&self, identity: Identity, at: Address, memories: &SimMemories) -> bool {
        self.places_of(at).iter().any(|at| memories.identity_at(*at) == Some(identity))
    }

    /// Returns the word of the primary's free bitmap that has an object's bit, and the bit.
    fn free_bit(&self, object: Address) -> Option<(PoolPlace, u64)> {
        self.view.as_ref()?.free_bit(object)
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Notes that an operation of the session `client` began in its local epoch `local_epoch`.
    pub fn began(&mut self, client: ClientId, local_epoch: u64) {
        if !self.recovered.contains(&client) {
            let now = self.tick();
            self.running.entry(client).or_default().entry(local_epoch).or_default().push(now);
        }
    }

    /// Notes that a job of the master began.
    pub fn job_began(&mut self, job: ClientId) {
        self.jobs.insert(job);
        self.began(job, 0);
    }

    /// Notes that an operation of this local epoch ended. The caller does not know which operation ended, so the oldest
    /// running one of this local epoch is removed. Thus no ended operation counts as running.
    pub fn ended(&mut self, client: ClientId, local_epoch: u64) {
        let Some(running) = self.running.get_mut(&client) else { return };
        if let Some(since) = running.get_mut(&local_epoch).filter(|since| !since.is_empty()) {
            since.remove(0);
        }
    }

    /// Notes that a job of the master ended.
    pub fn idle(&mut self, client: ClientId) {
        self.running.remove(&client);
    }

    /// Notes that a session is recovered.
    pub fn note_recovered(&mut self, client: ClientId) {
        self.running.remove(&client);
        self.recovered.insert(client);
    }

    /// Notes the change of a word of a pool.
    pub fn changed(&mut self, place: PoolPlace, old: Slot, new: Slot, memories: &SimMemories) {
        let Some(slot) = self.slot_at(place).filter(|_| old != new) else { return };
        if new.numbered_by().is_some() {
            let known = *self.numbers.entry(new.0).or_insert(slot);
            assert_eq!(known, slot, "{new:?} is in two slots");
        }
        let is_moved = old.object() != new.object() || old.turn() != new.turn();
        let keeps = self.view.as_ref().filter(|_| is_moved && !old.is_tentative());
        let copies = keeps.map(|view| copies_kept_by(memories, view, old));
        for copy in copies.into_iter().flatten() {
            let now = self.tick();
            self.free.insert(copy.address().bytes(), (now, Some(copy)));
        }
        if old.object() == new.object() {
            return;
        }
        if let Some(object) = old.object() {
            let identity = match self.redundancy_at(object) {
                Redundancy::Oriented(_) => old.object_identity().first_turn(),
                _ => old.object_identity(),
            };
            self.retire_identity(identity);
            let now = self.tick();
            self.free.insert(object.bytes(), (now, Some(identity)));
        }
    }

    /// Checks an FAA on a word of a pool.
    ///
    /// # Panics
    /// If the word is part of a free bitmap and the FAA sets bits that are already set, or clears bits that are already
    /// clear.
    pub fn added(&self, place: PoolPlace, old: u64, add: u64) {
        let Some((region, offset)) = self.in_region(place) else { return };
        let geometry = &self.view.as_ref().expect("it has regions").geometry;
        let bitmap = bitmap_bytes(geometry.region_bytes);
        let bitmap = geometry.table_bytes()..geometry.table_bytes() + bitmap;
        assert!(bitmap.contains(&offset), "an FAA at {offset} of region {region}");
        let cleared = add.wrapping_neg();
        let is_good = old & add == 0 || cleared & !old == 0;
        assert!(is_good, "at {offset} of region {region}: {add:#x} is added to {old:#x}");
    }

    /// Checks a WRITE before it executes, while `memories` still have the earlier contents.
    ///
    /// # Panics
    /// If the memory is reused while a running operation possibly knows it, or if an identity recurs too early.
    pub fn written(
        &mut self,
        who: ClientId,
        place: PoolPlace,
        bytes: &[u8],
        memories: &SimMemories,
    ) {
        let Some(start) = self.in_block(place, memories) else { return };
        if bytes.iter().all(|byte| *byte == 0) {
            let zeros = start..start + bytes.len() as u64;
            let now = self.tick();
            let ended: Vec<u64> = self.lives.range(zeros.clone()).map(|(at, _)| *at).collect();
            for at in ended {
                let Some(life) = self.lives.remove(&at) else { continue };
                if self.stands(life.identity, Address::new(at), memories) {
                    self.retire_identity(life.identity);
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
        self.check_life(who, start, place, header, memories);
        let known = self.free.get(&start).copied();
        // A session that completes an object of a dead client writes the bytes that are already there, which is no
        // reuse.
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

    /// Whether a place is in a block, behind the block's header.
    pub fn is_in_block(&self, place: PoolPlace, memories: &SimMemories) -> bool {
        self.in_block(place, memories).is_some()
    }

    /// Returns the replicas of a place in a frame of a region. Returns none for any other place.
    pub fn replicas_of(&self, place: PoolPlace) -> Vec<PoolPlace> {
        let Some(address) = self.address_of(place) else { return Vec::new() };
        self.places_of(Address::new(address))
    }

    /// Returns the redundancy of the region of an address.
    fn redundancy_at(&self, address: Address) -> Redundancy {
        let found = self.view.as_ref().and_then(|view| view.region_of(address));
        found.map_or(Redundancy::Replicated, |(region, _)| region.redundancy())
    }

    /// Returns the number of whole replicas or whole chunks that the object at a place needs.
    pub fn needed_at(&self, place: PoolPlace) -> usize {
        let address = self.address_of(place).map(|address| Address::new(address & !63));
        match address.map(|address| self.redundancy_at(address)) {
            Some(redundancy) => redundancy.coding().map_or(1, |coding| coding.k()),
            None => 1,
        }
    }

    /// Returns whether a place is in a region for copies of EC-oriented objects.
    pub fn holds_copies(&self, place: PoolPlace) -> bool {
        let address = self.address_of(place).map(|address| Address::new(address & !63));
        let redundancy = address.map(|address| self.redundancy_at(address));
        matches!(redundancy, Some(Redundancy::Copies(_)))
    }

    /// Returns the places of an address on all replicas of its region.
    fn places_of(&self, address: Address) -> Vec<PoolPlace> {
        let Some(view) = &self.view else { return Vec::new() };
        let bytes = view.geometry.region_bytes;
        let region = &view.regions[(address.bytes() / bytes) as usize];
        let at =
            |p: &PoolPlace| PoolPlace { node: p.node, offset: p.offset + address.bytes() % bytes };
        region.places().iter().map(at).collect()
    }

    /// Returns the subtable of a slot's place, and the offset of the slot in it; `None` if the place is in no subtable.
    fn slot_at(&self, place: PoolPlace) -> Option<(usize, u64)> {
        let view = self.view.as_ref()?;
        let bytes = view.geometry.subtable_bytes();
        let replicas = view.subtables.iter().enumerate();
        let mut replicas =
            replicas.flat_map(|(i, subtable)| subtable.replicas().iter().map(move |at| (i, at)));
        let (subtable, at) = replicas.find(|(_, at)| {
            at.node == place.node && (at.offset..at.offset + bytes).contains(&place.offset)
        })?;
        Some((subtable, place.offset - at.offset))
    }

    /// Returns the global address of a place behind the header of a block.
    fn in_block(&self, place: PoolPlace, memories: &SimMemories) -> Option<u64> {
        let geometry = &self.view.as_ref()?.geometry;
        let address = self.address_of(place)?;
        let (_, frame) = geometry.frame_of(Address::new(address & !63))?;
        let (_, offset) = self.in_region(place)?;
        let table = PoolPlace { offset: place.offset - offset, ..place };
        let entry_at = |frame: u32| {
            let word = memories.number_at(table.plus(u64::from(frame) * TABLE_ENTRY_BYTES))?;
            TableEntry::decode(word)
        };
        let (first, _) = TableEntry::of_block_with(frame, geometry.max_order(), entry_at)?;
        (offset >= geometry.frame_offset(first) + BLOCK_HEADER_BYTES).then_some(address)
    }

    /// Returns the global address of a place in a frame of a region.
    fn address_of(&self, place: PoolPlace) -> Option<u64> {
        let geometry = &self.view.as_ref()?.geometry;
        let (region, offset) = self.in_region(place)?;
        (offset >= geometry.head_bytes()).then_some(region * geometry.region_bytes + offset)
    }

    /// Returns the number of the region that has a place, and the offset of the place in the region.
    fn in_region(&self, place: PoolPlace) -> Option<(u64, u64)> {
        let view = self.view.as_ref()?;
        let bytes = view.geometry.region_bytes;
        view.regions.iter().zip(0u64..).find_map(|(region, number)| {
            let holds = |at: &&PoolPlace| {
                at.node == place.node && (at.offset..at.offset + bytes).contains(&place.offset)
            };
            let at = region.places().iter().find(holds)?;
            Some((number, place.offset - at.offset))
        })
    }
}
