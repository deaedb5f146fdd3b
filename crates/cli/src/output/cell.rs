//! One piece of text within a line: made safe, and no wider than anybody can read.

use drakkar_metadata::show::shown;
use unicode_width::UnicodeWidthChar;

/// How many columns a cell has at most. The longest name in Kubernetes has 253 characters; what is longer is to be had
/// whole as JSON or by `drakkar get`.
pub(super) const MAX_WIDTH: usize = 256;

/// Text that is safe to print and has at most [`MAX_WIDTH`] columns; an ellipsis stands for the rest.
pub(crate) fn cell(text: &str) -> String {
    let mut cut = String::new();
    let mut used = 0;
    // Where to cut so that the ellipsis fits.
    let mut end = 0;
    for shown in shown(text) {
        let piece = shown.to_string();
        used += width(&piece);
        if used > MAX_WIDTH {
            cut.truncate(end);
            cut.push('…');
            break;
        }
        cut.push_str(&piece);
        if used < MAX_WIDTH {
            end = cut.len();
        }
    }
    cut
}

/// How many columns of a terminal some text takes.
pub(super) fn width(text: &str) -> usize {
    text.chars().map(|c| c.width().unwrap_or(0)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_cut_by_what_a_terminal_shows() {
        assert_eq!(cell("a\u{1b}é"), "a\\u{1b}é");
        let longest = "x".repeat(MAX_WIDTH);
        assert_eq!(cell(&longest), longest);
        assert_eq!(cell(&format!("{longest}x")), format!("{}…", &longest[1..]));
        let wide = cell(&"日".repeat(1000));
        assert!(width(&wide) <= MAX_WIDTH && wide.ends_with('…'), "{wide}");
        assert!(width(&cell(&"\u{7}".repeat(1000))) <= MAX_WIDTH);
        // Marks take no columns, and are cut all the same.
        assert!(cell(&format!("a{}", "\u{300}".repeat(100_000))).len() < 4 * MAX_WIDTH);
    }
}
