//! Prints the time that a batch of one verb takes on each fabric, from posting to result.
//!
//! Run it with `cargo run --release -p fusee-fabric --example latency [rounds]`. Every fabric is measured at random
//! places of one page, and of a pool that is larger than most caches. TCP is measured over loopback, with the node's
//! thread in this process; then also through a switch, whose threads are in this process as well. The clock is read
//! only once for all rounds, so times are averages.

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use fusee_core::layout::POOL_HEADER_BYTES;
use fusee_core::verbs::{ClientId, Fabric, MnId, VerbBatch};
use fusee_core::view::Member;
use fusee_fabric::tcp::{DEFAULT_SPIN, TcpSwitch};
use fusee_fabric::{
    AnyFabric, FabricKind, NodeFabrics, NodeFabricsOptions, Pool, PoolOptions, SwitchLocation,
    attach_all, attach_all_through,
};
use fusee_switch::fusee::{FuseeSwitch, FuseeSwitchOptions};

/// The offset of the first byte behind the header.
const START: u64 = POOL_HEADER_BYTES;
const MN: MnId = MnId(0);
const POOL_BYTES: u64 = 256 << 20;

fn block_on<T>(fabric: &AnyFabric, waker: &Waker, future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(waker)) {
            Poll::Ready(done) => return done,
            Poll::Pending => fabric.turn(None),
        }
    }
}

/// Returns the nanoseconds per round. In each round, `post` gets a cleared batch and a random offset.
fn measure(
    fabric: &AnyFabric,
    rounds: u64,
    span: u64,
    mut post: impl FnMut(&mut VerbBatch, u64),
) -> f64 {
    let mut batch = VerbBatch::new();
    let mut random = 1u64;
    let waker = fabric.waker();
    let started = Instant::now();
    for _ in 0..rounds {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        batch.clear();
        post(&mut batch, (random >> 33) * 64 % span);
        batch = block_on(fabric, &waker, fabric.execute(batch));
    }
    batch.check().expect("verbs succeed");
    started.elapsed().as_nanos() as f64 / rounds as f64
}

fn main() {
    let rounds = std::env::args().nth(1).map_or(2_000_000, |n| n.parse().expect("a number"));
    let pool =
        Pool::new(PoolOptions { bytes: START + POOL_BYTES, huge_pages: false }).expect("a pool");
    pool.zero(0, START + POOL_BYTES);
    let options = NodeFabricsOptions {
        pool,
        identity: 1,
        tcp: Some(([127, 0, 0, 1], 0).into()),
        spin: DEFAULT_SPIN,
        shm: None,
        verbs: None,
        steered: false,
        tls: None,
        keys: None,
    };
    let node = NodeFabrics::start(options).expect("a node");
    let member = Member {
        node: MN,
        identity: 1,
        control: String::new(),
        tcp: node.tcp_addr().map(|addr| addr.to_string()),
        shm: None,
        verbs: None,
        pool_bytes: POOL_BYTES,
    };
    let members = std::slice::from_ref(&member);
    let client = ClientId(1);
    let known = member.tcp.clone().map(|at| (MN, at));
    let switch = Box::new(FuseeSwitch::new(FuseeSwitchOptions { slots: 1_000, rounds: 0 }));
    let switch =
        TcpSwitch::start(([127, 0, 0, 1], 0).into(), switch, Box::new(move |_| known.clone()))
            .expect("a switch");
    let at = SwitchLocation::Address(switch.addr().to_string());
    let tcp = rounds / 100;
    for (kind, rounds, fabric) in [
        ("shm", rounds, attach_all(FabricKind::Shm, client, members)),
        ("tcp", tcp, attach_all(FabricKind::Tcp, client, members)),
        ("tcp through a switch", tcp, attach_all_through(&at, client, members)),
    ] {
        let fabric = fabric.expect("attached");
        for (place, span) in [("one page", 4096), ("random", POOL_BYTES - (64 << 10))] {
            for len in [8, 64, 128, 256, 1024, 4096] {
                let read = measure(&fabric, rounds, span, |b, at| {
                    b.read(MN, START + at, len);
                });
                let write = measure(&fabric, rounds, span, |b, at| {
                    let data = b.stage(len);
                    b.write(MN, START + at, data);
                });
                println!("{kind} {place}: READ {len} B {read:.0} ns, WRITE {len} B {write:.0} ns");
            }
            let cas = measure(&fabric, rounds, span, |b, at| {
                b.cas(MN, START + at, 1, 2);
            });
            println!("{kind} {place}: CAS {cas:.0} ns");
        }
    }
}
