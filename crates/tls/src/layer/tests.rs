//! Tests of both ends of a connection in one thread, over sockets that accept as many bytes as a test wants.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::rc::Rc;

use rcgen::KeyPair;

use super::*;

use crate::testing::Certificates;

fn as_server(files: &Certificates) -> Result<TlsSettings, TlsError> {
    TlsSettings::of_server(&files.path("ca"), &files.path("cert"), &files.path("key"))
}

fn as_client(files: &Certificates) -> TlsSettings {
    TlsSettings::of_client(&files.path("ca")).unwrap()
}

/// The bytes on their way in one direction of a connection.
type Pipe = Rc<RefCell<VecDeque<u8>>>;

/// A socket that accepts `takes` bytes at a time, as long as fewer than `holds` bytes wait for the other end to
/// read them.
struct PipeSocket {
    from: Pipe,
    to: Pipe,
    takes: usize,
    holds: usize,
}

impl Read for PipeSocket {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut from = self.from.borrow_mut();
        if from.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let len = buf.len().min(from.len());
        buf.iter_mut().zip(from.drain(..len)).for_each(|(to, byte)| *to = byte);
        Ok(len)
    }
}

impl Write for PipeSocket {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let mut to = self.to.borrow_mut();
        let len = buf.len().min(self.takes).min(self.holds.saturating_sub(to.len()));
        if len == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        to.extend(&buf[..len]);
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn pair(takes: usize, holds: usize) -> (PipeSocket, PipeSocket) {
    let there = Pipe::default();
    let back = Pipe::default();
    let one = PipeSocket { from: back.clone(), to: there.clone(), takes, holds };
    (one, PipeSocket { from: there, to: back, takes, holds })
}

fn is_blocked<T>(result: &io::Result<T>) -> bool {
    result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

/// Returns both ends of a connection after the handshake.
fn connected(
    files: &Certificates,
    takes: usize,
    holds: usize,
) -> (MaybeTlsStream<PipeSocket>, MaybeTlsStream<PipeSocket>) {
    let (near, far) = pair(takes, holds);
    let mut client = as_client(files).dial("127.0.0.1:7400", near).unwrap();
    let mut server = MaybeTlsStream::plain(far);
    // The server must read the first byte before it knows that the client uses TLS, so the client sends first.
    let _starts = client.flush();
    let mut first = [0; 100];
    let read = server.read(&mut first).unwrap();
    assert_eq!(first[0], crate::FIRST_BYTE);
    assert!(as_server(files).unwrap().answer(&mut server, &first[..read]).unwrap());
    let mut none = [0; 64];
    for _ in 0..100_000 {
        let results =
            [client.read(&mut none), server.read(&mut none)].map(|result| is_blocked(&result));
        assert_eq!(results, [true; 2]);
        let _blocked = (client.flush(), server.flush());
        let is_done = |stream: &MaybeTlsStream<PipeSocket>| {
            stream.layer.as_ref().is_some_and(|layer| !layer.connection.is_handshaking())
        };
        if is_done(&client) && is_done(&server) && !client.has_unsent() {
            return (client, server);
        }
    }
    panic!("no end of the handshake");
}

#[test]
fn all_that_is_written_is_read_whatever_the_sockets_take() {
    let files = Certificates::new();
    for (takes, holds, room) in [
        (usize::MAX, usize::MAX, 1 << 20),
        (1_000, 5_000, 64 << 10),
        (7, 50, 64 << 10),
        (5_000, 40_000, 37_000),
        (100_000, 20_000, 100),
        (1 << 20, 1 << 20, 40_000),
    ] {
        let (mut client, mut server) = connected(&files, takes, holds);
        let sent: Vec<u8> = (0..200_000u32).map(|n| (n.wrapping_mul(n) >> 7) as u8).collect();
        let mut left = &sent[..];
        let mut got = Vec::new();
        let mut buf = vec![0; room];
        let mut sizes = [1, 48, 16_384, 8, 20_000, 100_000].into_iter().cycle();
        while got.len() < sent.len() {
            if !left.is_empty() {
                match client.write(&left[..left.len().min(sizes.next().unwrap())]) {
                    Ok(taken) => left = &left[taken..],
                    Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
                }
            } else {
                let _blocked = client.flush();
            }
            match server.read(&mut buf) {
                Ok(read) => {
                    got.extend_from_slice(&buf[..read]);
                    // A short read leaves nothing behind.
                    if read < buf.len() {
                        assert!(server.socket().from.borrow().is_empty());
                        assert!(is_blocked(&server.read(&mut buf)), "{takes} {holds} {room}");
                    }
                }
                result => assert!(is_blocked(&result)),
            }
        }
        assert!(got == sent && !client.has_unsent());
    }
}

#[test]
fn what_waits_is_known_and_goes_with_a_flush() {
    let files = Certificates::new();
    let (mut client, mut server) = connected(&files, usize::MAX, 1_000);
    let data = [7; 3_000];
    assert_eq!(client.write(&data).unwrap(), data.len());
    assert!(client.has_unsent() && is_blocked(&client.flush()) && is_blocked(&client.write(&data)));
    let mut got = 0;
    let mut buf = vec![0; 64 << 10];
    while client.has_unsent() {
        got += server.read(&mut buf).unwrap_or(0);
        let _blocked = client.flush();
    }
    got += server.read(&mut buf).unwrap();
    assert_eq!(got, data.len());
}

#[test]
fn the_end_is_the_end_however_it_comes() {
    let files = Certificates::new();
    let (mut client, mut server) = connected(&files, usize::MAX, usize::MAX);
    client.write_all(b"last").unwrap();
    let layer = client.layer.as_mut().unwrap();
    layer.connection.send_close_notify();
    client.flush().unwrap();
    client.socket().to.borrow_mut().extend([1; 50]);
    let mut buf = vec![0; 64 << 10];
    assert_eq!(server.read(&mut buf).unwrap(), 4);
    assert_eq!(server.read(&mut buf).unwrap(), 0);
}

#[test]
fn any_bytes_are_an_error_at_most() {
    let files = Certificates::new();
    let mut seed = 1u64;
    let mut random = move || {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) as usize
    };
    for round in 0..3_000 {
        let (mut client, mut server) = if round % 3 == 0 {
            let (near, far) = pair(usize::MAX, usize::MAX);
            let mut server = MaybeTlsStream::plain(far);
            as_server(&files).unwrap().answer(&mut server, &[]).unwrap();
            (MaybeTlsStream::plain(near), server)
        } else if round % 50 == 1 {
            connected(&files, usize::MAX, usize::MAX)
        } else {
            continue;
        };
        let mut sent: Vec<u8> = (0..random() % 5_000).map(|_| random() as u8).collect();
        match random() % 3 {
            // This makes the bytes begin like a TLS record with a plausible length.
            0 if sent.len() > 5 => {
                let len = (random() % 300) as u16;
                sent[..3].copy_from_slice(&[[22, 23, 21, 20][random() % 4], 3, 3]);
                sent[3..5].copy_from_slice(&len.to_be_bytes());
            }
            1 => client.write_all(b"something good before").unwrap(),
            _ => {}
        }
        client.socket().to.borrow_mut().extend(sent);
        let mut buf = vec![0; [16, 64 << 10][random() % 2]];
        let mut read = 0;
        while let Ok(more @ 1..) = server.read(&mut buf) {
            read += more;
        }
        let _ = server.write(b"answer");
        assert!(read <= 21 || !client.is_tls());
    }
}

#[test]
fn certificates_of_others_and_for_others_are_refused() {
    let files = Certificates::new();
    let others = Certificates::new();
    let handshake = |tls: &TlsSettings, addr: &str| {
        let (near, far) = pair(usize::MAX, usize::MAX);
        let mut client = tls.dial(addr, near).unwrap();
        let mut server = MaybeTlsStream::plain(far);
        as_server(&files).unwrap().answer(&mut server, &[]).unwrap();
        let mut buf = [0; 10];
        let _starts = client.flush();
        loop {
            let _waits = server.read(&mut buf);
            let result = client.read(&mut buf);
            if !is_blocked(&result) || server.socket().from.borrow().is_empty() {
                break result;
            }
        }
    };
    for addr in ["localhost:1", "127.0.0.1:7400", "[::1]:80"] {
        assert!(is_blocked(&handshake(&as_client(&files), addr)), "{addr}");
    }
    let says = |result: io::Result<usize>| failure(&result.unwrap_err()).unwrap();
    let wrong = says(handshake(&as_client(&others), "localhost:1"));
    assert!(wrong.contains("does not believe"), "{wrong}");
    let wrong = says(handshake(&as_client(&files), "10.0.0.1:1"));
    assert!(wrong.contains("10.0.0.1"), "{wrong}");
    assert!(matches!(as_client(&files).dial("a b:1", ()), Err(TlsError::Name { .. })));
    // The server answers without TLS.
    let (near, mut far) = pair(usize::MAX, usize::MAX);
    let mut client = as_client(&files).dial("localhost:1", near).unwrap();
    far.write_all(b"FUSEE\x0a\x01\x00").unwrap();
    assert_eq!(says(client.read(&mut [0; 10])), NO_TLS);
}

// Promise SEC-13: Certificates change without a restart; bad ones change nothing.
#[test]
fn files_are_read_again_when_they_change() {
    let files = Certificates::new();
    let watched = ReloadedValue::new(vec![files.path("cert"), files.path("key")], |files| {
        server_config_with(&files[0], &files[1])
    })
    .unwrap();
    let first = watched.current();
    assert!(Arc::ptr_eq(&first, &watched.current()));
    files.put("cert", "garbage");
    std::thread::sleep(crate::LOOK);
    assert!(Arc::ptr_eq(&first, &watched.current()), "garbage takes nothing away");
    files.renew();
    assert!(Arc::ptr_eq(&first, &watched.current()), "not so soon");
    std::thread::sleep(crate::LOOK);
    let second = watched.current();
    assert!(!Arc::ptr_eq(&first, &second));
    // A key that other users have access to is refused, until its permissions are corrected.
    let others_may = |mode| {
        fs::set_permissions(files.path("key"), fs::Permissions::from_mode(mode)).unwrap();
        std::thread::sleep(crate::LOOK);
    };
    files.renew();
    others_may(0o644);
    assert!(Arc::ptr_eq(&second, &watched.current()));
    others_may(0o600);
    assert!(!Arc::ptr_eq(&second, &watched.current()));
}

#[test]
fn files_that_are_wrong_are_named() {
    let files = Certificates::new();
    let fails = |says: &[&str]| {
        let error = as_server(&files).unwrap_err().to_string();
        assert!(says.iter().all(|text| error.contains(text)), "{error}");
    };
    let cert = "cert";
    let key = "key";
    let (good_cert, good_key) =
        [cert, key].map(|name| fs::read_to_string(files.path(name)).unwrap()).into();
    files.put(cert, "hello");
    fails(&["cert holds no certificate"]);
    files.put(cert, "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n");
    fails(&["cert holds no certificate"]);
    files.put(cert, &good_cert);
    files.put(key, &good_cert);
    fails(&["key holds no private key"]);
    files.put(key, &KeyPair::generate().unwrap().serialize_pem());
    fails(&["cert cannot be used with", "key"]);
    files.put(key, &good_key);
    fs::set_permissions(files.path(key), fs::Permissions::from_mode(0o644)).unwrap();
    fails(&["other users"]);
    fs::remove_file(files.path(key)).unwrap();
    fails(&["key: ", "No such file"]);
    files.put("ca", &good_key);
    let error = TlsSettings::of_client(&files.path("ca")).unwrap_err().to_string();
    assert!(error.contains("ca holds no certificate"), "{error}");
}
