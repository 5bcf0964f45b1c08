//! Lines of the program that led to a launch, for recordings.
//!
//! Walking the stack is cheap, naming its functions is not. A stack that was seen before is known by the addresses that a walk
//! gives; the first of its kind is kept with all that its names follow from, and named when the recording ends.

use std::backtrace::Backtrace;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::Path;

use smallvec::SmallVec;

use super::records::Place;

/// Return addresses, innermost first.
pub(super) type Stack = SmallVec<[usize; 64]>;

/// The stacks that were seen.
#[derive(Default)]
pub(super) struct Stacks {
    known: HashMap<Stack, u32>,
    traces: Vec<Backtrace>,
}

impl Stacks {
    /// The number of the calling thread's stack.
    pub(super) fn number(&mut self) -> u32 {
        match self.known.entry(walk()) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => {
                self.traces.push(Backtrace::force_capture());
                *new.insert(self.traces.len() as u32 - 1)
            }
        }
    }

    /// For each stack, the place of the program in it, if there is one, and whether a backward pass of the library leads there.
    pub(super) fn places(&self) -> (Vec<Option<Place>>, Vec<bool>) {
        // In full, since short paths begin where the process is.
        self.traces.iter().map(|trace| place_in(&format!("{trace:#}"))).collect()
    }
}

/// The addresses on the calling thread's stack; none where the system has no way to walk it.
#[cfg(all(unix, not(miri)))]
fn walk() -> Stack {
    use std::ffi::{c_int, c_void};

    /// Calls that are looked at. Without optimisation an op alone is dozens of calls.
    const DEPTH: usize = 512;

    unsafe extern "C" {
        fn _Unwind_Backtrace(
            visit: unsafe extern "C-unwind" fn(*mut c_void, *mut c_void) -> c_int,
            data: *mut c_void,
        ) -> c_int;
        fn _Unwind_GetIP(context: *mut c_void) -> usize;
    }

    unsafe extern "C-unwind" fn visit(context: *mut c_void, data: *mut c_void) -> c_int {
        const GO_ON: c_int = 0;
        const STOP: c_int = 4;
        // SAFETY: `data` is the stack below, which nobody else has meanwhile.
        let stack = unsafe { &mut *data.cast::<Stack>() };
        // SAFETY: the context is the one that the walk gave.
        stack.push(unsafe { _Unwind_GetIP(context) });
        if stack.len() < DEPTH { GO_ON } else { STOP }
    }

    let mut stack = Stack::new();
    // SAFETY: the library that panics are unwound by, which is linked for them, calls `visit` for each frame and keeps nothing.
    unsafe { _Unwind_Backtrace(visit, std::ptr::from_mut(&mut stack).cast()) };
    stack
}

#[cfg(not(all(unix, not(miri))))]
fn walk() -> Stack {
    Stack::new()
}

/// The innermost call in a printed trace that is the program's, and whether it is of a backward pass of this library.
///
/// A trace has two lines a call, the second one only in a build with debug information:
/// `   4:     0x55d0c0d3f5b9 - program::main` and `             at /home/me/src/main.rs:7:13`.
fn place_in(trace: &str) -> (Option<Place>, bool) {
    let mut lines = trace.lines().map(str::trim).peekable();
    let mut in_backward = false;
    while let Some(line) = lines.next() {
        let Some((_, function)) = line.split_once(": ").filter(|(number, _)| number.parse::<u32>().is_ok())
        else {
            continue;
        };
        let function = function.trim_start().split_once(" - ").map_or(function, |(_address, name)| name);
        let at = lines.next_if(|next| next.starts_with("at ")).and_then(|next| next.strip_prefix("at "));
        if is_program(function, at) {
            let (file, line) = at.and_then(split_place).unwrap_or(("", 0));
            return (Some(Place { function: function.into(), file: file.into(), line }), in_backward);
        }
        in_backward |=
            function.contains("backward") || at.is_some_and(|at| at.contains("autograd/src/backward.rs"));
    }
    (None, in_backward)
}

/// `file` and `line` of `file:line:column`, a file below the current folder as seen from there.
fn split_place(at: &str) -> Option<(&str, u32)> {
    let (rest, _column) = at.rsplit_once(':')?;
    let (file, line) = rest.rsplit_once(':')?;
    let here = std::env::current_dir().ok();
    let inside = here.as_ref().and_then(|here| Path::new(file).strip_prefix(here).ok()?.to_str());
    Some((inside.unwrap_or(file), line.parse().ok()?))
}

/// The crates whose lines are no line of the program.
const CRATES: [&str; 9] =
    ["device", "allocator", "kernels", "tensor", "autograd", "models", "comm", "profile", "compare"];
/// Where the sources of the standard library and of packages from a registry lie.
const SOURCES: [&str; 4] = ["/rustc/", "/rustlib/src/", "/library/std/", "/registry/src/"];

/// Whether a call is the program's: not this library's, the standard library's, a package's or one of C.
fn is_program(function: &str, at: Option<&str>) -> bool {
    match at {
        Some(path) => path.contains(".rs:") && !is_engine_file(path),
        // Names begin with the crate, perhaps behind brackets, and with its hash: `<std[1f2e]>::thread::spawn`. Those of functions
        // that were inlined, and of C, have none.
        None => {
            let name = function.trim_start_matches(['<', '&']).split(['<', '(', ' ']).next().unwrap_or("");
            let root = name.split([':', '[']).next().unwrap_or("");
            let is_used = ["core", "std", "alloc", "test", "smallvec"].contains(&root);
            name.contains("::") && !is_used && !CRATES.contains(&root) && !root.starts_with('_')
        }
    }
}

/// Whether a file is in one of the crates, which lie beside this one in the repository, or came with the toolchain or a registry.
fn is_engine_file(path: &str) -> bool {
    let root = env!("CARGO_MANIFEST_DIR").trim_end_matches("device");
    let relative = path.strip_prefix(root).unwrap_or(path);
    let first = relative.split('/').next().unwrap_or("");
    let is_crate = CRATES.contains(&first) && relative[first.len()..].starts_with("/src/");
    is_crate || SOURCES.iter().any(|source| path.contains(source))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = concat!(
        "   0:     0x55d0c0d3f5b9 - device::recorder::stack::Stacks::number
             at ",
        env!("CARGO_MANIFEST_DIR"),
        "/src/recorder/stack.rs:37:30
   1:     0x55d0c0d3f5b9 - <core[17067e9ac6d7e3a7]::ops::function::FnOnce>::call_once
             at /rustc/17067e9ac6d7e3a7c3b1a0f7e8c1f1a2b3c4d5e6/library/core/src/ops/function.rs:250:5
   2:     0x55d0c0d3f5b9 - tensor::matmul::<impl tensor::tensor::Tensor>::matmul
             at ",
        env!("CARGO_MANIFEST_DIR"),
        "/src/matmul.rs:39:14
   3:     0x55d0c0d3f5b9 - program::train::{{closure}}
             at /home/me/examples/profile.rs:30:17
   4:     0x55d0c0d3f5b9 - program::main
             at /home/me/examples/profile.rs:60:5
"
    );

    #[test]
    fn the_innermost_line_of_the_program_is_found() {
        let (place, in_backward) = place_in(TRACE);
        let place = place.expect("there is one");
        assert!(!in_backward);
        assert_eq!((&*place.file, place.line), ("/home/me/examples/profile.rs", 30));
        assert_eq!(&*place.function, "program::train::{{closure}}");
        assert_eq!(place.to_string(), "/home/me/examples/profile.rs:30");
    }

    #[test]
    fn without_debug_information_there_is_the_function() {
        let bare: String = TRACE
            .lines()
            .filter(|line| !line.trim().starts_with("at "))
            .map(|line| format!("{line}\n"))
            .collect();
        let place = place_in(&bare).0.expect("there is one");
        assert_eq!((place.line, place.to_string().as_str()), (0, "program::train::{{closure}}"));
    }

    /// A thread that the library started has no line of the program on its stack.
    #[test]
    fn calls_of_c_and_of_the_standard_library_are_no_place() {
        let start = TRACE.find("   3: ").expect("the program");
        let c = "   3:     0x55d0c0d3f5b9 - std::sys::thread::unix::Thread::new::thread_start
             at /root/.rustup/toolchains/stable/lib/rustlib/src/rust/library/std/src/sys/thread/unix.rs:118:17
   4:     0x55d0c0d3f5b9 - start_thread
             at ./nptl/pthread_create.c:447:8
   5:     0x55d0c0d3f5b9 - clone3
             at ./misc/../sysdeps/unix/sysv/linux/x86_64/clone3.S:78:0
   6:     0x55d0c0d3f5b9 - timed<core::result::Result<autograd::tape::Var, device::error::Error>>
   7:                0x0 - <unknown>";
        let trace = format!("{}{c}", &TRACE[..start]);
        assert_eq!(place_in(&trace), (None, false));
        let bare: Vec<&str> = trace.lines().filter(|line| !line.trim().starts_with("at ")).collect();
        assert_eq!(place_in(&bare.join("\n")), (None, false));
    }

    #[test]
    fn what_a_backward_pass_launches_is_marked() {
        let pass = "   2:     0x55d0c0d3f5b9 - <autograd::backward::Sweep>::run";
        let of_pass = TRACE.replace("   2:     0x55d0c0d3f5b9 - tensor::matmul", pass);
        assert!(place_in(&of_pass).1);
        // A hook belongs to the program, even where the backward pass calls it.
        let of_hook = TRACE.replace("   4:     0x55d0c0d3f5b9 - program::main", pass);
        assert!(!place_in(&of_hook).1);
    }

    #[test]
    fn the_crates_are_known_wherever_they_lie() {
        assert!(is_engine_file("/x/registry/src/y/streamgrad-kernels-0.1.0/src/lib.rs"));
        let beside = |path: &str| env!("CARGO_MANIFEST_DIR").replace("/device", &format!("/{path}"));
        assert!(
            is_engine_file(&beside("device/src/launch.rs"))
                && is_engine_file(&beside("autograd/src/ops/add.rs"))
        );
        for path in ["autograd/tests/profile.rs", "cli/src/gpt.rs", "src/main.rs"] {
            assert!(!is_engine_file(&beside(path)), "{path}");
        }
        for path in [
            "/home/me/tensor/src/lib.rs",
            "/home/me/streamgrad-models-of-mine/src/main.rs",
            "/x/streamgrad-cli-0.1.0/src/gpt.rs",
        ] {
            assert!(!is_engine_file(path), "{path}");
        }
    }

    /// As an op far below the line that called it, in a build without optimisation.
    #[cfg(all(unix, not(miri)))]
    fn deep(stacks: &mut Stacks, calls: usize) -> u32 {
        let number = if calls == 0 { stacks.number() } else { deep(stacks, calls - 1) };
        std::hint::black_box(number)
    }

    #[test]
    #[cfg(all(unix, not(miri)))]
    fn lines_are_told_apart_below_many_calls() {
        let mut stacks = Stacks::default();
        let first = deep(&mut stacks, 100);
        let second = deep(&mut stacks, 100);
        assert_ne!(first, second);
    }

    #[test]
    #[cfg(all(unix, not(miri)))]
    fn stacks_that_are_alike_have_one_number() {
        let mut stacks = Stacks::default();
        let mut numbers = Vec::new();
        for _ in 0..std::hint::black_box(3) {
            numbers.push(stacks.number());
        }
        let other = stacks.number();
        assert!(
            numbers.iter().all(|&number| number == numbers[0]) && other != numbers[0],
            "{numbers:?} {other}"
        );
    }
}
