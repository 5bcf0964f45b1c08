//! How ranks find each other over TCP and prove that they have the same token, which is never sent.
//!
//! Rank 0 sends a challenge. The other rank answers with a challenge of its own and a keyed hash of both, of its rank and of
//! the number of ranks. Rank 0 sends its verdict with a keyed hash of all of that.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use hmac_sha256::HMAC;

use crate::Result;
use crate::failure::{late, unavailable};

pub(super) const OP: &str = "rendezvous";
pub(super) const MAX_TOKEN: usize = 256;

pub(super) const MAGIC: [u8; 8] = *b"strmgrd2";
type Bytes = [u8; 32];

/// [`MAGIC`], then a challenge.
pub(super) const CHALLENGE: usize = 8 + 32;
/// Rank and number of ranks, four bytes each, a challenge, then a keyed hash.
pub(super) const ANSWER: usize = 4 + 4 + 32 + 32;
/// One byte, then a keyed hash.
pub(super) const VERDICT: usize = 1 + 32;

/// How long a connection may take to authenticate. It keeps nobody else waiting.
pub(super) const GREETING: Duration = Duration::from_secs(5);
/// The most connections that have not authenticated. One more replaces the oldest.
const MAX_STRANGERS: usize = 1024;
/// The most connections that are accepted before those that are open are looked at again.
const MAX_ACCEPTED: usize = 64;
pub(super) const PAUSE: Duration = Duration::from_millis(2);

pub(super) const WELCOME: u8 = 0;
const WRONG_TOKEN: u8 = 1;
const WRONG_SIZE: u8 = 2;
const TAKEN: u8 = 3;

/// What both sides know once the other rank has answered.
struct Transcript {
    challenges: [Bytes; 2],
    rank: usize,
    size: usize,
}

impl Transcript {
    /// What proves that the other rank has the token.
    fn answer(&self, token: &str) -> HMAC {
        self.keyed_hash(token, b"rank", 0)
    }

    /// What proves that rank 0 has the token and gave this verdict.
    fn verdict(&self, token: &str, verdict: u8) -> HMAC {
        self.keyed_hash(token, b"zero", verdict)
    }

    /// All parts have fixed lengths, so no two transcripts are the same bytes.
    fn keyed_hash(&self, token: &str, side: &[u8; 4], verdict: u8) -> HMAC {
        let mut hash = HMAC::new(token.as_bytes());
        hash.update(MAGIC);
        hash.update(side);
        self.challenges.iter().for_each(|challenge| hash.update(challenge));
        hash.update((self.rank as u32).to_be_bytes());
        hash.update((self.size as u32).to_be_bytes());
        hash.update([verdict]);
        hash
    }
}

/// A source of challenges.
struct Challenges(File);

impl Challenges {
    fn new() -> Result<Challenges> {
        let opened = File::open("/dev/urandom").map(Challenges);
        opened.map_err(|error| unavailable(format_args!("/dev/urandom: {error}")))
    }

    fn next(&mut self) -> io::Result<Bytes> {
        let mut challenge = Bytes::default();
        self.0.read_exact(&mut challenge)?;
        Ok(challenge)
    }
}

/// A connection whose reads and writes fail with `TimedOut` or `WouldBlock` after a deadline.
#[derive(Clone, Copy)]
pub(super) struct Until<'a> {
    pub(super) stream: &'a TcpStream,
    pub(super) deadline: Instant,
}

impl Until<'_> {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for Until<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(bytes)
    }
}

impl Write for Until<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A connection that has not authenticated.
struct Stranger {
    stream: TcpStream,
    challenge: Bytes,
    answer: [u8; ANSWER],
    /// How many bytes of the answer have come.
    read: usize,
    until: Instant,
}

impl Stranger {
    fn challenged(mut stream: TcpStream, challenge: Bytes) -> io::Result<Stranger> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        // The buffer of a new connection has room for it.
        stream.write_all(&[&MAGIC[..], &challenge].concat())?;
        Ok(Stranger { stream, challenge, answer: [0; ANSWER], read: 0, until: Instant::now() + GREETING })
    }

    /// Whether the whole answer has come.
    fn has_answered(&mut self) -> io::Result<bool> {
        while self.read < ANSWER {
            match self.stream.read(&mut self.answer[self.read..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => self.read += read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Judges the answer: the rank and its connection, if it is one that has not come yet.
    fn judged(mut self, peers: &[Option<TcpStream>], token: &str) -> io::Result<Option<(usize, TcpStream)>> {
        let size = peers.len() + 1;
        let [rank, ranks] = [0, 4].map(|at| number(&self.answer[at..at + 4]));
        let transcript =
            Transcript { challenges: [self.challenge, bytes(&self.answer[8..])], rank, size: ranks };
        let verdict = if !transcript.answer(token).finalize_verify(&bytes(&self.answer[40..])) {
            WRONG_TOKEN
        } else if ranks != size || rank == 0 || rank >= size {
            WRONG_SIZE
        } else if peers[rank - 1].is_some() {
            TAKEN
        } else {
            WELCOME
        };
        self.stream.write_all(&[&[verdict][..], &transcript.verdict(token, verdict).finalize()].concat())?;
        self.stream.set_nonblocking(false)?;
        Ok((verdict == WELCOME).then_some((rank, self.stream)))
    }
}

/// A rank that meets others, and until when.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) rank: usize,
    pub(super) size: usize,
    pub(super) token: &'a str,
    pub(super) timeout: Duration,
    pub(super) deadline: Instant,
}

/// Waits until all other ranks have come; entry `i` is the connection of rank `i + 1`. All connections are looked at by turns, and
/// one that does not authenticate in time is closed.
pub(super) fn accept(listener: &TcpListener, place: Place<'_>) -> Result<Vec<TcpStream>> {
    let Place { size, token, timeout, deadline, .. } = place;
    let cannot = |error| unavailable(format_args!("rank 0 cannot listen: {error}"));
    listener.set_nonblocking(true).map_err(cannot)?;
    let mut challenges = Challenges::new()?;
    let mut peers: Vec<Option<TcpStream>> = (1..size).map(|_| None).collect();
    let mut strangers: Vec<Stranger> = Vec::new();
    while peers.iter().any(Option::is_none) {
        let mut is_idle = true;
        for _ in 0..MAX_ACCEPTED {
            match listener.accept() {
                Ok((stream, _)) => {
                    is_idle = false;
                    let challenged = challenges.next().and_then(|next| Stranger::challenged(stream, next));
                    strangers.extend(challenged.ok());
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // Perhaps there are no more descriptors: the oldest connection gives up its own.
                Err(_) => {
                    if !strangers.is_empty() {
                        strangers.remove(0);
                    }
                    break;
                }
            }
        }
        strangers.drain(..strangers.len().saturating_sub(MAX_STRANGERS));
        for mut stranger in std::mem::take(&mut strangers) {
            match stranger.has_answered() {
                Ok(false) if Instant::now() < stranger.until => strangers.push(stranger),
                Ok(false) | Err(_) => {}
                Ok(true) => {
                    is_idle = false;
                    if let Ok(Some((rank, stream))) = stranger.judged(&peers, token) {
                        peers[rank - 1] = Some(stream);
                    }
                }
            }
        }
        let missing: Vec<usize> = (1..size).filter(|rank| peers[rank - 1].is_none()).collect();
        if !missing.is_empty() && Instant::now() >= deadline {
            return Err(late(OP, timeout, missing));
        }
        if is_idle {
            std::thread::sleep(PAUSE);
        }
    }
    Ok(peers.into_iter().flatten().collect())
}

/// Connects to rank 0, as soon as it listens.
pub(super) fn connect(address: SocketAddr, place: Place<'_>) -> Result<TcpStream> {
    let Place { rank, size, timeout, deadline, .. } = place;
    let mut challenges = Challenges::new()?;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(late(OP, timeout, [0]));
        }
        let answer = TcpStream::connect_timeout(&address, left).and_then(|stream| {
            let verdict = greet(Until { stream: &stream, deadline }, challenges.next()?, place)?;
            Ok((verdict, stream))
        });
        let refused = match answer {
            Ok((Some(WELCOME), stream)) => return Ok(stream),
            Ok((Some(WRONG_TOKEN), _)) => "it has another token".to_owned(),
            Ok((Some(WRONG_SIZE), _)) => format!("it does not wait for rank {rank} of {size}"),
            Ok((Some(TAKEN), _)) => format!("a rank {rank} is already there"),
            Ok(_) => "it does not prove that it has the token".to_owned(),
            // Rank 0 does not listen yet, or has closed a slow connection.
            Err(_) => {
                std::thread::sleep(PAUSE.min(left));
                continue;
            }
        };
        return Err(unavailable(format_args!("rank 0 at {address} sends rank {rank} away: {refused}")));
    }
}

/// Answers rank 0's challenge. Returns its verdict; `None` if that lacks a proof of the token.
fn greet(mut stream: Until<'_>, challenge: Bytes, place: Place<'_>) -> io::Result<Option<u8>> {
    let Place { rank, size, token, .. } = place;
    stream.stream.set_nodelay(true)?;
    let mut challenged = [0; CHALLENGE];
    stream.read_exact(&mut challenged)?;
    if challenged[..8] != MAGIC {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let transcript = Transcript { challenges: [bytes(&challenged[8..]), challenge], rank, size };
    let mut answer = Vec::with_capacity(ANSWER);
    answer.extend((rank as u32).to_be_bytes());
    answer.extend((size as u32).to_be_bytes());
    answer.extend(challenge);
    answer.extend(transcript.answer(token).finalize());
    stream.write_all(&answer)?;
    let mut verdict = [0; VERDICT];
    stream.read_exact(&mut verdict)?;
    let proven = transcript.verdict(token, verdict[0]).finalize_verify(&bytes(&verdict[1..]));
    // A peer with another token cannot compute the keyed hash, so that verdict comes without proof.
    Ok((proven || verdict[0] == WRONG_TOKEN).then_some(verdict[0]))
}

fn bytes(from: &[u8]) -> Bytes {
    let mut bytes = Bytes::default();
    bytes.copy_from_slice(&from[..32]);
    bytes
}

pub(super) fn number(bytes: &[u8]) -> usize {
    bytes.iter().fold(0, |number, &byte| number << 8 | usize::from(byte))
}
