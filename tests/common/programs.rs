//! Training programs of several streams.

use streamgrad::nn::mlp;
use streamgrad::optim::{Adam, AdamOptions, Sgd, SgdOptions};
use streamgrad::prelude::*;
use streamgrad::{ConcurrentBatches, Result};

use super::bits;

pub(crate) type Program = fn(&Device) -> Result<Vec<Tensor>>;

/// The programs whose every wait is looked at, by name.
pub(crate) const PROGRAMS: [(&str, Program); 3] = [
    ("two lanes", two_lanes),
    ("branches", branches),
    ("an optimizer step beside a batch in flight", optimizer_beside_a_batch),
];

pub(crate) fn input(rows: usize, seed: u32, device: &Device) -> Result<Tensor> {
    let values: Vec<f32> =
        (0..rows as u32 * 3).map(|i| ((i * 7 + seed * 5) % 11) as f32 * 0.1 - 0.4).collect();
    Tensor::from_slice(&values, &[rows, 3], device)
}

pub(crate) fn parameters(model: &impl Module) -> Vec<Tensor> {
    model.parameters().iter().map(|parameter| parameter.value().clone()).collect()
}

/// Two training steps of a small MLP with two lanes that share its weights.
pub(crate) fn two_lanes(device: &Device) -> Result<Vec<Tensor>> {
    let model = mlp(&[3, 4, 2], 1, device)?;
    let mut sgd =
        Sgd::new(model.parameters(), SgdOptions { lr: 0.5, momentum: 0.9, ..SgdOptions::default() })?;
    let lanes = ConcurrentBatches::with_options(device, 2, Lanes::Always)?;
    let mut results = Vec::new();
    for batch in 0..2 {
        let inputs = [input(2, 2 * batch, device)?, input(2, 2 * batch + 1, device)?];
        let loss = |input| model.forward(&Var::constant(input))?.square()?.mean(&[], false);
        let step = lanes.step(inputs, loss)?;
        sgd.step(&step.gradients)?;
        results.extend(step.losses);
    }
    results.extend(parameters(&model));
    Ok(results)
}

/// A model with three branches at once, trained for two steps.
pub(crate) fn branches(device: &Device) -> Result<Vec<Tensor>> {
    let models = [mlp(&[3, 4], 1, device)?, mlp(&[3, 4], 2, device)?, mlp(&[3, 4], 3, device)?];
    let every = models.iter().flat_map(|model| model.parameters()).collect();
    let mut sgd = Sgd::new(every, SgdOptions { lr: 0.1, ..SgdOptions::default() })?;
    let mut results = Vec::new();
    for step in 0..2 {
        let x = Var::constant(input(2, step, device)?);
        let branch = |model: &Sequential| model.forward(&x)?.tanh();
        let (f, g, h) =
            device.concurrent((|| branch(&models[0]), || branch(&models[1]), || branch(&models[2])))?;
        let sum = f.add(&g)?.add(&h)?;
        let loss = sum.square()?.sum(&[], false)?;
        sgd.step(&loss.backward()?)?;
        results.push(loss.value().clone());
    }
    results.extend(models.iter().flat_map(parameters));
    Ok(results)
}

/// The optimizer changes the weights while a batch on another stream still reads them.
pub(crate) fn optimizer_beside_a_batch(device: &Device) -> Result<Vec<Tensor>> {
    let model = mlp(&[3, 4, 2], 5, device)?;
    let mut sgd = Sgd::new(model.parameters(), SgdOptions { lr: 0.3, ..SgdOptions::default() })?;
    let side = device.new_stream()?;
    let x = Var::constant(input(2, 1, device)?);
    let mut results = Vec::new();
    for _ in 0..2 {
        let gradients = model.forward(&x)?.square()?.sum(&[], false)?.backward()?;
        let in_flight = side.scope(|| model.forward(&x)?.exp())?;
        sgd.step(&gradients)?;
        results.push(in_flight.value().clone());
    }
    results.extend(parameters(&model));
    Ok(results)
}

/// Trains a small model with dropout for a few steps and returns every loss and every parameter.
pub(crate) fn train(device: &Device, lanes: usize, batches: usize) -> Result<Vec<Vec<u32>>> {
    train_on(&ConcurrentBatches::with_options(device, lanes, Lanes::Always)?, device, batches, 4)
}

/// [`train`] on given lanes, for so many steps.
pub(crate) fn train_on(
    lanes: &ConcurrentBatches,
    device: &Device,
    batches: usize,
    steps: usize,
) -> Result<Vec<Vec<u32>>> {
    let model = mlp(&[6, 16, 3], 1, device)?;
    let parameters = model.parameters();
    let mut adam = Adam::new(parameters.clone(), AdamOptions::default())?;
    streamgrad::seed(5);
    let mut results = Vec::new();
    for _ in 0..steps {
        let inputs: Vec<Tensor> =
            (0..batches).map(|_| Tensor::randn(&[7, 6], DType::F32, None, device)).collect::<Result<_>>()?;
        let step = lanes.step(inputs, |input| {
            let noisy = Var::constant(input).dropout(0.25, streamgrad::next_key())?;
            model.forward(&noisy)?.square()?.mean(&[], false)
        })?;
        adam.step(&step.gradients)?;
        results.extend(step.losses.iter().map(bits).collect::<Result<Vec<_>>>()?);
    }
    results.extend(parameters.iter().map(|parameter| bits(parameter.value())).collect::<Result<Vec<_>>>()?);
    Ok(results)
}
