//! Tensors and events that go to another process. It needs a CUDA device, real or emulated; without one the tests say so and do
//! nothing.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use common::devices::{cuda, emulated};
use streamgrad::prelude::*;
use streamgrad::{DType, Error, ErrorKind, IpcEvent, Result};

/// Another process, with which this one exchanges lines.
struct Other {
    process: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Other {
    /// Runs an ignored test of this binary.
    fn start(test: &str, environment: &[(&str, &str)]) -> Other {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--ignored", "--nocapture"]);
        command.envs(environment.iter().copied()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let (to, from) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        Other { process, to, from: BufReader::new(from) }
    }

    fn send(&mut self, bytes: &[u8]) {
        writeln!(self.to, "{}", hex(bytes)).unwrap();
    }

    /// The rest of the next line that has the word.
    fn hear(&mut self, word: &str) -> String {
        let mut all = String::new();
        while self.from.read_line(&mut all).unwrap() > 0 {
            if let Some((_, rest)) = all.lines().last().unwrap_or_default().split_once(word) {
                return rest.trim().to_owned();
            }
        }
        panic!("no {word:?} in {all}")
    }

    fn end(mut self) {
        drop(self.to);
        assert!(self.process.wait().unwrap().success());
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What the process that started this one has sent.
fn received() -> Vec<u8> {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let digits = line.trim().as_bytes().chunks(2);
    digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// Has another process read a tensor whose values are still to be written when it opens the handle. `released` says after which
/// word of it they are. Gives what it read.
fn read_elsewhere(device: &Device, environment: &[(&str, &str)], released: &str) -> Result<String> {
    let x = Tensor::zeros(&[2, 3], DType::F32, device)?;
    device.synchronize()?;
    let mut other = Other::start("reads_a_tensor", environment);
    other.hear("ready");
    let stream = device.new_stream()?;
    let hold = stream.hold();
    let handle = stream.scope(|| {
        x.copy_(&Tensor::arange(0.0, 6.0, 1.0, DType::F32, device)?.reshape(&[2, 3])?)?;
        x.transpose(0, 1)?.ipc_handle()
    })?;
    // Written after the handle was made: not in what it stands for.
    stream.scope(|| x.zero_())?;
    other.send(handle.as_bytes());
    let mut said = String::new();
    if released == "values" {
        said = other.hear("values");
    } else {
        other.hear(released);
    }
    drop(hold);
    if said.is_empty() {
        said = other.hear("values");
    }
    other.end();
    assert_eq!(x.to_vec::<f32>()?, [0.0; 6]);
    Ok(said)
}

#[test]
#[ignore = "the other process of the tests below"]
fn reads_a_tensor() -> Result<()> {
    let device = cuda(0).unwrap();
    println!("ready");
    let bytes = received();
    println!("opening");
    let x = Tensor::from_ipc_handle(&bytes, &device)?;
    println!("values {:?} {:?}", x.shape(), x.to_vec::<f32>()?);
    Ok(())
}

const TRANSPOSED: &str = "[3, 2] [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]";

#[test]
fn another_process_gets_the_values_at_the_handle() -> Result<()> {
    let Some(device) = cuda(0) else { return Ok(()) };
    assert_eq!(read_elsewhere(&device, &[], "opening")?, TRANSPOSED);
    Ok(())
}

/// Without the one wait of the other process it reads what is there before.
#[test]
fn without_its_wait_another_process_gets_something_else() -> Result<()> {
    let Some(device) = cuda(0).filter(|_| emulated()) else { return Ok(()) };
    let said = read_elsewhere(&device, &[("CUDA_EMULATOR_DROP_WAIT", "1")], "values")?;
    assert_ne!(said, TRANSPOSED);
    Ok(())
}

#[test]
#[ignore = "the other process of the test below"]
fn waits_for_an_event() -> Result<()> {
    let device = cuda(0).unwrap();
    println!("ready");
    let event = IpcEvent::from_ipc_handle(&received(), &device)?;
    println!("complete {}", event.is_complete()?);
    let stream = device.new_stream()?;
    stream.wait_ipc(&event)?;
    println!("idle {}", stream.is_idle()?);
    stream.synchronize()?;
    println!("complete {}", event.is_complete()?);
    event.synchronize()
}

#[test]
fn another_process_waits_for_an_event() -> Result<()> {
    let Some(device) = cuda(0) else { return Ok(()) };
    let mut other = Other::start("waits_for_an_event", &[]);
    other.hear("ready");
    let stream = device.new_stream()?;
    let hold = stream.hold();
    let handle = stream.record()?.ipc_handle()?;
    other.send(handle.as_bytes());
    assert_eq!(other.hear("complete"), "false");
    assert_eq!(other.hear("idle"), "false");
    drop(hold);
    assert_eq!(other.hear("complete"), "true");
    other.end();
    Ok(())
}

#[test]
fn what_cannot_be_shared_is_refused() -> Result<()> {
    let cpu = Device::cpu();
    let x = Tensor::zeros(&[2], DType::F32, &cpu)?;
    let refused = |outcome: Result<()>, argument: &str| match outcome.map_err(Error::into_kind) {
        Err(ErrorKind::InvalidArgument { argument: named, .. }) => {
            assert_eq!(named, argument)
        }
        other => panic!("{other:?}"),
    };
    refused(x.ipc_handle().map(drop), "device");
    refused(cpu.default_stream().record()?.ipc_handle().map(drop), "self");
    refused(IpcEvent::from_ipc_handle(&[], &cpu).map(drop), "device");

    let Some(device) = cuda(0) else { return Ok(()) };
    let x = x.to_device(&device)?;
    let handle = x.ipc_handle()?;
    let bytes = handle.as_bytes();
    let event = device.default_stream().record()?.ipc_handle()?;
    refused(Tensor::from_ipc_handle(bytes, &device).map(drop), "handle"); // this very process's
    refused(Tensor::from_ipc_handle(&bytes[..bytes.len() - 1], &device).map(drop), "handle");
    refused(Tensor::from_ipc_handle(event.as_bytes(), &device).map(drop), "handle");
    refused(IpcEvent::from_ipc_handle(bytes, &device).map(drop), "handle");
    refused(IpcEvent::from_ipc_handle(b"strgipc1", &device).map(drop), "handle");
    Ok(())
}
