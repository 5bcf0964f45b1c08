#![allow(clippy::unwrap_used)]

use super::*;
use crate::testing::{Array, bits, cpu, values, values_f32};

const SGD: SgdStep =
    SgdStep { lr: 0.1, momentum: 0.9, dampening: 0.0, weight_decay: 0.0, nesterov: false, first: false };
const ADAM: AdamStep =
    AdamStep { step: 1, lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0, decoupled: false };

fn sgd_one(
    s: &Stream,
    param: View<'_>,
    grad: View<'_>,
    buffer: Option<View<'_>>,
    step: SgdStep,
) -> Result<()> {
    sgd_step(s, &[SgdUpdate { param, grad, buffer, step }])
}

fn adam_one(
    s: &Stream,
    param: View<'_>,
    grad: View<'_>,
    m: View<'_>,
    v: View<'_>,
    step: AdamStep,
) -> Result<()> {
    adam_step(s, &[AdamUpdate { param, grad, m, v, step }])
}

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
        sgd_one(&s, p.view(), g.view(), Some(b.view()), step).unwrap();
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
        adam_one(&s, p.view(), g.view(), m.view(), v.view(), step).unwrap();
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
            sgd_one(&s, param.view(), grad.view(), Some(buffer.view()), SgdStep { weight_decay: 0.1, ..SGD })
                .unwrap();
            adam_one(&s, param.view(), grad.view(), buffer.view(), square.view(), ADAM).unwrap();
            sgd_one(&s, param.view(), grad.view(), None, SgdStep { momentum: 0.0, ..SGD }).unwrap();
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
    sgd_one(&s, none.view(), none.view(), None, SgdStep { momentum: 0.0, ..SGD }).unwrap();
    let (p, g) = (Array::full(&s, 1.0_f32, &[]), Array::full(&s, 1.0_f32, &[]));
    sgd_one(&s, p.view(), g.view(), None, SgdStep { momentum: 0.0, lr: 0.5, ..SGD }).unwrap();
    assert_eq!(p.to_vec(), [0.5]);
    let error = sgd_one(&s, p.view(), g.view(), None, SGD).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { op: "sgd", argument: "buffer", .. }), "{error}");
    let error = sgd_one(&s, p.view(), none.view(), None, SGD).unwrap_err();
    assert!(matches!(error, Error::ShapeMismatch { op: "sgd", .. }), "{error}");
    let error =
        adam_one(&s, p.view(), g.view(), g.view(), g.view(), AdamStep { step: 0, ..ADAM }).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { op: "adam", argument: "step", .. }), "{error}");
}

/// A parameter with gradient and state.
struct Parameter<T>([Array<T>; 4]);

impl<T: device::Element> Parameter<T> {
    fn new(s: &Stream, len: usize, of: impl Fn(u64, usize) -> Vec<T>) -> Self {
        Parameter([1, 2, 3, 4].map(|seed| Array::new(s, &of(seed, len), &[len])))
    }

    fn sgd(&self, step: SgdStep) -> SgdUpdate<'_> {
        let [param, grad, buffer, _] = self.0.each_ref().map(Array::view);
        SgdUpdate { param, grad, buffer: Some(buffer), step }
    }

    fn adam(&self, step: u64) -> AdamUpdate<'_> {
        let [param, grad, m, v] = self.0.each_ref().map(Array::view);
        AdamUpdate { param, grad, m, v, step: AdamStep { step, ..ADAM } }
    }

    fn values(&self) -> [Vec<T>; 4] {
        self.0.each_ref().map(Array::to_vec)
    }
}

/// Parameters of several sizes and types in one command come out as one by one, in their order where one reads what
/// another wrote, and none is touched if one is wrong.
#[test]
fn one_command_for_all_parameters() {
    let squares = |seed, len| values(seed, len).into_iter().map(f64::abs).collect();
    let squares_f32 = |seed, len| values_f32(seed, len).into_iter().map(f32::abs).collect();
    for threads in [1, 2] {
        let dev = cpu(threads);
        let s = dev.default_stream();
        let make = || (Parameter::new(&s, 2_000_000, squares_f32), Parameter::new(&s, 6, squares));
        let ((large, small), (large_alone, small_alone)) = (make(), make());
        let launches = dev.sync_stats().launches;
        let reads_small = SgdUpdate { grad: small.0[0].view(), ..small.sgd(SGD) };
        let first = SgdStep { first: true, ..SGD };
        sgd_step(&s, &[large.sgd(SGD), small.sgd(first), reads_small]).unwrap();
        adam_step(&s, &[large.adam(1), small.adam(7)]).unwrap();
        assert_eq!(dev.sync_stats().launches - launches, 2);

        sgd_step(&s, &[large_alone.sgd(SGD)]).unwrap();
        sgd_step(&s, &[small_alone.sgd(first)]).unwrap();
        sgd_step(&s, &[SgdUpdate { grad: small_alone.0[0].view(), ..small_alone.sgd(SGD) }]).unwrap();
        adam_step(&s, &[large_alone.adam(1)]).unwrap();
        adam_step(&s, &[small_alone.adam(7)]).unwrap();
        assert!(large.values() == large_alone.values() && small.values() == small_alone.values());

        let wrong = SgdUpdate { buffer: None, ..small.sgd(SGD) };
        assert!(sgd_step(&s, &[large.sgd(SGD), wrong]).is_err());
        assert!(adam_step(&s, &[large.adam(2), small.adam(0)]).is_err());
        assert!(large.values() == large_alone.values());
        sgd_step(&s, &[]).unwrap();
    }
}
