//! Records in etcd, and the right to write them.
//!
//! ```text
//! PREFIX/election/LEASE   the address of a candidate; gone with its lease; the oldest one leads
//! PREFIX/format           the number of this layout, with its checksum
//! PREFIX/written          TERM/N: the N-th write of the term that began with revision TERM
//! PREFIX/record/KEY       a record, with its checksum, as in a file
//! ```
//!
//! *Conditions.* Every write is one transaction with two conditions. First, the candidate's key exists with the
//! revision of its creation, so the candidate still leads: when its lease has run out, etcd removes the key before
//! another master can be elected. Second, `written` has the value of this term's last write.
//!
//! *Lost answers.* A transaction without an answer is sent again until the lease has ended. The second condition makes
//! that safe: a copy that arrives late finds that `written` has changed, so no write happens twice, and no old value
//! replaces a new one. If the first copy did arrive, the second one fails; it then reads that `written` already has the
//! value that it would set.
//!
//! *Limits.* etcd takes 128 operations in a transaction, so larger writes are nested. By default it takes requests of
//! up to 1.5 MiB (`--max-request-bytes`), which a view of some 50,000 subtables would reach.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use self::client::{EtcdClient, end_of};
use self::messages::{
    Compare, CompareOperand, RangeRequest, RangeResponse, RequestOp, ResponseOp, SortOrder,
    SortTarget, TxnRequest,
};
use super::address::StoreAddress;
use super::entry_format::{self, StoreFormat};
use super::{RemoteStore, StoreError, damaged};
use crate::lease_validity::LeaseValidity;

mod client;
mod messages;

pub(crate) use self::client::EtcdError;

/// The longest wait for one answer of etcd.
pub(crate) const ATTEMPT: Duration = Duration::from_secs(1);
/// The pause before the next attempt to call etcd.
const PAUSE: Duration = Duration::from_millis(50);
/// The limit on operations at one level of a transaction. etcd adds up the operations at all levels on the path to one,
/// and allows 128.
const OPERATIONS: usize = 60;
/// The number of records that one request to etcd reads.
const PAGE: i64 = 256;

/// A connection to etcd, which is made when it is needed, and again after it has broken.
#[derive(Clone)]
pub(crate) struct Etcd {
    pub client: EtcdClient,
    pub address: StoreAddress,
}

/// A candidate's key in the election.
#[derive(Clone, Debug)]
pub(crate) struct Candidacy {
    pub key: String,
    /// The revision at which the key was created; no other key ever has this revision.
    pub created: i64,
    /// The address of the candidate.
    pub addr: String,
}

impl Etcd {
    /// Makes the connection, without contacting etcd yet. The function is async only because it has to be called on a
    /// runtime.
    pub async fn new(address: StoreAddress) -> Result<Etcd, EtcdError> {
        Ok(Etcd { client: EtcdClient::new(&address)?, address })
    }

    pub fn key(&self, rest: &str) -> String {
        format!("{}/{rest}", self.address.prefix)
    }

    async fn range(&self, request: RangeRequest) -> Result<RangeResponse, StoreError> {
        self.bounded(self.client.range(request)).await
    }

    /// Reads one key of etcd.
    async fn get(&self, key: String) -> Result<RangeResponse, StoreError> {
        self.range(RangeRequest { key: key.into_bytes(), ..RangeRequest::default() }).await
    }

    /// Enters the election under a lease. Returns the candidate's key. Repeating this changes nothing.
    pub async fn enter(&self, lease: i64, addr: &str) -> Result<String, StoreError> {
        let key = self.key(&format!("election/{lease:016x}"));
        let new = Compare::equal(key.clone(), CompareOperand::CreateRevision(0));
        let put = RequestOp::put_leased(key.clone(), addr, lease);
        let txn = TxnRequest { compare: vec![new], success: vec![put], failure: Vec::new() };
        self.bounded(self.client.txn(txn)).await?;
        Ok(key)
    }

    /// Returns the candidates, the leader first, and the revision at which they were read.
    pub async fn candidates(&self) -> Result<(Vec<Candidacy>, i64), StoreError> {
        let prefix = self.key("election/");
        let oldest_first = RangeRequest {
            range_end: end_of(&prefix),
            key: prefix.into_bytes(),
            sort_order: SortOrder::Ascend.into(),
            sort_target: SortTarget::CreateRevision.into(),
            ..RangeRequest::default()
        };
        let found = self.range(oldest_first).await?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let candidates = found.kvs.iter().map(|kv| Candidacy {
            key: text(&kv.key),
            created: kv.create_revision,
            addr: text(&kv.value),
        });
        let revision = found.header.map_or(0, |header| header.revision);
        Ok((candidates.collect(), revision))
    }

    /// Waits for an answer of etcd, at most for [`ATTEMPT`].
    pub async fn bounded<T>(
        &self,
        answer: impl Future<Output = Result<T, EtcdError>>,
    ) -> Result<T, StoreError> {
        match timeout(ATTEMPT, answer).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(self.failed(error.to_string())),
            Err(_) => Err(self.failed("no answer in time")),
        }
    }

    fn failed(&self, cause: impl Into<String>) -> StoreError {
        StoreError::Remote { store: self.address.to_string(), cause: cause.into() }
    }

    fn unusable(&self, cause: impl Into<String>) -> StoreError {
        StoreError::Unusable { store: self.address.to_string(), cause: cause.into() }
    }

    fn deposed(&self, cause: impl Into<String>) -> StoreError {
        StoreError::Deposed { store: self.address.to_string(), cause: cause.into() }
    }

    /// Refuses a prefix that another program or version uses; returns whether the prefix has no keys yet.
    async fn check_format(&self) -> Result<bool, StoreError> {
        let found = self.get(self.key("format")).await?;
        if let Some(kv) = found.kvs.first() {
            let name = self.address.to_string();
            return match entry_format::read_format(&kv.value)
                .map_err(|error| damaged(&name, error))?
            {
                StoreFormat::This => Ok(false),
                StoreFormat::Other(found) => Err(self.unusable(format!(
                    "it was written in the format {found:?}, this program knows {:?}; use the \
                     version that wrote it",
                    entry_format::FORMAT
                ))),
            };
        }
        // Candidates come and go before the store has a format, so only the keys before and behind the candidates' keys
        // are counted.
        let candidates = self.key("election/");
        let around = [
            (self.key("").into_bytes(), candidates.clone().into_bytes()),
            (end_of(&candidates), end_of(&self.key(""))),
        ];
        for (key, range_end) in around {
            let count =
                RangeRequest { key, range_end, count_only: true, ..RangeRequest::default() };
            if self.range(count).await?.count > 0 {
                return Err(self.unusable("there are keys, but no format; choose another prefix"));
            }
        }
        Ok(true)
    }

    async fn records(&self) -> Result<BTreeMap<String, Vec<u8>>, StoreError> {
        let prefix = self.key("record/");
        let mut records = BTreeMap::new();
        let mut revision = 0;
        let mut from = prefix.clone().into_bytes();
        loop {
            let request = RangeRequest {
                key: from,
                range_end: end_of(&prefix),
                limit: PAGE,
                revision,
                ..RangeRequest::default()
            };
            let page = self.range(request).await?;
            if revision == 0 {
                // All pages of records are read at one revision.
                revision = page.header.map_or(0, |header| header.revision);
            }
            for kv in page.kvs {
                let key = String::from_utf8_lossy(&kv.key[prefix.len()..]).into_owned();
                records.insert(key, kv.value);
            }
            match records.last_key_value() {
                Some((last, _)) if page.more => {
                    from = format!("{prefix}{last}\0").into_bytes();
                }
                _ => return Ok(records),
            }
        }
    }
}

/// A term: the right of one elected master to write.
pub(crate) struct LeaderTerm {
    etcd: Etcd,
    handle: Handle,
    candidacy: Candidacy,
    tenure: Arc<LeaseValidity>,
    /// The number of writes that the term has made so far.
    writes: u64,
    /// Dropped with the term. The drop tells the candidate that the logic has ended.
    _over: oneshot::Sender<()>,
}

impl std::fmt::Debug for LeaderTerm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "term {} in {}", self.candidacy.created, self.etcd.address)
    }
}

impl LeaderTerm {
    /// Begins the term of the candidate with the oldest key.
    pub async fn begin(
        etcd: Etcd,
        candidacy: Candidacy,
        tenure: Arc<LeaseValidity>,
        over: oneshot::Sender<()>,
    ) -> Result<LeaderTerm, StoreError> {
        let is_new = etcd.check_format().await?;
        let handle = Handle::current();
        let term = LeaderTerm { etcd, handle, candidacy, tenure, writes: 0, _over: over };
        let written = term.etcd.key("written");
        let before = term.etcd.get(written.clone()).await?;
        let before = before.kvs.first().map_or(0, |kv| kv.mod_revision);
        // This transaction takes effect only once, like every other write. Otherwise a late copy would set `written`
        // back, and then late copies of the term's first writes would find the value that they expect.
        let once = Compare::equal(written.clone(), CompareOperand::ModRevision(before));
        let mut success = vec![RequestOp::put(written, term.written(0))];
        if is_new {
            success.push(RequestOp::put(term.etcd.key("format"), entry_format::format()));
        }
        let compare = vec![term.leads(), once];
        let txn = TxnRequest { compare, success, failure: Vec::new() };
        let begun = term.etcd.bounded(term.etcd.client.txn(txn)).await?;
        if begun.succeeded { Ok(term) } else { Err(term.etcd.deposed("its lease has run out")) }
    }

    /// Returns the value of `written` after this number of writes.
    fn written(&self, writes: u64) -> String {
        format!("{}/{writes}", self.candidacy.created)
    }

    fn leads(&self) -> Compare {
        let Candidacy { key, created, .. } = &self.candidacy;
        Compare::equal(key.as_str(), CompareOperand::CreateRevision(*created))
    }

    fn transaction(&self, entries: Vec<(String, Option<Vec<u8>>)>) -> TxnRequest {
        let written = self.etcd.key("written");
        let in_order = CompareOperand::Value(self.written(self.writes).into_bytes());
        let in_order = Compare::equal(written.as_str(), in_order);
        let operation = |(key, bytes): (String, Option<Vec<u8>>)| {
            let key = self.etcd.key(&format!("record/{key}"));
            match bytes {
                Some(bytes) => RequestOp::put(key, bytes),
                None => RequestOp::delete(key),
            }
        };
        let mut success: Vec<RequestOp> = entries.into_iter().map(operation).collect();
        success.push(RequestOp::put(written.as_str(), self.written(self.writes + 1)));
        while success.len() > OPERATIONS {
            let nested = success.chunks(OPERATIONS);
            success = nested.map(|some| RequestOp::all(some.to_vec())).collect();
        }
        let look = vec![RequestOp::get(self.candidacy.key.as_str()), RequestOp::get(written)];
        TxnRequest { compare: vec![self.leads(), in_order], success, failure: look }
    }

    /// Returns whether an earlier copy of a transaction took effect, from the answers to a copy that did not.
    fn is_done(&self, answers: &[ResponseOp]) -> bool {
        let [ResponseOp { range: Some(leader) }, ResponseOp { range: Some(written) }] = answers
        else {
            return false;
        };
        let leads = leader.kvs.first().map(|kv| kv.create_revision);
        let value = written.kvs.first().map(|kv| kv.value.as_slice());
        leads == Some(self.candidacy.created)
            && value == Some(self.written(self.writes + 1).as_bytes())
    }

    async fn commit(&mut self, transaction: TxnRequest) -> Result<(), StoreError> {
        let begun = LeaseValidity::now();
        let mut cause = String::from("its lease has run out");
        while self.tenure.holds() {
            match timeout(ATTEMPT, self.etcd.client.txn(transaction.clone())).await {
                Ok(Ok(answer)) if answer.succeeded || self.is_done(&answer.responses) => {
                    self.writes += 1;
                    return Ok(());
                }
                Ok(Ok(_)) => return Err(self.etcd.deposed("another master writes")),
                Ok(Err(error)) if error.is_hopeless() => {
                    return Err(self.etcd.failed(format!(
                        "{error}; if a request is too large, start etcd with a larger \
                         --max-request-bytes"
                    )));
                }
                Ok(Err(error)) => cause = error.to_string(),
                Err(_) => cause = "no answer in time".into(),
            }
            // The lease can be renewed while writes fail, for example when etcd has no room, so the wait has a bound of
            // its own.
            if LeaseValidity::now().saturating_sub(begun) > self.tenure.lease() {
                return Err(self.etcd.failed(cause));
            }
            sleep(PAUSE).await;
        }
        Err(self.etcd.deposed(cause))
    }
}

impl RemoteStore for LeaderTerm {
    fn name(&self) -> String {
        self.etcd.address.to_string()
    }

    fn read(&self) -> Result<BTreeMap<String, Vec<u8>>, StoreError> {
        self.handle.block_on(self.etcd.records())
    }

    fn write(&mut self, entries: Vec<(String, Option<Vec<u8>>)>) -> Result<(), StoreError> {
        let transaction = self.transaction(entries);
        let handle = self.handle.clone();
        handle.block_on(self.commit(transaction))
    }

    fn holds(&self) -> bool {
        self.tenure.holds()
    }
}

#[cfg(test)]
mod tests;
