//! A generative adversarial network learns to draw points near a circle.
//!
//!     cargo run --release --example gan

use streamgrad::{Reduction, Result, prelude::*};

const BATCH: usize = 128;
const NOISE: usize = 4;

fn network(sizes: [usize; 3], dev: &Device) -> Result<Sequential> {
    let [input, hidden, output] = sizes;
    Ok(sequential![
        Linear::new(input, hidden, dev)?,
        Relu,
        Linear::new(hidden, hidden, dev)?,
        Relu,
        Linear::new(hidden, output, dev)?,
    ])
}

/// Points `[BATCH, 2]` at a distance of about 1 from the origin.
fn circle(dev: &Device) -> Result<Var> {
    let angle = Tensor::uniform(&[BATCH], 0.0, std::f64::consts::TAU, DType::F32, None, dev)?;
    let points = Tensor::stack(&[&angle.cos()?, &angle.sin()?], 1)?;
    Ok(Var::constant((&points + 0.05 * points.randn_like(None)?)?))
}

fn noise(dev: &Device) -> Result<Var> {
    Ok(Var::constant(Tensor::randn(&[BATCH, NOISE], DType::F32, None, dev)?))
}

/// The loss of scores of which all should be `label`.
fn loss(scores: &Var, label: f64) -> Result<Var> {
    scores.bce_with_logits(&Var::constant(scores.value().full_like(label)?), Reduction::Mean)
}

/// Trains for `steps` steps, and returns the mean and standard deviation of the distances of drawn points from the origin.
pub(crate) fn train(steps: usize) -> Result<(f32, f32)> {
    let dev = Device::best();
    streamgrad::seed(7);
    let (generator, critic) = (network([NOISE, 64, 2], &dev)?, network([2, 64, 1], &dev)?);
    let options = AdamOptions { lr: 1e-3, betas: (0.5, 0.999), ..AdamOptions::default() };
    let mut generator_adam = Adam::new(generator.parameters(), options)?;
    let mut critic_adam = Adam::new(critic.parameters(), options)?;
    for step in 0..steps {
        let fake = generator.forward(&noise(&dev)?)?;
        let real_loss = loss(&critic.forward(&circle(&dev)?)?, 1.0)?;
        let critic_loss = (real_loss + loss(&critic.forward(&fake.detach())?, 0.0))?;
        critic_adam.step(&critic_loss.backward()?)?;

        let generator_loss = loss(&critic.forward(&fake)?, 1.0)?;
        generator_adam.step(&generator_loss.backward()?)?;
        if step % 200 == 0 {
            let (critic, generator) = (critic_loss.item::<f32>()?, generator_loss.item::<f32>()?);
            println!("step {step:4}  critic {critic:.3}  generator {generator:.3}");
        }
    }
    let distances = no_grad(|| generator.forward(&noise(&dev)?)?.norm(2.0, &[1], false))?;
    Ok((distances.mean_all()?.item()?, distances.std(&[], 1.0, false)?.item()?))
}

fn main() -> Result<()> {
    let (mean, std) = train(2000)?;
    println!("distances {mean:.3} ± {std:.3}");
    Ok(())
}
