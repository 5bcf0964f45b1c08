//! The IDX files of MNIST and its relatives: one array each, perhaps compressed by gzip.

use std::io::Read;
use std::path::Path;

use device::{DType, Device, Result};
use flate2::read::MultiGzDecoder;
use tensor::Tensor;

use super::stored::Stored;
use super::{TensorDataset, malformed};
use crate::file;

/// Reads the array in an IDX file, such as MNIST's images `[n, 28, 28]` or its labels `[n]`, both U8. Integers of other widths become I64.
///
/// # Errors
/// `Io` if the file cannot be read; `Format` for anything in it that is not such an array, whole and without bytes behind it;
/// `OutOfMemory`.
#[derive::located]
pub fn load(path: impl AsRef<Path>, device: &Device) -> Result<Tensor> {
    let path = path.as_ref();
    parse(&path.display().to_string(), &file::read(path)?, device)
}

/// Reads an array from the bytes of an IDX file; `name` is for the messages. See [`load`].
///
/// # Errors
/// `Format`, `OutOfMemory`.
pub fn parse(name: &str, bytes: &[u8], device: &Device) -> Result<Tensor> {
    let read = if bytes.starts_with(&[0x1f, 0x8b]) {
        elements(&mut MultiGzDecoder::new(bytes))
    } else {
        elements(&mut &*bytes)
    };
    let (stored, shape, data) = read.map_err(|detail| malformed(name, detail))?;
    Tensor::from_bytes(&data, &shape, stored.dtype, device)
}

/// Two zero bytes, the type, the number of axes, their sizes, and the elements, all big endian.
fn elements(file: &mut dyn Read) -> Result<(Stored, Vec<usize>, Vec<u8>), String> {
    let mut read = |what: &str| {
        let mut bytes = [0; 4];
        file.read_exact(&mut bytes).map_err(|error| format!("{what}: {error}")).map(|()| bytes)
    };
    let [zero, zero_too, kind, axes] = read("the first 4 bytes")?;
    if [zero, zero_too] != [0, 0] {
        return Err("it does not begin like an IDX file".into());
    }
    let stored = match kind {
        0x08 => Stored::new('u', 1, true),
        0x09 => Stored::new('i', 1, true),
        0x0b => Stored::new('i', 2, true),
        0x0c => Stored::new('i', 4, true),
        0x0d => Stored::new('f', 4, true),
        0x0e => Stored::new('f', 8, true),
        _ => None,
    };
    let stored = stored.ok_or_else(|| format!("elements of the unknown type {kind:#04x}"))?;
    let size = |_| read("the sizes of the axes").map(|bytes| u32::from_be_bytes(bytes) as usize);
    let shape = (0..axes).map(size).collect::<Result<Vec<usize>, String>>()?;
    let needed = shape.iter().try_fold(stored.size, |bytes, &size| bytes.checked_mul(size));
    let needed = needed.ok_or_else(|| format!("shape {shape:?} is beyond all memory"))?;
    let mut data = Vec::new();
    // One byte more shows whether there are any behind the array.
    file.take((needed as u64).saturating_add(1))
        .read_to_end(&mut data)
        .map_err(|error| format!("the elements: {error}"))?;
    if data.len() != needed {
        let found = if data.len() > needed { "more".to_owned() } else { data.len().to_string() };
        return Err(format!("{found} bytes of elements, where shape {shape:?} has {needed}"));
    }
    Ok((stored, shape, stored.decode(data)?))
}

#[derive::located]
impl TensorDataset {
    /// Reads a pair of IDX files, such as MNIST's `train-images-idx3-ubyte.gz` and `train-labels-idx1-ubyte.gz`: images as they
    /// are, U8, and labels as I64.
    ///
    /// ```
    /// use models::{Dataset, TensorDataset};
    /// # fn main() -> device::Result<()> {
    /// # let file = |name: &str| std::env::temp_dir().join(format!("streamgrad-doc-{name}-{}", std::process::id()));
    /// # let (images, labels) = (file("images"), file("labels"));
    /// # std::fs::write(&images, [0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2, 10, 20, 30, 40]).ok();
    /// # std::fs::write(&labels, [0, 0, 8, 1, 0, 0, 0, 2, 7, 3]).ok();
    /// let data = TensorDataset::read_idx(&images, &labels)?;
    /// let batch = data.batch(&[1], 0, &device::Device::cpu())?;
    /// assert_eq!((batch.inputs.shape(), batch.inputs.to_vec::<u8>()?), (&[1, 1, 2][..], vec![30, 40]));
    /// assert_eq!(batch.labels.to_vec::<i64>()?, [3]);
    /// # std::fs::remove_file(images).ok();
    /// # std::fs::remove_file(labels).ok();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`load`]; `Format` for labels of another rank than 1 or that are floats; `ShapeMismatch` for another number of labels than of images;
    /// `InvalidArgument` for no images.
    pub fn read_idx(images: impl AsRef<Path>, labels: impl AsRef<Path>) -> Result<Self> {
        let (labels, host) = (labels.as_ref(), Device::cpu());
        let (images, classes) = (load(images, &host)?, load(labels, &host)?);
        if classes.rank() != 1 {
            let detail = format_args!("shape {:?}, where labels have one axis", classes.shape());
            return Err(malformed(labels.display(), detail));
        }
        if classes.dtype().is_float() {
            return Err(malformed(
                labels.display(),
                format_args!("{}, where labels are integers", classes.dtype()),
            ));
        }
        Self::new(&images, &classes.to_dtype(DType::I64)?)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn file(kind: u8, sizes: &[u32], data: &[u8]) -> Vec<u8> {
        let sizes: Vec<u8> = sizes.iter().flat_map(|size| size.to_be_bytes()).collect();
        [&[0, 0, kind, (sizes.len() / 4) as u8], &sizes[..], data].concat()
    }

    fn message(bytes: &[u8]) -> String {
        parse("x", bytes, &Device::cpu()).unwrap_err().to_string()
    }

    #[test]
    fn arrays_of_every_type_plain_and_compressed() {
        let cases: [(u8, DType, &[u8], [f64; 2]); 6] = [
            (0x08, DType::U8, &[0, 255], [0.0, 255.0]),
            (0x09, DType::I64, &[0xff, 1], [-1.0, 1.0]),
            (0x0b, DType::I64, &[0xff, 0xfe, 1, 0], [-2.0, 256.0]),
            (0x0c, DType::I64, &[0, 1, 0, 0, 0xff, 0xff, 0xff, 0xff], [65_536.0, -1.0]),
            (0x0d, DType::F32, &[0x3f, 0x80, 0, 0, 0xc0, 0, 0, 0], [1.0, -2.0]),
            (0x0e, DType::F64, &[0x3f, 0xf0, 0, 0, 0, 0, 0, 0, 0xc0, 0, 0, 0, 0, 0, 0, 0], [1.0, -2.0]),
        ];
        for (kind, dtype, data, expected) in cases {
            let plain = file(kind, &[2, 1], data);
            let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
            gzip.write_all(&plain).unwrap();
            for bytes in [plain, gzip.finish().unwrap()] {
                let array = parse("x", &bytes, &Device::cpu()).unwrap();
                assert_eq!((array.shape(), array.dtype()), (&[2, 1][..], dtype));
                assert_eq!(array.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap(), expected);
            }
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        let cases: [(&[u8], &str); 8] = [
            (&[], "x: the first 4 bytes: failed to fill whole buffer"),
            (&[0, 1, 8, 1], "x: it does not begin like an IDX file"),
            (&[0, 0, 7, 1], "x: elements of the unknown type 0x07"),
            (&[0, 0, 8, 2, 0, 0, 0, 1], "x: the sizes of the axes: failed to fill whole buffer"),
            (&file(8, &[3], &[1, 2]), "x: 2 bytes of elements, where shape [3] has 3"),
            (&file(8, &[3], &[1, 2, 3, 4]), "x: more bytes of elements, where shape [3] has 3"),
            (&file(14, &[u32::MAX, u32::MAX], &[]), "x: shape [4294967295, 4294967295] is beyond all memory"),
            (&[0x1f, 0x8b, 8], "x: the first 4 bytes: unexpected end of file"),
        ];
        for (bytes, expected) in cases {
            assert_eq!(message(bytes), expected);
        }
        // 2^64 - 1 bytes, no axes, and as many as the format has.
        assert!(message(&file(8, &[u32::MAX, 641, 6_700_417], &[])).contains("where shape"));
        let shape = |sizes: &[u32]| parse("x", &file(8, sizes, &[7]), &Device::cpu()).unwrap().rank();
        assert_eq!((shape(&[]), shape(&[1; 255])), (0, 255));
    }

    #[test]
    fn labels_have_one_axis() {
        let path = |name| std::env::temp_dir().join(format!("streamgrad-idx-{name}-{}", std::process::id()));
        let (images, labels) = (path("images"), path("labels"));
        std::fs::write(&images, file(8, &[1, 2], &[1, 2])).unwrap();
        std::fs::write(&labels, file(8, &[1], &[5])).unwrap();
        assert!(TensorDataset::read_idx(&images, &labels).is_ok());
        let error = TensorDataset::read_idx(&labels, &images).map(drop).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("{}: shape [1, 2], where labels have one axis", images.display())
        );
        std::fs::remove_file(images).unwrap();
        std::fs::remove_file(labels).unwrap();
    }
}
