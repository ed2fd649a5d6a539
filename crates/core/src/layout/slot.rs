//! The index slot: one 8-byte word. Slots are the only memory that clients change in conflict with each other.
//!
//! ```text
//!              63 62     56 55      54     48 47                 10 9          1 0
//! entry       | fingerprint | moved | class | address, 64 B units  | generation | tentative |
//!             |      8      |   1   |   7   |          38          |     9      |     1     |
//! number      | 0  | high 6 |   0   |   0   |                 low 47            |     0     |
//! vacated     | 1  |   0    |   0   |   0   |           sibling, 32 bits        |     0     |
//! withdrawal  | 2  |   0    |   0   |   0   | address, 64 B units  | generation |     0     |
//! ```
//!
//! *Moved* is set in a word that a Move has put there: the pair's redundancy changed, its value did not. The bit does
//! not change where the word leads; two words that differ only in this bit never both exist.
//!
//! A slot with size class 0 is *free*. Its other bits matter, so that no slot word ever recurs while an operation that
//! knows it runs. SNAPSHOT is correct only then: if DELETE left zero, a late CAS of an old round would succeed on the
//! emptied slot. Bits 63 and 62 tell the kind of a free word:
//!
//! * A *number*, which a DELETE leaves, is used once. It protects no object from reuse. The 53 bits are a client id
//!   (32 bits) and a counter of that client (21 bits). The word 0, of a slot that was never used, counts as a number.
//! * A *vacated* word, which a split leaves, names the sibling to which the entry has moved.
//! * A *withdrawal*, which a withdrawing INSERT leaves, has the address and generation of the INSERT's object, and
//!   protects this object from reuse.

use core::fmt;

use serde::{Deserialize, Serialize};

use super::{Address, SizeClass, UNIT_BYTES};
use crate::mutant::{Mutant, removed};
use crate::verbs::ClientId;

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

/// The lowest of the two bits that tell the kind of a free word.
const KIND_SHIFT: u32 = 62;
const NUMBER: u64 = 0;
const VACATED: u64 = 1;
const WITHDRAWAL: u64 = 2;

/// The number of bits of a free word from which its value is read: those below the size class, without the tentative
/// bit.
const LOW_BITS: u32 = CLASS_SHIFT - GENERATION_SHIFT;
/// The number of bits of a number that stand above the moved bit.
const HIGH_BITS: u32 = KIND_SHIFT - FINGERPRINT_SHIFT;
const COUNTER_BITS: u32 = 21;
const _: () = assert!(LOW_BITS + HIGH_BITS == 32 + COUNTER_BITS);

/// The identity of an object: its address and generation, which its header contains, too. An identity recurs, if at
/// all, only after a window of epochs, when no operation knows the earlier object.
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

/// The identity of the writer of a slot word: its object's [`Identity`], or a DELETE's number. The rules of SNAPSHOT
/// compare identities, not words, because an INSERT's word changes while the INSERT works (tentative, confirmed,
/// withdrawn). Numbers, like all free words that refer to no object, are smaller than the identities of objects. So in
/// a round without a majority (Rule 3) a DELETE wins against writes of objects, which then need not start again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriterIdentity(u64);

impl WriterIdentity {
    const OF_OBJECT: u64 = 1 << 63;

    /// Returns the identity of the writer of an object.
    fn of_object(object: Identity) -> WriterIdentity {
        WriterIdentity(WriterIdentity::OF_OBJECT | object.0)
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

    /// The number of numbers that one client id has for DELETEs.
    pub const NUMBERS: u32 = 1 << COUNTER_BITS;

    /// A slot that refers to an object.
    pub fn new(fingerprint: u8, class: SizeClass, address: Address, generation: u16) -> Slot {
        Slot(
            u64::from(fingerprint) << FINGERPRINT_SHIFT
                | u64::from(class.code()) << CLASS_SHIFT
                | Identity::new(address, generation).0 << GENERATION_SHIFT,
        )
    }

    /// Returns the free word that a DELETE leaves: number `counter` of this client id.
    ///
    /// # Panics
    /// If the client id is 0, or the counter is too large.
    pub fn number(client: ClientId, counter: u32) -> Slot {
        assert!(client != ClientId::NOBODY && counter < Slot::NUMBERS, "the number of no client");
        let value = u64::from(client.0) << COUNTER_BITS | u64::from(counter);
        let low = value & ((1 << LOW_BITS) - 1);
        Slot(value >> LOW_BITS << FINGERPRINT_SHIFT | low << GENERATION_SHIFT)
    }

    /// Returns the client id of a number; `None` if the word is no number, or that of a slot that was never used.
    pub fn numbered_by(self) -> Option<ClientId> {
        let low = self.0 << (64 - CLASS_SHIFT) >> (64 - LOW_BITS);
        let high = self.0 >> FINGERPRINT_SHIFT & ((1 << HIGH_BITS) - 1);
        let client = ((high << LOW_BITS | low) >> COUNTER_BITS) as u32;
        let is_number = self.is_number() && !self.is_moved() && !self.is_tentative();
        (is_number && client != 0).then_some(ClientId(client))
    }

    /// Whether the word is one that DELETEs leave, or that of a slot that was never used.
    #[inline]
    pub fn is_number(self) -> bool {
        self.is_free_of_kind(NUMBER)
    }

    /// Returns the free word that the split of a subtable leaves in place of an entry that has moved to `sibling`. The
    /// word protects no object, because the entry's object is in use in the sibling. A slot gets this word only once,
    /// because each sibling is made only once.
    pub fn vacated(sibling: u32) -> Slot {
        Slot(VACATED << KIND_SHIFT | u64::from(sibling) << GENERATION_SHIFT)
    }

    /// Whether [`Slot::vacated`] made this word.
    pub fn is_vacated(self) -> bool {
        self.is_free_of_kind(VACATED)
    }

    /// Returns the free word that the INSERT of this object leaves if it withdraws.
    pub fn withdrawal(object: Identity) -> Slot {
        let identity = object.0 & ((1 << LOW_BITS) - 1);
        Slot(WITHDRAWAL << KIND_SHIFT | identity << GENERATION_SHIFT)
    }

    #[inline]
    fn is_free_of_kind(self, kind: u64) -> bool {
        self.is_free() && self.0 >> KIND_SHIFT == kind
    }

    /// Returns the object that this word protects from reuse: the object that the word refers to, or that of the INSERT
    /// that has withdrawn. `None` for other free words.
    pub fn object(self) -> Option<Address> {
        let address = self.address();
        let protects = !self.is_free() || self.is_free_of_kind(WITHDRAWAL);
        (protects && address != Address::NONE).then_some(address)
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

    /// Returns the free word of the same identity, which an INSERT writes to withdraw. A word that is free already
    /// stays as it is, apart from bits that no free word has.
    pub fn withdrawn(self) -> Slot {
        if self.is_free() {
            return Slot(self.unmoved().0 & !1);
        }
        Slot::withdrawal(self.object_identity())
    }

    /// Returns the identity of the writer of this word.
    #[inline]
    pub fn identity(self) -> WriterIdentity {
        if removed(Mutant::WholeWordsCompared) {
            return WriterIdentity(self.0);
        }
        if self.is_free() && self.0 >> KIND_SHIFT != WITHDRAWAL {
            return WriterIdentity(self.0);
        }
        WriterIdentity::of_object(self.object_identity())
    }

    /// Returns the address and generation in the word of an entry or a withdrawal. The object's header shows them, too;
    /// that of an EC-oriented object shows the first turn.
    pub fn object_identity(self) -> Identity {
        Identity(self.0 << (64 - CLASS_SHIFT) >> (64 - CLASS_SHIFT) >> GENERATION_SHIFT)
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_number() {
            return match self.numbered_by() {
                Some(client) => write!(f, "number({client}, {:#x})", self.0),
                None => write!(f, "unused({:#x})", self.0),
            };
        }
        let kind = match (self.is_free(), self.is_tentative()) {
            (true, _) if self.is_vacated() => "vacated",
            (true, _) if self.is_free_of_kind(WITHDRAWAL) => "withdrawn",
            (true, _) => "damaged",
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
        assert_eq!(Slot(slot.withdrawn().0 | 1 << MOVED_SHIFT | 1).withdrawn(), slot.withdrawn());
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
        let header = Identity::from_word(slot.object_identity().word());
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
    fn numbers_protect_nothing_and_are_below_objects() {
        let largest = Slot::NUMBERS - 1;
        for (client, counter) in [(1, 0), (1, largest), (0x8000_0001, 77), (u32::MAX, largest)] {
            let number = Slot::number(ClientId(client), counter);
            assert!(number.is_free() && number.is_number() && !number.is_vacated());
            assert!(!number.is_tentative() && !number.is_moved());
            assert_eq!((number.object(), number.withdrawn()), (None, number));
            assert_eq!(number.numbered_by(), Some(ClientId(client)));
            for other in [sample(), sample().withdrawn(), Slot::vacated(0), Slot::vacated(u32::MAX)]
            {
                assert!(number.identity() < other.identity() && !other.is_number());
                assert_eq!(other.numbered_by(), None);
            }
        }
        let numbers = [(1, 0), (1, 1), (2, 0), (1 << 31, 0), (u32::MAX, largest)];
        let mut words = numbers.map(|(client, counter)| Slot::number(ClientId(client), counter).0);
        words.sort_unstable();
        assert!(words.windows(2).all(|pair| pair[0] != pair[1]));
        assert!(Slot(0).is_number() && Slot(0).numbered_by().is_none(), "never used");
        let smallest = Slot::new(0, SizeClass::from_code(1).unwrap(), Address::new(64), 0);
        assert!(Slot::vacated(u32::MAX).identity() < smallest.identity());
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
