//! Programs that speak another version of the control protocol: each side learns which one is too old.
//!
//! In every version, the first 8 bytes of a hello begin with "FUSEE" and the version. The hellos of these tests are
//! literal bytes, of past versions and of possible future ones.

// Promise API-23: Programs of different versions learn which side is too old.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use fusee_control::node::{NodeReply, NodeRequest};
use fusee_control::rpc::{
    CONTROL, Caller, NodeClient, NodeService, RpcError, Runtime, Server, bind, serve,
};
use fusee_core::version::{ConnectionEnd, VersionError};

/// Past versions of the control protocol, and possible future ones.
const OTHERS: [u8; 4] = [1, 8, 200, 255];

fn node(runtime: &Runtime) -> Server {
    let handler = |_: Caller, _: NodeRequest| async { NodeReply::Done };
    serve::<NodeService, _, _>(runtime, bind("127.0.0.1:0").unwrap(), handler).unwrap()
}

#[test]
fn a_server_tells_clients_of_other_versions_which_one_it_is() {
    let runtime = Runtime::start("versions").unwrap();
    let server = node(&runtime);
    for version in OTHERS {
        // The first 8 bytes of the hello are followed by 32 bytes as in this version, by no bytes, or by more bytes.
        for behind in [32, 0, 500] {
            let mut stream = TcpStream::connect(server.addr().unwrap()).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            let hello = [&b"FUSEE"[..], &[version, 1, 0], &vec![0; behind]].concat();
            stream.write_all(&hello).unwrap();
            let mut answer = [0; 8];
            stream.read_exact(&mut answer).unwrap();
            assert_eq!(&answer[..7], [&b"FUSEE"[..], &[CONTROL.current as u8, 1]].concat());
        }
    }
}

#[test]
fn a_client_tells_servers_of_other_versions_apart() {
    let runtime = Runtime::start("versions").unwrap();
    for version in OTHERS {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        let other = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut [0; 40]).unwrap();
            stream.write_all(&[&b"FUSEE"[..], &[version, 1, 0]].concat()).unwrap();
        });
        let answer = NodeClient::new(&runtime, addr.clone()).call_blocking(NodeRequest::Usage);
        let what = CONTROL.what;
        let own = ConnectionEnd::Client;
        let current = CONTROL.current;
        let error = VersionError { what, own, current, theirs: version.into() };
        let error = RpcError::Version { addr, error };
        let old = if u32::from(version) < current { "server" } else { "client" };
        assert!(error.to_string().ends_with(&format!("upgrade the {old}")), "{error}");
        assert!(!error.may_take_effect());
        assert_eq!(answer, Err(error));
        other.join().unwrap();
    }
}
