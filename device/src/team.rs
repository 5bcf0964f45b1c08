//! Host threads that work together: the lanes of a step, the parts of a kernel.

use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::graph::capture;
use crate::recorder::CurrentRange;
use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{spin_loop, thread_local};
use crate::threads::spawn;
use crate::within::{CurrentWithin, may_wait};
use crate::{Error, OnDrop, Panicked, Result, SpinLock, fork};

/// Threads that wait close by for the next job: a hand-off takes well under a microsecond while they look around,
/// which they do for some hundred microseconds after each job, and tens of microseconds once they sleep.
pub struct Team {
    members: Vec<Member>,
    /// One job at a time.
    running: Mutex<()>,
}

struct Member {
    shared: Arc<Mailbox>,
    thread: Option<JoinHandle<()>>,
}

type Job<'a> = &'a (dyn Fn(usize) + Sync);

struct Mailbox {
    /// [`FREE`], [`OFFERED`] or [`TAKEN`].
    state: AtomicU32,
    /// The job, valid from when it is offered until `state` is free again.
    job: SpinLock<Option<Job<'static>>>,
    asleep: AtomicBool,
    stop: AtomicBool,
    panic: Mutex<Option<Panicked>>,
}

/// The member has nothing to do, and the giver may write a job.
const FREE: u32 = 0;
/// There is a job, which the member may take or the giver take back.
const OFFERED: u32 = 1;
/// The member works on it.
const TAKEN: u32 = 2;

/// A thread waits for a team to be free, within runs of others that end only after it.
struct Waiting {
    runs: Runs,
    team: usize,
}

/// Which team's run waits for which team.
static WAITING: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());

impl Waiting {
    /// Refuses to wait for a team that waits, perhaps by way of others, for the end of a run that the thread is within.
    fn new(team: usize) -> Result<Waiting> {
        let runs = RUNS.with(|runs| (**runs.borrow()).clone());
        let mut waiting = WAITING.lock();
        let (mut reached, mut next) = (vec![team], 0);
        while let Some(&from) = reached.get(next) {
            next += 1;
            let to = waiting.iter().filter(|(waits, _)| *waits == from).map(|&(_, to)| to);
            let new: Vec<usize> = to.filter(|to| !reached.contains(to)).collect();
            reached.extend(new);
        }
        if reached.iter().any(|team| runs.contains(team)) {
            return Err(Error::deadlock("Team::run", "a job of a team that it waits for"));
        }
        waiting.extend(runs.iter().map(|&run| (run, team)));
        Ok(Waiting { runs, team })
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut waiting = WAITING.lock();
        for &run in &self.runs {
            if let Some(at) = waiting.iter().position(|&pair| pair == (run, self.team)) {
                waiting.swap_remove(at);
            }
        }
    }
}

impl Team {
    /// The most helpers that a team may have.
    pub const MAX_HELPERS: usize = 1023;

    /// A team of the calling thread and `helpers` more, whose threads are called `<name> 1` and so on.
    ///
    /// # Errors
    /// `InvalidArgument` for more helpers than [`MAX_HELPERS`](Team::MAX_HELPERS), `Io` if the system gives
    /// no thread.
    pub fn new(name: &str, helpers: usize) -> Result<Team> {
        Error::require(helpers <= Team::MAX_HELPERS, "Team::new", "helpers", "at most 1023", helpers)?;
        let mut team = Team { members: Vec::with_capacity(helpers), running: Mutex::new(()) };
        for index in 1..=helpers {
            let shared = Arc::new(Mailbox::new());
            let own = Arc::clone(&shared);
            let thread = spawn(format!("{name} {index}"), move || own.serve(index))?;
            team.members.push(Member { shared, thread: Some(thread) });
        }
        Ok(team)
    }

    /// A team whose helpers are threads that look for work now and then, by [`assist`](Team::assist).
    pub(crate) fn of_visitors(helpers: usize) -> Team {
        let member = || Member { shared: Arc::new(Mailbox::new()), thread: None };
        Team { members: (0..helpers).map(|_| member()).collect(), running: Mutex::new(()) }
    }

    /// Does the job that is offered to helper `index`, counted from 0, if there is one. Never two threads as one helper at
    /// once.
    pub(crate) fn assist(&self, index: usize) -> bool {
        let shared = &self.members[index].shared;
        let taken = shared.is_offered() && shared.change(OFFERED, TAKEN);
        if taken {
            shared.work(index + 1);
        }
        taken
    }

    /// How many threads there are besides the caller's.
    pub fn helpers(&self) -> usize {
        self.members.len()
    }

    /// Calls `job(i)` for `i` in `0..=helpers`: 0 on the calling thread, the others on one helper each, all at once, and in
    /// the [`Capture`](crate::Capture) and the [range](crate::Device::range) that the caller is in.
    /// Returns when all have returned, with the panic of each that panicked.
    ///
    /// # Errors
    /// `Deadlock` from within a job of the same team, directly or by way of other teams' runs, from within one of a team
    /// that this one's job waits for, and where the call would wait within a command or a host read; `Forked`. `job` is not
    /// called.
    pub fn run(&self, job: &(dyn Fn(usize) + Sync)) -> Result<Vec<(usize, Panicked)>> {
        self.run_some(self.members.len(), job)
    }

    /// As [`run`](Team::run), on the calling thread and the first `helpers` helpers; the others are left asleep.
    ///
    /// # Errors
    /// As [`run`](Team::run).
    pub fn run_some(&self, helpers: usize, job: &(dyn Fn(usize) + Sync)) -> Result<Vec<(usize, Panicked)>> {
        fork::check("Team::run")?;
        if RUNS.with(|runs| runs.borrow().contains(&self.id())) {
            return Err(Error::deadlock("Team::run", "a job of the same team"));
        }
        let _running = match self.running.try_lock() {
            Some(running) => running,
            None => {
                // What the team is at may wait for the command.
                may_wait("Team::run")?;
                let _waiting = Waiting::new(self.id())?;
                self.running.lock()
            }
        };
        let (runs, within) = (self.runs(), CurrentWithin::get());
        let (capture, range) = (capture::current(), CurrentRange::get());
        let job =
            |i| as_part_of(&runs, within, || capture::within(capture.clone(), || range.within(|| job(i))));
        Ok(call(&self.members[..helpers.min(self.members.len())], &job, Mailbox::wait))
    }

    /// Calls `job(0)` on the calling thread and, meanwhile, `job(i)` on those of the first `helpers` helpers that come
    /// before the caller has done its own: for work that whoever comes takes parts of. Nobody waits for a helper that
    /// sleeps, and where the team is at work for another caller, this one works alone. Returns as [`run`](Team::run).
    pub fn share(&self, helpers: usize, job: &(dyn Fn(usize) + Sync)) -> Vec<(usize, Panicked)> {
        let Some(_running) = self.running.try_lock() else { return call(&[], job, Mailbox::take_back) };
        let helpers = helpers.min(self.members.len());
        let (runs, within) = (self.runs(), CurrentWithin::get());
        call(&self.members[..helpers], &|i| as_part_of(&runs, within, || job(i)), Mailbox::take_back)
    }

    fn id(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// What the thread's job is part of, and a run of this team.
    fn runs(&self) -> Runs {
        let mut runs = RUNS.with(|runs| (**runs.borrow()).clone());
        runs.push(self.id());
        runs
    }
}

thread_local! {
    /// The teams, by address, of whose runs the thread's job is part. It has no destructor, since ops also run while a thread or
    /// the process ends.
    static RUNS: RefCell<ManuallyDrop<Runs>> = RefCell::default();
}

type Runs = SmallVec<[usize; 2]>;

/// Calls `f` as part of `runs`, within what their caller is within: a command that waits for its helpers holds its locks
/// until they return, so they must not wait for these.
fn as_part_of<R>(runs: &Runs, within: CurrentWithin, f: impl FnOnce() -> R) -> R {
    let swap = |new| RUNS.with(|own| ManuallyDrop::into_inner(own.replace(ManuallyDrop::new(new))));
    let mut outer = swap(runs.clone());
    let _restore = OnDrop(|| drop(swap(std::mem::take(&mut outer))));
    let _within = within.enter();
    f()
}

/// Gives the members the job, does it here, too, and lets `finish` see each member through.
fn call(members: &[Member], job: Job<'_>, finish: impl Fn(&Mailbox)) -> Vec<(usize, Panicked)> {
    // SAFETY: only the lifetime changes. `finish` returns once its member is free, so nobody has the job when this call
    // returns, which no panic can forestall: the caller's own part is caught.
    let given: Job<'static> = unsafe { std::mem::transmute::<Job<'_>, Job<'static>>(job) };
    members.iter().for_each(|member| member.offer(given));
    let own = Panicked::catch(|| job(0));
    members.iter().for_each(|member| finish(&member.shared));
    let own = own.err().map(|panicked| (0, panicked));
    let helpers = members.iter().enumerate();
    own.into_iter().chain(helpers.filter_map(|(i, m)| Some((i + 1, m.shared.panic.lock().take()?)))).collect()
}

impl Member {
    fn offer(&self, job: Job<'static>) {
        let shared = &*self.shared;
        *shared.job.lock() = Some(job);
        shared.state.store(OFFERED, Ordering::Release);
        // Pairs with the fence of `next`: either the sleeper is seen here, or it sees the job there.
        fence(Ordering::SeqCst);
        if shared.asleep.load(Ordering::Relaxed) {
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

impl Mailbox {
    fn new() -> Mailbox {
        Mailbox {
            state: AtomicU32::new(FREE),
            job: SpinLock::new(None),
            asleep: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
        }
    }

    fn serve(&self, index: usize) {
        while self.next() {
            self.work(index);
        }
    }

    /// Does the job that this member has taken.
    fn work(&self, index: usize) {
        let job = *self.job.lock();
        if let Some(job) = job
            && let Err(panicked) = Panicked::catch(|| job(index))
        {
            *self.panic.lock() = Some(panicked);
        }
        self.state.store(FREE, Ordering::Release);
    }

    fn is_offered(&self) -> bool {
        self.state.load(Ordering::Relaxed) == OFFERED
    }

    /// Waits for a job and takes it; false if there will be none.
    fn next(&self) -> bool {
        let offered = || self.is_offered();
        loop {
            for round in 0..LOOKS {
                if offered() && self.change(OFFERED, TAKEN) {
                    return true;
                }
                if self.stop.load(Ordering::Relaxed) {
                    return false;
                }
                look(round);
            }
            self.asleep.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            // Woken too late for one job, it looks around for the next.
            if !offered() && !self.stop.load(Ordering::Relaxed) {
                thread::park();
            }
            self.asleep.store(false, Ordering::Relaxed);
        }
    }

    fn change(&self, from: u32, to: u32) -> bool {
        self.state.compare_exchange(from, to, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Returns when the member has done its job.
    fn wait(&self) {
        let mut round = 0;
        while self.state.load(Ordering::Acquire) != FREE {
            look(round);
            round = (round + 1).min(BUSY_LOOKS);
        }
    }

    /// Takes the job back; if the member has it already, returns when that is done.
    fn take_back(&self) {
        if !self.change(OFFERED, FREE) {
            self.wait();
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        for member in &mut self.members {
            member.shared.stop.store(true, Ordering::Relaxed);
            member.wake();
            // A forked process has no such thread.
            if let Some(thread) = member.thread.take().filter(|_| !fork::is_child()) {
                // Its panics were caught, so it ends in order.
                let _ = thread.join();
            }
        }
    }
}

debug_fields!(Team { members.len() });

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::cell::UnsafeCell;

    use super::*;

    /// What one member of the team works on.
    struct Part(UnsafeCell<u32>);

    // SAFETY: members have a part each while a run lasts, and the caller has all of them between two; loom checks it.
    unsafe impl Sync for Part {}

    impl Part {
        fn add(&self, more: u32) -> u32 {
            self.0.with_mut(|part| {
                // SAFETY: this member is the only one with this part until the run ends.
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
            let team = Team::new("test", 1).expect("a thread");
            let parts = [0, 0].map(|part| Part(UnsafeCell::new(part)));
            for run in 0..2 {
                let panics = team.run(&|i| assert_eq!(parts[i].add(1), 10 * run + 1)).expect("not nested");
                assert!(panics.is_empty());
                parts.iter().for_each(|part| assert_eq!(part.add(9), 10 * run + 10));
            }
        });
    }

    /// A shared job is done by the caller and, before the call returns, by a helper that came in time: the caller then has
    /// both parts to itself.
    #[test]
    fn a_shared_job_is_over_when_the_call_returns() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let team = Team::new("test", 1).expect("a thread");
            let parts = [0, 0].map(|part| Part(UnsafeCell::new(part)));
            for run in 1..=2 {
                let panics = team.share(1, &|i| {
                    parts[i].add(1);
                });
                assert!(panics.is_empty());
                assert_eq!(parts[0].add(0), run);
                assert!(parts[1].add(0) <= run);
            }
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::ErrorKind;

    #[test]
    fn every_member_runs_once_a_run() -> Result<()> {
        let team = Team::new("test", 3)?;
        let counts: Vec<AtomicUsize> = (0..4).map(|_| AtomicUsize::new(0)).collect();
        for _ in 0..500 {
            let panics = team.run(&|i| {
                counts[i].fetch_add(1, Ordering::Relaxed);
            })?;
            assert!(panics.is_empty());
        }
        assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 500));
        Ok(())
    }

    #[test]
    fn sleepers_are_woken() -> Result<()> {
        let team = Team::new("test", 1)?;
        for _ in 0..3 {
            std::thread::sleep(std::time::Duration::from_millis(20));
            let ran = AtomicUsize::new(0);
            team.run(&|_| {
                ran.fetch_add(1, Ordering::Relaxed);
            })?;
            assert_eq!(ran.load(Ordering::Relaxed), 2);
        }
        Ok(())
    }

    #[test]
    fn a_shared_job_waits_for_nobody() -> Result<()> {
        let team = Team::new("test", 2)?;
        let (hold, held) = std::sync::mpsc::channel::<()>();
        let held = Mutex::new(held);
        let [busy, alone] = [AtomicUsize::new(0), AtomicUsize::new(0)];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                team.share(2, &|_| {
                    busy.fetch_add(1, Ordering::Relaxed);
                    let _ = held.lock().recv();
                })
            });
            while busy.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            team.share(2, &|i| {
                alone.fetch_add(i + 1, Ordering::Relaxed);
            });
            // The first job still runs, so the caller of the second one did it by itself.
            assert_eq!(alone.load(Ordering::Relaxed), 1);
            drop(hold);
        });
        Ok(())
    }

    #[test]
    fn panics_are_returned_and_the_team_goes_on() -> Result<()> {
        let team = Team::new("test", 2)?;
        let panics = team.run(&|i| assert_ne!(i, 1, "no"))?;
        assert_eq!(panics.iter().map(|panic| panic.0).collect::<Vec<_>>(), [1]);
        let panics = team.run(&|i| assert_ne!(i, 0, "no"))?;
        assert_eq!(panics.iter().map(|panic| panic.0).collect::<Vec<_>>(), [0]);
        assert!(team.run(&|_| ())?.is_empty());
        Ok(())
    }

    #[test]
    fn a_payload_that_panics_when_it_is_dropped_stops_nobody() -> Result<()> {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                std::panic::resume_unwind(Box::new("again"));
            }
        }
        let team = Team::new("test", 2)?;
        for _ in 0..2 {
            let panics = team.run(&|_| std::panic::resume_unwind(Box::new(Bomb)))?;
            assert_eq!(panics.iter().map(|panic| panic.0).collect::<Vec<_>>(), [0, 1, 2]);
        }
        Ok(())
    }

    /// Two teams whose jobs run each other: one of them is told, and nobody waits for ever.
    #[test]
    fn teams_that_wait_for_each_other_are_told() -> Result<()> {
        let teams = [Team::new("one", 1)?, Team::new("other", 1)?];
        for _ in 0..20 {
            let (both, refused) = (std::sync::Barrier::new(2), AtomicUsize::new(0));
            let cross = |outer: &Team, inner: &Team| {
                let run = |i: usize| {
                    if i == 0 {
                        both.wait();
                        if let Err(error) = inner.run(&|_| ()) {
                            assert!(matches!(error.kind(), ErrorKind::Deadlock { .. }), "{error}");
                            refused.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                };
                outer.run(&run).map(|panics| assert!(panics.is_empty()))
            };
            std::thread::scope(|scope| {
                let crosswise = scope.spawn(|| cross(&teams[1], &teams[0]));
                cross(&teams[0], &teams[1])?;
                crosswise.join().expect("it does not panic")
            })?;
            assert_eq!(refused.load(Ordering::Relaxed), 1);
        }
        assert!(WAITING.lock().is_empty());
        Ok(())
    }

    #[test]
    fn a_run_within_a_run_of_the_same_team_is_refused() -> Result<()> {
        let (outer, inner) = (Team::new("outer", 1)?, Team::new("inner", 1)?);
        let refused = AtomicUsize::new(0);
        let count = |nested: Result<Vec<(usize, Panicked)>>| {
            refused.fetch_add(
                usize::from(matches!(nested.as_ref().map_err(Error::kind), Err(ErrorKind::Deadlock { .. }))),
                Ordering::Relaxed,
            );
        };
        outer.run(&|_| count(outer.run(&|_| ())))?;
        assert_eq!(refused.load(Ordering::Relaxed), 2);
        // Through another team's threads, too.
        outer.run(&|_| count(inner.run(&|_| count(outer.run(&|_| ())))))?;
        assert_eq!(refused.load(Ordering::Relaxed), 6);
        // A job that is shared has the team, too.
        outer.share(0, &|_| count(outer.run(&|_| ())));
        assert_eq!(refused.load(Ordering::Relaxed), 7);
        assert!(outer.run(&|_| ())?.is_empty());
        Ok(())
    }
}
