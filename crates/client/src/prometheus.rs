//! Metrics in the text format of Prometheus, version 0.0.4, for programs that publish metrics of their clients.
//!
//! There is no registry: values are read when a page is requested, and each page is written anew. The format demands
//! that all samples of a metric follow one head (`# HELP` and `# TYPE`). [`Metrics::family`] writes that head, and is
//! the only way to write samples.

use std::fmt::{Display, Write as _};

/// The HTTP content type of a page of metrics.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// A count that only grows. It starts at 0 with the process.
    Counter,
    /// A value that goes up and down.
    Gauge,
    /// A histogram: counts of values by ranges of their size; see [`Family::histogram`].
    Histogram,
}

/// A histogram: for each bound, the number of values that do not exceed it; and the sum and number of all values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MetricHistogram {
    /// Ascending bounds, each with the number of values that do not exceed it.
    pub bounds: Vec<(f64, u64)>,
    /// The sum of all values in the histogram.
    pub sum: f64,
    /// The number of values in the histogram.
    pub count: u64,
}

impl MetricHistogram {
    /// Makes a histogram of `counts`, the numbers of values between neighbouring bounds, and of the sum of all values.
    /// The last count is of values above all bounds.
    pub fn new(bounds: impl Iterator<Item = f64>, counts: &[u64], sum: f64) -> MetricHistogram {
        let up_to = |count: &mut u64, in_bucket: &u64| {
            *count += in_bucket;
            Some(*count)
        };
        let bounds = bounds.zip(counts.iter().scan(0, up_to)).collect();
        MetricHistogram { bounds, sum, count: counts.iter().sum() }
    }
}

/// The text of one page of metrics.
#[derive(Debug, Default)]
pub struct Metrics(String);

/// A metric to which samples can be added.
#[derive(Debug)]
pub struct Family<'m> {
    text: &'m mut String,
    name: &'static str,
}

impl Metrics {
    /// Begins a metric: writes its head.
    pub fn family(&mut self, kind: MetricKind, name: &'static str, help: &str) -> Family<'_> {
        let kind = match kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        };
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
        Family { text: &mut self.0, name }
    }

    /// Writes a metric that has one value and no labels.
    pub fn one(&mut self, kind: MetricKind, name: &'static str, help: &str, value: impl Display) {
        self.family(kind, name, help).sample(&[], value);
    }

    /// Returns the text of the whole page.
    pub fn into_text(self) -> String {
        self.0
    }
}

impl Family<'_> {
    /// Adds a histogram, all samples of which have this label.
    pub fn histogram(&mut self, label: (&str, &str), buckets: &MetricHistogram) -> &mut Self {
        for (bound, count) in &buckets.bounds {
            self.part("_bucket", &[label, ("le", &bound.to_string())], count);
        }
        self.part("_bucket", &[label, ("le", "+Inf")], buckets.count);
        self.part("_sum", &[label], buckets.sum);
        self.part("_count", &[label], buckets.count)
    }

    /// Adds to the metric a value with these labels.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) -> &mut Self {
        self.part("", labels, value)
    }

    fn part(&mut self, part: &str, labels: &[(&str, &str)], value: impl Display) -> &mut Self {
        self.text.push_str(self.name);
        self.text.push_str(part);
        for (n, (label, value)) in labels.iter().enumerate() {
            let _ = write!(self.text, "{}{label}=\"", if n == 0 { '{' } else { ',' });
            for c in value.chars() {
                match c {
                    '\\' => self.text.push_str("\\\\"),
                    '"' => self.text.push_str("\\\""),
                    '\n' => self.text.push_str("\\n"),
                    c => self.text.push(c),
                }
            }
            self.text.push('"');
        }
        let _ = writeln!(self.text, "{} {value}", if labels.is_empty() { "" } else { "}" });
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_stand_under_one_head_and_labels_are_escaped() {
        let mut metrics = Metrics::default();
        metrics.one(MetricKind::Gauge, "fusee_view_number", "Number of the view.", 7);
        let mut nodes = metrics.family(MetricKind::Counter, "fusee_bytes_total", "Bytes.");
        nodes.sample(&[("node", "mn0"), ("path", "a\"b\\c\n")], 1.5).sample(&[("node", "mn1")], 2);
        let text = "# HELP fusee_view_number Number of the view.\n# TYPE fusee_view_number gauge\n\
                    fusee_view_number 7\n# HELP fusee_bytes_total Bytes.\n\
                    # TYPE fusee_bytes_total counter\n\
                    fusee_bytes_total{node=\"mn0\",path=\"a\\\"b\\\\c\\n\"} 1.5\n\
                    fusee_bytes_total{node=\"mn1\"} 2\n";
        assert_eq!(metrics.into_text(), text);
    }
}
