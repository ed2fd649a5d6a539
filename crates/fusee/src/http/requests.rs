//! Answer times of requests at a server's control port.

use std::collections::BTreeMap;

use fusee_client::prometheus::{MetricHistogram, MetricKind, Metrics};
use fusee_control::rpc::{BOUNDS_US, Times};

/// Adds a histogram of answer times for each kind of request.
pub fn add(metrics: &mut Metrics, name: &'static str, times: &BTreeMap<&'static str, Times>) {
    let help = "How long control requests took to be answered, in seconds.";
    let mut family = metrics.family(MetricKind::Histogram, name, help);
    for (request, Times { counts, sum }) in times {
        let bounds = BOUNDS_US.iter().map(|bound| *bound as f64 / 1e6);
        let buckets = MetricHistogram::new(bounds, counts, sum.as_secs_f64());
        family.histogram(("request", request), &buckets);
    }
}
