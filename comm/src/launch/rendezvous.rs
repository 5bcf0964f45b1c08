//! Processes that exchange a few bytes before they can do so by anything faster: over TCP, around rank 0.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::greeting::{GREETING, MAX_TOKEN, OP, Place, Until, accept, connect, number};
use crate::failure::{late, lost, unavailable};
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

/// The most that one rank may give.
const MAX_BYTES: usize = 1 << 20;
/// The most ranks that meet.
const MAX_RANKS: usize = 1 << 16;
/// How long a rank is read from, whatever the time: what it has sent is there, though others were late.
const MOMENT: Duration = Duration::from_millis(20);
/// As good as for ever, and far from what an `Instant` can hold.
const LONGEST: Duration = Duration::from_secs(1 << 32);

/// How an exchange has ended.
const GATHERED: u8 = 0;
const LOST: u8 = 1;
const LATE: u8 = 2;

#[derive::located]
impl Rendezvous {
    /// Meets: rank 0 listens at `address` until the others have come, which try until it does. All prove to each other that they
    /// have the same `token` by keyed hashes of random challenges (HMAC-SHA-256); the token itself is never sent. A connection
    /// that does not prove it within five seconds is closed, and keeps no other one waiting.
    ///
    /// # Errors
    /// `CollectiveTimeout` with the ranks that are missing; `CommUnavailable` if rank 0 cannot listen or rejects this
    /// rank.
    pub fn meet(
        address: SocketAddr,
        rank: usize,
        size: usize,
        token: &str,
        timeout: Duration,
    ) -> Result<Rendezvous> {
        let place = checked(rank, size, token, timeout)?;
        let peers = match rank {
            0 if size == 1 => Vec::new(),
            0 => {
                let cannot = |error| unavailable(format_args!("rank 0 cannot listen at {address}: {error}"));
                accept(&TcpListener::bind(address).map_err(cannot)?, place)?
            }
            _ => vec![connect(address, place)?],
        };
        Ok(Rendezvous { rank, size, timeout: place.timeout, peers })
    }

    /// As [`meet`](Self::meet), of rank 0, which listens already: nobody else can take the address meanwhile.
    ///
    /// # Errors
    /// As for [`meet`](Self::meet).
    pub fn meet_on(listener: TcpListener, size: usize, token: &str, timeout: Duration) -> Result<Rendezvous> {
        let place = checked(0, size, token, timeout)?;
        Ok(Rendezvous { rank: 0, size, timeout: place.timeout, peers: accept(&listener, place)? })
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
    /// `RankLost` on all ranks if one has gone, `CollectiveTimeout` if one does not come, which they name;
    /// `InvalidArgument` for too much.
    pub fn all_gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        Error::require(bytes.len() <= MAX_BYTES, OP, "bytes", "at most 1 MiB", bytes.len())?;
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
        for (index, peer) in self.peers.iter().enumerate() {
            match read_block(Until { stream: peer, deadline: deadline.max(Instant::now() + MOMENT) }) {
                Ok(block) => all.push(block),
                Err(error) => ended.push((index + 1, error)),
            }
        }
        let (kind, ranks) = match ended.iter().find(|(_, error)| !is_late(error)) {
            Some(&(lost, _)) => (LOST, vec![lost]),
            None if ended.is_empty() => (GATHERED, Vec::new()),
            None => (LATE, ended.iter().map(|&(rank, _)| rank).collect()),
        };
        let named = ranks.iter().map(|&rank| (rank as u32).to_be_bytes().to_vec());
        // Who has gone meanwhile is found at the next exchange.
        let answer = framed(kind, &if kind == GATHERED { all.clone() } else { named.collect() });
        let deadline = deadline.max(Instant::now() + GREETING);
        for peer in &self.peers {
            let _ = Until { stream: peer, deadline }.write_all(&answer);
        }
        if kind == GATHERED { Ok(all) } else { Err(self.ended(kind, ranks)) }
    }

    /// Another rank's part.
    fn give(&mut self, bytes: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>> {
        let (size, timeout) = (self.size, self.timeout);
        let peer = &self.peers[0];
        let written = Until { stream: peer, deadline }.write_all(&block(bytes));
        // Rank 0 may have started to wait for the others later.
        let patience = deadline + timeout;
        let answer = written.and_then(|()| read_answer(Until { stream: peer, deadline: patience }, size));
        let ended = |error| self.ended(if is_late(&error) { LATE } else { LOST }, vec![0]);
        let (kind, blocks) = answer.map_err(ended)?;
        if kind == GATHERED {
            return Ok(blocks);
        }
        Err(self.ended(kind, blocks.iter().map(|block| number(block)).collect()))
    }

    /// The error of an exchange that has ended so, because of these ranks.
    fn ended(&self, kind: u8, ranks: Vec<usize>) -> Error {
        if kind == LATE {
            return late(OP, self.timeout, ranks);
        }
        lost(OP, ranks.first().copied().unwrap_or_default(), "its connection ended")
    }
}

/// A rank that may meet others.
fn checked(rank: usize, size: usize, token: &str, timeout: Duration) -> Result<Place<'_>> {
    let value = format_args!("{rank} of {size}");
    let is_valid = rank < size && size <= MAX_RANKS;
    Error::require(is_valid, OP, "rank", "less than the ranks, at most 65536", value)?;
    Error::require(token.len() <= MAX_TOKEN, OP, "token", "at most 256 bytes", token.len())?;
    let timeout = timeout.min(LONGEST);
    Ok(Place { rank, size, token, timeout, deadline: Instant::now() + timeout })
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

fn read_answer(mut stream: Until<'_>, size: usize) -> io::Result<(u8, Vec<Vec<u8>>)> {
    let mut head = [0; 5];
    stream.read_exact(&mut head)?;
    let count = number(&head[1..]);
    if head[0] > LATE || count > size || (head[0] == GATHERED && count != size) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let blocks = (0..count).map(|_| read_block(stream)).collect::<io::Result<_>>()?;
    Ok((head[0], blocks))
}

fn read_block(mut stream: Until<'_>) -> io::Result<Vec<u8>> {
    let mut len = [0; 4];
    stream.read_exact(&mut len)?;
    let len = number(&len);
    if len > MAX_BYTES {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
#[path = "tests.rs"]
mod tests;
