//! Tables of text: the first column to the left, the others to the right.

use std::fmt;

/// Rows of cells, whose columns [`Display`](fmt::Display) lines up.
///
/// ```
/// let mut table = profile::Table::new(1);
/// table.row(["", "serial", "lanes"]);
/// table.row(["step (ms)", "0.5", "12.25"]);
/// assert_eq!(table.to_string(), "           serial  lanes\nstep (ms)     0.5  12.25\n");
/// ```
#[derive(Clone, Debug, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
    /// Columns from the left that are text.
    text_columns: usize,
}

impl Table {
    /// An empty table whose first columns, so many of them, are text.
    pub fn new(text_columns: usize) -> Table {
        Table { rows: Vec::new(), text_columns }
    }

    /// Adds a row.
    pub fn row<C: Into<String>>(&mut self, cells: impl IntoIterator<Item = C>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// The cells.
    pub fn rows(&self) -> &[Vec<String>] {
        &self.rows
    }

    /// The lines, without spaces at their ends.
    pub fn lines(&self) -> Vec<String> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let line = |row: &Vec<String>| {
            let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
                if column < self.text_columns { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
            });
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        self.rows.iter().map(line).collect()
    }

    /// The first cell of each row, and the others joined.
    pub fn pairs(&self) -> Vec<(String, String)> {
        let pair = |row: &Vec<String>| match &row[..] {
            [term, text @ ..] => (term.clone(), text.concat()),
            [] => Default::default(),
        };
        self.rows.iter().map(pair).collect()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines().iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(1);
        table.row(["", "serial", "concurrent"]);
        table.row(["step (ms)", "0.5", "12.25"]);
        table.row(["note"]);
        assert_eq!(table.lines(), ["           serial  concurrent", "step (ms)     0.5       12.25", "note"]);
    }
}
