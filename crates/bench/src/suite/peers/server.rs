//! Memcached and Redis as peers: a server that is started here and stopped at the end, and connections to it.

use std::cell::RefCell;
use std::io::{self, Write};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fusee_cli::failure::Failure;

use super::cpu::{self, ProcessThread};
use super::error::PeerError;
use super::wire::{PeerConnection, PeerSocket, number, unexpected};
use super::{PeerSettings, PeerStore, PeerValues};
use crate::loaded_cluster::{LoadedClusterArgs, last_byte};
use crate::store::{BenchSession, BenchStore, PipelinedRequest, PipelinedSession, poll_to_end};
use crate::temporary::{TemporaryHandle, free_port};
use fusee_workload::{KEY_BYTES, key_bytes};

/// The time limit for a server to answer after its start.
const START_PATIENCE: Duration = Duration::from_secs(10);
/// Number of requests that are sent together while loading.
const LOADED_TOGETHER: usize = 64;

/// The condition under which a server stores a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetCondition {
    Always,
    /// Only if the key does not exist.
    Absent,
    /// Only if the key exists.
    There,
}

/// The protocol of one of the servers.
pub trait PeerProtocol {
    fn get(out: &mut Vec<u8>, key: &[u8]);
    fn set(out: &mut Vec<u8>, key: &[u8], value: &[u8], when: SetCondition);
    fn delete(out: &mut Vec<u8>, key: &[u8]);
    /// Receives the value, if the key exists.
    fn receive_value(connection: &mut PeerConnection) -> io::Result<Option<&[u8]>>;
    /// Receives whether the value was stored.
    fn receive_stored(connection: &mut PeerConnection) -> io::Result<bool>;
    /// Receives whether the key existed.
    fn receive_deleted(connection: &mut PeerConnection) -> io::Result<bool>;
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
    /// Waits until the server answers.
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
    pub fn load(self, way: &PeerSettings) -> Result<PeerServer<P>, Failure> {
        let all =
            (0..way.size.keys).map(|number| PipelinedRequest::Update(key_bytes(number.into())));
        let all: Vec<PipelinedRequest> = all.collect();
        let loaded = self.open_session().map_err(PeerError::from);
        let loaded = loaded.and_then(|talk| talk.run(&all, &way.values(), LOADED_TOGETHER));
        loaded.map_err(|error| Failure::operation(format!("cannot load: {error}")))?;
        Ok(self)
    }

    /// Waits until the server answers.
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

    fn open_session(&self) -> io::Result<PeerSession<P>> {
        let connect = |_| Ok(PeerConnection::new(self.address.connect()?));
        let connections = (0..self.connections).map(connect).collect::<io::Result<_>>()?;
        Ok(PeerSession { connections: RefCell::new(connections), protocol: PhantomData })
    }
}

impl<P: PeerProtocol> BenchStore for PeerServer<P> {
    type Session = PeerSession<P>;

    fn open(&self) -> Result<PeerSession<P>, PeerError> {
        Ok(self.open_session()?)
    }
}

impl<P: PeerProtocol + 'static> PeerStore for PeerServer<P> {
    fn server_threads(&self) -> Result<Vec<ProcessThread>, Failure> {
        Ok(cpu::process_threads(self.process.id(), None)?)
    }
}

/// The connections of one client thread. `depth` requests are in flight on all of them together.
pub struct PeerSession<P> {
    connections: RefCell<Vec<PeerConnection>>,
    protocol: PhantomData<fn() -> P>,
}

impl<P: PeerProtocol> PeerSession<P> {
    /// Sends one request and returns its answer.
    fn round_trip<T>(
        &self,
        request: impl FnOnce(&mut Vec<u8>),
        answer: impl FnOnce(&mut PeerConnection) -> io::Result<T>,
    ) -> io::Result<T> {
        let connection = &mut self.connections.borrow_mut()[0];
        request(connection.out());
        connection.send()?;
        answer(connection)
    }
}

impl<P: PeerProtocol> BenchSession for PeerSession<P> {
    type Error = PeerError;

    fn block_on<T>(&self, operations: impl Future<Output = T>) -> T {
        poll_to_end(operations)
    }

    async fn get_with<R>(
        &self,
        key: &[u8],
        found: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Result<R, PeerError> {
        Ok(self.round_trip(
            |out| P::get(out, key),
            |connection| P::receive_value(connection).map(found),
        )?)
    }

    async fn insert(&self, key: &[u8], value: &[u8]) -> Result<(), PeerError> {
        if self
            .round_trip(|out| P::set(out, key, value, SetCondition::Absent), P::receive_stored)?
        {
            Ok(())
        } else {
            Err(PeerError::Exists)
        }
    }

    async fn update(&self, key: &[u8], value: &[u8]) -> Result<(), PeerError> {
        if self.round_trip(|out| P::set(out, key, value, SetCondition::There), P::receive_stored)? {
            Ok(())
        } else {
            Err(PeerError::Absent)
        }
    }

    async fn delete(&self, key: &[u8]) -> Result<(), PeerError> {
        if self.round_trip(|out| P::delete(out, key), P::receive_deleted)? {
            Ok(())
        } else {
            Err(PeerError::Absent)
        }
    }

    /// An operation blocks its thread until its answer has come.
    fn is_immediate(&self) -> bool {
        true
    }
}

impl<P: PeerProtocol> PipelinedSession for PeerSession<P> {
    fn run(
        &self,
        requests: &[PipelinedRequest],
        values: &PeerValues,
        depth: usize,
    ) -> Result<(), PeerError> {
        let connections = &mut *self.connections.borrow_mut();
        let count = connections.len();
        for requests in requests.chunks(depth) {
            for (i, request) in requests.iter().enumerate() {
                let out = connections[i % count].out();
                match request {
                    PipelinedRequest::Get(key) => P::get(out, key),
                    PipelinedRequest::Update(key) => {
                        P::set(out, key, values.of(key), SetCondition::Always)
                    }
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
                    PipelinedRequest::Update(_) => {
                        assert!(P::receive_stored(connection)?, "it is stored")
                    }
                }
            }
        }
        Ok(())
    }
}

/// Receives the value that an answer announces, and the end of its line.
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

    fn set(out: &mut Vec<u8>, key: &[u8], value: &[u8], when: SetCondition) {
        let mode = match when {
            SetCondition::Always => "",
            SetCondition::Absent => " ME",
            SetCondition::There => " MR",
        };
        out.extend_from_slice(b"ms ");
        out.extend_from_slice(key);
        write!(out, " {}{mode}\r\n", value.len()).expect("a vector takes everything");
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    }

    fn delete(out: &mut Vec<u8>, key: &[u8]) {
        out.extend_from_slice(b"md ");
        out.extend_from_slice(key);
        out.extend_from_slice(b"\r\n");
    }

    fn receive_value(connection: &mut PeerConnection) -> io::Result<Option<&[u8]>> {
        let promised = match connection.line()? {
            b"EN" => return Ok(None),
            line => number(line, b"VA ")?,
        };
        value(connection, promised)
    }

    fn receive_stored(connection: &mut PeerConnection) -> io::Result<bool> {
        match connection.line()? {
            b"HD" => Ok(true),
            b"NS" => Ok(false),
            other => Err(unexpected(other)),
        }
    }

    fn receive_deleted(connection: &mut PeerConnection) -> io::Result<bool> {
        match connection.line()? {
            b"HD" => Ok(true),
            b"NF" => Ok(false),
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

    fn set(out: &mut Vec<u8>, key: &[u8], value: &[u8], when: SetCondition) {
        let (head, end): (&[u8], &[u8]) = match when {
            SetCondition::Always => (b"*3\r\n", b"\r\n"),
            SetCondition::Absent => (b"*4\r\n", b"\r\n$2\r\nNX\r\n"),
            SetCondition::There => (b"*4\r\n", b"\r\n$2\r\nXX\r\n"),
        };
        out.extend_from_slice(head);
        out.extend_from_slice(b"$3\r\nSET\r\n$16\r\n");
        out.extend_from_slice(key);
        write!(out, "\r\n${}\r\n", value.len()).expect("a vector takes everything");
        out.extend_from_slice(value);
        out.extend_from_slice(end);
    }

    fn delete(out: &mut Vec<u8>, key: &[u8]) {
        out.extend_from_slice(b"*2\r\n$3\r\nDEL\r\n$16\r\n");
        out.extend_from_slice(key);
        out.extend_from_slice(b"\r\n");
    }

    fn receive_value(connection: &mut PeerConnection) -> io::Result<Option<&[u8]>> {
        let promised = match connection.line()? {
            b"$-1" => return Ok(None),
            line => number(line, b"$")?,
        };
        value(connection, promised)
    }

    fn receive_stored(connection: &mut PeerConnection) -> io::Result<bool> {
        match connection.line()? {
            b"+OK" => Ok(true),
            b"$-1" => Ok(false),
            other => Err(unexpected(other)),
        }
    }

    fn receive_deleted(connection: &mut PeerConnection) -> io::Result<bool> {
        match connection.line()? {
            b":1" => Ok(true),
            b":0" => Ok(false),
            other => Err(unexpected(other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::peers::tests::small;
    use crate::suite::sizes::SizeDistribution;
    use crate::temporary::is_installed;

    /// Drives the server as any store, or does nothing if the server is not installed.
    fn drive<P: PeerProtocol>(
        program: &str,
        start: fn(&PeerSettings) -> Result<PeerServer<P>, Failure>,
    ) {
        if !is_installed(program) {
            return println!("SKIPPED: {program} is not installed");
        }
        let values = SizeDistribution::Fixed(48);
        let way = PeerSettings { size: small(), values, memory_nodes: 3, connections: 1 };
        crate::driver::tests::drive(&start(&way).unwrap());
    }

    #[test]
    fn a_workload_on_memcached_is_verified_like_one_on_fusee() {
        drive("memcached", Memcached::unix);
    }

    #[test]
    fn a_workload_on_redis_is_verified_like_one_on_fusee() {
        drive("redis-server", Redis::unix);
    }
}
