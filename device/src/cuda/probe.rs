//! Probing for CUDA, without a panic where it is missing.

use std::panic::catch_unwind;

use cudarc::driver::sys;

use super::call::check;
use crate::{Error, Result};

/// The oldest CUDA version whose driver has every call that is made here.
const OLDEST: i32 = 12080;

/// Checks that the driver can be used and has a device with this ordinal.
pub(super) fn probe(ordinal: usize) -> Result<sys::CUdevice> {
    // SAFETY: only looks for the library and loads it.
    if !unsafe { sys::is_culib_present() } {
        return Err(unavailable("no CUDA driver: the library libcuda was not found"));
    }
    // With the library present, a symbol it lacks would still panic at its first call.
    match catch_unwind(|| find(ordinal)) {
        Ok(found) => found,
        Err(_) => Err(unavailable("the CUDA driver is too old")),
    }
}

fn find(ordinal: usize) -> Result<sys::CUdevice> {
    let answered = |result: Result<()>| {
        result.map_err(|error| unavailable(&format!("the CUDA driver answers: {error}")))
    };
    let (mut version, mut count, mut device) = (0, 0, 0);
    // SAFETY: the driver is present; it writes one number to each address.
    unsafe {
        answered(check("cuDriverGetVersion", sys::cuDriverGetVersion(&mut version)))?;
        if version < OLDEST {
            let (major, minor) = (version / 1000, version % 1000 / 10);
            return Err(unavailable(&format!(
                "the CUDA driver is too old: it is of CUDA {major}.{minor}, and 12.8 is needed"
            )));
        }
        answered(check("cuInit", sys::cuInit(0)))?;
        answered(check("cuDeviceGetCount", sys::cuDeviceGetCount(&mut count)))?;
    }
    if ordinal >= count as usize {
        return Err(unavailable(&match count {
            0 => "the CUDA driver finds no device".to_owned(),
            _ => format!("there is no device {ordinal}: the driver finds {count}"),
        }));
    }
    // SAFETY: as above.
    unsafe { answered(check("cuDeviceGet", sys::cuDeviceGet(&mut device, ordinal as i32)))? };
    Ok(device)
}

pub(super) fn unavailable(reason: &str) -> Error {
    Error::CudaUnavailable { reason: reason.into() }
}
