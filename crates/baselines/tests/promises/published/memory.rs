//! Allocation of objects: requests, reuse, and the error of a full store.

use fusee_baselines::published::{
    PublishedConfigError, PublishedCounts, PublishedLayout, PublishedParameters,
};
use fusee_baselines::{BaselineError, BaselineSession};
use fusee_core::verbs::MnId;
use fusee_sim::{Executor, NetworkOptions, Rack, Sim, SimFabric, Testbed};

use super::{InProcessPublished, open, parameters};
use crate::support::{VALUE_BYTES, key, value};

const NODES: u16 = 2;

/// Runs `act` with two clients of one store, in one simulated process.
fn run(
    parameters: PublishedParameters,
    act: impl AsyncFnOnce(InProcessPublished, InProcessPublished) -> PublishedCounts,
) -> PublishedCounts {
    let sim = Sim::steady();
    let network = NetworkOptions { testbed: Some(Testbed::UNLIMITED), ..NetworkOptions::default() };
    let rack = Rack::new(&sim, network, NODES, parameters.pool_bytes(NODES.into()));
    let mut open = open(parameters);
    let mut client = || {
        let (process, fabric): (_, SimFabric) = rack.client_on(rack.network().hardware().machine());
        (process, open(fabric, rack.nodes()))
    };
    let ((process, one), (_, other)) = (client(), client());
    let counts = std::cell::Cell::new(PublishedCounts::default());
    let mut executor = Executor::new(&sim);
    executor.spawn(process, async { counts.set(act(one, other).await) });
    executor.run(10_000_000, || ());
    drop(executor);
    counts.get()
}

async fn updates(store: &InProcessPublished, count: u64) {
    for number in 0..count {
        assert_eq!(store.update(&key(number % 4), &value(number)).await, Ok(true));
    }
}

async fn inserts(store: &InProcessPublished) {
    for number in 0..4 {
        assert_eq!(store.insert(&key(number), &value(number)).await, Ok(true));
    }
}

/// In these tests a block has 21 objects.
#[test]
fn a_client_asks_for_a_block_and_uses_its_objects_again() {
    let counts = run(parameters(2), async |one, _| {
        inserts(&one).await;
        updates(&one, 1_000).await;
        one.counts()
    });
    assert!((1..4).contains(&counts.requests), "{counts:?}");
}

#[test]
fn where_nodes_allocate_every_object_is_a_request() {
    let parameters = PublishedParameters { regions: 2, ..parameters(2) }.allocated_by_nodes();
    let counts = run(parameters, async |one, _| {
        inserts(&one).await;
        updates(&one, 1_000).await;
        one.counts()
    });
    assert_eq!(counts.requests, 1_004);
}

/// The region has four blocks, one of which belongs to the first client and the others to the second client.
#[test]
fn a_client_goes_on_with_what_it_has_where_no_block_is_left() {
    let parameters = PublishedParameters { regions: 1, keys: 200, ..parameters(2) };
    run(parameters, async |one, other| {
        inserts(&one).await;
        for number in 4..67 {
            assert_eq!(other.insert(&key(number), &value(number)).await, Ok(true));
        }
        assert_eq!(other.insert(&key(67), &value(67)).await, Err(BaselineError::Full));
        updates(&one, 1_000).await;
        // Each client frees objects in the other client's blocks. The owners find these objects in their free bitmaps.
        assert_eq!(one.update(&key(9), &value(1)).await, Ok(true));
        updates(&one, 3).await;
        assert_eq!(other.insert(&key(67), &value(67)).await, Ok(true));
        one.counts()
    });
}

#[test]
fn a_client_finds_at_once_what_another_one_knows() {
    let counts = run(parameters(1), async |one, other| {
        inserts(&one).await;
        other.learn_from(&one);
        assert_eq!(other.search(&key(1)).await, Ok(Some(value(1))));
        assert_eq!(other.counts().invalid, 0);
        // A client does not learn what the other client finds out after `learn_from`.
        updates(&one, 4).await;
        assert_eq!(other.search(&key(1)).await, Ok(Some(value(1))));
        other.counts()
    });
    assert_eq!(counts.invalid, 1);
}

#[test]
fn lengths_that_the_store_is_not_made_for_are_refused() {
    run(parameters(1), async |one, _| {
        assert_eq!(one.insert(b"short", &value(1)).await, Err(BaselineError::Length("key")));
        assert_eq!(one.search(b"short").await, Err(BaselineError::Length("key")));
        let long = vec![0; VALUE_BYTES + 1];
        assert_eq!(one.insert(&key(1), &long).await, Err(BaselineError::Length("value")));
        assert_eq!(one.insert(&key(1), &[]).await, Ok(true));
        assert_eq!(one.search(&key(1)).await, Ok(Some(Vec::new())));
        one.counts()
    });
}

#[test]
fn parameters_that_make_no_store_are_refused() {
    let nodes = [MnId(0), MnId(1)];
    let unfit =
        |parameters: PublishedParameters| PublishedLayout::new(&nodes, parameters).unwrap_err();
    let fits = PublishedParameters::published(1, 2, 100_000, 1_008).with_room_for(300_000, 128, 2);
    assert!(PublishedLayout::new(&nodes, fits.clone()).is_ok());
    assert_eq!(
        unfit(PublishedParameters { index_replicas: 3, ..fits.clone() }),
        PublishedConfigError::Replicas { what: "the index", replicas: 3, nodes: 2 }
    );
    assert!(matches!(
        unfit(PublishedParameters { data_replicas: 0, ..fits.clone() }),
        PublishedConfigError::Replicas { .. }
    ));
    assert!(matches!(
        unfit(fits.clone().with_blocks(1_000, 10_000)),
        PublishedConfigError::Blocks { .. }
    ));
    assert_eq!(
        unfit(PublishedParameters { value_bytes: 16_275, ..fits.clone() }),
        PublishedConfigError::Value(16_275)
    );
    assert_eq!(unfit(PublishedParameters { regions: 1 << 20, ..fits }), PublishedConfigError::Size);
}

/// A store for a figure needs memory for two replicas of its objects, some blocks for each client, and the index.
#[test]
fn a_store_for_a_figure_takes_what_its_pairs_take() {
    let parameters =
        PublishedParameters::published(1, 2, 100_000, 1_008).with_blocks(1 << 18, 1 << 25);
    let bytes = parameters.with_room_for(200_000, 128, 2).pool_bytes(2);
    assert!((200_000 * 1_088..500 << 20).contains(&bytes), "{bytes}");
}
