//! Two batches at once on two streams, against the same batches one after the other: equal, bit for bit.
//!
//! ```sh
//! cargo run --release --example two_lanes
//! ```

use std::time::Instant;

use streamgrad::prelude::*;

const STEPS: usize = 40;
const SEED: u64 = 7;

/// Trains with two batches a step, and returns the bits of the parameters.
fn train(lanes: Option<&ConcurrentBatches>, device: &Device) -> streamgrad::Result<Vec<u32>> {
    let model = mlp(&[64, 128, 10], SEED, device)?;
    let mut sgd =
        Sgd::new(model.parameters(), SgdOptions { lr: 0.05, momentum: 0.9, ..SgdOptions::default() })?;
    let (data, _) = Digits::load()?.split(0.2, SEED)?;
    let options = LoaderOptions { batch: 64, seed: SEED, device: device.clone(), ..LoaderOptions::default() };
    for pair in DataLoader::new(data, options)?.steps(2, Position::default())?.take(STEPS) {
        let pair = pair?;
        let loss = |batch: Batch| cross_entropy(&model.forward(&batch.input())?, &batch.labels);
        let gradients = match lanes {
            // Each batch on a stream of its own; where one has to wait for the other, the engine sees to it.
            Some(lanes) => lanes.step(pair, loss)?.gradients,
            None => {
                let mut gradients = Gradients::default();
                for batch in pair {
                    gradients.merge(loss(batch)?.backward()?)?;
                }
                gradients
            }
        };
        sgd.step(&gradients)?;
    }
    let mut bits = Vec::new();
    for parameter in model.parameters() {
        bits.extend(parameter.value().to_vec::<f32>()?.iter().map(|value| value.to_bits()));
    }
    Ok(bits)
}

pub(crate) fn main() -> streamgrad::Result<()> {
    let device = Device::best();
    let lanes = ConcurrentBatches::new(&device, 2)?;
    let start = Instant::now();
    let serial = train(None, &device)?;
    let (serial_time, start) = (start.elapsed(), Instant::now());
    let concurrent = train(Some(&lanes), &device)?;
    println!("{STEPS} steps of two batches: serial {serial_time:.1?}, on two lanes {:.1?}", start.elapsed());
    assert_eq!(serial, concurrent, "a schedule must not change a bit");
    println!("all {} parameters are equal, bit for bit", serial.len());
    Ok(())
}
