//! The output of a figure: a table as text, and a picture.

use std::fmt::Write;

use fusee_report::plot::{Chart, ChartLine, DrawResult, HorizontalAxis, Panel};

use crate::page::StatementVerdict;
use crate::run::{FigureOutcome, FigureRow, JudgedStatement};

/// Returns a figure as a table, with the verdicts on the paper's statements below the table.
pub fn text(outcome: &FigureOutcome) -> String {
    let mut text = String::new();
    let mut line = |words: String| writeln!(text, "{words}").expect("a String takes everything");
    line(format!("{}: {}, {}", outcome.figure, outcome.about, outcome.source));
    line(format!("  {}", outcome.quantity));
    line(format!(
        "  {:<26} {:>9}  {:>9}  {:<19}  busiest",
        "", outcome.x, "median", "least to most"
    ));
    for row in &outcome.rows {
        line(row_in_words(row));
    }
    for statement in &outcome.statements {
        line(statement_in_words(statement));
    }
    for remark in &outcome.remarks {
        line(format!("  note: {remark}"));
    }
    if outcome.interrupted {
        line("  interrupted: not all points are there".into());
    }
    text
}

fn row_in_words(row: &FigureRow) -> String {
    let FigureRow { series, x, value, least, most, busiest, .. } = row;
    let spread = format!("{least:.3} to {most:.3}");
    format!("  {series:<26} {x:>9}  {value:>9.3}  {spread:<19}  {busiest}")
}

fn statement_in_words(statement: &JudgedStatement) -> String {
    let JudgedStatement { of, says, section, expected, value, .. } = statement;
    let verdict = StatementVerdict::of(statement).in_words();
    let value = value.map_or("nothing".into(), |value| format!("{value:.3}"));
    let expected = expected.in_words();
    format!("  {verdict}: {of}: {says} ({section}): {value}, {expected} expected")
}

/// Returns a figure as a picture in SVG. Equal outcomes give equal bytes.
pub fn picture(outcome: &FigureOutcome) -> DrawResult<String> {
    let mut lines: Vec<ChartLine> = Vec::new();
    for FigureRow { series, x, value, least, most, .. } in &outcome.rows {
        let at = match lines.iter().position(|line| line.name == *series) {
            Some(at) => at,
            None => {
                lines.push(ChartLine::new(series.clone(), Vec::new()));
                lines.len() - 1
            }
        };
        lines[at].points.push((*x, *value));
        lines[at].spreads.push((*x, *least, *most));
    }
    let ended = if outcome.interrupted { ", INTERRUPTED" } else { "" };
    let chart = Chart {
        title: format!("{}: {}{ended}", outcome.figure, outcome.about),
        x: HorizontalAxis::Numbers(outcome.x.clone()),
        panels: vec![Panel { label: outcome.quantity.clone(), logarithmic: false, lines }],
        marks: Vec::new(),
        mark_name: "",
    };
    let commit = outcome.commit.as_deref().map(|commit| format!(", {commit}"));
    chart.svg_of(&format!("{}{}", outcome.source, commit.unwrap_or_default()))
}
