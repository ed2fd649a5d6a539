//! Memcached and Redis as peers: a server that is started here and stopped at the end, and connections to it.

use std::cell::RefCell;
use std::io::{self, Write};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fusee_cli::failure::Failure;

use super::cpu::{self, ProcessThread};
use super::wire::{PeerConnection, PeerSocket, number, unexpected};
use super::{PeerSession, PeerSettings, PeerStore, PeerValues, PipelinedRequest};
use crate::loaded_cluster::{LoadedClusterArgs, last_byte};
use crate::temporary::{TemporaryHandle, free_port};
use fusee_workload::{KEY_BYTES, key_bytes};

/// The time limit for a server to accept a connection after its start.
const START_PATIENCE: Duration = Duration::from_secs(10);
/// Number of requests that are sent together while loading.
const LOADED_TOGETHER: usize = 64;

/// The protocol of one of the servers.
pub trait PeerProtocol {
    fn get(out: &mut Vec<u8>, key: &[u8]);
    fn set(out: &mut Vec<u8>, key: &[u8], value: &[u8]);
    /// Receives the value, if the key exists.
    fn receive_value(connection: &mut PeerConnection) -> io::Result<Option<&[u8]>>;
    /// Fails if the value was not stored.
    fn receive_stored(connection: &mut PeerConnection) -> io::Result<()>;
}

/// The address of a server.
enum PeerAddress {
    Unix(PathBuf),
    Tcp(u16),
}

impl PeerAddress {
    fn connect(&self) -> io::Result<PeerSocket> {
        match self {
            PeerAddress::Unix(path) => PeerSocket::unix(path),
            PeerAddress::Tcp(port) => PeerSocket::tcp(*port),
        }
    }
}

/// A server, and its address.
pub struct PeerServer<P> {
    process: TemporaryHandle,
    address: PeerAddress,
    /// Number of connections of each client thread.
    connections: u16,
    protocol: PhantomData<fn() -> P>,
}

impl<P: PeerProtocol> PeerServer<P> {
    /// Wraps a server that was started, and waits until it accepts a connection.
    fn new(
        process: TemporaryHandle,
        address: PeerAddress,
        way: &PeerSettings,
    ) -> Result<PeerServer<P>, Failure> {
        let connections = way.connections;
        let server = PeerServer { process, address, connections, protocol: PhantomData };
        server.wait()?;
        Ok(server)
    }

    /// Puts all pairs into the server.
    pub fn load(self, way: &PeerSettings) -> Result<PeerServer<P>, Failure>
    where
        P: 'static,
    {
        let all =
            (0..way.size.keys).map(|number| PipelinedRequest::Update(key_bytes(number.into())));
        let all: Vec<PipelinedRequest> = all.collect();
        self.open_session()?.run(&all, &way.values(), LOADED_TOGETHER)?;
        Ok(self)
    }

    /// Waits until the server accepts a connection.
    fn wait(&self) -> io::Result<()> {
        let end = Instant::now() + START_PATIENCE;
        loop {
            match self.address.connect() {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() >= end => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
            if let Some(status) = self.process.ended()? {
                return Err(io::Error::other(format!("the server ended: {status}")));
            }
        }
    }
}

impl<P: PeerProtocol + 'static> PeerStore for PeerServer<P> {
    type Session = ServerSession<P>;

    fn open_session(&self) -> Result<ServerSession<P>, Failure> {
        let connect = |_| Ok(PeerConnection::new(self.address.connect()?));
        let connections = (0..self.connections).map(connect).collect::<io::Result<_>>()?;
        Ok(ServerSession { connections: RefCell::new(connections), protocol: PhantomData })
    }

    fn server_threads(&self) -> Result<Vec<ProcessThread>, Failure> {
        Ok(cpu::process_threads(self.process.id(), None)?)
    }
}

/// The connections of one client thread. `depth` requests are in flight on all of them together.
pub struct ServerSession<P> {
    connections: RefCell<Vec<PeerConnection>>,
    protocol: PhantomData<fn() -> P>,
}

impl<P: PeerProtocol> PeerSession for ServerSession<P> {
    fn run(
        &self,
        requests: &[PipelinedRequest],
        values: &PeerValues,
        depth: usize,
    ) -> Result<(), Failure> {
        let connections = &mut *self.connections.borrow_mut();
        let count = connections.len();
        for requests in requests.chunks(depth) {
            for (i, request) in requests.iter().enumerate() {
                let out = connections[i % count].out();
                match request {
                    PipelinedRequest::Get(key) => P::get(out, key),
                    PipelinedRequest::Update(key) => P::set(out, key, values.of(key)),
                }
            }
            for connection in connections.iter_mut().take(requests.len()) {
                connection.send()?;
            }
            for (i, request) in requests.iter().enumerate() {
                let connection = &mut connections[i % count];
                match request {
                    PipelinedRequest::Get(key) => {
                        let value = values.of(key);
                        let found = P::receive_value(connection)?.expect("every key is there");
                        assert_eq!(
                            (found.len(), last_byte(found)),
                            (value.len(), last_byte(value))
                        );
                    }
                    PipelinedRequest::Update(_) => P::receive_stored(connection)?,
                }
            }
        }
        Ok(())
    }
}

/// Receives a value of `len` bytes, and the end of line after it.
fn value(connection: &mut PeerConnection, len: usize) -> io::Result<Option<&[u8]>> {
    let bytes = connection.bytes(len + 2)?;
    Ok(Some(&bytes[..len]))
}

pub struct Memcached;

impl Memcached {
    fn start(
        size: &LoadedClusterArgs,
        at: impl FnOnce(&Path) -> Vec<String>,
    ) -> io::Result<TemporaryHandle> {
        let bytes = u64::from(size.keys) * (u64::from(size.pair_bytes) + 512);
        let own_user = ["-u", "root", "-m"].map(String::from);
        let args = own_user.into_iter().chain([(64 + (bytes >> 19)).to_string()]);
        TemporaryHandle::process("memcached", |dir| args.chain(at(dir)).collect())
    }

    pub fn unix(way: &PeerSettings) -> Result<PeerServer<Memcached>, Failure> {
        let at = |dir: &Path| vec!["-s".into(), socket(dir).display().to_string()];
        let process = Memcached::start(&way.size, at)?;
        let address = PeerAddress::Unix(socket(process.path()));
        PeerServer::new(process, address, way)
    }

    pub fn tcp(way: &PeerSettings) -> Result<PeerServer<Memcached>, Failure> {
        let port = free_port()?;
        let at = ["-l".into(), "127.0.0.1".into(), "-p".into(), port.to_string()];
        let process = Memcached::start(&way.size, |_| at.to_vec())?;
        PeerServer::new(process, PeerAddress::Tcp(port), way)
    }
}

fn socket(dir: &Path) -> PathBuf {
    dir.join("socket")
}

/// Speaks memcached's meta commands, which are the shortest.
impl PeerProtocol for Memcached {
    fn get(out: &mut Vec<u8>, key: &[u8]) {
        out.extend_from_slice(b"mg ");
        out.extend_from_slice(key);
        out.extend_from_slice(b" v\r\n");
    }

    fn set(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
        out.extend_from_slice(b"ms ");
        out.extend_from_slice(key);
        write!(out, " {}\r\n", value.len()).expect("a vector takes everything");
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    }

    fn receive_value(connection: &mut PeerConnection) -> io::Result<Option<&[u8]>> {
        let promised = match connection.line()? {
            b"EN" => return Ok(None),
            line => number(line, b"VA ")?,
        };
        value(connection, promised)
    }

    fn receive_stored(connection: &mut PeerConnection) -> io::Result<()> {
        match connection.line()? {
            b"HD" => Ok(()),
            other => Err(unexpected(other)),
        }
    }
}

pub struct Redis;

impl Redis {
    fn start(port: u16) -> io::Result<TemporaryHandle> {
        TemporaryHandle::process("redis-server", |dir| {
            let path = socket(dir).display().to_string();
            let port = port.to_string();
            let own = dir.display().to_string();
            let args =
                ["--port", &port, "--bind", "127.0.0.1", "--unixsocket", &path, "--dir", &own];
            let lasting = ["--save", "", "--appendonly", "no"];
            args.into_iter().chain(lasting).map(String::from).collect()
        })
    }

    pub fn unix(way: &PeerSettings) -> Result<PeerServer<Redis>, Failure> {
        let process = Redis::start(0)?;
        let address = PeerAddress::Unix(socket(process.path()));
        PeerServer::new(process, address, way)
    }

    pub fn tcp(way: &PeerSettings) -> Result<PeerServer<Redis>, Failure> {
        let port = free_port()?;
        PeerServer::new(Redis::start(port)?, PeerAddress::Tcp(port), way)
    }
}

const _: () = assert!(KEY_BYTES == 16, "it stands in the requests");

impl PeerProtocol for Redis {
    fn get(out: &mut Vec<u8>, key: &[u8]) {
        out.extend_from_slice(b"*2\r\n$3\r\nGET\r\n$16\r\n");
        out.extend_from_slice(key);
        out.extend_from_slice(b"\r\n");
    }

    fn set(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
        out.extend_from_slice(b"*3\r\n$3\r\nSET\r\n$16\r\n");
        out.extend_from_slice(key);
        write!(out, "\r\n${}\r\n", value.len()).expect("a vector takes everything");
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    }

    fn receive_value(connection: &mut PeerConnection) -> io::Result<Option<&[u8]>> {
        let promised = match connection.line()? {
            b"$-1" => return Ok(None),
            line => number(line, b"$")?,
        };
        value(connection, promised)
    }

    fn receive_stored(connection: &mut PeerConnection) -> io::Result<()> {
        match connection.line()? {
            b"+OK" => Ok(()),
            other => Err(unexpected(other)),
        }
    }
}
