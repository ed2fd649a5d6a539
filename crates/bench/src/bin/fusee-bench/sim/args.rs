//! The arguments of `fusee-bench sim`, and the runs that they select.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use fusee_cli::failure::Failure;
use fusee_cli::interrupt;
use fusee_sim::{Fault, RunOptions, Scenario};

const EXAMPLES: &str = "Examples:\n  \
    fusee-bench sim                                   100 seeds of all scenarios\n  \
    fusee-bench sim --seeds 1000 --json               more, for a script\n  \
    fusee-bench sim --minutes 60 --scenario storm     as many as fit into an hour\n  \
    fusee-bench sim --scenario crashes --seed 17      one run again, bit for bit\n  \
    fusee-bench sim --list                            the scenarios and their faults\n\n\
Exit codes: 0 no promise was broken; 1 one was; 2 wrong usage; 130 interrupted.";

/// Arguments of `fusee-bench sim`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct SimArgs {
    /// The first seed; without --seeds and --minutes, the only one
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Number of seeds to run [default: 100]
    #[arg(long, value_name = "N")]
    seeds: Option<u64>,
    /// Run seed after seed for this many minutes
    #[arg(long, value_name = "M", conflicts_with = "seeds")]
    minutes: Option<f64>,
    /// Run only this scenario; may be given several times [default: seeds take turns, see --list]
    #[arg(long, value_name = "NAME")]
    scenario: Vec<String>,
    /// Operations per run, instead of the scenario's number
    #[arg(long, value_name = "N")]
    ops: Option<usize>,
    /// Client processes, instead of the number that the seed draws
    #[arg(long, value_name = "N")]
    clients: Option<usize>,
    /// Faults to leave out, separated by commas
    #[arg(long, value_name = "FAULT,...", value_delimiter = ',')]
    without: Vec<String>,
    /// Send all verbs over a network, through switches that forget and err [default: in one of three runs]
    #[arg(long)]
    switches: bool,
    /// Threads [default: one per processor]
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Write everything that happens in the first run to a file
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// List the scenarios and exit
    #[arg(long)]
    pub list: bool,
    /// List the faults and events that happened, with their numbers
    #[arg(long)]
    counts: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// The runs that the arguments select.
#[derive(Clone, Debug)]
pub struct SimPlan {
    /// The first seed.
    pub first: u64,
    /// Number of seeds; `None` if the time limit ends the runs.
    pub seeds: Option<u64>,
    /// Time limit of all runs together.
    pub time: Option<Duration>,
    /// Scenarios, which take turns from seed to seed.
    pub scenarios: Vec<Scenario>,
    /// Number of threads.
    pub jobs: usize,
    /// Whether to list the faults and events that happened, with their numbers.
    pub counts: bool,
    ops: Option<usize>,
    clients: Option<usize>,
    without: BTreeSet<Fault>,
    switches: bool,
}

impl SimArgs {
    /// Returns the runs that the arguments select.
    pub fn plan(&self) -> Result<SimPlan, Failure> {
        let scenario = |name: &String| {
            let known = || Scenario::ALL.map(Scenario::name).join(", ");
            Scenario::named(name).ok_or_else(|| {
                Failure::usage(format!("no scenario is called {name:?}: use one of {}", known()))
            })
        };
        let fault = |name: &String| {
            let known = || Fault::ALL.map(Fault::name).join(", ");
            Fault::named(name).ok_or_else(|| {
                Failure::usage(format!("no fault is called {name:?}: use one of {}", known()))
            })
        };
        let mut scenarios = self.scenario.iter().map(scenario).collect::<Result<Vec<_>, _>>()?;
        if scenarios.is_empty() {
            scenarios = Scenario::ALL.to_vec();
        }
        let time = match self.minutes {
            Some(minutes) if !(minutes > 0.0 && minutes < 1e6) => {
                return Err(Failure::usage("--minutes must be more than 0"));
            }
            minutes => minutes.map(|m| Duration::from_secs_f64(m * 60.0)),
        };
        for (flag, value) in [("--clients", self.clients), ("--jobs", self.jobs)] {
            if value == Some(0) {
                return Err(Failure::usage(format!("{flag} must be at least 1")));
            }
        }
        let default = if self.seed.is_some() { 1 } else { 100 };
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(SimPlan {
            first: self.seed.unwrap_or(0),
            seeds: time.is_none().then(|| self.seeds.unwrap_or(default)),
            time,
            scenarios,
            jobs: self.jobs.unwrap_or(processors),
            counts: self.counts,
            ops: self.ops,
            clients: self.clients,
            without: self.without.iter().map(fault).collect::<Result<_, _>>()?,
            switches: self.switches,
        })
    }
}

impl SimPlan {
    /// Returns the options of the run with this seed.
    pub fn options(&self, seed: u64) -> RunOptions {
        let turn = seed % self.scenarios.len() as u64;
        RunOptions {
            operations: self.ops,
            clients: self.clients,
            without: self.without.clone(),
            switches: self.switches,
            stop: interrupt::is_requested,
            ..RunOptions::new(self.scenarios[turn as usize], seed)
        }
    }
}

/// Returns the command that repeats this run.
pub fn replay(options: &RunOptions) -> String {
    let mut command =
        format!("fusee-bench sim --scenario {} --seed {}", options.scenario.name(), options.seed);
    if let Some(operations) = options.operations {
        command += &format!(" --ops {operations}");
    }
    if let Some(clients) = options.clients {
        command += &format!(" --clients {clients}");
    }
    if !options.without.is_empty() {
        let names: Vec<&str> = options.without.iter().map(|fault| fault.name()).collect();
        command += &format!(" --without {}", names.join(","));
    }
    if options.switches {
        command += " --switches";
    }
    command
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct SimCli {
        #[command(flatten)]
        args: SimArgs,
    }

    #[test]
    fn a_replay_command_means_the_same_run() {
        let mut options = RunOptions::new(Scenario::Storm, 77);
        options.operations = Some(12);
        options.clients = Some(2);
        options.without = BTreeSet::from([Fault::Stop, Fault::Tear]);
        options.switches = true;
        let command = replay(&options);
        let cli = SimCli::try_parse_from(command.split(' ').skip(1)).unwrap();
        let plan = cli.args.plan().unwrap();
        assert_eq!((plan.first, plan.seeds), (77, Some(1)));
        let again = plan.options(77);
        assert_eq!(again.scenario, Scenario::Storm);
        assert_eq!(again.operations, options.operations);
        assert_eq!(again.clients, options.clients);
        assert_eq!(again.without, options.without);
        assert!(again.switches);
    }
}
