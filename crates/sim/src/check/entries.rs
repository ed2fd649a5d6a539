//! At every step: no key is live twice in the primaries of the index, every live entry refers to an
//! object that is complete on all replicas, and nobody writes to such an object.
//!
//! The live entries are kept in a map that every change of a primary's slot updates, so the check
//! costs one object per change, whatever the size of the index.
//!
//! Where memory rots, one replica of a live object must be complete, and what anybody writes to another is
//! what was there before.

use std::collections::BTreeMap;
use std::rc::Rc;

use fusee_core::layout::{Object, Slot};
use fusee_core::race::Buckets;
use fusee_core::verbs::MnId;
use fusee_core::view::{Place, SlotRef, View};

use crate::network::Network;

/// Where a replica begins.
type Start = (MnId, u64);

/// The live entries of the index.
#[derive(Default)]
pub(crate) struct Entries {
    view: Option<View>,
    live: BTreeMap<Vec<u8>, SlotRef>,
    /// Where the replicas of live objects begin, and what they hold.
    objects: BTreeMap<Start, (Rc<[u8]>, SlotRef)>,
}

impl Entries {
    /// Those that stand in the primaries of a view now.
    ///
    /// # Panics
    /// If a key is live twice, or an entry leads to no object.
    pub fn new(network: &Network, view: &View) -> Entries {
        let mut entries = Entries { view: Some(view.clone()), ..Entries::default() };
        // Where the primary is lost there is nothing to hold a backup to, until the switch.
        for slot in all_slots(view).filter(|slot| !view.is_without_primary(slot.subtable)) {
            let primary = view.slot_on_primary(slot);
            if !network.has(primary.node) {
                continue;
            }
            entries.add(network, slot, network.word_at(primary));
        }
        entries
    }

    /// The live keys, in order.
    pub fn keys(&self) -> Vec<Vec<u8>> {
        self.live.keys().cloned().collect()
    }

    /// A word has changed.
    ///
    /// # Panics
    /// If a key is live twice now, or the entry leads to no object.
    pub fn changed(&mut self, network: &Network, place: Place, old: Slot, new: Slot) {
        let Some(slot) = self.slot_at(place) else { return };
        if is_live(old) {
            self.live.retain(|_, at| *at != slot);
            self.objects.retain(|_, (_, at)| *at != slot);
        }
        self.add(network, slot, new);
    }

    fn add(&mut self, network: &Network, slot: SlotRef, word: Slot) {
        if !is_live(word) {
            return;
        }
        let view = self.view.as_ref().expect("there are slots only with a view");
        let (key, object) = object_of(network, view, word);
        // What a split has moved stays here until it is cleared: nobody looks for it any more.
        if Buckets::of(&key, view).subtable != slot.subtable {
            return;
        }
        if let Some(other) = self.live.insert(key.clone(), slot) {
            panic!("{key:02x?} is live twice, in {other:?} and in {slot:?} as {:#x}", word.0);
        }
        let bytes = word.class().expect("it led to an object").bytes();
        for place in view.object(word.address(), bytes).expect("it led to an object").places() {
            self.objects.insert((place.node, place.offset), (Rc::clone(&object), slot));
        }
    }

    /// Somebody writes to a node's memory. `rots`: damage may be repaired there.
    ///
    /// # Panics
    /// If a live object is there.
    pub fn written(&self, node: MnId, offset: u64, data: &[u8], rots: bool) {
        let end = offset + data.len() as u64;
        let before = self.objects.range(..(node, end)).next_back();
        if let Some(((on, start), (object, slot))) = before
            && *on == node
            && start + object.len() as u64 > offset
        {
            // What belongs there: a piece of the object. A copy of many objects goes nowhere where one lives.
            let inside = offset.checked_sub(*start).and_then(|at| object.get(at as usize..));
            let belongs = inside.is_some_and(|rest| rest.starts_with(data));
            assert!(
                rots && belongs,
                "{} bytes are written to {node}+{offset:#x}, to the live object of {slot:?}",
                data.len()
            );
        }
    }

    /// The replicas of live objects: where, and what belongs there.
    pub fn replicas(&self) -> impl Iterator<Item = (Place, &Rc<[u8]>, SlotRef)> {
        let place = |(node, offset): &Start| Place { node: *node, offset: *offset };
        self.objects.iter().map(move |(at, (object, slot))| (place(at), object, *slot))
    }

    /// The slot whose primary is at this place.
    fn slot_at(&self, place: Place) -> Option<SlotRef> {
        let view = self.view.as_ref()?;
        let bytes = view.geometry.subtable_bytes();
        view.subtables.iter().zip(0u32..).find_map(|(subtable, number)| {
            let primary = subtable.primary();
            if view.is_without_primary(number) {
                return None;
            }
            let at = place.offset.checked_sub(primary.offset)?;
            let hit = primary.node == place.node && at < bytes;
            hit.then_some(SlotRef { subtable: number, slot: (at / 8) as u32 })
        })
    }
}

/// Whether readers may take a primary's word for an entry.
fn is_live(word: Slot) -> bool {
    !word.is_free() && !word.is_tentative()
}

/// Every slot of a view.
pub(crate) fn all_slots(view: &View) -> impl Iterator<Item = SlotRef> + use<> {
    let slots = view.geometry.subtable_slots() as u32;
    (0..view.subtables.len() as u32)
        .flat_map(move |subtable| (0..slots).map(move |slot| SlotRef { subtable, slot }))
}

/// The object that a live word refers to, with its key.
///
/// # Panics
/// If it is not complete on every replica that is left, or where memory rots on none.
fn object_of(network: &Network, view: &View, word: Slot) -> (Vec<u8>, Rc<[u8]>) {
    let bytes = word.class().map_or(0, |class| class.bytes());
    let object = view.object(word.address(), bytes).expect("a live entry leads into a region");
    let mut objects = object.places().filter_map(|place| {
        network.with(place.node, |memory| {
            let object = &memory.pool[place.offset as usize..][..bytes as usize];
            match Object::decode_of(object, word.leads_to()) {
                Ok(found) => Some((found.key().to_vec(), Rc::from(object))),
                Err(_) if network.rots() => None,
                Err(why) => panic!("the live entry {:#x} leads to no object: {why}", word.0),
            }
        })?
    });
    let first = objects.next().expect("some replica is left");
    // Rot in the padding is none.
    let differ = objects.any(|object| object != first);
    assert!(!differ || network.rots(), "replicas of one object differ");
    first
}
