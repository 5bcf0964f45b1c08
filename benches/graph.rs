//! Captured steps against the steps that they were captured from: two batches on one stream, on two lanes, and as a graph; and
//! what a command of a replay costs beside its work. A step ends when the device has done it.
//!
//!     cargo bench --bench graph -- [--cuda] [--commands] [WORKLOAD]

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::time::Instant;

use common::{Case, case, is_chosen, run};
use streamgrad::device::quantiles;
use streamgrad::prelude::*;
use streamgrad::{CpuConfig, CudaConfig, DeviceKind, Graph, GraphOptions, Order, RandomKey, Result};

fn on_cuda() -> bool {
    std::env::args().any(|word| word == "--cuda")
}

/// A device of its own, for two threads unless they are other ones.
fn device(threads: usize) -> Device {
    if on_cuda() {
        return Device::cuda_with(0, CudaConfig::default()).unwrap();
    }
    Device::cpu_with(CpuConfig { threads: Some(threads), ..CpuConfig::default() })
}

#[derive(Clone, Copy)]
enum How {
    Eager {
        lanes: usize,
    },
    /// On a GPU, as many launches as a step has kernels, of an op on one element, each made where it is called.
    Bare,
    OneThread,
    Captured {
        lanes: usize,
        order: Order,
    },
}

const WAYS: [(&str, How); 6] = [
    ("serial", How::Eager { lanes: 1 }),
    ("as many bare launches", How::Bare),
    // On a CPU, nothing is faster than a half of it on two threads, unless there is less to do.
    ("serial, one thread", How::OneThread),
    ("two lanes", How::Eager { lanes: 2 }),
    ("captured, data order", How::Captured { lanes: 1, order: Order::Data }),
    ("captured serial, streams' order", How::Captured { lanes: 1, order: Order::Streams }),
];

type Step = Box<dyn FnMut() -> Result<()>>;

/// The ways to run a step, each with a device, a model and an optimizer of its own that `program` makes.
fn cases(name: &str, threads: usize, program: impl Fn(&Device, usize) -> Step) -> Vec<Case<'static>> {
    let one = |(way, how)| {
        let threads = if matches!(how, How::OneThread) { 1 } else { threads };
        let (device, name) = (device(threads), format!("{name}, {way}"));
        match how {
            How::Bare => {
                let kernels = count_kernels(&mut program(&device, 1), &device);
                let config = CudaConfig { launcher: Some(false), ..CudaConfig::default() };
                let device = Device::cuda_with(0, config).unwrap();
                let x = Tensor::zeros(&[1], DType::F32, &device).unwrap();
                case(name, 1, move || {
                    (0..kernels).for_each(|_| x.add_scalar_(1.0).unwrap());
                    device.synchronize().unwrap();
                })
            }
            How::Eager { .. } | How::OneThread => {
                let lanes = if let How::Eager { lanes } = how { lanes } else { 1 };
                let mut step = program(&device, lanes);
                time_host(&name, &device, &mut step);
                case(name, 1, move || {
                    step().unwrap();
                    device.synchronize().unwrap();
                })
            }
            How::Captured { lanes, order } => {
                // What a command costs is what is measured.
                let options =
                    GraphOptions { order, fuse: !name.contains("chain"), ..GraphOptions::default() };
                let graph = Graph::capture_with(&device, options, program(&device, lanes)).unwrap();
                println!("{name}: {}", graph.report());
                if std::env::args().any(|word| word == "--commands") {
                    for (at, command) in graph.commands().iter().enumerate() {
                        println!("{at:4} {:28} after {:?}", command.op, command.needs);
                    }
                }
                case(name, 1, move || {
                    graph.replay().unwrap();
                    device.synchronize().unwrap();
                })
            }
        }
    };
    // What is not run is not made, either.
    let chosen = |way: &&(&str, How)| is_chosen(&format!("{name}, {}", way.0));
    WAYS.iter()
        .filter(|(_, how)| on_cuda() || !matches!(how, How::Bare))
        .filter(chosen)
        .copied()
        .map(one)
        .collect()
}

/// What a GPU is given by a step: kernels, and commands without any.
fn count_kernels(step: &mut Step, device: &Device) -> usize {
    // What the first step finds out is known to the second.
    step().unwrap();
    device.start_recording();
    step().unwrap();
    device.stop_recording().commands.iter().map(|command| command.kernels.len().max(1)).sum()
}

/// Says what each launch of a step takes the thread that makes the step, the tape included.
fn time_host(name: &str, device: &Device, step: &mut Step) {
    const STEPS: usize = 201;
    if device.kind() == DeviceKind::Cpu {
        return;
    }
    let kernels = count_kernels(step, device);
    let host_us: Vec<f64> = (0..STEPS)
        .map(|_| {
            device.synchronize().unwrap();
            let start = Instant::now();
            step().unwrap();
            start.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    let [median, least] = quantiles(host_us.iter().copied(), [0.5, 0.1]).map(|us| us / kernels as f64);
    println!("{name}: {kernels} kernels; the host takes {median:.2} us for each (p10 {least:.2})");
}

/// A step of a workload on two batches of `rows` rows.
fn train(workload: &str, rows: usize) -> impl Fn(&Device, usize) -> Step {
    let workload = workloads::find(workload).unwrap();
    move |device, lanes| {
        let model = workload.model(1, device).unwrap();
        let mut optimizer = workload.optimizer(model.parameters(), 2).unwrap();
        let (data, _) = workload.data(1, device).unwrap();
        let options =
            LoaderOptions { batch: rows, seed: 1, device: device.clone(), ..LoaderOptions::default() };
        let loader = DataLoader::new(data, options).unwrap();
        let batches: Vec<Batch> =
            loader.epoch(0).take(2).map(|batch| model.prepare(batch.unwrap()).unwrap()).collect();
        let lanes = ConcurrentBatches::with_options(device, lanes, Lanes::Always).unwrap();
        Box::new(move || optimizer.step(&lanes.step(&batches, |batch| model.batch_loss(batch))?.gradients))
    }
}

/// A chain of commands that do next to nothing.
fn chain(device: &Device, _: usize) -> Step {
    let x = Tensor::zeros(&[1], DType::F32, device).unwrap();
    Box::new(move || (0..1000).try_for_each(|_| x.add_scalar_(1.0)))
}

/// Ten functions of elements, of which one takes what the other gives, as commands of their own and as one.
fn functions(elements: usize) -> Vec<Case<'static>> {
    let device = device(2);
    let tensor = |op| Tensor::randn(&[elements], DType::F32, RandomKey { seed: 1, op }, &device).unwrap();
    let [x, y] = [tensor(1), tensor(2)];
    let step = move || {
        let scaled = x.mul_scalar(0.5)?.add(&y)?.relu()?.mul(&x)?.add_scalar(1.0)?;
        scaled.abs()?.sqrt()?.sub(&y)?.square()?.maximum(&x)
    };
    let captured = |(way, fuse)| {
        let options = GraphOptions { fuse, ..GraphOptions::default() };
        let graph = Graph::capture_with(&device, options, &step).unwrap();
        println!("ten functions of {elements}, {way}: {}", graph.report());
        let device = device.clone();
        case(format!("ten functions of {elements}, {way}"), 1, move || {
            graph.replay().unwrap();
            device.synchronize().unwrap();
        })
    };
    [("unfused", false), ("fused", true)].map(captured).into()
}

/// What launching an op costs, on matrices so small that a device has done it before the host launches the next.
fn launches() -> Vec<Case<'static>> {
    const OPS: usize = 200;
    let device = device(1);
    let square = |op| Tensor::randn(&[32, 32], DType::F32, RandomKey { seed: 1, op }, &device).unwrap();
    let [x, y] = [square(1), square(2)];
    let row = Tensor::zeros(&[32], DType::F32, &device).unwrap();
    let (out, labels) = (square(3), Tensor::zeros(&[32], DType::I64, &device).unwrap());
    let op = |name: &str, op: Box<dyn Fn() -> Result<()>>| {
        let device = device.clone();
        case(format!("launch of {name}"), OPS, move || {
            (0..OPS).for_each(|_| op().unwrap());
            device.synchronize().unwrap();
        })
    };
    let (a, b, c) = (x.clone(), y.clone(), x.clone());
    let (d, e, f) = (x.clone(), y.clone(), x.clone());
    vec![
        op("add_ in place", Box::new(move || out.add_(&a))),
        op("add", Box::new(move || b.add(&c).map(drop))),
        op("relu", Box::new(move || d.relu().map(drop))),
        op("sum over rows", Box::new(move || e.sum(&[0], false).map(drop))),
        op("matmul", Box::new(move || f.matmul(&y).map(drop))),
        op("linear", Box::new(move || x.linear(&x, Some(&row)).map(drop))),
        op("cast", Box::new(move || labels.to_dtype(DType::F32).map(drop))),
    ]
}

fn main() {
    run("200 ops of one kind, one op of them", launches());
    for threads in [1, 2] {
        run("1000 commands of one element", cases(&format!("chain, {threads} threads"), threads, chain));
    }
    for elements in [1 << 10, 1 << 20] {
        run("ten functions of elements", functions(elements));
    }
    for (workload, rows) in
        [("two-batch", 256), ("mlp", 32), ("mlp", 256), ("cnn", 32), ("gpt", 0), ("dlrm", 0)]
    {
        let rows = if rows > 0 { rows } else { workloads::find(workload).unwrap().info().compared_batch };
        let name = format!("{workload} 2x{rows}");
        run(&name, cases(&name, 2, train(workload, rows)));
    }
}
