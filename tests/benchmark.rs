//! Timings and measured peaks, on every device.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::devices::each_device;
use streamgrad::prelude::*;
use streamgrad::{Error, ErrorKind, Graph, Schedule};

#[test]
fn work_on_any_device_and_stream_can_be_timed_beside_its_peaks() {
    each_device(&[Schedule::Inline, Schedule::Threads], |device| {
        let x = Tensor::ones(&[32, 32], DType::F32, device)?;
        let (timing, side) = (benchmark(device, || x.matmul(&x))?, device.new_stream()?);
        assert_eq!(timing.peaks, device.measured_peaks()?);
        assert_eq!(timing.peaks.tensor_flops.is_some(), !device.runs_on_host());
        let beside = side.scope(|| benchmark(device, || x.matmul(&x)))?;
        for timing in [timing, beside] {
            assert!(0.0 < timing.p10_ms && timing.median_ms <= timing.p90_ms, "{timing}, {}", timing.peaks);
        }
        let captured = Graph::capture(device, || {
            benchmark(device, || x.square())?;
            x.square()
        });
        assert!(
            matches!(captured.as_ref().map_err(Error::kind), Err(ErrorKind::Captured { .. })),
            "nothing runs in a captured step"
        );
        Ok(())
    });
}
