//! Metrics in the text format of Prometheus, version 0.0.4.
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
    Counter,
    Gauge,
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
    /// Adds a value under these labels.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) -> &mut Self {
        self.text.push_str(self.name);
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
