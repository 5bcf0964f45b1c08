//! `streamgrad launch`: a program as several ranks on this machine.

mod rank;
mod relay;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Signal, getrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::signal_name;

use super::args::positive;
use super::failure::{FAILED, Failure};
use rank::{End, Process};

pub(super) use rank::RankCommand;

#[derive(clap::Args)]
pub(super) struct Args {
    /// How many ranks, a process each.
    #[arg(long, value_parser = ranks)]
    ranks: usize,
    /// Seconds that ranks have to end, when one has failed, before they are killed.
    #[arg(long, default_value_t = 10)]
    grace: u64,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<OsString>,
}

/// How often to look at the processes.
const PAUSE: Duration = Duration::from_millis(10);
/// The status of what a signal ended, less its number, as shells have it.
const BY_SIGNAL: i32 = 128;

/// As many ranks as can meet.
const MOST: usize = 1 << 16;
/// The descriptors that a rank takes, for its output.
const DESCRIPTORS: u64 = 2;
/// The descriptors that a launch takes, with some to spare.
const OWN_DESCRIPTORS: u64 = 24;

fn ranks(text: &str) -> Result<usize, String> {
    match positive(text)? {
        ranks if ranks > MOST => Err(format!("must be at most {MOST}")),
        ranks => Ok(ranks),
    }
}

/// Refuses more ranks than this process may have descriptors for, before any is started.
fn expect_possible(ranks: usize) -> Result<(), Failure> {
    let Some(most) = getrlimit(Resource::Nofile).current else { return Ok(()) };
    if ranks as u64 * DESCRIPTORS + OWN_DESCRIPTORS <= most {
        return Ok(());
    }
    let most_ranks = most.saturating_sub(OWN_DESCRIPTORS) / DESCRIPTORS;
    Err(Failure::Usage(format!(
        "--ranks {ranks}: at most {most_ranks} ranks can be started, as this process may open {most} files (ulimit -n)"
    )))
}

/// Starts the ranks and sees them to their ends. The first failure ends the others.
pub(super) fn run(args: Args) -> Result<bool, Failure> {
    let cannot = |error: io::Error| Failure::Run(format!("launch: {error}"));
    expect_possible(args.ranks)?;
    // Before there is anything that a signal would leave behind.
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM]).map_err(cannot)?;
    let (environment, listener) = Environment::new(args.ranks).map_err(cannot)?;
    let (mut ranks, mut listener) = (Processes::default(), Some(listener));
    let mut to_start = 0..args.ranks;
    let grace = Duration::from_secs(args.grace);
    let first = loop {
        if let Some(signal) = signals.pending().next() {
            let name = signal_name(signal).unwrap_or("a signal");
            break Failure::Ended { message: format!("ended by {name}"), status: status(BY_SIGNAL + signal) };
        }
        if let Some(rank) = to_start.next() {
            match Process::start(rank, &args.program, &environment.of(rank), listener.take()) {
                Ok(process) => ranks.running.push(process),
                Err(error) => break Failure::Run(format!("launch: rank {rank}: {error}")),
            }
            continue;
        }
        match ranks.look() {
            Some((_, End::Well)) => {}
            Some((rank, end)) => break failure(rank, end),
            None if ranks.running.is_empty() => return Ok(true),
            None => thread::sleep(PAUSE),
        }
    };
    ranks.end(grace, || signals.pending().next().is_some());
    Err(first)
}

fn failure(rank: usize, end: End) -> Failure {
    let (how, code) = match end {
        End::Well => ("has ended".to_owned(), 0),
        End::Status(code) => (format!("has ended with status {code}"), code),
        End::Signal(signal) => {
            let name = signal_name(signal).map_or_else(|| format!("signal {signal}"), str::to_owned);
            (format!("was ended by {name}"), BY_SIGNAL + signal)
        }
    };
    Failure::Ended { message: format!("rank {rank} {how}"), status: status(code) }
}

fn status(code: i32) -> u8 {
    u8::try_from(code).unwrap_or(FAILED)
}

/// The processes that run. When they go, so do these.
#[derive(Default)]
struct Processes {
    running: Vec<Process>,
}

impl Processes {
    /// A rank that has ended, which counts no more.
    fn look(&mut self) -> Option<(usize, End)> {
        let (index, end) = self
            .running
            .iter_mut()
            .enumerate()
            .find_map(|(index, process)| Some((index, process.ended()?)))?;
        Some((self.running.swap_remove(index).rank, end))
    }

    /// Asks all to end, and kills them after `grace`, or when it is `urgent`.
    fn end(&mut self, grace: Duration, mut urgent: impl FnMut() -> bool) {
        self.running.iter().for_each(|process| process.signal(Signal::TERM));
        let begin = Instant::now();
        while !self.running.is_empty() && begin.elapsed() < grace && !urgent() {
            if self.look().is_none() {
                thread::sleep(PAUSE);
            }
        }
        self.running.clear();
    }
}

/// What the ranks are told, by the names that `torchrun` gives.
struct Environment {
    size: usize,
    port: u16,
    token: String,
    threads: usize,
}

impl Environment {
    /// With the socket on which rank 0 listens, so that nobody else can have its port.
    fn new(size: usize) -> io::Result<(Environment, TcpListener)> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let mut token = [0; 16];
        File::open(Path::new("/dev/urandom"))?.read_exact(&mut token)?;
        let token = token.iter().map(|byte| format!("{byte:02x}")).collect();
        let cores = thread::available_parallelism().map_or(1, usize::from);
        Ok((Environment { size, port, token, threads: (cores / size).clamp(1, 1024) }, listener))
    }

    /// Of one rank: what is set, and what is not.
    fn of(&self, rank: usize) -> Vec<(&'static str, Option<String>)> {
        let mut variables = vec![
            ("RANK", Some(rank.to_string())),
            ("WORLD_SIZE", Some(self.size.to_string())),
            ("LOCAL_RANK", Some(rank.to_string())),
            ("LOCAL_WORLD_SIZE", Some(self.size.to_string())),
            ("MASTER_ADDR", Some(Ipv4Addr::LOCALHOST.to_string())),
            ("MASTER_PORT", Some(self.port.to_string())),
            ("STREAMGRAD_TOKEN", Some(self.token.clone())),
            ("STREAMGRAD_TOKEN_FILE", None),
            ("TORCHELASTIC_USE_AGENT_STORE", None),
        ];
        if std::env::var_os("STREAMGRAD_THREADS").is_none() {
            variables.push(("STREAMGRAD_THREADS", Some(self.threads.to_string())));
        }
        variables
    }
}
