//! One process of a launch.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use super::super::failure::Failure;
use super::relay;

/// A rank that has been started, with all that it starts: its process group. When this goes, they are killed.
pub(super) struct Process {
    pub(super) rank: usize,
    child: Child,
    group: Pid,
    relays: Vec<JoinHandle<()>>,
    /// Whether it has been waited for, which its relays are told.
    ended: Arc<AtomicBool>,
}

/// How a process has ended.
pub(super) enum End {
    Well,
    Status(i32),
    Signal(i32),
}

impl Process {
    /// Starts `program`, with a socket that it shall listen on, if there is one.
    ///
    /// # Errors
    /// Those of a process or thread that the system refuses; the rank has ended then.
    pub(super) fn start(
        rank: usize,
        program: &[OsString],
        environment: &[(&str, Option<String>)],
        listener: Option<TcpListener>,
    ) -> io::Result<Process> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("rank").args(listener.is_some().then_some("--listener"));
        command.arg(std::process::id().to_string()).args(program);
        for (name, value) in environment {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        // A socket travels as the standard input, which is the only descriptor that a command can be given otherwise.
        let input = listener.map_or_else(Stdio::null, |listener| Stdio::from(OwnedFd::from(listener)));
        command.process_group(0).stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn()?;
        let group = Pid::from_child(&child);
        let mut process = Process { rank, child, group, relays: Vec::new(), ended: Arc::default() };
        let (output, errors) = (process.child.stdout.take(), process.child.stderr.take());
        if let Some(output) = output {
            process.relays.push(relay::start(rank, output, io::stdout(), Arc::clone(&process.ended))?);
        }
        if let Some(errors) = errors {
            process.relays.push(relay::start(rank, errors, io::stderr(), Arc::clone(&process.ended))?);
        }
        Ok(process)
    }

    /// Sends a signal to the whole group.
    pub(super) fn signal(&self, signal: Signal) {
        // There is none left.
        let _ = kill_process_group(self.group, signal);
    }

    /// How it has ended, if it has; what it started has then ended, too.
    pub(super) fn ended(&mut self) -> Option<End> {
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        if let Ok(None) = waitid(WaitId::Pid(self.group), look) {
            return None;
        }
        // Its number is not given to others before it is waited for.
        self.signal(Signal::KILL);
        let status = self.child.wait().ok()?;
        Some(match (status.code(), status.signal()) {
            (Some(0), _) => End::Well,
            (Some(code), _) => End::Status(code),
            (None, signal) => End::Signal(signal.unwrap_or_default()),
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Not once it has been waited for.
        if let Ok(None) = self.child.try_wait() {
            self.signal(Signal::KILL);
            let _ = self.child.wait();
        }
        self.ended.store(true, Ordering::Release);
        for relay in self.relays.drain(..) {
            let _ = relay.join();
        }
    }
}

/// A rank's process before it becomes the program.
#[derive(clap::Args)]
pub(crate) struct RankCommand {
    /// Whether the standard input is a socket that the program shall listen on.
    #[arg(long)]
    listener: bool,
    /// The process that starts it.
    parent: u32,
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<OsString>,
}

impl RankCommand {
    /// Becomes the program, which ends when the launch does, however that ends.
    pub(crate) fn run(self) -> Result<bool, Failure> {
        #[cfg(target_os = "linux")]
        {
            let cannot = |error: rustix::io::Errno| Failure::Run(format!("launch: {error}"));
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(cannot)?;
        }
        if std::os::unix::process::parent_id() != self.parent {
            return Err(Failure::Run("the launch has ended".into()));
        }
        let mut command = Command::new(&self.program[0]);
        command.args(&self.program[1..]);
        let listener = if self.listener { Some(take_input()?) } else { None };
        match &listener {
            Some(listener) => command.env(LISTENER, listener.as_raw_fd().to_string()),
            None => command.env_remove(LISTENER),
        };
        let error = command.exec();
        let message = format!("{}: {error}", self.program[0].display());
        let status = if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_RUN };
        Err(Failure::Ended { message, status })
    }
}

/// Says which descriptor the socket has on which rank 0 shall listen.
const LISTENER: &str = "STREAMGRAD_LISTENER";

/// Moves the standard input to a descriptor that the program inherits, and leaves an empty one.
fn take_input() -> Result<OwnedFd, Failure> {
    let cannot = |error: io::Error| Failure::Run(format!("launch: {error}"));
    // Unlike those of the standard library, a duplicate of this function stays open in the program.
    let input = rustix::io::dup(io::stdin()).map_err(|error| cannot(error.into()))?;
    let empty = File::open("/dev/null").map_err(cannot)?;
    rustix::stdio::dup2_stdin(empty).map_err(|error| cannot(error.into()))?;
    Ok(input)
}

/// As shells have it.
const NOT_FOUND: u8 = 127;
const NOT_RUN: u8 = 126;
