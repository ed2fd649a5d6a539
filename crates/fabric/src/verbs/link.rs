//! One session's queue pair to one memory node.
//!
//! A *part* is the share of a batch that is for this node. The part's verbs are cut into *fragments*, one for each
//! request to the NIC. Nearly every verb is one fragment. A verb that is longer than `FRAGMENT_BYTES` has several.
//! So has a verb that starts within a word, because NICs cut messages into packets, counted from the start, and a
//! word must not lie across two packets. Fragments are posted while queue pair and arena have room; the other fragments
//! wait, in order, for completions. So a part has one doorbell and one completion, unless it is large.
//!
//! # Order
//!
//! A NIC executes the verbs of one connection in the order posted, with two exceptions (IBTA vol. 1, 10.8.3.3). A
//! WRITE, CAS or FAA can pass an earlier READ, and a READ that the NIC has to repeat reads later than at first. A WRITE
//! can pass an earlier CAS or FAA. So a verb that could pass an earlier verb of its batch is held back until all posted
//! verbs are complete. That costs a round trip, and operations post their verbs so that it does not happen. (A NIC can
//! do the waiting itself, by `IBV_SEND_FENCE`. That takes as long, and Linux' software RoCE hangs when a packet is lost
//! meanwhile.)
//!
//! # Missing results
//!
//! If packets are lost, Linux' software RoCE can complete a CAS or FAA without its result. It acknowledges a repeated
//! WRITE by the number of the last request that was executed (`duplicate_request` in `rxe_resp.c`). If that request is
//! an atomic, the atomic's sender treats the atomic as completed (`check_ack` in `rxe_comp.c`; seen with Linux 6.1).
//! The arena then still has the bytes of an earlier verb. So over a software device, a *filler*, a random word, is put
//! where the last word of a verb's result will be, before the verb is posted. If the filler is still there after the
//! completion, the link fails.

use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Read, Write};

use fusee_core::layout::POOL_HEADER_BYTES;
use fusee_core::verbs::{MnId, Verb, VerbBatch, VerbError, VerbOp};
use fusee_tls::MaybeTlsStream;
use mio::event::Event;
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};

use super::device;
use super::requester::{ARENA_BYTES, NicCompletion, NicCounts, NicRequest, Requester};
use super::wire::{FENCED, PROTOCOL, VerbsHello, VerbsHelloStatus, VerbsWelcome};
use crate::driver::{self, BatchSlots, LinkError, LinkTarget, is_for};
use crate::error::{AttachCause, RdmaError};
use crate::hello;

/// The length in bytes of the longest fragment. The arena holds several, so that one is copied while others travel.
const FRAGMENT_BYTES: u32 = ARENA_BYTES / 4;
/// The alignment in bytes of fragments in the arena: that of cache lines.
const ALIGN: u64 = 64;

/// The share of a batch for this node, as long as it is not posted in full.
#[derive(Clone, Copy, Debug)]
struct VerbsBatchPart {
    slot: usize,
    /// The next verb to post. `done_bytes` is the number of its bytes that are already posted.
    verb: usize,
    done_bytes: u32,
    /// The number of the part's verbs of which some fragment is not posted yet.
    left: usize,
    /// Whether a READ was posted after the last wait. `has_atomic` is the same for a CAS or FAA.
    has_read: bool,
    has_atomic: bool,
}

impl VerbsBatchPart {
    /// Returns whether the NIC could execute this verb before a posted one.
    fn may_pass(&self, op: &VerbOp) -> bool {
        match op {
            VerbOp::Read { .. } => false,
            VerbOp::Write { .. } => self.has_read || self.has_atomic,
            VerbOp::Cas { .. } | VerbOp::Faa { .. } => self.has_read,
        }
    }
}

/// A fragment that was handed to the NIC.
#[derive(Clone, Copy, Debug)]
struct Fragment {
    slot: usize,
    verb: usize,
    /// The position in the verb of the fragment's first byte.
    from: u32,
    len: u32,
    /// The offset in the arena at which the fragment's bytes are.
    place: u32,
    /// The ring position up to which the arena is free when the fragment is complete.
    ring_end: u64,
    ends_verb: bool,
    ends_part: bool,
}

/// The range of the arena that is in use, as a ring. Positions only grow until the ring is empty; modulo the
/// arena's length they are offsets.
#[derive(Clone, Copy, Debug, Default)]
struct ArenaRing {
    head: u64,
    tail: u64,
}

impl ArenaRing {
    /// Takes `len` contiguous bytes of the arena. Returns their offset; `None` if there is no room.
    fn take(&mut self, len: u32) -> Option<u32> {
        let size = u64::from(ARENA_BYTES);
        let len = u64::from(len);
        if self.head == self.tail {
            // An empty ring restarts at the beginning of the arena, whose cache lines are warm.
            (self.head, self.tail) = (0, 0);
        }
        let skipped = if self.head % size + len > size { size - self.head % size } else { 0 };
        let start = self.head + skipped;
        let end = (start + len).next_multiple_of(ALIGN);
        if end - self.tail > size {
            return None;
        }
        self.head = end;
        Some((start % size) as u32)
    }
}

/// A session's queue pair to one memory node, with the verbs that are waiting and in flight.
#[derive(Debug)]
pub struct VerbsLink {
    node: MnId,
    pool_bytes: u64,
    /// The TCP connection of the hello. When it ends, so does the session with this node.
    lease: mio::net::TcpStream,
    requester: Requester,
    fragment_bytes: u32,
    waiting: VecDeque<VerbsBatchPart>,
    posted: VecDeque<Fragment>,
    /// The id of the fragment at the front of `posted`.
    first_id: u64,
    ring: ArenaRing,
    /// The word that marks results that have not arrived; `None` over devices that always deliver results.
    filler: Option<u64>,
}

impl From<RdmaError> for LinkError {
    fn from(error: RdmaError) -> LinkError {
        LinkError::Broken(error.into())
    }
}

/// Returns the length of the longest fragment of a verb from byte `from` on. A fragment that starts within a word ends
/// with that word. A fragment that starts in the pool's header ends in the header, which has an RDMA key of its own.
fn fragment_bytes(verb: &Verb, from: u32, most: u32) -> u32 {
    let start = verb.offset + u64::from(from);
    let into_word = start % 8;
    let most = if into_word == 0 { most } else { 8 - into_word as u32 };
    let most =
        if start < POOL_HEADER_BYTES { most.min((POOL_HEADER_BYTES - start) as u32) } else { most };
    most.min(verb.bytes() - from)
}

impl VerbsLink {
    /// Posts as many fragments as there is room for, with one doorbell.
    fn pump(&mut self, slots: &mut BatchSlots) -> Result<(), LinkError> {
        let node = self.node;
        let most = self.fragment_bytes;
        let requester = &mut self.requester;
        while let Some(part) = self.waiting.front_mut() {
            if self.posted.len() == requester.depth() {
                break;
            }
            let batch = slots.batch(part.slot);
            let verb = batch.verbs()[part.verb];
            if part.may_pass(&verb.op) {
                // The verbs that this verb could pass are among the posted ones, which complete in order.
                if !self.posted.is_empty() {
                    break;
                }
                (part.has_read, part.has_atomic) = (false, false);
                requester.counts.waits += 1;
            }
            let from = part.done_bytes;
            let len = fragment_bytes(&verb, part.done_bytes, most);
            let Some(place) = self.ring.take(len) else { break };
            if let VerbOp::Write { buf } = verb.op {
                requester.put(place, batch.bytes(buf.part(from, len)));
            }
            if let Some(filler) = self.filler
                && let Some(end) = filler_at(&verb.op, place, len)
            {
                requester.put(end, &filler.to_ne_bytes());
            }
            part.has_read |= verb.is_read();
            part.has_atomic |= verb.is_atomic();
            let id = self.first_id + self.posted.len() as u64;
            let offset = verb.offset + u64::from(from);
            requester.add(&NicRequest { id, op: verb.op, len, place, offset });
            part.done_bytes += len;
            let ends_verb = part.done_bytes == verb.bytes();
            part.left -= usize::from(ends_verb);
            let ends_part = part.left == 0;
            self.posted.push_back(Fragment {
                slot: part.slot,
                verb: part.verb,
                from,
                len,
                place,
                ring_end: self.ring.head,
                ends_verb,
                ends_part,
            });
            if ends_part {
                requester.signal();
                self.waiting.pop_front();
            } else if ends_verb {
                let rest = &batch.verbs()[part.verb + 1..];
                let next = rest.iter().position(|verb| is_for(verb, node)).expect("some are left");
                (part.verb, part.done_bytes) = (part.verb + 1 + next, 0);
            }
        }
        requester.ring().map_err(|number| {
            let error = io::Error::from_raw_os_error(number);
            LinkError::Broken(format!("the network card takes no verbs: {error}").into())
        })
    }

    /// Takes completions, then posts waiting fragments. Returns whether there were completions.
    fn take_completions(&mut self, slots: &mut BatchSlots) -> Result<bool, LinkError> {
        let posted = &mut self.posted;
        let ring = &mut self.ring;
        let first_id = &mut self.first_id;
        let requester = &mut self.requester;
        let mut failure = None;
        let mut has_come = false;
        let mut is_unfetched = false;
        let filler = self.filler;
        requester.poll(|requester, NicCompletion { id, failure: status }| {
            has_come = true;
            // The verbs behind a failed verb were flushed without being executed.
            if is_unfetched || failure.is_some() || status.is_some() {
                failure = failure.or(status);
                return;
            }
            while *first_id <= id
                && let Some(fragment) = posted.pop_front()
            {
                *first_id += 1;
                ring.tail = fragment.ring_end;
                if fragment.is_unfetched(requester, slots, filler) {
                    is_unfetched = true;
                    // The fragment goes back into the list, so that it fails together with all others.
                    posted.push_front(fragment);
                    *first_id -= 1;
                    return;
                }
                fragment.complete(requester, slots);
            }
        })?;
        if is_unfetched {
            let why = "the device has completed a verb without its result: software RoCE does, where packets are lost";
            return Err(LinkError::Broken(why.into()));
        }
        if let Some(status) = failure {
            let why = format!("a verb failed: {}", requester.completions().describe(status));
            // A node that fences destroys the queue pair, and sends the reason over the lease connection.
            let fence = self.end_of_lease().filter(|why| matches!(why, LinkError::Fenced));
            return Err(fence.unwrap_or_else(|| LinkError::Broken(why.into())));
        }
        if !self.waiting.is_empty() {
            self.pump(slots)?;
        }
        Ok(has_come)
    }

    /// Returns why the lease connection has ended; `None` if it has not.
    fn end_of_lease(&mut self) -> Option<LinkError> {
        let mut byte = [0];
        loop {
            match self.lease.read(&mut byte) {
                Ok(1) if byte == [FENCED] => return Some(LinkError::Fenced),
                Ok(_) => return Some(LinkError::Closed),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return None,
                    io::ErrorKind::Interrupted => {}
                    _ => return Some(LinkError::Closed),
                },
            }
        }
    }
}

impl driver::FabricLink for VerbsLink {
    const USER_SPACE: bool = true;
    const LOOKS_THAT_FIND_SOME: u32 = 1;
    /// The module's documentation says which verbs NICs can reorder.
    const WAITS_FOR_READS: bool = true;
    type Counts = NicCounts;

    fn connect(to: &LinkTarget<'_>) -> Result<VerbsLink, AttachCause> {
        let stream = hello::connect(to.address, to.wait, to.goes_on)?;
        let (device, port) = device::choose(Some(stream.local_addr()?.ip()))?;
        let mut requester = Requester::new(&device, &port)?;
        let node = to.key.name();
        let client = to.client;
        let address = requester.address();
        let hello = VerbsHello { node, client, address }.encode();
        let mut stream = MaybeTlsStream::plain(stream);
        let proof = hello::verify_node(&mut stream, &PROTOCOL, to, &hello)?;
        // The hello is sent in a packet of its own, because switches on the wire look for such packets.
        stream.write_all(&proof).map_err(AttachCause::Unreachable)?;
        let welcome = hello::exchange(&mut stream, &hello, &PROTOCOL, to.wait, to.goes_on)?;
        let stream = stream.into_socket();
        let welcome = VerbsWelcome::decode(&welcome)?;
        match welcome.status {
            VerbsHelloStatus::Welcome => {}
            VerbsHelloStatus::Fenced => return Err(AttachCause::Fenced),
            VerbsHelloStatus::Full => return Err(AttachCause::Full),
            VerbsHelloStatus::OtherVersion => return Err(AttachCause::NotAMemoryNode),
            VerbsHelloStatus::Unable => return Err(AttachCause::NotConnectable),
        }
        requester.connect(&welcome)?;
        stream.set_nonblocking(true)?;
        let node = to.node;
        let gid = port.gid.index;
        let name = &port.port.device;
        tracing::debug!(%node, device = name, port = port.port.number, gid, "attached by verbs");
        Ok(VerbsLink {
            node,
            pool_bytes: welcome.pool_bytes,
            lease: mio::net::TcpStream::from_std(stream),
            requester,
            fragment_bytes: FRAGMENT_BYTES.min(port.port.max_message_bytes & !7),
            waiting: VecDeque::new(),
            posted: VecDeque::new(),
            first_id: 0,
            ring: ArenaRing::default(),
            filler: device.is_software.then(|| RandomState::new().build_hasher().finish()),
        })
    }

    /// Source 0 is the lease connection, source 1 the completions.
    fn register(&mut self, registry: &Registry, tokens: [Token; 2]) -> io::Result<()> {
        registry.register(&mut self.lease, tokens[0], Interest::READABLE)?;
        registry.register(&mut SourceFd(&self.requester.fd()), tokens[1], Interest::READABLE)
    }

    /// Returns the counts of the work that was handed to the NIC for this node so far.
    fn counts(&self) -> NicCounts {
        self.requester.counts
    }

    fn node(&self) -> MnId {
        self.node
    }

    fn pool_bytes(&self) -> u64 {
        self.pool_bytes
    }

    fn is_waiting(&self) -> bool {
        !self.posted.is_empty()
    }

    /// Returns false, because looks find the completions that make room; no event is needed.
    fn is_blocked(&self) -> bool {
        false
    }

    fn first_result(&self, verb: &Verb) -> Result<(), VerbError> {
        // The NIC checks the verb too, but a verb that fails there ends the connection.
        verb.check(self.pool_bytes)?;
        // A verb without bytes is done before it is posted.
        if verb.bytes() == 0 { Ok(()) } else { Err(VerbError::NotExecuted) }
    }

    fn queue(&mut self, slot: usize, batch: &VerbBatch) -> usize {
        let mut verbs = batch.verbs().iter().enumerate();
        let ours = |(_, verb): &(usize, &Verb)| is_for(verb, self.node);
        let Some((verb, _)) = verbs.find(ours) else { return 0 };
        let left = 1 + verbs.filter(ours).count();
        let done_bytes = 0;
        let has_read = false;
        let has_atomic = false;
        self.waiting.push_back(VerbsBatchPart {
            slot,
            verb,
            done_bytes,
            left,
            has_read,
            has_atomic,
        });
        1
    }

    fn post(&mut self, slots: &mut BatchSlots) -> Result<(), LinkError> {
        if self.waiting.is_empty() { Ok(()) } else { self.pump(slots) }
    }

    fn take_event(&mut self, source: usize, _: &Event) -> Result<(), LinkError> {
        if source == 0 {
            return self.end_of_lease().map_or(Ok(()), Err);
        }
        self.requester.completions().take_events();
        Ok(())
    }

    /// Looks for completions. Events only wake the thread.
    fn receive(&mut self, slots: &mut BatchSlots) -> Result<bool, LinkError> {
        self.look(slots)
    }

    fn look(&mut self, slots: &mut BatchSlots) -> Result<bool, LinkError> {
        if self.is_waiting() { self.take_completions(slots) } else { Ok(false) }
    }

    fn arm(&mut self, slots: &mut BatchSlots) -> Result<bool, LinkError> {
        if self.is_waiting() {
            self.requester.completions().arm()?;
        }
        self.look(slots)
    }

    /// Drops the queue pair first, so that the NIC has stopped before the memory is freed.
    fn end(self, unanswered: impl FnMut(usize)) {
        let VerbsLink { requester, lease, posted, waiting, .. } = self;
        drop(requester);
        drop(lease.shutdown(std::net::Shutdown::Both));
        let posted = posted.into_iter().filter(|f| f.ends_part).map(|f| f.slot);
        posted.chain(waiting.into_iter().map(|part| part.slot)).for_each(unanswered);
    }

    fn abandon_after_fork(&mut self, unanswered: impl FnMut(usize)) {
        let posted = self.posted.drain(..).filter(|f| f.ends_part).map(|f| f.slot);
        posted.chain(self.waiting.drain(..).map(|part| part.slot)).for_each(unanswered);
    }
}

/// Returns the offset in the arena of the filler (a random word that the result overwrites) for a fragment, if the
/// fragment fetches at least a word.
fn filler_at(op: &VerbOp, place: u32, len: u32) -> Option<u32> {
    match op {
        VerbOp::Write { .. } => None,
        VerbOp::Read { .. } | VerbOp::Cas { .. } | VerbOp::Faa { .. } => {
            Some(place + len.checked_sub(8)?)
        }
    }
}

impl Fragment {
    /// Returns whether a fragment's result has not arrived, because the filler (a random word) is still at the place of
    /// the result. If the batch's future was dropped, the result does not matter, and the answer is false.
    fn is_unfetched(
        &self,
        requester: &Requester,
        slots: &mut BatchSlots,
        filler: Option<u64>,
    ) -> bool {
        let Some((filler, batch)) = filler.zip(slots.awaited_batch(self.slot)) else {
            return false;
        };
        let end = filler_at(&batch.verbs()[self.verb].op, self.place, self.len);
        end.is_some_and(|end| requester.word(end) == filler)
    }

    /// Copies the bytes that the NIC has fetched into the batch. Finishes the verb or part that ends with this
    /// fragment.
    fn complete(&self, requester: &Requester, slots: &mut BatchSlots) {
        if let Some(batch) = slots.awaited_batch(self.slot) {
            let (verbs, memory) = batch.parts_mut();
            let verb = &mut verbs[self.verb];
            match &mut verb.op {
                VerbOp::Read { buf, .. } => {
                    let part = buf.part(self.from, self.len).range();
                    requester.get(self.place, &mut memory[part]);
                }
                VerbOp::Write { .. } => {}
                VerbOp::Cas { found, .. } | VerbOp::Faa { found, .. } => {
                    *found = requester.word(self.place);
                }
            }
            if self.ends_verb {
                verb.result = Ok(());
            }
        }
        if self.ends_part {
            slots.finish_part(self.slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_never_gives_out_what_is_in_use() {
        let mut ring = ArenaRing::default();
        let mut used = VecDeque::new();
        let mut random = 1u64;
        for _ in 0..200_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let len = ((random >> 33) as u32 % (FRAGMENT_BYTES >> (random % 12))).max(1);
            match ring.take(len) {
                Some(place) => {
                    assert!(place + len <= ARENA_BYTES && place % ALIGN as u32 == 0);
                    let apart =
                        |(at, n, _): &(u32, u32, u64)| *at >= place + len || place >= at + n;
                    assert!(used.iter().all(apart), "{place}+{len} is in use");
                    used.push_back((place, len, ring.head));
                }
                None => {
                    let (.., end) = used.pop_front().expect("an empty ring has room");
                    ring.tail = end;
                }
            }
        }
    }

    #[test]
    fn verbs_are_cut_at_words() {
        let verb = |offset, len| {
            let buf = fusee_core::verbs::Span { start: 0, len };
            let op = VerbOp::Read { buf, steered: false };
            Verb { node: MnId(0), offset, op, result: Ok(()) }
        };
        for (offset, len, expected) in [
            (0, 100, vec![64, 36]),
            (8, 64, vec![64]),
            (3, 2, vec![2]),
            (3, 100, vec![5, 64, 31]),
            (7, 1, vec![1]),
            (u64::MAX - 7, 8, vec![8]),
        ] {
            let verb = verb(offset, len);
            let mut cut = Vec::new();
            while cut.iter().sum::<u32>() < len {
                cut.push(fragment_bytes(&verb, cut.iter().sum(), 64));
            }
            assert_eq!(cut, expected, "{len} bytes at {offset}");
        }
    }
}
