//! Ops of single elements: functions, arithmetic, comparisons, choices, conversions.

use streamgrad::Result;
use streamgrad::kernels::{BinaryOp, CompareOp};
use streamgrad::prelude::*;
use streamgrad::tensor::GeluKind;

use super::array::{Array, Operand, Random, Values, count, precision, round_to};
use super::num::Num;
use super::{Case, Want};

/// A function of one float, with the values that it is given.
type Function = (&'static str, fn(&Tensor) -> Result<Tensor>, fn(Num) -> Num, Values);

const FUNCTIONS: &[Function] = &[
    ("exp", Tensor::exp, Num::exp, Values::Special),
    ("log", Tensor::log, Num::ln, Values::Special),
    ("sqrt", Tensor::sqrt, Num::sqrt, Values::Special),
    ("rsqrt", Tensor::rsqrt, |x| x.with(1.0) / x.sqrt(), Values::Special),
    ("reciprocal", Tensor::reciprocal, |x| x.with(1.0) / x, Values::Special),
    ("sin", Tensor::sin, Num::sin, Values::Plain),
    ("cos", Tensor::cos, Num::cos, Values::Plain),
    ("tanh", Tensor::tanh, Num::tanh, Values::Special),
    ("sigmoid", Tensor::sigmoid, Num::sigmoid, Values::Special),
    ("relu", Tensor::relu, |x| x.max(x.with(0.0)), Values::Special),
    ("silu", Tensor::silu, |x| x * x.sigmoid(), Values::Special),
    ("erf", Tensor::erf, Num::erf, Values::Special),
    ("gelu", |x| x.gelu(GeluKind::Erf), gelu, Values::Special),
    ("gelu tanh", |x| x.gelu(GeluKind::Tanh), gelu_tanh, Values::Special),
];

fn gelu(x: Num) -> Num {
    let half_root = x.with(std::f64::consts::FRAC_1_SQRT_2).stored(x.precision);
    x * (x.with(0.5) * (x.with(1.0) + (x * half_root).erf()))
}

fn gelu_tanh(x: Num) -> Num {
    // x (1 + tanh u) / 2 is x sigmoid(2 u), which is right where the hyperbolic tangent is near -1, too.
    let [scale, cubic] =
        [(8.0 / std::f64::consts::PI).sqrt(), 0.044715].map(|c| x.with(c).stored(x.precision));
    x * (scale * (x + cubic * (x * x * x))).sigmoid()
}

fn sign(x: f64) -> f64 {
    if x.is_nan() {
        0.0
    } else if x == 0.0 {
        x
    } else {
        x.signum()
    }
}

/// A function of each element.
pub(crate) fn unary(random: &mut Random) -> Case {
    let shape = random.shape(0..=5);
    if random.once_in(2) {
        let (name, engine, naive, values) = random.pick(FUNCTIONS);
        let dtype = random.float();
        let values = if random.once_in(2) { values } else { Values::Positive };
        let x = Operand::random(random, &shape, dtype, values);
        let want = Want::each(dtype, &shape, |index| naive(x.array.num(index)));
        return Case::new(name, vec![x], want, move |x| engine(&x[0]));
    }
    let dtype = random.number();
    let float = dtype.is_float();
    let x = Operand::random(random, &shape, dtype, if float { Values::Special } else { Values::Plain });
    let c = if float { random.below(17) as f64 / 4.0 - 2.0 } else { random.below(4) as f64 };
    let higher = c + random.below(3) as f64;
    type Engine = Box<dyn Fn(&Tensor) -> Result<Tensor> + Send + Sync>;
    type Naive = Box<dyn Fn(Num) -> Num>;
    let (text, engine, naive): (String, Engine, Naive) = match random.below(if float { 11 } else { 7 }) {
        0 => ("neg".into(), Box::new(|x| x.neg()), Box::new(|x| -x)),
        1 => ("abs".into(), Box::new(|x| x.abs()), Box::new(Num::abs)),
        2 => ("sign".into(), Box::new(|x| x.sign()), Box::new(|x| x.with(sign(x.value)))),
        3 => ("square".into(), Box::new(|x| x.square()), Box::new(|x| x * x)),
        4 => {
            (format!("add_scalar {c}"), Box::new(move |x| x.add_scalar(c)), Box::new(move |x| x + x.with(c)))
        }
        5 => {
            (format!("mul_scalar {c}"), Box::new(move |x| x.mul_scalar(c)), Box::new(move |x| x * x.with(c)))
        }
        6 => (
            format!("clamp {c} {higher}"),
            Box::new(move |x| x.clamp(c, higher)),
            Box::new(move |x| x.max(x.with(c)).min(x.with(higher))),
        ),
        7 => {
            let p = random.pick(&[-2.0, -1.0, 1.0, 1.5, 2.0, 3.0, 0.25]);
            (
                format!("pow_scalar {p}"),
                Box::new(move |x| x.pow_scalar(p)),
                // Some exponents take products or quotients, which round no more often than a power may.
                Box::new(move |x| x.powf(p)),
            )
        }
        8 => (
            format!("leaky_relu {c}"),
            Box::new(move |x| Ok(Var::constant(x.clone()).leaky_relu(c)?.value().clone())),
            Box::new(move |x| if x.value > 0.0 { x } else { x * x.with(c) }),
        ),
        9 => {
            let (beta, threshold) = (0.5 + random.below(4) as f64 / 2.0, random.range(5, 20) as f64);
            let stored = precision(dtype);
            (
                format!("softplus {beta} {threshold}"),
                Box::new(move |x| Ok(Var::constant(x.clone()).softplus(beta, threshold)?.value().clone())),
                // Several commands, each of which stores its result.
                Box::new(move |x| {
                    let x = Num { precision: stored, ..x };
                    let scaled = x * x.with(beta);
                    if scaled.value > threshold + scaled.error {
                        return x;
                    }
                    let tail = (x.with(1.0) + (-scaled.abs()).exp().stored(stored)).ln();
                    (scaled.max(x.with(0.0)) + tail) * x.with(1.0 / beta).stored(stored)
                }),
            )
        }
        _ => (
            format!("add_scalar_ {c}"),
            Box::new(move |x| {
                let y = x.copy()?;
                y.add_scalar_(c)?;
                Ok(y)
            }),
            Box::new(move |x| x + x.with(c)),
        ),
    };
    let want = Want::each(dtype, &shape, |index| naive(x.array.num(index)));
    Case::new(text, vec![x], want, move |x| engine(&x[0]))
}

/// Two shapes that broadcast, and what they broadcast to.
pub(crate) fn broadcasting(random: &mut Random) -> [Vec<usize>; 3] {
    let shape = random.shape(0..=5);
    let mut part = || -> Vec<usize> {
        let from = if random.once_in(3) { random.below(shape.len() + 1) } else { 0 };
        shape[from..].iter().map(|&size| if random.once_in(4) { 1 } else { size }).collect()
    };
    let (a, b) = (part(), part());
    let rank = a.len().max(b.len());
    let size = |of: &[usize], axis: usize| (axis + of.len()).checked_sub(rank).map_or(1, |at| of[at]);
    let both = (0..rank).map(|axis| match (size(&a, axis), size(&b, axis)) {
        (1, size) | (size, 1) => size,
        (size, _) => size,
    });
    let both = both.collect();
    [a, b, both]
}

/// The type of results of operands of two types: floats above integers above truth values, the wider of a kind.
fn promoted(a: DType, b: DType) -> DType {
    const ORDER: [DType; 7] =
        [DType::Bool, DType::U8, DType::I64, DType::BF16, DType::F16, DType::F32, DType::F64];
    match (a, b) {
        (DType::BF16, DType::F16) | (DType::F16, DType::BF16) => DType::F32,
        _ => ORDER.into_iter().rev().find(|&dtype| dtype == a || dtype == b).unwrap_or(a),
    }
}

/// Types of two operands. Those with and without axes are of one type.
fn types(random: &mut Random, a: &[usize], b: &[usize], one: fn(&mut Random) -> DType) -> [DType; 2] {
    let first = one(random);
    if random.once_in(4) && a.is_empty() == b.is_empty() { [first, one(random)] } else { [first; 2] }
}

/// Arithmetic of two operands.
pub(crate) fn binary(random: &mut Random) -> Case {
    let [a, b, shape] = broadcasting(random);
    let [left, right] = types(random, &a, &b, Random::number);
    let dtype = promoted(left, right);
    let all = [BinaryOp::Add, BinaryOp::Sub, BinaryOp::Mul, BinaryOp::Maximum, BinaryOp::Minimum];
    let floats = [BinaryOp::Div, BinaryOp::Pow];
    let op = if dtype.is_float() && random.once_in(4) { random.pick(&floats) } else { random.pick(&all) };
    let values = match op {
        BinaryOp::Pow => Values::Positive,
        _ => random.pick(&[Values::Plain, Values::Special, Values::Equal]),
    };
    // Products of large integers would overflow f64.
    let values = if op == BinaryOp::Mul && dtype == DType::I64 { Values::Plain } else { values };
    let x = Operand::random(random, &a, left, values);
    let y = Operand::random(random, &b, right, values);
    let (l, r) = (x.array.to(dtype), y.array.to(dtype));
    let want = Want::each(dtype, &shape, |index| {
        let (l, r) = (l.like(l.broadcast_at(index)), r.like(r.broadcast_at(index)));
        match op {
            BinaryOp::Add => l + r,
            BinaryOp::Sub => l - r,
            BinaryOp::Mul => l * r,
            BinaryOp::Div => l / r,
            BinaryOp::Pow => l.powf(r.value),
            BinaryOp::Maximum => l.max(r),
            _ => l.min(r),
        }
    });
    Case::new(op.name(), vec![x, y], want, move |x| x[0].binary(op, &x[1]))
}

/// A part of a copy is changed in place.
pub(crate) fn in_place(random: &mut Random) -> Case {
    let shape = random.full_shape(1..=4);
    let dtype = random.number();
    let axis = random.below(shape.len());
    let start = random.below(shape[axis]);
    let len = random.range(1, shape[axis] - start);
    let mut part = shape.clone();
    part[axis] = len;
    let from = random.below(part.len() + 1);
    let x = Operand::random(random, &shape, dtype, Values::Plain);
    let y = Operand::random(random, &part[from..], dtype, Values::Plain);
    let op = random.below(4);
    let name = ["add_", "sub_", "mul_", "copy_"][op];
    let want = Want::each(dtype, &shape, |index| {
        let old = x.array.num(index);
        let Some(at) = index[axis].checked_sub(start).filter(|&at| at < len) else { return old };
        let mut index = index.to_vec();
        index[axis] = at;
        let other = old.with(y.array.broadcast_at(&index));
        [old + other, old - other, old * other, other][op]
    });
    Case::new(format!("{name} to {len} from {start} of axis {axis}"), vec![x, y], want, move |x| {
        let copy = x[0].copy()?;
        let part = copy.narrow(axis as isize, start, len)?;
        match op {
            0 => part.add_(&x[1])?,
            1 => part.sub_(&x[1])?,
            2 => part.mul_(&x[1])?,
            _ => part.copy_(&x[1])?,
        }
        Ok(copy)
    })
}

/// Comparisons of two operands.
pub(crate) fn compare(random: &mut Random) -> Case {
    let [a, b, shape] = broadcasting(random);
    let [left, right] = types(random, &a, &b, Random::any_dtype);
    let dtype = promoted(left, right);
    let values = random.pick(&[Values::Equal, Values::Special]);
    let x = Operand::random(random, &a, left, values);
    let y = Operand::random(random, &b, right, values);
    let ops = [CompareOp::Eq, CompareOp::Ne, CompareOp::Lt, CompareOp::Le, CompareOp::Gt, CompareOp::Ge];
    let op = random.pick(&ops);
    let (l, r) = (x.array.to(dtype), y.array.to(dtype));
    let want = Want::each(DType::Bool, &shape, |index| {
        let (a, b) = (l.broadcast_at(index), r.broadcast_at(index));
        let holds = match op {
            CompareOp::Eq => a == b,
            CompareOp::Ne => a != b,
            CompareOp::Lt => a < b,
            CompareOp::Le => a <= b,
            CompareOp::Gt => a > b,
            CompareOp::Ge => a >= b,
        };
        l.like(f64::from(u8::from(holds)))
    });
    Case::new(op.name(), vec![x, y], want, move |x| x[0].compare(op, &x[1]))
}

/// One of two operands by a third, and one value in the place of some elements.
pub(crate) fn choice(random: &mut Random) -> Case {
    let [a, b, shape] = broadcasting(random);
    let part: Vec<usize> = shape.iter().map(|&size| if random.once_in(4) { 1 } else { size }).collect();
    let [left, right] = types(random, &a, &b, Random::any_dtype);
    if random.once_in(3) && left.is_float() {
        let x = Operand::random(random, &shape, left, Values::Special);
        let mask = Operand::random(random, &part, DType::Bool, Values::Plain);
        let want = Want::each(left, &shape, |index| {
            let old = x.array.num(index);
            if mask.array.broadcast_at(index) != 0.0 { old.with(1.5) } else { old }
        });
        return Case::new("masked_fill 1.5", vec![x, mask], want, |x| {
            Ok(Var::constant(x[0].clone()).masked_fill(&x[1], 1.5)?.value().clone())
        });
    }
    let dtype = promoted(left, right);
    let cond = Operand::random(random, &part, DType::Bool, Values::Plain);
    let x = Operand::random(random, &a, left, Values::Special);
    let y = Operand::random(random, &b, right, Values::Special);
    let (l, r) = (x.array.to(dtype), y.array.to(dtype));
    let want = Want::each(dtype, &shape, |index| {
        let from = if cond.array.broadcast_at(index) != 0.0 { &l } else { &r };
        from.like(from.broadcast_at(index))
    });
    Case::new("where_cond", vec![cond, x, y], want, |x| Tensor::where_cond(&x[0], &x[1], &x[2]))
}

/// Another element type.
pub(crate) fn cast(random: &mut Random) -> Case {
    let shape = random.shape(0..=5);
    let (from, to) = (random.any_dtype(), random.any_dtype());
    let mut array = Array::random(random, &shape, from, Values::Special);
    if from == DType::F64 && to.is_float() && count(&shape) > 0 {
        // A little above the middle of two neighbours: a rounding on the way, to F32, would hide that.
        let unit = precision(to).unit;
        array.values[0] = (1.0 + unit) * (1.0 + 2_f64.powi(-40));
    }
    let x = Operand::of(random, array);
    let want = Want::each(to, &shape, |index| {
        let value = x.array.at(index);
        let integer = |low: f64, high: f64| if value.is_nan() { 0.0 } else { value.trunc().clamp(low, high) };
        Num::exact(
            match to {
                DType::I64 => integer(i64::MIN as f64, i64::MAX as f64),
                DType::U8 if from.is_float() => integer(0.0, 255.0),
                _ => round_to(value, to),
            },
            precision(DType::F64),
        )
    });
    Case::new(format!("to_dtype {to}"), vec![x], want, move |x| x[0].to_dtype(to))
}
