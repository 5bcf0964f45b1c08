//! What capturing a step costs for each of its commands, from 10^2 to 10^6 of them: microseconds of the capturing thread, and bytes
//! that the process takes at most (both on Linux). The bounds are 10 us and 2 KiB for programs of any size.
//!
//!     cargo bench --bench capture -- [--cuda] [--most=N] [PROGRAM]

#![allow(clippy::unwrap_used, missing_docs)]

#[allow(dead_code)]
mod common;

use common::is_chosen;
use streamgrad::optim::Sgd;
use streamgrad::prelude::*;
use streamgrad::{CpuConfig, CudaConfig, Graph, GraphOptions, Order, Result};

/// A step of about so many commands, given its state.
type Program = fn(usize, &State) -> Result<()>;

struct State {
    x: Tensor,
    w: Tensor,
    device: Device,
}

fn chain(commands: usize, State { x, .. }: &State) -> Result<()> {
    (0..commands).try_for_each(|_| x.add_scalar_(1.0))
}

fn products(commands: usize, State { x, w, .. }: &State) -> Result<()> {
    let mut y = x.clone();
    for _ in 1..commands {
        y = y.matmul(w)?;
    }
    x.copy_(&y)
}

/// Branches of one input, whose results are added up in the program's order.
fn wide(commands: usize, State { x, w, .. }: &State) -> Result<()> {
    let branches: Vec<Tensor> = (0..commands / 2).map(|_| x.matmul(w)).collect::<Result<_>>()?;
    branches.iter().try_for_each(|branch| x.add_(branch))
}

/// Chains beside each other, a command of each by turns, that meet two by two.
fn columns(commands: usize, State { x, w, .. }: &State) -> Result<()> {
    let count = (commands as f64).sqrt() as usize;
    let mut columns = vec![x.clone(); count];
    for _ in 1..commands / count {
        columns = columns.iter().map(|column| column.matmul(w)).collect::<Result<_>>()?;
    }
    while columns.len() > 1 {
        columns = columns
            .chunks(2)
            .map(|pair| if let [a, b] = pair { a.matmul(b) } else { Ok(pair[0].clone()) })
            .collect::<Result<_>>()?;
    }
    x.copy_(&columns[0])
}

/// Heads of attention, layer after layer, without gradients.
fn attention(commands: usize, State { x, w, .. }: &State) -> Result<()> {
    let mut y = x.clone();
    for _ in 0..commands / 19 {
        let mut heads = Vec::new();
        for _ in 0..2 {
            let (q, k, v) = (y.matmul(w)?, y.matmul(w)?, y.matmul(w)?);
            heads.push(q.matmul(&k)?.mul_scalar(0.5)?.softmax(1)?.matmul(&v)?);
        }
        let all = heads[0].add(&heads[1])?.matmul(w)?.add(&y)?;
        y = all.matmul(w)?.relu()?.add(&all)?;
    }
    x.copy_(&y)
}

/// A step of a deep network with its gradients and an optimizer.
fn training(commands: usize, State { x, .. }: &State) -> Result<()> {
    let layers = (commands / 4).max(1);
    let parameters: Vec<Var> = PARAMETERS.with_borrow(|known| known[..layers].to_vec());
    let mut y = Var::constant(x.clone());
    for parameter in &parameters {
        y = y.matmul(parameter)?.relu()?;
    }
    let mut sgd = Sgd::new(parameters, 0.1)?;
    sgd.step(&y.sum(&[], false)?.backward()?)
}

thread_local! {
    static PARAMETERS: std::cell::RefCell<Vec<Var>> = const { std::cell::RefCell::new(Vec::new()) };
}

const PROGRAMS: [(&str, Program); 6] = [
    ("chain", chain),
    ("products", products),
    ("wide", wide),
    ("columns", columns),
    ("attention", attention),
    ("training", training),
];

/// Bytes of the process now, or the most since the last reset.
fn memory(field: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    line.and_then(|line| line.split_whitespace().next()?.parse::<usize>().ok()).map_or(0, |kib| kib << 10)
}

/// What the thread has run, so that other processes do not count.
fn thread_us() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    stat.split_whitespace().next().and_then(|ns| ns.parse::<f64>().ok()).unwrap_or(0.0) / 1e3
}

fn main() {
    let most = std::env::args().find_map(|word| word.strip_prefix("--most=")?.parse().ok());
    let most: usize = most.unwrap_or(1_000_000);
    let device = match std::env::args().any(|word| word == "--cuda") {
        true => Device::cuda_with(0, CudaConfig::default()).unwrap(),
        false => Device::cpu_with(CpuConfig { threads: Some(2), ..CpuConfig::default() }),
    };
    println!(
        "{:>10} {:>9} {:>9} {:>9} {:>8} {:>8} {:>11}",
        "program", "commands", "replayed", "edges", "us", "bytes", "planned"
    );
    for (name, program) in PROGRAMS.into_iter().filter(|(name, _)| is_chosen(name)) {
        for commands in (2..).map(|power| 10_usize.pow(power)).take_while(|&commands| commands <= most) {
            let square = || Tensor::zeros(&[2, 2], DType::F32, &device).unwrap();
            let state = State { x: square(), w: square(), device: device.clone() };
            if name == "training" {
                let layers = (commands / 4).max(1);
                PARAMETERS.set((0..layers).map(|_| Var::leaf(square())).collect());
            }
            device.synchronize().unwrap();
            for order in [Order::Data, Order::Streams] {
                // What the process takes at most from now on.
                let _ = std::fs::write("/proc/self/clear_refs", "5");
                let (before, start) = (memory("VmRSS:"), thread_us());
                let options = GraphOptions { order, ..GraphOptions::default() };
                let graph =
                    Graph::capture_with(&state.device, options, || program(commands, &state)).unwrap();
                let (us, bytes) = (thread_us() - start, memory("VmHWM:").saturating_sub(before));
                let report = graph.report();
                let captured = report.commands + report.fused + report.unused + report.settled;
                println!(
                    "{name:>10} {captured:>9} {:>9} {:>9} {:>8.2} {:>8} {:>11} {order:?}",
                    report.commands,
                    report.edges,
                    us / captured as f64,
                    bytes / captured,
                    report.planned_bytes
                );
            }
        }
    }
}
