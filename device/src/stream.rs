//! Streams, and which of them is current.

use std::cell::Cell;
use std::fmt;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::barrier::Gate;
use crate::core::Core;
use crate::cuda::GateWord;
use crate::fifo::Fifo;
use crate::{Device, Event, Moment, OnDrop, Priority, Result, StreamId, fork};

/// A FIFO of commands on one device. A cheap handle: clones are the same stream.
///
/// It may be dropped at any time; what was launched on it still runs.
///
/// ```
/// use device::Device;
/// let dev = Device::cpu();
/// let (one, two) = (dev.new_stream()?, dev.new_stream()?);
/// one.launch_host("first", &[], || ())?;
/// two.wait_stream(&one)?; // commands that share a buffer are ordered without it
/// two.launch_host("second", &[], || ())?;
/// two.synchronize()?;
/// assert!(one.is_idle()?);
/// # Ok::<(), device::Error>(())
/// ```
#[derive(Clone)]
pub struct Stream(pub(crate) Handle);

#[derive(Clone)]
pub(crate) enum Handle {
    /// The default stream lives in the device.
    Default(Arc<Core>),
    Side(Arc<Side>),
}

pub(crate) struct Side {
    pub(crate) device: Device,
    pub(crate) fifo: Arc<Fifo>,
    pub(crate) priority: Priority,
    /// The stream that keeps this one; `None` for one that ends with its last handle.
    pub(crate) branch_of: Option<Stream>,
}

impl Drop for Side {
    fn drop(&mut self) {
        if self.branch_of.is_some() || fork::is_child() {
            return;
        }
        let core = self.device.core();
        for fifo in self.fifo.with_branches() {
            core.streams.retire(&fifo);
            core.adopt(&fifo);
            fifo.close();
        }
    }
}

/// A call of [`Stream::scope`] that has not returned, in its frame.
struct Scope {
    stream: *const Stream,
    outer: *const Scope,
}

thread_local! {
    /// The innermost scope that this thread is in, or null. It has no destructor, since ops also run while a thread or the
    /// process ends.
    static INNERMOST: Cell<*const Scope> = const { Cell::new(ptr::null()) };
}

#[derive::located]
impl Stream {
    /// The stream that ops of this thread run on: that of the innermost scope on `device`, else the default one.
    pub fn current(device: &Device) -> Stream {
        Stream::with_current(device, Stream::clone)
    }

    /// Calls `f` with the current stream, without cloning its handle.
    #[inline]
    pub fn with_current<R>(device: &Device, f: impl FnOnce(&Stream) -> R) -> R {
        let mut scope = INNERMOST.get();
        // One call, so that a recording knows its line.
        f(loop {
            // SAFETY: the scopes and the streams that they borrow are in frames of this thread below this one: a scope takes itself
            // out before its frame ends.
            let Some(Scope { stream, outer }) = (unsafe { scope.as_ref() }) else { break &device.0 };
            // SAFETY: the scope of that frame borrows the stream until it ends.
            let stream = unsafe { &**stream };
            if stream.device() == device {
                break stream;
            }
            scope = *outer;
        })
    }

    /// Makes this the current stream of the calling thread inside `f`. The former one is restored on return and on
    /// panic.
    ///
    /// ```
    /// use device::{Device, Stream};
    /// let dev = Device::cpu();
    /// let side = dev.new_stream()?;
    /// side.scope(|| assert_eq!(Stream::current(&dev), side));
    /// assert_eq!(Stream::current(&dev), dev.default_stream());
    /// # Ok::<(), device::Error>(())
    /// ```
    pub fn scope<R>(&self, f: impl FnOnce() -> R) -> R {
        let outer = INNERMOST.get();
        let scope = Scope { stream: self, outer };
        let _leave = OnDrop(|| INNERMOST.set(outer));
        INNERMOST.set(&raw const scope);
        f()
    }

    /// The stream's name in the process.
    #[inline]
    pub fn id(&self) -> StreamId {
        self.fifo().id
    }

    /// The device that the stream belongs to.
    #[inline]
    pub fn device(&self) -> &Device {
        match &self.0 {
            // SAFETY: `Device` is a transparent wrapper of a `Stream` whose handle is this variant.
            Handle::Default(_) => unsafe { &*std::ptr::from_ref(self).cast::<Device>() },
            Handle::Side(side) => &side.device,
        }
    }

    /// Whether this is the stream that ops run on unless a scope names another.
    #[inline]
    pub fn is_default(&self) -> bool {
        matches!(self.0, Handle::Default(_))
    }

    /// How urgent its work is.
    pub fn priority(&self) -> Priority {
        match &self.0 {
            Handle::Default(_) => Priority::Normal,
            Handle::Side(side) => side.priority,
        }
    }

    /// Makes later commands of this stream come after `event`. Does not block the host.
    ///
    /// # Errors
    /// `Io` if the stream needs a thread that the system does not give.
    pub fn wait(&self, event: &Event) -> Result<()> {
        self.wait_exactly(&[event.moment()], event.0.timed.as_ref())
    }

    /// Makes later commands of this stream come after everything launched on `other` so far. Does not block the host.
    ///
    /// # Errors
    /// `Io` if a stream needs a thread that the system does not give.
    pub fn wait_stream(&self, other: &Stream) -> Result<()> {
        self.wait_for(&[other.now()])
    }

    /// Blocks until everything launched on this stream so far has run.
    ///
    /// # Errors
    /// `Async` with the device's first failed command not reported yet;
    /// `Deadlock` if it would wait within a command or a host read.
    pub fn synchronize(&self) -> Result<()> {
        self.not_captured("synchronize", "nothing has run that the host could wait for")?;
        let core = self.core();
        let now = self.now();
        let _syncing = core.host_sync("synchronize", [now])?;
        self.fifo().host_wait("synchronize", core, now.tick)?;
        core.take_fault()
    }

    /// Whether everything launched on this stream so far has run. Does not block.
    ///
    /// # Errors
    /// None on the CPU; a device's driver may report one.
    pub fn is_idle(&self) -> Result<bool> {
        self.fifo().query(self.now().tick).map_err(|error| error.met_by("is_idle", self.id()))
    }

    /// Closes a gate in the stream: commands launched from now on start when the guard drops. For tests.
    ///
    /// A CUDA stream has room for about a thousand commands; a launch beyond them waits for the gate.
    ///
    /// The driver loads kernels only once its device has done all work. So a kernel, or a shape of matmul or convolution, that
    /// is used for the first time while a stream is held waits for the hold, and after five seconds is
    /// `StreamHeld`, on whichever stream of the device it is. Use it, or preload it, before.
    pub fn hold(&self) -> Hold {
        let gate = Arc::new(Gate::default());
        let word = self.close(Arc::clone(&gate)).unwrap_or_else(|error| {
            self.core().fail(error);
            None
        });
        HOST_HOLDS.fetch_add(usize::from(word.is_none()), Ordering::AcqRel);
        Hold { gate, word, _device: self.device().clone() }
    }

    /// The newest moment of the stream.
    #[inline]
    pub fn now(&self) -> Moment {
        self.fifo().now()
    }

    /// Whether everything launched on this stream from now on is known to come after `moment`.
    #[inline]
    pub fn covers(&self, moment: Moment) -> bool {
        let fifo = self.fifo();
        moment.stream == fifo.id || fifo.timeline.lock().covers(moment)
    }

    #[inline]
    pub(crate) fn core(&self) -> &Arc<Core> {
        match &self.0 {
            Handle::Default(core) => core,
            Handle::Side(side) => side.device.core(),
        }
    }

    #[inline]
    pub(crate) fn fifo(&self) -> &Arc<Fifo> {
        match &self.0 {
            Handle::Default(core) => &core.default,
            Handle::Side(side) => &side.fifo,
        }
    }
}

impl PartialEq for Stream {
    fn eq(&self, other: &Stream) -> bool {
        self.id() == other.id()
    }
}

impl Eq for Stream {}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({})", self.id())
    }
}

/// How many holds there are on streams that are not a driver's.
static HOST_HOLDS: AtomicUsize = AtomicUsize::new(0);

/// Whether a stream of the host is held.
#[cfg(feature = "cuda")]
pub(crate) fn host_is_held() -> bool {
    HOST_HOLDS.load(Ordering::Acquire) > 0
}

/// Keeps a stream from going on until it is dropped.
#[must_use = "the stream goes on when the guard drops"]
pub struct Hold {
    gate: Arc<Gate>,
    /// The gate of a driver's stream, which opens when it drops.
    word: Option<GateWord>,
    /// A device that goes waits for its work, and would wait for the guard.
    _device: Device,
}

impl Drop for Hold {
    fn drop(&mut self) {
        HOST_HOLDS.fetch_sub(usize::from(self.word.is_none()), Ordering::AcqRel);
        self.gate.open();
    }
}

debug_fields!(Hold {});
