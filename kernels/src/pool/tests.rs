//! Pooling at ties, NaN, infinities and edges, and against plain loops.

use device::{Element, Error, ErrorKind};

use super::*;
use crate::cpu::lanes::Lanes;
use crate::testing::{Array, bits, cpu, values, values_f32};

const fn window(kernel: usize, stride: usize, padding: usize, dilation: usize) -> Window {
    Window { kernel: [kernel; 2], stride: [stride; 2], padding: [padding; 2], dilation: [dilation; 2] }
}

/// Planes, and places; some of them are those of `ceil_mode`.
pub(crate) const MAX: &[(Window, [usize; 3], [usize; 2])] = &[
    (window(2, 2, 0, 1), [3, 28, 28], [14, 14]),
    (window(2, 2, 0, 1), [2, 5, 7], [2, 3]),
    (window(2, 2, 0, 1), [2, 5, 7], [3, 4]),
    (window(3, 2, 1, 1), [2, 9, 40], [5, 20]),
    (window(3, 1, 1, 1), [1, 4, 21], [4, 21]),
    (window(3, 1, 1, 2), [2, 7, 19], [5, 17]),
    (window(3, 3, 1, 1), [2, 8, 8], [3, 3]),
    (window(1, 1, 0, 1), [1, 3, 3], [3, 3]),
    (window(2, 2, 0, 1), [2, 6, 80], [3, 40]),
    (window(3, 2, 0, 3), [2, 12, 19], [3, 7]),
    (window(2, 4, 1, 1), [1, 9, 21], [3, 6]),
    (window(3, 3, 0, 1), [2, 9, 9], [3, 3]),
    (Window { padding: [1, 0], ..window(2, 2, 0, 1) }, [3, 5, 8], [3, 4]),
    (Window { kernel: [2, 1], ..window(2, 2, 0, 1) }, [2, 4, 1], [2, 1]),
    // Far more than the image is between two places.
    (window(1, 1 << 29, 0, 1), [3, 4, 5], [1, 1]),
    (window(17, 5, 3, 1), [1, 30, 33], [4, 5]),
];

fn max_on(stream: &Stream, x: &[f32], case: &(Window, [usize; 3], [usize; 2])) -> (Vec<f32>, Vec<i64>) {
    let (window, [count, h, w], [oh, ow]) = *case;
    let x = Array::new(stream, x, &[count, h, w]);
    let out = Array::full(stream, 0_f32, &[count, oh, ow]);
    if max_pool2d_index_dtype(&window) == DType::U8 {
        let index = Array::full(stream, 0_u8, &[count, oh, ow]);
        max_pool2d(stream, x.view(), window, out.view(), index.view()).expect("a launch");
        return (out.to_vec(), index.to_vec().into_iter().map(i64::from).collect());
    }
    let index = Array::full(stream, 0_i64, &[count, oh, ow]);
    max_pool2d(stream, x.view(), window, out.view(), index.view()).expect("a launch");
    (out.to_vec(), index.to_vec())
}

/// The first of the largest, the last NaN.
fn max_plainly(x: &[f32], case: &(Window, [usize; 3], [usize; 2])) -> (Vec<f32>, Vec<i64>) {
    let (Window { kernel, stride, padding, dilation }, [count, h, w], [oh, ow]) = *case;
    let (mut out, mut index) = (vec![], vec![]);
    for (plane, y, column) in
        (0..count).flat_map(|p| (0..oh).flat_map(move |y| (0..ow).map(move |x| (p, y, x))))
    {
        let mut best: Option<(f32, i64)> = None;
        for (i, j) in (0..kernel[0]).flat_map(|i| (0..kernel[1]).map(move |j| (i, j))) {
            let row = (y * stride[0] + i * dilation[0]).checked_sub(padding[0]).filter(|&r| r < h);
            let at = (column * stride[1] + j * dilation[1]).checked_sub(padding[1]).filter(|&c| c < w);
            if let (Some(row), Some(at)) = (row, at) {
                let value = x[(plane * h + row) * w + at];
                if best.is_none_or(|(b, _)| value > b || value.is_nan()) {
                    best = Some((value, (i * kernel[1] + j) as i64));
                }
            }
        }
        let (value, tap) = best.expect("a place that sees the plane");
        out.push(value);
        index.push(tap);
    }
    (out, index)
}

fn hard_values(seed: u64, len: usize) -> Vec<f32> {
    let mut x: Vec<f32> = values(seed, len).into_iter().map(|v| (v * 3.0).round() as f32).collect();
    for (i, v) in x.iter_mut().enumerate() {
        match i % 41 {
            7 => *v = f32::NAN,
            8..=10 => *v = f32::NEG_INFINITY,
            11 => *v = f32::INFINITY,
            _ => (),
        }
    }
    x
}

#[test]
fn the_first_maximum_wins_and_nan_comes_through() {
    let stream = cpu(1).default_stream();
    for case in MAX {
        let [count, h, w] = case.1;
        let finite: Vec<f32> = values_f32(1, count * h * w).iter().map(|x| (x * 3.0).round()).collect();
        // Whole windows of the smallest, beside some of infinities.
        let infinite =
            finite.iter().map(|&x| if x > 0.0 { f32::NEG_INFINITY } else { -1.0 / (x + 1.0) }).collect();
        for x in [finite, infinite, hard_values(1, count * h * w), vec![f32::NEG_INFINITY; count * h * w]] {
            let (found, expected) = (max_on(&stream, &x, case), max_plainly(&x, case));
            assert_eq!(found.1, expected.1, "{case:?}");
            assert_eq!(bits(&found.0), bits(&expected.0), "{case:?}");
        }
    }
}

#[test]
fn gradients_go_to_the_maxima_and_come_back() {
    for case in MAX {
        check_gradients::<f32>(case);
        check_gradients::<f64>(case);
    }
}

fn check_gradients<T: Element + Lanes + Into<f64>>(case: &(Window, [usize; 3], [usize; 2])) {
    let stream = cpu(1).default_stream();
    let (window, [count, h, w], [oh, ow]) = *case;
    let (size, places) = (count * h * w, count * oh * ow);
    let (_, taps) = max_plainly(&hard_values(1, size), case);
    // Zeros of both signs are among them.
    let signed = |seed, len| -> Vec<T> {
        values(seed, len).into_iter().map(|x| T::from_f64((x * 1.5).round() / 3.0)).collect()
    };
    let (g, x) = (signed(2, places), signed(3, size));
    let (mut grad, mut picked) = (vec![T::ZERO; size], vec![]);
    for (place, &tap) in taps.iter().enumerate() {
        let (plane, y, column) = (place / (oh * ow), place / ow % oh, place % ow);
        let (i, j) = (tap as usize / window.kernel[1], tap as usize % window.kernel[1]);
        let row = y * window.stride[0] + i * window.dilation[0] - window.padding[0];
        let at = column * window.stride[1] + j * window.dilation[1] - window.padding[1];
        let pixel = (plane * h + row) * w + at;
        grad[pixel] = grad[pixel].add(g[place]);
        picked.push(x[pixel]);
    }
    let dtype = max_pool2d_index_dtype(&window);
    let [images, smaller] = [[count, h, w], [count, oh, ow]];
    let (g_array, x_array) = (Array::new(&stream, &g, &smaller), Array::new(&stream, &x, &images));
    let nan = T::from_f64(f64::NAN);
    let (to_x, to_g) = (Array::full(&stream, nan, &images), Array::full(&stream, nan, &smaller));
    let bytes: Vec<u8> = taps.iter().map(|&tap| tap as u8).collect();
    let (wide, narrow) = (Array::new(&stream, &taps, &smaller), Array::new(&stream, &bytes, &smaller));
    let index = if dtype == DType::U8 { narrow.view() } else { wide.view() };
    max_pool2d_grad(&stream, g_array.view(), index, window, to_x.view()).expect("a launch");
    max_pool2d_pick(&stream, x_array.view(), index, window, to_g.view()).expect("a launch");
    let bits = |x: Vec<T>| -> Vec<u64> { x.into_iter().map(|x| x.into().to_bits()).collect() };
    assert_eq!(bits(to_x.to_vec()), bits(grad), "{case:?}");
    assert_eq!(bits(to_g.to_vec()), bits(picked), "{case:?}");
}

#[test]
fn an_index_that_leaves_the_plane_is_an_error() {
    let device = cpu(1);
    let stream = device.default_stream();
    let g = Array::full(&stream, 1_f32, &[1, 2, 2]);
    let index = Array::new(&stream, &[0_u8, 1, 200, 3], &[1, 2, 2]);
    let out = Array::full(&stream, 0_f32, &[1, 4, 4]);
    let launched = max_pool2d_grad(&stream, g.view(), index.view(), window(2, 2, 0, 1), out.view());
    assert!(launched.and_then(|()| device.synchronize()).is_err());
}

pub(crate) const MEANS: &[(Means, [usize; 3], [usize; 2])] = &[
    (
        Means::Sliding { window: window(2, 2, 0, 1), count_include_pad: true, divisor: None },
        [3, 8, 6],
        [4, 3],
    ),
    (
        Means::Sliding { window: window(3, 2, 1, 1), count_include_pad: true, divisor: None },
        [2, 7, 9],
        [4, 5],
    ),
    (
        Means::Sliding { window: window(3, 2, 1, 1), count_include_pad: false, divisor: None },
        [2, 7, 9],
        [4, 5],
    ),
    (
        Means::Sliding { window: window(3, 2, 1, 1), count_include_pad: true, divisor: None },
        [2, 8, 8],
        [5, 5],
    ),
    (
        Means::Sliding { window: window(3, 2, 1, 1), count_include_pad: false, divisor: Some(5) },
        [2, 8, 8],
        [5, 5],
    ),
    (Means::Adaptive, [3, 7, 10], [3, 4]),
    (Means::Adaptive, [2, 3, 4], [5, 4]),
    (Means::Adaptive, [2, 9, 9], [1, 1]),
    (Means::Nearest, [5, 7, 10], [14, 30]),
    (Means::Nearest, [3, 9, 8], [4, 11]),
    (Means::Bilinear { align_corners: false }, [5, 6, 8], [12, 16]),
    (Means::Bilinear { align_corners: false }, [2, 9, 7], [4, 23]),
    (Means::Bilinear { align_corners: false }, [2, 9, 40], [3, 2]),
    (Means::Bilinear { align_corners: true }, [3, 6, 8], [11, 5]),
    (Means::Bilinear { align_corners: true }, [1, 4, 3], [1, 3]),
    (Means::Bilinear { align_corners: true }, [1, 1, 1], [3, 2]),
];

/// For each place, the pixels that it sees with their weights over its divisor, by the definition.
fn seen_plainly(case: &(Means, [usize; 3], [usize; 2])) -> Vec<Vec<(usize, f64)>> {
    let (means, [_, h, w], [oh, ow]) = *case;
    let range = |at: usize, size: usize, places: usize, axis: usize| -> (Vec<(usize, f64)>, usize) {
        match means {
            Means::Adaptive => {
                let start = (at as f64 * size as f64 / places as f64).floor() as usize;
                let end = ((at + 1) as f64 * size as f64 / places as f64).ceil() as usize;
                ((start..end).map(|e| (e, 1.0)).collect(), end - start)
            }
            Means::Sliding { window, count_include_pad, .. } => {
                let (s, p, k) = (window.stride[axis], window.padding[axis], window.kernel[axis]);
                let padded = (at * s..at * s + k).filter(|&e| e < size + 2 * p);
                let inside: Vec<(usize, f64)> =
                    padded.clone().filter(|&e| e >= p && e < size + p).map(|e| (e - p, 1.0)).collect();
                let counted = if count_include_pad { padded.count() } else { inside.len() };
                (inside, counted)
            }
            Means::Nearest => (vec![(at * size / places, 1.0)], 1),
            Means::Bilinear { align_corners } => {
                let (at, last) = (at as f64, (size - 1) as f64);
                let position = match align_corners {
                    true => at * last / (places - 1).max(1) as f64,
                    false => ((at + 0.5) * size as f64 / places as f64 - 0.5).clamp(0.0, last),
                };
                let weight = |e: usize| 1.0 - (position - e as f64).abs();
                ((0..size).map(|e| (e, weight(e))).filter(|&(_, w)| w > 0.0).collect(), 1)
            }
        }
    };
    (0..oh * ow)
        .map(|place| {
            let ((rows, r), (columns, c)) = (range(place / ow, h, oh, 0), range(place % ow, w, ow, 1));
            let divisor = match means {
                Means::Sliding { divisor: Some(divisor), .. } => f64::from(divisor),
                _ => (r * c) as f64,
            };
            let weighted =
                |&(r, a): &(usize, f64)| columns.iter().map(move |&(c, b)| (r * w + c, a * b / divisor));
            rows.iter().flat_map(weighted).collect()
        })
        .collect()
}

#[test]
fn means_and_their_gradients_follow_the_definition() {
    let stream = cpu(1).default_stream();
    for case in MEANS {
        let (means, [count, h, w], [oh, ow]) = *case;
        let seen = seen_plainly(case);
        let (x, g) = (values(1, count * h * w), values(2, count * oh * ow));
        let (mut mean, mut grad) = (vec![0.0; count * oh * ow], vec![0.0; count * h * w]);
        for plane in 0..count {
            for (place, pixels) in seen.iter().enumerate() {
                for (pixel, weight) in pixels {
                    mean[plane * oh * ow + place] += x[plane * h * w + pixel] * weight;
                    grad[plane * h * w + pixel] += g[plane * oh * ow + place] * weight;
                }
            }
        }
        let (x, g) = (Array::new(&stream, &x, &[count, h, w]), Array::new(&stream, &g, &[count, oh, ow]));
        let (out, back) =
            (Array::full(&stream, 0.0, &[count, oh, ow]), Array::full(&stream, 0.0, &[count, h, w]));
        avg_pool2d(&stream, x.view(), means, out.view()).expect("a launch");
        avg_pool2d_grad(&stream, g.view(), means, back.view()).expect("a launch");
        for (found, expected) in [(out.to_vec(), mean), (back.to_vec(), grad)] {
            let near = |(f, e): (&f64, &f64)| (f - e).abs() < 1e-13;
            assert!(found.iter().zip(&expected).all(near), "{case:?}: {found:?} instead of {expected:?}");
        }
    }
}

#[test]
fn threads_do_not_show() {
    let x = values_f32(5, 70 * 28 * 28);
    let run = |threads: usize| {
        let stream = cpu(threads).default_stream();
        let (values, taps) = max_on(&stream, &x, &(window(3, 2, 1, 1), [70, 28, 28], [14, 14]));
        (bits(&values), taps)
    };
    assert_eq!(run(3), run(1));
}

#[test]
fn a_place_that_sees_nothing_is_refused() {
    let stream = cpu(1).default_stream();
    let (x, out) = (Array::full(&stream, 0_f32, &[1, 4, 4]), Array::full(&stream, 0_f32, &[1, 3, 2]));
    let index = Array::full(&stream, 0_u8, &[1, 3, 2]);
    let result = max_pool2d(&stream, x.view(), window(2, 2, 0, 1), out.view(), index.view());
    assert!(
        matches!(result.as_ref().map_err(Error::kind), Err(ErrorKind::InvalidArgument { .. })),
        "{result:?}"
    );
    let result = max_pool2d(&stream, x.view(), window(2, 1, 2, 1), out.view(), index.view());
    assert!(
        matches!(result.as_ref().map_err(Error::kind), Err(ErrorKind::InvalidArgument { .. })),
        "{result:?}"
    );
    let means = Means::Sliding { window: window(2, 1, 0, 1), count_include_pad: true, divisor: Some(0) };
    assert!(avg_pool2d(&stream, x.view(), means, out.view()).is_err());
    let empty = Array::full(&stream, 0_f32, &[1, 0, 4]);
    assert!(avg_pool2d(&stream, empty.view(), Means::Nearest, out.view()).is_err());
    assert!(avg_pool2d_grad(&stream, out.view(), Means::Nearest, empty.view()).is_err());
}
