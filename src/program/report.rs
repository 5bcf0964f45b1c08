//! A comparison as one HTML page that needs nothing else.

use std::fmt::Write;

use streamgrad::Moment;
use streamgrad::device::{CommandRecord, Recording};
use streamgrad::workloads::compare::{Comparison, ScheduleReport};

use super::table::Table;

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;color:#222;background:#fff;max-width:60rem;\
margin:3rem auto;padding:0 1rem}h1{font-size:1.5rem;font-weight:600;margin-bottom:0}\
h2{font-size:1.1rem;font-weight:600;margin-top:2.5rem}.quiet{color:#666;margin-top:.2rem}\
table{border-collapse:collapse}td{padding:.15rem 1.5rem .15rem 0;border-bottom:1px solid #eee}\
td.number{text-align:right;font-variant-numeric:tabular-nums}\
dt{font-weight:600;margin-top:.6rem}dd{margin:0}svg{display:block;width:100%;height:auto}\
svg text{font:11px system-ui,sans-serif;fill:#555}\
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}td{border-color:#333}\
.quiet{color:#999}svg text{fill:#aaa}}";

/// The page. `figures` is the table that the terminal shows.
pub(super) fn page(found: &Comparison, about: &str, figures: &Table) -> String {
    let mut page = String::new();
    let options = &found.options;
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>streamgrad compare: {0}</title>\n\
         <style>{STYLE}</style>\n<h1>{0}: {1:.2}x on {2} streams</h1>\n<p class=\"quiet\">{3}. Device {4}, {5} threads, \
         batches of {6} rows, {7} steps, seed {8}.</p>\n",
        escape(found.workload),
        found.speedup,
        options.streams,
        escape(about),
        escape(&found.device),
        found.threads,
        options.batch,
        options.steps,
        options.seed
    );
    let equal = |equal: bool| if equal { "bit-equal" } else { "<strong>not equal</strong>" };
    let _ = writeln!(
        page,
        "<p>Losses {}, parameters {}, held-out accuracy {:.1} %.</p>",
        equal(found.identical_losses),
        equal(found.identical_parameters),
        100.0 * found.accuracy
    );
    lanes(&mut page, found);
    table(&mut page, figures);
    page.push_str("<h2>Diagnosis</h2>\n<dl>\n");
    for finding in &found.diagnosis {
        let _ = writeln!(page, "<dt>{}</dt><dd>{}</dd>", escape(finding.code), escape(&finding.message));
    }
    page.push_str("</dl>\n</html>\n");
    page
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn table(page: &mut String, figures: &Table) {
    page.push_str("<h2>Figures</h2>\n<table>\n");
    for row in figures.rows() {
        page.push_str("<tr>");
        for (column, cell) in row.iter().enumerate() {
            let class = if column == 0 { "" } else { " class=\"number\"" };
            let _ = write!(page, "<td{class}>{}</td>", escape(cell));
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</table>\n");
}

const WIDTH: f64 = 960.0;
const LABEL: f64 = 100.0;
const ROW: f64 = 34.0;
const BAR: f64 = 22.0;

/// Quiet colours; the ops that take most time have one each, the rest share the last.
const COLOURS: &[&str] = &["#5b8db8", "#7fb08a", "#c9a15a", "#b07a8c", "#8a86b8", "#aaaaaa"];

fn lanes(page: &mut String, found: &Comparison) {
    let steps: Vec<_> = found.schedules().map(middle_step).collect();
    let longest = steps.iter().flatten().map(|step| step.wall_ns).max().unwrap_or(1).max(1);
    let ops: Vec<&str> = found.serial.profile.ops.iter().map(|op| op.op).take(COLOURS.len() - 1).collect();
    let colour = |op: &str| {
        let place = ops.iter().position(|known| *known == op).unwrap_or(COLOURS.len() - 1);
        COLOURS[place]
    };
    page.push_str("<h2>A step, drawn to one scale</h2>\n<p class=\"quiet\">");
    for op in ops.iter().copied().chain(["other"]) {
        let _ = write!(page, "<span style=\"color:{}\">&#9632;</span> {} &nbsp; ", colour(op), escape(op));
    }
    page.push_str("</p>\n");
    for (schedule, step) in found.schedules().zip(steps) {
        if let Some(step) = step {
            drawing(page, schedule, step, longest, &colour);
        }
    }
}

/// The traced step of median length.
fn middle_step(schedule: &ScheduleReport) -> Option<&Recording> {
    let mut steps: Vec<&Recording> = schedule.recordings.iter().collect();
    steps.sort_by_key(|step| step.wall_ns);
    steps.get(steps.len() / 2).copied()
}

fn drawing(
    page: &mut String,
    schedule: &ScheduleReport,
    step: &Recording,
    longest_ns: u64,
    colour: &dyn Fn(&str) -> &'static str,
) {
    let x = |ns: u64| LABEL + (WIDTH - LABEL) * ns as f64 / longest_ns as f64;
    let used = |id| step.commands.iter().any(|command| command.moment.stream == id);
    let streams: Vec<_> = schedule.streams_by_name.iter().filter(|(id, _)| used(*id)).collect();
    let middle = |moment: Moment| {
        let row = streams.iter().position(|(id, _)| *id == moment.stream)?;
        Some((row as f64 + 0.5) * ROW)
    };
    let height = ROW * streams.len() as f64 + 18.0;
    let replay = if schedule.captured.is_some() { "; a replay is one command" } else { "" };
    let _ = writeln!(page, "<p>{}, {:.3} ms traced{replay}</p>", schedule.name, step.wall_ns as f64 / 1e6);
    let _ = writeln!(
        page,
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\">",
        schedule.name
    );
    for (row, (_, name)) in streams.iter().enumerate() {
        let y = (row as f64 + 0.5) * ROW;
        let _ = writeln!(page, "<text x=\"0\" y=\"{:.1}\">{}</text>", y + 4.0, escape(name));
        let _ = writeln!(
            page,
            "<line x1=\"{LABEL}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#8884\"/>",
            x(step.wall_ns)
        );
    }
    for command in &step.commands {
        let Some(y) = middle(command.moment) else { continue };
        let width = (x(command.end_ns) - x(command.start_ns)).max(0.4);
        let us = command.end_ns.saturating_sub(command.start_ns) as f64 / 1e3;
        let _ = writeln!(
            page,
            "<rect x=\"{:.2}\" y=\"{:.1}\" width=\"{width:.2}\" height=\"{BAR}\" fill=\"{}\"><title>{} {us:.1} us</title></rect>",
            x(command.start_ns),
            y - BAR / 2.0,
            colour(command.op),
            escape(command.op)
        );
    }
    let find = |moment: Moment| step.commands.iter().find(|command| command.moment == moment);
    for wait in &step.waits {
        if let (Some(from), Some(to)) = (find(wait.awaited), find(wait.waiter)) {
            arrow(page, from, to, &x, &middle);
        }
    }
    let _ = writeln!(page, "<text x=\"{LABEL}\" y=\"{:.1}\">0</text>", height - 4.0);
    let _ = writeln!(
        page,
        "<text x=\"{WIDTH}\" y=\"{:.1}\" text-anchor=\"end\">{:.3} ms</text>\n</svg>",
        height - 4.0,
        longest_ns as f64 / 1e6
    );
}

fn arrow(
    page: &mut String,
    from: &CommandRecord,
    to: &CommandRecord,
    x: &dyn Fn(u64) -> f64,
    middle: &dyn Fn(Moment) -> Option<f64>,
) {
    if let (Some(y1), Some(y2)) = (middle(from.moment), middle(to.moment)) {
        let (x1, x2) = (x(from.end_ns), x(to.start_ns));
        let _ = writeln!(
            page,
            "<path d=\"M{x1:.2} {y1:.1}L{x2:.2} {y2:.1}\" stroke=\"#c33\" fill=\"none\"/>\
             <circle cx=\"{x2:.2}\" cy=\"{y2:.1}\" r=\"2\" fill=\"#c33\"/>"
        );
    }
}
