//! Whoever makes things go wrong: takes a fault of the run's kinds every now and then.

use crate::counts::count;
use crate::engine::{Nanos, ProcessId};
use crate::run::Run;
use crate::scenario::Fault;

/// Injects faults until there is nothing left to disturb.
pub(crate) async fn run(run: &Run) {
    let sudden = [Fault::ClientCrash, Fault::Stop, Fault::Partition, Fault::MasterRestart];
    let kinds: Vec<Fault> = sudden.into_iter().filter(|f| run.faults.contains(f)).collect();
    if kinds.is_empty() {
        return;
    }
    let rng = &run.fault_rng;
    while run.goes_on() {
        run.sim.sleep(rng.below_u64(2 * run.shape.fault_every_ns)).await;
        match rng.pick(&kinds) {
            Fault::ClientCrash => crash_client(run),
            Fault::Stop => stop(run),
            Fault::Partition => partition(run),
            Fault::MasterRestart => restart_master(run),
            other => unreachable!("{other:?} comes by other ways"),
        }
    }
}

fn some_client(run: &Run) -> Option<ProcessId> {
    let clients: Vec<ProcessId> = run.clients.borrow().keys().copied().collect();
    (!clients.is_empty()).then(|| run.fault_rng.pick(&clients))
}

fn crash_client(run: &Run) {
    let Some(process) = some_client(run) else { return };
    run.sim.crash(process);
    run.client_crashed(process);
}

/// How long a disturbance lasts: mostly some phases, at times longer than operations wait.
fn duration(run: &Run) -> Nanos {
    let longest = run.fault_rng.pick(&[5_000, 50_000, 500_000, 10_000_000]);
    1_000 + run.fault_rng.below_u64(longest)
}

fn stop(run: &Run) {
    let nodes = run.cluster.node_processes();
    let process = match run.fault_rng.below(6) {
        0 => run.cluster.master().process.get(),
        1 => run.fault_rng.pick(&nodes).1,
        _ => match some_client(run) {
            Some(process) => process,
            None => return,
        },
    };
    if run.sim.is_stopped(process) || run.sim.is_crashed(process) {
        return;
    }
    count(&run.sim.counts().stops);
    run.sim.stop(process);
    let sim = run.sim.clone();
    run.sim.after(duration(run), move || sim.resume(process));
}

fn partition(run: &Run) {
    let Some(process) = some_client(run) else { return };
    count(&run.sim.counts().partitions);
    run.cluster.control().cut_off(process, true);
    let cluster = run.cluster.clone();
    run.sim.after(duration(run), move || cluster.control().cut_off(process, false));
}

fn restart_master(run: &Run) {
    let master = run.cluster.master();
    if !master.is_running() {
        return;
    }
    master.crash_in(run.fault_rng.below(6) as u32);
    let (cluster, down) = (run.cluster.clone(), duration(run));
    run.sim.after(down, move || {
        if !cluster.master().is_running() {
            cluster.restart_master(0);
        }
    });
}
