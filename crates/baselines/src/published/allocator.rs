//! What a memory node's processor does: it gives blocks to clients, or every object where it allocates alone.
//!
//! The block allocation table, which tells recovery whose a block is, is left out: nobody recovers here.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::layout::Layout;
use crate::Server;

/// What requests take of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// For a block.
    pub block: Duration,
    /// For an object.
    pub object: Duration,
}

impl Default for Costs {
    /// 10 us each, *assumed*.
    fn default() -> Costs {
        Costs { block: Duration::from_micros(10), object: Duration::from_micros(10) }
    }
}

/// What a memory node is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// A block.
    Block,
    /// An object, and to take back some of this node's.
    Object {
        /// Its length, in units of 64 bytes.
        units: u8,
        /// Lengths and addresses of those that are free.
        freed: Vec<(u8, u64)>,
    },
}

/// A memory node's allocator, of what has its primary there. It replies with an address; `None` if nothing is left.
pub struct Allocator {
    layout: Arc<Layout>,
    /// Which of the nodes it is.
    number: u64,
    /// Blocks that it has given.
    given: u64,
    /// Free objects, by their length.
    free: Vec<VecDeque<u64>>,
    costs: Costs,
}

impl Allocator {
    /// Of the node with this number in the layout. It needs one core.
    pub fn new(layout: Arc<Layout>, number: usize, costs: Costs) -> Allocator {
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

impl Server for Allocator {
    type Request = Request;
    type Reply = Option<u64>;

    fn takes(&self, request: &Request) -> Duration {
        match request {
            Request::Block => self.costs.block,
            Request::Object { .. } => self.costs.object,
        }
    }

    /// Words of eight bytes.
    fn bytes(&self, request: &Request) -> (u64, u64) {
        match request {
            Request::Block => (8, 8),
            Request::Object { freed, .. } => (8 + 8 * freed.len() as u64, 8),
        }
    }

    fn serve(&mut self, request: Request) -> Option<u64> {
        match request {
            Request::Block => self.block(),
            Request::Object { units, freed } => {
                for (units, address) in freed {
                    self.free[usize::from(units)].push_back(address);
                }
                self.object(units)
            }
        }
    }
}
