//! The allocator on a CUDA device, real or emulated: it grows in place, gives back pages that no queued command uses, and
//! survives every call of the driver that fails. Without a device the tests say so and do nothing.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::process::{calls, run_logged};
use streamgrad::device::Buffer;
use streamgrad::nn::mlp;
use streamgrad::optim::{Sgd, SgdOptions};
use streamgrad::prelude::*;
use streamgrad::{
    ConcurrentBatches, CudaConfig, Error, ErrorKind, RandomKey, Result, allocate, cross_entropy,
};

const MIB: usize = 1 << 20;

/// A CUDA device of its own; `None`, with the reason, if there is none.
fn cuda() -> Option<Device> {
    match Device::cuda_with(0, CudaConfig::default()).map_err(Error::into_kind) {
        Ok(device) => Some(device),
        Err(ErrorKind::CudaUnavailable { reason }) => {
            println!("skipped: {reason}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// The device, if it has pages, and their size.
fn paged() -> Option<(Device, usize)> {
    let device = cuda()?;
    let page = device.memory_driver().address_space()?.page_bytes();
    Some((device, page))
}

/// Whether the driver is the emulated one, which says so in its device's name.
fn emulated() -> bool {
    cuda().is_some_and(|device| device.description().to_lowercase().contains("emulat"))
}

/// A buffer whose first and last bytes are `mark`.
fn marked(stream: &Stream, bytes: usize, mark: u8) -> Result<Buffer> {
    let buffer = allocate(stream, bytes)?;
    stream.upload("mark", &buffer, 0, &[mark])?;
    stream.upload("mark", &buffer, bytes - 1, &[mark])?;
    Ok(buffer)
}

fn marks(buffer: &Buffer) -> Result<[u8; 2]> {
    buffer.download(|bytes| [bytes[0], bytes[bytes.len() - 1]])
}

#[test]
fn an_arena_grows_in_place() -> Result<()> {
    let Some((device, page)) = paged() else { return Ok(()) };
    let stream = device.default_stream();
    for pages in 1..=6 {
        // Each is larger than what was there before, which it starts with.
        let buffer = marked(&stream, pages * page, pages as u8)?;
        assert_eq!(marks(&buffer)?, [pages as u8; 2]);
        assert_eq!(device.memory_stats().reserved_bytes, pages * page);
    }
    assert_eq!(device.memory_stats().segments, 1);
    assert_eq!(device.trim(), 6 * page);
    assert_eq!(device.memory_stats().reserved_bytes, 0);
    Ok(())
}

#[test]
fn a_small_arena_takes_no_page() -> Result<()> {
    let Some((device, page)) = paged() else { return Ok(()) };
    let streams = [device.default_stream(), device.new_stream()?];
    let small: Vec<Buffer> = streams.iter().map(|stream| marked(stream, 256, 1)).collect::<Result<_>>()?;
    let reserved = device.memory_stats().reserved_bytes;
    assert!(reserved <= page / 8, "{reserved}");
    let large = marked(&streams[0], page / 2 + 256, 2)?;
    assert_eq!(device.memory_stats().reserved_bytes, reserved + page);
    assert_eq!((marks(&small[0])?, marks(&small[1])?, marks(&large)?), ([1; 2], [1; 2], [2; 2]));
    Ok(())
}

/// An arena of a few pages takes no page for a little more; one of many does, since segments do not merge.
#[test]
fn a_page_is_taken_where_it_is_a_small_part_of_the_arena() -> Result<()> {
    let Some((device, page)) = paged() else { return Ok(()) };
    let stream = device.default_stream();
    let mut kept = vec![marked(&stream, 3 * page, 1)?];
    let grown = |kept: &mut Vec<Buffer>| -> Result<usize> {
        let before = device.memory_stats().reserved_bytes;
        kept.push(marked(&stream, page / 8, 2)?);
        Ok(device.memory_stats().reserved_bytes - before)
    };
    assert!(grown(&mut kept)? <= page / 2);
    kept.push(marked(&stream, 3 * page, 3)?);
    let most = (0..8).map(|_| grown(&mut kept)).collect::<Result<Vec<_>>>()?.into_iter().max();
    assert_eq!(most, Some(page));
    Ok(())
}

#[test]
fn pages_between_live_buffers_are_given_back() -> Result<()> {
    let Some((device, page)) = paged() else { return Ok(()) };
    let stream = device.default_stream();
    let kept = [marked(&stream, page, 1)?, marked(&stream, 3 * page + 256, 2)?, marked(&stream, page, 3)?];
    let [first, between, last] = kept;
    let reserved = device.memory_stats().reserved_bytes;
    drop(between);
    device.synchronize()?;
    let freed = device.trim();
    // The page that it shares with the one behind it stays.
    assert_eq!(freed, 3 * page);
    assert_eq!(device.memory_stats().reserved_bytes, reserved - freed);
    assert_eq!((marks(&first)?, marks(&last)?), ([1; 2], [3; 2]));
    // The hole gets memory again.
    let again = marked(&stream, 3 * page, 4)?;
    assert_eq!(device.memory_stats().reserved_bytes, reserved);
    assert_eq!((marks(&first)?, marks(&again)?, marks(&last)?), ([1; 2], [4; 2], [3; 2]));
    Ok(())
}

#[test]
fn pages_that_a_held_stream_uses_stay() -> Result<()> {
    let Some((device, page)) = paged() else { return Ok(()) };
    let (main, side) = (device.default_stream(), device.new_stream()?);
    // Once on the stream that the memory belongs to, and once on another, which the first comes after.
    for user in [&main, &side] {
        let buffer = marked(&main, 2 * page, 1)?;
        device.synchronize()?;
        let hold = user.hold();
        user.upload("mark", &buffer, 0, &[2])?;
        drop(buffer);
        main.wait_stream(user)?;
        // Asks whether the memory is ready for the stream, which it is: that is not to say that it is out of use.
        let next = allocate(&main, page)?;
        assert_eq!(device.memory_stats().reserved_bytes, 2 * page, "in the old one's place");
        assert_eq!(device.trim(), 0, "the page behind it");
        drop(next);
        assert_eq!(device.trim(), 0, "both");
        drop(hold);
        device.synchronize()?;
        assert_eq!(device.trim(), 2 * page);
    }
    Ok(())
}

fn batches(device: &Device, step: u64, rows: usize, columns: usize) -> Result<Vec<(Var, Tensor)>> {
    let key = |op| Some(RandomKey { seed: 3, op });
    let batch = |batch| {
        let op = (step * 2 + batch) * 2;
        let inputs = Tensor::randn(&[rows, columns], DType::F32, key(op), device)?;
        Ok((Var::constant(inputs), Tensor::randint(0, 4, &[rows], DType::I64, key(op + 1), device)?))
    };
    (0..2).map(batch).collect()
}

/// Steps of two batches on as many lanes: the parameters afterwards.
fn train(device: &Device, sizes: &[usize], rows: usize, lanes: usize, steps: u64) -> Result<Vec<Vec<f32>>> {
    let model = mlp(sizes, 1, device)?;
    let options = SgdOptions { lr: 0.01, momentum: 0.9, ..SgdOptions::default() };
    let mut sgd = Sgd::new(model.parameters(), options)?;
    let lanes = ConcurrentBatches::with_options(device, lanes, Lanes::Always)?;
    for step in 0..steps {
        let batches = batches(device, step, rows, sizes[0])?;
        let step = lanes.step(&batches, |(inputs, labels)| cross_entropy(&model.forward(inputs)?, labels))?;
        sgd.step(&step.gradients)?;
        device.synchronize()?;
    }
    model.parameters().iter().map(|parameter| parameter.value().to_vec::<f32>()).collect()
}

/// Runs one of the tests below in a process of its own, where it has to pass; the driver's log.
fn passing(name: &str, environment: &[(&str, String)]) -> String {
    let (output, log) = run_logged(name, environment);
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(output.status.success(), "{environment:?}: {said:?}");
    log
}

const PAGES: [&str; 7] = [
    "cuMemAddressReserve",
    "cuMemCreate",
    "cuMemMap",
    "cuMemRelease",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuMemAddressFree",
];

/// Nothing of the device is left when it goes.
fn assert_nothing_lives(log: &str, what: &str) {
    let live: Vec<&str> = log.lines().filter(|line| line.starts_with("live device=0")).collect();
    let nothing = "live device=0 allocations=0 handles=0 mappings=0 ranges=0";
    assert!(!live.is_empty() && live.iter().all(|line| *line == nothing), "{what}: {live:?}");
    assert!(!log.contains("report "), "{what}: {log}");
}

fn failing_run(device: &Device) -> Result<Vec<Vec<f32>>> {
    train(device, &[256, 128, 4], 32, 2, 2)
}

/// Trains twice while one call fails, in whichever of the two.
#[test]
#[ignore = "run by the test below"]
fn inner_failing() {
    let device = cuda().unwrap();
    let expected = failing_run(&Device::cpu()).unwrap();
    let close = |found: &[Vec<f32>]| {
        let pairs = found.iter().flatten().zip(expected.iter().flatten());
        pairs.into_iter().all(|(a, b)| (a - b).abs() < 1e-4)
    };
    let mut failed = 0;
    for _ in 0..2 {
        match failing_run(&device).map_err(Error::into_kind) {
            Ok(parameters) => assert!(close(&parameters)),
            Err(ErrorKind::OutOfMemory { report, .. }) => {
                failed += 1;
                assert!(report.contains("the driver refused"), "{report}");
            }
            Err(error) => panic!("{error}"),
        }
        device.synchronize().unwrap();
        let stats = device.memory_stats();
        assert_eq!((stats.allocated_bytes, stats.live_blocks), (0, 0));
        assert_eq!(stats.reserved_bytes, stats.pending_bytes + stats.cached_bytes);
        device.trim();
        assert_eq!(device.memory_stats().reserved_bytes, 0, "nothing is lost");
    }
    assert!(failed <= 1, "the device is as good as new after a failure");
}

#[test]
fn any_call_for_pages_may_fail() {
    if !emulated() {
        println!("skipped: a real driver refuses nothing on demand");
        return;
    }
    let page = ("CUDA_EMULATOR_PAGE", "128K".to_owned());
    let sound = passing("inner_failing", std::slice::from_ref(&page));
    assert_nothing_lives(&sound, "sound");
    for function in PAGES {
        let count = calls(&sound, function);
        assert!(count >= 2, "{count} calls of {function}");
        // How many calls there are depends a little on how two lanes share memory.
        let mut failed = 0;
        for call in 1..=count {
            let what = format!("{function}:{call}");
            let log = passing("inner_failing", &[page.clone(), ("CUDA_EMULATOR_FAIL", what.clone())]);
            failed += usize::from(log.contains("made to fail"));
            assert_nothing_lives(&log, &what);
        }
        assert!(2 * failed >= count, "{failed} of {count} calls of {function} failed");
    }
}

/// What another stream has cached goes back when there is nothing else, and too much is an error.
#[test]
#[ignore = "run by the test below"]
fn inner_out_of_memory() -> Result<()> {
    let (device, page) = paged().unwrap();
    assert_eq!(page, 2 * MIB);
    let (main, side) = (device.default_stream(), device.new_stream()?);
    // What is left to a device of 32 MiB is fragmented: live, free, live, free.
    let [kept, gone, end] =
        [marked(&main, 4 * MIB, 1)?, marked(&main, 10 * MIB, 2)?, marked(&main, 2 * MIB, 3)?];
    drop(gone);
    device.synchronize()?;
    // 16 MiB are neither reserved nor in one piece with the free ones.
    let large = marked(&side, 24 * MIB, 4)?;
    assert_eq!(device.memory_stats().reserved_bytes, 30 * MIB);
    assert_eq!((marks(&kept)?, marks(&end)?, marks(&large)?), ([1; 2], [3; 2], [4; 2]));
    let refused = allocate(&main, 8 * MIB);
    assert!(
        matches!(refused.as_ref().map_err(Error::kind), Err(ErrorKind::OutOfMemory { requested_bytes, report })
            if *requested_bytes == 8 * MIB && report.contains("the driver refused")),
        "{refused:?}"
    );
    drop(large);
    device.synchronize()?;
    let next = marked(&main, 26 * MIB, 5)?;
    assert_eq!((marks(&kept)?, marks(&end)?, marks(&next)?), ([1; 2], [3; 2], [5; 2]));
    Ok(())
}

#[test]
fn memory_is_given_back_before_it_runs_out() {
    if emulated() {
        let log = passing("inner_out_of_memory", &[("CUDA_EMULATOR_MEMORY", "32M".to_owned())]);
        assert_nothing_lives(&log, "out of memory");
    }
}

/// A request for more than there is leaves pages that the driver would not take back.
#[test]
#[ignore = "run by the test below"]
fn inner_refused_undo() -> Result<()> {
    let (device, page) = paged().unwrap();
    let (main, side) = (device.default_stream(), device.new_stream()?);
    let kept = marked(&main, 4 * page, 1)?;
    let refused = allocate(&main, 40 * page);
    assert!(
        matches!(refused.as_ref().map_err(Error::kind), Err(ErrorKind::OutOfMemory { .. })),
        "{refused:?}"
    );
    // Of 32 pages 28 are still to be had, by any stream.
    let others: Vec<Buffer> = [(&main, 1), (&side, 2), (&main, 4), (&side, 20)]
        .into_iter()
        .map(|(stream, pages)| marked(stream, pages * page, pages as u8))
        .collect::<Result<_>>()?;
    assert_eq!(device.memory_stats().reserved_bytes, 31 * page);
    assert_eq!(marks(&kept)?, [1; 2]);
    for (other, mark) in others.iter().zip([1, 2, 4, 20]) {
        assert_eq!(marks(other)?, [mark; 2]);
    }
    Ok(())
}

#[test]
fn memory_that_the_driver_would_not_take_back_is_not_lost() {
    if emulated() {
        // The undo is refused, or also what the next growth tries.
        for fail in ["cuMemUnmap:1", "cuMemUnmap:1,cuMemUnmap:2"] {
            let environment =
                [("CUDA_EMULATOR_MEMORY", "64M".to_owned()), ("CUDA_EMULATOR_FAIL", fail.to_owned())];
            let log = passing("inner_refused_undo", &environment);
            assert!(log.contains("made to fail"), "{fail}");
            assert_nothing_lives(&log, fail);
        }
    }
}

/// As many steps on one lane as the environment says.
#[test]
#[ignore = "run by the tests below"]
fn inner_steps() {
    let device = cuda().unwrap();
    let steps = std::env::var("STEPS").unwrap().parse().unwrap();
    train(&device, &[64, 128, 10], 32, 1, steps).unwrap();
}

/// On one lane two runs make the same calls. What two lanes share depends on how their threads take turns.
#[test]
fn steps_in_a_steady_state_ask_the_driver_for_nothing() {
    if !emulated() {
        println!("skipped: a real driver has no log");
        return;
    }
    let after = |steps: usize| {
        let page = ("CUDA_EMULATOR_PAGE", "64K".to_owned());
        let log = passing("inner_steps", &[page, ("STEPS", steps.to_string())]);
        assert!(calls(&log, "cuLaunchKernel") > 10 * steps);
        assert_nothing_lives(&log, "steps");
        let names = ["cuMemAlloc_v2", "cuMemFree_v2"].into_iter().chain(PAGES);
        names.map(|name| calls(&log, name)).collect::<Vec<_>>()
    };
    let (some, more) = (after(60), after(80));
    assert!(some[3] > 0, "no pages");
    assert_eq!(some, more);
}

#[test]
fn a_device_without_pages_uses_plain_allocations() {
    if emulated() {
        let none = ("CUDA_EMULATOR_PAGE", "0".to_owned());
        let log = passing("inner_steps", &[none, ("STEPS", "3".to_owned())]);
        assert!(calls(&log, "cuMemAlloc_v2") > 3);
        assert!(PAGES.iter().all(|function| calls(&log, function) == 0));
        assert_nothing_lives(&log, "plain");
    }
}

/// Prints what was reserved and live at most, for a model as the environment says, on one lane and on two.
#[test]
#[ignore = "run by the test below"]
fn inner_reserved() {
    let sizes: Vec<usize> =
        std::env::var("SIZES").unwrap().split('-').map(|size| size.parse().unwrap()).collect();
    for lanes in [1, 2] {
        let device = cuda().unwrap();
        train(&device, &sizes, 32, lanes, 8).unwrap();
        let stats = device.memory_stats();
        println!("peaks {} {}", stats.peak_reserved_bytes, stats.peak_allocated_bytes);
    }
}

#[test]
fn training_reserves_little_more_than_it_uses() {
    if !emulated() {
        println!("skipped: the page is as large as the device has it");
        return;
    }
    for (page, page_bytes, sizes) in
        [("4K", 0.0, "784-256-256-10"), ("2M", 2.0 * MIB as f64, "1024-1024-1024-10")]
    {
        let environment = [("CUDA_EMULATOR_PAGE", page.to_owned()), ("SIZES", sizes.to_owned())];
        let (output, _) = run_logged("inner_reserved", &environment);
        let output = String::from_utf8(output.stdout).unwrap();
        let peaks: Vec<&str> = output.lines().filter_map(|line| Some(line.split_once("peaks ")?.1)).collect();
        assert_eq!(peaks.len(), 2, "{output}");
        let bytes =
            |peaks: &str| -> Vec<f64> { peaks.split(' ').map(|number| number.parse().unwrap()).collect() };
        // Weights and momentum. The rest of what one lane has at most is a batch's, and lanes may have it one after the other.
        let sizes: Vec<f64> = sizes.split('-').map(|size| size.parse().unwrap()).collect();
        let kept: f64 = sizes.windows(2).map(|layer| 8.0 * (layer[0] + 1.0) * layer[1]).sum();
        let of_batch = bytes(peaks[0])[1] - kept;
        assert!(of_batch > 0.0, "{output}");
        for (lanes, peaks) in (1..).zip(peaks) {
            // Of large pages, each lane's last one may be next to empty.
            let most = 1.15 * (kept + f64::from(lanes) * of_batch) + page_bytes * f64::from(lanes);
            assert!(bytes(peaks)[0] <= most, "pages of {page}, {lanes} lanes: {peaks}, at most {most}");
        }
    }
}

/// On a small device, products on one stream, and then on many, of which each has others at the same time.
#[test]
#[ignore = "run by the test below"]
fn inner_streams_with_products() -> Result<()> {
    let device = cuda().unwrap();
    let x = Tensor::ones(&[4, 4], DType::F32, &device)?;
    // A long sum is made in parts, which lie in a workspace.
    let long = Tensor::ones(&[4, 4096], DType::F32, &device)?;
    let products = || -> Result<[Tensor; 2]> { Ok([x.matmul(&x)?, long.matmul(&long.t()?)?]) };
    drop(products()?);
    device.synchronize()?;
    let before = device.memory_stats();
    let streams = (0..126).map(|_| device.new_stream()).collect::<Result<Vec<_>>>()?;
    assert_eq!(device.memory_stats().reserved_bytes, before.reserved_bytes, "idle streams take nothing");
    let made = streams.iter().map(|stream| stream.scope(products)).collect::<Result<Vec<_>>>()?;
    for [plain, in_parts] in &made {
        assert_eq!(plain.to_vec::<f32>()?, [4.0; 16]);
        assert_eq!(in_parts.to_vec::<f32>()?, [4096.0; 16]);
    }
    let after = device.memory_stats();
    // Results, and a workspace for each product in parts.
    assert!(after.allocations - before.allocations == 126 * 3, "{after:?}");
    assert!(after.peak_reserved_bytes < 16 * MIB, "{after:?}");
    Ok(())
}

/// A stream takes no memory for products, and a product what its algorithm asks for, from the pool.
#[test]
fn streams_take_no_memory_and_products_take_theirs_from_the_pool() {
    if !emulated() {
        println!("skipped: a real device has more memory");
        return;
    }
    // A workspace that two products share, or that is too small, shows under some of these.
    for seed in 0..4 {
        let variables =
            [("CUDA_EMULATOR_MEMORY", "64M".to_owned()), ("CUDA_EMULATOR_SEED", seed.to_string())];
        let (output, log) = run_logged("inner_streams_with_products", &variables);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        assert!(!log.contains(&format!("bytes={}", 32 * MIB)), "{log}");
    }
}

/// What a device holds outside the pool is in the statistics.
#[test]
fn memory_outside_the_pool_is_reported() -> Result<()> {
    let Some(device) = cuda() else { return Ok(()) };
    let x = Tensor::ones(&[4, 4], DType::F32, &device)?;
    assert_eq!(x.exp()?.matmul(&x)?.to_vec::<f32>()?.len(), 16);
    let outside = device.memory_stats().outside;
    assert!(outside.code_bytes > 0 && outside.pinned_bytes >= 4096, "{outside:?}");
    device.trim();
    let trimmed = device.memory_stats().outside;
    assert!(trimmed.pinned_bytes < outside.pinned_bytes, "{trimmed:?}");
    assert_eq!(Device::cpu().memory_stats().outside, Default::default());
    Ok(())
}

/// A copy to the device, by way of pinned host memory, and whether the device has what was copied.
fn copied(device: &Device, bytes: usize) -> Result<bool> {
    let stream = device.default_stream();
    let sent: Vec<u8> = (0..bytes).map(|byte| byte as u8).collect();
    let buffer = allocate(&stream, bytes)?;
    stream.upload("copy", &buffer, 0, &sent)?;
    stream.synchronize()?;
    buffer.download(|got| got == sent)
}

#[test]
#[ignore = "run by the test below"]
fn inner_pinned() -> Result<()> {
    let device = cuda().unwrap();
    let bytes = 4 * MIB;
    // Each line takes a block or two, the first only because there are none.
    assert!(copied(&device, bytes)?);
    assert!(copied(&device, bytes)?);
    device.trim();
    assert!(copied(&device, bytes)?);
    let hold = device.new_stream()?.hold();
    device.trim();
    assert!(copied(&device, bytes)?);
    drop(hold);
    device.trim();
    assert!(copied(&device, bytes)?);
    Ok(())
}

/// But not while a stream is held, for which a real driver may wait.
#[test]
fn pinned_memory_is_given_back() {
    if !emulated() {
        println!("skipped: a real driver has no log");
        return;
    }
    let log = passing("inner_pinned", &[]);
    let large = format!("bytes={}", 4 * MIB);
    let taken = |line: &&str| line.starts_with("cuMemHostAlloc") && line.contains(&large);
    assert_eq!(log.lines().filter(taken).count(), 3, "{log}");
    assert_nothing_lives(&log, "pinned");
}

#[test]
#[ignore = "run by the test below"]
fn inner_refused_pinned() {
    let device = cuda().unwrap();
    for bytes in [MIB, 4 * MIB, 4 * MIB] {
        match copied(&device, bytes).map_err(Error::into_kind) {
            Ok(same) => println!("{bytes}: {same}"),
            Err(ErrorKind::OutOfMemory { requested_bytes, .. }) => println!("{bytes}: no {requested_bytes}"),
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn pinned_memory_that_is_free_makes_room() {
    if !emulated() {
        println!("skipped: a real driver refuses nothing on demand");
        return;
    }
    let (small, large) = (MIB, 4 * MIB);
    // The first call is that of making the device. Those that follow: 1 MiB, 4 MiB, and 4 MiB again without the first.
    for (fail, first, second) in [
        ("cuMemHostAlloc:3", "true".to_owned(), "true".to_owned()),
        ("cuMemHostAlloc:2", format!("no {small}"), "true".to_owned()),
        ("cuMemHostAlloc:3,cuMemHostAlloc:4", "true".to_owned(), format!("no {large}")),
    ] {
        let (output, log) = run_logged("inner_refused_pinned", &[("CUDA_EMULATOR_FAIL", fail.to_owned())]);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{fail}: {said}");
        let expected = format!("{small}: {first}\n{large}: {second}\n{large}: true\n");
        assert!(said.contains(&expected), "{fail}: {said}");
        assert_nothing_lives(&log, fail);
    }
}
