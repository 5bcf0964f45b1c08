//! Mistakes, each found by its own check.

use super::*;

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
    let line = format!("planted.rs:{}", line!() - 7);
    let found = run(true);
    expect(&found, "not-captured", &["would read", &line]);
}

/// Where commands run later, a read waits for them.
#[test]
fn a_read_within_the_step_is_found_at_its_line() {
    let dev = Device::cpu_with(CpuConfig { schedule: Schedule::Delay { seed: 1 }, ..CpuConfig::default() });
    let line = format!("planted.rs:{}", line!() + 7);
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
    expect(&with(1e-4), "gradient", &["first.", "used by linear at", &format!("main.rs:{LAYERS}")]);
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
    let line = format!("planted.rs:{}", line!() + 8);
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
    for part in ["neg", "add", &format!("planted.rs:{}", line + 4), &format!("planted.rs:{}", line + 5)] {
        assert!(error.contains(part), "{part}: {error}");
    }
}

/// What the finding of this code tells.
fn told(found: &Verification, code: &str) -> String {
    let of_code = found.findings.iter().find(|finding| finding.code == code);
    of_code.map(|finding| finding.message.replace('\n', " ")).unwrap_or_else(|| panic!("no {code}: {found}"))
}

#[test]
fn a_gradient_that_misses_a_factor_is_found() {
    let part = verified(|state, x| between(|y| y.mul(&y.detach()), state, x));
    expect(&part, "gradient", &["first."]);
    let cut = verified(|state, x| between(|y| no_grad(|| y.square()), state, x));
    expect(&cut, "no-gradient", &["first.weight"]);
}

#[test]
fn a_loss_that_is_not_finite_is_found() {
    let found = verified(|(net, _), x| net.first.forward(&x.clone().into())?.sqrt()?.mean(&[], false));
    expect(&found, "not-finite", &["the loss"]);
    let found = verified(|(net, _), x| net.first.forward(&x.clone().into())?.relu()?.log()?.sum(&[], false));
    expect(&found, "not-finite", &["the loss"]);
}

#[test]
fn a_parameter_that_the_optimizer_was_not_given_is_found() {
    let forgets = |dev: &Device| {
        let (net, _) = setup(dev)?;
        let sgd = Sgd::new(net.second.parameters(), 0.1)?;
        Ok((net, sgd))
    };
    let found = verified_from(forgets, |state, x| between(|y| Ok(y.clone()), state, x));
    expect(&found, "not-updated", &["first.weight"]);
    assert_eq!(found.findings.len(), 2, "{found}");
}

#[test]
fn a_weight_that_the_loss_changes_is_found() {
    let result = Comparison::new(&cpu())
        .setup(setup)
        .batches(batch)
        .model(|(net, _)| net)
        .loss(|(net, _), x| {
            net.first.weight().value().mul_scalar_(0.99)?;
            mse(&net.second.forward(&net.first.forward(&x.clone().into())?)?, &target(x)?)
        })
        .verify(VerifyOptions::default());
    match result {
        Ok(found) => expect(&found, "input-modified", &["first.weight"]),
        Err(error) => panic!("{error:?}"),
    }
}

#[test]
fn a_rule_with_too_few_gradients_is_an_error() {
    let line = format!("planted.rs:{}", line!() + 3);
    let result = between_result(|y| {
        let value = y.value().mul(y.value())?;
        Ok(record("product", &[y, y], &[], value, |_, g| Ok([Some(g.clone())].into_iter().collect())))
    });
    let error = format!("{:?}", result.unwrap_err());
    assert!(error.contains("1 gradients for 2 inputs") && error.contains(&line), "{line}: {error}");
}

fn between_result(f: impl Fn(&Var) -> Result<Var> + Send + Sync) -> Result<Verification> {
    Comparison::new(&cpu())
        .setup(setup)
        .batches(batch)
        .loss(move |state, x| between(&f, state, x))
        .model(|(net, _): &State| net)
        .verify(VerifyOptions::default())
}

/// Each of these keeps what its backward pass saved, too.
#[test]
fn losses_that_are_kept_are_found() {
    let kept = Mutex::new(Vec::new());
    let found = verified(|state, x| {
        let loss = between(|y| Ok(y.clone()), state, x)?;
        kept.lock().unwrap().push(loss.clone());
        Ok(loss)
    });
    assert!(told(&found, "memory-grows").contains("bytes"));
}

#[test]
fn batches_that_grow_ask_the_driver_each_time() {
    let grow = |dev: &Device, n: u64| Tensor::zeros(&[1 << (10 + n), 4], F32, dev);
    let found = Comparison::new(&cpu())
        .setup(setup)
        .batches(grow)
        .options(CompareOptions { captured: false, ..CompareOptions::default() })
        .loss(|(net, _), x| net.first.forward(&x.clone().into())?.square()?.mean(&[], false))
        .verify(VerifyOptions { explored: 0, ..VerifyOptions::default() })
        .unwrap();
    expect(&found, "driver-allocation", &[]);
}

/// A loss that decides what is computed.
#[test]
fn a_decision_of_the_host_is_found() {
    let line = format!("planted.rs:{}", line!() + 3);
    let found = verified(|state, x| {
        let loss = between(|y| Ok(y.clone()), state, x)?;
        if loss.value().item::<f32>()? > 1e6 { loss.mul_scalar(0.5) } else { Ok(loss) }
    });
    expect(&found, "not-captured", &["would read", &line]);
}

/// A replay would not set it.
#[test]
fn a_learning_rate_that_is_set_within_a_captured_step_is_found() {
    let line = format!("planted.rs:{}", line!() + 7);
    let setup = |dev: &Device| Ok((setup(dev)?, 0));
    let found = Comparison::new(&cpu())
        .setup(setup)
        .batches(batch)
        .loss(|(state, _), x| between(|y| Ok(y.clone()), state, x))
        .update(|((_, sgd), step), gradients| {
            LrSchedule::Exponential { gamma: 0.5 }.apply(sgd, 0.1, *step)?;
            *step += 1;
            sgd.step(&gradients)
        })
        .model(|((net, _), _)| net)
        .verify(VerifyOptions { explored: 4, ..VerifyOptions::default() })
        .unwrap();
    expect(&found, "not-captured", &["replays would not set it", &line]);
}

#[test]
fn a_result_that_depends_on_the_number_of_threads_is_found() {
    let line = format!("planted.rs:{}", line!() + 1);
    let found = verified(|state, x| between(|y| y.mul_scalar(1.0 + y.device().threads() as f64), state, x));
    expect(&found, "not-equal", &["one thread"]);
    let first = found.findings.iter().find(|finding| finding.message.contains("a command differs"));
    assert!(first.is_some_and(|finding| finding.message.contains(&line)), "{line}: {found}");
}

/// What is prepared a step ahead is made of weights that the step before has not changed yet.
#[test]
fn a_preparation_that_reads_what_is_trained_is_found() {
    let found = Comparison::new(&cpu())
        .setup(setup)
        .batches(batch)
        .prepare(|(net, _)| {
            let weight = net.first.weight().value().clone();
            move |x: Tensor| x.matmul(&weight.transpose(0, 1)?)
        })
        .loss(|(net, _), hidden| {
            let hidden = Var::constant(hidden.clone()).add(net.first.bias().unwrap())?;
            net.second
                .forward(&hidden)?
                .add(&net.first.weight().mean(&[], false)?)?
                .square()?
                .mean(&[], false)
        })
        .update(|(_, sgd), gradients| sgd.step(&gradients))
        .model(|(net, _)| net)
        .verify(VerifyOptions { explored: 4, ..VerifyOptions::default() })
        .unwrap();
    expect(&found, "not-equal", &["stages"]);
}
