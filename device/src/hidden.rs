//! Waits of the host that the program does not ask for: where they are, and what to do about them.

use std::collections::BTreeMap;
use std::panic::Location;
use std::sync::atomic::{AtomicU8, Ordering};

use parking_lot::Mutex;

use crate::{AtCaller, Device, Error, ErrorKind, Result};

/// What a device does when the host has to wait without being asked to: when it reads a buffer, in `item`, `to_vec`, or by
/// printing a tensor, and when an allocation waits for memory that queued commands still use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum SyncDebug {
    /// Nothing.
    #[default]
    Off,
    /// Counts them by place.
    Count,
    /// Counts them, and writes a line to standard error the first time at each place.
    Warn,
    /// Returns `HiddenSync`.
    Refuse,
}

/// A place at which the host waited for a device without being asked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HiddenSync {
    /// What waited: `download` for a read, `wait_for_memory` for an allocation.
    pub op: &'static str,
    /// The call.
    pub place: &'static Location<'static>,
    /// How often.
    pub count: u64,
}

#[derive(Default)]
pub(crate) struct HiddenSyncs {
    mode: AtomicU8,
    places: Mutex<BTreeMap<(&'static str, u32, u32), HiddenSync>>,
}

impl HiddenSyncs {
    /// The host is about to wait.
    #[inline]
    #[track_caller]
    pub(crate) fn meet(&self, op: &'static str) -> Result<()> {
        match self.mode.load(Ordering::Relaxed) {
            0 => Ok(()),
            mode => self.look(mode, op, AtCaller::location()),
        }
    }

    #[cold]
    fn look(&self, mode: u8, op: &'static str, place: &'static Location<'static>) -> Result<()> {
        if mode == SyncDebug::Refuse as u8 {
            return Err(Error::new(ErrorKind::HiddenSync { place: place.to_string().into() }));
        }
        let mut places = self.places.lock();
        let key = (place.file(), place.line(), place.column());
        let met = places.entry(key).or_insert(HiddenSync { op, place, count: 0 });
        met.count += 1;
        if met.count == 1 && mode == SyncDebug::Warn as u8 {
            eprintln!("streamgrad: the host waits for the device at {place} ({op})");
        }
        Ok(())
    }
}

impl Device {
    /// Looks for hidden waits for the device, from now on; forgets those counted so far.
    ///
    /// ```
    /// use device::{Device, SyncDebug};
    /// let dev = Device::cpu_with(device::CpuConfig::default());
    /// dev.set_sync_debug(SyncDebug::Count);
    /// assert!(dev.hidden_syncs().is_empty());
    /// ```
    pub fn set_sync_debug(&self, mode: SyncDebug) {
        let hidden = &self.core().observers.hidden;
        hidden.places.lock().clear();
        hidden.mode.store(mode as u8, Ordering::Release);
    }

    /// Where the host waited for the device without being asked to, by place in the source.
    pub fn hidden_syncs(&self) -> Vec<HiddenSync> {
        self.core().observers.hidden.places.lock().values().copied().collect()
    }
}
