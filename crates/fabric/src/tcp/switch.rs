//! A switch in the path of TCP sessions. It forwards their frames, and a [`Switch`] decides about the verbs.
//!
//! A session connects to the switch in place of the memory node. The session's call names the node, and the switch
//! connects to that node. The session and the node prove the node's key to each other through the switch, which
//! needs no key. The switch forwards all frames unchanged, except the offsets of steered READs. A held verb also
//! delays everything that follows on its connection. If one side of a connection ends, the switch ends the other
//! side, so a fence by the node also reaches a session behind a switch.
//!
//! Two threads serve a connection, one for each direction. As a hop in software, this switch shows how many round
//! trips a switch would save, but costs more time than it saves.

use std::collections::{HashMap, VecDeque};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use fusee_core::verbs::MnId;
use fusee_core::version::ConnectionEnd;
use fusee_core::view::PoolPlace;
use fusee_switch::{
    CasAnswer, ForgetScope, Switch, SwitchConnection, SwitchCounts, SwitchDecision, SwitchMemory,
    SwitchRequest as Asked, SwitchVerb,
};
use fusee_tls::FIRST_BYTE;

use super::frame::{
    self, HELLO_BYTES, MAX_BODY_BYTES, PROTOCOL, ReplyKind, TcpHelloStatus, TcpReply, TcpRequest,
    TcpWelcome, WELCOME_BYTES, WireOp,
};
use crate::challenge::{self, ANSWER_BYTES, CALL_BYTES, ChallengeRefusal, PROOF_BYTES};
use crate::error::ServeError;
use crate::sys;
use crate::version::{BEGIN_BYTES, ProtocolMismatch};

/// The largest number of connections, including unauthenticated ones.
const CONNECTIONS: usize = 1_024;
/// The time limit for each step until a session is connected, and for each write.
const PATIENCE: Duration = Duration::from_secs(5);
/// The time after which the [`Switch`] is asked again about a verb that it holds. `HELD_TIMES` is how often it is asked
/// before the verb is forwarded in any case.
const HELD: Duration = Duration::from_micros(50);
const HELD_TIMES: u32 = 20;
/// The largest number of bytes, from the start of a WRITE, that are shown to the [`Switch`].
const START_BYTES: usize = 64;

/// A function that returns number and address of the memory node with a given name
/// ([`NodeKey::name`](fusee_auth::NodeKey::name)).
pub type TcpNodeLookup = dyn Fn(u64) -> Option<(MnId, String)> + Send + Sync;

/// A running switch. Dropping it ends all connections.
pub struct TcpSwitch {
    addr: SocketAddr,
    shared: Arc<TcpSwitchShared>,
    listener: Option<JoinHandle<()>>,
}

struct TcpSwitchShared {
    switch: Mutex<Box<dyn Switch + Send>>,
    find: Box<TcpNodeLookup>,
    /// The two streams of each connection: to the session and to the node.
    open: Mutex<HashMap<u64, [TcpStream; 2]>>,
    /// The number of connections that are being served.
    served: AtomicUsize,
    next: AtomicU64,
    is_over: AtomicBool,
}

/// The CASes of a request whose reply has not passed yet: the number of each CAS among the connection's verbs, and the
/// position of its result in the reply's body.
type UnansweredCas = Vec<(u64, usize)>;

impl TcpSwitchShared {
    fn switch(&self) -> MutexGuard<'_, Box<dyn Switch + Send>> {
        self.switch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) -> MutexGuard<'_, HashMap<u64, [TcpStream; 2]>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TcpSwitch {
    /// Listens at `addr` (port 0: any free port), and forwards to the nodes that `find` returns.
    pub fn start(
        addr: SocketAddr,
        switch: Box<dyn Switch + Send>,
        find: Box<TcpNodeLookup>,
    ) -> Result<TcpSwitch, ServeError> {
        let at = || addr.to_string();
        let io = |source| ServeError::Io { at: at(), source };
        let listener = TcpListener::bind(addr).map_err(|source| match source.kind() {
            io::ErrorKind::AddrInUse => ServeError::AddressInUse { at: at() },
            _ => io(source),
        })?;
        let addr = listener.local_addr().map_err(io)?;
        let shared = Arc::new(TcpSwitchShared {
            switch: Mutex::new(switch),
            find,
            open: Mutex::default(),
            served: AtomicUsize::new(0),
            next: AtomicU64::new(1),
            is_over: AtomicBool::new(false),
        });
        let theirs = shared.clone();
        let accept = move || {
            for stream in listener.incoming() {
                if theirs.is_over.load(Ordering::Relaxed) {
                    return;
                }
                match stream {
                    Ok(stream) => accept(&theirs, stream),
                    // One possible cause is too many open files.
                    Err(error) => {
                        tracing::warn!(%error, "cannot take a connection");
                        thread::sleep(Duration::from_millis(100));
                    }
                }
            }
        };
        let spawned = thread::Builder::new().name("fusee-switch".into()).spawn(accept);
        let listener = spawned.map_err(io)?;
        Ok(TcpSwitch { addr, shared, listener: Some(listener) })
    }

    /// Returns the address at which the switch listens, with the actual port.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Makes the switch forget all that it knows of slots and writes.
    pub fn forget(&self) {
        self.shared.switch().forget(ForgetScope::All);
    }

    /// Returns the counts of the switch's work so far.
    pub fn counts(&self) -> SwitchCounts {
        self.shared.switch().counts()
    }

    /// Returns the memory that the switch's knowledge takes.
    pub fn bytes(&self) -> SwitchMemory {
        self.shared.switch().bytes()
    }

    /// Returns the number of open connections.
    pub fn connections(&self) -> usize {
        self.shared.open().len()
    }
}

impl Drop for TcpSwitch {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        for sides in self.shared.open().values() {
            sides.iter().for_each(close);
        }
        // Wakes the listening thread, which then sees the flag.
        let _ = TcpStream::connect_timeout(&self.addr, PATIENCE);
        if let Some(listener) = self.listener.take() {
            let _ = listener.join();
        }
    }
}

fn close(stream: &TcpStream) {
    // The call fails if the stream is closed already.
    let _ = stream.shutdown(Shutdown::Both);
}

fn accept(shared: &Arc<TcpSwitchShared>, stream: TcpStream) {
    let served = CountedConnection::one_more(shared.clone());
    if shared.served.load(Ordering::Relaxed) > CONNECTIONS {
        tracing::warn!("there are {CONNECTIONS} connections: another one is sent away");
        return;
    }
    let serve = move || {
        let peer = stream.peer_addr();
        if let Err(error) = serve(&served.0, stream) {
            tracing::debug!(?peer, %error, "a connection has ended");
        }
    };
    if let Err(error) = thread::Builder::new().name("fusee-switch-there".into()).spawn(serve) {
        tracing::warn!(%error, "cannot serve a connection");
    }
}

/// A connection that is being served. It is counted until it is dropped.
struct CountedConnection(Arc<TcpSwitchShared>);

impl CountedConnection {
    fn one_more(shared: Arc<TcpSwitchShared>) -> CountedConnection {
        shared.served.fetch_add(1, Ordering::Relaxed);
        CountedConnection(shared)
    }
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        self.0.served.fetch_sub(1, Ordering::Relaxed);
    }
}

fn garbage(what: impl ToString) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_string())
}

/// Sets the options and limits by which a slow peer, or a peer whose machine has died, is noticed.
fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    sys::keep_alive(stream)
}

/// Reads a client's call, and returns the name of the node that it is for. A client of another version gets a refusal
/// that names this version.
fn read_call(client: &mut TcpStream, call: &mut [u8; CALL_BYTES]) -> io::Result<u64> {
    let (begin, rest) = call.split_at_mut(BEGIN_BYTES);
    client.read_exact(begin)?;
    if begin[0] == FIRST_BYTE {
        // The refusal goes out in plain text, although the client expects TLS, because a switch has no TLS.
        client.write_all(&ChallengeRefusal::SpeaksNoTls.encode(&PROTOCOL))?;
        return Err(garbage("it speaks TLS, and a switch does not"));
    }
    match PROTOCOL.check(ConnectionEnd::Server, begin) {
        Ok(_) => {}
        Err(ProtocolMismatch::Stranger) => return Err(garbage("it is no client")),
        Err(ProtocolMismatch::Version(error)) => {
            client.write_all(&ChallengeRefusal::OtherVersion.encode(&PROTOCOL))?;
            return Err(garbage(error));
        }
    }
    client.read_exact(rest)?;
    challenge::called_node_name(&PROTOCOL, call).map_err(|_| garbage("it is no client"))
}

/// Forwards a message of `N` bytes, and returns it.
fn pass<const N: usize>(from: &mut TcpStream, to: &mut TcpStream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes)?;
    to.write_all(&bytes)?;
    Ok(bytes)
}

/// Serves a connection from the call to the connection's end.
fn serve(shared: &Arc<TcpSwitchShared>, mut client: TcpStream) -> io::Result<()> {
    prepare(&client)?;
    let mut call = [0; CALL_BYTES];
    let name = read_call(&mut client, &mut call)?;
    let Some((node, address)) = (shared.find)(name) else {
        return client.write_all(&ChallengeRefusal::WrongNode.encode(&PROTOCOL));
    };
    let address =
        address.to_socket_addrs()?.next().ok_or_else(|| garbage("a host without address"))?;
    let mut upstream = TcpStream::connect_timeout(&address, PATIENCE)?;
    prepare(&upstream)?;
    upstream.write_all(&call)?;
    pass::<ANSWER_BYTES>(&mut upstream, &mut client)?;
    // A client that was refused sends no more, so the connection ends here.
    pass::<{ PROOF_BYTES + HELLO_BYTES }>(&mut client, &mut upstream)?;
    let welcome = pass::<WELCOME_BYTES>(&mut upstream, &mut client)?;
    if TcpWelcome::decode(&welcome).map_err(garbage)?.status != TcpHelloStatus::Welcome {
        return Ok(());
    }
    // A session can be silent for any length of time.
    client.set_read_timeout(None)?;
    upstream.set_read_timeout(None)?;
    let mut from = upstream.try_clone()?;
    let mut to = client.try_clone()?;
    let sides = [client.try_clone()?, upstream.try_clone()?];
    let id = shared.next.fetch_add(1, Ordering::Relaxed);
    shared.open().insert(id, sides);
    if shared.is_over.load(Ordering::Relaxed) {
        [&client, &upstream].into_iter().for_each(close);
    }
    let connection = SwitchConnection(id);
    let cases = Mutex::default();
    let way = Arc::new(SwitchedConnection { shared: shared.clone(), connection, node, cases });
    let back = way.clone();
    let answers = move || {
        let ended = back.answers(&mut from, &mut to);
        [&from, &to].into_iter().for_each(close);
        ended
    };
    let answers = thread::Builder::new().name("fusee-switch-back".into()).spawn(answers);
    let ended = answers.and_then(|answers| {
        let ended = way.requests(&mut client, &mut upstream);
        [&client, &upstream].into_iter().for_each(close);
        let _ = answers.join();
        ended
    });
    shared.open().remove(&id);
    shared.switch().forget(ForgetScope::Connection(connection));
    ended
}

/// A connection that passes the switch.
struct SwitchedConnection {
    shared: Arc<TcpSwitchShared>,
    connection: SwitchConnection,
    node: MnId,
    /// The CASes of requests without a reply, in the order of the requests.
    cases: Mutex<VecDeque<UnansweredCas>>,
}

impl SwitchedConnection {
    fn cases(&self) -> MutexGuard<'_, VecDeque<UnansweredCas>> {
        self.cases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forwards the session's requests. The [`Switch`] decides about each verb.
    fn requests(&self, from: &mut TcpStream, to: &mut TcpStream) -> io::Result<()> {
        let mut frame = Vec::new();
        let mut number = 0;
        while read_frame(from, &mut frame)? {
            let request = TcpRequest::decode(&frame).map_err(garbage)?;
            let request = request.ok_or_else(|| garbage("half a request"))?;
            let mut steered = Vec::new();
            let mut cases = UnansweredCas::new();
            let mut result = 0;
            for (at, verb) in request.verbs_at() {
                number += 1;
                let place = PoolPlace { node: self.node, offset: verb.offset };
                let kind = match verb.op {
                    WireOp::Read(bytes) => SwitchVerb::Read(bytes),
                    WireOp::Steered(bytes) => SwitchVerb::Steered(bytes),
                    WireOp::Write(data) => {
                        SwitchVerb::Write(data.len() as u32, &data[..data.len().min(START_BYTES)])
                    }
                    WireOp::Cas { expected, swap } => {
                        cases.push((number, result));
                        SwitchVerb::Cas { expected, swap }
                    }
                    WireOp::Faa { .. } => SwitchVerb::Faa,
                };
                result += verb.result_bytes();
                let connection = self.connection;
                if let Some(offset) = self.ask(&Asked { connection, number, place, verb: kind }) {
                    steered.push((at, offset));
                }
            }
            for (at, offset) in steered {
                frame::set_offset(&mut frame[at..], offset);
            }
            // The CASes are recorded before the node can answer the request.
            self.cases().push_back(cases);
            to.write_all(&frame)?;
        }
        Ok(())
    }

    /// Waits while the switch holds a verb. Returns the offset to which the verb is steered; `None` if the verb is
    /// not steered.
    fn ask(&self, request: &Asked<'_>) -> Option<u64> {
        for _ in 0..HELD_TIMES {
            match self.shared.switch().request(request) {
                SwitchDecision::Forward => return None,
                SwitchDecision::Steer(offset) => return Some(offset),
                SwitchDecision::Hold => {}
            }
            thread::sleep(HELD);
        }
        None
    }

    /// Forwards replies, and tells the switch the results of CASes.
    fn answers(&self, from: &mut TcpStream, to: &mut TcpStream) -> io::Result<()> {
        let mut frame = Vec::new();
        while read_frame(from, &mut frame)? {
            let reply = TcpReply::decode(&frame).map_err(garbage)?;
            let reply = reply.ok_or_else(|| garbage("half a reply"))?;
            if reply.kind == ReplyKind::Results {
                let cases = self.cases().pop_front();
                let cases = cases.ok_or_else(|| garbage("a reply to nothing"))?;
                let body = &frame[frame::HEADER_BYTES..];
                let mut switch = self.shared.switch();
                for (number, at) in cases {
                    let found = body.get(at..at + 8).ok_or_else(|| garbage("a short reply"))?;
                    let found = u64::from_le_bytes(found.try_into().expect("8 bytes"));
                    switch.answer(&CasAnswer { connection: self.connection, number, found });
                }
            }
            to.write_all(&frame)?;
        }
        Ok(())
    }
}

/// Reads the frame of a request or reply. Returns `false` at the end of the connection.
fn read_frame(from: &mut TcpStream, frame: &mut Vec<u8>) -> io::Result<bool> {
    frame.resize(frame::HEADER_BYTES, 0);
    match from.read(&mut frame[..1])? {
        0 => return Ok(false),
        _ => from.read_exact(&mut frame[1..])?,
    }
    let body = u32::from_le_bytes(frame[..4].try_into().expect("4 bytes")) as usize;
    if body > MAX_BODY_BYTES {
        return Err(garbage("a frame is too long"));
    }
    // Memory is allocated as bytes arrive, because a peer can announce more than it sends.
    match from.take(body as u64).read_to_end(frame)? {
        read if read == body => Ok(true),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}
