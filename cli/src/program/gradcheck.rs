//! `streamgrad gradcheck`: the gradients of every op, or of a workload's model, against numeric derivatives.

use streamgrad::ops::{self, OpEntry, Sample};
use streamgrad::profile::Table;
use streamgrad::{
    DataLoader, Device, Error, GradCheck, GradCheckReport, LoaderOptions, gradcheck, gradcheck_module,
    gradgradcheck, no_grad,
};

use super::args::{device, workload, workload_help};
use super::failure::Failure;
use super::output::Printer;

#[derive(clap::Args)]
pub(super) struct Args {
    /// The ops to check; all if none is named.
    ops: Vec<String>,
    #[arg(long, value_name = "NAME", conflicts_with = "ops", help = workload_help("; its model is checked on a small batch"))]
    workload: Option<String>,
    /// auto, cpu or cuda:N.
    #[arg(long, default_value = "auto")]
    device: String,
}

/// One op's result.
#[derive(Default)]
struct Checked {
    samples: usize,
    derivatives: usize,
    /// The largest relative errors, of first and of second derivatives.
    errors: [Option<f64>; 2],
    /// The sample and order of each check that failed, with the reason.
    failed: Vec<(String, Error)>,
}

impl Checked {
    /// Adds the result of a check of first derivatives, `order` 0, or of second ones, `order` 1.
    fn add(&mut self, what: String, found: Result<GradCheckReport, Error>, order: usize) {
        match found {
            Ok(report) => {
                self.derivatives += report.checked;
                self.errors[order] = Some(self.errors[order].unwrap_or(0.0).max(report.max_error));
            }
            Err(error) => self.failed.push((what, error)),
        }
    }
}

pub(super) fn run(args: &Args, printer: &mut Printer) -> Result<bool, Failure> {
    let entries = select(&args.ops)?;
    let device = device(&args.device)?;
    if let Some(name) = &args.workload {
        return check_workload(name, &device, printer);
    }
    let mut table = Table::new(1);
    table.row(["op", "samples", "derivatives", "max error", "second order", "result"]);
    let mut failed = Vec::new();
    let shown = |error: Option<f64>| error.map_or_else(|| "-".to_owned(), |error| format!("{error:.1e}"));
    for entry in &entries {
        let checked = check(entry, &device)?;
        table.row([
            entry.name.to_owned(),
            checked.samples.to_string(),
            checked.derivatives.to_string(),
            shown(checked.errors[0]),
            shown(checked.errors[1]),
            if checked.failed.is_empty() { "ok" } else { "FAILED" }.to_owned(),
        ]);
        failed.extend(checked.failed.into_iter().map(|(what, error)| (entry.name, what, error)));
    }
    printer.text(&table)?;
    printer.empty_line()?;
    for (op, what, error) in &failed {
        printer.line(format_args!("{op}, {what}: {error}"))?;
    }
    let mut names: Vec<&str> = failed.iter().map(|(op, ..)| *op).collect();
    names.dedup();
    printer.line(format_args!("{} of {} ops pass", entries.len() - names.len(), entries.len()))?;
    Ok(failed.is_empty())
}

/// Rows of the batch that a model is checked on, and elements of each parameter.
const ROWS: usize = 4;
const ELEMENTS: usize = 10;
const SEED: u64 = 7;

fn check_workload(name: &str, device: &Device, printer: &mut Printer) -> Result<bool, Failure> {
    let workload = workload(Some(name), None)?;
    let model = workload.model(SEED, device)?;
    let (data, _) = workload.data_for(ROWS, SEED, device)?;
    let options = LoaderOptions { batch: ROWS, device: workload.source(device), ..LoaderOptions::default() };
    let mut batches = DataLoader::new(data, options)?.epoch(0).take(1).collect::<Result<Vec<_>, _>>()?;
    batches = batches.drain(..).map(|batch| no_grad(|| model.prepare(batch))).collect::<Result<_, _>>()?;
    let losses = |_: &_| batches.iter().map(|batch| model.batch_loss(batch)).collect::<Result<Vec<_>, _>>();
    let options = GradCheck { elements: ELEMENTS, ..GradCheck::default() };
    let checked = gradcheck_module(&*model, losses, options);
    match &checked {
        Ok(GradCheckReport { checked, undecided, kinks, max_error, max_uncertainty }) => printer.line(format_args!(
            "{name}: {checked} derivatives pass, error at most {max_error:.1e}, uncertainty {max_uncertainty:.1e}; {undecided} undecided, {kinks} at kinks"
        ))?,
        Err(error) => printer.line(format_args!("{name}: {error}"))?,
    }
    Ok(checked.is_ok())
}

fn select(names: &[String]) -> Result<Vec<&'static OpEntry>, Failure> {
    if names.is_empty() {
        return Ok(ops::ALL.iter().collect());
    }
    let find = |name: &String| {
        ops::ALL.iter().find(|entry| entry.name == name).ok_or_else(|| {
            let known: Vec<&str> = ops::ALL.iter().map(|entry| entry.name).collect();
            Failure::Usage(format!("unknown op {name:?}; there are: {}", known.join(", ")))
        })
    };
    names.iter().map(find).collect()
}

fn check(entry: &OpEntry, device: &Device) -> Result<Checked, Failure> {
    let mut checked = Checked::default();
    for sample in entry.samples(device)? {
        checked.samples += 1;
        let Sample { name, inputs, run } = &sample;
        let options = GradCheck::default();
        checked.add((*name).to_owned(), gradcheck(|vars| run(vars), inputs, options), 0);
        if entry.twice_differentiable {
            let found = gradgradcheck(|vars| run(vars), inputs, options);
            checked.add(format!("{name}, second order"), found, 1);
        }
    }
    Ok(checked)
}
