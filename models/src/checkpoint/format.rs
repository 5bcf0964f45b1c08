//! The safetensors format: files whose tensors are read one by one, and writing.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;
use std::path::Path;

use device::file::{self, Source};
use device::{DType, Device, Error, Result, bf16, f16};
use safetensors::tensor::{Metadata, TensorInfo};
use safetensors::{Dtype, View};
use tensor::Tensor;

use super::wrong;
use crate::data::{little_endian, malformed};

/// The longest header that a file may have, as in the format's own library.
const MAX_HEADER: u64 = 100_000_000;

/// The types that a file may have.
const DTYPES: [(Dtype, DType); 7] = [
    (Dtype::F32, DType::F32),
    (Dtype::F64, DType::F64),
    (Dtype::BF16, DType::BF16),
    (Dtype::F16, DType::F16),
    (Dtype::I64, DType::I64),
    (Dtype::U8, DType::U8),
    (Dtype::BOOL, DType::Bool),
];

/// Which elements a tensor in a file may have, beside truth values of 0 and 1.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Elements {
    /// Finite numbers: parameters, and what optimizers keep.
    Finite,
    /// Infinite ones, too: buffers such as masks.
    Infinite,
    /// Any.
    Any,
}

/// A file's tensor: its type, its shape and where it lies.
pub(super) struct Entry {
    dtype: Dtype,
    pub(super) shape: Vec<usize>,
    start: u64,
    len: usize,
}

impl Entry {
    /// The type, unless it is one that tensors do not have.
    pub(super) fn dtype(&self) -> Option<DType> {
        DTYPES.iter().find(|(known, _)| *known == self.dtype).map(|(_, dtype)| *dtype)
    }

    /// The type's name in the file.
    pub(super) fn dtype_name(&self) -> impl Display {
        self.dtype
    }
}

/// A safetensors file, of which the header was read and checked.
pub(super) struct Contents {
    source: Source,
    pub(super) tensors: BTreeMap<String, Entry>,
    pub(super) metadata: BTreeMap<String, String>,
}

impl Contents {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let source = Source::open(path)?;
        let start = source.read(0, source.len().min(8) as usize)?;
        let damaged = |detail: &dyn Display| {
            // A zip file, or a pickle.
            if start.starts_with(b"PK\x03\x04") || start.starts_with(&[0x80, 2]) {
                let detail = "a file of `torch.save`: write it with `safetensors.torch.save_file`";
                return malformed(path.display(), detail);
            }
            malformed(path.display(), detail)
        };
        let length = <[u8; 8]>::try_from(&start[..]).map_or(u64::MAX, u64::from_le_bytes);
        if length > MAX_HEADER || length + 8 > source.len() {
            return Err(damaged(&"it ends before its header"));
        }
        let header = source.read(8, length as usize)?;
        // Also checks that the tensors follow each other and have as many bytes as their shapes need.
        let header: Metadata = serde_json::from_slice(&header).map_err(|error| damaged(&error))?;
        let data = length + 8;
        let entry = |(name, info): (String, &TensorInfo)| {
            let (start, end) = info.data_offsets;
            let entry = Entry {
                dtype: info.dtype,
                shape: info.shape.clone(),
                start: data + start as u64,
                len: end - start,
            };
            (name, entry)
        };
        let tensors: BTreeMap<String, Entry> = header.tensors().into_iter().map(entry).collect();
        let end = tensors.values().map(|entry| entry.start + entry.len as u64).max().unwrap_or(data);
        if end != source.len() {
            return Err(damaged(&format_args!("{} bytes, where its tensors need {end}", source.len())));
        }
        let metadata = header.metadata().clone().unwrap_or_default().into_iter().collect();
        Ok(Contents { source, tensors, metadata })
    }

    /// A tensor of the file, read now. Its elements are checked.
    pub(super) fn tensor(&self, name: &str, elements: Elements, device: &Device) -> Result<Tensor> {
        let entry = self.tensors.get(name).ok_or_else(|| wrong(name, "missing in the file"))?;
        let unsupported = || wrong(name, format_args!("elements of type {} are not supported", entry.dtype));
        let dtype = entry.dtype().ok_or_else(unsupported)?;
        let bytes = self.source.read(entry.start, entry.len)?;
        check_elements(name, entry.dtype, elements, &bytes)?;
        Tensor::from_bytes(&little_endian(bytes, dtype), &entry.shape, dtype, device)
    }

    pub(super) fn malformed(&self, detail: impl Display) -> Error {
        malformed(self.source.path().display(), format_args!("metadata: {detail}"))
    }
}

/// Refuses elements that a tensor may not have, and truth values other than 0 and 1.
fn check_elements(name: &str, dtype: Dtype, elements: Elements, data: &[u8]) -> Result<()> {
    fn first<const N: usize>(
        data: &[u8],
        number: impl Fn([u8; N]) -> f64,
        elements: Elements,
    ) -> Option<(usize, f64)> {
        let is_wrong = |value: f64| match elements {
            Elements::Finite => !value.is_finite(),
            Elements::Infinite => value.is_nan(),
            Elements::Any => false,
        };
        let numbers = data.as_chunks::<N>().0.iter().map(|chunk| number(*chunk));
        numbers.enumerate().find(|(_, value)| is_wrong(*value))
    }
    let found = match dtype {
        Dtype::F32 => first(data, |bytes| f64::from(f32::from_le_bytes(bytes)), elements),
        Dtype::F64 => first(data, f64::from_le_bytes, elements),
        Dtype::BF16 => first(data, |bytes| f64::from(bf16::from_le_bytes(bytes)), elements),
        Dtype::F16 => first(data, |bytes| f64::from(f16::from_le_bytes(bytes)), elements),
        Dtype::BOOL => {
            let mut bytes = data.iter().enumerate();
            bytes.find(|(_, byte)| **byte > 1).map(|(element, byte)| (element, f64::from(*byte)))
        }
        _ => None,
    };
    found.map_or(Ok(()), |(element, value)| Err(wrong(name, format_args!("element {element} is {value}"))))
}

/// A tensor that is written, row-major and little-endian. Its elements are read when their turn comes.
struct Written<'a> {
    name: &'a str,
    tensor: &'a Tensor,
    elements: Elements,
    dtype: Dtype,
    /// The first error of all tensors.
    failed: &'a RefCell<Option<Error>>,
}

impl View for Written<'_> {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        self.tensor.shape()
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let bytes = || -> Result<Vec<u8>> {
            let bytes = little_endian(self.tensor.to_bytes()?, self.tensor.dtype());
            check_elements(self.name, self.dtype, self.elements, &bytes)?;
            Ok(bytes)
        };
        let failed = |error| {
            self.failed.borrow_mut().get_or_insert(error);
            vec![0; self.data_len()]
        };
        Cow::Owned(bytes().unwrap_or_else(failed))
    }

    fn data_len(&self) -> usize {
        self.tensor.elements() * self.tensor.dtype().size_bytes()
    }
}

/// A tensor to be written, and its name.
pub(super) type Named = (String, Tensor, Elements);

/// Writes tensors under their names, and metadata.
pub(super) fn write(path: &Path, tensors: &[Named], metadata: Option<(String, String)>) -> Result<()> {
    let failed = RefCell::new(None);
    let mut views = Vec::with_capacity(tensors.len());
    for (name, tensor, elements) in tensors {
        let known = DTYPES.iter().find(|(_, dtype)| *dtype == tensor.dtype());
        let (dtype, _) = *known.ok_or_else(|| {
            Error::dtype_unsupported("checkpoint", tensor.dtype(), "floats, i64, u8 and bool")
        })?;
        views.push((name, Written { name, tensor, elements: *elements, dtype, failed: &failed }));
    }
    // One entry only: the order of several would differ from run to run, and so would the file.
    let bytes = safetensors::serialize(views, metadata.map(|entry| HashMap::from([entry])));
    if let Some(error) = failed.into_inner() {
        return Err(error);
    }
    file::write(path, &bytes.map_err(|error| malformed(path.display(), error))?)
}
