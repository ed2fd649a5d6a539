//! FUSEE as it was published: promises kept and broken by its variants, and their costs.

mod anomalies;
mod histories;
mod memory;
mod phases;
mod scene;

use std::sync::Arc;

use fusee_baselines::Near;
use fusee_baselines::published::{Allocator, Client, Costs, Layout, Parameters};
use fusee_core::verbs::MnId;
use fusee_sim::SimFabric;

use crate::support::VALUE_BYTES;

pub type Store = Client<SimFabric, Near<Allocator>>;

/// Returns parameters with so many replicas of the index, two of pairs, and plenty of small blocks.
pub fn parameters(index_replicas: usize) -> Parameters {
    Parameters { regions: 60, frees_at_once: 1, patience: 10_000, ..small(index_replicas) }
}

fn small(index_replicas: usize) -> Parameters {
    Parameters::published(index_replicas, 2, 4, VALUE_BYTES as u32).with_blocks(1 << 12, 1 << 14)
}

/// Makes clients of one store.
pub fn open(parameters: Parameters) -> impl FnMut(SimFabric, &[MnId]) -> Store {
    let mut store: Option<(Arc<Layout>, Vec<Near<Allocator>>)> = None;
    let mut number = 0;
    move |fabric, nodes| {
        let (layout, allocators) = store.get_or_insert_with(|| {
            let layout = Arc::new(Layout::new(nodes, parameters.clone()).unwrap());
            let allocator =
                |number| Near::new(Allocator::new(layout.clone(), number, Costs::default()));
            let allocators = (0..nodes.len()).map(allocator).collect();
            (layout, allocators)
        });
        number += 1;
        Client::new(fabric, layout.clone(), allocators.clone(), number - 1)
    }
}
