//! Tests of a memory node's bars: which members it bars, for which sessions, and until when.

use fusee_control::master::MasterReplyId;
use fusee_control::node::{Bar, NodeDescription, NodeRefusal, NodeReply, NodeRequest};
use fusee_core::layout::{HeaderWord, MAX_BARS, bar_word};
use fusee_core::verbs::{ClientId, ClusterId, MnId};
use fusee_memory_node::logic::{NodeDecision, NodeEffect, NodeLogic};

const CLUSTER: ClusterId = ClusterId::from_word(77).unwrap();

/// Makes a node that belongs to a cluster.
fn node() -> NodeLogic {
    let pool_bytes = 1 << 20;
    let mut node = NodeLogic::new(NodeDescription {
        identity: 5,
        pool_bytes,
        tcp: None,
        shm: None,
        verbs: None,
    });
    node.handle(NodeRequest::Format { cluster: CLUSTER, attempt: 1 });
    node
}

fn refusal(step: NodeDecision) -> NodeRefusal {
    match step {
        NodeDecision { reply: NodeReply::Refused(refusal), effects } => {
            assert_eq!(effects, [], "a refused request has no effect");
            refusal
        }
        other => panic!("unexpected {other:?}"),
    }
}

#[test]
fn a_node_bars_for_who_hears_no_master_and_shows_it() {
    let mut node = node();
    let client = ClientId(7);
    let bar = |of, view| NodeRequest::Bar { client, node: MnId(of), view };
    let (at, barred) =
        (|i, value| NodeEffect::WriteHeader { word: HeaderWord::Bar(i), value }, 3_000);
    node.note_master_reply(MasterReplyId { by: 1, at_ms: 1 }, barred);
    node.note_master_reply(MasterReplyId { by: 1, at_ms: 2 }, 1_000);
    node.pass(1_000);
    assert_eq!(refusal(node.handle(bar(4, 5))), NodeRefusal::HearsMaster);
    node.pass(1_001);
    let done = NodeReply::Barred { lease_ms: barred };
    let step = node.handle(bar(4, 5));
    let effects = vec![at(0, bar_word(MnId(4), 5))];
    assert_eq!(step, NodeDecision { effects, reply: done.clone() }, "the longest lease of all");
    assert_eq!(node.handle(bar(4, 3)), NodeDecision { effects: vec![], reply: done.clone() });
    node.note_master_reply(MasterReplyId { by: 1, at_ms: 3 }, 1_000);
    assert_eq!(node.handle(bar(4, 5)).reply, done, "it is barred already");
    assert_eq!(refusal(node.handle(bar(9, 5))), NodeRefusal::HearsMaster);

    // A bar for a later view replaces the bar for the earlier view, and stays after a change that settles only the
    // words read because of the earlier bar.
    assert_eq!(refusal(node.handle(bar(4, 6))), NodeRefusal::HearsMaster);
    node.pass(2_002);
    let step = node.handle(bar(4, 6));
    assert_eq!(step.effects, [at(0, bar_word(MnId(4), 6))]);
    let unbar =
        |view| NodeRequest::Unbar { cluster: CLUSTER, bars: vec![Bar { node: MnId(4), view }] };
    let told = |reply| match reply {
        NodeReply::Bars(bars) => (bars.changes, bars.bars.len()),
        other => panic!("{other:?}"),
    };
    assert_eq!(told(node.handle(unbar(5)).reply), (2, 1));
    let stand = NodeRequest::StandAt { cluster: CLUSTER, view: 7 };
    assert_eq!(told(node.handle(stand).reply), (2, 1), "bars stand until all is settled");
    assert_eq!(refusal(node.handle(bar(4, 6))), NodeRefusal::LaterView { view: 7 });
    let step = node.handle(unbar(6));
    assert_eq!((step.effects, told(step.reply)), (vec![at(0, 0)], (3, 0)));
    assert_eq!(node.heartbeat_report().0, Some(MasterReplyId { by: 1, at_ms: 3 }));

    node.pass(10_000);
    node.handle(NodeRequest::Fence { clients: vec![client] });
    assert_eq!(refusal(node.handle(bar(4, 8))), NodeRefusal::Fenced { client });
    let other = |of| NodeRequest::Bar { client: ClientId(8), node: MnId(of), view: 8 };
    for of in 0..MAX_BARS as u16 {
        assert!(matches!(node.handle(other(of)).reply, NodeReply::Barred { .. }));
    }
    let refused = refusal(node.handle(other(90)));
    assert!(matches!(refused, NodeRefusal::BadRequest { .. }), "so many are enough: {refused:?}");
}
