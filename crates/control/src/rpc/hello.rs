//! The hello: what the two ends of a connection tell each other first.
//!
//! ```text
//! client → server | "FUSEE" 5 | version 1 | role 1 | who 1 | nonce 32 |
//! server → client | "FUSEE" 5 | version 1 | role 1 | has a secret 1 | nonce 32 | proof 32 |
//! client → server | proof 32 |                    if both have a secret
//! server → client | 1 |                           if the proof is good
//! ```
//!
//! The client sends the role it looks for, the server always answers with the role it has, and
//! closes if they differ; each end waits [`HELLO_TIMEOUT`] at most. So a client of the wrong port
//! learns what is there, a stranger cannot hold a connection by saying nothing, and a later
//! version can tell an older one apart before the first frame.
//!
//! Where a process has keys ([`fusee_auth`]), the other end has to prove that it has them, too: the client
//! says as whom it comes ([`Who`], 0 without keys), the server proves that it has the key of that, then
//! the client does. A client with keys goes away from a server without, a server with keys sends clients
//! without away: both ends are told why. Without keys nonces and proofs are zeros.
//!
//! Frames that follow a proof have codes, which come of the same key and nonces: so whoever has only passed these
//! messages on cannot go on by itself.

use std::fmt;
use std::io;

use fusee_auth::{BYTES, Codes, Keys, Nonce, Proof, Said, Side, Who};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::HELLO_TIMEOUT;

const MAGIC: &[u8; 5] = b"FUSEE";
/// 5: a block is taken over once; and who speaks it starts again where it loses to a Move (rule L).
/// 7: sessions are told the cluster's policy for redundancy; views know of pairs that are lost. 9: keys. 10: codes of
/// frames.
const VERSION: u8 = 10;
const START_BYTES: usize = 8;
/// What proofs are about, with its version.
const KIND: &str = "control 2";

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
    /// One of the two has not the keys of the other; in words, for the side that hears of it.
    Keys(&'static str),
    /// There are no random numbers.
    Random(io::Error),
}

const NEEDS_KEY: &str =
    "it wants a key of its cluster's secret; name the file with --secret, or FUSEE_SECRET";
const NO_SECRET: &str =
    "it has no secret: it is of another cluster, or was started with --insecure";
const OTHER_SECRET: &str = "it has another secret than this process";
const REFUSED: &str = "it does not take the key: that is of another secret";

impl fmt::Display for HelloError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HelloError::Stranger(what) => write!(f, "the other end is {what}"),
            HelloError::Silent => f.write_str("no hello in time"),
            HelloError::Closed => f.write_str("closed before the hello"),
            HelloError::Keys(what) => f.write_str(what),
            HelloError::Random(error) => write!(f, "no random numbers: {error}"),
        }
    }
}

/// `says`: as whom a client comes, or whether a server has a secret.
pub(super) fn encode(role: Role, says: u8) -> [u8; START_BYTES] {
    let mut bytes = [0; START_BYTES];
    bytes[..5].copy_from_slice(MAGIC);
    bytes[5..].copy_from_slice(&[VERSION, role.code(), says]);
    bytes
}

pub(super) fn decode(bytes: &[u8; START_BYTES]) -> Result<(Role, u8), String> {
    if !bytes.starts_with(MAGIC) {
        return Err("something that does not speak FUSEE's control protocol".into());
    }
    if bytes[5] != VERSION {
        return Err(format!("FUSEE's control protocol in version {}, not {VERSION}", bytes[5]));
    }
    let role = Role::from_code(bytes[6]);
    let role = role.ok_or_else(|| format!("an unknown FUSEE service ({})", bytes[6]))?;
    Ok((role, bytes[7]))
}

async fn receive<const N: usize>(stream: &mut TcpStream) -> Result<[u8; N], HelloError> {
    let mut bytes = [0; N];
    match timeout(HELLO_TIMEOUT, stream.read_exact(&mut bytes)).await {
        Err(_) => Err(HelloError::Silent),
        Ok(Err(_)) => Err(HelloError::Closed),
        Ok(Ok(_)) => Ok(bytes),
    }
}

async fn send(stream: &mut TcpStream, parts: &[&[u8]]) -> Result<(), HelloError> {
    let sent: io::Result<()> = stream.write_all(&parts.concat()).await;
    sent.map_err(|_| HelloError::Closed)
}

fn nonce(keys: Option<&Keys>) -> Result<Nonce, HelloError> {
    keys.map_or(Ok([0; BYTES]), |_| fusee_auth::nonce().map_err(HelloError::Random))
}

/// The client's side: fails unless `role` answers, and has the keys that this process has. Gives the codes of what
/// follows; `None` without keys.
pub(super) async fn ask(
    stream: &mut TcpStream,
    role: Role,
    keys: Option<&Keys>,
) -> Result<Option<Codes>, HelloError> {
    let own = nonce(keys)?;
    let hello = encode(role, keys.map_or(0, |keys| keys.acts_as().code()));
    send(stream, &[&hello, &own]).await?;
    let welcome = receive(stream).await?;
    let (found, has_secret) = decode(&welcome).map_err(HelloError::Stranger)?;
    if found != role {
        return Err(HelloError::Stranger(found.to_string()));
    }
    let (theirs, proof): (Nonce, Proof) = (receive(stream).await?, receive(stream).await?);
    let Some(keys) = keys else {
        return if has_secret == 0 { Ok(None) } else { Err(HelloError::Keys(NEEDS_KEY)) };
    };
    if has_secret == 0 {
        return Err(HelloError::Keys(NO_SECRET));
    }
    let about = [hello, welcome].concat();
    let said = Said { kind: KIND, about: &about, asker: &own, answerer: &theirs };
    let who = keys.acts_as();
    if !keys.proves(who, Side::Answerer, &said, &proof) {
        return Err(HelloError::Keys(OTHER_SECRET));
    }
    let proof = keys.proof(who, Side::Asker, &said).ok_or(HelloError::Keys(REFUSED))?;
    send(stream, &[&proof]).await?;
    match receive(stream).await {
        Ok([1]) => Ok(keys.codes(who, Side::Asker, &said)),
        Ok(_) => Err(HelloError::Keys(REFUSED)),
        Err(error) => Err(error),
    }
}

/// The server's side: tells its role, then fails unless it is the one looked for, by somebody who has a key. As whom
/// the client has come, and the codes of what follows; `None` if nobody has to say so here.
pub(super) async fn answer(
    stream: &mut TcpStream,
    role: Role,
    keys: Option<&Keys>,
) -> Result<Option<(Who, Codes)>, HelloError> {
    let hello = receive(stream).await?;
    let (wanted, who) = match decode(&hello) {
        Ok(wanted) => wanted,
        Err(what) => {
            // Another version learns which one this is.
            if hello.starts_with(MAGIC) {
                send(stream, &[&encode(role, 0)]).await?;
            }
            return Err(HelloError::Stranger(what));
        }
    };
    let theirs: Nonce = receive(stream).await?;
    let own = nonce(keys)?;
    let welcome = encode(role, keys.is_some().into());
    let about = [hello, welcome].concat();
    let said = Said { kind: KIND, about: &about, asker: &theirs, answerer: &own };
    let who = Who::from_code(who);
    let proof = keys.zip(who).and_then(|(keys, who)| keys.proof(who, Side::Answerer, &said));
    send(stream, &[&welcome, &own, &proof.unwrap_or([0; BYTES])]).await?;
    if wanted != role {
        return Err(HelloError::Stranger(format!("looking for {wanted}")));
    }
    let Some(keys) = keys else { return Ok(None) };
    let Some(who) = who else { return Err(HelloError::Keys("it has no key")) };
    let proof = receive(stream).await?;
    if !keys.proves(who, Side::Asker, &said, &proof) {
        return Err(HelloError::Keys("its key is of another secret"));
    }
    send(stream, &[&[1]]).await?;
    Ok(keys.codes(who, Side::Answerer, &said).map(|codes| (who, codes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hellos_come_back_and_strangers_are_named() {
        for role in [Role::MemoryNode, Role::Master] {
            assert_eq!(decode(&encode(role, 2)), Ok((role, 2)));
        }
        assert!(decode(b"HTTP/1.1").unwrap_err().contains("does not speak"));
        assert!(decode(b"FUSEE\x09\x01\0").unwrap_err().contains("version 9"));
        assert!(decode(b"FUSEE\x0a\x09\0").unwrap_err().contains("unknown"));
    }
}
