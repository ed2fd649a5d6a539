//! The steps of `fusee-bench elasticity`, one after the other, and the time series.
//!
//! The phase of a step lasts as long as requested. If the step has a goal, the phase also lasts until the goal is
//! reached or its time limit is over. A step that fails is a problem in the report, but the load goes on, so that its
//! operations are reported too.

use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::{Duration, Instant};

use fusee_cli::failure::Failure;
use fusee_cli::quantity::count_with_noun;
use fusee_launch::Servers;

use super::ElasticityArgs;
use super::goal::{DrainInProgress, ReachedGoal, StepGoal};
use super::load::ElasticityLoad;
use super::report::{DrainedNode, ElasticityEvent, ElasticityInterval, JoinedNode, PhaseRow};
use crate::progress::bar;
use crate::series::{IntervalSample, OperationMeter, take_all};

/// The interval between two looks at the clock.
const POLL: Duration = Duration::from_millis(2);

/// A step that changes the cluster or its load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElasticityStep {
    /// From now on this number of sessions work.
    Sessions(u16),
    /// One more memory node is started.
    Join,
    /// The memory node that has been a member for the longest time is drained.
    Drain,
}

impl ElasticityStep {
    fn text(self) -> String {
        match self {
            ElasticityStep::Sessions(n) => count_with_noun(n, "session"),
            ElasticityStep::Join => "a memory node joins".into(),
            ElasticityStep::Drain => "a memory node is drained".into(),
        }
    }
}

/// The observations of the whole run.
#[derive(Default)]
pub struct ElasticityTimeline {
    pub events: Vec<ElasticityEvent>,
    pub phases: Vec<PhaseRow>,
    pub intervals: Vec<ElasticityInterval>,
    pub joined: Option<JoinedNode>,
    pub drained: Option<DrainedNode>,
    /// The failures of steps.
    pub problems: Vec<String>,
}

/// Takes the steps of the script.
pub struct ElasticityStepRunner<'a> {
    args: &'a ElasticityArgs,
    load: &'a ElasticityLoad<'a>,
    meters: &'a [OperationMeter],
    servers: &'a mut Servers,
    start: Instant,
    pub timeline: ElasticityTimeline,
}

impl<'a> ElasticityStepRunner<'a> {
    pub fn new(
        args: &'a ElasticityArgs,
        load: &'a ElasticityLoad<'a>,
        meters: &'a [OperationMeter],
        servers: &'a mut Servers,
    ) -> ElasticityStepRunner<'a> {
        let start = Instant::now();
        let timeline = ElasticityTimeline::default();
        ElasticityStepRunner { args, load, meters, servers, start, timeline }
    }

    /// Takes a step, and observes the phase that begins with it.
    pub fn run_step(&mut self, step: ElasticityStep) {
        if !self.load.goes_on() {
            return;
        }
        let from = self.start.elapsed();
        self.note(from, step.text());
        let goal = self.begin(step).unwrap_or_else(|failure| {
            self.timeline.problems.push(format!("{}: {failure}", step.text()));
            StepGoal::None
        });
        self.watch(step, goal, from);
    }

    fn begin(&mut self, step: ElasticityStep) -> Result<StepGoal, Failure> {
        match step {
            ElasticityStep::Sessions(count) => {
                self.load.wanted.store(count, Ordering::Relaxed);
                Ok(StepGoal::None)
            }
            ElasticityStep::Join => {
                let goal = StepGoal::member(&self.load.client.view());
                self.servers.add_memory_node()?;
                Ok(goal)
            }
            ElasticityStep::Drain => {
                let view = self.load.client.view();
                let oldest = view.members.iter().map(|member| member.node).min();
                let node = oldest.ok_or_else(|| Failure::operation("no memory node is there"))?;
                Ok(StepGoal::Drained(DrainInProgress::begin(self.servers.master(), node)?))
            }
        }
    }

    fn note(&mut self, at: Duration, what: String) {
        self.timeline.events.push(ElasticityEvent { at_s: at.as_secs_f64(), what });
    }

    fn watch(&mut self, step: ElasticityStep, mut goal: StepGoal, from: Duration) {
        let end = from + Duration::from_secs_f64(self.args.phase);
        let bar = bar("run", (self.args.phase * 1000.0) as u64, true);
        bar.set_message(step.text());
        let mut all = IntervalSample::default();
        let mut begun = from;
        let mut goes_on = true;
        while goes_on {
            sleep(POLL);
            self.look(&mut goal, from);
            let now = self.start.elapsed();
            let waits = now < end || !matches!(goal, StepGoal::None);
            goes_on = waits && self.load.goes_on();
            bar.set_position((now - from).as_millis() as u64);
            if (now - begun).as_secs_f64() < self.args.interval && goes_on {
                continue;
            }
            let sample = take_all(self.meters);
            self.timeline.intervals.push(ElasticityInterval::new(self.load, begun, now, &sample));
            all.merge(&sample);
            begun = now;
        }
        bar.finish_and_clear();
        let view = self.load.client.view();
        self.timeline.phases.push(PhaseRow::new(step.text(), &view, from, begun, &all));
    }

    /// Checks the goal of a step, and removes the goal when it has been reached or missed.
    fn look(&mut self, goal: &mut StepGoal, from: Duration) {
        let now = self.start.elapsed();
        let took_s = (now - from).as_secs_f64();
        match goal.look(self.load.client, from.as_secs_f64(), took_s) {
            Ok(None) if took_s < self.args.limit => return,
            Ok(None) => self.timeline.problems.extend(goal.missed(self.args.limit)),
            Ok(Some(ReachedGoal::Joined(joined))) => {
                self.note(now, format!("{} is a member", joined.node));
                self.timeline.joined = Some(joined);
            }
            Ok(Some(ReachedGoal::Drained(drained))) => {
                self.note(now, format!("{} is gone", drained.node));
                self.timeline.drained = Some(drained);
            }
            Err(failure) => self.timeline.problems.push(failure.to_string()),
        }
        *goal = StepGoal::None;
    }
}
