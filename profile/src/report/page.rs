//! How a report becomes HTML: texts and tables are there without its script, which draws the rest.

use std::collections::HashMap;
use std::fmt::Write;

use serde_json::{Value, json};

use super::{Bars, Block, Plot, Report, Timeline};

pub(super) fn page(report: &Report) -> String {
    let mut page = Page::default();
    page.push_str(&format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>\n{}</style>\n<h1>{title}</h1>\n",
        include_str!("page.css"),
        title = escape(&report.title),
    ));
    if !report.about.is_empty() {
        page.push_str(&format!("<p class=\"quiet\">{}</p>\n", escape(&report.about)));
    }
    let mut blocks = report.blocks.iter().peekable();
    while let Some(block) = blocks.next() {
        match block {
            Block::Timelines => page.timelines(&report.timelines),
            Block::Bars(bars) => page.bars(bars),
            Block::Table { title, rows } => page.table(title, rows),
            Block::Notes { title, notes } => page.notes(title, notes),
            Block::Plot(plot) => {
                page.push_str("<div class=\"plots\">\n");
                page.plot(plot);
                while let Some(Block::Plot(plot)) = blocks.next_if(|block| matches!(block, Block::Plot(_))) {
                    page.plot(plot);
                }
                page.push_str("</div>\n");
            }
        }
    }
    page.finish(&report.timelines)
}

/// The number of colours, of which the last is everybody else's.
const COLOURS: usize = 8;

#[derive(Default)]
struct Page {
    html: String,
    plots: Vec<Value>,
    bars: Vec<Value>,
}

impl Page {
    fn push_str(&mut self, html: &str) {
        self.html.push_str(html);
    }

    fn heading(&mut self, title: &str) {
        let _ = writeln!(self.html, "<h2>{}</h2>", escape(title));
    }

    fn timelines(&mut self, timelines: &[Timeline]) {
        self.heading("Timeline");
        self.push_str("<section id=\"timelines\">\n<div class=\"tools\">");
        self.push_str(
            "<input type=\"search\" placeholder=\"Search\" aria-label=\"Search\"> <output></output>",
        );
        for (zoom, name) in [("in", "Zoom in"), ("out", "Zoom out"), ("all", "All")] {
            let _ = write!(self.html, " <button type=\"button\" data-zoom=\"{zoom}\">{name}</button>");
        }
        if timelines.iter().flat_map(|timeline| &timeline.slices).any(|slice| slice.critical) {
            self.push_str(" <label><input type=\"checkbox\"> Critical path only</label>");
        }
        self.push_str("</div>\n<div class=\"key\"></div>\n");
        for timeline in timelines {
            let _ = writeln!(
                self.html,
                "<p>{}</p>\n<div class=\"drawn\" tabindex=\"0\"></div>",
                escape(&timeline.title)
            );
        }
        self.push_str("</section>\n");
    }

    fn plot(&mut self, plot: &Plot) {
        let _ = write!(self.html, "<div><h2>{}</h2>", escape(&plot.title));
        if plot.lines.len() > 1 {
            self.key(plot.lines.iter().map(|line| line.name.as_str()));
        }
        let _ = writeln!(self.html, "<div data-plot=\"{}\"></div></div>", self.plots.len());
        let finite = |(x, y): &&(f64, f64)| x.is_finite() && y.is_finite();
        let lines = plot.lines.iter().map(|line| {
            let points: Vec<[f64; 2]> = line.points.iter().filter(finite).map(|&(x, y)| [x, y]).collect();
            json!({ "name": line.name, "points": points })
        });
        let lines: Vec<Value> = lines.collect();
        self.plots.push(json!({ "x_label": plot.x, "y_label": plot.y, "lines": lines }));
    }

    fn bars(&mut self, bars: &Bars) {
        let mut names: Vec<&str> = Vec::new();
        let mut number = |name| {
            names.iter().position(|known| *known == name).unwrap_or_else(|| {
                names.push(name);
                names.len() - 1
            })
        };
        let mut rows = Vec::with_capacity(bars.rows.len());
        for (name, parts) in &bars.rows {
            let parts = parts.iter().filter(|(_, size)| size.is_finite() && *size > 0.0);
            let parts: Vec<_> = parts.map(|(name, size)| json!([number(name.as_str()), size])).collect();
            rows.push(json!({ "name": name, "parts": parts }));
        }
        self.heading(&bars.title);
        self.key(names.iter().copied());
        let _ = writeln!(self.html, "<div data-bars=\"{}\"></div>", self.bars.len());
        self.bars.push(json!({ "unit": bars.unit, "names": names, "rows": rows }));
    }

    fn key<'a>(&mut self, names: impl Iterator<Item = &'a str>) {
        self.push_str("<div class=\"key\">");
        for (index, name) in names.enumerate() {
            let colour = index.min(COLOURS - 1);
            let _ = write!(
                self.html,
                "<span><i style=\"background:var(--c{colour})\"></i>{}</span>",
                escape(name)
            );
        }
        self.push_str("</div>\n");
    }

    fn table(&mut self, title: &str, rows: &[Vec<String>]) {
        let Some((head, body)) = rows.split_first() else { return };
        self.heading(title);
        let is_number = |column: usize| {
            let cell = |row: &Vec<String>| row.get(column).is_some_and(|cell| starts_as_number(cell));
            column > 0 && body.iter().any(cell)
        };
        let numbers: Vec<bool> = (0..head.len()).map(is_number).collect();
        let class = |column: usize| match numbers.get(column) {
            Some(true) => " class=\"number\"",
            _ => "",
        };
        self.push_str("<div class=\"wide\"><table>\n<thead><tr>");
        for (column, cell) in head.iter().enumerate() {
            let class = class(column);
            let _ = write!(self.html, "<th{class}><button type=\"button\">{}</button></th>", escape(cell));
        }
        self.push_str("</tr></thead>\n<tbody>\n");
        for row in body {
            self.push_str("<tr>");
            for (column, cell) in row.iter().enumerate() {
                let _ = write!(self.html, "<td{}>{}</td>", class(column), escape(cell));
            }
            self.push_str("</tr>\n");
        }
        self.push_str("</tbody></table></div>\n");
    }

    fn notes(&mut self, title: &str, notes: &[(String, String)]) {
        self.heading(title);
        self.push_str("<dl>\n");
        for (term, text) in notes {
            let _ = writeln!(self.html, "<div><dt>{}</dt><dd>{}</dd></div>", escape(term), escape(text));
        }
        self.push_str("</dl>\n");
    }

    fn finish(mut self, timelines: &[Timeline]) -> String {
        let timelines: Vec<Value> = timelines.iter().map(timeline_json).collect();
        let data = json!({ "timelines": timelines, "plots": self.plots, "bars": self.bars });
        // No text of the data may end the script.
        let data = data.to_string().replace('<', "\\u003c");
        let _ = write!(
            self.html,
            "<div id=\"tip\" role=\"status\" hidden></div>\n<script type=\"application/json\" id=\"data\">{data}</script>\n\
             <script>\n{}</script>\n</html>\n",
            include_str!("page.js"),
        );
        self.html
    }
}

/// Slices as `[row, start, end, name, critical, detail]`, with names by number. What names a row or a slice that is not there is
/// left out.
fn timeline_json(timeline: &Timeline) -> Value {
    let mut names: Vec<&str> = Vec::new();
    let mut known: HashMap<&str, usize> = HashMap::new();
    let mut slices = Vec::with_capacity(timeline.slices.len());
    let mut places = vec![None; timeline.slices.len()];
    for (slice, place) in timeline.slices.iter().zip(&mut places) {
        if slice.row >= timeline.rows.len() {
            continue;
        }
        let name = *known.entry(&slice.name).or_insert_with(|| {
            names.push(&slice.name);
            names.len() - 1
        });
        *place = Some(slices.len());
        let end_ns = slice.end_ns.max(slice.start_ns);
        slices.push(json!([slice.row, slice.start_ns, end_ns, name, u8::from(slice.critical), slice.detail]));
    }
    let place = |number: usize| places.get(number).copied().flatten();
    let arrows: Vec<[usize; 2]> =
        timeline.arrows.iter().filter_map(|&(from, to)| Some([place(from)?, place(to)?])).collect();
    json!({
        "title": timeline.title, "wall_ns": timeline.wall_ns, "rows": timeline.rows, "names": names, "slices": slices,
        "arrows": arrows,
    })
}

fn starts_as_number(text: &str) -> bool {
    text.trim_start_matches(['-', '+']).starts_with(|c: char| c.is_ascii_digit())
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
