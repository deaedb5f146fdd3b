//! The figures: collected round by round, printed beside their goals.

use std::fmt;
use std::time::Duration;

/// Which way a figure should go.
#[derive(Clone, Copy)]
pub(crate) enum Better {
    Less,
    More,
}

/// Figures in the order in which they were first told.
#[derive(Default)]
pub(crate) struct Table(Vec<Row>);

struct Row {
    name: String,
    /// Not a number if there is none.
    goal: f64,
    unit: &'static str,
    better: Better,
    rounds: Vec<f64>,
}

impl Table {
    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Notes a figure of one round.
    pub(crate) fn add(&mut self, name: &str, goal: f64, unit: &'static str, better: Better, figure: f64) {
        match self.0.iter_mut().find(|row| row.name == name) {
            Some(row) => row.rounds.push(figure),
            None => self.0.push(Row { name: name.to_owned(), goal, unit, better, rounds: vec![figure] }),
        }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:52} {:>10} {:>12} {:>12}", "", "goal", "median", "best round")?;
        for Row { name, goal, unit, better, rounds } in &self.0 {
            let mut sorted = rounds.clone();
            sorted.sort_unstable_by(f64::total_cmp);
            if matches!(better, Better::More) {
                sorted.reverse();
            }
            let (best, median) = (sorted[0], sorted[sorted.len() / 2]);
            let goal = if goal.is_nan() { String::new() } else { format!("{goal} {unit}") };
            writeln!(f, "{name:52} {goal:>10} {:>12} {:>12}", told(median, unit), told(best, unit))?;
        }
        Ok(())
    }
}

fn told(figure: f64, unit: &str) -> String {
    let digits = if figure < 100.0 { 1 } else { 0 };
    format!("{figure:.digits$} {unit}")
}

/// The one in the middle.
pub(crate) fn median(times: &mut [Duration]) -> Duration {
    percentile(times, 50)
}

/// The one that so many per cent are not longer than.
pub(crate) fn percentile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort_unstable();
    times[(times.len() * percent / 100).min(times.len() - 1)]
}
