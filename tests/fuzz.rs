//! Fuzz targets: random bytes as checkpoints and as arrays of NumPy, and random views of views.
//!
//! `cargo test` runs each for a moment. `cargo bolero test --test fuzz checkpoints` runs one under libFuzzer, guided by
//! coverage; without it, `BOLERO_RANDOM_TEST_TIME_MS` and `BOLERO_RANDOM_ITERATIONS` say for how long.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::sync::Mutex;

use streamgrad::models::data::npy;
use streamgrad::nn::mlp;
use streamgrad::optim::{Sgd, SgdOptions};
use streamgrad::prelude::*;
use streamgrad::{CpuConfig, Layout, checkpoint};

/// Numbers made of a fuzzer's bytes; beyond their end, of what they add up to.
struct Random<'a> {
    bytes: &'a [u8],
    state: u64,
}

impl Random<'_> {
    fn of(bytes: &[u8]) -> Random<'_> {
        Random { bytes, state: bytes.iter().fold(7, |sum, &byte| sum * 31 % 0xffff_fffb + u64::from(byte)) }
    }

    fn next(&mut self) -> u64 {
        if let Some((head, rest)) = self.bytes.split_first_chunk::<4>() {
            self.bytes = rest;
            return u64::from(u32::from_le_bytes(*head));
        }
        // SplitMix64: every seed, small ones too, gives a sequence of its own.
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    /// Mostly a sensible number, now and then an absurd one.
    fn size(&mut self, sensible: usize) -> usize {
        match self.below(24) {
            0 => usize::MAX - self.below(3),
            1 => (isize::MAX as usize) + self.below(3),
            2 => 1 << self.below(64),
            _ => self.below(sensible),
        }
    }

    fn axis(&mut self, rank: usize) -> isize {
        match self.below(16) {
            0 => [isize::MIN, isize::MAX, -1 - rank as isize, rank as isize][self.below(4)],
            _ => self.below(2 * rank + 1) as isize - rank as isize,
        }
    }
}

/// Where the elements of a layout are, in row-major order of their indices.
fn positions(layout: &Layout) -> Vec<usize> {
    if layout.elements() == 0 {
        return Vec::new();
    }
    let mut places = vec![layout.offset() as isize];
    for (&size, &stride) in layout.shape().iter().zip(layout.strides()) {
        places = places.iter().flat_map(|&at| (0..size as isize).map(move |i| at + i * stride)).collect();
    }
    places.into_iter().map(|at| usize::try_from(at).unwrap()).collect()
}

/// Elements of an array of `shape` in the order of another one, whose index `i` comes from index `from(i)`.
fn rearranged(
    old: &[usize],
    shape: &[usize],
    new: &[usize],
    from: impl Fn(&[usize]) -> Vec<usize>,
) -> Vec<usize> {
    // A shape with a 0 may have absurd other sizes.
    let count = if new.contains(&0) { 0 } else { new.iter().product() };
    let at = |mut flat: usize| {
        let mut index = vec![0; new.len()];
        for (place, &size) in index.iter_mut().zip(new).rev() {
            (*place, flat) = (flat % size, flat / size);
        }
        from(&index).iter().zip(shape).fold(0, |flat, (&i, &size)| flat * size + i)
    };
    (0..count).map(|flat| old[at(flat)]).collect()
}

#[test]
fn views_of_views_stay_inside_and_in_order() {
    const MOST: usize = 2000;
    bolero::check!().with_type::<Vec<u8>>().for_each(|bytes| {
        let random = &mut Random::of(bytes);
        let mut shape: Vec<usize> = (0..random.below(6)).map(|_| random.size(7)).collect();
        // Whatever the sizes are, asking is harmless.
        let wild = Layout::contiguous(&shape);
        let _ = (wild.elements(), wild.end(), wild.is_dense(), wild.is_uniform(), wild.overlaps_itself());
        shape.iter_mut().for_each(|size| *size %= 7);
        let mut layout = Layout::contiguous(&shape);
        if layout.elements() > MOST {
            return;
        }
        let reserved = layout.elements();
        let mut model: Vec<usize> = (0..reserved).collect();
        for _ in 0..8 {
            let old = layout.shape().to_vec();
            let rank = old.len();
            let next = match random.below(7) {
                0 => {
                    let mut wanted: Vec<usize> = (0..random.below(5)).map(|_| random.size(9)).collect();
                    if random.below(2) == 0 {
                        wanted = old.clone();
                        wanted.reverse();
                    }
                    let Ok(Some(next)) = layout.reshape("fuzz", &wanted) else { continue };
                    assert_eq!(next.shape(), wanted);
                    next
                }
                1 => {
                    let mut axes: Vec<usize> = (0..rank).collect();
                    (1..rank).for_each(|i| axes.swap(i, random.below(i + 1)));
                    if random.below(8) == 0 {
                        axes.push(random.size(4));
                    }
                    let Ok(next) = layout.permute("fuzz", &axes) else { continue };
                    let back = |index: &[usize]| {
                        let mut old = vec![0; rank];
                        axes.iter().zip(index).for_each(|(&axis, &i)| old[axis] = i);
                        old
                    };
                    model = rearranged(&model, &old, next.shape(), back);
                    next
                }
                2 => {
                    let (a, b) = (random.axis(rank), random.axis(rank));
                    let Ok(next) = layout.transpose("fuzz", a, b) else { continue };
                    let place = |axis: isize| axis.rem_euclid(rank as isize) as usize;
                    let back = |index: &[usize]| {
                        let mut old = index.to_vec();
                        old.swap(place(a), place(b));
                        old
                    };
                    model = rearranged(&model, &old, next.shape(), back);
                    next
                }
                3 => {
                    let (axis, start, len) = (random.axis(rank), random.size(8), random.size(8));
                    let Ok(next) = layout.narrow("fuzz", axis, start, len) else { continue };
                    let place = axis.rem_euclid(rank as isize) as usize;
                    assert!(start + len <= old[place]);
                    let back = |index: &[usize]| {
                        let mut old = index.to_vec();
                        old[place] += start;
                        old
                    };
                    model = rearranged(&model, &old, next.shape(), back);
                    next
                }
                4 => {
                    let mut wanted = old.clone();
                    wanted.iter_mut().filter(|size| **size == 1).for_each(|size| *size = random.size(5));
                    (0..random.below(2)).for_each(|_| wanted.insert(0, random.size(4)));
                    let Ok(next) = layout.expand("fuzz", &wanted) else { continue };
                    if next.elements() > MOST {
                        let _ = (next.end(), next.is_dense(), next.overlaps_itself());
                        continue;
                    }
                    let more = next.rank() - rank;
                    let back = |index: &[usize]| {
                        index[more..]
                            .iter()
                            .zip(&old)
                            .map(|(&i, &size)| if size == 1 { 0 } else { i })
                            .collect()
                    };
                    model = rearranged(&model, &old, next.shape(), back);
                    next
                }
                5 => match layout.squeeze("fuzz", random.axis(rank)) {
                    Ok(next) => next,
                    Err(_) => continue,
                },
                _ => match layout.unsqueeze("fuzz", random.axis(rank + 1)) {
                    Ok(next) if next.rank() < 9 => next,
                    _ => continue,
                },
            };
            layout = next;
            assert_eq!(layout.elements(), model.len());
            assert_eq!(positions(&layout), model, "{layout:?}");
            assert!(layout.end() <= reserved, "{layout:?} reaches out of {reserved}");
            assert!(model.iter().max().is_none_or(|&last| last < layout.end()));
            let in_order = model.windows(2).all(|pair| pair[1] == pair[0] + 1);
            assert_eq!(layout.is_contiguous(), in_order || model.is_empty(), "{layout:?}");
        }
    });
}

/// A change that a disk or a person may make to a file that begins with a header.
fn damage(random: &mut Random<'_>, bytes: &mut Vec<u8>, header: usize) {
    // Mostly in the header, where the sense is.
    let near = if random.below(4) > 0 { header.min(bytes.len()) } else { bytes.len() };
    let at = random.below(near);
    match random.below(8) {
        0 => bytes.truncate(random.below(bytes.len() + 1)),
        1 if !bytes.is_empty() => bytes[at] ^= 1 << random.below(8),
        2 => bytes.insert(at, random.next() as u8),
        3 if !bytes.is_empty() => drop(bytes.remove(at)),
        4 => {
            let length = random.size(10_000) as u64;
            bytes.splice(..8.min(bytes.len()), length.to_le_bytes());
        }
        5 => {
            let digits: Vec<usize> = (0..near).filter(|&i| bytes[i].is_ascii_digit()).collect();
            if !digits.is_empty() {
                bytes[digits[random.below(digits.len())]] = b'0' + random.below(10) as u8;
            }
        }
        6 => {
            let words = ["F64", "BF16", "-1", "18446744073709551615", "null", "[]", "{}", "\"\"", "1e9"];
            let word = words[random.below(words.len())].bytes();
            let end = (at + random.below(6)).min(bytes.len());
            bytes.splice(at..end, word);
        }
        _ => {
            let (from, to) = (random.below(near), random.below(near));
            if from < to {
                let copy = bytes[from..to].to_vec();
                bytes.splice(at..at, copy);
            }
        }
    }
}

/// A model whose checkpoints get damaged.
struct Training {
    model: streamgrad::nn::Sequential,
    sgd: Sgd,
    /// Checkpoints without damage.
    sound: [Vec<u8>; 2],
    directory: PathBuf,
    refused: usize,
}

impl Training {
    fn new() -> Training {
        let device = Device::cpu_with(CpuConfig { threads: Some(1), ..CpuConfig::default() });
        let model = mlp(&[5, 4, 3], 1, &device).unwrap();
        let options = SgdOptions { lr: 0.1, momentum: 0.9, ..SgdOptions::default() };
        let sgd = Sgd::new(model.parameters(), options).unwrap();
        let directory = std::env::temp_dir().join(format!("streamgrad-fuzz-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let (plain, training) = (directory.join("plain"), directory.join("training"));
        checkpoint::save(&plain, &model).unwrap();
        checkpoint::save_training(&training, &model, &sgd, Default::default()).unwrap();
        let sound = [std::fs::read(&plain).unwrap(), std::fs::read(&training).unwrap()];
        Training { model, sgd, sound, directory, refused: 0 }
    }

    fn values(&self) -> Vec<Vec<u32>> {
        let bits = |var: &Var| var.value().to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect();
        self.model.parameters().iter().map(bits).collect()
    }

    /// Loads a damaged checkpoint: it may still be one, or is an error that changes nothing.
    fn load_damaged(&mut self, random: &mut Random<'_>) {
        let mut bytes = self.sound[random.below(2)].clone();
        let header = 8 + u64::from_le_bytes(bytes.first_chunk().copied().unwrap_or_default()).min(4096);
        (0..1 + random.below(4)).for_each(|_| damage(random, &mut bytes, header as usize));
        let file = self.directory.join("damaged");
        std::fs::write(&file, &bytes).unwrap();
        let before = self.values();
        let outcome = match random.below(2) {
            0 => checkpoint::load(&file, &self.model),
            _ => checkpoint::load_training(&file, &self.model, &mut self.sgd).map(drop),
        };
        if let Err(error) = outcome {
            self.refused += 1;
            assert!(!error.to_string().is_empty());
            assert_eq!(self.values(), before, "{error}");
        }
    }
}

#[test]
fn damaged_checkpoints_are_errors_that_change_nothing() {
    let training = Mutex::new(Training::new());
    bolero::check!()
        .with_type::<Vec<u8>>()
        .for_each(|bytes| training.lock().unwrap().load_damaged(&mut Random::of(bytes)));
    let training = training.into_inner().unwrap();
    assert!(training.refused > 0);
    std::fs::remove_dir_all(&training.directory).unwrap();
}

/// A damaged `.npy` file is an array, which then is written and read as the same one, or an error.
#[test]
fn damaged_arrays_are_errors() {
    struct Arrays {
        device: Device,
        sound: Vec<Vec<u8>>,
        /// Arrays, and errors.
        outcomes: [u32; 2],
    }
    let device = Device::cpu_with(CpuConfig { threads: Some(1), ..CpuConfig::default() });
    let bytes = |dtype| npy::to_bytes(&Tensor::zeros(&[2, 3], dtype, &device).unwrap()).unwrap();
    let sound = [DType::F32, DType::F64, DType::I64, DType::U8, DType::Bool].map(bytes).into();
    let arrays = Mutex::new(Arrays { device, sound, outcomes: [0; 2] });
    bolero::check!().with_type::<Vec<u8>>().for_each(|bytes| {
        let random = &mut Random::of(bytes);
        let Arrays { device, sound, outcomes } = &mut *arrays.lock().unwrap();
        let mut bytes = sound[random.below(sound.len())].clone();
        (0..random.below(4)).for_each(|_| damage(random, &mut bytes, 74));
        let outcome = npy::parse("fuzz", &bytes, device);
        outcomes[usize::from(outcome.is_err())] += 1;
        match outcome {
            Ok(array) => {
                let written = npy::to_bytes(&array).unwrap();
                let again = npy::parse("again", &written, device).unwrap();
                assert_eq!((again.shape(), again.dtype()), (array.shape(), array.dtype()));
                assert_eq!(npy::to_bytes(&again).unwrap(), written);
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    });
    assert!(arrays.into_inner().unwrap().outcomes.iter().all(|&count| count > 0));
}
