//! The freeing of objects, and the setting of their free bits (P §4.4).
//!
//! *Freeing.* A slot word protects one object from reuse: the pair that the word leads to, or that of the INSERT whose
//! withdrawal the word is ([`Slot::object`]). Other free words protect none. Only the winner
//! of a round, which replaces a word, frees the object that the word protected. The loser of a round frees its own
//! object once the round is over, because then no replica shows its word. If a crash or a lost memory node leaves an
//! object without a free bit, a comparison with the whole index finds it ([`compare`](super::compare)).
//!
//! *Setting free.* Freed objects wait in the session until there are some, and are then set free together: one FAA for
//! each bitmap word. This happens beside the session's next write, which does not wait longer for it; over an immediate
//! fabric, where nothing waits, it happens after the write. Exactly one client ever sets a bit, and only the block's
//! owner clears it, so no addition carries into a neighbouring bit. Bitmaps are not replicated: if the node that holds
//! a bitmap is lost, so are its bits.
//!
//! The owners of the blocks find these bits, and reclaim the objects ([`reclaim`](super::reclaim)).

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::pin::Pin;

use super::upkeep::{FreeBits, MemoryUpkeep};
use crate::host::Host;
use crate::layout::{Address, Slot, UNIT_BYTES};
use crate::mutant::{Mutant, removed};
use crate::stats::OpKind;
use crate::store::Store;
use crate::store::write::{find_copies, with_copies};
use crate::verbs::Fabric;
use crate::view::FRAME_ALIGN_BYTES;

/// The number of freed objects whose free bits are set together, in one round trip. The atomics of one NIC take turns,
/// so with more of them the write beside waits.
const SET_FREE_TOGETHER: usize = 16;
/// The number of bytes in freed objects from which on free bits are set even if there are only a few.
const SET_FREE_BYTES: u64 = 1 << 20;
/// The number of local epochs after which free bits are set even if there are only a few: a slow writer would otherwise
/// keep freed memory for long.
const OLD_EPOCHS: u64 = 64;

/// Objects that the session has freed and whose free bits are not set yet.
#[derive(Debug, Default)]
pub(in crate::store) struct PendingFreeBits {
    /// The slot words that led to the freed objects, before they were replaced.
    words: RefCell<Vec<Slot>>,
    /// The bytes of the objects to which `words` led.
    bytes: Cell<u64>,
    /// An empty list, whose allocation is used again the next time that free bits are set.
    free_bits: RefCell<Vec<FreeBits>>,
    /// The local epoch of the oldest operation that freed one of the waiting objects, or that holds memory; `None`
    /// without freed or held objects.
    since: Cell<Option<u64>>,
    /// The local epochs in which those suspended operations were pinned that have possibly replaced slot words.
    held: RefCell<Vec<u64>>,
    /// The number of times that this session gave up setting the waiting free bits, and left all freed and held objects
    /// to a comparison.
    times_left: Cell<u64>,
    /// Whether an operation is setting free bits.
    setting_free: Cell<bool>,
}

/// The hold of a suspended operation on memory whose slot word it has possibly replaced. The operation frees this
/// memory when its result is known. Before that, no comparison ends that could free this memory.
#[derive(Debug)]
pub(in crate::store) struct MemoryHold {
    since: u64,
    times_left: u64,
}

impl PendingFreeBits {
    /// Adds the memory that `word` has protected. The operation that replaced the word is pinned in the local epoch
    /// `since`.
    pub fn free(&self, host: &impl Host, word: Slot, since: u64) {
        self.words.borrow_mut().push(word);
        self.bytes.set(self.bytes.get() + bytes_of(word));
        self.waits_since(host, since);
    }

    /// Notes that an operation that is pinned in this local epoch has freed or holds memory. Publishes the local epoch
    /// if it is older than those noted before.
    fn waits_since(&self, host: &impl Host, since: u64) {
        // Of two operations that free objects, the one that frees first possibly began later.
        if self.since.get().is_none_or(|oldest| since < oldest) {
            self.since.set(Some(since));
            host.publish_older(since);
        }
    }

    /// Begins the hold of an operation that is pinned in this local epoch, is about to be suspended, and has possibly
    /// replaced a word.
    pub fn hold(&self, host: &impl Host, since: u64) -> MemoryHold {
        self.held.borrow_mut().push(since);
        self.waits_since(host, since);
        MemoryHold { since, times_left: self.times_left.get() }
    }

    /// Returns whether the held memory was left to a comparison.
    pub fn is_lost(&self, hold: &MemoryHold) -> bool {
        hold.times_left != self.times_left.get()
    }

    /// Ends a hold, after the operation has freed the memory that it held, or has left it alone.
    pub fn end_hold(&self, host: &impl Host, hold: &MemoryHold) {
        let mut held = self.held.borrow_mut();
        let at = held.iter().position(|since| *since == hold.since && !self.is_lost(hold));
        if let Some(at) = at {
            held.swap_remove(at);
        }
        drop(held);
        if self.nothing_waits() && !self.setting_free.get() {
            host.publish_freed(None);
        }
    }

    /// Returns whether there are neither freed objects that wait for their bits, nor holds. If there are only holds,
    /// lets `since` be the local epoch of the oldest hold.
    fn nothing_waits(&self) -> bool {
        if self.words.borrow().is_empty() {
            self.since.set(self.held.borrow().iter().copied().min());
        }
        self.since.get().is_none()
    }

    /// Returns whether freed objects wait whose bits can be set now.
    fn any_waits(&self) -> bool {
        !self.words.borrow().is_empty() && !self.setting_free.get()
    }

    /// Returns whether free bits should be set now, because many freed objects wait, or large ones, or for long.
    #[inline]
    fn is_due(&self, local_epoch: u64) -> bool {
        let is_old = |since| local_epoch >= since + OLD_EPOCHS;
        let count = self.words.borrow().len();
        let many = count >= SET_FREE_TOGETHER || self.bytes.get() >= SET_FREE_BYTES;
        (many || self.since.get().is_some_and(is_old)) && self.any_waits()
    }

    /// Takes the first `count` freed objects out of the list, and replaces `free_bits` by their bits and those of the
    /// `copies`.
    fn take(&self, count: usize, copies: Vec<Address>, free_bits: &mut Vec<FreeBits>) {
        let mut words = self.words.borrow_mut();
        let objects = words[..count].iter();
        let objects = objects.filter_map(|word| word.object());
        if copies.is_empty() {
            by_word(objects, free_bits)
        } else {
            by_word(objects.chain(copies), free_bits)
        }
        words.drain(..count);
        self.bytes.set(words.iter().map(|word| bytes_of(*word)).sum());
        drop(words);
        self.nothing_waits();
    }

    /// Leaves all freed and held objects to a comparison with the index. Returns the number of the freed ones.
    fn leave_to_comparison(&self) -> usize {
        let left = self.words.borrow_mut().drain(..).count();
        self.bytes.set(0);
        self.held.borrow_mut().clear();
        self.times_left.set(self.times_left.get() + 1);
        self.nothing_waits();
        left
    }
}

/// Returns the bytes of the object that a word protected. A withdrawal, which is rare, does not tell them.
fn bytes_of(word: Slot) -> u64 {
    word.class().map_or(UNIT_BYTES, |class| class.bytes())
}

/// Sets the free bits of all freed objects.
pub(in crate::store) async fn set_free<F: Fabric, H: Host>(store: &Store<F, H>) {
    if store.memory.freed.any_waits() {
        // Boxed, because this case is rare: the futures of operations stay small.
        Box::pin(set_all_free(store)).await;
    }
}

/// Returns a future that sets the free bits of the freed objects, if that should be done now. It can run beside an
/// operation of the session.
#[inline]
pub(in crate::store) fn due_free_bits<F: Fabric, H: Host>(
    store: &Store<F, H>,
) -> Option<Pin<Box<impl Future<Output = ()>>>> {
    let is_due = store.memory.freed.is_due(store.host.local_epoch());
    is_due.then(|| Box::pin(set_all_free(store)))
}

async fn set_all_free<F: Fabric, H: Host>(store: &Store<F, H>) {
    if store.local_epochs.has_half_way() && !removed(Mutant::MarksHalfWay) {
        // Verbs of an operation that was left half-way can still execute. So the objects that it has freed must not
        // count as settled (`Epochs::is_settled`).
        return;
    }
    let freed = &store.memory.freed;
    freed.setting_free.set(true);
    let _ends = FreeBitsGuard(&freed.setting_free);
    // Further objects can be freed while the copies are searched. Their free bits are set in the next call.
    let count = freed.words.borrow().len();
    let keeping = with_copies(&store.view.borrow(), &freed.words.borrow());
    let copies = if keeping.is_empty() { Vec::new() } else { copies_of(store, &keeping).await };
    // Nothing is awaited between this call and the posting of the bits. If the host forbids setting them, the bits of
    // all freed objects must stay as they are, so these objects are left to a comparison.
    if !store.host.may_set_free() {
        store.counters.add_left_to_comparison(freed.leave_to_comparison() as u64);
        return;
    }
    let mut free_bits = freed.free_bits.take();
    freed.take(count, copies, &mut free_bits);
    let mut upkeep = MemoryUpkeep::begin(store);
    upkeep.set_free_bits(&free_bits).await;
    freed.free_bits.replace(free_bits);
    let lost = upkeep.op.pin.traces.has_posted();
    upkeep.finish();
    // If a FAA can still execute, the objects' local epoch stays published until this session is fenced.
    if !lost {
        freed.nothing_waits();
        store.host.publish_freed(freed.since.get());
    }
}

/// Returns the copies of these replaced words. Copies that cannot be found stay allocated until a comparison.
async fn copies_of<F: Fabric, H: Host>(store: &Store<F, H>, words: &[Slot]) -> Vec<Address> {
    let mut op = store.operation();
    let found = find_copies(&mut op, words).await;
    op.finish(OpKind::Reclaim);
    match found {
        Some(found) => found.iter().map(|copy| copy.address()).collect(),
        None => {
            store.counters.add_left_to_comparison(words.len() as u64);
            Vec::new()
        }
    }
}

/// Replaces `free_bits` by the bits of these objects, one entry for each word of the free bitmaps.
pub(super) fn by_word(objects: impl Iterator<Item = Address>, free_bits: &mut Vec<FreeBits>) {
    free_bits.clear();
    free_bits.extend(objects.map(|object| {
        let first = Address::new(object.bytes() / FRAME_ALIGN_BYTES * FRAME_ALIGN_BYTES);
        FreeBits { first, bits: 1 << (object.bytes() / UNIT_BYTES % 64) }
    }));
    free_bits.sort_unstable_by_key(|mark| mark.first);
    free_bits.dedup_by(|mark, sum| {
        let same = mark.first == sum.first;
        if same {
            sum.bits |= mark.bits;
        }
        same
    });
}

/// Notes, when the guard is dropped, that no bits are being set any more, also if the operation is dropped.
struct FreeBitsGuard<'s>(&'s Cell<bool>);

impl Drop for FreeBitsGuard<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}
