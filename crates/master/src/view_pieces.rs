//! Views that are too long for one message, and are sent in pieces ([`view_pieces`]).
//!
//! The last two views that processes asked for stay encoded, so that a process that is fetching one can go on when the
//! next one is in force. This takes twice the memory of an encoded view, however many processes ask.

use std::collections::VecDeque;

use fusee_control::master::MasterReply;
use fusee_control::view_pieces;
use fusee_core::view::View;

/// The number of encoded views that the master keeps.
const KEPT: usize = 2;

/// The encoded views that the master keeps for requests for pieces.
#[derive(Debug, Default)]
pub(crate) struct EncodedViews {
    /// The encoded views with the numbers of the views, the newest view last.
    written: VecDeque<(u64, Vec<u8>)>,
}

impl EncodedViews {
    /// Returns a piece of the view of this number, or the first piece of the newest view if the master does not keep
    /// the view of this number. `None` if there is no view.
    pub fn piece(&mut self, newest: Option<&View>, number: u64, from: u64) -> Option<MasterReply> {
        let newest = newest?;
        // A view with a larger number belongs to another cluster, which was destroyed.
        self.written.retain(|(written, _)| *written <= newest.number);
        if number == newest.number || !self.written.iter().any(|(written, _)| *written == number) {
            return Some(self.of_newest(newest, if number == newest.number { from } else { 0 }));
        }
        let (_, written) = self.written.iter().find(|(written, _)| *written == number)?;
        Some(view_pieces::piece(number, written, from))
    }

    fn of_newest(&mut self, newest: &View, from: u64) -> MasterReply {
        if self.written.back().is_none_or(|(written, _)| *written != newest.number) {
            if self.written.len() == KEPT {
                self.written.pop_front();
            }
            self.written.push_back((newest.number, view_pieces::written(newest)));
        }
        let (number, written) = self.written.back().expect("it has just come");
        view_pieces::piece(*number, written, from)
    }

    /// Forgets all views, because the cluster was destroyed.
    pub fn clear(&mut self) {
        self.written.clear();
    }
}
