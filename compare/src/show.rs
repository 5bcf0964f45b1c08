//! A comparison as text and as JSON.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use ::profile::{Table, Trace};
use device::Result;
use serde_json::{Value, json};

use crate::chosen::HOSTED;
use crate::{CapturedReport, ComparisonReport, ScheduleReport, page};

impl fmt::Display for ComparisonReport {
    /// The figures of all schedules side by side, what follows from them, and the diagnosis.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n{}\ndiagnosis", self.figures(), self.verdicts())?;
        self.diagnosis.iter().try_for_each(|finding| writeln!(f, "{finding}"))
    }
}

impl ComparisonReport {
    /// The schedules side by side.
    pub fn figures(&self) -> Table {
        let mut table = Table::new(1);
        let mut row = |name: &str, value: &dyn Fn(&ScheduleReport) -> String| {
            table.row(std::iter::once(name.to_owned()).chain(self.schedules().map(value)));
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

    /// What follows from the figures.
    pub fn verdicts(&self) -> Table {
        let equal = |equal: bool| if equal { "bit-equal" } else { "NOT EQUAL" };
        let mut table = Table::new(2);
        if let Some(gain) = self.gain() {
            let busy = if self.is_disturbed() { ", on a busy machine" } else { "" };
            table.row(["speed-up".to_owned(), format!("{gain}{busy}")]);
        }
        if let Some(limits) = self.limits.filter(|_| self.gain().is_some_and(|gain| gain.speedup.is_some())) {
            let efficiency = match limits.efficiency {
                None => "the bound leaves no room".to_owned(),
                Some(0.0) => "none: the concurrent schedule is the slower one".to_owned(),
                Some(share) => {
                    let share = 100.0 * share;
                    let bound_ms = limits.bound_ms;
                    format!("{share:.0} % of what kernels and copies alone would allow ({bound_ms:.3} ms)")
                }
            };
            table.row(["efficiency".to_owned(), efficiency]);
        }
        for schedule in &self.others {
            let Some(gain) = schedule.gain else { continue };
            let bits = match schedule.captured {
                None if !gain.is_identical() && schedule.name == HOSTED && self.is_identical() => {
                    format!("losses differ by {:.0e} of themselves at most", gain.loss_difference)
                }
                _ => equal(gain.is_identical()).to_owned(),
            };
            let work_ms = self.limits.and_then(|limits| limits.work_ms);
            let share = self.captured_efficiency(schedule).zip(work_ms).map(|(share, work_ms)| {
                format!("{:.0} % of the room above the serial kernels' {work_ms:.3} ms, ", 100.0 * share)
            });
            table.row([schedule.name.to_owned(), format!("{gain}, {}{bits}", share.unwrap_or_default())]);
        }
        let steps = self.options.steps;
        let all = [
            ("losses", self.identical_losses),
            ("results", self.identical_results),
            ("parameters", self.identical_parameters),
        ];
        for (what, is_equal) in all.into_iter().filter_map(|(what, is_equal)| Some((what, is_equal?))) {
            table.row([what.to_owned(), format!("{} in {steps} steps", equal(is_equal))]);
        }
        if self.identical_orders == Some(false) {
            table.row(["other orders", equal(false)]);
        }
        if let Some(explored) = &self.explored {
            let tried = format!("bit-equal in {} of them", explored.distinct_orders);
            table.row(["other orders".to_owned(), tried]);
        }
        for (name, value) in &self.metrics {
            table.row([name.clone(), format!("{value:.4}")]);
        }
        table
    }

    /// Every figure.
    pub fn to_json(&self) -> Value {
        let (options, gain, limits) = (&self.options, self.gain(), self.limits);
        let findings = self.diagnosis.iter().map(|f| json!({ "code": f.code, "message": f.message }));
        json!({
            "workload": self.name,
            "device": self.device,
            "threads": self.threads,
            "streams": options.streams,
            "batches_per_step": self.batches_per_step,
            "steps": options.steps,
            "warmup": options.warmup,
            "seed": options.seed,
            "schedules": self.schedules().map(|schedule| schedule_json(self, schedule)).collect::<Vec<_>>(),
            "speedup": gain.and_then(|gain| gain.speedup),
            "speedup_spread": gain.map(|gain| gain.speedup_spread),
            "bound_ms": limits.map(|limits| limits.bound_ms),
            "work_ms": limits.and_then(|limits| limits.work_ms),
            "efficiency": limits.and_then(|limits| limits.efficiency),
            "inflation": limits.map(|limits| limits.inflation),
            "alone_ms": limits.map(|limits| limits.alone_ms),
            "identical_losses": self.identical_losses,
            "identical_results": self.identical_results,
            "identical_parameters": self.identical_parameters,
            "identical_orders": self.identical_orders,
            "explored": self.explored.map(|explored| explored.distinct_orders),
            "metrics": self.metrics.iter().cloned().collect::<BTreeMap<_, _>>(),
            "diagnosis": findings.collect::<Vec<_>>(),
        })
    }

    /// Writes a page of HTML with the lanes drawn.
    ///
    /// # Errors
    /// `Io` if the file cannot be written.
    pub fn write_report(&self, path: impl AsRef<Path>) -> Result<()> {
        self.page().write(path)
    }

    /// That page.
    pub fn page(&self) -> ::profile::report::Report {
        page::of(self)
    }

    /// Writes the [traced steps](Self::trace), for Perfetto or chrome://tracing.
    ///
    /// # Errors
    /// `Io` if the file cannot be written.
    pub fn write_trace(&self, path: impl AsRef<Path>) -> Result<()> {
        self.trace().write(path)
    }

    /// The traced steps, a process for each schedule. A replay is one slice; on a CPU, tracks of their own have its commands.
    pub fn trace(&self) -> Trace {
        let mut trace = Trace::new();
        for schedule in self.schedules() {
            let ScheduleReport { name, streams, captured, .. } = schedule;
            let name = match captured {
                Some(found) => format!("{name} (a replay of {} commands)", found.plan.commands),
                None => format!("{name} ({streams} streams)"),
            };
            trace.add(&name, &schedule.recorded());
        }
        trace
    }
}

fn mib(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn schedule_json(found: &ComparisonReport, schedule: &ScheduleReport) -> Value {
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
        "gain": schedule.gain,
        "captured": schedule.captured.map(|captured| captured_json(captured, found.captured_efficiency(schedule))),
    })
}

fn captured_json(captured: CapturedReport, efficiency: Option<f64>) -> Value {
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
        "efficiency": efficiency,
    })
}
