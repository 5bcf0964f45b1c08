//! The one error type: every kind names the op and the values that were wrong.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::Arc;

use crate::{AtCaller, DType, Device, StreamId};

/// `std::result::Result` with this crate's [`Error`] unless another is named.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, and where in the program.
///
/// One pointer wide, so that a [`Result`] costs nothing while nothing fails.
///
/// ```
/// use device::{Device, Error, ErrorKind};
/// let (line, error) = (line!(), Error::new(ErrorKind::NoGradient { op: "backward" }));
/// assert!(matches!(error.kind(), ErrorKind::NoGradient { op: "backward" }));
/// assert_eq!(error.location().line(), line);
/// ```
#[derive(Clone)]
pub struct Error(Box<Details>);

#[derive(Clone)]
struct Details {
    kind: ErrorKind,
    location: &'static Location<'static>,
    forward_location: Option<&'static Location<'static>>,
    module: Option<Box<str>>,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind().fmt(f)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.kind().source()
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}\n  at {}", self.location())?;
        if let Some(forward) = self.forward_location() {
            write!(f, "\n  in the gradient of the op at {forward}")?;
        }
        self.module().map_or(Ok(()), |module| write!(f, "\n  in module {module}"))
    }
}

/// Everything that can go wrong, with the op and the offending values as fields.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Two shapes that do not fit together.
    #[error("{op}: {}", shapes(.fit, .lhs, .rhs))]
    ShapeMismatch {
        /// The op that was asked for.
        op: &'static str,
        /// The operand that has to be of shape `lhs`, or else a rule for both shapes, of several words.
        fit: &'static str,
        /// Shape of the first operand, or the shape that was expected.
        lhs: Box<[usize]>,
        /// Shape of the second operand, or the shape that was given.
        rhs: Box<[usize]>,
    },
    /// Two element types that do not fit together.
    #[error("{op}: {operand} must be {expected}, got {got}")]
    DTypeMismatch {
        /// The op that was asked for.
        op: &'static str,
        /// Which operand.
        operand: &'static str,
        /// The type that the op needs here.
        expected: DType,
        /// The type that it was given.
        got: DType,
    },
    /// An op that is not defined for this element type.
    #[error("{op}: not defined for {dtype}, only for {fits}")]
    DTypeUnsupported {
        /// The op that was asked for.
        op: &'static str,
        /// The type that it was given.
        dtype: DType,
        /// The types that it is defined for.
        fits: &'static str,
    },
    /// Operands that live on different devices, see [`device_mismatch`](Error::device_mismatch).
    #[error("{op}: {operand} must be on {lhs}, got {rhs}")]
    DeviceMismatch {
        /// The op that was asked for.
        op: &'static str,
        /// Which operand.
        operand: &'static str,
        /// The device of the operands before it.
        lhs: Box<str>,
        /// The operand's device.
        rhs: Box<str>,
    },
    /// An axis that the tensor does not have.
    #[error("{op}: axis {axis} is out of range for rank {rank}")]
    AxisOutOfRange {
        /// The op that was asked for.
        op: &'static str,
        /// The axis as it was given; negative counts from the end.
        axis: isize,
        /// The tensor's number of axes.
        rank: usize,
    },
    /// An index or label outside `0..size`.
    #[error("{op}: {operand} {index} is out of range for size {size}")]
    IndexOutOfRange {
        /// The op that was asked for.
        op: &'static str,
        /// What it is: an index, a label, a row.
        operand: &'static str,
        /// The index as it was given.
        index: i64,
        /// The number of valid indices.
        size: usize,
    },
    /// An argument with a value that the op does not accept.
    #[error("{op}: {argument} must be {expected}, got {value}")]
    InvalidArgument {
        /// The op that was asked for.
        op: &'static str,
        /// Which argument.
        argument: &'static str,
        /// What the op accepts.
        expected: &'static str,
        /// The value that was given.
        value: Box<str>,
    },
    /// No memory left, after everything that could be given back was.
    #[error("out of memory: {requested_bytes} bytes were asked for\n{report}")]
    OutOfMemory {
        /// Bytes asked for.
        requested_bytes: usize,
        /// Where the memory is, by reason.
        report: Box<str>,
    },
    /// No CUDA device can be used, and why.
    #[error("CUDA is not available: {reason}")]
    CudaUnavailable {
        /// What is missing.
        reason: Box<str>,
    },
    /// A call of the device's driver failed.
    #[error("{call} failed with {code} ({name})")]
    Driver {
        /// The driver function.
        call: &'static str,
        /// Its status code.
        code: i32,
        /// The code's name.
        name: Box<str>,
    },
    /// Two commands that use the same buffer on different streams, one of them to write it, and that the user's waits
    /// leave unordered; only under `SyncMode::Manual`.
    #[error(
        "{op} on stream {stream} at {place} races with {earlier} on stream {earlier_stream}{} (tick {earlier_tick}): \
         both use the buffer of {bytes} bytes at {address:#x}, and no wait orders them",
        at_place(*.earlier_place)
    )]
    Race {
        /// The op that was refused.
        op: &'static str,
        /// The stream that it was to run on.
        stream: StreamId,
        /// The line of the program that launched it.
        place: &'static Location<'static>,
        /// The op that used the buffer before.
        earlier: &'static str,
        /// The line that launched that one; `None` if it was launched before manual mode, or very long ago.
        earlier_place: Option<&'static Location<'static>>,
        /// The stream that it runs on.
        earlier_stream: StreamId,
        /// Its number in that stream.
        earlier_tick: u64,
        /// Where the buffer is.
        address: usize,
        /// How large it is.
        bytes: usize,
    },
    /// A host read that would wait for the device, where that is refused.
    #[error("the host would wait for the device at {place}")]
    HiddenSync {
        /// The call.
        place: Box<str>,
    },
    /// A call that would have to wait for what it was made within: for the command or the host read that makes it, or for
    /// the job of a team whose thread makes it.
    #[error("{op}: called within {within}, for which it would wait")]
    Deadlock {
        /// What was called.
        op: &'static str,
        /// What the calling thread is within.
        within: Box<str>,
    },
    /// Something was used for the first time while a stream is [held](crate::Stream::hold). The driver loads it only once
    /// the device has done all its work, so the call would wait for the held stream.
    #[error(
        "{what} is used for the first time while a stream is held, for which loading it would wait; use or preload it before"
    )]
    StreamHeld {
        /// What is not loaded yet.
        what: Box<str>,
    },
    /// A call in a process that was forked from one with a device. It has the device's memory, but not its threads and driver.
    /// Fork before the first device is made, or call `exec` in the child.
    #[error("{op}: this process was forked from one with a device, whose threads and driver it lacks")]
    Forked {
        /// What was called.
        op: &'static str,
    },
    /// What a step that is captured, or was, does not allow.
    #[error("{op}: not within a captured step: {reason}")]
    Captured {
        /// What was called.
        op: &'static str,
        /// Why not, and where.
        reason: Box<str>,
    },
    /// A kernel that the device's compiler refuses.
    #[error("kernel {name} does not compile: {log}")]
    KernelCompile {
        /// The program or the kernel.
        name: Box<str>,
        /// What the compiler said.
        log: Box<str>,
    },
    /// A command that was launched earlier failed; reported at a synchronising call.
    #[error("{op} on stream {stream} failed: {source}")]
    Async {
        /// The op whose command failed first.
        op: &'static str,
        /// The stream that it ran on.
        stream: StreamId,
        /// What happened.
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// The graph's saved tensors were freed by an earlier backward pass.
    #[error("backward: the saved tensors of {op} were freed by an earlier pass; ask for `retain_graph`")]
    GraphConsumed {
        /// The first op met whose tensors are gone.
        op: &'static str,
    },
    /// A tensor that the backward pass needs was changed in place.
    #[error(
        "backward: a tensor that {op} saved at version {saved} was changed in place since, to version {now}; change a copy of it"
    )]
    VersionMismatch {
        /// The op that saved the tensor.
        op: &'static str,
        /// The version that was saved.
        saved: u32,
        /// The version found.
        now: u32,
    },
    /// Backward was asked of a value that no gradient leads to.
    #[error("{op}: the value does not depend on any leaf that requires a gradient")]
    NoGradient {
        /// The function that was called.
        op: &'static str,
    },
    /// A gradient rule that returned another number of gradients than its op has inputs.
    #[error("gradient of {op}: {given} gradients for {expected} inputs")]
    GradientCount {
        /// The op.
        op: &'static str,
        /// The number of its inputs.
        expected: usize,
        /// The number of gradients.
        given: usize,
    },
    /// A gradient rule that returns a constant in a recorded pass, so that nothing can be differentiated through it again.
    #[error(
        "gradient of {op}: its rule returns a constant, so the gradient has no gradient; compute it from the rule's `Var`s"
    )]
    NotDifferentiable {
        /// The op.
        op: &'static str,
    },
    /// A checked function whose value is not a number, or infinite.
    #[error(
        "gradcheck: element {element} of output {output}, which {op} computes, is {value}, so there is no derivative"
    )]
    NotFinite {
        /// The op that computes the output.
        op: &'static str,
        /// Which output.
        output: usize,
        /// Which element of it, in row-major order.
        element: usize,
        /// Its value.
        value: f64,
    },
    /// An analytic gradient that differs from the numeric one.
    #[error(
        "gradient of {input} {}, used by {users}: analytic {analytic:e}, numeric {numeric:e} ± {uncertainty:.1e}, rtol {rtol:e}",
        at_element(*.element)
    )]
    GradientMismatch {
        /// The op that takes the input; empty if several do.
        op: &'static str,
        /// All ops that take the input, with their lines.
        users: Box<str>,
        /// Which input, or the parameter's name.
        input: Box<str>,
        /// Which element of it, in row-major order; `None` for a random direction through all.
        element: Option<usize>,
        /// What the backward pass gave.
        analytic: f64,
        /// What differences gave.
        numeric: f64,
        /// How far the numeric derivative may be off.
        uncertainty: f64,
        /// The relative error that is allowed beyond that.
        rtol: f64,
    },
    /// A gradient that has other bits when the backward pass is run again.
    #[error(
        "gradient of {input} at element {element}, used by {users}: {first:e}, and {again:e} when the backward pass is run again"
    )]
    GradientNotDeterministic {
        /// All ops that take the input, with their lines.
        users: Box<str>,
        /// Which input, or the parameter's name.
        input: Box<str>,
        /// Which element of it, in row-major order.
        element: usize,
        /// What the first backward pass gave.
        first: f64,
        /// What the second one gave.
        again: f64,
    },
    /// A value that does not depend on an input by the tape, although it changes with the input.
    #[error(
        "no gradient leads to {input}, whose derivative {} is {numeric:e} ± {uncertainty:.1e}: {}",
        at_element(*.element),
        if *.frozen { "it is frozen" } else { "does `detach` or `no_grad` cut the tape?" }
    )]
    GradientMissing {
        /// Which input, or the parameter's name.
        input: Box<str>,
        /// Which element of it, in row-major order; `None` for a random direction through all.
        element: Option<usize>,
        /// What differences gave.
        numeric: f64,
        /// How far the numeric derivative may be off.
        uncertainty: f64,
        /// Whether the input is a frozen leaf.
        frozen: bool,
    },
    /// A checked function of which two evaluations at the same inputs differ in bits.
    #[error(
        "gradcheck: output {output} has other bits when it is evaluated again; are its random numbers keyed?"
    )]
    NotDeterministic {
        /// Which output.
        output: usize,
    },
    /// A checked function that writes an input.
    #[error("gradcheck: the function modifies {input} in place")]
    InputModified {
        /// Which input, or the parameter's name.
        input: Box<str>,
    },
    /// A program whose results depend on the order that its device chose.
    #[error(
        "result {output} depends on the schedule, seed {seed}\n  program order: {expected}\n  this schedule: {found}"
    )]
    ScheduleDependent {
        /// The seed of the schedule that gave another result.
        seed: u64,
        /// Which result differs.
        output: usize,
        /// The commands of the program's own order, `stream:op` each, up to where the schedules part.
        expected: Box<str>,
        /// The commands of the shortest start of the schedule that gives another result.
        found: Box<str>,
    },
    /// A rank of a communicator that is gone while others need it.
    #[error("{op}: rank {rank} has gone: {reason}")]
    RankLost {
        /// The collective that it is missing from.
        op: &'static str,
        /// The rank, as the first communicator of its group counts.
        rank: usize,
        /// What is known of its end.
        reason: Box<str>,
    },
    /// Ranks of a communicator whose collectives with one number differ.
    #[error("collective {number}: rank {rank} calls {call}, but rank {other} calls {other_call}")]
    CollectiveMismatch {
        /// The number of the collective among those of the communicator, from 0.
        number: u64,
        /// A rank, as the first communicator of its group counts.
        rank: usize,
        /// What it calls, on what.
        call: Box<str>,
        /// The first rank that calls something else.
        other: usize,
        /// What that one calls.
        other_call: Box<str>,
    },
    /// Ranks that did not come to a collective in time.
    #[error("{op}: waited {waited_ms} ms for ranks {missing:?}")]
    CollectiveTimeout {
        /// The collective.
        op: &'static str,
        /// How long the communicator waits.
        waited_ms: u64,
        /// The ranks that are missing, as the first communicator of their group counts.
        missing: Box<[usize]>,
    },
    /// A library, a variable or a peer that ranks need to find each other.
    #[error("ranks cannot communicate: {reason}")]
    CommUnavailable {
        /// What is missing.
        reason: Box<str>,
    },
    /// A host thread of a pipeline panicked.
    #[error("lane {lane} panicked: {message}")]
    LanePanicked {
        /// Which lane.
        lane: usize,
        /// The panic's message.
        message: Box<str>,
    },
    /// A stage of a pipeline returned an error or panicked.
    #[error("stage {stage} of batch {batch}: {source}")]
    Stage {
        /// The stage's name.
        stage: Box<str>,
        /// The number of the batch in its run.
        batch: usize,
        /// What happened.
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// A file that could not be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: Box<str>,
        /// What the system said.
        source: Arc<std::io::Error>,
    },
    /// A file whose content is not what it should be.
    #[error("{path}: {detail}")]
    Format {
        /// The file.
        path: Box<str>,
        /// What is wrong with it, and where.
        detail: Box<str>,
    },
    /// A checkpoint that lacks a parameter, or has it with another shape.
    #[error("checkpoint: parameter {name}: {detail}")]
    Checkpoint {
        /// The parameter's name.
        name: Box<str>,
        /// What is wrong with it.
        detail: Box<str>,
    },
}

fn at_element(element: Option<usize>) -> String {
    element.map_or("along a random direction".into(), |element| format!("at element {element}"))
}

/// What is wrong with two shapes, see [`ErrorKind::ShapeMismatch`].
fn shapes(fit: &str, lhs: &[usize], rhs: &[usize]) -> String {
    match fit {
        "" => format!("shapes {lhs:?} and {rhs:?} do not fit"),
        rule if rule.contains(' ') => format!("shapes {lhs:?} and {rhs:?} do not fit: {rule}"),
        operand => format!("{operand} must be of shape {lhs:?}, got {rhs:?}"),
    }
}

fn at_place(place: Option<&'static Location<'static>>) -> String {
    place.map(|place| format!(" at {place}")).unwrap_or_default()
}

impl Error {
    /// An error at the caller's place.
    #[cold]
    #[track_caller]
    pub fn new(kind: ErrorKind) -> Error {
        let location = AtCaller::location();
        Error(Box::new(Details { kind, location, forward_location: None, module: None }))
    }

    /// An argument with a value that the op does not accept.
    #[cold]
    #[track_caller]
    pub fn invalid(
        op: &'static str,
        argument: &'static str,
        expected: &'static str,
        value: impl fmt::Display,
    ) -> Error {
        Error::new(ErrorKind::InvalidArgument { op, argument, expected, value: value.to_string().into() })
    }

    /// [`InvalidArgument`](ErrorKind::InvalidArgument) unless the value is valid.
    ///
    /// # Errors
    /// As it says.
    #[inline]
    #[track_caller]
    pub fn require(
        is_valid: bool,
        op: &'static str,
        argument: &'static str,
        expected: &'static str,
        value: impl fmt::Display,
    ) -> Result<(), Error> {
        if is_valid { Ok(()) } else { Err(Error::invalid(op, argument, expected, value)) }
    }

    /// No memory left for `bytes` bytes; `report` says why.
    #[cold]
    #[track_caller]
    pub fn out_of_memory(bytes: usize, report: impl Into<Box<str>>) -> Error {
        Error::new(ErrorKind::OutOfMemory { requested_bytes: bytes, report: report.into() })
    }

    /// No CUDA device can be used; `reason` says why.
    #[cold]
    #[track_caller]
    pub fn no_cuda(reason: impl Into<Box<str>>) -> Error {
        Error::new(ErrorKind::CudaUnavailable { reason: reason.into() })
    }

    /// What a captured step does not allow, and why.
    #[cold]
    #[track_caller]
    pub(crate) fn captured(op: &'static str, reason: &str) -> Error {
        Error::new(ErrorKind::Captured { op, reason: reason.into() })
    }

    /// A use of planned memory outside of its capture.
    #[cold]
    pub(crate) fn of_another_step(op: &'static str) -> Error {
        Error::captured(
            op,
            "it uses a tensor that was made within a captured step, which has no value outside of it",
        )
    }

    /// The failure of a command that was launched earlier.
    #[cold]
    #[track_caller]
    pub(crate) fn of_command(
        op: &'static str,
        stream: StreamId,
        source: impl std::error::Error + Send + Sync + 'static,
    ) -> Error {
        Error::new(ErrorKind::Async { op, stream, source: Arc::new(source) })
    }

    /// A call that would wait for what it is made within.
    #[cold]
    #[track_caller]
    pub(crate) fn deadlock(op: &'static str, within: impl Into<Box<str>>) -> Error {
        Error::new(ErrorKind::Deadlock { op, within: within.into() })
    }

    /// Two shapes that do not fit together; for `fit` see [`ShapeMismatch`](ErrorKind::ShapeMismatch).
    #[cold]
    #[inline(never)]
    #[track_caller]
    pub fn shape_mismatch(op: &'static str, fit: &'static str, lhs: &[usize], rhs: &[usize]) -> Error {
        Error::new(ErrorKind::ShapeMismatch { op, fit, lhs: lhs.into(), rhs: rhs.into() })
    }

    /// [`shape_mismatch`](Self::shape_mismatch) unless the shapes fit.
    ///
    /// # Errors
    /// As it says.
    #[inline]
    #[track_caller]
    pub fn require_shapes(
        is_fit: bool,
        op: &'static str,
        fit: &'static str,
        lhs: &[usize],
        rhs: &[usize],
    ) -> Result<(), Error> {
        if is_fit { Ok(()) } else { Err(Error::shape_mismatch(op, fit, lhs, rhs)) }
    }

    /// An element type other than the one needed.
    #[cold]
    #[inline(never)]
    #[track_caller]
    pub fn dtype_mismatch(op: &'static str, operand: &'static str, expected: DType, got: DType) -> Error {
        Error::new(ErrorKind::DTypeMismatch { op, operand, expected, got })
    }

    /// An element type that the op is not defined for; `fits` says for which it is, such as "floats".
    #[cold]
    #[inline(never)]
    #[track_caller]
    pub fn dtype_unsupported(op: &'static str, dtype: DType, fits: &'static str) -> Error {
        Error::new(ErrorKind::DTypeUnsupported { op, dtype, fits })
    }

    /// An operand on another device than those before it. Where the names are the same, the default streams tell them apart.
    #[cold]
    #[track_caller]
    pub fn device_mismatch(op: &'static str, operand: &'static str, lhs: &Device, rhs: &Device) -> Error {
        let alike = lhs.name() == rhs.name();
        let name = |device: &Device| match alike {
            true => format!("{device} (default stream {})", device.default_stream().id()).into_boxed_str(),
            false => device.name().into(),
        };
        let hint = if alike { ", which is another device; clone the first one" } else { "" };
        let rhs = format!("{}{hint}", name(rhs)).into();
        Error::new(ErrorKind::DeviceMismatch { op, operand, lhs: name(lhs), rhs })
    }

    /// [`device_mismatch`](Self::device_mismatch) unless the devices are one.
    ///
    /// # Errors
    /// As it says.
    #[inline]
    #[track_caller]
    pub fn require_same_device(
        op: &'static str,
        operand: &'static str,
        lhs: &Device,
        rhs: &Device,
    ) -> Result<()> {
        if lhs == rhs { Ok(()) } else { Err(Error::device_mismatch(op, operand, lhs, rhs)) }
    }

    /// What went wrong.
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// What went wrong, to be taken apart: `match result.map_err(Error::into_kind) { .. }`.
    pub fn into_kind(self) -> ErrorKind {
        self.0.kind
    }

    /// The call of an op or another public function that failed, in the program's own code unless a closure or a trait object
    /// lies in between.
    pub fn location(&self) -> &'static Location<'static> {
        self.0.location
    }

    /// In a backward pass: the call that recorded the op whose gradient failed.
    pub fn forward_location(&self) -> Option<&'static Location<'static>> {
        self.0.forward_location
    }

    /// The path of the layer that failed within its model, such as `block.1.conv`.
    pub fn module(&self) -> Option<&str> {
        self.0.module.as_deref()
    }

    /// The error of the gradient of an op that was recorded at `location`, unless it is another's already.
    #[cold]
    #[must_use]
    pub fn in_gradient_of(mut self, location: &'static Location<'static>) -> Error {
        self.0.forward_location.get_or_insert(location);
        self
    }

    /// The error of the part called `name` of a module.
    #[cold]
    #[must_use]
    pub fn in_module(mut self, name: impl fmt::Display) -> Error {
        self.0.module = Some(match self.module() {
            Some(inner) => format!("{name}.{inner}").into(),
            None => name.to_string().into(),
        });
        self
    }

    /// The error as of the call that returns it: a command fails on another thread, which has no line of the program.
    #[cold]
    #[track_caller]
    pub(crate) fn here(mut self) -> Error {
        self.0.location = AtCaller::location();
        self
    }

    /// A driver's failure as that of the op that met it first. Once a command has failed on a device, so does every
    /// later call.
    #[track_caller]
    pub(crate) fn met_by(self, op: &'static str, stream: StreamId) -> Error {
        match self.kind() {
            ErrorKind::Driver { .. } => Error::of_command(op, stream, self),
            _ => self,
        }
    }
}

/// A panic that was caught in a command, as the source of [`ErrorKind::Async`]. A program that is built with `panic = "abort"` ends at the
/// panic instead.
#[derive(Debug, thiserror::Error)]
#[error("panicked: {message}")]
pub struct Panicked {
    /// The panic's message.
    pub message: Box<str>,
}

impl Panicked {
    /// Calls `f`. A panic in it goes no further.
    ///
    /// ```
    /// use device::Panicked;
    /// assert_eq!(Panicked::catch(|| 1).ok(), Some(1));
    /// let caught = Panicked::catch(|| std::panic::resume_unwind(Box::new("no")));
    /// assert_eq!(caught.err().map(|panicked| panicked.to_string()).as_deref(), Some("panicked: no"));
    /// ```
    ///
    /// # Errors
    /// The panic. What `f` changed may be half done.
    #[inline]
    pub fn catch<R>(f: impl FnOnce() -> R) -> Result<R, Panicked> {
        catch_unwind(AssertUnwindSafe(f)).map_err(Panicked::of)
    }

    /// Reads the message out of a panic's payload and drops that. A payload may panic when it is dropped: what it panics
    /// with, which may do the same, is leaked.
    #[cold]
    fn of(payload: Box<dyn Any + Send>) -> Panicked {
        let message = payload
            .downcast_ref::<&str>()
            .map(|s| (*s).into())
            .or_else(|| payload.downcast_ref::<String>().map(|s| s.as_str().into()))
            .unwrap_or_else(|| "a value that is not a string".into());
        if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            std::mem::forget(again);
        }
        Panicked { message }
    }
}
