//! Under `--cfg streamgrad_redzones`, memory around buffers that AddressSanitizer watches; nothing without it.
//!
//! To the sanitizer an arena is one range, so it would not see a command that leaves its buffer and meets another one. In
//! this mode each block has a zone behind its bytes. Who may touch what follows the order of streams, not that of the
//! program: a first command on the buffer opens its bytes and closes the zone, after all uses of the block's last owner.
//! A block that comes back is closed at once where every use of it has passed, and by its next owner elsewhere. What goes
//! back to the driver is opened by the sanitizer itself when the system maps it again.
//! `tools/sanitize address` builds this.

use device::{Buffer, Result, Stream, Use};

use crate::block::{Block, UNIT};
use crate::classes::units_for;

/// The least number of bytes behind a buffer that nobody may touch.
const ZONE: usize = if cfg!(streamgrad_redzones) { UNIT } else { 0 };

#[cfg(streamgrad_redzones)]
mod asan {
    use std::ffi::c_void;

    // SAFETY: the sanitizer's run-time library, which this configuration is linked with, declares them so.
    unsafe extern "C" {
        pub(super) fn __asan_poison_memory_region(start: *const c_void, bytes: usize);
        pub(super) fn __asan_unpoison_memory_region(start: *const c_void, bytes: usize);
    }
}

/// The bytes to ask for where `bytes` are wanted.
#[inline(always)]
pub(crate) fn padded(bytes: usize) -> usize {
    if bytes == 0 { 0 } else { bytes.saturating_add(ZONE) }
}

/// Opens a fresh buffer of [`padded`] memory and closes its zone, as the first command on it.
///
/// # Errors
/// As for [`launch`](Stream::launch).
#[inline(always)]
pub(crate) fn guard(stream: &Stream, buffer: &Buffer) -> Result<()> {
    let bytes = buffer.len_bytes();
    if ZONE == 0 || bytes == 0 || !stream.device().runs_on_host() {
        return Ok(());
    }
    let start = buffer.ptr().addr();
    let whole = units_for(padded(bytes)).map_or(bytes, |units| units as usize * UNIT);
    stream.launch_host("redzones", &[Use::write(buffer)], move || {
        mark(start, bytes, false);
        mark(start + bytes, whole - bytes, true);
    })
}

/// Closes a free block that no command uses any more.
#[inline(always)]
pub(crate) fn close_free(block: &Block) {
    mark(block.address.0.as_ptr().addr(), block.units as usize * UNIT, true);
}

/// Closes addresses to everybody, or opens them.
#[inline(always)]
fn mark(start: usize, bytes: usize, is_closed: bool) {
    #[cfg(streamgrad_redzones)]
    // SAFETY: the calls only mark the addresses in the sanitizer's own table, whatever they are.
    unsafe {
        let start = std::ptr::without_provenance(start);
        match is_closed {
            true => asan::__asan_poison_memory_region(start, bytes),
            false => asan::__asan_unpoison_memory_region(start, bytes),
        }
    }
    let _ = (start, bytes, is_closed);
}
