//! Pooling over the last two axes.

use device::{DType, Error, Result, Stream};
use kernels::{Dims, Means, View, Window, max_pool2d_index_dtype};

use crate::Tensor;
use crate::check::{elements_of, has_shape, same_device, wrong_shape};

/// The window of [`Tensor::max_pool2d`]; every pair is for the axes `[h, w]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxPool {
    /// Sizes of the window.
    pub kernel: [usize; 2],
    /// Steps between neighbouring positions of the window.
    pub stride: [usize; 2],
    /// Rows and columns added on each side, which are never the maximum; at most half of the window.
    pub padding: [usize; 2],
    /// Steps between neighbouring elements of the window.
    pub dilation: [usize; 2],
    /// Whether sizes are rounded up, so that the last window may extend beyond the padded image.
    pub ceil_mode: bool,
}

impl MaxPool {
    /// A window without overlap, padding or dilation: the stride is the size.
    pub fn new(kernel: [usize; 2]) -> MaxPool {
        MaxPool { kernel, stride: kernel, padding: [0; 2], dilation: [1; 2], ceil_mode: false }
    }

    fn window(&self) -> Window {
        let MaxPool { kernel, stride, padding, dilation, .. } = *self;
        Window { kernel, stride, padding, dilation }
    }
}

/// The window of [`Tensor::avg_pool2d`]; every pair is for the axes `[h, w]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AvgPool {
    /// Sizes of the window.
    pub kernel: [usize; 2],
    /// Steps between neighbouring positions of the window.
    pub stride: [usize; 2],
    /// Rows and columns of zeros added on each side; at most half of the window.
    pub padding: [usize; 2],
    /// Whether sizes are rounded up, so that the last window may extend beyond the padded image.
    pub ceil_mode: bool,
    /// Whether the divisor counts zeros of the padding.
    pub count_include_pad: bool,
    /// The divisor; the number of elements if `None`.
    pub divisor: Option<u32>,
}

impl AvgPool {
    /// A window without overlap, padding or dilation: the stride is the size.
    pub fn new(kernel: [usize; 2]) -> AvgPool {
        AvgPool {
            kernel,
            stride: kernel,
            padding: [0; 2],
            ceil_mode: false,
            count_include_pad: true,
            divisor: None,
        }
    }

    fn window(&self) -> Window {
        let AvgPool { kernel, stride, padding, .. } = *self;
        Window { kernel, stride, padding, dilation: [1; 2] }
    }

    fn means(&self) -> Means {
        let AvgPool { count_include_pad, divisor, .. } = *self;
        Means::Sliding { window: self.window(), count_include_pad, divisor }
    }
}

/// The sizes of the last two axes.
fn image_of(op: &'static str, x: &Tensor) -> Result<[usize; 2]> {
    x.dtype().require_float(op)?;
    match *x.shape() {
        [.., h, w] if h > 0 && w > 0 => Ok([h, w]),
        _ => Err(wrong_shape(op, "input", "[.., h, w] with pixels", x)),
    }
}

/// The places of a window, with those that leave the image if they are wanted.
fn places(op: &'static str, window: &Window, image: [usize; 2], ceil: bool) -> Result<[usize; 2]> {
    window.check(op)?;
    let too_wide = (0..2).any(|axis| window.padding[axis] > window.extent(axis) / 2);
    Error::require(!too_wide, op, "padding", "at most half of the window", format_args!("{window:?}"))?;
    let mut places = window.places(op, image)?;
    for axis in 0..2 {
        let (size, padding, stride) = (image[axis], window.padding[axis], window.stride[axis]);
        let rest = (size + 2 * padding - window.extent(axis)) % stride;
        // One that would begin behind the image and its first padding sees nothing.
        if ceil && rest > 0 && places[axis] * stride < size + padding {
            places[axis] += 1;
        }
    }
    Ok(places)
}

/// The shape of `x` with other sizes of its last two axes.
fn resized(x: &Tensor, [h, w]: [usize; 2]) -> Dims {
    let mut shape = Dims::from_slice(x.shape());
    shape.truncate(x.rank() - 2);
    shape.extend_from_slice(&[h, w]);
    shape
}

#[derive::located]
impl Tensor {
    /// The largest element at each position of a window, and its index within the window, `i kw + j`: of the first of
    /// equal elements, or of the last NaN.
    ///
    /// Shapes: `[.., h, w]` -> twice `[.., oh, ow]`, with
    /// `oh = floor((h + 2 padding - dilation (kh - 1) - 1) / stride) + 1` (rounded up in ceil mode), and `ow` alike.
    /// The indices are U8 for windows of up to 256 elements, otherwise I64.
    ///
    /// ```
    /// # use tensor::{DType, Device, MaxPool, Tensor};
    /// # fn main() -> tensor::Result<()> {
    /// let x = Tensor::arange(0, 16, 1, DType::F32, &Device::cpu())?.reshape(&[1, 4, 4])?;
    /// let (y, index) = x.max_pool2d(&MaxPool::new([2, 2]))?;
    /// assert_eq!((y.to_vec::<f32>()?, index.to_vec::<u8>()?), (vec![5.0, 7.0, 13.0, 15.0], vec![3; 4]));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` for fewer than two axes, images without pixels, a stride or dilation of 0, a padding above
    /// half of the window, and a window larger than the padded image; `DTypeUnsupported` unless the elements are
    /// floats.
    pub fn max_pool2d(&self, pool: &MaxPool) -> Result<(Tensor, Tensor)> {
        const OP: &str = "max_pool2d";
        let window = pool.window();
        let shape = resized(self, places(OP, &window, image_of(OP, self)?, pool.ceil_mode)?);
        elements_of(OP, &shape)?;
        let x = self.contiguous()?;
        Stream::with_current(self.device(), |stream| {
            let out = Tensor::allocate(stream, &shape, self.dtype)?;
            let index = Tensor::allocate(stream, &shape, max_pool2d_index_dtype(&window))?;
            kernels::max_pool2d(stream, x.view(), window, out.view(), index.view())?;
            Ok((out, index))
        })
    }

    /// The mean of the elements in each window.
    ///
    /// Shapes: `[.., h, w] -> [.., oh, ow]`, with `oh = floor((h + 2 padding - kh) / stride) + 1` (rounded up in ceil
    /// mode), and `ow` alike. The divisor counts zeros of the padding if `count_include_pad` is set, but never elements
    /// beyond the padding.
    ///
    /// # Errors
    /// As for [`Tensor::max_pool2d`]; `InvalidArgument` for a divisor of 0.
    pub fn avg_pool2d(&self, pool: &AvgPool) -> Result<Tensor> {
        const OP: &str = "avg_pool2d";
        let shape = resized(self, places(OP, &pool.window(), image_of(OP, self)?, pool.ceil_mode)?);
        averaged(OP, self, pool.means(), &shape, kernels::avg_pool2d)
    }

    /// The means over `size[0]` by `size[1]` windows, which cover the image and overlap where they must: along an axis
    /// of `n` elements, window `i` is `floor(i n / size)..ceil((i + 1) n / size)`.
    ///
    /// Shapes: `[.., h, w] -> [.., size..]`.
    ///
    /// # Errors
    /// `InvalidArgument` for fewer than two axes and for images without pixels; `DTypeUnsupported` unless the elements
    /// are floats.
    pub fn adaptive_avg_pool2d(&self, size: [usize; 2]) -> Result<Tensor> {
        const OP: &str = "adaptive_avg_pool2d";
        image_of(OP, self)?;
        averaged(OP, self, Means::Adaptive, &resized(self, size), kernels::avg_pool2d)
    }

    /// The nearest pixel for each of `size`, as PyTorch's `nearest`: along an axis of `n` elements, element `i` is
    /// `floor(i (n / size))`. The quotient and the product are rounded to F64 for elements of that type and integers of axes of 2^24
    /// and more, otherwise to F32.
    ///
    /// Shapes: `[.., h, w] -> [.., size..]`.
    ///
    /// # Errors
    /// `InvalidArgument` for fewer than two axes, images without pixels, and a size of 0.
    pub fn upsample_nearest2d(&self, size: [usize; 2]) -> Result<Tensor> {
        const OP: &str = "upsample_nearest2d";
        if self.dtype.is_float() {
            return upsampled(OP, self, size, Means::Nearest);
        }
        let [.., h, w] = *self.shape() else { return Err(wrong_shape(OP, "input", "[.., h, w]", self)) };
        let positions = |n: usize, size: usize| {
            // Floats do not hold all integers, but these positions.
            let dtype = if n < 1 << 24 { DType::F32 } else { DType::F64 };
            let row = Tensor::arange(0, n as i64, 1, dtype, self.device())?.reshape(&[1, n])?;
            row.upsample_nearest2d([1, size])?.reshape(&[size])?.to_dtype(DType::I64)
        };
        self.index_select(-2, &positions(h, size[0])?)?.index_select(-1, &positions(w, size[1])?)
    }

    /// The mean of the four pixels around each position, weighted by how near they are.
    ///
    /// With `align_corners` the centres of the corner pixels fall together, so that element `i` lies at
    /// `i (n - 1) / (size - 1)`; without, the corners do, and it lies at `(i + 1/2) n / size - 1/2`, or at 0 if that is
    /// less. Shapes: `[.., h, w] -> [.., size..]`.
    ///
    /// # Errors
    /// As for [`Tensor::upsample_nearest2d`]; `DTypeUnsupported` unless the elements are floats.
    pub fn upsample_bilinear2d(&self, size: [usize; 2], align_corners: bool) -> Result<Tensor> {
        upsampled("upsample_bilinear2d", self, size, Means::Bilinear { align_corners })
    }
}

fn upsampled(op: &'static str, x: &Tensor, size: [usize; 2], means: Means) -> Result<Tensor> {
    image_of(op, x)?;
    Error::require(!size.contains(&0), op, "size", "not 0", format_args!("{size:?}"))?;
    averaged(op, x, means, &resized(x, size), kernels::avg_pool2d)
}

/// Means of `x`, or their gradient.
fn averaged(
    op: &'static str,
    x: &Tensor,
    means: Means,
    shape: &[usize],
    launch: fn(&Stream, View<'_>, Means, View<'_>) -> Result<()>,
) -> Result<Tensor> {
    elements_of(op, shape)?;
    let x = x.contiguous()?;
    x.produce_like(shape, |stream, out| launch(stream, x.view(), means, out))
}

/// The gradient of [`Tensor::max_pool2d`] for images of sizes `image`: `g` added where the maxima came from.
///
/// # Errors
/// `ShapeMismatch`, `DTypeMismatch`, `DeviceMismatch`, `InvalidArgument` as for [`Tensor::max_pool2d`].
pub fn max_pool2d_grad(g: &Tensor, index: &Tensor, pool: &MaxPool, image: [usize; 2]) -> Result<Tensor> {
    const OP: &str = "max_pool2d_grad";
    image_of(OP, g)?;
    same_device(OP, g, index, "index")?;
    let shape = resized(g, image);
    elements_of(OP, &shape)?;
    let (g, index) = (g.contiguous()?, index.contiguous()?);
    g.produce_like(&shape, |s, out| kernels::max_pool2d_grad(s, g.view(), index.view(), pool.window(), out))
}

/// The elements of `x` where the maxima of another tensor were, by the index that [`Tensor::max_pool2d`] gave.
///
/// # Errors
/// As for [`max_pool2d_grad`].
pub fn max_pool2d_pick(x: &Tensor, index: &Tensor, pool: &MaxPool) -> Result<Tensor> {
    const OP: &str = "max_pool2d_pick";
    image_of(OP, x)?;
    same_device(OP, x, index, "index")?;
    let (x, index) = (x.contiguous()?, index.contiguous()?);
    x.produce_like(index.shape(), |stream, out| {
        kernels::max_pool2d_pick(stream, x.view(), index.view(), pool.window(), out)
    })
}

/// The gradient of [`Tensor::avg_pool2d`] for images of sizes `image`.
///
/// # Errors
/// As for [`Tensor::avg_pool2d`]; `ShapeMismatch` unless `g` has the places of such an image.
pub fn avg_pool2d_grad(g: &Tensor, pool: &AvgPool, image: [usize; 2]) -> Result<Tensor> {
    const OP: &str = "avg_pool2d_grad";
    image_of(OP, g)?;
    has_shape(OP, &resized(g, places(OP, &pool.window(), image, pool.ceil_mode)?), g, "gradient")?;
    averaged(OP, g, pool.means(), &resized(g, image), kernels::avg_pool2d_grad)
}

/// The gradient of an op of [`Means`] that depend on nothing but sizes, for images of sizes `image`.
///
/// # Errors
/// As for [`Tensor::adaptive_avg_pool2d`].
pub fn resized_grad(op: &'static str, g: &Tensor, means: Means, image: [usize; 2]) -> Result<Tensor> {
    g.dtype().require_float(op)?;
    Error::require(g.rank() >= 2, op, "gradient", "[.., h, w]", format_args!("shape {:?}", g.shape()))?;
    averaged(op, g, means, &resized(g, image), kernels::avg_pool2d_grad)
}
