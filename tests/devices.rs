//! Several devices in one program: copies, gradients, waits and lifetimes across them. Most of it needs two CUDA devices,
//! real or emulated; without them the tests say so and do nothing.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::bits;
use common::devices::{Kind, cuda_pair, emulated};
use common::process::{lost_waits, run_ignored, say};
use common::programs::{input, parameters};
use streamgrad::device::Audit;
use streamgrad::nn::mlp;
use streamgrad::optim::{Sgd, SgdOptions};
use streamgrad::prelude::*;
use streamgrad::{
    AllocatorConfig, ConcurrentBatches, Error, ErrorKind, Result, ReusePolicy, Schedule, SyncMode, SyncStats,
};

fn vector(values: &[f32], device: &Device) -> Result<Tensor> {
    Tensor::from_slice(values, &[values.len()], device)
}

/// What was counted on each device while `run` ran.
fn counted<R>(devices: &[Device; 2], run: impl FnOnce() -> Result<R>) -> Result<(R, [SyncStats; 2])> {
    let before = devices.each_ref().map(Device::sync_stats);
    let result = run()?;
    let after = devices.each_ref().map(Device::sync_stats);
    Ok((result, [after[0] - before[0], after[1] - before[1]]))
}

/// Whether a stream that cannot go on says so however often it is asked; a driver may do nothing for who never looks.
fn stands(stream: &Stream) -> Result<bool> {
    Ok(!(0..20).map(|_| stream.is_idle()).collect::<Result<Vec<_>>>()?.contains(&true))
}

/// The devices that a copy can go between: the CPU twice, and the two CUDA devices if there are any.
fn every_device() -> Vec<Device> {
    let cpus = [Schedule::Inline, Schedule::Threads].map(|schedule| Kind::Cpu(schedule).device());
    cpus.into_iter().chain(cuda_pair().into_iter().flatten()).collect()
}

#[test]
fn a_tensor_is_the_same_on_every_device() -> Result<()> {
    let devices = every_device();
    for from in &devices {
        let numbers = Tensor::arange(0.0, 24.0, 1.0, DType::F64, from)?.reshape(&[4, 6])?;
        let views =
            [numbers.clone(), numbers.transpose(0, 1)?, numbers.narrow(0, 1, 2)?, numbers.narrow(0, 0, 0)?];
        for to in &devices {
            for view in &views {
                for dtype in [DType::F64, DType::F32, DType::I64, DType::U8] {
                    let there = view.to_dtype(dtype)?.to_device(to)?;
                    assert!(there.device() == to && there.dtype() == dtype);
                    assert_eq!(there.shape(), view.shape());
                    assert_eq!(there.to_dtype(DType::F64)?.to_vec::<f64>()?, view.to_vec::<f64>()?);
                    let back = there.to_device(from)?.to_dtype(DType::F64)?;
                    assert_eq!(back.to_vec::<f64>()?, view.to_vec::<f64>()?, "{from} to {to} and back");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn a_gradient_flows_back_across_devices() -> Result<()> {
    let devices = every_device();
    let gradient = |path: &[&Device]| -> Result<Vec<u32>> {
        let x = Var::leaf(vector(&[0.5, -1.0, 2.0], path[0])?);
        let mut y = x.mul(&x)?;
        for device in path {
            // A side stream of each device has its part of the pass, too.
            y = device.new_stream()?.scope(|| y.to_device(device)?.mul_scalar(1.5)?.relu())?;
        }
        let gradient = y.mul(&y)?.sum(&[], false)?.backward()?.get(&x).unwrap();
        assert!(gradient.device() == path[0]);
        bits(&gradient)
    };
    for first in &devices {
        for second in &devices {
            let path = [first, second, first, second];
            let expected = gradient(&[&devices[0]; 4])?;
            assert_eq!(gradient(&path)?, expected, "{first} and {second}");
        }
    }
    Ok(())
}

#[test]
fn a_copy_across_devices_takes_one_wait_and_none_of_the_hosts() -> Result<()> {
    let Some(devices) = cuda_pair() else { return Ok(()) };
    let [writer, reader] = [devices[0].new_stream()?, devices[1].new_stream()?];
    let x = writer.scope(|| vector(&[1.0, 2.0], &devices[0]))?;
    devices[0].synchronize()?;
    let hold = writer.hold();
    writer.scope(|| x.mul_scalar_(3.0))?;
    let (sums, [here, there]) = counted(&devices, || {
        reader.scope(|| {
            let copy = x.to_device(&devices[1])?;
            let again = x.to_device(&devices[1])?;
            copy.add(&again)?.add(&copy)
        })
    })?;
    assert_eq!((there.waits_inserted, there.events_recorded, there.host_syncs), (1, 1, 0), "{there:?}");
    assert_eq!((here.waits_inserted, here.launches, here.host_syncs), (0, 0, 0), "{here:?}");
    assert!(stands(&reader)?);
    drop(hold);
    assert_eq!(sums.to_vec::<f32>()?, [9.0, 18.0]);
    Ok(())
}

#[test]
fn a_writer_waits_until_the_other_device_has_read() -> Result<()> {
    let Some(devices) = cuda_pair() else { return Ok(()) };
    let (writer, reader) = (devices[0].default_stream(), devices[1].new_stream()?);
    let x = vector(&[1.0, 2.0], &devices[0])?;
    devices[0].synchronize()?;
    let hold = reader.hold();
    let copy = reader.scope(|| x.to_device(&devices[1]))?;
    let (_, [here, _]) = counted(&devices, || {
        x.fill_(7.0)?;
        x.fill_(8.0)
    })?;
    assert_eq!((here.waits_inserted, here.host_syncs), (1, 0), "{here:?}");
    assert!(stands(&writer)?);
    drop(hold);
    assert_eq!(copy.to_vec::<f32>()?, [1.0, 2.0]);
    assert_eq!(x.to_vec::<f32>()?, [8.0, 8.0]);
    Ok(())
}

#[test]
fn memory_that_another_device_reads_is_given_to_nobody() -> Result<()> {
    const SHAPE: [usize; 1] = [1 << 18];
    for reuse in [ReusePolicy::default(), ReusePolicy::WaitFirst] {
        let Some(devices) = cuda_pair() else { return Ok(()) };
        devices[0].set_allocator_config(AllocatorConfig { reuse, ..AllocatorConfig::default() });
        let reader = devices[1].new_stream()?;
        let x = Tensor::full(&SHAPE, 5.0, DType::F32, &devices[0])?;
        let address = x.buffer().ptr();
        devices[0].synchronize()?;
        let hold = reader.hold();
        let copy = reader.scope(|| x.to_device(&devices[1]))?;
        drop(x);
        let ((others, reused), [here, _]) = counted(&devices, || {
            let others = [6.0, 7.0].map(|value| Tensor::full(&SHAPE, value, DType::F32, &devices[0]));
            let others = others.into_iter().collect::<Result<Vec<_>>>()?;
            let reused = others.iter().any(|other| other.buffer().ptr() == address);
            Ok((others, reused))
        })?;
        let waits_for_it = matches!(reuse, ReusePolicy::WaitFirst);
        assert_eq!((reused, here.waits_inserted), (waits_for_it, u64::from(waits_for_it)), "{reuse:?}");
        drop(hold);
        assert_eq!(copy.to_vec::<f32>()?, [5.0; SHAPE[0]]);
        assert_eq!(others[0].to_vec::<f32>()?, [6.0; SHAPE[0]]);
        assert_eq!(others[1].to_vec::<f32>()?, [7.0; SHAPE[0]]);
    }
    Ok(())
}

#[test]
fn the_source_and_its_device_may_go_while_they_are_copied() -> Result<()> {
    for _ in 0..4 {
        let Some([from, to]) = cuda_pair() else { return Ok(()) };
        let side = from.new_stream()?;
        let x = side.scope(|| Tensor::full(&[1 << 16], 2.0, DType::F32, &from)?.exp())?;
        let before = to.sync_stats().host_syncs;
        let copy = to.new_stream()?.scope(|| x.to_device(&to))?;
        drop((x, side, from));
        assert_eq!(to.sync_stats().host_syncs, before);
        assert_eq!(copy.to_vec::<f32>()?, [2.0_f32.exp(); 1 << 16]);
    }
    Ok(())
}

#[test]
fn the_source_and_its_device_may_go_while_the_reader_is_held() -> Result<()> {
    let Some([from, to]) = cuda_pair() else { return Ok(()) };
    let reader = to.new_stream()?;
    let x = Tensor::full(&[1 << 16], 2.0, DType::F32, &from)?;
    let hold = reader.hold();
    let copy = reader.scope(|| x.to_device(&to))?;
    let (gone, is_gone) = channel();
    std::thread::spawn(move || {
        drop((x, from));
        gone.send(())
    });
    let returned = is_gone.recv_timeout(Duration::from_secs(5));
    assert!(stands(&reader)?, "the copy has not run");
    drop(hold);
    assert!(returned.is_ok(), "the drop waits for the hold");
    assert_eq!(copy.to_vec::<f32>()?, [2.0; 1 << 16]);
    Ok(())
}

/// A driver's context is shared by all devices of the process, so this takes one of its own.
#[test]
#[ignore = "run by the test below"]
fn inner_devices_that_go() -> Result<()> {
    let [from, to] = cuda_pair().unwrap();
    let memory = Arc::downgrade(from.memory_driver());
    let copy = Tensor::full(&[1 << 16], 2.0, DType::F32, &from)?.to_device(&to)?;
    let hold = to.default_stream().hold();
    let again = vector(&[1.0], &from)?.to_device(&to)?;
    drop(from);
    assert!(memory.strong_count() > 0, "a copy reads the memory");
    drop(hold);
    assert_eq!((copy.to_vec::<f32>()?[0], again.item::<f32>()?), (2.0, 1.0));
    assert_eq!(memory.strong_count(), 0, "who has read keeps the source no longer");
    let devices = cuda_pair().unwrap();
    let memory = devices.each_ref().map(|device| Arc::downgrade(device.memory_driver()));
    let [x, y] = [vector(&[1.0, 2.0], &devices[0])?, vector(&[3.0, 4.0], &devices[1])?];
    let copies = [x.to_device(&devices[1])?, y.to_device(&devices[0])?];
    drop((x, y, copies, devices));
    drop((copy, again, to));
    assert_eq!(memory.map(|memory| memory.strong_count()), [0, 0], "a circle");
    Ok(())
}

/// As above.
#[test]
#[ignore = "run by the test below"]
fn inner_sources_that_go() -> Result<()> {
    let [from, to] = cuda_pair().unwrap();
    let memory = Arc::downgrade(from.memory_driver());
    let (pinned, x) = (vector(&[3.0], &to.host())?, vector(&[1.0], &from)?);
    from.synchronize()?;
    let hold = to.default_stream().hold();
    // The newer copy is of another memory than the one before it.
    let copies = [pinned.to_device(&to)?, x.to_device(&to)?];
    drop((x, from));
    assert!(memory.strong_count() > 0, "a copy reads the memory");
    drop(hold);
    assert_eq!((copies[0].item::<f32>()?, copies[1].item::<f32>()?), (3.0, 1.0));
    to.synchronize()?;
    assert_eq!(memory.strong_count(), 0, "who has read keeps the source no longer");
    Ok(())
}

#[test]
fn copies_of_several_memories_keep_each() {
    if cuda_pair().is_none() {
        return;
    }
    let output = run_ignored("inner_sources_that_go", &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn devices_that_copied_from_each_other_both_go() {
    if cuda_pair().is_none() {
        return;
    }
    let output = run_ignored("inner_devices_that_go", &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

/// What takes an index out of range, which the device meets later.
fn picked(x: &Tensor) -> Result<Tensor> {
    x.index_select(0, &Tensor::from_slice(&[0i64, 7], &[2], x.device())?)
}

fn assert_names_the_index<T: std::fmt::Debug>(result: Result<T>) {
    assert!(
        matches!(result.as_ref().map_err(Error::kind), Err(ErrorKind::Async { op: "index_select", .. })),
        "{result:?}"
    );
}

#[test]
fn an_error_follows_what_was_copied_to_another_device() -> Result<()> {
    let Some([a, b]) = cuda_pair() else { return Ok(()) };
    let x = vector(&[1.0, 2.0], &a)?;
    assert_names_the_index(picked(&x)?.to_device(&b)?.to_vec::<f32>());
    a.synchronize()?;
    b.synchronize()?;
    // However late it is read.
    let copy = picked(&x)?.to_device(&b)?;
    while !b.default_stream().is_idle()? {}
    b.new_stream()?;
    assert_names_the_index(copy.to_vec::<f32>());
    // By way of a third device.
    let Some([c, _]) = cuda_pair() else { return Ok(()) };
    assert_names_the_index(picked(&x)?.to_device(&b)?.to_device(&c)?.to_vec::<f32>());
    b.synchronize()?;
    // What was reported is not reported twice.
    let copy = picked(&x)?.to_device(&b)?;
    assert_names_the_index(a.synchronize());
    copy.to_vec::<f32>()?;
    // What comes after the copy is the source's own.
    let copy = x.to_device(&b)?;
    b.synchronize()?;
    let _other = picked(&x)?;
    while !a.default_stream().is_idle()? {}
    assert_eq!(copy.to_vec::<f32>()?, [1.0, 2.0]);
    assert_names_the_index(a.synchronize());
    // The source need not live to tell.
    let copy = picked(&x)?.to_device(&b)?;
    drop((x, _other, a));
    assert_names_the_index(copy.to_vec::<f32>());
    Ok(())
}

#[test]
fn a_copy_across_devices_that_cannot_be_is_an_error_by_name() -> Result<()> {
    let Some(devices) = cuda_pair() else { return Ok(()) };
    let cpu = Kind::Cpu(Schedule::Inline).device();
    let [x, y] = [vector(&[1.0, 2.0], &devices[0])?, vector(&[3.0, 4.0], &devices[1])?];
    let host = vector(&[5.0, 6.0], &cpu)?;
    let stream = devices[1].default_stream();
    let copy = |to: &Tensor, from: &Tensor, at| stream.copy_across("c", to.buffer(), at, from.buffer(), 0..8);
    assert!(matches!(
        copy(&y, &x, 4).as_ref().map_err(Error::kind),
        Err(ErrorKind::InvalidArgument { op: "c", .. })
    ));
    assert!(matches!(
        copy(&y, &x, usize::MAX).as_ref().map_err(Error::kind),
        Err(ErrorKind::InvalidArgument { op: "c", .. })
    ));
    assert!(matches!(
        copy(&y, &y, 0).as_ref().map_err(Error::kind),
        Err(ErrorKind::InvalidArgument { op: "c", argument: "from", .. })
    ));
    assert!(matches!(
        copy(&x, &y, 0).as_ref().map_err(Error::kind),
        Err(ErrorKind::DeviceMismatch { op: "c", .. })
    ));
    assert!(matches!(
        copy(&y, &host, 0).as_ref().map_err(Error::kind),
        Err(ErrorKind::CudaUnavailable { .. })
    ));
    let elsewhere = cpu.default_stream().copy_across("c", host.buffer(), 0, x.buffer(), 0..8);
    assert!(matches!(elsewhere.as_ref().map_err(Error::kind), Err(ErrorKind::CudaUnavailable { .. })));
    assert!(matches!(
        x.add(&y).as_ref().map_err(Error::kind),
        Err(ErrorKind::DeviceMismatch { op: "add", .. })
    ));
    copy(&y, &x, 0)?;
    assert_eq!(y.to_vec::<f32>()?, [1.0, 2.0]);
    Ok(())
}

/// Each stream waits for the one before it by `wait`, and a command on each says when it runs.
fn in_turn(streams: &[Stream], wait: impl Fn(&Stream, &Stream) -> Result<()>) -> Result<()> {
    let order = Arc::new(Mutex::new(Vec::new()));
    let say = |number: usize| {
        let order = Arc::clone(&order);
        move || order.lock().unwrap().push(number)
    };
    let hold = streams[0].hold();
    streams[0].launch_host("say", &[], say(0))?;
    for (number, pair) in streams.windows(2).enumerate() {
        wait(&pair[1], &pair[0])?;
        pair[1].launch_host("say", &[], say(number + 1))?;
    }
    for stream in streams {
        assert!(stands(stream)?);
    }
    drop(hold);
    // The last first: it may not run before the others.
    streams.iter().rev().try_for_each(Stream::synchronize)?;
    assert_eq!(*order.lock().unwrap(), (0..streams.len()).collect::<Vec<_>>());
    Ok(())
}

#[test]
fn streams_and_events_of_other_devices_can_be_waited_for() -> Result<()> {
    let devices = every_device();
    for first in &devices {
        for second in &devices {
            let streams: Vec<Stream> =
                [first, second, first].into_iter().map(Device::new_stream).collect::<Result<_>>()?;
            let before = second.sync_stats();
            in_turn(&streams, |waiter, awaited| waiter.wait_stream(awaited))?;
            let waits = (second.sync_stats() - before).waits_inserted;
            assert_eq!(waits, if first == second { 2 } else { 1 }, "{first} and {second}");
            in_turn(&streams, |waiter, awaited| {
                let event = awaited.record()?;
                // What comes after the event is not waited for.
                waiter.wait(&event)
            })?;
        }
    }
    Ok(())
}

#[test]
fn a_wait_of_the_users_orders_devices_in_manual_mode() -> Result<()> {
    let Some(devices) = cuda_pair() else { return Ok(()) };
    let x = vector(&[1.0, 2.0], &devices[0])?;
    let (writer, reader) = (devices[0].new_stream()?, devices[1].new_stream()?);
    devices[0].synchronize()?;
    devices.iter().for_each(|device| device.set_sync_mode(SyncMode::Manual));
    let hold = writer.hold();
    writer.scope(|| x.mul_scalar_(2.0))?;
    let refused = reader.scope(|| x.to_device(&devices[1])).map(drop);
    let Err(ErrorKind::Race { op: "to_device", stream, earlier_stream, .. }) =
        refused.as_ref().map_err(Error::kind)
    else {
        panic!("{refused:?}");
    };
    assert_eq!((*stream, *earlier_stream), (reader.id(), writer.id()));
    reader.wait(&writer.record()?)?;
    let copy = reader.scope(|| x.to_device(&devices[1]))?;
    let refused = writer.scope(|| x.fill_(0.0));
    assert!(
        matches!(
            refused.as_ref().map_err(Error::kind),
            Err(ErrorKind::Race { op: "fill", earlier: "to_device", .. })
        ),
        "{refused:?}"
    );
    writer.wait_stream(&reader)?;
    writer.scope(|| x.fill_(0.0))?;
    drop(hold);
    assert_eq!(copy.to_vec::<f32>()?, [2.0, 4.0]);
    Ok(())
}

const FEATURES: [usize; 3] = [3, 4, 2];

/// Two steps of training, a batch on each device with a replica of the model there. The gradients are merged on the first
/// device, in the order of the batches, and the second replica gets the new parameters. Gives losses and parameters.
/// A thread drives each device, or one drives both.
fn replicas(devices: &[Device; 2], threads: bool) -> Result<Vec<Tensor>> {
    let models = [mlp(&FEATURES, 1, &devices[0])?, mlp(&FEATURES, 1, &devices[1])?];
    let lanes = [devices[0].new_stream()?, devices[1].new_stream()?];
    let leaves = models.each_ref().map(Module::parameters);
    let mut sgd = Sgd::new(leaves[0].clone(), SgdOptions { lr: 0.5, ..SgdOptions::default() })?;
    let mut results = Vec::new();
    for step in 0..2 {
        let batch = |lane: usize| {
            lanes[lane].scope(|| {
                let x = Var::constant(input(2, 2 * step + lane as u32, &devices[lane])?);
                let loss = models[lane].forward(&x)?.square()?.mean(&[], false)?;
                Ok((loss.backward()?, loss.value().clone()))
            })
        };
        let done: [Result<_>; 2] = std::thread::scope(|scope| {
            if !threads {
                return [batch(0), batch(1)];
            }
            let other = scope.spawn(|| batch(1));
            [batch(0), other.join().unwrap()]
        });
        let [(mut gradients, first), (others, second)] = done.map(|done: Result<_>| done.unwrap());
        for (leaf, other) in leaves[0].iter().zip(&leaves[1]) {
            let theirs = others.get(other).unwrap().to_device(&devices[0])?;
            let sum = gradients.get(leaf).unwrap().add(&theirs)?;
            assert!(gradients.replace(leaf, Var::constant(sum))?);
        }
        sgd.step(&gradients)?;
        for (leaf, other) in leaves[0].iter().zip(&leaves[1]) {
            lanes[1].scope(|| other.value().copy_(&leaf.value().to_device(&devices[1])?))?;
        }
        results.extend([first, second]);
    }
    results.extend(models.iter().flat_map(parameters));
    Ok(results)
}

fn all_bits(results: &[Tensor]) -> Result<Vec<Vec<u32>>> {
    results.iter().map(bits).collect()
}

#[test]
fn a_replica_on_each_device_equals_one_model_on_one_device() -> Result<()> {
    let Some(devices) = cuda_pair() else { return Ok(()) };
    let apart = all_bits(&replicas(&devices, true)?)?;
    let together = [devices[0].clone(), devices[0].clone()];
    assert_eq!(all_bits(&replicas(&together, true)?)?, apart);
    // The same with one model, and the merge that the engine makes.
    let model = mlp(&FEATURES, 1, &devices[0])?;
    let mut sgd = Sgd::new(model.parameters(), SgdOptions { lr: 0.5, ..SgdOptions::default() })?;
    let lane = ConcurrentBatches::with_options(&devices[0], 1, Lanes::Always)?;
    let mut expected = Vec::new();
    for step in 0..2 {
        let batches = [input(2, 2 * step, &devices[0])?, input(2, 2 * step + 1, &devices[0])?];
        let step = lane.step(batches, |x| model.forward(&Var::constant(x))?.square()?.mean(&[], false))?;
        sgd.step(&step.gradients)?;
        expected.extend(step.losses);
    }
    expected.extend(parameters(&model));
    expected.extend(parameters(&model));
    assert_eq!(apart, all_bits(&expected)?);
    Ok(())
}

/// Audits a program on both devices. One thread drives them: what another sees pass while this one decides on a wait would
/// make the wait look unneeded.
fn audited(devices: &[Device; 2]) -> Result<Audit> {
    devices.iter().for_each(Device::start_audit);
    let results = replicas(devices, false)?;
    devices.iter().try_for_each(Device::synchronize)?;
    drop(results);
    let [here, there] = devices.each_ref().map(Device::stop_audit);
    Ok(here.with(there))
}

#[test]
fn an_audit_of_both_devices_finds_everything_in_order_and_misses_no_wait() -> Result<()> {
    let Some(devices) = cuda_pair() else { return Ok(()) };
    let audit = audited(&devices)?;
    let hazards: Vec<String> = audit.hazards().iter().map(ToString::to_string).collect();
    assert!(hazards.is_empty(), "{hazards:#?}");
    let home = |id: streamgrad::StreamId| audit.commands().find(|c| c.moment.stream == id).is_some();
    assert!(audit.waits().all(|wait| home(wait.awaited.stream)), "both devices are in it");
    let copies = audit.commands().filter(|command| command.op == "to_device").count();
    // Four parameters in two steps, there and back.
    assert_eq!(copies, 16);
    assert!(audit.waits().count() >= 4);
    assert_eq!(audit.unneeded_waits(), []);
    Ok(())
}

/// What another process of this test does and says.
#[test]
#[ignore = "run by the test below"]
fn inner_replicas() {
    let devices = cuda_pair().unwrap();
    let results = all_bits(&replicas(&devices, true).unwrap()).unwrap();
    say(devices.iter().map(|device| device.sync_stats().waits_inserted).sum(), &results);
}

#[test]
fn a_wait_across_devices_that_the_driver_loses_is_noticed() {
    if cuda_pair().is_none() || !emulated() {
        println!("skipped: this takes two devices of the emulated driver");
        return;
    }
    let (waits, unnoticed) = lost_waits("inner_replicas", &[]);
    println!("{waits} waits");
    assert!(waits >= 4, "{waits} waits");
    assert!(unnoticed.is_empty(), "without wait {unnoticed:?} of {waits} nothing changed");
}
