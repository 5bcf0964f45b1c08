//! Loaders that take as long as the step, asked when the batch is wanted and ahead on a thread: how much of the loader is
//! hidden. Three stages that take as long as each other. And loaders that take next to nothing, for which workers must cost nothing.
//!
//!     cargo bench --bench loader

#![allow(clippy::unwrap_used, missing_docs)]

use std::hint::black_box;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use streamgrad::data::LoaderIter;
use streamgrad::device::quantiles;
use streamgrad::prelude::*;
use streamgrad::{CpuConfig, PipelineOptions, PipelineSchedule, Result};

/// What reading a batch takes, beside the copy of its rows.
#[derive(Clone, Copy)]
enum Load {
    Nothing,
    /// As a disk does.
    Wait(Duration),
    /// As what unpacks images does, on one thread.
    Work(Duration),
}

impl Load {
    fn spend(self) {
        match self {
            Load::Nothing => {}
            Load::Wait(time) => std::thread::sleep(time),
            Load::Work(time) => {
                let (start, mut state) = (Instant::now(), 1u64);
                while start.elapsed() < time {
                    (0..1000).for_each(|_| state = black_box(state.wrapping_mul(6_364_136_223_846_793_005)));
                }
            }
        }
    }
}

struct Slow {
    rows: InMemory,
    load: Load,
}

impl Dataset for Slow {
    type Batch = Batch;

    fn len(&self) -> usize {
        self.rows.len()
    }

    fn batch(&self, rows: &[usize], key: u64, device: &Device) -> Result<Batch> {
        self.load.spend();
        self.rows.batch(rows, key, device)
    }
}

/// A model that trains on the digits, enlarged to 28x28 unless they are `small`.
struct Training {
    device: Device,
    model: Sequential,
    sgd: Sgd,
    rows: InMemory,
    batch: usize,
}

impl Training {
    fn new(threads: usize, small: bool) -> Training {
        let device = Device::cpu_with(CpuConfig { threads: Some(threads), ..CpuConfig::default() });
        let (sizes, rows) = match small {
            true => (&[64, 128, 10][..], Digits::load().unwrap()),
            false => (&[784, 256, 256, 10][..], Digits::enlarged(28).unwrap()),
        };
        let model = mlp(sizes, 1, &device).unwrap();
        let sgd = Sgd::new(model.parameters(), 1e-3).unwrap();
        Training { device, model, sgd, rows, batch: 128 }
    }

    fn step(&mut self, batch: Batch) {
        let loss = cross_entropy(&self.model.forward(&batch.input()).unwrap(), &batch.labels).unwrap();
        self.sgd.step(&loss.backward().unwrap()).unwrap();
        self.device.synchronize().unwrap();
    }

    fn loader(&self, load: Load, workers: usize, schedule: PipelineSchedule) -> LoaderIter<Slow> {
        let options = LoaderOptions {
            batch: self.batch,
            workers,
            schedule,
            device: self.device.clone(),
            ..LoaderOptions::default()
        };
        let data = Slow { rows: self.rows.clone(), load };
        DataLoader::new(data, options).unwrap().iter_from(Position::default())
    }

    /// Milliseconds of a step with its batch, over so many.
    fn time(&mut self, batches: &mut LoaderIter<Slow>, count: usize) -> f64 {
        // What was made ahead since the last time does not count.
        batches.take(SETTLE).for_each(|batch| self.step(batch.unwrap()));
        let start = Instant::now();
        batches.take(count).for_each(|batch| self.step(batch.unwrap()));
        start.elapsed().as_secs_f64() * 1e3 / count as f64
    }
}

const SETTLE: usize = 8;
const BLOCK: usize = 40;
const ROUNDS: usize = 15;

/// Times the ways by turns: the median, p10 and p90 of each.
fn compare(training: &mut Training, load: Load, ways: &[(usize, PipelineSchedule)]) -> Vec<[f64; 3]> {
    let mut loaders: Vec<_> = ways.iter().map(|way| training.loader(load, way.0, way.1)).collect();
    // Whoever measures decides here.
    for batches in &mut loaders {
        batches.take(1000).for_each(|batch| training.step(batch.unwrap()));
    }
    let mut times = vec![Vec::new(); ways.len()];
    for _ in 0..ROUNDS {
        for (batches, times) in loaders.iter_mut().zip(&mut times) {
            times.push(training.time(batches, BLOCK));
        }
    }
    for batches in &loaders {
        batches.report().into_iter().for_each(|report| println!("    {report}"));
    }
    times.iter().map(|times| quantiles(times.iter().copied(), [0.5, 0.1, 0.9])).collect()
}

/// Batches are read, augmented, and trained on, on one thread each: the median, p10 and p90 of a batch's milliseconds in each way.
fn stages(training: &Mutex<Training>, read: Load, augment: Load, ways: &[PipelineSchedule]) -> Vec<[f64; 3]> {
    let device = training.lock().unwrap().device.clone();
    let batches: Vec<Batch> = training
        .lock()
        .unwrap()
        .loader(Load::Nothing, 0, PipelineSchedule::Serial)
        .take(BLOCK)
        .map(Result::unwrap)
        .collect();
    let mut pipelines: Vec<_> = ways
        .iter()
        .map(|&schedule| {
            Pipeline::with_options(&device, PipelineOptions { schedule, ..PipelineOptions::default() })
                .stage("read", move |batch: Batch| {
                    read.spend();
                    Ok(batch)
                })
                .stage("augment", move |batch| {
                    augment.spend();
                    Ok(batch)
                })
                .stage("train", |batch| {
                    training.lock().unwrap().step(batch);
                    Ok(())
                })
        })
        .collect();
    let mut times = vec![Vec::new(); ways.len()];
    for round in 0..ROUNDS + 1 {
        for (pipeline, times) in pipelines.iter_mut().zip(&mut times) {
            let start = Instant::now();
            pipeline.run(batches.iter().cloned()).unwrap();
            // Whoever measures decides in the first.
            if round > 0 {
                times.push(start.elapsed().as_secs_f64() * 1e3 / BLOCK as f64);
            }
        }
    }
    pipelines.iter().for_each(|pipeline| println!("    {}", pipeline.report()));
    times.iter().map(|times| quantiles(times.iter().copied(), [0.5, 0.1, 0.9])).collect()
}

fn main() {
    use PipelineSchedule::{Measured, Serial, Stages};
    for threads in [1, 2] {
        let mut training = Training::new(threads, false);
        let plain = compare(&mut training, Load::Nothing, &[(0, Measured)])[0][0];
        let time = Duration::from_secs_f64(plain / 1e3);
        println!("a step of {plain:.3} ms on {threads} threads, and a loader that takes as long");
        for (name, load) in [("waits", Load::Wait(time)), ("works on one thread", Load::Work(time))] {
            let found = compare(&mut training, load, &[(0, Measured), (1, Stages), (1, Measured)]);
            let serial = found[0][0];
            for (way, [median, p10, p90]) in
                ["serial", "one worker", "one worker, measured"].iter().zip(&found)
            {
                let hidden = 100.0 * (serial - median) / (serial - plain);
                println!("  {name}, {way:22} {median:8.3} ms ({p10:.3} to {p90:.3}), {hidden:5.1} % hidden");
            }
        }
    }
    let mut training = Training::new(1, false);
    let plain = compare(&mut training, Load::Nothing, &[(0, Measured)])[0][0];
    let (time, training) = (Duration::from_secs_f64(plain / 1e3), Mutex::new(training));
    for (name, read) in [("waits", Load::Wait(time)), ("works", Load::Work(time))] {
        println!("three stages of {plain:.3} ms, of which the first {name}");
        let found = stages(&training, read, Load::Work(time), &[Serial, Stages, Measured]);
        for (way, [median, p10, p90]) in ["serial", "stages", "measured"].iter().zip(&found) {
            let gain = found[0][0] / median;
            println!("  {way:22} {median:8.3} ms ({p10:.3} to {p90:.3}), {gain:.2}x");
        }
    }
    for (small, threads) in [(true, 1), (true, 2), (false, 2)] {
        let mut training = Training::new(threads, small);
        let name = if small { "64-128-10" } else { "784-256-256-10" };
        println!("a loader that takes next to nothing, {name} on {threads} threads");
        let found = compare(&mut training, Load::Nothing, &[(0, Measured), (1, Stages), (1, Measured)]);
        for (way, [median, p10, p90]) in ["serial", "one worker", "one worker, measured"].iter().zip(&found) {
            let ratio = median / found[0][0];
            println!("  {way:22} {median:8.3} ms ({p10:.3} to {p90:.3}), {ratio:.3} of serial");
        }
    }
}
