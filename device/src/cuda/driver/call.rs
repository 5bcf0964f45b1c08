//! The driver's answers as errors.

use std::ffi::{CStr, c_char};
use std::mem::transmute;
use std::ptr;

use super::ffi::sys;

use crate::{Error, ErrorKind, Result, foreign};

/// Calls a function of the driver, by its name; an error unless it succeeded.
macro_rules! call {
    ($name:ident($($argument:expr),* $(,)?)) => {
        $crate::cuda::driver::call::check(stringify!($name), $crate::foreign!(sys::$name($($argument),*)))
    };
}
pub(super) use call;

/// An error unless the call succeeded.
#[inline]
pub(super) fn check(call: &'static str, code: sys::CUresult) -> Result<()> {
    if code == sys::CUresult::CUDA_SUCCESS { Ok(()) } else { Err(failure(call, code)) }
}

#[cold]
fn failure(call: &'static str, code: sys::CUresult) -> Error {
    let mut name = ptr::null();
    // SAFETY: the driver is loaded, since it answered, takes any number as a code, and writes the address of a constant string.
    let known = unsafe {
        let get_name = foreign!(sys::cuGetErrorName as fn(_, _));
        let get_name: unsafe extern "C" fn(i32, *mut *const c_char) -> sys::CUresult = transmute(get_name);
        get_name(code.0, &mut name)
    };
    let name = if known == sys::CUresult::CUDA_SUCCESS && !name.is_null() {
        // SAFETY: the driver's string is constant and ends with 0.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into()
    } else {
        "unknown".into()
    };
    // The driver's manual names functions without their versions.
    let call = call.trim_end_matches("_v2").trim_end_matches("_v3");
    Error::new(ErrorKind::Driver { call, code: code.0, name })
}

/// Device addresses are integers to the driver.
#[inline]
pub(super) fn address<T>(ptr: *const T) -> sys::CUdeviceptr {
    ptr as sys::CUdeviceptr
}

pub(super) fn no_memory(bytes: usize) -> Error {
    Error::out_of_memory(bytes, "the driver has no such range")
}

/// The outcome of a call that asks for `bytes` bytes.
pub(super) fn obtained(call: &'static str, bytes: usize, code: sys::CUresult) -> Result<()> {
    if code == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY { Err(no_memory(bytes)) } else { check(call, code) }
}
