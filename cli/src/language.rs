//! A character-level transformer.

use autograd::Var;
use device::{DType, Device, Result};

use super::gpt::token_loss;
use crate::{Evaluation, Model, Workload, WorkloadInfo};

use super::{Gpt, GptOptions};
use models::random::SplitMix;
use models::{AdamW, Batch, Forward, InMemory, Optimizer, Text};

/// One GPT block of width 128 with 4 heads, which tells the next character of 64, trained by AdamW.
pub(super) struct CharGpt;

/// What it reads: sentences of a determiner, perhaps an adjective, and so on, a word of each list in turn.
const SENTENCE: &[&[&str]] = &[
    &["the", "a", "every", "no", "this", "one"],
    &["", "", "", "quiet", "small", "late", "green", "heavy"],
    &["river", "baker", "miller", "garden", "teacher", "pigeon", "window", "sailor"],
    &["follows", "finds", "carries", "hears", "paints", "leaves", "crosses", "wants"],
    &["the", "a", "another", "its", "that", "no"],
    &["", "", "", "narrow", "wooden", "bright", "distant", "old"],
    &["bridge", "letter", "stone", "market", "ladder", "song", "harbour", "field"],
    &["", "", "", "at night", "in spring", "too soon", "by chance", "again"],
];
const LENGTH: usize = 1 << 16;
const SEED: u64 = 7;

const CONTEXT: usize = 64;
/// Characters between the begins of two windows.
const STRIDE: usize = 16;
/// The share of the text, at its end, that is held out.
const TEST_FRACTION: f64 = 0.1;
/// Rows in one forward pass of an evaluation.
const EVALUATION_ROWS: usize = 64;

impl CharGpt {
    fn text(&self) -> Result<Text> {
        let mut random = SplitMix(SEED);
        let mut text = String::new();
        while text.len() < LENGTH {
            let words = SENTENCE.iter().map(|words| words[random.below(words.len())]);
            let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
            text.push_str(&words.join(" "));
            text.push_str(".\n");
        }
        Text::new(&text)
    }
}

/// The numbers of a batch's characters. Its labels are those of the characters one place on.
fn tokens(batch: &Batch) -> Result<Var> {
    Ok(Var::constant(batch.inputs.to_dtype(DType::I64)?))
}

impl Workload for CharGpt {
    fn info(&self) -> WorkloadInfo {
        let about = "one GPT block of width 128 on 64 characters of made-up sentences, AdamW";
        WorkloadInfo::new("gpt", about, 8, 2)
    }

    fn model(&self, seed: u64, device: &Device) -> Result<Box<dyn Model>> {
        let vocabulary = self.text()?.vocabulary().len();
        let options =
            GptOptions { vocabulary, context: CONTEXT, width: 128, heads: 4, blocks: 1, dropout: 0.0 };
        Ok(Box::new(Gpt::new(options, seed, device)?))
    }

    fn data_for(&self, _: usize, _: u64, _: &Device) -> Result<(InMemory, InMemory)> {
        let (train, test) = self.text()?.split(TEST_FRACTION)?;
        Ok((train.rows(CONTEXT, STRIDE)?, test.rows(CONTEXT, CONTEXT)?))
    }

    fn optimizer(&self, parameters: Vec<Var>, lanes: usize) -> Result<Box<dyn Optimizer>> {
        super::expect_lanes(lanes)?;
        // A step of Adam is as long for a sum of gradients as for their mean.
        Ok(Box::new(AdamW::new(parameters, 2e-3)?))
    }
}

impl Model for Gpt {
    /// Numbers the characters.
    fn prepare(&self, batch: Batch) -> Result<Batch> {
        Ok(Batch { inputs: batch.inputs.to_dtype(DType::I64)?, ..batch })
    }

    fn batch_loss(&self, batch: &Batch) -> Result<Var> {
        let tokens = tokens(batch)?;
        batch.seeded(|| token_loss(&self.forward(&tokens)?, &batch.labels))
    }

    /// The mean loss and the share of characters that are told, over all places of the windows.
    fn evaluate(&self, data: &InMemory, device: &Device) -> Result<Evaluation> {
        let part = |batch: &Batch| {
            let (scores, targets) = (self.forward(&tokens(batch)?)?, &batch.labels);
            let right =
                scores.value().argmax(-1, false)?.eq(targets)?.to_dtype(DType::I64)?.sum(&[], false)?;
            Ok((token_loss(&scores, targets)?.value().clone(), right, targets.elements()))
        };
        super::evaluate(self, data, EVALUATION_ROWS, device, part)
    }
}
