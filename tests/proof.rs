//! The engine's own programs: every wait that is inserted is needed, and nothing else is.

#![allow(clippy::unwrap_used, clippy::panic)]

use streamgrad::device::{Audit, Policy};
use streamgrad::prelude::*;
use streamgrad::{
    ConcurrentBatches, CpuConfig, Error, Explore, Result, Schedule, Sgd, SgdOptions, explore, mlp,
};

type Program = fn(&Device) -> Result<Vec<Tensor>>;

/// The programs by name.
const PROGRAMS: [(&str, Program); 3] = [
    ("two lanes", two_lanes),
    ("branches", branches),
    ("an optimizer step beside a batch in flight", optimizer_beside_a_batch),
];

fn input(rows: usize, seed: u32, device: &Device) -> Result<Tensor> {
    let values: Vec<f32> =
        (0..rows as u32 * 3).map(|i| ((i * 7 + seed * 5) % 11) as f32 * 0.1 - 0.4).collect();
    Tensor::from_slice(&values, &[rows, 3], device)
}

fn parameters(model: &impl Module) -> Vec<Tensor> {
    model.parameters().iter().map(|parameter| parameter.value().clone()).collect()
}

/// Two training steps of a small MLP with two lanes that share its weights.
fn two_lanes(device: &Device) -> Result<Vec<Tensor>> {
    let model = mlp(&[3, 4, 2], 1, device)?;
    let mut sgd =
        Sgd::new(model.parameters(), SgdOptions { lr: 0.5, momentum: 0.9, ..SgdOptions::default() })?;
    let lanes = ConcurrentBatches::new(device, 2)?;
    let mut results = Vec::new();
    for batch in 0..2 {
        let inputs = [input(2, 2 * batch, device)?, input(2, 2 * batch + 1, device)?];
        let loss = |input| model.forward(&Var::constant(input))?.square()?.mean(&[], false);
        let step = lanes.step(inputs, loss)?;
        sgd.step(&step.gradients)?;
        results.extend(step.losses);
    }
    results.extend(parameters(&model));
    Ok(results)
}

/// A model with branches on three streams, trained for two steps.
fn branches(device: &Device) -> Result<Vec<Tensor>> {
    let streams = [device.new_stream()?, device.new_stream()?, device.new_stream()?];
    let models = [mlp(&[3, 4], 1, device)?, mlp(&[3, 4], 2, device)?, mlp(&[3, 4], 3, device)?];
    let every = models.iter().flat_map(|model| model.parameters()).collect();
    let mut sgd = Sgd::new(every, SgdOptions { lr: 0.1, ..SgdOptions::default() })?;
    let mut results = Vec::new();
    for step in 0..2 {
        let x = Var::constant(input(2, step, device)?);
        let mut sum: Option<Var> = None;
        for (stream, model) in streams.iter().zip(&models) {
            let branch = stream.scope(|| model.forward(&x)?.tanh())?;
            sum = Some(match sum {
                Some(sum) => sum.add(&branch)?,
                None => branch,
            });
        }
        let loss = sum.unwrap().square()?.sum(&[], false)?;
        sgd.step(&loss.backward()?)?;
        results.push(loss.value().clone());
    }
    results.extend(models.iter().flat_map(parameters));
    Ok(results)
}

/// The optimizer changes the weights while a batch on another stream still reads them.
fn optimizer_beside_a_batch(device: &Device) -> Result<Vec<Tensor>> {
    let model = mlp(&[3, 4, 2], 5, device)?;
    let mut sgd = Sgd::new(model.parameters(), SgdOptions { lr: 0.3, ..SgdOptions::default() })?;
    let side = device.new_stream()?;
    let x = Var::constant(input(2, 1, device)?);
    let mut results = Vec::new();
    for _ in 0..2 {
        let gradients = model.forward(&x)?.square()?.sum(&[], false)?.backward()?;
        let in_flight = side.scope(|| model.forward(&x)?.exp())?;
        sgd.step(&gradients)?;
        results.push(in_flight.value().clone());
    }
    results.extend(parameters(&model));
    Ok(results)
}

/// A device on which everything waits for somebody to synchronise, so that no need is met by chance.
fn queued() -> Device {
    let schedule = Schedule::Explore(Policy::OldestFirst);
    Device::cpu_with(CpuConfig { schedule, ..CpuConfig::default() })
}

fn audited(program: Program) -> Audit {
    let device = queued();
    device.start_audit();
    let results = program(&device).unwrap();
    device.synchronize().unwrap();
    drop(results);
    device.stop_audit()
}

#[test]
fn nothing_in_the_engines_programs_is_unordered_and_every_wait_is_needed() {
    for (name, program) in PROGRAMS {
        let audit = audited(program);
        let hazards: Vec<String> = audit.hazards().iter().map(ToString::to_string).collect();
        assert!(hazards.is_empty(), "{name}: {hazards:#?}");
        let (commands, waits) = (audit.commands().count(), audit.waits().count());
        println!("{name}: {commands} commands, {waits} waits");
        assert!(waits >= 4, "{name}: {waits} waits");
        let unneeded: Vec<_> = audit
            .unneeded_waits()
            .iter()
            .map(|wait| {
                let op = |moment| audit.commands().find(|c| c.moment == moment).map(|c| c.to_string());
                (op(wait.waiter), op(wait.awaited))
            })
            .collect();
        assert!(unneeded.is_empty(), "{name}: {unneeded:#?}");
    }
}

/// Where data can tell: a schedule that uses the missing wait gives another result.
#[test]
fn exploration_finds_each_wait_that_is_left_out() -> Result<()> {
    for (name, program) in PROGRAMS {
        let device = queued();
        program(&device)?;
        let waits = device.sync_stats().waits_inserted as usize;
        let mut silent = Vec::new();
        for wait in 0..waits {
            match explore(Explore { seeds: 0..2000, drop_wait: Some(wait) }, program) {
                Err(Error::ScheduleDependent { .. }) => {}
                Ok(_) => silent.push(wait),
                Err(error) => return Err(error),
            }
        }
        assert!(silent.is_empty(), "{name}: without wait {silent:?} of {waits} nothing changed");
    }
    Ok(())
}

/// One training step of a small MLP with two lanes.
fn one_step(device: &Device) -> Result<Vec<Tensor>> {
    let model = mlp(&[3, 4, 2], 1, device)?;
    let mut sgd = Sgd::new(model.parameters(), SgdOptions { lr: 0.5, ..SgdOptions::default() })?;
    let lanes = ConcurrentBatches::new(device, 2)?;
    let loss = |input| model.forward(&Var::constant(input))?.square()?.mean(&[], false);
    let step = lanes.step([input(2, 0, device)?, input(2, 1, device)?], loss)?;
    sgd.step(&step.gradients)?;
    Ok(step.losses.into_iter().chain(parameters(&model)).collect())
}

#[test]
fn ten_thousand_schedules_of_a_two_lane_step_have_one_result() -> Result<()> {
    let report = explore(Explore { seeds: 0..10_000, ..Explore::default() }, one_step)?;
    assert_eq!((report.schedules, report.distinct_results), (10_000, 1));
    assert!(report.distinct_orders > 7_000, "{report:?}");
    Ok(())
}
