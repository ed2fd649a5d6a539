//! What fails while others work: memory nodes, clients and masters are killed and stopped under
//! load, as real processes, over both fabrics.
//!
//! Every test ends with the same questions ([`cluster::Cluster::finish`]): is everybody who was
//! killed recovered, can every key be written, is the history of all operations linearizable (those
//! of the killed included, which are pending if they had not ended), and did nobody else notice
//! more than a delay? Times are bounded generously: that something goes on is asked, not how fast.
//!
//! Randomness is only in *when* things happen. A test prints its seed; `FUSEE_TEST_SEED` repeats
//! it, as far as real processes repeat anything.

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
