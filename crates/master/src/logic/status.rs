//! The state of the cluster as the master sees it, for operators.

use fusee_control::master::{MemberState, MemberStatus, Status};
use fusee_core::data::Redundancy;
use fusee_core::verbs::MnId;
use fusee_core::view::{Member, View};

use super::MasterState;
use super::admission::MemberAdmission;
use super::context::EventContext;
use super::facts::ClusterFacts;

impl MasterState {
    /// Returns the state of the cluster for operators.
    pub(super) fn status(&self, ctx: &EventContext<'_>) -> Status {
        let cluster = &self.cluster;
        let view = cluster.view.as_ref();
        let replicas = |places: Option<usize>, setting| places.map_or(setting, |n| n as u8);
        let index = view.and_then(|view| view.subtables.iter().map(|s| s.replicas().len()).min());
        let replicated = |view: &View| {
            let regions = view.regions.iter();
            let replicated = regions.filter(|r| r.redundancy() == Redundancy::Replicated);
            replicated.map(|r| r.places().len()).min()
        };
        let data = view.and_then(replicated);
        let status = |member: &Member| MemberStatus {
            node: member.node,
            control: member.control.clone(),
            state: state_of(cluster, &self.admission, member.node),
        };
        let gone = cluster.roster.lost().chain(cluster.roster.drained());
        let mut members: Vec<MemberStatus> =
            cluster.roster.nodes().chain(gone).map(status).collect();
        members.sort_by_key(|member| member.node);
        let (recoveries, last_recoveries) = self.history.recoveries();
        let (reconfigurations, last_reconfigurations) = self.history.reconfigurations();
        let nothing = || {
            self.identity.cluster().is_none().then(|| {
                "no cluster: start this master on the store of one (--data-dir, or --store), or form a new one \
                 with `fusee form`"
                    .to_owned()
            })
        };
        let (more_regions, no_region) = cluster.more_regions(ctx);
        Status {
            cluster: self.identity.cluster(),
            expected_memory_nodes: ctx.settings.memory_nodes,
            members,
            index_replicas: replicas(index, ctx.settings.index_replicas),
            data_replicas: replicas(data, ctx.settings.data_replicas),
            wanted_index_replicas: ctx.settings.index_replicas,
            wanted_data_replicas: ctx.settings.data_replicas,
            missing_replicas: cluster.missing_replicas(ctx),
            rebalancing: cluster.next_moves().is_some() || cluster.is_moving(),
            open_sessions: cluster.sessions.open_sessions().count() as u64,
            expired_sessions: cluster.sessions.expired().count() as u64,
            sessions_opened: cluster.sessions.opened_count(),
            view: view.cloned(),
            view_age_ms: ctx.now_ms.saturating_sub(self.history.since_ms()),
            recoveries,
            last_recoveries,
            reconfigurations,
            last_reconfigurations,
            damage: cluster.sessions.damage(),
            policy: ctx.settings.redundancy,
            transitions: cluster.sessions.transitions(),
            work: cluster.sessions.work(),
            epoch: self.epochs.epochs(cluster, &self.jobs).newest,
            lease_ms: ctx.settings.lease.lease_ms,
            scrub: self.scrub.scrubbed(),
            problem: cluster.problem.clone().or_else(nothing).or(self.splits.problem(ctx.now_ms)),
            more_regions,
            no_region,
        }
    }
}

fn state_of(cluster: &ClusterFacts, admission: &MemberAdmission, node: MnId) -> MemberState {
    if cluster.roster.is_lost(node) || cluster.failed.has(node) {
        MemberState::Lost
    } else if cluster.roster.is_drained(node) {
        MemberState::Drained
    } else if cluster.roster.is_draining(node) {
        MemberState::Draining
    } else if cluster.in_view(node) {
        MemberState::InView
    } else if admission.is_for(node) {
        MemberState::Joining
    } else {
        MemberState::Waiting
    }
}
