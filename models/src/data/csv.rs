//! Files of separated values, through the `csv` crate.

use std::path::Path;

use csv::{ByteRecord, ReaderBuilder, Trim};
use device::{Device, Result};
use tensor::Tensor;

use super::{InMemory, TensorDataset, malformed};
use crate::file;

/// How [`InMemory::read_csv`] and [`TensorDataset::read_csv`] read a file. Blanks around fields, empty lines and a byte-order mark are
/// skipped.
///
/// ```
/// use models::{InMemory, TensorDataset, data::{Column, CsvOptions}};
/// # fn main() -> device::Result<()> {
/// # let path = std::env::temp_dir().join(format!("streamgrad-doc-{}.csv", std::process::id()));
/// # std::fs::write(&path, "age;class;height\n31;0;1.75\nNA;1;1.62\n").ok();
/// // age;class;height
/// // 31;0;1.75
/// // NA;1;1.62
/// let options = CsvOptions {
///     separator: b';',
///     label: Column::Name("class"),
///     missing: &["", "NA"],
///     missing_value: Some(0.0),
///     ..CsvOptions::default()
/// };
/// let people = InMemory::read_csv(&path, 2, &options)?;
/// assert_eq!((people.row(1), people.labels()), (Some(&[0.0, 1.62][..]), &[0, 1][..]));
/// // Heights as targets of a regression.
/// let people = TensorDataset::read_csv(&path, &CsvOptions { label: Column::Last, ..options })?;
/// # std::fs::remove_file(&path).ok();
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct CsvOptions<'a> {
    /// The byte between fields.
    pub separator: u8,
    /// The byte around fields that have a separator or a line break in them; doubled, it stands for itself.
    pub quote: Option<u8>,
    /// Whether the first line has the columns' names. `None`: it has if no field of it is a number.
    pub header: Option<bool>,
    /// The column of the labels. All others are features, in their order.
    pub label: Column<'a>,
    /// Fields that mean a missing value. A label is never missing.
    pub missing: &'a [&'a str],
    /// The value of missing features, such as NaN, which is not scaled. `None`: they are an error.
    pub missing_value: Option<f32>,
    /// Factor of all features.
    pub scale: f32,
}

/// A column of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column<'a> {
    /// The last one.
    Last,
    /// The one of this number, counted from 1 as in error messages.
    Number(usize),
    /// The one of this name in the header.
    Name(&'a str),
}

/// Commas, double quotes, and the label in the last column; an empty field is missing, which is an error.
impl Default for CsvOptions<'_> {
    fn default() -> Self {
        CsvOptions {
            separator: b',',
            quote: Some(b'"'),
            header: None,
            label: Column::Last,
            missing: &[""],
            missing_value: None,
            scale: 1.0,
        }
    }
}

#[derive::located]
impl InMemory {
    /// Reads a file of numbers, one row a line, with a class in `0..classes` as the label.
    ///
    /// # Errors
    /// `Io` if the file cannot be read; `Format`, with line and column, for a field that is not a finite number, a missing value
    /// without a replacement, a row of another length, a label that is no class, and if there is no such label column.
    pub fn read_csv(path: impl AsRef<Path>, classes: usize, options: &CsvOptions<'_>) -> Result<Self> {
        let path = path.as_ref();
        parse_classes(&path.display().to_string(), &file::read(path)?, classes, options)
    }
}

#[derive::located]
impl TensorDataset {
    /// Reads a file of numbers, one row a line: features `[n, columns - 1]` and targets `[n]`, both F32.
    ///
    /// # Errors
    /// As [`InMemory::read_csv`], where the label may be any finite number.
    pub fn read_csv(path: impl AsRef<Path>, options: &CsvOptions<'_>) -> Result<Self> {
        let path = path.as_ref();
        parse_targets(&path.display().to_string(), &file::read(path)?, options)
    }
}

fn parse_classes(path: &str, text: &[u8], classes: usize, options: &CsvOptions<'_>) -> Result<InMemory> {
    let class = |field: &str| match field.parse::<i64>() {
        Ok(label) if usize::try_from(label).is_ok_and(|label| label < classes) => Ok(label),
        Ok(label) => Err(format!(": label {label} is not in 0..{classes}")),
        Err(_) => Err(format!(": label {field:?} is not an integer")),
    };
    let table = parse(path, text, options, class)?;
    InMemory::with_non_finite(table.inputs, table.features, table.labels, classes)
}

fn parse_targets(path: &str, text: &[u8], options: &CsvOptions<'_>) -> Result<TensorDataset> {
    let Table { inputs, features, labels } = parse(path, text, options, number)?;
    let (rows, host) = (labels.len(), Device::cpu());
    let inputs = Tensor::from_slice(&inputs, &[rows, features], &host)?;
    TensorDataset::new(&inputs, &Tensor::from_slice(&labels, &[rows], &host)?)
}

/// The rows of a file.
struct Table<T> {
    inputs: Vec<f32>,
    features: usize,
    labels: Vec<T>,
}

/// Parses `text`; `path` is for the messages. What is wrong with a field follows its column's number.
fn parse<T>(
    path: &str,
    text: &[u8],
    options: &CsvOptions<'_>,
    to_label: impl Fn(&str) -> Result<T, String>,
) -> Result<Table<T>> {
    let mut reader = ReaderBuilder::new();
    reader.has_headers(false).flexible(true).trim(Trim::All).delimiter(options.separator);
    reader.quoting(options.quote.is_some()).quote(options.quote.unwrap_or(b'"'));
    let mut reader = reader.from_reader(text);
    let (mut inputs, mut labels, mut columns) = (Vec::new(), Vec::new(), None);
    let mut record = ByteRecord::new();
    while reader.read_byte_record(&mut record).map_err(|error| malformed(path, error))? {
        let wrong = |what: String| malformed(path, format_args!("line {}: {what}", line(text, &record)));
        let fields: Result<Vec<&str>, _> = record.iter().map(str::from_utf8).collect();
        let fields = fields.map_err(|_| wrong("not UTF-8 text".into()))?;
        if fields == [""] {
            continue;
        }
        let columns = match &columns {
            Some(columns) => columns,
            None => {
                let has_header = options.header.unwrap_or(!fields.iter().any(|f| f.parse::<f32>().is_ok()));
                let first = columns.insert(Columns::new(&fields, has_header, options.label).map_err(wrong)?);
                if has_header {
                    continue;
                }
                first
            }
        };
        if fields.len() != columns.count {
            let expected = columns.count;
            return Err(wrong(format!("{} columns, the rows above have {expected}", fields.len())));
        }
        for (at, field) in fields.iter().enumerate() {
            let wrong = |what: String| wrong(format!("{}{what}", columns.describe(at)));
            if at == columns.label {
                labels.push(to_label(field).map_err(wrong)?);
            } else if options.missing.contains(field) {
                let missing = || wrong(format!(": {field:?} is a missing value"));
                inputs.push(options.missing_value.ok_or_else(missing)?);
            } else {
                let scaled = number(field).map_err(wrong)? * options.scale;
                let is_finite = scaled.is_finite();
                inputs.push(
                    is_finite
                        .then_some(scaled)
                        .ok_or_else(|| wrong(format!(": {field} times the scale is {scaled}")))?,
                );
            }
        }
    }
    match columns {
        Some(columns) if !labels.is_empty() => Ok(Table { inputs, features: columns.count - 1, labels }),
        _ => Err(malformed(path, "no rows")),
    }
}

/// The line on which a record begins. The reader's own count is that of the record before.
fn line(text: &[u8], record: &ByteRecord) -> usize {
    let start = record.position().map_or(0, |position| position.byte() as usize);
    let is_break = |byte: &&u8| matches!(byte, b'\r' | b'\n');
    let breaks = text[start..].iter().take_while(is_break).count();
    1 + text[..start + breaks].iter().filter(|&&byte| byte == b'\n').count()
}

fn number(field: &str) -> Result<f32, String> {
    match field.parse::<f32>() {
        Ok(value) if value.is_finite() => Ok(value),
        Ok(value) => Err(format!(" is {value}")),
        Err(_) => Err(format!(": {field:?} is not a number")),
    }
}

/// What the first line says of all.
struct Columns {
    /// Empty without a header.
    names: Vec<Box<str>>,
    count: usize,
    /// The index of the label's column.
    label: usize,
}

impl Columns {
    fn new(first: &[&str], has_header: bool, label: Column<'_>) -> Result<Columns, String> {
        let count = first.len();
        if count < 2 {
            return Err("only one column".into());
        }
        let label = match label {
            Column::Last => count - 1,
            Column::Number(number) => {
                let index = number.checked_sub(1).filter(|&index| index < count);
                index.ok_or_else(|| format!("no column {number} among {count}"))?
            }
            Column::Name(name) if has_header => {
                let index = first.iter().position(|&known| known == name);
                index.ok_or_else(|| format!("no column {name:?} among {}", first.join(", ")))?
            }
            Column::Name(name) => return Err(format!("no header that names column {name:?}")),
        };
        let names = if has_header { first.iter().map(|&name| name.into()).collect() } else { Vec::new() };
        Ok(Columns { names, count, label })
    }

    /// A column as messages name it.
    fn describe(&self, index: usize) -> String {
        let name = self.names.get(index).map_or_else(String::new, |name| format!(" ({name})"));
        format!("column {}{name}", index + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classes(text: &[u8], options: &CsvOptions<'_>) -> Result<InMemory> {
        parse_classes("t.csv", text, 2, options)
    }

    #[test]
    fn forms_of_files() {
        let default = CsvOptions::default();
        let of = |label| CsvOptions { label, ..default };
        let nan = CsvOptions { missing: &["?", "NA"], missing_value: Some(-1.0), scale: 2.0, ..default };
        let rows = [[1.0, 2.0], [3.0, 4.0]];
        let cases: &[(&str, CsvOptions<'_>, [[f32; 2]; 2])] = &[
            ("1,2,0\n3,4,1", default, rows),
            ("a,b,class\n1,2,0\r\n\n \r\n3, 4,1", default, rows),
            ("\u{feff}1,2,0\n3,4,1\n", default, rows),
            ("\u{feff}class,b,c\n0,1,2\n1,3,4", of(Column::Name("class")), rows),
            ("1,0,2\n3,1,4\n", of(Column::Number(2)), rows),
            ("0,1,2\n1,3,4\n", of(Column::Number(1)), rows),
            ("\"a, \"\"b\"\"\nc\",d,e\n\"1\",2,0\n3,\"4\",1\n", default, rows),
            ("1;2;0\n3;4;1\n", CsvOptions { separator: b';', ..default }, rows),
            ("'1','2','0'\n3,4,1\n", CsvOptions { quote: Some(b'\''), ..default }, rows),
            ("9,8,0\n1,2,0\n3,4,1\n", CsvOptions { header: Some(true), ..default }, rows),
            ("?,2,0\n3,NA,1\n", nan, [[-1.0, 4.0], [6.0, -1.0]]),
        ];
        for (text, options, expected) in cases {
            let data = classes(text.as_bytes(), options).unwrap();
            assert_eq!((data.len(), data.labels()), (2, &[0, 1][..]), "{text:?}");
            assert_eq!(
                [0, 1].map(|row| data.row(row).unwrap()),
                [&expected[0][..], &expected[1]],
                "{text:?}"
            );
        }
        let nan = CsvOptions { missing_value: Some(f32::NAN), ..default };
        assert!(classes(b",2,0", &nan).unwrap().row(0).unwrap()[0].is_nan());
    }

    #[test]
    fn targets_are_floats() {
        let data = parse_targets("t.csv", b"1,2,0.5\n3,4,-1e3", &CsvOptions::default()).unwrap();
        let batch = crate::Dataset::batch(&data, &[1, 0], 0, &Device::cpu()).unwrap();
        assert_eq!((batch.inputs.shape(), batch.labels.shape()), (&[2, 2][..], &[2][..]));
        assert_eq!(batch.inputs.to_vec::<f32>().unwrap(), [3.0, 4.0, 1.0, 2.0]);
        assert_eq!(batch.labels.to_vec::<f32>().unwrap(), [-1000.0, 0.5]);
    }

    #[test]
    fn what_is_wrong_is_named_with_line_and_column() {
        let default = CsvOptions::default();
        let of = |label| CsvOptions { label, ..default };
        let cases: &[(&[u8], CsvOptions<'_>, &str)] = &[
            (b"", default, "no rows"),
            (b"x,y\n", default, "no rows"),
            (b"1,2,0\n1,x,0", default, "line 2: column 2: \"x\" is not a number"),
            (b"a,b,c\r\n\r\n1,2,0\r\n1,x,0", default, "line 4: column 2 (b): \"x\" is not a number"),
            (b"\"a\na\",b,c\n1,x,0", default, "line 3: column 2 (b): \"x\" is not a number"),
            (b"\xef\xbb\xbf1,2,0\n1,NaN,0", default, "line 2: column 2 is NaN"),
            (b"1,2,0\n1,,0", default, "line 2: column 2: \"\" is a missing value"),
            (b"1,2,0\n1,0", default, "line 2: 2 columns, the rows above have 3"),
            (
                b"1,3e38,0",
                CsvOptions { scale: 10.0, ..default },
                "line 1: column 2: 3e38 times the scale is inf",
            ),
            (b"1,2,2", default, "line 1: column 3: label 2 is not in 0..2"),
            (b"1,2,-1", default, "line 1: column 3: label -1 is not in 0..2"),
            (b"1,2,0.5", default, "line 1: column 3: label \"0.5\" is not an integer"),
            (b"1,2,", default, "line 1: column 3: label \"\" is not an integer"),
            (b"1\n", default, "line 1: only one column"),
            (b"1,2,0\n1,\xff,0", default, "line 2: not UTF-8 text"),
            (b"a,b\n", of(Column::Name("c")), "line 1: no column \"c\" among a, b"),
            (b"1,2\n", of(Column::Name("c")), "line 1: no header that names column \"c\""),
            (b"1,2\n", of(Column::Number(3)), "line 1: no column 3 among 2"),
            (b"1,2\n", of(Column::Number(0)), "line 1: no column 0 among 2"),
            (
                b"a,0",
                CsvOptions { header: Some(false), ..default },
                "line 1: column 1: \"a\" is not a number",
            ),
        ];
        for (text, options, expected) in cases {
            let message = classes(text, options).unwrap_err().to_string();
            assert_eq!(message, format!("t.csv: {expected}"));
        }
        let error = parse_targets("t.csv", b"1,2\n1,inf", &default).map(drop).unwrap_err();
        assert_eq!(error.to_string(), "t.csv: line 2: column 2 is inf");
    }
}
