//! Recurrent cells over a sequence: `s_t = cell(W_ih x_t + b_ih, W_hh h_{t-1} + b_hh, s_{t-1})`, of which `h` is the first tensor. In the
//! backward pass each cell is computed again; the gradients of the weights are one product for the whole sequence.

use tensor::{Error, Result, Tensor};

use super::{Draw, Sample};
use crate::autocast::{Cast, Operand, suspended};
use crate::backward::grad_within;
use crate::mode::{Recording, with_recording};
use crate::ops::Autocast;
use crate::{Grads, Save, Var, Vjp, is_recording, no_grad, record};

const OP: &str = "recurrent";

/// How a recurrent layer makes the next state of an element.
pub trait Cell: Send + Sync + 'static {
    /// The layer's name in errors.
    const NAME: &'static str;
    /// Rows of the weights for each hidden feature.
    const GATES: usize;
    /// Whether the products with the input and with the output before are only added.
    const ADDS: bool;
    /// The state of a layer: [`Var`], or a pair of them.
    type State: CellState;

    /// The next state, whose first tensor is the output, from the products of each gate: their sums if the cell [adds](Self::ADDS) them, and
    /// otherwise those with the input and then those with the output before.
    ///
    /// Shapes: each product and each tensor of the state `[b, h]`.
    ///
    /// # Errors
    /// Those of its ops.
    fn next(products: &[Var], state: &[Var]) -> Result<Vec<Var>>;
}

/// What a recurrent layer keeps from step to step.
pub trait CellState: Clone {
    /// The number of its tensors.
    const PARTS: usize;

    /// A state of these tensors, [`PARTS`](Self::PARTS) in number.
    ///
    /// # Errors
    /// `InvalidArgument` for another number.
    fn from_parts(parts: Vec<Var>) -> Result<Self>;

    /// Its tensors.
    fn parts(&self) -> Vec<Var>;
}

impl CellState for Var {
    const PARTS: usize = 1;

    fn from_parts(parts: Vec<Var>) -> Result<Var> {
        parts_of::<1>(parts).map(|[h]| h)
    }

    fn parts(&self) -> Vec<Var> {
        vec![self.clone()]
    }
}

impl CellState for (Var, Var) {
    const PARTS: usize = 2;

    fn from_parts(parts: Vec<Var>) -> Result<(Var, Var)> {
        parts_of::<2>(parts).map(|[h, c]| (h, c))
    }

    fn parts(&self) -> Vec<Var> {
        vec![self.0.clone(), self.1.clone()]
    }
}

/// `h' = tanh(W_ih x + b_ih + W_hh h + b_hh)`.
#[derive(Debug)]
pub struct Elman;

/// `r, z = σ(W_ih x + b_ih + W_hh h + b_hh)`, `n = tanh(W_ih x + b_ih + r (W_hh h + b_hh))`, `h' = (1 - z) n + z h`.
#[derive(Debug)]
pub struct GruCell;

/// `i, f, o = σ(..)`, `g = tanh(..)` of `W_ih x + b_ih + W_hh h + b_hh`, `c' = f c + i g`, `h' = o tanh(c')`.
#[derive(Debug)]
pub struct LstmCell;

fn parts_of<const N: usize>(parts: Vec<Var>) -> Result<[Var; N]> {
    let wrong = |parts: Vec<Var>| {
        Error::invalid(OP, "state", "one tensor for each that the cell has", format_args!("{}", parts.len()))
    };
    parts.try_into().map_err(wrong)
}

impl Cell for Elman {
    const NAME: &'static str = "rnn";
    const GATES: usize = 1;
    const ADDS: bool = true;
    type State = Var;

    fn next(sums: &[Var], _: &[Var]) -> Result<Vec<Var>> {
        sums.iter().map(Var::tanh).collect()
    }
}

impl Cell for GruCell {
    const NAME: &'static str = "gru";
    const GATES: usize = 3;
    const ADDS: bool = false;
    type State = Var;

    fn next(products: &[Var], state: &[Var]) -> Result<Vec<Var>> {
        let [reset, keep, new, reset_of_output, keep_of_output, new_of_output] = parts_of(products.to_vec())?;
        let [h] = parts_of(state.to_vec())?;
        let (reset, keep) = (reset.add(&reset_of_output)?.sigmoid()?, keep.add(&keep_of_output)?.sigmoid()?);
        let new = new.add(&reset.mul(&new_of_output)?)?.tanh()?;
        Ok(vec![new.add(&keep.mul(&h.sub(&new)?)?)?])
    }
}

impl Cell for LstmCell {
    const NAME: &'static str = "lstm";
    const GATES: usize = 4;
    const ADDS: bool = true;
    type State = (Var, Var);

    fn next(sums: &[Var], state: &[Var]) -> Result<Vec<Var>> {
        let [input, forget, value, read] = parts_of(sums.to_vec())?;
        let [_, c] = parts_of(state.to_vec())?;
        let c = forget.sigmoid()?.mul(&c)?.add(&input.sigmoid()?.mul(&value.tanh()?)?)?;
        Ok(vec![read.sigmoid()?.mul(&c.tanh()?)?, c])
    }
}

/// The outputs of a cell over a sequence, from its end where `from_end`, and the last state.
///
/// Shapes: input `[t, b, in]`, weights `[gates h, in]` and `[gates h, h]`, biases `[gates h]`, and each tensor of a state `[b, h]` -> outputs
/// `[t, b, h]` in the order of the input. Under autocast all are converted, as for [`Var::linear`].
///
/// # Errors
/// `InvalidArgument` for another number of tensors in the state, or a sequence without steps; `ShapeMismatch` for a state of another
/// shape; those of the cell's ops.
#[derive::located]
pub fn recurrent<C: Cell>(
    input: &Var,
    [of_input, of_output]: [&Var; 2],
    biases: Option<[&Var; 2]>,
    state: &[Var],
    from_end: bool,
) -> Result<(Var, Vec<Var>)> {
    if let Some(cast) = Cast::of(Autocast::Half) {
        let to = |x: &Var| x.cast(&cast);
        let (input, weights) = (to(input)?, [to(of_input)?, to(of_output)?]);
        let biases = biases.map(|[a, b]| Ok::<_, Error>([to(a)?, to(b)?])).transpose()?;
        let state = state.iter().map(to).collect::<Result<Vec<_>>>()?;
        return suspended(|| {
            recurrent::<C>(
                &input,
                weights.each_ref(),
                biases.as_ref().map(|b| b.each_ref()),
                &state,
                from_end,
            )
        });
    }
    let &[steps, batch, _] = input.shape() else {
        return Err(Error::invalid(OP, "input", "of rank 3", format_args!("shape {:?}", input.shape())));
    };
    Error::require(steps > 0, OP, "input", "one step at least", format_args!("shape {:?}", input.shape()))?;
    let value = format_args!("{} tensors", state.len());
    Error::require(state.len() == C::State::PARTS, OP, "state", "as many tensors as the cell has", value)?;
    let expected = [batch, of_output.shape().last().copied().unwrap_or(0)];
    for part in state {
        Error::require_shapes(part.shape() == expected, OP, "state", &expected, part.shape())?;
    }
    let products = input.linear(of_input, biases.map(|[bias, _]| bias))?;
    let bias = biases.map(|[_, bias]| bias);
    let mut inputs: Vec<Var> = vec![products];
    for own in [of_output].into_iter().chain(bias).chain(state) {
        // The gradients of an input that comes twice are apart.
        let is_known = own.id().is_some() && inputs.iter().any(|known| known.id() == own.id());
        inputs.push(if is_known { own.narrow(0, 0, own.shape()[0])? } else { own.clone() });
    }
    let sequence = Sequence { from_end, biased: bias.is_some() };
    let run = || sequence.states::<C>(&inputs);
    if !is_recording() || !inputs.iter().any(Var::requires_grad) {
        return sequence.results(&run()?);
    }
    let states = no_grad(run)?;
    let (outputs, last) = sequence.results(&states)?;
    // The states before each step, beside the outputs.
    let others = (1..C::State::PARTS).map(|part| stacked(states.iter().map(|state| &state[part])));
    let others = others.collect::<Result<Vec<Var>>>()?;
    let all =
        [vec![outputs], last[1..].iter().map(|part| part.unsqueeze(0)).collect::<Result<_>>()?].concat();
    let value = if all.len() == 1 { all[0].clone() } else { Var::cat(&all.iter().collect::<Vec<_>>(), 0)? };
    let kept = (0..inputs.len()).map(Save::Input).chain([Save::Output]);
    let saved: Vec<Save<'_>> = kept.chain(others.iter().map(|part| Save::Tensor(part.value()))).collect();
    let whole =
        record(OP, &inputs.iter().collect::<Vec<_>>(), &saved, value.value().clone(), move |ctx, g| {
            sequence.gradients::<C>(ctx, g)
        });
    let outputs = if C::State::PARTS == 1 { whole.clone() } else { whole.narrow(0, 0, steps)? };
    let mut last = vec![outputs.select(0, sequence.last(steps))?];
    for part in 1..C::State::PARTS {
        last.push(whole.select(0, steps + part - 1)?);
    }
    Ok((outputs, last))
}

/// The parts of a product that belong to each gate.
fn gates<C: Cell>(product: &Var) -> Result<Vec<Var>> {
    product.chunk(C::GATES, 1)
}

fn stacked<'a>(vars: impl Iterator<Item = &'a Var>) -> Result<Var> {
    Var::stack(&vars.collect::<Vec<_>>(), 0)
}

/// A direction through a sequence, and whether products with the outputs have a bias.
#[derive(Clone, Copy)]
struct Sequence {
    from_end: bool,
    biased: bool,
}

impl Sequence {
    /// The steps in their order.
    fn order(self, steps: usize) -> Vec<usize> {
        if self.from_end { (0..steps).rev().collect() } else { (0..steps).collect() }
    }

    /// The step that comes last.
    fn last(self, steps: usize) -> usize {
        if self.from_end { 0 } else { steps - 1 }
    }

    /// Of the inputs: the weight, the bias, and the first state.
    fn parts(self, inputs: &[Var]) -> (&Var, Option<&Var>, &[Var]) {
        let first = 2 + usize::from(self.biased);
        (&inputs[1], self.biased.then(|| &inputs[2]), &inputs[first..])
    }

    /// The state behind each step, in the order of the sequence. The inputs are the products with the input, the weight, perhaps the
    /// bias, and the first state.
    fn states<C: Cell>(self, inputs: &[Var]) -> Result<Vec<Vec<Var>>> {
        let (weight, bias, first) = self.parts(inputs);
        let products = inputs[0].unbind(0)?;
        let (mut state, mut states) = (first.to_vec(), vec![Vec::new(); products.len()]);
        for step in self.order(products.len()) {
            let of_input = gates::<C>(&products[step])?;
            let of_output = gates::<C>(&state[0].linear(weight, bias)?)?;
            let products = match C::ADDS {
                true => of_input.iter().zip(&of_output).map(|(a, b)| a.add(b)).collect::<Result<Vec<_>>>()?,
                false => [of_input, of_output].concat(),
            };
            state = C::next(&products, &state)?;
            let value = format_args!("{} tensors", state.len());
            Error::require(
                state.len() == C::State::PARTS,
                OP,
                "next state",
                "as many tensors as the cell has",
                value,
            )?;
            states[step].clone_from(&state);
        }
        Ok(states)
    }

    /// The outputs of all steps, and the last state.
    fn results(self, states: &[Vec<Var>]) -> Result<(Var, Vec<Var>)> {
        Ok((stacked(states.iter().map(|state| &state[0]))?, states[self.last(states.len())].clone()))
    }

    /// Gradients of the inputs for that of the outputs, behind which are those of the last state but its output.
    fn gradients<C: Cell>(self, ctx: &Vjp<'_>, g: &Var) -> Result<Grads> {
        let count = ctx.inputs();
        let inputs: Vec<Var> = (0..count).map(|at| ctx.input(at)).collect();
        let needed: Vec<bool> = (0..count).map(|at| ctx.needs(at)).collect();
        let steps = inputs[0].shape()[0];
        let outer: Vec<Var> =
            (0..C::State::PARTS - 1).map(|part| g.select(0, steps + part)).collect::<Result<_>>()?;
        let of_outputs = if C::State::PARTS == 1 { g.clone() } else { g.narrow(0, 0, steps)? };
        if ctx.is_recorded() {
            let states = with_recording(Recording::On, || self.states::<C>(&inputs))?;
            let (outputs, last) = self.results(&states)?;
            let roots: Vec<_> = [(&outputs, Some(&of_outputs))]
                .into_iter()
                .chain(last[1..].iter().zip(outer.iter().map(Some)))
                .collect();
            return grad_within(OP, &roots, &inputs, &needed, true);
        }
        let (weight, bias, first) = self.parts(&inputs);
        let outputs = ctx.saved(count).narrow(0, 0, steps)?;
        let kept: Vec<Var> =
            [outputs].into_iter().chain((1..C::State::PARTS).map(|part| ctx.saved(count + part))).collect();
        // The state before each step.
        let before = |(all, first): (&Var, &Var)| -> Result<Var> {
            let first = first.unsqueeze(0)?;
            let (start, parts) =
                if self.from_end { (1, [None, Some(&first)]) } else { (0, [Some(&first), None]) };
            let others = all.narrow(0, start, steps - 1)?;
            let [front, back] = parts;
            Var::cat(&front.into_iter().chain([&others]).chain(back).collect::<Vec<_>>(), 0)
        };
        let before = kept.iter().zip(first).map(before).collect::<Result<Vec<Var>>>()?;
        let of_output = before[0].linear(weight, bias)?;
        let dtypes = [inputs[0].dtype(), of_output.dtype()];
        let products =
            if C::ADDS { vec![inputs[0].add(&of_output)?] } else { vec![inputs[0].clone(), of_output] };
        // Their gradients, which each step writes in place.
        let empty = |like: &Var| Tensor::empty(like.shape(), like.dtype(), like.device()).map(Var::constant);
        let of_products = products.iter().map(empty).collect::<Result<Vec<Var>>>()?;
        let at_step = |all: &[Var], step: usize| -> Result<Vec<Var>> {
            let gates = all.iter().map(|product| gates::<C>(&product.select(0, step)?));
            Ok(gates.collect::<Result<Vec<_>>>()?.concat())
        };
        let states = before.iter().map(|part| part.unbind(0)).collect::<Result<Vec<_>>>()?;
        let of_outputs = of_outputs.unbind(0)?;
        let mut carried: Vec<Option<Var>> = [None].into_iter().chain(outer.into_iter().map(Some)).collect();
        let needs_state = needed[inputs.len() - C::State::PARTS..].contains(&true);
        for (at, step) in self.order(steps).into_iter().enumerate().rev() {
            let leaf = |var: &Var| Var::leaf(var.value().clone());
            let state: Vec<Var> = states.iter().map(|part| leaf(&part[step])).collect();
            let own: Vec<Var> = at_step(&products, step)?.iter().map(leaf).collect();
            let next = with_recording(Recording::On, || C::next(&own, &state))?;
            carried[0] = Some(match carried[0].take() {
                Some(carried) => carried.add(&of_outputs[step])?,
                None => of_outputs[step].clone(),
            });
            let roots = next.iter().zip(&carried).map(|(part, g)| (part, g.as_ref()));
            let roots: Vec<_> = roots.filter(|(_, g)| g.is_some()).collect();
            let places = at_step(&of_products, step)?;
            let ends = [own, state].concat();
            let mut found = grad_within(OP, &roots, &ends, &vec![true; ends.len()], false)?.into_iter();
            for (place, found) in places.iter().zip(&mut found) {
                match found {
                    Some(g) => place.value().copy_(g.value())?,
                    None => place.value().fill_(0.0)?,
                }
            }
            carried = found.collect();
            if at > 0 || needs_state {
                let of_output = of_products[of_products.len() - 1].select(0, step)?;
                let through = of_output.to_dtype(dtypes[1])?.matmul(weight)?;
                carried[0] = Some(match carried[0].take() {
                    Some(direct) => direct.add(&through)?,
                    None => through,
                });
            }
        }
        // A sum of products may be wider than one of them.
        let of_input = of_products[0].to_dtype(dtypes[0])?;
        let of_output = of_products[of_products.len() - 1].to_dtype(dtypes[1])?;
        let (rows, columns) = (of_output.flatten(0, 1)?, before[0].flatten(0, 1)?);
        // In the memory order of the weight, as for `linear`.
        let of_weight = match (needed[1], weight.value().is_contiguous()) {
            (false, _) => None,
            (true, true) => Some(rows.t()?.matmul(&columns)?),
            (true, false) => Some(columns.t()?.matmul(&rows)?.t()?),
        };
        let mut all = vec![Some(of_input), of_weight];
        if self.biased {
            all.push(if needed[2] { Some(rows.sum(&[0], false)?) } else { None });
        }
        all.extend(carried);
        Ok(all.into_iter().collect())
    }
}

pub(super) fn samples<C: Cell>(d: &Draw) -> Result<Vec<Sample>> {
    let (gates, one) = (2 * C::GATES, [2, 2]);
    let weights: Vec<&[usize]> = vec![&[3, 2, 3]];
    let of = |name, from_end: bool, biased: bool| {
        let rows = [gates];
        let mut shapes = weights.clone();
        let matrices = [[gates, 3], [gates, 2]];
        shapes.extend(matrices.iter().map(|shape| &shape[..]));
        shapes.extend(std::iter::repeat_n(&rows[..], 2 * usize::from(biased)));
        shapes.extend(std::iter::repeat_n(&one[..], C::State::PARTS));
        d.sample(name, &shapes, move |v| {
            let (biases, first) = if biased { (Some([&v[3], &v[4]]), 5) } else { (None, 3) };
            let (outputs, last) = recurrent::<C>(&v[0], [&v[1], &v[2]], biases, &v[first..], from_end)?;
            let all = last.iter().map(|part| part.unsqueeze(0)).collect::<Result<Vec<_>>>()?;
            Var::cat(&[&outputs].into_iter().chain(&all).collect::<Vec<_>>(), 0)
        })
    };
    Ok(vec![of("from_start", false, true)?, of("from_end", true, true)?, of("without_biases", false, false)?])
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close_values, leaf};
    use super::*;
    use crate::{GradOptions, grad};

    /// Both products as views of one tensor, so that their gradients share storage, too.
    struct Joined;

    impl Cell for Joined {
        const NAME: &'static str = "joined";
        const GATES: usize = 1;
        const ADDS: bool = false;
        type State = Var;

        fn next(products: &[Var], _: &[Var]) -> Result<Vec<Var>> {
            let [of_input, of_output] = parts_of(products.to_vec())?;
            let both = Var::cat(&[&of_input, &of_output.mul_scalar(3.0)?], 1)?.tanh()?;
            let width = of_input.shape()[1];
            Ok(vec![both.narrow(1, 0, width)?.add(&both.narrow(1, width, width)?)?])
        }
    }

    fn gradients<C: Cell>(inputs: &[Var], state: &[Var], create_graph: bool) -> Result<Vec<Vec<f64>>> {
        let (y, _) = recurrent::<C>(&inputs[0], [&inputs[1], &inputs[2]], None, state, true)?;
        let options = GradOptions { create_graph, ..GradOptions::default() };
        let found = grad(&[y.square()?.sum_all()?], inputs, options)?;
        found.iter().map(|g| g.as_ref().map_or(Ok(vec![]), |g| g.value().contiguous()?.to_vec())).collect()
    }

    #[test]
    fn gradients_are_those_of_the_composition() -> Result<()> {
        let draw = |shape: &[usize], seed: u64| -> Result<Var> {
            let key = tensor::RandomKey { seed, op: 0 };
            Ok(Var::leaf(tensor::Tensor::randn(shape, tensor::DType::F64, key, &tensor::Device::cpu())?))
        };
        let state = draw(&[2, 2], 4)?;
        let joined = [draw(&[3, 2, 3], 1)?, draw(&[2, 3], 2)?, draw(&[2, 2], 3)?, state.clone()];
        let own = [state.clone()];
        let [plain, recorded] = [false, true].map(|graph| gradients::<Joined>(&joined, &own, graph));
        for (a, b) in plain?.iter().zip(&recorded?) {
            close_values(a, b);
        }
        // One tensor as both parts of a state.
        let lstm = [draw(&[3, 2, 3], 1)?, draw(&[8, 3], 2)?, draw(&[8, 2], 3)?, state.clone()];
        let both = [state.clone(), state];
        let [plain, recorded] = [false, true].map(|graph| gradients::<LstmCell>(&lstm, &both, graph));
        for (a, b) in plain?.iter().zip(&recorded?) {
            close_values(a, b);
        }
        let small = [leaf(&[0.0; 2], &[1, 2])?];
        assert!(recurrent::<Joined>(&joined[0], [&joined[1], &joined[2]], None, &small, false).is_err());
        assert!(recurrent::<Joined>(&joined[0], [&joined[1], &joined[2]], None, &[], false).is_err());
        Ok(())
    }
}
