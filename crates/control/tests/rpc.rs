//! Tests of the RPC layer over real sockets: calls, and all kinds of peers at the other end.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use fusee_control::master::{MasterReply, MasterRequest};
use fusee_control::node::{NodeReply, NodeRequest, Usage};
use fusee_control::rpc::{
    Caller, MasterClient, MasterService, NodeClient, NodeService, RpcError, Runtime, ServeError,
    Server, bind, serve, serve_connections, serve_local,
};
use fusee_core::layout::TableEntry;
use fusee_core::verbs::ClientId;

fn runtime() -> Runtime {
    Runtime::start("test-control").unwrap()
}

/// The handler of a memory node that counts its requests: `Usage` returns the number of earlier requests, `Describe`
/// never returns, and `BlocksOf` panics.
async fn count(request: NodeRequest, calls: Arc<AtomicU64>) -> NodeReply {
    let call = calls.fetch_add(1, Ordering::Relaxed);
    match request {
        NodeRequest::Usage => NodeReply::Usage(Usage { pool_bytes: call, ..Usage::default() }),
        NodeRequest::BlocksOf { .. } => panic!("asked to"),
        NodeRequest::Describe => std::future::pending().await,
        _ => NodeReply::Done,
    }
}

fn counting_node(runtime: &Runtime, addr: &str) -> (Server, String) {
    let calls = Arc::new(AtomicU64::new(0));
    let handler = move |_, request| count(request, Arc::clone(&calls));
    let server = serve::<NodeService, _, _>(runtime, bind(addr).unwrap(), handler).unwrap();
    let addr = server.addr().unwrap().to_string();
    (server, addr)
}

/// Starts a node that handles every request as [`count`] handles a first one. Also returns a receiver of events: which
/// connection has made a request, and which connection has ended.
fn watched_node(runtime: &Runtime) -> (Server, Receiver<(&'static str, u64)>) {
    let (tell, told) = channel();
    let seen = tell.clone();
    let server = serve_connections::<NodeService, _, _, _>(
        runtime,
        bind("127.0.0.1:0").unwrap(),
        move |caller: Caller, request| {
            seen.send(("asks", caller.connection)).unwrap();
            count(request, Arc::default())
        },
        move |connection| tell.send(("ends", connection)).unwrap(),
    );
    (server.unwrap(), told)
}

fn usage(client: &NodeClient) -> u64 {
    match client.call_blocking(NodeRequest::Usage) {
        Ok(NodeReply::Usage(usage)) => usage.pool_bytes,
        other => panic!("unexpected {other:?}"),
    }
}

#[test]
fn calls_are_answered_each_once_and_concurrently() {
    let runtime = runtime();
    let (server, addr) = counting_node(&runtime, "127.0.0.1:0");
    let client = NodeClient::new(&runtime, addr);
    // There are more calls than the server handles at a time on one connection.
    let mut seen: Vec<u64> = runtime.block_on(async {
        let calls = (0..300).map(|_| client.call(NodeRequest::Usage));
        let replies = futures_util::future::join_all(calls).await;
        let number = |reply| match reply {
            Ok(NodeReply::Usage(usage)) => usage.pool_bytes,
            other => panic!("unexpected {other:?}"),
        };
        replies.into_iter().map(number).collect()
    });
    seen.sort_unstable();
    assert_eq!(seen, (0..300).collect::<Vec<_>>());
    server.stop();
}

#[test]
fn a_silent_handler_times_out_and_a_panicking_one_is_an_error() {
    let runtime = runtime();
    let (_server, addr) = counting_node(&runtime, "127.0.0.1:0");
    let client = NodeClient::new(&runtime, addr.clone());
    // The call opens the connection, so that the deadline of the next call applies only to its answer.
    assert_eq!(usage(&client), 0);
    let hurried = client.with_deadline(Duration::from_millis(50));
    let timed_out = hurried.call_blocking(NodeRequest::Describe);
    assert_eq!(timed_out, Err(RpcError::TimedOut { addr }));
    let failed = client.call_blocking(NodeRequest::BlocksOf { clients: vec![ClientId(1)] });
    assert!(matches!(failed, Err(RpcError::Protocol { .. })), "{failed:?}");
    assert_eq!(usage(&client), 3);
}

#[test]
fn an_answer_that_is_too_long_ends_only_its_call() {
    let runtime = runtime();
    let handler = |_: Caller, request| async move {
        match request {
            // Each block takes twelve bytes.
            NodeRequest::Describe => {
                let entry = TableEntry { owner: ClientId(u32::MAX), order: 0, base: None };
                NodeReply::Owners(vec![(u32::MAX, entry); 2 << 20])
            }
            _ => NodeReply::Done,
        }
    };
    let (client, _server) = serve_local::<NodeService, _, _>(&runtime, "node 0", handler);
    let long = client.call_blocking(NodeRequest::Describe);
    assert!(matches!(long, Err(RpcError::Protocol { .. })), "{long:?}");
    assert_eq!(client.call_blocking(NodeRequest::Usage), Ok(NodeReply::Done));
}

#[test]
fn a_client_finds_its_server_again_after_a_restart() {
    let runtime = runtime();
    let (server, addr) = counting_node(&runtime, "127.0.0.1:0");
    let client = NodeClient::new(&runtime, addr.clone());
    assert_eq!(usage(&client), 0);
    server.stop();
    let gone = client.call_blocking(NodeRequest::Usage);
    let told = matches!(gone, Err(RpcError::Closed { .. } | RpcError::Unreachable { .. }));
    assert!(told, "{gone:?}");
    let (_server, _) = counting_node(&runtime, &addr);
    assert_eq!(usage(&client), 0);
    assert_eq!(usage(&client), 1);
}

#[test]
fn requests_are_known_by_their_connection_and_its_end_is_told() {
    let runtime = runtime();
    let (server, told) = watched_node(&runtime);
    let addr = server.addr().unwrap().to_string();
    let next = || told.recv_timeout(Duration::from_secs(10)).unwrap();
    let theirs = self::runtime();
    let ours = NodeClient::new(&runtime, addr.clone());
    let other = NodeClient::new(&theirs, addr);
    for (client, connection) in [(&ours, 1), (&other, 2), (&ours, 1)] {
        assert_eq!(usage(client), 0);
        assert_eq!(next(), ("asks", connection));
    }
    drop((other, theirs));
    assert_eq!(next(), ("ends", 2));
    server.stop();
    assert_eq!(next(), ("ends", 1));
}

/// If a process closed a connection before the master has had a request over another one, the master would take the
/// process for dead.
#[test]
fn a_connection_that_is_too_slow_is_not_closed_before_another_one_speaks() {
    let runtime = runtime();
    let (server, told) = watched_node(&runtime);
    let client = NodeClient::new(&runtime, server.addr().unwrap().to_string());
    let hasty = client.with_deadline(Duration::from_millis(200));
    for connection in [1, 2] {
        let slow = hasty.call_blocking(NodeRequest::Describe);
        assert!(matches!(slow, Err(RpcError::TimedOut { .. })), "{slow:?}");
        assert_eq!(told.recv_timeout(Duration::from_secs(10)), Ok(("asks", connection)));
    }
    assert!(told.recv_timeout(Duration::from_millis(300)).is_err());
    assert_eq!(client.call_blocking(NodeRequest::Usage).map(|_| ()), Ok(()));
    assert_eq!(told.recv().unwrap(), ("asks", 3));
    server.stop();
}

/// The end of a process is noticed at once, and not only when the answer that the process waited for is sent.
// Promise SIL-8: A dead process is noticed when its connection breaks.
#[test]
fn the_end_of_a_connection_is_told_while_an_answer_is_held() {
    let runtime = runtime();
    let (server, told) = watched_node(&runtime);
    let theirs = self::runtime();
    let other = NodeClient::new(&theirs, server.addr().unwrap().to_string());
    theirs.handle().spawn(async move { other.call(NodeRequest::Describe).await });
    let next = || told.recv_timeout(Duration::from_secs(3));
    assert_eq!(next(), Ok(("asks", 1)));
    drop(theirs);
    assert_eq!(next(), Ok(("ends", 1)));
    drop(server);
}

#[test]
fn nobody_listening_is_unreachable() {
    let runtime = runtime();
    let addr = bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let connected = runtime.block_on(NodeClient::connect(&runtime, addr.clone()));
    let Err(RpcError::Unreachable { addr: named, .. }) = connected else {
        panic!("unexpected {connected:?}");
    };
    assert_eq!(named, addr);
}

#[test]
fn a_master_in_place_of_a_memory_node_is_named() {
    let runtime = runtime();
    let handler = |_: Caller, _: MasterRequest| async { MasterReply::Done };
    let listener = bind("127.0.0.1:0").unwrap();
    let server = serve::<MasterService, _, _>(&runtime, listener, handler).unwrap();
    let addr = server.addr().unwrap().to_string();
    let wrong = NodeClient::new(&runtime, addr.clone()).call_blocking(NodeRequest::Usage);
    let Err(error @ RpcError::WrongService { .. }) = wrong else { panic!("{wrong:?}") };
    let text = error.to_string();
    assert!(text.contains("a FUSEE memory node") && text.contains("a FUSEE master"), "{text}");
    assert!(text.contains(&addr), "{text}");
    let right = MasterClient::new(&runtime, addr).call_blocking(MasterRequest::Status);
    assert_eq!(right, Ok(MasterReply::Done));
}

#[test]
fn a_stranger_is_named() {
    let runtime = runtime();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    let stranger = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"220 mail.example ESMTP\r\n").unwrap();
    });
    let wrong = NodeClient::new(&runtime, addr).call_blocking(NodeRequest::Usage);
    assert!(matches!(wrong, Err(RpcError::WrongService { .. })), "{wrong:?}");
    stranger.join().unwrap();
}

/// Sends these bytes. Returns the bytes that arrive before the server closes the connection.
fn poke(addr: &str, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.write_all(bytes).unwrap();
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Err(error) if error.kind() != std::io::ErrorKind::ConnectionReset => {
            panic!("the server keeps the connection: {error}")
        }
        _ => answer,
    }
}

#[test]
fn malformed_input_closes_only_its_own_connection() {
    const HELLO: &[u8] =
        b"FUSEE\x0d\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    let runtime = runtime();
    let (_server, addr) = counting_node(&runtime, "127.0.0.1:0");
    let client = NodeClient::new(&runtime, addr.clone());
    assert_eq!(usage(&client), 0);
    // First a message that is no hello; then hellos followed by a frame that is too long, and by a frame that cannot be
    // decoded.
    assert_eq!(poke(&addr, b"GET / HTTP/1.1\r\n\r\n"), b"");
    let welcome = [HELLO, &[0; 32]].concat();
    assert_eq!(poke(&addr, &[HELLO, &u32::MAX.to_be_bytes()].concat()), welcome);
    assert_eq!(poke(&addr, &[HELLO, &[0, 0, 0, 3, 9, 9, 9]].concat()), welcome);
    // A connection on which nothing is sent is closed, too.
    assert_eq!(poke(&addr, b""), b"");
    assert_eq!(usage(&client), 1);
}

#[test]
fn a_port_in_use_is_named() {
    let runtime = runtime();
    let (_server, addr) = counting_node(&runtime, "127.0.0.1:0");
    let Err(error) = bind(&addr) else { panic!("two listeners on one port") };
    assert_eq!(error, ServeError::PortInUse { addr: addr.clone() });
    assert!(error.to_string().contains(&addr));
    assert!(matches!(bind("nonsense"), Err(ServeError::Address { .. })));
}

#[test]
fn an_in_process_service_needs_no_port_and_ends_when_dropped() {
    let runtime = runtime();
    let calls = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&calls);
    let handler = move |_, request| count(request, Arc::clone(&seen));
    let (client, server) = serve_local::<NodeService, _, _>(&runtime, "node 0", handler);
    assert_eq!(usage(&client), 0);
    assert_eq!(usage(&client.clone()), 1);
    assert_eq!(server.addr(), None);
    server.stop();
    let gone = client.call_blocking(NodeRequest::Usage);
    assert_eq!(gone, Err(RpcError::Closed { addr: "node 0".into() }));
    drop(runtime);
    assert_eq!(Arc::strong_count(&calls), 1, "the handler outlived its server");
    let gone = client.call_blocking(NodeRequest::Usage);
    assert_eq!(gone, Err(RpcError::Closed { addr: "node 0".into() }));
}
