//! The index slot: one 8-byte word. Slots are the only memory that clients change in conflict with each other.
//!
//! ```text
//!  63        56 55      54     48 47                 10 9          1 0
//! | fingerprint | moved | class | address, 64 B units  | generation | tentative |
//! |      8      |   1   |   7   |          38          |     9      |     1     |
//! ```
//!
//! *Moved* is set in a word that a Move has put there: the pair's redundancy changed, its value did not. The bit does
//! not change where the word leads; two words that differ only in this bit never both exist.
//!
//! A slot with size class 0 is *free*, whatever its other bits are. The other bits matter: DELETE and a withdrawn
//! INSERT leave the address and generation of their own object there, so that no slot word ever recurs while an
//! operation that knows it runs. SNAPSHOT is correct only then: if DELETE left zero, a late CAS of an old round would
//! succeed on the emptied slot.

use core::fmt;

use serde::{Deserialize, Serialize};

use super::{Address, SizeClass, UNIT_BYTES};
use crate::mutant::{Mutant, removed};

const TENTATIVE_BITS: u32 = 1;
const GENERATION_BITS: u32 = 9;
const ADDRESS_UNIT_BITS: u32 = 38;
const CLASS_BITS: u32 = 7;
const MOVED_BITS: u32 = 1;
const GENERATION_SHIFT: u32 = TENTATIVE_BITS;
const ADDRESS_SHIFT: u32 = GENERATION_SHIFT + GENERATION_BITS;
const CLASS_SHIFT: u32 = ADDRESS_SHIFT + ADDRESS_UNIT_BITS;
const MOVED_SHIFT: u32 = CLASS_SHIFT + CLASS_BITS;
const FINGERPRINT_SHIFT: u32 = MOVED_SHIFT + MOVED_BITS;
const _: () = assert!(FINGERPRINT_SHIFT + 8 == 64);
const _: () = assert!(1u64 << ADDRESS_UNIT_BITS == (1u64 << super::ADDRESS_BITS) / UNIT_BYTES);
const _: () = assert!(SizeClass::MAX.code() < 1 << CLASS_BITS);

/// The smallest of the addresses that stand for siblings of split subtables and not for objects.
pub const VACATED_BYTES: u64 = (1 << super::ADDRESS_BITS) - ((1 << 32) * UNIT_BYTES);

/// The identity of the writer of a slot word: address and generation of the writer's own object, whose header contains
/// it too. The rules of SNAPSHOT compare identities, not words, because an INSERT's word changes while the INSERT works
/// (tentative, confirmed, withdrawn). An identity recurs, if at all, only after a window of epochs, when no operation
/// knows the earlier write.
///
/// ```text
/// | zeros 17 | address, 64 B units 38 | generation 9 |
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity(u64);

impl Identity {
    /// The identity of an object.
    ///
    /// # Panics
    /// If the generation has more than 9 bits.
    pub fn new(address: Address, generation: u16) -> Identity {
        assert!(generation < Slot::GENERATIONS, "a generation has 9 bits");
        Identity(address.units() << GENERATION_BITS | u64::from(generation))
    }

    /// Returns the identity that a word of an object's header contains. Any word is accepted.
    pub const fn from_word(word: u64) -> Identity {
        Identity(word)
    }

    /// Returns the identity as a word, as it stands in an object's header.
    pub const fn word(self) -> u64 {
        self.0
    }

    /// The address of the object.
    pub fn address(self) -> Address {
        Address::new((self.0 >> GENERATION_BITS & ((1 << ADDRESS_UNIT_BITS) - 1)) * UNIT_BYTES)
    }

    /// Returns the identity of the object's first turn, which the header of an EC-oriented object shows.
    pub fn first_turn(self) -> Identity {
        Identity(self.0 & !u64::from(Slot::TURNS - 1))
    }

    /// Returns the generation, if this is the identity of an object at this address.
    pub fn generation_at(self, address: Address) -> Option<u16> {
        let generation = (self.0 & u64::from(Slot::GENERATIONS - 1)) as u16;
        (self.0 >> GENERATION_BITS == address.units()).then_some(generation)
    }
}

/// The value of an index slot.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Slot(pub u64);

impl Slot {
    /// The number of generations of an address, after which a generation recurs.
    pub const GENERATIONS: u16 = 1 << GENERATION_BITS;
    /// The number of generations of one life of an EC-oriented object, its *turns*. The slot word goes through them in
    /// order and never back. At even turns the object has copies, at odd turns all of its parity.
    pub const TURNS: u16 = 4;

    /// A slot that refers to an object.
    pub fn new(fingerprint: u8, class: SizeClass, address: Address, generation: u16) -> Slot {
        let marker = Slot::tombstone(address, generation);
        Slot(
            u64::from(fingerprint) << FINGERPRINT_SHIFT
                | u64::from(class.code()) << CLASS_SHIFT
                | marker.0,
        )
    }

    /// Returns a free word that only one writer can write: the word that a DELETE or a withdrawn INSERT leaves.
    pub fn tombstone(address: Address, generation: u16) -> Slot {
        Slot(Identity::new(address, generation).0 << GENERATION_SHIFT)
    }

    /// Returns the free word that the split of a subtable leaves in place of an entry that has moved to `sibling`. The
    /// word names no object, because the entry's object is in use in the sibling. A slot gets this word only once,
    /// because each sibling is made only once.
    pub fn vacated(sibling: u32) -> Slot {
        let units = u64::MAX >> (64 - ADDRESS_UNIT_BITS);
        let address = Address::new((units - u64::from(sibling)) * UNIT_BYTES);
        Slot::tombstone(address, Slot::GENERATIONS - 1)
    }

    /// Whether [`Slot::vacated`] made this word.
    pub fn is_vacated(self) -> bool {
        self.is_free() && self.address().bytes() >= VACATED_BYTES
    }

    /// Returns the object that this word keeps from reuse: the object that the word refers to or, if the slot is free,
    /// the log object of the operation that freed it. `None` for a slot that was never used, and for a vacated one.
    pub fn object(self) -> Option<Address> {
        let address = self.address();
        (address != Address::NONE && address.bytes() < VACATED_BYTES).then_some(address)
    }

    /// Whether the slot refers to no object. The address of such a word must never be followed.
    pub fn is_free(self) -> bool {
        self.class_code() == 0
    }

    fn class_code(self) -> u8 {
        (self.0 >> CLASS_SHIFT) as u8 & ((1 << CLASS_BITS) - 1)
    }

    /// The fingerprint in the word: 8 bits of the key's hash.
    pub fn fingerprint(self) -> u8 {
        (self.0 >> FINGERPRINT_SHIFT) as u8
    }

    /// The size class of the object; `None` if the slot is free or has no valid class.
    pub fn class(self) -> Option<SizeClass> {
        SizeClass::from_code(self.class_code())
    }

    /// The address of the object that the word refers to.
    pub fn address(self) -> Address {
        let units = self.0 >> ADDRESS_SHIFT & ((1 << ADDRESS_UNIT_BITS) - 1);
        Address::new(units * UNIT_BYTES)
    }

    /// The generation in the word. The object's header shows it, too; that of an EC-oriented object shows the first
    /// turn.
    pub fn generation(self) -> u16 {
        (self.0 >> GENERATION_SHIFT) as u16 & (Slot::GENERATIONS - 1)
    }

    /// Returns the turn of an EC-oriented object.
    pub fn turn(self) -> u16 {
        self.generation() % Slot::TURNS
    }

    /// Returns the word for the same object at another turn.
    ///
    /// # Panics
    /// If the number is no turn.
    pub fn at_turn(self, turn: u16) -> Slot {
        assert!(turn < Slot::TURNS, "an object has four turns");
        let turns = u64::from(Slot::TURNS - 1) << GENERATION_SHIFT;
        Slot(self.0 & !turns | u64::from(turn) << GENERATION_SHIFT)
    }

    /// Whether a Move wrote this word.
    pub fn is_moved(self) -> bool {
        self.0 >> MOVED_SHIFT & 1 == 1
    }

    /// Returns the word without the moved bit.
    pub fn unmoved(self) -> Slot {
        Slot(self.0 & !(1 << MOVED_SHIFT))
    }

    /// Returns the word with the moved bit.
    pub fn moved(self) -> Slot {
        Slot(self.0 | 1 << MOVED_SHIFT)
    }

    /// Whether an INSERT wrote this word and has not confirmed it yet.
    pub fn is_tentative(self) -> bool {
        self.0 & 1 == 1
    }

    /// Returns the word with the tentative bit.
    pub fn tentative(self) -> Slot {
        Slot(self.0 | 1)
    }

    /// Returns the word without the tentative bit.
    pub fn confirmed(self) -> Slot {
        Slot(self.0 & !1)
    }

    /// Returns the free word of the same identity, which an INSERT writes to withdraw.
    pub fn withdrawn(self) -> Slot {
        Slot::tombstone(self.address(), self.generation())
    }

    /// Returns the identity of the writer of this word.
    pub fn identity(self) -> Identity {
        if removed(Mutant::WholeWordsCompared) {
            return Identity(self.0);
        }
        self.object_identity()
    }

    /// Returns the address and generation in the word. The object's header shows them, too; that of an EC-oriented
    /// object shows the first turn.
    pub fn object_identity(self) -> Identity {
        Identity(self.0 << (64 - CLASS_SHIFT) >> (64 - CLASS_SHIFT) >> GENERATION_SHIFT)
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match (self.is_free(), self.is_tentative()) {
            (true, _) => "free",
            (false, true) => "tentative",
            (false, false) if self.is_moved() => "moved",
            (false, false) => "live",
        };
        write!(
            f,
            "{kind}(fp {:02x}, class {}, {}, gen {})",
            self.fingerprint(),
            self.class_code(),
            self.address(),
            self.generation()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Slot {
        let class = SizeClass::from_code(17).unwrap();
        Slot::new(0xab, class, Address::new(0xfff_ffff_ffc0), 511)
    }

    #[test]
    fn fields_come_back() {
        let slot = sample();
        assert_eq!(slot.fingerprint(), 0xab);
        assert_eq!(slot.class().unwrap().code(), 17);
        assert_eq!(slot.address().bytes(), 0xfff_ffff_ffc0);
        assert_eq!(slot.generation(), 511);
        assert!(!slot.is_tentative() && !slot.is_free());
        assert_eq!(slot.0, 0xab11_ffff_ffff_fffe);
    }

    #[test]
    fn moved_says_nothing_about_the_object() {
        let slot = sample();
        let moved = slot.moved();
        assert!(moved.is_moved() && !slot.is_moved());
        assert_eq!(moved.unmoved(), slot);
        assert_eq!((moved.class(), moved.address()), (slot.class(), slot.address()));
        assert_eq!((moved.identity(), moved.withdrawn()), (slot.identity(), slot.withdrawn()));
        assert!(Slot(slot.withdrawn().0 | 1 << MOVED_SHIFT).is_free());
    }

    #[test]
    fn turns_are_words_of_one_object() {
        let class = SizeClass::from_code(17).unwrap();
        let born = Slot::new(0xab, class, Address::new(1 << 20), 508);
        let words = [0, 1, 2, 3].map(|turn| born.at_turn(turn));
        assert_eq!(words.map(Slot::turn), [0, 1, 2, 3]);
        assert_eq!((words[0], words[3].generation()), (born, 511));
        for word in words {
            assert_eq!((word.address(), word.class()), (born.address(), born.class()));
            assert_eq!(word.object_identity().first_turn(), born.object_identity());
            assert_eq!(word.at_turn(0), born);
        }
    }

    #[test]
    fn identities_stand_in_headers_as_words() {
        let slot = sample();
        let header = Identity::from_word(slot.identity().word());
        assert_eq!(header, Identity::new(slot.address(), slot.generation()));
        assert_eq!(header.generation_at(slot.address()), Some(511));
        assert_eq!(header.generation_at(Address::new(64)), None);
        assert_eq!(Identity::from_word(0).generation_at(slot.address()), None, "zeros");
    }

    #[test]
    fn words_say_which_object_they_keep() {
        let slot = Slot::new(1, SizeClass::from_code(17).unwrap(), Address::new(1 << 20), 3);
        assert_eq!(slot.object(), Some(slot.address()));
        assert_eq!(slot.withdrawn().object(), Some(slot.address()));
        assert_eq!(Slot(0).object(), None);
        for sibling in [0, 1, u32::MAX] {
            assert!(Slot::vacated(sibling).is_free() && Slot::vacated(sibling).object().is_none());
        }
        assert_ne!(Slot::vacated(0), Slot::vacated(1));
    }

    #[test]
    fn one_writer_has_one_identity_in_all_its_words() {
        let slot = sample();
        for word in
            [slot.tentative(), slot.confirmed(), slot.withdrawn(), slot.tentative().withdrawn()]
        {
            assert_eq!(word.identity(), slot.identity());
        }
        assert!(slot.withdrawn().is_free());
        assert_eq!(slot.tentative().confirmed(), slot);
        let other = Slot::new(0xab, slot.class().unwrap(), slot.address(), 510);
        assert_ne!(other.identity(), slot.identity());
    }
}
