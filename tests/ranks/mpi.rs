//! Ranks that are processes of MPI, by each launcher that this machine has: `mpirun` runs an ignored test of this binary.

use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use streamgrad::comm::{CommOptions, ReduceOrder};
use streamgrad::device::as_bytes;
use streamgrad::prelude::*;
use streamgrad::{Element, Error, ErrorKind, Result};

#[path = "../../examples/ranks.rs"]
mod example;

use crate::common::folder::Folder;
use crate::faults::{COLLECTIVES, Choice, Collectives, End, program, source};
use crate::training::{Images, Language, parallel, serial};
use crate::{collectives, forum, on_ranks};

/// A program that starts ranks.
struct Launcher {
    program: &'static str,
    options: &'static [&'static str],
    /// So that it spares the other ranks where one is killed, if it can.
    lenient: Option<&'static str>,
}

const OPEN_MPI: Launcher = Launcher {
    program: "mpirun.openmpi",
    options: &["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"],
    lenient: Some("--enable-recovery"),
};
const MPICH: Launcher = Launcher { program: "mpirun.mpich", options: &[], lenient: None };

/// Those of this machine.
fn launchers() -> Vec<Launcher> {
    let version =
        |program| Command::new(program).arg("--version").output().ok().filter(|o| o.status.success());
    let mut found: Vec<_> =
        [OPEN_MPI, MPICH].into_iter().filter(|launcher| version(launcher.program).is_some()).collect();
    if let Some(version) = version("mpirun").filter(|_| found.is_empty()) {
        let is_open = String::from_utf8_lossy(&version.stdout).contains("Open MPI");
        found.push(Launcher { program: "mpirun", ..if is_open { OPEN_MPI } else { MPICH } });
    }
    // One that cannot start a thing here, as in a box without a network, says nothing of ranks.
    found.retain(|launcher| launcher.command(2, &[]).arg("true").output().is_ok_and(|o| o.status.success()));
    if found.is_empty() {
        eprintln!("skipped: no mpirun that starts processes here");
    }
    found
}

impl Launcher {
    /// So many times what is added to it, which ends in any case.
    fn command(&self, ranks: usize, more: &[&str]) -> Command {
        let mut command = Command::new("timeout");
        command.args(["-k", "5", "180", self.program]).args(self.options).args(more);
        command.args(["-np", &ranks.to_string()]);
        command
    }

    /// Runs an ignored test of this module as so many ranks.
    fn run(&self, ranks: usize, more: &[&str], test: &str, folder: &str) -> Output {
        // Ranks that wait look around: launches at once would take each other's cores.
        static ONE: Mutex<()> = Mutex::new(());
        let _alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let mut command = self.command(ranks, more);
        command.arg(std::env::current_exe().unwrap()).args(["--exact", &format!("mpi::{test}")]);
        command.args(["--ignored", "--nocapture"]).env(FOLDER, folder).env("STREAMGRAD_THREADS", "1");
        command.output().unwrap()
    }

    /// What each rank says, of a test that ends well.
    fn said(&self, ranks: usize, test: &str) -> Vec<String> {
        let folder = Folder::new(test);
        let output = self.run(ranks, &[], test, &folder.file("."));
        assert!(output.status.success(), "{} {test}: {output:?}", self.program);
        (0..ranks).map(|rank| said_by(&folder, rank).unwrap()).collect()
    }
}

/// Where ranks leave what they say.
const FOLDER: &str = "STREAMGRAD_TEST_FOLDER";

fn said_by(folder: &Folder, rank: usize) -> Option<String> {
    std::fs::read_to_string(folder.file(&rank.to_string())).ok()
}

fn say(rank: usize, text: &str) {
    let folder = std::env::var(FOLDER).unwrap();
    let path = |name: &str| Path::new(&folder).join(name);
    std::fs::write(path(&format!("{rank}.part")), text).unwrap();
    std::fs::rename(path(&format!("{rank}.part")), path(&rank.to_string())).unwrap();
}

/// Waits until so many ranks have said something: a launcher ends all that are left when one ends without the others.
fn until_said(ranks: &[usize]) {
    let folder = std::env::var(FOLDER).unwrap();
    let begin = Instant::now();
    let said = |rank: &usize| Path::new(&folder).join(rank.to_string()).exists();
    while !ranks.iter().all(said) && begin.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn mpi(order: ReduceOrder, timeout: u64) -> Communicator {
    let options = CommOptions { order, timeout: Duration::from_secs(timeout), ..CommOptions::default() };
    Communicator::mpi_with(&Device::cpu(), options).unwrap()
}

/// Elements of a rank, whose sums depend on the order.
fn given(comm: &Communicator, elements: usize, dtype: DType) -> Result<Tensor> {
    let at = |at: usize| {
        let whole = ((at * 37 + comm.rank() * 11) % 23) as f64;
        match dtype {
            DType::Bool => whole % 2.0,
            DType::I64 | DType::U8 => whole,
            _ => 1.0 / (whole + 3.0) - 0.1,
        }
    };
    let values: Vec<f64> = (0..elements).map(at).collect();
    Tensor::from_slice(&values, &[elements], comm.device())?.to_dtype(dtype)
}

const REDUCTIONS: [Reduce; 5] = [Reduce::Sum, Reduce::Mean, Reduce::Max, Reduce::Min, Reduce::Prod];

/// The bytes that every collective gives to a rank, of one type.
fn every_collective<T: Element>(comm: &Communicator) -> Result<Vec<Vec<u8>>> {
    let (rank, size) = (comm.rank(), comm.size());
    let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
    let mut all = Vec::new();
    let mut keep = |x: Tensor| -> Result<()> {
        all.push(as_bytes(&x.to_vec::<T>()?).to_vec());
        Ok(())
    };
    for elements in [0, 1, 7, 5000].map(|part| part * size) {
        let x = given(comm, elements, T::DTYPE)?;
        x.send(comm, next)?;
        keep(Tensor::recv(&[elements], T::DTYPE, comm, before)?)?;
        for reduce in REDUCTIONS {
            let refused = match reduce {
                Reduce::Mean => !T::DTYPE.is_float(),
                Reduce::Sum | Reduce::Prod => T::DTYPE == DType::Bool,
                Reduce::Max | Reduce::Min => false,
            };
            if !refused {
                keep(x.all_reduce(comm, reduce)?)?;
                keep(x.narrow(0, 0, elements - elements.min(1))?.all_reduce(comm, reduce)?)?;
                keep(x.reduce_scatter(comm, reduce)?)?;
            }
        }
        keep(x.all_gather(comm)?)?;
        keep(x.all_to_all(comm)?)?;
        keep(x.broadcast(comm, size - 1)?)?;
    }
    Ok(all)
}

fn every_type(comm: &Communicator) -> Result<Vec<Vec<Vec<u8>>>> {
    Ok(vec![
        every_collective::<f32>(comm)?,
        every_collective::<f64>(comm)?,
        every_collective::<streamgrad::bf16>(comm)?,
        every_collective::<streamgrad::f16>(comm)?,
        every_collective::<i64>(comm)?,
        every_collective::<u8>(comm)?,
        every_collective::<bool>(comm)?,
    ])
}

/// What a program gives to this rank among threads.
fn on_threads<R: Send>(comm: &Communicator, program: impl Fn(&Communicator) -> Result<R> + Sync) -> R {
    on_ranks(comm.size(), program).swap_remove(comm.rank()).unwrap()
}

#[test]
#[ignore = "a rank of MPI"]
fn rank_collectives() {
    let comm = mpi(ReduceOrder::Ranks, 60);
    assert!(every_type(&comm).unwrap() == on_threads(&comm, every_type));
    // More than is moved at once.
    let large = |comm: &Communicator| -> Result<Vec<Vec<u8>>> {
        let x = given(comm, (33 << 20) + 1, DType::U8)?;
        Ok(vec![x.all_reduce(comm, Reduce::Sum)?.to_vec::<u8>()?, x.broadcast(comm, 1)?.to_vec::<u8>()?])
    };
    if comm.size() == 2 {
        assert!(large(&comm).unwrap() == on_threads(&comm, large));
    }
    // Two at once, of a part each; and in another order.
    let parts = |comm: &Communicator| -> Result<Vec<u32>> {
        let part = comm.split(Some(comm.rank() % 2), comm.size() - comm.rank())?.unwrap();
        let none = comm.split((comm.rank() == 0).then_some(7), 0)?;
        assert_eq!(none.is_some(), comm.rank() == 0);
        let gathered = given(comm, 4, DType::F32)?.all_gather(&part)?;
        crate::common::bits(&gathered.all_reduce(&comm.duplicate()?, Reduce::Sum)?)
    };
    assert_eq!(parts(&comm).unwrap(), on_threads(&comm, parts));
    let stream = comm.device().default_stream();
    comm.barrier(&stream).unwrap();
    stream.synchronize().unwrap();
    say(comm.rank(), &format!("{} of {}", comm.rank(), comm.size()));
}

#[test]
fn collectives_by_mpi_give_the_bits_of_threads() {
    for launcher in launchers() {
        for ranks in [2, 4] {
            let expected: Vec<_> = (0..ranks).map(|rank| format!("{rank} of {ranks}")).collect();
            assert_eq!(launcher.said(ranks, "rank_collectives"), expected);
        }
    }
}

#[test]
#[ignore = "a rank of MPI"]
fn rank_fast() {
    let comm = mpi(ReduceOrder::Fast, 60);
    let close = |x: &Tensor, y: &Tensor| -> Result<bool> {
        let (x, y) = (x.to_vec::<f32>()?, y.to_vec::<f32>()?);
        Ok(x.iter().zip(&y).all(|(x, y)| (x - y).abs() <= 1e-6 * y.abs().max(1.0)))
    };
    for reduce in REDUCTIONS {
        let x = given(&comm, 5000, DType::F32).unwrap();
        let sum = x.all_reduce(&comm, reduce).unwrap();
        let expected = on_threads(&comm, |comm| given(comm, 5000, DType::F32)?.all_reduce(comm, reduce));
        assert!(close(&sum, &expected).unwrap(), "{reduce}");
        // All ranks have the same bits.
        let first = sum.broadcast(&comm, 0).unwrap();
        assert_eq!(crate::common::bits(&first).unwrap(), crate::common::bits(&sum).unwrap());
    }
    say(comm.rank(), "done");
}

#[test]
fn mpi_may_add_in_its_own_order() {
    for launcher in launchers() {
        assert_eq!(launcher.said(4, "rank_fast"), ["done"; 4]);
    }
}

#[test]
#[ignore = "a rank of MPI"]
fn rank_training() {
    let comm = mpi(ReduceOrder::Ranks, 60);
    let size = comm.size();
    assert!(forum::rank(&comm).unwrap() == forum::single_process(size).unwrap());
    let expected = serial(&Language, size, comm.device()).unwrap();
    for (bucket_bytes, captured) in [(25 << 20, false), (1, false), (4096, true)] {
        assert!(parallel(&Language, &comm, bucket_bytes, captured).unwrap() == expected);
    }
    assert!(
        parallel(&Images, &comm, 65_536, false).unwrap() == serial(&Images, size, comm.device()).unwrap()
    );
    for (name, f) in collectives::FUNCTIONS {
        let x = collectives::input(&comm, size).unwrap();
        collectives::check(&comm, name, &x, &|x| collectives::loss(&comm, &f(&comm, x)?)).unwrap();
    }
    say(comm.rank(), "equal");
}

#[test]
fn training_by_mpi_equals_one_process() {
    for launcher in launchers() {
        assert_eq!(launcher.said(2, "rank_training"), ["equal"; 2]);
        assert_eq!(launcher.said(4, "rank_training"), ["equal"; 4]);
    }
}

#[test]
#[ignore = "a rank of MPI"]
fn rank_example() {
    let launch = streamgrad::comm::Launch::from_env().unwrap().unwrap();
    if Device::cuda(0).is_ok() {
        return say(launch.rank, "skipped: ranks on a GPU use NCCL");
    }
    example::main().unwrap();
    say(launch.rank, "trained");
}

#[test]
fn the_environment_leads_to_mpi() {
    for launcher in launchers() {
        for said in launcher.said(3, "rank_example") {
            assert!(said == "trained" || said.starts_with("skipped"), "{said}");
        }
    }
}

#[test]
#[ignore = "a rank of MPI"]
fn rank_cuda() {
    let options = CommOptions { timeout: Duration::from_secs(60), ..CommOptions::default() };
    let cuda = Device::cuda(0).unwrap();
    let comm = Communicator::mpi_with(&cuda, options).unwrap();
    assert!(every_collective::<f32>(&comm).unwrap() == on_threads(&comm, every_collective::<f32>));
    let side = cuda.new_stream().unwrap();
    cuda.start_audit();
    let x = given(&comm, 9, DType::F32).unwrap();
    let sum = side.scope(|| x.all_reduce(&comm, Reduce::Sum)).unwrap();
    let sum = crate::common::bits(&sum).unwrap();
    assert_eq!(cuda.stop_audit().hazards(), []);
    assert_eq!(
        sum,
        on_threads(&comm, |comm| {
            crate::common::bits(&given(comm, 9, DType::F32)?.all_reduce(comm, Reduce::Sum)?)
        })
    );
    say(comm.rank(), "equal");
    // An error of the host's is the device's.
    if comm.rank() == 0 {
        end(&comm, x.all_reduce(&comm, Reduce::Sum).map(drop));
    }
}

#[test]
fn elements_of_a_cuda_device_go_through_the_host() {
    if Device::cuda(0).is_err() {
        return eprintln!("skipped: no CUDA device");
    }
    for launcher in launchers() {
        let said = launcher.survivors(2, &[], "rank_cuda", &[0, 1]);
        assert!(said[0].contains("RankLost") && said[0].contains("rank: 1"), "{said:?}");
        assert_eq!(said[1], "equal");
    }
}

/// What ended a rank.
fn end(comm: &Communicator, result: Result<()>) {
    let error = result.and_then(|()| comm.device().synchronize()).unwrap_err();
    say(comm.rank(), &format!("{:?}", source(&error).kind()));
}

#[test]
#[ignore = "a rank of MPI"]
fn rank_mismatch() {
    let comm = mpi(ReduceOrder::Ranks, 60);
    let x = Tensor::ones(&[2 + comm.rank() / 2], DType::F32, comm.device()).unwrap();
    end(&comm, x.all_reduce(&comm, Reduce::Sum).map(drop));
    // The group is of no use any more.
    assert!(matches!(
        x.all_reduce(&comm, Reduce::Sum).as_ref().map_err(Error::kind),
        Err(ErrorKind::CollectiveMismatch { .. })
    ));
    until_said(&[0, 1, 2]);
}

#[test]
#[ignore = "a rank of MPI"]
fn rank_message_mismatch() {
    let comm = mpi(ReduceOrder::Ranks, 60);
    let x = Tensor::ones(&[2], DType::F32, comm.device()).unwrap();
    if comm.rank() == 0 {
        x.send(&comm, 1).unwrap();
        end(&comm, x.all_reduce(&comm, Reduce::Sum).map(drop));
    } else {
        end(&comm, Tensor::recv(&[3], DType::F32, &comm, 0).map(drop));
    }
    until_said(&[0, 1]);
}

#[test]
#[ignore = "a rank of MPI"]
fn rank_only_sends() {
    let comm = mpi(ReduceOrder::Ranks, 60);
    let x = Tensor::ones(&[2], DType::F32, comm.device()).unwrap();
    if comm.rank() == 1 {
        end(&comm, Tensor::recv(&[3], DType::F32, &comm, 0).map(drop));
        until_said(&[0]);
        return;
    }
    x.send(&comm, 1).unwrap();
    until_said(&[1]);
    // It reads no messages but those that tell of failures.
    let begin = Instant::now();
    let mut result = Ok(());
    while result.is_ok() && begin.elapsed() < Duration::from_secs(30) {
        result = x.send(&comm, 1).and_then(|()| comm.device().synchronize());
    }
    end(&comm, result);
}

#[test]
#[ignore = "a rank of MPI"]
fn rank_without_elements() {
    let comm = mpi(ReduceOrder::Ranks, 60);
    let sum = |elements: usize| -> Result<()> {
        Tensor::ones(&[elements], DType::F32, comm.device())?.all_reduce(&comm, Reduce::Sum).map(drop)
    };
    end(&comm, sum(2 * comm.rank()).and_then(|()| sum(2)));
    until_said(&[0, 1]);
}

/// Rank 1 leaves, in one of several ways, before or at its second collective.
fn leave(how: &str, timeout: u64) {
    let comm = mpi(ReduceOrder::Ranks, timeout);
    let survivors: Vec<usize> = (0..comm.size()).filter(|&rank| rank != 1).collect();
    let x = Tensor::ones(&[20_000], DType::F32, comm.device()).unwrap();
    x.all_reduce(&comm, Reduce::Sum).unwrap();
    comm.device().synchronize().unwrap();
    if comm.rank() != 1 {
        end(&comm, x.all_reduce(&comm, Reduce::Sum).map(drop));
    } else if how == "is killed" {
        std::process::abort();
    } else if how == "is late" {
        until_said(&survivors);
        end(&comm, x.all_reduce(&comm, Reduce::Sum).map(drop));
    } else {
        drop(comm);
    }
    until_said(&survivors);
    if how == "is late" {
        until_said(&[1]);
    }
}

#[test]
#[ignore = "a rank of MPI"]
fn rank_leaves() {
    leave("goes", 60);
}

#[test]
#[ignore = "a rank of MPI"]
fn rank_late() {
    leave("is late", 3);
}

#[test]
#[ignore = "a rank of MPI"]
fn rank_killed() {
    leave("is killed", 3);
}

impl Launcher {
    /// What ranks say of which some do not end well.
    fn survivors(&self, ranks: usize, more: &[&str], test: &str, survivors: &[usize]) -> Vec<String> {
        let folder = Folder::new(test);
        let output = self.run(ranks, more, test, &folder.file("."));
        let said = |&rank: &usize| {
            said_by(&folder, rank)
                .unwrap_or_else(|| panic!("{} {test}, rank {rank}: {output:?}", self.program))
        };
        survivors.iter().map(said).collect()
    }
}

/// Whether it says that rank 1 is missing, by itself or as another one has told.
fn names_first(error: &str) -> bool {
    error.contains("missing: [1]") || error.contains("RankLost") && error.contains("rank: 1")
}

#[test]
fn processes_that_differ_are_told_both_sides() {
    for launcher in launchers() {
        for error in launcher.survivors(3, &[], "rank_mismatch", &[0, 1, 2]) {
            let sides = ["rank: 0", "all_reduce(sum) of f32 [2]", "other: 2", "all_reduce(sum) of f32 [3]"];
            assert!(sides.iter().all(|side| error.contains(side)), "{error}");
        }
        let [sender, receiver] = &launcher.survivors(2, &[], "rank_message_mismatch", &[0, 1])[..] else {
            panic!("two ranks")
        };
        for side in [sender, receiver] {
            let sides = ["CollectiveMismatch", "send(to 1) of f32 [2]", "recv(from 0) of f32 [3]"];
            assert!(sides.iter().all(|part| side.contains(part)), "{side}");
        }
    }
}

#[test]
fn a_process_that_only_sends_is_told_of_a_mismatch() {
    for launcher in launchers() {
        for error in launcher.survivors(2, &[], "rank_only_sends", &[0, 1]) {
            assert!(error.contains("CollectiveMismatch"), "{error}");
        }
    }
}

#[test]
fn a_call_of_no_elements_is_compared_with_one_that_has_some() {
    for launcher in launchers() {
        for error in launcher.survivors(2, &[], "rank_without_elements", &[0, 1]) {
            assert!(error.contains("CollectiveMismatch") && error.contains("number: 0"), "{error}");
        }
    }
}

#[test]
fn a_process_that_leaves_is_named() {
    for launcher in launchers() {
        for error in launcher.survivors(3, &[], "rank_leaves", &[0, 2]) {
            assert!(
                error.contains("RankLost") && error.contains("rank: 1, reason: \"its communicator"),
                "{error}"
            );
        }
    }
}

#[test]
fn a_process_that_is_late_is_named() {
    for launcher in launchers() {
        let [first, late, third] = &launcher.survivors(3, &[], "rank_late", &[0, 1, 2])[..] else {
            panic!("three ranks")
        };
        // Who waited first tells the other one.
        for error in [first, third] {
            assert!(names_first(error), "{error}");
        }
        assert!(late.contains("rank: 1") && late.contains("waited 3000 ms for ranks [1]"), "{late}");
    }
}

#[test]
fn a_process_that_is_killed_is_named_where_the_launcher_spares_the_others() {
    for launcher in launchers() {
        if let Some(lenient) = launcher.lenient {
            for error in launcher.survivors(3, &[lenient], "rank_killed", &[0, 2]) {
                assert!(names_first(&error), "{error}");
            }
        }
        // By default it ends all.
        let folder = Folder::new("rank_killed");
        assert!(!launcher.run(3, &[], "rank_killed", &folder.file(".")).status.success());
    }
}

/// Which rank dies, of `VICTIM`, and before which of its collectives.
const VICTIM: &str = "STREAMGRAD_TEST_VICTIM";

#[test]
#[ignore = "a rank of MPI"]
fn rank_dies() {
    let text = std::env::var(VICTIM).unwrap();
    let (victim, at) = text.split_once(',').unwrap();
    let (victim, at): (usize, usize) = (victim.parse().unwrap(), at.parse().unwrap());
    let comm = mpi(ReduceOrder::Ranks, 2);
    let left = (comm.rank() == victim).then_some(at);
    end(&comm, program(&comm, &mut Collectives { left, end: End::Abort }));
    until_said(&(0..comm.size()).filter(|&rank| rank != victim).collect::<Vec<_>>());
}

/// A process that dies at any collective is named by all others, where their launcher spares them. `RUNS=100` for as many.
#[test]
fn every_process_names_one_that_dies_at_a_random_collective() {
    let number = |name: &str, default: u64| std::env::var(name).map_or(default, |it| it.parse().unwrap());
    let (runs, mut choice) = (number("RUNS", 4), Choice(number("SEED", 23)));
    for launcher in launchers() {
        let Some(lenient) = launcher.lenient else { continue };
        for run in 0..runs {
            let ranks = 2 + choice.below(3);
            let (victim, at) = (choice.below(ranks), choice.below(COLLECTIVES));
            let survivors: Vec<usize> = (0..ranks).filter(|&rank| rank != victim).collect();
            let options = [lenient, "-x", &format!("{VICTIM}={victim},{at}")];
            for error in launcher.survivors(ranks, &options, "rank_dies", &survivors) {
                let names = error.contains(&format!("missing: [{victim}]"))
                    || error.contains("RankLost") && error.contains(&format!("rank: {victim},"));
                assert!(names, "run {run}: rank {victim} of {ranks} at {at}: {error}");
            }
        }
    }
}
