//! The result of `fusee-bench sim`, for people and as JSON.

use std::fmt::Write;

use serde_json::{Value, json};

use super::args::{SimPlan, replay};
use super::batch::{BrokenRun, RunSums, SimBatch};

/// A result, ready to be printed.
pub struct SimReport<'a> {
    plan: &'a SimPlan,
    batch: &'a SimBatch,
    total: RunSums,
}

impl<'a> SimReport<'a> {
    /// Creates the report of a batch.
    pub fn new(plan: &'a SimPlan, batch: &'a SimBatch) -> SimReport<'a> {
        let mut total = RunSums::default();
        for sums in batch.scenarios.values() {
            total.runs += sums.runs;
            total.operations += sums.operations;
            total.events += sums.events;
            total.virtual_ns += sums.virtual_ns;
        }
        SimReport { plan, batch, total }
    }

    /// Returns the report for people.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let batch = self.batch;
        let mut line = |line: String| writeln!(text, "{line}").expect("a String takes everything");
        for broken in &batch.failures {
            line(show(broken));
        }
        line(format!("{:10} {:>8} {:>12} {:>12}", "scenario", "runs", "operations", "virtual ms"));
        for (scenario, sums) in &batch.scenarios {
            let runs = sums.runs;
            let operations = sums.operations;
            let ms = sums.virtual_ns / 1_000_000;
            line(format!("{:10} {runs:>8} {operations:>12} {ms:>12}", scenario.name()));
        }
        if self.plan.counts {
            line(format!("\n{:<28} {:>12}", "happened", "times"));
            for (name, times) in &batch.counts {
                line(format!("{name:<28} {times:>12}"));
            }
            line(String::new());
        } else {
            let happened = batch.counts.values().filter(|times| **times > 0).count();
            let all = batch.counts.len();
            line(format!(
                "{happened} of {all} kinds of faults and events happened (--counts lists them)"
            ));
        }
        line(format!(
            "{} runs from seed {}, {} operations checked in {:.1} s, digest {:016x}: {} violations",
            self.total.runs,
            self.plan.first,
            self.total.operations,
            batch.elapsed.as_secs_f64(),
            batch.digest,
            batch.failures.len(),
        ));
        text
    }

    /// Returns the report as JSON.
    pub fn json(&self) -> String {
        let batch = self.batch;
        let scenario = |(scenario, sums): (&fusee_sim::Scenario, &RunSums)| {
            let value = json!({
                "runs": sums.runs,
                "operations": sums.operations,
                "events": sums.events,
                "virtual_ms": sums.virtual_ns / 1_000_000,
            });
            (scenario.name().to_string(), value)
        };
        let scenarios: serde_json::Map<String, Value> =
            batch.scenarios.iter().map(scenario).collect();
        let failures: Vec<Value> = batch.failures.iter().map(failure).collect();
        let value = json!({
            "first_seed": self.plan.first,
            "runs": self.total.runs,
            "operations": self.total.operations,
            "events": self.total.events,
            "virtual_ms": self.total.virtual_ns / 1_000_000,
            "seconds": batch.elapsed.as_secs_f64(),
            "jobs": self.plan.jobs,
            "interrupted": batch.interrupted,
            "violations": batch.failures.len(),
            "happened": batch.counts,
            "scenarios": scenarios,
            "digest": format!("{:016x}", batch.digest),
            "failures": failures,
        });
        format!("{value:#}\n")
    }
}

fn what(broken: &BrokenRun) -> &str {
    broken.outcome.failure.as_ref().map_or("it does not happen again", |f| &f.what)
}

fn history(broken: &BrokenRun) -> &[String] {
    broken.outcome.failure.as_ref().map_or(&[], |f| &f.history)
}

fn show(broken: &BrokenRun) -> String {
    let mut text = format!(
        "seed {} breaks a promise: {}\n  found with: {}\n  shorter:    {}\n",
        broken.found.seed,
        what(broken),
        replay(&broken.found),
        replay(&broken.short),
    );
    for line in history(broken) {
        text += &format!("  {line}\n");
    }
    text
}

fn failure(broken: &BrokenRun) -> Value {
    json!({
        "seed": broken.found.seed,
        "scenario": broken.found.scenario.name(),
        "what": what(broken),
        "found_with": replay(&broken.found),
        "replay": replay(&broken.short),
        "history": history(broken),
    })
}
