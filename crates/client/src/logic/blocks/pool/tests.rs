//! Tests of the orders of blocks that a slab accepts.

use fusee_core::layout::{SizeClass, UNIT_BYTES};

use super::*;

fn kind(class: SizeClass) -> SlabKind {
    SlabKind { class, redundancy: Redundancy::Replicated }
}

fn classes() -> impl Iterator<Item = SizeClass> {
    (1..=SizeClass::MAX.code()).map(|code| SizeClass::from_code(code).unwrap())
}

/// Returns the least and the most of the orders that a slab accepts in a cluster with the default geometry, which has
/// frames of 64 KiB.
fn orders_of(class: SizeClass, bytes: u64) -> (u8, u8) {
    let AcceptedOrders { least, most, .. } =
        accepted_orders(kind(class), bytes, &Geometry::default());
    (least, most)
}

/// Returns the class of objects of this number of units, which has to be the size of a class.
fn class_of_units(units: u64) -> SizeClass {
    let class = SizeClass::fitting(units * UNIT_BYTES).unwrap();
    assert_eq!(class.bytes(), units * UNIT_BYTES);
    class
}

#[test]
fn a_slab_of_small_objects_begins_with_the_smallest_blocks() {
    let frame = Geometry::default().frame_bytes();
    // A block of one frame has room for 8 objects of 127 units; a class of 121 units is the largest with at most so
    // many.
    let small: Vec<SizeClass> = classes().filter(|class| class.bytes() <= 127 * 64).collect();
    assert_eq!(small.last(), Some(&class_of_units(121)));
    for class in small {
        for bytes in [0, 1, frame, 2 * frame - 1] {
            assert_eq!(orders_of(class, bytes), (0, 0), "{class:?}, {bytes}");
        }
    }
}

#[test]
fn the_first_block_has_room_for_eight_objects_if_a_block_can_have_it() {
    assert_eq!(orders_of(class_of_units(129), 0), (0, 1));
    assert_eq!(orders_of(class_of_units(1025), 0), (1, 4));
    // 8 objects of 28,673 units fit in a block of 16 MiB, but not of 8 MiB; no block has room for 8 of 32,769 units.
    assert_eq!(orders_of(class_of_units(28_673), 0), (5, 8));
    assert_eq!(orders_of(class_of_units(32_769), 0), (6, 8));
    // Below that many objects, larger blocks wait until the slab has grown.
    for bytes in [1 << 16, 1 << 19, (1 << 21) - 1] {
        assert_eq!(orders_of(class_of_units(1025), bytes), (1, 4), "{bytes}");
    }
    assert_eq!(orders_of(class_of_units(1025), 1 << 21), (1, 5));
}

#[test]
fn a_growing_slab_doubles_with_each_block_up_to_the_largest() {
    let geometry = Geometry::default();
    let small = class_of_units(1);
    let mut bytes = 0;
    let mut orders = Vec::new();
    for _ in 0..12 {
        let (least, most) = orders_of(small, bytes);
        assert_eq!(least, 0, "a smaller block is better than none");
        orders.push(most);
        bytes += geometry.order_bytes(most);
    }
    assert_eq!(orders, [0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 8, 8]);
    for order in 1..=geometry.max_order() {
        let bytes = geometry.order_bytes(order);
        assert_eq!(orders_of(small, bytes - 1), (0, order - 1), "{order}");
        assert_eq!(orders_of(small, bytes), (0, order), "{order}");
    }
    for bytes in [1 << 25, 1 << 40, u64::MAX] {
        assert_eq!(orders_of(small, bytes), (0, 8), "{bytes}");
    }
}

#[test]
fn a_class_that_fits_only_in_larger_blocks_accepts_no_smaller_ones() {
    for bytes in [0, 1 << 16, 1 << 20, u64::MAX] {
        let least = |units| orders_of(class_of_units(units), bytes).0;
        assert_eq!(least(961), 0, "it fits in a frame beside the header");
        assert_eq!(least(1025), 1, "it does not");
        assert_eq!(least(1921), 1);
        assert_eq!(least(2049), 2);
        assert_eq!(orders_of(SizeClass::MAX, bytes), (8, 8));
    }
}

#[test]
fn the_least_order_is_the_first_with_room_and_never_above_the_most() {
    for block_bytes in [1 << 12, 1 << 13, 1 << 16, 1 << 20, 1 << 21, 16 << 20] {
        let geometry = Geometry { block_bytes, ..Geometry::default() };
        let max_order = geometry.max_order();
        for class in classes() {
            let has_room = |order| BlockShape::new(geometry.order_bytes(order), class).is_some();
            let sizes = (0..64).flat_map(|bit| [(1 << bit) - 1, 1 << bit]);
            for bytes in sizes.chain([u64::MAX]) {
                let AcceptedOrders { least, most, .. } =
                    accepted_orders(kind(class), bytes, &geometry);
                assert!(least <= most && most <= max_order, "{class:?}, {bytes}: {least}, {most}");
                assert!(least == 0 || !has_room(least - 1), "{class:?}, {bytes}: {least}");
                assert!(has_room(least) || !has_room(max_order), "{class:?}, {bytes}: {least}");
            }
        }
    }
}
