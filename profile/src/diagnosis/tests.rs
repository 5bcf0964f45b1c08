//! Rules on recordings with times of one's own, where no busy machine has a say.

use device::{
    Access, CommandKind, DeviceFacts, DriverCallRecord, HandOffRecord, KernelRecord, LaunchRecord, Recording,
    SyncRecord,
};

use super::super::tests::{A, B, at, command, sync, wait};
use super::*;
use crate::quantiles::Quantiles;

/// A millisecond.
const MS: u64 = 1_000_000;

fn found(recording: Recording) -> Vec<Finding> {
    diagnose(&Profile::of([Recording { threads: vec!["main".into(), "stage".into()], ..recording }]))
}

fn codes(findings: &[Finding]) -> Vec<&'static str> {
    findings.iter().map(|finding| finding.code).collect()
}

fn access(start: usize, write: bool) -> Access {
    Access { start, end: start + 8, write }
}

/// A thousand commands that take nothing, each launched in 4 us of which 3 are the recorder's, 2 us apart.
fn tiny(apart_ns: u64) -> Recording {
    let mut commands = Vec::new();
    for tick in 0..1000 {
        let start = tick * (4000 + apart_ns);
        let mut tiny = command("tiny", at(A, tick + 1), (0, start, start + 4000), start + 4000, start + 4001);
        tiny.launch.recorder_ns = 3000;
        commands.push(tiny);
    }
    Recording { commands, ..Recording::default() }
}

#[test]
fn the_way_from_launch_to_launch_is_what_a_launch_costs() {
    let findings = found(tiny(2000));
    assert_eq!(codes(&findings), ["launch-bound"]);
    // A launch without the recorder's part, and the way to the next one.
    assert!((findings[0].cost_ms - 3.0).abs() < 0.01, "{findings:?}");
    // What takes longer than two launches is something else that the host does.
    let findings = found(tiny(9000));
    assert_eq!(codes(&findings), ["host-bound"], "{findings:?}");
}

#[test]
fn what_recording_takes_is_no_reason() {
    let mut recording = tiny(100);
    recording.commands.iter_mut().for_each(|command| command.launch.recorder_ns = 3950);
    let last = recording.commands.len() - 1;
    // The rest of the step is work: 150 us of 650 are launches, and 4 ms of recording are left out.
    recording.commands[last].end_ns += MS / 2;
    let findings = found(recording.clone());
    assert_eq!(codes(&findings), ["launch-bound"], "{findings:?}");
    recording.commands[last].end_ns += MS;
    assert_eq!(codes(&found(recording)), [""; 0]);
}

/// Commands of `a` and `b` one after the other, since they use the same memory as given.
fn in_order(first: Vec<Access>, second: Vec<Access>) -> Recording {
    let mut commands = vec![
        command("first", at(A, 1), (0, 0, 10), 10, 5 * MS),
        command("second", at(B, 1), (0, 10, 20), 5 * MS, 10 * MS),
    ];
    (commands[0].accesses, commands[1].accesses) = (first, second);
    Recording { commands, waits: vec![wait("second", at(B, 1), at(A, 1))], ..Recording::default() }
}

#[test]
fn only_memory_that_both_write_is_one_too_few() {
    let (read, write) = (access(0, false), access(0, true));
    let scratch = found(in_order(vec![write], vec![write]));
    assert_eq!(codes(&scratch), ["over-synchronised"]);
    assert!(scratch[0].message.contains("both write the same memory"));
    // What the second one reads of the first one's results is why it waits.
    let data = &["data-dependent"][..];
    let needed = [
        (vec![write], vec![read], data),
        (vec![read], vec![write], &[]),
        (vec![read, write], vec![read, write], data),
        (vec![read, write], vec![write], &[]),
        (vec![write], vec![read, write], data),
    ];
    for (first, second, expected) in needed {
        let case = format!("{first:?} {second:?}");
        assert_eq!(codes(&found(in_order(first, second))), expected, "{case}");
    }
}

#[test]
fn waits_are_needed_for_what_they_keep_in_order() {
    for (used, expected) in [(0, ["data-dependent"]), (64, ["over-synchronised"])] {
        let mut recording = in_order(vec![access(0, true)], Vec::new());
        recording.commands[1].kind = CommandKind::Wait;
        recording.commands[1].end_ns = recording.commands[1].start_ns;
        let mut reader = command("reader", at(B, 2), (0, 20, 30), 5 * MS, 10 * MS);
        reader.accesses = vec![access(used, false)];
        recording.commands.push(reader);
        assert_eq!(codes(&found(recording)), expected, "{used}");
    }
}

#[test]
fn a_stream_of_copies_has_nothing_to_give() {
    let copying = |kind| {
        let mut copy = command("copy", at(B, 1), (0, 0, 0), 1, 2 * MS);
        copy.kind = kind;
        let commands = vec![command("train", at(A, 1), (0, 0, 0), 1, 10 * MS), copy];
        codes(&found(Recording { commands, ..Recording::default() })).to_vec()
    };
    assert_eq!(copying(CommandKind::Compute), ["imbalance"]);
    assert_eq!(copying(CommandKind::Upload { bytes: 8, pinned: true }), [""; 0]);
}

/// The host waits for what a thread of its own makes: in a range there, or by a command that runs there.
#[test]
fn who_waits_for_a_stage_is_told_of_the_stage() {
    let range = RangeRecord {
        name: "augment".into(),
        thread: 1,
        parent: None,
        start_ns: 0,
        end_ns: 8 * MS,
        place: None,
    };
    let handoff = HandOffRecord { from: 1, since_ns: 8 * MS, thread: 0, at_ns: 8 * MS + 100 };
    let recording = Recording {
        commands: vec![command("train", at(A, 1), (0, 8 * MS + 200, 8 * MS + 300), 8 * MS + 400, 10 * MS)],
        ranges: vec![range],
        handoffs: vec![handoff],
        syncs: vec![sync(Vec::new(), 0, 10)],
        ..Recording::default()
    };
    let findings = found(recording.clone());
    assert_eq!(codes(&findings), ["host-bound"]);
    assert!(findings[0].message.contains("in the range `augment`"), "{}", findings[0].message);
    assert!(findings[0].message.contains("a thread of its own already"), "{}", findings[0].message);

    let mut computed = recording.clone();
    computed.commands.push(command("resize", at(B, 1), (1, 10, 8 * MS - 10), 20, 8 * MS - 20));
    assert_eq!(
        codes(&found(computed)),
        ["imbalance"],
        "the stages are uneven, and nothing is said of the host"
    );

    let nobody_said_so = Recording { handoffs: Vec::new(), ..recording };
    assert!(found(nobody_said_so)[0].message.contains("outside of all ranges"));
}

/// Of two collectives the second one runs beside an op for a while; the first one's end is the second one's beginning.
#[test]
fn communication_is_exposed_where_nothing_runs_beside_it() {
    let collective = |op, tick, start, end| {
        let mut collective = command(op, at(B, tick), (0, 0, 0), start, end);
        collective.kind = CommandKind::Collective { bytes: 8 };
        collective
    };
    let commands = vec![
        command("op", at(A, 1), (0, 0, 0), 1, 4 * MS),
        collective("all_gather", 1, 2 * MS, 6 * MS),
        command("op", at(A, 2), (0, 0, 0), 7 * MS, 9 * MS),
        collective("all_reduce", 2, 5 * MS, 10 * MS),
    ];
    let recording = Recording { commands, ..Recording::default() };
    let found = Profile::of([recording.clone()]).communication();
    let figures: Vec<_> = found.iter().map(|of| (of.op, of.calls, of.total_ms, of.exposed_ms)).collect();
    assert_eq!(figures, [("all_gather", 1, 4.0, 2.0), ("all_reduce", 1, 5.0, 2.0)]);
    let all = self::found(recording);
    let found = all.iter().find(|finding| finding.code == "exposed-communication").unwrap();
    assert_eq!((found.code, found.cost_ms), ("exposed-communication", 4.0));
    assert!(found.message.contains("mostly by all_gather"), "{}", found.message);
}

/// A library's name may have a thousand characters.
#[test]
fn a_kernel_that_leaves_no_room_is_named_in_a_line() {
    let kernel = |blocks, name: String| KernelRecord {
        name: name.into(),
        blocks: [blocks, 1, 1],
        threads: [128, 1, 1],
        shared_bytes: 0,
        registers: 32,
        blocks_per_multiprocessor: 2,
        duration_ns: None,
    };
    let of = |blocks, name: &str| {
        let mut commands = vec![
            command("matmul", at(A, 1), (0, 0, 10), 10, 5 * MS),
            command("matmul", at(B, 1), (0, 10, 20), 20, 5 * MS),
        ];
        commands.iter_mut().for_each(|product| product.kernels = vec![kernel(blocks, name.to_owned())]);
        let device =
            DeviceFacts { multiprocessors: 4, multiprocessor_threads: 2048, ..DeviceFacts::default() };
        found(Recording { commands, device, ..Recording::default() })
    };
    let (short, long) = (of(8, "gemm"), of(8, &"\u{e9}_ZN7cutlass7Kernel2I".repeat(40)));
    assert_eq!([codes(&short), codes(&long)], [["no-room"]; 2]);
    assert!(short[0].message.starts_with("the kernel gemm of matmul leaves no room"), "{}", short[0].message);
    assert!(long[0].message.len() < short[0].message.len() + 80, "{}", long[0].message);
    assert_eq!(codes(&of(7, "gemm")), [""; 0]);
}

/// A command on `a`, then one on `b` that uses memory as given, by one thread that runs both or has others run them.
fn chain(inline: bool, second: Vec<Access>) -> Recording {
    let mut recording = in_order(vec![access(0, true)], second);
    for (at, command) in recording.commands.iter_mut().enumerate() {
        command.launch.place = Some(at as u32);
        if inline {
            let LaunchRecord { start_ns, given_ns, end_ns, .. } = &mut command.launch;
            (*start_ns, *given_ns, *end_ns) = (command.start_ns, command.start_ns, command.end_ns);
        }
    }
    if inline {
        recording.waits.clear();
    }
    let place = |line| Place { function: "f".into(), file: "a.rs".into(), line };
    recording.places = vec![place(7), place(8)];
    recording
}

#[test]
fn streams_that_need_each_others_data_are_told_so_with_both_lines() {
    for inline in [true, false] {
        let findings = found(chain(inline, vec![access(0, false), access(64, true)]));
        assert_eq!(codes(&findings), ["data-dependent"], "{inline} {findings:?}");
        let Finding { message, place, cost_ms, .. } = &findings[0];
        assert!(message.contains("its second at a.rs:8 reads what first at a.rs:7 writes"), "{message}");
        assert!(message.contains("5.000 ms a step") && message.contains("another batch"), "{message}");
        assert_eq!(place.as_ref().unwrap().line, 8);
        assert!((cost_ms - 5.0).abs() < 1e-3, "{cost_ms}");
    }
    // What needs nothing could have been launched before, for as long as it takes.
    let findings = found(chain(true, vec![access(64, true)]));
    assert_eq!(codes(&findings), ["depth-first"]);
    assert!((findings[0].cost_ms - 5.0).abs() < 1e-3, "{findings:?}");
    let mut short = chain(true, vec![access(64, true)]);
    short.commands[1].end_ns = 5 * MS + 10;
    assert!(!codes(&found(short)).contains(&"depth-first"));
}

/// What is needed through another command is needed, too; nothing is said of it where that one ran on the stream itself.
#[test]
fn what_is_needed_through_others_could_not_have_been_launched_before() {
    let mut recording = chain(true, vec![access(128, false)]);
    let middle = command("middle", at(StreamId::from_raw(9), 1), (0, 5 * MS, 5 * MS + 1), 5 * MS, 5 * MS + 1);
    recording
        .commands
        .insert(1, CommandRecord { accesses: vec![access(0, false), access(128, true)], ..middle });
    assert!(!codes(&found(recording)).contains(&"depth-first"));
}

/// A stage that takes less time than the one before it waits for data, which says nothing of the two.
#[test]
fn stages_that_run_at_once_are_not_told_of_their_data() {
    let findings = found(stages());
    assert!(!codes(&findings).contains(&"data-dependent"), "{findings:?}");
}

fn stages() -> Recording {
    let mut recording = Recording::default();
    for tick in 1..=4 {
        let first = command("first", at(A, tick), (0, tick, tick + 1), 4 * MS * (tick - 1), 4 * MS * tick);
        let second =
            command("second", at(B, tick), (1, tick, tick + 1), 4 * MS * tick, 4 * MS * tick + 3 * MS);
        let item = access(64 * tick as usize, true);
        let read = Access { write: false, ..item };
        recording.commands.push(CommandRecord { accesses: vec![item], ..first });
        recording.commands.push(CommandRecord { accesses: vec![read], ..second });
        recording.waits.push(wait("second", at(B, tick), at(A, tick)));
    }
    recording
}

/// Collectives of two streams that write the token of their communicator, or memory of tensors.
fn collectives(second: Vec<Access>) -> Recording {
    let mut recording = in_order(vec![access(0, true)], second);
    recording.commands.iter_mut().for_each(|command| command.kind = CommandKind::Collective { bytes: 8 });
    recording
}

#[test]
fn streams_with_one_communicator_are_told_to_duplicate_it() {
    let findings = found(collectives(vec![access(0, true)]));
    let found = findings.iter().find(|finding| finding.code == "over-synchronised").unwrap();
    assert!(found.message.contains("a duplicate of the communicator"), "{}", found.message);
    assert!(!found.message.contains("same memory"), "{}", found.message);
}

/// A stream of a lane each, with a collective that nothing runs beside.
fn lanes(recording: Recording) -> Recording {
    let name = "ConcurrentBatches::step".into();
    let range = RangeRecord { name, thread: 0, parent: None, start_ns: 0, end_ns: 10 * MS, place: None };
    Recording { ranges: vec![range], ..recording }
}

#[test]
fn lanes_are_not_advised_to_use_lanes() {
    for recording in [collectives(vec![access(0, true)]), chain(true, Vec::new())] {
        let advised = |recording| {
            found(recording)
                .iter()
                .any(|f| f.message.contains("on lanes") || f.message.contains("`ConcurrentBatches`"))
        };
        assert!(advised(recording.clone()));
        assert!(!advised(lanes(recording)));
    }
}

/// An op on the default stream between two others, of which one waits for it.
fn stray(launched: (u64, u64), in_backward: bool) -> Recording {
    let default = StreamId::from_raw(3);
    let mut stray = command("stray", at(default, 1), (0, launched.0, launched.1), 40, 5 * MS);
    stray.launch.in_backward = in_backward;
    let commands = vec![
        command("left", at(A, 1), (0, 0, 10), 10, 5 * MS),
        stray,
        command("right", at(B, 1), (0, 20, 30), 5 * MS, 10 * MS),
    ];
    let device = DeviceFacts { default_stream: Some(default), ..DeviceFacts::default() };
    Recording {
        commands,
        device,
        waits: vec![wait("right", at(B, 1), at(default, 1))],
        ..Recording::default()
    }
}

/// The host waits by `op` for a command, and launches the next one three milliseconds after that, while `beside` runs.
fn synced(op: &'static str, beside: Option<CommandRecord>) -> Recording {
    let first = command("train", at(A, 1), (0, 0, 10), 10, 5 * MS);
    let second = command("train", at(A, 2), (0, 8 * MS, 8 * MS + 10), 8 * MS + 10, 12 * MS);
    let waited = SyncRecord { op, ..sync(vec![at(A, 1)], 20, 5 * MS + 1) };
    let commands = [first, second].into_iter().chain(beside).collect();
    Recording { commands, syncs: vec![waited], ..Recording::default() }
}

/// A call of the driver in a step of two, numbered from 0.
fn allocated(step: u64, bytes: usize) -> Recording {
    let start_ns = step * 10 * MS + MS;
    let call = DriverCallRecord { bytes, stream: A, start_ns, end_ns: start_ns + MS, thread: 0, place: None };
    let commands = vec![command("train", at(A, 1), (0, 0, 10), 10, 20 * MS)];
    Recording { commands, driver_calls: vec![call], steps: vec![10 * MS, 20 * MS], ..Recording::default() }
}

/// Two commands of a kind, on a stream each, on a device with this many copy engines that is the host or not.
fn twice(kind: CommandKind, second: u64, copy_engines: u32, host_threads: Option<usize>) -> Recording {
    let mut commands = vec![
        command("first", at(A, 1), (0, 0, MS), MS, 6 * MS),
        command("second", at(B, 1), (0, MS, 2 * MS), second, second + 5 * MS),
    ];
    commands.iter_mut().for_each(|command| command.kind = kind);
    let device = DeviceFacts { copy_engines, host_threads, ..DeviceFacts::default() };
    Recording { commands, device, ..Recording::default() }
}

/// What is found in a comparison of two schedules: of commands on two streams for a millisecond, and one on the default stream.
fn compared(optimizer_ns: u64, change: impl Fn(&mut Schedules)) -> Vec<Finding> {
    let default = StreamId::from_raw(3);
    let commands = vec![
        command("train", at(A, 1), (0, 0, 10), 10, 10 * MS),
        command("train", at(B, 1), (1, 0, 10), 10, 10 * MS),
        command("sgd", at(default, 1), (0, 20, 30), 10 * MS, 10 * MS + optimizer_ns),
    ];
    let device = DeviceFacts { default_stream: Some(default), ..DeviceFacts::default() };
    let threads = vec!["main".into(), "lane".into()];
    let mut schedules = Schedules {
        streams: 2,
        are_independent: true,
        threads: Some(2),
        steps: 100,
        serial_ms: Quantiles { median: 20.0, p10: 19.0, p90: 22.0 },
        concurrent_ms: 11.0,
        split_gain: 1.0,
        overlap: 0.8,
        bound_ms: 10.0,
        chain_ms: 10.0,
        inflation: 1.02,
        host_syncs: 1.0,
        ..Schedules::default()
    };
    change(&mut schedules);
    diagnose_schedules(
        &Profile::of([Recording { commands, device, threads, ..Recording::default() }]),
        &schedules,
    )
}

/// No figure that threads and streams cannot explain.
#[test]
fn bounds_that_are_not_credible_are_not_told() {
    for threads in [Some(2), None] {
        let limit = |bound_ms| {
            let found = compared(1000, |s| (s.bound_ms, s.threads) = (bound_ms, threads));
            let limit = found.last().unwrap();
            assert_eq!(limit.code, "limit");
            limit.message.clone()
        };
        assert!(limit(12.5).contains("alone would allow 1.60x"), "{}", limit(12.5));
        for bound_ms in [220.0, 1.0, 0.0] {
            assert!(!limit(bound_ms).contains("would allow"), "{}", limit(bound_ms));
        }
    }
}

/// For each rule in turn what is found where it applies, and twice where it does not.
fn cases() -> Vec<(&'static str, [Vec<Finding>; 3])> {
    let upload = |pinned| CommandKind::Upload { bytes: 8, pinned };
    let collective = CommandKind::Collective { bytes: 8 };
    let beside = || Some(command("other", at(B, 1), (0, 10, 20), 20, 12 * MS));
    let (read, write) = (access(0, false), access(0, true));
    let of = |recordings: [Recording; 3]| recordings.map(found);
    let with = |changes: [fn(&mut Schedules); 3]| changes.map(|change| compared(1000, change));
    let alone = |kind| Recording {
        commands: twice(kind, MS, 2, None).commands[..1].to_vec(),
        ..Recording::default()
    };
    let mut recorded = tiny(100);
    recorded.commands.iter_mut().for_each(|command| command.launch.recorder_ns = 4100);
    let mut computed = twice(CommandKind::Compute, 6 * MS, 2, Some(2));
    computed.commands[0].kind = upload(true);
    let mut copied_beside = computed.clone();
    (copied_beside.commands[1].start_ns, copied_beside.commands[1].end_ns) = (MS, 6 * MS);
    let mut gathered_beside = copied_beside.clone();
    gathered_beside.commands[0].kind = collective;
    let mut uneven = twice(CommandKind::Compute, MS, 2, None);
    uneven.commands[1].end_ns += 5 * MS;
    let mut uneven_copies = uneven.clone();
    uneven_copies.commands[0].kind = upload(true);
    let crowded = |streams: u64, host_threads| {
        let commands =
            (1..=streams).map(|raw| command("op", at(StreamId::from_raw(raw), 1), (0, 0, 10), 10, 5 * MS));
        let device = DeviceFacts { host_threads, ..DeviceFacts::default() };
        Recording { commands: commands.collect(), device, ..Recording::default() }
    };
    let others = |s: &mut Schedules, taken| s.others = Some(OtherPrograms { processors: 4.0, taken });
    let taken = |taken| compared(1000, |s| others(s, taken));
    vec![
        ("busy", [taken(3.0), taken(2.0), compared(1000, |s| (s.steps, s.serial_ms.p90) = (19, 40.0))]),
        (
            "hidden-sync",
            of([synced("download", None), synced("synchronize", None), synced("download", beside())]),
        ),
        (
            "synchronize",
            of([synced("synchronize", None), synced("download", None), synced("synchronize", beside())]),
        ),
        (
            "memory-wait",
            of([
                synced("wait_for_memory", None),
                synced("download", None),
                synced("wait_for_memory", beside()),
            ]),
        ),
        ("driver-allocation", of([allocated(1, 64), allocated(0, 64), allocated(1, 0)])),
        ("launch-bound", of([tiny(2000), tiny(9000), recorded])),
        ("host-bound", of([tiny(9000), tiny(2000), synced("download", None)])),
        ("exposed-copy", of([alone(upload(true)), copied_beside, alone(CommandKind::Compute)])),
        (
            "pageable-copy",
            of([
                twice(upload(false), MS, 2, None),
                twice(upload(true), MS, 2, None),
                twice(upload(false), MS, 2, Some(2)),
            ]),
        ),
        ("exposed-communication", of([alone(collective), gathered_beside, alone(upload(true))])),
        (
            "one-copy-engine",
            of([
                twice(upload(true), MS, 1, None),
                twice(upload(true), MS, 2, None),
                twice(upload(true), 6 * MS, 1, None),
            ]),
        ),
        ("default-stream", of([stray((10, 20), false), stray((10, 20), true), stray((30, 40), false)])),
        (
            "over-synchronised",
            of([
                in_order(vec![write], vec![write]),
                in_order(vec![write], vec![read]),
                collectives(vec![access(8, true)]),
            ]),
        ),
        ("data-dependent", of([chain(false, vec![read]), chain(false, vec![write]), stages()])),
        ("imbalance", of([uneven, uneven_copies, chain(true, vec![read])])),
        (
            "depth-first",
            of([chain(true, Vec::new()), chain(true, vec![read]), lanes(chain(true, Vec::new()))]),
        ),
        ("no-room", of([crowded(3, Some(2)), crowded(2, Some(2)), crowded(3, None)])),
        (
            "lanes-apart",
            with([
                |s| s.overlap = 0.05,
                |s| (s.overlap, s.serial_ms.p90) = (0.05, 40.0),
                |s| (s.overlap, s.streams) = (0.05, 3),
            ]),
        ),
        ("kernels-fill-device", with([|s| s.split_gain = 1.5, |_| (), |s| s.split_gain = 22.25])),
        ("inflation", with([|s| s.inflation = 1.4, |_| (), |s| (s.inflation, s.streams) = (1.4, 1)])),
        ("serial-part", [compared(5 * MS, |_| ()), compared(1000, |_| ()), found(crowded(2, Some(2)))]),
    ]
}

#[test]
fn every_rule_applies_to_one_recording_and_not_to_two_others() {
    let cases = cases();
    let covered: Vec<&str> = cases.iter().map(|(code, _)| *code).collect();
    assert_eq!(covered, RULES.iter().map(|rule| rule.code).collect::<Vec<_>>());
    for (code, findings) in cases {
        let is_found = findings.each_ref().map(|found| codes(found).contains(&code));
        assert_eq!(is_found, [true, false, false], "{code}: {findings:#?}");
    }
}

/// Correct programs without findings, each beside a similar one that must get the finding.
#[test]
fn correct_programs_are_not_blamed() {
    let told = |recording, code| codes(&found(recording)).contains(&code);
    // One call of the driver in a hundred steps, or while the program warms up.
    let steps = |calls: &[u64], count: u64| {
        let mut all = allocated(1, 64);
        all.steps = (1..=count).map(|step| step * 10 * MS).collect();
        let call = |step: &u64| allocated(*step, 64).driver_calls.remove(0);
        all.driver_calls = calls.iter().map(call).collect();
        all.commands[0].end_ns = count * 10 * MS;
        all
    };
    assert!(told(steps(&[4, 5, 6, 7, 8, 9], 10), "driver-allocation"));
    assert!(!told(steps(&[60], 100), "driver-allocation") && !told(steps(&[1, 2], 10), "driver-allocation"));
    // Nothing runs, so nothing waits for the host; the range makes it a program.
    let empty = lanes(Recording { steps: vec![10 * MS], ..Recording::default() });
    assert_eq!(codes(&found(empty)), [""; 0]);
    // What was launched late runs beside what was launched before it.
    let beside = |launched: u64, start: u64, end: u64| {
        let mut recording = chain(true, Vec::new());
        recording.commands[0].end_ns = 10 * MS;
        let LaunchRecord { end_ns, .. } = &mut recording.commands[0].launch;
        *end_ns = launched;
        recording.commands[0].start_ns = launched;
        let late = &mut recording.commands[1];
        (late.start_ns, late.end_ns) = (start, end);
        (late.launch.start_ns, late.launch.given_ns, late.launch.end_ns) = (launched, launched, start);
        recording
    };
    assert!(
        told(chain(true, Vec::new()), "depth-first") && !told(beside(3 * MS, 3 * MS, 9 * MS), "depth-first")
    );
    let one_thread = |recording| Recording {
        device: DeviceFacts { host_threads: Some(1), ..DeviceFacts::default() },
        ..recording
    };
    assert!(!told(one_thread(chain(true, Vec::new())), "depth-first"));
    // A helper beside the work, one thread, and a fork whose parts before and behind it need each other.
    let uneven = |second: u64| {
        let mut recording = twice(CommandKind::Compute, MS, 2, None);
        recording.commands[1].end_ns = MS + second;
        recording
    };
    assert!(told(uneven(MS), "imbalance") && !told(uneven(MS / 4), "imbalance"));
    assert!(!told(one_thread(uneven(MS)), "imbalance"));
    let forked = |is_needed: bool| {
        let mut commands = vec![
            command("before", at(A, 1), (0, 0, 10), 10, 4 * MS),
            command("right", at(B, 1), (0, 10, 20), 4 * MS, 6 * MS),
            command("left", at(A, 2), (0, 20, 30), 4 * MS, 6 * MS),
            command("behind", at(A, 3), (0, 30, 40), 6 * MS, 10 * MS),
        ];
        if is_needed {
            commands[0].accesses = vec![access(0, true)];
            commands[1].accesses = vec![access(0, false), access(64, true)];
            commands[3].accesses = vec![access(64, false)];
        }
        let waits = if is_needed { vec![wait("right", at(B, 1), at(A, 1))] } else { Vec::new() };
        Recording { commands, waits, ..Recording::default() }
    };
    assert!(told(forked(false), "imbalance") && !told(forked(true), "imbalance"));
    // A pipeline of one's own whose stages did not meet this time.
    let pipeline = |second: u64| {
        let mut recording = stages();
        for (tick, pair) in recording.commands.chunks_mut(2).enumerate() {
            let begin = 10 * MS * tick as u64;
            (pair[0].start_ns, pair[0].end_ns) = (begin, begin + 4 * MS);
            (pair[1].start_ns, pair[1].end_ns) = (begin + 4 * MS, begin + 8 * MS);
            pair.iter_mut().for_each(|one| {
                let launched = if second == 0 { tick as u64 } else { begin };
                (one.launch.start_ns, one.launch.given_ns, one.launch.end_ns) =
                    (launched, launched, launched + 1);
            });
        }
        recording
    };
    assert!(told(pipeline(1), "data-dependent") && !told(pipeline(0), "data-dependent"));
}

#[test]
fn extents_that_are_asked_often_are_those_that_were_given() {
    let given = [(10, 20), (5, 30), (40, 41), (12, 13)];
    let extents = Extents::new(given);
    assert_eq!((extents.last_end(5), extents.last_end(6), extents.last_end(100)), (0, 30, 41));
}

#[test]
fn the_manual_lists_every_code_once() {
    let manual = include_str!("../../../docs/profiling.md");
    for Rule { code, .. } in RULES {
        assert_eq!(RULES.iter().filter(|other| other.code == *code).count(), 1, "{code}");
        assert_eq!(manual.matches(&format!("\n| `{code}` |")).count(), 1, "{code}");
    }
    assert_eq!(manual.matches("\n| `").count(), RULES.len() + 1, "`limit` has no rule");
}
