//! The table of figures: collected round by round for each framework, and printed with ratios and goals.

use std::fmt::Write as _;
use std::time::Duration;

/// Whether a figure is better when it is lower or higher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Better {
    /// Lower is better: times, sizes.
    Lower,
    /// Higher is better: rates.
    Higher,
}

/// The goals of our framework, by the names of figures.
const GOALS: &[(&str, f64)] = &[
    ("start to registered", 8.0),
    ("start to 8 devices published", 50.0),
    ("idle memory", 8.0),
    ("binary, stripped", 9.0),
    ("prepare, p50", 300.0),
    ("prepare, p99", 800.0),
    ("prepare, p50, 2 ms of API latency", 2400.0),
    ("unprepare, p50", 220.0),
    ("claims per second, 1 in flight", 2000.0),
    ("claims per second, 8 in flight", 4000.0),
    ("claims per second, 64 in flight", 4000.0),
    ("64 claims in one call, p50", 10.0),
    ("64 claims in one call, p50, 2 ms of API latency", 15.0),
    ("processor time per claim, one after the other", 250.0),
    ("processor time per claim, 64 in flight", 350.0),
    ("processor time per claim, 64 in one call", 350.0),
    ("publish 10,000 devices: time", 3000.0),
    ("publish 10,000 devices: memory", 25.0),
    ("publish 10,000 devices: peak memory", 25.0),
    ("update one of 10,000 devices: time", 5.0),
    ("update one of 10,000 devices: processor time", 5.0),
    ("update one of 10,000 devices: memory", 25.0),
    ("update one of 10,000 devices: peak memory", 25.0),
    ("change one of 10,000 devices: time", 5.0),
    ("change one of 10,000 devices: memory", 25.0),
    ("change one of 10,000 devices: peak memory", 25.0),
    ("start again with 10,000 devices: memory", 25.0),
    ("start again with 10,000 devices: peak memory", 25.0),
    ("1 interface: RunPodSandbox, p99", 20.0),
    ("100 interfaces: RunPodSandbox, p99", 20.0),
    ("1,000 interfaces: RunPodSandbox, p99", 20.0),
];

/// A table of figures, in the order in which they were first added.
#[derive(Debug, Default)]
pub struct Table(Vec<Row>);

/// A row of the table: one figure of all frameworks.
#[derive(Debug)]
pub struct Row {
    /// The name of the figure.
    pub name: String,
    unit: &'static str,
    better: Better,
    /// The values of each round, by the framework's name.
    rounds: Vec<(&'static str, Vec<f64>)>,
}

/// The median and range of several values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The minimum.
    pub min: f64,
    /// The maximum.
    pub max: f64,
}

impl Spread {
    fn of(mut figures: Vec<f64>) -> Option<Self> {
        figures.sort_unstable_by(f64::total_cmp);
        let min = *figures.first()?;
        let max = *figures.last()?;
        Some(Self { median: figures[figures.len() / 2], min, max })
    }
}

impl Row {
    /// The values of a framework.
    pub fn of(&self, framework: &str) -> Option<Spread> {
        Spread::of(self.figures(framework)?.to_vec())
    }

    /// How many times better the first framework is than the second. Ratios are taken within rounds, in which both run under
    /// the same load.
    pub fn advantage(&self, first: &str, second: &str) -> Option<Spread> {
        let pairs = self.figures(first)?.iter().zip(self.figures(second)?);
        let ratios = pairs.map(|(first, second)| match self.better {
            Better::Lower => second / first,
            Better::Higher => first / second,
        });
        Spread::of(ratios.collect())
    }

    /// The goal of this figure, if it has one, and whether a value meets it.
    pub fn goal(&self, figure: f64) -> Option<(f64, bool)> {
        let (_, goal) = GOALS.iter().find(|(name, _)| *name == self.name)?;
        let is_met = match self.better {
            Better::Lower => figure <= *goal,
            Better::Higher => figure >= *goal,
        };
        Some((*goal, is_met))
    }

    /// Formats a value of this row with its unit.
    pub fn format(&self, figure: f64) -> String {
        format_figure(figure, self.unit)
    }

    fn figures(&self, framework: &str) -> Option<&[f64]> {
        self.rounds.iter().find(|(name, _)| *name == framework).map(|(_, figures)| figures.as_slice())
    }
}

impl Table {
    /// The rows.
    pub fn rows(&self) -> &[Row] {
        &self.0
    }

    /// Splits the table into the rows without and with values of a framework.
    pub fn split(self, framework: &str) -> (Self, Self) {
        let (with, without) = self.0.into_iter().partition(|row| row.of(framework).is_some());
        (Self(without), Self(with))
    }

    /// Adds the value of one round.
    pub fn add(&mut self, framework: &'static str, name: &str, unit: &'static str, better: Better, figure: f64) {
        let index = self.0.iter().position(|row| row.name == name).unwrap_or_else(|| {
            self.0.push(Row { name: name.to_owned(), unit, better, rounds: Vec::new() });
            self.0.len() - 1
        });
        let rounds = &mut self.0[index].rounds;
        match rounds.iter_mut().find(|(name, _)| *name == framework) {
            Some((_, figures)) => figures.push(figure),
            None => rounds.push((framework, vec![figure])),
        }
    }

    /// Adds the value of a figure that is better when it is lower.
    pub fn add_cost(&mut self, framework: &'static str, name: &str, unit: &'static str, figure: f64) {
        self.add(framework, name, unit, Better::Lower, figure);
    }

    /// Formats the table as Markdown: each framework's median and spread, the ratio of the first to the second, and the goal.
    pub fn markdown(&self, frameworks: &[&str]) -> String {
        let mut text = "| |".to_owned();
        for framework in frameworks {
            write!(text, " {framework} |").unwrap();
        }
        let is_compared = frameworks.len() == 2;
        text.push_str(if is_compared { " times better | goal |\n" } else { " goal |\n" });
        text.push_str(&"|---".repeat(frameworks.len() + if is_compared { 3 } else { 2 }));
        text.push_str("|\n");
        for row in &self.0 {
            write!(text, "| {} |", row.name).unwrap();
            for framework in frameworks {
                let shown = row.of(framework).map(|spread| show(spread, |figure| row.format(figure)));
                write!(text, " {} |", shown.unwrap_or_default()).unwrap();
            }
            if is_compared {
                let ratio = row.advantage(frameworks[0], frameworks[1]);
                let shown = ratio.map(|spread| show(spread, |ratio| format_figure(ratio, "")));
                write!(text, " {} |", shown.unwrap_or_default()).unwrap();
            }
            let goal = row.of(frameworks[0]).and_then(|spread| row.goal(spread.median));
            let goal =
                goal.map(|(goal, is_met)| format!("{}{}", row.format(goal), if is_met { "" } else { ", missed" }));
            writeln!(text, " {} |", goal.unwrap_or_default()).unwrap();
        }
        text
    }
}

fn show(spread: Spread, format: impl Fn(f64) -> String) -> String {
    let Spread { median, min, max } = spread;
    let [median, min, max] = [median, min, max].map(format);
    let without_unit = |text: &str| text.split(' ').next().unwrap_or_default().to_owned();
    if min == max { median } else { format!("{median} ({}–{})", without_unit(&min), without_unit(&max)) }
}

fn format_figure(figure: f64, unit: &str) -> String {
    let digits = if figure == figure.trunc() || figure >= 100.0 { 0 } else { 1 };
    let digits = if figure < 1.0 && figure > 0.0 { 2 } else { digits };
    let number = group(&format!("{figure:.digits$}"));
    if unit.is_empty() { number } else { format!("{number} {unit}") }
}

/// Inserts a comma between thousands.
fn group(number: &str) -> String {
    let (whole, rest) = number.split_at(number.find('.').unwrap_or(number.len()));
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + rest
}

/// The median of times.
pub fn median(times: &mut [Duration]) -> Duration {
    percentile(times, 50)
}

/// A percentile of times.
pub fn percentile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort_unstable();
    times[(times.len() * percent / 100).min(times.len() - 1)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_taken_within_rounds() {
        let mut table = Table::default();
        for (ours, go) in [(1.0, 4.0), (2.0, 4.0), (1.0, 3.0)] {
            table.add_cost("ours", "prepare, p50", "us", ours);
            table.add_cost("go", "prepare, p50", "us", go);
            table.add("ours", "claims per second, 1 in flight", "/s", Better::Higher, 1000.0 * go);
            table.add("go", "claims per second, 1 in flight", "/s", Better::Higher, 1000.0 * ours);
        }
        let expected = Some(Spread { median: 3.0, min: 2.0, max: 4.0 });
        assert_eq!(table.rows()[0].advantage("ours", "go"), expected);
        assert_eq!(table.rows()[1].advantage("ours", "go"), expected);
        assert_eq!(table.rows()[0].goal(301.0), Some((300.0, false)));
        assert_eq!(table.rows()[1].goal(2000.0), Some((2000.0, true)));
        assert_eq!(
            table.markdown(&["ours", "go"]),
            "| | ours | go | times better | goal |\n|---|---|---|---|---|\n\
             | prepare, p50 | 1 us (1–2) | 4 us (3–4) | 3 (2–4) | 300 us |\n\
             | claims per second, 1 in flight | 4,000 /s (3,000–4,000) | 1,000 /s (1,000–2,000) | 3 (2–4) | 2,000 /s |\n"
        );
    }
}
