//! What `--cfg streamgrad_redzones` is for: AddressSanitizer sees a command that leaves its buffer, or comes too late for it.
#![cfg(streamgrad_redzones)]
#![allow(clippy::unwrap_used)]

use std::process::Command;

use allocator::allocate;
use device::{Buffer, Device, Use};

/// Reads a byte at some distance from a buffer's start.
fn touch(buffer: &Buffer, at: isize) {
    let place = buffer.ptr().wrapping_offset(at).addr();
    let stream = buffer.device().default_stream();
    let read = move || {
        // SAFETY: the sanitizer ends the process here if the byte is nobody's; an arena has memory there.
        let byte = unsafe { std::ptr::with_exposed_provenance::<u8>(place).read_volatile() };
        println!("touched {byte}");
    };
    buffer.ptr().expose_provenance();
    stream.launch_host("touch", &[Use::read(buffer)], read).unwrap();
    stream.synchronize().unwrap();
}

/// What another process does, by the number in `CASE`.
#[test]
#[ignore = "run by the test below"]
fn inner_touch() {
    let device = Device::cpu_with(Default::default());
    let stream = device.default_stream();
    let buffers: Vec<Buffer> = (0..4).map(|_| allocate(&stream, 1000).unwrap()).collect();
    stream.synchronize().unwrap();
    match std::env::var("CASE").unwrap().as_str() {
        "first" => touch(&buffers[1], 0),
        "last" => touch(&buffers[1], 999),
        "behind" => touch(&buffers[1], 1000),
        "far behind" => touch(&buffers[1], 1000 + 255),
        "before" => buffers[1..3].iter().for_each(|buffer| touch(buffer, -1)),
        _ => {
            let mut buffers = buffers;
            let freed = buffers.swap_remove(1);
            let place = freed.ptr().addr() as isize;
            stream.synchronize().unwrap();
            drop(freed);
            touch(&buffers[0], place - buffers[0].ptr().addr() as isize);
        }
    }
}

#[test]
fn what_lies_around_a_buffer_is_nobodys() {
    for (case, allowed) in [
        ("first", true),
        ("last", true),
        ("behind", false),
        ("far behind", false),
        ("before", false),
        ("freed", false),
    ] {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "inner_touch", "--ignored", "--nocapture"]).env("CASE", case);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.success(), allowed, "{case}: {said}");
        assert_eq!(said.contains("use-after-poison"), !allowed, "{case}: {said}");
    }
}
