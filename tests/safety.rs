//! Implementations of public traits, closures and arguments that lie: errors or other values, never other memory.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use streamgrad::device::{Buffer, Capture, Executable, Plan, Shared, StreamId, Use};
use streamgrad::kernels::{self, Layout, View};
use streamgrad::models::optim::Kind;
use streamgrad::prelude::*;
use streamgrad::tensor::{
    CustomKernel, EachReplay, KernelLaunch, RuleStep, Update, each_replay, fresh_slot, optimizer_step,
};
use streamgrad::{
    CpuConfig, Error, ErrorKind, Graph, GraphOptions, Graphs, Moment, Result, Schedule, Tensors, allocator,
    tensor,
};

fn device(threads: usize) -> Device {
    Device::cpu_with(CpuConfig { threads: Some(threads), ..CpuConfig::default() })
}

fn tensor(values: &[f32], device: &Device) -> Tensor {
    Tensor::from_slice(values, &[values.len()], device).unwrap()
}

fn shared(stream: &Stream, bytes: usize) -> Shared<Buffer> {
    allocator::allocate_shared(stream, bytes).unwrap()
}

fn is_invalid<T>(result: Result<T>) -> bool {
    matches!(result.as_ref().map_err(Error::kind), Err(ErrorKind::InvalidArgument { .. }))
}

/// Which tensors each call visits, in which order.
type Orders = &'static [&'static [usize]];

/// Tensors that are visited in another order, or not at all, at each call.
struct Shuffled {
    tensors: [Tensor; 2],
    orders: Orders,
    calls: Cell<usize>,
}

impl Shuffled {
    fn new(tensors: [Tensor; 2], orders: Orders) -> Shuffled {
        Shuffled { tensors, orders, calls: Cell::new(0) }
    }
}

impl Tensors for Shuffled {
    fn rebuild(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        let call = self.calls.replace(self.calls.get() + 1);
        let mut tensors = self.tensors.clone();
        for &at in self.orders[call % self.orders.len()] {
            tensors[at] = f(&self.tensors[at])?;
        }
        Ok(Shuffled { tensors, orders: self.orders, calls: Cell::new(call + 1) })
    }
}

/// Each tensor of a result is found by what it is, not by when it is visited.
#[test]
fn results_that_are_visited_in_another_order_stay_themselves() -> Result<()> {
    let device = device(2);
    let (small, large) = (tensor(&[1.0; 4], &device), Tensor::zeros(&[100_000], DType::F32, &device)?);
    let neighbours: Vec<Tensor> = (0..64).map(|k| tensor(&[k as f32; 4], &device)).collect();
    const ORDERS: [Orders; 3] =
        [&[&[0, 1], &[1, 0]], &[&[1, 0], &[0, 1], &[0, 1], &[1, 0]], &[&[0, 1], &[0, 1], &[1, 0]]];
    for orders in ORDERS {
        let graph = Graph::capture(&device, || {
            Ok(Shuffled::new([small.add_scalar(1.0)?, large.add_scalar(2.0)?], orders))
        })?;
        for _ in 0..3 {
            let found = graph.replay()?;
            assert_eq!(found.tensors[0].to_vec::<f32>()?, [2.0; 4]);
            assert_eq!(found.tensors[1].to_vec::<f32>()?, [2.0; 100_000]);
        }
        for (k, neighbour) in neighbours.iter().enumerate() {
            assert_eq!(neighbour.to_vec::<f32>()?, [k as f32; 4]);
        }
    }
    Ok(())
}

/// A batch whose tensors are not the same ones each time is refused, with nothing replayed.
#[test]
fn a_batch_that_changes_between_visits_is_refused() -> Result<()> {
    let device = device(1);
    let (x, y) = (tensor(&[1.0; 4], &device), tensor(&[1.0; 8], &device));
    let total = Tensor::zeros(&[], DType::F32, &device)?;
    const ORDERS: [Orders; 2] = [&[&[0, 1], &[1, 0], &[0], &[]], &[&[0, 1], &[0], &[1]]];
    for orders in ORDERS {
        let mut graphs =
            Graphs::new(&device, |batch: &Shuffled| total.add_(&batch.tensors[0].sum(&[], false)?));
        let found = graphs.run(&Shuffled::new([x.clone(), y.clone()], orders));
        assert!(is_invalid(found));
        assert_eq!(total.item::<f32>()?, 0.0);
    }
    Ok(())
}

/// A plan of two commands on planned memory, with a result that is kept.
fn plan(device: &Device, x: &Tensor) -> (Plan, usize) {
    let capture = Capture::new(device).unwrap();
    let kept = capture.scope(|| {
        let y = x.add_scalar(1.0).unwrap().mul(x).unwrap();
        let z = y.sum(&[], false).unwrap();
        let spare = device.default_stream().plan_buffer(64).unwrap().unwrap();
        drop((y, z));
        capture.may_keep(&spare).unwrap()
    });
    (capture.finish().unwrap().0, kept)
}

/// Memory for a plan is as large as asked for, the device's, and nobody else's.
#[test]
fn memory_that_does_not_fit_a_plan_is_refused() -> Result<()> {
    let (device, other) = (device(2), device(1));
    let (stream, foreign) = (device.default_stream(), other.default_stream());
    let x = tensor(&[1.0; 1000], &device);
    let neighbours: Vec<Tensor> = (0..32).map(|k| tensor(&[k as f32; 4], &device)).collect();
    let capture = Capture::new(&device)?;
    let planned = capture.scope(|| shared(&stream, 1 << 20));
    let found = shared(&stream, 1 << 20);
    type Allocate<'a> = &'a dyn Fn(usize) -> Shared<Buffer>;
    let wrong: [(&str, Allocate<'_>); 4] = [
        ("small", &|bytes| shared(&stream, bytes - 1)),
        ("foreign", &|bytes| shared(&foreign, bytes)),
        ("planned", &|_| planned.clone()),
        ("used by the step", &|_| found.clone()),
    ];
    let options = GraphOptions::default();
    for (name, allocate) in wrong {
        let made = || {
            let capture = Capture::new(&device).unwrap();
            capture.scope(|| {
                let y = x.add_scalar(1.0).unwrap();
                stream.upload("upload", &found, 0, &[1; 8]).unwrap();
                drop(y.mul(&x).unwrap());
            });
            capture.finish().unwrap().0
        };
        assert!(made().instantiate(options, |bytes| Ok(allocate(bytes))).is_err(), "{name}");
        assert!(made().settle(&[0, 1], &stream, |bytes| Ok(allocate(bytes))).is_err(), "{name}");
        let mut kept = made();
        // Memory 0 is the sum's, memory 1 is `x`.
        let result = kept.keep(vec![(0, allocate(4000))]);
        assert!(result.is_err(), "{name}");
    }
    let one = shared(&stream, 4000);
    let (mut twice, kept) = plan(&device, &x);
    assert!(is_invalid(twice.keep(vec![(0, one.clone()), (2, one.clone())])));
    assert!(is_invalid(twice.keep(vec![(kept, one.clone()), (kept, shared(&stream, 4000))])));
    assert!(is_invalid(twice.keep(vec![(1, one.clone())])));
    assert!(is_invalid(twice.keep(vec![(99, one.clone())])));
    assert!(is_invalid(twice.settle(&[99], &stream, |bytes| Ok(shared(&stream, bytes)))));
    assert!(is_invalid(twice.settle(&[0, 1], &stream, |_| Ok(one.clone()))));
    drop(planned);
    for (k, neighbour) in neighbours.iter().enumerate() {
        assert_eq!(neighbour.to_vec::<f32>()?, [k as f32; 4]);
    }
    Ok(())
}

fn executable(device: &Device, x: &Tensor, results: &[Shared<Buffer>]) -> Arc<Executable> {
    let stream = device.default_stream();
    let capture = Capture::new(device).unwrap();
    capture.scope(|| {
        for result in results {
            let layout = Layout::contiguous(x.shape());
            let view = |buffer| View::new(buffer, DType::F32, &layout);
            let sum = x.add_scalar(1.0).unwrap();
            kernels::copy(&stream, sum.view(), view(result)).unwrap();
        }
    });
    let options = GraphOptions { fuse: false, ..GraphOptions::default() };
    let plan = capture.finish().unwrap().0;
    Arc::new(plan.instantiate(options, |bytes| Ok(shared(&stream, bytes))).unwrap())
}

/// What takes the place of a step's buffers is as large, the device's, used by nothing else of the step, and one for each.
#[test]
fn a_replay_checks_the_buffers_that_replace_others() -> Result<()> {
    let (device, other) = (device(2), device(1));
    let stream = device.default_stream();
    let x = tensor(&[1.0; 16], &device);
    let results = [shared(&stream, 64), shared(&stream, 64)];
    let graph = executable(&device, &x, &results);
    let replay = |pairs: &[(Shared<Buffer>, Shared<Buffer>)]| graph.replay(&stream, pairs, |_| ());
    let [first, second] = results.clone();
    let new = shared(&stream, 64);
    assert!(is_invalid(replay(&[(first.clone(), new.clone()), (second.clone(), new.clone())])));
    assert!(is_invalid(replay(&[(first.clone(), second.clone())])));
    assert!(is_invalid(replay(&[(first.clone(), shared(&stream, 63))])));
    assert!(replay(&[(first.clone(), shared(&other.default_stream(), 64))]).is_err());
    assert!(is_invalid(replay(&[(shared(&stream, 64), new.clone())])));
    assert!(is_invalid(replay(&[(first.clone(), new.clone()), (first.clone(), shared(&stream, 64))])));
    replay(&[(first, new.clone())])?;
    new.download(|bytes| assert_eq!(&bytes[..4], 2f32.to_ne_bytes()))?;
    Ok(())
}

/// A replay within what prepares a replay of the same graph would wait for itself.
#[test]
fn a_replay_within_a_replay_is_refused() -> Result<()> {
    let device = device(1);
    let stream = device.default_stream();
    let x = tensor(&[1.0; 16], &device);
    let graph = executable(&device, &x, &[shared(&stream, 64)]);
    let (again, own) = (graph.clone(), stream.clone());
    graph.replay(&stream, &[], move |_| {
        assert!(matches!(
            again.replay(&own, &[], |_| ()).as_ref().map_err(Error::kind),
            Err(ErrorKind::Deadlock { .. })
        ));
    })?;
    device.synchronize()
}

/// Counts how many of its kind run at once.
struct Meeting(Arc<[AtomicUsize; 2]>);

impl CustomKernel<1, 1> for Meeting {
    type Element = f32;

    fn name(&self) -> &'static str {
        "meeting"
    }

    fn cpu(&self, [x]: [&[f32]; 1], [y]: [&mut [f32]; 1]) {
        let [inside, most] = &*self.0;
        let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
        most.fetch_max(now, Ordering::SeqCst);
        let start = Instant::now();
        while most.load(Ordering::SeqCst) < 2 && start.elapsed() < Duration::from_millis(100) {
            std::thread::yield_now();
        }
        y.copy_from_slice(x);
        inside.fetch_sub(1, Ordering::SeqCst);
    }

    fn cuda(&self, _: [usize; 1], _: [usize; 1]) -> Option<KernelLaunch> {
        None
    }
}

/// With an edge ignored, commands are out of order, but never at one memory at once.
#[test]
fn replays_that_ignore_an_edge_run_one_command_at_a_time() -> Result<()> {
    let device = device(2);
    let x = tensor(&[1.0; 4], &device);
    let counts = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let options = GraphOptions { fuse: false, ..GraphOptions::default() };
    let graph = Graph::capture_with(&device, options, || {
        let run = |x: &Tensor| tensor::custom(Meeting(counts.clone()), [x], [x.shape()]).map(|[y]| y);
        Ok([run(&run(&x)?)?, run(&run(&x)?)?])
    })?;
    graph.replay()?;
    device.synchronize()?;
    assert_eq!(counts[1].load(Ordering::SeqCst), 2, "two chains run at once");
    // An edge that is not there is neither removed nor put back.
    for edge in [(0, 1000), (1, 0), (1000, 0)] {
        graph.executable().ignore(Some(edge));
    }
    graph.executable().ignore(None);
    graph.replay()?;
    device.synchronize()?;
    counts[1].store(0, Ordering::SeqCst);
    let commands = graph.commands();
    let later = commands.iter().position(|command| !command.needs.is_empty()).unwrap();
    graph.executable().ignore(Some((commands[later].needs[0], later)));
    graph.replay()?;
    device.synchronize()?;
    assert_eq!(counts[1].load(Ordering::SeqCst), 1);
    Ok(())
}

/// A hook that returns the step stored in it.
struct Hook(Arc<(std::sync::Mutex<RuleStep>, AtomicUsize)>);

impl EachReplay for Hook {
    fn next(&mut self) -> Result<Vec<RuleStep>> {
        Ok(vec![*self.0.0.lock().unwrap()])
    }

    fn undo(&mut self) {
        self.0.1.fetch_add(1, Ordering::SeqCst);
    }
}

/// A step keeps the rule that it was captured with: one of another rule is an error, with nothing changed.
#[test]
fn a_hook_that_returns_a_step_of_another_rule_is_refused() -> Result<()> {
    let device = device(1);
    let sgd = |lr: f64, momentum: f64| SgdOptions { lr, momentum, ..SgdOptions::default() }.rule(2).unwrap();
    let slot = fresh_slot();
    let given = Arc::new((std::sync::Mutex::new(sgd(0.5, 0.0).named(slot)), AtomicUsize::new(0)));
    let (param, grad) = (tensor(&[1.0, 2.0], &device), tensor(&[1.0, 1.0], &device));
    let graph = Graph::capture(&device, || {
        each_replay(Hook(given.clone()));
        let step = sgd(0.1, 0.0).named(slot);
        optimizer_step(&[Update { param: &param, grad: &grad, master: None, states: &[], step }])
    })?;
    *given.0.lock().unwrap() = sgd(0.5, 0.9).named(slot);
    assert!(is_invalid(graph.replay()));
    assert_eq!(given.1.load(Ordering::SeqCst), 1, "undone");
    assert_eq!(param.to_vec::<f32>()?, [1.0, 2.0]);
    *given.0.lock().unwrap() = sgd(0.5, 0.0).named(slot);
    graph.replay()?;
    assert_eq!(param.to_vec::<f32>()?, [0.5, 1.5]);
    Ok(())
}

/// A capture that has ended, with success or not, takes nothing more.
#[test]
fn a_capture_that_has_ended_records_nothing() -> Result<()> {
    let device = device(1);
    for kept in [false, true] {
        let capture = Capture::new(&device)?;
        let again = Arc::clone(&capture);
        let large = again.scope(|| Tensor::zeros(&[1 << 16], DType::F32, &device))?;
        let held = kept.then(|| large.clone());
        let mut large = Some(large).filter(|_| kept);
        assert_eq!(capture.finish().is_err(), kept);
        let small = again.scope(|| Tensor::empty(&[1], DType::F32, &device));
        if let (Some(large), Ok(small)) = (large.take(), &small) {
            assert!(again.scope(|| large.add_scalar_(1.0)).is_err());
            assert!(again.scope(|| small.add_scalar_(1.0)).is_err());
            assert!(large.add_scalar(1.0).is_err());
        }
        drop((small, held));
        if let Ok((plan, _)) = again.finish() {
            assert!(plan.is_empty());
        }
    }
    tensor(&[1.0], &device).add_scalar(1.0)?.item::<f32>()?;
    Ok(())
}

/// All memory of a step together can be counted, so that its places never wrap around.
#[test]
fn a_step_of_more_memory_than_can_be_counted_is_refused() -> Result<()> {
    let device = device(1);
    let found = Graph::capture(&device, || {
        (0..32).try_for_each(|_| Tensor::empty(&[1 << 59], DType::U8, &device)?.narrow(0, 0, 8)?.fill_(7))
    });
    assert!(matches!(found.as_ref().map_err(Error::kind), Err(ErrorKind::OutOfMemory { .. })));
    Ok(())
}

/// A layout of more elements than can be counted has no strides that lead before its first element.
#[test]
fn a_part_of_a_layout_beyond_counting_stays_inside() -> Result<()> {
    let device = device(1);
    let stream = device.default_stream();
    let x = tensor(&[7.0; 8], &device);
    for size in [usize::MAX, isize::MAX as usize + 2, isize::MAX as usize, 1 << 62] {
        for offset in [0, 1] {
            let whole = Layout::contiguous(&[3, 2, size]);
            let part = whole.narrow("test", 2, 0, 1)?.narrow("test", 0, offset, 2)?;
            assert!(part.strides().iter().all(|&stride| stride >= 0), "{part:?}");
            let view = View::new(x.buffer(), DType::F32, &part);
            assert!(is_invalid(kernels::fill(&stream, 1.0.into(), view)), "{part:?}");
        }
        let _ =
            (Layout::channels_last([2, 3, size, 5]).is_channels_last(), Layout::contiguous(&[2, size]).end());
    }
    assert_eq!(x.to_vec::<f32>()?, [7.0; 8]);
    Ok(())
}

/// Rows of more elements than can be counted are no rows of a small tensor.
#[test]
fn rows_beyond_counting_are_refused() -> Result<()> {
    let device = device(1);
    let (x, out) = (tensor(&[1.0; 16], &device), tensor(&[1.0; 16], &device));
    let statistics = [tensor(&[0.0; 8], &device), tensor(&[0.0; 8], &device)];
    for (channels, inner) in [(isize::MAX as usize + 2, 2), (usize::MAX, usize::MAX), (1 << 63, 2)] {
        let rows = kernels::NormRows { groups: 1, channels, inner };
        let input = kernels::NormInput { x: x.view(), weight: None, bias: None };
        let to = (Some(statistics[0].view()), statistics[1].view());
        assert!(
            kernels::normalize(&device.default_stream(), "rows", rows, input, 1e-5, out.view(), to).is_err()
        );
        assert_eq!((rows.row(), out.to_vec::<f32>()?), (usize::MAX, vec![1.0; 16]));
    }
    Ok(())
}

/// A stream cannot wait for a moment that has not been launched: its clock would claim to be ordered after it.
#[test]
fn a_moment_to_come_cannot_be_waited_for() -> Result<()> {
    let device = device(1);
    let (one, other) = (device.new_stream()?, device.new_stream()?);
    other.launch_host("none", &[], || ())?;
    let now = other.now();
    let to_come = |tick| Moment { tick, ..now };
    for tick in [now.tick + 1, 1 << 60, u64::MAX] {
        assert!(is_invalid(one.wait_for(&[to_come(tick)])));
        assert!(!one.covers(to_come(tick)));
    }
    one.wait_for(&[now])?;
    device.synchronize()?;
    let _: StreamId = now.stream;
    Ok(())
}

/// Kernels other than elementwise ones refuse an output that overlaps an input.
#[test]
fn a_kernel_that_would_write_what_it_reads_is_refused() -> Result<()> {
    let device = device(2);
    let stream = device.default_stream();
    let x = Tensor::zeros(&[64], DType::F32, &device)?;
    let square = Layout::contiguous(&[8, 8]);
    let rows = [square.narrow("test", 0, 0, 4)?, square.narrow("test", 0, 2, 4)?];
    let view = |layout| View::new(x.buffer(), DType::F32, layout);
    let whole = view(&square);
    let product = kernels::matmul(&stream, whole, whole, whole, kernels::Accumulate::Overwrite);
    assert!(is_invalid(product.and_then(|product| product.launch(None))));
    assert!(is_invalid(kernels::softmax(&stream, view(&rows[0]), 1, view(&rows[1]))));
    assert!(is_invalid(kernels::scale_all(
        &stream,
        &[(view(&rows[0]), view(&rows[0])), (view(&rows[1]), view(&rows[1]))],
        View::new(tensor(&[1.0], &device).reshape(&[])?.buffer(), DType::F32, &Layout::contiguous(&[])),
    )));
    // What lies side by side in each row is apart.
    let columns =
        [square.narrow("test", 1, 0, 4)?, square.narrow("test", 1, 4, 4)?, square.narrow("test", 1, 3, 4)?];
    let [left, right, middle] = columns.each_ref().map(view);
    kernels::softmax(&stream, left, 1, right)?;
    kernels::softmax(&stream, right, 1, left)?;
    assert!(is_invalid(kernels::softmax(&stream, left, 1, middle)));
    assert!(is_invalid(kernels::softmax(&stream, middle, 1, right)));
    let turned = columns.each_ref().map(|layout| layout.transpose("test", 0, 1).unwrap());
    let [left, right, middle] = turned.each_ref().map(view);
    kernels::softmax(&stream, left, 1, right)?;
    assert!(is_invalid(kernels::softmax(&stream, middle, 1, right)));
    // Elementwise kernels may write where they read, element for element.
    kernels::unary(&stream, kernels::UnaryOp::Exp, whole, whole)?;
    assert!(is_invalid(kernels::unary(&stream, kernels::UnaryOp::Exp, view(&rows[0]), view(&rows[1]))));
    device.synchronize()
}

/// A command of an explored device that makes a stream would wait for the explorer that runs it.
#[test]
fn a_command_of_an_explored_device_makes_no_streams() -> Result<()> {
    let schedule = Schedule::Explore(streamgrad::Policy::OldestFirst);
    let device = Device::cpu_with(CpuConfig { schedule, ..CpuConfig::default() });
    let (own, stream) = (device.clone(), device.default_stream());
    let found = Arc::new(std::sync::Mutex::new(None));
    let kept = Arc::clone(&found);
    stream.launch_host("hostile", &[], move || {
        let branches = own.concurrent((|| Ok(()), || Ok(()))).map(drop);
        *kept.lock().unwrap() = Some((own.new_stream().map(drop), branches));
    })?;
    device.synchronize()?;
    let refused =
        |result: &Result<()>| matches!(result.as_ref().map_err(Error::kind), Err(ErrorKind::Deadlock { .. }));
    let (made, branches) = found.lock().unwrap().take().unwrap();
    assert!(refused(&made) && refused(&branches));
    Ok(())
}

/// The content of a buffer that a host has in hand is nobody else's: what would wait for it is refused.
#[test]
fn a_buffer_that_the_host_has_in_hand_is_left_alone() -> Result<()> {
    let device = Device::cpu_with(CpuConfig { schedule: Schedule::Inline, ..CpuConfig::default() });
    let stream = device.default_stream();
    let buffer = allocator::allocate(&stream, 64)?;
    buffer.update(|bytes| {
        bytes.fill(1);
        assert!(buffer.download(|_| ()).is_err());
        assert!(buffer.peek(|_| ()).is_none());
        assert!(buffer.update(|_| ()).is_err());
        stream.upload("upload", &buffer, 0, &[2; 64]).unwrap();
        assert!(bytes.iter().all(|&byte| byte == 1));
    })?;
    buffer.download(|bytes| {
        assert!(bytes.iter().all(|&byte| byte == 2));
        assert!(buffer.update(|_| ()).is_err());
        stream.launch_host("later", &[Use::write(&buffer)], || ()).unwrap();
        assert!(bytes.iter().all(|&byte| byte == 2));
    })?;
    device.synchronize()
}
