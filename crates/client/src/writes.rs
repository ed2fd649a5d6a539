//! Options of single writes, and the writes of a batch as values.

use fusee_core::data::Redundancy;
use fusee_core::stats::OpKind;

/// The condition of a put: whether its key has to be absent or present.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PutCondition {
    /// There is no condition: the put adds the key, or replaces its value.
    #[default]
    Any,
    /// The key must not exist: else the put fails with [`WriteError::AlreadyExists`](crate::WriteError::AlreadyExists),
    /// as an insert does.
    Absent,
    /// The key must exist. Otherwise the put fails with [`WriteError::NotFound`](crate::WriteError::NotFound), as an
    /// update does.
    Present,
}

/// Options of a put.
///
/// ```
/// use fusee_client::{PutOptions, Redundancy};
///
/// let options = PutOptions::default().if_absent().with_redundancy("ec:4+2".parse()?);
/// assert!(matches!(options.redundancy, Some(Redundancy::Coded(_))));
/// # Ok::<(), fusee_client::ParseRedundancyError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PutOptions {
    /// The condition on the presence of the key. Default: [`PutCondition::Any`].
    pub condition: PutCondition,
    /// The redundancy of the value, whatever the client's rules say. Default: `None`, which means the redundancy of the
    /// key's old value, or for a new key that of the rules ([`Options::redundancy`](crate::Options::redundancy)).
    pub redundancy: Option<Redundancy>,
}

impl PutOptions {
    /// Sets [`PutCondition::Absent`]: the put is an insert.
    pub fn if_absent(self) -> PutOptions {
        PutOptions { condition: PutCondition::Absent, ..self }
    }

    /// Sets [`PutCondition::Present`]: the put is an update.
    pub fn if_present(self) -> PutOptions {
        PutOptions { condition: PutCondition::Present, ..self }
    }

    /// Sets [`PutOptions::redundancy`].
    pub fn with_redundancy(self, redundancy: Redundancy) -> PutOptions {
        PutOptions { redundancy: Some(redundancy), ..self }
    }

    /// Returns the kind of operation as which counts and spans show the put.
    pub(crate) fn kind(&self) -> OpKind {
        match self.condition {
            PutCondition::Any => OpKind::Upsert,
            PutCondition::Absent => OpKind::Insert,
            PutCondition::Present => OpKind::Update,
        }
    }
}

/// One write of a batch ([`Client::write_many`](crate::Client::write_many)).
///
/// ```
/// use fusee_client::BatchWrite;
///
/// let writes = [
///     BatchWrite::put("cat", "meows"),
///     BatchWrite::insert("dog", "barks"),
///     BatchWrite::delete("dodo"),
/// ];
/// assert_eq!(writes[1].key(), b"dog");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BatchWrite<'w> {
    /// A put.
    Put {
        /// The key to put.
        key: &'w [u8],
        /// The new value of the key.
        value: &'w [u8],
        /// The options of the put.
        options: PutOptions,
    },
    /// A delete.
    Delete {
        /// The key to delete.
        key: &'w [u8],
    },
}

impl<'w> BatchWrite<'w> {
    /// Makes a write that adds a key, or replaces its value.
    pub fn put<K, V>(key: &'w K, value: &'w V) -> BatchWrite<'w>
    where
        K: AsRef<[u8]> + ?Sized,
        V: AsRef<[u8]> + ?Sized,
    {
        BatchWrite::put_with(key, value, PutOptions::default())
    }

    /// Makes a write that adds a key, which must not exist.
    pub fn insert<K, V>(key: &'w K, value: &'w V) -> BatchWrite<'w>
    where
        K: AsRef<[u8]> + ?Sized,
        V: AsRef<[u8]> + ?Sized,
    {
        BatchWrite::put_with(key, value, PutOptions::default().if_absent())
    }

    /// Makes a write that replaces the value of a key, which must exist.
    pub fn update<K, V>(key: &'w K, value: &'w V) -> BatchWrite<'w>
    where
        K: AsRef<[u8]> + ?Sized,
        V: AsRef<[u8]> + ?Sized,
    {
        BatchWrite::put_with(key, value, PutOptions::default().if_present())
    }

    /// Makes a put with options.
    pub fn put_with<K, V>(key: &'w K, value: &'w V, options: PutOptions) -> BatchWrite<'w>
    where
        K: AsRef<[u8]> + ?Sized,
        V: AsRef<[u8]> + ?Sized,
    {
        BatchWrite::Put { key: key.as_ref(), value: value.as_ref(), options }
    }

    /// Makes a write that removes a key, which must exist.
    pub fn delete<K: AsRef<[u8]> + ?Sized>(key: &'w K) -> BatchWrite<'w> {
        BatchWrite::Delete { key: key.as_ref() }
    }

    /// Returns the key.
    pub fn key(&self) -> &'w [u8] {
        match self {
            BatchWrite::Put { key, .. } | BatchWrite::Delete { key } => key,
        }
    }

    /// Returns the kind of operation as which counts and spans show the write.
    pub(crate) fn kind(&self) -> OpKind {
        match self {
            BatchWrite::Put { options, .. } => options.kind(),
            BatchWrite::Delete { .. } => OpKind::Delete,
        }
    }

    /// Returns the length of the value that is written, in bytes; 0 for a delete.
    pub(crate) fn value_bytes(&self) -> usize {
        match self {
            BatchWrite::Put { value, .. } => value.len(),
            BatchWrite::Delete { .. } => 0,
        }
    }
}

/// A copy of a [`BatchWrite`] that another thread can own.
pub(crate) enum OwnedWrite {
    Put { key: Vec<u8>, value: Vec<u8>, options: PutOptions },
    Delete { key: Vec<u8> },
}

impl OwnedWrite {
    pub fn of(write: &BatchWrite<'_>) -> OwnedWrite {
        match write {
            BatchWrite::Put { key, value, options } => OwnedWrite::Put {
                key: key.to_vec(),
                value: value.to_vec(),
                options: options.clone(),
            },
            BatchWrite::Delete { key } => OwnedWrite::Delete { key: key.to_vec() },
        }
    }

    pub fn borrow(&self) -> BatchWrite<'_> {
        match self {
            OwnedWrite::Put { key, value, options } => {
                BatchWrite::Put { key, value, options: options.clone() }
            }
            OwnedWrite::Delete { key } => BatchWrite::Delete { key },
        }
    }
}
