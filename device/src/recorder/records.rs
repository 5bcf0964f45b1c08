//! What a recording holds.

use std::borrow::Cow;

use crate::{Access, DType, Moment, StreamId};

/// What is recorded beside commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordingOptions {
    /// The lines of the program that lead to launches and waits. It takes some microseconds of the host for each, and some tenths
    /// of a second at the end, when they are named.
    pub places: bool,
}

/// What a device did while it was recorded. Times are nanoseconds since the recording began.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// The commands that ran, in the order in which they ended.
    pub commands: Vec<CommandRecord>,
    /// The waits that were inserted.
    pub waits: Vec<WaitRecord>,
    /// Where the host waited for the device.
    pub syncs: Vec<SyncRecord>,
    /// What the program named, by [`Device::range`](crate::Device::range), in the order in which it began.
    pub ranges: Vec<RangeRecord>,
    /// Where threads took what others had made, by [`Device::take_over`](crate::Device::take_over).
    pub handoffs: Vec<HandOffRecord>,
    /// When the driver was asked for memory.
    pub driver_calls: Vec<DriverCallRecord>,
    /// When [`Device::mark_step`](crate::Device::mark_step) was called.
    pub steps: Vec<u64>,
    /// The host's threads that appear; a thread's number is its index.
    pub threads: Vec<Box<str>>,
    /// Places in the program; a place's number is its index.
    pub places: Vec<Place>,
    /// What the device is made of.
    pub device: DeviceFacts,
    /// How long the recording took.
    pub wall_ns: u64,
}

/// One command that ran.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CommandRecord {
    /// The op that launched it.
    pub op: &'static str,
    /// Its stream and tick.
    pub moment: Moment,
    /// When it started.
    pub start_ns: u64,
    /// When it ended.
    pub end_ns: u64,
    /// What it is.
    pub kind: CommandKind,
    /// The call that launched it.
    pub launch: LaunchRecord,
    /// What it was launched on, where the op says so: what it reads and writes, in its own order.
    pub operands: Vec<OperandRecord>,
    /// The memory that it uses.
    pub accesses: Vec<Access>,
    /// On CUDA, the kernels that it enqueued, those of cuBLASLt and cuDNN included.
    pub kernels: Vec<KernelRecord>,
    /// How often a library was called whose kernels are not among those: NCCL, or one of which the driver did not tell.
    pub library_calls: u32,
    /// On a CPU, the commands of the captured step that it replayed, in the order in which they ended.
    pub replayed: Vec<ReplayedRecord>,
}

impl CommandRecord {
    /// A command that was launched when it started, of which nothing else is known.
    pub fn new(op: &'static str, moment: Moment, start_ns: u64, end_ns: u64) -> CommandRecord {
        let launch =
            LaunchRecord { start_ns, given_ns: start_ns, end_ns: start_ns, ..LaunchRecord::default() };
        CommandRecord { op, moment, start_ns, end_ns, launch, ..CommandRecord::default() }
    }

    /// Whether it does something, other than waits and events.
    pub fn is_work(&self) -> bool {
        !matches!(self.kind, CommandKind::Wait | CommandKind::Marker)
    }

    /// Whether it works on the device itself: neither moves bytes between memories nor exchanges them with ranks.
    pub fn computes(&self) -> bool {
        let is_collective = matches!(self.kind, CommandKind::Collective { .. });
        self.is_work() && !is_collective && self.kind.copied_bytes().is_none()
    }

    /// How long it ran.
    pub fn duration_ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.start_ns)
    }

    /// How long at least one of the commands ran that it replayed.
    pub fn replayed_ns(&self) -> u64 {
        let mut spans: Vec<_> = self.replayed.iter().map(|part| (part.start_ns, part.end_ns)).collect();
        spans.sort_unstable();
        let (mut total, mut until) = (0, 0);
        for (start, end) in spans {
            total += end.saturating_sub(start.max(until));
            until = end.max(until);
        }
        total
    }
}

/// What a command is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CommandKind {
    /// An op's work: kernels, products, and copies within the device.
    #[default]
    Compute,
    /// Bytes from the host's memory.
    Upload {
        /// How many.
        bytes: usize,
        /// Whether the device read them where they were; else they were first copied to pinned memory.
        pinned: bool,
    },
    /// So many bytes to the host's memory.
    Download {
        /// How many.
        bytes: usize,
    },
    /// So many bytes from another device.
    Across {
        /// How many.
        bytes: usize,
    },
    /// A collective of ranks, which may wait for the others.
    Collective {
        /// The bytes of this rank's tensor.
        bytes: usize,
    },
    /// A function of the host.
    Host,
    /// A wait that the program asked for.
    Wait,
    /// An event, or a gate for tests.
    Marker,
}

impl CommandKind {
    /// Bytes that are copied between memories.
    pub fn copied_bytes(self) -> Option<usize> {
        match self {
            CommandKind::Upload { bytes, .. }
            | CommandKind::Download { bytes }
            | CommandKind::Across { bytes } => Some(bytes),
            _ => None,
        }
    }
}

/// The host's side of a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaunchRecord {
    /// When the call began.
    pub start_ns: u64,
    /// From when on the command could start.
    pub given_ns: u64,
    /// When the call returned; of a command that ran within it, after that.
    pub end_ns: u64,
    /// What of the call the recorder took.
    pub recorder_ns: u64,
    /// The calling thread.
    pub thread: u32,
    /// The innermost range that the thread was in.
    pub range: Option<u32>,
    /// The line of the program that led here.
    pub place: Option<u32>,
    /// Whether a backward pass launched it, as a gradient, a sum of gradients or a seed; known where lines are recorded.
    pub in_backward: bool,
}

/// An operand of a command.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OperandRecord {
    /// Its shape.
    pub shape: Box<[usize]>,
    /// Its elements.
    pub dtype: DType,
    /// Whether it is written.
    pub write: bool,
}

/// A command of a captured step, as a replay ran it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayedRecord {
    /// The op that launched it when the step was captured.
    pub op: &'static str,
    /// Its number in the step.
    pub command: u32,
    /// Which of the replay's threads ran it; 0 is that of the stream.
    pub thread: u32,
    /// When it started.
    pub start_ns: u64,
    /// When it ended.
    pub end_ns: u64,
}

impl ReplayedRecord {
    /// How long it ran.
    pub fn duration_ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.start_ns)
    }
}

/// A kernel as it was launched, and what the driver says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelRecord {
    /// Its name.
    pub name: Box<str>,
    /// Blocks along x, y and z.
    pub blocks: [u32; 3],
    /// Threads of a block along x, y and z.
    pub threads: [u32; 3],
    /// Shared memory of a block in bytes, declared and dynamic.
    pub shared_bytes: u32,
    /// Registers of a thread.
    pub registers: u32,
    /// How many blocks a multiprocessor has room for at once.
    pub blocks_per_multiprocessor: u32,
    /// How long it ran, with what its command fills or copies beside it; `None` for several kernels of one call of a library, between
    /// which nothing is measured.
    pub duration_ns: Option<u64>,
}

impl KernelRecord {
    /// How many blocks there are.
    pub fn block_count(&self) -> u64 {
        self.blocks.iter().map(|&count| u64::from(count)).product()
    }

    /// How many threads a block has.
    pub fn block_threads(&self) -> u32 {
        self.threads.iter().product()
    }

    /// The share of a device of so many multiprocessors that it takes while it runs: its blocks in rounds of as many as have room at
    /// once, of which the last may leave some.
    pub fn fill(&self, multiprocessors: u32) -> f64 {
        let room = (u64::from(multiprocessors) * u64::from(self.blocks_per_multiprocessor)).max(1);
        let blocks = self.block_count();
        blocks as f64 / (blocks.div_ceil(room).max(1) * room) as f64
    }
}

/// One wait of a stream for another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WaitRecord {
    /// The op whose command waited.
    pub op: &'static str,
    /// The command that waited.
    pub waiter: Moment,
    /// What it waited for.
    pub awaited: Moment,
}

/// A wait of the host for the device.
#[derive(Clone, Debug, PartialEq)]
pub struct SyncRecord {
    /// `synchronize`, `download` where a value is read, or `wait_for_memory` where an allocation needs memory that queued
    /// commands still use.
    pub op: &'static str,
    /// What it waited for.
    pub awaited: Vec<Moment>,
    /// When it began.
    pub start_ns: u64,
    /// When the host went on.
    pub end_ns: u64,
    /// The thread that waited.
    pub thread: u32,
    /// The innermost range that the thread was in.
    pub range: Option<u32>,
    /// The line of the program that led here.
    pub place: Option<u32>,
}

/// A part of the program with a name, on one thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeRecord {
    /// The name.
    pub name: Box<str>,
    /// The thread.
    pub thread: u32,
    /// The range around it.
    pub parent: Option<u32>,
    /// When it began.
    pub start_ns: u64,
    /// When it ended; of one that had not, the end of the recording.
    pub end_ns: u64,
    /// The line of the program that named it.
    pub place: Option<u32>,
}

/// A thread went on after another one had handed something over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandOffRecord {
    /// The thread that handed it over.
    pub from: u32,
    /// When it did.
    pub since_ns: u64,
    /// The thread that took it.
    pub thread: u32,
    /// When it did.
    pub at_ns: u64,
}

/// A call that got memory of the driver, or gave some back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverCallRecord {
    /// What was asked for, in bytes; 0 where memory went back.
    pub bytes: usize,
    /// The stream for which it was.
    pub stream: StreamId,
    /// When the call began.
    pub start_ns: u64,
    /// When it returned.
    pub end_ns: u64,
    /// The calling thread.
    pub thread: u32,
    /// The line of the program that led here.
    pub place: Option<u32>,
}

/// A line of the program.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// The function.
    pub function: Box<str>,
    /// The file, empty in a build without debug information.
    pub file: Box<str>,
    /// The line, 0 in a build without debug information.
    pub line: u32,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.line {
            0 => f.write_str(&self.function),
            line => write!(f, "{}:{line}", self.file),
        }
    }
}

/// What a device is made of, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceFacts {
    /// Its [name](crate::Device::name).
    pub name: Cow<'static, str>,
    /// The stream that ops run on by themselves.
    pub default_stream: Option<StreamId>,
    /// Threads that run kernels, where that is the host.
    pub host_threads: Option<usize>,
    /// Multiprocessors of a CUDA device.
    pub multiprocessors: u32,
    /// Threads for which a multiprocessor has room.
    pub multiprocessor_threads: u32,
    /// How many copies run at once beside kernels.
    pub copy_engines: u32,
}

#[cfg(test)]
mod tests {
    use super::KernelRecord;

    #[test]
    fn a_round_that_is_not_full_leaves_room() {
        let of = |blocks| KernelRecord {
            name: "kernel".into(),
            blocks: [blocks, 1, 1],
            threads: [256, 1, 1],
            shared_bytes: 0,
            registers: 32,
            blocks_per_multiprocessor: 4,
            duration_ns: None,
        };
        let fill = |blocks| of(blocks).fill(10);
        assert_eq!([fill(0), fill(10), fill(40), fill(60), fill(80)], [0.0, 0.25, 1.0, 0.75, 1.0]);
        assert_eq!(of(1).fill(0), 1.0, "a device of which nothing is known");
    }
}
