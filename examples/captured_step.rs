//! A captured step: written down once, replayed with fresh batches, and equal to the eager program bit for bit.
//!
//! ```sh
//! cargo run --release --example captured_step
//! ```

use std::time::Instant;

use streamgrad::prelude::*;
use streamgrad::{Generator, Graph, Result, with_generator};

const SEED: u64 = 7;
const ROWS: usize = 64;
const EPOCHS: u64 = 4;
const LR: f64 = 3e-3;

/// The bits of every loss, and of every parameter at the end.
type Bits = (Vec<u32>, Vec<u32>);

fn train(captured: bool, device: &Device) -> Result<Bits> {
    let model = Sequential::new()
        .push(Linear::new(64, 128, device)?)
        .push(Relu)
        .push(Dropout::new(0.2)?)
        .push(Linear::new(128, 10, device)?);
    let mut adam = Adam::new(model.parameters(), LR)?;
    let (data, _) = Digits::load()?.split(0.2, SEED)?;
    // A last batch of fewer rows would be another step.
    let options = LoaderOptions {
        batch: ROWS,
        seed: SEED,
        drop_last: true,
        device: device.clone(),
        ..LoaderOptions::default()
    };
    let loader = DataLoader::new(data, options)?;
    let steps = EPOCHS * loader.per_epoch() as u64;
    let schedule = LrSchedule::Cosine { t_max: steps, eta_min: 0.0 };

    let step = |inputs: &Tensor, labels: &Tensor, adam: &mut Adam| -> Result<Tensor> {
        let loss = cross_entropy(&model.forward(&Var::constant(inputs.clone()))?, labels)?;
        adam.step(&loss.backward()?)?;
        Ok(loss.value().clone())
    };

    let mut losses = Vec::new();
    let batches = loader.iter_from(Position::default()).zip(0..steps);
    if captured {
        // Where replays read their batches.
        let inputs = Tensor::zeros(&[ROWS, 64], DType::F32, device)?;
        let labels = Tensor::zeros(&[ROWS], DType::I64, device)?;
        let graph = Graph::capture(device, || step(&inputs, &labels, &mut adam))?;
        println!("captured: {}", graph.report());
        let (inputs, labels) = (graph.input(&inputs)?, graph.input(&labels)?);
        for (batch, number) in batches {
            let batch = batch?;
            inputs.set(&batch.inputs)?;
            labels.set(&batch.labels)?;
            // The learning rate changes between replays, and the dropout draws anew in each.
            schedule.apply(&mut adam, LR, number)?;
            losses.push(graph.replay()?);
        }
    } else {
        for (batch, number) in batches {
            let batch = batch?;
            schedule.apply(&mut adam, LR, number)?;
            losses.push(step(&batch.inputs, &batch.labels, &mut adam)?);
        }
    }

    let bits = |tensor: &Tensor| -> Result<Vec<u32>> {
        Ok(tensor.to_vec::<f32>()?.into_iter().map(f32::to_bits).collect())
    };
    let all = |tensors: &[Tensor]| -> Result<Vec<u32>> {
        Ok(tensors.iter().map(bits).collect::<Result<Vec<_>>>()?.concat())
    };
    let parameters: Vec<Tensor> = model.parameters().iter().map(|var| var.value().clone()).collect();
    Ok((all(&losses)?, all(&parameters)?))
}

pub(crate) fn main() -> Result<()> {
    let device = Device::best();
    let run = |captured| {
        let start = Instant::now();
        let bits = with_generator(Generator::new(SEED), || train(captured, &device))?;
        println!("{}: {:.1?}", if captured { "captured" } else { "eager" }, start.elapsed());
        Ok(bits)
    };
    let (eager, captured): (Bits, Bits) = (run(false)?, run(true)?);
    assert_eq!(eager, captured, "a replay must not change a bit");
    let (losses, parameters) = eager;
    println!("{} losses and {} parameters are equal, bit for bit", losses.len(), parameters.len());
    let (first, last) = (losses.first(), losses.last());
    assert!(last.map(|bits| f32::from_bits(*bits)) < first.map(|bits| f32::from_bits(*bits)), "it learns");
    Ok(())
}
