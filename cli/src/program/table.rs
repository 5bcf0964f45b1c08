//! Tables of text: the first column to the left, the others to the right.

/// Rows of cells, lined up.
#[derive(Default)]
pub(super) struct Table {
    rows: Vec<Vec<String>>,
    /// Columns from the left that are text.
    text_columns: usize,
}

impl Table {
    pub(super) fn new(text_columns: usize) -> Table {
        Table { rows: Vec::new(), text_columns }
    }

    pub(super) fn row<C: Into<String>>(&mut self, cells: impl IntoIterator<Item = C>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    pub(super) fn rows(&self) -> &[Vec<String>] {
        &self.rows
    }

    /// The lines, without spaces at their ends.
    pub(super) fn lines(&self) -> Vec<String> {
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
}

/// What rows of a term and a text say.
pub(super) fn pairs(table: &Table) -> Vec<(String, String)> {
    let pair = |row: &Vec<String>| match &row[..] {
        [term, text @ ..] => (term.clone(), text.concat()),
        [] => Default::default(),
    };
    table.rows().iter().map(pair).collect()
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
