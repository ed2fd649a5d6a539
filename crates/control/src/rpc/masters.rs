//! The calling side of the master, of which there can be several.
//!
//! The address of the master is one `host:port`, or several separated by commas: one of these masters leads, the others
//! stand by and answer [`MasterReply::NotLeader`]. A [`MasterClient`] first asks the master that answered last. If a
//! master that stands by names the leader, the client asks that leader next, even if its address is not on the list;
//! otherwise it asks the next master on the list.
//!
//! *Cluster.* A client that belongs to a cluster ([`MasterClient::join`]) stamps every call with it. A master that
//! leads another cluster, or none, is passed over like one that cannot be reached ([`RpcError::WrongCluster`]).
//!
//! *Repeated* are only requests that cannot have had an effect: those to a master that could not be reached, that
//! stands by, or that leads another cluster. As long as at least one master stands by, some master will soon lead, so
//! the call tries the list again until its deadline. Its caller sees a slow call, or [`RpcError::NoLeader`]. If no
//! master can be reached at all, the call fails after one pass over the list.
//!
//! *Not repeated* are requests that were not answered, or whose connection broke. They have possibly been carried out,
//! so the caller decides: if two masters carried out the same `Close`, they would give the remainder of one block to
//! two sessions. Only the next call begins with another master.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fusee_core::verbs::ClusterId;
use fusee_core::view::View;
use fusee_core::view::update::ViewUpdate;

use super::client::RpcClient;
use super::{DEFAULT_DEADLINE, MasterService, RpcError, Runtime};
use crate::master::{MasterReply, MasterRequest};
use crate::view_pieces::{self, ViewAssembler};

/// The pause before the client tries all addresses of its list of masters again.
const ROUND_PAUSE: Duration = Duration::from_millis(50);
/// Limit of masters asked in one pass, in case masters that stand by name each other as leaders.
const MAX_ASKED: usize = 32;

type One = RpcClient<MasterService>;

/// A client of the master, whichever one leads. Clones share their connections, and know the same leader.
#[derive(Clone)]
pub struct MasterClient {
    masters: Arc<MasterList>,
    deadline: Duration,
    /// The number of the cluster that the client belongs to; 0 for none.
    cluster: Arc<AtomicU64>,
}

struct MasterList {
    /// The list of addresses as the caller gave it.
    addrs: String,
    listed: Vec<One>,
    /// The master to ask first: the one that answered the last call.
    first: Mutex<One>,
    /// The last view that came in pieces. The next session of the process needs the same view.
    long: tokio::sync::Mutex<Option<View>>,
}

impl MasterClient {
    /// Makes a client of the masters at these addresses (`host:port`, separated by commas), which connects when it is
    /// first called.
    pub fn new(runtime: &Runtime, addrs: impl Into<String>) -> MasterClient {
        let addrs = addrs.into();
        let each = addrs.split(',').map(str::trim).filter(|addr| !addr.is_empty());
        let mut listed: Vec<One> = each.map(|addr| RpcClient::new(runtime, addr)).collect();
        if listed.is_empty() {
            // If the given text contains no address, the error of the call shows the text.
            listed.push(RpcClient::new(runtime, addrs.as_str()));
        }
        MasterClient::of(addrs, listed)
    }

    fn of(addrs: String, listed: Vec<One>) -> MasterClient {
        let first = Mutex::new(listed[0].clone());
        let masters = MasterList { addrs, listed, first, long: tokio::sync::Mutex::default() };
        let cluster = Arc::default();
        MasterClient { masters: Arc::new(masters), deadline: DEFAULT_DEADLINE, cluster }
    }

    /// Returns a client over the same connections with another deadline for each call, however many masters that call
    /// asks.
    pub fn with_deadline(&self, deadline: Duration) -> MasterClient {
        MasterClient { deadline, ..self.clone() }
    }

    /// Binds the client to this cluster: from now on it accepts no master that leads another cluster. The binding also
    /// applies to all clones of the client, and to clients made from it.
    pub fn join(&self, cluster: ClusterId) {
        // Relaxed, because no other data is published with the number.
        self.cluster.store(cluster.word(), Ordering::Relaxed);
    }

    /// Returns the cluster that the client belongs to.
    pub fn cluster(&self) -> Option<ClusterId> {
        ClusterId::from_word(self.cluster.load(Ordering::Relaxed))
    }

    /// Returns a client of the same masters over other connections. Inside a process all clients share one connection.
    pub fn with_own_connection(&self) -> MasterClient {
        let listed = self.masters.listed.iter().map(RpcClient::with_own_connection).collect();
        let masters = MasterClient::of(self.masters.addrs.clone(), listed);
        let cluster = Arc::clone(&self.cluster);
        MasterClient { deadline: self.deadline, cluster, ..masters }
    }

    /// Returns the addresses as they were given, or the name of a master in the same process.
    pub fn addr(&self) -> &str {
        &self.masters.addrs
    }

    /// Returns the address of the master that answered last; before the first answer, the first address of the list.
    pub fn answered_by(&self) -> String {
        self.masters.first().addr().to_owned()
    }

    /// Asks masters until a leader has taken the request. Only one master executes the request. Dropping the future
    /// does not take it back.
    pub async fn call(&self, request: MasterRequest) -> Result<MasterReply, RpcError> {
        let masters = Arc::clone(&self.masters);
        let deadline = self.deadline;
        let runtime = self.masters.listed[0].runtime().clone();
        let cluster = self.cluster();
        let calling = runtime.spawn(async move {
            let end = Instant::now() + deadline;
            loop {
                let (one, reply) = masters.call(&request, cluster, end).await?;
                match masters.complete(one, reply, cluster).await {
                    Err(_) if Instant::now() + ROUND_PAUSE < end => {
                        tokio::time::sleep(ROUND_PAUSE).await;
                    }
                    result => return result,
                }
            }
        });
        // Only the end of the runtime can end the task before it is complete.
        calling.await.map_err(|_| RpcError::Closed { addr: self.addr().to_owned() })?
    }

    /// Like [`MasterClient::call`], but blocks the calling thread.
    ///
    /// # Panics
    /// If the calling thread belongs to an async runtime.
    pub fn call_blocking(&self, request: MasterRequest) -> Result<MasterReply, RpcError> {
        self.masters.listed[0].runtime().block_on(self.call(request))
    }
}

impl From<One> for MasterClient {
    /// Makes a client of the only master to which this connection leads, for example of a master in the same process.
    fn from(one: One) -> MasterClient {
        MasterClient::of(one.addr().to_owned(), vec![one])
    }
}

impl fmt::Debug for MasterClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client of the master at {}", self.masters.addrs)
    }
}

impl MasterList {
    async fn call(
        &self,
        request: &MasterRequest,
        cluster: Option<ClusterId>,
        end: Instant,
    ) -> Result<(One, MasterReply), RpcError> {
        loop {
            if let Some(answered) = self.round(request, cluster, end).await? {
                return Ok(answered);
            }
            if Instant::now() + ROUND_PAUSE >= end {
                return Err(RpcError::NoLeader { addr: self.addrs.clone() });
            }
            tokio::time::sleep(ROUND_PAUSE).await;
        }
    }

    /// If an answer contains a stub in place of a long view, fetches the view from this master and puts it into the
    /// answer.
    ///
    /// The fetched view is possibly newer than the answer. Then the answer does not tell which sessions are fenced in
    /// that view. A session that was fenced, recovered and forgotten meanwhile must not learn of that view, because a
    /// memory node that has joined since has not fenced the session. So in that case the answer to a heartbeat is
    /// returned without a view, which the next heartbeat brings, and a session that was just opened is given up.
    async fn complete(
        &self,
        one: One,
        mut reply: MasterReply,
        cluster: Option<ClusterId>,
    ) -> Result<MasterReply, RpcError> {
        let Some(stub) = view_pieces::stub_of(&mut reply).cloned() else { return Ok(reply) };
        let one = one.with_deadline(DEFAULT_DEADLINE).of_cluster(cluster);
        let fetched = self.fetch(&one, &stub).await;
        let failed = |what: &str| RpcError::Protocol { addr: one.addr().into(), what: what.into() };
        let same = match &fetched {
            Ok(view) if view.number == stub.number => Ok(view.clone()),
            Ok(_) => Err(failed("the view has changed while it was fetched")),
            Err(error) => Err(error.clone()),
        };
        match &mut reply {
            MasterReply::Heartbeat { view, .. } => {
                let same = same.inspect_err(|error| tracing::debug!(%error, "a view is left out"));
                *view = same.ok().map(ViewUpdate::from);
            }
            MasterReply::Opened { client, view, .. } => match same {
                Ok(same) => *view = same,
                Err(error) => {
                    let client = *client;
                    let orphans = Vec::new();
                    let work = Default::default();
                    // The master is told of the end, so that it need not count a session that was never used. If the
                    // request is lost, the session expires later.
                    let _told = one.call(MasterRequest::Close { client, orphans, work }).await;
                    return Err(error);
                }
            },
            other => {
                if let Some(stub) = view_pieces::stub_of(other) {
                    *stub = fetched?;
                }
            }
        }
        Ok(reply)
    }

    /// Fetches the view for which a stub stands, or a newer one, from a master.
    async fn fetch(&self, one: &One, stub: &View) -> Result<View, RpcError> {
        let is_it = |view: &&View| (view.cluster, view.number) == (stub.cluster, stub.number);
        let mut long = self.long.lock().await;
        if let Some(view) = long.as_ref().filter(is_it) {
            return Ok(view.clone());
        }
        let mut assembly = ViewAssembler::new(stub.number);
        loop {
            let reply = one.call(assembly.request()).await?;
            let failed =
                |what: &str| RpcError::Protocol { addr: one.addr().into(), what: what.into() };
            if let Some(view) = assembly.take(reply).map_err(failed)? {
                *long = Some(view.clone());
                return Ok(view);
            }
        }
    }

    /// Asks one master after the other until one takes the request, or has possibly taken it. `None` means that some
    /// masters stand by and none leads.
    async fn round(
        &self,
        request: &MasterRequest,
        own: Option<ClusterId>,
        end: Instant,
    ) -> Result<Option<(One, MasterReply)>, RpcError> {
        let mut ahead = self.in_order();
        let mut asked: Vec<String> = Vec::new();
        let mut somebody_stands_by = false;
        let mut obstacle = None;
        let mut stranger = None;
        while let Some(one) = ahead.pop_front() {
            let left = end.saturating_duration_since(Instant::now());
            if asked.len() == MAX_ASKED || (left.is_zero() && !asked.is_empty()) {
                break;
            }
            asked.push(one.addr().to_owned());
            match one.with_deadline(left).of_cluster(own).call(request.clone()).await {
                Ok(MasterReply::NotLeader { leader }) => {
                    somebody_stands_by = true;
                    if let Some(leader) = leader.filter(|leader| !asked.contains(leader)) {
                        let known = ahead.iter().position(|other| other.addr() == leader);
                        let next = known.and_then(|at| ahead.remove(at));
                        ahead.push_front(next.unwrap_or_else(|| one.sibling(leader)));
                    }
                }
                Ok(MasterReply::WrongCluster { cluster: found }) => {
                    let addr = one.addr().to_owned();
                    stranger.get_or_insert(RpcError::WrongCluster { addr, own, found });
                }
                Ok(reply) => {
                    self.ask_first(one.clone());
                    return Ok(Some((one, reply)));
                }
                Err(error) if error.may_take_effect() => {
                    if let Some(next) = ahead.pop_front() {
                        self.ask_first(next);
                    }
                    return Err(error);
                }
                Err(error) => drop(obstacle.get_or_insert(error)),
            }
        }
        // It is useless to wait for a leader if the address leads to a leader of another cluster, or if no master
        // stands by.
        match (stranger, obstacle) {
            (Some(error), _) => Err(error),
            (None, Some(error)) if !somebody_stands_by => Err(error),
            _ => Ok(None),
        }
    }

    /// Returns all masters in the order in which to ask them: the list, rotated so that it begins with the master to
    /// ask first.
    fn in_order(&self) -> VecDeque<One> {
        let first = self.first();
        let mut order: VecDeque<One> = self.listed.iter().cloned().collect();
        match order.iter().position(|one| one.addr() == first.addr()) {
            Some(at) => order.rotate_left(at),
            None => order.push_front(first),
        }
        order
    }

    fn first(&self) -> One {
        self.first.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn ask_first(&self, one: One) {
        *self.first.lock().unwrap_or_else(PoisonError::into_inner) = one;
    }
}
