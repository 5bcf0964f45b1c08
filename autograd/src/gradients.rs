//! Gradients as values.

use std::fmt;
use std::ops::Range;

use device::{AtCaller, Capture, Shared};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use tensor::{DType, Device, Error, ErrorKind, Result, Tensor, Tensors, accumulate};

use crate::Var;
use crate::mode::is_recording;
use crate::ops::position;
use crate::place::{OpStream, on};
use crate::tape::Node;

/// The gradients of the leaves that a backward pass reached, in the order in which the leaves were made.
///
/// Stores of several batches are merged in batch order, so that the sum does not depend on which batch was done
/// first.
///
/// Each gradient has a storage of its own when a pass is done, with an element for each index: what was shared with
/// another gradient, with the gradient that was given or with a tensor of the graph, or expanded, is a copy. So a change
/// in place of what [`get`](Gradients::get) hands out is seen in this store, as by an optimizer's step, and nowhere else.
/// What [`map`](Gradients::map) puts here and [`merge`](Gradients::merge) takes over is copied in the same cases. A clone of
/// the store shares the gradients, as a clone of a tensor does. Gradients are constants, unless the pass was recorded: with
/// `create_graph` they have places on the tape, and a given gradient's graph is part of theirs.
#[derive(Clone, Default)]
pub struct Gradients {
    entries: Vec<Entry>,
    /// From a leaf's address to its entry, which keeps the address from being used again.
    index: FxHashMap<usize, usize>,
}

/// A leaf, or another node where a pass ended, and its gradient.
pub(crate) type Entry = (Shared<Node>, Var);

#[derive::located]
impl Gradients {
    pub(crate) fn collect(mut leaves: Vec<Entry>, recorded: bool) -> Result<Gradients> {
        leaves.sort_by_key(|(leaf, _)| leaf.sequence);
        for (leaf, gradient) in &mut leaves {
            separate(&leaf.place, gradient, recorded)?;
        }
        Ok(Gradients::of(leaves))
    }

    /// The gradient of a leaf, of the leaf's shape; `None` if the pass did not reach it.
    pub fn get(&self, leaf: &Var) -> Option<Tensor> {
        self.get_var(leaf).map(|gradient| gradient.value().clone())
    }

    /// The gradient of a leaf with its own place on the tape, which it has after a pass with `create_graph`.
    pub fn get_var(&self, leaf: &Var) -> Option<&Var> {
        self.position(leaf).map(|at| &self.entries[at].1)
    }

    fn position(&self, leaf: &Var) -> Option<usize> {
        self.index.get(&leaf.node.as_ref()?.address()).copied()
    }

    /// Puts another gradient in the place of a leaf's; does nothing and returns false if there is none. The store shares
    /// the storage with whoever else holds it.
    ///
    /// # Errors
    /// `ShapeMismatch`, `DTypeMismatch` or `DeviceMismatch` if it does not fit the leaf.
    pub fn replace(&mut self, leaf: &Var, gradient: Var) -> Result<bool> {
        let Some(at) = self.position(leaf) else { return Ok(false) };
        check_like("Gradients::replace", leaf, &gradient)?;
        self.entries[at].1 = gradient;
        Ok(true)
    }

    /// Puts gradients into the store, in the place of those that their leaves have there. The store shares their storages with
    /// whoever else holds them.
    ///
    /// # Errors
    /// `NoGradient` for a value that is no leaf; `ShapeMismatch`, `DTypeMismatch` or `DeviceMismatch` for a gradient that does not
    /// fit its leaf. Nothing is changed then.
    pub fn insert(&mut self, gradients: impl IntoIterator<Item = (Var, Var)>) -> Result<()> {
        const OP: &str = "Gradients::insert";
        let entry = |(leaf, gradient): (Var, Var)| {
            check_like(OP, &leaf, &gradient)?;
            let leaf = leaf
                .node
                .filter(|node| node.is_leaf())
                .ok_or(Error::new(ErrorKind::NoGradient { op: OP }))?;
            Ok((leaf, gradient))
        };
        let fresh = Gradients::of(gradients.into_iter().map(entry).collect::<Result<_>>()?);
        let mut entries = std::mem::take(self).entries;
        entries.retain(|(leaf, _)| !fresh.index.contains_key(&leaf.address()));
        entries.extend(fresh.entries);
        entries.sort_by_key(|(leaf, _)| leaf.sequence);
        *self = Gradients::of(entries);
        Ok(())
    }

    /// Takes the gradients of these leaves out of the store; `None` for one that it has none of.
    pub(crate) fn take(&mut self, leaves: &[Var]) -> Vec<Option<Var>> {
        let places: Vec<Option<usize>> = leaves.iter().map(|leaf| self.position(leaf)).collect();
        let mut entries: Vec<Option<Entry>> = self.entries.drain(..).map(Some).collect();
        let taken =
            places.into_iter().map(|place| entries[place?].take().map(|(_, gradient)| gradient)).collect();
        *self = Gradients::of(entries.into_iter().flatten().collect());
        taken
    }

    fn of(entries: Vec<Entry>) -> Gradients {
        let index = entries.iter().enumerate().map(|(at, (leaf, _))| (leaf.address(), at)).collect();
        Gradients { entries, index }
    }

    /// Adds another store to this one, leaf by leaf: `self + other`. Leaves that only `other` has are taken over.
    /// Asynchronous; runs on the current stream, as one command a device where gradients are this store's alone.
    ///
    /// # Errors
    /// Whatever adding two tensors may return.
    pub fn merge(&mut self, other: Gradients) -> Result<()> {
        let mut pairs = Vec::new();
        for (leaf, mut gradient) in other.entries {
            match self.index.get(&leaf.address()).and_then(|&at| self.entries.get_mut(at)) {
                Some((_, mine)) if adds_in_place(mine, &gradient) => {
                    // Not recorded, it has no place on the tape.
                    mine.node = None;
                    pairs.push((mine.value.clone(), gradient.value));
                }
                Some((_, mine)) => add_gradients(mine, &gradient)?,
                None => {
                    separate(&leaf.place, &mut gradient, true)?;
                    self.index.insert(leaf.address(), self.entries.len());
                    self.entries.push((leaf, gradient));
                }
            }
        }
        accumulate(&pairs)
    }

    /// The gradients, in the order in which the leaves were made.
    pub fn iter(&self) -> impl Iterator<Item = &Var> {
        self.entries.iter().map(|(_, gradient)| gradient)
    }

    /// Calls `f` with each gradient on the stream that its leaf was made on and puts what it returns in its place.
    ///
    /// # Errors
    /// What `f` returns, and as for [`replace`](Self::replace); the gradients before it are replaced by then.
    pub fn map(&mut self, mut f: impl FnMut(&Var) -> Result<Var>) -> Result<()> {
        for (leaf, gradient) in &mut self.entries {
            let stream = leaf.place.elsewhere(gradient.device());
            let changed = on(stream.as_ref(), || AtCaller::user(|| f(gradient)))?;
            check_like("Gradients::map", gradient, &changed)?;
            *gradient = changed;
            separate(&leaf.place, gradient, true)?;
        }
        Ok(())
    }

    /// The gradients with what they are of, each as a value of its form that has its place on the tape.
    pub(crate) fn into_nodes(self) -> impl Iterator<Item = (Var, Var)> {
        let stand_in =
            |(node, gradient): Entry| (Var { value: gradient.value.clone(), node: Some(node) }, gradient);
        self.entries.into_iter().map(stand_in)
    }

    /// How many leaves have a gradient.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether no leaf has a gradient.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

/// Makes a gradient the caller's own, as it is handed out: a constant unless the pass was recorded, and a copy, made on the
/// stream of its value, if the storage has other owners or lacks elements.
pub(crate) fn separate(place: &OpStream, gradient: &mut Var, recorded: bool) -> Result<()> {
    if !recorded {
        gradient.node = None;
    }
    let value = &gradient.value;
    if !value.is_unique() || value.layout().overlaps_itself() {
        gradient.value = on(place.elsewhere(value.device()).as_ref(), || value.copy())?;
    }
    Ok(())
}

impl Tensors for Gradients {
    fn rebuild(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        let entry = |(leaf, gradient): &Entry| Ok((leaf.clone(), gradient.rebuild(f)?));
        Ok(Gradients {
            entries: self.entries.iter().map(entry).collect::<Result<_>>()?,
            index: self.index.clone(),
        })
    }
}

impl fmt::Debug for Gradients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(Var::shape)).finish()
    }
}

/// A gradient of the shape, type and device of `value`.
pub(crate) fn check_like(op: &'static str, value: &Var, gradient: &Var) -> Result<()> {
    check_form(op, value.shape(), value.dtype(), gradient)?;
    Error::require_same_device(op, "gradient", value.device(), gradient.device())
}

pub(crate) fn check_form(op: &'static str, shape: &[usize], dtype: DType, gradient: &Var) -> Result<()> {
    let given = gradient.shape();
    // Shapes are short, and `==` makes a call.
    let is_same = given.len() == shape.len() && given.iter().zip(shape).all(|(a, b)| a == b);
    Error::require_shapes(is_same, op, "gradient", shape, given)?;
    gradient.dtype().require(op, "gradient", dtype)
}

/// A gradient on the device of `place`; `known` is another place and its device.
pub(crate) fn check_place(
    op: &'static str,
    place: &OpStream,
    gradient: &Var,
    known: (&OpStream, &Device),
) -> Result<()> {
    let device = gradient.device();
    if (place.id() == known.0.id() && device == known.1) || place.is_on(device) {
        return Ok(());
    }
    let lhs = format!("the device of stream {}", place.id()).into();
    Err(Error::new(ErrorKind::DeviceMismatch { op, operand: "gradient", lhs, rhs: device.name().into() }))
}

/// Whether `gradient` can be added where `sum` is: nobody else can see it, and nothing is recorded.
fn adds_in_place(sum: &Var, gradient: &Var) -> bool {
    let recorded = is_recording() && (sum.requires_grad() || gradient.requires_grad());
    !recorded && sum.value.is_unique() && !sum.value.layout().overlaps_itself()
}

/// `sum += gradient`, in place where nobody else can see it. Not in a captured step, if the elements lie there as they would in place:
/// its plan finds memory by itself, and what takes the sum as it was so far holds nobody up.
pub(crate) fn add_gradients(sum: &mut Var, gradient: &Var) -> Result<()> {
    let alike = || sum.value.is_contiguous() && gradient.value().is_contiguous();
    if Capture::is_of(sum.device()) && alike() || !adds_in_place(sum, gradient) {
        *sum = sum.add(gradient)?;
        return Ok(());
    }
    // Not recorded, it has no place on the tape.
    sum.node = None;
    sum.value.add_(gradient.value())
}

/// The sum of the gradients that a value has received so far.
pub(crate) struct Sum {
    value: Var,
    /// Where it is written, unless it is everywhere.
    written: Option<Written>,
}

/// Ranges along an axis, in order and apart.
struct Written {
    axis: isize,
    ranges: SmallVec<[Range<usize>; 4]>,
}

impl Sum {
    pub(crate) fn of(gradient: Var) -> Sum {
        Sum { value: gradient, written: None }
    }

    /// The sum after the first gradient, that of a range of an axis of a value of this shape.
    pub(crate) fn of_part(shape: &[usize], gradient: &Var, axis: isize, range: Range<usize>) -> Result<Sum> {
        let value = Var::constant(Tensor::empty(shape, gradient.dtype(), gradient.device())?);
        let mut sum = Sum { value, written: Some(Written { axis, ranges: SmallVec::new() }) };
        sum.add_part(gradient, axis, range)?;
        Ok(sum)
    }

    /// Adds the gradient of a range of an axis: it is written where nothing is yet, and otherwise added in place, or in a copy if somebody
    /// else can see the sum.
    pub(crate) fn add_part(&mut self, gradient: &Var, axis: isize, range: Range<usize>) -> Result<()> {
        let part = |sum: &Var| sum.value.narrow(axis, range.start, range.len());
        if let Some(written) = self.written.as_mut().filter(|written| written.is_apart(axis, &range)) {
            part(&self.value)?.copy_(gradient.value())?;
            written.insert(range);
            return Ok(());
        }
        let sum = self.complete()?;
        if !adds_in_place(sum, gradient) {
            sum.value = sum.value.copy()?;
        }
        sum.node = None;
        part(sum)?.add_(gradient.value())
    }

    /// The sum, with zeros where no gradient was written.
    pub(crate) fn complete(&mut self) -> Result<&mut Var> {
        if let Some(Written { axis, ranges }) = self.written.take() {
            let value = &self.value.value;
            let size = value.shape()[position(axis, value.rank())];
            let starts = [0].into_iter().chain(ranges.iter().map(|range| range.end));
            let ends = ranges.iter().map(|range| range.start).chain([size]);
            for (start, end) in starts.zip(ends).filter(|(start, end)| start < end) {
                value.narrow(axis, start, end - start)?.fill_(0.0)?;
            }
        }
        Ok(&mut self.value)
    }

    /// What [`complete`](Self::complete) returned.
    pub(crate) fn into_value(self) -> Var {
        self.value
    }

    pub(crate) fn device(&self) -> &Device {
        self.value.device()
    }
}

impl Written {
    /// Most ranges: what lies between them takes a command each.
    const RANGES: usize = 4;

    /// Whether nothing of a range of an axis is written, and it may be kept.
    fn is_apart(&self, axis: isize, range: &Range<usize>) -> bool {
        let is_apart = |written: &Range<usize>| range.end <= written.start || written.end <= range.start;
        self.axis == axis && self.ranges.len() < Self::RANGES && self.ranges.iter().all(is_apart)
    }

    fn insert(&mut self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        let at = self.ranges.partition_point(|written| written.start < range.start);
        self.ranges.insert(at, range);
        self.ranges.dedup_by(|next, written| {
            let touches = written.end == next.start;
            if touches {
                written.end = next.end;
            }
            touches
        });
    }
}

#[cfg(test)]
mod tests;
