//! Elementwise functions, activations, losses and their gradients against arithmetic of any precision, at random numbers of
//! all magnitudes. Every run draws new ones: `STREAMGRAD_PRECISION_SEED` repeats one, `STREAMGRAD_PRECISION_POINTS` sets how
//! many numbers there are for each function and type.
//!
//! A value or gradient may be wrong by 2 ulp and half an ulp times its condition number, which is the error that half an ulp
//! of the argument makes; or by 2 ulp of the largest term where a gradient passes through zero. F32 `pow_scalar` may be wrong
//! by 4 ulp, F32 `atan2` by 3 ulp, and a CUDA device by what CUDA documents for the function in use.

#![allow(clippy::unwrap_used, clippy::panic)]

mod big;
mod reference;
mod sums;

use autograd::Var;
use big::Big;
use reference::{ACTIVATIONS, Exact, Exact2, LOSSES, Pairwise, SPECIAL, binary, larger_term, unary};
use tensor::{BinaryOp, DType, Device, Result, Saves, Tensor, UnaryOp, grad};

const DTYPES: [DType; 4] = [DType::F64, DType::F32, DType::BF16, DType::F16];

/// Digits, the smallest exponent of a normal number, and the largest exponent.
fn format(dtype: DType) -> (i64, i64, i64) {
    match dtype {
        DType::F64 => (53, -1022, 1023),
        DType::F32 => (24, -126, 127),
        DType::BF16 => (8, -126, 127),
        _ => (11, -14, 15),
    }
}

/// The seed of this run.
pub(crate) fn seed() -> u64 {
    static SEED: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
    *SEED.get_or_init(|| {
        let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let given = std::env::var("STREAMGRAD_PRECISION_SEED").ok().map(|seed| seed.parse().unwrap());
        let seed = given.unwrap_or_else(|| now().as_nanos() as u64);
        println!("STREAMGRAD_PRECISION_SEED={seed}");
        seed
    })
}

fn points() -> usize {
    std::env::var("STREAMGRAD_PRECISION_POINTS").ok().and_then(|points| points.parse().ok()).unwrap_or(60)
}

/// SplitMix64.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn of(name: &str, dtype: DType) -> Random {
        let salt = name
            .bytes()
            .chain(dtype.name().bytes())
            .fold(0, |salt: u64, byte| (salt ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        Random(seed() ^ salt)
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// In 0..1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / 2_f64.powi(53)
    }

    pub(crate) fn sign(&mut self) -> f64 {
        if self.bits() & 1 == 0 { 1.0 } else { -1.0 }
    }

    /// A number of any magnitude that a type has, of a magnitude at which functions bend, or near a special one.
    fn number(&mut self, dtype: DType) -> f64 {
        let (digits, low, high) = format(dtype);
        let magnitude = match self.bits() % 4 {
            0 => {
                let exponents = high - low + digits;
                let exponent = low - digits + 1 + (self.bits() % exponents as u64) as i64;
                (1.0 + self.unit()) * 2_f64.powi(exponent as i32)
            }
            1 => self.unit() * 4.0,
            2 => self.unit() * 12.0 * 2_f64.powi(-((self.bits() % 30) as i32)),
            _ => {
                let special = SPECIAL[(self.bits() % SPECIAL.len() as u64) as usize];
                special * (1.0 + (self.unit() - 0.5) * 2_f64.powi(-((self.bits() % 30) as i32)))
            }
        };
        self.sign() * magnitude
    }
}

/// Numbers as elements of a type, and as what they are then. Zeros and infinities have tests of their own.
fn elements(numbers: &[f64], dtype: DType, device: &Device) -> Result<(Tensor, Vec<f64>)> {
    let rounded = Tensor::from_slice(numbers, &[numbers.len()], device)?.to_dtype(dtype)?;
    let kept: Vec<f64> = rounded.to_dtype(DType::F64)?.to_vec::<f64>()?;
    let kept: Vec<f64> = kept.into_iter().map(|x| if x == 0.0 || !x.is_finite() { 1.0 } else { x }).collect();
    Ok((Tensor::from_slice(&kept, &[kept.len()], device)?.to_dtype(dtype)?, kept))
}

fn numbers_of(tensor: &Tensor) -> Result<Vec<f64>> {
    tensor.to_dtype(DType::F64)?.to_vec::<f64>()
}

/// A function's value and its first two derivatives, and whether it has a kink.
struct Around {
    value: Big,
    slope: Big,
    bend: Big,
    kink: bool,
}

impl Around {
    /// By differences, with a third of the digits.
    fn of(f: Exact<'_>, x: f64, bits: usize) -> Around {
        let x = Big::new(x, bits);
        let step = x.abs().scaled(-(bits as i64) / 3);
        let [low, value, high] = [x.sub(&step), x.clone(), x.add(&step)].map(|x| f(&x));
        let (up, down) = (high.sub(&value).div(&step), value.sub(&low).div(&step));
        let difference = up.sub(&down);
        let kink = !difference.is_zero() && difference.exponent() > up.exponent().max(down.exponent()) - 40;
        let slope = up.add(&down).times(0.5);
        Around { value, slope, bend: difference.div(&step), kink }
    }

    /// With as many digits as it takes, beginning with so many.
    fn settled(f: Exact<'_>, x: f64, first_bits: usize) -> Around {
        let mut bits = first_bits;
        let mut around = Around::of(f, x, bits);
        loop {
            bits *= 2;
            let better = Around::of(f, x, bits);
            let settled = |a: &Big, b: &Big| {
                b.is_nan() || a.is_zero() && b.is_zero() || a.sub(b).exponent() < b.exponent() - 70
            };
            if bits > 12_000
                || settled(&around.value, &better.value)
                    && (better.kink || settled(&around.slope, &better.slope))
            {
                return better;
            }
            around = better;
        }
    }
}

/// Bits with which no term of a function is lost beside another: a term may be as small as the argument or its exponential.
fn first_bits(dtype: DType, arguments: &[f64]) -> usize {
    let (digits, low, _) = format(dtype);
    let most = (digits - low) as f64;
    let lost = |x: &f64| {
        let exponent = if *x == 0.0 { 0.0 } else { x.abs().log2().abs() };
        let exponential = if x.abs() > 3.0 { 1.5 * x * x } else { 0.0 };
        exponent.max(exponential).min(most)
    };
    384 + (3.5 * arguments.iter().map(lost).fold(0.0, f64::max)) as usize
}

/// `|x derivative / value|`.
fn condition(x: f64, derivative: &Big, value: &Big) -> f64 {
    if value.is_zero() || derivative.is_zero() { 0.0 } else { derivative.times(x).div(value).abs().to_f64() }
}

/// How much a result may be wrong.
#[derive(Clone, Copy)]
struct Limit {
    ulps: f64,
    condition: f64,
}

impl Limit {
    fn of(device: &Device, dtype: DType, op: Option<UnaryOp>, condition: f64) -> Limit {
        let cuda = matches!(device.kind(), ::device::DeviceKind::Cuda(_));
        // Documented for erfcf, erfc, powf and pow; others are at most 2.
        let ulps = match (op, dtype) {
            (Some(UnaryOp::GeluErf), DType::F64) if cuda => 2.0 + 5.0,
            (Some(UnaryOp::GeluErf), _) if cuda => 2.0 + 4.0,
            (Some(UnaryOp::PowScalar(_)), DType::F32) => 4.0,
            _ => 2.0,
        };
        Limit { ulps, condition }
    }
}

/// Collects what is wrong by more than it may be.
struct Findings {
    place: String,
    dtype: DType,
    wrong: Vec<String>,
    worst: f64,
}

impl Findings {
    fn new(place: String, dtype: DType) -> Findings {
        Findings { place, dtype, wrong: Vec::new(), worst: 0.0 }
    }

    /// Compares a result with the exact one; `term` is a term that it may be wrong by 2 ulp of.
    fn check(&mut self, what: &str, at: &[f64], got: f64, exact: &Big, limit: Limit, term: Option<&Big>) {
        let (digits, low, high) = format(self.dtype);
        let ulp_of = |x: &Big| x.of(1.0).scaled(x.exponent().clamp(low, high) - digits + 1);
        if exact.is_nan() {
            if !got.is_nan() {
                self.wrong.push(format!("{what} at {at:?}: {got:e}, not NaN"));
            }
            return;
        }
        let mut allowed = ulp_of(exact).times(limit.ulps + 0.5 * limit.condition.min(1e300));
        // Where terms cancel to less than half of the largest.
        if let Some(term) = term.filter(|term| exact.abs().less(&term.abs().times(0.5))) {
            let other = ulp_of(term).times(2.0);
            allowed = if allowed.less(&other) { other } else { allowed };
        }
        let largest = exact.of(2.0).sub(&exact.of(1.0).scaled(1 - digits)).scaled(high);
        let error = if got.is_finite() {
            exact.of(got).sub(exact).abs()
        } else if got.is_nan() {
            exact.of(f64::INFINITY)
        } else if (got > 0.0) == exact.is_positive() {
            // As far as the number after the largest one.
            let next = exact.of(1.0).scaled(high + 1);
            if exact.abs().less(&next) { next.sub(&exact.abs()) } else { exact.of(0.0) }
        } else {
            exact.of(f64::INFINITY)
        };
        // A finite result beside an overflow is as wrong as the largest number is far away.
        let error = if got.is_finite() && largest.less(&exact.abs()) {
            exact.of(got).abs().sub(&largest).abs()
        } else {
            error
        };
        let ratio = error.div(&allowed).to_f64();
        self.worst = self.worst.max(ratio);
        if ratio > 1.0 || ratio.is_nan() {
            let ulps = error.div(&ulp_of(exact)).to_f64();
            self.wrong.push(format!(
                "{what} at {at:?}: {got:e}, not {:e}: {ulps:.2} ulp, condition {:.2}",
                exact.to_f64(),
                limit.condition
            ));
        }
    }

    fn report(self, all: &mut Vec<String>) {
        if std::env::var_os("STREAMGRAD_PRECISION_VERBOSE").is_some() {
            println!("{} of {}: {:.3} of what is allowed", self.place, self.dtype, self.worst);
        }
        let count = self.wrong.len();
        if count > 0 {
            let some: Vec<String> = self.wrong.into_iter().take(3).collect();
            all.push(format!(
                "{} of {}: {count} wrong, such as\n    {}",
                self.place,
                self.dtype,
                some.join("\n    ")
            ));
        }
    }
}

/// An op on a variable.
type Run = fn(&Var) -> Result<Var>;

/// Gradients are computed for 1 and for other powers of two, whose products are exact.
fn factors(random: &mut Random, count: usize) -> Vec<f64> {
    (0..count).map(|_| [1.0, 1.0, -2.0, 0.5][(random.bits() % 4) as usize]).collect()
}

fn check_unary(
    device: &Device,
    (op, run): (UnaryOp, Option<Run>),
    dtype: DType,
    all: &mut Vec<String>,
) -> Result<()> {
    // Numbers that functions hold are of the type that is computed in; the exponent is not rounded.
    let held = |value: f64| if dtype == DType::F64 { value } else { f64::from(value as f32) };
    let exact_op = match op {
        UnaryOp::Elu(alpha) => UnaryOp::Elu(held(alpha)),
        UnaryOp::Softplus(beta, threshold) => UnaryOp::Softplus(held(beta), threshold),
        UnaryOp::AddScalar(value) => UnaryOp::AddScalar(held(value)),
        UnaryOp::MulScalar(value) => UnaryOp::MulScalar(held(value)),
        op => op,
    };
    let place = format!("{op:?}{}", if run.is_some() { "" } else { " (kernel)" });
    let mut random = Random::of(&place, dtype);
    let numbers: Vec<f64> = (0..points()).map(|_| random.number(dtype)).collect();
    let (x, numbers) = elements(&numbers, dtype, device)?;
    let (g, factors) = elements(&factors(&mut random, numbers.len()), dtype, device)?;
    let (value, gradient) = match run {
        Some(run) => {
            let leaf = Var::leaf(x);
            let y = run(&leaf)?;
            let gradients = y.mul(&Var::constant(g))?.sum_all()?.backward()?;
            (y.value().clone(), gradients.get(&leaf))
        }
        None => {
            let value = x.unary(op)?;
            let gradient = match op.saves() {
                // A result that was saved is rounded.
                Some(Saves::Result) | None => None,
                Some(Saves::Argument) => Some(grad::unary(&x, op, &g)?),
            };
            (value, gradient)
        }
    };
    let values = numbers_of(&value)?;
    let slopes = gradient.as_ref().map(numbers_of).transpose()?;
    let mut findings = Findings::new(format!("{place} on {}", device.description()), dtype);
    let exact =
        |x: &Big| unary(exact_op, x).unwrap_or_else(|| panic!("{op:?} has no definition in reference.rs"));
    for (i, &x) in numbers.iter().enumerate() {
        let around = Around::settled(&exact, x, first_bits(dtype, &[x]));
        let limit = Limit::of(device, dtype, Some(op), condition(x, &around.slope, &around.value));
        findings.check("value", &[x], values[i], &around.value, limit, None);
        // What is made of a result that overflows does so, too.
        let is_lost = op.saves() == Some(Saves::Result) && values[i].is_infinite();
        let is_unknown = is_lost || around.kink || around.value.is_nan();
        let Some(slopes) = slopes.as_ref().filter(|_| !is_unknown) else { continue };
        let limit = Limit::of(device, dtype, Some(op), condition(x, &around.bend, &around.slope));
        let term = larger_term(exact_op, &Big::new(x, around.value.bits()), &around.slope)
            .map(|term| term.times(factors[i]));
        let slope = around.slope.times(factors[i]);
        findings.check("gradient", &[x, factors[i]], slopes[i], &slope, limit, term.as_ref());
    }
    findings.report(all);
    Ok(())
}

fn check_pairwise(
    device: &Device,
    op: &Pairwise,
    exact: Exact2<'_>,
    dtype: DType,
    all: &mut Vec<String>,
) -> Result<()> {
    let mut random = Random::of(op.name, dtype);
    let count = points();
    let first: Vec<f64> = (0..count).map(|_| random.number(dtype)).collect();
    let second: Vec<f64> = first
        .iter()
        .map(|x| match op.second {
            Some(second) => second(random.unit()),
            // Powers and products of numbers of any magnitude are hardly ever finite.
            None if random.bits().is_multiple_of(3) => {
                x * (1.0 + (random.unit() - 0.5) * 2_f64.powi(-((random.bits() % 20) as i32)))
            }
            None => random.number(dtype),
        })
        .collect();
    let first: Vec<f64> = if op.name == "pow" { first.iter().map(|x| x.abs()).collect() } else { first };
    let (x, first) = elements(&first, dtype, device)?;
    let y = Tensor::from_slice(&second, &[count], device)?.to_dtype(dtype)?;
    let second = numbers_of(&y)?;
    let second: Vec<f64> = second.iter().map(|y| if y.is_finite() { *y } else { 1.0 }).collect();
    let y = Tensor::from_slice(&second, &[count], device)?.to_dtype(dtype)?;
    let (x, y) = (Var::leaf(x), Var::leaf(y));
    let z = (op.run)(&x, &y)?;
    let gradients = z.sum_all()?.backward()?;
    let values = numbers_of(z.value())?;
    let slopes = [&x, &y].map(|leaf| gradients.get(leaf).map(|g| numbers_of(&g).unwrap()));
    let mut findings = Findings::new(format!("{} on {}", op.name, device.description()), dtype);
    for i in 0..count {
        let at = [first[i], second[i]];
        let of = |k: usize| {
            move |v: &Big| {
                let other = v.of(at[1 - k]);
                if k == 0 { exact(v, &other) } else { exact(&other, v) }
            }
        };
        let (of_x, of_y) = (of(0), of(1));
        // A second operand of 0 has no neighbours of its magnitude.
        let has_slopes = at[1] != 0.0;
        let bits = first_bits(dtype, &at);
        let around_x = Around::settled(&of_x, at[0], bits);
        let around_y = if has_slopes {
            Around::settled(&of_y, at[1], bits)
        } else {
            Around::settled(&of_x, at[0], bits)
        };
        let by_x = condition(at[0], &around_x.slope, &around_x.value);
        let by_y = if has_slopes { condition(at[1], &around_y.slope, &around_x.value) } else { 0.0 };
        let unknown = around_x.value.is_nan();
        let mut limit =
            Limit::of(device, dtype, (op.name == "pow").then_some(UnaryOp::PowScalar(0.0)), by_x + by_y);
        if op.name == "atan2" && dtype == DType::F32 {
            limit.ulps = 3.0;
        }
        if !(around_x.kink || unknown && op.name != "pow") {
            findings.check("value", &at, values[i], &around_x.value, limit, None);
        }
        for (k, around) in
            [&around_x, &around_y].into_iter().enumerate().filter(|(k, _)| *k == 0 || has_slopes)
        {
            let Some(slopes) = slopes[k].as_ref().filter(|_| !around.kink && !around.value.is_nan()) else {
                continue;
            };
            // The condition of the slope for the other operand, too, by its difference.
            let mixed = |v: &Big| {
                let f = |u: &Big| if k == 0 { exact(u, v) } else { exact(v, u) };
                let u = v.of(at[k]);
                let step = u.abs().scaled(-(v.bits() as i64) / 6);
                f(&u.add(&step)).sub(&f(&u.sub(&step))).div(&step.times(2.0))
            };
            let mut limit = limit;
            limit.condition = condition(at[k], &around.bend, &around.slope);
            if at[1 - k] != 0.0 {
                let cross = Around::of(&mixed, at[1 - k], 2 * bits);
                limit.condition += condition(at[1 - k], &cross.slope, &around.slope);
            }
            let term = op.term.map(|term| around.value.of(term));
            findings.check(
                ["gradient of the first", "gradient of the second"][k],
                &at,
                slopes[i],
                &around.slope,
                limit,
                term.as_ref(),
            );
        }
    }
    findings.report(all);
    Ok(())
}

/// Runs a check on the CPU and, where there is one, a CUDA device.
pub(crate) fn on_devices(check: impl Fn(&Device, DType, &mut Vec<String>) -> Result<()>) {
    let cuda = Device::cuda(0).ok();
    let mut wrong = Vec::new();
    for device in [Some(Device::cpu()), cuda].into_iter().flatten() {
        for dtype in DTYPES {
            check(&device, dtype, &mut wrong).unwrap();
        }
    }
    assert!(wrong.is_empty(), "STREAMGRAD_PRECISION_SEED={}\n{}", seed(), wrong.join("\n"));
}

#[test]
fn functions_of_one_element() {
    on_devices(|device, dtype, wrong| {
        UnaryOp::ALL.iter().try_for_each(|&op| check_unary(device, (op, None), dtype, wrong))
    });
}

#[test]
fn activations() {
    on_devices(|device, dtype, wrong| {
        ACTIVATIONS.iter().try_for_each(|&(op, run)| check_unary(device, (op, Some(run)), dtype, wrong))
    });
}

#[test]
fn functions_of_two_elements() {
    on_devices(|device, dtype, wrong| {
        BinaryOp::ALL.iter().try_for_each(|&op| {
            let run: fn(&Var, &Var) -> Result<Var> = match op {
                BinaryOp::Add => Var::add,
                BinaryOp::Sub => Var::sub,
                BinaryOp::Mul => Var::mul,
                BinaryOp::Div => Var::div,
                BinaryOp::Pow => Var::pow,
                BinaryOp::Fmod => Var::fmod,
                BinaryOp::Atan2 => Var::atan2,
                BinaryOp::Maximum => Var::maximum,
                BinaryOp::Minimum => Var::minimum,
                _ => panic!("{op:?} has no op on variables here"),
            };
            let exact = move |x: &Big, y: &Big| binary(op, x, y).unwrap();
            let pairwise =
                Pairwise { name: op.name(), run, exact: |x, _| x.clone(), second: None, term: None };
            check_pairwise(device, &pairwise, &exact, dtype, wrong)
        })
    });
}

#[test]
fn losses() {
    on_devices(|device, dtype, wrong| {
        LOSSES.iter().try_for_each(|loss| check_pairwise(device, loss, &loss.exact, dtype, wrong))
    });
}
