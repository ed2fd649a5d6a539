//! Tests that pictures are well-formed and complete.

use super::draw::WIDTH;
use super::legend::{LEGEND_WIDTH, style};
use super::*;

fn chart(points: &[(f64, f64)]) -> Chart {
    let panel = |label: &str, logarithmic| {
        let line = |name: &str| ChartLine::new(name, points.to_vec());
        Panel {
            label: String::from(label),
            logarithmic,
            lines: vec![line("insert"), line("p99 < & \">")],
        }
    };
    let marks = vec![ChartMark { at_s: 1.0, text: "a split".into() }];
    Chart {
        title: "growth".into(),
        x: HorizontalAxis::Seconds,
        panels: vec![panel("kops/s", false), panel("us", true)],
        marks,
        mark_name: "splits",
    }
}

/// Returns whether all elements are closed in the reverse order in which they were opened.
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
    // The legend's lines have the right length, and are to the right of all panels.
    let left = WIDTH - LEGEND_WIDTH - 8;
    let line = |points: &str| points.starts_with(&format!("{left},"));
    let drawn = svg.split("points=\"").skip(1).filter(|points| line(points)).count();
    assert_eq!(drawn, 6, "two lines and the marks, twice: {svg}");
    assert!(!svg.contains("least to most"), "no spread is told: {svg}");
    assert!(!is_well_formed("<svg><text></svg>") && !is_well_formed("<svg"));
}

#[test]
fn names_stand_side_by_side_with_their_spread() {
    let names = ["1 KiB", "64 KiB"].map(String::from).to_vec();
    let mut chart = chart(&[(0.0, 5.0), (1.0, 7.0)]);
    (chart.x, chart.marks) = (HorizontalAxis::Names { label: "value".into(), names }, Vec::new());
    let bars = |svg: &str| svg.matches("<polyline").count();
    let without = chart.svg().unwrap();
    chart.panels[0].lines[0].spreads = vec![(0.0, 4.0, 6.0), (1.0, f64::NAN, 6.0)];
    let svg = chart.svg().unwrap();
    assert!(is_well_formed(&svg), "{svg}");
    assert_eq!(bars(&svg), bars(&without) + 2, "one bar can be drawn, and is explained: {svg}");
    for text in ["1 KiB", "64 KiB", "value", "least to most"] {
        assert!(svg.contains(text), "{text} is missing in {svg}");
    }
    assert!(!svg.contains("seconds"), "{svg}");
}

#[test]
fn nothing_and_nonsense_can_be_drawn() {
    for points in [&[][..], &[(0.0, 0.0)], &[(f64::NAN, 1.0), (1.0, f64::INFINITY), (2.0, -3.0)]] {
        assert!(is_well_formed(&chart(points).svg().unwrap()));
    }
    let nothing = Chart {
        title: String::new(),
        x: HorizontalAxis::Seconds,
        panels: Vec::new(),
        marks: Vec::new(),
        mark_name: "",
    };
    assert!(is_well_formed(&nothing.svg().unwrap()));
}

/// A path that cannot be written is reported before the run, and an existing file remains unchanged.
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

/// Returns the texts of a picture, with their positions.
fn texts(svg: &str) -> Vec<(i32, i32, String)> {
    let of = |tag: &str| {
        let (attributes, text) = tag.split_once('>')?;
        let number = |name: &str| {
            let (_, rest) = attributes.split_once(&format!(" {name}=\""))?;
            rest.split('"').next()?.parse().ok()
        };
        let text = text.split('<').next()?.trim();
        Some((number("x")?, number("y")?, text.to_owned()))
    };
    svg.split("<text").skip(1).filter_map(of).collect()
}

#[test]
fn what_stands_at_one_place_is_drawn_in_columns() {
    let mut chart = chart(&[(2.0, 5.0)]);
    (chart.x, chart.marks) = (HorizontalAxis::Numbers("clients".into()), Vec::new());
    let columns = |svg: &str| svg.matches("<rect").count();
    let svg = chart.svg().unwrap();
    assert!(is_well_formed(&svg) && svg.contains("clients: 2"), "{svg}");
    chart.panels.iter_mut().for_each(|panel| panel.lines.clear());
    let nothing = columns(&chart.svg().unwrap());
    assert_eq!(columns(&svg), nothing + 4, "two lines in two panels: {svg}");
}

#[test]
fn a_legend_of_many_long_names_has_room_and_no_two_alike() {
    let mut chart = chart(&[(0.0, 5.0), (1.0, 7.0)]);
    chart.marks.clear();
    let name = |n: usize| format!("line {n} from replicated over something to EC(4,2)");
    let lines: Vec<ChartLine> =
        (0..20).map(|n| ChartLine::new(name(n), vec![(0.0, 1.0), (1.0, n as f64)])).collect();
    chart.panels[0].lines = lines;
    let svg = chart.svg().unwrap();
    let legend = texts(&svg).into_iter().filter(|(x, ..)| *x >= (WIDTH - LEGEND_WIDTH) as i32);
    let mut tops: Vec<i32> = legend.clone().map(|(_, y, _)| y).collect();
    let height = svg.split("height=\"").nth(1).and_then(|rest| rest.split('"').next());
    let height: i32 = height.unwrap().parse().unwrap();
    assert!(tops.iter().all(|top| *top < height), "{tops:?} of {height}");
    tops.sort_unstable();
    assert!(tops.windows(2).all(|two| two[1] - two[0] >= 10), "they lie on each other: {tops:?}");
    assert!(
        legend.clone().all(|(.., text)| text.chars().count() <= 28),
        "{:?}",
        legend.collect::<Vec<_>>()
    );
    let styles: std::collections::BTreeSet<String> =
        (0..24).map(|n| format!("{:?}", style(n))).collect();
    assert_eq!(styles.len(), 24);
}

#[test]
fn axes_of_whole_numbers_have_no_halves() {
    let mut chart = chart(&[(1.0, 3.0), (2.0, 4.0), (3.0, 3.0)]);
    (chart.x, chart.marks) = (HorizontalAxis::Numbers("memory nodes".into()), Vec::new());
    chart.panels.truncate(1);
    let svg = chart.svg().unwrap();
    let numbers = texts(&svg).into_iter().filter_map(|(.., text)| text.parse::<f64>().ok());
    let numbers: Vec<f64> = numbers.collect();
    assert!(numbers.len() >= 6 && numbers.iter().all(|n| n.fract() == 0.0), "{numbers:?}");
}
