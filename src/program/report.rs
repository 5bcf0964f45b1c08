//! A comparison as one page of HTML.

use std::collections::HashMap;

use streamgrad::Moment;
use streamgrad::device::{CommandRecord, Recording};
use streamgrad::report::{Bars, Line, Plot, Report, Slice, Timeline};
use streamgrad::workloads::compare::{Comparison, Finding, ScheduleReport};

use super::table::Table;

/// The page. `figures` and `verdicts` are the tables that the terminal shows.
pub(super) fn of(found: &Comparison, about: &str, figures: &Table, verdicts: &Table) -> Report {
    let options = &found.options;
    let title = format!("{}: {:.2}x on {} streams", found.workload, found.speedup, options.streams);
    let about = format!(
        "{about}. Device {}, {} threads, batches of {} rows, {} steps, seed {}.",
        found.device, found.threads, options.batch, options.steps, options.seed
    );
    let report = Report::new(title).about(about);
    let pair = |row: &Vec<String>| match &row[..] {
        [term, text @ ..] => (term.clone(), text.concat()),
        [] => Default::default(),
    };
    let report = report.notes("Result", verdicts.rows().iter().map(pair).collect());
    let report = found.schedules().filter_map(timeline).fold(report, Report::timeline);
    let note = |Finding { code, message, .. }: &Finding| ((*code).to_owned(), message.clone());
    report
        .bars(shares(found))
        .notes("Diagnosis", found.diagnosis.iter().map(note).collect())
        .table("Figures", figures.rows().to_vec())
        .plot(losses(found))
        .table("Ops", ops(found))
}

/// The traced step of median length.
fn middle_step(schedule: &ScheduleReport) -> Option<&Recording> {
    let mut steps: Vec<&Recording> = schedule.recordings.iter().collect();
    steps.sort_by_key(|step| step.wall_ns);
    steps.get(steps.len() / 2).copied()
}

/// The streams that a step uses, with their names.
fn streams<'a>(schedule: &'a ScheduleReport, step: &'a Recording) -> Vec<&'a (streamgrad::StreamId, String)> {
    let used = |id| step.commands.iter().any(|command| command.moment.stream == id);
    schedule.streams_by_name.iter().filter(|(id, _)| used(*id)).collect()
}

fn timeline(schedule: &ScheduleReport) -> Option<Timeline> {
    let step = middle_step(schedule)?;
    let streams = streams(schedule, step);
    let replay = if schedule.captured.is_some() { "; a replay is one command" } else { "" };
    let row = |command: &CommandRecord| {
        streams.iter().position(|(id, _)| *id == command.moment.stream).unwrap_or(streams.len())
    };
    let slice = |command: &CommandRecord| Slice {
        row: row(command),
        start_ns: command.start_ns,
        end_ns: command.end_ns,
        name: command.op.to_owned(),
        ..Slice::default()
    };
    let places: HashMap<Moment, usize> =
        step.commands.iter().enumerate().map(|(place, command)| (command.moment, place)).collect();
    let arrows = step.waits.iter().filter_map(|wait| {
        // What an earlier step launched is not in this one.
        Some((*places.get(&wait.awaited)?, *places.get(&wait.waiter)?))
    });
    Some(Timeline {
        title: format!("{}, {:.3} ms traced{replay}", schedule.name, step.wall_ns as f64 / 1e6),
        wall_ns: step.wall_ns,
        rows: streams.iter().map(|(_, name)| name.clone()).collect(),
        slices: step.commands.iter().map(slice).collect(),
        arrows: arrows.collect(),
    })
}

/// How long each stream of each schedule ran commands in a step.
fn shares(found: &Comparison) -> Bars {
    let mut rows = Vec::new();
    for schedule in found.schedules() {
        let Some(step) = middle_step(schedule) else { continue };
        for (id, name) in streams(schedule, step) {
            let ns = |command: &CommandRecord| command.end_ns.saturating_sub(command.start_ns);
            let busy: u64 = step.commands.iter().filter(|command| command.moment.stream == *id).map(ns).sum();
            let idle = step.wall_ns.saturating_sub(busy);
            let parts = [("busy", busy), ("idle", idle)].map(|(what, ns)| (what.to_owned(), ns as f64 / 1e6));
            rows.push((format!("{}, {name}", schedule.name), parts.into()));
        }
    }
    Bars { title: "Streams".into(), unit: "ms".into(), rows }
}

fn losses(found: &Comparison) -> Plot {
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

fn ops(found: &Comparison) -> Vec<Vec<String>> {
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
