//! The `streamgrad` program: `compare`, `train`, `gradcheck`, `info`.
#![forbid(unsafe_code)]

mod program;

fn main() -> std::process::ExitCode {
    program::main()
}
