//! The engine's own programs: every wait that is inserted is needed, and nothing else is.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::bits;
use common::devices::{cuda, emulated};
use common::process::{lost_waits, say};
use common::programs::{PROGRAMS, Program, input, parameters};
use streamgrad::compare::{Explore, explore};
use streamgrad::device::{Audit, DeviceKind, Policy};
use streamgrad::nn::mlp;
use streamgrad::optim::{Sgd, SgdOptions};
use streamgrad::prelude::*;
use streamgrad::{ConcurrentBatches, CpuConfig, ErrorKind, Result, Schedule};

/// A device on which everything waits for somebody to synchronise, so that no need is met by chance.
fn queued() -> Device {
    let schedule = Schedule::Explore(Policy::OldestFirst);
    Device::cpu_with(CpuConfig { schedule, ..CpuConfig::default() })
}

fn audited(program: Program, device: &Device) -> Audit {
    device.start_audit();
    let results = program(device).unwrap();
    device.synchronize().unwrap();
    drop(results);
    device.stop_audit()
}

#[test]
fn nothing_in_the_engines_programs_is_unordered_and_every_wait_is_needed() {
    for (name, program) in PROGRAMS {
        for device in [Some(queued()), cuda(0)].into_iter().flatten() {
            let audit = audited(program, &device);
            let hazards: Vec<String> = audit.hazards().iter().map(ToString::to_string).collect();
            assert!(hazards.is_empty(), "{name} on {device}: {hazards:#?}");
            let (commands, waits) = (audit.commands().count(), audit.waits().count());
            println!("{name} on {device}: {commands} commands, {waits} waits");
            // Hardware may be done with a command before anything needs to wait for it.
            let queues = emulated() || device.kind() == DeviceKind::Cpu;
            assert!(waits >= if queues { 4 } else { 0 }, "{name} on {device}: {waits} waits");
            // Lanes have threads. On CUDA what one sees pass while the other decides on a wait makes that look unneeded.
            if matches!(device.kind(), DeviceKind::Cuda(_)) && name == "two lanes" {
                continue;
            }
            let op = |moment| audit.commands().find(|c| c.moment == moment).map(|c| c.to_string());
            let unneeded: Vec<_> =
                audit.unneeded_waits().iter().map(|wait| (op(wait.waiter), op(wait.awaited))).collect();
            assert!(unneeded.is_empty(), "{name} on {device}: {unneeded:#?}");
        }
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
                Err(error) if matches!(error.kind(), ErrorKind::ScheduleDependent { .. }) => {}
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
    let model = mlp(&[3, 4, 4, 2], 1, device)?;
    let mut sgd = Sgd::new(model.parameters(), SgdOptions { lr: 0.5, ..SgdOptions::default() })?;
    let lanes = ConcurrentBatches::with_options(device, 2, Lanes::Always)?;
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

/// What another process of this test does and says, with the program of this number.
#[test]
#[ignore = "run by the test below"]
fn inner_program() {
    let number: usize = std::env::var(PROGRAM).unwrap().parse().unwrap();
    let device = cuda(0).unwrap();
    let results = PROGRAMS[number].1(&device).unwrap();
    let waits = device.sync_stats().waits_inserted;
    say(waits, &results.iter().map(bits).collect::<Result<Vec<_>>>().unwrap());
}

const PROGRAM: &str = "STREAMGRAD_TEST_PROGRAM";

/// The same on the emulated driver, which leaves out one `cuStreamWaitEvent` after another.
#[test]
fn each_wait_that_the_driver_loses_is_noticed() {
    if !emulated() {
        println!("skipped: this takes the emulated driver");
        return;
    }
    for (number, (name, _)) in PROGRAMS.iter().enumerate() {
        let (waits, unnoticed) = lost_waits("inner_program", &[(PROGRAM, number.to_string())]);
        println!("{name}: {waits} waits");
        assert!(waits >= 4, "{name}: {waits} waits");
        assert!(unnoticed.is_empty(), "{name}: without wait {unnoticed:?} of {waits} nothing changed");
    }
}
