//! `streamgrad train`: trains a workload, epoch by epoch, with checkpoints.

use std::path::PathBuf;
use std::time::Instant;

use indicatif::ProgressBar;
use streamgrad::checkpoint::{self, Progress};
use streamgrad::compare::WriteTrace;
use streamgrad::models::data::{CsvOptions, LoaderSteps};
use streamgrad::models::file;
use streamgrad::profile::{
    Profile, ProfileOptions, ProfileSchedule, Profiler,
    report::{Line, Plot, Report},
};
use streamgrad::{
    Batch, ConcurrentBatches, DType, DataLoader, Device, Error, ErrorKind, GraphCache, GraphOptions,
    InMemory, LoaderOptions, Tensor, autocast, no_grad, optim::Optimizer,
};
use workloads::{Evaluation, Model, Scale, Workload};

use super::args::{device, positive, rate, workload, workload_help};
use super::failure::Failure;
use super::output::{Output, Printer, is_stdout, progress_bar};

#[derive(clap::Args)]
pub(super) struct Args {
    #[arg(long, help = workload_help(""))]
    workload: Option<String>,
    /// Epochs in all, those of a checkpoint included [default: the workload's].
    #[arg(long, allow_negative_numbers = true, value_name = "N", value_parser = positive)]
    epochs: Option<usize>,
    /// Rows of one batch [default: the workload's].
    #[arg(long, allow_negative_numbers = true, value_name = "B", value_parser = positive)]
    batch: Option<usize>,
    /// Size of the images of encoder-decoder, augment and branches: tiny, 16 by 16, small, 64 by 64, or article, 256 by 256 [default:
    /// small on a CPU, else article; article for branches].
    #[arg(long, value_name = "SCALE")]
    scale: Option<Scale>,
    /// Learning rate for the mean over a step's batches [default: the workload's].
    #[arg(long, allow_negative_numbers = true, value_parser = rate)]
    lr: Option<f64>,
    /// Seed of parameters, split and shuffles [default: 7, or the checkpoint's].
    #[arg(long, allow_negative_numbers = true, value_name = "S")]
    seed: Option<u64>,
    /// Batches of a step, each on a stream of its own [default: 2].
    #[arg(long, allow_negative_numbers = true, value_name = "N", value_parser = positive)]
    lanes: Option<usize>,
    /// Threads that make batches ahead, where that is measured to be faster; 0 for none.
    #[arg(long, allow_negative_numbers = true, value_name = "N", default_value_t = 1)]
    workers: usize,
    /// Capture a step and replay it.
    #[arg(long)]
    graph: bool,
    /// Train in mixed precision: products in bf16, weights in f32.
    #[arg(long, value_name = "TYPE", value_parser = half)]
    autocast: Option<DType>,
    /// auto, cpu or cuda:N.
    #[arg(long, default_value = "auto")]
    device: String,
    /// Write a checkpoint after each epoch.
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Write a page with the losses and a profile of some steps.
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    /// Write a hash of what each command wrote, for `diverge`.
    #[arg(long, value_name = "FILE")]
    trace_writes: Option<PathBuf>,
    /// Go on from a checkpoint.
    #[arg(long, value_name = "FILE")]
    resume: Option<PathBuf>,
    /// Rows of numbers with the class last, in place of the digits.
    #[arg(long, value_name = "CSV")]
    data: Option<PathBuf>,
    /// What values of --data are multiplied by [default: 1/16, for pixels of 0 to 16].
    #[arg(long, value_name = "X", allow_negative_numbers = true, default_value_t = 1.0 / 16.0, hide_default_value = true, value_parser = rate)]
    data_scale: f64,
}

const SEED: u64 = 7;
const MAX_LANES: usize = 256;
/// Forms of batches whose captured steps are kept: batches of click logs have one each.
const FORMS: usize = 8;

/// A training run between two epochs.
struct Run {
    device: Device,
    model: Box<dyn Model>,
    lanes: ConcurrentBatches,
    optimizer: Box<dyn Optimizer>,
    /// The captured steps, if steps are captured.
    graphs: Option<GraphCache<Vec<Batch>, Vec<Tensor>>>,
    autocast: Option<DType>,
    progress: Progress,
    batches: LoaderSteps<InMemory>,
    steps_per_epoch: u64,
    test: InMemory,
    /// The loss of each batch of this run.
    losses: Vec<f64>,
    /// What records some steps, for the page.
    profiler: Option<Profiler>,
}

/// The steps that are recorded: those in which lanes, workers and memory are tried out are over.
const RECORDED: ProfileSchedule = ProfileSchedule { wait: 30, warmup: 2, active: 6, repeat: 1 };

/// What is said of an epoch.
struct Epoch {
    number: u64,
    loss: f64,
    accuracy: f64,
    seconds: f64,
}

pub(super) fn run(args: &Args, printer: &mut Printer) -> Result<bool, Failure> {
    let workload = workload(args.workload.as_deref(), args.scale)?;
    if let Some(path) = &args.save {
        let message = "--save - would be standard output; a file of that name is ./-";
        Failure::unless(!is_stdout(path), || Failure::Usage(message.into()))?;
        file::check_writable(path)?;
    }
    Output::distinct([&args.save, &args.report, &args.trace_writes])?;
    Output::spares([&args.save, &args.report, &args.trace_writes], &args.data)?;
    Output::spares([&args.report, &args.trace_writes], &args.resume)?;
    args.trace_writes.as_ref().map(file::check_writable).transpose()?;
    let [report] = Output::open([&args.report], printer)?;
    let mut run = Run::new(args, workload)?;
    let mut done: Vec<Epoch> = Vec::new();
    let trained = train(args, workload, &mut run, &mut done, printer);
    let save = |path: &PathBuf| WriteTrace::stop(&run.device)?.save(path);
    let traced = args.trace_writes.as_ref().map_or(Ok(()), save);
    // Of a run that failed, too: its losses say why. What it failed with comes first.
    let written = report.map_or(Ok(()), |output| {
        let why = trained.as_ref().err().map(ToString::to_string);
        output.write(&run.page(workload, &done, why)?.html())
    });
    trained.and(written)?;
    traced?;
    Ok(true)
}

/// Trains what is left of the epochs, and says how each went.
fn train(
    args: &Args,
    workload: &dyn Workload,
    run: &mut Run,
    done: &mut Vec<Epoch>,
    printer: &mut Printer,
) -> Result<(), Failure> {
    let epochs = args.epochs.map_or(workload.info().epochs, |epochs| epochs as u64);
    printer.line(format_args!("{}: {}", workload.name(), workload.info().about))?;
    if run.progress.epoch > 0 {
        printer
            .line(format_args!("resumed after epoch {}, seed {}", run.progress.epoch, run.progress.seed))?;
    }
    let left = epochs.saturating_sub(run.progress.epoch).saturating_mul(run.steps_per_epoch);
    let bar = progress_bar(left, ", {eta} left");
    while run.progress.epoch < epochs {
        printer.check_read(args.save.is_some() || args.report.is_some())?;
        let start = Instant::now();
        let loss = run.epoch(&bar)?;
        // Says so if the parameters are not finite any more, and the last good checkpoint stays.
        let accuracy = 100.0 * run.evaluate()?.accuracy;
        if let Some(path) = &args.save {
            checkpoint::save_training(path, &*run.model, &*run.optimizer, run.progress)?;
        }
        let seconds = start.elapsed().as_secs_f64();
        let number = run.progress.epoch;
        bar.suspend(|| {
            printer.line(format_args!(
                "epoch {number:>3}  loss {loss:.6}  held-out accuracy {accuracy:.2} %  {seconds:.2} s"
            ))
        })?;
        done.push(Epoch { number, loss, accuracy, seconds });
    }
    bar.finish_and_clear();
    let held_out = run.evaluate()?;
    let trained = match done.last() {
        Some(Epoch { loss, .. }) => format!("loss {loss:.6}"),
        None => "no epoch was left to train".to_owned(),
    };
    printer.line(format_args!(
        "final: {trained}, held-out loss {:.6}, held-out accuracy {:.2} % of {} rows",
        held_out.loss,
        100.0 * held_out.accuracy,
        run.test.len()
    ))
}

impl Run {
    fn new(args: &Args, workload: &'static dyn Workload) -> Result<Run, Failure> {
        let device = device(&args.device)?;
        if args.trace_writes.is_some() {
            WriteTrace::start(&device, false);
        }
        let lanes = args.lanes.unwrap_or(2);
        let many = || Failure::Usage(format!("--lanes must be at most {MAX_LANES}, got {lanes}"));
        Failure::unless(lanes <= MAX_LANES, many)?;
        let model = workload.model(args.seed.unwrap_or(SEED), &device)?;
        let mut optimizer = workload.optimizer(model.parameters(), lanes)?;
        let mut progress = Progress { seed: args.seed.unwrap_or(SEED), ..Progress::default() };
        if let Some(path) = &args.resume {
            progress = checkpoint::load_training(path, &*model, &mut *optimizer)?;
            if let Some(seed) = args.seed.filter(|&seed| seed != progress.seed) {
                let message =
                    format!("--seed {seed}: {} was trained with seed {}", path.display(), progress.seed);
                return Err(Failure::Usage(message));
            }
        }
        if let Some(lr) = args.lr {
            // The gradients of the lanes are added.
            optimizer.set_learning_rate(lr / lanes as f64)?;
        }
        let batch = args.batch.unwrap_or(workload.info().batch);
        let (train, test) = data(args, workload, batch, progress.seed, &device)?;
        let options = LoaderOptions {
            batch,
            seed: progress.seed,
            drop_last: true,
            workers: args.workers,
            device: workload.source(&device),
            ..LoaderOptions::default()
        };
        let loader = DataLoader::new(train, options)?;
        let steps_per_epoch = (loader.per_epoch() / lanes).max(1) as u64;
        // Batches are numbered through, and there is room for as many again.
        let countable = |steps: &u64| steps.checked_mul(2 * lanes as u64).is_some();
        let Some(steps) = progress.epoch.checked_mul(steps_per_epoch).filter(countable) else {
            return Err(Failure::Run(format!(
                "the checkpoint has {} epochs, more than can be counted in batches",
                progress.epoch
            )));
        };
        let position = loader.position(steps * lanes as u64);
        if progress.step != steps || progress.loader.is_some_and(|known| known != position) {
            return Err(Failure::Usage(format!(
                "the checkpoint has {} steps in {} epochs, this run would have {steps}: give the same --batch, --lanes and --data",
                progress.step, progress.epoch
            )));
        }
        let batches = loader.steps(lanes, position)?;
        let lanes = ConcurrentBatches::new(&device, lanes)?;
        let options = ProfileOptions { schedule: RECORDED, ..ProfileOptions::default() };
        let profiler = args.report.as_ref().map(|_| Profile::start(&device, options)).transpose()?;
        let graphs = args.graph.then(|| GraphCache::new(&device, GraphOptions::default(), FORMS));
        Ok(Run {
            device,
            model,
            lanes,
            optimizer,
            graphs,
            autocast: args.autocast,
            progress,
            batches,
            steps_per_epoch,
            test,
            losses: Vec::new(),
            profiler,
        })
    }

    /// One step: the losses, in batch order. What comes before the part that learns is not captured.
    fn step(&mut self, batches: Vec<Batch>) -> Result<Vec<Tensor>, Error> {
        let Run { lanes, optimizer, model, graphs, .. } = self;
        let Some(graphs) = graphs else {
            let prepared = |batch| no_grad(|| model.prepare(batch));
            let step = lanes.step(batches, |batch| model.batch_loss(&prepared(batch)?))?;
            return optimizer.step(&step.gradients).map(|()| step.losses);
        };
        graphs.run(&model.prepare_all(batches)?, |batches| {
            let step = lanes.step(batches, |batch| model.batch_loss(batch))?;
            optimizer.step(&step.gradients).map(|()| step.losses)
        })
    }

    /// Trains one epoch and returns the mean loss over its batches.
    fn epoch(&mut self, bar: &ProgressBar) -> Result<f64, Failure> {
        let mut losses: Vec<Tensor> = Vec::new();
        for _ in 0..self.steps_per_epoch {
            let Some(batches) = self.batches.next() else { break };
            let batches = batches?;
            let step = autocast(self.autocast, || self.step(batches));
            losses.extend(step.map_err(not_captured)?);
            self.profiler.iter().for_each(Profiler::step);
            bar.inc(1);
        }
        self.progress.step += self.steps_per_epoch;
        self.progress.epoch += 1;
        self.progress.loader = Some(self.batches.position());
        self.device.synchronize()?;
        let losses: Vec<f64> = losses
            .iter()
            .map(|loss| loss.to_dtype(DType::F64)?.item::<f64>())
            .collect::<Result<_, Error>>()?;
        let mean = losses.iter().sum::<f64>() / losses.len() as f64;
        self.losses.extend(losses);
        self.check_finite("loss", mean)
    }

    /// The page of a run that is over, by itself or for a reason.
    fn page(
        &mut self,
        workload: &dyn Workload,
        done: &[Epoch],
        why: Option<String>,
    ) -> Result<Report, Failure> {
        let mut about =
            format!("{}. Device {}, seed {}.", workload.info().about, self.device.name(), self.progress.seed);
        if let Some(why) = why {
            about += &format!(" It ended early: {why}.");
        }
        let plot = |title: &str, x: &str, y: &str, name: &str, points: Vec<(f64, f64)>| Plot {
            title: title.into(),
            x: x.into(),
            y: y.into(),
            lines: vec![Line { name: name.into(), points }],
        };
        let losses = self.losses.iter().enumerate().map(|(batch, &loss)| (batch as f64, loss)).collect();
        let accuracies = done.iter().map(|epoch| (epoch.number as f64, epoch.accuracy)).collect();
        let head = ["epoch", "loss", "held-out accuracy (%)", "seconds"].map(str::to_owned).to_vec();
        let row = |Epoch { number, loss, accuracy, seconds }: &Epoch| {
            vec![number.to_string(), format!("{loss:.6}"), format!("{accuracy:.2}"), format!("{seconds:.2}")]
        };
        let report = Report::new(format!("Training: {}", workload.name()))
            .about(about)
            .plot(plot("Loss of each batch", "batch", "loss", "loss", losses))
            .plot(plot("Held-out accuracy", "epoch", "%", "accuracy", accuracies))
            .table("Epochs", std::iter::once(head).chain(done.iter().map(row)).collect());
        let profile = self.profiler.take().map(Profiler::stop).transpose()?;
        // A short run has no step that was recorded.
        Ok(match profile.filter(|profile| profile.recordings().next().is_some()) {
            Some(profile) => report.profile("some steps", &profile),
            None => report,
        })
    }

    /// How the model does on the held-out data; an error if its loss is not finite.
    fn evaluate(&self) -> Result<Evaluation, Failure> {
        let evaluation = self.model.evaluate(&self.test, &self.device)?;
        self.check_finite("held-out loss", evaluation.loss)?;
        Ok(evaluation)
    }

    fn check_finite(&self, name: &str, loss: f64) -> Result<f64, Failure> {
        if loss.is_finite() {
            return Ok(loss);
        }
        let rate = self.optimizer.learning_rate() * self.lanes.streams().len() as f64;
        let epoch = self.progress.epoch;
        Err(Failure::Run(format!("epoch {epoch}: the {name} is {loss}; try an --lr below {rate}")))
    }
}

/// F16 would need its losses scaled.
fn half(name: &str) -> Result<DType, String> {
    match name {
        "bf16" => Ok(DType::BF16),
        _ => Err("bf16 is the only one".into()),
    }
}

/// Says what asked for what cannot be.
fn not_captured(error: Error) -> Failure {
    match error.kind() {
        ErrorKind::Captured { .. } => {
            Failure::Run(format!("--graph: the step cannot be replayed: {error}; train without it"))
        }
        _ => error.into(),
    }
}

/// The share of rows of a file that is held out.
const TEST_FRACTION: f64 = 0.2;

fn data(
    args: &Args,
    workload: &dyn Workload,
    batch: usize,
    seed: u64,
    device: &Device,
) -> Result<(InMemory, InMemory), Failure> {
    // Beside a file, they only say how long a row is.
    let batch = if args.data.is_some() { 1 } else { batch };
    let (train, test) = workload.data_for(batch, seed, device)?;
    let Some(path) = &args.data else { return Ok((train, test)) };
    let options = CsvOptions { scale: args.data_scale as f32, ..CsvOptions::default() };
    let data = InMemory::read_csv(path, train.classes(), &options)?;
    if data.features() != train.features() {
        return Err(Failure::Run(format!(
            "{}: {} values in a row, {} takes {}",
            path.display(),
            data.features(),
            workload.name(),
            train.features()
        )));
    }
    Ok(data.split(TEST_FRACTION, seed)?)
}
