//! Ranges as a tool of NVTX hears them. Each program is a process of its own, since a tool is looked for once.

use std::fs;
use std::io::{self, Write};
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use device::{Result, Schedule};

use crate::common::{Folder, fail, fresh};

const TOOL: &str = include_str!("nvtx.c");
const LONG: &str = "a name of more bytes than most, among which are some that are not ASCII: Größe";

/// Makes a library of this program in C. `None` if there is no compiler.
fn compile(source: &str, library: PathBuf) -> Option<PathBuf> {
    let mut command = Command::new("cc");
    command.args(["-shared", "-fPIC", "-x", "c", "-", "-o"]).arg(&library).stdin(Stdio::piped());
    let mut compiler = match command.spawn() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            println!("skipped: there is no cc");
            return None;
        }
        started => started.unwrap_or_else(|error| unreachable!("{error}")),
    };
    let mut stdin = compiler.stdin.take()?;
    stdin.write_all(source.as_bytes()).unwrap_or_else(|error| unreachable!("{error}"));
    drop(stdin);
    assert!(compiler.wait().is_ok_and(|status| status.success()), "cc");
    Some(library)
}

/// Runs the program below with this tool. Gives what it says, and what the tool was told.
fn run(tool: Option<&Path>, odd: &str, folder: &Folder) -> (String, String) {
    let log = folder.0.join("log");
    let mut command = Command::new(std::env::current_exe().unwrap_or_default());
    command.args(["--exact", "nvtx::inner_ranges", "--ignored", "--nocapture"]);
    command.env_remove("NVTX_INJECTION64_PATH").envs(tool.map(|tool| ("NVTX_INJECTION64_PATH", tool)));
    command.env("NVTX_TEST_LOG", &log).env("NVTX_TEST_TOOL", odd);
    let output = command.output().unwrap_or_else(|error| unreachable!("{error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{tool:?}, {odd}: {text}{}", String::from_utf8_lossy(&output.stderr));
    let told = fs::read_to_string(&log).unwrap_or_default();
    let _ = fs::remove_file(&log);
    let found = text.lines().find_map(|line| line.split_once("found: "));
    (found.map_or_else(String::new, |(_, found)| found.to_owned()), told)
}

/// Ranges within each other, on two threads, with panics, and with a recording that begins in one and ends in another.
#[test]
#[ignore = "run by the tests below"]
fn inner_ranges() -> Result<()> {
    let dev = fresh(Schedule::Inline);
    dev.range("before", || ());
    let recording = dev.range("outer", || {
        dev.start_recording();
        dev.range("in\0ner", || dev.mark_step());
        let panicked = std::thread::scope(|scope| {
            scope.spawn(|| dev.range("elsewhere", || dev.range("panics", || fail("on purpose")))).join()
        });
        assert!(panicked.is_err());
        let panics = AssertUnwindSafe(|| dev.range("panics", || fail("on purpose")));
        let panicked = std::panic::catch_unwind(panics);
        assert!(panicked.is_err());
        dev.range(LONG, || dev.stop_recording())
    });
    let ranges = recording.ranges.iter().map(|range| &*range.name).collect::<Vec<_>>();
    println!("found: {} step, {ranges:?}", recording.steps.len());
    Ok(())
}

/// What the program records, whatever the tool.
fn recorded() -> String {
    format!("1 step, {:?}", ["in\0ner", "elsewhere", "panics", "panics", LONG])
}

#[test]
fn a_tool_is_told_of_ranges_and_steps() {
    let folder = Folder::new("nvtx-tool");
    let Some(tool) = compile(TOOL, folder.0.join("tool.so")) else { return };
    let (found, told) = run(Some(&tool), "", &folder);
    assert_eq!(found, recorded());
    let last = format!("0 push {LONG}");
    let expected = [
        "0 push before",
        "0 pop",
        "0 push outer",
        "0 push in ner",
        "0 mark step",
        "0 pop",
        "1 push elsewhere",
        "1 push panics",
        "1 pop",
        "1 pop",
        "0 push panics",
        "0 pop",
        &last,
        "0 pop",
        "0 pop",
    ];
    assert_eq!(told.lines().collect::<Vec<_>>(), expected);
    // One that has no function for ranges is told of the rest.
    assert_eq!(run(Some(&tool), "marks", &folder), (recorded(), "0 mark step\n".to_owned()));
}

#[test]
fn without_a_tool_that_works_ranges_are_what_they_were() {
    let folder = Folder::new("nvtx-none");
    let untold = (recorded(), String::new());
    assert_eq!(run(None, "", &folder), untold);
    assert_eq!(run(Some(Path::new("")), "", &folder), untold);
    assert_eq!(run(Some(&folder.0.join("missing.so")), "", &folder), untold);
    assert_eq!(run(Some(&folder.0), "", &folder), untold);
    let Some(tool) = compile(TOOL, folder.0.join("tool.so")) else { return };
    assert_eq!(run(Some(&tool), "fails", &folder), untold);
    let Some(other) = compile("int other;", folder.0.join("other.so")) else { return };
    assert_eq!(run(Some(&other), "", &folder), untold);
}
