//! Tests that need a process of their own, with an environment of its own.

use std::process::{Command, Output};

/// Runs an ignored test of this binary in another process.
pub(crate) fn run_ignored(test: &str, environment: &[(&str, String)]) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--ignored", "--nocapture"]);
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    command.output().unwrap()
}

/// What an ignored test says in another process: how many waits it took, and its results.
fn said(test: &str, environment: &[(&str, String)], seed: usize) -> (usize, String) {
    let environment = [environment, &[("CUDA_EMULATOR_SEED", seed.to_string())]].concat();
    let output = String::from_utf8(run_ignored(test, &environment).stdout).unwrap();
    let line = |word: &str| {
        let found = output.lines().find_map(|line| line.split_once(word)).map(|(_, rest)| rest.to_owned());
        found.unwrap_or_else(|| panic!("no line with {word:?} in {output}"))
    };
    (line("waits ").trim().parse().unwrap(), line("results "))
}

/// Says what [`lost_waits`] reads.
pub(crate) fn say(waits: u64, results: &[Vec<u32>]) {
    println!("waits {waits}");
    println!("results {results:?}");
}

/// The emulated driver leaves out one wait after another of a program, which is an ignored test that [`say`]s what came
/// out; each time some schedule has to give another result. Gives how many waits there are, and those, counted from 1,
/// whose loss changed nothing.
pub(crate) fn lost_waits(test: &str, environment: &[(&str, String)]) -> (usize, Vec<usize>) {
    let (waits, expected) = said(test, environment, 0);
    assert_eq!(said(test, environment, 5).1, expected, "the schedule does not matter");
    let noticed = |wait: usize| {
        let environment = [environment, &[("CUDA_EMULATOR_DROP_WAIT", wait.to_string())]].concat();
        (1..SEEDS).any(|seed| said(test, &environment, seed).1 != expected)
    };
    (waits, (1..=waits).filter(|&wait| !noticed(wait)).collect())
}

const SEEDS: usize = 40;
