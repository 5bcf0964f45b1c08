//! Gradients against finite differences.

use device::AtCaller;
use tensor::{DType, Error, ErrorKind, RandomKey, Result, Tensor};

use crate::{GradOptions, Var, grad};

/// How to run [`gradcheck`] and [`gradgradcheck`].
///
/// A derivative passes if it is within `atol + rtol |numeric|` of the numeric one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GradCheck {
    /// Half the distance between the two points of a difference.
    pub eps: f64,
    /// The absolute error that is allowed.
    pub atol: f64,
    /// The relative error that is allowed.
    pub rtol: f64,
    /// Seeds the output's gradient, and the directions of `fast`.
    pub seed: u64,
    /// Differences in one random direction of each input, in place of one for each element. Two evaluations an input;
    /// a wrong gradient still shows, and then its elements are looked at to name the worst.
    pub fast: bool,
}

impl Default for GradCheck {
    fn default() -> Self {
        GradCheck { eps: 1e-6, atol: 1e-7, rtol: 1e-6, seed: 0, fast: false }
    }
}

/// What a check that passed has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GradCheckReport {
    /// The largest absolute difference between an analytic and a numeric derivative.
    pub max_error: f64,
    /// The number of derivatives compared.
    pub checked: usize,
}

/// Checks the gradients of `f` at `inputs` against central differences.
///
/// The output gets a random gradient `u`, so that an output of any shape is checked at once:
/// `dL / dx = (L(x + eps) - L(x - eps)) / (2 eps)` with `L = Σ u f(x)`. Every element of every input is compared,
/// on the current streams of the inputs' devices; the calling thread waits for them.
///
/// ```
/// use autograd::{Device, GradCheck, Result, Tensor, gradcheck};
/// # fn main() -> Result<()> {
/// let x = Tensor::from_slice(&[0.5_f64, -1.0, 2.0], &[3], &Device::cpu())?;
/// let report = gradcheck(|v| v[0].tanh()?.mul(&v[0]), &[x], GradCheck::default())?;
/// assert_eq!(report.checked, 3);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `GradientMismatch` with the worst element; `DTypeMismatch` unless inputs and output are F64; `InvalidArgument`
/// for no inputs or options that make no sense; what `f` and the backward pass return.
#[derive::located]
pub fn gradcheck(
    f: impl Fn(&[Var]) -> Result<Var>,
    inputs: &[Tensor],
    options: GradCheck,
) -> Result<GradCheckReport> {
    let f = |inputs: &[Var]| Ok(vec![AtCaller::user(|| f(inputs))?]);
    Check { op: "gradcheck", f: &f, options }.run(inputs)
}

/// Checks the second derivatives of `f` at `inputs`: those of its gradients.
///
/// The gradients are a function of the inputs and of the output's gradient, which is random; [`gradcheck`] is applied
/// to that function. In a mismatch, the input after the last one is the output's gradient.
///
/// # Errors
/// As for [`gradcheck`].
#[derive::located]
pub fn gradgradcheck(
    f: impl Fn(&[Var]) -> Result<Var>,
    inputs: &[Tensor],
    options: GradCheck,
) -> Result<GradCheckReport> {
    const OP: &str = "gradgradcheck";
    let f = |inputs: &[Var]| AtCaller::user(|| f(inputs));
    let gradients = |vars: &[Var]| -> Result<Vec<Var>> {
        let Some((gradient, inputs)) = vars.split_last() else { return Ok(vec![]) };
        let output = f(inputs)?;
        if !output.requires_grad() {
            return Ok(vec![]);
        }
        let options = GradOptions {
            create_graph: true,
            gradients: vec![Some(gradient.clone())],
            ..GradOptions::default()
        };
        Ok(grad(&[output], inputs, options)?.into_iter().flatten().collect())
    };
    let check = Check { op: OP, f: &gradients, options };
    check.validate(inputs)?;
    let output = f(&leaves(inputs))?;
    let mut all = inputs.to_vec();
    all.push(check.random(output.value(), OUTER, 0)?);
    check.run(&all)
}

// What random numbers are drawn for.
const OUTPUT: u64 = 0;
const DIRECTION: u64 = 1;
const OUTER: u64 = 2;

struct Check<'a> {
    op: &'static str,
    f: &'a dyn Fn(&[Var]) -> Result<Vec<Var>>,
    options: GradCheck,
}

/// The comparison that is furthest outside, or closest to the edge of, what is allowed.
#[derive(Default)]
struct Worst {
    /// Error over allowed error; infinite for NaN.
    excess: f64,
    mismatch: Option<Error>,
    report: GradCheckReport,
}

fn leaves(inputs: &[Tensor]) -> Vec<Var> {
    inputs.iter().cloned().map(Var::leaf).collect()
}

impl Check<'_> {
    fn run(&self, inputs: &[Tensor]) -> Result<GradCheckReport> {
        self.validate(inputs)?;
        let leaves = leaves(inputs);
        let outputs = (self.f)(&leaves)?;
        let draw = |(index, output): (usize, &Var)| {
            output.dtype().require(self.op, DType::F64)?;
            self.random(output.value(), OUTPUT, index)
        };
        let gradients: Vec<Tensor> = outputs.iter().enumerate().map(draw).collect::<Result<_>>()?;
        let weights = gradients.iter().map(Tensor::to_vec::<f64>).collect::<Result<Vec<_>>>()?;
        let analytic = self.analytic(&leaves, outputs, &gradients)?;
        let mut worst = Worst::default();
        for (input, analytic) in analytic.iter().enumerate() {
            let slope = |shift: &dyn Fn(&mut [f64], f64)| self.slope(inputs, input, &weights, shift);
            if self.options.fast {
                let direction = self.direction(&inputs[input], input)?;
                let numeric = slope(&|values, step| {
                    values.iter_mut().zip(&direction).for_each(|(value, d)| *value += step * d);
                })?;
                let analytic = analytic.iter().zip(&direction).map(|(a, d)| a * d).sum();
                let mut own = Worst::default();
                own.compare(&self.options, input, 0, analytic, numeric);
                if own.mismatch.is_none() {
                    worst.report.max_error = worst.report.max_error.max(own.report.max_error);
                    worst.report.checked += 1;
                    continue;
                }
            }
            for (element, &analytic) in analytic.iter().enumerate() {
                let numeric = slope(&|values, step| values[element] += step)?;
                worst.compare(&self.options, input, element, analytic, numeric);
            }
        }
        worst.mismatch.map_or(Ok(worst.report), Err)
    }

    /// The slope of `L`, with the random gradients of its outputs, when `shift` moves an input by a step.
    fn slope(
        &self,
        inputs: &[Tensor],
        input: usize,
        weights: &[Vec<f64>],
        shift: &dyn Fn(&mut [f64], f64),
    ) -> Result<f64> {
        let (eps, moved) = (self.options.eps, &inputs[input]);
        let values = moved.to_vec::<f64>()?;
        let outputs = |step: f64| -> Result<Vec<Vec<f64>>> {
            let mut values = values.clone();
            shift(&mut values, step);
            let mut vars = leaves(inputs);
            vars[input] = Var::leaf(Tensor::from_slice(&values, moved.shape(), moved.device())?);
            (self.f)(&vars)?.iter().map(|output| output.value().to_vec()).collect()
        };
        // The outputs are subtracted one by one: their sums would lose the difference in rounding.
        let mut difference = 0.0;
        for ((above, below), weights) in outputs(eps)?.iter().zip(&outputs(-eps)?).zip(weights) {
            for ((above, below), weight) in above.iter().zip(below).zip(weights) {
                difference += weight * (above - below);
            }
        }
        Ok(difference / (2.0 * eps))
    }

    /// A random direction, of length 1, for an input.
    fn direction(&self, like: &Tensor, input: usize) -> Result<Vec<f64>> {
        let drawn = self.random(like, DIRECTION, input)?.to_vec::<f64>()?;
        let norm = drawn.iter().map(|d| d * d).sum::<f64>().sqrt().max(f64::MIN_POSITIVE);
        Ok(drawn.iter().map(|d| d / norm).collect())
    }

    fn validate(&self, inputs: &[Tensor]) -> Result<()> {
        let GradCheck { eps, atol, rtol, .. } = self.options;
        Error::require(eps > 0.0 && eps.is_finite(), self.op, "eps", "a positive number", eps)?;
        let tolerances = format_args!("{atol} and {rtol}");
        Error::require(atol >= 0.0 && rtol >= 0.0, self.op, "atol and rtol", "0 or more", tolerances)?;
        Error::require(!inputs.is_empty(), self.op, "inputs", "at least one tensor", "none")?;
        // Differences need the precision of F64.
        inputs.iter().try_for_each(|input| input.dtype().require(self.op, DType::F64))
    }

    /// Random numbers in the shape of `like`; each purpose and index has numbers of its own.
    fn random(&self, like: &Tensor, purpose: u64, index: usize) -> Result<Tensor> {
        let key = RandomKey { seed: self.options.seed, op: 3 * index as u64 + purpose };
        Tensor::randn(like.shape(), DType::F64, key, like.device())
    }

    /// The gradient of each input from the backward pass; zeros where there is none.
    fn analytic(&self, leaves: &[Var], outputs: Vec<Var>, gradients: &[Tensor]) -> Result<Vec<Vec<f64>>> {
        let (mut roots, mut given) = (Vec::new(), Vec::new());
        for (output, gradient) in outputs.into_iter().zip(gradients) {
            if output.requires_grad() {
                roots.push(output);
                given.push(Some(Var::constant(gradient.clone())));
            }
        }
        if roots.is_empty() {
            return Ok(leaves.iter().map(|leaf| vec![0.0; leaf.value().elements()]).collect());
        }
        let found = grad(&roots, leaves, GradOptions { gradients: given, ..GradOptions::default() })?;
        let values = |(leaf, gradient): (&Var, Option<Var>)| match gradient {
            Some(gradient) if gradient.shape() == leaf.shape() => gradient.value().to_vec(),
            Some(gradient) => Err(Error::shape_mismatch(self.op, leaf.shape(), gradient.shape())),
            None => Ok(vec![0.0; leaf.value().elements()]),
        };
        leaves.iter().zip(found).map(values).collect()
    }
}

impl Worst {
    fn compare(&mut self, options: &GradCheck, input: usize, element: usize, analytic: f64, numeric: f64) {
        let error = (analytic - numeric).abs();
        let allowed = options.atol + options.rtol * numeric.abs();
        // An infinite slope would allow anything.
        let within = error.is_finite() && error <= allowed;
        self.report.checked += 1;
        self.report.max_error = self.report.max_error.max(error);
        let excess = if !error.is_finite() { f64::INFINITY } else { error / allowed };
        if !within && (self.mismatch.is_none() || excess > self.excess) {
            self.excess = excess;
            self.mismatch =
                Some(Error::new(ErrorKind::GradientMismatch { input, element, analytic, numeric }));
        }
    }
}
