//! The request for a write: everything that the caller of the write decides.

use super::intent::Watch;
use crate::data::{Placement, Redundancy};
use crate::layout::{Fill, Opcode, Value};
use crate::race::Key;
use crate::stats::OpKind;
use crate::store::Hint;

/// A write of one key, for [`Store::write`](crate::Store::write); `key` is a [`Key`](crate::race::Key), or its bytes.
/// By default the pair is replicated, without a hint and without a watch.
#[derive(Clone, Copy)]
pub struct WriteRequest<'a, K> {
    pub(super) opcode: Opcode,
    pub(super) key: K,
    pub(super) value: Value<'a>,
    pub(super) placement: Placement,
    pub(super) hint: Option<Hint>,
    pub(super) watch: Option<&'a Watch<'a>>,
}

impl<'a, K> WriteRequest<'a, K> {
    fn new(opcode: Opcode, key: K, value: Value<'a>) -> WriteRequest<'a, K> {
        let placement = Redundancy::Replicated.into();
        WriteRequest { opcode, key, value, placement, hint: None, watch: None }
    }

    /// Returns the request to add a key that must not exist.
    pub fn insert(key: K, value: &'a [u8]) -> WriteRequest<'a, K> {
        WriteRequest::new(Opcode::Insert, key, Value::Bytes(value))
    }

    /// Returns the request to replace the value of a key that must exist.
    pub fn update(key: K, value: &'a [u8]) -> WriteRequest<'a, K> {
        WriteRequest::new(Opcode::Update, key, Value::Bytes(value))
    }

    /// Returns the request to add the key, or to replace its value.
    pub fn upsert(key: K, value: &'a [u8]) -> WriteRequest<'a, K> {
        WriteRequest::new(Opcode::Upsert, key, Value::Bytes(value))
    }

    /// Returns the request to add the key, or to replace its value, like [`WriteRequest::upsert`]. `fill` writes the
    /// value, of `value_bytes` bytes, into a buffer of zeros. `fill` is called once, before the operation is pinned, so
    /// it can take long and can use the store.
    pub fn upsert_filled(key: K, value_bytes: usize, fill: &'a Fill<'a>) -> WriteRequest<'a, K> {
        WriteRequest::new(Opcode::Upsert, key, Value::Filled(value_bytes, fill))
    }

    /// Returns the request to remove a key that must exist.
    pub fn delete(key: K) -> WriteRequest<'a, K> {
        WriteRequest::new(Opcode::Delete, key, Value::Bytes(&[]))
    }

    /// Returns the request with this placement; a [`Redundancy`] demands exactly that redundancy. A DELETE ignores the
    /// placement, because it writes no pair.
    pub fn placed(self, placement: impl Into<Placement>) -> WriteRequest<'a, K> {
        if self.opcode == Opcode::Delete {
            return self;
        }
        WriteRequest { placement: placement.into(), ..self }
    }

    /// Returns the request with a hint, if there is one. An INSERT ignores the hint, because a right hint would make it
    /// replace the pair.
    pub fn hinted(self, hint: Option<Hint>) -> WriteRequest<'a, K> {
        if self.opcode == Opcode::Insert {
            return self;
        }
        WriteRequest { hint, ..self }
    }

    /// Returns the request of a write that calls `watch` before it posts its commit. If the write succeeds without that
    /// call, it lost its round, or a view change has committed it.
    pub fn watched(self, watch: &'a Watch<'a>) -> WriteRequest<'a, K> {
        WriteRequest { watch: Some(watch), ..self }
    }

    /// Returns the opcode of the write.
    pub fn opcode(&self) -> Opcode {
        self.opcode
    }

    /// Returns the redundancy that the write gives its pair.
    pub fn placement(&self) -> Placement {
        self.placement
    }

    /// Returns the value that the write writes.
    pub fn value(&self) -> &Value<'a> {
        &self.value
    }

    /// Returns the request with its key hashed.
    pub(super) fn hashed<'k>(self, hash: impl FnOnce(K) -> Key<'k>) -> WriteRequest<'a, Key<'k>> {
        let WriteRequest { opcode, key, value, placement, hint, watch } = self;
        WriteRequest { opcode, key: hash(key), value, placement, hint, watch }
    }

    /// Returns the kind of operation as which statistics count the write.
    pub(super) fn kind(&self) -> OpKind {
        match self.opcode {
            Opcode::Insert => OpKind::Insert,
            Opcode::Update => OpKind::Update,
            Opcode::Delete => OpKind::Delete,
            _ => OpKind::Upsert,
        }
    }
}

impl<'k> WriteRequest<'_, Key<'k>> {
    /// Returns the key of the write.
    pub fn key(&self) -> Key<'k> {
        self.key
    }
}
