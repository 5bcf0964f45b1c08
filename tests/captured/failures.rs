//! Memory that is refused: at the capture, when it is made ready, at a replay.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{tensor, values};
use crate::common::devices::emulated;
use crate::common::failing_memory::FailingMemory;
use crate::common::process::{function, run_ignored, run_logged};
use streamgrad::prelude::*;
use streamgrad::{CpuConfig, CudaConfig, Error, ErrorKind, Generator, Graph, Graphs, Result, with_generator};

/// Two replays whose results are held, and one of another shape.
fn train(device: &Device) -> Result<Vec<Vec<f32>>> {
    // Large enough for an arena each.
    let n = 40 << 10;
    let (x, state) = (Tensor::ones(&[n], DType::F32, device)?, Tensor::zeros(&[n], DType::F32, device)?);
    let graph = Graph::capture(device, || {
        state.add_(&x)?;
        let parts = [state.mul_scalar(2.0)?, state.add_scalar(1.0)?.mul(&x)?];
        Ok((parts[0].add(&parts[1])?, parts))
    })?;
    let mut graphs = Graphs::new(device, |x: &Tensor| x.mul_scalar(3.0)?.add_scalar(1.0));
    let held = [graph.replay()?, graph.replay()?];
    let others = [graphs.run(&x)?, graphs.run(&x.narrow(0, 0, n / 2)?)?];
    let all = held.iter().flat_map(|(sum, [a, b])| [sum, a, b]).chain(&others).chain([&state]);
    all.map(|tensor| values(&tensor.narrow(0, 0, 3)?)).collect()
}

#[test]
fn any_memory_may_be_refused() {
    for in_place in [false, true] {
        let device = |memory: &Arc<FailingMemory>| {
            Device::cpu_with(CpuConfig {
                threads: Some(1),
                memory: Some(memory.clone()),
                ..CpuConfig::default()
            })
        };
        let sound = Arc::new(FailingMemory::new(in_place, 0..0));
        let expected = train(&device(&sound)).unwrap();
        let calls = sound.calls();
        assert!(calls >= 3, "{calls} calls");
        let mut failed = 0;
        for call in 1..=calls {
            for last in [call + 1, u64::MAX] {
                let memory = Arc::new(FailingMemory::new(in_place, call..last));
                let device = device(&memory);
                match train(&device) {
                    Ok(found) => assert_eq!(found, expected, "call {call} to {last}"),
                    Err(error) if matches!(error.kind(), ErrorKind::OutOfMemory { .. }) => failed += 1,
                    Err(error) => panic!("call {call} to {last}: {error}"),
                }
                device.synchronize().unwrap();
                let stats = device.memory_stats();
                assert_eq!((stats.allocated_bytes, stats.live_blocks), (0, 0), "call {call} to {last}");
                if last != u64::MAX {
                    assert_eq!(train(&device).unwrap(), expected, "the device is as good as new");
                }
            }
        }
        assert!(failed > 0);
    }
}

/// At every limit of memory a replay either runs or has not begun: the state says how often, and what is held stays.
#[test]
fn a_refused_replay_is_no_replay() -> Result<()> {
    let device = Device::cpu_with(CpuConfig::default());
    let n = 256 << 10;
    let (one, count) = (tensor(&[1.0], &device)?, Tensor::zeros(&[n], DType::F32, &device)?);
    let graph = Graph::capture(&device, || {
        count.add_(&one)?;
        Ok([count.add_scalar(0.0)?, count.mul_scalar(2.0)?, count.mul_scalar(3.0)?])
    })?;
    let mut held: Vec<(f32, [Tensor; 3])> = Vec::new();
    let first = |tensor: &Tensor| tensor.narrow(0, 0, 1)?.item::<f32>();
    let (mut ran, mut refused) = (0.0, 0);
    for round in 0..40 {
        device.synchronize()?;
        device.trim();
        let reserved = device.memory_stats().reserved_bytes;
        device.set_memory_limit(Some(reserved + (round % 7) * (512 << 10)));
        match graph.replay() {
            Ok(result) => {
                ran += 1.0;
                held.push((ran, result));
            }
            Err(error) if matches!(error.kind(), ErrorKind::OutOfMemory { .. }) => refused += 1,
            Err(error) => panic!("{error}"),
        }
        if round % 9 == 8 {
            held.drain(..held.len() / 2);
        }
        assert_eq!(first(&count)?, ran);
        for (at, [one, two, three]) in &held {
            assert_eq!([first(one)?, first(two)?, first(three)?], [*at, 2.0 * at, 3.0 * at], "round {round}");
        }
    }
    assert!(ran > 3.0 && refused > 3, "{ran} ran, {refused} were refused");
    Ok(())
}

/// A replay that ran and failed changes nothing for the next: no command goes on writing what it was launched with.
#[test]
fn a_replay_that_fails_on_the_device_leaves_no_address_behind() -> Result<()> {
    let config = CudaConfig { blocking: Some(true), ..CudaConfig::default() };
    let device = match Device::cuda_with(0, config).map_err(Error::into_kind) {
        Ok(device) => device,
        Err(ErrorKind::CudaUnavailable { reason }) => {
            println!("skipped: {reason}");
            return Ok(());
        }
        Err(error) => return Err(Error::new(error)),
    };
    let table = tensor(&[1.0, 2.0, 3.0], &device)?;
    let [good, bad, index] = [[0i64, 2], [0, 7], [0, 2]].map(|at| Tensor::from_slice(&at, &[2], &device));
    let (good, bad, index) = (good?, bad?, index?);
    let graph = Graph::capture(&device, || table.index_select(0, &index))?;
    let held = graph.replay()?;
    graph.input(&index)?.set(&bad)?;
    assert!(graph.replay().is_err());
    let others: Vec<Tensor> = (0..4).map(|_| tensor(&[0.0, 0.0], &device)).collect::<Result<_>>()?;
    graph.input(&index)?.set(&good)?;
    assert_eq!(values(&graph.replay()?)?, [1.0, 3.0]);
    assert_eq!(values(&held)?, [1.0, 3.0]);
    assert!(others.iter().all(|other| values(other).is_ok_and(|values| values == [0.0, 0.0])));
    Ok(())
}

/// What a step is made of here: a product, random numbers, a state, and a result that is kept.
fn step(x: &Tensor, w: &Tensor, state: &Tensor) -> Result<Tensor> {
    let y = x.matmul(w)?.relu()?;
    let noise = Tensor::rand(&[4, 4], DType::F32, None, x.device())?;
    state.add_(&y.mul(&noise)?)?;
    state.sum_to(&[])
}

/// Runs `attempt` until it goes well, and says what went wrong.
fn persist<R>(what: &str, mut attempt: impl FnMut() -> Result<R>) -> Result<R> {
    loop {
        match attempt() {
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::Driver { .. } | ErrorKind::OutOfMemory { .. } | ErrorKind::Async { .. }
                ) =>
            {
                println!("failed: {what}: {error}")
            }
            done => return done,
        }
    }
}

/// In a process whose driver may fail once.
#[test]
#[ignore = "run by another test"]
fn inner_failures() -> Result<()> {
    let device = Device::cuda(0)?;
    let matrix = |scale: f32| {
        let values: Vec<f32> = (0..16).map(|i| scale * (i as f32 - 7.0)).collect();
        Tensor::from_slice(&values, &[4, 4], &device)
    };
    let (x, w) = (matrix(0.5)?, matrix(0.25)?);
    let zeros = || Tensor::zeros(&[4, 4], DType::F32, &device);
    let [eager, state] = [zeros()?, zeros()?];
    let seeded = |run: &dyn Fn() -> Result<Vec<Tensor>>| with_generator(Generator::new(5), run);
    let expected = seeded(&|| (0..3).map(|_| step(&x, &w, &eager)).collect())?;
    // Commands before a capture have ended, so that no failure of the driver is theirs.
    device.synchronize()?;
    let graph = persist("capture", || Graph::capture(&device, || step(&x, &w, &state)))?;
    let found = seeded(&|| (0..3).map(|_| persist("replay", || graph.replay())).collect())?;
    let bits = |tensors: &[Tensor], state: &Tensor| -> Result<Vec<Vec<f32>>> {
        tensors.iter().chain([state]).map(|tensor| persist("read", || values(tensor))).collect()
    };
    assert_eq!(bits(&found, &state)?, bits(&expected, &eager)?);
    persist("synchronize", || device.synchronize())?;
    drop((graph, found));
    persist("go on", || super::works(&device))?;
    println!("well");
    Ok(())
}

/// Each call of the driver that a capture, its graph, or a replay makes fails once: it is an error that names the call, and the
/// next attempt gives what it would have given.
#[test]
fn any_call_of_the_driver_may_fail_once() {
    if !emulated() {
        println!("skipped: this takes the emulated driver");
        return;
    }
    const INNER: &str = "captured::failures::inner_failures";
    let (output, log) = run_logged(INNER, &[]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("well"), "{output:?}");
    // What may be asked again for: not what gives things back, or asks how far the device is.
    let names = [
        "cuGraphCreate",
        "cuStreamBeginCaptureToGraph",
        "cuStreamGetCaptureInfo_v3",
        "cuStreamEndCapture",
        "cuLaunchKernel",
        "cublasSgemm_v2",
        "cublasLtMatmul",
        "cuGraphInstantiateWithFlags",
        "cuGraphUpload",
        "cuGraphExecKernelNodeSetParams_v2",
        "cuGraphLaunch",
        "cuMemAlloc_v2",
        "cuMemCreate",
        "cuMemMap",
        "cuMemSetAccess",
        "cuMemHostAlloc",
        "cuMemcpyHtoDAsync_v2",
        "cuMemcpyDtoHAsync_v2",
        "cuEventRecord",
        "cuStreamWaitEvent",
    ];
    let mut counts = BTreeMap::<&str, usize>::new();
    let (mut cases, mut begun) = (Vec::new(), false);
    for name in log.lines().map(function) {
        begun |= name == "cuGraphCreate";
        let count = counts.entry(name).or_default();
        *count += 1;
        if begun && names.contains(&name) {
            cases.push((name, *count));
        }
    }
    for part in [
        "cuStreamBeginCaptureToGraph",
        "cuGraphInstantiateWithFlags",
        "cuGraphExecKernelNodeSetParams_v2",
        "cuGraphLaunch",
    ] {
        assert!(cases.iter().any(|(name, _)| *name == part), "{part}: {cases:?}");
    }
    let next = AtomicUsize::new(0);
    let noticed = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some((name, call)) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let output = run_ignored(INNER, &[("CUDA_EMULATOR_FAIL", format!("{name}:{call}"))]);
                    let [said, failed] =
                        [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
                    assert!(
                        output.status.success() && said.contains("well"),
                        "{name}:{call}: {said} {failed}"
                    );
                    noticed.fetch_add(usize::from(said.contains("failed:")), Ordering::Relaxed);
                }
            });
        }
    });
    let noticed = noticed.into_inner();
    println!("{noticed} of {} failures were errors", cases.len());
    assert_eq!(noticed, cases.len());
}
