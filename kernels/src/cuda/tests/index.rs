//! Reading and adding at indices. Sums are taken in one order on both devices, so that they are the same.

use super::*;
use crate::{IndexSums, View, gather, index_select};

type Sums =
    for<'a> fn(&'a Stream, View<'a>, Option<View<'a>>, isize, View<'a>, View<'a>) -> Result<IndexSums<'a>>;

/// Indexed sums with a workspace, added in place.
fn add_at(
    sums: Sums,
    stream: &Stream,
    out: View<'_>,
    axis: isize,
    index: View<'_>,
    src: View<'_>,
) -> Result<()> {
    let sums = sums(stream, out, Some(out), axis, index, src)?;
    let memory = workspace(stream, sums.workspace());
    sums.launch(memory.as_ref().map(Array::view))
}

fn index_add(stream: &Stream, out: View<'_>, axis: isize, index: View<'_>, src: View<'_>) -> Result<()> {
    add_at(crate::index_add, stream, out, axis, index, src)
}

fn scatter_add(stream: &Stream, out: View<'_>, axis: isize, index: View<'_>, src: View<'_>) -> Result<()> {
    add_at(crate::scatter_add, stream, out, axis, index, src)
}

/// Indices below `size`, of which many are equal.
fn indices(seed: u64, len: usize, size: usize) -> Vec<i64> {
    values(seed, len).into_iter().map(|value| ((value + 1.0) / 2.0 * size as f64) as i64).collect()
}

fn rows_of<T: Real>() {
    let Some(both) = both() else { return };
    // Rows of the whole, indices, elements of a row.
    for (size, count, inner) in [
        (1, 1, 1),
        (5, 0, 4),
        (7, 13, 1),
        (100, 1000, 3),
        (50, 300, 64),
        (3, 1000, 16),
        (2000, 40, 300),
        // Rows of several runs.
        (3, 5000, 33),
        // Sorted; a row of more runs than a block sums at a time.
        (2, 20_000, 1),
        (3, 9000, 70),
        // Several passes of a sort.
        (3000, 13_000, 8),
    ] {
        for (axis, how) in
            [(0_isize, Stored::Dense), (1, Stored::Dense), (0, Stored::Transposed), (1, Stored::Narrowed)]
        {
            let shape = |rows: usize| if axis == 0 { [rows, inner] } else { [inner, rows] };
            let index = indices(1, count, size);
            both.same(("index_select", T::DTYPE, size, count, inner, axis, how), |stream| {
                let x = stored::<T>(stream, 2, shape(size), how);
                let index = Array::new(stream, &index, &[count]);
                let out = stored::<T>(stream, 3, shape(count), Stored::Dense);
                index_select(stream, "index_select", x.view(), axis, index.view(), out.view()).map(|()| out)
            });
            if T::DTYPE == device::DType::Bool {
                continue;
            }
            both.same(("index_add", T::DTYPE, size, count, inner, axis, how), |stream| {
                let out = stored::<T>(stream, 2, shape(size), how);
                let index = Array::new(stream, &index, &[count]);
                let src = stored::<T>(stream, 3, shape(count), Stored::Dense);
                index_add(stream, out.view(), axis, index.view(), src.view()).map(|()| out)
            });
        }
    }
}

fn places_of<T: Real>() {
    let Some(both) = both() else { return };
    for (whole, part) in [
        ([1, 1], [1, 1]),
        ([5, 7], [5, 7]),
        ([40, 3], [9, 2]),
        ([3, 1000], [3, 900]),
        ([600, 50], [500, 50]),
        // Sorted, and with more rows than a block owns.
        ([3, 5], [13_000, 5]),
        ([700, 2], [13_000, 2]),
        ([4, 9], [0, 9]),
    ] {
        for (axis, how) in
            [(0_isize, Stored::Dense), (1, Stored::Dense), (0, Stored::Transposed), (1, Stored::Row)]
        {
            // Along the axis indices may be more or fewer than places, but not along the other one.
            if part[1 - axis as usize] > whole[1 - axis as usize] {
                continue;
            }
            let index = indices(1, part[0] * part[1], whole[axis as usize]);
            both.same(("gather", T::DTYPE, whole, part, axis, how), |stream| {
                let x = stored::<T>(stream, 2, whole, how);
                let index = Array::new(stream, &index, &part);
                let out = stored::<T>(stream, 3, part, Stored::Dense);
                gather(stream, "gather", x.view(), axis, index.view(), out.view()).map(|()| out)
            });
            if T::DTYPE == device::DType::Bool {
                continue;
            }
            both.same(("scatter_add", T::DTYPE, whole, part, axis, how), |stream| {
                let out = stored::<T>(stream, 2, whole, Stored::Narrowed);
                let index = Array::new(stream, &index, &part);
                let src = stored::<T>(stream, 3, [0, 1].map(|axis| whole[axis].max(part[axis])), how);
                scatter_add(stream, out.view(), axis, index.view(), src.view()).map(|()| out)
            });
        }
    }
}

fn distinct_places_of<T: Real>() {
    let Some(both) = both() else { return };
    for (shape, axis) in [([1, 20_000], 1), ([37, 300], 1), ([300, 5], 0), ([2, 1], 1), ([0, 4], 1)] {
        let len = shape[axis] as i64;
        // 7 and 11 divide no length, so no index comes twice in a line.
        let at = |i: usize| if axis == 1 { i % shape[1] } else { i / shape[1] } as i64;
        let index: Vec<i64> = (0..shape[0] * shape[1]).map(|i| (at(i) * 77 + 3) % len).collect();
        for (how, has_base) in [(Stored::Dense, false), (Stored::Transposed, true)] {
            both.same((T::DTYPE, shape, axis, how, has_base), |stream| {
                let (out, base) =
                    (stored::<T>(stream, 2, shape, Stored::Narrowed), stored::<T>(stream, 4, shape, how));
                let (index, src) = (Array::new(stream, &index, &shape), stored::<T>(stream, 3, shape, how));
                let base = has_base.then(|| base.view());
                let sums =
                    crate::scatter_add(stream, out.view(), base, axis as isize, index.view(), src.view())?;
                let sums = sums.of_distinct();
                assert_eq!(sums.workspace(), 0);
                sums.launch(None).map(|()| out)
            });
        }
    }
}

#[test]
fn places_at_distinct_indices() {
    distinct_places_of::<f32>();
    distinct_places_of::<bf16>();
    distinct_places_of::<i64>();
}

#[test]
fn rows_at_indices() {
    rows_of::<f32>();
    rows_of::<f64>();
    rows_of::<bf16>();
    rows_of::<f16>();
    rows_of::<i64>();
    rows_of::<u8>();
    rows_of::<bool>();
}

#[test]
fn places_at_indices() {
    places_of::<f32>();
    places_of::<f64>();
    places_of::<bf16>();
    places_of::<f16>();
    places_of::<i64>();
    places_of::<u8>();
    places_of::<bool>();
}

#[test]
fn one_long_line_is_shared_by_threads() {
    one_long_line_of::<f32>();
    one_long_line_of::<f16>();
}

/// Without a base sums begin with zeros, and with another one than `out` they leave it as it is. Indices may be of fewer columns than the sums.
#[test]
fn sums_begin_with_their_base() {
    let Some(both) = both() else { return };
    for (size, count, width, columns) in [
        (5, 30, 3, 3),
        (2000, 700, 8, 5),
        (40, 13_000, 4, 1),
        (3, 0, 5, 2),
        (4, 6, 9, 0),
        (300_000, 20, 1, 1),
    ] {
        for (base, scatters, kept) in [None, Some(Stored::Dense), Some(Stored::Transposed)]
            .into_iter()
            .flat_map(|base| [(base, false, false), (base, true, false), (base, true, true)])
        {
            both.same((size, count, width, columns, base, scatters, kept), |stream| {
                let out = stored::<bf16>(stream, 1, [size, width], Stored::Dense);
                let base = base.map(|how| stored::<bf16>(stream, 2, [size, width], how));
                let src = stored::<bf16>(stream, 3, [count, width], Stored::Dense);
                let rows = Array::new(stream, &indices(4, count, size), &[count]);
                let each = Array::new(stream, &indices(5, count * columns, size), &[count, columns]);
                let begun = base.as_ref().map(Array::view);
                let sums = match scatters {
                    true => crate::scatter_add(stream, out.view(), begun, 0, each.view(), src.view())?,
                    false => crate::index_add(stream, out.view(), begun, 0, rows.view(), src.view())?,
                };
                let memory = workspace(stream, sums.workspace());
                sums.launch(memory.as_ref().map(Array::view))?;
                Ok(base.filter(|_| kept).unwrap_or(out))
            });
        }
    }
}

fn one_long_line_of<T: Real>() {
    let Some(both) = both() else { return };
    both.same(("scatter_add", T::DTYPE), |stream| {
        let out = Array::new(stream, &numbers::<T>(1, 1000), &[1000]);
        let index = Array::new(stream, &indices(2, 20_000, 1000), &[20_000]);
        let src = Array::new(stream, &numbers::<T>(3, 20_000), &[20_000]);
        scatter_add(stream, out.view(), 0, index.view(), src.view()).map(|()| out)
    });
}

#[test]
fn an_index_out_of_range_is_an_error_and_touches_nothing() {
    let Some(Both { cuda, .. }) = both() else { return };
    for bad in [4, -1, i64::MIN] {
        let x = Array::new(&cuda, &numbers::<f32>(1, 12), &[4, 3]);
        let before = x.to_vec();
        let index = Array::new(&cuda, &[bad, bad], &[2]);
        let places = Array::new(&cuda, &[bad; 6], &[2, 3]);
        let rows = Array::full(&cuda, 7_f32, &[2, 3]);
        let expect = |op: &str, launched: Result<()>| {
            launched.expect("a launch");
            let error = cuda.synchronize().expect_err("a fault").to_string();
            assert!(error.contains(op) && error.contains(&bad.to_string()), "{error}");
        };
        expect("index_select", index_select(&cuda, "index_select", x.view(), 0, index.view(), rows.view()));
        expect("gather", gather(&cuda, "gather", x.view(), 0, places.view(), rows.view()));
        expect("index_add", index_add(&cuda, x.view(), 0, index.view(), rows.view()));
        expect("scatter_add", scatter_add(&cuda, x.view(), 0, places.view(), rows.view()));
        assert_eq!((x.to_vec(), rows.to_vec()), (before, vec![7.0; 6]));
    }
}
