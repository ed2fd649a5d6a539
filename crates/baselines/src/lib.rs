//! Systems that ours is measured beside: what their papers and their published code do, over the verbs that ours uses.
//!
//! Each is a [`Session`] of a client over any [`Fabric`](fusee_core::verbs::Fabric); what a server with processors does
//! for it is a [`Server`], reached by an [`Rpc`]. They are as good as they were published: the tests say what each
//! keeps without crashes, and show what it breaks. None of them recovers anything. No line of their code is here.
//!
//! * [`lock`]: one [`object`] under a remote lock, and [`sequencer`]: one behind a sequencer, for Figure 3 of FUSEE's
//!   paper.
//! * [`clover`]: data on memory nodes, and the index with a metadata server; and [`pdpm`], pDPM-Direct: updates in
//!   place under a lock for each key. Both are stores, for Figures 2 and 10 to 15.
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

/// Why an operation came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failed {
    /// A verb has no result. What the operation was to change may have changed.
    #[error(transparent)]
    Verb(#[from] FailedVerb),
    /// There is no memory left.
    #[error("there is no memory left: make the pools larger")]
    Full,
    /// What others were to change does not change.
    #[error(
        "a slot or an object stays as its last writer left it: make the store anew, or be more patient"
    )]
    Stuck,
    /// The system has no such operation.
    #[error("the system has no {0}")]
    Unsupported(&'static str),
    /// A key or value is not of the length that the system was made for.
    #[error("a {0} of this length has no place here")]
    Length(&'static str),
}

/// What a client of a system does. Operations of one session may overlap.
pub trait Session {
    /// The key's value; `None` if there is no such key.
    fn search(&self, key: &[u8]) -> impl Future<Output = Result<Option<Vec<u8>>, Failed>>;

    /// Gives a key another value. Whether there was such a key.
    fn update(&self, key: &[u8], value: &[u8]) -> impl Future<Output = Result<bool, Failed>>;

    /// A new key with its value. Whether there was none.
    fn insert(&self, key: &[u8], value: &[u8]) -> impl Future<Output = Result<bool, Failed>>;

    /// The key goes. Whether there was one.
    fn delete(&self, key: &[u8]) -> impl Future<Output = Result<bool, Failed>>;

    /// Knows from now on where keys are that another session knows.
    fn learn_from(&self, other: &Self);

    /// What the session does beside its operations: a task of its process that the host runs once, in the background,
    /// as long as the session is used. Most do nothing.
    fn background(&self) -> impl Future<Output = ()> {
        async {}
    }
}

/// A key, as a number.
type Key = u128;

/// Bytes of a key.
pub const KEY_BYTES: usize = 16;

fn key_of(key: &[u8]) -> Result<Key, Failed> {
    Ok(Key::from_le_bytes(key.try_into().map_err(|_| Failed::Length("key"))?))
}

/// By what bytes are known to belong together: to this key, and to whatever `tag` stands for.
fn sum(key: Key, tag: u64, bytes: &[u8]) -> u64 {
    let seed = (key as u64) ^ ((key >> 64) as u64).rotate_left(32);
    XxHash3_128::oneshot_with_seed(seed ^ tag.wrapping_mul(0x9e37_79b9_7f4a_7c15), bytes) as u64
}

/// The word at the start of these bytes.
fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(*bytes.first_chunk().expect("at least a word"))
}

/// What a server does for clients, one request after the other.
pub trait Server {
    /// What it is asked.
    type Request;
    /// What it replies.
    type Reply;

    /// For how long a request takes one of its cores.
    fn takes(&self, request: &Self::Request) -> Duration;

    /// Bytes of a request and of its reply on the way.
    fn bytes(&self, request: &Self::Request) -> (u64, u64);

    /// Does what is asked.
    fn serve(&mut self, request: Self::Request) -> Self::Reply;
}

/// The way to a server.
pub trait Rpc<S: Server> {
    /// Has it do something.
    fn call(&self, request: S::Request) -> impl Future<Output = S::Reply>;
}

/// A server in the process of its clients, which takes no time.
pub struct Near<S>(Rc<RefCell<S>>);

impl<S> Near<S> {
    /// Clones of it are the way to this server.
    pub fn new(server: S) -> Near<S> {
        Near(Rc::new(RefCell::new(server)))
    }
}

/// A server that somebody else looks at as well.
impl<S> From<Rc<RefCell<S>>> for Near<S> {
    fn from(server: Rc<RefCell<S>>) -> Near<S> {
        Near(server)
    }
}

impl<S> Clone for Near<S> {
    fn clone(&self) -> Near<S> {
        Near(self.0.clone())
    }
}

impl<S: Server> Rpc<S> for Near<S> {
    async fn call(&self, request: S::Request) -> S::Reply {
        self.0.borrow_mut().serve(request)
    }
}
