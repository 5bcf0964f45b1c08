//! Tables of rows that are looked up by number.

use autograd::Var;
use autograd::ops::{BagMode, BagOptions, padding_row};
use device::{DType, Device, Result};
use tensor::{RandomKey, Tensor};

use crate::{Forward, Module};

/// How to make an [`Embedding`] or an [`EmbeddingBag`].
#[derive(Clone, Copy, Debug)]
pub struct EmbeddingOptions {
    /// A row that starts at 0 and has no gradient; a negative one counts from the end.
    pub padding_idx: Option<isize>,
    /// What an [`EmbeddingBag`] does with the rows of a bag.
    pub mode: BagMode,
    /// The deviation of the first values, which are normal.
    pub deviation: f64,
    /// The parameter's type.
    pub dtype: DType,
    /// Where the first values come from; `None` takes the thread's next key.
    pub key: Option<RandomKey>,
}

impl Default for EmbeddingOptions {
    fn default() -> Self {
        EmbeddingOptions {
            padding_idx: None,
            mode: BagMode::default(),
            deviation: 1.0,
            dtype: DType::F32,
            key: None,
        }
    }
}

/// The rows of a table that the input, of I64, names: `[..] -> [.., d]`.
#[derive(Module)]
pub struct Embedding {
    weight: Var,
    #[module(skip)]
    padding_idx: Option<isize>,
}

#[derive::located]
impl Embedding {
    /// A table of `rows` rows of `width` elements in F32, normally distributed with variance 1.
    ///
    /// # Errors
    /// As [`Embedding::with_options`].
    pub fn new(rows: usize, width: usize, device: &Device) -> Result<Self> {
        Self::with_options(rows, width, EmbeddingOptions::default(), device)
    }

    /// A table as `options` say.
    ///
    /// # Errors
    /// `InvalidArgument` if the padding is no row, `DTypeUnsupported` unless the type is a float type, `OutOfMemory`.
    pub fn with_options(
        rows: usize,
        width: usize,
        options: EmbeddingOptions,
        device: &Device,
    ) -> Result<Self> {
        Ok(Embedding {
            weight: table("embedding", rows, width, options, device)?,
            padding_idx: options.padding_idx,
        })
    }

    /// The table, `[v, d]`.
    pub fn weight(&self) -> &Var {
        &self.weight
    }
}

#[derive::located]
impl Forward for Embedding {
    fn forward(&self, input: &Var) -> Result<Var> {
        self.weight.embedding(input.value(), self.padding_idx)
    }
}

/// The mean or the sum of each bag of rows of a table.
#[derive(Module)]
pub struct EmbeddingBag {
    weight: Var,
    #[module(skip)]
    options: BagOptions,
}

#[derive::located]
impl EmbeddingBag {
    /// A table as `options` say.
    ///
    /// # Errors
    /// As [`Embedding::with_options`].
    pub fn with_options(
        rows: usize,
        width: usize,
        options: EmbeddingOptions,
        device: &Device,
    ) -> Result<Self> {
        let EmbeddingOptions { mode, padding_idx, .. } = options;
        let bags = BagOptions { mode, padding_idx, per_sample_weights: None };
        Ok(EmbeddingBag { weight: table("embedding_bag", rows, width, options, device)?, options: bags })
    }

    /// Means of rows of a table in F32, normally distributed with variance 1.
    ///
    /// # Errors
    /// As [`Embedding::with_options`].
    pub fn new(rows: usize, width: usize, device: &Device) -> Result<Self> {
        Self::with_options(rows, width, EmbeddingOptions::default(), device)
    }

    /// The bags that begin at `offsets`: indices `[n]` and offsets `[b]` give `[b, d]`.
    ///
    /// # Errors
    /// Those of [`Var::embedding_bag`].
    pub fn bags(&self, indices: &Tensor, offsets: &Tensor) -> Result<Var> {
        self.weight.embedding_bag(indices, Some(offsets), &self.options)
    }
}

#[derive::located]
impl Forward for EmbeddingBag {
    /// A bag for each row of the input, of I64: `[b, n] -> [b, d]`.
    fn forward(&self, input: &Var) -> Result<Var> {
        self.weight.embedding_bag(input.value(), None, &self.options)
    }
}

fn table(
    op: &'static str,
    rows: usize,
    width: usize,
    options: EmbeddingOptions,
    device: &Device,
) -> Result<Var> {
    options.dtype.require_float(op)?;
    let key = options.key.unwrap_or_else(tensor::next_key);
    let values = Tensor::randn(&[rows, width], options.dtype, key, device)?.mul_scalar(options.deviation)?;
    if let Some(index) = options.padding_idx {
        values.narrow(0, padding_row(op, index, rows)?, 1)?.zero_()?;
    }
    Ok(Var::leaf(values))
}
