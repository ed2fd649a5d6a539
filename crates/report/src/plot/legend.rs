//! The legend of a panel, and the styles of its lines.

use plotters::prelude::*;

use super::draw::{Area, FONT, MARK_COLOR, PANEL_HEIGHT, WIDTH};
use super::{Chart, ChartLine, DrawResult, Panel};

const COLORS: [RGBColor; 8] = [
    RGBColor(0x1f, 0x77, 0xb4),
    RGBColor(0xd6, 0x5f, 0x00),
    RGBColor(0x2c, 0x8a, 0x4b),
    RGBColor(0x8a, 0x3f, 0xa0),
    RGBColor(0x55, 0x55, 0x55),
    RGBColor(0xa8, 0x7d, 0x00),
    RGBColor(0x17, 0xa2, 0xb8),
    RGBColor(0x7b, 0x3f, 0x1d),
];
/// Dashes of lines beyond the first eight, which repeat the colours: length, and the space between.
const DASHES: [(i32, i32); 3] = [(9, 4), (3, 3), (14, 3)];
const SPREAD_COLOR: RGBColor = RGBColor(0x80, 0x80, 0x80);
/// Width of the legend to the right of the panel, and its other dimensions, in pixels.
pub(super) const LEGEND_WIDTH: u32 = 210;
const LEGEND_TOP: u32 = 16;
const LEGEND_LINE: u32 = 17;
/// Maximum number of characters of a line of the legend.
const LEGEND_CHARS: usize = 28;

/// Returns colour and dashes of the line with this number. The first 32 lines all differ.
pub(super) fn style(number: usize) -> (RGBColor, Option<(i32, i32)>) {
    let dashes = (number / COLORS.len()).checked_sub(1).map(|round| DASHES[round % DASHES.len()]);
    (COLORS[number % COLORS.len()], dashes)
}

/// Wraps a text into lines of at most `most` characters. A longer word gets a line of its own.
pub(super) fn wrapped(text: &str, most: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= most => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// An entry of the legend.
pub(super) struct LegendEntry<'n> {
    name: &'n str,
    color: RGBColor,
    dashes: Option<(i32, i32)>,
    is_spread: bool,
}

impl Chart {
    /// Returns the height of a panel, at least that of its legend.
    pub(super) fn height(&self, panel: &Panel) -> u32 {
        let lines =
            self.legend(panel).into_iter().map(|entry| wrapped(entry.name, LEGEND_CHARS).len());
        PANEL_HEIGHT.max(LEGEND_TOP + LEGEND_LINE * lines.sum::<usize>() as u32 + 8)
    }

    pub(super) fn legend<'n>(&'n self, panel: &'n Panel) -> Vec<LegendEntry<'n>> {
        let of = |(number, line): (usize, &'n ChartLine)| {
            let (color, dashes) = style(number);
            LegendEntry { name: &line.name, color, dashes, is_spread: false }
        };
        let lines = panel.lines.iter().enumerate().map(of);
        let mark = LegendEntry {
            name: self.mark_name,
            color: MARK_COLOR,
            dashes: Some((4, 3)),
            is_spread: false,
        };
        let mark = (!self.marks.is_empty()).then_some(mark);
        let is_told = panel.lines.iter().any(|line| panel.bars(line).next().is_some());
        let name = "least to most";
        let spread = LegendEntry { name, color: SPREAD_COLOR, dashes: None, is_spread: true };
        lines.chain(mark).chain(is_told.then_some(spread)).collect()
    }
}

/// Draws the legend beside the panel's lines, directly into `area`, because the chart draws nothing outside of its
/// axes.
pub(super) fn draw_legend(entries: &[LegendEntry<'_>], area: &Area<'_>) -> DrawResult<()> {
    let left = (WIDTH - LEGEND_WIDTH - 8) as i32;
    let mut top = LEGEND_TOP as i32;
    for LegendEntry { name, color, dashes, is_spread } in entries {
        let line = if *is_spread {
            [(left + 8, top - 6), (left + 8, top + 6)]
        } else {
            [(left, top), (left + 16, top)]
        };
        match dashes {
            Some((dash, room)) => {
                let mut from = left;
                while from < left + 16 {
                    let to = (from + dash).min(left + 16);
                    area.draw(&PathElement::new([(from, top), (to, top)], color.stroke_width(2)))?;
                    from = to + room;
                }
            }
            None => area.draw(&PathElement::new(line, color.stroke_width(2)))?,
        }
        for text in wrapped(name, LEGEND_CHARS) {
            area.draw(&Text::new(text, (left + 22, top - 6), (FONT, 13)))?;
            top += LEGEND_LINE as i32;
        }
    }
    Ok(())
}
