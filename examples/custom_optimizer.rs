//! An optimizer of one's own: a rule, written once, that a CPU computes on vectors and CUDA as a kernel made of it. Its steps
//! are one command for all parameters, its state is saved and loaded, and captured steps follow its options.
//!
//! ```sh
//! cargo run --release --example custom_optimizer
//! ```

use streamgrad::models::optim::{Field, Fused, Kind};
use streamgrad::prelude::*;
use streamgrad::tensor::{Rule, RuleStep, RuleValue};

/// `buffer = momentum buffer + grad`, `param = param - lr sign(buffer)` (Signum; Bernstein et al. 2018).
struct SignumRule;

impl Rule<1, 2> for SignumRule {
    const OP: &'static str = "signum";
    const STATES: [&'static str; 1] = ["momentum_buffer"];

    #[inline(always)]
    fn step<V: RuleValue>([lr, momentum]: [V; 2], _: [V::Flag; 0], p: V, g: V, [b]: [V; 1]) -> (V, [V; 1]) {
        let b = momentum * b + g;
        (p - lr * b.sign(), [b])
    }
}

/// How [`Signum`] steps.
#[derive(Clone, Copy, Debug)]
struct SignumOptions {
    lr: f64,
    momentum: f64,
}

impl Kind for SignumOptions {
    const NAME: &'static str = "signum";
    const COUNTS_STEPS: bool = false;

    fn rule(&self, _: u64) -> streamgrad::Result<RuleStep> {
        Ok(RuleStep::new(SignumRule, [self.lr, self.momentum], []))
    }

    fn fields(&mut self) -> Vec<(&'static str, Field<'_>)> {
        vec![("lr", Field::NotNegative(&mut self.lr)), ("momentum", Field::Share(&mut self.momentum))]
    }
}

type Signum = Fused<SignumOptions>;

fn train(device: &Device) -> streamgrad::Result<Vec<f32>> {
    let target = Var::constant(Tensor::from_slice(&[0.5f32, -1.0, 2.0], &[3], device)?);
    let w = Var::leaf(Tensor::zeros(&[3], DType::F32, device)?);
    let mut optimizer = Signum::new(vec![w.clone()], SignumOptions { lr: 0.125, momentum: 0.5 })?;
    for step in 0..24 {
        if step == 16 {
            optimizer.set_learning_rate(0.0625)?;
        }
        let loss = (&w - &target)?.square()?.sum_all()?;
        optimizer.step(&loss.backward()?)?;
    }
    w.value().to_vec()
}

pub(crate) fn main() -> streamgrad::Result<()> {
    let found = train(&Device::cpu())?;
    println!("{found:?}");
    let target = [0.5, -1.0, 2.0];
    assert!(found.iter().zip(target).all(|(found, target)| (found - target).abs() <= 0.25), "{found:?}");
    if let Ok(device) = Device::cuda(0) {
        assert_eq!(train(&device)?, found, "all devices give the same bits");
    }
    Ok(())
}
