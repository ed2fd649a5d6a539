//! Exports: a scan, written down block by block.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::thread;
use std::time::Duration;

use fusee_client::{Client, Error, ScanCursor};

use crate::format::{Block, FormatError, Head, Part, Reader, Totals, Writer};

/// A block is written as soon as it is so long.
const BLOCK_BYTES: usize = 1 << 20;
/// How often a piece of the scan is tried, by another session if need be, and how long between.
const ATTEMPTS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(250);

/// Why an export does not go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The cluster does not answer. What was written is good, and can be gone on with.
    #[error(transparent)]
    Store(#[from] Error),
    /// What it is written to takes no more.
    #[error("cannot be written: {0}")]
    Write(#[source] io::Error),
    /// What there is of it cannot be gone on with.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// It is of another cluster.
    #[error("it is of cluster {0:016x}, and not of this one")]
    OtherCluster(u64),
}

/// An export that is under way.
pub struct Export<W> {
    writer: Writer<W>,
    cursor: ScanCursor,
    block: Block,
}

impl<W: Write> Export<W> {
    /// Begins one.
    pub fn begin(out: W, head: &Head) -> Result<Export<W>, ExportError> {
        let writer = Writer::begin(out, head).map_err(ExportError::Write)?;
        Ok(Export { writer, cursor: ScanCursor::start(), block: Block::default() })
    }

    /// Adds the pairs of one piece of the scan. Returns whether there are more.
    pub fn step(&mut self, client: &Client) -> Result<bool, ExportError> {
        if self.cursor.is_done() {
            return Ok(false);
        }
        let mut attempts = 0;
        let damaged = loop {
            let block = &mut self.block;
            match client.scan(&mut self.cursor, |pair| block.push(&pair)) {
                Ok(damaged) => break damaged,
                // A session that is lost has been replaced by the next call.
                Err(error) if attempts == ATTEMPTS => return Err(error.into()),
                Err(_) => attempts += 1,
            }
            thread::sleep(PAUSE);
        };
        self.block.add_damaged(damaged);
        let is_done = self.cursor.is_done();
        if self.block.bytes() >= BLOCK_BYTES || (is_done && !self.block.is_empty()) {
            self.write()?;
        }
        Ok(!is_done)
    }

    fn write(&mut self) -> Result<(), ExportError> {
        self.writer.block(&self.block, &self.cursor).map_err(ExportError::Write)?;
        self.block.clear();
        Ok(())
    }

    /// Writes what there is, so that it can be gone on with from here.
    pub fn pause(mut self) -> Result<W, ExportError> {
        if !self.block.is_empty() {
            self.write()?;
        }
        self.writer.into_inner().map_err(ExportError::Write)
    }

    /// Ends it, so many seconds after its beginning. Returns what it was written to.
    ///
    /// # Panics
    /// If there are more pairs.
    pub fn end(self, seconds: u64) -> Result<(W, Totals), ExportError> {
        assert!(self.cursor.is_done(), "the scan goes on");
        self.writer.end(seconds).map_err(ExportError::Write)
    }

    /// What it holds so far.
    pub fn totals(&self) -> Totals {
        let Totals { pairs, bytes, damaged, seconds } = self.writer.totals();
        let pairs = pairs + self.block.pairs();
        let bytes = bytes + self.block.pair_bytes();
        Totals { pairs, bytes, damaged, seconds }
    }

    /// How much of the hash space is done, from 0 to 1.
    pub fn progress(&self) -> f64 {
        self.cursor.progress()
    }
}

/// What there is of an export that was interrupted.
pub enum Resumed {
    /// All up to here; it goes on.
    Part(Export<File>),
    /// All of it: what it was written to, and what it holds.
    Whole(File, Totals),
}

impl Export<File> {
    /// Goes on with one that was interrupted, of this cluster, behind the last block that is whole; what comes after
    /// that is cut off. Also says when it was begun.
    pub fn resume(mut file: File, cluster: u64) -> Result<(Resumed, Head), ExportError> {
        let mut reader = Reader::begin(io::BufReader::new(&file))?;
        let head = reader.head();
        if head.cluster != cluster {
            return Err(ExportError::OtherCluster(head.cluster));
        }
        let mut cursor = ScanCursor::start();
        let mut block = Block::default();
        let end = loop {
            match reader.next(&mut block) {
                Ok(Part::Block(behind)) => cursor = behind,
                Ok(Part::End(totals)) => break Some(totals),
                // The last part may have been written when the machine stopped.
                Err(FormatError::CutOff { .. } | FormatError::Damaged { .. }) => break None,
                Err(error) => return Err(error.into()),
            }
        };
        let at = reader.at();
        let totals = reader.totals();
        drop(reader);
        // Blocks behind one that is not whole are of another time than what is written now.
        file.set_len(at).map_err(ExportError::Write)?;
        if let Some(totals) = end {
            return Ok((Resumed::Whole(file, totals), head));
        }
        file.seek(SeekFrom::Start(at)).map_err(ExportError::Write)?;
        block.clear();
        let export = Export { writer: Writer::resume(file, totals), cursor, block };
        Ok((Resumed::Part(export), head))
    }
}
