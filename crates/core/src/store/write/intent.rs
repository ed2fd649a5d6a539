//! The task of a write, and the reasons for which it cannot begin.

use crate::data::Redundancy;
use crate::error::Error;
use crate::layout::Opcode;
use crate::race::Key;
use crate::slab::SlabKind;
use crate::verbs::Span;

/// A function that is called before a write posts its commit. Until this call, no reader finds the write's value on the
/// primary, unless a view change commits the write in its session's stead.
pub type Watch<'a> = dyn Fn() + 'a;

/// The task of a write, which is the same for all its attempts.
pub(in crate::store) struct Intent<'a> {
    pub opcode: Opcode,
    pub key: Key<'a>,
    pub value: WriteValue<'a>,
    /// The slab from which the write's object is allocated.
    pub slab: SlabKind,
    /// Whether a pair that exists keeps its redundancy.
    pub keeps: KeepRedundancy,
    /// The number of the view that was used to choose the slab.
    pub placed_in: u64,
    /// A function of the caller that is called before the commit is posted.
    pub watch: Option<&'a Watch<'a>>,
}

/// Whether a write keeps the redundancy of the pair that it replaces.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::store) enum KeepRedundancy {
    /// The write does not keep the redundancy of an existing pair. The chosen slab counts as right whatever this
    /// redundancy is.
    No,
    /// The write keeps the redundancy of an existing pair. The slab is chosen for a new pair, because the redundancy of
    /// an existing pair is not known yet.
    IfItExists,
    /// The write keeps the redundancy of an existing pair. The slab is the one of the pair to which a hint leads. The
    /// contained redundancy is that of a new pair, and of a pair whose redundancy the value cannot have.
    AsHinted(Redundancy),
    /// As `AsHinted`, but a search or the write itself has found the pair.
    AsFound(Redundancy),
    /// As `IfItExists`, but a pair of this redundancy does not keep it, because the cluster has too few memory nodes
    /// for it in the view with this number.
    Unless { redundancy: Redundancy, view: u64 },
}

/// The source of the value that a write writes.
#[derive(Clone, Copy)]
pub(in crate::store) enum WriteValue<'a> {
    Bytes(&'a [u8]),
    /// An object that is staged in the operation's batch, which [keeps](crate::verbs::VerbBatch::keep) it. The value,
    /// of `value_bytes` bytes, is already at its place in the object. Each attempt writes the object from there, with
    /// the attempt's identity.
    Staged {
        object: Span,
        value_bytes: usize,
    },
}

impl WriteValue<'_> {
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            WriteValue::Bytes(bytes) => bytes.len(),
            WriteValue::Staged { value_bytes, .. } => *value_bytes,
        }
    }
}

/// The reason why an attempt of a write cannot begin.
pub(super) enum CannotBegin {
    /// The slab of this kind has no room for the object.
    NoRoom(SlabKind),
    /// The session lacks a number, or a place for the record of the DELETE.
    LacksLog,
    /// The write fails with this error.
    Failed(Error),
}

impl From<Error> for CannotBegin {
    fn from(error: Error) -> CannotBegin {
        CannotBegin::Failed(error)
    }
}
