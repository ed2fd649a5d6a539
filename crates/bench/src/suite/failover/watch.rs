//! Changes of the view after memory nodes have been killed, and their times.
//!
//! The view is read from the client of the load's sessions, because the time that matters is when these sessions can
//! work with the stable view. Only the master knows whether replicas or columns are missing.

use std::thread::sleep;
use std::time::{Duration, Instant};

use fusee_cli::failure::Failure;
use fusee_client::{BlockingClient, MnId, View};
use fusee_control::master::Reconfiguration;

/// The interval between looks for the next view.
const VIEW_POLL: Duration = Duration::from_micros(200);
/// The interval between requests to the master.
const STATUS_POLL: Duration = Duration::from_millis(20);
/// Number of views in the change after one loss: frozen, transforming, switched, stable.
const VIEWS: u64 = 4;

/// Observes the cluster from the moment of the kill on.
pub struct FailoverMonitor<'a> {
    client: &'a BlockingClient,
    victims: Vec<MnId>,
    /// The number of the view before the kill.
    before: u64,
    killed: Instant,
    /// The time from the kill until a view without the nodes was stable.
    pub stable: Option<Duration>,
    /// The time from the kill until no replica or column was missing any more.
    pub whole: Option<Duration>,
    /// Number of subtables and regions that lacked a replica or a column by the master's last answer.
    pub missing: u64,
    /// Whether the master reports a problem while replicas or columns are missing, so that they are not awaited.
    pub hopeless: bool,
    /// The change that removed the victims, as the master describes it.
    pub change: Option<Reconfiguration>,
}

impl FailoverMonitor<'_> {
    /// Starts to observe. The caller calls this at the moment of the kill.
    pub fn start(client: &BlockingClient, victims: Vec<MnId>) -> FailoverMonitor<'_> {
        FailoverMonitor {
            client,
            victims,
            before: client.view().number,
            killed: Instant::now(),
            stable: None,
            whole: None,
            missing: 0,
            hopeless: false,
            change: None,
        }
    }

    /// Returns the time since the kill.
    pub fn elapsed(&self) -> Duration {
        self.killed.elapsed()
    }

    /// Returns whether all awaited events have happened, or cannot happen.
    pub fn is_over(&self) -> bool {
        self.stable.is_some() && (self.whole.is_some() || self.hopeless)
    }

    /// Returns whether one of the victims is still a member of this view.
    fn is_in(&self, view: &View) -> bool {
        view.members.iter().any(|member| self.victims.contains(&member.node))
    }

    /// Looks once at the client's view or, after that view is stable without the victims, at the master's status. Then
    /// waits a little.
    pub fn look(&mut self) -> Result<(), Failure> {
        if self.stable.is_none() {
            let view = self.client.view();
            let views = VIEWS * self.victims.len() as u64;
            let is_stable = view.change.is_none() || view.number >= self.before + views;
            if !self.is_in(&view) && is_stable {
                self.stable = Some(self.elapsed());
            }
            sleep(VIEW_POLL);
            return Ok(());
        }
        if !self.is_over() {
            self.poll_master()?;
        }
        sleep(STATUS_POLL);
        Ok(())
    }

    /// Asks the master for the change and for missing replicas. This works even if no session learns of new views any
    /// more.
    pub fn poll_master(&mut self) -> Result<(), Failure> {
        let status = self.client.admin().status()?;
        let view = status.view.as_ref();
        let is_rid = |view: &&View| view.change.is_none() && !self.is_in(view);
        let settled = view.filter(is_rid).is_some();
        self.missing = status.missing_replicas;
        if settled && self.missing == 0 {
            self.whole = Some(self.elapsed());
        }
        self.hopeless = settled && self.missing > 0 && status.problem.is_some();
        let past = status.last_reconfigurations.into_iter();
        self.change =
            past.rev().find(|change| self.victims.iter().any(|node| change.lost.contains(node)));
        Ok(())
    }
}
