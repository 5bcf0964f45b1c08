//! Normalizations, losses and embeddings.

use streamgrad::Reduction;
use streamgrad::ops::{BagMode, BagOptions, CrossEntropy};
use streamgrad::prelude::*;

use super::array::{Array, Operand, Random, Values, count, precision};
use super::num::{Num, deviations, squares, sum};
use super::reductions::{groups, soft};
use super::views::places;
use super::{Case, Want, of_vars};

/// `(x - mean) / sqrt(variance + eps)` of a row, or without the mean.
fn normalized(values: &[Num], eps: f64, centred: bool, like: Num) -> Vec<Num> {
    let shifted = if centred { deviations(values, like).1 } else { values.to_vec() };
    let variance = squares(&shifted, like) / like.with(values.len() as f64);
    let deviation = (variance + like.with(eps)).sqrt();
    // A factor for all of a row is one rounding more than a quotient.
    shifted.iter().map(|&x| x * (like.with(1.0) / deviation)).collect()
}

/// Layer norm, RMS norm and group norm, with and without parameters.
pub(crate) fn norm(random: &mut Random) -> Case {
    let dtype = random.float();
    let kind = random.below(3);
    let eps = random.pick(&[1e-5, 1e-3, 0.1]);
    // Channels and what lies within them, for groups; rows for the others.
    let (shape, inner, groups) = if kind == 2 {
        let (groups, each) = (random.range(1, 4), random.range(1, 3));
        let mut shape = random.full_shape(2..=4);
        shape.iter_mut().for_each(|size| *size = (*size).min(16));
        shape[1] = groups * each;
        (shape, 0, groups)
    } else {
        let shape = random.full_shape(1..=4);
        let inner = random.range(1, shape.len());
        (shape, inner, 1)
    };
    let weights = if kind == 2 { vec![shape[1]] } else { shape[shape.len() - inner..].to_vec() };
    let x = Operand::random(random, &shape, dtype, Values::Plain);
    let mut parameter =
        |wanted: bool| wanted.then(|| Operand::random(random, &weights, dtype, Values::Plain));
    let weight = parameter(true);
    let bias = parameter(kind != 1);
    let bare = random.once_in(3);
    let (weight, bias) = if bare { (None, None) } else { (weight, bias) };
    let like = x.array.like(0.0);
    let row = match kind {
        2 => count(&shape[1..]) / groups,
        _ => count(&weights),
    };
    let all: Vec<Num> = x.array.values.iter().map(|&value| like.with(value)).collect();
    let rows = all.chunks(row).flat_map(|values| normalized(values, eps, kind != 1, like));
    let rows: Vec<Num> = rows.collect();
    let mut at = 0;
    let want = Want::each(dtype, &shape, |index| {
        let own = if kind == 2 { &index[1..2] } else { &index[shape.len() - inner..] };
        let mut value = rows[at];
        at += 1;
        if let Some(weight) = &weight {
            value = value * weight.array.num(own);
        }
        match &bias {
            Some(bias) => value + bias.array.num(own),
            None => value,
        }
    });
    let name = ["layer_norm", "rms_norm", "group_norm"][kind];
    let text = format!("{name} {weights:?} eps {eps} groups {groups}");
    let operands = [Some(x), weight, bias].into_iter().flatten().collect();
    Case::new(text, operands, want, move |x| match kind {
        0 => x[0].layer_norm(&weights, x.get(1), x.get(2), eps),
        1 => x[0].rms_norm(&weights, x.get(1), Some(eps)),
        _ => x[0].group_norm(groups, x.get(1), x.get(2), eps),
    })
}

/// Batch norm with the batch's own statistics, or with given ones.
pub(crate) fn batch_norm(random: &mut Random) -> Case {
    let dtype = random.float();
    let mut shape = random.full_shape(2..=4);
    shape[0] = shape[0].max(2);
    let channels = [shape[1]];
    let (eps, given) = (random.pick(&[1e-5, 1e-3, 0.1]), random.once_in(2));
    let x = Operand::random(random, &shape, dtype, Values::Plain);
    let statistics = x.array.like(0.0).precision.unit;
    let computed = if statistics == precision(DType::F32).unit { DType::F32 } else { DType::F64 };
    let weight = Operand::random(random, &channels, dtype, Values::Plain);
    let bias = Operand::random(random, &channels, dtype, Values::Plain);
    let mean = Operand::random(random, &channels, computed, Values::Plain);
    let variance = Operand::random(random, &channels, computed, Values::Positive);
    let like = x.array.like(0.0);
    let axes: Vec<usize> = (0..shape.len()).filter(|&axis| axis != 1).collect();
    let rows: Vec<(Num, Num)> = groups(&x.array, &axes)
        .iter()
        .enumerate()
        .map(|(channel, values)| {
            if given {
                return (mean.array.num(&[channel]), variance.array.num(&[channel]));
            }
            let (mean, from_mean) = deviations(values, like);
            (mean, squares(&from_mean, like) / like.with(values.len() as f64))
        })
        .collect();
    let want = Want::each(dtype, &shape, |index| {
        let (mean, variance) = rows[index[1]];
        let scale = like.with(1.0) / (variance + like.with(eps)).sqrt() * weight.array.num(&index[1..2]);
        (x.array.num(index) - mean) * scale + bias.array.num(&index[1..2])
    });
    let text = format!("batch_norm eps {eps} given {given}");
    Case::new(text, vec![x, weight, bias, mean, variance], want, move |x| match given {
        true => x[0].batch_norm_with(&x[3], &x[4], Some(&x[1]), Some(&x[2]), eps),
        false => Ok(x[0].batch_norm(Some(&x[1]), Some(&x[2]), eps)?.0),
    })
}

/// One value for each row or element, or their sum or mean. Several commands may store what they give.
fn reduce(losses: Vec<Num>, reduction: Reduction, dtype: DType, shape: &[usize]) -> Want {
    let precision = precision(dtype);
    let zero = Num { value: 0.0, error: 0.0, precision };
    let total = || sum(&losses, zero);
    match reduction {
        Reduction::None => Want::new(dtype, shape.to_vec(), losses),
        Reduction::Sum => Want::new(dtype, Vec::new(), vec![total()]),
        Reduction::Mean => Want::new(dtype, Vec::new(), vec![total() / zero.with(losses.len() as f64)]),
    }
}

const REDUCTIONS: [Reduction; 3] = [Reduction::Mean, Reduction::Sum, Reduction::None];

/// Losses by element.
pub(crate) fn element_loss(random: &mut Random) -> Case {
    let (dtype, shape) = (random.float(), random.full_shape(0..=4));
    let (kind, reduction) = (random.below(4), random.pick(&REDUCTIONS));
    let beta = random.pick(&[0.5, 1.0, 2.0]);
    let x = Operand::random(random, &shape, dtype, Values::Plain);
    let t = Operand::random(random, &shape, dtype, Values::Positive);
    let stored = precision(dtype);
    let pairs = x.array.values.iter().zip(&t.array.values);
    let losses = pairs.map(|(&x, &t)| {
        let [x, t] = [x, t].map(|value| Num::exact(value, stored));
        let one = x.with(1.0);
        let distance = (x - t).abs();
        match kind {
            0 => distance * distance,
            1 => distance,
            2 => {
                let near = distance.min(x.with(beta)).max(x.with(0.0));
                near * (distance - near * x.with(0.5)) * x.with(1.0 / beta)
            }
            _ => x.max(x.with(0.0)) - x * t + (one + (-x.abs()).exp()).ln(),
        }
    });
    let want = reduce(losses.collect(), reduction, dtype, &shape);
    let name = ["mse_loss", "l1_loss", "smooth_l1_loss", "bce_with_logits"][kind];
    Case::new(format!("{name} {reduction:?} beta {beta}"), vec![x, t], want, move |x| {
        of_vars(x, |x| match kind {
            0 => x[0].mse_loss(&x[1], reduction),
            1 => x[0].l1_loss(&x[1], reduction),
            2 => x[0].smooth_l1_loss(&x[1], beta, reduction),
            _ => x[0].bce_with_logits(&x[1], reduction),
        })
    })
}

/// Losses by label, with torch's options.
pub(crate) fn label_loss(random: &mut Random) -> Case {
    let dtype = random.float();
    let (n, c) = (random.range(1, 9), random.range(1, 12));
    let shape = match random.below(3) {
        0 => vec![c],
        1 => vec![n, c],
        _ => vec![n, c, random.range(1, 5)],
    };
    let at = usize::from(shape.len() > 1);
    let mut of_labels = shape.clone();
    of_labels.remove(at);
    let (kind, reduction) = (random.below(3), random.pick(&REDUCTIONS));
    let x = Operand::random(random, &shape, dtype, Values::Plain);
    let mut labels = places(random, &of_labels, c).array;
    let smoothing = if random.once_in(2) { 0.125 } else { 0.0 };
    let weighted = kind == 2 && random.once_in(2);
    let weight = Operand::random(random, &[c], dtype, Values::Positive);
    let ignored = -100;
    if kind == 2 && random.once_in(2) {
        let at = random.below(labels.values.len());
        labels.values[at] = f64::from(ignored);
    }
    let labels = Operand::of(random, labels);
    let stored = precision(dtype);
    // The plain loss is one command; options take several, each of which stores its result.
    let like = if kind == 0 { x.array.like(0.0) } else { Num::exact(0.0, stored) };
    let rows: Vec<Vec<Num>> = groups_along(&x.array, at);
    let mut factors = Vec::new();
    let losses = rows.iter().zip(&labels.array.values).map(|(row, &label)| {
        if kind == 1 {
            return -row[label as usize];
        }
        let log = soft(row, x.array.like(0.0), true).into_iter();
        let log: Vec<Num> = log.map(|log| if kind == 0 { log } else { log.stored(stored) }).collect();
        if kind == 0 {
            return -log[label as usize];
        }
        let weight = |class: usize| like.with(if weighted { weight.array.at(&[class]) } else { 1.0 });
        if label < 0.0 {
            factors.push(like);
            return like;
        }
        let own = weight(label as usize);
        factors.push(own);
        let mut loss =
            -(Num { precision: stored, ..log[label as usize] } * (own * like.with(1.0 - smoothing)));
        if smoothing > 0.0 {
            let all = (0..c).map(|class| Num { precision: stored, ..log[class] } * weight(class));
            let share = like.with(smoothing / c as f64).stored(stored);
            loss = loss - sum(&all.collect::<Vec<_>>(), like) * share;
        }
        loss
    });
    let losses: Vec<Num> = losses.collect();
    let want = match (kind, reduction) {
        (2, Reduction::Mean) => {
            let mean = sum(&losses, like).stored(stored) / sum(&factors, like).stored(stored);
            Want::new(dtype, Vec::new(), vec![mean])
        }
        _ => {
            let losses = losses.iter().map(|loss| loss.stored(stored)).collect();
            reduce(losses, reduction, dtype, &of_labels)
        }
    };
    let name = ["cross_entropy", "nll_loss", "CrossEntropy"][kind];
    let text = format!("{name} {reduction:?} smoothing {smoothing} weighted {weighted}");
    Case::new(text, vec![x, labels, weight], want, move |x| {
        of_vars(&x[..1], |v| match kind {
            0 => v[0].cross_entropy(&x[1], reduction),
            1 => v[0].nll_loss(&x[1], reduction),
            _ => {
                let weight = weighted.then(|| x[2].clone());
                let options = CrossEntropy {
                    weight,
                    ignore_index: i64::from(ignored),
                    label_smoothing: smoothing,
                    reduction,
                };
                options.loss(&v[0], &x[1])
            }
        })
    })
}

/// The rows along an axis.
fn groups_along(x: &Array, axis: usize) -> Vec<Vec<Num>> {
    groups(x, &[axis])
}

/// Rows of a table by number.
pub(crate) fn embedding(random: &mut Random) -> Case {
    let (rows, width, dtype) = (random.range(1, 12), random.range(1, 9), random.float());
    let shape = random.shape(0..=3);
    let shape: Vec<usize> = shape.iter().map(|&size| size.min(20)).collect();
    let table = Operand::random(random, &[rows, width], dtype, Values::Special);
    let index = places(random, &shape, rows);
    let want = Want::each(dtype, &[&shape[..], &[width]].concat(), |at| {
        let (place, column) = (&at[..shape.len()], at[shape.len()]);
        table.array.num(&[index.array.at(place) as usize, column])
    });
    Case::new("embedding", vec![table, index], want, |x| of_vars(&x[..1], |v| v[0].embedding(&x[1], None)))
}

/// Sums and means of bags of rows of a table.
pub(crate) fn embedding_bag(random: &mut Random) -> Case {
    let (rows, width, dtype) = (random.range(1, 12), random.range(1, 9), random.float());
    let mean = random.once_in(2);
    let padding = random.once_in(3).then(|| random.below(rows));
    let with_offsets = random.once_in(2);
    let (shape, starts) = if with_offsets {
        let (n, bags) = (random.range(0, 20), random.range(1, 6));
        let mut starts: Vec<usize> =
            (0..bags).map(|bag| if bag == 0 { 0 } else { random.below(n + 1) }).collect();
        starts.sort_unstable();
        (vec![n], starts)
    } else {
        let (bags, n) = (random.range(1, 6), random.range(0, 6));
        (vec![bags, n], (0..bags).map(|bag| bag * n).collect())
    };
    let table = Operand::random(random, &[rows, width], dtype, Values::Plain);
    let index = places(random, &shape, rows);
    let offsets = Array::make(DType::I64, &[starts.len()], |at| starts[at[0]] as f64);
    let offsets = Operand::of(random, offsets);
    let weights = Operand::random(random, &shape, dtype, Values::Plain);
    let weighted = !mean && random.once_in(2);
    let like = table.array.like(0.0);
    let want = Want::each(dtype, &[starts.len(), width], |at| {
        let end = starts.get(at[0] + 1).copied().unwrap_or(count(&shape));
        let members = (starts[at[0]]..end).filter(|&i| Some(index.array.values[i] as usize) != padding);
        let terms = members.map(|i| {
            let element = table.array.num(&[index.array.values[i] as usize, at[1]]);
            if weighted { element * like.with(weights.array.values[i]) } else { element }
        });
        let terms: Vec<Num> = terms.collect();
        match terms.len() {
            0 => like,
            n if mean => sum(&terms, like) / like.with(n as f64),
            _ => sum(&terms, like),
        }
    });
    let text =
        format!("embedding_bag mean {mean} padding {padding:?} offsets {with_offsets} weighted {weighted}");
    Case::new(text, vec![table, index, offsets, weights], want, move |x| {
        let options = BagOptions {
            mode: if mean { BagMode::Mean } else { BagMode::Sum },
            padding_idx: padding.map(|row| row as isize),
            per_sample_weights: weighted.then(|| Var::constant(x[3].clone())),
        };
        of_vars(&x[..1], |v| v[0].embedding_bag(&x[1], with_offsets.then_some(&x[2]), &options))
    })
}
