//! Series over time or something else, and sweeps over named points, as a picture: panels above each
//! other over one axis, in SVG.
//!
//! Lines over names have bars from the least to the most that was measured, if they are told.
//! Moments are marked by vertical lines in all panels; those with a text bear it in the first. A
//! panel may have a logarithmic axis, then values of zero are left out. What is drawn is what the
//! JSON report has; the picture is for looking.

use std::path::Path;

use plotters::prelude::*;

use crate::failure::Failure;

const WIDTH: u32 = 1000;
const PANEL_HEIGHT: u32 = 240;
const TITLE_HEIGHT: u32 = 34;
/// Lines that the texts of marks take in turn.
const TEXT_LINES: u32 = 3;
const FONT: &str = "sans-serif";
const COLORS: [RGBColor; 5] = [
    RGBColor(0x1f, 0x77, 0xb4),
    RGBColor(0xd6, 0x5f, 0x00),
    RGBColor(0x2c, 0x8a, 0x4b),
    RGBColor(0x8a, 0x3f, 0xa0),
    RGBColor(0x55, 0x55, 0x55),
];
const MARK_COLOR: RGBColor = RGBColor(0xbb, 0xbb, 0xbb);

/// A picture.
pub struct Chart {
    /// Above everything.
    pub title: String,
    /// Below all panels.
    pub x: Horizontal,
    /// From top to bottom.
    pub panels: Vec<Panel>,
    /// In all panels.
    pub marks: Vec<Mark>,
}

/// What the panels have in common.
pub enum Horizontal {
    /// Time.
    Seconds,
    /// Numbers of something else: what they are.
    Numbers(&'static str),
    /// Things side by side: the n-th stands at n.
    Names {
        /// What they are.
        label: &'static str,
        /// From left to right.
        names: Vec<String>,
    },
}

impl Horizontal {
    fn label(&self) -> &'static str {
        match self {
            Horizontal::Seconds => "seconds",
            Horizontal::Numbers(label) => label,
            Horizontal::Names { label, .. } => label,
        }
    }

    /// What stands at a tick.
    fn tick(&self, at: f64) -> String {
        match self {
            Horizontal::Seconds | Horizontal::Numbers(_) => number(at),
            Horizontal::Names { names, .. } => {
                let is_one = at >= 0.0 && at.fract() == 0.0;
                let name = is_one.then(|| names.get(at as usize)).flatten();
                name.cloned().unwrap_or_default()
            }
        }
    }
}

/// Lines over the common axis.
pub struct Panel {
    /// What the axis counts, with its unit.
    pub label: &'static str,
    /// Whether the axis is logarithmic.
    pub logarithmic: bool,
    /// What is drawn.
    pub lines: Vec<Line>,
}

/// Values along the common axis.
pub struct Line {
    /// In the legend.
    pub name: String,
    /// Where on the axis (the number of the name, if it has names), and the value.
    pub points: Vec<(f64, f64)>,
    /// The least and the most at some of them.
    pub spreads: Vec<(f64, f64, f64)>,
}

impl Line {
    /// Without bars.
    pub fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> Line {
        Line { name: name.into(), points, spreads: Vec::new() }
    }
}

/// Something happened.
pub struct Mark {
    /// When, in seconds.
    pub at_s: f64,
    /// What; may be empty.
    pub text: String,
}

impl Mark {
    /// Without a text.
    pub fn at(at_s: f64) -> Mark {
        Mark { at_s, text: String::new() }
    }
}

type Drawn<T> = Result<T, Box<dyn std::error::Error>>;

impl Chart {
    /// Writes it to a file.
    pub fn write(&self, path: &Path) -> Result<(), Failure> {
        let failed = |error: &dyn std::fmt::Display| {
            Failure::operation(format!("cannot write the plot {}: {error}", path.display()))
        };
        let svg = self.svg().map_err(|error| failed(&error))?;
        std::fs::write(path, svg).map_err(|error| failed(&error))
    }

    /// As SVG.
    pub fn svg(&self) -> Drawn<String> {
        let mut svg = String::new();
        let count = self.panels.len().max(1);
        let height = TITLE_HEIGHT + PANEL_HEIGHT * count as u32;
        {
            let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
            root.fill(&WHITE)?;
            let root = root.titled(&self.title, (FONT, 18))?;
            for (number, (panel, area)) in
                self.panels.iter().zip(root.split_evenly((count, 1))).enumerate()
            {
                self.panel(panel, number == 0, &area)?;
            }
            root.present()?;
        }
        Ok(svg)
    }

    fn panel(
        &self,
        panel: &Panel,
        is_first: bool,
        area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    ) -> Drawn<()> {
        let (low, high) = panel.range();
        let (start, end) = self.extent();
        let mut chart = ChartBuilder::on(area)
            .margin(8)
            .margin_right(24)
            .x_label_area_size(30)
            .y_label_area_size(76)
            .build_cartesian_2d(start..end, low..high)?;
        let label = |value: &f64| number(panel.value(*value));
        let tick = |at: &f64| self.x.tick(*at);
        let mut mesh = chart.configure_mesh();
        mesh.light_line_style(TRANSPARENT)
            .x_desc(self.x.label())
            .x_label_formatter(&tick)
            .y_desc(panel.label)
            .label_style((FONT, 13))
            .y_label_formatter(&label);
        if let Horizontal::Names { names, .. } = &self.x {
            mesh.x_labels(names.len().max(1));
        }
        if panel.logarithmic {
            mesh.y_labels((high - low) as usize + 1);
        }
        mesh.draw()?;
        let mut texts = 0;
        for mark in &self.marks {
            let line = [(mark.at_s, low), (mark.at_s, high)];
            chart.draw_series(LineSeries::new(line, MARK_COLOR))?;
            if is_first && !mark.text.is_empty() {
                // One below the other: marks may be close together.
                let below = 0.02 + 0.07 * f64::from(texts % TEXT_LINES);
                let at = (mark.at_s, high - (high - low) * below);
                texts += 1;
                let text = Text::new(mark.text.clone(), at, (FONT, 12));
                chart.draw_series([text])?;
            }
        }
        for (line, color) in panel.lines.iter().zip(COLORS.into_iter().cycle()) {
            let points = line.points.iter().filter(|point| panel.shows(point));
            let points = points.map(|(at, value)| (*at, panel.position(*value)));
            chart
                .draw_series(LineSeries::new(points, color.stroke_width(2)))?
                .label(line.name.clone())
                .legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 16, y)], color.stroke_width(2))
                });
            let ends = |(at, least, most): &(f64, f64, f64)| [(*at, *least), (*at, *most)];
            let bars = line.spreads.iter().map(ends);
            let bars = bars.filter(|bar| bar.iter().all(|point| panel.shows(point)));
            let bars = bars.map(|bar| bar.map(|(at, value)| (at, panel.position(value))));
            chart.draw_series(bars.map(|bar| PathElement::new(bar, color)))?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::LowerLeft)
            .background_style(WHITE.mix(0.5))
            .label_font((FONT, 13))
            .draw()?;
        Ok(())
    }

    /// From where to where the panels reach.
    fn extent(&self) -> (f64, f64) {
        match &self.x {
            Horizontal::Seconds | Horizontal::Numbers(_) => (0.0, self.end()),
            Horizontal::Names { names, .. } => (-0.3, names.len().max(1) as f64 - 0.7),
        }
    }

    /// The last second, or the largest number, that is drawn.
    fn end(&self) -> f64 {
        let lines = self.panels.iter().flat_map(|panel| &panel.lines);
        let times = lines.flat_map(|line| line.points.iter().map(|point| point.0));
        let times = times.chain(self.marks.iter().map(|mark| mark.at_s));
        times.filter(|at| at.is_finite()).fold(1e-3, f64::max)
    }
}

impl Panel {
    fn shows(&self, (at, value): &(f64, f64)) -> bool {
        at.is_finite() && value.is_finite() && (!self.logarithmic || *value > 0.0)
    }

    /// Where a value stands on the axis.
    fn position(&self, value: f64) -> f64 {
        if self.logarithmic { value.log10() } else { value }
    }

    /// Which value stands there.
    fn value(&self, position: f64) -> f64 {
        if self.logarithmic { 10f64.powf(position) } else { position }
    }

    /// Where the axis begins and ends: a linear one at 0, a logarithmic one at powers of ten.
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

/// A number with as few digits as an axis needs.
fn number(value: f64) -> String {
    match value.abs() {
        large if large >= 1e6 => format!("{}M", short(value / 1e6)),
        large if large >= 1e4 => format!("{}k", short(value / 1e3)),
        _ => short(value),
    }
}

fn short(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: &[(f64, f64)]) -> Chart {
        let panel = |label, logarithmic| {
            let line = |name: &str| Line::new(name, points.to_vec());
            Panel { label, logarithmic, lines: vec![line("insert"), line("p99 < & \">")] }
        };
        let marks = vec![Mark { at_s: 1.0, text: "a split".into() }];
        Chart {
            title: "growth".into(),
            x: Horizontal::Seconds,
            panels: vec![panel("kops/s", false), panel("us", true)],
            marks,
        }
    }

    /// Every element that is opened is closed, in order.
    fn is_well_formed(svg: &str) -> bool {
        let mut open = Vec::new();
        for part in svg.split('<').skip(1) {
            let Some((tag, text)) = part.split_once('>') else { return false };
            if text.contains('&') && !text.contains(';') {
                return false;
            }
            let name = |tag: &str| tag.split_whitespace().next().map(str::to_string);
            match tag.strip_prefix('/') {
                Some(closed) if open.pop() != name(closed) => return false,
                Some(_) => {}
                None if tag.ends_with('/') || tag.starts_with(['?', '!']) => {}
                None => open.extend(name(tag)),
            }
        }
        open.is_empty()
    }

    #[test]
    fn a_picture_is_well_formed_and_has_what_it_should() {
        let svg = chart(&[(0.0, 5.0), (1.0, 0.0), (2.5, 123_456.0)]).svg().unwrap();
        assert!(svg.starts_with("<svg") && is_well_formed(&svg), "{svg}");
        for text in ["growth", "insert", "kops/s", "a split", "p99 &lt; &amp;", "100k", "seconds"] {
            assert!(svg.contains(text), "{text} is missing in {svg}");
        }
        assert_eq!(svg.matches("<polyline").count() % 2, 0, "two panels with the same lines");
        assert!(!is_well_formed("<svg><text></svg>") && !is_well_formed("<svg"));
    }

    #[test]
    fn names_stand_side_by_side_with_their_spread() {
        let names = ["1 KiB", "64 KiB"].map(String::from).to_vec();
        let mut chart = chart(&[(0.0, 5.0), (1.0, 7.0)]);
        (chart.x, chart.marks) = (Horizontal::Names { label: "value", names }, Vec::new());
        let bars = |svg: &str| svg.matches("<polyline").count();
        let without = chart.svg().unwrap();
        chart.panels[0].lines[0].spreads = vec![(0.0, 4.0, 6.0), (1.0, f64::NAN, 6.0)];
        let svg = chart.svg().unwrap();
        assert!(is_well_formed(&svg), "{svg}");
        assert_eq!(bars(&svg), bars(&without) + 1, "one bar can be drawn: {svg}");
        for text in ["1 KiB", "64 KiB", "value"] {
            assert!(svg.contains(text), "{text} is missing in {svg}");
        }
        assert!(!svg.contains("seconds"), "{svg}");
    }

    #[test]
    fn nothing_and_nonsense_can_be_drawn() {
        for points in
            [&[][..], &[(0.0, 0.0)], &[(f64::NAN, 1.0), (1.0, f64::INFINITY), (2.0, -3.0)]]
        {
            assert!(is_well_formed(&chart(points).svg().unwrap()));
        }
        let nothing = Chart {
            title: String::new(),
            x: Horizontal::Seconds,
            panels: Vec::new(),
            marks: Vec::new(),
        };
        assert!(is_well_formed(&nothing.svg().unwrap()));
    }

    #[test]
    fn axes_have_short_numbers() {
        let texts = [0.0, 0.25, 7.0, 1234.0, 12_500.0, 3_000_000.0].map(number);
        assert_eq!(texts, ["0", "0.25", "7", "1234", "12.5k", "3M"]);
    }
}
