use approx::assert_abs_diff_eq;
use device::{
    CommandKind, CommandRecord, Device, DeviceFacts, Error, KernelRecord, Moment, Recording, StreamId,
    WaitRecord,
};

use super::facts::{Facts, copies_ms, engine_ms};
use super::machine::Others;
use super::profile::{activity, critical_path_ms};
use super::*;
use crate::workloads;

const DEFAULT: StreamId = StreamId::from_raw(1);
const A: StreamId = StreamId::from_raw(2);
const B: StreamId = StreamId::from_raw(3);

fn command(op: &'static str, stream: StreamId, tick: u64, start_ns: u64, end_ns: u64) -> CommandRecord {
    CommandRecord::new(op, Moment { stream, tick }, start_ns, end_ns)
}

/// Two lanes side by side, then a join: `A` 0-40 and 50-80, `B` 20-60, the default stream 90-100.
fn two_lanes() -> Recording {
    Recording {
        commands: vec![
            command("matmul", A, 1, 0, 40),
            command("matmul", B, 1, 20, 60),
            command("relu", A, 2, 50, 80),
            command("sgd", DEFAULT, 1, 90, 100),
        ],
        wall_ns: 120,
        ..Recording::default()
    }
}

#[test]
fn busy_time_is_a_union_and_overlap_needs_two() {
    let found = activity(&two_lanes());
    assert_eq!((found.busy_ns, found.overlap_ns), (90, 30));
    assert_eq!(activity(&Recording::default()).busy_ns, 0);
    let profile = Profile::of(&[two_lanes()], &[A, B]);
    assert_abs_diff_eq!([profile.busy, profile.overlap][..], [0.75, 1.0 / 3.0][..], epsilon = 1e-12);
    assert_eq!(profile.lanes.iter().map(|lane| lane.commands).collect::<Vec<_>>(), [2.0, 1.0]);
    assert_eq!(profile.outside.map(|outside| outside.longest_op), Some("sgd"));
    assert!(profile.intruders.is_empty());
}

#[test]
fn the_longest_chain_follows_streams_waits_and_the_host() {
    let mut step = two_lanes();
    let cost = |command: &CommandRecord| (command.end_ns - command.start_ns) as f64;
    assert_eq!(critical_path_ms(&step, &[A, B], &cost), 70.0 + 10.0);
    // A wait of A for B lengthens it only where the chain through B is longer.
    let wait = |op, waiter, awaited| WaitRecord { op, waiter, awaited };
    step.commands[2].start_ns = 60;
    step.waits = vec![wait("relu", Moment { stream: A, tick: 2 }, Moment { stream: B, tick: 1 })];
    step.commands[1].start_ns = 10;
    assert_eq!(critical_path_ms(&step, &[A, B], &cost), 50.0 + 20.0 + 10.0);
    let profile = Profile::of(&[step], &[A, B]);
    assert_eq!(profile.lane_waits, [("relu", "matmul", 1.0)]);
}

#[test]
fn an_op_on_the_default_stream_between_the_lanes_is_named() {
    let mut step = two_lanes();
    step.commands.push(command("zeros", DEFAULT, 0, 30, 35));
    assert_eq!(Profile::of(&[step], &[A, B]).intruders, [("zeros", 1.0)]);
}

#[test]
fn nothing_recorded_is_a_profile_of_zeros() {
    let profile = Profile::of(&[], &[A]);
    assert_eq!((profile.wall_ms, profile.busy, profile.commands), (0.0, 0.0, 0.0));
}

fn codes(facts: &Facts) -> Vec<&'static str> {
    diagnosis::diagnose(facts).iter().map(|finding| finding.code).collect()
}

#[test]
fn each_cause_has_its_finding() {
    let good = Facts {
        lanes: 2,
        threads: Some(2),
        steps: 100,
        serial_ms: 2.0,
        serial_p90_ms: 2.2,
        concurrent_ms: 1.1,
        split_gain: 1.0,
        overlap: 0.8,
        bound_ms: 1.0,
        chain_ms: 1.05,
        chain_commands: 40.0,
        inflation: 1.02,
        lanes_ms: vec![1.0, 1.0],
        outside_ms: 0.02,
        host_syncs: 1.0,
        ..Facts::default()
    };
    assert_eq!(codes(&good), ["limit"]);
    let with = |change: &dyn Fn(&mut Facts)| {
        let mut facts = good.clone();
        change(&mut facts);
        codes(&facts)
    };
    assert_eq!(with(&|f| f.host_syncs = 3.0), ["hidden-sync", "limit"]);
    assert_eq!(with(&|f| f.driver_allocations = 2), ["driver-allocation", "limit"]);
    assert_eq!(with(&|f| f.intruders = vec![("add", 2.0)]), ["default-stream", "limit"]);
    assert_eq!(with(&|f| f.lane_waits = vec![("add", "matmul", 1.0)]), ["over-synchronised", "limit"]);
    assert_eq!(with(&|f| f.lanes = 3), ["no-room", "limit"]);
    assert_eq!(with(&|f| f.split_gain = 1.5), ["kernels-fill-device", "limit"]);
    assert_eq!(with(&|f| f.overlap = 0.05), ["lanes-apart", "limit"]);
    let disturbed = |f: &mut Facts| f.serial_p90_ms = 4.0;
    assert_eq!(with(&disturbed), ["busy", "limit"]);
    assert_eq!(with(&|f| (f.overlap, f.serial_p90_ms) = (0.05, 4.0)), ["busy", "limit"]);
    assert_eq!(with(&|f| (f.steps, f.serial_p90_ms) = (19, 4.0)), ["limit"], "too few to tell");
    let others = |taken| Some(Others { processors: 4.0, taken });
    assert_eq!(with(&|f| f.others = others(2.0)), ["limit"], "there is room for both");
    assert_eq!(with(&|f| f.others = others(3.0)), ["busy", "limit"]);
    assert_eq!(with(&|f| (f.threads, f.others) = (Some(4), others(1.0))), ["busy", "limit"]);
    assert_eq!(with(&|f| (f.threads, f.others) = (Some(4), others(0.5))), ["limit"]);
    assert_eq!(with(&|f| (f.threads, f.others) = (Some(99), others(0.5))), ["limit"]);
    assert_eq!(with(&|f| f.lanes_ms = vec![1.0, 0.5]), ["imbalance", "limit"]);
    assert_eq!(with(&|f| f.inflation = 1.4), ["inflation", "limit"]);
    assert_eq!(with(&|f| f.chain_ms = 0.5), ["host-bound", "limit"]);
    assert_eq!(with(&|f| f.outside_ms = 0.3), ["serial-part", "limit"]);
    // A processor of its own has room for every lane, and the time between its commands is no thread's.
    let gpu = |change: &dyn Fn(&mut Facts)| {
        with(&|f| {
            (f.threads, f.lanes, f.chain_ms, f.overlap) = (None, 3, 0.5, 0.05);
            change(f);
        })
    };
    assert_eq!(gpu(&|_| ()), ["limit"]);
    assert_eq!(gpu(&|f| f.launch_ms = 1.0), ["host-bound", "limit"]);
}

#[test]
fn kernels_keep_multiprocessors_busy_if_all_of_a_command_are_known() {
    let kernel = |name: &str, blocks| KernelRecord {
        name: name.into(),
        blocks: [blocks, 1, 1],
        threads: [128, 1, 1],
        shared_bytes: 0,
        registers: 32,
        blocks_per_multiprocessor: 2,
        duration_ns: None,
    };
    // Two milliseconds on a device with room for eight blocks.
    let step = |kernels: &[KernelRecord], library_calls| {
        let mut product = command("matmul", A, 1, 0, 2_000_000);
        (product.kernels, product.library_calls) = (kernels.to_vec(), library_calls);
        let device = DeviceFacts { multiprocessors: 4, ..DeviceFacts::default() };
        engine_ms(&Recording { commands: vec![product], device, ..Recording::default() })
    };
    let (product, sum) = (kernel("cutlass_80_tensorop", 8), kernel("splitKreduce", 2));
    assert_eq!(step(std::slice::from_ref(&product), 0), 2.0);
    assert_eq!(step(&[product.clone(), sum.clone()], 0), 0.5);
    let timed = |kernel: &KernelRecord, duration_ns| KernelRecord { duration_ns, ..kernel.clone() };
    assert_eq!(step(&[timed(&product, Some(1_600_000)), timed(&sum, Some(400_000))], 0), 1.7);
    assert_eq!(
        step(&[timed(&product, Some(1_600_000)), sum.clone()], 0),
        1.7,
        "one that is not timed takes the rest"
    );
    // Two of eight blocks for so long, and the rest by one that fills the device.
    assert_eq!(step(&[product.clone(), timed(&sum, Some(400_000))], 0), 1.7);
    assert_eq!(step(&[product], 1), 0.0);
    assert_eq!(step(&[], 0), 0.0);
}

#[test]
fn copies_of_each_way_have_an_engine() {
    let copy = |kind| CommandRecord { kind, ..command("copy", A, 1, 0, 2_000_000) };
    let up = || copy(CommandKind::Upload { bytes: 8, pinned: true });
    let down = || copy(CommandKind::Download { bytes: 8 });
    let step = |commands| copies_ms(&Recording { commands, ..Recording::default() });
    assert_eq!(step(vec![up(), up(), down()]), 4.0);
    assert_eq!(step(vec![up(), down(), down(), down()]), 6.0);
    assert_eq!(step(vec![copy(CommandKind::Compute)]), 0.0);
}

#[test]
fn efficiency_is_the_part_of_the_room_that_is_used() {
    assert_eq!(efficiency(2.0, 1.25, 1.0), Some(0.75));
    assert_eq!(efficiency(2.0, 3.0, 1.0), Some(0.0), "slower is no use");
    assert_eq!(efficiency(2.0, 1.9, 1.95), None, "no room");
}

#[test]
fn blocks_add_up() {
    for steps in [0, 1, 7, 12, 100, 1000] {
        let sizes: Vec<usize> = blocks(steps).collect();
        assert_eq!(sizes.iter().sum::<usize>(), steps);
        assert!(sizes.iter().all(|&size| (1..=32).contains(&size)));
    }
}

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
type Change = fn(autograd::Var, &crate::Batch) -> Result<autograd::Var>;

/// A model with another loss.
#[derive(crate::Module)]
struct Changed {
    #[module(flatten)]
    model: Box<dyn workloads::Model>,
    #[module(skip)]
    change: Change,
}

impl workloads::Model for Changed {
    fn prepare(&self, batch: crate::Batch) -> Result<crate::Batch> {
        self.model.prepare(batch)
    }
    fn batch_loss(&self, batch: &crate::Batch) -> Result<autograd::Var> {
        (self.change)(self.model.batch_loss(batch)?, batch)
    }
    fn evaluate(&self, data: &crate::InMemory, device: &Device) -> Result<workloads::Evaluation> {
        self.model.evaluate(data, device)
    }
}

/// The workload of that name, with small images if they have several sizes.
fn tiny(name: &str) -> &'static dyn Workload {
    let workload = workloads::find(name).unwrap();
    workload.at_scale(Scale::Tiny).unwrap_or(workload)
}

fn small_options(workload: &Small) -> CompareOptions {
    let cpu = Device::cpu_with(device::CpuConfig { threads: Some(2), ..Default::default() });
    let options = CompareOptions::new(workload, &cpu);
    CompareOptions { batch: 2, steps: 4, warmup: 1, traced: 2, graph: true, ..options }
}

impl Workload for Small {
    fn name(&self) -> &'static str {
        self.of.name()
    }
    fn about(&self) -> &'static str {
        self.of.about()
    }
    fn default_batch(&self) -> usize {
        2
    }
    fn default_epochs(&self) -> u64 {
        1
    }
    fn overlap(&self) -> Overlap {
        self.of.overlap()
    }
    fn model(&self, seed: u64, device: &Device) -> Result<Box<dyn workloads::Model>> {
        Ok(Box::new(Changed { model: self.of.model(seed, device)?, change: self.change }))
    }
    fn source(&self, device: &Device) -> Device {
        self.of.source(device)
    }
    fn prepares_on_host(&self) -> bool {
        self.of.prepares_on_host()
    }
    fn branched(&self, seed: u64, device: &Device) -> Result<Box<dyn workloads::Model>> {
        self.of.branched(seed, device)
    }
    fn data(&self, seed: u64, device: &Device) -> Result<(crate::InMemory, crate::InMemory)> {
        let (train, _) = self.of.data(seed, device)?;
        Ok((train.select(&[0, 1, 2, 3, 4, 5])?, train.select(&[6])?))
    }
    fn optimizer(&self, parameters: Vec<autograd::Var>, lanes: usize) -> Result<Box<dyn crate::Optimizer>> {
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
        assert!(matches!(error, Error::InvalidArgument { argument: "streams", .. }), "{error}");
    }
}

fn check_captured(found: &Comparison) {
    let names: Vec<_> = found.captured.iter().map(|one| one.name).collect();
    let orders = ["captured, serial order", "captured, data order"];
    let stages = found.concurrent.streams_by_name.iter().any(|(_, name)| name == "train");
    assert_eq!(names, [&orders[..], if stages { &["captured, stages"] } else { &[] }].concat());
    for schedule in &found.captured {
        let captured = schedule.captured.as_ref().unwrap();
        assert!(captured.identical_losses && captured.identical_parameters, "{:?}", found.diagnosis);
        assert_eq!(schedule.losses, found.serial.losses);
        assert!(captured.plan.commands > 5 && captured.speedup > 0.0 && captured.capture_ms > 0.0);
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
        let share = found.work_ms.and_then(|ms| efficiency(times[0], times[1], ms));
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
        let captured = schedule.captured.unwrap();
        assert!(captured.captures > 1 && captured.identical_losses && captured.identical_parameters);
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
        let captured = schedule.captured.as_ref().unwrap();
        assert!(!captured.identical_losses && !captured.identical_parameters);
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
    let report = hosted.hosted.unwrap();
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
        assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
    };
    fails(CompareOptions { streams: 0, ..good.clone() });
    fails(CompareOptions { streams: 257, ..good.clone() });
    fails(CompareOptions { batch: 0, ..good.clone() });
    fails(CompareOptions { batch: 100_000, ..good.clone() });
    fails(CompareOptions { steps: 0, ..good });
}
