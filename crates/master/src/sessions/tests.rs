//! Tests of given blocks while a recovery is reported late.

use fusee_core::data::Region;
use fusee_core::race::HashKey;
use fusee_core::verbs::{ClusterId, MnId};
use fusee_core::view::{Geometry, PoolPlace};

use super::*;

const BLOCK: BlockId = BlockId { region: 0, frame: 0, order: 0 };
const START: SessionStart = SessionStart { view: 1, epoch: 1 };

fn view() -> View {
    View {
        number: 1,
        cluster: ClusterId::from_word(1).unwrap(),
        hash_key: HashKey::new([7; 16]),
        geometry: Geometry { region_bytes: 1 << 17, block_bytes: 1 << 12, ..Default::default() },
        members: Vec::new(),
        regions: vec![Region::replicated(vec![PoolPlace { node: MnId(0), offset: 0 }], 1)],
        directory: Vec::new(),
        subtables: Vec::new(),
        change: None,
    }
}

fn orphan_of(owner: ClientId) -> Orphan {
    Orphan {
        block: BLOCK,
        owner,
        class: SizeClass::from_code(1).unwrap(),
        first: 1,
        base: Some(0),
        marked: Some(1),
    }
}

/// A session that has died, a session that has since got the dead session's block from the pool, and two sessions that
/// take orphaned blocks. (A job that recovers several clients frees blocks long before it ends.)
struct LateRecovery {
    sessions: SessionRegistry,
    died: ClientId,
    owner: ClientId,
    taker: ClientId,
    next_taker: ClientId,
}

impl LateRecovery {
    fn new() -> LateRecovery {
        let mut sessions = SessionRegistry::new(1);
        let [died, owner, taker, next_taker] =
            [(); 4].map(|()| sessions.open(0, 1, START, &mut Vec::new()).unwrap());
        assert!(sessions.expire(died, &mut Vec::new()));
        LateRecovery { sessions, died, owner, taker, next_taker }
    }

    fn close(&mut self, client: ClientId, orphans: &[Orphan]) {
        self.sessions.close(client, orphans, &view(), &mut Vec::new()).unwrap();
    }

    fn take(&mut self, client: ClientId) -> Option<Orphan> {
        let class = Some(orphan_of(client).class);
        self.sessions.take_orphan(OrphanTaker { client, turn: 1 }, class, |_| true, &mut Vec::new())
    }

    fn recover(&mut self) {
        self.sessions.recovered(self.died, &[BLOCK], &[], &view(), &mut Vec::new());
    }
}

#[test]
fn what_a_recovery_freed_and_another_session_left_since_is_not_lost() {
    let mut world = LateRecovery::new();
    let orphan = orphan_of(world.owner);
    world.close(world.owner, &[orphan]);
    assert_eq!(world.take(world.taker), Some(orphan));
    world.recover();
    world.close(world.taker, &[]);
    assert_eq!(world.take(world.next_taker), Some(orphan), "the taker did not take it over");
}

/// The block waits for the end of its owner when the recovery is reported.
#[test]
fn nor_is_it_lost_while_its_owner_lives() {
    let mut world = LateRecovery::new();
    let orphan = orphan_of(world.owner);
    let hand_over =
        HandOver { client: world.owner, serial: 1, orphans: vec![orphan], used: Vec::new() };
    world.sessions.hand_on(&hand_over, 0, &view(), &mut Vec::new()).unwrap();
    assert_eq!(world.take(world.taker), Some(orphan));
    world.close(world.taker, &[]);
    world.recover();
    assert_eq!(world.take(world.next_taker), None, "its owner may have it again");
    world.close(world.owner, &[]);
    assert_eq!(world.take(world.next_taker), Some(orphan));
}
