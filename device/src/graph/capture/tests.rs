//! How much memory of the host a captured step may take.

use std::process::Command as Process;

use super::*;
use crate::ErrorKind;
use crate::graph::groups::tests::Nothing;
use crate::graph::plan::{GraphOptions, Order};

/// Captures and plans a chain of commands; gives the bytes of its memory.
fn planned(device: &Device, commands: usize) -> Result<usize> {
    let capture = Capture::new(device)?;
    capture.scope(|| {
        let mut last = capture.buffer(256)?;
        for _ in 0..commands {
            let next = capture.buffer(256)?;
            let uses = [Use { buffer: &last, write: false }, Use { buffer: &next, write: true }];
            device.default_stream().launch("nothing", &uses, Nothing)?;
            last = next;
        }
        Ok(())
    })?;
    let (plan, _) = capture.finish()?;
    let groups = plan.groups(Order::Data)?;
    assert!(commands < 2 || groups.may_join(0, 1));
    drop(groups);
    Ok(plan.layout(GraphOptions::default()).bytes)
}

/// A step is planned in memory that is linear in its commands, and too large a one is an error.
#[test]
#[cfg(target_os = "linux")]
fn a_step_takes_little_memory_of_the_host() {
    let mut limited = Process::new("sh");
    limited.args(["-c", "ulimit -v 600000; exec \"$@\"", "sh"]).arg(std::env::current_exe().unwrap());
    let test = "graph::capture::tests::within_little_memory";
    let output = limited.args(["--exact", test, "--ignored"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
#[ignore = "a process of its own, with a limit"]
fn within_little_memory() {
    let device = Device::cpu();
    let mut commands = 1000;
    let refused = loop {
        match planned(&device, commands) {
            Ok(bytes) => assert_eq!(bytes, 512),
            Err(error) => break error,
        }
        commands *= 2;
    };
    assert!(matches!(refused.kind(), ErrorKind::OutOfMemory { .. }), "{refused}");
    assert!(commands > 100_000, "{commands}");
    assert_eq!(planned(&device, 1000).unwrap(), 512);
}
