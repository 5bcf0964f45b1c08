//! Files with some bytes changed: reading one returns what it holds or a typed error, and neither panics nor asks for memory that
//! the file cannot fill. Every run changes others: `STREAMGRAD_MUTATED_SEED` repeats one.
#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::path::Path;

use device::{Device, ErrorKind, Result};
use flate2::{Compression, write::GzEncoder};
use models::checkpoint::{self, Extra, Progress};
use models::data::{CsvOptions, idx, npy, npz};
use models::{Adam, InMemory, Linear, Module, TensorDataset};
use tensor::{DType, Tensor};

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) % end.max(1) as u64) as usize
    }
}

/// The bytes with one to four changes, many of them near the beginning, where headers are.
fn mutated(whole: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = whole.to_vec();
    for _ in 0..=random.below(4) {
        let end = if random.below(2) == 0 { bytes.len().min(100) } else { bytes.len() };
        let at = random.below(end);
        let until = bytes.len().min(at + 1 + random.below(8));
        match random.below(6) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..until)),
            2 => bytes
                .splice(at..at, whole[at.min(whole.len())..until.min(whole.len())].to_vec())
                .for_each(drop),
            3 => bytes[at..until].fill([0, 0xff, 0x7f, 0x80, b'9', b'"'][random.below(6)]),
            _ if bytes.is_empty() => {}
            4 => bytes[at] ^= 1 << random.below(8),
            _ => bytes[at] = *b"0123456789,;-{}[]()'\"\n\\<>|=.eFx\0".get(random.below(34)).unwrap_or(&b' '),
        }
    }
    bytes
}

/// Reads mutations of a file that `write` writes.
fn check(name: &str, write: impl Fn(&Path) -> Result<()>, read: impl Fn(&Path) -> Result<()>) {
    let seed = std::env::var("STREAMGRAD_MUTATED_SEED").map(|seed| seed.parse().unwrap());
    let seed = seed.unwrap_or_else(|_| std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64);
    println!("STREAMGRAD_MUTATED_SEED={seed}");
    let path = std::env::temp_dir().join(format!("streamgrad-mutated-{}-{name}", std::process::id()));
    write(&path).unwrap();
    read(&path).unwrap();
    let (whole, mut random, mut refused) = (std::fs::read(&path).unwrap(), Random(seed), 0);
    for _ in 0..1000 {
        std::fs::write(&path, mutated(&whole, &mut random)).unwrap();
        let Err(error) = read(&path) else { continue };
        refused += 1;
        assert!(!matches!(error.kind(), ErrorKind::OutOfMemory { .. } | ErrorKind::Async { .. }), "{error}");
    }
    std::fs::remove_file(path).unwrap();
    assert!(refused > 100, "{refused} of 1000 mutations were refused");
}

fn array() -> Tensor {
    Tensor::arange(0, 12, 1, DType::F32, &Device::cpu()).and_then(|x| x.reshape(&[3, 4])).unwrap()
}

#[test]
fn arrays_and_archives() {
    let read = |path: &Path| npy::load(path, &Device::cpu()).map(drop);
    check("npy", |path| npy::save(path, &array()), read);
    let read = |path: &Path| npz::load(path, &Device::cpu()).map(drop);
    check("npz", |path| npz::save(path, &[("x", &array()), ("y", &array())]), read);
    let compressed = include_bytes!("../../tests/data/two.npz");
    check("compressed", |path| device::file::write(path, compressed), read);
}

#[test]
fn images() {
    let mut bytes = vec![0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4];
    bytes.extend(0..24);
    let read = |path: &Path| idx::load(path, &Device::cpu()).map(drop);
    check("idx", |path| device::file::write(path, &bytes), read);
    let mut zipped = GzEncoder::new(Vec::new(), Compression::default());
    zipped.write_all(&bytes).unwrap();
    let zipped = zipped.finish().unwrap();
    check("idx.gz", |path| device::file::write(path, &zipped), read);
}

#[test]
fn tables() {
    let text = "width,height,class\n1.5,-2,0\n3e4,\"4\",1\n0.25,1,1\n";
    let write = |path: &Path| device::file::write(path, text.as_bytes());
    check("csv", write, |path| InMemory::read_csv(path, 2, &CsvOptions::default()).map(drop));
    check("targets", write, |path| TensorDataset::read_csv(path, &CsvOptions::default()).map(drop));
}

/// What could not be read has changed nothing.
#[test]
fn checkpoints() {
    let dev = Device::cpu();
    let model = Linear::new(3, 2, &dev).unwrap();
    let adam = Adam::new(model.parameters(), 0.1).unwrap();
    let extra = Extra::default().with("best", 0.5).with("mean", array());
    let write =
        |path: &Path| checkpoint::save_training_with(path, &model, &adam, Progress::default(), &extra);
    check("read", write, |path| {
        let file = checkpoint::read(path)?;
        file.names().try_for_each(|name| file.tensor(name, &dev).map(drop))
    });
    let other = Linear::new(3, 2, &dev).unwrap();
    let step = std::cell::RefCell::new(Adam::new(other.parameters(), 0.1).unwrap());
    let values = || other.weight().value().contiguous().and_then(|weight| weight.to_vec::<f32>()).unwrap();
    check("training", write, |path| {
        let old = values();
        let loaded = checkpoint::load_training_with(path, &other, &mut *step.borrow_mut()).map(drop);
        assert!(loaded.is_ok() || values() == old, "{loaded:?}");
        loaded
    });
}
