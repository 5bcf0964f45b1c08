//! Size classes, and bitmaps over them: the smallest fitting free block in a constant number of steps.

use crate::block::{Blocks, NONE, UNIT};

/// Classes of one power of two. A size is rounded up by less than one part in this many.
const COLUMNS: u32 = 32;
const COLUMNS_LOG2: u32 = COLUMNS.trailing_zeros();
const ROWS: usize = 28;
const CLASSES: usize = ROWS * COLUMNS as usize;

/// The largest block, in units: half a tebibyte.
const LARGEST: usize = 1 << 31;

/// The class of blocks of `units` units. Below 64 units each size is a class of its own.
#[inline]
pub(crate) fn class_of(units: u32) -> usize {
    if units < 2 * COLUMNS {
        return units as usize;
    }
    let shift = units.ilog2() - COLUMNS_LOG2;
    ((shift as usize + 1) << COLUMNS_LOG2) + ((units >> shift) - COLUMNS) as usize
}

/// The units that a request of `bytes` bytes takes: the smallest size of a class that holds it, so that every
/// block of that class fits. `None` if no block is that large.
#[inline]
pub(crate) fn units_for(bytes: usize) -> Option<u32> {
    let units = bytes.div_ceil(UNIT);
    if units > LARGEST {
        return None;
    }
    let units = units as u32;
    if units < 2 * COLUMNS {
        return Some(units);
    }
    let mask = (1 << (units.ilog2() - COLUMNS_LOG2)) - 1;
    Some((units + mask) & !mask)
}

/// A set of classes: a bit for each, and one for each row of them that has a bit.
#[derive(Default)]
struct Classes {
    rows: u32,
    columns: [u32; ROWS],
}

impl Classes {
    #[inline]
    fn insert(&mut self, class: usize) {
        self.columns[class >> COLUMNS_LOG2] |= 1 << (class as u32 % COLUMNS);
        self.rows |= 1 << (class >> COLUMNS_LOG2);
    }

    #[inline]
    fn remove(&mut self, class: usize) {
        let row = class >> COLUMNS_LOG2;
        self.columns[row] &= !(1 << (class as u32 % COLUMNS));
        if self.columns[row] == 0 {
            self.rows &= !(1 << row);
        }
    }

    /// The first class from `class` on that is in the set.
    #[inline]
    fn find(&self, class: usize) -> Option<usize> {
        let row = class >> COLUMNS_LOG2;
        let columns = self.columns[row] & (u32::MAX << (class as u32 % COLUMNS));
        if columns != 0 {
            return Some((row << COLUMNS_LOG2) + columns.trailing_zeros() as usize);
        }
        let rows = self.rows & (u32::MAX << 1 << row);
        if rows == 0 {
            return None;
        }
        let row = rows.trailing_zeros() as usize;
        Some((row << COLUMNS_LOG2) + self.columns[row].trailing_zeros() as usize)
    }
}

/// Lists of free blocks, one for each class.
///
/// The lists run through the blocks themselves and are circular: a head's predecessor is the list's tail.
pub(crate) struct Bins {
    filled: Classes,
    heads: [u32; CLASSES],
}

impl Default for Bins {
    fn default() -> Self {
        Bins { filled: Classes::default(), heads: [NONE; CLASSES] }
    }
}

impl Bins {
    /// The first class from `class` on that has a block.
    #[inline]
    pub(crate) fn find(&self, class: usize) -> Option<usize> {
        self.filled.find(class)
    }

    /// The block at the head of `class`, which [`find`](Self::find) named.
    #[inline]
    pub(crate) fn head(&self, class: usize) -> u32 {
        self.heads[class]
    }

    /// Adds a block to the list of its size: at the front, or at the back if `back`.
    #[inline]
    pub(crate) fn insert(&mut self, blocks: &mut Blocks, index: u32, back: bool) {
        let class = class_of(blocks[index].units);
        let head = self.heads[class];
        if head == NONE {
            (blocks[index].before, blocks[index].after) = (index, index);
            self.heads[class] = index;
            self.filled.insert(class);
            return;
        }
        let tail = blocks[head].before;
        (blocks[index].before, blocks[index].after) = (tail, head);
        blocks[tail].after = index;
        blocks[head].before = index;
        if !back {
            self.heads[class] = index;
        }
    }

    /// Takes a block out of the list of `class`.
    #[inline]
    pub(crate) fn remove(&mut self, blocks: &mut Blocks, index: u32, class: usize) {
        let (before, after) = (blocks[index].before, blocks[index].after);
        if after == index {
            self.heads[class] = NONE;
            self.filled.remove(class);
            return;
        }
        blocks[before].after = after;
        blocks[after].before = before;
        if self.heads[class] == index {
            self.heads[class] = after;
        }
    }

    /// Every block of `class` and above, class by class and from front to back.
    pub(crate) fn iter<'a>(&'a self, blocks: &'a Blocks, class: usize) -> impl Iterator<Item = u32> + 'a {
        let classes = std::iter::successors(self.find(class), |&last| self.find_after(last));
        classes.flat_map(move |class| {
            let head = self.heads[class];
            let following = move |&last: &u32| Some(blocks[last].after).filter(|&next| next != head);
            std::iter::successors(Some(head), following)
        })
    }

    fn find_after(&self, class: usize) -> Option<usize> {
        (class + 1 < CLASSES).then(|| self.find(class + 1)).flatten()
    }
}

/// Stacks of blocks that were just freed, one for each class: a request of the same class takes the newest
/// back with nothing to split, merge or look for.
pub(crate) struct Stacks {
    heads: [u32; CLASSES],
    /// Classes that may have a block.
    filled: Classes,
}

impl Default for Stacks {
    fn default() -> Self {
        Stacks { heads: [NONE; CLASSES], filled: Classes::default() }
    }
}

impl Stacks {
    #[inline]
    pub(crate) fn push(&mut self, blocks: &mut Blocks, index: u32) {
        let block = &mut blocks[index];
        let class = class_of(block.units);
        block.after = self.heads[class];
        self.heads[class] = index;
        self.filled.insert(class);
    }

    /// Takes the newest block of `class`.
    #[inline]
    pub(crate) fn pop(&mut self, blocks: &Blocks, class: usize) -> Option<u32> {
        let index = self.heads[class];
        self.heads[class] = blocks.get(index)?.after;
        Some(index)
    }

    /// Takes a block of any class.
    pub(crate) fn pop_any(&mut self, blocks: &Blocks) -> Option<u32> {
        while let Some(class) = self.filled.find(0) {
            if let Some(index) = self.pop(blocks, class) {
                return Some(index);
            }
            self.filled.remove(class);
        }
        None
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Requests are rounded up to the first size of a class, by less than one part in 32.
        #[test]
        fn rounding_wastes_little(bytes in prop_oneof![1usize..100_000, 1usize..1 << 39]) {
            let units = units_for(bytes).unwrap();
            let size = units as usize * UNIT;
            prop_assert!(size >= bytes);
            prop_assert!(size - bytes < UNIT.max(bytes / 32 + UNIT));
            prop_assert_eq!(units_for(size), Some(units));
            prop_assert!(units == 1 || class_of(units - 1) < class_of(units), "the first of its class");
        }

        /// Classes ascend with sizes.
        #[test]
        fn classes_ascend(a in 1u32..1 << 31, b in 1u32..1 << 31) {
            prop_assert!(class_of(a.min(b)) <= class_of(a.max(b)));
            prop_assert!(class_of(a) < CLASSES);
        }
    }

    #[test]
    fn limits_of_sizes() {
        assert_eq!(units_for(0), Some(0));
        assert_eq!(units_for(1), Some(1));
        assert_eq!(units_for(LARGEST * UNIT), Some(LARGEST as u32));
        assert_eq!(units_for(LARGEST * UNIT + 1), None);
        assert_eq!(class_of(LARGEST as u32), CLASSES - 32);
        assert!(class_of(u32::MAX) < CLASSES);
    }
}
