//! Batches on their way to a device: pinned memory, copies beside the host's work, and loaders that feed a training.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::bits;
use common::devices::{Kind, cuda, each_device};
use streamgrad::prelude::*;
use streamgrad::{
    Error, ErrorKind, Graphs, HostCopy, PipelineOptions, PipelineSchedule, Policy, RandomKey, Result,
    Schedule, with_generator,
};

const SCHEDULES: &[Schedule] = &[
    Schedule::Inline,
    Schedule::Threads,
    Schedule::Delay { seed: 5 },
    Schedule::Explore(Policy::Random { seed: 3 }),
];

/// The CUDA device, and one of the host's that it copies from.
fn pair() -> Option<[Device; 2]> {
    cuda(0).map(|device| [device.clone(), device.host()])
}

#[test]
fn memory_of_the_host_that_a_device_copies_from_is_one_for_each_device() -> Result<()> {
    let Some([device, host]) = pair() else { return Ok(()) };
    assert!(host == device.host() && host != device && host != Device::cpu() && host.runs_on_host());
    assert!(device.copies_from(&host) && host.copies_from(&device) && !host.copies_from(&Device::cpu()));
    assert_eq!((host.name().as_str(), host.host() == host), ("cpu (pinned)", true));
    let x = Tensor::ones(&[3], DType::F32, &host)?;
    assert!(matches!(
        x.add(&Tensor::ones(&[3], DType::F32, &device)?).as_ref().map_err(Error::kind),
        Err(ErrorKind::DeviceMismatch { .. })
    ));
    // It is a CPU like any other, and outlives the device.
    drop(device);
    assert_eq!(x.add(&x)?.to_device(&Device::cpu())?.to_vec::<f32>()?, [2.0; 3]);
    Ok(())
}

#[test]
fn a_tensor_is_refilled_once_the_copies_of_it_have_run() {
    each_device(SCHEDULES, |device| {
        let copies = device.new_stream()?;
        let staging = Tensor::pinned(&[64], DType::F32, device)?;
        let targets: Vec<Tensor> =
            (0..6).map(|_| Tensor::zeros(&[64], DType::F32, device)).collect::<Result<_>>()?;
        for (n, x) in targets.iter().enumerate() {
            staging.update_(|values: &mut [f32]| values.fill(n as f32))?;
            copies.scope(|| x.copy_(&staging))?;
            // Beside it, what does not use the tensor.
            Tensor::ones(&[64], DType::F32, device)?.add_scalar_(1.0)?;
        }
        assert_eq!(staging.version(), 6);
        for (n, x) in targets.iter().enumerate() {
            assert_eq!(x.to_vec::<f32>()?, [n as f32; 64], "{device}");
        }
        Ok(())
    });
}

#[test]
fn a_copy_from_pinned_memory_is_a_command_and_the_host_waits_for_nothing() -> Result<()> {
    let Some([device, host]) = pair() else { return Ok(()) };
    let copies = device.new_stream()?;
    let (x, staging) = (Tensor::zeros(&[4], DType::F32, &device)?, Tensor::ones(&[4], DType::F32, &host)?);
    // What a copy needs is there before the gate: a driver maps no memory behind it.
    drop(copies.scope(|| Ok((staging.to_device(&device)?, x.to_host_async()?)))?);
    device.synchronize()?;
    let (before, there) = (device.sync_stats(), host.sync_stats());
    let hold = copies.hold();
    copies.scope(|| x.copy_(&staging))?;
    let y = copies.scope(|| staging.to_device(&device))?;
    let back = copies.scope(|| x.to_host_async())?;
    assert!(!staging.buffer().is_idle() && !back.is_ready());
    let stats = device.sync_stats() - before;
    assert_eq!((stats.host_syncs, (host.sync_stats() - there).host_syncs), (0, 0));
    // A write on the host's side comes after the copies, and keeps the host no longer than that takes.
    staging.add_scalar_(1.0)?;
    drop(hold);
    assert_eq!((y.to_vec::<f32>()?, back.to_vec::<f32>()?), (vec![1.0; 4], vec![1.0; 4]));
    assert_eq!((staging.to_vec::<f32>()?, x.to_vec::<f32>()?), (vec![2.0; 4], vec![1.0; 4]));
    Ok(())
}

#[test]
fn a_copy_waits_for_what_the_host_still_writes() -> Result<()> {
    let Some([device, host]) = pair() else { return Ok(()) };
    let writer = host.new_stream()?;
    let staging = Tensor::zeros(&[4], DType::F32, &host)?;
    let hold = writer.hold();
    writer.scope(|| staging.add_scalar_(3.0))?;
    let x = staging.to_device(&device)?;
    drop(hold);
    assert_eq!(x.to_vec::<f32>()?, [3.0; 4]);
    Ok(())
}

#[test]
fn memory_that_is_dropped_while_a_copy_reads_it_stays_for_the_copy() -> Result<()> {
    let Some([device, host]) = pair() else { return Ok(()) };
    let copies = device.new_stream()?;
    let staged = |n: usize| -> Result<Tensor> {
        let staging = Tensor::from_slice(&[n as f32; 256], &[256], &host)?;
        copies.scope(|| staging.to_device(&device))
    };
    // Memory is mapped before the gate, behind which a driver maps none.
    drop(staged(9)?);
    device.synchronize()?;
    let hold = copies.hold();
    let uploads = (0..5).map(staged).collect::<Result<Vec<_>>>()?;
    drop((hold, host));
    for (n, upload) in uploads.iter().enumerate() {
        assert_eq!(upload.to_vec::<f32>()?, [n as f32; 256]);
    }
    Ok(())
}

#[test]
fn elements_are_the_same_on_both_sides_whatever_their_layout_and_type() {
    each_device(SCHEDULES, |device| {
        let host = device.host();
        let numbers = Tensor::arange(0.0, 24.0, 1.0, DType::F32, &host)?.reshape(&[4, 6])?;
        let views = [numbers.clone(), numbers.t()?, numbers.narrow(0, 1, 2)?, numbers.narrow(0, 0, 0)?];
        for view in &views {
            for dtype in [DType::F32, DType::I64, DType::U8, DType::BF16] {
                let (view, expected) = (view.to_dtype(dtype)?, view.to_vec::<f32>()?);
                let same =
                    |x: &Tensor| Ok::<bool, Error>(x.to_dtype(DType::F32)?.to_vec::<f32>()? == expected);
                let there = view.to_device(device)?;
                assert!(same(&there)? && there.shape() == view.shape());
                assert!(same(&there.to_host_async()?.into_tensor())?);
                // Into tensors that are there: of the same type, of another one, and a part of a larger one.
                for into in [dtype, DType::F64] {
                    let room = Tensor::zeros(&[9, view.shape()[1]], into, device)?;
                    let part = room.narrow(0, 2, view.shape()[0])?;
                    part.copy_(&view)?;
                    let back = Tensor::zeros(view.shape(), into, &host)?;
                    back.copy_(&part)?;
                    assert!(same(&part)? && same(&back)? && room.version() == 1);
                    assert_eq!(
                        room.narrow(0, 0, 2)?.to_dtype(DType::F32)?.sum(&[], false)?.item::<f32>()?,
                        0.0
                    );
                    part.copy_(&view.to_device(&Device::cpu())?)?;
                    assert!(same(&part)?, "from memory that is not pinned");
                }
            }
        }
        Ok(())
    });
}

#[test]
fn a_read_back_has_the_values_of_its_place_in_the_program() {
    each_device(SCHEDULES, |device| {
        let x = Tensor::zeros(&[8], DType::F32, device)?;
        let mut copies: Vec<HostCopy> = Vec::new();
        for _ in 0..5 {
            x.add_scalar_(1.0)?;
            copies.push(x.to_host_async()?);
        }
        drop(x);
        for (n, copy) in copies.iter().enumerate() {
            assert_eq!(copy.to_vec::<f32>()?, [n as f32 + 1.0; 8], "{device}");
            assert!(copy.is_ready());
        }
        Ok(())
    });
}

#[test]
fn a_failure_that_led_to_a_read_back_is_that_of_reading_it() -> Result<()> {
    let Some([device, _]) = pair() else { return Ok(()) };
    let x = Tensor::zeros(&[3], DType::F32, &device)?;
    let index = Tensor::from_slice(&[0i64, 7], &[2], &device)?;
    let copy = x.index_select(0, &index)?.to_host_async()?;
    let error = copy.to_vec::<f32>().unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::IndexOutOfRange { index: 7, .. } | ErrorKind::Async { .. }),
        "{error}"
    );
    Ok(())
}

#[test]
fn what_the_host_may_not_write_is_an_error_by_name() {
    each_device(&[Schedule::Inline], |device| {
        let host = Tensor::pinned(&[2, 3], DType::F32, device)?;
        let refused = |x: &Tensor| x.update_(|_: &mut [f32]| ()).unwrap_err();
        assert!(matches!(
            refused(&host.to_dtype(DType::F64)?).kind(),
            ErrorKind::DTypeMismatch { op: "update_", .. }
        ));
        assert!(matches!(refused(&host.t()?).kind(), ErrorKind::InvalidArgument { op: "update_", .. }));
        if !device.runs_on_host() {
            let there = host.to_device(device)?;
            assert!(matches!(refused(&there).kind(), ErrorKind::InvalidArgument { argument: "self", .. }));
        }
        // Within it nobody may wait for the tensor, and nothing stays locked.
        host.update_(|values: &mut [f32]| {
            values.fill(1.0);
            assert!(matches!(
                host.to_vec::<f32>().as_ref().map_err(Error::kind),
                Err(ErrorKind::Deadlock { .. })
            ));
        })?;
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            host.update_(|_: &mut [f32]| panic!("half done"))
        }));
        assert!(panicked.is_err());
        assert_eq!(host.to_vec::<f32>()?, [1.0; 6]);
        Ok(())
    });
}

/// Losses and parameters of a small training whose batches come from `workers` threads.
fn train(device: &Device, workers: usize, graph: bool) -> Result<Vec<u32>> {
    let images = Tensor::arange(0, 40 * 12, 1, DType::I64, &Device::cpu())?.to_dtype(DType::U8)?;
    let targets = Tensor::arange(0.0, 40.0, 1.0, DType::F32, &Device::cpu())?.mul_scalar(0.1)?;
    let data = TensorDataset::new(&images.reshape(&[40, 12])?, &targets)?;
    let options = LoaderOptions {
        batch: 7,
        workers,
        device: device.clone(),
        schedule: PipelineSchedule::Stages,
        ..LoaderOptions::default()
    };
    let loader = DataLoader::new(data, options)?;
    let model = mlp(&[12, 8, 1], 3, device)?;
    let mut adam = Adam::new(model.parameters(), 0.01)?;
    let mut step = |batch: &Batch| {
        let inputs = batch.inputs.to_dtype(DType::F32)?.mul_scalar(1.0 / 255.0)?;
        let told = model.forward(&Var::constant(inputs.dropout(0.25, None)?))?.reshape(&[batch.len()])?;
        let loss = mse(&told, &Var::constant(batch.labels.clone()))?;
        adam.step(&loss.backward()?)?;
        loss.value().to_dtype(DType::F32)
    };
    let mut losses = Vec::new();
    let batches = loader.iter_from(Position { epoch: 1, batch: 4 }).take(13);
    with_generator(streamgrad::Generator::new(5), || -> Result<()> {
        if graph {
            let mut graphs = Graphs::new(device, step);
            for batch in batches {
                losses.push(graphs.run(&batch?)?);
            }
        } else {
            for batch in batches {
                losses.push(step(&batch?)?);
            }
        }
        Ok(())
    })?;
    let parameters = model.parameters().into_iter().map(|parameter| parameter.value().clone());
    let all = losses.into_iter().chain(parameters).map(|tensor| bits(&tensor));
    Ok(all.collect::<Result<Vec<_>>>()?.concat())
}

#[test]
fn a_training_is_the_same_whoever_makes_its_batches() {
    for kind in Kind::all(SCHEDULES) {
        let expected = train(&kind.plain().device(), 0, false).unwrap();
        for workers in [0, 1, 3] {
            assert_eq!(train(&kind.device(), workers, false).unwrap(), expected, "{kind:?}, {workers}");
        }
    }
}

/// Losses and parameters of a training whose batches are scaled and trained on in stages, in a run or step by step.
fn train_in_stages(device: &Device, schedule: PipelineSchedule, by_steps: bool) -> Result<Vec<u32>> {
    let model = mlp(&[6, 8, 1], 3, device)?;
    let mut adam = Adam::new(model.parameters(), 0.01)?;
    let mut pipeline =
        Pipeline::with_options(device, PipelineOptions { schedule, ..PipelineOptions::default() })
            .stage("load", |n: u64| Tensor::randn(&[7, 6], DType::F32, RandomKey { seed: 3, op: n }, device))
            .stage("scale", |x| x.dropout(0.25, None)?.mul_scalar(1.5))
            .stage("train", |x| {
                let loss = model.forward(&Var::constant(x))?.square()?.mean(&[], false)?;
                adam.step(&loss.backward()?)?;
                Ok(loss.value().clone())
            });
    let mut losses = Vec::new();
    let mut batches = 0..9;
    with_generator(streamgrad::Generator::new(5), || -> Result<()> {
        if by_steps {
            while let Some(loss) = pipeline.progress(&mut batches)? {
                losses.push(loss);
            }
        } else {
            losses = pipeline.run(batches)?;
        }
        Ok(())
    })?;
    drop(pipeline);
    let parameters = model.parameters().into_iter().map(|parameter| parameter.value().clone());
    let all = losses.into_iter().chain(parameters).map(|tensor| bits(&tensor));
    Ok(all.collect::<Result<Vec<_>>>()?.concat())
}

#[test]
fn a_training_in_stages_is_the_same_step_by_step() {
    for kind in Kind::all(SCHEDULES) {
        let expected = train_in_stages(&kind.plain().device(), PipelineSchedule::Serial, false).unwrap();
        for schedule in [PipelineSchedule::Serial, PipelineSchedule::Stages] {
            assert_eq!(
                train_in_stages(&kind.device(), schedule, true).unwrap(),
                expected,
                "{kind:?}, {schedule:?}"
            );
        }
    }
}

#[test]
fn a_captured_step_is_fed_by_a_loader() {
    for kind in Kind::all(&[Schedule::Inline, Schedule::Threads]) {
        let expected = train(&kind.device(), 0, false).unwrap();
        for workers in [0, 2] {
            assert_eq!(train(&kind.device(), workers, true).unwrap(), expected, "{kind:?}, {workers}");
        }
    }
}
