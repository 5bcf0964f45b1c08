//! What becomes of a graph when it is dropped, and of hooks.

use std::sync::Arc;
use std::thread;

use tensor::{Device, Result, Tensor};

use super::*;
use crate::{BackwardOptions, GradOptions, grad};

/// Many more than fit the stack below if each took a frame.
const STEPS: usize = 50_000;

fn one() -> Result<Var> {
    Ok(Var::leaf(Tensor::ones(&[1], tensor::DType::F64, &Device::cpu())?))
}

/// Runs `f` on a thread with the stack of a small one.
fn on_a_small_stack(f: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
    let thread = thread::Builder::new().stack_size(256 << 10).spawn(f);
    thread.expect("a thread").join().expect("no panic")
}

/// `step` applied again and again, with and without a pass, and with a recorded pass.
fn drops(step: fn(&Var, &Var) -> Result<Var>) -> Result<()> {
    on_a_small_stack(move || {
        let x = one()?;
        let chain = |steps| (0..steps).try_fold(x.clone(), |y, _| step(&y, &x));
        drop(chain(STEPS)?);
        let y = chain(STEPS)?;
        assert!(y.backward()?.get(&x).is_some());
        assert!(y.tape().len() > STEPS);
        drop(y);
        let y = chain(STEPS / 10)?;
        let options = BackwardOptions { create_graph: true, ..BackwardOptions::default() };
        let gradients = y.backward_with(options)?;
        drop(y);
        drop(gradients);
        Ok(())
    })
}

#[test]
fn a_deep_residual_graph_is_dropped_on_a_small_stack() -> Result<()> {
    drops(|y, _| y.add(&y.neg()?))
}

#[test]
fn a_deep_graph_of_squares_is_dropped_on_a_small_stack() -> Result<()> {
    drops(|y, _| y.mul(y))
}

#[test]
fn a_deep_recurrent_graph_is_dropped_on_a_small_stack() -> Result<()> {
    drops(|y, x| y.mul(x)?.add(x)?.tanh())
}

/// What a rule captures is part of the graph, too.
#[test]
fn values_in_rules_are_dropped_on_a_small_stack() -> Result<()> {
    on_a_small_stack(|| {
        let x = one()?;
        let mut y = x.clone();
        for _ in 0..STEPS {
            let kept = y;
            let value = x.value().clone();
            y = record("keep", &[&x], &[], value, move |_, g| {
                Ok([Some(g.mul(&kept)?)].into_iter().collect())
            });
        }
        drop(y);
        Ok(())
    })
}

/// Whoever comes last drops a node, and drops no more than that on its stack.
#[test]
fn two_threads_drop_one_graph() -> Result<()> {
    for _ in 0..5 {
        let x = one()?;
        let mut values = vec![x.clone()];
        for step in 0..STEPS / 20 {
            values.push(values[step].add(&values[step].neg()?)?);
        }
        let last = values.last().cloned();
        let other = thread::spawn(move || {
            on_a_small_stack(move || {
                drop(last);
                Ok(())
            })
        });
        on_a_small_stack(move || {
            values.into_iter().rev().for_each(drop);
            Ok(())
        })?;
        other.join().expect("no panic")?;
    }
    Ok(())
}

/// A hook may hold the value that it hangs on: it goes with its handle, whatever became of the graph.
#[test]
fn a_hook_that_holds_its_own_value_goes_with_its_handle() -> Result<()> {
    let probe = Arc::new(());
    let hooked = |y: &Var| {
        let (own, held) = (y.clone(), Arc::clone(&probe));
        y.register_hook(move |gradient| {
            let _ = &held;
            gradient.mul(&own.detach()).map(Some)
        })
    };
    let held = || Arc::strong_count(&probe) - 1;
    // A leaf, without a pass.
    let x = one()?;
    let handle = hooked(&x)?;
    drop(x);
    assert_eq!(held(), 1);
    drop(handle);
    assert_eq!(held(), 0);
    // An op's, in a graph that is retained.
    let x = one()?;
    let y = x.square()?;
    let handle = hooked(&y)?;
    let keep = BackwardOptions { retain_graph: true, ..BackwardOptions::default() };
    for _ in 0..2 {
        assert_eq!(y.backward_with(keep.clone())?.get(&x).map(|g| g.item::<f64>()).transpose()?, Some(2.0));
    }
    drop(y);
    assert_eq!(held(), 1);
    drop(handle);
    assert_eq!(held(), 0);
    // No hook is taken where it would never be called.
    let y = x.square()?;
    y.backward()?;
    assert!(matches!(
        hooked(&y).as_ref().map_err(Error::kind),
        Err(ErrorKind::GraphConsumed { op: "square" })
    ));
    assert_eq!(held(), 0);
    // A pass that is refused leaves the hooks where they are.
    let (y, side) = (x.square()?, x.exp()?);
    let handle = hooked(&y)?;
    side.backward()?;
    assert!(y.add(&side)?.backward().is_err());
    grad(std::slice::from_ref(&y), std::slice::from_ref(&x), GradOptions::default())?;
    assert_eq!(held(), 1);
    handle.remove();
    assert_eq!(held(), 0);
    Ok(())
}

#[test]
fn a_removed_hook_is_not_called_and_lets_go() -> Result<()> {
    let x = one()?;
    let probe = Arc::new(());
    let (own, held) = (x.clone(), Arc::clone(&probe));
    let first = x.register_hook(move |gradient| {
        let _ = (&own, &held);
        gradient.mul_scalar(2.0).map(Some)
    })?;
    let second = x.register_hook(|gradient| gradient.mul_scalar(5.0).map(Some))?;
    let gradient = || x.neg()?.backward()?.get(&x).map(|g| g.item::<f64>()).transpose();
    assert_eq!(gradient()?, Some(-10.0));
    first.remove();
    assert_eq!((gradient()?, Arc::strong_count(&probe)), (Some(-5.0), 1));
    drop(second);
    let _third = x.register_hook(|gradient| gradient.mul_scalar(3.0).map(Some))?;
    assert_eq!(gradient()?, Some(-3.0));
    Ok(())
}

/// A frozen leaf costs what a constant does, forward and backward, also where its part is recomputed.
#[test]
fn no_command_is_launched_for_a_frozen_leaf() -> Result<()> {
    // One of its own: the others' launches do not count.
    let device = Device::cpu_with(device::CpuConfig::default());
    let leaf = |n: usize| Ok::<_, Error>(Var::leaf(Tensor::ones(&[n, 4], DType::F64, &device)?));
    let (first, second, x) = (leaf(4)?, leaf(2)?, leaf(3)?.detach());
    let launches = |first: &Var, recomputed: bool| -> Result<(u64, usize)> {
        let start = device.sync_stats().launches;
        let weight = first.clone();
        let part = move |x: &Var| x.linear(&weight, None)?.tanh();
        let hidden = if recomputed { crate::recompute(part, &x)? } else { part(&x)? };
        let gradients = hidden.linear(&second, None)?.sum_all()?.backward()?;
        assert!(gradients.get(&second).is_some());
        assert_eq!(gradients.get(first).is_some(), first.requires_grad());
        Ok((device.sync_stats().launches - start, gradients.len()))
    };
    for recomputed in [false, true] {
        let trained = launches(&first, recomputed)?;
        first.freeze();
        assert!(first.is_leaf() && !first.clone().requires_grad());
        let frozen = launches(&first, recomputed)?;
        assert_eq!(frozen, launches(&first.detach(), recomputed)?);
        assert!(frozen.0 < trained.0 && frozen.1 == 1, "{frozen:?} {trained:?}");
        first.unfreeze();
        assert_eq!(launches(&first, recomputed)?, trained);
    }
    // A value that others lead to is no leaf.
    let y = first.square()?;
    y.freeze();
    assert!(y.requires_grad());
    first.freeze();
    assert!(
        matches!(first.sum_all()?.backward().map_err(|e| e.to_string()), Err(e) if e.contains("any leaf"))
    );
    Ok(())
}
