//! `fusee-bench sim`: whole clusters under simulated faults, one seed after the other.
//!
//! A seed determines a run of a scenario (`fusee-sim`). Runs are independent, so each thread takes the next seed. A run
//! that breaks a promise is shortened, then printed with the command that replays it. The same seed of the same program
//! gives the same run, bit for bit.

mod args;
mod batch;
mod report;

pub use args::SimArgs;

use std::fs;

use fusee_cli::failure::Failure;
use fusee_cli::{interrupt, output};
use fusee_sim::RunOptions;

use batch::SimBatch;
use report::SimReport;

/// Runs the seeds that the arguments select.
pub fn run(args: &SimArgs) -> Result<(), Failure> {
    if args.list {
        return list();
    }
    let plan = args.plan()?;
    interrupt::watch()?;
    if let Some(path) = &args.trace {
        let mut options: RunOptions = plan.options(plan.first);
        options.trace = true;
        let outcome = fusee_sim::run(&options);
        let text = outcome.trace.text().unwrap_or_default();
        fs::write(path, text)
            .map_err(|e| Failure::operation(format!("cannot write {}: {e}", path.display())))?;
    }
    let batch = SimBatch::run(&plan);
    let report = SimReport::new(&plan, &batch);
    output::text(&if args.json { report.json() } else { report.text() })?;
    match (batch.failures.len(), interrupt::failure()) {
        (0, None) => Ok(()),
        (0, Some(interrupted)) => Err(interrupted),
        (n, _) => Err(Failure::operation(format!("{n} of {} runs broke a promise", batch.runs))),
    }
}

fn list() -> Result<(), Failure> {
    for scenario in fusee_sim::Scenario::ALL {
        let names = |faults: &[fusee_sim::Fault]| {
            let names: Vec<&str> = faults.iter().map(|f| f.name()).collect();
            names.join(", ")
        };
        let about = scenario.about();
        let faults = names(scenario.faults());
        let seldom = match names(scenario.seldom()) {
            seldom if seldom.is_empty() => seldom,
            seldom => format!("\n          in one of four runs each: {seldom}"),
        };
        output::line(&format!(
            "{:9} {about}\n          faults: {faults}{seldom}",
            scenario.name()
        ))?;
    }
    Ok(())
}
