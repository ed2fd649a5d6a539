//! Records in etcd, and who may write them.
//!
//! ```text
//! PREFIX/election/LEASE   the address of a candidate; gone with its lease; the oldest one leads
//! PREFIX/format           the number of this layout, with its checksum
//! PREFIX/written          TERM/N: the N-th write of the term that began with revision TERM
//! PREFIX/record/KEY       a record, with its checksum, as in a file
//! ```
//!
//! *The guard.* Every write is one transaction on two conditions: the candidate's key exists with
//! the revision of its creation (so it still leads: etcd has removed the key, once its lease has
//! run out, before anybody else could be elected), and `written` is what this term wrote last.
//!
//! *Lost answers.* A transaction without an answer is sent again until the tenure is over. The
//! second condition makes that safe: a copy that arrives late finds `written` changed, so nothing
//! is written twice and nothing old over something new. If the first copy did arrive, the second
//! one fails, and reads that `written` is already what it wants.
//!
//! *Limits.* etcd takes 128 operations in a transaction, so larger writes are nested; and requests
//! of 1.5 MiB (`--max-request-bytes`), which a view of some 50,000 subtables would need.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use etcd_client::{
    Client, Compare, CompareOp, ConnectOptions, Error, GetOptions, KvClient, PutOptions, SortOrder,
    SortTarget, Txn, TxnOp, TxnOpResponse,
};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::address::{StoreAddress, StoreTls};
use super::sealed::{self, Format};
use super::{Remote, StoreError, damaged};
use crate::tenure::Tenure;

/// How long to wait for one answer.
pub(crate) const ATTEMPT: Duration = Duration::from_secs(1);
/// How long to wait before the next attempt.
const PAUSE: Duration = Duration::from_millis(50);
/// Operations at one level of a transaction; etcd counts all levels that lead to one, up to 128.
const OPERATIONS: usize = 60;
/// Records read at a time.
const PAGE: i64 = 256;
/// The longest answer: a page of records, one of which is the view.
const MAX_ANSWER_BYTES: usize = 256 << 20;

/// A connection to etcd, made when it is needed and again after it broke.
#[derive(Clone)]
pub(crate) struct Etcd {
    pub client: Client,
    pub address: StoreAddress,
}

/// A candidate's key.
#[derive(Clone, Debug)]
pub(crate) struct Candidacy {
    pub key: String,
    /// The revision of its creation; no other key ever has it.
    pub created: i64,
    /// The address of the candidate.
    pub addr: String,
}

impl Etcd {
    /// Does not speak to anybody yet; must be called on a runtime.
    pub async fn new(address: StoreAddress) -> Result<Etcd, Error> {
        let options = ConnectOptions::new()
            .with_connect_timeout(ATTEMPT)
            .with_keep_alive(ATTEMPT, ATTEMPT)
            .with_keep_alive_while_idle(true)
            // A member that is cut off from the others must not be trusted with leases.
            .with_require_leader(true);
        let options = match &address.tls {
            None => options,
            Some(files) => with_tls(options, files)?,
        };
        let client = Client::connect(&address.endpoints, Some(options)).await?;
        Ok(Etcd { client, address })
    }

    pub fn key(&self, rest: &str) -> String {
        format!("{}/{rest}", self.address.prefix)
    }

    fn kv(&self) -> KvClient {
        self.client.kv_client().max_decoding_message_size(MAX_ANSWER_BYTES)
    }

    /// Enters the election under a lease; may be repeated.
    pub async fn enter(&self, lease: i64, addr: &str) -> Result<String, StoreError> {
        let key = self.key(&format!("election/{lease:016x}"));
        let new = Compare::create_revision(key.clone(), CompareOp::Equal, 0);
        let put = TxnOp::put(key.clone(), addr, Some(PutOptions::new().with_lease(lease)));
        let txn = Txn::new().when([new]).and_then([put]);
        self.bounded(self.kv().txn(txn)).await?;
        Ok(key)
    }

    /// Who is in the election, the leader first, and the revision of that picture.
    pub async fn candidates(&self) -> Result<(Vec<Candidacy>, i64), StoreError> {
        let options = GetOptions::new().with_prefix();
        let options = options.with_sort(SortTarget::Create, SortOrder::Ascend);
        let found = self.bounded(self.kv().get(self.key("election/"), Some(options))).await?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let candidates = found.kvs().iter().map(|kv| Candidacy {
            key: text(kv.key()),
            created: kv.create_revision(),
            addr: text(kv.value()),
        });
        let revision = found.header().map_or(0, |header| header.revision());
        Ok((candidates.collect(), revision))
    }

    /// Waits for an answer, not for ever.
    pub async fn bounded<T>(
        &self,
        answer: impl Future<Output = Result<T, Error>>,
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

    /// Refuses a prefix that something else uses; says whether it is empty.
    async fn check_format(&self) -> Result<bool, StoreError> {
        let found = self.bounded(self.kv().get(self.key("format"), None)).await?;
        if let Some(kv) = found.kvs().first() {
            let name = self.address.to_string();
            return match sealed::read_format(kv.value()).map_err(|error| damaged(&name, error))? {
                Format::This => Ok(false),
                Format::Other(found) => Err(self.unusable(format!(
                    "it was written in the format {found:?}, this program knows {:?}; use the \
                     version that wrote it",
                    sealed::FORMAT
                ))),
            };
        }
        let options = GetOptions::new().with_prefix().with_count_only();
        let found = self.bounded(self.kv().get(self.key("record/"), Some(options))).await?;
        if found.count() > 0 {
            return Err(self.unusable("there are keys, but no format; choose another prefix"));
        }
        Ok(true)
    }

    async fn records(&self) -> Result<BTreeMap<String, Vec<u8>>, StoreError> {
        let prefix = self.key("record/");
        // The byte after the slash ends the range.
        let end = self.key("record0");
        let (mut records, mut revision) = (BTreeMap::new(), 0);
        let mut from = prefix.clone().into_bytes();
        loop {
            let options = GetOptions::new().with_range(end.as_str()).with_limit(PAGE);
            let options = options.with_revision(revision);
            let mut page = self.bounded(self.kv().get(from, Some(options))).await?;
            if revision == 0 {
                // All pages are of one moment.
                revision = page.header().map_or(0, |header| header.revision());
            }
            for kv in page.take_kvs() {
                let (key, value) = kv.into_key_value();
                let key = String::from_utf8_lossy(&key[prefix.len()..]).into_owned();
                records.insert(key, value);
            }
            match records.last_key_value() {
                Some((last, _)) if page.more() => {
                    from = format!("{prefix}{last}\0").into_bytes();
                }
                _ => return Ok(records),
            }
        }
    }
}

/// The right to write.
pub(crate) struct Term {
    etcd: Etcd,
    handle: Handle,
    candidacy: Candidacy,
    tenure: Arc<Tenure>,
    /// Writes so far.
    writes: u64,
    /// Dropped with the term, which is how the candidate learns that the logic has ended.
    _over: oneshot::Sender<()>,
}

impl std::fmt::Debug for Term {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "term {} in {}", self.candidacy.created, self.etcd.address)
    }
}

impl Term {
    /// Begins the term of the candidate with the oldest key.
    pub async fn begin(
        etcd: Etcd,
        candidacy: Candidacy,
        tenure: Arc<Tenure>,
        over: oneshot::Sender<()>,
    ) -> Result<Term, StoreError> {
        let is_new = etcd.check_format().await?;
        let handle = Handle::current();
        let term = Term { etcd, handle, candidacy, tenure, writes: 0, _over: over };
        let written = term.etcd.key("written");
        let before = term.etcd.bounded(term.etcd.kv().get(written.as_str(), None)).await?;
        let before = before.kvs().first().map_or(0, |kv| kv.mod_revision());
        // Once, for the same reason as every other write: a late copy would set `written` back, and
        // late copies of the term's first writes would find what they expect.
        let once = Compare::mod_revision(written.as_str(), CompareOp::Equal, before);
        let mut first = vec![TxnOp::put(written, term.written(0), None)];
        if is_new {
            first.push(TxnOp::put(term.etcd.key("format"), sealed::format(), None));
        }
        let txn = Txn::new().when([term.leads(), once]).and_then(first);
        let begun = term.etcd.bounded(term.etcd.kv().txn(txn)).await?;
        if begun.succeeded() { Ok(term) } else { Err(term.etcd.deposed("its lease has run out")) }
    }

    /// The value of `written` after so many writes.
    fn written(&self, writes: u64) -> String {
        format!("{}/{writes}", self.candidacy.created)
    }

    fn leads(&self) -> Compare {
        let Candidacy { key, created, .. } = &self.candidacy;
        Compare::create_revision(key.as_str(), CompareOp::Equal, *created)
    }

    fn transaction(&self, entries: Vec<(String, Option<Vec<u8>>)>) -> Txn {
        let written = self.etcd.key("written");
        let in_order =
            Compare::value(written.as_str(), CompareOp::Equal, self.written(self.writes));
        let operation = |(key, bytes): (String, Option<Vec<u8>>)| {
            let key = self.etcd.key(&format!("record/{key}"));
            match bytes {
                Some(bytes) => TxnOp::put(key, bytes, None),
                None => TxnOp::delete(key, None),
            }
        };
        let mut operations: Vec<TxnOp> = entries.into_iter().map(operation).collect();
        operations.push(TxnOp::put(written.as_str(), self.written(self.writes + 1), None));
        while operations.len() > OPERATIONS {
            let nested = operations.chunks(OPERATIONS);
            operations =
                nested.map(|some| TxnOp::txn(Txn::new().and_then(some.to_vec()))).collect();
        }
        let look = [TxnOp::get(self.candidacy.key.as_str(), None), TxnOp::get(written, None)];
        Txn::new().when([self.leads(), in_order]).and_then(operations).or_else(look)
    }

    /// Of a transaction that was not carried out: whether an earlier copy of it was.
    fn is_done(&self, answers: &[TxnOpResponse]) -> bool {
        let [TxnOpResponse::Get(leader), TxnOpResponse::Get(written)] = answers else {
            return false;
        };
        let leads = leader.kvs().first().map(|kv| kv.create_revision());
        let value = written.kvs().first().map(|kv| kv.value());
        leads == Some(self.candidacy.created)
            && value == Some(self.written(self.writes + 1).as_bytes())
    }

    async fn commit(&mut self, transaction: Txn) -> Result<(), StoreError> {
        let begun = Instant::now();
        let mut cause = String::from("its lease has run out");
        while self.tenure.holds() {
            match timeout(ATTEMPT, self.etcd.kv().txn(transaction.clone())).await {
                Ok(Ok(answer)) if answer.succeeded() || self.is_done(&answer.op_responses()) => {
                    self.writes += 1;
                    return Ok(());
                }
                Ok(Ok(_)) => return Err(self.etcd.deposed("another master writes")),
                Ok(Err(error)) if is_hopeless(&error) => {
                    return Err(self.etcd.failed(format!(
                        "{error}; if a request is too large, start etcd with a larger \
                         --max-request-bytes"
                    )));
                }
                Ok(Err(error)) => cause = error.to_string(),
                Err(_) => cause = "no answer in time".into(),
            }
            // The lease may well be renewed while writes fail, for example for want of room.
            if begun.elapsed() > self.tenure.lease() {
                return Err(self.etcd.failed(cause));
            }
            sleep(PAUSE).await;
        }
        Err(self.etcd.deposed(cause))
    }
}

impl Remote for Term {
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

/// Reaches members over TLS.
#[cfg(feature = "tls")]
fn with_tls(options: ConnectOptions, files: &StoreTls) -> Result<ConnectOptions, Error> {
    use etcd_client::{Certificate, Identity, TlsOptions};
    let tls = TlsOptions::new().ca_certificate(Certificate::from_pem(std::fs::read(&files.ca)?));
    let tls = match &files.identity {
        None => tls,
        Some((cert, key)) => {
            tls.identity(Identity::from_pem(std::fs::read(cert)?, std::fs::read(key)?))
        }
    };
    Ok(options.with_tls(tls))
}

#[cfg(not(feature = "tls"))]
fn with_tls(_: ConnectOptions, _: &StoreTls) -> Result<ConnectOptions, Error> {
    Err(Error::InvalidArgs(fusee_tls::TlsError::NotBuilt.to_string()))
}

/// Whether a request cannot be taken however often it is sent: gRPC's INVALID_ARGUMENT, and of
/// RESOURCE_EXHAUSTED what is about the request itself.
fn is_hopeless(error: &Error) -> bool {
    let Error::GRpcStatus(status) = error else { return false };
    match i32::from(status.code()) {
        3 => true,
        8 => status.message().contains("larger than max"),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
