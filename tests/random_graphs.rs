//! Random programs, serially and over several streams: equal bit for bit, and in order to an independent audit.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::devices::cuda;
use common::random_programs::{Op, ops, run};
use proptest::prelude::*;
use streamgrad::device::Audit;
use streamgrad::prelude::*;
use streamgrad::{CpuConfig, Policy, Result, Schedule};

fn cpu(schedule: Schedule) -> Device {
    Device::cpu_with(CpuConfig { schedule, threads: Some(1), ..CpuConfig::default() })
}

/// The results of a program, and the audit of all that.
fn audited(program: &[Op], streams: usize, device: &Device) -> Result<(Vec<Vec<u32>>, Audit)> {
    device.start_audit();
    let results = run(program, streams, device)?;
    device.synchronize()?;
    Ok((results, device.stop_audit()))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn several_streams_equal_one(program in ops()) {
        let (serial, _) = audited(&program, 0, &cpu(Schedule::Inline)).unwrap();
        for streams in 2..=4 {
            let seed = (program.len() + streams) as u64;
            let schedules = [
                Schedule::Inline,
                Schedule::Threads,
                Schedule::Delay { seed },
                Schedule::Explore(Policy::Random { seed }),
                Schedule::Explore(Policy::Priorities { seed }),
                Schedule::Explore(Policy::NewestFirst),
            ];
            for schedule in schedules {
                let (results, audit) = audited(&program, streams, &cpu(schedule)).unwrap();
                prop_assert_eq!(&results, &serial, "{:?}", schedule);
                prop_assert_eq!(audit.hazards(), [], "{:?}", schedule);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn several_streams_equal_one_on_cuda(program in ops()) {
        if let Some(device) = cuda(0) {
            let (serial, _) = audited(&program, 0, &device).unwrap();
            for streams in 2..=4 {
                let (results, audit) = audited(&program, streams, &device).unwrap();
                prop_assert_eq!(&results, &serial);
                prop_assert_eq!(audit.hazards(), []);
            }
        }
    }
}
