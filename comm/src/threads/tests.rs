//! Collectives of threads: values, errors, order.

use std::sync::Arc;
use std::time::Duration;

use device::{Buffer, DType, Device, Element, Shared, Stream, Use, as_bytes, bf16, from_bytes};
use kernels::{Layout, View};

use crate::{CommModel, CommOptions, Communicator, Error, ErrorKind, Reduce, Result};

/// Values on a rank's device.
struct Values {
    buffer: Shared<Buffer>,
    layout: Layout,
    dtype: DType,
}

impl Values {
    fn new<T: Element>(stream: &Stream, shape: &[usize], values: &[T]) -> Result<Values> {
        let buffer = allocator::allocate_shared(stream, size_of_val(values))?;
        stream.upload("values", &buffer, 0, as_bytes(values))?;
        Ok(Values { buffer, layout: Layout::contiguous(shape), dtype: T::DTYPE })
    }

    fn zeros<T: Element>(stream: &Stream, shape: &[usize]) -> Result<Values> {
        Values::new(stream, shape, &vec![T::default(); shape.iter().product()])
    }

    fn view(&self) -> View<'_> {
        View::new(&self.buffer, self.dtype, &self.layout)
    }

    fn get<T: Element>(&self) -> Result<Vec<T>> {
        self.buffer.download(|bytes| from_bytes::<T>(bytes).to_vec())
    }
}

/// Ranks that do not wait for ever where a test fails.
fn impatient(ranks: usize) -> Vec<Communicator> {
    let devices: Vec<Device> = (0..ranks).map(|_| Device::cpu_with(device::CpuConfig::default())).collect();
    Communicator::threads_with(
        &devices,
        CommOptions { timeout: Duration::from_secs(10), ..CommOptions::default() },
    )
    .unwrap()
}

/// Runs `rank` on a thread for each communicator.
fn run<R: Send>(ranks: Vec<Communicator>, rank: impl Fn(Communicator) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks.into_iter().map(|comm| scope.spawn(|| rank(comm))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// What a rank gives: another value for each rank and element.
fn given(rank: usize, elements: usize) -> Vec<f32> {
    (0..elements).map(|at| 1.0 / (1.0 + (rank * 31 + at * 7) as f32) - 0.2).collect()
}

/// In rank order.
fn serial_sum(ranks: usize, elements: usize) -> Vec<f32> {
    let mut sum = given(0, elements);
    for rank in 1..ranks {
        sum.iter_mut().zip(given(rank, elements)).for_each(|(sum, x)| *sum += x);
    }
    sum
}

fn source(error: &Error) -> &Error {
    match error.kind() {
        ErrorKind::Async { source, .. } => source.downcast_ref().unwrap_or(error),
        _ => error,
    }
}

#[test]
fn sums_are_made_in_rank_order() {
    for ranks in [1, 2, 3, 4] {
        // Small ones, which each rank adds, and large ones, of which each adds a part.
        for elements in [0, 1, 5, 2048, 2049, 10_007] {
            for in_place in [false, true] {
                let sums = run(Communicator::threads(ranks).unwrap(), |comm| {
                    let stream = comm.device().default_stream();
                    let x = Values::new(&stream, &[elements], &given(comm.rank(), elements))?;
                    let out = if in_place { None } else { Some(Values::zeros::<f32>(&stream, &[elements])?) };
                    let out = out.as_ref().unwrap_or(&x);
                    comm.all_reduce(&stream, x.view(), out.view(), Reduce::Sum)?;
                    out.get::<f32>()
                });
                for sum in sums {
                    assert_eq!(
                        sum.unwrap(),
                        serial_sum(ranks, elements),
                        "{ranks} ranks, {elements} elements"
                    );
                }
            }
        }
    }
}

#[test]
fn reductions_of_every_kind() {
    let results = run(Communicator::threads(3).unwrap(), |comm| {
        let stream = comm.device().default_stream();
        let value = [3.0f32, 1.0, 2.0][comm.rank()];
        let reduced = |reduce| -> Result<Vec<f32>> {
            let x = Values::new(&stream, &[2], &[value, if comm.rank() == 1 { f32::NAN } else { value }])?;
            comm.all_reduce(&stream, x.view(), x.view(), reduce)?;
            x.get()
        };
        let all: Vec<f32> = [Reduce::Sum, Reduce::Mean, Reduce::Max, Reduce::Min, Reduce::Prod]
            .into_iter()
            .map(|reduce| reduced(reduce).unwrap())
            .inspect(|values| assert!(values[1].is_nan()))
            .map(|values| values[0])
            .collect();
        all
    });
    assert!(results.iter().all(|all| *all == [6.0, 2.0, 3.0, 1.0, 6.0]));
}

#[test]
fn halves_are_summed_in_f32_and_rounded_once() {
    // 256 + 1 + 1: each sum in BF16 would stay 256.
    let results = run(Communicator::threads(3).unwrap(), |comm| {
        let stream = comm.device().default_stream();
        let value = bf16::from_f32(if comm.rank() == 0 { 256.0 } else { 1.0 });
        let x = Values::new(&stream, &[1], &[value]).unwrap();
        comm.all_reduce(&stream, x.view(), x.view(), Reduce::Sum).unwrap();
        x.get::<bf16>().unwrap()[0].to_f32()
    });
    assert_eq!(results, [258.0; 3]);
}

#[test]
fn parts_go_where_they_belong() {
    let results = run(Communicator::threads(3).unwrap(), |comm| -> Result<_> {
        let stream = comm.device().default_stream();
        let rank = comm.rank() as i64;
        let x = Values::new(&stream, &[3, 2], &[0, 1, 2, 3, 4, 5].map(|at| rank * 10 + at))?;
        let (gathered, scattered) =
            (Values::zeros::<i64>(&stream, &[9, 2])?, Values::zeros::<i64>(&stream, &[1, 2])?);
        comm.all_gather(&stream, x.view(), gathered.view())?;
        comm.reduce_scatter(&stream, x.view(), scattered.view(), Reduce::Sum)?;
        let (exchanged, told) =
            (Values::zeros::<i64>(&stream, &[3, 2])?, Values::zeros::<i64>(&stream, &[3, 2])?);
        comm.all_to_all(&stream, x.view(), exchanged.view())?;
        comm.broadcast(&stream, x.view(), told.view(), 2)?;
        Ok((gathered.get::<i64>()?, scattered.get::<i64>()?, exchanged.get::<i64>()?, told.get::<i64>()?))
    });
    for (rank, result) in results.into_iter().enumerate() {
        let (gathered, scattered, exchanged, told) = result.unwrap();
        let part = |of: i64, at: i64| [of * 10 + at * 2, of * 10 + at * 2 + 1];
        let rank = rank as i64;
        assert_eq!(
            gathered,
            [0, 1, 2].map(|of| [0, 1, 2].map(|at| part(of, at))).as_flattened().as_flattened()
        );
        assert_eq!(scattered, [30 + rank * 6, 33 + rank * 6]);
        assert_eq!(exchanged, [0, 1, 2].map(|of| part(of, rank)).as_flattened());
        assert_eq!(told, [0, 1, 2].map(|at| part(2, at)).as_flattened());
    }
}

#[test]
fn messages_keep_their_order_and_senders_wait_for_nobody() {
    let results = run(Communicator::threads(2).unwrap(), |comm| -> Result<Vec<f32>> {
        let stream = comm.device().default_stream();
        let other = 1 - comm.rank();
        for value in 0..3 {
            let x = Values::new(&stream, &[1], &[(comm.rank() * 10 + value) as f32])?;
            comm.send(&stream, x.view(), other)?;
        }
        stream.synchronize()?;
        let mut got = Vec::new();
        for _ in 0..3 {
            let out = Values::zeros::<f32>(&stream, &[1])?;
            comm.recv(&stream, out.view(), other)?;
            got.extend(out.get::<f32>()?);
        }
        Ok(got)
    });
    assert_eq!(results[0].as_ref().unwrap(), &[10.0, 11.0, 12.0]);
    assert_eq!(results[1].as_ref().unwrap(), &[0.0, 1.0, 2.0]);
}

#[test]
fn what_a_rank_sent_before_it_left_is_received() {
    let mut ranks = impatient(2);
    let (first, stream) = (ranks.remove(0), ranks[0].device().default_stream());
    let x = Values::new(&first.device().default_stream(), &[1], &[7.0f32]).unwrap();
    first.send(&first.device().default_stream(), x.view(), 1).unwrap();
    drop(first);
    let out = Values::zeros::<f32>(&stream, &[1]).unwrap();
    ranks[0].recv(&stream, out.view(), 0).unwrap();
    assert_eq!(out.get::<f32>().unwrap(), [7.0]);
    ranks[0].recv(&stream, out.view(), 0).unwrap();
    let error = stream.synchronize().unwrap_err();
    assert!(matches!(source(&error).kind(), ErrorKind::RankLost { op: "recv", rank: 0, .. }), "{error:?}");
}

/// One thread can drive all ranks: a launch waits for nobody.
/// A rank that has gone is needed by none of the others' messages.
#[test]
fn messages_go_on_without_a_rank_that_they_do_not_need() {
    let mut ranks = impatient(3);
    drop(ranks.remove(1));
    let results = run(ranks, |comm| -> Result<f32> {
        let stream = comm.device().default_stream();
        let x = Values::new(&stream, &[1], &[comm.rank() as f32])?;
        let other = 2 - comm.rank();
        comm.send(&stream, x.view(), other)?;
        comm.recv(&stream, x.view(), other)?;
        assert!(matches!(
            comm.send(&stream, x.view(), 1).as_ref().map_err(Error::kind),
            Err(ErrorKind::RankLost { rank: 1, .. })
        ));
        x.get::<f32>().map(|values| values[0])
    });
    assert_eq!(results.into_iter().map(Result::unwrap).collect::<Vec<_>>(), [2.0, 0.0]);
}

#[test]
fn a_launch_does_not_wait_for_other_ranks() {
    let ranks = impatient(3);
    let values: Vec<Values> = ranks
        .iter()
        .map(|comm| {
            let stream = comm.device().default_stream();
            let x = Values::new(&stream, &[1], &[comm.rank() as f32 + 1.0]).unwrap();
            comm.all_reduce(&stream, x.view(), x.view(), Reduce::Sum).unwrap();
            x
        })
        .collect();
    assert!(values.iter().all(|x| x.get::<f32>().unwrap() == [6.0]));
}

/// While a collective waits, the rank's other streams go on.
#[test]
fn other_streams_of_a_rank_go_on() {
    let ranks = impatient(2);
    let (first, second) = (&ranks[0], &ranks[1]);
    let side = first.device().new_stream().unwrap();
    first.barrier(&first.device().default_stream()).unwrap();
    let done = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let set = Arc::clone(&done);
    side.launch_host("side", &[], move || set.store(true, std::sync::atomic::Ordering::Release)).unwrap();
    side.synchronize().unwrap();
    assert!(done.load(std::sync::atomic::Ordering::Acquire));
    assert!(!first.device().default_stream().is_idle().unwrap());
    second.barrier(&second.device().default_stream()).unwrap();
    first.device().synchronize().unwrap();
}

/// The communicator's own order holds across streams.
#[test]
fn collectives_of_one_communicator_keep_their_order_on_several_streams() {
    let results = run(impatient(2), |comm| -> Result<Vec<f32>> {
        let (one, two) = (comm.device().new_stream()?, comm.device().new_stream()?);
        let mut all = Vec::new();
        for step in 0..50 {
            let hold = (step % 5 == comm.rank()).then(|| one.hold());
            let stream = if step % 2 == 0 { &one } else { &two };
            let x = Values::new(stream, &[1], &[step as f32])?;
            comm.all_reduce(stream, x.view(), x.view(), Reduce::Sum)?;
            drop(hold);
            all.push(x);
        }
        all.iter().map(|x| Ok(x.get::<f32>()?[0])).collect()
    });
    for result in results {
        assert_eq!(result.unwrap(), (0..50).map(|step| (step * 2) as f32).collect::<Vec<_>>());
    }
}

#[test]
fn ranks_that_differ_are_told_both_sides() {
    for other in 0..3 {
        let results = run(impatient(3), |comm| -> Result<()> {
            let stream = comm.device().default_stream();
            let shape = if comm.rank() == 2 && other == 0 { [3] } else { [2] };
            let x = match comm.rank() == 2 && other == 1 {
                true => Values::zeros::<f64>(&stream, &shape)?,
                false => Values::zeros::<f32>(&stream, &shape)?,
            };
            let reduce = if comm.rank() == 2 && other == 2 { Reduce::Max } else { Reduce::Sum };
            comm.all_reduce(&stream, x.view(), x.view(), reduce)?;
            stream.synchronize()
        });
        let expected =
            ["all_reduce(sum) of f32 [3]", "all_reduce(sum) of f64 [2]", "all_reduce(max) of f32 [2]"];
        for result in results {
            let error = result.unwrap_err();
            let ErrorKind::CollectiveMismatch { number, rank, call, other: differs, other_call } =
                source(&error).kind()
            else {
                panic!("{error:?}")
            };
            assert_eq!((*number, *rank, *differs), (0, 0, 2));
            assert_eq!((&**call, &**other_call), ("all_reduce(sum) of f32 [2]", expected[other]));
        }
    }
}

/// The receiver finds it; the sender's command has run by then.
#[test]
fn both_sides_of_a_message_that_differs_are_told() {
    let results = run(impatient(2), |comm| -> Result<()> {
        let stream = comm.device().default_stream();
        if comm.rank() == 1 {
            comm.recv(&stream, Values::zeros::<f32>(&stream, &[3])?.view(), 0)?;
            return stream.synchronize();
        }
        comm.send(&stream, Values::zeros::<f32>(&stream, &[2])?.view(), 1)?;
        let begin = std::time::Instant::now();
        while begin.elapsed() < Duration::from_secs(20) {
            stream.synchronize()?;
            std::thread::yield_now();
        }
        Ok(())
    });
    for (result, op) in results.iter().zip(["send", "recv"]) {
        let error = result.as_ref().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Async { op: found, .. } if *found == op), "{error:?}");
        let ErrorKind::CollectiveMismatch { number, rank, call, other, other_call } = source(error).kind()
        else {
            panic!("{error:?}")
        };
        assert_eq!((*number, *rank, *other), (0, 0, 1));
        assert_eq!((&**call, &**other_call), ("send(to 1) of f32 [2]", "recv(from 0) of f32 [3]"));
    }
}

#[test]
fn a_call_of_no_elements_is_compared_with_one_that_has_some() {
    let results = run(impatient(2), |comm| -> Result<()> {
        let stream = comm.device().default_stream();
        for elements in [2 * comm.rank(), 2] {
            let x = Values::zeros::<f32>(&stream, &[elements])?;
            comm.all_reduce(&stream, x.view(), x.view(), Reduce::Sum)?;
        }
        stream.synchronize()
    });
    for result in results {
        assert!(matches!(
            source(&result.unwrap_err()).kind(),
            ErrorKind::CollectiveMismatch { number: 0, .. }
        ));
    }
}

#[test]
fn a_rank_that_leaves_is_named() {
    for panics in [false, true] {
        let ranks = Communicator::threads(3).unwrap();
        let results = std::thread::scope(|scope| {
            let threads: Vec<_> = ranks
                .into_iter()
                .map(|comm| {
                    scope.spawn(move || -> Result<()> {
                        let stream = comm.device().default_stream();
                        comm.barrier(&stream)?;
                        stream.synchronize()?;
                        if comm.rank() == 1 && panics {
                            std::panic::resume_unwind(Box::new("on purpose"));
                        }
                        if comm.rank() == 1 {
                            return Ok(());
                        }
                        comm.barrier(&stream)?;
                        stream.synchronize()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join()).collect::<Vec<_>>()
        });
        for result in [&results[0], &results[2]] {
            let error = result.as_ref().unwrap().clone().unwrap_err();
            let ErrorKind::RankLost { op, rank, reason } = source(&error).kind() else { panic!("{error:?}") };
            assert_eq!((*op, *rank, reason.contains("panicked")), ("barrier", 1, panics));
        }
    }
}

#[test]
fn who_does_not_come_in_time_is_named() {
    let devices: Vec<Device> = (0..2).map(|_| Device::cpu_with(device::CpuConfig::default())).collect();
    let options = CommOptions { timeout: Duration::from_millis(50), ..CommOptions::default() };
    let ranks = Communicator::threads_with(&devices, options).unwrap();
    let stream = devices[0].default_stream();
    ranks[0].barrier(&stream).unwrap();
    let error = stream.synchronize().unwrap_err();
    let ErrorKind::CollectiveTimeout { op, missing, .. } = source(&error).kind() else { panic!("{error:?}") };
    assert_eq!((*op, &**missing), ("barrier", &[1][..]));
    // The group is of no use any more, for all of its ranks.
    assert!(matches!(
        ranks[1].barrier(&devices[1].default_stream()).as_ref().map_err(Error::kind),
        Err(ErrorKind::CollectiveTimeout { .. })
    ));
}

#[test]
fn groups_of_some_ranks() {
    let results = run(Communicator::threads(4).unwrap(), |comm| -> Result<_> {
        let color = (comm.rank() != 3).then_some(comm.rank() % 2);
        // The other way round.
        let Some(part) = comm.split(color, 10 - comm.rank())? else { return Ok(None) };
        let stream = comm.device().default_stream();
        let x = Values::new(&stream, &[1], &[comm.rank() as f32])?;
        part.broadcast(&stream, x.view(), x.view(), 0)?;
        let all = comm.duplicate();
        Ok(Some((part.rank(), part.size(), x.get::<f32>()?[0], all.is_err())))
    });
    let results: Vec<_> = results.into_iter().map(Result::unwrap).collect();
    // Rank 3 has left, so nobody can duplicate.
    let expected = [Some((1, 2, 2.0, true)), Some((0, 1, 1.0, true)), Some((0, 2, 2.0, true)), None];
    assert_eq!(results, expected);
}

/// A group that has failed is not split, though all ranks come to that at last.
#[test]
fn a_split_that_a_rank_has_given_up_is_none() {
    let devices: Vec<Device> = (0..2).map(|_| Device::cpu_with(device::CpuConfig::default())).collect();
    let options = CommOptions { timeout: Duration::from_millis(50), ..CommOptions::default() };
    let ranks = Communicator::threads_with(&devices, options).unwrap();
    for rank in &ranks {
        let error = rank.duplicate().map(drop).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::CollectiveTimeout { missing, .. } if **missing == [1]),
            "{error:?}"
        );
    }
}

/// What one rank has launched before it made a communicator keeps it from nothing that this one does.
#[test]
fn a_new_communicator_waits_for_nothing_that_is_under_way() {
    let results = run(impatient(2), |comm| -> Result<()> {
        let (first, side) = (comm.device().default_stream(), comm.device().new_stream()?);
        if comm.rank() == 0 {
            comm.barrier(&first)?;
        }
        let second = comm.duplicate()?;
        second.barrier(&side)?;
        side.synchronize()?;
        if comm.rank() == 1 {
            comm.barrier(&first)?;
        }
        first.synchronize()
    });
    results.into_iter().for_each(Result::unwrap);
}

/// A rank that leaves because another one has is not named by those that only share a smaller group with it.
#[test]
fn the_first_rank_that_is_lost_is_named_in_every_group() {
    let results = run(Communicator::threads(3).unwrap(), |comm| -> Result<()> {
        let stream = comm.device().default_stream();
        let pair = comm.split((comm.rank() < 2).then_some(0), 0)?;
        match comm.rank() {
            2 => Ok(()),
            // Sees that rank 2 has gone, and goes.
            1 => comm.barrier(&stream).and_then(|()| stream.synchronize()),
            _ => pair.unwrap().barrier(&stream).and_then(|()| stream.synchronize()),
        }
    });
    for result in &results[..2] {
        let error = result.as_ref().unwrap_err();
        assert!(matches!(source(error).kind(), ErrorKind::RankLost { rank: 2, .. }), "{error:?}");
    }
}

#[test]
fn bad_operands_are_refused_at_the_launch() {
    let ranks = Communicator::threads(2).unwrap();
    let (comm, stream) = (&ranks[0], ranks[0].device().default_stream());
    let (x, y) = (Values::zeros::<i64>(&stream, &[3]).unwrap(), Values::zeros::<f32>(&stream, &[3]).unwrap());
    let (x, y) = (x.view(), y.view());
    let reduced = |x, out, reduce| comm.all_reduce(&stream, x, out, reduce).unwrap_err();
    assert!(matches!(reduced(x, y, Reduce::Sum).kind(), ErrorKind::DTypeMismatch { .. }));
    assert!(matches!(reduced(x, x, Reduce::Mean).kind(), ErrorKind::DTypeUnsupported { .. }));
    assert!(matches!(
        comm.all_gather(&stream, x, x).as_ref().map_err(Error::kind),
        Err(ErrorKind::ShapeMismatch { .. })
    ));
    assert!(matches!(
        comm.all_to_all(&stream, x, x).as_ref().map_err(Error::kind),
        Err(ErrorKind::InvalidArgument { .. })
    ));
    assert!(matches!(
        comm.broadcast(&stream, x, x, 2).as_ref().map_err(Error::kind),
        Err(ErrorKind::IndexOutOfRange { .. })
    ));
    assert!(matches!(
        comm.send(&stream, x, 0).as_ref().map_err(Error::kind),
        Err(ErrorKind::InvalidArgument { .. })
    ));
    let transposed = Layout::contiguous(&[3]).expand("t", &[2, 3]).unwrap();
    let expanded = View::new(x.buffer, DType::I64, &transposed);
    assert!(matches!(reduced(expanded, expanded, Reduce::Sum).kind(), ErrorKind::InvalidArgument { .. }));
    assert!(matches!(
        comm.barrier(&ranks[1].device().default_stream()).as_ref().map_err(Error::kind),
        Err(ErrorKind::DeviceMismatch { .. })
    ));
    assert!(matches!(
        Communicator::threads(0).as_ref().map_err(Error::kind),
        Err(ErrorKind::InvalidArgument { .. })
    ));
    let twice = [comm.device().clone(), comm.device().clone()];
    let twice = Communicator::threads_with(&twice, CommOptions::default());
    assert!(matches!(twice.as_ref().map_err(Error::kind), Err(ErrorKind::InvalidArgument { .. })));
}

#[test]
fn the_modelled_network_delays_the_stream_and_not_the_host() {
    let devices: Vec<Device> = (0..2).map(|_| Device::cpu_with(device::CpuConfig::default())).collect();
    let latency = Duration::from_millis(100);
    let model = CommModel { latency, bandwidth: 1e9 };
    let ranks =
        Communicator::threads_with(&devices, CommOptions { model: Some(model), ..CommOptions::default() })
            .unwrap();
    let start = std::time::Instant::now();
    for comm in &ranks {
        let stream = comm.device().default_stream();
        let x = Values::zeros::<f32>(&stream, &[4]).unwrap();
        comm.all_reduce(&stream, x.view(), x.view(), Reduce::Sum).unwrap();
        assert!(!stream.is_idle().unwrap());
    }
    devices.iter().for_each(|device| device.synchronize().unwrap());
    // 2 (n - 1) messages.
    assert!(start.elapsed() >= 2 * latency);
    let model = CommModel { latency: Duration::from_millis(20), bandwidth: 1e9 };
    let time = |collective| model.time(collective, 4_000_000, 4).as_secs_f64();
    let close = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-9, "{found} {expected}");
    close(time(crate::Collective::AllReduce(Reduce::Sum)), 6.0 * (0.02 + 0.001));
    close(time(crate::Collective::AllGather), 3.0 * (0.02 + 0.004));
    close(time(crate::Collective::Broadcast { root: 0 }), 2.0 * (0.02 + 0.004));
    close(time(crate::Collective::Barrier), 2.0 * 0.02);
}

/// What a collective reads and writes is ordered like any command's operands.
#[test]
fn a_network_without_bandwidth_is_none() {
    for bandwidth in [0.0, -1.0, f64::NAN] {
        let network = CommModel { latency: Duration::ZERO, bandwidth };
        let ranks = Communicator::threads_with(
            &[Device::cpu()],
            CommOptions { model: Some(network), ..CommOptions::default() },
        );
        assert!(
            matches!(
                ranks.as_ref().map_err(Error::kind),
                Err(ErrorKind::InvalidArgument { argument: "bandwidth", .. })
            ),
            "{ranks:?}"
        );
    }
}

#[test]
fn operands_are_ordered_and_audited() {
    let results = run(Communicator::threads(2).unwrap(), |comm| -> Result<_> {
        let (one, two) = (comm.device().new_stream()?, comm.device().new_stream()?);
        comm.device().start_audit();
        let x = Values::new(&one, &[4], &[comm.rank() as f32; 4])?;
        let hold = one.hold();
        comm.all_reduce(&one, x.view(), x.view(), Reduce::Sum)?;
        let (buffer, layout) = (&x.buffer, &x.layout);
        let out = Values::zeros::<f32>(&two, &[4])?;
        kernels::copy(&two, View::new(buffer, DType::F32, layout), out.view())?;
        drop(hold);
        let read = out.get::<f32>()?;
        Ok((read, comm.device().stop_audit().hazards().len()))
    });
    for result in results {
        assert_eq!(result.unwrap(), (vec![1.0; 4], 0));
    }
}

#[test]
fn a_use_of_the_operand_waits_for_the_collective() {
    let ranks = impatient(2);
    let stream = ranks[0].device().new_stream().unwrap();
    let side = ranks[0].device().new_stream().unwrap();
    let x = Values::zeros::<f32>(&stream, &[1]).unwrap();
    ranks[0].all_reduce(&stream, x.view(), x.view(), Reduce::Sum).unwrap();
    side.launch_host("use", &[Use::read(&x.buffer)], || ()).unwrap();
    assert!(!side.is_idle().unwrap());
    let (other, stream) = (&ranks[1], ranks[1].device().default_stream());
    let y = Values::zeros::<f32>(&stream, &[1]).unwrap();
    other.all_reduce(&stream, y.view(), y.view(), Reduce::Sum).unwrap();
    side.synchronize().unwrap();
}

/// What a rank reads while another one, or itself, writes it, would have any bits.
#[test]
fn operands_that_overlap_are_refused() {
    let comm = &Communicator::threads(1).unwrap()[0];
    let stream = comm.device().default_stream();
    let both = Values::zeros::<f32>(&stream, &[6]).unwrap();
    let part =
        |start: usize, elements: usize| Layout::contiguous(&[6]).narrow("part", 0, start, elements).unwrap();
    let (first, second, all) = (part(0, 4), part(2, 4), part(0, 6));
    let view = |layout| View::new(&both.buffer, DType::F32, layout);
    let overlaps = |result: Result<()>| {
        assert!(
            matches!(
                result.as_ref().map_err(Error::kind),
                Err(ErrorKind::InvalidArgument { argument: "out", .. })
            ),
            "{result:?}"
        );
    };
    overlaps(comm.all_reduce(&stream, view(&first), view(&second), Reduce::Sum));
    overlaps(comm.broadcast(&stream, view(&second), view(&first), 0));
    overlaps(comm.all_gather(&stream, view(&all), view(&all)));
    overlaps(comm.all_to_all(&stream, view(&all), view(&all)));
    comm.all_reduce(&stream, view(&first), view(&first), Reduce::Sum).unwrap();
    let (low, high) = (part(0, 3), part(3, 3));
    comm.all_gather(&stream, view(&low), view(&high)).unwrap();
}
