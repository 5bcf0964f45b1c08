//! Reductions over any axes against sums written out.

use device::Result;
use proptest::prelude::*;
use tensor::{DType, Error, ErrorKind, Tensor, grad};

use crate::on::device;
use crate::reference::{Plain, broadcast_pairs, indices, shapes};

/// The groups of elements that a reduction of `axes` joins, by the kept part of their index.
fn groups(x: &Plain, axes: &[usize], keepdim: bool) -> (Vec<usize>, Vec<Vec<f64>>) {
    let kept: Vec<usize> =
        x.shape.iter().enumerate().map(|(a, &n)| if axes.contains(&a) { 1 } else { n }).collect();
    let inner: Vec<usize> =
        x.shape.iter().enumerate().map(|(a, &n)| if axes.contains(&a) { n } else { 1 }).collect();
    let group = |head: Vec<usize>| {
        let place = |step: &Vec<usize>| -> Vec<usize> { head.iter().zip(step).map(|(a, b)| a + b).collect() };
        indices(&inner).iter().map(|step| x.at(&place(step))).collect()
    };
    let values = indices(&kept).into_iter().map(group).collect();
    let shape = if keepdim {
        kept
    } else {
        x.shape.iter().enumerate().filter(|(a, _)| !axes.contains(a)).map(|(_, &n)| n).collect()
    };
    (shape, values)
}

fn mean(v: &[f64]) -> f64 {
    v.iter().sum::<f64>() / v.len() as f64
}

proptest! {
    #[test]
    fn reductions_over_any_axes(shape in shapes(), how in 0_u8..4, pick in 0_u8..16, keepdim: bool) {
        let x = Plain::numbered(&shape, 11);
        let t = x.f64(how)?;
        let mut axes: Vec<usize> = (0..shape.len()).filter(|axis| pick >> axis & 1 == 1).collect();
        let named: Vec<isize> = axes.iter().rev().map(|&a| a as isize - shape.len() as isize).collect();
        if axes.is_empty() {
            axes = (0..shape.len()).collect();
        }
        let (out, groups) = groups(&x, &axes, keepdim);
        let expect = |f: &dyn Fn(&[f64]) -> f64| {
            Plain { shape: out.clone(), data: groups.iter().map(|g| f(g)).collect() }
        };
        prop_assert!(expect(&|g| g.iter().sum()).matches(&t.sum(&named, keepdim)?, 1e-12)?);
        prop_assert!(expect(&|g| g.iter().product()).matches(&t.prod(&named, keepdim)?, 1e-10)?);
        prop_assert!(expect(&mean).matches(&t.mean(&named, keepdim)?, 1e-12)?);
        let var = |g: &[f64]| g.iter().map(|v| (v - mean(g)).powi(2)).sum::<f64>() / (g.len() as f64 - 1.0).max(0.0);
        prop_assert!(expect(&var).matches(&t.var(&named, 1.0, keepdim)?, 1e-10)?);
        let lse = |g: &[f64]| g.iter().map(|v| v.exp()).sum::<f64>().ln();
        prop_assert!(expect(&lse).matches(&t.logsumexp(&named, keepdim)?, 1e-12)?);
        if axes.iter().all(|&axis| shape[axis] > 0) {
            let max = |g: &[f64]| g.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            prop_assert!(expect(&max).matches(&t.max(&named, keepdim)?, 0.0)?);
            let min = |g: &[f64]| g.iter().copied().fold(f64::INFINITY, f64::min);
            prop_assert!(expect(&min).matches(&t.min(&named, keepdim)?, 0.0)?);
        } else {
            let refused = matches!(t.max(&named, keepdim).as_ref().map_err(Error::kind), Err(ErrorKind::InvalidArgument { op: "max", .. }));
            prop_assert!(refused);
        }
    }

    #[test]
    fn argmax_and_the_softmax_family(shape in shapes(), how in 0_u8..4, axis in 0_usize..4, keepdim: bool) {
        prop_assume!(!shape.is_empty());
        let axis = axis % shape.len();
        let x = Plain::numbered(&shape, 12);
        let t = x.f64(how)?;
        let (out, groups) = groups(&x, &[axis], keepdim);
        if shape[axis] > 0 {
            let first_max = |g: &Vec<f64>| {
                g.iter().enumerate().fold(0, |best, (i, v)| if *v > g[best] { i } else { best }) as f64
            };
            let expected = Plain { shape: out.clone(), data: groups.iter().map(first_max).collect() };
            prop_assert!(expected.matches(&t.argmax(axis as isize, keepdim)?, 0.0)?);
        }
        let total = |index: &[usize]| -> f64 {
            (0..shape[axis]).map(|i| {
                let mut index = index.to_vec();
                index[axis] = i;
                x.at(&index).exp()
            }).sum()
        };
        let softmax = Plain::from_fn(&shape, |index| x.at(index).exp() / total(index));
        prop_assert!(softmax.matches(&t.softmax(axis as isize)?, 1e-12)?);
        let log_softmax = Plain::from_fn(&shape, |index| x.at(index) - total(index).ln());
        prop_assert!(log_softmax.matches(&t.log_softmax(axis as isize)?, 1e-11)?);
        let (y, ly) = (t.softmax(axis as isize)?, t.log_softmax(axis as isize)?);
        let g = Plain::numbered(&shape, 13).f64(how)?;
        let (at, whole) = ([axis as isize], shape.clone());
        let expected = y.mul(&g.sub(&y.mul(&g)?.sum(&at, true)?)?)?;
        let far = |a: &Tensor, b: &Tensor| -> Result<f64> {
            if a.is_empty() { Ok(0.0) } else { a.sub(b)?.abs()?.max(&[], false)?.item::<f64>() }
        };
        prop_assert!(far(&grad::softmax(&y, &g, axis as isize)?, &expected)? < 1e-10);
        let expected = g.sub(&ly.exp()?.mul(&g.sum(&at, true)?)?)?;
        let got = grad::log_softmax(&ly, &g, axis as isize)?;
        prop_assert_eq!(got.shape(), &whole[..]);
        prop_assert!(far(&got, &expected)? < 1e-10);
    }

    #[test]
    fn sum_to_undoes_broadcasting((a, _, out) in broadcast_pairs(), how in 0_u8..4) {
        let x = Plain::numbered(&out, 14);
        let mut expected = Plain::from_fn(&a, |_| 0.0);
        for index in indices(&out) {
            let skip = out.len() - a.len();
            let own = index[skip..].iter().zip(&a).map(|(&i, &n)| if n == 1 { 0 } else { i });
            let place = own.zip(&a).fold(0, |place, (i, &n)| place * n + i);
            expected.data[place] += x.at(&index);
        }
        prop_assert!(expected.matches(&x.f64(how)?.sum_to(&a)?, 1e-12)?);
    }
}

#[test]
fn nan_wins_and_empty_sums_are_neutral() -> Result<()> {
    let device = device();
    let x = Tensor::from_slice(&[1.0_f32, f32::NAN, 3.0, f32::NAN], &[4], &device)?;
    assert!(x.max(&[], false)?.item::<f32>()?.is_nan());
    assert!(x.min(&[], false)?.item::<f32>()?.is_nan());
    assert_eq!(x.argmax(0, false)?.item::<i64>()?, 1);
    assert_eq!(x.argmin(0, false)?.item::<i64>()?, 1);
    let none = Tensor::zeros(&[0, 2], DType::F32, &device)?;
    assert_eq!(none.sum(&[0], false)?.to_vec::<f32>()?, [0.0, 0.0]);
    assert_eq!(none.prod(&[0], false)?.to_vec::<f32>()?, [1.0, 1.0]);
    assert!(none.mean(&[], false)?.item::<f32>()?.is_nan());
    assert_eq!(none.logsumexp(&[0], false)?.to_vec::<f32>()?, [f32::NEG_INFINITY; 2]);
    assert!(none.max(&[1], false)?.is_empty());
    assert!(matches!(
        none.argmax(0, false).as_ref().map_err(Error::kind),
        Err(ErrorKind::InvalidArgument { op: "argmax", .. })
    ));
    Ok(())
}

#[test]
fn indices_of_the_bounds_of_integers() -> Result<()> {
    let device = device();
    let x = Tensor::from_slice(&[0, i64::MIN, i64::MAX, i64::MIN, i64::MAX], &[5], &device)?;
    assert_eq!((x.argmin(0, false)?.item::<i64>()?, x.argmax(0, false)?.item::<i64>()?), (1, 2));
    let x = Tensor::from_slice(&[3_u8, 0, 255, 0, 255], &[5], &device)?;
    assert_eq!((x.argmin(0, false)?.item::<i64>()?, x.argmax(0, false)?.item::<i64>()?), (1, 2));
    assert_eq!(x.reshape(&[1, 5])?.argmin(0, true)?.to_vec::<i64>()?, [0; 5]);
    let truths = Tensor::ones(&[2], DType::Bool, &device)?;
    assert!(matches!(
        truths.argmin(0, false).as_ref().map_err(Error::kind),
        Err(ErrorKind::DTypeUnsupported { op: "argmin", .. })
    ));
    let none = Tensor::zeros(&[0, 2], DType::F32, &device)?;
    assert!(matches!(
        none.argmin(0, false).as_ref().map_err(Error::kind),
        Err(ErrorKind::InvalidArgument { op: "argmin", .. })
    ));
    Ok(())
}

#[test]
fn small_integers_sum_wide() -> Result<()> {
    let device = device();
    let bytes = Tensor::full(&[300], 255, DType::U8, &device)?;
    assert_eq!(bytes.sum(&[], false)?.item::<i64>()?, 300 * 255);
    let truths = Tensor::ones(&[2, 70], DType::Bool, &device)?;
    assert_eq!(truths.sum(&[1], false)?.to_vec::<i64>()?, [70, 70]);
    assert!(matches!(
        bytes.mean(&[], false).as_ref().map_err(Error::kind),
        Err(ErrorKind::DTypeUnsupported { op: "mean", dtype: DType::U8, .. })
    ));
    Ok(())
}

#[test]
fn scalars_have_one_axis() -> Result<()> {
    let x = Tensor::scalar(3.0_f64, &device())?;
    for y in [x.sum(&[0], false)?, x.max(&[-1], true)?, x.mean(&[], false)?, x.sum_to(&[])?] {
        assert_eq!((y.rank(), y.item::<f64>()?), (0, 3.0));
    }
    assert_eq!(x.softmax(0)?.item::<f64>()?, 1.0);
    assert_eq!(x.log_softmax(-1)?.rank(), 0);
    assert_eq!(x.argmax(0, false)?.item::<i64>()?, 0);
    assert!(matches!(
        x.sum(&[1], false).as_ref().map_err(Error::kind),
        Err(ErrorKind::AxisOutOfRange { .. })
    ));
    Ok(())
}
