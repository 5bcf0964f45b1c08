//! `streamgrad compare`: runs a comparison and shows it.

use std::path::PathBuf;

use serde_json::Value;
use streamgrad::compare::{CompareOptions, ComparisonReport};
use streamgrad::{Device, DeviceKind};
use workloads::{RankOptions, Scale, Workload, check, check_rows, comparison};

use super::args::{device, positive, workload, workload_help};
use super::failure::Failure;
use super::output::{Output, Printer, progress_bar};
use super::ranks::{self, RankArgs};
use super::sweep::{self, One};

#[derive(clap::Args)]
pub(super) struct Args {
    #[arg(help = workload_help(" or, on ranks, forum"))]
    workload: Option<String>,
    /// auto, cpu or cuda:N.
    #[arg(long, default_value = "auto")]
    device: String,
    /// Streams of the concurrent schedule [default: 2]; where they are lanes, also the batches of a step. Several numbers, with
    /// commas between them, are compared one after the other.
    #[arg(long, allow_negative_numbers = true, value_name = "N,..", value_parser = positive, value_delimiter = ',')]
    streams: Vec<usize>,
    /// Rows of one batch [default: the workload's]; several numbers as for streams.
    #[arg(long, allow_negative_numbers = true, value_name = "B,..", value_parser = positive, value_delimiter = ',')]
    batch: Vec<usize>,
    /// Size of the images of encoder-decoder, augment and branches: tiny, 16 by 16, small, 64 by 64, or article, 256 by 256 [default:
    /// small on a CPU, else article; article for branches].
    #[arg(long, value_name = "SCALE")]
    scale: Option<Scale>,
    /// Steps to measure.
    #[arg(long, allow_negative_numbers = true, value_name = "N", value_parser = positive)]
    steps: Option<usize>,
    /// Steps before them.
    #[arg(long, allow_negative_numbers = true, value_name = "N")]
    warmup: Option<usize>,
    /// Seed of parameters, split and shuffles.
    #[arg(long, allow_negative_numbers = true, value_name = "S")]
    seed: Option<u64>,
    /// Capture the serial schedule's step, too, and replay it in the order of its stream, in that of its data and, where batches are
    /// prepared ahead, beside the next one's preparation.
    #[arg(long)]
    graph: bool,
    /// Write every figure as JSON; - is standard output, here and below.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a trace for Perfetto or chrome://tracing.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Write a page with the lanes drawn.
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    #[command(flatten)]
    ranks: RankArgs,
}

pub(super) fn run(args: &Args, printer: &mut Printer) -> Result<bool, Failure> {
    if args.workload.as_deref() == Some(ranks::FORUM) {
        let options = rank_options(args)?;
        let outputs = Output::open([&args.json, &args.trace, &args.report], printer)?;
        return ranks::run(&options, outputs, printer);
    }
    if let Some(name) = args.ranks.given() {
        return Err(Failure::Usage(format!("{name} is for {} alone", ranks::FORUM)));
    }
    let workload = workload(args.workload.as_deref(), args.scale)?;
    let device = device(&args.device)?;
    let defaults = CompareOptions { steps: 1000, warmup: 200, traced: 32, explored: 0, ..Default::default() };
    let steps = args.steps.unwrap_or(defaults.steps);
    let options = CompareOptions {
        steps,
        traced: defaults.traced.min(steps),
        warmup: args.warmup.unwrap_or(defaults.warmup),
        seed: args.seed.unwrap_or(defaults.seed),
        captured: args.graph,
        ..defaults
    };
    let (streams, batches) =
        (or(&args.streams, options.streams), or(&args.batch, workload.info().compared_batch));
    let all: Vec<(usize, CompareOptions)> = streams
        .iter()
        .flat_map(|&streams| batches.iter().map(move |&batch| (batch, streams)))
        .map(|(batch, streams)| (batch, CompareOptions { streams, ..options.clone() }))
        .collect();
    all.iter().try_for_each(|(batch, options)| check(workload, *batch, options))?;
    if let Some(&largest) = batches.iter().max().filter(|_| all.len() > 1) {
        check_rows(largest, &workload.data_for(largest, options.seed, &device)?.0)?;
    }
    if all.len() > 1 && args.trace.is_some() {
        return Err(Failure::Usage("--trace takes one comparison, not several batches or streams".into()));
    }
    let outputs = Output::open([&args.json, &args.trace, &args.report], printer)?;
    let saves = outputs.iter().any(Option::is_some);
    let mut found = Vec::with_capacity(all.len());
    for (batch, options) in all {
        introduce(workload, &device, batch, &options, printer)?;
        printer.check_read(saves)?;
        let report = compare_with_bar(workload, &device, batch, options)?;
        printer.text(&report)?;
        printer.check_read(saves)?;
        found.push(One { batch, report });
    }
    if let [_, _, ..] = &found[..] {
        printer.empty_line()?;
        printer.text(&sweep::table(&found))?;
    }
    let [json, trace, report] = outputs;
    Output::save(json, || {
        let value = match &found[..] {
            [one] => to_json(workload, &device, one),
            several => several.iter().map(|one| to_json(workload, &device, one)).collect(),
        };
        format!("{value:#}\n")
    })?;
    if let (Some(output), [one]) = (trace, &found[..]) {
        output.write(&one.report.trace().to_json().to_string())?;
    }
    Output::save(report, || {
        let page = match &found[..] {
            [one] => one.report.page(),
            several => sweep::report(several, workload.info().about),
        };
        page.html()
    })?;
    Ok(found.iter().all(|one| one.report.is_identical()))
}

/// The figures, with what the workload was given.
fn to_json(workload: &dyn Workload, device: &Device, one: &One) -> Value {
    let mut value = one.report.to_json();
    value["batch"] = one.batch.into();
    value["scale"] = workload.scale(device).map(|scale| scale.to_string()).into();
    value
}

/// The options of a comparison of ranks.
fn rank_options(args: &Args) -> Result<RankOptions, Failure> {
    let elsewhere = [
        ("--streams", !args.streams.is_empty()),
        ("--scale", args.scale.is_some()),
        ("--graph", args.graph),
        ("several of --batch", args.batch.len() > 1),
        ("--device", !["auto", "cpu"].contains(&args.device.as_str())),
    ];
    if let Some((name, _)) = elsewhere.into_iter().find(|(_, is_given)| *is_given) {
        let forum = ranks::FORUM;
        return Err(Failure::Usage(format!("{name} is not for {forum}, whose ranks are threads on the CPU")));
    }
    let mut options = args.ranks.options();
    options.batch = args.batch.first().copied().unwrap_or(options.batch);
    options.steps = args.steps.unwrap_or(options.steps);
    options.warmup = args.warmup.unwrap_or(options.warmup);
    options.traced = options.traced.min(options.steps);
    options.seed = args.seed.unwrap_or(options.seed);
    Ok(options)
}

/// What was asked for, or the one default.
fn or(asked: &[usize], default: usize) -> Vec<usize> {
    if asked.is_empty() { vec![default] } else { asked.to_vec() }
}

fn compare_with_bar(
    workload: &dyn Workload,
    device: &Device,
    batch: usize,
    options: CompareOptions,
) -> Result<ComparisonReport, Failure> {
    let bar = progress_bar(0, "");
    let comparison = comparison(workload, device, batch, options)?.progress(|done, total| {
        bar.set_length(total as u64);
        bar.set_position(done as u64);
    });
    let found = comparison.run();
    bar.finish_and_clear();
    let mut found = found?;
    // What a program would have to give for more schedules is not up to the user here.
    found.diagnosis.retain(|finding| finding.code != "left-out");
    Ok(found)
}

/// Says what is compared, before it is.
fn introduce(
    workload: &dyn Workload,
    device: &Device,
    batch: usize,
    options: &CompareOptions,
    printer: &mut Printer,
) -> Result<(), Failure> {
    let threads = match device.kind() {
        DeviceKind::Cpu => format!(" with {} threads", device.threads()),
        _ => String::new(),
    };
    let batches = workload.overlap().batches(options.streams);
    let scale = workload.scale(device).map_or(String::new(), |scale| format!(" at scale {scale}"));
    printer.line(format_args!("{}: {}", workload.name(), workload.info().about))?;
    printer.line(format_args!(
        "device {}{threads}, {batches} batch{} of {batch} rows a step{scale}, {} steps after {} of warm-up, seed {}",
        device.name(),
        if batches == 1 { "" } else { "es" },
        options.steps,
        options.warmup,
        options.seed
    ))?;
    printer.empty_line()
}
