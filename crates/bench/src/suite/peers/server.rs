//! Memcached and Redis: a server, started here and stopped in the end, and connections to it.

use std::cell::RefCell;
use std::io::{self, Write};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fusee_cli::failure::Failure;

use super::cpu::{self, Task};
use super::error::PeerError;
use super::wire::{Connection, Socket, number, unexpected};
use super::{Peer, Values, Way};
use crate::loaded::{Size, last};
use crate::store::{Pipelined, Request, Session, Store, poll_to_end};
use crate::temporary::{Temporary, free_port};
use fusee_workload::{KEY_BYTES, key_bytes};

/// The time limit for a server to answer.
const START_PATIENCE: Duration = Duration::from_secs(10);
/// Requests that are sent together while loading.
const LOADED_TOGETHER: usize = 64;

/// The condition for storing a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    Always,
    /// If the key does not exist.
    Absent,
    /// If the key exists.
    There,
}

/// The protocol of one of the servers.
pub trait Protocol {
    fn get(out: &mut Vec<u8>, key: &[u8]);
    fn set(out: &mut Vec<u8>, key: &[u8], value: &[u8], when: When);
    fn delete(out: &mut Vec<u8>, key: &[u8]);
    /// Receives the value, if the key exists.
    fn got(connection: &mut Connection) -> io::Result<Option<&[u8]>>;
    /// Receives whether the value was stored.
    fn was_set(connection: &mut Connection) -> io::Result<bool>;
    /// Receives whether the key existed.
    fn was_deleted(connection: &mut Connection) -> io::Result<bool>;
}

/// The address of a server.
enum Address {
    Unix(PathBuf),
    Tcp(u16),
}

impl Address {
    fn connect(&self) -> io::Result<Socket> {
        match self {
            Address::Unix(path) => Socket::unix(path),
            Address::Tcp(port) => Socket::tcp(*port),
        }
    }
}

/// A server, and the way to it.
pub struct Server<P> {
    process: Temporary,
    address: Address,
    /// Of each client thread.
    connections: u16,
    protocol: PhantomData<fn() -> P>,
}

impl<P: Protocol> Server<P> {
    /// Waits until the server answers.
    fn new(process: Temporary, address: Address, way: &Way) -> Result<Server<P>, Failure> {
        let connections = way.connections;
        let server = Server { process, address, connections, protocol: PhantomData };
        server.wait()?;
        Ok(server)
    }

    /// Puts all pairs into the server.
    pub fn load(self, way: &Way) -> Result<Server<P>, Failure> {
        let all = (0..way.size.keys).map(|number| Request::Update(key_bytes(number.into())));
        let all: Vec<Request> = all.collect();
        let loaded = self.talk().map_err(PeerError::from);
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

    fn talk(&self) -> io::Result<Talk<P>> {
        let connect = |_| Ok(Connection::new(self.address.connect()?));
        let connections = (0..self.connections).map(connect).collect::<io::Result<_>>()?;
        Ok(Talk { connections: RefCell::new(connections), protocol: PhantomData })
    }
}

impl<P: Protocol> Store for Server<P> {
    type Session = Talk<P>;

    fn open(&self) -> Result<Talk<P>, PeerError> {
        Ok(self.talk()?)
    }
}

impl<P: Protocol + 'static> Peer for Server<P> {
    fn server(&self) -> Result<Vec<Task>, Failure> {
        Ok(cpu::tasks(self.process.id(), None)?)
    }
}

/// Connections, with `depth` requests in flight on all of them together.
pub struct Talk<P> {
    connections: RefCell<Vec<Connection>>,
    protocol: PhantomData<fn() -> P>,
}

impl<P: Protocol> Talk<P> {
    /// Sends one request and returns its answer.
    fn ask<T>(
        &self,
        request: impl FnOnce(&mut Vec<u8>),
        answer: impl FnOnce(&mut Connection) -> io::Result<T>,
    ) -> io::Result<T> {
        let connection = &mut self.connections.borrow_mut()[0];
        request(connection.out());
        connection.send()?;
        answer(connection)
    }
}

impl<P: Protocol> Session for Talk<P> {
    type Error = PeerError;

    fn block_on<T>(&self, operations: impl Future<Output = T>) -> T {
        poll_to_end(operations)
    }

    async fn get_with<R>(
        &self,
        key: &[u8],
        found: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Result<R, PeerError> {
        Ok(self.ask(|out| P::get(out, key), |connection| P::got(connection).map(found))?)
    }

    async fn insert(&self, key: &[u8], value: &[u8]) -> Result<(), PeerError> {
        if self.ask(|out| P::set(out, key, value, When::Absent), P::was_set)? {
            Ok(())
        } else {
            Err(PeerError::Exists)
        }
    }

    async fn update(&self, key: &[u8], value: &[u8]) -> Result<(), PeerError> {
        if self.ask(|out| P::set(out, key, value, When::There), P::was_set)? {
            Ok(())
        } else {
            Err(PeerError::Absent)
        }
    }

    async fn delete(&self, key: &[u8]) -> Result<(), PeerError> {
        if self.ask(|out| P::delete(out, key), P::was_deleted)? {
            Ok(())
        } else {
            Err(PeerError::Absent)
        }
    }

    /// The thread waits within an operation.
    fn is_immediate(&self) -> bool {
        true
    }
}

impl<P: Protocol> Pipelined for Talk<P> {
    fn run(&self, requests: &[Request], values: &Values, depth: usize) -> Result<(), PeerError> {
        let connections = &mut *self.connections.borrow_mut();
        let count = connections.len();
        for requests in requests.chunks(depth) {
            for (i, request) in requests.iter().enumerate() {
                let out = connections[i % count].out();
                match request {
                    Request::Get(key) => P::get(out, key),
                    Request::Update(key) => P::set(out, key, values.of(key), When::Always),
                }
            }
            for connection in connections.iter_mut().take(requests.len()) {
                connection.send()?;
            }
            for (i, request) in requests.iter().enumerate() {
                let connection = &mut connections[i % count];
                match request {
                    Request::Get(key) => {
                        let value = values.of(key);
                        let found = P::got(connection)?.expect("every key is there");
                        assert_eq!((found.len(), last(found)), (value.len(), last(value)));
                    }
                    Request::Update(_) => assert!(P::was_set(connection)?, "it is stored"),
                }
            }
        }
        Ok(())
    }
}

/// Receives the value that an answer announces, up to the end of its line.
fn value(connection: &mut Connection, len: usize) -> io::Result<Option<&[u8]>> {
    let bytes = connection.bytes(len + 2)?;
    Ok(Some(&bytes[..len]))
}

pub struct Memcached;

impl Memcached {
    fn start(size: &Size, at: impl FnOnce(&Path) -> Vec<String>) -> io::Result<Temporary> {
        let bytes = u64::from(size.keys) * (u64::from(size.pair_bytes) + 512);
        let own_user = ["-u", "root", "-m"].map(String::from);
        let args = own_user.into_iter().chain([(64 + (bytes >> 19)).to_string()]);
        Temporary::process("memcached", |dir| args.chain(at(dir)).collect())
    }

    pub fn unix(way: &Way) -> Result<Server<Memcached>, Failure> {
        let at = |dir: &Path| vec!["-s".into(), socket(dir).display().to_string()];
        let process = Memcached::start(&way.size, at)?;
        let address = Address::Unix(socket(process.path()));
        Server::new(process, address, way)
    }

    pub fn tcp(way: &Way) -> Result<Server<Memcached>, Failure> {
        let port = free_port()?;
        let at = ["-l".into(), "127.0.0.1".into(), "-p".into(), port.to_string()];
        let process = Memcached::start(&way.size, |_| at.to_vec())?;
        Server::new(process, Address::Tcp(port), way)
    }
}

fn socket(dir: &Path) -> PathBuf {
    dir.join("socket")
}

/// The meta commands, which are the shortest.
impl Protocol for Memcached {
    fn get(out: &mut Vec<u8>, key: &[u8]) {
        out.extend_from_slice(b"mg ");
        out.extend_from_slice(key);
        out.extend_from_slice(b" v\r\n");
    }

    fn set(out: &mut Vec<u8>, key: &[u8], value: &[u8], when: When) {
        let mode = match when {
            When::Always => "",
            When::Absent => " ME",
            When::There => " MR",
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

    fn got(connection: &mut Connection) -> io::Result<Option<&[u8]>> {
        let promised = match connection.line()? {
            b"EN" => return Ok(None),
            line => number(line, b"VA ")?,
        };
        value(connection, promised)
    }

    fn was_set(connection: &mut Connection) -> io::Result<bool> {
        match connection.line()? {
            b"HD" => Ok(true),
            b"NS" => Ok(false),
            other => Err(unexpected(other)),
        }
    }

    fn was_deleted(connection: &mut Connection) -> io::Result<bool> {
        match connection.line()? {
            b"HD" => Ok(true),
            b"NF" => Ok(false),
            other => Err(unexpected(other)),
        }
    }
}

pub struct Redis;

impl Redis {
    fn start(port: u16) -> io::Result<Temporary> {
        Temporary::process("redis-server", |dir| {
            let path = socket(dir).display().to_string();
            let port = port.to_string();
            let own = dir.display().to_string();
            let args =
                ["--port", &port, "--bind", "127.0.0.1", "--unixsocket", &path, "--dir", &own];
            let lasting = ["--save", "", "--appendonly", "no"];
            args.into_iter().chain(lasting).map(String::from).collect()
        })
    }

    pub fn unix(way: &Way) -> Result<Server<Redis>, Failure> {
        let process = Redis::start(0)?;
        let address = Address::Unix(socket(process.path()));
        Server::new(process, address, way)
    }

    pub fn tcp(way: &Way) -> Result<Server<Redis>, Failure> {
        let port = free_port()?;
        Server::new(Redis::start(port)?, Address::Tcp(port), way)
    }
}

const _: () = assert!(KEY_BYTES == 16, "it stands in the requests");

impl Protocol for Redis {
    fn get(out: &mut Vec<u8>, key: &[u8]) {
        out.extend_from_slice(b"*2\r\n$3\r\nGET\r\n$16\r\n");
        out.extend_from_slice(key);
        out.extend_from_slice(b"\r\n");
    }

    fn set(out: &mut Vec<u8>, key: &[u8], value: &[u8], when: When) {
        let (head, end): (&[u8], &[u8]) = match when {
            When::Always => (b"*3\r\n", b"\r\n"),
            When::Absent => (b"*4\r\n", b"\r\n$2\r\nNX\r\n"),
            When::There => (b"*4\r\n", b"\r\n$2\r\nXX\r\n"),
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

    fn got(connection: &mut Connection) -> io::Result<Option<&[u8]>> {
        let promised = match connection.line()? {
            b"$-1" => return Ok(None),
            line => number(line, b"$")?,
        };
        value(connection, promised)
    }

    fn was_set(connection: &mut Connection) -> io::Result<bool> {
        match connection.line()? {
            b"+OK" => Ok(true),
            b"$-1" => Ok(false),
            other => Err(unexpected(other)),
        }
    }

    fn was_deleted(connection: &mut Connection) -> io::Result<bool> {
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
    use crate::suite::sizes::Sizes;
    use crate::temporary::is_installed;

    /// Drives the server; returns at once if it is not installed.
    fn drive<P: Protocol>(program: &str, start: fn(&Way) -> Result<Server<P>, Failure>) {
        if !is_installed(program) {
            return println!("SKIPPED: {program} is not installed");
        }
        let values = Sizes::Fixed(48);
        let way = Way { size: small(), values, memory_nodes: 3, connections: 1 };
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
