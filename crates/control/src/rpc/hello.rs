//! The hello: the first messages of the two ends of a connection.
//!
//! ```text
//! client → server | "FUSEE" 5 | version 1 | role 1 | peer 1 | nonce 32 |
//! server → client | "FUSEE" 5 | version 1 | role 1 | wants 1 | nonce 32 | proof 32 |
//! client → server | proof 32 |                    if both have a secret
//! server → client | 1 |                           if the proof is good
//! ```
//!
//! The client sends the role that it looks for. The server always answers with its own role, and closes the connection
//! if the roles differ. Each end waits at most [`HELLO_TIMEOUT`] for the other. So a client that has connected to a
//! wrong port learns what serves there, a silent peer cannot keep a connection open, and a later version can detect an
//! older one before the first frame.
//!
//! In every version, past and future, each side first sends 8 bytes, with "FUSEE" and the version at the same
//! positions. A server reads these before anything else. If the version is another one, it answers with its own 8 bytes
//! before it closes the connection ([`fusee_core::version`]).
//!
//! If a process has keys ([`fusee_auth`]), the other end must prove that it has them, too. The client names its kind of
//! peer ([`PeerKind`], 0 without keys), the server proves that it has the key of that kind, and then the client does. A
//! client with keys closes the connection to a server without keys, a server with keys rejects clients without keys,
//! and both ends learn the reason. Without keys, nonces and proofs are zeros.
//!
//! Over TLS, proofs include a secret that only the two ends of that connection know, so an attacker cannot relay the
//! proofs to another connection. Without TLS, the frames behind a proof have codes, which are derived from the same key
//! and nonces. So an attacker that has only relayed the hello cannot send frames of its own.
//!
//! In `wants`, a server sends 1 if it has a secret, and 2 if it speaks TLS and the client did not; in the second case
//! nothing else follows.

use std::fmt;
use std::io;

use fusee_auth::{AuthTranscript, BYTES, FrameCodes, Keyring, Nonce, PeerKind, Proof, Side};
use fusee_core::version::{ConnectionEnd, VersionError, VersionRange};
use fusee_tls::{FIRST_BYTE, SPEAKS_NONE, SPEAKS_TLS, TlsSettings, WANTS_TLS};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::HELLO_TIMEOUT;
use super::runtime::RpcCredentials;
use super::wire::{ChannelBinding, RpcStream};

const MAGIC: &[u8; 5] = b"FUSEE";
/// The version of the control protocol. Version 5 added requests to take a block over at most once, and the restart of
/// operations that lose to a Move; 7, the policy for redundancy, and lost pairs in views; 9, keys; 10, codes of frames;
/// 11, used and remaining memory.
const VERSION: u8 = 13;
const START_BYTES: usize = 8;
/// The name of control connections in proofs, followed by a version number.
const KIND: &str = "control 2";

/// The role of a server.
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

/// The versions of the control protocol that this program understands.
pub const CONTROL: VersionRange = VersionRange::only("control protocol", VERSION as u32);

/// The other end of a connection that is not the expected service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum UnexpectedPeer {
    /// The other end is something else, which the text describes.
    Other(String),
    /// The other end is the expected kind of service, but speaks another version.
    Version(VersionError),
}

impl From<String> for UnexpectedPeer {
    fn from(what: String) -> UnexpectedPeer {
        UnexpectedPeer::Other(what)
    }
}

/// Errors of a hello.
#[derive(Debug)]
pub(super) enum HelloError {
    /// The other end is not the expected service.
    UnexpectedPeer(UnexpectedPeer),
    /// The other end sent nothing in time.
    Silent,
    /// The other end closed the connection.
    Closed,
    /// One end lacks the keys that the other end has. The text is for the operator of the end that reports the error.
    Keys(&'static str),
    /// Only one end speaks TLS, or a certificate is not valid.
    Tls(String),
    /// The operating system provided no random numbers.
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
            HelloError::UnexpectedPeer(UnexpectedPeer::Other(what)) => {
                write!(f, "the other end is {what}")
            }
            HelloError::UnexpectedPeer(UnexpectedPeer::Version(error)) => error.fmt(f),
            HelloError::Silent => f.write_str("no hello in time"),
            HelloError::Closed => f.write_str("closed before the hello"),
            HelloError::Keys(what) => f.write_str(what),
            HelloError::Tls(what) => f.write_str(what),
            HelloError::Random(error) => write!(f, "no random numbers: {error}"),
        }
    }
}

/// Values of a server's `wants`: it has a secret; it speaks TLS, and the client did not.
const SECRET: u8 = 1;
const TLS: u8 = 2;

/// Encodes the first 8 bytes. `says` is a client's kind of peer, or a server's `wants`.
pub(super) fn encode(role: Role, says: u8) -> [u8; START_BYTES] {
    let mut bytes = [0; START_BYTES];
    bytes[..5].copy_from_slice(MAGIC);
    bytes[5..].copy_from_slice(&[VERSION, role.code(), says]);
    bytes
}

pub(super) fn decode(
    bytes: &[u8; START_BYTES],
    own: ConnectionEnd,
) -> Result<(Role, u8), UnexpectedPeer> {
    if !bytes.starts_with(MAGIC) {
        return Err("something that does not speak FUSEE's control protocol".to_owned().into());
    }
    CONTROL.check(own, bytes[5].into()).map_err(UnexpectedPeer::Version)?;
    let role = Role::from_code(bytes[6]);
    let role = role.ok_or_else(|| format!("an unknown FUSEE service ({})", bytes[6]))?;
    Ok((role, bytes[7]))
}

async fn receive<const N: usize>(stream: &mut RpcStream) -> Result<[u8; N], HelloError> {
    let mut bytes = [0; N];
    match timeout(HELLO_TIMEOUT, stream.read_exact(&mut bytes)).await {
        Err(_) => Err(HelloError::Silent),
        Ok(Err(_)) => Err(HelloError::Closed),
        Ok(Ok(_)) => Ok(bytes),
    }
}

async fn send(stream: &mut RpcStream, parts: &[&[u8]]) -> Result<(), HelloError> {
    let sent = async {
        stream.write_all(&parts.concat()).await?;
        stream.flush().await
    };
    let sent: io::Result<()> = sent.await;
    sent.map_err(|_| HelloError::Closed)
}

fn nonce(keys: Option<&Keyring>) -> Result<Nonce, HelloError> {
    keys.map_or(Ok([0; BYTES]), |_| fusee_auth::nonce().map_err(HelloError::Random))
}

/// Returns the data that proofs cover.
fn about(hello: &[u8], welcome: &[u8], binding: Option<ChannelBinding>) -> Vec<u8> {
    [hello, welcome, binding.as_ref().map_or(&[], |binding| binding)].concat()
}

/// Returns the codes for frames; `None` over TLS, which protects more than codes do.
fn codes(
    keys: &Keyring,
    who: PeerKind,
    side: Side,
    said: &AuthTranscript<'_>,
    binding: Option<ChannelBinding>,
) -> Option<FrameCodes> {
    if binding.is_some() { None } else { keys.codes(who, side, said) }
}

/// Runs the client's side of a hello. Fails unless the other end has `role`, and has the keys that this process has.
/// Returns the codes for the frames that follow; `None` without keys, and over TLS.
pub(super) async fn ask(
    stream: &mut RpcStream,
    role: Role,
    trust: &RpcCredentials,
) -> Result<Option<FrameCodes>, HelloError> {
    let keys = trust.keys.as_deref();
    let binding = stream.binding()?;
    let own = nonce(keys)?;
    let hello = encode(role, keys.map_or(0, |keys| keys.acts_as().code()));
    send(stream, &[&hello, &own]).await?;
    let welcome = receive(stream).await?;
    let (found, wants) =
        decode(&welcome, ConnectionEnd::Client).map_err(HelloError::UnexpectedPeer)?;
    if wants & TLS != 0 {
        return Err(HelloError::Tls(WANTS_TLS.into()));
    }
    let has_secret = wants & SECRET != 0;
    if found != role {
        return Err(HelloError::UnexpectedPeer(found.to_string().into()));
    }
    let (theirs, proof): (Nonce, Proof) = (receive(stream).await?, receive(stream).await?);
    let Some(keys) = keys else {
        return if has_secret { Err(HelloError::Keys(NEEDS_KEY)) } else { Ok(None) };
    };
    if !has_secret {
        return Err(HelloError::Keys(NO_SECRET));
    }
    let about = about(&hello, &welcome, binding);
    let said = AuthTranscript { kind: KIND, about: &about, asker: &own, answerer: &theirs };
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

/// Tells a client that it speaks TLS and the server does not, or the reverse.
async fn other_way(stream: &mut RpcStream, role: Role, wants: u8) -> Result<(), HelloError> {
    // If bytes are unread when a connection is closed, data that was sent before can be lost. So the unread bytes are
    // read here.
    let _nothing = stream.socket().try_read(&mut [0; 4096]);
    send(stream, &[&encode(role, wants), &[0; BYTES], &[0; BYTES]]).await
}

/// Runs the server's side of a hello: sends its role, and then fails unless the client looks for that role and has a
/// key, if this process has keys. Returns the client's kind of peer, or `None` if no proof is demanded; and the codes
/// for the frames that follow.
pub(super) async fn answer(
    stream: &mut RpcStream,
    role: Role,
    trust: &RpcCredentials,
) -> Result<(Option<PeerKind>, Option<FrameCodes>), HelloError> {
    let keys = trust.keys.as_deref();
    let binding = stream.binding()?;
    let hello = receive(stream).await?;
    if hello[0] == FIRST_BYTE {
        other_way(stream, role, 0).await?;
        return Err(HelloError::Tls(SPEAKS_TLS.into()));
    }
    let (wanted, who) = match decode(&hello, ConnectionEnd::Server) {
        Ok(wanted) => wanted,
        Err(what) => {
            // A client of another version is told the version of this server.
            if hello.starts_with(MAGIC) {
                send(stream, &[&encode(role, 0)]).await?;
                // If bytes are unread when a connection is closed, data that was sent before can be lost. So the unread
                // bytes are read here.
                let _rest = timeout(HELLO_TIMEOUT, stream.read(&mut [0; BYTES])).await;
            }
            return Err(HelloError::UnexpectedPeer(what));
        }
    };
    if binding.is_none() && trust.tls.as_ref().is_some_and(TlsSettings::has_certificate) {
        other_way(stream, role, TLS).await?;
        return Err(HelloError::Tls(SPEAKS_NONE.into()));
    }
    let theirs: Nonce = receive(stream).await?;
    let own = nonce(keys)?;
    let welcome = encode(role, keys.map_or(0, |_| SECRET));
    let about = about(&hello, &welcome, binding);
    let said = AuthTranscript { kind: KIND, about: &about, asker: &theirs, answerer: &own };
    let who = PeerKind::from_code(who);
    let proof = keys.zip(who).and_then(|(keys, who)| keys.proof(who, Side::Answerer, &said));
    send(stream, &[&welcome, &own, &proof.unwrap_or([0; BYTES])]).await?;
    if wanted != role {
        return Err(HelloError::UnexpectedPeer(format!("looking for {wanted}").into()));
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
            assert_eq!(decode(&encode(role, 2), ConnectionEnd::Client), Ok((role, 2)));
        }
        let says = |bytes| {
            HelloError::UnexpectedPeer(decode(bytes, ConnectionEnd::Client).unwrap_err())
                .to_string()
        };
        assert!(says(b"HTTP/1.1").contains("does not speak"));
        assert!(says(&[b'F', b'U', b'S', b'E', b'E', VERSION, 9, 0]).contains("unknown"));
        // In every version of the hello, the byte after "FUSEE" is the version.
        assert!(says(b"FUSEE\x05\x01\0").contains("the server 5: upgrade the server"));
        assert!(says(b"FUSEE\xff\xff\xff").contains("the server 255: upgrade the client"));
    }
}
