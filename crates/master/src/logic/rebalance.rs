//! Moves of replicas between members: first all replicas of drained members, then replicas of members that hold more
//! than their share.
//!
//! A member's *load* is the number of its replicas divided by the size of its pool; subtables and regions have separate
//! loads. A replica moves if this reduces the sum of the squares of the loads. So the moves end at some point, and then
//! the replicas of members with equal pools differ by one at most. Primaries do more work than backups: a primary moves
//! if the giving member has at least two more primaries than the receiving one, otherwise a backup. (For a region, the
//! primary is its first place, which hands out the blocks.)
//!
//! Where pools are nearly full, a replica of a drained member sometimes finds room only on members that hold the same
//! item already. Then another member's replica of another item moves there, and the drained member's replica gets its
//! place.
//!
//! Regions of copies do not move: when a drained member holds nothing else, they are given up.
//!
//! One region moves at a time, because no object is placed in a region that is being copied. All subtables that one
//! member receives move together, because writes to them wait. The result of each choice depends only on the arguments.
//!
//! `plan` uses the same rules to even out the first placement.

use std::collections::{BTreeMap, BTreeSet};

use fusee_control::node::Extent;
use fusee_core::data::Region;
use fusee_core::verbs::MnId;
use fusee_core::view::{Member, PoolPlace, View};

use crate::placement::NodeRoom;

/// The limit on the number of subtables that one view change moves.
const MAX_SUBTABLES: usize = 32;

/// Replicas that are to move to one member.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ReplicaMoves {
    pub to: MnId,
    /// The extents that move, each with the place that its replica leaves.
    pub extents: Vec<(Extent, PoolPlace)>,
}

/// The items of one kind, subtables or regions, and the room for more replicas of such items.
pub(crate) struct RebalanceItems<'v> {
    /// The places of the replicas of each item, the primary first.
    items: Vec<&'v [PoolPlace]>,
    /// The numbers of items whose replicas do not move.
    stay: BTreeSet<usize>,
    extent: fn(u32) -> Extent,
    /// The room on members, in items; members without an entry receive nothing.
    rooms: Vec<NodeRoom>,
    most: usize,
}

impl<'v> RebalanceItems<'v> {
    /// Returns the items of a plan, which are subtables or regions.
    pub fn planned(items: &'v [Vec<PoolPlace>], rooms: Vec<NodeRoom>) -> RebalanceItems<'v> {
        let extent = |subtable| Extent::Subtable { subtable };
        let items = items.iter().map(|places| &places[..]).collect();
        RebalanceItems { items, stay: BTreeSet::new(), extent, rooms, most: 1 }
    }

    pub fn subtables(view: &'v View, rooms: Vec<NodeRoom>) -> RebalanceItems<'v> {
        let items = view.subtables.iter().map(|s| s.replicas()).collect();
        let extent = |subtable| Extent::Subtable { subtable };
        RebalanceItems { items, stay: BTreeSet::new(), extent, rooms, most: MAX_SUBTABLES }
    }

    pub fn regions(view: &'v View, rooms: Vec<NodeRoom>) -> RebalanceItems<'v> {
        let items = view.regions.iter().map(Region::places).collect();
        // Regions of copies stay on their node, or are given up when the node leaves.
        let copies = view.regions.iter().enumerate().filter(|(_, r)| r.copies_on().is_some());
        let stay = copies.map(|(number, _)| number).collect();
        let extent = |region| Extent::Region { region, primary: false };
        RebalanceItems { items, stay, extent, rooms, most: 1 }
    }

    /// Returns the next moves: off the `drained` members, or if there are none, off members with more than their share.
    pub fn next(&self, members: &[Member], drained: &[MnId]) -> Option<ReplicaMoves> {
        let mut state = RebalanceState::new(self, members);
        let mut moves: Option<ReplicaMoves> = None;
        while moves.as_ref().is_none_or(|moves| moves.extents.len() < self.most) {
            let only = moves.as_ref().map(|moves| moves.to);
            let next = match drained {
                [] => state.balancing_move(only),
                _ => state.drain_move(drained, only).or_else(|| state.make_way(drained, only)),
            };
            let Some((item, from, to)) = next else { break };
            let place = state.items[item].iter().find(|(node, _)| *node == from);
            let leaving = place.and_then(|(_, place)| *place).expect("it has not moved yet");
            let moves = moves.get_or_insert(ReplicaMoves { to, extents: Vec::new() });
            moves.extents.push(((self.extent)(item as u32), leaving));
            state.apply(item, from, to);
        }
        moves
    }
}

#[derive(Clone, Copy, Default)]
struct MemberLoad {
    replicas: u64,
    primaries: u64,
    pool_bytes: u64,
}

/// The state of the items after the moves that have been chosen so far.
struct RebalanceState {
    /// The members that hold each item, the primary first. A replica that can still move also has its place.
    items: Vec<Vec<(MnId, Option<PoolPlace>)>>,
    loads: BTreeMap<MnId, MemberLoad>,
    rooms: BTreeMap<MnId, u64>,
}

impl RebalanceState {
    fn new(kind: &RebalanceItems<'_>, members: &[Member]) -> RebalanceState {
        let load = |pool_bytes| MemberLoad { pool_bytes, ..MemberLoad::default() };
        let mut loads: BTreeMap<MnId, MemberLoad> =
            members.iter().map(|member| (member.node, load(member.pool_bytes))).collect();
        for places in &kind.items {
            for (at, place) in places.iter().enumerate() {
                let load = loads.entry(place.node).or_default();
                load.replicas += 1;
                load.primaries += u64::from(at == 0);
            }
        }
        let held = |(item, places): (usize, &&[PoolPlace])| {
            let place = |p: &PoolPlace| (p.node, Some(*p).filter(|_| !kind.stay.contains(&item)));
            places.iter().map(place).collect()
        };
        let rooms = kind.rooms.iter().map(|room| (room.node, room.items)).collect();
        RebalanceState { items: kind.items.iter().enumerate().map(held).collect(), loads, rooms }
    }

    fn apply(&mut self, item: usize, from: MnId, to: MnId) {
        let nodes = &mut self.items[item];
        let at = nodes.iter().position(|(node, _)| *node == from).expect("it was chosen");
        nodes[at] = (to, None);
        for (node, sign) in [(from, -1), (to, 1)] {
            let load = self.loads.entry(node).or_default();
            load.replicas = load.replicas.saturating_add_signed(sign);
            load.primaries = load.primaries.saturating_add_signed(if at == 0 { sign } else { 0 });
        }
        self.rooms.entry(to).and_modify(|room| *room -= 1);
    }

    /// Returns the members with room for an item, the one with the least load first.
    fn receivers(&self, only: Option<MnId>) -> Vec<MnId> {
        let fitting = self.rooms.iter().filter(|(_, room)| **room > 0).map(|(node, _)| *node);
        let mut fitting: Vec<MnId> =
            fitting.filter(|node| only.is_none_or(|only| only == *node)).collect();
        fitting.sort_by(|a, b| {
            let a = self.loads[a];
            let b = self.loads[b];
            product(2 * a.replicas + 1, b.pool_bytes)
                .cmp(&product(2 * b.replicas + 1, a.pool_bytes))
        });
        fitting
    }

    /// Returns an item of which a replica can move from `from` to `to`: its primary or a backup as wanted, otherwise
    /// any.
    fn item(&self, from: MnId, to: MnId, primary: bool) -> Option<usize> {
        let mut movable = self.items.iter().enumerate().filter_map(|(item, nodes)| {
            let at = nodes.iter().position(|(node, place)| *node == from && place.is_some())?;
            (!nodes.iter().any(|(node, _)| *node == to)).then_some((item, at == 0))
        });
        let first = movable.next()?;
        let fits = |found: &(usize, bool)| found.1 == primary;
        let wanted = Some(first).filter(fits).or_else(|| movable.find(fits));
        Some(wanted.unwrap_or(first).0)
    }

    /// Returns an item whose replica has to leave a drained member, that member, and the receiver.
    fn drain_move(&self, drained: &[MnId], only: Option<MnId>) -> Option<(usize, MnId, MnId)> {
        let receivers = self.receivers(only);
        drained.iter().find_map(|from| {
            receivers.iter().find_map(|to| Some((self.item(*from, *to, true)?, *from, *to)))
        })
    }

    /// Returns an item, its holder and a receiver. The replica makes room on the holder for one that has to leave a
    /// drained member. The receiver has room that the leaving replica cannot use, because the receiver holds the same
    /// item already.
    fn make_way(&self, drained: &[MnId], only: Option<MnId>) -> Option<(usize, MnId, MnId)> {
        let leaves = |nodes: &&Vec<(MnId, Option<PoolPlace>)>| {
            nodes.iter().any(|(node, place)| drained.contains(node) && place.is_some())
        };
        let receivers = self.receivers(only);
        self.items.iter().filter(leaves).find_map(|nodes| {
            let free = |node: &&MnId| {
                !drained.contains(node) && nodes.iter().all(|(holder, _)| holder != *node)
            };
            self.rooms.keys().filter(free).find_map(|from| {
                receivers.iter().find_map(|to| Some((self.item(*from, *to, false)?, *from, *to)))
            })
        })
    }

    /// Returns an item, a member with more than its share that gives the replica away, and a receiver with less.
    fn balancing_move(&self, only: Option<MnId>) -> Option<(usize, MnId, MnId)> {
        let mut donors: Vec<(MnId, MemberLoad)> =
            self.loads.iter().map(|(n, l)| (*n, *l)).collect();
        donors.retain(|(_, load)| load.replicas > 0);
        donors.sort_by(|(_, a), (_, b)| {
            product(2 * b.replicas - 1, a.pool_bytes)
                .cmp(&product(2 * a.replicas - 1, b.pool_bytes))
        });
        for to in self.receivers(only) {
            let taker = self.loads[&to];
            let helps = |load: &MemberLoad| {
                product(2 * taker.replicas + 1, load.pool_bytes)
                    < product(2 * load.replicas - 1, taker.pool_bytes)
            };
            for (from, load) in donors.iter().filter(|(_, load)| helps(load)) {
                let primary = load.primaries >= taker.primaries + 2;
                if let Some(item) = self.item(*from, to, primary) {
                    return Some((item, *from, to));
                }
            }
        }
        None
    }
}

fn product(replicas: u64, pool_bytes: u64) -> u128 {
    u128::from(replicas) * u128::from(pool_bytes)
}

#[cfg(test)]
mod tests {
    use fusee_core::data::Region;
    use fusee_core::race::HashKey;
    use fusee_core::verbs::ClusterId;
    use fusee_core::view::{Geometry, Member};

    use super::*;

    fn view(pools: &[u64], regions: &[&[u16]]) -> View {
        let member = |(node, pool_bytes): (u16, &u64)| Member {
            node: MnId(node),
            identity: node.into(),
            control: String::new(),
            tcp: None,
            shm: None,
            verbs: None,
            pool_bytes: *pool_bytes,
        };
        let region = |(number, nodes): (u64, &&[u16])| {
            Region::replicated(
                nodes.iter().map(|n| PoolPlace { node: MnId(*n), offset: number << 20 }).collect(),
                1,
            )
        };
        View {
            number: 1,
            cluster: ClusterId::from_word(1).unwrap(),
            hash_key: HashKey::new([7; 16]),
            geometry: Geometry::default(),
            members: (0..).zip(pools).map(member).collect(),
            regions: (0..).zip(regions).map(region).collect(),
            directory: vec![],
            subtables: vec![],
            change: None,
        }
    }

    /// Moves regions until no further move is wanted. Returns the replicas and the primaries of each member, and the
    /// number of moves.
    fn settle(view: &mut View, drained: &[MnId]) -> (Vec<u64>, Vec<u64>, usize) {
        let mut moved = 0;
        loop {
            let fits = view.members.iter().filter(|m| !drained.contains(&m.node));
            let rooms = fits.map(|member| NodeRoom { node: member.node, items: 1000 }).collect();
            let Some(moves) = RebalanceItems::regions(view, rooms).next(&view.members, drained)
            else {
                break;
            };
            assert_eq!(moves.extents.len(), 1);
            for (extent, leaving) in moves.extents {
                let Extent::Region { region, .. } = extent else { panic!("{extent:?}") };
                let region = &mut view.regions[region as usize];
                assert!(!region.lies_on(moves.to));
                let mut places = region.places().to_vec();
                let at = places.iter().position(|place| *place == leaving).unwrap();
                places[at].node = moves.to;
                *region = Region::replicated(places, 1);
            }
            moved += 1;
            assert!(moved < 1000, "it does not end");
        }
        let count = |of: &dyn Fn(&Region, MnId) -> bool| {
            let on = |m: &Member| view.regions.iter().filter(|r| of(r, m.node)).count() as u64;
            view.members.iter().map(on).collect::<Vec<u64>>()
        };
        let holds = count(&|region, node| region.lies_on(node));
        (holds, count(&|region, node| region.primary().node == node), moved)
    }

    const TWELVE: [&[u16]; 12] = [
        &[0, 1],
        &[1, 2],
        &[2, 0],
        &[0, 1],
        &[1, 2],
        &[2, 0],
        &[0, 1],
        &[1, 2],
        &[2, 0],
        &[0, 1],
        &[1, 2],
        &[2, 0],
    ];

    #[test]
    fn a_new_member_gets_its_share_of_replicas_and_of_primaries() {
        let mut view = view(&[100; 4], &TWELVE);
        let (replicas, primaries, moved) = settle(&mut view, &[]);
        assert_eq!((replicas, moved), (vec![6, 6, 6, 6], 6));
        assert!(primaries.iter().all(|n| (2..=4).contains(n)), "{primaries:?}");
    }

    #[test]
    fn shares_are_by_the_sizes_of_the_pools() {
        let mut view = view(&[100, 100, 100, 300], &TWELVE);
        let (replicas, ..) = settle(&mut view, &[]);
        assert_eq!(replicas, [4, 4, 4, 12]);
        assert_eq!(settle(&mut view, &[]).2, 0, "and then it rests");
    }

    #[test]
    fn a_drained_member_keeps_nothing_and_the_others_share_it() {
        let mut view = view(&[100; 4], &TWELVE);
        settle(&mut view, &[]);
        let (replicas, primaries, moved) = settle(&mut view, &[MnId(1)]);
        assert_eq!((replicas, moved), (vec![8, 0, 8, 8], 6));
        assert_eq!(primaries[1], 0);
    }

    #[test]
    fn without_room_nothing_moves() {
        let view = view(&[100; 4], &TWELVE);
        let full = (0..4).map(|node| NodeRoom { node: MnId(node), items: 0 }).collect();
        assert_eq!(RebalanceItems::regions(&view, full).next(&view.members, &[]), None);
        let subtables = RebalanceItems {
            most: 3,
            ..RebalanceItems::regions(&view, vec![NodeRoom { node: MnId(3), items: 9 }])
        };
        let moves = subtables.next(&view.members, &[]).unwrap();
        assert_eq!((moves.to, moves.extents.len()), (MnId(3), 3));
    }

    #[test]
    fn something_makes_way_where_all_rooms_are_on_holders() {
        // Node 2 leaves. There is room only on node 0, which already has a replica of region 0, the first region on
        // node 2.
        let view = view(&[100; 3], &[&[0, 2], &[1, 2]]);
        let rooms = [(0, 1), (1, 0)].map(|(node, items)| NodeRoom { node: MnId(node), items });
        let kind = RebalanceItems::regions(&view, rooms.to_vec());
        let moves = kind.next(&view.members, &[MnId(2)]).unwrap();
        assert_eq!(moves.to, MnId(0), "region 1 may go there");
        let mut view = view;
        view.regions.pop();
        let alone = vec![PoolPlace { node: MnId(1), offset: 5 << 20 }];
        view.regions.push(Region::replicated(alone, 1));
        let kind = RebalanceItems::regions(&view, rooms.to_vec());
        let moves = kind.next(&view.members, &[MnId(2)]).unwrap();
        let (extent, from) = moves.extents[0];
        assert_eq!((moves.to, from.node), (MnId(0), MnId(1)));
        assert_eq!(extent, Extent::Region { region: 1, primary: false });
    }
}
