//! Tensors as text: nested brackets in columns, the middle of large ones left out.

use std::fmt::{self, Write};

use device::{DType, Element, Result, bf16, f16, from_bytes};

use crate::Tensor;

/// Tensors with more elements than this show the ends of each axis only.
const SUMMARISE_ABOVE: usize = 1000;
/// Places shown at either end of a summarised axis.
const EDGE: usize = 3;

/// The places shown along an axis; `None` stands for those left out.
fn shown(size: usize, summarise: bool) -> Vec<Option<usize>> {
    if !summarise || size <= 2 * EDGE {
        return (0..size).map(Some).collect();
    }
    (0..EDGE).map(Some).chain([None]).chain((size - EDGE..size).map(Some)).collect()
}

/// How all floats of one tensor are written, so that they line up.
#[derive(Clone, Copy)]
enum Style {
    Whole,
    Fixed,
    Scientific,
}

fn style_of(values: &[f64]) -> Style {
    let finite = || values.iter().copied().filter(|v| v.is_finite());
    let sizes = || finite().map(f64::abs).filter(|&v| v > 0.0);
    let (largest, smallest) = (sizes().fold(0.0, f64::max), sizes().fold(f64::INFINITY, f64::min));
    let wide = largest > 0.0 && (largest >= 1e8 || smallest < 1e-4 || largest / smallest > 1000.0);
    if finite().all(|v| v == v.trunc()) && largest < 1e8 {
        Style::Whole
    } else if wide {
        Style::Scientific
    } else {
        Style::Fixed
    }
}

/// With so many decimals; whole numbers show none unless they are asked for.
fn float_text(value: f64, style: Style, precision: Option<usize>) -> String {
    let decimals = precision.unwrap_or(4);
    match style {
        _ if value.is_nan() => "nan".to_owned(),
        _ if value.is_infinite() => if value > 0.0 { "inf" } else { "-inf" }.to_owned(),
        Style::Whole if precision.is_none() => format!("{value:.0}."),
        Style::Whole | Style::Fixed => format!("{value:.decimals$}"),
        Style::Scientific => format!("{value:.decimals$e}"),
    }
}

impl Tensor {
    /// The elements at these places of the buffer, as text.
    fn texts(&self, places: &[usize], precision: Option<usize>) -> Result<Vec<String>> {
        if places.is_empty() {
            return Ok(Vec::new());
        }
        let size = self.dtype.size_bytes();
        let mut bytes = Vec::with_capacity(places.len() * size);
        self.storage.download(|all| {
            for &place in places {
                bytes.extend_from_slice(all.get(place * size..(place + 1) * size).unwrap_or_default());
            }
        })?;
        fn plain<T: Element + ToString>(bytes: &[u8]) -> Vec<String> {
            from_bytes::<T>(bytes).iter().map(T::to_string).collect()
        }
        let floats = |values: Vec<f64>| {
            let style = style_of(&values);
            values.into_iter().map(|v| float_text(v, style, precision)).collect()
        };
        Ok(match self.dtype {
            DType::F32 => floats(from_bytes::<f32>(&bytes).into_iter().map(f64::from).collect()),
            DType::F64 => floats(from_bytes::<f64>(&bytes)),
            DType::BF16 => floats(from_bytes::<bf16>(&bytes).into_iter().map(f64::from).collect()),
            DType::F16 => floats(from_bytes::<f16>(&bytes).into_iter().map(f64::from).collect()),
            DType::I64 => plain::<i64>(&bytes),
            DType::Bool => plain::<bool>(&bytes),
            _ => plain::<u8>(&bytes),
        })
    }

    /// The places in the buffer of the elements to show, in row-major order.
    fn shown_places(&self, summarise: bool, axis: usize, place: usize, out: &mut Vec<usize>) {
        if axis == self.rank() {
            out.push(place);
            return;
        }
        for index in shown(self.shape()[axis], summarise).into_iter().flatten() {
            let step = index as isize * self.strides()[axis];
            self.shown_places(summarise, axis + 1, place.wrapping_add_signed(step), out);
        }
    }

    /// One axis in brackets, with `indent` columns to its left.
    fn write_axis(
        &self,
        f: &mut impl Write,
        summarise: bool,
        axis: usize,
        indent: usize,
        width: usize,
        texts: &mut impl Iterator<Item = String>,
    ) -> fmt::Result {
        if axis == self.rank() {
            return write!(f, "{:>width$}", texts.next().unwrap_or_default());
        }
        f.write_char('[')?;
        let last = axis + 1 == self.rank();
        for (at, index) in shown(self.shape()[axis], summarise).into_iter().enumerate() {
            if at > 0 && last {
                f.write_str(", ")?;
            } else if at > 0 {
                f.write_char(',')?;
                f.write_str(&"\n".repeat(self.rank() - axis - 1))?;
                write!(f, "{:indent$}", "", indent = indent + 1)?;
            }
            match index {
                Some(_) => self.write_axis(f, summarise, axis + 1, indent + 1, width, texts)?,
                None => f.write_str("...")?,
            }
        }
        f.write_char(']')
    }
}

/// Nested brackets, then type, device and shape; elements beyond a thousand are summarised. `{:.2}` shows floats with two decimals.
///
/// Waits for the last write of the tensor's storage. A tensor that cannot be read shows the error.
impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let summarise = self.elements() > SUMMARISE_ABOVE;
        let mut places = Vec::new();
        if !self.is_empty() {
            self.shown_places(summarise, 0, self.layout.offset(), &mut places);
        }
        f.write_str("tensor(")?;
        match self.texts(&places, f.precision()) {
            Err(error) => write!(f, "<{error}>")?,
            Ok(_) if self.is_empty() => f.write_str("[]")?,
            Ok(texts) => {
                let width = texts.iter().map(String::len).max().unwrap_or(0);
                self.write_axis(f, summarise, 0, "tensor(".len(), width, &mut texts.into_iter())?;
            }
        }
        write!(f, ", {}, {}, {:?})", self.dtype, self.device(), self.shape())
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
