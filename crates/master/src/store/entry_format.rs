//! The bytes of a store's entries, with checksums.
//!
//! ```text
//! key          value
//! format       "fusee-master 12"            | crc 4 |
//! contents     | count 8 | sum 8 |          | crc 4 |
//! others       a record in postcard bytes   | crc 4 |
//! ```
//!
//! Numbers are little-endian. Each CRC-32C covers the value before it and the key, so it reveals a record that differs
//! from what was written, or that is stored under another record's key. `contents` holds the number of records and the
//! sum of their CRCs. It is written together with the records, so it reveals a record that is missing, or that is an
//! older version.

use std::collections::BTreeMap;

use fusee_core::layout::crc32c;

use crate::record::MasterRecord;

/// The key of the entry with the name of the store's format.
pub const FORMAT_KEY: &str = "format";
/// The key of [`StoreContents`].
pub const CONTENTS_KEY: &str = "contents";
/// The name of the format of this version. Formats from 7 on have checksums of records.
pub const FORMAT: &str = "fusee-master 12";
/// The prefix of the names of all formats, also of those without checksums.
const FORMATS: &str = "fusee-master ";

const CRC_BYTES: usize = 4;

/// The reason why an entry of the store is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreEntryError {
    /// The key of the entry.
    pub record: String,
    /// A text that says what is wrong with the entry.
    pub cause: String,
}

impl StoreEntryError {
    fn new(record: &str, cause: impl ToString) -> StoreEntryError {
        StoreEntryError { record: record.into(), cause: cause.to_string() }
    }
}

/// The format of a store, as the entry of the key `format` names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreFormat {
    /// The format of this program.
    This,
    /// The format of another version.
    Other(String),
}

fn crc(key: &str, value: &[u8]) -> u32 {
    crc32c(&[value, key.as_bytes()].concat())
}

/// Returns the bytes to store for a value under a key: the value and its checksum.
pub fn seal(key: &str, mut value: Vec<u8>) -> Vec<u8> {
    let crc = crc(key, &value);
    value.extend(crc.to_le_bytes());
    value
}

/// Returns the value in the stored bytes of a key, and its checksum; an error if they do not match.
pub fn unseal<'a>(key: &str, bytes: &'a [u8]) -> Result<(&'a [u8], u32), StoreEntryError> {
    let Some((value, stored)) = bytes.split_last_chunk::<CRC_BYTES>() else {
        return Err(StoreEntryError::new(key, format!("it has {} bytes", bytes.len())));
    };
    let stored = u32::from_le_bytes(*stored);
    let found = crc(key, value);
    if stored != found {
        let cause = format!("its checksum is {found:08x}, where {stored:08x} was written");
        return Err(StoreEntryError::new(key, cause));
    }
    Ok((value, found))
}

/// Returns the bytes to store under [`FORMAT_KEY`].
pub fn format() -> Vec<u8> {
    seal(FORMAT_KEY, FORMAT.into())
}

/// Reads the format from the bytes that [`format()`] returns, or from the bytes of an earlier version, which stored
/// only the format's name.
pub fn read_format(bytes: &[u8]) -> Result<StoreFormat, StoreEntryError> {
    let is_number = |rest: &str| !rest.is_empty() && rest.bytes().all(|c| c.is_ascii_digit());
    let is_name = |name: &&str| name.strip_prefix(FORMATS).is_some_and(is_number);
    if let Some(older) = std::str::from_utf8(bytes).ok().filter(is_name) {
        return Ok(StoreFormat::Other(older.into()));
    }
    match String::from_utf8_lossy(unseal(FORMAT_KEY, bytes)?.0) {
        name if name == FORMAT => Ok(StoreFormat::This),
        name => Ok(StoreFormat::Other(name.into())),
    }
}

/// Returns the key of a record and the bytes to store under this key.
pub fn encode(record: &MasterRecord) -> (String, Vec<u8>) {
    let key = record.key();
    let value = postcard::to_stdvec(record).expect("records are plain data");
    let bytes = seal(&key, value);
    (key, bytes)
}

/// Returns the record that the stored bytes of a key contain.
pub fn decode(key: &str, bytes: &[u8]) -> Result<MasterRecord, StoreEntryError> {
    let (value, _) = unseal(key, bytes)?;
    match postcard::take_from_bytes::<MasterRecord>(value) {
        Ok((record, [])) if record.key() == key => Ok(record),
        Ok((record, [])) => {
            Err(StoreEntryError::new(key, format!("it is a record of {}", record.key())))
        }
        Ok((_, rest)) => Err(StoreEntryError::new(key, format!("{} bytes too many", rest.len()))),
        Err(error) => Err(StoreEntryError::new(key, error)),
    }
}

/// Returns all records of a store, and their list of contents. A store without any entry, not even [`StoreContents`],
/// is valid: it was never written to.
pub fn decode_all(
    entries: &BTreeMap<String, Vec<u8>>,
) -> Result<(Vec<MasterRecord>, StoreContents), StoreEntryError> {
    let mut contents = StoreContents::default();
    let mut records = Vec::with_capacity(entries.len());
    for (key, bytes) in entries.iter().filter(|(key, _)| !is_own(key)) {
        let (_, crc) = unseal(key, bytes)?;
        records.push(decode(key, bytes)?);
        contents.set(key, Some(crc));
    }
    match entries.get(CONTENTS_KEY) {
        None if entries.is_empty() => {}
        None => return Err(StoreEntryError::new(CONTENTS_KEY, "it is missing")),
        Some(bytes) => {
            let (value, _) = unseal(CONTENTS_KEY, bytes)?;
            if value != contents.value() {
                let count = value.first_chunk().map_or(0, |count| u64::from_le_bytes(*count));
                let cause = format!(
                    "{} records were found, {count} were written, or some of them are older ones",
                    records.len()
                );
                return Err(StoreEntryError::new(CONTENTS_KEY, cause));
            }
        }
    }
    Ok((records, contents))
}

/// Returns whether a key belongs to the store itself, not to a record.
pub fn is_own(key: &str) -> bool {
    key == FORMAT_KEY || key == CONTENTS_KEY
}

/// The list of a store's contents: the checksums of all records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreContents {
    crcs: BTreeMap<String, u32>,
    sum: u64,
}

impl StoreContents {
    /// Returns the bytes to store under [`CONTENTS_KEY`].
    pub fn encode(&self) -> Vec<u8> {
        seal(CONTENTS_KEY, self.value())
    }

    fn value(&self) -> Vec<u8> {
        [(self.crcs.len() as u64).to_le_bytes(), self.sum.to_le_bytes()].concat()
    }

    /// Sets or removes the checksum of a record; returns the previous checksum.
    pub fn set(&mut self, key: &str, crc: Option<u32>) -> Option<u32> {
        let before = match crc {
            Some(crc) => self.crcs.insert(key.into(), crc),
            None => self.crcs.remove(key),
        };
        self.sum += u64::from(crc.unwrap_or(0));
        self.sum -= u64::from(before.unwrap_or(0));
        before
    }
}
