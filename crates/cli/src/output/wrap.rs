//! Lines that fit a terminal.

#[cfg(feature = "kubevirt")]
use std::io::IsTerminal;

use super::cell::width;

/// The columns of a line on a terminal, the same as in the help.
pub(crate) const COLUMNS: usize = 80;

/// Returns the width to wrap at: none if standard output is not a terminal, since other programs read lines.
#[cfg(feature = "kubevirt")]
pub(crate) fn terminal_width() -> Option<usize> {
    std::io::stdout().is_terminal().then_some(COLUMNS)
}

/// Breaks a text at spaces, so that its lines have at most `limit` columns. `start` columns of the first line are taken; the
/// other lines are indented. A longer word, a path for example, stays whole, so that it can be copied.
pub(crate) fn wrap(text: &str, start: usize, indent: usize, limit: Option<usize>) -> String {
    let Some(limit) = limit else { return text.to_owned() };
    let mut wrapped = String::with_capacity(text.len() + 16);
    let mut used = start;
    for (number, word) in text.split(' ').enumerate() {
        let columns = width(word);
        if number > 0 {
            if used + 1 + columns > limit {
                wrapped.push('\n');
                wrapped.push_str(&" ".repeat(indent));
                used = indent;
            } else {
                wrapped.push(' ');
                used += 1;
            }
        }
        wrapped.push_str(word);
        used += columns;
    }
    wrapped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_fit_and_only_long_words_do_not() {
        let text = "check that the driver writes metadata, and the names of claim and request ".repeat(4);
        let wrapped = wrap(&text, 20, 11, Some(80));
        let mut lines = wrapped.lines();
        assert!(lines.next().unwrap().len() + 20 <= 80, "{wrapped}");
        assert!(lines.all(|line| line.starts_with(&" ".repeat(11)) && line.len() <= 80), "{wrapped}");
        assert_eq!(wrapped.split_whitespace().collect::<Vec<_>>(), text.split_whitespace().collect::<Vec<_>>());
        let path = format!("a {} b", "x".repeat(100));
        assert_eq!(wrap(&path, 0, 2, Some(80)), format!("a\n  {}\n  b", "x".repeat(100)));
    }

    #[test]
    fn without_a_terminal_lines_stay_whole() {
        let text = "word ".repeat(100);
        assert_eq!(wrap(&text, 0, 2, None), text);
    }
}
