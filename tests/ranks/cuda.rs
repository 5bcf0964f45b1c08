//! Ranks on CUDA devices, by NCCL: what they give is what ranks that are threads give, bit for bit, and none waits for one that
//! does not come. All of it needs two devices, real or emulated; with fewer the tests say so and do nothing.

use std::time::{Duration, Instant};

use streamgrad::comm::{CommOptions, NcclId, ReduceOrder, Rendezvous};
use streamgrad::prelude::*;
use streamgrad::{Error, ErrorKind, Result};

use crate::collectives::{captured_equals_eager, gradients_agree};
use crate::common::devices::cuda;
use crate::common::process::run_ignored;
use crate::faults::source;
use crate::on_threads;
use crate::training::training_equals_one_process;

/// As many CUDA devices as there are, up to four; none, with a word, if there are fewer than two.
fn devices() -> Vec<Device> {
    let found: Vec<Device> = (0..4).map_while(cuda).collect();
    if found.len() < 2 {
        println!("skipped: ranks of NCCL need two CUDA devices");
        return Vec::new();
    }
    found
}

/// For two ranks, and for as many as there may be, devices of their own: none is told later what ranks before it have met.
fn each_size() -> Vec<Vec<Device>> {
    let all = devices().len();
    let sizes = (all >= 2).then_some(2).into_iter().chain((all > 2).then_some(all));
    sizes.map(|size| (0..size).filter_map(cuda).collect()).collect()
}

fn options() -> CommOptions {
    CommOptions { timeout: Duration::from_secs(20), ..CommOptions::default() }
}

fn ranks(devices: &[Device], options: CommOptions) -> Vec<Communicator> {
    Communicator::nccl_devices(devices, options).unwrap()
}

/// The elements of a rank, small whole numbers, whose sums and products are exact in all types.
fn given(comm: &Communicator, shape: &[usize], dtype: DType) -> Result<Tensor> {
    let elements: usize = shape.iter().product();
    let value = |at: usize| ((comm.rank() * 5 + at * 3) % 4) as f64;
    let values: Vec<f64> = (0..elements).map(value).collect();
    Tensor::from_slice(&values, shape, comm.device())?.to_dtype(dtype)
}

/// As [`given`], of numbers whose sums depend on their order.
fn uneven(comm: &Communicator, shape: &[usize], dtype: DType) -> Result<Tensor> {
    let elements: usize = shape.iter().product();
    let value = |at: usize| 1.0 / (1.0 + (comm.rank() * 31 + at * 7) as f64) - 0.2;
    let values: Vec<f64> = (0..elements).map(value).collect();
    Tensor::from_slice(&values, shape, comm.device())?.to_dtype(dtype)
}

/// What every collective gives, by its name.
fn every_collective(
    comm: &Communicator,
    x: &Tensor,
    reductions: &[Reduce],
) -> Result<Vec<(String, Vec<f64>)>> {
    let (next, before) = ((comm.rank() + 1) % comm.size(), (comm.rank() + comm.size() - 1) % comm.size());
    let mut results = Vec::new();
    let mut add = |name: &str, y: Tensor| -> Result<()> {
        results.push((format!("{name} of {:?} {}", x.shape(), x.dtype()), y.to_dtype(DType::F64)?.to_vec()?));
        Ok(())
    };
    for &reduce in reductions {
        add(&format!("all_reduce {reduce}"), x.all_reduce(comm, reduce)?)?;
        add(&format!("reduce_scatter {reduce}"), x.reduce_scatter(comm, reduce)?)?;
        let y = x.copy()?;
        y.all_reduce_(comm, reduce)?;
        add(&format!("all_reduce_ {reduce}"), y)?;
    }
    add("all_gather", x.all_gather(comm)?)?;
    add("all_to_all", x.all_to_all(comm)?)?;
    for root in 0..comm.size() {
        add("broadcast", x.broadcast(comm, root)?)?;
    }
    // A message waits for who receives it: the first rank listens first.
    let send = || x.send(comm, next);
    if comm.rank() > 0 {
        send()?;
    }
    add("recv", Tensor::recv(x.shape(), x.dtype(), comm, before)?)?;
    if comm.rank() == 0 {
        send()?;
    }
    comm.barrier(&comm.device().default_stream())?;
    comm.device().synchronize()?;
    Ok(results)
}

const REDUCTIONS: [Reduce; 5] = [Reduce::Sum, Reduce::Prod, Reduce::Max, Reduce::Min, Reduce::Mean];

/// The reductions that there are for elements of a type.
fn reductions(dtype: DType) -> &'static [Reduce] {
    match dtype {
        DType::Bool => &[Reduce::Max, Reduce::Min],
        DType::I64 | DType::U8 => &REDUCTIONS[..4],
        _ => &REDUCTIONS,
    }
}

type Input = fn(&Communicator, &[usize], DType) -> Result<Tensor>;

/// Every collective of every type, of no elements, of few, and of more than each rank adds by itself.
fn all_results(ranks: Vec<Communicator>, input: Input) -> Vec<Vec<(String, Vec<f64>)>> {
    let results = on_threads(ranks, |comm| {
        let mut results = Vec::new();
        for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16, DType::I64, DType::U8, DType::Bool] {
            for shape in [vec![0], vec![comm.size(), 3], vec![comm.size() * 11_003]] {
                results.extend(every_collective(comm, &input(comm, &shape, dtype)?, reductions(dtype))?);
            }
            // Not divisible by the ranks.
            let x = input(comm, &[70_001], dtype)?;
            results.push((
                format!("uneven {dtype}"),
                x.all_reduce(comm, Reduce::Max)?.to_dtype(DType::F64)?.to_vec()?,
            ));
        }
        Ok(results)
    });
    results.into_iter().map(Result::unwrap).collect()
}

fn assert_equal_to_threads(ranks: Vec<Communicator>, input: Input) {
    let order = ranks[0].options().order;
    let expected = all_results(Communicator::threads(ranks.len()).unwrap(), input);
    let found = all_results(ranks, input);
    for (rank, (expected, found)) in expected.iter().zip(&found).enumerate() {
        assert_eq!(expected.len(), found.len());
        for ((name, expected), (_, found)) in expected.iter().zip(found) {
            let same = expected.iter().zip(found).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same && expected.len() == found.len(), "rank {rank}, {order:?}: {name}");
        }
    }
}

#[test]
fn collectives_equal_those_of_threads() {
    for devices in &each_size() {
        for (order, input) in [(ReduceOrder::Ranks, uneven as Input), (ReduceOrder::Fast, given as Input)] {
            assert_equal_to_threads(ranks(devices, CommOptions { order, ..options() }), input);
        }
    }
}

/// What NCCL adds in an order of its own is the same on all ranks, though not what ranks give that add in theirs.
#[test]
fn fast_sums_are_alike_on_all_ranks() {
    for devices in &each_size() {
        let sums =
            on_threads(ranks(devices, CommOptions { order: ReduceOrder::Fast, ..options() }), |comm| {
                uneven(comm, &[5000], DType::F32)?.all_reduce(comm, Reduce::Sum)?.to_vec::<f32>()
            });
        let sums: Vec<Vec<f32>> = sums.into_iter().map(Result::unwrap).collect();
        assert!(sums.iter().all(|sum| *sum == sums[0]));
    }
}

#[test]
fn the_largest_and_the_smallest_are_nan_if_one_is() {
    for devices in &each_size() {
        for order in [ReduceOrder::Ranks, ReduceOrder::Fast] {
            for result in on_threads(ranks(devices, CommOptions { order, ..options() }), |comm| {
                let value = if comm.rank() == 1 { f32::NAN } else { 1.0 };
                let x = Tensor::from_slice(&[value, 1.0], &[2], comm.device())?;
                [Reduce::Max, Reduce::Min]
                    .map(|reduce| x.all_reduce(comm, reduce)?.to_vec::<f32>())
                    .into_iter()
                    .collect()
            }) {
                let found: Vec<Vec<f32>> = result.unwrap();
                assert!(
                    found.iter().all(|found| found[0].is_nan() && found[1] == 1.0),
                    "{order:?}: {found:?}"
                );
            }
        }
    }
}

#[test]
fn gradients_of_collectives_agree_with_differences() {
    for devices in &each_size() {
        gradients_agree(ranks(devices, options()));
    }
}

#[test]
fn captured_collectives_equal_eager_ones() {
    for devices in &each_size() {
        captured_equals_eager(|| ranks(devices, options()));
    }
}

#[test]
fn training_equals_that_of_one_process() {
    for devices in &each_size() {
        for captured in [false, true] {
            training_equals_one_process(|| ranks(devices, options()), captured, &devices[0]);
        }
    }
}

/// Halves of the ranks, and a group in the other order.
#[test]
fn split_ranks_are_ranks() {
    for devices in &each_size() {
        for result in on_threads(ranks(devices, options()), |comm| {
            let (rank, size) = (comm.rank(), comm.size());
            let x = Tensor::full(&[1], rank as f64, DType::F32, comm.device())?;
            let half = comm.split(Some(rank % 2), 0)?.unwrap();
            let same: Vec<f32> =
                (0..size).filter(|other| other % 2 == rank % 2).map(|rank| rank as f32).collect();
            assert_eq!(x.all_gather(&half)?.to_vec::<f32>()?, same);
            let turned = comm.split(Some(0), size - rank)?.unwrap();
            assert_eq!(turned.rank(), size - 1 - rank);
            let all: Vec<f32> = (0..size).rev().map(|rank| rank as f32).collect();
            assert_eq!(x.all_gather(&turned)?.to_vec::<f32>()?, all);
            assert!(comm.split((rank == 0).then_some(0), 0)?.is_some() == (rank == 0));
            Ok(())
        }) {
            result.unwrap();
        }
    }
}

/// Each rank by itself, as processes do it, with an id that one of them has sent to the others.
#[test]
fn ranks_find_each_other_by_an_id() {
    for devices in &each_size() {
        let id = NcclId::from_bytes(&NcclId::new().unwrap().to_bytes()).unwrap();
        let sums = std::thread::scope(|scope| {
            let rank = |(rank, device): (usize, &Device)| {
                let device = device.clone();
                scope.spawn(move || {
                    let comm = Communicator::nccl(&device, rank, devices.len(), id, options())?;
                    Tensor::ones(&[2], DType::F32, &device)?.all_reduce(&comm, Reduce::Sum)?.to_vec::<f32>()
                })
            };
            let threads: Vec<_> = devices.iter().enumerate().map(rank).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        for sum in sums {
            assert_eq!(sum.unwrap(), [devices.len() as f32; 2]);
        }
    }
}

/// As processes do that a launcher has started.
#[test]
fn ranks_that_meet_over_tcp_have_one_id() {
    for devices in &each_size() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        std::thread::scope(|scope| {
            for (rank, device) in devices.iter().enumerate() {
                scope.spawn(move || {
                    let timeout = Duration::from_secs(20);
                    let mut place = Rendezvous::meet(address, rank, devices.len(), "", timeout).unwrap();
                    let comm = Communicator::nccl_met(device, &mut place, options()).unwrap();
                    let x = Tensor::full(&[1], comm.rank() as f64, DType::F32, device).unwrap();
                    let all: Vec<f32> = (0..devices.len()).map(|rank| rank as f32).collect();
                    assert_eq!(x.all_gather(&comm).unwrap().to_vec::<f32>().unwrap(), all);
                });
            }
        });
    }
}

#[test]
fn what_is_no_group_is_refused() {
    let invalid = |result: Result<Vec<Communicator>>| {
        matches!(result.as_ref().map_err(Error::kind), Err(ErrorKind::InvalidArgument { .. }))
    };
    assert!(NcclId::from_bytes(&[0; 127]).is_err());
    assert!(invalid(Communicator::nccl_devices(&[], options())));
    let cpu = Device::cpu();
    assert!(invalid(Communicator::nccl_devices(&[cpu.clone(), cpu.clone()], options())));
    let without = Communicator::nccl_devices(&[cpu], options());
    assert!(
        matches!(without.as_ref().map_err(Error::kind), Err(ErrorKind::CommUnavailable { .. })),
        "{without:?}"
    );
}

fn assert_timed_out(error: &Error, missing: &[usize]) {
    let ErrorKind::CollectiveTimeout { missing: found, .. } = source(error).kind() else { panic!("{error}") };
    assert_eq!(&**found, missing);
}

/// The first rank's call of all is the host's wait; a later one is the device's.
#[test]
fn a_rank_that_does_not_come_in_time_is_an_error() {
    for connected in [false, true] {
        for devices in &each_size() {
            let (begin, ended) = (Instant::now(), std::sync::Barrier::new(devices.len()));
            let results = on_threads(
                ranks(devices, CommOptions { timeout: Duration::from_secs(3), ..options() }),
                |comm| {
                    let x = Tensor::ones(&[2], DType::F32, comm.device())?;
                    if connected {
                        x.all_reduce(comm, Reduce::Sum)?;
                        comm.device().synchronize()?;
                    }
                    let result = match comm.rank() {
                        0 => Ok(()),
                        _ => x.all_gather(comm).and_then(|_| comm.device().synchronize()),
                    };
                    ended.wait();
                    result
                },
            );
            for result in &results[1..] {
                assert_timed_out(result.as_ref().unwrap_err(), &[0]);
            }
            assert!(begin.elapsed() < Duration::from_secs(30));
        }
    }
}

#[test]
fn who_comes_to_no_group_in_time_is_told_so() {
    let devices = devices();
    if devices.is_empty() {
        return;
    }
    let id = NcclId::new().unwrap();
    let options = CommOptions { timeout: Duration::from_millis(200), ..options() };
    assert_timed_out(&Communicator::nccl(&devices[0], 0, 2, id, options).unwrap_err(), &[1]);
}

/// Before a first collective and after one, without a word and by a panic.
#[test]
fn a_rank_that_has_gone_is_named() {
    for (connected, panics) in [(false, false), (true, false), (true, true)] {
        for devices in &each_size() {
            let begin = Instant::now();
            let lost = devices.len() - 1;
            let rank = |comm: Communicator| -> Result<()> {
                let x = Tensor::ones(&[2], DType::F32, comm.device())?;
                if connected {
                    x.all_reduce(&comm, Reduce::Sum)?;
                    comm.device().synchronize()?;
                }
                if comm.rank() == lost {
                    assert!(!panics, "on purpose");
                    return Ok(());
                }
                for _ in 0..3 {
                    x.all_gather(&comm)?;
                }
                comm.device().synchronize()
            };
            let threads: Vec<_> = std::thread::scope(|scope| {
                let all = ranks(devices, options()).into_iter().map(|comm| scope.spawn(|| rank(comm)));
                all.collect::<Vec<_>>().into_iter().map(|thread| thread.join()).collect()
            });
            for result in &threads[..lost] {
                let error = result.as_ref().unwrap().as_ref().unwrap_err();
                let ErrorKind::RankLost { rank, reason, .. } = source(error).kind() else {
                    panic!("{error}")
                };
                assert_eq!((*rank, reason.contains("panicked")), (lost, panics), "{error}");
            }
            assert!(begin.elapsed() < Duration::from_secs(30));
        }
    }
}

/// A communicator that is to be made of ranks of which one has gone, or does not come.
#[test]
fn a_split_without_all_ranks_is_an_error() {
    for devices in &each_size() {
        let begin = Instant::now();
        let lost = devices.len() - 1;
        for result in &on_threads(ranks(devices, options()), |comm| {
            if comm.rank() == lost { Ok(()) } else { comm.duplicate().map(drop) }
        })[..lost]
        {
            assert!(
                matches!(result.as_ref().map_err(Error::kind), Err(ErrorKind::RankLost { rank, .. }) if *rank == lost),
                "{result:?}"
            );
        }
        assert!(begin.elapsed() < Duration::from_secs(30));
        let late = on_threads(
            ranks(devices, CommOptions { timeout: Duration::from_millis(300), ..options() }),
            |comm| {
                if comm.rank() > 0 {
                    return comm.duplicate().map(drop);
                }
                std::thread::sleep(Duration::from_millis(1500));
                // The others have given up.
                Tensor::ones(&[2], DType::F32, comm.device())?.all_gather(comm).map(drop)
            },
        );
        for error in late.iter().map(|result| result.as_ref().unwrap_err()) {
            assert!(
                matches!(source(error).kind(), ErrorKind::CollectiveTimeout { op: "split", .. }),
                "{error:?}"
            );
        }
    }
}

/// Between two ranks, of which a third one has gone.
#[test]
fn messages_go_on_without_a_rank_that_they_do_not_need() {
    let devices = devices();
    if devices.len() < 3 {
        return println!("skipped: needs three CUDA devices");
    }
    let mut ranks = ranks(&devices[..3], options());
    drop(ranks.remove(1));
    std::thread::sleep(Duration::from_millis(100));
    for result in on_threads(ranks, |comm| {
        let (x, other) = (Tensor::ones(&[2], DType::F32, comm.device())?, 2 - comm.rank());
        if comm.rank() == 0 {
            x.send(comm, other)?;
        }
        let got = Tensor::recv(&[2], DType::F32, comm, other)?;
        if comm.rank() == 2 {
            got.add(&x)?.send(comm, other)?;
        }
        Ok((got.to_vec::<f32>()?, x.send(comm, 1).is_err()))
    }) {
        let (got, refused) = result.unwrap();
        assert!(refused && (got == [1.0; 2] || got == [2.0; 2]), "{got:?}");
    }
}

/// What was sent is there to be received, also if its sender has gone.
#[test]
fn what_was_sent_before_its_sender_went_is_received() {
    for devices in each_size().iter().take(1) {
        for result in on_threads(ranks(devices, options()), |comm| {
            if comm.rank() == 0 {
                return Tensor::ones(&[4], DType::F32, comm.device())?.send(comm, 1);
            }
            std::thread::sleep(Duration::from_millis(300));
            let x = Tensor::recv(&[4], DType::F32, comm, 0)?;
            assert_eq!(x.to_vec::<f32>()?, [1.0; 4]);
            Ok(())
        }) {
            result.unwrap();
        }
    }
}

#[test]
fn calls_that_differ_name_both_sides() {
    for devices in &each_size() {
        let results = on_threads(ranks(devices, options()), |comm| {
            let rows = if comm.rank() == 1 { 3 } else { 2 };
            let x = Tensor::ones(&[rows], DType::F32, comm.device())?;
            comm.barrier(&comm.device().default_stream())?;
            x.all_reduce(comm, Reduce::Sum)?;
            comm.device().synchronize()
        });
        for result in results {
            let error = result.unwrap_err();
            let ErrorKind::CollectiveMismatch { number, call, other_call, .. } = source(&error).kind() else {
                panic!("{error}")
            };
            assert_eq!(*number, 1);
            assert!(
                call.contains("[2]") != call.contains("[3]") && call != other_call,
                "{call} {other_call}"
            );
        }
    }
}

type Exchange = fn(&Communicator, &Tensor) -> Result<Tensor>;

const EXCHANGES: [(&str, Exchange); 5] = [
    ("all_reduce", |comm, x| x.all_reduce(comm, Reduce::Sum)),
    ("all_gather", |comm, x| x.all_gather(comm)),
    ("reduce_scatter", |comm, x| x.reduce_scatter(comm, Reduce::Sum)),
    ("broadcast", |comm, x| x.broadcast(comm, 1)),
    ("all_to_all", |comm, x| x.all_to_all(comm)),
];

/// A device that several groups have, one after the other, may still report what became of the group before.
fn forget_failures(device: &Device) {
    let _told = device.synchronize();
}

/// A call in which rank 0 has no elements and the others have some, and one in which all have: what ranks end with.
fn none_on_rank_0(ranks: Vec<Communicator>, exchange: Exchange) -> Vec<Error> {
    let results = on_threads(ranks, |comm| {
        forget_failures(comm.device());
        for elements in [comm.size() * comm.rank().min(1), comm.size()] {
            exchange(comm, &Tensor::ones(&[elements], DType::F32, comm.device())?)?;
        }
        comm.device().synchronize()
    });
    results.into_iter().map(|result| result.unwrap_err()).collect()
}

/// NCCL ignores a call of no elements: the other rank's would pair with this rank's next one.
#[test]
fn a_call_of_no_elements_does_not_pair_with_the_next_one() {
    for devices in &each_size() {
        for (name, exchange) in EXCHANGES {
            for order in [ReduceOrder::Ranks, ReduceOrder::Fast] {
                for ranks in [ranks(devices, CommOptions { order, ..options() }), copying(devices)] {
                    for error in none_on_rank_0(ranks, exchange) {
                        let is_mismatch =
                            matches!(source(&error).kind(), ErrorKind::CollectiveMismatch { number: 0, .. });
                        assert!(is_mismatch, "{name} {order:?}: {error:?}");
                    }
                }
            }
        }
    }
}

/// Between processes nothing is compared, but calls stay in step. The emulated library never ends calls that differ.
#[test]
fn a_call_of_no_elements_of_another_process_is_a_call() {
    if devices().is_empty() || !crate::common::devices::emulated() {
        return println!("skipped: calls that differ take two emulated devices");
    }
    for (name, exchange) in EXCHANGES.into_iter().take(2) {
        let (devices, id) = (devices(), NcclId::new().unwrap());
        let options = CommOptions { timeout: Duration::from_secs(2), ..options() };
        let ranks: Vec<Communicator> = std::thread::scope(|scope| {
            let join = |(rank, device)| scope.spawn(move || Communicator::nccl(device, rank, 2, id, options));
            let threads: Vec<_> = devices[..2].iter().enumerate().map(join).collect();
            threads.into_iter().map(|thread| thread.join().unwrap().unwrap()).collect()
        });
        for error in none_on_rank_0(ranks, exchange) {
            assert!(
                matches!(source(&error).kind(), ErrorKind::CollectiveTimeout { .. }),
                "{name}: {error:?}"
            );
        }
    }
}

/// The receiver finds it; the sender's command may have run by then.
#[test]
fn both_sides_of_a_message_that_differs_are_told() {
    for devices in each_size().iter().take(1) {
        for ranks in [ranks(devices, options()), copying(devices)] {
            for result in on_threads(ranks, |comm| {
                let device = comm.device();
                forget_failures(device);
                if comm.rank() == 1 {
                    return Tensor::recv(&[3], DType::F32, comm, 0).and_then(|_| device.synchronize());
                }
                Tensor::ones(&[2], DType::F32, device)?.send(comm, 1)?;
                let begin = Instant::now();
                while begin.elapsed() < Duration::from_secs(20) {
                    device.synchronize()?;
                }
                Ok(())
            }) {
                let error = result.unwrap_err();
                assert!(matches!(source(&error).kind(), ErrorKind::CollectiveMismatch { .. }), "{error:?}");
            }
        }
    }
}

/// Ranks that copy from each other's devices, without NCCL.
fn copying(devices: &[Device]) -> Vec<Communicator> {
    Communicator::threads_with(devices, options()).unwrap()
}

#[test]
fn copies_between_devices_are_collectives_too() {
    for devices in &each_size() {
        assert_equal_to_threads(copying(devices), uneven);
        gradients_agree(copying(devices));
        training_equals_one_process(|| copying(devices), false, &devices[0]);
    }
}

#[test]
fn copies_between_devices_tell_of_failures() {
    for devices in &each_size() {
        let mut ranks = copying(devices);
        let lost = ranks.len() - 1;
        drop(ranks.pop());
        for result in
            on_threads(ranks, |comm| Tensor::ones(&[2], DType::F32, comm.device())?.all_gather(comm))
        {
            assert!(
                matches!(result.as_ref().map_err(Error::kind), Err(ErrorKind::RankLost { rank, .. }) if *rank == lost),
                "{result:?}"
            );
        }
        for result in on_threads(copying(devices), |comm| {
            Tensor::ones(&[2 + comm.rank()], DType::F32, comm.device())?.all_reduce(comm, Reduce::Sum)
        }) {
            assert!(
                matches!(result.as_ref().map_err(Error::kind), Err(ErrorKind::CollectiveMismatch { .. })),
                "{result:?}"
            );
        }
        let captured = streamgrad::Graph::capture(&devices[0], || {
            Tensor::ones(&[2], DType::F32, &devices[0])?.all_gather(&copying(devices)[0])
        });
        assert!(
            matches!(captured.as_ref().map_err(Error::kind), Err(ErrorKind::Captured { .. })),
            "{:?}",
            captured.err()
        );
        let mixed = Communicator::threads_with(&[devices[0].clone(), Device::cpu()], options());
        assert!(
            matches!(mixed.as_ref().map_err(Error::kind), Err(ErrorKind::CommUnavailable { .. })),
            "{mixed:?}"
        );
    }
}

/// What ranks say in [`failing_ranks`] with such a failure of the emulated library.
fn said(failure: &str) -> String {
    let output = run_ignored("cuda::failing_ranks", &[("CUDA_EMULATOR_FAIL", failure.to_owned())]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{failure}: {said} {}", String::from_utf8_lossy(&output.stderr));
    said
}

#[test]
#[ignore = "of another test"]
fn failing_ranks() {
    let devices = devices();
    let all = match Communicator::nccl_devices(
        &devices,
        CommOptions { timeout: Duration::from_secs(2), ..options() },
    ) {
        Ok(all) => all,
        Err(error) => return println!("at first: {:?}", error.kind()),
    };
    for (rank, result) in on_threads(all, |comm| {
        let x = Tensor::ones(&[2], DType::F32, comm.device())?;
        for _ in 0..4 {
            x.all_gather(comm)?;
        }
        comm.device().synchronize()
    })
    .into_iter()
    .enumerate()
    {
        println!("rank {rank}: {:?}", result.as_ref().map_err(|error| source(error).kind()));
    }
    // The devices go on, once they have said what became of earlier commands.
    for device in &devices {
        let _told = device.synchronize();
        assert_eq!(
            Tensor::ones(&[3], DType::F32, device).unwrap().sum(&[], false).unwrap().item::<f32>().unwrap(),
            3.0
        );
    }
}

/// The emulated library fails in its calls, and later.
#[test]
fn failures_of_the_library_end_all_ranks() {
    if devices().is_empty() || !crate::common::devices::emulated() {
        return println!("skipped: failures take two emulated devices");
    }
    for (failure, expected) in [
        ("ncclGetUniqueId:1", "ncclGetUniqueId"),
        ("ncclCommInitRankConfig:2", "ncclCommInitRankConfig"),
        ("ncclAllGather:3", "ncclAllGather"),
        ("ncclAllGather:1", "ncclAllGather"),
        ("ncclRun:2", "remote process exited"),
        ("ncclRun:4:5", "invalid usage"),
        ("ncclCommGetAsyncError:3", "ncclCommGetAsyncError"),
        // Codes that no version of the library has.
        ("ncclAllGather:2:4242", "code: 4242"),
        ("ncclRun:2:4243", "code: 4243"),
    ] {
        let said = said(failure);
        assert!(said.contains(expected), "{failure}: {said}");
        if said.contains("rank 0") {
            assert!(!said.contains("Ok(())"), "{failure}: {said}");
        }
    }
}

#[test]
#[ignore = "of another test"]
fn library_of_this_process() {
    println!("{:?}", NcclId::new().map_err(Error::into_kind));
}

/// What is no library, and a library that is another one.
#[test]
fn a_library_that_will_not_do_is_named() {
    let folder = std::env::temp_dir().join(format!("streamgrad-nccl-{}", std::process::id()));
    let library = folder.join("libnccl.so.2");
    std::fs::create_dir_all(&folder).unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let other = maps
        .lines()
        .find_map(|line| line.split(' ').next_back().filter(|path| path.contains("libc.so")))
        .unwrap();
    for expected in ["was not found", "has no ncclGetVersion"] {
        match expected {
            "was not found" => std::fs::write(&library, "no library").unwrap(),
            _ => {
                std::fs::remove_file(&library).unwrap();
                std::os::unix::fs::symlink(other, &library).unwrap();
            }
        }
        let environment = [("LD_LIBRARY_PATH", folder.to_str().unwrap().to_owned())];
        let output = run_ignored("cuda::library_of_this_process", &environment);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(said.contains("CommUnavailable") && said.contains(expected), "{expected}: {said}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}
