//! What moves elements and leaves them as they are, and what adds them up by index.

use streamgrad::PadMode;
use streamgrad::prelude::*;

use super::array::{Array, Operand, Random, Values, count, indices};
use super::num::{Num, sum};
use super::{Case, Want, of_vars};

/// Views, each with a copy of what is seen.
pub(crate) fn view(random: &mut Random) -> Case {
    let shape = random.shape(1..=5);
    let dtype = random.any_dtype();
    let x = Operand::random(random, &shape, dtype, Values::Special);
    let rank = shape.len();
    let axis = random.below(rank);
    let given = random.signed(axis, rank);
    let with = |size: usize| {
        let mut shape = shape.clone();
        shape[axis] = size;
        shape
    };
    match random.below(9) {
        0 => {
            let order = random.order(rank);
            let signed: Vec<isize> = order.iter().map(|&axis| random.signed(axis, rank)).collect();
            let to: Vec<usize> = order.iter().map(|&axis| shape[axis]).collect();
            let want = Want::each(dtype, &to, |index| {
                let mut from = vec![0; rank];
                order.iter().zip(index).for_each(|(&axis, &i)| from[axis] = i);
                x.array.num(&from)
            });
            Case::new(format!("permute {signed:?}"), vec![x], want, move |x| x[0].permute(&signed))
        }
        1 => {
            let other = random.below(rank);
            let mut to = shape.clone();
            to.swap(axis, other);
            let want = Want::each(dtype, &to, |index| {
                let mut from = index.to_vec();
                from.swap(axis, other);
                x.array.num(&from)
            });
            let other = random.signed(other, rank);
            Case::new(format!("transpose {given} {other}"), vec![x], want, move |x| {
                x[0].transpose(given, other)
            })
        }
        2 => {
            let start = random.below(shape[axis] + 1);
            let len = random.below(shape[axis] - start + 1);
            let want = Want::each(dtype, &with(len), |index| {
                let mut from = index.to_vec();
                from[axis] += start;
                x.array.num(&from)
            });
            Case::new(format!("narrow {given} {start} {len}"), vec![x], want, move |x| {
                x[0].narrow(given, start, len)
            })
        }
        3 => {
            // In another order of factors, with a 1 somewhere.
            let mut to: Vec<usize> = shape.iter().rev().copied().collect();
            to.insert(random.below(rank + 1), 1);
            if random.once_in(2) && to.len() > 2 {
                let last = to.pop().unwrap_or(1);
                to[0] *= last;
            }
            let want =
                Want::new(dtype, to.clone(), x.array.values.iter().map(|&x_| x.array.like(x_)).collect());
            Case::new(format!("reshape {to:?}"), vec![x], want, move |x| x[0].reshape(&to))
        }
        4 => {
            let to = [&[random.range(1, 3)][..], &shape].concat();
            let want = Want::each(dtype, &to, |index| x.array.num(&index[1..]));
            Case::new(format!("expand {to:?}"), vec![x], want, move |x| x[0].expand(&to))
        }
        5 => {
            let end = random.range(axis, rank - 1);
            let to = [&shape[..axis], &[count(&shape[axis..=end])], &shape[end + 1..]].concat();
            let want = Want::new(dtype, to, x.array.values.iter().map(|&x_| x.array.like(x_)).collect());
            let last = random.signed(end, rank);
            Case::new(format!("flatten {given} {last}"), vec![x], want, move |x| x[0].flatten(given, last))
        }
        6 if shape[axis] > 0 => {
            let at = random.below(shape[axis]);
            let to = [&shape[..axis], &shape[axis + 1..]].concat();
            let want = Want::each(dtype, &to, |index| {
                let mut from = index.to_vec();
                from.insert(axis, at);
                x.array.num(&from)
            });
            Case::new(format!("select {given} {at}"), vec![x], want, move |x| x[0].select(given, at))
        }
        7 => {
            let mut to = shape.clone();
            to.insert(axis, 1);
            let want = Want::new(dtype, to, x.array.values.iter().map(|&x_| x.array.like(x_)).collect());
            Case::new(format!("unsqueeze {axis}"), vec![x], want, move |x| {
                x[0].unsqueeze(axis as isize)?.squeeze(axis as isize)?.unsqueeze(axis as isize)
            })
        }
        _ if rank >= 2 => {
            let (upper, diagonal) = (random.once_in(2), random.below(9) as i64 - 4);
            let want = Want::each(dtype, &shape, |index| {
                let (i, j) = (index[rank - 2] as i64, index[rank - 1] as i64);
                let kept = if upper { j - i >= diagonal } else { j - i <= diagonal };
                if kept { x.array.num(index) } else { x.array.like(0.0) }
            });
            let name = if upper { "triu" } else { "tril" };
            Case::new(format!("{name} {diagonal}"), vec![x], want, move |x| match upper {
                true => x[0].triu(diagonal),
                false => x[0].tril(diagonal),
            })
        }
        _ => {
            let (before, size) = (random.below(3), random.below(3));
            let size = before + shape[axis] + size;
            let want = Want::each(dtype, &with(size), |index| {
                let mut from = index.to_vec();
                from[axis] = from[axis].wrapping_sub(before);
                if from[axis] < shape[axis] { x.array.num(&from) } else { x.array.like(0.0) }
            });
            Case::new(format!("pad_narrow {given} {before} {size}"), vec![x], want, move |x| {
                x[0].pad_narrow(given, before, size)
            })
        }
    }
}

/// Several tensors side by side, or one on the other.
pub(crate) fn join(random: &mut Random) -> Case {
    let shape = random.shape(1..=4);
    let (dtype, parts) = (random.any_dtype(), random.range(1, 4));
    let axis = random.below(shape.len());
    if random.once_in(2) {
        let axis = random.below(shape.len() + 1);
        let operands: Vec<_> =
            (0..parts).map(|_| Operand::random(random, &shape, dtype, Values::Special)).collect();
        let mut to = shape.clone();
        to.insert(axis, parts);
        let want = Want::each(dtype, &to, |index| {
            let mut from = index.to_vec();
            operands[from.remove(axis)].array.num(&from)
        });
        return Case::new(format!("stack {axis}"), operands, want, move |x| {
            Tensor::stack(&x.iter().collect::<Vec<_>>(), axis as isize)
        });
    }
    let given = random.signed(axis, shape.len());
    let mut part = || {
        let mut shape = shape.clone();
        shape[axis] = random.below(5);
        Operand::random(random, &shape, dtype, Values::Special)
    };
    let operands: Vec<_> = (0..parts).map(|_| part()).collect();
    let mut to = shape.clone();
    to[axis] = operands.iter().map(|x| x.array.shape[axis]).sum();
    let want = Want::each(dtype, &to, |index| {
        let mut from = index.to_vec();
        for x in &operands {
            match from[axis].checked_sub(x.array.shape[axis]) {
                Some(rest) => from[axis] = rest,
                None => return x.array.num(&from),
            }
        }
        operands[0].array.like(f64::NAN)
    });
    Case::new(format!("cat {given}"), operands, want, move |x| {
        Tensor::cat(&x.iter().collect::<Vec<_>>(), given)
    })
}

/// Borders around the last axes.
pub(crate) fn pad(random: &mut Random) -> Case {
    let shape = random.full_shape(1..=4);
    let rank = shape.len();
    let mode = random.pick(&[PadMode::Constant(2.0), PadMode::Reflect, PadMode::Replicate]);
    let dtype = random.number();
    let x = Operand::random(random, &shape, dtype, Values::Plain);
    let axes = random.range(1, rank.min(3));
    let mut to = shape.clone();
    let borders: Vec<[isize; 2]> = (0..axes)
        .map(|nth| {
            let size = shape[rank - 1 - nth];
            let most = if mode == PadMode::Reflect { (size - 1).min(3) } else { 3 };
            let taken = if random.once_in(4) { (size - 1).min(1) } else { 0 };
            let pair = [random.below(most + 1) as isize, random.below(most + 1) as isize - taken as isize];
            to[rank - 1 - nth] = (size as isize + pair[0] + pair[1]) as usize;
            pair
        })
        .collect();
    let want = Want::each(dtype, &to, |index| {
        let mut from = index.to_vec();
        for (nth, pair) in borders.iter().enumerate() {
            let axis = rank - 1 - nth;
            let (at, last) = (index[axis] as isize - pair[0], shape[axis] as isize - 1);
            let place = match mode {
                PadMode::Constant(value) if at < 0 || at > last => return x.array.like(value),
                PadMode::Reflect if at < 0 => -at,
                PadMode::Reflect if at > last => 2 * last - at,
                _ => at.clamp(0, last),
            };
            from[axis] = place as usize;
        }
        x.array.num(&from)
    });
    Case::new(format!("pad {borders:?} {mode:?}"), vec![x], want, move |x| {
        of_vars(x, |x| x[0].pad(&borders, mode))
    })
}

/// Numbers of places below `end`.
pub(crate) fn places(random: &mut Random, shape: &[usize], end: usize) -> Operand {
    let array = Array::make(DType::I64, shape, |_| random.below(end) as f64);
    Operand::of(random, array)
}

/// Picking and adding by a vector of indices.
pub(crate) fn by_vector(random: &mut Random) -> Case {
    let mut shape = random.shape(1..=4);
    let axis = random.below(shape.len());
    shape[axis] = shape[axis].max(1);
    let k = random.below(12);
    let given = random.signed(axis, shape.len());
    let index = places(random, &[k], shape[axis]);
    let mut picked = shape.clone();
    picked[axis] = k;
    if random.once_in(2) {
        let dtype = random.any_dtype();
        let x = Operand::random(random, &shape, dtype, Values::Special);
        let want = Want::each(dtype, &picked, |at| {
            let mut from = at.to_vec();
            from[axis] = index.array.at(&[at[axis]]) as usize;
            x.array.num(&from)
        });
        return Case::new(format!("index_select {given}"), vec![x, index], want, move |x| {
            x[0].index_select(given, &x[1])
        });
    }
    let dtype = random.number();
    let x = Operand::random(random, &shape, dtype, Values::Plain);
    let source = Operand::random(random, &picked, dtype, Values::Plain);
    let want = Want::each(dtype, &shape, |at| {
        let mut terms = vec![x.array.num(at)];
        for i in (0..k).filter(|&i| index.array.at(&[i]) as usize == at[axis]) {
            let mut from = at.to_vec();
            from[axis] = i;
            terms.push(source.array.num(&from));
        }
        added(&terms, dtype)
    });
    Case::new(format!("index_add {given}"), vec![x, index, source], want, move |x| {
        x[0].index_add(given, &x[1], &x[2])
    })
}

/// A sum in place: halves may be rounded at every step.
fn added(terms: &[Num], dtype: DType) -> Num {
    let precision = super::array::precision(dtype);
    let terms: Vec<Num> = terms.iter().map(|&term| Num { precision, ..term }).collect();
    sum(&terms, Num { value: 0.0, error: 0.0, precision })
}

/// Picking and adding by an index for each element.
pub(crate) fn by_element(random: &mut Random) -> Case {
    let mut shape = random.full_shape(1..=4);
    let axis = random.below(shape.len());
    shape.iter_mut().for_each(|size| *size = (*size).min(12));
    let given = random.signed(axis, shape.len());
    let sizes = shape.iter().enumerate();
    let chosen: Vec<usize> = sizes
        .map(|(at, &size)| if at == axis { random.range(0, 8) } else { random.range(1, size) })
        .collect();
    let index = places(random, &chosen, shape[axis]);
    if random.once_in(2) {
        let dtype = random.any_dtype();
        let x = Operand::random(random, &shape, dtype, Values::Special);
        let want = Want::each(dtype, &chosen, |at| {
            let mut from = at.to_vec();
            from[axis] = index.array.at(at) as usize;
            x.array.num(&from)
        });
        return Case::new(format!("gather {given}"), vec![x, index], want, move |x| {
            x[0].gather(given, &x[1])
        });
    }
    let dtype = random.number();
    let x = Operand::random(random, &shape, dtype, Values::Plain);
    let larger: Vec<usize> = chosen.iter().map(|&size| size + random.below(3)).collect();
    let source = Operand::random(random, &larger, dtype, Values::Plain);
    let mut terms: Vec<Vec<Num>> = x.array.values.iter().map(|&value| vec![x.array.like(value)]).collect();
    for at in indices(&chosen) {
        let mut to = at.clone();
        to[axis] = index.array.at(&at) as usize;
        let flat = to.iter().zip(&shape).fold(0, |flat, (&i, &size)| flat * size + i);
        terms[flat].push(source.array.num(&at));
    }
    let values = terms.iter().map(|terms| added(terms, dtype)).collect();
    let want = Want::new(dtype, shape, values);
    Case::new(format!("scatter_add {given}"), vec![x, index, source], want, move |x| {
        x[0].scatter_add(given, &x[1], &x[2])
    })
}
