//! Authentication of connections by keys that are derived from the cluster's secret.
//!
//! The secret is 32 random bytes, and each kind of peer ([`PeerKind`]) has a key derived from it. Servers have the
//! secret, programs that use the store have only a client's key, operators have an administrator's key. The callers
//! of this crate decide which requests a peer is allowed to make. This crate defines how both ends of a connection
//! prove that they have a key, before either end trusts anything that the other end sends:
//!
//! ```text
//! asker  → answerer    kind of peer, a nonce
//! answerer → asker     a nonce, and the proof of the answerer
//! asker  → answerer    the proof of the asker
//! ```
//!
//! A *proof* is a keyed BLAKE3 hash of the kind of connection, the side, everything that both ends have said, and
//! both nonces. So a proof is useless in any other connection and for the other side of the same connection, and it
//! reveals no key.
//!
//! An attacker that relays the three messages gets the connection, but not the key. So each later frame carries a
//! *code* ([`FrameCodes`]): a keyed hash of the frame and of the number of frames before it. The key of the codes
//! is for one direction of this connection, and is derived from the same data as the proofs. Codes do not encrypt
//! frames.
//!
//! A data connection runs from a session to one memory node, and both ends prove that they have the key of that
//! node ([`NodeKey`]), which is derived from the client's key and the node's identity.
//!
//! This crate does no I/O except for reading and writing key files.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The length in bytes of a secret, a key, a nonce or a proof.
pub const BYTES: usize = 32;
/// The length in bytes of a frame's code.
pub const CODE_BYTES: usize = 16;
/// The words with which every key file begins.
const MAGIC: &str = "fusee-key 1";

/// A random number that one end of a connection picks for this connection only.
pub type Nonce = [u8; BYTES];
/// A proof that its sender has a key.
pub type Proof = [u8; BYTES];
/// A code, by which the receiver of a frame knows that the frame is the next one of a peer with the key.
pub type FrameCode = [u8; CODE_BYTES];

/// A kind of process at the other end of a connection. The kind decides the process's rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PeerKind {
    /// A program that uses the store.
    Client,
    /// A tool that forms, drains and dissolves clusters. It has the rights of a client, too.
    Admin,
    /// A master or a memory node. It has the rights of a client, too.
    Server,
}

impl PeerKind {
    /// All kinds of peers.
    pub const ALL: [PeerKind; 3] = [PeerKind::Client, PeerKind::Admin, PeerKind::Server];

    /// Returns the number of this kind on the wire. 0 is never used.
    pub fn code(self) -> u8 {
        match self {
            PeerKind::Client => 1,
            PeerKind::Admin => 2,
            PeerKind::Server => 3,
        }
    }

    /// Returns the kind with this number on the wire.
    pub fn from_code(code: u8) -> Option<PeerKind> {
        PeerKind::ALL.into_iter().find(|who| who.code() == code)
    }

    /// Returns whether a peer of this kind is allowed to make requests that need the kind `need`.
    pub fn has_rights_of(self, need: PeerKind) -> bool {
        self == need || need == PeerKind::Client
    }

    /// Returns the name of this kind in files and messages.
    pub fn name(self) -> &'static str {
        match self {
            PeerKind::Client => "client",
            PeerKind::Admin => "admin",
            PeerKind::Server => "server",
        }
    }
}

impl fmt::Display for PeerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The key of one kind of peer.
#[derive(Clone, Copy, PartialEq, Eq)]
struct AuthKey([u8; BYTES]);

impl AuthKey {
    /// Returns a keyed hash of everything that was said in a connection. `what` makes the hashes of one connection
    /// differ.
    fn hash(&self, what: [u8; 2], said: &AuthTranscript<'_>) -> [u8; BYTES] {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(&what).update(&[said.kind.len() as u8]);
        hasher.update(said.kind.as_bytes());
        hasher.update(&(said.about.len() as u32).to_le_bytes());
        hasher.update(said.about);
        hasher.update(said.asker).update(said.answerer);
        *hasher.finalize().as_bytes()
    }
}

/// The keys that a process has, and the kind of peer that it connects as.
#[derive(Clone, PartialEq, Eq)]
pub struct Keyring {
    /// The keys that the process has, indexed by [`PeerKind`].
    keys: [Option<AuthKey>; 3],
    acts_as: PeerKind,
}

/// Hides the keys.
impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "keys of {}", self.acts_as)
    }
}

/// Errors of reading, writing and making keys.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The file cannot be read or written.
    #[error("{}: {error}", path.display())]
    File {
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        error: io::Error,
    },
    /// Other users have access to the file.
    #[error(
        "{} may be read or written by other users; `chmod 600` it, and if they have read it, make a new one",
        path.display()
    )]
    Readable {
        /// The path of the file.
        path: PathBuf,
    },
    /// The file is not a key file.
    #[error("{} is no file of a key; `fusee secret new` makes one", path.display())]
    NoKey {
        /// The path of the file.
        path: PathBuf,
    },
    /// The file lacks the key or secret that is needed.
    #[error("{} has a key for `{has}`, and what is asked for needs {needs}", path.display())]
    Lacks {
        /// The path of the file.
        path: PathBuf,
        /// The kind of peer that the file is for.
        has: PeerKind,
        /// The key or secret that is needed.
        needs: &'static str,
    },
    /// The system has no random numbers.
    #[error("the system gives no random numbers: {0}")]
    Random(String),
}

/// The content of a key file: the secret, or the keys for a kind of peer.
enum KeyFileContent {
    Secret([u8; BYTES]),
    Keys(PeerKind, Vec<AuthKey>),
}

/// The secret of a cluster, from which keys are derived.
pub struct Secret([u8; BYTES]);

impl Secret {
    /// Makes a new secret.
    pub fn random() -> Result<Secret, KeyError> {
        Ok(Secret(random()?))
    }

    /// Reads the secret from a file.
    pub fn read(path: &Path) -> Result<Secret, KeyError> {
        match read(path)? {
            KeyFileContent::Secret(secret) => Ok(Secret(secret)),
            KeyFileContent::Keys(has, _) => {
                Err(KeyError::Lacks { path: path.into(), has, needs: "the secret itself" })
            }
        }
    }

    /// Writes the secret into a new file that only this user has access to.
    pub fn write(&self, path: &Path) -> Result<(), KeyError> {
        write(path, "secret", &[AuthKey(self.0)])
    }

    /// Writes the keys for a kind of peer into a new file that only this user has access to. The file for an
    /// administrator contains the client's key, too.
    pub fn write_key(&self, who: PeerKind, path: &Path) -> Result<(), KeyError> {
        let keys: Vec<AuthKey> = key_kinds_in_file(who).map(|who| self.key(who)).collect();
        write(path, who.name(), &keys)
    }

    fn key(&self, who: PeerKind) -> AuthKey {
        AuthKey(blake3::derive_key(&format!("FUSEE 2026-11 key of a {who}"), &self.0))
    }

    /// Returns the keys of all kinds, for a process that connects as `acts_as`.
    pub fn keys(&self, acts_as: PeerKind) -> Keyring {
        Keyring { keys: PeerKind::ALL.map(|who| Some(self.key(who))), acts_as }
    }
}

/// Returns the kinds of keys that the file for a kind of peer contains, in the file's order.
fn key_kinds_in_file(who: PeerKind) -> impl Iterator<Item = PeerKind> {
    PeerKind::ALL.into_iter().filter(move |other| *other == who || *other == PeerKind::Client)
}

impl Keyring {
    /// Reads the keys of a server. The file must contain the secret.
    pub fn of_server(path: &Path) -> Result<Keyring, KeyError> {
        Ok(Secret::read(path)?.keys(PeerKind::Server))
    }

    /// Reads all keys of a file, for a tool or program. With a file that contains the secret, the process is an
    /// administrator.
    pub fn of_client(path: &Path) -> Result<Keyring, KeyError> {
        let (acts_as, found) = match read(path)? {
            KeyFileContent::Secret(secret) => return Ok(Secret(secret).keys(PeerKind::Admin)),
            KeyFileContent::Keys(acts_as, found) => (acts_as, found),
        };
        let mut keys = [None; 3];
        for (who, key) in key_kinds_in_file(acts_as).zip(found) {
            keys[who as usize] = Some(key);
        }
        Ok(Keyring { keys, acts_as })
    }

    /// Returns the kind of peer that the process connects as.
    pub fn acts_as(&self) -> PeerKind {
        self.acts_as
    }

    /// Returns the keys of this ring for a process that connects as the kind of peer `acts_as`.
    pub fn acting_as(&self, acts_as: PeerKind) -> Keyring {
        Keyring { acts_as, ..self.clone() }
    }

    /// Returns the proof of one side of a connection; `None` if this process lacks the key for this kind of peer.
    pub fn proof(&self, who: PeerKind, side: Side, said: &AuthTranscript<'_>) -> Option<Proof> {
        self.hash(who, side as u8, said)
    }

    /// Returns this side's codes for the frames of a connection; `None` if this process lacks the key for this kind
    /// of peer.
    pub fn codes(
        &self,
        who: PeerKind,
        side: Side,
        said: &AuthTranscript<'_>,
    ) -> Option<FrameCodes> {
        // These hashes are secret keys, so they must differ from all proofs, which are sent over the network.
        let of = |side| {
            let key = self.hash(who, CODES | side as u8, said).map(AuthKey)?;
            Some(Direction { key, frames: 0 })
        };
        let sent = SentCodes(of(side)?);
        Some(FrameCodes { sent, received: ReceivedCodes(of(side.other())?) })
    }

    fn hash(&self, who: PeerKind, what: u8, said: &AuthTranscript<'_>) -> Option<[u8; BYTES]> {
        Some(self.keys[who as usize]?.hash([what, who.code()], said))
    }

    /// Returns whether `proof` is the proof of this side; false if this process lacks the key for this kind of peer.
    pub fn proves(
        &self,
        who: PeerKind,
        side: Side,
        said: &AuthTranscript<'_>,
        proof: &Proof,
    ) -> bool {
        self.proof(who, side, said).is_some_and(|expected| is_same(&expected, proof))
    }
}

/// Compares two proofs in a time that does not depend on where they differ.
fn is_same(expected: &Proof, proof: &Proof) -> bool {
    blake3::Hash::from_bytes(*expected) == blake3::Hash::from_bytes(*proof)
}

/// The key of one memory node. Both ends of a data connection prove that they have it.
///
/// The key is derived from the node's identity and, in a cluster with a secret, from the client's key. Without a
/// secret, the identity alone suffices to derive the key.
#[derive(Clone, PartialEq, Eq)]
pub struct NodeKey {
    key: AuthKey,
    name: u64,
}

impl NodeKey {
    /// Derives the key from the node's identity and, if this process has keys, from the client's key.
    ///
    /// # Panics
    /// If `keys` lacks the client's key, which every key file contains.
    pub fn new(keys: Option<&Keyring>, identity: u64) -> NodeKey {
        let client = keys.map(|keys| {
            keys.keys[PeerKind::Client as usize].expect("servers and administrators are clients")
        });
        let context = if client.is_some() { "with" } else { "without" };
        let context = format!("FUSEE 2026-11 key of a memory node {context} a secret");
        let base = client.map_or([0; BYTES], |key| key.0);
        let key = blake3::derive_key(&context, &[&base[..], &identity.to_le_bytes()].concat());
        let name = blake3::derive_key("FUSEE 2026-11 name of a memory node", &key);
        let name = u64::from_le_bytes(*name.first_chunk().expect("a hash is longer"));
        NodeKey { key: AuthKey(key), name }
    }

    /// Returns a public number that differs between nodes. The key cannot be derived from it.
    pub fn name(&self) -> u64 {
        self.name
    }

    /// Returns the proof of one side of a connection, made with this key.
    pub fn proof(&self, side: Side, said: &AuthTranscript<'_>) -> Proof {
        self.key.hash([side as u8, 0], said)
    }

    /// Returns whether `proof` is the proof of this side.
    pub fn proves(&self, side: Side, said: &AuthTranscript<'_>, proof: &Proof) -> bool {
        is_same(&self.proof(side, said), proof)
    }
}

/// Hides the key.
impl fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "key of the memory node {:016x}", self.name)
    }
}

/// An end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The end that connects.
    Asker = 1,
    /// The end that accepts.
    Answerer = 2,
}

impl Side {
    fn other(self) -> Side {
        match self {
            Side::Asker => Side::Answerer,
            Side::Answerer => Side::Asker,
        }
    }
}

/// The bit that is added to the number of a side in hashes that become keys of codes, so that these hashes differ from
/// proofs.
const CODES: u8 = 0x10;

/// The key for frame codes and the frame count of one direction of a connection.
struct Direction {
    key: AuthKey,
    /// The number of frames sent so far in this direction.
    frames: u64,
}

impl Direction {
    /// Returns the code of the direction's next frame, and counts the frame.
    fn next(&mut self, frame: &[u8]) -> FrameCode {
        let mut hasher = blake3::Hasher::new_keyed(&self.key.0);
        hasher.update(&self.frames.to_le_bytes()).update(frame);
        self.frames += 1;
        *hasher.finalize().as_bytes().first_chunk().expect("a hash is longer than a code")
    }
}

/// The codes of one end of a connection.
///
/// The frames of each direction have one order, so a frame that was repeated, comes from elsewhere, or follows a
/// lost one has a wrong code.
#[derive(Debug)]
pub struct FrameCodes {
    /// The codes of the frames that this end sends.
    pub sent: SentCodes,
    /// The codes of the frames that this end receives.
    pub received: ReceivedCodes,
}

/// The state that yields the codes of the frames that this end sends.
#[derive(Debug)]
pub struct SentCodes(Direction);

impl SentCodes {
    /// Returns the code of the next frame.
    pub fn next(&mut self, frame: &[u8]) -> FrameCode {
        self.0.next(frame)
    }
}

/// The state that checks the codes of the frames that this end receives.
#[derive(Debug)]
pub struct ReceivedCodes(Direction);

impl ReceivedCodes {
    /// Returns whether this frame is the next one that the other end has sent.
    pub fn is_next(&mut self, frame: &[u8], code: &FrameCode) -> bool {
        // The comparison takes a time that does not depend on where the codes differ.
        let whole = |code: &FrameCode| {
            let mut hash = [0; BYTES];
            hash[..CODE_BYTES].copy_from_slice(code);
            blake3::Hash::from_bytes(hash)
        };
        whole(&self.0.next(frame)) == whole(code)
    }
}

/// Hides the key.
impl fmt::Debug for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "codes after {} frames", self.frames)
    }
}

/// Everything that both ends of a connection have said, as far as proofs and the keys of codes depend on it.
#[derive(Clone, Copy, Debug)]
pub struct AuthTranscript<'a> {
    /// The kind of connection, with the version of its protocol.
    pub kind: &'static str,
    /// The bytes that the hash covers besides the kind and the nonces.
    pub about: &'a [u8],
    /// The nonce of the end that connects.
    pub asker: &'a Nonce,
    /// The nonce of the end that accepts.
    pub answerer: &'a Nonce,
}

/// Returns a new random nonce.
pub fn nonce() -> io::Result<Nonce> {
    random().map_err(io::Error::other)
}

fn random() -> Result<[u8; BYTES], KeyError> {
    let mut bytes = [0; BYTES];
    getrandom::fill(&mut bytes).map_err(|error| KeyError::Random(error.to_string()))?;
    Ok(bytes)
}

fn read(path: &Path) -> Result<KeyFileContent, KeyError> {
    content(&read_private(path, 4096)?).ok_or_else(|| KeyError::NoKey { path: path.into() })
}

/// Returns the text of a private file, up to `most_bytes` bytes. Fails if other users have access to the file.
pub fn read_private(path: &Path, most_bytes: u64) -> Result<String, KeyError> {
    let failed = |error| KeyError::File { path: path.into(), error };
    let file = File::open(path).map_err(failed)?;
    let about = file.metadata().map_err(failed)?;
    // A file that belongs to root can also be readable by a group of this process, because a service manager that runs
    // as root hands files to services of other users like that. The mode of a pipe is not checked, because the process
    // that made the pipe has chosen its readers.
    let is_handed =
        about.uid() == 0 && !rustix::process::geteuid().is_root() && is_in_group(about.gid());
    let of_others = if is_handed { 0o037 } else { 0o077 };
    if about.is_file() && about.mode() & of_others != 0 {
        return Err(KeyError::Readable { path: path.into() });
    }
    io::read_to_string(io::Read::take(file, most_bytes)).map_err(failed)
}

/// Returns whether this process belongs to a group.
fn is_in_group(group: u32) -> bool {
    let others = || rustix::process::getgroups().unwrap_or_default();
    rustix::process::getegid().as_raw() == group || others().iter().any(|gid| gid.as_raw() == group)
}

fn content(text: &str) -> Option<KeyFileContent> {
    let mut words = text.trim().strip_prefix(MAGIC)?.split_whitespace();
    let name = words.next()?;
    let keys: Option<Vec<AuthKey>> = words.map(from_hex).collect();
    let keys = keys?;
    if name == "secret" {
        let [AuthKey(secret)] = keys.try_into().ok()?;
        return Some(KeyFileContent::Secret(secret));
    }
    let who =
        PeerKind::ALL.into_iter().find(|who| who.name() == name && *who != PeerKind::Server)?;
    (keys.len() == key_kinds_in_file(who).count()).then_some(KeyFileContent::Keys(who, keys))
}

fn from_hex(word: &str) -> Option<AuthKey> {
    let digits = word.as_bytes().as_chunks::<2>();
    let (pairs, []) = digits else { return None };
    let byte = |pair: &[u8; 2]| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok();
    let bytes: Option<Vec<u8>> = pairs.iter().map(byte).collect();
    Some(AuthKey(bytes?.try_into().ok()?))
}

fn write(path: &Path, name: &str, keys: &[AuthKey]) -> Result<(), KeyError> {
    let failed = |error| KeyError::File { path: path.into(), error };
    let mut text = format!("{MAGIC} {name}");
    for AuthKey(bytes) in keys {
        text.push(' ');
        text.extend(bytes.iter().map(|byte| format!("{byte:02x}")));
    }
    text.push('\n');
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    written.inspect_err(|_| drop(fs::remove_file(path))).map_err(failed)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn said<'a>(about: &'a [u8], asker: &'a Nonce, answerer: &'a Nonce) -> AuthTranscript<'a> {
        AuthTranscript { kind: "test 1", about, asker, answerer }
    }

    #[test]
    fn a_proof_is_of_one_key_one_side_and_one_connection() {
        let keys = Secret([1; BYTES]).keys(PeerKind::Server);
        let others = Secret([2; BYTES]).keys(PeerKind::Server);
        let asker = [3; BYTES];
        let answerer = [4; BYTES];
        let here = said(b"about", &asker, &answerer);
        let proof = keys.proof(PeerKind::Client, Side::Asker, &here).unwrap();
        assert!(keys.proves(PeerKind::Client, Side::Asker, &here, &proof));
        assert!(!keys.proves(PeerKind::Client, Side::Answerer, &here, &proof), "the other side");
        assert!(!keys.proves(PeerKind::Admin, Side::Asker, &here, &proof), "another kind of peer");
        assert!(!others.proves(PeerKind::Client, Side::Asker, &here, &proof), "another secret");
        for elsewhere in [
            said(b"abouT", &asker, &answerer),
            said(b"about", &answerer, &asker),
            said(b"about", &asker, &asker),
            AuthTranscript { kind: "test 2", ..here },
        ] {
            assert!(!keys.proves(PeerKind::Client, Side::Asker, &elsewhere, &proof));
        }
        let mut changed = proof;
        changed[31] ^= 1;
        assert!(!keys.proves(PeerKind::Client, Side::Asker, &here, &changed));
        assert_ne!(nonce().unwrap(), nonce().unwrap());
    }

    #[test]
    fn a_nodes_key_is_of_one_identity_and_one_secret() {
        let secret = Secret([1; BYTES]);
        let key = |keys: Option<Keyring>, identity| NodeKey::new(keys.as_ref(), identity);
        let own = key(Some(secret.keys(PeerKind::Client)), 7);
        let asker = [3; BYTES];
        let answerer = [4; BYTES];
        let said = said(b"about", &asker, &answerer);
        let proof = own.proof(Side::Asker, &said);
        // Servers and administrators also have the client's key.
        for who in PeerKind::ALL {
            let same = key(Some(secret.keys(who)), 7);
            assert!(same.proves(Side::Asker, &said, &proof) && same.name() == own.name());
        }
        assert!(!own.proves(Side::Answerer, &said, &proof));
        let others = [
            key(Some(secret.keys(PeerKind::Client)), 8),
            key(Some(Secret([2; BYTES]).keys(PeerKind::Client)), 7),
            key(None, 7),
        ];
        for other in others {
            assert!(!other.proves(Side::Asker, &said, &proof) && other.name() != own.name());
        }
    }

    #[test]
    fn a_code_is_of_one_frame_one_direction_and_one_connection() {
        let keys = Secret([1; BYTES]).keys(PeerKind::Client);
        let asker = [3; BYTES];
        let answerer = [4; BYTES];
        let codes = |side, said| keys.codes(PeerKind::Client, side, said).unwrap();
        let here = said(b"", &asker, &answerer);
        let mut one = codes(Side::Asker, &here);
        let mut other = codes(Side::Answerer, &here);
        for frame in [&b"first"[..], b"", b"third"] {
            let code = one.sent.next(frame);
            assert!(other.received.is_next(frame, &code));
            let code = other.sent.next(frame);
            assert!(one.received.is_next(frame, &code));
        }
        // A frame that is sent again has another code, and a missing frame is noticed.
        let fourth = one.sent.next(b"x");
        let fifth = one.sent.next(b"x");
        assert_ne!(fourth, fifth);
        assert!(!other.received.is_next(b"x", &fifth));
        // A code is rejected by the end that has sent it, in another connection, and for another frame.
        let elsewhere = said(b"", &asker, &asker);
        for (side, said, frame) in [
            (Side::Asker, &here, &b"x"[..]),
            (Side::Answerer, &elsewhere, b"x"),
            (Side::Answerer, &here, b"y"),
        ] {
            let code = codes(Side::Asker, &here).sent.next(b"x");
            assert!(!codes(side, said).received.is_next(frame, &code), "{side:?} {frame:?}");
        }
        let code = codes(Side::Asker, &here).sent.next(b"x");
        let proof = keys.proof(PeerKind::Client, Side::Asker, &here).unwrap();
        assert_ne!(code[..], proof[..CODE_BYTES]);
        assert!(codes(Side::Answerer, &here).received.is_next(b"x", &code));
    }

    #[test]
    fn files_have_what_their_owner_needs_and_no_more() {
        let directory = std::env::temp_dir().join(format!("fusee-auth-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let path = |name: &str| directory.join(name);
        let secret = Secret::random().unwrap();
        secret.write(&path("secret")).unwrap();
        secret.write_key(PeerKind::Client, &path("client")).unwrap();
        secret.write_key(PeerKind::Admin, &path("admin")).unwrap();
        assert!(matches!(secret.write(&path("secret")), Err(KeyError::File { .. })), "it is there");

        let server = Keyring::of_server(&path("secret")).unwrap();
        let a = [1; BYTES];
        let b = [2; BYTES];
        let said = said(b"", &a, &b);
        for (name, acts_as, has) in [
            ("secret", PeerKind::Admin, &PeerKind::ALL[..]),
            ("admin", PeerKind::Admin, &[PeerKind::Client, PeerKind::Admin]),
            ("client", PeerKind::Client, &[PeerKind::Client]),
        ] {
            let keys = Keyring::of_client(&path(name)).unwrap();
            assert_eq!(keys.acts_as(), acts_as);
            for who in PeerKind::ALL {
                let proof = keys.proof(who, Side::Asker, &said);
                assert_eq!(proof.is_some(), has.contains(&who), "{name} {who}");
                assert!(proof.is_none_or(|proof| server.proves(who, Side::Asker, &said, &proof)));
            }
        }
        let refused = Keyring::of_server(&path("admin")).unwrap_err().to_string();
        assert!(refused.contains("`admin`") && refused.contains("the secret itself"), "{refused}");

        fs::set_permissions(path("client"), fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(Keyring::of_client(&path("client")), Err(KeyError::Readable { .. })));
        // A file of another user than root is refused, too, if its group has access.
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(path("client"), Some(12_345), None).unwrap();
            assert!(matches!(Keyring::of_client(&path("client")), Err(KeyError::Readable { .. })));
        }
        let mut options = OpenOptions::new();
        let other = options.write(true).create(true).truncate(true).mode(0o600);
        for text in ["", "fusee-key 1", "fusee-key 1 secret 00", "fusee-key 2 secret", "x y z"] {
            other.open(path("other")).unwrap().write_all(text.as_bytes()).unwrap();
            let error = Keyring::of_client(&path("other"));
            assert!(matches!(error, Err(KeyError::NoKey { .. })), "{text}: {error:?}");
        }
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn servers_and_administrators_are_clients_too_and_not_each_other() {
        assert!(
            PeerKind::ALL
                .into_iter()
                .all(|who| who.has_rights_of(PeerKind::Client) && who.has_rights_of(who))
        );
        assert!(
            !PeerKind::Server.has_rights_of(PeerKind::Admin)
                && !PeerKind::Admin.has_rights_of(PeerKind::Server)
        );
        assert!(
            !PeerKind::Client.has_rights_of(PeerKind::Admin)
                && !PeerKind::Client.has_rights_of(PeerKind::Server)
        );
        assert_eq!(PeerKind::from_code(0), None);
        assert!(PeerKind::ALL.into_iter().all(|who| PeerKind::from_code(who.code()) == Some(who)));
    }
}
