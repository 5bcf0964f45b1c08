//! Comparisons of several sizes of batches and numbers of streams, beside one another.

use streamgrad::compare::{Comparison, ScheduleReport};
use streamgrad::profile::report::{Line, Plot, Report};

use super::table::Table;

/// The schedules beside the serial and the concurrent one, how much faster than the serial one they are, and the part of the room that
/// they use, if that is known.
fn more(found: &Comparison) -> impl Iterator<Item = (&'static str, String)> {
    found.schedules().filter_map(|schedule| {
        let share =
            found.captured_efficiency(schedule).map(|part| format!(", {:.0} % of the room", 100.0 * part));
        Some((schedule.name, format!("{:.2}x{}", schedule.gain?.speedup, share.unwrap_or_default())))
    })
}

/// A line for each comparison.
pub(super) fn table(all: &[Comparison]) -> Table {
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
    all.iter().flat_map(more).for_each(|(name, _)| {
        if !others.contains(&name) {
            others.push(name);
        }
    });
    head.extend(&others);
    table.row(head);
    for found in all {
        let Comparison { options, serial, concurrent, speedup, speedup_spread: spread, .. } = found;
        let equal = found.identical_losses && found.identical_parameters;
        let row = [
            options.batch.to_string(),
            options.streams.to_string(),
            format!("{:.3}", serial.step_ms.median),
            format!("{:.3}", concurrent.step_ms.median),
            format!("{speedup:.2}x{}", if found.is_disturbed() { " (busy)" } else { "" }),
            format!("{:.2} to {:.2}", spread.p10, spread.p90),
            found.efficiency.map_or("no room".to_owned(), |part| format!("{:.0} %", 100.0 * part)),
            if equal { "equal" } else { "NOT EQUAL" }.to_owned(),
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
pub(super) fn report(all: &[Comparison], about: &str) -> Report {
    let Some(first) = all.first() else { return Report::default() };
    let about = format!(
        "{about}. Device {}, {} threads, {} steps each.",
        first.device, first.threads, first.options.steps
    );
    let findings = all.iter().flat_map(|found| {
        let name = format!("batch {}, streams {}", found.options.batch, found.options.streams);
        found
            .diagnosis
            .iter()
            .map(move |finding| (name.clone(), format!("{}: {}", finding.code, finding.message)))
    });
    Report::new(format!("{}: sizes of batches and numbers of streams", first.workload))
        .about(about)
        .plot(plot(all, "Speed-up", "times", &|found| vec![("concurrent", found.speedup)]))
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
    all: &[Comparison],
    title: &str,
    y: &str,
    values: &dyn Fn(&Comparison) -> Vec<(&'static str, f64)>,
) -> Plot {
    let mut lines: Vec<Line> = Vec::new();
    for found in all {
        for (name, value) in values(found) {
            let name = format!("{name}, {} streams", found.options.streams);
            let point = (found.options.batch as f64, value);
            match lines.iter_mut().find(|line| line.name == name) {
                Some(line) => line.points.push(point),
                None => lines.push(Line { name, points: vec![point] }),
            }
        }
    }
    lines.iter_mut().for_each(|line| line.points.sort_by(|a, b| a.0.total_cmp(&b.0)));
    Plot { title: title.into(), x: "rows of a batch".into(), y: y.into(), lines }
}
