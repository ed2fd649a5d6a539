//! Since when the operations of a session act, and how one stops and goes on.
//!
//! An operation *acts* from the moment at which it may post verbs until it will post none any more,
//! and none that it has posted can still execute. A moment stands for a view and an epoch, of which
//! every operation begins with the newest. The session tells its surroundings the oldest moment that
//! counts (`Epochs::tell`): whoever changes the view waits for it ([`change`](crate::change)), and so
//! does whoever uses an object again that was freed ([`reclaim`](super::reclaim)). So an operation
//!
//! * begins at the newest moment: it tells first, and looks for a newer one after that;
//! * does not act while it waits to begin, e.g. for the end of a change;
//! * that was dropped or failed after its first CAS acts for ever: nobody knows what is still on its
//!   way, so that this session has to be shut out before the view changes.

use alloc::rc::Rc;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};

use super::Store;
use crate::host::{Acting, Host};
use crate::mutant::{Mutant, removed};
use crate::verbs::Fabric;
use crate::view::View;

/// A view as the operations of a session share it: every one of them holds it, and counts to itself.
pub(super) type ViewRef = Rc<Arc<View>>;

/// How many operations of a session act since when.
#[derive(Debug, Default)]
pub(super) struct Moments {
    /// The moment, and the number of the operations; the oldest first. Seldom more than one entry.
    acting: RefCell<Vec<(u64, usize)>>,
    stopped: Cell<usize>,
}

impl Moments {
    fn oldest(&self) -> Option<u64> {
        self.acting.borrow().first().map(|(moment, _)| *moment)
    }

    /// Returns whether the oldest moment changed.
    fn begin(&self, moment: u64) -> bool {
        let mut acting = self.acting.borrow_mut();
        match acting.last_mut() {
            Some((newest, count)) if *newest == moment => {
                *count += 1;
                false
            }
            // Moments never go back, and operations begin at the newest.
            _ => {
                acting.push((moment, 1));
                acting.len() == 1
            }
        }
    }

    /// Returns whether the oldest moment changed.
    fn end(&self, moment: u64) -> bool {
        let mut acting = self.acting.borrow_mut();
        let at = acting.iter().position(|(m, _)| *m == moment).expect("it has begun");
        acting[at].1 -= 1;
        if acting[at].1 > 0 {
            return false;
        }
        if acting.len() == 1 {
            acting.clear();
        } else {
            acting.remove(at);
        }
        at == 0
    }
}

impl<F: Fabric, H: Host> Store<F, H> {
    fn tell(&self) {
        let (oldest, stopped) = (self.moments.oldest(), self.moments.stopped.get());
        self.host.tell(Acting { oldest, stopped });
    }

    /// The newest view that has come.
    pub(super) fn newest_view(&self) -> ViewRef {
        self.follow_view();
        self.view.borrow().clone()
    }

    /// Takes the newest view that has come.
    pub(super) fn follow_view(&self) {
        let known = self.view.borrow().number;
        if let Some(newer) = self.host.newer_view(known) {
            *self.view.borrow_mut() = Rc::new(newer);
        }
    }

    /// Begins to act at the newest moment, which is returned with its view, or a newer one.
    pub(super) fn begin(&self) -> (ViewRef, u64) {
        loop {
            let moment = self.host.moment();
            let view = self.newest_view();
            let told = self.moments.begin(moment);
            if told {
                self.tell();
            }
            self.host.began(moment);
            // What was told stands before this look: either the newer moment is seen here, or
            // whoever made it sees that this operation acts since an older one.
            if self.host.moment() == moment {
                return (view, moment);
            }
            self.end(moment);
        }
    }

    /// Ends to act since this moment.
    pub(super) fn end(&self, moment: u64) {
        self.host.ended(moment);
        if self.moments.end(moment) {
            self.tell();
        }
    }
}

/// That an operation acts, and whether it has left traces.
pub(super) struct Acts<'s, F: Fabric, H: Host> {
    store: &'s Store<F, H>,
    /// Since when it acts.
    moment: Option<u64>,
    /// Whether this attempt has posted a CAS: from then on a failure may leave work behind that
    /// recovery can still finish.
    pub posted: bool,
    /// Whether it was stopped, and has not found out what became of its write.
    stopped: bool,
}

impl<'s, F: Fabric, H: Host> Acts<'s, F, H> {
    /// An operation begins.
    pub fn new(store: &'s Store<F, H>) -> (Acts<'s, F, H>, ViewRef) {
        let (view, moment) = store.begin();
        let acts = Acts { store, moment: Some(moment), posted: false, stopped: false };
        (acts, view)
    }

    /// Whether it acts.
    pub fn is_acting(&self) -> bool {
        self.moment.is_some()
    }

    /// Since when, if it does.
    pub fn since(&self) -> Option<u64> {
        self.moment
    }

    /// It posts nothing any more, until it acts again, and nothing is on its way.
    pub fn pause(&mut self) {
        if let Some(moment) = self.moment.take() {
            self.store.end(moment);
        }
    }

    /// It acts by the newest view from now on.
    pub fn resume(&mut self) -> ViewRef {
        let before = self.moment.take();
        let (view, moment) = self.store.begin();
        self.moment = Some(moment);
        if let Some(before) = before {
            self.store.end(before);
        }
        view
    }

    /// It pauses, and its write is yet to be resolved.
    pub fn suspend(&mut self) {
        if !self.stopped && !removed(Mutant::StoppedIsForgotten) {
            self.stopped = true;
            let stopped = &self.store.moments.stopped;
            stopped.set(stopped.get() + 1);
        }
        if let Some(moment) = self.moment.take() {
            self.store.host.ended(moment);
            self.store.moments.end(moment);
        }
        self.store.tell();
    }

    /// It is resolved.
    pub fn resolved(&mut self) {
        if core::mem::take(&mut self.stopped) {
            let stopped = &self.store.moments.stopped;
            stopped.set(stopped.get() - 1);
            self.store.tell();
        }
        self.posted = false;
    }
}

impl<F: Fabric, H: Host> Drop for Acts<'_, F, H> {
    fn drop(&mut self) {
        if self.posted {
            self.store.half_way.set(true);
            return;
        }
        self.resolved();
        self.pause();
    }
}
