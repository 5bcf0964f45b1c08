//! Sums of many operands in one launch against a launch for each.

use super::*;
use crate::cuda::many_sums;
use crate::layout::{Dst, Layout, LoopAxis, Loops};
use crate::reduction::Axes;
use crate::{ReduceOp, reduce, reduce_workspace};
use device::cuda::Queue;
use device::{Binder, Cpu, DType, Use, Work};

/// Planes of rows of columns, and the axes that are summed along: columns, rows and both, of one block and of several.
const CASES: [([usize; 3], &[isize]); 16] = [
    ([1, 3, 64], &[1]),
    ([1, 1, 7], &[1]),
    ([1, 33, 5], &[1]),
    ([1, 130, 100], &[1]),
    ([1, 1024, 33], &[1]),
    ([1, 1025, 2], &[1]),
    ([1, 4096, 10], &[1]),
    ([1, 5, 3], &[2]),
    ([1, 40, 128], &[2]),
    ([1, 3, 4001], &[2]),
    ([3, 6, 25], &[0, 2]),
    ([8, 20, 144], &[0, 2]),
    ([5, 2, 604], &[0, 2]),
    ([2, 9, 1], &[0, 2]),
    ([4, 3, 50], &[0]),
    ([3, 10, 7], &[]),
];

/// Sums as a command.
struct Sums {
    dtype: DType,
    all: Vec<(Axes, [Dst<u8>; 2])>,
}

impl Work for Sums {
    fn run(&self, _: &Cpu<'_>) {}

    fn bind(&mut self, _: &mut dyn Binder) {}

    fn enqueue(&self, queue: &Queue<'_>) -> Result<()> {
        many_sums::sum(queue, self.dtype, self.all.iter().map(|(axes, operands)| (axes, *operands)))
    }
}

fn axes_of(shape: &[usize], reduced: &[isize]) -> Axes {
    let layout = Layout::contiguous(shape);
    let pick = |wanted: bool| {
        let is_reduced = |&axis: &usize| (reduced.is_empty() || reduced.contains(&(axis as isize))) == wanted;
        let axis = |axis: usize| LoopAxis { size: shape[axis], strides: [layout.strides()[axis]] };
        Loops::from_axes((0..shape.len()).filter(is_reduced).map(axis))
    };
    Axes { kept: pick(false), reduced: pick(true) }
}

/// The address of the first element.
fn start<T: Element>(of: &Array<T>) -> Dst<u8> {
    let view = of.view();
    Dst(view.buffer.ptr().wrapping_add(of.layout.offset() * size_of::<T>()))
}

fn sums_of<T: Real>() {
    let Some(Both { cuda, .. }) = both() else { return };
    let (mut pairs, mut expected, mut all) = (Vec::new(), Vec::new(), Vec::new());
    // Several launches, of operands that begin at multiples of packs and that do not.
    for (seed, (shape, reduced)) in (0..).zip(CASES.iter().cycle().take(6 * CASES.len())) {
        let behind = [0, 1, 3][seed / CASES.len() % 3];
        let [planes, rows, columns] = *shape;
        let x = Array::new(
            &cuda,
            &numbers::<T>(seed as u64, behind + planes * rows * columns),
            &[behind + planes * rows * columns],
        )
        .with(|layout| {
            let rest = layout.narrow("test", 0, behind, planes * rows * columns).expect("within the axis");
            rest.reshape("test", shape).expect("as many elements").expect("a view")
        });
        let axes = axes_of(shape, reduced);
        assert!(many_sums::fits(&axes), "{shape:?} {reduced:?}");
        let (kept, bytes) = (axes.kept.elements, reduce_workspace(&cuda, &x.layout, reduced));
        let workspace = Array::full(&cuda, 0_u8, &[bytes.expect("axes that exist").max(1)]);
        let shape: Vec<usize> = (0..3)
            .filter(|axis| !(reduced.is_empty() || reduced.contains(axis)))
            .map(|axis| shape[axis as usize])
            .collect();
        let [single, out] = [1, 2].map(|_| Array::full(&cuda, T::of(7.0), &shape));
        reduce(&cuda, ReduceOp::Sum, x.view(), reduced, Some(workspace.view()), single.view())
            .expect("a launch");
        assert_eq!(single.to_vec().len(), kept);
        expected.push(single.to_vec());
        all.push((axes, [start(&out), start(&x)]));
        pairs.push((x, out));
    }
    let uses: Vec<Use<'_>> = pairs
        .iter()
        .flat_map(|(x, out)| [Use::read(x.view().buffer), Use::write(out.view().buffer)])
        .collect();
    cuda.launch("sums", &uses, Sums { dtype: T::DTYPE, all }).expect("a launch");
    for ((x, out), (expected, case)) in pairs.iter().zip(expected.iter().zip(CASES.iter().cycle())) {
        let found = out.to_vec();
        let differs = found.iter().zip(expected).position(|(found, expected)| !found.agrees(*expected, 0.0));
        let at = x.layout.offset();
        assert!(differs.is_none(), "{:?} {case:?} at {at}: {differs:?} of {}", T::DTYPE, found.len());
    }
}

#[test]
fn many_sums_are_those_of_single_reductions() {
    sums_of::<f32>();
    sums_of::<f64>();
    sums_of::<bf16>();
    sums_of::<f16>();
}

/// What a launch leaves to reductions by themselves.
#[test]
fn long_rows_and_other_axes_are_not_summed_together() {
    for (shape, reduced) in
        [([1, 4097, 8], &[1][..]), ([1, 2, 5000], &[2]), ([3, 4, 5], &[1]), ([0, 4, 5], &[0, 2])]
    {
        assert!(!many_sums::fits(&axes_of(&shape, reduced)), "{shape:?} {reduced:?}");
    }
    // Every other column, and rows of a permuted matrix that are no run.
    let axes = axes_of(&[1, 4, 6], &[1]);
    let narrow = Loops::from_axes([LoopAxis { size: 3, strides: [2] }]);
    assert!(!many_sums::fits(&Axes { kept: narrow, ..axes.clone() }));
    let nested = [LoopAxis { size: 2, strides: [6] }, LoopAxis { size: 2, strides: [12] }];
    assert!(!many_sums::fits(&Axes { reduced: Loops::from_axes(nested), ..axes }));
}
