//! Events: markers in a stream.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use crate::core::Core;
use crate::cuda::{Context, DriverEvent};
use crate::fifo::{Fifo, bump};
use crate::graph::capture::Capture;
use crate::recorder::{CommandKind, Label};
use crate::stream::Handle;
use crate::{Device, Error, Moment, Result, Stream};

/// A marker in a stream, complete once every command before it has run.
///
/// ```
/// let stream = device::Device::cpu().new_stream()?;
/// let start = stream.record()?;
/// stream.launch_host("work", &[], || ())?;
/// let end = stream.record()?;
/// assert!(start.elapsed_ms(&end)? >= 0.0);
/// assert!(end.is_complete()?);
/// # Ok::<(), device::Error>(())
/// ```
#[derive(Clone)]
pub struct Event(pub(crate) Arc<Marker>);

pub(crate) struct Marker {
    pub(crate) core: Arc<Core>,
    pub(crate) fifo: Arc<Fifo>,
    pub(crate) moment: Moment,
    pub(crate) stamp: Arc<OnceLock<Instant>>,
    /// The event of a driver's stream.
    pub(crate) timed: Option<DriverEvent>,
    /// Whether it was recorded within a captured step, in which nothing runs.
    pub(crate) captured: bool,
}

#[derive::located]
impl Stream {
    /// Records an event after everything launched so far.
    ///
    /// # Errors
    /// `Io` if the stream needs a thread that the system does not give.
    pub fn record(&self) -> Result<Event> {
        let stamp = Arc::new(OnceLock::new());
        let set = Arc::clone(&stamp);
        let mut command = self.ordered("record", &[], Some(&Label::of(CommandKind::Marker)), true)?;
        let work = move || {
            // The cell is set here only.
            let _ = set.set(Instant::now());
        };
        // A driver's stream has an event instead.
        let timed = command.dispatch(work, |_, driver, _| driver.record_timed())?;
        let (moment, counters) = (command.moment(), &self.fifo().counters);
        bump(&counters.events_recorded, 1);
        counters.marked.store(moment.tick, Ordering::Relaxed);
        command.noted();
        drop(command);
        let (core, fifo) = (Arc::clone(self.core()), Arc::clone(self.fifo()));
        let captured = Capture::of(&core).is_some();
        Ok(Event(Arc::new(Marker { core, fifo, moment, stamp, timed, captured })))
    }
}

#[derive::located]
impl Event {
    /// Where in which stream the event was recorded.
    pub fn moment(&self) -> Moment {
        self.0.moment
    }

    /// Whether the stream has passed the event. Does not block.
    ///
    /// # Errors
    /// None on the CPU; a device's driver may report one.
    pub fn is_complete(&self) -> Result<bool> {
        match &self.0.timed {
            Some(timed) => timed.is_complete(),
            None => Ok(self.0.fifo.completed() >= self.0.moment.tick),
        }
    }

    /// Blocks until the stream has passed the event.
    ///
    /// # Errors
    /// `Async` with the device's first failed command not reported yet;
    /// `Deadlock` if it would wait within a command or a host read.
    pub fn synchronize(&self) -> Result<()> {
        self.0.device().0.not_captured("synchronize", "nothing has run that the host could wait for")?;
        let Marker { core, fifo, moment, timed, .. } = &*self.0;
        let _syncing = core.host_sync("synchronize", [*moment])?;
        match timed {
            Some(timed) => {
                fifo.may_wait("synchronize", moment.tick)?;
                match timed.synchronize() {
                    Ok(()) => fifo.progress.raise(moment.tick),
                    Err(error) => core.fail(error.met_by("synchronize", moment.stream)),
                }
            }
            None => fifo.host_wait("synchronize", core, moment.tick)?,
        }
        self.0.core.take_fault()
    }

    /// Milliseconds from this event to `end`; negative if `end` came first. Waits for both by itself.
    ///
    /// # Errors
    /// `DeviceMismatch` unless both events are of CPU streams, or both of streams on one GPU: others have no common clock;
    /// `Captured` for an event recorded within a captured step; `Async` with the device's first failed command
    /// not reported yet; `InvalidArgument` for an event that its stream did not reach, since a wait before it failed.
    pub fn elapsed_ms(&self, end: &Event) -> Result<f64> {
        const OP: &str = "elapsed_ms";
        if self.0.gpu() != end.0.gpu() {
            return Err(Error::device_mismatch(OP, "end", &self.0.device(), &end.0.device()));
        }
        if self.0.captured || end.0.captured {
            return Err(Error::captured(OP, "an event recorded there marks nothing that runs"));
        }
        self.synchronize()?;
        end.synchronize()?;
        if let (Some(start), Some(end)) = (&self.0.timed, &end.0.timed) {
            return start.elapsed_ms(end);
        }
        let (start, end) = (self.0.stamp(OP)?, end.0.stamp(OP)?);
        let ms = |later: Instant, earlier: Instant| later.duration_since(earlier).as_secs_f64() * 1e3;
        Ok(if end >= start { ms(end, start) } else { -ms(start, end) })
    }
}

impl Marker {
    pub(crate) fn device(&self) -> Device {
        Device(Stream(Handle::Default(Arc::clone(&self.core))))
    }

    /// The GPU whose clock the event is timed by; `None` for the host's.
    fn gpu(&self) -> Option<*const Context> {
        self.core.cuda().map(|cuda| Arc::as_ptr(&cuda.context))
    }

    /// When the stream passed the event.
    fn stamp(&self, op: &'static str) -> Result<Instant> {
        self.stamp.get().copied().ok_or_else(|| {
            Error::invalid(op, "event", "one that its stream has reached", format_args!("{:?}", self.moment))
        })
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Event").field(&self.0.moment).finish()
    }
}
