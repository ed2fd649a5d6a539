//! Reports of recoveries of crashed clients, as text and JSON, with the parts of the paper's Table 1.
//!
//! The master measures the parts in microseconds. Reports have milliseconds, as the paper has. The time before the
//! first part is not included: in it the crash is noticed, and the client is fenced at all memory nodes. Clients that
//! are recovered together share the first two parts, and each report shows their whole duration.

use std::fmt::Write as _;

use fusee_control::master::{ClientRecovery, RecoveryTimes};
use serde::Serialize;

/// Durations of the parts of a recovery, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct RecoveryTimesMs {
    /// Time to fence the client once more at all memory nodes.
    pub reconnect_ms: f64,
    /// Time to ask the master for the client's blocks.
    pub metadata_ms: f64,
    /// Time to read the client's logs, and to complete the operations that the logs show as unfinished.
    pub log_ms: f64,
    /// Time to make the replicas of the block tables equal.
    pub repair_ms: f64,
    /// Time to free the blocks that the client never used.
    pub free_lists_ms: f64,
    /// Sum of the times of all parts.
    pub total_ms: f64,
}

impl From<RecoveryTimes> for RecoveryTimesMs {
    fn from(times: RecoveryTimes) -> RecoveryTimesMs {
        let RecoveryTimes { reconnect_us, metadata_us, log_us, repair_us, free_lists_us } = times;
        let ms = |us: u64| us as f64 / 1000.0;
        RecoveryTimesMs {
            reconnect_ms: ms(reconnect_us),
            metadata_ms: ms(metadata_us),
            log_ms: ms(log_us),
            repair_ms: ms(repair_us),
            free_lists_ms: ms(free_lists_us),
            total_ms: ms(reconnect_us + metadata_us + log_us + repair_us + free_lists_us),
        }
    }
}

/// The recovery of a crashed client.
#[derive(Clone, Debug, Serialize)]
pub struct RecoveryReport {
    /// The client's id.
    pub client: String,
    /// Number of blocks that the client owned.
    pub blocks: u64,
    /// Number of these blocks that were freed.
    pub freed: u64,
    /// Number of these blocks whose unused rest became available to other sessions.
    pub orphans: u64,
    /// Number of objects that the logs contain.
    pub walked: u64,
    /// Number of writes that were completed.
    pub committed: u64,
    /// Number of writes that were withdrawn.
    pub withdrawn: u64,
    /// Number of slots and objects in a state that no correct client leaves.
    pub strange: u64,
    /// Durations of the parts of the recovery.
    #[serde(flatten)]
    pub parts: RecoveryTimesMs,
}

impl From<&ClientRecovery> for RecoveryReport {
    fn from(recovery: &ClientRecovery) -> RecoveryReport {
        RecoveryReport {
            client: recovery.client.to_string(),
            blocks: recovery.blocks,
            freed: recovery.freed,
            orphans: recovery.orphans,
            walked: recovery.walked,
            committed: recovery.committed,
            withdrawn: recovery.withdrawn,
            strange: recovery.strange,
            parts: recovery.times.into(),
        }
    }
}

/// Returns a table with a line for each recovery, with times in milliseconds.
pub fn table(recoveries: &[RecoveryReport]) -> String {
    let mut text = format!(
        "{:<8}{:>10}{:>10}{:>10}{:>8}{:>12}{:>10}{:>8}{:>7}{:>8}{:>11}{:>11}{:>9}\n",
        "client",
        "reconnect",
        "metadata",
        "log walk",
        "repair",
        "free lists",
        "total ms",
        "blocks",
        "freed",
        "walked",
        "completed",
        "withdrawn",
        "strange"
    );
    for recovery in recoveries {
        let parts = recovery.parts;
        let _ = writeln!(
            text,
            "{:<8}{:>10.2}{:>10.2}{:>10.2}{:>8.2}{:>12.2}{:>10.2}{:>8}{:>7}{:>8}{:>11}{:>11}{:>9}",
            recovery.client,
            parts.reconnect_ms,
            parts.metadata_ms,
            parts.log_ms,
            parts.repair_ms,
            parts.free_lists_ms,
            parts.total_ms,
            recovery.blocks,
            recovery.freed,
            recovery.walked,
            recovery.committed,
            recovery.withdrawn,
            recovery.strange
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use fusee_client::ClientId;

    use super::*;

    #[test]
    fn the_parts_add_up() {
        let times = RecoveryTimes {
            reconnect_us: 1000,
            metadata_us: 200,
            log_us: 30,
            repair_us: 4000,
            free_lists_us: 5,
        };
        let recovery = ClientRecovery {
            client: ClientId(7),
            blocks: 2,
            freed: 1,
            orphans: 1,
            walked: 1001,
            committed: 1,
            withdrawn: 0,
            strange: 0,
            times,
        };
        let report = RecoveryReport::from(&recovery);
        assert_eq!((report.parts.log_ms, report.parts.total_ms), (0.03, 5.235));
        let table = table(&[report]);
        let line = table.lines().nth(1).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words[1..8], ["1.00", "0.20", "0.03", "4.00", "0.01", "5.24", "2"], "{line}");
    }
}
