//! Attention and its gradient.

use super::*;
use crate::{
    AttentionGrads, AttentionInput, AttentionKind, AttentionResult, Dropout, RandomKey, attention,
    attention_grad, kept_weights,
};

/// Leading axes, queries, keys, width, width of values: below, at and beyond tiles.
const SHAPES: [(&[usize], [usize; 4]); 7] = [
    (&[], [1, 1, 1, 1]),
    (&[2, 3], [32, 32, 32, 64]),
    (&[2], [33, 70, 9, 65]),
    (&[1], [70, 20, 40, 3]),
    (&[2], [5, 3, 130, 7]),
    (&[3], [4, 100, 16, 16]),
    (&[2], [3, 0, 8, 8]),
];
/// The same for tensor cores.
const TILED_SHAPES: [(&[usize], [usize; 4]); 7] = [
    (&[1, 2], [65, 65, 32, 32]),
    (&[1, 1], [31, 130, 40, 80]),
    (&[1, 1], [65, 64, 256, 130]),
    (&[2], [1, 65, 300, 16]),
    // Several strips.
    (&[2, 4], [130, 136, 48, 64]),
    (&[4, 4], [70, 33, 128, 96]),
    (&[4, 4], [130, 1, 33, 33]),
];

#[derive(Clone, Copy, Debug)]
struct Options {
    causal: bool,
    masked: bool,
    scale: f64,
    dropout: Option<Dropout>,
    stored: Stored,
}

/// The order of the axes in memory.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stored {
    Dense,
    /// Columns of a matrix are contiguous.
    Transposed,
    /// The last leading axis, of heads, lies within the rows.
    Heads,
}

const PLAIN: Options =
    Options { causal: false, masked: false, scale: 0.7, dropout: None, stored: Stored::Dense };
const DROPOUT: Option<Dropout> = Some(Dropout { p: 0.3, key: RandomKey { seed: 3, op: 1 << 33 } });
const OPTIONS: [Options; 7] = [
    PLAIN,
    Options { causal: true, stored: Stored::Heads, ..PLAIN },
    Options { masked: true, stored: Stored::Transposed, ..PLAIN },
    Options { causal: true, masked: true, ..PLAIN },
    Options { scale: -0.7, ..PLAIN },
    Options { dropout: DROPOUT, ..PLAIN },
    Options { causal: true, masked: true, dropout: DROPOUT, stored: Stored::Heads, ..PLAIN },
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
        match options.stored {
            Stored::Transposed => order.swap(shape.len() - 2, shape.len() - 1),
            Stored::Heads if shape.len() > 2 => order.swap(shape.len() - 3, shape.len() - 2),
            Stored::Heads | Stored::Dense => {}
        }
        Array::stored_as(stream, &elements, &shape, &order)
    };
    let (q, k, v, g) = (of(1, &[s, d]), of(2, &[t, d]), of(3, &[t, e]), of(4, &[s, e]));
    let hidden = |x: f64| T::of(if x > 0.6 { f64::NEG_INFINITY } else { x });
    let rows = if options.stored == Stored::Heads { s.min(1) } else { s };
    let mask: Vec<T> = values(5, rows * t).into_iter().map(hidden).collect();
    let mask = Array::new(stream, &mask, &[rows, t])
        .with(|mask| mask.expand("test", &shape(&[s, t])).expect("axes in front"));
    let sums = || Array::full(stream, T::Computed::of(9.0), &shape(&[s]));
    let (out, log_sums, products) = (of(6, &[s, e]), sums(), sums());
    let (dq, dk, dv) = (of(7, &[s, d]), of(8, &[t, d]), of(9, &[t, e]));
    let mask = options.masked.then(|| mask.view());
    let input = AttentionInput { q: q.view(), k: k.view(), v: v.view(), mask };
    let result = AttentionResult { out: out.view(), log_sums: log_sums.view() };
    let kind = AttentionKind { causal: options.causal, scale: options.scale, dropout: options.dropout };
    attention(stream, kind, input, result)?;
    let to = AttentionGrads { q: dq.view(), k: dk.view(), v: dv.view() };
    attention_grad(stream, kind, input, result, (g.view(), products.view()), to)?;
    Ok(Results { arrays: [out, dq, dk, dv], log_sums })
}

fn attention_of<T: Real>(tolerance: f64, shapes: &[(&[usize], [usize; 4])]) {
    let Some(both) = both() else { return };
    for (shape, options) in shapes.iter().flat_map(|&shape| OPTIONS.map(|options| (shape, options))) {
        both.close(tolerance, ("log_sums", T::DTYPE, shape, options), |stream| {
            Ok(run::<T>(stream, shape, options)?.log_sums)
        });
        let names = ["out", "dq", "dk", "dv"].map(|what| (what, T::DTYPE, shape, options));
        both.all_close(tolerance, names, |stream| Ok(run::<T>(stream, shape, options)?.arrays));
    }
}

/// Tensor cores lose up to 2^-19 of a product: where queries see one key only, what is added up for it is the sum of such losses.
#[test]
fn attention_and_gradients_of_f32() {
    attention_of::<f32>(2e-5, &SHAPES);
    let (of_one_key, others): (Vec<_>, Vec<_>) =
        TILED_SHAPES.into_iter().partition(|(_, [_, keys, ..])| *keys == 1);
    attention_of::<f32>(2e-5, &others);
    attention_of::<f32>(4e-5, &of_one_key);
}

#[test]
fn attention_and_gradients_of_f64() {
    attention_of::<f64>(1e-13, &SHAPES);
}

/// Weights, and the gradients of scores, are rounded before they are factors: that is half an epsilon of the sum of the terms'
/// sizes, which comes to some eight here.
#[test]
fn attention_and_gradients_of_halves() {
    attention_of::<f16>(4.0 * f64::from(f16::EPSILON), &SHAPES);
    attention_of::<bf16>(4.0 * f64::from(bf16::EPSILON), &SHAPES);
    attention_of::<f16>(4.0 * f64::from(f16::EPSILON), &TILED_SHAPES);
    attention_of::<bf16>(4.0 * f64::from(bf16::EPSILON), &TILED_SHAPES);
}

/// Probabilities of which none counts, the least that does, those whose thresholds are subnormal and normal numbers of 16 bits, the
/// largest one that tensor cores take, a larger one, and all.
const PROBABILITIES: [f64; 7] = [1e-6, 1.0 / 32768.0, 0.01, 0.1, 31744.0 / 32768.0, 0.99, 1.0];

/// On tensor cores, by groups and not, and by plain kernels; in whole tiles, too.
#[test]
fn weights_are_left_out_by_every_probability() {
    fn check<T: Real>(tolerance: f64) {
        let Some(both) = both() else { return };
        for (p, width) in PROBABILITIES.into_iter().flat_map(|p| [(p, 16), (p, 64)]) {
            let options = Options {
                causal: true,
                dropout: Some(Dropout { p, key: RandomKey { seed: 7, op: 5 } }),
                ..PLAIN
            };
            let names = ["out", "dq", "dk", "dv"].map(|what| (what, T::DTYPE, p, width));
            // What is kept is multiplied with up to a hundred.
            both.all_close(tolerance / (1.0 - p.min(0.97)), names, |stream| {
                Ok(run::<T>(stream, (&[2], [140, 150, width, width]), options)?.arrays)
            });
        }
    }
    check::<f32>(2e-5);
    check::<f64>(1e-13);
    check::<bf16>(4.0 * f64::from(bf16::EPSILON));
}

#[test]
fn kept_weights_are_those_of_the_cpu() {
    fn check<T: Real>() {
        let Some(both) = both() else { return };
        for (shape, p) in
            [&[3, 5][..], &[2, 3, 40, 37], &[3, 16, 130], &[2, 0, 4]].into_iter().zip([0.1, 0.5, 0.99, 1.0])
        {
            both.same(("kept weights", shape, p, T::DTYPE), |stream| {
                let out = Array::full(stream, T::of(9.0), shape);
                let dropout = Dropout { p, key: RandomKey { seed: u64::MAX - 5, op: (1 << 40) + 3 } };
                kept_weights(stream, dropout, out.view()).map(|()| out)
            });
        }
    }
    check::<f32>();
    check::<f64>();
    check::<bf16>();
}

/// As its description ends: `.., 132 multiprocessors`.
fn multiprocessors(stream: &Stream) -> usize {
    let description = stream.device().description();
    let number = description.split(' ').rev().nth(1).and_then(|number| number.parse().ok());
    number.unwrap_or_else(|| panic!("{description}"))
}

/// Neither which other pairs there are, nor the cut that they lead to, of one strip or two, shows in a pair's bits; nor does a second run.
#[test]
fn pairs_are_alone() {
    fn check<T: Real>(stream: &Stream) {
        for options in [OPTIONS[1], Options { causal: true, dropout: DROPOUT, ..PLAIN }] {
            check_options::<T>(stream, [130, 97, 48, 64], options);
        }
        check_options::<T>(stream, [130, 70, 100, 128], OPTIONS[1]);
    }
    fn check_options<T: Real>(stream: &Stream, sizes: [usize; 4], options: Options) {
        let results =
            |leading: &[usize]| run::<T>(stream, (leading, sizes), options).expect("valid operands");
        let many = 2 * multiprocessors(stream);
        let (all, again, one) = (results(&[many]), results(&[many]), results(&[1]));
        for ((all, again), one) in all.arrays.iter().zip(&again.arrays).zip(&one.arrays) {
            let (all, one) = (all.to_vec(), one.to_vec());
            assert!(all.iter().zip(again.to_vec()).all(|(&all, again)| again.agrees(all, 0.0)));
            assert!(one.iter().zip(&all).all(|(one, &all)| one.agrees(all, 0.0)));
        }
    }
    let Some(both) = both() else { return };
    check::<f32>(&both.cuda);
    check::<bf16>(&both.cuda);
}

/// Weights that are all the same give means of values: these need more bits than TF32 keeps, and are rounded to the nearest.
#[test]
fn tf32_is_off_until_it_is_asked_for() {
    let Some(Both { cuda, .. }) = both() else { return };
    let unit = 1.0 / 1024.0;
    for (allowed, value, want) in [
        (None, 1.0 + 0.25 * unit, 1.0 + 0.25 * unit),
        (Some(true), 1.0 + 0.25 * unit, 1.0),
        (Some(true), 1.0 + 0.75 * unit, 1.0 + unit),
        (Some(false), 1.0 + 0.75 * unit, 1.0 + 0.75 * unit),
    ] {
        if let Some(allowed) = allowed {
            cuda.device().set_tf32(allowed);
        }
        let full = |value: f64| Array::full(&cuda, value as f32, &[64, 16]);
        let (zero, v, out) = (full(0.0), full(value), full(9.0));
        let log_sums = Array::full(&cuda, 9_f32, &[64]);
        let input = AttentionInput { q: zero.view(), k: zero.view(), v: v.view(), mask: None };
        let result = AttentionResult { out: out.view(), log_sums: log_sums.view() };
        attention(&cuda, AttentionKind { causal: false, scale: 1.0, dropout: None }, input, result)
            .expect("valid operands");
        assert!(out.to_vec().iter().all(|&got| f64::from(got) == want), "{allowed:?}, {value}");
    }
}

/// The mean of half ones and half zeros, where all scores are `score`, on both devices.
#[test]
fn weights_are_shares_however_large_the_scores_are() {
    fn check<T: Real>(stream: &Stream, score: f64, keys: usize) {
        let (queries, width) = (64, 16);
        let full = |value: f64, shape: &[usize]| Array::full(stream, T::of(value), shape);
        let (q, k) = (full(score / width as f64, &[queries, width]), full(1.0, &[keys, width]));
        let halves: Vec<T> = (0..keys * width)
            .map(|i| T::of(if i * 2 < keys * width || keys == 1 { 1.0 } else { 0.0 }))
            .collect();
        let (v, g) = (Array::new(stream, &halves, &[keys, width]), full(1.0, &[queries, width]));
        let sums = || Array::full(stream, T::Computed::of(9.0), &[queries]);
        let (out, log_sums, products) = (full(9.0, &[queries, width]), sums(), sums());
        let input = AttentionInput { q: q.view(), k: k.view(), v: v.view(), mask: None };
        let result = AttentionResult { out: out.view(), log_sums: log_sums.view() };
        let kind = AttentionKind { causal: false, scale: 1.0, dropout: None };
        attention(stream, kind, input, result).expect("valid operands");
        let [dq, dk, dv] = [queries, keys, keys].map(|rows| full(9.0, &[rows, width]));
        let to = AttentionGrads { q: dq.view(), k: dk.view(), v: dv.view() };
        attention_grad(stream, kind, input, result, (g.view(), products.view()), to).expect("valid operands");
        let mean = if keys == 1 { 1.0 } else { 0.5 };
        let agree = |got: Array<T>, want: f64, tolerance: f64| {
            let got = got.to_vec();
            assert!(
                got.iter().all(|got| got.agrees(T::of(want), tolerance)),
                "{score}: {:?}, not {want}",
                got[0]
            );
        };
        agree(out, mean, 1e-6);
        let want = T::Computed::of(score + (keys as f64).ln());
        assert!(log_sums.to_vec().iter().all(|got| got.agrees(want, 3e-7)), "{score}");
        agree(dv, queries as f64 / keys as f64, 1e-4);
    }
    let Some(both) = both() else { return };
    for stream in [&both.cpu, &both.cuda] {
        for (score, keys) in [(1000.0, 1024), (3.0 * 8_589_934_592.0, 1)] {
            check::<f32>(stream, score, keys);
            check::<bf16>(stream, score, keys);
        }
    }
}
