//! Memcached and Redis: a server, started here and stopped in the end, and one connection to it.

use std::io::{self, Write};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::wire::{Connection, Socket, number, unexpected};
use super::{Contestant, Key, Request, key};
use crate::Failure;
use crate::load::{KEY_BYTES, Size, last};

/// So long a server may take until it answers.
const START_PATIENCE: Duration = Duration::from_secs(10);
/// Requests that are sent together while loading.
const LOADED_TOGETHER: u32 = 64;

/// Whether there is such a program.
pub fn is_installed(program: &str) -> bool {
    let dirs = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&dirs).any(|dir| dir.join(program).is_file())
}

/// A process that ends with this.
struct Server {
    process: Child,
    directory: TempDir,
}

impl Server {
    fn start(program: &str, args: impl FnOnce(&TempDir) -> Vec<String>) -> io::Result<Server> {
        let directory = tempfile::tempdir()?;
        let mut command = Command::new(program);
        command.args(args(&directory)).stdin(Stdio::null()).stdout(Stdio::null());
        Ok(Server { process: command.stderr(Stdio::null()).spawn()?, directory })
    }

    /// A connection, once it answers.
    fn connect(&mut self, connect: impl Fn(&TempDir) -> io::Result<Socket>) -> io::Result<Socket> {
        let end = Instant::now() + START_PATIENCE;
        loop {
            match connect(&self.directory) {
                Ok(socket) => return Ok(socket),
                Err(error) if Instant::now() >= end => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
            if let Some(status) = self.process.try_wait()? {
                return Err(io::Error::other(format!("the server ended: {status}")));
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _gone_already = self.process.kill();
        let _as_well = self.process.wait();
    }
}

/// A port that is free at the moment.
fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// How one of them is talked to.
trait Protocol {
    fn get(out: &mut Vec<u8>, key: &Key);
    fn set(out: &mut Vec<u8>, key: &Key, value: &[u8]);
    fn got(connection: &mut Connection, len: usize) -> io::Result<u8>;
    fn was_set(connection: &mut Connection) -> io::Result<()>;
}

/// A connection with so many requests in flight.
struct Talk {
    connection: Connection,
    value: Vec<u8>,
    // Ends after the connection.
    _server: Server,
}

impl Talk {
    fn new<P: Protocol>(server: Server, socket: Socket, size: &Size) -> Result<Talk, Failure> {
        let value = vec![7; size.pair_bytes as usize - KEY_BYTES];
        let mut talk = Talk { connection: Connection::new(socket), value, _server: server };
        let all: Vec<Request> = (0..size.keys).map(|number| Request::Update(key(number))).collect();
        talk.run::<P>(&all, LOADED_TOGETHER as usize)?;
        Ok(talk)
    }

    fn run<P: Protocol>(&mut self, requests: &[Request], depth: usize) -> Result<(), Failure> {
        for requests in requests.chunks(depth) {
            for request in requests {
                match request {
                    Request::Get(key) => P::get(self.connection.out(), key),
                    Request::Update(key) => P::set(self.connection.out(), key, &self.value),
                }
            }
            self.connection.send()?;
            for request in requests {
                match request {
                    Request::Get(_) => {
                        let found = P::got(&mut self.connection, self.value.len())?;
                        assert_eq!(found, last(&self.value), "it is not the value");
                    }
                    Request::Update(_) => P::was_set(&mut self.connection)?,
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

pub struct Memcached(Talk);

impl Memcached {
    fn args(size: &Size) -> Vec<String> {
        let bytes = u64::from(size.keys) * (u64::from(size.pair_bytes) + 512);
        let own_user = ["-u", "root", "-m"].map(String::from);
        own_user.into_iter().chain([(64 + (bytes >> 19)).to_string()]).collect()
    }

    pub fn unix(size: &Size) -> Result<Memcached, Failure> {
        let mut server = Server::start("memcached", |dir| {
            let path = dir.path().join("socket").display().to_string();
            Memcached::args(size).into_iter().chain(["-s".into(), path]).collect()
        })?;
        let socket = server.connect(|dir| Socket::unix(&dir.path().join("socket")))?;
        Ok(Memcached(Talk::new::<Memcached>(server, socket, size)?))
    }

    pub fn tcp(size: &Size) -> Result<Memcached, Failure> {
        let port = free_port()?;
        let at = ["-l".into(), "127.0.0.1".into(), "-p".into(), port.to_string()];
        let args = Memcached::args(size).into_iter().chain(at).collect();
        let mut server = Server::start("memcached", |_| args)?;
        let socket = server.connect(|_| Socket::tcp(port))?;
        Ok(Memcached(Talk::new::<Memcached>(server, socket, size)?))
    }
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

impl Contestant for Memcached {
    fn run(&mut self, requests: &[Request], depth: usize) -> Result<(), Failure> {
        self.0.run::<Memcached>(requests, depth)
    }
}

pub struct Redis(Talk);

impl Redis {
    fn start(unix: bool) -> io::Result<(Server, u16)> {
        let port = if unix { 0 } else { free_port()? };
        let server = Server::start("redis-server", |dir| {
            let path = dir.path().join("socket").display().to_string();
            let port = port.to_string();
            let own = dir.path().display().to_string();
            let args =
                ["--port", &port, "--bind", "127.0.0.1", "--unixsocket", &path, "--dir", &own];
            let lasting = ["--save", "", "--appendonly", "no"];
            args.into_iter().chain(lasting).map(String::from).collect()
        })?;
        Ok((server, port))
    }

    pub fn unix(size: &Size) -> Result<Redis, Failure> {
        let (mut server, _) = Redis::start(true)?;
        let socket = server.connect(|dir| Socket::unix(&dir.path().join("socket")))?;
        Ok(Redis(Talk::new::<Redis>(server, socket, size)?))
    }

    pub fn tcp(size: &Size) -> Result<Redis, Failure> {
        let (mut server, port) = Redis::start(false)?;
        let socket = server.connect(|_| Socket::tcp(port))?;
        Ok(Redis(Talk::new::<Redis>(server, socket, size)?))
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

impl Contestant for Redis {
    fn run(&mut self, requests: &[Request], depth: usize) -> Result<(), Failure> {
        self.0.run::<Redis>(requests, depth)
    }
}
