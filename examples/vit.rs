//! A vision transformer learns the digits in mixed precision: products in BF16, weights in F32.
//!
//!     cargo run --release --example vit

use streamgrad::{Result, prelude::*};

const WIDTH: usize = 32;
/// Patches of 2x2 pixels.
const PATCHES: usize = 16;

fn block(dev: &Device) -> Result<Sequential> {
    let (up, down) = (Linear::new(WIDTH, 2 * WIDTH, dev)?, Linear::new(2 * WIDTH, WIDTH, dev)?);
    let attention = MultiheadAttention::new(WIDTH, 4, dev)?;
    Ok(sequential![
        Residual(sequential![LayerNorm::new(&[WIDTH], dev)?, attention]),
        Residual(sequential![LayerNorm::new(&[WIDTH], dev)?, up, Gelu::default(), down]),
    ])
}

#[derive(Module)]
struct Vit {
    patches: Conv2d,
    class: Var,
    positions: Var,
    blocks: Sequential,
    norm: LayerNorm,
    head: Linear,
}

impl Vit {
    fn new(depth: usize, dev: &Device) -> Result<Vit> {
        let stride = Conv2dOptions { stride: [2, 2], ..Conv2dOptions::default() };
        Ok(Vit {
            patches: Conv2d::with_options(1, WIDTH, [2, 2], stride, dev)?,
            class: Var::leaf(Tensor::randn(&[1, 1, WIDTH], DType::F32, None, dev)?),
            positions: Var::leaf(Tensor::randn(&[1, PATCHES + 1, WIDTH], DType::F32, None, dev)?),
            blocks: (0..depth).map(|_| block(dev)).collect::<Result<_>>()?,
            norm: LayerNorm::new(&[WIDTH], dev)?,
            head: Linear::new(WIDTH, 10, dev)?,
        })
    }
}

impl Forward for Vit {
    fn forward(&self, images: &Var) -> Result<Var> {
        let n = images.shape()[0];
        let patches = self.patches.forward(&images.reshape(&[n, 1, 8, 8])?)?.flatten(2, 3)?;
        let class = self.class.expand(&[n, 1, WIDTH])?;
        let x = (Var::cat(&[&class, &patches.transpose(1, 2)?], 1)? + &self.positions)?;
        self.head.forward(&self.norm.forward(&self.blocks.forward(&x)?.select(1, 0)?)?)
    }
}

/// Trains for `epochs` epochs, and returns the accuracy on held-out digits.
pub(crate) fn train(epochs: u64) -> Result<f64> {
    let dev = Device::best();
    streamgrad::seed(7);
    let model = Vit::new(2, &dev)?;
    let mut adamw = AdamW::new(model.parameters(), 2e-3)?;
    let (train, test) = Digits::load()?.split(0.2, 7)?;
    let test = test.tensors(&dev)?;
    let options = LoaderOptions { batch: 64, seed: 7, device: dev.clone(), ..LoaderOptions::default() };
    let loader = DataLoader::new(train, options)?;
    let mut share = 0.0;
    for epoch in 0..epochs {
        for batch in loader.epoch(epoch) {
            let Batch { inputs, labels, .. } = batch?;
            let loss = autocast(DType::BF16, || cross_entropy(&model.forward(&inputs.into())?, &labels))?;
            adamw.step(&loss.backward()?)?;
        }
        let scores = no_grad(|| autocast(DType::BF16, || model.forward(&test.input())))?;
        share = accuracy(scores.value(), &test.labels)?;
        println!("epoch {epoch:2}: {:.1} % of the held-out digits", 100.0 * share);
    }
    Ok(share)
}

fn main() -> Result<()> {
    train(8).map(drop)
}
