//! A page with all figures, and the statements of the papers' text about them.

use std::fmt::{self, Write};

use crate::figures::StatementKind;
use crate::run::{FigureOutcome, JudgedStatement};

/// Returns the page as HTML that refers to no other file.
pub fn page(outcomes: &[FigureOutcome], pictures: &[String]) -> String {
    let mut page = String::new();
    write(&mut page, outcomes, pictures).expect("a String takes everything");
    page
}

fn write(page: &mut String, outcomes: &[FigureOutcome], pictures: &[String]) -> fmt::Result {
    page.write_str(HEAD)?;
    let statements = || outcomes.iter().flat_map(|outcome| &outcome.statements);
    let count = |of: StatementVerdict| {
        statements().filter(|judged| StatementVerdict::of(judged) == of).count()
    };
    writeln!(
        page,
        "<p>{} figures. Of {} sentences {} <b class=holds>hold</b>, {} <b class=fails>fail</b>, {} are \
         <b class=calibrated>calibrated</b>, {} <b class=none>were not measured</b>.</p>",
        outcomes.len(),
        statements().count(),
        count(StatementVerdict::Holds),
        count(StatementVerdict::Fails),
        count(StatementVerdict::Calibrated),
        count(StatementVerdict::None),
    )?;
    page.write_str("<nav>")?;
    for outcome in outcomes {
        writeln!(page, "<a href=\"#{0}\">{0}</a>", EscapedHtml(&outcome.figure))?;
    }
    page.write_str("</nav>\n")?;
    for (outcome, picture) in outcomes.iter().zip(pictures) {
        figure(page, outcome, picture)?;
    }
    page.write_str("</html>\n")
}

fn figure(page: &mut String, outcome: &FigureOutcome, picture: &str) -> fmt::Result {
    let FigureOutcome { figure, about, source, commit, seeds, .. } = outcome;
    writeln!(
        page,
        "<section id=\"{0}\"><h2>{0}: {1}</h2>",
        EscapedHtml(figure),
        EscapedHtml(about)
    )?;
    let commit = commit.as_deref().unwrap_or("a build that does not know its commit");
    writeln!(
        page,
        "<p class=source>{}, {}, {seeds} seeds</p>",
        EscapedHtml(source),
        EscapedHtml(commit)
    )?;
    if outcome.interrupted {
        page.write_str("<p class=fails>Interrupted: not all points are there.</p>")?;
    }
    writeln!(page, "<div class=sides><div>{picture}</div><div>")?;
    if outcome.statements.is_empty() {
        page.write_str("<p>The papers state nothing of it.</p>")?;
    } else {
        page.write_str(
            "<table><tr><th>the text says<th>where<th>of<th>expected<th>here<th></tr>\n",
        )?;
        for judged in &outcome.statements {
            statement(page, judged)?;
        }
        page.write_str("</table>\n")?;
    }
    for remark in &outcome.remarks {
        writeln!(page, "<p class=remark>{}</p>", EscapedHtml(remark))?;
    }
    page.write_str("</div></div>\n<details><summary>points</summary><table>")?;
    writeln!(
        page,
        "<tr><th><th>{}<th>{}<th>least<th>most<th>busiest</tr>",
        EscapedHtml(&outcome.x),
        EscapedHtml(&outcome.quantity)
    )?;
    for row in &outcome.rows {
        writeln!(
            page,
            "<tr><td>{}<td>{}<td>{:.3}<td>{:.3}<td>{:.3}<td>{}</tr>",
            EscapedHtml(&row.series),
            row.x,
            row.value,
            row.least,
            row.most,
            EscapedHtml(&row.busiest)
        )?;
    }
    page.write_str("</table></details></section>\n")
}

fn statement(page: &mut String, judged: &JudgedStatement) -> fmt::Result {
    let verdict = StatementVerdict::of(judged);
    let value = judged.value.map_or("-".into(), |value| format!("{value:.3}"));
    writeln!(
        page,
        "<tr><td>{}<td>{}<td>{}<td>{}<td>{value}<td class={}>{}</tr>",
        EscapedHtml(&judged.says),
        EscapedHtml(&judged.section),
        EscapedHtml(&judged.of),
        judged.expected.in_words(),
        verdict.class(),
        verdict.in_words()
    )
}

/// The verdict on a statement about a figure.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum StatementVerdict {
    /// The statement was predicted, and holds.
    Holds,
    /// The statement was predicted, and does not hold.
    Fails,
    /// A parameter was fitted to meet the statement, which proves nothing.
    Calibrated,
    /// A parameter was fitted to meet the statement, which does not hold nevertheless.
    Missed,
    /// The number of the statement was not measured.
    None,
}

impl StatementVerdict {
    /// Returns the verdict on a statement.
    pub fn of(judged: &JudgedStatement) -> StatementVerdict {
        match (judged.value, judged.kind, judged.holds) {
            (None, ..) => StatementVerdict::None,
            (_, StatementKind::Calibrated, true) => StatementVerdict::Calibrated,
            (_, StatementKind::Calibrated, false) => StatementVerdict::Missed,
            (_, StatementKind::Predicted, true) => StatementVerdict::Holds,
            (_, StatementKind::Predicted, false) => StatementVerdict::Fails,
        }
    }

    /// Returns the verdict in words.
    pub fn in_words(self) -> &'static str {
        match self {
            StatementVerdict::Holds => "holds",
            StatementVerdict::Fails => "FAILS",
            StatementVerdict::Calibrated => "calibrated",
            StatementVerdict::Missed => "calibrated, and missed",
            StatementVerdict::None => "not measured",
        }
    }

    fn class(self) -> &'static str {
        match self {
            StatementVerdict::Holds => "holds",
            StatementVerdict::Fails | StatementVerdict::Missed => "fails",
            StatementVerdict::Calibrated => "calibrated",
            StatementVerdict::None => "none",
        }
    }
}

const HEAD: &str = "<!doctype html>
<html lang=en><meta charset=utf-8><title>The lab: figures of the papers</title>
<style>
body { font: 15px/1.45 sans-serif; max-width: 1500px; margin: 2em auto; padding: 0 1em; color: #222 }
section { border-top: 1px solid #ccc; margin-top: 2em }
.sides { display: grid; grid-template-columns: minmax(0, 3fr) minmax(0, 2fr); gap: 1.5em; align-items: start }
@media (max-width: 900px) { .sides { grid-template-columns: 1fr } }
svg { width: 100%; height: auto }
table { border-collapse: collapse; font-size: 14px }
td, th { text-align: left; vertical-align: top; padding: .2em .7em .2em 0; border-bottom: 1px solid #eee }
nav a { margin-right: .7em }
.source, .remark { color: #666 }
.holds { color: #17692f } .fails { color: #b3261e } .calibrated, .none { color: #777 }
td.holds, td.fails { font-weight: bold }
</style>
<h1>Figures of the papers, run again</h1>
<p>Everything on this page is <b>simulated</b>: whole clusters on modelled hardware, in virtual time. Beside each
figure stands what the paper's text says of it, as a number. Curves of the papers are not read. A sentence that a
parameter of the model was fitted on proves nothing, and is <b class=calibrated>calibrated</b>.</p>
";

/// A text, which is displayed with the special characters of HTML escaped.
struct EscapedHtml<'t>(&'t str);

impl fmt::Display for EscapedHtml<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            match character {
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '&' => f.write_str("&amp;")?,
                '"' => f.write_str("&quot;")?,
                other => f.write_char(other)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::StatementCondition;

    fn judged(kind: StatementKind, value: Option<f64>, holds: bool) -> JudgedStatement {
        let expected = StatementCondition::About(1.0);
        JudgedStatement {
            of: "ours".into(),
            says: "a < b".into(),
            section: "P 1".into(),
            kind,
            expected,
            value,
            holds,
        }
    }

    #[test]
    fn a_page_says_what_holds_and_what_fails() {
        let statements = vec![
            judged(StatementKind::Predicted, Some(1.0), true),
            judged(StatementKind::Predicted, Some(2.0), false),
            judged(StatementKind::Calibrated, Some(1.0), true),
            judged(StatementKind::Predicted, None, false),
        ];
        let outcome = FigureOutcome { statements, ..FigureOutcome::default() };
        let page = page(&[outcome], &["<svg></svg>".into()]);
        assert!(
            page.contains("Of 4 sentences 1 <b class=holds>hold</b>, 1 <b class=fails>"),
            "{page}"
        );
        assert!(page.contains("a &lt; b") && !page.contains("a < b"), "texts are escaped");
        assert!(page.contains("<td class=fails>FAILS"));
    }
}
