//! What is computed twice gives what it gives once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tensor::{DType, Device, Error, ErrorKind, Tensor, next_key, seed};

use super::*;
use crate::{
    BackwardOptions, GradCheck, GradOptions, Gradients, defer, grad, gradcheck, gradgradcheck, no_grad,
    with_grad,
};

fn leaf(values: &[f64]) -> Var {
    Var::leaf(Tensor::from_slice(values, &[values.len()], &Device::cpu()).unwrap())
}

fn values(gradients: &Gradients, leaf: &Var) -> Vec<f64> {
    gradients.get(leaf).unwrap().to_vec().unwrap()
}

type Part = Arc<dyn Fn(&Var) -> Result<Var> + Send + Sync>;

/// The part as it is, or recomputed.
fn run(part: &Part, x: &Var, again: bool) -> Result<Var> {
    let part = Arc::clone(part);
    if again { recompute(move |x| part(x), x) } else { part(x) }
}

/// A part that uses a parameter, a value that was computed from another one, dropout, and its own argument by another way.
fn part(w: &Var, scale: &Var, x: &Var) -> Part {
    let (w, scale, outer) = (w.clone(), scale.clone(), x.clone());
    Arc::new(move |x| x.mul(&w)?.dropout(0.5, None)?.tanh()?.mul(&scale)?.add(&outer))
}

#[test]
fn values_gradients_and_later_random_numbers_are_those_without() -> Result<()> {
    let results = |again: bool| -> Result<_> {
        seed(3);
        let (w, x, v) = (leaf(&[0.5, -1.5, 2.0]), leaf(&[1.0, 0.25, -0.75]), leaf(&[0.1, 0.2, 0.3]));
        let scale = v.exp()?;
        let y = run(&part(&w, &scale, &x), &x, again)?;
        let loss = y.square()?.sum_all()?;
        let gradients = loss.backward()?;
        let all = [&w, &x, &v].map(|leaf| values(&gradients, leaf));
        Ok((y.value().to_vec::<f64>()?, all, format!("{:?}", next_key())))
    };
    assert_eq!(results(true)?, results(false)?);
    Ok(())
}

#[test]
fn a_part_may_ask_for_recording() -> Result<()> {
    let results = |again: bool| -> Result<_> {
        let (w, x) = (leaf(&[0.5, -1.5, 2.0]), leaf(&[1.0, 0.25, -0.75]));
        let inner = w.clone();
        let part: Part = Arc::new(move |x| with_grad(|| x.mul(&inner)?.tanh()?.exp()));
        let gradients = run(&part, &x, again)?.sum_all()?.backward()?;
        Ok([values(&gradients, &w), values(&gradients, &x)])
    };
    assert_eq!(results(true)?, results(false)?);
    Ok(())
}

#[test]
fn parts_within_parts_give_what_they_give_without() -> Result<()> {
    let results = |again: bool| -> Result<_> {
        seed(4);
        let (w, x) = (leaf(&[0.5, -1.5, 2.0]), leaf(&[1.0, 0.25, -0.75]));
        let inner = part(&w, &w, &x);
        let outer: Part = Arc::new(move |x| run(&inner, &x.sin()?, again)?.dropout(0.25, None)?.exp());
        let gradients = run(&outer, &x, again)?.sum_all()?.backward()?;
        Ok([values(&gradients, &w), values(&gradients, &x)])
    };
    assert_eq!(results(true)?, results(false)?);
    Ok(())
}

#[test]
fn gradients_have_gradients() -> Result<()> {
    let (x, w) = (leaf(&[0.3, -0.7]), leaf(&[1.1, 0.4]));
    let f = |v: &[Var]| {
        let (w, outer) = (v[1].clone(), v[0].clone());
        let y = recompute(move |x| x.mul(&w)?.tanh()?.mul(&w)?.mul(&outer), &v[0])?;
        y.exp()?.sum_all()
    };
    gradcheck(f, &[x.value().clone(), w.value().clone()], GradCheck::default())?;
    gradgradcheck(f, &[x.value().clone(), w.value().clone()], GradCheck::default())?;
    Ok(())
}

#[test]
fn only_what_is_asked_for_is_computed_and_a_graph_that_is_kept_serves_again() -> Result<()> {
    let (w, v) = (leaf(&[2.0, 3.0]), leaf(&[0.5, 1.0]));
    let scale = w.square()?;
    let own = (w.clone(), scale.clone());
    let y = recompute(move |x| x.mul(&own.0)?.mul(&own.1), &v)?;
    let sum = y.sum_all()?;
    // The value that `scale` was computed from is used inside, too: its part by way of `scale` comes once.
    let kept = || GradOptions { retain_graph: true, ..GradOptions::default() };
    for _ in 0..2 {
        let found = grad(std::slice::from_ref(&sum), std::slice::from_ref(&w), kept())?;
        assert_eq!(found[0].as_ref().unwrap().value().to_vec::<f64>()?, [3.0 * 4.0 * 0.5, 3.0 * 9.0]);
    }
    let kept = BackwardOptions { retain_graph: true, ..BackwardOptions::default() };
    assert_eq!(values(&sum.backward_with(kept)?, &v), [8.0, 27.0]);
    let found = grad(std::slice::from_ref(&sum), std::slice::from_ref(&v), GradOptions::default())?;
    assert_eq!(found[0].as_ref().unwrap().value().to_vec::<f64>()?, [8.0, 27.0]);
    assert!(matches!(sum.backward().as_ref().map_err(Error::kind), Err(ErrorKind::GraphConsumed { .. })));
    assert_eq!(values(&scale.sum_all()?.backward()?, &w), [4.0, 6.0], "what led to the part was left alone");
    Ok(())
}

#[test]
fn hooks_see_each_gradient_once() -> Result<()> {
    let (w, x) = (leaf(&[2.0]), leaf(&[5.0]));
    let calls = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&calls);
    let _hook = w.register_hook(move |gradient| {
        seen.fetch_add(1, Ordering::Relaxed);
        gradient.mul_scalar(10.0).map(Some)
    })?;
    let own = w.clone();
    let gradients = recompute(move |x| x.mul(&own), &x)?.backward()?;
    assert_eq!((values(&gradients, &w), calls.load(Ordering::Relaxed)), (vec![50.0], 1));
    Ok(())
}

#[test]
fn what_is_put_off_or_changed_beside_is_done_once() -> Result<()> {
    let (x, done) = (leaf(&[2.0]), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&done);
    let y = recompute(
        move |x| {
            let count = Arc::clone(&count);
            defer(move || {
                count.fetch_add(1, Ordering::Relaxed);
                Ok(())
            })?;
            x.square()
        },
        &x,
    )?;
    assert_eq!(values(&y.backward()?, &x), [4.0]);
    assert_eq!(done.load(Ordering::Relaxed), 1);
    Ok(())
}

#[test]
fn a_parameter_that_was_changed_meanwhile_is_found_before_anything_runs() -> Result<()> {
    let (w, x) = (leaf(&[2.0]), leaf(&[5.0]));
    for changed in [&w, &x] {
        let (own, calls) = (w.clone(), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&calls);
        let y = recompute(
            move |x| {
                count.fetch_add(1, Ordering::Relaxed);
                x.mul(&own)
            },
            &x,
        )?;
        changed.value().add_scalar_(1.0)?;
        assert!(matches!(
            y.backward().as_ref().map_err(Error::kind),
            Err(ErrorKind::VersionMismatch { op: "recompute", .. })
        ));
        assert_eq!(calls.load(Ordering::Relaxed), 1);
    }
    Ok(())
}

/// A constant that only `f` knows, one that the user changes later, and what an op saves beside its inputs.
#[test]
fn constants_are_guarded_as_without() -> Result<()> {
    let x = leaf(&[5.0, 3.0]);
    let scale = Tensor::from_slice(&[2.0, 4.0], &[2], &Device::cpu())?;
    let condition = Tensor::from_slice(&[true, false], &[2], &Device::cpu())?;
    let part: Part = {
        let (scale, condition) = (Var::constant(scale.clone()), condition.clone());
        Arc::new(move |x| Var::where_cond(&condition, &x.mul(&scale.square()?)?.exp()?, x))
    };
    let gradients: Vec<_> = [true, false]
        .iter()
        .map(|&again| Ok(values(&run(&part, &x, again)?.sum_all()?.backward()?, &x)))
        .collect::<Result<_>>()?;
    assert_eq!(gradients[0], gradients[1]);
    for change in 0..2 {
        let y = run(&part, &x, true)?.sum_all()?;
        match change {
            0 => scale.add_scalar_(1.0)?,
            _ => condition.zero_()?,
        }
        let error = y.backward().unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::VersionMismatch { op: "recompute", .. }),
            "{change}: {error}"
        );
    }
    Ok(())
}

/// What an op used is kept no longer than without having been noticed.
#[test]
fn activations_are_not_kept() -> Result<()> {
    let x = leaf(&[5.0; 64]);
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let uses = Arc::clone(&seen);
    let y = recompute(
        move |x| {
            let made = x.value().square()?;
            uses.lock().unwrap().push(made.clone());
            Var::constant(made).exp()?.add(x)
        },
        &x,
    )?;
    let made = seen.lock().unwrap().pop().unwrap();
    drop(seen);
    assert!(!made.is_unique(), "somebody had it when the part was over, so it is guarded");
    drop(y);
    assert!(made.is_unique());
    let y = recompute(|x| x.exp()?.square()?.add(x), &x)?;
    let saved = y.node.as_ref().unwrap().claim(false)?.saved.len();
    assert_eq!(saved, 1, "the argument alone");
    Ok(())
}

#[test]
fn a_part_that_gives_another_form_the_second_time_is_refused() -> Result<()> {
    let (x, calls) = (leaf(&[2.0, 1.0]), Arc::new(AtomicUsize::new(0)));
    let part = move |x: &Var| {
        if calls.fetch_add(1, Ordering::Relaxed) == 0 { x.square() } else { x.sum_all() }
    };
    let y = recompute(part, &x)?;
    assert!(matches!(
        y.sum_all()?.backward().as_ref().map_err(Error::kind),
        Err(ErrorKind::ShapeMismatch { op: "recompute", .. })
    ));
    Ok(())
}

/// A part that does one thing first and another one later.
fn changing(first: Part, later: Part) -> Part {
    let calls = AtomicUsize::new(0);
    Arc::new(move |x| if calls.fetch_add(1, Ordering::Relaxed) == 0 { first(x) } else { later(x) })
}

#[test]
fn a_part_that_does_something_else_the_second_time_is_refused() -> Result<()> {
    let (w, v, x) = (leaf(&[2.0, 4.0]), leaf(&[3.0, 5.0]), leaf(&[5.0, 1.0]));
    let scale = v.exp()?;
    let both: Part = {
        let w = w.clone();
        Arc::new(move |x| x.mul(&w))
    };
    let single: Part = Arc::new(|x| x.square());
    let constant: Part = Arc::new(|x| Ok(Var::constant(x.value().ones_like()?)));
    let detached: Part = {
        let w = w.clone();
        Arc::new(move |x| Ok(x.mul(&w)?.detach()))
    };
    let other_leaf: Part = {
        let v = v.clone();
        Arc::new(move |x| x.mul(&v))
    };
    let other_value: Part = {
        let (w, scale) = (w.clone(), scale.clone());
        Arc::new(move |x| x.mul(&w)?.mul(&scale))
    };
    let without_argument: Part = {
        let w = w.clone();
        Arc::new(move |x| w.mul(&x.detach()))
    };
    let half: Part = Arc::new(|x| x.to_dtype(DType::F32));
    for (what, first, later) in [
        ("a constant", &both, &constant),
        ("a constant of the argument alone", &single, &constant),
        ("a result that was detached", &both, &detached),
        ("one input less", &both, &single),
        ("one input more", &single, &both),
        ("another leaf", &both, &other_leaf),
        ("another value", &both, &other_value),
        ("no argument", &both, &without_argument),
        ("another type", &single, &half),
    ] {
        let y = run(&changing(first.clone(), later.clone()), &x, true)?;
        let error = y.sum_all()?.backward().unwrap_err();
        let typed = matches!(
            error.kind(),
            ErrorKind::InvalidArgument { op: "recompute", argument: "f", .. }
                | ErrorKind::DTypeMismatch { op: "recompute", .. }
        );
        assert!(typed, "{what}: {error}");
    }
    // What is the same both times has the gradient that it has without.
    let results = |again: bool| -> Result<_> {
        let (own, scale) = (w.clone(), v.exp()?);
        let part: Part = Arc::new(move |x| x.mul(&own)?.mul(&scale));
        let gradients = run(&part, &x, again)?.sum_all()?.backward()?;
        Ok([&w, &x, &v].map(|leaf| values(&gradients, leaf)))
    };
    assert_eq!(results(true)?, results(false)?);
    // A part that has no gradient by itself is none's mistake.
    let frozen: Part = Arc::new(|x| no_grad(|| x.square()));
    let loss = run(&frozen, &x, true)?.add(&x)?.sum_all()?;
    assert_eq!(values(&loss.backward()?, &x), [1.0, 1.0]);
    Ok(())
}

#[test]
fn what_has_no_gradient_is_no_op_of_the_tape() -> Result<()> {
    let (w, x) = (leaf(&[2.0]), leaf(&[5.0]));
    let constant = x.detach();
    assert!(!recompute(|x| x.square(), &constant)?.requires_grad());
    let own = w.clone();
    assert!(!no_grad(|| recompute(move |x| x.mul(&own), &x))?.requires_grad());
    // Neither does a value of the tape that is given as it is lose its gradient.
    let own = w.clone();
    assert_eq!(values(&recompute(move |_| Ok(own.clone()), &constant)?.backward()?, &w), [1.0]);
    assert_eq!(values(&recompute(|x| Ok(x.clone()), &x)?.backward()?, &x), [1.0]);
    assert_eq!(x.value().dtype(), DType::F64);
    Ok(())
}
