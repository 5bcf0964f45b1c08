//! Probing for CUDA, without a panic where it is missing.

use super::ffi::blas;
use super::ffi::nvrtc;
use super::ffi::sys;

use super::call::call;
use crate::{Error, Result};

/// The oldest CUDA version whose driver has every call that is made here.
const OLDEST: i32 = 12080;

/// Checks that the driver can be used, that it has a device with this ordinal, and that the libraries are there without which
/// the device would be of no use.
pub(super) fn probe(ordinal: usize) -> Result<sys::CUdevice> {
    // What asks for the version is in every driver, and a driver that is new enough has all the others.
    match sys::missing() {
        Err(()) => return Err(Error::no_cuda("no CUDA driver: the library libcuda was not found")),
        Ok(Some(name @ "cuDriverGetVersion")) => return Err(lacks("libcuda", name)),
        Ok(_) => {}
    }
    let device = find(ordinal)?;
    let libraries = [
        ("libnvrtc", nvrtc::missing(), "the kernels' compiler, the library libnvrtc, was not found"),
        ("libcublasLt", blas::missing(), "the library libcublasLt was not found"),
    ];
    for (library, missing, not_found) in libraries {
        if let Some(name) = missing.map_err(|()| Error::no_cuda(not_found))? {
            return Err(lacks(library, name));
        }
    }
    Ok(device)
}

fn lacks(library: &str, function: &str) -> Error {
    Error::no_cuda(format!("the library {library} is too old or another one: it has no {function}"))
}

fn find(ordinal: usize) -> Result<sys::CUdevice> {
    let answered = |result: Result<()>| {
        result.map_err(|error| Error::no_cuda(format!("the CUDA driver answers: {error}")))
    };
    let (mut version, mut count, mut device) = (0, 0, 0);
    // SAFETY: the driver is present; it writes one number to each address.
    unsafe {
        answered(call!(cuDriverGetVersion(&mut version)))?;
        if version < OLDEST {
            let (major, minor) = (version / 1000, version % 1000 / 10);
            return Err(Error::no_cuda(format!(
                "the CUDA driver is too old: it is of CUDA {major}.{minor}, and 12.8 is needed"
            )));
        }
        answered(call!(cuInit(0)))?;
        answered(call!(cuDeviceGetCount(&mut count)))?;
    }
    if ordinal >= count as usize {
        return Err(Error::no_cuda(match count {
            0 => "the CUDA driver finds no device".to_owned(),
            _ => format!("there is no device {ordinal}: the driver finds {count}"),
        }));
    }
    // SAFETY: the driver is initialised, and it writes a handle to the address.
    unsafe { answered(call!(cuDeviceGet(&mut device, ordinal as i32)))? };
    Ok(device)
}
