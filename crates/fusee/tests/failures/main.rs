//! Failures under load, with real processes, over both fabrics: memory nodes,
//! clients and masters are killed and stopped.
//!
//! Every test ends with the same checks ([`cluster::FaultyCluster::finish`]): all killed clients are recovered; every
//! key can be written; the history of all operations is linearizable, including those of killed clients, which
//! are pending if they had not ended; and the other clients noticed no more than a delay. Time limits are
//! generous: tests check that something goes on, not how fast.
//!
//! Only the *times* of events are random. A test prints its seed; `FUSEE_TEST_SEED` repeats it, as far as real
//! processes repeat anything.

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
