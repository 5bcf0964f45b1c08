//! A comparison as one page of HTML.

use ::profile::report::{Bars, Line, Plot, Report, Timeline};
use ::profile::{Finding, Profile};
use device::Recording;

use crate::{ComparisonReport, ScheduleReport};

pub(super) fn of(found: &ComparisonReport) -> Report {
    let ComparisonReport { name, options, .. } = found;
    let speedup = found.gain().and_then(|gain| gain.speedup);
    let title = match speedup {
        Some(speedup) => format!("{name}: {speedup:.2}x on {} streams", options.streams),
        None => name.clone(),
    };
    let about = format!(
        "{}. Device {}, {} threads, {} steps, seed {}.",
        found.about, found.device, found.threads, options.steps, options.seed
    );
    let report = Report::new(title).about(about).notes("Result", found.verdicts().pairs());
    let report = found.schedules().filter_map(timeline).fold(report, Report::timeline);
    let note = |Finding { code, message, .. }: &Finding| ((*code).to_owned(), message.clone());
    report
        .bars(shares(found))
        .notes("Diagnosis", found.diagnosis.iter().map(note).collect())
        .table("Figures", found.figures().rows().to_vec())
        .plot(losses(found))
        .table("Ops", ops(found))
}

/// The traced step of median length, with the streams' names.
fn profile(schedule: &ScheduleReport) -> Option<Profile> {
    let mut steps: Vec<&Recording> = schedule.recordings.iter().collect();
    steps.sort_by_key(|step| step.wall_ns);
    let middle = *steps.get(steps.len() / 2)?;
    Some(schedule.named([middle.clone()]))
}

fn timeline(schedule: &ScheduleReport) -> Option<Timeline> {
    let replay = if schedule.captured.is_some() { "; a replay is one command" } else { "" };
    let profile = profile(schedule)?;
    Some(profile.drawing(&format!("{}, {:.3} ms traced{replay}", schedule.name, profile.wall_ms())))
}

/// How long each stream of each schedule ran commands in a step, and why it ran none.
fn shares(found: &ComparisonReport) -> Bars {
    let rows = |schedule: &ScheduleReport| {
        profile(schedule).map(|profile| profile.idle_rows(&format!("{}, ", schedule.name)))
    };
    let rows = found.schedules().filter_map(rows).flatten().collect();
    Bars { title: "Streams".into(), unit: "ms".into(), rows }
}

fn losses(found: &ComparisonReport) -> Plot {
    let line = |schedule: &ScheduleReport| Line {
        name: schedule.name.to_owned(),
        points: schedule.losses.iter().enumerate().map(|(batch, loss)| (batch as f64, *loss)).collect(),
    };
    Plot {
        title: "Loss of each batch".into(),
        x: "batch".into(),
        y: "loss".into(),
        lines: found.schedules().map(line).collect(),
    }
}

fn ops(found: &ComparisonReport) -> Vec<Vec<String>> {
    let head = ["op", "schedule", "a step", "mean (us)", "total (us)", "share (%)"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for schedule in found.schedules() {
        let total: f64 = schedule.profile.ops.iter().map(|op| op.count * op.mean_ms).sum();
        for op in &schedule.profile.ops {
            let all = op.count * op.mean_ms;
            rows.push(vec![
                op.op.to_owned(),
                schedule.name.to_owned(),
                format!("{:.1}", op.count),
                format!("{:.2}", 1e3 * op.mean_ms),
                format!("{:.1}", 1e3 * all),
                format!("{:.1}", 100.0 * all / total),
            ]);
        }
    }
    rows
}
