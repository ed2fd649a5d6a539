//! Exports: a scan of all pairs, written block by block.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::thread;
use std::time::Duration;

use fusee_client::{BlockingClient, ScanCursor, ScanError};

use crate::format::{
    ExportBlock, ExportHead, ExportPart, ExportReader, ExportTotals, ExportWriter, FormatError,
};

/// Size at which a block is written, in bytes.
const BLOCK_BYTES: usize = 1 << 20;
/// Number of retries of one step of the scan, and the pause before each retry.
const ATTEMPTS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(250);

/// Errors of an export.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The cluster does not answer. Everything written is good, and the export can be continued.
    #[error(transparent)]
    Store(#[from] ScanError),
    /// The output cannot be written.
    #[error("cannot be written: {0}")]
    Write(#[source] io::Error),
    /// The existing file is no export that can be continued.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The existing file is an export of another cluster.
    #[error("it is of cluster {0:016x}, and not of this one")]
    OtherCluster(u64),
}

/// A running export.
pub struct Exporter<W> {
    writer: ExportWriter<W>,
    cursor: ScanCursor,
    block: ExportBlock,
}

impl<W: Write> Exporter<W> {
    /// Begins an export.
    pub fn begin(out: W, head: &ExportHead) -> Result<Exporter<W>, ExportError> {
        let writer = ExportWriter::begin(out, head).map_err(ExportError::Write)?;
        Ok(Exporter { writer, cursor: ScanCursor::start(), block: ExportBlock::default() })
    }

    /// Adds the pairs that one step of the scan finds. Returns whether more steps follow.
    pub fn step(&mut self, client: &BlockingClient) -> Result<bool, ExportError> {
        if self.cursor.is_done() {
            return Ok(false);
        }
        let mut attempts = 0;
        let damaged = loop {
            let block = &mut self.block;
            match client.scan(&mut self.cursor, |pair| block.push(&pair)) {
                Ok(damaged) => break damaged,
                // If the session was lost, the next attempt uses a new session.
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

    /// Writes the pairs that are not written yet, so that the export can be continued behind them. Returns the output.
    pub fn pause(mut self) -> Result<W, ExportError> {
        if !self.block.is_empty() {
            self.write()?;
        }
        self.writer.into_inner().map_err(ExportError::Write)
    }

    /// Ends the export, which took `seconds` seconds. Returns the output and the totals.
    ///
    /// # Panics
    /// If the scan is not done.
    pub fn end(self, seconds: u64) -> Result<(W, ExportTotals), ExportError> {
        assert!(self.cursor.is_done(), "the scan goes on");
        self.writer.end(seconds).map_err(ExportError::Write)
    }

    /// Returns the totals of the pairs that the export contains so far.
    pub fn totals(&self) -> ExportTotals {
        let ExportTotals { pairs, bytes, damaged, seconds } = self.writer.totals();
        let pairs = pairs + self.block.pairs();
        let bytes = bytes + self.block.pair_bytes();
        ExportTotals { pairs, bytes, damaged, seconds }
    }

    /// Returns the part of the hash space that the scan has covered, from 0 to 1.
    pub fn progress(&self) -> f64 {
        self.cursor.progress()
    }
}

/// An interrupted export that has been opened again.
pub enum ResumedExport {
    /// The export lacks pairs, and can be continued.
    Part(Exporter<File>),
    /// The export is complete. The fields are its file and its totals.
    Whole(File, ExportTotals),
}

impl Exporter<File> {
    /// Opens an interrupted export of this cluster, to continue behind its last good block, and cuts off the rest of
    /// the file. Also returns the export's head.
    pub fn resume(
        mut file: File,
        cluster: u64,
    ) -> Result<(ResumedExport, ExportHead), ExportError> {
        let mut reader = ExportReader::begin(io::BufReader::new(&file))?;
        let head = reader.head();
        if head.cluster != cluster {
            return Err(ExportError::OtherCluster(head.cluster));
        }
        let mut cursor = ScanCursor::start();
        let mut block = ExportBlock::default();
        let end = loop {
            match reader.next(&mut block) {
                Ok(ExportPart::Block(behind)) => cursor = behind,
                Ok(ExportPart::End(totals)) => break Some(totals),
                // An incomplete last part is normal, for example after a crash of the machine, so the export continues
                // before it.
                Err(FormatError::CutOff { .. } | FormatError::Damaged { .. }) => break None,
                Err(error) => return Err(error.into()),
            }
        };
        let at = reader.at();
        let totals = reader.totals();
        drop(reader);
        // Any bytes left behind the last good part would follow the blocks that are written next, and damage the
        // export.
        file.set_len(at).map_err(ExportError::Write)?;
        if let Some(totals) = end {
            return Ok((ResumedExport::Whole(file, totals), head));
        }
        file.seek(SeekFrom::Start(at)).map_err(ExportError::Write)?;
        block.clear();
        let export = Exporter { writer: ExportWriter::resume(file, totals), cursor, block };
        Ok((ResumedExport::Part(export), head))
    }
}
