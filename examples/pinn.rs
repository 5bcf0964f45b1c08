//! A physics-informed network solves `u'' + 2 d u' + w² u = 0`, a damped oscillator, from its equation alone.
//!
//!     cargo run --release --example pinn

use streamgrad::{Result, prelude::*};

const DAMPING: f64 = 0.5;
const FREQUENCY: f64 = 3.0;

fn network(dev: &Device) -> Result<Sequential> {
    let layers = sequential![Linear::new(1, 32, dev)?, Tanh, Linear::new(32, 32, dev)?, Tanh];
    Ok(layers.push(Linear::new(32, 1, dev)?))
}

/// The solution from rest at 1.
fn exact(t: &Tensor) -> Result<Tensor> {
    let own = (FREQUENCY * FREQUENCY - DAMPING * DAMPING).sqrt();
    let phase = (own * t)?;
    (-DAMPING * t)?.exp()? * (phase.cos()? + DAMPING / own * &phase.sin()?)
}

/// Trains for `steps` steps, and returns the largest error.
pub(crate) fn train(steps: usize) -> Result<f32> {
    let dev = Device::best();
    streamgrad::seed(7);
    let u = network(&dev)?;
    let mut adam = Adam::new(u.parameters(), 1e-2)?;
    let schedule = LrSchedule::Cosine { t_max: steps as u64, eta_min: 1e-5 };
    let start = Var::leaf(Tensor::zeros(&[1, 1], DType::F32, &dev)?);
    let times = Var::leaf(Tensor::linspace(0.0, 3.0, 64, DType::F32, &dev)?.unsqueeze(1)?);
    for step in 0..steps {
        schedule.apply(&mut adam, 1e-2, step as u64)?;
        let at_start = u.forward(&start)?;
        let slope_at_start = grad_of(&at_start, &start)?;
        let value = u.forward(&times)?;
        let slope = grad_of(&value, &times)?;
        let curvature = grad_of(&slope, &times)?;
        let residual = ((curvature + 2.0 * DAMPING * &slope)? + FREQUENCY * FREQUENCY * &value)?;
        let boundary = ((&at_start - 1)?.square()? + slope_at_start.square())?.sum_all()?;
        let loss = (boundary + residual.square()?.mean_all()? / 10)?;
        adam.step(&loss.backward()?)?;
        if step % 500 == 0 {
            println!("step {step:4}  loss {:.2e}", loss.item::<f32>()?);
        }
    }
    let found = no_grad(|| u.forward(&times))?;
    (found.value() - exact(times.value()))?.abs()?.max(&[], false)?.item()
}

fn main() -> Result<()> {
    println!("largest error {:.4}", train(2000)?);
    Ok(())
}
