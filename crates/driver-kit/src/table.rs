//! Texts of tables within 80 columns.

/// The width of a table.
pub const WIDTH: usize = 80;

/// Returns a text of at most this many characters, the last of which is `…` if some are missing.
pub fn fit(text: &str, width: usize) -> String {
    let text = text.trim_end();
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

/// Breaks a text into lines at spaces. A word that is longer than a line is not broken.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.len() - 1;
        let used = lines[last].chars().count();
        if used > 0 && used + 1 + word.chars().count() > width {
            lines.push(word.to_owned());
        } else {
            if used > 0 {
                lines[last].push(' ');
            }
            lines[last].push_str(word);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_fit_into_columns() {
        assert_eq!(fit("größer", 4), "grö…");
        assert_eq!(fit("klein ", 5), "klein");
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("indivisible a", 4), ["indivisible", "a"]);
    }
}
