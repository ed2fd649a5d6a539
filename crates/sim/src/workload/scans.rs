//! Scans with tiny pieces, which several sessions can continue one after the other.

use std::collections::BTreeMap;
use std::rc::Rc;

use fusee_core::store::{ScanCursor, ScanLimits, ScannedPair};

use super::{
    CallOutcome, HistoryAnswer, HistoryCall, HistoryOperation, HistoryRecord, SimWorkload, decode,
    outcome_of,
};
use crate::environment::SimSession;
use crate::rng::Rng;

/// A scan that has not ended.
pub(super) struct WorkloadScan {
    cursor: ScanCursor,
    begun: u64,
    /// The keys that pieces have shown so far, each with the time at which the latest piece with the key began.
    shown: BTreeMap<usize, u64>,
}

impl WorkloadScan {
    pub fn new(begun: u64) -> WorkloadScan {
        WorkloadScan { cursor: ScanCursor::start(), begun, shown: BTreeMap::new() }
    }
}

impl SimWorkload {
    /// Returns a waiting scan in half of the calls, if one waits.
    pub(super) fn handed_scan(&self, rng: &Rng) -> Option<WorkloadScan> {
        let mut handed = self.handed.borrow_mut();
        if handed.is_empty() || rng.one_in(2) {
            return None;
        }
        handed.pop()
    }

    /// Continues a scan piece by piece. The scan is sometimes handed on before its end, and always after an error, to a
    /// session that possibly knows an older or a newer view.
    ///
    /// Every pair of a piece is checked as the answer of a SEARCH during the piece. If no piece shows a key, a SEARCH
    /// at some moment of the scan must find the key absent. If two pieces show a key, a SEARCH at some moment between
    /// these pieces must find the key absent.
    pub(super) async fn scan(
        &self,
        rng: &Rng,
        session: &Rc<SimSession>,
        mut scan: WorkloadScan,
    ) -> CallOutcome {
        self.invoked.set(self.invoked.get() + 1);
        while !scan.cursor.is_done() {
            let piece_begun = self.now();
            let mut pairs: Vec<(usize, HistoryAnswer)> = Vec::new();
            let show = |pair: ScannedPair<'_>| {
                let key = self.keys.iter().position(|key| key == pair.key);
                let key = key.unwrap_or_else(|| panic!("nobody has written {:?}", pair.key));
                pairs.push((key, decode(Some(pair.value))));
            };
            let bytes = rng.pick(&[0, 1 << 10, 1 << 12, 2 << 20]);
            let limits = ScanLimits { slots: 1 + rng.below(12) as u32, bytes };
            match session.scan(&mut scan.cursor, limits, show).await {
                Ok(damaged) => assert_eq!(damaged, 0, "another replica is left"),
                Err(error) => {
                    self.hand_on(scan);
                    return outcome_of(session, error).1;
                }
            }
            for (key, answer) in pairs {
                self.searched(session, key, piece_begun, answer);
                if let Some(before) = scan.shown.insert(key, piece_begun) {
                    self.searched(session, key, before, HistoryAnswer::Absent);
                }
            }
            if rng.one_in(4) {
                self.hand_on(scan);
                return CallOutcome::Well;
            }
        }
        for key in (0..self.keys.len()).filter(|key| !scan.shown.contains_key(key)) {
            self.searched(session, key, scan.begun, HistoryAnswer::Absent);
        }
        CallOutcome::Well
    }

    /// Hands a scan on as text, as a client that stores the cursor would.
    fn hand_on(&self, scan: WorkloadScan) {
        let cursor = scan.cursor.to_string().parse().expect("a cursor wrote it");
        self.handed.borrow_mut().push(WorkloadScan { cursor, ..scan });
    }

    fn searched(&self, session: &SimSession, key: usize, invoked: u64, answer: HistoryAnswer) {
        let returned = Some((self.now(), answer));
        let operation = HistoryOperation { call: HistoryCall::Search, invoked, returned };
        let record = HistoryRecord { key: key as u64, client: session.id().0, operation };
        self.history.borrow_mut().push(Some(record));
    }
}
