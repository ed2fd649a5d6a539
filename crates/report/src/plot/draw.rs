//! The drawing of pictures.

use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::legend::{LEGEND_WIDTH, draw_legend, style, wrapped};
use super::{Chart, ChartLine, DrawResult, HorizontalAxis, Panel, number};

pub(super) const WIDTH: u32 = 1000;
pub(super) const PANEL_HEIGHT: u32 = 240;
/// Height of a line of the title, and the space below the title, in pixels.
const TITLE_LINE: u32 = 24;
const TITLE_REST: u32 = 10;
/// Maximum number of characters of a line of the title.
const TITLE_CHARS: usize = 112;
/// Number of lines on which the texts of marks are placed in turn.
const TEXT_LINES: u32 = 3;
pub(super) const FONT: &str = "sans-serif";
/// Colour of marks. It differs from all colours of lines, and dashes distinguish marks from the grid.
pub(super) const MARK_COLOR: RGBColor = RGBColor(0xc2, 0x18, 0x5b);
/// Height of the text below the panels, which names the origin of the numbers.
const FOOT_HEIGHT: u32 = 20;
/// Largest number of points of a line whose points are drawn as dots.
const MARKED_POINTS: usize = 40;
/// Largest end of an axis that has a tick at each whole number.
const WHOLE_TICKS: f64 = 20.0;
/// Largest number of lines of a panel in which the first lines are broader.
const FEW_LINES: usize = 4;

pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Axes<'a> = ChartContext<'a, SVGBackend<'a>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

impl Chart {
    /// Returns the picture in SVG, with a text below about the origin of the numbers.
    pub fn svg_of(&self, origin: &str) -> DrawResult<String> {
        let mut svg = String::new();
        let title = wrapped(&self.title, TITLE_CHARS);
        let title_height = TITLE_LINE * title.len().max(1) as u32 + TITLE_REST;
        let heights: Vec<u32> = self.panels.iter().map(|panel| self.height(panel)).collect();
        let height = title_height + heights.iter().sum::<u32>().max(PANEL_HEIGHT) + FOOT_HEIGHT;
        {
            let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
            root.fill(&WHITE)?;
            for (number, line) in title.into_iter().enumerate() {
                let at = (12, 8 + TITLE_LINE as i32 * number as i32);
                root.draw(&Text::new(line, at, (FONT, 17)))?;
            }
            let (_, mut rest) = root.split_vertically(title_height);
            for (number, (panel, height)) in self.panels.iter().zip(heights).enumerate() {
                let (area, below) = rest.split_vertically(height);
                self.panel(panel, number == 0, &area)?;
                rest = below;
            }
            let (_, foot) = root.split_vertically(height - FOOT_HEIGHT);
            foot.draw(&Text::new(origin.to_string(), (12, 2), (FONT, 11)))?;
            root.present()?;
        }
        Ok(svg)
    }

    fn panel(&self, panel: &Panel, is_first: bool, area: &Area<'_>) -> DrawResult<()> {
        let (low, mut high) = panel.range();
        if is_first && self.marks.iter().any(|mark| !mark.text.is_empty()) {
            // This makes room for the texts of marks, which are above all lines.
            high += (high - low) * 0.08 * f64::from(TEXT_LINES);
        }
        let place = self.one_place();
        let (start, end) = match place {
            Some(_) => (-0.6, panel.lines.len().max(1) as f64 - 0.4),
            None => self.extent(),
        };
        let mut chart = ChartBuilder::on(area)
            .margin(8)
            .margin_right(24 + LEGEND_WIDTH)
            .x_label_area_size(38)
            .y_label_area_size(76)
            .build_cartesian_2d(start..end, low..high)?;
        let is_whole = panel.is_whole();
        let label = |value: &f64| {
            if is_whole && value.fract() != 0.0 {
                String::new()
            } else {
                number(panel.value(*value))
            }
        };
        let tick = |at: &f64| self.tick(*at);
        let below = match place {
            Some(at) => format!("{}: {}", self.x.label(), self.x.tick(at)),
            None => self.x.label().to_owned(),
        };
        let mut mesh = chart.configure_mesh();
        mesh.light_line_style(TRANSPARENT)
            .x_desc(below)
            .x_label_formatter(&tick)
            .y_desc(&panel.label)
            .label_style((FONT, 13))
            .y_label_formatter(&label);
        match &self.x {
            _ if place.is_some() => {
                mesh.x_labels(0);
            }
            HorizontalAxis::Names { names, .. } => {
                mesh.x_labels(names.len().max(1));
            }
            HorizontalAxis::Numbers(_) if self.is_whole() => {
                mesh.x_labels((end - start) as usize + 1);
            }
            _ => {}
        }
        if panel.logarithmic || is_whole {
            mesh.y_labels((high - low) as usize + 1);
        }
        mesh.draw()?;
        self.draw_marks(is_first, low, high, &mut chart)?;
        match place {
            Some(_) => draw_columns(panel, low, &mut chart)?,
            None => draw_lines(panel, &mut chart)?,
        }
        draw_legend(&self.legend(panel), area)
    }

    fn draw_marks(&self, is_first: bool, low: f64, high: f64, on: &mut Axes<'_>) -> DrawResult<()> {
        let mut texts = 0;
        for mark in &self.marks {
            let line = [(mark.at_s, low), (mark.at_s, high)];
            on.draw_series(DashedLineSeries::new(line, 4, 3, MARK_COLOR.into()))?;
            if is_first && !mark.text.is_empty() {
                // Texts of neighbouring marks are on different lines, because the marks can be close together.
                let below = 0.02 + 0.07 * f64::from(texts % TEXT_LINES);
                let at = (mark.at_s, high - (high - low) * below);
                texts += 1;
                // A text that would reach into the legend is drawn to the left of its mark.
                let side = if mark.at_s > self.end() * 0.75 { HPos::Right } else { HPos::Left };
                let style = (FONT, 12).into_text_style(on.plotting_area());
                let style = style.pos(Pos::new(side, VPos::Top));
                on.draw_series([Text::new(mark.text.clone(), at, style)])?;
            }
        }
        Ok(())
    }

    /// Returns the label of a tick.
    fn tick(&self, at: f64) -> String {
        match self.x {
            HorizontalAxis::Numbers(_) if self.is_whole() && at.fract() != 0.0 => String::new(),
            _ => self.x.tick(at),
        }
    }

    /// Returns the horizontal positions of all points.
    fn places(&self) -> impl Iterator<Item = f64> {
        let shown = |panel: &'_ Panel| {
            let points = panel.lines.iter().flat_map(|line| panel.points(line));
            points.map(|(at, _)| at).collect::<Vec<_>>()
        };
        self.panels.iter().flat_map(shown)
    }

    /// Returns the horizontal position of all points, if they share one, the axis is not one of time, and the picture
    /// has no marks.
    fn one_place(&self) -> Option<f64> {
        if matches!(self.x, HorizontalAxis::Seconds) || !self.marks.is_empty() {
            return None;
        }
        let first = self.places().next()?;
        self.places().all(|at| at == first).then_some(first)
    }

    /// Returns whether all horizontal positions are small whole numbers.
    fn is_whole(&self) -> bool {
        self.places().all(|at| at.fract() == 0.0) && self.end() <= WHOLE_TICKS
    }

    /// Returns the range of the horizontal axis.
    fn extent(&self) -> (f64, f64) {
        match &self.x {
            HorizontalAxis::Seconds | HorizontalAxis::Numbers(_) => (0.0, self.end()),
            HorizontalAxis::Names { names, .. } => (-0.3, names.len().max(1) as f64 - 0.7),
        }
    }

    /// Returns the last second, or the largest number, that is drawn.
    fn end(&self) -> f64 {
        let lines = self.panels.iter().flat_map(|panel| &panel.lines);
        let times = lines.flat_map(|line| line.points.iter().map(|point| point.0));
        let times = times.chain(self.marks.iter().map(|mark| mark.at_s));
        times.filter(|at| at.is_finite()).fold(1e-3, f64::max)
    }
}

/// Draws each line as a column. Each line has one point.
fn draw_columns(panel: &Panel, low: f64, on: &mut Axes<'_>) -> DrawResult<()> {
    for (number, line) in panel.lines.iter().enumerate() {
        let (at, (color, _)) = (number as f64, style(number));
        let columns = panel.points(line).map(|(_, value)| [(at - 0.35, low), (at + 0.35, value)]);
        on.draw_series(columns.map(|corners| Rectangle::new(corners, color.filled())))?;
        let bars = panel.bars(line).map(|bar| bar.map(|(_, value)| (at, value)));
        on.draw_series(bars.map(|bar| PathElement::new(bar, BLACK)))?;
    }
    Ok(())
}

fn draw_lines(panel: &Panel, on: &mut Axes<'_>) -> DrawResult<()> {
    let count = panel.lines.len();
    for (number, line) in panel.lines.iter().enumerate() {
        let (color, dashes) = style(number);
        // The first lines are broader, so that they stay visible where later lines cover them.
        let width = if count <= FEW_LINES { 1 + (count - number) as u32 } else { 2 };
        let stroke = color.stroke_width(width);
        let points: Vec<_> = panel.points(line).collect();
        match dashes {
            None => on.draw_series(LineSeries::new(points.clone(), stroke))?,
            Some((dash, room)) => {
                on.draw_series(DashedLineSeries::new(points.clone(), dash, room, stroke))?
            }
        };
        if points.len() <= MARKED_POINTS {
            on.draw_series(points.into_iter().map(|at| Circle::new(at, 3, color.filled())))?;
        }
        on.draw_series(panel.bars(line).map(|bar| PathElement::new(bar, color)))?;
    }
    Ok(())
}

impl Panel {
    /// Returns the points of a line that the axes can show, with their vertical positions.
    pub(super) fn points<'p>(&'p self, line: &'p ChartLine) -> impl Iterator<Item = (f64, f64)> {
        let shown = line.points.iter().filter(|point| self.shows(point));
        shown.map(|(at, value)| (*at, self.position(*value)))
    }

    /// Returns a bar from the smallest to the largest value for each spread of a line, if these values differ.
    pub(super) fn bars<'p>(&'p self, line: &'p ChartLine) -> impl Iterator<Item = [(f64, f64); 2]> {
        let told = line.spreads.iter().filter(|(_, least, most)| least < most);
        let bars = told.map(|(at, least, most)| [(*at, *least), (*at, *most)]);
        let shown = bars.filter(|bar| bar.iter().all(|point| self.shows(point)));
        shown.map(|bar| bar.map(|(at, value)| (at, self.position(value))))
    }

    /// Returns whether all values of the axis are small whole numbers, so that ticks between them need no label.
    fn is_whole(&self) -> bool {
        let mut values = self.lines.iter().flat_map(|line| self.points(line)).map(|(_, y)| y);
        !self.logarithmic && values.all(|y| y.fract() == 0.0) && self.range().1 <= WHOLE_TICKS
    }

    fn shows(&self, (at, value): &(f64, f64)) -> bool {
        at.is_finite() && value.is_finite() && (!self.logarithmic || *value > 0.0)
    }

    /// Returns the vertical position of a value.
    fn position(&self, value: f64) -> f64 {
        if self.logarithmic { value.log10() } else { value }
    }

    /// Returns the value at a vertical position.
    fn value(&self, position: f64) -> f64 {
        if self.logarithmic { 10f64.powf(position) } else { position }
    }

    /// Returns the range of the vertical axis: a linear one begins at 0 or at the lowest negative value, a logarithmic
    /// one begins and ends at powers of ten.
    fn range(&self) -> (f64, f64) {
        let spreads = self.lines.iter().flat_map(|line| &line.spreads);
        let spreads = spreads.flat_map(|(at, least, most)| [(*at, *least), (*at, *most)]);
        let points = self.lines.iter().flat_map(|line| line.points.iter().copied());
        let points = points.chain(spreads).filter(|point| self.shows(point));
        let positions: Vec<f64> = points.map(|point| self.position(point.1)).collect();
        let highest = positions.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let lowest = positions.iter().copied().fold(f64::INFINITY, f64::min);
        match (positions.is_empty(), self.logarithmic) {
            (true, _) => (0.0, 1.0),
            (false, true) => (lowest.floor(), highest.ceil().max(lowest.floor() + 1.0)),
            (false, false) => (lowest.min(0.0), (highest * 1.05).max(1e-9)),
        }
    }
}
