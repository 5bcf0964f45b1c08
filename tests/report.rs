//! Reports as a browser shows them. Without a Chromium that starts the tests say so and do nothing.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::process::{Command, Stdio};

use common::folder::Folder;
use streamgrad::profile::report::{Bars, Line, Plot, Report, Slice, Timeline};

/// Runs in the page, before and after what the page does itself, and notes what it finds in the document.
const BEFORE: &str =
    "<script>addEventListener('error', (e) => document.documentElement.dataset.error = e.message);</script>";
const AFTER: &str = "<script>{
    const found = document.documentElement.dataset, boxes = (svg) =>
        [...svg.querySelectorAll('text')].map((text) => [text.textContent, text.getBoundingClientRect()]);
    const meet = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 2 && b.top < a.bottom - 2;
    const pairs = [];
    for (const svg of document.querySelectorAll('svg')) {
        const all = boxes(svg), room = svg.getBoundingClientRect();
        all.forEach(([text, box], i) => {
            if (box.right > room.right + 1 || box.left < room.left - 1) pairs.push(`${text} leaves the drawing`);
            all.slice(i + 1).forEach(([other, beside]) => meet(box, beside) && pairs.push(`${text} over ${other}`));
        });
    }
    found.overlaps = pairs.join('; ');
    found.wide = document.documentElement.scrollWidth > innerWidth;
    const rects = () => document.querySelectorAll('.drawn rect[data-slice]').length;
    found.rects = rects();
    document.querySelector('button[data-zoom=in]').click();
    found.zoomed = rects();
    document.querySelector('button[data-zoom=all]').click();
    const search = document.querySelector('input[type=search]');
    search.value = 'MATMUL';
    search.dispatchEvent(new Event('input'));
    found.search = document.querySelector('output').textContent;
    document.querySelector('table button').click();
    found.sorted = [...document.querySelectorAll('tbody tr')].map((row) => row.cells[0].textContent).join();
}</script>";

/// Attributes of the document after a page was shown on a screen of some width; `None` without a browser.
fn shown(name: &str, html: &str, width: u32) -> Option<impl Fn(&str) -> String + use<>> {
    let folder = Folder::new(name);
    let path = folder.file("page.html");
    let html = html
        .replacen("<script", &format!("{BEFORE}<script"), 1)
        .replace("</html>", &format!("{AFTER}</html>"));
    std::fs::write(&path, html).unwrap();
    let mut command = Command::new("chromium");
    command.args([
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--virtual-time-budget=2000",
        "--dump-dom",
    ]);
    command.arg(format!("--window-size={width},2000")).arg(format!("file://{path}"));
    let output = command.stderr(Stdio::null()).output().ok().filter(|output| output.status.success());
    let Some(output) = output.filter(|output| !output.stdout.is_empty()) else {
        println!("skipped: there is no chromium that starts here");
        return None;
    };
    let page = String::from_utf8(output.stdout).unwrap();
    let head = page.split_once("<head>").unwrap().0.to_owned();
    Some(move |name: &str| {
        let found =
            head.split_once(&format!("data-{name}=\"")).unwrap_or_else(|| panic!("no {name} in {head}"));
        found.1.split_once('"').unwrap().0.to_owned()
    })
}

/// Two lanes with slices of all lengths, one of them far longer than the rest.
fn report() -> Report {
    let ops =
        ["matmul", "softmax", "add", "conv2d_input_grad", "<b>&\"", "relu", "sum", "exp", "log", "tanh"];
    let slice = |at: u64| Slice {
        row: (at % 2) as usize,
        start_ns: at * 1000,
        end_ns: at * 1000 + 100 + at * at % 1900,
        name: ops[at as usize % ops.len()].to_owned(),
        detail: "a detail".into(),
        critical: at.is_multiple_of(3),
    };
    let timeline = |rows: [&str; 2], slices: u64| Timeline {
        title: "concurrent </script>, traced".into(),
        wall_ns: slices * 1000 + 2000,
        rows: rows.map(str::to_owned).into(),
        slices: (0..slices).map(slice).collect(),
        arrows: (1..slices as usize).step_by(7).map(|to| (to - 1, to)).collect(),
    };
    let line = |name: &str, by: f64| Line {
        name: name.into(),
        points: (0..30).map(|step| (f64::from(step) * 1e4, by / (1.0 + f64::from(step)))).collect(),
    };
    let lines = vec![line("serial", 2e6), line("concurrent", 1e6)];
    let bars = ["lane 0 of the concurrent schedule, with a long name", "lane 1"];
    let parts = || {
        vec![("busy".to_owned(), 3.0), ("waited for lane 1".to_owned(), 0.5), ("none".to_owned(), f64::NAN)]
    };
    let text = |cells: [&str; 2]| cells.map(str::to_owned).to_vec();
    Report::new("gpt: 1.77x on 2 streams <b>")
        .about("One block. ".repeat(9))
        .notes("Diagnosis", vec![("imbalance".into(), "the lanes are uneven ".repeat(12))])
        .timeline(timeline(["default stream", "lane 0"], 100))
        .timeline(timeline(["lane 0", "lane 1"], 50))
        .bars(Bars {
            title: "Streams".into(),
            unit: "ms".into(),
            rows: bars.map(|name| (name.into(), parts())).into(),
        })
        .plot(Plot { title: "Memory".into(), x: "ms".into(), y: "bytes".into(), lines })
        .plot(Plot { title: "Nothing".into(), x: "ms".into(), y: "MiB".into(), lines: Vec::new() })
        .table("Ops", vec![text(["calls", "op"]), text(["7", "b"]), text(["30", "a"]), text(["8", "c"])])
}

#[test]
fn nothing_overlaps_at_any_width() {
    for width in [390, 800, 1280, 1920] {
        let Some(found) = shown("report-width", &report().html(), width) else { return };
        assert_eq!(
            (found("drawn").as_str(), found("overlaps").as_str(), found("wide").as_str()),
            ("5", "", "false"),
            "{width}"
        );
    }
}

#[test]
fn a_timeline_can_be_searched_and_a_table_sorted() {
    let Some(found) = shown("report-search", &report().html(), 1280) else { return };
    assert!(found("zoomed").parse::<u32>().unwrap() < found("rects").parse().unwrap());
    assert!(found("search").starts_with("15 found, "), "{}", found("search"));
    assert_eq!(found("sorted"), "30,8,7");
}

#[test]
fn an_error_in_the_page_is_seen() {
    let broken = report().html().replace("function draw() {", "function draw() { missing();");
    let Some(found) = shown("report-broken", &broken, 800) else { return };
    assert!(found("error").contains("missing is not defined"));
}
