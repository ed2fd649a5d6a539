//! FUSEE as published: the promises that its variants keep and break, and their costs.

mod anomalies;
mod histories;
mod memory;
mod phases;
mod scene;

use std::sync::Arc;

use fusee_baselines::InProcessRpc;
use fusee_baselines::published::{
    Allocator, AllocatorCosts, PublishedClient, PublishedLayout, PublishedParameters,
};
use fusee_core::verbs::MnId;
use fusee_sim::SimFabric;

use crate::support::VALUE_BYTES;

pub type InProcessPublished = PublishedClient<SimFabric, InProcessRpc<Allocator>>;

/// Returns parameters with this many replicas of the index, two replicas of pairs, and many small blocks.
pub fn parameters(index_replicas: usize) -> PublishedParameters {
    PublishedParameters { regions: 60, frees_at_once: 1, patience: 10_000, ..small(index_replicas) }
}

fn small(index_replicas: usize) -> PublishedParameters {
    PublishedParameters::published(index_replicas, 2, 4, VALUE_BYTES as u32)
        .with_blocks(1 << 12, 1 << 14)
}

/// Returns a function that makes clients of one store.
pub fn open(
    parameters: PublishedParameters,
) -> impl FnMut(SimFabric, &[MnId]) -> InProcessPublished {
    let mut store: Option<(Arc<PublishedLayout>, Vec<InProcessRpc<Allocator>>)> = None;
    let mut number = 0;
    move |fabric, nodes| {
        let (layout, allocators) = store.get_or_insert_with(|| {
            let layout = Arc::new(PublishedLayout::new(nodes, parameters.clone()).unwrap());
            let allocator = |number| {
                InProcessRpc::new(Allocator::new(layout.clone(), number, AllocatorCosts::default()))
            };
            let allocators = (0..nodes.len()).map(allocator).collect();
            (layout, allocators)
        });
        number += 1;
        PublishedClient::new(fabric, layout.clone(), allocators.clone(), number - 1)
    }
}
