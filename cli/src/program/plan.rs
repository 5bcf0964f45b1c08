//! `streamgrad plan`: what data parallel training would take on more ranks than there are.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;
use streamgrad::comm::CommModel;
use streamgrad::profile::Table;
use workloads::{Plan, PlanOptions, PlannedStep};

use super::args::{device, positive, rate, workload, workload_help};
use super::failure::Failure;
use super::output::{Output, Printer};

#[derive(clap::Args)]
pub(super) struct Args {
    #[arg(long, default_value = "gpt", help = workload_help(""))]
    model: String,
    /// Numbers of ranks with commas between them, or the powers of two from one to another, as in 8..1024.
    #[arg(long, default_value = "2..1024", value_name = "N,.. or N..M", value_parser = ranks)]
    ranks: RankCounts,
    /// Rows of a rank's batch [default: the workload's].
    #[arg(long, allow_negative_numbers = true, value_name = "B", value_parser = positive)]
    batch: Option<usize>,
    /// Microseconds of a message between ranks.
    #[arg(long, allow_negative_numbers = true, default_value_t = 5.0, value_name = "US", value_parser = rate)]
    latency: f64,
    /// Gigabytes a second of a rank.
    #[arg(long, allow_negative_numbers = true, default_value_t = 50.0, value_name = "GB/S", value_parser = rate)]
    bandwidth: f64,
    /// Mebibytes of gradients that are averaged at once.
    #[arg(long, allow_negative_numbers = true, default_value_t = 25.0, value_name = "MIB", value_parser = rate)]
    bucket: f64,
    /// Steps to measure.
    #[arg(long, allow_negative_numbers = true, default_value_t = 10, value_name = "N", value_parser = positive)]
    steps: usize,
    /// auto, cpu or cuda:N.
    #[arg(long, default_value = "auto")]
    device: String,
    /// Write every figure as JSON; - is standard output.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Numbers of ranks, in the order in which they were given.
#[derive(Clone)]
struct RankCounts(Vec<usize>);

/// Reads `8,64` or `8..1024`.
fn ranks(text: &str) -> Result<RankCounts, String> {
    let Some((from, to)) = text.split_once("..") else {
        return text.split(',').map(positive).collect::<Result<_, _>>().map(RankCounts);
    };
    let (from, to) = (positive(from)?, positive(to)?);
    let doubled = std::iter::successors(Some(from), |ranks| ranks.checked_mul(2));
    let ranks: Vec<usize> = doubled.take_while(|&ranks| ranks <= to).collect();
    if ranks.is_empty() {
        Err("the first number must not be the larger one".into())
    } else {
        Ok(RankCounts(ranks))
    }
}

pub(super) fn run(args: &Args, printer: &mut Printer) -> Result<bool, Failure> {
    let workload = workload(Some(&args.model), None)?;
    let network = CommModel {
        latency: Duration::try_from_secs_f64(args.latency / 1e6).map_err(|_| {
            Failure::Usage(format!("--latency {} us is longer than can be counted", args.latency))
        })?,
        bandwidth: args.bandwidth * 1e9,
    };
    let mut options = PlanOptions::new(workload, &device(&args.device)?, network);
    options.batch = args.batch.unwrap_or(options.batch);
    options.steps = args.steps;
    options.parallel.bucket_bytes = (args.bucket * MIB) as usize;
    let [json] = Output::open([&args.json], printer)?;
    let plan = workloads::plan(workload, &options)?;
    let steps: Vec<PlannedStep> = args.ranks.0.iter().map(|&ranks| plan.at(ranks)).collect();
    printer.line(format_args!("{}: {}", workload.name(), workload.info().about))?;
    printer.line(format_args!(
        "device {}, batches of {} rows; one rank takes {:.3} ms a step and {:.1} MiB of memory, {:.1} of them parameters",
        options.device.name(),
        options.batch,
        plan.at(1).step_ms,
        plan.peak_bytes as f64 / MIB,
        plan.parameter_bytes as f64 / MIB
    ))?;
    printer.line(format_args!(
        "network: {} us a message, {} GB/s a rank; gradients are averaged in {} part{}",
        args.latency,
        args.bandwidth,
        plan.buckets.len(),
        if plan.buckets.len() == 1 { "" } else { "s" }
    ))?;
    printer.empty_line()?;
    printer.text(&table(&steps))?;
    Output::save(json, || format!("{:#}\n", to_json(&plan, &steps)))?;
    Ok(true)
}

const MIB: f64 = 1048576.0;

fn table(steps: &[PlannedStep]) -> Table {
    let mut table = Table::new(0);
    table.row(["ranks", "step (ms)", "communication (ms)", "exposed (ms)", "efficiency", "rows per second"]);
    for step in steps {
        table.row([
            step.ranks.to_string(),
            format!("{:.3}", step.step_ms),
            format!("{:.3}", step.communication_ms),
            format!("{:.3}", step.exposed_ms),
            format!("{:.1} %", 100.0 * step.efficiency),
            format!("{:.0}", step.rows_per_s),
        ]);
    }
    table
}

fn to_json(plan: &Plan, steps: &[PlannedStep]) -> serde_json::Value {
    json!({
        "device": plan.options.device.name(),
        "batch": plan.options.batch,
        "latency_us": plan.options.network.latency.as_secs_f64() * 1e6,
        "bandwidth_bytes_per_s": plan.options.network.bandwidth,
        "parameter_bytes": plan.parameter_bytes,
        "peak_bytes": plan.peak_bytes,
        "bucket_bytes": plan.buckets,
        "steps": steps,
    })
}
