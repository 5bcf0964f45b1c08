//! `streamgrad launch`: what ranks are told, what they say, and that none is left behind, however a launch ends.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../../tests/common/mod.rs"]
mod common;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::folder::Folder;

/// A launch of a shell's script.
fn launch(ranks: usize, options: &[&str], script: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamgrad"));
    command.args(["launch", "--ranks", &ranks.to_string()]).args(options).args(["--", "sh", "-c", script]);
    command.env_remove("STREAMGRAD_THREADS").stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn output(ranks: usize, options: &[&str], script: &str) -> (Option<i32>, Vec<String>, String) {
    let Output { status, stdout, stderr } = launch(ranks, options, script).output().unwrap();
    let mut lines: Vec<String> = String::from_utf8(stdout).unwrap().lines().map(str::to_owned).collect();
    lines.sort();
    (status.code(), lines, String::from_utf8(stderr).unwrap())
}

/// Waits for something that comes soon.
fn soon(what: &str, there: impl Fn() -> bool) {
    let begin = Instant::now();
    while !there() {
        assert!(begin.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a process is there, and does not only wait to be waited for.
fn is_running(process: &str) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(process).join("stat"));
    stat.is_ok_and(|stat| !stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z')))
}

fn assert_gone(processes: &[String]) {
    assert!(!processes.is_empty());
    for process in processes {
        soon("a process was left behind", || !is_running(process));
    }
}

/// What a launch says, once it has said so many lines, less the ranks' numbers.
fn first_lines(child: &mut Child, count: usize) -> Vec<String> {
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().take(count);
    lines.map(|line| line.unwrap().split_once("] ").unwrap().1.to_owned()).collect()
}

fn kill(signal: &str, process: u32) {
    assert!(Command::new("kill").args([signal, &process.to_string()]).status().unwrap().success());
}

#[test]
fn each_rank_is_told_who_it_is_and_its_lines_say_so() {
    let script = "echo $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE at $MASTER_ADDR; printf half";
    let (status, lines, _) = output(3, &[], script);
    let expected = |rank| format!("[{rank}] {rank} of 3, {rank} of 3 at 127.0.0.1");
    let halves = (0..3).map(|rank| format!("[{rank}] half"));
    let mut all: Vec<String> = (0..3).map(expected).chain(halves).collect();
    all.sort();
    assert_eq!((status, lines), (Some(0), all));

    let script = "echo $MASTER_PORT $STREAMGRAD_TOKEN; echo $STREAMGRAD_THREADS; echo oh >&2";
    let (_, lines, errors) = output(2, &[], script);
    let same: Vec<&str> = lines.iter().filter_map(|line| line.strip_prefix("[0] ")).collect();
    assert!(same.iter().all(|line| lines.contains(&format!("[1] {line}"))), "{lines:?}");
    let meeting = same.iter().find_map(|line| line.split_once(' ')).unwrap();
    assert!(meeting.0.parse::<u16>().unwrap() > 0 && meeting.1.len() == 32, "{meeting:?}");
    assert!(same.iter().any(|line| line.parse::<usize>().is_ok_and(|threads| threads > 0)), "{same:?}");
    assert_eq!(errors.lines().count(), 2);
    // Each launch has a token of its own.
    assert!(!output(1, &[], script).1.iter().any(|line| line.contains(meeting.1)));
}

#[test]
fn the_first_failure_ends_the_others_and_is_named() {
    let script = "echo $$; if [ $RANK = 1 ]; then exit 3; fi; exec sleep 1000";
    let (status, lines, errors) = output(3, &[], script);
    assert_eq!((status, &*errors), (Some(3), "streamgrad: rank 1 has ended with status 3\n"));
    let processes: Vec<_> = lines.iter().map(|line| line.split_once("] ").unwrap().1.to_owned()).collect();
    assert_gone(&processes);

    let (status, _, errors) = output(2, &[], "if [ $RANK = 0 ]; then kill -KILL $$; fi; exec sleep 1000");
    assert_eq!((status, &*errors), (Some(128 + 9), "streamgrad: rank 0 was ended by SIGKILL\n"));
}

#[test]
fn who_does_not_end_when_asked_is_killed() {
    let folder = Folder::new("launch-grace");
    let deaf = folder.file("deaf");
    // Fails once the other one ends no more when it is asked.
    let script = format!(
        "if [ $RANK = 0 ]; then trap 'echo asked' TERM; touch {deaf}; echo $$; while :; do sleep 0.1; done; fi
         while [ ! -e {deaf} ]; do sleep 0.01; done; exit 5"
    );
    let (status, lines, _) = output(2, &["--grace", "1"], &script);
    assert_eq!((status, &*lines[1]), (Some(5), "[0] asked"));
    assert_gone(&[lines[0].split_once("] ").unwrap().1.to_owned()]);
}

#[test]
fn what_a_rank_leaves_running_ends_with_it() {
    let (status, lines, _) = output(2, &[], "sleep 1000 & echo $!");
    assert_eq!(status, Some(0));
    let processes: Vec<_> = lines.iter().map(|line| line.split_once("] ").unwrap().1.to_owned()).collect();
    assert_gone(&processes);
}

/// What has a session of its own is not killed, and keeps the rank's output open.
#[test]
fn what_has_gone_elsewhere_keeps_no_launch_from_its_end() {
    let folder = Folder::new("launch-elsewhere");
    let there = folder.file("there");
    let script = format!(
        "setsid sh -c 'echo $$; touch {there}; exec sleep 1000' & while [ ! -e {there} ]; do sleep 0.01; done; echo end"
    );
    let mut child = launch(1, &[], &script).spawn().unwrap();
    let lines = first_lines(&mut child, 2);
    soon("the launch did not end", || !is_running(&child.id().to_string()));
    assert!(child.wait().unwrap().success());
    assert_eq!(lines[1], "end");
    kill("-KILL", lines[0].parse().unwrap());
}

#[test]
fn a_signal_to_the_launch_ends_all_ranks() {
    for (signal, code, name) in [("-INT", 130, "SIGINT"), ("-TERM", 143, "SIGTERM")] {
        let mut child = launch(3, &[], "echo $$; exec sleep 1000").spawn().unwrap();
        let processes = first_lines(&mut child, 3);
        kill(signal, child.id());
        let ended = child.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(code));
        assert_eq!(String::from_utf8(ended.stderr).unwrap(), format!("streamgrad: ended by {name}\n"));
        assert_gone(&processes);
    }
}

#[test]
#[cfg(target_os = "linux")]
fn ranks_end_with_a_launch_that_is_killed() {
    let mut child = launch(2, &[], "echo $$; exec sleep 1000").spawn().unwrap();
    let processes = first_lines(&mut child, 2);
    kill("-KILL", child.id());
    child.wait().unwrap();
    assert_gone(&processes);
}

/// What a rank of this binary says of its environment.
#[test]
#[ignore = "a rank"]
fn rank_of_the_environment() {
    match streamgrad::comm::Communicator::from_env() {
        Ok(comm) => println!("{comm:?}"),
        Err(error) => println!("{error}"),
    }
}

#[test]
fn the_environment_without_mpi_or_nccl_is_refused_with_what_is_missing() {
    let binary = std::env::current_exe().unwrap();
    let test = ["--exact", "rank_of_the_environment", "--ignored", "--nocapture"];
    let alone = Command::new(&binary).args(test).output().unwrap();
    let alone = String::from_utf8(alone.stdout).unwrap();
    assert!(alone.contains("no launcher has started this process, as none of RANK, "), "{alone}");
    let mut launch = Command::new(env!("CARGO_BIN_EXE_streamgrad"));
    launch.args(["launch", "--ranks", "2", "--"]).arg(&binary).args(test);
    // No GPU is seen.
    let launched = launch.env("CUDA_VISIBLE_DEVICES", "").output().unwrap();
    let launched = String::from_utf8(launched.stdout).unwrap();
    for rank in 0..2 {
        let expected =
            format!("[{rank}] ranks cannot communicate: Launch(rank {rank} of 2, {rank} on its machine)");
        assert!(launched.contains(&format!("{expected} was not started by MPI")), "{launched}");
    }
}

/// Where there is a GPU, a rank that was launched meets the others, and communicates by NCCL.
#[test]
fn a_rank_on_a_gpu_communicates_by_nccl() {
    if common::devices::cuda(0).is_none() {
        return;
    }
    let binary = std::env::current_exe().unwrap();
    let test = ["--exact", "rank_of_the_environment", "--ignored", "--nocapture"];
    let mut launch = Command::new(env!("CARGO_BIN_EXE_streamgrad"));
    let launched = launch.args(["launch", "--ranks", "1", "--"]).arg(&binary).args(test).output().unwrap();
    let launched = String::from_utf8(launched.stdout).unwrap();
    assert!(launched.contains("[0] Communicator(rank 0 of 1 on cuda:0"), "{launched}");
}

#[test]
fn what_cannot_be_started_is_said() {
    let run = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_streamgrad")).args(args).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (status, errors) = run(&["launch", "--ranks", "1", "--", "no-such-program"]);
    assert_eq!(status, Some(127));
    assert!(errors.contains("[0] streamgrad: no-such-program: "), "{errors}");
    assert!(errors.contains("rank 0 has ended with status 127"), "{errors}");
    assert_eq!(run(&["launch", "--ranks", "0", "--", "true"]).0, Some(2));
    assert_eq!(run(&["launch", "--ranks", "2"]).0, Some(2));
}

/// The limits of a shell that then launches, with what the launch says of a `script`.
fn limited(limit: &str, ranks: usize, script: &str) -> (Option<i32>, String) {
    let launch =
        format!("{limit}; exec {} launch --ranks {ranks} -- {script}", env!("CARGO_BIN_EXE_streamgrad"));
    let output = Command::new("sh").args(["-c", &launch]).output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn more_ranks_than_there_can_be_are_refused_before_any_is_started() {
    let folder = Folder::new("launch-impossible");
    let started = folder.file("started");
    for (limit, ranks, says) in
        [("true", 1_000_000_000, "at most 65536"), ("ulimit -n 64", 40, "at most 20 ranks")]
    {
        let (status, errors) = limited(limit, ranks, &format!("touch {started}"));
        assert!(status == Some(2) && errors.contains(says), "{status:?} {errors}");
    }
    assert!(!Path::new(&started).exists());
    assert_eq!(limited("ulimit -n 64", 20, "true"), (Some(0), String::new()));
}

/// With memory for the threads of one rank and not of many.
#[test]
#[cfg(target_os = "linux")]
fn a_thread_that_the_system_refuses_is_an_error_which_ends_all_ranks() {
    let limit = |mebibytes: usize| format!("ulimit -v {}", mebibytes << 10);
    let enough = |mebibytes: &usize| limited(&limit(*mebibytes), 1, "true").0 == Some(0);
    let enough = (16..4096).step_by(16).find(enough).unwrap();
    let (status, errors) = limited(&limit(enough), 64, "sleep 1000");
    assert!(status == Some(1) && errors.contains("streamgrad: launch: rank "), "{status:?} {errors}");
    assert!(!errors.contains("panicked"), "{errors}");
}

/// Rank 0 sends the signal before all others are there.
#[test]
fn a_signal_ends_a_launch_that_is_still_starting_ranks() {
    const RANKS: usize = 300;
    let folder = Folder::new("launch-early");
    let there = folder.file("rank");
    let script = format!("touch {there}$RANK; if [ $RANK = 0 ]; then kill -TERM $PPID; fi; exec sleep 1000");
    let (status, _, errors) = output(RANKS, &[], &script);
    assert_eq!((status, &*errors), (Some(143), "streamgrad: ended by SIGTERM\n"));
    let started = (0..RANKS).filter(|rank| Path::new(&format!("{there}{rank}")).exists()).count();
    assert!(started < RANKS * 3 / 4, "{started}");
}

/// The launcher binds the port before ranks start: a connection made before rank 0 accepts waits in the backlog.
#[test]
fn rank_0_has_the_socket_that_all_ranks_meet_at() {
    let script = "echo $RANK $MASTER_PORT ${STREAMGRAD_LISTENER-none}; exec sleep 1000";
    let mut child = launch(2, &[], script).spawn().unwrap();
    let mut lines = first_lines(&mut child, 2);
    lines.sort();
    let words: Vec<Vec<&str>> = lines.iter().map(|line| line.split(' ').collect()).collect();
    assert!(words[0][2].parse::<u16>().is_ok() && words[1][2] == "none", "{lines:?}");
    let port: u16 = words[0][1].parse().unwrap();
    assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
    kill("-TERM", child.id());
    child.wait().unwrap();
}

/// What a rank of this binary gets from the others.
#[test]
#[ignore = "a rank"]
fn rank_that_meets() {
    let launch = streamgrad::comm::Launch::from_env().unwrap().unwrap();
    // Twice: what is passed on is there for all.
    for turn in 0..2 {
        let mut met = launch.meet(Duration::from_secs(60)).unwrap();
        let all = met.all_gather(format!("{turn} of {}", launch.rank).as_bytes()).unwrap();
        let all: Vec<_> = all.into_iter().map(|bytes| String::from_utf8(bytes).unwrap()).collect();
        println!("met {}", all.join(", "));
    }
}

#[test]
fn ranks_meet_at_the_socket_of_their_launch() {
    let binary = std::env::current_exe().unwrap();
    let test = ["--exact", "rank_that_meets", "--ignored", "--nocapture"];
    let mut launch = Command::new(env!("CARGO_BIN_EXE_streamgrad"));
    let launched = launch.args(["launch", "--ranks", "3", "--"]).arg(&binary).args(test).output().unwrap();
    let said = String::from_utf8(launched.stdout).unwrap();
    for rank in 0..3 {
        for turn in 0..2 {
            let line = format!("[{rank}] met {turn} of 0, {turn} of 1, {turn} of 2");
            assert!(said.contains(&line), "{said} {}", String::from_utf8_lossy(&launched.stderr));
        }
    }
}
