//! Memcached and Redis: a server, started here and stopped in the end, and connections to it.

use std::io::{self, Write};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::cpu::{self, Task};
use super::wire::{Connection, Socket, number, unexpected};
use super::{Client, Contestant, Key, Request, Way, key};
use crate::Failure;
use crate::load::{KEY_BYTES, Size, last};
use crate::processes::{Temporary, free_port};

/// So long a server may take until it answers.
const START_PATIENCE: Duration = Duration::from_secs(10);
/// Requests that are sent together while loading.
const LOADED_TOGETHER: u32 = 64;

/// How one of them is talked to.
pub trait Protocol {
    fn get(out: &mut Vec<u8>, key: &Key);
    fn set(out: &mut Vec<u8>, key: &Key, value: &[u8]);
    fn got(connection: &mut Connection, len: usize) -> io::Result<u8>;
    fn was_set(connection: &mut Connection) -> io::Result<()>;
}

/// Where it listens.
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

/// A server with all pairs.
pub struct Server<P> {
    process: Temporary,
    address: Address,
    /// Of each client thread.
    connections: u16,
    value: Vec<u8>,
    protocol: PhantomData<fn() -> P>,
}

impl<P: Protocol + 'static> Server<P> {
    fn load(process: Temporary, address: Address, way: &Way) -> Result<Server<P>, Failure> {
        let Way { size, connections, .. } = *way;
        let value = vec![7; size.pair_bytes as usize - KEY_BYTES];
        let server = Server { process, address, connections, value, protocol: PhantomData };
        server.wait()?;
        let all: Vec<Request> = (0..size.keys).map(|number| Request::Update(key(number))).collect();
        server.talk()?.run(&all, LOADED_TOGETHER as usize)?;
        Ok(server)
    }

    /// Until it answers.
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

    fn talk(&self) -> Result<Talk<P>, Failure> {
        let connect = |_| Ok(Connection::new(self.address.connect()?));
        let connections = (0..self.connections).map(connect).collect::<io::Result<_>>()?;
        Ok(Talk { connections, value: self.value.clone(), protocol: PhantomData })
    }
}

impl<P: Protocol + 'static> Contestant for Server<P> {
    fn client(&self) -> Result<Box<dyn Client>, Failure> {
        Ok(Box::new(self.talk()?))
    }

    fn server(&self) -> Result<Vec<Task>, Failure> {
        Ok(cpu::tasks(self.process.id(), None)?)
    }
}

/// Connections, and so many requests in flight on all of them together.
struct Talk<P> {
    connections: Vec<Connection>,
    value: Vec<u8>,
    protocol: PhantomData<fn() -> P>,
}

impl<P: Protocol> Client for Talk<P> {
    fn run(&mut self, requests: &[Request], depth: usize) -> Result<(), Failure> {
        let Talk { connections, value, .. } = self;
        let count = connections.len();
        for requests in requests.chunks(depth) {
            for (i, request) in requests.iter().enumerate() {
                let out = connections[i % count].out();
                match request {
                    Request::Get(key) => P::get(out, key),
                    Request::Update(key) => P::set(out, key, value),
                }
            }
            for connection in connections.iter_mut().take(requests.len()) {
                connection.send()?;
            }
            for (i, request) in requests.iter().enumerate() {
                let connection = &mut connections[i % count];
                match request {
                    Request::Get(_) => {
                        let found = P::got(connection, value.len())?;
                        assert_eq!(found, last(value), "it is not the value");
                    }
                    Request::Update(_) => P::was_set(connection)?,
                }
            }
        }
        Ok(())
    }
}

/// The value that an answer promises: its last byte.
fn value(connection: &mut Connection, promised: usize, len: usize) -> io::Result<u8> {
    if promised != len {
        return Err(io::Error::other("it is not the value"));
    }
    let bytes = connection.bytes(len + 2)?;
    Ok(last(&bytes[..len]))
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
        Server::load(process, address, way)
    }

    pub fn tcp(way: &Way) -> Result<Server<Memcached>, Failure> {
        let port = free_port()?;
        let at = ["-l".into(), "127.0.0.1".into(), "-p".into(), port.to_string()];
        let process = Memcached::start(&way.size, |_| at.to_vec())?;
        Server::load(process, Address::Tcp(port), way)
    }
}

fn socket(dir: &Path) -> PathBuf {
    dir.join("socket")
}

/// The meta commands, which are the shortest.
impl Protocol for Memcached {
    fn get(out: &mut Vec<u8>, key: &Key) {
        out.extend_from_slice(b"mg ");
        out.extend_from_slice(key);
        out.extend_from_slice(b" v\r\n");
    }

    fn set(out: &mut Vec<u8>, key: &Key, value: &[u8]) {
        out.extend_from_slice(b"ms ");
        out.extend_from_slice(key);
        write!(out, " {}\r\n", value.len()).expect("a vector takes everything");
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    }

    fn got(connection: &mut Connection, len: usize) -> io::Result<u8> {
        let promised = number(connection.line()?, b"VA ")?;
        value(connection, promised, len)
    }

    fn was_set(connection: &mut Connection) -> io::Result<()> {
        match connection.line()? {
            b"HD" => Ok(()),
            other => Err(unexpected(other)),
        }
    }
}

pub struct Redis;

impl Redis {
    fn start(port: u16) -> io::Result<Temporary> {
        Temporary::process("redis-server", |dir| {
            let path = socket(dir).display().to_string();
            let (port, own) = (port.to_string(), dir.display().to_string());
            let args =
                ["--port", &port, "--bind", "127.0.0.1", "--unixsocket", &path, "--dir", &own];
            let lasting = ["--save", "", "--appendonly", "no"];
            args.into_iter().chain(lasting).map(String::from).collect()
        })
    }

    pub fn unix(way: &Way) -> Result<Server<Redis>, Failure> {
        let process = Redis::start(0)?;
        let address = Address::Unix(socket(process.path()));
        Server::load(process, address, way)
    }

    pub fn tcp(way: &Way) -> Result<Server<Redis>, Failure> {
        let port = free_port()?;
        Server::load(Redis::start(port)?, Address::Tcp(port), way)
    }
}

const _: () = assert!(KEY_BYTES == 16, "it stands in the requests");

impl Protocol for Redis {
    fn get(out: &mut Vec<u8>, key: &Key) {
        out.extend_from_slice(b"*2\r\n$3\r\nGET\r\n$16\r\n");
        out.extend_from_slice(key);
        out.extend_from_slice(b"\r\n");
    }

    fn set(out: &mut Vec<u8>, key: &Key, value: &[u8]) {
        out.extend_from_slice(b"*3\r\n$3\r\nSET\r\n$16\r\n");
        out.extend_from_slice(key);
        write!(out, "\r\n${}\r\n", value.len()).expect("a vector takes everything");
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    }

    fn got(connection: &mut Connection, len: usize) -> io::Result<u8> {
        let promised = number(connection.line()?, b"$")?;
        value(connection, promised, len)
    }

    fn was_set(connection: &mut Connection) -> io::Result<()> {
        match connection.line()? {
            b"+OK" => Ok(()),
            other => Err(unexpected(other)),
        }
    }
}
