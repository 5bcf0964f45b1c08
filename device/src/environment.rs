//! The variables that say what devices are made of, where a program does not. One that is empty counts as not set.

use crate::{Error, Result, Team};

/// Checks all of them: for a program that would rather not begin than find out later.
///
/// # Errors
/// `InvalidArgument` with the variable and its value.
pub fn check() -> Result<()> {
    threads()?;
    launches()?;
    blocking()?;
    cudnn().map(drop)
}

/// `STREAMGRAD_THREADS`: how many threads one kernel may be split over.
///
/// # Errors
/// As [`check`].
pub fn threads() -> Result<Option<usize>> {
    const MOST: usize = Team::MAX_HELPERS + 1;
    let parse = |text: &str| text.parse().ok().filter(|threads| (1..=MOST).contains(threads));
    variable("STREAMGRAD_THREADS", "a whole number from 1 to 1024", parse)
}

pub(crate) fn blocking() -> Result<Option<bool>> {
    variable("STREAMGRAD_LAUNCH_BLOCKING", "0 or 1", switch)
}

pub(crate) fn cudnn() -> Result<Option<bool>> {
    variable("STREAMGRAD_CUDNN", "0 or 1", switch)
}

/// Whether a launcher issues all launches (`Some(true)`), those of long runs (`Some(false)`) or none.
pub(crate) fn launches() -> Result<Option<Option<bool>>> {
    variable("STREAMGRAD_LAUNCHER", "0, 1 or all", |text| match text {
        "all" => Some(Some(true)),
        text => switch(text).map(|long_runs| long_runs.then_some(false)),
    })
}

fn switch(text: &str) -> Option<bool> {
    match text {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

fn variable<T>(
    name: &'static str,
    expected: &'static str,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<Option<T>> {
    let Some(value) = std::env::var_os(name).filter(|value| !value.is_empty()) else { return Ok(None) };
    let text = value.to_string_lossy();
    let parsed = parse(text.trim());
    parsed.map(Some).ok_or_else(|| Error::invalid("environment", name, expected, format_args!("{text:?}")))
}
