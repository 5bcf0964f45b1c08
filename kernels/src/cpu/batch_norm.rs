//! Batch normalisation, a channel at a time. A channel's elements are summed image by image, in lanes.

use super::lanes::{Lanes, for_items, join_tree, map};
use crate::layout::{Dst, Src};
use crate::norms::Channels;
use crate::par::Workers;

/// Independent parts of a sum.
const LANES: usize = 32;

fn chunk(channels: &Channels) -> usize {
    ((1 << 13) / channels.each().max(1)).max(1)
}

// Sums of `N` terms over the elements `0..len`: element i goes to lane i % LANES, lanes are joined as a tree.
#[inline(always)]
fn sums<T: Lanes, const N: usize>(len: usize, term: impl Fn(usize) -> [T; N]) -> [T; N] {
    let mut lanes = [[T::ZERO; LANES]; N];
    let mut i = 0;
    while i + LANES <= len {
        for l in 0..LANES {
            add_terms(&mut lanes, l, term(i + l));
        }
        i += LANES;
    }
    for l in 0..len - i {
        add_terms(&mut lanes, l, term(i + l));
    }
    lanes.map(
        #[inline(always)]
        |lanes| join_tree(lanes, T::add),
    )
}

// Adds a term to lane `l` of each sum.
#[inline(always)]
fn add_terms<T: Lanes, const N: usize>(lanes: &mut [[T; LANES]; N], l: usize, terms: [T; N]) {
    for (lanes, term) in lanes.iter_mut().zip(terms) {
        lanes[l] = lanes[l].add(term);
    }
}

// Sums over a channel; `term` gets where its elements in an image begin, and the element.
#[inline(always)]
fn channel_sums<T: Lanes, const N: usize>(
    channels: &Channels,
    channel: usize,
    term: impl Fn(usize) -> [T; N],
) -> [T; N] {
    let mut all = [T::ZERO; N];
    for image in 0..channels.images {
        let first = (image * channels.channels + channel) * channels.size;
        let part = sums(
            channels.size,
            #[inline(always)]
            |i| term(first + i),
        );
        for (all, part) in all.iter_mut().zip(part) {
            *all = all.add(part);
        }
    }
    all
}

/// Normalizes with the statistics that are given, or else with those of the images, which are then found.
///
/// # Safety
/// Images and vectors of `channels` can be read, outputs written, and nobody else uses them meanwhile.
pub(crate) unsafe fn forward<T: Lanes>(
    channels: &Channels,
    workers: &Workers,
    eps: f64,
    (x, out): (Src<T>, Dst<T>),
    [weight, bias]: [Option<Src<T>>; 2],
    given: Option<[Src<T>; 2]>,
    found: Option<[Dst<T>; 2]>,
) {
    let m = T::from_f64(channels.each() as f64);
    for_items(
        workers,
        (channels.channels, chunk(channels)),
        0,
        #[inline(always)]
        |channel, _: *mut T| {
            let c = channel as isize;
            // SAFETY: elements of `channel` only, which is one part's.
            unsafe {
                let x = x.at(0);
                let (mean, var) = if let Some([mean, var]) = given {
                    (*mean.at(c), *var.at(c))
                } else {
                    let [sum] = channel_sums(channels, channel, |i| [*x.add(i)]);
                    let mean = sum.div(m);
                    let [squares] = channel_sums(channels, channel, |i| {
                        let d = (*x.add(i)).sub(mean);
                        [d.mul(d)]
                    });
                    (mean, squares.div(m))
                };
                if let Some([to_mean, to_var]) = found {
                    (*to_mean.at(c), *to_var.at(c)) = (mean, var);
                }
                let scale = var.add(T::from_f64(eps)).sqrt().recip();
                let scale = weight.map_or(scale, |weight| scale.mul(*weight.at(c)));
                let shift = bias.map_or(T::ZERO, |bias| *bias.at(c));
                for image in 0..channels.images {
                    let first = (image * channels.channels + channel) * channels.size;
                    map(
                        channels.size,
                        out.at(first as isize),
                        [x.add(first)],
                        #[inline(always)]
                        |[x]| x.sub(mean).mul(scale).add(shift),
                    );
                }
            }
        },
    );
}

/// # Safety
/// As for [`forward`].
pub(crate) unsafe fn backward<T: Lanes>(
    channels: &Channels,
    workers: &Workers,
    (eps, training): (f64, bool),
    [x, g]: [Src<T>; 2],
    [mean, var]: [Src<T>; 2],
    weight: Option<Src<T>>,
    [grad, grad_weight, grad_bias]: [Dst<T>; 3],
) {
    let m = T::from_f64(channels.each() as f64);
    for_items(
        workers,
        (channels.channels, chunk(channels)),
        0,
        #[inline(always)]
        |channel, _: *mut T| {
            let c = channel as isize;
            // SAFETY: elements of `channel` only, which is one part's.
            unsafe {
                let (x, g) = (x.at(0), g.at(0));
                let centre = *mean.at(c);
                let inverse = (*var.at(c)).add(T::from_f64(eps)).sqrt().recip();
                let [sum, with_x] = channel_sums(channels, channel, |i| {
                    let g = *g.add(i);
                    [g, g.mul((*x.add(i)).sub(centre).mul(inverse))]
                });
                *grad_bias.at(c) = sum;
                *grad_weight.at(c) = with_x;
                let scale = weight.map_or(inverse, |weight| inverse.mul(*weight.at(c)));
                let (sum, with_x) = if training { (sum.div(m), with_x.div(m)) } else { (T::ZERO, T::ZERO) };
                for image in 0..channels.images {
                    let first = (image * channels.channels + channel) * channels.size;
                    map(
                        channels.size,
                        grad.at(first as isize),
                        [x.add(first), g.add(first)],
                        #[inline(always)]
                        |[x, g]| {
                            let x = x.sub(centre).mul(inverse);
                            scale.mul(g.sub(sum).sub(x.mul(with_x)))
                        },
                    );
                }
            }
        },
    );
}
