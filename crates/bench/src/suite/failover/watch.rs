//! What becomes of the view after memory nodes were killed, and when.
//!
//! The view is looked at where the load's sessions have it: when they can act by the stable one is
//! what counts. Whether replicas or columns are missing only the master knows.

use std::thread::sleep;
use std::time::{Duration, Instant};

use fusee_cli::failure::Failure;
use fusee_client::{Client, MnId, View};
use fusee_control::master::Reconfiguration;

/// How often to look for the next view.
const VIEW_POLL: Duration = Duration::from_micros(200);
/// How often to ask the master.
const STATUS_POLL: Duration = Duration::from_millis(20);
/// The views that a loss takes: frozen, transforming, switched, stable.
const VIEWS: u64 = 4;

/// Watches from the moment of the kill on.
pub struct Watch<'a> {
    client: &'a Client,
    victims: Vec<MnId>,
    /// The number of the view before.
    before: u64,
    killed: Instant,
    /// From the kill until a view without the nodes was stable.
    pub stable: Option<Duration>,
    /// Until nothing lacked a replica or a column any more.
    pub whole: Option<Duration>,
    /// Subtables and regions that lacked one when the master was asked last.
    pub missing: u64,
    /// There is no room for what is missing.
    pub hopeless: bool,
    /// What the master says of the change.
    pub change: Option<Reconfiguration>,
}

impl Watch<'_> {
    /// To be called at the moment of the kill.
    pub fn start(client: &Client, victims: Vec<MnId>) -> Watch<'_> {
        Watch {
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

    /// How long ago the kill was.
    pub fn elapsed(&self) -> Duration {
        self.killed.elapsed()
    }

    /// Whether there is nothing more to wait for.
    pub fn is_over(&self) -> bool {
        self.stable.is_some() && (self.whole.is_some() || self.hopeless)
    }

    /// Whether one of them is still a member.
    fn is_in(&self, view: &View) -> bool {
        view.members.iter().any(|member| self.victims.contains(&member.node))
    }

    /// Looks once, and waits a little.
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
            self.ask()?;
        }
        sleep(STATUS_POLL);
        Ok(())
    }

    /// As [`Watch::look`], when no session hears of views any more.
    pub fn ask(&mut self) -> Result<(), Failure> {
        let status = self.client.status()?;
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
