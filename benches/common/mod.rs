//! A harness that runs its cases in turn, round after round, so that a machine whose speed drifts treats them alike.

use std::time::Instant;

use streamgrad::device::quantiles;

/// A named piece of work; one call is one iteration.
pub(crate) struct Case<'a> {
    name: String,
    /// How many operations one call does; times are divided by it.
    operations: usize,
    work: Box<dyn FnMut() + 'a>,
    calls: usize,
    ns: Vec<f64>,
}

pub(crate) fn case<'a>(name: impl Into<String>, operations: usize, work: impl FnMut() + 'a) -> Case<'a> {
    Case { name: name.into(), operations, work: Box::new(work), calls: 1, ns: Vec::new() }
}

impl Case<'_> {
    fn time(&mut self) -> f64 {
        let start = Instant::now();
        (0..self.calls).for_each(|_| (self.work)());
        start.elapsed().as_nanos() as f64 / (self.calls * self.operations) as f64
    }

    /// Finds how many calls take about `round_ms`.
    fn calibrate(&mut self, round_ms: f64) {
        self.time();
        while self.time() * ((self.calls * self.operations) as f64) < round_ms * 1e6 {
            self.calls *= 2;
        }
    }
}

/// Whether a case is to be run: one of the words given is a part of its name, or there are none.
pub(crate) fn is_chosen(name: &str) -> bool {
    let mut wanted = std::env::args().skip(1).filter(|word| !word.starts_with("--")).peekable();
    wanted.peek().is_none() || wanted.any(|word| name.contains(&word))
}

/// Runs the cases in turn and prints the nanoseconds of an operation: median, p10 and p90 of the rounds, and the ratio
/// of each median to the first case's. With `--json` on the command line, a line of JSON a case instead. Other words on
/// the command line choose cases by a part of their name.
pub(crate) fn run(title: &str, cases: Vec<Case<'_>>) {
    let json = std::env::args().any(|word| word == "--json");
    let mut cases: Vec<Case<'_>> = cases.into_iter().filter(|case| is_chosen(&case.name)).collect();
    for case in &mut cases {
        case.calibrate(20.0);
    }
    for _ in 0..15 {
        for case in &mut cases {
            let ns = case.time();
            case.ns.push(ns);
        }
    }
    if !json && !cases.is_empty() {
        println!("{title}\n{:44} {:>12} {:>12} {:>12} {:>7}", "", "median ns", "p10", "p90", "ratio");
    }
    let mut first = None;
    for case in &cases {
        let [median, p10, p90] = quantiles(case.ns.iter().copied(), [0.5, 0.1, 0.9]);
        let ratio = median / *first.get_or_insert(median);
        let name = &case.name;
        if json {
            println!(
                "{{\"name\": \"{name}\", \"median_ns\": {median:.1}, \"p10_ns\": {p10:.1}, \"p90_ns\": {p90:.1}}}"
            );
        } else {
            println!("{name:44} {median:12.1} {p10:12.1} {p90:12.1} {ratio:7.2}");
        }
    }
}
