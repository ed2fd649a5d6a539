//! Code that the tests share: nodes at temporary sockets, a small executor, child processes.
#![allow(dead_code, reason = "each test binary uses its own part")]

pub mod child;
pub mod wire;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use fusee_core::layout::POOL_HEADER_BYTES;
use fusee_core::verbs::MnId;
use fusee_core::view::Member;
use fusee_fabric::tcp::DEFAULT_SPIN;
use fusee_fabric::verbs::{RdmaDevice, default_device};
use fusee_fabric::{AnyFabric, NodeFabrics, NodeFabricsOptions, Pool, PoolOptions};

/// The offset of the first byte of a pool that sessions can change: the end of the header.
pub const START: u64 = POOL_HEADER_BYTES;

/// Returns a number that no other running test of this machine uses.
pub fn unique() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    (u64::from(std::process::id()) << 32) + NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A directory for sockets. Dropping it removes the directory.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Scratch {
        let path = std::env::temp_dir().join(format!("fusee-{:x}", unique()));
        std::fs::create_dir(&path).unwrap();
        Scratch(path)
    }

    /// Returns a path that has not been used.
    pub fn socket(&self) -> PathBuf {
        self.0.join(format!("{:x}", unique()))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Asserts that no file is left in the directory.
    pub fn assert_empty(&self) {
        let left: Vec<_> = std::fs::read_dir(&self.0).unwrap().flatten().collect();
        assert!(left.is_empty() || std::thread::panicking(), "left behind: {left:?}");
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

/// Returns the address of any free port of this host.
pub fn loopback() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

/// A node of this process, and the node's identity.
pub struct Served {
    pub fabrics: NodeFabrics,
    pub identity: u64,
}

/// Returns the options of a node of this process without servers.
pub fn options(pool_bytes: u64) -> NodeFabricsOptions {
    let pool = Pool::new(PoolOptions { bytes: pool_bytes, huge_pages: false }).unwrap();
    let identity = unique();
    let spin = DEFAULT_SPIN;
    NodeFabricsOptions {
        pool,
        identity,
        tcp: None,
        spin,
        shm: None,
        verbs: None,
        steered: false,
        tls: None,
        keys: None,
    }
}

fn start(options: NodeFabricsOptions) -> Served {
    let identity = options.identity;
    Served { fabrics: NodeFabrics::start(options).unwrap(), identity }
}

/// Starts a node that offers TCP, and shared memory if a path for the socket is given.
pub fn node(pool_bytes: u64, shm: Option<PathBuf>) -> Served {
    start(NodeFabricsOptions { tcp: Some(loopback()), shm, ..options(pool_bytes) })
}

/// Starts a node that offers verbs, at the address of the machine's RDMA device.
pub fn verbs_node(pool_bytes: u64) -> Served {
    let at = default_device().unwrap().address.unwrap_or(Ipv4Addr::LOCALHOST.into());
    start(NodeFabricsOptions { verbs: Some((at, 0).into()), ..options(pool_bytes) })
}

/// Two network interfaces of this machine that only the test connects, and the address of an RDMA device beyond
/// them. The environment names them: `FUSEE_WIRE=sw0,sw1,10.0.0.2`.
pub struct Wire {
    interfaces: [String; 2],
    far: IpAddr,
    /// Held while a test uses the interfaces, so that no other test connects them.
    _alone: MutexGuard<'static, ()>,
}

impl Wire {
    /// Returns the wire that the environment names; `None` if it names none.
    pub fn of_this_machine() -> Option<Wire> {
        static ALONE: Mutex<()> = Mutex::new(());
        let Ok(wire) = std::env::var("FUSEE_WIRE") else {
            // Written to stderr directly, because the test harness captures the output of `println`.
            let _told = std::io::Write::write_fmt(
                &mut std::io::stderr(),
                format_args!("SKIPPED: no wire for a switch (FUSEE_WIRE)\n"),
            );
            return None;
        };
        let parts: Vec<&str> = wire.split(',').collect();
        let [first, second, far] = parts[..] else { panic!("FUSEE_WIRE is no A,B,ADDRESS") };
        let interfaces = [first.into(), second.into()];
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        Some(Wire { interfaces, far: far.parse().unwrap(), _alone: alone })
    }

    /// Returns the names of the interfaces.
    pub fn interfaces(&self) -> [&str; 2] {
        [&self.interfaces[0], &self.interfaces[1]]
    }

    /// Starts a node beyond the wire. Switches are allowed to steer READs from it.
    pub fn node(&self, pool_bytes: u64) -> Served {
        let verbs = Some((self.far, 0).into());
        start(NodeFabricsOptions { verbs, steered: true, ..options(pool_bytes) })
    }
}

/// Returns the RDMA device of this machine for tests of verbs. Returns `None` without a device, and panics then if
/// the environment requires one.
pub fn rdma_device() -> Option<RdmaDevice> {
    match default_device() {
        Ok(found) => Some(found),
        Err(error) => {
            // Written to stderr directly, because the test harness captures the output of `println`.
            let _told = std::io::Write::write_fmt(
                &mut std::io::stderr(),
                format_args!("SKIPPED: nothing of verbs is tested: {error}\n"),
            );
            let required = std::env::var("FUSEE_RDMA_REQUIRED").is_ok_and(|value| value == "1");
            assert!(!required, "FUSEE_RDMA_REQUIRED is 1: {error}");
            None
        }
    }
}

/// Returns the entry that a view would have for this node.
pub fn member(node: MnId, served: &Served) -> Member {
    Member {
        node,
        identity: served.identity,
        control: String::new(),
        tcp: served.fabrics.tcp_addr().map(|addr| addr.to_string()),
        shm: served.fabrics.shm_path().map(|path| path.display().to_string()),
        verbs: served.fabrics.verbs_addr().map(|addr| addr.to_string()),
        pool_bytes: served.fabrics.pool().bytes(),
    }
}

/// Runs one future on a session until it is ready.
pub fn block_on<T>(fabric: &AnyFabric, future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = fabric.waker();
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(done) => return done,
            Poll::Pending => fabric.turn(None),
        }
    }
}
