//! Training steps: forward, backward and SGD or AdamW, on one thread and on two, two lanes against the serial schedule, two
//! branches at once, and a model whose parts are recomputed.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{Case, case, run};
use streamgrad::CpuConfig;
use streamgrad::prelude::*;
use workloads::{Branches, Gpt, GptOptions, lenet};

fn device(threads: usize) -> Device {
    Device::cpu_with(CpuConfig { threads: Some(threads), ..CpuConfig::default() })
}

/// One step is forward, backward and SGD of `lanes` batches.
fn step(
    name: &str,
    sizes: &[usize],
    batch: usize,
    threads: usize,
    lanes: usize,
    batches: usize,
) -> Case<'static> {
    let device = device(threads);
    let model = mlp(sizes, 1, &device).unwrap();
    let widths = [sizes[0], sizes[sizes.len() - 1]];
    step_of(name, &device, model, widths, batch, lanes, batches)
}

/// The same for a model of rows of `widths[0]` numbers and `widths[1]` classes.
fn step_of(
    name: &str,
    device: &Device,
    model: Sequential,
    widths: [usize; 2],
    batch: usize,
    lanes: usize,
    batches: usize,
) -> Case<'static> {
    let mut sgd = Sgd::new(model.parameters(), SgdOptions { lr: 1e-3, ..SgdOptions::default() }).unwrap();
    let data: Vec<(Var, Tensor)> = (0..batches)
        .map(|_| {
            let inputs = Tensor::randn(&[batch, widths[0]], DType::F32, None, device).unwrap();
            let labels = Tensor::randint(0, widths[1] as i64, &[batch], DType::I64, None, device).unwrap();
            (Var::constant(inputs), labels)
        })
        .collect();
    let lanes = ConcurrentBatches::with_options(device, lanes, Lanes::Always).unwrap();
    case(name, 1, move || {
        let loss = |(inputs, labels): &(Var, Tensor)| cross_entropy(&model.forward(inputs)?, labels);
        let step = lanes.step(&data, loss).unwrap();
        sgd.step(&step.gradients).unwrap();
    })
}

fn lenet_step(name: &str, threads: usize) -> Case<'static> {
    let device = device(threads);
    step_of(name, &device, lenet(1, &device).unwrap(), [784, 10], 32, 1, 1)
}

/// One step of a GPT of one block of width 128 with 4 heads, on 8 sequences of 64 tokens of 64: forward, backward and AdamW.
fn gpt_step(threads: usize) -> Case<'static> {
    let device = device(threads);
    let options = GptOptions { vocabulary: 64, context: 64, width: 128, heads: 4, blocks: 1, dropout: 0.0 };
    let model = Gpt::new(options, 1, &device).unwrap();
    let mut adam = AdamW::new(model.parameters(), AdamWOptions::default()).unwrap();
    let drawn = || Tensor::randint(0, 64, &[8, 64], DType::I64, None, &device).unwrap();
    let (tokens, targets) = (drawn(), drawn());
    let name = format!("gpt block, {threads} thread{}", if threads == 1 { "" } else { "s" });
    case(name, 1, move || {
        let loss = model.loss(&tokens, &targets).unwrap();
        adam.step(&loss.backward().unwrap()).unwrap();
    })
}

/// The forum's model without ranks, a step of two batches of 20: Linear(10, 20), ReLU, Linear(20, 2), the mean square error,
/// and SGD.
fn forum_step(name: &str, lanes: usize, schedule: Lanes) -> Case<'static> {
    let device = device(2);
    let model = mlp(&[10, 20, 2], 1, &device).unwrap();
    let mut sgd = Sgd::new(model.parameters(), 1e-3).unwrap();
    let drawn = |columns| Var::constant(Tensor::randn(&[20, columns], DType::F32, None, &device).unwrap());
    let batches = [(drawn(10), drawn(2)), (drawn(10), drawn(2))];
    let lanes = ConcurrentBatches::with_options(&device, lanes, schedule).unwrap();
    case(name, 1, move || {
        let loss = |(inputs, targets): &(Var, Var)| mse(&model.forward(inputs)?, targets);
        let step = lanes.step(&batches, loss).unwrap();
        sgd.step(&step.gradients).unwrap();
    })
}

/// Two convolutions of 3x3 of one image, forward and backward, one after the other or at once.
fn branches_step(name: &str, size: usize, concurrent: bool) -> Case<'static> {
    let device = device(2);
    let model = Branches::new(64, 10, 1, concurrent, &device).unwrap();
    let images = Var::constant(Tensor::randn(&[1, 3, size, size], DType::F32, None, &device).unwrap());
    let labels = Tensor::from_slice(&[3i64], &[1], &device).unwrap();
    let mut sgd = Sgd::new(model.parameters(), 1e-3).unwrap();
    case(name, 1, move || {
        let loss = cross_entropy(&model.forward(&images).unwrap(), &labels).unwrap();
        sgd.step(&loss.backward().unwrap()).unwrap();
        device.synchronize().unwrap();
    })
}

/// Four layers of width 256 with a tanh each, forward and backward.
fn recomputed_step(name: &str, again: bool) -> Case<'static> {
    let device = device(2);
    let model = (0..4).fold(Sequential::new(), |model, _| {
        let layer = Sequential::new().push(Linear::new(256, 256, &device).unwrap()).push(Tanh);
        if again { model.push(Recompute::new(layer)) } else { model.push(layer) }
    });
    let inputs = Var::constant(Tensor::randn(&[128, 256], DType::F32, None, &device).unwrap());
    case(name, 1, move || {
        let loss = model.forward(&inputs).unwrap().square().unwrap().mean(&[], false).unwrap();
        drop(loss.backward().unwrap());
    })
}

fn main() {
    const MNIST: &[usize] = &[784, 256, 256, 10];
    const DIGITS: &[usize] = &[64, 128, 10];
    run(
        "MLP 784-256-256-10, a step",
        vec![
            step("mlp batch 32, 1 thread", MNIST, 32, 1, 1, 1),
            step("mlp batch 32, 2 threads", MNIST, 32, 2, 1, 1),
            step("mlp batch 256, 1 thread", MNIST, 256, 1, 1, 1),
            step("mlp batch 256, 2 threads", MNIST, 256, 2, 1, 1),
        ],
    );
    run(
        "LeNet on 28x28, a step",
        vec![lenet_step("lenet batch 32, 1 thread", 1), lenet_step("lenet batch 32, 2 threads", 2)],
    );
    run("GPT, one block of width 128, 8 sequences of 64, a step", vec![gpt_step(1), gpt_step(2)]);
    for batch in [32, 64, 128, 256] {
        run(
            &format!("digits 64-128-10, a step of two batches of {batch}"),
            vec![
                step(&format!("digits batch {batch}, serial, 2 threads"), DIGITS, batch, 2, 1, 2),
                step(&format!("digits batch {batch}, serial, 1 thread"), DIGITS, batch, 1, 1, 2),
                step(&format!("digits batch {batch}, two lanes"), DIGITS, batch, 2, 2, 2),
            ],
        );
    }
    run(
        "the forum's model, a step of two batches of 20",
        vec![
            forum_step("forum, serial", 1, Lanes::Always),
            forum_step("forum, two lanes, measured", 2, Lanes::Measured),
            forum_step("forum, two lanes, always", 2, Lanes::Always),
        ],
    );
    for size in [64, 256] {
        run(
            &format!("two branches of a convolution each, an image of {size}x{size}"),
            vec![
                branches_step(&format!("branches {size}, serial"), size, false),
                branches_step(&format!("branches {size}, at once"), size, true),
            ],
        );
    }
    run(
        "four layers of 256 with a tanh, batch 128, forward and backward",
        vec![recomputed_step("layers, kept", false), recomputed_step("layers, recomputed", true)],
    );
}
