//! The memory nodes that a session is attached to: the members of the newest view.
//!
//! A session follows a new view in two steps. As soon as the view arrives, the session leaves the nodes that the view
//! lacks: verbs that wait for such a node end as unreachable, so that their operations wake up and look at the view.
//! The thread's reactor does this before it sleeps. New nodes are attached when an operation first uses the view,
//! because attaching waits for the node's answer.
//!
//! A fenced session leaves all nodes. A broken connection is not replaced by a new one, because an old verb can still
//! be under way on the old connection, and a verb on a new connection could overtake it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use fusee_core::verbs::{ClientId, MnId};
use fusee_core::view::{Member, View};
use fusee_fabric::fork::OriginProcess;
use fusee_fabric::{AnyFabric, AttachError, AttachOptions, attach_all_with};

use crate::logic::SessionGate;

/// The memory nodes that a session is attached to.
pub(crate) struct Attachments {
    fabric: Rc<AnyFabric>,
    gate: Arc<SessionGate>,
    /// The ids and identities of the nodes to which the session is attached.
    attached: RefCell<Vec<(MnId, u64)>>,
    /// The number of the newest view for which [`Attachments::leave_absent`] has been called.
    seen: Cell<u64>,
    /// Whether the session has left all nodes for good.
    out: Cell<bool>,
    origin: OriginProcess,
}

/// Returns the longest wait for an answer of a memory node: two leases, but 0.5 s at least and 5 s at most; 5 s if the
/// lease is unknown. A view without the node mostly arrives earlier if the node is dead; if it is only slow, the
/// session keeps it.
fn silence(lease: Duration) -> Duration {
    const SHORTEST: Duration = Duration::from_millis(500);
    const LONGEST: Duration = Duration::from_secs(5);
    match lease {
        Duration::ZERO => LONGEST,
        lease => lease.saturating_mul(2).clamp(SHORTEST, LONGEST),
    }
}

fn key(member: &Member) -> (MnId, u64) {
    (member.node, member.identity)
}

impl Attachments {
    /// Attaches to all members of a view.
    pub fn new(
        way: AttachOptions<'_>,
        gate: Arc<SessionGate>,
        view: &View,
    ) -> Result<Attachments, AttachError> {
        let client = gate.client();
        let members = &view.members;
        let fabric = Rc::new(attach_all_with(way, client, members, &|| !gate.is_expelled())?);
        fabric.set_silence(silence(gate.lease.longest()));
        Ok(Attachments {
            fabric,
            gate,
            attached: RefCell::new(view.members.iter().map(key).collect()),
            seen: Cell::new(view.number),
            out: Cell::new(false),
            origin: OriginProcess::here(),
        })
    }

    pub fn fabric(&self) -> &Rc<AnyFabric> {
        &self.fabric
    }

    pub fn client(&self) -> ClientId {
        self.gate.client()
    }

    /// Leaves the nodes that the newest view lacks, or all nodes if the session is fenced. Costs two loads of memory if
    /// there is no node to leave.
    pub fn follow(&self) {
        if !self.origin.is_here() {
            return self.gate.expel_in_child();
        }
        if self.gate.is_expelled() {
            self.leave_all(Duration::ZERO);
        } else if let Some(view) = self.gate.newer_view(self.seen.get()) {
            self.leave_absent(&view);
        }
    }

    fn leave_absent(&self, view: &View) {
        self.seen.set(view.number);
        let is_absent = |at: &mut (MnId, u64)| !view.members.iter().any(|m| key(m) == *at);
        let absent: Vec<_> = self.attached.borrow_mut().extract_if(.., is_absent).collect();
        for (node, _) in absent {
            tracing::info!(client = %self.client(), %node, view = view.number, "left a memory node");
            self.fabric.detach(node);
        }
    }

    /// Leaves all nodes: no further verb of this session reaches them. For `patience` see [`AnyFabric::leave`].
    pub fn leave_all(&self, patience: Duration) {
        if !self.out.replace(true) {
            self.attached.borrow_mut().clear();
            self.fabric.leave(patience);
        }
    }

    /// Attaches to new members of a view. Calls `failed` for each new member that does not answer.
    pub fn adopt(&self, view: &View, failed: impl Fn(MnId)) {
        if self.out.get() || view.number < self.seen.get() {
            return;
        }
        self.leave_absent(view);
        for member in &view.members {
            if self.attached.borrow().contains(&key(member)) {
                continue;
            }
            match self.fabric.attach(member) {
                Ok(()) => self.attached.borrow_mut().push(key(member)),
                Err(error) => {
                    // Verbs to this node will fail as unreachable, so the operations that post verbs notice the
                    // failure.
                    tracing::warn!(client = %self.client(), %error, "cannot attach");
                    failed(member.node);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};
    use std::pin::pin;
    use std::task::{Context, Poll};

    use fusee_core::layout::POOL_HEADER_BYTES;
    use fusee_core::race::HashKey;
    use fusee_core::verbs::{ClusterId, Fabric, VerbBatch, VerbError};
    use fusee_core::view::Geometry;
    use fusee_fabric::tcp::DEFAULT_SPIN;
    use fusee_fabric::{FabricKind, NodeFabrics, NodeFabricsOptions, Pool, PoolOptions};

    use super::*;

    /// The offset of the first byte behind the pool's header.
    const START: u64 = POOL_HEADER_BYTES;

    fn node(name: u16) -> (Member, NodeFabrics) {
        let identity = (u64::from(std::process::id()) << 32) + u64::from(name);
        let pool = Pool::new(PoolOptions { bytes: 2 * START, huge_pages: false }).unwrap();
        let tcp = Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        let options = NodeFabricsOptions {
            pool,
            identity,
            tcp,
            spin: DEFAULT_SPIN,
            shm: None,
            verbs: None,
            steered: false,
            tls: None,
            keys: None,
        };
        let fabrics = NodeFabrics::start(options).unwrap();
        let tcp = fabrics.tcp_addr().map(|addr| addr.to_string());
        let node = MnId(name);
        let control = "none".into();
        let shm = None;
        let verbs = None;
        let pool_bytes = START;
        let member = Member { node, identity, control, tcp, shm, verbs, pool_bytes };
        (member, fabrics)
    }

    fn view(number: u64, members: &[&Member]) -> Arc<View> {
        Arc::new(View {
            number,
            cluster: ClusterId::from_word(1).unwrap(),
            hash_key: HashKey::new([7; 16]),
            geometry: Geometry::default(),
            members: members.iter().copied().cloned().collect(),
            regions: Vec::new(),
            directory: Vec::new(),
            subtables: Vec::new(),
            change: None,
        })
    }

    /// Returns those of the nodes 0, 1 and 2 that execute a verb of the session.
    fn reached(attachments: &Attachments) -> Vec<u16> {
        let fabric = attachments.fabric();
        let mut batch = VerbBatch::new();
        for node in 0..3 {
            batch.faa(MnId(node), START, 1);
        }
        let mut executing = pin!(fabric.execute(batch));
        let waker = fabric.waker();
        let batch = loop {
            match executing.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(batch) => break batch,
                Poll::Pending => fabric.turn(None),
            }
        };
        let failed = batch.verbs().iter().filter_map(|verb| verb.result.err());
        assert!(failed.into_iter().all(|error| error == VerbError::Unreachable));
        batch.verbs().iter().filter(|verb| verb.result.is_ok()).map(|verb| verb.node.0).collect()
    }

    #[test]
    fn nodes_are_left_when_a_view_comes_and_joined_when_it_is_acted_by() {
        for (kind, base) in [(FabricKind::Shm, 0), (FabricKind::Tcp, 10)] {
            let nodes = [0, 1, 2].map(|name| node(base + name));
            let members = [0, 1, 2].map(|i: u16| {
                let (member, _) = &nodes[usize::from(i)];
                Member { node: MnId(i), ..member.clone() }
            });
            let [a, b, c] = &members;
            let gate = Arc::new(SessionGate::new(ClientId(5), view(1, &[a, b]), 0));
            let attachments =
                Attachments::new(AttachOptions::plain(kind), gate.clone(), &gate.view()).unwrap();
            let nobody = |node| panic!("cannot attach to {node}");
            assert_eq!(reached(&attachments), [0, 1]);
            gate.publish_view(&view(2, &[a, c]));
            attachments.follow();
            assert_eq!(reached(&attachments), [0]);
            attachments.adopt(&gate.view(), nobody);
            assert_eq!(reached(&attachments), [0, 2]);
            // The member has the id of a node but another identity, so attaching to it fails.
            let stranger = Member { identity: 1, ..c.clone() };
            let failed = Cell::new(None);
            gate.publish_view(&view(3, &[a, b, &stranger]));
            attachments.adopt(&gate.view(), |node| failed.set(Some(node)));
            assert_eq!((reached(&attachments), failed.get()), (vec![0, 1], Some(MnId(2))));
            gate.publish_view(&view(4, &[a, b, c]));
            attachments.adopt(&gate.view(), nobody);
            assert_eq!(reached(&attachments), [0, 1, 2]);
            gate.expel();
            attachments.follow();
            gate.publish_view(&view(5, &[a, b, c]));
            attachments.follow();
            attachments.adopt(&gate.view(), nobody);
            assert!(reached(&attachments).is_empty());
        }
    }
}
