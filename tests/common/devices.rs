//! Devices for tests.

use streamgrad::prelude::*;
use streamgrad::{CpuConfig, CudaConfig, Error, ErrorKind, Result, Schedule};

/// A way to run commands, of which a test has a device of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Cpu(Schedule),
    Cuda,
}

impl Kind {
    /// The CPU with these schedules, unless `STREAMGRAD_TEST_DEVICE` is `cuda`, and CUDA if there is a device.
    pub(crate) fn all(schedules: &[Schedule]) -> Vec<Kind> {
        let has_cuda = cuda(0).is_some();
        let only_cuda =
            has_cuda && std::env::var("STREAMGRAD_TEST_DEVICE").is_ok_and(|device| device == "cuda");
        let cpu = schedules.iter().copied().map(Kind::Cpu).filter(|_| !only_cuda);
        cpu.chain(has_cuda.then_some(Kind::Cuda)).collect()
    }

    pub(crate) fn device(self) -> Device {
        match self {
            Kind::Cpu(schedule) => Device::cpu_with(CpuConfig { schedule, ..CpuConfig::default() }),
            Kind::Cuda => cuda(0).unwrap(),
        }
    }

    /// The plainest way that gives the same values.
    pub(crate) fn plain(self) -> Kind {
        match self {
            Kind::Cpu(_) => Kind::Cpu(Schedule::Inline),
            Kind::Cuda => Kind::Cuda,
        }
    }
}

/// Runs a test on a device of its own for each of [`Kind::all`].
pub(crate) fn each_device(schedules: &[Schedule], test: impl Fn(&Device) -> Result<()>) {
    for kind in Kind::all(schedules) {
        test(&kind.device()).unwrap_or_else(|error| panic!("{kind:?}: {error}"));
    }
}

/// A CUDA device of its own, with the kernels loaded, since what is loaded at a first launch waits for streams that tests
/// hold; `None`, with the reason, if there is none.
pub(crate) fn cuda(ordinal: usize) -> Option<Device> {
    match Device::cuda_with(ordinal, CudaConfig::default()).map_err(Error::into_kind) {
        Ok(device) => {
            streamgrad::tensor::preload(&device.default_stream()).unwrap();
            Some(device)
        }
        Err(ErrorKind::CudaUnavailable { reason }) => {
            println!("skipped: {reason}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Two CUDA devices of their own; `None`, with the reason, if there are fewer.
pub(crate) fn cuda_pair() -> Option<[Device; 2]> {
    Some([cuda(0)?, cuda(1)?])
}

/// Whether the driver is the emulated one, which says so in its device's name.
pub(crate) fn emulated() -> bool {
    cuda(0).is_some_and(|device| device.description().to_lowercase().contains("emulat"))
}
