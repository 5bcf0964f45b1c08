//! A language model of gated recurrent units learns a text, letter by letter, and goes on with it.
//!
//!     cargo run --release --example gru_text

use streamgrad::{Reduction, Result, prelude::*};

const TEXT: &str = "the quick brown fox jumps over the lazy dog. pack my box with five dozen liquor jugs. ";

#[derive(Module)]
struct Model {
    letters: Embedding,
    gru: Gru,
    head: Linear,
}

impl Model {
    /// Scores for the letter after each place of `[t, b]` letters, and the state behind the last one.
    fn scores(&self, letters: &Tensor, state: Option<&Var>) -> Result<(Var, Var)> {
        let (hidden, state) = self.gru.run(&self.letters.forward(&Var::constant(letters.clone()))?, state)?;
        Ok((self.head.forward(&hidden)?, state))
    }
}

/// Trains for `steps` steps, and returns the last loss and what the model writes.
pub(crate) fn train(steps: usize) -> Result<(f64, String)> {
    let dev = Device::best();
    streamgrad::seed(7);
    let text = Text::new(&TEXT.repeat(20))?;
    let classes = text.vocabulary().len();
    let model = Model {
        letters: Embedding::new(classes, 16, &dev)?,
        gru: Gru::new(16, 64, &dev)?,
        head: Linear::new(64, classes, &dev)?,
    };
    let mut adam = Adam::new(model.parameters(), 1e-2)?;
    let windows = text.windows(32, 16, 7)?;
    let mut last = f64::INFINITY;
    for step in 0..steps as u64 {
        let batch = windows.batch(step, &dev)?;
        let (letters, next) = (batch.tokens.t()?, batch.targets.t()?.contiguous()?);
        let (scores, _) = model.scores(&letters, None)?;
        let loss = scores.flatten(0, 1)?.cross_entropy(&next.flatten(0, 1)?, Reduction::Mean)?;
        let mut gradients = loss.backward()?;
        clip_grad_norm(&mut gradients, 1.0)?;
        adam.step(&gradients)?;
        if step + 1 == steps as u64 || step % 50 == 0 {
            last = f64::from(loss.item::<f32>()?);
            println!("step {step:4}  loss {last:.3}");
        }
    }
    let mut written = text.encode("the quick ")?;
    let (mut state, mut from) = (None, 0);
    no_grad(|| {
        for _ in 0..40 {
            let letters = Tensor::from_slice(&written[from..], &[written.len() - from, 1], &dev)?;
            let (scores, behind) = model.scores(&letters, state.as_ref())?;
            (state, from) = (Some(behind), written.len());
            let best = scores.value().argmax(-1, false)?;
            written.push(best.select(0, best.shape()[0] - 1)?.item::<i64>()?);
        }
        Ok(())
    })?;
    Ok((last, text.decode(&written)?))
}

fn main() -> Result<()> {
    println!("{}", train(300)?.1);
    Ok(())
}
