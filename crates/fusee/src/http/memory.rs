//! The metrics about the use of memory. They are a page of their own because a survey is expensive: it joins the
//! cluster like `fusee status --memory`, and reads 1/512 of the used memory.

use std::time::{Duration, Instant};

use fusee_auth::PeerKind;
use fusee_client::prometheus::{MetricKind, Metrics};
use fusee_client::{Client, MemorySurvey, Options, RedundancyMemory};
use fusee_control::rpc::Runtime;
use tokio::sync::Mutex;

/// Age at which a survey is too old to be shown.
const FRESH: Duration = Duration::from_secs(60);

/// The last survey of the cluster's memory, and the time at which it was made.
#[derive(Debug, Default)]
pub struct RecentSurvey(Mutex<Option<(Instant, Result<String, String>)>>);

impl RecentSurvey {
    /// Returns the metrics of a recent survey, or the reason for which there is none.
    pub async fn metrics(&self, runtime: &Runtime, master: &str) -> Result<String, String> {
        let mut last = self.0.lock().await;
        if let Some((at, text)) = &*last
            && at.elapsed() < FRESH
        {
            return text.clone();
        }
        let keys = runtime.keys().map(|keys| keys.acting_as(PeerKind::Client));
        let options = Options::default().with_keys(keys).with_tls(runtime.tls().cloned());
        let master = master.to_owned();
        // A survey runs on a thread of its own, because it waits for memory nodes and must not delay other answers.
        let made = tokio::task::spawn_blocking(move || survey(&master, options)).await;
        let made = made.unwrap_or_else(|error| Err(error.to_string()));
        *last = Some((Instant::now(), made.clone()));
        made
    }
}

fn survey(master: &str, options: Options) -> Result<String, String> {
    let client = Client::connect_with(master, options).map_err(|error| error.to_string())?;
    client.admin().survey_memory().map(|survey| text(&survey)).map_err(|error| error.to_string())
}

fn text(survey: &MemorySurvey) -> String {
    let mut metrics = Metrics::default();
    let mut blocks = metrics.family(
        MetricKind::Gauge,
        "fusee_class_blocks",
        "Blocks by the size of their objects.",
    );
    for class in &survey.classes {
        blocks.sample(&[("object_bytes", &class.object_bytes.to_string())], class.blocks);
    }
    let help = "Bytes of objects, by their size: in use, or set free and waiting to be used again.";
    let mut bytes = metrics.family(MetricKind::Gauge, "fusee_class_bytes", help);
    for class in &survey.classes {
        let size = class.object_bytes.to_string();
        let used = class.objects - class.marked.min(class.objects) - class.new.min(class.objects);
        bytes.sample(&[("object_bytes", &size), ("state", "used")], used * class.object_bytes);
        let free = [("object_bytes", &*size), ("state", "free")];
        bytes.sample(&free, class.marked * class.object_bytes);
    }
    let help = "Bytes of all pools, by their use. Their sum is the size of the pools.";
    let mut bytes = metrics.family(MetricKind::Gauge, "fusee_pool_bytes", help);
    for (what, used) in survey.pool_use().named() {
        bytes.sample(&[("use", what)], used);
    }
    type RedundancyMetric = fn(&RedundancyMemory) -> u64;
    let all: [(&'static str, &str, RedundancyMetric); 3] = [
        ("fusee_pairs", "Pairs by redundancy.", |of| of.pairs),
        ("fusee_pair_bytes", "Bytes of keys and values, at most.", |of| of.value_bytes),
        ("fusee_pair_memory_bytes", "Bytes of objects on all places.", |of| of.memory_bytes),
    ];
    for (name, help, of) in all {
        let mut family = metrics.family(MetricKind::Gauge, name, help);
        for redundancy in &survey.redundancies {
            family.sample(&[("redundancy", &redundancy.redundancy.to_string())], of(redundancy));
        }
    }
    metrics.into_text()
}
