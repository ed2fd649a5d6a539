//! The memory nodes that a session is attached to: those of the newest view.
//!
//! A view comes in two steps. As soon as it is there, the session leaves the nodes that it does not
//! have: verbs that wait for one of them end as unreachable, so that their operation wakes up and
//! looks around. That is done by the thread's reactor before it sleeps. Nodes that are new are
//! attached to when an operation first acts by the view: attaching waits for the node.
//!
//! A session that is shut out leaves all nodes. A connection that broke is not made anew: an old
//! verb may still be on its way there, and the next one could overtake it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use fusee_core::verbs::{ClientId, MnId};
use fusee_core::view::{Member, View};
use fusee_fabric::{AnyFabric, AttachError, FabricKind, attach_all};

use crate::logic::Gate;

/// What a session is attached to.
pub(crate) struct Attachments {
    fabric: Rc<AnyFabric>,
    gate: Arc<Gate>,
    /// Names and identities.
    attached: RefCell<Vec<(MnId, u64)>>,
    /// The view whose absentees have been left.
    seen: Cell<u64>,
    /// The session takes part in nothing any more.
    out: Cell<bool>,
}

fn key(member: &Member) -> (MnId, u64) {
    (member.node, member.identity)
}

impl Attachments {
    /// Attaches to all members of a view.
    pub fn new(kind: FabricKind, gate: Arc<Gate>, view: &View) -> Result<Attachments, AttachError> {
        let fabric = Rc::new(attach_all(kind, gate.client(), &view.members)?);
        Ok(Attachments {
            fabric,
            gate,
            attached: RefCell::new(view.members.iter().map(key).collect()),
            seen: Cell::new(view.number),
            out: Cell::new(false),
        })
    }

    pub fn fabric(&self) -> &Rc<AnyFabric> {
        &self.fabric
    }

    pub fn client(&self) -> ClientId {
        self.gate.client()
    }

    /// Leaves what has to be left by now. Two loads, if that is nothing.
    pub fn follow(&self) {
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

    /// Leaves all nodes: no verb reaches them from here any more. `patience`: see
    /// [`AnyFabric::leave`].
    pub fn leave_all(&self, patience: Duration) {
        if !self.out.replace(true) {
            self.attached.borrow_mut().clear();
            self.fabric.leave(patience);
        }
    }

    /// Attaches to the members of a view that are new; calls `failed` for those that do not answer.
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
                    // Its verbs are unreachable, which whoever posts them will find out.
                    tracing::warn!(client = %self.client(), %error, "cannot attach");
                    failed(member.node);
                }
            }
        }
    }
}
