//! Comma-separated numbers with the class in the last column.

use std::path::Path;

use device::Result;

use super::{InMemory, malformed};
use crate::file;

#[derive::located]
impl InMemory {
    /// Reads a file of comma-separated numbers, one row a line, the class last; values are multiplied by
    /// `scale`. Empty lines are skipped, and so is a first line that has no number in it (a heading).
    ///
    /// # Errors
    /// `Io` if the file cannot be read; `Format` with the line's number for anything in it that is not a
    /// number, for NaN, for a row of another length, and for a label outside `0..classes`.
    pub fn read_csv(path: impl AsRef<Path>, classes: usize, scale: f32) -> Result<Self> {
        let path = path.as_ref();
        parse(&path.display().to_string(), &file::read(path)?, classes, scale)
    }
}

/// Parses `text`; `path` is for the messages.
pub(super) fn parse(path: &str, text: &[u8], classes: usize, scale: f32) -> Result<InMemory> {
    let wrong = |line: usize, what: String| malformed(path, format_args!("line {line}: {what}"));
    let mut inputs = Vec::new();
    let mut labels = Vec::new();
    let mut features = None;
    for (number, line) in (1..).zip(text.split(|&byte| byte == b'\n')) {
        let Ok(line) = std::str::from_utf8(line) else {
            return Err(wrong(number, "not UTF-8 text".into()));
        };
        let line = line.trim();
        if line.is_empty() {
            continue;
        }
        let is_heading =
            features.is_none() && line.split(',').all(|field| field.trim().parse::<f32>().is_err());
        if is_heading && number == 1 {
            continue;
        }
        let (values, label) = line.rsplit_once(',').ok_or_else(|| wrong(number, "only one column".into()))?;
        let before = inputs.len();
        for field in values.split(',') {
            let column = inputs.len() - before + 1;
            match field.trim().parse::<f32>() {
                Ok(value) if value.is_finite() => inputs.push(value * scale),
                Ok(value) => return Err(wrong(number, format!("column {column} is {value}"))),
                Err(_) => return Err(wrong(number, format!("column {column}: {field:?} is not a number"))),
            }
        }
        let width = inputs.len() - before;
        if *features.get_or_insert(width) != width {
            let expected = features.unwrap_or(width) + 1;
            return Err(wrong(number, format!("{} columns, the rows above have {expected}", width + 1)));
        }
        match label.trim().parse::<i64>() {
            Ok(label) if usize::try_from(label).is_ok_and(|l| l < classes) => labels.push(label),
            Ok(label) => return Err(wrong(number, format!("label {label} is not in 0..{classes}"))),
            Err(_) => return Err(wrong(number, format!("label {label:?} is not an integer"))),
        }
    }
    InMemory::new(inputs, features.ok_or_else(|| malformed(path, "no rows"))?, labels, classes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_rows_and_skips_a_heading_and_empty_lines() {
        let data = parse("t.csv", b"a,b,class\n1,2,0\r\n\n3, 4,1", 2, 0.5).unwrap();
        assert_eq!((data.len(), data.features(), data.classes()), (2, 2, 2));
        assert_eq!(data.row(1).unwrap(), [1.5, 2.0]);
        assert_eq!(data.labels(), [0, 1]);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        let message = |text: &[u8]| parse("t.csv", text, 2, 1.0).unwrap_err().to_string();
        assert_eq!(message(b""), "t.csv: no rows");
        assert_eq!(message(b"x,y\n"), "t.csv: no rows");
        assert_eq!(message(b"1,2,0\n1,x,0"), "t.csv: line 2: column 2: \"x\" is not a number");
        assert_eq!(message(b"1,2,0\n1,NaN,0"), "t.csv: line 2: column 2 is NaN");
        assert_eq!(message(b"1,2,0\n1,0"), "t.csv: line 2: 2 columns, the rows above have 3");
        assert_eq!(message(b"1,2,2"), "t.csv: line 1: label 2 is not in 0..2");
        assert_eq!(message(b"1,2,-1"), "t.csv: line 1: label -1 is not in 0..2");
        assert_eq!(message(b"1,2,0.5"), "t.csv: line 1: label \"0.5\" is not an integer");
        assert_eq!(message(b"1,2,0\n7"), "t.csv: line 2: only one column");
        assert_eq!(message(b"1,2,0\n1,\xff,0"), "t.csv: line 2: not UTF-8 text");
        assert_eq!(message(b"1,2,0\nx,y,z"), "t.csv: line 2: column 1: \"x\" is not a number");
    }
}
