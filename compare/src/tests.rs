use ::profile::{Busy, OtherPrograms, Profile, longest_chain_ms};
use approx::assert_abs_diff_eq;
use device::{
    CommandKind, CommandRecord, DeviceFacts, KernelRecord, LaunchRecord, Moment, RangeRecord, Recording,
    StreamId, SyncRecord, WaitRecord,
};

use super::bound::{copies_ms, engine_ms};
use super::report::efficiency;
use super::schedules::blocks;
use super::*;
use ::profile::{Schedules, diagnose_schedules};

const DEFAULT: StreamId = StreamId::from_raw(1);
const A: StreamId = StreamId::from_raw(2);
const B: StreamId = StreamId::from_raw(3);

fn command(op: &'static str, stream: StreamId, tick: u64, start_ns: u64, end_ns: u64) -> CommandRecord {
    CommandRecord::new(op, Moment { stream, tick }, start_ns, end_ns)
}

fn wait(op: &'static str, waiter: (StreamId, u64), awaited: (StreamId, u64)) -> WaitRecord {
    let moment = |(stream, tick)| Moment { stream, tick };
    WaitRecord { op, waiter: moment(waiter), awaited: moment(awaited) }
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
        device: DeviceFacts { default_stream: Some(DEFAULT), ..DeviceFacts::default() },
        ..Recording::default()
    }
}

#[test]
fn busy_time_is_a_union_and_overlap_needs_two() {
    let of = |step: &Recording| Busy::of(step, |_| true);
    assert_eq!(of(&two_lanes()), Busy { any_ns: 90, overlap_ns: 30 });
    assert_eq!(of(&Recording::default()).any_ns, 0);
    let profile = StepProfile::of(&[two_lanes()], &[A, B]);
    assert_abs_diff_eq!([profile.busy, profile.overlap][..], [0.75, 1.0 / 3.0][..], epsilon = 1e-12);
    assert_eq!(profile.lanes.iter().map(|lane| lane.commands).collect::<Vec<_>>(), [2.0, 1.0]);
}

#[test]
fn the_longest_chain_follows_streams_waits_and_the_host() {
    let mut step = two_lanes();
    let cost = |command: &CommandRecord| (command.end_ns - command.start_ns) as f64;
    assert_eq!(longest_chain_ms(&step, cost), 70.0 + 10.0);
    // A wait of A for B lengthens it only where the chain through B is longer.
    step.commands[2].start_ns = 60;
    step.waits = vec![wait("relu", (A, 2), (B, 1))];
    step.commands[1].start_ns = 10;
    assert_eq!(longest_chain_ms(&step, cost), 50.0 + 20.0 + 10.0);
    // What the default stream runs beside the lanes comes after nothing of theirs that has not ended.
    step.commands.push(command("zeros", DEFAULT, 0, 45, 55));
    assert_eq!(longest_chain_ms(&step, cost), 50.0 + 20.0 + 10.0);
    step.commands[2] = command("relu", A, 2, 65, 80);
    step.waits.clear();
    assert_eq!(longest_chain_ms(&step, cost), 40.0 + 10.0 + 15.0 + 10.0);
}

#[test]
fn nothing_recorded_is_a_profile_of_zeros() {
    let profile = StepProfile::of(&[], &[A]);
    assert_eq!((profile.wall_ms, profile.busy, profile.commands), (0.0, 0.0, 0.0));
}

/// A command that a thread launches, and runs itself if it ends within the launch. Times are microseconds.
fn launched(
    op: &'static str,
    (stream, tick): (StreamId, u64),
    (thread, launch): (u32, (u64, u64)),
    (start, end): (u64, u64),
) -> CommandRecord {
    let (start_ns, end_ns) = (1000 * launch.0, 1000 * launch.1);
    let given_ns = if end <= launch.1 { start_ns } else { end_ns };
    let launch = LaunchRecord { start_ns, given_ns, end_ns, thread, ..LaunchRecord::default() };
    CommandRecord { launch, ..command(op, stream, tick, 1000 * start, 1000 * end) }
}

/// A step of 1.1 ms: two threads run the commands of a lane each for a millisecond, then one of them steps the optimizer.
fn good_step() -> Recording {
    let range = |thread, parent| RangeRecord {
        name: "step".into(),
        thread,
        parent,
        start_ns: 0,
        end_ns: 1_030_000,
        place: None,
    };
    Recording {
        commands: vec![
            launched("matmul", (A, 1), (0, (10, 525)), (20, 520)),
            launched("matmul", (B, 1), (1, (10, 525)), (20, 520)),
            launched("relu", (A, 2), (0, (528, 1025)), (530, 1020)),
            launched("relu", (B, 2), (1, (528, 1025)), (530, 1020)),
            launched("sgd", (DEFAULT, 1), (0, (1040, 1085)), (1050, 1080)),
        ],
        ranges: vec![range(0, None), range(1, Some(0))],
        syncs: vec![sync(vec![Moment { stream: DEFAULT, tick: 1 }], 1_090_000)],
        threads: ["main", "lane 1"].map(Into::into).to_vec(),
        wall_ns: 1_100_000,
        device: DeviceFacts { default_stream: Some(DEFAULT), ..DeviceFacts::default() },
        ..Recording::default()
    }
}

/// The host waits from `start_ns` until the end of a step.
fn sync(awaited: Vec<Moment>, start_ns: u64) -> SyncRecord {
    let end_ns = 1_100_000;
    SyncRecord { op: "synchronize", awaited, start_ns, end_ns, thread: 0, range: None, place: None }
}

fn good_schedules() -> Schedules {
    Schedules {
        streams: 2,
        are_independent: true,
        threads: Some(2),
        steps: 100,
        serial_ms: Quantiles { median: 2.0, p10: 1.9, p90: 2.2 },
        concurrent_ms: 1.1,
        split_gain: 1.0,
        overlap: 0.8,
        bound_ms: 1.0,
        chain_ms: 1.05,
        inflation: 1.02,
        host_syncs: 1.0,
        ..Schedules::default()
    }
}

fn codes(step: Recording, schedules: &Schedules) -> Vec<&'static str> {
    let findings = diagnose_schedules(&Profile::of([step]), schedules);
    assert!(findings.iter().all(|finding| !finding.message.is_empty()), "{findings:?}");
    findings.iter().map(|finding| finding.code).collect()
}

#[test]
fn each_cause_in_the_figures_has_its_finding() {
    assert_eq!(codes(good_step(), &good_schedules()), ["limit"]);
    let with = |change: &dyn Fn(&mut Schedules)| {
        let mut schedules = good_schedules();
        change(&mut schedules);
        codes(good_step(), &schedules)
    };
    assert_eq!(with(&|s| s.host_syncs = 3.0), ["hidden-sync", "limit"]);
    assert_eq!(with(&|s| s.driver_allocations = 2), ["driver-allocation", "limit"]);
    assert_eq!(with(&|s| s.streams = 3), ["no-room", "limit"]);
    assert_eq!(with(&|s| s.split_gain = 1.5), ["kernels-fill-device", "limit"]);
    assert_eq!(with(&|s| s.overlap = 0.05), ["lanes-apart", "limit"]);
    let disturbed = |s: &mut Schedules| s.serial_ms.p90 = 4.0;
    assert_eq!(with(&disturbed), ["busy", "limit"]);
    assert_eq!(with(&|s| (s.overlap, s.serial_ms.p90) = (0.05, 4.0)), ["busy", "limit"]);
    assert_eq!(with(&|s| (s.steps, s.serial_ms.p90) = (19, 4.0)), ["limit"], "too few to tell");
    let others = |taken| Some(OtherPrograms { processors: 4.0, taken });
    assert_eq!(with(&|s| s.others = others(2.0)), ["limit"], "there is room for both");
    assert_eq!(with(&|s| s.others = others(3.0)), ["busy", "limit"]);
    assert_eq!(with(&|s| (s.threads, s.others) = (Some(4), others(1.0))), ["busy", "limit"]);
    assert_eq!(with(&|s| (s.threads, s.others) = (Some(4), others(0.5))), ["limit"]);
    assert_eq!(with(&|s| (s.threads, s.others) = (Some(99), others(0.5))), ["limit"]);
    assert_eq!(with(&|s| s.inflation = 1.4), ["inflation", "limit"]);
}

#[test]
fn each_cause_in_the_recording_has_its_finding() {
    let with = |change: &dyn Fn(&mut Recording)| {
        let mut step = good_step();
        change(&mut step);
        codes(step, &good_schedules())
    };
    // An op on the default stream, which a lane runs, and for which the other one waits, or does not.
    let intruder = launched("zeros", (DEFAULT, 0), (0, (526, 727)), (526, 726));
    let intrude = |step: &mut Recording| {
        step.commands[2] = launched("relu", (A, 2), (0, (728, 1025)), (730, 1020));
        step.commands.push(intruder.clone());
    };
    assert!(!with(&intrude).contains(&"default-stream"));
    let waits = |step: &mut Recording| {
        intrude(step);
        step.commands[3] = launched("relu", (B, 2), (1, (528, 1025)), (730, 1020));
        step.waits.push(wait("relu", (B, 2), (DEFAULT, 0)));
    };
    assert_eq!(with(&waits), ["serial-part", "default-stream", "limit"]);
    // One lane begins when the other one is done.
    let share = |step: &mut Recording| {
        step.commands.drain(2..4);
        step.commands[1] = launched("matmul", (B, 1), (1, (10, 1025)), (520, 1020));
        step.waits = vec![wait("matmul", (B, 1), (A, 1))];
    };
    assert_eq!(with(&share), ["over-synchronised", "limit"]);
    let uneven = |step: &mut Recording| {
        step.commands.remove(3);
        step.ranges[1].end_ns = 530_000;
    };
    assert_eq!(with(&uneven), ["imbalance", "limit"]);
    let optimizer = |step: &mut Recording| {
        step.commands[4] = launched("sgd", (DEFAULT, 1), (0, (1040, 1385)), (1050, 1380));
    };
    assert_eq!(with(&optimizer), ["serial-part", "limit"]);
}

/// The device waits for what the host launches late, or for what else it does before.
#[test]
fn a_host_that_is_late_is_told_from_launches_that_take_long() {
    let late = |launch| {
        let commands = [(A, 0), (B, 1)]
            .map(|(lane, thread)| launched("matmul", (lane, 1), (thread, launch), (500, 1020)));
        let awaited = commands.iter().map(|command| command.moment).collect();
        Recording {
            syncs: vec![sync(awaited, 510_000)],
            commands: commands.to_vec(),
            ranges: Vec::new(),
            ..good_step()
        }
    };
    let all = |step: &dyn Fn() -> Recording, change: &dyn Fn(&mut Schedules)| {
        let mut schedules = good_schedules();
        change(&mut schedules);
        codes(step(), &schedules)
    };
    for threads in [Some(2), None] {
        let on = |s: &mut Schedules| s.threads = threads;
        assert_eq!(all(&|| late((490, 500)), &on), ["host-bound", "limit"]);
        assert_eq!(all(&|| late((20, 500)), &on), ["launch-bound", "limit"]);
        assert_eq!(all(&|| late((20, 30)), &on), ["launch-bound", "limit"], "it starts late");
    }
    let apart = |s: &mut Schedules| s.overlap = 0.05;
    assert_eq!(all(&|| late((20, 500)), &apart), ["lanes-apart", "limit"]);
    // A processor of its own has room for every lane.
    let gpu = |s: &mut Schedules| (s.threads, s.streams, s.overlap) = (None, 3, 0.05);
    assert_eq!(all(&good_step, &gpu), ["limit"]);
    assert_eq!(all(&|| late((20, 500)), &gpu), ["launch-bound", "limit"]);
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
