//! Who answers requests: the logic of this process, another master, or nobody any more.
//!
//! A master with a store of its own leads from its start to its end. One of several masters
//! stands by until it is elected, leads for a term, and stands by again. Its port is open all the
//! time: whoever asks a stand-by learns who leads, and asks there.
//!
//! Invariant: a request is answered by the logic that took it or not at all. When a term ends
//! with requests under way, nothing that they did can have been seen by anybody whom the next
//! leader does not know of: what others rely on is written to the store before it is told, and
//! what is not written ends with the term. So they may be asked again, of another master. The one
//! exception is a `Close` that hands on rests of blocks: if it had been carried out and a rest
//! been given to somebody, a second `Close` would give it once more.

use std::sync::mpsc::Sender;
use std::sync::{Mutex, MutexGuard, PoisonError};

use fusee_control::master::{MasterReply, MasterRequest};
use fusee_control::rpc::Caller;
use tokio::sync::{oneshot, watch};

use crate::server::Message;

/// What is said when the logic has ended for good.
const ENDED: &str = "this master has ended, or its store failed; see its log";

/// Where requests go.
pub(crate) struct Seat {
    place: Mutex<Place>,
    /// Whether there are other masters.
    contested: bool,
    /// Told when this master will never lead again.
    #[cfg_attr(not(feature = "etcd"), expect(dead_code, reason = "nobody is elected without"))]
    ended: Option<watch::Sender<Option<String>>>,
}

enum Place {
    Leads(Sender<Message>),
    #[cfg_attr(not(feature = "etcd"), expect(dead_code, reason = "nobody is elected without"))]
    StandsBy {
        leader: Option<String>,
    },
    #[cfg_attr(not(feature = "etcd"), expect(dead_code, reason = "nobody is elected without"))]
    Ended(String),
}

impl Seat {
    /// The only master there is: it leads.
    pub fn sole(queue: Sender<Message>) -> Seat {
        Seat { place: Mutex::new(Place::Leads(queue)), contested: false, ended: None }
    }

    /// Asks the logic; the answer is the reply to give. The request is in its queue when this
    /// returns, before whatever else its connection brings.
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
                // Not taken, so without effect; or taken by a term that is over.
                Err(_) if contested && !(sent && hands_on) => {
                    MasterReply::NotLeader { leader: None }
                }
                Err(_) => MasterReply::Refused { reason: ENDED.into() },
            }
        }
    }

    /// Whether the logic has the request, and where its reply comes; or the reply at once.
    fn pass_on(
        &self,
        caller: Caller,
        request: MasterRequest,
    ) -> Result<(bool, oneshot::Receiver<MasterReply>), Box<MasterReply>> {
        match &*self.place() {
            Place::Leads(queue) => {
                let (reply, replied) = oneshot::channel();
                Ok((queue.send(Message::Request { caller, request, reply }).is_ok(), replied))
            }
            Place::StandsBy { leader } => {
                Err(Box::new(MasterReply::NotLeader { leader: leader.clone() }))
            }
            Place::Ended(reason) => Err(Box::new(MasterReply::Refused { reason: reason.clone() })),
        }
    }

    /// A connection has ended.
    pub fn closed(&self, connection: u64) {
        if let Place::Leads(queue) = &*self.place() {
            // Nobody listens any more when the logic has ended.
            let _ended = queue.send(Message::Closed { connection });
        }
    }

    fn place(&self) -> MutexGuard<'_, Place> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(feature = "etcd")]
impl Seat {
    /// One of several masters: it stands by. Its end is told.
    pub fn contested(ended: watch::Sender<Option<String>>) -> Seat {
        let place = Mutex::new(Place::StandsBy { leader: None });
        Seat { place, contested: true, ended: Some(ended) }
    }

    /// A term begins.
    pub fn lead(&self, queue: Sender<Message>) {
        *self.place() = Place::Leads(queue);
    }

    /// Another master leads, or none.
    pub fn stand_by(&self, leader: Option<String>) {
        *self.place() = Place::StandsBy { leader };
    }

    /// This master will never lead again.
    pub fn end(&self, reason: String) {
        if let Some(ended) = &self.ended {
            ended.send_replace(Some(reason.clone()));
        }
        *self.place() = Place::Ended(reason);
    }
}
