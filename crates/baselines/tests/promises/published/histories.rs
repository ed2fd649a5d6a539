use super::{open, parameters};
use crate::support::{Load, findings};
use fusee_baselines::published::Parameters;

fn load(parameters: &Parameters, writes: bool) -> Load {
    Load {
        memory_nodes: 3,
        pool_bytes: parameters.pool_bytes(3),
        clients: 4,
        coroutines: 2,
        operations: 50,
        keys: 4,
        inserts: writes,
        deletes: writes,
    }
}

fn explore(name: &str, parameters: Parameters, writes: bool, seeds: u64) {
    let (mut bad, mut first, mut stuck) = (0, None, 0);
    for seed in 0..seeds {
        let load = load(&parameters, writes);
        let p = parameters.clone();
        match std::panic::catch_unwind(|| findings(seed, load, open(p))) {
            Ok(found) => {
                if !found.is_clean() {
                    bad += 1;
                    if first.is_none() {
                        first = Some((seed, found.refutation));
                    }
                }
            }
            Err(_) => stuck += 1,
        }
    }
    println!("{name} writes {writes}: {bad} bad, {stuck} panics of {seeds}");
    if let Some((seed, refutation)) = first {
        println!("  seed {seed}: {}", refutation.unwrap());
    }
}

#[test]
fn exploration() {
    let seeds = 60;
    for r in 1..=3 {
        let large = |p: Parameters| Parameters { regions: 12, ..p }.with_blocks(1 << 18, 1 << 18);
        for (how, base) in [("plenty", large(parameters(r))), ("reuse", parameters(r))] {
            let n = |s: &str| format!("{s} r {r} {how}");
            explore(&n("published"), base.clone(), false, seeds);
            explore(&n("nc"), base.clone().without_cache(), false, seeds);
            explore(&n("cr"), base.clone().one_by_one(), false, seeds);
            explore(&n("nodes"), base.clone().allocated_by_nodes(), false, seeds);
            if how == "plenty" {
                explore(&n("cr"), base.clone().one_by_one(), true, seeds);
                explore(&n("published"), base.clone(), true, 20);
            }
        }
    }
}
