//! Weights under PyTorch's names, trained on the digits 0 to 4, are loaded; their body is frozen, and a new head learns 5 to 9.
//!
//!     cargo run --release --example fine_tune

use std::ops::RangeInclusive;
use std::path::Path;

use streamgrad::checkpoint::LoadOptions;
use streamgrad::{Result, prelude::*};

/// The network whose weights are in the file.
#[derive(Module)]
struct Pretrained {
    features: Sequential,
    classifier: Linear,
}

#[derive(Module)]
struct Model {
    body: Sequential,
    head: Linear,
}

fn body(dev: &Device) -> Result<Sequential> {
    Ok(sequential![Linear::new(64, 128, dev)?, Relu])
}

fn digits(classes: RangeInclusive<i64>) -> Result<InMemory> {
    let digits = Digits::load()?;
    let rows = (0..digits.len()).filter(|&row| classes.contains(&digits.labels()[row]));
    digits.select(&rows.collect::<Vec<_>>())
}

/// Trains `parameters` for some epochs, and returns the share of held-out digits that are classified correctly.
fn fit(
    forward: impl Fn(&Var) -> Result<Var>,
    parameters: Vec<Var>,
    digits: &InMemory,
    epochs: u64,
) -> Result<f64> {
    let mut adam = Adam::new(parameters, 5e-3)?;
    let (train, test) = digits.split(0.2, 7)?;
    let device = Device::best();
    let test = test.tensors(&device)?;
    let loader =
        DataLoader::new(train, LoaderOptions { batch: 32, seed: 7, device, ..LoaderOptions::default() })?;
    for epoch in 0..epochs {
        for batch in loader.epoch(epoch) {
            let batch = batch?;
            let loss = cross_entropy(&forward(&batch.input())?, &batch.labels)?;
            adam.step(&loss.backward()?)?;
        }
    }
    no_grad(|| accuracy(forward(&test.input())?.value(), &test.labels))
}

/// Stands for the PyTorch program that wrote the file.
fn pretrain(path: &Path, epochs: u64) -> Result<()> {
    let dev = Device::best();
    let model = Pretrained { features: body(&dev)?, classifier: Linear::new(128, 10, &dev)? };
    let forward = |x: &Var| model.classifier.forward(&model.features.forward(x)?);
    let share = fit(forward, model.parameters(), &digits(0..=4)?, epochs)?;
    println!("0 to 4: {:.1} % of the held-out digits", 100.0 * share);
    checkpoint::save(path, &model)
}

/// Loads the file, and returns the accuracy on held-out digits of 5 to 9 of a head that is trained alone.
pub(crate) fn run(path: &Path, epochs: u64) -> Result<f64> {
    streamgrad::seed(7);
    pretrain(path, epochs)?;
    let dev = Device::best();
    let model = Model { body: body(&dev)?, head: Linear::new(128, 10, &dev)? };
    let rename = |name: &str| name.replace("body.", "features.");
    let is_body = |name: &str| name.starts_with("body.");
    let options = LoadOptions {
        rename: Some(&rename),
        filter: Some(&is_body),
        allow_unknown: true,
        ..LoadOptions::default()
    };
    let report = checkpoint::load_with(path, &model, options)?;
    println!("loaded {:?}, left {:?}", report.loaded, report.unknown);
    model.body.freeze();
    let forward = |x: &Var| model.head.forward(&model.body.forward(x)?);
    let share = fit(forward, model.head.parameters(), &digits(5..=9)?, epochs)?;
    println!("5 to 9: {:.1} % of the held-out digits", 100.0 * share);
    Ok(share)
}

fn main() -> Result<()> {
    run(&std::env::temp_dir().join("streamgrad-fine-tune.safetensors"), 10).map(drop)
}
