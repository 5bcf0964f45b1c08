//! The program as its users run it: output, files, exit codes.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../../tests/common/mod.rs"]
mod common;

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use common::folder::Folder;
use serde_json::Value;

fn program(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamgrad"));
    command.args(args).env_remove("STREAMGRAD_THREADS");
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Runs what must go well and returns what it printed.
fn good(args: &[&str]) -> String {
    let output = program(args);
    assert!(output.status.success(), "{args:?}: {}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// Runs what must fail and returns its one line.
fn bad(args: &[&str]) -> String {
    bad_output(args, program(args))
}

fn bad_output(args: &[&str], output: Output) -> String {
    let message = text(&output.stderr);
    assert!(output.status.code().is_some_and(|code| code != 0 && code != 101), "{args:?}: {message}");
    assert!(message.starts_with("streamgrad: "), "{args:?}: {message}");
    assert_eq!(message.trim_end().lines().count(), 1, "{args:?}: {message}");
    assert!(!message.contains("panicked"), "{args:?}: {message}");
    message
}

fn json(path: &str) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

const SMALL: &[&str] = &["--steps", "6", "--warmup", "3", "--batch", "32"];

fn compare(extra: &[&str]) -> String {
    good(&[&["compare"], SMALL, extra].concat())
}

#[test]
fn compare_writes_every_key_and_the_schedules_agree() {
    let folder = Folder::new("json");
    // A row of gpt is a whole text.
    let cases = [("two-batch", 2, 32), ("mlp", 2, 32), ("two-batch", 3, 32), ("gpt", 2, 1), ("dlrm", 2, 32)];
    for (name, lanes, batch) in cases {
        let path = folder.file("out.json");
        let (streams, rows) = (lanes.to_string(), batch.to_string());
        let args =
            ["compare", name, "--steps", "6", "--warmup", "3", "--batch", &rows, "--streams", &streams];
        let printed = good(&[&args[..], &["--json", &path]].concat());
        assert!(printed.contains("bit-equal") && printed.contains("diagnosis"), "{printed}");
        let found = json(&path);
        assert_eq!(found["workload"], name);
        assert_eq!(found["device"], "cpu");
        assert_eq!((found["batch"].as_u64(), found["steps"].as_u64()), (Some(batch), Some(6)));
        for key in ["identical_losses", "identical_parameters"] {
            assert_eq!(found[key], true, "{key}: {}", found["diagnosis"]);
        }
        assert!(found["speedup"].is_null() || found["speedup"].as_f64().unwrap() > 0.0);
        assert!(found["efficiency"].as_f64().is_none_or(|share| share >= 0.0));
        assert!((0.0..=1.0).contains(&found["metrics"]["held-out accuracy"].as_f64().unwrap()));
        let schedules = found["schedules"].as_array().unwrap();
        let streams: Vec<_> = schedules.iter().map(|s| (s["name"].as_str(), s["streams"].as_u64())).collect();
        assert_eq!(streams, [(Some("serial"), Some(1)), (Some("lanes"), Some(lanes))]);
        for schedule in schedules {
            check_schedule(schedule);
        }
        assert_eq!(schedules[0]["losses"], schedules[1]["losses"]);
        assert_eq!(schedules[0]["waits_per_step"], 0.0);
        let findings = found["diagnosis"].as_array().unwrap();
        assert!(!findings.is_empty());
        assert!(findings.iter().all(|f| f["code"].is_string() && f["message"].is_string()));
    }
}

fn check_schedule(schedule: &Value) {
    assert!(schedule["launches_per_step"].as_f64() > Some(10.0), "{schedule}");
    assert!(schedule["captured"].is_null(), "{schedule}");
    check_figures(schedule);
}

fn check_figures(schedule: &Value) {
    let numbers = [
        "steps_per_s",
        "busy_pct",
        "overlap_pct",
        "launches_per_step",
        "waits_per_step",
        "events_per_step",
        "host_syncs_per_step",
    ];
    for key in numbers {
        assert!(schedule[key].as_f64().is_some_and(|value| value >= 0.0), "{key}: {schedule}");
    }
    for key in ["median", "p10", "p90"] {
        assert!(schedule["step_ms"][key].as_f64().is_some_and(|ms| ms > 0.0), "{key}: {schedule}");
    }
    for key in ["peak_allocated_bytes", "peak_reserved_bytes"] {
        assert!(schedule[key].as_u64().is_some_and(|bytes| bytes > 0), "{key}: {schedule}");
    }
    let losses = schedule["losses"].as_array().unwrap();
    assert_eq!(losses.len(), 6);
    assert!(losses.iter().all(Value::is_number));
}

#[test]
fn compare_adds_captured_schedules() {
    let folder = Folder::new("captured");
    let [path, trace, report] = ["out.json", "trace.json", "report.html"].map(|name| folder.file(name));
    let printed = compare(&["--graph", "--json", &path, "--trace", &trace, "--report", &report]);
    let found = json(&path);
    let schedules = found["schedules"].as_array().unwrap();
    let names: Vec<_> = schedules.iter().map(|schedule| schedule["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["serial", "lanes", "captured, serial order", "captured, data order"]);
    for schedule in &schedules[2..] {
        check_figures(schedule);
        assert_eq!(schedule["losses"], schedules[0]["losses"]);
        let captured = &schedule["captured"];
        for key in ["identical_losses", "identical_parameters"] {
            assert_eq!(schedule["gain"][key], true, "{key}: {}", found["diagnosis"]);
        }
        for key in ["commands", "edges", "critical_path", "widest", "planned_bytes", "needed_bytes"] {
            assert!(captured[key].as_u64().is_some_and(|count| count > 0), "{key}: {captured}");
        }
        for key in ["gain", "capture_ms"] {
            assert!(captured[key].as_f64().is_some_and(|value| value > 0.0), "{key}: {captured}");
        }
        // A copy for each tensor of two batches, and the replay.
        assert_eq!(schedule["launches_per_step"], 5.0);
        assert!(printed.contains(schedule["name"].as_str().unwrap()), "{printed}");
    }
    assert!(
        schedules[3]["captured"]["critical_path"].as_u64()
            < schedules[2]["captured"]["critical_path"].as_u64()
    );
    assert_eq!((&found["identical_losses"], &found["identical_parameters"]), (&true.into(), &true.into()));
    let codes = found["diagnosis"].as_array().unwrap().iter().filter(|finding| finding["code"] == "captured");
    assert_eq!(codes.count(), 2, "{}", found["diagnosis"]);
    let events = json(&trace);
    let replays = events["traceEvents"].as_array().unwrap().iter().filter(|event| event["name"] == "replay");
    assert_eq!(replays.count(), 12, "one slice a step of each captured schedule");
    let text = fs::read_to_string(trace).unwrap();
    assert!(text.contains("(a replay of ") && text.contains("replay thread 0"));
    assert!(fs::read_to_string(report).unwrap().contains("a replay is one command"));
}

/// The bags of each batch of clicks are of other lengths.
#[test]
fn batches_of_several_forms_are_captured_once_each() {
    let printed = good(&["compare", "dlrm", "--graph", "--steps", "3", "--warmup", "1", "--batch", "32"]);
    assert!(
        printed.contains("captures, one for each form of batches")
            && printed.contains("bit-equal in 3 steps"),
        "{printed}"
    );
    assert!(!printed.contains("not-captured"), "{printed}");
}

#[test]
fn training_by_replays_gives_what_training_gives() {
    let folder = Folder::new("replayed");
    for (name, more) in [("two-batch", "128"), ("augment", "8"), ("dlrm", "512")] {
        let (eager, replayed, rest) = (folder.file("eager"), folder.file("replayed"), folder.file("rest"));
        let train = |extra: &[&str]| {
            let args = ["train", "--workload", name, "--batch", more, "--seed", "3"];
            good(&[&args[..], extra].concat()).lines().last().unwrap().to_owned()
        };
        let expected = train(&["--epochs", "2", "--save", &eager]);
        assert_eq!(train(&["--epochs", "2", "--graph", "--save", &replayed]), expected);
        assert!(fs::read(&eager).unwrap() == fs::read(&replayed).unwrap(), "{name}: the checkpoints differ");
        // On from a checkpoint, and from one that replays left.
        train(&["--epochs", "1", "--graph", "--save", &rest]);
        assert_eq!(train(&["--epochs", "2", "--graph", "--resume", &rest, "--save", &rest]), expected);
        assert!(fs::read(&eager).unwrap() == fs::read(&rest).unwrap(), "{name}: the checkpoints differ");
    }
}

/// Each workload is clean, in seconds at its small size.
#[test]
fn workloads_are_verified() {
    for workload in workloads::ALL {
        let said = good(&["verify", workload.name(), "--device", "cpu"]);
        assert!(said.contains("equal bits") && said.ends_with("nothing is wrong\n"), "{said}");
    }
    assert!(bad(&["verify", "none"]).contains("unknown workload"));
}

#[test]
fn traces_of_equal_runs_are_equal_and_others_name_a_command() {
    let folder = Folder::new("diverge");
    let [all, one, other] = ["all", "one", "other"].map(|name| folder.file(name));
    let args = ["train", "--device", "cpu", "--epochs", "1", "--batch", "256", "--trace-writes"];
    good(&[&args[..], &[&all]].concat());
    let serial = [&args[..], &[&one, "--workers", "0"]].concat();
    assert!(command(&serial).env("STREAMGRAD_THREADS", "1").status().unwrap().success());
    good(&[&args[..], &[&other, "--lr", "0.5"]].concat());
    assert_eq!(good(&["diverge", &all, &one]), "every command wrote the same\n");
    let output = program(&["diverge", &all, &other]);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        (said.starts_with("sgd") || said.starts_with("adam"))
            && said.contains("of main) is the first command"),
        "{said}"
    );
    assert!(bad(&["diverge", &all, &folder.file("missing")]).contains("missing"));
    assert!(bad(&["train", "--trace-writes", &all, "--save", &all]).contains("two outputs"));
}

#[test]
fn steady_training_asks_the_driver_for_nothing() {
    let folder = Folder::new("steady");
    let path = folder.file("out.json");
    let allocations = || -> Vec<Value> {
        good(&["compare", "--steps", "40", "--warmup", "200", "--json", &path]);
        let found = json(&path);
        let schedules = found["schedules"].as_array().unwrap();
        for schedule in schedules {
            assert_eq!(schedule["host_syncs_per_step"], 1.0, "only the measurement's own");
        }
        schedules.iter().map(|schedule| schedule["driver_allocations"].clone()).collect()
    };
    // Lanes may meet late in an order that needs memory which none before it did: three runs in a row do not.
    let steady = (0..3).any(|_| allocations().iter().all(|count| *count == 0));
    assert!(steady, "every run asked the driver for memory after its warm-up");
}

#[test]
fn the_trace_has_a_named_lane_for_each_stream() {
    let folder = Folder::new("trace");
    let (trace, report) = (folder.file("trace.json"), folder.file("report.html"));
    compare(&["--trace", &trace, "--report", &report]);
    let trace = json(&trace);
    let events = trace["traceEvents"].as_array().unwrap();
    let of_phase = |phase: &'static str| events.iter().filter(move |event| event["ph"] == phase);
    let names = |what: &'static str| {
        of_phase("M")
            .filter(move |event| event["name"] == what)
            .map(|event| event["args"]["name"].as_str().unwrap())
    };
    assert_eq!(names("process_name").count(), 2);
    for lane in ["lane 0", "lane 1", "default stream"] {
        assert!(names("thread_name").any(|name| name.starts_with(lane)), "{lane}");
    }
    for event in of_phase("X") {
        assert!(event["ts"].as_f64().unwrap() >= 0.0 && event["dur"].as_f64().unwrap() >= 0.0);
        assert!(event["pid"].is_u64() && event["tid"].is_u64() && event["name"].is_string());
    }
    // Threads 2 and 3 of process 2 are the lanes.
    for lane in [2, 3] {
        assert!(of_phase("X").any(|event| event["pid"] == 2 && event["tid"] == lane), "lane {lane} is empty");
    }
    let ids = |phase| of_phase(phase).map(|event| event["id"].as_u64().unwrap()).collect::<Vec<_>>();
    assert!(!ids("s").is_empty(), "a launch is an arrow");
    assert_eq!(ids("s"), ids("f"), "each arrow has two ends");
    let page = fs::read_to_string(report).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.contains("\"lane 1\"") && page.contains("Diagnosis"));
    let named = page.replace("http://www.w3.org/2000/svg", "");
    assert!(!named.contains("http") && !named.contains("src="), "the page needs nothing else");
}

#[test]
fn compare_runs_stages_and_branches() {
    let folder = Folder::new("parts");
    for (name, stream) in [
        ("encoder-decoder", "prepare"),
        ("augment", "prepare"),
        ("prefetch", "prepare"),
        ("branches", "second branch"),
    ] {
        let trace = folder.file("trace.json");
        let small = ["--batch", "1", "--steps", "2", "--warmup", "1", "--trace", &trace];
        let printed = good(&[&["compare", name][..], &small].concat());
        assert!(printed.contains("1 batch of 1 rows a step"), "{printed}");
        assert!(!printed.contains("NOT EQUAL") && printed.contains("bit-equal in 2 steps"), "{printed}");
        assert!(fs::read_to_string(&trace).unwrap().contains(stream), "{name}: no stream of that name");
        assert!(bad(&["compare", name, "--streams", "3"]).contains("at most 2"));
    }
}

#[test]
fn compare_has_the_host_prepare_batches_where_it_can() {
    let folder = Folder::new("hosted");
    let [path, trace, report] = ["out.json", "trace.json", "report.html"].map(|name| folder.file(name));
    let args = ["--device", "cpu", "--batch", "2", "--steps", "6", "--warmup", "1", "--graph"];
    let outputs = ["--json", &path, "--trace", &trace, "--report", &report];
    let printed = good(&[&["compare", "augment"], &args[..], &outputs].concat());
    let found = json(&path);
    let schedules = found["schedules"].as_array().unwrap();
    let names: Vec<_> = schedules.iter().map(|schedule| schedule["name"].as_str().unwrap()).collect();
    // Known on as many threads as there are streams, or fewer.
    let (work_ms, bound_ms) = (found["work_ms"].as_f64(), found["bound_ms"].as_f64().unwrap());
    assert_eq!(work_ms.is_some(), found["threads"].as_u64().unwrap() <= 2);
    assert!(work_ms.is_none_or(|ms| ms > 0.0 && ms <= bound_ms));
    let captured = ["captured, serial order", "captured, data order", "captured, stages"];
    assert_eq!(names, [&["serial", "stages", "host-prepared"], &captured[..]].concat());
    for schedule in &schedules[3..] {
        let gain = &schedule["gain"];
        assert!(gain["identical_losses"] == true && gain["identical_parameters"] == true, "{gain}");
        assert_eq!(schedule["captured"]["captures"], 1);
    }
    assert_eq!(schedules[5]["streams"], 2);
    check_schedule(&schedules[2]);
    assert_eq!(schedules[2]["losses"], schedules[0]["losses"]);
    let hosted = &schedules[2]["gain"];
    assert!(hosted["speedup"].as_f64().is_none_or(|speedup| speedup > 0.0), "{hosted}");
    let same = [&hosted["identical_losses"], &hosted["identical_parameters"]];
    assert!(same.iter().all(|same| **same == true) && hosted["loss_difference"] == 0.0, "{hosted}");
    assert!(schedules.iter().all(|schedule| schedule["gain"].is_null() == (schedule == &schedules[0])));
    assert!(printed.lines().any(|line| line.starts_with("host-prepared") && line.ends_with("bit-equal")));
    assert!(fs::read_to_string(trace).unwrap().contains("host-prepared (1 streams)"));
    assert!(fs::read_to_string(report).unwrap().contains("host-prepared"));
    // An encoder's numbers are the device's.
    assert!(!good(&[&["compare", "encoder-decoder"], &args[..]].concat()).contains("host-prepared"));
}

#[test]
fn images_have_the_scale_that_is_asked_for_and_enough_rows_for_large_batches() {
    let folder = Folder::new("scale");
    let path = folder.file("out.json");
    let found = |more: &[&str]| {
        let small =
            ["compare", "augment", "--device", "cpu", "--batch", "2", "--steps", "1", "--warmup", "0"];
        let printed = good(&[&small[..], &["--json", &path], more].concat());
        assert!(printed.contains("1 batch of 2 rows a step at scale small"), "{printed}");
        json(&path)
    };
    let (own, small) = (found(&[]), found(&["--scale", "small"]));
    assert_eq!((&own["scale"], &small["scale"]), (&"small".into(), &"small".into()));
    assert_eq!(own["schedules"][0]["losses"], small["schedules"][0]["losses"]);
    // One more than the images that smaller batches are drawn from.
    good(&[
        "train",
        "--workload",
        "augment",
        "--device",
        "cpu",
        "--batch",
        "129",
        "--lanes",
        "1",
        "--epochs",
        "1",
    ]);
    for command in [&["compare"][..], &["train", "--workload"]] {
        let fails = |name: &str, more: &[&str]| bad(&[command, &[name], more].concat());
        assert!(fails("mlp", &["--scale", "small"]).contains("--scale is not for mlp"));
        assert!(fails("augment", &["--scale", "huge"]).contains("must be tiny, small or article, got huge"));
    }
    assert!(bad(&["compare", "forum", "--scale", "small"]).contains("--scale is not for forum"));
    // Before any are made.
    let large = program(&["compare", "augment", "--device", "cpu", "--scale", "article", "--batch", "5000"]);
    assert!(text(&large.stdout).contains("5000 rows a step at scale article"), "{}", text(&large.stdout));
    assert!(bad_output(&["compare"], large).contains("5000 for 1024 rows"));
    assert!(bad(&["compare", "branches", "--batch", "1,5000"]).contains("5000 for 1024 rows"));
    assert!(bad(&["compare", "--batch", "8,5000"]).contains("5000 for 1438 rows"));
}

#[test]
fn several_batches_and_streams_are_one_table_and_one_page() {
    let folder = Folder::new("sweep");
    let [path, report] = ["sweep.json", "sweep.html"].map(|name| folder.file(name));
    let args = ["compare", "--batch", "8,16", "--streams", "1,2", "--steps", "3", "--warmup", "1"];
    let printed = good(&[&args[..], &["--json", &path, "--report", &report]].concat());
    let lines: Vec<Vec<&str>> = printed.lines().map(|line| line.split_whitespace().collect()).collect();
    let head = lines.iter().position(|line| line.first() == Some(&"batch")).unwrap();
    let sizes: Vec<&[&str]> = lines[head + 1..].iter().map(|line| &line[..2]).collect();
    assert_eq!(sizes, [["8", "1"], ["16", "1"], ["8", "2"], ["16", "2"]]);
    assert!(lines[head + 1..].iter().all(|line| line.last() == Some(&"equal")), "{printed}");
    let all = json(&path);
    let found: Vec<_> =
        all.as_array().unwrap().iter().map(|one| (one["batch"].as_u64(), one["streams"].as_u64())).collect();
    assert_eq!(
        found,
        [(8, 1), (16, 1), (8, 2), (16, 2)].map(|(batch, streams)| (Some(batch), Some(streams)))
    );
    assert!(fs::read_to_string(report).unwrap().contains("lanes, 2 streams"));
    assert!(bad(&["compare", "--batch", "8,0"]).contains("at least 1"));
    assert!(bad(&["compare", "--batch", "8,16", "--trace", &path]).contains("one comparison"));
    // Before the first comparison, which would take too long.
    assert!(bad(&["compare", "--streams", "2,1000", "--steps", "100000000"]).contains("at most 256"));
    assert!(bad(&["compare", "--batch", "8,5000", "--steps", "100000000"]).contains("5000"));
}

#[test]
fn ranks_are_compared_on_a_network_that_is_not_there() {
    let folder = Folder::new("ranks");
    let [json, trace, page] = ["ranks.json", "trace.json", "ranks.html"].map(|name| folder.file(name));
    let sizes =
        ["--ranks", "3", "--batch", "8", "--steps", "5", "--warmup", "2", "--latency", "300", "--average"];
    let outputs = ["--json", &json, "--trace", &trace, "--report", &page];
    let printed = good(&[&["compare", "forum"], &sizes[..], &outputs].concat());
    assert_eq!(printed.matches("bit-equal, on every rank").count(), 2, "{printed}");
    assert!(printed.contains("300.0 us a message") && printed.contains("exposed-communication"), "{printed}");
    let found: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    let of = |schedule: &str, op: &str| {
        let all = found[schedule]["communication"].as_array().unwrap();
        all.iter().find(|of| of["op"] == op).cloned().unwrap()
    };
    for schedule in ["serial", "overlapped"] {
        let steps = found[schedule]["traced_steps"].as_u64().unwrap();
        // Two messages one after the other, for each batch; an all-reduce has four.
        for (op, calls, least_ms) in
            [("all_gather", 2, 1.2), ("reduce_scatter", 2, 1.2), ("all_reduce", 1, 1.2)]
        {
            let of = of(schedule, op);
            assert_eq!(of["calls"].as_u64().unwrap(), calls * steps, "{schedule}, {op}");
            assert!(of["total_ms"].as_f64().unwrap() >= least_ms * steps as f64, "{schedule}: {of}");
        }
        // What one stream does, it does alone.
        let gathers = of(schedule, "all_gather");
        assert!(schedule != "serial" || gathers["exposed_ms"] == gathers["total_ms"], "{gathers}");
    }
    assert!(fs::read_to_string(&trace).unwrap().contains("all_gather"));
    assert!(fs::read_to_string(&page).unwrap().contains("<h2>Timeline<"));
    assert!(bad(&["compare", "mlp", "--ranks", "2"]).contains("--ranks is for forum alone"));
    assert!(bad(&["compare", "forum", "--streams", "2"]).contains("--streams is not for forum"));
    assert!(bad(&["compare", "forum", "--latency", "-1"]).contains("positive"));
}

/// Gradients that are averaged as one, at the end of the pass, are exposed as a whole; in parts, the first ones may run beside the rest.
#[test]
fn ranks_that_are_not_there_are_planned_for() {
    let folder = Folder::new("plan");
    let file = folder.file("plan.json");
    let plan = |more: &[&str]| -> Value {
        let sizes = [
            "plan",
            "--model",
            "mlp",
            "--ranks",
            "1,2,8",
            "--steps",
            "3",
            "--latency",
            "1000",
            "--json",
            &file,
        ];
        let printed = good(&[&sizes[..], more].concat());
        assert!(printed.contains("efficiency") && printed.contains("MiB of memory"), "{printed}");
        serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap()
    };
    let of = |plan: &Value, at: usize, what: &str| plan["steps"][at][what].as_f64().unwrap();
    let whole = plan(&[]);
    assert_eq!(whole["bucket_bytes"].as_array().unwrap().len(), 1);
    assert_eq!(whole["bucket_bytes"][0], whole["parameter_bytes"]);
    assert!(whole["peak_bytes"].as_u64() > whole["parameter_bytes"].as_u64());
    assert_eq!((of(&whole, 0, "exposed_ms"), of(&whole, 0, "efficiency")), (0.0, 1.0));
    for (at, ranks) in [(1, 2.0), (2, 8.0)] {
        let bytes = whole["parameter_bytes"].as_f64().unwrap();
        let expected = 2.0 * (ranks - 1.0) * (1.0 + 1e3 * bytes / ranks / 50e9);
        for what in ["communication_ms", "exposed_ms"] {
            let found = of(&whole, at, what);
            assert!((found - expected).abs() < 1e-3, "{what} on {ranks} ranks: {found} and {expected}");
        }
    }
    let parts = plan(&["--bucket", "0.1"]);
    assert!(parts["bucket_bytes"].as_array().unwrap().len() > 1);
    // How much is hidden is what was measured: nothing, if each part was begun when the pass had ended.
    assert!(of(&parts, 2, "exposed_ms") < of(&parts, 2, "communication_ms") + 1e-3);
    assert!(bad(&["plan", "--ranks", "8..4"]).contains("larger"));
    assert!(bad(&["plan", "--ranks", "0"]).contains("at least 1"));
    assert!(bad(&["plan", "--batch", "5000", "--model", "mlp"]).contains("5000"));
}

#[test]
fn training_writes_a_page_with_losses_and_a_profile() {
    let folder = Folder::new("page");
    let page = folder.file("train.html");
    good(&["train", "--epochs", "3", "--report", &page]);
    let page = fs::read_to_string(&page).unwrap();
    for part in ["Loss of each batch", "Held-out accuracy", "<h2>Timeline<", "cross_entropy"] {
        assert!(page.contains(part), "{part}");
    }
    let short = folder.file("short.html");
    good(&["train", "--epochs", "1", "--batch", "256", "--report", &short]);
    let short = fs::read_to_string(&short).unwrap();
    assert!(short.contains("Epochs") && !short.contains("<h2>Timeline<"), "no step was recorded");
    // A run that fails says so there, too.
    let failed = folder.file("failed.html");
    assert!(
        bad(&["train", "--epochs", "2", "--lr", "1e38", "--report", &failed]).contains("try an --lr below")
    );
    let failed = fs::read_to_string(&failed).unwrap();
    assert!(failed.contains("It ended early: epoch") && failed.contains("Loss of each batch"));
    // No file that a run reads or writes otherwise is written over.
    let saved = folder.file("saved");
    good(&["train", "--epochs", "1", "--save", &saved]);
    for [option, name] in
        [["--save", "two outputs"], ["--resume", "written over"], ["--data", "written over"]]
    {
        assert!(
            bad(&["train", "--epochs", "2", option, &saved, "--report", &saved]).contains(name),
            "{option}"
        );
    }
    assert!(bad(&["train", "--data", &saved, "--save", &saved]).contains("written over"));
    good(&["train", "--epochs", "2", "--resume", &saved, "--save", &saved]);
    assert!(bad(&["train", "--report", &folder.file("no/such/folder.html")]).contains("folder.html"));
}

#[test]
fn bad_arguments_get_one_clear_line() {
    let unknown = "unknown workload \"two_batch\"; expected one of two-batch, mlp, cnn, gpt, dlrm, ";
    assert!(bad(&["compare", "two_batch"]).contains(unknown));
    assert!(bad(&["train", "--workload", "nothing"]).contains("unknown workload"));
    for count in ["--batch", "--steps", "--streams"] {
        assert!(bad(&["compare", count, "0"]).contains("at least 1"), "{count}");
        assert!(bad(&["compare", count, "-1"]).contains(count), "{count}");
        assert!(bad(&["compare", count, "many"]).contains("whole number"), "{count}");
    }
    for count in ["--batch", "--epochs", "--lanes"] {
        assert!(bad(&["train", count, "0"]).contains("at least 1"), "{count}");
    }
    assert!(bad(&["compare", "--streams", "1000"]).contains("at most 256"));
    assert!(bad(&["compare", "--batch", "5000"]).contains("5000 for"));
    assert!(bad(&["train", "--batch", "5000"]).contains("5000 for"));
    for rate in ["nan", "-1", "0", "inf"] {
        assert!(bad(&["train", "--lr", rate]).contains("positive"), "{rate}");
    }
    assert!(bad(&["compare", "--device", "tpu"]).contains("expected auto, cpu or cuda:N, got \"tpu\""));
    assert!(bad(&["compare", "--device", "cuda:x"]).contains("expected auto, cpu or cuda:N"));
    assert!(bad(&["compare", "--device", "cuda:99"]).contains("CUDA is not available"));
    assert!(bad(&["gradcheck", "no_such_op"]).contains("there are: abs, "));
    assert!(bad(&["fly"]).contains("fly"));
    assert!(bad(&["compare", "--wings"]).contains("--wings"));
    bad(&[]);
}

#[test]
fn bad_files_get_one_clear_line_before_the_run() {
    let folder = Folder::new("files");
    let nowhere = folder.file("no/such/folder.json");
    for option in ["--json", "--trace", "--report"] {
        // So many steps that the test would not end if they were run first.
        assert!(bad(&["compare", "--steps", "100000000", option, &nowhere]).contains("folder.json"));
    }
    let twice = folder.file("twice");
    assert!(bad(&["compare", "--json", &twice, "--trace", &twice]).contains("two outputs"));
    let within = |args: &[&str]| bad_output(args, command(args).current_dir(&folder.0).output().unwrap());
    assert!(within(&["compare", "--json", "twice", "--report", "./twice"]).contains("two outputs"));
    assert!(bad(&["compare", "--batch", "5000", "--json", &twice]).contains("5000"));
    assert!(!Path::new(&twice).exists(), "a run that failed leaves no empty file");
    assert!(bad(&["train", "--epochs", "100000000", "--save", &nowhere]).contains("folder.json"));
    let folder_path = folder.file("");
    assert!(bad(&["train", "--save", &folder_path]).contains("streamgrad-files"));
    assert!(bad(&["train", "--resume", &nowhere]).contains("folder.json"));
    for (name, content) in [("empty", ""), ("words", "no checkpoint"), ("short", "\u{8}\0\0\0\0\0\0\0{}")] {
        let path = folder.file(name);
        fs::write(&path, content).unwrap();
        assert!(bad(&["train", "--resume", &path]).contains(name));
        assert!(bad(&["train", "--data", &path]).contains(name));
    }
    let path = folder.file("nan.csv");
    fs::write(&path, format!("{}NaN,1\n", "0,".repeat(63))).unwrap();
    assert!(bad(&["train", "--data", &path]).contains("line 1: column 64 is NaN"));
    fs::write(&path, "1,2,3,0\n4,5,6,1\n").unwrap();
    assert!(bad(&["train", "--data", &path]).contains("3 values in a row, two-batch takes 64"));
}

#[test]
fn training_goes_on_from_a_checkpoint_as_if_it_had_not_stopped() {
    let folder = Folder::new("resume");
    let (whole, part, rest) = (folder.file("whole"), folder.file("part"), folder.file("rest"));
    let train = |extra: &[&str]| good(&[&["train", "--batch", "128", "--seed", "3"], extra].concat());
    let last = |printed: &str| printed.lines().last().unwrap().to_owned();
    let uninterrupted = train(&["--epochs", "3", "--save", &whole]);
    assert_eq!(uninterrupted.lines().filter(|line| line.contains("held-out accuracy")).count(), 4);
    train(&["--epochs", "1", "--save", &part]);
    let resumed = train(&["--epochs", "3", "--resume", &part, "--save", &rest]);
    assert!(resumed.contains("resumed after epoch 1, seed 3"), "{resumed}");
    assert_eq!(last(&uninterrupted), last(&resumed));
    assert!(fs::read(&whole).unwrap() == fs::read(&rest).unwrap(), "the checkpoints differ");
    let truncated = folder.file("truncated");
    fs::write(&truncated, &fs::read(&whole).unwrap()[..1000]).unwrap();
    assert!(bad(&["train", "--resume", &truncated]).contains("truncated"));
    assert!(bad(&["train", "--resume", &whole, "--seed", "4"]).contains("seed 3"));
    assert!(bad(&["train", "--resume", &whole, "--batch", "64"]).contains("--batch"));
    bad(&["train", "--workload", "mlp", "--resume", &whole]);
}

#[test]
fn a_loss_that_is_not_finite_is_an_error() {
    let message = bad(&["train", "--epochs", "3", "--lr", "1e30"]);
    assert!(message.contains("--lr"), "{message}");
    // More epochs than steps can be counted for.
    let most = u64::MAX.to_string();
    assert!(bad(&["train", "--epochs", &most, "--lr", "1e30"]).contains("the loss is"));
    // The only step of the epoch has a finite loss, and ruins the model.
    let folder = Folder::new("diverged");
    let saved = folder.file("model");
    let output = program(&["train", "--epochs", "1", "--batch", "700", "--lr", "1e38", "--save", &saved]);
    assert_eq!(output.status.code(), Some(1));
    let message = bad_output(&["train"], output);
    assert!(message.contains("epoch 1: the held-out loss is NaN"), "{message}");
    assert!(!Path::new(&saved).exists(), "nobody needs such a model");
}

/// Changes words of a checkpoint's header.
fn edit_header(path: &str, from: &str, to: &str) {
    let bytes = fs::read(path).unwrap();
    let (size, rest) = bytes.split_first_chunk::<8>().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*size) as usize);
    let header = text(header).trim_end().to_owned();
    assert!(header.contains(from), "{header}");
    let header = header.replacen(from, to, 1);
    let header = format!("{header:<width$}", width = header.len().next_multiple_of(8));
    let size = (header.len() as u64).to_le_bytes();
    fs::write(path, [&size, header.as_bytes(), data].concat()).unwrap();
}

#[test]
fn a_damaged_checkpoint_is_an_error() {
    let folder = Folder::new("damaged");
    let path = folder.file("model");
    let train = ["train", "--epochs", "1", "--batch", "700"];
    good(&[&train[..], &["--save", &path]].concat());
    let bytes = fs::read(&path).unwrap();
    let resume = || bad(&[&train[..], &["--resume", &path]].concat());
    for (epoch, step) in [(u64::MAX, u64::MAX), (u64::MAX / 2, u64::MAX / 2), (1 << 63, 0)] {
        fs::write(&path, &bytes).unwrap();
        edit_header(&path, "epoch=1 step=1 ", &format!("epoch={epoch} step={step} "));
        let message = resume();
        assert!(message.contains(&format!("{epoch} epochs, more than can be counted")), "{message}");
    }
    fs::write(&path, &bytes).unwrap();
    edit_header(&path, "epoch=1 step=1 ", "step=1 step=1 ");
    assert!(resume().contains("metadata: step is there more than once"));
    let not_a_number = f32::NAN.to_le_bytes();
    fs::write(&path, [&bytes[..bytes.len() - 4], &not_a_number].concat()).unwrap();
    let message = resume();
    assert!(message.contains("parameter") && message.contains("is NaN"), "{message}");
}

#[test]
fn gradcheck_lists_the_ops_and_passes() {
    let printed = good(&["gradcheck", "matmul", "relu"]);
    assert!(printed.contains("matmul") && printed.contains("2 of 2 ops pass"), "{printed}");
}

#[test]
fn gradcheck_checks_a_workload() {
    let printed = good(&["gradcheck", "--workload", "mlp", "--device", "cpu"]);
    assert!(printed.contains("mlp: ") && printed.contains("; 0 undecided"), "{printed}");
    assert!(bad(&["gradcheck", "--workload", "none"]).contains("expected one of two-batch, "));
    bad(&["gradcheck", "relu", "--workload", "mlp"]);
}

#[test]
fn info_says_why_a_device_is_missing() {
    let printed = good(&["info"]);
    for part in
        [env!("CARGO_PKG_VERSION"), "device cpu", "device cuda:0", "STREAMGRAD_THREADS", "workload mlp"]
    {
        assert!(printed.contains(part), "{part}: {printed}");
    }
}

#[test]
fn a_thread_count_that_makes_no_sense_is_named() {
    for value in ["0", "many", "-2", "1025", "1.5"] {
        let args = &["compare"];
        let message = bad_output(args, command(args).env("STREAMGRAD_THREADS", value).output().unwrap());
        assert!(message.contains("STREAMGRAD_THREADS") && message.contains(value), "{message}");
        let info = command(&["info"]).env("STREAMGRAD_THREADS", value).output().unwrap();
        assert!(text(&info.stdout).contains("must be a whole number from 1 to 1024"));
    }
    for (name, value) in
        [("STREAMGRAD_LAUNCHER", "yes"), ("STREAMGRAD_CUDNN", "off"), ("STREAMGRAD_LAUNCH_BLOCKING", "2")]
    {
        let args = &["compare"];
        let message = bad_output(args, command(args).env(name, value).output().unwrap());
        assert!(message.contains(name) && message.contains(value), "{message}");
    }
    let one = command(&[&["compare"], SMALL].concat()).env("STREAMGRAD_THREADS", "1").output().unwrap();
    assert!(one.status.success() && text(&one.stdout).contains("no-room"), "{}", text(&one.stdout));
}

/// The threads' stacks alone are more than the limits, at some of which a thread could be made and not be set up.
#[test]
#[cfg(target_os = "linux")]
fn threads_that_find_no_memory_are_an_error() {
    for limit in ["600000", "900000", "1200000", "1500000"] {
        let mut limited = Command::new("sh");
        let script = format!("ulimit -v {limit}; exec \"$@\"");
        limited.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_streamgrad"), "compare", "--device", "cpu"]);
        let output = limited.args(SMALL).env("STREAMGRAD_THREADS", "1024").output().unwrap();
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{limit}: {message}");
        assert!(message.contains("thread kernel "), "{limit}: {message}");
    }
}

#[test]
fn a_closed_standard_output_is_no_panic() {
    for args in [&["info"][..], &["--help"], &["gradcheck", "add"]] {
        let mut child = command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
        assert!(output.stderr.is_empty(), "{args:?}: {}", text(&output.stderr));
    }
}

#[test]
fn a_run_that_nobody_reads_ends_unless_it_saves() {
    let folder = Folder::new("unread");
    let (json, saved) = (folder.file("out.json"), folder.file("saved"));
    let unread = |args: &[&str]| {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        command(args).stdout(writer).output().unwrap()
    };
    let compare = [&["compare"], SMALL].concat();
    let train = ["train", "--epochs", "2", "--batch", "128"];
    for (args, output, file) in [(&compare[..], "--json", json), (&train, "--save", saved)] {
        assert!(bad_output(args, unread(args)).contains("standard output"));
        let output = unread(&[args, &[output, &file]].concat());
        assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
        assert!(fs::metadata(file).unwrap().len() > 0);
    }
}

/// The reader leaves when it has read what is said before the run.
#[test]
fn a_run_that_nobody_reads_to_the_end_fails_unless_it_saves() {
    let folder = Folder::new("left");
    let json = folder.file("out.json");
    for save in [None, Some(&*json)] {
        let args = ["compare", "--steps", "100", "--warmup", "10"]
            .into_iter()
            .chain(save.iter().flat_map(|path| ["--json", path]));
        let mut child = command(&args.collect::<Vec<_>>());
        let mut child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut reader = BufReader::new(child.stdout.take().unwrap());
        (0..3).for_each(|_| assert!(reader.read_line(&mut String::new()).unwrap() > 0));
        drop(reader);
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.success(), save.is_some(), "{}", text(&output.stderr));
        assert_eq!(text(&output.stderr).contains("nobody reads standard output"), save.is_none());
    }
    assert!(fs::metadata(json).unwrap().len() > 0);
}

#[test]
fn a_run_that_is_interrupted_leaves_no_files() {
    let folder = Folder::new("interrupted");
    let [json, trace, report] = ["json", "trace", "report"].map(|name| folder.file(name));
    fs::write(&trace, "of an earlier run").unwrap();
    let args = ["compare", "--steps", "3000", "--json", &json, "--trace", &trace, "--report", &report];
    let mut child = command(&args).stdout(Stdio::piped()).spawn().unwrap();
    // Its first line comes when everything has been looked at.
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(line.starts_with("two-batch: "), "{line}");
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1);
    assert_eq!(fs::read_to_string(&trace).unwrap(), "of an earlier run");
}

#[test]
fn a_dash_is_standard_output_and_words_go_elsewhere() {
    let folder = Folder::new("dash");
    let run = |args: &[&str]| command(args).current_dir(&folder.0).output().unwrap();
    for (option, begin) in [("--json", "{"), ("--trace", "{"), ("--report", "<!doctype html>")] {
        let output = run(&[&["compare"], SMALL, &[option, "-"]].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        let (data, words) = (text(&output.stdout), text(&output.stderr));
        assert!(data.starts_with(begin), "{option}: {data}");
        if begin == "{" {
            serde_json::from_str::<Value>(&data).unwrap();
        }
        assert!(words.contains("two-batch: ") && words.contains("bit-equal"), "{words}");
    }
    let args = ["compare", "--json", "-", "--trace", "-"];
    assert!(bad_output(&args, run(&args)).contains("two outputs"));
    let args = ["train", "--save", "-"];
    assert!(bad_output(&args, run(&args)).contains("./-"));
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 0, "no file is named -");
}

#[cfg(unix)]
#[test]
fn a_text_may_go_into_a_pipe_and_a_checkpoint_may_not() {
    let folder = Folder::new("pipe");
    let pipe = folder.file("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || json(&pipe)
    });
    compare(&["--json", &pipe]);
    assert_eq!(reader.join().unwrap()["workload"], "two-batch");
    assert!(bad(&["train", "--epochs", "100000000", "--save", &pipe]).contains("not a regular file"));
    assert!(bad(&["train", "--save", "/dev/null"]).contains("not a regular file"));
}

#[test]
fn help_and_version_go_to_standard_output() {
    assert!(good(&["--help"]).contains("compare"));
    assert!(good(&["compare", "--help"]).contains("--trace"));
    assert!(good(&["--version"]).contains(env!("CARGO_PKG_VERSION")));
}
