//! A memory node's allocator. It gives blocks to clients. In the variant where nodes allocate every object, it gives
//! single objects.
//!
//! The paper's block allocation table, which names the owners of blocks for recovery, is left out, because this system
//! does not recover.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::layout::PublishedLayout;
use crate::BaselineServer;

/// Times for which requests occupy a core of a memory node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocatorCosts {
    /// Time of a request for a block.
    pub block: Duration,
    /// Time of a request for an object.
    pub object: Duration,
}

impl Default for AllocatorCosts {
    /// Returns 10 us for each kind of request, *assumed*.
    fn default() -> AllocatorCosts {
        AllocatorCosts { block: Duration::from_micros(10), object: Duration::from_micros(10) }
    }
}

/// Requests of clients to the allocator of a memory node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllocatorRequest {
    /// Asks for a block.
    Block,
    /// Asks for an object, and gives free objects of this node back.
    Object {
        /// Length of the object, in units of 64 bytes.
        units: u8,
        /// Lengths, in units of 64 bytes, and addresses of the objects that are given back.
        freed: Vec<(u8, u64)>,
    },
}

/// The allocator of a memory node. It gives addresses whose primary is on that node, and replies with an address, or
/// with `None` if no memory is left.
pub struct Allocator {
    layout: Arc<PublishedLayout>,
    /// Number of the allocator's memory node in the layout.
    number: u64,
    /// Number of blocks that the allocator has given to clients.
    given: u64,
    /// Addresses of free objects. The index of the outer list is the objects' length in units of 64 bytes.
    free: Vec<VecDeque<u64>>,
    costs: AllocatorCosts,
}

impl Allocator {
    /// Makes the allocator of the node with this number in the layout. The allocator occupies one core at most.
    pub fn new(layout: Arc<PublishedLayout>, number: usize, costs: AllocatorCosts) -> Allocator {
        let free = vec![VecDeque::new(); usize::from(u8::MAX) + 1];
        Allocator { layout, number: number as u64, given: 0, free, costs }
    }

    fn block(&mut self) -> Option<u64> {
        let parameters = self.layout.parameters();
        let per_region = self.layout.blocks_per_region();
        let nodes = self.layout.nodes().len() as u64;
        let region = self.number + self.given / per_region * nodes;
        if region >= parameters.regions {
            return None;
        }
        let within = self.given % per_region * parameters.block_bytes;
        self.given += 1;
        Some(region * parameters.region_bytes + within)
    }

    fn object(&mut self, units: u8) -> Option<u64> {
        if self.free[usize::from(units)].is_empty() {
            let block = self.block()?;
            self.free[usize::from(units)].extend(self.layout.objects(block, units));
        }
        self.free[usize::from(units)].pop_front()
    }
}

impl BaselineServer for Allocator {
    type Request = AllocatorRequest;
    type Reply = Option<u64>;

    fn service_time(&self, request: &AllocatorRequest) -> Duration {
        match request {
            AllocatorRequest::Block => self.costs.block,
            AllocatorRequest::Object { .. } => self.costs.object,
        }
    }

    /// Requests and replies consist of words of eight bytes.
    fn bytes(&self, request: &AllocatorRequest) -> (u64, u64) {
        match request {
            AllocatorRequest::Block => (8, 8),
            AllocatorRequest::Object { freed, .. } => (8 + 8 * freed.len() as u64, 8),
        }
    }

    fn serve(&mut self, request: AllocatorRequest) -> Option<u64> {
        match request {
            AllocatorRequest::Block => self.block(),
            AllocatorRequest::Object { units, freed } => {
                for (units, address) in freed {
                    self.free[usize::from(units)].push_back(address);
                }
                self.object(units)
            }
        }
    }
}
