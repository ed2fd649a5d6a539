use alloc::vec::Vec;

use super::*;
use crate::data::{Orientation, Region};
use crate::erasure::Coding;
use crate::layout::Address;

fn identity(units: u64) -> Identity {
    Identity::new(Address::new(units * 64), 4)
}

/// Returns a region of EOR(r, 4) over 4 + 2 nodes, with chunk i on node i.
fn region(replicas: u8) -> Region {
    let coding = Coding::new(4, 2).unwrap();
    let redundancy = Redundancy::Oriented(Orientation::new(replicas, coding).unwrap());
    let place = |node| PoolPlace { node: MnId(node), offset: 1 << 20 };
    Region::new(redundancy, (0..6).map(place).collect(), 1)
}

fn without(replicas: u8, lost: &[u16]) -> Region {
    let mut region = region(replicas);
    region.lose(|place| lost.contains(&place.node.0), 2);
    region
}

fn nodes(region: &Region, members: &[u16]) -> Vec<u16> {
    let object = region.object(Address::new(1 << 20), 1 << 16, 1 << 10);
    object.copies_go_to(members.iter().map(|node| MnId(*node))).iter().map(|node| node.0).collect()
}

#[test]
fn a_copy_word_counts_for_its_object_and_its_copy_alone() {
    let object = identity(7);
    let copy = identity(9);
    for number in 0..MAX_COPIES {
        let word = copy_word(object, number, copy);
        assert_eq!(copy_of(object, number, word), Some(copy));
        assert_eq!(copy_of(object, 1 - number, word), None);
        assert_eq!(copy_of(copy, number, word), None);
        for bit in 0..64 {
            assert_eq!(copy_of(object, number, word ^ 1 << bit), None, "bit {bit} was flipped");
        }
    }
}

#[test]
fn all_words_of_a_turn_name_copies_and_chunks_made_anew_name_the_same() {
    let object = identity(7);
    for copies in [&[identity(9)][..], &[identity(9), identity(11)]] {
        for turn in [0, 2] {
            let mut chunk = [0; 128];
            encode_copy_words(&mut chunk, turn, object, MAX_COPIES, copies);
            let named: Vec<(usize, Identity)> = named_in(&chunk, turn, object).collect();
            let last = *copies.last().unwrap();
            assert_eq!(named, [(0, copies[0]), (1, last)], "those left over name the last one");
            assert_eq!(named_in(&chunk, 2 - turn, object).count(), 0);
            let named = named.into_iter().map(|(_, copy)| Some(copy)).collect();
            let named = Copies { named, silent: None };
            assert_eq!(named.known()[..], *copies, "each of them once");
            let mut anew = [0; 128];
            named.encode(&mut anew, turn, object);
            assert_eq!(anew, chunk);
        }
    }
    let mut chunk = [0; 128];
    encode_copy_words(&mut chunk, 0, object, 1, &[identity(9)]);
    assert_eq!(named_in(&chunk, 0, object).collect::<Vec<_>>(), [(0, identity(9))]);
}

#[test]
fn copies_go_to_nodes_without_data_chunks_and_never_two_to_one() {
    let all = [0, 1, 2, 3, 4, 5, 6, 7];
    for (replicas, lost, members, wanted) in [
        (2, &[][..], &all[..6], &[4][..]),
        (3, &[], &all[..6], &[4, 5]),
        (3, &[0, 1], &all[2..], &[4, 5]),
        (2, &[4], &all[..6], &[5]),
        (3, &[4], &all, &[5, 6]),
        (3, &[4, 5], &all, &[6, 7]),
        // There are fewer copies than the redundancy demands if there are not enough nodes for all of them.
        (3, &[4], &all[..6], &[5]),
        (3, &[4, 5], &[0, 1, 2, 3, 7], &[7]),
        (3, &[4, 5], &all[..4], &[]),
        (2, &[4, 5], &all[..4], &[]),
    ] {
        let members: Vec<u16> = members.iter().copied().filter(|n| !lost.contains(n)).collect();
        assert_eq!(nodes(&without(replicas, lost), &members), wanted, "{replicas}, {lost:?}");
    }
}

#[test]
fn as_many_nodes_may_be_lost_at_once_as_there_are_copies() {
    for (replicas, most) in [(2, 1), (3, 2)] {
        for subset in 0..1u32 << 6 {
            let is_lost = |node: MnId| subset >> node.0 & 1 == 1;
            let survives = subset.count_ones() <= most;
            assert_eq!(region(replicas).survives(is_lost), survives, "{subset:b}");
            if survives {
                // Either all data chunks are left, or a copy and a data chunk that names this copy.
                let data = (0..4).filter(|node| !is_lost(MnId(*node))).count();
                let mut copies = nodes(&region(replicas), &[]);
                copies.retain(|node| !is_lost(MnId(*node)));
                assert!(data == 4 || data > 0 && !copies.is_empty(), "{subset:b}");
            }
        }
    }
}
