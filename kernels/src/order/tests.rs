use std::cmp::Ordering;

use super::*;
use crate::testing::{Array, cpu, values};

/// Numbers with many ties, zeros of both signs, infinities and NaN.
fn numbers(len: usize) -> Vec<f32> {
    let special = [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0];
    let number =
        |(i, x): (usize, f64)| if i % 5 == 0 { special[i / 5 % 6] } else { (x * 9.0).round() as f32 };
    values(3, len).into_iter().enumerate().map(number).collect()
}

fn compare(a: f32, b: f32) -> Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

#[test]
fn sorts_along_any_axis_and_both_ways() {
    let device = cpu(2);
    let stream = device.default_stream();
    let shape = [3, 170, 40];
    let elements = numbers(3 * 170 * 40);
    for (order, axis) in [[0, 1, 2], [2, 1, 0]].into_iter().flat_map(|o| (0..3).map(move |a| (o, a))) {
        for (descending, count) in [(false, shape[axis]), (true, shape[axis]), (true, 2)] {
            let x = Array::stored_as(&stream, &elements, &shape, &order);
            let mut part = shape;
            part[axis] = count;
            let out = Array::full(&stream, -1_i64, &part);
            argsort(&stream, x.view(), axis as isize, descending, (None, out.view())).expect("a launch");
            let got = out.to_vec();
            let step: usize = shape[axis + 1..].iter().product();
            for row in 0..elements.len() / shape[axis] {
                let at = |i: usize| (row / step * shape[axis] + i) * step + row % step;
                let mut want: Vec<usize> = (0..shape[axis]).collect();
                want.sort_by(|&a, &b| {
                    let order = compare(elements[at(a)], elements[at(b)]);
                    if descending { order.reverse() } else { order }
                });
                for (i, &want) in want[..count].iter().enumerate() {
                    let got = got[(row / step * count + i) * step + row % step];
                    assert_eq!(got, want as i64, "place {i} of row {row} along {axis}, {descending}");
                }
            }
        }
    }
}

#[test]
fn integers_keep_their_order() {
    let device = cpu(1);
    let stream = device.default_stream();
    let sorted = |out: &Array<i64>| out.to_vec();
    let out = Array::full(&stream, 0_i64, &[4]);
    let wide = Array::new(&stream, &[3, i64::MIN, i64::MAX, -1], &[4]);
    argsort(&stream, wide.view(), 0, false, (None, out.view())).expect("a launch");
    assert_eq!(sorted(&out), [1, 3, 0, 2]);
    let bytes = Array::new(&stream, &[255_u8, 0, 7, 255], &[4]);
    argsort(&stream, bytes.view(), 0, true, (None, out.view())).expect("a launch");
    assert_eq!(sorted(&out), [0, 3, 2, 1]);
}

#[test]
fn refuses_other_shapes_and_types() {
    let device = cpu(1);
    let stream = device.default_stream();
    let x = Array::full(&stream, 0_f32, &[2, 3]);
    let with = |shape: &[usize], axis: isize| {
        let out = Array::full(&stream, 0_i64, shape);
        argsort(&stream, x.view(), axis, false, (None, out.view())).is_ok()
    };
    assert!(with(&[2, 3], 1) && with(&[2, 0], 1) && with(&[1, 3], 0));
    assert!(!with(&[2, 4], 1) && !with(&[1, 3], 1) && !with(&[6], 0) && !with(&[2, 3], 2));
    let wrong = Array::full(&stream, 0_f32, &[2, 3]);
    assert!(argsort(&stream, x.view(), 1, false, (None, wrong.view())).is_err());
}
