//! A connection to a server, on which several requests can be sent before their answers are received.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// A Unix socket or a TCP connection.
pub enum PeerSocket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl PeerSocket {
    pub fn unix(path: &Path) -> io::Result<PeerSocket> {
        UnixStream::connect(path).map(PeerSocket::Unix)
    }

    pub fn tcp(port: u16) -> io::Result<PeerSocket> {
        let socket = TcpStream::connect(("127.0.0.1", port))?;
        socket.set_nodelay(true)?;
        Ok(PeerSocket::Tcp(socket))
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            PeerSocket::Unix(socket) => socket.write_all(bytes),
            PeerSocket::Tcp(socket) => socket.write_all(bytes),
        }
    }

    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            PeerSocket::Unix(socket) => socket.read(bytes),
            PeerSocket::Tcp(socket) => socket.read(bytes),
        }
    }
}

/// A connection, with requests that wait to be sent and received bytes that were not read yet.
pub struct PeerConnection {
    socket: PeerSocket,
    out: Vec<u8>,
    received: Vec<u8>,
    from: usize,
    to: usize,
}

impl PeerConnection {
    pub fn new(socket: PeerSocket) -> PeerConnection {
        PeerConnection { socket, out: Vec::new(), received: vec![0; 256 << 10], from: 0, to: 0 }
    }

    /// Returns the buffer for the next requests.
    pub fn out(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// Sends all requests of the buffer in one call.
    pub fn send(&mut self) -> io::Result<()> {
        self.socket.write_all(&self.out)?;
        self.out.clear();
        Ok(())
    }

    fn receive(&mut self) -> io::Result<()> {
        if self.to == self.received.len() {
            self.received.copy_within(self.from..self.to, 0);
            (self.from, self.to) = (0, self.to - self.from);
        }
        match self.socket.read(&mut self.received[self.to..])? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            count => {
                self.to += count;
                Ok(())
            }
        }
    }

    /// Returns the next line, without its end.
    pub fn line(&mut self) -> io::Result<&[u8]> {
        let mut looked = 0;
        loop {
            let bytes = &self.received[self.from..self.to];
            if let Some(at) = bytes[looked..].iter().position(|byte| *byte == b'\n') {
                let start = self.from;
                let end = start + looked + at;
                self.from = end + 1;
                let line = &self.received[start..end];
                return Ok(line.strip_suffix(b"\r").unwrap_or(line));
            }
            looked = bytes.len();
            self.receive()?;
        }
    }

    /// Returns the next `count` bytes.
    pub fn bytes(&mut self, count: usize) -> io::Result<&[u8]> {
        assert!(count <= self.received.len(), "an answer is longer than any value");
        while self.to - self.from < count {
            if self.from + count > self.received.len() {
                self.received.copy_within(self.from..self.to, 0);
                (self.from, self.to) = (0, self.to - self.from);
            }
            self.receive()?;
        }
        let start = self.from;
        self.from += count;
        Ok(&self.received[start..self.from])
    }
}

/// Returns the number that follows this prefix in a line.
pub fn number(line: &[u8], prefix: &[u8]) -> io::Result<usize> {
    let digits = line.strip_prefix(prefix).and_then(|digits| str::from_utf8(digits).ok());
    let number = digits.and_then(|digits| digits.trim().parse().ok());
    number.ok_or_else(|| unexpected(line))
}

pub fn unexpected(line: &[u8]) -> io::Error {
    io::Error::other(format!("unexpected answer: {}", String::from_utf8_lossy(line)))
}
