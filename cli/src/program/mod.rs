//! The command line: arguments, errors, exit codes.

mod args;
mod compare;
mod diverge;
mod failure;
mod gradcheck;
mod info;
#[cfg(unix)]
mod launch;
mod output;
mod plan;
mod ranks;
mod sweep;
mod train;
mod verify;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};

use failure::{FAILED, Failure};
use output::Printer;

/// A tensor and autograd engine in which streams are first-class.
#[derive(Parser)]
#[command(name = "streamgrad", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Subcommands,
}

#[derive(Subcommand)]
enum Subcommands {
    /// Train on one stream and on several: times, equality, and what limits the speed-up.
    Compare(compare::Args),
    /// Train on the digits, with checkpoints.
    Train(train::Args),
    /// Predict data parallel training on more ranks than there are, from a measured step and a modelled network.
    Plan(plan::Args),
    /// Check the gradients of every op against finite differences.
    Gradcheck(gradcheck::Args),
    /// Check a workload's training: gradients, equal bits under many schedules, waits of the host, memory.
    Verify(verify::Args),
    /// Compare two traces of what commands wrote, from `train --trace-writes`: the first command that wrote something else.
    Diverge(diverge::Args),
    /// Run a program as several ranks on this machine.
    #[cfg(unix)]
    Launch(launch::Args),
    /// What `launch` starts: one rank, which ends with it.
    #[cfg(unix)]
    #[command(hide = true)]
    Rank(launch::RankCommand),
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

fn run(command: Subcommands, printer: &mut Printer) -> Result<bool, Failure> {
    if !matches!(command, Subcommands::Info) {
        info::check_environment()?;
    }
    match command {
        Subcommands::Compare(args) => compare::run(&args, printer),
        Subcommands::Train(args) => train::run(&args, printer),
        Subcommands::Plan(args) => plan::run(&args, printer),
        Subcommands::Gradcheck(args) => gradcheck::run(&args, printer),
        Subcommands::Verify(args) => verify::run(&args, printer),
        Subcommands::Diverge(args) => diverge::run(&args, printer),
        #[cfg(unix)]
        Subcommands::Launch(args) => launch::run(args),
        #[cfg(unix)]
        Subcommands::Rank(rank) => rank.run(),
        Subcommands::Info => info::run(printer),
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
            "a command is missing: compare, train, plan, gradcheck, verify, diverge, launch or info".into(),
        )),
        _ => {
            let first = text.split("\n\n").next().unwrap_or_default();
            let words: Vec<&str> = first.split_whitespace().collect();
            let line = words.join(" ");
            Err(Failure::Usage(line.strip_prefix("error: ").unwrap_or(&line).to_owned()))
        }
    }
}
