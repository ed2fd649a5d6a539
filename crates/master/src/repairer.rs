//! The thread that runs the master's jobs, with a fabric session to all members.
//!
//! The session uses shared memory if all members are on this host and allow it, otherwise TCP. Over shared memory verbs
//! execute at once, so no verb of a job executes after the job has ended. Therefore the session needs no fence when a
//! job fails. The session has also ended by then: it says goodbye to the members before the failure is reported.
//!
//! A memory node that fences a session over shared memory asks the session's process to say goodbye, and kills the
//! process if that takes more than a second (decision 0062). A running master says goodbye in time. A master that is
//! stopped (by SIGSTOP, for example) while it has a session is killed if another master takes over meanwhile.
//!
//! Jobs often follow each other: a split takes two jobs, and splits come in hundreds. Over shared memory a new session
//! maps the pools anew, and then its first access to each page is a page fault, which takes longer than the rest of the
//! job. So after a job that succeeded, the session is kept for [`KEPT`], for the next job with the same session id and
//! the same members.
//!
//! Jobs that look for damage run all the time, so a master that is stopped would usually be stopped during such a job,
//! and killed. Therefore these jobs use TCP where they can, and their session is never kept.
//!
//! When the master ends, a running job is dropped at any point, as if the master had crashed. A job also ends if the
//! view lacks one of its members: the job possibly waits for that member, and the change that removes the member waits
//! for the job.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Once};
use std::task::{Context, Poll};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use fusee_auth::Keyring;
use fusee_control::node::{NodeReply, NodeRequest};
use fusee_control::rpc::NodeClient;
use fusee_core::verbs::{ClientId, MnId};
use fusee_core::view::{Member, View};
use fusee_fabric::{AnyFabric, AttachError, AttachOptions, Clock, FabricKind, attach_all_with};
use fusee_tls::TlsSettings;

use crate::jobs::{self, JobContext, JobEnvironment, JobError, JobReport, MasterJob};

/// The deadline of a call to a memory node.
const DEADLINE: Duration = Duration::from_secs(2);
/// The interval at which a job that waits checks whether it has to end.
const LOOK: Duration = Duration::from_millis(20);

/// The time for which a session is kept after a job. It is shorter than any lease of a master, so that another master
/// that takes over does not find the session at the memory nodes.
const KEPT: Duration = Duration::from_millis(100);

/// A job that the thread is to run.
pub(crate) struct QueuedJob {
    pub token: u64,
    /// The client id of the session under which the job runs.
    pub client: ClientId,
    pub view: View,
    pub job: MasterJob,
    /// The control services of the view's members, by member.
    pub nodes: HashMap<MnId, NodeClient>,
    /// Set when the view in force lacks a member of the job's view.
    pub is_overtaken: Arc<AtomicBool>,
}

/// The reasons why a job has to end before it is done.
struct JobStopFlags<'a> {
    master: &'a AtomicBool,
    is_overtaken: &'a AtomicBool,
}

impl JobStopFlags<'_> {
    // Both loads are relaxed, because the caller checks the flags again soon.
    fn master(&self) -> bool {
        self.master.load(Ordering::Relaxed)
    }

    fn job(&self) -> bool {
        self.is_overtaken.load(Ordering::Relaxed)
    }
}

/// The keys that memory nodes have to prove that they know, and the certificates for TCP.
#[derive(Default)]
pub(crate) struct NodeCredentials {
    pub keys: Option<Arc<Keyring>>,
    pub tls: Option<TlsSettings>,
}

/// The handle of the thread that runs jobs. Dropping it ends the thread.
pub(crate) struct Repairer {
    orders: Option<Sender<QueuedJob>>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Repairer {
    /// Starts the thread, which reports the result of every job to `done`.
    pub fn start<D>(trust: NodeCredentials, done: D) -> io::Result<Repairer>
    where
        D: Fn(u64, Result<JobReport, JobError>) + Send + 'static,
    {
        let (orders, queue) = channel();
        let ends = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&ends);
        let work = move || run(&queue, &flag, &trust, done);
        let thread = Builder::new().name("fusee-repairer".into()).spawn(work)?;
        Ok(Repairer { orders: Some(orders), ends, thread: Some(thread) })
    }

    /// Passes a job to the thread.
    pub fn order(&self, order: QueuedJob) {
        if let Some(orders) = &self.orders {
            // Sending fails only if the thread has panicked. Then no job is run any more.
            let _ended = orders.send(order);
        }
    }
}

impl Drop for Repairer {
    fn drop(&mut self) {
        // Relaxed is enough, because the thread checks the flag again soon.
        self.ends.store(true, Ordering::Relaxed);
        self.orders.take();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the repairs panicked");
        }
    }
}

fn run<D>(orders: &Receiver<QueuedJob>, ends: &AtomicBool, trust: &NodeCredentials, done: D)
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
        let Some(result) = work(order, &mut kept, trust, ends) else { return };
        done(token, result);
    }
}

/// A fabric session that is kept open for the next job.
struct KeptJobSession {
    client: ClientId,
    /// The names and identities of the members to which the session is connected.
    members: Vec<(MnId, u64)>,
    fabric: AnyFabric,
}

/// Runs a job to its end. Returns `None` if the master ends first. When this returns, the session has ended, or is in
/// `kept`.
fn work(
    order: QueuedJob,
    kept: &mut Option<KeptJobSession>,
    trust: &NodeCredentials,
    ends: &AtomicBool,
) -> Option<Result<JobReport, JobError>> {
    let QueuedJob { token, client, view, job, nodes, is_overtaken } = order;
    let ends = JobStopFlags { master: ends, is_overtaken: &is_overtaken };
    let members: Vec<(MnId, u64)> = view.members.iter().map(|m| (m.node, m.identity)).collect();
    let fits = kept.take().filter(|kept| kept.client == client && kept.members == members);
    let looks = matches!(job, MasterJob::Scrub { .. });
    let goes_on = || !ends.master() && !ends.job();
    let attach = || attach(client, &view.members, !looks, trust, &goes_on);
    let fits = fits.filter(|_| !looks);
    let fabric = match fits.map_or_else(attach, |kept| Ok(kept.fabric)) {
        Ok(fabric) => fabric,
        Err(_) if ends.master() => return None,
        Err(error) => return Some(Err(error)),
    };
    let asking = RepairerEnvironment { nodes, begun: Clock::Precise.now() };
    let orders = JobContext { reach: &asking, repairer: client, job: token };
    let result = complete(&fabric, &orders, &view, job, &ends)?;
    if result.is_ok() && fabric.kind() == FabricKind::Shm && !looks {
        *kept = Some(KeptJobSession { client, members, fabric });
    }
    Some(result)
}

fn complete(
    fabric: &AnyFabric,
    orders: &JobContext<'_, RepairerEnvironment>,
    view: &View,
    job: MasterJob,
    ends: &JobStopFlags<'_>,
) -> Option<Result<JobReport, JobError>> {
    // Over TCP, verbs of a job can still be under way after the job's end.
    let may_linger = fabric.kind() != FabricKind::Shm;
    let mut job = pin!(jobs::run(fabric, orders, view, job));
    let waker = fabric.waker();
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(result) = job.as_mut().poll(&mut context) {
            return Some(result.map_err(|error| JobError { may_linger, ..error }));
        }
        fabric.turn(Some(LOOK));
        if ends.master() {
            return None;
        }
        if ends.job() {
            let what = "the cluster goes on without one of its memory nodes".into();
            return Some(Err(JobError { may_linger, ..JobError::new(None, what) }));
        }
    }
}

static NO_SHM: Once = Once::new();

fn attach(
    client: ClientId,
    members: &[Member],
    prefers_shm: bool,
    trust: &NodeCredentials,
    goes_on: &dyn Fn() -> bool,
) -> Result<AnyFabric, JobError> {
    let failed = |error: AttachError| JobError {
        may_linger: false,
        ..JobError::new(Some(error.node), error.to_string())
    };
    let here = |member: &Member| match &member.shm {
        Some(path) => Path::new(path).exists(),
        // Without a socket, only a node inside of this process that serves neither TCP nor RDMA is reached over shared
        // memory.
        None => member.tcp.is_none() && member.verbs.is_none(),
    };
    let has_tcp = members.iter().all(|member| member.tcp.is_some());
    let tls = trust.tls.as_ref();
    let keys = trust.keys.as_deref();
    let way = |kind| AttachOptions { kind, switch: None, tls, keys };
    if members.iter().all(here) && (prefers_shm || !has_tcp) {
        match attach_all_with(way(FabricKind::Shm), client, members, goes_on) {
            Ok(fabric) => return Ok(fabric),
            Err(error) if !goes_on() => return Err(failed(error)),
            // The error is logged only once, because each job tries again.
            Err(error) => NO_SHM.call_once(|| {
                tracing::warn!(%error, "shared memory is not used for repairs");
            }),
        }
    }
    // A node serves only `verbs` if the CASes of its NIC are not atomic towards those of the processor.
    let kind = if has_tcp { FabricKind::Tcp } else { FabricKind::Verbs };
    attach_all_with(way(kind), client, members, goes_on).map_err(failed)
}

struct RepairerEnvironment {
    nodes: HashMap<MnId, NodeClient>,
    begun: Duration,
}

impl JobEnvironment for RepairerEnvironment {
    async fn ask(&self, node: MnId, request: NodeRequest) -> Result<NodeReply, String> {
        let client = self.nodes.get(&node).ok_or("it is no member of the view")?;
        let answer = client.with_deadline(DEADLINE).call(request).await;
        answer.map_err(|error| error.to_string())
    }

    fn now_us(&self) -> u64 {
        (Clock::Precise.now() - self.begun).as_micros() as u64
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use fusee_core::race::HashKey;
    use fusee_core::verbs::ClusterId;
    use fusee_core::view::Geometry;

    use super::*;

    /// Returns a job with a view whose only member accepts connections and never answers.
    fn job(listener: &TcpListener) -> QueuedJob {
        let member = Member {
            node: MnId(3),
            identity: 7,
            control: "nowhere:1".into(),
            tcp: Some(listener.local_addr().unwrap().to_string()),
            shm: None,
            verbs: None,
            pool_bytes: 1 << 20,
        };
        let view = View {
            number: 1,
            cluster: ClusterId::from_word(1).unwrap(),
            hash_key: HashKey::new([7; 16]),
            geometry: Geometry::default(),
            members: vec![member],
            regions: Vec::new(),
            directory: Vec::new(),
            subtables: Vec::new(),
            change: None,
        };
        let token = 9;
        let client = ClientId(1);
        let job = MasterJob::Clear;
        QueuedJob { token, client, view, job, nodes: HashMap::new(), is_overtaken: Arc::default() }
    }

    fn silent() -> TcpListener {
        TcpListener::bind("127.0.0.1:0").unwrap()
    }

    #[test]
    fn a_job_does_not_wait_for_a_node_that_is_given_up() {
        let (listener, (tell, told)) = (silent(), channel());
        let repairer = Repairer::start(NodeCredentials::default(), move |token, result| {
            tell.send((token, result)).unwrap()
        });
        let repairer = repairer.unwrap();
        let order = job(&listener);
        let overtaken = order.is_overtaken.clone();
        repairer.order(order);
        std::thread::sleep(Duration::from_millis(100));
        assert!(told.try_recv().is_err(), "it waits as long as it may");
        let begun = Clock::Precise.now();
        overtaken.store(true, Ordering::Relaxed);
        let (token, result) = told.recv_timeout(Duration::from_secs(10)).unwrap();
        let error = result.unwrap_err();
        let passed = Clock::Precise.now() - begun;
        assert!(passed < Duration::from_millis(500), "{passed:?}");
        assert_eq!((token, error.node, error.may_linger), (9, Some(MnId(3)), false));
        assert!(error.what.contains("does not answer"), "{}", error.what);
    }

    #[test]
    fn a_master_that_ends_does_not_wait_for_a_silent_node() {
        let listener = silent();
        let repairer = Repairer::start(NodeCredentials::default(), |_, _| ()).unwrap();
        repairer.order(job(&listener));
        std::thread::sleep(Duration::from_millis(100));
        let begun = Clock::Precise.now();
        drop(repairer);
        let passed = Clock::Precise.now() - begun;
        assert!(passed < Duration::from_millis(500), "{passed:?}");
    }
}
