//! Attention by heads.

use autograd::Var;
use autograd::ops::AttentionOptions;
use device::{DType, Device, Error, Result};
use tensor::{RandomKey, Tensor};

use super::parameters::{filled, part_of};
use crate::{Forward, Linear, LinearOptions, Module, Training};

/// How to make a [`MultiheadAttention`].
#[derive(Clone, Copy, Debug)]
pub struct MultiheadOptions {
    /// Whether the maps have biases.
    pub bias: bool,
    /// The probability with which a weight is left out in training.
    pub dropout: f64,
    /// Whether `forward` lets a place see itself and what comes before it only.
    pub is_causal: bool,
    /// The parameters' type.
    pub dtype: DType,
    /// Where the first values come from; `None` takes the thread's next key.
    pub key: Option<RandomKey>,
}

impl Default for MultiheadOptions {
    fn default() -> Self {
        MultiheadOptions { bias: true, dropout: 0.0, is_causal: false, dtype: DType::F32, key: None }
    }
}

/// Attention of queries to keys and values by several heads, each with its part of the width.
///
/// Parameters have the names and shapes of `torch.nn.MultiheadAttention`: `in_proj_weight [3 e, e]` and `in_proj_bias [3 e]`
/// make queries, keys and values of all heads, `out_proj.weight` and `out_proj.bias` map the joined heads. The batch comes
/// first. The first weight starts uniform in `±sqrt(6 / 4 e)` (Glorot), the second in `±1 / sqrt(e)`, biases at 0. As in
/// [`Linear`] the memory of a weight is that of its transpose.
#[derive(Module)]
pub struct MultiheadAttention {
    #[module(skip)]
    heads: usize,
    in_proj_weight: Var,
    in_proj_bias: Option<Var>,
    out_proj: Linear,
    #[module(skip)]
    dropout: f64,
    #[module(skip)]
    is_causal: bool,
    training: Training,
}

#[derive::located]
impl MultiheadAttention {
    /// Attention of width `embed_dim` by `num_heads` heads, with biases, in F32.
    ///
    /// # Errors
    /// As [`MultiheadAttention::with_options`].
    pub fn new(embed_dim: usize, num_heads: usize, device: &Device) -> Result<Self> {
        Self::with_options(embed_dim, num_heads, MultiheadOptions::default(), device)
    }

    /// Attention as `options` say.
    ///
    /// # Errors
    /// `InvalidArgument` unless the heads divide the width and the dropout is a probability, `DTypeUnsupported` unless the
    /// type is a float type, `OutOfMemory`.
    pub fn with_options(
        embed_dim: usize,
        num_heads: usize,
        options: MultiheadOptions,
        device: &Device,
    ) -> Result<Self> {
        const OP: &str = "multihead_attention";
        let MultiheadOptions { bias, dropout, is_causal, dtype, key } = options;
        dtype.require_float(OP)?;
        let divides = num_heads > 0 && embed_dim > 0 && embed_dim.is_multiple_of(num_heads);
        let value = format_args!("{num_heads} of {embed_dim}");
        Error::require(divides, OP, "num_heads", "a divisor of the width", value)?;
        Error::require((0.0..=1.0).contains(&dropout), OP, "dropout", "between 0 and 1", dropout)?;
        let key = key.unwrap_or_else(tensor::next_key);
        let bound = (6.0 / (4 * embed_dim) as f64).sqrt();
        let shape = [embed_dim, 3 * embed_dim];
        let weight = Tensor::uniform(&shape, -bound, bound, dtype, part_of(key, 0), device)?.t()?;
        let in_proj_bias = bias.then(|| filled(&[3 * embed_dim], 0.0, dtype, device)).transpose()?;
        let options = LinearOptions { bias, dtype, key: Some(part_of(key, 1)) };
        let out_proj = Linear::with_options(embed_dim, embed_dim, options, device)?;
        if let Some(bias) = out_proj.bias() {
            bias.value().zero_()?;
        }
        Ok(MultiheadAttention {
            heads: num_heads,
            in_proj_weight: Var::leaf(weight),
            in_proj_bias,
            out_proj,
            dropout,
            is_causal,
            training: Training::default(),
        })
    }

    fn options(&self, attn_mask: Option<&Tensor>) -> AttentionOptions {
        let dropout_p = if self.training.is_on() { self.dropout } else { 0.0 };
        AttentionOptions { attn_mask: attn_mask.cloned(), dropout_p, ..AttentionOptions::default() }
    }

    /// Attention of `query` to other places, which need not be those of the query.
    ///
    /// Shapes: `query [.., s, e]`, `key` and `value` `[.., t, e]` -> `[.., s, e]`; the mask, of Bool (false is not seen) or
    /// added to the scores, broadcasts to `[.., h, s, t]`. The layer's `is_causal` is not looked at.
    ///
    /// # Errors
    /// Those of [`Var::linear`] and [`Var::scaled_dot_product_attention`].
    pub fn attend(&self, query: &Var, key: &Var, value: &Var, attn_mask: Option<&Tensor>) -> Result<Var> {
        let width = self.in_proj_weight.shape()[1];
        let by_heads = |x: &Var, part: usize| -> Result<Var> {
            let weight = self.in_proj_weight.narrow(0, part * width, width)?;
            let bias =
                self.in_proj_bias.as_ref().map(|bias| bias.narrow(0, part * width, width)).transpose()?;
            let mapped = x.linear(&weight, bias.as_ref())?;
            let mut shape = mapped.shape().to_vec();
            shape.pop();
            shape.extend([self.heads, width / self.heads]);
            mapped.reshape(&shape)?.transpose(-3, -2)
        };
        let (q, k, v) = (by_heads(query, 0)?, by_heads(key, 1)?, by_heads(value, 2)?);
        let heads = q.scaled_dot_product_attention(&k, &v, &self.options(attn_mask))?;
        self.out_proj.forward(&heads.transpose(-3, -2)?.reshape(query.shape())?)
    }

    /// Attention of a sequence to itself, in which every place sees what the mask lets it see.
    ///
    /// # Errors
    /// As [`MultiheadAttention::attend`].
    pub fn attend_masked(&self, input: &Var, attn_mask: &Tensor) -> Result<Var> {
        self.attend_packed(input, &self.options(Some(attn_mask)))
    }

    fn attend_packed(&self, input: &Var, options: &AttentionOptions) -> Result<Var> {
        let qkv = input.linear(&self.in_proj_weight, self.in_proj_bias.as_ref())?;
        self.out_proj.forward(&qkv.self_attention(self.heads, options)?)
    }
}

#[derive::located]
impl Forward for MultiheadAttention {
    /// Attention of a sequence to itself: `[.., s, e] -> [.., s, e]`.
    fn forward(&self, input: &Var) -> Result<Var> {
        self.attend_packed(input, &AttentionOptions { is_causal: self.is_causal, ..self.options(None) })
    }
}
