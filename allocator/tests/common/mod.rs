//! What the tests share.

#![allow(clippy::panic)]

use device::{CpuConfig, CudaConfig, Device, ErrorKind};

/// Runs a test on a CPU device of its own, and on a CUDA device if there is one.
pub(crate) fn each_device(test: impl Fn(Device)) {
    test(Device::cpu_with(CpuConfig::default()));
    match Device::cuda_with(0, CudaConfig::default()) {
        Ok(device) => {
            println!("{device}");
            test(device);
        }
        Err(error) if matches!(error.kind(), ErrorKind::CudaUnavailable { .. }) => {}
        Err(error) => panic!("{error}"),
    }
}
