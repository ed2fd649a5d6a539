//! The goal of a step: a memory node has become a member, or has left.
//!
//! Whether a node has joined is read from the view of the sessions' client, because sessions use the node from that
//! view on. Only the master knows whether a node is drained. The benchmark orders the drain by the request that `fusee
//! drain` sends, and then asks the master every [`PERIOD`]. A goal is reported as reached only once. If the master does
//! not answer, the benchmark asks again until the time limit, and then reports the last answer or failure.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use fusee_cli::failure::Failure;
use fusee_cli::master_requests::{self, DrainStatus};
use fusee_cli::secret;
use fusee_client::{BlockingClient, MnId, View};
use fusee_control::rpc::{MasterClient, Runtime};

use super::report::{DrainedNode, JoinedNode};

/// The interval between requests to the master.
const PERIOD: Duration = Duration::from_millis(50);
/// The time limit for the master's answer. It is short, because the time series waits for the answer as well.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The event that ends a phase.
pub enum StepGoal {
    /// The phase has no goal.
    None,
    /// A memory node that is not one of these has become a member.
    Member(BTreeSet<MnId>),
    /// The drain has ended.
    Drained(DrainInProgress),
}

/// A goal that was reached.
pub enum ReachedGoal {
    Joined(JoinedNode),
    Drained(DrainedNode),
}

impl StepGoal {
    /// Returns the goal that the cluster has one more member than in this view.
    pub fn member(view: &View) -> StepGoal {
        StepGoal::Member(names(view))
    }

    /// Returns the event of the goal if the goal has just been reached. `from_s` is the time of the step, and `took_s`
    /// the time since then.
    pub fn look(
        &mut self,
        client: &BlockingClient,
        from_s: f64,
        took_s: f64,
    ) -> Result<Option<ReachedGoal>, Failure> {
        match self {
            StepGoal::None => Ok(None),
            StepGoal::Member(before) => {
                let new = names(&client.view()).difference(before).next().copied();
                let joined = |node: MnId| JoinedNode { node: node.to_string(), from_s, took_s };
                Ok(new.map(|node| ReachedGoal::Joined(joined(node))))
            }
            StepGoal::Drained(drain) => {
                let is_over = drain.look()? && !names(&client.view()).contains(&drain.node);
                Ok(is_over.then(|| ReachedGoal::Drained(drain.report(from_s, took_s))))
            }
        }
    }

    /// Returns why the goal was not reached within `limit` seconds, if there is a goal.
    pub fn missed(&self, limit: f64) -> Option<String> {
        match self {
            StepGoal::None => None,
            StepGoal::Member(_) => Some(format!("no memory node became a member in {limit} s")),
            StepGoal::Drained(drain) => Some(drain.missed(limit)),
        }
    }
}

fn names(view: &View) -> BTreeSet<MnId> {
    view.members.iter().map(|member| member.node).collect()
}

/// A drain in progress.
pub struct DrainInProgress {
    node: MnId,
    address: String,
    master: MasterClient,
    /// The replicas on the node when the drain began.
    first: DrainStatus,
    moved_bytes: u64,
    asked: Instant,
    /// The master's last answer in words, or the failure of the last request; `None` before the first request has
    /// ended.
    heard: Option<String>,
    /// The runtime of the requests to the master.
    _runtime: Runtime,
}

impl DrainInProgress {
    /// Orders the master to drain a node.
    pub fn begin(address: &str, node: MnId) -> Result<DrainInProgress, Failure> {
        let runtime = secret::runtime("fusee-bench")?;
        let master = MasterClient::new(&runtime, address).with_deadline(TIMEOUT);
        let status = master_requests::ask_status(&master, address)?;
        let first = DrainStatus::of(node, &status);
        let geometry = status.view.as_ref().map(|view| view.geometry);
        let moved_bytes = geometry.map_or(0, |geometry| {
            first.subtables * geometry.subtable_bytes() + first.regions * geometry.region_bytes
        });
        master_requests::request_drain(&master, address, node, false)?;
        let address = address.to_string();
        let asked = Instant::now();
        let heard = None;
        Ok(DrainInProgress {
            node,
            address,
            master,
            first,
            moved_bytes,
            asked,
            heard,
            _runtime: runtime,
        })
    }

    /// Returns whether the drain has ended.
    fn look(&mut self) -> Result<bool, Failure> {
        if self.asked.elapsed() < PERIOD {
            return Ok(false);
        }
        let status = master_requests::ask_status(&self.master, &self.address);
        self.asked = Instant::now();
        match status {
            Ok(status) => {
                let standing = DrainStatus::of(self.node, &status);
                let DrainStatus { subtables, regions, .. } = standing;
                let problem = status.problem.map(|text| format!("; {text}")).unwrap_or_default();
                self.heard =
                    Some(format!("{subtables} subtables and {regions} regions left{problem}"));
                standing.is_drained(self.node)
            }
            // A later request possibly succeeds, so this failure is only noted.
            Err(failure) => {
                self.heard = Some(failure.to_string());
                Ok(false)
            }
        }
    }

    fn report(&self, from_s: f64, took_s: f64) -> DrainedNode {
        DrainedNode {
            node: self.node.to_string(),
            from_s,
            took_s,
            subtables: self.first.subtables,
            regions: self.first.regions,
            moved_bytes: self.moved_bytes,
        }
    }

    fn missed(&self, limit: f64) -> String {
        let heard = self.heard.as_deref().unwrap_or("nothing was heard of it");
        format!("{} is not drained after {limit} s: {heard}", self.node)
    }
}
