//! A fake master in front of a real one. It publishes the views that a test gives it, fences sessions, and records the
//! requests that it receives.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use fusee_client::{BlockingClient, Client, ClientId, FabricKind, MnId, Options, View};
use fusee_control::master::{ClusterEpochs, MasterReply, MasterRequest, SessionHeartbeat};
use fusee_control::rpc::{self, MasterClient, MasterService, Runtime, Server};

/// Time for which the fake master holds an answer to `Heartbeat`.
const HOLD: Duration = Duration::from_millis(250);
/// Longest wait for an expected event.
pub const SOON: Duration = Duration::from_secs(20);

/// The requests that the fake master has received, and the answers that it gives.
#[derive(Default)]
pub struct Script {
    /// The content of the newest heartbeat of a process: its sessions, and the number of the view that it has.
    pub heartbeats: Vec<SessionHeartbeat>,
    pub has_view: u64,
    /// The number of heartbeats received.
    pub renewals: usize,
    pub closed: Vec<ClientId>,
    pub abandoned: Vec<ClientId>,
    pub unreachable: Vec<MnId>,
    /// The view that the fake master publishes, once it has one.
    pub view: Option<View>,
    pub expelled: Vec<ClientId>,
    /// Addresses that the fake master tells instead of those at which memory nodes listen.
    pub moved: HashMap<MnId, String>,
}

impl Script {
    fn follow(&mut self, mut view: View) -> View {
        for member in &mut view.members {
            if let Some(address) = self.moved.get(&member.node) {
                member.tcp = Some(address.clone());
            }
        }
        let newer = self.view.as_ref().is_some_and(|newest| newest.number >= view.number);
        if newer { self.view.clone().expect("just seen") } else { self.view.insert(view).clone() }
    }
}

pub struct FakeMaster {
    server: Server,
    script: Arc<Mutex<Script>>,
    _runtime: Runtime,
}

impl FakeMaster {
    pub fn start(real: MasterClient) -> FakeMaster {
        let runtime = Runtime::start("fake-master").unwrap();
        let script = Arc::<Mutex<Script>>::default();
        let said = script.clone();
        let listener = rpc::bind("127.0.0.1:0").unwrap();
        let handler = move |_, request| answer(real.clone(), said.clone(), request);
        let server = rpc::serve::<MasterService, _, _>(&runtime, listener, handler).unwrap();
        FakeMaster { server, script, _runtime: runtime }
    }

    pub fn script(&self) -> MutexGuard<'_, Script> {
        self.script.lock().unwrap()
    }

    pub fn connect(&self, fabric: FabricKind) -> BlockingClient {
        let options = Options::default().with_fabric(fabric);
        Client::connect_with(&self.server.addr().unwrap().to_string(), options).unwrap().blocking()
    }

    /// Publishes a view to all clients.
    pub fn publish(&self, view: View) {
        view.check().unwrap();
        self.script().view = Some(view);
    }

    /// Waits until the script satisfies `done`.
    pub fn wait(&self, what: &str, done: impl Fn(&Script) -> bool) {
        let end = Instant::now() + SOON;
        while !done(&self.script()) {
            assert!(Instant::now() < end, "{what} did not happen");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Returns whether all sessions have acknowledged the newest view.
    pub fn is_acknowledged(&self) -> bool {
        let script = self.script();
        let number = script.view.as_ref().map_or(0, |view| view.number);
        script.has_view == number && script.heartbeats.iter().all(|p| p.pinned_by >= number)
    }

    pub fn wait_acknowledged(&self) {
        let end = Instant::now() + SOON;
        while !self.is_acknowledged() {
            assert!(Instant::now() < end, "the view is not acknowledged");
            thread::sleep(Duration::from_millis(1));
        }
    }
}

async fn answer(
    real: MasterClient,
    script: Arc<Mutex<Script>>,
    request: MasterRequest,
) -> MasterReply {
    let lock = || script.lock().unwrap();
    match request {
        MasterRequest::Heartbeat { sessions, newer_than, .. } => {
            let mine: Vec<ClientId> = sessions.iter().map(|p| p.client).collect();
            {
                let mut script = lock();
                script.renewals += 1;
                (script.heartbeats, script.has_view) = (sessions, newer_than);
            }
            let end = Instant::now() + HOLD;
            loop {
                {
                    let script = lock();
                    let view = script.view.clone().filter(|view| view.number > newer_than);
                    let is_out = |client: &ClientId| script.expelled.contains(client);
                    let expelled: Vec<ClientId> = mine.iter().copied().filter(is_out).collect();
                    if view.is_some() || !expelled.is_empty() || Instant::now() >= end {
                        let view = view.map(|view| view.into());
                        let epochs = ClusterEpochs::default();
                        return MasterReply::Heartbeat {
                            view,
                            expelled,
                            epochs,
                            mark: 0,
                            short: 0,
                            spared: None,
                            lease_ms: 1_000,
                            behind_ms: 0,
                        };
                    }
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        MasterRequest::Abandon { client } => {
            lock().abandoned.push(client);
            MasterReply::Done
        }
        MasterRequest::Unreachable { node } => {
            lock().unreachable.push(node);
            MasterReply::Done
        }
        request => {
            if let MasterRequest::Close { client, .. } = &request {
                lock().closed.push(*client);
            }
            match real.call(request).await.unwrap() {
                MasterReply::Opened { client, view, epoch, lease_ms, behind_ms, policy } => {
                    let view = lock().follow(view);
                    MasterReply::Opened { client, view, epoch, lease_ms, behind_ms, policy }
                }
                MasterReply::View(Some(view)) => MasterReply::View(Some(lock().follow(view))),
                reply => reply,
            }
        }
    }
}

/// A forwarder in front of a memory node's port, which can be made silent.
pub struct Forwarder {
    pub address: String,
    silent: Arc<AtomicBool>,
    /// Number of the next connections that are closed immediately.
    hangs_up: Arc<AtomicUsize>,
}

impl Forwarder {
    pub fn start(to: String) -> Forwarder {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let silent = Arc::<AtomicBool>::default();
        let quiet = silent.clone();
        let hangs_up = Arc::<AtomicUsize>::default();
        let left = hangs_up.clone();
        thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let one_less = |left: usize| left.checked_sub(1);
                if left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok() {
                    continue;
                }
                let far = TcpStream::connect(&to).unwrap();
                let ways = [(near.try_clone().unwrap(), far.try_clone().unwrap()), (far, near)];
                for (from, to) in ways {
                    let quiet = quiet.clone();
                    thread::spawn(move || carry(from, to, &quiet));
                }
            }
        });
        Forwarder { address, silent, hangs_up }
    }

    /// Makes the forwarder close the next `connections` connections immediately.
    pub fn hang_up(&self, connections: usize) {
        self.hangs_up.store(connections, Ordering::SeqCst);
    }

    /// Sets whether the forwarder is silent: it then forwards nothing, but keeps connections open.
    pub fn set_silent(&self, yes: bool) {
        self.silent.store(yes, Ordering::SeqCst);
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, silent: &AtomicBool) {
    to.set_nodelay(true).unwrap();
    let mut bytes = vec![0; 64 << 10];
    while let Ok(n @ 1..) = from.read(&mut bytes) {
        while silent.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(1));
        }
        if to.write_all(&bytes[..n]).is_err() {
            break;
        }
    }
    // Either side of the forwarder is possibly closed already.
    let _ = to.shutdown(std::net::Shutdown::Both);
}
