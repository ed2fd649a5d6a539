//! One attempt to write: what it is to do, its object, and how far it has come.
//!
//! ```text
//! Begun -+-> Led --------+-> Contending -+----------------> Committing -> (ended)
//!        +-> Speculated -+         ^     |                   ^    ^
//!        +-> Looking --------------+     +-> Contended ------+    |
//!              |                         |       |                |
//!              +-> Installing -----------+--------------> Confirming
//!              +-> Mentioned (one index replica) +-> Withdrawing -> Mentioned
//! ```
//!
//! [`Step`] is the only record of how far it is. It says what was posted last, so whoever executes that phase can
//! go on from there ([`straight`](super::straight)), and which round others have to settle if the phase is not
//! answered ([`resolve`](super::resolve)). Both drivers of a write ([`write`](super::write),
//! [`write_now`](super::write_now)) hold one attempt at a time, and hand it over between two phases.
//!
//! The object is written, with its log entry, before anybody can learn its address. An attempt that has posted a
//! CAS never shares its object with the next one, unless all of them were answered and none succeeded: so every
//! word that is put into a slot is new.

use alloc::vec::Vec;
use core::mem;

use arrayvec::ArrayVec;

use super::{Hint, Op, Proof};
use crate::data::{ObjectAt, PerCopy, Redundancy};
use crate::error::{Error, Outcome};
use crate::host::Host;
use crate::layout::{Identity, Opcode, Pair, Slot};
use crate::mutant::{Mutant, removed};
use crate::race::Key;
use crate::slab::{Allocation, SlabKind};
use crate::snapshot::Winner;
use crate::verbs::{Batch, Fabric, Span, Ticket};
use crate::view::{MAX_REPLICAS, Place, SlotRef, View};

/// Something per backup, without touching the heap.
pub(super) type PerBackup<T> = ArrayVec<T, { MAX_REPLICAS - 1 }>;

/// What a write wants.
pub(super) struct Intent<'a> {
    pub opcode: Opcode,
    pub key: Key<'a>,
    pub value: Source<'a>,
    /// Where its object goes.
    pub slab: SlabKind,
    /// Whether a pair that exists keeps its redundancy.
    pub keeps: Keeps,
    /// Who is told before its commit is posted.
    pub watch: Option<&'a Watch<'a>>,
}

/// Where a write has its value.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    Bytes(&'a [u8]),
    /// So many bytes where they belong in the object, which the operation's batch [keeps](Batch::keep): it is sent from
    /// there, with the identity of each attempt.
    Staged(Span, usize),
}

impl Source<'_> {
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Source::Bytes(bytes) => bytes.len(),
            Source::Staged(_, bytes) => *bytes,
        }
    }
}

/// Whether a write goes to where the pair is that it replaces.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Keeps {
    /// Whatever that has, the slab is the right one.
    No,
    /// The slab is the one of a new pair.
    IfItExists,
    /// The slab is that of the pair that a hint shows; a new one gets this redundancy.
    Unless(Redundancy),
}

/// Called before a write posts a CAS of the primary. Until then nobody can READ its word there, unless a change of
/// the view puts it there in its stead.
pub type Watch<'a> = dyn Fn() + 'a;

/// A writer's try for one slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    pub slot: SlotRef,
    /// What the primary showed: the round's name.
    pub old: Slot,
    /// What this writer puts on the backups.
    pub own: Slot,
}

impl Round {
    /// Whether both words lead to one object: a Move in place. Whoever wins, its bytes stay in use, or whoever replaces
    /// the word frees them.
    pub fn is_in_place(&self) -> bool {
        self.own.address() == self.old.address()
    }
}

/// The CASes of the backups, and the look behind the first.
#[derive(Debug)]
pub(super) struct Posted {
    pub cases: PerBackup<Ticket>,
    pub look: Option<[Ticket; 2]>,
}

/// The READs that go with the object where there is a hint.
#[derive(Clone, Copy)]
pub(super) struct Led {
    pub slot: Ticket,
    pub proof: Proof,
}

/// How far an attempt has come.
pub(super) enum Step {
    /// No CAS of it has been posted, or nothing of it stands anywhere.
    Begun,
    /// The object is posted, and the READs that show whether the hint is right.
    Led(Led),
    /// The object is posted, the CASes of the backups, and the READ of the slot: nothing shows yet that the round
    /// was open when the operation began.
    Speculated(Round, Posted, Ticket),
    /// Without a hint: the object is posted, and the READs of the key's buckets.
    Looking([Ticket; 2]),
    /// The CASes of the backups are posted.
    Contending(Round, Posted),
    /// The same with a tentative word, of a new key, and with the look behind the first CAS; what the primary showed
    /// of the buckets is still there.
    Installing(Round, Posted, [Span; 2]),
    /// A tentative word has won, no other slot has the key: the CASes of the backups are posted that confirm it.
    Confirming(Round, PerBackup<Ticket>, Winner),
    /// They are answered. It comes to a decision, or has won and confirms its word, or has lost and waits.
    Contended(Round),
    /// The CAS of the primary is posted.
    Committing(Round, Ticket),
    /// It takes its word back.
    Withdrawing(Round),
    /// A CAS has mentioned its object, but no round is to be settled: the word was taken back, or is not a
    /// round's yet.
    Mentioned,
}

impl Step {
    /// The round in which its word may stand in a slot.
    pub fn round(&self) -> Option<&Round> {
        match self {
            Step::Begun | Step::Led(_) | Step::Looking(_) | Step::Mentioned => None,
            Step::Speculated(round, ..)
            | Step::Contending(round, _)
            | Step::Installing(round, ..)
            | Step::Confirming(round, ..)
            | Step::Contended(round)
            | Step::Committing(round, _)
            | Step::Withdrawing(round) => Some(round),
        }
    }

    /// Whether a CAS may have put the identity of its object into a slot.
    pub fn is_mentioned(&self) -> bool {
        !matches!(self, Step::Begun | Step::Led(_) | Step::Looking(_))
    }

    fn leads_to(&self, next: &Step) -> bool {
        use Step::*;
        match self {
            Begun => {
                matches!(next, Led(_) | Speculated(..) | Looking(_) | Contending(..) | Mentioned)
            }
            Led(_) => matches!(next, Begun | Contending(..) | Mentioned),
            Looking(_) => matches!(next, Begun | Contending(..) | Installing(..) | Mentioned),
            Speculated(..) => matches!(next, Begun | Contending(..)),
            Contending(..) => matches!(next, Contended(_) | Committing(..)),
            Installing(..) => matches!(next, Contended(_) | Confirming(..)),
            Confirming(..) => matches!(next, Contended(_)),
            Contended(_) => matches!(next, Confirming(..) | Committing(..) | Withdrawing(_)),
            Withdrawing(_) => matches!(next, Mentioned),
            Mentioned => matches!(next, Contending(..)),
            Committing(..) => false,
        }
    }
}

/// What a Move in place knows of the object.
pub(super) struct InPlace {
    /// What its chunks say.
    pub opcode: Opcode,
    /// The copies that the old word keeps.
    pub old_copies: PerCopy<Identity>,
}

/// An attempt to write.
pub(super) struct Attempt<'i> {
    pub intent: &'i Intent<'i>,
    /// Where the key may be.
    pub hint: Option<Hint>,
    /// Whether the slot of the hint held the hint's word.
    pub hint_held: bool,
    pub object: Allocation,
    /// Of an EC-oriented object, where its copies go. They belong to its word.
    pub copies: Vec<Allocation>,
    /// If it is a Move in place: its object is that of the old word.
    pub in_place: Option<InPlace>,
    step: Step,
}

impl<'i> Attempt<'i> {
    /// Nothing of it is posted.
    pub fn new(intent: &'i Intent<'i>, hint: Option<Hint>, object: Allocation) -> Attempt<'i> {
        let copies = Vec::new();
        let in_place = None;
        let step = Step::Begun;
        Attempt { intent, hint, hint_held: false, object, copies, in_place, step }
    }

    pub fn step(&self) -> &Step {
        &self.step
    }

    /// It has posted the next step.
    pub fn goes_to(&mut self, step: Step) {
        debug_assert!(self.step.leads_to(&step), "a step that an attempt does not take");
        self.step = step;
    }

    /// What it has posted was not executed, or nothing of it stands anywhere.
    pub fn begins_again(&mut self) {
        self.goes_to(Step::Begun);
    }

    /// Its speculative write is answered: the round was open.
    pub fn speculated_right(&mut self) {
        let speculated = mem::replace(&mut self.step, Step::Begun);
        let Step::Speculated(round, posted, _) = speculated else { unreachable!("it speculated") };
        self.hint_held = true;
        self.step = Step::Contending(round, posted);
    }

    /// The CASes of the backups are answered, and do not decide the round alone: the round, and what was posted.
    pub fn is_contended(&mut self) -> (Round, Posted) {
        let (Step::Contending(round, posted) | Step::Installing(round, posted, _)) =
            mem::replace(&mut self.step, Step::Begun)
        else {
            unreachable!("it competes")
        };
        self.step = Step::Contended(round);
        (round, posted)
    }

    /// Its word is confirmed on all backups: the permission to commit.
    pub fn is_confirmed(&mut self) -> Winner {
        let Step::Confirming(round, _, winner) = mem::replace(&mut self.step, Step::Begun) else {
            unreachable!("it confirms")
        };
        self.step = Step::Contended(round);
        winner
    }

    /// The word that refers to its object.
    pub fn own_word(&self) -> Slot {
        let Attempt { intent, object, .. } = self;
        let fingerprint = intent.key.fingerprint();
        let class = object.kind.class;
        intent.opcode.puts(Slot::new(fingerprint, class, object.address, object.generation))
    }

    /// The round in which it replaces the word of the key's slot.
    pub fn round_on(&self, found: Hint) -> Round {
        let Attempt { intent, object, .. } = self;
        let own = match intent.opcode {
            Opcode::Delete if removed(Mutant::DeleteWritesZero) => Slot(0),
            Opcode::Delete => Slot::tombstone(object.address, object.generation),
            _ => self.own_word(),
        };
        Round { slot: found.slot, old: found.word, own }
    }
}

/// What an attempt came to.
pub(super) enum Ended {
    /// Done; with the place for the cache, if it is known.
    Done(Option<Hint>),
    /// Others were faster. The object may have been seen: start again with a new one.
    Again,
    /// Nothing is mentioned: the pair is here, and keeps another redundancy than the attempt has; or there is none, and
    /// the attempt has that of another one.
    Elsewhere(Option<Hint>),
    /// The view changes while it waits for another writer.
    Suspended,
}

impl<F: Fabric, H: Host> Op<'_, F, H> {
    /// Posts the WRITEs of the object, and of its block's header if it is the block's first.
    pub(super) fn post_object(&mut self, attempt: &Attempt<'_>) -> Result<(), Error> {
        let Attempt { intent, object, .. } = attempt;
        if object.header.is_some() {
            self.post_header(object)?;
        }
        let opcode = intent.opcode;
        let identity = object.identity();
        let at = object_at(&self.view, object)?;
        let value = match intent.value {
            Source::Bytes(value) => value,
            Source::Staged(object, bytes) => {
                let pair = Pair { key: &intent.key, value: &[], identity, opcode };
                write_around(at, &mut self.batch, &pair, (object, bytes));
                return Ok(());
            }
        };
        let pair = Pair { key: &intent.key, value, identity, opcode };
        if attempt.copies.is_empty() {
            at.write(&mut self.batch, &pair);
            return Ok(());
        }
        let copies: PerCopy<Identity> = attempt.copies.iter().map(Allocation::identity).collect();
        at.write_oriented(&mut self.batch, &pair, &copies);
        self.post_copies(attempt)
    }

    /// Posts the WRITEs of the header that an object's block needs, if it needs one.
    #[cold]
    pub(super) fn post_header(&mut self, object: &Allocation) -> Result<(), Error> {
        if let Some((block, header)) = &object.header {
            let bytes = header.encode();
            let span = self.batch.stage(bytes.len() as u32);
            self.batch.bytes_mut(span).copy_from_slice(&bytes);
            let view = &self.view;
            let block = view
                .block(*block)
                .ok_or(Error::Corrupt { what: "a granted block lies outside of every region" })?;
            block.write_header(&mut self.batch, span);
        }
        Ok(())
    }

    /// The phase that writes the object is executed: all replicas must have it before anybody can learn of it.
    #[inline]
    pub(super) fn is_written(&mut self, attempt: &Attempt<'_>) -> Result<(), Error> {
        self.batch.check().map_err(|f| self.failed(f))?;
        if attempt.object.header.is_some() || !attempt.copies.is_empty() {
            self.has_headers(attempt);
        }
        Ok(())
    }

    /// The headers of an attempt's blocks, if any were to be written, are.
    #[cold]
    fn has_headers(&self, attempt: &Attempt<'_>) {
        let mut slabs = self.store.slabs.borrow_mut();
        slabs.header_written(&attempt.object);
        attempt.copies.iter().for_each(|copy| slabs.header_written(copy));
    }

    /// An attempt has ended: its object is not under way any more, unless nobody can know. Then the session has to
    /// be recovered: nothing else ever frees the object.
    #[inline]
    pub(super) fn done_with(&mut self, attempt: &Attempt<'_>, ended: &Result<Ended, Error>) {
        let is_known = match ended {
            Ok(_) => true,
            Err(error) => self.is_known(error),
        };
        if !is_known || removed(Mutant::IdentityUsedAgain) {
            return;
        }
        self.pin.has_object = false;
        match (&attempt.in_place, attempt.step.is_mentioned()) {
            (None, true) => self.store.slabs.borrow_mut().end(&attempt.object),
            (None, false) => self.store.give_back(&attempt.object),
            (Some(_), _) => self.store.slabs.borrow_mut().end_move(&attempt.object),
        }
        if !attempt.copies.is_empty() || attempt.in_place.is_some() {
            self.end_copies(attempt, ended);
        }
        self.pin.let_go();
    }

    /// Whether nothing of an attempt that failed stands in a slot, and nothing of it may still execute.
    #[cold]
    fn is_known(&mut self, error: &Error) -> bool {
        if removed(Mutant::UnansweredReadsKeepObjects) && matches!(error, Error::Unreachable { .. })
        {
            self.pin.has_object = false;
            return false;
        }
        self.forget_lost();
        error.outcome() == Outcome::NotApplied && !self.pin.on_its_way
    }

    /// The slot's place on each backup, in order.
    pub(super) fn backups(&self, slot: SlotRef) -> PerBackup<Place> {
        self.view.slot_on_backups(slot).collect()
    }
}

/// Apart, so that other writes do not pay for it.
#[cold]
fn write_around(at: ObjectAt<'_>, batch: &mut Batch, pair: &Pair<'_>, staged: (Span, usize)) {
    at.write_around(batch, pair, staged.0, staged.1);
}

/// Where an object goes.
fn object_at<'v>(view: &'v View, object: &Allocation) -> Result<ObjectAt<'v>, Error> {
    view.object(object.address, object.kind.class.bytes())
        .ok_or(Error::Corrupt { what: "a granted block lies outside of every region" })
}
