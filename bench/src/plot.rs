//! The plot: a bar for each figure with our advantage as a factor. Readable in light and dark mode.

use std::fmt::Write as _;

use crate::table::Table;

const WIDTH: f64 = 880.0;
/// Where bars begin.
const LEFT: f64 = 420.0;
/// The maximum end of bars; their labels are to the right of them.
const RIGHT: f64 = 790.0;
const STEP: f64 = 20.0;
const TOP: f64 = 56.0;

/// Draws the advantage of the first framework over the second as an SVG, on a logarithmic scale; at 1 both are equal.
pub fn svg(table: &Table, first: &str, second: &str) -> String {
    let bars: Vec<_> =
        table.rows().iter().filter_map(|row| Some((row.name.as_str(), row.advantage(first, second)?))).collect();
    let most = bars.iter().map(|(_, ratio)| ratio.max).fold(10.0, f64::max).log10();
    let least = bars.iter().map(|(_, ratio)| ratio.min).fold(1.0, f64::min).log10();
    let x = |ratio: f64| LEFT + (RIGHT - LEFT) * (ratio.log10() - least) / (most - least);
    let height = TOP + STEP * (crate::to_float(bars.len() as u64) + 1.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
         font-family=\"system-ui, sans-serif\" font-size=\"12\" role=\"img\">\n\
         <title>How many times better {first} is than {second}</title>\n\
         <style>text {{ fill: #24292f }} .quiet {{ fill: #6e7781 }} .grid {{ stroke: #d0d7de }} .one {{ stroke: #6e7781 }} \
         .ahead {{ fill: #1a7f6b }} .behind {{ fill: #bc4c00 }} .spread {{ stroke: #24292f }}\n\
         @media (prefers-color-scheme: dark) {{ text {{ fill: #e6edf3 }} .quiet {{ fill: #9198a1 }} .grid {{ stroke: #30363d }} \
         .one {{ stroke: #9198a1 }} .ahead {{ fill: #3fb99a }} .behind {{ fill: #f0883e }} .spread {{ stroke: #e6edf3 }} }}</style>\n\
         <text x=\"16\" y=\"22\" font-size=\"15\" font-weight=\"600\">{first} beside {second}: how many times better</text>\n"
    );
    let bottom = height - STEP / 2.0;
    for ratio in [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0_f64].into_iter().filter(|ratio| ratio.log10() <= most) {
        let at = x(ratio);
        let class = if ratio == 1.0 { "one" } else { "grid" };
        writeln!(svg, "<line class=\"{class}\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{bottom}\"/>").unwrap();
        writeln!(svg, "<text class=\"quiet\" x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{ratio}</text>", TOP - 6.0)
            .unwrap();
    }
    for (row, (name, ratio)) in (0_u64..).zip(&bars) {
        let y = TOP + STEP * crate::to_float(row) + 4.0;
        let from = x(1.0).min(x(ratio.median));
        let to = x(1.0).max(x(ratio.median));
        let class = if ratio.median >= 1.0 { "ahead" } else { "behind" };
        let width = (to - from).max(1.0);
        let middle = y + 6.0;
        let text = y + 10.0;
        writeln!(svg, "<text x=\"{}\" y=\"{text}\" text-anchor=\"end\">{}</text>", LEFT - 10.0, escaped(name)).unwrap();
        writeln!(svg, "<rect class=\"{class}\" x=\"{from:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"12\"/>")
            .unwrap();
        let low = x(ratio.min);
        let high = x(ratio.max);
        writeln!(svg, "<line class=\"spread\" x1=\"{low:.1}\" x2=\"{high:.1}\" y1=\"{middle}\" y2=\"{middle}\"/>")
            .unwrap();
        let digits = if ratio.median < 10.0 { 1 } else { 0 };
        let label_x = x(ratio.max).max(to) + 6.0;
        writeln!(svg, "<text x=\"{label_x:.1}\" y=\"{text}\">{:.digits$}×</text>", ratio.median).unwrap();
    }
    svg.push_str("</svg>\n");
    svg
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_for_each_figure_of_both() {
        let mut table = Table::default();
        for (name, ours, go) in [("faster", 1.0, 4.0), ("slower & larger", 4.0, 1.0)] {
            table.add_cost("ours", name, "us", ours);
            table.add_cost("go", name, "us", go);
        }
        table.add_cost("ours", "alone", "us", 1.0);
        let svg = svg(&table, "ours", "go");
        assert_eq!((svg.matches("\"ahead\"").count(), svg.matches("\"behind\"").count()), (1, 1), "{svg}");
        assert!(svg.contains("slower &amp; larger") && svg.contains("4.0×") && !svg.contains("alone"), "{svg}");
    }
}
