//! Columns of text, as wide as what is in them.

use std::fmt::Write as _;

use drakkar_metadata::show::Printable;

use super::style;

/// Rows under a header. Cells may hold anything; control characters are escaped.
#[derive(Debug)]
pub(crate) struct Table<const COLUMNS: usize> {
    header: [&'static str; COLUMNS],
    rows: Vec<[String; COLUMNS]>,
    indent: usize,
}

impl<const COLUMNS: usize> Table<COLUMNS> {
    pub(crate) fn new(header: [&'static str; COLUMNS]) -> Self {
        Self { header, rows: Vec::new(), indent: 0 }
    }

    /// Moves the table to the right.
    pub(crate) fn indent(mut self, columns: usize) -> Self {
        self.indent = columns;
        self
    }

    pub(crate) fn row(&mut self, cells: [String; COLUMNS]) {
        self.rows.push(cells.map(|cell| Printable::whole(cell).to_string()));
    }

    pub(crate) fn render(&self) -> String {
        let mut widths = self.header.map(|title| title.chars().count());
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let mut text = String::new();
        let bold = style::HEADER;
        let header = self.line(&self.header.map(str::to_owned), widths);
        let _ = writeln!(text, "{:indent$}{bold}{header}{bold:#}", "", indent = self.indent);
        for row in &self.rows {
            let _ = writeln!(text, "{:indent$}{}", "", self.line(row, widths), indent = self.indent);
        }
        text
    }

    fn line(&self, cells: &[String; COLUMNS], widths: [usize; COLUMNS]) -> String {
        let mut line = String::new();
        for (cell, width) in cells.iter().zip(widths) {
            let _ = write!(line, "{cell:width$}  ");
        }
        line.truncate(line.trim_end().len());
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(["A", "LONGER", "C"]).indent(1);
        table.row(["äöü".into(), "x".into(), "1".into()]);
        table.row([String::new(), "\u{1b}".into(), "2".into()]);
        let plain = anstream::adapter::strip_str(&table.render()).to_string();
        assert_eq!(plain, " A    LONGER  C\n äöü  x       1\n      \\u{1b}  2\n");
    }
}
