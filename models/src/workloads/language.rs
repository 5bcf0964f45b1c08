//! A character-level transformer.

use autograd::Var;
use device::{DType, Device, Result};
use tensor::Tensor;

use super::{Evaluation, Model, Workload};
use crate::gpt::token_loss;
use crate::{AdamW, AdamWOptions, Batch, Gpt, GptOptions, InMemory, Module, Optimizer, Text};

/// One GPT block of width 128 with 4 heads, which tells the next character of 64, trained by AdamW.
pub(super) struct CharGpt;

/// What it reads: some of this crate's own sources.
const SOURCES: &str = concat!(
    include_str!("../checkpoint.rs"),
    include_str!("../gpt.rs"),
    include_str!("../module.rs"),
    include_str!("../layers/attention.rs"),
    include_str!("../layers/linear.rs"),
    include_str!("../optim/adam.rs"),
    include_str!("../data/batches.rs"),
    include_str!("../data/text.rs"),
);

const CONTEXT: usize = 64;
/// Characters between the begins of two windows.
const STRIDE: usize = 16;
/// The share of the text, at its end, that is held out.
const TEST_FRACTION: f64 = 0.1;
/// Rows in one forward pass of an evaluation.
const EVALUATION_ROWS: usize = 64;

impl CharGpt {
    fn text(&self) -> Result<Text> {
        Text::new(SOURCES)
    }
}

/// The numbers of a batch's characters, and of those one place on.
fn tokens(batch: &Batch) -> Result<(Var, Tensor)> {
    let tokens = batch.inputs.to_dtype(DType::I64)?;
    let rest = tokens.narrow(1, 1, tokens.shape()[1] - 1)?;
    let targets = Tensor::cat(&[&rest, &batch.labels.unsqueeze(1)?], 1)?;
    Ok((Var::constant(tokens), targets))
}

impl Workload for CharGpt {
    fn name(&self) -> &'static str {
        "gpt"
    }

    fn about(&self) -> &'static str {
        "one GPT block of width 128 on 64 characters of source text, AdamW"
    }

    fn default_batch(&self) -> usize {
        8
    }

    fn default_epochs(&self) -> u64 {
        2
    }

    fn model(&self, seed: u64, device: &Device) -> Result<Box<dyn Model>> {
        let vocabulary = self.text()?.vocabulary().len();
        let options =
            GptOptions { vocabulary, context: CONTEXT, width: 128, heads: 4, blocks: 1, dropout: 0.0 };
        Ok(Box::new(Gpt::new(options, seed, device)?))
    }

    fn data(&self, _: u64, _: &Device) -> Result<(InMemory, InMemory)> {
        let (train, test) = self.text()?.split(TEST_FRACTION)?;
        Ok((train.rows(CONTEXT, STRIDE)?, test.rows(CONTEXT, CONTEXT)?))
    }

    fn optimizer(&self, parameters: Vec<Var>, lanes: usize) -> Result<Box<dyn Optimizer>> {
        super::expect_lanes(lanes)?;
        // A step of Adam is as long for a sum of gradients as for their mean.
        Ok(Box::new(AdamW::new(parameters, AdamWOptions { lr: 2e-3, ..AdamWOptions::default() })?))
    }
}

impl Model for Gpt {
    fn batch_loss(&self, batch: &Batch) -> Result<Var> {
        let (tokens, targets) = tokens(batch)?;
        batch.seeded(|| token_loss(&self.forward(&tokens)?, &targets))
    }

    /// The mean loss and the share of characters that are told, over all places of the windows.
    fn evaluate(&self, data: &InMemory, device: &Device) -> Result<Evaluation> {
        let part = |batch: &Batch| {
            let (tokens, targets) = tokens(batch)?;
            let scores = self.forward(&tokens)?;
            let right =
                scores.value().argmax(-1, false)?.eq(&targets)?.to_dtype(DType::I64)?.sum(&[], false)?;
            Ok((token_loss(&scores, &targets)?.value().clone(), right, targets.elements()))
        };
        super::evaluate(self, data, EVALUATION_ROWS, device, part)
    }
}
