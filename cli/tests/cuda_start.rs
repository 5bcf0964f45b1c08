//! What a CUDA device needs before it runs: libraries, a driver, a device, and compiled kernels on disk. Without the emulated
//! driver the tests say so and do nothing.

#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../../tests/common/mod.rs"]
mod common;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::devices::emulated;
use common::folder::Folder;
use common::process::{calls, run_ignored, run_logged, say};
use streamgrad::prelude::*;
use streamgrad::{CudaConfig, RandomKey, Result};

const DRIVER: &str = "libcuda.so.1";
const COMPILER: &str = "libnvrtc.so.13";
const PRODUCTS: &str = "libcublasLt.so.13";
const ALL: &[&str] = &[DRIVER, COMPILER, PRODUCTS];

/// Where the emulated driver's libraries are, if it is in use.
fn emulator() -> Option<PathBuf> {
    if !emulated() {
        println!("skipped: this takes the emulated driver");
        return None;
    }
    let path = std::env::var_os("LD_LIBRARY_PATH").unwrap();
    std::env::split_paths(&path).find(|folder| ALL.iter().all(|library| folder.join(library).exists()))
}

/// A machine with some of CUDA's libraries, and a driver that an environment describes.
struct Machine {
    libraries: Folder,
    environment: Vec<(&'static str, &'static str)>,
}

impl Machine {
    fn new(
        name: &str,
        emulator: &Path,
        libraries: &[&str],
        environment: &[(&'static str, &'static str)],
    ) -> Machine {
        let folder = Folder::new(name);
        for library in libraries {
            symlink(emulator.join(library), folder.0.join(library)).unwrap();
        }
        Machine { libraries: folder, environment: environment.to_vec() }
    }

    /// Adds a library with that name and nothing in it.
    fn make_impostor(&self, library: &str) {
        let made = Command::new("g++")
            .args(["-shared", "-fPIC", "-x", "c++", "/dev/null", "-o"])
            .arg(self.libraries.0.join(library))
            .status();
        assert!(made.unwrap().success());
    }

    /// What the program says there; it may fail, but not panic.
    fn program(&self, args: &[&str]) -> (bool, String) {
        let output: Output = Command::new(env!("CARGO_BIN_EXE_streamgrad"))
            .args(args)
            .env("LD_LIBRARY_PATH", &self.libraries.0)
            .envs(self.environment.iter().copied())
            .output()
            .unwrap();
        let [printed, message] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
        assert!(!message.contains("panicked"), "{args:?}: {message}");
        assert!(message.lines().count() <= 1, "{args:?}: {message}");
        (output.status.success(), format!("{printed}{message}"))
    }

    /// That there is no CUDA, everybody says why, and the CPU works.
    fn has_no_cuda(&self, reason: &str) {
        let (went_well, printed) = self.program(&["info"]);
        let row = |name: &str| printed.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        assert!(went_well && row("device cuda:0").contains(reason), "{reason}: {printed}");
        assert!(row("device auto").ends_with(" cpu"), "{reason}: {printed}");
        self.refuses("cuda:0", reason);
        let (went_well, printed) = self.program(&["gradcheck", "add", "--device", "auto"]);
        assert!(went_well && printed.contains("1 of 1 ops pass"), "{reason}: {printed}");
    }

    fn refuses(&self, device: &str, reason: &str) {
        let (went_well, message) = self.program(&["gradcheck", "add", "--device", device]);
        assert!(!went_well && message.contains("CUDA is not available"), "{device}: {message}");
        assert!(message.contains(reason), "{device}: {reason}: {message}");
    }
}

#[test]
fn a_library_that_is_missing_is_named() {
    let Some(emulator) = emulator() else { return };
    for (name, libraries, reason) in [
        ("nothing", &[][..], "no CUDA driver: the library libcuda was not found"),
        ("no-driver", &[COMPILER, PRODUCTS], "no CUDA driver: the library libcuda was not found"),
        ("no-compiler", &[DRIVER, PRODUCTS], "the library libnvrtc, was not found"),
        ("no-products", &[DRIVER, COMPILER], "the library libcublasLt was not found"),
    ] {
        Machine::new(name, &emulator, libraries, &[]).has_no_cuda(reason);
    }
    // Something else with the driver's name.
    let impostor = Machine::new("impostor", &emulator, &[COMPILER, PRODUCTS], &[]);
    impostor.make_impostor(DRIVER);
    impostor.has_no_cuda("it has no cuDriverGetVersion");
}

#[test]
fn a_library_that_lacks_a_function_is_named_with_it() {
    let Some(emulator) = emulator() else { return };
    for (library, function) in [(COMPILER, "nvrtcCompileProgram"), (PRODUCTS, "cublasLtCreate")] {
        let others: Vec<&str> = ALL.iter().copied().filter(|&other| other != library).collect();
        let old = Machine::new(library, &emulator, &others, &[]);
        old.make_impostor(library);
        old.has_no_cuda(&format!("it has no {function}"));
    }
}

#[test]
fn a_driver_that_will_not_do_says_why() {
    let Some(emulator) = emulator() else { return };
    let old = Machine::new("old", &emulator, ALL, &[("CUDA_EMULATOR_VERSION", "12040")]);
    old.has_no_cuda("the CUDA driver is too old: it is of CUDA 12.4, and 12.8 is needed");
    let empty = Machine::new("empty", &emulator, ALL, &[("CUDA_EMULATOR_DEVICES", "0")]);
    empty.has_no_cuda("CUDA_ERROR_NO_DEVICE");
    let broken = Machine::new("broken", &emulator, ALL, &[("CUDA_EMULATOR_FAIL", "cuInit:1:999")]);
    let (went_well, printed) = broken.program(&["info"]);
    assert!(went_well && printed.contains("the CUDA driver answers: cuInit"), "{printed}");
    // The oldest that will do, and a device that is not there.
    let oldest = Machine::new("oldest", &emulator, ALL, &[("CUDA_EMULATOR_VERSION", "12080")]);
    let (went_well, printed) = oldest.program(&["info"]);
    assert!(went_well && printed.contains("Emulated CUDA device 0"), "{printed}");
    for ordinal in ["cuda:1", "cuda:99", "cuda:18446744073709551615"] {
        let number = ordinal.trim_start_matches("cuda:");
        oldest.refuses(ordinal, &format!("there is no device {number}: the driver finds 1"));
    }
}

/// Runs a kernel, whose program is read from the cache or compiled.
#[test]
#[ignore = "run by the tests below"]
fn inner_kernels() -> Result<()> {
    let device = Device::cuda_with(0, CudaConfig::default())?;
    let x = Tensor::uniform(&[65], 0.0, 1.0, DType::F32, Some(RandomKey { seed: 1, op: 2 }), &device)?;
    say(0, &[x.to_vec::<f32>()?.into_iter().map(f32::to_bits).collect()]);
    Ok(())
}

/// What the kernel gave, and how many programs were compiled for it.
fn kernels(cache: &Path) -> (String, usize) {
    let environment = [("STREAMGRAD_CACHE", cache.to_str().unwrap().to_owned())];
    let (output, log) = run_logged("inner_kernels", &environment);
    (results(&output), calls(&log, "nvrtcCompileProgram"))
}

fn results(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    text.lines().find(|line| line.starts_with("results ")).unwrap().to_owned()
}

fn files(cache: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(cache).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn processes_that_compile_at_once_leave_whole_files() {
    if emulator().is_none() {
        return;
    }
    let cache = Folder::new("cache-of-several");
    let environment = [("STREAMGRAD_CACHE", cache.0.to_str().unwrap().to_owned())];
    let outputs: Vec<Output> = std::thread::scope(|scope| {
        let processes: Vec<_> =
            (0..4).map(|_| scope.spawn(|| run_ignored("inner_kernels", &environment))).collect();
        processes.into_iter().map(|process| process.join().unwrap()).collect()
    });
    let (expected, compiled) = kernels(&cache.0);
    assert_eq!(compiled, 0, "every program is there");
    assert!(outputs.iter().all(|output| results(output) == expected));
    let files = files(&cache.0);
    assert!(!files.is_empty() && files.iter().all(|file| file.extension().is_some_and(|kind| kind == "bin")));
}

type Damage = fn(&[u8]) -> Vec<u8>;

#[test]
fn a_damaged_file_is_compiled_again_and_mended() {
    if emulator().is_none() {
        return;
    }
    let cache = Folder::new("cache-of-one");
    let (expected, compiled) = kernels(&cache.0);
    let kept = files(&cache.0);
    assert!(compiled > 0 && kept.len() == compiled, "{compiled} programs, {kept:?}");
    let whole: Vec<Vec<u8>> = kept.iter().map(|file| fs::read(file).unwrap()).collect();
    // Every cut is tried where files are read and written.
    let damages: [(&str, Damage); 3] = [
        ("half", |bytes| bytes[..bytes.len() / 2].to_vec()),
        ("garbled at the end", |bytes| {
            let mut bytes = bytes.to_vec();
            *bytes.last_mut().unwrap() ^= 1;
            bytes
        }),
        ("noise", |bytes| (0..bytes.len()).map(|at| (at * 167 + 13) as u8).collect()),
    ];
    for (name, damage) in damages {
        for (file, whole) in kept.iter().zip(&whole) {
            fs::write(file, damage(whole)).unwrap();
        }
        assert_eq!(kernels(&cache.0), (expected.clone(), kept.len()), "{name}");
        assert_eq!(kernels(&cache.0), (expected.clone(), 0), "{name}: mended");
    }
    // A folder that cannot be is no error either.
    let file = cache.0.join("file");
    fs::write(&file, "").unwrap();
    assert_eq!(kernels(&file), (expected, kept.len()));
}
