//! Many operations on many streams from several threads: a million, or as many as `STREAMGRAD_SOAK=20000` says.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Mutex;

use allocator::{DeviceMemory, allocate};
use common::each_device;
use device::{Buffer, Device, DeviceKind, Stream, Use};

const STREAMS: usize = 8;
const THREADS: usize = 4;

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

/// A buffer and the byte that its first and last places must hold.
type Marked = (Buffer, u8);

fn mark(stream: &Stream, buffer: &Buffer, byte: u8) {
    stream.upload("mark", buffer, 0, &[byte]).unwrap();
    stream.upload("mark", buffer, buffer.len_bytes() - 1, &[byte]).unwrap();
}

fn check((buffer, byte): &Marked) {
    buffer
        .download(|bytes| assert_eq!((bytes[0], bytes[bytes.len() - 1]), (*byte, *byte), "its own"))
        .unwrap();
}

#[test]
fn random_operations_on_eight_streams_and_four_threads() {
    each_device(|dev| {
        let operations: usize =
            std::env::var("STREAMGRAD_SOAK").ok().and_then(|count| count.parse().ok()).unwrap_or(1_000_000);
        // Where operations are a driver's calls there are fewer.
        soak(&dev, if dev.kind() == DeviceKind::Cpu { operations } else { operations / 100 });
    });
}

fn soak(dev: &Device, operations: usize) {
    dev.set_memory_limit(Some(64 << 20));
    let streams: Vec<Stream> = (0..STREAMS).map(|_| dev.new_stream().unwrap()).collect();
    // Buffers pass between the threads here.
    let shelf: Mutex<Vec<Marked>> = Mutex::default();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (streams, shelf) = (&streams, &shelf);
            scope.spawn(move || {
                let mut random = Random(thread as u64 + 1);
                let mut mine: Vec<Marked> = Vec::new();
                for _ in 0..operations / THREADS {
                    let stream = &streams[random.below(STREAMS)];
                    match random.below(16) {
                        0..6 => {
                            let log2 = 4 + random.below(14);
                            let bytes = 1 + random.below(1 << log2);
                            // Running out is an answer, too.
                            if let Ok(buffer) = allocate(stream, bytes) {
                                let byte = random.below(256) as u8;
                                mark(stream, &buffer, byte);
                                mine.push((buffer, byte));
                            }
                        }
                        6..11 if !mine.is_empty() => drop(mine.swap_remove(random.below(mine.len()))),
                        11 if !mine.is_empty() => check(&mine[random.below(mine.len())]),
                        12 if !mine.is_empty() => {
                            let place = random.below(mine.len());
                            let (buffer, byte) = &mut mine[place];
                            *byte = byte.wrapping_add(1);
                            mark(stream, buffer, *byte);
                        }
                        13 if !mine.is_empty() => {
                            let (buffer, _) = &mine[random.below(mine.len())];
                            stream.launch_host("read", &[Use::read(buffer)], || ()).unwrap();
                        }
                        14 if !mine.is_empty() => {
                            shelf.lock().unwrap().push(mine.swap_remove(random.below(mine.len())));
                        }
                        15 if random.below(64) == 0 => drop(dev.trim()),
                        _ => {
                            let found = shelf.lock().unwrap().pop();
                            mine.extend(found.inspect(check));
                        }
                    }
                    if mine.len() > 200 {
                        mine.truncate(100);
                    }
                }
                mine.iter().for_each(check);
            });
        }
    });
    shelf.into_inner().unwrap().iter().for_each(check);
    dev.synchronize().unwrap();
    let stats = dev.memory_stats();
    assert_eq!((stats.allocated_bytes, stats.live_blocks), (0, 0));
    assert_eq!(stats.allocations, stats.frees);
    assert!(stats.peak_reserved_bytes <= 64 << 20);
    dev.trim();
    assert_eq!((dev.memory_stats().reserved_bytes, dev.memory_stats().segments), (0, 0));
}
