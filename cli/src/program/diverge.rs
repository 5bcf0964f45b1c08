//! `streamgrad diverge`: where two traces of what commands wrote part.

use std::path::PathBuf;

use streamgrad::compare::{WriteTrace, first_divergence};

use super::failure::Failure;
use super::output::Printer;

#[derive(clap::Args)]
pub(super) struct Args {
    /// A file of `train --trace-writes`.
    a: PathBuf,
    /// Another one.
    b: PathBuf,
}

/// Whether the traces are equal.
pub(super) fn run(args: &Args, printer: &mut Printer) -> Result<bool, Failure> {
    let found = first_divergence(&WriteTrace::load(&args.a)?, &WriteTrace::load(&args.b)?);
    match &found {
        Some(found) => printer.line(format_args!("{found}"))?,
        None => printer.line(format_args!("every command wrote the same"))?,
    }
    Ok(found.is_none())
}
