//! Attention and its gradient.

use super::*;
use crate::{AttentionGrads, AttentionInput, AttentionKind, AttentionResult, attention, attention_grad};

/// Leading axes, queries, keys, width, width of values: below, at and beyond tiles.
const SHAPES: [(&[usize], [usize; 4]); 6] = [
    (&[], [1, 1, 1, 1]),
    (&[2, 3], [32, 32, 32, 64]),
    (&[2], [33, 70, 9, 65]),
    (&[1], [70, 20, 40, 3]),
    (&[2], [5, 3, 130, 7]),
    (&[3], [4, 100, 16, 16]),
];

#[derive(Clone, Copy, Debug)]
struct Options {
    causal: bool,
    masked: bool,
    transposed: bool,
}

const OPTIONS: [Options; 4] = [
    Options { causal: false, masked: false, transposed: false },
    Options { causal: true, masked: false, transposed: true },
    Options { causal: false, masked: true, transposed: true },
    Options { causal: true, masked: true, transposed: false },
];

/// Results of one run.
struct Results<T: Real> {
    /// out, dq, dk, dv
    arrays: [Array<T>; 4],
    log_sums: Array<T::Computed>,
}

fn run<T: Real>(
    stream: &Stream,
    (leading, [s, t, d, e]): (&[usize], [usize; 4]),
    options: Options,
) -> Result<Results<T>> {
    let shape = |last: &[usize]| leading.iter().chain(last).copied().collect::<Vec<_>>();
    let of = |seed, last: &[usize]| {
        let shape = shape(last);
        let elements: Vec<T> = values(seed, shape.iter().product()).into_iter().map(T::of).collect();
        let mut order: Vec<usize> = (0..shape.len()).collect();
        if options.transposed {
            order.swap(shape.len() - 2, shape.len() - 1);
        }
        Array::stored_as(stream, &elements, &shape, &order)
    };
    let (q, k, v, g) = (of(1, &[s, d]), of(2, &[t, d]), of(3, &[t, e]), of(4, &[s, e]));
    let hidden = |x: f64| T::of(if x > 0.6 { f64::NEG_INFINITY } else { x });
    let mask: Vec<T> = values(5, s * t).into_iter().map(hidden).collect();
    let mask = Array::new(stream, &mask, &[s, t])
        .with(|mask| mask.expand("test", &shape(&[s, t])).expect("axes in front"));
    let sums = || Array::full(stream, T::Computed::of(9.0), &shape(&[s]));
    let (out, log_sums, products) = (of(6, &[s, e]), sums(), sums());
    let (dq, dk, dv) = (of(7, &[s, d]), of(8, &[t, d]), of(9, &[t, e]));
    let mask = options.masked.then(|| mask.view());
    let input = AttentionInput { q: q.view(), k: k.view(), v: v.view(), mask };
    let result = AttentionResult { out: out.view(), log_sums: log_sums.view() };
    let kind = AttentionKind { causal: options.causal, scale: 0.7 };
    attention(stream, kind, input, result)?;
    let to = AttentionGrads { q: dq.view(), k: dk.view(), v: dv.view() };
    attention_grad(stream, kind, input, result, (g.view(), products.view()), to)?;
    Ok(Results { arrays: [out, dq, dk, dv], log_sums })
}

fn attention_of<T: Real>(tolerance: f64) {
    let Some(both) = both() else { return };
    for (shape, options) in SHAPES.into_iter().flat_map(|shape| OPTIONS.map(|options| (shape, options))) {
        both.close(tolerance, ("log_sums", T::DTYPE, shape, options), |stream| {
            Ok(run::<T>(stream, shape, options)?.log_sums)
        });
        let names = ["out", "dq", "dk", "dv"].map(|what| (what, T::DTYPE, shape, options));
        both.all_close(tolerance, names, |stream| Ok(run::<T>(stream, shape, options)?.arrays));
    }
}

#[test]
fn attention_and_gradients_of_f32() {
    attention_of::<f32>(2e-5);
}

#[test]
fn attention_and_gradients_of_f64() {
    attention_of::<f64>(1e-13);
}

/// The gradients depend on results that were rounded, perhaps to neighbours.
#[test]
fn attention_and_gradients_of_halves() {
    attention_of::<bf16>(f64::from(bf16::EPSILON));
    attention_of::<f16>(f64::from(f16::EPSILON));
}
