//! Metrics in the text format of Prometheus, version 0.0.4: for programs that show what their clients do.
//!
//! Values are read when somebody asks, so there is no registry: each page writes its own. The samples of a
//! metric stand together under one head, as the format wants it: [`Metrics::family`] makes that the only way
//! to write one.

use std::fmt::{Display, Write as _};

/// What the answer says that it is.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Whether a value may only grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It grows, and begins anew with the process.
    Counter,
    /// It goes up and down.
    Gauge,
    /// Counts by size: [`Family::histogram`].
    Histogram,
}

/// A histogram: how many were no larger than each bound, their sum and their count.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Buckets {
    /// Bounds, which grow, with how many were no larger.
    pub bounds: Vec<(f64, u64)>,
    /// The sum of all.
    pub sum: f64,
    /// How many there were.
    pub count: u64,
}

impl Buckets {
    /// Of how many lie up to each bound and above the one before, and at last above all; and of their sum.
    pub fn new(bounds: impl Iterator<Item = f64>, counts: &[u64], sum: f64) -> Buckets {
        let up_to = |count: &mut u64, in_bucket: &u64| {
            *count += in_bucket;
            Some(*count)
        };
        let bounds = bounds.zip(counts.iter().scan(0, up_to)).collect();
        Buckets { bounds, sum, count: counts.iter().sum() }
    }
}

/// A page of metrics.
#[derive(Debug, Default)]
pub struct Metrics(String);

/// The samples of one metric.
#[derive(Debug)]
pub struct Family<'m> {
    text: &'m mut String,
    name: &'static str,
}

impl Metrics {
    /// Begins a metric.
    pub fn family(&mut self, kind: Kind, name: &'static str, help: &str) -> Family<'_> {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
        Family { text: &mut self.0, name }
    }

    /// A metric with one value.
    pub fn one(&mut self, kind: Kind, name: &'static str, help: &str, value: impl Display) {
        self.family(kind, name, help).sample(&[], value);
    }

    /// All of it.
    pub fn into_text(self) -> String {
        self.0
    }
}

impl Family<'_> {
    /// Adds a histogram under this label.
    pub fn histogram(&mut self, label: (&str, &str), buckets: &Buckets) -> &mut Self {
        for (bound, count) in &buckets.bounds {
            self.part("_bucket", &[label, ("le", &bound.to_string())], count);
        }
        self.part("_bucket", &[label, ("le", "+Inf")], buckets.count);
        self.part("_sum", &[label], buckets.sum);
        self.part("_count", &[label], buckets.count)
    }

    /// Adds a value under these labels.
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
        metrics.one(Kind::Gauge, "fusee_view_number", "Number of the view.", 7);
        let mut nodes = metrics.family(Kind::Counter, "fusee_bytes_total", "Bytes.");
        nodes.sample(&[("node", "mn0"), ("path", "a\"b\\c\n")], 1.5).sample(&[("node", "mn1")], 2);
        let text = "# HELP fusee_view_number Number of the view.\n# TYPE fusee_view_number gauge\n\
                    fusee_view_number 7\n# HELP fusee_bytes_total Bytes.\n\
                    # TYPE fusee_bytes_total counter\n\
                    fusee_bytes_total{node=\"mn0\",path=\"a\\\"b\\\\c\\n\"} 1.5\n\
                    fusee_bytes_total{node=\"mn1\"} 2\n";
        assert_eq!(metrics.into_text(), text);
    }
}
