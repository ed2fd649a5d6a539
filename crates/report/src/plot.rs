//! Series over time or something else, and sweeps over named points, as a picture: panels above each
//! other over one axis, in SVG.
//!
//! Lines over names have bars from the least to the most that was measured, if they are told.
//! Moments are marked by vertical lines in all panels; those with a text bear it in the first. A
//! panel may have a logarithmic axis, then values of zero are left out. What is drawn is what the
//! JSON report has; the picture is for looking.

use std::path::{Path, PathBuf};

use fusee_cli::failure::Failure;
use plotters::prelude::*;

use crate::machine::Machine;

const WIDTH: u32 = 1000;
const PANEL_HEIGHT: u32 = 240;
const TITLE_HEIGHT: u32 = 34;
/// Lines that the texts of marks take in turn.
const TEXT_LINES: u32 = 3;
const FONT: &str = "sans-serif";
const COLORS: [RGBColor; 6] = [
    RGBColor(0x1f, 0x77, 0xb4),
    RGBColor(0xd6, 0x5f, 0x00),
    RGBColor(0x2c, 0x8a, 0x4b),
    RGBColor(0x8a, 0x3f, 0xa0),
    RGBColor(0x55, 0x55, 0x55),
    RGBColor(0xa8, 0x7d, 0x00),
];
/// No colour of a line, and dashed: no line of the grid.
const MARK_COLOR: RGBColor = RGBColor(0xc2, 0x18, 0x5b);
/// Where the legend stands, beside the panel.
const LEGEND_WIDTH: u32 = 210;
/// For what was measured where.
const FOOT_HEIGHT: u32 = 20;

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
    /// What the marks are, for the legend.
    pub mark_name: &'static str,
}

/// What the panels have in common.
pub enum Horizontal {
    /// Time.
    Seconds,
    /// Numbers of something else: what they are.
    Numbers(String),
    /// Things side by side: the n-th stands at n.
    Names {
        /// What they are.
        label: String,
        /// From left to right.
        names: Vec<String>,
    },
}

impl Horizontal {
    fn label(&self) -> &str {
        match self {
            Horizontal::Seconds => "seconds",
            Horizontal::Numbers(label) | Horizontal::Names { label, .. } => label,
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
    pub label: String,
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

/// Whether a picture can be written there: before a run of minutes, not after it. What is there stays.
pub fn check(path: Option<&PathBuf>) -> Result<(), Failure> {
    let Some(path) = path else { return Ok(()) };
    let is_new = !path.exists();
    let opened = std::fs::OpenOptions::new().create(true).append(true).open(path);
    opened.map_err(|error| {
        Failure::usage(format!("--plot: cannot write {}: {error}", path.display()))
    })?;
    if is_new {
        // Should it stay, the picture replaces it.
        drop(std::fs::remove_file(path));
    }
    Ok(())
}

/// What became of drawing.
pub type Drawn<T> = Result<T, Box<dyn std::error::Error>>;

impl Chart {
    /// Writes it to a file.
    pub fn write(&self, path: &Path) -> Result<(), Failure> {
        let failed = |error: &dyn std::fmt::Display| {
            Failure::operation(format!("cannot write the plot {}: {error}", path.display()))
        };
        let svg = self.svg().map_err(|error| failed(&error))?;
        std::fs::write(path, svg).map_err(|error| failed(&error))
    }

    /// As SVG, with the machine that the numbers are of.
    pub fn svg(&self) -> Drawn<String> {
        self.svg_of(&Machine::here().in_words())
    }

    /// As SVG, with a text below that says where the numbers come from.
    pub fn svg_of(&self, origin: &str) -> Drawn<String> {
        let mut svg = String::new();
        let count = self.panels.len().max(1);
        let height = TITLE_HEIGHT + PANEL_HEIGHT * count as u32 + FOOT_HEIGHT;
        {
            let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
            root.fill(&WHITE)?;
            let (body, foot) = root.split_vertically(height - FOOT_HEIGHT);
            foot.draw(&Text::new(origin.to_string(), (12, 2), (FONT, 11)))?;
            let body = body.titled(&self.title, (FONT, 18))?;
            for (number, (panel, area)) in
                self.panels.iter().zip(body.split_evenly((count, 1))).enumerate()
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
        let (low, mut high) = panel.range();
        if is_first && self.marks.iter().any(|mark| !mark.text.is_empty()) {
            // The texts stand above all lines.
            high += (high - low) * 0.08 * f64::from(TEXT_LINES);
        }
        let (start, end) = self.extent();
        let mut chart = ChartBuilder::on(area)
            .margin(8)
            .margin_right(24 + LEGEND_WIDTH)
            .x_label_area_size(30)
            .y_label_area_size(76)
            .build_cartesian_2d(start..end, low..high)?;
        let label = |value: &f64| number(panel.value(*value));
        let tick = |at: &f64| self.x.tick(*at);
        let mut mesh = chart.configure_mesh();
        mesh.light_line_style(TRANSPARENT)
            .x_desc(self.x.label())
            .x_label_formatter(&tick)
            .y_desc(&panel.label)
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
            chart.draw_series(DashedLineSeries::new(line, 4, 3, MARK_COLOR.into()))?;
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
            chart.draw_series(LineSeries::new(points, color.stroke_width(2)))?;
            let ends = |(at, least, most): &(f64, f64, f64)| [(*at, *least), (*at, *most)];
            let bars = line.spreads.iter().map(ends);
            let bars = bars.filter(|bar| bar.iter().all(|point| panel.shows(point)));
            let bars = bars.map(|bar| bar.map(|(at, value)| (at, panel.position(value))));
            chart.draw_series(bars.map(|bar| PathElement::new(bar, color)))?;
        }
        let lines = panel.lines.iter().zip(COLORS.into_iter().cycle());
        let lines = lines.map(|(line, color)| (line.name.as_str(), color));
        let marks = (!self.marks.is_empty()).then_some((self.mark_name, MARK_COLOR));
        legend(lines.chain(marks), area)
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

/// Names with their colours, beside the lines: what a chart draws ends where its axes do.
fn legend<'n>(
    names: impl Iterator<Item = (&'n str, RGBColor)>,
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
) -> Drawn<()> {
    let left = (WIDTH - LEGEND_WIDTH - 8) as i32;
    for (count, (name, color)) in names.enumerate() {
        let top = 16 + 17 * count as i32;
        let line = [(left, top), (left + 16, top)];
        area.draw(&PathElement::new(line, color.stroke_width(2)))?;
        area.draw(&Text::new(name.to_string(), (left + 22, top - 6), (FONT, 13)))?;
    }
    Ok(())
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
        let panel = |label: &str, logarithmic| {
            let line = |name: &str| Line::new(name, points.to_vec());
            Panel {
                label: String::from(label),
                logarithmic,
                lines: vec![line("insert"), line("p99 < & \">")],
            }
        };
        let marks = vec![Mark { at_s: 1.0, text: "a split".into() }];
        Chart {
            title: "growth".into(),
            x: Horizontal::Seconds,
            panels: vec![panel("kops/s", false), panel("us", true)],
            marks,
            mark_name: "splits",
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
        let machine = format!("fusee {}", env!("CARGO_PKG_VERSION"));
        let texts = ["growth", "insert", "kops/s", "a split", "splits", &machine];
        for text in texts.into_iter().chain(["p99 &lt; &amp;", "100k", "seconds"]) {
            assert!(svg.contains(text), "{text} is missing in {svg}");
        }
        assert_eq!(svg.matches("<polyline").count() % 2, 0, "two panels with the same lines");
        // The legend's lines are as long as they should be, and right of all panels.
        let left = WIDTH - LEGEND_WIDTH - 8;
        let line = |points: &str| points.starts_with(&format!("{left},"));
        let drawn = svg.split("points=\"").skip(1).filter(|points| line(points)).count();
        assert_eq!(drawn, 6, "two lines and the marks, twice: {svg}");
        assert!(!is_well_formed("<svg><text></svg>") && !is_well_formed("<svg"));
    }

    #[test]
    fn names_stand_side_by_side_with_their_spread() {
        let names = ["1 KiB", "64 KiB"].map(String::from).to_vec();
        let mut chart = chart(&[(0.0, 5.0), (1.0, 7.0)]);
        (chart.x, chart.marks) = (Horizontal::Names { label: "value".into(), names }, Vec::new());
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
            mark_name: "",
        };
        assert!(is_well_formed(&nothing.svg().unwrap()));
    }

    /// Where a picture cannot be written that is told before a run, and what is there stays as it is.
    #[test]
    fn a_place_for_a_picture_is_looked_at_first() {
        let name = format!("fusee-plot-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).unwrap();
        let path = |name: &str| Some(directory.join(name));
        assert!(check(None).is_ok() && check(path("new.svg").as_ref()).is_ok());
        assert!(!path("new.svg").unwrap().exists());
        std::fs::write(path("old.svg").unwrap(), "picture").unwrap();
        assert!(check(path("old.svg").as_ref()).is_ok());
        assert_eq!(std::fs::read(path("old.svg").unwrap()).unwrap(), b"picture");
        let nowhere = check(path("no/where.svg").as_ref()).unwrap_err().to_string();
        assert!(nowhere.contains("--plot") && nowhere.contains("no/where.svg"), "{nowhere}");
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn axes_have_short_numbers() {
        let texts = [0.0, 0.25, 7.0, 1234.0, 12_500.0, 3_000_000.0].map(number);
        assert_eq!(texts, ["0", "0.25", "7", "1234", "12.5k", "3M"]);
    }
}
