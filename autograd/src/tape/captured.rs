//! Leaves of captured steps, which must be frozen, or not, as they were at the capture.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use device::{Capture, Shared};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tensor::{EachReplay, Error, ErrorKind, Result, RuleStep, each_replay};

use super::Node;

/// What a capture knows of leaves, by address.
#[derive(Default)]
struct Leaves {
    /// Each with whether it is frozen.
    known: FxHashMap<usize, (Shared<Node>, bool)>,
    /// Whether replays ask.
    is_asked: bool,
}

/// Notes whether a leaf is frozen for the step that this thread captures, if it does.
pub(super) fn note_frozen(leaf: &Shared<Node>) {
    if let Some(leaves) = Capture::scratch::<Mutex<Leaves>>() {
        note(&mut leaves.lock(), leaf);
    }
}

fn note(leaves: &mut Leaves, leaf: &Shared<Node>) {
    let known = leaves.known.entry(leaf.address());
    known.or_insert_with(|| (leaf.clone(), leaf.frozen.load(Ordering::Relaxed)));
}

/// Has replays of the step that this thread captures refuse to run once these leaves of a backward pass, or those that it left
/// out as frozen, have changed.
pub(crate) fn expect_as_now<'n>(leaves: impl Iterator<Item = &'n Shared<Node>>) {
    let Some(known) = Capture::scratch::<Mutex<Leaves>>() else { return };
    let mut locked = known.lock();
    leaves.for_each(|leaf| note(&mut locked, leaf));
    if !std::mem::replace(&mut locked.is_asked, true) {
        each_replay(AsCaptured(Arc::clone(&known)));
    }
}

struct AsCaptured(Arc<Mutex<Leaves>>);

impl EachReplay for AsCaptured {
    /// The step itself may freeze and unfreeze leaves: what counts is how it leaves them.
    fn merge_slots(&mut self) -> Vec<(u32, u32)> {
        for (leaf, is_frozen) in self.0.lock().known.values_mut() {
            *is_frozen = leaf.frozen.load(Ordering::Relaxed);
        }
        Vec::new()
    }

    fn next(&mut self) -> Result<Vec<RuleStep>> {
        let leaves = self.0.lock();
        let is_other = |(leaf, was): &&(Shared<Node>, bool)| leaf.frozen.load(Ordering::Relaxed) != *was;
        let Some((leaf, was_frozen)) =
            leaves.known.values().filter(is_other).min_by_key(|(leaf, _)| leaf.sequence)
        else {
            return Ok(Vec::new());
        };
        let now = if *was_frozen { "unfrozen" } else { "frozen" };
        let reason =
            format!("the leaf made at {} was {now} since the capture; capture the step again", leaf.location);
        Err(Error::new(ErrorKind::Captured { op: "replay", reason: reason.into() }))
    }

    fn undo(&mut self) {}
}

#[cfg(test)]
mod tests {
    use tensor::{DType, Device, Graph, Tensor};

    use crate::Var;

    use super::*;

    /// A replay does what was captured, so it is refused once other leaves are frozen.
    #[test]
    fn a_replay_is_refused_once_other_leaves_are_frozen() -> Result<()> {
        let leaf = |value| Ok::<_, Error>(Var::leaf(Tensor::full(&[2], value, DType::F64, &Device::cpu())?));
        let (x, w) = (leaf(2.0)?, leaf(3.0)?);
        let line = line!() - 2;
        w.freeze();
        let step = || {
            let gradients = x.mul(&w)?.sum_all()?.backward()?;
            Ok(gradients.get(&x))
        };
        let inference = Graph::capture(&Device::cpu(), || Ok(x.mul(&w)?.value().clone()))?;
        let graph = Graph::capture(&Device::cpu(), step)?;
        let gradient = || graph.replay()?.map(|g| g.to_vec::<f64>()).transpose();
        let refused = |change: &str| {
            let error = gradient().err();
            let text = error.map(|error| format!("{error} {:?}", error.kind())).unwrap_or_default();
            let is_it = text.contains(change) && text.contains(&format!("captured.rs:{line}:"));
            assert!(is_it && text.contains("Captured") && text.contains("capture the step again"), "{text}");
        };
        assert_eq!(gradient()?, Some(vec![3.0, 3.0]));
        let both = Graph::capture(&Device::cpu(), || {
            let first = step()?;
            w.unfreeze();
            let second = x.mul(&w)?.sum_all()?.backward()?.get(&w);
            w.freeze();
            Ok((first, second))
        })?;
        let (first, second) = both.replay()?;
        let values = |found: Option<Tensor>| found.map(|found| found.to_vec::<f64>()).transpose();
        assert_eq!((values(first)?, values(second)?), (Some(vec![3.0, 3.0]), Some(vec![2.0, 2.0])));
        w.unfreeze();
        refused("was unfrozen");
        w.freeze();
        x.freeze();
        refused("was frozen");
        x.unfreeze();
        assert_eq!(gradient()?, Some(vec![3.0, 3.0]));
        // What has no backward pass does not care.
        w.unfreeze();
        assert_eq!(inference.replay()?.to_vec::<f64>()?, [6.0, 6.0]);
        Ok(())
    }
}
