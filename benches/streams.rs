//! Streams: a launch, a hand-off to another stream and back, a step's lanes.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::hint::black_box;

use common::{case, run};
use streamgrad::prelude::*;
use streamgrad::{CpuConfig, Team};

fn main() {
    let device = Device::cpu_with(CpuConfig::default());
    let (a, b) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let x = Tensor::from_slice(&[1.0f32], &[1], &device).unwrap();
    const MANY: usize = 1000;
    let team = Team::new("lane", 1).unwrap();
    run(
        "streams",
        vec![
            case("add on the default stream, inline", 1, || drop(black_box(x.add(&x).unwrap()))),
            case("add on a worker's stream, 1000 then one wait", MANY, || {
                a.scope(|| (0..MANY).for_each(|_| drop(x.add(&x).unwrap())));
                a.synchronize().unwrap();
            }),
            case("add on a worker's stream, waited for", 1, || {
                a.scope(|| drop(x.add(&x).unwrap()));
                a.synchronize().unwrap();
            }),
            case("hand-off from stream to stream and back", 1, || {
                let y = a.scope(|| x.add(&x).unwrap());
                let z = b.scope(|| y.add(&y).unwrap());
                drop(a.scope(|| z.add(&z).unwrap()));
                a.synchronize().unwrap();
            }),
            case("two lanes, nothing to do", 1, || drop(black_box(team.run(&|_| ())))),
        ],
    );
}
