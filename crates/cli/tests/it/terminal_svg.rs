//! Renders the output of a command as a picture of a terminal, in SVG.
//!
//! Each line of the terminal is one line of the file, so that changes can be read. Only the styles that the command uses are
//! known: bold, underlined, and the colours of [`COLOURS`].

use std::fmt::Write as _;

/// The width and height of a character, and the margin around the text, in pixels.
const WIDTH: f64 = 8.4;
const HEIGHT: usize = 18;
const MARGIN: usize = 12;
const COLUMNS: usize = 80;

/// The codes of colours, and the colours.
const COLOURS: [(u8, &str); 6] =
    [(31, "#ff7b72"), (32, "#3fb950"), (33, "#d29922"), (36, "#39c5cf"), (92, "#56d364"), (96, "#56d4dd")];

/// The style of a run of text.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Style {
    is_bold: bool,
    is_underlined: bool,
    colour: Option<u8>,
}

impl Style {
    /// Applies a code of the escape sequence for styles.
    fn apply(&mut self, code: &str) {
        match code.parse() {
            Ok(0) => *self = Self::default(),
            Ok(1) => self.is_bold = true,
            Ok(4) => self.is_underlined = true,
            Ok(colour) if COLOURS.iter().any(|(known, _)| *known == colour) => self.colour = Some(colour),
            other => panic!("no such style is known here: {code} ({other:?})"),
        }
    }

    fn classes(self) -> String {
        let bold = self.is_bold.then(|| "b".to_owned());
        let underlined = self.is_underlined.then(|| "u".to_owned());
        let colour = self.colour.map(|colour| format!("c{colour}"));
        // Colours first, for those who look for them.
        [colour, bold, underlined].into_iter().flatten().collect::<Vec<_>>().join(" ")
    }
}

/// The seconds between two steps of a recording.
const STEP: f64 = 1.2;
/// How a line of a recording appears: it is dim before, not absent, for viewers that show the first moment only.
const APPEAR: &str = "@keyframes appear { from { opacity: 0.25; } }
@media (prefers-reduced-motion: no-preference) { .r { animation: appear 0.4s backwards; } }
";

/// Renders text with escape sequences.
pub(crate) fn render(text: &str) -> String {
    render_with(text, "", |_| None)
}

/// Renders text with numbered steps as a recording: the lines of each step appear a moment after those of the previous one. Viewers
/// that play no animations, and people who want none, see all of it at once.
pub(crate) fn render_recording(text: &str) -> String {
    let mut step = 0;
    render_with(text, APPEAR, |line| {
        let (number, title) = line.split_at_checked(2).unwrap_or_default();
        if number.trim().parse() == Ok(step + 1) && title.starts_with("  ") {
            step += 1;
        }
        Some(f64::from(step) * STEP)
    })
}

/// Renders text, with more rules for its style. A function says after how many seconds a line, without its escape sequences, appears.
fn render_with(text: &str, rules: &str, mut appears_after: impl FnMut(&str) -> Option<f64>) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let width = (WIDTH * COLUMNS as f64).round() as usize + 2 * MARGIN;
    let height = lines.len() * HEIGHT + 2 * MARGIN;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" xml:space=\"preserve\" width=\"{width}\" height=\"{height}\">\n<style>\n\
         text {{ font: 14px monospace; fill: #e6edf3; white-space: pre; }}\n\
         .b {{ font-weight: bold; }}\n.u {{ text-decoration: underline; }}\n"
    );
    for (code, colour) in COLOURS {
        writeln!(svg, ".c{code} {{ fill: {colour}; }}").unwrap();
    }
    svg.push_str(rules);
    svg.push_str("</style>\n<rect width=\"100%\" height=\"100%\" rx=\"6\" fill=\"#161b22\"/>\n");
    let mut style = Style::default();
    for (number, line) in lines.iter().enumerate() {
        let y = MARGIN + (number + 1) * HEIGHT - 4;
        match appears_after(&anstream::adapter::strip_str(line).to_string()) {
            Some(delay) => write!(svg, "<text y=\"{y}\" class=\"r\" style=\"animation-delay: {delay:.1}s\">").unwrap(),
            None => write!(svg, "<text y=\"{y}\">").unwrap(),
        }
        let mut column = 0;
        for (index, part) in line.split("\u{1b}[").enumerate() {
            let mut run = part;
            if index > 0 {
                let (codes, rest) = part.split_once('m').expect("an escape sequence for styles");
                codes.split(';').for_each(|code| style.apply(if code.is_empty() { "0" } else { code }));
                run = rest;
            }
            if run.is_empty() {
                continue;
            }
            // Each run has its place, so that columns stay aligned whatever the font is.
            let x = MARGIN as f64 + WIDTH * column as f64;
            let classes = style.classes();
            let class = if classes.is_empty() { String::new() } else { format!(" class=\"{classes}\"") };
            write!(svg, "<tspan x=\"{x:.1}\"{class}>{}</tspan>", escape(run)).unwrap();
            column += run.chars().count();
        }
        assert!(column <= COLUMNS, "more than {COLUMNS} columns: {line}");
        svg.push_str("</text>\n");
    }
    svg.push_str("</svg>\n");
    svg
}

/// Returns the text of a picture, line by line.
pub(crate) fn lines_of(svg: &str) -> Vec<String> {
    let lines = svg.lines().filter(|line| line.starts_with("<text "));
    lines
        .map(|line| {
            let text: String = line.split('<').filter_map(|part| part.split_once('>')).map(|(_, text)| text).collect();
            text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
        })
        .collect()
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[test]
fn styles_become_classes_and_the_text_stays() {
    let text = "a \u{1b}[1m\u{1b}[92mb<c>\u{1b}[0m & d\n\u{1b}[36m$\u{1b}[0m e";
    let svg = render(text);
    assert!(svg.contains("<tspan x=\"12.0\">a </tspan><tspan x=\"28.8\" class=\"c92 b\">b&lt;c&gt;</tspan>"), "{svg}");
    assert_eq!(lines_of(&svg), ["a b<c> & d", "$ e"]);
}

#[test]
fn the_lines_of_a_recording_appear_step_by_step() {
    let svg = render_recording("$ demo\n\u{1b}[1m 1  One  3 ms\u{1b}[0m\n  1 device\n\n 2  Two  4 ms\n");
    let delays: Vec<&str> = svg.split("animation-delay: ").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert_eq!(delays, ["0.0s", "1.2s", "1.2s", "1.2s", "2.4s"]);
    assert_eq!(lines_of(&svg)[1], " 1  One  3 ms");
}
