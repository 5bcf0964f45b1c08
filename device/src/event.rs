//! Events: markers in a stream.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use crate::cuda::TimedEvent;
use crate::device::Core;
use crate::fifo::Fifo;
use crate::graph::capture::{Capture, refused};
use crate::{Moment, Result};

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
    pub(crate) timed: Option<TimedEvent>,
}

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
    /// [`Error::Async`](crate::Error::Async) with the device's first failed command not reported yet;
    /// [`Error::Deadlock`](crate::Error::Deadlock) if it would wait within a command or a host read.
    pub fn synchronize(&self) -> Result<()> {
        if Capture::of(&self.0.core).is_some() {
            return Err(refused("synchronize", "nothing has run that the host could wait for"));
        }
        let Marker { core, fifo, moment, timed, .. } = &*self.0;
        let _syncing = core.host_sync("synchronize", [*moment]);
        match timed {
            Some(timed) => {
                fifo.may_wait("synchronize", moment.tick)?;
                match timed.synchronize() {
                    Ok(()) => fifo.passed(moment.tick),
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
    /// [`Error::Async`](crate::Error::Async) with the device's first failed command not reported yet.
    pub fn elapsed_ms(&self, end: &Event) -> Result<f64> {
        self.synchronize()?;
        end.synchronize()?;
        if let (Some(start), Some(end)) = (&self.0.timed, &end.0.timed) {
            return start.elapsed_ms(end);
        }
        let (Some(&start), Some(&end)) = (self.0.stamp.get(), end.0.stamp.get()) else { return Ok(0.0) };
        let ms = |later: Instant, earlier: Instant| later.duration_since(earlier).as_secs_f64() * 1e3;
        Ok(if end >= start { ms(end, start) } else { -ms(start, end) })
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Event").field(&self.0.moment).finish()
    }
}
