//! Tests that use the simulator. They are one program, because each test program contains the whole store, which takes
//! long to compile. `cargo test -p fusee-sim --test simulations rtt_budget` runs the tests of `rtt_budget.rs`.

mod bars;
mod changes;
mod conflicts;
mod crash_rate;
mod cuts;
mod damage;
mod determinism;
mod directed;
mod get_many;
mod histories;
mod hostile_memory;
mod hostile_recovery;
mod immediate;
mod master_crashes;
mod numbers;
mod rates;
mod recovery;
mod refill;
mod rtt_budget;
mod scrub;
mod seeds;
mod speculations;
mod support;
mod switches;
mod testbed;
mod unsound;
mod work_table;
