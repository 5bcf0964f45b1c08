//! The norm over many tensors, and their scaling.

use super::*;
use crate::layout::View;
use crate::{TotalNorm, norm_parts, scale_all, total_norm};

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
