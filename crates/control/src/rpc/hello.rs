//! The hello: what the two ends of a connection tell each other first.
//!
//! ```text
//! client → server | "FUSEE" 5 | version 1 | role 1 | who 1 | nonce 32 |
//! server → client | "FUSEE" 5 | version 1 | role 1 | wants 1 | nonce 32 | proof 32 |
//! client → server | proof 32 |                    if both have a secret
//! server → client | 1 |                           if the proof is good
//! ```
//!
//! The client sends the role it looks for, the server always answers with the role it has, and
//! closes if they differ; each end waits [`HELLO_TIMEOUT`] at most. So a client of the wrong port
//! learns what is there, a stranger cannot hold a connection by saying nothing, and a later
//! version can tell an older one apart before the first frame.
//!
//! For ever, whatever the version: each side first sends 8 bytes, of which "FUSEE" and the version keep
//! their places; a server reads these before anything else, and answers another version with its own 8
//! before it closes ([`fusee_core::version`]).
//!
//! Where a process has keys ([`fusee_auth`]), the other end has to prove that it has them, too: the client
//! says as whom it comes ([`Who`], 0 without keys), the server proves that it has the key of that, then
//! the client does. A client with keys goes away from a server without, a server with keys sends clients
//! without away: both ends are told why. Without keys nonces and proofs are zeros.
//!
//! Over TLS proofs take in what only the two ends of that connection know, so that they cannot be passed on to another
//! one. Without TLS frames that follow a proof have codes, which come of the same key and nonces: so whoever has only
//! passed these messages on cannot go on by itself.
//!
//! What a server wants is 1 if it has a secret, and 2 if it speaks TLS and has been spoken to without: then nothing
//! else follows.

use std::fmt;
use std::io;

use fusee_auth::{BYTES, Codes, Keys, Nonce, Proof, Said, Side, Who};
use fusee_core::version::{End, VersionError, Versions};
use fusee_tls::{FIRST_BYTE, SPEAKS_NONE, SPEAKS_TLS, Tls, WANTS_TLS};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::HELLO_TIMEOUT;
use super::runtime::Trust;
use super::wire::{Binding, Wire};

const MAGIC: &[u8; 5] = b"FUSEE";
/// 5: a block is taken over once; and who speaks it starts again where it loses to a Move (rule L).
/// 7: sessions are told the cluster's policy for redundancy; views know of pairs that are lost. 9: keys. 10: codes of
/// frames. 11: what is used of the memory, and what is left.
const VERSION: u8 = 11;
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

/// The control protocols that this program understands.
pub const CONTROL: Versions = Versions::only("control protocol", VERSION as u32);

/// What else the other end is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stranger {
    /// In words.
    Other(String),
    /// Of another version.
    Version(VersionError),
}

impl From<String> for Stranger {
    fn from(what: String) -> Stranger {
        Stranger::Other(what)
    }
}

/// Why a hello failed.
#[derive(Debug)]
pub(super) enum HelloError {
    /// The other end is something else.
    Stranger(Stranger),
    /// It said nothing.
    Silent,
    /// It closed the connection.
    Closed,
    /// One of the two has not the keys of the other; in words, for the side that hears of it.
    Keys(&'static str),
    /// One of the two speaks TLS and the other does not, or a certificate is not good.
    Tls(String),
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
            HelloError::Stranger(Stranger::Other(what)) => write!(f, "the other end is {what}"),
            HelloError::Stranger(Stranger::Version(error)) => error.fmt(f),
            HelloError::Silent => f.write_str("no hello in time"),
            HelloError::Closed => f.write_str("closed before the hello"),
            HelloError::Keys(what) => f.write_str(what),
            HelloError::Tls(what) => f.write_str(what),
            HelloError::Random(error) => write!(f, "no random numbers: {error}"),
        }
    }
}

/// What a server wants.
const SECRET: u8 = 1;
const TLS: u8 = 2;

/// `says`: as whom a client comes, or what a server wants.
pub(super) fn encode(role: Role, says: u8) -> [u8; START_BYTES] {
    let mut bytes = [0; START_BYTES];
    bytes[..5].copy_from_slice(MAGIC);
    bytes[5..].copy_from_slice(&[VERSION, role.code(), says]);
    bytes
}

pub(super) fn decode(bytes: &[u8; START_BYTES], own: End) -> Result<(Role, u8), Stranger> {
    if !bytes.starts_with(MAGIC) {
        return Err("something that does not speak FUSEE's control protocol".to_owned().into());
    }
    CONTROL.check(own, bytes[5].into()).map_err(Stranger::Version)?;
    let role = Role::from_code(bytes[6]);
    let role = role.ok_or_else(|| format!("an unknown FUSEE service ({})", bytes[6]))?;
    Ok((role, bytes[7]))
}

async fn receive<const N: usize>(stream: &mut Wire) -> Result<[u8; N], HelloError> {
    let mut bytes = [0; N];
    match timeout(HELLO_TIMEOUT, stream.read_exact(&mut bytes)).await {
        Err(_) => Err(HelloError::Silent),
        Ok(Err(_)) => Err(HelloError::Closed),
        Ok(Ok(_)) => Ok(bytes),
    }
}

async fn send(stream: &mut Wire, parts: &[&[u8]]) -> Result<(), HelloError> {
    let sent = async {
        stream.write_all(&parts.concat()).await?;
        stream.flush().await
    };
    let sent: io::Result<()> = sent.await;
    sent.map_err(|_| HelloError::Closed)
}

fn nonce(keys: Option<&Keys>) -> Result<Nonce, HelloError> {
    keys.map_or(Ok([0; BYTES]), |_| fusee_auth::nonce().map_err(HelloError::Random))
}

/// What proofs are about.
fn about(hello: &[u8], welcome: &[u8], binding: Option<Binding>) -> Vec<u8> {
    [hello, welcome, binding.as_ref().map_or(&[], |binding| binding)].concat()
}

/// TLS does what codes do, and more.
fn codes(
    keys: &Keys,
    who: Who,
    side: Side,
    said: &Said<'_>,
    binding: Option<Binding>,
) -> Option<Codes> {
    if binding.is_some() { None } else { keys.codes(who, side, said) }
}

/// The client's side: fails unless `role` answers, and has the keys that this process has. Gives the codes of what
/// follows; `None` without keys, and over TLS.
pub(super) async fn ask(
    stream: &mut Wire,
    role: Role,
    trust: &Trust,
) -> Result<Option<Codes>, HelloError> {
    let keys = trust.keys.as_deref();
    let binding = stream.binding()?;
    let own = nonce(keys)?;
    let hello = encode(role, keys.map_or(0, |keys| keys.acts_as().code()));
    send(stream, &[&hello, &own]).await?;
    let welcome = receive(stream).await?;
    let (found, wants) = decode(&welcome, End::Client).map_err(HelloError::Stranger)?;
    if wants & TLS != 0 {
        return Err(HelloError::Tls(WANTS_TLS.into()));
    }
    let has_secret = wants & SECRET != 0;
    if found != role {
        return Err(HelloError::Stranger(found.to_string().into()));
    }
    let (theirs, proof): (Nonce, Proof) = (receive(stream).await?, receive(stream).await?);
    let Some(keys) = keys else {
        return if has_secret { Err(HelloError::Keys(NEEDS_KEY)) } else { Ok(None) };
    };
    if !has_secret {
        return Err(HelloError::Keys(NO_SECRET));
    }
    let about = about(&hello, &welcome, binding);
    let said = Said { kind: KIND, about: &about, asker: &own, answerer: &theirs };
    let who = keys.acts_as();
    if !keys.proves(who, Side::Answerer, &said, &proof) {
        return Err(HelloError::Keys(OTHER_SECRET));
    }
    let proof = keys.proof(who, Side::Asker, &said).ok_or(HelloError::Keys(REFUSED))?;
    send(stream, &[&proof]).await?;
    match receive(stream).await {
        Ok([1]) => Ok(codes(keys, who, Side::Asker, &said, binding)),
        Ok(_) => Err(HelloError::Keys(REFUSED)),
        Err(error) => Err(error),
    }
}

/// Somebody speaks TLS, or not, and the server does the other.
async fn other_way(stream: &mut Wire, role: Role, wants: u8) -> Result<(), HelloError> {
    // What is left unread when a connection is closed may take back what was said.
    let _nothing = stream.socket().try_read(&mut [0; 4096]);
    send(stream, &[&encode(role, wants), &[0; BYTES], &[0; BYTES]]).await
}

/// The server's side: tells its role, then fails unless it is the one looked for, by somebody who has a key. As whom
/// the client has come, `None` if nobody has to say so here; and the codes of what follows.
pub(super) async fn answer(
    stream: &mut Wire,
    role: Role,
    trust: &Trust,
) -> Result<(Option<Who>, Option<Codes>), HelloError> {
    let keys = trust.keys.as_deref();
    let binding = stream.binding()?;
    let hello = receive(stream).await?;
    if hello[0] == FIRST_BYTE {
        other_way(stream, role, 0).await?;
        return Err(HelloError::Tls(SPEAKS_TLS.into()));
    }
    let (wanted, who) = match decode(&hello, End::Server) {
        Ok(wanted) => wanted,
        Err(what) => {
            // Another version learns which one this is.
            if hello.starts_with(MAGIC) {
                send(stream, &[&encode(role, 0)]).await?;
                // What is left unread when a connection is closed may take back what was said.
                let _rest = timeout(HELLO_TIMEOUT, stream.read(&mut [0; BYTES])).await;
            }
            return Err(HelloError::Stranger(what));
        }
    };
    if binding.is_none() && trust.tls.as_ref().is_some_and(Tls::answers) {
        other_way(stream, role, TLS).await?;
        return Err(HelloError::Tls(SPEAKS_NONE.into()));
    }
    let theirs: Nonce = receive(stream).await?;
    let own = nonce(keys)?;
    let welcome = encode(role, keys.map_or(0, |_| SECRET));
    let about = about(&hello, &welcome, binding);
    let said = Said { kind: KIND, about: &about, asker: &theirs, answerer: &own };
    let who = Who::from_code(who);
    let proof = keys.zip(who).and_then(|(keys, who)| keys.proof(who, Side::Answerer, &said));
    send(stream, &[&welcome, &own, &proof.unwrap_or([0; BYTES])]).await?;
    if wanted != role {
        return Err(HelloError::Stranger(format!("looking for {wanted}").into()));
    }
    let Some(keys) = keys else { return Ok((None, None)) };
    let Some(who) = who else { return Err(HelloError::Keys("it has no key")) };
    let proof = receive(stream).await?;
    if !keys.proves(who, Side::Asker, &said, &proof) {
        return Err(HelloError::Keys("its key is of another secret"));
    }
    send(stream, &[&[1]]).await?;
    Ok((Some(who), codes(keys, who, Side::Answerer, &said, binding)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hellos_come_back_and_strangers_are_named() {
        for role in [Role::MemoryNode, Role::Master] {
            assert_eq!(decode(&encode(role, 2), End::Client), Ok((role, 2)));
        }
        let says =
            |bytes| HelloError::Stranger(decode(bytes, End::Client).unwrap_err()).to_string();
        assert!(says(b"HTTP/1.1").contains("does not speak"));
        assert!(says(&[b'F', b'U', b'S', b'E', b'E', VERSION, 9, 0]).contains("unknown"));
        // For ever: the version is the byte behind the name.
        assert!(says(b"FUSEE\x05\x01\0").contains("the server 5: upgrade the server"));
        assert!(says(b"FUSEE\xff\xff\xff").contains("the server 255: upgrade the client"));
    }
}
