//! One page of HTML that shows what a program did, and needs nothing beside it.

mod page;

use std::path::Path;

use device::Result;
use device::file::io_error;

/// A page with timelines, plots, tables and texts, in the order in which they are added. It is read in any browser, on a phone
/// and on paper, in light and in dark, without a network.
///
/// ```
/// use profile::report::{Line, Plot, Report};
/// let loss = Line { name: "loss".into(), points: vec![(0.0, 2.3), (1.0, 1.9), (2.0, 1.7)] };
/// let page = Report::new("Training")
///     .about("Digits, 64-128-10")
///     .plot(Plot { title: "Loss".into(), x: "step".into(), y: "nats".into(), lines: vec![loss] })
///     .html();
/// assert!(page.starts_with("<!doctype html>") && page.contains("Digits, 64-128-10"));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Report {
    title: String,
    about: String,
    blocks: Vec<Block>,
    timelines: Vec<Timeline>,
}

#[derive(Clone, Debug)]
enum Block {
    /// All timelines, which share a scale.
    Timelines,
    Plot(Plot),
    Bars(Bars),
    Table {
        title: String,
        rows: Vec<Vec<String>>,
    },
    Notes {
        title: String,
        notes: Vec<(String, String)>,
    },
}

/// What ran when: rows, one for each stream or thread, with slices on them.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    /// What is written above it.
    pub title: String,
    /// Its length in nanoseconds.
    pub wall_ns: u64,
    /// The names of its rows.
    pub rows: Vec<String>,
    /// What is drawn on them. The longest kinds have a colour each.
    pub slices: Vec<Slice>,
    /// Arrows from the end of a slice to the start of another one, by their numbers.
    pub arrows: Vec<(usize, usize)>,
}

/// A piece of a row of a [`Timeline`].
#[derive(Clone, Debug, Default)]
pub struct Slice {
    /// The number of the row.
    pub row: usize,
    /// Where it starts, in nanoseconds.
    pub start_ns: u64,
    /// Where it ends.
    pub end_ns: u64,
    /// What it is.
    pub name: String,
    /// What is said where it is pointed to, in lines; may be empty.
    pub detail: String,
    /// Whether it is on the critical path.
    pub critical: bool,
}

/// Lines over an axis of numbers.
#[derive(Clone, Debug, Default)]
pub struct Plot {
    /// What is written above it.
    pub title: String,
    /// What is to the right, with its unit.
    pub x: String,
    /// What is upwards, with its unit.
    pub y: String,
    /// The lines.
    pub lines: Vec<Line>,
}

/// A line of a [`Plot`].
#[derive(Clone, Debug, Default)]
pub struct Line {
    /// Its name.
    pub name: String,
    /// Points from left to right. Those with numbers that are not finite are left out.
    pub points: Vec<(f64, f64)>,
}

/// Bars that are made of parts, one below the other.
#[derive(Clone, Debug, Default)]
pub struct Bars {
    /// What is written above them.
    pub title: String,
    /// The unit of the parts' sizes.
    pub unit: String,
    /// The name of each bar, and the names and sizes of its parts. Equal names have one colour.
    pub rows: Vec<(String, Vec<(String, f64)>)>,
}

impl Report {
    /// An empty page.
    pub fn new(title: impl Into<String>) -> Report {
        Report { title: title.into(), ..Report::default() }
    }

    /// The sentence below the title.
    #[must_use]
    pub fn about(mut self, text: impl Into<String>) -> Report {
        self.about = text.into();
        self
    }

    /// Adds a timeline. All of a page are in one place, the first one's, and show the same stretch of time.
    #[must_use]
    pub fn timeline(mut self, timeline: Timeline) -> Report {
        if self.timelines.is_empty() {
            self.blocks.push(Block::Timelines);
        }
        self.timelines.push(timeline);
        self
    }

    /// Adds a plot. Those that follow one another stand side by side where there is room.
    #[must_use]
    pub fn plot(mut self, plot: Plot) -> Report {
        self.blocks.push(Block::Plot(plot));
        self
    }

    /// Adds bars.
    #[must_use]
    pub fn bars(mut self, bars: Bars) -> Report {
        self.blocks.push(Block::Bars(bars));
        self
    }

    /// Adds a table, whose first row has the names of its columns. Readers can sort it.
    #[must_use]
    pub fn table(mut self, title: impl Into<String>, rows: Vec<Vec<String>>) -> Report {
        self.blocks.push(Block::Table { title: title.into(), rows });
        self
    }

    /// Adds texts, each with what it is about.
    #[must_use]
    pub fn notes(mut self, title: impl Into<String>, notes: Vec<(String, String)>) -> Report {
        self.blocks.push(Block::Notes { title: title.into(), notes });
        self
    }

    /// The page.
    pub fn html(&self) -> String {
        page::page(self)
    }

    /// Writes the page to a file.
    ///
    /// # Errors
    /// `Io` with the path.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        std::fs::write(path, self.html()).map_err(|error| io_error(path, error))
    }
}
