use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use tensor::{DType, Error, ErrorKind, Generator, Tensor, next_key, seed, with_generator};

use super::*;

const SCHEDULES: [PipelineSchedule; 3] =
    [PipelineSchedule::Serial, PipelineSchedule::Stages, PipelineSchedule::Measured];

/// More items than a prefetch measures on.
const MANY: usize = 120;

fn prefetch<I>(schedule: PipelineSchedule, sources: Vec<I>) -> Prefetch<I::Ok>
where
    I: Items,
{
    let options = PrefetchOptions { schedule, ..PrefetchOptions::default() };
    Prefetch::interleaved(&Device::cpu(), sources, options).unwrap()
}

/// Iterators that can be prefetched.
trait Items: Iterator<Item = Result<Self::Ok>> + Send + 'static {
    type Ok: Send + 'static;
}

impl<T: Send + 'static, I: Iterator<Item = Result<T>> + Send + 'static> Items for I {
    type Ok = T;
}

/// The numbers that each of `sources` iterators gives, of `0..MANY`.
fn strided(sources: usize) -> Vec<impl Iterator<Item = usize> + Send + 'static> {
    (0..sources).map(|first| (first..MANY).step_by(sources)).collect()
}

#[test]
fn items_come_in_order_with_the_same_bits_whoever_makes_them() {
    let dev = Device::cpu();
    let all = |schedule, sources| -> Vec<(usize, Vec<f32>)> {
        let draw = |n: usize| {
            let noise = Tensor::randn(&[3], DType::F32, None, &Device::cpu())?;
            Ok((n, noise.add_scalar(n as f64)?))
        };
        let sources = strided(sources).into_iter().map(|numbers| numbers.map(draw)).collect();
        let items = with_generator(Generator::new(7), || prefetch(schedule, sources));
        // What the taker draws meanwhile is another matter.
        let drawn = items.map(|item| {
            Tensor::randn(&[1], DType::F32, None, &dev)?;
            let (n, noise) = item?;
            Ok((n, noise.to_vec()?))
        });
        drawn.collect::<Result<_>>().unwrap()
    };
    let expected = all(PipelineSchedule::Serial, 1);
    assert!(expected.iter().map(|(n, _)| *n).eq(0..MANY));
    for schedule in SCHEDULES {
        for sources in 1..=4 {
            assert_eq!(all(schedule, sources), expected, "{schedule:?}, {sources}");
        }
    }
}

#[test]
fn making_a_prefetch_draws_nothing_from_the_thread() {
    let noise = || {
        prefetch(
            PipelineSchedule::Serial,
            vec![(0..2).map(|_| Tensor::randn(&[3], DType::F64, None, &Device::cpu())?.to_vec::<f64>())],
        )
    };
    let all = |drawn: &mut Vec<_>| drawn.extend(noise().map(Result::unwrap));
    seed(5);
    let expected = [next_key(), next_key()];
    let mut runs = [Vec::new(), Vec::new()];
    for run in &mut runs {
        seed(5);
        all(run);
        assert_eq!(next_key(), expected[0]);
        all(run);
        all(run);
        assert_eq!(next_key(), expected[1]);
    }
    assert_eq!(runs[0], runs[1], "they follow from the seed");
    for (at, item) in runs[0].iter().enumerate() {
        assert!(!runs[0][..at].contains(item), "prefetches and their items differ");
    }
}

#[test]
fn an_item_is_made_while_another_one_is_used() {
    let (made, seen) = channel();
    let items = (0..6).map(move |n| {
        made.send(n).unwrap();
        Ok(n)
    });
    for (expected, item) in prefetch(PipelineSchedule::Stages, vec![items]).enumerate() {
        assert_eq!(item.unwrap(), expected);
        // Ends only once the next one has been made.
        while expected < 5 && seen.recv_timeout(Duration::from_secs(60)).unwrap() <= expected {}
    }
}

#[test]
fn items_that_wait_are_bounded_and_nobody_makes_more_once_it_is_dropped() {
    let made = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&made);
    let items = (0..).map(move |n| {
        count.fetch_add(1, Ordering::SeqCst);
        Ok(n)
    });
    let mut items = prefetch(PipelineSchedule::Stages, vec![items]);
    for taken in 1..20 {
        items.next().unwrap().unwrap();
        std::thread::sleep(Duration::from_millis(1));
        let made = made.load(Ordering::SeqCst);
        assert!((taken..=taken + 2).contains(&made), "{made} made, {taken} taken");
    }
    drop(items);
    let last = made.load(Ordering::SeqCst);
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!((made.load(Ordering::SeqCst), Arc::strong_count(&made)), (last, 1));
}

#[test]
fn errors_and_panics_take_their_places() {
    for schedule in SCHEDULES {
        for count in 1..=3 {
            let item = |n: usize| {
                assert_ne!(n, 50, "fifty is bad");
                if n == 10 { Err(Error::invalid("load", "n", "not 10", n)) } else { Ok(n) }
            };
            let sources = strided(count).into_iter().map(|numbers| numbers.map(item)).collect();
            let mut items = prefetch(schedule, sources);
            for n in 0..50 {
                match items.next().unwrap() {
                    Ok(item) => assert_eq!(item, n),
                    Err(error) => {
                        assert!(
                            n == 10 && matches!(error.kind(), ErrorKind::InvalidArgument { .. }),
                            "{n}: {error}"
                        );
                    }
                }
            }
            let error = items.next().unwrap().unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Stage { batch: 50, .. }), "{error}");
            assert!(error.to_string().contains("fifty is bad"), "{error}");
            assert!(items.next().is_none() && items.next().is_none(), "{count}");
        }
    }
}

#[test]
fn threads_are_used_where_they_were_measured_to_be_faster() {
    let wait = || std::thread::sleep(Duration::from_millis(2));
    let slow = (0..MANY).map(move |n| {
        wait();
        Ok(n)
    });
    let mut items = prefetch(PipelineSchedule::Measured, vec![slow]);
    assert_eq!(items.report().threads, 0, "nothing is measured yet");
    items.by_ref().for_each(|_| wait());
    let report = items.report();
    let (Some(serial), Some(ahead)) = (report.serial_ms, report.concurrent_ms) else { panic!("{report}") };
    // A machine that is busy may hide the gain.
    assert!(report.threads == 0 || ahead < serial, "{report}");
}

#[test]
fn no_depth_and_no_iterators_are_errors() {
    let none = PrefetchOptions { depth: 0, ..PrefetchOptions::default() };
    let of = |count: usize, options| {
        Prefetch::interleaved(&Device::cpu(), vec![vec![Ok(1)]; count], options).map(drop)
    };
    assert!(matches!(
        of(1, none).as_ref().map_err(Error::kind),
        Err(ErrorKind::InvalidArgument { argument: "depth", .. })
    ));
    let none = of(0, PrefetchOptions::default());
    assert!(matches!(
        none.as_ref().map_err(Error::kind),
        Err(ErrorKind::InvalidArgument { argument: "sources", .. })
    ));
}
