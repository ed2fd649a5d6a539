//! The adversary: a task that injects the faults of the run at random times.

use fusee_control::master::{MasterReply, MasterRequest};
use fusee_core::verbs::{ClientId, MnId};
use fusee_core::view::change::{ChangeStage, ViewChange};

use crate::control::CutDirection;
use crate::counts::count;
use crate::danger::Danger;
use crate::engine::{Nanos, ProcessId};
use crate::master::OTHER_CLUSTER;
use crate::run::SimRun;
use crate::scenario::Fault;

/// Injects faults until no operations are left, or until the run allows no more faults.
pub(crate) async fn run(run: &SimRun) {
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
        // The run has possibly ended during the sleep. Then its final checks possibly read the cluster already.
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
            Fault::Damage => damage(run),
            Fault::LateVerb => hold_a_link(run),
            Fault::LateOrder => hold_orders(run).await,
            Fault::ForeignMaster => usurp(run),
            other => unreachable!("{other:?} comes by other ways"),
        }
    }
}

fn some_client(run: &SimRun) -> Option<ProcessId> {
    let clients: Vec<ProcessId> = run.clients.borrow().keys().copied().collect();
    (!clients.is_empty()).then(|| run.fault_rng.pick(&clients))
}

fn some_node(run: &SimRun) -> Option<MnId> {
    let nodes = run.cluster.checks().living_nodes();
    (!nodes.is_empty()).then(|| run.fault_rng.pick(&nodes))
}

/// Crashes a client. Sometimes the client's last verbs are delayed for a long time, until recovery has ended.
async fn crash_client(run: &SimRun) {
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

/// Holds some links of a client, each for less than the timeout of a verb. Then waits a little, so that the client
/// posts verbs on these links.
async fn hold_some_links(run: &SimRun, client: ClientId) {
    let network = run.cluster.network();
    for node in run.cluster.checks().living_nodes() {
        if run.fault_rng.one_in(2) {
            let longest = network.options().verb_timeout_ns;
            network.links().hold(client, node, run.fault_rng.below_u64(longest));
        }
    }
    run.sim.sleep(run.fault_rng.below_u64(20_000)).await;
}

/// Holds a link for longer than the client waits for an answer: the client gives up the verbs that it has posted, and
/// they arrive later.
fn hold_a_link(run: &SimRun) {
    let (Some(process), Some(node)) = (some_client(run), some_node(run)) else { return };
    let Some(client) = run.clients.borrow().get(&process).copied().flatten() else { return };
    let network = run.cluster.network();
    let lease = run.shape.lease().as_nanos() as u64;
    let late = run.fault_rng.pick(&[500_000, 5_000_000, lease]);
    let time = network.options().verb_timeout_ns + run.fault_rng.below_u64(late);
    network.links().hold(client, node, time);
}

/// Delays the requests of the running job to a memory node, sometimes until the job has been given up. In half of the
/// cases, the master restarts once a request is delayed.
async fn hold_orders(run: &SimRun) {
    let master = run.cluster.master();
    let (Some(_), Some(node)) = (master.at_work(), some_node(run)) else { return };
    let counts = run.sim.counts();
    let before = counts.late_orders.get();
    let longest = run.fault_rng.pick(&[2_000_000, 20_000_000, 200_000_000]);
    run.cluster.nodes().hold_orders(node, run.fault_rng.below_u64(longest));
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

/// Replaces the cluster's master for a while by a master with an empty store, or with the store of another cluster.
fn usurp(run: &SimRun) {
    let lease = run.shape.lease().as_nanos() as u64;
    let time = run.fault_rng.below_u64(3 * lease);
    let other = run.fault_rng.pick(&[None, Some(OTHER_CLUSTER)]);
    if may_go_away(run) && run.cluster.master().usurp(&run.cluster, other) {
        goes_away(run, time);
        let cluster = run.cluster.clone();
        run.later(time, move || cluster.master().reinstate(&cluster));
    }
}

/// Returns whether enough time has passed since the last absence of the master for another long absence.
fn may_go_away(run: &SimRun) -> bool {
    run.sim.now() >= run.master_is_away.get().1
}

/// Records that the master is away for `time`, and until when it must not be away for long again.
fn goes_away(run: &SimRun, time: Nanos) {
    let lease = run.shape.lease().as_nanos() as u64;
    let back = run.sim.now() + time;
    run.master_is_away.set((back, back + run.fault_rng.below_u64(8 * lease)));
}

/// Crashes one node, or several at once if the run allows it, but never the last replica of anything. Empty nodes
/// replace the crashed ones later.
async fn crash_node(run: &SimRun) {
    let at_once = match run.shape.losses_at_once {
        1 => 1,
        most => 1 + run.fault_rng.below(most),
    };
    let mut crashed = 0;
    for _ in 0..at_once {
        let Some(node) = some_node(run) else { break };
        if run.cluster.view().members.len() > 1
            && run.cluster.dangers().endanger(node, Danger::Lasting)
        {
            if run.faults.contains(&Fault::Mute) {
                fall_mute(run, node).await;
            }
            count(&run.sim.counts().node_crashes);
            run.cluster.nodes().crash(node);
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
        // Some clients possibly die at the same time, in the middle of their operations, as if they ran on the crashed
        // node's machine.
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

/// Lets a node execute verbs of some clients without an answer before the node crashes. This lasts long enough for
/// other clients to see the effects.
async fn fall_mute(run: &SimRun, node: MnId) {
    let clients: Vec<ClientId> = run.clients.borrow().values().copied().flatten().collect();
    for client in clients {
        if run.fault_rng.one_in(2) {
            run.cluster.network().links().mute(client, node);
        }
    }
    let timeout = run.cluster.network().options().verb_timeout_ns;
    run.sim.sleep(run.fault_rng.below_u64(3 * timeout)).await;
}

/// Damages a word of a live object on one replica, if another whole replica is on a node that is not in danger. Does
/// nothing while a change has switched and not ended: sessions at the earlier view know only the earlier replicas, of
/// which possibly only one is left.
fn damage(run: &SimRun) {
    let cluster = &run.cluster;
    let is_switched = |change: &ViewChange| change.stage == ChangeStage::Switched;
    if cluster.view().change.as_ref().is_some_and(is_switched) {
        return;
    }
    let living = cluster.checks().living_nodes();
    let is_safe = |node| living.contains(&node) && !cluster.dangers().includes(node);
    cluster.network().damage().inflict_beside(&run.fault_rng, is_safe);
}

/// The greatest number of live memory nodes, whether members of the view or not.
const MOST_NODES: usize = 8;

fn join(run: &SimRun) {
    let nodes = run.cluster.nodes().processes().into_iter();
    if nodes.filter(|(_, process)| !run.sim.is_crashed(*process)).count() < MOST_NODES {
        run.cluster.start_node();
    }
}

/// Asks the master for a drain of a node, which the master can refuse. One of four drains is cancelled later; the
/// cancellation has no effect if the drain has already ended.
fn drain(run: &SimRun) {
    let Some(node) = some_node(run) else { return };
    let ask = |cancel| MasterRequest::Drain { node, cancel };
    if run.cluster.peek_master(ask(false)) == Some(MasterReply::Done) && run.fault_rng.one_in(4) {
        let cluster = run.cluster.clone();
        let later = duration(run);
        let cancel = ask(true);
        run.later(later, move || drop(cluster.peek_master(cancel)));
    }
}

/// Crashes the master during a job. Sometimes the job's verbs are delayed for a long time.
async fn crash_repairs(run: &SimRun) {
    let Some(name) = run.cluster.master().at_work() else { return };
    if run.fault_rng.one_in(2) {
        hold_some_links(run, name).await;
    }
    run.cluster.restart_master(1 + run.fault_rng.below_u64(1_000_000));
}

/// Draws the duration of a disturbance: mostly the time of some phases, sometimes longer than an operation's timeout.
fn duration(run: &SimRun) -> Nanos {
    let lease = run.shape.lease().as_nanos() as u64;
    let longest = match run.fault_rng.below(60) {
        0 => 2 * lease,
        1 => lease / 4,
        _ => run.fault_rng.pick(&[5_000, 50_000, 500_000]),
    };
    1_000 + run.fault_rng.below_u64(longest)
}

/// Draws the time for which a node is disturbed. The time is short if the cluster must not lose the node. Returns
/// `None` if the node must not be disturbed at all.
fn duration_of(run: &SimRun, node: MnId) -> Option<Nanos> {
    let short = run.shape.lease().as_nanos() as u64 / 4;
    let time = duration(run);
    if time >= short && run.cluster.dangers().endanger(node, Danger::Lasting) {
        return Some(time);
    }
    run.cluster.dangers().disturb(node).then_some(time.min(short))
}

/// Draws a node to disturb, and the duration of the disturbance; `None` if no node is to be disturbed.
fn disturbed_node(run: &SimRun) -> Option<(ProcessId, Nanos)> {
    let node = some_node(run)?;
    Some((run.cluster.nodes().process_of(node)?, duration_of(run, node)?))
}

fn stop(run: &SimRun) {
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

fn partition(run: &SimRun) {
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

/// Cuts a process off from the master for `time`, mostly in both directions.
fn cut_off(run: &SimRun, process: ProcessId, time: Nanos) {
    let cut = run.fault_rng.pick(&[
        CutDirection::Both,
        CutDirection::Both,
        CutDirection::ToMaster,
        CutDirection::FromMaster,
    ]);
    run.cluster.control().cut_off(process, Some(cut));
    let cluster = run.cluster.clone();
    run.later(time, move || cluster.control().cut_off(process, None));
}

/// Cuts off a client and a memory node together for longer than a lease. The cluster continues without both of them,
/// and the two can still reach each other. No more than half of the memory nodes are cut off at a time. Together with
/// more than half of them, the client could return old values, which is a documented limit.
fn cut_together(run: &SimRun) {
    let (Some(client), Some(node)) = (some_client(run), some_primary(run)) else { return };
    let Some(process) = run.cluster.nodes().process_of(node) else { return };
    let control = run.cluster.control();
    let nodes = run.cluster.nodes().processes();
    let is_off = |process: &ProcessId| {
        let lives = !run.sim.is_crashed(*process);
        lives && (control.is_cut_off(*process) || run.sim.is_stopped(*process))
    };
    let off = nodes.iter().filter(|(_, process)| is_off(process)).count();
    let has_room = 2 * (off + 1) <= run.cluster.view().members.len();
    if !has_room || is_off(&process) || !run.cluster.dangers().endanger(node, Danger::Lasting) {
        return;
    }
    count(&run.sim.counts().common_partitions);
    let lease = run.shape.lease().as_nanos() as u64;
    let time = lease + run.fault_rng.below_u64(3 * lease);
    let both = [client, process];
    both.into_iter().for_each(|process| cut_off(run, process, time));
    if run.fault_rng.one_in(2) {
        // The master notices a broken connection long before a lease has passed.
        let cluster = run.cluster.clone();
        run.sim.after(20_000, move || {
            both.into_iter().for_each(|process| cluster.master().closed(&cluster, process));
        });
    }
}

/// Stops the master for some leases. Meanwhile a primary crashes, or some clients do not reach a primary. The clocks of
/// some memory nodes jump, as if the master had been away for longer. Guarantees must hold whatever these clocks show.
fn fall_silent(run: &SimRun) {
    let Some(node) = some_primary(run) else { return };
    let crashes = run.fault_rng.one_in(2);
    let danger = if crashes { Danger::Lasting } else { Danger::UntilSettled };
    let may = may_go_away(run) && run.cluster.master().is_running();
    if !may || !run.cluster.dangers().endanger(node, danger) {
        return;
    }
    count(&run.sim.counts().silences);
    let lease = run.shape.lease().as_nanos() as u64;
    let time = 2 * lease + run.fault_rng.below_u64(4 * lease);
    goes_away(run, time);
    run.cluster.restart_master(time);
    run.later(time, || ());
    for (other, _) in run.cluster.nodes().processes() {
        if run.fault_rng.one_in(3) {
            run.cluster.nodes().jump_clock(other, 1_000);
        }
    }
    if crashes {
        count(&run.sim.counts().node_crashes);
        run.cluster.nodes().crash(node);
        let cluster = run.cluster.clone();
        let later = duration(run);
        return run.later(time + later, move || cluster.start_node());
    }
    let clients: Vec<ClientId> = run.clients.borrow().values().copied().flatten().collect();
    for client in clients {
        if run.fault_rng.one_in(2) {
            run.cluster.network().links().hold(client, node, time + run.fault_rng.below_u64(lease));
        }
    }
}

/// Draws a node that has the primary of some subtable.
fn some_primary(run: &SimRun) -> Option<MnId> {
    let view = run.cluster.view();
    let subtable = run.fault_rng.below(view.subtables.len());
    let node = view.subtables[subtable].primary().node;
    run.cluster.network().memories().has(node).then_some(node)
}

fn restart_master(run: &SimRun) {
    let master = run.cluster.master();
    if run.sim.now() < run.master_is_away.get().0 {
        return;
    }
    if !master.is_running() {
        // The planned crash of the master happened late, after the restart that was planned for it.
        return run.cluster.restart_master(0);
    }
    master.crash_in(run.fault_rng.below(6) as u32, duration(run));
}
