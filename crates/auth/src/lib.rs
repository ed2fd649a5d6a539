//! The secret of a cluster: who has it, or a key that is made of it, may connect.
//!
//! Of one secret of 32 random bytes a key is derived for each kind of peer ([`Who`]). Servers have the secret, programs
//! that use the store a client's key alone, operators an administrator's. What each may ask is for others to say; this
//! crate says how both ends of a connection prove that they have a key, before either believes anything of the other:
//!
//! ```text
//! asker  → answerer    who it is, a nonce
//! answerer → asker     a nonce, and the proof of the answerer
//! asker  → answerer    the proof of the asker
//! ```
//!
//! A *proof* is the keyed BLAKE3 hash of all of that: of the kind of connection, of the side, of what both have said,
//! and of both nonces. So a proof is of no use in any other connection, nor to the other side of the same one, and
//! nobody learns a key from it.
//!
//! Whoever passes the three messages on has the connection, and not the key. So each frame that follows has a *code*
//! ([`Codes`]): a keyed hash of the frame and of how many there were before, under a key for one direction of this
//! connection, which comes of the same as the proofs. Nothing is encrypted by that.
//!
//! Data connections go from a session to one memory node, which both prove as well: of the client's key and of the
//! node's identity comes a key of that node ([`NodeKey`]).
//!
//! This crate does no I/O but to read and write files of keys.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Bytes of a secret, of a key, of a nonce and of a proof.
pub const BYTES: usize = 32;
/// Bytes of the code of a frame.
pub const CODE_BYTES: usize = 16;
/// The first words of a file of keys.
const MAGIC: &str = "fusee-key 1";

/// What both ends pick anew for each connection.
pub type Nonce = [u8; BYTES];
/// What shows that somebody has a key.
pub type Proof = [u8; BYTES];
/// What shows that a frame is of somebody who has a key, and the next one.
pub type Code = [u8; CODE_BYTES];

/// A kind of peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Who {
    /// A program that uses the store.
    Client,
    /// Whoever forms, drains and gives up clusters. May also do what a client may.
    Admin,
    /// A master or a memory node. May also do what a client may.
    Server,
}

impl Who {
    /// All of them.
    pub const ALL: [Who; 3] = [Who::Client, Who::Admin, Who::Server];

    /// As a number on the wire; 0 is nobody's.
    pub fn code(self) -> u8 {
        match self {
            Who::Client => 1,
            Who::Admin => 2,
            Who::Server => 3,
        }
    }

    /// Of a number on the wire.
    pub fn from_code(code: u8) -> Option<Who> {
        Who::ALL.into_iter().find(|who| who.code() == code)
    }

    /// Whether this one may do what is for that one.
    pub fn may(self, need: Who) -> bool {
        self == need || need == Who::Client
    }

    /// In files and messages.
    pub fn name(self) -> &'static str {
        match self {
            Who::Client => "client",
            Who::Admin => "admin",
            Who::Server => "server",
        }
    }
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A key of one kind of peer.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Key([u8; BYTES]);

impl Key {
    /// Of all that was said in a connection. `what` tells the hashes of one connection apart.
    fn hash(&self, what: [u8; 2], said: &Said<'_>) -> [u8; BYTES] {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(&what).update(&[said.kind.len() as u8]);
        hasher.update(said.kind.as_bytes());
        hasher.update(&(said.about.len() as u32).to_le_bytes());
        hasher.update(said.about);
        hasher.update(said.asker).update(said.answerer);
        *hasher.finalize().as_bytes()
    }
}

/// The keys that a process has, and as whom it connects.
#[derive(Clone, PartialEq, Eq)]
pub struct Keys {
    /// By [`Who`].
    keys: [Option<Key>; 3],
    acts_as: Who,
}

/// Never shows a key.
impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "keys of {}", self.acts_as)
    }
}

/// Why there are no keys.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The file cannot be read, or written.
    #[error("{}: {error}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        error: io::Error,
    },
    /// Others may read it.
    #[error(
        "{} may be read or written by other users; `chmod 600` it, and if they have read it, make a new one",
        path.display()
    )]
    Readable {
        /// Which.
        path: PathBuf,
    },
    /// It holds something else.
    #[error("{} is no file of a key; `fusee secret new` makes one", path.display())]
    NoKey {
        /// Which.
        path: PathBuf,
    },
    /// It has not the key that is needed.
    #[error("{} has a key for `{has}`, and what is asked for needs {needs}", path.display())]
    Lacks {
        /// Which.
        path: PathBuf,
        /// Whose key it has.
        has: Who,
        /// Whose is needed.
        needs: &'static str,
    },
    /// The system has no random numbers.
    #[error("the system gives no random numbers: {0}")]
    Random(String),
}

/// What a file holds: the secret, or the keys of a kind of peer.
enum Content {
    Secret([u8; BYTES]),
    Keys(Who, Vec<Key>),
}

/// A secret, for who makes one and keys of it.
pub struct Secret([u8; BYTES]);

impl Secret {
    /// A new one.
    pub fn random() -> Result<Secret, KeyError> {
        Ok(Secret(random()?))
    }

    /// That of a file.
    pub fn read(path: &Path) -> Result<Secret, KeyError> {
        match read(path)? {
            Content::Secret(secret) => Ok(Secret(secret)),
            Content::Keys(has, _) => {
                Err(KeyError::Lacks { path: path.into(), has, needs: "the secret itself" })
            }
        }
    }

    /// Writes it into a file that is not there yet, for this user only.
    pub fn write(&self, path: &Path) -> Result<(), KeyError> {
        write(path, "secret", &[Key(self.0)])
    }

    /// Writes what a kind of peer needs into such a file: an administrator is a client, too.
    pub fn write_key(&self, who: Who, path: &Path) -> Result<(), KeyError> {
        let keys: Vec<Key> = whose(who).map(|who| self.key(who)).collect();
        write(path, who.name(), &keys)
    }

    fn key(&self, who: Who) -> Key {
        Key(blake3::derive_key(&format!("FUSEE 2026-11 key of a {who}"), &self.0))
    }

    /// All keys, to connect as this one.
    pub fn keys(&self, acts_as: Who) -> Keys {
        Keys { keys: Who::ALL.map(|who| Some(self.key(who))), acts_as }
    }
}

/// The keys that are in the file of a kind of peer, in their order.
fn whose(who: Who) -> impl Iterator<Item = Who> {
    Who::ALL.into_iter().filter(move |other| *other == who || *other == Who::Client)
}

impl Keys {
    /// Those of a server, which needs the secret.
    pub fn of_server(path: &Path) -> Result<Keys, KeyError> {
        Ok(Secret::read(path)?.keys(Who::Server))
    }

    /// Those of a tool or a program: as much as the file has.
    pub fn of_client(path: &Path) -> Result<Keys, KeyError> {
        let (acts_as, found) = match read(path)? {
            Content::Secret(secret) => return Ok(Secret(secret).keys(Who::Admin)),
            Content::Keys(acts_as, found) => (acts_as, found),
        };
        let mut keys = [None; 3];
        for (who, key) in whose(acts_as).zip(found) {
            keys[who as usize] = Some(key);
        }
        Ok(Keys { keys, acts_as })
    }

    /// As whom it connects.
    pub fn acts_as(&self) -> Who {
        self.acts_as
    }

    /// The same keys, to connect as somebody else.
    pub fn acting_as(&self, acts_as: Who) -> Keys {
        Keys { acts_as, ..self.clone() }
    }

    /// The proof of one side of a connection. `None`: this process has no such key.
    pub fn proof(&self, who: Who, side: Side, said: &Said<'_>) -> Option<Proof> {
        self.hash(who, side as u8, said)
    }

    /// The codes of the frames of a connection, for this side of it. `None`: this process has no such key.
    pub fn codes(&self, who: Who, side: Side, said: &Said<'_>) -> Option<Codes> {
        // Hashes that are no proofs, which go over the network.
        let of = |side| {
            let key = self.hash(who, CODES | side as u8, said).map(Key)?;
            Some(Direction { key, frames: 0 })
        };
        Some(Codes { sent: of(side)?, received: of(side.other())? })
    }

    fn hash(&self, who: Who, what: u8, said: &Said<'_>) -> Option<[u8; BYTES]> {
        Some(self.keys[who as usize]?.hash([what, who.code()], said))
    }

    /// Whether a proof is that of one side.
    pub fn proves(&self, who: Who, side: Side, said: &Said<'_>, proof: &Proof) -> bool {
        self.proof(who, side, said).is_some_and(|expected| is_same(&expected, proof))
    }
}

/// Compares in a time that says nothing of where they differ.
fn is_same(expected: &Proof, proof: &Proof) -> bool {
    blake3::Hash::from_bytes(*expected) == blake3::Hash::from_bytes(*proof)
}

/// The key of one memory node: what both ends of a data connection prove to each other. It comes of the node's
/// identity, and, in a cluster with a secret, of the client's key. Without a secret the identity is all there is to
/// know.
#[derive(Clone, PartialEq, Eq)]
pub struct NodeKey {
    key: Key,
    name: u64,
}

impl NodeKey {
    /// Of the keys that this process has, if any.
    ///
    /// # Panics
    /// If the keys lack that of a client, which every file of keys has.
    pub fn new(keys: Option<&Keys>, identity: u64) -> NodeKey {
        let client = keys.map(|keys| {
            keys.keys[Who::Client as usize].expect("servers and administrators are clients")
        });
        let context = if client.is_some() { "with" } else { "without" };
        let context = format!("FUSEE 2026-11 key of a memory node {context} a secret");
        let base = client.map_or([0; BYTES], |key| key.0);
        let key = blake3::derive_key(&context, &[&base[..], &identity.to_le_bytes()].concat());
        let name = blake3::derive_key("FUSEE 2026-11 name of a memory node", &key);
        let name = u64::from_le_bytes(*name.first_chunk().expect("a hash is longer"));
        NodeKey { key: Key(key), name }
    }

    /// Tells nodes apart, to whoever listens as well: the key does not follow from it.
    pub fn name(&self) -> u64 {
        self.name
    }

    /// The proof of one side of a connection.
    pub fn proof(&self, side: Side, said: &Said<'_>) -> Proof {
        self.key.hash([side as u8, 0], said)
    }

    /// Whether a proof is that of one side.
    pub fn proves(&self, side: Side, said: &Said<'_>, proof: &Proof) -> bool {
        is_same(&self.proof(side, said), proof)
    }
}

/// Never shows the key.
impl fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "key of the memory node {:016x}", self.name)
    }
}

/// An end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Who connects.
    Asker = 1,
    /// Who is connected to.
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

/// Tells the keys of codes from proofs, beside the side.
const CODES: u8 = 0x10;

/// The frames of one direction of a connection.
struct Direction {
    key: Key,
    /// How many there were.
    frames: u64,
}

impl Direction {
    /// The code of the next frame.
    fn next(&mut self, frame: &[u8]) -> Code {
        let mut hasher = blake3::Hasher::new_keyed(&self.key.0);
        hasher.update(&self.frames.to_le_bytes()).update(frame);
        self.frames += 1;
        *hasher.finalize().as_bytes().first_chunk().expect("a hash is longer than a code")
    }
}

/// What one end of a connection needs to know frames of the other end from those of anybody else, and to show its own
/// for what they are. Frames have one order in each direction.
pub struct Codes {
    sent: Direction,
    received: Direction,
}

impl Codes {
    /// The code of the next frame to send.
    pub fn of_sent(&mut self, frame: &[u8]) -> Code {
        self.sent.next(frame)
    }

    /// Whether this is the next frame of the other end.
    pub fn is_received(&mut self, frame: &[u8], code: &Code) -> bool {
        // Compared in a time that says nothing of where they differ.
        let whole = |code: &Code| {
            let mut hash = [0; BYTES];
            hash[..CODE_BYTES].copy_from_slice(code);
            blake3::Hash::from_bytes(hash)
        };
        whole(&self.received.next(frame)) == whole(code)
    }
}

/// Never shows a key.
impl fmt::Debug for Codes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "codes after {} and {} frames", self.sent.frames, self.received.frames)
    }
}

/// What both ends have said to each other.
#[derive(Clone, Copy, Debug)]
pub struct Said<'a> {
    /// The kind of connection, with the version of what is said.
    pub kind: &'static str,
    /// All that was said in the clear.
    pub about: &'a [u8],
    /// The nonce of who connects.
    pub asker: &'a Nonce,
    /// That of who is connected to.
    pub answerer: &'a Nonce,
}

/// A new one.
pub fn nonce() -> io::Result<Nonce> {
    random().map_err(io::Error::other)
}

fn random() -> Result<[u8; BYTES], KeyError> {
    let mut bytes = [0; BYTES];
    getrandom::fill(&mut bytes).map_err(|error| KeyError::Random(error.to_string()))?;
    Ok(bytes)
}

fn read(path: &Path) -> Result<Content, KeyError> {
    content(&read_private(path, 4096)?).ok_or_else(|| KeyError::NoKey { path: path.into() })
}

/// The text of a file that nobody else may read, up to so many bytes.
pub fn read_private(path: &Path, most_bytes: u64) -> Result<String, KeyError> {
    let failed = |error| KeyError::File { path: path.into(), error };
    let file = File::open(path).map_err(failed)?;
    let about = file.metadata().map_err(failed)?;
    // Who hands files to services of other users is root, and lets their group read them. A pipe is whoever's made it.
    let is_handed = about.uid() == 0 && !rustix::process::geteuid().is_root() && is_of(about.gid());
    let of_others = if is_handed { 0o037 } else { 0o077 };
    if about.is_file() && about.mode() & of_others != 0 {
        return Err(KeyError::Readable { path: path.into() });
    }
    io::read_to_string(io::Read::take(file, most_bytes)).map_err(failed)
}

/// Whether this process belongs to a group.
fn is_of(group: u32) -> bool {
    let others = || rustix::process::getgroups().unwrap_or_default();
    rustix::process::getegid().as_raw() == group || others().iter().any(|gid| gid.as_raw() == group)
}

fn content(text: &str) -> Option<Content> {
    let mut words = text.trim().strip_prefix(MAGIC)?.split_whitespace();
    let name = words.next()?;
    let keys: Option<Vec<Key>> = words.map(from_hex).collect();
    let keys = keys?;
    if name == "secret" {
        let [Key(secret)] = keys.try_into().ok()?;
        return Some(Content::Secret(secret));
    }
    let who = Who::ALL.into_iter().find(|who| who.name() == name && *who != Who::Server)?;
    (keys.len() == whose(who).count()).then_some(Content::Keys(who, keys))
}

fn from_hex(word: &str) -> Option<Key> {
    let digits = word.as_bytes().as_chunks::<2>();
    let (pairs, []) = digits else { return None };
    let byte = |pair: &[u8; 2]| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok();
    let bytes: Option<Vec<u8>> = pairs.iter().map(byte).collect();
    Some(Key(bytes?.try_into().ok()?))
}

fn write(path: &Path, name: &str, keys: &[Key]) -> Result<(), KeyError> {
    let failed = |error| KeyError::File { path: path.into(), error };
    let mut text = format!("{MAGIC} {name}");
    for Key(bytes) in keys {
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

    fn said<'a>(about: &'a [u8], asker: &'a Nonce, answerer: &'a Nonce) -> Said<'a> {
        Said { kind: "test 1", about, asker, answerer }
    }

    #[test]
    fn a_proof_is_of_one_key_one_side_and_one_connection() {
        let keys = Secret([1; BYTES]).keys(Who::Server);
        let others = Secret([2; BYTES]).keys(Who::Server);
        let asker = [3; BYTES];
        let answerer = [4; BYTES];
        let here = said(b"about", &asker, &answerer);
        let proof = keys.proof(Who::Client, Side::Asker, &here).unwrap();
        assert!(keys.proves(Who::Client, Side::Asker, &here, &proof));
        assert!(!keys.proves(Who::Client, Side::Answerer, &here, &proof), "the other side");
        assert!(!keys.proves(Who::Admin, Side::Asker, &here, &proof), "another kind of peer");
        assert!(!others.proves(Who::Client, Side::Asker, &here, &proof), "another secret");
        for elsewhere in [
            said(b"abouT", &asker, &answerer),
            said(b"about", &answerer, &asker),
            said(b"about", &asker, &asker),
            Said { kind: "test 2", ..here },
        ] {
            assert!(!keys.proves(Who::Client, Side::Asker, &elsewhere, &proof));
        }
        let mut changed = proof;
        changed[31] ^= 1;
        assert!(!keys.proves(Who::Client, Side::Asker, &here, &changed));
        assert_ne!(nonce().unwrap(), nonce().unwrap());
    }

    #[test]
    fn a_nodes_key_is_of_one_identity_and_one_secret() {
        let secret = Secret([1; BYTES]);
        let key = |keys: Option<Keys>, identity| NodeKey::new(keys.as_ref(), identity);
        let own = key(Some(secret.keys(Who::Client)), 7);
        let asker = [3; BYTES];
        let answerer = [4; BYTES];
        let said = said(b"about", &asker, &answerer);
        let proof = own.proof(Side::Asker, &said);
        // Servers and administrators have the client's key, too.
        for who in Who::ALL {
            let same = key(Some(secret.keys(who)), 7);
            assert!(same.proves(Side::Asker, &said, &proof) && same.name() == own.name());
        }
        assert!(!own.proves(Side::Answerer, &said, &proof));
        let others = [
            key(Some(secret.keys(Who::Client)), 8),
            key(Some(Secret([2; BYTES]).keys(Who::Client)), 7),
            key(None, 7),
        ];
        for other in others {
            assert!(!other.proves(Side::Asker, &said, &proof) && other.name() != own.name());
        }
    }

    #[test]
    fn a_code_is_of_one_frame_one_direction_and_one_connection() {
        let keys = Secret([1; BYTES]).keys(Who::Client);
        let asker = [3; BYTES];
        let answerer = [4; BYTES];
        let codes = |side, said| keys.codes(Who::Client, side, said).unwrap();
        let here = said(b"", &asker, &answerer);
        let mut one = codes(Side::Asker, &here);
        let mut other = codes(Side::Answerer, &here);
        for frame in [&b"first"[..], b"", b"third"] {
            let code = one.of_sent(frame);
            assert!(other.is_received(frame, &code));
            let code = other.of_sent(frame);
            assert!(one.is_received(frame, &code));
        }
        // The same frame again has another code, and a frame that was left out shows.
        let fourth = one.of_sent(b"x");
        let fifth = one.of_sent(b"x");
        assert_ne!(fourth, fifth);
        assert!(!other.is_received(b"x", &fifth));
        // Not to the side that has sent it; not elsewhere; not for another frame.
        let elsewhere = said(b"", &asker, &asker);
        for (side, said, frame) in [
            (Side::Asker, &here, &b"x"[..]),
            (Side::Answerer, &elsewhere, b"x"),
            (Side::Answerer, &here, b"y"),
        ] {
            let code = codes(Side::Asker, &here).of_sent(b"x");
            assert!(!codes(side, said).is_received(frame, &code), "{side:?} {frame:?}");
        }
        let code = codes(Side::Asker, &here).of_sent(b"x");
        let proof = keys.proof(Who::Client, Side::Asker, &here).unwrap();
        assert_ne!(code[..], proof[..CODE_BYTES]);
        assert!(codes(Side::Answerer, &here).is_received(b"x", &code));
    }

    #[test]
    fn files_have_what_their_owner_needs_and_no_more() {
        let directory = std::env::temp_dir().join(format!("fusee-auth-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let path = |name: &str| directory.join(name);
        let secret = Secret::random().unwrap();
        secret.write(&path("secret")).unwrap();
        secret.write_key(Who::Client, &path("client")).unwrap();
        secret.write_key(Who::Admin, &path("admin")).unwrap();
        assert!(matches!(secret.write(&path("secret")), Err(KeyError::File { .. })), "it is there");

        let server = Keys::of_server(&path("secret")).unwrap();
        let a = [1; BYTES];
        let b = [2; BYTES];
        let said = said(b"", &a, &b);
        for (name, acts_as, has) in [
            ("secret", Who::Admin, &Who::ALL[..]),
            ("admin", Who::Admin, &[Who::Client, Who::Admin]),
            ("client", Who::Client, &[Who::Client]),
        ] {
            let keys = Keys::of_client(&path(name)).unwrap();
            assert_eq!(keys.acts_as(), acts_as);
            for who in Who::ALL {
                let proof = keys.proof(who, Side::Asker, &said);
                assert_eq!(proof.is_some(), has.contains(&who), "{name} {who}");
                assert!(proof.is_none_or(|proof| server.proves(who, Side::Asker, &said, &proof)));
            }
        }
        let refused = Keys::of_server(&path("admin")).unwrap_err().to_string();
        assert!(refused.contains("`admin`") && refused.contains("the secret itself"), "{refused}");

        fs::set_permissions(path("client"), fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(Keys::of_client(&path("client")), Err(KeyError::Readable { .. })));
        // Nor if it is somebody else's, but root's.
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(path("client"), Some(12_345), None).unwrap();
            assert!(matches!(Keys::of_client(&path("client")), Err(KeyError::Readable { .. })));
        }
        let mut options = OpenOptions::new();
        let other = options.write(true).create(true).truncate(true).mode(0o600);
        for text in ["", "fusee-key 1", "fusee-key 1 secret 00", "fusee-key 2 secret", "x y z"] {
            other.open(path("other")).unwrap().write_all(text.as_bytes()).unwrap();
            let error = Keys::of_client(&path("other"));
            assert!(matches!(error, Err(KeyError::NoKey { .. })), "{text}: {error:?}");
        }
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn servers_and_administrators_are_clients_too_and_not_each_other() {
        assert!(Who::ALL.into_iter().all(|who| who.may(Who::Client) && who.may(who)));
        assert!(!Who::Server.may(Who::Admin) && !Who::Admin.may(Who::Server));
        assert!(!Who::Client.may(Who::Admin) && !Who::Client.may(Who::Server));
        assert_eq!(Who::from_code(0), None);
        assert!(Who::ALL.into_iter().all(|who| Who::from_code(who.code()) == Some(who)));
    }
}
