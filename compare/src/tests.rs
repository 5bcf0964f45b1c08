use approx::assert_abs_diff_eq;
use device::{
    CommandKind, CommandRecord, DeviceFacts, KernelRecord, Moment, Recording, StreamId, WaitRecord,
};

use super::facts::{Facts, copies_ms, engine_ms};
use super::machine::Others;
use super::profile::{activity, critical_path_ms};
use super::*;

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
