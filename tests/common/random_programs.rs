//! Random programs over several streams.

use proptest::prelude::*;
use streamgrad::Result;
use streamgrad::prelude::*;

use super::bits;

const SIDE: usize = 5;

/// One op of a random program: which op, on which earlier values, on which stream.
#[derive(Clone, Debug)]
pub(crate) struct Op {
    kind: u8,
    lhs: usize,
    rhs: usize,
    stream: usize,
    /// Drop the value that was made this many ops ago; its memory may be used again at once.
    forget: Option<usize>,
}

pub(crate) fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = (0u8..10, 0usize..64, 0usize..64, 0usize..8, prop::option::weighted(0.3, 1usize..6));
    let op = op.prop_map(|(kind, lhs, rhs, stream, forget)| Op { kind, lhs, rhs, stream, forget });
    prop::collection::vec(op, 3..40)
}

fn apply(kind: u8, x: &Var, y: &Var) -> Result<Var> {
    match kind {
        0 => x.add(y),
        1 => x.sub(y),
        2 => x.mul(y),
        3 => x.tanh(),
        4 => x.relu(),
        5 => x.matmul(y),
        6 => x.transpose(0, 1),
        7 => x.softmax(1),
        8 => x.mean(&[0], true)?.expand(&[SIDE, SIDE])?.add(y),
        _ => x.narrow(0, 1, SIDE - 1)?.sum(&[0], true)?.mul(y),
    }
}

/// Runs a program on `streams` streams, or the default one for 0, and returns the loss and the gradients of its leaves.
pub(crate) fn run(program: &[Op], streams: usize, device: &Device) -> Result<Vec<Vec<u32>>> {
    let streams: Vec<Stream> = match streams {
        0 => vec![device.default_stream()],
        count => (0..count).map(|_| device.new_stream()).collect::<Result<_>>()?,
    };
    streamgrad::seed(3);
    let leaf = || Tensor::uniform(&[SIDE, SIDE], -0.5, 0.5, DType::F32, None, device).map(Var::leaf);
    let leaves: Vec<Var> = (0..3).map(|_| leaf()).collect::<Result<_>>()?;
    let mut values: Vec<Option<Var>> = leaves.iter().cloned().map(Some).collect();
    for op in program {
        let live: Vec<&Var> = values.iter().flatten().collect();
        let (x, y) = (live[op.lhs % live.len()], live[op.rhs % live.len()]);
        let value = streams[op.stream % streams.len()].scope(|| apply(op.kind, x, y))?;
        values.push(Some(value));
        if let Some(at) = op.forget.and_then(|ago| values.len().checked_sub(1 + ago))
            && at >= leaves.len()
        {
            values[at] = None;
        }
    }
    let last = values.last().and_then(Option::as_ref).unwrap();
    let loss = last.mul(last)?.add(&leaves[0])?.mean(&[], false)?;
    let gradients = loss.backward()?;
    let mut results = vec![bits(loss.value())?];
    for leaf in &leaves {
        results.push(gradients.get(leaf).map(|gradient| bits(&gradient)).transpose()?.unwrap_or_default());
    }
    Ok(results)
}
