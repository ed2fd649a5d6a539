//! By which views the operations of a session act, and how one stops and goes on.
//!
//! An operation *acts by* a view from the moment it may post verbs by it until it will post none
//! any more, and none that it has posted can still execute. The session tells its surroundings
//! the oldest of these views ([`Host::tell`]); whoever changes the view waits for it
//! ([`change`](crate::change)). So an operation
//!
//! * begins by the newest view: it tells first, and looks for a newer view after that;
//! * acts by none while it waits to begin, e.g. for the end of a change;
//! * that was dropped or failed after its first CAS acts by its view for ever: nobody knows what is
//!   still on its way, so that this session has to be shut out before the view changes.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};

use super::Store;
use crate::host::{Acting, Host};
use crate::mutant::{Mutant, removed};
use crate::verbs::Fabric;
use crate::view::View;

/// How many operations of a session act by which view.
#[derive(Debug, Default)]
pub(super) struct Views {
    /// Number of the view, and of the operations; the oldest first. Seldom more than one entry.
    acting: RefCell<Vec<(u64, usize)>>,
    stopped: Cell<usize>,
}

impl Views {
    fn oldest(&self) -> Option<u64> {
        self.acting.borrow().first().map(|(number, _)| *number)
    }

    /// Returns whether the oldest view changed.
    fn begin(&self, number: u64) -> bool {
        let mut acting = self.acting.borrow_mut();
        match acting.last_mut() {
            Some((newest, count)) if *newest == number => {
                *count += 1;
                false
            }
            // Views never go back, and operations begin by the newest.
            _ => {
                acting.push((number, 1));
                acting.len() == 1
            }
        }
    }

    /// Returns whether the oldest view changed.
    fn end(&self, number: u64) -> bool {
        let mut acting = self.acting.borrow_mut();
        let at = acting.iter().position(|(n, _)| *n == number).expect("it has begun");
        acting[at].1 -= 1;
        if acting[at].1 > 0 {
            return false;
        }
        acting.remove(at);
        at == 0
    }
}

impl<F: Fabric, H: Host> Store<F, H> {
    fn tell(&self) {
        let (oldest, stopped) = (self.views.oldest(), self.views.stopped.get());
        self.host.tell(Acting { oldest, stopped });
    }

    /// The newest view that has come.
    pub(super) fn newest_view(&self) -> Arc<View> {
        let known = self.view.borrow().number;
        if let Some(newer) = self.host.newer_view(known) {
            *self.view.borrow_mut() = newer;
        }
        self.view()
    }

    /// Begins to act by the newest view.
    fn begin(&self) -> Arc<View> {
        loop {
            let view = self.view();
            let told = self.views.begin(view.number);
            if told {
                self.tell();
            }
            // What was told stands before this look: either the newer view is seen here, or
            // whoever published it sees that this operation acts by the older one.
            match self.host.newer_view(view.number) {
                None => return view,
                Some(newer) => {
                    *self.view.borrow_mut() = newer;
                    self.views.end(view.number);
                    if told {
                        self.tell();
                    }
                }
            }
        }
    }

    fn end(&self, number: u64) {
        if self.views.end(number) {
            self.tell();
        }
    }
}

/// That an operation acts, and whether it has left traces.
pub(super) struct Acts<'s, F: Fabric, H: Host> {
    store: &'s Store<F, H>,
    /// The view that it acts by.
    number: Option<u64>,
    /// Whether this attempt has posted a CAS: from then on a failure may leave work behind that
    /// recovery can still finish.
    pub posted: bool,
    /// Whether it was stopped, and has not found out what became of its write.
    stopped: bool,
}

impl<'s, F: Fabric, H: Host> Acts<'s, F, H> {
    /// An operation begins.
    pub fn new(store: &'s Store<F, H>) -> (Acts<'s, F, H>, Arc<View>) {
        let view = store.begin();
        let acts = Acts { store, number: Some(view.number), posted: false, stopped: false };
        (acts, view)
    }

    /// Whether it acts by any view.
    pub fn is_acting(&self) -> bool {
        self.number.is_some()
    }

    /// It posts nothing any more, until it acts again, and nothing is on its way.
    pub fn pause(&mut self) {
        if let Some(number) = self.number.take() {
            self.store.end(number);
        }
    }

    /// It acts by the newest view from now on.
    pub fn resume(&mut self) -> Arc<View> {
        let before = self.number.take();
        let view = self.store.begin();
        self.number = Some(view.number);
        if let Some(before) = before {
            self.store.end(before);
        }
        view
    }

    /// It pauses, and has yet to find out what became of its write.
    pub fn stop(&mut self) {
        if !self.stopped && !removed(Mutant::StoppedIsForgotten) {
            self.stopped = true;
            let stopped = &self.store.views.stopped;
            stopped.set(stopped.get() + 1);
        }
        if let Some(number) = self.number.take() {
            self.store.views.end(number);
        }
        self.store.tell();
    }

    /// It has found out.
    pub fn found_out(&mut self) {
        if core::mem::take(&mut self.stopped) {
            let stopped = &self.store.views.stopped;
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
        self.found_out();
        self.pause();
    }
}
