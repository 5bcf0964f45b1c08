//! Normalization by rows and its gradients.

use super::*;
use crate::{NormGrads, NormInput, NormRows, normalize, normalize_grad, normalize_workspace};

/// Rows that are short and long, few and many, and those of groups.
const ROWS: [(NormRows, usize); 11] = [
    (NormRows { groups: 1, channels: 5, inner: 1 }, 3),
    (NormRows { groups: 1, channels: 128, inner: 1 }, 40),
    (NormRows { groups: 1, channels: 33, inner: 1 }, 1100),
    (NormRows { groups: 1, channels: 700, inner: 1 }, 4),
    (NormRows { groups: 1, channels: 20_000, inner: 1 }, 2),
    (NormRows { groups: 2, channels: 3, inner: 7 }, 4),
    (NormRows { groups: 3, channels: 2, inner: 600 }, 3),
    (NormRows { groups: 4, channels: 9, inner: 1 }, 60),
    (NormRows { groups: 1, channels: 36, inner: 1 }, 3000),
    (NormRows { groups: 2, channels: 4, inner: 64 }, 700),
    (NormRows { groups: 1, channels: 9000, inner: 1 }, 2),
];

struct Operands<T: Real> {
    x: Array<T>,
    weight: Array<T::Computed>,
    bias: Array<T::Computed>,
    out: Array<T>,
    mean: Array<T::Computed>,
    rstd: Array<T::Computed>,
}

fn forward<T: Real>(stream: &Stream, (rows, n): (NormRows, usize), options: Options) -> Result<Operands<T>> {
    let shape = [n, rows.groups, rows.channels, rows.inner];
    let of = |seed, shape: &[usize]| Array::new(stream, &numbers::<T>(seed, shape.iter().product()), shape);
    let computed = |seed, shape: &[usize]| {
        Array::new(stream, &numbers::<T::Computed>(seed, shape.iter().product()), shape)
    };
    let statistic = |seed| computed(seed, &[n, rows.groups]);
    let operands = Operands {
        x: of(1, &shape),
        weight: computed(2, &[rows.weights()]),
        bias: computed(3, &[rows.weights()]),
        out: of(4, &shape),
        mean: statistic(5),
        rstd: statistic(6),
    };
    let input = NormInput {
        x: operands.x.view(),
        weight: options.affine.then(|| operands.weight.view()),
        bias: options.affine.then(|| operands.bias.view()),
    };
    let mean = options.centred.then(|| operands.mean.view());
    normalize(stream, "norm", rows, input, 1e-5, operands.out.view(), (mean, operands.rstd.view()))?;
    Ok(operands)
}

#[derive(Clone, Copy, Debug)]
struct Options {
    centred: bool,
    affine: bool,
}

/// dx; dweight and dbias
type Grads<T> = (Array<T>, [Array<<T as Real>::Computed>; 2]);

fn backward<T: Real>(stream: &Stream, at: (NormRows, usize), options: Options) -> Result<Grads<T>> {
    let Operands { x, weight, mean, rstd, .. } = forward::<T>(stream, at, options)?;
    let (shape, weights) = (x.layout.dims(), at.0.weights());
    let g = Array::new(stream, &numbers::<T>(7, shape.iter().product()), &shape);
    let dx = Array::full(stream, T::of(9.0), &shape);
    let [dweight, dbias] = [(); 2].map(|()| Array::full(stream, T::Computed::of(9.0), &[weights]));
    let weight = options.affine.then(|| weight.view());
    let statistics = (options.centred.then(|| mean.view()), rstd.view());
    let bytes = normalize_workspace(stream, at.0, x.layout.elements());
    let space = Array::full(stream, 0xff_u8, &[bytes]);
    let to = NormGrads {
        x: Some(dx.view()),
        weight: Some(dweight.view()),
        bias: Some(dbias.view()),
        workspace: Some(space.view()),
    };
    normalize_grad(stream, "norm_grad", at.0, g.view(), (x.view(), weight), statistics, to)?;
    Ok((dx, [dweight, dbias]))
}

fn norms_of<T: Real>(unit: f64) {
    let Some(both) = both() else { return };
    for at in ROWS {
        for (centred, affine) in [(true, true), (false, true), (true, false)] {
            let options = Options { centred, affine };
            let tolerance = unit * (at.0.row() as f64).sqrt();
            both.close(tolerance, ("out", T::DTYPE, at, options), |stream| {
                Ok(forward::<T>(stream, at, options)?.out)
            });
            both.close(tolerance, ("rstd", T::DTYPE, at, options), |stream| {
                Ok(forward::<T>(stream, at, options)?.rstd)
            });
            both.close(tolerance, ("mean", T::DTYPE, at, options), |stream| {
                Ok(forward::<T>(stream, at, options)?.mean)
            });
            let tolerance = 4.0 * unit * (at.0.row().max(at.1 * at.0.inner) as f64).sqrt();
            both.close(tolerance, ("dx", T::DTYPE, at, options), |stream| {
                Ok(backward::<T>(stream, at, options)?.0)
            });
            for which in 0..2 {
                both.close(tolerance, ("dweight, dbias", which, T::DTYPE, at, options), |stream| {
                    Ok(Vec::from(backward::<T>(stream, at, options)?.1).swap_remove(which))
                });
            }
        }
    }
}

#[test]
fn norms_and_gradients_of_f32() {
    norms_of::<f32>(2e-6);
}

#[test]
fn norms_and_gradients_of_f64() {
    norms_of::<f64>(1e-14);
}

#[test]
fn norms_and_gradients_of_halves() {
    norms_of::<bf16>(2e-6);
    norms_of::<f16>(2e-6);
}

#[test]
fn no_rows_have_gradients_of_zero() {
    let Some(both) = both() else { return };
    let rows = NormRows { groups: 1, channels: 4, inner: 1 };
    both.same("dweight", |stream| {
        let (_, [dweight, _]) = backward::<f32>(stream, (rows, 0), Options { centred: true, affine: true })?;
        Ok(dweight)
    });
}
