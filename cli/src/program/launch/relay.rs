//! What ranks say, line by line.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The most of a line that is kept before it is shown.
const LONGEST: u64 = 64 << 10;

/// How often to look whether the rank has ended.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// Shows each line that comes from a rank, behind the rank's number and in one piece, until nothing more can come or the rank has
/// `ended`.
///
/// # Errors
/// That of a thread that the system refuses.
pub(super) fn start(
    rank: usize,
    from: impl Read + AsFd + Send + 'static,
    mut to: impl Write + Send + 'static,
    ended: Arc<AtomicBool>,
) -> io::Result<JoinHandle<()>> {
    let relay = move || {
        let mut from = BufReader::new(Output { from, ended, left: None });
        let mut line = Vec::new();
        loop {
            line.clear();
            line.extend(format!("[{rank}] ").into_bytes());
            match from.by_ref().take(LONGEST).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            if line.last() != Some(&b'\n') {
                line.push(b'\n');
            }
            // Where nobody reads any more the rank goes on.
            let _ = to.write_all(&line).and_then(|()| to.flush());
        }
    };
    thread::Builder::new().name(format!("output of rank {rank}")).spawn(relay)
}

/// What a rank writes until it ends. A process that it has started elsewhere may keep the pipe open for as long as it likes.
struct Output<F> {
    from: F,
    ended: Arc<AtomicBool>,
    /// What was in the pipe when the rank had ended, and has not been read.
    left: Option<usize>,
}

impl<F: Read + AsFd> Read for Output<F> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        while !self.ended.load(Ordering::Acquire) {
            if poll(&mut [PollFd::new(&self.from, PollFlags::IN)], Some(&LOOK))? > 0 {
                return self.from.read(bytes);
            }
        }
        let left = match self.left {
            Some(left) => left,
            None => usize::try_from(rustix::io::ioctl_fionread(&self.from)?).unwrap_or(usize::MAX),
        };
        let end = left.min(bytes.len());
        let read = if end == 0 { 0 } else { self.from.read(&mut bytes[..end])? };
        self.left = Some(left - read);
        Ok(read)
    }
}
