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
    let x = Tensor::normal(1.0, 2.0, &[n], DType::F64, KEY, &device)?;
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
    assert!(invalid(Tensor::normal(0.0, f64::NAN, &[2], DType::F32, KEY, &device)));
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

#[test]
fn permutations_have_every_number_once() -> Result<()> {
    let device = device();
    for n in [0, 1, 7, 5000] {
        let order = Tensor::randperm(n, KEY, &device)?.to_vec::<i64>()?;
        assert_eq!(order, Tensor::randperm(n, KEY, &device)?.to_vec::<i64>()?);
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..n as i64));
        assert!(n < 2 || !order.is_sorted());
    }
    Ok(())
}

/// Draws are in proportion to the weights, without weight never, and without replacement never twice.
#[test]
fn indices_are_drawn_by_weight() -> Result<()> {
    let device = device();
    let rows = [[0.0_f32, 1.0, 3.0, 0.0, 6.0], [2.0, 2.0, 0.0, 2.0, 2.0]];
    let weights = Tensor::from_slice(rows.as_flattened(), &[2, 5], &device)?;
    let n = 40_000;
    let drawn = weights.multinomial(n, true, KEY)?;
    assert_eq!((drawn.shape(), drawn.dtype()), (&[2, n][..], DType::I64));
    for (row, drawn) in rows.iter().zip(drawn.to_vec::<i64>()?.chunks(n)) {
        for (at, weight) in (0..).zip(row) {
            let (share, p) =
                (drawn.iter().filter(|&&index| index == at).count() as f32, weight / row.iter().sum::<f32>());
            // Five standard deviations.
            assert!((share - n as f32 * p).abs() <= 5.0 * (n as f32 * p * (1.0 - p)).sqrt(), "{at}: {share}");
        }
    }
    let mut firsts = [0; 5];
    for seed in 0..2000 {
        let drawn = weights.multinomial(3, false, RandomKey { seed, op: 0 })?.to_vec::<i64>()?;
        let mut first = drawn[..3].to_vec();
        firsts[first[0] as usize] += 1;
        first.sort_unstable();
        assert_eq!(first, [1, 2, 4]);
        assert!(drawn[3] != drawn[4] && drawn[4] != drawn[5] && !drawn[3..].contains(&2));
    }
    assert!((firsts[4] - 1200_i32).abs() < 110 && (firsts[2] - 600_i32).abs() < 103, "{firsts:?}");
    let message =
        |x: &Tensor, samples| x.multinomial(samples, false, KEY).err().map(|error| error.to_string());
    let refused = |x: &Tensor, samples, what: &str| {
        let message = message(x, samples);
        assert!(
            message
                .as_ref()
                .is_some_and(|message| message.starts_with("multinomial: ") && message.contains(what)),
            "{message:?}"
        );
    };
    refused(&weights, 6, "6 of 5");
    refused(&weights.to_dtype(DType::I64)?, 1, "i64");
    refused(&Tensor::ones(&[], DType::F32, &device)?, 1, "a scalar");
    Ok(())
}
