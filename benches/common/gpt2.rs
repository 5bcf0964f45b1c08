//! GPT-2 small, on 4 sequences of 1024 places.

use streamgrad::Result;
use streamgrad::optim::{AdamW, AdamWOptions};
use streamgrad::prelude::*;
use workloads::{Gpt, GptOptions};

pub(crate) const OPTIONS: GptOptions =
    GptOptions { vocabulary: 50304, context: 1024, width: 768, heads: 12, blocks: 12, dropout: 0.0 };

/// The model, tokens, and what follows each of them.
pub(crate) fn gpt2(options: GptOptions, device: &Device) -> Result<(Gpt, [Tensor; 2])> {
    let tokens = || {
        let shape = [4, options.context];
        Tensor::randint(0, options.vocabulary as i64, &shape, DType::I64, None, device)
    };
    Ok((Gpt::new(options, 1, device)?, [tokens()?, tokens()?]))
}

pub(crate) fn adamw(model: &impl Module) -> Result<AdamW> {
    AdamW::new(model.parameters(), AdamWOptions { lr: 1e-4, ..AdamWOptions::default() })
}
