//! One process of a launch.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use super::super::Failure;
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
    pub(super) fn start(
        rank: usize,
        program: &[OsString],
        environment: &[(&str, Option<String>)],
    ) -> io::Result<Process> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("rank").arg(std::process::id().to_string()).args(program);
        for (name, value) in environment {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let group = Pid::from_child(&child);
        let (mut relays, ended) = (Vec::new(), Arc::new(AtomicBool::new(false)));
        let end = || Arc::clone(&ended);
        relays.extend(child.stdout.take().map(|output| relay::start(rank, output, io::stdout(), end())));
        relays.extend(child.stderr.take().map(|output| relay::start(rank, output, io::stderr(), end())));
        Ok(Process { rank, child, group, relays, ended })
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
pub(crate) struct Rank {
    /// The process that starts it.
    parent: u32,
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<OsString>,
}

impl Rank {
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
        let error = Command::new(&self.program[0]).args(&self.program[1..]).exec();
        let message = format!("{}: {error}", self.program[0].display());
        let status = if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_RUN };
        Err(Failure::Ended { message, status })
    }
}

/// As shells have it.
const NOT_FOUND: u8 = 127;
const NOT_RUN: u8 = 126;
