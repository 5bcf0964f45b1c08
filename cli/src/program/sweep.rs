//! Comparisons of several sizes of batches and numbers of streams, beside one another.

use streamgrad::compare::{ComparisonReport, Finding, ScheduleReport};
use streamgrad::profile::Table;
use streamgrad::profile::report::{Line, Plot, Report};

/// A comparison with batches of so many rows.
pub(super) struct One {
    pub(super) batch: usize,
    pub(super) report: ComparisonReport,
}

/// The schedules beside the serial and the concurrent one, how much faster than the serial one they are, and the part of the room that
/// they use, if that is known.
fn more(found: &ComparisonReport) -> impl Iterator<Item = (&'static str, String)> {
    found.others.iter().filter_map(|schedule| {
        let share =
            found.captured_efficiency(schedule).map(|part| format!(", {:.0} % of the room", 100.0 * part));
        let speedup = times(schedule.gain?.speedup);
        Some((schedule.name, format!("{speedup}{}", share.unwrap_or_default())))
    })
}

/// A speed-up, unless its measurements disagree.
fn times(speedup: Option<f64>) -> String {
    speedup.map_or("-".into(), |speedup| format!("{speedup:.2}x"))
}

/// A line for each comparison.
pub(super) fn table(all: &[One]) -> Table {
    let mut table = Table::new(0);
    let mut head = vec![
        "batch",
        "streams",
        "serial (ms)",
        "concurrent (ms)",
        "speed-up",
        "p10 to p90",
        "efficiency",
        "bits",
    ];
    let mut others: Vec<&str> = Vec::new();
    all.iter().flat_map(|one| more(&one.report)).for_each(|(name, _)| {
        if !others.contains(&name) {
            others.push(name);
        }
    });
    head.extend(&others);
    table.row(head);
    for One { batch, report: found } in all {
        let Some((concurrent, gain)) = found.concurrent.as_ref().zip(found.gain()) else { continue };
        let efficiency = found.limits.and_then(|limits| limits.efficiency);
        let row = [
            batch.to_string(),
            found.options.streams.to_string(),
            format!("{:.3}", found.serial.step_ms.median),
            format!("{:.3}", concurrent.step_ms.median),
            format!("{}{}", times(gain.speedup), if found.is_disturbed() { " (busy)" } else { "" }),
            format!("{:.2} to {:.2}", gain.speedup_spread.p10, gain.speedup_spread.p90),
            efficiency.map_or("-".to_owned(), |part| format!("{:.0} %", 100.0 * part)),
            if found.is_identical() { "equal" } else { "NOT EQUAL" }.to_owned(),
        ];
        // Not every size has every schedule.
        let gain = |name: &&str| {
            let found = more(found).find(|(other, _)| other == name);
            found.map_or("-".to_owned(), |(_, gain)| gain)
        };
        table.row(row.into_iter().chain(others.iter().map(gain)));
    }
    table
}

/// The page: both plots of the size of batches, with a line for each number of streams.
pub(super) fn report(all: &[One], about: &str) -> Report {
    let Some(One { report: first, .. }) = all.first() else { return Report::default() };
    let about = format!(
        "{about}. Device {}, {} threads, {} steps each.",
        first.device, first.threads, first.options.steps
    );
    let findings = all.iter().flat_map(|One { batch, report }| {
        let name = format!("batch {batch}, streams {}", report.options.streams);
        let note = move |finding: &Finding| (name.clone(), format!("{}: {}", finding.code, finding.message));
        report.diagnosis.iter().map(note)
    });
    Report::new(format!("{}: sizes of batches and numbers of streams", first.name))
        .about(about)
        .plot(plot(all, "Speed-up", "times", &|found| {
            found
                .gain()
                .and_then(|gain| gain.speedup)
                .map(|speedup| ("concurrent", speedup))
                .into_iter()
                .collect()
        }))
        .plot(plot(all, "Step, median", "ms", &|found| {
            found
                .schedules()
                .map(|schedule: &ScheduleReport| (schedule.name, schedule.step_ms.median))
                .collect()
        }))
        .table("Comparisons", table(all).rows().to_vec())
        .notes("Diagnosis", findings.collect())
}

/// Named values of each comparison, against its batch.
fn plot(
    all: &[One],
    title: &str,
    y: &str,
    values: &dyn Fn(&ComparisonReport) -> Vec<(&'static str, f64)>,
) -> Plot {
    let mut lines: Vec<Line> = Vec::new();
    for One { batch, report: found } in all {
        for (name, value) in values(found) {
            let name = format!("{name}, {} streams", found.options.streams);
            let point = (*batch as f64, value);
            match lines.iter_mut().find(|line| line.name == name) {
                Some(line) => line.points.push(point),
                None => lines.push(Line { name, points: vec![point] }),
            }
        }
    }
    lines.iter_mut().for_each(|line| line.points.sort_by(|a, b| a.0.total_cmp(&b.0)));
    Plot { title: title.into(), x: "rows of a batch".into(), y: y.into(), lines }
}
