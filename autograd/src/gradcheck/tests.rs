use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::mode::{Recording, perturbation, with_recording};
use crate::ops::AttentionOptions;
use crate::pipeline::Around;
use crate::tape::one;
use crate::{Grads, Reduction, Save, autocast, no_grad, record};

fn randn(shape: &[usize], dtype: DType, op: u64) -> Result<Tensor> {
    Tensor::randn(shape, dtype, RandomKey { seed: 5, op }, &Device::cpu())
}

fn vector(values: &[f64]) -> Result<Tensor> {
    Tensor::from_slice(values, &[values.len()], &Device::cpu())
}

/// `x`, with a gradient that is off by `factor`.
fn off(x: &Var, factor: f64) -> Result<Var> {
    record_off(x, x.value().mul_scalar(1.0)?, factor)
}

fn record_off(x: &Var, value: Tensor, factor: f64) -> Result<Var> {
    Ok(record("off", &[x], &[], value, move |_, g| Ok(one(g.mul_scalar(factor)?))))
}

/// Checks `f`, then `f` with its first input's gradient off by one part in 10,000.
fn right_and_wrong(
    f: impl Fn(&[Var]) -> Result<Var>,
    inputs: &[Tensor],
    options: GradCheck,
) -> Result<GradCheckReport> {
    let report = gradcheck(&f, inputs, options)?;
    let wrong = |v: &[Var]| {
        let mut v = v.to_vec();
        v[0] = off(&v[0], 1.0001)?;
        f(&v)
    };
    let found = gradcheck(wrong, inputs, options);
    assert!(matches!(kind(&found), Some(ErrorKind::GradientMismatch { op: "off", .. })), "{found:?}");
    Ok(report)
}

fn kind(result: &Result<GradCheckReport>) -> Option<&ErrorKind> {
    result.as_ref().err().map(Error::kind)
}

fn decided(report: GradCheckReport) {
    assert_eq!((report.undecided, report.kinks), (0, 0), "{report:?}");
}

#[test]
fn a_sum_over_a_million_elements_is_decided() -> Result<()> {
    let x = [randn(&[1_000_000], DType::F64, 0)?];
    let few = GradCheck { elements: 5, ..GradCheck::default() };
    decided(right_and_wrong(|v| v[0].square()?.sum_all(), &x, few)?);
    Ok(())
}

#[test]
fn a_small_slope_of_a_large_loss_is_decided() -> Result<()> {
    let x = [randn(&[4], DType::F64, 0)?];
    decided(right_and_wrong(|v| v[0].sin()?.sum_all()?.add_scalar(1e4), &x, GradCheck::default())?);
    Ok(())
}

#[test]
fn a_square_of_a_large_number_is_decided() -> Result<()> {
    let x = [vector(&[1e5, -3e5])?];
    decided(right_and_wrong(|v| v[0].square(), &x, GradCheck::default())?);
    decided(right_and_wrong(|v| v[0].square()?.sum_all(), &x, GradCheck::default())?);
    Ok(())
}

#[test]
fn a_summed_loss_of_a_layer_is_decided_in_every_type() -> Result<()> {
    for dtype in [DType::F64, DType::F32, DType::BF16] {
        let [weight, bias, x, target] = [(&[10, 8][..], 0), (&[10], 1), (&[256, 8], 2), (&[256, 10], 3)]
            .map(|(shape, op)| randn(shape, dtype, op));
        let (x, target) = (Var::constant(x?), Var::constant(target?));
        let loss = |v: &[Var]| {
            let x = x.to_dtype(v[0].dtype())?;
            x.linear(&v[0], Some(&v[1]))?.mse_loss(&target.to_dtype(v[0].dtype())?, crate::Reduction::Sum)
        };
        decided(right_and_wrong(loss, &[weight?, bias?], GradCheck::default())?);
    }
    Ok(())
}

/// Captured constants of F32 are taken to F64.
#[test]
fn a_function_of_f32_is_checked_in_f64() -> Result<()> {
    let weight = Var::constant(randn(&[3, 4], DType::F32, 0)?);
    let x = [randn(&[2, 4], DType::F32, 1)?];
    let report = right_and_wrong(
        |v| v[0].linear(&weight, None)?.gelu(tensor::GeluKind::Erf),
        &x,
        GradCheck::default(),
    )?;
    assert!(report.max_error < 1e-9, "{report:?}");
    Ok(())
}

/// The loss of a mixed precision step is checked without its rounding.
#[test]
fn a_function_under_an_autocast_is_checked_in_f64() -> Result<()> {
    let (weight, x) =
        (Var::leaf(randn(&[3, 4], DType::F32, 0)?), Var::constant(randn(&[2, 4], DType::F32, 1)?));
    let leaves = [("weight".to_owned(), weight.clone())];
    let loss = |factor| {
        let loss = || autocast(DType::BF16, || off(&x.linear(&weight, None)?.tanh()?, factor)?.sum_all());
        gradcheck_leaves(loss, &leaves, GradCheck::default())
    };
    let report = loss(1.0)?;
    assert_eq!((report.checked, report.undecided), (12, 0));
    let found = loss(1.0001);
    assert!(matches!(kind(&found), Some(ErrorKind::GradientMismatch { .. })), "{found:?}");
    Ok(())
}

/// Rounding within a function is measured, although it takes and returns F64.
#[test]
fn rounding_within_a_function_is_noticed() -> Result<()> {
    let x = [randn(&[20], DType::F64, 0)?];
    let report =
        gradcheck(|v| v[0].to_dtype(DType::F32)?.exp()?.to_dtype(DType::F64), &x, GradCheck::default())?;
    decided(report);
    assert!(report.max_uncertainty > 1e-7, "{report:?}");
    let cancels = |v: &[Var]| v[0].sin()?.add_scalar(1e9)?.add_scalar(-1e9);
    assert_eq!(gradcheck(cancels, &x, GradCheck::default())?.checked, 20);
    let half =
        |v: &[Var]| autocast(DType::BF16, || v[0].to_dtype(DType::F32)?.matmul(&v[1].to_dtype(DType::F32)?));
    assert_eq!(
        gradcheck(
            half,
            &[randn(&[2, 3], DType::F64, 1)?, randn(&[3, 2], DType::F64, 2)?],
            GradCheck::default()
        )?
        .checked,
        12
    );
    Ok(())
}

#[test]
fn several_outputs_are_checked_at_once() -> Result<()> {
    let x = [randn(&[3], DType::F64, 0)?];
    decided(gradcheck(|v| Ok([v[0].exp()?, v[0].sum_all()?]), &x, GradCheck::default())?);
    let wrong = |v: &[Var]| Ok(vec![v[0].exp()?, off(&v[0], 1.001)?]);
    assert!(matches!(
        kind(&gradcheck(wrong, &x, GradCheck::default())),
        Some(ErrorKind::GradientMismatch { .. })
    ));
    Ok(())
}

#[test]
fn kinks_are_reported_as_such() -> Result<()> {
    let x = [vector(&[0.0, 1.0, -1e-9, 0.0])?];
    let report = gradcheck(|v| v[0].relu(), &x, GradCheck::default())?;
    assert_eq!((report.checked, report.kinks, report.undecided), (4, 2, 0), "{report:?}");
    // A gradient between those of the two sides is right, others are not.
    let found = gradcheck(|v| off(&v[0].abs()?, 1.1), &x, GradCheck::default());
    assert!(
        matches!(kind(&found), Some(ErrorKind::GradientMismatch { element: Some(1 | 2), .. })),
        "{found:?}"
    );
    let steep = |v: &[Var]| {
        let value = v[0].value().relu()?;
        record_off(&v[0], value, 1.5)
    };
    let found = gradcheck(steep, &[vector(&[0.0])?], GradCheck::default());
    assert!(matches!(kind(&found), Some(ErrorKind::GradientMismatch { .. })), "{found:?}");
    Ok(())
}

#[test]
fn a_cut_tape_is_an_error_of_its_own() -> Result<()> {
    let x = [vector(&[1.0, 2.0])?];
    let cut = |v: &[Var]| v[0].detach().square();
    let unrecorded = |v: &[Var]| no_grad(|| v[0].square());
    for found in [
        gradcheck(cut, &x, GradCheck::default()),
        gradgradcheck(cut, &x, GradCheck::default()),
        gradcheck(unrecorded, &x, GradCheck { elements: 0, ..GradCheck::default() }),
    ] {
        assert!(matches!(kind(&found), Some(ErrorKind::GradientMissing { .. })), "{found:?}");
    }
    // Half of the paths are cut.
    let found = gradgradcheck(|v| v[0].mul(&v[0].detach()), &x, GradCheck::default());
    assert!(matches!(kind(&found), Some(ErrorKind::GradientMismatch { .. })), "{found:?}");
    // Nothing is cut where nothing depends on the input.
    let report = gradcheck(|v| v[0].mul_scalar(0.0)?.detach().add_scalar(3.0), &x, GradCheck::default())?;
    assert_eq!((report.checked, report.undecided), (2, 0));
    Ok(())
}

#[test]
fn a_frozen_leaf_is_named_as_the_cause() -> Result<()> {
    let [x, w] = [Var::leaf(vector(&[1.0, 2.0])?), Var::leaf(vector(&[3.0, 4.0])?)];
    w.freeze();
    let leaves = [("x".to_owned(), x.clone()), ("w".to_owned(), w.clone())];
    for leaves in [&leaves[..], &leaves[1..]] {
        let found = gradcheck_leaves(|| x.mul(&w), leaves, GradCheck::default());
        assert!(found.is_err_and(|error| error.to_string().contains("it is frozen")));
    }
    let found = gradcheck_leaves(|| x.detach().square(), &leaves[..1], GradCheck::default());
    assert!(found.is_err_and(|error| error.to_string().contains("`detach`")));
    Ok(())
}

#[test]
fn functions_that_change_are_errors_of_their_own() -> Result<()> {
    let x = [vector(&[1.0, 2.0])?];
    let calls = Cell::new(0.0);
    let counts = |v: &[Var]| {
        calls.set(calls.get() + 1e-9);
        v[0].add_scalar(calls.get())
    };
    let found = gradcheck(counts, &x, GradCheck::default());
    assert!(matches!(kind(&found), Some(ErrorKind::NotDeterministic { output: 0 })), "{found:?}");
    let writes = |v: &[Var]| {
        let y = v[0].sum_all()?;
        v[1].value().mul_scalar_(1.0)?;
        Ok(y)
    };
    let two = [x[0].clone(), x[0].clone()];
    let found = gradcheck(writes, &two, GradCheck::default());
    assert!(
        matches!(kind(&found), Some(ErrorKind::InputModified { input }) if &**input == "input 1"),
        "{found:?}"
    );
    assert_eq!(x[0].to_vec::<f64>()?, [1.0, 2.0]);
    Ok(())
}

/// As of a kernel that adds in any order.
#[test]
fn a_rule_that_gives_other_bits_the_second_time_is_an_error_at_its_op() -> Result<()> {
    let x = [vector(&[1.0, 2.0])?];
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let line = line!() + 3;
    let shifts = |v: &[Var]| {
        let value = v[0].value().mul_scalar(1.0)?;
        Ok(record("shifts", &[&v[0]], &[], value, move |_, g| {
            let number = CALLS.fetch_add(1, Ordering::Relaxed);
            Ok(one(g.mul_scalar(1.0 + 1e-15 * number as f64)?))
        }))
    };
    let found = gradcheck(shifts, &x, GradCheck::default());
    let Some(ErrorKind::GradientNotDeterministic { users, input, element: 0, .. }) = kind(&found) else {
        unreachable!("{found:?}")
    };
    assert!(users.starts_with("shifts at ") && &**input == "input 0", "{found:?}");
    assert_eq!(found.as_ref().err().map(|error| error.location().line()), Some(line));
    Ok(())
}

/// Only a single op is blamed for the gradient of a leaf.
#[test]
fn several_ops_that_take_an_input_are_all_named() -> Result<()> {
    let x = [vector(&[1.0, 2.0])?.to_dtype(DType::F32)?];
    let both = |v: &[Var]| v[0].square()?.add(&off(&v[0], 1.01)?);
    let (line, found) = (line!(), gradcheck(both, &x, GradCheck::default()));
    let Some(ErrorKind::GradientMismatch { op: "", users, .. }) = kind(&found) else {
        unreachable!("{found:?}")
    };
    let text = found.as_ref().err().map(ToString::to_string).unwrap();
    assert!(
        text.contains(&**users) && users.starts_with("square at ") && users.contains(" and off at "),
        "{text}"
    );
    assert_eq!(found.as_ref().err().map(|error| error.location().line()), Some(line));
    let four = |v: &[Var]| off(&v[0], 1.01)?.add(&v[0])?.add(&v[0])?.add(&v[0])?.mul(&v[0]);
    let found = gradcheck(four, &x, GradCheck::default());
    assert!(found.is_err_and(|error| error.to_string().contains("used by 5 ops, first off at ")));
    Ok(())
}

/// One wrong element among many is found along a direction, and named.
#[test]
fn a_wrong_element_is_found_by_halves() -> Result<()> {
    let x = [randn(&[1000], DType::F64, 0)?];
    let mut factors = vec![1.0; 1000];
    factors[777] = 1.5;
    let factors = Var::constant(vector(&factors)?);
    let wrong = move |v: &[Var]| {
        let factors = factors.clone();
        let value = v[0].value().mul_scalar(1.0)?;
        Ok(record("off", &[&v[0]], &[], value, move |_, g| Ok(one(g.mul(&factors)?))))
    };
    for elements in [0, 3] {
        let found = gradcheck(&wrong, &x, GradCheck { elements, ..GradCheck::default() });
        assert!(
            matches!(kind(&found), Some(ErrorKind::GradientMismatch { element: Some(777), .. })),
            "{found:?}"
        );
    }
    Ok(())
}

#[test]
fn an_infinite_output_may_stay() -> Result<()> {
    let x = [vector(&[1.0, 2.0, 3.0])?];
    let mask = Tensor::from_slice(&[false, true, false], &[3], &Device::cpu())?;
    let report = gradcheck(|v| v[0].masked_fill(&mask, f64::NEG_INFINITY), &x, GradCheck::default())?;
    decided(report);
    Ok(())
}

/// Where there is no value there is no derivative, which is an error at the op that computes it.
#[test]
fn an_output_that_is_not_finite_is_an_error_at_its_op() -> Result<()> {
    let x = [vector(&[-1.0, 2.0])?];
    let cases: [(&str, OfOne, usize); 5] = [
        ("log", |x| x.log(), 0),
        ("sum", |x| x.sqrt()?.sum(&[], false), 0),
        ("mul_scalar", |x| x.mul_scalar(f64::INFINITY), 0),
        ("add_scalar", |x| x.mul_scalar(0.0)?.add_scalar(f64::NEG_INFINITY), 0),
        ("cat", |x| Var::cat(&[&x.narrow(0, 1, 1)?, &x.narrow(0, 0, 1)?.log()?], 0), 1),
    ];
    for (op, f, element) in cases {
        let found = gradcheck(|v| f(&v[0]), &x, GradCheck::default());
        let is_it = matches!(
            kind(&found),
            Some(ErrorKind::NotFinite { op: at, output: 0, element: of, .. }) if *at == op && *of == element
        );
        assert!(is_it, "{op}: {found:?}");
        let line = found.err().map(|error| error.location().line()).unwrap();
        assert!(line.abs_diff(line!()) < 25, "{line}");
    }
    Ok(())
}

type OfOne = fn(&Var) -> Result<Var>;

/// `f`, whose gradient is off by a factor where no composition takes its place.
fn fused_off(x: &Var, f: OfOne, factor: f64) -> Result<Var> {
    let value = no_grad(|| f(x))?.value().clone();
    Ok(record("off", &[x], &[Save::Input(0)], value, move |cx, g| {
        let x = Var::leaf(cx.saved(0).value().clone());
        let y = with_recording(Recording::On, || f(&x))?;
        let options = GradOptions { gradients: vec![Some(g.clone())], ..GradOptions::default() };
        let factor = if cx.is_recorded() || crate::is_recording() { 1.0 } else { factor };
        let found = grad(&[y], &[x], options)?.swap_remove(0);
        found.map_or(Ok(Grads::new()), |g| Ok(one(g.mul_scalar(factor)?)))
    }))
}

#[test]
fn wrong_gradients_of_fused_rules_are_found() -> Result<()> {
    let fused: [(&str, OfOne); 4] = [
        ("layer_norm", |x| x.layer_norm(&[5], None, None, 1e-5)),
        ("attention", |x| x.scaled_dot_product_attention(x, x, &AttentionOptions::default())),
        ("cross_entropy", |x| {
            let labels = Tensor::from_slice(&[1_i64, 0, 3, 2, 1], &[1, 5], &Device::cpu())?;
            x.cross_entropy(&labels, Reduction::Sum)
        }),
        ("batch_norm", |x| Ok(x.reshape(&[4, 5, 1, 1])?.batch_norm(None, None, 1e-5)?.0)),
    ];
    let x = [randn(&[1, 4, 5], DType::F64, 0)?];
    for (name, f) in fused {
        decided(gradcheck(|v| fused_off(&v[0], f, 1.0), &x, GradCheck::default())?);
        for factor in [1.0001, 1.01] {
            let found = gradcheck(|v| fused_off(&v[0], f, factor), &x, GradCheck::default());
            assert!(matches!(kind(&found), Some(ErrorKind::GradientMismatch { .. })), "{name}: {found:?}");
        }
        // Ops of F32 find what their rounding does not hide.
        let narrow = |v: &[Var]| fused_off(&v[0].to_dtype(DType::F32)?, f, 1.01);
        let found = gradcheck(narrow, &x, GradCheck::default());
        assert!(matches!(kind(&found), Some(ErrorKind::GradientMismatch { .. })), "{name}: {found:?}");
    }
    Ok(())
}

#[test]
fn only_numbers_with_fractions_are_perturbed_and_only_once() -> Result<()> {
    let whole = Tensor::from_slice(&[1_i64, -7, i64::MAX], &[3], &Device::cpu())?;
    for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
        let x = randn(&[100], DType::F64, 0)?.to_dtype(dtype)?;
        let x = Tensor::cat(&[&x, &x.mul_scalar(-1.0)?, &Tensor::zeros(&[1], dtype, &Device::cpu())?], 0)?;
        let once = with_perturbation(1, || perturbed(&x)).unwrap();
        let (before, after) = (numbers(&x)?, numbers(&once)?);
        let off = before.iter().zip(&after).map(|(x, y)| (y - x).abs() - 8.0 * slope::unit(dtype) * x.abs());
        assert!(off.fold(0.0, f64::max) <= 0.0 && before != after, "{dtype}");
        assert!((0..100).all(|at| after[at] == -after[100 + at]) && after[200] == 0.0);
        assert_eq!(numbers(&with_perturbation(1, || perturbed(&once)).unwrap())?, after);
        assert_ne!(numbers(&with_perturbation(2, || perturbed(&x)).unwrap())?, after);
    }
    assert!(
        with_perturbation(1, || perturbed(&whole)).is_none()
            && perturbed(&randn(&[2], DType::F32, 0)?).is_none()
    );
    Ok(())
}

#[test]
fn threads_that_work_for_another_have_its_perturbation() {
    let around = with_perturbation(3, || Around::new(tensor::Generator::current()));
    let other = || around.scope(tensor::Generator::current(), perturbation);
    assert_eq!((std::thread::scope(|scope| scope.spawn(other).join()).unwrap(), perturbation()), (3, 0));
}

/// Evaluations with other roundings that fail or are not finite say nothing; if too few are left, a difference is undecided.
#[test]
fn perturbations_that_fail_are_left_out() -> Result<()> {
    let x = [vector(&[0.5, -1.0, 2.0])?];
    for (left, is_found) in [(4, true), (2, true), (1, false), (0, false)] {
        let fails = |v: &[Var]| {
            Error::require(perturbation() <= left, OP, "perturbation", "few", left)?;
            off(&v[0].sin()?, 1.01)
        };
        let nan = |v: &[Var]| {
            let factor = if perturbation() <= left { 1.01 } else { f64::NAN };
            off(&v[0].sin()?, factor)
        };
        for found in [gradcheck(fails, &x, GradCheck::default()), gradcheck(nan, &x, GradCheck::default())] {
            assert_eq!(found.is_err(), is_found, "{left}: {found:?}");
            assert_eq!(found.map_or(3, |report| report.undecided), 3);
        }
    }
    Ok(())
}

/// A constant exponent is exact: a power of a negative number stays one.
#[test]
fn a_wrong_gradient_of_a_power_of_negative_numbers_is_found() -> Result<()> {
    for dtype in [DType::F64, DType::F32] {
        let two = Var::constant(Tensor::full(&[3], 2.0, dtype, &Device::cpu())?);
        let x = [vector(&[-0.5, -1.0, -2.0])?.to_dtype(dtype)?];
        decided(right_and_wrong(|v| v[0].pow(&two), &x, GradCheck::default())?);
    }
    Ok(())
}

/// A function that rounding takes to steps is flat within one; larger ones show that its slope is as expected.
#[test]
fn a_slope_that_rounding_to_steps_hides_is_uncertain() -> Result<()> {
    for (grid, noise, is_uncertain) in [(1e-7, 1e-20, true), (0.0, 1e-20, false)] {
        let mut rise = |step: f64| {
            let excess = if grid > 0.0 { (step / grid).round() * grid - step } else { -step };
            Ok([excess, noise])
        };
        let found = slope::search_up(&mut rise, 1e-14, 1.0)?;
        assert!((found.value + 1.0).abs() < 1e-3, "{}", found.value);
        assert_eq!(found.uncertainty >= 1.0 - 1e-3, is_uncertain, "{}", found.uncertainty);
    }
    Ok(())
}

mod random;

/// Outputs whose number depends on values, and panics, leave leaves as they were.
#[test]
#[allow(clippy::panic)]
fn other_outputs_and_panics_leave_leaves_as_they_were() -> Result<()> {
    let w = Var::leaf(Tensor::from_slice(&[1.0, 2.0], &[2], &Device::cpu())?);
    let leaves = [("w".to_owned(), w.clone())];
    let is_moved = || Ok::<_, Error>(w.value().to_vec::<f64>()? != [1.0, 2.0]);
    let shorter = || if is_moved()? { w.narrow(0, 0, 1) } else { w.square() };
    let refused = gradcheck_leaves(shorter, &leaves, GradCheck::default());
    assert!(
        matches!(refused.as_ref().map_err(Error::kind), Err(ErrorKind::ShapeMismatch { .. })),
        "{refused:?}"
    );
    let panics = || if is_moved()? { panic!("moved") } else { w.square() };
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        gradcheck_leaves(panics, &leaves, GradCheck::default())
    }));
    assert!(caught.is_err() && !is_moved()?);
    Ok(())
}
