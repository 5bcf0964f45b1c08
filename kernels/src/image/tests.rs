#![allow(clippy::unwrap_used)]

use device::{Error, ErrorKind};

use super::*;
use crate::testing::{Array, bits, cpu, values_f32};

const IDENTITY: [f32; 6] = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0];

fn warped(
    s: &Stream,
    x: &Array<f32>,
    matrices: &[[f32; 6]],
    sampling: Sampling,
    shape: [usize; 4],
) -> Result<Vec<f32>> {
    let matrices = Array::new(s, matrices.as_flattened(), &[matrices.len(), 2, 3]);
    let out = Array::full(s, -9.0_f32, &shape);
    warp(s, x.view(), matrices.view(), sampling, out.view())?;
    Ok(out.to_vec())
}

#[test]
fn each_sample_has_its_own_map() {
    let dev = cpu(2);
    let s = dev.default_stream();
    let x = Array::new(&s, &(0..24).map(|i| i as f32).collect::<Vec<_>>(), &[2, 1, 3, 4]);
    for sampling in [Sampling::Nearest, Sampling::Bilinear] {
        // The first image moved by a row, the second one turned upside down.
        let maps = [[1.0, 0.0, 1.0, 0.0, 1.0, 0.0], [-1.0, 0.0, 2.0, 0.0, 1.0, 0.0]];
        let got = warped(&s, &x, &maps, sampling, [2, 1, 2, 4]).unwrap();
        let want = [4, 5, 6, 7, 8, 9, 10, 11, 20, 21, 22, 23, 16, 17, 18, 19];
        assert_eq!(got, want.map(|i| i as f32), "{sampling:?}");
    }
}

#[test]
fn outside_is_zero_or_the_edge() {
    let dev = cpu(1);
    let s = dev.default_stream();
    let x = Array::new(&s, &[1.0_f32, 2.0, 3.0, 4.0], &[1, 1, 2, 2]);
    let moved = [1.0, 0.0, -1.0, 0.0, 1.0, -1.0];
    let nearest = warped(&s, &x, &[moved], Sampling::Nearest, [1, 1, 4, 4]).unwrap();
    assert_eq!(nearest, [0., 0., 0., 0., 0., 1., 2., 0., 0., 3., 4., 0., 0., 0., 0., 0.]);
    let bilinear = warped(&s, &x, &[moved], Sampling::Bilinear, [1, 1, 4, 4]).unwrap();
    assert_eq!(bilinear, [1., 1., 2., 2., 1., 1., 2., 2., 3., 3., 4., 4., 3., 3., 4., 4.]);
    for wild in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30, -1e30] {
        let map = [1.0, 0.0, wild, 0.0, 1.0, 0.0];
        let nearest = warped(&s, &x, &[map], Sampling::Nearest, [1, 1, 1, 2]).unwrap();
        assert_eq!(nearest, [0.0, 0.0]);
        let bilinear = warped(&s, &x, &[map], Sampling::Bilinear, [1, 1, 1, 2]).unwrap();
        assert_eq!(bilinear, if wild > 0.0 { [3.0, 4.0] } else { [1.0, 2.0] });
    }
}

/// Mean and deviation that leave pixels as they are.
const PLAIN: (f32, f32) = (0.0, 1.0);

#[test]
fn blurs_are_sums_over_reflected_images() {
    let dev = cpu(2);
    let s = dev.default_stream();
    let (rows, columns, taps) = (5, 7, 5);
    let pixels = values_f32(3, 2 * 3 * rows * columns);
    let weights = values_f32(4, 2 * taps);
    let x = Array::new(&s, &pixels, &[2, 3, rows, columns]);
    let w = Array::new(&s, &weights, &[2, taps]);
    let out = Array::full(&s, 0.0_f32, &[2, 3, rows, columns]);
    blur(&s, x.view(), w.view(), PLAIN, out.view()).unwrap();
    let mirror = |at: isize, size: usize| -> usize {
        let size = size as isize;
        (if at < 0 {
            -at
        } else if at >= size {
            2 * size - 2 - at
        } else {
            at
        }) as usize
    };
    for (at, got) in out.to_vec().into_iter().enumerate() {
        let (image, i, j) = (at / (rows * columns), at / columns % rows, at % columns);
        let mut want = 0.0_f64;
        for a in 0..taps {
            for b in 0..taps {
                let (y, x) = (mirror((i + a) as isize - 2, rows), mirror((j + b) as isize - 2, columns));
                let weight = |tap: usize| f64::from(weights[image / 3 * taps + tap]);
                want += weight(a) * weight(b) * f64::from(pixels[(image * rows + y) * columns + x]);
            }
        }
        assert!((f64::from(got) - want).abs() < 1e-5, "pixel {at}: {got} instead of {want}");
    }
    let blurred = out.to_vec();
    blur(&s, x.view(), w.view(), (0.25, 3.0), out.view()).unwrap();
    assert!(out.to_vec().iter().zip(&blurred).all(|(got, pixel)| *got == (pixel - 0.25) / 3.0));
}

#[test]
fn bits_do_not_depend_on_threads() {
    let run = |threads| {
        let dev = cpu(threads);
        let s = dev.default_stream();
        let x = Array::new(&s, &values_f32(1, 3 * 2 * 61 * 67), &[3, 2, 61, 67]);
        let maps = [[0.9, 0.3, -2.5, -0.3, 0.9, 7.25]; 3];
        let mut all = warped(&s, &x, &maps, Sampling::Nearest, [3, 2, 50, 40]).unwrap();
        all.extend(warped(&s, &x, &maps, Sampling::Bilinear, [3, 2, 80, 90]).unwrap());
        let (w, out) = (Array::new(&s, &values_f32(5, 21), &[3, 7]), Array::full(&s, 0.0, &[3, 2, 61, 67]));
        blur(&s, x.view(), w.view(), PLAIN, out.view()).unwrap();
        all.extend(out.to_vec());
        bits(&all)
    };
    assert!(run(1) == run(2));
}

#[test]
fn wrong_operands() {
    let dev = cpu(1);
    let s = dev.default_stream();
    let x = Array::full(&s, 1.0_f32, &[2, 1, 3, 3]);
    let at = |maps: usize, shape| warped(&s, &x, &vec![IDENTITY; maps], Sampling::Nearest, shape);
    assert!(at(2, [2, 1, 0, 5]).unwrap().is_empty());
    assert!(matches!(
        at(1, [2, 1, 3, 3]).as_ref().map_err(Error::kind),
        Err(ErrorKind::ShapeMismatch { op: "warp", .. })
    ));
    assert!(matches!(
        at(2, [2, 2, 3, 3]).as_ref().map_err(Error::kind),
        Err(ErrorKind::ShapeMismatch { op: "warp", .. })
    ));
    let none = Array::<f32>::new(&s, &[], &[1, 1, 0, 3]);
    let error = warped(&s, &none, &[IDENTITY], Sampling::Bilinear, [1, 1, 2, 2]);
    assert!(matches!(
        error.as_ref().map_err(Error::kind),
        Err(ErrorKind::InvalidArgument { argument: "images", .. })
    ));
    let identity = Array::new(&s, &[IDENTITY, IDENTITY].concat(), &[2, 2, 3]);
    let error = warp(&s, x.view(), identity.view(), Sampling::Nearest, x.view());
    assert!(matches!(
        error.as_ref().map_err(Error::kind),
        Err(ErrorKind::InvalidArgument { argument: "out", .. })
    ));
    for taps in [2, 7] {
        let (w, out) = (Array::full(&s, 1.0_f32, &[2, taps]), Array::full(&s, 0.0_f32, &[2, 1, 3, 3]));
        let error = blur(&s, x.view(), w.view(), PLAIN, out.view());
        assert!(
            matches!(
                error.as_ref().map_err(Error::kind),
                Err(ErrorKind::InvalidArgument { argument: "weights", .. })
            ),
            "{taps}"
        );
    }
    let wide = Array::full(&s, 1.0_f64, &[2, 1, 3, 3]);
    let error = warp(&s, wide.view(), identity.view(), Sampling::Nearest, x.view());
    assert!(matches!(error.as_ref().map_err(Error::kind), Err(ErrorKind::DTypeMismatch { .. })));
}
