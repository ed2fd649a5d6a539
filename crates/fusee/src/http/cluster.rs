//! The pages of a master: the state of the cluster.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fusee_client::prometheus;
use fusee_control::events::ClusterEvent;
use fusee_control::master::{MasterReply, MasterRequest};
use fusee_control::rpc::{MasterClient, RequestTimes, RpcError, Runtime};
use hyper::StatusCode;
use tokio::time::{MissedTickBehavior, interval};

use super::history::History;
use super::memory::Memory;
use super::recent::Recent;
use super::{Page, Pages, metrics};
use crate::events;
use crate::status::{self, Report};

/// Deadline of a memory node's answer about its usage.
const NODE_DEADLINE: Duration = Duration::from_millis(500);
/// Deadline of a master's answers.
const MASTER_DEADLINE: Duration = Duration::from_secs(2);
/// Time between two samples of the history.
const PERIOD: Duration = Duration::from_secs(1);

const INDEX: &str = include_str!("page/index.html");
const SCRIPT: &str = include_str!("page/page.js");
const STYLE: &str = include_str!("page/page.css");

/// The pages of a master.
#[derive(Debug)]
pub struct ClusterPages {
    runtime: Runtime,
    master: MasterClient,
    /// The address of this master, as it calls itself while it leads.
    own: String,
    /// Answer times of control requests.
    times: RequestTimes,
    /// The latest report of the cluster, or the reason why there is none.
    seen: Recent<Result<Arc<Report>, RpcError>>,
    events: Recent<Result<Arc<Vec<ClusterEvent>>, RpcError>>,
    history: Arc<Mutex<History>>,
    memory: Memory,
}

impl ClusterPages {
    /// Creates the pages of a master, with a client that has the address at which this master listens. The
    /// history begins now.
    pub fn new(runtime: &Runtime, master: MasterClient, times: RequestTimes) -> ClusterPages {
        let own = master.addr().to_owned();
        let master = master.with_deadline(MASTER_DEADLINE);
        let history = Arc::<Mutex<History>>::default();
        runtime.handle().spawn(remember(master.clone(), own.clone(), Arc::downgrade(&history)));
        let runtime = runtime.clone();
        let memory = Memory::default();
        let seen = Recent::default();
        let events = Recent::default();
        ClusterPages { runtime, master, own, times, seen, events, history, memory }
    }

    async fn look(&self) -> Result<Arc<Report>, RpcError> {
        let look = status::gather(&self.runtime, &self.master, NODE_DEADLINE);
        self.seen.or(async { look.await.map(Arc::new) }).await
    }

    async fn metrics(&self) -> String {
        // Of several masters only the leader shows the cluster, or it would be counted twice.
        let report = self.look().await.ok().filter(|report| report.master == self.own);
        metrics::of(report.as_deref(), &self.times.all())
    }

    /// Returns the answer that the page requests every second.
    async fn status(&self) -> Page {
        match self.look().await {
            Ok(report) => Page::json(&*report),
            Err(error) => Page::health(Err(error.to_string())),
        }
    }

    async fn events(&self) -> Page {
        let ask = async { events::ask(&self.master, 0).await.map(Arc::new) };
        match self.events.or(ask).await {
            Ok(events) => {
                let events: Vec<events::EventReport<'_>> = events.iter().map(Into::into).collect();
                Page::json(&events)
            }
            Err(error) => Page::health(Err(error.to_string())),
        }
    }
}

impl Pages for ClusterPages {
    async fn get(&self, path: &str) -> Option<Page> {
        Some(match path {
            "/" => {
                let page = INDEX.replace("@VERSION@", env!("CARGO_PKG_VERSION"));
                Page::ok("text/html; charset=utf-8", page)
            }
            "/page.js" => Page::ok("text/javascript; charset=utf-8", SCRIPT),
            "/page.css" => Page::ok("text/css; charset=utf-8", STYLE),
            "/metrics" => Page::ok(prometheus::CONTENT_TYPE, self.metrics().await),
            "/metrics/memory" => match self.memory.metrics(&self.runtime, &self.own).await {
                Ok(text) => Page::ok(prometheus::CONTENT_TYPE, text),
                Err(error) => Page::health(Err(error)),
            },
            // A master is healthy also while no master leads.
            "/healthz" => Page::health(match self.look().await {
                Ok(report) => return Some(well(&report)),
                Err(RpcError::NoLeader { .. }) => Ok(()),
                Err(error) => Err(error.to_string()),
            }),
            "/readyz" => match self.look().await {
                Ok(report) => well(&report),
                Err(error) => Page::health(Err(error.to_string())),
            },
            "/status.json" => self.status().await,
            "/events.json" => self.events().await,
            "/history.json" => {
                let history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
                Page::json(&history.rates())
            }
            _ => return None,
        })
    }
}

/// Answers that the master is healthy, even if the cluster is not: another master would find it in the same state.
fn well(report: &Report) -> Page {
    let reasons =
        report.reasons.iter().map(|reason| format!("\n{}: {reason}", report.health.name()));
    Page::text(StatusCode::OK, format!("ok{}", reasons.collect::<String>()))
}

/// Adds a sample to the history every second, until the history is dropped.
async fn remember(master: MasterClient, own: String, history: std::sync::Weak<Mutex<History>>) {
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let status = master.call(MasterRequest::Status).await;
        let Some(history) = history.upgrade() else { return };
        if let Ok(MasterReply::Status(status)) = status
            && master.answered_by() == own
        {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let mut history = history.lock().unwrap_or_else(PoisonError::into_inner);
            history.add(now.as_millis() as u64, status.work, status.damage.found);
        }
    }
}
