//! `fusee status --memory`: shows how the memory is used, as text or JSON.
//!
//! Unlike the rest of `fusee status`, this joins the cluster like a client: it READs block tables, headers and free
//! bitmaps, over any fabric. Clients write meanwhile, so the numbers are not of one point in time ([`MemorySurvey`]).

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write as _;

use fusee_cli::connect::{self, ConnectArgs};
use fusee_cli::failure::Failure;
use fusee_cli::output;
use fusee_cli::quantity::{ByteSize, count_with_noun};
use fusee_client::{
    ClassMemory, MemorySurvey, NodeMemory, OwnerMemory, OwnerState, RedundancyMemory, SurveyError,
};
use serde::Serialize;

/// Largest number of owners in the text. The JSON has all.
const SHOWN: usize = 20;

/// The memory of a cluster. [`MemorySurvey`] explains the fields.
#[derive(Debug, Serialize)]
struct MemoryReport {
    view: u64,
    blocks: u64,
    led_bytes: u64,
    free_blocks: u64,
    free_block_bytes: u64,
    blank_blocks: u64,
    unreadable_headers: u64,
    unreadable_owners: u64,
    stray_marks: u64,
    /// Bytes of all pools, by their use. Their sum is the size of the pools.
    pool_use: BTreeMap<&'static str, u64>,
    /// Number of lost regions of pairs without redundancy, by memory node.
    lost_regions: BTreeMap<String, u64>,
    memory_nodes: Vec<NodeMemoryReport>,
    size_classes: Vec<ClassMemoryReport>,
    /// Pairs by their redundancy, counted in the index.
    redundancies: Vec<RedundancyMemoryReport>,
    /// Owners of blocks, sorted by the bytes of their blocks, the largest first.
    owners: Vec<OwnerMemoryReport>,
}

#[derive(Debug, Serialize)]
struct NodeMemoryReport {
    node: String,
    pool_bytes: u64,
    subtables: u64,
    subtable_bytes: u64,
    regions: u64,
    region_bytes: u64,
    single_region_bytes: u64,
    /// Bytes that regions and the index take; `None` if the node does not answer.
    reserved_bytes: Option<u64>,
    free_bytes: Option<u64>,
    led_bytes: u64,
    free_block_bytes: u64,
}

#[derive(Debug, Serialize)]
struct ClassMemoryReport {
    class: u8,
    object_bytes: u64,
    blocks: u64,
    block_bytes: u64,
    objects: u64,
    marked_objects: u64,
    marked_bytes: u64,
    new_objects: u64,
}

#[derive(Debug, Serialize)]
struct RedundancyMemoryReport {
    redundancy: String,
    pairs: u64,
    /// An upper bound of the sum of the values' lengths, because an object is up to an eighth longer than its pair.
    value_bytes: u64,
    memory_bytes: u64,
}

#[derive(Debug, Serialize)]
struct OwnerMemoryReport {
    owner: String,
    /// State of the owner: `open`, `expired` or `departed`.
    state: &'static str,
    blocks: u64,
    block_bytes: u64,
    handed_on: u64,
    marked_bytes: u64,
}

/// Prints how the memory is used.
pub fn run(connect: &ConnectArgs, is_json: bool) -> Result<(), Failure> {
    let options = connect.options().with_cache_entries(0);
    let client = connect::join(&connect.master, options).map_err(with_next_step)?;
    let survey = client.admin().survey_memory().map_err(explain)?;
    drop(client);
    let report = MemoryReport::from(survey);
    output::text(&if is_json { super::json(&report)? } else { show(&report) })?;
    let silent = report.memory_nodes.iter().filter(|node| node.reserved_bytes.is_none());
    let silent: Vec<&str> = silent.map(|node| node.node.as_str()).collect();
    if silent.is_empty() {
        Ok(())
    } else {
        Err(Failure::operation(format!("no answer from {}", silent.join(", "))))
    }
}

fn explain(error: SurveyError) -> Failure {
    match error {
        SurveyError::Connect(error) => with_next_step(error.into()),
        error @ SurveyError::Unreachable { .. } => {
            with_next_step(Failure::unreachable(error.to_string()))
        }
        error => Failure::operation(error.to_string()),
    }
}

/// Adds advice to the failure. A survey reads from every memory node, whereas plain `status` asks each node separately.
fn with_next_step(failure: Failure) -> Failure {
    if failure.code() != 3 || failure.to_string().contains("fusee up") {
        return failure;
    }
    Failure::unreachable(format!(
        "{failure}\n(`fusee status` shows what answers, and what does not)"
    ))
}

impl From<MemorySurvey> for MemoryReport {
    fn from(survey: MemorySurvey) -> MemoryReport {
        let mut owners: Vec<OwnerMemoryReport> =
            survey.owners.iter().map(OwnerMemoryReport::from).collect();
        owners.sort_by_key(|owner| Reverse(owner.block_bytes));
        MemoryReport {
            view: survey.view,
            blocks: survey.blocks,
            led_bytes: survey.led_bytes,
            free_blocks: survey.free_blocks,
            free_block_bytes: survey.free_block_bytes,
            blank_blocks: survey.blank_blocks,
            unreadable_headers: survey.unreadable_headers,
            unreadable_owners: survey.unreadable_owners,
            stray_marks: survey.stray_marks,
            pool_use: survey.pool_use().named().into(),
            lost_regions: survey
                .lost_regions
                .iter()
                .map(|(n, lost)| (n.to_string(), *lost))
                .collect(),
            memory_nodes: survey.nodes.iter().map(NodeMemoryReport::from).collect(),
            size_classes: survey.classes.iter().map(ClassMemoryReport::from).collect(),
            redundancies: survey.redundancies.iter().map(RedundancyMemoryReport::from).collect(),
            owners,
        }
    }
}

impl From<&NodeMemory> for NodeMemoryReport {
    fn from(node: &NodeMemory) -> NodeMemoryReport {
        NodeMemoryReport {
            node: node.node.to_string(),
            pool_bytes: node.pool_bytes,
            subtables: node.subtables,
            subtable_bytes: node.subtable_bytes,
            regions: node.regions,
            region_bytes: node.region_bytes,
            single_region_bytes: node.single_region_bytes,
            reserved_bytes: node.reserved_bytes,
            free_bytes: node.free_bytes(),
            led_bytes: node.led_bytes,
            free_block_bytes: node.free_block_bytes,
        }
    }
}

impl From<&ClassMemory> for ClassMemoryReport {
    fn from(of: &ClassMemory) -> ClassMemoryReport {
        ClassMemoryReport {
            class: of.class.code(),
            object_bytes: of.object_bytes,
            blocks: of.blocks,
            block_bytes: of.bytes,
            objects: of.objects,
            marked_objects: of.marked,
            marked_bytes: of.marked * of.object_bytes,
            new_objects: of.new,
        }
    }
}

impl From<&RedundancyMemory> for RedundancyMemoryReport {
    fn from(of: &RedundancyMemory) -> RedundancyMemoryReport {
        RedundancyMemoryReport {
            redundancy: of.redundancy.to_string(),
            pairs: of.pairs,
            value_bytes: of.value_bytes,
            memory_bytes: of.memory_bytes,
        }
    }
}

impl From<&OwnerMemory> for OwnerMemoryReport {
    fn from(of: &OwnerMemory) -> OwnerMemoryReport {
        OwnerMemoryReport {
            owner: of.owner.to_string(),
            state: match of.state {
                OwnerState::Open => "open",
                OwnerState::Expired => "expired",
                OwnerState::Departed => "departed",
            },
            blocks: of.blocks,
            block_bytes: of.bytes,
            handed_on: of.handed_on,
            marked_bytes: of.marked_bytes,
        }
    }
}

fn bytes(bytes: u64) -> String {
    ByteSize(bytes).to_string()
}

fn show(report: &MemoryReport) -> String {
    let waits: u64 = report.size_classes.iter().map(|class| class.marked_bytes).sum();
    let mut text = format!(
        "view {}: {} of {} together, {} of them free; {} in other blocks wait to be used again\n",
        report.view,
        count_with_noun(report.blocks, "block"),
        bytes(report.led_bytes),
        bytes(report.free_block_bytes),
        bytes(waits)
    );
    let problems = [
        (report.blank_blocks, "blocks have an owner, and nothing was written to them yet"),
        (report.unreadable_headers, "blocks have an unreadable header"),
        (report.unreadable_owners, "blocks have an owner that there has never been"),
        (report.stray_marks, "free marks are where no object starts"),
    ];
    for (count, what) in problems.iter().filter(|(count, _)| *count > 0) {
        let _ = writeln!(text, "{count} {what}");
    }
    let single = report.memory_nodes.iter().filter(|node| node.single_region_bytes > 0);
    let single: Vec<String> = single
        .map(|node| format!("{} on {}", bytes(node.single_region_bytes), node.node))
        .collect();
    if !single.is_empty() {
        let _ = writeln!(text, "without redundancy: regions of {}", single.join(", "));
    }
    for (node, regions) in &report.lost_regions {
        let _ = writeln!(
            text,
            "lost without redundancy, with {node}: {}",
            count_with_noun(*regions, "region")
        );
    }
    pool_use(&mut text, &report.pool_use);
    nodes(&mut text, &report.memory_nodes);
    redundancies(&mut text, &report.redundancies);
    classes(&mut text, &report.size_classes);
    owners(&mut text, &report.owners);
    text += "\nOthers may have written meanwhile. Marked: freed, and not yet collected by the owner of \
             the block.\n";
    text
}

/// The uses of a pool's bytes, and what they are.
const USES: [(&str, &str); 12] = [
    ("pairs", "in use by pairs, according to the index"),
    ("freed", "freed; the owners of the blocks reclaim them when they need memory"),
    ("never_used", "never allocated, in blocks that were handed on"),
    (
        "held",
        "known to open sessions only: reusable, or freed a moment ago; or lost with a session",
    ),
    ("overhead", "headers of blocks, and ends of blocks without room for an object"),
    ("blank_blocks", "blocks that have an owner, but no readable header"),
    ("free_blocks", "blocks that every session can get"),
    ("tables", "tables and bitmaps of regions"),
    ("index", "replicas of the index"),
    ("padding", "alignment, and what a view change adds or releases"),
    ("room", "room for more regions and subtables"),
    ("unknown", "of nodes that did not answer"),
];

fn pool_use(text: &mut String, uses: &BTreeMap<&'static str, u64>) {
    let _ = writeln!(text, "\n{:<14}{:>12}", "use", "bytes");
    for (name, what) in USES {
        let used = uses.get(name).copied().unwrap_or(0);
        if used > 0 {
            let _ = writeln!(text, "{:<14}{:>12}  {what}", name.replace('_', " "), bytes(used));
        }
    }
    let _ = writeln!(text, "{:<14}{:>12}", "pools", bytes(uses.values().sum()));
}

fn nodes(text: &mut String, nodes: &[NodeMemoryReport]) {
    let _ = writeln!(
        text,
        "\n{:<8}{:>10}{:>12}{:>12}{:>12}{:>12}{:>22}",
        "node", "pool", "subtables", "regions", "reserved", "free", "blocks used"
    );
    let known = |known: Option<u64>| known.map_or("-".into(), bytes);
    for node in nodes {
        let used = node.led_bytes - node.free_block_bytes;
        let blocks = format!("{}/{}", bytes(used), bytes(node.led_bytes));
        let _ = writeln!(
            text,
            "{:<8}{:>10}{:>12}{:>12}{:>12}{:>12}{blocks:>22}",
            node.node,
            bytes(node.pool_bytes),
            bytes(node.subtable_bytes),
            bytes(node.region_bytes),
            known(node.reserved_bytes),
            known(node.free_bytes)
        );
    }
}

fn redundancies(text: &mut String, all: &[RedundancyMemoryReport]) {
    if all.is_empty() {
        return;
    }
    let _ = writeln!(text, "\n{:<16}{:>12}{:>14}{:>14}", "redundancy", "pairs", "values", "memory");
    for of in all {
        let values = bytes(of.value_bytes);
        let memory = bytes(of.memory_bytes);
        let _ = writeln!(text, "{:<16}{:>12}{values:>14}{memory:>14}", of.redundancy, of.pairs);
    }
}

fn classes(text: &mut String, classes: &[ClassMemoryReport]) {
    if classes.is_empty() {
        return;
    }
    let _ = writeln!(
        text,
        "\n{:<12}{:>8}{:>12}{:>14}{:>14}{:>12}{:>14}",
        "object", "blocks", "", "objects", "set free", "", "never used"
    );
    for class in classes {
        let _ = writeln!(
            text,
            "{:<12}{:>8}{:>12}{:>14}{:>14}{:>12}{:>14}",
            bytes(class.object_bytes),
            class.blocks,
            bytes(class.block_bytes),
            class.objects,
            class.marked_objects,
            bytes(class.marked_bytes),
            class.new_objects
        );
    }
}

fn owners(text: &mut String, owners: &[OwnerMemoryReport]) {
    if owners.is_empty() {
        return;
    }
    let _ = writeln!(
        text,
        "\n{:<16}{:<12}{:>8}{:>12}{:>12}{:>12}",
        "owner", "session", "blocks", "", "handed on", "set free"
    );
    let mut line = |name: &str, state: &str, of: &[OwnerMemoryReport]| {
        let sum = |what: fn(&OwnerMemoryReport) -> u64| of.iter().map(what).sum::<u64>();
        let _ = writeln!(
            text,
            "{name:<16}{state:<12}{:>8}{:>12}{:>12}{:>12}",
            sum(|owner| owner.blocks),
            bytes(sum(|owner| owner.block_bytes)),
            sum(|owner| owner.handed_on),
            bytes(sum(|owner| owner.marked_bytes))
        );
    };
    for owner in owners.iter().take(SHOWN) {
        line(&owner.owner, owner.state, std::slice::from_ref(owner));
    }
    if let Some(others) = owners.get(SHOWN..).filter(|others| !others.is_empty()) {
        line(&format!("{} others", others.len()), "", others);
    }
}

#[cfg(test)]
mod tests {
    use fusee_control::rpc::RpcError;

    use super::*;

    #[test]
    fn owners_beyond_some_are_added_up() {
        let owner = |n| OwnerMemoryReport {
            owner: format!("client{n}"),
            state: "departed",
            blocks: 2,
            block_bytes: 2 << 20,
            handed_on: 1,
            marked_bytes: 1024,
        };
        let all: Vec<OwnerMemoryReport> = (0..SHOWN + 3).map(owner).collect();
        let mut text = String::new();
        owners(&mut text, &all);
        let last: Vec<&str> = text.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(last, ["3", "others", "6", "6.0", "MiB", "3", "3.0", "KiB"], "{text}");
        let mut text = String::new();
        owners(&mut text, &all[..SHOWN]);
        assert!(!text.contains("others") && text.lines().count() == SHOWN + 2, "{text}");
    }

    #[test]
    fn failures_to_reach_the_cluster_name_the_next_step_once() {
        let own = connect::explain("a:1", &RpcError::NoLeader { addr: "a:1".into() });
        assert_eq!(with_next_step(own.clone()), own);
        let other = with_next_step(Failure::unreachable("cannot attach to memory node mn1"));
        assert!(other.to_string().contains("fusee status"), "{other}");
        let wrong = Failure::usage("no address");
        assert_eq!(with_next_step(wrong.clone()), wrong);
    }
}
