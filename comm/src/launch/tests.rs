//! Ranks that meet, and what keeps them from it.

use std::thread::JoinHandle;

use super::super::greeting::{ANSWER, CHALLENGE, MAGIC, PAUSE, VERDICT, WELCOME};
use super::*;
use crate::ErrorKind;

const LONG: Duration = Duration::from_secs(20);

/// A port that nobody has at the moment.
fn place() -> SocketAddr {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap()
}

fn rank(
    at: SocketAddr,
    rank: usize,
    size: usize,
    token: &'static str,
    timeout: Duration,
) -> JoinHandle<Result<Rendezvous>> {
    std::thread::spawn(move || Rendezvous::meet(at, rank, size, token, timeout))
}

fn group(size: usize, timeout: Duration) -> Vec<Rendezvous> {
    let at = place();
    let ranks: Vec<_> = (0..size).rev().map(|i| rank(at, i, size, "secret", timeout)).collect();
    ranks.into_iter().rev().map(|rank| rank.join().unwrap().unwrap()).collect()
}

/// Connects as soon as somebody listens.
fn stranger(at: SocketAddr) -> TcpStream {
    loop {
        if let Ok(stream) = TcpStream::connect(at) {
            return stream;
        }
        std::thread::sleep(PAUSE);
    }
}

#[test]
fn every_rank_gets_what_each_gives() {
    let ranks = group(4, LONG).into_iter().map(|mut met| {
        std::thread::spawn(move || {
            let all = met.all_gather(&vec![met.rank as u8; met.rank * 1000]).unwrap();
            let id = met.broadcast(format!("id {}", met.rank).as_bytes()).unwrap();
            met.barrier().unwrap();
            (all, id)
        })
    });
    for rank in ranks.collect::<Vec<_>>() {
        let (all, id) = rank.join().unwrap();
        assert_eq!(all, (0..4).map(|r| vec![r as u8; r * 1000]).collect::<Vec<_>>());
        assert_eq!(id, b"id 0");
    }
}

#[test]
fn who_has_another_token_another_size_or_comes_twice_is_sent_away() {
    let at = place();
    let first = rank(at, 0, 3, "secret", LONG);
    let second = rank(at, 1, 3, "secret", LONG).join().unwrap().unwrap();
    for (rank, size, token, says) in
        [(2, 3, "guess!", "token"), (2, 4, "secret", "rank 2 of 4"), (1, 3, "secret", "already")]
    {
        let error = Rendezvous::meet(at, rank, size, token, LONG).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    let third = Rendezvous::meet(at, 2, 3, "secret", LONG).unwrap();
    first.join().unwrap().unwrap();
    drop((second, third));
}

#[test]
fn noise_from_the_network_keeps_nobody_from_meeting() {
    let at = place();
    let first = rank(at, 0, 2, "secret", LONG);
    let mut state = 7_u64;
    for len in (0..60).map(|i| i * 7 % 64) {
        let mut noise: Vec<u8> = (0..len)
            .map(|_| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (state >> 56) as u8
            })
            .collect();
        if len % 2 == 1 {
            // As a rank does, but for the proof.
            noise.splice(..0, [0, 0, 0, 1, 0, 0, 0, 2]);
            noise.resize(ANSWER, 7);
        }
        let _ = stranger(at).write_all(&noise);
    }
    let silent = stranger(at);
    let second = Rendezvous::meet(at, 1, 2, "secret", LONG).unwrap();
    first.join().unwrap().unwrap();
    drop((silent, second));
}

/// Many more than rank 0 could wait for one after the other.
#[test]
fn connections_that_say_nothing_keep_no_rank_waiting() {
    let at = place();
    let first = rank(at, 0, 2, "secret", LONG);
    let silent: Vec<_> = (0..60).map(|_| stranger(at)).collect();
    // Has said a part.
    let slow: Vec<_> = (0..60)
        .map(|_| {
            let mut slow = stranger(at);
            slow.write_all(&MAGIC).unwrap();
            slow
        })
        .collect();
    let second = rank(at, 1, 2, "secret", LONG).join().unwrap();
    assert!(first.join().unwrap().is_ok() && second.is_ok());
    drop((silent, slow));
}

/// Passes on what a rank and rank 0 say to each other, and gives both.
fn overheard(at: SocketAddr, token: &'static str) -> (Vec<u8>, Vec<u8>) {
    let between = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let second = rank(between.local_addr().unwrap(), 1, 2, token, LONG);
    let (mut one, mut zero) = (between.accept().unwrap().0, stranger(at));
    let (mut challenge, mut answer, mut verdict) = ([0; CHALLENGE], [0; ANSWER], [0; VERDICT]);
    zero.read_exact(&mut challenge).unwrap();
    one.write_all(&challenge).unwrap();
    one.read_exact(&mut answer).unwrap();
    zero.write_all(&answer).unwrap();
    zero.read_exact(&mut verdict).unwrap();
    one.write_all(&verdict).unwrap();
    drop(second.join().unwrap().unwrap());
    (answer.to_vec(), [&challenge[..], &verdict].concat())
}

#[test]
fn what_is_overheard_is_neither_the_token_nor_of_use_to_anybody() {
    let at = place();
    let first = rank(at, 0, 2, "secret", LONG);
    let (answer, zero) = overheard(at, "secret");
    first.join().unwrap().unwrap();
    let shows = |said: &[u8]| said.windows(6).any(|part| part == b"secret");
    assert!(!shows(&answer) && !shows(&zero));
    // Said again to another rank 0, which has another challenge.
    let at = place();
    let first = rank(at, 0, 2, "secret", LONG);
    let mut again = stranger(at);
    let mut verdict = [0; CHALLENGE + VERDICT];
    again.write_all(&answer).unwrap();
    again.read_exact(&mut verdict).unwrap();
    assert_ne!(verdict[CHALLENGE], WELCOME);
    drop(rank(at, 1, 2, "secret", LONG).join().unwrap().unwrap());
    first.join().unwrap().unwrap();
}

#[test]
fn who_is_at_the_place_of_rank_0_without_the_token_is_found_out() {
    let between = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let second = rank(between.local_addr().unwrap(), 1, 2, "secret", LONG);
    let mut one = between.accept().unwrap().0;
    one.write_all(&[&MAGIC[..], &[1; 32]].concat()).unwrap();
    one.read_exact(&mut [0; ANSWER]).unwrap();
    one.write_all(&[WELCOME; VERDICT]).unwrap();
    let error = second.join().unwrap().unwrap_err().to_string();
    assert!(error.contains("does not prove"), "{error}");
}

#[test]
fn rank_0_may_listen_before_it_meets() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let at = listener.local_addr().unwrap();
    let second = rank(at, 1, 2, "secret", LONG);
    let first = Rendezvous::meet_on(listener, 2, "secret", LONG).unwrap();
    assert_eq!((first.rank(), first.size(), second.join().unwrap().unwrap().rank()), (0, 2, 1));
}

#[test]
fn who_does_not_come_is_named() {
    let short = Duration::from_millis(300);
    let at = place();
    let first = rank(at, 0, 3, "secret", short);
    let second = rank(at, 1, 3, "secret", short).join().unwrap();
    let error = first.join().unwrap().unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::CollectiveTimeout { missing, .. } if **missing == [2]),
        "{error}"
    );
    drop(second);
    let error = Rendezvous::meet(place(), 1, 2, "secret", short).unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::CollectiveTimeout { missing, .. } if **missing == [0]),
        "{error}"
    );
}

#[test]
fn who_goes_or_is_late_is_named_to_all() {
    let mut ranks = group(3, LONG);
    drop(ranks.remove(2));
    let ranks: Vec<_> = ranks
        .into_iter()
        .map(|mut met| std::thread::spawn(move || met.all_gather(b"x").unwrap_err()))
        .collect();
    for rank in ranks {
        let error = rank.join().unwrap();
        assert!(matches!(error.kind(), ErrorKind::RankLost { rank: 2, .. }), "{error}");
    }

    // The others have come, those that are asked after the slow one as well.
    let mut ranks = group(4, Duration::from_millis(300));
    let slow = ranks.remove(1);
    let ranks: Vec<_> = ranks
        .into_iter()
        .map(|mut met| std::thread::spawn(move || met.all_gather(b"x").unwrap_err()))
        .collect();
    for rank in ranks {
        let error = rank.join().unwrap();
        assert!(
            matches!(error.kind(), ErrorKind::CollectiveTimeout { missing, .. } if **missing == [1]),
            "{error}"
        );
    }
    drop(slow);
}

#[test]
fn a_time_out_may_be_as_long_as_there_is() {
    for mut rank in group(2, Duration::MAX).into_iter().rev() {
        if rank.rank == 0 {
            assert_eq!(rank.all_gather(b"0").unwrap(), [b"0", b"1"]);
        } else {
            std::thread::spawn(move || rank.all_gather(b"1").unwrap());
        }
    }
}
