//! The report of `fusee status` as text.

use std::fmt::Write as _;

use fusee_cli::quantity::{ByteSize, count_with_noun};

use super::policy;
use super::report::{LostPairs, NodeReport, ReconfigurationReport, StatusReport};

/// Largest number of view changes in the text. The JSON has all that the master remembers.
const SHOWN: usize = 5;

/// Returns the status as text, without the list of recoveries.
pub fn show(report: &StatusReport) -> String {
    let of = report.cluster.as_ref().map(|id| format!(" of cluster {id}")).unwrap_or_default();
    let mut text = format!("master {}{of}: {}\n", report.master, state(report));
    if let Some(change) = &report.change {
        let _ = writeln!(
            text,
            "the view is changing: {} for {}, with {} ({} without a primary) and {} in scope, {} joining",
            change.stage,
            duration(report.view_age_ms),
            count_with_noun(change.subtables as u64, "subtable"),
            change.without_primary,
            count_with_noun(change.regions as u64, "region"),
            count_with_noun(change.joining as u64, "replica")
        );
    }
    if report.view > 0 && !report.reasons.is_empty() {
        let _ = writeln!(text, "{}: {}", report.health.name(), report.reasons.join("\n  and "));
    }
    damage(&mut text, report);
    replicas(&mut text, report);
    policy::show(&mut text, &report.redundancy, &report.transitions);
    text.push('\n');
    nodes(&mut text, report);
    history(&mut text, report);
    text
}

/// Adds the counts of damage, and the lost pairs.
fn damage(text: &mut String, report: &StatusReport) {
    if report.damaged_replicas > 0 {
        let _ = writeln!(
            text,
            "memory is failing: found damaged, of replicas or chunks of objects: {}, and {} of them repaired",
            report.damaged_replicas, report.repaired_replicas
        );
    }
    let scrub = &report.scrub;
    if scrub.settled_subtables + scrub.renewed_regions + scrub.lost_pairs > 0 {
        let _ = writeln!(
            text,
            "memory is failing: {} of the index, and {} free bitmaps, disagreed and were put right; {} lost, \
             without a whole replica",
            count_with_noun(scrub.settled_subtables, "subtable"),
            scrub.renewed_regions,
            count_with_noun(scrub.lost_pairs, "pair"),
        );
    }
    if !report.lost_without_redundancy.is_empty() {
        let lost =
            report.lost_without_redundancy.iter().map(|LostPairs { node, regions, bytes }| {
                format!(
                    "{} of {} with {node}",
                    count_with_noun(*regions, "region"),
                    ByteSize(*bytes)
                )
            });
        let lost: Vec<String> = lost.collect();
        let _ = writeln!(text, "lost without redundancy: {}", lost.join(", "));
    }
}

/// Adds the numbers of replicas and sessions.
fn replicas(text: &mut String, report: &StatusReport) {
    let replicated =
        report.regions - report.coded_regions - report.copy_regions - report.single_regions;
    let _ = write!(
        text,
        "{} index replicas of {}, {} data replicas of {}{}{}{}{}\n\
         {} open, {} expired and not recovered, {} ever\n",
        out_of(report.index_replicas, report.wanted_index_replicas),
        count_with_noun(report.subtables as u64, "subtable"),
        out_of(report.data_replicas, report.wanted_data_replicas),
        count_with_noun(replicated as u64, "region"),
        match report.coded_regions {
            0 => String::new(),
            coded => format!(", {coded} erasure-coded"),
        },
        match report.copy_regions {
            0 => String::new(),
            copies => format!(", {copies} of copies"),
        },
        match report.single_regions {
            0 => String::new(),
            single => format!(", {single} without redundancy"),
        },
        match report.missing_replicas {
            0 => String::new(),
            missing => format!("; {missing} of them lack a replica"),
        } + if report.rebalancing { "; replicas are moving" } else { "" },
        count_with_noun(report.open_sessions, "session"),
        report.expired_sessions,
        report.sessions_opened
    );
}

/// Returns the state in one word, with the numbers that explain it.
fn state(report: &StatusReport) -> String {
    if report.cluster.is_none() {
        return report.problem.clone().unwrap_or_else(|| "no cluster".into());
    }
    if report.view == 0 {
        let joined = report.memory_nodes.len();
        let expected = report.expected_memory_nodes;
        let problem = report.problem.as_ref().map(|p| format!(": {p}")).unwrap_or_default();
        return format!("forming, {joined} of {expected} memory nodes joined{problem}");
    }
    let members = report.memory_nodes.iter().filter(|node| node.in_view);
    let silent = members.clone().filter(|node| !node.reachable).count();
    match silent {
        0 => format!("ready, view {} since {}", report.view, duration(report.view_age_ms)),
        _ => format!(
            "view {}, {silent} of {} memory nodes do not answer",
            report.view,
            members.count()
        ),
    }
}

fn nodes(text: &mut String, report: &StatusReport) {
    let nodes: &[NodeReport] = &report.memory_nodes;
    let _ = writeln!(
        text,
        "{:<6}{:<22}{:<22}{:>10}{:>10}{:>10}{:>22}{:>9}  state",
        "node", "control", "tcp", "pool", "reserved", "used", "blocks used", "clients"
    );
    let bytes = |bytes: Option<u64>| bytes.map_or("-".into(), |bytes| ByteSize(bytes).to_string());
    let number = |number: Option<u64>| number.map_or("-".into(), |number| number.to_string());
    for node in nodes {
        let blocks = match (node.led_bytes_owned, node.led_bytes) {
            (Some(owned), Some(all)) => format!("{}/{}", ByteSize(owned), ByteSize(all)),
            _ => "-".into(),
        };
        let state = match node.state {
            "in_view" => "ok",
            "joining" => "joining, gets replicas",
            "waiting" => "waits, not in the view",
            "draining" => "is being drained",
            "drained" => "drained, it may end",
            _ if node.in_view => "lost, and still in the view",
            _ => "lost, the cluster goes on without it",
        };
        let state = match &node.problem {
            None => match node.state {
                "draining" => format!(
                    "{state}, {} and {} left",
                    count_with_noun(node.subtables, "subtable"),
                    count_with_noun(node.regions, "region")
                ),
                _ => state.into(),
            },
            Some(_) if node.state == "drained" => state.into(),
            Some(_) if report.lost_without_redundancy.iter().any(|lost| lost.node == node.node) => {
                "lost, and what it alone held".into()
            }
            Some(_) if !report.needs(node) => "lost, others hold what it held".into(),
            Some(problem) if node.state == "in_view" => format!("no answer: {problem}"),
            Some(problem) => format!("{state}; no answer: {problem}"),
        };
        let _ = writeln!(
            text,
            "{:<6}{:<22}{:<22}{:>10}{:>10}{:>10}{blocks:>22}{:>9}  {state}",
            node.node,
            node.control,
            node.tcp.as_deref().unwrap_or("-"),
            bytes(node.pool_bytes),
            bytes(node.reserved_bytes),
            bytes(node.used_bytes),
            number(node.attached_clients)
        );
    }
    for node in nodes {
        if let Some(shm) = &node.shm {
            let sessions = node.attached_shm.map(|sessions| count_with_noun(sessions, "session"));
            let state = match node.socket_gone {
                Some(true) => "; THE SOCKET HAS GONE: new clients take another fabric".into(),
                _ => sessions.map(|sessions| format!(", {sessions}")).unwrap_or_default(),
            };
            let _ = writeln!(text, "{:<6}shared memory at {shm}{state}", node.node);
        }
        if let Some(verbs) = &node.verbs {
            let _ = writeln!(text, "{:<6}verbs at {verbs}", node.node);
        }
    }
}

fn history(text: &mut String, report: &StatusReport) {
    if report.recoveries > 0 {
        let mut totals: Vec<f64> =
            report.last_recoveries.iter().map(|recovery| recovery.parts.total_ms).collect();
        totals.sort_by(f64::total_cmp);
        let median = totals.get(totals.len() / 2).copied().unwrap_or_default();
        let _ = writeln!(
            text,
            "\n{} recovered, median of the last {}: {median:.2} ms (see --recoveries)",
            count_with_noun(report.recoveries, "client"),
            totals.len()
        );
    }
    let past = &report.last_reconfigurations;
    if !past.is_empty() {
        let changes = count_with_noun(report.reconfigurations, "change");
        let _ = writeln!(text, "\n{changes} of the view, the last ones:");
    }
    for change in &past[past.len().saturating_sub(SHOWN)..] {
        let _ = writeln!(text, "  {}", reconfiguration(change));
    }
}

fn reconfiguration(change: &ReconfigurationReport) -> String {
    let mut what = Vec::new();
    if !change.lost.is_empty() {
        what.push(format!("lost {}", change.lost.join(", ")));
    }
    if change.joined > 0 {
        what.push(format!("{} joined", count_with_noun(change.joined, "replica")));
    }
    if change.moved > 0 {
        what.push(format!("{} moved", count_with_noun(change.moved, "replica")));
    }
    if change.new_regions > 0 {
        what.push(count_with_noun(change.new_regions, "new region"));
    }
    what.push(format!("{} in scope", count_with_noun(change.subtables, "subtable")));
    let whole = match (change.under_way, change.lost.is_empty(), change.whole_after_ms) {
        (true, ..) => "; under way".into(),
        (_, true, _) => String::new(),
        (_, false, Some(ms)) => format!("; all replicas there after {}", duration(ms)),
        (_, false, None) => "; replicas are missing since".into(),
    };
    format!(
        "{}: frozen {} ms, transforming {} ms, switched {} ms{whole}",
        what.join(", "),
        change.frozen_ms,
        change.transforming_ms,
        change.switched_ms
    )
}

fn duration(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..600_000 => format!("{:.1} s", ms as f64 / 1000.0),
        600_000..7_200_000 => format!("{} min", ms / 60_000),
        _ => format!("{} h", ms / 3_600_000),
    }
}

/// Returns the number of replicas, followed by the wanted number if that is larger.
fn out_of(there: u8, wanted: u8) -> String {
    if there < wanted { format!("{there} of {wanted}") } else { there.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_says_what_it_was_for_and_what_is_left() {
        let mut change = ReconfigurationReport {
            lost: vec!["mn1".into()],
            subtables: 64,
            joined: 0,
            moved: 0,
            new_regions: 0,
            frozen_ms: 3,
            transforming_ms: 12,
            switched_ms: 1,
            whole_after_ms: None,
            under_way: false,
        };
        let times = "64 subtables in scope: frozen 3 ms, transforming 12 ms, switched 1 ms";
        let missing = format!("lost mn1, {times}; replicas are missing since");
        assert_eq!(reconfiguration(&change), missing);
        change.whole_after_ms = Some(2_500);
        assert!(reconfiguration(&change).ends_with("; all replicas there after 2.5 s"));
        change.under_way = true;
        assert!(reconfiguration(&change).ends_with("; under way"));
        (change.lost, change.joined, change.under_way) = (Vec::new(), 2, false);
        assert_eq!(reconfiguration(&change), format!("2 replicas joined, {times}"));
    }
}
