//! A residual network learns the digits, stops halfway, and resumes from a checkpoint with equal bits.
//!
//!     cargo run --release --example resnet

use std::ops::Range;
use std::path::Path;

use streamgrad::checkpoint::Progress;
use streamgrad::models::file;
use streamgrad::{Result, prelude::*};

const EPOCHS: u64 = 4;

fn conv(channels: usize, filters: usize, size: usize, stride: usize, dev: &Device) -> Result<Conv2d> {
    let (stride, padding) = ([stride; 2], [size / 2; 2]);
    let options = Conv2dOptions { stride, padding, bias: false, ..Conv2dOptions::default() };
    Conv2d::with_options(channels, filters, [size; 2], options, dev)
}

#[derive(Module)]
struct Block {
    conv1: Conv2d,
    bn1: BatchNorm2d,
    conv2: Conv2d,
    bn2: BatchNorm2d,
    shortcut: Sequential,
}

impl Block {
    fn new(channels: usize, filters: usize, stride: usize, dev: &Device) -> Result<Block> {
        let shortcut = match stride != 1 || channels != filters {
            true => sequential![conv(channels, filters, 1, stride, dev)?, BatchNorm2d::new(filters, dev)?],
            false => Sequential::new(),
        };
        Ok(Block {
            conv1: conv(channels, filters, 3, stride, dev)?,
            bn1: BatchNorm2d::new(filters, dev)?,
            conv2: conv(filters, filters, 3, 1, dev)?,
            bn2: BatchNorm2d::new(filters, dev)?,
            shortcut,
        })
    }
}

impl Forward for Block {
    fn forward(&self, x: &Var) -> Result<Var> {
        let y = self.bn1.forward(&self.conv1.forward(x)?)?.relu()?;
        let y = self.bn2.forward(&self.conv2.forward(&y)?)?;
        (y + self.shortcut.forward(x))?.relu()
    }
}

fn resnet(dev: &Device) -> Result<Sequential> {
    Ok(sequential![
        Unflatten(vec![1, 8, 8]),
        conv(1, 16, 3, 1, dev)?,
        BatchNorm2d::new(16, dev)?,
        Relu,
        Block::new(16, 16, 1, dev)?,
        Block::new(16, 32, 2, dev)?,
        AdaptiveAvgPool2d([1, 1]),
        Flatten,
        Linear::new(32, 10, dev)?,
    ])
}

/// Trains for some epochs, from the checkpoint at `path` unless they are the first, and writes one. Returns the accuracy.
fn train(epochs: Range<u64>, path: &Path) -> Result<f64> {
    let dev = Device::best();
    streamgrad::seed(7);
    let model = resnet(&dev)?;
    let options = SgdOptions { lr: 0.1, momentum: 0.9, weight_decay: 5e-4, ..SgdOptions::default() };
    let mut sgd = Sgd::new(model.parameters(), options)?;
    let (train, test) = Digits::load()?.split(0.2, 7)?;
    let options = LoaderOptions { batch: 32, seed: 7, device: dev.clone(), ..LoaderOptions::default() };
    let loader = DataLoader::new(train, options)?;
    if epochs.start > 0 {
        checkpoint::load_training(path, &model, &mut sgd)?;
    }
    for epoch in epochs.clone() {
        for batch in loader.epoch(epoch) {
            let batch = batch?;
            let loss = cross_entropy(&model.forward(&batch.input())?, &batch.labels)?;
            sgd.step(&loss.backward()?)?;
        }
        println!("epoch {epoch} done");
    }
    checkpoint::save_training(path, &model, &sgd, Progress { epoch: epochs.end, ..Progress::default() })?;
    model.set_training(false);
    let test = test.tensors(&dev)?;
    no_grad(|| accuracy(model.forward(&test.input())?.value(), &test.labels))
}

/// Compares a whole run with one that is resumed; checkpoints are written to `folder`. Returns the accuracy.
pub(crate) fn run(folder: &Path) -> Result<f64> {
    let (whole, halves) = (folder.join("resnet-whole.safetensors"), folder.join("resnet-halves.safetensors"));
    let accuracy = train(0..EPOCHS, &whole)?;
    train(0..EPOCHS / 2, &halves)?;
    train(EPOCHS / 2..EPOCHS, &halves)?;
    assert_eq!(file::read(whole)?, file::read(halves)?, "a resumed run has the bits of a whole one");
    println!("{:.1} % of the held-out digits", 100.0 * accuracy);
    Ok(accuracy)
}

fn main() -> Result<()> {
    run(&std::env::temp_dir()).map(drop)
}
