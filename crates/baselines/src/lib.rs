//! The systems that FUSEE is compared with, written after their papers and published code, on FUSEE's verbs.
//!
//! A client of a system is a [`BaselineSession`] over any [`Fabric`](fusee_core::verbs::Fabric). A server process of a
//! system is a [`BaselineServer`], which clients call through an [`Rpc`]. The systems are no better than they were
//! published: tests state the promises that each system keeps without crashes, and show the promises that it breaks. No
//! system recovers from crashes. No line of the published code is here.
//!
//! * [`lock`]: one [`object`] under a remote lock. [`sequencer`]: one object behind a sequencer. These two are for
//!   Figure 3 of FUSEE's paper.
//! * [`clover`]: a store with data on memory nodes and the index on a metadata server. [`pdpm`], pDPM-Direct: a store
//!   with updates in place under a lock for each key. These two are for Figures 2 and 10 to 15.
//! * [`published`]: FUSEE itself, as its paper prints it.
#![forbid(unsafe_code)]

mod cache;
pub mod clover;
pub mod lock;
pub mod object;
pub mod pdpm;
pub mod published;
pub mod sequencer;
mod signal;

use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use fusee_core::verbs::FailedVerb;
use twox_hash::XxHash3_128;

/// Errors of a baseline's operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BaselineError {
    /// A verb has no result. Its target has possibly changed.
    #[error(transparent)]
    Verb(#[from] FailedVerb),
    /// The store has no free memory for the operation.
    #[error("there is no memory left: make the pools larger")]
    Full,
    /// The operation waited too long for another client to finish a write.
    #[error(
        "a slot or an object stays as its last writer left it: make the store anew, or be more patient"
    )]
    Stuck,
    /// The system lacks this operation.
    #[error("the system has no {0}")]
    Unsupported(&'static str),
    /// The key or value has another length than the system was made for.
    #[error("a {0} of this length has no place here")]
    Length(&'static str),
}

/// A client of a system. Operations of one session can overlap.
pub trait BaselineSession {
    /// Returns the key's value, or `None` if there is no such key.
    fn search(&self, key: &[u8]) -> impl Future<Output = Result<Option<Vec<u8>>, BaselineError>>;

    /// Gives a key another value. Returns whether the key existed.
    fn update(&self, key: &[u8], value: &[u8])
    -> impl Future<Output = Result<bool, BaselineError>>;

    /// Adds a key with its value. Returns whether the key was absent.
    fn insert(&self, key: &[u8], value: &[u8])
    -> impl Future<Output = Result<bool, BaselineError>>;

    /// Removes a key. Returns whether the key existed.
    fn delete(&self, key: &[u8]) -> impl Future<Output = Result<bool, BaselineError>>;

    /// Copies the other session's knowledge of where keys are.
    fn learn_from(&self, other: &Self);

    /// Runs the background work of the session; most systems have none. The caller runs this task once, for as long as
    /// it uses the session.
    fn background(&self) -> impl Future<Output = ()> {
        async {}
    }
}

/// A key, as a little-endian number.
type KeyNumber = u128;

/// Length of every key in bytes.
pub const KEY_BYTES: usize = 16;

fn key_of(key: &[u8]) -> Result<KeyNumber, BaselineError> {
    Ok(KeyNumber::from_le_bytes(key.try_into().map_err(|_| BaselineError::Length("key"))?))
}

/// Returns a checksum of the bytes that also covers the key and `tag`.
fn sum(key: KeyNumber, tag: u64, bytes: &[u8]) -> u64 {
    let seed = (key as u64) ^ ((key >> 64) as u64).rotate_left(32);
    XxHash3_128::oneshot_with_seed(seed ^ tag.wrapping_mul(0x9e37_79b9_7f4a_7c15), bytes) as u64
}

/// Returns the first word of these bytes.
fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(*bytes.first_chunk().expect("at least a word"))
}

/// A server process, which serves one request after the other.
pub trait BaselineServer {
    /// Type of a request.
    type Request;
    /// Type of the reply to a request.
    type Reply;

    /// Returns the time for which this request occupies one of the server's cores.
    fn service_time(&self, request: &Self::Request) -> Duration;

    /// Returns the lengths of a request and of its reply in the network, in bytes.
    fn bytes(&self, request: &Self::Request) -> (u64, u64);

    /// Executes a request.
    fn serve(&mut self, request: Self::Request) -> Self::Reply;
}

/// A client's connection to a server.
pub trait Rpc<S: BaselineServer> {
    /// Sends a request and returns the reply.
    fn call(&self, request: S::Request) -> impl Future<Output = S::Reply>;
}

/// A connection to a server in the client's own process. Requests take no time.
pub struct InProcessRpc<S>(Rc<RefCell<S>>);

impl<S> InProcessRpc<S> {
    /// Wraps a server. Every clone calls the same server.
    pub fn new(server: S) -> InProcessRpc<S> {
        InProcessRpc(Rc::new(RefCell::new(server)))
    }
}

/// Wraps a server that its owner can inspect.
impl<S> From<Rc<RefCell<S>>> for InProcessRpc<S> {
    fn from(server: Rc<RefCell<S>>) -> InProcessRpc<S> {
        InProcessRpc(server)
    }
}

impl<S> Clone for InProcessRpc<S> {
    fn clone(&self) -> InProcessRpc<S> {
        InProcessRpc(self.0.clone())
    }
}

impl<S: BaselineServer> Rpc<S> for InProcessRpc<S> {
    async fn call(&self, request: S::Request) -> S::Reply {
        self.0.borrow_mut().serve(request)
    }
}
