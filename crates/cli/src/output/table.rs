//! Tables with columns as wide as their content.

use std::borrow::Cow;
use std::io::{self, Write};

use super::cell::{cell, width};
use super::style;

/// The maximum width of a column. A wider cell shifts the rest of its own line only, so that one long name does not widen
/// every line.
const MAX_COLUMN: usize = 48;

/// A table with a header. Cells can contain untrusted text: they are escaped and truncated.
#[derive(Debug)]
pub(crate) struct Table<const COLUMNS: usize> {
    header: [&'static str; COLUMNS],
    indent: usize,
}

/// A row of a table.
pub(crate) type Row<'a, const COLUMNS: usize> = [Cow<'a, str>; COLUMNS];

/// Receives the rows of a table, one by one.
pub(crate) type Sink<'a, const COLUMNS: usize> = dyn FnMut(Row<'_, COLUMNS>) -> io::Result<()> + 'a;

impl<const COLUMNS: usize> Table<COLUMNS> {
    pub(crate) fn new(header: [&'static str; COLUMNS]) -> Self {
        Self { header, indent: 0 }
    }

    /// Indents the table.
    pub(crate) fn indent(mut self, columns: usize) -> Self {
        self.indent = columns;
        self
    }

    /// Writes the table. `rows` is called twice, to measure and to write the rows, so that none has to be kept.
    pub(crate) fn write(
        &self,
        output: &mut dyn Write,
        rows: impl Fn(&mut Sink<'_, COLUMNS>) -> io::Result<()>,
    ) -> io::Result<()> {
        self.write_after(output, None, rows).map(drop)
    }

    /// Writes the table or, after `widths` of the rows before, further rows of it. Returns the widths of the columns, which only
    /// grow.
    pub(crate) fn write_after(
        &self,
        output: &mut dyn Write,
        widths: Option<[usize; COLUMNS]>,
        rows: impl Fn(&mut Sink<'_, COLUMNS>) -> io::Result<()>,
    ) -> io::Result<[usize; COLUMNS]> {
        let is_first = widths.is_none();
        let mut widths = widths.unwrap_or(self.header.map(width));
        rows(&mut |row| {
            for (widest, text) in widths.iter_mut().zip(&row) {
                *widest = (*widest).max(width(&cell(text)).min(MAX_COLUMN));
            }
            Ok(())
        })?;
        if is_first {
            let bold = style::HEADER;
            let header = line(&self.header.map(str::to_owned), widths);
            writeln!(output, "{:indent$}{bold}{header}{bold:#}", "", indent = self.indent)?;
        }
        rows(&mut |row| {
            let row = line(&row.map(|text| cell(&text)), widths);
            writeln!(output, "{:indent$}{row}", "", indent = self.indent)
        })?;
        Ok(widths)
    }
}

fn line<const COLUMNS: usize>(cells: &[String; COLUMNS], widths: [usize; COLUMNS]) -> String {
    let mut line = String::new();
    for (cell, column) in cells.iter().zip(widths) {
        line.push_str(cell);
        line.extend(std::iter::repeat_n(' ', column.saturating_sub(width(cell)) + 2));
    }
    line.truncate(line.trim_end().len());
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(rows: &[[&str; 3]]) -> String {
        let mut written = Vec::new();
        let all = |sink: &mut Sink<'_, 3>| rows.iter().try_for_each(|row| sink(row.map(Cow::from)));
        Table::new(["A", "LONGER", "C"]).indent(1).write(&mut written, all).unwrap();
        anstream::adapter::strip_str(&String::from_utf8(written).unwrap()).to_string()
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let plain = rendered(&[["äöü", "x", "1"], ["", "\u{1b}", "2"], ["日本", "", "3"]]);
        assert_eq!(plain, " A     LONGER  C\n äöü   x       1\n       \\u{1b}  2\n 日本          3\n");
    }

    #[test]
    fn further_rows_are_aligned_with_the_earlier_ones() {
        let mut written = Vec::new();
        let table = Table::new(["A", "B"]);
        let rows = |rows: &'static [[&str; 2]]| {
            move |sink: &mut Sink<'_, 2>| rows.iter().try_for_each(|row| sink(row.map(Cow::from)))
        };
        let widths = table.write_after(&mut written, None, rows(&[["wide", "1"]])).unwrap();
        table.write_after(&mut written, Some(widths), rows(&[["x", "2"]])).unwrap();
        let plain = anstream::adapter::strip_str(&String::from_utf8(written).unwrap()).to_string();
        assert_eq!(plain, "A     B\nwide  1\nx     2\n");
    }

    #[test]
    fn a_long_cell_makes_only_its_own_line_long() {
        let long = "x".repeat(100_000);
        let plain = rendered(&[[&long, "a", "1"], ["y", "b", "2"]]);
        let lengths: Vec<usize> = plain.lines().map(|line| line.chars().count()).collect();
        assert_eq!(lengths, [60, 268, 60]);
    }
}
