//! NumPy's `.npz` files: zip archives with a `.npy` file for each array.

use std::collections::BTreeMap;
use std::io::{Cursor, Read, Write};
use std::path::Path;

use device::{Device, Error, Result};
use tensor::Tensor;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

use super::{malformed, npy};
use crate::file;

/// Reads the arrays of a file that `numpy.savez` or `numpy.savez_compressed` wrote, under their names. See [`npy::load`].
///
/// ```
/// use models::data::npz;
/// use tensor::{Device, Tensor};
/// # fn main() -> device::Result<()> {
/// let path = std::env::temp_dir().join(format!("streamgrad-doc-{}.npz", std::process::id()));
/// npz::save(&path, &[("x", &Tensor::from_slice(&[1_u8, 2], &[2], &Device::cpu())?)])?;
/// let arrays = npz::load(&path, &Device::cpu())?;
/// assert_eq!(arrays["x"].to_vec::<u8>()?, [1, 2]);
/// # std::fs::remove_file(path).ok();
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `Io` if the file cannot be read; `Format` if it is no zip archive, or with the name of a member that is damaged, encrypted or no
/// array; `OutOfMemory`.
#[derive::located]
pub fn load(path: impl AsRef<Path>, device: &Device) -> Result<BTreeMap<String, Tensor>> {
    let path = path.as_ref();
    parse(&path.display().to_string(), &file::read(path)?, device)
}

/// Reads the arrays from the bytes of a `.npz` file; `name` is for the messages. See [`load`].
///
/// # Errors
/// `Format`, `OutOfMemory`.
pub fn parse(name: &str, bytes: &[u8], device: &Device) -> Result<BTreeMap<String, Tensor>> {
    let mut archive = ZipArchive::new(Cursor::new(bytes)).map_err(|error| malformed(name, error))?;
    let mut arrays = BTreeMap::new();
    for index in 0..archive.len() {
        let wrong = |error: &dyn std::fmt::Display| malformed(name, format_args!("member {index}: {error}"));
        let member = archive.by_index(index).map_err(|error| wrong(&error))?;
        let (path, size) = (member.name().map_err(|error| wrong(&error))?.into_owned(), member.size());
        let mut content = Vec::new();
        // The size is what the archive says. The checksum is compared where the member ends, so one byte more is asked for.
        usize::try_from(size)
            .map_err(|error| wrong(&error))
            .and_then(|size| content.try_reserve_exact(size).map_err(|error| wrong(&error)))?;
        member.take(size.saturating_add(1)).read_to_end(&mut content).map_err(|error| wrong(&error))?;
        let array = npy::parse(&format!("{name}: {path}"), &content, device)?;
        arrays.insert(path.strip_suffix(".npy").unwrap_or(&path).to_owned(), array);
    }
    Ok(arrays)
}

/// Writes arrays under their names, uncompressed as `numpy.savez` does, in place of the file that is there. Waits for the last write of
/// each tensor.
///
/// # Errors
/// As [`npy::save`]; `InvalidArgument` for a name that is there twice, and for more than zip archives hold.
#[derive::located]
pub fn save(path: impl AsRef<Path>, arrays: &[(&str, &Tensor)]) -> Result<()> {
    let mut archive = ZipWriter::new(Cursor::new(Vec::new())).set_auto_large_file();
    let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
    for (name, array) in arrays {
        let content = npy::to_bytes(array)?;
        let refused = |error: &dyn std::fmt::Display| {
            Error::invalid("npz", "arrays", "members of a zip archive", format_args!("{name:?}: {error}"))
        };
        archive.start_file(format!("{name}.npy"), options).map_err(|error| refused(&error))?;
        archive.write_all(&content).map_err(|error| refused(&error))?;
    }
    let refused = |error| Error::invalid("npz", "arrays", "members of a zip archive", error);
    file::write(path, &archive.finish().map_err(refused)?.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `numpy.savez_compressed` wrote these bytes for `x=[[1, 2], [3, 4]]` of int32 and `y=[0.5]` of float64.
    const COMPRESSED: &[u8] = include_bytes!("../../../tests/data/two.npz");

    #[test]
    fn files_of_numpy() {
        let arrays = parse("two.npz", COMPRESSED, &Device::cpu()).unwrap();
        assert_eq!(arrays.keys().collect::<Vec<_>>(), ["x", "y"]);
        assert_eq!(
            (arrays["x"].shape(), arrays["x"].to_vec::<i64>().unwrap()),
            (&[2, 2][..], vec![1, 2, 3, 4])
        );
        assert_eq!(arrays["y"].to_vec::<f64>().unwrap(), [0.5]);
    }

    #[test]
    fn what_is_wrong_is_said() {
        let message = |bytes: &[u8]| parse("x.npz", bytes, &Device::cpu()).unwrap_err().to_string();
        assert!(message(b"").starts_with("x.npz: "));
        for end in 0..COMPRESSED.len() {
            assert!(message(&COMPRESSED[..end]).starts_with("x.npz: "));
        }
        let mut damaged = COMPRESSED.to_vec();
        damaged[60] ^= 1;
        assert!(message(&damaged).starts_with("x.npz: member 0: "), "{}", message(&damaged));
        // No byte that is changed makes it panic.
        for at in 0..COMPRESSED.len() {
            let mut changed = COMPRESSED.to_vec();
            changed[at] = !changed[at];
            let _ = parse("x.npz", &changed, &Device::cpu());
        }
        let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
        archive.start_file("note.txt", SimpleFileOptions::default()).unwrap();
        let archive = archive.finish().unwrap().into_inner();
        assert_eq!(message(&archive), "x.npz: note.txt: it does not begin like a .npy file");
        let one = Tensor::ones(&[1], device::DType::F32, &Device::cpu()).unwrap();
        let path = std::env::temp_dir().join(format!("streamgrad-npz-{}", std::process::id()));
        let error = save(&path, &[("a", &one), ("a", &one)]).unwrap_err().to_string();
        assert!(error.starts_with("npz: arrays must be members of a zip archive, got \"a\": "), "{error}");
        assert!(!path.exists());
    }
}
