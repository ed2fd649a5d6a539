//! The memory that the memory nodes lend.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use fusee_core::ended_clients::EndedClients;
use fusee_core::layout::{HeaderWord, Identity, Object, Slot};
use fusee_core::verbs::{ClientId, MnId};
use fusee_core::view::PoolPlace;

use crate::engine::{ProcessId, Sim};

/// The memory of a memory node.
pub(crate) struct SimMemory {
    pub pool: Vec<u8>,
    pub process: ProcessId,
    /// Clients whose verbs are refused. This set never shrinks, because a verb can arrive arbitrarily late. On a real
    /// node a fence ends the client's connections.
    pub fenced: BTreeSet<ClientId>,
    /// The node's own record of fenced and living clients, whose size is bounded.
    pub over: EndedClients,
}

/// The memories of all memory nodes that have neither crashed nor been removed.
pub struct SimMemories {
    sim: Sim,
    memories: RefCell<BTreeMap<MnId, SimMemory>>,
    /// Whether any memory was damaged in this run.
    rots: Cell<bool>,
}

impl SimMemories {
    pub(crate) fn new(sim: &Sim) -> SimMemories {
        SimMemories { sim: sim.clone(), memories: RefCell::default(), rots: Cell::default() }
    }

    pub(crate) fn add(&self, node: MnId, process: ProcessId, pool: Vec<u8>) {
        let memory =
            SimMemory { pool, process, fenced: BTreeSet::new(), over: EndedClients::new() };
        self.memories.borrow_mut().insert(node, memory);
    }

    /// Removes a node together with its memory.
    pub(crate) fn remove(&self, node: MnId) {
        self.memories.borrow_mut().remove(&node);
    }

    /// Returns whether a node has neither crashed nor been removed.
    pub fn has(&self, node: MnId) -> bool {
        self.memories.borrow().contains_key(&node)
    }

    /// Returns the nodes that have neither crashed nor been removed.
    pub(crate) fn nodes(&self) -> Vec<MnId> {
        self.memories.borrow().keys().copied().collect()
    }

    /// Reads or changes a node's memory directly, without a verb. Returns `None` if the node is lost.
    pub(crate) fn with<R>(&self, node: MnId, f: impl FnOnce(&mut SimMemory) -> R) -> Option<R> {
        self.memories.borrow_mut().get_mut(&node).map(f)
    }

    /// Writes a word of a pool's header on behalf of its node.
    pub(crate) fn write_header(&self, node: MnId, word: HeaderWord, value: u64) {
        let at = word.offset() as usize;
        self.with(node, |memory| memory.pool[at..at + 8].copy_from_slice(&value.to_le_bytes()));
    }

    /// Writes a word without any client, as a faulty or hostile process would.
    pub fn overwrite(&self, place: PoolPlace, word: u64) {
        let at = place.offset as usize;
        self.with(place.node, |m| m.pool[at..at + 8].copy_from_slice(&word.to_le_bytes()));
    }

    /// Flips bits of a word of memory, without any verb.
    pub fn flip(&self, place: PoolPlace, bits: u64) {
        self.rots.set(true);
        let PoolPlace { node, offset } = place;
        self.sim.note(&[20, node.0.into(), offset], || format!("damage to {node}+{offset:#x}"));
        let at = place.offset as usize;
        self.with(place.node, |memory| {
            let word = &mut memory.pool[at..at + 8];
            let now = u64::from_le_bytes((&*word).try_into().expect("8 bytes"));
            word.copy_from_slice(&(now ^ bits).to_le_bytes());
        });
    }

    /// Returns whether any memory was damaged.
    pub(crate) fn rots(&self) -> bool {
        self.rots.get()
    }

    /// Returns the identity in the header of the object at a place. For checks; takes no time.
    pub(crate) fn identity_at(&self, place: PoolPlace) -> Option<Identity> {
        let header = |memory: &mut SimMemory| {
            let bytes = memory.pool.get(place.offset as usize..)?;
            Object::header_identity(bytes)
        };
        self.with(place.node, header).flatten()
    }

    /// Returns the word at a place. For checks; takes no time.
    ///
    /// # Panics
    /// If the node is lost.
    pub fn word_at(&self, place: PoolPlace) -> Slot {
        Slot(self.number_at(place).expect("a living node"))
    }

    /// Returns the bytes at a place. For checks; takes no time.
    ///
    /// # Panics
    /// If the node is lost.
    pub fn bytes_at(&self, place: PoolPlace, bytes: u64) -> Vec<u8> {
        let at = place.offset as usize;
        let found = self.with(place.node, |m| m.pool[at..at + bytes as usize].to_vec());
        found.expect("a living node")
    }

    /// Returns the word at a place as a number, or `None` if the node is lost.
    pub(crate) fn number_at(&self, place: PoolPlace) -> Option<u64> {
        let at = place.offset as usize;
        let bytes = self.with(place.node, |m| m.pool[at..at + 8].try_into().expect("8 bytes"));
        bytes.map(u64::from_le_bytes)
    }

    /// Fences a client at a node: from then on none of the client's verbs executes there. Returns whether the fence is
    /// new.
    pub(crate) fn fence(&self, node: MnId, client: ClientId) -> bool {
        let is_new = self.with(node, |memory| {
            memory.over.fence(client);
            memory.fenced.insert(client)
        });
        is_new == Some(true)
    }

    /// Returns whether any node has fenced a client.
    pub(crate) fn has_fenced(&self, client: ClientId) -> bool {
        self.memories.borrow().values().any(|memory| memory.fenced.contains(&client))
    }

    /// Returns the number of clients that a node remembers individually, as fenced or as alive.
    pub fn remembered(&self, node: MnId) -> usize {
        self.with(node, |memory| memory.over.remembered()).unwrap_or_default()
    }
}
