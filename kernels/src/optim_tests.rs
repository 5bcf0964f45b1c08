#![allow(clippy::unwrap_used)]

use super::*;
use crate::testing::{Array, bits, cpu, values, values_f32};

const SGD: SgdStep =
    SgdStep { lr: 0.1, momentum: 0.9, dampening: 0.0, weight_decay: 0.0, nesterov: false, first: false };
const ADAM: AdamStep =
    AdamStep { step: 1, lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0, decoupled: false };

#[test]
fn sgd_follows_the_formula() {
    let n = 77;
    let (p0, g0, b0) = (values(1, n), values(2, n), values(3, n));
    for step in [
        SgdStep { momentum: 0.0, ..SGD },
        SgdStep { momentum: 0.0, weight_decay: 0.01, ..SGD },
        SGD,
        SgdStep { first: true, dampening: 0.5, ..SGD },
        SgdStep { dampening: 0.5, weight_decay: 0.01, ..SGD },
        SgdStep { nesterov: true, weight_decay: 0.01, ..SGD },
    ] {
        let dev = cpu(1);
        let s = dev.default_stream();
        let [p, g, b] = [&p0, &g0, &b0].map(|v| Array::new(&s, v, &[7, 11]));
        sgd_step(&s, p.view(), g.view(), Some(b.view()), step).unwrap();
        let (p, b) = (p.to_vec(), b.to_vec());
        assert_eq!(g.to_vec(), g0);
        for i in 0..n {
            let d = g0[i] + step.weight_decay * p0[i];
            let buffer = if step.first { d } else { step.momentum * b0[i] + (1.0 - step.dampening) * d };
            let (buffer, d) = match step.momentum {
                0.0 => (b0[i], d),
                momentum => (buffer, if step.nesterov { d + momentum * buffer } else { buffer }),
            };
            assert!(
                (p[i] - (p0[i] - step.lr * d)).abs() < 1e-15 && (b[i] - buffer).abs() < 1e-15,
                "{step:?}"
            );
        }
    }
}

#[test]
fn adam_follows_the_formula() {
    let n = 77;
    let (p0, g0, m0) = (values(1, n), values(2, n), values(3, n));
    let v0: Vec<f64> = values(4, n).into_iter().map(f64::abs).collect();
    for step in [
        ADAM,
        AdamStep { step: 10, weight_decay: 0.1, ..ADAM },
        AdamStep { step: 1000, weight_decay: 0.1, decoupled: true, ..ADAM },
        AdamStep { step: 3, beta1: 0.3, eps: 0.5, ..ADAM },
    ] {
        let dev = cpu(1);
        let s = dev.default_stream();
        let [p, g, m, v] = [&p0, &g0, &m0, &v0].map(|v| Array::new(&s, v, &[n]));
        adam_step(&s, p.view(), g.view(), m.view(), v.view(), step).unwrap();
        let (p, m, v) = (p.to_vec(), m.to_vec(), v.to_vec());
        assert_eq!(g.to_vec(), g0);
        for i in 0..n {
            let (start, g) = if step.decoupled {
                (p0[i] * (1.0 - step.lr * step.weight_decay), g0[i])
            } else {
                (p0[i], g0[i] + step.weight_decay * p0[i])
            };
            let mean = step.beta1 * m0[i] + (1.0 - step.beta1) * g;
            let square = step.beta2 * v0[i] + (1.0 - step.beta2) * g * g;
            let power = step.step as i32;
            let (m_hat, v_hat) =
                (mean / (1.0 - step.beta1.powi(power)), square / (1.0 - step.beta2.powi(power)));
            let want = start - step.lr * m_hat / (v_hat.sqrt() + step.eps);
            let close = |a: f64, b: f64| (a - b).abs() < 1e-14;
            assert!(
                close(p[i], want) && close(m[i], mean) && close(v[i], square),
                "{step:?}: {} {want}",
                p[i]
            );
        }
    }
}

#[test]
fn bits_do_not_depend_on_strides_or_threads() {
    let (rows, cols) = (700, 900);
    let n = rows * cols;
    let [p, g, b] = [1, 2, 3].map(|seed| values_f32(seed, n));
    let v: Vec<f32> = values_f32(4, n).into_iter().map(f32::abs).collect();
    let mut first = None;
    for threads in [1, 2] {
        let dev = cpu(threads);
        let s = dev.default_stream();
        for (p_order, g_order) in [([0, 1], [0, 1]), ([1, 0], [1, 0]), ([0, 1], [1, 0])] {
            let shape = [rows, cols];
            let param = Array::stored_as(&s, &p, &shape, &p_order);
            let grad = Array::stored_as(&s, &g, &shape, &g_order);
            let (buffer, square) =
                (Array::stored_as(&s, &b, &shape, &p_order), Array::stored_as(&s, &v, &shape, &p_order));
            sgd_step(
                &s,
                param.view(),
                grad.view(),
                Some(buffer.view()),
                SgdStep { weight_decay: 0.1, ..SGD },
            )
            .unwrap();
            adam_step(&s, param.view(), grad.view(), buffer.view(), square.view(), ADAM).unwrap();
            sgd_step(&s, param.view(), grad.view(), None, SgdStep { momentum: 0.0, ..SGD }).unwrap();
            let result = [&param, &buffer, &square].map(|a| bits(&a.to_vec()));
            let same = *first.get_or_insert_with(|| result.clone()) == result;
            assert!(same, "{p_order:?} {g_order:?}, {threads} threads");
        }
    }
}

#[test]
fn empty_parameters_scalars_and_wrong_operands() {
    let dev = cpu(1);
    let s = dev.default_stream();
    let none = Array::<f32>::new(&s, &[], &[0, 3]);
    sgd_step(&s, none.view(), none.view(), None, SgdStep { momentum: 0.0, ..SGD }).unwrap();
    let (p, g) = (Array::full(&s, 1.0_f32, &[]), Array::full(&s, 1.0_f32, &[]));
    sgd_step(&s, p.view(), g.view(), None, SgdStep { momentum: 0.0, lr: 0.5, ..SGD }).unwrap();
    assert_eq!(p.to_vec(), [0.5]);
    let error = sgd_step(&s, p.view(), g.view(), None, SGD).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { op: "sgd", argument: "buffer", .. }), "{error}");
    let error = sgd_step(&s, p.view(), none.view(), None, SGD).unwrap_err();
    assert!(matches!(error, Error::ShapeMismatch { op: "sgd", .. }), "{error}");
    let error =
        adam_step(&s, p.view(), g.view(), g.view(), g.view(), AdamStep { step: 0, ..ADAM }).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { op: "adam", argument: "step", .. }), "{error}");
}
