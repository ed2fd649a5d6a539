//! The legend of a panel, and how its lines are told apart.

use plotters::prelude::*;

use super::draw::{Area, FONT, MARK_COLOR, PANEL_HEIGHT, WIDTH};
use super::{Chart, Drawn, Line, Panel};

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
/// Of lines whose colours have come before: how long dashes are, and the room between them.
const DASHES: [(i32, i32); 3] = [(9, 4), (3, 3), (14, 3)];
const SPREAD_COLOR: RGBColor = RGBColor(0x80, 0x80, 0x80);
/// Where the legend stands, beside the panel.
pub(super) const LEGEND_WIDTH: u32 = 210;
const LEGEND_TOP: u32 = 16;
const LEGEND_LINE: u32 = 17;
/// A line of the legend has at most so many characters.
const LEGEND_CHARS: usize = 28;

/// Colour and dashes of the line with a number: no two of a panel have the same.
pub(super) fn style(number: usize) -> (RGBColor, Option<(i32, i32)>) {
    let dashes = (number / COLORS.len()).checked_sub(1).map(|round| DASHES[round % DASHES.len()]);
    (COLORS[number % COLORS.len()], dashes)
}

/// A text in lines of at most so many characters, if its words are no longer.
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

/// What stands in the legend.
pub(super) struct Entry<'n> {
    name: &'n str,
    color: RGBColor,
    dashes: Option<(i32, i32)>,
    is_spread: bool,
}

impl Chart {
    /// A panel is as high as its legend, at least.
    pub(super) fn height(&self, panel: &Panel) -> u32 {
        let lines =
            self.legend(panel).into_iter().map(|entry| wrapped(entry.name, LEGEND_CHARS).len());
        PANEL_HEIGHT.max(LEGEND_TOP + LEGEND_LINE * lines.sum::<usize>() as u32 + 8)
    }

    pub(super) fn legend<'n>(&'n self, panel: &'n Panel) -> Vec<Entry<'n>> {
        let of = |(number, line): (usize, &'n Line)| {
            let (color, dashes) = style(number);
            Entry { name: &line.name, color, dashes, is_spread: false }
        };
        let lines = panel.lines.iter().enumerate().map(of);
        let mark = Entry {
            name: self.mark_name,
            color: MARK_COLOR,
            dashes: Some((4, 3)),
            is_spread: false,
        };
        let mark = (!self.marks.is_empty()).then_some(mark);
        let is_told = panel.lines.iter().any(|line| panel.bars(line).next().is_some());
        let name = "least to most";
        let spread = Entry { name, color: SPREAD_COLOR, dashes: None, is_spread: true };
        lines.chain(mark).chain(is_told.then_some(spread)).collect()
    }
}

/// Names with their colours, beside the lines: what a chart draws ends where its axes do.
pub(super) fn draw_legend(entries: &[Entry<'_>], area: &Area<'_>) -> Drawn<()> {
    let left = (WIDTH - LEGEND_WIDTH - 8) as i32;
    let mut top = LEGEND_TOP as i32;
    for Entry { name, color, dashes, is_spread } in entries {
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
