//! The session's side of shared memory. It executes a batch on the spot, on the session's own thread.
//!
//! The future of a batch is ready at its first poll. The path of a batch has no allocation, lock or system call: it
//! finds the mapping by the node's number, enters the mapping's gate, executes verbs, and leaves the gate. A run of
//! verbs for one node enters the gate once.
//!
//! A session belongs to one thread at a time.

use std::cell::{Cell, RefCell};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use fusee_auth::{Keyring, NodeKey};
use fusee_core::verbs::{ClientId, Fabric, MnId, VerbBatch, VerbError};
use fusee_core::version::ConnectionEnd;

use super::gate::{Gate, ShmGateGuard};
use super::local_node::ShmLocalNode;
use super::monitor::{self, MonitorGuard};
use super::sessions::{ShmAccess, ShmRefusal, ShmSessionId};
use super::socket_file;
use super::wire::{FENCED, GOODBYE, PROTOCOL, ShmHello, ShmHelloStatus, ShmWelcome, WELCOME_BYTES};
use crate::challenge::{ANSWER_BYTES, ClientChallenge};
use crate::error::{AttachCause, AttachError};
use crate::fork::ProcessBound;
use crate::hello::{self, ContinueFn, LOOK};
use crate::pool::{Pool, VerbOrder};
use crate::sys;

/// The time limit of a whole attempt to attach, from the connection to the node's welcome. After this time the node
/// counts as unreachable.
const WELCOME_WAIT: Duration = Duration::from_secs(2);

/// The entry of a session in its memory node's list. Dropping it tells the node that the session has ended, so the
/// mapping of the pool must be dropped first.
#[derive(Debug)]
enum PoolLease {
    Local(#[allow(dead_code, reason = "dropped to end it")] ShmLocalSession),
    Remote(MonitorGuard),
}

impl PoolLease {
    /// Ends the session. Returns the connection to the node, if there is one. The node closes the connection when the
    /// node has recorded the end.
    fn end(self) -> Option<UnixStream> {
        match self {
            PoolLease::Local(_) => None,
            PoolLease::Remote(watch) => watch.end_session(),
        }
    }
}

/// A session with a memory node of this process.
#[derive(Debug)]
struct ShmLocalSession {
    hub: Arc<ShmLocalNode>,
    session: ShmSessionId,
}

impl Drop for ShmLocalSession {
    fn drop(&mut self) {
        self.hub.leave(self.session);
    }
}

#[derive(Debug)]
struct ShmLink {
    node: MnId,
    gate: Arc<Gate>,
    // Fields drop in order: first the mapping, then the entry in the node's list.
    pool: Pool,
    lease: PoolLease,
}

/// A session's access to the pools of memory nodes on its own host.
#[derive(Debug)]
pub struct ShmFabric {
    client: ClientId,
    keys: RefCell<Option<Keyring>>,
    links: ProcessBound<RefCell<Vec<ShmLink>>>,
    order: Cell<VerbOrder>,
}

impl ShmFabric {
    /// Makes a session without memory nodes.
    pub fn new(client: ClientId) -> ShmFabric {
        ShmFabric {
            client,
            keys: RefCell::default(),
            links: ProcessBound::new(RefCell::default()),
            order: Cell::default(),
        }
    }

    /// Makes the session demand, from now on, that every node to which it attaches proves a key derived from the
    /// client's key in `keys`.
    pub fn use_keys(&self, keys: &Keyring) {
        self.keys.replace(Some(keys.clone()));
    }

    /// Attaches to a memory node: by its identity if it runs in this process, else through the socket at `path`.
    /// Replaces the attachment to an earlier node with the same number.
    pub fn attach(
        &self,
        node: MnId,
        identity: u64,
        path: Option<&Path>,
    ) -> Result<(), AttachError> {
        self.attach_while(node, identity, path, &|| true)
    }

    /// Attaches like [`ShmFabric::attach`]. Gives up soon after `goes_on` returns false.
    pub(crate) fn attach_while(
        &self,
        node: MnId,
        identity: u64,
        path: Option<&Path>,
        goes_on: ContinueFn<'_>,
    ) -> Result<(), AttachError> {
        let at = path.map_or_else(|| "this host".into(), |path| path.display().to_string());
        if !self.links.is_here() {
            return Err(AttachError { node, at, cause: AttachCause::Forked });
        }
        let link = match (ShmLocalNode::find(identity), path) {
            (Some(hub), _) => self.local(node, hub),
            (None, Some(path)) => self.remote(node, identity, path, goes_on),
            (None, None) => Err(AttachCause::NotOffered),
        };
        let link = link.map_err(|cause| AttachError { node, at, cause })?;
        self.detach(node);
        self.links.borrow_mut().push(link);
        Ok(())
    }

    /// Ends the session with a memory node. Verbs to that node fail as unreachable from now on.
    pub fn detach(&self, node: MnId) {
        if self.links.is_here() {
            self.links.borrow_mut().retain(|link| link.node != node);
        }
    }

    /// Ends the session with all memory nodes, and waits up to `patience` for each node to record the end of the
    /// session. A node that has recorded the end does not find the session any more when it fences the client later.
    pub fn leave(&self, patience: Duration) {
        if !self.links.is_here() {
            return;
        }
        let part = |ShmLink { pool, lease, .. }| {
            drop(pool);
            lease.end()
        };
        let parted: Vec<UnixStream> = self.links.take().into_iter().filter_map(part).collect();
        for mut socket in parted.into_iter().filter(|_| !patience.is_zero()) {
            let waits = socket.set_nonblocking(false);
            let waits = waits.and_then(|()| socket.set_read_timeout(Some(patience)));
            // The node sends nothing, so the read ends when the node closes the connection, or after `patience`.
            match waits.and_then(|()| socket.read(&mut [0])) {
                Ok(0) => {}
                other => tracing::debug!(?other, "a memory node does not hear a goodbye"),
            }
        }
    }

    fn local(&self, node: MnId, hub: Arc<ShmLocalNode>) -> Result<ShmLink, AttachCause> {
        let gate = Arc::new(Gate::new());
        let session = hub.open(self.client, ShmAccess::Gate(gate.clone())).map_err(|refusal| {
            let gone = || io::Error::from(io::ErrorKind::ConnectionRefused);
            match refusal {
                ShmRefusal::Fenced => AttachCause::Fenced,
                ShmRefusal::Gone => AttachCause::Unreachable(gone()),
            }
        })?;
        let pool = hub.pool().clone();
        Ok(ShmLink { node, gate, pool, lease: PoolLease::Local(ShmLocalSession { hub, session }) })
    }

    fn remote(
        &self,
        node: MnId,
        identity: u64,
        path: &Path,
        goes_on: ContinueFn<'_>,
    ) -> Result<ShmLink, AttachCause> {
        let key = NodeKey::new(self.keys.borrow().as_ref(), identity);
        let end = Instant::now() + WELCOME_WAIT;
        let goes_on = &|| Instant::now() < end && goes_on();
        let (mut socket, call, answer) = call(&key, path, goes_on)?;
        let hello = ShmHello { client: self.client }.encode();
        let proof = call.check_answer(&answer, &hello)?;
        let hello = [&proof[..], &hello].concat();
        socket.write_all(&hello).map_err(AttachCause::Unreachable)?;
        let (file, pool_bytes) = receive_welcome(&socket, goes_on).inspect_err(|_| {
            // The node has possibly added the session to its list. The session has no memory yet, so it can say
            // goodbye. An error of the write does not matter, because a node that has ended has no list.
            let _ = (&socket).write_all(&[GOODBYE]);
        })?;
        let gate = Arc::new(Gate::new());
        // The watch starts before the memory is mapped: if the mapping fails, dropping the watch says goodbye.
        let socket = mio::net::UnixStream::from_std(socket);
        let watch = monitor::watch(socket, self.client, gate.clone())?;
        let pool = Pool::map(file, pool_bytes)?;
        Ok(ShmLink { node, gate, pool, lease: PoolLease::Remote(watch) })
    }

    /// Executes all verbs of a batch, in the order posted.
    fn run(&self, batch: &mut VerbBatch) {
        if !self.links.is_here() {
            return batch.fail(VerbError::Unreachable);
        }
        let links = self.links.borrow();
        let mut order = self.order.take();
        let mut inside: Option<(&ShmLink, Result<ShmGateGuard<'_>, VerbError>)> = None;
        let (verbs, memory) = batch.parts_mut();
        for verb in verbs {
            if inside.as_ref().is_none_or(|(link, _)| link.node != verb.node) {
                // The session leaves one gate before it enters the next one, so that a fence never waits for two gates.
                drop(inside.take());
                let link = links.iter().find(|link| link.node == verb.node);
                inside = link.map(|link| (link, link.gate.enter()));
            }
            match &inside {
                Some((link, Ok(_))) => link.pool.execute(&mut order, verb, memory),
                Some((_, Err(error))) => verb.result = Err(*error),
                None => verb.result = Err(VerbError::Unreachable),
            }
        }
        drop(inside);
        self.order.set(order);
    }
}

/// Receives a node's answer to a hello. Returns the file of the node's pool, and the pool's length. Makes the
/// socket non-blocking.
fn receive_welcome(
    socket: &UnixStream,
    goes_on: ContinueFn<'_>,
) -> Result<(OwnedFd, u64), AttachCause> {
    let (bytes, file) = receive::<WELCOME_BYTES>(socket, goes_on)?;
    let welcome = ShmWelcome::decode(&bytes)?;
    match welcome.status {
        ShmHelloStatus::Welcome => {}
        ShmHelloStatus::Fenced => return Err(AttachCause::Fenced),
        ShmHelloStatus::NotFenceable => return Err(AttachCause::NotFenceable),
        ShmHelloStatus::Full => return Err(AttachCause::Full),
        ShmHelloStatus::OtherVersion => return Err(AttachCause::NotAMemoryNode),
    }
    let file = file.ok_or(AttachCause::NotAMemoryNode)?;
    socket.set_nonblocking(true)?;
    Ok((file, welcome.pool_bytes))
}

/// Connects to a socket. While the socket's queue is full, tries again until `goes_on` returns false.
fn connect(path: &Path, goes_on: ContinueFn<'_>) -> Result<UnixStream, AttachCause> {
    loop {
        match mio::net::UnixStream::connect(path) {
            Ok(socket) => {
                let socket = UnixStream::from(socket);
                socket.set_nonblocking(false)?;
                return Ok(socket);
            }
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                return Err(AttachCause::Unreachable(error));
            }
            Err(_) if goes_on() => std::thread::sleep(LOOK),
            Err(_) => return Err(hello::silent_node_error()),
        }
    }
}

/// Connects to a socket, checks the user of the process that listens there, and sends the call. Returns the node's
/// answer.
fn call(
    key: &NodeKey,
    path: &Path,
    goes_on: ContinueFn<'_>,
) -> Result<(UnixStream, ClientChallenge, [u8; ANSWER_BYTES]), AttachCause> {
    let mut socket = connect(path, goes_on)?;
    socket.set_read_timeout(Some(LOOK))?;
    let uid = sys::peer_uid(&socket)?;
    if !socket_file::may_serve(path, uid) {
        return Err(AttachCause::StrangerAtSocket { uid });
    }
    let call = ClientChallenge::new(&PROTOCOL, key)?;
    // A node without permission to kill this process refuses, and closes the connection, before it reads anything. So
    // the answer is read even if this write fails.
    let said = socket.write_all(call.bytes());
    match receive(&socket, goes_on) {
        Ok((answer, _)) => Ok((socket, call, answer)),
        Err(cause) => Err(said.err().map_or(cause, AttachCause::Unreachable)),
    }
}

/// Checks whether a memory node accepts this process as a client: a trusted user listens at the socket, and the node
/// proves its key. Opens no session.
pub(crate) fn check_socket_access(
    key: &NodeKey,
    path: &Path,
    goes_on: ContinueFn<'_>,
) -> Result<(), AttachCause> {
    let (_socket, call, answer) = call(key, path, goes_on)?;
    call.check_answer(&answer, &[]).map(drop)
}

/// Receives a message of `N` bytes, and a file if one comes with it. Gives up when `goes_on` returns false.
fn receive<const N: usize>(
    socket: &UnixStream,
    goes_on: ContinueFn<'_>,
) -> Result<([u8; N], Option<OwnedFd>), AttachCause> {
    let mut bytes = [0; N];
    let mut got = 0;
    let mut file = None;
    while got < N {
        if !goes_on() {
            return Err(hello::silent_node_error());
        }
        match sys::receive_with_fd(socket, &mut bytes[got..]) {
            Ok((0, _)) => return Err(AttachCause::NotAMemoryNode),
            Ok((n, fd)) => {
                (got, file) = (got + n, fd.or(file));
                if bytes[0] == FENCED {
                    return Err(AttachCause::Fenced);
                }
                PROTOCOL.check(ConnectionEnd::Client, &bytes[..got])?;
            }
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock
                ) => {}
            Err(error) => return Err(AttachCause::Unreachable(error)),
        }
    }
    Ok((bytes, file))
}

/// A batch that executes at the first poll. Without a poll it is never executed.
#[derive(Debug)]
pub(crate) struct ShmBatchFuture<'a> {
    fabric: &'a ShmFabric,
    batch: Option<VerbBatch>,
}

impl Future for ShmBatchFuture<'_> {
    type Output = VerbBatch;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<VerbBatch> {
        let mut batch = self.batch.take().expect("polled after completion");
        self.fabric.run(&mut batch);
        Poll::Ready(batch)
    }
}

impl ShmFabric {
    pub(crate) fn start(&self, batch: VerbBatch) -> ShmBatchFuture<'_> {
        ShmBatchFuture { fabric: self, batch: Some(batch) }
    }
}

impl Fabric for ShmFabric {
    fn execute(&self, batch: VerbBatch) -> impl Future<Output = VerbBatch> {
        self.start(batch)
    }

    #[inline]
    fn execute_now(&self, batch: &mut VerbBatch) -> bool {
        self.run(batch);
        true
    }

    /// One thread executes the verbs one after the other, with the barriers of [`VerbOrder`], which hold across all
    /// pools.
    #[inline]
    fn is_immediate(&self) -> bool {
        true
    }

    #[inline]
    fn prefetch(&self, node: MnId, offset: u64) {
        if let Some(link) = self.links.borrow().iter().find(|link| link.node == node) {
            // This code can run in a forked child, too: a prefetch of an address that is not mapped does no harm.
            link.pool.prefetch(offset);
        }
    }
}
