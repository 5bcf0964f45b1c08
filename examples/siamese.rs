//! A siamese network learns from pairs of digits whether both are the same, by a contrastive loss.
//!
//!     cargo run --release --example siamese

use streamgrad::models::random::SplitMix;
use streamgrad::{Result, prelude::*};

const MARGIN: f64 = 1.0;

/// Each image with another one: pairs `[n, 2, 64]`, and 1 where both show the same digit, as every second one does, else 0.
fn pairs(digits: &InMemory) -> Result<(Tensor, Tensor)> {
    let mut random = SplitMix(7);
    let labels = digits.labels();
    let (mut partners, mut same) = (Vec::new(), Vec::new());
    for (row, label) in labels.iter().enumerate() {
        let mut partner = random.below(labels.len());
        while (labels[partner] == *label) != (row % 2 == 0) {
            partner = random.below(labels.len());
        }
        partners.push(partner as i64);
        same.push(if row % 2 == 0 { 1.0_f32 } else { 0.0 });
    }
    let cpu = Device::cpu();
    let images = digits.tensors(&cpu)?.inputs;
    let others = images.index_select(0, &Tensor::from_slice(&partners, &[partners.len()], &cpu)?)?;
    Ok((Tensor::stack(&[&images, &others], 1)?, Tensor::from_slice(&same, &[same.len()], &cpu)?))
}

/// The distances of pairs `[n, 2, 64]`, `[n]`.
fn distances(model: &Sequential, pairs: &Var) -> Result<Var> {
    let images = pairs.unbind(1)?;
    (model.forward(&images[0])? - model.forward(&images[1]))?.norm(2.0, &[1], false)
}

/// Trains for `epochs` epochs, and returns the accuracy on held-out pairs.
pub(crate) fn train(epochs: u64) -> Result<f64> {
    let dev = Device::best();
    let model = mlp(&[64, 128, 16], 7, &dev)?;
    let mut adam = Adam::new(model.parameters(), 1e-3)?;
    let (train, test) = Digits::load()?.split(0.2, 7)?;
    let options = LoaderOptions { batch: 64, seed: 7, device: dev.clone(), ..LoaderOptions::default() };
    let (train, train_same) = pairs(&train)?;
    let (test, test_same) = pairs(&test)?;
    let loader = DataLoader::new(TensorDataset::new(&train, &train_same)?, options)?;
    let (test, test_same) = (Var::constant(test.to_device(&dev)?), test_same.to_device(&dev)?);
    let mut share = 0.0;
    for epoch in 0..epochs {
        for batch in loader.epoch(epoch) {
            let batch = batch?;
            let same = Var::constant(batch.labels.clone());
            let distance = distances(&model, &batch.input())?;
            let apart = (MARGIN - &distance)?.relu()?.square()?;
            let loss = ((&same * distance.square()?)? + (1.0 - &same)? * apart)?.mean_all()?;
            adam.step(&loss.backward()?)?;
        }
        let near = no_grad(|| distances(&model, &test))?.value().lt(MARGIN / 2.0)?;
        let right = near.to_dtype(DType::F32)?.eq(&test_same)?;
        share = right.to_dtype(DType::F64)?.mean(&[], false)?.item::<f64>()?;
        println!("epoch {epoch:2}: {:.1} % of the held-out pairs", 100.0 * share);
    }
    Ok(share)
}

fn main() -> Result<()> {
    train(10).map(drop)
}
