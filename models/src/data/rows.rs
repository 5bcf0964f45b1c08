//! Rows of one shape, on the host.

use std::sync::Arc;

use device::{Device, Element, Result};
use tensor::Tensor;

use super::no_row;

/// Rows of elements, one after the other; cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Rows<T> {
    values: Arc<[T]>,
    /// The shape of a row, and how many there are: rows may have no elements.
    shape: Box<[usize]>,
    count: usize,
}

impl<T: Element> Rows<T> {
    /// `count` rows of this shape, which have as many elements as there are values.
    pub(super) fn new(values: Vec<T>, count: usize, shape: &[usize]) -> Rows<T> {
        Rows { values: values.into(), shape: shape.into(), count }
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn values(&self) -> &[T] {
        &self.values
    }

    /// Elements of a row.
    pub(super) fn width(&self) -> usize {
        self.shape.iter().product()
    }

    pub(super) fn row(&self, index: usize) -> Option<&[T]> {
        let width = self.width();
        (index < self.count).then(|| &self.values[index * width..][..width])
    }

    /// The elements of the rows of these numbers, in this order.
    pub(super) fn select(&self, rows: &[usize]) -> Result<Vec<T>> {
        let mut selected = vec![T::default(); rows.len() * self.width()];
        self.gather(rows, &mut selected)?;
        Ok(selected)
    }

    /// The rows of these numbers on a device, `[b, ..]`.
    pub(super) fn batch(&self, rows: &[usize], device: &Device) -> Result<Tensor> {
        let shape: Vec<usize> = std::iter::once(rows.len()).chain(self.shape.iter().copied()).collect();
        Tensor::from_fill(&shape, device, |values| self.gather(rows, values))
    }

    /// Copies rows to the host's memory where a batch is put together.
    fn gather(&self, rows: &[usize], to: &mut [T]) -> Result<()> {
        let width = self.width();
        for (at, &index) in rows.iter().enumerate() {
            let row = self.row(index).ok_or_else(|| no_row("data set", index, self.count))?;
            to[at * width..][..width].copy_from_slice(row);
        }
        Ok(())
    }
}
