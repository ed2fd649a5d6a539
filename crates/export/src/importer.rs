//! Imports, which write the pairs of an export into a cluster.

use std::thread;
use std::time::Duration;

use fusee_client::{
    BatchWrite, BlockingClient, PutOptions, Redundancy, RedundancyError, RedundancyRules,
    WriteError,
};

use crate::format::ExportBlock;

/// Number of retries of one pair, and the pause before each retry.
const ATTEMPTS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(250);

/// The treatment of pairs whose keys exist in the cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExistingPairs {
    /// Keys that exist get the value of the export.
    #[default]
    Replaced,
    /// Keys that exist keep their value.
    Kept,
}

/// The origin of imported pairs' redundancy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeptOnImport {
    /// Pairs keep the redundancy of the export, if the cluster has enough memory nodes for it.
    #[default]
    Redundancy,
    /// Pairs get the redundancy that the cluster's rules give.
    Nothing,
}

/// The settings of an import.
#[derive(Clone, Debug)]
pub struct Importer {
    /// The treatment of pairs whose keys exist in the cluster.
    pub existing: ExistingPairs,
    /// The origin of imported pairs' redundancy.
    pub kept: KeptOnImport,
    /// The cluster's default rules of redundancy.
    pub rules: RedundancyRules,
}

/// The totals of an import so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImportTotals {
    /// Number of pairs that the import has written.
    pub written: u64,
    /// Bytes of these pairs' keys and values.
    pub bytes: u64,
    /// Number of pairs whose keys existed, and which therefore kept their value in the cluster.
    pub existed: u64,
    /// Number of pairs that got the redundancy of the cluster's rules, because the cluster has too few memory nodes for
    /// theirs.
    pub by_rules: u64,
}

/// The error of a pair that could not be written.
#[derive(Debug, thiserror::Error)]
#[error("the pair of key {}: {error}", key.escape_ascii())]
pub struct ImportError {
    /// The pair's key.
    pub key: Vec<u8>,
    /// The reason of the failure.
    #[source]
    pub error: WriteError,
}

/// A key with its value.
type ImportPair<'b> = (&'b [u8], &'b [u8]);

impl Importer {
    /// Writes the pairs of a block. After an error the caller can pass the same block again, which repeats the writes.
    pub fn block(
        &self,
        client: &BlockingClient,
        block: &ExportBlock,
        imported: &mut ImportTotals,
    ) -> Result<(), ImportError> {
        let mut by_rules = Vec::new();
        for pair in block.iter() {
            let as_ruled = self.rules.of(pair.value.len()) == pair.redundancy;
            if self.kept == KeptOnImport::Nothing || as_ruled {
                by_rules.push((pair.key, pair.value));
                continue;
            }
            // Pairs are written in the order of the block, because a key can occur twice, and its later pair is newer.
            self.write_many(client, &by_rules, imported)?;
            by_rules.clear();
            self.write_named(client, (pair.key, pair.value), pair.redundancy, imported)?;
        }
        self.write_many(client, &by_rules, imported)
    }

    /// Returns the options of a write that names no redundancy.
    fn options(&self) -> PutOptions {
        match self.existing {
            ExistingPairs::Replaced => PutOptions::default(),
            ExistingPairs::Kept => PutOptions::default().if_absent(),
        }
    }

    fn write_many(
        &self,
        client: &BlockingClient,
        pairs: &[ImportPair<'_>],
        imported: &mut ImportTotals,
    ) -> Result<(), ImportError> {
        let writes: Vec<BatchWrite<'_>> =
            pairs.iter().map(|pair| BatchWrite::put_with(pair.0, pair.1, self.options())).collect();
        let outcomes = client.write_many(&writes);
        for (pair, outcome) in pairs.iter().zip(outcomes) {
            let write = || client.put_with(pair.0, pair.1, self.options());
            self.account(*pair, outcome, write, imported)?;
        }
        Ok(())
    }

    fn write_named(
        &self,
        client: &BlockingClient,
        pair: ImportPair<'_>,
        redundancy: Redundancy,
        imported: &mut ImportTotals,
    ) -> Result<(), ImportError> {
        let write = || client.put_with(pair.0, pair.1, self.options().with_redundancy(redundancy));
        let outcome = write();
        if let Err(WriteError::Redundancy(RedundancyError::TooFewNodes { .. })) = outcome {
            self.write_many(client, &[pair], imported)?;
            imported.by_rules += 1;
            return Ok(());
        }
        self.account(pair, outcome, write, imported)
    }

    /// Counts the result of a write. If the write failed and a retry can help, repeats it up to [`ATTEMPTS`] times.
    fn account(
        &self,
        (key, value): ImportPair<'_>,
        outcome: Result<(), WriteError>,
        write: impl Fn() -> Result<(), WriteError>,
        imported: &mut ImportTotals,
    ) -> Result<(), ImportError> {
        let mut outcome = outcome;
        let mut attempts = 0;
        loop {
            match outcome {
                Ok(()) => {
                    imported.written += 1;
                    imported.bytes += (key.len() + value.len()) as u64;
                    return Ok(());
                }
                Err(WriteError::AlreadyExists) if self.existing == ExistingPairs::Kept => {
                    imported.existed += 1;
                    return Ok(());
                }
                Err(error) if attempts == ATTEMPTS || !may_pass(&error) => {
                    return Err(ImportError { key: key.to_vec(), error });
                }
                Err(_) => attempts += 1,
            }
            thread::sleep(PAUSE);
            outcome = write();
        }
    }
}

/// Returns whether a later retry, possibly by another session, can succeed.
fn may_pass(error: &WriteError) -> bool {
    matches!(
        error,
        WriteError::Unreachable { .. }
            | WriteError::Expelled { .. }
            | WriteError::Interrupted { .. }
            | WriteError::GaveUp { .. }
            | WriteError::Allocation { .. }
            | WriteError::NoSession { .. }
    )
}
