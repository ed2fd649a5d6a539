//! The clients (sessions) that have ended: a memory node fenced them, or a master reported them as ended.
//!
//! Ids of clients are given out in ascending order and never again. So a memory node remembers only which clients live
//! among the ids below a bound ([`LiveClients`]), and which clients were fenced above the bound. The memory for both is
//! bounded by the number of sessions that live, not by the number that ever lived, as long as no more sessions live
//! than one [`LiveClients`] can name.
//!
//! A client that has ended remains so: a [`LiveClients`] that arrives late or twice changes nothing.

// Promise FAB-29: Ended sessions stay ended; remembering them takes bounded memory.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::mutant::{Mutant, removed};
use crate::verbs::ClientId;

/// The living clients among the ids below a bound. All other clients below the bound have ended: they ended in order,
/// or were fenced and recovered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveClients {
    /// The bound of the list: the first client id that the list does not cover.
    pub below: ClientId,
    /// The clients below the bound that live, in ascending order; at most [`LiveClients::MAX_CLIENTS`].
    pub clients: Vec<ClientId>,
}

impl LiveClients {
    /// The largest number of clients that a list can name.
    pub const MAX_CLIENTS: usize = 8192;

    /// Returns the list of the clients that live: `clients`, in ascending order. If there are too many, the list covers
    /// only the smaller ids. Client ids from `unused` on have not been assigned.
    pub fn of(clients: impl IntoIterator<Item = ClientId>, unused: ClientId) -> LiveClients {
        let mut clients: Vec<ClientId> =
            clients.into_iter().take(LiveClients::MAX_CLIENTS + 1).collect();
        let rest = clients.split_off(clients.len().min(LiveClients::MAX_CLIENTS));
        LiveClients { below: rest.first().map_or(unused, |first| unused.min(*first)), clients }
    }

    /// Returns whether the list is well-formed: the clients are in order, below the bound, and not too many.
    pub fn is_good(&self) -> bool {
        self.clients.len() <= LiveClients::MAX_CLIENTS
            && self.clients.is_sorted_by(|a, b| a < b)
            && self.clients.last().is_none_or(|last| *last < self.below)
    }
}

/// The clients that have ended, as far as a memory node knows.
#[derive(Clone, Debug, Default)]
pub struct EndedClients {
    /// The bound: below this id, all clients except those in `living` have ended.
    below: u32,
    living: BTreeSet<ClientId>,
    /// Fenced clients that are not recovered yet, or whose ids are not below the bound.
    fenced: BTreeSet<ClientId>,
}

impl EndedClients {
    /// Returns a record in which no client has ended.
    pub const fn new() -> EndedClients {
        EndedClients { below: 0, living: BTreeSet::new(), fenced: BTreeSet::new() }
    }

    /// Fences a client for good. Returns whether the client was not fenced before.
    pub fn fence(&mut self, client: ClientId) -> bool {
        self.fenced.insert(client)
    }

    /// Returns whether a client was fenced and, by the master's latest report, is not recovered yet.
    pub fn is_fenced(&self, client: ClientId) -> bool {
        self.fenced.contains(&client)
    }

    /// Returns whether a client has ended, because it was fenced or because a master's report says so.
    pub fn has_ended(&self, client: ClientId) -> bool {
        let lives = self.living.contains(&client) && !removed(Mutant::LivingAreOver);
        let has_ended = client.0 < self.below && !lives && client != ClientId::NOBODY;
        has_ended || self.fenced.contains(&client)
    }

    /// Records a master's report, unless an earlier report had a larger bound.
    pub fn learn(&mut self, said: &LiveClients) {
        if said.below.0 < self.below {
            return;
        }
        let living = said.clients.iter().copied().filter(|client| {
            // A fenced client stays fenced, although the master's report possibly still lists it as living.
            !self.has_ended(*client) || self.is_fenced(*client)
        });
        self.living = living.collect();
        self.below = said.below.0;
        let below = self.below;
        let living = &self.living;
        self.fenced.retain(|client| client.0 >= below || living.contains(client));
    }

    /// Returns the number of clients that the record lists by their ids.
    pub fn remembered(&self) -> usize {
        self.living.len() + self.fenced.len()
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    fn ids(of: impl IntoIterator<Item = u32>) -> Vec<ClientId> {
        of.into_iter().map(ClientId).collect()
    }

    #[test]
    fn who_is_over_stays_so_whatever_comes_late() {
        let mut over = EndedClients::new();
        assert!(over.fence(ClientId(3)) && !over.fence(ClientId(3)));
        // Client 3 is being recovered, client 5 lives, and the other clients below 8 ended in order.
        let first = LiveClients::of(ids([3, 5]), ClientId(8));
        over.learn(&first);
        assert!(
            over.is_fenced(ClientId(3))
                && over.has_ended(ClientId(3))
                && !over.has_ended(ClientId(5))
        );
        assert!(
            over.has_ended(ClientId(7))
                && !over.is_fenced(ClientId(7))
                && !over.has_ended(ClientId(8))
        );
        assert!(!over.has_ended(ClientId::NOBODY));
        let second = LiveClients::of(ids([9]), ClientId(12));
        over.learn(&second);
        assert_eq!(over.remembered(), 1);
        // A master's report that arrives late, or comes from a master that knows less, changes nothing.
        for late in [first, LiveClients::of(ids([3, 5, 7, 9]), ClientId(12))] {
            over.learn(&late);
            assert!([3, 5, 7, 11].into_iter().all(|client| over.has_ended(ClientId(client))));
            assert!(!over.has_ended(ClientId(9)) && !over.has_ended(ClientId(12)));
        }
    }

    #[test]
    fn what_is_remembered_is_bounded_by_who_lives() {
        let mut over = EndedClients::new();
        // One client lives long, while many other clients come and are fenced.
        for client in 2..100_000 {
            over.fence(ClientId(client));
            if client % 16 == 0 {
                over.learn(&LiveClients::of(ids([1]), ClientId(client + 1)));
            }
            assert!(over.remembered() <= 17);
        }
        assert!(
            !over.has_ended(ClientId(1))
                && (2..100_000).all(|client| over.has_ended(ClientId(client)))
        );
    }

    #[test]
    fn many_that_live_are_named_as_far_as_there_is_room() {
        let most = LiveClients::MAX_CLIENTS as u32;
        let living = LiveClients::of(ids(1..most + 10), ClientId(most + 10));
        assert!(living.is_good());
        assert_eq!((living.below, living.clients.len()), (ClientId(most + 1), most as usize));
        let mut over = EndedClients::new();
        over.learn(&living);
        assert!((1..most + 20).all(|client| !over.has_ended(ClientId(client))));
        let bad = |below, clients| {
            !LiveClients { below: ClientId(below), clients: ids(clients) }.is_good()
        };
        assert!(bad(5, vec![5]) && bad(5, vec![2, 1]) && bad(9, vec![1, 1]));
        assert!(bad(99_999, (1..most + 2).collect()));
    }
}
