//! The reports of jobs that have succeeded.

use fusee_control::count_with_noun;
use fusee_control::events::{Level, Topic};
use fusee_core::stats::Damage;

use super::context::EventContext;
use super::decision::Decision;
use super::facts::ClusterFacts;
use super::job_scheduler::FinishedJob;
use super::scrubbing::ScrubbedSlots;
use super::{MasterAction, MasterState};
use crate::jobs::{JobReport, RecoveredClient};

impl MasterState {
    /// Handles the report of a job that has succeeded.
    pub(super) fn take_report(&mut self, ctx: &mut EventContext<'_>, job: FinishedJob) {
        let is_current = self.cluster.view_number() == Some(job.view);
        match job.report {
            JobReport::Scrubbed { subtable, first, looked } => {
                let MasterState { scrub, cluster, .. } = self;
                let scrubbed = ScrubbedSlots { subtable, first, is_current };
                scrub.take_findings(ctx, cluster, scrubbed, looked);
            }
            JobReport::Cleared { slots_changed } => {
                if is_current {
                    if slots_changed > 0 {
                        let text = format!("{slots_changed} moved entries are cleared");
                        ctx.info(Topic::Repair, text);
                    }
                    // Replicas that found no room before possibly find room now.
                    ctx.decide(Decision::LookAgain);
                    self.advance(ctx);
                }
            }
            JobReport::Transformed { slots_changed, bytes_copied, damaged } => {
                self.cluster.sessions.add_damage(Damage { found: damaged, repaired: 0 });
                if damaged > 0 {
                    let text = format!(
                        "damaged where it was copied from: {}; the copies are of other replicas",
                        count_with_noun(damaged, "object")
                    );
                    ctx.warn(Topic::Damage, text);
                }
                if is_current {
                    let text = format!(
                        "replicas are equal: {} changed, {} copied",
                        count_with_noun(slots_changed, "slot"),
                        count_with_noun(bytes_copied, "byte")
                    );
                    ctx.info(Topic::Repair, text);
                    self.advance(ctx);
                }
            }
            JobReport::Recovered(recovered) => self.clients_recovered(ctx, recovered),
        }
    }

    fn clients_recovered(&mut self, ctx: &mut EventContext<'_>, all: Vec<RecoveredClient>) {
        let MasterState { cluster, fences, history, .. } = self;
        let ClusterFacts { view: Some(view), sessions, .. } = cluster else { return };
        let mut writes = Vec::new();
        let mut texts = Vec::new();
        for RecoveredClient { recovery, owned, orphans } in all {
            let client = recovery.client;
            let writes_before = writes.len();
            sessions.recovered(client, &owned, &orphans, view, &mut writes);
            if writes.len() == writes_before {
                continue;
            }
            fences.forget_client(client);
            let text = format!(
                "{client} is recovered: {}, {} completed, {} withdrawn",
                count_with_noun(recovery.blocks, "block"),
                count_with_noun(recovery.committed, "write"),
                recovery.withdrawn
            );
            texts.push((Level::Info, text));
            if recovery.strange > 0 {
                let text = format!("{client} left {} things no client leaves", recovery.strange);
                texts.push((Level::Warn, text));
            }
            history.recovered(recovery);
        }
        ctx.persist(writes);
        for (level, text) in texts {
            ctx.push(MasterAction::Tell(level, Some(Topic::Session), text));
        }
    }
}
