//! The goal of a step: a memory node has become a member, or has left.
//!
//! Whether a node has joined is read where the sessions have their view; they use it from then on.
//! Only the master knows whether a node is drained. The drain is ordered by the request that `fusee
//! drain` sends, and the master is asked a few times a second. A goal is reached once. A master
//! that does not answer is asked again until the time limit; then its last message is reported.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use fusee_cli::failure::Failure;
use fusee_cli::master_requests::{self, DrainStatus};
use fusee_cli::secret;
use fusee_client::{BlockingClient, MnId, View};
use fusee_control::rpc::{MasterClient, Runtime};

use super::report::{DrainedNode, JoinedNode};

/// The period of requests to the master.
const PERIOD: Duration = Duration::from_millis(50);
/// The time limit for its answer: the time series waits as well.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The event that ends a phase.
pub enum StepGoal {
    /// Nothing.
    None,
    /// A member beside these.
    Member(BTreeSet<MnId>),
    /// The end of a drain.
    Drained(DrainInProgress),
}

/// A goal that was reached.
pub enum ReachedGoal {
    Joined(JoinedNode),
    Drained(DrainedNode),
}

impl StepGoal {
    /// Returns the goal of one more member than now.
    pub fn member(view: &View) -> StepGoal {
        StepGoal::Member(names(view))
    }

    /// Checks whether the goal is reached. `from_s` and `took_s` are the time of the step and the
    /// time since then.
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

    /// Returns why the goal is not reached.
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
    /// The replicas of the node at the beginning.
    first: DrainStatus,
    moved_bytes: u64,
    asked: Instant,
    /// The last message of the master, if it said something.
    heard: Option<String>,
    /// The runtime of the calls.
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
            // The master may answer again.
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
