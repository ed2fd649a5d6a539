//! The memory of the memory nodes, the links to the nodes, and the times of verbs.
//!
//! The time of a verb comes from one of two models. *Delays* are random and adversarial: each link between a client and
//! a node has a pace that changes now and then by a factor of up to 64. On a [testbed](crate::Testbed), verbs queue up
//! for the testbed's [machines](crate::stations), and throughput in virtual time is meaningful.

use std::cell::{Cell, Ref, RefCell, RefMut};
use std::collections::BTreeSet;
use std::rc::Rc;

use fusee_core::layout::{HEADER_BYTES, Identity, Object, Slot};
use fusee_core::verbs::{ClientId, MnId};
use fusee_core::view::{PoolPlace, SlotRef, View};

use crate::check::entries::LiveEntries;
use crate::check::reuse::ReuseCheck;
use crate::counts::count;
use crate::engine::{Nanos, Sim};
use crate::hardware::SimHardware;
use crate::links::SimLinks;
use crate::memories::SimMemories;
use crate::rng::Rng;
use crate::switches::Switches;
use crate::testbed::Testbed;

/// Number of bytes that all chunks of a pair share at the start of their values: length and checksum of the pair's
/// value.
const CHUNKS_SHARE_BYTES: usize = 8;

/// Time of a message over a link, in one direction, in nanoseconds, if there is no testbed.
const WIRE_NS: Nanos = 800;

/// Options of the network.
#[derive(Clone, Copy, Debug)]
pub struct NetworkOptions {
    /// The hardware whose limits decide the times, if any. With a testbed nothing is random: there are no delays, no
    /// torn verbs, no verbs that are given up, and no held links.
    pub testbed: Option<Testbed>,
    /// Whether latencies vary at random. If not, all latencies are equal.
    pub delays: bool,
    /// Whether some READs and WRITEs are cut into pieces.
    pub tearing: bool,
    /// Whether a stopped memory node stops executing verbs, as a software NIC does. With real NICs and over shared
    /// memory, verbs continue.
    pub nic_in_process: bool,
    /// Time after which a client without a completion treats the node as unreachable.
    pub verb_timeout_ns: Nanos,
    /// One of this many lanes (a batch's verbs for one node) loses its completion; 0: no lane does.
    pub lost_completions_one_in: usize,
    /// Whether verbs that a client has given up (because their link was held, or their node was stopped) still execute
    /// when they reach their node. Verbs of a fenced session never do.
    pub late_verbs: bool,
    /// Whether the client's processor executes verbs, as over shared memory: in the order in which they were posted,
    /// even for different nodes, and only while the client lives. Then links and NICs have no effect.
    pub immediate: bool,
    /// Whether a fence kills the process of the fenced session, on an [immediate](NetworkOptions::immediate) network.
    pub fences_kill: bool,
    /// Whether NICs execute the verbs, as over RDMA. There a WRITE, CAS or FAA would wait for a READ that is posted
    /// before it, so operations post their READs last where they are free to choose. One completion reports all verbs
    /// of a batch for one node: if one verb fails, the client does not know which of the verbs have executed.
    pub cards: bool,
    /// Whether no time passes: each poll of a waiting operation executes one piece of one of its verbs, and messages
    /// arrive after some idle steps. For tests that count steps ([`Stepper`](crate::Stepper)).
    pub stepwise: bool,
}

impl Default for NetworkOptions {
    fn default() -> NetworkOptions {
        NetworkOptions {
            testbed: None,
            delays: true,
            tearing: true,
            nic_in_process: false,
            verb_timeout_ns: 1_000_000,
            lost_completions_one_in: 0,
            late_verbs: false,
            immediate: false,
            fences_kill: false,
            cards: false,
            stepwise: false,
        }
    }
}

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

/// The memory nodes and the links to them. Clones share the network.
#[derive(Clone)]
pub struct Network(Rc<NetworkInner>);

struct NetworkInner {
    sim: Sim,
    options: Cell<NetworkOptions>,
    memories: SimMemories,
    links: SimLinks,
    hardware: SimHardware,
    /// The checker of live entries, which is called at every change of a word.
    entries: RefCell<LiveEntries>,
    /// The checker of reuse, which is called at every WRITE.
    reuse: RefCell<ReuseCheck>,
    /// Clients whose processes must be killed because of a fence.
    condemned: RefCell<Vec<ClientId>>,
    /// The switches on the links, if there are any.
    switches: RefCell<Option<Rc<Switches>>>,
    /// Replicas that were damaged at some time.
    damaged: RefCell<BTreeSet<DamagedReplica>>,
}

impl Network {
    pub(crate) fn new(sim: &Sim, options: NetworkOptions) -> Network {
        Network(Rc::new(NetworkInner {
            sim: sim.clone(),
            options: Cell::new(options),
            memories: SimMemories::new(sim),
            links: SimLinks::new(sim),
            hardware: SimHardware::new(sim, options.testbed),
            entries: RefCell::default(),
            reuse: RefCell::default(),
            condemned: RefCell::default(),
            switches: RefCell::default(),
            damaged: RefCell::default(),
        }))
    }

    pub(crate) fn sim(&self) -> &Sim {
        &self.0.sim
    }

    /// Returns the memories of the memory nodes.
    pub fn memories(&self) -> &SimMemories {
        &self.0.memories
    }

    /// Returns the links between clients and memory nodes.
    pub fn links(&self) -> &SimLinks {
        &self.0.links
    }

    /// Returns the machines of the testbed.
    pub fn hardware(&self) -> &SimHardware {
        &self.0.hardware
    }

    /// Puts switches on the links. An [immediate](NetworkOptions::immediate) network does not use the switches.
    pub fn put_switches(&self, switches: Switches) {
        self.0.switches.replace(Some(Rc::new(switches)));
    }

    /// Returns the switches, if there are any.
    pub fn switches(&self) -> Option<Rc<Switches>> {
        self.0.switches.borrow().clone()
    }

    /// Returns the current options.
    pub fn options(&self) -> NetworkOptions {
        self.0.options.get()
    }

    /// Sets the options of the network.
    pub fn set_options(&self, options: NetworkOptions) {
        let before = self.0.options.replace(options);
        if before.testbed != options.testbed {
            self.0.hardware.replace(options.testbed);
        }
    }

    /// Checks changes of words against these entries from now on.
    pub(crate) fn watch(&self, entries: LiveEntries) {
        *self.0.entries.borrow_mut() = entries;
    }

    /// Returns the checker of reuse.
    pub(crate) fn reuse(&self) -> RefMut<'_, ReuseCheck> {
        self.0.reuse.borrow_mut()
    }

    pub(crate) fn watched(&self) -> Ref<'_, LiveEntries> {
        self.0.entries.borrow()
    }

    /// Returns the damaged replicas of live objects, as far as a CRC reveals the damage.
    pub fn damaged(&self) -> Vec<PoolPlace> {
        let entries = self.watched();
        let replicas = entries.replicas();
        replicas.filter(|(place, ..)| !self.is_whole(*place)).map(|(place, ..)| place).collect()
    }

    /// Returns whether the replica at a place is a whole replica of a live object.
    fn is_whole(&self, at: PoolPlace) -> bool {
        let entries = self.watched();
        let Some((_, object, _)) = entries.replicas().find(|(place, ..)| *place == at) else {
            return false;
        };
        let Some(identity) = Object::header_identity(object) else { return false };
        let holds = self.0.memories.with(at.node, |memory| {
            let bytes = &memory.pool[at.offset as usize..][..object.len()];
            Object::decode_of(bytes, identity).is_ok()
        });
        holds == Some(true)
    }

    /// Returns whether every damaged object has enough whole replicas or chunks at places for which `is_left` returns
    /// true. This includes objects that no entry refers to now, because the entries of a lost primary come back.
    pub(crate) fn is_whole_without(&self, is_left: impl Fn(&PoolPlace) -> bool + Copy) -> bool {
        self.0.damaged.borrow().iter().all(|damaged| {
            let DamagedReplica { node, offset, identity, bytes } = *damaged;
            let is_whole = |at: &PoolPlace| {
                let holds = self.0.memories.with(at.node, |memory| {
                    let object = &memory.pool[at.offset as usize..][..bytes];
                    Object::decode_of(object, identity).is_ok()
                });
                holds == Some(true)
            };
            let at = PoolPlace { node, offset };
            let replicas = self.reuse().replicas_of(at);
            let needed = self.reuse().needed_at(at);
            let whole: Vec<&PoolPlace> = replicas.iter().filter(|at| is_whole(at)).collect();
            // If too few replicas are whole, the memory has already been reused for another object.
            whole.len() < needed || whole.into_iter().filter(|at| is_left(at)).count() >= needed
        })
    }

    /// Damages a word of a live object on one replica, if another replica stays whole. Returns `false` if there is no
    /// such object.
    pub fn damage(&self, rng: &Rng) -> bool {
        self.damage_beside(rng, |_| true)
    }

    /// Damages a word as [`Network::damage`] does, but requires that a whole replica is on a node for which `is_safe`
    /// holds.
    pub(crate) fn damage_beside(&self, rng: &Rng, is_safe: impl Fn(MnId) -> bool) -> bool {
        let candidates: Vec<(PoolPlace, Identity, usize, usize)> = {
            let entries = self.watched();
            let all: Vec<(PoolPlace, &Rc<[u8]>, SlotRef)> = entries.replicas().collect();
            let damaged = self.0.damaged.borrow();
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
                let needed = self.reuse().needed_at(*at);
                // Copies, and stripes that have copies, are never damaged. A stripe with copies instead of parity
                // survives the loss of only one chunk, and the node of one chunk is possibly lost already. Then only
                // the copies can restore it.
                let is_like_it = |place: &PoolPlace| self.reuse().needed_at(*place) == needed;
                if self.reuse().holds_copies(*at) || !replicas.iter().all(is_like_it) {
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
                !is_spared && self.0.memories.has(at.node) && others.filter(stays).count() >= needed
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
        // Header and key are more important than the rest of a long value. In the padding only the used bit matters.
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
        self.0.damaged.borrow_mut().insert(damaged);
        self.0.memories.flip(PoolPlace { offset: place.offset + 8 * word as u64, ..place }, flips);
        count(&self.0.sim.counts().damages);
        true
    }

    /// Fences a client at a node: from then on none of the client's verbs executes there.
    pub fn fence(&self, node: MnId, client: ClientId) {
        let options = self.options();
        let is_new = self.0.memories.fence(node, client);
        if is_new && options.immediate && options.fences_kill {
            self.0.condemned.borrow_mut().push(client);
        }
    }

    /// Takes the list of clients that were fenced where fences kill. Their processes must not take another step.
    pub(crate) fn take_condemned(&self) -> Vec<ClientId> {
        self.0.condemned.take()
    }

    /// Attaches a session to the members of its newest view. The session's links to former members break.
    pub(crate) fn adopted(&self, client: ClientId, view: &View) {
        self.0.links.attach(client, &self.0.memories.nodes(), view);
    }

    /// Draws the time of a message over a link, in one direction.
    pub(crate) fn wire(&self, client: ClientId, node: MnId) -> Nanos {
        let options = self.options();
        if options.delays { self.0.links.draw_delay(client, node, WIRE_NS) } else { WIRE_NS }
    }

    /// Checks the identity that a WRITE is about to write.
    ///
    /// # Panics
    /// If the WRITE writes an object while a replica holds another object of the same identity, because a reader would
    /// take one object for the other.
    // Promise LIN-15: No object is written where a replica has its identity already.
    pub(crate) fn check_identity(&self, who: ClientId, place: PoolPlace, bytes: &[u8]) {
        let Some(header) = bytes.get(..HEADER_BYTES as usize) else { return };
        let replicas = self.reuse().replicas_of(place);
        if replicas.is_empty() || bytes.iter().all(|byte| *byte == 0) {
            return;
        }
        let identity = Object::header_identity(header);
        for at in replicas {
            let other = self.0.memories.with(at.node, |memory| {
                let there = &memory.pool[at.offset as usize..][..bytes.len()];
                let is_same = there == bytes || Object::header_identity(there) != identity;
                (!is_same).then(|| there.to_vec())
            });
            let Some(Some(other)) = other else { continue };
            let (Ok(new), Ok(other)) = (Object::decode(bytes), Object::decode(&other)) else {
                continue;
            };
            // Chunks of one pair differ in their numbers and payloads, but share the checksum of the value.
            let is_other_chunk = self.reuse().needed_at(place) > 1 && at != place;
            let of = |object: &Object<'_>| {
                let mut value = object.value().to_vec();
                if is_other_chunk {
                    value.truncate(CHUNKS_SHARE_BYTES);
                }
                (object.opcode(), object.key().to_vec(), object.value().len(), value)
            };
            assert!(
                of(&new) == of(&other),
                "{who} writes {new:?} to {place:?}, and {other:?} is at {at:?}"
            );
        }
    }

    /// Passes the change of a word to the checkers.
    pub(crate) fn changed(&self, place: PoolPlace, old: u64, new: u64) {
        self.0.entries.borrow_mut().changed(&self.0.memories, place, Slot(old), Slot(new));
        self.reuse().changed(place, Slot(old), Slot(new), &self.0.memories);
    }
}
