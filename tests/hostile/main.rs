//! Random calls of the public API with arguments, closures and implementations of traits that lie, panic, call back into the
//! engine, or change their answers: whatever they do, no call touches memory that is not its own.
//!
//! `tools/sanitize address` runs it under AddressSanitizer. `STREAMGRAD_FUZZ_CALLS` says how many calls, `STREAMGRAD_FUZZ_SEED` the
//! first world's seed; the seed of each run is printed. `STREAMGRAD_FUZZ_TRACE=1` prints each call before it is made.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::panic)]

mod engine;
mod launchers;
mod mischief;
mod world;

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use world::{Hostile, World};

/// Calls that share devices, tensors and streams.
const WORLD: u64 = 400;
/// Calls of a short run.
const SHORT: u64 = 1000;

/// Where the engine itself panicked.
static PANICS: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
/// The calls made so far.
static CALLS: AtomicU64 = AtomicU64::new(0);
/// The seed of the world, and the newest call in it.
static CURRENT: Mutex<(u64, &str)> = Mutex::new((0, "none"));

/// A line that the test harness does not capture, so that it is there when the process is killed.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is a number, not {value}")))
}

/// Panics of hostile code are silent; of all others, the first of each place is printed.
fn note_panics() {
    std::panic::set_hook(Box::new(|info| {
        if info.payload().is::<Hostile>() {
            return;
        }
        let place = info.location().map_or_else(String::new, ToString::to_string);
        let (seed, call) = *CURRENT.lock().unwrap();
        let payload = info.payload();
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let message = text.or(payload.downcast_ref::<&str>().copied()).unwrap_or("no message");
        if PANICS.lock().unwrap().insert(place.clone()) {
            say(&format!("hostile: panic at {place}: seed {seed}, {call}: {message}"));
        }
    }));
}

/// Ends the process if a call does not return.
fn watch() {
    std::thread::spawn(|| {
        let mut last = 0;
        loop {
            std::thread::sleep(Duration::from_secs(300));
            let now = CALLS.load(Ordering::Relaxed);
            if now == last {
                let (seed, call) = *CURRENT.lock().unwrap();
                say(&format!("hostile: {call} does not return, seed {seed}"));
                std::process::abort();
            }
            last = now;
        }
    });
}

#[test]
fn hostile_programs_touch_no_memory_but_their_own() {
    let calls = number("STREAMGRAD_FUZZ_CALLS").unwrap_or(SHORT);
    // A short run repeats what is known to pass; a long one, by hand, is to find more.
    let random = || if calls > SHORT { RandomState::new().hash_one(0) } else { 1 };
    let seed = number("STREAMGRAD_FUZZ_SEED").unwrap_or_else(random);
    let trace = number("STREAMGRAD_FUZZ_TRACE").is_some();
    say(&format!("hostile: {calls} calls, STREAMGRAD_FUZZ_SEED={seed}"));
    note_panics();
    watch();
    let mut refused = 0;
    for seed in (0..calls.div_ceil(WORLD)).map(|at| seed.wrapping_add(at)) {
        let mut world = World::new(seed);
        for at in 0..WORLD {
            let (name, call) = if world.random.one_in(2) {
                *world.random.of(launchers::CALLS)
            } else {
                *world.random.of(engine::CALLS)
            };
            *CURRENT.lock().unwrap() = (seed, name);
            if trace {
                say(&format!("hostile: seed {seed}, call {at}: {name}"));
            }
            CALLS.fetch_add(1, Ordering::Relaxed);
            // A panic that leaves a call is the hostile code's, or was noted.
            if let Ok(Err(_)) = catch_unwind(AssertUnwindSafe(|| call(&mut world))) {
                refused += 1;
            }
        }
        *CURRENT.lock().unwrap() = (seed, "the end of a world");
        world.check();
    }
    let _ = std::panic::take_hook();
    let (panics, calls) = (PANICS.lock().unwrap().clone(), CALLS.load(Ordering::Relaxed));
    say(&format!("hostile: {calls} calls made, of which {refused} were refused"));
    assert!(panics.is_empty(), "the engine panicked at {} places", panics.len());
    assert!(refused < calls, "all calls were refused");
}
