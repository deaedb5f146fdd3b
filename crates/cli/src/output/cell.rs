//! Text within a line: safe to print and with a maximum width.

use drakkar_metadata::show::shown;
use unicode_width::UnicodeWidthChar;

/// The maximum width of a cell in columns. The longest name in Kubernetes has 253 characters; `drakkar get` and JSON output
/// are not truncated.
pub(super) const MAX_WIDTH: usize = 256;

/// Returns text that is safe to print, truncated with an ellipsis to [`MAX_WIDTH`] columns.
pub(crate) fn cell(text: &str) -> String {
    let mut cut = String::new();
    let mut used = 0;
    // The length at which the ellipsis still fits.
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

/// Returns the width of a text in columns of a terminal.
pub(super) fn width(text: &str) -> usize {
    text.chars().map(|c| c.width().unwrap_or(0)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_truncated_by_its_width_on_a_terminal() {
        assert_eq!(cell("a\u{1b}é"), "a\\u{1b}é");
        let longest = "x".repeat(MAX_WIDTH);
        assert_eq!(cell(&longest), longest);
        assert_eq!(cell(&format!("{longest}x")), format!("{}…", &longest[1..]));
        let wide = cell(&"日".repeat(1000));
        assert!(width(&wide) <= MAX_WIDTH && wide.ends_with('…'), "{wide}");
        assert!(width(&cell(&"\u{7}".repeat(1000))) <= MAX_WIDTH);
        // Combining marks have no width, and are truncated as well.
        assert!(cell(&format!("a{}", "\u{300}".repeat(100_000))).len() < 4 * MAX_WIDTH);
    }
}
