//! The allocator: a pair of allocate and free on a hit, mixed sizes, and the system's allocator beside it.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::hint::black_box;

use common::{case, run};
use streamgrad::prelude::*;
use streamgrad::{CpuConfig, allocate};

/// Sizes from 4 bytes to 1 MiB, always the same ones.
fn sizes(count: usize) -> Vec<usize> {
    let mut state = 12345u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    (0..count).map(|_| 4usize << (next() % 19)).collect()
}

fn main() {
    let device = Device::cpu_with(CpuConfig::default());
    let stream = device.default_stream();
    let sizes = sizes(512);
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
            pair(1 << 20),
            case("512 mixed sizes, freed in order", sizes.len(), || {
                let buffers: Vec<_> = sizes.iter().map(|&bytes| allocate(&stream, bytes).unwrap()).collect();
                drop(black_box(buffers));
            }),
            case("system, pair, 4096 bytes", 1, || drop(black_box(Vec::<u8>::with_capacity(4096)))),
            case("system, 512 mixed sizes", sizes.len(), || {
                let buffers: Vec<_> = sizes.iter().map(|&bytes| Vec::<u8>::with_capacity(bytes)).collect();
                drop(black_box(buffers));
            }),
        ],
    );
    drop(keep);
}
