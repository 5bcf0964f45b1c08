//! `streamgrad compare`: runs a comparison and shows it.

use std::path::PathBuf;

use streamgrad::DeviceKind;
use streamgrad::compare::{CompareOptions, Comparison, Scale, ScheduleReport, Workload, compare};
use streamgrad::profile::Trace;
use workloads::RankOptions;

use super::args::{device, positive, workload, workload_help};
use super::failure::Failure;
use super::output::{Output, Printer, progress_bar};
use super::ranks::{self, RankArgs};
use super::show::{figures, results, to_json, verdicts};
use super::{report, sweep};

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
    let defaults = CompareOptions::new(workload, &device(&args.device)?);
    let steps = args.steps.unwrap_or(defaults.steps);
    let of = |streams, batch| CompareOptions {
        streams,
        batch,
        steps,
        traced: defaults.traced.min(steps),
        warmup: args.warmup.unwrap_or(defaults.warmup),
        seed: args.seed.unwrap_or(defaults.seed),
        graph: args.graph,
        ..defaults.clone()
    };
    let (streams, batches) = (or(&args.streams, defaults.streams), or(&args.batch, defaults.batch));
    let all: Vec<CompareOptions> = streams
        .iter()
        .flat_map(|&streams| batches.iter().map(move |&batch| (streams, batch)))
        .map(|(streams, batch)| of(streams, batch))
        .collect();
    all.iter().try_for_each(|options| options.check(workload))?;
    if let Some(largest) = all.iter().max_by_key(|options| options.batch).filter(|_| all.len() > 1) {
        largest.check_rows(workload)?;
    }
    if all.len() > 1 && args.trace.is_some() {
        return Err(Failure::Usage("--trace takes one comparison, not several batches or streams".into()));
    }
    let outputs = Output::open([&args.json, &args.trace, &args.report], printer)?;
    let saves = outputs.iter().any(Option::is_some);
    let mut found = Vec::with_capacity(all.len());
    for options in &all {
        introduce(workload, options, printer)?;
        printer.check_read(saves)?;
        let one = compare_with_bar(workload, options)?;
        results([&figures(&one), &verdicts(&one)], "diagnosis", &one.diagnosis, printer)?;
        printer.check_read(saves)?;
        found.push(one);
    }
    if let [_, _, ..] = &found[..] {
        printer.empty_line()?;
        printer.table(&sweep::table(&found))?;
    }
    let [json, trace, report] = outputs;
    Output::save(json, || {
        let value = match &found[..] {
            [one] => to_json(one),
            several => several.iter().map(to_json).collect(),
        };
        format!("{value:#}\n")
    })?;
    if let (Some(output), [one]) = (trace, &found[..]) {
        output.write(&traced(one).to_json().to_string())?;
    }
    Output::save(report, || {
        let page = match &found[..] {
            [one] => report::of(one, workload.info().about, &figures(one), &verdicts(one)),
            several => sweep::report(several, workload.info().about),
        };
        page.html()
    })?;
    Ok(found.iter().all(|one| one.identical_losses && one.identical_parameters))
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

/// The traced steps, a process for each schedule. A replay is one slice; on a CPU, tracks of their own have its commands.
fn traced(found: &Comparison) -> Trace {
    let mut trace = Trace::new();
    for schedule in found.schedules() {
        let ScheduleReport { name, streams, captured, .. } = schedule;
        let name = match captured {
            Some(found) => format!("{name} (a replay of {} commands)", found.plan.commands),
            None => format!("{name} ({streams} streams)"),
        };
        trace.add(&name, &schedule.recorded());
    }
    trace
}

fn compare_with_bar(workload: &dyn Workload, options: &CompareOptions) -> Result<Comparison, Failure> {
    let bar = progress_bar(0, "");
    let found = compare(workload, options, |done, total| {
        bar.set_length(total as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    Ok(found?)
}

/// Says what is compared, before it is.
fn introduce(
    workload: &dyn Workload,
    options: &CompareOptions,
    printer: &mut Printer,
) -> Result<(), Failure> {
    let device = &options.device;
    let threads = match device.kind() {
        DeviceKind::Cpu => format!(" with {} threads", device.threads()),
        _ => String::new(),
    };
    let batches = workload.overlap().batches(options.streams);
    let scale = report::at_scale(workload.scale(device));
    printer.line(format_args!("{}: {}", workload.name(), workload.info().about))?;
    printer.line(format_args!(
        "device {}{threads}, {batches} batch{} of {} rows a step{scale}, {} steps after {} of warm-up, seed {}",
        device.name(),
        if batches == 1 { "" } else { "es" },
        options.batch,
        options.steps,
        options.warmup,
        options.seed
    ))?;
    printer.empty_line()
}
