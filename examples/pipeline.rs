//! Three stages at once: one batch is read, the one before it augmented, and the one before that trained on. The result is that
//! of one batch after the other, bit for bit.
//!
//! ```sh
//! cargo run --release --example pipeline
//! ```

use streamgrad::prelude::*;
use streamgrad::{PipelineOptions, PipelineSchedule};

const BATCHES: usize = 120;
const SEED: u64 = 7;

/// Trains, and returns the bits of the parameters.
fn train(schedule: PipelineSchedule, device: &Device) -> streamgrad::Result<Vec<u32>> {
    let model = mlp(&[64, 128, 10], SEED, device)?;
    let mut sgd = Sgd::new(model.parameters(), 0.05)?;
    let options =
        LoaderOptions { batch: 256, seed: SEED, device: device.clone(), ..LoaderOptions::default() };
    let loader = DataLoader::new(Digits::load()?, options)?;
    let options = PipelineOptions { schedule, ..PipelineOptions::default() };
    let mut pipeline = Pipeline::with_options(device, options)
        .stage("load", |batch: streamgrad::Result<Batch>| batch)
        .stage("augment", |batch| {
            let noise = Tensor::randn(batch.inputs.shape(), DType::F32, None, device)?;
            Ok(Batch { inputs: batch.inputs.add(&noise.mul_scalar(0.1)?)?, ..batch })
        })
        .stage("train", |batch| {
            let loss = cross_entropy(&model.forward(&batch.input())?, &batch.labels)?;
            sgd.step(&loss.backward()?)?;
            Ok(loss.value().clone())
        });
    let losses = pipeline.run(loader.iter_from(Position::default()).take(BATCHES))?;
    if let Some(last) = losses.last() {
        println!("loss {:.3}; {}", last.item::<f32>()?, pipeline.report());
    }
    drop(pipeline);
    let mut bits = Vec::new();
    for parameter in model.parameters() {
        bits.extend(parameter.value().to_vec::<f32>()?.iter().map(|value| value.to_bits()));
    }
    Ok(bits)
}

pub(crate) fn main() -> streamgrad::Result<()> {
    let device = Device::best();
    // The noise is drawn from the thread's generator, a part of it for each batch and stage.
    streamgrad::tensor::seed(SEED);
    let serial = train(PipelineSchedule::Serial, &device)?;
    for schedule in [PipelineSchedule::Stages, PipelineSchedule::Measured] {
        streamgrad::tensor::seed(SEED);
        assert_eq!(train(schedule, &device)?, serial, "a schedule must not change a bit");
    }
    println!("all {} parameters are equal, bit for bit", serial.len());
    Ok(())
}
