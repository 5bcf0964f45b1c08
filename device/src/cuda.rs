//! Probing for CUDA, without a panic where it is missing.

/// Why the CUDA device `ordinal` cannot be used.
#[cfg(feature = "cuda")]
pub(crate) fn why_unavailable(ordinal: usize) -> String {
    use cudarc::driver::{result, sys};
    // SAFETY: only looks for the library and loads it.
    if !unsafe { sys::is_culib_present() } {
        return "no CUDA driver: the library libcuda was not found".to_owned();
    }
    // With the library present, a symbol it lacks would still panic at its first call.
    let count = std::panic::catch_unwind(|| result::init().and_then(|()| result::device::get_count()));
    match count {
        Err(_) => "the CUDA driver is too old".to_owned(),
        Ok(Err(error)) => format!("the CUDA driver answers with code {}", error.0 as i32),
        Ok(Ok(0)) => "the CUDA driver finds no device".to_owned(),
        Ok(Ok(count)) if ordinal >= count as usize => {
            format!("there is no device {ordinal}: the driver finds {count}")
        }
        Ok(Ok(_)) => "a device is present, but this version has no kernels for it yet".to_owned(),
    }
}

/// Why the CUDA device `ordinal` cannot be used.
#[cfg(not(feature = "cuda"))]
pub(crate) fn why_unavailable(_ordinal: usize) -> String {
    "this build has no CUDA: it was made without the feature `cuda`".to_owned()
}
