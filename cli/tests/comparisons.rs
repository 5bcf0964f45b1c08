//! The workloads, compared: all schedules give the serial one's bits.
#![allow(clippy::unwrap_used, clippy::panic)]

use compare::{CompareOptions, ComparisonReport};
use streamgrad::models::{Batch, InMemory, Module, Optimizer};
use streamgrad::{CpuConfig, Device, ErrorKind, Result, Var};
use workloads::{Evaluation, Model, Scale, Workload, WorkloadInfo, comparison};

fn quick_options() -> CompareOptions {
    CompareOptions {
        steps: 9,
        warmup: 3,
        traced: 3,
        captured: false,
        explored: 0,
        ..CompareOptions::default()
    }
}

fn quick_with(name: &str, options: CompareOptions) -> ComparisonReport {
    comparison(workloads::find(name).unwrap(), &Device::cpu(), 16, options).unwrap().run().unwrap()
}

fn quick(name: &str, streams: usize) -> ComparisonReport {
    quick_with(name, CompareOptions { streams, ..quick_options() })
}

#[test]
fn lanes_give_what_the_serial_schedule_gives() {
    for (name, streams) in
        [("two-batch", 1), ("two-batch", 2), ("two-batch", 3), ("mlp", 2), ("gpt", 2), ("dlrm", 2)]
    {
        let found = quick(name, streams);
        assert!(found.is_identical(), "{name}, {streams}: {:?}", found.diagnosis);
        assert_eq!((found.identical_losses, found.identical_parameters), (Some(true), Some(true)));
        assert_eq!(found.identical_results, None, "there are only losses");
        let concurrent = found.concurrent.as_ref().unwrap();
        assert_eq!(found.serial.losses, concurrent.losses);
        assert_eq!(concurrent.losses.len(), 9);
        assert_eq!((found.serial.streams, concurrent.streams), (1, streams));
        assert_eq!(found.serial.recordings.len(), 3);
        assert_eq!(found.serial.waits_per_step, 0.0, "one stream waits for nobody");
        assert!(concurrent.profile.lanes.iter().all(|lane| lane.commands > 5.0));
        assert!(found.gain().unwrap().speedup.is_none_or(|speedup| speedup > 0.0));
        assert!(found.limits.unwrap().bound_ms > 0.0);
        let codes: Vec<_> = found.diagnosis.iter().map(|finding| finding.code).collect();
        assert_eq!(codes[codes.len() - 2..], ["limit", "left-out"]);
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

fn small_options() -> CompareOptions {
    CompareOptions { steps: 4, warmup: 1, traced: 2, explored: 0, ..CompareOptions::default() }
}

fn small_with(workload: &Small, options: CompareOptions) -> Result<ComparisonReport> {
    let cpu = Device::cpu_with(CpuConfig { threads: Some(2), ..Default::default() });
    comparison(workload, &cpu, 2, options)?.run()
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
        let options = CompareOptions { streams, ..small_options() };
        let found = small_with(&workload, options.clone()).unwrap();
        check_captured(&found);
        assert!(found.is_identical(), "{name}: {:?}", found.diagnosis);
        let concurrent = found.concurrent.as_ref().unwrap();
        assert_eq!((found.batches_per_step, concurrent.losses.len()), (1, 4));
        assert_eq!(found.serial.losses, concurrent.losses);
        let named = &concurrent.streams_by_name;
        assert_eq!(named.iter().skip(1).map(|(_, name)| name.as_str()).collect::<Vec<_>>(), names);
        // Both streams have work; whether at the same time is the machine's affair.
        let lanes = &concurrent.profile.lanes;
        assert!(lanes.len() == 2 && lanes.iter().all(|lane| lane.commands >= 2.0), "{name}: {lanes:?}");
        assert_eq!(found.serial.profile.overlap, 0.0, "{name}");
        let error = small_with(&workload, CompareOptions { streams: 3, ..options }).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::InvalidArgument { argument: "streams", .. }), "{error}");
    }
}

fn check_captured(found: &ComparisonReport) {
    let names: Vec<_> = found.captured().map(|one| one.name).collect();
    let orders = ["captured, serial order", "captured, data order"];
    let concurrent = found.concurrent.as_ref().unwrap();
    let stages = concurrent.streams_by_name.iter().any(|(_, name)| name == "train");
    assert_eq!(names, [&orders[..], if stages { &["captured, stages"] } else { &[] }].concat());
    for schedule in found.captured() {
        let (captured, gain) = (schedule.captured.unwrap(), schedule.gain.unwrap());
        assert!(gain.is_identical(), "{:?}", found.diagnosis);
        assert_eq!(schedule.losses, found.serial.losses);
        assert!(captured.plan.commands > 5 && captured.capture_ms > 0.0);
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
        let limits = found.limits.unwrap();
        assert_eq!(limits.work_ms.is_some(), found.options.streams >= found.threads);
        assert!(limits.work_ms.is_none_or(|ms| ms > 0.0 && ms <= limits.bound_ms));
        let times = [&found.serial, schedule].map(|one| one.step_ms.median);
        let share = gain.speedup.and(limits.work_ms).and_then(|ms| {
            let room = times[0] - ms;
            (room > 0.05 * times[0]).then(|| ((times[0] - times[1]) / room).max(0.0))
        });
        assert_eq!(found.captured_efficiency(schedule), share);
        assert_eq!(found.captured_efficiency(concurrent), None);
        assert!(schedule.launches_per_step < found.serial.launches_per_step);
    }
    let gain = |at: usize| found.captured().nth(at).unwrap().captured.as_ref().unwrap().plan.gain;
    assert!(gain(0) == 1.0 && gain(1) >= 1.0, "one stream is a chain");
    assert_eq!(found.diagnosis.iter().filter(|finding| finding.code == "captured").count(), names.len());
}

#[test]
fn replays_give_what_the_serial_schedule_gives() {
    let options = CompareOptions { captured: true, ..quick_options() };
    for (name, streams) in [("two-batch", 1), ("two-batch", 2), ("mlp", 2), ("gpt", 2)] {
        let found = quick_with(name, CompareOptions { streams, ..options.clone() });
        assert!(found.is_identical(), "{name}: {:?}", found.diagnosis);
        check_captured(&found);
    }
    assert_eq!(quick("two-batch", 2).captured().count(), 0, "nobody asked for it");
    // Its rows have lists of any length.
    let found = quick_with("dlrm", options);
    for schedule in found.captured() {
        assert!(schedule.captured.unwrap().captures > 1 && schedule.gain.unwrap().is_identical());
    }
    assert_eq!(found.captured().count(), 2);
}

#[test]
fn a_step_that_cannot_be_replayed_is_compared_without() {
    for name in ["two-batch", "encoder-decoder"] {
        let found = changed(name, |loss, _| {
            loss.value().item::<f32>()?;
            Ok(loss)
        });
        let refused: Vec<_> = found.diagnosis.iter().filter(|one| one.code == "not-captured").collect();
        assert_eq!((found.captured().count(), refused.len()), (0, 1), "{name}: {:?}", found.diagnosis);
        assert!(refused[0].message.contains("the host would read"), "{}", refused[0].message);
    }
}

/// The loss is multiplied by a number of the host, which the capture freezes.
#[test]
fn a_replay_that_differs_is_noticed() {
    let found = changed("two-batch", |loss, batch| loss.mul_scalar(1.0 + (batch.key % 8) as f64));
    assert_eq!((found.identical_losses, found.identical_parameters), (Some(false), Some(false)));
    for schedule in found.captured() {
        let gain = schedule.gain.unwrap();
        assert!(!gain.identical_losses && !gain.identical_parameters);
    }
    let different: Vec<_> = found.diagnosis.iter().filter(|finding| finding.code == "not-equal").collect();
    assert_eq!(different.len(), 4, "{different:?}");
    assert!(different[0].message.contains("a loss differs, captured, serial order: step "), "{different:?}");
    assert_eq!(found.serial.losses, found.concurrent.unwrap().losses);
}

#[test]
fn a_host_that_prepares_gives_what_the_serial_schedule_gives() {
    let workload = Small { of: tiny("augment"), change: |loss, _| Ok(loss) };
    let found = small_with(&workload, CompareOptions { captured: false, ..small_options() }).unwrap();
    assert!(found.is_identical(), "{:?}", found.diagnosis);
    let [hosted] = &found.others[..] else { panic!("{:?}", found.diagnosis) };
    assert_eq!((hosted.name, hosted.streams, &hosted.losses), ("host-prepared", 1, &found.serial.losses));
    let gain = hosted.gain.unwrap();
    assert!(gain.is_identical() && gain.loss_difference == 0.0);
    assert_eq!(hosted.recordings.len(), 2);
    assert!(quick("two-batch", 2).others.is_empty());
}

/// A workload with another loss.
fn changed(name: &str, change: Change) -> ComparisonReport {
    small_with(&Small { of: tiny(name), change }, small_options()).unwrap()
}

#[test]
fn bad_options_are_errors() {
    let workload = workloads::find("two-batch").unwrap();
    let good = CompareOptions { steps: 2, traced: 1, ..CompareOptions::default() };
    let fails = |batch, options: CompareOptions| {
        let error = comparison(workload, &Device::cpu(), batch, options).err().unwrap();
        assert!(matches!(error.kind(), ErrorKind::InvalidArgument { .. }), "{error}");
    };
    fails(4, CompareOptions { streams: 0, ..good.clone() });
    fails(4, CompareOptions { streams: 257, ..good.clone() });
    fails(0, good.clone());
    fails(100_000, good.clone());
    fails(4, CompareOptions { steps: 0, ..good });
}
