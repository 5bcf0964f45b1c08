//! Random numbers depend on their key and nothing else.

use device::Result;
use tensor::{DType, Error, ErrorKind, Generator, RandomKey, Tensor, next_key, seed};

use crate::on::device;

const KEY: RandomKey = RandomKey { seed: 5, op: 9 };

#[test]
fn the_same_key_gives_the_same_numbers_on_every_stream() -> Result<()> {
    let device = device();
    let draw = || Tensor::randn(&[257], DType::F32, KEY, &device);
    let first = draw()?.to_vec::<f32>()?;
    let stream = device.new_stream()?;
    let second = stream.scope(draw)?.to_vec::<f32>()?;
    assert_eq!(first, second);
    let other = Tensor::randn(&[257], DType::F32, RandomKey { seed: 5, op: 10 }, &device)?;
    assert_ne!(first, other.to_vec::<f32>()?);
    assert_eq!(first, other.randn_like(KEY)?.to_vec::<f32>()?);
    Ok(())
}

#[test]
fn the_default_generator_restarts_with_its_seed() -> Result<()> {
    let device = device();
    let draw = || Tensor::rand(&[8], DType::F64, None, &device)?.to_vec::<f64>();
    seed(3);
    let (first, second) = (draw()?, draw()?);
    assert_ne!(first, second);
    seed(3);
    assert_eq!((first, second), (draw()?, draw()?));
    seed(3);
    assert_eq!(next_key(), Generator::new(3).next_key());
    Ok(())
}

#[test]
fn values_lie_where_they_should() -> Result<()> {
    let device = device();
    let n = 20_000;
    let x = Tensor::uniform(&[n], -2.0, 3.0, DType::F32, KEY, &device)?;
    let (low, high) = (x.min(&[], false)?.item::<f32>()?, x.max(&[], false)?.item::<f32>()?);
    assert!((-2.0..-1.99).contains(&low) && (2.99..3.0).contains(&high), "{low} {high}");
    let x = Tensor::normal(&[n], 1.0, 2.0, DType::F64, KEY, &device)?;
    let (mean, var) = (x.mean(&[], false)?.item::<f64>()?, x.var(&[], 1.0, false)?.item::<f64>()?);
    assert!((mean - 1.0).abs() < 0.06 && (var - 4.0).abs() < 0.2, "{mean} {var}");
    let x = Tensor::randint(-2, 2, &[n], DType::I64, KEY, &device)?.to_vec::<i64>()?;
    for value in -2..2 {
        let share = x.iter().filter(|&&v| v == value).count() as f64 / n as f64;
        assert!((share - 0.25).abs() < 0.02, "{value}: {share}");
    }
    Ok(())
}

#[test]
fn dropout_scales_what_it_keeps() -> Result<()> {
    let x = Tensor::ones(&[100, 100], DType::F64, &device())?;
    let y = x.dropout(0.25, KEY)?;
    assert!(y.to_vec::<f64>()?.iter().all(|&v| v == 0.0 || (v - 4.0 / 3.0).abs() < 1e-12));
    assert!((y.mean(&[], false)?.item::<f64>()? - 1.0).abs() < 0.03);
    // The mask depends on the place of an element, not on how it is stored.
    assert_eq!(x.t()?.dropout(0.25, KEY)?.to_vec::<f64>()?, y.to_vec::<f64>()?);
    assert_eq!(x.dropout(0.0, KEY)?.to_vec::<f64>()?, x.to_vec::<f64>()?);
    assert_eq!(x.dropout(1.0, KEY)?.sum(&[], false)?.item::<f64>()?, 0.0);
    for p in [-0.1, 1.1, f64::NAN] {
        assert!(matches!(
            x.dropout(p, KEY).as_ref().map_err(Error::kind),
            Err(ErrorKind::InvalidArgument { argument: "p", .. })
        ));
    }
    Ok(())
}

#[test]
fn empty_ranges_and_wrong_types_are_refused() {
    let device = device();
    let invalid =
        |x: Result<Tensor>| matches!(x.as_ref().map_err(Error::kind), Err(ErrorKind::InvalidArgument { .. }));
    assert!(invalid(Tensor::randint(3, 3, &[2], DType::I64, KEY, &device)));
    assert!(invalid(Tensor::uniform(&[2], 1.0, 0.0, DType::F32, KEY, &device)));
    assert!(invalid(Tensor::normal(&[2], 0.0, f64::NAN, DType::F32, KEY, &device)));
    let wrong = Tensor::randn(&[2], DType::I64, KEY, &device);
    assert!(matches!(
        wrong.as_ref().map_err(Error::kind),
        Err(ErrorKind::DTypeUnsupported { dtype: DType::I64, .. })
    ));
}

/// Threads that were not given a seed.
#[test]
fn threads_draw_random_numbers_of_their_own() {
    let draw = |name: Option<&str>, draws: usize| {
        let thread = std::thread::Builder::new();
        let thread = name.into_iter().fold(thread, |thread, name| thread.name(name.to_owned()));
        let keys = move || (0..draws).map(|_| tensor::next_key()).collect::<Vec<_>>();
        thread.spawn(keys).expect("a thread").join().expect("no panic")
    };
    let keys =
        [draw(None, 2), draw(None, 2), draw(Some("one"), 2), draw(Some("two"), 2), draw(Some("one"), 2)];
    for (at, key) in keys.iter().flatten().enumerate() {
        assert!(!keys.iter().flatten().skip(at + 1).any(|other| other == key), "{keys:?}");
    }
    // What a thread is given is what it draws, and a thread that only draws under a generator uses up no name.
    let with = std::thread::Builder::new().name("three".into());
    let with =
        with.spawn(|| tensor::with_generator(tensor::Generator::new(3), tensor::next_key)).expect("a thread");
    assert_eq!(with.join().expect("no panic"), tensor::Generator::new(3).next_key());
    let seeded = std::thread::spawn(|| {
        tensor::seed(3);
        tensor::next_key()
    });
    assert_eq!(seeded.join().expect("no panic"), tensor::Generator::new(3).next_key());
}
