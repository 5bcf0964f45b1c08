//! A small student learns the digits from a large teacher's softened probabilities.
//!
//!     cargo run --release --example distillation

use streamgrad::{Reduction, Result, prelude::*};

const TEMPERATURE: f64 = 2.0;

/// The divergence of the student's probabilities from the teacher's, both at a high temperature.
fn soft_loss(student: &Var, teacher: &Var) -> Result<Var> {
    let student = (student / TEMPERATURE)?.log_softmax(1)?;
    let teacher = (teacher / TEMPERATURE)?.softmax(1)?;
    let divergence = student.kl_div(&teacher, false, Reduction::Sum)?;
    divergence * (TEMPERATURE * TEMPERATURE / student.shape()[0] as f64)
}

/// Trains a model by a loss of scores and a batch, and returns its accuracy on `test`.
fn train(
    name: &str,
    model: &Sequential,
    (loader, test): (&DataLoader<InMemory>, &Batch),
    epochs: u64,
    loss: impl Fn(&Var, &Batch) -> Result<Var>,
) -> Result<f64> {
    let mut adam = Adam::new(model.parameters(), 5e-3)?;
    for epoch in 0..epochs {
        for batch in loader.epoch(epoch) {
            let batch = batch?;
            adam.step(&loss(&model.forward(&batch.input())?, &batch)?.backward()?)?;
        }
    }
    let share = no_grad(|| accuracy(model.forward(&test.input())?.value(), &test.labels))?;
    println!("{name}: {:.1} % of the held-out digits", 100.0 * share);
    Ok(share)
}

/// The accuracy of the teacher and of the student, which has 1,210 parameters in place of 85,002.
pub(crate) fn run(epochs: u64) -> Result<(f64, f64)> {
    let dev = Device::best();
    let (train_set, test) = Digits::load()?.split(0.2, 7)?;
    let options = LoaderOptions { batch: 64, seed: 7, device: dev.clone(), ..LoaderOptions::default() };
    let data = (&DataLoader::new(train_set, options)?, &test.tensors(&dev)?);
    let (teacher, student) = (mlp(&[64, 256, 256, 10], 1, &dev)?, mlp(&[64, 16, 10], 2, &dev)?);
    let taught =
        train("teacher", &teacher, data, epochs, |scores, batch| cross_entropy(scores, &batch.labels))?;
    let learnt = train("student", &student, data, epochs, |scores, batch| {
        let wanted = no_grad(|| teacher.forward(&batch.input()))?;
        (0.5 * cross_entropy(scores, &batch.labels)?)? + 0.5 * soft_loss(scores, &wanted)?
    })?;
    Ok((taught, learnt))
}

fn main() -> Result<()> {
    run(20).map(drop)
}
