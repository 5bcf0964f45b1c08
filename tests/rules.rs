//! The rules of streams and gradients that need the whole engine, one test each, on every schedule of the CPU.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use common::devices::each_device;
use streamgrad::optim::SgdOptions;
use streamgrad::prelude::*;
use streamgrad::{
    BackwardOptions, CpuConfig, DeviceKind, Error, ErrorKind, GradOptions, Policy, Result, Schedule,
    TapeEntry, grad, is_recording, no_grad, seed,
};

/// Runs a test on a device of its own for each schedule, and on a CUDA device if there is one.
fn on_each_schedule(test: impl Fn(&Device) -> Result<()>) {
    let schedules = [
        Schedule::Inline,
        Schedule::Threads,
        Schedule::Delay { seed: 3 },
        Schedule::Explore(Policy::Random { seed: 3 }),
    ];
    each_device(&schedules, test);
}

/// Launches, but for the fills of fresh memory on explored devices.
fn launched_ops(device: &Device) -> u64 {
    let fills = match device.schedule() {
        Schedule::Explore(_) => device.memory_stats().allocations,
        _ => 0,
    };
    device.sync_stats().launches - fills
}

fn vector(values: &[f32], device: &Device) -> Result<Tensor> {
    Tensor::from_slice(values, &[values.len()], device)
}

#[test]
fn rule_01_an_op_runs_on_the_current_stream_and_the_tape_records_it() {
    on_each_schedule(|device| {
        let side = device.new_stream()?;
        let x = Var::leaf(vector(&[1.0, 2.0], device)?);
        let y = side.scope(|| x.mul(&x))?;
        let loss = y.sum(&[], false)?;
        let streams: Vec<_> = loss.tape().iter().map(|entry| (entry.op, entry.stream)).collect();
        let default = device.default_stream().id();
        assert_eq!(streams, [("leaf", default), ("mul", side.id()), ("sum", default)]);
        Ok(())
    });
}

#[test]
fn rule_02_a_backward_node_and_its_hooks_run_on_the_forward_stream() {
    on_each_schedule(|device| {
        let side = device.new_stream()?;
        let x = Var::leaf(vector(&[3.0], device)?);
        let y = side.scope(|| x.exp())?;
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&seen);
        let _hook = y.register_hook(move |gradient| {
            log.lock().unwrap().push(Stream::current(gradient.device()).id());
            Ok(None)
        })?;
        device.synchronize()?;
        device.start_recording();
        y.sum(&[], false)?.backward()?;
        device.synchronize()?;
        let recording = device.stop_recording();
        assert_eq!(*seen.lock().unwrap(), [side.id()]);
        let on_side = recording.commands.iter().filter(|command| command.moment.stream == side.id()).count();
        assert!(on_side >= 1, "the gradient of exp did not run on its stream: {recording:?}");
        Ok(())
    });
}

#[test]
fn rule_03_no_wait_is_ever_written_by_the_user() {
    on_each_schedule(|device| {
        let (a, b) = (device.new_stream()?, device.new_stream()?);
        let x = Var::leaf(vector(&[1.0, -2.0, 3.0], device)?);
        let left = a.scope(|| x.tanh())?;
        let right = b.scope(|| x.sigmoid())?;
        let loss = a.scope(|| left.mul(&right)?.sum(&[], false))?;
        let concurrent = loss.backward()?.get(&x).unwrap().to_vec::<f32>()?;
        let serial =
            x.tanh()?.mul(&x.sigmoid()?)?.sum(&[], false)?.backward()?.get(&x).unwrap().to_vec::<f32>()?;
        assert_eq!(concurrent, serial);
        Ok(())
    });
}

#[test]
fn rule_04_a_single_stream_step_makes_no_event_and_no_wait() {
    on_each_schedule(|device| {
        let w = Var::leaf(vector(&[0.5, -0.5], device)?);
        let before = device.sync_stats();
        let mut sgd =
            streamgrad::optim::Sgd::new(vec![w.clone()], SgdOptions { lr: 0.1, ..SgdOptions::default() })?;
        for _ in 0..3 {
            sgd.step(&w.mul(&w)?.sum(&[], false)?.backward()?)?;
        }
        let stats = device.sync_stats() - before;
        assert!(stats.launches > 0);
        assert_eq!((stats.events_recorded, stats.waits_inserted, stats.host_syncs), (0, 0, 0));
        Ok(())
    });
}

/// On the CPU, where a wait is for the one command that is needed.
#[test]
fn rule_06_work_that_a_stream_is_given_later_delays_no_pass_on_another() {
    on_each_schedule(|device| {
        if device.kind() != DeviceKind::Cpu {
            return Ok(());
        }
        let (encoder, decoder) = (device.new_stream()?, device.new_stream()?);
        let w = decoder.scope(|| vector(&[0.5, -1.0], device).map(Var::leaf))?;
        let first = encoder.hold();
        let code = encoder.scope(|| Ok(Var::constant(vector(&[1.0, 2.0], device)?.exp()?)))?;
        let later = encoder.hold();
        let next = encoder.scope(|| code.value().neg())?;
        let gradients = decoder.scope(|| code.mul(&w)?.square()?.sum(&[], false)?.backward())?;
        drop(first);
        decoder.synchronize()?;
        let gradient = gradients.get(&w).unwrap().to_vec::<f32>()?;
        assert!(!encoder.is_idle()?);
        drop(later);
        let expected: Vec<f32> =
            next.to_vec::<f32>()?.iter().zip([0.5, -1.0]).map(|(c, w)| 2.0 * (c * w) * c).collect();
        assert_eq!(gradient, expected);
        Ok(())
    });
}

#[test]
fn rule_07_a_writer_waits_for_all_readers() {
    on_each_schedule(|device| {
        let (a, b) = (device.new_stream()?, device.new_stream()?);
        let x = vector(&[1.0, 2.0, 3.0], device)?;
        device.synchronize()?;
        let (hold_a, hold_b) = (a.hold(), b.hold());
        let doubled = a.scope(|| x.add(&x))?;
        let squared = b.scope(|| x.mul(&x))?;
        x.fill_(0.0)?;
        drop(hold_b);
        b.synchronize()?;
        assert!(
            !device.default_stream().is_idle()?,
            "the writer did not wait for the reader on the held stream"
        );
        drop(hold_a);
        assert_eq!(doubled.to_vec::<f32>()?, [2.0, 4.0, 6.0]);
        assert_eq!(squared.to_vec::<f32>()?, [1.0, 4.0, 9.0]);
        assert_eq!(x.to_vec::<f32>()?, [0.0; 3]);
        Ok(())
    });
}

/// `0.1 + 0.2 + 0.3` differs in the last bit with the order of the sums.
#[test]
fn rule_08_gradients_are_summed_in_one_order_whatever_the_streams() {
    on_each_schedule(|device| {
        let run = |streams: &[Stream]| -> Result<Vec<f32>> {
            let x = Var::leaf(vector(&[1.0], device)?);
            let mut loss = Var::constant(vector(&[0.0], device)?);
            for (index, factor) in [0.1, 0.2, 0.3, 1e7, -1e7].into_iter().enumerate() {
                let part = || x.mul_scalar(factor)?.exp();
                let part =
                    if streams.is_empty() { part() } else { streams[index % streams.len()].scope(part) }?;
                loss = loss.add(&part)?;
            }
            loss.sum(&[], false)?.backward()?.get(&x).unwrap().to_vec::<f32>()
        };
        let serial: Vec<u32> = run(&[])?.iter().map(|v| v.to_bits()).collect();
        let streams = [device.new_stream()?, device.new_stream()?, device.new_stream()?];
        for count in 1..=3 {
            let concurrent: Vec<u32> = run(&streams[..count])?.iter().map(|v| v.to_bits()).collect();
            assert_eq!(concurrent, serial);
        }
        Ok(())
    });
}

#[test]
fn rule_09_stores_of_several_batches_merge_in_batch_order() {
    on_each_schedule(|device| {
        let w = Var::leaf(vector(&[2.0], device)?);
        let gradient = |factor: f64| w.mul_scalar(factor)?.sum(&[], false)?.backward();
        let mut merged = gradient(1e8)?;
        for factor in [1.0, -1e8] {
            merged.merge(gradient(factor)?)?;
        }
        // (1e8 + 1) - 1e8 in F32, and no other order.
        assert_eq!(merged.get(&w).unwrap().item::<f32>()?, (1e8_f32 + 1.0) - 1e8);
        assert_eq!(merged.len(), 1);
        Ok(())
    });
}

#[test]
fn rule_10_backward_does_not_block_and_its_gradients_are_safe_anywhere() {
    on_each_schedule(|device| {
        let (held, other) = (device.new_stream()?, device.new_stream()?);
        let x = Var::leaf(vector(&[1.0, 2.0], device)?);
        let hold = held.hold();
        let loss = held.scope(|| x.square()?.sum(&[], false))?;
        let gradient = loss.backward()?.get(&x).unwrap();
        let doubled = other.scope(|| gradient.mul_scalar(2.0))?;
        assert!(!held.is_idle()?);
        drop(hold);
        assert_eq!(doubled.to_vec::<f32>()?, [4.0, 8.0]);
        Ok(())
    });
}

#[test]
fn rule_11_the_initial_gradient_may_come_from_any_stream() {
    on_each_schedule(|device| {
        let (a, b) = (device.new_stream()?, device.new_stream()?);
        let x = Var::leaf(vector(&[1.0, 2.0], device)?);
        let y = a.scope(|| x.square())?;
        let hold = b.hold();
        let gradient = b.scope(|| Tensor::full(&[2], 3.0, DType::F32, device))?;
        let options =
            BackwardOptions { gradient: Some(Var::constant(gradient)), ..BackwardOptions::default() };
        let result = y.backward_with(options)?.get(&x).unwrap();
        drop(hold);
        assert_eq!(result.to_vec::<f32>()?, [6.0, 12.0]);
        Ok(())
    });
}

#[test]
fn rule_12_a_hook_may_read_any_tensor() {
    on_each_schedule(|device| {
        let (a, b) = (device.new_stream()?, device.new_stream()?);
        let x = Var::leaf(vector(&[2.0], device)?);
        let scale = b.scope(|| Tensor::full(&[1], 10.0, DType::F32, device))?;
        let y = a.scope(|| x.square())?;
        let _hook =
            y.register_hook(move |gradient| Ok(Some(Var::constant(gradient.value().mul(&scale)?))))?;
        assert_eq!(y.sum(&[], false)?.backward()?.get(&x).unwrap().item::<f32>()?, 40.0);
        Ok(())
    });
}

#[test]
fn rule_13_recorded_gradients_inherit_the_stream_and_double_backward_is_right() {
    on_each_schedule(|device| {
        let side = device.new_stream()?;
        let x = Var::leaf(vector(&[2.0], device)?);
        let y = side.scope(|| x.square()?.mul(&x))?;
        let options = GradOptions { create_graph: true, ..GradOptions::default() };
        let first = grad(&[y], std::slice::from_ref(&x), options)?.remove(0).unwrap();
        assert_eq!(first.value().item::<f32>()?, 12.0);
        // The leaf was made on the default stream, so that is where its gradients are added up.
        let elsewhere = |entry: &&TapeEntry| entry.stream != side.id();
        let tape = first.tape();
        assert!(tape.iter().filter(elsewhere).all(|entry| ["leaf", "add"].contains(&entry.op)), "{tape:?}");
        let second = first.backward()?.get(&x).unwrap();
        assert_eq!(second.item::<f32>()?, 12.0);
        Ok(())
    });
}

#[test]
fn rule_14_recomputation_restores_stream_device_generator_and_modes() {
    on_each_schedule(|device| {
        let (side, other) = (device.new_stream()?, device.new_stream()?);
        let x = Var::leaf(vector(&[0.5, -1.0, 2.0, 0.25], device)?);
        let w = Var::leaf(Tensor::ones(&[4, 4], DType::F32, device)?);
        // What each run is within.
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (log, weight, inner) = (Arc::clone(&seen), w.clone(), other.clone());
        let part = move |x: &Var| {
            let product = x.reshape(&[1, 4])?.matmul(&weight)?;
            let noise = inner.scope(|| product.dropout(0.5, None))?;
            let stream = Stream::current(x.device()).id();
            log.lock().unwrap().push((stream, is_recording(), product.dtype(), noise.value().clone()));
            noise.to_dtype(DType::F32)?.square()
        };
        seed(9);
        let run = || side.scope(|| autocast(DType::BF16, || recompute(part, &x)));
        let loss = run()?.sum(&[], false)?;
        // Another thread has another stream, generator and mode.
        let pass = || other.scope(|| autocast(DType::F16, || no_grad(|| loss.backward())));
        let gradients = std::thread::scope(|scope| scope.spawn(pass).join()).unwrap()?;
        assert_eq!(gradients.len(), 2);
        let seen = seen.lock().unwrap();
        let bits = |noise: &Tensor| noise.to_dtype(DType::F32)?.to_vec::<f32>();
        let expected = (side.id(), true, DType::BF16, bits(&seen[0].3)?);
        for (stream, recording, dtype, noise) in seen.iter() {
            assert_eq!((*stream, *recording, *dtype, bits(noise)?), expected);
        }
        assert_eq!(seen.len(), 2);
        Ok(())
    });
}

#[test]
fn rule_15_a_second_pass_over_freed_tensors_enqueues_nothing() {
    on_each_schedule(|device| {
        let x = Var::leaf(vector(&[2.0], device)?);
        let y = x.square()?;
        let loss = y.exp()?;
        loss.backward()?;
        let launched = launched_ops(device);
        assert!(matches!(
            loss.backward().as_ref().map_err(Error::kind),
            Err(ErrorKind::GraphConsumed { op: "exp" })
        ));
        // Half of this graph is consumed.
        assert!(matches!(
            y.add(&x)?.backward().as_ref().map_err(Error::kind),
            Err(ErrorKind::GraphConsumed { op: "square" })
        ));
        assert_eq!(launched_ops(device), launched + 1, "only the addition was launched");
        Ok(())
    });
}

#[test]
fn rule_15_a_pass_that_fails_before_it_starts_leaves_the_graph_usable() {
    on_each_schedule(|device| {
        let x = Var::leaf(vector(&[2.0], device)?);
        let (used, fresh) = (x.square()?, x.exp()?);
        used.backward()?;
        assert!(fresh.mul(&used)?.backward().is_err());
        assert_eq!(fresh.log()?.backward()?.get(&x).unwrap().item::<f32>()?, 1.0);
        Ok(())
    });
}

#[test]
fn rule_16_a_change_in_place_is_found_before_any_kernel_runs() {
    on_each_schedule(|device| {
        let x = Var::leaf(vector(&[2.0], device)?);
        let loss = x.square()?.exp()?;
        x.value().add_scalar_(1.0)?;
        let launched = device.sync_stats().launches;
        let error = loss.backward().err();
        assert!(
            matches!(
                error.as_ref().map(Error::kind),
                Some(ErrorKind::VersionMismatch { op: "square", saved: 0, now: 1 })
            ),
            "{error:?}"
        );
        assert_eq!(device.sync_stats().launches, launched);
        Ok(())
    });
}

#[test]
fn rule_17_an_optimizer_step_never_disturbs_a_batch_in_flight() {
    on_each_schedule(|device| {
        let lane = device.new_stream()?;
        let w = Var::leaf(vector(&[1.0, 2.0], device)?);
        let mut sgd =
            streamgrad::optim::Sgd::new(vec![w.clone()], SgdOptions { lr: 1.0, ..SgdOptions::default() })?;
        let gradients = w.sum(&[], false)?.backward()?;
        device.synchronize()?;
        let hold = lane.hold();
        let in_flight = lane.scope(|| no_grad(|| w.mul_scalar(10.0)))?;
        sgd.step(&gradients)?;
        drop(hold);
        assert_eq!(in_flight.value().to_vec::<f32>()?, [10.0, 20.0]);
        assert_eq!(w.value().to_vec::<f32>()?, [0.0, 1.0]);
        Ok(())
    });
}

#[test]
fn rule_18_mixed_devices_are_an_error_before_launch() {
    on_each_schedule(|device| {
        let other = Device::cpu_with(CpuConfig::default());
        let (x, y) = (vector(&[1.0], device)?, vector(&[1.0], &other)?);
        let launched = (device.sync_stats().launches, other.sync_stats().launches);
        assert!(matches!(
            x.add(&y).as_ref().map_err(Error::kind),
            Err(ErrorKind::DeviceMismatch { op: "add", .. })
        ));
        assert_eq!((device.sync_stats().launches, other.sync_stats().launches), launched);
        Ok(())
    });
}

#[test]
fn rule_19_a_stream_may_be_dropped_with_work_pending() {
    on_each_schedule(|device| {
        let x = Var::leaf(vector(&[3.0], device)?);
        let side = device.new_stream()?;
        let id = side.id();
        let hold = side.hold();
        let y = side.scope(|| x.square())?;
        drop(side);
        drop(hold);
        assert_eq!(y.sum(&[], false)?.backward()?.get(&x).unwrap().item::<f32>()?, 6.0);
        assert!((0..100).all(|_| device.new_stream().unwrap().id() != id));
        Ok(())
    });
}

#[test]
fn rule_20_dropping_a_tensor_in_use_neither_blocks_nor_frees_early() {
    on_each_schedule(|device| {
        let side = device.new_stream()?;
        let x = vector(&[7.0; 1000], device)?;
        device.synchronize()?;
        let hold = side.hold();
        let y = side.scope(|| x.add(&x))?;
        drop(x);
        // Whoever gets the block of `x` too early overwrites it here.
        let others: Vec<_> =
            (0..50).map(|_| Tensor::zeros(&[1000], DType::F32, device)).collect::<Result<_>>()?;
        device.default_stream().synchronize()?;
        drop((others, hold));
        assert_eq!(y.to_vec::<f32>()?, [14.0; 1000]);
        Ok(())
    });
}

#[test]
fn rule_21_concurrent_passes_over_a_retained_graph_agree() {
    on_each_schedule(|device| {
        let side = device.new_stream()?;
        let x = Var::leaf(vector(&[0.3, -0.7, 1.1], device)?);
        let loss = side.scope(|| x.tanh()?.mul(&x.exp()?)?.sum(&[], false))?;
        let keep = || BackwardOptions { retain_graph: true, ..BackwardOptions::default() };
        let expected = loss.backward_with(keep())?.get(&x).unwrap().to_vec::<f32>()?;
        std::thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| {
                    for _ in 0..50 {
                        let gradients = loss.backward_with(keep()).unwrap();
                        assert_eq!(gradients.get(&x).unwrap().to_vec::<f32>().unwrap(), expected);
                    }
                });
            }
        });
        Ok(())
    });
}

#[test]
fn rule_21_one_of_two_consuming_passes_gets_the_graph() {
    on_each_schedule(|device| {
        for _ in 0..50 {
            let x = Var::leaf(vector(&[2.0], device)?);
            let loss = x.square()?.neg()?.neg()?;
            let won = AtomicUsize::new(0);
            std::thread::scope(|threads| {
                for _ in 0..2 {
                    threads.spawn(|| match loss.backward() {
                        Ok(gradients) => {
                            won.fetch_add(1, Ordering::Relaxed);
                            assert_eq!(gradients.get(&x).unwrap().item::<f32>().unwrap(), 4.0);
                        }
                        Err(error) if matches!(error.kind(), ErrorKind::GraphConsumed { .. }) => {}
                        Err(error) => panic!("{error}"),
                    });
                }
            });
            assert!(won.load(Ordering::Relaxed) <= 1);
            // A pass that lost gave its claims back only if the other had not run.
            assert!(won.load(Ordering::Relaxed) == 1 || loss.backward().is_ok());
        }
        Ok(())
    });
}

#[test]
fn rule_22_a_panic_in_a_hook_is_an_error_and_gives_no_partial_gradients() {
    on_each_schedule(|device| {
        let x = Var::leaf(vector(&[2.0], device)?);
        let y = x.square()?;
        let _hook = y.register_hook(|_| panic!("on purpose"))?;
        let error = y.exp()?.backward().err();
        assert!(
            matches!(error.as_ref().map(Error::kind), Some(ErrorKind::Async { op: "square", .. })),
            "{error:?}"
        );
        assert_eq!(x.exp()?.log()?.backward()?.get(&x).unwrap().item::<f32>()?, 1.0);
        Ok(())
    });
}

#[test]
fn rule_24_a_host_read_waits_only_for_that_buffer() {
    on_each_schedule(|device| {
        let (held, free) = (device.new_stream()?, device.new_stream()?);
        let x = vector(&[1.0, 2.0], device)?;
        device.synchronize()?;
        let hold = held.hold();
        let pending = held.scope(|| x.add(&x))?;
        let ready = free.scope(|| x.mul(&x))?;
        assert_eq!(ready.to_vec::<f32>()?, [1.0, 4.0]);
        assert_eq!(x.to_vec::<f32>()?, [1.0, 2.0]);
        drop(hold);
        assert_eq!(pending.to_vec::<f32>()?, [2.0, 4.0]);
        Ok(())
    });
}

#[test]
fn rule_25_random_numbers_do_not_depend_on_the_stream() {
    on_each_schedule(|device| {
        let draw = || -> Result<Vec<f32>> {
            streamgrad::seed(11);
            Tensor::randn(&[64], DType::F32, None, device)?.to_vec::<f32>()
        };
        let side = device.new_stream()?;
        assert_eq!(draw()?, side.scope(draw)?);
        Ok(())
    });
}

/// While one stream is held, a whole forward and backward pass on another one finishes.
#[test]
fn a_held_stream_delays_nobody_else() {
    on_each_schedule(|device| {
        let (held, free) = (device.new_stream()?, device.new_stream()?);
        let x = Var::leaf(Tensor::randn(&[8, 4], DType::F32, None, device)?);
        let w = Var::leaf(Tensor::randn(&[4, 4], DType::F32, None, device)?);
        // What a product loads at its first launch waits for held streams.
        x.matmul(&w)?.relu()?.sum(&[], false)?.backward()?;
        device.synchronize()?;
        let hold = held.hold();
        let blocked = held.scope(|| x.matmul(&w)?.relu()?.sum(&[], false)?.backward())?;
        let gradients = free.scope(|| x.matmul(&w)?.relu()?.sum(&[], false)?.backward())?;
        free.synchronize()?;
        let done = gradients.get(&w).unwrap().to_vec::<f32>()?;
        assert!(!held.is_idle()?);
        drop(hold);
        assert_eq!(blocked.get(&w).unwrap().to_vec::<f32>()?, done);
        Ok(())
    });
}

/// A long chain is dropped without recursion.
#[test]
fn a_chain_of_many_ops_is_dropped_in_a_loop() -> Result<()> {
    let device = Device::cpu_with(CpuConfig::default());
    let x = Var::leaf(vector(&[1.0], &device)?);
    let mut y = x.clone();
    for _ in 0..200_000 {
        y = y.neg()?;
    }
    drop(y);
    Ok(())
}
