//! Deep Q-learning: an agent learns the way along a corridor, with a target network that follows the trained one.
//!
//!     cargo run --release --example dqn

use streamgrad::prelude::*;
use streamgrad::{Generator, Reduction, Result, copy_parameters, lerp_parameters, with_generator};

const LENGTH: usize = 8;
/// Left and right.
const ACTIONS: usize = 2;

/// The place after an action, and the reward for it: 1 at the right end.
fn act(place: usize, action: usize) -> (usize, f32) {
    let next = if action == 1 { place + 1 } else { place.saturating_sub(1) };
    if next == LENGTH - 1 { (0, 1.0) } else { (next, 0.0) }
}

/// One step of the agent: place, action, reward, next place, and whether the corridor's end was reached.
type Move = (usize, usize, f32, usize, bool);

fn places(dev: &Device, places: impl Iterator<Item = usize>) -> Result<Var> {
    let places: Vec<i64> = places.map(|place| place as i64).collect();
    let hot = Tensor::from_slice(&places, &[places.len()], dev)?.one_hot(LENGTH)?;
    Ok(Var::constant(hot.to_dtype(DType::F32)?))
}

/// Values of the actions at each place, after `steps` steps.
pub(crate) fn train(steps: usize) -> Result<Vec<f32>> {
    let dev = Device::best();
    let (online, target) = (mlp(&[LENGTH, 32, ACTIONS], 1, &dev)?, mlp(&[LENGTH, 32, ACTIONS], 2, &dev)?);
    copy_parameters(&target, &online)?;
    let mut adam = Adam::new(online.parameters(), 5e-3)?;
    let (mut place, mut memory): (usize, Vec<Move>) = (0, Vec::new());
    for step in 0..steps {
        // Chance decides with a falling probability.
        let chance = Tensor::rand(&[2], DType::F64, None, &Device::cpu())?.to_vec::<f64>()?;
        let action = if chance[0] < 1.0 - step as f64 / steps as f64 {
            usize::from(chance[1] < 0.5)
        } else {
            let scores = no_grad(|| online.forward(&places(&dev, [place].into_iter())?))?;
            scores.value().argmax(-1, false)?.item::<i64>()? as usize
        };
        let (next, reward) = act(place, action);
        memory.push((place, action, reward, next, reward > 0.0));
        place = next;
        if memory.len() < 64 {
            continue;
        }
        let chosen = Tensor::randint(0, memory.len() as i64, &[32], DType::I64, None, &Device::cpu())?;
        let batch: Vec<Move> = chosen.to_vec::<i64>()?.into_iter().map(|at| memory[at as usize]).collect();
        let column = |values: Vec<f32>| Tensor::from_slice(&values, &[32], &dev);
        let rewards = column(batch.iter().map(|m| m.2).collect())?;
        let goes_on = column(batch.iter().map(|m| f32::from(u8::from(!m.4))).collect())?;
        let wanted = no_grad(|| {
            let best = target.forward(&places(&dev, batch.iter().map(|m| m.3))?)?.max(&[1], false)?;
            rewards.add(&best.value().mul(&goes_on)?.mul_scalar(0.9)?)
        })?;
        let actions: Vec<i64> = batch.iter().map(|m| m.1 as i64).collect();
        let actions = Tensor::from_slice(&actions, &[32, 1], &dev)?;
        let values = online.forward(&places(&dev, batch.iter().map(|m| m.0))?)?.gather(1, &actions)?;
        let loss = values.squeeze(1)?.smooth_l1_loss(&Var::constant(wanted), 1.0, Reduction::Mean)?;
        adam.step(&loss.backward()?)?;
        lerp_parameters(&target, &online, 0.02)?;
    }
    no_grad(|| online.forward(&places(&dev, 0..LENGTH - 1)?))?.to_vec()
}

fn main() -> Result<()> {
    let values = with_generator(Generator::new(3), || train(1500))?;
    for (place, values) in values.chunks(ACTIONS).enumerate() {
        println!("place {place}: left {:.2}, right {:.2}", values[0], values[1]);
    }
    Ok(())
}
