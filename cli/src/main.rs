//! The `streamgrad` program: `compare`, `train`, `gradcheck`, `launch`, `info`.
#![forbid(unsafe_code)]

mod program;

fn main() -> std::process::ExitCode {
    program::main()
}
