//! Batch normalisation, a channel at a time. A channel's elements are summed image by image.

use super::lanes::{Items, Lanes, map};
use super::normalize::{Block, load, square_of, sums, zip};
use super::{array, inlined};
use crate::layout::{Dst, Src};
use crate::norms::Channels;
use crate::par::Workers;

fn items<'a>(channels: &Channels, workers: &'a Workers) -> Items<'a> {
    Items { workers, len: channels.channels, chunk: ((1 << 13) / channels.each().max(1)).max(1), room: 0 }
}

/// Sums over a channel; `terms` as for [`sums`], of elements of all images.
#[inline(always)]
fn channel_sums<T: Lanes, const N: usize>(
    channels: &Channels,
    channel: usize,
    terms: impl Fn(usize, usize) -> [Block<T>; N],
) -> [T; N] {
    let mut all = [T::ZERO; N];
    if channels.size == 1 {
        for image in 0..channels.images {
            let part = terms(channels.start(image, channel), 1);
            all = std::array::from_fn(|k| all[k].add(part[k][0]));
        }
        return all;
    }
    for image in 0..channels.images {
        let first = channels.start(image, channel);
        let part = sums(channels.size, usize::MAX, inlined!(|i, count| terms(first + i, count)));
        for k in 0..N {
            all[k] = all[k].add(part[k]);
        }
    }
    all
}

/// Means and variances: those that are given, or where those that are found go.
type Statistics<T> = (Option<[Src<T>; 2]>, Option<[Dst<T>; 2]>);

/// Normalizes with the statistics that are given, or else with those of the images, which are then found.
pub(crate) unsafe fn forward<T: Lanes>(
    channels: &Channels,
    workers: &Workers,
    (eps, relu): (f64, bool),
    (x, out): (Src<T>, Dst<T>),
    [weight, bias]: [Option<Src<T>>; 2],
    (given, found): Statistics<T>,
) {
    let m = T::from_f64(channels.each() as f64);
    items(channels, workers).for_each(inlined!(|channel, _: *mut T| {
        let c = channel as isize;
        // SAFETY: `channel` is below the number of channels, and `channel_sums` and the loops below reach only its
        // elements. Each channel is one part's, so nobody else writes them.
        unsafe {
            let x = x.at(0);
            let (mean, var) = if let Some([mean, var]) = given {
                (*mean.at(c), *var.at(c))
            } else {
                let [sum] = channel_sums(channels, channel, inlined!(|i, n| [load(x.add(i), n)]));
                let mean = sum.div(m);
                let squares = inlined!(|i, n| [square_of(x.add(i), n, mean, T::ONE)]);
                let [squares] = channel_sums(channels, channel, squares);
                (mean, squares.div(m))
            };
            if let Some([to_mean, to_var]) = found {
                (*to_mean.at(c), *to_var.at(c)) = (mean, var);
            }
            let scale = var.add(T::from_f64(eps)).sqrt().recip();
            let scale = weight.map_or(scale, |weight| scale.mul(*weight.at(c)));
            let shift = bias.map_or(T::ZERO, |bias| *bias.at(c));
            for image in 0..channels.images {
                let first = channels.start(image, channel);
                let (from, to) = ([x.add(first)], out.at(first as isize));
                let value = inlined!(|x: T| x.sub(mean).mul(scale).add(shift));
                if relu {
                    map_pixels(channels.size, to, from, inlined!(|[x]| value(x).relu()));
                } else {
                    map_pixels(channels.size, to, from, inlined!(|[x]| value(x)));
                }
            }
        }
    }));
}

/// Of the normalised images or, with `relu`, of their positive part.
pub(crate) unsafe fn backward<T: Lanes>(
    channels: &Channels,
    workers: &Workers,
    (eps, training, relu): (f64, bool, bool),
    images: [Src<T>; 2],
    statistics: [Src<T>; 2],
    affine: [Option<Src<T>>; 2],
    grads: (Dst<T>, [Dst<T>; 2]),
) {
    let how = (eps, training);
    // SAFETY: the module's contract, for these parameters and operands, is passed on to `slopes`.
    unsafe {
        if relu {
            slopes::<T, true>(channels, workers, how, images, statistics, affine, grads);
        } else {
            slopes::<T, false>(channels, workers, how, images, statistics, affine, grads);
        }
    }
}

unsafe fn slopes<T: Lanes, const RELU: bool>(
    channels: &Channels,
    workers: &Workers,
    (eps, training): (f64, bool),
    [x, g]: [Src<T>; 2],
    [mean, var]: [Src<T>; 2],
    [weight, bias]: [Option<Src<T>>; 2],
    (grad, [grad_weight, grad_bias]): (Dst<T>, [Dst<T>; 2]),
) {
    let m = T::from_f64(channels.each() as f64);
    items(channels, workers).for_each(inlined!(|channel, _: *mut T| {
        let c = channel as isize;
        // SAFETY: `channel` is below the number of channels, and `channel_sums` and the loops below reach only its
        // elements. Each channel is one part's, so nobody else writes them.
        unsafe {
            let (x, g) = (x.at(0), g.at(0));
            let centre = *mean.at(c);
            let inverse = (*var.at(c)).add(T::from_f64(eps)).sqrt().recip();
            let scale = weight.map_or(inverse, |weight| inverse.mul(*weight.at(c)));
            let shift = bias.map_or(T::ZERO, |bias| *bias.at(c));
            let normal = inlined!(|x: T| x.sub(centre).mul(inverse));
            let through = inlined!(|x: T, g: T| {
                let stops = RELU && x.sub(centre).mul(scale).add(shift) <= T::ZERO;
                if stops { T::ZERO } else { g }
            });
            let terms = inlined!(|i: usize, n: usize| {
                let x = load(x.add(i), n);
                let g = zip(&x, &load(g.add(i), n), through);
                let mut with_x = zip(&g, &x, inlined!(|g, x| g.mul(normal(x))));
                with_x[n..].fill(T::ZERO);
                [g, with_x]
            });
            let [sum, with_x] = channel_sums(channels, channel, terms);
            *grad_bias.at(c) = sum;
            *grad_weight.at(c) = with_x;
            let (sum, with_x) = if training { (sum.div(m), with_x.div(m)) } else { (T::ZERO, T::ZERO) };
            for image in 0..channels.images {
                let first = channels.start(image, channel);
                let gradient = inlined!(|[x, g]: [T; 2]| {
                    scale.mul(through(x, g).sub(sum).sub(normal(x).mul(with_x)))
                });
                map_pixels(channels.size, grad.at(first as isize), [x.add(first), g.add(first)], gradient);
            }
        }
    }));
}

/// As [`map`], fast for the one pixel that a channel of vectors has.
///
/// # Safety
/// As for [`map`].
#[inline(always)]
unsafe fn map_pixels<T: Lanes, const N: usize>(
    len: usize,
    out: *mut T,
    inputs: [*const T; N],
    f: impl Fn([T; N]) -> T,
) {
    // SAFETY: the contract is the same.
    unsafe {
        if len == 1 {
            *out = f(array(inlined!(|k| *inputs[k])));
        } else {
            map(len, out, inputs, f);
        }
    }
}

/// Moves running means and variances towards those of a batch, and counts it.
pub(crate) unsafe fn follow<T: Lanes>(
    channels: usize,
    (unbiased, momentum): (f64, Option<f64>),
    running: [Dst<T>; 2],
    count: Dst<i64>,
    batch: [Src<T>; 2],
) {
    // SAFETY: by the module's contract `count` has one element and all other operands have `channels`.
    unsafe {
        let all = (*count.at(0)).wrapping_add(1);
        *count.at(0) = all;
        let share = T::from_f64(all as f64).recip();
        for c in 0..channels as isize {
            for (k, factor) in [T::ONE, T::from_f64(unbiased)].into_iter().enumerate() {
                let (to, new) = (running[k].at(c), (*batch[k].at(c)).mul(factor));
                *to = match momentum {
                    Some(momentum) => {
                        let kept = (*to).mul(T::from_f64(1.0 - momentum));
                        kept.add(new.mul(T::from_f64(momentum)))
                    }
                    None => (*to).add(new.sub(*to).mul(share)),
                };
            }
        }
    }
}
