//! Bounds on the resources that unauthenticated and broken peers take from a server, which continues to answer other
//! peers.

// Promise SEC-3: Strangers hold a bounded part of a server.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fusee_control::node::{JobRequest, NodeReply, NodeRequest};
use fusee_control::rpc::{
    Caller, Limits, NodeClient, NodeService, Runtime, Server, bind, parsers, serve_limited,
};
use fusee_core::layout::TableEntry;
use fusee_core::verbs::ClientId;

const HELLO: &[u8] =
    b"FUSEE\x0d\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
/// Longest wait for an expected event. It is longer than anything in these tests takes on a loaded machine.
const WAIT: Duration = Duration::from_secs(60);

fn runtime() -> Runtime {
    Runtime::start("test-strangers").unwrap()
}

/// Starts a node that answers `Usage` and `Fence` at once, and never answers any other request.
fn node(runtime: &Runtime, limits: Limits) -> (Server, String) {
    let handler = |_: Caller, request| async move {
        match request {
            NodeRequest::Usage | NodeRequest::Fence { .. } => NodeReply::Done,
            _ => std::future::pending().await,
        }
    };
    let listener = bind("127.0.0.1:0").unwrap();
    let server = serve_limited::<NodeService, _, _, _>(runtime, listener, handler, |_| (), limits);
    let server = server.unwrap();
    let addr = server.addr().unwrap().to_string();
    (server, addr)
}

#[track_caller]
fn is_served(addr: &str) {
    let runtime = runtime();
    let client = NodeClient::new(&runtime, addr).with_deadline(WAIT);
    assert_eq!(client.call_blocking(NodeRequest::Usage), Ok(NodeReply::Done));
}

fn dial(addr: &str) -> TcpStream {
    let stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(WAIT)).unwrap();
    stream
}

fn greet(addr: &str) -> TcpStream {
    let mut stream = dial(addr);
    stream.write_all(HELLO).unwrap();
    stream
}

/// Waits until the server has closed a connection.
#[track_caller]
fn assert_closed(mut stream: TcpStream) {
    match stream.read_to_end(&mut Vec::new()) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        Err(error) => panic!("the server keeps the connection: {error}"),
    }
}

fn is_open(stream: &mut TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let open = loop {
        match stream.read(&mut [0; 64]) {
            Ok(0) => break false,
            Ok(_) => {}
            Err(error) => break error.kind() == ErrorKind::WouldBlock,
        }
    };
    stream.set_nonblocking(false).unwrap();
    open
}

fn count_open(streams: &mut [TcpStream]) -> usize {
    streams.iter_mut().map(|stream| usize::from(is_open(stream))).sum()
}

/// Returns a frame with a request by its variant: one that is answered (`Usage`), or one that never is (`Describe`).
fn request(id: u8, variant: u8) -> Vec<u8> {
    call(id, &[variant])
}

/// Returns a frame with this encoded request.
fn call(id: u8, request: &[u8]) -> Vec<u8> {
    // The bytes are: `RequestEnvelope::Call`, the id, the deadline (a varint, 60 s), no cluster, and the request.
    frame(&[&[0, id, 0xe0, 0xd4, 0x03, 0], request].concat())
}

fn frame(body: &[u8]) -> Vec<u8> {
    [&(body.len() as u32).to_be_bytes()[..], body].concat()
}

const DESCRIBE: u8 = 0;
const USAGE: u8 = 10;

/// Makes the first request of a connection, and receives the answers to the hello and to the request.
fn ask(stream: &mut TcpStream) {
    stream.write_all(&request(1, USAGE)).unwrap();
    stream.read_exact(&mut [0; 72]).unwrap();
    receive(stream);
}

fn receive(stream: &mut TcpStream) {
    let mut len = [0; 4];
    stream.read_exact(&mut len).unwrap();
    stream.read_exact(&mut vec![0; u32::from_be_bytes(len) as usize]).unwrap();
}

/// More connections than a server allows have sent a valid hello but no request. The newest of them makes a request,
/// and gets its answer.
#[test]
fn silent_connections_make_room_for_who_asks() {
    let runtime = runtime();
    let newcomer_grace = Duration::from_millis(10);
    let limits = Limits { newcomers: 50, newcomer_grace, ..Limits::default() };
    let (server, addr) = node(&runtime, limits);
    let mut silent: Vec<TcpStream> = (0..400).map(|_| greet(&addr)).collect();
    is_served(&addr);
    let open = count_open(&mut silent);
    assert!(open <= 50 + 64, "{open} of 400 are open");
    server.stop();
}

#[test]
fn who_asks_nothing_is_sent_away_before_and_after_the_hello() {
    let runtime = runtime();
    let first_request = Duration::from_millis(300);
    let (server, addr) = node(&runtime, Limits { first_request, ..Limits::default() });
    assert_closed(dial(&addr));
    assert_closed(greet(&addr));
    // An incomplete frame is no request, so these connections are closed, too.
    let mut head = greet(&addr);
    let mut half = greet(&addr);
    head.write_all(&[0, 0]).unwrap();
    half.write_all(&[0, 0, 0, 9, 1, 2]).unwrap();
    assert_closed(head);
    assert_closed(half);
    is_served(&addr);
    server.stop();
}

#[test]
fn who_wants_nothing_any_more_is_sent_away_and_who_waits_for_an_answer_stays() {
    let runtime = runtime();
    let idle = Duration::from_millis(300);
    let (server, addr) = node(&runtime, Limits { idle, ..Limits::default() });
    let mut waits = greet(&addr);
    waits.write_all(&request(7, DESCRIBE)).unwrap();
    let mut idle = greet(&addr);
    ask(&mut idle);
    assert_closed(idle);
    assert!(is_open(&mut waits));
    server.stop();
}

#[test]
fn a_request_that_does_not_come_whole_ends_its_connection() {
    let runtime = runtime();
    let frame = Duration::from_millis(300);
    let (server, addr) = node(&runtime, Limits { frame, ..Limits::default() });
    let mut stream = greet(&addr);
    ask(&mut stream);
    // A connection that waits for an answer must not send a frame too slowly either.
    stream.write_all(&request(7, DESCRIBE)).unwrap();
    stream.write_all(&request(8, USAGE)[..6]).unwrap();
    assert_closed(stream);
    server.stop();
}

/// If there are too many connections, idle ones are closed first, of the address that has too many. A connection that
/// waits for an answer is never closed.
#[test]
fn guests_are_bounded_for_each_address_and_in_total() {
    let other = |host: u8| {
        move |addr: &str| {
            let from = SocketAddr::from((Ipv4Addr::new(127, 0, 0, host), 0));
            connect_from(from.ip(), addr)
        }
    };
    for limits in [
        Limits { guests_per_peer: 10, ..Limits::default() },
        Limits { guests: 10, ..Limits::default() },
    ] {
        let runtime = runtime();
        let (server, addr) = node(&runtime, limits);
        let mut waiting: Vec<TcpStream> = (0..5).map(|_| greet(&addr)).collect();
        for stream in &mut waiting {
            stream.write_all(&request(7, DESCRIBE)).unwrap();
        }
        let mut idle: Vec<TcpStream> = Vec::new();
        for _ in 0..40 {
            let mut stream = greet(&addr);
            ask(&mut stream);
            idle.push(stream);
        }
        is_served(&addr);
        // One of the address's ten connections is that of the client that was just served.
        for stream in idle.drain(..35) {
            assert_closed(stream);
        }
        assert_eq!(count_open(&mut waiting), 5);
        // Finally all ten connections wait for answers, so an eleventh connection of the address is refused.
        let mut busy = Vec::new();
        for _ in 0..20 {
            let mut stream = greet(&addr);
            stream.write_all(&request(7, DESCRIBE)).unwrap();
            busy.push(stream);
        }
        let end = Instant::now() + WAIT;
        while count_open(&mut busy) > 5 {
            assert!(Instant::now() < end, "{} are open", count_open(&mut busy));
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(count_open(&mut waiting), 5);
        let mut stranger = other(9)(&addr);
        stranger.write_all(HELLO).unwrap();
        if limits.guests > 10 {
            ask(&mut stranger);
        } else {
            stranger.write_all(&request(1, USAGE)).unwrap();
            assert_closed(stranger);
        }
        server.stop();
    }
}

/// Connects from another address of this machine.
fn connect_from(from: IpAddr, to: &str) -> TcpStream {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind((from, 0).into()).unwrap();
        let stream = socket.connect(to.parse().unwrap()).await.unwrap().into_std().unwrap();
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(WAIT)).unwrap();
        stream
    })
}

#[test]
fn half_received_frames_are_bounded_and_others_are_served() {
    let runtime = runtime();
    let limits = Limits { frame_bytes_per_peer: 2 << 20, frame: 10 * WAIT, ..Limits::default() };
    let (server, addr) = node(&runtime, limits);
    let mut half: Vec<TcpStream> = Vec::new();
    for _ in 0..10 {
        let mut stream = greet(&addr);
        stream.write_all(&(8u32 << 20).to_be_bytes()).unwrap();
        // The write can fail, because the server possibly closes the connection before all bytes are sent.
        drop(stream.write_all(&vec![0; 700_000]));
        half.push(stream);
    }
    let end = Instant::now() + WAIT;
    while count_open(&mut half) > 2 {
        assert!(Instant::now() < end, "{} are open", count_open(&mut half));
        std::thread::sleep(Duration::from_millis(10));
    }
    is_served(&addr);
    server.stop();
}

/// Returns a frame of about a MiB with a request that is never answered, or with one that is answered.
fn long_request(id: u8, is_answered: bool) -> Vec<u8> {
    let request = if is_answered {
        NodeRequest::Fence { clients: vec![ClientId(1); 1 << 20] }
    } else {
        // Each block takes four bytes.
        let entry = TableEntry { owner: ClientId(1), order: 0, base: None };
        let request = JobRequest::SetOwners { region: 0, owners: vec![(0, entry); 1 << 18] };
        NodeRequest::OfJob { repairer: ClientId(1), job: 1, request }
    };
    call(id, &parsers::written(&request))
}

/// Checks that the server refuses one more request and closes the connection.
#[track_caller]
fn is_sent_away(mut stream: TcpStream, id: u8) {
    // The write can fail, because the server possibly closes the connection before all bytes are sent.
    drop(stream.write_all(&long_request(id, false)));
    assert_closed(stream);
}

/// The bytes of requests are counted until their handlers end, even if no caller waits for the answers any more.
#[test]
fn requests_that_are_not_answered_are_bounded_for_each_address_and_in_total() {
    const MOST: usize = 7 << 19;
    for limits in [
        Limits { request_bytes_per_peer: MOST, ..Limits::default() },
        Limits { request_bytes: MOST, ..Limits::default() },
    ] {
        let runtime = runtime();
        let (server, addr) = node(&runtime, limits);
        let mut stream = greet(&addr);
        ask(&mut stream);
        // Requests that have been answered take no memory any more.
        for _ in 0..10 {
            stream.write_all(&long_request(1, true)).unwrap();
            receive(&mut stream);
        }
        for id in 0..3 {
            stream.write_all(&long_request(id, false)).unwrap();
        }
        // When this request has been answered, the handlers of the three requests before it are running.
        stream.write_all(&request(4, USAGE)).unwrap();
        receive(&mut stream);
        for id in 0..3 {
            // The bytes are: `RequestEnvelope::Cancel`, and the id.
            stream.write_all(&frame(&[1, id])).unwrap();
        }
        is_sent_away(stream, 5);
        // The three handlers still run after the end of their connection, so their requests are still counted.
        is_sent_away(greet(&addr), 0);
        is_served(&addr);
        let mut stranger = connect_from(Ipv4Addr::new(127, 0, 0, 9).into(), &addr);
        stranger.write_all(HELLO).unwrap();
        if limits.request_bytes > MOST {
            ask(&mut stranger);
            stranger.write_all(&long_request(1, true)).unwrap();
            receive(&mut stranger);
        } else {
            is_sent_away(stranger, 0);
        }
        server.stop();
    }
}

/// Frames that are no requests to handle take no memory after they have been read: cancellations, and requests with the
/// id of a running one.
#[test]
fn cancellations_and_repeated_requests_hold_no_memory() {
    let runtime = runtime();
    let (server, addr) =
        node(&runtime, Limits { request_bytes_per_peer: 4096, ..Limits::default() });
    let mut stream = greet(&addr);
    ask(&mut stream);
    for id in 0..100 {
        // The bytes are: `RequestEnvelope::Cancel`, and the id.
        stream.write_all(&frame(&[1, id])).unwrap();
    }
    for _ in 0..100 {
        stream.write_all(&request(7, DESCRIBE)).unwrap();
    }
    stream.write_all(&request(102, USAGE)).unwrap();
    receive(&mut stream);
    server.stop();
}

/// Starts a node with answers of 40 KiB. Also returns the number of its connections that have ended.
fn talkative(runtime: &Runtime, limits: Limits) -> (Server, String, Arc<AtomicUsize>) {
    // Each block takes twelve bytes.
    let entry = TableEntry { owner: ClientId(u32::MAX), order: 0, base: None };
    let blocks = vec![(u32::MAX, entry); (40 << 10) / 12];
    let handler = move |_: Caller, _: NodeRequest| {
        let blocks = blocks.clone();
        async { NodeReply::Owners(blocks) }
    };
    let ended = Arc::new(AtomicUsize::new(0));
    let ends = Arc::clone(&ended);
    let closed = move |_| {
        ends.fetch_add(1, Ordering::Relaxed);
    };
    let listener = bind("127.0.0.1:0").unwrap();
    let server = serve_limited::<NodeService, _, _, _>(runtime, listener, handler, closed, limits);
    let server = server.unwrap();
    let addr = server.addr().unwrap().to_string();
    (server, addr, ended)
}

/// Returns frames with this many requests.
fn requests(count: u16) -> Vec<u8> {
    // The bytes are: `RequestEnvelope::Call`, the id (a varint of two bytes), the deadline (a varint, 60 s), no
    // cluster, and the request.
    let one = |id: u16| frame(&[0, id as u8 | 0x80, (id >> 7) as u8, 0xe0, 0xd4, 0x03, 0, USAGE]);
    (0..count).flat_map(one).collect()
}

#[test]
fn who_does_not_fetch_answers_is_sent_away() {
    let runtime = runtime();
    let limits = Limits { idle: Duration::from_millis(500), ..Limits::default() };
    let (_server, addr, ended) = talkative(&runtime, limits);
    let mut stream = greet(&addr);
    let mut asks = stream.try_clone().unwrap();
    let asking = std::thread::spawn(move || asks.write_all(&requests(16_000)));
    let deadline = Instant::now() + WAIT;
    while ended.load(Ordering::Relaxed) == 0 {
        assert!(Instant::now() < deadline, "it keeps its place");
        std::thread::sleep(Duration::from_millis(10));
    }
    // The server has received requests, and has begun to answer them.
    stream.read_exact(&mut [0; 72]).unwrap();
    receive(&mut stream);
    let _ = asking.join().unwrap();
}

/// Ten connections would keep 25 MiB of answers without being idle for long.
#[test]
fn answers_that_are_not_fetched_are_bounded_for_each_address_and_in_total() {
    for limits in [
        Limits { answer_bytes_per_peer: 2 << 20, ..Limits::default() },
        Limits { answer_bytes: 2 << 20, ..Limits::default() },
    ] {
        let runtime = runtime();
        let (_server, addr, ended) = talkative(&runtime, limits);
        // The operating system keeps some MiB of the answers for each connection.
        let asking: Vec<_> = (0..10)
            .map(|_| {
                let mut stream = greet(&addr);
                std::thread::spawn(move || {
                    // The write fails when the server closes the connection.
                    let _ = stream.write_all(&requests(1000));
                    stream
                })
            })
            .collect();
        // The limit of idle time would close them only after 60 s.
        let wait = |count: usize, time: Duration| {
            let deadline = Instant::now() + time;
            while ended.load(Ordering::Relaxed) < count {
                assert!(Instant::now() < deadline, "fewer than {count} connections have ended");
                std::thread::sleep(Duration::from_millis(10));
            }
        };
        wait(1, Duration::from_secs(30));
        // A peer of the same address that reads is served meanwhile.
        let client = NodeClient::new(&runtime, addr).with_deadline(WAIT);
        assert!(client.call_blocking(NodeRequest::Usage).is_ok());
        asking.into_iter().for_each(|asks| drop(asks.join().unwrap()));
        wait(10, WAIT);
        assert!(client.call_blocking(NodeRequest::Usage).is_ok());
    }
}

#[test]
fn who_asks_much_at_once_gets_all_answers() {
    const REQUESTS: u16 = 2000;
    let runtime = runtime();
    let (_server, addr, _) = talkative(&runtime, Limits::default());
    let mut stream = greet(&addr);
    let mut asks = stream.try_clone().unwrap();
    let asking = std::thread::spawn(move || asks.write_all(&requests(REQUESTS)).unwrap());
    stream.read_exact(&mut [0; 72]).unwrap();
    for number in 0..REQUESTS {
        // Reads slowly at first, so that answers accumulate in the server.
        if number < 50 {
            std::thread::sleep(Duration::from_millis(5));
        }
        receive(&mut stream);
    }
    asking.join().unwrap();
}
