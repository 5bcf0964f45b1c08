//! The tables and the JSON of comparisons.

use serde_json::{Value, json};
use streamgrad::compare::{CapturedReport, Comparison, Finding, Gain, Quantiles, ScheduleReport};

use super::failure::Failure;
use super::output::Printer;
use super::table::Table;

/// Shows both tables of a comparison, and what was found.
pub(super) fn results(
    tables: [&Table; 2],
    heading: &str,
    found: &[Finding],
    printer: &mut Printer,
) -> Result<(), Failure> {
    for table in tables {
        printer.table(table)?;
        printer.empty_line()?;
    }
    printer.line(format_args!("{heading}"))?;
    let mut lines = found.iter().flat_map(|finding| wrapped(finding.code, &finding.message));
    lines.try_for_each(|line| printer.line(format_args!("{line}")))
}

fn wrapped(code: &str, message: &str) -> Vec<String> {
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

pub(super) fn figures(found: &Comparison) -> Table {
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

pub(super) fn verdicts(found: &Comparison) -> Table {
    let equal = |equal: bool| if equal { "bit-equal" } else { "NOT EQUAL" };
    let mut table = Table::new(2);
    let times = |speedup: f64, spread: Quantiles| {
        format!("{speedup:.2}x (blocks of steps: {:.2} to {:.2})", spread.p10, spread.p90)
    };
    let busy = if found.is_disturbed() { ", on a busy machine" } else { "" };
    table.row(["speed-up".to_owned(), times(found.speedup, found.speedup_spread) + busy]);
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
        let Some(gain) = schedule.gain else { continue };
        let is_equal = gain.identical_losses && gain.identical_parameters;
        let bits = match schedule.captured {
            None if !is_equal => {
                format!("losses differ by {:.0e} of themselves at most", gain.loss_difference)
            }
            _ => equal(is_equal).to_owned(),
        };
        let share = found.captured_efficiency(schedule).zip(found.work_ms).map(|(share, work_ms)| {
            format!("{:.0} % of the room above the serial kernels' {work_ms:.3} ms, ", 100.0 * share)
        });
        let (faster, share) = (times(gain.speedup, gain.speedup_spread), share.unwrap_or_default());
        table.row([schedule.name.to_owned(), format!("{faster}, {share}{bits}")]);
    }
    table.row([
        "losses".to_owned(),
        format!("{} in {} steps", equal(found.identical_losses), found.concurrent.losses.len()),
    ]);
    table.row(["parameters".to_owned(), equal(found.identical_parameters).to_owned()]);
    table.row(["accuracy".to_owned(), format!("{:.1} % on held-out rows", 100.0 * found.accuracy)]);
    table
}

pub(super) fn to_json(found: &Comparison) -> Value {
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
        "speedup_spread": found.speedup_spread,
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
        "step_ms": schedule.step_ms,
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
        "captured": schedule.captured.zip(schedule.gain).map(|(captured, gain)| {
            captured_json(captured, gain, found.captured_efficiency(schedule))
        }),
        "hosted": schedule.gain.filter(|_| schedule.captured.is_none()),
    })
}

fn captured_json(captured: CapturedReport, gain: Gain, efficiency: Option<f64>) -> Value {
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
        "speedup": gain.speedup,
        "efficiency": efficiency,
        "speedup_spread": gain.speedup_spread,
        "identical_losses": gain.identical_losses,
        "identical_parameters": gain.identical_parameters,
    })
}
