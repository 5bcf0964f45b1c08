//! Lists of numbers on the host, one a row, of any length each.

use std::sync::Arc;

use device::{Device, Result};
use tensor::{Tensor, Tensors};

use super::{check_below, no_row};

/// A categorical feature with any number of values in each row, as numbers of rows of a table; cheap to clone.
///
/// ```
/// use models::Ragged;
/// # fn main() -> device::Result<()> {
/// let words = Ragged::new([vec![3, 1], vec![], vec![4]], 5)?;
/// assert_eq!((words.len(), words.row(0), words.row(1)), (3, Some(&[3, 1][..]), Some(&[][..])));
/// assert!(Ragged::new([vec![5]], 5).is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Ragged {
    values: Arc<[i64]>,
    /// Where each row ends.
    ends: Arc<[usize]>,
    size: usize,
}

/// The bags of some rows on a device, as [`EmbeddingBag::bags`](crate::EmbeddingBag::bags) takes them.
#[derive(Clone, Debug)]
pub struct RaggedBatch {
    /// The values of all rows, `[n]`, I64.
    pub indices: Tensor,
    /// Where each row's values begin, `[b]`, I64.
    pub offsets: Tensor,
}

impl Tensors for RaggedBatch {
    fn rebuild(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(RaggedBatch { indices: f(&self.indices)?, offsets: f(&self.offsets)? })
    }
}

#[derive::located]
impl Ragged {
    /// A list for each row, of numbers below `size`.
    ///
    /// # Errors
    /// `IndexOutOfRange` for any other number.
    pub fn new(rows: impl IntoIterator<Item = Vec<i64>>, size: usize) -> Result<Ragged> {
        let (mut values, mut ends) = (Vec::new(), Vec::new());
        for row in rows {
            values.extend(row);
            ends.push(values.len());
        }
        check_below("ragged", "index", &values, size)?;
        Ok(Ragged { values: values.into(), ends: ends.into(), size })
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// All numbers are below this: the rows of the table that they mean.
    pub fn size(&self) -> usize {
        self.size
    }

    /// One row's list, if there is such a row.
    pub fn row(&self, index: usize) -> Option<&[i64]> {
        let end = *self.ends.get(index)?;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        self.values.get(start..end)
    }

    /// The rows at `indices`, in that order.
    ///
    /// # Errors
    /// `IndexOutOfRange` for a row that is not there.
    pub fn select(&self, indices: &[usize]) -> Result<Ragged> {
        let (values, starts) = self.gather(indices)?;
        let ends = starts.iter().skip(1).map(|&start| start as usize).chain([values.len()]);
        let ends = ends.take(indices.len()).collect();
        Ok(Ragged { values: values.into(), ends, size: self.size })
    }

    /// The rows at `indices` on a device.
    ///
    /// # Errors
    /// As [`Ragged::select`]; `OutOfMemory`.
    pub fn batch(&self, indices: &[usize], device: &Device) -> Result<RaggedBatch> {
        let (values, starts) = self.gather(indices)?;
        Ok(RaggedBatch {
            indices: Tensor::from_slice(&values, &[values.len()], device)?,
            offsets: Tensor::from_slice(&starts, &[starts.len()], device)?,
        })
    }

    /// The values of some rows, and where each row begins.
    fn gather(&self, indices: &[usize]) -> Result<(Vec<i64>, Vec<i64>)> {
        let (mut values, mut starts) = (Vec::new(), Vec::with_capacity(indices.len()));
        for &index in indices {
            let row = self.row(index).ok_or_else(|| no_row("ragged", index, self.len()))?;
            starts.push(values.len() as i64);
            values.extend_from_slice(row);
        }
        Ok((values, starts))
    }
}

#[cfg(test)]
mod tests {
    use device::{Error, ErrorKind};

    use super::*;

    #[test]
    fn rows_are_selected_with_their_lists() {
        let lists = [vec![1, 2], vec![], vec![0], vec![2, 2, 1]];
        let ragged = Ragged::new(lists.clone(), 3).unwrap();
        let order = [3, 1, 0, 3];
        let selected = ragged.select(&order).unwrap();
        assert_eq!((selected.len(), selected.size()), (4, 3));
        for (at, &row) in order.iter().enumerate() {
            assert_eq!(selected.row(at), Some(&lists[row][..]));
        }
        assert_eq!(selected.row(4), None);
        let batch = ragged.batch(&order, &Device::cpu()).unwrap();
        assert_eq!(batch.indices.to_vec::<i64>().unwrap(), [2, 2, 1, 1, 2, 2, 2, 1]);
        assert_eq!(batch.offsets.to_vec::<i64>().unwrap(), [0, 3, 3, 5]);
        assert!(ragged.select(&[]).unwrap().is_empty());
        assert!(matches!(
            ragged.select(&[4]).as_ref().map_err(Error::kind),
            Err(ErrorKind::IndexOutOfRange { index: 4, size: 4, .. })
        ));
        assert!(matches!(
            Ragged::new([vec![0, -1]], 3).as_ref().map_err(Error::kind),
            Err(ErrorKind::IndexOutOfRange { index: -1, .. })
        ));
    }
}
