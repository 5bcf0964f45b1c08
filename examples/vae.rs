//! A variational autoencoder learns the digits, and draws new ones.
//!
//!     cargo run --release --example vae

use streamgrad::{Reduction, Result, prelude::*};

const LATENT: usize = 8;

#[derive(Module)]
struct Vae {
    encoder: Sequential,
    decoder: Sequential,
}

impl Vae {
    fn new(dev: &Device) -> Result<Vae> {
        Ok(Vae {
            encoder: sequential![Linear::new(64, 128, dev)?, Relu, Linear::new(128, 2 * LATENT, dev)?],
            decoder: sequential![Linear::new(LATENT, 128, dev)?, Relu, Linear::new(128, 64, dev)?],
        })
    }

    /// The negative evidence lower bound of images `[n, 64]`, per image.
    fn loss(&self, images: &Var) -> Result<Var> {
        let code = self.encoder.forward(images)?.chunk(2, 1)?;
        let (mean, log_var) = (&code[0], &code[1]);
        let noise = mean.value().randn_like(None)?;
        let latent = (mean + (log_var / 2)?.exp()? * Var::constant(noise))?;
        let rebuilt = self.decoder.forward(&latent)?.bce_with_logits(images, Reduction::Sum)?;
        let divergence = ((mean.square()? - 1)? + log_var.exp()? - log_var)?.sum_all()?;
        (rebuilt + divergence / 2)? / images.shape()[0] as f64
    }

    /// Draws new images `[n, 64]`.
    fn sample(&self, n: usize, dev: &Device) -> Result<Tensor> {
        let latent = Var::constant(Tensor::randn(&[n, LATENT], DType::F32, None, dev)?);
        no_grad(|| Ok(self.decoder.forward(&latent)?.sigmoid()?.value().clone()))
    }
}

/// Trains for `epochs` epochs, and returns the last loss per image.
pub(crate) fn train(epochs: u64) -> Result<f32> {
    let dev = Device::best();
    streamgrad::seed(7);
    let model = Vae::new(&dev)?;
    let mut adam = Adam::new(model.parameters(), 2e-3)?;
    let options = LoaderOptions { batch: 64, seed: 7, device: dev.clone(), ..LoaderOptions::default() };
    let loader = DataLoader::new(Digits::load()?, options)?;
    let mut last = f32::INFINITY;
    for epoch in 0..epochs {
        for batch in loader.epoch(epoch) {
            let loss = model.loss(&batch?.input())?;
            adam.step(&loss.backward()?)?;
            last = loss.item()?;
        }
        println!("epoch {epoch:2}  loss {last:.2}");
    }
    for row in model.sample(1, &dev)?.to_vec::<f32>()?.chunks(8) {
        println!("{}", row.iter().map(|&p| if p > 0.5 { '#' } else { '.' }).collect::<String>());
    }
    Ok(last)
}

fn main() -> Result<()> {
    train(20).map(drop)
}
