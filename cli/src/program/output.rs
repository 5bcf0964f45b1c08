//! Standard output and files, with every error looked at.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use indicatif::{ProgressBar, ProgressStyle};
use streamgrad::models::file;

use super::failure::Failure;

/// What a run says, on standard output. When its reader goes away the rest is dropped.
pub(super) struct Printer {
    out: Box<dyn Write>,
    name: &'static str,
    closed: bool,
}

impl Printer {
    pub(super) fn stdout() -> Printer {
        Printer { out: Box::new(io::stdout()), name: STANDARD_OUTPUT, closed: false }
    }

    /// Speaks on standard error from here on, since standard output takes data.
    pub(super) fn use_stderr(&mut self) {
        (self.out, self.name) = (Box::new(io::stderr()), "standard error");
    }

    pub(super) fn line(&mut self, line: fmt::Arguments<'_>) -> Result<(), Failure> {
        if self.closed {
            return Ok(());
        }
        match writeln!(self.out, "{line}").and_then(|()| self.out.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.closed = true;
                Ok(())
            }
            other => other.map_err(|error| Failure::file(Path::new(self.name), error)),
        }
    }

    /// Prints lines.
    pub(super) fn text(&mut self, text: &impl fmt::Display) -> Result<(), Failure> {
        self.line(format_args!("{}", text.to_string().trim_end_matches('\n')))
    }

    pub(super) fn empty_line(&mut self) -> Result<(), Failure> {
        self.line(format_args!(""))
    }

    /// Ends a run that saves nothing once nobody reads what it says.
    pub(super) fn check_read(&self, saves: bool) -> Result<(), Failure> {
        let unread = || format!("nobody reads {} any more, and nothing is saved", self.name);
        Failure::unless(!self.closed || saves, || Failure::Run(unread()))
    }
}

const STANDARD_OUTPUT: &str = "standard output";

/// Writes an error as one line.
pub(super) fn complain(message: &str) {
    let lines: Vec<&str> = message.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    // Nobody is left to tell if standard error is closed.
    let _ = writeln!(io::stderr(), "streamgrad: {}", lines.join("; "));
}

/// Where a text goes, looked at before a long run and written after it.
pub(super) enum Output {
    Stdout,
    /// A terminal, a pipe or another device.
    Device(PathBuf, File),
    /// A file, of which nothing is there before the text is.
    File(PathBuf),
}

impl Output {
    /// The outputs that arguments name, no two of which may lead to the same place. If one is standard output, the printer uses
    /// standard error.
    pub(super) fn open<const N: usize>(
        paths: [&Option<PathBuf>; N],
        printer: &mut Printer,
    ) -> Result<[Option<Output>; N], Failure> {
        Output::distinct(paths)?;
        let mut outputs = [const { None }; N];
        for (output, path) in outputs.iter_mut().zip(paths) {
            *output = path.as_deref().map(Output::new).transpose()?;
        }
        if outputs.iter().flatten().any(|output| matches!(output, Output::Stdout)) {
            printer.use_stderr();
        }
        Ok(outputs)
    }

    /// What the argument of an option means.
    fn new(path: &Path) -> Result<Output, Failure> {
        if is_stdout(path) {
            return Ok(Output::Stdout);
        }
        if is_device(path) {
            let device = File::options().write(true).open(path);
            return Ok(Output::Device(path.into(), device.map_err(|error| Failure::file(path, error))?));
        }
        file::check_writable(path)?;
        Ok(Output::File(path.into()))
    }

    /// That no two of the arguments lead to the same place.
    pub(super) fn distinct<const N: usize>(paths: [&Option<PathBuf>; N]) -> Result<(), Failure> {
        let mut places = Vec::new();
        for path in paths.into_iter().flatten() {
            let place = Output::place(path)?;
            let twice = || Failure::Usage(format!("{} is named for two outputs", path.display()));
            Failure::unless(!places.contains(&place), twice)?;
            places.push(place);
        }
        Ok(())
    }

    /// That none of the arguments leads to a file that is read.
    pub(super) fn spares<const N: usize>(
        paths: [&Option<PathBuf>; N],
        read: &Option<PathBuf>,
    ) -> Result<(), Failure> {
        // What is not there is said by who reads it.
        let Some(read) = read.as_ref().and_then(|path| fs::canonicalize(path).ok()) else { return Ok(()) };
        for path in paths.into_iter().flatten() {
            let read_too =
                || Failure::Usage(format!("{} is read, and would be written over", path.display()));
            Failure::unless(Output::place(path)? != read, read_too)?;
        }
        Ok(())
    }

    /// Where an argument leads to, the same for all that lead there.
    fn place(path: &Path) -> Result<PathBuf, Failure> {
        if is_stdout(path) {
            return Ok(path.into());
        }
        if is_device(path) {
            // A pipe behind a link has no path.
            return Ok(fs::canonicalize(path).unwrap_or(path.into()));
        }
        Ok(file::check_writable(path)?)
    }

    /// Writes what is asked for, if it is.
    pub(super) fn save(output: Option<Output>, text: impl FnOnce() -> String) -> Result<(), Failure> {
        output.map_or(Ok(()), |output| output.write(&text()))
    }

    pub(super) fn write(self, text: &str) -> Result<(), Failure> {
        let (path, written) = match self {
            Output::Stdout => {
                let mut out = io::stdout().lock();
                (STANDARD_OUTPUT.into(), out.write_all(text.as_bytes()).and_then(|()| out.flush()))
            }
            Output::Device(path, mut device) => (path, device.write_all(text.as_bytes())),
            Output::File(path) => return Ok(file::write(path, text.as_bytes())?),
        };
        written.map_err(|error| Failure::file(&path, error))
    }
}

/// Whether there is something that is neither a file nor a folder.
fn is_device(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir())
}

/// Whether an option's argument means standard output.
pub(super) fn is_stdout(path: &Path) -> bool {
    path == Path::new("-")
}

/// A bar on standard error, hidden unless that is a terminal; `rest` follows the count of steps.
pub(super) fn progress_bar(steps: u64, rest: &str) -> ProgressBar {
    let bar = ProgressBar::new(steps);
    if let Ok(style) = ProgressStyle::with_template(&format!("{{bar:40}} step {{pos}} of {{len}}{rest}")) {
        bar.set_style(style);
    }
    bar
}
