//! Whoever puts right what went wrong: recovers clients, settles the index after a loss.
//!
//! The repairs themselves are production code (`fusee_core::recovery`, `fusee_core::repair`), and
//! so are the memory nodes that fence. What the operator stands in for is the one who decides when:
//! it is told about crashes instead of suspecting them, and stops clients by a word instead of a
//! lease. Like everybody it may crash anywhere; another one begins again.

use std::collections::BTreeSet;

use fusee_control::master::{Leftover, MasterRequest};
use fusee_control::node::{BlockId, NodeReply, NodeRequest};
use fusee_core::mutant::{Mutant, removed};
use fusee_core::recovery::{RecoveryError, Report, recover};
use fusee_core::repair::transform;
use fusee_core::verbs::{ClientId, MnId};
use fusee_core::view::View;

use crate::counts::count;
use crate::engine::{Nanos, ProcessId};
use crate::fabric::SimFabric;
use crate::run::Run;

/// How long it waits for an answer before it asks again.
const PATIENCE_NS: Nanos = 1_000_000;
/// How often it looks whether there is something to do.
const LOOK_NS: Nanos = 10_000;

/// Puts things right until nothing more can go wrong.
pub(crate) async fn run(run: &Run, process: ProcessId) {
    // What a predecessor has posted may still be on its way: two would repair at once.
    for name in run.dead_operators() {
        fence(run, name).await;
    }
    run.operators_are_fenced();
    while !run.is_over() {
        if !run.lost_nodes().is_empty() {
            settle(run).await;
        } else if let Some(client) = run.next_torn() {
            // Detection takes its time.
            run.sim.sleep(run.fault_rng.below_u64(run.fault_rng.pick(&[1, 30_000, 300_000]))).await;
            if run.lost_nodes().is_empty() && recover_client(run, process, client).await {
                run.recovered(client);
                count(&run.sim.counts().client_recoveries);
            }
        } else {
            run.sim.sleep(LOOK_NS).await;
        }
    }
}

/// Shuts a client out everywhere. That it has been is remembered, as a master's store would: else
/// operators that die too soon would begin with the first client for ever.
async fn fence(run: &Run, client: ClientId) {
    if run.fenced.borrow().contains(&client) {
        return;
    }
    for node in run.living_nodes() {
        while run.cluster.network().has(node) {
            let request = NodeRequest::Fence { client };
            let answer = run.cluster.ask_node(node, request, PATIENCE_NS).await;
            if answer == Ok(NodeReply::Done) {
                break;
            }
        }
    }
    run.fenced.borrow_mut().insert(client);
}

/// The blocks that stand under a client's name at any node; `None` if one cannot be asked.
async fn blocks_of(run: &Run, client: ClientId) -> Option<BTreeSet<BlockId>> {
    let mut all = BTreeSet::new();
    for node in run.living_nodes() {
        let request = NodeRequest::BlocksOf { client };
        match run.cluster.ask_node(node, request, PATIENCE_NS).await {
            Ok(NodeReply::Blocks(blocks)) => all.extend(blocks),
            _ => return None,
        }
    }
    Some(all)
}

/// Returns whether it is done; else it is to be tried again.
async fn recover_client(run: &Run, process: ProcessId, client: ClientId) -> bool {
    if !removed(Mutant::RecoveryBeforeTheFence) {
        fence(run, client).await;
    }
    let Some(blocks) = blocks_of(run, client).await else { return false };
    let view = run.cluster.view().clone();
    let addresses: Vec<_> =
        blocks.iter().map(|b| view.geometry.block_address(b.region, b.block)).collect();
    let fabric = SimFabric::new(run.cluster.network(), run.operator_id());
    match recover(&fabric, &view, client, &addresses).await {
        Ok(report) => {
            assert_eq!(report.strange, 0, "{client} left what no client leaves: {report:?}");
            hand_on(run, process, client, &view, &report).await;
            true
        }
        // A lost completion, or one more node: with new queue pairs, or in the next view.
        Err(RecoveryError::Unreachable(_)) => false,
    }
}

/// The rests of its blocks go to whoever needs them.
async fn hand_on(run: &Run, process: ProcessId, owner: ClientId, view: &View, report: &Report) {
    let leftover = |block: &fusee_core::recovery::BlockReport| {
        let rest = block.rest(view.geometry.block_bytes)?;
        let (region, block) = view.geometry.block_at(rest.block)?;
        let block = BlockId { region, block };
        Some(Leftover { block, owner, class: rest.class, first: rest.first })
    };
    let leftovers = report.blocks.iter().filter_map(leftover).collect();
    let request = MasterRequest::Close { client: owner, leftovers };
    // Should it get lost, the rests are.
    let _told = run.cluster.ask_master(process, request, PATIENCE_NS).await;
}

/// After the loss of memory nodes: clients stop, the survivors of every slot are made equal, a
/// view without the lost nodes begins.
async fn settle(run: &Run) {
    run.freeze(true);
    while run.sessions_are_open() {
        run.sim.sleep(LOOK_NS).await;
    }
    for client in run.all_torn() {
        fence(run, client).await;
    }
    let lost: Vec<MnId> = run.lost_nodes();
    let frozen = run.cluster.view().without(&lost).expect("everything has a replica left");
    let transforming = frozen.advanced();
    let fabric = SimFabric::new(run.cluster.network(), run.operator_id());
    if transform(&fabric, &transforming).await.is_err() || run.lost_nodes() != lost {
        return;
    }
    let view = transforming.advanced().advanced();
    view.check().expect("a view that follows from one that is right");
    run.cluster.set_view(view);
    run.freeze(false);
}
