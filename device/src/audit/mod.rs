//! An audit of what a device was told to do: which commands touch the same memory, and whether anything orders them.
//!
//! The audit is told every command with the ranges it uses, every wait that was inserted, and everything that the host
//! saw pass; it works out by itself what comes after what. It shares no code with the clocks and logs by which
//! [`Stream::launch`](crate::Stream::launch) decides.

mod check;
mod range_uses;

use std::fmt;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use smallvec::SmallVec;

pub(crate) use range_uses::LastUses;
pub use range_uses::RangeUses;

use crate::{Access, Device, Moment, StreamId};

/// A command that was launched while a device was audited.
#[derive(Clone, Debug, PartialEq)]
pub struct AuditedCommand {
    /// Its stream and tick.
    pub moment: Moment,
    /// The op that launched it.
    pub op: &'static str,
    /// Where it was launched.
    pub place: &'static Location<'static>,
    /// What it uses.
    pub accesses: SmallVec<[Access; 4]>,
}

/// A wait that was inserted while a device was audited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuditedWait {
    /// The command that waits.
    pub waiter: Moment,
    /// What it waits for.
    pub awaited: Moment,
}

#[derive(Clone, Debug)]
enum Entry {
    Command(AuditedCommand),
    Wait(AuditedWait),
    /// Somebody saw that a moment had passed: whatever is launched later comes after it.
    Passed(Moment),
    /// The host's read at a moment is over: whatever is launched later comes after it. Others that began before it may
    /// be under way.
    Ended(Moment),
}

/// What a device was told while it was audited, in order; or several devices, see [`with`](Audit::with).
#[derive(Clone, Debug, Default)]
pub struct Audit {
    entries: Vec<Numbered>,
}

/// An entry and its number among those of all devices.
type Numbered = (u64, Entry);

/// Two commands that use the same memory, one of them to write it, and that nothing orders.
#[derive(Clone, Debug, PartialEq)]
pub struct Hazard {
    /// The command that was launched first.
    pub first: AuditedCommand,
    /// The command that was launched second.
    pub second: AuditedCommand,
    /// The memory that both use: the first and the last address but one.
    pub range: (usize, usize),
}

impl fmt::Display for AuditedCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Moment { stream, tick } = self.moment;
        write!(f, "{} (stream {stream}, tick {tick}, launched at {})", self.op, self.place)
    }
}

impl fmt::Display for Hazard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (start, end) = self.range;
        let (first, second) = (&self.first, &self.second);
        write!(f, "nothing orders {first} and {second}, which share {} bytes at {start:#x}", end - start)
    }
}

impl Audit {
    /// The audit of a program that ran on several devices, from each one's own.
    ///
    /// ```
    /// use device::{CpuConfig, Device};
    /// let devices = [(); 2].map(|()| Device::cpu_with(CpuConfig::default()));
    /// devices.iter().for_each(Device::start_audit);
    /// for device in &devices {
    ///     device.default_stream().launch_host("work", &[], || ())?;
    /// }
    /// let [one, two] = devices.each_ref().map(Device::stop_audit);
    /// assert_eq!(one.with(two).commands().count(), 2);
    /// # Ok::<(), device::Error>(())
    /// ```
    #[must_use]
    pub fn with(mut self, other: Audit) -> Audit {
        self.entries.extend(other.entries);
        self.entries.sort_by_key(|(number, _)| *number);
        self
    }

    fn entries(&self) -> impl Iterator<Item = &Entry> + Clone {
        self.entries.iter().map(|(_, entry)| entry)
    }

    /// The commands, in the order of their launches.
    pub fn commands(&self) -> impl Iterator<Item = &AuditedCommand> {
        self.entries().filter_map(|entry| match entry {
            Entry::Command(command) => Some(command),
            Entry::Wait(_) | Entry::Passed(_) | Entry::Ended(_) => None,
        })
    }

    /// The waits, in the order of their insertion.
    pub fn waits(&self) -> impl Iterator<Item = AuditedWait> + '_ {
        self.entries().filter_map(|entry| match entry {
            Entry::Wait(wait) => Some(*wait),
            Entry::Command(_) | Entry::Passed(_) | Entry::Ended(_) => None,
        })
    }

    /// Each pair of commands that use the same memory in an order that nothing keeps, where the second is the first to
    /// do so after the first.
    pub fn hazards(&self) -> Vec<Hazard> {
        check::hazards(self.entries(), None)
    }

    /// The hazards that there would be without the wait of this number, counted from 0.
    pub fn hazards_without(&self, wait: usize) -> Vec<Hazard> {
        check::hazards(self.entries(), Some(wait))
    }

    /// The waits without which there would be no hazard.
    pub fn unneeded_waits(&self) -> Vec<AuditedWait> {
        let needless = |&(number, _): &(usize, AuditedWait)| self.hazards_without(number).is_empty();
        self.waits().enumerate().filter(needless).map(|(_, wait)| wait).collect()
    }
}

/// What the device writes down. Off, it costs one load a command.
#[derive(Default)]
pub(crate) struct AuditLog {
    on: AtomicBool,
    entries: Mutex<Vec<Numbered>>,
}

impl AuditLog {
    /// Numbered under the lock, so that entries are in order of their numbers.
    fn push(&self, entry: Entry) {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let mut entries = self.entries.lock();
        entries.push((NEXT.fetch_add(1, Ordering::Relaxed), entry));
    }

    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// A command is given its place among the uses of its buffers.
    #[cold]
    pub(crate) fn command(
        &self,
        moment: Moment,
        op: &'static str,
        place: &'static Location<'static>,
        accesses: SmallVec<[Access; 4]>,
    ) {
        self.push(Entry::Command(AuditedCommand { moment, op, place, accesses }));
    }

    /// A wait is inserted.
    pub(crate) fn wait(&self, waiter: Moment, awaited: Moment) {
        if self.is_on() {
            self.push(Entry::Wait(AuditedWait { waiter, awaited }));
        }
    }

    /// The host saw that a moment had passed. It is told before anything is decided by that.
    pub(crate) fn passed(&self, moment: Moment) {
        if self.is_on() {
            self.push(Entry::Passed(moment));
        }
    }

    /// A stream has run all that it ever will.
    pub(crate) fn gone(&self, stream: StreamId) {
        self.passed(Moment { stream, tick: u64::MAX });
    }

    /// The host's read at a moment is over.
    pub(crate) fn ended(&self, read: Moment) {
        if self.is_on() {
            self.push(Entry::Ended(read));
        }
    }
}

impl Device {
    /// Writes down every command, wait and host synchronisation from now on. An audit that is under way starts anew.
    ///
    /// Commands that are still pending are not in it: synchronise first, or what they do is not known.
    pub fn start_audit(&self) {
        let log = &self.core().observers.audit;
        log.entries.lock().clear();
        log.on.store(true, Ordering::Release);
        self.core().observers.watch();
    }

    /// Ends the audit and returns it; empty if none was under way.
    ///
    /// ```
    /// use device::Device;
    /// let dev = Device::cpu();
    /// dev.start_audit();
    /// dev.new_stream()?.launch_host("work", &[], || ())?;
    /// let audit = dev.stop_audit();
    /// assert_eq!((audit.commands().count(), audit.hazards().len()), (1, 0));
    /// # Ok::<(), device::Error>(())
    /// ```
    pub fn stop_audit(&self) -> Audit {
        let log = &self.core().observers.audit;
        log.on.store(false, Ordering::Release);
        self.core().observers.watch();
        Audit { entries: std::mem::take(&mut *log.entries.lock()) }
    }
}
