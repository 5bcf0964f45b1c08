//! The norm over many tensors, and their scaling.

use super::*;
use crate::layout::View;
use crate::{TotalNorm, norm_parts, scale_all, total_norm, unscale_all};

/// More tensors than a launch takes, among them one of several parts and an empty one.
fn sizes() -> Vec<usize> {
    (0..150).map(|i| [3, 0, 2048, 1][i % 4]).chain([10_000, 7]).collect()
}

/// What was scaled, and the norm and the factor.
type Clipped<T> = (Array<T>, [Array<<T as Real>::Computed>; 2]);

fn clipped<T: Real>(stream: &Stream, max_norm: f64) -> Result<Clipped<T>> {
    let tensors: Vec<Array<T>> = (1..)
        .zip(sizes())
        .map(|(seed, size)| Array::new(stream, &numbers::<T>(seed, size), &[size]))
        .collect();
    let views: Vec<View<'_>> = tensors.iter().map(Array::view).collect();
    let number = |shape: &[usize]| Array::full(stream, T::Computed::of(0.0), shape);
    let (parts, norm, scale) = (number(&[norm_parts(sizes())]), number(&[]), number(&[]));
    let to = TotalNorm { parts: parts.view(), norm: norm.view(), scale: scale.view() };
    total_norm(stream, &views, max_norm, to)?;
    let scaled: Vec<Array<T>> =
        sizes().iter().map(|&size| Array::full(stream, T::of(0.0), &[size])).collect();
    let pairs: Vec<_> = scaled.iter().map(Array::view).zip(views).collect();
    scale_all(stream, &pairs, scale.view())?;
    let all: Vec<T> = scaled.iter().flat_map(Array::to_vec).collect();
    Ok((Array::new(stream, &all, &[all.len()]), [norm, scale]))
}

/// What was unscaled, and whether something was not finite.
fn unscaled<T: Real>(stream: &Stream, changed: Option<(usize, f64)>) -> Result<(Array<T>, T::Computed)> {
    let mut first = 0;
    let tensors: Vec<Array<T>> = (1..)
        .zip(sizes())
        .map(|(seed, size)| {
            let mut values = numbers::<T>(seed, size);
            if let Some((at, value)) = changed.filter(|(at, _)| (first..first + size).contains(at)) {
                values[at - first] = T::of(value);
            }
            first += size;
            Array::new(stream, &values, &[size])
        })
        .collect();
    let pairs: Vec<_> = tensors.iter().map(|x| (x.view(), x.view())).collect();
    let number = |value, shape: &[usize]| Array::full(stream, T::Computed::of(value), shape);
    let (parts, found, scale) = (number(7.0, &[norm_parts(sizes())]), number(7.0, &[]), number(8.0, &[]));
    unscale_all(stream, &pairs, scale.view(), [parts.view(), found.view()])?;
    let all: Vec<T> = tensors.iter().flat_map(Array::to_vec).collect();
    Ok((Array::new(stream, &all, &[all.len()]), found.to_vec()[0]))
}

fn check_unscaled<T: Real>(both: &Both) {
    both.close(0.0, ("unscaled", T::DTYPE), |stream| Ok(unscaled::<T>(stream, None)?.0));
    let elements = sizes().iter().sum::<usize>();
    for (changed, expected) in [
        (None, 0.0),
        (Some((0, f64::NAN)), 1.0),
        (Some((3000, f64::INFINITY)), 1.0),
        (Some((elements - 1, f64::NEG_INFINITY)), 1.0),
    ] {
        both.close(0.0, ("found", T::DTYPE, changed), |stream| {
            let found = unscaled::<T>(stream, changed)?.1;
            assert!(found == T::Computed::of(expected), "{:?}: {changed:?}", T::DTYPE);
            Ok(Array::new(stream, &[found], &[1]))
        });
    }
}

#[test]
fn what_is_not_finite() {
    let Some(both) = both() else { return };
    check_unscaled::<f32>(&both);
    check_unscaled::<f64>(&both);
    check_unscaled::<bf16>(&both);
    check_unscaled::<f16>(&both);
}

fn check<T: Real>(both: &Both) {
    for max_norm in [0.5, 1e9] {
        both.all_close(T::UNIT, ["norm", "scale"], |stream| Ok(clipped::<T>(stream, max_norm)?.1));
        both.close(T::UNIT, ("scaled", T::DTYPE, max_norm), |stream| Ok(clipped::<T>(stream, max_norm)?.0));
    }
}

#[test]
fn the_norm_and_what_it_scales() {
    let Some(both) = both() else { return };
    check::<f32>(&both);
    check::<f64>(&both);
    check::<bf16>(&both);
    check::<f16>(&both);
}
