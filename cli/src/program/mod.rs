//! The command line: arguments, errors, exit codes.

mod compare;
mod failure;
mod gradcheck;
mod info;
#[cfg(unix)]
mod launch;
mod output;
mod plan;
mod ranks;
mod report;
mod sweep;
mod table;
mod train;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use streamgrad::Device;
use streamgrad::compare::{Scale, Workload};

use failure::{FAILED, Failure};
use output::Printer;

/// A tensor and autograd engine in which streams are first-class.
#[derive(Parser)]
#[command(name = "streamgrad", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Train on one stream and on several: times, equality, and what limits the speed-up.
    Compare(compare::Args),
    /// Train on the digits, with checkpoints.
    Train(train::Args),
    /// Predict data parallel training on more ranks than there are, from a measured step and a modelled network.
    Plan(plan::Args),
    /// Check the gradients of every op against finite differences.
    Gradcheck(gradcheck::Args),
    /// Run a program as several ranks on this machine.
    #[cfg(unix)]
    Launch(launch::Args),
    /// What `launch` starts: one rank, which ends with it.
    #[cfg(unix)]
    #[command(hide = true)]
    Rank(launch::Rank),
    /// Say what devices there are, and why one is missing.
    Info,
}

pub(crate) fn main() -> ExitCode {
    let mut printer = Printer::stdout();
    let held = match Cli::try_parse() {
        Ok(cli) => run(cli.command, &mut printer),
        Err(error) => usage(&error, &mut printer),
    };
    match held {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(FAILED),
        Err(failure) => {
            output::complain(&failure.to_string());
            ExitCode::from(failure.status())
        }
    }
}

fn run(command: Command, printer: &mut Printer) -> Result<bool, Failure> {
    if !matches!(command, Command::Info) {
        info::check_environment()?;
    }
    match command {
        Command::Compare(args) => compare::run(&args, printer),
        Command::Train(args) => train::run(&args, printer),
        Command::Plan(args) => plan::run(&args, printer),
        Command::Gradcheck(args) => gradcheck::run(&args, printer),
        #[cfg(unix)]
        Command::Launch(args) => launch::run(args),
        #[cfg(unix)]
        Command::Rank(rank) => rank.run(),
        Command::Info => info::run(printer),
    }
}

/// Help goes to standard output; anything else is one line.
fn usage(error: &clap::Error, printer: &mut Printer) -> Result<bool, Failure> {
    let text = error.render().to_string();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            printer.line(format_args!("{}", text.trim_end()))?;
            Ok(true)
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => Err(Failure::Usage(
            "a command is missing: compare, train, plan, gradcheck, launch or info".into(),
        )),
        _ => {
            let first = text.split("\n\n").next().unwrap_or_default();
            let words: Vec<&str> = first.split_whitespace().collect();
            let line = words.join(" ");
            Err(Failure::Usage(line.strip_prefix("error: ").unwrap_or(&line).to_owned()))
        }
    }
}

/// Reads a count of at least one.
fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".into()),
        Ok(count) => Ok(count),
        Err(_) => Err("must be a whole number of at least 1".into()),
    }
}

/// Reads a rate: positive and finite.
fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate: &f64| rate.is_finite() && *rate > 0.0);
    rate.ok_or_else(|| "must be a positive number".into())
}

/// `auto`, `cpu` or `cuda:N`.
fn device(name: &str) -> Result<Device, Failure> {
    let ordinal = match name {
        "auto" => return Ok(Device::best()),
        "cpu" => return Ok(Device::cpu()),
        "cuda" => Some(0),
        _ => name.strip_prefix("cuda:").and_then(|ordinal| ordinal.parse().ok()),
    };
    let ordinal = ordinal
        .ok_or_else(|| Failure::Usage(format!("--device: expected auto, cpu or cuda:N, got {name:?}")))?;
    Ok(Device::cuda(ordinal)?)
}

/// Help for an argument that names a workload, or one of `others`.
fn workload_help(others: &str) -> String {
    format!("What to train: {}{others}", *workloads::NAMES)
}

/// The workload of that name, at a scale if one is asked for.
fn workload(name: &str, scale: Option<Scale>) -> Result<&'static dyn Workload, Failure> {
    let unknown = |_| Failure::Usage(format!("unknown workload {name:?}; expected {}", *workloads::NAMES));
    let found = workloads::find(name).map_err(unknown)?;
    workloads::scaled(found, scale)
        .map_err(|_| Failure::Usage(format!("--scale is not for {name}, which has one size")))
}
