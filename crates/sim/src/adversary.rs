//! Whoever makes things go wrong: takes a fault of the run's kinds every now and then.

use fusee_control::master::{MasterReply, MasterRequest};
use fusee_core::verbs::{ClientId, MnId};

use crate::control::Cut;
use crate::counts::count;
use crate::danger::Danger;
use crate::engine::{Nanos, ProcessId};
use crate::run::Run;
use crate::scenario::Fault;
use crate::servers::OTHER_CLUSTER;

/// Injects faults until there is nothing left to disturb, or it has been disturbed for long enough.
pub(crate) async fn run(run: &Run) {
    let sudden = [
        Fault::ClientCrash,
        Fault::NodeCrash,
        Fault::Stop,
        Fault::Partition,
        Fault::CommonPartition,
        Fault::Silence,
        Fault::MasterRestart,
        Fault::RecoveryCrash,
        Fault::Join,
        Fault::Drain,
        Fault::Damage,
        Fault::LateVerb,
        Fault::LateOrder,
        Fault::ForeignMaster,
    ];
    let kinds: Vec<Fault> = sudden.into_iter().filter(|f| run.faults.contains(f)).collect();
    if kinds.is_empty() {
        return;
    }
    let rng = &run.fault_rng;
    while run.goes_on() {
        run.sim.sleep(rng.below_u64(2 * run.shape.fault_every_ns)).await;
        // All may have ended meanwhile, and be looked at.
        if run.is_over.get() || !run.is_disturbed.get() {
            return;
        }
        match rng.pick(&kinds) {
            Fault::ClientCrash => crash_client(run).await,
            Fault::NodeCrash => crash_node(run).await,
            Fault::RecoveryCrash => crash_repairs(run).await,
            Fault::Stop => stop(run),
            Fault::Partition => partition(run),
            Fault::CommonPartition => cut_together(run),
            Fault::Silence => fall_silent(run),
            Fault::MasterRestart => restart_master(run),
            Fault::Join => join(run),
            Fault::Drain => drain(run),
            Fault::Damage => run.cluster.damage(rng),
            Fault::LateVerb => hold_a_link(run),
            Fault::LateOrder => hold_orders(run).await,
            Fault::ForeignMaster => usurp(run),
            other => unreachable!("{other:?} comes by other ways"),
        }
    }
}

fn some_client(run: &Run) -> Option<ProcessId> {
    let clients: Vec<ProcessId> = run.clients.borrow().keys().copied().collect();
    (!clients.is_empty()).then(|| run.fault_rng.pick(&clients))
}

fn some_node(run: &Run) -> Option<MnId> {
    let nodes = run.cluster.living_nodes();
    (!nodes.is_empty()).then(|| run.fault_rng.pick(&nodes))
}

/// Crashes a client. At times its last verbs are on the way for a long time: what if they come only
/// when others have put everything right?
async fn crash_client(run: &Run) {
    let Some(process) = some_client(run) else { return };
    let client = run.clients.borrow().get(&process).copied().flatten();
    if let Some(client) = client.filter(|_| run.fault_rng.one_in(2)) {
        hold_some_links(run, client).await;
    }
    if run.clients.borrow().contains_key(&process) {
        run.sim.crash(process);
        run.client_crashed(process);
    }
}

/// Holds some links of a client for up to as long as a verb may take, and gives it the time to post
/// something.
async fn hold_some_links(run: &Run, client: ClientId) {
    let network = run.cluster.network();
    for node in run.cluster.living_nodes() {
        if run.fault_rng.one_in(2) {
            let longest = network.options().verb_timeout_ns;
            network.hold(client, node, run.fault_rng.below_u64(longest));
        }
    }
    run.sim.sleep(run.fault_rng.below_u64(20_000)).await;
}

/// Nothing of a client gets through to a memory node for longer than the client waits: it gives up what it
/// has posted, which comes later.
fn hold_a_link(run: &Run) {
    let (Some(process), Some(node)) = (some_client(run), some_node(run)) else { return };
    let Some(client) = run.clients.borrow().get(&process).copied().flatten() else { return };
    let network = run.cluster.network();
    let lease = run.shape.lease().as_nanos() as u64;
    let late = run.fault_rng.pick(&[500_000, 5_000_000, lease]);
    let time = network.options().verb_timeout_ns + run.fault_rng.below_u64(late);
    network.hold(client, node, time);
}

/// What the job that works asks of a memory node lies on its way, and comes when the job has been done again: by
/// another master, or because this one had no answer.
async fn hold_orders(run: &Run) {
    let master = run.cluster.master();
    let (Some(_), Some(node)) = (master.at_work(), some_node(run)) else { return };
    let counts = run.sim.counts();
    let before = counts.late_orders.get();
    let longest = run.fault_rng.pick(&[2_000_000, 20_000_000, 200_000_000]);
    run.cluster.hold_orders(node, run.fault_rng.below_u64(longest));
    if run.fault_rng.one_in(2) {
        return;
    }
    for _ in 0..20 {
        run.sim.sleep(20_000).await;
        if run.is_over.get() {
            return;
        }
        if counts.late_orders.get() > before && master.is_running() {
            return run.cluster.restart_master(1 + run.fault_rng.below_u64(200_000));
        }
    }
}

/// Somebody starts a master over an empty store, or over that of another cluster, where the cluster's own one
/// was. That one comes back.
fn usurp(run: &Run) {
    let lease = run.shape.lease().as_nanos() as u64;
    let time = run.fault_rng.below_u64(3 * lease);
    let other = run.fault_rng.pick(&[None, Some(OTHER_CLUSTER)]);
    if may_go_away(run) && run.cluster.usurp_master(other) {
        goes_away(run, time);
        let cluster = run.cluster.clone();
        run.later(time, move || cluster.reinstate_master());
    }
}

/// Whether the master may be taken away for long again.
fn may_go_away(run: &Run) -> bool {
    run.sim.now() >= run.master_is_away.get().1
}

/// The master is away for so long.
fn goes_away(run: &Run, time: Nanos) {
    let lease = run.shape.lease().as_nanos() as u64;
    let back = run.sim.now() + time;
    run.master_is_away.set((back, back + run.fault_rng.below_u64(8 * lease)));
}

/// Seldom, and never the last replica of anything; several at once where that may be. Others come later, empty.
async fn crash_node(run: &Run) {
    let at_once = match run.shape.losses_at_once {
        1 => 1,
        most => 1 + run.fault_rng.below(most),
    };
    let mut crashed = 0;
    for _ in 0..at_once {
        let Some(node) = some_node(run) else { break };
        if run.cluster.view().members.len() > 1 && run.cluster.endanger(node, Danger::Lasting) {
            if run.faults.contains(&Fault::Mute) {
                fall_mute(run, node).await;
            }
            count(&run.sim.counts().node_crashes);
            run.cluster.crash_node(node);
            crashed += 1;
        }
    }
    if crashed > 0 {
        if let Some(actions) = run.master_crash.take() {
            run.cluster.master().crash_in(actions, duration(run));
        }
        for _ in 0..crashed {
            let cluster = run.cluster.clone();
            let later = duration(run);
            run.later(later, move || cluster.start_node());
        }
        // Clients that ran beside it may have died with it, in the middle of their rounds.
        for _ in 0..run.fault_rng.below(3) {
            if run.faults.contains(&Fault::ClientCrash)
                && let Some(process) = some_client(run)
            {
                run.sim.crash(process);
                run.client_crashed(process);
            }
        }
    }
}

/// Before its end a node executes verbs of some clients and answers none of them, for as long as others may need to
/// see what has become of that.
async fn fall_mute(run: &Run, node: MnId) {
    let clients: Vec<ClientId> = run.clients.borrow().values().copied().flatten().collect();
    for client in clients {
        if run.fault_rng.one_in(2) {
            run.cluster.network().mute(client, node);
        }
    }
    let timeout = run.cluster.network().options().verb_timeout_ns;
    run.sim.sleep(run.fault_rng.below_u64(3 * timeout)).await;
}

/// Memory nodes that there are at most, members or not.
const MOST_NODES: usize = 8;

fn join(run: &Run) {
    let nodes = run.cluster.node_processes().into_iter();
    if nodes.filter(|(_, process)| !run.sim.is_crashed(*process)).count() < MOST_NODES {
        run.cluster.start_node();
    }
}

/// The master may refuse it. One of four is taken back, if it has not come to its end by then.
fn drain(run: &Run) {
    let Some(node) = some_node(run) else { return };
    let ask = |cancel| MasterRequest::Drain { node, cancel };
    if run.cluster.peek_master(ask(false)) == Some(MasterReply::Done) && run.fault_rng.one_in(4) {
        let cluster = run.cluster.clone();
        let later = duration(run);
        let cancel = ask(true);
        run.later(later, move || drop(cluster.peek_master(cancel)));
    }
}

/// The master crashes while it repairs something, and its verbs may be on the way for long.
async fn crash_repairs(run: &Run) {
    let Some(name) = run.cluster.master().at_work() else { return };
    if run.fault_rng.one_in(2) {
        hold_some_links(run, name).await;
    }
    run.cluster.restart_master(1 + run.fault_rng.below_u64(1_000_000));
}

/// How long a disturbance lasts: mostly some phases, at times longer than operations wait.
fn duration(run: &Run) -> Nanos {
    let lease = run.shape.lease().as_nanos() as u64;
    let longest = match run.fault_rng.below(60) {
        0 => 2 * lease,
        1 => lease / 4,
        _ => run.fault_rng.pick(&[5_000, 50_000, 500_000]),
    };
    1_000 + run.fault_rng.below_u64(longest)
}

/// How long a node may be away: not so long that the cluster goes on without it, if that would be
/// the end of something. `None`: not at all.
fn duration_of(run: &Run, node: MnId) -> Option<Nanos> {
    let short = run.shape.lease().as_nanos() as u64 / 4;
    let time = duration(run);
    if time >= short && run.cluster.endanger(node, Danger::Lasting) {
        return Some(time);
    }
    run.cluster.disturb(node).then_some(time.min(short))
}

/// A node to disturb, and for how long.
fn disturbed_node(run: &Run) -> Option<(ProcessId, Nanos)> {
    let node = some_node(run)?;
    Some((run.cluster.process_of(node)?, duration_of(run, node)?))
}

fn stop(run: &Run) {
    let (process, time) = match run.fault_rng.below(6) {
        0 => (run.cluster.master().process.get(), duration(run)),
        1 => match disturbed_node(run) {
            Some(disturbed) => disturbed,
            None => return,
        },
        _ => match some_client(run) {
            Some(process) => (process, duration(run)),
            None => return,
        },
    };
    if run.sim.is_stopped(process) || run.sim.is_crashed(process) {
        return;
    }
    count(&run.sim.counts().stops);
    run.sim.stop(process);
    let sim = run.sim.clone();
    run.later(time, move || sim.resume(process));
}

fn partition(run: &Run) {
    let (process, time) = match run.fault_rng.below(4) {
        0 => match disturbed_node(run) {
            Some(disturbed) => disturbed,
            None => return,
        },
        _ => match some_client(run) {
            Some(process) => (process, duration(run)),
            None => return,
        },
    };
    count(&run.sim.counts().partitions);
    cut_off(run, process, time);
}

/// Mostly both ways.
fn cut_off(run: &Run, process: ProcessId, time: Nanos) {
    let cut = run.fault_rng.pick(&[Cut::Both, Cut::Both, Cut::ToMaster, Cut::FromMaster]);
    run.cluster.control().cut_off(process, Some(cut));
    let cluster = run.cluster.clone();
    run.later(time, move || cluster.control().cut_off(process, None));
}

/// A client and a memory node are cut off together, for longer than a lease: the cluster goes on
/// without both, and they go on without it. No more than half of the memory nodes: production
/// states that as a limit.
fn cut_together(run: &Run) {
    let (Some(client), Some(node)) = (some_client(run), some_primary(run)) else { return };
    let Some(process) = run.cluster.process_of(node) else { return };
    let control = run.cluster.control();
    let nodes = run.cluster.node_processes();
    let is_off = |process: &ProcessId| {
        let lives = !run.sim.is_crashed(*process);
        lives && (control.is_cut_off(*process) || run.sim.is_stopped(*process))
    };
    let off = nodes.iter().filter(|(_, process)| is_off(process)).count();
    let has_room = 2 * (off + 1) <= run.cluster.view().members.len();
    if !has_room || is_off(&process) || !run.cluster.endanger(node, Danger::Lasting) {
        return;
    }
    count(&run.sim.counts().common_partitions);
    let lease = run.shape.lease().as_nanos() as u64;
    let time = lease + run.fault_rng.below_u64(3 * lease);
    let both = [client, process];
    both.into_iter().for_each(|process| cut_off(run, process, time));
    if run.fault_rng.one_in(2) {
        // A connection that breaks is noticed long before a lease is over.
        let cluster = run.cluster.clone();
        run.sim.after(20_000, move || {
            both.into_iter().for_each(|process| cluster.master().closed(&cluster, process));
        });
    }
}

/// The master is gone for some leases. Meanwhile a primary crashes, or some clients do not reach it. By the clocks
/// of some memory nodes the master has been gone for long: nothing rests on them.
fn fall_silent(run: &Run) {
    let Some(node) = some_primary(run) else { return };
    let crashes = run.fault_rng.one_in(2);
    let danger = if crashes { Danger::Lasting } else { Danger::UntilSettled };
    let may = may_go_away(run) && run.cluster.master().is_running();
    if !may || !run.cluster.endanger(node, danger) {
        return;
    }
    count(&run.sim.counts().silences);
    let lease = run.shape.lease().as_nanos() as u64;
    let time = 2 * lease + run.fault_rng.below_u64(4 * lease);
    goes_away(run, time);
    run.cluster.restart_master(time);
    run.later(time, || ());
    for (other, _) in run.cluster.node_processes() {
        if run.fault_rng.one_in(3) {
            run.cluster.jump_clock(other, 1_000);
        }
    }
    if crashes {
        count(&run.sim.counts().node_crashes);
        run.cluster.crash_node(node);
        let cluster = run.cluster.clone();
        let later = duration(run);
        return run.later(time + later, move || cluster.start_node());
    }
    let clients: Vec<ClientId> = run.clients.borrow().values().copied().flatten().collect();
    for client in clients {
        if run.fault_rng.one_in(2) {
            run.cluster.network().hold(client, node, time + run.fault_rng.below_u64(lease));
        }
    }
}

/// The node of a primary of the index.
fn some_primary(run: &Run) -> Option<MnId> {
    let view = run.cluster.view();
    let subtable = run.fault_rng.below(view.subtables.len());
    let node = view.subtables[subtable].primary().node;
    run.cluster.network().has(node).then_some(node)
}

fn restart_master(run: &Run) {
    let master = run.cluster.master();
    if run.sim.now() < run.master_is_away.get().0 {
        return;
    }
    if !master.is_running() {
        // It crashed later than the restart of that time had reckoned with.
        return run.cluster.restart_master(0);
    }
    master.crash_in(run.fault_rng.below(6) as u32, duration(run));
}
