//! Steps of models that fill a GPU, eager and captured; `benches/peers/torch_large.py` has the same in PyTorch. A step is the
//! forward and backward pass and the optimizer, and ends when the device has done it.
//!
//!     cargo bench --bench models -- [--cuda] [--tf32] [--bf16] [--profile] [CASE]
//!
//! `--tf32` allows it in products; `--bf16` is autocast; `--profile` prints the ops of three eager steps instead of times.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;
#[path = "common/gpt2.rs"]
mod gpt2;

use common::{Case, case, run};
use streamgrad::prelude::*;
use streamgrad::{CudaConfig, DeviceMemory, Graph, RandomKey, Result, autocast};
use workloads::lenet;

type Step = Box<dyn FnMut() -> Result<()>>;
type Program = fn(&Device) -> Result<Step>;

fn option(name: &str) -> bool {
    std::env::args().any(|word| word == name)
}

fn device() -> Device {
    if !option("--cuda") {
        return Device::cpu();
    }
    let device = Device::cuda_with(0, CudaConfig::default()).unwrap();
    device.set_tf32(option("--tf32"));
    device
}

fn randn(shape: &[usize], op: u64, device: &Device) -> Result<Tensor> {
    Tensor::randn(shape, DType::F32, RandomKey { seed: 1, op }, device)
}

fn labels(classes: i64, shape: &[usize], device: &Device) -> Result<Tensor> {
    Tensor::randint(0, classes, shape, DType::I64, None, device)
}

/// A step of a model's loss and its optimizer.
fn training<O: Optimizer + 'static>(mut optimizer: O, loss: impl Fn() -> Result<Var> + 'static) -> Step {
    let dtype = option("--bf16").then_some(DType::BF16);
    Box::new(move || optimizer.step(&autocast(dtype, &loss)?.backward()?))
}

/// GPT-2 small, AdamW.
fn gpt2(device: &Device) -> Result<Step> {
    let (model, [tokens, targets]) = gpt2::gpt2(gpt2::OPTIONS, device)?;
    Ok(training(gpt2::adamw(&model)?, move || model.loss(&tokens, &targets)))
}

/// An MLP of 4096-wide layers on a batch of 1024.
fn wide(device: &Device) -> Result<Step> {
    let model = mlp(&[4096; 5], 1, device)?;
    let input = Var::constant(randn(&[1024, 4096], 1, device)?);
    let optimizer = Sgd::new(model.parameters(), 1e-3)?;
    Ok(training(optimizer, move || model.forward(&input)?.square()?.mean(&[], false)))
}

fn lenet_512(device: &Device) -> Result<Step> {
    let model = lenet(1, device)?;
    let input = Var::constant(randn(&[512, 784], 1, device)?);
    let labels = labels(10, &[512], device)?;
    let optimizer = Sgd::new(model.parameters(), 1e-3)?;
    Ok(training(optimizer, move || cross_entropy(&model.forward(&input)?, &labels)))
}

/// Four convolutions of 3x3, each with a batch_norm and a ReLU.
fn convolutions(device: &Device) -> Result<Step> {
    let mut model = Sequential::new();
    for op in 0..4 {
        let options = Conv2dOptions {
            padding: [1, 1],
            bias: false,
            key: Some(RandomKey { seed: 1, op }),
            ..Conv2dOptions::default()
        };
        let conv = Conv2d::with_options(64, 64, [3, 3], options, device)?;
        model = model.push(conv).push(BatchNorm2d::new(64, device)?).push(Relu);
    }
    let input = Var::constant(randn(&[32, 64, 56, 56], 9, device)?);
    let optimizer = Sgd::new(model.parameters(), 1e-3)?;
    Ok(training(optimizer, move || model.forward(&input)?.mean(&[], false)))
}

/// Where three steps spend their time, after two that nobody looks at.
fn profile(program: Program) -> Result<()> {
    let device = device();
    let mut step = program(&device)?;
    (0..2).try_for_each(|_| step())?;
    device.synchronize()?;
    let profiler = Profile::start(&device, ProfileOptions::default())?;
    for _ in 0..3 {
        step()?;
        profiler.step();
    }
    println!("{}", profiler.stop()?.key_averages());
    Ok(())
}

/// The most bytes that live tensors need in a step, in MiB, eagerly.
fn peak(program: Program) -> Result<usize> {
    let device = device();
    let mut step = program(&device)?;
    step()?;
    device.synchronize()?;
    device.reset_peak_memory_stats();
    step()?;
    device.synchronize()?;
    Ok(device.memory_stats().peak_allocated_bytes >> 20)
}

fn cases(name: &str, program: Program) -> Vec<Case<'static>> {
    let eager = {
        let device = device();
        let mut step = program(&device).unwrap();
        case(format!("{name}, eager"), 1, move || {
            step().unwrap();
            device.synchronize().unwrap();
        })
    };
    let device = device();
    let graph = Graph::capture(&device, program(&device).unwrap()).unwrap();
    println!("{name}: {}", graph.report());
    let captured = case(format!("{name}, captured"), 1, move || {
        graph.replay().unwrap();
        device.synchronize().unwrap();
    });
    vec![eager, captured]
}

fn main() {
    let programs: [(&str, Program); 4] =
        [("gpt2", gpt2), ("wide mlp", wide), ("lenet 512", lenet_512), ("convolutions", convolutions)];
    let wanted: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    for (name, program) in programs {
        if wanted.is_empty() || wanted.iter().any(|word| name.contains(word.as_str())) {
            if option("--profile") {
                println!("{name}");
                profile(program).unwrap();
            } else {
                run(name, cases(name, program));
                println!("{name}: peak {} MiB", peak(program).unwrap());
            }
        }
    }
}
