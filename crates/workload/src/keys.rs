//! Conversion of key numbers to the bytes of keys.

use std::ops::Deref;
use std::sync::Arc;

use crate::requests::{KEY_BYTES, key_bytes};
use crate::trace::YcsbTrace;

/// The rule that gives the key with a number its bytes.
#[derive(Clone, Debug, Default)]
pub enum KeyNaming {
    /// [`key_bytes`] makes the bytes from the number.
    #[default]
    Numbered,
    /// The keys come from files.
    Named(Arc<YcsbTrace>),
}

/// The bytes of a key.
#[derive(Debug)]
pub enum KeyName<'a> {
    /// Bytes that were made from the key's number.
    Made([u8; KEY_BYTES]),
    /// Bytes that were read from a file.
    Read(&'a [u8]),
}

impl KeyNaming {
    /// Returns the bytes of the key with this number.
    ///
    /// # Panics
    /// If the keys come from files and there are fewer keys.
    pub fn name(&self, key: u64) -> KeyName<'_> {
        match self {
            KeyNaming::Numbered => KeyName::Made(key_bytes(key)),
            KeyNaming::Named(trace) => KeyName::Read(trace.key(key)),
        }
    }

    /// Returns whether this key possibly does not exist, because operations of the files insert or delete it.
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
