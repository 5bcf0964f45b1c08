//! What ranks say, line by line.

use std::io::{BufRead, BufReader, Read, Write};
use std::thread::{self, JoinHandle};

/// The most of a line that is kept before it is shown.
const LONGEST: u64 = 64 << 10;

/// Shows each line that comes from a rank, behind the rank's number and in one piece.
pub(super) fn start(
    rank: usize,
    from: impl Read + Send + 'static,
    mut to: impl Write + Send + 'static,
) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut from = BufReader::new(from);
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
    })
}
