//! The format of an export, version 1. All numbers are little-endian; every part ends with its CRC-32C.
//!
//! ```text
//! file   | head | block ... | end |
//!
//! head   | "FUSEEXPT" 8 | version 4 | number 4 | cluster 8 | begun, seconds since 1970 8 | CRC 4 |
//! block  | 1 4 | bytes of the body 4 | body | CRC 4 |
//!   body | bytes of the cursor 4 | cursor | pairs 4 | damaged pairs 4 | pair ... |
//!   pair | bytes of the redundancy 1 | redundancy | bytes of the key 4 | bytes of the value 4 | key | value |
//! end    | 2 4 | 32 4 | pairs 8 | bytes of keys and values 8 | damaged pairs 8 | seconds it took 8 | CRC 4 |
//! ```
//!
//! The last number of each field above is its length in bytes. The *number* orders the exports of a directory. It is 0
//! in an export outside of such a directory, and in files of older versions of the program. The *cursor* is the
//! position of the scan behind the block, as text ([`ScanCursor`]); the last cursor is empty. The *redundancy* is text
//! as on the command line, for example `ec:4+2`, and empty for `replicated`. The CRC of a block also covers the 8 bytes
//! before its body. A file without an end is incomplete: its blocks are good, and the export can be continued.

// Promise API-17: No false, damaged or truncated export is accepted.

use std::io::{self, Read, Seek, SeekFrom, Write};

use fusee_client::{Redundancy, ScanCursor, ScannedPair};

const MAGIC: &[u8; 8] = b"FUSEEXPT";
const VERSION: u32 = 1;
/// Length in bytes of the head, with which an export begins.
pub const HEAD_BYTES: u64 = 36;
pub(crate) const BLOCK: u32 = 1;
const END: u32 = 2;
const END_BYTES: u32 = 32;
/// Length in bytes of an export's last part (the end), including the fields for kind, length and CRC.
const WHOLE_END_BYTES: u64 = 8 + END_BYTES as u64 + 4;
/// Largest length of a block's body in bytes. It has room for the longest possible pair with its other fields.
const MAX_BODY_BYTES: u32 = 32 << 20;
/// Largest number of bytes that one read of an export asks for.
const STEP_BYTES: u64 = 1 << 20;

/// The head of an export: the cluster, and the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportHead {
    /// The identity of the cluster, as a number.
    pub cluster: u64,
    /// The time at which the export began, in seconds since 1970, by the clock of the exporting machine.
    pub begun: u64,
    /// The export's position among the exports of a directory: later exports have higher numbers. 0: not in such a
    /// directory.
    pub number: u32,
}

/// The totals of an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExportTotals {
    /// Number of pairs in the export.
    pub pairs: u64,
    /// Bytes of all keys and values in the export.
    pub bytes: u64,
    /// Number of pairs that are missing because all their replicas were damaged.
    pub damaged: u64,
    /// Duration of the export in seconds.
    pub seconds: u64,
}

impl ExportTotals {
    fn add(&mut self, block: &ExportBlock) {
        self.pairs += block.pairs();
        self.bytes += block.pair_bytes();
        self.damaged += u64::from(block.damaged);
    }
}

/// Errors of reading an export.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The file cannot be read.
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    /// The file does not begin like an export.
    #[error("it is no export of FUSEE")]
    NoExport,
    /// A later version of the program wrote the file.
    #[error("it is an export of version {0}, of which this program knows nothing; use a newer one")]
    Version(u32),
    /// The file has changed after it was written.
    #[error("it is damaged: {what} at byte {at}")]
    Damaged {
        /// The part of the file that has changed.
        what: &'static str,
        /// The offset at which that part begins.
        at: u64,
    },
    /// The file ends too early, because the export was interrupted or the file was cut off.
    #[error("it ends at byte {at}, before the export does; what is there is good")]
    CutOff {
        /// The offset at which the last complete part ends.
        at: u64,
    },
}

/// The pairs of one block, in the format of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExportBlock {
    body: Vec<u8>,
    pairs: u32,
    pair_bytes: u64,
    damaged: u32,
}

impl ExportBlock {
    /// Adds a pair to the block.
    pub fn push(&mut self, pair: &ScannedPair<'_>) {
        let redundancy = match pair.redundancy {
            Redundancy::Replicated => String::new(),
            other => other.to_string(),
        };
        self.body.push(redundancy.len() as u8);
        self.body.extend_from_slice(redundancy.as_bytes());
        self.body.extend_from_slice(&(pair.key.len() as u32).to_le_bytes());
        self.body.extend_from_slice(&(pair.value.len() as u32).to_le_bytes());
        self.body.extend_from_slice(pair.key);
        self.body.extend_from_slice(pair.value);
        self.pairs += 1;
        self.pair_bytes += (pair.key.len() + pair.value.len()) as u64;
    }

    /// Counts pairs that are missing because all their replicas were damaged.
    pub fn add_damaged(&mut self, pairs: u64) {
        self.damaged += pairs as u32;
    }

    /// Returns whether the block has neither pairs nor damaged pairs.
    pub fn is_empty(&self) -> bool {
        self.pairs == 0 && self.damaged == 0
    }

    /// Returns the length of the pairs in the format of the file, in bytes.
    pub fn bytes(&self) -> usize {
        self.body.len()
    }

    /// Returns the number of pairs in the block.
    pub fn pairs(&self) -> u64 {
        self.pairs.into()
    }

    /// Returns the sum of the lengths of all keys and values.
    pub fn pair_bytes(&self) -> u64 {
        self.pair_bytes
    }

    /// Removes all pairs but keeps the allocated memory.
    pub fn clear(&mut self) {
        self.body.clear();
        (self.pairs, self.pair_bytes, self.damaged) = (0, 0, 0);
    }

    /// Returns the pairs in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = ScannedPair<'_>> {
        let mut left = ExportFieldParser(&self.body);
        // A pair that cannot be parsed would end the iteration. [`ExportReader::next`] has checked that all pairs can
        // be parsed.
        std::iter::from_fn(move || left.pair())
    }
}

/// A writer of an export.
pub struct ExportWriter<W> {
    out: W,
    totals: ExportTotals,
}

impl<W: Write> ExportWriter<W> {
    /// Begins an export by writing its head.
    pub fn begin(mut out: W, head: &ExportHead) -> io::Result<ExportWriter<W>> {
        let mut bytes = Vec::with_capacity(HEAD_BYTES as usize);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&head.number.to_le_bytes());
        bytes.extend_from_slice(&head.cluster.to_le_bytes());
        bytes.extend_from_slice(&head.begun.to_le_bytes());
        write_checked(&mut out, &mut bytes)?;
        Ok(ExportWriter { out, totals: ExportTotals::default() })
    }

    /// Continues an export whose blocks have these totals.
    pub fn resume(out: W, totals: ExportTotals) -> ExportWriter<W> {
        ExportWriter { out, totals }
    }

    /// Returns the totals of all blocks so far.
    pub fn totals(&self) -> ExportTotals {
        self.totals
    }

    /// Writes a block. `cursor` is the position of the scan behind the block.
    pub fn block(&mut self, block: &ExportBlock, cursor: &ScanCursor) -> io::Result<()> {
        let cursor = cursor.to_string();
        let body_bytes = 12 + cursor.len() + block.body.len();
        if body_bytes > MAX_BODY_BYTES as usize {
            return Err(io::Error::other("more pairs come together than a block may hold"));
        }
        let mut bytes = Vec::with_capacity(body_bytes + 12);
        bytes.extend_from_slice(&BLOCK.to_le_bytes());
        bytes.extend_from_slice(&(body_bytes as u32).to_le_bytes());
        bytes.extend_from_slice(&(cursor.len() as u32).to_le_bytes());
        bytes.extend_from_slice(cursor.as_bytes());
        bytes.extend_from_slice(&block.pairs.to_le_bytes());
        bytes.extend_from_slice(&block.damaged.to_le_bytes());
        bytes.extend_from_slice(&block.body);
        write_checked(&mut self.out, &mut bytes)?;
        self.totals.add(block);
        Ok(())
    }

    /// Returns the output, without writing an end.
    pub fn into_inner(mut self) -> io::Result<W> {
        self.out.flush()?;
        Ok(self.out)
    }

    /// Writes the last part of the export (the end). Returns the output.
    pub fn end(mut self, seconds: u64) -> io::Result<(W, ExportTotals)> {
        self.totals.seconds = seconds;
        let mut bytes = Vec::with_capacity(44);
        bytes.extend_from_slice(&END.to_le_bytes());
        bytes.extend_from_slice(&END_BYTES.to_le_bytes());
        let ExportTotals { pairs, bytes: pair_bytes, damaged, seconds } = self.totals;
        for number in [pairs, pair_bytes, damaged, seconds] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        write_checked(&mut self.out, &mut bytes)?;
        self.out.flush()?;
        Ok((self.out, self.totals))
    }
}

/// Appends the CRC to a part, and writes the part.
pub(crate) fn write_checked(out: &mut impl Write, bytes: &mut Vec<u8>) -> io::Result<()> {
    let crc = crc32c(bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    out.write_all(bytes)
}

fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// A part of an export after the head.
#[derive(Debug)]
pub enum ExportPart {
    /// A block. Its pairs are now in the caller's [`ExportBlock`]. The cursor is the scan's position behind these
    /// pairs.
    Block(ScanCursor),
    /// The end, with the totals of all blocks before it.
    End(ExportTotals),
}

/// Returns the head of an export whose head and end are good. The blocks are not read.
pub fn head_of_whole(mut input: impl Read + Seek) -> Result<ExportHead, FormatError> {
    let bytes = input.seek(SeekFrom::End(0))?;
    input.rewind()?;
    let head = ExportReader::begin(&mut input)?.head();
    let cut_off = FormatError::CutOff { at: bytes };
    let Some(at) = bytes.checked_sub(WHOLE_END_BYTES).filter(|at| *at >= HEAD_BYTES) else {
        return Err(cut_off);
    };
    input.seek(SeekFrom::Start(at))?;
    let mut end = Vec::new();
    input.take(WHOLE_END_BYTES).read_to_end(&mut end)?;
    let Some((part, crc)) = end.split_last_chunk() else { return Err(cut_off) };
    let starts = part.starts_with(&[END.to_le_bytes(), END_BYTES.to_le_bytes()].concat());
    if starts && *crc == crc32c(part).to_le_bytes() { Ok(head) } else { Err(cut_off) }
}

/// A reader of an export.
pub struct ExportReader<R> {
    input: R,
    head: ExportHead,
    /// The offset at which the last part that was read ends.
    at: u64,
    totals: ExportTotals,
    buffer: Vec<u8>,
}

impl<R: Read> ExportReader<R> {
    /// Begins to read an export by reading the head.
    pub fn begin(mut input: R) -> Result<ExportReader<R>, FormatError> {
        let mut bytes = Vec::new();
        input.by_ref().take(HEAD_BYTES).read_to_end(&mut bytes)?;
        if bytes.get(..8) != Some(MAGIC) {
            return Err(FormatError::NoExport);
        }
        let mut left = ExportFieldParser(&bytes[8..]);
        let numbers = (left.u32(), left.u32(), left.u64(), left.u64(), left.u32());
        let (Some(version), Some(number), Some(cluster), Some(begun), Some(crc)) = numbers else {
            return Err(FormatError::CutOff { at: 0 });
        };
        if version != VERSION {
            return Err(FormatError::Version(version));
        }
        if crc != crc32c(&bytes[..bytes.len() - 4]) {
            return Err(FormatError::Damaged { what: "its head", at: 0 });
        }
        let head = ExportHead { cluster, begun, number };
        let totals = ExportTotals::default();
        Ok(ExportReader { input, head, at: HEAD_BYTES, totals, buffer: bytes })
    }

    /// Returns the head of the export.
    pub fn head(&self) -> ExportHead {
        self.head
    }

    /// Returns the offset at which the last part that was read ends.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Returns the totals of all parts so far.
    pub fn totals(&self) -> ExportTotals {
        self.totals
    }

    /// Reads the next part. If it is a block, its pairs replace those of `block`. Must not be called after the end or
    /// an error.
    pub fn next(&mut self, block: &mut ExportBlock) -> Result<ExportPart, FormatError> {
        let at = self.at;
        let damaged = |what| FormatError::Damaged { what, at };
        self.buffer.clear();
        self.read(8)?;
        let mut start = ExportFieldParser(&self.buffer);
        let kind = start.u32().unwrap_or(0);
        let bytes = start.u32().unwrap_or(0);
        match kind {
            BLOCK if bytes <= MAX_BODY_BYTES => {}
            END if bytes == END_BYTES => {}
            _ => return Err(damaged("the start of a part")),
        }
        self.read(u64::from(bytes) + 4)?;
        let (part, crc) = self.buffer.split_at(self.buffer.len() - 4);
        if crc != crc32c(part).to_le_bytes() {
            return Err(damaged("a part"));
        }
        let mut left = ExportFieldParser(&part[8..]);
        let next = if kind == END {
            let numbers = [left.u64(), left.u64(), left.u64(), left.u64()];
            let [pairs, bytes, damaged_pairs, seconds] = numbers.map(Option::unwrap_or_default);
            let found = ExportTotals { seconds, ..self.totals };
            let totals = ExportTotals { pairs, bytes, damaged: damaged_pairs, seconds };
            if found != totals {
                return Err(damaged("the number of its pairs"));
            }
            self.totals = totals;
            let mut behind = [0];
            if !matches!(self.input.read(&mut behind), Ok(0)) {
                return Err(damaged("what comes behind its end"));
            }
            ExportPart::End(totals)
        } else {
            block.clear();
            let start = left.block().ok_or(damaged("the start of a block"))?;
            let (cursor, pairs, missing) = start;
            block.body.extend_from_slice(left.0);
            // All pairs are parsed once here, so that [`ExportBlock::iter`] needs no checks.
            let mut rest = ExportFieldParser(left.0);
            for _ in 0..pairs {
                let pair = rest.pair().ok_or(damaged("a pair"))?;
                block.pairs += 1;
                block.pair_bytes += (pair.key.len() + pair.value.len()) as u64;
            }
            if !rest.0.is_empty() {
                return Err(damaged("the number of pairs of a block"));
            }
            block.damaged = missing;
            self.totals.add(block);
            ExportPart::Block(cursor)
        };
        self.at += self.buffer.len() as u64;
        Ok(next)
    }

    /// Appends the next `bytes` bytes to the buffer.
    fn read(&mut self, bytes: u64) -> Result<(), FormatError> {
        let mut left = bytes;
        while left > 0 {
            // Memory is allocated step by step, because the file can be shorter than the length that it announces.
            let step = left.min(STEP_BYTES);
            let read = self.input.by_ref().take(step).read_to_end(&mut self.buffer)?;
            if read as u64 != step {
                return Err(FormatError::CutOff { at: self.at });
            }
            left -= step;
        }
        Ok(())
    }
}

/// A parser of fields. It holds the bytes that are not parsed yet.
struct ExportFieldParser<'b>(&'b [u8]);

impl<'b> ExportFieldParser<'b> {
    fn take(&mut self, bytes: usize) -> Option<&'b [u8]> {
        let (taken, left) = self.0.split_at_checked(bytes)?;
        self.0 = left;
        Some(taken)
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    fn block(&mut self) -> Option<(ScanCursor, u32, u32)> {
        let bytes = self.u32()?;
        let cursor = str::from_utf8(self.take(bytes as usize)?).ok()?.parse().ok()?;
        Some((cursor, self.u32()?, self.u32()?))
    }

    fn pair(&mut self) -> Option<ScannedPair<'b>> {
        let bytes = self.take(1)?[0];
        let redundancy = match self.take(bytes.into())? {
            [] => Redundancy::Replicated,
            text => str::from_utf8(text).ok()?.parse().ok()?,
        };
        let key_bytes = self.u32()?;
        let value_bytes = self.u32()?;
        let key = self.take(key_bytes as usize)?;
        let value = self.take(value_bytes as usize)?;
        Some(ScannedPair { key, value, redundancy })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HEAD: ExportHead = ExportHead { cluster: 0x00c0_ffee, begun: 1_800_000_000, number: 0 };

    fn pair<'b>(key: &'b [u8], value: &'b [u8], redundancy: &str) -> ScannedPair<'b> {
        ScannedPair { key, value, redundancy: redundancy.parse().unwrap() }
    }

    /// Returns an export of these pairs, with two pairs in a block.
    fn written(pairs: &[ScannedPair<'_>]) -> Vec<u8> {
        let mut writer = ExportWriter::begin(Vec::new(), &HEAD).unwrap();
        let mut block = ExportBlock::default();
        for two in pairs.chunks(2) {
            block.clear();
            two.iter().for_each(|pair| block.push(pair));
            writer.block(&block, &ScanCursor::start()).unwrap();
        }
        writer.end(7).unwrap().0
    }

    type Pairs = Vec<(Vec<u8>, Vec<u8>, String)>;

    fn read(bytes: &[u8]) -> Result<(Pairs, ExportTotals), FormatError> {
        let mut reader = ExportReader::begin(bytes)?;
        assert_eq!(reader.head(), HEAD);
        let mut block = ExportBlock::default();
        let mut found = Vec::new();
        loop {
            match reader.next(&mut block)? {
                ExportPart::End(totals) => return Ok((found, totals)),
                ExportPart::Block(cursor) => {
                    assert_eq!(cursor, ScanCursor::start());
                    let owned = |pair: ScannedPair<'_>| {
                        (pair.key.to_vec(), pair.value.to_vec(), pair.redundancy.to_string())
                    };
                    found.extend(block.iter().map(owned));
                }
            }
        }
    }

    fn three() -> Vec<u8> {
        written(&[
            pair(b"a", b"1", "replicated"),
            pair(b"picture", &[7; 5000], "ec:4+2"),
            pair(b"cache", b"", "none"),
        ])
    }

    #[test]
    fn what_is_written_is_read() {
        let (pairs, totals) = read(&three()).unwrap();
        let of = |key: &str, value: &[u8], redundancy: &str| {
            (key.as_bytes().to_vec(), value.to_vec(), redundancy.to_string())
        };
        let expected = [
            of("a", b"1", "replicated"),
            of("picture", &[7; 5000], "ec:4+2"),
            of("cache", b"", "none"),
        ];
        assert_eq!(pairs, expected);
        assert_eq!(totals, ExportTotals { pairs: 3, bytes: 5014, damaged: 0, seconds: 7 });
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let good = three();
        for at in (0..good.len()).step_by(13).chain(0..120).chain(good.len() - 60..good.len()) {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                let error = read(&bad).expect_err(&format!("byte {at}, bit {bit}"));
                assert!(!matches!(error, FormatError::Io(_)), "byte {at}: {error}");
            }
        }
    }

    #[test]
    fn a_file_that_was_cut_off_says_up_to_where_it_is_good() {
        let good = three();
        let mut reader = ExportReader::begin(&good[..]).unwrap();
        reader.next(&mut ExportBlock::default()).unwrap();
        let second = reader.at();
        for bytes in 0..good.len() as u64 {
            let error = read(&good[..bytes as usize]).unwrap_err();
            match error {
                FormatError::NoExport => assert!(bytes < 8, "{bytes}"),
                FormatError::CutOff { at } => {
                    assert!(at <= bytes && (bytes < second || at >= second), "{bytes}: {at}");
                }
                other => panic!("{bytes}: {other}"),
            }
        }
    }

    #[test]
    fn other_files_are_told() {
        assert!(matches!(read(b""), Err(FormatError::NoExport)));
        assert!(matches!(read(b"not an export at all"), Err(FormatError::NoExport)));
        assert!(matches!(read(&[three(), vec![0]].concat()), Err(FormatError::Damaged { .. })));
        assert!(matches!(read(&[three(), three()].concat()), Err(FormatError::Damaged { .. })));
        let mut later = three();
        later[8] = 2;
        assert!(matches!(read(&later), Err(FormatError::Version(2))));
        // The length of this block exceeds the largest possible one.
        let mut writer = ExportWriter::begin(Vec::new(), &HEAD).unwrap();
        writer.out.extend_from_slice(&BLOCK.to_le_bytes());
        writer.out.extend_from_slice(&u32::MAX.to_le_bytes());
        assert!(matches!(read(&writer.out), Err(FormatError::Damaged { at: HEAD_BYTES, .. })));
    }

    proptest! {
        #[test]
        fn whatever_comes_is_refused_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut file = ExportWriter::begin(Vec::new(), &HEAD).unwrap().out;
            file.extend_from_slice(&bytes);
            prop_assert!(read(&file).is_err());
        }

        /// The body has a correct CRC, so the reader parses its content.
        #[test]
        fn whatever_a_block_holds_is_checked(body in proptest::collection::vec(any::<u8>(), 0..100)) {
            let mut writer = ExportWriter::begin(Vec::new(), &HEAD).unwrap();
            let mut block = BLOCK.to_le_bytes().to_vec();
            block.extend_from_slice(&(body.len() as u32).to_le_bytes());
            block.extend_from_slice(&body);
            write_checked(&mut writer.out, &mut block).unwrap();
            let mut reader = ExportReader::begin(&writer.out[..]).unwrap();
            let mut block = ExportBlock::default();
            if reader.next(&mut block).is_ok() {
                prop_assert_eq!(block.iter().count() as u64, block.pairs());
            }
        }
    }
}
