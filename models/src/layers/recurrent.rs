//! Recurrent layers.

use std::marker::PhantomData;

use autograd::Var;
use autograd::ops::{Cell, CellState, Elman, GruCell, LstmCell, recurrent};
use device::{DType, Device, Error, Result};
use tensor::{RandomKey, Tensor};

use super::parameters::part_of;
use crate::{Forward, Module, Parts, PartsMut, Training};

/// How to make a recurrent layer; the defaults are torch's.
#[derive(Clone, Copy, Debug)]
pub struct RecurrentOptions {
    /// Layers, each of which gets the outputs of the one before.
    pub layers: usize,
    /// Whether each layer runs over the sequence from its end, too. Its outputs are beside those from the start.
    pub bidirectional: bool,
    /// Whether there are biases.
    pub bias: bool,
    /// The probability with which an output of a layer but the last is left out in training.
    pub dropout: f64,
    /// Whether the batch is the first axis of inputs and outputs, and time the second. States are not affected.
    pub batch_first: bool,
    /// The parameters' type.
    pub dtype: DType,
    /// Where the first values come from; `None` takes the thread's next key.
    pub key: Option<RandomKey>,
}

impl Default for RecurrentOptions {
    fn default() -> Self {
        RecurrentOptions {
            layers: 1,
            bidirectional: false,
            bias: true,
            dropout: 0.0,
            batch_first: false,
            dtype: DType::F32,
            key: None,
        }
    }
}

/// Weights of one layer in one direction: `[gates h, in]` and `[gates h, h]`, and both biases, `[gates h]`.
struct Direction {
    weights: [Var; 2],
    biases: Option<[Var; 2]>,
}

/// A recurrent layer, or several, over a sequence; see [`Rnn`], [`Gru`] and [`Lstm`].
///
/// Parameters have the names, shapes and first values of PyTorch: `weight_ih_l0`, `weight_hh_l0`, `bias_ih_l0`, `bias_hh_l0`,
/// with `_reverse` behind those of the direction from the end; all are uniform in `±1 / sqrt(h)`. Products with the inputs
/// are one matmul for the whole sequence.
pub struct Recurrent<C> {
    /// For each layer, from the start and perhaps from the end.
    directions: Vec<Direction>,
    input: usize,
    hidden: usize,
    options: RecurrentOptions,
    training: Training,
    cell: PhantomData<fn() -> C>,
}

/// The layer `h' = tanh(W_ih x + b_ih + W_hh h + b_hh)`, see [`Recurrent`].
pub type Rnn = Recurrent<Elman>;

/// Gated recurrent units, see [`GruCell`] and [`Recurrent`] (Cho et al. 2014, in PyTorch's form).
pub type Gru = Recurrent<GruCell>;

/// Long short-term memory, see [`LstmCell`] and [`Recurrent`] (Hochreiter and Schmidhuber 1997, with forget gates).
///
/// ```
/// use models::{Forward, Lstm};
/// use tensor::{DType, Tensor};
/// # fn main() -> device::Result<()> {
/// let dev = device::Device::cpu();
/// let lstm = Lstm::new(3, 5, &dev)?;
/// // 7 moments of a batch of 2.
/// let x = autograd::Var::constant(Tensor::ones(&[7, 2, 3], DType::F32, &dev)?);
/// let (y, (h, c)) = lstm.run(&x, None)?;
/// assert_eq!((y.shape(), h.shape(), c.shape()), (&[7, 2, 5][..], &[1, 2, 5][..], &[1, 2, 5][..]));
/// assert_eq!(lstm.forward(&x)?.shape(), [7, 2, 5]);
/// # Ok(())
/// # }
/// ```
pub type Lstm = Recurrent<LstmCell>;

#[derive::located]
impl<C: Cell> Recurrent<C> {
    /// One layer from the start, in F32, with biases.
    ///
    /// # Errors
    /// As for [`with_options`](Self::with_options).
    pub fn new(input: usize, hidden: usize, device: &Device) -> Result<Self> {
        Self::with_options(input, hidden, RecurrentOptions::default(), device)
    }

    /// Layers as `options` say, for inputs of `input` features and states of `hidden`.
    ///
    /// # Errors
    /// `DTypeUnsupported` unless the type is a float type; `InvalidArgument` for no layers, no hidden features or a dropout that is no
    /// probability; `OutOfMemory`.
    pub fn with_options(
        input: usize,
        hidden: usize,
        options: RecurrentOptions,
        device: &Device,
    ) -> Result<Self> {
        let RecurrentOptions { layers, bias, dropout, dtype, key, .. } = options;
        dtype.require_float(C::NAME)?;
        let is_counted = layers > 0 && layers < 1 << 31;
        Error::require(is_counted, C::NAME, "layers", "at least 1 and below 2^31", layers)?;
        let is_counted = hidden > 0 && hidden < 1 << 31;
        Error::require(is_counted, C::NAME, "hidden", "at least 1 and below 2^31", hidden)?;
        Error::require((0.0..=1.0).contains(&dropout), C::NAME, "dropout", "between 0 and 1", dropout)?;
        let key = key.unwrap_or_else(tensor::next_key);
        let (ways, bound, rows) = (options.ways(), 1.0 / (hidden as f64).sqrt(), C::GATES * hidden);
        let mut part = 0;
        let mut uniform = |shape: &[usize]| {
            part += 1;
            Tensor::uniform(shape, -bound, bound, dtype, part_of(key, part), device)
        };
        // As in `Linear`, the memory of a weight is that of its transpose.
        let mut direction = |width: usize| -> Result<Direction> {
            let weights = [uniform(&[width, rows])?.t()?, uniform(&[hidden, rows])?.t()?].map(Var::leaf);
            let biases =
                if bias { Some([uniform(&[rows])?, uniform(&[rows])?].map(Var::leaf)) } else { None };
            Ok(Direction { weights, biases })
        };
        let widths = (0..layers * ways).map(|at| if at < ways { input } else { hidden * ways });
        let directions = widths.map(&mut direction).collect::<Result<_>>()?;
        let training = Training::default();
        Ok(Recurrent { directions, input, hidden, options, training, cell: PhantomData })
    }

    /// The layer with other parameters, in the order of its own, as when layers share them.
    ///
    /// # Errors
    /// `InvalidArgument` for another number; `ShapeMismatch`, `DTypeMismatch`.
    pub fn with_parameters(mut self, parameters: &[Var]) -> Result<Self> {
        let own = self.directions.iter_mut();
        let own: Vec<&mut Var> =
            own.flat_map(|d| d.weights.iter_mut().chain(d.biases.iter_mut().flatten())).collect();
        let value = format_args!("{} of {}", parameters.len(), own.len());
        Error::require(parameters.len() == own.len(), C::NAME, "parameters", "all of the layer's", value)?;
        for (own, new) in own.into_iter().zip(parameters) {
            Error::require_shapes(
                own.shape() == new.shape(),
                C::NAME,
                "parameter",
                own.shape(),
                new.shape(),
            )?;
            new.dtype().require(C::NAME, "parameter", own.dtype())?;
            *own = new.clone();
        }
        Ok(self)
    }

    /// The outputs for a sequence, and the state behind it, from a state or from zeros.
    ///
    /// Shapes: input `[t, b, in]` -> output `[t, b, h]`, or with two directions `[t, b, 2 h]`; each tensor of a state has
    /// `[layers, b, h]`, or with two directions `[2 layers, b, h]`, where those of one layer are neighbours.
    ///
    /// # Errors
    /// `InvalidArgument` for an input of another shape or without elements; `ShapeMismatch` for such a state; those of the ops.
    pub fn run(&self, input: &Var, state: Option<&C::State>) -> Result<(Var, C::State)> {
        let &[first, second, width] = input.shape() else { return Err(self.wrong_input(input)) };
        let batch = if self.options.batch_first { first } else { second };
        if width != self.input || first == 0 || second == 0 {
            return Err(self.wrong_input(input));
        }
        let turned = |x: &Var| if self.options.batch_first { x.transpose(0, 1) } else { Ok(x.clone()) };
        let shape = [self.directions.len(), batch, self.hidden];
        let before = match state {
            Some(state) => state.parts(),
            None => {
                let zeros = Var::constant(Tensor::zeros(&shape, input.dtype(), input.device())?);
                vec![zeros; C::State::PARTS]
            }
        };
        if let Some(other) = before.iter().find(|part| part.shape() != shape) {
            return Err(Error::shape_mismatch(C::NAME, "state", &shape, other.shape()));
        }
        let ways = self.options.ways();
        let mut behind: Vec<Vec<Var>> = vec![Vec::new(); before.len()];
        let mut x = turned(input)?;
        for (layer, directions) in self.directions.chunks(ways).enumerate() {
            if layer > 0 && self.options.dropout > 0.0 && self.training.is_on() {
                x = x.dropout(self.options.dropout, tensor::next_key())?;
            }
            let mut outputs = Vec::with_capacity(ways);
            for (way, direction) in directions.iter().enumerate() {
                let own = |part: &Var| part.select(0, layer * ways + way);
                let state = before.iter().map(own).collect::<Result<Vec<_>>>()?;
                let biases = direction.biases.as_ref().map(<[Var; 2]>::each_ref);
                let weights = direction.weights.each_ref();
                let (output, last) = recurrent::<C>(&x, weights, biases, &state, way == 1)?;
                outputs.push(output);
                behind.iter_mut().zip(last).for_each(|(all, last)| all.push(last));
            }
            x = match &outputs[..] {
                [one] => one.clone(),
                both => Var::cat(&both.iter().collect::<Vec<_>>(), -1)?,
            };
        }
        let stacked = |all: &Vec<Var>| Var::stack(&all.iter().collect::<Vec<_>>(), 0);
        let behind = behind.iter().map(stacked).collect::<Result<_>>()?;
        Ok((turned(&x)?, C::State::from_parts(behind)?))
    }

    fn wrong_input(&self, input: &Var) -> Error {
        let order = if self.options.batch_first { "[batch, time" } else { "[time, batch" };
        let value = format_args!("{:?}, where {order}, {}] is expected", input.shape(), self.input);
        Error::invalid(C::NAME, "input", "a sequence of the layer's width", value)
    }
}

impl RecurrentOptions {
    /// Directions of each layer.
    fn ways(&self) -> usize {
        1 + usize::from(self.bidirectional)
    }
}

impl<C: Cell> Module for Recurrent<C> {
    fn parts<'a>(&'a self, parts: &mut Parts<'a>) {
        let ways = self.options.ways();
        for (at, Direction { weights, biases }) in self.directions.iter().enumerate() {
            let name = format!("l{}{}", at / ways, if at % ways == 1 { "_reverse" } else { "" });
            let all = [("weight", Some(weights)), ("bias", biases.as_ref())];
            for (kind, [of_input, of_output]) in
                all.into_iter().filter_map(|(kind, both)| Some((kind, both?)))
            {
                parts.parameter(format!("{kind}_ih_{name}"), of_input);
                parts.parameter(format!("{kind}_hh_{name}"), of_output);
            }
        }
        parts.child("", &self.training);
    }

    fn parts_mut(&mut self, parts: &mut PartsMut<'_>) {
        for Direction { weights, biases } in &mut self.directions {
            weights.parts_mut(parts);
            biases.parts_mut(parts);
        }
    }

    fn set_training(&self, training: bool) {
        self.training.set_training(training);
    }
}

#[derive::located]
impl<C: Cell> Forward for Recurrent<C> {
    /// The outputs of [`run`](Recurrent::run) from a state of zeros.
    fn forward(&self, input: &Var) -> Result<Var> {
        Ok(self.run(input, None)?.0)
    }
}
