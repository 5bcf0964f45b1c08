//! Rules on recordings with times of one's own, where no busy machine has a say.

use device::{Access, CommandKind, DeviceFacts, HandOffRecord, KernelRecord, Recording};

use super::super::tests::{A, B, at, command, sync, wait};
use super::*;

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
    let needed = [
        (vec![write], vec![read]),
        (vec![read], vec![write]),
        (vec![read, write], vec![read, write]),
        (vec![read, write], vec![write]),
        (vec![write], vec![read, write]),
    ];
    for (first, second) in needed {
        let case = format!("{first:?} {second:?}");
        assert_eq!(codes(&found(in_order(first, second))), [""; 0], "{case}");
    }
}

#[test]
fn waits_are_needed_for_what_they_keep_in_order() {
    for (used, expected) in [(0, &[][..]), (64, &["over-synchronised"][..])] {
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

#[test]
fn extents_that_are_asked_often_are_those_that_were_given() {
    let given = [(10, 20), (5, 30), (40, 41), (12, 13)];
    let extents = Extents::new(given);
    for start in 0..50 {
        for end in start + 1..50 {
            let meets = given.iter().any(|&(s, e)| s < end && start < e);
            assert_eq!(extents.meets((start, end)), meets, "{start}..{end}");
        }
    }
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
