//! What a recording says of a replay: when each of its commands ran, and where.

use std::collections::BTreeSet;

use streamgrad::prelude::*;
use streamgrad::profile::Trace;
use streamgrad::{CpuConfig, Graph, RandomKey, Result, Schedule};

#[test]
fn a_replay_on_a_cpu_is_recorded_command_by_command() -> Result<()> {
    for schedule in [Schedule::Inline, Schedule::Threads] {
        for threads in [1, 2] {
            let config = CpuConfig { schedule, threads: Some(threads), ..CpuConfig::default() };
            let device = Device::cpu_with(config);
            let x = Tensor::randn(&[64, 64], DType::F32, RandomKey { seed: 1, op: 1 }, &device)?;
            // Two chains of products, and what comes after both.
            let graph = Graph::capture(&device, || {
                let chain = |y: &Tensor| y.matmul(&x)?.matmul(&x)?.matmul(&x);
                chain(&x)?.add(&chain(&x.t()?)?)?.sum(&[], false)
            })?;
            let commands = graph.commands();
            let profiler = Profile::start(&device, ProfileOptions::default())?;
            for _ in 0..2 {
                graph.replay()?;
            }
            let profile = profiler.stop()?;
            let recording = profile.recordings().next().expect("a recording");
            let replays = recording.commands.iter().filter(|command| command.op == "replay");
            assert_eq!(replays.clone().count(), 2, "{schedule:?}");
            for replay in replays {
                let of = |number: usize| {
                    let found = replay.replayed.iter().find(|part| part.command as usize == number);
                    found.unwrap_or_else(|| panic!("no command {number} in {:?}", replay.replayed))
                };
                assert_eq!(replay.replayed.len(), commands.len());
                for (number, command) in commands.iter().enumerate() {
                    let part = of(number);
                    assert!(part.op == command.op && (part.thread as usize) < threads, "{part:?}");
                    assert!(replay.start_ns <= part.start_ns && part.end_ns <= replay.end_ns, "{part:?}");
                    for &need in &command.needs {
                        assert!(of(need).end_ns <= part.start_ns, "{part:?} before {:?}", of(need));
                    }
                }
                assert!(replay.replayed_ns() <= replay.duration_ns());
            }
            let averages = profile.key_averages();
            let matmuls = commands.iter().filter(|command| command.op == "matmul").count();
            assert_eq!(averages.get("replay: matmul").map(|row| row.calls), Some(2 * matmuls), "{averages}");
            let mut trace = Trace::new();
            trace.add("replays", &profile);
            let used: BTreeSet<u32> =
                recording.commands.iter().flat_map(|c| &c.replayed).map(|part| part.thread).collect();
            let (trace, drawing) = (trace.to_json().to_string(), profile.drawing("replays"));
            for thread in used {
                let row = format!("replay thread {thread}");
                assert!(trace.contains(&row), "{row}");
                assert!(drawing.rows.iter().any(|name| name.ends_with(&row)), "{:?}", drawing.rows);
            }
            let drawn = drawing.slices.iter().filter(|slice| slice.name == "matmul").count();
            assert_eq!(drawn, 2 * matmuls);
        }
    }
    Ok(())
}

#[test]
fn commands_beside_replays_have_none() -> Result<()> {
    let device = Device::cpu_with(CpuConfig::default());
    let x = Tensor::ones(&[4], DType::F32, &device)?;
    let graph = Graph::capture(&device, || x.add_scalar_(1.0))?;
    device.start_recording();
    graph.replay()?;
    x.add_scalar_(1.0)?;
    let recording = device.stop_recording();
    let replayed: Vec<_> = recording.commands.iter().map(|c| (c.op, c.replayed.len())).collect();
    assert_eq!(replayed, [("replay", 1), ("add_scalar", 0)]);
    Ok(())
}
