//! The pages of a memory node.

use fusee_client::Usage;
use fusee_control::node::{NodeReply, NodeRequest};
use fusee_control::rpc::{NodeClient, RequestTimes};
use hyper::StatusCode;
use tokio::sync::watch;

use super::recent_answer::RecentAnswer;
use super::{HttpPage, HttpPages, process, requests};
use fusee_client::prometheus::{self, MetricKind, Metrics};

/// The pages of a memory node. If the cluster gives up the node, a new node can serve the same addresses; the pages
/// then show the new node.
#[derive(Debug)]
pub struct NodePages {
    node: watch::Receiver<NodePageSource>,
    usage: RecentAnswer<Result<Usage, String>>,
}

/// A memory node, as its pages need it.
#[derive(Clone, Debug)]
pub struct NodePageSource {
    /// A control client of the memory node.
    pub client: NodeClient,
    /// The node's name in the cluster; `None` until the node has joined.
    pub joined: watch::Receiver<Option<fusee_core::verbs::MnId>>,
    /// Answer times of control requests.
    pub times: RequestTimes,
}

impl NodePages {
    /// Creates pages that show the latest node of this channel.
    pub fn new(node: watch::Receiver<NodePageSource>) -> NodePages {
        NodePages { node, usage: RecentAnswer::default() }
    }

    async fn usage(&self) -> Result<Usage, String> {
        let client = self.node.borrow().client.clone();
        let ask = async {
            match client.call(NodeRequest::Usage).await {
                Ok(NodeReply::Usage(usage)) => Ok(usage),
                Ok(other) => Err(format!("{other:?}")),
                Err(error) => Err(error.to_string()),
            }
        };
        self.usage.get_or_ask(ask).await
    }

    fn name(&self) -> Option<String> {
        let joined = self.node.borrow().joined.clone();
        let name = *joined.borrow();
        name.map(|name| name.to_string())
    }

    async fn metrics(&self) -> Metrics {
        let mut metrics = Metrics::default();
        let name = self.name();
        let joined = u8::from(name.is_some());
        let help = "Whether it has joined a cluster.";
        let node = name.unwrap_or_default();
        let mut family = metrics.family(MetricKind::Gauge, "fusee_node_joined", help);
        family.sample(&[("node", &node)], joined);
        if let Ok(Usage {
            pool_bytes,
            reserved_bytes,
            used_bytes,
            led_bytes,
            led_bytes_owned,
            free_block_bytes,
            log_areas,
            log_areas_used,
            attached,
            tcp_requests,
            tcp_bytes,
            socket_gone,
        }) = self.usage().await
        {
            for (name, help, value) in [
                ("fusee_node_pool_bytes", "Memory that it lends.", pool_bytes),
                (
                    "fusee_node_reserved_bytes",
                    "Of that, for regions and the index.",
                    reserved_bytes,
                ),
                (
                    "fusee_node_led_bytes",
                    "Bytes of the blocks in the regions that it leads.",
                    led_bytes,
                ),
                ("fusee_node_led_bytes_owned", "Of these, with an owner.", led_bytes_owned),
                ("fusee_node_used_bytes", "Of it, subtables and owned blocks.", used_bytes),
                (
                    "fusee_node_free_block_bytes",
                    "Bytes of blocks that a write may get.",
                    free_block_bytes,
                ),
                (
                    "fusee_node_log_areas",
                    "Log areas: sessions that can delete at a time.",
                    log_areas.into(),
                ),
                ("fusee_node_log_areas_used", "Of these, lent to sessions.", log_areas_used.into()),
                ("fusee_node_attached_clients", "Sessions that reach it.", attached.total()),
                (
                    "fusee_node_socket_gone",
                    "Whether its socket has gone, and could not be made again.",
                    u64::from(socket_gone),
                ),
            ] {
                metrics.family(MetricKind::Gauge, name, help).sample(&[("node", &node)], value);
            }
            for (name, help, value) in [
                ("fusee_node_tcp_requests_total", "Requests over TCP.", tcp_requests),
                ("fusee_node_tcp_bytes_total", "Bytes of them and of replies.", tcp_bytes),
            ] {
                metrics.family(MetricKind::Counter, name, help).sample(&[("node", &node)], value);
            }
            let help = "Sessions that reach it, by their fabric.";
            let mut sessions = metrics.family(MetricKind::Gauge, "fusee_node_sessions", help);
            for (fabric, value) in
                [("shm", attached.shm), ("tcp", attached.tcp), ("verbs", attached.verbs)]
            {
                sessions.sample(&[("node", &node), ("fabric", fabric)], value);
            }
        }
        let times = self.node.borrow().times.all();
        requests::add(&mut metrics, "fusee_node_request_seconds", &times);
        process::add(&mut metrics);
        metrics
    }
}

impl HttpPages for NodePages {
    async fn get(&self, path: &str) -> Option<HttpPage> {
        Some(match path {
            "/" => {
                let about = "a memory node of FUSEE: /metrics /healthz /readyz /status.json";
                HttpPage::text(StatusCode::OK, about)
            }
            "/metrics" => HttpPage::ok(prometheus::CONTENT_TYPE, self.metrics().await.into_text()),
            "/healthz" => HttpPage::health(self.usage().await.map(drop)),
            "/readyz" => HttpPage::health(match self.name() {
                Some(_) => Ok(()),
                None => Err("it has not joined a cluster yet".into()),
            }),
            "/status.json" => {
                let usage = self.usage().await.ok();
                HttpPage::json(&serde_json::json!({
                    "node": self.name(),
                    "version": env!("CARGO_PKG_VERSION"),
                    "pool_bytes": usage.map(|usage| usage.pool_bytes),
                    "reserved_bytes": usage.map(|usage| usage.reserved_bytes),
                    "led_bytes": usage.map(|usage| usage.led_bytes),
                    "led_bytes_owned": usage.map(|usage| usage.led_bytes_owned),
                    "used_bytes": usage.map(|usage| usage.used_bytes),
                    "free_block_bytes": usage.map(|usage| usage.free_block_bytes),
                    "attached_clients": usage.map(|usage| usage.attached.total()),
                    "attached_shm": usage.map(|usage| usage.attached.shm),
                    "socket_gone": usage.map(|usage| usage.socket_gone),
                }))
            }
            _ => return None,
        })
    }
}
