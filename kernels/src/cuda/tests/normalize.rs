//! Normalization by rows and its gradients.

use super::*;
use crate::{NormGrads, NormInput, NormRows, View, copy, normalize, normalize_grad, normalize_workspace};

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
    let shape = [at.1, at.0.groups, at.0.channels, at.0.inner];
    let g = Array::new(stream, &numbers::<T>(7, shape.iter().product()), &shape);
    backward_of(stream, at, options, g)
}

fn backward_of<T: Real>(
    stream: &Stream,
    at: (NormRows, usize),
    options: Options,
    g: Array<T>,
) -> Result<Grads<T>> {
    let Operands { x, weight, mean, rstd, .. } = forward::<T>(stream, at, options)?;
    let (shape, weights) = (x.layout.dims(), at.0.weights());
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

/// Where an operand lies shows in no bit, though neighbours are read at once only where that is possible.
#[test]
fn gradients_of_weights_are_the_same_wherever_operands_lie() {
    fn check<T: Real>(stream: &Stream) {
        let options = Options { centred: true, affine: true };
        for (channels, rows) in [(128, 40), (36, 3000), (8, 40_000)] {
            let at = (NormRows { groups: 1, channels, inner: 1 }, rows);
            let [whole, behind] = [0, 1].map(|skipped| {
                let mut elements = numbers::<T>(7, rows * channels);
                elements.splice(0..0, vec![T::of(5.0); skipped]);
                let last = Array::new(stream, &elements, &[elements.len()]).with(|all| {
                    let rest = all.narrow("test", 0, skipped, rows * channels).expect("a part");
                    let rest = rest.reshape("test", &[rows, 1, channels, 1]).expect("as many");
                    rest.expect("in one piece")
                });
                backward_of(stream, at, options, last).expect("valid operands").1
            });
            for (whole, behind) in whole.iter().zip(&behind) {
                let same = whole.to_vec().into_iter().zip(behind.to_vec()).all(|(a, b)| a.agrees(b, 0.0));
                assert!(same, "{}, {at:?}", T::DTYPE);
            }
        }
    }
    let Some(both) = both() else { return };
    check::<f32>(&both.cuda);
    check::<bf16>(&both.cuda);
}

/// Checks that two ways have given the same bits.
fn same<T: Real>(what: impl Debug, found: &Array<T>, expected: &Array<T>) {
    let (found, expected) = (found.to_vec(), expected.to_vec());
    assert_eq!(found.len(), expected.len());
    assert!(found.iter().zip(&expected).all(|(a, b)| a.agrees(*b, 0.0)), "{what:?}, {}", T::DTYPE);
}

/// Weights and biases of the elements' type give the same bits as their values in the compute type, and their gradients are rounded
/// once.
fn stored_as_elements<T: Real>(stream: &Stream) -> Result<()> {
    for (rows, n) in ROWS {
        let (shape, weights) = ([n, rows.groups, rows.channels, rows.inner], [rows.weights()]);
        let of = |seed| Array::new(stream, &numbers::<T>(seed, shape.iter().product()), &shape);
        let (x, g) = (of(1), of(7));
        let narrow = [2, 3].map(|seed| Array::new(stream, &numbers::<T>(seed, weights[0]), &weights));
        let wide = [(); 2].map(|()| Array::full(stream, T::Computed::of(0.0), &weights));
        for (from, to) in narrow.iter().zip(&wide) {
            copy(stream, from.view(), to.view())?;
        }
        let space = Array::full(stream, 0_u8, &[normalize_workspace(stream, rows, x.layout.elements())]);
        let run = |[weight, bias]: [View<'_>; 2], [dweight, dbias]: [View<'_>; 2]| -> Result<[Array<T>; 2]> {
            let [out, dx] = [(); 2].map(|()| Array::full(stream, T::of(9.0), &shape));
            let [mean, rstd] = [(); 2].map(|()| Array::full(stream, T::Computed::of(9.0), &[n, rows.groups]));
            let input = NormInput { x: x.view(), weight: Some(weight), bias: Some(bias) };
            normalize(stream, "norm", rows, input, 1e-5, out.view(), (Some(mean.view()), rstd.view()))?;
            let workspace = Some(space.view());
            let to = NormGrads { x: Some(dx.view()), weight: Some(dweight), bias: Some(dbias), workspace };
            let statistics = (Some(mean.view()), rstd.view());
            normalize_grad(stream, "norm_grad", rows, g.view(), (x.view(), Some(weight)), statistics, to)?;
            Ok([out, dx])
        };
        let rounded = [(); 2].map(|()| Array::full(stream, T::of(9.0), &weights));
        let sums = [(); 2].map(|()| Array::full(stream, T::Computed::of(9.0), &weights));
        let found = run(narrow.each_ref().map(Array::view), rounded.each_ref().map(Array::view))?;
        let expected = run(wide.each_ref().map(Array::view), sums.each_ref().map(Array::view))?;
        for (found, expected) in found.iter().zip(&expected) {
            same(("out, dx", rows, n), found, expected);
        }
        for (found, sum) in rounded.iter().zip(&sums) {
            let expected = Array::full(stream, T::of(0.0), &weights);
            copy(stream, sum.view(), expected.view())?;
            same(("dweight, dbias", rows, n), found, &expected);
        }
    }
    Ok(())
}

#[test]
fn weights_may_be_stored_as_elements() {
    let Some(both) = both() else { return };
    for stream in [&both.cpu, &both.cuda] {
        stored_as_elements::<bf16>(stream).expect("valid operands");
        stored_as_elements::<f16>(stream).expect("valid operands");
    }
}
