//! NumPy's `.npy` files: one array each.

use std::path::Path;

use device::{DType, Device, Error, Result};
use tensor::Tensor;

use super::stored::Stored;
use super::{little_endian, malformed};
use crate::file;

const MAGIC: &[u8] = b"\x93NUMPY";
/// The most axes that NumPy itself allows.
const MAX_AXES: usize = 64;

/// Reads the array in a `.npy` file: format 1, 2 or 3, of floats, integers or truth values in either byte order, in C or
/// Fortran order. Integers become I64, but for `u1`, which is U8. An array in Fortran order becomes a view with its axes turned round.
///
/// ```
/// use models::data::npy;
/// use tensor::{Device, Tensor};
/// # fn main() -> device::Result<()> {
/// let path = std::env::temp_dir().join(format!("streamgrad-doc-{}.npy", std::process::id()));
/// npy::save(&path, &Tensor::from_slice(&[1.0_f32, 2.0, 3.0], &[3, 1], &Device::cpu())?)?;
/// let array = npy::load(&path, &Device::cpu())?;
/// assert_eq!((array.shape(), array.to_vec::<f32>()?), (&[3, 1][..], vec![1.0, 2.0, 3.0]));
/// # std::fs::remove_file(path).ok();
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `Io` if the file cannot be read; `Format` for anything in it that is not such an array, whole and without bytes behind
/// it; `OutOfMemory`.
#[derive::located]
pub fn load(path: impl AsRef<Path>, device: &Device) -> Result<Tensor> {
    let path = path.as_ref();
    parse(&path.display().to_string(), &file::read(path)?, device)
}

/// Reads an array from the bytes of a `.npy` file; `name` is for the messages. See [`load`].
///
/// # Errors
/// `Format`, `OutOfMemory`.
pub fn parse(name: &str, bytes: &[u8], device: &Device) -> Result<Tensor> {
    let (header, data) = split(bytes).map_err(|detail| malformed(name, detail))?;
    let header = Header::parse(header).map_err(|detail| malformed(name, detail))?;
    header.check(data).map_err(|detail| malformed(name, detail))?;
    let mut shape = header.shape;
    if header.fortran_order {
        shape.reverse();
    }
    let data = header.stored.decode(data.to_vec()).map_err(|detail| malformed(name, detail))?;
    let array = Tensor::from_bytes(&data, &shape, header.stored.dtype, device)?;
    if !header.fortran_order {
        return Ok(array);
    }
    let axes: Vec<isize> = (0..shape.len().cast_signed()).rev().collect();
    array.permute(&axes)
}

/// Writes an array as a `.npy` file of format 1, little endian, in C order, in place of the one that is there. Waits for
/// the last write of the tensor.
///
/// # Errors
/// As [`file::write`]; `DTypeUnsupported` for BF16; `Async` if a command that led to the tensor failed.
#[derive::located]
pub fn save(path: impl AsRef<Path>, array: &Tensor) -> Result<()> {
    file::write(path, &to_bytes(array)?)
}

/// The bytes of a `.npy` file; see [`save`].
///
/// # Errors
/// As [`save`], but for the file.
#[derive::located]
pub fn to_bytes(array: &Tensor) -> Result<Vec<u8>> {
    // As Python writes a tuple: a single element is followed by a comma.
    let sizes = match array.shape() {
        [size] => format!("{size},"),
        sizes => sizes.iter().map(usize::to_string).collect::<Vec<_>>().join(", "),
    };
    let descr = descr(array.dtype())?;
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({sizes}), }}");
    // The elements begin at a multiple of 64.
    let prelude = MAGIC.len() + 4;
    header.extend(std::iter::repeat_n(' ', 63 - (prelude + header.len()) % 64));
    header.push('\n');
    let Ok(length) = u16::try_from(header.len()) else {
        let shape = format!("{} axes", array.shape().len());
        return Err(Error::invalid("npy", "shape", "few enough axes for a header of 64 KiB", shape));
    };
    let data = little_endian(array.to_bytes()?, array.dtype());
    Ok([MAGIC, &[1, 0], &length.to_le_bytes(), header.as_bytes(), &data].concat())
}

fn descr(dtype: DType) -> Result<&'static str> {
    match dtype {
        DType::F16 => Ok("<f2"),
        DType::F32 => Ok("<f4"),
        DType::F64 => Ok("<f8"),
        DType::I64 => Ok("<i8"),
        DType::Bool => Ok("|b1"),
        DType::U8 => Ok("|u1"),
        // NumPy has no name for BF16.
        dtype => Err(Error::dtype_unsupported("npy", dtype, "f16, f32, f64, i64, u8 and bool")),
    }
}

/// The header's text and the elements' bytes.
fn split(bytes: &[u8]) -> Result<(&str, &[u8]), String> {
    let rest = bytes.strip_prefix(MAGIC).ok_or("it does not begin like a .npy file")?;
    let ([major, _minor], rest) = rest.split_first_chunk().ok_or("it ends before the format's version")?;
    let short = || "it ends before the header's length".to_owned();
    let (length, rest) = match major {
        1 => rest.split_first_chunk().map(|(&length, rest)| (u16::from_le_bytes(length).into(), rest)),
        2 | 3 => rest.split_first_chunk().map(|(&length, rest)| (u32::from_le_bytes(length), rest)),
        _ => return Err(format!("format {major}, known are 1, 2 and 3")),
    }
    .ok_or_else(short)?;
    let header = usize::try_from(length).ok().and_then(|length| rest.split_at_checked(length));
    let (header, data) = header.ok_or_else(|| format!("it ends within its header of {length} bytes"))?;
    let header = std::str::from_utf8(header).map_err(|_| "the header is not text".to_owned())?;
    Ok((header, data))
}

/// What a header says.
struct Header {
    stored: Stored,
    fortran_order: bool,
    shape: Vec<usize>,
}

impl Header {
    /// Parses a Python dictionary of `descr`, `fortran_order` and `shape`, in any order.
    fn parse(text: &str) -> Result<Header, String> {
        let mut text = Text(text);
        let (mut stored, mut fortran_order, mut shape) = (None, None, None);
        text.expect('{')?;
        while !text.eat('}') {
            let key = text.string()?;
            text.expect(':')?;
            let again = match key {
                "descr" => stored.replace(stored_as(text.string()?)?).is_some(),
                "fortran_order" => fortran_order.replace(text.truth()?).is_some(),
                "shape" => shape.replace(text.tuple()?).is_some(),
                _ => return Err(format!("the header has an unknown key {key:?}")),
            };
            if again {
                return Err(format!("the header has {key:?} twice"));
            }
            if !text.eat(',') {
                text.expect('}')?;
                break;
            }
        }
        text.end()?;
        match (stored, fortran_order, shape) {
            (Some(stored), Some(fortran_order), Some(shape)) => Ok(Header { stored, fortran_order, shape }),
            _ => Err("the header lacks descr, fortran_order or shape".into()),
        }
    }

    /// Checks that the elements are there, no more and no fewer, and valid.
    fn check(&self, data: &[u8]) -> Result<(), String> {
        let (shape, Stored { size, dtype, .. }) = (&self.shape, self.stored);
        let bytes = shape.iter().try_fold(size, |bytes, &size| bytes.checked_mul(size));
        // Zero anywhere makes it empty, whatever the other sizes are.
        let bytes = if shape.contains(&0) { Some(0) } else { bytes };
        if bytes != Some(data.len()) {
            let found = data.len();
            return Err(format!("{found} bytes of elements for shape {shape:?} of {size} bytes each"));
        }
        match data.iter().position(|&byte| byte > 1) {
            Some(at) if dtype == DType::Bool => {
                Err(format!("element {at} is {}, not a truth value", data[at]))
            }
            _ => Ok(()),
        }
    }
}

fn stored_as(descr: &str) -> Result<Stored, String> {
    let spelled = descr.replace('?', "b1");
    let parts = || {
        let mut symbols = spelled.chars();
        let (order, kind, size) = (symbols.next()?, symbols.next()?, symbols.as_str().parse().ok()?);
        let is_known = matches!(order, '<' | '>') || (order == '|' && size == 1);
        Stored::new(kind, size, order == '>').filter(|_| is_known)
    };
    parts().ok_or_else(|| {
        format!("elements of type {descr:?}, known are b1, f2, f4, f8, and i and u of 1 to 8 bytes")
    })
}

/// What is left of a header.
struct Text<'a>(&'a str);

impl<'a> Text<'a> {
    fn eat(&mut self, symbol: char) -> bool {
        self.0 = self.0.trim_start();
        let rest = self.0.strip_prefix(symbol);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    fn expect(&mut self, symbol: char) -> Result<(), String> {
        if self.eat(symbol) { Ok(()) } else { Err(self.wrong(&format!("{symbol:?}"))) }
    }

    fn wrong(&self, expected: &str) -> String {
        let found: String = self.0.chars().take(20).collect();
        format!("the header has {found:?} where {expected} should be")
    }

    /// A string between quotes of either kind, without escapes.
    fn string(&mut self) -> Result<&'a str, String> {
        let quote = if self.eat('"') { '"' } else { '\'' };
        if quote == '\'' {
            self.expect(quote)?;
        }
        let (string, rest) = self.0.split_once(quote).ok_or_else(|| self.wrong("a string that ends"))?;
        self.0 = rest;
        Ok(string)
    }

    fn truth(&mut self) -> Result<bool, String> {
        self.0 = self.0.trim_start();
        for (word, value) in [("True", true), ("False", false)] {
            if let Some(rest) = self.0.strip_prefix(word) {
                self.0 = rest;
                return Ok(value);
            }
        }
        Err(self.wrong("True or False"))
    }

    /// Sizes in parentheses; a single one is followed by a comma.
    fn tuple(&mut self) -> Result<Vec<usize>, String> {
        let mut sizes = Vec::new();
        self.expect('(')?;
        while !self.eat(')') {
            sizes.push(self.size()?);
            if sizes.len() > MAX_AXES {
                return Err(format!("more than {MAX_AXES} axes"));
            }
            if !self.eat(',') {
                self.expect(')')?;
                // A single number in parentheses is no tuple.
                if sizes.len() == 1 {
                    return Err(self.wrong("a comma before the parenthesis"));
                }
                break;
            }
        }
        Ok(sizes)
    }

    fn size(&mut self) -> Result<usize, String> {
        self.0 = self.0.trim_start();
        let digits = self.0.len() - self.0.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, rest) = self.0.split_at(digits);
        let size = number.parse().map_err(|_| self.wrong("a size that fits in memory"))?;
        self.0 = rest;
        Ok(size)
    }

    fn end(&self) -> Result<(), String> {
        if self.0.trim().is_empty() { Ok(()) } else { Err(self.wrong("the end")) }
    }
}

#[cfg(test)]
#[path = "npy_tests.rs"]
mod tests;
