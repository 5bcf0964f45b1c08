//! What an audit costs a training step, off, on, and with its search for hazards; and what it costs the smallest op.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::hint::black_box;

use common::{case, run};
use streamgrad::nn::mlp;
use streamgrad::optim::{Sgd, SgdOptions};
use streamgrad::prelude::*;
use streamgrad::{ConcurrentBatches, CpuConfig, cross_entropy};

/// One step is forward, backward and SGD of two batches on two lanes.
fn step(device: &Device, sizes: &[usize], batch: usize) -> impl FnMut() + use<> {
    let model = mlp(sizes, 1, device).unwrap();
    let mut sgd = Sgd::new(model.parameters(), SgdOptions { lr: 1e-3, ..SgdOptions::default() }).unwrap();
    let classes = sizes[sizes.len() - 1] as i64;
    let batch = || {
        let inputs = Tensor::randn(&[batch, sizes[0]], DType::F32, None, device).unwrap();
        let labels = Tensor::randint(0, classes, &[batch], DType::I64, None, device).unwrap();
        (Var::constant(inputs), labels)
    };
    let batches = [batch(), batch()];
    let lanes = ConcurrentBatches::with_options(device, 2, Lanes::Always).unwrap();
    move || {
        let loss = |(inputs, labels): &(Var, Tensor)| cross_entropy(&model.forward(inputs)?, labels);
        sgd.step(&lanes.step(&batches, loss).unwrap().gradients).unwrap();
    }
}

fn main() {
    for (name, sizes, batch) in
        [("mlp 784-256-256-10", &[784, 256, 256, 10][..], 32), ("digits 64-128-10", &[64, 128, 10], 32)]
    {
        let device = || Device::cpu_with(CpuConfig { threads: Some(2), ..CpuConfig::default() });
        let devices = [device(), device(), device()];
        let [mut off, mut on, mut judged] = devices.each_ref().map(|device| step(device, sizes, batch));
        run(
            &format!("{name}, a step of two batches of {batch}"),
            vec![
                case(format!("{name}, no audit"), 1, &mut off),
                case(format!("{name}, audited"), 1, || {
                    devices[1].start_audit();
                    on();
                    drop(black_box(devices[1].stop_audit()));
                }),
                case(format!("{name}, audited and searched for hazards"), 1, || {
                    devices[2].start_audit();
                    judged();
                    devices[2].synchronize().unwrap();
                    assert!(black_box(devices[2].stop_audit().hazards()).is_empty());
                }),
            ],
        );
    }
    let device = Device::cpu_with(CpuConfig::default());
    let x = Tensor::from_slice(&[1.0f32], &[1], &device).unwrap();
    const MANY: usize = 1000;
    let adds = || (0..MANY).for_each(|_| drop(black_box(x.add(&x).unwrap())));
    run(
        "add of one element, the most that an audit can cost",
        vec![
            case("add, no audit", MANY, adds),
            case("add, audited", MANY, || {
                device.start_audit();
                adds();
                drop(black_box(device.stop_audit()));
            }),
        ],
    );
}
