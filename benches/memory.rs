//! The allocator: a pair of allocate and free on a hit, the loops that RMM and CUB measure theirs with, several threads,
//! the system's allocator beside it, and how much more than was live is reserved for training.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::hint::black_box;

use common::{Case, case, run};
use streamgrad::device::{Buffer, Use};
use streamgrad::nn::mlp;
use streamgrad::optim::{Sgd, SgdOptions};
use streamgrad::prelude::*;
use streamgrad::{ConcurrentBatches, CpuConfig, CudaConfig, allocate, cross_entropy};

const MIB: usize = 1 << 20;

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

fn device() -> Device {
    Device::cpu_with(CpuConfig::default())
}

fn system(bytes: usize) -> Vec<u8> {
    Vec::with_capacity(bytes)
}

fn pairs() {
    let stream = device().default_stream();
    let mut random = Random(12345);
    // From 4 bytes to 1 MiB.
    let sizes: Vec<usize> = (0..512).map(|_| 4usize << random.below(19)).collect();
    let keep = allocate(&stream, 256).unwrap();
    let pair = |bytes: usize| {
        let stream = stream.clone();
        case(format!("pair, {bytes} bytes"), 1, move || drop(black_box(allocate(&stream, bytes).unwrap())))
    };
    run(
        "allocate and free",
        vec![
            pair(4),
            pair(4096),
            pair(MIB),
            case("512 mixed sizes, freed in order", sizes.len(), || {
                let buffers: Vec<_> = sizes.iter().map(|&bytes| allocate(&stream, bytes).unwrap()).collect();
                drop(black_box(buffers));
            }),
            case("system, pair, 4096 bytes", 1, || drop(black_box(system(4096)))),
            case("system, 512 mixed sizes", sizes.len(), || {
                let buffers: Vec<_> = sizes.iter().map(|&bytes| system(bytes)).collect();
                drop(black_box(buffers));
            }),
        ],
    );
    drop(keep);
}

/// RMM's `random_allocations`: 73 of 100 operations allocate up to `max` bytes, the others free a random block; the live
/// bytes stay under a cap.
fn random_operations<B>(count: usize, max: usize, allocate: impl Fn(usize) -> B) {
    const CAP: usize = 1 << 30;
    let mut random = Random(7);
    let (mut live, mut bytes) = (Vec::new(), 0);
    for _ in 0..count {
        let size = 1 + random.below(max);
        if (random.below(100) < 73 && bytes + size <= CAP) || live.is_empty() {
            live.push((allocate(size), size));
            bytes += size;
        } else {
            let (block, size) = live.swap_remove(random.below(live.len()));
            drop(block);
            bytes -= size;
        }
    }
    drop(black_box(live));
}

fn random_allocations() {
    let stream = device().default_stream();
    let mut cases: Vec<Case<'_>> = Vec::new();
    for count in [1000, 10_000, 100_000] {
        for max in [1, 16, 256] {
            let ours = stream.clone();
            cases.push(case(format!("{count} operations, up to {max} MiB"), count, move || {
                random_operations(count, max * MIB, |bytes| allocate(&ours, bytes).unwrap());
            }));
            cases.push(case(format!("system, {count} operations, up to {max} MiB"), count, move || {
                random_operations(count, max * MIB, system);
            }));
        }
    }
    run("random allocations, as RMM's, at most 1 GiB live", cases);
}

/// RMM's `multi_stream_allocations`: four kernels on each stream, with a buffer of 8 bytes each.
fn multi_stream() {
    let device = device();
    let cases = [1, 2, 4].map(|count| {
        let streams: Vec<_> = (0..count).map(|_| device.new_stream().unwrap()).collect();
        let device = device.clone();
        case(format!("{count} streams, 4 kernels each"), 4 * count, move || {
            for stream in &streams {
                for _ in 0..4 {
                    let buffer = allocate(stream, 8).unwrap();
                    stream.launch_host("kernel", &[Use::write(&buffer)], || ()).unwrap();
                }
            }
            device.synchronize().unwrap();
        })
    });
    run("allocations on several streams, as RMM's", cases.into());
}

/// CUB's loop over its caching allocator, and what several threads cost each other.
fn loops() {
    let cub = device().default_stream();
    let threads = [1, 2, 4].map(|count| {
        const PAIRS: usize = 20_000;
        let device = device();
        case(format!("{count} threads, pairs on a stream each"), PAIRS, move || {
            std::thread::scope(|scope| {
                for _ in 0..count {
                    scope.spawn(|| {
                        let stream = device.new_stream().unwrap();
                        (0..PAIRS).for_each(|_| drop(black_box(allocate(&stream, 4096).unwrap())));
                    });
                }
            });
        })
    });
    let shared = [1, 2, 4].map(|count| {
        const PAIRS: usize = 20_000;
        let device = device();
        case(format!("{count} threads, pairs on one stream"), PAIRS, move || {
            let stream = device.default_stream();
            std::thread::scope(|scope| {
                for _ in 0..count {
                    scope
                        .spawn(|| (0..PAIRS).for_each(|_| drop(black_box(allocate(&stream, 4096).unwrap()))));
                }
            });
        })
    });
    let mut cases = vec![case("10000 times 1 MiB, as CUB's", 10_000, move || {
        (0..10_000).for_each(|_| drop(black_box::<Buffer>(allocate(&cub, MIB).unwrap())));
    })];
    cases.extend(threads);
    cases.extend(shared);
    run("loops, and threads: ns of a pair on each", cases);
}

/// What training reserves above what was live at most, and the driver calls of the later half of the steps; on a CUDA device,
/// too, if there is one, where memory comes in larger pages.
fn training() {
    println!("{:44} {:>12} {:>12} {:>7} {:>12}", "training", "allocated", "reserved", "ratio", "late calls");
    let cuda = || Device::cuda_with(0, CudaConfig::default());
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    for steps in [Some(200), cuda().is_ok().then_some(20)].into_iter().flatten() {
        for sizes in [&[64, 128, 10][..], &[784, 256, 256, 10]] {
            for batch in [32, 256] {
                for lanes in [1, 2] {
                    let device = if steps == 200 { device() } else { cuda().unwrap() };
                    let name = format!("{device} {sizes:?}, batch {batch}, {lanes} lanes");
                    if words.is_empty() || words.iter().any(|word| name.contains(word.as_str())) {
                        train(&name, &device, sizes, batch, lanes, steps);
                    }
                }
            }
        }
    }
}

fn train(name: &str, device: &Device, sizes: &[usize], batch: usize, lanes: usize, steps: usize) {
    let model = mlp(sizes, 1, device).unwrap();
    let options = SgdOptions { lr: 1e-3, momentum: 0.9, ..SgdOptions::default() };
    let mut sgd = Sgd::new(model.parameters(), options).unwrap();
    let pipeline = ConcurrentBatches::with_options(device, lanes, Lanes::Always).unwrap();
    let mut warm = 0;
    for step in 0..steps {
        if step == steps / 2 {
            warm = device.memory_stats().driver_allocations;
        }
        let batches: Vec<_> = (0..2)
            .map(|_| {
                let inputs = Tensor::randn(&[batch, sizes[0]], DType::F32, None, device).unwrap();
                let labels = Tensor::randint(0, 10, &[batch], DType::I64, None, device).unwrap();
                (Var::constant(inputs), labels)
            })
            .collect();
        let loss = |(inputs, labels): &(Var, Tensor)| cross_entropy(&model.forward(inputs)?, labels);
        let result = pipeline.step(&batches, loss).unwrap();
        sgd.step(&result.gradients).unwrap();
        device.synchronize().unwrap();
    }
    let stats = device.memory_stats();
    let (allocated, reserved) = (stats.peak_allocated_bytes, stats.peak_reserved_bytes);
    println!(
        "{name:44} {allocated:12} {reserved:12} {:7.3} {:12}",
        reserved as f64 / allocated as f64,
        stats.driver_allocations - warm
    );
}

fn main() {
    if std::env::args().any(|word| word == "--training") {
        return training();
    }
    pairs();
    random_allocations();
    multi_stream();
    loops();
    if !std::env::args().any(|word| word == "--json") {
        training();
    }
}
