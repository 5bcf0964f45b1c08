//! Programs in closures, compared: the schedules that they get, and what is said of them.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::atomic::{AtomicUsize, Ordering};

use autograd::Var;
use compare::{CompareOptions, Comparison, ComparisonReport};
use device::DType::F32;
use device::{CpuConfig, Device, ErrorKind, Result};
use models::{Adam, AdamOptions, Forward, Module, Optimizer, Sequential, mlp, mse};
use tensor::{RandomKey, Tensor};

fn cpu() -> Device {
    Device::cpu_with(CpuConfig { threads: Some(2), ..CpuConfig::default() })
}

fn few() -> CompareOptions {
    CompareOptions { steps: 4, warmup: 1, traced: 2, explored: 2, ..CompareOptions::default() }
}

type State = (Sequential, Adam);

fn setup(dev: &Device) -> Result<State> {
    let model = mlp(&[8, 16, 4], 3, dev)?;
    let adam = Adam::new(model.parameters(), AdamOptions::default())?;
    Ok((model, adam))
}

fn batch(dev: &Device, n: u64) -> Result<Tensor> {
    Tensor::randn(&[6, 8], F32, RandomKey { seed: 1, op: n }, dev)
}

/// A loss that draws random numbers of the thread's generator, and scores.
fn loss((model, _): &State, x: &Tensor) -> Result<(Var, Tensor)> {
    let scores = model.forward(&Var::constant(x.clone()).dropout(0.5, None)?)?;
    Ok((mse(&scores, &x.narrow(1, 0, 4)?.into())?, scores.value().clone()))
}

fn names(report: &ComparisonReport) -> Vec<&'static str> {
    report.schedules().map(|schedule| schedule.name).collect()
}

fn codes(report: &ComparisonReport) -> Vec<&'static str> {
    report.diagnosis.iter().map(|finding| finding.code).collect()
}

const CAPTURED: [&str; 2] = ["captured, serial order", "captured, data order"];

#[test]
fn a_loss_and_an_update_get_lanes_and_captured_schedules() {
    let report = Comparison::new(&cpu())
        .setup(setup)
        .batches(batch)
        .loss(loss)
        .update(|(_, adam), gradients| adam.step(&gradients))
        .model(|(model, _)| model)
        .metrics(|(model, _)| Ok(vec![("parameters".into(), model.parameters().len() as f64)]))
        .options(few())
        .run()
        .unwrap();
    assert!(report.is_identical(), "{:?}", report.diagnosis);
    let equal = [report.identical_losses, report.identical_results, report.identical_parameters];
    assert_eq!(equal, [Some(true); 3]);
    assert_eq!(names(&report), [&["serial", "lanes"][..], &CAPTURED].concat());
    assert_eq!((report.batches_per_step, report.serial.losses.len()), (2, 4));
    assert_eq!(report.explored.unwrap().schedules, 2);
    assert_eq!(report.metrics, [("parameters".to_owned(), 4.0)]);
    let text = report.to_string();
    for part in
        ["serial", "speed-up", "losses", "bit-equal in 4 steps", "parameters", "diagnosis\n", "limit:"]
    {
        assert!(text.contains(part), "{part:?} in {text}");
    }
    let json = report.to_json();
    assert_eq!((&json["identical_results"], &json["metrics"]["parameters"]), (&true.into(), &4.0.into()));
    let folder = std::env::temp_dir().join(format!("streamgrad-comparison-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    report.write_report(folder.join("report.html")).unwrap();
    report.write_trace(folder.join("trace.json")).unwrap();
    let read = |name| std::fs::read_to_string(folder.join(name)).unwrap();
    assert!(read("report.html").contains("Loss of each batch") && read("trace.json").contains("traceEvents"));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_whole_step_gets_the_schedules_that_it_can_have() {
    let report = Comparison::new(&cpu())
        .setup(setup)
        .batches(batch)
        .step(|state, x| {
            let (loss, scores) = loss(state, &x)?;
            state.1.step(&loss.backward()?)?;
            Ok((loss.value().clone(), scores))
        })
        .options(few())
        .run()
        .unwrap();
    assert!(report.is_identical(), "{:?}", report.diagnosis);
    let equal = [report.identical_losses, report.identical_results, report.identical_parameters];
    assert_eq!(equal, [None, Some(true), None]);
    assert_eq!(names(&report), [&["serial"][..], &CAPTURED].concat());
    assert!(report.limits.is_none() && report.gain().is_none() && report.explored.is_some());
    let left_out = report.diagnosis.iter().find(|finding| finding.code == "left-out").unwrap();
    assert!(left_out.message.contains("lanes") && left_out.message.contains("`model`"), "{left_out}");
}

/// Random numbers of the preparation and of the loss do not depend on where and when a batch is prepared.
#[test]
fn what_is_prepared_ahead_is_the_same() {
    let compare = |batches_per_step| {
        Comparison::new(&cpu())
            .setup(setup)
            .batches(batch)
            .prepare(|_| |x: Tensor| x.add(&Tensor::randn(x.shape(), F32, None, x.device())?))
            .loss(loss)
            .update(|(_, adam), gradients| adam.step(&gradients))
            .model(|(model, _)| model)
            .options(CompareOptions { batches_per_step, ..few() })
            .run()
            .unwrap()
    };
    for (batches, lanes) in [(None, &[][..]), (Some(3), &["lanes"])] {
        let report = compare(batches);
        assert!(report.is_identical(), "{:?}", report.diagnosis);
        let expected = [&["serial", "stages"], lanes, &CAPTURED, &["captured, stages"]].concat();
        assert_eq!(names(&report), expected);
        let streams = &report.concurrent.as_ref().unwrap().streams_by_name;
        assert_eq!(streams.iter().map(|(_, name)| &name[..]).collect::<Vec<_>>()[1..], ["prepare", "train"]);
        assert_eq!(report.batches_per_step, batches.unwrap_or(1));
    }
}

#[test]
fn branches_and_host_prepared_batches_are_schedules() {
    let report = Comparison::new(&cpu())
        .setup(|dev| Ok((setup(dev)?, false)))
        .batches(batch)
        .branched(|dev| Ok((setup(dev)?, true)))
        .step(|((model, _), branched), x| {
            let (left, right) = (|| model.forward(&x.clone().into()), || model.forward(&x.neg()?.into()));
            let (left, right) =
                if *branched { x.device().concurrent((left, right))? } else { (left()?, right()?) };
            left.value().add(right.value())
        })
        .options(few())
        .run()
        .unwrap();
    assert_eq!(names(&report), [&["serial", "branches"][..], &CAPTURED].concat());
    assert!(report.is_identical(), "{:?}", report.diagnosis);
    let report = Comparison::new(&cpu())
        .setup(setup)
        .batches(batch)
        .prepare(|_| |x: Tensor| x.mul_scalar(0.5))
        .prepares_on_host()
        .loss(|(model, _), x| mse(&model.forward(&x.clone().into())?, &x.narrow(1, 0, 4)?.into()))
        .options(few())
        .run()
        .unwrap();
    assert!(names(&report).contains(&"host-prepared") && report.is_identical(), "{:?}", report.diagnosis);
    assert_eq!(report.identical_results, Some(true), "gradients are compared where nothing is updated");
}

/// A step that reads a value cannot be captured; one that counts on the host is not what is replayed.
#[test]
fn what_cannot_be_replayed_is_said() {
    let counted = AtomicUsize::new(0);
    let with = |reads: bool, counts: bool| {
        Comparison::new(&cpu())
            .setup(setup)
            .batches(batch)
            .step(|(model, _), x| {
                let mean = model.forward(&x.into())?.mean(&[], false)?;
                if reads {
                    mean.value().item::<f32>()?;
                }
                let number = if counts { counted.fetch_add(1, Ordering::Relaxed) } else { 1 };
                mean.value().mul_scalar(number as f64)
            })
            .options(CompareOptions { explored: 0, ..few() })
            .run()
            .unwrap()
    };
    let report = with(true, false);
    assert_eq!((names(&report), report.is_identical()), (vec!["serial"], true));
    assert!(codes(&report).contains(&"not-captured"), "{:?}", report.diagnosis);
    let report = with(false, true);
    assert_eq!(report.identical_results, Some(false));
    let found = report.diagnosis.iter().find(|finding| finding.code == "not-equal").unwrap();
    assert!(found.message.contains("a result differs, captured, serial order: step 0"), "{found}");
    assert!(report.to_string().contains("NOT EQUAL"));
}

#[test]
fn what_depends_on_the_order_is_not_identical() {
    let counted = AtomicUsize::new(0);
    let report = Comparison::new(&cpu())
        .setup(setup)
        .model(|(model, _)| model)
        .batches(batch)
        .loss(|(model, _), x| {
            // As if it depended on which commands ran before.
            let number = counted.fetch_add(1, Ordering::Relaxed) as f64;
            model.forward(&x.clone().into())?.mean(&[], false)?.mul_scalar(number)
        })
        .update(|(_, adam), gradients| adam.step(&gradients))
        .options(CompareOptions { captured: false, ..few() })
        .run()
        .unwrap();
    assert_eq!((report.identical_orders, report.is_identical()), (Some(false), false));
    assert_eq!(report.identical_parameters, Some(false), "the model stood before the batches");
    assert!(report.to_string().contains("other orders"), "{report}");
}

/// Other orders of commands are tried out on devices of their own.
#[test]
fn a_program_that_fails_elsewhere_is_not_explored() {
    let setups = AtomicUsize::new(0);
    let report = Comparison::new(&cpu())
        .setup(|dev| {
            // The first is that of the serial schedule.
            let number = setups.fetch_add(1, Ordering::Relaxed);
            Tensor::ones(&[if number == 0 { 8 } else { 7 }], F32, dev)
        })
        .batches(batch)
        .step(|ones, x| x.add(ones))
        .options(CompareOptions { captured: false, ..few() })
        .run()
        .unwrap();
    assert!(report.explored.is_none() && codes(&report).contains(&"not-explored"), "{:?}", report.diagnosis);
}

#[test]
fn a_program_needs_one_step_and_enough_batches() {
    let step = |_: &mut (), x: Tensor| x.neg();
    let none = Comparison::new(&cpu()).batches(batch).run();
    let both = Comparison::new(&cpu())
        .batches(batch)
        .loss(|(), x: &Tensor| Var::constant(x.clone()).mean(&[], false))
        .step(step)
        .run();
    let short = Comparison::new(&cpu()).loader(|dev| Ok([batch(dev, 0)].into_iter())).step(step).run();
    let zero = CompareOptions { steps: 0, ..few() };
    let no_steps = Comparison::new(&cpu()).batches(batch).step(step).options(zero).run();
    for (found, argument) in [(none, "step"), (both, "step"), (short, "batches"), (no_steps, "steps")] {
        let error = found.unwrap_err();
        let is_it = matches!(error.kind(), ErrorKind::InvalidArgument { argument: a, .. } if *a == argument);
        assert!(is_it, "{argument}: {error}");
    }
}
