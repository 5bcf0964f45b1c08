//! Builds a chain: the inputs of each function are operands or results of earlier functions.

use super::{Folded, Mapped};
use crate::chain::{Chain, Fold, OPERANDS, Operand, Step, Value};

/// Most cost per element of a chain, which bounds the size of kernels.
const STEPS_COST: usize = 192;

/// A chain under construction.
#[derive(Default)]
pub(super) struct Draft {
    inputs: Vec<Operand>,
    /// Final contents of memories: writing command and step.
    written: Vec<(Operand, usize, usize)>,
    steps: Vec<Step>,
    /// The step that is reduced, and the reduction.
    fold: Option<(Operand, Fold)>,
}

impl Draft {
    /// Adds a function; `None` if it reads or overwrites elements of other functions at different positions than its own.
    pub(super) fn push(&mut self, command: usize, part: &Mapped) -> Option<()> {
        let [result, arguments @ ..] = &part.operands[..] else { return None };
        let elements = |draft: &Draft| draft.written.first().map(|(written, ..)| written.places.elements);
        if elements(self).is_some_and(|elements| elements != result.places.elements) {
            return None;
        }
        if self.fold.as_ref().is_some_and(|(x, fold)| result.meets(x) || fold.meets(result)) {
            return None;
        }
        let arguments = arguments.iter().map(|argument| self.argument(argument)).collect::<Option<_>>()?;
        if self.inputs.iter().any(|input| input.meets(result) && !input.is(result)) {
            return None;
        }
        if self.written.iter().any(|(written, ..)| written.meets(result) && !written.is(result)) {
            return None;
        }
        self.written.retain(|(written, ..)| !written.is(result));
        self.written.push((result.clone(), command, self.steps.len()));
        self.steps.push(Step { function: part.function, arguments, output: None });
        Some(())
    }

    /// Adds a reduction of a function's result; `None` if its argument is laid out differently, or if there is a reduction already.
    pub(super) fn fold(&mut self, part: &Folded) -> Option<()> {
        let Folded { op, dtype, axes, x, out, workspace } = part;
        let is_folded = |(written, ..): &&(Operand, usize, usize)| {
            written.at.0 == x.0
                && written.dtype == *dtype
                && written.places.is_run()
                && written.places.elements == axes.elements()
        };
        let (x, _, of) = self.written.iter().find(is_folded)?;
        let (op, dtype, axes) = (*op, *dtype, axes.clone());
        let fold = Fold { of: *of, op, dtype, axes, out: out.clone(), workspace: workspace.clone() };
        let mut known = self.written.iter().map(|(written, ..)| written).chain(&self.inputs);
        if self.fold.is_some() || known.any(|known| fold.meets(known)) {
            return None;
        }
        self.fold = Some((x.clone(), fold));
        Some(())
    }

    fn argument(&mut self, argument: &Operand) -> Option<Value> {
        if self.fold.as_ref().is_some_and(|(_, fold)| fold.meets(argument)) {
            return None;
        }
        if let Some((written, _, step)) = self.written.iter().find(|(written, ..)| written.meets(argument)) {
            return written.is(argument).then_some(Value::Step(*step));
        }
        let known = self.inputs.iter().position(|input| input.is(argument));
        if known.is_none() {
            self.inputs.push(argument.clone());
        }
        Some(Value::Operand(known.unwrap_or(self.inputs.len() - 1)))
    }

    /// The finished chain, which writes the results that are `needed` in memory.
    pub(super) fn finish(self, needed: impl Fn(usize, &Operand) -> bool) -> Option<Chain> {
        let Draft { inputs, written, mut steps, fold } = self;
        let elements = written.first()?.0.places.elements;
        let mut operands = Vec::with_capacity(OPERANDS);
        for (result, command, step) in written {
            if needed(command, &result) {
                steps[step].output = Some(operands.len());
                operands.push(result);
            }
        }
        let outputs = operands.len();
        operands.extend(inputs);
        for argument in steps.iter_mut().flat_map(|step| &mut step.arguments) {
            if let Value::Operand(input) = argument {
                *input += outputs;
            }
        }
        let chain = Chain { elements, operands, steps, fold: fold.map(|(_, fold)| fold) };
        let cost: usize = chain.steps.iter().map(|step| step.function.cost()).sum();
        let fits =
            (outputs > 0 || chain.fold.is_some()) && chain.operands.len() <= OPERANDS && cost <= STEPS_COST;
        (fits && chain.loops::<OPERANDS>().is_some()).then_some(chain)
    }
}
