//! Probing for CUDA, without a panic where it is missing.

use cudarc::cublaslt::sys as blas;
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
    match unsafe { (nvrtc::is_culib_present(), blas::is_culib_present()) } {
        (false, _) => return Err(unavailable("the kernels' compiler, the library libnvrtc, was not found")),
        (_, false) => return Err(unavailable("the library libcublasLt was not found")),
        _ => {}
    }
    // SAFETY: the libraries are there, and no symbol's address is followed.
    has_all("libnvrtc", COMPILER, |name| unsafe { nvrtc::culib().get::<*const u8>(name).is_ok() })?;
    // SAFETY: as above.
    has_all("libcublasLt", PRODUCTS, |name| unsafe { blas::culib().get::<*const u8>(name).is_ok() })?;
    Ok(device)
}

/// That a library has the functions that are called here: one of them that is not there panics where it is called.
fn has_all(library: &str, functions: &[&str], has: impl Fn(&[u8]) -> bool) -> Result<()> {
    match functions.iter().find(|name| !has(name.as_bytes())) {
        Some(name) => {
            Err(unavailable(&format!("the library {library} is too old or another one: it has no {name}")))
        }
        None => Ok(()),
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

/// The functions of libnvrtc that are called.
const COMPILER: &[&str] = &[
    "nvrtcCompileProgram",
    "nvrtcCreateProgram",
    "nvrtcDestroyProgram",
    "nvrtcGetCUBIN",
    "nvrtcGetCUBINSize",
    "nvrtcGetProgramLog",
    "nvrtcGetProgramLogSize",
    "nvrtcVersion",
];

/// The functions of libcublasLt that are called.
const PRODUCTS: &[&str] = &[
    "cublasLtCreate",
    "cublasLtDestroy",
    "cublasLtGetVersion",
    "cublasLtMatmul",
    "cublasLtMatmulAlgoConfigGetAttribute",
    "cublasLtMatmulAlgoGetHeuristic",
    "cublasLtMatmulDescCreate",
    "cublasLtMatmulDescDestroy",
    "cublasLtMatmulDescSetAttribute",
    "cublasLtMatmulPreferenceCreate",
    "cublasLtMatmulPreferenceDestroy",
    "cublasLtMatmulPreferenceSetAttribute",
    "cublasLtMatrixLayoutCreate",
    "cublasLtMatrixLayoutDestroy",
    "cublasLtMatrixLayoutSetAttribute",
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The names behind `prefix` that a source calls.
    fn called<'a>(source: &'a str, prefix: &str) -> BTreeSet<&'a str> {
        let name = |rest: &'a str| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next();
        let calls = source.split(prefix).skip(1).filter(|rest| !rest.starts_with(char::is_uppercase));
        calls.filter_map(|rest| name(rest).filter(|name| rest[name.len()..].starts_with('('))).collect()
    }

    #[test]
    fn every_function_that_is_called_is_looked_for() {
        let listed = |names: &[&'static str]| names.iter().copied().collect::<BTreeSet<_>>();
        assert_eq!(called(include_str!("module.rs"), "nvrtc::"), listed(COMPILER));
        assert_eq!(called(include_str!("blas.rs"), "blas::"), listed(PRODUCTS));
    }
}
