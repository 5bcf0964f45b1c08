//! Trains a small perceptron on the digits: AdamW, a warm-up, a cosine, and clipped gradients.
//!
//! ```sh
//! cargo run --release --example digits_mlp
//! ```

use streamgrad::prelude::*;

const EPOCHS: u64 = 12;
const SEED: u64 = 7;
const LR: f64 = 5e-3;

pub(crate) fn main() -> streamgrad::Result<()> {
    let device = Device::best();
    let model = mlp(&[64, 128, 10], SEED, &device)?;
    let (train, test) = Digits::load()?.split(0.2, SEED)?;
    let test = test.tensors(&device)?;
    let options = LoaderOptions { batch: 64, seed: SEED, device: device.clone(), ..LoaderOptions::default() };
    let loader = DataLoader::new(train, options)?;
    let steps = EPOCHS * loader.per_epoch() as u64;

    let mut adamw = AdamW::new(model.parameters(), LR)?;
    let warm_up = LrSchedule::Linear { start_factor: 0.1, end_factor: 1.0, total_iters: 20 };
    let cosine = LrSchedule::Cosine { t_max: steps - 20, eta_min: 0.0 };
    let schedule = LrSchedule::sequence([(0, warm_up), (20, cosine)])?;

    let mut step = 0;
    let mut share = 0.0;
    for epoch in 0..EPOCHS {
        for batch in loader.epoch(epoch) {
            let batch = batch?;
            schedule.apply(&mut adamw, LR, step)?;
            let mut gradients = cross_entropy(&model.forward(&batch.input())?, &batch.labels)?.backward()?;
            // The norm stays on the device: nothing waits for it.
            clip_grad_norm(&mut gradients, 5.0)?;
            adamw.step(&gradients)?;
            step += 1;
        }
        let logits = no_grad(|| model.forward(&test.input()))?;
        share = accuracy(logits.value(), &test.labels)?;
        println!("epoch {epoch:>2}: {:.1} % of the held-out digits", 100.0 * share);
    }
    assert!(share > 0.95, "the digits are easy");
    Ok(())
}
