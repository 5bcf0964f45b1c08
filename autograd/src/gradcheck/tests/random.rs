//! Random compositions of ops at random points: no false alarms, no misses. `STREAMGRAD_GRADIENTS=N` checks N of each kind.

use std::fmt;

use tensor::GeluKind;

use super::*;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// Between -1 and 1.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
    }

    /// Of either sign and of any size between 10^-`decades` and 10^`decades`.
    fn of_any_size(&mut self, decades: f64) -> f64 {
        (self.unit() * decades * std::f64::consts::LN_10).exp() * self.unit().signum()
    }
}

/// An op of a matrix, another one and a number.
type Op = fn(&Var, &Var, f64) -> Result<Var>;

/// At least 1.
fn positive(x: &Var) -> Result<Var> {
    x.square()?.add_scalar(1.0)
}

/// `y` in a shape that broadcasts with `x`.
fn beside(x: &Var, y: &Var) -> Result<Var> {
    if x.shape() == y.shape() { Ok(y.clone()) } else { y.sum(&[0, 1], true) }
}

const OPS: &[(&str, Op)] = &[
    ("tanh", |x, _, _| x.tanh()),
    ("sigmoid", |x, _, _| x.sigmoid()),
    ("exp", |x, _, _| x.exp()),
    ("sin", |x, _, _| x.sin()),
    ("square", |x, _, _| x.square()),
    ("relu", |x, _, _| x.relu()),
    ("abs", |x, _, _| x.abs()),
    ("softplus", |x, _, _| x.softplus(1.0, 20.0)),
    ("gelu", |x, _, _| x.gelu(GeluKind::Erf)),
    ("silu", |x, _, _| x.silu()),
    ("sqrt", |x, _, _| positive(x)?.sqrt()),
    ("log", |x, _, _| positive(x)?.log()),
    ("rsqrt", |x, _, _| positive(x)?.rsqrt()),
    ("pow_scalar", |x, _, s| positive(x)?.pow_scalar(s.clamp(-3.0, 3.0))),
    ("mul_scalar", |x, _, s| x.mul_scalar(s)),
    ("add_scalar", |x, _, s| x.add_scalar(s)),
    ("clamp", |x, _, s| x.clamp(-s.abs(), s.abs())),
    ("leaky_relu", |x, _, _| x.leaky_relu(0.1)),
    ("softmax", |x, _, _| x.softmax(1)),
    ("log_softmax", |x, _, _| x.log_softmax(0)),
    ("layer_norm", |x, _, _| x.layer_norm(&x.shape()[1..], None, None, 1e-5)),
    ("sum", |x, _, _| x.sum(&[0], true)),
    ("mean", |x, _, _| x.mean(&[1], true)),
    ("max", |x, _, _| x.max(&[1], true)),
    ("logsumexp", |x, _, _| x.logsumexp(&[0], true)),
    ("cumsum", |x, _, _| x.cumsum(1)),
    ("transpose", |x, _, _| x.transpose(0, 1)),
    ("narrow", |x, _, _| x.narrow(0, 0, x.shape()[0].div_ceil(2))),
    ("matmul", |x, _, _| x.matmul(&x.transpose(0, 1)?)),
    ("linear", |x, y, _| if x.shape()[1] == y.shape()[1] { x.linear(y, None) } else { x.linear(x, None) }),
    ("add", |x, y, _| x.add(&beside(x, y)?)),
    ("sub", |x, y, _| x.sub(&beside(x, y)?)),
    ("mul", |x, y, _| x.mul(&beside(x, y)?)),
    ("div", |x, y, _| x.div(&positive(&beside(x, y)?)?)),
    ("maximum", |x, y, _| x.maximum(&beside(x, y)?)),
    ("cat", |x, y, _| if x.shape() == y.shape() { Var::cat(&[x, y], 1) } else { Var::cat(&[x, x], 1) }),
    ("mse_loss", |x, y, _| {
        x.mse_loss(&if x.shape() == y.shape() { y.clone() } else { x.detach() }, crate::Reduction::None)
    }),
];

fn weighted(y: &Var) -> Result<Var> {
    let weights: Vec<f64> = (0..y.value().elements()).map(|at| 1.0 + (at as f64).sin() / 2.0).collect();
    let weights = Tensor::from_slice(&weights, y.shape(), y.device())?.to_dtype(y.dtype())?;
    y.mul(&Var::constant(weights))?.sum_all()
}

/// A step takes two of the values before it.
struct Step {
    op: usize,
    operands: [usize; 2],
    number: f64,
}

struct Program {
    inputs: Vec<Tensor>,
    steps: Vec<Step>,
    /// Whether steps are in F32 whatever the inputs are.
    narrow: bool,
    /// Whether the outputs are added up.
    scalar: bool,
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Step { op, operands, number } in &self.steps {
            write!(f, "{}{operands:?} {number:.3}; ", OPS[*op].0)?;
        }
        write!(
            f,
            "{:?} in {}",
            self.inputs[0].shape(),
            if self.narrow { DType::F32 } else { self.inputs[0].dtype() }
        )
    }
}

impl Program {
    fn draw(random: &mut Random, dtype: DType, narrow: bool, scalar: bool) -> Result<Program> {
        let shape = [1 + random.below(4), 1 + random.below(4)];
        let input = |random: &mut Random| {
            let (scale, count) = (random.of_any_size(3.0), shape[0] * shape[1]);
            let values: Vec<f64> = (0..count).map(|_| scale * random.unit()).collect();
            Tensor::from_slice(&values, &shape, &Device::cpu())?.to_dtype(dtype)
        };
        let inputs = vec![input(random)?, input(random)?];
        let count = 1 + random.below(6);
        let mut step = |at: usize| Step {
            op: random.below(OPS.len()),
            // Most often the newest.
            operands: [
                if random.below(4) == 0 { random.below(at + 2) } else { at + 1 },
                random.below(at + 2),
            ],
            number: random.of_any_size(1.0),
        };
        let steps = (0..count).map(&mut step).collect();
        Ok(Program { inputs, steps, narrow, scalar })
    }

    /// The last value, and the largest one of all. The gradient of step `wrong` is off by a factor.
    fn values(&self, inputs: &[Var], wrong: Option<(usize, f64)>) -> Result<(Var, f64)> {
        let dtype = if self.narrow { DType::F32 } else { inputs[0].dtype() };
        let mut values = inputs.iter().map(|x| x.to_dtype(dtype)).collect::<Result<Vec<_>>>()?;
        let mut largest = 0.0_f64;
        for (at, Step { op, operands: [x, y], number }) in self.steps.iter().enumerate() {
            let mut value = OPS[*op].1(&values[*x], &values[*y], *number)?;
            if let Some((step, factor)) = wrong
                && step == at
            {
                value = off(&value, factor)?;
            }
            largest = numbers(value.value())?
                .iter()
                .fold(largest, |m, x| if x.is_nan() { *x } else { m.max(x.abs()) });
            values.push(value);
        }
        let last = values.swap_remove(values.len() - 1);
        Ok((if self.scalar { weighted(&last)? } else { last }, largest))
    }

    /// The gradients of the sum of outputs.
    fn gradients(&self, wrong: Option<(usize, f64)>) -> Result<Vec<Vec<f64>>> {
        let (_, inputs) = leaves(&self.inputs, true)?;
        let (y, _) = self.values(&inputs, wrong)?;
        let y = if self.scalar { y } else { weighted(&y)? };
        if !y.requires_grad() {
            return Ok(inputs.iter().map(|x| vec![0.0; x.value().elements()]).collect());
        }
        let found = grad(&[y], &inputs, GradOptions::default())?;
        let values = |(x, g): (&Var, Option<Var>)| {
            g.map_or(Ok(vec![0.0; x.value().elements()]), |g| numbers(g.value()))
        };
        inputs.iter().zip(found).map(values).collect()
    }

    /// Whether all is finite and of moderate size, and the gradients are no residues of rounding.
    fn is_well_posed(&self) -> Result<bool> {
        let (_, inputs) = leaves(&self.inputs, true)?;
        let (y, largest) = self.values(&inputs, None)?;
        let least = 1e-6 * norm(numbers(y.value())?);
        let effects = self.gradients(None)?.into_iter().zip(&self.inputs).map(|(g, x)| {
            let scale = norm(numbers(x)?) / (g.len() as f64).sqrt();
            Ok(norm(g) * scale)
        });
        let effects = effects.collect::<Result<Vec<_>>>()?;
        // The phase of a wave needs the bits before the point, too.
        let limit = if self.narrow { 100.0 } else { 1e5 };
        Ok(largest < limit
            && effects.iter().all(|effect| *effect == 0.0 || (least.max(1e-4)..1e8).contains(effect)))
    }

    fn check(&self, wrong: Option<(usize, f64)>) -> Result<GradCheckReport> {
        gradcheck(|x| Ok(self.values(x, wrong)?.0), &self.inputs, GradCheck::default())
    }

    /// The step whose gradient, off by one part in 10,000, is the largest share of a derivative that is not small; and that share.
    fn largest_share(&self) -> Result<(usize, f64)> {
        let right = self.gradients(None)?;
        let mut best = (0, 0.0);
        for step in 0..self.steps.len() {
            for (right, wrong) in right.iter().zip(&self.gradients(Some((step, 1.0001)))?) {
                let typical = norm(right.iter().copied()) / (right.len() as f64).sqrt();
                for (right, wrong) in right.iter().zip(wrong) {
                    let share = (wrong - right).abs() / (1e-4 * right.abs());
                    if right.abs() > 0.1 * typical && share > best.1 {
                        best = (step, share);
                    }
                }
            }
        }
        Ok(best)
    }
}

fn count() -> usize {
    std::env::var("STREAMGRAD_GRADIENTS").ok().and_then(|n| n.parse().ok()).unwrap_or(60)
}

/// Well-posed programs, with their numbers.
fn programs(seed: u64, dtype: DType, narrow: bool, scalar: Option<bool>) -> impl Iterator<Item = Program> {
    let mut random = Random(seed);
    let next = move || {
        loop {
            let scalar = scalar.unwrap_or(random.below(2) == 0);
            let program = Program::draw(&mut random, dtype, narrow, scalar).unwrap();
            if program.is_well_posed().unwrap() {
                return program;
            }
        }
    };
    std::iter::repeat_with(next).take(count())
}

/// Checks right gradients; prints and returns how often that failed.
fn false_alarms(seed: u64, dtype: DType, narrow: bool) -> usize {
    let (mut alarms, mut all) = (0, GradCheckReport::default());
    for program in programs(seed, dtype, narrow, None) {
        match program.check(None) {
            Ok(report) => {
                all.checked += report.checked;
                all.undecided += report.undecided;
                all.kinks += report.kinks;
                all.max_error = all.max_error.max(report.max_error);
                all.max_uncertainty = all.max_uncertainty.max(report.max_uncertainty);
                if std::env::var_os("STREAMGRAD_UNDECIDED").is_some() && report.undecided > 0 {
                    println!("{} of {} undecided: {program}", report.undecided, report.checked);
                }
            }
            Err(error) => {
                alarms += 1;
                println!("{program}: {error}");
            }
        }
    }
    println!("{alarms} false alarms in {} programs of {dtype}, narrow {narrow}: {all:?}", count());
    assert!(narrow || all.undecided * 100 < all.checked, "{all:?}");
    alarms
}

#[test]
fn right_gradients_raise_no_alarm() {
    assert_eq!(false_alarms(1, DType::F64, false), 0);
    assert_eq!(false_alarms(2, DType::F32, false), 0);
}

/// Ops of F32, whose rounding is measured.
#[test]
fn right_gradients_of_f32_raise_no_alarm() {
    assert_eq!(false_alarms(3, DType::F64, true), 0);
}

#[test]
fn gradients_off_by_one_part_in_10_000_are_found() {
    let (mut found, mut missed, mut undecided) = (0, 0, 0);
    for program in programs(4, DType::F64, false, Some(true)) {
        let (step, share) = program.largest_share().unwrap();
        if share < 0.1 {
            continue;
        }
        match program.check(Some((step, 1.0001))) {
            Err(_) => found += 1,
            Ok(report) if report.undecided > 0 => undecided += 1,
            Ok(report) => {
                missed += 1;
                println!("step {step}, share {share:.2}: {program}: {report:?}");
            }
        }
    }
    println!("{found} found, {missed} missed, {undecided} undecided");
    assert!(missed * 1000 <= found && undecided * 100 <= found + 100, "{found} {missed} {undecided}");
}
