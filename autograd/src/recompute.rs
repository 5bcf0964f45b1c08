//! Activation checkpointing: what a part of a model saves is made again when the backward pass needs it.

use device::AtCaller;
use tensor::{Error, Generator, Result, Tensor};

use crate::autocast::Inherited;
use crate::backward::grad_within;
use crate::mode::{Recording, is_recording, with_recording};
use crate::pipeline::{Around, discard_deferred};
use crate::tape::noticed::{NoticedAgain, name_of, noticing, noticing_again};
use crate::{Grads, Save, Var, Vjp, record};

/// Computes `f(x)`, keeps none of what its ops save, and computes it once more in the backward pass: memory for time.
///
/// What stays from the forward to the backward pass is `x`, the result, and what `f` itself holds. Where a model is a chain
/// of such parts, the activations of one of them at a time are in memory, for about a third more time.
///
/// `f` owns what it uses, since the tape keeps it: handles of parameters, or an `Arc` of a module. All values of the tape
/// that its ops use get their gradients, whether they are arguments or not. The whole is one op on the tape, on the current stream.
/// The second run is on that stream, draws the same random numbers, is under the same [`autocast`](crate::autocast), and
/// leaves out what `f` [defers](crate::defer), so that running statistics are moved once. What `f` changes otherwise it
/// would change twice. It works with `create_graph`, in lanes and in captured steps; within another `recompute`, too.
///
/// Gradients are those of `f(x)` without `recompute`, bit for bit, as long as `f` uses no value more than once that is used
/// outside, too: uses within `f` are added among themselves first. `f` is called with constants the first time: its values are
/// not on a tape that it could look at.
///
/// A captured step in [`Order::Data`](crate::Order) may run the second computation as early as the first one, as far as memory
/// goes; [`GraphOptions::max_bytes`](crate::GraphOptions) or `Order::Streams` keep it late.
///
/// ```
/// use autograd::{DType, Device, Tensor, Var, recompute};
/// let dev = Device::cpu();
/// let w = Var::leaf(Tensor::ones(&[4, 4], DType::F32, &dev)?);
/// let x = Var::leaf(Tensor::ones(&[2, 4], DType::F32, &dev)?);
/// let weight = w.clone();
/// let y = recompute(move |x| x.matmul(&weight)?.tanh()?.matmul(&weight)?.tanh(), &x)?;
/// assert_eq!(y.tape().len(), 3); // x, w, and the whole
/// let gradients = y.sum_all()?.backward()?;
/// assert!(gradients.get(&w).is_some() && gradients.get(&x).is_some());
/// # Ok::<(), autograd::Error>(())
/// ```
///
/// # Errors
/// Those of `f`, now or in the backward pass; there also `ShapeMismatch` and the like if `f` gives another form than the first
/// time, `InvalidArgument` if it gives a constant, leaves out a value of the tape that it used the first time, or uses
/// another one, and `VersionMismatch` if `x` or another value, parameter or constant, that an op on a [`Var`] in `f` uses was
/// changed in place meanwhile.
#[derive::located]
pub fn recompute<F>(f: F, x: &Var) -> Result<Var>
where
    F: Fn(&Var) -> Result<Var> + Send + Sync + 'static,
{
    let f = move |x: &Var| AtCaller::user(|| f(x));
    if !is_recording() {
        return f(x);
    }
    let around = Around::new(Generator::current());
    let (y, noticed) = noticing(|| Inherited::scope(around.autocast.as_ref(), || f(&x.detach())));
    let y = y?;
    let is_argument =
        |tensor: &Tensor| tensor.same_storage(x.value()) && tensor.layout() == x.value().layout();
    let uses_argument = noticed.constants.iter().any(is_argument) || is_argument(y.value());
    let mut inputs = vec![x];
    // It may have given a value of the tape as it is.
    for var in noticed.on_tape.iter().chain([&y]) {
        if var.node.is_some() && !inputs.iter().any(|input| input.id() == var.id()) {
            inputs.push(var);
        }
    }
    // The result is made again, whatever happens to it.
    let is_known =
        |tensor: &&Tensor| inputs.iter().copied().chain([&y]).any(|var| var.value.same_storage(tensor));
    let constants = noticed.constants.iter().filter(|tensor| !is_known(tensor)).map(Save::Tensor);
    let saved: Vec<Save<'_>> = (0..inputs.len()).map(Save::Input).chain(constants).collect();
    Ok(record(OP, &inputs, &saved, y.value.clone(), move |cx, grad| {
        again(&around, &f, uses_argument, cx, grad)
    }))
}

const OP: &str = "recompute";

/// Runs `f` again under the modes of the first run, this time on the tape, and returns the gradients of its inputs. The first of
/// them is the argument, which the first run may not have used; it used all others.
fn again<F>(around: &Around, f: &F, uses_argument: bool, cx: &Vjp<'_>, grad: &Var) -> Result<Grads>
where
    F: Fn(&Var) -> Result<Var>,
{
    let inputs: Vec<Var> = (0..cx.inputs()).map(|index| cx.input(index)).collect();
    let needed: Vec<bool> = (0..inputs.len()).map(|index| cx.needs(index)).collect();
    let run = || with_recording(Recording::Again, || discard_deferred(|| f(&inputs[0])));
    let (y, again) = noticing_again(|| around.scope(around.generator, run));
    let y = y?;
    again.check(&inputs, uses_argument, &y)?;
    grad_within(OP, &[(&y, Some(grad))], &inputs, &needed, cx.is_recorded())
}

impl NoticedAgain {
    /// Compares with the first run, which used all `inputs` but perhaps the first one.
    fn check(mut self, inputs: &[Var], uses_argument: bool, y: &Var) -> Result<()> {
        self.add(y);
        let first = usize::from(!uses_argument);
        if y.node.is_none() && first < inputs.len() {
            return Err(differs("a constant the second time"));
        }
        for input in &inputs[first..] {
            if let Some(node) = &input.node
                && !self.used.contains_key(&node.address())
            {
                return Err(differs(&format!("no use of {} the second time", name_of(input, node))));
            }
        }
        for node in inputs.iter().filter_map(|input| input.node.as_ref()) {
            self.used.remove(&node.address());
        }
        let added = |other| Err(differs(&format!("a use of {other} only the second time")));
        self.used.into_values().min().map_or(Ok(()), added)
    }
}

fn differs(found: &str) -> Error {
    Error::invalid(OP, "f", "a function that does the same both times", found)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests;
