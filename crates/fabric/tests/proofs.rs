//! Tests that peers without the memory node's key learn nothing on data connections, and gain nothing.
//!
//! Each of the two checks of a handshake is tested alone: the node's check with a client that accepts any node, the
//! client's check with a node that accepts any client.

// Promise SEC-17: Data connections need the node's key, and reveal nothing without it.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use fusee_auth::{Keyring, NodeKey, PeerKind, Secret};
use fusee_core::verbs::{ClientId, MnId};
use fusee_core::view::Member;
use fusee_fabric::tcp::frame::{self, TcpHello};
use fusee_fabric::{
    AttachCause, AttachOptions, FabricKind, NodeFabrics, NodeFabricsOptions, attach_all,
    attach_all_with,
};
use support::wire::{
    ANSWER_BYTES, CALL_BYTES, SHM, TCP, ask, call, dial, key, proof, rest, say_hello, shm_hello,
};
use support::{START, Scratch, Served, loopback, member, node, options, unique};

const MN: MnId = MnId(0);
const WAIT: Duration = Duration::from_secs(30);

trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

/// A connection over TCP or to the socket, the magic of its messages, and a hello to send on it.
type Dialled = (Box<dyn Stream>, &'static [u8; 8], Vec<u8>);

fn dialled(served: &Served) -> [Dialled; 2] {
    let socket = UnixStream::connect(served.fabrics.shm_path().unwrap()).unwrap();
    socket.set_read_timeout(Some(WAIT)).unwrap();
    let hello = TcpHello { client: ClientId(1) }.encode().to_vec();
    [(Box::new(dial(served)), TCP, hello), (Box::new(socket), SHM, shm_hello(1))]
}

/// Returns whether a message does not contain the node's identity.
fn is_free_of(said: &[u8], identity: u64) -> bool {
    !said.windows(8).any(|bytes| bytes == identity.to_le_bytes() || bytes == identity.to_be_bytes())
}

#[test]
fn a_node_lets_in_no_client_whose_proof_is_not_good() {
    let scratch = Scratch::new();
    let served = node(2 * START, Some(scratch.socket()));
    let own = key(served.identity);
    for attack in ["no proof", "of another hello", "of another node", "the node's own", "mirrored"]
    {
        for (mut stream, magic, hello) in dialled(&served) {
            let call = call(magic, &own, [3; 32]);
            let answer = ask(&mut stream, &call);
            let good = proof(magic, &own, &call, &answer, &hello);
            let mut other = hello.clone();
            other[8] += 1;
            let proof = match attack {
                "no proof" => [0; 32],
                "of another hello" => proof(magic, &own, &call, &answer, &other),
                // The proof is for the same connection, but made with the key of another node.
                "of another node" => {
                    let about = [&call[..], &hello].concat();
                    key(served.identity ^ 1).proof(
                        fusee_auth::Side::Asker,
                        &fusee_auth::AuthTranscript {
                            kind: if magic == TCP { "FUSEtcp" } else { "FUSEsm" },
                            about: &about,
                            asker: &[3; 32],
                            answerer: answer[12..].first_chunk().unwrap(),
                        },
                    )
                }
                "the node's own" => *answer.last_chunk().unwrap(),
                "mirrored" => [3; 32],
                _ => unreachable!(),
            };
            assert_ne!(proof, good);
            // The node must not execute the request behind the hello.
            let read = frame::request_header(16, 1, 1);
            let _ = stream.write_all(&[&proof[..], &hello, &read, &[1, 0, 0, 0]].concat());
            let said = rest(&mut stream).unwrap();
            assert_eq!(said, b"", "{attack} at {magic:?}");
            assert!(is_free_of(&answer, served.identity));
        }
    }
    assert_eq!(served.fabrics.attached_clients(), 0);
}

#[test]
fn a_node_tells_nothing_to_a_client_that_names_another() {
    let scratch = Scratch::new();
    let served = node(2 * START, Some(scratch.socket()));
    for identity in [0, 1, u64::MAX, served.identity ^ 1] {
        for (mut stream, magic, _) in dialled(&served) {
            let answer = ask(&mut stream, &call(magic, &key(identity), [3; 32]));
            assert_eq!(answer, [&magic[..], &[1, 0, 0, 0], &[0; 64]].concat());
            assert_eq!(rest(&mut stream).unwrap(), b"");
        }
    }
    // A client that sends the identity in the clear, as earlier versions did, gets the same refusal.
    for (mut stream, magic, _) in dialled(&served) {
        let hello = [&magic[..], &served.identity.to_le_bytes(), &[7; 32]].concat();
        let answer = ask(&mut stream, &hello);
        assert_eq!(answer, [&magic[..], &[1, 0, 0, 0], &[0; 64]].concat());
    }
}

#[test]
fn a_recorded_connection_is_of_no_use_and_nonces_differ() {
    let scratch = Scratch::new();
    let served = node(2 * START, Some(scratch.socket()));
    let own = key(served.identity);
    for kind in [0, 1] {
        let (mut stream, magic, hello) = dialled(&served).into_iter().nth(kind).unwrap();
        let recorded = call(magic, &own, [3; 32]);
        let first = ask(&mut stream, &recorded);
        let good = proof(magic, &own, &recorded, &first, &hello);
        stream.write_all(&[&good[..], &hello].concat()).unwrap();
        stream.read_exact(&mut [0; 8]).expect("it is heard");
        let (mut again, ..) = dialled(&served).into_iter().nth(kind).unwrap();
        let second = ask(&mut again, &recorded);
        assert_eq!(second.len(), ANSWER_BYTES);
        assert!(first[12..44] != second[12..44] && first[44..] != second[44..]);
        let _ = again.write_all(&[&good[..], &hello].concat());
        assert_eq!(rest(&mut again).unwrap(), b"");
    }
}

/// A proof can begin with the byte with which records of TLS begin. The node must not mistake such a proof for TLS.
#[test]
fn a_proof_may_begin_with_any_byte() {
    let served = node(2 * START, None);
    let own = key(served.identity);
    let hello = TcpHello { client: ClientId(1) }.encode();
    let is_welcome = |wanted: &dyn Fn(u8) -> bool| {
        let mut stream = dial(&served);
        let call = call(TCP, &own, [3; 32]);
        let answer = ask(&mut stream, &call);
        let proof = proof(TCP, &own, &call, &answer, &hello);
        wanted(proof[0]).then(|| {
            stream.write_all(&[&proof[..], &hello].concat()).unwrap();
            let mut welcome = [0; 24];
            stream.read_exact(&mut welcome).unwrap();
            assert_eq!(
                (welcome[16], u32::from(welcome[20])),
                (0, fusee_core::layout::LAYOUT_VERSION),
                "{welcome:?}"
            );
        })
    };
    let tls = |first| first == fusee_tls::FIRST_BYTE;
    assert!((0..10_000).any(|_| is_welcome(&tls).is_some()), "no such proof");
}

/// Starts two impostors, at the address and at the path of a memory node. Each records all that it receives, and
/// sends this answer.
fn squatter(answer: Vec<u8>) -> (Member, Scratch, [JoinHandle<Vec<u8>>; 2]) {
    let scratch = Scratch::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let path = scratch.socket();
    let tcp = listener.local_addr().unwrap().to_string();
    let sockets = UnixListener::bind(&path).unwrap();
    let at = Member {
        node: MN,
        identity: 0x1234_5678_9abc_def0,
        control: "nowhere".into(),
        tcp: Some(tcp),
        shm: Some(path.to_str().unwrap().to_owned()),
        verbs: None,
        pool_bytes: 2 * START,
    };
    let other = answer.clone();
    let over_tcp = std::thread::spawn(move || record(listener.accept().unwrap().0, TCP, &answer));
    let over_shm = std::thread::spawn(move || record(sockets.accept().unwrap().0, SHM, &other));
    (at, scratch, [over_tcp, over_shm])
}

fn record(mut stream: impl Read + Write, magic: &[u8; 8], answer: &[u8]) -> Vec<u8> {
    let mut heard = vec![0; CALL_BYTES];
    stream.read_exact(&mut heard).unwrap();
    stream.write_all(&[magic, answer].concat()).unwrap();
    let _ = stream.read_to_end(&mut heard);
    heard
}

#[test]
fn a_client_says_nothing_to_a_node_whose_proof_is_not_good() {
    for identity_of_answer in [None, Some(1)] {
        let answer = [&[0; 4][..], &[9; 32], &[9; 32]].concat();
        let answer = identity_of_answer.map_or(answer.clone(), |identity: u64| {
            // The answer of earlier versions was a welcome.
            [&[0; 4][..], &identity.to_le_bytes(), &[0; 56]].concat()
        });
        let (at, scratch, squatters) = squatter(answer);
        for kind in [FabricKind::Tcp, FabricKind::Shm] {
            let error = attach_all(kind, ClientId(7), std::slice::from_ref(&at)).unwrap_err();
            assert!(matches!(error.cause, AttachCause::Unproved), "{error}");
        }
        for squatter in squatters {
            let heard = squatter.join().unwrap();
            assert_eq!(heard.len(), CALL_BYTES, "nothing but the call");
            assert!(is_free_of(&heard, at.identity), "{heard:?}");
        }
        std::fs::remove_file(at.shm.unwrap()).unwrap();
        scratch.assert_empty();
    }
}

/// In a cluster with a secret, the identity alone gives no access, because control connections carry it and etcd
/// stores it.
#[test]
fn where_there_is_a_secret_the_identity_alone_opens_nothing() {
    let scratch = Scratch::new();
    let secret = Secret::random().unwrap();
    let server = secret.keys(PeerKind::Server);
    let options = NodeFabricsOptions {
        tcp: Some(loopback()),
        shm: Some(scratch.socket()),
        keys: Some(server),
        ..options(2 * START)
    };
    let identity = options.identity;
    let served = Served { fabrics: NodeFabrics::start(options).unwrap(), identity };
    let attach = |kind, keys: Option<Keyring>| {
        let way = AttachOptions { keys: keys.as_ref(), ..AttachOptions::plain(kind) };
        let at = [member(MN, &served)];
        attach_all_with(way, ClientId(1), &at, &|| true).map(drop).map_err(|error| error.cause)
    };
    let other = Secret::random().unwrap();
    for keys in [None, Some(other.keys(PeerKind::Server)), Some(other.keys(PeerKind::Client))] {
        let refused = attach(FabricKind::Tcp, keys);
        assert!(matches!(refused, Err(AttachCause::WrongIdentity)), "{refused:?}");
    }
    for who in PeerKind::ALL {
        attach(FabricKind::Tcp, Some(secret.keys(who))).unwrap();
    }
    // A raw peer that knows the identity and has overheard the name, but has no key, is refused.
    let own = NodeKey::new(Some(&secret.keys(PeerKind::Client)), identity);
    for (mut stream, magic, hello) in dialled(&served) {
        let call = call(magic, &own, [3; 32]);
        let answer = ask(&mut stream, &call);
        assert_eq!(answer.len(), ANSWER_BYTES);
        let _ = stream.write_all(&[&[0; 32], &hello[..]].concat());
        assert_eq!(rest(&mut stream).unwrap(), b"");
    }
    // With the key, TCP accepts the hello. The socket refuses it only because this process serves the node itself.
    for ((mut stream, magic, hello), status) in dialled(&served).into_iter().zip([0, 2]) {
        say_hello(&mut stream, magic, &own, &hello);
        let mut welcome = [0; 24];
        stream.read_exact(&mut welcome).unwrap();
        assert_eq!(welcome[16], status);
    }
}

/// A user that is neither root nor the user that runs the tests.
const OTHER: u32 = 65_534;

/// Starts this program as a process of another user, in one of the roles below. Returns `None` if that is not
/// possible.
fn as_other_user(role: &str, path: &Path) -> Option<Child> {
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|about| about.uid() == 0);
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "plays_its_role", "--ignored", "--nocapture"]);
    command.env("FUSEE_ROLE", role).env("FUSEE_PATH", path).uid(OTHER).gid(OTHER);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    match command.spawn() {
        Ok(child) if is_root => Some(child),
        other => {
            println!("SKIPPED: no process of another user: {:?}", other.err());
            None
        }
    }
}

/// Returns the rest of the first line with this word that a process of another user prints.
fn said_by(child: &mut Child, word: &str) -> String {
    let out = BufReader::new(child.stdout.as_mut().unwrap());
    let mut lines = out.lines().map(|line| line.unwrap());
    lines.find_map(|line| Some(line.split_once(word)?.1.trim().to_owned())).expect("it says so")
}

#[test]
#[ignore = "other tests run it as another user"]
fn plays_its_role() {
    let path = PathBuf::from(std::env::var_os("FUSEE_PATH").expect("where"));
    match std::env::var("FUSEE_ROLE").as_deref() {
        Ok("squatter") => {
            let sockets = UnixListener::bind(&path).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o777)).unwrap();
            println!("ready: ");
            let (mut stream, _) = sockets.accept().unwrap();
            let mut heard = Vec::new();
            stream.set_read_timeout(Some(WAIT)).unwrap();
            let _ = stream.read_to_end(&mut heard);
            println!("heard: {heard:?}");
        }
        Ok("node") => {
            let served = node(2 * START, Some(path.clone()));
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o777)).unwrap();
            println!("ready: {}", served.identity);
            // The node runs until the test closes its input.
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
        }
        role => panic!("{role:?}"),
    }
}

/// In a directory that all users can write, a client sends nothing to a socket of another user, not even the node's
/// name.
// Promise FAB-28: A client trusts no socket that another user could have placed.
#[test]
fn a_client_says_nothing_at_a_socket_of_another_user() {
    let scratch = Scratch::new();
    let path = scratch.socket();
    let directory = path.parent().unwrap();
    std::fs::set_permissions(directory, PermissionsExt::from_mode(0o1777)).unwrap();
    let Some(mut squatter) = as_other_user("squatter", &path) else { return };
    said_by(&mut squatter, "ready:");
    let served = node(2 * START, None);
    let at =
        Member { identity: unique(), shm: Some(path.display().to_string()), ..member(MN, &served) };
    let attach = |at: &Member| attach_all(FabricKind::Shm, ClientId(7), std::slice::from_ref(at));
    let error = attach(&at).unwrap_err();
    assert!(matches!(error.cause, AttachCause::StrangerAtSocket { uid: OTHER }), "{error}");
    assert_eq!(said_by(&mut squatter, "heard:"), "[]");
    squatter.wait().unwrap();
    std::fs::remove_file(&path).unwrap();
    // In a directory that only root and one other user can write, as for a service, the client trusts that user to
    // serve. The user's process still has to prove the node's key.
    let kept = PathBuf::from(format!("/run/fusee-proofs-{}", std::process::id()));
    if std::fs::create_dir(&kept).is_err() {
        println!("SKIPPED: no directory in /run");
        return;
    }
    std::os::unix::fs::chown(&kept, Some(OTHER), Some(OTHER)).unwrap();
    let path = kept.join("socket");
    let mut squatter = as_other_user("squatter", &path).unwrap();
    said_by(&mut squatter, "ready:");
    let at = Member { shm: Some(path.display().to_string()), ..at };
    let error = attach(&at).unwrap_err();
    assert!(!matches!(error.cause, AttachCause::StrangerAtSocket { .. }), "{error}");
    squatter.kill().unwrap();
    squatter.wait().unwrap();
    // The client does not trust that user if a third user can choose where the path leads: by a link in a directory
    // that all users can write, or by a link that belongs to the third user.
    let link = directory.join("link");
    std::os::unix::fs::symlink(&kept, &link).unwrap();
    let through = PathBuf::from(format!("/run/fusee-proofs-{}-through", std::process::id()));
    std::os::unix::fs::symlink(directory, &through).unwrap();
    let owned = PathBuf::from(format!("/run/fusee-proofs-{}-link", std::process::id()));
    std::os::unix::fs::symlink(&kept, &owned).unwrap();
    std::os::unix::fs::lchown(&owned, Some(OTHER + 1), None).unwrap();
    for directory in [&link, &through.join("link"), &owned] {
        std::fs::remove_file(&path).unwrap();
        let mut squatter = as_other_user("squatter", &path).unwrap();
        said_by(&mut squatter, "ready:");
        let path = directory.join("socket");
        let at = Member { shm: Some(path.display().to_string()), ..at.clone() };
        let error = attach(&at).unwrap_err();
        assert!(matches!(error.cause, AttachCause::StrangerAtSocket { uid: OTHER }), "{error}");
        // The impostor accepts only one connection.
        assert_eq!(said_by(&mut squatter, "heard:"), "[]");
        squatter.wait().unwrap();
    }
    std::fs::remove_file(&owned).unwrap();
    std::fs::remove_file(&through).unwrap();
    std::fs::remove_dir_all(&kept).unwrap();
}

/// If a node has no permission to kill a process, the node refuses the process before it reads anything from it, and
/// reveals nothing.
// Promise SEC-18: As root: neither side speaks to another user's process at a socket.
#[test]
fn a_node_lets_no_process_speak_that_it_may_not_kill() {
    let scratch = Scratch::new();
    let path = scratch.socket();
    let directory = path.parent().unwrap();
    std::os::unix::fs::chown(directory, Some(OTHER), Some(OTHER)).ok();
    let Some(mut other) = as_other_user("node", &path) else { return };
    let identity: u64 = said_by(&mut other, "ready:").parse().unwrap();
    let mut socket = UnixStream::connect(&path).unwrap();
    socket.set_read_timeout(Some(WAIT)).unwrap();
    let said = rest(&mut socket).unwrap();
    assert_eq!(said, [&SHM[..], &[5, 0, 0, 0], &[0; 64]].concat());
    let served = node(2 * START, None);
    let at = Member { identity, shm: Some(path.display().to_string()), ..member(MN, &served) };
    let error = attach_all(FabricKind::Shm, ClientId(7), &[at]).unwrap_err();
    // In /tmp, which all users can write, the client refuses first, whichever user owns the directory.
    let is_told = matches!(
        error.cause,
        AttachCause::NotFenceable | AttachCause::StrangerAtSocket { uid: OTHER }
    );
    assert!(is_told, "{error}");
    drop(other.stdin.take());
    other.wait().unwrap();
}
