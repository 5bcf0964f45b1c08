//! The engine on a CUDA device, real or emulated: the CPU's values and gradients, serial results under any number of
//! streams, and no call of the driver that is not needed. Without a device the tests say so and do nothing.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::process::Command;

use proptest::prelude::*;
use streamgrad::autograd::ops::{ALL, OpEntry, Sample};
use streamgrad::prelude::*;
use streamgrad::{
    Adam, AdamOptions, AdamW, AdamWOptions, ConcurrentBatches, CudaConfig, Error, Lion, LionOptions, Result,
    RmsProp, RmsPropOptions, Sgd, SgdOptions, SyncMode, clip_grad_norm, clip_grad_value, mlp,
};

/// A CUDA device of its own, with the kernels loaded; `None`, with the reason, if there is none.
fn cuda() -> Option<Device> {
    match Device::cuda_with(0, CudaConfig::default()) {
        Ok(device) => {
            streamgrad::tensor::preload(&device.default_stream()).unwrap();
            Some(device)
        }
        Err(Error::CudaUnavailable { reason }) => {
            println!("skipped: {reason}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn bits(tensor: &Tensor) -> Result<Vec<u32>> {
    Ok(tensor.to_vec::<f32>()?.iter().map(|value| value.to_bits()).collect())
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
    for (here, there) in (op.samples)(&cpu)?.iter().zip((op.samples)(device)?.iter()) {
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

/// Trains a small model for a few steps and returns every loss and every parameter.
fn train(device: &Device, lanes: usize, batches: usize) -> Result<Vec<Vec<u32>>> {
    let model = mlp(&[6, 16, 3], 1, device)?;
    let parameters = model.parameters();
    let mut adam = Adam::new(parameters.clone(), AdamOptions::default())?;
    let lanes = ConcurrentBatches::new(device, lanes)?;
    streamgrad::seed(5);
    let mut results = Vec::new();
    for _ in 0..4 {
        let inputs: Vec<Tensor> =
            (0..batches).map(|_| Tensor::randn(&[7, 6], DType::F32, None, device)).collect::<Result<_>>()?;
        let step = lanes.step(inputs, |input| {
            let noisy = Var::constant(input).dropout(0.25, streamgrad::next_key())?;
            model.forward(&noisy)?.square()?.mean(&[], false)
        })?;
        adam.step(&step.gradients)?;
        results.extend(step.losses.iter().map(bits).collect::<Result<Vec<_>>>()?);
    }
    results.extend(parameters.iter().map(|parameter| bits(parameter.value())).collect::<Result<Vec<_>>>()?);
    Ok(results)
}

#[test]
fn lanes_equal_the_serial_schedule() -> Result<()> {
    let Some(device) = cuda() else { return Ok(()) };
    for batches in [2, 3] {
        let serial = train(&device, 1, batches)?;
        for lanes in 2..=3 {
            assert_eq!(train(&device, lanes, batches)?, serial, "{batches} batches on {lanes} lanes");
        }
    }
    Ok(())
}

/// One op of a random program: which op, on which earlier values, on which stream.
type Op = (u8, usize, usize, usize);

fn run(device: &Device, program: &[Op], streams: usize) -> Result<Vec<Vec<u32>>> {
    let streams: Vec<Stream> = match streams {
        0 => vec![device.default_stream()],
        count => (0..count).map(|_| device.new_stream()).collect::<Result<_>>()?,
    };
    streamgrad::seed(3);
    let leaf = || Tensor::uniform(&[5, 5], -0.5, 0.5, DType::F32, None, device).map(Var::leaf);
    let leaves: Vec<Var> = (0..3).map(|_| leaf()).collect::<Result<_>>()?;
    let mut values = leaves.clone();
    for &(kind, lhs, rhs, stream) in program {
        let (x, y) = (&values[lhs % values.len()], &values[rhs % values.len()]);
        let value = streams[stream % streams.len()].scope(|| match kind {
            0 => x.add(y),
            1 => x.mul(y),
            2 => x.tanh(),
            3 => x.matmul(y),
            4 => x.transpose(0, 1),
            5 => x.softmax(1),
            _ => x.narrow(0, 1, 4)?.sum(&[0], true)?.mul(y),
        })?;
        values.push(value);
        // Memory goes while it is in use, and may be used again at once.
        if values.len() > 8 {
            values.remove(3);
        }
    }
    let last = &values[values.len() - 1];
    let loss = last.mul(last)?.add(&leaves[0])?.mean(&[], false)?;
    let gradients = loss.backward()?;
    let mut results = vec![bits(loss.value())?];
    for leaf in &leaves {
        results.push(gradients.get(leaf).map(|gradient| bits(&gradient)).transpose()?.unwrap_or_default());
    }
    Ok(results)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn several_streams_equal_one(program in prop::collection::vec((0u8..7, 0usize..64, 0usize..64, 0usize..8), 3..30)) {
        if let Some(device) = cuda() {
            let serial = run(&device, &program, 0).unwrap();
            for streams in 2..=4 {
                prop_assert_eq!(&run(&device, &program, streams).unwrap(), &serial);
            }
        }
    }
}

/// What a step on `lanes` lanes takes, once memory has come to rest.
fn steady(device: &Device, lanes: usize) -> Result<(streamgrad::SyncStats, u64)> {
    let model = mlp(&[6, 16, 3], 1, device)?;
    let mut sgd = Sgd::new(model.parameters(), SgdOptions { lr: 0.1, ..SgdOptions::default() })?;
    let lanes = ConcurrentBatches::new(device, lanes)?;
    let input = Tensor::ones(&[7, 6], DType::F32, device)?;
    let loss = |_| model.forward(&Var::constant(input.clone()))?.square()?.mean(&[], false);
    let mut step = || -> Result<()> { sgd.step(&lanes.step([0, 1], loss)?.gradients) };
    (0..60).try_for_each(|_| step())?;
    device.synchronize()?;
    let (memory, sync) = (device.memory_stats(), device.sync_stats());
    (0..20).try_for_each(|_| step())?;
    Ok((device.sync_stats() - sync, device.memory_stats().driver_allocations - memory.driver_allocations))
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
    for (kind, make) in kinds.into_iter().enumerate() {
        let (here, there) = (clipped(&device, make)?, clipped(&Device::cpu(), make)?);
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
    let (serial, allocations) = steady(&device, 1)?;
    assert_eq!((serial.events_recorded, serial.waits_inserted, serial.host_syncs, allocations), (0, 0, 0, 0));
    let (concurrent, allocations) = steady(&device, 2)?;
    assert_eq!((concurrent.host_syncs, allocations), (0, 0));
    assert!(
        concurrent.waits_inserted > 0 && concurrent.events_recorded <= concurrent.waits_inserted,
        "{concurrent:?}"
    );
    Ok(())
}

#[test]
fn every_wait_of_a_two_lane_step_is_needed() -> Result<()> {
    let Some(device) = cuda() else { return Ok(()) };
    device.start_audit();
    train(&device, 2, 2)?;
    let audit = device.stop_audit();
    let hazards: Vec<String> = audit.hazards().iter().map(ToString::to_string).collect();
    assert!(hazards.is_empty(), "{hazards:#?}");
    assert!(audit.waits().count() > 0);
    Ok(())
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
    assert!(matches!(x.copy(), Err(Error::Race { op: "copy", earlier: "add", .. })));
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
            &selected,
            Err(Error::Async { op: "index_select", .. } | Error::IndexOutOfRange { op: "index_select", .. })
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
    assert!(matches!(Tensor::ones(&[1 << 20], DType::F32, &device), Err(Error::OutOfMemory { .. })));
    device.set_memory_limit(None);
    assert_eq!(
        Tensor::ones(&[1 << 20], DType::F32, &device)?.sum(&[], false)?.item::<f32>()?,
        (1 << 20) as f32
    );
    assert_eq!(kept.sum(&[], false)?.item::<f32>()?, 1000.0);
    Ok(())
}

/// What another process of this test prints: the results of two steps on two lanes, and how many waits they took.
#[test]
#[ignore = "run by the test below"]
fn inner_two_lanes() {
    let device = cuda().unwrap();
    let results = train(&device, 2, 2).unwrap();
    println!("waits {}", device.sync_stats().waits_inserted);
    println!("results {results:?}");
}

/// The emulated driver leaves out one wait after another: each time some schedule gives another result.
#[test]
fn a_wait_that_the_driver_loses_is_noticed() {
    if cuda().is_none() {
        return;
    }
    let inner = |seed: usize, lost: Option<usize>| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "inner_two_lanes", "--ignored", "--nocapture"]);
        command.env("CUDA_EMULATOR_SEED", seed.to_string());
        if let Some(lost) = lost {
            command.env("CUDA_EMULATOR_DROP_WAIT", lost.to_string());
        }
        let output = String::from_utf8(command.output().unwrap().stdout).unwrap();
        let line = |word: &str| {
            let found =
                output.lines().find_map(|line| line.split_once(word)).map(|(_, rest)| rest.to_owned());
            found.unwrap_or_else(|| panic!("no line with {word:?} in {output}"))
        };
        (line("waits ").trim().parse::<usize>().unwrap(), line("results "))
    };
    let (waits, expected) = inner(0, None);
    assert_eq!(inner(5, None).1, expected, "the schedule does not matter");
    assert!(waits >= 4, "{waits} waits");
    if !emulated() {
        println!("skipped: the driver is a real one");
        return;
    }
    let unnoticed: Vec<usize> =
        (1..=waits).filter(|&wait| !(1..40).any(|seed| inner(seed, Some(wait)).1 != expected)).collect();
    assert!(unnoticed.is_empty(), "without wait {unnoticed:?} of {waits} nothing changed");
}

/// A wait is refused, and the write that it was for is launched again.
#[test]
#[ignore = "run by the test below"]
fn inner_refused_wait() -> Result<()> {
    let device = cuda().unwrap();
    let (first, second) = (device.new_stream()?, device.new_stream()?);
    let x = Tensor::zeros(&[4], DType::F32, &device)?;
    device.synchronize()?;
    let hold = first.hold();
    first.scope(|| x.fill_(1.0))?;
    let refused = second.scope(|| x.fill_(7.0));
    assert!(matches!(refused, Err(Error::Async { .. } | Error::Driver { .. })), "{refused:?}");
    second.scope(|| x.fill_(7.0))?;
    drop(hold);
    assert_eq!(x.to_vec::<f32>()?, [7.0; 4]);
    Ok(())
}

#[test]
fn a_refused_wait_is_an_error_that_loses_no_order() {
    if !emulated() {
        println!("skipped: a real driver refuses nothing on demand");
        return;
    }
    for seed in 0..8 {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "inner_refused_wait", "--ignored"]);
        command.env("CUDA_EMULATOR_SEED", seed.to_string()).env("CUDA_EMULATOR_FAIL", "cuStreamWaitEvent:1");
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
}

/// Whether the driver is the emulated one, which says so in its device's name.
fn emulated() -> bool {
    cuda().is_some_and(|device| device.description().to_lowercase().contains("emulat"))
}
