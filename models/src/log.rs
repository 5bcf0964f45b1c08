//! Logs of training runs: a JSON object a line.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use device::file::io_error;
use device::{Error, Result};
pub use serde_json::Value;

/// A file that gets a JSON object for each record, as `{"step":10,"loss":0.25}`, on a line of its own.
///
/// Each line is with the system once [`write`](JsonLines::write) returns. NaN and infinity, which JSON lacks, become `null`.
///
/// ```
/// use models::log::JsonLines;
/// # fn main() -> device::Result<()> {
/// let path = std::env::temp_dir().join(format!("streamgrad-doc-{}.jsonl", std::process::id()));
/// let mut log = JsonLines::create(&path)?;
/// log.write(&[("step", 10.into()), ("loss", 0.25.into()), ("phase", "warm-up".into())])?;
/// let written = String::from_utf8(models::file::read(&path)?).unwrap_or_default();
/// assert_eq!(written, "{\"step\":10,\"loss\":0.25,\"phase\":\"warm-up\"}\n");
/// # std::fs::remove_file(path).ok();
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct JsonLines {
    file: File,
    path: PathBuf,
}

#[derive::located]
impl JsonLines {
    /// Begins a new file, in place of one that is there.
    ///
    /// # Errors
    /// `Io` if the file cannot be made.
    pub fn create(path: impl AsRef<Path>) -> Result<Self> {
        Self::open(path.as_ref(), OpenOptions::new().create(true).write(true).truncate(true))
    }

    /// Goes on with a file, or begins one. A last line that a crash cut off is ended first.
    ///
    /// # Errors
    /// `Io` if the file cannot be opened.
    pub fn append(path: impl AsRef<Path>) -> Result<Self> {
        let mut log = Self::open(path.as_ref(), OpenOptions::new().create(true).read(true).append(true))?;
        let mut last = [b'\n'];
        let ended = match log.file.seek(SeekFrom::End(-1)) {
            Ok(_) => log.file.read_exact(&mut last),
            // It is empty.
            Err(_) => Ok(()),
        };
        let ended = if last == *b"\n" { ended } else { log.file.write_all(b"\n") };
        ended.map_err(|error| io_error(&log.path, error))?;
        Ok(log)
    }

    fn open(path: &Path, options: &OpenOptions) -> Result<Self> {
        let file = options.open(path).map_err(|error| io_error(path, error))?;
        Ok(JsonLines { file, path: path.to_owned() })
    }

    /// Writes a line with these names and values, in this order.
    ///
    /// # Errors
    /// `InvalidArgument` for a name that is there twice; `Io` if the line cannot be written.
    pub fn write(&mut self, record: &[(&str, Value)]) -> Result<()> {
        let mut line = String::from("{");
        for (at, (name, value)) in record.iter().enumerate() {
            let is_new = record[..at].iter().all(|(earlier, _)| earlier != name);
            Error::require(is_new, "JsonLines::write", "names", "different", format_args!("{name:?} twice"))?;
            let comma = if at > 0 { "," } else { "" };
            line.push_str(&format!("{comma}{}:{value}", Value::from(*name)));
        }
        line.push_str("}\n");
        self.file.write_all(line.as_bytes()).map_err(|error| io_error(&self.path, error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_for_each_record() {
        let path = std::env::temp_dir().join(format!("streamgrad-log-{}.jsonl", std::process::id()));
        std::fs::write(&path, "what was there").unwrap();
        let mut log = JsonLines::create(&path).unwrap();
        log.write(&[("b", 1.into()), ("a", f64::NAN.into()), ("c", f32::NEG_INFINITY.into())]).unwrap();
        let read = || std::fs::read_to_string(&path).unwrap();
        assert_eq!(read(), "{\"b\":1,\"a\":null,\"c\":null}\n", "at once");
        log.write(&[("\"\n", "é\n".into()), ("x", 0.1.into()), ("y", (-3_i64).into())]).unwrap();
        log.write(&[]).unwrap();
        let error = log.write(&[("a", 1.into()), ("b", 2.into()), ("a", 3.into())]).unwrap_err();
        assert_eq!(error.to_string(), "JsonLines::write: names must be different, got \"a\" twice");
        drop(log);
        JsonLines::append(&path).unwrap().write(&[("last", true.into())]).unwrap();
        let lines = "{\"\\\"\\n\":\"é\\n\",\"x\":0.1,\"y\":-3}\n{}\n{\"last\":true}\n";
        assert_eq!(read(), format!("{{\"b\":1,\"a\":null,\"c\":null}}\n{lines}"));
        std::fs::write(&path, "{\"cut").unwrap();
        JsonLines::append(&path).unwrap().write(&[("a", 1.into())]).unwrap();
        assert_eq!(read(), "{\"cut\n{\"a\":1}\n");
        std::fs::remove_file(&path).unwrap();
        let error = JsonLines::create(std::env::temp_dir()).unwrap_err();
        assert!(matches!(error.kind(), device::ErrorKind::Io { .. }), "{error}");
    }
}
