#![allow(clippy::unwrap_used)]

use device::{DType, ErrorKind};

use super::*;
use crate::testing::{Array, bits, cpu, values, values_f32};

#[test]
fn cross_entropy_and_its_gradient_match_a_reference() {
    for (n, c) in [(1, 1), (7, 3), (256, 10), (33, 100), (5, 2000)] {
        let dev = cpu(1);
        let s = dev.default_stream();
        let (x, g) = (values(1, n * c), values(2, n));
        let labels: Vec<i64> = (0..n).map(|i| (i * 7 % c) as i64).collect();
        let probs: Vec<f64> = (0..n * c)
            .map(|k| x[k].exp() / x[k / c * c..][..c].iter().map(|x| x.exp()).sum::<f64>())
            .collect();
        for order in [[0, 1], [1, 0]] {
            let logits = Array::stored_as(&s, &x, &[n, c], &order);
            let classes = Array::new(&s, &labels, &[n]);
            let losses = Array::full(&s, f64::NAN, &[n]);
            let log_sums = Array::full(&s, f64::NAN, &[n]);
            cross_entropy(&s, logits.view(), classes.view(), losses.view(), log_sums.view()).unwrap();
            for (i, loss) in losses.to_vec().into_iter().enumerate() {
                assert!(
                    (loss + probs[i * c + labels[i] as usize].ln()).abs() < 1e-12,
                    "loss {i} of {n} x {c}"
                );
            }
            for (i, log_sum) in log_sums.to_vec().into_iter().enumerate() {
                let sum = x[i * c..][..c].iter().map(|x| x.exp()).sum::<f64>();
                assert!((log_sum - sum.ln()).abs() < 1e-12, "logarithm {i} of {n} x {c}");
            }
            for uniform in [false, true] {
                let g_array = Array::new(&s, &g, &[n]);
                let g_array = if uniform {
                    Array::new(&s, &g[..1], &[1]).with(|l| l.expand("test", &[n]).unwrap())
                } else {
                    g_array
                };
                let out = Array::stored_as(&s, &vec![f64::NAN; n * c], &[n, c], &order);
                let (x, sums) = (logits.view(), log_sums.view());
                cross_entropy_grad(&s, x, sums, classes.view(), g_array.view(), out.view()).unwrap();
                for (k, got) in out.to_vec().into_iter().enumerate() {
                    let target = if labels[k / c] as usize == k % c { 1.0 } else { 0.0 };
                    let want = (probs[k] - target) * if uniform { g[0] } else { g[k / c] };
                    assert!((got - want).abs() < 1e-12, "gradient {k} of {n} x {c}: {got}, not {want}");
                }
            }
        }
    }
}

#[test]
fn one_gradient_for_all_gives_the_bits_of_a_gradient_each() {
    let (n, c) = (4000, 100);
    let x = values_f32(1, n * c);
    let labels: Vec<i64> = (0..n).map(|i| (i % c) as i64).collect();
    let run = |threads: usize, uniform: bool| {
        let dev = cpu(threads);
        let s = dev.default_stream();
        let x = Array::new(&s, &x, &[n, c]);
        let labels = Array::new(&s, &labels, &[n]);
        let (losses, log_sums) = (Array::full(&s, 0.0_f32, &[n]), Array::full(&s, 0.0_f32, &[n]));
        cross_entropy(&s, x.view(), labels.view(), losses.view(), log_sums.view()).unwrap();
        let g = if uniform {
            Array::new(&s, &[0.3_f32], &[1]).with(|l| l.expand("test", &[n]).unwrap())
        } else {
            Array::full(&s, 0.3_f32, &[n])
        };
        let out = Array::full(&s, 0.0_f32, &[n, c]);
        cross_entropy_grad(&s, x.view(), log_sums.view(), labels.view(), g.view(), out.view()).unwrap();
        (bits(&losses.to_vec()), bits(&out.to_vec()))
    };
    let first = run(1, true);
    assert!(first == run(1, false) && first == run(2, true) && first == run(2, false));
}

#[test]
fn bad_labels_are_reported() {
    for bad in [10, -1, i64::MAX] {
        let dev = cpu(1);
        let s = dev.default_stream();
        let logits = Array::full(&s, 0.0_f32, &[3, 10]);
        let labels = Array::new(&s, &[0, bad, 9], &[3]);
        let (losses, log_sums) = (Array::full(&s, 0.0_f32, &[3]), Array::full(&s, 0.0_f32, &[3]));
        cross_entropy(&s, logits.view(), labels.view(), losses.view(), log_sums.view()).unwrap();
        let error = losses.try_vec().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Async { op: "cross_entropy", .. }), "{error}");
        assert!(
            error.to_string().contains(&format!("cross_entropy: index {bad} is out of range for size 10")),
            "{error}"
        );
        let g = Array::full(&s, 1.0_f32, &[3]);
        let x = logits.view();
        cross_entropy_grad(&s, x, log_sums.view(), labels.view(), g.view(), x).unwrap();
        assert!(matches!(
            logits.try_vec().unwrap_err().kind(),
            ErrorKind::Async { op: "cross_entropy_grad", .. }
        ));
    }
}

#[test]
fn empty_batches_and_wrong_operands() {
    let dev = cpu(1);
    let s = dev.default_stream();
    let (x, none) = (Array::<f32>::new(&s, &[], &[0, 10]), Array::<f32>::new(&s, &[], &[0]));
    let labels = Array::<i64>::new(&s, &[], &[0]);
    cross_entropy(&s, x.view(), labels.view(), none.view(), none.view()).unwrap();
    cross_entropy_grad(&s, x.view(), none.view(), labels.view(), none.view(), x.view()).unwrap();
    let x = Array::full(&s, 0.0_f32, &[2, 3]);
    let (losses, labels) = (Array::full(&s, 0.0_f32, &[2]), Array::full(&s, 0_i64, &[3]));
    let error = cross_entropy(&s, x.view(), labels.view(), losses.view(), x.view()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::ShapeMismatch { op: "cross_entropy", .. }), "{error}");
    let error = cross_entropy(&s, x.view(), losses.view(), losses.view(), losses.view()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::DTypeMismatch { expected: DType::I64, .. }), "{error}");
    let error = cross_entropy(&s, losses.view(), labels.view(), losses.view(), x.view()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::ShapeMismatch { .. }), "{error}");
}
