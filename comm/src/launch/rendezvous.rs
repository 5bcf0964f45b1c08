//! Processes that exchange a few bytes before they can do so by anything faster: over TCP, around rank 0.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::variables::unavailable;
use crate::{Error, Result};

/// Ranks that have met over TCP. Rank 0 has a connection to each of the others; they have one to it.
#[derive(Debug)]
pub struct Rendezvous {
    rank: usize,
    size: usize,
    timeout: Duration,
    /// Of rank 0: to ranks 1, 2, ..; of another: to rank 0.
    peers: Vec<TcpStream>,
}

const OP: &str = "rendezvous";
const MAGIC: [u8; 8] = *b"strmgrd1";
/// The most that one rank may give.
const MAX_BYTES: usize = 1 << 20;
const MAX_TOKEN: usize = 256;
/// The most ranks that meet.
const MAX_RANKS: usize = 1 << 16;
/// How long a stranger may take to say who it is.
const GREETING: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(2);
/// How long a rank is read from, whatever the time: what it has sent is there, though others were late.
const MOMENT: Duration = Duration::from_millis(20);
/// As good as for ever, and far from what an `Instant` can hold.
const LONGEST: Duration = Duration::from_secs(1 << 32);

/// What rank 0 answers.
const WELCOME: u8 = 0;
const WRONG_TOKEN: u8 = 1;
const WRONG_SIZE: u8 = 2;
const TAKEN: u8 = 3;
/// How an exchange has ended.
const GATHERED: u8 = 0;
const LOST: u8 = 1;
const LATE: u8 = 2;

impl Rendezvous {
    /// Meets: rank 0 listens at `address` until the others have come, which try until it does. Who shows another `token` is sent
    /// away, as is whoever says nothing that makes sense.
    ///
    /// # Errors
    /// [`Error::CollectiveTimeout`] that names who has not come; [`Error::CommUnavailable`] where rank 0 cannot listen, or sends
    /// this rank away.
    pub fn meet(
        address: SocketAddr,
        rank: usize,
        size: usize,
        token: &str,
        timeout: Duration,
    ) -> Result<Rendezvous> {
        if rank >= size || size > MAX_RANKS {
            return Err(Error::invalid(
                OP,
                "rank",
                "less than the ranks, at most 65536",
                format_args!("{rank} of {size}"),
            ));
        }
        if token.len() > MAX_TOKEN {
            return Err(Error::invalid(OP, "token", "at most 256 bytes", token.len()));
        }
        let timeout = timeout.min(LONGEST);
        let deadline = Instant::now() + timeout;
        let peers = if rank == 0 {
            accept(address, size, token, deadline, timeout)?
        } else {
            vec![connect(address, rank, size, token, deadline, timeout)?]
        };
        Ok(Rendezvous { rank, size, timeout, peers })
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many have met.
    pub fn size(&self) -> usize {
        self.size
    }

    /// What each rank gives, by rank. Every rank calls it, with at most 1 MiB.
    ///
    /// # Errors
    /// [`Error::RankLost`] on all ranks if one has gone, [`Error::CollectiveTimeout`] if one does not come, which they name;
    /// [`Error::InvalidArgument`] for too much.
    pub fn all_gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        if bytes.len() > MAX_BYTES {
            return Err(Error::invalid(OP, "bytes", "at most 1 MiB", bytes.len()));
        }
        let deadline = Instant::now() + self.timeout;
        if self.rank == 0 { self.gather(bytes, deadline) } else { self.give(bytes, deadline) }
    }

    /// What rank 0 gives; what the others give is nothing to anyone. Every rank calls it.
    ///
    /// # Errors
    /// As for [`all_gather`](Self::all_gather).
    pub fn broadcast(&mut self, bytes: &[u8]) -> Result<Vec<u8>> {
        let given = if self.rank == 0 { bytes } else { &[] };
        Ok(self.all_gather(given)?.swap_remove(0))
    }

    /// Returns when every rank has called it.
    ///
    /// # Errors
    /// As for [`all_gather`](Self::all_gather).
    pub fn barrier(&mut self) -> Result<()> {
        self.all_gather(&[]).map(drop)
    }

    /// Rank 0's part.
    fn gather(&mut self, bytes: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>> {
        let mut all = vec![bytes.to_vec()];
        let mut ended = Vec::new();
        for (index, peer) in self.peers.iter_mut().enumerate() {
            match read_block(peer, deadline.max(Instant::now() + MOMENT), MAX_BYTES) {
                Ok(block) => all.push(block),
                Err(error) => ended.push((index + 1, error)),
            }
        }
        let lost = ended.iter().find(|(_, error)| !is_late(error)).map(|&(rank, _)| rank);
        let late: Vec<usize> = ended.iter().map(|&(rank, _)| rank).collect();
        let (kind, blocks) = match lost {
            Some(rank) => (LOST, vec![(rank as u32).to_be_bytes().to_vec()]),
            None if late.is_empty() => (GATHERED, all.clone()),
            None => (LATE, late.iter().map(|&rank| (rank as u32).to_be_bytes().to_vec()).collect()),
        };
        // Who has gone meanwhile is found at the next exchange.
        let answer = framed(kind, &blocks);
        let deadline = deadline.max(Instant::now() + GREETING);
        for peer in &mut self.peers {
            let _ = write_all(peer, &answer, deadline);
        }
        match kind {
            LOST => Err(lost_rank(lost.unwrap_or_default())),
            LATE => Err(self.late(late)),
            _ => Ok(all),
        }
    }

    /// Another rank's part.
    fn give(&mut self, bytes: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>> {
        let (size, timeout) = (self.size, self.timeout);
        let peer = &mut self.peers[0];
        // Rank 0 waits as long for the others, from a later start on perhaps.
        let patience = deadline + timeout;
        let answer =
            write_all(peer, &block(bytes), deadline).and_then(|()| read_answer(peer, patience, size));
        let (kind, mut blocks) = answer.map_err(|error| match is_late(&error) {
            true => self.late(vec![0]),
            false => lost_rank(0),
        })?;
        if kind == GATHERED {
            return Ok(blocks);
        }
        let ranks: Vec<usize> = blocks
            .drain(..)
            .filter_map(|block| Some(u32::from_be_bytes(block.try_into().ok()?) as usize))
            .collect();
        Err(if kind == LOST {
            lost_rank(ranks.first().copied().unwrap_or_default())
        } else {
            self.late(ranks)
        })
    }

    fn late(&self, missing: Vec<usize>) -> Error {
        late(self.timeout, missing)
    }
}

fn late(timeout: Duration, missing: Vec<usize>) -> Error {
    let waited_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
    Error::CollectiveTimeout { op: OP, waited_ms, missing: missing.into() }
}

fn lost_rank(rank: usize) -> Error {
    Error::RankLost { op: OP, rank, reason: "its connection ended".into() }
}

/// Listens until all others have come.
fn accept(
    address: SocketAddr,
    size: usize,
    token: &str,
    deadline: Instant,
    timeout: Duration,
) -> Result<Vec<TcpStream>> {
    if size == 1 {
        return Ok(Vec::new());
    }
    let cannot = |error| unavailable(format_args!("rank 0 cannot listen at {address}: {error}"));
    let listener = TcpListener::bind(address).map_err(cannot)?;
    listener.set_nonblocking(true).map_err(cannot)?;
    let mut peers: Vec<Option<TcpStream>> = (1..size).map(|_| None).collect();
    while peers.iter().any(Option::is_none) {
        if let Ok((stranger, _)) = listener.accept() {
            let until = deadline.min(Instant::now() + GREETING);
            if let Ok(Some((rank, stream))) = welcome(stranger, &peers, size, token, until) {
                peers[rank - 1] = Some(stream);
            }
        } else if Instant::now() < deadline {
            std::thread::sleep(PAUSE);
        } else {
            let missing = (1..size).filter(|rank| peers[rank - 1].is_none()).collect();
            return Err(late(timeout, missing));
        }
    }
    Ok(peers.into_iter().flatten().collect())
}

/// Who a stranger is, if it is one of the ranks that have not come yet.
fn welcome(
    mut stream: TcpStream,
    peers: &[Option<TcpStream>],
    size: usize,
    token: &str,
    until: Instant,
) -> io::Result<Option<(usize, TcpStream)>> {
    stream.set_nonblocking(false)?;
    let mut greeting = [0; 16];
    read_exact(&mut stream, &mut greeting, until)?;
    if greeting[..8] != MAGIC {
        return Ok(None);
    }
    let [rank, ranks] = [8, 12].map(|at| number(&greeting[at..at + 4]));
    let shown = read_block(&mut stream, until, MAX_TOKEN)?;
    let answer = if !equal(&shown, token.as_bytes()) {
        WRONG_TOKEN
    } else if ranks != size || rank == 0 || rank >= size {
        WRONG_SIZE
    } else if peers[rank - 1].is_some() {
        TAKEN
    } else {
        WELCOME
    };
    write_all(&mut stream, &[answer], until)?;
    Ok((answer == WELCOME).then_some((rank, stream)))
}

/// Tries until rank 0 listens.
fn connect(
    address: SocketAddr,
    rank: usize,
    size: usize,
    token: &str,
    deadline: Instant,
    timeout: Duration,
) -> Result<TcpStream> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(late(timeout, vec![0]));
        }
        let answer = TcpStream::connect_timeout(&address, left)
            .and_then(|stream| greet(stream, rank, size, token, deadline));
        let refused = match answer {
            Ok((WELCOME, stream)) => return Ok(stream),
            Ok((WRONG_TOKEN, _)) => "it has another token".to_owned(),
            Ok((WRONG_SIZE, _)) => format!("it does not wait for rank {rank} of {size}"),
            Ok((TAKEN, _)) => format!("a rank {rank} is already there"),
            // Not there yet, or has had enough of a slow one.
            Ok(_) | Err(_) => {
                std::thread::sleep(PAUSE.min(left));
                continue;
            }
        };
        return Err(unavailable(format_args!("rank 0 at {address} sends rank {rank} away: {refused}")));
    }
}

fn greet(
    mut stream: TcpStream,
    rank: usize,
    size: usize,
    token: &str,
    deadline: Instant,
) -> io::Result<(u8, TcpStream)> {
    stream.set_nodelay(true)?;
    let mut greeting = MAGIC.to_vec();
    greeting.extend((rank as u32).to_be_bytes());
    greeting.extend((size as u32).to_be_bytes());
    greeting.extend(block(token.as_bytes()));
    write_all(&mut stream, &greeting, deadline)?;
    let mut answer = [0];
    read_exact(&mut stream, &mut answer, deadline)?;
    Ok((answer[0], stream))
}

/// In a time that does not tell where they differ.
fn equal(shown: &[u8], token: &[u8]) -> bool {
    let differ = shown.iter().zip(token).fold(0, |differ, (a, b)| differ | (a ^ b));
    shown.len() == token.len() && std::hint::black_box(differ) == 0
}

fn number(bytes: &[u8]) -> usize {
    bytes.iter().fold(0, |number, &byte| number << 8 | usize::from(byte))
}

fn block(bytes: &[u8]) -> Vec<u8> {
    let mut block = (bytes.len() as u32).to_be_bytes().to_vec();
    block.extend(bytes);
    block
}

fn framed(kind: u8, blocks: &[Vec<u8>]) -> Vec<u8> {
    let mut frame = vec![kind];
    frame.extend((blocks.len() as u32).to_be_bytes());
    blocks.iter().for_each(|bytes| frame.extend(block(bytes)));
    frame
}

fn read_answer(stream: &mut TcpStream, deadline: Instant, size: usize) -> io::Result<(u8, Vec<Vec<u8>>)> {
    let mut head = [0; 5];
    read_exact(stream, &mut head, deadline)?;
    let count = number(&head[1..]);
    if head[0] > LATE || count > size || (head[0] == GATHERED && count != size) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let blocks = (0..count).map(|_| read_block(stream, deadline, MAX_BYTES)).collect::<io::Result<_>>()?;
    Ok((head[0], blocks))
}

fn read_block(stream: &mut TcpStream, deadline: Instant, most: usize) -> io::Result<Vec<u8>> {
    let mut len = [0; 4];
    read_exact(stream, &mut len, deadline)?;
    let len = number(&len);
    if len > most {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; len];
    read_exact(stream, &mut bytes, deadline)?;
    Ok(bytes)
}

fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// What is left until `deadline`, as a time-out of a socket.
fn left(deadline: Instant) -> io::Result<Option<Duration>> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
}

fn read_exact(stream: &mut TcpStream, mut bytes: &mut [u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.set_read_timeout(left(deadline)?)?;
        match stream.read(bytes) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => bytes = &mut bytes[read..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn write_all(stream: &mut TcpStream, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.set_write_timeout(left(deadline)?)?;
        match stream.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
#[path = "tests.rs"]
mod tests;
