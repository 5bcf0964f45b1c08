use super::*;
use crate::cpu::number::Number;
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
            cumsum(&stream, x.view(), axis, reverse, (None, out.view())).expect("a launch");
            let step = shape[axis as usize + 1..].iter().product::<usize>();
            let len = shape[axis as usize];
            for (i, got) in out.to_vec().into_iter().enumerate() {
                let place = i / step % len;
                let first = i - place * step;
                let mut row: Vec<f64> = (0..len).map(|place| elements[first + place * step]).collect();
                let end = if reverse { len - 1 - place } else { place };
                if reverse {
                    row.reverse();
                }
                assert_eq!(got, scanned(&row, end), "element {i} along {axis}, reverse {reverse}");
            }
        }
    }
}

/// The sum of the first `end + 1` elements, in the documented order of `cumsum`.
fn scanned<T: Number>(row: &[T], end: usize) -> T {
    let sum = |x: &[T]| x.iter().fold(T::ZERO, |sum, &x| sum.add(x));
    let runs: Vec<T> = row[..=end].chunks(16).map(sum).collect();
    let (run, tile) = (end / 16, end / 512);
    let tiles: Vec<T> = (0..tile).map(|tile| halves(&runs[32 * tile..32 * (tile + 1)])).collect();
    prefix(&tiles).add(prefix(&runs[32 * tile..run])).add(sum(&row[16 * run..=end]))
}

fn halves<T: Number>(x: &[T]) -> T {
    match x {
        [x] => *x,
        _ => halves(&x[..x.len() / 2]).add(halves(&x[x.len() / 2..])),
    }
}

/// `B8 + (B2 + B1)` for 11 values.
fn prefix<T: Number>(x: &[T]) -> T {
    if x.is_empty() {
        return T::ZERO;
    }
    let block = 1 << x.len().ilog2();
    let first = halves(&x[..block]);
    if block == x.len() { first } else { first.add(prefix(&x[block..])) }
}

#[test]
fn long_rows_have_the_documented_order() {
    let device = cpu(2);
    let stream = device.default_stream();
    let len = 70_000;
    let elements: Vec<f32> = values(3, len).into_iter().map(|x| x as f32).collect();
    let x = Array::new(&stream, &elements, &[len]);
    let out = Array::full(&stream, 0_f32, &[len]);
    cumsum(&stream, x.view(), 0, false, (None, out.view())).expect("a launch");
    let out = out.to_vec();
    for end in (0..len).step_by(331).chain([15, 16, 511, 512, 513, 16_383, 16_384, len - 1]) {
        assert_eq!(out[end].to_bits(), scanned(&elements, end).to_bits(), "{end}");
    }
}

fn last_sums(value: f32, len: usize) -> [f32; 2] {
    let device = cpu(2);
    let stream = device.default_stream();
    let x = Array::full(&stream, value, &[len]);
    let out = Array::full(&stream, 0_f32, &[len]);
    let last = |reverse| {
        cumsum(&stream, x.view(), 0, reverse, (None, out.view())).expect("a launch");
        if reverse { out.to_vec()[0] } else { out.to_vec()[len - 1] }
    };
    [last(false), last(true)]
}

#[test]
fn long_sums_of_f32_do_not_stall() {
    assert_eq!(last_sums(1.0, 20_000_000), [20_000_000.0; 2]);
    let exact = f64::from(0.0005_f32) * 5e6;
    for sum in last_sums(0.0005, 5_000_000) {
        assert!((f64::from(sum) - exact).abs() < 1e-6 * exact, "{sum} instead of {exact}");
    }
}

#[test]
fn integers_are_summed_and_bytes_refused() {
    let device = cpu(1);
    let stream = device.default_stream();
    let x = Array::new(&stream, &[1_i64, -2, i64::MAX], &[3]);
    cumsum(&stream, x.view(), 0, false, (None, x.view())).expect("in place");
    assert_eq!(x.to_vec(), [1, -1, i64::MAX - 1]);
    let bytes = Array::new(&stream, &[1_u8], &[1]);
    assert!(cumsum(&stream, bytes.view(), 0, false, (None, bytes.view())).is_err());
    assert!(cumsum(&stream, x.view(), 1, false, (None, x.view())).is_err());
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
