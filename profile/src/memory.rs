//! The memory of a device over time.

use std::time::{SystemTime, UNIX_EPOCH};

use allocator::{Action, DeviceMemory, MemoryStats};
use device::Device;

/// The memory of a device at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemorySample {
    /// When, in nanoseconds since the recording began.
    pub at_ns: u64,
    /// Bytes of live buffers.
    pub allocated_bytes: usize,
    /// Bytes obtained from the driver.
    pub reserved_bytes: usize,
}

impl MemorySample {
    fn first(device: &Device) -> MemorySample {
        let MemoryStats { allocated_bytes, reserved_bytes, .. } = device.memory_stats();
        MemorySample { at_ns: 0, allocated_bytes, reserved_bytes }
    }
}

/// Entries of each stream's memory history that are kept.
const HISTORY: usize = 1 << 16;

/// Where the memory's history begins.
#[derive(Debug)]
pub(super) struct MemoryClock {
    start_us: u64,
    now: MemorySample,
}

impl MemoryClock {
    pub(super) fn start(device: &Device) -> MemoryClock {
        device.record_memory_history(HISTORY);
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let start_us = u64::try_from(since.as_micros()).unwrap_or(u64::MAX);
        MemoryClock { start_us, now: MemorySample::first(device) }
    }

    /// What happened since, a sample each.
    pub(super) fn samples(self, device: &Device) -> Vec<MemorySample> {
        let history = device.memory_report().map(|report| report.history).unwrap_or_default();
        let mut now = MemorySample::first(device);
        device.record_memory_history(0);
        // From the end, which is known whatever the history has forgotten.
        let mut samples = Vec::with_capacity(history.len() + 1);
        for entry in history.iter().rev() {
            let (mut allocated, mut reserved) = (now.allocated_bytes, now.reserved_bytes);
            match entry.action {
                Action::Allocate => allocated = allocated.saturating_sub(entry.bytes),
                Action::Free => allocated += entry.bytes,
                Action::Obtain => reserved = reserved.saturating_sub(entry.bytes),
                Action::Release => reserved += entry.bytes,
                _ => continue,
            }
            let at_ns = 1000 * entry.time_us.saturating_sub(self.start_us);
            samples.push(MemorySample { at_ns, ..now });
            (now.allocated_bytes, now.reserved_bytes) = (allocated, reserved);
        }
        samples.push(self.now);
        samples.reverse();
        samples
    }
}
