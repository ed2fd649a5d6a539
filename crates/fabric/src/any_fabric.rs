//! A session's fabric of any kind, and the calls by which an executor drives the fabric's I/O.
//!
//! The kind is chosen at run time, and each kind has its own type of future. Still, no future is boxed: the future of a
//! batch is an enum, like the fabric. A session uses one kind of fabric for all its nodes.
//!
//! # Driving
//!
//! Batches over TCP and verbs make progress in [`AnyFabric::turn`] only. An executor polls its ready tasks, then
//! calls `turn`. Waking [`AnyFabric::waker`] ends a `turn` that sleeps. An executor passes that waker to its tasks;
//! other threads can use it too. Over shared memory batches make progress without `turn`, which only sleeps.

use std::fmt;
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use fusee_auth::{Keyring, NodeKey};
use fusee_core::verbs::{ClientId, Fabric, MnId, VerbBatch};
use fusee_core::view::Member;
use fusee_tls::TlsSettings;

use crate::driver::{self, DriverOptions};
use crate::error::{AttachCause, AttachError};
use crate::hello::ContinueFn;
use crate::shm::{self, ShmBatchFuture, ShmFabric, ShmLocalNode};
use crate::tcp::{self, TcpFabric};
use crate::verbs::{self, NicCounts, VerbsFabric};

/// The kinds of fabrics between sessions and memory nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FabricKind {
    /// Shared memory. The session runs on the memory node's host.
    Shm,
    /// TCP. The session can run on any host.
    Tcp,
    /// RDMA. Session and memory node both have NICs for RDMA.
    Verbs,
}

impl fmt::Display for FabricKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FabricKind::Shm => "shm",
            FabricKind::Tcp => "tcp",
            FabricKind::Verbs => "verbs",
        })
    }
}

/// The error for a name that no kind of fabric has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown fabric {0:?}; there are shm, tcp and verbs")]
pub struct UnknownFabric(pub String);

impl FromStr for FabricKind {
    type Err = UnknownFabric;

    fn from_str(name: &str) -> Result<FabricKind, UnknownFabric> {
        match name {
            "shm" => Ok(FabricKind::Shm),
            "tcp" => Ok(FabricKind::Tcp),
            "verbs" => Ok(FabricKind::Verbs),
            _ => Err(UnknownFabric(name.into())),
        }
    }
}

/// The location of a switch that steers a session's READs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SwitchLocation {
    /// The switch listens at this host and port. Over TCP, sessions connect to the switch instead of the memory
    /// nodes.
    Address(String),
    /// The switch is on the wires between NICs, where sessions do not see it.
    Wire,
}

impl SwitchLocation {
    /// Returns the kind of fabric that the switch serves.
    pub fn fabric(&self) -> FabricKind {
        match self {
            SwitchLocation::Address(_) => FabricKind::Tcp,
            SwitchLocation::Wire => FabricKind::Verbs,
        }
    }
}

/// Parses `wire`, or host and port.
impl From<&str> for SwitchLocation {
    fn from(at: &str) -> SwitchLocation {
        match at {
            "wire" => SwitchLocation::Wire,
            address => SwitchLocation::Address(address.into()),
        }
    }
}

impl From<String> for SwitchLocation {
    fn from(at: String) -> SwitchLocation {
        at.as_str().into()
    }
}

/// Lets a thread sleep until this parker's waker is used.
#[derive(Debug, Default)]
pub struct Parker {
    woken: Mutex<bool>,
    changed: Condvar,
}

impl Parker {
    fn park(&self, max_wait: Option<Duration>) {
        let woken = self.woken.lock().unwrap_or_else(PoisonError::into_inner);
        let asleep = |woken: &mut bool| !*woken;
        let mut woken = match max_wait {
            None => self.changed.wait_while(woken, asleep).unwrap_or_else(PoisonError::into_inner),
            Some(wait) => {
                let woken = self.changed.wait_timeout_while(woken, wait, asleep);
                woken.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        *woken = false;
    }
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        *self.woken.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_one();
    }
}

/// A session's fabric, of any kind.
#[derive(Debug)]
pub enum AnyFabric {
    /// Shared memory, and the parker in which the session's thread sleeps.
    Shm(ShmFabric, Arc<Parker>),
    /// TCP, with the session's connections.
    Tcp(TcpFabric),
    /// RDMA, with the session's queue pairs.
    Verbs(VerbsFabric),
}

/// Opens a session with all of these memory nodes. Fails at the first node that it cannot attach to.
///
/// Over shared memory, a node that runs in this process is found by its identity, without a socket.
pub fn attach_all(
    kind: FabricKind,
    client: ClientId,
    members: &[Member],
) -> Result<AnyFabric, AttachError> {
    attach_all_with(AttachOptions::plain(kind), client, members, &|| true)
}

/// Opens a session like [`attach_all`], over the fabric that the switch serves. The switch is allowed to steer
/// READs.
pub fn attach_all_through(
    switch: &SwitchLocation,
    client: ClientId,
    members: &[Member],
) -> Result<AnyFabric, AttachError> {
    let way = AttachOptions { switch: Some(switch), ..AttachOptions::plain(switch.fabric()) };
    attach_all_with(way, client, members, &|| true)
}

/// The route and the credentials by which a session reaches memory nodes.
#[derive(Clone, Copy, Debug)]
pub struct AttachOptions<'a> {
    /// The kind of fabric.
    pub kind: FabricKind,
    /// The switch between session and memory nodes, if any. It must serve the fabric `kind`.
    pub switch: Option<&'a SwitchLocation>,
    /// The certificates for TLS, if the session uses TLS. Over TCP only.
    pub tls: Option<&'a TlsSettings>,
    /// This process's keys, if the cluster has a secret. The keys that this process and each memory node prove to each
    /// other are derived from the client's key among them.
    pub keys: Option<&'a Keyring>,
}

impl AttachOptions<'_> {
    /// Returns options without switch, TLS or keys.
    pub fn plain(kind: FabricKind) -> AttachOptions<'static> {
        AttachOptions { kind, switch: None, tls: None, keys: None }
    }
}

/// Opens a session like [`attach_all`], with these options. Gives up soon after `goes_on` returns false, even while
/// a memory node accepts no connection, or has accepted one and does not answer.
pub fn attach_all_with(
    AttachOptions { kind, switch, tls, keys }: AttachOptions<'_>,
    client: ClientId,
    members: &[Member],
    goes_on: &dyn Fn() -> bool,
) -> Result<AnyFabric, AttachError> {
    let fabric = AnyFabric::new(kind, client).map_err(|error| AttachError {
        node: members.first().map_or(MnId(0), |member| member.node),
        at: "this host".into(),
        cause: AttachCause::Io(error),
    })?;
    match (&fabric, switch) {
        (AnyFabric::Tcp(tcp), Some(switch)) => tcp.go_through(switch),
        (AnyFabric::Verbs(verbs), Some(switch)) => verbs.go_through(switch),
        _ => {}
    }
    if let (AnyFabric::Tcp(tcp), Some(tls)) = (&fabric, tls) {
        tcp.secure(tls);
    }
    if let Some(keys) = keys {
        fabric.use_keys(keys);
    }
    members.iter().try_for_each(|member| fabric.attach_while(member, goes_on))?;
    Ok(fabric)
}

/// The time in which a memory node has to answer whether it accepts this process as a client over shared memory.
const KNOCK_WAIT: Duration = Duration::from_millis(300);

/// Checks whether the members that have sockets on this host accept this process as a client over shared memory. A
/// member that does not answer, or whose socket belongs to another node now, is no error, because the view will change
/// soon.
pub fn check_shm_access(members: &[Member], keys: Option<&Keyring>) -> Result<(), AttachError> {
    let end = Instant::now() + KNOCK_WAIT;
    for member in members {
        let Some(path) = member.shm.as_deref().filter(|_| !ShmLocalNode::is_here(member.identity))
        else {
            continue;
        };
        let key = NodeKey::new(keys, member.identity);
        let cause = match shm::check_socket_access(&key, Path::new(path), &|| Instant::now() < end)
        {
            Err(AttachCause::Unreachable(error)) if is_shut(&error, member) => {
                AttachCause::Unreachable(error)
            }
            Err(
                cause @ (AttachCause::StrangerAtSocket { .. }
                | AttachCause::NotFenceable
                | AttachCause::Unproved),
            ) => cause,
            Ok(()) | Err(_) => continue,
        };
        return Err(AttachError { node: member.node, at: path.to_owned(), cause });
    }
    Ok(())
}

/// Returns whether connections to a member's socket fail although the member runs: this process lacks permission,
/// or no process listens at the socket file (then the member's control port tells that the member runs).
fn is_shut(error: &io::Error, member: &Member) -> bool {
    let lives = || {
        let at = member.control.to_socket_addrs().ok().and_then(|mut at| at.next());
        at.is_some_and(|at| TcpStream::connect_timeout(&at, KNOCK_WAIT).is_ok())
    };
    match error.kind() {
        io::ErrorKind::PermissionDenied => true,
        io::ErrorKind::ConnectionRefused => lives(),
        _ => false,
    }
}

impl AnyFabric {
    /// Makes a session without memory nodes.
    pub fn new(kind: FabricKind, client: ClientId) -> io::Result<AnyFabric> {
        Ok(match kind {
            FabricKind::Shm => AnyFabric::Shm(ShmFabric::new(client), Arc::default()),
            FabricKind::Tcp => AnyFabric::Tcp(TcpFabric::new(client, DriverOptions::default())?),
            FabricKind::Verbs => {
                AnyFabric::Verbs(VerbsFabric::new(client, DriverOptions::default())?)
            }
        })
    }

    /// Returns the kind of the fabric.
    pub fn kind(&self) -> FabricKind {
        match self {
            AnyFabric::Shm(..) => FabricKind::Shm,
            AnyFabric::Tcp(_) => FabricKind::Tcp,
            AnyFabric::Verbs(_) => FabricKind::Verbs,
        }
    }

    /// Makes the session demand, from now on, that every node to which it attaches proves a key derived from the
    /// client's key in `keys`.
    fn use_keys(&self, keys: &Keyring) {
        match self {
            AnyFabric::Shm(shm, _) => shm.use_keys(keys),
            AnyFabric::Tcp(tcp) => tcp.use_keys(keys),
            AnyFabric::Verbs(verbs) => verbs.use_keys(keys),
        }
    }

    /// Sets the time after which a memory node that owes an answer and sends nothing counts as lost, over TCP and
    /// verbs. Does nothing over shared memory.
    pub fn set_silence(&self, silence: Duration) {
        match self {
            AnyFabric::Shm(..) => {}
            AnyFabric::Tcp(tcp) => tcp.set_silence(silence),
            AnyFabric::Verbs(verbs) => verbs.set_silence(silence),
        }
    }

    /// Returns counts of the work that NICs did for this session; `None` on fabrics other than verbs.
    pub fn nic_counts(&self) -> Option<NicCounts> {
        match self {
            AnyFabric::Verbs(verbs) => Some(verbs.counts()),
            AnyFabric::Shm(..) | AnyFabric::Tcp(_) => None,
        }
    }

    /// Attaches to a memory node. Replaces the attachment to an earlier node with the same number.
    pub fn attach(&self, member: &Member) -> Result<(), AttachError> {
        self.attach_while(member, &|| true)
    }

    fn attach_while(&self, member: &Member, goes_on: ContinueFn<'_>) -> Result<(), AttachError> {
        let not_offered = || AttachError {
            node: member.node,
            at: member.control.clone(),
            cause: AttachCause::NotOffered,
        };
        match self {
            AnyFabric::Shm(shm, _) => {
                let path = member.shm.as_deref().map(Path::new);
                shm.attach_while(member.node, member.identity, path, goes_on)
            }
            AnyFabric::Tcp(tcp) => {
                let address = member.tcp.as_ref().ok_or_else(not_offered)?;
                tcp.attach_while(member.node, member.identity, address, goes_on)
            }
            AnyFabric::Verbs(verbs) => {
                let address = member.verbs.as_ref().ok_or_else(not_offered)?;
                verbs.attach_while(member.node, member.identity, address, goes_on)
            }
        }
    }

    /// Ends the session with a memory node. Verbs to that node fail as unreachable from now on.
    pub fn detach(&self, node: MnId) {
        match self {
            AnyFabric::Shm(shm, _) => shm.detach(node),
            AnyFabric::Tcp(tcp) => tcp.detach(node),
            AnyFabric::Verbs(verbs) => verbs.detach(node),
        }
    }

    /// Ends the session with all memory nodes, so that a node that fences the client later need not kill this process.
    /// Over shared memory, waits up to `patience` for each node to record the end of the session.
    pub fn leave(&self, patience: Duration) {
        match self {
            AnyFabric::Shm(shm, _) => shm.leave(patience),
            AnyFabric::Tcp(tcp) => tcp.leave(),
            AnyFabric::Verbs(verbs) => verbs.leave(),
        }
    }

    /// Returns a waker that ends a sleep in [`AnyFabric::turn`]. Any thread can use it.
    pub fn waker(&self) -> Waker {
        match self {
            AnyFabric::Shm(_, parker) => parker.clone().into(),
            AnyFabric::Tcp(tcp) => tcp.waker(),
            AnyFabric::Verbs(verbs) => verbs.waker(),
        }
    }

    /// Does I/O, or sleeps until there is some, for at most `max_wait` (`None`: without limit). Wakes the tasks
    /// whose batches have completed. Returns at once if the waker was used after the previous call.
    pub fn turn(&self, max_wait: Option<Duration>) {
        match self {
            AnyFabric::Shm(_, parker) => parker.park(max_wait),
            AnyFabric::Tcp(tcp) => tcp.turn(max_wait),
            AnyFabric::Verbs(verbs) => verbs.turn(max_wait),
        }
    }
}

impl Fabric for AnyFabric {
    fn execute(&self, batch: VerbBatch) -> impl Future<Output = VerbBatch> {
        match self {
            AnyFabric::Shm(shm, _) => AnyBatchFuture::Shm(shm.start(batch)),
            AnyFabric::Tcp(tcp) => AnyBatchFuture::Tcp(tcp.start(batch)),
            AnyFabric::Verbs(verbs) => AnyBatchFuture::Verbs(verbs.start(batch)),
        }
    }

    #[inline]
    fn execute_now(&self, batch: &mut VerbBatch) -> bool {
        match self {
            AnyFabric::Shm(shm, _) => shm.execute_now(batch),
            AnyFabric::Tcp(tcp) => tcp.execute_now(batch),
            AnyFabric::Verbs(verbs) => verbs.execute_now(batch),
        }
    }

    #[inline]
    fn is_immediate(&self) -> bool {
        match self {
            AnyFabric::Shm(shm, _) => shm.is_immediate(),
            AnyFabric::Tcp(tcp) => tcp.is_immediate(),
            AnyFabric::Verbs(verbs) => verbs.is_immediate(),
        }
    }

    #[inline]
    fn waits_for_reads(&self) -> bool {
        match self {
            AnyFabric::Shm(shm, _) => shm.waits_for_reads(),
            AnyFabric::Tcp(tcp) => tcp.waits_for_reads(),
            AnyFabric::Verbs(verbs) => verbs.waits_for_reads(),
        }
    }

    #[inline]
    fn may_steer(&self) -> bool {
        match self {
            AnyFabric::Shm(..) => false,
            AnyFabric::Tcp(tcp) => tcp.may_steer(),
            AnyFabric::Verbs(verbs) => verbs.may_steer(),
        }
    }

    #[inline]
    fn prefetch(&self, node: MnId, offset: u64) {
        match self {
            AnyFabric::Shm(shm, _) => shm.prefetch(node, offset),
            AnyFabric::Tcp(tcp) => tcp.prefetch(node, offset),
            AnyFabric::Verbs(verbs) => verbs.prefetch(node, offset),
        }
    }
}

/// A batch in flight over a fabric of any kind.
enum AnyBatchFuture<'a> {
    Shm(ShmBatchFuture<'a>),
    Tcp(driver::DriverBatchFuture<'a, tcp::TcpLink>),
    Verbs(driver::DriverBatchFuture<'a, verbs::VerbsLink>),
}

impl Future for AnyBatchFuture<'_> {
    type Output = VerbBatch;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<VerbBatch> {
        match self.get_mut() {
            AnyBatchFuture::Shm(future) => Pin::new(future).poll(context),
            AnyBatchFuture::Tcp(future) => Pin::new(future).poll(context),
            AnyBatchFuture::Verbs(future) => Pin::new(future).poll(context),
        }
    }
}
