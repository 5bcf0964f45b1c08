//! Batch normalisation against its formulas.

use device::{Error, ErrorKind};

use super::*;
use crate::testing::{Array, bits, cpu, values, values_f32};

pub(crate) const SHAPES: &[[usize; 3]] =
    &[[4, 3, 50], [2, 1, 1], [5, 2, 1], [3, 4, 200], [1, 2, 33], [3, 2, 17_000], [2100, 5, 1]];

const EPS: f64 = 1e-3;

/// The value, mean, variance, and the gradients for the images, the scale and the shift.
fn plainly([n, c, size]: [usize; 3], x: &[f64], g: &[f64], weight: &[f64], bias: &[f64]) -> [Vec<f64>; 6] {
    let m = (n * size) as f64;
    let mut found: [Vec<f64>; 6] = [vec![0.0; x.len()], vec![], vec![], vec![0.0; x.len()], vec![], vec![]];
    for channel in 0..c {
        let elements: Vec<usize> =
            (0..n).flat_map(|i| (0..size).map(move |e| (i * c + channel) * size + e)).collect();
        let mean = elements.iter().map(|&e| x[e]).sum::<f64>() / m;
        let var = elements.iter().map(|&e| (x[e] - mean).powi(2)).sum::<f64>() / m;
        let inverse = 1.0 / (var + EPS).sqrt();
        let normal = |e: usize| (x[e] - mean) * inverse;
        let sum: f64 = elements.iter().map(|&e| g[e]).sum();
        let with_x: f64 = elements.iter().map(|&e| g[e] * normal(e)).sum();
        for &e in &elements {
            found[0][e] = normal(e) * weight[channel] + bias[channel];
            found[3][e] = weight[channel] * inverse * (g[e] - sum / m - normal(e) * with_x / m);
        }
        found[1].push(mean);
        found[2].push(var);
        found[4].push(with_x);
        found[5].push(sum);
    }
    found
}

#[test]
fn values_and_gradients_follow_the_formulas() {
    let stream = cpu(1).default_stream();
    for &[n, c, size] in SHAPES {
        let shape = [n, c, size];
        let all = n * c * size;
        let (x, g, weight, bias) = (values(1, all), values(2, all), values(3, c), values(4, c));
        let expected = plainly(shape, &x, &g, &weight, &bias);
        let vector = |values: &[f64]| Array::new(&stream, values, &[c]);
        let (x, g) = (Array::new(&stream, &x, &shape), Array::new(&stream, &g, &shape));
        let (weight, bias) = (vector(&weight), vector(&bias));
        let fresh = || Array::full(&stream, f64::NAN, &[c]);
        let (mean, var, grad_weight, grad_bias) = (fresh(), fresh(), fresh(), fresh());
        let (out, grad) = (Array::full(&stream, f64::NAN, &shape), Array::full(&stream, f64::NAN, &shape));
        let norm = ChannelNorm {
            mean: mean.view(),
            var: var.view(),
            weight: Some(weight.view()),
            bias: Some(bias.view()),
            eps: EPS,
            training: true,
            activation: Activation::None,
        };
        batch_norm(&stream, x.view(), norm, None, out.view()).expect("a launch");
        let grads = [grad.view(), grad_weight.view(), grad_bias.view()];
        batch_norm_grad(&stream, x.view(), g.view(), norm, None, grads).expect("a launch");
        let found = [&out, &mean, &var, &grad, &grad_weight, &grad_bias].map(Array::to_vec);
        for (part, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let near = |(f, e): (&f64, &f64)| (f - e).abs() < 1e-11 * e.abs().max(1.0);
            assert!(found.iter().zip(expected).all(near), "{shape:?} {part}: {found:?}, {expected:?}");
        }
    }
}

#[test]
fn given_statistics_are_read_and_the_sums_stay_out() {
    let stream = cpu(1).default_stream();
    let vector = |value: f64| Array::new(&stream, &[value], &[1]);
    let x = Array::new(&stream, &[1.0, 2.0, 3.0, 6.0], &[2, 1, 2]);
    let g = Array::new(&stream, &[1.0, -2.0, 3.0, 4.0], &[2, 1, 2]);
    let (mean, var, out, grad) = (
        vector(2.0),
        vector(0.25),
        Array::full(&stream, 0.0, &[2, 1, 2]),
        Array::full(&stream, 0.0, &[2, 1, 2]),
    );
    let norm = ChannelNorm {
        mean: mean.view(),
        var: var.view(),
        weight: None,
        bias: None,
        eps: 0.0,
        training: false,
        activation: Activation::None,
    };
    batch_norm(&stream, x.view(), norm, None, out.view()).expect("a launch");
    let (grad_weight, grad_bias) = (vector(0.0), vector(0.0));
    let grads = [grad.view(), grad_weight.view(), grad_bias.view()];
    batch_norm_grad(&stream, x.view(), g.view(), norm, None, grads).expect("a launch");
    assert_eq!(out.to_vec(), [-2.0, 0.0, 2.0, 8.0]);
    assert_eq!(grad.to_vec(), [2.0, -4.0, 6.0, 8.0]);
    assert_eq!((grad_weight.to_vec(), grad_bias.to_vec()), (vec![36.0], vec![6.0]));
    assert_eq!((mean.to_vec(), var.to_vec()), (vec![2.0], vec![0.25]));
}

#[test]
fn threads_do_not_show() {
    let shape = [8, 10, 300];
    let run = |threads: usize| {
        let stream = cpu(threads).default_stream();
        let x = Array::new(&stream, &values_f32(1, 24_000), &shape);
        let (mean, var) = (Array::full(&stream, 0_f32, &[10]), Array::full(&stream, 0_f32, &[10]));
        let out = Array::full(&stream, 0_f32, &shape);
        let norm = ChannelNorm {
            mean: mean.view(),
            var: var.view(),
            weight: None,
            bias: None,
            eps: 1e-5,
            training: true,
            activation: Activation::None,
        };
        batch_norm(&stream, x.view(), norm, None, out.view()).expect("a launch");
        [out.to_vec(), mean.to_vec(), var.to_vec()].map(|values| bits(&values))
    };
    assert_eq!(run(4), run(1));
}

#[test]
fn shapes_and_types_are_checked() {
    let stream = cpu(1).default_stream();
    let x = Array::full(&stream, 0_f32, &[2, 3, 4]);
    let (two, three, wide) = (
        Array::full(&stream, 0_f32, &[2]),
        Array::full(&stream, 0_f32, &[3]),
        Array::full(&stream, 0_f64, &[3]),
    );
    let out = Array::full(&stream, 0_f32, &[2, 3, 4]);
    let norm = |mean| ChannelNorm {
        mean,
        var: three.view(),
        weight: None,
        bias: None,
        eps: 0.0,
        training: false,
        activation: Activation::None,
    };
    let run = |mean| batch_norm(&stream, x.view(), norm(mean), None, out.view());
    assert!(run(three.view()).is_ok());
    assert!(matches!(run(two.view()).as_ref().map_err(Error::kind), Err(ErrorKind::ShapeMismatch { .. })));
    assert!(matches!(run(wide.view()).as_ref().map_err(Error::kind), Err(ErrorKind::DTypeMismatch { .. })));
}

#[test]
fn running_statistics_move_towards_those_of_a_batch() {
    let stream = cpu(1).default_stream();
    for momentum in [Some(0.25), None] {
        let vector = |values: &[f64]| Array::new(&stream, values, &[2]);
        let (mean, var) = (vector(&[1.0, 2.0]), vector(&[3.0, 4.0]));
        let batch = [vector(&[5.0, -2.0]), vector(&[2.0, 8.0])];
        let count = Array::full(&stream, 3_i64, &[]);
        let batch = batch.each_ref().map(Array::view);
        follow_statistics(&stream, [mean.view(), var.view()], count.view(), batch, 1.5, momentum)
            .expect("a launch");
        // Three batches and one more are a share of a quarter.
        assert_eq!((mean.to_vec(), var.to_vec()), (vec![2.0, 1.0], vec![3.0, 6.0]));
        assert_eq!(count.to_vec(), [4]);
    }
    let (long, short) = (Array::full(&stream, 0_f32, &[3]), Array::full(&stream, 0_f32, &[2]));
    let (count, views) = (Array::full(&stream, 0_i64, &[]), [long.view(), short.view()]);
    let error = follow_statistics(&stream, views, count.view(), views, 1.0, None).expect_err("two shapes");
    assert!(matches!(error.kind(), ErrorKind::ShapeMismatch { op: "follow_statistics", .. }), "{error}");
}
