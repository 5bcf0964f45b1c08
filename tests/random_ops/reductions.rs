//! Reductions, softmax, cumulative sums.

use streamgrad::prelude::*;

use super::array::{Array, Operand, Random, Values, indices, precision};
use super::num::{Num, deviations, largest, log_sum_exp, product_of, squares, sum};
use super::{Case, Want};

/// Some axes as an op is given them, and which ones they are; none for all of them.
pub(crate) fn axes(random: &mut Random, rank: usize) -> (Vec<isize>, Vec<usize>) {
    let chosen: Vec<usize> = random.order(rank).into_iter().filter(|_| random.clone().once_in(2)).collect();
    let chosen: Vec<usize> = if random.once_in(4) {
        Vec::new()
    } else {
        chosen.into_iter().take(random.range(1, rank.max(1))).collect()
    };
    let given = chosen.iter().map(|&axis| random.signed(axis, rank)).collect();
    let axes = if chosen.is_empty() { (0..rank).collect() } else { chosen };
    (given, axes)
}

/// `shape` with the axes at size 1, or without them.
fn reduced(shape: &[usize], axes: &[usize], keepdim: bool) -> Vec<usize> {
    let sizes = shape.iter().enumerate();
    let sizes = sizes.filter(|(axis, _)| keepdim || !axes.contains(axis));
    sizes.map(|(axis, &size)| if axes.contains(&axis) { 1 } else { size }).collect()
}

/// The elements that each result is made of, in row-major order of the results.
pub(crate) fn groups(x: &Array, axes: &[usize]) -> Vec<Vec<Num>> {
    let kept = reduced(&x.shape, axes, true);
    let mut groups = vec![Vec::new(); kept.iter().product()];
    for index in indices(&x.shape) {
        let of =
            index.iter().zip(&kept).fold(0, |flat, (&i, &size)| flat * size + if size == 1 { 0 } else { i });
        groups[of].push(x.num(&index));
    }
    groups
}

fn variance(values: &[Num], correction: f64, like: Num) -> Num {
    let count = values.len() as f64;
    if count <= correction {
        return like.with(f64::NAN);
    }
    let (_, from_mean) = deviations(values, like);
    squares(&from_mean, like) / like.with(count - correction)
}

/// Sums, products, means, variances, extremes and logarithms of sums over some axes.
pub(crate) fn reduce(random: &mut Random) -> Case {
    const NAMES: [&str; 8] = ["sum", "prod", "max", "min", "mean", "var", "std", "logsumexp"];
    let op = random.below(NAMES.len());
    let dtype = match op {
        0 | 1 => random.any_dtype(),
        2 | 3 => random.number(),
        _ => random.float(),
    };
    let shape = if op == 2 || op == 3 { random.full_shape(0..=5) } else { random.shape(0..=5) };
    let values = match op {
        1 if dtype.is_float() => Values::Positive,
        1 => Values::Equal,
        2 | 3 => random.pick(&[Values::Equal, Values::Special]),
        _ => Values::Plain,
    };
    let mut x = Operand::random(random, &shape, dtype, values);
    if op == 7 && random.once_in(4) && !x.array.values.is_empty() {
        let mut array = x.array.clone();
        let at = random.below(array.values.len());
        array.values[at] = random.pick(&[f64::NEG_INFINITY, f64::INFINITY, f64::NAN]);
        x = Operand::of(random, array);
    }
    let (given, axes) = axes(random, shape.len());
    let keepdim = random.once_in(2);
    let correction = random.below(3) as f64 / 2.0;
    let like = x.array.like(0.0);
    let result = if op < 2 && matches!(dtype, DType::Bool | DType::U8) { DType::I64 } else { dtype };
    let values = groups(&x.array, &axes).into_iter().map(|values| match op {
        0 => sum(&values, like),
        1 if result == DType::I64 => {
            like.with(values.iter().fold(1_i64, |product, x| product.wrapping_mul(x.value as i64)) as f64)
        }
        1 => product_of(&values, like.with(1.0)),
        2 => largest(&values, like),
        3 => -largest(&values.iter().map(|&x| -x).collect::<Vec<_>>(), like),
        4 => sum(&values, like) / like.with(values.len() as f64),
        5 => variance(&values, correction, like),
        // Two commands, of which the first stores its result.
        6 => variance(&values, correction, like).stored(precision(dtype)).sqrt(),
        _ => log_sum_exp(&values, like),
    });
    let want = Want::new(result, reduced(&shape, &axes, keepdim), values.collect());
    let text = format!("{} {given:?} keepdim {keepdim} correction {correction}", NAMES[op]);
    Case::new(text, vec![x], want, move |x| {
        let x = &x[0];
        match op {
            0 => x.sum(&given, keepdim),
            1 => x.prod(&given, keepdim),
            2 => x.max(&given, keepdim),
            3 => x.min(&given, keepdim),
            4 => x.mean(&given, keepdim),
            5 => x.var(&given, correction, keepdim),
            6 => Ok(Var::constant(x.clone()).std(&given, correction, keepdim)?.value().clone()),
            _ => x.logsumexp(&given, keepdim),
        }
    })
}

/// The first place of an extreme, where NaN is one.
pub(crate) fn arg_extreme(random: &mut Random) -> Case {
    let shape = random.full_shape(0..=4);
    let smallest = random.once_in(2);
    let dtype = if smallest { random.float() } else { random.number() };
    let values = random.pick(&[Values::Equal, Values::Special]);
    let x = Operand::random(random, &shape, dtype, values);
    let rank = shape.len().max(1);
    let axis = random.below(rank);
    let (given, keepdim) = (random.signed(axis, rank), random.once_in(2));
    let like = x.array.like(0.0);
    let first = |values: Vec<Num>| {
        let mut best = 0;
        for (at, x) in values.iter().enumerate() {
            let most = values[best].value;
            let better = if smallest { x.value < most } else { x.value > most };
            if better && !most.is_nan() || x.value.is_nan() && !most.is_nan() {
                best = at;
            }
        }
        like.with(best as f64)
    };
    let values = groups(&x.array, &[axis]).into_iter().map(first).collect();
    let want = Want::new(DType::I64, reduced(&shape, &[axis], keepdim), values);
    let name = if smallest { "argmin" } else { "argmax" };
    Case::new(format!("{name} {given} keepdim {keepdim}"), vec![x], want, move |x| match smallest {
        true => x[0].argmin(given, keepdim),
        false => x[0].argmax(given, keepdim),
    })
}

/// The sum over what would be broadcast.
pub(crate) fn sum_to(random: &mut Random) -> Case {
    let shape = random.shape(0..=4);
    let dtype = random.float();
    let x = Operand::random(random, &shape, dtype, Values::Plain);
    let from = random.below(shape.len() + 1);
    let mut axes: Vec<usize> = (0..from).collect();
    axes.extend((from..shape.len()).filter(|_| random.once_in(3)));
    let target = reduced(&shape, &axes, true)[from..].to_vec();
    let like = x.array.like(0.0);
    let values = groups(&x.array, &axes).iter().map(|values| sum(values, like)).collect();
    let want = Want::new(dtype, target.clone(), values);
    Case::new(format!("sum_to {target:?}"), vec![x], want, move |x| x[0].sum_to(&target))
}

/// What is made of each row along an axis, put back in its place.
fn along(x: &Array, axis: usize, dtype: DType, row: impl Fn(&[Num]) -> Vec<Num>) -> Want {
    if x.rank() == 0 {
        return Want::new(dtype, Vec::new(), row(&[x.num(&[])]));
    }
    let rows: Vec<Vec<Num>> = groups(x, &[axis]).iter().map(|values| row(values)).collect();
    let kept = reduced(&x.shape, &[axis], true);
    Want::each(dtype, &x.shape, |index| {
        let of = index.iter().zip(&kept).enumerate();
        let of = of.fold(0, |flat, (at, (&i, &size))| flat * size + if at == axis { 0 } else { i });
        rows[of][index[axis]]
    })
}

/// `e^x / Σ e^x` of a row, or its logarithm.
pub(crate) fn soft(values: &[Num], like: Num, logarithm: bool) -> Vec<Num> {
    let most = largest(values, like);
    let shifted: Vec<Num> = values.iter().map(|&x| x - most).collect();
    let powers: Vec<Num> = shifted.iter().map(|x| x.exp()).collect();
    let total = sum(&powers, like.with(0.0));
    match logarithm {
        false => powers.iter().map(|&power| power / total).collect(),
        // Either x - m - ln Σ or x - (m + ln Σ).
        true => {
            let whole = total.ln() + most;
            let rest = |(&x, &shifted): (&Num, &Num)| {
                let (a, b) = (x - whole, shifted - total.ln());
                if a.error > b.error { Num { error: a.error, ..b } } else { b }
            };
            values.iter().zip(&shifted).map(rest).collect()
        }
    }
}

/// Softmax and its logarithm.
pub(crate) fn softmax(random: &mut Random) -> Case {
    let shape = random.shape(0..=4);
    let dtype = random.float();
    let mut x = Operand::random(random, &shape, dtype, Values::Plain);
    if random.once_in(4) && !x.array.values.is_empty() {
        let mut array = x.array.clone();
        let at = random.below(array.values.len());
        array.values[at] = f64::NEG_INFINITY;
        x = Operand::of(random, array);
    }
    let rank = shape.len().max(1);
    let axis = random.below(rank);
    let (given, logarithm) = (random.signed(axis, rank), random.once_in(2));
    let like = x.array.like(0.0);
    let want = along(&x.array, axis, dtype, |values| soft(values, like, logarithm));
    let name = if logarithm { "log_softmax" } else { "softmax" };
    Case::new(format!("{name} {given}"), vec![x], want, move |x| match logarithm {
        true => x[0].log_softmax(given),
        false => x[0].softmax(given),
    })
}

/// The sums up to each place, or from it on.
pub(crate) fn cumsum(random: &mut Random) -> Case {
    let shape = random.shape(0..=4);
    let dtype = random.any_dtype();
    let x = Operand::random(random, &shape, dtype, Values::Plain);
    let rank = shape.len().max(1);
    let axis = random.below(rank);
    let (given, from_end) = (random.signed(axis, rank), random.once_in(2));
    let like = x.array.like(0.0);
    let result = if matches!(dtype, DType::Bool | DType::U8) { DType::I64 } else { dtype };
    let want = along(&x.array, axis, result, |values| {
        let part = |at| if from_end { &values[at..] } else { &values[..=at] };
        (0..values.len()).map(|at| sum(part(at), like)).collect()
    });
    let name = if from_end { "cumsum_from_end" } else { "cumsum" };
    Case::new(format!("{name} {given}"), vec![x], want, move |x| match from_end {
        true => x[0].cumsum_from_end(given),
        false => x[0].cumsum(given),
    })
}
