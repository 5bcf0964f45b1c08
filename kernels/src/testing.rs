//! Small arrays for tests of launchers.

use std::ptr::NonNull;

use device::{BlockId, Buffer, CpuConfig, Device, Element, Stream};

use crate::layout::{Layout, View};

/// A CPU device that splits kernels over so many threads.
pub(crate) fn cpu(threads: usize) -> Device {
    Device::cpu_with(CpuConfig { threads: Some(threads), ..CpuConfig::default() })
}

/// A buffer with a layout. There is no pool to take its memory back: the host's is leaked, a CUDA device's is freed when
/// all commands have run.
#[derive(Debug)]
pub(crate) struct Array<T> {
    buffer: Buffer,
    pub(crate) layout: Layout,
    on_cuda: bool,
    marker: std::marker::PhantomData<T>,
}

impl<T: Element> Array<T> {
    /// A contiguous array with these elements.
    pub(crate) fn new(stream: &Stream, elements: &[T], shape: &[usize]) -> Array<T> {
        let layout = Layout::contiguous(shape);
        assert_eq!(layout.elements(), elements.len());
        Array::over(stream, elements, layout)
    }

    fn over(stream: &Stream, memory: &[T], layout: Layout) -> Array<T> {
        let (buffer, on_cuda) = (buffer(stream, memory), stream.is_cuda());
        Array { buffer, layout, on_cuda, marker: std::marker::PhantomData }
    }

    /// An array of one value.
    pub(crate) fn full(stream: &Stream, value: T, shape: &[usize]) -> Array<T> {
        Array::new(stream, &vec![value; shape.iter().product()], shape)
    }

    /// The same memory seen through another layout.
    pub(crate) fn with(mut self, layout: impl FnOnce(&Layout) -> Layout) -> Array<T> {
        self.layout = layout(&self.layout);
        self
    }

    /// The same elements, stored so that the given order of the axes is contiguous.
    pub(crate) fn stored_as(stream: &Stream, elements: &[T], shape: &[usize], order: &[usize]) -> Array<T> {
        let stored: Vec<usize> = order.iter().map(|&axis| shape[axis]).collect();
        let mut back = vec![0; order.len()];
        order.iter().enumerate().for_each(|(i, &axis)| back[axis] = i);
        let layout = Layout::contiguous(&stored).permute("test", &back).expect("an order of the axes");
        let mut memory = elements.to_vec();
        for (i, &element) in elements.iter().enumerate() {
            memory[place(&layout, i) as usize] = element;
        }
        Array::over(stream, &memory, layout)
    }

    pub(crate) fn view(&self) -> View<'_> {
        View::new(&self.buffer, T::DTYPE, &self.layout)
    }

    /// The elements in logical order.
    pub(crate) fn to_vec(&self) -> Vec<T> {
        self.try_vec().expect("no command failed")
    }

    /// The elements in logical order, or the error of an earlier command.
    pub(crate) fn try_vec(&self) -> device::Result<Vec<T>> {
        self.buffer.download(|bytes| {
            let from = bytes.as_ptr().cast::<T>();
            // SAFETY: the layout lies within the buffer, whose elements are of type T.
            (0..self.layout.elements()).map(|i| unsafe { *from.offset(place(&self.layout, i)) }).collect()
        })
    }
}

impl<T> Drop for Array<T> {
    fn drop(&mut self) {
        let device = self.buffer.device();
        if self.on_cuda && device.synchronize().is_ok() {
            let bytes = self.buffer.len_bytes().max(1);
            if let Some(ptr) = NonNull::new(self.buffer.ptr()) {
                // SAFETY: `buffer` allocated this many bytes here, and `synchronize` returned, so no command is left.
                unsafe { device.memory_driver().free(ptr, bytes) };
            }
        }
    }
}

/// A buffer with these elements, on a device of any kind.
fn buffer<T: Element>(stream: &Stream, elements: &[T]) -> Buffer {
    let id = BlockId { arena: 0, index: 0 };
    if !stream.is_cuda() {
        let memory: &'static mut [T] = Box::leak(elements.to_vec().into_boxed_slice());
        let bytes = size_of_val(memory);
        // SAFETY: the memory is leaked, so this buffer is its only user for ever.
        return unsafe { Buffer::from_block(stream, NonNull::from(memory).cast(), bytes, id) };
    }
    let bytes = size_of_val(elements);
    let ptr = stream.device().memory_driver().allocate(bytes.max(1)).expect("device memory");
    // SAFETY: the memory was just allocated with at least `bytes` bytes and is freed only when the `Array` is
    // dropped.
    let buffer = unsafe { Buffer::from_block(stream, ptr, bytes, id) };
    // SAFETY: elements have no padding, so their bytes are initialised; the slice borrows them.
    let from = unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), bytes) };
    stream.upload("upload", &buffer, 0, from).expect("an upload");
    buffer
}

/// Where logical element `i` lies.
fn place(layout: &Layout, mut i: usize) -> isize {
    let mut place = layout.offset() as isize;
    for (&size, &stride) in layout.shape().iter().zip(layout.strides()).rev() {
        place += (i % size) as isize * stride;
        i /= size;
    }
    place
}

/// Reproducible values in -1..1.
pub(crate) fn values(seed: u64, len: usize) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
    };
    std::iter::repeat_with(next).take(len).collect()
}

/// [`values`] in single precision.
pub(crate) fn values_f32(seed: u64, len: usize) -> Vec<f32> {
    values(seed, len).into_iter().map(|x| x as f32).collect()
}

/// Bits of floats, to compare exactly.
pub(crate) fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// The index of an element by its number in row-major order.
pub(crate) fn index_of(shape: &[usize], mut flat: usize) -> Vec<usize> {
    let mut index = vec![0; shape.len()];
    for axis in (0..shape.len()).rev() {
        index[axis] = flat % shape[axis];
        flat /= shape[axis];
    }
    index
}
