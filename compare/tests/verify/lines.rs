//! Mistakes of the program that end a step, each told at a line of the program and never at one of the library.

use device::{Error, ErrorKind};

use super::*;

type Program<'a> = Comparison<'a, State, Tensor>;

fn program<'a>() -> Program<'a> {
    Comparison::new(&cpu()).setup(setup).batches(batch).model(|(net, _)| net)
}

fn few() -> VerifyOptions {
    VerifyOptions { explored: 2, ..VerifyOptions::default() }
}

fn loss((net, _): &State, x: &Tensor) -> Result<Var> {
    loss_of(net, x)
}

/// The line of the last op of [`loss_of`].
const LOSS: u32 = line!() + 3;

fn loss_of(net: &Net, x: &Tensor) -> Result<Var> {
    mse(&net.second.forward(&net.first.forward(&x.clone().into())?)?, &target(x)?)
}

/// That an error is at this line of this file.
fn expect_at(error: &Error, line: u32) {
    let at = error.location();
    assert!(at.file().ends_with("lines.rs") && at.line() == line, "{line}: {error:?}");
}

/// That the first finding is of this code at this line, and tells of these words.
fn expect_found(found: &Verification, code: &str, line: u32, words: &[&str]) {
    let at = format!("lines.rs:{line}:");
    expect(found, code, &[&[&*at][..], words].concat());
    let place = found.findings[0].place.as_ref().unwrap();
    assert!(place.file.ends_with("lines.rs") && place.line == line, "{place:?}");
}

#[test]
fn a_loss_without_gradients_is_found() {
    let frozen = |dev: &Device| {
        let (net, sgd) = setup(dev)?;
        net.freeze();
        Ok((net, sgd))
    };
    let found =
        Comparison::new(&cpu()).setup(frozen).batches(batch).model(|(net, _)| net).loss(loss).verify(few());
    let found = found.unwrap();
    expect(&found, "no-gradient", &["all 4 parameters are frozen, first first.weight", "main.rs:"]);
    assert!(found.to_string().contains("not run"), "{found}");
    let cut = |state: &State, x: &Tensor| Ok(loss(state, x)?.detach());
    let (line, found) = (line!(), program().loss(cut).verify(few()).unwrap());
    let to = "between the loss and first.weight, made at compare/tests/verify/main.rs:";
    expect_found(&found, "cut-tape", line, &[to]);
    assert_eq!(found.findings.len(), 1, "{found}");
    let error = program().loss(cut).run().unwrap_err();
    expect_at(&error, line!() - 1);
    assert!(matches!(error.kind(), ErrorKind::NoGradient { .. }), "{error}");
}

#[test]
fn a_loss_of_several_numbers_is_found_at_its_op() {
    let rows =
        |(net, _): &State, x: &Tensor| net.first.forward(&x.clone().into())?.square()?.mean(&[1], false);
    let line = line!() - 1;
    expect_found(&program().loss(rows).verify(few()).unwrap(), "error", line, &["got shape [5]"]);
    expect_at(&program().loss(rows).run().unwrap_err(), line);
}

#[test]
#[allow(clippy::panic)]
fn a_panic_on_a_lane_is_at_the_check() {
    let caller = std::thread::current().id();
    let panics = |state: &State, x: &Tensor| {
        if std::thread::current().id() == caller { loss(state, x) } else { panic!("no") }
    };
    let found = program().loss(panics).verify(few()).unwrap();
    expect_found(&found, "error", line!() - 1, &["lane 1 panicked: no"]);
    let error = program().loss(panics).run().unwrap_err();
    expect_at(&error, line!() - 1);
}

#[test]
fn batches_that_end_early_are_an_error_at_the_check() {
    let short = || {
        let program = Comparison::new(&cpu()).setup(setup);
        program.loader(|dev| Ok([batch(dev, 0), batch(dev, 1), batch(dev, 2)].into_iter())).loss(loss)
    };
    let error = short().verify(few()).unwrap_err();
    expect_at(&error, line!() - 1);
    assert!(error.to_string().contains("got 1 for a step of 2"), "{error}");
    expect_at(&short().run().unwrap_err(), line!());
    expect_at(&program().loss(loss).verify(VerifyOptions { steps: 0, ..few() }).unwrap_err(), line!());
    expect_at(&verify(&cpu(), VerifyOptions { steps: 0, ..few() }, setup, |_| Ok(())).unwrap_err(), line!());
    let none = CompareOptions { steps: 0, ..CompareOptions::default() };
    expect_at(&program().loss(loss).options(none).run().unwrap_err(), line!());
}

#[test]
fn batches_that_differ_or_are_modified_are_told_so() {
    let drawn = AtomicUsize::new(0);
    let draws = |dev: &Device, _| batch(dev, drawn.fetch_add(1, Ordering::Relaxed) as u64);
    let found = Comparison::new(&cpu()).setup(setup).batches(draws).loss(loss).verify(few()).unwrap();
    expect_found(&found, "not-deterministic", line!() - 1, &["tensor 0 of the batches of step 0"]);
    assert_eq!(found.findings.len(), 1, "{found}");
    let modifies = |state: &State, x: &Tensor| {
        x.mul_scalar_(0.5)?;
        loss(state, x)
    };
    let found = program().loss(modifies).verify(few()).unwrap();
    expect(
        &found,
        "input-modified",
        &["the loss, computed by mean", &format!("lines.rs:{LOSS}"), "modifies its batch"],
    );
}

#[test]
fn later_batches_are_looked_at() {
    let later = |dev: &Device, n: u64| if n < 5 { batch(dev, n) } else { batch(dev, n)?.div_scalar(0.0) };
    let found =
        Comparison::new(&cpu()).setup(setup).batches(later).model(|(net, _)| net).loss(loss).verify(few());
    expect(&found.unwrap(), "not-finite", &["the loss of batch 5", "mean at", &format!("lines.rs:{LOSS}")]);
}

#[test]
fn an_update_that_changes_nothing_is_found() {
    let found = program().loss(loss).update(|_, _| Ok(())).verify(few()).unwrap();
    expect(
        &found,
        "not-updated",
        &["first.weight, made at compare/tests/verify/main.rs:", "4 steps do not change it"],
    );
    assert_eq!(found.findings.len(), 4, "{found}");
}

#[test]
fn what_is_not_checked_is_said() {
    let step = |(net, sgd): &mut State, x: Tensor| sgd.step(&loss_of(net, &x)?.backward()?);
    let found = program().step(step).verify(few()).unwrap();
    found.expect_clean();
    let said = found.checks.iter().find(|(name, _)| *name == "gradients").unwrap();
    assert!(said.1.starts_with("not checked: a whole `step`"), "{found}");
}
