#![allow(clippy::unwrap_used)]

use device::{Error, ErrorKind, Stream};

use super::*;
use crate::norms::PART;
use crate::testing::{Array, bits, cpu, values};

/// Sizes of tensors: small ones, one of several parts, none.
const SIZES: [usize; 5] = [3, 2 * PART + 5, 0, PART, 1];

fn tensors(stream: &Stream) -> Vec<Array<f64>> {
    (1..).zip(SIZES).map(|(seed, size)| Array::new(stream, &values(seed, size), &[size])).collect()
}

fn clipped(threads: usize, max_norm: f64) -> (f64, f64, Vec<Vec<f64>>) {
    let stream = cpu(threads).default_stream();
    let tensors = tensors(&stream);
    let views: Vec<View<'_>> = tensors.iter().map(Array::view).collect();
    let parts = Array::full(&stream, 0.0, &[norm_parts(SIZES)]);
    let [norm, scale] = [(); 2].map(|()| Array::full(&stream, 0.0, &[]));
    let to = TotalNorm { parts: parts.view(), norm: norm.view(), scale: scale.view() };
    total_norm(&stream, &views, max_norm, to).unwrap();
    let scaled: Vec<Array<f64>> = SIZES.map(|size| Array::full(&stream, 0.0, &[size])).into();
    let pairs: Vec<_> = scaled.iter().map(Array::view).zip(views).collect();
    scale_all(&stream, &pairs, scale.view()).unwrap();
    (norm.to_vec()[0], scale.to_vec()[0], scaled.iter().map(Array::to_vec).collect())
}

#[test]
fn the_norm_is_over_all_tensors() {
    let all: Vec<f64> = (1..).zip(SIZES).flat_map(|(seed, size)| values(seed, size)).collect();
    let expected = all.iter().map(|x| x * x).sum::<f64>().sqrt();
    for (threads, max_norm) in [(1, 2.0), (3, 2.0), (1, 1e9)] {
        let (norm, scale, scaled) = clipped(threads, max_norm);
        assert!((norm - expected).abs() < 1e-12 * expected, "{norm} for {expected}");
        assert_eq!(scale, (max_norm / (norm + 1e-6)).min(1.0));
        assert_eq!(scaled.concat(), all.iter().map(|x| x * scale).collect::<Vec<_>>());
    }
    assert_eq!(clipped(1, 0.5), clipped(4, 0.5), "threads change nothing");
}

#[test]
fn a_nan_makes_all_nan() {
    let stream = cpu(1).default_stream();
    let x = Array::new(&stream, &[1.0f32, f32::NAN], &[2]);
    let [parts, out] = [1, 2].map(|size| Array::full(&stream, 0.0f32, &[size]));
    let [norm, scale] = [(); 2].map(|()| Array::full(&stream, 0.0f32, &[]));
    let to = TotalNorm { parts: parts.view(), norm: norm.view(), scale: scale.view() };
    total_norm(&stream, &[x.view()], 1.0, to).unwrap();
    scale_all(&stream, &[(out.view(), x.view())], scale.view()).unwrap();
    assert!(
        norm.to_vec()[0].is_nan() && out.to_vec().iter().all(|x| x.is_nan()),
        "{:?}",
        bits(&out.to_vec())
    );
}

/// What was unscaled, and whether something was not finite.
fn unscaled(threads: usize, changed: Option<(usize, f64)>) -> (Vec<f64>, f64) {
    let stream = cpu(threads).default_stream();
    let mut all: Vec<f64> = (1..).zip(SIZES).flat_map(|(seed, size)| values(seed, size)).collect();
    if let Some((at, value)) = changed {
        all[at] = value;
    }
    let mut start = 0;
    let tensors = SIZES.map(|size| {
        start += size;
        Array::new(&stream, &all[start - size..start], &[size])
    });
    let pairs: Vec<_> = tensors.iter().map(|x| (x.view(), x.view())).collect();
    let (parts, scale) = (Array::full(&stream, 7.0, &[norm_parts(SIZES)]), Array::full(&stream, 8.0, &[]));
    let found = Array::full(&stream, 7.0, &[]);
    unscale_all(&stream, &pairs, scale.view(), [parts.view(), found.view()]).unwrap();
    (tensors.iter().flat_map(Array::to_vec).collect(), found.to_vec()[0])
}

#[test]
fn what_is_not_finite_is_found_wherever_it_is() {
    let all: Vec<f64> = (1..).zip(SIZES).flat_map(|(seed, size)| values(seed, size)).collect();
    let expected: Vec<f64> = all.iter().map(|x| x / 8.0).collect();
    assert_eq!(unscaled(1, None), (expected.clone(), 0.0));
    assert_eq!(unscaled(4, Some((5, f64::MAX))).1, 0.0, "the largest number is finite");
    for (k, at) in [0, 3, PART + 3, all.len() - 1].into_iter().enumerate() {
        let value = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY][k % 3];
        let (found, flag) = unscaled(1 + k, Some((at, value)));
        assert_eq!(flag, 1.0, "{value} at {at}");
        assert!(found.iter().zip(&expected).enumerate().all(|(i, (a, b))| i == at || a == b));
    }
}

#[test]
fn what_does_not_fit_is_an_error() {
    let stream = cpu(1).default_stream();
    let x = Array::full(&stream, 1.0f32, &[2, 3]);
    let columns =
        Array::full(&stream, 1.0f32, &[3, 2]).with(|layout| layout.permute("test", &[1, 0]).unwrap());
    let [one, two] = [1, 2].map(|size| Array::full(&stream, 0.0f32, &[size]));
    let [norm, scale] = [(); 2].map(|()| Array::full(&stream, 0.0f32, &[]));
    let to = |parts| TotalNorm { parts, norm: norm.view(), scale: scale.view() };
    let found = total_norm(&stream, &[columns.view()], 1.0, to(one.view()));
    assert!(matches!(
        found.as_ref().map_err(Error::kind),
        Err(ErrorKind::InvalidArgument { op: "total_norm", argument: "tensors", .. })
    ));
    let found = total_norm(&stream, &[x.view()], 1.0, to(two.view()));
    assert!(matches!(
        found.as_ref().map_err(Error::kind),
        Err(ErrorKind::ShapeMismatch { op: "total_norm", .. })
    ));
    let found = scale_all(&stream, &[(two.view(), x.view())], scale.view());
    assert!(matches!(
        found.as_ref().map_err(Error::kind),
        Err(ErrorKind::ShapeMismatch { op: "scale_all", .. })
    ));
    let other = Array::full(&stream, 0.0f64, &[2, 3]);
    let found = scale_all(&stream, &[(other.view(), x.view())], scale.view());
    assert!(
        matches!(found.as_ref().map_err(Error::kind), Err(ErrorKind::DTypeMismatch { op: "scale_all", .. })),
        "{found:?}"
    );
}
