//! Programs under many schedules that a device could choose: one result.

#![allow(clippy::unwrap_used, clippy::panic)]

use streamgrad::prelude::*;
use streamgrad::{ConcurrentBatches, Error, Explore, Result, Sgd, SgdOptions, explore, explore_all, mlp};

/// Two training steps of a small model with two lanes that share its weights.
fn two_lanes(device: &Device) -> Result<Vec<Tensor>> {
    let model = mlp(&[3, 4, 2], 1, device)?;
    let mut sgd = Sgd::new(model.parameters(), SgdOptions { lr: 0.5, ..SgdOptions::default() })?;
    let lanes = ConcurrentBatches::new(device, 2)?;
    let mut results = Vec::new();
    for batch in 0..2 {
        let inputs: Vec<Tensor> = (0..2)
            .map(|lane| Tensor::full(&[2, 3], 0.3 * f64::from(batch + lane + 1), DType::F32, device))
            .collect::<Result<_>>()?;
        let step =
            lanes.step(inputs, |input| model.forward(&Var::constant(input))?.square()?.mean(&[], false))?;
        sgd.step(&step.gradients)?;
        results.extend(step.losses);
    }
    results.extend(model.parameters().iter().map(|parameter| parameter.value().clone()));
    Ok(results)
}

/// A program of three streams and twelve commands, beside the fills of fresh memory.
fn three_streams(device: &Device) -> Result<Vec<Tensor>> {
    let streams = [device.new_stream()?, device.new_stream()?, device.new_stream()?];
    let x = Tensor::from_slice(&[1.0f32], &[1], device)?;
    let sums = [x.copy()?, x.copy()?, x.copy()?];
    device.synchronize()?;
    for round in 0..4 {
        for (at, stream) in streams.iter().enumerate() {
            let (to, from) = (&sums[at], &sums[(at + round) % 3]);
            stream.scope(|| if round == 3 { to.mul_scalar_(3.0) } else { to.add_(from) })?;
        }
    }
    Ok(sums.to_vec())
}

#[test]
fn a_step_on_two_lanes_has_one_result() -> Result<()> {
    let report = explore(Explore { seeds: 0..300, ..Explore::default() }, two_lanes)?;
    assert_eq!((report.schedules, report.distinct_results), (300, 1));
    assert!(report.distinct_orders > 250, "{report:?}");
    Ok(())
}

#[test]
fn every_schedule_of_three_streams_has_one_result() -> Result<()> {
    let report = explore_all(100_000, three_streams)?;
    assert_eq!(report.distinct_results, 1);
    assert!(report.schedules > 1, "{report:?}");
    Ok(())
}

#[test]
fn a_limit_of_exactly_the_schedules_is_enough() -> Result<()> {
    let one = |device: &Device| Ok(vec![Tensor::ones(&[1], DType::F32, device)?]);
    assert_eq!(explore_all(1, one)?.schedules, 1);
    let two = |device: &Device| {
        let (a, b) = (device.new_stream()?, device.new_stream()?);
        let x = Tensor::from_slice(&[1.0f32], &[1], device)?;
        device.synchronize()?;
        a.scope(|| x.mul_scalar_(2.0))?;
        let y = b.scope(|| Tensor::ones(&[1], DType::F32, device))?;
        b.scope(|| y.add_(&x))?;
        Ok(vec![x, y])
    };
    let all = explore_all(100_000, two)?;
    assert_eq!(explore_all(all.schedules, two)?, all);
    assert!(all.schedules > 1, "{all:?}");
    let error = explore_all(all.schedules - 1, two);
    assert!(matches!(error, Err(Error::InvalidArgument { argument: "limit", .. })), "{error:?}");
    Ok(())
}

/// Without any one of the waits, some schedule gives another result.
#[test]
fn a_missing_wait_is_found() -> Result<()> {
    let waits = {
        let device = streamgrad::Device::cpu_with(streamgrad::CpuConfig {
            schedule: streamgrad::Schedule::Explore(streamgrad::Policy::OldestFirst),
            ..streamgrad::CpuConfig::default()
        });
        three_streams(&device)?;
        device.sync_stats().waits_inserted as usize
    };
    assert!(waits >= 6);
    let mut missed = Vec::new();
    for wait in 0..waits {
        match explore(Explore { seeds: 0..100, drop_wait: Some(wait) }, three_streams) {
            Err(Error::ScheduleDependent { found, .. }) => assert!(!found.is_empty()),
            Ok(_) => missed.push(wait),
            Err(error) => return Err(error),
        }
    }
    assert!(missed.is_empty(), "without wait {missed:?} of {waits} nothing changed");
    Ok(())
}
