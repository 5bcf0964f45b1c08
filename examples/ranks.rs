//! The digits, on several ranks: processes where a launcher has started this program, else threads. The result is that of one
//! process, bit for bit.
//!
//! ```sh
//! cargo build --release --example ranks
//! target/release/examples/ranks                 # four threads
//! mpirun -np 4 target/release/examples/ranks    # four processes
//! ```

use streamgrad::comm::Launch;
use streamgrad::prelude::*;
use streamgrad::{Error, ErrorKind, Gradients, Result};

const STEPS: usize = 20;
const SEED: u64 = 7;

fn model(device: &Device) -> Result<Sequential> {
    mlp(&[64, 32, 10], SEED, device)
}

/// The batches of each step, one for each rank.
fn steps(ranks: usize, device: &Device) -> Result<impl Iterator<Item = Result<Vec<Batch>>>> {
    let options = LoaderOptions { batch: 16, seed: SEED, device: device.clone(), ..LoaderOptions::default() };
    Ok(DataLoader::new(Digits::load()?, options)?.steps(ranks, Position::default())?.take(STEPS))
}

fn loss(model: &Sequential, batch: &Batch) -> Result<Var> {
    cross_entropy(&model.forward(&batch.input())?, &batch.labels)
}

fn bits(model: &Sequential) -> Result<Vec<u32>> {
    let mut bits = Vec::new();
    for parameter in model.parameters() {
        bits.extend(parameter.value().to_vec::<f32>()?.iter().map(|value| value.to_bits()));
    }
    Ok(bits)
}

/// One rank: each step its own batch.
fn train(comm: &Communicator) -> Result<Vec<u32>> {
    let model = DataParallel::new(model(comm.device())?, comm)?;
    let mut sgd = Sgd::new(model.parameters(), 0.1)?;
    for batches in steps(comm.size(), comm.device())? {
        let batch = batches?.swap_remove(comm.rank());
        let loss = loss(model.model(), &batch)?;
        sgd.step(&model.backward(&loss)?)?;
    }
    bits(model.model())
}

/// All ranks' batches, one after the other.
fn train_alone(ranks: usize) -> Result<Vec<u32>> {
    let device = Device::cpu();
    let model = model(&device)?;
    let mut sgd = Sgd::new(model.parameters(), 0.1)?;
    for batches in steps(ranks, &device)? {
        let mut gradients = Gradients::default();
        for batch in batches? {
            gradients.merge(loss(&model, &batch)?.backward()?)?;
        }
        gradients.map(|gradient| gradient.div_scalar(ranks as f64))?;
        sgd.step(&gradients)?;
    }
    bits(&model)
}

fn rank(comm: &Communicator) -> Result<()> {
    let trained = train(comm)?;
    // A GPU has other bits than a CPU.
    if comm.device().runs_on_host() {
        assert_eq!(trained, train_alone(comm.size())?, "ranks must not change a bit");
    }
    println!("rank {} of {} has {} trained parameters", comm.rank(), comm.size(), trained.len());
    Ok(())
}

pub(crate) fn main() -> Result<()> {
    if Launch::from_env()?.is_some() {
        return rank(&Communicator::from_env()?);
    }
    let threads = Communicator::threads(4)?.into_iter().map(|comm| std::thread::spawn(move || rank(&comm)));
    let panicked = |_| Error::new(ErrorKind::LanePanicked { lane: 0, message: "a rank".into() });
    threads.collect::<Vec<_>>().into_iter().try_for_each(|thread| thread.join().map_err(panicked)?)
}
