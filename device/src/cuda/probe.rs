//! Probing for CUDA, without a panic where it is missing.

use cudarc::cublas::sys as cublas;
use cudarc::driver::sys;
use cudarc::nvrtc::sys as nvrtc;

use super::call::check;
use crate::{Error, Result};

/// The oldest CUDA version whose driver has every call that is made here.
const OLDEST: i32 = 12080;

/// Checks that the driver can be used, that it has a device with this ordinal, and that the libraries are there without which
/// the device would be of no use.
pub(super) fn probe(ordinal: usize) -> Result<sys::CUdevice> {
    // SAFETY: only looks for the library and loads it.
    if !unsafe { sys::is_culib_present() } {
        return Err(unavailable("no CUDA driver: the library libcuda was not found"));
    }
    // A function that a library lacks would panic where it is called. What asks for the version is in every driver, and a
    // driver that is new enough has all the others.
    // SAFETY: the library is there, and the symbol's address is not followed.
    if unsafe { sys::culib().get::<*const u8>(b"cuDriverGetVersion\0") }.is_err() {
        return Err(unavailable("the library libcuda is no CUDA driver: it has no cuDriverGetVersion"));
    }
    let device = find(ordinal)?;
    // SAFETY: only looks for the libraries and loads them.
    let (compiler, products) = unsafe { (nvrtc::is_culib_present(), cublas::is_culib_present()) };
    match (compiler, products) {
        (false, _) => Err(unavailable("the kernels' compiler, the library libnvrtc, was not found")),
        (_, false) => Err(unavailable("the library libcublas was not found")),
        _ => Ok(device),
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
