//! What is told in pieces: views that are too long for one message ([`pieces`]).
//!
//! The last two that somebody asked for stay as they were written, so that who fetches one goes on while the
//! next is in force: twice the length of a view, whoever asks, and however many.

use std::collections::VecDeque;

use fusee_control::master::MasterReply;
use fusee_control::pieces;
use fusee_core::view::View;

/// Views that are kept.
const KEPT: usize = 2;

/// Written views.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    /// By their numbers, the newest last.
    written: VecDeque<(u64, Vec<u8>)>,
}

impl Pieces {
    /// A piece of the view of this number; of the newest one, from its beginning, if that is not there any more.
    /// `None` without a view.
    pub fn piece(&mut self, newest: Option<&View>, number: u64, from: u64) -> Option<MasterReply> {
        let newest = newest?;
        // Of another cluster, which was here before.
        self.written.retain(|(written, _)| *written <= newest.number);
        if number == newest.number || !self.written.iter().any(|(written, _)| *written == number) {
            return Some(self.of_newest(newest, if number == newest.number { from } else { 0 }));
        }
        let (_, written) = self.written.iter().find(|(written, _)| *written == number)?;
        Some(pieces::piece(number, written, from))
    }

    fn of_newest(&mut self, newest: &View, from: u64) -> MasterReply {
        if self.written.back().is_none_or(|(written, _)| *written != newest.number) {
            if self.written.len() == KEPT {
                self.written.pop_front();
            }
            self.written.push_back((newest.number, pieces::written(newest)));
        }
        let (number, written) = self.written.back().expect("it has just come");
        pieces::piece(*number, written, from)
    }

    /// There is no cluster any more.
    pub fn clear(&mut self) {
        self.written.clear();
    }
}
