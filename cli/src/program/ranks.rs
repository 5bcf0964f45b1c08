//! `streamgrad compare forum`: a model whose ranks meet in the middle of each batch, serial and overlapped.

use std::time::Duration;

use serde_json::{Value, json};
use streamgrad::comm::CommModel;
use streamgrad::profile::{Communication, Finding, Table, Trace, diagnose, report::Report};
use workloads::{RankComparison, RankOptions, RankSchedule, compare_ranks};

use super::args::{positive, rate};
use super::failure::Failure;
use super::output::{Output, Printer};

/// The name on the command line.
pub(super) const FORUM: &str = "forum";

const ABOUT: &str = "two linear layers with an all-gather between them, two batches a rank, one loss of both";

/// What concerns ranks alone.
#[derive(clap::Args)]
pub(super) struct RankArgs {
    /// Ranks of the workload forum [default: 2], threads of this process.
    #[arg(long, allow_negative_numbers = true, value_name = "N", value_parser = positive)]
    ranks: Option<usize>,
    /// Microseconds of a message between ranks [default: half of what the step takes without a network, over its messages].
    #[arg(long, allow_negative_numbers = true, value_name = "US", value_parser = rate)]
    latency: Option<f64>,
    /// Gigabytes a second between ranks [default: no limit].
    #[arg(long, allow_negative_numbers = true, value_name = "GB/S", value_parser = rate)]
    bandwidth: Option<f64>,
    /// Average gradients over the ranks at the end of each step, too.
    #[arg(long)]
    average: bool,
}

impl RankArgs {
    /// The first option that is given.
    pub(super) fn given(&self) -> Option<&'static str> {
        let given = [
            ("--ranks", self.ranks.is_some()),
            ("--latency", self.latency.is_some()),
            ("--bandwidth", self.bandwidth.is_some()),
            ("--average", self.average),
        ];
        given.into_iter().find(|(_, is_given)| *is_given).map(|(name, _)| name)
    }

    fn network(&self) -> Option<CommModel> {
        (self.latency.is_some() || self.bandwidth.is_some()).then(|| CommModel {
            latency: self
                .latency
                .and_then(|us| Duration::try_from_secs_f64(us / 1e6).ok())
                .unwrap_or_default(),
            bandwidth: self.bandwidth.map_or(f64::INFINITY, |gigabytes| gigabytes * 1e9),
        })
    }

    /// The options that follow from these arguments.
    pub(super) fn options(&self) -> RankOptions {
        let mut options = RankOptions::default();
        options.ranks = self.ranks.unwrap_or(options.ranks);
        (options.average, options.network) = (self.average, self.network());
        options
    }
}

pub(super) fn run(
    options: &RankOptions,
    outputs: [Option<Output>; 3],
    printer: &mut Printer,
) -> Result<bool, Failure> {
    printer.line(format_args!("{FORUM}: {ABOUT}"))?;
    printer.line(format_args!(
        "{} ranks on threads, 2 batches of {} rows a step, {} steps after {} of warm-up, seed {}",
        options.ranks, options.batch, options.steps, options.warmup, options.seed
    ))?;
    printer.empty_line()?;
    let found = compare_ranks(options)?;
    let (figures, verdicts) = (figures(&found), verdicts(&found));
    let diagnosis = diagnose(&found.serial.profile);
    printer.text(&format_args!("{figures}\n{verdicts}\ndiagnosis of the serial schedule"))?;
    diagnosis.iter().try_for_each(|finding| printer.text(finding))?;
    let [json, trace, page] = outputs;
    Output::save(json, || format!("{:#}\n", to_json(&found)))?;
    Output::save(trace, || {
        let mut trace = Trace::new();
        schedules(&found).for_each(|schedule| trace.add(schedule.name, &schedule.profile));
        trace.to_json().to_string()
    })?;
    Output::save(page, || report(&found, &figures, &verdicts).html())?;
    Ok(found.identical_losses && found.identical_parameters)
}

fn schedules(found: &RankComparison) -> impl Iterator<Item = &RankSchedule> {
    [&found.serial, &found.overlapped].into_iter()
}

/// Milliseconds of a step in which collectives of an op run, and in which nothing runs beside them.
fn communication(schedule: &RankSchedule, op: &str) -> [f64; 2] {
    let steps = schedule.profile.steps().max(1) as f64;
    let of_op = schedule.profile.communication().into_iter().filter(|of| of.op == op);
    let sums = of_op.fold([0.0, 0.0], |[total, exposed], Communication { total_ms, exposed_ms, .. }| {
        [total + total_ms, exposed + exposed_ms]
    });
    sums.map(|sum| sum / steps)
}

fn figures(found: &RankComparison) -> Table {
    let mut table = Table::new(1);
    let mut row = |name: &str, value: &dyn Fn(&RankSchedule) -> String| {
        table.row(std::iter::once(name.to_owned()).chain(schedules(found).map(value)));
    };
    row("", &|s| s.name.to_owned());
    row("step, median (ms)", &|s| format!("{:.3}", s.step_ms.median));
    row("step, p10 to p90 (ms)", &|s| format!("{:.3} to {:.3}", s.step_ms.p10, s.step_ms.p90));
    row("the same without the network (ms)", &|s| format!("{:.3}", s.without_network_ms.median));
    row("what the network costs (ms a step)", &|s| format!("{:.3}", s.network_ms()));
    for op in ["all_gather", "reduce_scatter", "all_reduce"] {
        if schedules(found).any(|s| communication(s, op)[0] > 0.0) {
            row(&format!("{op} runs (ms a step)"), &|s| format!("{:.3}", communication(s, op)[0]));
            row("    of which exposed", &|s| format!("{:.3}", communication(s, op)[1]));
        }
    }
    table
}

fn verdicts(found: &RankComparison) -> Table {
    let equal = |equal: bool| if equal { "bit-equal" } else { "NOT EQUAL" }.to_owned();
    let CommModel { latency, bandwidth } = found.network;
    let bandwidth = match bandwidth.is_finite() {
        true => format!("{:.3} GB/s", bandwidth / 1e9),
        false => "no limit of bandwidth".to_owned(),
    };
    let latency = format!("{:.1} us a message, {bandwidth}, modelled", latency.as_secs_f64() * 1e6);
    let mut table = Table::new(2);
    table.row(["network".to_owned(), latency]);
    table.row(["speed-up".to_owned(), format!("{:.2}x", found.speedup)]);
    table.row(["hidden".to_owned(), format!("{:.0} % of what the network costs", 100.0 * found.hidden)]);
    table.row(["losses".to_owned(), format!("{}, on every rank", equal(found.identical_losses))]);
    table.row(["parameters".to_owned(), format!("{}, on every rank", equal(found.identical_parameters))]);
    table
}

fn report(found: &RankComparison, figures: &Table, verdicts: &Table) -> Report {
    let options = &found.options;
    let about = format!(
        "{ABOUT}. {} ranks on threads, batches of {} rows, {} steps, seed {}. Rank 0 is shown.",
        options.ranks, options.batch, options.steps, options.seed
    );
    let report =
        Report::new(format!("{FORUM}: {:.2}x on {} ranks", found.speedup, options.ranks)).about(about);
    let report = report.notes("Result", verdicts.pairs());
    let report = schedules(found).fold(report, |report, s| report.timeline(s.profile.drawing(s.name)));
    let notes = schedules(found).flat_map(|schedule| {
        let finding = |finding: Finding| (format!("{}, {}", schedule.name, finding.code), finding.message);
        diagnose(&schedule.profile).into_iter().map(finding)
    });
    report.notes("Diagnosis", notes.collect()).table("Figures", figures.rows().to_vec())
}

fn to_json(found: &RankComparison) -> Value {
    let RankOptions { ranks, batch, features, steps, warmup, seed, average, .. } = found.options;
    let schedule = |schedule: &RankSchedule| {
        json!({
            "name": schedule.name,
            "step_ms": schedule.step_ms,
            "without_network_ms": schedule.without_network_ms,
            "traced_steps": schedule.profile.steps(),
            "communication": schedule.profile.communication(),
        })
    };
    let bandwidth = Some(found.network.bandwidth).filter(|bandwidth| bandwidth.is_finite());
    json!({
        "workload": FORUM,
        "ranks": ranks, "batch": batch, "features": features, "steps": steps, "warmup": warmup, "seed": seed,
        "average": average,
        "latency_us": found.network.latency.as_secs_f64() * 1e6,
        "bandwidth_bytes_per_s": bandwidth,
        "serial": schedule(&found.serial),
        "overlapped": schedule(&found.overlapped),
        "speedup": found.speedup,
        "hidden": found.hidden,
        "identical_losses": found.identical_losses,
        "identical_parameters": found.identical_parameters,
    })
}
