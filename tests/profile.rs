//! Programs with one planted mistake each, which is the first that a diagnosis of their profile finds, at its line.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use common::devices::{cuda, emulated};
use common::process::run_ignored;
use streamgrad::comm::CommOptions;
use streamgrad::device::{Buffer, Use};
use streamgrad::prelude::*;
use streamgrad::profile::{Finding, Key, ProfileSchedule, Profiler, diagnose};
use streamgrad::{CpuConfig, Error, ErrorKind, Placement, Result, Schedule, Stream, StreamOptions, allocate};

/// Steps of a program. What a mistake takes is larger than what a busy machine adds.
const STEPS: usize = 4;

/// A CPU whose streams have a thread each.
fn workers() -> Device {
    Device::cpu_with(CpuConfig { schedule: Schedule::Threads, threads: Some(2), ..CpuConfig::default() })
}

/// A CPU that runs commands on the calling thread.
fn inline() -> Device {
    Device::cpu_with(CpuConfig { threads: Some(2), ..CpuConfig::default() })
}

/// Work of so many times four milliseconds, which takes no processor: on a busy machine a sleep is a millisecond or two longer.
fn nap(length: u64) -> impl FnOnce() + Send + 'static {
    move || std::thread::sleep(Duration::from_millis(4 * length))
}

/// Programs that are measured at once would be each other's reason to wait.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The profile of a program of some steps. A step gives the line of its mistake.
fn profile(dev: &Device, steps: usize, mut step: impl FnMut(&Profiler) -> Result<u32>) -> (Profile, u32) {
    let _alone = alone();
    let profiler = Profile::start(dev, ProfileOptions::default()).unwrap();
    let mut line = 0;
    for _ in 0..steps {
        line = step(&profiler).unwrap();
        profiler.step();
    }
    (profiler.stop().unwrap(), line)
}

fn first_finding(dev: &Device, steps: usize, step: impl FnMut(&Profiler) -> Result<u32>) -> (Finding, u32) {
    let (profile, line) = profile(dev, steps, step);
    let findings = diagnose(&profile);
    println!("{}", profile.critical_path());
    for finding in &findings {
        println!("{}: {:.3} ms: {}", finding.code, finding.cost_ms, finding.message);
    }
    (findings.into_iter().next().unwrap_or_default(), line)
}

/// Times that a program is run until its mistake is found first: what else a busy machine does may take longer than the mistake.
const TRIES: usize = 3;

/// That the first finding is of this kind and at the line that the program gives.
#[track_caller]
fn expect(code: &str, dev: &Device, steps: usize, mut step: impl FnMut(&Profiler) -> Result<u32>) {
    let mut runs = (0..TRIES).map(|_| first_finding(dev, steps, &mut step));
    let found = runs.find(|(finding, _)| finding.code == code);
    let (finding, line) = found.unwrap_or_else(|| panic!("{code} was not found first, see above"));
    let place = finding.place.expect("the line is known");
    assert!(place.file.ends_with("tests/profile.rs"), "{place}");
    assert_eq!(place.line, line, "{}", finding.message);
    assert!(finding.message.contains(&place.to_string()), "{}", finding.message);
}

/// A step that reads back or waits between its work and the host's preparation of the next one, which could overlap.
fn waits_in_the_step(code: &str, mistake: impl Fn(&Device, &Stream, &Tensor) -> Result<u32>) {
    let dev = workers();
    let stream = dev.new_stream().unwrap();
    let x = Tensor::ones(&[4], DType::F32, &dev).unwrap();
    expect(code, &dev, STEPS, |profiler| {
        stream.launch_host("train", &[], nap(6))?;
        let loss = stream.scope(|| x.sum(&[], false))?;
        let line = mistake(&dev, &stream, &loss)?;
        profiler.range("prepare", nap(5));
        Ok(line)
    });
}

#[test]
fn an_item_in_each_step() {
    waits_in_the_step("hidden-sync", |_, _, loss| {
        loss.item::<f32>()?;
        Ok(line!() - 1)
    });
}

#[test]
fn a_loss_printed_in_each_step() {
    waits_in_the_step("hidden-sync", |_, _, loss| {
        let _text = loss.to_string();
        Ok(line!() - 1)
    });
}

#[test]
fn a_device_synchronised_in_each_step() {
    waits_in_the_step("synchronize", |dev, _, _| {
        dev.synchronize()?;
        Ok(line!() - 1)
    });
}

#[test]
fn an_event_waited_for_in_each_step() {
    waits_in_the_step("synchronize", |_, stream, _| {
        let event = stream.record()?;
        event.synchronize()?;
        Ok(line!() - 1)
    });
}

#[test]
fn an_op_on_the_default_stream_between_two_others() {
    let dev = workers();
    let streams = [dev.new_stream().unwrap(), dev.new_stream().unwrap()];
    let shared = allocate(&streams[0], 64).unwrap();
    expect("default-stream", &dev, STEPS, |_| {
        streams[0].launch_host("left", &[], nap(3))?;
        dev.default_stream().launch_host("stray", &[Use::write(&shared)], nap(6))?;
        let line = line!() - 1;
        streams[1].launch_host("right", &[Use::read(&shared)], nap(3))?;
        Ok(line)
    });
}

#[test]
fn a_wait_that_no_data_need() {
    let dev = workers();
    let (a, b) = (dev.new_stream().unwrap(), dev.new_stream().unwrap());
    expect("over-synchronised", &dev, 1, |_| {
        a.launch_host("first", &[], nap(20))?;
        b.wait_stream(&a)?;
        let line = line!() - 1;
        b.launch_host("second", &[], nap(20))?;
        Ok(line)
    });
}

#[test]
fn two_streams_that_write_the_same_memory() {
    let dev = workers();
    let streams = [dev.new_stream().unwrap(), dev.new_stream().unwrap()];
    let shared = allocate(&streams[0], 64).unwrap();
    expect("over-synchronised", &dev, STEPS, |_| {
        for stream in &streams {
            stream.launch_host("scratch", &[Use::write(&shared)], nap(5))?;
        }
        Ok(line!() - 2)
    });
}

/// Every schedule runs `g` after `f`, with ops as with functions of the host.
#[test]
fn a_stream_that_needs_what_another_one_makes() {
    for dev in [inline(), workers()] {
        let (a, b) = (dev.new_stream().unwrap(), dev.new_stream().unwrap());
        let x = Tensor::ones(&[768, 768], DType::F32, &dev).unwrap();
        let run = |_: &Profiler| {
            let p = a.scope(|| x.matmul(&x))?;
            let _r = b.scope(|| p.matmul(&p))?;
            Ok(line!() - 1)
        };
        expect("data-dependent", &dev, STEPS, run);
        let (finding, line) = first_finding(&dev, STEPS, run);
        let both =
            format!("at tests/profile.rs:{line} reads what matmul at tests/profile.rs:{} writes", line - 1);
        assert!(finding.message.contains(&both), "{}", finding.message);
    }
}

/// Collectives of two streams are in the order of their communicator, which is no memory that the program gave them.
#[test]
fn two_streams_that_share_a_communicator() {
    let rank = |comm: Communicator, is_recorded: bool| -> Result<Vec<Finding>> {
        let dev = comm.device().clone();
        let streams = [dev.new_stream()?, dev.new_stream()?];
        let x = Tensor::ones(&[64], DType::F32, &dev)?;
        let profiler = is_recorded.then(|| Profile::start(&dev, ProfileOptions::default())).transpose()?;
        for _ in 0..STEPS {
            for stream in &streams {
                if !is_recorded {
                    stream.launch_host("late", &[], nap(3))?;
                }
                stream.scope(|| x.all_reduce(&comm, Reduce::Sum))?;
            }
            dev.synchronize()?;
        }
        profiler.map_or(Ok(Vec::new()), |profiler| Ok(diagnose(&profiler.stop()?)))
    };
    let _alone = alone();
    let ranks = Communicator::threads_with(&[workers(), workers()], CommOptions::default()).unwrap();
    let findings = std::thread::scope(|scope| {
        let start = |(at, comm)| scope.spawn(move || rank(comm, at == 0).unwrap());
        let threads: Vec<_> = ranks.into_iter().enumerate().map(start).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    let message = |code: &str| findings.iter().find(|found| found.code == code).map(|found| &*found.message);
    let shared = message("over-synchronised").unwrap_or_else(|| panic!("{findings:?}"));
    assert!(
        shared.contains("a duplicate of the communicator") && !shared.contains("same memory"),
        "{shared}"
    );
    assert!(message("exposed-communication").is_some(), "{findings:?}");
}

/// A gradient of the default stream is added up there, since the value was made there.
#[test]
fn a_backward_pass_chooses_the_default_stream_itself() -> Result<()> {
    let dev = workers();
    let (a, b) = (dev.new_stream()?, dev.new_stream()?);
    let w = Var::leaf(Tensor::ones(&[512, 512], DType::F32, &dev)?);
    let (profile, line) = profile(&dev, STEPS, |_| {
        let first = a.scope(|| w.matmul(&w))?;
        let both = first.matmul(&first)?;
        let left = a.scope(|| both.matmul(&w)?.sum(&[], false))?;
        let right = b.scope(|| both.matmul(&w)?.sum(&[], false))?;
        a.scope(|| left.add(&right))?.backward()?;
        Ok(line!() - 1)
    });
    let recording = profile.recordings().next().unwrap();
    let default = dev.default_stream().id();
    let of_pass = recording.commands.iter().filter(|command| command.launch.in_backward);
    assert!(of_pass.clone().any(|command| command.moment.stream == default), "it has nothing to blame");
    let mut findings = diagnose(&profile);
    findings.retain(|found| found.code == "default-stream");
    assert!(
        findings.iter().all(|found| found.place.as_ref().is_some_and(|place| place.line < line)),
        "{findings:?}"
    );
    Ok(())
}

#[test]
fn streams_of_uneven_work() {
    let dev = workers();
    let (a, b) = (dev.new_stream().unwrap(), dev.new_stream().unwrap());
    expect("imbalance", &dev, STEPS, |_| {
        a.launch_host("short", &[], nap(2))?;
        b.launch_host("long", &[], nap(10))?;
        Ok(line!() - 1)
    });
}

#[test]
fn one_stream_launched_after_the_other_is_done() {
    let dev = inline();
    let placed =
        |placement| dev.new_stream_with(StreamOptions { placement, ..StreamOptions::default() }).unwrap();
    let (a, b) = (placed(Placement::Caller), placed(Placement::Worker));
    expect("depth-first", &dev, 1, |_| {
        for _ in 0..4 {
            a.launch_host("left", &[], nap(5))?;
        }
        for _ in 0..4 {
            b.launch_host("right", &[], nap(5))?;
        }
        Ok(line!() - 2)
    });
}

#[test]
fn a_copy_that_nothing_overlaps() {
    let dev = inline();
    let bytes = vec![1.0f32; 16 << 20];
    expect("exposed-copy", &dev, STEPS, |_| {
        let _batch = Tensor::from_slice(&bytes, &[bytes.len()], &dev)?;
        let line = line!() - 1;
        dev.default_stream().launch_host("train", &[], nap(2))?;
        Ok(line)
    });
}

/// Each batch is larger than the one before, whose memory a queued command still uses and the limit does not leave beside it.
#[test]
fn an_allocation_that_waits_for_memory() {
    const MIB: usize = 1 << 20;
    let dev = workers();
    let stream = dev.new_stream().unwrap();
    dev.set_memory_limit(Some(30 * MIB));
    let (mut sizes, mut between) = ([8, 14, 20, 26].into_iter().cycle(), Vec::new());
    expect("memory-wait", &dev, STEPS, |profiler| {
        let batch = allocate(&stream, sizes.next().unwrap() * MIB)?;
        let line = line!() - 1;
        between.push(allocate(&stream, 64));
        profiler.range("prepare", nap(2));
        stream.launch_host("train", &[Use::write(&batch)], nap(6))?;
        Ok(line)
    });
}

#[test]
fn memory_that_goes_back_to_the_driver_in_each_step() {
    let dev = inline();
    expect("driver-allocation", &dev, STEPS, |_| {
        let batch = Tensor::zeros(&[4 << 20], DType::F32, &dev)?;
        let line = line!() - 1;
        drop(batch);
        dev.trim();
        Ok(line)
    });
}

#[test]
fn commands_too_small_for_their_launches() {
    let dev = workers();
    let stream = dev.new_stream().unwrap();
    expect("launch-bound", &dev, STEPS, |_| {
        for _ in 0..2000 {
            stream.launch_host("tiny", &[], || ())?;
        }
        Ok(line!() - 2)
    });
}

#[test]
fn a_host_that_loads_while_the_device_waits() {
    let dev = workers();
    let stream = dev.new_stream().unwrap();
    expect("host-bound", &dev, STEPS, |profiler| {
        profiler.range("load", nap(8));
        let line = line!() - 1;
        stream.launch_host("train", &[], nap(2))?;
        Ok(line)
    });
}

/// As a GPU sees it: the bytes are not where it can read them.
#[test]
fn bytes_that_a_gpu_cannot_read_where_they_are() {
    let Some(dev) = cuda(0) else { return };
    let bytes = vec![1.0f32; 4 << 20];
    let (profile, line) = profile(&dev, STEPS, |_| {
        let _batch = Tensor::from_slice(&bytes, &[bytes.len()], &dev)?;
        Ok(line!() - 1)
    });
    let found =
        diagnose(&profile).into_iter().find(|finding| finding.code == "pageable-copy").expect("found");
    assert_eq!(found.place.map(|place| place.line), Some(line));
    assert!(found.message.contains("16.0 MiB"), "{}", found.message);
}

/// Kernels that fill the device, on two streams.
#[test]
fn kernels_that_leave_no_room() {
    let Some(dev) = cuda(0) else { return };
    let streams = [dev.new_stream().unwrap(), dev.new_stream().unwrap()];
    let x = Tensor::ones(&[if emulated() { 1 << 20 } else { 1 << 26 }], DType::F32, &dev).unwrap();
    let run = |_: &Profiler| {
        let _kept: Vec<Tensor> =
            streams.iter().map(|stream| stream.scope(|| x.exp())).collect::<Result<_>>()?;
        Ok(line!() - 1)
    };
    let (profile, line) = profile(&dev, STEPS, run);
    let recording = profile.recordings().next().unwrap();
    let exp = recording.commands.iter().find(|command| command.op == "exp").unwrap();
    let kernel = &exp.kernels[0];
    assert!(
        kernel.block_count() > 1 && kernel.registers > 0 && kernel.blocks_per_multiprocessor > 0,
        "{kernel:?}"
    );
    assert_eq!(kernel.duration_ns, Some(exp.duration_ns()));
    assert_eq!(&*exp.operands[0].shape, x.shape());
    let filling = u64::from(recording.device.multiprocessors) * u64::from(kernel.blocks_per_multiprocessor);
    if kernel.block_count() >= filling && !emulated() {
        let found = diagnose(&profile).into_iter().find(|finding| finding.code == "no-room").expect("found");
        assert_eq!(found.place.map(|place| place.line), Some(line));
    }
}

#[test]
fn kernels_of_one_command_are_timed_one_by_one() {
    let Some(dev) = cuda(0) else { return };
    // Parts of the sum are joined by a kernel of its own.
    let x = Tensor::ones(&[1 << 18], DType::F32, &dev).unwrap();
    let (profile, _) = profile(&dev, STEPS, |_| x.sum(&[], false).map(|_| line!()));
    let recording = profile.recordings().next().unwrap();
    let sum = recording.commands.iter().find(|command| command.op == "sum").unwrap();
    let times: Vec<u64> = sum.kernels.iter().map(|kernel| kernel.duration_ns.unwrap()).collect();
    assert_eq!(times.len(), 2, "{:?}", sum.kernels);
    assert_eq!(times.iter().sum::<u64>(), sum.duration_ns());
    assert!(times.iter().all(|&took| took < sum.duration_ns()), "{times:?}");
}

/// Products that fill the device, by a library's kernels, on two streams.
fn products_on_two_streams() -> (Profile, u32) {
    let dev = cuda(0).unwrap();
    let streams = [dev.new_stream().unwrap(), dev.new_stream().unwrap()];
    let size = if emulated() { 512 } else { 4096 };
    let x = Tensor::ones(&[size, size], DType::F32, &dev).unwrap();
    profile(&dev, STEPS, |_| {
        let _kept: Vec<Tensor> =
            streams.iter().map(|stream| stream.scope(|| x.matmul(&x))).collect::<Result<_>>()?;
        Ok(line!() - 1)
    })
}

#[test]
#[ignore = "run by the test below, on the emulated driver under a schedule of which streams take turns"]
fn inner_products_that_leave_no_room() {
    let (profile, line) = products_on_two_streams();
    let found = diagnose(&profile).into_iter().find(|finding| finding.code == "no-room").expect("found");
    assert_eq!(found.place.map(|place| place.line), Some(line));
    let recording = profile.recordings().next().unwrap();
    let product = recording.commands.iter().find(|command| command.op == "matmul").unwrap();
    let named = format!("the kernel {} of matmul", product.kernels[0].name);
    assert!(found.message.contains(&named), "{}", found.message);
}

#[test]
fn products_that_leave_no_room() {
    if cuda(0).is_none() {
        return;
    }
    let output = run_ignored("inner_products_that_leave_no_room", &[("CUDA_EMULATOR_SEED", "1".to_owned())]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn a_program_without_a_mistake_is_told_nothing() {
    let dev = workers();
    let streams = [dev.new_stream().unwrap(), dev.new_stream().unwrap()];
    let (profile, _) = profile(&dev, STEPS, |_| {
        for stream in &streams {
            stream.launch_host("train", &[], nap(20))?;
        }
        Ok(0)
    });
    // On a busy machine the host may come late.
    let mut findings = diagnose(&profile);
    findings.retain(|finding| !["host-bound", "launch-bound"].contains(&finding.code));
    assert_eq!(findings, []);
}

/// A step on two streams that makes no mistake, or not the one that it is near to.
type Step = fn(&Device, &[Stream; 2], &Buffer) -> Result<()>;

fn even(_: &Device, streams: &[Stream; 2], _: &Buffer) -> Result<()> {
    streams.iter().try_for_each(|stream| stream.launch_host("train", &[], nap(5)))
}

/// Either of both may have to come first, for what it reads or for what it writes.
fn in_order(streams: &[Stream; 2], uses: [Use<'_>; 2]) -> Result<()> {
    uses.into_iter().zip(streams).try_for_each(|(of, stream)| stream.launch_host("train", &[of], nap(5)))
}

fn chain(_: &Device, streams: &[Stream; 2], memory: &Buffer) -> Result<()> {
    in_order(streams, [Use::write(memory), Use::read(memory)])
}

fn scratch(_: &Device, streams: &[Stream; 2], memory: &Buffer) -> Result<()> {
    in_order(streams, [Use::write(memory), Use::write(memory)])
}

fn waited_for(_: &Device, streams: &[Stream; 2], memory: &Buffer) -> Result<()> {
    streams[0].launch_host("train", &[Use::write(memory)], nap(5))?;
    streams[1].wait_stream(&streams[0])?;
    streams[1].launch_host("train", &[Use::read(memory)], nap(5))
}

fn on_one_stream(_: &Device, streams: &[Stream; 2], _: &Buffer) -> Result<()> {
    streams[0].launch_host("train", &[], nap(10))
}

fn default_stream_first(dev: &Device, streams: &[Stream; 2], memory: &Buffer) -> Result<()> {
    dev.default_stream().launch_host("load", &[Use::write(memory)], nap(2))?;
    streams.iter().try_for_each(|stream| stream.launch_host("train", &[Use::read(memory)], nap(5)))
}

fn default_stream_last(dev: &Device, streams: &[Stream; 2], memory: &Buffer) -> Result<()> {
    streams.iter().try_for_each(|stream| stream.launch_host("train", &[Use::read(memory)], nap(5)))?;
    dev.default_stream().launch_host("update", &[Use::write(memory)], nap(2))
}

fn read_beside_work(dev: &Device, streams: &[Stream; 2], _: &Buffer) -> Result<()> {
    streams[0].launch_host("train", &[], nap(8))?;
    streams[1].scope(|| Tensor::ones(&[4], DType::F32, dev)?.sum(&[], false)?.item::<f32>())?;
    streams[1].synchronize()
}

fn copied_beside_work(dev: &Device, streams: &[Stream; 2], _: &Buffer) -> Result<()> {
    streams[0].launch_host("train", &[], nap(8))?;
    streams[1].scope(|| Tensor::from_slice(&[1.0f32; 1 << 16], &[1 << 16], dev)).map(drop)
}

fn memory_used_again(dev: &Device, streams: &[Stream; 2], _: &Buffer) -> Result<()> {
    streams[0].scope(|| Tensor::zeros(&[1 << 20], DType::F32, dev)).map(drop)?;
    streams[0].launch_host("train", &[], nap(8))
}

/// For each mistake that a profile shows by itself two programs that do not make it.
const NOT_MADE: [(&str, [Step; 2]); 16] = [
    ("hidden-sync", [even, read_beside_work]),
    ("memory-wait", [even, memory_used_again]),
    ("synchronize", [even, read_beside_work]),
    ("driver-allocation", [even, memory_used_again]),
    ("launch-bound", [on_one_stream, default_stream_last]),
    ("host-bound", [on_one_stream, chain]),
    ("exposed-copy", [even, copied_beside_work]),
    ("exposed-communication", [chain, copied_beside_work]),
    ("pageable-copy", [even, copied_beside_work]),
    ("one-copy-engine", [even, copied_beside_work]),
    ("default-stream", [default_stream_first, default_stream_last]),
    ("over-synchronised", [chain, waited_for]),
    ("data-dependent", [even, scratch]),
    ("imbalance", [even, chain]),
    ("depth-first", [chain, scratch]),
    ("no-room", [even, on_one_stream]),
];

#[test]
fn programs_are_not_told_of_mistakes_that_they_do_not_make() {
    let manual = include_str!("../docs/profiling.md").lines().filter_map(|line| line.strip_prefix("| `"));
    let codes = manual.filter(|row| !row.contains("In a comparison")).filter_map(|row| row.split('`').next());
    for code in codes {
        assert!(NOT_MADE.iter().any(|(known, _)| *known == code), "{code}");
    }
    for (code, steps) in NOT_MADE {
        // Most often a thread of its own runs a stream, but no order of launches is hidden if the caller does.
        let dev = if code == "depth-first" { inline() } else { workers() };
        let streams = [dev.new_stream().unwrap(), dev.new_stream().unwrap()];
        let memory = allocate(&streams[0], 64).unwrap();
        for step in steps {
            step(&dev, &streams, &memory).unwrap();
            // On a busy machine the host may come late, or a thread.
            let is_told = |_| {
                let (profile, _) = profile(&dev, 2, |_| step(&dev, &streams, &memory).map(|()| 0));
                let findings = diagnose(&profile);
                println!("{code}: {findings:#?}");
                findings.iter().any(|finding| finding.code == code)
            };
            assert!(!(0..TRIES).all(is_told), "{code} was found, see above");
        }
    }
}

/// A second profiler would end what the first one records, and what follows the last step is no part of it.
#[test]
fn one_profiler_at_a_time_records_whole_steps() {
    let (dev, _alone) = (workers(), alone());
    let profiler = Profile::start(&dev, ProfileOptions::default()).unwrap();
    let second = Profile::start(&dev, ProfileOptions::default());
    assert!(matches!(
        second.as_ref().map_err(Error::kind),
        Err(ErrorKind::InvalidArgument { op: "Profile::start", .. })
    ));
    assert!(dev.is_recording());
    let work = |name| dev.range(name, || dev.default_stream().launch_host("work", &[], || ())).unwrap();
    for _ in 0..2 {
        work("step");
        profiler.step();
    }
    work("evaluation");
    let profile = profiler.stop().unwrap();
    assert_eq!((profile.steps(), profile.key_averages().get("work").unwrap().calls), (2, 2));
    let by_range = profile.key_averages_by(Key::Range);
    assert!(by_range.get("evaluation").is_none() && by_range.get("step").is_some());
    // A phase that no step ends gives nothing.
    let schedule = ProfileSchedule { wait: 0, warmup: 0, active: 1, repeat: 0 };
    let profiler = Profile::start(&dev, ProfileOptions { schedule, ..ProfileOptions::default() }).unwrap();
    work("step");
    profiler.step();
    work("evaluation");
    assert_eq!(profiler.stop().unwrap().steps(), 1);
}

#[test]
fn a_profile_has_the_steps_of_its_schedule() {
    let (dev, _alone) = (workers(), alone());
    let schedule = ProfileSchedule { wait: 1, warmup: 1, active: 2, repeat: 2 };
    let profiler = Profile::start(&dev, ProfileOptions { schedule, ..ProfileOptions::default() }).unwrap();
    for _ in 0..12 {
        profiler.range("step", || dev.default_stream().launch_host("work", &[], || ())).unwrap();
        profiler.step();
    }
    let profile = profiler.stop().unwrap();
    assert_eq!((profile.recordings().count(), profile.steps()), (2, 4));
    let (by_op, by_range) = (profile.key_averages(), profile.key_averages_by(Key::Range));
    assert_eq!((by_op.get("work").unwrap().calls, by_range.get("step").unwrap().calls), (4, 4));
}

/// Everything that a training step does, on one stream and on lanes, is on the path or idle for a reason, to the nanosecond.
#[test]
fn path_and_causes_add_up_on_real_programs() -> Result<()> {
    let _alone = alone();
    for lanes in [1, 2] {
        let dev = inline();
        let model = mlp(&[64, 32, 10], 7, &dev)?;
        let mut sgd = Sgd::new(model.parameters(), 0.05)?;
        let runner = ConcurrentBatches::with_options(&dev, lanes, Lanes::Always)?;
        let options = LoaderOptions { batch: 32, seed: 7, device: dev.clone(), ..LoaderOptions::default() };
        let loader = DataLoader::new(Digits::load()?, options)?;
        let profiler = Profile::start(&dev, ProfileOptions::default())?;
        for pair in loader.steps(2, Position::default())?.take(5) {
            let step =
                runner.step(pair?, |batch| cross_entropy(&model.forward(&batch.input())?, &batch.labels))?;
            profiler.range("optimizer", || sgd.step(&step.gradients))?;
            profiler.step();
        }
        let profile = profiler.stop()?;
        let path = profile.critical_path();
        let mut now = 0;
        for segment in &path.segments {
            assert_eq!(segment.start_ns, now);
            now = segment.end_ns;
        }
        assert!((now as f64 / 1e6 - profile.wall_ms()).abs() < 1e-9);
        for stream in profile.idle() {
            let causes: u64 = stream.idle.iter().map(|idle| idle.end_ns - idle.start_ns).sum();
            assert!((causes as f64 / 1e6 - stream.idle_ms).abs() < 1e-9);
            assert!((stream.busy_ms + stream.idle_ms - profile.wall_ms()).abs() < 1e-9);
        }
        let recording = profile.recordings().next().unwrap();
        assert!(
            recording.places.iter().all(|place| &*place.file == "tests/profile.rs"),
            "{:?}",
            recording.places
        );
        // Five steps of two batches, each of which is a range on its lane.
        assert_eq!(recording.ranges.iter().filter(|range| &*range.name == "lane").count(), 10, "{lanes}");
        let samples = profile.memory().next().unwrap();
        assert!(samples.len() > 10 && samples.iter().any(|sample| sample.allocated_bytes > 0));
    }
    Ok(())
}
