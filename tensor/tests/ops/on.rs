//! Where the tests run.

use device::Device;

/// The CPU, or the first CUDA device if `STREAMGRAD_TEST_DEVICE` is `cuda`.
pub(crate) fn device() -> Device {
    if std::env::var("STREAMGRAD_TEST_DEVICE").is_ok_and(|name| name == "cuda") {
        // It was asked for.
        let device = Device::cuda(0).unwrap_or_else(|error| unreachable!("{error}"));
        // What is loaded at a first launch waits for streams that tests hold.
        tensor::preload(&device.default_stream()).unwrap_or_else(|error| unreachable!("{error}"));
        device
    } else {
        Device::cpu()
    }
}
