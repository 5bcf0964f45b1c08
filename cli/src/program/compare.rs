//! `streamgrad compare`: runs a comparison and shows it.

use std::path::PathBuf;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use streamgrad::DeviceKind;
use streamgrad::compare::{
    CapturedReport, CompareOptions, Comparison, Finding, Quantiles, Scale, ScheduleReport, Workload, compare,
};
use streamgrad::profile::Trace;

use super::output::{Output, Printer};
use super::ranks::{self, RankArgs};
use super::table::Table;
use super::{Failure, device, positive, report, sweep, workload, workload_help};

#[derive(clap::Args)]
pub(super) struct Args {
    #[arg(help = workload_help(" or, on ranks, forum"))]
    workload: Option<String>,
    /// auto, cpu or cuda:N.
    #[arg(long, default_value = "auto")]
    pub(super) device: String,
    /// Streams of the concurrent schedule [default: 2]; where they are lanes, also the batches of a step. Several numbers, with
    /// commas between them, are compared one after the other.
    #[arg(long, allow_negative_numbers = true, value_name = "N,..", value_parser = positive, value_delimiter = ',')]
    pub(super) streams: Vec<usize>,
    /// Rows of one batch [default: the workload's]; several numbers as for streams.
    #[arg(long, allow_negative_numbers = true, value_name = "B,..", value_parser = positive, value_delimiter = ',')]
    pub(super) batch: Vec<usize>,
    /// Size of the images of encoder-decoder, augment and branches: tiny, 16 by 16, small, 64 by 64, or article, 256 by 256 [default:
    /// small on a CPU, else article; article for branches].
    #[arg(long, value_name = "SCALE")]
    pub(super) scale: Option<Scale>,
    /// Steps to measure.
    #[arg(long, allow_negative_numbers = true, value_name = "N", value_parser = positive)]
    pub(super) steps: Option<usize>,
    /// Steps before them.
    #[arg(long, allow_negative_numbers = true, value_name = "N")]
    pub(super) warmup: Option<usize>,
    /// Seed of parameters, split and shuffles.
    #[arg(long, allow_negative_numbers = true, value_name = "S")]
    pub(super) seed: Option<u64>,
    /// Capture the serial schedule's step, too, and replay it in the order of its stream, in that of its data and, where batches are
    /// prepared ahead, beside the next one's preparation.
    #[arg(long)]
    pub(super) graph: bool,
    /// Write every figure as JSON; - is standard output, here and below.
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
    /// Write a trace for Perfetto or chrome://tracing.
    #[arg(long, value_name = "FILE")]
    pub(super) trace: Option<PathBuf>,
    /// Write a page with the lanes drawn.
    #[arg(long, value_name = "FILE.html")]
    pub(super) report: Option<PathBuf>,
    #[command(flatten)]
    pub(super) ranks: RankArgs,
}

pub(super) fn run(args: &Args, printer: &mut Printer) -> Result<bool, Failure> {
    if args.workload.as_deref() == Some(ranks::FORUM) {
        return ranks::run(args, printer);
    }
    if let Some(name) = args.ranks.given() {
        return Err(Failure::Usage(format!("{name} is for {} alone", ranks::FORUM)));
    }
    let default = workloads::ALL.first().map_or("", |first| first.name());
    let workload = workload(args.workload.as_deref().unwrap_or(default), args.scale)?;
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
    Output::distinct([&args.json, &args.trace, &args.report])?;
    let output = |path: &Option<PathBuf>| path.as_deref().map(Output::new).transpose();
    let outputs = [output(&args.json)?, output(&args.trace)?, output(&args.report)?];
    if outputs.iter().flatten().any(|output| matches!(output, Output::Stdout)) {
        printer.use_stderr();
    }
    let saves = outputs.iter().any(Option::is_some);
    let mut found = Vec::with_capacity(all.len());
    for options in &all {
        introduce(workload, options, printer)?;
        printer.check_read(saves)?;
        let one = compare_with_bar(workload, options)?;
        show(&one, printer)?;
        printer.check_read(saves)?;
        found.push(one);
    }
    if let [_, _, ..] = &found[..] {
        printer.empty_line()?;
        for line in sweep::table(&found).lines() {
            printer.line(format_args!("{line}"))?;
        }
    }
    let [json, trace, report] = outputs;
    if let Some(output) = json {
        let value = match &found[..] {
            [one] => to_json(one),
            several => several.iter().map(to_json).collect(),
        };
        output.write(&format!("{value:#}\n"))?;
    }
    if let (Some(output), [one]) = (trace, &found[..]) {
        output.write(&traced(one).to_json().to_string())?;
    }
    if let Some(output) = report {
        let page = match &found[..] {
            [one] => report::of(one, workload.about(), &figures(one), &verdicts(one)),
            several => sweep::report(several, workload.about()),
        };
        output.write(&page.html())?;
    }
    Ok(found.iter().all(|one| one.identical_losses && one.identical_parameters))
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
    // Hidden unless standard error is a terminal.
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} step {pos} of {len}") {
        bar.set_style(style);
    }
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
    printer.line(format_args!("{}: {}", workload.name(), workload.about()))?;
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

fn show(found: &Comparison, printer: &mut Printer) -> Result<(), Failure> {
    for line in figures(found).lines() {
        printer.line(format_args!("{line}"))?;
    }
    printer.empty_line()?;
    for line in verdicts(found).lines() {
        printer.line(format_args!("{line}"))?;
    }
    printer.empty_line()?;
    printer.line(format_args!("diagnosis"))?;
    for Finding { code, message, .. } in &found.diagnosis {
        for line in wrapped(code, message) {
            printer.line(format_args!("{line}"))?;
        }
    }
    Ok(())
}

/// A finding's lines.
pub(super) fn wrapped(code: &str, message: &str) -> Vec<String> {
    let line = |(number, line): (usize, String)| {
        let label = if number == 0 { format!("{code}:") } else { String::new() };
        format!("  {label:<23} {line}")
    };
    wrap(message, TEXT_WIDTH).into_iter().enumerate().map(line).collect()
}

const TEXT_WIDTH: usize = 84;

/// Breaks a text between words.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

fn figures(found: &Comparison) -> Table {
    let mut table = Table::new(1);
    let mut row = |name: &str, value: &dyn Fn(&ScheduleReport) -> String| {
        table.row(std::iter::once(name.to_owned()).chain(found.schedules().map(value)));
    };
    // A replay is one command, whatever runs in it.
    let within =
        |s: &ScheduleReport, value: String| if s.captured.is_some() { "-".to_owned() } else { value };
    row("", &|s| s.name.to_owned());
    row("streams", &|s| s.streams.to_string());
    row("step, median (ms)", &|s| format!("{:.3}", s.step_ms.median));
    row("step, p10 to p90 (ms)", &|s| format!("{:.3} to {:.3}", s.step_ms.p10, s.step_ms.p90));
    row("launched after (ms)", &|s| format!("{:.3}", s.launch_ms));
    row("steps per second", &|s| format!("{:.0}", s.steps_per_s()));
    row("busy (% of the wall)", &|s| format!("{:.1}", 100.0 * s.profile.busy));
    row("overlap (% of busy)", &|s| within(s, format!("{:.1}", 100.0 * s.profile.overlap)));
    row("commands, total (ms a step)", &|s| format!("{:.3}", s.profile.kernel_ms));
    row("commands, longest chain (ms)", &|s| within(s, format!("{:.3}", s.profile.critical_path_ms)));
    row("launches a step", &|s| format!("{:.1}", s.launches_per_step));
    row("waits a step", &|s| format!("{:.1}", s.waits_per_step));
    row("events a step", &|s| format!("{:.1}", s.events_per_step));
    row("host syncs a step", &|s| format!("{:.1}", s.host_syncs_per_step));
    row("peak allocated (MiB)", &|s| format!("{:.2}", mib(s.peak_allocated_bytes)));
    row("peak reserved (MiB)", &|s| format!("{:.2}", mib(s.peak_reserved_bytes)));
    row("driver allocations after warm-up", &|s| s.driver_allocations.to_string());
    table
}

fn mib(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn verdicts(found: &Comparison) -> Table {
    let equal = |equal: bool| if equal { "bit-equal" } else { "NOT EQUAL" };
    let mut table = Table::new(2);
    let spread = found.speedup_spread;
    table.row([
        "speed-up".to_owned(),
        format!(
            "{:.2}x (blocks of steps: {:.2} to {:.2}){}",
            found.speedup,
            spread.p10,
            spread.p90,
            if found.is_disturbed() { ", on a busy machine" } else { "" }
        ),
    ]);
    let efficiency = match found.efficiency {
        None => "the bound leaves no room".to_owned(),
        Some(_) if found.speedup < 1.0 => "none: the concurrent schedule is the slower one".to_owned(),
        Some(share) => {
            format!(
                "{:.0} % of what kernels and copies alone would allow ({:.3} ms)",
                100.0 * share,
                found.bound_ms
            )
        }
    };
    table.row(["efficiency".to_owned(), efficiency]);
    for schedule in found.schedules() {
        if let Some((speedup, spread)) = compared(schedule) {
            let bits = match (&schedule.captured, &schedule.hosted) {
                (Some(one), _) => equal(one.identical_losses && one.identical_parameters).to_owned(),
                (_, Some(one)) if !(one.identical_losses && one.identical_parameters) => {
                    format!("losses differ by {:.0e} of themselves at most", one.loss_difference)
                }
                _ => equal(true).to_owned(),
            };
            let share = found.captured_efficiency(schedule).zip(found.work_ms).map(|(share, work_ms)| {
                format!("{:.0} % of the room above the serial kernels' {work_ms:.3} ms, ", 100.0 * share)
            });
            let verdict = format!(
                "{speedup:.2}x (blocks of steps: {:.2} to {:.2}), {}{bits}",
                spread.p10,
                spread.p90,
                share.unwrap_or_default()
            );
            table.row([schedule.name.to_owned(), verdict]);
        }
    }
    table.row([
        "losses".to_owned(),
        format!("{} in {} steps", equal(found.identical_losses), found.concurrent.losses.len()),
    ]);
    table.row(["parameters".to_owned(), equal(found.identical_parameters).to_owned()]);
    table.row(["accuracy".to_owned(), format!("{:.1} % on held-out rows", 100.0 * found.accuracy)]);
    table
}

/// How much faster than the serial schedule one is that is neither that nor the concurrent one.
pub(super) fn compared(schedule: &ScheduleReport) -> Option<(f64, Quantiles)> {
    let captured = schedule.captured.map(|one| (one.speedup, one.speedup_spread));
    captured.or(schedule.hosted.map(|one| (one.speedup, one.speedup_spread)))
}

fn to_json(found: &Comparison) -> Value {
    let options = &found.options;
    let findings = found.diagnosis.iter().map(|f| json!({ "code": f.code, "message": f.message }));
    json!({
        "workload": found.workload,
        "device": found.device,
        "threads": found.threads,
        "streams": options.streams,
        "batch": options.batch,
        "scale": found.scale.map(|scale| scale.to_string()),
        "steps": options.steps,
        "warmup": options.warmup,
        "seed": options.seed,
        "schedules": found.schedules().map(|schedule| schedule_json(found, schedule)).collect::<Vec<_>>(),
        "speedup": found.speedup,
        "speedup_spread": quantiles_json(found.speedup_spread),
        "bound_ms": found.bound_ms,
        "work_ms": found.work_ms,
        "efficiency": found.efficiency,
        "inflation": found.inflation,
        "alone_ms": found.alone_ms,
        "identical_losses": found.identical_losses,
        "identical_parameters": found.identical_parameters,
        "accuracy": found.accuracy,
        "held_out_loss": found.held_out_loss,
        "diagnosis": findings.collect::<Vec<_>>(),
    })
}

fn schedule_json(found: &Comparison, schedule: &ScheduleReport) -> Value {
    let profile = &schedule.profile;
    let ops = (profile.ops.iter())
        .map(|op| json!({ "op": op.op, "per_step": op.count, "mean_us": 1e3 * op.mean_ms }));
    json!({
        "name": schedule.name,
        "streams": schedule.streams,
        "step_ms": quantiles_json(schedule.step_ms),
        "launch_ms": schedule.launch_ms,
        "steps_per_s": schedule.steps_per_s(),
        "busy_pct": 100.0 * profile.busy,
        "overlap_pct": 100.0 * profile.overlap,
        "commands_ms": profile.kernel_ms,
        "critical_path_ms": profile.critical_path_ms,
        "launches_per_step": schedule.launches_per_step,
        "waits_per_step": schedule.waits_per_step,
        "waits_elided_per_step": schedule.waits_elided_per_step,
        "events_per_step": schedule.events_per_step,
        "host_syncs_per_step": schedule.host_syncs_per_step,
        "peak_allocated_bytes": schedule.peak_allocated_bytes,
        "peak_reserved_bytes": schedule.peak_reserved_bytes,
        "driver_allocations": schedule.driver_allocations,
        "ops": ops.collect::<Vec<_>>(),
        "losses": schedule.losses,
        "captured": schedule.captured.as_ref().map(|captured| {
            captured_json(captured, found.captured_efficiency(schedule))
        }),
        "hosted": schedule.hosted.map(|hosted| {
            json!({
                "speedup": hosted.speedup,
                "speedup_spread": quantiles_json(hosted.speedup_spread),
                "identical_losses": hosted.identical_losses,
                "identical_parameters": hosted.identical_parameters,
                "loss_difference": hosted.loss_difference,
            })
        }),
    })
}

fn captured_json(captured: &CapturedReport, efficiency: Option<f64>) -> Value {
    let plan = &captured.plan;
    json!({
        "commands": plan.commands,
        "edges": plan.edges,
        "critical_path": plan.critical_path,
        "widest": plan.widest,
        "gain": plan.gain,
        "planned_bytes": plan.planned_bytes,
        "needed_bytes": plan.needed_bytes,
        "captures": captured.captures,
        "capture_ms": captured.capture_ms,
        "speedup": captured.speedup,
        "efficiency": efficiency,
        "speedup_spread": quantiles_json(captured.speedup_spread),
        "identical_losses": captured.identical_losses,
        "identical_parameters": captured.identical_parameters,
    })
}

pub(super) fn quantiles_json(Quantiles { median, p10, p90 }: Quantiles) -> Value {
    json!({ "median": median, "p10": p10, "p90": p90 })
}
