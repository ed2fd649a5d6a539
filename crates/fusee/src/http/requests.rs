//! How long a server took to answer what came over its control port.

use std::collections::BTreeMap;

use fusee_client::prometheus::{Buckets, Kind, Metrics};
use fusee_control::rpc::{BOUNDS_US, Times};

/// Adds their histograms, by request.
pub fn add(metrics: &mut Metrics, name: &'static str, times: &BTreeMap<String, Times>) {
    let help = "How long control requests took to be answered, in seconds.";
    let mut family = metrics.family(Kind::Histogram, name, help);
    for (request, Times { counts, sum }) in times {
        let mut count = 0;
        let bounds = BOUNDS_US.iter().zip(counts).map(|(bound, in_bucket)| {
            count += in_bucket;
            (*bound as f64 / 1e6, count)
        });
        let bounds = bounds.collect();
        let buckets = Buckets { bounds, sum: sum.as_secs_f64(), count: counts.iter().sum() };
        family.histogram(("request", request), &buckets);
    }
}
