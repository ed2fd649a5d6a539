//! The hello: what the two ends of a connection tell each other first.
//!
//! ```text
//! | "FUSEE" 5 | version 1 | role 1 | zero 1 |
//! ```
//!
//! The client sends the role it looks for, the server always answers with the role it has, and
//! closes if they differ; each end waits [`HELLO_TIMEOUT`] at most. So a client of the wrong port
//! learns what is there, a stranger cannot hold a connection by saying nothing, and a later
//! version can tell an older one apart before the first frame.

use std::fmt;
use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::HELLO_TIMEOUT;

const MAGIC: &[u8; 5] = b"FUSEE";
/// 5: a block is taken over once; and who speaks it starts again where it loses to a Move (rule L).
/// 7: sessions are told the cluster's policy for redundancy; views know of pairs that are lost.
const VERSION: u8 = 8;
const HELLO_BYTES: usize = 8;

/// Who answers at a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A memory node's control service.
    MemoryNode,
    /// The master.
    Master,
}

impl Role {
    fn code(self) -> u8 {
        match self {
            Role::MemoryNode => 1,
            Role::Master => 2,
        }
    }

    fn from_code(code: u8) -> Option<Role> {
        [Role::MemoryNode, Role::Master].into_iter().find(|role| role.code() == code)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::MemoryNode => "a FUSEE memory node",
            Role::Master => "a FUSEE master",
        })
    }
}

/// Why a hello failed.
#[derive(Debug)]
pub(super) enum HelloError {
    /// The other end is something else; in words.
    Stranger(String),
    /// It said nothing.
    Silent,
    /// It closed the connection.
    Closed,
}

impl fmt::Display for HelloError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HelloError::Stranger(what) => write!(f, "the other end is {what}"),
            HelloError::Silent => f.write_str("no hello in time"),
            HelloError::Closed => f.write_str("closed before the hello"),
        }
    }
}

pub(super) fn encode(role: Role) -> [u8; HELLO_BYTES] {
    let mut bytes = [0; HELLO_BYTES];
    bytes[..5].copy_from_slice(MAGIC);
    bytes[5] = VERSION;
    bytes[6] = role.code();
    bytes
}

pub(super) fn decode(bytes: &[u8; HELLO_BYTES]) -> Result<Role, String> {
    if !bytes.starts_with(MAGIC) {
        return Err("something that does not speak FUSEE's control protocol".into());
    }
    if bytes[5] != VERSION {
        return Err(format!("FUSEE's control protocol in version {}, not {VERSION}", bytes[5]));
    }
    Role::from_code(bytes[6]).ok_or_else(|| format!("an unknown FUSEE service ({})", bytes[6]))
}

async fn receive(stream: &mut TcpStream) -> Result<Role, HelloError> {
    let mut bytes = [0; HELLO_BYTES];
    match timeout(HELLO_TIMEOUT, stream.read_exact(&mut bytes)).await {
        Err(_) => Err(HelloError::Silent),
        Ok(Err(_)) => Err(HelloError::Closed),
        Ok(Ok(_)) => decode(&bytes).map_err(HelloError::Stranger),
    }
}

async fn send(stream: &mut TcpStream, role: Role) -> Result<(), HelloError> {
    let sent: io::Result<()> = stream.write_all(&encode(role)).await;
    sent.map_err(|_| HelloError::Closed)
}

/// The client's side: fails unless `role` answers.
pub(super) async fn ask(stream: &mut TcpStream, role: Role) -> Result<(), HelloError> {
    send(stream, role).await?;
    match receive(stream).await? {
        found if found == role => Ok(()),
        found => Err(HelloError::Stranger(found.to_string())),
    }
}

/// The server's side: tells its role, then fails unless it is the one looked for.
pub(super) async fn answer(stream: &mut TcpStream, role: Role) -> Result<(), HelloError> {
    let wanted = receive(stream).await?;
    send(stream, role).await?;
    if wanted == role { Ok(()) } else { Err(HelloError::Stranger(format!("looking for {wanted}"))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hellos_come_back_and_strangers_are_named() {
        for role in [Role::MemoryNode, Role::Master] {
            assert_eq!(decode(&encode(role)), Ok(role));
        }
        assert!(decode(b"HTTP/1.1").unwrap_err().contains("does not speak"));
        assert!(decode(b"FUSEE\x09\x01\0").unwrap_err().contains("version 9"));
        assert!(decode(b"FUSEE\x08\x09\0").unwrap_err().contains("unknown"));
    }
}
