//! Gradients against numeric derivatives with their uncertainty.

mod moved;
mod perturbed;
mod slope;

use device::{AtCaller, OnDrop};
use tensor::{DType, Device, Error, ErrorKind, RandomKey, Result, Tensor};

use crate::autocast::in_f64;
use crate::mode::with_perturbation;
use crate::pipeline::discard_deferred;
use crate::{GradOptions, TapeEntry, Var, grad};
use moved::{Derivative, Moved};
use perturbed::FACTOR;
pub(crate) use perturbed::perturbed;
use slope::unit;

/// How to run [`gradcheck`], [`gradgradcheck`] and [`gradcheck_leaves`].
///
/// ```
/// use autograd::GradCheck;
/// let along_one_direction = GradCheck { elements: 0, ..GradCheck::default() };
/// assert_eq!(along_one_direction.rtol, 1e-6);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GradCheck {
    /// The relative error that is allowed, beyond the uncertainty of the numeric derivative.
    pub rtol: f64,
    /// Seeds the gradients of the outputs, the directions and the samples of elements.
    pub seed: u64,
    /// The most elements of an input that are checked. Of a larger input a sample of so many is checked, and the derivative
    /// along one random direction through all of its elements.
    pub elements: usize,
}

impl Default for GradCheck {
    fn default() -> Self {
        GradCheck { rtol: 1e-6, seed: 0, elements: 100 }
    }
}

/// The derivatives that a check compared and found right, or could not decide.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GradCheckReport {
    /// The number of derivatives compared.
    pub checked: usize,
    /// Those among them whose numeric value is less certain than the tolerance.
    pub undecided: usize,
    /// Those at a kink, where the derivatives of the two sides differ: the gradient lies between them.
    pub kinks: usize,
    /// The largest relative difference between an analytic and a numeric derivative that is decided.
    pub max_error: f64,
    /// The largest relative uncertainty of a derivative that is decided.
    pub max_uncertainty: f64,
}

/// Checks the gradients of `f` at `inputs` against numeric derivatives.
///
/// The outputs, one or several of any shape, get random gradients `u`, so that all of them are checked at once: with
/// `L = Σ u f(x)`, `dL / dx` is extrapolated from `(L(x + h) - L(x - h)) / 2h` for several steps `h`. Its uncertainty covers the
/// rounding of `L`, which is measured, over `h`, the rest of the extrapolation, and a kink between the steps. Steps follow the
/// size of the element, and shrink or grow until the uncertainty is below the tolerance. A gradient is wrong if it differs by more than the
/// uncertainty and `rtol` of the derivative together.
///
/// Rounding is measured in two ways: at points close together, and by four evaluations, with their backward passes, in which the last
/// three bits of each op's result and of each gradient are others. What these move in outputs is noise of `L`; how far they move a
/// gradient is how uncertain that is, too, which counts where it differs. They are neither recorded nor different otherwise, so that every
/// op's gradient is that of the pass that is checked, and an error of it remains. Evaluations that fail or are not finite are
/// left out; with fewer than two, a gradient that differs is undecided.
///
/// `f` is evaluated in F64 on copies of the inputs, under an autocast that takes other operands to F64. If it refuses F64, it
/// is evaluated in the inputs' own types, with a tolerance of the square root of their rounding. All is done on the current
/// streams of the inputs' devices, and the calling thread waits.
///
/// ```
/// use autograd::{Device, GradCheck, Result, Tensor, gradcheck};
/// # fn main() -> Result<()> {
/// let x = Tensor::from_slice(&[0.5_f64, -1.0, 2.0], &[3], &Device::cpu())?;
/// let report = gradcheck(|v| v[0].tanh()?.mul(&v[0]), &[x.clone()], GradCheck::default())?;
/// assert_eq!((report.checked, report.undecided), (3, 0));
/// gradcheck(|v| Ok(vec![v[0].exp()?, v[0].square()?]), &[x], GradCheck::default())?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `GradientMismatch` for the derivative that is furthest off; `GradientMissing` if none leads to an input on which `L` depends;
/// `NotDeterministic` if two evaluations differ in bits, `GradientNotDeterministic` if two backward passes do; `InputModified` if `f` writes an input; `NotFinite` for an output that is not
/// a number, or all of whose elements are infinite; `DTypeMismatch` for inputs or outputs without fractions; `InvalidArgument` for no inputs or a negative tolerance; what `f` and the backward pass return.
#[derive::located]
pub fn gradcheck<O: Into<Vec<Var>>>(
    f: impl Fn(&[Var]) -> Result<O>,
    inputs: &[Tensor],
    options: GradCheck,
) -> Result<GradCheckReport> {
    let f = |inputs: &[Var]| AtCaller::user(|| Ok(f(inputs)?.into()));
    widest(inputs.iter().map(Tensor::dtype), |wide| {
        let (names, vars) = leaves(inputs, wide)?;
        Check { f: &|| f(&vars), names: &names, leaves: &vars, wide, options }.run()
    })
}

/// Checks the first derivatives of `f` at `inputs` along random directions, then the second ones: those of its gradients.
///
/// The gradients are a function of the inputs and of the outputs' gradients, which are random; [`gradcheck`] is applied
/// to that function.
///
/// ```
/// use autograd::{Device, GradCheck, Tensor, gradgradcheck};
/// let x = Tensor::from_slice(&[0.5_f64, -1.0, 2.0], &[3], &Device::cpu())?;
/// // The three elements, and the three of the output's gradient.
/// assert_eq!(gradgradcheck(|v| v[0].tanh(), &[x], GradCheck::default())?.checked, 6);
/// # Ok::<(), autograd::Error>(())
/// ```
///
/// # Errors
/// As for [`gradcheck`].
#[derive::located]
pub fn gradgradcheck<O: Into<Vec<Var>>>(
    f: impl Fn(&[Var]) -> Result<O>,
    inputs: &[Tensor],
    options: GradCheck,
) -> Result<GradCheckReport> {
    let f = |inputs: &[Var]| -> Result<Vec<Var>> { AtCaller::user(|| Ok(f(inputs)?.into())) };
    gradcheck(f, inputs, GradCheck { elements: 0, ..options })?;
    widest(inputs.iter().map(Tensor::dtype), |wide| {
        let (mut names, mut all) = leaves(inputs, wide)?;
        let outputs = if wide { in_f64(|| f(&all)) } else { f(&all) }?;
        for (index, output) in outputs.iter().enumerate() {
            let drawn = normal(options.seed, OUTER, index, output.value().elements())?;
            let drawn = Tensor::from_slice(&drawn, output.shape(), output.device())?;
            all.push(Var::leaf(drawn.to_dtype(output.dtype())?));
            names.push(format!("the gradient of output {index}"));
        }
        let (inputs, given) = all.split_at(inputs.len());
        let gradients = || {
            let outputs = f(inputs)?.into_iter().zip(given).filter(|(output, _)| output.requires_grad());
            let (outputs, given): (Vec<_>, Vec<_>) = outputs.map(|(y, g)| (y, Some(g.clone()))).unzip();
            if outputs.is_empty() {
                return Ok(vec![]);
            }
            let options = GradOptions { create_graph: true, gradients: given, ..GradOptions::default() };
            Ok(grad(&outputs, inputs, options)?.into_iter().flatten().collect())
        };
        Check { f: &gradients, names: &names, leaves: &all, wide, options }.run()
    })
}

/// Checks the gradients of `f` with respect to leaves that it uses, such as a model's parameters, which are changed in place
/// meanwhile and have their values again afterwards.
///
/// As [`gradcheck`], with the leaves in place of inputs. Leaves keep their types; operations on those of F32 run in F64 where
/// `f` allows it.
///
/// ```
/// use autograd::{DType, Device, GradCheck, Tensor, Var, gradcheck_leaves};
/// let w = Var::leaf(Tensor::ones(&[2, 3], DType::F32, &Device::cpu())?);
/// let x = Var::constant(Tensor::ones(&[4, 3], DType::F32, &Device::cpu())?);
/// let loss = || x.linear(&w, None)?.tanh()?.sum_all();
/// let report = gradcheck_leaves(loss, &[("weight".to_owned(), w.clone())], GradCheck::default())?;
/// assert_eq!((report.checked, report.undecided), (6, 0));
/// # Ok::<(), autograd::Error>(())
/// ```
///
/// # Errors
/// As for [`gradcheck`].
#[derive::located]
pub fn gradcheck_leaves<O: Into<Vec<Var>>>(
    f: impl Fn() -> Result<O>,
    leaves: &[(String, Var)],
    options: GradCheck,
) -> Result<GradCheckReport> {
    let f = || AtCaller::user(|| Ok(f()?.into()));
    let (names, vars): (Vec<_>, Vec<_>) = leaves.iter().cloned().unzip();
    widest(vars.iter().map(Var::dtype), |wide| {
        Check { f: &f, names: &names, leaves: &vars, wide, options }.run()
    })
}

const OP: &str = "gradcheck";

// What random numbers are drawn for.
const OUTPUT: u64 = 0;
const DIRECTION: u64 = 1;
const OUTER: u64 = 2;
const SAMPLE: u64 = 3;

/// How often the function and its gradients are evaluated with other last bits.
const PERTURBATIONS: u64 = 4;

/// How many ops that take a leaf a message lists.
const SHOWN_USERS: usize = 3;

/// Calls `check` with operands taken to F64, then in their own types if a function refuses F64, or if all leaves have it.
fn widest<R>(dtypes: impl IntoIterator<Item = DType>, check: impl Fn(bool) -> Result<R>) -> Result<R> {
    use ErrorKind::{DTypeMismatch, DTypeUnsupported};
    if dtypes.into_iter().all(|dtype| dtype == DType::F64) {
        return check(false);
    }
    check(true).or_else(|error| match error.kind() {
        DTypeMismatch { .. } | DTypeUnsupported { .. } => check(false),
        _ => Err(error),
    })
}

/// Copies of the inputs as leaves, in their order in memory, with their names.
fn leaves(inputs: &[Tensor], wide: bool) -> Result<(Vec<String>, Vec<Var>)> {
    let leaf = |(index, x): (usize, &Tensor)| {
        x.dtype().require_float(OP)?;
        let dtype = if wide { DType::F64 } else { x.dtype() };
        Ok((format!("input {index}"), Var::leaf(x.to_dtype(dtype)?.mul_scalar(1.0)?)))
    };
    inputs.iter().enumerate().map(leaf).collect()
}

/// Normal numbers; each purpose and index has numbers of its own.
fn normal(seed: u64, purpose: u64, index: usize, count: usize) -> Result<Vec<f64>> {
    let key = RandomKey { seed, op: 4 * index as u64 + purpose };
    Tensor::randn(&[count], DType::F64, key, &Device::cpu())?.to_vec()
}

fn numbers(x: &Tensor) -> Result<Vec<f64>> {
    x.to_dtype(DType::F64)?.to_vec()
}

/// The elements of several tensors, one after the other.
fn all_numbers<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> Result<Vec<f64>> {
    Ok(tensors.into_iter().map(numbers).collect::<Result<Vec<_>>>()?.concat())
}

fn norm(values: impl IntoIterator<Item = f64>) -> f64 {
    // Squares may underflow.
    values.into_iter().fold(0.0, f64::hypot)
}

/// An element without which an output has no value: one that is NaN, or infinite beside none that is finite. A mask of some
/// elements by infinity is none.
fn undefined(values: &[f64]) -> Option<usize> {
    let is_infinite = values.iter().all(|x| !x.is_finite());
    values.iter().position(|x| x.is_nan() || is_infinite)
}

#[cold]
fn not_finite(output: usize, of: &Var, element: usize, value: f64) -> Error {
    let tape = of.tape();
    let made = tape.last();
    let _at = made.map(|entry| AtCaller::enter_at(entry.location));
    let op = made.map_or("no recorded op", |entry| entry.op);
    Error::new(ErrorKind::NotFinite { op, output, element, value })
}

struct Check<'a> {
    f: &'a dyn Fn() -> Result<Vec<Var>>,
    leaves: &'a [Var],
    names: &'a [String],
    /// Whether operands are taken to F64.
    wide: bool,
    options: GradCheck,
}

/// The function at the values that the leaves have.
struct Base {
    /// The elements of all outputs.
    outputs: Vec<f64>,
    /// The outputs' gradients, also as numbers.
    given: Vec<Tensor>,
    weights: Vec<f64>,
    tape: Vec<TapeEntry>,
    /// The noise of each weighted output.
    noises: Vec<f64>,
    /// The rounding of the coarsest type on the tape.
    unit: f64,
}

impl Base {
    /// The op that takes a leaf, if it is one, all of them with their lines, and a guard that has errors at the line of one.
    /// Conversions to F64, which the check itself makes, are left out.
    fn users(&self, leaf: &Var) -> (&'static str, Box<str>, Option<AtCaller>) {
        let users_of = |number: u64| self.tape.iter().filter(move |entry| entry.inputs.contains(&number));
        let mut users = Vec::new();
        for user in leaf.tape().first().into_iter().flat_map(|leaf| users_of(leaf.sequence)) {
            let direct = users.len();
            users.extend(users_of(user.sequence).filter(|_| user.op == "to_dtype"));
            if users.len() == direct {
                users.push(user);
            }
        }
        users.sort_by_key(|entry| entry.sequence);
        users.dedup_by_key(|entry| entry.sequence);
        let named = |entry: &&TapeEntry| format!("{} at {}", entry.op, entry.location);
        let text = match users.len() {
            0 => "no op".to_owned(),
            1..=SHOWN_USERS => users.iter().map(named).collect::<Vec<_>>().join(" and "),
            all => format!("{all} ops, first {}", named(&users[0])),
        };
        let (op, at) = match users[..] {
            [user] => (user.op, Some(AtCaller::enter_at(user.location))),
            _ => ("", None),
        };
        (op, text.into(), at)
    }

    /// How far other outputs are from these. Infinite elements may stay as they are.
    fn changes(&self, outputs: &[Var]) -> Result<Vec<f64>> {
        let now = all_numbers(outputs.iter().map(Var::value))?;
        let expected = self.outputs.len();
        Error::require_shapes(
            now.len() == expected,
            OP,
            "the function must return as many numbers each time",
            &[expected],
            &[now.len()],
        )?;
        let change = |(now, old): (&f64, &f64)| if now == old { 0.0 } else { now - old };
        Ok(now.iter().zip(&self.outputs).map(change).collect())
    }
}

#[derive(Default)]
struct Results {
    report: GradCheckReport,
    /// The error furthest beyond what is allowed, in units of that.
    worst: Option<(f64, Error)>,
}

impl Check<'_> {
    fn run(&self) -> Result<GradCheckReport> {
        let rtol = self.options.rtol;
        Error::require(rtol >= 0.0, OP, "rtol", "0 or more", rtol)?;
        Error::require(!self.leaves.is_empty(), OP, "inputs", "at least one tensor", "none")?;
        let (outputs, again) = (self.evaluate()?, self.evaluate()?);
        let mut base = self.base(&outputs, &again)?;
        let analytic = self.analytic(outputs, &base.given)?;
        self.check_repeated(&base, &analytic, &self.analytic(again, &base.given)?)?;
        let perturbed = self.perturbed(&mut base);
        let mut results = Results::default();
        for (index, analytic) in analytic.into_iter().enumerate() {
            let values = numbers(self.leaves[index].value())?;
            let _after_a_panic = OnDrop(|| {
                if std::thread::panicking() {
                    let _ = self.set(index, &values);
                }
            });
            let perturbed = perturbed.iter().map(|sample| sample[index].as_deref()).collect();
            let moved = Moved::new(self, &base, index, &values, analytic, perturbed);
            let checked = moved.and_then(|moved| moved.check(&mut results));
            // Also after an error.
            self.set(index, &values)?;
            checked?;
        }
        results.worst.map_or(Ok(results.report), |(_, error)| Err(error))
    }

    fn set(&self, leaf: usize, values: &[f64]) -> Result<()> {
        let leaf = self.leaves[leaf].value();
        leaf.copy_(&Tensor::from_slice(values, leaf.shape(), leaf.device())?)
    }

    fn evaluate(&self) -> Result<Vec<Var>> {
        let versions = || self.leaves.iter().map(|leaf| leaf.value().version()).collect::<Vec<_>>();
        let before = versions();
        let outputs = discard_deferred(|| if self.wide { in_f64(self.f) } else { (self.f)() })?;
        versions().iter().zip(&before).position(|(now, before)| now != before).map_or(Ok(outputs), |leaf| {
            Err(Error::new(ErrorKind::InputModified { input: self.names[leaf].as_str().into() }))
        })
    }

    /// That a second backward pass gives the same bits.
    fn check_repeated(
        &self,
        base: &Base,
        first: &[Option<Vec<f64>>],
        again: &[Option<Vec<f64>>],
    ) -> Result<()> {
        for (index, (first, again)) in first.iter().zip(again).enumerate() {
            let mut pairs = first.iter().flatten().zip(again.iter().flatten()).enumerate();
            let differs = |first: f64, again: f64| {
                first.to_bits() != again.to_bits() && !(first.is_nan() && again.is_nan())
            };
            let Some((element, (&first, &again))) =
                pairs.find(|&(_, (&first, &again))| differs(first, again))
            else {
                continue;
            };
            let (_, users, _at) = base.users(&self.leaves[index]);
            let input = self.names[index].as_str().into();
            return Err(Error::new(ErrorKind::GradientNotDeterministic {
                users,
                input,
                element,
                first,
                again,
            }));
        }
        Ok(())
    }

    fn base(&self, outputs: &[Var], again: &[Var]) -> Result<Base> {
        if again.len() != outputs.len() {
            return Err(Error::new(ErrorKind::NotDeterministic { output: again.len().min(outputs.len()) }));
        }
        let mut values = Vec::new();
        for (output, (first, again)) in outputs.iter().zip(again).enumerate() {
            first.dtype().require_float(OP)?;
            let (first, again) = (numbers(first.value())?, numbers(again.value())?);
            if !first.iter().map(|x| x.to_bits()).eq(again.iter().map(|x| x.to_bits())) {
                return Err(Error::new(ErrorKind::NotDeterministic { output }));
            }
            if let Some(element) = undefined(&first) {
                return Err(not_finite(output, &outputs[output], element, first[element]));
            }
            values.extend(first);
        }
        let draw = |(index, output): (usize, &Var)| {
            let count = output.value().elements();
            let is_alone = outputs.len() == 1 && count == 1;
            let drawn = if is_alone { vec![1.0] } else { normal(self.options.seed, OUTPUT, index, count)? };
            Tensor::from_slice(&drawn, output.shape(), output.device())?.to_dtype(output.dtype())
        };
        let given = outputs.iter().enumerate().map(draw).collect::<Result<Vec<_>>>()?;
        let tape: Vec<TapeEntry> = outputs.iter().flat_map(Var::tape).collect();
        let ops = tape.iter().filter(|entry| entry.op != "leaf");
        let unit = ops.map(|entry| unit(entry.dtype)).fold(f64::EPSILON, f64::max);
        let weights = all_numbers(&given)?;
        // A result is rounded at least once.
        let rounding = |(y, weight): (&f64, &f64)| unit / 4.0 * (y * weight).abs();
        let noises = values.iter().zip(&weights).map(rounding).map(|x| if x.is_finite() { x } else { 0.0 });
        Ok(Base { noises: noises.collect(), outputs: values, weights, given, tape, unit })
    }

    /// The gradients with other last bits, but for evaluations that fail. What these change in outputs is noise.
    fn perturbed(&self, base: &mut Base) -> Vec<Vec<Option<Vec<f64>>>> {
        let sample = |perturbation| {
            with_perturbation(perturbation, || {
                let outputs = self.evaluate()?;
                let changes = base.changes(&outputs)?;
                Ok::<_, Error>((changes, self.analytic(outputs, &base.given)?))
            })
        };
        let (changes, gradients): (Vec<_>, Vec<_>) =
            (1..=PERTURBATIONS).filter_map(|perturbation| sample(perturbation).ok()).unzip();
        for changes in changes {
            for ((noise, weight), change) in base.noises.iter_mut().zip(&base.weights).zip(changes) {
                let moved = (change * weight).abs() / FACTOR;
                *noise = if moved.is_finite() { noise.max(moved) } else { *noise };
            }
        }
        gradients
    }

    /// The gradient of each leaf; `None` where the tape has none.
    fn analytic(&self, outputs: Vec<Var>, given: &[Tensor]) -> Result<Vec<Option<Vec<f64>>>> {
        let pairs = outputs.into_iter().zip(given).filter(|(output, _)| output.requires_grad());
        let (roots, gradients): (Vec<_>, Vec<_>) =
            pairs.map(|(output, given)| (output, Some(Var::constant(given.clone())))).unzip();
        if roots.is_empty() {
            return Ok(vec![None; self.leaves.len()]);
        }
        // A part of the tape may be older than the function, and there are several passes.
        let options = GradOptions { gradients, retain_graph: true, ..GradOptions::default() };
        let found = grad(&roots, self.leaves, options)?;
        found.iter().map(|found| found.as_ref().map(|g| numbers(g.value())).transpose()).collect()
    }
}

impl Results {
    fn add(&mut self, moved: &Moved<'_>, element: Option<usize>, found: &Derivative) {
        let Derivative { slope, magnitude, allowed, .. } = found;
        let report = &mut self.report;
        report.checked += 1;
        if found.is_wrong {
            let excess = slope.value.abs() / allowed;
            if self.worst.as_ref().is_none_or(|(worst, _)| excess > *worst) {
                self.worst = Some((excess, moved.failure(element, found)));
            }
        } else if slope.uncertainty <= moved.tolerance(moved.unit()) * magnitude {
            report.max_error = report.max_error.max(slope.value.abs() / magnitude);
            report.max_uncertainty = report.max_uncertainty.max(slope.uncertainty / magnitude);
        } else if slope.jump > 1.5 * slope.uncertainty {
            report.kinks += 1;
        } else {
            report.undecided += 1;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
