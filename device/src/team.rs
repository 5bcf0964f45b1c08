//! Host threads that run the lanes of a step together.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{UnsafeCell, spin_loop};
use crate::{Error, Panicked, Result};

/// Threads that wait close by for the next job: a hand-off takes well under a microsecond while they look around,
/// which they do for some hundred microseconds after each job, and tens of microseconds once they sleep.
pub struct Team {
    members: Vec<Member>,
    /// One run at a time.
    running: Mutex<()>,
}

struct Member {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

type Job<'a> = &'a (dyn Fn(usize) + Sync);

struct Shared {
    /// Counts the jobs given; the member waits for it to change.
    given: AtomicU64,
    /// The job, valid from its count until `done` reaches it. Written by the giver, read by the member.
    job: UnsafeCell<Option<Job<'static>>>,
    done: AtomicU64,
    asleep: AtomicBool,
    stop: AtomicBool,
    panic: Mutex<Option<Panicked>>,
}

// SAFETY: `job` is written only between two jobs, when the member does not read it, and the release of `given` and
// the acquire of it order the accesses; everything else is `Sync` by itself.
unsafe impl Sync for Shared {}

impl Team {
    /// A team of the calling thread and `helpers` more.
    ///
    /// # Errors
    /// [`Error::Io`] if the system gives no thread.
    pub fn new(helpers: usize) -> Result<Team> {
        let mut team = Team { members: Vec::with_capacity(helpers), running: Mutex::new(()) };
        for index in 1..=helpers {
            let shared = Arc::new(Shared {
                given: AtomicU64::new(0),
                job: UnsafeCell::new(None),
                done: AtomicU64::new(0),
                asleep: AtomicBool::new(false),
                stop: AtomicBool::new(false),
                panic: Mutex::new(None),
            });
            let own = Arc::clone(&shared);
            let thread = thread::Builder::new()
                .name(format!("lane {index}"))
                .spawn(move || own.serve(index))
                .map_err(|error| Error::Io { path: "lane thread".into(), source: Arc::new(error) })?;
            team.members.push(Member { shared, thread: Some(thread) });
        }
        Ok(team)
    }

    /// Calls `job(i)` for `i` in `0..=helpers`: 0 on the calling thread, the others on one helper each, all at once.
    /// Returns when all have returned, with the panic of each that panicked.
    pub fn run(&self, job: &(dyn Fn(usize) + Sync)) -> Vec<(usize, Panicked)> {
        let _running = self.running.lock();
        // SAFETY: only the lifetime changes. Every member is waited for below before this call returns, which no
        // panic can skip: the caller's own part is caught.
        let job: Job<'static> = unsafe { std::mem::transmute::<Job<'_>, Job<'static>>(job) };
        for member in &self.members {
            // SAFETY: the member has finished its last job, so it does not read the cell until it is given the next.
            member.shared.job.with_mut(|cell| unsafe { *cell = Some(job) });
            member.give();
        }
        let own = catch_unwind(AssertUnwindSafe(|| job(0)));
        for member in &self.members {
            member.shared.wait_done();
        }
        let own = own.err().map(|payload| (0, Panicked::new(&*payload)));
        let helpers = self.members.iter().enumerate();
        own.into_iter()
            .chain(helpers.filter_map(|(i, m)| Some((i + 1, m.shared.panic.lock().take()?))))
            .collect()
    }
}

impl Member {
    fn give(&self) {
        // One run at a time gives, so this is the only writer.
        let given = self.shared.given.load(Ordering::Relaxed) + 1;
        self.shared.given.store(given, Ordering::Release);
        // Pairs with the fence of `next`: either the sleeper is seen here, or it sees the job there.
        fence(Ordering::SeqCst);
        if self.shared.asleep.load(Ordering::Relaxed) {
            self.wake();
        }
    }

    fn wake(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

/// How often to look before sleeping, and how many of these looks keep the core to themselves.
const LOOKS: usize = if cfg!(loom) { 4 } else { 4096 };
const BUSY_LOOKS: usize = LOOKS / 2;

fn look(round: usize) {
    if round < BUSY_LOOKS { spin_loop() } else { thread::yield_now() }
}

impl Shared {
    fn serve(&self, index: usize) {
        let mut served = 0;
        while self.next(served) {
            served += 1;
            // SAFETY: the acquire in `next` saw the count of this job, and the giver waits for `done` before it
            // touches the cell again.
            if let Some(job) = self.job.with(|cell| unsafe { *cell })
                && let Err(payload) = catch_unwind(AssertUnwindSafe(|| job(index)))
            {
                *self.panic.lock() = Some(Panicked::new(&*payload));
            }
            self.done.store(served, Ordering::Release);
        }
    }

    /// Waits for a job after the `served`th; false if there will be none.
    fn next(&self, served: u64) -> bool {
        let ready = || self.given.load(Ordering::Acquire) > served;
        for round in 0..LOOKS {
            if ready() {
                return true;
            }
            look(round);
        }
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        while !ready() && !self.stop.load(Ordering::Relaxed) {
            thread::park();
        }
        self.asleep.store(false, Ordering::Relaxed);
        ready()
    }

    fn wait_done(&self) {
        let given = self.given.load(Ordering::Relaxed);
        let mut round = 0;
        while self.done.load(Ordering::Acquire) < given {
            look(round);
            round = (round + 1).min(BUSY_LOOKS);
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        for member in &mut self.members {
            member.shared.stop.store(true, Ordering::Relaxed);
            member.wake();
            if let Some(thread) = member.thread.take() {
                // Its panics were caught, so it ends in order.
                let _ = thread.join();
            }
        }
    }
}

impl std::fmt::Debug for Team {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Team").field("helpers", &self.members.len()).finish_non_exhaustive()
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;

    /// What one member of the team works on.
    struct Part(UnsafeCell<u32>);

    // SAFETY: members have a part each while a run lasts, and the caller has all of them between two; loom checks it.
    unsafe impl Sync for Part {}

    impl Part {
        fn add(&self, more: u32) -> u32 {
            self.0.with_mut(|part| {
                // SAFETY: as above.
                unsafe {
                    *part += more;
                    *part
                }
            })
        }
    }

    /// Every part of two runs is done once, after what the caller did before and before what it does afterwards; a helper
    /// that fell asleep is woken for the next run and for the end.
    #[test]
    fn jobs_are_handed_over_and_back() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let team = Team::new(1).expect("a thread");
            let parts = [0, 0].map(|part| Part(UnsafeCell::new(part)));
            for run in 0..2 {
                let panics = team.run(&|i| assert_eq!(parts[i].add(1), 10 * run + 1));
                assert!(panics.is_empty());
                parts.iter().for_each(|part| assert_eq!(part.add(9), 10 * run + 10));
            }
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn every_member_runs_once_a_run() -> Result<()> {
        let team = Team::new(3)?;
        let counts: Vec<AtomicUsize> = (0..4).map(|_| AtomicUsize::new(0)).collect();
        for _ in 0..500 {
            let panics = team.run(&|i| {
                counts[i].fetch_add(1, Ordering::Relaxed);
            });
            assert!(panics.is_empty());
        }
        assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 500));
        Ok(())
    }

    #[test]
    fn sleepers_are_woken() -> Result<()> {
        let team = Team::new(1)?;
        for _ in 0..3 {
            std::thread::sleep(std::time::Duration::from_millis(20));
            let ran = AtomicUsize::new(0);
            team.run(&|_| {
                ran.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(ran.load(Ordering::Relaxed), 2);
        }
        Ok(())
    }

    #[test]
    fn panics_are_returned_and_the_team_goes_on() -> Result<()> {
        let team = Team::new(2)?;
        let panics = team.run(&|i| assert_ne!(i, 1, "no"));
        assert_eq!(panics.iter().map(|panic| panic.0).collect::<Vec<_>>(), [1]);
        let panics = team.run(&|i| assert_ne!(i, 0, "no"));
        assert_eq!(panics.iter().map(|panic| panic.0).collect::<Vec<_>>(), [0]);
        assert!(team.run(&|_| ()).is_empty());
        Ok(())
    }
}
