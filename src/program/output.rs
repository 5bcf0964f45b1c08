//! Standard output and files, with every error looked at.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use super::Failure;

/// Standard output. When its reader goes away the run goes on and the rest is dropped.
pub(super) struct Printer {
    out: io::Stdout,
    closed: bool,
}

impl Printer {
    pub(super) fn stdout() -> Printer {
        Printer { out: io::stdout(), closed: false }
    }

    pub(super) fn line(&mut self, line: fmt::Arguments<'_>) -> Result<(), Failure> {
        if self.closed {
            return Ok(());
        }
        match writeln!(self.out, "{line}").and_then(|()| self.out.flush()) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                self.closed = true;
                Ok(())
            }
            other => other.map_err(|error| Failure::file(Path::new("standard output"), error)),
        }
    }

    pub(super) fn empty_line(&mut self) -> Result<(), Failure> {
        self.line(format_args!(""))
    }
}

/// Writes an error as one line.
pub(super) fn complain(message: &str) {
    let lines: Vec<&str> = message.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    // Nobody is left to tell if standard error is closed.
    let _ = writeln!(io::stderr(), "streamgrad: {}", lines.join("; "));
}

/// A file that is opened before a long run and written after it. What it held stays until then; if nothing is written,
/// a file that was not there before is not there after.
pub(super) struct OutputFile {
    path: PathBuf,
    file: File,
    remove: bool,
}

impl OutputFile {
    pub(super) fn open(path: &Path) -> Result<OutputFile, Failure> {
        let existed = path.exists();
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
        let file = file.map_err(|error| Failure::file(path, error))?;
        Ok(OutputFile { path: path.to_owned(), file, remove: !existed })
    }

    /// Opens the file of an option that was given.
    pub(super) fn open_if(path: Option<&PathBuf>) -> Result<Option<OutputFile>, Failure> {
        path.map(|path| OutputFile::open(path)).transpose()
    }

    pub(super) fn write(mut self, text: &str) -> Result<(), Failure> {
        let result = self.replace(text);
        self.remove &= result.is_err();
        result.map_err(|error| Failure::file(&self.path, error))
    }

    fn replace(&mut self, text: &str) -> io::Result<()> {
        // A terminal or a pipe has no length to set.
        if self.file.metadata()?.is_file() {
            self.file.set_len(0)?;
        }
        self.file.write_all(text.as_bytes())?;
        self.file.flush()
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if self.remove {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Checks that a file could be written beside `path` and renamed to it.
pub(super) fn check_replaceable(path: &Path) -> Result<(), Failure> {
    if path.is_dir() {
        return Err(Failure::file(path, ErrorKind::IsADirectory.into()));
    }
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".probe-{}", std::process::id()));
    let beside = PathBuf::from(beside);
    let made = OpenOptions::new().write(true).create_new(true).open(&beside);
    made.map_err(|error| Failure::file(path, error))?;
    fs::remove_file(&beside).map_err(|error| Failure::file(path, error))
}
