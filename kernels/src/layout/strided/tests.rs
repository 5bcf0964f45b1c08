use proptest::prelude::*;

use super::*;
use crate::loops::Loops;
use crate::testing::index_of;

/// Where each element lies, in logical order.
fn places(layout: &Layout) -> Vec<usize> {
    (0..layout.elements()).map(|i| place(layout, i)).collect()
}

fn place(layout: &Layout, mut i: usize) -> usize {
    let mut place = layout.offset() as isize;
    for (&size, &stride) in layout.shape().iter().zip(layout.strides()).rev() {
        place += (i % size) as isize * stride;
        i /= size;
    }
    place as usize
}

/// A tensor as a list of places, on which every view is easy to get right.
#[derive(Clone, Debug)]
struct Model {
    shape: Vec<usize>,
    places: Vec<usize>,
}

impl Model {
    fn contiguous(shape: &[usize]) -> Model {
        Model { shape: shape.to_vec(), places: (0..shape.iter().product()).collect() }
    }

    /// A view whose element at each index is the one that `source` names.
    fn view(&self, shape: Vec<usize>, source: impl Fn(&[usize]) -> Vec<usize>) -> Model {
        let places = (0..shape.iter().product())
            .map(|i: usize| {
                let from = source(&index_of(&shape, i));
                self.places[from.iter().zip(&self.shape).fold(0, |flat, (&i, &size)| flat * size + i)]
            })
            .collect();
        Model { shape, places }
    }
}

/// One step of a random chain of views; the numbers are reduced to what fits.
#[derive(Clone, Debug)]
enum Step {
    Permute(Vec<usize>),
    Narrow(usize, usize, usize),
    Expand(usize, usize),
    Unsqueeze(usize),
    Squeeze(usize),
    Transpose(usize, usize),
    Reshape(usize, usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        prop::collection::vec(0..100_usize, 8).prop_map(Step::Permute),
        (0..8_usize, 0..8_usize, 0..8_usize).prop_map(|(axis, start, len)| Step::Narrow(axis, start, len)),
        (0..8_usize, 1..4_usize).prop_map(|(axis, size)| Step::Expand(axis, size)),
        (0..8_usize).prop_map(Step::Unsqueeze),
        (0..8_usize).prop_map(Step::Squeeze),
        (0..8_usize, 0..8_usize).prop_map(|(a, b)| Step::Transpose(a, b)),
        (0..8_usize, 0..8_usize).prop_map(|(axis, factor)| Step::Reshape(axis, factor)),
    ];
    prop::collection::vec(step, 0..7)
}

/// Applies a step to both, or says that the layout's answer is wrong.
fn apply(layout: &Layout, model: &Model, step: &Step) -> Option<(Layout, Model)> {
    let rank = model.shape.len();
    let ok = |layout: Result<Layout>| layout.expect("a step that fits");
    match step {
        Step::Permute(keys) if rank > 0 => {
            let mut axes: Vec<usize> = (0..rank).collect();
            axes.sort_by_key(|&axis| (keys[axis % 8], axis));
            let shape = axes.iter().map(|&axis| model.shape[axis]).collect();
            let permuted = model.view(shape, |index| {
                let mut from = vec![0; rank];
                axes.iter().zip(index).for_each(|(&axis, &i)| from[axis] = i);
                from
            });
            Some((ok(layout.permute("test", &axes)), permuted))
        }
        Step::Narrow(axis, start, len) if rank > 0 => {
            let axis = axis % rank;
            let start = start % (model.shape[axis] + 1);
            let len = len % (model.shape[axis] - start + 1);
            let mut shape = model.shape.clone();
            shape[axis] = len;
            let narrowed = model.view(shape, |index| {
                let mut from = index.to_vec();
                from[axis] += start;
                from
            });
            // Negative axes name the same ones.
            Some((ok(layout.narrow("test", axis as isize - rank as isize, start, len)), narrowed))
        }
        Step::Expand(axis, size) => {
            let mut shape = model.shape.clone();
            shape.iter_mut().filter(|size| **size == 1).take(axis % 3).for_each(|one| *one = *size);
            shape.insert(0, *size);
            let expanded = model.view(shape.clone(), |index| {
                index[1..].iter().zip(&model.shape).map(|(&i, &size)| if size == 1 { 0 } else { i }).collect()
            });
            Some((ok(layout.expand("test", &shape)), expanded))
        }
        Step::Unsqueeze(axis) => {
            let axis = axis % (rank + 1);
            let mut shape = model.shape.clone();
            shape.insert(axis, 1);
            Some((ok(layout.unsqueeze("test", axis as isize)), Model { shape, ..model.clone() }))
        }
        Step::Squeeze(axis) if rank > 0 => {
            let axis = axis % rank;
            let mut shape = model.shape.clone();
            if shape[axis] == 1 {
                shape.remove(axis);
            }
            Some((ok(layout.squeeze("test", axis as isize)), Model { shape, ..model.clone() }))
        }
        Step::Transpose(a, b) if rank > 0 => {
            let (a, b) = (a % rank, b % rank);
            let mut shape = model.shape.clone();
            shape.swap(a, b);
            let transposed = model.view(shape, |index| {
                let mut from = index.to_vec();
                from.swap(a, b);
                from
            });
            Some((ok(layout.transpose("test", a as isize, b as isize)), transposed))
        }
        Step::Reshape(axis, factor) if rank > 0 => {
            // Merges all axes from one on, then splits a factor off.
            let axis = axis % rank;
            let merged: usize = model.shape[axis..].iter().product();
            let mut shape = model.shape[..axis].to_vec();
            let factor = (1..=factor + 1).rev().find(|&factor| merged.is_multiple_of(factor)).unwrap_or(1);
            shape.extend([factor, merged / factor]);
            match layout.reshape("test", &shape).expect("as many elements") {
                Some(layout) => Some((layout, Model { shape, ..model.clone() })),
                None => {
                    assert!(!layout.is_contiguous(), "a contiguous layout takes any shape");
                    None
                }
            }
        }
        _ => None,
    }
}

proptest! {
    /// Every chain of views names the places that the model names.
    #[test]
    fn views_agree_with_a_naive_model(shape in prop::collection::vec(1..5_usize, 0..4), steps in steps()) {
        let (mut layout, mut model) = (Layout::contiguous(&shape), Model::contiguous(&shape));
        for step in &steps {
            if let Some(next) = apply(&layout, &model, step) {
                (layout, model) = next;
            }
            prop_assert_eq!(layout.shape(), &model.shape[..]);
            prop_assert_eq!(&places(&layout), &model.places, "{:?}", layout);
            prop_assert_eq!(layout.elements(), model.places.len());
            prop_assert_eq!(layout.end(), model.places.iter().max().map_or(0, |last| last + 1));
            let row_major = model.places.windows(2).all(|pair| pair[1] == pair[0] + 1);
            prop_assert_eq!(layout.is_contiguous(), row_major);
            let mut sorted = model.places.clone();
            sorted.sort_unstable();
            sorted.dedup();
            prop_assert_eq!(layout.overlaps_itself(), sorted.len() < model.places.len());
            prop_assert_eq!(layout.is_uniform(), sorted.len() <= 1 && !model.places.is_empty() || layout.is_uniform() && model.places.is_empty());
            if !sorted.is_empty() {
                let dense = sorted.len() == model.places.len() && sorted[sorted.len() - 1] - sorted[0] + 1 == sorted.len();
                prop_assert_eq!(layout.is_dense(), dense);
            }
        }
    }

    /// A reshape is refused only where no strides exist for it.
    #[test]
    fn reshape_is_refused_only_where_it_takes_a_copy(
        shape in prop::collection::vec(1..5_usize, 1..4),
        steps in steps(),
        cut in 0..4_usize,
    ) {
        let (mut layout, mut model) = (Layout::contiguous(&shape), Model::contiguous(&shape));
        for step in steps.iter().filter(|step| !matches!(step, Step::Reshape(..))) {
            if let Some(next) = apply(&layout, &model, step) {
                (layout, model) = next;
            }
        }
        let cut = cut.min(model.shape.len());
        let target = [model.shape[..cut].iter().product(), model.shape[cut..].iter().product::<usize>()];
        let found = layout.reshape("test", &target).expect("as many elements");
        // Two axes can be strided if all rows and all columns have equal steps.
        let [rows, columns] = target;
        let at = |i: usize, j: usize| model.places[i * columns + j] as isize;
        let possible = rows * columns == 0
            || (0..rows).all(|i| (0..columns).all(|j| {
                let down = if rows > 1 { at(1, 0) - at(0, 0) } else { 0 };
                let right = if columns > 1 { at(0, 1) - at(0, 0) } else { 0 };
                at(i, j) == at(0, 0) + i as isize * down + j as isize * right
            }));
        prop_assert_eq!(found.is_some(), possible, "{:?} to {:?}", layout, target);
    }

    /// Loops visit the same elements as the layouts, whatever range is asked for.
    #[test]
    fn loops_visit_every_element_once(shape in prop::collection::vec(1..5_usize, 0..4), steps in steps(), cut in 0.0..1.0) {
        let (mut layout, mut model) = (Layout::contiguous(&shape), Model::contiguous(&shape));
        for step in &steps {
            if let Some(next) = apply(&layout, &model, step) {
                (layout, model) = next;
            }
        }
        let dense = Layout::contiguous(layout.shape());
        let visit = |loops: &Loops<2>, ranges: &[std::ops::Range<usize>]| {
            let mut pairs = Vec::new();
            for range in ranges {
                loops.for_runs(range.clone(), |[a, b], len| {
                    let [step_a, step_b] = loops.inner().strides;
                    for i in 0..len as isize {
                        pairs.push(((a + i * step_a) as usize, (b + i * step_b) as usize + layout.offset()));
                    }
                });
            }
            pairs
        };
        let expected: Vec<_> = model.places.iter().copied().enumerate().collect();
        let n = layout.elements();
        let middle = (n as f64 * cut) as usize;
        let logical = Loops::new([&dense, &layout]);
        prop_assert_eq!(&visit(&logical, &[0..0, 0..n]), &expected);
        prop_assert_eq!(&visit(&logical, &[0..middle, middle..n]), &expected);
        // In another order, the same pairs.
        let swapped = Loops::in_memory_order([&layout, &dense]);
        let mut pairs: Vec<_> = visit_swapped(&swapped, layout.offset());
        pairs.sort_unstable();
        prop_assert_eq!(&pairs, &expected);
    }

    #[test]
    fn broadcast_shapes_agree_with_their_definition(lhs in prop::collection::vec(0..4_usize, 0..4), rhs in prop::collection::vec(0..4_usize, 0..4)) {
        let rank = lhs.len().max(rhs.len());
        let size = |shape: &[usize], axis: usize| {
            (axis + shape.len()).checked_sub(rank).map_or(1, |axis| shape[axis])
        };
        let expected: Option<Vec<usize>> = (0..rank)
            .map(|axis| match (size(&lhs, axis), size(&rhs, axis)) {
                (a, b) if a == b => Some(a),
                (1, b) => Some(b),
                (a, 1) => Some(a),
                _ => None,
            })
            .collect();
        prop_assert_eq!(broadcast_shapes("test", &lhs, &rhs).ok().map(|shape| shape.to_vec()), expected);
    }
}

fn visit_swapped(loops: &Loops<2>, offset: usize) -> Vec<(usize, usize)> {
    let mut pairs = Vec::new();
    loops.for_runs(0..loops.elements, |[a, b], len| {
        let [step_a, step_b] = loops.inner().strides;
        for i in 0..len as isize {
            pairs.push(((b + i * step_b) as usize, (a + i * step_a) as usize + offset));
        }
    });
    pairs
}

#[test]
fn errors_name_what_was_wrong() {
    let layout = Layout::contiguous(&[2, 3]);
    assert!(matches!(
        layout.reshape("op", &[4]).as_ref().map_err(Error::kind),
        Err(ErrorKind::ShapeMismatch { op: "op", .. })
    ));
    assert!(matches!(
        layout.reshape("op", &[usize::MAX, 3]).as_ref().map_err(Error::kind),
        Err(ErrorKind::ShapeMismatch { .. })
    ));
    assert!(matches!(
        layout.permute("op", &[0, 0]).as_ref().map_err(Error::kind),
        Err(ErrorKind::InvalidArgument { .. })
    ));
    assert!(matches!(
        layout.permute("op", &[0]).as_ref().map_err(Error::kind),
        Err(ErrorKind::InvalidArgument { .. })
    ));
    assert!(matches!(
        layout.permute("op", &[0, 2]).as_ref().map_err(Error::kind),
        Err(ErrorKind::AxisOutOfRange { axis: 2, rank: 2, .. })
    ));
    assert!(matches!(
        layout.transpose("op", 0, -3).as_ref().map_err(Error::kind),
        Err(ErrorKind::AxisOutOfRange { axis: -3, .. })
    ));
    assert!(matches!(
        layout.narrow("op", 1, 2, 2).as_ref().map_err(Error::kind),
        Err(ErrorKind::InvalidArgument { .. })
    ));
    assert!(matches!(
        layout.narrow("op", 1, usize::MAX, 2).as_ref().map_err(Error::kind),
        Err(ErrorKind::InvalidArgument { .. })
    ));
    assert!(matches!(
        layout.expand("op", &[2, 4]).as_ref().map_err(Error::kind),
        Err(ErrorKind::ShapeMismatch { .. })
    ));
    assert!(matches!(
        layout.expand("op", &[3]).as_ref().map_err(Error::kind),
        Err(ErrorKind::ShapeMismatch { .. })
    ));
    assert!(matches!(
        layout.expand("op", &[usize::MAX, 2, 3]).as_ref().map_err(Error::kind),
        Err(ErrorKind::ShapeMismatch { .. })
    ));
    assert!(matches!(
        layout.squeeze("op", 2).as_ref().map_err(Error::kind),
        Err(ErrorKind::AxisOutOfRange { .. })
    ));
    assert!(matches!(
        layout.unsqueeze("op", 3).as_ref().map_err(Error::kind),
        Err(ErrorKind::AxisOutOfRange { .. })
    ));
    assert!(matches!(
        normalize_axes("op", &[0, -2], 2).as_ref().map_err(Error::kind),
        Err(ErrorKind::InvalidArgument { .. })
    ));
    assert_eq!(normalize_axes("op", &[-1, 0], 2).expect("two axes")[..], [0, 1]);
    assert_eq!(normalize_axes("op", &[], 2).expect("all axes")[..], [0, 1]);
}

#[test]
fn empty_and_scalar_layouts_are_contiguous() {
    let scalar = Layout::contiguous(&[]);
    assert_eq!((scalar.rank(), scalar.elements(), scalar.end()), (0, 1, 1));
    assert!(scalar.is_contiguous() && scalar.is_uniform());
    let empty = Layout::contiguous(&[3, 0, 2]);
    assert_eq!((empty.elements(), empty.end(), empty.is_contiguous()), (0, 0, true));
    let reshaped = empty.reshape("test", &[0, usize::MAX]).expect("no elements").expect("a view");
    assert_eq!(reshaped.elements(), 0);
    assert_eq!(empty.permute("test", &[2, 0, 1]).expect("three axes").shape(), [2, 3, 0]);
}

#[test]
fn strides_that_reach_no_element_are_zero() {
    for shape in [&[4, usize::MAX][..], &[4, 1, 1, 1, usize::MAX]] {
        let huge = Layout::contiguous(shape);
        assert_eq!(huge.strides()[0], isize::MAX);
        let empty = huge.narrow("test", -1, 0, 0).expect("within the axis");
        assert!(empty.strides().iter().all(|&stride| stride == 0), "{empty:?}");
    }
}

#[test]
fn sizes_and_strides_that_cannot_be_counted_are_reshaped_or_copied() {
    let column = Layout::contiguous(&[6, usize::MAX]).narrow("test", 1, 0, 1).expect("within the axis");
    let split = column.reshape("test", &[2, 3]).expect("six elements").expect("a view");
    assert_eq!(split.strides(), [isize::MAX, isize::MAX]);
    let huge = Layout::contiguous(&[1 << 33, 1 << 33]).unsqueeze("test", 0).expect("an axis");
    let huge = huge.transpose("test", 0, 2).expect("two axes");
    assert!(huge.reshape("test", &[usize::MAX]).is_ok());
}

#[test]
fn same_shape_looks_at_the_shape_alone() {
    let shapes: [&[usize]; 8] =
        [&[], &[0], &[2], &[2, 3], &[2, 3, 0], &[2, 3, 1, 1], &[2, 3, 1, 1, 1], &[2, 3, 1, 1, 2]];
    for lhs in shapes {
        for rhs in shapes {
            let (lhs, rhs) = (Layout::contiguous(lhs), Layout::contiguous(rhs));
            assert_eq!(lhs.same_shape(&rhs), lhs.shape() == rhs.shape(), "{lhs:?} {rhs:?}");
        }
    }
    let expanded = Layout::contiguous(&[1, 3]).expand("test", &[2, 3]).expect("a broadcast");
    assert!(expanded.same_shape(&Layout::contiguous(&[2, 3])));
}
