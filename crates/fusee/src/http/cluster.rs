//! The pages of a master, which show the state of the cluster.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fusee_client::prometheus;
use fusee_control::events::ClusterEvent;
use fusee_control::master::{MasterReply, MasterRequest};
use fusee_control::rpc::{MasterClient, RequestTimes, RpcError, Runtime};
use hyper::StatusCode;
use tokio::time::{MissedTickBehavior, interval};

use super::activity::ActivityHistory;
use super::memory::RecentSurvey;
use super::recent_answer::RecentAnswer;
use super::{HttpPage, HttpPages, metrics};
use crate::events;
use crate::status::{self, StatusReport};

/// Deadline of a memory node's answer about its usage.
const NODE_DEADLINE: Duration = Duration::from_millis(500);
/// Deadline of a master's answers.
const MASTER_DEADLINE: Duration = Duration::from_secs(2);
/// Interval between two samples of the history.
const PERIOD: Duration = Duration::from_secs(1);

const INDEX: &str = include_str!("page/index.html");
const SCRIPT: &str = include_str!("page/page.js");
const STYLE: &str = include_str!("page/page.css");

/// The pages of a master.
#[derive(Debug)]
pub struct ClusterPages {
    runtime: Runtime,
    master: MasterClient,
    /// The address of this master. The status shows the address of the leading master.
    own: String,
    /// Answer times of control requests.
    times: RequestTimes,
    /// The latest report of the cluster, or the reason for which there is none.
    seen: RecentAnswer<Result<Arc<StatusReport>, RpcError>>,
    events: RecentAnswer<Result<Arc<Vec<ClusterEvent>>, RpcError>>,
    history: Arc<Mutex<ActivityHistory>>,
    memory: RecentSurvey,
}

impl ClusterPages {
    /// Creates the pages of a master. `master` is a client with the address at which this master listens. The history
    /// begins now.
    pub fn new(runtime: &Runtime, master: MasterClient, times: RequestTimes) -> ClusterPages {
        let own = master.addr().to_owned();
        let master = master.with_deadline(MASTER_DEADLINE);
        let history = Arc::<Mutex<ActivityHistory>>::default();
        runtime.handle().spawn(remember(master.clone(), own.clone(), Arc::downgrade(&history)));
        let runtime = runtime.clone();
        let memory = RecentSurvey::default();
        let seen = RecentAnswer::default();
        let events = RecentAnswer::default();
        ClusterPages { runtime, master, own, times, seen, events, history, memory }
    }

    async fn recent_report(&self) -> Result<Arc<StatusReport>, RpcError> {
        let look = status::gather(&self.runtime, &self.master, NODE_DEADLINE);
        self.seen.get_or_ask(async { look.await.map(Arc::new) }).await
    }

    async fn metrics(&self) -> String {
        // Of several masters only the leader shows the cluster. Otherwise the cluster would be counted several times.
        let report = self.recent_report().await.ok().filter(|report| report.master == self.own);
        metrics::of(report.as_deref(), &self.times.all())
    }

    /// Returns the status for the page, which requests it every second.
    async fn status(&self) -> HttpPage {
        match self.recent_report().await {
            Ok(report) => HttpPage::json(&*report),
            Err(error) => HttpPage::health(Err(error.to_string())),
        }
    }

    async fn events(&self) -> HttpPage {
        let ask = async { events::ask(&self.master, 0).await.map(Arc::new) };
        match self.events.get_or_ask(ask).await {
            Ok(events) => {
                let events: Vec<events::EventReport<'_>> = events.iter().map(Into::into).collect();
                HttpPage::json(&events)
            }
            Err(error) => HttpPage::health(Err(error.to_string())),
        }
    }
}

impl HttpPages for ClusterPages {
    async fn get(&self, path: &str) -> Option<HttpPage> {
        Some(match path {
            "/" => {
                let page = INDEX.replace("@VERSION@", env!("CARGO_PKG_VERSION"));
                HttpPage::ok("text/html; charset=utf-8", page)
            }
            "/page.js" => HttpPage::ok("text/javascript; charset=utf-8", SCRIPT),
            "/page.css" => HttpPage::ok("text/css; charset=utf-8", STYLE),
            "/metrics" => HttpPage::ok(prometheus::CONTENT_TYPE, self.metrics().await),
            "/metrics/memory" => match self.memory.metrics(&self.runtime, &self.own).await {
                Ok(text) => HttpPage::ok(prometheus::CONTENT_TYPE, text),
                Err(error) => HttpPage::health(Err(error)),
            },
            // A master is healthy even if no master leads.
            "/healthz" => HttpPage::health(match self.recent_report().await {
                Ok(report) => return Some(well(&report)),
                Err(RpcError::NoLeader { .. }) => Ok(()),
                Err(error) => Err(error.to_string()),
            }),
            "/readyz" => match self.recent_report().await {
                Ok(report) => well(&report),
                Err(error) => HttpPage::health(Err(error.to_string())),
            },
            "/status.json" => self.status().await,
            "/events.json" => self.events().await,
            "/history.json" => {
                let history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
                HttpPage::json(&history.rates())
            }
            _ => return None,
        })
    }
}

/// Returns the answer of a healthy master. It is healthy even if the cluster is not, because another master would find
/// the cluster in the same state.
fn well(report: &StatusReport) -> HttpPage {
    let reasons =
        report.reasons.iter().map(|reason| format!("\n{}: {reason}", report.health.name()));
    HttpPage::text(StatusCode::OK, format!("ok{}", reasons.collect::<String>()))
}

/// Adds a sample to the history every second, until the history is dropped.
async fn remember(
    master: MasterClient,
    own: String,
    history: std::sync::Weak<Mutex<ActivityHistory>>,
) {
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
