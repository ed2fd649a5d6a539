//! The bytes of a store's entries: checked before they are believed.
//!
//! ```text
//! key          value
//! format       "fusee-master 11"            | crc 4 |
//! contents     | count 8 | sum 8 |          | crc 4 |
//! others       a record in postcard bytes   | crc 4 |
//! ```
//!
//! Numbers are little-endian. Each CRC-32C covers the value before it, and the key. So a record that is not
//! what was written is noticed, and one that stands under another's key. `contents` says how many records
//! there are, and the sum of their CRCs: it is written together with them, so a record that is missing is
//! noticed, and one that came back.

use std::collections::BTreeMap;

use fusee_core::layout::crc32c;

use crate::record::Record;

/// The key of the format's name.
pub const FORMAT_KEY: &str = "format";
/// The key of [`Contents`].
pub const CONTENTS_KEY: &str = "contents";
/// The name of this layout.
///
/// 7: records have checksums.
pub const FORMAT: &str = "fusee-master 11";
/// What the names of all layouts begin with, also of those without checksums.
const FORMATS: &str = "fusee-master ";

const CRC_BYTES: usize = 4;

/// Why an entry is not believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsound {
    /// Its key.
    pub record: String,
    /// What was found.
    pub cause: String,
}

impl Unsound {
    fn new(record: &str, cause: impl ToString) -> Unsound {
        Unsound { record: record.into(), cause: cause.to_string() }
    }
}

/// Whose format an entry of the key `format` names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Format {
    /// This program's.
    This,
    /// Another version's.
    Other(String),
}

fn crc(key: &str, value: &[u8]) -> u32 {
    crc32c(&[value, key.as_bytes()].concat())
}

/// A value as it is stored under a key.
pub fn seal(key: &str, mut value: Vec<u8>) -> Vec<u8> {
    let crc = crc(key, &value);
    value.extend(crc.to_le_bytes());
    value
}

/// The value in what is stored under a key, and its checksum.
pub fn unseal<'a>(key: &str, bytes: &'a [u8]) -> Result<(&'a [u8], u32), Unsound> {
    let Some((value, stored)) = bytes.split_last_chunk::<CRC_BYTES>() else {
        return Err(Unsound::new(key, format!("it has {} bytes", bytes.len())));
    };
    let stored = u32::from_le_bytes(*stored);
    let found = crc(key, value);
    if stored != found {
        let cause = format!("its checksum is {found:08x}, where {stored:08x} was written");
        return Err(Unsound::new(key, cause));
    }
    Ok((value, found))
}

/// What is stored under [`FORMAT_KEY`].
pub fn format() -> Vec<u8> {
    seal(FORMAT_KEY, FORMAT.into())
}

/// Reads what [`format()`] wrote, or an earlier version, which wrote the name alone.
pub fn read_format(bytes: &[u8]) -> Result<Format, Unsound> {
    let is_number = |rest: &str| !rest.is_empty() && rest.bytes().all(|c| c.is_ascii_digit());
    let is_name = |name: &&str| name.strip_prefix(FORMATS).is_some_and(is_number);
    if let Some(older) = std::str::from_utf8(bytes).ok().filter(is_name) {
        return Ok(Format::Other(older.into()));
    }
    match String::from_utf8_lossy(unseal(FORMAT_KEY, bytes)?.0) {
        name if name == FORMAT => Ok(Format::This),
        name => Ok(Format::Other(name.into())),
    }
}

/// A record's key, and what is stored under it.
pub fn encode(record: &Record) -> (String, Vec<u8>) {
    let key = record.key();
    let value = postcard::to_stdvec(record).expect("records are plain data");
    let bytes = seal(&key, value);
    (key, bytes)
}

/// The record that is stored under a key.
pub fn decode(key: &str, bytes: &[u8]) -> Result<Record, Unsound> {
    let (value, _) = unseal(key, bytes)?;
    match postcard::take_from_bytes::<Record>(value) {
        Ok((record, [])) if record.key() == key => Ok(record),
        Ok((record, [])) => Err(Unsound::new(key, format!("it is a record of {}", record.key()))),
        Ok((_, rest)) => Err(Unsound::new(key, format!("{} bytes too many", rest.len()))),
        Err(error) => Err(Unsound::new(key, error)),
    }
}

/// All records of a store, and what they are together. Of a store that has none, not even [`Contents`],
/// too: nothing was ever written to it.
pub fn decode_all(entries: &BTreeMap<String, Vec<u8>>) -> Result<(Vec<Record>, Contents), Unsound> {
    let mut contents = Contents::default();
    let mut records = Vec::with_capacity(entries.len());
    for (key, bytes) in entries.iter().filter(|(key, _)| !is_own(key)) {
        let (_, crc) = unseal(key, bytes)?;
        records.push(decode(key, bytes)?);
        contents.set(key, Some(crc));
    }
    match entries.get(CONTENTS_KEY) {
        None if entries.is_empty() => {}
        None => return Err(Unsound::new(CONTENTS_KEY, "it is missing")),
        Some(bytes) => {
            let (value, _) = unseal(CONTENTS_KEY, bytes)?;
            if value != contents.value() {
                let count = value.first_chunk().map_or(0, |count| u64::from_le_bytes(*count));
                let cause = format!(
                    "{} records were found, {count} were written, or some of them are older ones",
                    records.len()
                );
                return Err(Unsound::new(CONTENTS_KEY, cause));
            }
        }
    }
    Ok((records, contents))
}

/// Whether a key is the store's own, and no record's.
pub fn is_own(key: &str) -> bool {
    key == FORMAT_KEY || key == CONTENTS_KEY
}

/// Which records there are, by their checksums.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    crcs: BTreeMap<String, u32>,
    sum: u64,
}

impl Contents {
    /// What is stored under [`CONTENTS_KEY`].
    pub fn encode(&self) -> Vec<u8> {
        seal(CONTENTS_KEY, self.value())
    }

    fn value(&self) -> Vec<u8> {
        [(self.crcs.len() as u64).to_le_bytes(), self.sum.to_le_bytes()].concat()
    }

    /// Notes the checksum of a record, or that it is removed; returns what was noted before.
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
