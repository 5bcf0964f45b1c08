//! Products on a CUDA device: an algorithm for each form, chosen once and the same everywhere. Without a device the tests say so
//! and do nothing.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::devices::{cuda, each_device, emulated};
use common::process::{calls, function, run_ignored, run_logged, say};
use streamgrad::device::{CommandRecord, KernelRecord};
use streamgrad::prelude::*;
use streamgrad::{ConvOptions, Graph, RandomKey, Result};

/// Operands `[rows, width]`, `[width, columns]` and `[columns]`.
fn operands([rows, width, columns]: [usize; 3], dtype: DType, device: &Device) -> Result<[Tensor; 3]> {
    let tensor = |op: u64, shape: &[usize]| {
        Tensor::randn(shape, DType::F32, RandomKey { seed: 1, op }, device)?.to_dtype(dtype)
    };
    Ok([tensor(1, &[rows, width])?, tensor(2, &[width, columns])?, tensor(3, &[columns])?])
}

/// Their elements, which F64 holds all of.
fn values(tensors: &[Tensor]) -> Result<Vec<Vec<f64>>> {
    tensors.iter().map(|tensor| tensor.to_dtype(DType::F64)?.to_vec()).collect()
}

/// Long sums and others, with a bias and without, some of which a graph runs at once.
fn products([x, w, bias]: &[Tensor; 3]) -> Result<Vec<Tensor>> {
    let y = x.linear(&w.t()?, Some(bias))?;
    Ok(vec![x.matmul(w)?, x.square()?.matmul(w)?, y.matmul(&w.t()?)?, x.t()?.matmul(&y)?, y])
}

const FLOATS: [DType; 4] = [DType::F32, DType::F64, DType::BF16, DType::F16];
const SIZES: [[usize; 3]; 3] = [[33, 65, 17], [6, 700, 5], [256, 128, 64]];

#[test]
fn eager_and_captured_products_have_the_same_bits() {
    each_device(&[], |device| {
        for (sizes, dtype) in SIZES.into_iter().flat_map(|sizes| FLOATS.map(|dtype| (sizes, dtype))) {
            let operands = operands(sizes, dtype, device)?;
            let expected = values(&products(&operands)?)?;
            let other = device.new_stream()?;
            assert_eq!(values(&other.scope(|| products(&operands))?)?, expected, "{sizes:?} {dtype}");
            let graph = Graph::capture(device, || products(&operands))?;
            for _ in 0..2 {
                assert_eq!(values(&graph.replay()?)?, expected, "{sizes:?} {dtype}");
            }
        }
        Ok(())
    });
}

#[test]
#[ignore = "run by the tests below"]
fn inner_forms() -> Result<()> {
    let device = cuda(0).unwrap();
    let operands = operands([6, 64, 5], DType::F32, &device)?;
    let mut results = Vec::new();
    for _ in 0..3 {
        results.extend(products(&operands)?);
    }
    let other = device.new_stream()?;
    results.extend(other.scope(|| products(&operands))?);
    let graph = Graph::capture(&device, || products(&operands))?;
    assert!(graph.report().planned_bytes < 1 << 16, "{}", graph.report());
    results.extend(graph.replay()?);
    say(0, &results.iter().map(common::bits).collect::<Result<Vec<_>>>()?);
    Ok(())
}

/// The log of `inner_forms`, and its results, under a schedule and with calls that fail.
fn forms(seed: usize, fail: &str) -> (String, Vec<String>) {
    let environment = [("CUDA_EMULATOR_SEED", seed.to_string()), ("CUDA_EMULATOR_FAIL", fail.to_owned())];
    let (output, log) = run_logged("inner_forms", &environment);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{fail}: {text}");
    let results = text.lines().find_map(|line| line.strip_prefix("results ")).unwrap();
    (log, results.split("], [").map(|result| result.trim_matches(['[', ']']).to_owned()).collect())
}

/// How often kernels with such a name were launched, or captured.
fn kernels(log: &str, name: &str) -> usize {
    let name = format!("kernel={name}");
    log.lines().filter(|line| function(line).starts_with("cuLaunchKernel") && line.contains(&name)).count()
}

/// Of `products`; a captured step copies each out of its own memory.
const RESULTS: usize = 5;
const HEURISTIC: &str = "cublasLtMatmulAlgoGetHeuristic";
/// Of `products`: two of them have the same.
const FORMS: usize = 4;
/// How often a form is captured.
const CAPTURES: usize = 3;

#[test]
fn an_algorithm_is_chosen_once_and_a_bias_is_added_in_the_product() {
    if !emulated() {
        println!("skipped: a real driver has no log");
        return;
    }
    // A workspace that two products share shows under some of these.
    for seed in 0..4 {
        let (log, results) = forms(seed, "");
        assert_eq!(calls(&log, HEURISTIC), FORMS);
        // The library is asked what it launches, and nothing after that.
        assert_eq!(calls(&log, "cublasLtMatmul"), CAPTURES * FORMS);
        assert_eq!(log.lines().filter(|line| line.contains("epilogue=4")).count(), CAPTURES);
        // One of the forms is made in parts.
        assert_eq!(kernels(&log, "cublasLtMatmul"), 5 * (RESULTS + 3));
        assert_eq!(kernels(&log, "copy_"), RESULTS);
        assert_eq!(kernels(&log, "matmul_"), 0);
        for round in results.chunks(RESULTS) {
            assert_eq!(round, &results[..RESULTS]);
        }
    }
}

/// Neither for any form, nor for those with a bias.
#[test]
fn products_without_an_algorithm_are_made_by_kernels() {
    if !emulated() {
        println!("skipped: a real driver refuses nothing on demand");
        return;
    }
    let (_, expected) = forms(0, "");
    let close = |results: &[String]| {
        let value = |bits: &str| f64::from(f32::from_bits(bits.trim().parse().unwrap()));
        let elements =
            |all: &[String]| all.iter().flat_map(|one| one.split(',').map(value)).collect::<Vec<_>>();
        elements(results).iter().zip(elements(&expected)).all(|(a, b)| (a - b).abs() < 1e-3 * (1.0 + b.abs()))
    };
    // A linear map without its bias has the form of the plain product.
    let all: Vec<String> = (1..=4).map(|call| format!("{HEURISTIC}:{call}")).collect();
    let (log, results) = forms(0, &all.join(","));
    assert_eq!((calls(&log, HEURISTIC), calls(&log, "cublasLtMatmul")), (FORMS, 0));
    assert_eq!(kernels(&log, "matmul_"), 5 * RESULTS);
    assert!(close(&results) && results.len() == expected.len());
    let (log, results) = forms(0, &format!("{HEURISTIC}:1"));
    assert_eq!((calls(&log, HEURISTIC), calls(&log, "cublasLtMatmul")), (FORMS, CAPTURES * FORMS));
    assert_eq!(kernels(&log, "copy_"), RESULTS + 5);
    assert!(close(&results) && results.len() == expected.len());
}

#[test]
#[ignore = "run by the test below"]
fn inner_many_forms() -> Result<()> {
    let device = cuda(0).unwrap();
    let row = Tensor::ones(&[1, 3000], DType::F32, &device)?;
    for width in 1..=3000 {
        let x = row.narrow(1, 0, width)?;
        x.matmul(&x.t()?)?;
    }
    device.synchronize()
}

#[test]
fn algorithms_of_shapes_that_keep_changing_are_forgotten() {
    if !emulated() {
        println!("skipped: a real driver has no log");
        return;
    }
    let (output, log) = run_logged("inner_many_forms", &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert_eq!(calls(&log, HEURISTIC), 3000);
    let (mut live, mut most) = (0, 0);
    for line in log.lines() {
        live += i64::from(line.starts_with("cublasLtMatmulDescCreate "));
        live -= i64::from(line.starts_with("cublasLtMatmulDescDestroy "));
        most = most.max(live);
    }
    assert!(live == 0 && most < 2500, "{most} at once, {live} left");
}

/// The commands of `work` while it is recorded, and its results.
fn recorded(
    device: &Device,
    work: impl FnOnce() -> Result<Vec<Tensor>>,
) -> Result<(Vec<CommandRecord>, Vec<Vec<f64>>)> {
    device.start_recording();
    let results = work();
    let recording = device.stop_recording();
    Ok((recording.commands, values(&results?)?))
}

/// The kernels of an op's commands, all of which are known.
fn kernels_of(commands: &[CommandRecord], op: &str) -> Vec<Vec<KernelRecord>> {
    let commands: Vec<_> = commands.iter().filter(|command| command.op == op).collect();
    for command in &commands {
        assert_eq!(command.library_calls, 0, "{op}");
        let is_known = |kernel: &KernelRecord| {
            !kernel.name.is_empty() && kernel.block_count() > 0 && kernel.blocks_per_multiprocessor > 0
        };
        assert!(!command.kernels.is_empty() && command.kernels.iter().all(is_known), "{:?}", command.kernels);
    }
    // How long they take differs.
    let untimed = |kernel: &KernelRecord| KernelRecord { duration_ns: None, ..kernel.clone() };
    commands.into_iter().map(|command| command.kernels.iter().map(untimed).collect()).collect()
}

#[test]
fn a_recording_knows_the_kernels_of_products() -> Result<()> {
    let Some(device) = cuda(0) else { return Ok(()) };
    for (sizes, dtype) in SIZES.into_iter().flat_map(|sizes| FLOATS.map(|dtype| (sizes, dtype))) {
        let operands = operands(sizes, dtype, &device)?;
        let expected = values(&products(&operands)?)?;
        let mut found = Vec::new();
        for _ in 0..2 {
            let (commands, results) = recorded(&device, || products(&operands))?;
            assert_eq!(results, expected, "{sizes:?} {dtype}");
            found.push(["matmul", "linear"].map(|op| kernels_of(&commands, op)));
        }
        assert_eq!(found[0], found[1], "{sizes:?} {dtype}");
        assert_eq!(found[0].each_ref().map(Vec::len), [RESULTS - 1, 1]);
        if emulated() {
            // In parts where the sum is the longest of the three sizes.
            let in_parts = |[m, n, k]: [usize; 3]| if k > m.max(n) { 2 } else { 1 };
            let [rows, width, columns] = sizes;
            let forward = in_parts([rows, columns, width]);
            let backward = [[rows, width, columns], [width, columns, rows]].map(in_parts);
            let by_library = |kernels: &Vec<KernelRecord>| {
                kernels.iter().filter(|kernel| &*kernel.name == "cublasLtMatmul").count()
            };
            let counts: Vec<usize> = found[0].iter().flatten().map(by_library).collect();
            assert_eq!(counts, [forward, forward, backward[0], backward[1], forward], "{sizes:?} {dtype}");
        }
    }
    Ok(())
}

#[test]
fn a_recording_knows_the_kernels_of_convolutions() -> Result<()> {
    let Some(device) = cuda(0) else { return Ok(()) };
    if !streamgrad::kernels::convolutions(&device)?.starts_with("cuDNN") {
        println!("skipped: there is no cuDNN");
        return Ok(());
    }
    device.set_tf32(true);
    let [x, w, bias] = [&[6, 16, 6, 7][..], &[8, 16, 3, 3], &[8]]
        .map(|shape| Tensor::randn(shape, DType::F32, RandomKey { seed: 3, op: 0 }, &device));
    let (x, w, bias) = (x?, w?, bias?);
    let work = || Ok(vec![x.conv2d(&w, Some(&bias), &ConvOptions::default())?]);
    let expected = values(&work()?)?;
    let [first, second] = [(); 2].map(|()| recorded(&device, work));
    let ((first, results), (second, again)) = (first?, second?);
    assert!(results == expected && again == expected);
    let found = kernels_of(&first, "conv2d");
    assert_eq!(found, kernels_of(&second, "conv2d"));
    assert!(!emulated() || found.iter().flatten().any(|kernel| &*kernel.name == "cudnnBackendExecute"));
    Ok(())
}

#[test]
#[ignore = "run by the test below"]
fn inner_recorded_products() -> Result<()> {
    let device = cuda(0).unwrap();
    let [x, w, bias] = operands([6, 64, 5], DType::F32, &device)?;
    let linear = || Ok(vec![x.linear(&w.t()?, Some(&bias))?]);
    for _ in 0..3 {
        let (commands, results) = recorded(&device, linear)?;
        let product = commands.iter().find(|command| command.op == "linear").unwrap();
        println!("known {} unknown {}", product.kernels.len(), product.library_calls);
        println!("results {results:?}");
    }
    Ok(())
}

#[test]
fn kernels_are_asked_for_once() {
    if !emulated() {
        println!("skipped: a real driver has no log");
        return;
    }
    let (output, log) = run_logged("inner_recorded_products", &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let count = |name| calls(&log, name);
    assert_eq!((count("cuStreamBeginCapture_v2"), count("cublasLtMatmul")), (CAPTURES, CAPTURES));
    assert_eq!(kernels(&log, "cublasLtMatmul"), 3 * 2);
}

/// Whatever fails while kernels are asked for, the product is not concerned: the library makes it, and the next one's are asked
/// for again.
#[test]
fn kernels_that_the_driver_does_not_tell_are_asked_for_again() {
    if !emulated() {
        println!("skipped: a real driver fails at nothing on demand");
        return;
    }
    let lines = |fail: &str, begin: &str| -> Vec<String> {
        let output = run_ignored("inner_recorded_products", &[("CUDA_EMULATOR_FAIL", fail.to_owned())]);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{fail}: {text}");
        text.lines().filter(|line| line.starts_with(begin)).map(str::to_owned).collect()
    };
    let (known, unknown) = ("known 2 unknown 0", "known 0 unknown 1");
    assert_eq!(lines("", "known"), [known; 3]);
    let expected = lines("", "results");
    let steps = [
        "cuStreamBeginCapture_v2:1",
        "cublasLtMatmul:1",
        "cuStreamEndCapture:1",
        "cuGraphGetNodes:2",
        "cuGraphGetEdges_v2:2",
        "cuGraphKernelNodeGetParams_v2:2",
        "cuGraphKernelNodeGetAttribute:3",
        "cuFuncGetName:1",
    ];
    for fail in steps {
        assert_eq!(lines(fail, "known"), [unknown, known, known], "{fail}");
        assert_eq!(lines(fail, "results"), expected, "{fail}");
    }
    // They are known, but not what is said of addresses: the library goes on launching them.
    for fail in ["cublasLtMatmul:2", "cuStreamEndCapture:3", "cuGraphGetEdges_v2:5", "cuFuncGetParamInfo:30"]
    {
        assert_eq!(lines(fail, "known"), [known; 3], "{fail}");
        assert_eq!(lines(fail, "results"), expected, "{fail}");
    }
}
