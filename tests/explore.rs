//! Programs under many schedules that a device could choose: one result.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::programs::{PROGRAMS, Program, input, parameters, two_lanes};
use streamgrad::compare::{Explore, explore, explore_all};
use streamgrad::prelude::*;
use streamgrad::{Error, ErrorKind, Result};
use workloads::{Dlrm, DlrmOptions, Gpt, GptOptions};

/// Two training steps of a model with two lanes that share its weights; `input` gives each lane's batch.
fn two_steps(
    device: &Device,
    model: &impl Forward,
    input: impl Fn(u32) -> Result<Tensor>,
) -> Result<Vec<Tensor>> {
    let mut adam = Adam::new(model.parameters(), AdamOptions::default())?;
    let lanes = ConcurrentBatches::with_options(device, 2, Lanes::Always)?;
    let mut results = Vec::new();
    for step in 0..2 {
        let inputs = [input(2 * step)?, input(2 * step + 1)?];
        let loss = |input| model.forward(&Var::constant(input))?.square()?.mean(&[], false);
        let step = lanes.step(inputs, loss)?;
        adam.step(&step.gradients)?;
        results.extend(step.losses);
    }
    results.extend(parameters(model));
    Ok(results)
}

/// Dropout draws, whose numbers are those of the batch.
fn dropped_out(device: &Device) -> Result<Vec<Tensor>> {
    streamgrad::seed(3);
    let first = Linear::new(3, 4, device)?;
    let model =
        Sequential::new().push(first).push(Relu).push(Dropout::new(0.5)?).push(Linear::new(4, 2, device)?);
    two_steps(device, &model, |seed| input(2, seed, device))
}

/// A convolution with running statistics, which are changed in batch order.
fn convolution(device: &Device) -> Result<Vec<Tensor>> {
    streamgrad::seed(4);
    let images = Sequential::new().push(Unflatten(vec![1, 3, 3])).push(Conv2d::new(1, 2, [2, 2], device)?);
    let pooled = images.push(BatchNorm2d::new(2, device)?).push(Relu).push(MaxPool2d::new([2, 2]));
    let model = pooled.push(Flatten).push(Linear::new(2, 2, device)?);
    let mut results = two_steps(device, &model, |seed| input(6, seed, device)?.reshape(&[2, 9]))?;
    model.set_training(false);
    results.push(model.forward(&Var::constant(input(3, 1, device)?.reshape(&[1, 9])?))?.value().clone());
    Ok(results)
}

/// A transformer of one block.
fn transformer(device: &Device) -> Result<Vec<Tensor>> {
    let options = GptOptions { vocabulary: 3, context: 4, width: 4, heads: 2, blocks: 1, dropout: 0.0 };
    let model = Gpt::new(options, 1, device)?;
    two_steps(device, &model, |seed| {
        let tokens: Vec<i64> = (0..4).map(|place| i64::from((place + seed) % 3)).collect();
        Tensor::from_slice(&tokens, &[1, 4], device)
    })
}

/// Tables whose gradients are added by index.
fn recommender(device: &Device) -> Result<Vec<Tensor>> {
    let options = DlrmOptions { dense: 2, categories: vec![3, 3], width: 2, bottom: vec![], top: vec![2] };
    let model = Dlrm::new(&options, 1, device)?;
    two_steps(device, &model, |seed| {
        let rows =
            (0..2_u32).flat_map(|row| [0.5, 0.1 * row as f32, (seed % 3) as f32, ((seed + row) % 3) as f32]);
        Tensor::from_slice(&rows.collect::<Vec<_>>(), &[2, 4], device)
    })
}

/// Small workloads beside [`PROGRAMS`].
const WORKLOADS: [(&str, Program); 4] = [
    ("dropout", dropped_out),
    ("a convolution", convolution),
    ("a transformer", transformer),
    ("a recommender", recommender),
];

/// 40 schedules of each program, or as many as `STREAMGRAD_SCHEDULES=1000000` says, from seed `STREAMGRAD_FIRST=0` on, and
/// of one program if `STREAMGRAD_PROGRAM=branches` names it: processes can share a long exploration (`tools/gpu`).
#[test]
fn every_small_workload_has_one_result() -> Result<()> {
    let number = |name, default| std::env::var(name).map_or(default, |value| value.parse().unwrap());
    let first: u64 = number("STREAMGRAD_FIRST", 0);
    let wanted = number("STREAMGRAD_SCHEDULES", 40);
    let only = std::env::var("STREAMGRAD_PROGRAM").ok();
    let chosen = |(name, _): &(&str, Program)| only.as_deref().is_none_or(|only| only == *name);
    let programs: Vec<_> = PROGRAMS.into_iter().chain(WORKLOADS).filter(chosen).collect();
    assert!(!programs.is_empty(), "no program {only:?}");
    // What is known of the orders of a run is kept until its end.
    const RUN: u64 = 10_000;
    for (name, program) in programs {
        let start = std::time::Instant::now();
        let (mut schedules, mut commands) = (0, 0);
        for begin in (first..first + wanted).step_by(RUN as usize) {
            let seeds = begin..(first + wanted).min(begin + RUN);
            let report = explore(Explore { seeds, ..Explore::default() }, program)?;
            assert_eq!(report.distinct_results, 1, "{name}");
            schedules += report.schedules as u64;
            commands = commands.max(report.commands);
        }
        assert_eq!(schedules, wanted, "{name}");
        println!("{name}: {schedules} schedules of {commands} commands in {:.1?}", start.elapsed());
    }
    Ok(())
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
    assert!(report.distinct_orders > 240, "{report:?}");
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
    assert!(
        matches!(
            error.as_ref().map_err(Error::kind),
            Err(ErrorKind::InvalidArgument { argument: "limit", .. })
        ),
        "{error:?}"
    );
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
        match explore(Explore { seeds: 0..100, drop_wait: Some(wait) }, three_streams)
            .map_err(Error::into_kind)
        {
            Err(ErrorKind::ScheduleDependent { found, .. }) => assert!(!found.is_empty()),
            Ok(_) => missed.push(wait),
            Err(error) => return Err(Error::new(error)),
        }
    }
    assert!(missed.is_empty(), "without wait {missed:?} of {waits} nothing changed");
    Ok(())
}
