//! `streamgrad verify`: a workload's training, checked in one call.

use streamgrad::compare::{CompareOptions, VerifyOptions};
use workloads::{Scale, comparison};

use super::args::{device, positive, workload, workload_help};
use super::failure::Failure;
use super::output::Printer;

#[derive(clap::Args)]
pub(super) struct Args {
    #[arg(help = workload_help(""))]
    workload: Option<String>,
    /// auto, cpu or cuda:N.
    #[arg(long, default_value = "auto")]
    device: String,
    /// Rows of one batch.
    #[arg(long, allow_negative_numbers = true, value_name = "B", value_parser = positive, default_value = "4")]
    batch: usize,
    /// Size of the images of encoder-decoder, augment and branches: tiny, small or article [default: tiny].
    #[arg(long, value_name = "SCALE")]
    scale: Option<Scale>,
}

pub(super) fn run(args: &Args, printer: &mut Printer) -> Result<bool, Failure> {
    let workload = workload(args.workload.as_deref(), args.scale)?;
    let workload = match args.scale {
        None => workload.at_scale(Scale::Tiny).unwrap_or(workload),
        Some(_) => workload,
    };
    let program = comparison(workload, &device(&args.device)?, args.batch, CompareOptions::default())?;
    let found = program.verify(VerifyOptions::default())?;
    printer.line(format_args!("{}: {}", workload.name(), workload.info().about))?;
    printer.text(&found)?;
    Ok(found.findings.is_empty())
}
