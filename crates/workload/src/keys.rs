//! The bytes of keys, by their numbers.

use std::ops::Deref;
use std::sync::Arc;

use crate::requests::{KEY_BYTES, key_bytes};
use crate::trace::YcsbTrace;

/// The names of keys.
#[derive(Clone, Debug, Default)]
pub enum KeyNaming {
    /// Names that [`key_bytes`] makes.
    #[default]
    Numbered,
    /// Names from files.
    Named(Arc<YcsbTrace>),
}

/// The bytes of a key.
#[derive(Debug)]
pub enum KeyName<'a> {
    /// Made from the number.
    Made([u8; KEY_BYTES]),
    /// Read from a file.
    Read(&'a [u8]),
}

impl KeyNaming {
    /// Returns the bytes of a key.
    ///
    /// # Panics
    /// If the keys come from files that have fewer.
    pub fn name(&self, key: u64) -> KeyName<'_> {
        match self {
            KeyNaming::Numbered => KeyName::Made(key_bytes(key)),
            KeyNaming::Named(trace) => KeyName::Read(trace.key(key)),
        }
    }

    /// Whether this key may exist or not, because the operations of the files insert or delete it.
    pub fn may_be_absent(&self, key: u64) -> bool {
        match self {
            KeyNaming::Numbered => false,
            KeyNaming::Named(trace) => trace.may_be_absent(key),
        }
    }
}

impl Deref for KeyName<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            KeyName::Made(bytes) => bytes,
            KeyName::Read(bytes) => bytes,
        }
    }
}
