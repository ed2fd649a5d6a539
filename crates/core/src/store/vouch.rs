//! Who vouches for what was READ, when the master is not heard.
//!
//! A memory node that is cut off from the master serves on, and shows what was true before the cluster
//! went on without it. A session that is heard has been waited for. Who has not been heard for a lease
//! ([`Host::is_heard`]) asks the members of its view at which view they stand: what it has READ counts if
//! more than half of all of them show that one, or an earlier one. Members that do not answer do not
//! vouch: whether they are dead or cut off nobody can tell. A view without a member takes effect only when
//! half of the members before, at least, show its number.
//!
//! It does not matter whether the READs came before the question or after it, as long as all that
//! happened since the operation began: until a view without its node takes effect the node shows what
//! everybody sees, and afterwards nobody changes anything there. So a question serves all operations that
//! began before it.
//!
//! Writes need no question: they are done when all replicas have them, and those that are left have
//! fenced the session. Only what a write answers from a READ does ("exists", "not found").

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cell::Cell;
use core::mem;

use super::{Op, Store};
use crate::error::{Error, Outcome};
use crate::host::Host;
use crate::layout::HeaderWord;
use crate::mutant::{Mutant, removed};
use crate::verbs::{Fabric, Ticket};
use crate::view::View;

/// What is waited for.
const WORD: &str = "word from the master, or from more than half of the memory nodes";

/// The questions of a session to the members.
#[derive(Debug, Default)]
pub(super) struct Asks {
    begun: Cell<u64>,
    /// The last one by which they vouched, and the number of the view for which they did.
    vouched: Cell<(u64, u64)>,
}

impl Asks {
    /// How many have begun.
    pub fn begun(&self) -> u64 {
        self.begun.get()
    }

    /// Whether the members have vouched for a view since so many questions had begun.
    fn have_vouched(&self, view: u64, since: u64) -> bool {
        let (ask, number) = self.vouched.get();
        number == view && (ask > since || (ask > 0 && removed(Mutant::OldAskVouches)))
    }
}

/// Whether so many members are enough to vouch.
fn is_majority(vouching: usize, members: usize) -> bool {
    2 * vouching > members || (2 * vouching == members && removed(Mutant::HalfVouches))
}

impl<F: Fabric, H: Host> Store<F, H> {
    /// Whether the master has heard the session less than a lease ago.
    pub(super) fn is_heard(&self) -> bool {
        self.host.is_heard() || removed(Mutant::ReadsUnheard)
    }
}

impl<F: Fabric, H: Host> Op<'_, F, H> {
    /// Whether what this operation has READ, by the view that it acts by, was so at some moment since it
    /// began. Waits until that is certain; false if a newer view has come, by which to READ again.
    #[inline]
    pub(super) async fn is_vouched_for(&mut self) -> Result<bool, Error> {
        if self.store.is_heard() {
            return Ok(true);
        }
        Box::pin(self.ask_around()).await
    }

    #[cold]
    async fn ask_around(&mut self) -> Result<bool, Error> {
        loop {
            if self.store.is_heard()
                || self.store.asks.have_vouched(self.view.number, self.asks_before)
            {
                return Ok(true);
            }
            if self.newer_view_has_come() {
                return Ok(false);
            }
            if self.ask_members().await {
                return Ok(true);
            }
            if self.pause().await.is_err() {
                return Err(Error::GaveUp { waiting_for: WORD, outcome: Outcome::NotApplied });
            }
        }
    }

    /// One phase: the members say at which view they stand. Whether they vouch for this one.
    async fn ask_members(&mut self) -> bool {
        let (store, view) = (self.store, self.view.clone());
        let ask = store.asks.begun.get() + 1;
        store.asks.begun.set(ask);
        let mut batch = store.batches.borrow_mut().pop().unwrap_or_default();
        batch.clear();
        let offset = HeaderWord::View.offset();
        let members = view.members.iter();
        let reads = members.map(|member| batch.read(member.node, offset, 8));
        let reads: Vec<Ticket> = reads.collect();
        // What the operation has READ stays where it is.
        let own = mem::replace(&mut self.batch, batch);
        let in_doubt = self.in_doubt.len();
        self.phase().await;
        // A READ that is still on its way harms nobody.
        self.in_doubt.truncate(in_doubt);
        let batch = mem::replace(&mut self.batch, own);
        let vouching = reads.iter().filter(|read| match batch.data(**read) {
            Ok(word) => vouches(word, &view),
            Err(_) => removed(Mutant::SilentNodesVouch),
        });
        let vouched = is_majority(vouching.count(), view.members.len());
        store.recycle(batch);
        if vouched {
            store.asks.vouched.set((ask, view.number));
        }
        vouched
    }
}

/// Whether the view word of a member's header shows no later view; 0 shows none.
fn vouches(word: &[u8], view: &View) -> bool {
    let word = word.try_into().map_or(0, u64::from_le_bytes);
    (1..=view.number).contains(&word)
}
