//! What a figure is told as: a table for people.

use std::fmt::Write;

use crate::figures::Kind;
use crate::run::{Judged, Outcome, Row};

/// A figure as a table, with what became of the paper's statements below it.
pub fn text(outcome: &Outcome) -> String {
    let mut text = String::new();
    let mut line = |words: String| writeln!(text, "{words}").expect("a String takes everything");
    line(format!("{}: {}, {}", outcome.figure, outcome.about, outcome.source));
    line(format!("  {}", outcome.quantity));
    line(format!(
        "  {:<18}{:>14}  {:>9}  {:<19}  busiest",
        "", outcome.x, "median", "least to most"
    ));
    for row in &outcome.rows {
        line(row_in_words(row));
    }
    for statement in &outcome.statements {
        line(statement_in_words(statement));
    }
    for remark in outcome.remarks {
        line(format!("  note: {remark}"));
    }
    if outcome.interrupted {
        line("  interrupted: not all points are there".into());
    }
    text
}

fn row_in_words(row: &Row) -> String {
    let Row { series, x, value, least, most, .. } = row;
    let busiest = row.measured.first().map(|measured| {
        let busiest = &measured.busiest;
        format!("{} of {}, {:.0} %", busiest.part, busiest.machine, busiest.share * 100.0)
    });
    let spread = format!("{least:.3} to {most:.3}");
    let busiest = busiest.unwrap_or_default();
    format!("  {series:<18}{x:>14}  {value:>9.3}  {spread:<19}  {busiest}")
}

fn statement_in_words(statement: &Judged) -> String {
    let Judged { says, section, kind, expected, value, holds } = statement;
    let verdict = match (value, kind, holds) {
        (None, ..) => "not measured",
        (_, Kind::Calibrated, true) => "calibrated",
        (_, Kind::Calibrated, false) => "calibrated, and missed",
        (_, Kind::Predicted, true) => "holds",
        (_, Kind::Predicted, false) => "FAILS",
    };
    let value = value.map_or("nothing".into(), |value| format!("{value:.3}"));
    format!("  {verdict}: {says} ({section}): {value}, {} expected", expected.in_words())
}
