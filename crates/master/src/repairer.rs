//! The thread that runs the master's jobs, with a fabric session to all members.
//!
//! The session reaches the members by shared memory if they are on this host and let it in, else by
//! TCP. Over shared memory verbs execute on the spot, so nothing of the session is left when a job
//! ends, and it need not be shut out when one fails. It must not be either: a memory node that has
//! not noticed its end yet would kill this process. So it has ended before a job that failed is
//! reported.
//!
//! Jobs often follow each other: a split takes two, and splits come in hundreds. Over shared memory
//! a new session maps the pools anew, and then every page that it looks at is a page fault, which
//! takes longer than all that is to be done there. So after a job that succeeded the session stays
//! for [`KEPT`], for the next one of the same name with the same members.
//!
//! When the master ends, a running job is dropped where it is, as if the master had crashed.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::task::{Context, Poll};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use fusee_control::node::{NodeReply, NodeRequest};
use fusee_control::rpc::NodeClient;
use fusee_core::verbs::{ClientId, MnId};
use fusee_core::view::{Member, View};
use fusee_fabric::{AnyFabric, FabricKind, attach_all};

use crate::jobs::{self, Job, JobError, JobReport, Reach};

/// The deadline of a call to a memory node.
const DEADLINE: Duration = Duration::from_secs(2);
/// How often a job that waits looks whether the master ends.
const LOOK: Duration = Duration::from_millis(20);

/// How long a session stays after a job. Shorter than any lease: who takes over from this master
/// must not find it at the memory nodes.
const KEPT: Duration = Duration::from_millis(100);

/// A job to run.
pub(crate) struct Order {
    pub token: u64,
    /// The name of the fabric session.
    pub client: ClientId,
    pub view: View,
    pub job: Job,
    /// The control services of the view's members.
    pub nodes: HashMap<MnId, NodeClient>,
}

/// The thread. Dropping it ends it.
pub(crate) struct Repairer {
    orders: Option<Sender<Order>>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Repairer {
    /// Starts the thread, which reports every job to `done`.
    pub fn start<D>(done: D) -> io::Result<Repairer>
    where
        D: Fn(u64, Result<JobReport, JobError>) + Send + 'static,
    {
        let (orders, queue) = channel();
        let ends = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&ends);
        let work = move || run(&queue, &flag, done);
        let thread = Builder::new().name("fusee-repairer".into()).spawn(work)?;
        Ok(Repairer { orders: Some(orders), ends, thread: Some(thread) })
    }

    /// Hands a job over.
    pub fn order(&self, order: Order) {
        if let Some(orders) = &self.orders {
            // It fails only if the thread panicked; then the job is never done.
            let _ended = orders.send(order);
        }
    }
}

impl Drop for Repairer {
    fn drop(&mut self) {
        // Relaxed: the thread looks again soon.
        self.ends.store(true, Ordering::Relaxed);
        self.orders.take();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the repairs panicked");
        }
    }
}

fn run<D>(orders: &Receiver<Order>, ends: &AtomicBool, done: D)
where
    D: Fn(u64, Result<JobReport, JobError>),
{
    let mut kept = None;
    loop {
        let order = match kept {
            None => orders.recv().map_err(RecvTimeoutError::from),
            Some(_) => orders.recv_timeout(KEPT),
        };
        let order = match order {
            Ok(order) => order,
            Err(RecvTimeoutError::Timeout) => {
                kept = None;
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let token = order.token;
        let Some(result) = work(order, &mut kept, ends) else { return };
        done(token, result);
    }
}

/// A session that stays for the next job.
struct Kept {
    client: ClientId,
    /// Names and identities.
    members: Vec<(MnId, u64)>,
    fabric: AnyFabric,
}

/// Runs a job to its end; `None` if the master ends first. When it returns, the session has ended,
/// or is kept.
fn work(
    order: Order,
    kept: &mut Option<Kept>,
    ends: &AtomicBool,
) -> Option<Result<JobReport, JobError>> {
    let Order { client, view, job, nodes, .. } = order;
    let members: Vec<(MnId, u64)> = view.members.iter().map(|m| (m.node, m.identity)).collect();
    let fits = kept.take().filter(|kept| kept.client == client && kept.members == members);
    let fabric = match fits.map_or_else(|| attach(client, &view.members), |kept| Ok(kept.fabric)) {
        Ok(fabric) => fabric,
        Err(error) => return Some(Err(error)),
    };
    let result = complete(&fabric, &view, job, nodes, ends)?;
    if result.is_ok() && fabric.kind() == FabricKind::Shm {
        *kept = Some(Kept { client, members, fabric });
    }
    Some(result)
}

fn complete(
    fabric: &AnyFabric,
    view: &View,
    job: Job,
    nodes: HashMap<MnId, NodeClient>,
    ends: &AtomicBool,
) -> Option<Result<JobReport, JobError>> {
    let asking = Asking { nodes, begun: Instant::now() };
    let mut job = pin!(jobs::run(fabric, &asking, view, job));
    let waker = fabric.waker();
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(result) = job.as_mut().poll(&mut context) {
            return Some(result.map_err(|error| JobError {
                may_linger: fabric.kind() != FabricKind::Shm,
                ..error
            }));
        }
        fabric.turn(Some(LOOK));
        if ends.load(Ordering::Relaxed) {
            return None;
        }
    }
}

fn attach(client: ClientId, members: &[Member]) -> Result<AnyFabric, JobError> {
    let here = |member: &Member| match &member.shm {
        Some(path) => Path::new(path).exists(),
        // Nodes of this very process offer neither a path nor a port, or a port only.
        None => member.tcp.is_none() && member.verbs.is_none(),
    };
    if members.iter().all(here) {
        match attach_all(FabricKind::Shm, client, members) {
            Ok(fabric) => return Ok(fabric),
            Err(error) => tracing::debug!(%error, "no shared memory for repairs"),
        }
    }
    // By a card whose atomics the processor does not see, a node serves verbs alone.
    let has_tcp = members.iter().all(|member| member.tcp.is_some());
    let kind = if has_tcp { FabricKind::Tcp } else { FabricKind::Verbs };
    attach_all(kind, client, members).map_err(|error| JobError {
        node: Some(error.node),
        may_linger: false,
        what: error.to_string(),
    })
}

struct Asking {
    nodes: HashMap<MnId, NodeClient>,
    begun: Instant,
}

impl Reach for Asking {
    async fn ask(&self, node: MnId, request: NodeRequest) -> Result<NodeReply, String> {
        let client = self.nodes.get(&node).ok_or("it is no member of the view")?;
        let answer = client.with_deadline(DEADLINE).call(request).await;
        answer.map_err(|error| error.to_string())
    }

    fn now_us(&self) -> u64 {
        self.begun.elapsed().as_micros() as u64
    }
}
