//! Memory nodes that join. The parent module explains names and identities.

use fusee_control::events::Topic;
use std::net::IpAddr;

use fusee_control::master::MasterReply;
use fusee_core::verbs::MnId;
use fusee_core::view::Member;

use super::context::EventContext;
use super::decision::Decision;
use super::facts::ClusterFacts;
use super::failure_detector::FailureDetector;
use super::{MasterState, refused};
use crate::record::RecordWrite;
use crate::settings::MAX_MEMORY_NODES;

/// The limit on the length of an address.
const MAX_ADDRESS_BYTES: usize = 512;

impl MasterState {
    /// Handles a join. `elsewhere` tells that the node is known to be on another machine than this master.
    pub(super) fn join(
        &mut self,
        ctx: &mut EventContext<'_>,
        new: Member,
        elsewhere: bool,
    ) -> MasterReply {
        if let Err(what) = check_member(&new) {
            return refused(what);
        }
        let known = self.cluster.roster.find(new.identity);
        let same = |known: &Member| *known == Member { node: known.node, ..new.clone() };
        if !known.is_some_and(same)
            && let Err(what) = check_fits(&self.cluster, &new, elsewhere)
        {
            return refused(what);
        }
        if let Some(known) = known.cloned() {
            return self.join_again(ctx, &known, new);
        }
        if self.cluster.roster.lost().any(|lost| lost.identity == new.identity) {
            return refused("the cluster goes on without this node; restart it to join empty");
        }
        if self.cluster.roster.drained().any(|drained| drained.identity == new.identity) {
            return refused("this node has been drained; restart it to join empty");
        }
        let unused = |member: &&Member| !self.cluster.in_view(member.node);
        let old = self.cluster.roster.nodes().filter(unused).find(|old| old.control == new.control);
        let is_full = self.cluster.roster.nodes().len() >= MAX_MEMORY_NODES as usize;
        let old = old
            .map(|old| old.node)
            .or_else(|| idle_candidate(&self.cluster, &self.detector).filter(|_| is_full));
        if !self.cluster.roster.has_names() || (is_full && old.is_none()) {
            return refused("too many memory nodes have joined");
        }
        let mut writes = Vec::new();
        // The new node gets its name before the old node's name becomes free.
        let Some(new) = self.cluster.roster.add(new, &mut writes) else {
            return refused("no name is left");
        };
        let node = new.node;
        if let Some(old) = old {
            ctx.info(Topic::Member, format!("{node} takes the place of {old}"));
            self.forget_candidate(ctx, old, &mut writes);
            self.formation.abandon_attempt_of(ctx, old);
        }
        self.displace_former_node(ctx, &new, &mut writes);
        ctx.persist(writes);
        let text = format!("{node} joined from {}", new.control);
        ctx.info(Topic::Member, text);
        self.arrived(ctx, node);
        MasterReply::Joined { node }
    }

    /// Forgets a node that no view has ever listed. The node holds nothing, and no other process knows it; if it comes
    /// back, it joins anew. Its name becomes free.
    pub(super) fn forget_candidate(
        &mut self,
        ctx: &mut EventContext<'_>,
        node: MnId,
        writes: &mut Vec<RecordWrite>,
    ) {
        debug_assert!(!self.cluster.in_view(node), "a member is lost or drained, never forgotten");
        if self.cluster.view.is_none()
            && let Some(identity) = self.cluster.roster.identity_of(node)
        {
            self.identity.note_forgotten(identity);
        }
        self.detector.forget(node);
        self.admission.forget(node);
        // Otherwise the node's late answers would count as answers of the next node with the node's name.
        ctx.calls.cancel_node(node);
        self.cluster.roster.forget(node, writes);
    }

    /// Deals with another node of the same control address: either the old process has ended, or the new node announces
    /// an address that is not its own. A lost or drained node is forgotten; a member is asked whether it still runs.
    fn displace_former_node(
        &mut self,
        ctx: &mut EventContext<'_>,
        new: &Member,
        writes: &mut Vec<RecordWrite>,
    ) {
        self.cluster.roster.take_place(&new.control, writes);
        let here = |member: &&Member| member.control == new.control;
        let old = self
            .cluster
            .view
            .as_ref()
            .and_then(|view| view.members.iter().find(here))
            .map(|m| m.node);
        if let Some(old) = old {
            // The identity in the answer tells which of the two processes listens at the address.
            ctx.decide(Decision::Probe(old));
        }
    }

    fn join_again(
        &mut self,
        ctx: &mut EventContext<'_>,
        known: &Member,
        new: Member,
    ) -> MasterReply {
        let node = known.node;
        let new = Member { node, ..new };
        if *known != new {
            if self.cluster.in_view(node) {
                return refused(format!(
                    "{node} is part of the view as {}; restart it to join from elsewhere",
                    known.control
                ));
            }
            let write = self.cluster.roster.replace(new);
            ctx.persist(vec![write]);
            self.formation.abandon_attempt_of(ctx, node);
        }
        self.arrived(ctx, node);
        MasterReply::Joined { node }
    }

    /// Records that a node is present.
    pub(super) fn arrived(&mut self, ctx: &EventContext<'_>, node: MnId) {
        if !self.cluster.roster.arrived(node) {
            return;
        }
        // With this node, an attempt to form the cluster or to place replicas can succeed that failed before.
        if self.cluster.view.is_some() {
            self.look_again();
        } else {
            self.formation.try_at(ctx.now_ms);
        }
    }
}

/// Returns a node that is no member and can be forgotten to make room for another node: an absent one, otherwise one
/// that has not sent a heartbeat since it joined.
fn idle_candidate(cluster: &ClusterFacts, detector: &FailureDetector) -> Option<MnId> {
    let waits = |node: &MnId| !cluster.in_view(*node);
    let nodes = || cluster.roster.nodes().map(|member| member.node).filter(waits);
    let absent = nodes().find(|node| !cluster.roster.is_present(*node));
    absent.or_else(|| nodes().find(|node| !detector.has_spoken(*node)))
}

/// Checks that every process that reaches the other members can also reach the new node, because sessions need all
/// members.
fn check_fits(cluster: &ClusterFacts, new: &Member, elsewhere: bool) -> Result<(), String> {
    let addresses = [Some(&new.control), new.tcp.as_ref(), new.verbs.as_ref()];
    for address in addresses.into_iter().flatten() {
        match reach(address) {
            AddressScope::Nowhere => {
                return Err(format!(
                    "{address} leads nowhere; listen at an address of the network, or set --advertise"
                ));
            }
            AddressScope::OneMachine if elsewhere => {
                return Err(format!(
                    "this node announces {address}, which leads to it on its own machine only; listen \
                     at an address of the network, or set --advertise"
                ));
            }
            _ => {}
        }
    }
    let in_view = |member: &&Member| cluster.view.is_none() || cluster.in_view(member.node);
    let others = cluster.roster.nodes().filter(|other| other.identity != new.identity);
    let others: Vec<&Member> = others.filter(in_view).collect();
    if is_on_one_machine(new)
        && let Some(other) = others.iter().find(|other| is_on_the_network(other))
    {
        return Err(format!(
            "this node announces {}, which leads to it on its own machine only, and {} is at {}; \
             listen at an address of the network, or set --advertise",
            new.control, other.node, other.control
        ));
    }
    let Some(common) = common_fabrics(&others, new) else { return Ok(()) };
    let own = fabrics(new);
    let missing = common.iter().any(|fabric| !own.contains(fabric));
    let is_cut_off = !common.is_empty() && !common.iter().any(|fabric| own.contains(fabric));
    // Before there is a view, the nodes that came first do not decide which fabrics the others have to serve.
    if is_cut_off || (missing && cluster.view.is_some()) {
        return Err(format!(
            "the members of this cluster serve {}, and this node {}: clients could not reach all of \
             them; serve what they do",
            common.join(" and "),
            if own.is_empty() { "nothing".into() } else { own.join(" and ") }
        ));
    }
    Ok(())
}

/// The part of the network in which an address leads to its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AddressScope {
    /// The address leads to the node from everywhere, as far as the address shows.
    Network,
    /// The address leads to the node only on the node's machine.
    OneMachine,
    Nowhere,
    /// The address is a name inside of one process.
    Process,
}

fn reach(address: &str) -> AddressScope {
    let Some((host, port)) = address.rsplit_once(':') else { return AddressScope::Process };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let ip = host.parse::<IpAddr>().ok();
    if port == "0" || ip.is_some_and(|ip| ip.is_unspecified()) {
        AddressScope::Nowhere
    } else if host == "localhost" || ip.is_some_and(|ip| ip.is_loopback()) {
        AddressScope::OneMachine
    } else {
        AddressScope::Network
    }
}

fn reaches(member: &Member) -> impl Iterator<Item = AddressScope> {
    let addresses = [Some(&member.control), member.tcp.as_ref(), member.verbs.as_ref()];
    addresses.into_iter().flatten().map(|address| reach(address))
}

fn is_on_one_machine(member: &Member) -> bool {
    reach(&member.control) != AddressScope::Process
        && reaches(member).any(|r| r == AddressScope::OneMachine)
}

fn is_on_the_network(member: &Member) -> bool {
    reaches(member).all(|reach| reach == AddressScope::Network)
}

fn host(member: &Member) -> &str {
    member.control.rsplit_once(':').map_or("", |(host, _)| host)
}

/// Returns the names of the fabrics that a member serves.
fn fabrics(member: &Member) -> Vec<&'static str> {
    let served = [("shm", &member.shm), ("tcp", &member.tcp), ("verbs", &member.verbs)];
    served.into_iter().filter(|(_, address)| address.is_some()).map(|(name, _)| name).collect()
}

/// Returns the fabrics that reach all these members, and would also reach `new` if it served them; `None` if there are
/// no members. If `new` and the members are on several machines, shared memory is left out.
fn common_fabrics(members: &[&Member], new: &Member) -> Option<Vec<&'static str>> {
    let (first, rest) = members.split_first()?;
    let one_machine = members.iter().all(|member| host(member) == host(new));
    let mut common = fabrics(first);
    common.retain(|fabric| {
        rest.iter().all(|member| fabrics(member).contains(fabric))
            && (*fabric != "shm" || one_machine)
    });
    Some(common)
}

/// Checks that the numbers and texts of a join are within bounds before they are stored, because any process can send
/// one.
fn check_member(member: &Member) -> Result<(), &'static str> {
    let fabrics = [&member.tcp, &member.shm, &member.verbs].into_iter().flatten();
    if fabrics.chain([&member.control]).any(|a| a.is_empty() || a.len() > MAX_ADDRESS_BYTES) {
        return Err("an address must have 1..=512 bytes");
    }
    if member.pool_bytes == 0 {
        return Err("a memory node without memory is of no use; give it a pool");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_tell_from_where_they_lead_to_somebody() {
        for (address, from) in [
            ("10.0.0.3:7401", AddressScope::Network),
            ("mn.example:7401", AddressScope::Network),
            ("[fd00::1]:7401", AddressScope::Network),
            ("127.0.0.1:7401", AddressScope::OneMachine),
            ("127.0.1.1:7401", AddressScope::OneMachine),
            ("[::1]:7401", AddressScope::OneMachine),
            ("localhost:7401", AddressScope::OneMachine),
            ("0.0.0.0:7401", AddressScope::Nowhere),
            ("[::]:7401", AddressScope::Nowhere),
            ("10.0.0.3:0", AddressScope::Nowhere),
            ("embedded-0", AddressScope::Process),
        ] {
            assert_eq!(reach(address), from, "{address}");
        }
    }
}
