//! A decoder-only transformer, as GPT-2 has it.

use autograd::{Reduction, Var, no_grad};
use device::{DType, Device, Error, Result};
use tensor::{RandomKey, Tensor};

use models::layers::part_of;
use models::random::SplitMix;
use models::{
    Dropout, Embedding, EmbeddingOptions, Forward, Gelu, LayerNorm, Linear, LinearOptions, Module,
    MultiheadAttention, MultiheadOptions, Sequential,
};

/// The sizes of a [`Gpt`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GptOptions {
    /// Tokens that there are.
    pub vocabulary: usize,
    /// Places of the longest sequence.
    pub context: usize,
    /// Elements of a place.
    pub width: usize,
    /// Heads of an attention.
    pub heads: usize,
    /// Blocks.
    pub blocks: usize,
    /// The probability with which weights and elements are left out in training.
    pub dropout: f64,
}

/// One block: `x + attention(norm(x))`, then `x + mlp(norm(x))`, with causal attention and an MLP of four times the width
/// with a GELU.
#[derive(Module)]
pub struct GptBlock {
    ln_1: LayerNorm,
    attn: MultiheadAttention,
    ln_2: LayerNorm,
    mlp: Sequential,
    dropout: Dropout,
}

impl GptBlock {
    /// A block of `width` elements and `heads` heads in F32, with its first values from `key`.
    ///
    /// # Errors
    /// As [`MultiheadAttention::with_options`].
    pub fn new(width: usize, heads: usize, dropout: f64, key: RandomKey, device: &Device) -> Result<Self> {
        let options =
            MultiheadOptions { dropout, is_causal: true, key: Some(part_of(key, 0)), ..Default::default() };
        let mlp = Sequential::new()
            .push(Linear::keyed(width, 4 * width, part_of(key, 1), device)?)
            .push(Gelu::default())
            .push(Linear::keyed(4 * width, width, part_of(key, 2), device)?);
        Ok(GptBlock {
            ln_1: LayerNorm::new(&[width], device)?,
            attn: MultiheadAttention::with_options(width, heads, options, device)?,
            ln_2: LayerNorm::new(&[width], device)?,
            mlp,
            dropout: Dropout::new(dropout)?,
        })
    }
}

impl Forward for GptBlock {
    fn forward(&self, input: &Var) -> Result<Var> {
        let attended = self.attn.forward(&self.ln_1.forward(input)?)?;
        let x = (input + self.dropout.forward(&attended))?;
        let changed = self.mlp.forward(&self.ln_2.forward(&x)?)?;
        x + self.dropout.forward(&changed)
    }
}

/// Token and place embeddings, blocks, a norm, and a linear map to a score for each token.
///
/// Shapes: tokens `[.., s]` of I64 -> `[.., s, v]`, with `s` up to the context. Embeddings start normal with deviation
/// 0.02, layers as they do by themselves.
#[derive(Module)]
pub struct Gpt {
    #[module(skip)]
    options: GptOptions,
    wte: Embedding,
    wpe: Embedding,
    drop: Dropout,
    h: Vec<GptBlock>,
    ln_f: LayerNorm,
    head: Linear,
}

impl Gpt {
    /// A model in F32 with first values keyed by `seed`.
    ///
    /// # Errors
    /// `InvalidArgument` for a size of 0, for heads that do not divide the width, and for a dropout that is no probability;
    /// `OutOfMemory`.
    pub fn new(options: GptOptions, seed: u64, device: &Device) -> Result<Self> {
        let GptOptions { vocabulary, context, width, heads, blocks, dropout } = options;
        let is_valid = ![vocabulary, context, width, heads].contains(&0);
        Error::require(is_valid, "gpt", "sizes", "all positive", format_args!("{options:?}"))?;
        let key = |op: u64| RandomKey { seed, op };
        let embedding = |rows, op| {
            let options = EmbeddingOptions { deviation: 0.02, key: Some(key(op)), ..Default::default() };
            Embedding::with_options(rows, width, options, device)
        };
        let block = |number: usize| GptBlock::new(width, heads, dropout, key(3 + number as u64), device);
        let head = LinearOptions { bias: false, key: Some(key(2)), ..LinearOptions::default() };
        Ok(Gpt {
            options,
            wte: embedding(vocabulary, 0)?,
            wpe: embedding(context, 1)?,
            drop: Dropout::new(dropout)?,
            h: (0..blocks).map(block).collect::<Result<_>>()?,
            ln_f: LayerNorm::new(&[width], device)?,
            head: Linear::with_options(width, vocabulary, head, device)?,
        })
    }

    /// The sizes.
    pub fn options(&self) -> GptOptions {
        self.options
    }

    /// The mean loss of telling each target from the tokens up to its place.
    ///
    /// Shapes: both `[n, s]` of I64 -> `[]`.
    ///
    /// # Errors
    /// Those of the model's ops; `IndexOutOfRange` for a token outside the vocabulary.
    pub fn loss(&self, tokens: &Tensor, targets: &Tensor) -> Result<Var> {
        token_loss(&self.forward(&Var::constant(tokens.clone()))?, targets)
    }

    /// [`loss`](Self::loss) with the scores of `chunk` places at a time ([`Var::linear_cross_entropy`]): for large vocabularies, whose
    /// scores and their gradient would take most of the memory.
    ///
    /// # Errors
    /// As for [`loss`](Self::loss); `InvalidArgument` for a chunk of 0.
    pub fn chunked_loss(&self, tokens: &Tensor, targets: &Tensor, chunk: usize) -> Result<Var> {
        let states = self.states(&Var::constant(tokens.clone()))?;
        states.linear_cross_entropy(self.head.weight(), None, targets, Reduction::Mean, chunk)
    }

    /// What the head makes scores of.
    fn states(&self, input: &Var) -> Result<Var> {
        let length = input.shape().last().copied().unwrap_or(0);
        let GptOptions { context, .. } = self.options;
        let value = format_args!("{length} places of {context}");
        let expected = "a sequence of at least one place that fits the context";
        Error::require((1..=context).contains(&length), "gpt", "tokens", expected, value)?;
        let places = self.wpe.weight();
        let places = if length == context { places.clone() } else { places.narrow(0, 0, length)? };
        let mut x = self.drop.forward(&(self.wte.forward(input) + &places)?)?;
        for block in &self.h {
            x = block.forward(&x)?;
        }
        self.ln_f.forward(&x)
    }

    /// Goes on with a text: draws `count` tokens one by one, each with the probability that the model gives it; lower
    /// temperatures prefer likely tokens, and 0 takes the likeliest. The draw depends on the arguments alone.
    ///
    /// The model is in evaluation mode meanwhile, and in training mode afterwards.
    ///
    /// # Errors
    /// `InvalidArgument` for an empty prompt or a negative temperature; those of the model's ops.
    pub fn generate(&self, prompt: &[i64], count: usize, temperature: f64, seed: u64) -> Result<Vec<i64>> {
        Error::require(!prompt.is_empty(), "generate", "prompt", "not empty", "no token")?;
        Error::require(temperature >= 0.0, "generate", "temperature", "not negative", temperature)?;
        self.set_training(false);
        let drawn = no_grad(|| self.draw(prompt, count, temperature, seed));
        self.set_training(true);
        drawn
    }

    fn draw(&self, prompt: &[i64], count: usize, temperature: f64, seed: u64) -> Result<Vec<i64>> {
        let device = self.head.weight().device();
        let (mut tokens, mut random) = (prompt.to_vec(), SplitMix(seed));
        for _ in 0..count {
            let seen = &tokens[tokens.len().saturating_sub(self.options.context)..];
            let input = Tensor::from_slice(seen, &[1, seen.len()], device)?;
            let scores = self.forward(&Var::constant(input))?;
            let last = scores.value().select(1, seen.len() - 1)?.to_dtype(DType::F64)?.contiguous()?;
            tokens.push(pick(&last.to_vec::<f64>()?, temperature, random.unit()) as i64);
        }
        Ok(tokens.split_off(prompt.len()))
    }
}

/// The place in `scores` at which the cumulated softmax passes `unit`, a number in `0..1`.
fn pick(scores: &[f64], temperature: f64, unit: f64) -> usize {
    let best = (0..scores.len()).reduce(|a, b| if scores[b] > scores[a] { b } else { a }).unwrap_or(0);
    if temperature == 0.0 {
        return best;
    }
    let weights = || scores.iter().map(|score| ((score - scores[best]) / temperature).exp());
    let mut left = unit * weights().sum::<f64>();
    for (place, weight) in weights().enumerate() {
        left -= weight;
        if left < 0.0 {
            return place;
        }
    }
    best
}

/// The mean cross-entropy of scores `[.., v]` for targets `[..]`.
pub(super) fn token_loss(scores: &Var, targets: &Tensor) -> Result<Var> {
    let vocabulary = scores.shape().last().copied().unwrap_or(1);
    let flat = scores.reshape(&[targets.elements(), vocabulary])?;
    models::cross_entropy(&flat, &targets.reshape(&[targets.elements()])?)
}

impl Forward for Gpt {
    fn forward(&self, input: &Var) -> Result<Var> {
        self.head.forward(&self.states(input)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use approx::{assert_abs_diff_eq, assert_abs_diff_ne};
    use device::ErrorKind;
    use models::checkpoint::{Progress, load_training, save_training};
    use models::{AdamW, AdamWOptions, Optimizer, Text};

    fn tiny(dropout: f64) -> Gpt {
        let options = GptOptions { vocabulary: 5, context: 6, width: 8, heads: 2, blocks: 2, dropout };
        Gpt::new(options, 3, &Device::cpu()).unwrap()
    }

    fn scores(model: &Gpt, tokens: &[i64]) -> Vec<f32> {
        let input = Tensor::from_slice(tokens, &[1, tokens.len()], &Device::cpu()).unwrap();
        model.forward(&Var::constant(input)).unwrap().value().to_vec().unwrap()
    }

    #[test]
    fn a_place_sees_what_comes_before_it_and_nothing_after() {
        let model = tiny(0.0);
        let whole = scores(&model, &[1, 2, 3, 4, 0, 1]);
        let other_end = scores(&model, &[1, 2, 3, 4, 0, 2]);
        assert_eq!(whole[..25], other_end[..25]);
        assert_ne!(whole[25..], other_end[25..]);
        assert_abs_diff_eq!(whole[..15], scores(&model, &[1, 2, 3])[..], epsilon = 1e-5);
        let other_begin = scores(&model, &[2, 2, 3, 4, 0]);
        assert_abs_diff_ne!(whole[20..25], other_begin[20..25], epsilon = 1e-5);
    }

    #[test]
    fn names_are_those_of_a_transformer() {
        let model = tiny(0.0);
        let names: Vec<String> = model.named_parameters().into_iter().map(|(name, _)| name).collect();
        let block = |n: usize| {
            [
                "ln_1.weight",
                "ln_1.bias",
                "attn.in_proj_weight",
                "attn.in_proj_bias",
                "attn.out_proj.weight",
                "attn.out_proj.bias",
                "ln_2.weight",
                "ln_2.bias",
                "mlp.0.weight",
                "mlp.0.bias",
                "mlp.2.weight",
                "mlp.2.bias",
            ]
            .map(|name| format!("h.{n}.{name}"))
        };
        let ends = ["ln_f.weight", "ln_f.bias", "head.weight"].map(String::from);
        let expected: Vec<String> = ["wte.weight", "wpe.weight"]
            .map(String::from)
            .into_iter()
            .chain(block(0))
            .chain(block(1))
            .chain(ends)
            .collect();
        assert_eq!(names, expected);
    }

    #[test]
    fn a_loss_in_chunks_is_the_loss() {
        let model = tiny(0.0);
        let tokens = |first: i64| {
            let values: Vec<i64> = (first..first + 12).map(|token| token % 5).collect();
            Tensor::from_slice(&values, &[2, 6], &Device::cpu()).unwrap()
        };
        let (tokens, targets) = (tokens(0), tokens(1));
        let found = |loss: Var| -> Vec<Vec<f32>> {
            let gradients = loss.backward().unwrap();
            let parameters = model.parameters();
            let of = parameters.iter().map(|parameter| gradients.get(parameter).unwrap());
            std::iter::once(loss.value().clone()).chain(of).map(|tensor| tensor.to_vec().unwrap()).collect()
        };
        let whole = found(model.loss(&tokens, &targets).unwrap());
        for chunk in [5, 12] {
            let chunked = found(model.chunked_loss(&tokens, &targets, chunk).unwrap());
            for (chunked, whole) in chunked.iter().zip(&whole) {
                assert_abs_diff_eq!(chunked[..], whole[..], epsilon = 1e-6);
            }
        }
        assert!(model.chunked_loss(&tokens, &targets, 0).is_err());
    }

    #[test]
    fn dropout_acts_in_training_only() {
        let model = tiny(0.5);
        let run = || tensor::with_generator(tensor::Generator::new(1), || scores(&model, &[1, 2, 3]));
        let training = run();
        assert_eq!(training, run());
        model.set_training(false);
        assert_ne!(training, run());
        assert_eq!(scores(&model, &[1, 2, 3]), scores(&model, &[1, 2, 3]));
    }

    #[test]
    fn drawing_is_keyed_and_follows_the_probabilities() {
        let model = tiny(0.0);
        let long = model.generate(&[1, 2], 20, 1.0, 7).unwrap();
        assert_eq!((long.len(), &long), (20, &model.generate(&[1, 2], 20, 1.0, 7).unwrap()));
        assert_ne!(long, model.generate(&[1, 2], 20, 1.0, 8).unwrap());
        assert!(model.generate(&[], 1, 1.0, 0).is_err() && model.generate(&[1], 1, -1.0, 0).is_err());
        let even = [0.0, 3f64.ln()];
        assert_eq!([0.0, 0.24, 0.26, 0.99].map(|unit| pick(&even, 1.0, unit)), [0, 0, 1, 1]);
        assert_eq!([0.0, 0.09, 0.11].map(|unit| pick(&even, 0.5, unit)), [0, 0, 1]);
        assert_eq!(pick(&even, 0.0, 0.0), 1);
    }

    /// Steps `from..to` of a training with dropout.
    fn train(model: &Gpt, adam: &mut AdamW, from: u64, to: u64) {
        let windows = Text::new("abcdeabcde".repeat(3).as_str()).unwrap().windows(6, 2, 5).unwrap();
        for number in from..to {
            let batch = windows.batch(number, &Device::cpu()).unwrap();
            let loss = batch.seeded(|| model.loss(&batch.tokens, &batch.targets)).unwrap();
            adam.step(&loss.backward().unwrap()).unwrap();
        }
    }

    #[test]
    fn a_training_goes_on_from_a_checkpoint_as_if_it_had_not_stopped() {
        let adam_of = |model: &Gpt| AdamW::new(model.parameters(), AdamWOptions::default()).unwrap();
        let whole = tiny(0.2);
        train(&whole, &mut adam_of(&whole), 0, 8);
        let path = std::env::temp_dir().join(format!("streamgrad-gpt-{}", std::process::id()));
        let first = tiny(0.2);
        let mut adam = adam_of(&first);
        train(&first, &mut adam, 0, 3);
        let progress = Progress { step: 3, seed: 5, ..Progress::default() };
        save_training(&path, &first, &adam, progress).unwrap();
        let options = first.options();
        let second = Gpt::new(options, 99, &Device::cpu()).unwrap();
        let mut adam = adam_of(&second);
        assert_eq!(load_training(&path, &second, &mut adam).unwrap(), progress);
        std::fs::remove_file(&path).unwrap();
        train(&second, &mut adam, 3, 8);
        for ((name, a), (_, b)) in whole.named_parameters().iter().zip(second.named_parameters()) {
            let bits = |v: &Var| {
                v.value()
                    .contiguous()
                    .unwrap()
                    .to_vec::<f32>()
                    .unwrap()
                    .iter()
                    .map(|x| x.to_bits())
                    .collect::<Vec<_>>()
            };
            assert_eq!(bits(a), bits(&b), "{name}");
        }
    }

    #[test]
    fn bad_sizes_and_sequences_are_errors() {
        let options = tiny(0.0).options();
        let make = |options| Gpt::new(options, 0, &Device::cpu()).err();
        assert!(matches!(
            make(GptOptions { width: 0, ..options }).as_ref().map(Error::kind),
            Some(ErrorKind::InvalidArgument { .. })
        ));
        assert!(matches!(
            make(GptOptions { heads: 3, ..options }).as_ref().map(Error::kind),
            Some(ErrorKind::InvalidArgument { .. })
        ));
        let long = Tensor::zeros(&[1, 7], DType::I64, &Device::cpu()).unwrap();
        assert!(matches!(
            tiny(0.0).forward(&Var::constant(long)).as_ref().map_err(Error::kind),
            Err(ErrorKind::InvalidArgument { argument: "tokens", .. })
        ));
        let unknown = Tensor::full(&[1, 2], 5_i64, DType::I64, &Device::cpu()).unwrap();
        assert!(matches!(
            tiny(0.0).loss(&unknown, &unknown).as_ref().map_err(Error::kind),
            Err(ErrorKind::IndexOutOfRange { index: 5, .. })
        ));
    }
}
