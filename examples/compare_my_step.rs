//! A training step of one's own on one stream and on several: is it the same bit for bit, is it faster, and if not, why?
//!
//! ```sh
//! cargo run --release --example compare_my_step
//! ```

use streamgrad::compare::{CompareOptions, Comparison, ComparisonReport};
use streamgrad::prelude::*;
use streamgrad::{RandomKey, Result};

/// Two layers with a shortcut around them.
#[derive(Module)]
struct Model {
    hidden: Linear,
    out: Linear,
    shortcut: Linear,
}

impl Model {
    fn new(dev: &Device) -> Result<Model> {
        let (hidden, out) = (Linear::new(64, 256, dev)?, Linear::new(256, 10, dev)?);
        Ok(Model { hidden, out, shortcut: Linear::new(64, 10, dev)? })
    }

    /// The loss of a batch, and the scores.
    fn loss(&self, x: &Tensor, labels: &Tensor) -> Result<(Var, Tensor)> {
        let x = Var::constant(x.clone());
        let scores = self.out.forward(&self.hidden.forward(&x)?.relu()?)?.add(&self.shortcut.forward(&x)?)?;
        Ok((cross_entropy(&scores, labels)?, scores.value().clone()))
    }
}

/// The whole comparison: what makes model and optimizer, batch number `n`, a loss, an update.
fn compare(dev: &Device, options: CompareOptions) -> Result<ComparisonReport> {
    Comparison::new(dev)
        .setup(|dev| {
            let model = Model::new(dev)?;
            let adam = Adam::new(model.parameters(), AdamOptions::default())?;
            Ok((model, adam))
        })
        .batches(|dev, n| {
            let x = Tensor::randn(&[256, 64], DType::F32, RandomKey { seed: 1, op: n }, dev)?;
            Ok((x.clone(), x.narrow(1, 0, 10)?.argmax(1, false)?))
        })
        .loss(|(model, _), (x, labels)| model.loss(x, labels))
        .update(|(_, adam), gradients| adam.step(&gradients))
        .model(|(model, _)| model)
        .options(options)
        .run()
}

pub(crate) fn main() -> Result<()> {
    // Fewer steps than usual: an example is over soon.
    let report = compare(&Device::best(), CompareOptions { steps: 48, warmup: 8, ..Default::default() })?;
    println!("{report}");
    assert!(report.is_identical(), "a schedule must not change a bit");
    Ok(())
}
