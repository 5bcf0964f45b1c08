//! Where two runs of a program part: the first command that wrote something else although its inputs were equal.

use std::collections::HashMap;
use std::fmt::{self, Write};
use std::path::Path;

use device::{DType, Device, Error, ErrorKind, Result, TracedCommand, Written, bf16, f16, file, from_bytes};

/// What each command of a run wrote, as hashes, with its op and the line that launched it.
///
/// Commands are known by their lane and their number in it: `main` is what the program launches itself, and each batch of a step on
/// [`ConcurrentBatches`](autograd::ConcurrentBatches), of a [`Pipeline`](autograd::Pipeline) and each item of a
/// [`Prefetch`](autograd::Prefetch) is a lane. So schedules, streams and numbers of threads can be compared. Host threads of the program's own that launch at the
/// same time need lanes of their own: [`Lane::scope`](crate::Lane::scope).
///
/// ```
/// use compare::{WriteTrace, first_divergence};
/// use tensor::Tensor;
/// let dev = tensor::Device::cpu();
/// let run = |x: f32| {
///     WriteTrace::start(&dev, true);
///     let sum = Tensor::from_slice(&[1.0, x], &[2], &dev)?.sum(&[], false)?;
///     sum.mul_scalar(2.0)?;
///     WriteTrace::stop(&dev)
/// };
/// let (a, b) = (run(2.0)?, run(3.0)?);
/// assert_eq!(first_divergence(&a, &run(2.0)?), None);
/// let found = first_divergence(&a, &b).map(|found| (found.op, found.element, found.values));
/// assert_eq!(found, Some(("upload".into(), Some(6), Some(["byte 0x00".into(), "byte 0x40".into()]))));
/// # Ok::<(), device::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WriteTrace {
    commands: Vec<Command>,
}

#[derive(Clone, Debug, PartialEq)]
struct Command {
    lane: Box<str>,
    number: usize,
    /// Whether it is a part of a captured step.
    replayed: bool,
    op: Box<str>,
    /// Of each operand that it writes, if that is known.
    hashes: Vec<Option<u64>>,
    place: Box<str>,
    /// Of each operand that it writes, if they are kept.
    values: Vec<Option<Values>>,
}

/// The type of an operand's elements, and their bytes.
type Values = (Option<DType>, Box<[u8]>);

/// The first command whose inputs are equal in two traces, and whose outputs differ.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Divergence {
    /// Its op.
    pub op: Box<str>,
    /// Its lane and its number there, from 0.
    pub command: (Box<str>, usize),
    /// The line that launched it, in each trace.
    pub places: [Box<str>; 2],
    /// What the second trace has in its place, where that is another op, or nothing.
    pub other: Option<Box<str>>,
    /// Which of the operands that it writes differs first.
    pub output: usize,
    /// The first element that differs, in row-major order, if values were kept; the first byte of an upload or another command that
    /// does not say of what type its elements are.
    pub element: Option<usize>,
    /// Its values in each trace, if they were kept.
    pub values: Option<[Box<str>; 2]>,
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Divergence { op, command: (lane, number), places: [place, other_place], .. } = self;
        write!(f, "{op} at {place} (command {number} of {lane})")?;
        if let Some(other) = &self.other {
            return write!(f, " has no counterpart: the other run has {other} there");
        }
        if place != other_place {
            write!(f, ", in the other run at {other_place},")?;
        }
        write!(f, " is the first command that gives another result, in output {}", self.output)?;
        match (self.element, &self.values) {
            (Some(element), Some([a, b])) => write!(f, ": element {element} is {a} and {b}"),
            _ => Ok(()),
        }
    }
}

impl WriteTrace {
    /// Traces what commands of `device` write from now on, with values if `keep_values`, which takes as much memory as is written.
    /// Begin before the first tensor is made: what was written earlier is taken to be equal, and steps that were captured earlier are left
    /// out. Waits for what was launched.
    pub fn start(device: &Device, keep_values: bool) {
        device.start_write_trace(keep_values);
    }

    /// Waits for what was launched, and ends the trace.
    ///
    /// # Errors
    /// What the commands failed with.
    pub fn stop(device: &Device) -> Result<WriteTrace> {
        let commands = device.stop_write_trace().into_iter().map(Command::from).collect();
        device.synchronize()?;
        Ok(WriteTrace { commands })
    }

    /// Writes the trace to a file, one line a command, without values.
    ///
    /// # Errors
    /// `Io`.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let mut text = format!("{HEADER}\n");
        for Command { lane, number, replayed, op, hashes, place, .. } in &self.commands {
            let hash = |hash: &Option<u64>| hash.map_or("-".into(), |hash| format!("{hash:016x}"));
            let hashes: Vec<String> = hashes.iter().map(hash).collect();
            // A string takes every line.
            let mark = if *replayed { REPLAYED } else { "" };
            let _ = writeln!(text, "{lane}\t{number}\t{op}\t{}\t{place}{mark}", hashes.join(","));
        }
        file::write(path, text.as_bytes())
    }

    /// Reads a trace from a file.
    ///
    /// # Errors
    /// `Io`; `Format` for a file that [`save`](Self::save) did not write.
    pub fn load(path: impl AsRef<Path>) -> Result<WriteTrace> {
        let path = path.as_ref();
        let text = String::from_utf8(file::read(path)?).unwrap_or_default();
        let wrong = |line: usize| {
            let (path, detail) =
                (path.display().to_string().into(), format!("line {line}: no trace of writes"));
            Error::new(ErrorKind::Format { path, detail: detail.into() })
        };
        let mut lines = text.lines();
        if lines.next() != Some(HEADER) {
            return Err(wrong(1));
        }
        let commands = lines.zip(2..).map(|(line, at)| Command::parse(line).ok_or_else(|| wrong(at)));
        Ok(WriteTrace { commands: commands.collect::<Result<_>>()? })
    }
}

const HEADER: &str = "streamgrad trace of writes 1";
/// Ends the lines of commands of captured steps.
const REPLAYED: &str = "\treplayed";

impl Command {
    fn parse(line: &str) -> Option<Command> {
        let (line, replayed) = line.strip_suffix(REPLAYED).map_or((line, false), |line| (line, true));
        let fields: Vec<&str> = line.split('\t').collect();
        let &[lane, number, op, hashes, place] = &fields[..] else { return None };
        let hash = |hash: &str| match hash {
            "-" => Ok(None),
            _ => u64::from_str_radix(hash, 16).map(Some),
        };
        let hashes = hashes.split(',').filter(|hash| !hash.is_empty()).map(hash);
        Some(Command {
            lane: lane.into(),
            number: number.parse().ok()?,
            replayed,
            op: op.into(),
            hashes: hashes.collect::<Result<_, _>>().ok()?,
            place: place.into(),
            values: Vec::new(),
        })
    }

    /// How it differs from the command in its place in another trace, by more than `rtol` where values are known.
    fn compare(&self, other: Option<&Command>, rtol: f64) -> Option<Divergence> {
        let found = other.filter(|other| other.op == self.op);
        if found.is_some_and(|found| found.hashes == self.hashes) {
            return None;
        }
        let place = other.map(|other| other.place.clone()).unwrap_or_default();
        let mut divergence = Divergence {
            op: self.op.clone(),
            command: (self.lane.clone(), self.number),
            places: [self.place.clone(), place],
            other: None,
            output: 0,
            element: None,
            values: None,
        };
        let Some(found) = found else {
            let other = other.map_or("nothing".into(), |other| format!("{} at {}", other.op, other.place));
            return Some(Divergence { other: Some(other.into()), ..divergence });
        };
        let most = self.hashes.len().max(found.hashes.len());
        let unequal = (0..most).filter(|&at| match (self.hashes.get(at), found.hashes.get(at)) {
            (Some(None), Some(_)) | (Some(_), Some(None)) => false,
            (hash, other) => hash != other,
        });
        let mut differences = unequal.filter_map(|output| {
            let [values, others] = [self, found].map(|command| command.values.get(output)?.as_ref());
            let Some(((dtype, a), (_, b))) = values.zip(others).filter(|(a, b)| a.0 == b.0) else {
                return Some((output, None));
            };
            first_difference(*dtype, a, b, rtol).map(|(element, values)| (output, Some((element, values))))
        });
        let (output, difference) = differences.next()?;
        divergence.output = output;
        (divergence.element, divergence.values) = difference.unzip();
        Some(divergence)
    }
}

/// The first element that differs by more than `rtol` of the largest one, and its values.
fn first_difference(dtype: Option<DType>, a: &[u8], b: &[u8], rtol: f64) -> Option<(usize, [Box<str>; 2])> {
    let size = dtype.map_or(1, DType::size_bytes);
    let number = |bytes: &[u8]| number(dtype, bytes);
    let sizes = a.chunks(size).map(|bytes| number(bytes).abs());
    let largest = sizes.filter(|size| size.is_finite()).fold(0.0, f64::max);
    let may_round = rtol > 0.0 && dtype.is_some_and(DType::is_float);
    let is_near = |(a, b): (&[u8], &[u8])| {
        let (x, y) = (number(a), number(b));
        a == b || may_round && ((x - y).abs() <= rtol * largest || x.is_nan() && y.is_nan())
    };
    let element = a.chunks(size).zip(b.chunks(size)).position(|pair| !is_near(pair));
    let lengths = (a.len() != b.len()).then(|| a.len().min(b.len()) / size);
    let element = element.or(lengths)?;
    let values = [a, b].map(|bytes| value(dtype, bytes.chunks(size).nth(element).unwrap_or_default()));
    Some((element, values))
}

impl From<TracedCommand> for Command {
    fn from(traced: TracedCommand) -> Command {
        let values =
            |written: Option<Written>| written.and_then(|written| Some((written.dtype, written.values?)));
        Command {
            lane: traced.lane.to_string().into(),
            number: traced.number,
            replayed: traced.replayed,
            op: traced.op.into(),
            hashes: traced.writes.iter().map(|written| Some(written.as_ref()?.hash)).collect(),
            place: traced.place.to_string().into(),
            values: traced.writes.into_iter().map(values).collect(),
        }
    }
}

/// An element as a number.
fn number(dtype: Option<DType>, bytes: &[u8]) -> f64 {
    match dtype {
        Some(DType::F32) => from_bytes::<f32>(bytes)[0].into(),
        Some(DType::F64) => from_bytes::<f64>(bytes)[0],
        Some(DType::BF16) => from_bytes::<bf16>(bytes)[0].into(),
        Some(DType::F16) => from_bytes::<f16>(bytes)[0].into(),
        Some(DType::I64) => from_bytes::<i64>(bytes)[0] as f64,
        _ => bytes[0].into(),
    }
}

/// An element as it is printed.
fn value(dtype: Option<DType>, bytes: &[u8]) -> Box<str> {
    match dtype {
        _ if bytes.is_empty() => "missing".into(),
        None => format!("byte {:#04x}", bytes[0]).into(),
        // Fewest digits.
        Some(DType::F32) => (number(dtype, bytes) as f32).to_string().into(),
        Some(DType::I64) => from_bytes::<i64>(bytes)[0].to_string().into(),
        Some(_) => number(dtype, bytes).to_string().into(),
    }
}

/// The first command whose inputs are equal in two traces and whose outputs differ, with bits compared; `None` if the traces are
/// equal. Commands are matched by lane, number and op, and never by time, so the schedules may differ; of several such commands that do not depend on each other
/// it is the one that `a` launched first. A command that only one of the traces has is a divergence, too.
///
/// The commands before it in `a`, which are all that it depends on, wrote the same in both, so what it read was equal, unless
/// it ran before them: a wait that is missing names the command that should have waited.
///
/// If the steps of only one of the runs are captured, commands are matched by lane, op, line and how often that was launched before. What only one
/// of the traces has is not compared then, nor what a captured step keeps in registers.
pub fn first_divergence(a: &WriteTrace, b: &WriteTrace) -> Option<Divergence> {
    first_divergence_within(a, b, 0.0)
}

/// As [`first_divergence`], for runs on devices that round differently: where both traces kept values, floats may differ by `rtol` of the
/// largest magnitude among what a command writes to an operand.
pub fn first_divergence_within(a: &WriteTrace, b: &WriteTrace, rtol: f64) -> Option<Divergence> {
    let is_replayed = |trace: &WriteTrace| trace.commands.iter().any(|command| command.replayed);
    if is_replayed(a) != is_replayed(b) {
        let others: HashMap<Key<'_>, &Command> = b.by_line().collect();
        let [counts, other_counts] = [a, b].map(WriteTrace::counts);
        return a.by_line().find_map(|(key, command)| {
            let (line, other) = ((key.0, key.1, key.2), others.get(&key)?);
            // An op that is several commands in a captured step is not compared.
            let is_alike =
                counts.get(&line) == other_counts.get(&line) && command.hashes.len() == other.hashes.len();
            if is_alike { command.compare(Some(other), rtol) } else { None }
        });
    }
    let key = |command: &Command| (command.lane.clone(), command.number);
    let others: HashMap<_, &Command> = b.commands.iter().map(|command| (key(command), command)).collect();
    let mut compared =
        a.commands.iter().map(|command| command.compare(others.get(&key(command)).copied(), rtol));
    compared.find_map(|found| found).or_else(|| {
        let known: HashMap<_, &Command> = a.commands.iter().map(|command| (key(command), command)).collect();
        let extra = b.commands.iter().find(|command| !known.contains_key(&key(command)))?;
        extra.compare(None, rtol)
    })
}

/// Lane, op, line, and how many commands before have those.
type Key<'a> = (&'a str, &'a str, &'a str, usize);

impl WriteTrace {
    /// How many commands there are of each lane, op and line.
    fn counts(&self) -> HashMap<(&str, &str, &str), usize> {
        self.by_line().map(|((lane, op, place, before), _)| ((lane, op, place), before + 1)).collect()
    }

    fn by_line(&self) -> impl Iterator<Item = (Key<'_>, &Command)> {
        let mut counts: HashMap<(&str, &str, &str), usize> = HashMap::new();
        self.commands.iter().map(move |command| {
            let Command { lane, op, place, .. } = command;
            let count = counts.entry((lane, op, place)).and_modify(|count| *count += 1).or_default();
            ((&**lane, &**op, &**place, *count), command)
        })
    }
}
