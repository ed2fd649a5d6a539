//! The election among several masters. Each master stands by until it is elected, leads for a term, and stands by
//! again.
//!
//! A candidate puts its address under an etcd key of its own, which exists as long as the candidate's lease; the
//! candidate with the oldest key leads. The others watch these keys, and tell clients which master leads. To lead means
//! to begin a term in the store, restore the logic from the records, and make decisions. A term ends when the lease is
//! not renewed in time, when the store refuses a write, or when the process stops. Then no request reaches the logic
//! any more, the logic ends without another decision, and replies under way are dropped. The master gives the lease
//! back, so that the next master does not have to wait until the lease ends.
//!
//! After its term the process stands by again: its port answers with the new leader's address, and after a failure of
//! etcd the masters recover by themselves. Nothing of a term is used in the next one: the logic, its queue and the
//! right to write are made anew.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use fusee_control::rpc::Runtime;
use tokio::sync::{oneshot, watch};
use tokio::time::{sleep, timeout};

use crate::lease_validity::LeaseValidity;
use crate::request_router::RequestRouter;
use crate::server::{LogicMessage, MasterStartError, end, finish, join};
use crate::store::address::StoreAddress;
use crate::store::etcd::{ATTEMPT, Candidacy, Etcd, EtcdError, LeaderTerm};
use crate::store::{MasterStore, StoreError};

/// The pause of a candidate after a failure, and between two terms.
const PAUSE: Duration = Duration::from_millis(200);
/// The longest time for which a candidate waits until etcd reports a change; then it reads the candidates again anyway.
const WATCH: Duration = Duration::from_secs(2);
/// The number of times that a candidate renews its lease during one lease.
const RENEWALS_PER_LEASE: u32 = 4;

/// The settings of a candidate in an election.
#[derive(Clone, Debug)]
pub(crate) struct CandidateOptions {
    pub address: StoreAddress,
    /// The address at which other processes reach this master.
    pub advertise: String,
    pub ttl_s: u64,
}

/// The way in which a candidate is told to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CandidateStop {
    /// Stop as soon as no change of the view is under way, if the candidate leads.
    Finish,
    AtOnce,
}

/// A running candidate. Dropping it ends its term, if it leads, and gives its lease back.
#[derive(Debug)]
pub(crate) struct ElectionCandidate {
    stop: watch::Sender<Option<CandidateStop>>,
    thread: Option<JoinHandle<()>>,
}

impl ElectionCandidate {
    /// Starts to stand for election. `lead` starts the logic of a term, and returns its queue and its thread.
    pub fn start<L>(
        runtime: &Runtime,
        platform: CandidateOptions,
        seat: Arc<RequestRouter>,
        lead: L,
    ) -> io::Result<ElectionCandidate>
    where
        L: Fn(MasterStore) -> Result<(Sender<LogicMessage>, JoinHandle<()>), MasterStartError>
            + Send
            + 'static,
    {
        let (stop, stopped) = watch::channel(None);
        let runtime = runtime.clone();
        let campaign =
            ElectionThread { runtime, platform, seat, stopped, lead, leases: Vec::new() };
        let thread = Builder::new().name("fusee-election".into()).spawn(move || campaign.run())?;
        Ok(ElectionCandidate { stop, thread: Some(thread) })
    }

    /// Stops the candidate. If it leads, it first completes the change of the view that is under
    /// way.
    pub fn finish(&mut self) {
        self.stop(CandidateStop::Finish);
    }

    fn stop(&mut self, how: CandidateStop) {
        self.stop.send_replace(Some(how));
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the election panicked");
        }
    }
}

impl Drop for ElectionCandidate {
    fn drop(&mut self) {
        self.stop(CandidateStop::AtOnce);
    }
}

struct ElectionThread<L> {
    runtime: Runtime,
    platform: CandidateOptions,
    seat: Arc<RequestRouter>,
    stopped: watch::Receiver<Option<CandidateStop>>,
    lead: L,
    /// Leases that have not been given back. As long as these leases exist, their candidacies keep other masters from
    /// being elected.
    leases: Vec<i64>,
}

/// A lease that is being renewed. Dropping it ends the renewals, not the lease.
struct LeadershipLease {
    id: i64,
    tenure: Arc<LeaseValidity>,
    renewals: tokio::task::JoinHandle<()>,
}

impl Drop for LeadershipLease {
    fn drop(&mut self) {
        self.renewals.abort();
    }
}

/// The next step of a candidate after its term.
enum AfterTerm {
    Campaign,
    End,
}

impl<L> ElectionThread<L>
where
    L: Fn(MasterStore) -> Result<(Sender<LogicMessage>, JoinHandle<()>), MasterStartError>,
{
    fn run(mut self) {
        let runtime = self.runtime.clone();
        let etcd = match runtime.block_on(Etcd::new(self.platform.address.clone())) {
            Ok(etcd) => etcd,
            Err(error) => return self.give_up(&format!("{}: {error}", self.platform.address)),
        };
        let mut said = String::new();
        loop {
            let mut stopped = self.stopped.clone();
            let elected = runtime.block_on(async {
                tokio::select! {
                    _ = stopped.wait_for(Option::is_some) => None,
                    elected = self.elected(&etcd, &mut said) => Some(elected),
                }
            });
            let Some((lease, candidacy)) = elected else {
                return runtime.block_on(self.stop_standing(&etcd));
            };
            said.clear();
            let next = self.term(&etcd, &lease, candidacy);
            runtime.block_on(self.give_back(&etcd, &lease));
            match next {
                AfterTerm::Campaign => std::thread::sleep(PAUSE),
                AfterTerm::End => return,
            }
        }
    }

    /// Gives all leases back, because this master stops while it stands by.
    async fn stop_standing(&mut self, etcd: &Etcd) {
        if let Err(error) = self.give_all_back(etcd).await {
            tracing::debug!(%error, "the lease is not given back");
        }
    }

    async fn give_all_back(&mut self, etcd: &Etcd) -> Result<(), StoreError> {
        while let Some(id) = self.leases.last() {
            revoke(etcd, *id).await?;
            self.leases.pop();
        }
        Ok(())
    }

    fn give_up(&self, reason: &str) {
        tracing::error!("this master will not lead: {reason}");
        self.seat.end(format!("this master cannot lead: {reason}"));
    }

    /// Stands for election until this master is elected, however long that takes.
    async fn elected(&mut self, etcd: &Etcd, said: &mut String) -> (LeadershipLease, Candidacy) {
        loop {
            let lease = match self.lease(etcd).await {
                Ok(lease) => lease,
                Err(error) => {
                    self.obstacle(&error.to_string(), said).await;
                    continue;
                }
            };
            match self.wait_elected(etcd, &lease, said).await {
                Ok(candidacy) => return (lease, candidacy),
                Err(error) => {
                    self.give_back(etcd, &lease).await;
                    self.obstacle(&error.to_string(), said).await;
                }
            }
        }
    }

    /// Logs an obstacle, unless the last logged obstacle was the same, and pauses.
    async fn obstacle(&self, text: &str, said: &mut String) {
        self.seat.stand_by(None);
        if said != text {
            tracing::warn!("cannot stand for election, trying on: {text}");
            text.clone_into(said);
        }
        sleep(PAUSE).await;
    }

    /// Gives a lease back, and with it the candidacy. If etcd does not confirm this, the lease is given back again
    /// before the next lease is requested.
    async fn give_back(&mut self, etcd: &Etcd, lease: &LeadershipLease) {
        lease.tenure.end();
        match revoke(etcd, lease.id).await {
            Ok(()) => self.leases.retain(|id| *id != lease.id),
            Err(error) => tracing::debug!(%error, "the lease is not given back"),
        }
    }

    async fn lease(&mut self, etcd: &Etcd) -> Result<LeadershipLease, StoreError> {
        self.give_all_back(etcd).await?;
        let asked = LeaseValidity::now();
        let granted = etcd.bounded(etcd.client.grant(self.platform.ttl_s as i64)).await?;
        self.leases.push(granted.id);
        // etcd sometimes gives a longer lease than was asked for, never a shorter one.
        let ttl = Duration::from_secs(granted.ttl_s.unsigned_abs());
        let tenure = Arc::new(LeaseValidity::new(asked, ttl));
        let renewals = tokio::spawn(renew(etcd.clone(), granted.id, Arc::clone(&tenure)));
        Ok(LeadershipLease { id: granted.id, tenure, renewals })
    }

    /// Stands by until no candidate is older than this master. Returns this master's candidacy.
    async fn wait_elected(
        &self,
        etcd: &Etcd,
        lease: &LeadershipLease,
        said: &mut String,
    ) -> Result<Candidacy, StoreError> {
        let key = etcd.enter(lease.id, &self.platform.advertise).await?;
        let lost = |cause: &str| StoreError::Deposed {
            store: etcd.address.to_string(),
            cause: cause.to_owned(),
        };
        loop {
            if !lease.tenure.holds() {
                return Err(lost("the lease has run out while standing by"));
            }
            let (mut candidates, revision) = etcd.candidates().await?;
            if !candidates.iter().any(|candidate| candidate.key == key) {
                return Err(lost("the candidacy is gone"));
            }
            let leader = candidates.swap_remove(0);
            if leader.key == key {
                return Ok(leader);
            }
            let text = format!("{} leads, this master stands by", leader.addr);
            if *said != text {
                tracing::info!("{text}");
                *said = text;
            }
            self.seat.stand_by(Some(leader.addr));
            tokio::select! {
                () = changed(etcd, revision) => {}
                () = lease.tenure.over() => {}
            }
        }
    }

    /// Leads until the term is over.
    fn term(&mut self, etcd: &Etcd, lease: &LeadershipLease, candidacy: Candidacy) -> AfterTerm {
        let runtime = self.runtime.clone();
        let number = candidacy.created;
        let (over, ended) = oneshot::channel();
        let term = LeaderTerm::begin(etcd.clone(), candidacy, Arc::clone(&lease.tenure), over);
        let started = runtime
            .block_on(term)
            .map_err(MasterStartError::from)
            .and_then(|term| (self.lead)(MasterStore::remote(Box::new(term))?));
        let (queue, thread) = match started {
            Ok(started) => started,
            Err(MasterStartError::Store(
                error @ (StoreError::Deposed { .. } | StoreError::Remote { .. }),
            )) => {
                tracing::warn!(%error, "elected, but cannot lead now");
                return AfterTerm::Campaign;
            }
            Err(error) => {
                self.give_up(&error.to_string());
                return AfterTerm::End;
            }
        };
        tracing::info!(term = number, "elected: this master leads");
        self.seat.lead(queue.clone());
        let mut stopped = self.stopped.clone();
        let reason = runtime.block_on(async {
            tokio::select! {
                _ = stopped.wait_for(Option::is_some) => "it stops",
                () = lease.tenure.over() => "its lease has run out",
                _ = ended => "its store failed",
            }
        });
        if *self.stopped.borrow() == Some(CandidateStop::Finish) {
            // The thread ends by itself, at the latest with its term.
            finish(&queue);
            join(thread);
            lease.tenure.end();
            self.seat.stand_by(None);
        } else {
            // From here on the logic makes no decision, neither for messages in the queue nor for later ones.
            lease.tenure.end();
            self.seat.stand_by(None);
            end(&queue, thread);
        }
        tracing::info!(term = number, "this master leads no more: {reason}");
        if self.stopped.borrow().is_some() { AfterTerm::End } else { AfterTerm::Campaign }
    }
}

/// Renews a lease in etcd until it is lost.
async fn renew(etcd: Etcd, id: i64, tenure: Arc<LeaseValidity>) {
    let often = tenure.lease() / RENEWALS_PER_LEASE;
    while tenure.holds() {
        let sent = LeaseValidity::now();
        match timeout(ATTEMPT, etcd.client.keep_alive(id)).await {
            Ok(Ok(())) => {
                tenure.renewed(sent);
                sleep(often.saturating_sub(LeaseValidity::now().saturating_sub(sent))).await;
            }
            Ok(Err(EtcdError::LeaseGone)) => {
                tracing::debug!("the lease is gone");
                tenure.end();
            }
            Ok(Err(error)) => {
                tracing::debug!(%error, "cannot renew the lease");
                sleep(PAUSE / 2).await;
            }
            Err(_) => tracing::debug!("cannot renew the lease: no answer in time"),
        }
    }
}

/// Waits until the list of candidates has possibly changed, at most for [`WATCH`].
async fn changed(etcd: &Etcd, revision: i64) {
    match timeout(WATCH, etcd.client.changed(etcd.key("election/"), revision)).await {
        Ok(Ok(())) | Err(_) => {}
        Ok(Err(error)) => {
            tracing::debug!(%error, "cannot watch the election");
            sleep(PAUSE).await;
        }
    }
}

/// Ends a lease in etcd. Succeeds, too, if the lease has ended already.
pub(crate) async fn revoke(etcd: &Etcd, id: i64) -> Result<(), StoreError> {
    etcd.bounded(etcd.client.revoke(id)).await
}
