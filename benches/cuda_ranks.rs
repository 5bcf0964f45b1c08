//! Ranks on CUDA devices, by NCCL: `all_reduce` alone, and GPT-2 small, data parallel, beside one device.
//! `benches/peers/torch_ranks.py` has the same in PyTorch.
//!
//!     cargo bench --bench cuda_ranks -- [--processes] [--tf32] [--bf16] [--small] [RANKS]
//!
//! RANKS is 2 without a word. `--processes` has a process for each rank, and else each has a thread; `--small` is for an emulated
//! device. Bandwidth is that of the bus, `2 (n - 1) / n bytes / time`. Times are those of rank 0.

#![allow(clippy::unwrap_used, missing_docs)]

#[path = "common/gpt2.rs"]
mod gpt2;

use std::process::{Child, Command};
use std::time::{Duration, Instant};

use streamgrad::comm::{Collective, CommModel, CommOptions, NcclId, ReduceOrder};
use streamgrad::device::{CommandKind, CommandRecord, median};
use streamgrad::prelude::*;
use streamgrad::profile::{Profile, ProfileOptions};
use streamgrad::{Graph, Result, autocast};
use workloads::{Gpt, GptOptions};

fn option(name: &str) -> bool {
    std::env::args().any(|word| word == name)
}

fn device(rank: usize) -> Device {
    let device = Device::cuda(rank).unwrap();
    device.set_tf32(option("--tf32"));
    device
}

/// Seconds of each of `count` runs, each of which ends when the device has done it, after some that nobody looks at.
fn times(device: &Device, count: usize, mut run: impl FnMut() -> Result<()>) -> Result<Vec<f64>> {
    let mut times = Vec::new();
    for at in 0..count + 5 {
        let start = Instant::now();
        run()?;
        device.synchronize()?;
        if at >= 5 {
            times.push(start.elapsed().as_secs_f64());
        }
    }
    Ok(times)
}

/// That every element is what all ranks' numbers, 1, 2, .., sum up to.
fn check(comm: &Communicator, elements: usize) -> Result<()> {
    let x = Tensor::full(&[elements], 1.0 + comm.rank() as f64, DType::F32, comm.device())?;
    let sum = x.all_reduce(comm, Reduce::Sum)?;
    let expected = (comm.size() * (comm.size() + 1) / 2) as f32;
    let (least, most) = (sum.min(&[], false)?.item::<f32>()?, sum.max(&[], false)?.item::<f32>()?);
    assert_eq!((least, most), (expected, expected), "rank {}, {elements} elements", comm.rank());
    Ok(())
}

/// As many calls in a row as take some time, of which the median is printed. Gives the network that they show.
fn all_reduce(comm: &Communicator, order: ReduceOrder) -> Result<CommModel> {
    const CALLS: usize = 10;
    let largest = if option("--small") { 1 << 16 } else { 256 << 20 };
    let sizes =
        std::iter::successors(Some(1 << 10), |bytes| Some(bytes * 4)).take_while(|bytes| *bytes <= largest);
    let mut network = CommModel { latency: Duration::ZERO, bandwidth: f64::INFINITY };
    for bytes in sizes {
        check(comm, bytes / 4)?;
        let x = Tensor::zeros(&[bytes / 4], DType::F32, comm.device())?;
        let runs = if bytes >= 64 << 20 { 10 } else { 50 };
        let times =
            times(comm.device(), runs, || (0..CALLS).try_for_each(|_| x.all_reduce_(comm, Reduce::Sum)))?;
        let (seconds, ranks) = (median(times) / CALLS as f64, comm.size() as f64);
        let bandwidth = 2.0 * (ranks - 1.0) / ranks * bytes as f64 / seconds / 1e9;
        if network.latency.is_zero() {
            network.latency = Duration::from_secs_f64(seconds / (2.0 * (ranks - 1.0).max(1.0)));
        }
        network.bandwidth = bandwidth * 1e9;
        if comm.rank() == 0 {
            println!(
                "all_reduce {order:?} {bytes:>10} bytes {:>10.1} us {bandwidth:>8.2} GB/s",
                seconds * 1e6
            );
        }
    }
    Ok(network)
}

fn model() -> GptOptions {
    let small = GptOptions { vocabulary: 64, context: 16, width: 32, heads: 2, blocks: 1, dropout: 0.0 };
    if option("--small") { small } else { gpt2::OPTIONS }
}

/// Median seconds of a step of one device, with nobody beside it, and of one rank.
fn training(comm: &Communicator, captured: bool) -> Result<[f64; 2]> {
    let dtype = option("--bf16").then_some(DType::BF16);
    let count = if option("--small") { 3 } else { 20 };
    let (device, loss) = (comm.device(), |model: &Gpt, [tokens, targets]: &[Tensor; 2]| {
        autocast(dtype, || model.loss(tokens, targets))
    });
    let median_s = |mut step: Box<dyn FnMut() -> Result<()> + '_>| {
        let graph = if captured { Some(Graph::capture(device, &mut step)?) } else { None };
        let replay_or_step = || match &graph {
            Some(graph) => graph.replay(),
            None => step(),
        };
        times(device, count, replay_or_step).map(median)
    };
    let (model, data) = gpt2::gpt2(model(), device)?;
    let mut optimizer = gpt2::adamw(&model)?;
    let alone = median_s(Box::new(|| optimizer.step(&loss(&model, &data)?.backward()?)))?;
    let model = DataParallel::new(model, comm)?;
    let mut optimizer = gpt2::adamw(model.model())?;
    let together = median_s(Box::new(|| optimizer.step(&model.backward(&loss(model.model(), &data)?)?)))?;
    Ok([alone, together])
}

/// Milliseconds of a step of `ranks` ranks on a network, as they follow from a rank that is alone.
fn predicted_ms(device: &Device, ranks: usize, network: CommModel) -> Result<f64> {
    let dtype = option("--bf16").then_some(DType::BF16);
    let comm = Communicator::threads_with(std::slice::from_ref(device), CommOptions::default())?.remove(0);
    let (model, [tokens, targets]) = gpt2::gpt2(model(), device)?;
    let model = DataParallel::new(model, &comm)?;
    let mut optimizer = gpt2::adamw(model.model())?;
    let mut step = || {
        let loss = autocast(dtype, || model.model().loss(&tokens, &targets))?;
        optimizer.step(&model.backward(&loss)?)
    };
    (0..3).try_for_each(|_| step())?;
    device.synchronize()?;
    let profiler = Profile::start(device, ProfileOptions { places: false, ..ProfileOptions::default() })?;
    for _ in 0..5 {
        step()?;
        profiler.step();
    }
    let took = |command: &CommandRecord| match command.kind {
        CommandKind::Collective { bytes } => {
            Some(1e3 * network.time(Collective::AllReduce(Reduce::Mean), bytes, ranks).as_secs_f64())
        }
        _ => None,
    };
    Ok(profiler.stop()?.what_if_took(took))
}

/// What a rank does, with communicators for both orders.
fn rank(comms: [Communicator; 2]) -> Result<()> {
    let [fast, ordered] = comms;
    let network = all_reduce(&fast, ReduceOrder::Fast)?;
    if fast.rank() == 0 {
        let (ranks, predicted) = (fast.size(), predicted_ms(fast.device(), fast.size(), network)?);
        println!("gpt2 {ranks} ranks: {predicted:.3} ms a step predicted from one rank and {network:?}");
    }
    all_reduce(&ordered, ReduceOrder::Ranks)?;
    for (comm, order) in [(&fast, ReduceOrder::Fast), (&ordered, ReduceOrder::Ranks)] {
        for (how, captured) in [("eager", false), ("captured", true)] {
            let [alone, together] = training(comm, captured)?;
            if comm.rank() == 0 {
                let (alone, together, scaling) = (alone * 1e3, together * 1e3, alone / together);
                let size = comm.size();
                println!(
                    "gpt2 {order:?} {how}: 1 rank {alone:.3} ms, {size} ranks {together:.3} ms a step, scaling {scaling:.3}"
                );
            }
        }
    }
    Ok(())
}

const ORDERS: [ReduceOrder; 2] = [ReduceOrder::Fast, ReduceOrder::Ranks];

fn options(order: ReduceOrder) -> CommOptions {
    CommOptions { order, ..CommOptions::default() }
}

/// A process that is one rank, with the ids that rank 0 has made.
fn process(at: usize, size: usize, ids: [NcclId; 2]) -> Result<()> {
    let device = device(at);
    let comm = |which: usize| Communicator::nccl(&device, at, size, ids[which], options(ORDERS[which]));
    rank([comm(0)?, comm(1)?])
}

fn hexadecimal(id: NcclId) -> String {
    id.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn id(hexadecimal: &str) -> NcclId {
    let byte = |at: usize| u8::from_str_radix(&hexadecimal[at..at + 2], 16).unwrap();
    NcclId::from_bytes(&(0..hexadecimal.len()).step_by(2).map(byte).collect::<Vec<u8>>()).unwrap()
}

fn processes(size: usize) {
    let ids = [NcclId::new().unwrap(), NcclId::new().unwrap()];
    let start = |rank: usize| -> Child {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(std::env::args().skip(1)).env("BENCH_RANK", rank.to_string());
        command.env("BENCH_IDS", ids.map(hexadecimal).join(" ")).spawn().unwrap()
    };
    let others: Vec<Child> = (1..size).map(start).collect();
    process(0, size, ids).unwrap();
    for mut other in others {
        assert!(other.wait().unwrap().success());
    }
}

fn threads(size: usize) {
    let devices: Vec<Device> = (0..size).map(device).collect();
    let [fast, ordered] = ORDERS.map(|order| Communicator::nccl_devices(&devices, options(order)).unwrap());
    let ranks =
        fast.into_iter().zip(ordered).map(|(fast, ordered)| std::thread::spawn(|| rank([fast, ordered])));
    for thread in ranks.collect::<Vec<_>>() {
        thread.join().unwrap().unwrap();
    }
}

fn main() {
    let size = std::env::args().skip(1).find_map(|word| word.parse().ok()).unwrap_or(2);
    if let Err(error) = Device::cuda(size - 1) {
        return println!("skipped: {size} ranks take as many CUDA devices: {error}");
    }
    match (std::env::var("BENCH_RANK"), std::env::var("BENCH_IDS")) {
        (Ok(at), Ok(ids)) => {
            let (first, second) = ids.split_once(' ').unwrap();
            process(at.parse().unwrap(), size, [id(first), id(second)]).unwrap();
        }
        _ if option("--processes") => processes(size),
        _ => threads(size),
    }
}
