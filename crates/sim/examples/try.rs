use fusee_sim::*;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let scenario = Scenario::named(&a[1]).unwrap();
    let (from, n): (u64, u64) = (a[2].parse().unwrap(), a[3].parse().unwrap());
    let begun = std::time::Instant::now();
    let (mut ops, mut events, mut vns) = (0, 0, 0);
    let mut counts = std::collections::BTreeMap::new();
    for seed in from..from + n {
        let o = run(&RunOptions::new(scenario, seed));
        ops += o.operations;
        events += o.events;
        vns += o.virtual_ns;
        for (k, v) in o.counts {
            *counts.entry(k).or_insert(0) += v;
        }
        if let Some(f) = o.failure {
            println!("seed {seed}: {}", &f.what[..f.what.len().min(300)]);
        }
    }
    println!(
        "{ops} ops {events} events {} ms virtual {:?} {counts:?}",
        vns / 1_000_000,
        begun.elapsed()
    );
}
