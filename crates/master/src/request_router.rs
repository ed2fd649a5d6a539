//! The router of requests: to the logic of this process, or else to a reply that names the leading master, if one is
//! known.
//!
//! A master with a store of its own leads from its start to its end. One of several masters stands by until it is
//! elected, leads for a term, and stands by again. Its port is always open: a master that stands by tells clients which
//! master leads, and the clients ask there.
//!
//! Invariant: the logic that received a request answers it, or no logic does. When a term ends while requests are under
//! way, no process can have seen effects of these requests that the next leader does not know. For the logic stores
//! what others depend on before it tells them, and what is not stored ends with the term. So clients can send such
//! requests again, to another master. The one exception is a `Close` that hands blocks on: if it had been carried out,
//! and a block had been given to another session, a second `Close` would give that block once more.

use std::sync::mpsc::Sender;
use std::sync::{Mutex, MutexGuard, PoisonError};

use fusee_control::master::{MasterReply, MasterRequest};
use fusee_control::rpc::Caller;
use tokio::sync::{oneshot, watch};

use crate::server::{LogicInput, LogicMessage};

/// The reason in replies when the master's logic has ended for good.
const ENDED: &str = "this master has ended, or its store failed; see its log";

/// Passes requests to the logic if this master leads.
pub(crate) struct RequestRouter {
    place: Mutex<MasterRole>,
    /// Whether there are other masters, so that this master possibly stands by.
    contested: bool,
    /// The channel that gets the reason when this master will never lead again.
    #[cfg_attr(not(feature = "etcd"), expect(dead_code, reason = "nobody is elected without"))]
    ended: Option<watch::Sender<Option<String>>>,
}

enum MasterRole {
    Leads(Sender<LogicMessage>),
    #[cfg_attr(not(feature = "etcd"), expect(dead_code, reason = "nobody is elected without"))]
    StandsBy {
        leader: Option<String>,
    },
    #[cfg_attr(not(feature = "etcd"), expect(dead_code, reason = "nobody is elected without"))]
    Ended(String),
}

impl RequestRouter {
    /// Returns the router of the only master, which leads.
    pub fn sole(queue: Sender<LogicMessage>) -> RequestRouter {
        RequestRouter { place: Mutex::new(MasterRole::Leads(queue)), contested: false, ended: None }
    }

    /// Passes a request to the logic. The returned future gives the reply. When this function returns, the request is
    /// in the logic's queue, before all later messages of the same connection.
    pub fn ask(
        &self,
        caller: Caller,
        request: MasterRequest,
    ) -> impl Future<Output = MasterReply> + use<> {
        let hands_on = matches!(&request, MasterRequest::Close { orphans, .. }
            if !orphans.is_empty());
        let asked = self.pass_on(caller, request);
        let contested = self.contested;
        async move {
            let (sent, replied) = match asked {
                Ok(asked) => asked,
                Err(reply) => return *reply,
            };
            match replied.await {
                Ok(reply) => reply,
                // Either the logic did not receive the request, which so had no effect, or the logic's term has ended.
                Err(_) if contested && !(sent && hands_on) => {
                    MasterReply::NotLeader { leader: None }
                }
                Err(_) => MasterReply::Refused { reason: ENDED.into() },
            }
        }
    }

    /// Returns whether the logic received the request, and the receiver of the reply. If this master does not lead,
    /// returns the reply as the error.
    fn pass_on(
        &self,
        caller: Caller,
        request: MasterRequest,
    ) -> Result<(bool, oneshot::Receiver<MasterReply>), Box<MasterReply>> {
        match &*self.place() {
            MasterRole::Leads(queue) => {
                let (reply, replied) = oneshot::channel();
                let message = LogicMessage::Input(LogicInput::Request { caller, request, reply });
                Ok((queue.send(message).is_ok(), replied))
            }
            MasterRole::StandsBy { leader } => {
                Err(Box::new(MasterReply::NotLeader { leader: leader.clone() }))
            }
            MasterRole::Ended(reason) => {
                Err(Box::new(MasterReply::Refused { reason: reason.clone() }))
            }
        }
    }

    /// Tells the logic that a connection has ended.
    pub fn closed(&self, connection: u64) {
        if let MasterRole::Leads(queue) = &*self.place() {
            // Sending fails if the logic has ended. An ended logic needs no message.
            let _ended = queue.send(LogicMessage::Input(LogicInput::Closed { connection }));
        }
    }

    fn place(&self) -> MutexGuard<'_, MasterRole> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(feature = "etcd")]
impl RequestRouter {
    /// Returns the router of one of several masters, which stands by. `ended` receives the reason when this master will
    /// never lead again.
    pub fn contested(ended: watch::Sender<Option<String>>) -> RequestRouter {
        let place = Mutex::new(MasterRole::StandsBy { leader: None });
        RequestRouter { place, contested: true, ended: Some(ended) }
    }

    /// Begins a term, in which requests go to this queue.
    pub fn lead(&self, queue: Sender<LogicMessage>) {
        *self.place() = MasterRole::Leads(queue);
    }

    /// Makes the router refuse requests, because another master leads (`leader`), or no master.
    pub fn stand_by(&self, leader: Option<String>) {
        *self.place() = MasterRole::StandsBy { leader };
    }

    /// Ends this router for good: every later request is refused for this reason.
    pub fn end(&self, reason: String) {
        if let Some(ended) = &self.ended {
            ended.send_replace(Some(reason.clone()));
        }
        *self.place() = MasterRole::Ended(reason);
    }
}
