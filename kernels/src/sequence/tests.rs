use super::*;
use crate::testing::{Array, cpu, values};

#[test]
fn sums_run_along_any_axis_and_both_ways() {
    let device = cpu(1);
    let stream = device.default_stream();
    let shape = [3, 70, 5];
    let elements = values(1, 3 * 70 * 5);
    for (order, axis) in [[0, 1, 2], [2, 1, 0]].into_iter().flat_map(|o| (0..3).map(move |a| (o, a))) {
        for reverse in [false, true] {
            let x = Array::stored_as(&stream, &elements, &shape, &order);
            let out = Array::full(&stream, 0_f64, &shape);
            cumsum(&stream, x.view(), axis, reverse, out.view()).expect("a launch");
            let step = shape[axis as usize + 1..].iter().product::<usize>();
            let len = shape[axis as usize];
            let out = out.to_vec();
            for (i, &got) in out.iter().enumerate() {
                let place = i / step % len;
                let last = if reverse { place + 1 == len } else { place == 0 };
                let before = if reverse { i + step } else { i.wrapping_sub(step) };
                let want = if last { elements[i] } else { out[before] + elements[i] };
                assert_eq!(got, want, "element {i} along {axis}, reverse {reverse}");
            }
        }
    }
}

#[test]
fn integers_are_summed_and_bytes_refused() {
    let device = cpu(1);
    let stream = device.default_stream();
    let x = Array::new(&stream, &[1_i64, -2, i64::MAX], &[3]);
    cumsum(&stream, x.view(), 0, false, x.view()).expect("in place");
    assert_eq!(x.to_vec(), [1, -1, i64::MAX - 1]);
    let bytes = Array::new(&stream, &[1_u8], &[1]);
    assert!(cumsum(&stream, bytes.view(), 0, false, bytes.view()).is_err());
    assert!(cumsum(&stream, x.view(), 1, false, x.view()).is_err());
}

#[test]
fn pairs_are_turned_and_turned_back() {
    let device = cpu(1);
    let stream = device.default_stream();
    let (s, d) = (5, 6);
    let angles = values(2, s * d / 2);
    let of = |f: fn(f64) -> f64| {
        let values: Vec<f64> = angles.iter().map(|&angle| f(angle)).collect();
        Array::new(&stream, &values, &[s, d / 2])
            .with(|layout| layout.expand("test", &[2, s, d / 2]).expect("an axis in front"))
    };
    let (cos, sin) = (of(f64::cos), of(f64::sin));
    let elements = values(1, 2 * s * d);
    for interleaved in [false, true] {
        let x = Array::stored_as(&stream, &elements, &[2, s, d], &[1, 2, 0]);
        let out = Array::full(&stream, 0_f64, &[2, s, d]);
        let back = Array::full(&stream, 0_f64, &[2, s, d]);
        let angles_at = (cos.view(), sin.view());
        let forward = Rotation { interleaved, inverse: false };
        rotary(&stream, x.view(), angles_at, forward, out.view()).expect("a launch");
        let inverse = Rotation { interleaved, inverse: true };
        rotary(&stream, out.view(), angles_at, inverse, back.view()).expect("a launch");
        let (out, back) = (out.to_vec(), back.to_vec());
        for row in 0..2 * s {
            for i in 0..d / 2 {
                let (a, b) = if interleaved { (2 * i, 2 * i + 1) } else { (i, i + d / 2) };
                let (a, b) = (row * d + a, row * d + b);
                let (sin, cos) = angles[row % s * d / 2 + i].sin_cos();
                assert_eq!(out[a], elements[a] * cos - elements[b] * sin);
                assert_eq!(out[b], elements[b] * cos + elements[a] * sin);
            }
        }
        assert!(back.iter().zip(&elements).all(|(back, x)| (back - x).abs() < 1e-14));
    }
}

#[test]
fn an_odd_width_is_refused() {
    let device = cpu(1);
    let stream = device.default_stream();
    let (x, out) = (Array::full(&stream, 1_f32, &[2, 3]), Array::full(&stream, 1_f32, &[2, 3]));
    let angle = Array::full(&stream, 1_f32, &[2, 1]);
    let rotation = Rotation { interleaved: false, inverse: false };
    assert!(rotary(&stream, x.view(), (angle.view(), angle.view()), rotation, out.view()).is_err());
}
