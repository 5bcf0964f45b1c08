//! Trains a small convolutional network with batch normalisation on the embedded digits, two batches at once on lanes of
//! their own.
//!
//!     cargo run --release --example cnn_digits

use streamgrad::{Result, prelude::*};

const EPOCHS: usize = 8;
const BATCH: usize = 32;
const LANES: usize = 2;

/// For rows of 8x8 pixels: two convolutions of 3x3 that keep the size, with a maximum over 2x2 between them.
fn network(device: &Device) -> Result<Sequential> {
    let same = Conv2dOptions { padding: [1, 1], bias: false, ..Conv2dOptions::default() };
    let conv = |channels, filters| Conv2d::with_options(channels, filters, [3, 3], same, device);
    let first = Sequential::new()
        .push(Unflatten(vec![1, 8, 8]))
        .push(conv(1, 16)?)
        .push(BatchNorm2d::new(16, device)?)
        .push(Relu)
        .push(MaxPool2d::new([2, 2]));
    let second = first.push(conv(16, 32)?).push(BatchNorm2d::new(32, device)?).push(Relu);
    Ok(second.push(AdaptiveAvgPool2d([2, 2])).push(Flatten).push(Linear::new(128, 10, device)?))
}

/// Trains, and returns the share of held-out digits that are classified correctly.
fn train(device: &Device) -> Result<f64> {
    streamgrad::seed(7);
    let (train, test) = Digits::load()?.split(0.2, 7)?;
    let model = network(device)?;
    // The gradients of the lanes are added.
    let options = SgdOptions { lr: 0.1 / LANES as f64, momentum: 0.9, ..SgdOptions::default() };
    let mut sgd = Sgd::new(model.parameters(), options)?;
    let lanes = ConcurrentBatches::new(device, LANES)?;
    let options = LoaderOptions {
        batch: BATCH,
        seed: 7,
        drop_last: true,
        device: device.clone(),
        ..LoaderOptions::default()
    };
    let loader = DataLoader::new(train, options)?;
    let steps = loader.per_epoch() / LANES;
    let all = loader.steps(LANES, Position::default())?;
    for (number, pair) in all.take(EPOCHS * steps).enumerate() {
        let step =
            lanes.step(pair?, |batch| cross_entropy(&model.forward(&batch.input())?, &batch.labels))?;
        sgd.step(&step.gradients)?;
        if (number + 1) % steps == 0 {
            println!("epoch {}: loss {:.4}", (number + 1) / steps, step.losses[0].item::<f32>()?);
        }
    }
    // Evaluation takes the running statistics, which the lanes moved in batch order.
    model.set_training(false);
    let held_out = test.tensors(device)?;
    no_grad(|| accuracy(model.forward(&held_out.input())?.value(), &held_out.labels))
}

pub(crate) fn main() -> Result<()> {
    let accuracy = train(&Device::best())?;
    println!("{:.1} % of the held-out digits are classified correctly", 100.0 * accuracy);
    assert!(accuracy > 0.95, "the digits are easy");
    Ok(())
}
