//! The engine on a CUDA device, real or emulated: the CPU's values and gradients, serial results under any number of
//! streams, and no call of the driver that is not needed. Without a device the tests say so and do nothing.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::bits;
use common::devices::{self, emulated};
use common::process::{calls, function, run_ignored, run_logged};
use streamgrad::autograd::ops::{ALL, OpEntry, Sample};
use streamgrad::nn::mlp;
use streamgrad::optim::{
    Adam, AdamOptions, AdamW, AdamWOptions, Lion, LionOptions, RmsProp, RmsPropOptions, Sgd, SgdOptions,
    clip_grad_norm, clip_grad_value,
};
use streamgrad::prelude::*;
use streamgrad::{ConcurrentBatches, CpuConfig, CudaConfig, Error, ErrorKind, RandomKey, Result, SyncMode};

fn cuda() -> Option<Device> {
    devices::cuda(0)
}

/// The value of a sample and its gradients, for a cotangent that is the same on every device.
fn value_and_gradients(sample: &Sample, inputs: &[Tensor], device: &Device) -> Result<Vec<Vec<f64>>> {
    let leaves: Vec<Var> = inputs.iter().cloned().map(Var::leaf).collect();
    let value = (sample.run)(&leaves)?;
    let count = value.value().elements();
    let weights: Vec<f64> = (0..count).map(|i| 0.3 + ((i * 37 + 11) % 17) as f64 * 0.1).collect();
    let weights = Var::constant(Tensor::from_slice(&weights, value.value().shape(), device)?);
    let gradients = value.mul(&weights)?.sum(&[], false)?.backward()?;
    let mut results = vec![value.value().to_vec()?];
    for leaf in &leaves {
        results.push(gradients.get(leaf).map(|gradient| gradient.to_vec()).transpose()?.unwrap_or_default());
    }
    Ok(results)
}

fn compare_with_cpu(op: &OpEntry, device: &Device) -> Result<Vec<String>> {
    let cpu = Device::cpu();
    let mut differences = Vec::new();
    for (here, there) in op.samples(&cpu)?.iter().zip(op.samples(device)?.iter()) {
        let inputs: Vec<Tensor> =
            here.inputs.iter().map(|input| input.to_device(device)).collect::<Result<_>>()?;
        let expected = value_and_gradients(here, &here.inputs, &cpu)?;
        let found = value_and_gradients(there, &inputs, device)?;
        for (part, (a, b)) in expected.iter().zip(&found).enumerate() {
            let far =
                |(a, b): (&f64, &f64)| (a - b).abs() > 1e-10 * (1.0 + a.abs()) || a.is_nan() != b.is_nan();
            if a.len() != b.len() || a.iter().zip(b).any(far) {
                differences.push(format!("{}::{} result {part}: {a:?} and {b:?}", op.name, here.name));
            }
        }
    }
    Ok(differences)
}

#[test]
fn every_op_gives_the_cpus_value_and_gradients() {
    let Some(device) = cuda() else { return };
    let differences: Vec<String> = ALL
        .iter()
        .flat_map(|op| compare_with_cpu(op, &device).unwrap_or_else(|e| vec![format!("{}: {e}", op.name)]))
        .collect();
    assert!(differences.is_empty(), "{differences:#?}");
}

/// What the emulated driver has logged so far; nothing if it does not.
fn driver_log() -> String {
    std::env::var_os("CUDA_EMULATOR_LOG")
        .map(|path| std::fs::read_to_string(path).unwrap())
        .unwrap_or_default()
}

/// What steps on `lanes` lanes take, once memory has come to rest: by the device's counts, and by the driver's log.
fn steady(device: &Device, lanes: usize) -> Result<(streamgrad::SyncStats, u64, String)> {
    let model = mlp(&[6, 16, 3], 1, device)?;
    let mut sgd = Sgd::new(model.parameters(), SgdOptions { lr: 0.1, ..SgdOptions::default() })?;
    let lanes = ConcurrentBatches::with_options(device, lanes, Lanes::Always)?;
    let input = Tensor::ones(&[7, 6], DType::F32, device)?;
    let loss = |_| model.forward(&Var::constant(input.clone()))?.square()?.mean(&[], false);
    let mut step = || -> Result<()> { sgd.step(&lanes.step([0, 1], loss)?.gradients) };
    (0..60).try_for_each(|_| step())?;
    device.synchronize()?;
    let (memory, sync, logged) = (device.memory_stats(), device.sync_stats(), driver_log().len());
    (0..20).try_for_each(|_| step())?;
    let log = driver_log().split_off(logged);
    let allocations = device.memory_stats().driver_allocations - memory.driver_allocations;
    Ok((device.sync_stats() - sync, allocations, log))
}

/// Ten steps with gradients clipped both ways, and how often the host waited for them.
fn clipped(
    device: &Device,
    optimizer: impl Fn(Vec<Var>) -> Result<Box<dyn Optimizer>>,
) -> Result<Vec<Vec<u32>>> {
    let w = Var::leaf(Tensor::arange(-6, 6, 1, DType::F32, device)?.reshape(&[3, 4])?);
    let mut optimizer = optimizer(vec![w.clone()])?;
    let before = device.sync_stats();
    let mut norms = Vec::new();
    for _ in 0..10 {
        let mut gradients = w.square()?.sum(&[], false)?.backward()?;
        norms.push(clip_grad_norm(&mut gradients, 5.0)?);
        clip_grad_value(&mut gradients, 2.0)?;
        optimizer.step(&gradients)?;
    }
    let waited = device.sync_stats() - before;
    assert_eq!((waited.host_syncs, waited.events_recorded, waited.waits_inserted), (0, 0, 0));
    norms.iter().chain([w.value()]).map(bits).collect()
}

/// Clipping and every optimizer: no host waits, and the CPU's bits but for the norm's, whose sum has an order of its own.
#[test]
fn clipped_steps_wait_for_nothing_on_the_host() -> Result<()> {
    let Some(device) = cuda() else { return Ok(()) };
    type Make = fn(Vec<Var>) -> Result<Box<dyn Optimizer>>;
    let kinds: [Make; 5] = [
        |w| Ok(Box::new(Sgd::new(w, SgdOptions { lr: 0.1, momentum: 0.9, ..SgdOptions::default() })?)),
        |w| Ok(Box::new(Adam::new(w, AdamOptions::default())?)),
        |w| Ok(Box::new(AdamW::new(w, AdamWOptions::default())?)),
        |w| Ok(Box::new(RmsProp::new(w, RmsPropOptions { centered: true, ..RmsPropOptions::default() })?)),
        |w| Ok(Box::new(Lion::new(w, LionOptions::default())?)),
    ];
    // Not the process's own: the tests beside this one wait for that.
    let cpu = Device::cpu_with(CpuConfig::default());
    for (kind, make) in kinds.into_iter().enumerate() {
        let (here, there) = (clipped(&device, make)?, clipped(&cpu, make)?);
        for (a, b) in here.iter().flatten().zip(there.iter().flatten()) {
            let (a, b) = (f32::from_bits(*a), f32::from_bits(*b));
            assert!((a - b).abs() <= 1e-5 * (1.0 + b.abs()), "kind {kind}: {a} instead of {b}");
        }
    }
    Ok(())
}

#[test]
fn a_steady_step_allocates_nothing_and_waits_for_nothing_on_the_host() -> Result<()> {
    let Some(device) = cuda() else { return Ok(()) };
    let (serial, allocations, _) = steady(&device, 1)?;
    assert_eq!((serial.events_recorded, serial.waits_inserted, serial.host_syncs, allocations), (0, 0, 0, 0));
    let (concurrent, allocations, _) = steady(&device, 2)?;
    assert_eq!((concurrent.host_syncs, allocations), (0, 0));
    assert!(
        concurrent.waits_inserted > 0 && concurrent.events_recorded <= concurrent.waits_inserted,
        "{concurrent:?}"
    );
    Ok(())
}

/// The same by what the driver was really asked for.
#[test]
#[ignore = "run by the test below"]
fn inner_logged_steps() -> Result<()> {
    let device = cuda().unwrap();
    for lanes in [1, 2] {
        let (sync, _, log) = steady(&device, lanes)?;
        let count = |name| calls(&log, name) as u64;
        assert_eq!(sync.waits_inserted == 0, lanes == 1, "{sync:?}");
        assert!(count("cuLaunchKernel") > 20, "{lanes} lanes: {log}");
        assert_eq!(
            (count("cuStreamWaitEvent"), count("cuEventRecord")),
            (sync.waits_inserted, sync.events_recorded),
            "{lanes} lanes"
        );
        // Nothing that waits on the host, and of memory nothing but commands of a stream.
        let unexpected = |name: &str| {
            name.ends_with("Synchronize")
                || (name.starts_with("cuMem") && !name.contains("Async"))
                || (lanes == 1 && name.starts_with("cuEvent"))
        };
        let found: Vec<&str> = log.lines().filter(|line| unexpected(function(line))).collect();
        assert!(found.is_empty(), "{lanes} lanes: {found:#?}");
    }
    Ok(())
}

#[test]
fn the_drivers_log_of_a_steady_step_has_no_call_that_is_not_needed() {
    if !emulated() {
        println!("skipped: a real driver has no log");
        return;
    }
    let (output, log) = run_logged("inner_logged_steps", &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert!(calls(&log, "cuLaunchKernel") > 0);
}

#[test]
fn a_missing_wait_of_the_users_is_refused() -> Result<()> {
    let Some(device) = cuda() else { return Ok(()) };
    let side = device.new_stream()?;
    let x = Tensor::ones(&[4], DType::F32, &device)?;
    device.synchronize()?;
    device.set_sync_mode(SyncMode::Manual);
    let hold = side.hold();
    side.scope(|| x.add_(&x))?;
    assert!(matches!(
        x.copy().as_ref().map_err(Error::kind),
        Err(ErrorKind::Race { op: "copy", earlier: "add", .. })
    ));
    device.default_stream().wait_stream(&side)?;
    let copy = x.copy()?;
    drop(hold);
    device.set_sync_mode(SyncMode::Auto);
    assert_eq!(copy.to_vec::<f32>()?, [2.0; 4]);
    Ok(())
}

#[test]
fn an_index_out_of_range_names_the_op_and_leaves_the_device_usable() -> Result<()> {
    let Some(device) = cuda() else { return Ok(()) };
    let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0], &[3], &device)?;
    let bad = Tensor::from_slice(&[0i64, 7], &[2], &device)?;
    let selected = x.index_select(0, &bad).and_then(|picked| picked.to_vec::<f32>());
    assert!(
        matches!(
            selected.as_ref().map_err(Error::kind),
            Err(ErrorKind::Async { op: "index_select", .. }
                | ErrorKind::IndexOutOfRange { op: "index_select", .. })
        ),
        "{selected:?}"
    );
    assert!(selected.unwrap_err().to_string().contains('7'));
    assert_eq!(x.to_vec::<f32>()?, [1.0, 2.0, 3.0]);
    Ok(())
}

#[test]
fn too_much_memory_is_an_error_with_a_report() -> Result<()> {
    let Some(device) = cuda() else { return Ok(()) };
    device.set_memory_limit(Some(1 << 20));
    let kept = Tensor::ones(&[1000], DType::F32, &device)?;
    assert!(matches!(
        Tensor::ones(&[1 << 20], DType::F32, &device).as_ref().map_err(Error::kind),
        Err(ErrorKind::OutOfMemory { .. })
    ));
    device.set_memory_limit(None);
    assert_eq!(
        Tensor::ones(&[1 << 20], DType::F32, &device)?.sum(&[], false)?.item::<f32>()?,
        (1 << 20) as f32
    );
    assert_eq!(kept.sum(&[], false)?.item::<f32>()?, 1000.0);
    Ok(())
}

/// A stream that has made products goes, and one that makes some comes, while another is held. The library's handles cannot be
/// destroyed meanwhile: that waits for all that the device does.
#[test]
fn a_stream_with_products_goes_while_another_is_held() -> Result<()> {
    let Some(device) = cuda() else { return Ok(()) };
    let [held, going] = [device.new_stream()?, device.new_stream()?];
    let x = Tensor::ones(&[8, 8], DType::F32, &device)?;
    let products = [&held, &going].map(|stream| stream.scope(|| x.matmul(&x)));
    device.synchronize()?;
    let hold = held.hold();
    let (went, gone) = std::sync::mpsc::channel();
    let other = std::thread::spawn(move || -> Result<Vec<f32>> {
        let device = going.device().clone();
        drop(going);
        let next = device.new_stream()?;
        let product = next.scope(|| x.matmul(&x))?.to_vec();
        let _ = went.send(());
        product
    });
    let in_time = gone.recv_timeout(std::time::Duration::from_secs(20));
    drop(hold);
    assert_eq!(other.join().unwrap()?, [8.0; 64]);
    assert!(in_time.is_ok(), "it waited for the stream that was held");
    for product in products {
        assert_eq!(product?.to_vec::<f32>()?, [8.0; 64]);
    }
    Ok(())
}

/// In a process that has loaded nothing: the driver would load what is used first only once the held stream is done.
#[test]
#[ignore = "run by the test below"]
fn inner_first_uses_while_a_stream_is_held() -> Result<()> {
    let device = Device::cuda_with(0, CudaConfig::default())?;
    let [held, other] = [device.new_stream()?, device.new_stream()?];
    let x = Tensor::from_slice(&[1.0f32; 64], &[8, 8], &device)?;
    let refused = |outcome: Result<Tensor>, what: &str| match outcome.map_err(Error::into_kind) {
        Err(ErrorKind::StreamHeld { what: found }) => {
            assert!(found.contains(what), "{found}")
        }
        outcome => panic!("{what}: {outcome:?}"),
    };
    let hold = held.hold();
    refused(other.scope(|| x.sin()), "elementwise_f32");
    refused(other.scope(|| x.matmul(&x)), "cuBLASLt");
    drop(hold);
    // Nothing is left of what was refused.
    streamgrad::tensor::preload(&other)?;
    let gradient = || -> Result<Vec<f32>> {
        let leaf = Var::leaf(x.clone());
        leaf.matmul(&leaf)?.sum(&[], false)?.backward()?.get(&leaf).unwrap().to_vec()
    };
    let product = other.scope(|| x.matmul(&x))?;
    other.scope(gradient)?;
    let [sine, exponential] = [x.sin()?.to_vec::<f32>()?, x.exp()?.to_vec::<f32>()?];
    // An optimizer loads its kernels when it is created.
    let weight = Var::leaf(x.copy()?);
    let mut sgd = Sgd::new(vec![weight.clone()], 0.5)?;
    let gradients = weight.sum_all()?.backward()?;
    let hold = held.hold();
    other.scope(|| sgd.step(&gradients))?;
    assert_eq!(other.scope(|| weight.value().to_vec::<f32>())?, [0.5; 64]);
    let queued = held.scope(|| x.exp())?;
    assert_eq!(other.scope(|| x.sin())?.to_vec::<f32>()?, sine);
    assert_eq!(other.scope(|| x.matmul(&x))?.to_vec::<f32>()?, [8.0; 64]);
    assert_eq!(other.scope(|| x.sum(&[], false))?.item::<f32>()?, 64.0);
    assert_eq!(other.scope(gradient)?, [16.0; 64]);
    // A shape of its own has kernels of its own.
    let row = Tensor::from_slice(&[1.0f32; 8], &[1, 8], &device)?;
    refused(other.scope(|| row.matmul(&x)), "matmul");
    drop(hold);
    assert_eq!(queued.to_vec::<f32>()?, exponential);
    assert_eq!(product.to_vec::<f32>()?, [8.0; 64]);
    assert_eq!(other.scope(|| row.matmul(&x))?.to_vec::<f32>()?, [8.0; 8]);
    Ok(())
}

/// In a process that has loaded nothing: the thread that holds a stream waits for the one that compiles.
#[test]
#[ignore = "run by the test below"]
fn inner_hold_while_another_thread_compiles() -> Result<()> {
    let device = Device::cuda_with(0, CudaConfig::default())?;
    let [held, other] = [device.new_stream()?, device.new_stream()?];
    let x = Tensor::from_slice(&[1.0f32; 64], &[8, 8], &device)?;
    std::thread::scope(|scope| {
        let compiling = scope.spawn(|| other.scope(|| x.sin()));
        std::thread::sleep(std::time::Duration::from_millis(20));
        let hold = held.hold();
        let outcomes = [other.scope(|| x.sum(&[], false)), compiling.join().unwrap()];
        drop(hold);
        for outcome in outcomes {
            assert!(
                matches!(outcome.as_ref().map_err(Error::kind), Ok(_) | Err(ErrorKind::StreamHeld { .. })),
                "{outcome:?}"
            );
        }
    });
    assert_eq!(x.sum(&[], false)?.item::<f32>()?, 64.0);
    x.sin()?.to_vec::<f32>().map(drop)
}

#[test]
fn a_first_use_while_a_stream_is_held_is_an_error_and_not_a_hang() {
    if cuda().is_none() {
        return;
    }
    for test in ["inner_first_uses_while_a_stream_is_held", "inner_hold_while_another_thread_compiles"] {
        let output = run_ignored(test, &[]);
        let text =
            [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        assert!(output.status.success() && !text.contains("waits for host memory"), "{text}");
    }
}

/// A wait is refused, and the write that it was for is launched again.
#[test]
#[ignore = "run by the test below"]
fn inner_refused_wait() -> Result<()> {
    let device = cuda().unwrap();
    let (first, second) = (device.new_stream()?, device.new_stream()?);
    let x = Tensor::zeros(&[4], DType::F32, &device)?;
    device.synchronize()?;
    device.start_audit();
    let hold = first.hold();
    first.scope(|| x.fill_(1.0))?;
    let refused = second.scope(|| x.fill_(7.0));
    assert!(
        matches!(
            refused.as_ref().map_err(Error::kind),
            Err(ErrorKind::Async { .. } | ErrorKind::Driver { .. })
        ),
        "{refused:?}"
    );
    second.scope(|| x.fill_(7.0))?;
    drop(hold);
    assert_eq!(x.to_vec::<f32>()?, [7.0; 4]);
    let audit = device.stop_audit();
    let fills = audit.commands().filter(|command| command.op == "fill").count();
    assert_eq!((fills, audit.hazards()), (2, vec![]), "what was refused never ran");
    Ok(())
}

#[test]
fn a_refused_wait_is_an_error_that_loses_no_order() {
    if !emulated() {
        println!("skipped: a real driver refuses nothing on demand");
        return;
    }
    for seed in 0..8 {
        let environment =
            [("CUDA_EMULATOR_SEED", seed.to_string()), ("CUDA_EMULATOR_FAIL", "cuStreamWaitEvent:1".into())];
        let output = run_ignored("inner_refused_wait", &environment);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
}

/// Leaves work in the driver's queues, and drops the device.
#[test]
#[ignore = "run by the test below"]
fn inner_dropped_device() {
    let device = devices::cuda(0).unwrap();
    let x = Tensor::ones(&[1 << 16], DType::F32, &device).unwrap();
    // It may be the read's wait that fails; the copy stays in the queue.
    let read = device.synchronize().and_then(|()| x.to_vec::<f32>());
    let y = x.exp().unwrap();
    println!("refused {}", read.is_err());
    drop((x, y, device));
}

/// The driver's log of the above while its calls fail; whether the read was refused.
fn log_of_a_drop(fails: &str) -> (String, bool) {
    let log = std::env::temp_dir().join(format!("streamgrad-drop-{}", std::process::id()));
    let environment =
        [("CUDA_EMULATOR_FAIL", fails.to_owned()), ("CUDA_EMULATOR_LOG", log.display().to_string())];
    let output = run_ignored("inner_dropped_device", &environment);
    let text = std::fs::read_to_string(&log).unwrap();
    std::fs::remove_file(&log).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    (text, String::from_utf8_lossy(&output.stdout).contains("refused true"))
}

#[test]
fn no_memory_is_freed_before_the_work_that_uses_it_has_run() {
    if !emulated() {
        println!("skipped: a real driver refuses nothing on demand");
        return;
    }
    let calls = |function: &str, count: usize| {
        (1..=count).map(|call| format!("{function}:{call}")).collect::<Vec<_>>().join(",")
    };
    let freed = |log: &str| log.lines().position(|line| line.starts_with("cuMemFree_v2"));
    let count = |log: &str, lines: usize, beginning: &str, word: &str| {
        log.lines().take(lines).filter(|line| line.starts_with(beginning) && line.contains(word)).count()
    };
    // One wait, the read's or the device's, and then every wait.
    let waits = (1..=4).map(|call| format!("cuStreamSynchronize:{call}"));
    let mut refused = 0;
    for fails in waits.chain([calls("cuStreamSynchronize", 100)]) {
        let (log, read_refused) = log_of_a_drop(&fails);
        refused += usize::from(read_refused);
        for (call, what) in [("cuLaunchKernel ", "kernel="), ("cuMemcpyDtoHAsync_v2 ", "cuMemcpyDtoH")] {
            let queued = count(&log, usize::MAX, call, "-> 0");
            let ran = count(&log, freed(&log).unwrap(), "run ", what);
            assert!(queued == ran, "{fails}: of {queued} of {what} {ran} ran before memory was freed: {log}");
        }
    }
    assert_eq!(refused, 3, "the first wait, the second, and all of them");
    // Nothing says that the work has run: the memory stays.
    let (log, _) = log_of_a_drop(&format!(
        "{},{},{}",
        calls("cuStreamSynchronize", 100),
        calls("cuStreamQuery", 2000),
        calls("cuEventQuery", 2000)
    ));
    assert_eq!(freed(&log), None, "{log}");
}

/// An op on an index that is out of range, behind and before others.
#[test]
fn the_blocking_mode_names_the_op_at_fault_where_it_is_called() -> Result<()> {
    if cuda().is_none() {
        return Ok(());
    }
    let run = |blocking: bool| -> Result<()> {
        let config = CudaConfig { blocking: Some(blocking), ..CudaConfig::default() };
        let device = Device::cuda_with(0, config)?;
        let x = Tensor::from_slice(&[1.0_f32, 2.0], &[2], &device)?.exp()?;
        let index = Tensor::from_slice(&[0i64, 9], &[2], &device)?;
        device.synchronize()?;
        let picked = x.index_select(0, &index);
        let called =
            matches!(picked.as_ref().map_err(Error::kind), Err(ErrorKind::Async { op: "index_select", .. }));
        assert_eq!(called, blocking, "{picked:?}");
        let later = x.exp().and_then(|y| y.to_vec::<f32>());
        let reported =
            matches!(later.as_ref().map_err(Error::kind), Err(ErrorKind::Async { op: "index_select", .. }));
        assert_eq!(reported, !blocking, "{later:?}");
        x.to_vec::<f32>().map(drop)
    };
    run(true)?;
    run(false)
}

/// A kernel that the driver gives up on, with the environment's mode.
#[test]
#[ignore = "run by the test below"]
fn inner_broken_kernel() {
    let device = Device::cuda_with(0, CudaConfig::default()).unwrap();
    let x = Tensor::from_slice(&[1.0_f32, 2.0], &[2], &device).unwrap();
    let ops = [x.exp(), x.exp().and_then(|y| y.sqrt()), x.mul(&x)];
    let met = ops.iter().find_map(|op| op.as_ref().err());
    println!("met {}", met.map_or("nothing".to_owned(), ToString::to_string));
}

#[test]
fn the_blocking_mode_names_the_op_whose_wait_fails() {
    if !emulated() {
        println!("skipped: a real driver refuses nothing on demand");
        return;
    }
    // The upload is the first command that is waited for; the square root is the fourth.
    let met = |blocking: &str| {
        let environment = [
            ("STREAMGRAD_LAUNCH_BLOCKING", blocking.to_owned()),
            ("CUDA_EMULATOR_FAIL", "cuStreamSynchronize:4:700".to_owned()),
        ];
        let output = run_ignored("inner_broken_kernel", &environment);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}");
        text.lines().find_map(|line| line.split_once("met ")).unwrap().1.to_owned()
    };
    let named = met("1");
    assert!(named.contains("sqrt"), "{named}");
    assert_eq!(met("0"), "nothing");
}

/// A device whose launches are all made by a thread of its own, or none.
fn launching(launcher: bool) -> Result<Device> {
    Device::cuda_with(0, CudaConfig { launcher: Some(launcher), ..CudaConfig::default() })
}

/// A program on two streams with a user's event, reads in between, and products and fills among its commands.
fn on_two_streams(device: &Device) -> Result<Vec<Vec<f32>>> {
    let streams = [device.new_stream()?, device.new_stream()?];
    let drawn = |op| Tensor::randn(&[16, 16], DType::F32, RandomKey { seed: 3, op }, device);
    let (mut x, mut y, mut read) = (drawn(1)?, drawn(2)?, Vec::new());
    for round in 0..6 {
        // Each takes what the other has just made, and memory that was the other's.
        y = streams[0].scope(|| x.matmul(&y)?.tanh()?.add(&Tensor::ones(&[16], DType::F32, device)?))?;
        let passed = streams[0].record()?;
        streams[1].wait(&passed)?;
        x = streams[1].scope(|| (0..20).try_fold(y.add(&x)?, |x, _| x.sin()?.add_scalar(0.5)))?;
        if round % 2 == 0 {
            read.push(x.sum(&[0], false)?.to_vec::<f32>()?);
        }
    }
    read.extend([x.to_vec()?, y.to_vec()?]);
    Ok(read)
}

#[test]
fn a_launcher_changes_no_bit() -> Result<()> {
    if cuda().is_none() {
        return Ok(());
    }
    let mut found = Vec::new();
    for launcher in [false, true] {
        let device = launching(launcher)?;
        device.start_audit();
        let read = on_two_streams(&device)?;
        assert_eq!(device.stop_audit().hazards(), [], "{launcher}");
        // How many waits there are is up to what has passed meanwhile.
        found.push((read, device.sync_stats().launches));
    }
    assert_eq!(found[0], found[1]);
    Ok(())
}

/// Tells which op meets a launch that the driver refuses, where it is called or where the host waits, with a launcher and without.
#[test]
#[ignore = "run by the test below"]
fn inner_refused_launch() {
    for launcher in [false, true] {
        let device = launching(launcher).unwrap();
        let x = Tensor::from_slice(&[4.0_f32, 9.0], &[2], &device).unwrap();
        let y = x.sqrt();
        let z = x.exp();
        let waited = device.synchronize();
        let name = |met: &Result<()>| match met.as_ref().map_err(Error::kind) {
            Err(ErrorKind::Async { op, source, .. }) => format!("{op} {source}"),
            other => format!("{other:?}"),
        };
        println!("met {} | {} | {}", name(&y.map(drop)), name(&z.map(drop)), name(&waited));
        // Told once; the device goes on.
        assert_eq!(x.square().unwrap().to_vec::<f32>().unwrap(), [16.0, 81.0]);
    }
}

#[test]
fn a_launch_that_is_refused_later_is_told_when_the_host_waits() {
    if !emulated() {
        println!("skipped: a real driver refuses nothing on demand");
        return;
    }
    // The first device launches three kernels, the second one's first is the fourth.
    let environment = [("CUDA_EMULATOR_FAIL", "cuLaunchKernel:1,cuLaunchKernel:4".to_owned())];
    let output = run_ignored("inner_refused_launch", &environment);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let met: Vec<_> = text.lines().filter_map(|line| line.split_once("met ")).map(|(_, met)| met).collect();
    let refused = "sqrt cuLaunchKernel failed with 701 (CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES)";
    assert_eq!(met, [format!("{refused} | Ok(()) | Ok(())"), format!("Ok(()) | Ok(()) | {refused}")]);
}

/// Asks whether a stream is idle that never will be.
#[test]
#[ignore = "run by the test below"]
fn inner_broken_stream() {
    let stream = devices::cuda(0).unwrap().new_stream().unwrap();
    let x = stream.scope(|| Tensor::ones(&[4], DType::F32, stream.device())).unwrap();
    // It is busy, too, while its call waits for a launcher.
    let met = std::iter::repeat_with(|| stream.is_idle()).find(|idle| !matches!(idle, Ok(false)));
    println!("met {met:?}");
    drop(x);
}

#[test]
fn a_stream_that_has_failed_is_not_just_busy() {
    if !emulated() {
        println!("skipped: a real driver refuses nothing on demand");
        return;
    }
    let queries: Vec<String> = (1..=100).map(|call| format!("cuStreamQuery:{call}:700")).collect();
    let output = run_ignored("inner_broken_stream", &[("CUDA_EMULATOR_FAIL", queries.join(","))]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}");
    assert!(text.contains("met Some(Err") && text.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{text}");
}

/// Nothing above the device and its kernels asks what the device is made of. On a machine without the sources there is nothing
/// to look at.
#[test]
fn nothing_above_device_and_kernels_is_about_cuda() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders: Vec<_> =
        ["allocator", "tensor", "autograd", "models"].map(|c| root.join(c).join("src")).into();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let source = std::fs::read_to_string(&path).unwrap();
            let code = source.lines().filter(|line| !line.trim_start().starts_with("//"));
            let found: Vec<&str> = code.filter(|line| line.to_lowercase().contains("cuda")).collect();
            assert!(found.is_empty(), "{}: {found:?}", path.display());
        }
    }
}
