//! More threads than cores and more streams than a program has: every result is what one stream gives.
//!
//! Small enough for a sanitizer: `tools/sanitize thread` runs this.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::sync::Mutex;

use common::devices::{Kind, each_device};
use common::random_programs::{ops, run};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use streamgrad::prelude::*;
use streamgrad::{Result, Schedule};

const THREADS: usize = 64;
const STREAMS: usize = 1000;

/// Each thread changes tensors of its own and reads one that all share, on streams of its own.
#[test]
fn sixty_four_threads_share_a_device() {
    each_device(&[Schedule::Inline, Schedule::Threads], |device| {
        let shared = Tensor::arange(0, 256, 1, DType::F32, device)?;
        let work = &|thread: usize| -> Result<f32> {
            let streams = [device.new_stream()?, device.new_stream()?];
            let x = streams[0].scope(|| Tensor::full(&[256], thread as f64, DType::F32, device))?;
            for round in 0..8 {
                streams[round % 2].scope(|| {
                    x.add_(&shared)?;
                    // Memory that goes at once and may be another thread's next.
                    shared.mul_scalar(round as f64)?.add(&x).map(drop)
                })?;
            }
            streams[1].scope(|| x.sum(&[], false))?.item::<f32>()
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || work(thread))).collect();
            for (thread, sum) in threads.into_iter().enumerate() {
                let expected = 256 * thread + 8 * (255 * 128);
                assert_eq!(sum.join().unwrap()?, expected as f32, "thread {thread}");
            }
            Ok(())
        })
    });
}

/// One value goes through all of a thousand streams that live at once, each of which reads what the last one wrote.
#[test]
fn a_value_goes_through_a_thousand_streams() {
    each_device(&[Schedule::Inline, Schedule::Threads], |device| {
        let streams: Vec<Stream> = (0..STREAMS).map(|_| device.new_stream()).collect::<Result<_>>()?;
        let x = Tensor::zeros(&[3], DType::F32, device)?;
        let mut last = x.copy()?;
        for stream in &streams {
            last = stream.scope(|| {
                x.add_scalar_(1.0)?;
                last.add(&x)
            })?;
        }
        let rows = STREAMS as f32;
        assert_eq!(x.to_vec::<f32>()?, [rows; 3]);
        assert_eq!(last.to_vec::<f32>()?, [rows * (rows + 1.0) / 2.0; 3]);
        Ok(())
    });
}

/// What one thread frees another takes: tensors of random sizes go from hand to hand, and keep what they hold.
#[test]
fn memory_goes_from_thread_to_thread() {
    each_device(&[Schedule::Inline, Schedule::Threads], |device| {
        let shelf: Mutex<Vec<(Tensor, i64)>> = Mutex::default();
        let work = &|thread: usize| -> Result<()> {
            let stream = device.new_stream()?;
            let mut state = thread + 1;
            for round in 0..40 {
                state = state * 1_103_515_245 % 2_147_483_647;
                let mark = (thread * 40 + round) as i64;
                let made = stream.scope(|| Tensor::full(&[1 + state % 700], mark, DType::I64, device))?;
                let taken = {
                    let mut shelf = shelf.lock().unwrap();
                    shelf.push((made, mark));
                    let at = state % shelf.len();
                    shelf.swap_remove(at)
                };
                let sum = stream.scope(|| taken.0.sum(&[], false))?.item::<i64>()?;
                assert_eq!(sum, taken.1 * taken.0.elements() as i64);
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS / 4).map(|thread| scope.spawn(move || work(thread))).collect();
            threads.into_iter().try_for_each(|thread| thread.join().unwrap())
        })
    });
}

/// Programs with gradients, at once on many threads that share one device.
#[test]
fn threads_run_programs_of_their_own() {
    let mut runner = TestRunner::deterministic();
    let programs: Vec<_> = (0..8).map(|_| ops().new_tree(&mut runner).unwrap().current()).collect();
    for kind in Kind::all(&[Schedule::Inline, Schedule::Threads]) {
        let plain = kind.plain().device();
        let serial: Vec<_> = programs.iter().map(|program| run(program, 0, &plain).unwrap()).collect();
        let device = &kind.device();
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                programs.iter().map(|program| scope.spawn(|| run(program, 3, device).unwrap())).collect();
            for (thread, serial) in threads.into_iter().zip(&serial) {
                assert_eq!(&thread.join().unwrap(), serial, "{kind:?}");
            }
        });
    }
}
