//! Planted mistakes are each found, by their own check; clean programs are clean.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use autograd::{Save, Var, record};
extern crate models as streamgrad;

use compare::{CompareOptions, Comparison, Verification, VerifyOptions, verify};
use device::DType::F32;
use device::{CpuConfig, Device, Result, Schedule, SyncMode};
use models::{BatchNorm2d, Forward, Linear, Module, Optimizer, Sgd, cross_entropy, mse};
use tensor::{RandomKey, Tensor};

fn cpu() -> Device {
    Device::cpu_with(CpuConfig { threads: Some(2), ..CpuConfig::default() })
}

#[derive(Module)]
struct Net {
    first: Linear,
    second: Linear,
}

type State = (Net, Sgd);

fn setup(dev: &Device) -> Result<State> {
    let key = |op| RandomKey { seed: 5, op };
    let net = Net { first: Linear::keyed(4, 6, key(0), dev)?, second: Linear::keyed(6, 3, key(1), dev)? };
    let sgd = Sgd::new(net.parameters(), 0.1)?;
    Ok((net, sgd))
}

fn batch(dev: &Device, n: u64) -> Result<Tensor> {
    Tensor::randn(&[5, 4], F32, RandomKey { seed: 1, op: n }, dev)
}

/// What the output has to be.
fn target(x: &Tensor) -> Result<Var> {
    Ok(x.narrow(1, 0, 3)?.into())
}

fn verified(loss: impl Fn(&State, &Tensor) -> Result<Var> + Send + Sync) -> Verification {
    verified_from(setup, loss)
}

fn verified_from(
    setup: impl Fn(&Device) -> Result<State> + Send + Sync,
    loss: impl Fn(&State, &Tensor) -> Result<Var> + Send + Sync,
) -> Verification {
    let options = VerifyOptions { explored: 4, ..VerifyOptions::default() };
    Comparison::new(&cpu())
        .setup(setup)
        .batches(batch)
        .loss(loss)
        .update(|(_, sgd), gradients| sgd.step(&gradients))
        .model(|(net, _)| net)
        .verify(options)
        .unwrap()
}

/// The net's loss, with something between its layers.
fn between(f: impl Fn(&Var) -> Result<Var>, (net, _): &State, x: &Tensor) -> Result<Var> {
    let hidden = f(&net.first.forward(&x.clone().into())?)?;
    mse(&net.second.forward(&hidden.tanh()?)?, &target(x)?)
}

/// That the first finding has this code, and tells of these words.
fn expect(found: &Verification, code: &str, words: &[&str]) {
    let first = found.findings.first().unwrap_or_else(|| panic!("nothing is found, not {code}"));
    let text = first.message.replace('\n', " ");
    assert!(first.code == code && words.iter().all(|word| text.contains(word)), "{code}, {words:?}: {found}");
}

#[test]
fn clean_programs_are_clean() {
    let found = verified(|state, x| between(|y| Ok(y.clone()), state, x));
    found.expect_clean();
    let done: Vec<_> = found.checks.iter().map(|(name, _)| *name).collect();
    let all = ["left out", "parameters", "gradients", "equal bits", "explored", "host and memory", "audit"];
    assert_eq!(done, all);
    let schedules = &found.checks[3].1;
    for name in ["a second run", "one thread", "lanes", "captured, serial order", "captured, data order"] {
        assert!(schedules.contains(name), "{name}: {schedules}");
    }
    assert!(found.to_string().ends_with("nothing is wrong\n"), "{found}");
    verified(|state, x| between(|y| y.dropout(0.3, None), state, x)).expect_clean();
    verified(|(net, _), x| {
        cross_entropy(
            &net.second.forward(&net.first.forward(&x.clone().into())?)?,
            &x.narrow(1, 0, 3)?.argmax(1, false)?,
        )
    })
    .expect_clean();
    let frozen = |dev: &Device| {
        let state = setup(dev)?;
        state.0.first.freeze();
        Ok(state)
    };
    let found = verified_from(frozen, |state, x| between(|y| Ok(y.clone()), state, x));
    found.expect_clean();
    assert_eq!(found.checks[1].1, "2 that learn, 2 frozen");
}

#[test]
fn a_whole_step_is_verified_without_gradients() {
    let run = |reads: bool| {
        verify(&cpu(), VerifyOptions::default(), setup, move |(net, sgd)| {
            let x = Tensor::randn(&[5, 4], F32, None, net.first.parameters()[0].value().device())?;
            let loss = net.second.forward(&net.first.forward(&x.into())?)?.square()?.mean(&[], false)?;
            sgd.step(&loss.backward()?)?;
            if reads {
                loss.value().item::<f32>()?;
            }
            Ok(loss.value().clone())
        })
        .unwrap()
    };
    run(false).expect_clean();
    let line = format!("verify.rs:{}", line!() - 7);
    let found = run(true);
    expect(&found, "not-captured", &["would read", &line]);
}

/// Where commands run later, a read waits for them.
#[test]
fn a_read_within_the_step_is_found_at_its_line() {
    let dev = Device::cpu_with(CpuConfig { schedule: Schedule::Delay { seed: 1 }, ..CpuConfig::default() });
    let line = format!("verify.rs:{}", line!() + 7);
    let program = Comparison::new(&dev)
        .setup(setup)
        .batches(batch)
        .options(CompareOptions { captured: false, ..CompareOptions::default() });
    let program = program.step(|(net, _), x| {
        let mean = net.first.forward(&x.into())?.mean(&[], false)?;
        mean.value().item::<f32>()?;
        Ok(mean.value().clone())
    });
    let found = program.verify(VerifyOptions { explored: 0, ..VerifyOptions::default() }).unwrap();
    expect(&found, "hidden-sync", &[&line]);
}

/// Running statistics are updated in batch order.
#[test]
fn batch_norm_is_clean() {
    let setup = |dev: &Device| {
        let norm = BatchNorm2d::new(2, dev)?;
        let sgd = Sgd::new(norm.parameters(), 0.1)?;
        Ok((norm, sgd))
    };
    let images = |dev: &Device, n| Tensor::randn(&[3, 2, 4, 4], F32, RandomKey { seed: 1, op: n }, dev);
    Comparison::new(&cpu())
        .setup(setup)
        .batches(images)
        .loss(|(norm, _), x| norm.forward(&x.clone().into())?.tanh()?.square()?.mean(&[], false))
        .update(|(_, sgd), gradients| sgd.step(&gradients))
        .model(|(norm, _)| norm)
        .verify(VerifyOptions::default())
        .unwrap()
        .expect_clean();
}

/// `sin x`, with a gradient that is wrong by so much of itself.
fn wrong_sin(x: &Var, by: f64) -> Result<Var> {
    let value = x.value().sin()?;
    Ok(record("wrong_sin", &[x], &[Save::Input(0)], value, move |cx, g| {
        Ok([Some(g.mul(&cx.saved(0).cos()?)?.mul_scalar(1.0 + by)?)].into_iter().collect())
    }))
}

#[test]
fn wrong_gradients_are_found() {
    let with = |by| verified(move |state, x| between(|y| wrong_sin(y, by), state, x));
    with(0.0).expect_clean();
    expect(&with(1e-4), "gradient", &["first."]);
    let cut = verified(|state, x| between(|y| Ok(y.detach()), state, x));
    expect(&cut, "no-gradient", &["first.weight"]);
    assert_eq!(cut.findings.len(), 2, "{cut}");
    let infinite =
        verified(|state, x| between(|y| y.relu()?.sub(y)?.abs()?.mul_scalar(0.0)?.sqrt(), state, x));
    expect(&infinite, "not-finite", &["first.weight"]);
}

#[test]
fn a_parameter_may_be_without_a_gradient_if_it_is_named() {
    let loss = |(net, _): &State, x: &Tensor| {
        net.second.forward(&Tensor::cat(&[x, &x.narrow(1, 0, 2)?], 1)?.into())?.square()?.mean(&[], false)
    };
    let program = |without: &[&str]| {
        let without_gradient = without.iter().map(|&name| name.to_owned()).collect();
        Comparison::new(&cpu())
            .setup(setup)
            .batches(batch)
            .loss(loss)
            .model(|(net, _)| net)
            .verify(VerifyOptions { without_gradient, explored: 0, ..VerifyOptions::default() })
            .unwrap()
    };
    expect(&program(&[]), "no-gradient", &["first.weight"]);
    program(&["first."]).expect_clean();
}

#[test]
fn what_differs_from_run_to_run_is_found() {
    let calls = AtomicUsize::new(0);
    let found = verified(|state, x| {
        let number = calls.fetch_add(1, Ordering::Relaxed) as f64;
        between(|y| y.mul_scalar(1.0 + 1e-3 * number), state, x)
    });
    expect(&found, "not-deterministic", &[]);
    let codes: Vec<_> = found.findings.iter().map(|finding| finding.code).collect();
    assert!(codes.contains(&"not-equal"), "{found}");
}

#[test]
fn a_changed_value_is_an_error_at_its_line() {
    let line = format!("verify.rs:{}", line!() + 8);
    let run = || -> Result<Verification> {
        Comparison::new(&cpu())
            .setup(setup)
            .batches(batch)
            .model(|(net, _)| net)
            .loss(|(net, _), x| {
                let first = net.first.forward(&x.clone().into())?;
                let hidden = first.square()?;
                first.value().add_scalar_(1.0)?;
                mse(&net.second.forward(&hidden)?, &target(x)?)
            })
            .verify(VerifyOptions::default())
    };
    let error = format!("{:?}", run().unwrap_err());
    assert!(error.contains("square") && error.contains(&line), "{line}: {error}");
}

#[test]
fn a_step_that_gives_nothing_is_no_clean_step() {
    let found = verify(&cpu(), VerifyOptions::default(), setup, |_| Ok(())).unwrap();
    expect(&found, "nothing-compared", &[]);
    let none = VerifyOptions { steps: 0, ..VerifyOptions::default() };
    assert!(verify(&cpu(), none, setup, |_| Ok(())).is_err());
}

#[test]
fn memory_that_is_kept_is_found() {
    let kept = Mutex::new(Vec::new());
    let found =
        verify(&cpu(), VerifyOptions { explored: 0, ..VerifyOptions::default() }, setup, |(net, _)| {
            let weight = net.first.parameters()[0].value().square()?;
            kept.lock().unwrap().push(weight.clone());
            weight.sum(&[], false)
        });
    let found = found.unwrap();
    let grown = found.findings.iter().find(|finding| finding.code == "memory-grows");
    assert!(grown.is_some_and(|finding| finding.message.contains("bytes")), "{found}");
}

/// What the program does not wait for in `SyncMode::Manual` is an error of the first step.
#[test]
fn a_lost_wait_is_an_error() {
    let manual = |dev: &Device| {
        dev.set_sync_mode(SyncMode::Manual);
        batch(dev, 0)
    };
    let line = line!();
    let error = verify(&cpu(), VerifyOptions::default(), manual, |x| {
        let (a, b) = (x.device().new_stream()?, x.device().new_stream()?);
        a.wait_stream(&x.device().default_stream())?;
        let doubled = a.scope(|| x.add(x))?;
        b.scope(|| doubled.neg())
    });
    let error = error.unwrap_err().to_string();
    for part in ["neg", "add", &format!("verify.rs:{}", line + 4), &format!("verify.rs:{}", line + 5)] {
        assert!(error.contains(part), "{part}: {error}");
    }
}
