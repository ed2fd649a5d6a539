//! The server at whose socket a memory node hands out its pool to processes of its host.
//!
//! The server checks regularly whether its socket file still exists, and makes it again if not.
//!
//! One thread with one poll accepts connections, reads hellos without blocking on a client, passes the memfd on,
//! and then only waits for the end of each session. A session ends by its goodbye or by the exit of its process.
//! The parent module explains why a closed connection is not enough.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fusee_auth::NodeKey;
use fusee_core::verbs::ClientId;
use fusee_core::version::ConnectionEnd;
use mio::net::{UnixListener, UnixStream};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};

use super::local_node::ShmLocalNode;
use super::peer::Peer;
use super::sessions::{ShmAccess, ShmRefusal, ShmSessionId};
use super::socket_file::SocketFile;
use super::wire::{GOODBYE, HELLO_BYTES, PROTOCOL, ShmHello, ShmHelloStatus, ShmWelcome};
use crate::challenge::{self, CALL_BYTES, ChallengeRefusal as Refused, NodeChallenge, PROOF_BYTES};
use crate::error::ServeError;
use crate::limits::{
    ACCEPT_RETRY, HELLO_WAIT, NEWCOMER_GRACE, NodeLimits, ROOM_RETRY, SessionLimiter,
};
use crate::sys;
use crate::version::ProtocolMismatch;

/// The time between two checks of the socket file.
const FILE_LOOK: Duration = Duration::from_secs(1);
const LISTENER: Token = Token(0);
const WAKER: Token = Token(1);
/// Connection `n` has the token `FIRST + 2n` for its socket, and `FIRST + 2n + 1` for its process.
const FIRST: usize = 2;

/// A server that hands out a hub's pool at a socket. Dropping it stops the server and removes the socket file.
#[derive(Debug)]
pub(crate) struct ShmServer {
    file: Arc<SocketFile>,
    stop: Arc<AtomicBool>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl ShmServer {
    /// Listens at `path` and serves clients that have the node's key.
    pub(crate) fn start(
        hub: Arc<ShmLocalNode>,
        key: NodeKey,
        path: &Path,
        limits: NodeLimits,
    ) -> Result<ShmServer, ServeError> {
        let at = || path.display().to_string();
        let io = |source| ServeError::Io { at: at(), source };
        let poll = Poll::new().map_err(io)?;
        let waker = Waker::new(poll.registry(), WAKER).map_err(io)?;
        let (mut listener, file) = SocketFile::claim(path)?;
        let file = Arc::new(file);
        let stop = Arc::new(AtomicBool::new(false));
        let mut server = ShmServer { file: file.clone(), stop, waker, thread: None };
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE).map_err(io)?;
        let stop = server.stop.clone();
        let doors = SessionLimiter::new(limits);
        let open = HashMap::new();
        let listener = ShmServerLoop {
            poll,
            listener,
            file,
            look_at: Instant::now() + FILE_LOOK,
            is_told_gone: false,
            hub,
            key,
            doors,
            stop,
            next: 0,
            open,
        };
        let thread = std::thread::Builder::new().name("fusee-shm".into());
        server.thread = Some(thread.spawn(move || listener.run()).map_err(io)?);
        Ok(server)
    }

    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }

    /// Returns whether the server's socket file existed at the last check.
    pub(crate) fn is_there(&self) -> bool {
        self.file.is_there()
    }
}

impl Drop for ShmServer {
    fn drop(&mut self) {
        // The file is removed first, so that later clients find no socket.
        self.file.remove();
        // Release: pairs with the acquire in the loop of `run`.
        self.stop.store(true, Ordering::Release);
        if let Err(error) = self.waker.wake() {
            tracing::error!(%error, "cannot stop the shared-memory server");
            return;
        }
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the shared-memory server has panicked");
        }
    }
}

struct ShmConnection {
    peer: Arc<Peer>,
    /// Whether the client has closed the connection. If so, only its process is watched.
    is_closed: bool,
    stage: ShmConnectionStage,
}

/// The length of a client's proof and hello together. A call fits in the same buffer.
const GREETING_BYTES: usize = PROOF_BYTES + HELLO_BYTES;
const _: () = assert!(CALL_BYTES <= GREETING_BYTES);

enum ShmConnectionStage {
    /// The node waits for the call or, after its answer to the call, for the proof and the hello.
    Greeting {
        greeting: [u8; GREETING_BYTES],
        got: usize,
        challenged: Option<Box<NodeChallenge>>,
        deadline: Instant,
    },
    Attached(ShmSessionId),
}

/// The fate of a connection after an event.
enum ConnectionFate {
    Keep,
    Forget,
}

struct ShmServerLoop {
    poll: Poll,
    listener: UnixListener,
    file: Arc<SocketFile>,
    /// The time of the next check of the socket file.
    look_at: Instant,
    /// Whether the log already says that the file does not exist and could not be made again.
    is_told_gone: bool,
    hub: Arc<ShmLocalNode>,
    key: NodeKey,
    /// The limits on sessions, by process number.
    doors: SessionLimiter<u32>,
    stop: Arc<AtomicBool>,
    next: usize,
    open: HashMap<usize, ShmConnection>,
}

impl ShmServerLoop {
    fn run(mut self) {
        let mut events = Events::with_capacity(64);
        let mut accept_again = None;
        // Acquire: pairs with the release in the server's drop.
        while !self.stop.load(Ordering::Acquire) {
            let deadlines = self.next_deadline().into_iter().chain(accept_again);
            let wake_at = deadlines.chain([self.look_at]).min();
            let wait = wake_at.map(|at| at.saturating_duration_since(Instant::now()));
            // Rounded up, because a wait of less than a millisecond must not become a busy loop.
            let wait = wait.map(|wait| wait + Duration::from_millis(1));
            match self.poll.poll(&mut events, wait) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::error!(%error, "the shared-memory server stops");
                    return;
                }
                Ok(()) => {}
            }
            let mut accept = accept_again.is_some_and(|at| at <= Instant::now());
            for event in &events {
                match event.token() {
                    LISTENER => accept = true,
                    WAKER => {}
                    Token(token) => self.serve((token - FIRST) / 2, token % 2 == 1),
                }
            }
            if accept {
                accept_again = self.accept();
            }
            self.close_silent_connections();
            if self.look_at <= Instant::now() {
                self.look_at = Instant::now() + FILE_LOOK;
                self.keep_file();
            }
        }
    }

    /// Makes the socket file again if it no longer exists.
    fn keep_file(&mut self) {
        let restored = self.file.restore().map_err(|error| error.to_string());
        let registry = self.poll.registry();
        let listens = restored.and_then(|restored| {
            let Some(mut listener) = restored else { return Ok(false) };
            let listens = registry.register(&mut listener, LISTENER, Interest::READABLE);
            if let Err(error) = listens {
                // A listener that is not registered for events accepts no connections, so the file has to be made
                // again.
                self.file.count_as_gone();
                return Err(error.to_string());
            }
            // The previous listener is dropped, because no client finds it any more.
            self.listener = listener;
            Ok(true)
        });
        let path = self.file.path().display();
        match listens {
            Ok(false) => {}
            Ok(true) => {
                self.is_told_gone = false;
                tracing::warn!(%path, "the socket file had gone, and is made again");
            }
            Err(error) if !self.is_told_gone => {
                self.is_told_gone = true;
                tracing::error!(%error, %path, "the socket file has gone, new clients do not find it");
            }
            Err(_) => {}
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let deadline = |connection: &ShmConnection| match connection.stage {
            ShmConnectionStage::Greeting { deadline, .. } => Some(deadline),
            ShmConnectionStage::Attached(_) => None,
        };
        self.open.values().filter_map(deadline).min()
    }

    fn close_silent_connections(&mut self) {
        let now = Instant::now();
        self.open.retain(|_, connection| match connection.stage {
            ShmConnectionStage::Greeting { deadline, .. } if deadline <= now => {
                tracing::warn!(pid = connection.peer.pid(), "a client did not say hello in time");
                false
            }
            _ => true,
        });
    }

    /// Closes the oldest unauthenticated connection, if it had enough time for its hello. Returns whether it did.
    fn make_room(&mut self) -> bool {
        let newcomer = |(id, connection): (&usize, &ShmConnection)| match connection.stage {
            ShmConnectionStage::Greeting { deadline, .. } => Some((deadline, *id)),
            ShmConnectionStage::Attached(_) => None,
        };
        let Some((deadline, id)) = self.open.iter().filter_map(newcomer).min() else {
            return false;
        };
        if deadline > Instant::now() + (HELLO_WAIT - NEWCOMER_GRACE) {
            return false;
        }
        let sent_away = self.open.remove(&id);
        tracing::debug!(
            pid = sent_away.map(|c| c.peer.pid()),
            "a silent client makes room for others"
        );
        true
    }

    /// Accepts all waiting connections. After a failure or without room, returns the time to try again.
    fn accept(&mut self) -> Option<Instant> {
        loop {
            // Until there is room, new connections wait in the operating system's queue.
            if self.doors.is_crowded(self.open.len()) && !self.make_room() {
                return Some(Instant::now() + ROOM_RETRY);
            }
            match self.listener.accept() {
                Ok((socket, _)) => {
                    if let Err(error) = self.add_connection(socket) {
                        tracing::warn!(%error, "cannot watch a client, it is sent away");
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::error!(%error, "cannot accept shared-memory clients");
                    self.make_room();
                    return Some(Instant::now() + ACCEPT_RETRY);
                }
            }
        }
    }

    /// Adds an unauthenticated connection, if the node could fence the process at the other end.
    fn add_connection(&mut self, socket: UnixStream) -> io::Result<()> {
        let id = self.next;
        let registry = self.poll.registry();
        let peer = Arc::new(Peer::of(socket, registry, Token(FIRST + 2 * id))?);
        let deadline = Instant::now() + HELLO_WAIT;
        if !peer.killable() {
            // Best effort: the connection is closed in any case.
            drop(io::Write::write(&mut peer.socket(), &Refused::NotFenceable.encode(&PROTOCOL)));
            return Err(io::Error::other("it could not be fenced"));
        }
        let greeting = [0; GREETING_BYTES];
        let got = 0;
        let challenged = None;
        let stage = ShmConnectionStage::Greeting { greeting, got, challenged, deadline };
        self.open.insert(id, ShmConnection { peer, is_closed: false, stage });
        self.next += 1;
        self.serve(id, false);
        Ok(())
    }

    fn serve(&mut self, id: usize, exited: bool) {
        let Some(connection) = self.open.get_mut(&id) else { return };
        let verdict = if exited {
            ConnectionFate::Forget
        } else {
            connection.read(&self.hub, &self.key, &mut self.doors, &self.poll, id).unwrap_or_else(
                |error| {
                    let pid = connection.peer.pid();
                    tracing::warn!(%error, pid, "a shared-memory client is sent away");
                    // An attached client has the memory, so its process stays under watch.
                    match connection.stage {
                        ShmConnectionStage::Greeting { .. } => ConnectionFate::Forget,
                        ShmConnectionStage::Attached(_) => ConnectionFate::Keep,
                    }
                },
            )
        };
        if let ConnectionFate::Forget = verdict {
            let connection = self.open.remove(&id).expect("found above");
            if let ShmConnectionStage::Attached(session) = connection.stage {
                // The descriptor is deregistered explicitly, because a fence that still waits for the process keeps
                // it open.
                let process = connection.peer.as_raw_fd();
                if let Err(error) = self.poll.registry().deregister(&mut SourceFd(&process)) {
                    tracing::warn!(%error, "cannot stop watching a client");
                }
                self.doors.leave(connection.peer.pid());
                self.hub.leave(session);
                connection.peer.close();
            }
        }
    }
}

impl ShmConnection {
    /// Reads from the connection until nothing more is there.
    fn read(
        &mut self,
        hub: &ShmLocalNode,
        key: &NodeKey,
        doors: &mut SessionLimiter<u32>,
        poll: &Poll,
        id: usize,
    ) -> io::Result<ConnectionFate> {
        while !self.is_closed {
            let attached = matches!(self.stage, ShmConnectionStage::Attached(_));
            let result = match &mut self.stage {
                ShmConnectionStage::Greeting { greeting, got, challenged, .. } => {
                    let wanted = if challenged.is_none() { CALL_BYTES } else { GREETING_BYTES };
                    self.peer.read(&mut greeting[*got..wanted]).inspect(|n| *got += n)
                }
                ShmConnectionStage::Attached(_) => {
                    let mut byte = [0];
                    match self.peer.read(&mut byte) {
                        Ok(1) if byte == [GOODBYE] => return Ok(ConnectionFate::Forget),
                        result => result,
                    }
                }
            };
            match result {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Ok(0) if !attached => return Ok(ConnectionFate::Forget),
                Ok(0) | Err(_) => self.is_closed = true,
                Ok(_) => {}
            }
            match &self.stage {
                ShmConnectionStage::Greeting { challenged: None, .. } => self.answer_call(key)?,
                ShmConnectionStage::Greeting { got: GREETING_BYTES, .. } => {
                    let hello = self.proved_hello()?;
                    if let ConnectionFate::Forget =
                        self.answer_hello(hello, hub, doors, poll, id)?
                    {
                        return Ok(ConnectionFate::Forget);
                    }
                }
                ShmConnectionStage::Greeting { .. } | ShmConnectionStage::Attached(_) => {}
            }
        }
        Ok(ConnectionFate::Keep)
    }

    /// Answers the call if it is complete.
    fn answer_call(&mut self, key: &NodeKey) -> io::Result<()> {
        let ShmConnectionStage::Greeting { greeting, got, challenged, .. } = &mut self.stage else {
            return Ok(());
        };
        let mut socket = self.peer.socket();
        let mut say = |words: &[u8]| io::Write::write_all(&mut socket, words);
        // The check does not wait for a complete call, because the call of another version can be shorter.
        match PROTOCOL.check(ConnectionEnd::Server, &greeting[..*got]) {
            Ok(_) => {}
            Err(ProtocolMismatch::Stranger) => return Err(io::Error::other("it is no client")),
            Err(ProtocolMismatch::Version(error)) => {
                // Best effort: the connection is closed in any case.
                drop(say(&Refused::OtherVersion.encode(&PROTOCOL)));
                return Err(io::Error::other(error));
            }
        }
        let Some(call) = greeting[..*got].first_chunk::<CALL_BYTES>() else { return Ok(()) };
        if challenge::called_node_name(&PROTOCOL, call).ok() != Some(key.name()) {
            drop(say(&Refused::WrongNode.encode(&PROTOCOL)));
            return Err(io::Error::other("it expects another memory node"));
        }
        let (answer, expected) = NodeChallenge::new(&PROTOCOL, key, call)?;
        // The write does not block, because the buffer of a new connection has room.
        say(&answer)?;
        (*got, *challenged) = (0, Some(Box::new(expected)));
        Ok(())
    }

    /// Returns the hello that has arrived, if the proof before it is valid.
    fn proved_hello(&mut self) -> io::Result<ShmHello> {
        let ShmConnectionStage::Greeting { greeting, challenged: Some(challenged), .. } =
            &self.stage
        else {
            return Err(io::Error::other("it says hello without a call"));
        };
        let (proof, bytes) = greeting.split_first_chunk().expect("a proof is shorter");
        let bytes = bytes.first_chunk().expect("the rest is a hello");
        let hello = match ShmHello::decode(bytes) {
            Ok(hello) => hello,
            Err(ProtocolMismatch::Stranger) => return Err(io::Error::other("it is no client")),
            // The welcome tells a client with another layout of pools which layout this node uses.
            Err(ProtocolMismatch::Version(error)) => {
                let welcome =
                    ShmWelcome { pool_bytes: 0, status: ShmHelloStatus::OtherVersion }.encode();
                drop(io::Write::write(&mut self.peer.socket(), &welcome));
                return Err(io::Error::other(error));
            }
        };
        if !challenged.is_proved(proof, bytes) {
            let unproved = "it does not prove that it knows this memory node's key";
            return Err(io::Error::other(unproved));
        }
        Ok(hello)
    }

    fn answer_hello(
        &mut self,
        hello: ShmHello,
        hub: &ShmLocalNode,
        doors: &mut SessionLimiter<u32>,
        poll: &Poll,
        id: usize,
    ) -> io::Result<ConnectionFate> {
        let socket = self.peer.socket();
        let welcome = |status| ShmWelcome { pool_bytes: hub.pool().bytes(), status }.encode();
        let refuse = |status, why| {
            // Best effort: the connection is closed in any case.
            drop(io::Write::write(&mut &*socket, &welcome(status)));
            Err(io::Error::other(why))
        };
        // The reserved client id cannot be fenced.
        if hello.client == ClientId::NOBODY {
            return Err(io::Error::other("it says hello without a client id"));
        }
        // The fence of a session in this process could kill the process, and the node with it.
        if self.peer.pid() == std::process::id() {
            return refuse(ShmHelloStatus::NotFenceable, "it could not be fenced");
        }
        if doors.enter(self.peer.pid()).is_err() {
            return refuse(
                ShmHelloStatus::Full,
                "there is no room for another session of it, or at all",
            );
        }
        let session = match hub.open(hello.client, ShmAccess::Process(self.peer.clone())) {
            Ok(session) => session,
            Err(refusal) => {
                doors.leave(self.peer.pid());
                return match refusal {
                    ShmRefusal::Fenced => refuse(ShmHelloStatus::Fenced, "it has been fenced"),
                    ShmRefusal::Gone => Err(io::Error::other("the node is shutting down")),
                };
            }
        };
        let Some(file) = hub.pool().file() else {
            doors.leave(self.peer.pid());
            hub.leave(session);
            return Err(io::Error::other("not our own pool"));
        };
        let process = self.peer.as_raw_fd();
        let token = Token(FIRST + 2 * id + 1);
        let watched = poll.registry().register(&mut SourceFd(&process), token, Interest::READABLE);
        if let Err(error) = watched {
            doors.leave(self.peer.pid());
            hub.leave(session);
            return Err(error);
        }
        self.stage = ShmConnectionStage::Attached(session);
        let pid = self.peer.pid();
        let bytes = welcome(ShmHelloStatus::Welcome);
        match sys::send_with_fd(socket, &bytes, &file) {
            Ok(sent) if sent == bytes.len() => {
                tracing::debug!(client = %hello.client, pid, "attached by shared memory");
            }
            // The client has possibly received the memory, so its session stays listed.
            Ok(_) => tracing::warn!(pid, "a shared-memory client does not take its welcome"),
            // The client has no memory and has stopped waiting. If its session stayed in the list, no goodbye would
            // ever come for it, and a fence would kill the process.
            Err(error) => {
                tracing::debug!(%error, pid, "a shared-memory client has gone before its welcome");
                return Ok(ConnectionFate::Forget);
            }
        }
        Ok(ConnectionFate::Keep)
    }
}
