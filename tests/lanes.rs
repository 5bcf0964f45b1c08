//! Batches that run at once on shared weights: equal to serial, bit for bit, and whole when one of them fails.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::sync::Arc;
use std::sync::mpsc::channel;

use common::devices::{Kind, each_device};
use common::programs::train;
use streamgrad::prelude::*;
use streamgrad::{Adam, AdamOptions, ConcurrentBatches, CpuConfig, Error, Result, Schedule, mlp};

#[test]
fn lanes_with_shared_weights_equal_the_serial_schedule() -> Result<()> {
    for kind in Kind::all(&[Schedule::Inline, Schedule::Threads, Schedule::Delay { seed: 4 }]) {
        for batches in [1, 2, 3, 5] {
            let serial = train(&kind.plain().device(), 1, batches)?;
            for lanes in 1..=4 {
                let found = train(&kind.device(), lanes, batches)?;
                assert_eq!(found, serial, "{kind:?}: {batches} batches on {lanes} lanes");
            }
        }
    }
    Ok(())
}

/// The lanes meet in the middle of their batches, which they can only if they run at once.
#[test]
fn lanes_really_run_at_once() {
    each_device(&[Schedule::Inline], |device| {
        let w = Var::leaf(Tensor::ones(&[4], DType::F32, device)?);
        let lanes = ConcurrentBatches::new(device, 2)?;
        let barrier = std::sync::Barrier::new(2);
        let step = lanes.step([1.0, 2.0], |factor| {
            let scaled = w.mul_scalar(factor)?;
            barrier.wait();
            scaled.sum(&[], false)
        })?;
        assert_eq!(step.gradients.get(&w).unwrap().to_vec::<f32>()?, [3.0; 4]);
        Ok(())
    });
}

#[test]
fn each_lane_records_on_its_own_stream() {
    each_device(&[Schedule::Inline], |device| {
        let w = Var::leaf(Tensor::ones(&[4], DType::F32, device)?);
        let lanes = ConcurrentBatches::new(device, 3)?;
        let ids: Vec<_> = lanes.streams().iter().map(Stream::id).collect();
        lanes.step(0..6, |index: usize| {
            let loss = w.sum(&[], false)?;
            let entry = loss.tape().pop();
            assert_eq!(entry.map(|entry| entry.stream), Some(ids[index % 3]));
            Ok(loss)
        })?;
        Ok(())
    });
}

#[test]
fn a_lane_that_panics_is_an_error_and_the_others_are_joined() {
    each_device(&[Schedule::Inline], |device| {
        for lanes in [1, 2, 3] {
            let w = Var::leaf(Tensor::ones(&[2], DType::F32, device)?);
            let lanes = ConcurrentBatches::new(device, lanes)?;
            let loss = |index: usize| {
                assert_ne!(index, 1, "batch one is bad");
                w.mul_scalar(index as f64)?.sum(&[], false)
            };
            let error = lanes.step(0..3, loss).err();
            let Some(Error::LanePanicked { message, .. }) = error else { panic!("{error:?}") };
            assert!(message.contains("batch one is bad"));
            assert_eq!(lanes.step([2, 3], loss)?.gradients.get(&w).unwrap().to_vec::<f32>()?, [5.0; 2]);
        }
        Ok(())
    });
}

#[test]
fn the_first_error_in_batch_order_is_returned() {
    each_device(&[Schedule::Inline], |device| {
        let w = Var::leaf(Tensor::ones(&[2], DType::F32, device)?);
        let lanes = ConcurrentBatches::new(device, 2)?;
        let error = lanes.step(0..4, |index: isize| match index {
            0 => w.sum(&[], false),
            axis => w.sum(&[axis + 10], false),
        });
        assert!(matches!(error, Err(Error::AxisOutOfRange { axis: 11, rank: 1, .. })), "{error:?}");
        assert!(matches!(lanes.step([(); 0], |()| w.sum(&[], false)), Err(Error::InvalidArgument { .. })));
        assert!(matches!(ConcurrentBatches::new(device, 0), Err(Error::InvalidArgument { .. })));
        Ok(())
    });
}

#[test]
fn a_step_within_a_batch_of_the_same_lanes_is_refused() {
    each_device(&[Schedule::Inline], |device| {
        let w = Var::leaf(Tensor::ones(&[2], DType::F32, device)?);
        for lanes in [1, 2] {
            let lanes = ConcurrentBatches::new(device, lanes)?;
            let loss = |()| w.sum(&[], false);
            let nested = lanes.step([(); 2], |()| {
                lanes.step([()], loss)?;
                loss(())
            });
            assert!(matches!(nested, Err(Error::Deadlock { .. })), "{nested:?}");
            lanes.step([(); 2], loss)?;
        }
        let refused = ConcurrentBatches::new(device, usize::MAX);
        assert!(matches!(refused, Err(Error::InvalidArgument { argument: "lanes", .. })));
        Ok(())
    });
}

/// The batch waits for the command, which would wait for the step that the batch is of.
#[test]
fn a_step_within_a_command_of_a_batch_of_the_same_lanes_is_refused() {
    each_device(&[Schedule::Inline, Schedule::Threads], |device| {
        let w = Var::leaf(Tensor::ones(&[2], DType::F32, device)?);
        for lanes in [1, 2] {
            let lanes = Arc::new(ConcurrentBatches::new(device, lanes)?);
            let (sender, receiver) = channel();
            let outer = lanes.step([sender], |sender| {
                let (lanes, value) = (Arc::clone(&lanes), w.clone());
                let loss = move |()| value.sum(&[], false);
                let nested = move || drop(sender.send(lanes.step([()], loss).err()));
                Stream::with_current(device, |stream| {
                    stream.launch_host("nested", &[], nested)?;
                    stream.synchronize()
                })?;
                w.sum(&[], false)
            });
            let told = receiver.recv().unwrap();
            assert!(matches!(told, Some(Error::Deadlock { .. })), "{told:?}");
            drop(outer?);
        }
        Ok(())
    });
}

/// Once memory has come to rest nothing is obtained from the driver any more, on one lane or two.
#[test]
fn steady_state_makes_no_driver_allocation_and_two_lanes_make_no_wait() -> Result<()> {
    for count in [1, 2] {
        let device = Device::cpu_with(CpuConfig { threads: Some(2), ..CpuConfig::default() });
        let model = mlp(&[6, 16, 3], 1, &device)?;
        let mut adam = Adam::new(model.parameters(), AdamOptions::default())?;
        let lanes = ConcurrentBatches::new(&device, count)?;
        let input = Tensor::ones(&[7, 6], DType::F32, &device)?;
        let mut step = || -> Result<()> {
            let step = lanes
                .step([0, 1], |_| model.forward(&Var::constant(input.clone()))?.square()?.mean(&[], false))?;
            adam.step(&step.gradients)
        };
        (0..100).try_for_each(|_| step())?;
        let (memory, sync) = (device.memory_stats(), device.sync_stats());
        (0..50).try_for_each(|_| step())?;
        assert_eq!(device.memory_stats().driver_allocations, memory.driver_allocations);
        let sync = device.sync_stats() - sync;
        // Lanes that run inline have run when the caller goes on, so their work has passed already.
        assert_eq!((sync.events_recorded, sync.waits_inserted, sync.host_syncs), (0, 0, 0));
    }
    Ok(())
}
