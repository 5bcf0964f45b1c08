//! What is done to one gradient is done to no other.

use std::slice::from_ref;

use tensor::{DType, Device, Result, Tensor};

use super::*;
use crate::{BackwardOptions, GradOptions, grad};

fn leaf(values: &[f64]) -> Result<Var> {
    Ok(Var::leaf(Tensor::from_slice(values, &[values.len()], &Device::cpu())?))
}

fn values(gradient: Option<Tensor>) -> Result<Vec<f64>> {
    gradient.map_or(Ok(Vec::new()), |gradient| gradient.to_vec())
}

fn seeded(gradient: &Var, create_graph: bool) -> BackwardOptions {
    BackwardOptions { gradient: Some(gradient.clone()), create_graph, ..BackwardOptions::default() }
}

#[test]
fn a_change_in_place_changes_one_gradient() -> Result<()> {
    for create_graph in [false, true] {
        let (a, b) = (leaf(&[1.0, 2.0])?, leaf(&[3.0, 4.0])?);
        let seed = Var::constant(Tensor::ones(&[2], DType::F64, &Device::cpu())?);
        let gradients = a.add(&b)?.backward_with(seeded(&seed, create_graph))?;
        if let Some(gradient) = gradients.get(&a) {
            gradient.mul_scalar_(5.0)?;
        }
        assert_eq!(values(gradients.get(&a))?, [5.0, 5.0], "the store holds the gradient that it hands out");
        assert_eq!(values(gradients.get(&b))?, [1.0, 1.0]);
        seed.value().fill_(7.0)?;
        assert_eq!(values(gradients.get(&b))?, [1.0, 1.0]);
        for gradient in gradients.iter() {
            gradient.value().add_scalar_(1.0)?;
        }
        assert_eq!((values(gradients.get(&a))?, values(gradients.get(&b))?), (vec![6.0; 2], vec![2.0; 2]));
        assert_eq!(seed.value().to_vec::<f64>()?, [7.0, 7.0]);
    }
    Ok(())
}

#[test]
fn what_takes_a_gradients_place_fits_it() -> Result<()> {
    let x = leaf(&[1.0, 2.0])?;
    let mut gradients = x.square()?.sum(&[], false)?.backward()?;
    let other = Device::cpu_with(device::CpuConfig::default());
    let misfits = [
        Tensor::ones(&[2], DType::F32, &Device::cpu())?,
        Tensor::ones(&[1], DType::F64, &Device::cpu())?,
        Tensor::ones(&[2], DType::F64, &other)?,
    ];
    for misfit in misfits.map(Var::constant) {
        assert!(gradients.replace(&x, misfit.clone()).is_err());
        assert!(gradients.map(|_| Ok(misfit.clone())).is_err());
        assert_eq!(values(gradients.get(&x))?, [2.0, 4.0]);
    }
    assert!(gradients.replace(&x, Var::constant(Tensor::ones(&[2], DType::F64, &Device::cpu())?))?);
    assert_eq!(values(gradients.get(&x))?, [1.0, 1.0]);
    Ok(())
}

#[test]
fn parts_of_one_storage_come_apart() -> Result<()> {
    let (a, b) = (leaf(&[1.0, 2.0])?, leaf(&[3.0])?);
    let gradients = Var::cat(&[&a, &b], 0)?.square()?.sum(&[], false)?.backward()?;
    let (ga, gb) = (gradients.get(&a), gradients.get(&b));
    assert!(ga.iter().zip(&gb).all(|(a, b)| !a.same_storage(b)));
    assert_eq!((values(ga)?, values(gb)?), (vec![2.0, 4.0], vec![6.0]));
    Ok(())
}

#[test]
fn an_expanded_gradient_can_be_changed_in_place() -> Result<()> {
    let x = leaf(&[1.0, 2.0, 3.0])?;
    let gradients = x.sum(&[], false)?.backward()?;
    for gradient in gradients.iter() {
        gradient.value().narrow(0, 1, 1)?.mul_scalar_(4.0)?;
    }
    assert_eq!(values(gradients.get(&x))?, [1.0, 4.0, 1.0]);
    let y = x.sum(&[], false)?;
    let found = grad(from_ref(&y), from_ref(&x), GradOptions::default())?;
    for gradient in found.iter().flatten() {
        gradient.value().narrow(0, 1, 1)?.mul_scalar_(4.0)?;
        assert_eq!(gradient.value().to_vec::<f64>()?, [1.0, 4.0, 1.0]);
    }
    Ok(())
}

#[test]
fn gradients_of_values_share_nothing_either() -> Result<()> {
    let (a, b) = (leaf(&[1.0])?, leaf(&[2.0])?);
    let y = a.add(&b)?;
    let seed = leaf(&[3.0])?;
    let options = GradOptions { gradients: vec![Some(seed.clone())], ..GradOptions::default() };
    let found = grad(from_ref(&y), &[y.clone(), a.clone(), b, a], options)?;
    for (at, gradient) in found.iter().flatten().enumerate() {
        assert!(!gradient.requires_grad(), "a pass that is not recorded gives constants");
        gradient.value().add_scalar_(at as f64)?;
    }
    let found: Vec<f64> = found.iter().flatten().map(|g| g.value().item()).collect::<Result<_>>()?;
    assert_eq!(found, [3.0, 4.0, 5.0, 6.0]);
    assert_eq!(seed.value().to_vec::<f64>()?, [3.0]);
    Ok(())
}

#[test]
fn what_map_returns_is_each_gradients_own() -> Result<()> {
    let (a, b) = (leaf(&[1.0, 2.0])?, leaf(&[3.0, 4.0])?);
    let mut gradients = a.mul(&b)?.sum(&[], false)?.backward()?;
    let same = Var::constant(Tensor::ones(&[2], DType::F64, &Device::cpu())?);
    let one = Var::constant(Tensor::ones(&[], DType::F64, &Device::cpu())?);
    let kept = gradients.get(&a);
    for returned in [same.clone(), one.expand(&[2])?] {
        gradients.map(|_| Ok(returned.clone()))?;
        for (gradient, factor) in gradients.iter().zip([2.0, 3.0]) {
            gradient.value().narrow(0, 0, 1)?.mul_scalar_(factor)?;
        }
        assert_eq!(
            (values(gradients.get(&a))?, values(gradients.get(&b))?),
            (vec![2.0, 1.0], vec![3.0, 1.0])
        );
    }
    assert_eq!((same.value().to_vec()?, one.value().to_vec()?), (vec![1.0, 1.0], vec![1.0]));
    assert_eq!(values(kept)?, [3.0, 4.0]);
    Ok(())
}

#[test]
fn what_merge_takes_over_is_each_stores_own() -> Result<()> {
    let (a, b) = (leaf(&[1.0, 2.0])?, leaf(&[3.0, 4.0])?);
    let mut sum = a.sum(&[], false)?.backward()?;
    let both = a.mul(&b)?.sum(&[], false)?.backward()?;
    sum.merge(both.clone())?;
    for gradient in sum.iter() {
        gradient.value().fill_(9.0)?;
    }
    assert_eq!((values(both.get(&a))?, values(both.get(&b))?), (vec![3.0, 4.0], vec![1.0, 2.0]));
    let mut shared = a.neg()?.sum(&[], false)?.backward()?;
    let Some(gradient) = shared.get_var(&a).cloned() else { unreachable!("it has one") };
    let mut other = b.sum(&[], false)?.backward()?;
    other.replace(&b, gradient)?;
    shared.merge(other)?;
    for (gradient, factor) in shared.iter().zip([2.0, 3.0]) {
        gradient.value().mul_scalar_(factor)?;
    }
    assert_eq!((values(shared.get(&a))?, values(shared.get(&b))?), (vec![-2.0; 2], vec![-3.0; 2]));
    Ok(())
}

/// What only the store holds is handed out as it is.
#[test]
fn an_own_gradient_is_not_copied() -> Result<()> {
    // Of this test alone, as are the commands that are audited.
    let device = Device::cpu_with(device::CpuConfig::default());
    let x = Var::leaf(Tensor::from_slice(&[1.0, 2.0], &[2], &device)?);
    let y = x.square()?.sum(&[], false)?;
    x.device().start_audit();
    let gradients = y.backward()?;
    let audit = x.device().stop_audit();
    assert!(gradients.get(&x).is_some());
    let ops: Vec<_> = audit.commands().map(|command| command.op).collect();
    assert_eq!(ops, ["fill", "square_grad"]);
    let mut other = gradients;
    let mut merged = Gradients::default();
    x.device().start_audit();
    other.map(|gradient| Ok(gradient.clone()))?;
    merged.merge(other)?;
    assert_eq!(x.device().stop_audit().commands().count(), 0);
    Ok(())
}

#[test]
fn a_seed_takes_part_in_a_recorded_pass_alone() -> Result<()> {
    let (x, seed) = (leaf(&[2.0])?, leaf(&[3.0])?);
    for create_graph in [false, true] {
        let gradients = x.add(&x)?.neg()?.backward_with(seeded(&seed, create_graph))?;
        let own = x.add_scalar(1.0)?.backward_with(seeded(&seed, create_graph))?;
        let both = [gradients.get_var(&x), own.get_var(&x)];
        assert_eq!(both.map(|g| g.map(Var::requires_grad)), [Some(create_graph); 2]);
        if !create_graph {
            continue;
        }
        for (gradient, slope) in both.into_iter().flatten().zip([-2.0, 1.0]) {
            assert_eq!(values(gradient.mul_scalar(1.0)?.backward()?.get(&seed))?, [slope]);
        }
    }
    Ok(())
}

/// Where parts leave something out, overlap, are of another axis, or are more than are kept apart.
#[test]
fn gradients_of_parts_are_put_together() -> Result<()> {
    let places = [
        &[(1, 4, 2)][..],
        &[(1, 2, 3), (1, 5, 3)],
        &[(1, 0, 1), (1, 7, 1), (1, 3, 2)],
        &[(1, 0, 4), (1, 2, 4)],
        &[(1, 0, 3), (0, 1, 1), (1, 3, 5)],
        &[(1, 0, 1), (1, 2, 1), (1, 4, 1), (1, 6, 1), (1, 7, 1), (1, 1, 1)],
        &[(1, 1, 2), (1, 1, 0)],
        &[(1, 4, 0)],
        &[(1, 3, 5), (1, 3, 5), (1, 0, 3)],
    ];
    for parts in places {
        let x = Var::leaf(Tensor::arange(0.0, 16.0, 1.0, DType::F64, &Device::cpu())?.reshape(&[2, 8])?);
        let y = x.mul_scalar(1.0)?;
        let (mut loss, mut expected) =
            (Var::constant(Tensor::zeros(&[], DType::F64, &Device::cpu())?), [0.0; 16]);
        for (at, &(axis, start, len)) in parts.iter().enumerate() {
            let factor = 2.0 + at as f64;
            loss = loss.add(&y.narrow(axis, start, len)?.mul_scalar(factor)?.sum_all()?)?;
            for (place, sum) in expected.iter_mut().enumerate() {
                let along = if axis == 0 { place / 8 } else { place % 8 };
                *sum += if (start..start + len).contains(&along) { factor } else { 0.0 };
            }
        }
        assert_eq!(values(loss.backward()?.get(&x))?, expected, "{parts:?}");
    }
    Ok(())
}
