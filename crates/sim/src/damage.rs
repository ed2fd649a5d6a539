//! Damage to replicas of live objects.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use fusee_core::layout::{Identity, Object};
use fusee_core::verbs::MnId;
use fusee_core::view::{PoolPlace, SlotRef};

use crate::check::checkers::MemoryCheckers;
use crate::counts::count;
use crate::engine::Sim;
use crate::memories::SimMemories;
use crate::rng::Rng;

/// A replica that was damaged.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct DamagedReplica {
    node: MnId,
    offset: u64,
    identity: Identity,
    bytes: usize,
}

/// Returns the identity of a live object, from its bytes.
fn identity_of(object: &[u8]) -> Identity {
    Object::header_identity(object).expect("an entry's object has a header")
}

/// The damage that a run inflicts on replicas of live objects.
pub struct ReplicaDamage {
    sim: Sim,
    memories: Rc<SimMemories>,
    checkers: Rc<MemoryCheckers>,
    /// Replicas that were damaged at some time.
    damaged: RefCell<BTreeSet<DamagedReplica>>,
}

impl ReplicaDamage {
    pub(crate) fn new(
        sim: &Sim,
        memories: &Rc<SimMemories>,
        checkers: &Rc<MemoryCheckers>,
    ) -> ReplicaDamage {
        ReplicaDamage {
            sim: sim.clone(),
            memories: memories.clone(),
            checkers: checkers.clone(),
            damaged: RefCell::default(),
        }
    }

    /// Returns the damaged replicas of live objects, as far as a CRC reveals the damage.
    pub fn replicas(&self) -> Vec<PoolPlace> {
        let entries = self.checkers.watched();
        let replicas = entries.replicas();
        replicas.filter(|(place, ..)| !self.is_whole(*place)).map(|(place, ..)| place).collect()
    }

    /// Returns whether the replica at a place is a whole replica of a live object.
    fn is_whole(&self, at: PoolPlace) -> bool {
        let entries = self.checkers.watched();
        let Some((_, object, _)) = entries.replicas().find(|(place, ..)| *place == at) else {
            return false;
        };
        let Some(identity) = Object::header_identity(object) else { return false };
        let holds = self.memories.with(at.node, |memory| {
            let bytes = &memory.pool[at.offset as usize..][..object.len()];
            Object::decode_of(bytes, identity).is_ok()
        });
        holds == Some(true)
    }

    /// Returns whether every damaged object has enough whole replicas or chunks at places for which `is_left` returns
    /// true. This includes objects that no known entry refers to now, because the entries of a lost primary come back
    /// with another primary.
    pub(crate) fn stays_whole_without(&self, is_left: impl Fn(&PoolPlace) -> bool + Copy) -> bool {
        self.damaged.borrow().iter().all(|damaged| {
            let DamagedReplica { node, offset, identity, bytes } = *damaged;
            let is_whole = |at: &PoolPlace| {
                let holds = self.memories.with(at.node, |memory| {
                    let object = &memory.pool[at.offset as usize..][..bytes];
                    Object::decode_of(object, identity).is_ok()
                });
                holds == Some(true)
            };
            let at = PoolPlace { node, offset };
            let replicas = self.checkers.reuse().replicas_of(at);
            let needed = self.checkers.reuse().needed_at(at);
            let whole: Vec<&PoolPlace> = replicas.iter().filter(|at| is_whole(at)).collect();
            // If too few replicas are whole, the memory has already been reused for another object.
            whole.len() < needed || whole.into_iter().filter(|at| is_left(at)).count() >= needed
        })
    }

    /// Damages a word of a live object on one replica, if enough of its other replicas or chunks stay whole. Returns
    /// `false` if there is no such object.
    pub fn inflict(&self, rng: &Rng) -> bool {
        self.inflict_beside(rng, |_| true)
    }

    /// Damages a word as [`ReplicaDamage::inflict`] does, but counts only the other replicas or chunks on nodes for
    /// which `is_safe` returns true.
    pub(crate) fn inflict_beside(&self, rng: &Rng, is_safe: impl Fn(MnId) -> bool) -> bool {
        let candidates: Vec<(PoolPlace, Identity, usize, usize)> = {
            let entries = self.checkers.watched();
            let all: Vec<(PoolPlace, &Rc<[u8]>, SlotRef)> = entries.replicas().collect();
            let damaged = self.damaged.borrow();
            let was_whole = |at: &PoolPlace, object: &[u8]| {
                let identity = identity_of(object);
                let bytes = object.len();
                let PoolPlace { node, offset } = *at;
                !damaged.contains(&DamagedReplica { node, offset, identity, bytes })
            };
            // One replica of each object, or enough of its chunks, is never damaged: a reader that reads all replicas
            // one after the other must find a replica that was whole all the time.
            let keeps_another = |(at, object, slot): &&(PoolPlace, &Rc<[u8]>, SlotRef)| {
                let replicas: Vec<PoolPlace> =
                    all.iter().filter(|(_, _, s)| s == slot).map(|(place, ..)| *place).collect();
                let count = replicas.len();
                let needed = self.checkers.reuse().needed_at(*at);
                // Copies, and stripes that have copies, are never damaged. A stripe with copies instead of parity
                // survives the loss of only one chunk, and the node of one chunk is possibly lost already. Then only
                // the copies can restore it.
                let is_like_it =
                    |place: &PoolPlace| self.checkers.reuse().needed_at(*place) == needed;
                if self.checkers.reuse().holds_copies(*at) || !replicas.iter().all(is_like_it) {
                    return false;
                }
                let any = match needed {
                    1 => usize::from(object[0]) + usize::from(object[1]),
                    _ => identity_of(object).word() as usize % count,
                };
                let from_any = |place: usize| (place + count - any % count) % count;
                let position = replicas.iter().position(|place| place == at);
                let is_spared = position.is_none_or(|place| from_any(place) < needed);
                let others = replicas.iter().filter(|place| *place != at);
                let stays = |at: &&PoolPlace| {
                    was_whole(at, object) && is_safe(at.node) && self.is_whole(**at)
                };
                !is_spared && self.memories.has(at.node) && others.filter(stays).count() >= needed
            };
            let end = |object: &[u8]| {
                let object = Object::decode(object).expect("it was whole");
                object.value_offset() + object.value().len()
            };
            let found = all.iter().filter(keeps_another);
            let of = |(place, object, _): &(PoolPlace, &Rc<[u8]>, SlotRef)| {
                (*place, identity_of(object), object.len(), end(object))
            };
            found.map(of).collect()
        };
        if candidates.is_empty() {
            return false;
        }
        let (place, identity, bytes, end) = rng.pick(&candidates);
        // Words of the header and key are drawn more often than other words. Behind the value, only the used bit in the
        // object's last word is damaged.
        let words = end.div_ceil(8);
        let (word, matters) = match rng.below(6) {
            0 => (bytes / 8 - 1, 0x80 << 56),
            1 | 2 => (words - 1, u64::MAX >> (8 * (8 * words - end))),
            3 => (rng.below(words - 1), u64::MAX),
            _ => (rng.below(words - 1).min(rng.below(4)), u64::MAX),
        };
        let flips = rng.pick(&[1 << rng.below(64), 1 | rng.below_u64(u64::MAX), u64::MAX]);
        let flips = if flips & matters == 0 { matters } else { flips & matters };
        let damaged = DamagedReplica { node: place.node, offset: place.offset, identity, bytes };
        self.damaged.borrow_mut().insert(damaged);
        self.memories.flip(PoolPlace { offset: place.offset + 8 * word as u64, ..place }, flips);
        count(&self.sim.counts().damages);
        true
    }
}
