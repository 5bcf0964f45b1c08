//! Planted faults, each of which a comparison of traces names with its op and line.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use autograd::{ConcurrentBatches, Lanes, Var};
use compare::{Divergence, WriteTrace, first_divergence, first_divergence_within};
use device::{CpuConfig, DType, Device, ErrorKind, GraphOptions, Lane, Order, Policy, Result, Schedule};
use models::optim::{Adam, AdamOptions};
use models::{Forward, Linear, Module, Optimizer};
use tensor::{CustomKernel, GraphCache, KernelLaunch, Tensor, custom};

fn cpu(schedule: Schedule) -> Device {
    Device::cpu_with(CpuConfig { schedule, threads: Some(2), ..CpuConfig::default() })
}

fn traced(device: &Device, program: impl FnOnce(&Device) -> Result<()>) -> Result<WriteTrace> {
    WriteTrace::start(device, true);
    program(device)?;
    WriteTrace::stop(device)
}

/// The op, and the line of this file.
fn named(found: &Divergence) -> (&str, u32) {
    let place = |place: &str| {
        let (file, rest) = place.split_once(".rs:").unwrap_or_else(|| panic!("{found}"));
        assert_eq!(format!("{file}.rs"), file!());
        rest.split(':').next().unwrap().parse::<u32>().unwrap()
    };
    assert!(found.to_string().starts_with(&format!("{} at {}", found.op, found.places[0])), "{found}");
    (&found.op, place(&found.places[0]))
}

/// The line of the upload in [`train`].
const UPLOAD: u32 = line!() + 13;

/// Steps of four batches on lanes, of which one batch of the second step may have a flipped bit.
fn train(device: &Device, lanes: usize, flip: bool) -> Result<()> {
    tensor::seed(3);
    let model = Linear::new(8, 3, device)?;
    let mut adam = Adam::new(model.parameters(), AdamOptions::default())?;
    let lanes = ConcurrentBatches::with_options(device, lanes, Lanes::Always)?;
    for step in 0..3 {
        let loss = |batch: u32| {
            let bit = u32::from(flip && (step, batch) == (1, 2)) << 3;
            let values: Vec<f32> =
                (0..32).map(|k| f32::from_bits((batch as f32 + k as f32).to_bits() ^ bit)).collect();
            let x = Tensor::from_slice(&values, &[4, 8], device)?;
            let noisy = Var::constant(x).dropout(0.25, tensor::next_key())?;
            model.forward(&noisy)?.square()?.mean(&[], false)
        };
        let gradients = lanes.step(0..4, loss)?.gradients;
        adam.step(&gradients)?;
    }
    Ok(())
}

#[test]
fn traces_are_equal_whatever_the_schedule() -> Result<()> {
    let serial = traced(&cpu(Schedule::Inline), |device| train(device, 1, false))?;
    let explored = Schedule::Explore(Policy::Random { seed: 5 });
    for (schedule, lanes) in [
        (Schedule::Inline, 1),
        (Schedule::Inline, 2),
        (Schedule::Threads, 4),
        (Schedule::Delay { seed: 2 }, 3),
        (explored, 3),
    ] {
        let found = traced(&cpu(schedule), |device| train(device, lanes, false))?;
        assert_eq!(first_divergence(&serial, &found), None, "{schedule:?}, {lanes} lanes");
        assert_eq!(first_divergence(&found, &serial), None, "{schedule:?}, {lanes} lanes");
    }
    Ok(())
}

#[test]
fn a_flipped_bit_of_one_batch_is_found_across_schedules() -> Result<()> {
    let serial = traced(&cpu(Schedule::Inline), |device| train(device, 1, false))?;
    let lanes = traced(&cpu(Schedule::Threads), |device| train(device, 2, true))?;
    for (a, b) in [(&serial, &lanes), (&lanes, &serial)] {
        let found = first_divergence(a, b).unwrap();
        assert_eq!(named(&found), ("upload", UPLOAD), "{found}");
        assert_eq!(&*found.command.0, "batch 2");
        assert_eq!(found.element, Some(0));
    }
    Ok(())
}

#[test]
fn a_dropped_wait_names_the_command_that_should_have_waited() -> Result<()> {
    let program = |device: &Device| {
        let (a, b) = (device.new_stream()?, device.new_stream()?);
        let x = a.scope(|| Tensor::ones(&[4], DType::F32, device)?.exp())?;
        let (y, z) = b.scope(|| Ok::<_, device::Error>((x.neg()?, x.mul_scalar(0.0)?)))?;
        z.add(&y).map(drop)
    };
    let line = line!() - 3;
    let run = |policy, drop_wait| {
        let schedule = Schedule::Explore(policy);
        traced(&Device::cpu_with(CpuConfig { schedule, drop_wait, ..CpuConfig::default() }), program)
    };
    let right = run(Policy::OldestFirst, None)?;
    assert_eq!(first_divergence(&right, &run(Policy::NewestFirst, None)?), None);
    let wrong =
        (0..4).find_map(|wait| first_divergence(&right, &run(Policy::NewestFirst, Some(wait)).unwrap()));
    assert_eq!(named(&wrong.unwrap()), ("neg", line));
    Ok(())
}

/// A sum that takes its elements in one of two orders, and may add a number that is never the same.
struct Total {
    reversed: bool,
    counts: bool,
}

static COUNTED: AtomicU32 = AtomicU32::new(0);

impl CustomKernel<1, 1> for Total {
    type Element = f32;

    fn name(&self) -> &'static str {
        "total"
    }

    fn cpu(&self, [x]: [&[f32]; 1], [y]: [&mut [f32]; 1]) {
        y[0] = if self.reversed { x.iter().rev().sum() } else { x.iter().sum() };
        if self.counts {
            y[0] += COUNTED.fetch_add(1, Ordering::Relaxed) as f32;
        }
    }

    fn cuda(&self, _: [usize; 1], _: [usize; 1]) -> Option<KernelLaunch> {
        None
    }
}

#[test]
fn another_order_of_a_sum_and_a_kernel_that_is_not_deterministic_are_found() -> Result<()> {
    let device = cpu(Schedule::Inline);
    let run = |reversed, counts| {
        traced(&device, |device| {
            let x = Tensor::from_slice(&[1e8f32, 1.0, -1e8, 3.0], &[4], device)?.mul_scalar(1.0)?;
            let [total] = custom(Total { reversed, counts }, [&x], [&[1]])?;
            total.add(&x).map(drop)
        })
    };
    let line = line!() - 4;
    let (first, again) = (run(false, false)?, run(false, false)?);
    assert_eq!(first_divergence(&first, &again), None);
    let found = first_divergence(&first, &run(true, false)?).unwrap();
    assert_eq!((named(&found), found.output, found.element), (("total", line), 0, Some(0)));
    assert_eq!(found.values, Some(["3".into(), "0".into()]));
    assert!(found.to_string().ends_with("element 0 is 3 and 0"), "{found}");
    let (one, two) = (run(false, true)?, run(false, true)?);
    assert_eq!(named(&first_divergence(&one, &two).unwrap()), ("total", line));
    Ok(())
}

/// Steps of two batches on lanes, eager or captured with `options`. With a `fault`, a kernel gives another result once.
fn steps(device: &Device, options: Option<GraphOptions>, lanes: usize, fault: bool) -> Result<()> {
    tensor::seed(3);
    let model = Linear::new(8, 3, device)?;
    let mut adam = Adam::new(model.parameters(), AdamOptions::default())?;
    let lanes = ConcurrentBatches::with_options(device, lanes, Lanes::Always)?;
    let w = model.parameters()[0].clone();
    let calls = Arc::new(AtomicU32::new(if fault { 0 } else { 100 }));
    let mut step = |batches: &[Tensor; 2]| {
        let loss = |batch: usize| {
            let noisy = Var::constant(batches[batch].clone()).dropout(0.25, tensor::next_key())?;
            let h = model.forward(&noisy)?.tanh()?.mul_scalar(1.5)?;
            let [fault] = custom(Late { calls: Arc::clone(&calls) }, [w.value()], [&[1]])?;
            h.square()?.mean(&[], false)?.add(&Var::constant(fault.reshape(&[])?))
        };
        let step = lanes.step(0..2, loss)?;
        adam.step(&step.gradients)?;
        Ok(step.losses)
    };
    let mut graphs = options.map(|options| GraphCache::new(device, options, 2));
    for number in 0..3 {
        let batch = |k: usize| {
            let values: Vec<f32> = (0..32).map(|at| ((number + at * 7 + k) % 5) as f32).collect();
            Tensor::from_slice(&values, &[4, 8], device)
        };
        let batches = [batch(0)?, batch(1)?];
        match &mut graphs {
            None => step(&batches)?,
            Some(graphs) => graphs.run(&batches, &mut step)?,
        };
    }
    Ok(())
}

/// The line of the kernel in [`steps`].
const LATE: u32 = line!() - 23;

/// Gives 0, but another value at the fourth call after the counter was 0.
struct Late {
    calls: Arc<AtomicU32>,
}

impl CustomKernel<1, 1> for Late {
    type Element = f32;

    fn name(&self) -> &'static str {
        "late"
    }

    fn cpu(&self, [_]: [&[f32]; 1], [y]: [&mut [f32]; 1]) {
        y[0] = if self.calls.fetch_add(1, Ordering::Relaxed) == 3 { 0.5 } else { 0.0 };
    }

    fn cuda(&self, _: [usize; 1], _: [usize; 1]) -> Option<KernelLaunch> {
        None
    }
}

/// The commands of replays are known by those that were captured; what is fused with others is compared where its result is in memory.
#[test]
fn replays_are_compared_with_eager_steps_and_with_replays() -> Result<()> {
    let options = |order, fuse| Some(GraphOptions { order, fuse, ..GraphOptions::default() });
    let eager = traced(&cpu(Schedule::Inline), |device| steps(device, None, 1, false))?;
    let replayed =
        traced(&cpu(Schedule::Inline), |device| steps(device, options(Order::Data, true), 1, false))?;
    for schedule in
        [Schedule::Inline, Schedule::Delay { seed: 4 }, Schedule::Explore(Policy::Random { seed: 5 })]
    {
        for (order, fuse, lanes) in
            [(Order::Data, true, 2), (Order::Streams, true, 1), (Order::Data, false, 2)]
        {
            let run =
                |fault| traced(&cpu(schedule), |device| steps(device, options(order, fuse), lanes, fault));
            let (found, wrong) = (run(false)?, run(true)?);
            for (a, b) in [(&eager, &found), (&found, &eager), (&replayed, &found)] {
                assert_eq!(first_divergence(a, b), None, "{schedule:?}, {order:?}, {fuse}, {lanes} lanes");
            }
            for (a, b) in [(&eager, &wrong), (&wrong, &eager), (&wrong, &found)] {
                let found = first_divergence(a, b).unwrap();
                assert_eq!(named(&found), ("late", LATE), "{found}");
                assert!(found.command.0.starts_with("batch "), "{found}");
                assert_eq!(found.element, Some(0));
            }
        }
    }
    let path = std::env::temp_dir().join(format!("streamgrad-replays-{}", std::process::id()));
    replayed.save(&path)?;
    let loaded = WriteTrace::load(&path)?;
    std::fs::remove_file(&path).unwrap();
    assert_eq!(first_divergence(&replayed, &loaded), None);
    assert_eq!(first_divergence(&eager, &loaded), None);
    Ok(())
}

/// What lies between the elements that a command writes is not its own, and memory that nobody wrote is anything.
#[test]
fn only_what_is_written_is_compared() -> Result<()> {
    let run = |filler: f32| {
        let device = cpu(Schedule::Inline);
        drop(Tensor::full(&[4, 6], filler, DType::F32, &device)?);
        traced(&device, |device| {
            let [a, b] = [2.0, 3.0].map(|value| Tensor::full(&[4, 3], value, DType::F32, device));
            let joined = Tensor::cat(&[&a?, &b?], 1)?;
            joined.narrow(1, 2, 2)?.t()?.fill_(5.0)?;
            joined.update_(|values: &mut [f32]| values[0] = 9.0)
        })
    };
    assert_eq!(first_divergence(&run(7.0)?, &run(8.0)?), None);
    Ok(())
}

#[test]
fn a_file_has_all_but_the_values() -> Result<()> {
    let path = std::env::temp_dir().join(format!("streamgrad-divergence-{}", std::process::id()));
    let (a, b) = (cpu(Schedule::Inline), cpu(Schedule::Threads));
    let traces =
        [traced(&a, |device| train(device, 1, false))?, traced(&b, |device| train(device, 2, true))?];
    let loaded = traces.each_ref().map(|trace| {
        trace.save(&path).unwrap();
        WriteTrace::load(&path).unwrap()
    });
    assert_eq!(first_divergence(&traces[0], &loaded[0]), None);
    let found = first_divergence(&loaded[0], &loaded[1]).unwrap();
    assert_eq!((named(&found), found.element, &found.values), (("upload", UPLOAD), None, &None));
    for (text, line) in [("", 1), ("streamgrad trace of writes 1\nmain\t0\tadd\t1\n", 2)] {
        std::fs::write(&path, text).unwrap();
        let error = WriteTrace::load(&path).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::Format { .. })
                && error.to_string().contains(&format!("line {line}"))
        );
    }
    std::fs::remove_file(&path).unwrap();
    Ok(())
}

#[test]
fn a_missing_command_and_lanes_of_ones_own_are_told() -> Result<()> {
    let device = cpu(Schedule::Inline);
    let run = |lane, more: bool| {
        traced(&device, |device| {
            let x = Lane::current().scope(lane, 0, || Tensor::ones(&[2], DType::F32, device))?;
            if more { x.exp().map(drop) } else { Ok(()) }
        })
    };
    let (less, more) = (run("left", false)?, run("left", true)?);
    for (a, b) in [(&less, &more), (&more, &less)] {
        let found = first_divergence(a, b).unwrap();
        assert_eq!((&*found.op, found.other.as_deref(), &*found.command.0), ("exp", Some("nothing"), "main"));
    }
    let found = first_divergence(&less, &run("right", false)?).unwrap();
    assert_eq!(&*found.command.0, "left 0");
    Ok(())
}

/// Batches within batches have lanes of their own, whichever of them run at once.
#[test]
fn nested_lanes_are_told_apart() -> Result<()> {
    let run = |lanes: usize, schedule, flip: bool| {
        traced(&cpu(schedule), |device| {
            let w = Var::leaf(Tensor::ones(&[2], DType::F32, device)?);
            let outer = ConcurrentBatches::with_options(device, lanes, Lanes::Always)?;
            let all = |x: usize| -> Result<Var> {
                let inner = ConcurrentBatches::with_options(device, lanes, Lanes::Always)?;
                let step =
                    inner.step([1.0, 2.0], |y| w.mul_scalar(x as f64 + y)?.square()?.sum(&[], false))?;
                let by = if flip && x == 1 { 2.0 } else { 1.0 };
                w.mul_scalar(by)?.sum(&[], false)?.add(&Var::constant(step.losses[0].clone()))
            };
            outer.step([0, 1], all).map(drop)
        })
    };
    let serial = run(1, Schedule::Inline, false)?;
    for seed in 0..8 {
        let found = first_divergence(&serial, &run(2, Schedule::Delay { seed }, false)?);
        assert_eq!(found, None, "seed {seed}");
    }
    let found = first_divergence(&serial, &run(2, Schedule::Delay { seed: 0 }, true)?).unwrap();
    assert_eq!((&*found.op, &*found.command.0), ("mul_scalar", "batch 1"));
    Ok(())
}

#[test]
fn rounding_is_allowed_where_it_is_asked_for() -> Result<()> {
    let device = cpu(Schedule::Inline);
    let run = |by: f64, index: i64| {
        traced(&device, |device| {
            Tensor::from_slice(&[100.0f32, 1.0, f32::NAN], &[3], device)?.mul_scalar(by)?;
            Tensor::full(&[2], index as f64, DType::I64, device).map(drop)
        })
    };
    let (one, near, other) = (run(1.0, 5)?, run(1.0 + 1e-5, 5)?, run(1.0, 6)?);
    let zero =
        |sign: f32| traced(&device, |device| Tensor::full(&[1], sign * 0.0, DType::F32, device).map(drop));
    let zeros = (zero(1.0)?, zero(-1.0)?);
    assert!(first_divergence(&zeros.0, &zeros.1).is_some());
    assert_eq!(first_divergence_within(&zeros.0, &zeros.1, 1e-6), None);
    assert_eq!(&*first_divergence(&one, &near).unwrap().op, "mul_scalar");
    assert_eq!(first_divergence_within(&one, &near, 1e-4), None);
    assert_eq!(first_divergence_within(&one, &near, 1e-6).unwrap().element, Some(0));
    let found = first_divergence_within(&one, &other, 1e3).unwrap();
    assert_eq!(found.values, Some(["5".into(), "6".into()]));
    Ok(())
}
