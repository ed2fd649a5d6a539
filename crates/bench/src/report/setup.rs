//! The measured cluster, as reports describe it.

use fusee_client::BlockingClient;
use serde::Serialize;

/// The measured cluster, and the fabric to it.
#[derive(Clone, Debug, Serialize)]
pub struct MeasuredSetup {
    /// The name of the fabric; if the run used several fabrics, their names.
    pub fabric: String,
    /// The cluster, if there was one. Several clusters are described as one if they have the same sizes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterReport>,
}

impl MeasuredSetup {
    /// Describes the cluster of a client. `embedded` tells that the cluster runs inside this process, and `started`
    /// that the benchmark started the cluster's processes.
    pub fn of(client: &BlockingClient, started: bool, embedded: bool) -> MeasuredSetup {
        let cluster = Some(ClusterReport::of(client, started, embedded));
        MeasuredSetup { fabric: client.fabric().to_string(), cluster }
    }

    /// Returns the line of the table that describes the cluster.
    pub fn line(&self) -> String {
        let Some(cluster) = &self.cluster else { return String::new() };
        format!(
            "cluster     {} memory nodes, {} index and {} data replicas, {}{}\n",
            cluster.memory_nodes,
            cluster.index_replicas,
            cluster.data_replicas,
            self.fabric,
            match (cluster.embedded, cluster.started) {
                (true, _) => ", in this process",
                (_, true) => ", started for this run",
                _ => "",
            },
        )
    }
}

/// The description of a cluster.
#[derive(Clone, Debug, Serialize)]
pub struct ClusterReport {
    /// Whether the cluster ran inside the benchmark's process.
    pub embedded: bool,
    /// Whether the benchmark started the cluster's processes.
    pub started: bool,
    /// Number of memory nodes.
    pub memory_nodes: usize,
    /// Number of replicas of the index.
    pub index_replicas: usize,
    /// Number of replicas of keys and values.
    pub data_replicas: usize,
    /// Bytes that all nodes together lend.
    pub pool_bytes: u64,
}

impl ClusterReport {
    /// Describes the cluster of a client.
    pub fn of(client: &BlockingClient, started: bool, embedded: bool) -> ClusterReport {
        let view = client.view();
        ClusterReport {
            embedded,
            started,
            memory_nodes: view.members.len(),
            index_replicas: view.subtables.first().map_or(0, |s| s.replicas().len()),
            data_replicas: view.regions.first().map_or(0, |r| r.places().len()),
            pool_bytes: view.members.iter().map(|m| m.pool_bytes).sum(),
        }
    }
}
