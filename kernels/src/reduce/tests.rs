#![allow(clippy::unwrap_used)]

use std::f32::consts::LN_2;

use device::{Error, ErrorKind};

use super::*;
use crate::testing::{Array, bits, cpu, values, values_f32};

const LARGEST: Reduction = Reduction::Index(Extreme::Largest);
const SMALLEST: Reduction = Reduction::Index(Extreme::Smallest);

/// The elements that each output joins, in order.
fn groups<T: Copy>(x: &[T], shape: &[usize], axes: &[usize]) -> Vec<Vec<T>> {
    let kept: usize = (0..shape.len()).filter(|i| !axes.contains(i)).map(|i| shape[i]).product();
    let mut groups = vec![Vec::new(); kept];
    for (i, &value) in x.iter().enumerate() {
        let (mut rest, mut group, mut scale) = (i, 0, 1);
        for axis in (0..shape.len()).rev() {
            let at = rest % shape[axis];
            rest /= shape[axis];
            if !axes.contains(&axis) {
                group += at * scale;
                scale *= shape[axis];
            }
        }
        groups[group].push(value);
    }
    groups
}

/// The order of sums that the docs promise.
fn documented_sum(x: &[f32]) -> f32 {
    let block = |x: &[f32]| {
        let mut lanes = [0.0_f32; 64];
        x.iter().enumerate().for_each(|(i, &x)| lanes[i % 64] += x);
        for half in [32, 16, 8, 4, 2, 1] {
            (0..half).for_each(|l| lanes[l] += lanes[l + half]);
        }
        lanes[0]
    };
    if x.len() <= 4096 { block(x) } else { documented_sum(&x.chunks(4096).map(block).collect::<Vec<_>>()) }
}

const CASES: &[(&[usize], &[usize])] = &[
    (&[7], &[0]),
    (&[1], &[0]),
    (&[100_000], &[0]),
    (&[256, 10], &[0]),
    (&[256, 10], &[1]),
    (&[256, 10], &[0, 1]),
    (&[37, 300], &[0]),
    (&[37, 300], &[1]),
    (&[3, 40, 70], &[1]),
    (&[3, 40, 70], &[0, 2]),
    (&[3, 40, 70], &[0, 1]),
    (&[5, 6, 7, 8], &[1, 3]),
    (&[5, 6, 7, 8], &[0, 2]),
    (&[5000, 3], &[0]),
    (&[3, 9000], &[1]),
    (&[9000, 70], &[0]),
    (&[2, 5000, 65], &[1]),
    (&[64, 1], &[1]),
    (&[4, 33, 2], &[0]),
];

#[test]
fn sums_follow_the_documented_order_for_all_strides_and_threads() {
    for &(shape, axes) in CASES {
        let x = values_f32(1, shape.iter().product());
        let want = bits(&groups(&x, shape, axes).iter().map(|g| documented_sum(g)).collect::<Vec<_>>());
        let named: Vec<isize> = axes.iter().map(|&a| a as isize).collect();
        let kept: Vec<usize> = (0..shape.len()).filter(|i| !axes.contains(i)).map(|i| shape[i]).collect();
        let forward: Vec<usize> = (0..shape.len()).collect();
        let backward: Vec<usize> = (0..shape.len()).rev().collect();
        let mut rotated = forward.clone();
        rotated.rotate_left(1);
        for threads in [1, 2] {
            let dev = cpu(threads);
            let s = dev.default_stream();
            for order in [&forward, &backward, &rotated] {
                let from = Array::stored_as(&s, &x, shape, order);
                let out = Array::full(&s, f32::NAN, &kept);
                reduce(&s, ReduceOp::Sum, from.view(), &named, None, out.view()).unwrap();
                assert!(
                    bits(&out.to_vec()) == want,
                    "{shape:?} over {axes:?} stored as {order:?}, {threads} threads"
                );
            }
        }
    }
}

#[test]
fn large_sums_are_split_and_keep_their_bits() {
    let x = values_f32(1, 1 << 21);
    for (shape, axes) in
        [(vec![1 << 21], vec![0]), (vec![1 << 14, 128], vec![0]), (vec![128, 1 << 14], vec![1])]
    {
        let run = |threads| {
            let dev = cpu(threads);
            let s = dev.default_stream();
            let from = Array::new(&s, &x, &shape);
            let kept = (1 << 21) / shape[axes[0] as usize];
            let out =
                Array::full(&s, 0.0_f32, if shape.len() == 1 { &[] } else { std::slice::from_ref(&kept) });
            reduce(&s, ReduceOp::Sum, from.view(), &axes, None, out.view()).unwrap();
            bits(&out.to_vec())
        };
        assert!(run(1) == run(2), "{shape:?}");
    }
}

#[test]
fn all_ops_match_a_reference() {
    for &(shape, axes) in CASES {
        let dev = cpu(1);
        let s = dev.default_stream();
        let x = values(3, shape.iter().product());
        let named: Vec<isize> = axes.iter().map(|&a| a as isize).collect();
        let ones: Vec<usize> =
            (0..shape.len()).map(|i| if axes.contains(&i) { 1 } else { shape[i] }).collect();
        let from = Array::new(&s, &x, shape);
        let groups = groups(&x, shape, axes);
        let check = |name: &str, f: &dyn Fn(View<'_>) -> Result<()>, want: &dyn Fn(&[f64]) -> f64| {
            let out = Array::full(&s, f64::NAN, &ones);
            f(out.view()).unwrap();
            for (got, group) in out.to_vec().iter().zip(&groups) {
                let want = want(group);
                let equal =
                    (got - want).abs() <= 1e-9 * want.abs().max(1e-3) || (got.is_nan() && want.is_nan());
                assert!(equal, "{name} of {shape:?} over {axes:?}: {got} is not {want}");
            }
        };
        let plain = |op: ReduceOp| {
            move |from: View<'_>, out: View<'_>, s: &Stream, axes: &[isize]| {
                reduce(s, op, from, axes, None, out)
            }
        };
        let mean = |g: &[f64]| g.iter().sum::<f64>() / g.len() as f64;
        check("mean", &|out| plain(ReduceOp::Mean)(from.view(), out, &s, &named), &mean);
        check("prod", &|out| plain(ReduceOp::Prod)(from.view(), out, &s, &named), &|g| g.iter().product());
        check("max", &|out| plain(ReduceOp::Max)(from.view(), out, &s, &named), &|g| {
            g.iter().copied().fold(-9.0, f64::max)
        });
        check("min", &|out| plain(ReduceOp::Min)(from.view(), out, &s, &named), &|g| {
            g.iter().copied().fold(9.0, f64::min)
        });
        check(
            "var",
            &|out| {
                reduce(&s, Reduction::Var { correction: 1.0, root: false }, from.view(), &named, None, out)
            },
            &|g| {
                let m = mean(g);
                g.iter().map(|x| (x - m) * (x - m)).sum::<f64>() / (g.len() as f64 - 1.0)
            },
        );
        check("logsumexp", &|out| reduce(&s, Reduction::LogSumExp, from.view(), &named, None, out), &|g| {
            g.iter().map(|x| x.exp()).sum::<f64>().ln()
        });
    }
}

#[test]
fn logsumexp_is_exact_for_extreme_values() {
    let dev = cpu(1);
    let s = dev.default_stream();
    let inf = f32::INFINITY;
    let x = Array::new(&s, &[1000.0, 1000.0, -inf, -inf, inf, 0.0, f32::NAN, 1.0, -1000.0, -1000.0], &[5, 2]);
    let out = Array::full(&s, 0.0_f32, &[5]);
    reduce(&s, Reduction::LogSumExp, x.view(), &[1], None, out.view()).unwrap();
    let got = out.to_vec();
    assert!((got[0] - (1000.0 + LN_2)).abs() < 1e-4 && (got[4] + (1000.0 - LN_2)).abs() < 1e-4, "{got:?}");
    assert!(got[1] == -inf && got[2] == inf && got[3].is_nan(), "{got:?}");
}

#[test]
fn nan_wins() {
    let dev = cpu(1);
    let s = dev.default_stream();
    for place in [0, 1, 31, 32, 40, 99] {
        let mut x = values_f32(5, 100);
        x[place] = f32::NAN;
        let out = Array::full(&s, 0.0_f32, &[]);
        for op in [ReduceOp::Max, ReduceOp::Min] {
            reduce(&s, op, Array::new(&s, &x, &[100]).view(), &[], None, out.view()).unwrap();
            assert!(out.to_vec()[0].is_nan(), "{op:?} with NaN at {place}");
        }
        let index = Array::full(&s, -1_i64, &[1]);
        x[99] = f32::NAN;
        reduce(&s, LARGEST, Array::new(&s, &x, &[100]).view(), &[0], None, index.view()).unwrap();
        assert_eq!(index.to_vec(), [place as i64]);
    }
}

#[test]
fn argmax_finds_the_first() {
    let dev = cpu(1);
    let s = dev.default_stream();
    let x = [1_i64, 5, 5, 2, 0, 0, 7, 3, 7];
    let out = Array::full(&s, 0_i64, &[3]);
    reduce(&s, LARGEST, Array::new(&s, &x, &[3, 3]).view(), &[1], None, out.view()).unwrap();
    assert_eq!(out.to_vec(), [1, 0, 0]);
    reduce(&s, LARGEST, Array::new(&s, &x, &[3, 3]).view(), &[-2], None, out.view()).unwrap();
    assert_eq!(out.to_vec(), [2, 0, 2]);
    let t = Array::new(&s, &x, &[3, 3]).with(|l| l.transpose("test", 0, 1).unwrap());
    reduce(&s, LARGEST, t.view(), &[0], None, out.view()).unwrap();
    assert_eq!(out.to_vec(), [1, 0, 0]);
}

#[test]
fn argmin_finds_the_first() {
    let dev = cpu(1);
    let s = dev.default_stream();
    let out = Array::full(&s, 0_i64, &[2]);
    let x = [0, i64::MIN, i64::MIN, i64::MAX, -1, -1];
    reduce(&s, SMALLEST, Array::new(&s, &x, &[2, 3]).view(), &[1], None, out.view()).unwrap();
    assert_eq!(out.to_vec(), [1, 1]);
    reduce(
        &s,
        SMALLEST,
        Array::new(&s, &[3_u8, 0, 0, 255, 255, 254], &[2, 3]).view(),
        &[1],
        None,
        out.view(),
    )
    .unwrap();
    assert_eq!(out.to_vec(), [1, 2]);
    let x = [-1.0_f32, f32::NAN, f32::NAN, 0.0, -0.0, 1.0];
    reduce(&s, SMALLEST, Array::new(&s, &x, &[2, 3]).view(), &[1], None, out.view()).unwrap();
    assert_eq!(out.to_vec(), [1, 0]);
}

#[test]
fn integers_and_empty_axes() {
    let dev = cpu(1);
    let s = dev.default_stream();
    let x = Array::new(&s, &[200_u8, 100, 3, 4], &[2, 2]);
    let out = Array::full(&s, 0_u8, &[2]);
    reduce(&s, ReduceOp::Sum, x.view(), &[1], None, out.view()).unwrap();
    assert_eq!(out.to_vec(), [44, 7]);
    reduce(&s, ReduceOp::Max, x.view(), &[0], None, out.view()).unwrap();
    assert_eq!(out.to_vec(), [200, 100]);
    let none = Array::<f32>::new(&s, &[], &[2, 0]);
    let out = Array::full(&s, f32::NAN, &[2]);
    let of_none = |op| {
        reduce(&s, op, none.view(), &[1], None, out.view())?;
        Ok::<_, Error>(out.to_vec())
    };
    assert_eq!(of_none(ReduceOp::Sum).unwrap(), [0.0, 0.0]);
    assert_eq!(of_none(ReduceOp::Prod).unwrap(), [1.0, 1.0]);
    assert!(of_none(ReduceOp::Mean).unwrap()[0].is_nan());
    assert!(matches!(
        of_none(ReduceOp::Max).unwrap_err().kind(),
        ErrorKind::InvalidArgument { op: "max", .. }
    ));
    reduce(&s, ReduceOp::Max, none.view(), &[0], None, Array::<f32>::new(&s, &[], &[0]).view()).unwrap();
    reduce(&s, Reduction::LogSumExp, none.view(), &[1], None, out.view()).unwrap();
    assert_eq!(out.to_vec(), [f32::NEG_INFINITY; 2]);
}

#[test]
fn expanded_inputs_and_wrong_outputs() {
    let dev = cpu(1);
    let s = dev.default_stream();
    let x = Array::new(&s, &[1.0_f32, 2.0], &[2, 1]).with(|l| l.expand("test", &[2, 100]).unwrap());
    let out = Array::full(&s, 0.0_f32, &[2]);
    reduce(&s, ReduceOp::Sum, x.view(), &[-1], None, out.view()).unwrap();
    assert_eq!(out.to_vec(), [100.0, 200.0]);
    let row = Array::full(&s, 0.0_f32, &[100]);
    reduce(&s, ReduceOp::Sum, x.view(), &[0], None, row.view()).unwrap();
    assert_eq!(row.to_vec(), [3.0; 100]);
    let error = reduce(&s, ReduceOp::Sum, x.view(), &[0], None, out.view()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::ShapeMismatch { op: "sum", .. }), "{error}");
    let error = reduce(&s, ReduceOp::Sum, x.view(), &[2], None, out.view()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::AxisOutOfRange { op: "sum", axis: 2, rank: 2 }), "{error}");
    let bools = Array::full(&s, true, &[2]);
    let error =
        reduce(&s, ReduceOp::Sum, bools.view(), &[], None, Array::full(&s, true, &[]).view()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::DTypeUnsupported { .. }), "{error}");
}

#[test]
fn an_index_is_along_one_axis() {
    let s = cpu(1).default_stream();
    let (x, out) = (Array::full(&s, 1.0_f32, &[2, 3]), Array::full(&s, 0_i64, &[]));
    for axes in [&[][..], &[0, 1]] {
        let error = reduce(&s, LARGEST, x.view(), axes, None, out.view()).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::InvalidArgument { op: "argmax", argument: "axes", .. }),
            "{error}"
        );
    }
}
