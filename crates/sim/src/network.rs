//! Memory nodes' memory, the links to it, and how long verbs take.
//!
//! One of two things decides the time of a verb. *Delays* are random and adversarial: each link between a
//! client and a node has a pace that changes now and then by up to a factor of 64. On a
//! [testbed](crate::Testbed) verbs queue up for the [machines](crate::stations) that there are, and throughput in
//! virtual time means something.

use std::cell::{Cell, Ref, RefCell, RefMut};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::{Rc, Weak};

use fusee_core::layout::{HEADER_BYTES, HeaderWord, Identity, Object, Slot};
use fusee_core::over::Over;
use fusee_core::verbs::{ClientId, MnId};
use fusee_core::view::{Place, SlotRef, View};

use crate::check::entries::Entries;
use crate::check::reuse::Reuse;
use crate::counts::count;
use crate::engine::{Nanos, Pace, ProcessId, Sim};
use crate::fabric::Flight;
use crate::rng::Rng;
use crate::stations::Machines;
use crate::switches::Switches;
use crate::testbed::Testbed;

/// At the start of its value, a chunk has length and sum of the pair's value, as all others.
const CHUNKS_SHARE_BYTES: usize = 8;

/// One way, in nanoseconds, where no hardware says otherwise.
const WIRE_NS: Nanos = 800;

/// How the network behaves.
#[derive(Clone, Copy, Debug)]
pub struct NetworkOptions {
    /// The hardware, where its limits decide how long things take. Then there is no chance in it: no delays, nothing
    /// is torn or given up, and no link is held.
    pub testbed: Option<Testbed>,
    /// Whether latencies vary at random; else they are all alike.
    pub delays: bool,
    /// Whether READs and WRITEs are cut into pieces now and then.
    pub tearing: bool,
    /// Whether a stopped memory node stops executing verbs, as a software NIC does; a real one,
    /// and shared memory, go on.
    pub nic_in_process: bool,
    /// How long a client waits for a completion before it takes the node for unreachable.
    pub verb_timeout_ns: Nanos,
    /// One of so many batches loses a completion; 0: none does.
    pub lost_completions_one_in: usize,
    /// Whether verbs that a client has given up, because their link was held or their node stopped, execute
    /// all the same when they get through, unless they are fenced; else never.
    pub late_verbs: bool,
    /// Verbs are executed by the processor of whoever posts them, as over shared memory: in the order
    /// posted, also across nodes, and no further than the client lives. Links and NICs do not matter.
    pub immediate: bool,
    /// On an immediate network: a fence kills the process whose session it fences.
    pub fences_kill: bool,
    /// Network cards execute the verbs, as over RDMA. A WRITE, CAS or FAA would wait for a READ that is
    /// posted before it, so operations that may choose post their READs last; and one completion
    /// stands for all that a batch has for a node: if one of these verbs fails, its client knows of none of
    /// them whether it has executed.
    pub cards: bool,
    /// No time passes: each poll of a waiting operation lets one piece of one of its verbs happen,
    /// and messages arrive at once. For tests that count steps ([`Stepper`](crate::Stepper)).
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

/// A memory node's memory.
pub(crate) struct Memory {
    pub pool: Vec<u8>,
    pub process: ProcessId,
    /// No verb of these executes any more. Here nobody is forgotten: what is on its way comes however late, where a
    /// fence of a real node ends the connections.
    pub fenced: BTreeSet<ClientId>,
    /// What the node would remember of them.
    pub over: Over,
}

/// A replica that was damaged: where, which life of the object, and how long that is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Damaged {
    node: MnId,
    offset: u64,
    identity: Identity,
    bytes: usize,
}

/// The identity of an entry's object.
fn identity_of(object: &[u8]) -> Identity {
    Object::header_identity(object).expect("an entry's object has a header")
}

/// The way from one client to one memory node.
#[derive(Default)]
struct Link {
    pace: Pace,
    /// When the latest lane arrived.
    last_arrival: Nanos,
    /// A completion was lost: the queue pair is in error, as RC's is then.
    broken: bool,
    /// The session has followed a view that has the node.
    attached: bool,
    /// What executes is not answered any more.
    mute: bool,
    /// Nothing gets through before.
    held_until: Nanos,
    /// Lanes that wait for that.
    parked: Vec<(Weak<Flight>, usize)>,
}

/// Memory nodes and the links to them. Clones share them.
#[derive(Clone)]
pub struct Network(Rc<Inner>);

struct Inner {
    sim: Sim,
    options: Cell<NetworkOptions>,
    memories: RefCell<BTreeMap<MnId, Memory>>,
    links: RefCell<HashMap<(ClientId, MnId), Link>>,
    /// Those of the testbed, if there is one.
    machines: RefCell<Machines>,
    /// The live entries of the index, checked at every change.
    entries: RefCell<Entries>,
    /// What is used again, checked at every WRITE.
    reuse: RefCell<Reuse>,
    /// Clients whose processes are to be killed.
    condemned: RefCell<Vec<ClientId>>,
    /// What is on the links, if anything.
    switches: RefCell<Option<Rc<Switches>>>,
    /// Whether anything was damaged.
    rots: Cell<bool>,
    /// Replicas that were damaged once.
    damaged: RefCell<BTreeSet<Damaged>>,
}

impl Network {
    pub(crate) fn new(sim: &Sim, options: NetworkOptions) -> Network {
        Network(Rc::new(Inner {
            sim: sim.clone(),
            options: Cell::new(options),
            memories: RefCell::default(),
            links: RefCell::default(),
            machines: RefCell::new(Machines::new(options.testbed.unwrap_or(Testbed::UNLIMITED))),
            entries: RefCell::default(),
            reuse: RefCell::default(),
            condemned: RefCell::default(),
            switches: RefCell::default(),
            rots: Cell::default(),
            damaged: RefCell::default(),
        }))
    }

    pub(crate) fn sim(&self) -> &Sim {
        &self.0.sim
    }

    /// From now on these are on its links. An [immediate](NetworkOptions::immediate) network has no use for them.
    pub fn put_switches(&self, switches: Switches) {
        self.0.switches.replace(Some(Rc::new(switches)));
    }

    /// The switches, if there are any.
    pub fn switches(&self) -> Option<Rc<Switches>> {
        self.0.switches.borrow().clone()
    }

    /// On a testbed: how long it takes from a client to a switch, or from there to a memory node.
    pub(crate) fn half_way(&self) -> Nanos {
        self.on_machines(|machines| machines.testbed().one_way_ns / 2)
    }

    /// How it behaves now.
    pub fn options(&self) -> NetworkOptions {
        self.0.options.get()
    }

    /// From now on it behaves so.
    pub fn set_options(&self, options: NetworkOptions) {
        let before = self.0.options.replace(options);
        if before.testbed != options.testbed {
            let testbed = options.testbed.unwrap_or(Testbed::UNLIMITED);
            self.0.machines.replace(Machines::new(testbed));
        }
    }

    /// The machines of the testbed.
    pub(crate) fn on_machines<R>(&self, f: impl FnOnce(&mut Machines) -> R) -> R {
        f(&mut self.0.machines.borrow_mut())
    }

    /// From now on these entries are kept up to date.
    pub(crate) fn watch(&self, entries: Entries) {
        *self.0.entries.borrow_mut() = entries;
    }

    /// What checks that nothing is used again too early.
    pub(crate) fn reuse(&self) -> RefMut<'_, Reuse> {
        self.0.reuse.borrow_mut()
    }

    pub(crate) fn watched(&self) -> Ref<'_, Entries> {
        self.0.entries.borrow()
    }

    /// Writes a word of a pool's header, for its node.
    pub(crate) fn write_header(&self, node: MnId, word: HeaderWord, value: u64) {
        let at = word.offset() as usize;
        self.with(node, |memory| memory.pool[at..at + 8].copy_from_slice(&value.to_le_bytes()));
    }

    pub(crate) fn add(&self, node: MnId, process: ProcessId, pool: Vec<u8>) {
        let memory = Memory { pool, process, fenced: BTreeSet::new(), over: Over::new() };
        self.0.memories.borrow_mut().insert(node, memory);
    }

    /// The node and its memory are gone.
    pub(crate) fn remove(&self, node: MnId) {
        self.0.memories.borrow_mut().remove(&node);
    }

    /// Whether the node is there.
    pub fn has(&self, node: MnId) -> bool {
        self.0.memories.borrow().contains_key(&node)
    }

    /// Looks at a node's memory, or changes it behind everybody's back. `None` if it is gone.
    pub(crate) fn with<R>(&self, node: MnId, f: impl FnOnce(&mut Memory) -> R) -> Option<R> {
        self.0.memories.borrow_mut().get_mut(&node).map(f)
    }

    /// The identity in the header of an object that begins at a place. For checks: it takes no time.
    pub(crate) fn identity_at(&self, place: Place) -> Option<Identity> {
        let header = |memory: &mut Memory| {
            let bytes = memory.pool.get(place.offset as usize..)?;
            Object::header_identity(bytes)
        };
        self.with(place.node, header).flatten()
    }

    /// The word at a place. For checks: it takes no time.
    ///
    /// # Panics
    /// If the node is gone.
    pub fn word_at(&self, place: Place) -> Slot {
        Slot(self.number_at(place).expect("a living node"))
    }

    /// So many bytes at a place. For checks: it takes no time.
    ///
    /// # Panics
    /// If the node is gone.
    pub fn bytes_at(&self, place: Place, bytes: u64) -> Vec<u8> {
        let at = place.offset as usize;
        let found = self.with(place.node, |m| m.pool[at..at + bytes as usize].to_vec());
        found.expect("a living node")
    }

    /// The same as a number; `None` if the node is gone.
    pub(crate) fn number_at(&self, place: Place) -> Option<u64> {
        let at = place.offset as usize;
        let bytes = self.with(place.node, |m| m.pool[at..at + 8].try_into().expect("8 bytes"));
        bytes.map(u64::from_le_bytes)
    }

    /// Whether anything was damaged.
    pub(crate) fn rots(&self) -> bool {
        self.0.rots.get()
    }

    /// The replicas of live objects that do not hold what belongs there, as far as a CRC shows it.
    pub fn damaged(&self) -> Vec<Place> {
        let entries = self.watched();
        let replicas = entries.replicas();
        replicas.filter(|(place, ..)| !self.is_whole(*place)).map(|(place, ..)| place).collect()
    }

    /// Whether a replica of a live object is what a slot leads to.
    fn is_whole(&self, at: Place) -> bool {
        let entries = self.watched();
        let Some((_, object, _)) = entries.replicas().find(|(place, ..)| *place == at) else {
            return false;
        };
        let Some(identity) = Object::header_identity(object) else { return false };
        let holds = self.with(at.node, |memory| {
            let bytes = &memory.pool[at.offset as usize..][..object.len()];
            Object::decode_of(bytes, identity).is_ok()
        });
        holds == Some(true)
    }

    /// Whether everything that is damaged has enough replicas or chunks that are whole, among those where this holds.
    /// Also what no entry leads to now: the entries of a lost primary come back.
    pub(crate) fn is_whole_without(&self, is_left: impl Fn(&Place) -> bool + Copy) -> bool {
        self.0.damaged.borrow().iter().all(|damaged| {
            let Damaged { node, offset, identity, bytes } = *damaged;
            let is_whole = |at: &Place| {
                let holds = self.with(at.node, |memory| {
                    let object = &memory.pool[at.offset as usize..][..bytes];
                    Object::decode_of(object, identity).is_ok()
                });
                holds == Some(true)
            };
            let at = Place { node, offset };
            let replicas = self.reuse().replicas_of(at);
            let needed = self.reuse().needed_at(at);
            let whole: Vec<&Place> = replicas.iter().filter(|at| is_whole(at)).collect();
            // If too few are, it has been used again.
            whole.len() < needed || whole.into_iter().filter(|at| is_left(at)).count() >= needed
        })
    }

    /// Damages a word of some live object on one of its replicas, if another one stays whole. `false` if
    /// there is none.
    pub fn damage(&self, rng: &Rng) -> bool {
        self.damage_beside(rng, |_| true)
    }

    /// The same; the other one is on a node where this holds.
    pub(crate) fn damage_beside(&self, rng: &Rng, is_safe: impl Fn(MnId) -> bool) -> bool {
        let candidates: Vec<(Place, Identity, usize, usize)> = {
            let entries = self.watched();
            let all: Vec<(Place, &Rc<[u8]>, SlotRef)> = entries.replicas().collect();
            let damaged = self.0.damaged.borrow();
            let was_whole = |at: &Place, object: &[u8]| {
                let identity = identity_of(object);
                let bytes = object.len();
                let Place { node, offset } = *at;
                !damaged.contains(&Damaged { node, offset, identity, bytes })
            };
            // One replica of each object is spared, or enough chunks: who reads them all one after the other must
            // find one that was whole all the time.
            let keeps_another = |(at, object, slot): &&(Place, &Rc<[u8]>, SlotRef)| {
                let replicas: Vec<Place> =
                    all.iter().filter(|(_, _, s)| s == slot).map(|(place, ..)| *place).collect();
                let count = replicas.len();
                let needed = self.reuse().needed_at(*at);
                // Beside a copy there is no more than one chunk to lose, and a node may go as well; or one has gone
                // already, and copies alone are left.
                let is_like_it = |place: &Place| self.reuse().needed_at(*place) == needed;
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
                let stays =
                    |at: &&Place| was_whole(at, object) && is_safe(at.node) && self.is_whole(**at);
                !is_spared && self.has(at.node) && others.filter(stays).count() >= needed
            };
            let end = |object: &[u8]| {
                let object = Object::decode(object).expect("it was whole");
                object.value_offset() + object.value().len()
            };
            let found = all.iter().filter(keeps_another);
            let of = |(place, object, _): &(Place, &Rc<[u8]>, SlotRef)| {
                (*place, identity_of(object), object.len(), end(object))
            };
            found.map(of).collect()
        };
        if candidates.is_empty() {
            return false;
        }
        let (place, identity, bytes, end) = rng.pick(&candidates);
        // Header and key matter more than the rest of a long value; the padding does not, but for the used bit.
        let words = end.div_ceil(8);
        let (word, matters) = match rng.below(6) {
            0 => (bytes / 8 - 1, 0x80 << 56),
            1 | 2 => (words - 1, u64::MAX >> (8 * (8 * words - end))),
            3 => (rng.below(words - 1), u64::MAX),
            _ => (rng.below(words - 1).min(rng.below(4)), u64::MAX),
        };
        let flips = rng.pick(&[1 << rng.below(64), 1 | rng.below_u64(u64::MAX), u64::MAX]);
        let flips = if flips & matters == 0 { matters } else { flips & matters };
        let damaged = Damaged { node: place.node, offset: place.offset, identity, bytes };
        self.0.damaged.borrow_mut().insert(damaged);
        self.flip(Place { offset: place.offset + 8 * word as u64, ..place }, flips);
        count(&self.0.sim.counts().damages);
        true
    }

    /// Flips bits of a word behind everybody's back.
    pub fn flip(&self, place: Place, bits: u64) {
        self.0.rots.set(true);
        let Place { node, offset } = place;
        self.sim().note(&[20, node.0.into(), offset], || format!("damage to {node}+{offset:#x}"));
        let at = place.offset as usize;
        self.with(place.node, |memory| {
            let word = &mut memory.pool[at..at + 8];
            let now = u64::from_le_bytes((&*word).try_into().expect("8 bytes"));
            word.copy_from_slice(&(now ^ bits).to_le_bytes());
        });
    }

    /// No verb of the client executes at the node any more.
    pub fn fence(&self, node: MnId, client: ClientId) {
        let options = self.options();
        let is_new = self.with(node, |memory| {
            memory.over.fence(client);
            memory.fenced.insert(client)
        }) == Some(true);
        if is_new && options.immediate && options.fences_kill {
            self.0.condemned.borrow_mut().push(client);
        }
    }

    /// Clients that were fenced by a node that kills: their processes must not take another step.
    pub(crate) fn take_condemned(&self) -> Vec<ClientId> {
        self.0.condemned.take()
    }

    /// Nothing of the client gets through to the node for some time.
    pub fn hold(&self, client: ClientId, node: MnId, time: Nanos) {
        self.hold_until(client, node, self.0.sim.now() + time);
    }

    /// The client hears nothing from the node any more; what is on its way there executes.
    pub fn mute(&self, client: ClientId, node: MnId) {
        self.0.links.borrow_mut().entry((client, node)).or_default().mute = true;
    }

    pub(crate) fn is_mute(&self, client: ClientId, node: MnId) -> bool {
        self.0.links.borrow().get(&(client, node)).is_some_and(|link| link.mute)
    }

    /// Whether a node has fenced a client.
    pub(crate) fn has_fenced(&self, client: ClientId) -> bool {
        self.0.memories.borrow().values().any(|memory| memory.fenced.contains(&client))
    }

    /// How many clients a node remembers one by one, as fenced or as alive.
    pub fn remembered(&self, node: MnId) -> usize {
        self.with(node, |memory| memory.over.remembered()).unwrap_or_default()
    }

    /// Lets everything through again.
    pub fn release(&self, client: ClientId, node: MnId) {
        self.hold_until(client, node, 0);
    }

    fn hold_until(&self, client: ClientId, node: MnId, until: Nanos) {
        let parked = {
            let mut links = self.0.links.borrow_mut();
            let link = links.entry((client, node)).or_default();
            link.held_until = until;
            std::mem::take(&mut link.parked)
        };
        for (flight, lane) in parked {
            if let Some(flight) = flight.upgrade() {
                flight.unpark(lane);
            }
        }
    }

    /// A lane waits for the end of a hold.
    pub(crate) fn park(&self, client: ClientId, node: MnId, flight: Weak<Flight>, lane: usize) {
        self.0.links.borrow_mut().entry((client, node)).or_default().parked.push((flight, lane));
    }

    pub(crate) fn held_until(&self, client: ClientId, node: MnId) -> Nanos {
        self.0.links.borrow().get(&(client, node)).map_or(0, |link| link.held_until)
    }

    pub(crate) fn break_link(&self, client: ClientId, node: MnId) {
        self.0.links.borrow_mut().entry((client, node)).or_default().broken = true;
    }

    /// A session follows a view: it is attached to its members, and has no way any more to nodes that have been some.
    pub(crate) fn adopted(&self, client: ClientId, view: &View) {
        let nodes: Vec<MnId> = self.0.memories.borrow().keys().copied().collect();
        for node in nodes {
            let is_member = view.member(node).is_some();
            let was_attached = {
                let mut links = self.0.links.borrow_mut();
                let attached = &mut links.entry((client, node)).or_default().attached;
                std::mem::replace(attached, is_member)
            };
            if was_attached && !is_member {
                self.break_link(client, node);
                self.release(client, node);
            }
        }
    }

    pub(crate) fn is_broken(&self, client: ClientId, node: MnId) -> bool {
        self.0.links.borrow().get(&(client, node)).is_some_and(|link| link.broken)
    }

    /// How long one way over a link takes now.
    pub(crate) fn wire(&self, client: ClientId, node: MnId) -> Nanos {
        let options = self.options();
        let base = WIRE_NS;
        if !options.delays {
            return base;
        }
        let mut links = self.0.links.borrow_mut();
        let delay = links.entry((client, node)).or_default().pace.draw(self.0.sim.rng(), base);
        if delay >= 16 * base {
            count(&self.0.sim.counts().long_delays);
        }
        delay
    }

    /// A lane will arrive then: notes whether it overtakes or is overtaken.
    pub(crate) fn arrival(&self, client: ClientId, node: MnId, at: Nanos) {
        let mut links = self.0.links.borrow_mut();
        let link = links.entry((client, node)).or_default();
        if at < link.last_arrival {
            count(&self.0.sim.counts().reordered_batches);
        }
        link.last_arrival = link.last_arrival.max(at);
    }

    /// Somebody begins to write to a node's memory.
    ///
    /// # Panics
    /// If it is an object, and a replica holds another one of the same identity: who finds that takes the one
    /// for the other.
    pub(crate) fn check_identity(&self, who: ClientId, place: Place, bytes: &[u8]) {
        let Some(header) = bytes.get(..HEADER_BYTES as usize) else { return };
        let replicas = self.reuse().replicas_of(place);
        if replicas.is_empty() || bytes.iter().all(|byte| *byte == 0) {
            return;
        }
        let identity = Object::header_identity(header);
        for at in replicas {
            let other = self.with(at.node, |memory| {
                let there = &memory.pool[at.offset as usize..][..bytes.len()];
                let is_same = there == bytes || Object::header_identity(there) != identity;
                (!is_same).then(|| there.to_vec())
            });
            let Some(Some(other)) = other else { continue };
            let (Ok(new), Ok(other)) = (Object::decode(bytes), Object::decode(&other)) else {
                continue;
            };
            // Chunks differ in their numbers and payloads, and have the sums of their values.
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

    /// A verb has changed a word.
    pub(crate) fn changed(&self, place: Place, old: u64, new: u64) {
        self.0.entries.borrow_mut().changed(self, place, Slot(old), Slot(new));
        self.reuse().changed(place, Slot(old), Slot(new), self);
    }
}
