//! What becomes of devices as their process ends or is forked. Each in a process of its own.

#![cfg(unix)]

use std::process::Command;
use std::sync::mpsc::channel;

use device::{CpuConfig, CudaConfig, Device, Error, ErrorKind, Result, Schedule, Stream, Team, Thread};

use super::common::{buffer, fresh, set, value};

/// What a test below prints with these variables, and whether it ended well.
fn run(test: &str, variables: &[(&str, &str)]) -> (String, bool) {
    let mut command = Command::new(std::env::current_exe().unwrap_or_default());
    command.args(["--exact", &format!("process::{test}"), "--ignored", "--nocapture"]);
    command.env_remove("STREAMGRAD_THREADS").envs(variables.iter().copied());
    let output = command.output().unwrap_or_else(|error| unreachable!("{error}"));
    let text =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    (text, output.status.success())
}

/// A device that has work which does not end before the test lets it.
fn busy_devices() -> Vec<Device> {
    let cuda = Device::cuda_with(0, CudaConfig::default());
    [fresh(Schedule::Threads), fresh(Schedule::Inline)].into_iter().chain(cuda).collect()
}

fn is_refused<R>(result: Result<R>) -> bool {
    matches!(result.as_ref().map_err(Error::kind), Err(ErrorKind::Forked { .. }))
}

/// What a child that has inherited a device may not do; 0 if it may do nothing of that, or else the number of the line.
fn forked_child(device: Device, side: Stream, team: Team, thread: Thread) -> Result<u32> {
    let event = side.record();
    for (line, refused) in [
        (line!(), is_refused(side.synchronize())),
        (line!(), is_refused(device.synchronize())),
        (line!(), is_refused(event)),
        (line!(), is_refused(device.default_stream().launch_host("none", &[], || ()))),
        (line!(), is_refused(side.launch_host("none", &[], || ()))),
        (line!(), is_refused(device.new_stream())),
        (line!(), is_refused(team.run(&|_| ()))),
        (line!(), is_refused(Thread::new("child", || ()))),
        (line!(), is_refused(Device::cpu_with(CpuConfig::default()).new_stream())),
        (line!(), team.share(1, &|_| ()).is_empty()),
    ] {
        if !refused {
            return Ok(line);
        }
    }
    drop((side, device, team, thread));
    Ok(0)
}

#[test]
#[ignore = "run by the test below"]
fn inner_fork() -> Result<()> {
    for device in busy_devices() {
        let side = device.new_stream()?;
        let (team, (free, held)) = (Team::new("test", 1)?, channel::<()>());
        let thread = Thread::new("test", move || _ = held.recv())?;
        // Dropped first: the thread and the stream wait for them.
        let held_back = (side.hold(), free);
        side.launch_host("wait", &[], || ())?;
        // SAFETY: the child calls this library, which says that it does not wait, and ends without leaving this block.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // Hanging is not an answer.
            // SAFETY: numbers.
            unsafe { libc::alarm(60) };
            let line = forked_child(device, side, team, thread).unwrap_or(line!());
            println!("child: line {line}");
            // SAFETY: as above.
            unsafe { libc::_exit(i32::from(line != 0)) }
        }
        let mut status = 0;
        // SAFETY: the child is this process's; the system writes its status.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "{device:?}: the child's status");
        drop(held_back);
        side.synchronize()?;
    }
    println!("found: all");
    Ok(())
}

#[test]
fn a_forked_process_is_refused_where_it_would_wait() {
    let (text, ended_well) = run("inner_fork", &[]);
    assert!(ended_well && text.contains("found: all"), "{text}");
}

/// Calls a device after the thread's own variables are gone.
extern "C" fn at_exit() {
    let call = || -> Result<&str> {
        for device in [Device::cpu(), fresh(Schedule::Threads)] {
            for stream in [device.default_stream(), device.new_stream()?] {
                let x = buffer(&stream)?;
                stream.scope(|| set(&Stream::current(&device), &x, 7))?;
                if value(&x)? != 7 {
                    return Ok("another value");
                }
            }
        }
        Ok("all")
    };
    println!("at exit: {:?}", call());
}

#[test]
#[ignore = "run by the test below"]
fn inner_exit() -> Result<()> {
    let device = Device::cpu();
    // The thread's own variables are there, so that they go.
    let side = device.new_stream()?;
    side.scope(|| set(&side, &buffer(&side)?, 1))?;
    // SAFETY: the function unwinds into nothing: a panic in it ends the process.
    assert_eq!(unsafe { libc::atexit(at_exit) }, 0);
    std::process::exit(0);
}

#[test]
fn devices_work_in_exit_handlers() {
    let (text, ended_well) = run("inner_exit", &[]);
    assert!(ended_well && text.contains("at exit: Ok(\"all\")"), "{text}");
}

#[test]
#[ignore = "run by the test below"]
fn inner_variables() {
    let device = Device::cpu_with(CpuConfig::default());
    match device.synchronize() {
        Ok(()) => println!("threads: {}", device.threads()),
        Err(error) => println!("{error}"),
    }
    println!("again: {:?}", device.synchronize());
    if let Err(error) = Device::cuda_with(0, CudaConfig::default()) {
        println!("cuda: {error}");
    }
}

#[test]
fn variables_that_make_no_sense_are_refused() {
    for text in ["0", "1025", "-1", "2.5", "many", "99999999999999999999"] {
        let (printed, _) = run("inner_variables", &[("STREAMGRAD_THREADS", text)]);
        let expected =
            format!("environment: STREAMGRAD_THREADS must be a whole number from 1 to 1024, got {text:?}");
        assert!(printed.contains(&expected), "{expected}: {printed}");
        assert!(printed.contains("again: Ok(())"), "{printed}");
    }
    for (text, threads) in [("1", 1), (" 3 ", 3), ("1024", 1024)] {
        let (printed, _) = run("inner_variables", &[("STREAMGRAD_THREADS", text)]);
        assert!(printed.contains(&format!("threads: {threads}\n")), "{text}: {printed}");
    }
    if !super::common::emulated() {
        return;
    }
    for (name, text) in
        [("STREAMGRAD_LAUNCHER", "yes"), ("STREAMGRAD_CUDNN", "off"), ("STREAMGRAD_LAUNCH_BLOCKING", "2")]
    {
        let (printed, _) = run("inner_variables", &[(name, text)]);
        assert!(printed.contains(&format!("cuda: environment: {name} must be")), "{printed}");
    }
}
