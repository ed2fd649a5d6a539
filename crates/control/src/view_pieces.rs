//! Views that are too long for one message.
//!
//! A view grows with the cluster, without a bound. Messages are bounded, so that a peer costs little memory. So instead
//! of a long view an answer contains only its number (a *stub*: a view without content), and the process that asked
//! fetches the view in pieces of [`PIECE_BYTES`], one after the other. The master encodes a view once for all
//! processes. The logic of both ends does not notice: [`MasterClient`](crate::rpc::MasterClient) replaces the stub by
//! the view before its caller sees the answer.
//!
//! If the view changes while a process fetches it, the master continues with the older view as long as it has that.
//! Otherwise the process starts again with the newest view.

// Promise CHG-23

use fusee_core::view::View;
use fusee_core::view::change::ViewChange;
use fusee_core::view::update::ViewUpdate;

use crate::master::{MasterReply, MasterRequest};

/// Number of bytes of each piece except the last one.
pub const PIECE_BYTES: usize = 256 << 10;
/// Length of the longest view that is accepted, in bytes. No real view is longer, because the directory has at most
/// 2^24 entries, and the address space bounds the number of regions.
const MAX_VIEW_BYTES: u64 = 2 << 30;
/// A view with at most this many directory entries, subtables and regions together always fits into one message.
const FEW_PARTS: usize = 1 << 14;

/// Returns whether a view is so long that it is sent in pieces.
pub fn is_long(view: &View) -> bool {
    view.directory.len() + view.subtables.len() + view.regions.len() > FEW_PARTS
}

fn is_long_update(update: &ViewUpdate) -> bool {
    match update {
        ViewUpdate::Whole(view) => is_long(view),
        ViewUpdate::Difference(difference) => {
            let runs = difference.runs.len();
            let change = difference.change.as_ref().map_or(0, parts_of);
            runs + difference.subtables.len() + difference.regions.len() + change > FEW_PARTS
        }
    }
}

/// Returns the number of parts of a change. After the loss of a node, a change can concern every subtable.
fn parts_of(change: &ViewChange) -> usize {
    change.subtables.len() + change.regions.len() + change.lost_pairs.len()
}

/// Returns a stub: the view's number without its content. It cannot be mistaken for a real view, because each real view
/// has a directory.
fn stub(number: u64, of: &View) -> View {
    View {
        number,
        cluster: of.cluster,
        hash_key: of.hash_key,
        geometry: of.geometry,
        members: Vec::new(),
        regions: Vec::new(),
        directory: Vec::new(),
        subtables: Vec::new(),
        change: None,
    }
}

/// Returns the view that an answer contains.
fn view_of(reply: &mut MasterReply) -> Option<&mut View> {
    match reply {
        MasterReply::Opened { view, .. } | MasterReply::View(Some(view)) => Some(view),
        MasterReply::Status(status) => status.view.as_mut(),
        MasterReply::Heartbeat { view: Some(ViewUpdate::Whole(view)), .. } => Some(&mut **view),
        _ => None,
    }
}

/// Replaces the view of an answer by a stub if it is long. `newest` is the current view.
pub fn shorten(reply: &mut MasterReply, newest: Option<&View>) {
    if let (MasterReply::Heartbeat { view: Some(update), .. }, Some(newest)) = (&mut *reply, newest)
        && is_long_update(update)
    {
        *update = stub(update.number(), newest).into();
    } else if let Some(view) = view_of(reply).filter(|view| is_long(view)) {
        *view = stub(view.number, view);
    }
}

/// Returns the stub that an answer contains in place of a view.
pub fn stub_of(reply: &mut MasterReply) -> Option<&mut View> {
    view_of(reply).filter(|view| view.directory.is_empty())
}

/// Encodes a view, which is then cut into pieces.
pub fn written(view: &View) -> Vec<u8> {
    postcard::to_stdvec(view).expect("a view can be written to memory")
}

/// Returns the answer to [`MasterRequest::ViewPiece`], from a view that was encoded by [`written`].
pub fn piece(number: u64, written: &[u8], from: u64) -> MasterReply {
    let total = written.len();
    let from = usize::try_from(from).unwrap_or(total).min(total);
    let bytes = written[from..total.min(from + PIECE_BYTES)].to_vec();
    MasterReply::ViewPiece { number, from: from as u64, total: total as u64, bytes }
}

/// A view of which some pieces have arrived. It takes no more memory than these pieces.
#[derive(Debug)]
pub struct ViewAssembler {
    number: u64,
    bytes: Vec<u8>,
    begun_anew: u32,
}

/// Limit of the number of times that a newer view replaces the view that is being fetched.
const MAX_ANEW: u32 = 100;

impl ViewAssembler {
    /// Begins to fetch the view of this number, or a later view.
    pub fn new(number: u64) -> ViewAssembler {
        ViewAssembler { number, bytes: Vec::new(), begun_anew: 0 }
    }

    /// Returns the request for the next piece.
    pub fn request(&self) -> MasterRequest {
        MasterRequest::ViewPiece { number: self.number, from: self.bytes.len() as u64 }
    }

    /// Takes an answer. Returns the view if this was the last piece; the caller has to check that the view is valid.
    pub fn take(&mut self, reply: MasterReply) -> Result<Option<View>, &'static str> {
        let MasterReply::ViewPiece { number, from, total, bytes } = reply else {
            return Err("another answer than a piece of the view");
        };
        if number != self.number {
            if number < self.number || self.begun_anew == MAX_ANEW {
                return Err("the view changes faster than it can be told");
            }
            (self.number, self.begun_anew) = (number, self.begun_anew + 1);
            self.bytes.clear();
        }
        let come = self.bytes.len() as u64 + bytes.len() as u64;
        let is_next = from == self.bytes.len() as u64 && !bytes.is_empty();
        if !is_next || bytes.len() > PIECE_BYTES || come > total || total > MAX_VIEW_BYTES {
            return Err("a piece of the view that does not fit");
        }
        self.bytes.extend_from_slice(&bytes);
        if come < total {
            return Ok(None);
        }
        match postcard::take_from_bytes::<View>(&self.bytes) {
            Ok((view, [])) if view.number == self.number && !view.directory.is_empty() => {
                Ok(Some(view))
            }
            _ => Err("pieces that make no view"),
        }
    }
}

#[cfg(test)]
mod tests {
    use fusee_core::race::HashKey;
    use fusee_core::verbs::{ClusterId, MnId};
    use fusee_core::view::change::ChangeStage;
    use fusee_core::view::{Geometry, PoolPlace, Subtable};

    use super::*;
    use crate::master::ClusterEpochs;

    /// Returns a view with this many directory entries.
    fn view(number: u64, entries: u32) -> View {
        let subtable =
            |i: u64| Subtable::new(3, vec![PoolPlace { node: MnId(0), offset: i << 16 }]);
        View {
            number,
            cluster: ClusterId::from_word(1).unwrap(),
            hash_key: HashKey::new([7; 16]),
            geometry: Geometry::default(),
            members: Vec::new(),
            regions: Vec::new(),
            directory: (0..entries).collect(),
            subtables: (0..100).map(subtable).collect(),
            change: None,
        }
    }

    /// Fetches a view of this number and encoding from a master, piece by piece. Returns the view, and the number of
    /// pieces.
    fn assemble(assembly: &mut ViewAssembler, number: u64, written: &[u8]) -> (View, usize) {
        for pieces in 1.. {
            let MasterRequest::ViewPiece { number: asked, from } = assembly.request() else {
                panic!()
            };
            let from = if asked == number { from } else { 0 };
            if let Some(view) = assembly.take(piece(number, written, from)).unwrap() {
                return (view, pieces);
            }
        }
        unreachable!("it has an end")
    }

    #[test]
    fn a_view_comes_in_pieces_as_it_was() {
        for entries in [1, 70_000, 300_000] {
            let view = view(7, entries);
            let written = written(&view);
            let (come, pieces) = assemble(&mut ViewAssembler::new(7), 7, &written);
            assert_eq!((&come, pieces), (&view, written.len().div_ceil(PIECE_BYTES)));
        }
    }

    #[test]
    fn a_newer_view_takes_the_place_of_one_that_is_gone() {
        let old = view(7, 300_000);
        let new = view(9, 300_001);
        let mut assembly = ViewAssembler::new(7);
        assert_eq!(assembly.take(piece(7, &written(&old), 0)), Ok(None));
        let (come, _) = assemble(&mut assembly, 9, &written(&new));
        assert_eq!(come, new);
        // The number of replacements is limited, and an older view never replaces a newer one.
        let mut assembly = ViewAssembler::new(7);
        let written = written(&new);
        let newer = |number| piece(number, &written, 0);
        assert!((8..8 + u64::from(MAX_ANEW)).all(|n| assembly.take(newer(n)) == Ok(None)));
        assert!(assembly.take(newer(1000)).is_err());
        assert!(ViewAssembler::new(7).take(newer(6)).is_err());
    }

    #[test]
    fn pieces_that_do_not_fit_are_refused_and_cost_nothing() {
        let written = written(&view(7, 300_000));
        let refused = |change: &dyn Fn(&mut u64, &mut u64, &mut Vec<u8>)| {
            let MasterReply::ViewPiece { number, mut from, mut total, mut bytes } =
                piece(7, &written, 0)
            else {
                panic!()
            };
            change(&mut from, &mut total, &mut bytes);
            let mut assembly = ViewAssembler::new(7);
            let taken = assembly.take(MasterReply::ViewPiece { number, from, total, bytes });
            assert!(taken.is_err() && assembly.bytes.capacity() == 0, "{taken:?}");
        };
        refused(&|from, _, _| *from = 1);
        refused(&|_, total, _| *total = 10);
        refused(&|_, total, _| *total = u64::MAX);
        refused(&|_, _, bytes| bytes.clear());
        refused(&|_, _, bytes| bytes.push(0));
        assert!(ViewAssembler::new(7).take(MasterReply::Done).is_err());
        // All pieces have arrived, but together they are a view of another number, a stub, or no view.
        let whole = |number, view: &View| {
            ViewAssembler::new(number).take(piece(number, &super::written(view), 0))
        };
        assert!(whole(7, &view(7, 4)).is_ok());
        assert!(whole(8, &view(7, 4)).is_err() && whole(7, &stub(7, &view(7, 4))).is_err());
        let bytes = vec![0xff; 100];
        assert!(
            ViewAssembler::new(7)
                .take(MasterReply::ViewPiece { number: 7, from: 0, total: 100, bytes })
                .is_err()
        );
    }

    #[test]
    fn only_long_views_are_left_out_of_answers() {
        let heartbeat = |view: ViewUpdate| MasterReply::Heartbeat {
            view: Some(view),
            expelled: Vec::new(),
            epochs: ClusterEpochs::default(),
            mark: 0,
            short: 0,
            spared: None,
            lease_ms: 1_000,
            behind_ms: 0,
        };
        let short = view(7, 64);
        let long = view(7, 1 << 16);
        for (view, is_left_out) in [(short, false), (long, true)] {
            let mut replies =
                [MasterReply::View(Some(view.clone())), heartbeat(view.clone().into())];
            for reply in &mut replies {
                let before = reply.clone();
                shorten(reply, Some(&view));
                assert_eq!(*reply != before, is_left_out);
                let stub = stub_of(reply).map(|stub| (stub.number, stub.cluster));
                assert_eq!(stub, is_left_out.then_some((7, view.cluster)));
            }
        }
        // The parts of a view change count towards the length of a view, too.
        for (lost, is_left_out) in [(64, false), (FEW_PARTS as u32 + 1, true)] {
            let change = ViewChange {
                stage: ChangeStage::Frozen,
                data_lost: true,
                lost: 1,
                subtables: Vec::new(),
                regions: Vec::new(),
                lost_pairs: (0..lost).collect(),
                new_regions: 0,
            };
            let before = view(7, 1 << 16);
            let frozen = View { number: 8, change: Some(change), ..before.clone() };
            let update = ViewUpdate::to(&frozen, Some(&before));
            assert!(matches!(update, ViewUpdate::Difference(_)));
            let mut reply = heartbeat(update);
            shorten(&mut reply, Some(&frozen));
            assert_eq!(stub_of(&mut reply).is_some(), is_left_out);
        }
        let mut none = MasterReply::View(None);
        shorten(&mut none, None);
        assert_eq!(stub_of(&mut none), None);
        assert_eq!(none, MasterReply::View(None));
    }
}
