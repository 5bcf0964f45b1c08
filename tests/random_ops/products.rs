//! Sums of products: matrices, convolutions, means over windows, attention.

use streamgrad::ops::{AttentionOptions, RotaryPairs};
use streamgrad::prelude::*;
use streamgrad::{AvgPool, ConvOptions, MaxPool};

use super::array::{Array, Operand, Random, Values, count, indices, precision};
use super::num::{Num, sum};
use super::reductions::soft;
use super::{Case, Want, of_vars};

/// The element of `x` at a place that may lie outside of it, where it is zero.
fn pixel(x: &Array, index: &[usize; 2], place: [isize; 2]) -> Option<Num> {
    let [h, w] = [x.shape[2] as isize, x.shape[3] as isize];
    let inside = (0..h).contains(&place[0]) && (0..w).contains(&place[1]);
    inside.then(|| x.num(&[index[0], index[1], place[0] as usize, place[1] as usize]))
}

/// Products of vectors, matrices and stacks of matrices.
pub(crate) fn matmul(random: &mut Random) -> Case {
    let dtype = random.float();
    let mut size = || if random.once_in(12) { random.range(60, 150) } else { random.size() };
    let (m, k, n) = (size(), size(), size());
    let mut batch = random.full_shape(0..=2);
    // No more than some ten thousand products.
    while count(&batch) * m * k * n > 100_000 && batch.pop().is_some() {}
    let mut part = || -> Vec<usize> {
        let from = if random.once_in(2) { random.below(batch.len() + 1) } else { 0 };
        batch[from..].iter().map(|&size| if random.once_in(5) { 1 } else { size }).collect()
    };
    let (mut a, mut b) = (part(), part());
    let rank = a.len().max(b.len());
    let size_at = |of: &[usize], axis: usize| (axis + of.len()).checked_sub(rank).map_or(1, |at| of[at]);
    let mut shape: Vec<usize> = (0..rank).map(|axis| size_at(&a, axis).max(size_at(&b, axis))).collect();
    let vectors = [random.once_in(8), random.once_in(8)];
    if vectors[0] {
        a = vec![k]
    } else {
        a.extend([m, k])
    }
    if vectors[1] {
        b = vec![k]
    } else {
        b.extend([k, n])
    }
    // A vector has no leading axes.
    let lead = |of: &[usize], vector: bool| if vector { Vec::new() } else { of[..of.len() - 2].to_vec() };
    if vectors[0] || vectors[1] {
        shape = match vectors {
            [true, true] => Vec::new(),
            [true, false] => lead(&b, false),
            _ => lead(&a, false),
        };
    }
    let lead = shape.len();
    if !vectors[0] {
        shape.push(m);
    }
    if !vectors[1] {
        shape.push(n);
    }
    let x = Operand::random(random, &a, dtype, Values::Plain);
    let y = Operand::random(random, &b, dtype, Values::Plain);
    let zero = x.array.like(0.0);
    let want = Want::each(dtype, &shape, |index| {
        let own = |of: &Array| -> Vec<usize> {
            let axes = of.rank().saturating_sub(2);
            let leading = index[lead - axes.min(lead)..lead].iter().zip(&of.shape[..axes]);
            leading.map(|(&i, &size)| if size == 1 { 0 } else { i }).collect()
        };
        let (mut left, mut right) = (own(&x.array), own(&y.array));
        let (row, column) = (left.len(), right.len());
        if !vectors[0] {
            left.extend([index[lead], 0])
        } else {
            left.push(0)
        }
        if !vectors[1] {
            right.extend([0, index[index.len() - 1]])
        } else {
            right.push(0)
        }
        let terms: Vec<Num> = (0..k)
            .map(|i| {
                left[row + usize::from(!vectors[0])] = i;
                right[column] = i;
                x.array.num(&left) * y.array.num(&right)
            })
            .collect();
        sum(&terms, zero)
    });
    Case::new("matmul", vec![x, y], want, |x| x[0].matmul(&x[1]))
}

/// An affine map of rows.
pub(crate) fn linear(random: &mut Random) -> Case {
    let dtype = random.float();
    let lead = random.shape(0..=3);
    let (k, n) = (random.size(), random.size());
    let k = if count(&lead) > 500 { k.min(8) } else { k };
    let mut shape = lead.clone();
    shape.push(k);
    let x = Operand::random(random, &shape, dtype, Values::Plain);
    let weight = Operand::random(random, &[n, k], dtype, Values::Plain);
    let bias = random.once_in(2).then(|| Operand::random(random, &[n], dtype, Values::Plain));
    *shape.last_mut().unwrap() = n;
    let zero = x.array.like(0.0);
    let want = Want::each(dtype, &shape, |index| {
        let (row, at) = (&index[..lead.len()], index[lead.len()]);
        let term = |i| x.array.num(&[row, &[i]].concat()) * weight.array.num(&[at, i]);
        let mut terms: Vec<Num> = (0..k).map(term).collect();
        terms.extend(bias.iter().map(|bias| bias.array.num(&[at])));
        sum(&terms, zero)
    });
    let operands = [Some(x), Some(weight), bias].into_iter().flatten().collect();
    Case::new("linear", operands, want, |x| x[0].linear(&x[1], x.get(2)))
}

struct Convolution {
    options: ConvOptions,
    kernel: [usize; 2],
    /// Of images and of results, for one group.
    channels: [usize; 2],
    image: [usize; 2],
    n: usize,
}

impl Convolution {
    fn random(random: &mut Random) -> Convolution {
        let mut pair = |low: usize, high: usize| {
            let first = random.range(low, high);
            [first, if random.once_in(3) { random.range(low, high) } else { first }]
        };
        let (kernel, stride, padding, dilation) = (pair(1, 4), pair(1, 3), pair(0, 2), pair(1, 2));
        let mut image = pair(1, 9);
        let large = random.once_in(12);
        let groups = if random.once_in(3) { random.range(2, 6) } else { 1 };
        // Each with one channel: code of its own.
        let depthwise = groups > 1 && random.once_in(2);
        let mut channels = || match (depthwise, large && groups == 1) {
            (true, _) => 1,
            (_, true) => random.range(8, 20),
            _ => random.range(1, 4),
        };
        let channels = [channels(), if depthwise { random.range(1, 2) } else { channels() }];
        for axis in 0..2 {
            let extent = dilation[axis] * (kernel[axis] - 1) + 1;
            image[axis] = image[axis].max(extent.saturating_sub(2 * padding[axis])).max(1);
        }
        let options = ConvOptions { stride, padding, dilation, groups };
        Convolution { options, kernel, channels, image, n: random.range(1, 3) }
    }

    fn places(&self) -> [usize; 2] {
        let ConvOptions { stride, padding, dilation, .. } = self.options;
        let extent = |axis| dilation[axis] * (self.kernel[axis] - 1) + 1;
        [0, 1].map(|axis| (self.image[axis] + 2 * padding[axis] - extent(axis)) / stride[axis] + 1)
    }

    /// Where filter element `tap` of place `at` lies in the image.
    fn seen(&self, at: [usize; 2], tap: [usize; 2]) -> [isize; 2] {
        let ConvOptions { stride, padding, dilation, .. } = self.options;
        [0, 1].map(|axis| {
            (at[axis] * stride[axis] + tap[axis] * dilation[axis]) as isize - padding[axis] as isize
        })
    }
}

/// Convolutions, with groups.
pub(crate) fn conv2d(random: &mut Random) -> Case {
    let conv = Convolution::random(random);
    let ([c, f], groups, dtype) = (conv.channels, conv.options.groups, random.float());
    let places = conv.places();
    let x =
        Operand::random(random, &[conv.n, c * groups, conv.image[0], conv.image[1]], dtype, Values::Plain);
    let weight =
        Operand::random(random, &[f * groups, c, conv.kernel[0], conv.kernel[1]], dtype, Values::Plain);
    let bias = random.once_in(2).then(|| Operand::random(random, &[f * groups], dtype, Values::Plain));
    let zero = x.array.like(0.0);
    let want = Want::each(dtype, &[conv.n, f * groups, places[0], places[1]], |index| {
        let &[image, filter, i, j] = index else { return zero };
        let mut terms: Vec<Num> = bias.iter().map(|bias| bias.array.num(&[filter])).collect();
        for tap in indices(&[c, conv.kernel[0], conv.kernel[1]]) {
            let seen = conv.seen([i, j], [tap[1], tap[2]]);
            if let Some(x) = pixel(&x.array, &[image, filter / f * c + tap[0]], seen) {
                terms.push(x * weight.array.num(&[filter, tap[0], tap[1], tap[2]]));
            }
        }
        sum(&terms, zero)
    });
    let operands = [Some(x), Some(weight), bias].into_iter().flatten().collect();
    let options = conv.options;
    Case::new(format!("conv2d {options:?}"), operands, want, move |x| x[0].conv2d(&x[1], x.get(2), &options))
}

/// Transposed convolutions: each element is added to all that its filter sees.
pub(crate) fn conv_transpose2d(random: &mut Random) -> Case {
    let mut conv = Convolution::random(random);
    let ([c, f], groups, dtype) = (conv.channels, conv.options.groups, random.float());
    let from = conv.places();
    let ConvOptions { stride, padding, dilation, .. } = conv.options;
    let more = [0, 1].map(|axis| random.below(stride[axis].max(dilation[axis])));
    for axis in 0..2 {
        let extent = dilation[axis] * (conv.kernel[axis] - 1) + 1;
        let whole = (from[axis] - 1) * stride[axis] + extent + more[axis];
        conv.image[axis] = whole.saturating_sub(2 * padding[axis]);
        if conv.image[axis] == 0 {
            return conv_transpose2d(random);
        }
    }
    let x = Operand::random(random, &[conv.n, c * groups, from[0], from[1]], dtype, Values::Plain);
    let weight =
        Operand::random(random, &[c * groups, f, conv.kernel[0], conv.kernel[1]], dtype, Values::Plain);
    let bias = random.once_in(2).then(|| Operand::random(random, &[f * groups], dtype, Values::Plain));
    let shape = [conv.n, f * groups, conv.image[0], conv.image[1]];
    let mut terms: Vec<Vec<Num>> = vec![Vec::new(); count(&shape)];
    for index in indices(&x.array.shape) {
        let (image, channel) = (index[0], index[1]);
        for tap in indices(&[f, conv.kernel[0], conv.kernel[1]]) {
            let [i, j] = conv.seen([index[2], index[3]], [tap[1], tap[2]]);
            if (0..shape[2] as isize).contains(&i) && (0..shape[3] as isize).contains(&j) {
                let plane = image * shape[1] + channel / c * f + tap[0];
                let to = (plane * shape[2] + i as usize) * shape[3] + j as usize;
                terms[to].push(x.array.num(&index) * weight.array.num(&[channel, tap[0], tap[1], tap[2]]));
            }
        }
    }
    let zero = x.array.like(0.0);
    let mut at = 0;
    let want = Want::each(dtype, &shape, |index| {
        terms[at].extend(bias.iter().map(|bias| bias.array.num(&[index[1]])));
        at += 1;
        sum(&terms[at - 1], zero)
    });
    let operands = [Some(x), Some(weight), bias].into_iter().flatten().collect();
    let options = conv.options;
    Case::new(format!("conv_transpose2d {options:?} output_padding {more:?}"), operands, want, move |x| {
        x[0].conv_transpose2d(&x[1], x.get(2), more, &options)
    })
}

/// The largest element, or the mean, at each place of a window; the means of ranges.
pub(crate) fn pool(random: &mut Random) -> Case {
    let conv = Convolution::random(random);
    let (kernel, stride, ceil_mode) = (conv.kernel, conv.options.stride, random.once_in(2));
    let padding = [0, 1].map(|axis| conv.options.padding[axis].min(kernel[axis] / 2));
    let largest = random.once_in(2);
    let dilation = if largest { conv.options.dilation } else { [1; 2] };
    let extent = [0, 1].map(|axis| dilation[axis] * (kernel[axis] - 1) + 1);
    let image = [0, 1].map(|axis| conv.image[axis].max(extent[axis]));
    let places = [0, 1].map(|axis| {
        let rest = image[axis] + 2 * padding[axis] - extent[axis];
        let places = rest / stride[axis] + 1;
        // The last place begins inside the image or its first padding.
        let more =
            ceil_mode && rest % stride[axis] > 0 && places * stride[axis] < image[axis] + padding[axis];
        places + usize::from(more)
    });
    let dtype = random.float();
    let shape = [conv.n, conv.channels[0], image[0], image[1]];
    let values = if largest { random.pick(&[Values::Special, Values::Equal]) } else { Values::Plain };
    let x = Operand::random(random, &shape, dtype, values);
    let zero = x.array.like(0.0);
    if random.once_in(4) && !largest {
        let size = [random.range(1, 6), random.range(1, 6)];
        let want = Want::each(dtype, &[shape[0], shape[1], size[0], size[1]], |index| {
            let range = |axis: usize| {
                let (at, n, of) = (index[2 + axis], image[axis], size[axis]);
                at * n / of..((at + 1) * n).div_ceil(of)
            };
            let rows = range(0);
            let terms: Vec<Num> = rows
                .flat_map(|i| range(1).map(move |j| (i, j)))
                .map(|(i, j)| x.array.num(&[index[0], index[1], i, j]))
                .collect();
            sum(&terms, zero) / zero.with(terms.len() as f64)
        });
        return Case::new(format!("adaptive_avg_pool2d {size:?}"), vec![x], want, move |x| {
            x[0].adaptive_avg_pool2d(size)
        });
    }
    let (count_include_pad, divisor) =
        (random.once_in(2), random.once_in(4).then(|| random.range(1, 9) as u32));
    let want = Want::each(dtype, &[shape[0], shape[1], places[0], places[1]], |index| {
        let start = [0, 1].map(|axis| (index[2 + axis] * stride[axis]) as isize - padding[axis] as isize);
        let taps = indices(&kernel).collect::<Vec<_>>();
        let seen = taps.iter().filter_map(|tap| {
            let place = [0, 1].map(|axis| start[axis] + (tap[axis] * dilation[axis]) as isize);
            pixel(&x.array, &[index[0], index[1]], place)
        });
        let seen: Vec<Num> = seen.collect();
        if largest {
            return super::num::largest(&seen, zero);
        }
        // What lies in the padding counts, but not what is behind it.
        let padded = |axis: usize| {
            (image[axis] + padding[axis]).min((start[axis] + kernel[axis] as isize) as usize) as isize
                - start[axis]
        };
        let elements = match (divisor, count_include_pad) {
            (Some(divisor), _) => f64::from(divisor),
            (None, true) => (padded(0) * padded(1)) as f64,
            (None, false) => seen.len() as f64,
        };
        sum(&seen, zero) / zero.with(elements)
    });
    if largest {
        let pool = MaxPool { kernel, stride, padding, dilation, ceil_mode };
        return Case::new(format!("{pool:?}"), vec![x], want, move |x| Ok(x[0].max_pool2d(&pool)?.0));
    }
    let pool = AvgPool { kernel, stride, padding, ceil_mode, count_include_pad, divisor };
    Case::new(format!("{pool:?}"), vec![x], want, move |x| x[0].avg_pool2d(&pool))
}

/// Attention, with masks.
pub(crate) fn attention(random: &mut Random) -> Case {
    let dtype = random.float();
    let lead = random.full_shape(0..=2);
    let lead: Vec<usize> = lead.iter().map(|&size| size.min(3)).collect();
    let long = random.once_in(10);
    let mut length = || if long { random.range(20, 90) } else { random.range(1, 9) };
    let (s, t) = (length(), length());
    let (d, e) = (random.range(1, 9), random.range(1, 9));
    let is_causal = random.once_in(3);
    let scale = random.once_in(2).then(|| 0.125 * random.range(1, 6) as f64);
    let shape = |tail: [usize; 2]| [&lead[..], &tail].concat();
    let q = Operand::random(random, &shape([s, d]), dtype, Values::Plain);
    let k = Operand::random(random, &shape([t, d]), dtype, Values::Plain);
    let v = Operand::random(random, &shape([t, e]), dtype, Values::Plain);
    let mask = (!is_causal && random.once_in(2)).then(|| {
        let mask = if random.once_in(2) { DType::Bool } else { dtype };
        let shape = if random.once_in(2) { vec![s, t] } else { shape([s, t]) };
        Operand::random(random, &shape, mask, Values::Plain)
    });
    let like = q.array.like(0.0);
    let factor = like.with(scale.unwrap_or(1.0 / (d as f64).sqrt())).stored(like.precision);
    // Tensor cores cut off what a sum has no bits for, and take F32 in two parts, of which the smallest products are left out.
    // Their powers of 2 are those of the hardware, and weights are rounded to the type of the values.
    let (lost, of_powers) = match dtype {
        DType::F64 => (0.0, 0.0),
        DType::F32 => (2_f64.powi(-19), 2_f64.powi(-21)),
        _ => (0.0, 2_f64.powi(-21)),
    };
    let times = |x: Num, y: Num| Num { error: (x * y).error + lost * (x * y).value.abs(), ..x * y };
    let total = |terms: &[Num]| {
        let exact = sum(terms, like);
        Num { error: 2.0 * exact.error, ..exact }
    };
    let weights = |row: &[usize]| -> Vec<Num> {
        let (lead, at) = (&row[..row.len() - 1], row[row.len() - 1]);
        let score = |key: usize| {
            let term =
                |i| times(q.array.num(&[lead, &[at, i]].concat()), k.array.num(&[lead, &[key, i]].concat()));
            let product = factor * total(&(0..d).map(term).collect::<Vec<_>>());
            match &mask {
                _ if is_causal && key > at => like.with(f64::NEG_INFINITY),
                None => product,
                Some(mask) => {
                    let place = mask.array.broadcast_at(&[lead, &[at, key]].concat());
                    match mask.array.dtype {
                        DType::Bool if place == 0.0 => like.with(f64::NEG_INFINITY),
                        DType::Bool => product,
                        _ => product + like.with(place),
                    }
                }
            }
        };
        let scores: Vec<Num> = (0..t).map(score).collect();
        if scores.iter().all(|score| score.value == f64::NEG_INFINITY) {
            return vec![like; t];
        }
        // Block by block, with a factor for what came before: twice an exponential for each.
        let given = |p: Num| Num { error: 2.0 * p.error + of_powers * p.value, ..p };
        soft(&scores, like, false).into_iter().map(|p| given(p).stored(precision(dtype))).collect()
    };
    let rows: Vec<Vec<Num>> = indices(&shape([s, 1])).map(|row| weights(&row[..row.len() - 1])).collect();
    let mut at = 0;
    let want = Want::each(dtype, &shape([s, e]), |index| {
        let (row, column) = (at / e, index[index.len() - 1]);
        at += 1;
        let lead = &index[..index.len() - 2];
        let term = |key: usize| times(rows[row][key], v.array.num(&[lead, &[key, column]].concat()));
        total(&(0..t).map(term).collect::<Vec<_>>())
    });
    let text = format!("scaled_dot_product_attention causal {is_causal} scale {scale:?}");
    let operands = [Some(q), Some(k), Some(v), mask].into_iter().flatten().collect();
    Case::new(text, operands, want, move |x| {
        let options = AttentionOptions {
            attn_mask: x.get(3).cloned(),
            dropout_p: 0.0,
            is_causal,
            scale,
            enable_gqa: false,
        };
        of_vars(x, |x| x[0].scaled_dot_product_attention(&x[1], &x[2], &options))
    })
}

/// Pairs of the last axis, turned.
pub(crate) fn rotary_embedding(random: &mut Random) -> Case {
    let dtype = random.float();
    let lead = random.full_shape(1..=3);
    let half = random.range(1, 5);
    let s = lead[lead.len() - 1];
    let shape = [&lead[..], &[2 * half]].concat();
    let x = Operand::random(random, &shape, dtype, Values::Plain);
    let cos = Operand::random(random, &[s, half], dtype, Values::Plain);
    let sin = Operand::random(random, &[s, half], dtype, Values::Plain);
    let pairs = random.pick(&[RotaryPairs::Halves, RotaryPairs::Neighbours]);
    let want = Want::each(dtype, &shape, |index| {
        let (row, at) = (&index[..lead.len()], index[lead.len()]);
        let (pair, second) = match pairs {
            RotaryPairs::Halves => (at % half, at >= half),
            RotaryPairs::Neighbours => (at / 2, at % 2 == 1),
        };
        let places = match pairs {
            RotaryPairs::Halves => [pair, pair + half],
            RotaryPairs::Neighbours => [2 * pair, 2 * pair + 1],
        };
        let [a, b] = places.map(|place| x.array.num(&[row, &[place]].concat()));
        let angle = [row[row.len() - 1], pair];
        let (cos, sin) = (cos.array.num(&angle), sin.array.num(&angle));
        if second { b * cos + a * sin } else { a * cos - b * sin }
    });
    Case::new(format!("rotary_embedding {pairs:?}"), vec![x, cos, sin], want, move |x| {
        of_vars(&x[..1], |v| v[0].rotary_embedding(&x[1], &x[2], pairs))
    })
}

/// Images in other sizes.
pub(crate) fn upsample(random: &mut Random) -> Case {
    let image = [random.range(1, 7), random.range(1, 7)];
    let size = [random.range(1, 12), random.range(1, 12)];
    let lead = [random.range(1, 3)];
    let bilinear = random.once_in(2);
    let dtype = if bilinear { random.float() } else { random.number() };
    let corners = random.once_in(2);
    let shape = [&lead[..], &image].concat();
    let x = Operand::random(random, &shape, dtype, Values::Plain);
    let stored = precision(dtype);
    let want = Want::each(dtype, &[&lead[..], &size].concat(), |index| {
        if !bilinear {
            // torch rounds the factor and its product.
            let place = |axis: usize| {
                let (at, n, of) = (index[1 + axis], image[axis], size[axis]);
                let place = match dtype {
                    DType::F64 => (at as f64 * (n as f64 / of as f64)) as usize,
                    _ => (at as f32 * (n as f32 / of as f32)) as usize,
                };
                if n == of { at } else { place.min(n - 1) }
            };
            return x.array.num(&[index[0], place(0), place(1)]);
        }
        // Along each axis in turn.
        let parts = |axis: usize| -> Vec<(usize, Num)> {
            let (at, n, of) = (index[1 + axis], image[axis], size[axis]);
            let like = Num::exact(1.0, stored);
            if n == of {
                return vec![(at, like)];
            }
            let place = match corners {
                true if of == 1 => 0.0,
                true => at as f64 * ((n - 1) as f64 / (of - 1) as f64),
                false => ((at as f64 + 0.5) * (n as f64 / of as f64) - 0.5).max(0.0),
            };
            let low = (place as usize).min(n - 1);
            let part = place - low as f64;
            let [less, more] = [1.0 - part, part].map(|part| like.with(part).stored(stored));
            vec![(low, less), ((low + 1).min(n - 1), more)]
        };
        let weighted = |parts: Vec<(usize, Num)>, value: &dyn Fn(usize) -> Num| match parts[..] {
            [(at, _)] => value(at),
            _ => sum(
                &parts.iter().map(|&(at, weight)| weight * value(at)).collect::<Vec<_>>(),
                Num::exact(0.0, stored),
            ),
        };
        let column = |j: usize| weighted(parts(0), &|i| Num::exact(x.array.at(&[index[0], i, j]), stored));
        weighted(parts(1), &column)
    });
    let text = if bilinear {
        format!("upsample_bilinear2d {size:?} {corners}")
    } else {
        format!("upsample_nearest2d {size:?}")
    };
    Case::new(text, vec![x], want, move |x| {
        of_vars(x, |x| match bilinear {
            true => x[0].upsample_bilinear2d(size, corners),
            false => x[0].upsample_nearest2d(size),
        })
    })
}
