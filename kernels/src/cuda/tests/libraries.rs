//! What CUDA's libraries answer: refusals, failures, and programs that were kept. Each in a process of its own, on the emulated
//! driver.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;

use device::cuda::Program;
use device::{CudaConfig, DType, Device, Error, ErrorKind, Result, Stream};

use crate::convolutions;
use crate::cuda::libraries::{self, ConvAlgorithm, ConvForm, ConvPass};

static PROGRAM: Program = Program::new("none", "extern \"C\" __global__ void none() {}");

/// A folder that goes with this.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("streamgrad-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap_or_else(|error| unreachable!("{error}"));
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Whether the driver is the emulated one, which fails on demand.
fn emulated() -> bool {
    Device::cuda_with(0, CudaConfig::default())
        .is_ok_and(|device| device.description().to_lowercase().contains("emulat"))
}

fn preload(stream: &Stream) -> Result<()> {
    stream.preload(&[&PROGRAM])?;
    libraries::start(stream)
}

/// What a test below prints where these calls fail, with cuDNN, and the driver's log.
fn run(test: &str, folder: &Folder, fail: &str) -> (String, String) {
    let libraries = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let folders: Vec<_> = std::env::split_paths(&libraries).collect();
    let cudnn = folders.iter().map(|folder| folder.join("cudnn")).filter(|folder| folder.exists());
    let libraries = std::env::join_paths(cudnn.chain(folders.clone())).unwrap_or_default();
    let log = folder.0.join("log");
    let mut command = Command::new(std::env::current_exe().unwrap_or_default());
    command.args(["--exact", &format!("cuda::tests::libraries::{test}"), "--ignored", "--nocapture"]);
    command.env("LD_LIBRARY_PATH", libraries).env("STREAMGRAD_CACHE", folder.0.join("cache"));
    command.env("CUDA_EMULATOR_LOG", &log).env("CUDA_EMULATOR_FAIL", fail);
    let output = command.output().unwrap_or_else(|error| unreachable!("{error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{fail}: {text}{}", String::from_utf8_lossy(&output.stderr));
    let calls = fs::read_to_string(&log).unwrap_or_default();
    let _ = fs::remove_file(&log);
    let printed = text.lines().filter_map(|line| line.split_once("found: ")).map(|(_, found)| found);
    (printed.collect::<Vec<_>>().join(", "), calls)
}

/// Looks for the same algorithm twice, and says what makes convolutions.
#[test]
#[ignore = "run by the test below"]
fn inner_algorithms() -> Result<()> {
    let device = Device::cuda_with(0, CudaConfig::default())?;
    let form = ConvForm {
        pass: ConvPass::Forward,
        bias: false,
        dtype: DType::F32,
        shapes: [[1, 2, 4, 4], [3, 2, 3, 3], [1, 3, 4, 4]],
        strides: [[32, 16, 4, 1], [18, 9, 3, 1], [48, 16, 4, 1]],
        padding: [1, 1],
        stride: [1, 1],
        dilation: [1, 1],
    };
    for _ in 0..2 {
        let found = match ConvAlgorithm::of(&device.default_stream(), "test", &form).map_err(Error::into_kind)
        {
            Ok(Some(_)) => "one".into(),
            Ok(None) => "none".into(),
            Err(ErrorKind::Driver { code, .. }) => code.to_string(),
            Err(error) => error.to_string(),
        };
        println!("found: {found}");
    }
    println!("found: {}", convolutions(&device)?);
    Ok(())
}

#[test]
fn an_algorithm_that_is_refused_is_told_from_a_library_that_fails() {
    if !emulated() {
        println!("skipped: only the emulated driver fails on demand");
        return;
    }
    let folder = Folder::new("algorithms");
    let uses = "cuDNN 9.10.0, and kernels of its own for what that has not";
    let unusable = |name: &str| format!("kernels of its own: cuDNN 9.10.0 cannot be used: {name}");
    let (finalize, get) = ("cudnnBackendFinalize", "cudnnBackendGetAttribute");
    // The sixth that is finalized is the graph, the seventh asks for algorithms, and the eighth is a plan. Attributes are first
    // those algorithms, and then each one's.
    for (call, found) in [
        ("".to_owned(), format!("one, one, {uses}")),
        (format!("{finalize}:6:3000"), format!("none, none, {uses}")),
        (format!("{finalize}:7:3000"), format!("one, one, {uses}")),
        (format!("{get}:3:3000"), format!("one, one, {uses}")),
        (format!("{finalize}:8:3007"), format!("one, one, {uses}")),
        (format!("{finalize}:6:2002"), format!("2002, one, {uses}")),
        (format!("{finalize}:8:4000"), format!("4000, one, {uses}")),
        (format!("{get}:3:4002"), format!("4002, one, {uses}")),
        (
            format!("{finalize}:7:1008"),
            format!(
                "none, none, {}",
                unusable("cudnnBackendFinalize failed with 1008 (CUDNN_STATUS_INTERNAL_ERROR)")
            ),
        ),
        (
            "cudnnCreate:1:1001".into(),
            format!(
                "none, none, {}",
                unusable("cudnnCreate failed with 1001 (CUDNN_STATUS_NOT_INITIALIZED)")
            ),
        ),
    ] {
        assert_eq!(run("inner_algorithms", &folder, &call).0, found, "{call}");
    }
}

#[test]
#[ignore = "run by the test below"]
fn inner_preload() -> Result<()> {
    let device = Device::cuda_with(0, CudaConfig::default())?;
    match preload(&device.default_stream()).map_err(Error::into_kind) {
        Ok(()) => println!("found: loaded"),
        Err(ErrorKind::Driver { code, .. }) => println!("found: {code}"),
        Err(error) => println!("found: {error}"),
    }
    Ok(())
}

#[test]
fn a_kept_program_that_is_refused_is_replaced() {
    if !emulated() {
        println!("skipped: only the emulated driver fails on demand");
        return;
    }
    let folder = Folder::new("kept");
    let loaded = |fail| {
        let (found, log) = run("inner_preload", &folder, fail);
        let compiled = log.lines().filter(|line| line.starts_with("nvrtcCompileProgram ")).count();
        let file = fs::read_dir(folder.0.join("cache")).ok().and_then(|mut files| files.next()?.ok());
        let file = file.and_then(|file| Some(file.metadata().ok()?.ino())).unwrap_or_default();
        let started = log.lines().filter(|line| line.starts_with("cudnnCreate ")).count();
        assert_eq!(started, usize::from(found == "loaded"), "{log}");
        (found, compiled, file)
    };
    let refused = "cuModuleLoadData:1:209";
    // One that is new is not made again.
    let (found, compiled, _) = loaded("cuModuleLoadData:1:209,cuModuleLoadData:2:209");
    assert_eq!((&found[..], compiled), ("209", 1));
    let (found, compiled, first) = loaded("");
    assert_eq!((&found[..], compiled), ("loaded", 0));
    // Memory that is missing says nothing of what was kept.
    let (_, compiled, file) = loaded("cuModuleLoadData:1:2");
    assert_eq!((compiled, file), (0, first));
    let (found, compiled, file) = loaded(refused);
    assert_eq!((&found[..], compiled), ("loaded", 1));
    assert_ne!(file, first);
    assert_eq!(loaded(""), ("loaded".into(), 0, file));
}

/// Makes a device, and what its first product and its first program need.
#[test]
#[ignore = "run by the test below"]
fn inner_codes() -> Result<()> {
    let started = || {
        let device = Device::cuda_with(0, CudaConfig::default())?;
        preload(&device.default_stream())?;
        convolutions(&device).map(|what| println!("found: {what}"))
    };
    if let Err(error) = started() {
        println!("found: {error}");
    }
    Ok(())
}

/// Libraries that are newer than this one have more codes.
#[test]
fn codes_that_are_not_known_are_errors() {
    if !emulated() {
        println!("skipped: only the emulated driver fails on demand");
        return;
    }
    let folder = Folder::new("codes");
    for (call, found) in [
        ("cuStreamCreateWithPriority", "cuStreamCreateWithPriority failed with 4242 (unknown)"),
        ("cuModuleLoadData", "cuModuleLoadData failed with 4242 (unknown)"),
        ("cublasLtCreate", "cublasLtCreate failed with 4242 (unknown)"),
        ("cuInit", "CUDA is not available: the CUDA driver answers: cuInit failed with 4242 (unknown)"),
        ("nvrtcCompileProgram", "kernel none does not compile: unknown code 4242"),
        ("nvrtcGetCUBIN", "kernel none does not compile: nvrtcGetCUBIN: unknown code 4242"),
        ("cudnnCreate", "kernels of its own: cuDNN 9.10.0 cannot be used: cudnnCreate failed with 4242 ("),
    ] {
        let _ = fs::remove_dir_all(folder.0.join("cache"));
        let (printed, _) = run("inner_codes", &folder, &format!("{call}:1:4242"));
        assert!(printed.contains(found), "{call}: {printed}");
    }
}
