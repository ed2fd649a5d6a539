//! Failures under load, with real processes, over two fabrics: memory nodes, clients and masters are killed and
//! stopped.
//!
//! Every test ends with the same checks ([`cluster::FaultyCluster::finish`]). All killed clients are recovered. Every
//! key can be written. The history of all operations is linearizable; it includes operations of killed clients, which
//! are pending if they had not ended. The other clients noticed no more than a delay. Time limits are generous, because
//! tests check that clients continue, not how fast.
//!
//! Only the *times* of events are random. A test prints its seed. `FUSEE_TEST_SEED` repeats the seed's times, as far as
//! real processes can be repeated.

mod backup;
mod cluster;
mod coded;
#[path = "../common/mod.rs"]
mod common;
mod cuts;
mod elastic;
mod identity;
mod journal;
mod kill;
mod measure;
mod net;
mod pause;
mod porcupine;
mod refill;
mod rolling;
mod rot;
mod silence;
mod single;
mod soak;
mod stops;
mod writer;
