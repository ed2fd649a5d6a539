//! The numbers of a session's requests to memory nodes ([`NodeRequest::InTurn`]), and the blocks that are being
//! given back.
//!
//! [`NodeRequest::InTurn`]: fusee_control::node::NodeRequest::InTurn

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use fusee_control::node::BlockId;

/// The serial numbers of a session's requests to memory nodes, and which of them are running.
#[derive(Debug, Default)]
pub(super) struct RequestNumbers {
    last: Cell<u64>,
    running: RefCell<BTreeSet<u64>>,
}

/// A running request. The value is dropped when the request is answered or given up.
pub(super) struct NumberedRequest<'t> {
    turns: &'t RequestNumbers,
    pub number: u64,
    /// A bound of request numbers: all of the session's requests with smaller numbers have ended.
    pub ended: u64,
}

impl RequestNumbers {
    /// Begins a request, and gives it the next number.
    pub fn begin(&self) -> NumberedRequest<'_> {
        let number = self.last.get() + 1;
        self.last.set(number);
        let mut running = self.running.borrow_mut();
        running.insert(number);
        let ended = *running.first().expect("this one");
        NumberedRequest { turns: self, number, ended }
    }
}

impl Drop for NumberedRequest<'_> {
    fn drop(&mut self) {
        self.turns.running.borrow_mut().remove(&self.number);
    }
}

/// The running return of a block. If it is dropped before all nodes have acknowledged the return, the block tables
/// possibly still name the session.
pub(super) struct BlockReturn<'r> {
    returning: &'r RefCell<BTreeSet<BlockId>>,
    missed: &'r Cell<bool>,
    block: BlockId,
    is_done: bool,
}

impl BlockReturn<'_> {
    pub fn begin<'r>(
        returning: &'r RefCell<BTreeSet<BlockId>>,
        missed: &'r Cell<bool>,
        block: BlockId,
    ) -> BlockReturn<'r> {
        returning.borrow_mut().insert(block);
        BlockReturn { returning, missed, block, is_done: false }
    }

    pub fn acknowledged(mut self) {
        self.is_done = true;
    }
}

impl Drop for BlockReturn<'_> {
    fn drop(&mut self) {
        self.returning.borrow_mut().remove(&self.block);
        if !self.is_done {
            self.missed.set(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_has_not_ended() {
        let turns = RequestNumbers::default();
        let first = turns.begin();
        let second = turns.begin();
        assert_eq!((first.number, first.ended, second.number, second.ended), (1, 1, 2, 1));
        drop(second);
        assert_eq!(turns.begin().ended, 1, "the first one runs still");
        drop(first);
        let later = turns.begin();
        assert_eq!((later.number, later.ended), (4, 4));
    }
}
