//! The plan for the losses: a cluster and pairs that survive them.
//!
//! Without spare nodes all losses add up. With spare nodes only simultaneous losses add up, because the next losses
//! wait until the redundancy has been restored. The index and the replicated regions have to survive the losses as the
//! pairs do, because otherwise the cluster does not go on.

use fusee_cli::failure::Failure;
use fusee_cli::quantity::count_with_noun;
use fusee_client::Redundancy;
use fusee_core::view::MAX_REPLICAS;

use super::FailoverArgs;
use crate::process_cluster::ProcessClusterArgs;
use crate::redundant::survivable_losses;
use fusee_workload::KEY_BYTES;

impl FailoverArgs {
    /// Returns the number of memory nodes to kill.
    pub(super) fn losses(&self) -> u16 {
        self.losses.unwrap_or_else(|| match self.redundancy {
            Redundancy::Replicated => 1,
            coded => survivable_losses(coded, MAX_REPLICAS as u8).max(1) as u16,
        })
    }

    /// Returns the number of victims that are missing at the same time.
    fn missing(&self) -> u16 {
        if self.spare { self.at_once } else { self.losses() }
    }

    /// Returns the arguments with a cluster that survives the losses. Sizes that the user chose stay.
    pub(super) fn planned(&self) -> Result<FailoverArgs, Failure> {
        self.check()?;
        let left = self.missing().saturating_add(1);
        let replicas = u8::try_from(left).unwrap_or(u8::MAX);
        if usize::from(left) > MAX_REPLICAS {
            return Err(Failure::usage(format!(
                "--losses is {}; at most {} memory nodes can be missing at a time, as there are at \
                 most {MAX_REPLICAS} replicas of the index; lower it, or use --spare",
                self.losses(),
                MAX_REPLICAS - 1
            )));
        }
        let of = &self.cluster;
        let known = of.memory_nodes.map_or(u8::MAX, |nodes| u8::try_from(nodes).unwrap_or(u8::MAX));
        let data_replicas = of.data_replicas.unwrap_or(replicas.max(known.min(2)));
        let index_replicas = of.index_replicas.unwrap_or(replicas.max(known.min(3)));
        let places = self.redundancy.places(data_replicas.into());
        let nodes = places.max(index_replicas.into()).max(3) as u16;
        let cluster = ProcessClusterArgs {
            memory_nodes: Some(of.memory_nodes.unwrap_or(nodes)),
            index_replicas: Some(index_replicas),
            data_replicas: Some(data_replicas),
            ..of.clone()
        };
        let planned = FailoverArgs { losses: Some(self.losses()), cluster, ..self.clone() };
        planned.check_cluster(places, data_replicas)?;
        Ok(planned)
    }

    fn check(&self) -> Result<(), Failure> {
        for (name, seconds) in [("before", self.before), ("after", self.after)] {
            if !(seconds > 0.0 && seconds < 1e6) {
                return Err(Failure::usage(format!("--{name} must be more than 0")));
            }
        }
        if self.at_once > self.losses() {
            return Err(Failure::usage(format!(
                "--at-once is {}, and {} killed in all; raise --losses",
                self.at_once,
                if self.losses() == 1 { "1 is".into() } else { format!("{} are", self.losses()) }
            )));
        }
        let value_bytes = self.cluster.value_bytes();
        self.redundancy.check(KEY_BYTES, value_bytes).map_err(|error| {
            Failure::usage(format!("--pair-bytes is {}: {error}", self.cluster.pair_bytes))
        })
    }

    /// Refuses a cluster that does not survive the losses.
    fn check_cluster(&self, places: usize, data_replicas: u8) -> Result<(), Failure> {
        let FailoverArgs { redundancy, cluster, .. } = self;
        let nodes = cluster.memory_nodes();
        if nodes <= self.losses() && !self.spare {
            return Err(Failure::usage(format!(
                "--memory-nodes is {nodes}, and {} would be killed",
                self.losses()
            )));
        }
        let missing = self.missing();
        let lost = count_with_noun(missing, "memory node");
        let survived = survivable_losses(*redundancy, data_replicas);
        if survived < missing.into() {
            return Err(Failure::usage(format!(
                "pairs that are {redundancy} survive the loss of {}, and {lost} would be missing at a \
                 time; lower --losses or --at-once, use --spare, or another --redundancy",
                count_with_noun(survived as u64, "memory node")
            )));
        }
        for (name, given) in [("index", cluster.index_replicas), ("data", cluster.data_replicas)] {
            let given = given.unwrap_or_default();
            if u16::from(given) <= missing {
                return Err(Failure::usage(format!(
                    "--{name}-replicas is {given}; the cluster goes on without {lost} only with at \
                     least {}",
                    missing + 1
                )));
            }
        }
        if usize::from(nodes) < places {
            return Err(Failure::usage(format!(
                "--memory-nodes is {nodes}; pairs that are {redundancy} take {places}"
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct FailoverCommandLine {
        #[command(flatten)]
        args: FailoverArgs,
    }

    fn planned(line: &str) -> Result<FailoverArgs, Failure> {
        FailoverCommandLine::parse_from(["failover"].into_iter().chain(line.split_whitespace()))
            .args
            .planned()
    }

    #[test]
    fn the_cluster_survives_what_is_killed() {
        for (line, losses, nodes, index, data) in [
            ("", 1, 3, 3, 2),
            ("--data-replicas 3", 1, 3, 3, 3),
            ("--losses 2", 2, 3, 3, 3),
            ("--losses 2 --spare", 2, 3, 3, 2),
            ("--redundancy ec:4+2", 2, 6, 3, 3),
            ("--redundancy ec:4+2 --spare", 2, 6, 3, 2),
            ("--redundancy ec:4+2 --spare --at-once 2", 2, 6, 3, 3),
            ("--redundancy ec:2+4", 4, 6, 5, 5),
            ("--redundancy ec:2+1 --memory-nodes 5", 1, 5, 3, 2),
            ("--memory-nodes 2", 1, 2, 2, 2),
        ] {
            let args = planned(line).unwrap();
            let cluster = args.cluster.cluster();
            assert_eq!(
                (args.losses(), args.cluster.memory_nodes()),
                (losses, nodes),
                "{line}: nodes"
            );
            assert_eq!(
                (cluster.index_replicas(), cluster.data_replicas()),
                (index, data),
                "{line}: replicas"
            );
        }
    }

    #[test]
    fn pairs_are_as_long_as_their_redundancy_takes() {
        for (line, bytes) in [
            ("", 1024),
            ("--redundancy replicated", 1024),
            ("--redundancy ec:4+2", 16_400),
            ("--redundancy ec:4+2 --pair-bytes 5000", 5000),
        ] {
            assert_eq!(planned(line).unwrap().cluster.pair_bytes, bytes, "{line}");
        }
    }

    #[test]
    fn a_cluster_that_the_losses_end_is_refused() {
        for (line, says) in [
            ("--redundancy ec:4+2 --losses 3", "survive the loss of 2 memory nodes"),
            ("--redundancy ec:4+2 --index-replicas 2", "--index-replicas is 2"),
            ("--redundancy ec:4+2 --data-replicas 2", "--data-replicas is 2"),
            ("--redundancy ec:4+2 --memory-nodes 5", "take 6"),
            ("--redundancy ec:4+2 --pair-bytes 1000", "at least 1024"),
            ("--redundancy ec:4+2 --at-once 3", "raise --losses"),
            ("--losses 5", "at most 4 memory nodes"),
            ("--data-replicas 1", "survive the loss of 0 memory nodes"),
            ("--memory-nodes 2 --losses 2", "2 would be killed"),
        ] {
            let refused = planned(line).unwrap_err().to_string();
            assert!(refused.contains(says), "{line}: {refused}");
        }
    }
}
