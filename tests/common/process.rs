//! Tests that need a process of their own, with an environment of its own.

use std::collections::BTreeMap;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Runs an ignored test of this binary in another process.
pub(crate) fn run_ignored(test: &str, environment: &[(&str, String)]) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--ignored", "--nocapture"]);
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    let output = command.output().unwrap();
    // Of the name that was asked for.
    assert!(String::from_utf8_lossy(&output.stdout).contains("running 1 test"), "there is no test {test}");
    output
}

/// As [`run_ignored`], on the emulated driver; with the driver's log.
pub(crate) fn run_logged(test: &str, environment: &[(&str, String)]) -> (Output, String) {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let name = format!("streamgrad-driver-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let log = std::env::temp_dir().join(name);
    let path = log.to_str().unwrap().to_owned();
    let output = run_ignored(test, &[environment, &[("CUDA_EMULATOR_LOG", path)]].concat());
    let text = std::fs::read_to_string(&log).unwrap_or_default();
    let _ = std::fs::remove_file(log);
    (output, text)
}

/// The function that a line of the driver's log is about.
pub(crate) fn function(line: &str) -> &str {
    line.split(' ').next().unwrap_or_default()
}

/// How often a function was called, by the driver's log.
pub(crate) fn calls(log: &str, name: &str) -> usize {
    log.lines().filter(|line| function(line) == name).count()
}

/// Each wait of the driver's log as the emulated driver calls it: `STREAM:K` is the K-th of that stream. Unlike its place
/// among all waits, that does not depend on how the threads of a program take turns.
fn waits(log: &str) -> Vec<String> {
    let mut counts = BTreeMap::<&str, usize>::new();
    let lines = log.lines().filter(|line| function(line) == "cuStreamWaitEvent");
    let streams = lines.map(|line| line.split(' ').find_map(|word| word.strip_prefix("stream=")).unwrap());
    let name = |stream| {
        let count = counts.entry(stream).or_default();
        *count += 1;
        format!("{stream}:{count}")
    };
    streams.map(name).collect()
}

/// What an ignored test says in another process, how many waits it took and its results, and the driver's log.
fn said(test: &str, environment: &[(&str, String)], seed: usize) -> (usize, String, String) {
    let environment = [environment, &[("CUDA_EMULATOR_SEED", seed.to_string())]].concat();
    let (output, log) = run_logged(test, &environment);
    let output = String::from_utf8(output.stdout).unwrap();
    let line = |word: &str| {
        let found = output.lines().find_map(|line| line.split_once(word)).map(|(_, rest)| rest.to_owned());
        found.unwrap_or_else(|| panic!("no line with {word:?} in {output}"))
    };
    (line("waits ").trim().parse().unwrap(), line("results "), log)
}

/// Says what [`lost_waits`] reads.
pub(crate) fn say(waits: u64, results: &[Vec<u32>]) {
    println!("waits {waits}");
    println!("results {results:?}");
}

/// The emulated driver leaves out one wait after another of a program, which is an ignored test that [`say`]s what came
/// out; each time some schedule has to give another result. Gives how many waits there are, and those whose loss changed
/// nothing.
pub(crate) fn lost_waits(test: &str, environment: &[(&str, String)]) -> (usize, Vec<String>) {
    let (count, expected, log) = said(test, environment, 0);
    let waits = waits(&log);
    assert_eq!(waits.len(), count, "the driver's calls are what the device counts");
    assert_eq!(said(test, environment, 5).1, expected, "the schedule does not matter");
    let noticed = |wait: &String| {
        let environment = [environment, &[("CUDA_EMULATOR_DROP_WAIT", wait.clone())]].concat();
        (1..SEEDS).any(|seed| said(test, &environment, seed).1 != expected)
    };
    (count, waits.into_iter().filter(|wait| !noticed(wait)).collect())
}

const SEEDS: usize = 40;
