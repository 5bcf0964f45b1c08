//! The workloads, compared: all schedules give the serial one's bits.
#![allow(clippy::unwrap_used)]

use compare::{CompareOptions, Comparison, Evaluation, Model, Scale, Workload, WorkloadInfo, compare};
use streamgrad::models::{Batch, InMemory, Module, Optimizer};
use streamgrad::{CpuConfig, Device, ErrorKind, Result, Var};

fn quick_options(name: &str) -> CompareOptions {
    let options = CompareOptions::new(workloads::find(name).unwrap(), &Device::cpu());
    CompareOptions { batch: 16, steps: 9, warmup: 3, traced: 3, ..options }
}

fn quick_with(name: &str, options: CompareOptions) -> Comparison {
    compare(workloads::find(name).unwrap(), &options, |_, _| ()).unwrap()
}

fn quick(name: &str, streams: usize) -> Comparison {
    quick_with(name, CompareOptions { streams, ..quick_options(name) })
}

#[test]
fn lanes_give_what_the_serial_schedule_gives() {
    for (name, streams) in
        [("two-batch", 1), ("two-batch", 2), ("two-batch", 3), ("mlp", 2), ("gpt", 2), ("dlrm", 2)]
    {
        let found = quick(name, streams);
        assert!(
            found.identical_losses && found.identical_parameters,
            "{name}, {streams}: {:?}",
            found.diagnosis
        );
        assert_eq!(found.serial.losses, found.concurrent.losses);
        assert_eq!(found.concurrent.losses.len(), 9);
        assert_eq!((found.serial.streams, found.concurrent.streams), (1, streams));
        assert_eq!(found.serial.recordings.len(), 3);
        assert_eq!(found.serial.waits_per_step, 0.0, "one stream waits for nobody");
        assert!(found.concurrent.profile.lanes.iter().all(|lane| lane.commands > 5.0));
        assert!(found.speedup > 0.0 && found.bound_ms > 0.0);
        assert_eq!(found.diagnosis.last().map(|finding| finding.code), Some("limit"));
    }
}

/// Another workload on small data, with models that `change` makes of its own.
struct Small {
    of: &'static dyn Workload,
    change: Change,
}

/// What a model's loss becomes.
type Change = fn(Var, &Batch) -> Result<Var>;

/// A model with another loss.
#[derive(Module)]
struct Changed {
    #[module(flatten)]
    model: Box<dyn Model>,
    #[module(skip)]
    change: Change,
}

impl Model for Changed {
    fn prepare(&self, batch: Batch) -> Result<Batch> {
        self.model.prepare(batch)
    }
    fn batch_loss(&self, batch: &Batch) -> Result<Var> {
        (self.change)(self.model.batch_loss(batch)?, batch)
    }
    fn evaluate(&self, data: &InMemory, device: &Device) -> Result<Evaluation> {
        self.model.evaluate(data, device)
    }
}

/// The workload of that name, with small images if they have several sizes.
fn tiny(name: &str) -> &'static dyn Workload {
    let workload = workloads::find(name).unwrap();
    workload.at_scale(Scale::Tiny).unwrap_or(workload)
}

fn small_options(workload: &Small) -> CompareOptions {
    let cpu = Device::cpu_with(CpuConfig { threads: Some(2), ..Default::default() });
    let options = CompareOptions::new(workload, &cpu);
    CompareOptions { batch: 2, steps: 4, warmup: 1, traced: 2, graph: true, ..options }
}

impl Workload for Small {
    fn info(&self) -> WorkloadInfo {
        WorkloadInfo { batch: 2, compared_batch: 2, epochs: 1, ..self.of.info() }
    }
    fn model(&self, seed: u64, device: &Device) -> Result<Box<dyn Model>> {
        Ok(Box::new(Changed { model: self.of.model(seed, device)?, change: self.change }))
    }
    fn source(&self, device: &Device) -> Device {
        self.of.source(device)
    }
    fn branched(&self, seed: u64, device: &Device) -> Result<Box<dyn Model>> {
        self.of.branched(seed, device)
    }
    fn data_for(&self, _: usize, seed: u64, device: &Device) -> Result<(InMemory, InMemory)> {
        let (train, _) = self.of.data(seed, device)?;
        Ok((train.select(&[0, 1, 2, 3, 4, 5])?, train.select(&[6])?))
    }
    fn optimizer(&self, parameters: Vec<Var>, lanes: usize) -> Result<Box<dyn Optimizer>> {
        self.of.optimizer(parameters, lanes)
    }
}

#[test]
fn stages_and_branches_give_what_the_serial_schedule_gives() {
    for (name, streams, names) in [
        ("encoder-decoder", 2, ["prepare", "train"]),
        ("augment", 2, ["prepare", "train"]),
        ("prefetch", 2, ["prepare", "train"]),
        ("branches", 2, ["first branch", "second branch"]),
    ] {
        let workload = Small { of: tiny(name), change: |loss, _| Ok(loss) };
        let options = CompareOptions { streams, ..small_options(&workload) };
        let found = compare(&workload, &options, |_, _| ()).unwrap();
        check_captured(&found);
        assert!(found.identical_losses && found.identical_parameters, "{name}: {:?}", found.diagnosis);
        assert_eq!((found.batches_per_step, found.concurrent.losses.len()), (1, 4));
        assert_eq!(found.serial.losses, found.concurrent.losses);
        let named = &found.concurrent.streams_by_name;
        assert_eq!(named.iter().skip(1).map(|(_, name)| name.as_str()).collect::<Vec<_>>(), names);
        // Both streams have work; whether at the same time is the machine's affair.
        let lanes = &found.concurrent.profile.lanes;
        assert!(lanes.len() == 2 && lanes.iter().all(|lane| lane.commands >= 2.0), "{name}: {lanes:?}");
        assert_eq!(found.serial.profile.overlap, 0.0, "{name}");
        let three = CompareOptions { streams: 3, ..options.clone() };
        let error = compare(&workload, &three, |_, _| ()).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::InvalidArgument { argument: "streams", .. }), "{error}");
    }
}

fn check_captured(found: &Comparison) {
    let names: Vec<_> = found.captured.iter().map(|one| one.name).collect();
    let orders = ["captured, serial order", "captured, data order"];
    let stages = found.concurrent.streams_by_name.iter().any(|(_, name)| name == "train");
    assert_eq!(names, [&orders[..], if stages { &["captured, stages"] } else { &[] }].concat());
    for schedule in &found.captured {
        let (captured, gain) = (schedule.captured.unwrap(), schedule.gain.unwrap());
        assert!(gain.identical_losses && gain.identical_parameters, "{:?}", found.diagnosis);
        assert_eq!(schedule.losses, found.serial.losses);
        assert!(captured.plan.commands > 5 && gain.speedup > 0.0 && captured.capture_ms > 0.0);
        let stream = |name: &str| schedule.streams_by_name.iter().find(|(_, other)| other == name);
        for step in &schedule.recordings {
            let replays: Vec<_> = step.commands.iter().filter(|command| command.op == "replay").collect();
            assert_eq!(replays.len(), 1);
            if let Some(((prepare, _), (train, _))) = stream("prepare").zip(stream("train")) {
                assert_eq!(replays[0].moment.stream, *train);
                assert!(step.commands.iter().any(|command| command.moment.stream == *prepare));
            }
        }
        assert_eq!(stream("train").is_some(), schedule.name == "captured, stages");
        assert_eq!(captured.captures, 1);
        // With more threads than streams, nobody has run commands on one thread.
        assert_eq!(found.work_ms.is_some(), found.options.streams >= found.threads);
        assert!(found.work_ms.is_none_or(|ms| ms > 0.0 && ms <= found.bound_ms));
        let times = [&found.serial, schedule].map(|one| one.step_ms.median);
        let share = found.work_ms.and_then(|ms| {
            let room = times[0] - ms;
            (room > 0.05 * times[0]).then(|| ((times[0] - times[1]) / room).max(0.0))
        });
        assert_eq!(found.captured_efficiency(schedule), share);
        assert_eq!(found.captured_efficiency(&found.concurrent), None);
        assert!(schedule.launches_per_step < found.serial.launches_per_step);
    }
    let gain = |at: usize| found.captured[at].captured.as_ref().unwrap().plan.gain;
    assert!(gain(0) == 1.0 && gain(1) >= 1.0, "one stream is a chain");
    assert_eq!(found.diagnosis.iter().filter(|finding| finding.code == "captured").count(), names.len());
}

#[test]
fn replays_give_what_the_serial_schedule_gives() {
    for (name, streams) in [("two-batch", 1), ("two-batch", 2), ("mlp", 2), ("gpt", 2)] {
        let found = quick_with(name, CompareOptions { streams, graph: true, ..quick_options(name) });
        assert!(found.identical_losses && found.identical_parameters, "{name}: {:?}", found.diagnosis);
        check_captured(&found);
    }
    assert!(quick("two-batch", 2).captured.is_empty(), "nobody asked for it");
    // Its rows have lists of any length.
    let found = quick_with("dlrm", CompareOptions { graph: true, ..quick_options("dlrm") });
    for schedule in &found.captured {
        let (captured, gain) = (schedule.captured.unwrap(), schedule.gain.unwrap());
        assert!(captured.captures > 1 && gain.identical_losses && gain.identical_parameters);
    }
    assert_eq!(found.captured.len(), 2);
}

#[test]
fn a_step_that_cannot_be_replayed_is_compared_without() {
    for name in ["two-batch", "encoder-decoder"] {
        let found = changed(name, |loss, _| {
            loss.value().item::<f32>()?;
            Ok(loss)
        });
        let refused: Vec<_> = found.diagnosis.iter().filter(|one| one.code == "not-captured").collect();
        assert_eq!((found.captured.len(), refused.len()), (0, 1), "{name}: {:?}", found.diagnosis);
        assert!(refused[0].message.contains("the host would read"), "{}", refused[0].message);
    }
}

/// The loss is multiplied by a number of the host, which the capture freezes.
#[test]
fn a_replay_that_differs_is_noticed() {
    let found = changed("two-batch", |loss, batch| loss.mul_scalar(1.0 + (batch.key % 8) as f64));
    assert!(!found.identical_losses && !found.identical_parameters);
    for schedule in &found.captured {
        let gain = schedule.gain.unwrap();
        assert!(!gain.identical_losses && !gain.identical_parameters);
    }
    let different: Vec<_> = found.diagnosis.iter().filter(|finding| finding.code == "not-equal").collect();
    assert_eq!(different.len(), 4, "{different:?}");
    assert!(different[0].message.contains("a loss differs, captured, serial order: step "), "{different:?}");
    assert_eq!(found.serial.losses, found.concurrent.losses);
}

#[test]
fn a_host_that_prepares_gives_what_the_serial_schedule_gives() {
    let workload = Small { of: tiny("augment"), change: |loss, _| Ok(loss) };
    let options = CompareOptions { graph: false, ..small_options(&workload) };
    let found = compare(&workload, &options, |_, _| ()).unwrap();
    assert!(found.identical_losses && found.identical_parameters, "{:?}", found.diagnosis);
    let hosted = found.hosted.as_ref().unwrap();
    assert_eq!((hosted.name, hosted.streams, &hosted.losses), ("host-prepared", 1, &found.serial.losses));
    let report = hosted.gain.unwrap();
    assert!(report.identical_losses && report.identical_parameters && report.loss_difference == 0.0);
    assert!(report.speedup > 0.0 && hosted.recordings.len() == 2);
    assert!(quick("two-batch", 2).hosted.is_none());
}

/// A workload with another loss.
fn changed(name: &str, change: Change) -> Comparison {
    let workload = Small { of: tiny(name), change };
    compare(&workload, &small_options(&workload), |_, _| ()).unwrap()
}

#[test]
fn bad_options_are_errors() {
    let workload = workloads::find("two-batch").unwrap();
    let good = CompareOptions { steps: 2, traced: 1, ..CompareOptions::new(workload, &Device::cpu()) };
    let fails = |options: CompareOptions| {
        let error = compare(workload, &options, |_, _| ()).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::InvalidArgument { .. }), "{error}");
    };
    fails(CompareOptions { streams: 0, ..good.clone() });
    fails(CompareOptions { streams: 257, ..good.clone() });
    fails(CompareOptions { batch: 0, ..good.clone() });
    fails(CompareOptions { batch: 100_000, ..good.clone() });
    fails(CompareOptions { steps: 0, ..good });
}
